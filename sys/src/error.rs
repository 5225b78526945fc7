//! The errors that callers see.

use std::fmt;

use nemesia_core::engine::rma::Refusal;
use nemesia_core::engine::{CompletionError, Failure, Truncation};
use nemesia_core::port::PortFault;
use nemesia_core::port::memory::LostError;
use nemesia_core::rdma_channel::PipeError;
use nemesia_core::shared::layout::LayoutError;

use crate::bootstrap::{BootstrapError, LaunchError, WireError};
use crate::config::ConfigError;
use crate::os::ShmError;

/// An error of an endpoint. Every message is one line that names the peer, the transport and the remedy, if there are
/// any.
// The tag of the enumeration is a word of its own. Without `repr` it would be a niche of a string, and so a constant of
// 64 bits, which costs one more instruction in every successful receive.
#[derive(thiserror::Error)]
#[non_exhaustive]
#[repr(u32)]
pub enum Error {
    /// The configuration cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The launcher or the key-value exchange failed.
    #[error(transparent)]
    Bootstrap(#[from] BootstrapError),
    /// The operating system refused a call.
    #[error("shared memory: {0}")]
    Shm(#[from] ShmError),
    /// This process's segments cannot be laid out.
    #[error("shared memory: {0}")]
    Layout(#[from] LayoutError),
    /// An error with one peer at start.
    #[error("rank {rank}, shared memory: {problem}")]
    Peer {
        /// The peer.
        rank: usize,
        /// The problem, and the remedy.
        problem: String,
    },
    /// A rank on another machine cannot be reached at start.
    #[error("rank {rank}, {transport}: {problem}")]
    Net {
        /// The peer.
        rank: usize,
        /// The transport.
        transport: &'static str,
        /// The problem, and the remedy.
        problem: String,
    },
    /// A transport to other machines cannot be used.
    #[error("{transport}: {problem}")]
    Transport {
        /// The transport.
        transport: &'static str,
        /// The problem, and the remedy.
        problem: String,
    },
    /// The peer is gone, or cannot be connected with.
    #[error("rank {rank} {}", ending(*.failure, .reason.as_deref()))]
    PeerFailed {
        /// The peer.
        rank: usize,
        /// The kind of the failure.
        failure: Failure,
        /// Why the peer cannot be connected with, and the remedy, if this process found that out.
        reason: Option<Box<str>>,
    },
    /// A pipe of the RDMA Channel has failed.
    #[error("rank {rank}, RDMA Channel: {problem}")]
    Pipe {
        /// The peer.
        rank: usize,
        /// The problem.
        problem: PipeError,
    },
    /// Another rank found during a barrier that a rank is gone.
    #[error(
        "rank {rank} is gone, as rank {by} reports in a barrier: call shrink; the next barrier is among the survivors"
    )]
    BarrierBroken {
        /// The rank that is gone.
        rank: usize,
        /// The rank that reports it.
        by: usize,
    },
    /// A member of a group of peers is gone ([`Endpoint::among_peers`](crate::Endpoint::among_peers)).
    #[error(
        "the member at position {place} of the group {}; call shrink, and go on among the survivors",
        ending(*.failure, .reason.as_deref())
    )]
    MemberFailed {
        /// Its position in the group.
        place: usize,
        /// The kind of the failure.
        failure: Failure,
        /// As in [`Error::PeerFailed`].
        reason: Option<Box<str>>,
    },
    /// Another member of a group of peers found during a barrier that a member is gone.
    #[error(
        "the member at position {place} of the group is gone, as the one at position {by} reports in a barrier: call \
         shrink, and go on among the survivors"
    )]
    MemberLost {
        /// The position in the group of the member that is gone.
        place: usize,
        /// The position of the member that reports it.
        by: usize,
    },
    /// A message was longer than its buffer. The part that fits was received.
    #[error("truncated: {0}")]
    Truncated(Truncation),
    /// There is no such rank.
    #[error("rank {rank} does not exist: this world has ranks 0 to {last}")]
    Rank {
        /// The rank given.
        rank: usize,
        /// The highest rank.
        last: usize,
    },
    /// Too many requests are under way.
    #[error(
        "{capacity} requests are under way, and no more are allowed: complete some, or raise NEMESIA_REQUESTS"
    )]
    Requests {
        /// The limit.
        capacity: usize,
    },
    /// Unexpected messages have reached their limit. The awaited message cannot come before some of them are received.
    #[error(
        "{messages} unexpected messages fill the limit of {ceiling} bytes{}, and {held} peers are held back: \
         receive them, or {}", lacking(*.reserved), remedy(*.reserved)
    )]
    Unexpected {
        /// The number of stored messages.
        messages: usize,
        /// The limit for their bytes.
        ceiling: usize,
        /// The number of peers that are held back.
        held: usize,
        /// The bytes that could be reserved for them, if the machine or a cgroup has not the memory for the limit.
        reserved: Option<usize>,
    },
    /// Sends did not leave before [`Endpoint::close`](crate::Endpoint::close) had waited for as long as is configured,
    /// because the receiver has no room for further unexpected messages. They are lost.
    #[error(
        "messages to rank {rank} have not left within {limit:?}, as its unexpected messages fill their limit: let it \
         receive them, raise its NEMESIA_UNEXPECTED_BYTES, or raise NEMESIA_TIMEOUT here"
    )]
    Held {
        /// The receiver.
        rank: usize,
        /// The time that has passed.
        limit: std::time::Duration,
    },
    /// An active message is too long.
    #[error(
        "active message of {len} bytes, header included, exceeds the limit of {most} bytes: send the rest as a tagged \
         message, or put it"
    )]
    TooLong {
        /// The number of bytes of header and payload.
        len: usize,
        /// The limit in bytes.
        most: usize,
    },
    /// A message is too long for `inject`.
    #[error(
        "message of {len} bytes exceeds the {most} bytes of inject: send it, or raise NEMESIA_EAGER_BYTES"
    )]
    LongInject {
        /// The number of bytes of the message.
        len: usize,
        /// The limit in bytes.
        most: usize,
    },
    /// A reply of a handler is longer than a packet.
    #[error(
        "reply of {len} bytes, header included, exceeds the limit of {most} bytes: send it from outside the handler, \
         or raise NEMESIA_CELL_BYTES"
    )]
    LongReply {
        /// The number of bytes of header and payload.
        len: usize,
        /// The limit in bytes: the payload of a cell.
        most: usize,
    },
    /// The number of waiting replies of handlers to one rank has reached its limit.
    #[error(
        "{most} replies to rank {rank} wait to leave, and no more are allowed: reply later, from outside a handler"
    )]
    Replies {
        /// The rank that takes no replies.
        rank: usize,
        /// The limit.
        most: usize,
    },
    /// One-sided operations were refused.
    #[error("rank {rank} refused {count} one-sided operations, the first because {refusal}")]
    Refused {
        /// The owner of the region.
        rank: usize,
        /// Why the first operation was refused.
        refusal: Refusal,
        /// The number of refused operations.
        count: u64,
    },
    /// This process has no such region.
    #[error("no such region: it was unexposed, or never exposed")]
    Region,
    /// Another region of this process has the key.
    #[error("another region is exposed with the key {key:#x}: unexpose it first, or choose another key")]
    KeyInUse {
        /// The key.
        key: u64,
    },
    /// Too many regions are exposed.
    #[error("{most} regions are exposed, and no more are allowed: unexpose some")]
    Regions {
        /// The limit.
        most: usize,
    },
    /// A list of segments is invalid.
    #[error(
        "invalid list of segments: a segment has no address, or the total length exceeds the address space"
    )]
    List,
    /// The other ranks have agreed that this process is gone: one of them disconnected from it.
    #[error("the other ranks have agreed that this one is gone, and continue without it")]
    Excluded,
    /// The matching context is reserved.
    #[error("contexts 65534 and 65535 are reserved, for barriers and agreements: use another one")]
    Context,
    /// The rank has not failed, or was not started again yet.
    #[error(
        "rank {rank} cannot be readmitted: it has not failed, or its new process has not come yet; see \
         Endpoint::restarted"
    )]
    NotRestarted {
        /// The rank.
        rank: usize,
    },
    /// An agreement, or a barrier, was interrupted by an error and is still under way.
    #[error("an agreement or a barrier is under way: repeat that call, with its members, until it is done")]
    AgreementUnderWay,
    /// A list of members is invalid.
    #[error(
        "the members of a collective call must be ranks in rising order, or a group without a process twice; this \
         process must be one of them"
    )]
    Members,
    /// The endpoint was opened alone, so its peers have no order.
    #[error(
        "this endpoint was opened alone and has no world: name the members of this call by Endpoint::among_peers"
    )]
    NoWorld,
    /// An address cannot be used.
    #[error("cannot connect: {problem}")]
    Address {
        /// The problem, and the remedy.
        problem: String,
    },
    /// The process of an address runs on another machine, and one of both takes no part in the network.
    #[error("cannot connect: {problem}")]
    Apart {
        /// The problem, and the remedy.
        problem: String,
    },
    /// A peer cannot be connected with, or does not exist.
    #[error("{0}")]
    NoPeer(#[from] nemesia_core::peers::PeerError),
    /// There is no memory for the credit of another peer.
    #[error(
        "no memory for another connection: {0}; raise NEMESIA_UNEXPECTED_BYTES, or disconnect from a peer"
    )]
    Unpaid(nemesia_core::flow::CeilingError),
    /// This process was forked from the process that opened the endpoint. Only that process can use it.
    #[error(
        "this process is a forked child, and the endpoint belongs to the process that opened it: open another one here"
    )]
    Forked,
    /// The request was withdrawn.
    #[error("the receive was cancelled")]
    Cancelled,
    /// The request was completed before, or it never existed.
    #[error("no such request: it was completed before, or never started")]
    Stale,
    /// The wait has reached its time limit. The request is still under way.
    #[error("the operation was not complete within {0:?}: it is still under way")]
    Timeout(std::time::Duration),
}

