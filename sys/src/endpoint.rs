//! An endpoint: a process's place in its world.

mod active;
mod agree;
mod barrier;
mod context;
mod counters;
mod direct;
mod end;
mod event;
mod list;
mod now;
mod one_sided;
mod probe;
mod restart;
mod rma;
mod scope;
mod shared;
#[cfg(test)]
mod tests;
mod trace;
mod wait;

use std::sync::Arc;
use std::time::{Duration, Instant};

use nemesia_core::engine::rma::{ExposedRegion as Exposure, Reply, WINDOW};
use nemesia_core::engine::{
    Engine, Lent, Peer, Request as Operation, RequestId, StartError, Storage, Tuning,
};
use nemesia_core::matching::{Pattern, Source as CoreSource};
use nemesia_core::payload::{RecvBuf, SendBuf};
use nemesia_core::port::MessagePort as _;
use nemesia_core::slab::{List, Slot};
use nemesia_core::store::{self, Unit};

pub use active::Incoming;
pub use agree::{Agreed, Ranking};
pub use context::Context;
pub use counters::{Counters, EngineCounters, PeerCounters, WaitCounters};
pub use direct::Path;
pub use event::Arm;
pub use one_sided::Value;
pub use probe::Message;
pub use rma::{Access, Datatype, KEY_BYTES, Reduction, Refusal, Region, RemoteKey};
pub use scope::{Pending, Scope, ScopeContext};
pub use shared::{LockedEndpoint, SharedEndpoint};
pub(crate) use trace::RECORD_BYTES;

use crate::bootstrap::{Bootstrap, Exchange};
use crate::config::Config;
use crate::error::Error;
use crate::events;
use crate::os::{Departure, ProcessOrigin, limits};
use crate::route::{self, Explanation, Facts};
use crate::shm::{self, Attached, Port, RejoinListener};
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
    allocations: Vec<rma::Allocation>,
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
    origin: Arc<ProcessOrigin>,
}

impl Endpoint {
    /// Joins the world that the launcher describes; without a launcher, a world of one.
    ///
    /// # Errors
    /// What failed, on which rank, and the remedy.
    pub fn open(config: &Config) -> Result<Self, Error> {
        Self::open_with(config, Box::new(Bootstrap::from_env()?))
    }

    /// Joins a world through the caller's own key-value exchange. Collective: every process of the world calls it.
    ///
    /// # Errors
    /// What failed, on which rank, and the remedy.
    pub fn open_with(config: &Config, mut exchange: Box<dyn Exchange + Send>) -> Result<Self, Error> {
        // Asked once: another answer later would not fit what is made from these.
        let (rank, size) = (exchange.rank(), exchange.size());
        if rank >= size {
            return Err(Error::Rank { rank, last: size.saturating_sub(1) });
        }
        let _inside = events::open(rank, size);
        let mut warnings = Vec::new();
        for preference in config.warnings() {
            config.give_up(preference, &mut warnings)?;
        }
        // Before anybody is met: what can't be had here must not end their world.
        let (units, stored) = room(config.unexpected_bytes)?;
        let ranks = (u32::try_from(rank).unwrap_or(u32::MAX), u32::try_from(size).unwrap_or(u32::MAX));
        let attached = shm::attach(config, exchange.as_mut(), ranks)?;
        let Attached { port, sleep, watch, fence, load, facts, warnings: remarks, stamp, .. } = attached;
        warnings.extend(remarks);
        let lent = Lent::<Heap> {
            requests: filled(FIRST_REQUESTS.min(config.requests)),
            peers: filled(size),
            units,
            stored,
            posted: vec![List::new(); FIRST_REQUESTS],
            regions: Vec::new(),
            replies: filled(size.saturating_sub(1) * WINDOW as usize),
            handlers: active::Dispatch::new(port.packet_bytes()),
            trace: trace::recorder(config),
        };
        let window = (config.credit_bytes / store::UNIT) as u32;
        let non_temporal_bytes = config.non_temporal_from();
        let tuning = tuning(config, window, non_temporal_bytes);
        let engine = Engine::new(rank as u32, port, tuning, lent).map_err(crate::ConfigError::from)?;
        let waiter = Waiter::new(config, load, sleep, watch, fence);
        let mut endpoint = Self {
            engine,
            waiter,
            agreements: Agreements::default(),
            exchange: Some(exchange),
            leaving: Vec::new(),
            allocations: Vec::new(),
            direct: direct::Direct::default(),
            non_temporal_bytes,
            operations: 0,
            dropped: Arc::new(Dropped::new(Arc::clone(&attached.origin))),
            discarding: Vec::new(),
            finished: false,
            config: config.clone(),
            warnings,
            turns: 0,
            liveness_checked: Instant::now(),
            facts,
            rejoin: attached.rejoin,
            incarnations: vec![0; size],
            stamp,
            origin: attached.origin,
        };
        endpoint.incarnations[rank] = endpoint.rejoin.incarnation();
        endpoint.begin_without(&attached.gone);
        endpoint.report_routes();
        if config.explain {
            route::say(&endpoint.explain());
        }
        Ok(endpoint)
    }

