//! An endpoint: a process's place in its world.

// Rustdoc shows the methods of `Endpoint` in the order of these modules, which is the order of use. rustfmt sorts the
// modules of a group, so the groups stay separate.
mod open;

mod message;

mod request;

mod now;
mod scope;

mod context;
mod probe;

mod list;

mod active;

mod region;

mod one_sided;
mod rma;

mod direct;

mod barrier;

mod agree;
mod restart;

mod event;
mod shared;

mod counters;
mod trace;

mod end;
#[cfg(test)]
mod tests;
mod wait;

use std::sync::Arc;
use std::time::Instant;

use nemesia_core::engine::rma::{ExposedRegion as Exposure, Reply};
use nemesia_core::engine::{Engine, Peer, Request as Operation, RequestId, StartError, Storage};
use nemesia_core::matching::{Pattern, Source as CoreSource};
use nemesia_core::payload::{RecvBuf, SendBuf};
use nemesia_core::slab::{List, Slot};
use nemesia_core::store::Unit;

pub use active::Incoming;
pub use agree::{Agreed, Ranking};
pub use context::Context;
pub use counters::{Counters, EngineCounters, PeerCounters, WaitCounters};
pub use direct::Path;
pub use event::Arm;
pub use one_sided::Value;
pub use probe::Message;
pub use region::{KEY_BYTES, Region, RemoteKey};
pub use rma::{Access, Datatype, Reduction, Refusal};
pub use scope::{Pending, Scope, ScopeContext};
pub use shared::{LockedEndpoint, SharedEndpoint};
pub(crate) use trace::RECORD_BYTES;

use crate::bootstrap::Exchange;
use crate::config::Config;
use crate::error::Error;
use crate::os::{Departure, Origin};
use crate::route::Facts;
use crate::shm::{Port, RejoinListener};
use agree::Agreements;
use barrier::free_context;
use probe::Dropped;
use wait::Waiter;

/// Requests for which there is room at start; more are made room for as needed.
pub(crate) const FIRST_REQUESTS: usize = 1024;

/// Whom a receive listens to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// Everyone, ourselves included.
    Any,
    /// One rank.
    Rank(usize),
}

/// Which tags a receive accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tag {
    /// Every tag.
    Any,
    /// This one.
    Exactly(u64),
    /// Those that agree with `value` in every bit that `ignore` does not set.
    Masked {
        /// The tag.
        value: u64,
        /// Bits that do not count.
        ignore: u64,
    },
}

/// What came of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    /// Receive: who sent it. Send: unspecified.
    pub rank: usize,
    /// The message's tag. Send: unspecified.
    pub tag: u64,
    /// Bytes moved.
    pub len: usize,
}

/// A non-blocking operation, by value; [`Endpoint::test`] and [`Endpoint::wait`] complete it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use = "an operation that is never waited for keeps its buffer in use and its slot taken"]
pub struct Request(RequestId);

impl Request {
    /// One that is complete.
    const DONE: Self = Self(RequestId::SENT);

    /// As one number, for C.
    pub const fn to_bits(self) -> u64 {
        self.0.to_bits()
    }

    /// Whether this was complete when it started, as most sends are: there is nothing to wait for.
    pub fn is_complete(self) -> bool {
        self.0 == RequestId::SENT
    }

    /// The inverse of [`Request::to_bits`]. Any number is safe: one that names no request gives [`Error::Stale`].
    pub const fn from_bits(bits: u64) -> Self {
        Self(RequestId::from_bits(bits))
    }
}

/// When a send is complete.
#[derive(Clone, Copy, Debug)]
enum Mode {
    /// When the buffer is the caller's again.
    Standard,
    /// The same; [`Endpoint::send_now`] has refused it, and it is not tried again before it is queued.
    Queued,
    /// When a receive has matched it, too.
    Synchronous,
}

#[derive(Debug)]
struct Heap;

impl Storage for Heap {
    type Requests = Vec<Slot<Operation>>;
    type Peers = Vec<Peer>;
    type Units = Vec<Unit>;
    type Stored = Vec<u32>;
    type Buckets = Vec<List>;
    type Regions = Vec<Slot<Exposure>>;
    type Replies = Vec<Slot<Reply>>;
    type Handlers = active::Dispatch;
    type Trace = trace::Recorder;
}

