//! A place in the ring, of either end.
#![forbid(unsafe_code)]

use super::{Slot, Word};
use crate::wire::Kind;

/// Where an end stands in the ring. It goes through `run` without looking at anything else.
#[derive(Clone, Debug)]
pub(super) struct Place<'a> {
    pub(super) slots: &'a [Slot],
    /// The slots from here to where something has to be seen to, at the ring's end at the latest.
    pub(super) run: core::slice::Iter<'a, Slot>,
    /// Index of the slot behind the run.
    end: usize,
    /// Rounds begun; never wraps in 64 bits.
    rounds: u64,
    /// The stamp in this round of a whole message of a word, without sequence number and context.
    word: u64,
}

impl<'a> Place<'a> {
    /// The start, and a run of so many slots.
    pub(super) fn new(slots: &'a [Slot], run: usize) -> Self {
        debug_assert!(slots.len().is_power_of_two() && slots.len() >= 4);
        let mut place = Self { slots, run: [].iter(), end: 0, rounds: 1, word: 0 };
        place.set(0, run);
        place
    }

    /// Index of the slot here; that of none after the last one of a round.
    #[inline(always)]
    pub(super) fn at(&self) -> usize {
        self.end - self.run.as_slice().len()
    }

    /// The position, counted from the start.
    pub(super) fn position(&self) -> u64 {
        (self.rounds - 1) * self.slots.len() as u64 + self.at() as u64
    }

    /// Goes to a slot, of the next round if there are not so many, and begins a run of so many slots, or less at the ring's
    /// end.
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

    /// The lap of the stamps of this round.
    #[inline(always)]
    pub(super) const fn lap(&self) -> u64 {
        self.rounds & 0xff
    }

    /// The slot so many further on, and the lap of its stamps.
    pub(super) fn further(&self, count: usize) -> (&'a Slot, u64) {
        let index = self.at() + count;
        let slots = self.slots.len();
        if index < slots {
            (&self.slots[index], self.lap())
        } else {
            (&self.slots[index & (slots - 1)], (self.rounds + 1) & 0xff)
        }
    }

    /// So many slots behind this one, in two runs, and the lap of the stamps of each.
    #[inline(always)]
    pub(super) fn spans(&self, count: usize) -> [(&'a [Slot], u64); 2] {
        let behind = self.slots.get(self.at() + 1..).unwrap_or_default();
        let now = count.min(behind.len());
        [(&behind[..now], self.lap()), (&self.slots[..count - now], (self.rounds + 1) & 0xff)]
    }

    /// The stamp here of a whole message of a word.
    #[inline(always)]
    pub(super) const fn word_stamp(&self, sequence: u64, context: u16) -> u64 {
        self.word | (sequence & 0xffff) << 16 | (context as u64) << 48
    }
}
