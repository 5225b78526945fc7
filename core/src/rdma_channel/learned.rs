//! A design of our own: the zero-copy design, whose sender learns how long runs move best.
//!
//! A run may be copied through the ring (section 4.4 of paper 1), be read out of the sender's buffer (section 5), or be
//! written into the receiver's (the alternative named there). Which is fastest depends on the length, on the costs of a
//! copy, of a registration and of a round trip, and on whether a get comes before its put. The paper chose one
//! threshold for one machine, by hand (its figures 13 to 15). Here the sender measures, for each size, and separately
//! for runs that answer bytes of the peer and for those of a stream.
//!
//! The choice is the sender's alone, and nothing in the protocol depends on it: each way is one that a receiver of
//! [`Design::ZeroCopyPush`](super::Design::ZeroCopyPush) must be ready for at any time.
//!
//! The unit of measurement is a [*measured run*](crate::selector::run) of several runs of similar length. It lasts from
//! the start of its first one to the start of the next one after its last, so it includes what the receiver does and
//! what the caller does. The caller's part is the same for all ways. In a stream it must be longer than the ring,
//! which would else take the copies of a short trial at once.
#![forbid(unsafe_code)]

use super::RunCounts;
use crate::selector::run::Run;
use crate::selector::turns::Turns;
use crate::selector::{AdaptiveSelector, RunAmount, TrialBudget};

/// How a long run moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum RunWay {
    /// It is written into the receiver's buffer if a get has advertised one; else it is read.
    Written = 0,
    /// The receiver reads it, whatever it has advertised.
    Read = 1,
    /// It is copied through the ring.
    Copied = 2,
}

impl RunWay {
    const COUNT: usize = 3;

    const fn of(option: u8) -> Self {
        match option {
            1 => Self::Read,
            2 => Self::Copied,
            _ => Self::Written,
        }
    }
}

/// Size classes, one for each power of two: 4 KiB, which includes smaller sizes, to 2 MiB and more.
const SMALLEST: u32 = 12;
const CLASSES: usize = 10;
/// Most measured runs until another way is tried.
const LONGEST_WAIT: u16 = 256;
/// Runs of a measured run, and of a short one.
const FULL: u64 = 16;
const SHORT: u64 = 2;
/// The rings that pass during a measured run of a stream, at least.
const RINGS: u64 = 4;
/// Most bytes of a measured run, if they are more than a short one.
const MOST_BYTES: u64 = 8 << 20;

type WaySelector = AdaptiveSelector<{ RunWay::COUNT }, LONGEST_WAIT>;

/// Runs of one size class, in a stream or as answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LongRun {
    is_answer: bool,
    size: usize,
}

/// What the sender of a pipe has learned.
#[derive(Debug, Default)]
pub(super) struct LearnedWays {
    /// The selectors of streams and of answers.
    selectors: [[WaySelector; CLASSES]; 2],
    budget: TrialBudget,
    /// Costs are in ticks for 4096 bytes.
    measured: Option<Run<LongRun, 4096>>,
    /// Bytes of the run that was begun last.
    last: u64,
    /// The position up to which this end had got when it began.
    got: u64,
    turns: Turns,
}

impl LearnedWays {
    /// Returns the way for a run of `len` bytes that begins now. `got` is the position in the stream of the other
    /// direction, `ring` the bytes of the pipe's ring. Without a clock nothing is learned.
    pub(super) fn begin(&mut self, len: u64, got: u64, ring: u64, now: Option<u64>) -> RunWay {
        let is_answer = self.turns.take(core::mem::replace(&mut self.got, got) != got);
        let Some(now) = now else { return RunWay::Written };
        let size = ((len | 1).ilog2().saturating_sub(SMALLEST) as usize).min(CLASSES - 1);
        let class = LongRun { is_answer, size };
        if let Some(mut run) = self.measured.take() {
            run.end(self.last);
            if run.class != class && !run.is_over(now) {
                // Another size interrupted it, so its time is discarded.
                run.spoil();
            } else if !run.is_over(now) {
                let way = run.begin(len);
                (self.measured, self.last) = (Some(run), len);
                return RunWay::of(way);
            }
            let selector = &mut self.selectors[usize::from(run.class.is_answer)][run.class.size];
            run.close(now, selector, &mut self.budget);
        }
        let least = SHORT * len;
        let (least, full) = match is_answer {
            true => (least, FULL * len),
            false => (least.max(2 * ring), (FULL * len).max(RINGS * ring)),
        };
        let amount = RunAmount { first: least, least, full: full.min(MOST_BYTES).max(least) };
        let plan = self.selectors[usize::from(is_answer)][size].plan(amount, &self.budget);
        let mut run = Run::start(class, plan, now);
        let way = run.begin(len);
        (self.measured, self.last) = (Some(run), len);
        RunWay::of(way)
    }
}

