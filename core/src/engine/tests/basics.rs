//! Single rules, each in one small world.

use std::vec;
use std::vec::Vec;

use super::world::{AMPLE, TestEngine, World, WorldRoom, pattern};
use crate::engine::{CompletionError, RequestId, StartError, Status, Truncation};
use crate::matching::{Pattern, Source};
use crate::shared::tests::contents;
use crate::shared::tests::fabric::WorldShape;
use crate::shared::tests::fabric::{Fabric, Reading, tiny};

#[test]
fn message_of_each_boundary_size_arrives_whether_it_was_expected_or_not() {
    for reading in [Reading::Never, Reading::Always] {
        let fabric = Fabric::reading(tiny(2), reading, 1);
        let mut world = World::new(&fabric, AMPLE);
        for expected in [true, false] {
            for len in [0, 1, 32, 33, 47, 48, 49, 255, 256, 257, 511, 512, 513, 2044, 2045, 10_000] {
                let early = expected.then(|| world.recv(1, 0, 3, len));
                let send = world.isend(0, 1, 3, contents(9, len));
                world.settle();
                let receive = early.unwrap_or_else(|| world.recv(1, 0, 3, len));
                world.settle();
                let status = Status { peer: 1, tag: 3, len, immediate: None };
                assert!(send.id == RequestId::SENT || world.engine(0).test(send.id) == Some(Ok(status)));
                let (outcome, bytes) = world.done(receive);
                assert_eq!(outcome, Ok(Status { peer: 0, tag: 3, len, immediate: None }));
                assert_eq!(bytes, contents(9, len));
            }
        }
        world.assert_empty(&[0, 1], "every size");
    }
}

#[test]
fn message_longer_than_the_buffer_is_truncated_and_reported() {
    let fabric = Fabric::new(tiny(2));
    let mut world = World::new(&fabric, AMPLE);
    let cases = [(1, 0), (48, 47), (256, 255), (257, 256), (600, 300), (600, 0), (3000, 2999), (3000, 1)];
    for (reading, (len, room)) in
        [Reading::Never, Reading::Always].into_iter().flat_map(|it| cases.map(|case| (it, case)))
    {
        fabric.with_memory(|memory| memory.reading = reading);
        for expected in [true, false] {
            let early = expected.then(|| world.recv(1, 0, 3, room));
            let send = world.isend(0, 1, 3, contents(9, len));
            world.settle();
            let receive = early.unwrap_or_else(|| world.recv(1, 0, 3, room));
            world.settle();
            assert_eq!(
                world.done(send).0.map(|status| status.len).unwrap_or(0),
                if send.id == RequestId::SENT { 0 } else { len }
            );
            let (outcome, bytes) = world.done(receive);
            let status = Status { peer: 0, tag: 3, len: room, immediate: None };
            assert_eq!(outcome, Err(CompletionError::Truncated(Truncation { status, message: len as u64 })));
            assert_eq!(bytes, contents(9, len)[..room]);
        }
    }
    world.assert_empty(&[0, 1], "truncation");
}

#[test]
fn identifier_that_never_was_is_stale() {
    let fabric = Fabric::new(tiny(2));
    let mut world = World::new(&fabric, AMPLE);
    let receive = world.recv(1, 0, 3, 8);
    let bits = receive.id.to_bits();
    assert_eq!(RequestId::from_bits(bits), receive.id);
    for wrong in [bits ^ 1, bits ^ 1 << 32, u64::MAX, 0xffff_ffff << 32 | 1, 1 << 63, bits + 2] {
        let id = RequestId::from_bits(wrong);
        assert_eq!(world.engine(1).test(id), Some(Err(CompletionError::Stale)), "{wrong:#x}");
        assert!(!world.engine(1).cancel(id) && !world.engine(1).may_be_held(id));
    }
    assert!(world.engine(1).cancel(receive.id));
    assert_eq!(world.done(receive).0, Err(CompletionError::Cancelled));
}

#[test]
fn rank_that_does_not_exist_is_refused() {
    let fabric = Fabric::new(tiny(2));
    let mut world = World::new(&fabric, AMPLE);
    for rank in [2, 3, u32::MAX] {
        let error = Some(StartError::Rank { rank, size: 2 });
        assert_eq!(world.isend_in(0, 0, rank, 1, vec![1]).err(), error);
        assert_eq!(world.irecv(0, pattern(Source::Rank(rank), 1), 8).err(), error);
        world.engine(0).fail(rank, crate::engine::Failure::Died);
        assert_eq!(world.engine(0).failure(rank), None);
    }
}

