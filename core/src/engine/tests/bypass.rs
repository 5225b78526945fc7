//! Blocking receives without a posted request.

mod random;

use super::world::{AMPLE, World, WorldRoom, pattern};
use crate::engine::{Bypass, CompletionError, Failure, Status};
use crate::matching::{Pattern, Source};
use crate::port::{MessagePort, PortFault};
use crate::shared::tests::contents;
use crate::shared::tests::fabric::{Fabric, Reading, tiny};
use crate::wire::{Envelope, Kind};

#[test]
fn packet_in_hand_is_received_without_a_request() {
    let fabric = Fabric::new(tiny(2));
    let mut world = World::new(&fabric, AMPLE);
    for (tag, len) in [(1, 8), (2, 0), (3, 256)] {
        let wanted = pattern(Source::Rank(0), tag);
        assert!(world.engine(1).can_bypass(&wanted));
        world.isend(0, 1, tag, contents(tag, len));
        let (loan, mut buf) = world.lender.receive(1, len);
        let Bypass::Done(outcome) = world.engine(1).receive_step(&wanted, &mut buf) else { panic!("{len}") };
        assert_eq!(outcome, Ok(Status { peer: 0, tag, len }));
        assert_eq!(world.lender.end(loan), contents(tag, len));
    }
    world.assert_empty(&[0, 1], "bypass");
}

#[test]
fn message_of_a_rendezvous_becomes_a_request() {
    for reading in [Reading::Never, Reading::Always] {
        for (synchronous, len, room) in [(false, 2000, 2000), (true, 2000, 2000), (true, 8, 8), (true, 0, 0)]
        {
            let fabric = Fabric::reading(tiny(2), reading, 1);
            let mut world = World::new(&fabric, AMPLE);
            let send = match synchronous {
                true => world.issend(0, 1, 1, contents(1, len)),
                false => world.isend(0, 1, 1, contents(1, len)),
            };
            let (loan, mut buf) = world.lender.receive(1, room);
            let step = world.engine(1).receive_step(&pattern(Source::Any, 1), &mut buf);
            let Bypass::Posted(id) = step else { panic!("{step:?}") };
            assert!(buf.is_empty(), "the request owns the buffer");
            world.settle();
            assert_eq!(world.engine(1).test(id), Some(Ok(Status { peer: 0, tag: 1, len })));
            assert_eq!(world.lender.end(loan), contents(1, len));
            assert_eq!(world.done(send).0, Ok(Status { peer: 1, tag: 1, len }));
            world.assert_empty(&[0, 1], "bypass of a rendezvous");
        }
    }
}

#[test]
fn packet_that_violates_the_protocol_ends_the_bypass() {
    for kind in [Kind::Rts, Kind::Cts, Kind::Data, Kind::Fin, Kind::Rma] {
        let fabric = Fabric::new(tiny(2));
        let mut world = World::new(&fabric, AMPLE);
        let envelope = Envelope { kind, context: 0, tag: 1, total: 3 };
        assert_eq!(world.engine(0).port_mut().send(1, &envelope, &[1; 3]), Ok(true));
        let (_, mut buf) = world.lender.receive(1, 10);
        let wanted = pattern(Source::Rank(0), 1);
        match world.engine(1).receive_step(&wanted, &mut buf) {
            Bypass::Posted(id) => {
                let outcome = world.engine(1).test(id);
                assert!(
                    matches!(outcome, Some(Err(CompletionError::PeerFailed { peer: 0, .. }))),
                    "{kind:?}: {outcome:?}"
                );
            }
            Bypass::Post => assert_eq!(buf.len(), 10),
            step => panic!("{kind:?}: {step:?}"),
        }
        assert_eq!(world.engine(1).failure(0), Some(Failure::Fault(PortFault::Protocol { kind })));
        world.assert_empty(&[1], "a broken bypass");
    }
}

