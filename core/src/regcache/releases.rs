//! Ranges of addresses that are about to get other pages, told by any thread at any place: a ring of the last ones, without
//! locks, that each cache reads for itself.
//!
//! Whoever tells may be in the middle of anything, a signal handler or an allocator that holds its lock: [`Releases::tell`] waits
//! for nobody and does a bounded amount of work, unless others succeed meanwhile. What does not fit is not lost: the ring moves
//! on by more than its length, and to its readers all addresses count as released.
//!
//! **Order.** A range is told *before* its pages change. Who acquires the addresses afterwards knows that they have changed (the
//! call has returned, or the kernel has given them away, under its lock), so what was told happened before. That a reader which
//! comes in between finds no half-written range is up to two edges: [`Edge::ReleaseTold`], from the stamp of a slot that
//! is written last to the reader and to the next writer of the slot; and [`Edge::ReleaseReused`], by which a reader that has seen
//! any of the next range in the slot sees at its second look at the stamp that there is another one.
//!
//! A reader that meets a range which is just being told takes everything for released and does not come back to it. What is registered
//! from then on was acquired while its pages were being taken away; only where that is allowed, as with pages that are
//! discarded but stay mapped, the range has to be told once more when they have changed.
#![forbid(unsafe_code)]

use crate::regcache::Range;
use crate::sync::{Edge, Word64};

/// A range and the number of its telling.
#[derive(Debug)]
struct Slot {
    /// Twice the number plus 2; that plus 1 while the range is being written. 0: there was none.
    stamp: Word64,
    start: Word64,
    end: Word64,
}

impl Slot {
    #[cfg(not(nemesia_loom))]
    const fn new() -> Self {
        Self { stamp: Word64::new(0), start: Word64::new(0), end: Word64::new(0) }
    }

    #[cfg(nemesia_loom)]
    fn new() -> Self {
        Self { stamp: Word64::new(0), start: Word64::new(0), end: Word64::new(0) }
    }
}

/// The stamp of a whole range.
const fn whole(number: u64) -> u64 {
    number.wrapping_add(1).wrapping_mul(2)
}

/// The last `N` ranges that were told, and how many there were.
#[derive(Debug)]
pub struct Releases<const N: usize> {
    count: Word64,
    slots: [Slot; N],
}

/// How far a reader has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen(u64);

/// What is read at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Released {
    /// This range.
    Range(Range),
    /// Perhaps everything.
    All,
}

#[cfg(not(nemesia_loom))]
impl<const N: usize> Releases<N> {
    /// Nothing is told so far.
    pub const fn new() -> Self {
        const { assert!(N > 0) };
        Self { count: Word64::new(0), slots: [const { Slot::new() }; N] }
    }
}

#[cfg(nemesia_loom)]
impl<const N: usize> Releases<N> {
    /// Nothing is told so far.
    pub fn new() -> Self {
        Self { count: Word64::new(0), slots: core::array::from_fn(|_| Slot::new()) }
    }
}

impl<const N: usize> Default for Releases<N> {
    fn default() -> Self {
        Self::new()
    }
}

impl<const N: usize> Releases<N> {
    /// Tells that the addresses of this range are about to get other pages. From any thread, in any state: takes no lock.
    pub fn tell(&self, range: Range) {
        let number = self.count.bump_relaxed();
        if !self.write(number, range) {
            // The slot's writer has been overtaken by a whole round, or has overtaken us.
            self.count.update_acq_rel(Edge::ReleaseTold, |count| count.wrapping_add(N as u64 + 1));
        }
    }

    /// False when someone else has the slot.
    fn write(&self, number: u64, range: Range) -> bool {
        let slot = self.slot(number);
        let (old, new) = (slot.stamp.load_relaxed(), whole(number));
        if old % 2 != 0 || old >= new || slot.stamp.cas_acquire(old, new + 1, Edge::ReleaseTold).is_err() {
            return false;
        }
        slot.start.store_release(range.start, Edge::ReleaseReused);
        slot.end.store_release(range.end, Edge::ReleaseReused);
        slot.stamp.store_release(new, Edge::ReleaseTold);
        true
    }