/// A process's place in its world: sends and receives tagged messages.
///
/// Used by one thread at a time; it may move between threads. Only [`Endpoint::close`] is a finish. Dropping the
/// endpoint otherwise, by a panic or by `?`, is a failure: its peers see [`Failure::Dropped`](crate::Failure::Dropped),
/// and sends that have not left yet are lost.
///
/// It belongs to the process that opened it. In a child that this forks it is dead: each call that would do something
/// returns [`Error::Forked`], and dropping it does nothing to the parent, its peers or its launcher.
pub struct Endpoint {
    // The engine's port keeps what it points into: see `shm/views.rs`.
    engine: Engine<Port, Heap>,
    waiter: Waiter,
    /// Holds buffers that the engine uses.
    agreements: Agreements,
    exchange: Option<Box<dyn Exchange + Send>>,
    /// Peers that are gone, and whose last messages may still be on the way; and how often they were looked for.
    leaving: Vec<(usize, Departure, u32)>,
    /// Regions that were allocated; the engine points into them.
    allocations: Vec<region::Allocation>,
    /// Regions of peers that are mapped here.
    direct: direct::Direct,
    /// From how many bytes on copies to and from them go past the caches.
    non_temporal_bytes: u64,
    /// Blocking one-sided operations so far.
    operations: u32,
    /// Messages taken out by a matched probe, and dropped instead of received.
    dropped: Arc<Dropped>,
    /// Those of them that are being received into no room.
    discarding: Vec<RequestId>,
    /// It was closed, and all its sends were flushed.
    finished: bool,
    config: Config,
    warnings: Vec<String>,
    /// Polls and packets since the last look at the clock.
    turns: u32,
    /// When the peers' lives were last looked at.
    liveness_checked: Instant,
    /// What the peers are like; for [`Endpoint::explain`].
    facts: Facts,
    /// Where processes that were started again call, and those that this one has called.
    rejoin: RejoinListener,
    /// Of each rank.
    incarnations: Vec<u64>,
    /// By which the peers that read our memory know us.
    stamp: Box<u64>,
    /// The process that opened this. In a child that it forks the segments are not mapped, and the endpoint is dead.
    origin: Arc<Origin>,
}

impl Endpoint {
    /// Whether this process was forked from the one that opened the endpoint.
    #[inline(always)]
    fn is_forked(&self) -> bool {
        self.origin.is_elsewhere()
    }

    /// # Errors
    /// [`Error::Forked`].
    #[inline(always)]
    fn check_origin(&self) -> Result<(), Error> {
        if self.is_forked() { Err(Error::Forked) } else { Ok(()) }
    }

    /// Starts a send, when there is room; an error means that the buffer is not used.
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
            // SAFETY: the promise of `buf`'s maker covers each attempt: one that failed has not kept the buffer.
            let buf = unsafe { buf.again() };
            let started = match mode {
                // Whoever is in a hurry with a word has tried it.
                Mode::Standard => self.engine.isend_any(to, context, tag, buf),
                Mode::Queued => self.engine.isend_queued(to, context, tag, buf),
                Mode::Synchronous => self.engine.issend(to, context, tag, buf),
            };
            match started {
                Ok(id) => return Ok(Request(id)),
                Err(error) => self.make_room(error)?,
            }
        }
    }

    /// Posts a receive, when there is room; an error means that the buffer is not used.
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
        Some(outcome.map(status).map_err(Error::from))
    }

    /// Makes the storage of requests grow up to its ceiling, or says why a request could not be started.
    #[cold]
    fn make_room(&mut self, error: StartError) -> Result<(), Error> {
        match error {
            StartError::Requests { capacity } if capacity < self.config.requests => {
                let more = (2 * capacity).min(self.config.requests);
                self.engine.requests_mut().resize_with(more, Slot::default);
                // As many lists as requests: finding a posted receive does not take longer as they grow.
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
            StartError::PeerFailed { peer, failure } => {
                Err(Error::PeerFailed { rank: peer as usize, failure })
            }
        }
    }

    fn ceiling(&self) -> Error {
        Error::Unexpected {
            messages: self.engine.unexpected_messages(),
            ceiling: self.config.unexpected_bytes,
            held: self.engine.held_peers(),
        }
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

/// # Errors
/// As [`free_context`].
#[inline(always)]
fn pattern(from: Source, context: u16, tag: Tag) -> Result<Pattern, Error> {
    let context = free_context(context)?;
    let source = match from {
        Source::Any => CoreSource::Any,
        Source::Rank(rank) => CoreSource::Rank(u32::try_from(rank).unwrap_or(u32::MAX)),
    };
    let (tag, ignore) = match tag {
        Tag::Any => (0, u64::MAX),
        Tag::Exactly(tag) => (tag, 0),
        Tag::Masked { value, ignore } => (value, ignore),
    };
    Ok(Pattern { source, context, tag, ignore })
}

fn status(status: nemesia_core::engine::Status) -> Status {
    Status { rank: status.peer as usize, tag: status.tag, len: status.len }
}
