//! Liveness checks.

use nemesia_core::engine::Failure;

use crate::endpoint::Endpoint;
use crate::events;
use crate::os::Departure;

/// The number of engine turns that search for the last messages of a peer that is gone. A peer leaves no more than its
/// cells and its fastbox hold. Without this limit, a peer that only pretends to be gone could continue forever.
const DRAIN_TURNS: u32 = 256;

impl Endpoint {
    /// Asks the kernel which peers are gone, and fails those from which nothing more can come. Returns whether this may
    /// have changed anything.
    #[cold]
    pub(in crate::endpoint) fn check_liveness(&mut self) -> bool {
        if self.is_forked() {
            return false;
        }
        self.waiter.counters.liveness_checks += 1;
        self.discard_dropped();
        self.free_retired();
        self.disconnect_faulty();
        if let Ok(departed) = self.waiter.watch.poll() {
            self.leaving.extend(departed.map(|(rank, departure)| (rank, departure, 0)));
        }
        self.advance_net();
        self.warn_of_shortage(|endpoint| endpoint.net_mut()?.next_shortage());
        let changed = self.attend_net_rejoin() | self.attend_calls() | self.grow_unexpected();
        self.waiter.changes += u64::from(changed || !self.leaving.is_empty());
        if self.leaving.is_empty() {
            return changed;
        }
        for (rank, departure, turns) in std::mem::take(&mut self.leaving) {
            let peer = rank as u32;
            let failure = match departure {
                Departure::Died => Failure::Died,
                Departure::Finished => Failure::Finished,
                Departure::Dropped => Failure::Dropped,
            };
            self.engine.depart(peer, failure);
            // Messages that the peer sent before are still in its segment, and are received first.
            if turns < DRAIN_TURNS && self.engine.failure(peer).is_none() && !self.engine.drain(peer) {
                self.leaving.push((rank, departure, turns + 1));
                continue;
            }
            self.engine.fail(peer, failure);
            events::failed(rank, failure);
            self.engine.port_mut().local_mut().host_mut().regions.forget(peer);
        }
        true
    }
}
