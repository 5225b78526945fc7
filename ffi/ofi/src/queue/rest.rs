//! What a process does that reads an empty queue again and again: it lets others run.
//!
//! MPIs poll without a pause. If there are more processes than processors, the one that polls keeps the one from the
//! processor that would send to it. So a reader gives its processor away after some failed reads. If no process has
//! wanted it, this was for nothing, and is done less often. It is also done seldom as long as this process and those on
//! this machine that it knows can have a processor each: then those that want it are programs of others, and the
//! scheduler divides the time. MPIs often bind each process to a processor, so those of all of them count.
//!
//! There, the reader rather waits in the endpoint, which yields or sleeps, and is woken by messages. A yield reaches
//! only processes of the same session, and Hydra starts each process in one of its own: then the kernel leaves the
//! processor to the reader that has yielded, for some milliseconds. If the processor goes to a process that computes,
//! it is gone for as long. Only a reader that polls without a pause waits: one that does something else between its
//! reads would be held up.
//!
//! The kernel counts how often another thread has had the processor of this one: time does not show it. Where four
//! processes that poll share a processor, each call that gives it away takes as long as the others poll, the shortest
//! one, too. If calls of the same length count as vain ones, all of them poll longer and longer.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use nemesia::internals::os::clock;

/// The failed reads before a process gives its processor away: at first, and if peers have run the last time.
const FIRST: u32 = 32;
const LEAST: u32 = 2;
/// The failed reads before a process that has waited does so again.
const FEW: u32 = 16;
/// The ticks of the clock that a read and what an MPI does between two reads take at most: some microseconds.
const RAPID: u64 = 1 << 13;
/// The most of them, and the most if there are more processes than processors: a few of their reads.
const MOST: u32 = 4096;
const MOST_OVERSUBSCRIBED: u32 = 256;

thread_local! {
    /// How often another thread had had the processor of this one when this thread gave it away last.
    static SWITCHES: Cell<u64> = const { Cell::new(0) };
}

/// The failed reads of a queue. Threads that read at the same time may count one too few.
#[derive(Debug)]
pub(super) struct Rest {
    failed: AtomicU32,
    patience: AtomicU32,
    /// The number of peers on this machine when it was found whether there are more processes than processors, and
    /// whether there were.
    known: AtomicUsize,
    is_oversubscribed: AtomicBool,
    /// The ticks at the first of the failed reads, if there are more processes than processors.
    begun: AtomicU64,
}

impl Rest {
    pub(super) fn new() -> Self {
        let [failed, patience] = [0, FIRST].map(AtomicU32::new);
        let (known, is_oversubscribed) = (AtomicUsize::new(0), AtomicBool::new(false));
        Self { failed, patience, known, is_oversubscribed, begun: AtomicU64::new(0) }
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
        // Elsewhere the time is not needed, and the clock costs some nanoseconds that a message may have to wait.
        if failed == 1 && self.is_oversubscribed() {
            self.begun.store(clock::ticks(), Ordering::Relaxed);
        }
        self.failed.store(failed, Ordering::Relaxed);
        failed >= self.patience.load(Ordering::Relaxed)
    }

    pub(super) fn is_oversubscribed(&self) -> bool {
        self.is_oversubscribed.load(Ordering::Relaxed)
    }

    /// Returns whether the failed reads have followed each other without a pause.
    pub(super) fn is_rapid(&self, now: u64) -> bool {
        let took = now.wrapping_sub(self.begun.load(Ordering::Relaxed));
        took < RAPID * u64::from(self.failed.load(Ordering::Relaxed))
    }

    /// Notes the end of a wait.
    pub(super) fn wake(&self) {
        self.patience.store(FEW, Ordering::Relaxed);
        self.end();
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
        std::thread::yield_now();
        let count = switches();
        self.learn_yield(SWITCHES.replace(count) != count);
        self.end();
    }

    /// Learns from a call that gave the processor away: whether another thread has had it since the call before.
    fn learn_yield(&self, have_others_run: bool) {
        let is_oversubscribed = self.is_oversubscribed();
        let most = if is_oversubscribed { MOST_OVERSUBSCRIBED } else { MOST };
        let patience = match have_others_run {
            true if is_oversubscribed => LEAST,
            true => most,
            false => most.min(2 * self.patience.load(Ordering::Relaxed)),
        };
        self.patience.store(patience, Ordering::Relaxed);
    }
}

/// Returns how often another thread has had the processor of this one.
fn switches() -> u64 {
    // SAFETY: a structure of numbers, for which 0 is valid.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the structure lives during the call. It does not fail for the calling thread.
    unsafe { libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage) };
    (usage.ru_nvcsw + usage.ru_nivcsw) as u64
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::{FEW, FIRST, LEAST, MOST, MOST_OVERSUBSCRIBED, RAPID, Rest};

    /// Returns the failed reads until the processor is given away.
    fn reads(rest: &Rest) -> u32 {
        let reads = 1 + (0..2 * MOST).take_while(|_| !rest.begin()).count() as u32;
        rest.end();
        reads
    }

    #[test]
    fn oversubscribed_process_gives_way_soon_for_as_long_as_others_run() {
        let rest = Rest::new();
        rest.learn(7, || true);
        assert_eq!(reads(&rest), FIRST);
        for _ in 0..100 {
            rest.learn_yield(true);
            assert_eq!(reads(&rest), LEAST);
        }
        for _ in 0..100 {
            rest.learn_yield(false);
        }
        assert_eq!(reads(&rest), MOST_OVERSUBSCRIBED);
        rest.learn_yield(true);
        assert_eq!(reads(&rest), LEAST);
    }

    #[test]
    fn reader_waits_again_after_few_reads_unless_it_does_something_else_between_them() {
        let rest = Rest::new();
        rest.learn(7, || true);
        rest.wake();
        assert_eq!(reads(&rest), FEW);
        assert!(!rest.begin() && !rest.begin());
        let begun = rest.begun.load(Ordering::Relaxed);
        assert!(rest.is_rapid(begun + 2 * RAPID - 1));
        assert!(!rest.is_rapid(begun + 2 * RAPID));
    }

    #[test]
    fn process_with_a_processor_of_its_own_gives_way_seldom() {
        let rest = Rest::new();
        rest.learn(1, || false);
        rest.learn_yield(true);
        assert_eq!(reads(&rest), MOST);
        let rest = Rest::new();
        rest.learn(1, || false);
        rest.learn_yield(false);
        assert_eq!(reads(&rest), 2 * FIRST);
    }
}
