//! Scattered buffers, on either side or both, on every path of a message.

use super::world::{AMPLE, World};
use crate::engine::{CompletionError, Status, Truncation};
use crate::payload::tests::steps;
use crate::shared::tests::contents;
use crate::shared::tests::fabric::{Fabric, Reading, tiny};

const READINGS: [Reading; 4] = [Reading::Never, Reading::Always, Reading::Unreadable(4), Reading::Refused(4)];
const LENS: [usize; 14] = [0, 1, 8, 47, 48, 49, 100, 223, 224, 225, 256, 257, 900, 5000];

#[test]
fn scattered_messages_arrive_as_those_in_one_place() {
    for (reading, seed) in READINGS.into_iter().flat_map(|reading| (0..8).map(move |seed| (reading, seed))) {
        let fabric = Fabric::reading(tiny(2), reading, seed);
        let mut world = World::new(&fabric, AMPLE);
        world.lender.scatter(seed);
        for (tag, len) in (0..).zip(LENS) {
            for to in [0, 1] {
                for (synchronous, expected) in [(false, false), (false, true), (true, false), (true, true)] {
                    for room in [len, len + 30, len / 2] {
                        let early = expected.then(|| world.recv(to, 0, tag, room));
                        let send = match synchronous {
                            true => world.issend(0, to, tag, contents(tag, len)),
                            false => world.isend(0, to, tag, contents(tag, len)),
                        };
                        world.settle();
                        let receive = early.unwrap_or_else(|| world.recv(to, 0, tag, room));
                        world.settle();
                        let (outcome, bytes) = world.done(receive);
                        let moved = len.min(room);
                        let status = Status { peer: 0, tag, len: moved };
                        let cut = Err(CompletionError::Truncated(Truncation { status, message: len as u64 }));
                        assert_eq!(outcome, if moved < len { cut } else { Ok(status) });
                        assert_eq!(bytes[..moved], contents(tag, len)[..moved], "{len} bytes into {room}");
                        assert!(bytes[moved..].iter().all(|&byte| byte == 0xee), "{len} bytes into {room}");
                        world.done(send).0.unwrap();
                    }
                }
            }
        }
        world.assert_empty(&[0, 1], "scattered messages");
    }
}

/// What every runtime sends: a short header and a large payload. Its payload is read from the sender's memory.
#[test]
fn a_short_header_and_a_large_payload_move_in_one_copy() {
    const LEN: usize = 10_000;
    for (header, pulled) in [(1, true), (48, true), (224, true), (225, false)] {
        for synchronous in [false, true] {
            let fabric = Fabric::reading(tiny(2), Reading::Always, 1);
            let mut world = World::new(&fabric, AMPLE);
            world.lender.head(header);
            let receive = world.recv(1, 0, 1, LEN);
            let send = match synchronous {
                true => world.issend(0, 1, 1, contents(1, LEN)),
                false => world.isend(0, 1, 1, contents(1, LEN)),
            };
            world.settle();
            world.done(send).0.unwrap();
            assert_eq!(world.done(receive).1, contents(1, LEN));
            let moved = fabric.with_memory(|memory| memory.pulled + memory.pushed);
            assert_eq!(moved >= (LEN - 224) as u64, pulled, "{moved} bytes after a header of {header}");
        }
    }
}

/// A list whose payload can't be read, or no longer, arrives nevertheless.
#[test]
fn a_payload_that_cannot_be_read_is_streamed() {
    for reading in READINGS {
        for room in [0, 30, 48, 49, 5000, 10_000, 11_000] {
            let fabric = Fabric::reading(tiny(2), reading, 1);
            let mut world = World::new(&fabric, AMPLE);
            world.lender.head(48);
            let receive = world.recv(1, 0, 1, room);
            let send = world.isend(0, 1, 1, contents(1, 10_000));
            world.settle();
            world.done(send).0.unwrap();
            let (moved, bytes) = (room.min(10_000), world.done(receive).1);
            assert_eq!(bytes[..moved], contents(1, 10_000)[..moved], "{room}");
            assert!(bytes[moved..].iter().all(|&byte| byte == 0xee), "{room}");
        }
    }
}

/// Many tiny segments, streamed in many packets: the list is not walked from the start for each packet.
#[test]
fn streaming_a_list_visits_each_segment_a_few_times() {
    const LEN: usize = 40_000;
    let mut most = 0;
    for seed in 0..12 {
        let fabric = Fabric::reading(tiny(2), Reading::Never, seed);
        let mut world = World::new(&fabric, AMPLE);
        world.lender.scatter(seed);
        let receive = world.recv(1, 0, 1, LEN);
        steps();
        let send = world.isend(0, 1, 1, contents(1, LEN));
        world.settle();
        most = most.max(steps());
        world.done(send).0.unwrap();
        assert_eq!(world.done(receive).1, contents(1, LEN));
    }
    // Two lists, each with at most twice as many segments as bytes.
    assert!((LEN..10 * LEN).contains(&most), "{most} segments visited");
}
