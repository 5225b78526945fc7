//! What a process does that reads an empty queue again and again: it lets others run.
//!
//! MPIs poll without a pause. If there are more processes than processors, the one that polls keeps the one from the
//! processor that would send to it. So a reader gives its processor away after some failed reads. If no process has
//! wanted it, this was for nothing, and is done less often. It is also done seldom as long as this process and those on
//! this machine that it knows can have a processor each: then those that want it are programs of others, and the
//! scheduler divides the time. MPIs often bind each process to a processor, so those of all of them count.
//!
//! Whether another process has had the processor shows in the time of the call, compared with the shortest one: a peer
//! that only looks for messages gives it back within a microsecond.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::time::Instant;

/// The failed reads before a process gives its processor away: at first, if peers may have run the last time, and at
/// most.
const FIRST: u32 = 32;
const LEAST: u32 = 2;
const MOST: u32 = 4096;
/// A call that takes longer than this many of the shortest one has let another process run.
const OTHERS_RAN: u32 = 2;

/// The failed reads of a queue. Threads that read at the same time may count one too few.
#[derive(Debug)]
pub(super) struct Rest {
    failed: AtomicU32,
    patience: AtomicU32,
    /// The nanoseconds of the shortest call that gave the processor away.
    shortest: AtomicU32,
    /// The number of peers on this machine when it was found whether there are more processes than processors, and
    /// whether there were.
    known: AtomicUsize,
    is_oversubscribed: AtomicBool,
}

impl Rest {
    pub(super) fn new() -> Self {
        let [failed, patience, shortest] = [0, FIRST, u32::MAX].map(AtomicU32::new);
        let (known, is_oversubscribed) = (AtomicUsize::new(0), AtomicBool::new(false));
        Self { failed, patience, shortest, known, is_oversubscribed }
    }

    /// Notes a read that has found something.
    #[inline]
    pub(super) fn end(&self) {
        self.failed.store(0, Ordering::Relaxed);
    }

    /// Notes a failed read. Returns whether the process should give its processor away.
    #[inline]
    pub(super) fn begin(&self) -> bool {
        let failed = self.failed.load(Ordering::Relaxed) + 1;
        self.failed.store(failed, Ordering::Relaxed);
        failed >= self.patience.load(Ordering::Relaxed)
    }

    /// Learns whether there are more processes than processors, by `are_more`, if the number of peers on this
    /// machine has changed.
    pub(super) fn learn(&self, peers: usize, are_more: impl FnOnce() -> bool) {
        if self.known.swap(peers, Ordering::Relaxed) != peers {
            self.is_oversubscribed.store(are_more(), Ordering::Relaxed);
        }
    }

    /// Gives the processor away.
    #[cold]
    pub(super) fn give_way(&self) {
        let begun = Instant::now();
        std::thread::yield_now();
        let took = u32::try_from(begun.elapsed().as_nanos()).unwrap_or(u32::MAX);
        let shortest = took.min(self.shortest.load(Ordering::Relaxed));
        self.shortest.store(shortest, Ordering::Relaxed);
        let is_oversubscribed = self.is_oversubscribed.load(Ordering::Relaxed);
        let patience = match took > shortest.saturating_mul(OTHERS_RAN) {
            true if is_oversubscribed => LEAST,
            true => MOST,
            false => MOST.min(2 * self.patience.load(Ordering::Relaxed)),
        };
        self.patience.store(patience, Ordering::Relaxed);
        self.end();
    }
}
