//! The learned design where each way costs what the raw figures of paper 1 say. The package `nemesia-verification` has
//! the model of all designs (`pipes::cost`).

#![allow(clippy::print_stdout, reason = "visible with --nocapture only: what was chosen")]

use std::println;

use crate::rdma_channel::learned::LearnedWays;

/// Microseconds of an operation without bytes, and bytes a microsecond on the wire and on the memory bus.
const OPERATION: f64 = 5.9;
const WIRE: f64 = 870.0;
const BUS: f64 = 1600.0;

/// Returns the microseconds of a run by each way, in the order of `RunWay`.
fn ways(len: usize) -> [f64; 3] {
    let (moved, chunk) = (len as f64 / WIRE, 16384.0);
    // The announcement of a written run arrives behind it. A read has a packet before it and one after it. A byte that
    // is copied uses the memory bus three times, and two copies and a write of a chunk overlap with nothing.
    let copied = 3.0 * len as f64 / BUS + 4.0 * chunk / BUS + OPERATION + chunk / WIRE;
    [2.0 * OPERATION + moved, 3.0 * OPERATION + moved, copied]
}

/// The learned design takes at each size the cheapest way, as soon as there are enough runs.
#[test]
fn the_learned_design_is_the_best_of_all_at_each_size() {
    for len in [33_333, 64 << 10, 100_001, 256 << 10, 1 << 20] {
        let ticks = ways(len).map(|us| (us * 1000.0) as u64);
        for may_write in [false, true] {
            let ticks = if may_write { ticks } else { [ticks[1], ticks[1], ticks[2]] };
            let (mut learned, mut now, mut counts) = (LearnedWays::default(), 0, [0_u64; 3]);
            for got in 0..3000 {
                let way = learned.begin(len as u64, got, 256 << 10, Some(now)) as usize;
                (counts[way], now) = (counts[way] + 1, now + ticks[way]);
            }
            let best = 3000 * ticks.iter().min().unwrap();
            println!("{len} bytes: written, read, copied {ticks:?} ns, chosen {counts:?}");
            assert!(100 * now <= 115 * best, "{len}: {now} instead of {best}");
        }
    }
}
