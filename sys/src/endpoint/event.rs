//! Waiting in an event loop: a descriptor that becomes readable when there is something to do.
//!
//! The descriptor is the set in which the kernel watches the peers ([`Watch`](crate::os::Watch)): their processes,
//! their connections, and a clock. An endpoint that is *armed* says in its sleep word that it sleeps in this way; a
//! peer that then has a message for it, or room, finds the word up as for any other sleeper, and wakes it by a packet
//! on their connection instead of a futex call. So nobody needs another descriptor, the kernel says who spoke, and a
//! peer can hold up nobody but itself. Whoever does not sleep costs its senders nothing.
//!
//! The scheme of arming is that of `ucp_worker_arm` (UCX) and `fi_trywait` (libfabric).

use std::os::fd::{AsFd, BorrowedFd};

use nemesia_core::engine::Progress;
use nemesia_core::shared::sleep::Sleep;

use super::Endpoint;
use super::wait::LONGEST_SLEEP;
use crate::error::Error;

/// What [`Endpoint::arm`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a descriptor that is not armed stays silent"]
pub enum Arm {
    /// Nothing is to be done now, and the descriptor becomes readable as soon as something is.
    Armed,
    /// Something was done, and nothing is armed: test the requests, then arm again.
    Busy,
}

impl Endpoint {
    /// Delivers what has come and sends what is pending; bounded work, never blocks. Returns the packets moved.
    ///
    /// From time to time it asks the kernel whether the peers live.
    #[inline]
    pub fn progress(&mut self) -> usize {
        if self.is_forked() {
            return 0;
        }
        let packets = self.engine.progress().packets;
        if self.is_clock_due(packets) {
            self.look_at_clock();
        }
        packets
    }

    /// The descriptor for `poll`, `epoll` or an asynchronous runtime: readable when a message has come, there is room
    /// for a send that waits, or a peer is gone, for an endpoint that is armed; and about every 50 ms, so that a
    /// hostile peer that keeps others from waking us delays us no longer than that.
    ///
    /// - Level-triggered: once readable it stays so until the next [`Endpoint::arm`]. Edge-triggered loops, such as
    ///   that of `tokio`, are told of everything that happens after an [`Endpoint::arm`] as well.
    /// - To be waited for only: never read, never changed. Always the same, and the endpoint's: for a longer borrow use
    ///   `try_clone_to_owned`.
    ///
    /// ```no_run
    /// # fn wait_readable(_: std::os::fd::BorrowedFd<'_>) {}
    /// # fn go(mut endpoint: nemesia::Endpoint, request: nemesia::Request) -> Result<(), nemesia::Error> {
    /// let status = loop {
    ///     if let Some(status) = endpoint.test(request)? {
    ///         break status;
    ///     }
    ///     if endpoint.arm() == nemesia::Arm::Armed {
    ///         wait_readable(endpoint.event_fd()?);
    ///     }
    /// };
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// The first call may lack descriptors.
    pub fn event_fd(&mut self) -> Result<BorrowedFd<'_>, Error> {
        self.check_origin()?;
        self.waiter.watch.tick(LONGEST_SLEEP)?;
        Ok(self.waiter.watch.as_fd())
    }

    /// Prepares for waiting for the descriptor: test the requests before, and wait only if this returns [`Arm::Armed`].
    /// Delivers and sends as [`Endpoint::progress`] does, and asks the kernel whether the peers live.
    ///
    /// It holds for one event: arm again before each wait. Any call that blocks ends it, too. Only a blocking wait says
    /// that unexpected messages have reached their ceiling.
    pub fn arm(&mut self) -> Arm {
        if self.is_forked() {
            return Arm::Busy;
        }
        let changed = self.check_liveness();
        // A wake-up may have been lost, and with it the entry that names the message: the cells are the truth. Each
        // idle poll looks through those of one peer.
        let polls = if self.waiter.watch.has_ticked() { self.size() } else { 1 };
        if polls > 1 {
            self.engine.port_mut().sweep_all();
        }
        if self.engine.handlers_mut().wants_attention() {
            self.attend_handlers();
        }
        self.wake_counted();
        self.waiter.watch.expect_wake();
        self.waiter.announce(Sleep::Event, 1);
        if (0..polls).any(|_| self.engine.progress() != Progress::default()) || changed {
            self.disarm();
            return Arm::Busy;
        }
        self.waiter.counters.armed += 1;
        Arm::Armed
    }

    /// Takes back [`Endpoint::arm`], for those who go on without waiting: saves the next sender a system call.
    pub fn disarm(&mut self) {
        if !self.is_forked() {
            self.waiter.unpark();
        }
    }
}
