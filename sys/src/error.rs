//! What can go wrong, for the caller.

use std::fmt;

use nemesia_core::engine::rma::Refusal;
use nemesia_core::engine::{Failure, Fate, Truncation};
use nemesia_core::shared::layout::LayoutError;

use crate::bootstrap::{BootstrapError, LaunchError, WireError};
use crate::config::ConfigError;
use crate::os::ShmError;

/// What can go wrong. Every message is one line that names the peer, the transport and the remedy, where there
/// are any.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The configuration can't be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The launcher or the key-value exchange failed.
    #[error(transparent)]
    Bootstrap(#[from] BootstrapError),
    /// The operating system refused something.
    #[error("shared memory: {0}")]
    Shm(#[from] ShmError),
    /// Our own segments can't be laid out.
    #[error("shared memory: {0}")]
    Layout(#[from] LayoutError),
    /// Something about one peer, at start.
    #[error("rank {rank}, shared memory: {problem}")]
    Peer {
        /// The peer.
        rank: usize,
        /// What, and the remedy.
        problem: String,
    },
    /// The peer is gone.
    #[error("rank {rank}, shared memory: peer failed: {failure}")]
    PeerFailed {
        /// The peer.
        rank: usize,
        /// How.
        failure: Failure,
    },
    /// Another rank found during a barrier that a rank is gone.
    #[error(
        "rank {rank} is gone, as rank {by} reports in a barrier: call shrink, then the barrier is among the survivors"
    )]
    BarrierBroken {
        /// The rank that is gone.
        rank: usize,
        /// The rank that says so.
        by: usize,
    },
    /// A message was longer than its buffer. What fits was received.
    #[error("truncated: {0}")]
    Truncated(Truncation),
    /// No such rank.
    #[error("rank {rank} does not exist: this world has ranks 0 to {last}")]
    Rank {
        /// The rank asked for.
        rank: usize,
        /// The highest rank.
        last: usize,
    },
    /// Too many requests are under way.
    #[error(
        "{capacity} requests are under way, and no more are allowed: complete some, or raise NEMESIA_REQUESTS"
    )]
    Requests {
        /// How many there may be.
        capacity: usize,
    },
    /// Unexpected messages have reached their ceiling, and what is waited for can't come before they are received.
    #[error(
        "{messages} unexpected messages fill the ceiling of {ceiling} bytes, and {held} peers are held back: \
         receive them, or raise NEMESIA_UNEXPECTED_BYTES"
    )]
    Unexpected {
        /// Messages stored.
        messages: usize,
        /// Ceiling for them, in bytes.
        ceiling: usize,
        /// Peers held back.
        held: usize,
    },
    /// An active message is longer than one may be.
    #[error(
        "active message of {len} bytes, header included: {most} are the most; send the rest as a tagged message, or put it"
    )]
    TooLong {
        /// Bytes of header and payload.
        len: usize,
        /// Bytes there may be.
        most: usize,
    },
    /// A reply of a handler is longer than a packet.
    #[error(
        "reply of {len} bytes, header included: {most} are the most; send it from outside the handler, or raise \
         NEMESIA_CELL_BYTES"
    )]
    LongReply {
        /// Bytes of header and payload.
        len: usize,
        /// Bytes there may be: those of a cell.
        most: usize,
    },
    /// Replies of handlers wait to leave, as many as may.
    #[error("{most} replies wait to leave, and no more are allowed: reply later, from outside a handler")]
    Replies {
        /// How many there may be.
        most: usize,
    },
    /// One-sided operations were refused.
    #[error("rank {rank} refused {count} one-sided operations, the first because {refusal}")]
    Refused {
        /// Whose region it is.
        rank: usize,
        /// Why the first was.
        refusal: Refusal,
        /// How many were.
        count: u64,
    },
    /// No such region of this process.
    #[error("no such region: it was concealed, or never exposed")]
    Region,
    /// Too many regions are exposed.
    #[error("{most} regions are exposed, and no more are allowed: conceal some")]
    Regions {
        /// How many there may be.
        most: usize,
    },
    /// A list of segments that no memory has.
    #[error("a list of segments has one that is nowhere, or more bytes than any memory")]
    List,
    /// The others have agreed that this process is gone: one of them broke off with it.
    #[error("the other ranks have agreed to go on without this one")]
    Excluded,
    /// The matching context is not anybody's.
    #[error("contexts 65534 and 65535 are reserved, for barriers and agreements: use another one")]
    Context,
    /// The rank has not failed, or was not started again yet.
    #[error(
        "rank {rank} can't be readmitted: it has not failed, or its next process is not there yet; see Endpoint::restarted"
    )]
    NotRestarted {
        /// The rank.
        rank: usize,
    },
    /// An agreement that was broken off by an error is not finished.
    #[error("an agreement is under way: call agree or shrink again until it is done, then readmit")]
    AgreementUnderWay,
    /// The request was withdrawn.
    #[error("the receive was cancelled")]
    Cancelled,
    /// The request was completed before, or never existed.
    #[error("no such request: it was completed before, or never started")]
    Stale,
    /// Waiting took longer than allowed; the request is still under way.
    #[error("nothing came within {0:?}")]
    Timeout(std::time::Duration),
}

/// Prints an error by `Debug` as by `Display`: `main` and `unwrap` print `Debug`, and the reader wants the line that names
/// peer and remedy.
macro_rules! debug_is_display {
    ($($error:ty),+) => {
        $(impl fmt::Debug for $error {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        })+
    };
}

debug_is_display!(Error, ConfigError, ShmError, BootstrapError, LaunchError, WireError);

impl From<Fate> for Error {
    fn from(fate: Fate) -> Self {
        match fate {
            Fate::Truncated(truncation) => Error::Truncated(truncation),
            Fate::PeerFailed { peer, failure } => Error::PeerFailed { rank: peer as usize, failure },
            Fate::Refused { peer, refusal, count } => Error::Refused { rank: peer as usize, refusal, count },
            Fate::Cancelled => Error::Cancelled,
            Fate::Stale => Error::Stale,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_of_an_error_is_its_one_line() {
        let errors = [
            Error::PeerFailed { rank: 3, failure: Failure::Died },
            crate::Config::default().set("NEMESIA_CELS", "1").unwrap_err().into(),
            Error::Bootstrap(BootstrapError::NoRestart),
            Error::Timeout(std::time::Duration::from_secs(1)),
        ];
        for error in errors {
            let (debug, display) = (format!("{error:?}"), error.to_string());
            assert_eq!(debug, display);
            assert_eq!(display.lines().count(), 1, "{display}");
        }
        let launch = LaunchError::NoProcesses;
        assert_eq!(format!("{launch:?}"), launch.to_string());
    }
}