#[test]
fn full_table_of_requests_refuses_and_loses_nothing() {
    let fabric = Fabric::new(tiny(2));
    let mut world = World::new(&fabric, WorldRoom { requests: 1, ..AMPLE });
    let first = world.recv(1, 0, 1, 8);
    let full = Some(StartError::Requests { capacity: 1 });
    assert_eq!(world.irecv(1, pattern(Source::Rank(0), 2), 8).err(), full);
    world.isend(0, 1, 2, contents(2, 8));
    world.settle();
    assert_eq!(world.irecv(1, pattern(Source::Rank(0), 2), 8).err(), full, "its message is stored");
    assert!(world.engine(1).cancel(first.id));
    world.done(first).0.unwrap_err();
    let second = world.recv(1, 0, 2, 8);
    assert_eq!(world.done(second).1, contents(2, 8));
}

#[test]
fn message_to_self_is_matched_like_any_other() {
    let fabric = Fabric::new(tiny(1));
    let mut world = World::new(&fabric, AMPLE);
    let any = Pattern { source: Source::Any, context: 0, tag: 0, ignore: u64::MAX };
    for synchronous in [false, true] {
        let send = |world: &mut World<'_>, tag, len| match synchronous {
            true => world.issend(0, 0, tag, contents(tag, len)),
            false => world.isend(0, 0, tag, contents(tag, len)),
        };
        let early = world.irecv(0, any, 100).unwrap();
        let expected = send(&mut world, 1, 100);
        let stored = send(&mut world, 2, 256);
        let remembered = send(&mut world, 3, 2044);
        let empty = send(&mut world, 4, 0);
        assert!(world.done(expected).0.is_ok());
        assert_eq!(
            world.done(early),
            (Ok(Status { peer: 0, tag: 1, len: 100, immediate: None }), contents(1, 100))
        );
        // A stored message is complete; a message of which only the RTS is stored waits for its receive.
        assert_eq!(world.engine(0).unexpected_messages(), 3);
        for (send, kept) in [(stored, !synchronous), (remembered, false), (empty, !synchronous)] {
            assert_eq!(send.id == RequestId::SENT, kept, "{send:?}");
        }
        for (send, tag, len, room) in [(stored, 2, 256, 50), (remembered, 3, 2044, 2000), (empty, 4, 0, 8)] {
            let receive = world.irecv(0, any, room).unwrap();
            let (outcome, bytes) = world.done(receive);
            let moved = len.min(room);
            let status = Status { peer: 0, tag, len: moved, immediate: None };
            match outcome {
                Ok(whole) => assert_eq!((whole, moved), (status, len)),
                Err(completion_error) => assert_eq!(
                    completion_error,
                    CompletionError::Truncated(Truncation { status, message: len as u64 })
                ),
            }
            assert_eq!(bytes[..moved], contents(tag, len)[..moved]);
            assert!(bytes[moved..].iter().all(|&byte| byte == 0xee));
            assert!(world.done(send).0.is_ok());
        }
        world.assert_empty(&[0], "to ourselves");
    }
}

#[test]
fn pending_sends_leave_although_packets_never_stop_coming() {
    let fabric = Fabric::new(WorldShape { fastbox_slots: 256, ..tiny(2) });
    let mut world = World::new(&fabric, AMPLE);
    let sends: Vec<_> = (0..80).map(|tag| world.isend(1, 0, tag, contents(tag, 256))).collect();
    assert!(world.engine(1).sends_pending());
    for tag in 0..3000 {
        world.isend(0, 1, tag, contents(tag, 8));
        // Rank 1 always has more packets than one progress step delivers.
        if tag % 64 == 0 && tag > 64 {
            assert_eq!(world.engine(1).progress().packets / 64, 1);
            world.engine(0).progress();
        }
    }
    for send in sends {
        world.done(send).0.unwrap();
    }
}

#[test]
fn message_that_was_refused_is_tried_once_by_the_queue_and_not_before() {
    for attempts in 1..=3 {
        let fabric = Fabric::new(tiny(2));
        let mut world = World::new(&fabric, AMPLE);
        while world.engine(0).send_now(1, 0, 3, &[1; 8]) {}
        let before = world.engine(0).port_mut().attempts;
        let isend = |engine: &mut TestEngine<'_>, tag, buf| match attempts {
            1 => engine.isend_queued(1, 0, tag, buf),
            2 => engine.isend_any(1, 0, tag, buf),
            _ => engine.isend(1, 0, tag, buf),
        };
        let (loan, buf) = world.lender.send(0, vec![2; 8]);
        let started = isend(world.engine(0), 4, buf);
        assert_eq!(world.engine(0).port_mut().attempts - before, attempts);
        let handle = world.handle(0, loan, started).unwrap();
        assert_ne!(handle.id, RequestId::SENT);
        let receive = world.recv(1, 0, 4, 8);
        world.settle();
        assert_eq!(world.done(handle).0, Ok(Status { peer: 1, tag: 4, len: 8, immediate: None }));
        assert_eq!(world.done(receive).1, [2; 8]);
        // If there is space, the message leaves.
        let (loan, buf) = world.lender.send(0, vec![2; 8]);
        let started = isend(world.engine(0), 5, buf);
        assert_eq!(started, Ok(RequestId::SENT));
        world.handle(0, loan, started).unwrap();
    }
}
