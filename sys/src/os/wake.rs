//! Sleeping until a peer wakes this process, and a fence that lets the waker do without one.
//!
//! The sleeper sets a flag in its queue segment, issues a [`HeavyFence`], checks its queue once more, and waits
//! on the futex word. A sender publishes its entry, runs a compiler fence, and reads the flag. The heavy fence
//! makes every running thread of every *registered* process pass through a full memory barrier. So either the
//! sleeper sees the entry or the sender sees the flag. This holds only between processes that have all called
//! [`HeavyFence::register`]. Each process states in its handshake whether it is registered. If one of two
//! processes is not, both use full fences.

use std::ffi::{c_int, c_long};
use std::io;
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::time::Duration;

use super::call::{self, checked_long, timespec};

/// The reason why [`futex_wait`] returned. After any of them, the caller checks its condition again; none
/// proves a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitResult {
    /// A thread called [`futex_wake`], or the kernel woke this one for no reason.
    Woken,
    /// The word did not hold the expected value.
    ValueChanged,
    /// The timeout passed.
    TimedOut,
    /// A signal arrived.
    Interrupted,
    /// The kernel or a sandbox refuses futexes, with this error number: the caller must sleep in another way.
    Refused(i32),
}

/// Sleeps while `word` holds `expected`, at most for `timeout` (monotonic; `None` is without limit).
///
/// Works between processes: the kernel identifies the word by its place in the shared file, not by its address.
/// Any number of threads may wait on one word. A peer that writes the word can make this return early, never
/// late: the timeout holds whatever the peer does.
pub fn futex_wait(word: &AtomicU32, expected: u32, timeout: Option<Duration>) -> WaitResult {
    let timeout = timeout.map(timespec);
    let timeout = timeout.as_ref().map_or(ptr::null(), ptr::from_ref);
    // SAFETY: `word` is a live, aligned u32 for the length of the borrow; the kernel only reads it. `timeout` is null
    // or points to a timespec that outlives the call.
    let result =
        unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, expected, timeout) };
    outcome(result)
}

fn outcome(result: c_long) -> WaitResult {
    match checked_long(result).map_err(|error| error.raw_os_error()) {
        Ok(_) => WaitResult::Woken,
        Err(Some(libc::EAGAIN)) => WaitResult::ValueChanged,
        Err(Some(libc::ETIMEDOUT)) => WaitResult::TimedOut,
        Err(Some(libc::EINTR)) => WaitResult::Interrupted,
        Err(errno) => WaitResult::Refused(errno.unwrap_or(0)),
    }
}

/// Wakes at most `count` threads that wait on `word`, in any process. Returns the number of threads woken.
///
/// A failure counts as 0: the sleepers' timeouts bound the delay.
pub fn futex_wake(word: &AtomicU32, count: u32) -> usize {
    if count == 0 {
        return 0; // the kernel would wake one
    }
    let count = c_int::try_from(count).unwrap_or(c_int::MAX);
    // SAFETY: `word` is a live, aligned u32; the kernel uses its address as a key only.
    let result = unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, count) };
    usize::try_from(result).unwrap_or(0)
}

/// Sleeps as [`futex_wait`] does, between threads of this process, until [`futex_wake_bits`] is called with one
/// of these bits.
pub fn futex_wait_bits(word: &AtomicU32, expected: u32, bits: u32, timeout: Option<Duration>) -> WaitResult {
    let operation = libc::FUTEX_WAIT_BITSET | libc::FUTEX_PRIVATE_FLAG;
    // This call takes a time, not a duration.
    let end = timeout.and_then(|timeout| Some(timespec(monotonic()?.checked_add(timeout)?)));
    let end = end.as_ref().map_or(ptr::null(), ptr::from_ref);
    let nobody: *const u32 = ptr::null();
    // SAFETY: `word` is a live, aligned u32 for the length of the borrow; the kernel only reads it. `end` is null or
    // points to a timespec that outlives the call.
    let result =
        unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), operation, expected, end, nobody, bits) };
    outcome(result)
}

/// Wakes every thread of this process that waits on `word` by [`futex_wait_bits`] for one of these bits.
pub fn futex_wake_bits(word: &AtomicU32, bits: u32) {
    let operation = libc::FUTEX_WAKE_BITSET | libc::FUTEX_PRIVATE_FLAG;
    let nobody: *const u32 = ptr::null();
    // SAFETY: `word` is a live, aligned u32; the kernel uses its address as a key only.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), operation, c_int::MAX, nobody, nobody, bits) };
}

/// The monotonic clock, since some time in the past.
fn monotonic() -> Option<Duration> {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes a timespec that lives here.
    call::checked(unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) }).ok()?;
    Some(Duration::new(now.tv_sec.try_into().ok()?, now.tv_nsec.try_into().ok()?))
}

// From linux/membarrier.h.
const QUERY: c_int = 0;
const GLOBAL_EXPEDITED: c_int = 1 << 1;
const REGISTER_GLOBAL_EXPEDITED: c_int = 1 << 2;

fn membarrier(command: c_int) -> io::Result<c_int> {
    // SAFETY: the call takes no pointers.
    let result = checked_long(unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) })?;
    Ok(c_int::try_from(result).unwrap_or(c_int::MAX))
}

