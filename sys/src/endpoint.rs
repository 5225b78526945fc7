//! The endpoint: the place of one process in its world.
//!
//! It owns an engine, the memory that the engine is lent, and the means to wait. Its methods are divided by their
//! purpose. The page of a room says what its files hold.
//!
//! | room | contents |
//! |---|---|
//! | `endpoint/open.rs` | opening and closing; the ports of an endpoint |
//! | `endpoint/peers.rs` | the peers of an endpoint that was opened alone |
//! | `endpoint/message.rs` | messages: blocking, by request, in scopes, in contexts; probes, lists of buffers |
//! | `endpoint/buffer.rs` | memory that peers can map |
//! | `endpoint/active.rs` | active messages: handlers and their replies |
//! | `endpoint/one_sided.rs` | regions, and one-sided operations on them |
//! | `endpoint/completion.rs` | the completion queue; many requests at once |
//! | `endpoint/group.rs` | calls of all ranks: barrier, agreement, restart |
//! | `endpoint/wait.rs` | progress, waiting, sleeping; event loops |
//! | `endpoint/shared.rs` | one endpoint for several threads |
//! | `endpoint/multi.rs` | buffers that receive one message after the other |
//! | `endpoint/asynchronous.rs` | operations as futures, which own their buffers |
//! | `endpoint/observe.rs` | counters, routes, the call tree |
//!
//! This file has the types that all of them use, and the start of a request.

// Rustdoc lists the methods of `Endpoint` in the order of these modules, which is the order of use. rustfmt sorts the
// modules within a group, so blank lines separate the groups.
mod open;

mod peers;

mod message;

mod buffer;

mod active;

mod one_sided;

mod completion;

mod multi;

mod reserved;

mod group;

mod wait;

mod shared;

mod asynchronous;

mod observe;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use nemesia_core::engine::rma::{ExposedRegion as Exposure, Reply};
use nemesia_core::engine::{
    CompletionError, Engine, Failure, Peer, PeerSelection, Request as Operation, RequestId, SendOptions,
    StartError, Storage,
};
use nemesia_core::matching::{Pattern, Source as CoreSource};
use nemesia_core::payload::{RecvBuf, SendBuf};
use nemesia_core::slab::{List, Slot};
use nemesia_core::store::UNIT;

pub use nemesia_core::engine::rma::{
    Access, Addressing, Comparison, CompleteAt, Datatype, Reduction, Refusal,
};

pub use active::Incoming;
pub use asynchronous::{AsyncEndpoint, AsyncTransfer};
pub use buffer::MessageBuffer;
pub use completion::{Completion, EndedRequest, RequestPlace, StartedOperation, WithCompletion};
pub use group::{Agreed, Among, AmongPeers, Ranking};
pub use message::{Context, Message, Pending, RecvOp, Scope, ScopeContext, ScopeLoan, SendOp};
pub use observe::{Counters, EngineCounters, PeerCounters, RegistrationCounters, WaitCounters};
pub use one_sided::{ExposeOptions, KEY_BYTES, Path, Region, RemoteKey, Value};
pub use shared::{LockedEndpoint, SharedEndpoint};
pub use wait::Arm;

use crate::bootstrap::Exchange;
use crate::config::Config;
use crate::error::Error;
use crate::os::{Departure, ProcessOrigin};
use crate::route::Facts;
use crate::shm::LocalProcess;
use group::Agreements;
use message::Dropped;
use one_sided::Direct;
use open::{Ports, UnexpectedMemory};
use peers::PeerTable;
pub use peers::{Meeting, PeerGroup};
use reserved::free_context;
use wait::Waiter;

/// The senders whose messages a receive accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// Every rank, this one included.
    Any,
    /// One rank.
    Rank(usize),
}

impl Tag {
    /// Returns the tag and the bits of it that are ignored.
    #[inline(always)]
    const fn parts(self) -> (u64, u64) {
        match self {
            Self::Any => (0, u64::MAX),
            Self::Exactly(tag) => (tag, 0),
            Self::Masked { value, ignore } => (value, ignore),
        }
    }