/// The receiver's part: a buffer that the sender does not use is advertised for nothing, which costs both ends. After
/// each buffer that had to be withdrawn, twice as many long runs pass without an advertisement.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct AdvertisingPause {
    /// Runs that pass without an advertisement after the next withdrawal, and those that are still to pass.
    next: u32,
    left: u32,
    /// The position in the stream at which the last run ends that is passed over.
    until: u64,
}

/// Most runs that pass without an advertisement.
const LONGEST_PAUSE: u32 = 16;

impl AdvertisingPause {
    /// Records that the peer has not used a buffer.
    pub(super) const fn on_withdrawn(&mut self) {
        self.left = self.next;
        self.next = if self.next == 0 { 1 } else { 2 * self.next };
        if self.next > LONGEST_PAUSE {
            self.next = LONGEST_PAUSE;
        }
    }

    /// Records that the peer has used a buffer.
    pub(super) const fn on_used(&mut self) {
        (self.next, self.left) = (0, 0);
    }

    /// Returns whether the run of `len` bytes at this position is passed over.
    pub(super) const fn passes(&mut self, position: u64, len: u64) -> bool {
        if position >= self.until && self.left > 0 {
            self.left -= 1;
            self.until = position.saturating_add(len);
        }
        position < self.until
    }
}

/// Formats what was chosen so far.
impl core::fmt::Display for RunCounts {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let Self { copied, exposed, pushed, advertised, withdrawn } = self;
        write!(
            f,
            "{exposed} long runs of this process were read by the peer, {pushed} written into its buffers and {copied} \
             copied; {advertised} buffers of this process were advertised, of which {withdrawn} were withdrawn"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RING: u64 = 256 << 10;

    /// Moves runs, which take these ticks by each way. Returns how many moved by each.
    fn moved(runs: u64, len: u64, answers: bool, ticks: [u64; RunWay::COUNT]) -> [u64; RunWay::COUNT] {
        let (mut ways, mut counts, mut now) = (LearnedWays::default(), [0; RunWay::COUNT], 0);
        for at in 0..runs {
            let way = ways.begin(len, if answers { at } else { 0 }, RING, Some(now)) as usize;
            (counts[way], now) = (counts[way] + 1, now + 1000 * ticks[way]);
        }
        counts
    }

    #[test]
    fn learned_ways_cost_at_most_115_percent_of_the_best_fixed_one() {
        for ticks in
            [[100; 3], [100, 120, 150], [130, 100, 94], [1000, 100, 110], [110, 100, 1000], [195, 195, 90]]
        {
            for (len, answers) in
                [(5000, true), (5000, false), (100_000, true), (100_000, false), (3 << 20, true)]
            {
                let runs = 50_000;
                let counts = moved(runs, len, answers, ticks);
                let learned: u64 = counts.iter().zip(ticks).map(|(count, ticks)| count * ticks).sum();
                let best = runs * ticks.into_iter().min().unwrap();
                assert!(100 * learned <= 115 * best, "{counts:?} of {len} bytes, {answers}, {ticks:?}");
            }
        }
    }

    #[test]
    fn another_size_between_the_runs_keeps_them_from_being_measured() {
        let mut ways = LearnedWays::default();
        let odd = (0..2000_u64).map(|at| ways.begin(5000 << (at % 2 * 4), 0, RING, Some(1000 * at)));
        assert!(odd.into_iter().all(|way| way == RunWay::Written));
    }

    #[test]
    fn nothing_is_learned_without_a_clock() {
        let mut ways = LearnedWays::default();
        assert!((0..500).all(|got| ways.begin(70_000, got, RING, None) == RunWay::Written));
    }

    #[test]
    fn buffers_that_the_peer_does_not_use_become_rare_until_it_uses_one() {
        let mut pause = AdvertisingPause::default();
        let mut advertised = 0_u64;
        for at in 0..1000 {
            // A get asks several times for the same bytes.
            let passes = [pause.passes(at * 100, 100), pause.passes(at * 100 + 50, 50)];
            assert_eq!(passes[0], passes[1]);
            if !passes[0] {
                advertised += 1;
                pause.on_withdrawn();
            }
        }
        assert!((55..70).contains(&advertised), "{advertised}");
        while pause.passes(advertised * 1_000_000, 1) {
            advertised += 1;
        }
        pause.on_used();
        assert!((0..100).all(|at| !pause.passes((1 << 40) + at, 1)));
    }
}
