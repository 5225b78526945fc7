//! Blocking receives that are not posted.

use super::world::{AMPLE, Room, World, pattern};
use crate::engine::{Bypass, Status};
use crate::matching::Source;
use crate::shared::tests::contents;
use crate::shared::tests::fabric::{Fabric, tiny};

#[test]
fn packet_in_hand_is_received_without_a_request() {
    let fabric = Fabric::new(tiny(2));
    let mut world = World::new(&fabric, AMPLE);
    for (tag, len) in [(1, 8), (2, 0), (3, 256)] {
        let wanted = pattern(Source::Rank(0), tag);
        assert!(world.engine(1).can_bypass(&wanted));
        world.isend(0, 1, tag, contents(tag, len));
        let (loan, mut buf) = world.lender.receive(len);
        let Bypass::Done(outcome) = world.engine(1).receive_step(&wanted, &mut buf) else { panic!("{len}") };
        assert_eq!(outcome, Ok(Status { peer: 0, tag, len }));
        assert_eq!(world.lender.end(loan), contents(tag, len));
    }
    world.assert_empty(&[0, 1], "bypass");
}

#[test]
fn message_of_several_packets_becomes_a_request() {
    let fabric = Fabric::new(tiny(2));
    let mut world = World::new(&fabric, AMPLE);
    world.isend(0, 1, 1, contents(1, 2000));
    let (loan, mut buf) = world.lender.receive(2000);
    let step = world.engine(1).receive_step(&pattern(Source::Any, 1), &mut buf);
    let Bypass::Posted(id) = step else { panic!("{step:?}") };
    world.settle();
    assert_eq!(world.engine(1).test(id), Some(Ok(Status { peer: 0, tag: 1, len: 2000 })));
    assert_eq!(world.lender.end(loan), contents(1, 2000));
}

#[test]
fn other_message_is_stored_and_forbids_the_bypass_until_it_is_taken() {
    let fabric = Fabric::new(tiny(2));
    let mut world = World::new(&fabric, AMPLE);
    let wanted = pattern(Source::Rank(0), 1);
    for len in [8, 700] {
        world.isend(0, 1, 2, contents(2, len));
        let (loan, mut buf) = world.lender.receive(8);
        assert!(matches!(world.engine(1).receive_step(&wanted, &mut buf), Bypass::Busy));
        assert!(!world.engine(1).can_bypass(&wanted));
        world.lender.end(loan);
        let receive = world.recv(1, 0, 2, len);
        world.settle();
        assert_eq!(world.done(receive).1, contents(2, len));
        assert!(world.engine(1).can_bypass(&wanted));
    }
}

#[test]
fn full_table_of_requests_leaves_the_buffer_with_its_owner() {
    let fabric = Fabric::new(tiny(2));
    let mut world = World::new(&fabric, Room { requests: 0, ..AMPLE });
    let isent = world.isend_in(0, 0, 1, 1, contents(1, 2000)).err();
    assert!(isent.is_some(), "no room for a pending send either");
    world.engines[0].requests_mut().push(Default::default());
    world.isend(0, 1, 1, contents(1, 2000));
    let (_, mut buf) = world.lender.receive(2000);
    assert!(matches!(world.engine(1).receive_step(&pattern(Source::Any, 1), &mut buf), Bypass::Busy));
    assert_eq!((buf.len(), world.engine(1).unexpected_messages()), (2000, 1));
}

#[test]
fn bypass_is_refused_while_a_peer_is_held_whose_message_it_could_want() {
    let fabric = Fabric::new(tiny(2));
    let mut world = World::new(&fabric, Room { entries: 0, ..AMPLE });
    world.isend(0, 1, 1, contents(1, 8));
    world.settle();
    assert!(world.engine(1).is_held(0));
    assert!(
        !world.engine(1).can_bypass(&pattern(Source::Rank(0), 1)),
        "it would wait for a message that can't come"
    );
}
