//! The engine: tagged messages, active messages and one-sided operations over a [`Port`], non-blocking, driven by
//! [`Engine::progress`].
//!
//! The caller lends all storage ([`Storage`]). No call blocks, and each call does a bounded amount of work. The layer
//! above decides when to call the engine and when to sleep, and reports dead peers to it.
//!
//! Each protocol is a room: one module with its methods and its tests. The page of a room says what its protocol is,
//! and what its files hold.
//!
//! | room | protocol |
//! |---|---|
//! | `engine/eager.rs` | messages that leave at once, their matching, and the credit that they need (paper 4, section 3.1) |
//! | `engine/lmt.rs` | large messages: rendezvous and transfer (paper 4, section 3.2) |
//! | `engine/active.rs` | active messages |
//! | `engine/rma.rs` | one-sided operations |
//! | `engine/progress.rs` | progress steps, and pending work |
//! | `engine/failure.rs` | peers that fail, and peers that return |
//! | `engine/grow.rs` | peers that are added one by one; engines that are opened alone |
//!
//! The rooms share five modules, which are below all of them:
//!
//! | file | contents |
//! |---|---|
//! | `engine/request.rs` | requests: their states and outcomes |
//! | `engine/completion.rs` | the completion queue |
//! | `engine/peer.rs` | the state of one rank; the queues of its requests |
//! | `engine/state.rs` | the parts of these states that belong to one room each |
//! | `engine/count.rs` | counters: updates and snapshots |
//!
//! Methods of [`Engine`] call methods of other rooms, so a packet passes from `progress` to its protocol. Types pass in
//! one direction only: `progress` uses `eager` and `lmt`, `eager` uses `lmt`, and all use the shared modules.
#![cfg_attr(not(test), forbid(unsafe_code))]

pub mod active;
mod completion;
mod count;
mod eager;
mod failure;
mod grow;
mod lmt;
mod peer;
mod progress;
mod request;
pub mod rma;
mod state;
mod stored;
#[cfg(test)]
mod tests;
mod tuning;
mod unload;

use core::borrow::{Borrow, BorrowMut};

use active::{ActiveMessages, Handlers};
use failure::{Failures, UnmetRanks};
use grow::CreditPlan;
use lmt::ProtocolSelections;
use rma::{DirectTable, ExposedRegion, Regions, Reply};
use state::{CompletionQueue, WorkList};

pub use completion::{MultiPlace, OperationCompletion};
pub use eager::Bypass;
pub use lmt::PeerSelection;
pub use peer::Peer;
pub use request::{
    CompletionError, Failure, Outcome, Request, RequestId, SendOptions, StartError, Status, Truncation,
};
pub use state::{CompletionKind, MultiReceiveOptions, PACKETS_A_TURN, Progress};
pub use tuning::Tuning;

use crate::flow::backing::Backing;
use crate::flow::{CeilingError, Ledger};
use crate::matching::Posted;
use crate::port::SHORT_BYTES;
use crate::port::{PeerId, Port};
use crate::slab::{List, Slab, Slot};
use crate::store::{Store, UnitMemory};
use crate::trace::Recorder;

/// The types of the memory that the caller lends to the engine. Slices and `Vec`s are suitable; the storage of requests
/// may grow.
pub trait Storage {
    /// One slot for each request in progress.
    type Requests: BorrowMut<[Slot<Request>]>;
    /// One for each rank of the world; at first for this process, if the engine is opened alone ([`Engine::alone`]).
    type Peers: BorrowMut<[Peer]>;
    /// Memory for unexpected messages, which may be committed as it is needed. Its size is the limit for unexpected
    /// data; its ceiling may be lower at first ([`Engine::raise_ceiling`]).
    type Units: UnitMemory;
    /// Hash buckets that index the stored messages, initially all zero; see [`crate::store::split`].
    type Stored: BorrowMut<[u32]>;
    /// Hash buckets that index posted receives: about as many as requests. The engine uses the largest power of two
    /// that fits.
    type Buckets: BorrowMut<[List]>;
    /// One slot for each region that peers may access. May be empty.
    type Regions: BorrowMut<[Slot<ExposedRegion>]>;
    /// [`WINDOW`](rma::WINDOW) slots for each other rank; [`Engine::add_peer`] adds them for its peer. May be empty if
    /// no process uses one-sided operations. If the engine has no slot for a reply, it treats the peer's request as a
    /// protocol violation.
    type Replies: BorrowMut<[Slot<Reply>]>;
    /// What is learned about large messages, for one peer in each slot: about 3 KiB. Peers whose ranks are equal modulo
    /// the number of slots share one. May be empty: nothing is then learned.
    type Selections: BorrowMut<[PeerSelection]>;
    /// The handlers of active messages; `()` handles none.
    type Handlers: Handlers;
    /// The recorder of function entries and exits; `()` records nothing and costs nothing.
    type Trace: Recorder;
}

