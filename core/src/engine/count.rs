//! Updates and snapshots of the counters. Further counts, of packets and credits, are derived
//! ([`crate::counters`]).
#![forbid(unsafe_code)]

#[cfg(test)]
mod tests;

use core::borrow::Borrow;

use super::{Engine, Failure, Peer, Storage};
use crate::counters::{EngineCounters, PeerCounters};
use crate::port::{PeerId, Port};
use crate::store::UNIT;
use crate::trace::Recorder as _;
use crate::wire::Kind;
use crate::wire::rma::RmaOperation;

impl<P: Port, S: Storage> Engine<P, S> {
    /// Counts an arrived eager message. This is the only counter that the critical path updates.
    #[inline(always)]
    pub(super) fn count_eager(&mut self, from: PeerId, bytes: usize) {
        self.peer(from).tally.received[Kind::Eager.index()].bytes += bytes as u64;
    }

    /// Counts a message to this process itself that was delivered, stored or announced.
    pub(super) fn count_own(&mut self, bytes: usize) {
        let rank = self.rank;
        let tally = &mut self.peer(rank).tally;
        tally.sent[Kind::Eager.index()].add(bytes);
        tally.received[Kind::Eager.index()].add(bytes);
    }

    /// Counts an unexpected message that was stored.
    pub(super) fn count_stored(&mut self, from: PeerId, bytes: usize) {
        self.peer(from).tally.unexpected.add(bytes);
        let messages = self.store.len() as u64;
        let units = u64::from(self.store.used_units());
        let (most, most_units) = self.most_stored;
        self.most_stored = (most.max(messages), most_units.max(units));
    }

    /// Counts a one-sided operation that was started.
    pub(super) fn count_operation(&mut self, to: PeerId, operation: RmaOperation, bytes: usize) {
        self.trace.note(operation.name(), bytes as u64);
        let tally = &mut self.peer(to).tally;
        match operation {
            RmaOperation::Put => tally.puts.add(bytes),
            RmaOperation::Get => tally.gets.add(bytes),
            RmaOperation::Accumulate => tally.accumulates.add(bytes),
            RmaOperation::Fetch | RmaOperation::CompareSwap | RmaOperation::FetchAccumulate => {
                tally.fetches.add(bytes);
            }
            RmaOperation::Flush => tally.flushes += 1,
            RmaOperation::Describe | RmaOperation::Withdraw => {}
        }
    }

    /// Counts a one-sided operation that the layer above performed directly on mapped memory, without the
    /// engine.
    #[inline]
    pub fn count_direct(&mut self, to: PeerId, operation: RmaOperation, bytes: usize) {
        if to < self.size() {
            self.count_operation(to, operation, bytes);
            self.peer(to).tally.direct.add(bytes);
        }
    }

    /// Returns the counters of a peer or of this process itself. A failed peer keeps its counters. `None` if
    /// the rank does not exist.
    pub fn peer_counters(&self, peer: PeerId) -> Option<PeerCounters> {
        let it = self.peers.borrow().get(peer as usize)?;
        let traffic = (peer != self.rank).then(|| it.tally.last.unwrap_or_else(|| self.port.traffic(peer)));
        Some(PeerCounters {
            credit_granted: it.account.granted(),
            credit_used: it.account.arrived(),
            credit_received: it.allowance.limit(),
            credit_spent: it.allowance.spent(),
            ..it.tally.snapshot(traffic)
        })
    }

    /// Returns the sum of the counters of all ranks, this process included.
    pub fn counters(&self) -> PeerCounters {
        let all = (0..self.size()).filter_map(|peer| self.peer_counters(peer));
        all.fold(PeerCounters::default(), |sum, it| sum.plus(&it))
    }

    /// Returns the counters that do not belong to one peer.
    pub fn engine_counters(&self) -> EngineCounters {
        let peers: &[Peer] = self.peers.borrow();
        let gone =
            |wanted: fn(Failure) -> bool| peers.iter().filter(|it| it.failure.is_some_and(wanted)).count();
        let (unexpected_most, units) = self.most_stored;
        EngineCounters {
            unexpected_now: self.store.len() as u64,
            unexpected_most,
            unexpected_most_bytes: units * UNIT as u64,
            active_unhandled: self.active.unhandled(),
            peers_died: gone(|failure| failure == Failure::Died) as u64,
            peers_finished: gone(|failure| failure == Failure::Finished) as u64,
            peers_dropped: gone(|failure| failure == Failure::Dropped) as u64,
            peers_at_fault: gone(|failure| matches!(failure, Failure::Fault(_))) as u64,
        }
    }
}
