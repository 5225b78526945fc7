//! Why the connection to a peer failed.
#![forbid(unsafe_code)]

use super::PeerId;
use super::memory::{LostError, PostError, WorkError};
use crate::wire::Kind;
use crate::wire::channel::CloseReason;
use crate::wire::fault::{FastboxFault, ReturnFault};

/// The reason why a peer's connection failed: the peer violated the protocol, except in the cases of
/// [`PortFault::is_innocent`]. Other peers are not affected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PortFault {
    /// An invalid value in the peer's fastbox, or in its position in this process's fastbox.
    #[error("{0}")]
    Fastbox(#[from] FastboxFault),
    /// An invalid returned cell.
    #[error("{0}")]
    Return(#[from] ReturnFault),
    /// A packet is out of order, and an earlier one does not exist.
    #[error("packet {expected} is missing, but a later one has arrived")]
    Gap {
        /// The sequence number of the missing packet.
        expected: u64,
    },
    /// A cell's header is inconsistent.
    #[error("cell {cell} has a malformed header")]
    Malformed {
        /// Number of the cell.
        cell: u32,
    },
    /// A packet answers no operation in progress, or has invalid content.
    #[error("a {kind:?} packet is invalid, or matches no operation in progress")]
    Protocol {
        /// Kind of the packet.
        kind: Kind,
    },
    /// The peer takes part in another agreement than the next one ([`agreement`](crate::agreement)), or
    /// reports an impossible number of agreements.
    #[error(
        "it takes part in agreement {number}, but {due} is next: readmit a rank between the same two everywhere"
    )]
    Agreement {
        /// The number that the peer sent.
        number: u64,
        /// The next agreement, as far as this process knows.
        due: u64,
    },
    /// More requests than the target must be able to answer at once.
    #[error("it has more one-sided operations in flight than the window allows")]
    Window,
    /// A peer sent more than its credit.
    #[error("it exceeded its credit by {units} units of 64 bytes")]
    Credit {
        /// The excess in units.
        units: u64,
    },
    /// A packet of a stream or of a channel has an invalid header.
    #[error("a packet has a malformed header")]
    Header,
    /// A peer of a channel sent a packet without credit for a receive.
    #[error("it sent a packet for which it had no credit")]
    Overdrawn,
    /// A packet of a channel arrived twice, or outside the window.
    #[error("packet {sequence} arrived twice, or is outside the window")]
    Sequence {
        /// Sequence number of the packet.
        sequence: u32,
    },
    /// The peer has left, and has announced how.
    #[error("{}", left(_0))]
    Left(CloseReason),
    /// A connection was lost.
    #[error("connection lost: {0}")]
    Lost(LostError),
    /// A work request of a channel failed.
    #[error("a work request failed: {0}")]
    Work(WorkError),
    /// A work request of a channel was refused.
    #[error("a work request was refused: {0}")]
    Post(PostError),
    /// This process has no memory for the message. The connection fails so that the message is not lost
    /// silently.
    #[error("this process has no memory for an active message of {len} bytes")]
    Memory {
        /// Length of the message in bytes.
        len: usize,
    },
}

impl PortFault {
    /// Returns whether the peer may have obeyed the protocol.
    pub const fn is_innocent(&self) -> bool {
        matches!(self, Self::Left(_) | Self::Lost(_) | Self::Work(_) | Self::Post(_) | Self::Memory { .. })
    }
}

const fn left(reason: &CloseReason) -> &'static str {
    match reason {
        CloseReason::Finished => "it closed its endpoint",
        CloseReason::Dropped => "it dropped its endpoint without closing it",
    }
}

/// A fault and the peer that it concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("peer {peer}: {fault}")]
pub struct PeerFault {
    /// Rank of the peer.
    pub peer: PeerId,
    /// The fault.
    pub fault: PortFault,
}
