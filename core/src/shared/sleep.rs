//! The sleep word: wakes a waiting process, at almost no cost while no process sleeps.
//!
//! Sleeper: reads the sequence, sets the flag, executes the [`Edge::Sleep`](crate::sync::Edge::Sleep) fence,
//! polls for work a last time, and futex-waits on the sequence. Waker: publishes work, executes the
//! [`Edge::Sleep`](crate::sync::Edge::Sleep) fence, and reads the flag. If the flag is set, the waker clears
//! it, increments the sequence and calls futex-wake. At least one of the two sees the other's write (Dekker).
//! With `membarrier` the waker's fence costs nothing; see [`crate::sync::FenceMode`]. But each sleep then
//! costs a system call that interrupts all other processes, which is too expensive for a process that sleeps
//! after every other message. A sleeper can therefore leave a request for fences in the word
//! ([`Payer::Wakers`]), also while it is awake: a waker that reads the request executes a fence and reads the
//! flag again. The `membarrier` of the first sleep with the request covers all later sleeps until the request
//! is withdrawn: a waker that did not read the request published its work before that barrier.
//!
//! The flag also records how the sleeper is to be woken ([`Sleep`]): a process that sleeps in an event loop
//! of its own waits for file descriptors, not on a futex. A process that is awake is never woken, so this
//! choice does not slow the waker.
//!
//! The flag also records how many messages the sleeper needs ([`SleepWord::announce_for`]). A process that
//! waits for messages from many peers can do nothing before the last has arrived, and earlier context
//! switches cost more than the messages. A waker that sends such a message counts it. The waker of the last
//! message, or one with another wake reason, wakes the sleeper. A waker records which sleepers it has only
//! counted for ([`Waking::Counted`]). If the waker cannot continue, it wakes them after all, because they may
//! have to act first.
//!
//! The word lies in the sleeper's inbox, where a malicious peer can clear or change the flag. Sleeps are
//! therefore bounded in time.

use crate::sync::{FenceMode, Word32, asked_fence, sleeper_fence, waker_fence};

/// How a sleeper is to be woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Sleep {
    /// By the futex call on the sequence.
    Futex = 1,
    /// By a message on the connection with the waker, which the sleeper's event loop watches.
    Event = 2,
}

/// The side that executes the barrier between sleeper and wakers, in the mode in which wakers have no fence
/// of their own ([`FenceMode::Asymmetric`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Payer {
    /// The sleeper, by `membarrier` before each sleep.
    #[default]
    Sleeper,
    /// The wakers, by a fence before each read of the word. The sleeper executes `membarrier` only for the
    /// first of these sleeps.
    Wakers,
}

/// The wake reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WakeReason {
    /// A whole message whose sender does not wait for an answer.
    Message,
    /// Any other reason: the sleeper must be woken.
    Other,
}

/// The result of a waker's check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a sleeper that is not woken keeps sleeping"]
pub enum Waking {
    /// No process sleeps.
    Awake,
    /// The sleeper needs more messages than this one and keeps sleeping.
    Counted,
    /// The caller must wake the sleeper through the kernel, in this way.
    Asleep(Sleep),
}

/// The lowest bits of the flag say how the sleeper is to be woken, 0 if it is awake. The next bit says
/// whether wakers must fence. The remaining bits count the messages that the sleeper needs beyond the next
/// one.
const HOW: u32 = ASKED - 1;
const ASKED: u32 = 1 << 7;
const ONE_MORE: u32 = 1 << 8;
const MOST_MORE: u32 = u32::MAX / ONE_MORE;
/// Limit on retries. The flag changes under a waker only when another waker succeeds; only a malicious peer
/// causes more retries.
const TRIES: u32 = 64;

/// The cache line on which a process sleeps.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct SleepWord {
    flag: Word32,
    sequence: Word32,
    pad: [Word32; 14],
}

impl SleepWord {
    /// Returns a word whose process is awake; for a model or private memory.
    pub fn awake() -> Self {
        Self { flag: Word32::new(0), sequence: Word32::new(0), pad: core::array::from_fn(|_| Word32::new(0)) }
    }

