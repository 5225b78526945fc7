//! Reports of address ranges that are about to get other pages: a lock-free ring of the last reports. Any
//! thread may report at any point, and each cache reads the ring independently.
//!
//! The reporting thread may be anywhere, in a signal handler or in an allocator that holds its lock.
//! [`Releases::report`] therefore never waits and does a bounded amount of work, unless other threads succeed
//! meanwhile. A range that does not fit is not lost: the ring advances by more than its length, and its
//! readers treat all addresses as released.
//!
//! **Order.** A range is reported *before* its pages change. A thread that acquires the addresses afterwards
//! knows that they have changed (the call has returned, or the kernel has reassigned them under its lock), so
//! the report happened before. Two edges ensure that a concurrent reader finds no partly written range.
//! [`Edge::ReleaseReported`] goes from the stamp of a slot, which is written last, to the reader and to the
//! next writer of the slot. By [`Edge::ReleaseReused`], a reader that has seen any part of the next range in
//! the slot sees the new stamp when it reads the stamp again.
//!
//! A reader that finds a range in the middle of being reported treats everything as released and does not
//! read that range later. Memory registered from then on was acquired while its pages were being removed.
//! Where that is allowed, for example for pages that are discarded but stay mapped, the range must be
//! reported again after they have changed.
#![forbid(unsafe_code)]

use crate::regcache::Range;
use crate::sync::{Edge, Word64};

/// A reported range and the number of its report.
#[derive(Debug)]
struct ReleaseSlot {
    /// Twice the number plus 2; plus 1 while the range is being written. 0 if the slot was never used.
    stamp: Word64,
    start: Word64,
    end: Word64,
}

impl ReleaseSlot {
    #[cfg(not(nemesia_loom))]
    const fn new() -> Self {
        Self { stamp: Word64::new(0), start: Word64::new(0), end: Word64::new(0) }
    }

    #[cfg(nemesia_loom)]
    fn new() -> Self {
        Self { stamp: Word64::new(0), start: Word64::new(0), end: Word64::new(0) }
    }
}

/// Returns the stamp of a completely written range.
const fn whole(number: u64) -> u64 {
    number.wrapping_add(1).wrapping_mul(2)
}

/// The last `N` reported ranges, and the total number of reports.
#[derive(Debug)]
pub struct Releases<const N: usize> {
    count: Word64,
    slots: [ReleaseSlot; N],
}

/// The position of a reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeenReleases(u64);

/// The result of one read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Released {
    /// This range was released.
    Range(Range),
    /// Any address may have been released.
    All,
}

#[cfg(not(nemesia_loom))]
impl<const N: usize> Releases<N> {
    /// Returns a ring without reports.
    pub const fn new() -> Self {
        const { assert!(N > 0) };
        Self { count: Word64::new(0), slots: [const { ReleaseSlot::new() }; N] }
    }
}

#[cfg(nemesia_loom)]
impl<const N: usize> Releases<N> {
    /// Returns a ring without reports.
    pub fn new() -> Self {
        Self { count: Word64::new(0), slots: core::array::from_fn(|_| ReleaseSlot::new()) }
    }
}

impl<const N: usize> Default for Releases<N> {
    fn default() -> Self {
        Self::new()
    }
}

impl<const N: usize> Releases<N> {
    /// Reports that the addresses of this range are about to get other pages. May be called from any thread
    /// in any state; takes no lock.
    pub fn report(&self, range: Range) {
        let number = self.count.bump_relaxed();
        if !self.write(number, range) {
            // Another writer of the slot is a whole round behind, or a whole round ahead.
            self.count.update_acq_rel(Edge::ReleaseReported, |count| count.wrapping_add(N as u64 + 1));
        }
    }

    /// Writes a range. Returns `false` if another thread is writing the slot.
    fn write(&self, number: u64, range: Range) -> bool {
        let slot = self.slot(number);
        let (old, new) = (slot.stamp.load_relaxed(), whole(number));
        if old % 2 != 0 || old >= new || slot.stamp.cas_acquire(old, new + 1, Edge::ReleaseReported).is_err()
        {
            return false;
        }
        slot.start.store_release(range.start, Edge::ReleaseReused);
        slot.end.store_release(range.end, Edge::ReleaseReused);
        slot.stamp.store_release(new, Edge::ReleaseReported);
        true
    }

    fn slot(&self, number: u64) -> &ReleaseSlot {
        &self.slots[(number % N as u64) as usize]
    }

    /// Returns the position of a new reader.
    pub fn now(&self) -> SeenReleases {
        SeenReleases(self.count.load_relaxed())
    }

    /// Returns whether there are reports that this reader has not seen.
    #[inline(always)]
    pub fn has_more(&self, seen: SeenReleases) -> bool {
        self.count.load_relaxed() != seen.0
    }

    /// Returns the next report that this reader has not seen.
    pub fn next(&self, seen: &mut SeenReleases) -> Option<Released> {
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

    /// Returns a range that is completely written and not yet overwritten.
    fn read(&self, number: u64) -> Option<Range> {
        let (slot, stamp) = (self.slot(number), whole(number));
        if slot.stamp.load_acquire(Edge::ReleaseReported) != stamp {
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
        releases.report(range(1));
        releases.report(range(2));
        assert_eq!(releases.next(&mut one), Some(Released::Range(range(1))));
        releases.report(range(3));
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
    fn reader_that_is_a_round_behind_treats_everything_as_released() {
        let releases = Releases::<4>::new();
        let (mut late, mut later) = (releases.now(), releases.now());
        (0..4).for_each(|start| releases.report(range(start)));
        assert_eq!(releases.next(&mut late), Some(Released::Range(range(0))));
        releases.report(range(4));
        assert_eq!(releases.next(&mut later), Some(Released::All));
        assert_eq!(releases.next(&mut later), None);
        assert_eq!(releases.next(&mut late), Some(Released::Range(range(1))));
    }

    #[test]
    fn slot_that_another_thread_writes_makes_everything_released() {
        let releases = Releases::<2>::new();
        let mut seen = releases.now();
        // Another thread began to report the first range, and has not finished.
        assert_eq!(releases.count.bump_relaxed(), 0);
        releases.slots[0].stamp.store_relaxed(whole(0) + 1);
        let mut late = seen;
        assert_eq!(releases.next(&mut seen), Some(Released::All), "the range is unknown");
        releases.report(range(1));
        assert_eq!(releases.next(&mut seen), Some(Released::Range(range(1))));
        releases.report(range(2));
        assert_eq!(releases.next(&mut seen), Some(Released::All), "its slot was taken");
        assert_eq!(releases.next(&mut late), Some(Released::All));
        assert!(!releases.has_more(seen) && !releases.has_more(late));
    }
}
