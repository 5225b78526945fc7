//! The sender-assisted copy: sender and receiver of a large message each copy a part.
#![forbid(unsafe_code)]

use super::PeerId;

/// A large message of which receiver and sender each copy a part (sender-assisted copy).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AssistedCopy {
    /// Identifier of the sender's request.
    pub request: u64,
    /// Address of the message's first byte in the receiver's memory.
    pub address: u64,
    /// First byte to copy.
    pub start: u64,
    /// End of the bytes to copy.
    pub end: u64,
}

/// A range of bytes of the message, which one side copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// First byte.
    pub start: u64,
    /// End of the range.
    pub end: u64,
}

/// The receiver's next step for a [`AssistedCopy`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextChunk {
    /// The receiver copies these bytes.
    Copy(Part),
    /// The sender is about to leave; the receiver polls again.
    Wait,
    /// All bytes have been copied.
    Done,
}

/// The optional sender-assisted copy of a port over shared memory ([`crate::shared::assist`]). By default there
/// is none.
///
/// It is a safe trait: addresses in [`SharedCopy::push`] belong to the peer's memory, and the port checks them
/// or leaves that to the kernel.
pub trait SharedCopy {
    /// Opens a message from this peer for sender-assisted copy. The preceding share must be complete. Returns
    /// `false` if the port does not support this.
    fn open_assist(&mut self, peer: PeerId, assist: &AssistedCopy) -> bool {
        let _ = (peer, assist);
        false
    }

    /// Returns whether the receiver's buffer lies in memory that this process lends to the peer for writing. A
    /// sender-assisted copy then costs the sender no system call, and is worthwhile for shorter messages.
    fn is_lent(&self, peer: PeerId, assist: &AssistedCopy) -> bool {
        let _ = (peer, assist);
        false
    }

    /// Returns the receiver's next step. The part that was returned before must have been copied.
    fn next_chunk(&mut self, peer: PeerId) -> NextChunk {
        let _ = peer;
        NextChunk::Done
    }

    /// Closes the share: the sender can claim nothing more. [`SharedCopy::next_chunk`] then returns the rest.
    fn close_assist(&mut self, peer: PeerId) {
        let _ = peer;
    }

    /// Keeps the share of a peer whose connection is closed next although the peer may be writing.
    /// [`SharedCopy::next_chunk`] goes on until the connection is closed once more.
    fn keep_assist(&mut self, peer: PeerId) {
        let _ = peer;
    }

    /// Returns a share that the peer, as receiver, has opened and that was not returned before. Its fields
    /// are unchecked.
    fn find_assist(&mut self, peer: PeerId) -> Option<AssistedCopy> {
        let _ = peer;
        None
    }

    /// Joins, as sender, the share found last and claims a part that ends at `end`. `None` if the share is
    /// closed by now.
    fn join_assist(&mut self, peer: PeerId, end: u64) -> Option<Part> {
        let _ = (peer, end);
        None
    }

    /// Claims the next part. `None` if there is none.
    fn next_part(&mut self, peer: PeerId) -> Option<Part> {
        let _ = peer;
        None
    }

    /// Ends the claimed part; `written` says whether it was written. The receiver does not wait for the next
    /// part.
    fn end_part(&mut self, peer: PeerId, part: Part, written: bool) {
        let _ = (peer, part, written);
    }

    /// Copies `from` to `address` in the peer's memory. Returns `false` if this is impossible.
    fn push(&mut self, peer: PeerId, address: u64, from: &[u8]) -> bool {
        let _ = (peer, address, from);
        false
    }
}
