//! Credit: a process sends no more than the receiver has promised memory for (invariant 4). [`crate::flow`]
//! counts and distributes the credit; [`crate::wire`] defines how grants travel.
#![forbid(unsafe_code)]

use core::borrow::{Borrow, BorrowMut};

use super::receive::stored_rts;
use crate::engine::peer::PeerQueue;
use crate::engine::request::State;
use crate::engine::{CompletionError, Engine, Peer, RequestId, Storage};
use crate::flow::{Account, ArrivedBytes};
#[cfg(nemesia_injected_fault)]
use crate::injected_fault::{InjectedFault, injected};
use crate::matching::Source;
use crate::port::{PeerId, Port, PortFault};
use crate::store::{Store, Stored, cost};
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

    /// Grants free memory to the peers that wait for it.
    fn regrant(&mut self) {
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
            State::Sending { message } => (PeerQueue::Pending, message),
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
                && stored_rts(store, id, stored)
                    .is_none_or(|rts| rts.total > (stored.len - rts.bytes()) as u64)
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
