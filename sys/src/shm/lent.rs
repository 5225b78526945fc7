//! The memory of this process that peers can map, by address: the ranges that a message's buffer may lie in.

use std::sync::{Arc, Weak};

use nemesia_core::wire::mappable::MappableBytes;

/// A range of this process that peers can map.
#[derive(Debug)]
pub(crate) struct LentRange {
    /// The address of its first byte.
    pub(crate) base: u64,
    /// The number of bytes.
    pub(crate) len: u64,
    /// The key in the first word of its segment.
    pub(crate) key: u64,
    /// The number of its descriptor, plus one.
    pub(crate) share: u32,
    /// Whether peers may map it for writing.
    pub(crate) writable: bool,
}

/// The owner's part of a range. Once it is dropped, the range is not found any more.
#[derive(Debug)]
pub(crate) struct Loan(#[expect(dead_code, reason = "only its life counts")] Arc<()>);

/// The ranges of this process that peers can map, in the order of their addresses.
#[derive(Debug, Default)]
pub(crate) struct LentRanges(Vec<(LentRange, Weak<()>)>);

impl LentRanges {
    /// Adds a range, which is mapped as long as the returned loan exists. Forgets ranges that have ended.
    pub(crate) fn add(&mut self, range: LentRange) -> Loan {
        self.0.retain(|(_, loan)| loan.strong_count() > 0);
        let loan = Arc::new(());
        let at = self.0.partition_point(|(other, _)| other.base < range.base);
        self.0.insert(at, (range, Arc::downgrade(&loan)));
        Loan(loan)
    }

    /// Returns the description of bytes that all lie in one range.
    pub(super) fn find(&self, address: u64, len: usize) -> Option<MappableBytes> {
        let before = self.0.partition_point(|(range, _)| range.base <= address);
        let (range, loan) = self.0.get(before.checked_sub(1)?)?;
        let &LentRange { base, len: bytes, key, share, writable } = range;
        let offset = address - base;
        let fits = offset.checked_add(len as u64).is_some_and(|end| end <= bytes);
        (fits && loan.strong_count() > 0).then_some(MappableBytes {
            address,
            key,
            offset,
            len: bytes,
            share,
            writable,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(base: u64, len: u64) -> LentRange {
        LentRange { base, len, key: base + 1, share: base as u32, writable: false }
    }

    #[test]
    fn only_bytes_that_lie_wholly_in_one_living_range_are_found() {
        let mut ranges = LentRanges::default();
        assert_eq!(ranges.find(5, 1), None);
        let loans: Vec<_> = [300, 100, 200].map(|base| (base, ranges.add(range(base, 100)))).into();
        for (address, len, base) in
            [(100, 100, 100), (199, 1, 100), (200, 100, 200), (200, 0, 200), (250, 7, 200), (399, 1, 300)]
        {
            let found = ranges.find(address, len).unwrap();
            assert_eq!((found.key, found.offset, found.address), (base + 1, address - base, address));
            assert_eq!((found.len, found.share), (100, base as u32));
        }
        // Before, behind, over a border, and too long for any range.
        for (address, len) in [(99, 1), (99, 2), (199, 2), (400, 1), (150, 100), (100, usize::MAX)] {
            assert_eq!(ranges.find(address, len), None, "{len} bytes at {address}");
        }
        drop(loans);
        assert_eq!(ranges.find(100, 1), None, "the range has ended");
        let _loan = ranges.add(range(150, 10));
        assert!(ranges.find(155, 5).is_some() && ranges.find(100, 1).is_none());
        assert_eq!(ranges.0.len(), 1, "ranges that have ended are forgotten");
    }
}