    /// Sleeper: announces the sleep and returns the sequence to wait on. In asymmetric mode, the caller
    /// executes `membarrier` next. In either mode, it polls for work before it waits, and calls
    /// [`SleepWord::unpark`] afterwards. The call replaces an earlier announcement.
    pub fn announce(&self, how: Sleep) -> u32 {
        self.announce_for(how, 1, Payer::Sleeper)
    }

    /// As [`SleepWord::announce`], for a sleeper that cannot continue before `messages` further messages have
    /// arrived (0 counts as 1). If the last poll finds any work, the sleeper must announce anew.
    ///
    /// No `membarrier` is needed if the wakers fence, and have done so since a `membarrier` that followed
    /// such an announcement.
    pub fn announce_for(&self, how: Sleep, messages: u32, payer: Payer) -> u32 {
        let sequence = self.sequence.load_relaxed();
        let more = messages.saturating_sub(1).min(MOST_MORE);
        self.flag.store_relaxed(how as u32 | asked(payer) | (more * ONE_MORE));
        sleeper_fence();
        sequence
    }

    /// Sleeper: clears the flag. `payer` says whether wakers still have to fence.
    pub fn unpark(&self, payer: Payer) {
        self.flag.store_relaxed(asked(payer));
    }

    /// Waker, after publishing work: returns whether and how the kernel must wake the sleeper. At most one
    /// waker per sleep gets that result.
    #[inline(always)]
    pub fn must_wake(&self, mode: FenceMode, wake_reason: WakeReason) -> Waking {
        waker_fence(mode);
        match self.flag.load_relaxed() {
            0 => Waking::Awake,
            flag => self.claim(flag, wake_reason),
        }
    }

    /// Waker, after publishing work: returns whether the process sleeps or requests fences. If so,
    /// [`SleepWord::must_wake`] decides.
    #[inline(always)]
    pub fn is_asleep(&self, mode: FenceMode) -> bool {
        waker_fence(mode);
        self.flag.load_relaxed() != 0
    }

    #[cold]
    fn claim(&self, mut flag: u32, wake_reason: WakeReason) -> Waking {
        let mut fenced = false;
        for _ in 0..TRIES {
            if flag & HOW == 0 {
                if flag & ASKED == 0 || fenced {
                    return Waking::Awake;
                }
                // The sleeper may have announced a sleep before it could see the published work, even if this
                // waker read the flag of an earlier sleep.
                asked_fence();
                (flag, fenced) = (self.flag.load_relaxed(), true);
                continue;
            }
            let counted = wake_reason == WakeReason::Message && flag >= ONE_MORE;
            let next = if counted { flag - ONE_MORE } else { flag & ASKED };
            // Of several wakers one clears the flag, and each message is counted once. No ordering is needed,
            // because the system call is a barrier. The flag may belong to another sleep, announced after the
            // work was published: waking that sleep too early is harmless.
            match self.flag.cas_relaxed(flag, next) {
                Ok(_) if counted => return Waking::Counted,
                Ok(_) => break,
                Err(found) => flag = found,
            }
        }
        self.sequence.bump_relaxed();
        // An invalid value can only come from a malicious peer and defaults to the futex.
        let event = flag & HOW == Sleep::Event as u32;
        Waking::Asleep(if event { Sleep::Event } else { Sleep::Futex })
    }

    /// Ends the sleep of another thread of the sleeper's own process, after this thread has done the work
    /// that the sleeper waits for. The caller then wakes the sleeper through the kernel.
    pub fn notify(&self) {
        self.sequence.bump_relaxed();
    }

    /// Returns the word for the futex system call.
    #[cfg(not(nemesia_loom))]
    pub fn futex(&self) -> &crate::sync::FutexWord {
        self.sequence.as_futex()
    }

    /// Returns whether the sequence has changed, which is the kernel's comparison. For models.
    pub fn moved(&self, since: u32) -> bool {
        self.sequence.load_relaxed() != since
    }
}

/// Returns the part of the flag that says whether wakers must fence.
const fn asked(payer: Payer) -> u32 {
    match payer {
        Payer::Sleeper => 0,
        Payer::Wakers => ASKED,
    }
}
