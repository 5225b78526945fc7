//! The sender-assisted copy: both processes copy one large message at once. The receiver reads the sender's
//! memory from the front. An otherwise idle sender writes the receiver's memory from the back, until the two
//! meet. Two cores then copy, each from or to its own cache. Neither side waits for the other to begin: a
//! busy sender never joins.
//!
//! Each process has one line for each peer in its own segment, which only this process writes. The upper part
//! concerns the message that it receives from that peer, the lower part the message that it helps to send to
//! that peer.
//!
//! Each side claims a piece by publishing its next position, and then reads the position of the other
//! ([`Edge::AssistClaim`]: a fence between the two on each side, so that at least one sees the other). On a
//! conflict the sender withdraws its claim and leaves. The receiver stops at the sender's claim and closes
//! the share. If the sender is copying a part, the receiver waits until the sender has left, and then copies
//! the bytes that the sender did not write. So no byte is written twice, and the sender writes nothing after
//! the receiver has continued.

use crate::port::{AssistedCopy, NextChunk, Part};
use crate::sync::{Edge, Word64, assist_fence, receiver_fence};

/// The state of sender-assisted copies that a process publishes for one peer.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct AssistLine {
    /// As receiver: number of the share, doubled; odd if the share is closed.
    state: Word64,
    /// The sender's request, the address of the receiver's buffer, the end of the bytes to copy, and the end
    /// of the receiver's claim.
    request: Word64,
    address: Word64,
    end: Word64,
    front: Word64,
    /// As sender: number of the share that it has joined, doubled; odd while it is not copying.
    joined: Word64,
    /// Start of the sender's claim, and start of the bytes that it has written.
    back: Word64,
    written: Word64,
}

impl AssistLine {
    /// Returns a line without a share, for a model or private memory.
    pub fn empty() -> Self {
        let word = || Word64::new(0);
        Self {
            state: word(),
            request: word(),
            address: word(),
            end: word(),
            front: word(),
            joined: word(),
            back: word(),
            written: word(),
        }
    }
}

/// The size of one claim: a quarter of the remaining bytes, within these bounds, so that pieces shrink
/// towards the end. A claim costs two cache misses and a system call. At the end, one side may wait for the
/// other's last piece.
///
/// Each side has its own bounds and need not know the other's. A peer's choice can only make its own copy
/// slower.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pieces {
    least: u32,
    most: u32,
}

/// Pieces are multiples of this size, except the last.
#[cfg(not(any(nemesia_loom, test)))]
const MULTIPLE: u64 = 4096;
#[cfg(all(test, not(nemesia_loom)))]
const MULTIPLE: u64 = 64;
#[cfg(nemesia_loom)]
const MULTIPLE: u64 = 1;

impl Pieces {
    /// Returns bounds for pieces. `least` is raised to at least one byte, and `most` to at least `least`.
    pub const fn new(least: u32, most: u32) -> Self {
        let least = if least == 0 { 1 } else { least };
        Self { least, most: if most < least { least } else { most } }
    }

    /// Returns the most bytes of a piece.
    pub const fn most(self) -> u64 {
        self.most as u64
    }

    fn of(self, left: u64) -> u64 {
        let most = (left / 4).max(self.least.into()).min(self.most.into());
        most.checked_next_multiple_of(MULTIPLE).unwrap_or(most).min(left)
    }
}

impl Default for Pieces {
    fn default() -> Self {
        if cfg!(nemesia_loom) {
            Self::new(1, 1)
        } else if cfg!(test) {
            Self::new(128, 512)
        } else {
            Self::new(32 << 10, 256 << 10)
        }
    }
}

/// The receiver's end. Only one thread at a time may use it.
#[derive(Debug)]
pub struct AssistReceiver<'a> {
    /// This process's line.
    line: &'a AssistLine,
    /// The sender's line.
    peer: &'a AssistLine,
    number: u64,
    /// End of the bytes that were assigned to the receiver.
    front: u64,
    /// Start of the sender's claim, as last read.
    back: u64,
    end: u64,
    open: bool,
    pieces: Pieces,
}

impl<'a> AssistReceiver<'a> {
    /// Returns an end without an open share. `line` lies in this process's segment, `peer` in the sender's.
    pub const fn new(line: &'a AssistLine, peer: &'a AssistLine) -> Self {
        let pieces = Pieces::new(1, 1);
        Self { line, peer, number: 0, front: 0, back: 0, end: 0, open: false, pieces }
    }

    /// Opens a share, of which the receiver copies pieces within `pieces`. The preceding share must be
    /// complete.
    pub fn open(&mut self, assist: &AssistedCopy, pieces: Pieces) {
        self.number += 1;
        self.pieces = pieces;
        (self.front, self.back, self.end, self.open) = (assist.start, assist.end, assist.end, true);
        self.line.request.store_relaxed(assist.request);
        self.line.address.store_relaxed(assist.address);
        self.line.end.store_relaxed(assist.end);
        self.line.front.store_relaxed(assist.start);
        self.line.state.store_release(self.number << 1, Edge::AssistOpen);
    }