    #[inline(always)]
    const fn accepts(self, tag: u64) -> bool {
        let (value, ignore) = self.parts();
        (value ^ tag) & !ignore == 0
    }
}

impl Source {
    /// Returns the rank, if there is only one.
    #[inline(always)]
    const fn rank(self) -> Option<usize> {
        match self {
            Self::Any => None,
            Self::Rank(rank) => Some(rank),
        }
    }
}

/// The tags that a receive accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tag {
    /// Every tag.
    Any,
    /// This tag only.
    Exactly(u64),
    /// Every tag that equals `value` in all bits that `ignore` does not set.
    Masked {
        /// The tag.
        value: u64,
        /// The bits that are not compared.
        ignore: u64,
    },
}

/// The result of a completed operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    /// The sender, for a receive. Unspecified for a send.
    pub rank: usize,
    /// The message's tag, for a receive. Unspecified for a send.
    pub tag: u64,
    /// The number of bytes moved.
    pub len: usize,
    /// The immediate data that the sender attached to the message, for a receive or a probe; `None` if there is none.
    pub immediate: Option<u64>,
}

/// A non-blocking operation, by value. [`Endpoint::test`] and [`Endpoint::wait`] complete it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use = "an operation that is never waited for keeps its buffer in use and its slot taken"]
pub struct Request(RequestId);

impl Request {
    /// A request that is complete.
    const DONE: Self = Self(RequestId::SENT);

    /// Returns the request as one number, for C.
    pub const fn to_bits(self) -> u64 {
        self.0.to_bits()
    }

    /// Returns whether this request was complete when it started, as most sends are. There is then nothing to wait for.
    pub fn is_complete(self) -> bool {
        self.0 == RequestId::SENT
    }

    /// Returns the request that [`Request::to_bits`] made into this number. Any number is safe: if it names no request,
    /// calls return [`Error::Stale`].
    pub const fn from_bits(bits: u64) -> Self {
        Self(RequestId::from_bits(bits))
    }
}

/// The moment at which a send is complete.
#[derive(Clone, Copy, Debug)]
enum Mode {
    /// When the buffer belongs to the caller again.
    Standard,
    /// As `Standard`, for a message that [`Endpoint::send_now`] has refused. The message goes to the queue without
    /// another attempt.
    Queued,
    /// As the options say.
    With(SendOptions),
}

#[derive(Debug)]
struct Heap;

impl Storage for Heap {
    type Requests = Vec<Slot<Operation>>;
    type Peers = Vec<Peer>;
    type Units = UnexpectedMemory;
    type Stored = Vec<u32>;
    type Buckets = Vec<List>;
    type Regions = Vec<Slot<Exposure>>;
    type Replies = Vec<Slot<Reply>>;
    type Selections = Vec<PeerSelection>;
    type Handlers = active::Dispatch;
    type Trace = observe::Recorder;
}

