//! The sleep word: how a waiting process is woken, and how nobody pays for it who does not sleep.
//!
//! Sleeper: read the sequence, raise the flag, [`Edge::Sleep`](crate::sync::Edge::Sleep) fence, look for work a last time, futex-wait on
//! the sequence. Waker: publish work, [`Edge::Sleep`](crate::sync::Edge::Sleep) fence, look at the flag; if it is up, take it down, bump
//! the sequence, futex-wake. One of the two sees the other (Dekker). With `membarrier` the waker's fence is
//! free; see [`crate::sync::FenceMode`].
//!
//! The word lies in the sleeper's inbox, where a hostile peer can take the flag down: sleeps are bounded.

use crate::sync::{FenceMode, Word32, sleeper_fence, waker_fence};

/// The line on which a process sleeps.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct SleepWord {
    flag: Word32,
    sequence: Word32,
    pad: [Word32; 14],
}

impl SleepWord {
    /// Nobody sleeps; for a model or private memory.
    pub fn awake() -> Self {
        Self { flag: Word32::new(0), sequence: Word32::new(0), pad: core::array::from_fn(|_| Word32::new(0)) }
    }

    /// Sleeper: announces the sleep and returns the sequence to wait on. In asymmetric mode, issue
    /// `membarrier` next; in either mode, look for work before waiting, and call [`SleepWord::rise`] after.
    pub fn announce(&self) -> u32 {
        let sequence = self.sequence.load_relaxed();
        self.flag.store_relaxed(1);
        sleeper_fence();
        sequence
    }

    /// Sleeper: takes the flag down.
    pub fn rise(&self) {
        self.flag.store_relaxed(0);
    }

    /// Waker, after publishing work: whether the sleeper has to be woken by the kernel. True once a sleep.
    #[inline(always)]
    pub fn must_wake(&self, mode: FenceMode) -> bool {
        waker_fence(mode);
        self.flag.load_relaxed() != 0 && self.claim()
    }

    #[cold]
    fn claim(&self) -> bool {
        // Of several wakers one takes the flag down; no ordering is owed, as the futex call is a barrier.
        if self.flag.cas_relaxed(1, 0).is_err() {
            return false;
        }
        self.sequence.bump_relaxed();
        true
    }

    /// The word for the futex system call.
    #[cfg(not(nemesia_loom))]
    pub fn futex(&self) -> &crate::sync::FutexWord {
        self.sequence.as_futex()
    }

    /// Whether the sequence has moved: what the kernel compares. For models.
    pub fn moved(&self, since: u32) -> bool {
        self.sequence.load_relaxed() != since
    }
}
