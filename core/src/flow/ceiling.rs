//! The errors of memory that has a ceiling.
#![forbid(unsafe_code)]

use crate::wire::PeerId;

/// Error: the memory for unexpected messages is too small for the credit of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CeilingError {
    /// The ceiling is too low.
    #[error("{ceiling} units are too few for {peers} peers: a largest packet from each needs {needed} units")]
    Units {
        /// Number of units available.
        ceiling: u32,
        /// Number of peers, the one that was refused included.
        peers: u32,
        /// Number of units that would suffice.
        needed: u64,
    },
    /// The system refused memory below the ceiling.
    #[error("only {committed} units of memory could be committed: {peers} peers need {needed} units")]
    Memory {
        /// Number of units committed.
        committed: u32,
        /// Number of peers, the one that was refused included.
        peers: u32,
        /// Number of units that would suffice.
        needed: u64,
    },
    /// The process has as many connections as it was opened for.
    #[error("{peers} peers have credit, the most that this process was opened for: allow {needed}")]
    Connections {
        /// Number of peers that have credit, or whose messages are stored.
        peers: u32,
        /// Number of connections that would suffice.
        needed: u32,
    },
    /// Messages of the former peer with the same number are stored.
    #[error("{units} units of messages of the former peer with number {peer} are stored: receive them first")]
    Stored {
        /// The number.
        peer: PeerId,
        /// Number of units that the messages take.
        units: u32,
    },
}