/// The place of one process in its world: it exchanges messages with all other ranks.
///
/// One thread uses an endpoint at a time; the endpoint may move between threads. [`Endpoint::into_shared`] makes one
/// that several threads use.
///
/// Only [`Endpoint::close`] is a normal end. If an endpoint is dropped otherwise, by a panic or by `?`, its peers see a
/// failure, [`Failure::Dropped`](crate::Failure::Dropped). Sends that have not left this process are then lost.
///
/// The endpoint belongs to the process that opened it. In a child made by `fork` it is dead. There, each call that
/// would do something returns [`Error::Forked`], and the drop does nothing to the parent, its peers or its launcher.
///
/// The methods below are in the order of use: opening and closing, blocking messages, non-blocking requests,
/// scopes, matching contexts, probes, the general form, active messages, one-sided operations, the completion queue,
/// barrier and agreement, restart, event loops, several threads, futures, observation.
pub struct Endpoint {
    // The engine's port owns the memory that the engine points into: see `shm/views.rs`.
    engine: Engine<Ports, Heap>,
    waiter: Waiter,
    /// The agreement and the barrier under way. They own buffers that the engine uses.
    agreements: Agreements,
    exchange: Option<Box<dyn Exchange + Send>>,
    /// The peers of an endpoint that was opened alone.
    peers: Option<Box<PeerTable>>,
    /// The peers that are gone and whose last messages may not have been read, with the number of attempts to read
    /// these.
    leaving: Vec<(usize, Departure, u32)>,
    /// The regions that this endpoint allocated. The engine points into them.
    allocations: Vec<(Region, buffer::Allocation)>,
    /// The buffers of [`Endpoint::receive_many`]. The engine points into them.
    buffers: Vec<multi::OwnedBuffer>,
    /// The memory of regions that were unexposed while messages used it.
    retired: Vec<buffer::Allocation>,
    /// The order of one-sided operations on both paths.
    direct: Direct,
    /// The number of bytes from which copies to and from these regions are non-temporal.
    non_temporal_bytes: u64,
    /// The number of blocking one-sided operations so far.
    operations: u32,
    /// The messages that a matched probe took out and that were dropped instead of received.
    dropped: Arc<Dropped>,
    /// Those of the dropped messages that the engine is receiving into an empty buffer.
    discarding: Vec<RequestId>,
    /// `close` has flushed all sends.
    finished: bool,
    config: Config,
    warnings: Vec<String>,
    /// Why ranks cannot be connected with ([`Endpoint::with_reason`]).
    unreached: BTreeMap<usize, Box<str>>,
    /// The number of polls and packets since the clock was last read.
    turns: u32,
    /// The time of the last liveness check.
    liveness_checked: Instant,
    /// The facts about the peers, for [`Endpoint::explain`].
    facts: Facts,
    /// This process, as others of its machine connect with it.
    here: LocalProcess,
    /// The incarnation of each rank.
    incarnations: Vec<u64>,
    /// The identity stamp of this process. Peers that read its memory check it.
    stamp: Box<u64>,
    /// The process that opened this endpoint. A child that it forks has no segments mapped, and the endpoint is dead
    /// there.
    origin: Arc<ProcessOrigin>,
}

impl Endpoint {
    /// Returns whether this process was forked from the process that opened the endpoint.
    #[inline(always)]
    fn is_forked(&self) -> bool {
        self.origin.is_elsewhere()
    }

    /// Fails in a forked child.
    ///
    /// # Errors
    /// [`Error::Forked`].
    #[inline(always)]
    fn check_origin(&self) -> Result<(), Error> {
        if self.is_forked() { Err(Error::Forked) } else { Ok(()) }
    }

    /// Starts a send once there is room for its request. After an error the engine does not use the buffer.
    #[inline]
    #[expect(clippy::needless_pass_by_value, reason = "the caller has no use of the buffer after this")]
    fn start(
        &mut self,
        to: usize,
        context: u16,
        tag: u64,
        buf: SendBuf,
        mode: Mode,
    ) -> Result<Request, Error> {
        self.check_origin()?;
        let to = u32::try_from(to).unwrap_or(u32::MAX);
        loop {
            // SAFETY: the promise of `buf`'s maker covers each attempt, since a failed attempt has not kept the buffer.
            let buf = unsafe { buf.again() };
            let started = match mode {
                // The fast path of messages of one word has failed before this call.
                Mode::Standard => self.engine.isend_any(to, context, tag, buf),
                Mode::Queued => self.engine.isend_queued(to, context, tag, buf),
                Mode::With(options) => self.engine.isend_with(to, context, tag, buf, options),
            };
            match started {
                Ok(id) => return Ok(Request(id)),
                Err(error) => self.make_room(error)?,
            }
        }
    }

    /// Posts a receive once there is room for its request. After an error the engine does not use the buffer.
    #[inline]
    fn post(&mut self, pattern: Pattern, mut buf: RecvBuf) -> Result<Request, Error> {
        self.check_origin()?;
        loop {
            match self.engine.irecv(pattern, &mut buf) {
                Ok(id) => return Ok(Request(id)),
                Err(error) => self.make_room(error)?,
            }
        }
    }

