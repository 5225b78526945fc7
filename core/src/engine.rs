//! The engine: tagged messages over a [`MessagePort`], non-blocking, driven by [`Engine::progress`].
//!
//! All storage is lent ([`Storage`]); no call blocks, and each does a bounded amount of work. The layer above
//! decides when to call, when to sleep, and tells when a peer has died.
//!
//! | file | what it holds |
//! |---|---|
//! | `engine/request.rs` | requests: what was asked for, and what came of it |
//! | `engine/peer.rs` | what is known of one rank; the queues of its requests |
//! | `engine/credit.rs` | who may send how much |
//! | `engine/send.rs` | starting sends; the queue of pending sends of each peer (paper 4, section 3.1) |
//! | `engine/receive.rs` | posting receives; delivering packets |
//! | `engine/probe.rs` | looking at messages that have come |
//! | `engine/lmt.rs` | large messages: rendezvous, and how their bytes move (paper 4, section 3.2) |
//! | `engine/active.rs` | active messages |
//! | `engine/rma.rs` | one-sided operations |
//! | `engine/count.rs` | counters, as they are told |
//! | `engine/progress.rs` | one turn of the crank; failures |
//! | `engine/revive.rs` | ranks that are there again |
#![forbid(unsafe_code)]

pub mod active;
mod count;
mod credit;
mod lmt;
mod peer;
mod probe;
mod progress;
mod receive;
mod request;
mod revive;
pub mod rma;
mod send;
#[cfg(test)]
mod tests;

use core::borrow::{Borrow, BorrowMut};

use active::Handlers;
use rma::{Region, Regions, Reply};

pub use peer::Peer;
pub use progress::{PACKETS_A_TURN, Progress};
pub use receive::Bypass;
pub use request::{Failure, Fate, Outcome, Request, RequestId, StartError, Status, Truncation};

use crate::flow::{CeilingError, Ledger};
use crate::matching::Posted;
use crate::port::{MessagePort, PeerId};
use crate::shared::fastbox::Word;
use crate::slab::{List, Slab, Slot};
use crate::store::{self, Store, Unit};
use crate::trace::Recorder;
use crate::wire::rendezvous::RTS_BYTES;
use lmt::Choices;

/// The memory that the engine is lent, by type. Slices and `Vec`s will do; those of requests may grow.
pub trait Storage {
    /// One slot for each request under way.
    type Requests: BorrowMut<[Slot<Request>]>;
    /// One for each rank of the world.
    type Peers: BorrowMut<[Peer]>;
    /// Room for unexpected messages: all of it, and so the ceiling.
    type Units: BorrowMut<[Unit]>;
    /// Lists by hash that find them, all zero: see [`crate::store::split`].
    type Stored: BorrowMut<[u32]>;
    /// Lists by hash that find posted receives: about as many as there are requests. The largest power of two is used.
    type Buckets: BorrowMut<[List]>;
    /// One slot for each region that peers may use; may be none.
    type Regions: BorrowMut<[Slot<Region>]>;
    /// [`WINDOW`](rma::WINDOW) for each other rank; none, if nobody uses one-sided operations: a peer that can't be
    /// answered counts as breaking the rules.
    type Replies: BorrowMut<[Slot<Reply>]>;
    /// What handles active messages; `()` handles none.
    type Handlers: Handlers;
    /// What writes down entries and exits of functions; `()` writes nothing, and costs nothing.
    type Trace: Recorder;
}

/// The lent memory itself.
#[derive(Debug)]
pub struct Lent<S: Storage> {
    /// See [`Storage::Requests`].
    pub requests: S::Requests,
    /// See [`Storage::Peers`].
    pub peers: S::Peers,
    /// See [`Storage::Units`].
    pub units: S::Units,
    /// See [`Storage::Stored`].
    pub stored: S::Stored,
    /// See [`Storage::Buckets`].
    pub posted: S::Buckets,
    /// See [`Storage::Regions`].
    pub regions: S::Regions,
    /// See [`Storage::Replies`].
    pub replies: S::Replies,
    /// See [`Storage::Handlers`].
    pub handlers: S::Handlers,
    /// See [`Storage::Trace`].
    pub trace: S::Trace,
}

/// What the layer above chooses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuning {
    /// Largest message that is sent eagerly, in bytes; capped by the port's packets. Larger ones are announced first.
    pub eager_bytes: usize,
    /// Units of 64 bytes that a peer is promised ahead of what it has sent; less when there is less room.
    pub window: u32,
    /// Smallest message, in bytes, that its receiver and a sender that waits copy together; `u64::MAX` is never.
    pub share_bytes: u64,
    /// Smallest message, in bytes, that is copied out of packets past the caches; `u64::MAX` is never. About as much as the
    /// last of them holds.
    pub non_temporal_bytes: u64,
    /// Bytes of a message that its receiver alone reads in one turn, what takes some ten microseconds, so that others have
    /// theirs; at least 1.
    pub pull_bytes: u64,
    /// Bytes of a run of a scattered buffer, on average, from which on it is worth a call of its own to the kernel.
    pub run_bytes: u64,
}

impl Default for Tuning {
    fn default() -> Self {
        Self {
            eager_bytes: 8 << 10,
            window: 4096,
            share_bytes: 48 << 10,
            non_temporal_bytes: 32 << 20,
            pull_bytes: 256 << 10,
            run_bytes: 4 << 10,
        }
    }
}

