//! Peers that are added one by one: to engines that are opened alone, and to those of worlds.
//!
//! Such an engine knows each peer by a number that the layer above chooses. In a world, these numbers follow the ranks,
//! and the memory of such a *further* peer comes out of the pool that the ranks share. A number without a peer has
//! failed with [`Failure::Absent`]: nothing can be sent to it, and no operation waits for it. The memory of a
//! connection is taken with it: first the memory of the credit is committed, then the credit is granted (invariant 4).
//! A connection that cannot be paid for is refused.
//!
//! A number can be used again when its peer has failed and nothing of that peer is stored ([`Engine::is_vacant`]).
//! Everything else of it has ended with its failure, so no message is attributed to the next peer with the number.
#![forbid(unsafe_code)]

use core::borrow::{Borrow as _, BorrowMut as _};

use super::request::{CompletionError, State};
use super::rma::{Reply, WINDOW};
use super::{Engine, Failure, Lent, Peer, StartError, Storage, Tuning};
use crate::flow::{CeilingError, Ledger};
#[cfg(nemesia_injected_fault)]
use crate::injected_fault::{InjectedFault, injected};
use crate::port::{PeerId, Port};
use crate::slab::Slot;
use crate::store::{cost, most};
use crate::wire::rendezvous::RTS_BYTES;

/// Units for the RTS of a message to this process itself, which must always fit.
const OWN_UNITS: u32 = cost(RTS_BYTES);
/// If the ceiling is too low for largest packets of so many peers, packets are shorter, down to one unit.
const LEAST_PEERS: u32 = 8;

/// How the memory for unexpected messages is divided.
#[derive(Clone, Copy, Debug)]
pub(super) enum CreditPlan {
    /// Among all peers of a world.
    World { peers: u32 },
    /// Among up to `most` peers, which come later.
    Growing { most: u32 },
}

impl CreditPlan {
    /// Returns the ledger over `ceiling` units, and the most bytes of an eager message, at most `eager_bytes`.
    pub(super) fn ledger(
        &self,
        ceiling: u32,
        window: u32,
        eager_bytes: usize,
    ) -> Result<(Ledger, usize), CeilingError> {
        let units = ceiling.saturating_sub(OWN_UNITS);
        // A message that no peer can ever have enough credit for uses rendezvous.
        let share = match *self {
            Self::World { peers } => units.checked_div(peers).unwrap_or(units),
            Self::Growing { most } => units / 2 / most.clamp(1, LEAST_PEERS),
        };
        let eager_bytes = eager_bytes.min(most(share));
        let packet = cost(eager_bytes);
        let ledger = match *self {
            Self::World { peers } => Ledger::new(units, peers, window, packet),
            Self::Growing { most } => Ledger::growing(units, most, window, packet),
        };
        match ledger {
            Ok(ledger) if ceiling >= OWN_UNITS => Ok((ledger.with_own(OWN_UNITS), eager_bytes)),
            Ok(_) => Err(CeilingError::Units { ceiling, peers: 0, needed: OWN_UNITS.into() }),
            Err(error) => Err(with_own(error, ceiling)),
        }
    }
}

/// Returns the error of a ledger for the whole ceiling: with the units for messages of this process to itself.
fn with_own(error: CeilingError, ceiling: u32) -> CeilingError {
    match error {
        CeilingError::Units { peers, needed, .. } => {
            CeilingError::Units { ceiling, peers, needed: needed + u64::from(OWN_UNITS) }
        }
        error => error,
    }
}

impl Peer {
    /// Returns the state of a number without a peer.
    fn absent() -> Self {
        let mut absent = Self::default();
        (absent.failure, absent.departed) = (Some(Failure::Absent), Some(Failure::Absent));
        absent
    }
}