    #[inline(never)]
    fn outcome(&mut self, request: Request) -> Option<Result<Status, Error>> {
        let outcome = self.engine.try_finish(request.0)?;
        Some(outcome.map(status).map_err(|error| self.error_of(error)))
    }

    /// Returns the outcome of a request if it is complete, for a caller that has just polled.
    #[inline]
    fn outcome_without_poll(&mut self, request: Request) -> Result<Option<Status>, Error> {
        match self.engine.test(request.0) {
            Some(outcome) => outcome.map(|it| Some(status(it))).map_err(|error| self.error_of(error)),
            None => Ok(None),
        }
    }

    /// Grows the storage of requests up to its limit, or returns the reason why a request could not start.
    #[cold]
    fn make_room(&mut self, error: StartError) -> Result<(), Error> {
        match error {
            StartError::Requests { capacity } if capacity < self.config.requests => {
                let more = (2 * capacity).min(self.config.requests);
                self.engine.grow_requests(more - capacity);
                // There are as many lists as requests, so the time to find a posted receive does not grow with their
                // number.
                self.engine.grow_posted(|lists| lists.resize(more.next_power_of_two(), List::new()));
                Ok(())
            }
            StartError::TooLong { len, most } => Err(Error::TooLong { len, most }),
            StartError::Refused(refusal) => Err(Error::Refused { rank: self.rank(), refusal, count: 1 }),
            StartError::Region => Err(Error::Region),
            StartError::List => Err(Error::List),
            StartError::Requests { capacity } => Err(Error::Requests { capacity }),
            StartError::Rank { rank, size } => {
                Err(Error::Rank { rank: rank as usize, last: size.saturating_sub(1) as usize })
            }
            StartError::PeerFailed { peer, failure } => Err(self.peer_failed(peer as usize, failure)),
        }
    }

    /// Returns the error of a request, with what is known about its reason.
    #[cold]
    fn error_of(&self, error: CompletionError) -> Error {
        self.with_reason(error.into())
    }

    /// Returns the error of a call that needs a peer that has failed.
    #[cold]
    fn peer_failed(&self, rank: usize, failure: Failure) -> Error {
        self.with_reason(Error::PeerFailed { rank, failure, reason: None })
    }

    fn ceiling(&self) -> Error {
        Error::Unexpected {
            messages: self.engine.unexpected_messages(),
            ceiling: self.config.unexpected_bytes.max(self.config.unexpected_limit),
            held: self.engine.held_peers(),
            reserved: self.engine.lacks_memory().then(|| self.engine.committed_bytes()),
        }
    }

    /// Raises the ceiling for unexpected messages by a quarter, within the limit, if it holds back something that this
    /// process waits for. Returns whether it has.
    pub(in crate::endpoint) fn grow_unexpected(&mut self) -> bool {
        if self.engine.growth_units() == 0 || !self.engine.is_growth_due() {
            return false;
        }
        let units = (self.config.unexpected_bytes / UNIT / 4).max((1 << 20) / UNIT);
        self.engine.raise_ceiling(u32::try_from(units).unwrap_or(u32::MAX)) > 0
    }
}

impl std::fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Endpoint")
            .field("rank", &self.rank())
            .field("size", &self.size())
            .finish_non_exhaustive()
    }
}

/// Returns the pattern of a receive or a probe.
///
/// # Errors
/// As for [`free_context`].
#[inline(always)]
fn pattern(from: Source, context: u16, tag: Tag) -> Result<Pattern, Error> {
    let context = free_context(context)?;
    let source = match from {
        Source::Any => CoreSource::Any,
        Source::Rank(rank) => CoreSource::Rank(u32::try_from(rank).unwrap_or(u32::MAX)),
    };
    let (tag, ignore) = tag.parts();
    Ok(Pattern { source, context, tag, ignore })
}

fn status(status: nemesia_core::engine::Status) -> Status {
    Status { rank: status.peer as usize, tag: status.tag, len: status.len, immediate: status.immediate }
}
