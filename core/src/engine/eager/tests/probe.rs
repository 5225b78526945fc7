//! Probes, and removing messages from the queue before they are received.

use std::vec::Vec;

use crate::engine::tests::world::{AMPLE, World, WorldRoom, pattern};
use crate::engine::{CompletionError, Failure, RequestId, StartError, Status, Truncation};
use crate::matching::{Pattern, Source};
use crate::shared::tests::contents;
use crate::shared::tests::fabric::{Fabric, Reading, tiny};

const READINGS: [Reading; 2] = [Reading::Never, Reading::Always];
const ANY: Pattern = Pattern { source: Source::Any, context: 0, tag: 0, ignore: u64::MAX };

#[test]
fn probe_reports_the_message_of_the_next_receive_and_takes_nothing() {
    for reading in READINGS {
        let fabric = Fabric::reading(tiny(3), reading, 1);
        let mut world = World::new(&fabric, AMPLE);
        assert_eq!(world.engine(1).iprobe(&ANY), None);
        let lens = [0, 32, 33, 200, 256, 257, 3000];
        let sends: Vec<_> =
            (0..).zip(lens).map(|(tag, len)| world.isend(0, 1, tag, contents(tag, len))).collect();
        world.settle();
        world.issend(2, 1, 0, contents(0, 100));
        world.issend(2, 1, 1, contents(1, 1000));
        world.settle();
        for (tag, len) in [(0, 100), (1, 1000)] {
            let status = Status { peer: 2, tag, len, immediate: None };
            assert_eq!(world.engine(1).iprobe(&pattern(Source::Rank(2), tag)), Some(status));
        }
        assert_eq!(world.engine(1).iprobe(&pattern(Source::Rank(0), 7)), None);
        assert_eq!(world.engine(1).iprobe(&Pattern { context: 1, ..ANY }), None);
        assert_eq!(world.engine(1).iprobe(&pattern(Source::Rank(9), 0)), None);
        for (tag, len) in (0..).zip(lens) {
            let status = Status { peer: 0, tag, len, immediate: None };
            for wanted in [ANY, pattern(Source::Rank(0), tag), Pattern { source: Source::Rank(0), ..ANY }] {
                assert_eq!(world.engine(1).iprobe(&wanted), Some(status));
            }
            let receive = world.irecv(1, ANY, len).unwrap();
            world.settle();
            assert_eq!(world.done(receive), (Ok(status), contents(tag, len)));
        }
        assert!(sends.into_iter().all(|send| world.done(send).0.is_ok()));
    }
}

#[test]
fn message_that_was_taken_out_is_received_by_its_identifier_only() {
    for reading in READINGS {
        for (synchronous, len, room) in
            [(false, 8, 8), (false, 200, 300), (false, 200, 7), (false, 2000, 2000), (false, 2000, 0)]
                .into_iter()
                .chain([(true, 0, 4), (true, 8, 8), (true, 8, 3), (true, 224, 224), (true, 2000, 900)])
        {
            let fabric = Fabric::reading(tiny(2), reading, 1);
            let mut world = World::new(&fabric, AMPLE);
            assert_eq!(world.improbe(1, ANY), None);
            let send = match synchronous {
                true => world.issend(0, 1, 1, contents(1, len)),
                false => world.isend(0, 1, 1, contents(1, len)),
            };
            world.isend(0, 1, 1, contents(2, 5));
            world.settle();
            let (id, status) = world.improbe(1, pattern(Source::Rank(0), 1)).unwrap();
            assert_eq!(status, Status { peer: 0, tag: 1, len, immediate: None });
            assert_eq!(world.engine(1).iprobe(&ANY).unwrap().len, 5, "the next message is now the first");
            let next = world.recv(1, 0, 1, 5);
            assert_eq!(world.done(next).1, contents(2, 5));
            assert_eq!(world.engine(1).test(id), None, "the message is not received yet");
            assert!(!world.engine(1).cancel(id) && !world.engine(1).may_be_held(id));
            world.settle();
            assert!(!synchronous && len <= 256 || world.test(send).is_none(), "a probe matches nothing");
            let receive = world.imrecv(1, id, room).unwrap();
            let again = world.imrecv(1, id, room);
            assert_eq!(again.err(), Some(CompletionError::Stale), "received twice");
            world.settle();
            let (outcome, bytes) = world.done(receive);
            let moved = len.min(room);
            let status = Status { peer: 0, tag: 1, len: moved, immediate: None };
            let cut = Err(CompletionError::Truncated(Truncation { status, message: len as u64 }));
            assert_eq!(outcome, if moved < len { cut } else { Ok(status) });
            assert_eq!(bytes[..moved], contents(1, len)[..moved]);
            assert!(bytes[moved..].iter().all(|&byte| byte == 0xee));
            world.done(send).0.unwrap();
            assert_eq!(world.imrecv(1, id, room).err(), Some(CompletionError::Stale));
            world.assert_empty(&[0, 1], "a matched probe");
        }
    }
}