/// The lent memory itself, one field for each type of [`Storage`].
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
    /// See [`Storage::Selections`].
    pub selections: S::Selections,
    /// See [`Storage::Handlers`].
    pub handlers: S::Handlers,
    /// See [`Storage::Trace`].
    pub trace: S::Trace,
}

/// The engine of one endpoint. Only one thread at a time may use it.
#[derive(Debug)]
pub struct Engine<P: Port, S: Storage> {
    rank: PeerId,
    port: P,
    requests: Slab<Request, S::Requests>,
    completions: CompletionQueue,
    posted: Posted<S::Buckets>,
    store: Store<S::Units, S::Stored>,
    ledger: Ledger,
    /// The units that the ledger may promise once their memory is committed.
    backing: Backing,
    peers: S::Peers,
    regions: Regions<S::Regions>,
    direct: DirectTable,
    replies: Slab<Reply, S::Replies>,
    active: ActiveMessages<S::Handlers>,
    trace: S::Trace,
    /// The peak number of unexpected messages, and of units of the store in use.
    most_stored: (u64, u64),
    /// The peers with pending work.
    work: WorkList,
    eager_bytes: usize,
    /// The adaptive selector of the protocol for large messages.
    selections: ProtocolSelections<S::Selections>,
    tuning: Tuning,
    /// Whether messages of one word are sent eagerly through the port's shortest path.
    short_bytes: usize,
    failures: Failures,
    unmet: UnmetRanks,
    /// The number of ranks of the world. Smaller numbers are ranks, and the others peers that are added one by one. 0
    /// if the engine was opened alone ([`Engine::alone`]).
    ranks: u32,
    /// The sends that were started since pending work was continued, and wait to leave together.
    gathered: u32,
    /// The multi-receive buffer that the message at hand has matched without a slot, and the length of the message.
    unplaced: Option<(u32, usize)>,
}

impl<P: Port, S: Storage> Engine<P, S> {
    /// Creates the engine of rank `rank`. The world has as many ranks as `lent.peers` has elements.
    ///
    /// # Errors
    /// There are fewer units than ranks, or too few of them can be committed.
    pub fn new(rank: PeerId, port: P, tuning: Tuning, lent: Lent<S>) -> Result<Self, CeilingError> {
        let others = (lent.peers.borrow().len() as u32).saturating_sub(1);
        let mut engine = Self::start_with(rank, port, tuning, lent, &CreditPlan::World { peers: others })?;
        engine.take_reserves(others)?;
        engine.back_credit();
        engine.open_accounts();
        Ok(engine)
    }

    /// As [`Engine::new`], but no other rank was met. The memory for the credit of a rank, and places for its replies,
    /// are taken when it is met ([`Engine::meet_paid`]); so `lent.replies` may be empty. Of the ceiling, each rank has
    /// its part from the start.
    ///
    /// # Errors
    /// As [`Engine::new`].
    pub fn unmet(rank: PeerId, port: P, tuning: Tuning, lent: Lent<S>) -> Result<Self, CeilingError> {
        let others = (lent.peers.borrow().len() as u32).saturating_sub(1);
        let mut engine = Self::start_with(rank, port, tuning, lent, &CreditPlan::World { peers: others })?;
        engine.begin_unmet();
        Ok(engine)
    }

