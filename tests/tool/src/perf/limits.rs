//! The limits of the machine without any library: the hand-over of one cache line, and copying.
#![forbid(unsafe_code)]

use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};

use super::stats::percentile;
use super::timer::Timer;

/// The value that ends a round; the answer is [`IDLE`].
const STOP: u64 = u64::MAX;
/// The value of the line between two rounds.
const IDLE: u64 = 0;
/// The most round trips, including those before the measurement.
const TRIPS: usize = 4000;
/// The round trips that are not counted.
const WARM_UP: usize = 200;
/// The time after which a round ends, however few round trips it had. One core for both processes takes long.
const LONGEST_NS: f64 = 20e6;
/// The polls before the core is yielded, possibly to the other process.
const PATIENCE: u32 = 1 << 14;
/// The approximate time of one repetition of copies.
const COPY_NS: f64 = 8e6;

/// Fills `samples` with the ticks of each round trip of one line, at most [`TRIPS`]: rank 0 stores odd
/// values, rank 1 answers with even ones. A long wait calls `idle` now and then.
pub(crate) fn hand_over(line: &AtomicU64, timer: &Timer, samples: &mut Vec<u64>, mut idle: impl FnMut()) {
    samples.clear();
    let start = timer.now();
    let mut last = start;
    for trip in 0..TRIPS {
        let odd = 2 * trip as u64 + 1;
        line.store(odd, Ordering::Release);
        await_line(line, |value| value == odd + 1, &mut idle);
        let now = timer.now();
        samples.push(now.saturating_sub(last));
        last = now;
        if timer.ns(now.saturating_sub(start)) > LONGEST_NS {
            break;
        }
    }
    line.store(STOP, Ordering::Release);
    await_line(line, |value| value == IDLE, &mut idle);
    let warm_up = WARM_UP.min(samples.len() / 2);
    samples.drain(..warm_up);
}

/// Runs rank 1's part of [`hand_over`].
pub(crate) fn hand_back(line: &AtomicU64, mut idle: impl FnMut()) {
    loop {
        let value = await_line(line, |value| value % 2 == 1, &mut idle);
        if value == STOP {
            line.store(IDLE, Ordering::Release);
            return;
        }
        line.store(value + 1, Ordering::Release);
    }
}

/// Returns one way of [`hand_over`] in nanoseconds: half the median round trip.
pub(crate) fn one_way(samples: &mut [u64], timer: &Timer) -> f64 {
    timer.ns(percentile(samples, 50)) / 2.0
}

/// Polls without a pause: this is the limit of the machine.
#[inline]
pub(crate) fn await_line(line: &AtomicU64, wanted: impl Fn(u64) -> bool, idle: &mut impl FnMut()) -> u64 {
    loop {
        for _ in 0..PATIENCE {
            let value = line.load(Ordering::Acquire);
            if wanted(value) {
                return value;
            }
        }
        idle();
        std::thread::yield_now();
    }
}

/// Returns the speed of copying `from` to `into` again and again, in megabytes (10^6 bytes) per second.
pub(crate) fn memcpy(from: &[u8], into: &mut [u8], timer: &Timer) -> f64 {
    let bytes = from.len().min(into.len());
    let mut copies = |count: usize| {
        let start = timer.now();
        for _ in 0..count {
            black_box(&mut into[..bytes]).copy_from_slice(black_box(&from[..bytes]));
        }
        timer.since(start).max(1.0)
    };
    copies(2);
    let one = copies(2) / 2.0;
    let count = (COPY_NS / one).clamp(1.0, 1e6) as usize;
    (bytes * count) as f64 / copies(count) * 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hand_over_ends_on_both_sides_and_can_be_repeated() {
        let (line, timer) = (AtomicU64::new(IDLE), Timer::new());
        let mut samples = Vec::new();
        for _ in 0..2 {
            std::thread::scope(|scope| {
                scope.spawn(|| hand_back(&line, || ()));
                hand_over(&line, &timer, &mut samples, || ());
            });
            assert!(!samples.is_empty());
            assert!(one_way(&mut samples, &timer) > 0.0);
            assert_eq!(line.load(Ordering::Relaxed), IDLE);
        }
    }

    #[test]
    fn copying_takes_time() {
        let mbps = memcpy(&[1; 4096], &mut [0; 4096], &Timer::new());
        assert!((1.0..1e7).contains(&mbps), "{mbps}");
    }
}
