//! Event loops: a descriptor that becomes readable when there is something to do.
//!
//! The descriptor is the set in which the kernel watches the peers ([`Watch`](crate::os::Watch)): their
//! processes, their connections, and a clock. An endpoint that is *armed* announces in its sleep word that it
//! sleeps in this way. A peer that has a message for it, or room, finds the announcement as for any other
//! sleeper. It wakes the endpoint by a packet on their connection instead of a futex call. So the endpoint
//! needs no further descriptor, the kernel names the peer that sent the packet, and a peer can delay only
//! itself. An endpoint that does not sleep costs its senders nothing.
//!
//! The scheme of arming is that of `ucp_worker_arm` (UCX) and `fi_trywait` (libfabric).

use std::os::fd::{AsFd, BorrowedFd};

use nemesia_core::engine::Progress;
use nemesia_core::shared::sleep::Sleep;

use crate::endpoint::Endpoint;
use crate::endpoint::wait::LONGEST_SLEEP;
use crate::error::Error;

/// The result of [`Endpoint::arm`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a descriptor that is not armed stays silent"]
pub enum Arm {
    /// There is nothing to do now. The descriptor becomes readable as soon as there is.
    Armed,
    /// Progress was made, and the endpoint is not armed: test the requests, then arm again.
    Busy,
}

/// # Progress and event loops
///
/// Every blocking call makes progress; a program that only tests requests calls `progress` now and then. A
/// program with an event loop waits for the endpoint's descriptor beside its other descriptors.
///
/// ```
/// # nemesia::testing::world(2, |mut endpoint| {
/// use nemesia::{Arm, Source, Tag};
///
/// # fn wait_readable(_: std::os::fd::BorrowedFd<'_>) {}
/// let peer = 1 - endpoint.rank();
/// endpoint.send(peer, 1, b"nemesia!")?;
/// while endpoint.iprobe(Source::Rank(peer), Tag::Exactly(1))?.is_none() {
///     if endpoint.arm() == Arm::Armed {
///         wait_readable(endpoint.event_fd()?);
///     }
/// }
/// assert_eq!(endpoint.recv(Source::Rank(peer), Tag::Exactly(1), &mut [0; 8])?.len, 8);
/// # endpoint.barrier()?;
/// # endpoint.close()
/// # })?.into_iter().collect::<Result<(), nemesia::Error>>()?;
/// # Ok::<(), nemesia::Error>(())
/// ```
impl Endpoint {
    /// Delivers messages that have arrived and sends what is pending. Returns the number of packets moved.
    ///
    /// The work is bounded, and the call never blocks. Some calls ask the kernel whether the peers are alive.
    ///
    /// If there are more processes than cores, a process that only polls would keep its core from the peers that
    /// it waits for. After a few calls in a row that find nothing, this call, [`Endpoint::test`] and the probes
    /// therefore yield the core (`sched_yield`). They never sleep. With a core for each process, or with a fixed
    /// NEMESIA_SPIN, they do not yield.
    #[inline]
    pub fn progress(&mut self) -> usize {
        let packets = self.advance();
        self.count_call(packets);
        packets
    }

    /// Makes progress as [`Endpoint::progress`] does, but never yields the core.
    #[inline]
    pub(in crate::endpoint) fn advance(&mut self) -> usize {
        if self.is_forked() {
            return 0;
        }
        let packets = self.engine.progress().packets;
        if self.is_clock_due(packets) {
            self.look_at_clock();
        }
        packets
    }

    /// As [`Endpoint::advance`], for a caller that takes completions next.
    #[inline]
    pub(in crate::endpoint) fn advance_to_completions(&mut self) -> usize {
        if self.is_forked() {
            return 0;
        }
        let packets = self.engine.progress_to_completions().packets;
        if self.is_clock_due(packets) {
            self.look_at_clock();
        }
        packets
    }

    /// Returns the descriptor for `poll`, `epoll` or an asynchronous runtime.
    ///
    /// If the endpoint is armed, the descriptor becomes readable when a message has come, when there is room
    /// for a send that waits, or when a peer is gone. It also becomes readable about every 50 ms, which limits
    /// the delay that a hostile peer can cause by suppressing wake-ups.
    ///
    /// - It is level-triggered: once readable, it stays so until the next [`Endpoint::arm`]. Edge-triggered
    ///   loops, such as that of `tokio`, are notified of every event after an [`Endpoint::arm`] as well.
    /// - The caller only waits for it, and never reads or changes it. It is always the same descriptor and
    ///   belongs to the endpoint. For a longer borrow use `try_clone_to_owned`.
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
    /// The first call fails if the process has no free descriptor.
    pub fn event_fd(&mut self) -> Result<BorrowedFd<'_>, Error> {
        self.check_origin()?;
        self.waiter.watch.tick(LONGEST_SLEEP)?;
        Ok(self.waiter.watch.as_fd())
    }

    /// Prepares for a wait for the descriptor. Test the requests before, or take the completions, and wait only if this
    /// returns [`Arm::Armed`]. It does not while a completion is in the queue ([`Endpoint::completions`]).
    ///
    /// This call makes progress as [`Endpoint::progress`] does, and asks the kernel whether the peers are
    /// alive. It holds for one event: arm again before each wait. A call that blocks disarms, too. Only a
    /// blocking wait reports that unexpected messages have reached their limit.
    pub fn arm(&mut self) -> Arm {
        if self.is_forked() {
            return Arm::Busy;
        }
        let changed = self.check_liveness();
        // A wake-up may have been lost, and with it the entry that names the message. The cells are reliable:
        // each idle poll scans those of one peer.
        let polls = if self.waiter.watch.has_ticked() { self.numbers() } else { 1 };
        if polls > 1 {
            self.engine.port_mut().local_mut().sweep_all();
        }
        if self.engine.handlers_mut().wants_attention() {
            self.attend_handlers();
        }
        self.wake_counted();
        self.waiter.watch.expect_wake();
        self.waiter.announce(Sleep::Event, 1);
        self.advance_net();
        let is_idle = self.arm_net();
        let moved = (0..polls).any(|_| self.engine.progress() != Progress::default());
        if moved || !is_idle || changed || self.engine.has_completions() {
            self.disarm();
            return Arm::Busy;
        }
        self.waiter.counters.armed += 1;
        Arm::Armed
    }

    /// Takes back [`Endpoint::arm`], for callers that continue without a wait. This saves the next sender a
    /// system call.
    pub fn disarm(&mut self) {
        if !self.is_forked() {
            self.waiter.unpark();
        }
    }
}

#[cfg(test)]
mod tests;
