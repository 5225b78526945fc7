//! Engines over the simulated fabric, and the operations on them. With `port.rs`, all code that knows the
//! engine's interface.

mod collect;
mod remote;

use std::cell::{RefCell, RefMut};
use std::fmt::Debug;
use std::rc::Rc;

pub(crate) use nemesia_core::counters::PeerCounters;
use nemesia_core::engine::{Bypass, Engine, RequestId, SendOptions, Tuning};
pub(crate) use nemesia_core::engine::{
    CompletionError, Failure, Outcome, Progress, StartError, Status, Truncation,
};
pub(crate) use nemesia_core::flow::CeilingError;
use nemesia_core::flow::Ledger;
pub(crate) use nemesia_core::matching::{Pattern, Source};
use nemesia_core::payload::{RecvBuf, SendBuf};
use nemesia_core::port::Port;
use nemesia_core::slab::List;
pub(crate) use nemesia_core::store::cost;
use nemesia_core::store::most;
use nemesia_verification::storage::EngineVectors;

use crate::fabric::{Conditions, Fabric};
use crate::memory::{Loan, Place};
use crate::shape::{Shape, Terms};
use crate::tally::Tally;
use crate::violation::Violation;
pub(crate) use remote::{Comparison, Datatype, Handled, Order, Reduction, Verb, combine, swap};
use remote::{Desk, Exposure};

type WorldEngine<P> = Engine<P, EngineVectors<Desk>>;

/// A port over which engines make a world. Two ports exchange packets only if the fabric has connected them.
pub(crate) trait WorldPort: Port + Debug {
    /// What all ports of a world share, besides the fabric.
    type Medium: Copy + Debug;
    /// Whether the fabric wakes a process that sleeps, for what others have done to it.
    const WAKES: bool = true;

    /// Returns the most bytes of a message of this rank that a port prefers to be sent at once, in one packet.
    fn preferred(conditions: &Conditions, rank: u32) -> usize;

    /// Gives a rank a new process, which has no connection. Its port starts next.
    fn begin(medium: Self::Medium, rank: u32) {
        _ = (medium, rank);
    }

    /// Starts the port of a new process, and opens the connections that were made for it. `None` if there is no memory
    /// for it.
    fn start(rank: u32, fabric: Rc<RefCell<Fabric>>, medium: Self::Medium) -> Option<Self>
    where
        Self: Sized;

    /// Returns whether a further process can start.
    fn has_process(medium: Self::Medium) -> bool {
        _ = medium;
        true
    }

    /// Makes a new connection of two processes.
    fn connect(medium: Self::Medium, one: u32, other: u32) {
        _ = (medium, one, other);
    }

    /// Opens the newest connection with a peer. Returns false if an older one is open.
    fn open(&mut self, peer: u32) -> bool {
        _ = peer;
        true
    }

    /// Searches for packets wherever they may be: the process has slept, and no other process has woken it.
    fn sweep(&mut self) {}

    /// Returns the number of cells that the process can fill.
    fn free_cells(&mut self) -> usize;
}

/// The engines of a world.
#[derive(Debug)]
pub(crate) struct World<P: WorldPort> {
    /// `None` for a process that is gone. Dropped before the fabric, which owns the memory that they were lent.
    engines: Vec<Option<WorldEngine<P>>>,
    fabric: Rc<RefCell<Fabric>>,
    medium: P::Medium,
    terms: Terms,
    exposed: Vec<Exposure>,
}

/// A request and its buffer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestHandle {
    pub(crate) rank: u32,
    id: RequestId,
    pub(crate) loan: Loan,
}

impl RequestHandle {
    /// Returns whether the request takes a slot and reports its own outcome.
    pub(crate) fn is_kept(&self) -> bool {
        self.id != RequestId::SENT
    }
}

/// A message that a matched probe took out of the queue, to be received later.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Claim(RequestId);

/// A message to be sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outgoing {
    pub(crate) to: u32,
    pub(crate) context: u16,
    pub(crate) tag: u64,
    pub(crate) key: u64,
    pub(crate) len: usize,
    pub(crate) immediate: Option<u64>,
    pub(crate) synchronous: bool,
}

/// The result of one step of a receive that is not posted.
#[derive(Debug)]
pub(crate) enum Step {
    /// Nothing received; the receive was never posted.
    Not,
    Done(Outcome, Loan),
    Posted(RequestHandle),
}

