//! The end of an endpoint: it is closed, dropped, or left to the process that owns it.

use std::time::{Duration, Instant};

use crate::endpoint::Endpoint;

/// The time for the last packets to other machines of an endpoint that is not closed, and for room at the ranks that
/// were not met, to which it announces that it leaves.
const LAST_WORDS: Duration = Duration::from_secs(1);

impl Endpoint {
    /// Marks the ends of all connections, and clears the identity stamp, before buffers of unfinished sends return to
    /// their owners. A peer that reads such a buffer later finds the mark or another stamp, and discards the bytes.
    pub(in crate::endpoint) fn forbid_reading(&mut self) {
        self.engine.port_mut().local_mut().end_offers();
        // SAFETY: only this process writes the stamp. The write is volatile, because other processes read it.
        unsafe { (&raw mut *self.stamp).write_volatile(0) };
    }

    /// Keeps a forked child from dropping what belongs to its parent. The segments are not mapped in the child, and an
    /// unmap could hit later mappings at their addresses. An exchange could speak to the launcher.
    #[cold]
    pub(in crate::endpoint) fn leave_to_parent(&mut self) {
        std::mem::forget(self.exchange.take());
        std::mem::forget(self.peers.take());
        std::mem::forget(std::mem::take(&mut self.allocations));
        std::mem::forget(std::mem::take(&mut self.retired));
        let port = self.engine.port_mut();
        port.local_mut().host_mut().leave_to_parent();
        std::mem::forget(port.take_remote());
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        if self.is_forked() {
            return self.leave_to_parent();
        }
        self.end_assists();
        self.forbid_reading();
        // Without a table of peers there is nothing to announce.
        let _ = self.with_peers(|peers, endpoint| {
            peers.send_goodbyes(endpoint.finished, &endpoint.waiter.watch);
            peers.announce_leave(Instant::now() + LAST_WORDS, endpoint);
            Ok(())
        });
        self.waiter.say_goodbye(self.finished);
        let patience = if self.finished { self.patience() } else { LAST_WORDS };
        let finished = self.finished;
        if let Some(net) = self.net_mut() {
            net.leave(finished, patience);
        }
    }
}
