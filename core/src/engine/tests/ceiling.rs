//! The ceiling of unexpected messages: senders are held, nothing is lost, and what can go on goes on.

use std::vec::Vec;

use super::world::{AMPLE, Room, Ticket, World, pattern};
use crate::engine::{Failure, Status};
use crate::matching::Source;
use crate::shared::tests::contents;
use crate::shared::tests::fabric::{Fabric, tiny};
use crate::slab::{List, Slot};

const TINY: Room = Room { requests: 512, entries: 2, chunks: 1, buckets: 2 };
const NOTHING: Room = Room { requests: 512, entries: 0, chunks: 0, buckets: 2 };

fn received(world: &mut World<'_>, receive: Ticket, from: u32, tag: u64, len: usize) {
    let (outcome, bytes) = world.done(receive);
    assert_eq!(outcome, Ok(Status { peer: from, tag, len }));
    assert_eq!(bytes, contents(tag, len));
}

#[test]
fn sender_is_held_at_the_ceiling_and_everything_arrives_in_order() {
    for (room, len) in [(TINY, 8), (TINY, 100), (TINY, 700), (NOTHING, 8), (NOTHING, 700)] {
        let fabric = Fabric::new(tiny(2));
        let mut world = World::new(&fabric, room);
        let sends: Vec<_> = (0..20).map(|tag| world.isend(0, 1, tag, contents(tag, len))).collect();
        world.settle();
        assert_eq!(world.engine(1).held_peers(), 1);
        assert!(world.engine(1).is_held(0) && world.engine(1).unexpected_messages() <= 2);
        for tag in 0..20 {
            let receive = world.recv(1, 0, tag, len);
            world.settle();
            received(&mut world, receive, 0, tag, len);
        }
        for send in sends {
            world.done(send).0.unwrap();
        }
        world.assert_empty(&[0, 1], "after the ceiling");
    }
}

#[test]
fn receive_that_matches_the_held_head_gets_it_directly() {
    let fabric = Fabric::new(tiny(3));
    let mut world = World::new(&fabric, NOTHING);
    for from in [0, 2] {
        world.isend(from, 1, u64::from(from), contents(u64::from(from), 2000));
    }
    world.settle();
    assert_eq!(world.engine(1).held_peers(), 2);
    let from_two = world.recv(1, 2, 2, 2000);
    let other = world.recv(1, 0, 77, 8);
    world.engine(1).progress();
    assert!(world.engine(1).may_be_held(other.id), "what it asks for may be behind the held head");
    assert!(world.engine(1).cancel(other.id));
    world.done(other).0.unwrap_err();
    assert!(world.engine(1).is_held(0) && !world.engine(1).is_held(2));
    world.settle();
    received(&mut world, from_two, 2, 2, 2000);
    let from_any = world.irecv(1, pattern(Source::Any, 0), 2000).unwrap();
    world.settle();
    received(&mut world, from_any, 0, 0, 2000);
}

#[test]
fn held_peer_does_not_hold_the_others_up() {
    let fabric = Fabric::new(tiny(3));
    let mut world = World::new(&fabric, NOTHING);
    for len in [8, 100, 600] {
        world.isend(0, 1, 1, contents(1, len));
    }
    world.settle();
    for (tag, len) in (10..60).zip([8, 100, 600].into_iter().cycle()) {
        let receive = world.recv(1, 2, tag, len);
        let send = world.isend(2, 1, tag, contents(tag, len));
        world.settle();
        received(&mut world, receive, 2, tag, len);
        world.done(send).0.unwrap();
    }
    assert!(world.engine(1).is_held(0));
}

#[test]
fn packet_that_is_held_does_not_end_the_turn_for_the_others() {
    let fabric = Fabric::new(tiny(3));
    let mut world = World::new(&fabric, NOTHING);
    let receive = world.recv(1, 2, 5, 8);
    world.isend(0, 1, 1, contents(1, 8));
    world.isend(2, 1, 5, contents(5, 8));
    assert!(world.engine(1).progress().packets > 0, "a caller that sees 0 goes to sleep");
    received(&mut world, receive, 2, 5, 8);
}

#[test]
fn room_that_a_dead_peer_leaves_is_given_to_the_held() {
    let fabric = Fabric::new(tiny(3));
    let mut world = World::new(&fabric, TINY);
    // Half a message of rank 0 fills the store; rank 2 is held with a message that would fit.
    world.isend(0, 1, 1, contents(1, 2000));
    world.engine(1).step();
    let behind = world.recv(1, 2, 7, 8);
    world.isend(2, 1, 6, contents(6, 200));
    world.isend(2, 1, 7, contents(7, 8));
    for _ in 0..100 {
        world.engine(1).port_mut().port.sweep_all();
        world.engine(1).progress();
    }
    assert!(world.engine(1).is_held(2));
    world.engine(1).fail(0, Failure::Died);
    for _ in 0..100 {
        world.engine(1).progress();
    }
    received(&mut world, behind, 2, 7, 8);
}

#[test]
fn more_entries_let_the_held_go_on() {
    let fabric = Fabric::new(tiny(2));
    let mut world = World::new(&fabric, Room { entries: 0, ..AMPLE });
    world.isend(0, 1, 1, contents(1, 8));
    world.settle();
    assert!(world.engine(1).is_held(0));
    world.engine(1).grow_unexpected(|entries, lists| {
        entries.push(Slot::default());
        lists.resize(8, List::new());
    });
    world.settle();
    assert_eq!((world.engine(1).unexpected_messages(), world.engine(1).held_peers()), (1, 0));
}