impl<P: Port, S: Storage> Engine<P, S> {
    /// Creates an engine without peers. They are added later, at most `most` at the same time ([`Engine::add_peer`]).
    /// `own` is the number of this process itself, and `lent.peers` has one element for it and for each smaller number.
    /// Messages of the process to itself need nothing else.
    ///
    /// Half of the memory for unexpected messages is set aside for the peers' credit ([`Ledger::growing`]). Memory is
    /// committed for the messages of this process to itself, and for peers when they are added.
    ///
    /// # Errors
    /// The memory is too small for the credit of one peer.
    pub fn alone(
        own: PeerId,
        port: P,
        tuning: Tuning,
        lent: Lent<S>,
        most: u32,
    ) -> Result<Self, CeilingError> {
        let mut engine = Self::start_with(own, port, tuning, lent, &CreditPlan::Growing { most })?;
        let others = engine.peers.borrow_mut().iter_mut().enumerate();
        others.filter(|(number, _)| *number != own as usize).for_each(|(_, peer)| *peer = Peer::absent());
        Ok(engine)
    }

    /// Adds the peer with this number, which has no peer now: makes place for its state and its replies, commits the
    /// memory of its credit, and grants the credit. If the number has a peer that has not failed, or is that of this
    /// process or a rank of its world, nothing changes.
    ///
    /// The number may have had a peer before. Its failure then counts as acknowledged ([`Engine::acknowledge`]), and
    /// its counters start at zero. There is a state for every number up to the highest, so numbers should be small.
    ///
    /// The port may be connected to the peer already; else call [`Engine::connected`] once it is. The port must not
    /// deliver packets of a number before the number is added.
    ///
    /// # Errors
    /// Nothing changes then.
    /// - [`CeilingError::Stored`]: messages of the former peer with this number are stored. Receive them first; see
    ///   [`Engine::is_vacant`].
    /// - [`CeilingError::Units`], [`CeilingError::Memory`], [`CeilingError::Connections`]: the credit of a further peer
    ///   cannot be paid. Credit returns when a peer has failed and its messages are received.
    #[cold]
    pub fn add_peer(&mut self, peer: PeerId) -> Result<(), CeilingError>
    where
        S::Peers: Extend<Peer>,
        S::Replies: Extend<Slot<Reply>>,
    {
        if peer == self.rank || self.is_rank(peer) || self.has_peer(peer) {
            return Ok(());
        }
        self.check_vacant(peer)?;
        if self.ranks > 0 && self.ledger.reserves_used() + self.reserves_kept() == self.ledger.reserves() {
            self.add_reserve()?;
        }
        self.take_reserves(self.ledger.reserves_used() + 1)?;
        self.make_place(peer);
        self.admit(peer);
        self.grow_replies();
        Ok(())
    }

    /// Makes places for the replies to all processes that have a reserve.
    pub(super) fn grow_replies(&mut self)
    where
        S::Replies: Extend<Slot<Reply>>,
    {
        let replies = self.ledger.reserves_used() as usize * WINDOW as usize;
        self.replies.grow(replies.saturating_sub(self.replies.capacity()));
    }

    /// Returns whether this number can be given to another peer ([`Engine::add_peer`]): it has none, or the peer has
    /// failed, no message of it is stored, and no request is complete whose outcome names it and was not collected. A
    /// message that a matched probe has removed from the queue is stored until it is received.
    pub fn is_vacant(&self, peer: PeerId) -> bool {
        self.check_number(peer, 0).is_ok()
    }

    /// As [`Engine::is_vacant`], for a number that is checked again and again. `from` is 0 in the first check, then the
    /// number in the error: while the same request names the peer, a check looks at no other.
    ///
    /// # Errors
    /// The number is not vacant. The error has no other meaning.
    pub fn check_number(&self, peer: PeerId, from: u32) -> Result<(), u32> {
        let is_unused = |it: &Peer| it.failure.is_some() && it.account.stored() == 0;
        if peer == self.rank || !self.peers.borrow().get(peer as usize).is_none_or(is_unused) {
            return Err(from);
        }
        let end = self.requests.capacity() as u32;
        let from = from.min(end);
        (from..end).chain(0..from).find(|index| self.names(*index, peer)).map_or(Ok(()), Err)
    }

    /// Returns whether the outcome of this request names the peer, and was not collected. The caller would take it for
    /// the next peer with the number.
    fn names(&self, index: u32, peer: PeerId) -> bool {
        #[cfg(nemesia_injected_fault)]
        if injected(InjectedFault::ForgetOutcomes) {
            return false;
        }
        self.requests.is_live(index, self.requests.generation(index))
            && match &self.requests.get(index).0 {
                State::Done(Ok(status)) => status.peer == peer,
                State::Done(Err(CompletionError::Truncated(truncation))) => truncation.status.peer == peer,
                State::Done(Err(
                    CompletionError::PeerFailed { peer: named, .. }
                    | CompletionError::Refused { peer: named, .. },
                )) => *named == peer,
                _ => false,
            }
    }

