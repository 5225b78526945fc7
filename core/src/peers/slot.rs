//! The slot of one peer.
#![forbid(unsafe_code)]

use super::address::PeerAddress;
use crate::slab::Slot;
use crate::wire::PeerId;

/// The state of the connection with a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerStage {
    /// There is no connection, and this process has not called.
    Apart,
    /// This process has called the peer, which it knows by this number.
    Calling(PeerId),
    /// This process has answered a call of the peer, which has not confirmed the answer.
    Answering(PeerId),
    /// The connection exists.
    Connected(PeerId),
    /// The connection, or the call, has ended.
    Ended(PeerEnd),
}

impl PeerStage {
    /// Returns the number by which this process knows the peer.
    pub const fn number(self) -> Option<PeerId> {
        match self {
            Self::Calling(number) | Self::Answering(number) | Self::Connected(number) => Some(number),
            Self::Apart | Self::Ended(_) => None,
        }
    }
}

/// The reason why a connection, or a call, has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PeerEnd {
    /// The process died, or its connection failed. A process that is started again has another address.
    #[error("its process died, or its connection failed")]
    Lost,
    /// The peer disconnected, or closed its endpoint.
    #[error("it disconnected")]
    Left,
    /// This process disconnected.
    #[error("this process disconnected from it")]
    Disconnected,
    /// The peer refused the call.
    #[error("it refused the connection")]
    Refused,
}

/// What is kept of one peer. Private to [`super::Peers`]; public only so that the caller can lend its storage.
#[derive(Debug)]
pub struct PeerSlot {
    pub(super) address: PeerAddress,
    pub(super) stage: PeerStage,
}

impl Default for PeerSlot {
    fn default() -> Self {
        Self { address: PeerAddress::from_bytes([0; super::ADDRESS_BYTES]), stage: PeerStage::Apart }
    }
}

// A peer that was never spoken to costs no more.
static_assertions::const_assert!(size_of::<Slot<PeerSlot>>() <= 104);