/// Returns the part of a message about a peer that has failed.
fn ending(failure: Failure, reason: Option<&str>) -> String {
    match (failure, reason) {
        (Failure::Unreachable, Some(reason)) => format!("cannot be connected with: {reason}"),
        (Failure::Unreachable, None) => "cannot be connected with: it refuses, or does not answer".into(),
        // The peer has done nothing wrong.
        (Failure::Fault(PortFault::Lost(LostError::Buffer)), _) => format!("was given up: {failure}"),
        (failure, _) => format!("is gone: {failure}"),
    }
}

/// Returns the part of a message about memory that could not be reserved.
fn lacking(reserved: Option<usize>) -> String {
    reserved.map_or_else(String::new, |bytes| format!(", of which only {bytes} could be reserved"))
}

const fn remedy(reserved: Option<usize>) -> &'static str {
    match reserved {
        Some(_) => "give this process more memory",
        None => "raise NEMESIA_UNEXPECTED_BYTES, or NEMESIA_UNEXPECTED_LIMIT, up to which it grows",
    }
}

/// Makes `Debug` of an error equal to `Display`. `main` and `unwrap` print `Debug`, and the reader needs the line that
/// names peer and remedy.
macro_rules! debug_is_display {
    ($($error:ty),+) => {
        $(impl fmt::Debug for $error {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        })+
    };
}

