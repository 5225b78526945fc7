//! Peers that die, close their endpoint or violate the protocol: operations with them end, and all others
//! continue.

mod reconnect;

use std::vec::Vec;

use crate::engine::tests::world::{AMPLE, World, pattern};
use crate::engine::{CompletionError, Failure, StartError, Status, Truncation};
use crate::matching::Source;
use crate::shared::tests::contents;
use crate::shared::tests::fabric::WorldShape;
use crate::shared::tests::fabric::{Fabric, Reading, tiny};

const KINDS: [Failure; 2] = [Failure::Died, Failure::Finished];

#[test]
fn every_request_that_involves_the_peer_ends_and_the_others_go_on() {
    for failure in KINDS {
        let fabric = Fabric::new(tiny(3));
        let mut world = World::new(&fabric, AMPLE);
        let half = world.recv(0, 1, 1, 3000);
        world.isend(1, 0, 1, contents(1, 3000));
        for rank in [0, 1, 0] {
            world.engine(rank).progress();
        }
        assert!(!world.engine(0).cancel(half.id) && world.test(half).is_none());
        let posted = world.recv(0, 1, 2, 8);
        let sends: Vec<_> = [200, 700, 200, 8, 700, 200]
            .map(|len| world.isend(0, 1, 3, contents(3, len)))
            .into_iter()
            .collect();
        let synchronous = world.issend(0, 1, 4, contents(4, 8));
        let other = world.recv(0, 2, 3, 700);
        world.engine(0).fail(1, failure);
        world.engine(0).fail(1, Failure::Died);
        let completion_error = Err(CompletionError::PeerFailed { peer: 1, failure });
        assert_eq!(world.engine(0).failure(1), Some(failure), "the first reason stays");
        assert_eq!(world.done(half).0, completion_error);
        assert_eq!(world.done(posted).0, completion_error);
        let outcomes: Vec<_> = sends.into_iter().map(|send| world.done(send).0).collect();
        assert!(outcomes[0].is_ok(), "the message was sent and complete");
        assert!(
            outcomes[1] == completion_error && outcomes[4] == completion_error,
            "no receive has matched them"
        );
        assert_eq!(world.done(synchronous).0, completion_error);
        let gone = Some(StartError::PeerFailed { peer: 1, failure });
        assert_eq!(world.isend_in(0, 0, 1, 1, contents(1, 8)).err(), gone);
        assert_eq!(world.irecv(0, pattern(Source::Rank(1), 1), 8).err(), gone);
        let send = world.isend(2, 0, 3, contents(3, 700));
        for _ in 0..100 {
            world.engine(0).progress();
            world.engine(2).progress();
        }
        assert_eq!(world.done(other).1, contents(3, 700));
        world.done(send).0.unwrap();
        world.assert_empty(&[0, 2], "after a failure");
    }
}

#[test]
fn message_that_came_whole_can_be_received_after_its_sender_died() {
    for failure in KINDS {
        let fabric = Fabric::new(tiny(2));
        let mut world = World::new(&fabric, AMPLE);
        world.isend(1, 0, 1, contents(1, 200));
        world.isend(1, 0, 2, contents(2, 3000));
        world.settle();
        assert_eq!(world.engine(0).unexpected_messages(), 2);
        world.engine(0).fail(1, failure);
        assert_eq!(
            world.engine(0).unexpected_messages(),
            1,
            "the bytes of the other message were lost with the sender"
        );
        let receive = world.recv(0, 1, 1, 200);
        assert_eq!(world.done(receive).1, contents(1, 200));
        world.irecv(0, pattern(Source::Rank(1), 2), 8).unwrap_err();
        world.assert_empty(&[0], "a dead sender");
    }
}

/// A short synchronous message travels with its announcement, so all of it has arrived.
#[test]
fn synchronous_message_that_came_whole_can_be_received_after_its_sender_died() {
    for failure in KINDS {
        for (len, room) in [(0, 0), (1, 1), (224, 300), (200, 8)] {
            let fabric = Fabric::new(tiny(2));
            let mut world = World::new(&fabric, AMPLE);
            for tag in [1, 2, 3] {
                let len = if tag == 3 { 300 } else { len };
                world.issend(1, 0, tag, contents(tag, len));
            }
            world.settle();
            let probed = world.improbe(0, pattern(Source::Rank(1), 2)).unwrap().0;
            world.engine(0).fail(1, failure);
            assert_eq!(
                world.engine(0).unexpected_messages(),
                2,
                "some bytes of the third message have not arrived"
            );
            let receives = [(1, world.recv(0, 1, 1, room)), (2, world.imrecv(0, probed, room).unwrap())];
            for (tag, receive) in receives {
                let (outcome, bytes) = world.done(receive);
                let status = Status { peer: 1, tag, len: len.min(room), immediate: None };
                let truncated = Truncation { status, message: len as u64 };
                let right = if len > room { Err(CompletionError::Truncated(truncated)) } else { Ok(status) };
                assert_eq!(outcome, right);
                assert_eq!(bytes[..status.len], contents(tag, len)[..status.len]);
            }
            world.irecv(0, pattern(Source::Rank(1), 3), 300).unwrap_err();
            world.assert_empty(&[0], "whole, from a dead sender");
        }
    }
}

