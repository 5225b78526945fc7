//! A position in the ring of a fastbox, used by both ends.
#![forbid(unsafe_code)]

use super::{FastboxSlot, Word};
use crate::wire::Kind;

/// The position of one end in the ring. The critical path advances through `run` without reading other
/// fields.
#[derive(Clone, Debug)]
pub(super) struct FastboxPlace<'a> {
    pub(super) slots: &'a [FastboxSlot],
    /// The slots from here to the point where the end must take a slow step; at most to the end of the ring.
    pub(super) run: core::slice::Iter<'a, FastboxSlot>,
    /// Index of the slot after the run.
    end: usize,
    /// Number of laps begun; never wraps in 64 bits.
    rounds: u64,
    /// The stamp of a whole message of one word in this lap, without sequence number and context.
    word: u64,
}

impl<'a> FastboxPlace<'a> {
    /// Returns the start of the ring, with a run of `run` slots.
    pub(super) fn new(slots: &'a [FastboxSlot], run: usize) -> Self {
        debug_assert!(slots.len().is_power_of_two() && slots.len() >= 4);
        let mut place = Self { slots, run: [].iter(), end: 0, rounds: 1, word: 0 };
        place.set(0, run);
        place
    }

    /// Returns the index of the current slot; after the last slot of a lap, the number of slots.
    #[inline(always)]
    pub(super) fn at(&self) -> usize {
        self.end - self.run.as_slice().len()
    }

    /// Returns the position, counted from the start.
    pub(super) fn position(&self) -> u64 {
        (self.rounds - 1) * self.slots.len() as u64 + self.at() as u64
    }

    /// Moves to slot `at`, or into the next lap if `at` is beyond the ring's end. The new run has `run`
    /// slots, fewer at the ring's end.
    pub(super) fn set(&mut self, mut at: usize, run: usize) {
        if at >= self.slots.len() {
            at -= self.slots.len();
            self.rounds += 1;
        }
        let rest = self.slots.get(at..).unwrap_or_default();
        let run = &rest[..run.min(rest.len())];
        (self.run, self.end) = (run.iter(), at + run.len());
        self.word = self.lap() | (Kind::Eager as u64) << 8 | (size_of::<Word>() as u64) << 32;
    }

    /// Returns the lap number in the stamps of this lap.
    #[inline(always)]
    pub(super) const fn lap(&self) -> u64 {
        self.rounds & 0xff
    }

    /// Returns the slot `count` slots further on, and the lap number of its stamps.
    pub(super) fn further(&self, count: usize) -> (&'a FastboxSlot, u64) {
        let index = self.at() + count;
        let slots = self.slots.len();
        if index < slots {
            (&self.slots[index], self.lap())
        } else {
            (&self.slots[index & (slots - 1)], (self.rounds + 1) & 0xff)
        }
    }

    /// Returns the `count` slots after the current one, in two runs, and the lap number of each.
    #[inline(always)]
    pub(super) fn spans(&self, count: usize) -> [(&'a [FastboxSlot], u64); 2] {
        let behind = self.slots.get(self.at() + 1..).unwrap_or_default();
        let now = count.min(behind.len());
        [(&behind[..now], self.lap()), (&self.slots[..count - now], (self.rounds + 1) & 0xff)]
    }

    /// Returns the stamp of a whole message of one word at this position.
    #[inline(always)]
    pub(super) const fn word_stamp(&self, sequence: u64, context: u16) -> u64 {
        self.word | (sequence & 0xffff) << 16 | (context as u64) << 48
    }
}