/// The engine of one endpoint. Exclusive to one thread at a time.
#[derive(Debug)]
pub struct Engine<P: MessagePort, S: Storage> {
    rank: PeerId,
    port: P,
    requests: Slab<Request, S::Requests>,
    posted: Posted<S::Buckets>,
    store: Store<S::Units, S::Stored>,
    ledger: Ledger,
    peers: S::Peers,
    regions: Regions<S::Regions>,
    replies: Slab<Reply, S::Replies>,
    handlers: S::Handlers,
    trace: S::Trace,
    unhandled: u64,
    /// The most unexpected messages, and units of the store, at a time.
    most_stored: (u64, u64),
    /// First of the peers for which there is work.
    first_work: Option<PeerId>,
    eager_bytes: usize,
    /// How large messages come fastest.
    choices: Choices,
    /// See [`Tuning`].
    tuning: Tuning,
    /// Whether a message of a word is sent eagerly, and in the port's shortest way.
    sends_words: bool,
    /// The most recent failure that receives from any source have to report; see [`Engine::acknowledge`].
    any_source_failure: Option<(PeerId, Failure)>,
    /// A peer that was found to break the rules otherwise than by a poll, and of which [`Engine::progress`] has not told.
    found_out: Option<PeerId>,
}

impl<P: MessagePort, S: Storage> Engine<P, S> {
    /// An engine for rank `rank` of a world of as many ranks as `lent.peers` has elements.
    ///
    /// # Errors
    /// There are fewer units than ranks.
    pub fn new(rank: PeerId, port: P, tuning: Tuning, lent: Lent<S>) -> Result<Self, CeilingError> {
        let store = Store::new(lent.units, lent.stored);
        let others = (lent.peers.borrow().len() as u32).saturating_sub(1);
        // A message to ourselves can always be announced.
        let own = store::cost(RTS_BYTES);
        let units = store.capacity_units().saturating_sub(own);
        // A message that no peer could ever have credit for is announced first.
        let share = units.checked_div(others).unwrap_or(units);
        let eager_bytes = tuning.eager_bytes.min(port.packet_bytes()).min(store::most(share));
        let ledger = match Ledger::new(units, others, tuning.window, store::cost(eager_bytes)) {
            Ok(ledger) if store.capacity_units() >= own => ledger.with_own(own),
            refused => {
                let needed = refused.err().map_or(0, |error| error.needed) + u64::from(own);
                return Err(CeilingError { ceiling: store.capacity_units(), peers: others, needed });
            }
        };
        let mut engine = Self {
            rank,
            eager_bytes,
            choices: Choices::default(),
            tuning,
            sends_words: port.sends_words() && size_of::<Word>() <= eager_bytes,
            port,
            requests: Slab::new(lent.requests),
            posted: Posted::new(lent.posted),
            ledger,
            store,
            peers: lent.peers,
            regions: Regions::new(lent.regions),
            replies: Slab::new(lent.replies),
            handlers: lent.handlers,
            trace: lent.trace,
            unhandled: 0,
            most_stored: (0, 0),
            first_work: None,
            any_source_failure: None,
            found_out: None,
        };
        engine.open_accounts();
        Ok(engine)
    }

    /// Our rank.
    pub const fn rank(&self) -> PeerId {
        self.rank
    }

    /// Ranks in the world.
    pub fn size(&self) -> u32 {
        self.peers.borrow().len() as u32
    }

    /// The port.
    pub const fn port(&self) -> &P {
        &self.port
    }

    /// The port, for its owner.
    pub const fn port_mut(&mut self) -> &mut P {
        &mut self.port
    }

    /// The storage of requests, for its owner to let it grow. It must never shrink.
    pub fn requests_mut(&mut self) -> &mut S::Requests {
        self.requests.storage_mut()
    }

    /// Lets the lists that find posted receives grow.
    pub fn grow_posted(&mut self, grow: impl FnOnce(&mut S::Buckets)) {
        self.posted.grow(&mut self.requests, grow);
    }

    /// Whether there is more to do than to take what comes: something is pending.
    pub const fn has_work(&self) -> bool {
        self.first_work.is_some()
    }

    /// Whether some send is not complete.
    pub fn sends_pending(&self) -> bool {
        self.peers.borrow().iter().any(Peer::has_sends)
    }

    /// Messages that came unasked and are stored.
    pub fn unexpected_messages(&self) -> usize {
        self.store.len()
    }

    /// Why a rank is gone, if it is.
    pub fn failure(&self, peer: PeerId) -> Option<Failure> {
        self.peers.borrow().get(peer as usize)?.failure
    }

    /// What writes down entries and exits: the layer above has its own.
    #[inline(always)]
    pub const fn trace_mut(&mut self) -> &mut S::Trace {
        &mut self.trace
    }

    /// What was written down.
    pub const fn trace(&self) -> &S::Trace {
        &self.trace
    }

    /// Does this, and writes it down if something happened.
    #[inline(always)]
    fn traced<T>(
        &mut self,
        (name, value): (&'static str, u64),
        work: impl FnOnce(&mut Self) -> T,
        happened: impl FnOnce(&T) -> bool,
    ) -> T {
        self.trace.enter(name, value);
        let result = work(self);
        self.trace.leave(happened(&result));
        result
    }

    fn peer(&mut self, peer: PeerId) -> &mut Peer {
        &mut self.peers.borrow_mut()[peer as usize]
    }
}