/// The right to issue barriers on other processes, and the registration to receive theirs.
///
/// Registration belongs to the process and ends with it or with `exec`; registering again is harmless. Free to copy,
/// usable from every thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeavyFence {
    expedited: bool,
}

impl HeavyFence {
    /// Registers this process. Never fails: where the kernel (before 4.16) or a sandbox refuses, the result says so by
    /// [`is_expedited`](Self::is_expedited), and the processes have to use full fences on both sides instead.
    ///
    /// **Every participating process has to register**, senders too: only registered ones are reached by the barrier.
    /// Do it before the first segment is shared.
    pub fn register() -> Self {
        let wanted = GLOBAL_EXPEDITED | REGISTER_GLOBAL_EXPEDITED;
        let offered = membarrier(QUERY).is_ok_and(|commands| commands & wanted == wanted);
        Self { expedited: offered && membarrier(REGISTER_GLOBAL_EXPEDITED).is_ok() }
    }

    /// Returns a fence that never uses the kernel. Only tests use it.
    #[cfg(test)]
    pub(crate) const fn plain() -> Self {
        Self { expedited: false }
    }

    /// Whether this process takes part in expedited barriers, both as issuer and as target.
    pub const fn is_expedited(self) -> bool {
        self.expedited
    }

    /// Full barrier on this thread and, when expedited, on every running thread of every registered process.
    ///
    /// Returns whether the others were reached; when not, this was an ordinary sequentially consistent fence, and the
    /// caller must not sleep for longer than it can bear to miss a wake-up.
    #[must_use]
    pub fn issue(self) -> bool {
        fence(Ordering::SeqCst);
        let reached = self.expedited && membarrier(GLOBAL_EXPEDITED).is_ok();
        fence(Ordering::SeqCst);
        reached
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::testing;
    use std::sync::atomic::compiler_fence;

    const LONG: Option<Duration> = Some(Duration::from_secs(60));

    #[test]
    fn wait_returns_at_once_when_the_value_differs() {
        assert_eq!(futex_wait(&AtomicU32::new(1), 0, None), WaitResult::ValueChanged);
    }

    #[test]
    fn wait_ends_with_its_timeout() {
        let word = AtomicU32::new(0);
        loop {
            match futex_wait(&word, 0, Some(Duration::from_millis(1))) {
                WaitResult::TimedOut => break,
                other => assert!(matches!(other, WaitResult::Interrupted | WaitResult::Woken), "{other:?}"),
            }
        }
    }

    #[test]
    fn a_thread_is_woken() {
        let word = AtomicU32::new(0);
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| {
                while word.load(Ordering::Acquire) == 0 {
                    assert_ne!(futex_wait(&word, 0, LONG), WaitResult::TimedOut);
                }
            });
            word.store(1, Ordering::Release);
            while !waiter.is_finished() {
                futex_wake(&word, u32::MAX);
                std::thread::yield_now();
            }
        });
    }

    #[test]
    fn a_process_is_woken_through_a_segment() {
        let segment = testing::forkable_page();
        // SAFETY: the page is mapped for the length of the test, and zeroed.
        let word = unsafe { AtomicU32::from_ptr(segment.cast().as_ptr()) };
        let child = testing::fork(|| {
            while word.load(Ordering::Acquire) == 0 {
                futex_wait(word, 0, LONG);
            }
            7
        });
        // A thread was woken, so the child sleeps here. It finds no change and sleeps again.
        testing::eventually(|| futex_wake(word, 1) == 1);
        word.store(1, Ordering::Release);
        while !child.has_ended() {
            futex_wake(word, 1);
            std::thread::yield_now();
        }
        assert_eq!(child.exit_code(), Some(7));
    }

    /// Store, then load, on two threads: with compiler fences alone both may read 0. The heavy fence on one side
    /// forbids it.
    #[test]
    fn heavy_fence_orders_a_side_that_only_has_a_compiler_fence() {
        let heavy = HeavyFence::register();
        if !heavy.is_expedited() {
            testing::skipped("membarrier(GLOBAL_EXPEDITED) is refused here");
            return;
        }
        for _ in 0..2000 {
            let (flag, entry) = (AtomicU32::new(0), AtomicU32::new(0));
            let start = std::sync::Barrier::new(2);
            let (saw_flag, saw_entry) = std::thread::scope(|scope| {
                let sender = scope.spawn(|| {
                    start.wait();
                    entry.store(1, Ordering::Relaxed);
                    compiler_fence(Ordering::SeqCst);
                    flag.load(Ordering::Relaxed)
                });
                start.wait();
                flag.store(1, Ordering::Relaxed);
                assert!(heavy.issue());
                let saw_entry = entry.load(Ordering::Relaxed);
                (sender.join().unwrap(), saw_entry)
            });
            assert!(saw_flag == 1 || saw_entry == 1);
        }
    }

    #[test]
    fn waking_without_waiters_wakes_none() {
        assert_eq!(futex_wake(&AtomicU32::new(0), 0), 0);
        assert_eq!(futex_wake(&AtomicU32::new(0), 1), 0);
    }

    #[test]
    fn the_plain_fence_reports_that_it_reached_no_process() {
        assert!(!HeavyFence::plain().issue());
    }
}
