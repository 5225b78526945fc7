//! The next cell's lines are taken back from the receiver while there is nothing else to do.
//!
//! A line that the receiver has read is shared, and a store to it waits until the receiver's core has given it up: with 8 KiB on one
//! machine here 0.8 us of the 1.1 us that a message takes. Whoever waits for an answer has that time. So a process that waits
//! writes to each line of the cell that it will fill next, and then fills it at the speed of its own cache; the cell that comes
//! back with the answer is the one after it. (In none of the papers.)
#![forbid(unsafe_code)]

use core::borrow::BorrowMut;

use super::filling::Fill;
use super::{Host, Link, ShmPort};
use crate::shared::layout::LINE;
use crate::shared::pool::{CellRecord, Writing};

/// Lines that one poll takes back: more would keep a packet waiting that comes meanwhile.
const LINES_A_POLL: usize = 32;

/// Bytes for whose lines it is worth it to take them before they are written, if there was no time before: of less, all stores are
/// under way at once.
const TAKEN_FROM: usize = 1024;

/// What is being made ready: so many bytes of this cell, of which some have been.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Warming {
    cell: u32,
    at: u32,
    end: u32,
}

impl Warming {
    /// A cell with so many bytes has left; `next` will be filled after it.
    #[inline(always)]
    pub(super) fn begin(&mut self, how: Fill, next: Option<u32>, len: usize) {
        *self = match next {
            Some(cell) if how == Fill::Warm => Self { cell, at: 0, end: len as u32 },
            _ => Self::default(),
        };
    }

    /// How the lines of a cell that is to be filled so are written: what has been taken need not be taken again.
    #[inline(always)]
    pub(super) const fn writing(&self, how: Fill, cell: u32, len: usize) -> Writing {
        match how {
            Fill::PastCaches => Writing::PastCaches,
            _ if len < TAKEN_FROM || self.cell == cell && self.at as usize >= len => Writing::Plain,
            _ => Writing::Taking,
        }
    }

    /// Whether anything is.
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
    /// A cell with so many bytes has left. The first lines of the next one are taken back at once: that goes on while the processor
    /// does something else, and of messages in a row there is no other time.
    #[inline(always)]
    pub(super) fn warm_next(&mut self, how: Fill, len: usize) {
        self.warming.begin(how, self.pool.first(), len);
        if self.warming.is_on() {
            self.warm();
        }
    }

    /// Takes some lines back.
    #[inline(never)]
    pub(super) fn warm(&mut self) {
        let Warming { cell, at, end } = self.warming;
        let len = (end - at).min((LINES_A_POLL * LINE) as u32);
        let is_done = !self.pool.warm(cell, at as usize, len as usize);
        self.warming.at = if is_done { end } else { at + len };
    }
}