    /// Our rank, from 0.
    pub fn rank(&self) -> usize {
        self.engine.rank() as usize
    }

    /// Processes in the world.
    pub fn size(&self) -> usize {
        self.engine.size() as usize
    }

    /// Remarks on what was asked for and could not be had: huge pages that were to be tried, seals, cheap fences,
    /// variables that do not exist. In strict mode all but the first are errors at start.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// How each rank is reached, what is used with it, and why what is not used was refused.
    pub fn explain(&self) -> Explanation {
        let route = |rank| {
            let pulls = self.engine.port().can_pull(rank as u32);
            self.facts.route(&self.config, (self.rank(), rank), pulls, self.failure(rank))
        };
        Explanation {
            rank: self.rank(),
            routes: (0..self.size()).map(route).collect(),
            warnings: self.warnings.clone(),
        }
    }

    /// Tells how each rank is reached to whoever listens (feature `tracing`).
    fn report_routes(&self) {
        if cfg!(feature = "tracing") {
            let explanation = self.explain();
            explanation.routes.iter().for_each(events::route);
            explanation.warnings.iter().for_each(|warning| events::warning(warning));
        }
    }

    /// Why a rank is gone, if it is.
    pub fn failure(&self, rank: usize) -> Option<crate::Failure> {
        self.engine.failure(u32::try_from(rank).ok()?)
    }

    /// The caller knows of the peers that have failed so far: receives from any source can be posted again.
    pub fn acknowledge_failures(&mut self) {
        self.engine.acknowledge();
    }

    /// Sends a message and waits until its bytes have left the buffer. A message of up to NEMESIA_EAGER_BYTES leaves as
    /// long as the receiver has room for it; others when a receive has matched them.
    ///
    /// # Errors
    /// See [`Error`].
    #[inline]
    pub fn send(&mut self, to: usize, tag: u64, bytes: &[u8]) -> Result<(), Error> {
        self.in_context(0).send(to, tag, bytes)
    }

    /// Receives the first message that matches, and waits for it.
    ///
    /// # Errors
    /// See [`Error`]. A message longer than `buf` is [`Error::Truncated`]; what fits is received.
    #[inline]
    pub fn recv(&mut self, from: Source, tag: Tag, buf: &mut [u8]) -> Result<Status, Error> {
        self.in_context(0).recv(from, tag, buf)
    }

    /// Starts a send of `len` bytes at `base`; [`Endpoint::test`] or [`Endpoint::wait`] completes it. For runtimes;
    /// see [`Endpoint::scope`] for a safe way.
    ///
    /// # Errors
    /// See [`Error`]; nothing was sent.
    ///
    /// # Safety
    /// The bytes stay readable and unchanged until the request is complete or the endpoint is dropped.
    #[inline]
    pub unsafe fn isend(
        &mut self,
        to: usize,
        tag: u64,
        base: *const u8,
        len: usize,
    ) -> Result<Request, Error> {
        // SAFETY: the caller's promise.
        unsafe { self.in_context(0).isend(to, tag, base, len) }
    }

