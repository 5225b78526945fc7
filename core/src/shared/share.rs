//! One large message copied by both sides at once: the receiver reads the sender's memory from the front, and the sender, if it
//! has nothing else to do, writes the receiver's from the back, until they meet. Two cores then copy, each from or to its own
//! cache. Neither waits for the other to begin: a sender that is busy with its own work just never joins.
//!
//! Each process has one line for each peer in its own segment, which only it writes: the upper part for the message that it
//! receives from that peer, the lower for the one that it helps to send to it.
//!
//! A side claims a piece by publishing how far it will have come, and then looks how far the other has ([`Edge::ShareClaim`]: a
//! fence between the two on each side, so that both can't miss). The sender gives way: on a conflict it withdraws and
//! leaves. The receiver stops at what the sender has claimed, closes the share, and, if the sender is copying a part, waits until
//! it has left; what the sender did not write in the end is the receiver's again. So no byte is written twice, and
//! none after the receiver has gone on.

use crate::port::{Part, Share, Turn};
use crate::sync::{Edge, Word64, helper_fence, receiver_fence};

/// What a process tells a peer about the copies that they share.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct ShareLine {
    /// As receiver: number of the share, doubled; odd when it is closed.
    state: Word64,
    /// The sender's request, address of the receiver's buffer, end of what is to be copied, end of what is claimed.
    request: Word64,
    address: Word64,
    end: Word64,
    front: Word64,
    /// As sender: number of the share that it has joined, doubled; odd when it is not copying.
    joined: Word64,
    /// Start of what it has claimed, and of what it has written.
    back: Word64,
    written: Word64,
}

impl ShareLine {
    /// No share yet, for a model or private memory.
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

/// How much is claimed at once: a quarter of what is left, so that the pieces get smaller towards the end, within these bounds. A
/// claim costs two cache misses and a system call, and at the end one side may wait for the other's last piece.
///
/// Each side has its own: neither needs to know the other's, and what a peer chooses for itself only makes it slower.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pieces {
    least: u64,
    most: u64,
}

/// Pieces are multiples of this, but the last one.
#[cfg(not(any(nemesia_loom, test)))]
const MULTIPLE: u64 = 4096;
#[cfg(all(test, not(nemesia_loom)))]
const MULTIPLE: u64 = 64;
#[cfg(nemesia_loom)]
const MULTIPLE: u64 = 1;

impl Pieces {
    /// Pieces of at least and at most so many bytes. The least is no less than a byte, and the most no less than the least.
    pub const fn new(least: u64, most: u64) -> Self {
        let least = if least == 0 { 1 } else { least };
        Self { least, most: if most < least { least } else { most } }
    }

    /// The most bytes of a piece.
    pub const fn most(self) -> u64 {
        self.most
    }

    fn of(self, left: u64) -> u64 {
        let most = (left / 4).max(self.least).min(self.most);
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

/// The receiver's end. Exclusive to one thread at a time.
#[derive(Debug)]
pub struct Receiver<'a> {
    /// Ours.
    line: &'a ShareLine,
    /// The sender's.
    peer: &'a ShareLine,
    number: u64,
    /// Given out to be copied up to here.
    front: u64,
    /// Claimed by the sender from here on, as far as we know.
    back: u64,
    end: u64,
    open: bool,
    pieces: Pieces,
}

impl<'a> Receiver<'a> {
    /// No share is open. `line` is in our own segment, `peer` in the sender's.
    pub const fn new(line: &'a ShareLine, peer: &'a ShareLine) -> Self {
        let pieces = Pieces::new(1, 1);
        Self { line, peer, number: 0, front: 0, back: 0, end: 0, open: false, pieces }
    }

    /// Empties our line for a new process at the other end; the one before is gone.
    pub(super) fn clear(&self) {
        let ShareLine { state, request, address, end, front, joined, back, written } = self.line;
        for word in [state, request, address, end, front, joined, back, written] {
            word.store_relaxed(0);
        }
    }

    /// Opens a share, of which we copy such pieces. The one before is done.
    pub fn open(&mut self, share: &Share, pieces: Pieces) {
        self.number += 1;
        self.pieces = pieces;
        (self.front, self.back, self.end, self.open) = (share.start, share.end, share.end, true);
        self.line.request.store_relaxed(share.request);
        self.line.address.store_relaxed(share.address);
        self.line.end.store_relaxed(share.end);
        self.line.front.store_relaxed(share.start);
        self.line.state.store_release(self.number << 1, Edge::ShareOpen);
    }

