//! A rank that is there again as a new process, and one that comes late.
//!
//! A peer that failed can be taken back ([`Engine::revive`]) when its launcher has started it again. Between the two
//! processes of a rank there is nothing in common: sequence numbers, credits, requests and answers begin anew, and what the
//! first one left in the store is dropped. What was complete, or had failed, stays so.
#![forbid(unsafe_code)]

use core::borrow::{Borrow as _, BorrowMut as _};

use super::request::{Fate, State};
use super::rma::Side;
use super::{Engine, Peer, Storage};
#[cfg(nemesia_blunder)]
use crate::blunder::{Blunder, made};
use crate::counters::Tally;
use crate::flow::Allowance;
use crate::port::{MessagePort, PeerId};
use crate::store::cost;
use crate::wire::Kind;

impl Peer {
    /// Nothing is known of its next process. Its queues are empty since it failed; its account is the ledger's, its place
    /// in the list of work the engine's.
    fn renew(&mut self) {
        self.failure = None;
        self.departed = None;
        self.unacknowledged = false;
        self.side = Side::default();
        self.tally = Tally::default();
        #[cfg(nemesia_blunder)]
        if made(Blunder::KeepAllowance) {
            return;
        }
        self.allowance = Allowance::default();
    }
}

impl<P: MessagePort, S: Storage> Engine<P, S> {
    /// A peer that failed is there again as a new process, and the port is connected to that: whatever is started from now on
    /// is with the new one. False, and nothing is done, when it has not failed.
    ///
    /// What came from the process before and was not received is dropped; a message that a matched probe has taken out can
    /// still be received if it had come whole and its sender did not wait for that. Its failure counts as acknowledged ([`Engine::acknowledge`]), those of others
    /// do not. Receives from any source that are posted go on, and match what the new process sends. What is counted of the
    /// peer is counted from the beginning.
    #[cold]
    pub fn revive(&mut self, peer: PeerId) -> bool {
        if peer == self.rank || self.failure(peer).is_none() {
            return false;
        }
        self.forget_messages(peer);
        self.lose_claims(peer);
        self.peer(peer).renew();
        self.any_source_failure = (0..self.size()).find_map(|rank| {
            let it = self.peers.borrow().get(rank as usize)?;
            Some((rank, it.failure.filter(|_| it.unacknowledged)?))
        });
        let granted = self.ledger.open(self.peers.borrow_mut(), peer);
        self.port.grant(peer, granted);
        true
    }

    /// The port has now a connection to a peer that had none since the start: what waited for it goes on.
    #[cold]
    pub fn connected(&mut self, peer: PeerId) {
        if peer == self.rank || peer >= self.size() || self.failure(peer).is_some() {
            return;
        }
        let granted = self.peer(peer).account.granted();
        self.port.grant(peer, granted);
        self.list_work(peer);
    }

    /// What the process before has sent does not mix with what the next one sends.
    fn forget_messages(&mut self, peer: PeerId) {
        #[cfg(nemesia_blunder)]
        if made(Blunder::KeepMessages) {
            return;
        }
        let mut units = 0;
        self.store.remove_where(|_, _, stored| stored.source == peer, |_, stored| units += cost(stored.len));
        self.credit_removed(peer, units);
    }

    /// Messages that it had only announced, and that were taken out by a matched probe, never come.
    fn lose_claims(&mut self, peer: PeerId) {
        let Some(failure) = self.failure(peer) else { return };
        for index in 0..self.requests.capacity() as u32 {
            let is_used = self.requests.is_live(index, self.requests.generation(index));
            let State::Probed(stored) = self.requests.get(index).0 else { continue };
            if !is_used {
                continue;
            }
            let it = self.store.get(stored);
            if it.source == peer && it.kind == Kind::Rts {
                self.discard(stored);
                self.requests.get_mut(index).0 = State::Lost(Fate::PeerFailed { peer, failure });
            }
        }
    }
}