    fn slot(&self, number: u64) -> &Slot {
        &self.slots[(number % N as u64) as usize]
    }

    /// Where a reader begins that knows of nothing yet.
    pub fn now(&self) -> Seen {
        Seen(self.count.load_relaxed())
    }

    /// Whether there is something that this reader has not seen.
    #[inline(always)]
    pub fn has_more(&self, seen: Seen) -> bool {
        self.count.load_relaxed() != seen.0
    }

    /// The next thing that this reader has not seen.
    pub fn next(&self, seen: &mut Seen) -> Option<Released> {
        let count = self.count.load_relaxed();
        if count == seen.0 {
            return None;
        }
        if count.wrapping_sub(seen.0) <= N as u64
            && let Some(range) = self.read(seen.0)
        {
            seen.0 = seen.0.wrapping_add(1);
            return Some(Released::Range(range));
        }
        seen.0 = count;
        Some(Released::All)
    }

    /// A range that is whole and still there.
    fn read(&self, number: u64) -> Option<Range> {
        let (slot, stamp) = (self.slot(number), whole(number));
        if slot.stamp.load_acquire(Edge::ReleaseTold) != stamp {
            return None;
        }
        let start = slot.start.load_acquire(Edge::ReleaseReused);
        let end = slot.end.load_acquire(Edge::ReleaseReused);
        (slot.stamp.load_relaxed() == stamp).then_some(Range { start, end })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: u64) -> Range {
        Range { start, end: start + 10 }
    }

    #[test]
    fn each_reader_reads_every_range_once() {
        let releases = Releases::<4>::new();
        let (mut one, mut two) = (releases.now(), releases.now());
        releases.tell(range(1));
        releases.tell(range(2));
        assert_eq!(releases.next(&mut one), Some(Released::Range(range(1))));
        releases.tell(range(3));
        for start in 2..=3 {
            assert_eq!(releases.next(&mut one), Some(Released::Range(range(start))));
        }
        for start in 1..=3 {
            assert_eq!(releases.next(&mut two), Some(Released::Range(range(start))));
        }
        assert_eq!((releases.next(&mut one), releases.has_more(one)), (None, false));
        assert_eq!(one, two);
    }

    #[test]
    fn reader_that_is_a_round_behind_takes_everything_for_released() {
        let releases = Releases::<4>::new();
        let (mut late, mut later) = (releases.now(), releases.now());
        (0..4).for_each(|start| releases.tell(range(start)));
        assert_eq!(releases.next(&mut late), Some(Released::Range(range(0))));
        releases.tell(range(4));
        assert_eq!(releases.next(&mut later), Some(Released::All));
        assert_eq!(releases.next(&mut later), None);
        assert_eq!(releases.next(&mut late), Some(Released::Range(range(1))));
    }

    #[test]
    fn slot_that_someone_else_has_makes_everything_released() {
        let releases = Releases::<2>::new();
        let mut seen = releases.now();
        // Someone began to tell the first range, and has not come to its end.
        assert_eq!(releases.count.bump_relaxed(), 0);
        releases.slots[0].stamp.store_relaxed(whole(0) + 1);
        let mut late = seen;
        assert_eq!(releases.next(&mut seen), Some(Released::All), "which range is not known");
        releases.tell(range(1));
        assert_eq!(releases.next(&mut seen), Some(Released::Range(range(1))));
        releases.tell(range(2));
        assert_eq!(releases.next(&mut seen), Some(Released::All), "its slot was taken");
        assert_eq!(releases.next(&mut late), Some(Released::All));
        assert!(!releases.has_more(seen) && !releases.has_more(late));
    }
}