/// The engine's limits for its terms, in units of credit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// The units that each peer has for itself, and the number of peers that have them.
    pub(crate) reserve: u64,
    pub(crate) reserves: u32,
    /// The cost of the largest packet.
    pub(crate) packet: u64,
}

/// Returns the limits of the engines of a world.
pub(crate) fn limits(shape: &Shape) -> Limits {
    let Terms { units, eager_bytes, window, most_peers, .. } = shape.terms;
    // One unit belongs to the rank itself.
    let (units, others) = (units as u32 - 1, shape.conditions.ranks - 1);
    let share = match most_peers {
        Some(peers) => units / 2 / peers.min(8),
        None => units.checked_div(others).unwrap_or(units),
    };
    let packet = cost(eager_bytes.min(shape.conditions.packet_bytes).min(most(share)));
    // The engines have started with the same values.
    let ledger = match most_peers {
        Some(peers) => Ledger::growing(units, peers, window, packet),
        None => Ledger::new(units, others, window, packet),
    };
    let (reserve, reserves) = ledger.map_or((0, 0), |ledger| (ledger.reserve(), ledger.reserves()));
    Limits { reserve: reserve.into(), reserves, packet: packet.into() }
}

/// Starts the engine of a process.
fn start<P: WorldPort>(
    rank: u32,
    fabric: &Rc<RefCell<Fabric>>,
    medium: P::Medium,
    terms: Terms,
) -> Result<WorldEngine<P>, Violation> {
    let ranks = fabric.borrow().conditions.ranks as usize;
    let Terms { requests, units, buckets, most_peers, .. } = terms;
    let mut lent = EngineVectors::lent(ranks, requests, units, buckets, Desk::default());
    let Terms { eager_bytes, window, pull_bytes, run_bytes, assist_bytes, non_temporal_bytes, .. } = terms;
    let tuning = Tuning {
        eager_bytes,
        window,
        pull_bytes,
        run_bytes,
        assist_bytes,
        lent_assist_bytes: assist_bytes / 2,
        non_temporal_bytes,
        ..Tuning::default()
    };
    let port = P::start(rank, Rc::clone(fabric), medium);
    let port = port.ok_or_else(|| Violation(format!("rank {rank} has no memory for a port")))?;
    let started = match most_peers {
        Some(most) => {
            lent.peers.truncate(rank as usize + 1);
            lent.replies.clear();
            Engine::alone(rank, port, tuning, lent, most)
        }
        None if terms.unmet => {
            lent.replies.clear();
            Engine::unmet(rank, port, tuning, lent)
        }
        None => Engine::new(rank, port, tuning, lent),
    };
    started.map_err(|error| Violation(format!("rank {rank} can't start: {error}")))
}

/// How a blocking receive searches for its message.
#[derive(Clone, Copy, Debug)]
pub(crate) enum BypassCall {
    /// For a word, at its most likely place.
    Short,
    /// For a message that fits, from a named source with a named tag, at its most likely place.
    Packet,
    /// For any message, at its most likely place.
    Next,
    /// Everywhere: one whole progress call.
    Step,
}

impl<P: WorldPort> World<P> {
    pub(crate) fn new(fabric: Fabric, medium: P::Medium, terms: Terms) -> Result<Self, Violation> {
        let ranks = fabric.conditions.ranks;
        let fabric = Rc::new(RefCell::new(fabric));
        let are_strangers = terms.most_peers.is_some() || terms.unmet;
        if are_strangers {
            (0..ranks).for_each(|rank| fabric.borrow_mut().restart(rank));
        }
        (0..ranks).for_each(|rank| P::begin(medium, rank));
        if !are_strangers {
            let pairs = (0..ranks).flat_map(|one| (one + 1..ranks).map(move |other| (one, other)));
            pairs.for_each(|(one, other)| P::connect(medium, one, other));
        }
        let engine = |rank| start(rank, &fabric, medium, terms).map(Some);
        let engines = (0..ranks).map(engine).collect::<Result<_, _>>()?;
        let mut world = Self { engines, fabric, medium, terms, exposed: Vec::new() };
        for rank in 0..ranks {
            let exposure =
                world.expose(rank).ok_or_else(|| Violation(format!("rank {rank} can't expose memory")))?;
            world.exposed.push(exposure);
        }
        Ok(world)
    }

