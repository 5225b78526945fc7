//! Messages whose bytes lie in several runs, measured beside contiguous ones.
#![forbid(unsafe_code)]

use std::io::{IoSlice, IoSliceMut};

use crate::shapes::{ListShape, ListShapes};

/// The buffers of one process for messages in lists.
#[derive(Debug)]
pub(crate) struct ListBuffers {
    shapes: ListShapes,
    out: Vec<u8>,
    into: Vec<u8>,
}

impl ListBuffers {
    /// Returns buffers for messages of at most `most` bytes.
    pub(crate) fn new(shapes: ListShapes, most: usize) -> Self {
        let buffer = |shape: ListShape| vec![1; shape.room(most)];
        Self { shapes, out: buffer(shapes.from), into: buffer(shapes.to) }
    }

    /// Returns the runs to send and those to receive into.
    pub(crate) fn lists(&mut self, bytes: usize) -> (Vec<IoSlice<'_>>, Vec<IoSliceMut<'_>>) {
        let out = self.shapes.from.runs(bytes).into_iter().map(|run| IoSlice::new(&self.out[run]));
        let (mut rest, mut at) = (&mut self.into[..], 0);
        let into = self.shapes.to.runs(bytes).into_iter().map(|run| {
            let (_, behind) = std::mem::take(&mut rest).split_at_mut(run.start - at);
            let (here, behind) = behind.split_at_mut(run.len());
            (rest, at) = (behind, run.end);
            IoSliceMut::new(here)
        });
        (out.collect(), into.collect())
    }

    /// Returns the places of the bytes to send.
    pub(crate) fn out(&mut self, bytes: usize) -> impl Iterator<Item = &mut u8> {
        let runs = self.shapes.from.runs(bytes);
        self.out
            .iter_mut()
            .enumerate()
            .filter(move |(at, _)| runs.iter().any(|run| run.contains(at)))
            .map(|it| it.1)
    }

    /// Returns the received bytes.
    pub(crate) fn received(&self, bytes: usize) -> Vec<u8> {
        self.shapes.to.runs(bytes).into_iter().flat_map(|run| &self.into[run]).copied().collect()
    }

    /// Overwrites what was received.
    pub(crate) fn blank(&mut self) {
        self.into.fill(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shapes::GAP;

    #[test]
    fn runs_make_up_the_message_and_lie_apart() {
        for shape in [ListShape::Whole, ListShape::Header(64), ListShape::Equal(8)] {
            for bytes in [0, 1, 63, 64, 100_001] {
                let runs = shape.runs(bytes);
                assert_eq!(runs.iter().map(ExactSizeIterator::len).sum::<usize>(), bytes, "{shape:?}");
                assert!(runs.windows(2).all(|pair| pair[1].start - pair[0].end == GAP));
                let mut buffers = ListBuffers::new(ListShapes { from: shape, to: shape }, 100_001);
                let (out, into) = buffers.lists(bytes);
                assert_eq!(out.iter().map(|run| run.len()).sum::<usize>(), bytes);
                assert_eq!(into.iter().map(|run| run.len()).sum::<usize>(), bytes);
            }
        }
    }
}
