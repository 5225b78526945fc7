//! A position in the ring of a fastbox, used by both ends.
#![forbid(unsafe_code)]

use super::{CONTEXT_AT, FastboxSlot, KIND_AT, LAP_AT, SEQUENCE_AT};
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
    /// The stamp of a whole message in this lap, without sequence number, context and length.
    eager: u64,
}

impl<'a> FastboxPlace<'a> {
    /// Returns the start of the ring, with a run of `run` slots.
    pub(super) fn new(slots: &'a [FastboxSlot], run: usize) -> Self {
        debug_assert!(slots.len().is_power_of_two() && slots.len() >= 4);
        let mut place = Self { slots, run: [].iter(), end: 0, rounds: 1, eager: 0 };
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
        self.eager = self.lap() | (Kind::Eager as u64) << KIND_AT;
    }

    /// Returns the lap number in the stamps of this lap.
    #[inline(always)]
    pub(super) const fn lap(&self) -> u64 {
        lap(self.rounds)
    }

    /// Returns whether the stamp is of this lap.
    #[inline(always)]
    pub(super) const fn is_current(&self, stamp: u64) -> bool {
        (stamp >> LAP_AT) as u8 == self.rounds as u8
    }

    /// Returns the next `count` slots, if the ring does not end before the last of them.
    #[inline(always)]
    pub(super) fn contiguous(&self, count: usize) -> Option<&'a [FastboxSlot]> {
        self.slots.get(self.at()..)?.get(..count)
    }

    /// Returns the slot `count` slots further on, and the lap number of its stamps.
    pub(super) fn further(&self, count: usize) -> (&'a FastboxSlot, u64) {
        let index = self.at() + count;
        let slots = self.slots.len();
        if index < slots {
            (&self.slots[index], self.lap())
        } else {
            (&self.slots[index & (slots - 1)], lap(self.rounds + 1))
        }
    }

    /// Returns the stamp of a whole message at this position, for a message without bytes.
    #[inline(always)]
    pub(super) const fn eager_stamp(&self, sequence: u64, context: u16) -> u64 {
        self.eager | sequence << SEQUENCE_AT | (context as u64) << CONTEXT_AT
    }
}

/// Returns the lap number in the stamps of a lap.
#[inline(always)]
const fn lap(round: u64) -> u64 {
    (round & 0xff) << LAP_AT
}