    /// Returns the counts, and the events if they were recorded.
    pub(crate) fn result(&mut self) -> (Tally, Vec<String>) {
        let mut fabric = self.fabric();
        (std::mem::take(&mut fabric.tally), fabric.trace.take())
    }

    pub(crate) fn fabric(&self) -> RefMut<'_, Fabric> {
        self.fabric.borrow_mut()
    }

    /// Connects two processes that have exchanged nothing yet.
    fn connect(&mut self, one: u32, other: u32) {
        self.fabric().connect(one, other);
        P::connect(self.medium, one, other);
        for (me, peer) in [(one, other), (other, one)] {
            if !self.engine(me).port_mut().open(peer) {
                self.fabric().misuse(format!("rank {me} has another connection with rank {peer}"));
            }
        }
    }

    /// Returns the engine of a living rank for one call.
    fn engine(&mut self, rank: u32) -> &mut WorldEngine<P> {
        self.fabric.borrow_mut().begin_call();
        let Some(engine) = &mut self.engines[rank as usize] else { unreachable!("rank {rank} is gone") };
        engine
    }

    pub(crate) fn send(&mut self, rank: u32, message: &Outgoing) -> Result<RequestHandle, StartError> {
        let Outgoing { to, context, tag, key, len, immediate, synchronous } = *message;
        let cuts = self.fabric().cuts(len);
        let (loan, buf) = self.outgoing(rank, key, len, &cuts);
        let engine = self.engine(rank);
        let options = SendOptions { immediate, synchronous };
        let started = engine.isend_with(to, context, tag, buf, options);
        self.handle(rank, loan, started)
    }

    pub(crate) fn receive(
        &mut self,
        rank: u32,
        pattern: Pattern,
        room: usize,
    ) -> Result<RequestHandle, StartError> {
        let (loan, mut buf) = self.room(rank, room);
        let started = self.engine(rank).irecv(pattern, &mut buf);
        self.handle(rank, loan, started)
    }

    /// Returns a buffer that holds a message.
    fn outgoing(&mut self, rank: u32, key: u64, len: usize, cuts: &[usize]) -> (Loan, SendBuf) {
        let (loan, place) = self.fabric().memory.lend_message(rank, key, len, cuts);
        // SAFETY: the buffer, and its list, are lent until the simulation ends the loan, which it does when the request
        // is complete, or until the engine is gone.
        let buf = unsafe {
            match place {
                Place::Run(base) => Some(SendBuf::from_raw(base, len)),
                Place::List(list, count) => SendBuf::from_list(list, count),
            }
        };
        let Some(buf) = buf else { unreachable!("{len} bytes fit into memory") };
        (loan, buf)
    }

    /// Returns a buffer to receive into, in one segment or several.
    fn room(&mut self, rank: u32, room: usize) -> (Loan, RecvBuf) {
        let cuts = self.fabric().cuts(room);
        self.room_in(rank, room, &cuts)
    }

    fn room_in(&mut self, rank: u32, room: usize, cuts: &[usize]) -> (Loan, RecvBuf) {
        let (loan, place) = self.fabric().memory.lend_room(rank, room, cuts);
        // SAFETY: as in `outgoing`; nothing else uses the buffer meanwhile.
        let buf = unsafe {
            match place {
                Place::Run(base) => Some(RecvBuf::from_raw(base, room)),
                Place::List(list, count) => RecvBuf::from_list(list, count),
            }
        };
        let Some(buf) = buf else { unreachable!("{room} bytes fit into memory") };
        (loan, buf)
    }

    fn handle(
        &mut self,
        rank: u32,
        loan: Loan,
        started: Result<RequestId, StartError>,
    ) -> Result<RequestHandle, StartError> {
        match started {
            Ok(id) => Ok(RequestHandle { rank, id, loan }),
            Err(error) => {
                self.withdraw_loan(loan);
                Err(error)
            }
        }
    }

    /// Ends a loan that was not used. Nothing may have been written; a later write is detected.
    fn withdraw_loan(&mut self, loan: Loan) {
        let ended = self.fabric().memory.end(loan, |_| ());
        if let Err(violation) = ended {
            self.fabric().misuse(violation.0);
        }
    }

    pub(crate) fn cancel(&mut self, handle: RequestHandle) -> bool {
        self.engine(handle.rank).cancel(handle.id)
    }

    /// Returns the outcome of a complete request. Its identifier must then be stale.
    pub(crate) fn test(&mut self, handle: RequestHandle) -> Option<Outcome> {
        let outcome = self.engine(handle.rank).test(handle.id)?;
        Some(self.end(handle, outcome))
    }

    /// As [`World::test`]; it may complete a receive, whose message has then been reported.
    pub(crate) fn try_finish(&mut self, handle: RequestHandle) -> Option<Outcome> {
        let outcome = self.engine(handle.rank).try_finish(handle.id)?;
        Some(self.end(handle, outcome))
    }

    fn end(&mut self, handle: RequestHandle, outcome: Outcome) -> Outcome {
        let engine = self.engine(handle.rank);
        if handle.is_kept()
            && (engine.test(handle.id) != Some(Err(CompletionError::Stale)) || engine.cancel(handle.id))
        {
            self.fabric().misuse(format!("a request of rank {} outlives its completion", handle.rank));
        }
        outcome
    }

    /// Makes progress once.
    pub(crate) fn progress(&mut self, rank: u32, whole: bool) -> Progress {
        let engine = self.engine(rank);
        match whole {
            true if rank.is_multiple_of(2) => engine.progress_to_completions(),
            true => engine.progress(),
            false => engine.step(),
        }
    }

    /// Lets a rank search for packets wherever they may be, as a process does that no other process has woken.
    pub(crate) fn sweep(&mut self, rank: u32) {
        self.engine(rank).port_mut().sweep();
    }

    /// Returns the number of cells that a rank can fill.
    pub(crate) fn free_cells(&mut self, rank: u32) -> usize {
        self.engine(rank).port_mut().free_cells()
    }

    pub(crate) fn probe(&mut self, rank: u32, pattern: &Pattern) -> Option<Status> {
        self.engine(rank).iprobe(pattern)
    }

    pub(crate) fn claim(
        &mut self,
        rank: u32,
        pattern: &Pattern,
    ) -> Result<Option<(Claim, Status)>, StartError> {
        Ok(self.engine(rank).improbe(pattern)?.map(|(id, status)| (Claim(id), status)))
    }

    pub(crate) fn receive_claimed(
        &mut self,
        rank: u32,
        claim: Claim,
        room: usize,
    ) -> Result<RequestHandle, CompletionError> {
        let (loan, mut buf) = self.room(rank, room);
        let received = self.engine(rank).imrecv(claim.0, &mut buf);
        Ok(RequestHandle { rank, id: received.map(|()| claim.0)?, loan })
    }

    pub(crate) fn can_bypass(&mut self, rank: u32, pattern: &Pattern) -> bool {
        self.engine(rank).can_bypass(pattern)
    }

    /// Runs one step of a blocking receive that is not posted.
    pub(crate) fn bypass(&mut self, rank: u32, pattern: &Pattern, room: usize, look: BypassCall) -> Step {
        let (loan, mut buf) = self.room(rank, room);
        let engine = self.engine(rank);
        let step = match look {
            BypassCall::Short => {
                let from = if let Source::Rank(peer) = pattern.source { Some(peer as usize) } else { None };
                let done = buf.whole(0, usize::MAX).and_then(|into| {
                    let done = engine.receive_short(from, pattern.context, |tag| pattern.accepts(tag), into);
                    done.or_else(|| engine.receive_short_beside(pattern, into))
                });
                done.map_or(Bypass::Idle, |done| Bypass::Done(Ok(done)))
            }
            BypassCall::Packet => {
                let len = engine.receive_packet(pattern, &mut buf);
                // A pattern that names no source finds nothing there.
                let peer = if let Source::Rank(peer) = pattern.source { peer } else { rank };
                let status = len.map(|len| Status { peer, tag: pattern.tag, len, immediate: None });
                status.map_or(Bypass::Idle, |status| Bypass::Done(Ok(status)))
            }
            BypassCall::Next => engine.receive_next(pattern, &mut buf).map_or(Bypass::Idle, Bypass::Done),
            BypassCall::Step => engine.receive_step(pattern, &mut buf),
        };
        match step {
            Bypass::Done(outcome) => Step::Done(outcome, loan),
            Bypass::Posted(id) => Step::Posted(RequestHandle { rank, id, loan }),
            Bypass::Idle | Bypass::Busy | Bypass::Post => {
                self.withdraw_loan(loan);
                Step::Not
            }
        }
    }

    /// Lets the requests of a rank grow, if they may.
    pub(crate) fn grow(&mut self, rank: u32) {
        let Terms { most_requests, .. } = self.terms;
        let engine = self.engine(rank);
        let capacity = engine.request_capacity();
        let more = (capacity + 1 + capacity / 2).min(most_requests);
        engine.grow_requests(more - capacity);
        engine.grow_posted(|lists| lists.resize(more.next_power_of_two(), List::default()));
    }

    pub(crate) fn request_capacity(&mut self, rank: u32) -> usize {
        self.engine(rank).request_capacity()
    }

    pub(crate) fn acknowledge(&mut self, rank: u32) {
        self.engine(rank).acknowledge();
    }

    pub(crate) fn depart(&mut self, rank: u32, peer: u32, failure: Failure) {
        self.engine(rank).depart(peer, failure);
    }

    pub(crate) fn drain(&mut self, rank: u32, peer: u32) -> bool {
        self.engine(rank).drain(peer)
    }

    pub(crate) fn fail(&mut self, rank: u32, peer: u32, failure: Failure) {
        self.engine(rank).fail(peer, failure);
    }

    /// Returns whether a dead rank can start again.
    pub(crate) fn has_process(&self) -> bool {
        P::has_process(self.medium)
    }

    /// Starts a dead rank again.
    pub(crate) fn restart(&mut self, rank: u32) -> Result<(), Violation> {
        self.fabric().restart(rank);
        P::begin(self.medium, rank);
        self.engines[rank as usize] = Some(start(rank, &self.fabric, self.medium, self.terms)?);
        let exposure = self.expose(rank);
        self.exposed[rank as usize] =
            exposure.ok_or_else(|| Violation(format!("rank {rank} can't expose memory")))?;
        Ok(())
    }

    /// Lets a rank readmit a restarted one, which then learns of it.
    pub(crate) fn readmit(&mut self, rank: u32, joining: u32) -> bool {
        self.connect(rank, joining);
        let reconnected = self.engine(rank).reconnect(joining);
        self.engine(joining).connected(rank);
        reconnected
    }

    /// Lets a rank add a peer. If the peer has added it, `connects` connects the two.
    pub(crate) fn add_peer(&mut self, rank: u32, peer: u32, connects: bool) -> Result<(), CeilingError> {
        if connects {
            self.connect(rank, peer);
        }
        self.engine(rank).add_peer(peer)?;
        if connects {
            self.engine(peer).connected(rank);
        }
        Ok(())
    }

    /// Returns the next rank with which this one should connect.
    pub(crate) fn next_wanted(&mut self, rank: u32) -> Option<u32> {
        self.engine(rank).next_wanted()
    }

    /// Connects two ranks of a world that connect on demand. Returns false if they are connected.
    pub(crate) fn meet(&mut self, rank: u32, peer: u32) -> Result<bool, Violation> {
        if !self.fabric().is_parted(rank, peer) {
            return Ok(false);
        }
        for [me, other] in [[rank, peer], [peer, rank]] {
            let paid = self.engine(me).meet_paid(other);
            paid.map_err(|error| Violation(format!("rank {me} can't pay for rank {other}: {error}")))?;
        }
        self.connect(rank, peer);
        self.engine(rank).connected(peer);
        self.engine(peer).connected(rank);
        Ok(true)
    }

    /// Returns whether a rank may use a number for another peer.
    pub(crate) fn is_vacant(&mut self, rank: u32, peer: u32) -> bool {
        self.engine(rank).is_vacant(peer)
    }

    pub(crate) fn failure(&mut self, rank: u32, peer: u32) -> Option<Failure> {
        self.engine(rank).failure(peer)
    }

    pub(crate) fn stored(&mut self, rank: u32) -> usize {
        self.engine(rank).unexpected_messages()
    }

    /// Returns the counters of a rank about another, or about itself.
    pub(crate) fn counters(&mut self, rank: u32, peer: u32) -> PeerCounters {
        self.engine(rank).peer_counters(peer).unwrap_or_default()
    }

    pub(crate) fn sends_pending(&mut self, rank: u32) -> bool {
        self.engine(rank).sends_pending()
    }

    /// Removes a process: its engine and its memory.
    pub(crate) fn bury(&mut self, rank: u32, loses: bool) {
        self.engines[rank as usize] = None;
        let mut fabric = self.fabric();
        fabric.die(rank, loses);
        fabric.memory.forget(rank);
    }
}
