//! What the table of peers decides, and its limits.
#![forbid(unsafe_code)]

use super::PeerEnd;
use crate::wire::PeerId;

/// The reason why a peer cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PeerError {
    /// The identifier names no peer: the slot was released, or never existed.
    #[error("no such peer: it was released, or never existed")]
    Stale,
    /// All slots are in use.
    #[error("all {slots} places for peers are in use")]
    Slots {
        /// The number of slots.
        slots: usize,
    },
    /// This process has as many connections as it may have.
    #[error("this process has {most} connections, the most that it may have")]
    Connections {
        /// The limit.
        most: u32,
    },
    /// The connection has ended.
    #[error("{0}")]
    Ended(PeerEnd),
    /// The slot is in use: connected, or about to be.
    #[error("the peer is connected, or is being called: disconnect first")]
    InUse,
    /// It is the address of this process.
    #[error("it is the address of this endpoint itself")]
    Itself,
    /// The peer is a rank of this process's world, which it stays.
    #[error("the peer is a rank of this world: it stays one, and cannot be disconnected from")]
    Pinned,
}

/// The next step towards a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Speaking {
    /// The connection exists, with this number.
    Ready(PeerId),
    /// The peer has been called already, or has called. Packets for it wait.
    Wait(PeerId),
    /// The caller must call the peer now, and send it the number by which this process knows it. Packets for it wait.
    Call(PeerId),
}

/// The reason for which a call is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallRefusal {
    /// The called process admits known peers only.
    #[error("this process admits no unknown peers")]
    Unknown,
    /// The called process has no place for a further peer or connection.
    #[error("this process has no place for a further connection")]
    Full,
    /// The caller has the address of the called process.
    #[error("the caller has the address of this process")]
    Itself,
    /// The end of the former connection was not seen yet.
    #[error("the former connection with the caller has not ended")]
    Connected,
}

/// The limits of a process.
#[derive(Clone, Copy, Debug)]
pub struct PeerLimits {
    /// Most connections at once, calls under way included. Those of pinned peers do not count.
    pub connections: u32,
    /// Whether unknown peers may call.
    pub strangers: bool,
    /// The first so many peers are pinned: each has the number of its slot for ever, stays in the table, and does not
    /// come back after its end. Further peers have larger numbers.
    pub pinned: u32,
}