#[test]
fn other_message_is_stored_and_forbids_the_bypass_until_it_is_taken() {
    let fabric = Fabric::new(tiny(2));
    let mut world = World::new(&fabric, AMPLE);
    let wanted = pattern(Source::Rank(0), 1);
    for len in [8, 700] {
        world.isend(0, 1, 2, contents(2, len));
        let (loan, mut buf) = world.lender.receive(1, 8);
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
    let mut world = World::new(&fabric, WorldRoom { requests: 0, ..AMPLE });
    let isent = world.isend_in(0, 0, 1, 1, contents(1, 2000)).err();
    assert!(isent.is_some(), "not even a pending send found a slot");
    world.engines[0].grow_requests(1);
    world.isend(0, 1, 1, contents(1, 2000));
    let (_, mut buf) = world.lender.receive(1, 2000);
    assert!(matches!(world.engine(1).receive_step(&pattern(Source::Any, 1), &mut buf), Bypass::Busy));
    assert_eq!((buf.len(), world.engine(1).unexpected_messages()), (2000, 1));
    world.engines[1].grow_requests(1);
    let receive = world.recv(1, 0, 1, 2000);
    world.settle();
    assert_eq!(world.done(receive).1, contents(1, 2000));
}

/// Returns the word that a blocking receive finds at once.
fn word(world: &mut World<'_>, wanted: &Pattern) -> Option<(Status, [u8; 8])> {
    let mut into = [0; 8];
    let status = world.engine(1).receive_word(wanted, &mut into)?;
    Some((status, into))
}

#[test]
fn word_that_is_there_is_received_at_once_and_nothing_else() {
    let fabric = Fabric::new(tiny(2));
    let mut world = World::new(&fabric, AMPLE);
    let wanted = pattern(Source::Rank(0), 1);
    assert_eq!(word(&mut world, &wanted), None);
    for from in [Source::Rank(0), Source::Any] {
        world.isend(0, 1, 1, contents(1, 8));
        // Another tag, source or context than that of the message.
        assert_eq!(word(&mut world, &pattern(from, 2)), None);
        assert_eq!(word(&mut world, &pattern(Source::Rank(1), 1)), None);
        assert_eq!(word(&mut world, &pattern(Source::Rank(7), 1)), None);
        assert_eq!(word(&mut world, &Pattern { context: 3, ..pattern(from, 1) }), None);
        let (status, bytes) = word(&mut world, &pattern(from, 1)).unwrap();
        assert_eq!((status, &bytes[..]), (Status { peer: 0, tag: 1, len: 8 }, &contents(1, 8)[..]));
    }
    for len in [0, 7, 9, 48, 64] {
        world.isend(0, 1, 1, contents(1, len));
        assert_eq!(word(&mut world, &wanted), None, "{len} bytes");
        let receive = world.irecv(1, wanted, len).unwrap();
        world.settle();
        assert_eq!(world.done(receive).0, Ok(Status { peer: 0, tag: 1, len }));
    }
    world.assert_empty(&[0, 1], "words");
}

#[test]
fn word_passes_by_nothing_that_is_posted_stored_or_before_it() {
    let fabric = Fabric::new(tiny(2));
    let mut world = World::new(&fabric, AMPLE);
    let (any, wanted) = (pattern(Source::Any, 1), pattern(Source::Rank(0), 1));
    // Posted before.
    let posted = world.irecv(1, any, 8).unwrap();
    world.isend(0, 1, 1, contents(1, 8));
    assert_eq!(word(&mut world, &wanted), None);
    world.settle();
    assert_eq!(world.done(posted).1, contents(1, 8));
    // Stored before.
    world.isend(0, 1, 1, contents(2, 8));
    world.settle();
    world.isend(0, 1, 1, contents(3, 8));
    assert_eq!(word(&mut world, &wanted), None);
    let stored = world.irecv(1, wanted, 8).unwrap();
    assert_eq!(world.done(stored).1, contents(2, 8));
    assert_eq!(word(&mut world, &wanted).unwrap().1[..], contents(3, 8)[..]);
    // In a cell, and sent before.
    world.isend(0, 1, 1, contents(4, 200));
    world.isend(0, 1, 1, contents(5, 8));
    assert_eq!(word(&mut world, &wanted), None);
    let long = world.irecv(1, wanted, 200).unwrap();
    world.settle();
    assert_eq!(world.done(long).1, contents(4, 200));
    let last = world.irecv(1, wanted, 8).unwrap();
    assert_eq!(world.done(last).1, contents(5, 8));
    world.assert_empty(&[0, 1], "words");
}

#[test]
fn posted_receive_takes_its_word_only_if_it_is_the_first_that_matches() {
    let fabric = Fabric::new(tiny(2));
    let mut world = World::new(&fabric, AMPLE);
    let (any, wanted) = (pattern(Source::Any, 1), pattern(Source::Rank(0), 1));
    let [first, second] = [0, 1].map(|_| world.irecv(1, wanted, 8).unwrap());
    let short = world.irecv(1, pattern(Source::Rank(0), 2), 4).unwrap();
    for (number, tag) in [(1, 1), (2, 1), (3, 2)] {
        world.isend(0, 1, tag, contents(number, 8));
    }
    let done = Status { peer: 0, tag: 1, len: 8 };
    assert_eq!(world.engine(1).try_finish(second.id), None, "the other receive was posted first");
    assert_eq!(world.engine(1).try_finish(short.id), None, "its message is not the next one");
    assert_eq!(world.engine(1).try_finish(first.id), Some(Ok(done)));
    assert_eq!(world.engine(1).try_finish(first.id), Some(Err(CompletionError::Stale)));
    assert_eq!(world.engine(1).try_finish(second.id), Some(Ok(done)));
    assert_eq!(world.engine(1).try_finish(short.id), None, "its buffer is too short");
    assert_eq!(world.lender.end(first.loan), contents(1, 8));
    assert_eq!(world.lender.end(second.loan), contents(2, 8));
    world.settle();
    assert!(matches!(world.done(short).0, Err(CompletionError::Truncated(_))));
    // A receive from any source was posted before it.
    let wild = world.irecv(1, any, 8).unwrap();
    let exact = world.irecv(1, wanted, 8).unwrap();
    world.isend(0, 1, 1, contents(4, 8));
    assert_eq!(world.engine(1).try_finish(exact.id), None);
    world.settle();
    assert_eq!(world.done(wild).1, contents(4, 8));
    assert!(world.engine(1).cancel(exact.id));
    assert_eq!(world.done(exact).0, Err(CompletionError::Cancelled));
    world.assert_empty(&[0, 1], "words");
}