    /// Returns the next number whose peer has failed, each failure once. The number may have another peer by now, which
    /// has not failed. Ranks of a world are not among them.
    pub fn next_ended(&mut self) -> Option<PeerId> {
        let peer = self.failures.ended.first()?;
        self.failures.ended.remove_first(&mut self.peers.borrow_mut()[peer as usize].next_ended);
        Some(peer)
    }

    /// Returns the error for a number beyond all peers.
    #[cold]
    pub(super) fn no_peer(&self, rank: PeerId) -> StartError {
        match self.ranks {
            0 => StartError::PeerFailed { peer: rank, failure: Failure::Absent },
            _ => StartError::Rank { rank, size: self.size() },
        }
    }

    /// Returns whether this number is a rank of the world, which never has another peer.
    #[inline]
    pub(super) const fn is_rank(&self, peer: PeerId) -> bool {
        peer < self.ranks
    }

    fn has_peer(&self, peer: PeerId) -> bool {
        #[cfg(nemesia_injected_fault)]
        if injected(InjectedFault::OpenTwice) {
            return false;
        }
        self.peers.borrow().get(peer as usize).is_some_and(|it| it.failure.is_none())
    }

    /// Takes the units and the memory of another reserve out of the pool, in a world.
    fn add_reserve(&mut self) -> Result<(), CeilingError> {
        let Self { ledger, backing, store, .. } = self;
        let (units, peers) = (ledger.next_reserve(), ledger.reserves() + 1);
        let pooled = units.saturating_sub(backing.unbacked());
        if pooled > ledger.free() {
            let ceiling = store.ceiling_units();
            let needed = u64::from(ceiling) + u64::from(pooled - ledger.free());
            return Err(CeilingError::Units { ceiling, peers, needed });
        }
        if !backing.add_reserve(units, pooled, |more| store.commit(more)) {
            let committed = store.committed_units();
            return Err(CeilingError::Memory { committed, peers, needed: u64::from(committed + units) });
        }
        ledger.add_reserve(pooled);
        Ok(())
    }

    /// Commits the memory of `count` reserves, unless they have it.
    pub(super) fn take_reserves(&mut self, count: u32) -> Result<(), CeilingError> {
        let Self { ledger, backing, store, .. } = self;
        if count > ledger.reserves() {
            let packet = cost(self.tuning.eager_bytes.min(self.port.packet_bytes()));
            let ceiling = store.ceiling_units();
            return Err(with_own(ledger.shortage(ceiling, packet), ceiling));
        }
        #[cfg(nemesia_injected_fault)]
        if self.ranks == 0 && injected(InjectedFault::PromiseUncommitted) {
            return Ok(());
        }
        if !backing.take_reserves(count, ledger.reserve(), |more| store.commit(more)) {
            let needed = u64::from(ledger.own_units()) + u64::from(count) * u64::from(ledger.reserve());
            return Err(CeilingError::Memory { committed: store.committed_units(), peers: count, needed });
        }
        Ok(())
    }

    fn check_vacant(&self, peer: PeerId) -> Result<(), CeilingError> {
        #[cfg(nemesia_injected_fault)]
        if injected(InjectedFault::InheritMessages) {
            return Ok(());
        }
        match self.peers.borrow().get(peer as usize).map_or(0, |former| former.account.stored()) {
            0 => Ok(()),
            units => Err(CeilingError::Stored { peer, units }),
        }
    }

    /// Makes place for the numbers up to this one. The others have no peer.
    fn make_place(&mut self, peer: PeerId)
    where
        S::Peers: Extend<Peer>,
    {
        let len = self.peers.borrow().len();
        if let Some(missing) = (peer as usize + 1).checked_sub(len).filter(|missing| *missing > 0) {
            let more = missing.max(len / 2);
            self.peers.extend(core::iter::repeat_with(Peer::absent).take(more));
        }
    }
}

#[cfg(test)]
mod tests;