    /// Returns whether the sender has joined this share, and whether it has left.
    fn sender(&self) -> (bool, bool) {
        let joined = self.peer.joined.load_acquire(Edge::AssistLeave);
        (joined >> 1 == self.number, joined & 1 == 1)
    }

    /// Returns the next step. The part that was returned before must have been copied.
    pub fn next_chunk(&mut self) -> NextChunk {
        if !self.open {
            return self.rest();
        }
        let claim = self.front + self.pieces.of(self.back - self.front);
        self.line.front.store_relaxed(claim);
        receiver_fence();
        if self.sender().0 {
            // The value is limited to what the sender can validly have claimed.
            self.back = self.peer.back.load_relaxed().clamp(self.front, self.back);
        }
        let part = Part { start: self.front, end: claim.min(self.back) };
        if part.start < part.end {
            self.front = part.end;
            return NextChunk::Copy(part);
        }
        self.close();
        self.rest()
    }

    /// Closes the share: the sender can claim nothing more. [`AssistReceiver::next_chunk`] then returns the
    /// rest.
    pub fn close(&mut self) {
        if self.open {
            self.open = false;
            self.line.state.store_release(self.number << 1 | 1, Edge::AssistOpen);
            receiver_fence();
        }
    }

    /// Returns the next step after closing. When the sender has left, the receiver copies what the sender did
    /// not write.
    fn rest(&mut self) -> NextChunk {
        self.back = match self.sender() {
            (true, false) => return NextChunk::Wait,
            // `back` is not used here: the sender may have claimed more before it found the share closed.
            (true, true) => self.peer.written.load_relaxed().clamp(self.front, self.end),
            (false, _) => self.end,
        };
        let part = Part { start: self.front, end: self.back };
        if part.start == part.end {
            return NextChunk::Done;
        }
        self.front = part.end;
        NextChunk::Copy(part)
    }
}

/// The sender's end. Only one thread at a time may use it.
#[derive(Debug)]
pub struct AssistSender<'a> {
    /// This process's line.
    line: &'a AssistLine,
    /// The receiver's line.
    peer: &'a AssistLine,
    /// The share that was read last.
    number: u64,
    back: u64,
    pieces: Pieces,
}

impl<'a> AssistSender<'a> {
    /// Returns an end that has joined no share. `line` lies in this process's segment, `peer` in the
    /// receiver's.
    pub const fn new(line: &'a AssistLine, peer: &'a AssistLine) -> Self {
        Self { line, peer, number: 0, back: 0, pieces: Pieces::new(1, 1) }
    }

    /// Returns the address of the receiver's buffer for the share that this end has joined. The peer wrote it.
    pub fn address(&self) -> u64 {
        self.peer.address.load_relaxed()
    }

    /// Returns a share that the receiver has opened and that was not returned before. The peer wrote every
    /// value, and all are unchecked.
    #[inline]
    pub fn find(&mut self) -> Option<AssistedCopy> {
        let state = self.peer.state.load_acquire(Edge::AssistOpen);
        if state & 1 == 1 || state >> 1 == self.number {
            return None;
        }
        self.number = state >> 1;
        Some(AssistedCopy {
            request: self.peer.request.load_relaxed(),
            address: self.peer.address.load_relaxed(),
            start: self.peer.front.load_relaxed(),
            end: self.peer.end.load_relaxed(),
        })
    }

    /// Joins the share that was returned last, copies it up to `end` in pieces within `pieces`, and claims
    /// the last piece. `None` if the share is closed by now.
    pub fn join(&mut self, end: u64, pieces: Pieces) -> Option<Part> {
        (self.back, self.pieces) = (end, pieces);
        self.line.written.store_relaxed(end);
        self.claim()
    }

    /// Claims the next part. `None` if there is none.
    pub fn claim(&mut self) -> Option<Part> {
        let front = self.peer.front.load_relaxed();
        let claim = self.back - self.pieces.of(self.back.saturating_sub(front));
        self.line.back.store_relaxed(claim);
        self.line.joined.store_release(self.number << 1, Edge::AssistLeave);
        assist_fence();
        let open = self.peer.state.load_relaxed() == self.number << 1;
        let front = self.peer.front.load_relaxed();
        if !open || front > claim || claim == self.back {
            self.leave();
            return None;
        }
        Some(Part { start: claim, end: self.back })
    }

    /// Ends the claimed part; `written` says whether it was written. The sender leaves in either case, so
    /// that the receiver never waits for the sender's next step.
    pub fn finish(&mut self, part: Part, written: bool) {
        self.back = if written { part.start } else { part.end };
        self.leave();
    }

    fn leave(&mut self) {
        self.line.back.store_relaxed(self.back);
        self.line.written.store_relaxed(self.back);
        // A receiver that sees this store also sees the written bytes and their start.
        self.line.joined.store_release(self.number << 1 | 1, Edge::AssistLeave);
    }
}