debug_is_display!(
    Error,
    ConfigError,
    ShmError,
    BootstrapError,
    LaunchError,
    WireError,
    crate::verbs::VerbsError,
    crate::verbs::InfoError,
    crate::regcache::MappingError
);

impl From<CompletionError> for Error {
    fn from(completion_error: CompletionError) -> Self {
        match completion_error {
            CompletionError::Truncated(truncation) => Error::Truncated(truncation),
            CompletionError::PeerFailed { peer, failure } => {
                Error::PeerFailed { rank: peer as usize, failure, reason: None }
            }
            CompletionError::Refused { peer, refusal, count } => {
                Error::Refused { rank: peer as usize, refusal, count }
            }
            CompletionError::Cancelled => Error::Cancelled,
            CompletionError::Stale => Error::Stale,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_is_not_called_gone_that_was_not_reached_or_that_a_buffer_of_this_process_has_cost() {
        let text = |failure, reason: Option<&str>| {
            Error::PeerFailed { rank: 3, failure, reason: reason.map(Into::into) }.to_string()
        };
        assert_eq!(text(Failure::Died, Some("no reason")), "rank 3 is gone: its process died");
        let buffer = text(Failure::Fault(PortFault::Lost(LostError::Buffer)), None);
        assert!(
            buffer.starts_with("rank 3 was given up: ") && buffer.contains("a buffer of a call"),
            "{buffer}"
        );
        let unreached = text(Failure::Unreachable, Some("it has another key"));
        assert_eq!(unreached, "rank 3 cannot be connected with: it has another key");
    }

    #[test]
    fn debug_of_an_error_is_its_one_line() {
        let errors = [
            Error::PeerFailed { rank: 3, failure: Failure::Died, reason: None },
            crate::Config::default().set("NEMESIA_CELS", "1").unwrap_err().into(),
            Error::Bootstrap(BootstrapError::NoRestart),
            Error::Timeout(std::time::Duration::from_secs(1)),
        ];
        for error in errors {
            let (debug, display) = (format!("{error:?}"), error.to_string());
            assert_eq!(debug, display);
            assert_eq!(display.lines().count(), 1, "{display}");
        }
        let verbs = crate::verbs::VerbsError::NoDevice { why: "there is none".into() };
        assert_eq!(format!("{verbs:?}"), verbs.to_string());
        let launch = LaunchError::NoProcesses;
        assert_eq!(format!("{launch:?}"), launch.to_string());
    }
}