#[test]
fn all_packets_that_a_peer_sent_before_it_failed_are_drained_in_order() {
    for (cells, entries_lost) in [(4, false), (4, true), (64, false), (64, true)] {
        let fabric = Fabric::new(WorldShape { cells, fastbox_slots: 64, ..tiny(3) });
        let mut world = World::new(&fabric, AMPLE);
        let lens = [8, 200, 0, 60, 48, 250, 1, 256, 255].into_iter().cycle();
        let mut whole = 0;
        for (tag, len) in (0..90).zip(lens.clone()) {
            let send = world.isend(1, 0, tag, contents(tag, len));
            whole += u64::from(whole == tag && world.test(send).is_some());
        }
        if entries_lost {
            fabric.queue(0).0.iter().for_each(|entry| entry.store_relaxed(0));
        }
        assert!((0..10).any(|_| world.engine(0).drain(1)), "draining did not end");
        assert!(world.engine(0).drain(1) && world.engine(0).drain(0) && world.engine(0).drain(9));
        world.engine(0).fail(1, Failure::Finished);
        for (tag, len) in (0..whole).zip(lens) {
            let receive = world.recv(0, 1, tag, len);
            assert_eq!(world.done(receive).1, contents(tag, len), "message {tag} of {whole}");
        }
        assert!(whole > 2 && world.irecv(0, pattern(Source::Rank(1), whole), 8).is_err());
        world.assert_empty(&[0], "a drained peer");
    }
}

#[test]
fn send_that_a_peer_received_before_it_failed_succeeds() {
    for reading in [Reading::Never, Reading::Always] {
        let fabric = Fabric::reading(tiny(2), reading, 1);
        let mut world = World::new(&fabric, AMPLE);
        let sends = [world.isend(0, 1, 1, contents(1, 3000)), world.issend(0, 1, 2, contents(2, 8))];
        let receives = [world.recv(1, 0, 1, 3000), world.recv(1, 0, 2, 8)];
        for _ in 0..20 {
            world.engine(1).progress();
        }
        world.isend(1, 0, 3, contents(3, 200));
        // Rank 1 closes its endpoint while answers are in flight: CTS or FIN, then a message.
        world.engine(0).depart(1, Failure::Finished);
        assert!(world.engine(0).drain(1));
        world.engine(0).fail(1, Failure::Finished);
        let [large, small] = sends.map(|send| world.done(send).0);
        let completion_error = Err(CompletionError::PeerFailed { peer: 1, failure: Failure::Finished });
        assert!(large == completion_error || reading == Reading::Always, "it had only a CTS");
        assert!(large.is_ok() || reading == Reading::Never, "it was read: {large:?}");
        assert!(small.is_ok(), "it travelled with its RTS: {small:?}");
        assert_eq!(world.engine(0).failure(1), Some(Failure::Finished), "the protocol was obeyed");
        let receive = world.recv(0, 1, 3, 200);
        assert_eq!(world.done(receive).1, contents(3, 200));
        world.assert_empty(&[0], "a peer with answers");
        let _ = receives;
    }
}

#[test]
fn death_ends_receives_from_any_source_until_it_is_acknowledged() {
    let fabric = Fabric::new(tiny(3));
    let mut world = World::new(&fabric, AMPLE);
    let any = world.irecv(0, pattern(Source::Any, 1), 8).unwrap();
    world.engine(0).fail(1, Failure::Died);
    assert_eq!(world.done(any).0, Err(CompletionError::PeerFailed { peer: 1, failure: Failure::Died }));
    let refused = world.irecv(0, pattern(Source::Any, 1), 8).err();
    assert_eq!(refused, Some(StartError::PeerFailed { peer: 1, failure: Failure::Died }));
    world.engine(0).acknowledge();
    let any = world.irecv(0, pattern(Source::Any, 1), 8).unwrap();
    world.isend(2, 0, 1, contents(1, 8));
    world.engine(0).progress();
    assert_eq!(world.done(any).1, contents(1, 8));
}

#[test]
fn peer_that_finished_leaves_receives_from_any_source_alone_unless_it_was_the_last() {
    let fabric = Fabric::new(tiny(3));
    let mut world = World::new(&fabric, AMPLE);
    let any = world.irecv(0, pattern(Source::Any, 1), 8).unwrap();
    world.engine(0).fail(1, Failure::Finished);
    assert_eq!(world.test(any), None);
    world.irecv(0, pattern(Source::Any, 2), 8).unwrap();
    assert!(!world.engine(0).is_alone());
    world.engine(0).fail(2, Failure::Finished);
    assert!(world.engine(0).is_alone());
    assert_eq!(world.done(any).0, Err(CompletionError::PeerFailed { peer: 2, failure: Failure::Finished }));
    world.irecv(0, pattern(Source::Any, 1), 8).unwrap_err();
}