#[test]
fn identifier_that_is_no_probe_receives_nothing() {
    let fabric = Fabric::new(tiny(2));
    let mut world = World::new(&fabric, AMPLE);
    let receive = world.recv(1, 0, 1, 8);
    let send = world.isend(1, 0, 1, contents(1, 1000));
    let bits = receive.id.to_bits();
    for id in [
        receive.id,
        send.id,
        RequestId::SENT,
        RequestId::from_bits(bits ^ 1),
        RequestId::from_bits(bits ^ 7 << 32),
    ] {
        assert_eq!(world.imrecv(1, id, 100).err(), Some(CompletionError::Stale), "{id:?}");
    }
    world.isend(0, 1, 1, contents(1, 8));
    world.settle();
    assert_eq!(world.done(receive).1, contents(1, 8));
}

#[test]
fn probe_without_a_free_request_takes_nothing_out() {
    let fabric = Fabric::new(tiny(2));
    let mut world = World::new(&fabric, WorldRoom { requests: 1, ..AMPLE });
    world.isend(0, 1, 2, contents(2, 8));
    world.settle();
    let blocker = world.recv(1, 0, 1, 8);
    assert_eq!(world.engine(1).improbe(&ANY), Err(StartError::Requests { capacity: 1 }));
    assert_eq!(world.engine(1).improbe(&pattern(Source::Rank(0), 1)), Ok(None));
    assert!(world.engine(1).cancel(blocker.id));
    world.done(blocker).0.unwrap_err();
    let (id, _) = world.improbe(1, ANY).unwrap();
    let receive = world.imrecv(1, id, 8).unwrap();
    assert_eq!(world.done(receive).1, contents(2, 8));
    world.assert_empty(&[1], "a refused probe");
}

#[test]
fn message_to_self_is_probed_like_any_other() {
    let fabric = Fabric::new(tiny(1));
    let mut world = World::new(&fabric, AMPLE);
    for (synchronous, len) in [(false, 8), (false, 3000), (true, 0), (true, 8), (true, 3000)] {
        let send = match synchronous {
            true => world.issend(0, 0, 1, contents(1, len)),
            false => world.isend(0, 0, 1, contents(1, len)),
        };
        assert_eq!(world.engine(0).iprobe(&ANY), Some(Status { peer: 0, tag: 1, len, immediate: None }));
        let (id, status) = world.improbe(0, ANY).unwrap();
        assert_eq!(status.len, len);
        world.settle();
        let receive = world.imrecv(0, id, len).unwrap();
        assert_eq!(world.done(receive).1, contents(1, len));
        world.done(send).0.unwrap();
        world.assert_empty(&[0], "probed ourselves");
    }
}

#[test]
fn sender_that_dies_between_probe_and_receive_loses_only_bytes_that_had_not_arrived() {
    for reading in READINGS {
        for failure in [Failure::Died, Failure::Finished] {
            for drained in [false, true] {
                let fabric = Fabric::reading(tiny(3), reading, 1);
                let mut world = World::new(&fabric, AMPLE);
                world.isend(0, 1, 1, contents(1, 200));
                world.isend(0, 1, 2, contents(2, 2000));
                world.settle();
                let (here, _) = world.improbe(1, pattern(Source::Rank(0), 1)).unwrap();
                let (there, _) = world.improbe(1, pattern(Source::Rank(0), 2)).unwrap();
                fabric.with_memory(|memory| memory.gone.push(0));
                if drained {
                    world.engine(1).depart(0, failure);
                    assert!(world.engine(1).drain(0));
                }
                world.engine(1).fail(0, failure);
                let here = world.imrecv(1, here, 200).unwrap();
                assert_eq!(
                    world.done(here),
                    (Ok(Status { peer: 0, tag: 1, len: 200, immediate: None }), contents(1, 200))
                );
                let there = world.imrecv(1, there, 2000).unwrap();
                for _ in 0..10 {
                    world.engine(1).progress();
                }
                assert_eq!(world.done(there).0, Err(CompletionError::PeerFailed { peer: 0, failure }));
                world.assert_empty(&[1], "a dead peer's message was probed");
            }
        }
    }
}
