//! Scattered buffers, on either side or both, on every path of a message.

use super::world::{AMPLE, TUNING, World, WorldRoom};
use crate::engine::{CompletionError, Status, Truncation, Tuning};
use crate::payload::MOST_RANGES;
use crate::payload::tests::steps;
use crate::shared::tests::contents;
use crate::shared::tests::fabric::{Fabric, Reading, tiny};
use crate::wire::listed::MOST_RUNS;

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
                        let status = Status { peer: 0, tag, len: moved, immediate: None };
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
    for header in [1, 48, 224, 225, 5000] {
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
            assert!(moved >= (LEN - 224) as u64, "{moved} bytes after a header of {header}");
            let tables = fabric.with_memory(|memory| memory.tables_read);
            assert_eq!(tables, 0, "the RTS describes both runs, or the one after a short header");
        }
    }
}

/// Few long runs are read from the sender's memory, and its table of more than two runs once. Many or short runs are
/// streamed.
#[test]
fn long_runs_move_in_one_copy_and_short_ones_are_streamed() {
    const LEN: usize = 20_000;
    let least = TUNING.run_bytes as usize;
    for (count, is_read) in
        [(2, true), (8, true), (MOST_RUNS, true), (MOST_RUNS + 1, false), (LEN / least, false)]
    {
        let fabric = Fabric::reading(tiny(2), Reading::Always, 1);
        let mut world = World::new(&fabric, AMPLE);
        for tag in 0..3 {
            world.lender.cut_equally(count);
            let receive = world.recv(1, 0, tag, LEN);
            let send = world.isend(0, 1, tag, contents(tag, LEN));
            world.settle();
            world.done(send).0.unwrap();
            assert_eq!(world.done(receive).1, contents(tag, LEN));
            let (tables, moved) =
                fabric.with_memory(|memory| (memory.tables_read, memory.pulled + memory.pushed));
            let messages = tag as usize + 1;
            assert_eq!(tables, if is_read && count > 2 { messages } else { 0 }, "{count} runs");
            assert_eq!(moved >= (messages * LEN) as u64, is_read, "{moved} bytes of {count} runs");
        }
    }
}

/// The receiver reads to several ranges at once.
#[test]
fn a_receive_list_is_filled_by_few_reads() {
    const LEN: usize = 10_000;
    for count in [0, 7] {
        let fabric = Fabric::reading(tiny(2), Reading::Always, 1);
        let tuning = Tuning {
            pull_bytes: u64::MAX,
            run_bytes: 0,
            assist_bytes: u64::MAX,
            lent_assist_bytes: u64::MAX,
            ..TUNING
        };
        let mut world = World::new(&fabric, WorldRoom { tuning, ..AMPLE });
        let (mut runs, mut lists) = (0, 0);
        for tag in 0..16 {
            world.lender.cut_equally(count);
            world.lender.scatter(tag);
            let receive = world.recv(1, 0, tag, LEN);
            let send = world.isend(0, 1, tag, contents(tag, LEN));
            let before = fabric.with_memory(|memory| (memory.runs, memory.calls));
            world.settle();
            world.done(send).0.unwrap();
            assert_eq!(world.done(receive).1, contents(tag, LEN));
            let (all, calls) = fabric.with_memory(|memory| (memory.runs - before.0, memory.calls - before.1));
            assert!(calls <= 2 + all / MOST_RANGES, "{calls} calls for {all} ranges");
            (runs, lists) = (runs + all, lists + usize::from(calls > 0));
        }
        assert!(runs > 10 * lists && lists > 3, "{runs} ranges of {lists} lists");
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
