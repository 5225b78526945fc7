//! The end of a connection whose two processes live.
//!
//! Cells belong to their owner, and serve all of its peers. A process that has ended a connection needs its cells for
//! other messages, but the former peer may hold some, and may be reading one of them at any time. Each side therefore
//! has a mark in its link segment, which is never reset: the next connection has another segment.
//!
//! | mark | meaning | for the other side |
//! |---|---|---|
//! | withdrawn | The owner has taken its cells back, and fills them again. | What it reads of a cell from now on may be parts of other messages. It looks at the mark after it has read ([`Edge::Withdrawal`]), and then the bytes count as not received. It finds the mark in its cache, so that costs next to nothing. |
//! | ended | The buffers that the owner has offered for reading are its own again. | As for cells, but of the buffers: what it reads of them from now on does not count ([`Edge::Withdrawal`]). |
//! | read | The process reads no cells any more. | It may take its own cells back at once ([`Edge::CellReturn`]). |
#![forbid(unsafe_code)]

use crate::sync::{Edge, Word64, withdrawal_fence, withdrawn_fence};

const WITHDRAWN: u64 = 1;
const READ: u64 = 2;
const ENDED: u64 = 4;

/// The mark of one side of a connection. Only that side writes it.
#[derive(Clone, Copy, Debug)]
pub struct EndMark<'a>(&'a Word64);

impl<'a> EndMark<'a> {
    /// Returns the mark in this word, which is 0 in a new segment.
    pub const fn new(word: &'a Word64) -> Self {
        Self(word)
    }

    /// Owner: takes all cells back. It may fill them when this call has returned.
    pub fn withdraw(self) {
        self.take_back(WITHDRAWN);
    }

    /// Peer: returns whether the cells were taken back. What was read before this call then does not count.
    #[inline(always)]
    pub fn is_withdrawn(self) -> bool {
        self.is_taken_back(WITHDRAWN)
    }

    /// Owner: ends the connection. Buffers that were offered to the peer may be written when this call has returned.
    pub fn end(self) {
        self.take_back(ENDED);
    }

    /// Peer: returns whether the owner has ended the connection. What was read of its buffers before this call then
    /// does not count.
    #[inline(always)]
    pub fn has_ended(self) -> bool {
        self.is_taken_back(ENDED)
    }

    fn take_back(self, what: u64) {
        self.0.store_relaxed(self.0.load_relaxed() | what);
        withdrawal_fence();
    }

    #[inline(always)]
    fn is_taken_back(self, what: u64) -> bool {
        withdrawn_fence();
        self.0.load_relaxed() & what != 0
    }

    /// Owner: states that it reads no cells of the peer any more.
    pub fn end_reading(self) {
        self.0.store_release(self.0.load_relaxed() | READ, Edge::CellReturn);
    }

    /// Peer: returns whether the owner of the mark reads no cells any more.
    pub fn has_read(self) -> bool {
        self.0.load_acquire(Edge::CellReturn) & READ != 0
    }
}