    /// Creates an engine without any open account.
    fn start_with(
        rank: PeerId,
        port: P,
        tuning: Tuning,
        lent: Lent<S>,
        plan: &CreditPlan,
    ) -> Result<Self, CeilingError> {
        let ranks = match plan {
            CreditPlan::World { .. } => lent.peers.borrow().len() as u32,
            CreditPlan::Growing { .. } => 0,
        };
        let mut store = Store::new(lent.units, lent.stored);
        let ceiling = store.ceiling_units();
        let most_bytes = tuning.eager_bytes.min(port.packet_bytes());
        let (mut ledger, eager_bytes) = plan.ledger(ceiling, tuning.window, most_bytes)?;
        let beyond = store.capacity_units() - ceiling;
        let mut backing = Backing::new(store.committed_units(), ledger.take_pool(), beyond);
        if !backing.take(ledger.own_units(), |more| store.commit(more)) {
            let (committed, needed) = (store.committed_units(), ledger.own_units().into());
            return Err(CeilingError::Memory { committed, peers: 0, needed });
        }
        Ok(Self {
            rank,
            eager_bytes,
            selections: ProtocolSelections::new(lent.selections),
            tuning,
            short_bytes: port.short_bytes().min(eager_bytes).min(SHORT_BYTES),
            port,
            requests: Slab::new(lent.requests),
            completions: CompletionQueue::default(),
            posted: Posted::new(lent.posted),
            ledger,
            backing,
            store,
            peers: lent.peers,
            regions: Regions::new(lent.regions),
            direct: DirectTable::new(),
            replies: Slab::new(lent.replies),
            active: ActiveMessages::new(lent.handlers),
            trace: lent.trace,
            most_stored: (0, 0),
            work: WorkList::default(),
            failures: Failures::default(),
            unmet: UnmetRanks::default(),
            unplaced: None,
            gathered: 0,
            ranks,
        })
    }

    /// Returns the rank of this process, or its number if it was opened alone.
    pub const fn rank(&self) -> PeerId {
        self.rank
    }

    /// Returns the number of ranks in the world; 0 if the engine was opened alone.
    pub const fn ranks(&self) -> u32 {
        self.ranks
    }

    /// Returns a number that is larger than those of all peers, and of this process. Without further peers this is the
    /// number of ranks in the world. Not each smaller number has a peer.
    pub fn size(&self) -> u32 {
        self.peers.borrow().len() as u32
    }

    /// Returns the port.
    pub const fn port(&self) -> &P {
        &self.port
    }

    /// Returns the port for modification by its owner.
    pub const fn port_mut(&mut self) -> &mut P {
        &mut self.port
    }

    /// Makes place for `count` more requests.
    pub fn grow_requests(&mut self, count: usize)
    where
        S::Requests: Extend<Slot<Request>>,
    {
        self.requests.grow(count);
    }

    /// Returns the number of places for requests, used or free.
    pub fn request_capacity(&self) -> usize {
        self.requests.capacity()
    }

    /// Lets `grow` enlarge the hash buckets that index posted receives.
    pub fn grow_posted(&mut self, grow: impl FnOnce(&mut S::Buckets)) {
        self.posted.grow(&mut self.requests, grow);
    }

    /// Returns whether requests are pending, so that the engine has work besides incoming packets.
    pub const fn has_work(&self) -> bool {
        !self.work.is_empty()
    }

    /// Returns whether any send is incomplete.
    pub fn sends_pending(&self) -> bool {
        self.peers.borrow().iter().any(Peer::has_sends)
    }

    /// Returns the number of stored unexpected messages.
    pub fn unexpected_messages(&self) -> usize {
        self.store.len()
    }

    /// Returns the recorder of entries and exits, so that the layer above can record its own.
    #[inline(always)]
    pub const fn trace_mut(&mut self) -> &mut S::Trace {
        &mut self.trace
    }

    /// Returns the recorder of entries and exits.
    pub const fn trace(&self) -> &S::Trace {
        &self.trace
    }

    /// Runs `work` and records it in the trace if `happened` holds for its result.
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
