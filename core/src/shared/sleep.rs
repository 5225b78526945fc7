//! The sleep word: how a waiting process is woken, and how nobody pays for it who does not sleep.
//!
//! Sleeper: read the sequence, raise the flag, [`Edge::Sleep`](crate::sync::Edge::Sleep) fence, look for work a last time, futex-wait on
//! the sequence. Waker: publish work, [`Edge::Sleep`](crate::sync::Edge::Sleep) fence, look at the flag; if it is up, take it down, bump
//! the sequence, futex-wake. One of the two sees the other (Dekker). With `membarrier` the waker's fence is
//! free; see [`crate::sync::FenceMode`].
//!
//! The flag also says how the sleeper wants to be woken ([`Sleep`]): a process that sleeps in an event loop of its own waits
//! for its descriptors, not on a futex. Whoever does not sleep is never woken, so the ways cost a waker nothing.
//!
//! The word lies in the sleeper's inbox, where a hostile peer can take the flag down, or change what it says: sleeps are
//! bounded.

use crate::sync::{FenceMode, Word32, sleeper_fence, waker_fence};

/// How a sleeper wants to be woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Sleep {
    /// By the futex call, on the sequence.
    Futex = 1,
    /// By a message on the connection with the waker, which its event loop watches.
    Event = 2,
}

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
    /// `membarrier` next; in either mode, look for work before waiting, and call [`SleepWord::rise`] after. A sleep that was
    /// announced before, in whatever way, is over.
    pub fn announce(&self, how: Sleep) -> u32 {
        let sequence = self.sequence.load_relaxed();
        self.flag.store_relaxed(how as u32);
        sleeper_fence();
        sequence
    }

    /// Sleeper: takes the flag down.
    pub fn rise(&self) {
        self.flag.store_relaxed(0);
    }

    /// Waker, after publishing work: how the sleeper has to be woken by the kernel, if it sleeps. Once a sleep.
    #[inline(always)]
    pub fn must_wake(&self, mode: FenceMode) -> Option<Sleep> {
        waker_fence(mode);
        match self.flag.load_relaxed() {
            0 => None,
            flag => self.claim(flag),
        }
    }

    /// Waker, after publishing work: whether the sleeper sleeps; if so, [`SleepWord::must_wake`] says more.
    #[inline(always)]
    pub fn is_asleep(&self, mode: FenceMode) -> bool {
        waker_fence(mode);
        self.flag.load_relaxed() != 0
    }

    #[cold]
    fn claim(&self, flag: u32) -> Option<Sleep> {
        // Of several wakers one takes the flag down; no ordering is owed, as the system call is a barrier. When it says
        // something else by now, the sleeper has announced another sleep, after our work was published, and has looked
        // for work after that.
        self.flag.cas_relaxed(flag, 0).ok()?;
        self.sequence.bump_relaxed();
        // What nobody says who is honest wakes nobody who sleeps.
        Some(if flag == Sleep::Event as u32 { Sleep::Event } else { Sleep::Futex })
    }

    /// The sleeper's process, where another thread has done what the sleeper waits for: lets it sleep no longer. Wake it by the
    /// kernel after this.
    pub fn stir(&self) {
        self.sequence.bump_relaxed();
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
