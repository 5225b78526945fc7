//! Credit: a process sends no more than the receiver has promised memory for (invariant 4). [`crate::flow`]
//! counts and distributes the credit; [`crate::wire`] defines how grants travel.
#![forbid(unsafe_code)]

use core::borrow::{Borrow, BorrowMut};

use crate::engine::peer::PeerQueue;
use crate::engine::request::State;
use crate::engine::stored::stored_rts;
use crate::engine::{CompletionError, Engine, Peer, RequestId, Storage};
use crate::flow::{Account, ArrivedBytes};
#[cfg(nemesia_injected_fault)]
use crate::injected_fault::{InjectedFault, injected};
use crate::matching::Source;
use crate::port::{PeerId, Port, PortFault};
use crate::store::{Store, Stored, UNIT, cost};
use crate::trace::Recorder as _;
use crate::wire::Kind;

impl AsMut<Account> for Peer {
    fn as_mut(&mut self) -> &mut Account {
        &mut self.account
    }
}

impl<P: Port, S: Storage> Engine<P, S> {
    /// Grants every peer its initial credit.
    pub(in crate::engine) fn open_accounts(&mut self) {
        let me = self.rank;
        for peer in (0..self.size()).filter(|&peer| peer != me) {
            let granted = self.ledger.open(self.peers.borrow_mut(), peer);
            self.grant(peer, granted);
        }
    }

    /// Sends a peer its total credit so far.
    fn grant(&mut self, peer: PeerId, granted: u64) {
        self.trace.note("grant", granted);
        self.peer(peer).tally.grants += 1;
        self.port.grant(peer, granted);
    }

    /// Returns whether there is credit for a message of at most `units` units at the receiver.
    #[inline(always)]
    pub(in crate::engine) fn has_credit(&mut self, to: PeerId, units: u32) -> bool {
        let allowance = &mut self.peers.borrow_mut()[to as usize].allowance;
        allowance.may(units) || {
            // The grant is read only when needed, because the receiver writes its cache line.
            allowance.raise(self.port.granted(to));
            allowance.may(units)
        }
    }

    /// Charges the credit account of `from` for a message of `units` units. `stored` says whether the message
    /// will be stored.
    ///
    /// # Errors
    /// The peer had no credit for the message.
    #[inline(always)]
    pub(in crate::engine) fn charge(
        &mut self,
        from: PeerId,
        units: u32,
        stored: bool,
    ) -> Result<(), PortFault> {
        let account = &mut self.peers.borrow_mut()[from as usize].account;
        if account.try_arrive(units, stored) {
            return Ok(());
        }
        self.charge_due(from, units, stored)
    }

    /// Charges through the ledger, which may free credit for waiting peers.
    #[cold]
    fn charge_due(&mut self, from: PeerId, units: u32, stored: bool) -> Result<(), PortFault> {
        self.back_credit();
        match self.ledger.arrived(self.peers.borrow_mut(), from, units, stored) {
            ArrivedBytes::Fine => {}
            ArrivedBytes::Regrant(granted) => self.grant(from, granted),
            ArrivedBytes::Overdrawn => return Err(PortFault::Credit { units: units.into() }),
        }
        self.regrant();
        Ok(())
    }

    /// Returns the credit of a stored message that was removed.
    pub(in crate::engine) fn credit_removed(&mut self, source: PeerId, units: u32) {
        #[cfg(nemesia_injected_fault)]
        if injected(InjectedFault::KeepCredit) {
            return;
        }
        if source == self.rank {
            self.ledger.release(units);
        } else if let Some(granted) = self.ledger.removed(self.peers.borrow_mut(), source, units) {
            self.grant(source, granted);
        }
        self.regrant();
    }

    /// Commits memory for the pool if an account could not be refilled from it. Credit is granted only afterwards
    /// (invariant 4).
    pub(in crate::engine) fn back_credit(&mut self) {
        let low = self.ledger.widest().saturating_sub(self.ledger.free());
        if low > 0 && self.backing.is_due() {
            #[cfg(nemesia_injected_fault)]
            if injected(InjectedFault::GrantUncommitted) {
                self.ledger.add_to_pool(low);
                return;
            }
            let backed = self.backing.back(low, |more| self.store.commit(more));
            self.ledger.add_to_pool(backed);
        }
    }

