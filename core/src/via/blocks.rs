//! A gather list and a scatter list as contiguous blocks (paper 2, section 1.4.3): each block is one transfer.
#![forbid(unsafe_code)]

use super::descriptor::ViaSegment;

/// The blocks of a transfer: pairs of ranges of the same length, neither of which crosses the end of its segment.
#[derive(Debug)]
pub struct Blocks<G, S> {
    gather: G,
    scatter: S,
    from: ViaSegment,
    to: ViaSegment,
    left: u64,
}

impl<G: Iterator<Item = ViaSegment>, S: Iterator<Item = ViaSegment>> Blocks<G, S> {
    /// Returns the blocks of the first `len` bytes of both lists.
    pub fn new(gather: G, scatter: S, len: u64) -> Self {
        Self { gather, scatter, from: ViaSegment::default(), to: ViaSegment::default(), left: len }
    }
}

impl<G: Iterator<Item = ViaSegment>, S: Iterator<Item = ViaSegment>> Iterator for Blocks<G, S> {
    type Item = (ViaSegment, ViaSegment);

    fn next(&mut self) -> Option<Self::Item> {
        if self.left == 0 {
            return None;
        }
        while self.from.length == 0 {
            self.from = self.gather.next()?;
        }
        while self.to.length == 0 {
            self.to = self.scatter.next()?;
        }
        let length = self.from.length.min(self.to.length).min(u32::try_from(self.left).unwrap_or(u32::MAX));
        self.left -= u64::from(length);
        Some((split(&mut self.from, length), split(&mut self.to, length)))
    }
}

/// Takes the first `length` bytes of a segment.
fn split(segment: &mut ViaSegment, length: u32) -> ViaSegment {
    let first = ViaSegment { length, ..*segment };
    segment.address = segment.address.wrapping_add(length.into());
    segment.length -= length;
    first
}

/// Returns the first `len` bytes of a list as segments, without empty ones.
pub fn prefix(list: impl Iterator<Item = ViaSegment>, len: u64) -> impl Iterator<Item = ViaSegment> {
    let mut left = len;
    list.map_while(move |segment| {
        let length = segment.length.min(u32::try_from(left).unwrap_or(u32::MAX));
        left -= u64::from(length);
        (left > 0 || length > 0).then_some(ViaSegment { length, ..segment })
    })
    .filter(|segment| segment.length > 0)
}

#[cfg(test)]
mod tests {
    use std::vec;
    use std::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    fn bytes(segments: impl Iterator<Item = ViaSegment>) -> Vec<u64> {
        segments
            .flat_map(|segment| (0..segment.length).map(move |at| segment.address + u64::from(at)))
            .collect()
    }

    fn list(lengths: &[u32]) -> Vec<ViaSegment> {
        let segment = |(at, length): (usize, &u32)| ViaSegment {
            address: at as u64 * 1000,
            handle: at as u32,
            length: *length,
        };
        lengths.iter().enumerate().map(segment).collect()
    }

    #[test]
    fn each_block_is_contiguous_on_both_sides() {
        let (gather, scatter) = (list(&[3, 0, 5]), list(&[2, 4, 9]));
        let blocks: Vec<_> = Blocks::new(gather.into_iter(), scatter.into_iter(), 8).collect();
        let lengths: Vec<u32> = blocks.iter().map(|(from, _)| from.length).collect();
        assert_eq!(lengths, vec![2, 1, 3, 2]);
        assert!(blocks.iter().all(|(from, to)| from.length == to.length));
    }

    proptest! {
        #[test]
        fn blocks_pair_the_bytes_of_both_lists_in_order(
            gather in prop::collection::vec(0..9_u32, 0..8),
            scatter in prop::collection::vec(0..9_u32, 0..8),
            len in 0..80_u64,
        ) {
            let (gather, scatter) = (list(&gather), list(&scatter));
            let blocks: Vec<_> = Blocks::new(gather.clone().into_iter(), scatter.clone().into_iter(), len).collect();
            let (from, to) = (bytes(gather.clone().into_iter()), bytes(scatter.into_iter()));
            let most = from.len().min(to.len()).min(len as usize);
            prop_assert_eq!(bytes(blocks.iter().map(|block| block.0)), &from[..most]);
            prop_assert_eq!(bytes(blocks.iter().map(|block| block.1)), &to[..most]);
            prop_assert_eq!(bytes(prefix(gather.into_iter(), len)), &from[..from.len().min(len as usize)]);
        }
    }
}
