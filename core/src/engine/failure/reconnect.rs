//! Reconnection of a rank: a process that restarts, or one that joins late.
//!
//! A failed peer can be reconnected ([`Engine::reconnect`]) when its launcher has restarted it. The two processes of
//! the rank share no state: sequence numbers, credits, requests and answers start anew. Messages of the first process
//! that are still in the store are dropped. Requests that were complete or had failed stay so.
#![forbid(unsafe_code)]

use core::borrow::{Borrow as _, BorrowMut as _};

use crate::counters::Tally;
use crate::engine::request::{CompletionError, State};
use crate::engine::state::RmaState;
use crate::engine::stored::needs_sender;
use crate::engine::{Engine, Failure, Peer, Storage};
use crate::flow::Allowance;
#[cfg(nemesia_injected_fault)]
use crate::injected_fault::{InjectedFault, injected};
use crate::port::{PeerId, Port};
use crate::store::cost;

impl Peer {
    /// Resets the state for the next process of the peer. The queues are empty since the failure. The ledger resets the
    /// account, and the engine maintains the entry in the work list.
    fn renew(&mut self) {
        self.failure = None;
        self.departed = None;
        self.unacknowledged = false;
        self.rma_state = RmaState::default();
        self.tally = Tally::default();
        #[cfg(nemesia_injected_fault)]
        if injected(InjectedFault::KeepAllowance) {
            return;
        }
        self.allowance = Allowance::default();
    }
}

impl<P: Port, S: Storage> Engine<P, S> {
    /// Reconnects a failed peer whose new process the port is connected to. All operations started from now on refer to
    /// the new process. Returns `false` without any effect if the peer has not failed, if it may be writing
    /// ([`Engine::writes_late`]), or if its credit belongs to another peer by now, in an engine that was opened alone.
    ///
    /// Messages of the former process that were not received are dropped. A message that a matched probe has removed
    /// from the queue can still be received if it arrived whole and its sender did not wait for the receive. The
    /// failure of this peer counts as acknowledged ([`Engine::acknowledge`]); failures of other peers do not. Posted
    /// receives from any source stay posted and match messages of the new process. The counters of the peer start at
    /// zero.
    #[cold]
    pub fn reconnect(&mut self, peer: PeerId) -> bool {
        if peer == self.rank
            || matches!(self.failure(peer), None | Some(Failure::Absent))
            || self.writes_late(peer)
        {
            return false;
        }
        let has_reserve = self.peer(peer).account.has_reserve();
        if !has_reserve && self.take_reserves(self.ledger.reserves_used() + 1).is_err() {
            return false;
        }
        self.forget_messages(peer);
        self.lose_claims(peer);
        self.lose_assigned(peer);
        self.admit(peer);
        true
    }

    /// Begins with the next process that has this number, which has a reserve: resets the state, and grants credit.
    pub(in crate::engine) fn admit(&mut self, peer: PeerId) {
        self.peer(peer).renew();
        if self.failures.any_source.is_some() {
            self.failures.any_source = (0..self.size()).find_map(|rank| {
                let it = self.peers.borrow().get(rank as usize)?;
                Some((rank, it.failure.filter(|_| it.unacknowledged)?))
            });
            self.failures.any_source = self.failures.any_source.or_else(|| self.unmet_failure());
        }
        let granted = self.ledger.open(self.peers.borrow_mut(), peer);
        self.port.grant(peer, granted);
    }

    /// Returns the units that this process has granted a peer so far. The port publishes them once it is connected; the
    /// layer above may publish them before, together with what the peer needs to connect.
    pub fn granted(&self, peer: PeerId) -> u64 {
        self.peers.borrow().get(peer as usize).map_or(0, |it| it.account.granted())
    }

    /// Continues queued work for a peer to which the port had no connection until now.
    #[cold]
    pub fn connected(&mut self, peer: PeerId) {
        if peer == self.rank || peer >= self.size() || self.failure(peer).is_some() {
            return;
        }
        let granted = self.peer(peer).account.granted();
        self.port.grant(peer, granted);
        self.list_work(peer);
    }

    /// Drops the messages of a failed peer that were not received. A message that a matched probe has removed from the
    /// queue can still be received if it arrived whole and its sender did not wait for the receive.
    #[cold]
    pub fn forget_peer(&mut self, peer: PeerId) {
        if self.failure(peer).is_some() {
            self.forget_messages(peer);
            self.lose_claims(peer);
            self.lose_assigned(peer);
        }
    }

    /// Drops stored messages of the former process, so that they do not mix with those of the new one.
    fn forget_messages(&mut self, peer: PeerId) {
        #[cfg(nemesia_injected_fault)]
        if injected(InjectedFault::KeepMessages) {
            return;
        }
        let mut units = 0;
        self.store.remove_where(|_, _, stored| stored.source == peer, |_, stored| units += cost(stored.len));
        self.credit_removed(peer, units);
    }

    /// Fails messages whose former sender waited for an answer and that a matched probe has removed from the queue. The
    /// answer would reach the new process.
    fn lose_claims(&mut self, peer: PeerId) {
        let Some(failure) = self.failure(peer) else { return };
        for index in 0..self.requests.capacity() as u32 {
            let is_used = self.requests.is_live(index, self.requests.generation(index));
            let State::Probed(stored) = self.requests.get(index).0 else { continue };
            if !is_used {
                continue;
            }
            let it = self.store.get(stored);
            if it.source == peer && needs_sender(&self.store, stored, &it) {
                self.discard(stored);
                self.requests.get_mut(index).0 = State::Lost(CompletionError::PeerFailed { peer, failure });
            }
        }
    }
}
