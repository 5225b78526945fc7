//! Write prefetch (RFO): while it waits, the sender prefetches the next cell's cache lines for writing.
//!
//! A line that the receiver has read is shared, and a store to it stalls until the receiver's core has
//! invalidated its copy. With 8 KiB on one test machine this stall is 0.8 us of the 1.1 us that a message
//! takes. A process that waits for an answer has that time to spare. It therefore stores to each line of the
//! cell that it will fill next, and then fills the cell at the speed of its own cache. The cell that returns
//! with the answer is used after that one. (The idea is in none of the papers.)
#![forbid(unsafe_code)]

use core::borrow::BorrowMut;

use super::{Host, Link, ShmPort, Stores};
use crate::shared::layout::LINE;
use crate::shared::pool::CellRecord;
use crate::sync::PayloadMut;

/// Lines that one poll prefetches. More lines would delay a packet that arrives meanwhile.
const LINES_A_POLL: usize = 32;

/// Bytes from which on a write prefetch directly before the copy pays, if there was no earlier time for it.
/// The stores of smaller packets are all in progress at once anyway.
const PREFETCH_FROM: usize = 1024;

/// The progress of a write prefetch: `end` bytes of this cell, of which `at` are done.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct WritePrefetch {
    cell: u32,
    at: u32,
    end: u32,
}

impl WritePrefetch {
    /// Starts the prefetch of cell `next` after a cell with `len` bytes was sent.
    #[inline(always)]
    pub(super) fn begin(&mut self, how: Stores, next: Option<u32>, len: usize) {
        *self = match next {
            Some(cell) if how == Stores::Prefetched => Self { cell, at: 0, end: len as u32 },
            _ => Self::default(),
        };
    }

    /// Returns the stores for a cell with this policy. A cell that was prefetched is not prefetched again.
    #[inline(always)]
    pub(super) fn writing(&self, how: Stores, cell: u32, len: usize) -> Stores {
        match how {
            Stores::NonTemporal => Stores::NonTemporal,
            _ if len < PREFETCH_FROM || self.cell == cell && self.at as usize >= len => Stores::Cached,
            // A copy that writes whole lines needs none of them before.
            Stores::Cached if PayloadMut::writes_whole_lines(len) => Stores::Cached,
            _ => Stores::Prefetched,
        }
    }

    /// Returns whether a prefetch is in progress.
    #[inline(always)]
    pub(super) const fn is_on(&self) -> bool {
        self.at < self.end
    }
}

impl<'a, H, L, R> ShmPort<'a, H, L, R>
where
    H: Host,
    L: BorrowMut<[Option<Link<'a>>]>,
    R: BorrowMut<[CellRecord]>,
{
    /// Starts the prefetch of the next cell after a cell with `len` bytes was sent. The first lines are
    /// prefetched at once: the stores complete while the processor does other work, and in a stream of
    /// messages there is no other time.
    #[inline(always)]
    pub(super) fn prefetch_next(&mut self, how: Stores, len: usize) {
        self.write_prefetch.begin(how, self.pool.first(), len);
        if self.write_prefetch.is_on() {
            self.prefetch();
        }
    }

    /// Prefetches some lines.
    #[inline(never)]
    pub(super) fn prefetch(&mut self) {
        let WritePrefetch { cell, at, end } = self.write_prefetch;
        let len = (end - at).min((LINES_A_POLL * LINE) as u32);
        let is_done = !self.pool.prefetch(cell, at as usize, len as usize);
        self.write_prefetch.at = if is_done { end } else { at + len };
    }
}
