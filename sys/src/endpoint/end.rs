//! The end of an endpoint: closed, dropped, or left to the process that it belongs to.

use super::Endpoint;

impl Endpoint {
    /// Before buffers whose sends have not ended go back to their owners: a peer that reads them later finds that we
    /// are not who it knows, and not whatever is there then.
    pub(super) fn forbid_reading(&mut self) {
        // SAFETY: our own number, which nobody else writes. Volatile, as other processes read it.
        unsafe { (&raw mut *self.stamp).write_volatile(0) };
    }

    /// In a forked child: keeps what is the parent's from being dropped. The segments are not mapped here, and
    /// unmapping them could hit what has been mapped at their addresses since; an exchange could speak to the launcher.
    #[cold]
    pub(super) fn leave_to_parent(&mut self) {
        std::mem::forget(self.exchange.take());
        std::mem::forget(std::mem::take(&mut self.allocations));
        std::mem::forget(std::mem::take(&mut self.direct));
        self.engine.port_mut().host_mut().leave_to_parent();
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        if self.is_forked() {
            return self.leave_to_parent();
        }
        self.end_assists();
        self.forbid_reading();
        self.rejoin.send_goodbyes(self.finished);
        self.waiter.say_goodbye(self.finished);
    }
}