    /// Widens the window of a peer that has announced a message for want of credit, although a receive was posted.
    #[cold]
    pub(super) fn widen_credit(&mut self, from: PeerId) {
        let spare = self.ledger.free() + self.backing.unbacked();
        if let Some(granted) = self.ledger.widen(self.peers.borrow_mut(), from, spare) {
            self.grant(from, granted);
        }
    }

    /// Takes units for a message to this process itself. Returns `false` if there is no memory for it.
    pub(super) fn reserve_own(&mut self, units: u32) -> bool {
        self.ledger.try_reserve(units) || {
            self.back_credit();
            self.ledger.try_reserve(units)
        }
    }

    /// Raises the ceiling for unexpected messages by `units` units, at most to the size of the lent memory, and
    /// grants them to the peers that wait for memory. Returns by how many units it was raised.
    #[cold]
    pub fn raise_ceiling(&mut self, units: u32) -> u32 {
        let raised = self.backing.raise(units);
        self.back_credit();
        self.regrant();
        for peer in 0..self.size() {
            if peer == self.rank && self.is_held(peer) {
                self.list_work(peer);
            }
        }
        raised
    }

    /// Returns the number of units by which [`Engine::raise_ceiling`] can still raise the ceiling.
    pub const fn growth_units(&self) -> u32 {
        self.backing.beyond()
    }

    /// Returns whether a peer that is held back may get credit without a receive: another peer has credit from the
    /// pool, which it returns if receives match its messages.
    pub fn may_be_regranted(&self) -> bool {
        self.peers.borrow().iter().any(|peer| peer.failure.is_none() && peer.account.may_return())
    }

    /// Returns a peer to which a message cannot leave because it has granted no credit. It then has no room for
    /// unexpected messages, and receives none of those that it has.
    pub fn holding_peer(&mut self) -> Option<PeerId> {
        let waits = |it: &Self, peer: PeerId| {
            peer != it.rank && !it.peers.borrow()[peer as usize].queue(PeerQueue::Pending).is_empty()
        };
        (0..self.size()).find(|&peer| waits(self, peer) && !self.has_credit(peer, cost(0)))
    }

    /// Returns whether there is less memory than the ceiling allows: the memory refused to commit more.
    pub const fn lacks_memory(&self) -> bool {
        self.backing.is_due() && self.ledger.free() < self.ledger.window()
    }

    /// Returns the bytes that are committed for unexpected messages.
    pub const fn committed_bytes(&self) -> usize {
        self.store.committed_units() as usize * UNIT
    }

    /// Returns whether the ceiling holds back something that this process waits for: a posted receive whose message
    /// a peer cannot send, or a message of this process that waits for a peer which itself is held back here. The
    /// latter peer may be waiting to send, and would then receive nothing either.
    #[cold]
    pub fn is_growth_due(&self) -> bool {
        let waits = |peer: PeerId| {
            let it = &self.peers.borrow()[peer as usize];
            self.is_held(peer) && !it.queue(PeerQueue::Pending).is_empty()
        };
        (0..self.size()).any(waits)
            || self.held_peers() > 0
                && (0..self.requests.touched() as u32).any(|index| self.may_be_held(self.id(index)))
    }

    /// Grants free memory to the peers that wait for it.
    fn regrant(&mut self) {
        self.back_credit();
        while let Some((peer, granted)) = self.ledger.next_regrant(self.peers.borrow_mut()) {
            self.grant(peer, granted);
        }
    }

    /// Returns whether a peer cannot send until messages are received, because it has no credit. For this
    /// process's own rank: whether a message to itself waits for memory.
    pub fn is_held(&self, peer: PeerId) -> bool {
        self.peers.borrow().get(peer as usize).is_some_and(|it| match it.failure {
            _ if peer == self.rank => !it.queue(PeerQueue::Pending).is_empty(),
            None => it.account.window() == 0,
            Some(_) => false,
        })
    }

