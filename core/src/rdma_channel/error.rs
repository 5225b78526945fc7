//! Why a pipe cannot be opened, or has failed.
#![forbid(unsafe_code)]

use crate::port::memory::{LostError, PostError, WorkError};
use crate::shared::fastbox::FastboxFault;
use crate::shared::ring::RingFault;

/// The reason why a pipe cannot be opened or has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PipeError {
    /// The size of the ring is not possible.
    #[error("a ring of {bytes} bytes: the size must be a power of two from {least} to {most}")]
    Ring {
        /// The size.
        bytes: u32,
        /// The smallest size.
        least: u32,
        /// The largest size.
        most: u32,
    },
    /// The size of the chunks is not possible with this ring and port.
    #[error("chunks of {bytes} bytes: the size must be a power of two from {least} to {most}")]
    Chunk {
        /// The size.
        bytes: u32,
        /// The smallest size.
        least: u32,
        /// The largest size.
        most: u32,
    },
    /// The shape asks for polling on a port that does not place in order.
    #[error("the port does not promise placement in order, so nothing can be polled: announce arrivals")]
    Unordered,
    /// The port has too few receives for messages.
    #[error("the port has {found} receives a connection, and a pipe needs {needed}: open it with more")]
    Receives {
        /// The receives of the port.
        found: u32,
        /// The receives needed.
        needed: u32,
    },
    /// The memory lent to the pipe is too small or not aligned to eight bytes.
    #[error("the memory lent to the pipe is too small, read-only, or not aligned to 8 bytes")]
    Memory,
    /// The peer's card is too short.
    #[error("the peer sent a card of {bytes} bytes, which is too short: use the same release")]
    Card {
        /// The length.
        bytes: usize,
    },
    /// The peer uses another version.
    #[error("the peer uses version {theirs} of the pipe, this process {ours}: use the same release")]
    Version {
        /// The version of this process.
        ours: u8,
        /// The version of the peer.
        theirs: u8,
    },
    /// The peer's pipe has another design or other sizes.
    #[error("the peer's pipe has another design or other sizes: use the same settings on both sides")]
    Shape,
    /// The peer's inbox is too small.
    #[error("the peer lends {bytes} bytes for a pipe that needs {needed}")]
    Inbox {
        /// The bytes lent.
        bytes: u64,
        /// The bytes needed.
        needed: u64,
    },
    /// The peer violated the protocol. The caller must close the connection.
    #[error("the peer violated the protocol of the pipe: {what} is {found}, and the limit is {limit}")]
    Violated {
        /// The value.
        what: &'static str,
        /// The value found.
        found: u64,
        /// The limit.
        limit: u64,
    },
    /// The caller gave a list that does not begin with the bytes of the operation in progress.
    #[error("the list has {found} bytes, but the operation in progress covers {needed}")]
    List {
        /// The bytes of the list.
        found: usize,
        /// The bytes of the operation.
        needed: usize,
    },
    /// The peer wrote an invalid position or stamp into a fastbox.
    #[error("the peer violated the protocol of the pipe: {0}")]
    Fastbox(#[from] FastboxFault),
    /// The peer wrote an invalid position of a ring.
    #[error("the peer violated the protocol of the pipe: {0}")]
    Positions(#[from] RingFault),
    /// The port refused a work request.
    #[error("the port refused a work request: {0}")]
    Post(PostError),
    /// A work request failed, and with it the connection.
    #[error("a work request failed: {0}")]
    Work(WorkError),
    /// The connection has ended, and the peer has not announced that: it died, or dropped its end.
    #[error("the peer died, or dropped its end of the pipe: {0}")]
    Lost(LostError),
    /// The peer has ended its end in good order, and all of its bytes were read. It reads no more.
    #[error("the peer has finalized its end of the pipe, and nothing more follows")]
    Ended,
}

impl PipeError {
    /// Returns whether the peer is gone. The bytes that it put before are good.
    pub(super) const fn is_end(&self) -> bool {
        matches!(self, Self::Lost(_) | Self::Work(_) | Self::Ended)
    }
}