    /// Posts a receive into `len` bytes at `base`; [`Endpoint::test`] or [`Endpoint::wait`] completes it. For
    /// runtimes; see [`Endpoint::scope`] for a safe way.
    ///
    /// # Errors
    /// See [`Error`]; nothing was posted.
    ///
    /// # Safety
    /// The bytes are initialised, and no reference to them is used until the request is complete or the endpoint is
    /// dropped. Several requests may name the same bytes; what they then hold is unspecified.
    #[inline]
    pub unsafe fn irecv(
        &mut self,
        from: Source,
        tag: Tag,
        base: *mut u8,
        len: usize,
    ) -> Result<Request, Error> {
        // SAFETY: the caller's promise.
        unsafe { self.in_context(0).irecv(from, tag, base, len) }
    }

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

    /// Whether a request is complete. Once it has said so, the request is gone.
    ///
    /// # Errors
    /// See [`Error`]; after an error the request is gone as well.
    #[inline]
    pub fn test(&mut self, request: Request) -> Result<Option<Status>, Error> {
        let done = match self.finish_now(request) {
            None => self.outcome(request).transpose()?,
            done => done,
        };
        // Whoever only tests what is complete makes progress now and then all the same.
        if done.is_some() && !self.is_progress_due() {
            return Ok(done);
        }
        self.progress();
        match done {
            None if self.is_forked() => Err(Error::Forked),
            None => self.outcome(request).transpose(),
            done => Ok(done),
        }
    }

    #[inline(never)]
    fn outcome(&mut self, request: Request) -> Option<Result<Status, Error>> {
        let outcome = self.engine.try_finish(request.0)?;
        Some(outcome.map(status).map_err(Error::from))
    }

    /// Waits until a request is complete: spins, then sleeps.
    ///
    /// # Errors
    /// See [`Error`]. [`Error::Unexpected`] leaves the request as it is: it can be waited for again.
    #[inline]
    pub fn wait(&mut self, request: Request) -> Result<Status, Error> {
        self.wait_limited(request, None)
    }

    /// As [`Endpoint::wait`], for at most this long.
    ///
    /// # Errors
    /// [`Error::Timeout`] leaves the request as it is: it can be waited for again.
    pub fn wait_timeout(&mut self, request: Request, limit: Duration) -> Result<Status, Error> {
        self.wait_limited(request, Some(limit))
    }

    /// Withdraws a posted receive. False when a message has matched it already, or it is a send.
    ///
    /// The request remains and completes with [`Error::Cancelled`]; its buffer is free at once.
    pub fn cancel(&mut self, request: Request) -> bool {
        self.engine.cancel(request.0)
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

const fn tuning(config: &Config, window: u32, non_temporal_bytes: u64) -> Tuning {
    Tuning {
        eager_bytes: config.eager_bytes,
        window,
        assist_bytes: match config.assist_bytes {
            Some(bytes) => bytes,
            None => u64::MAX,
        },
        non_temporal_bytes,
        pull_bytes: config.pull_bytes,
        run_bytes: config.run_bytes,
    }
}

/// Room for unexpected messages, and the lists that find them: together no more than so many bytes, zeroed by the
/// kernel and committed as they are used.
fn room(bytes: usize) -> Result<(Vec<Unit>, Vec<u32>), Error> {
    let refused = || Error::from(crate::ConfigError::TooLarge { name: "NEMESIA_UNEXPECTED_BYTES", bytes });
    limits::require_address_space(bytes)?;
    if limits::available_memory().is_some_and(|available| bytes as u64 > available.bytes) {
        return Err(refused());
    }
    let (units, lists) = store::split(bytes);
    // Nothing is touched yet: the allocator can only fail for want of addresses.
    Vec::<Unit>::new().try_reserve_exact(units).map_err(|_| refused())?;
    Ok((vec![[0; store::UNIT]; units], vec![0; lists]))
}

fn filled<T: Default>(len: usize) -> Vec<T> {
    std::iter::repeat_with(T::default).take(len).collect()
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