    /// Returns the number of peers that cannot send until messages are received.
    pub fn held_peers(&self) -> usize {
        (0..self.size()).filter(|&peer| self.is_held(peer)).count()
    }

    /// Returns whether `id` is a posted receive whose message may be blocked by lack of memory.
    pub fn may_be_held(&self, id: RequestId) -> bool {
        self.posted_source(id).is_some_and(|source| self.may_source_be_held(source))
    }

    /// Returns whether messages for a receive from `source` may be blocked by lack of memory.
    pub fn may_source_be_held(&self, source: Source) -> bool {
        if let Source::Rank(rank) = source {
            return self.is_held(rank);
        }
        // Any source: while at least one peer can send, the message may come from that peer.
        let silent = |rank| rank == self.rank || self.is_held(rank) || self.failure(rank).is_some();
        self.held_peers() > 0 && (0..self.size()).all(silent)
    }

    /// Returns whether `id` is a message to this process itself that no receive has matched, and that would
    /// be complete if there were memory to store it.
    pub fn is_own_send_held(&self, id: RequestId) -> bool {
        self.held_own(id).is_some()
    }

    /// Returns the queue that contains such a message.
    fn held_own(&self, id: RequestId) -> Option<PeerQueue> {
        if !self.requests.is_live(id.index, id.generation) {
            return None;
        }
        let (queue, message) = match &self.requests.get(id.index).0 {
            State::Sending { message, .. } => (PeerQueue::Pending, message),
            State::Offered { to, message, .. } if *to == self.rank => (PeerQueue::Offered, message),
            _ => return None,
        };
        let mut own = self.peers.borrow().get(self.rank as usize)?.queue(queue).first();
        while own.is_some_and(|index| index != id.index) {
            own = own.and_then(|index| self.requests.next(index));
        }
        (own.is_some() && !message.synchronous && message.eager_len(self.eager_bytes).is_some())
            .then_some(queue)
    }

    /// Withdraws a message for which [`Engine::is_own_send_held`] returns `true`. Nothing is sent, and the
    /// caller may reuse the buffer. The request completes with [`CompletionError::Cancelled`]. Returns
    /// `false` if `id` is no such message, or if a matched probe has removed the message from the queue.
    pub fn withdraw_own_send(&mut self, id: RequestId) -> bool {
        let Some(queue) = self.held_own(id) else { return false };
        if queue == PeerQueue::Offered && !self.forget_own_offer(id) {
            return false;
        }
        self.dequeue(self.rank, queue, id.index);
        self.complete(id.index, Err(CompletionError::Cancelled));
        true
    }

    /// Drops the stored RTS of a message to this process itself. Returns `false` if it is not in the store.
    fn forget_own_offer(&mut self, id: RequestId) -> bool {
        let me = self.rank;
        let is_it = |store: &Store<_, _>, at: u32, stored: &Stored| {
            let rts = stored_rts(store, at, stored);
            stored.source == me && rts.is_some_and(|rts| rts.sender == id.to_bits())
        };
        let mut units = 0;
        self.store.remove_where(is_it, |_, stored| units += cost(stored.len));
        self.credit_removed(me, units);
        units > 0
    }

    /// Closes the account of a failed peer. Its grant is void, and the messages that it has only announced
    /// are dropped. Messages that travelled whole with their RTS, as short synchronous messages do, can still
    /// be received.
    pub(in crate::engine) fn close_account(&mut self, peer: PeerId) {
        let gone = |store: &Store<_, _>, id: u32, stored: &Stored| {
            stored.source == peer
                && stored.kind == Kind::Rts
                && stored_rts(store, id, stored).is_none_or(|rts| rts.total > rts.arrived(stored.len))
        };
        #[cfg(nemesia_injected_fault)]
        let gone = |store: &Store<_, _>, id: u32, stored: &Stored| {
            gone(store, id, stored) && !injected(InjectedFault::KeepOffers)
                || injected(InjectedFault::DropWhole) && stored.source == peer && stored.kind == Kind::Rts
        };
        let mut units = 0;
        self.store.remove_where(gone, |_, stored| units += cost(stored.len));
        self.ledger.close(self.peers.borrow_mut(), peer);
        self.credit_removed(peer, units);
    }
}