#[test]
fn receives_from_any_source_outlive_every_failure_if_that_is_set() {
    let fabric = Fabric::new(tiny(3));
    let mut world = World::new(&fabric, AMPLE);
    world.engine(0).outlive_failures(true);
    let any = world.irecv(0, pattern(Source::Any, 1), 8).unwrap();
    let named = world.recv(0, 1, 1, 8);
    world.engine(0).fail(1, Failure::Died);
    assert_eq!(world.done(named).0, Err(CompletionError::PeerFailed { peer: 1, failure: Failure::Died }));
    world.engine(0).fail(2, Failure::Finished);
    assert!(world.engine(0).is_alone());
    assert_eq!(world.test(any), None);
    // The process itself can still satisfy it, and further ones can be posted.
    let other = world.irecv(0, pattern(Source::Any, 2), 8).unwrap();
    world.isend(0, 0, 2, contents(2, 8));
    world.isend(0, 0, 1, contents(1, 8));
    world.settle();
    assert_eq!((world.done(any).1, world.done(other).1), (contents(1, 8), contents(2, 8)));
    // Set back, the next failure ends them again.
    let mut world = World::new(&fabric, AMPLE);
    world.engine(0).outlive_failures(true);
    world.engine(0).outlive_failures(false);
    let any = world.irecv(0, pattern(Source::Any, 1), 8).unwrap();
    world.engine(0).fail(1, Failure::Died);
    assert_eq!(world.done(any).0, Err(CompletionError::PeerFailed { peer: 1, failure: Failure::Died }));
}

#[test]
fn message_that_waits_is_received_from_any_source_in_spite_of_a_failure() {
    let fabric = Fabric::new(tiny(3));
    let mut world = World::new(&fabric, AMPLE);
    world.isend(2, 0, 1, contents(1, 8));
    world.settle();
    world.engine(0).fail(1, Failure::Died);
    let any = world.irecv(0, pattern(Source::Any, 1), 8).unwrap();
    assert_eq!(world.done(any).1, contents(1, 8));
}

#[test]
fn completed_request_keeps_its_outcome_when_its_peer_fails_afterwards() {
    let fabric = Fabric::new(tiny(2));
    let mut world = World::new(&fabric, AMPLE);
    let receive = world.recv(0, 1, 1, 700);
    let reply = world.isend(0, 1, 1, contents(1, 600));
    let taken = world.recv(1, 0, 1, 600);
    world.isend(1, 0, 1, contents(1, 700));
    world.settle();
    world.engine(0).fail(1, Failure::Died);
    assert_eq!(world.done(receive).1, contents(1, 700));
    world.done(reply).0.unwrap();
    assert_eq!(world.done(taken).1, contents(1, 600));
}

#[test]
fn cells_that_a_dead_peer_held_are_reused_for_others() {
    let fabric = Fabric::new(tiny(3));
    let mut world = World::new(&fabric, AMPLE);
    let sends: Vec<_> = (0..5).map(|tag| world.isend(0, 1, tag, contents(tag, 200))).collect();
    world.engine(0).fail(1, Failure::Died);
    let outcomes: Vec<_> = sends.into_iter().map(|send| world.done(send).0.is_ok()).collect();
    assert_eq!(outcomes, [true, true, false, false, false]);
    for tag in 0..20 {
        let receive = world.recv(2, 0, tag, 900);
        let send = world.isend(0, 2, tag, contents(tag, 900));
        for _ in 0..20 {
            world.engine(0).progress();
            world.engine(2).progress();
        }
        world.done(send).0.unwrap();
        assert_eq!(world.done(receive).1, contents(tag, 900));
    }
}

#[test]
fn fault_that_is_found_while_pending_sends_leave_is_reported() {
    let fabric = Fabric::new(tiny(3));
    let mut world = World::new(&fabric, AMPLE);
    world.isend(0, 1, 1, contents(1, 200));
    let sends: Vec<_> = (0..4).map(|tag| world.isend(0, 2, tag, contents(tag, 200))).collect();
    assert!(world.engine(0).sends_pending());
    // Rank 2 returns the cell that rank 1 holds.
    fabric.link_segment(2, 0).word(fabric.geometry.link().returns).store_relaxed(1 << 16);
    let done = world.engine(0).progress();
    assert!(matches!(world.engine(0).failure(2), Some(Failure::Fault(_))));
    assert!(sends.into_iter().any(|send| world.done(send).0.is_err()));
    assert_eq!(done.failed, Some(2), "{done:?}");
    assert_eq!(world.engine(0).progress().failed, None, "the failure is reported once");
}