    /// Whether the sender has joined this share, and whether it has left.
    fn sender(&self) -> (bool, bool) {
        let joined = self.peer.joined.load_acquire(Edge::ShareLeave);
        (joined >> 1 == self.number, joined & 1 == 1)
    }

    /// What to do next. What was given before is copied.
    pub fn turn(&mut self) -> Turn {
        if !self.open {
            return self.rest();
        }
        let claim = self.front + self.pieces.of(self.back - self.front);
        self.line.front.store_relaxed(claim);
        receiver_fence();
        if self.sender().0 {
            // What it says is not believed beyond what it can have claimed.
            self.back = self.peer.back.load_relaxed().clamp(self.front, self.back);
        }
        let part = Part { start: self.front, end: claim.min(self.back) };
        if part.start < part.end {
            self.front = part.end;
            return Turn::Copy(part);
        }
        self.close();
        self.rest()
    }

    /// Lets the sender claim nothing more; [`Receiver::turn`] then tells what is left.
    pub fn close(&mut self) {
        if self.open {
            self.open = false;
            self.line.state.store_release(self.number << 1 | 1, Edge::ShareOpen);
            receiver_fence();
        }
    }

    /// After closing: once the sender has left, what it did not write is ours.
    fn rest(&mut self) -> Turn {
        self.back = match self.sender() {
            (true, false) => return Turn::Wait,
            // Not what it claims: it may have claimed more by now, to find that we have closed.
            (true, true) => self.peer.written.load_relaxed().clamp(self.front, self.end),
            (false, _) => self.end,
        };
        let part = Part { start: self.front, end: self.back };
        if part.start == part.end {
            return Turn::Done;
        }
        self.front = part.end;
        Turn::Copy(part)
    }
}

/// The sender's end. Exclusive to one thread at a time.
#[derive(Debug)]
pub struct Helper<'a> {
    /// Ours.
    line: &'a ShareLine,
    /// The receiver's.
    peer: &'a ShareLine,
    /// The share that we looked at last.
    number: u64,
    back: u64,
    pieces: Pieces,
}

impl<'a> Helper<'a> {
    /// Nothing joined. `line` is in our own segment, `peer` in the receiver's.
    pub const fn new(line: &'a ShareLine, peer: &'a ShareLine) -> Self {
        Self { line, peer, number: 0, back: 0, pieces: Pieces::new(1, 1) }
    }

    /// A share that the receiver has opened and that we have not looked at yet. Every value is the peer's word only.
    #[inline]
    pub fn look(&mut self) -> Option<Share> {
        let state = self.peer.state.load_acquire(Edge::ShareOpen);
        if state & 1 == 1 || state >> 1 == self.number {
            return None;
        }
        self.number = state >> 1;
        Some(Share {
            request: self.peer.request.load_relaxed(),
            address: self.peer.address.load_relaxed(),
            start: self.peer.front.load_relaxed(),
            end: self.peer.end.load_relaxed(),
        })
    }

    /// Joins the share that was looked at, of which bytes up to `end` are to be copied, by us in such pieces, and claims the last
    /// of them. `None` when it is closed by now.
    pub fn join(&mut self, end: u64, pieces: Pieces) -> Option<Part> {
        (self.back, self.pieces) = (end, pieces);
        self.line.written.store_relaxed(end);
        self.claim()
    }

    /// Claims the next part. `None` when there is none.
    pub fn claim(&mut self) -> Option<Part> {
        let front = self.peer.front.load_relaxed();
        let claim = self.back - self.pieces.of(self.back.saturating_sub(front));
        self.line.back.store_relaxed(claim);
        self.line.joined.store_release(self.number << 1, Edge::ShareLeave);
        helper_fence();
        let open = self.peer.state.load_relaxed() == self.number << 1;
        let front = self.peer.front.load_relaxed();
        if !open || front > claim || claim == self.back {
            self.leave();
            return None;
        }
        Some(Part { start: claim, end: self.back })
    }

    /// The part claimed last is written, or not. We leave either way, so that the receiver never waits for what we do next.
    pub fn finish(&mut self, part: Part, written: bool) {
        self.back = if written { part.start } else { part.end };
        self.leave();
    }

    fn leave(&mut self) {
        self.line.back.store_relaxed(self.back);
        self.line.written.store_relaxed(self.back);
        // Whoever sees that we have left sees what we wrote, and how far we came.
        self.line.joined.store_release(self.number << 1 | 1, Edge::ShareLeave);
    }
}
