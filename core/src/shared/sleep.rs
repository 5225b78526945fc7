//! The sleep word: how a waiting process is woken, and how nobody pays for it who does not sleep.
//!
//! Sleeper: read the sequence, raise the flag, [`Edge::Sleep`](crate::sync::Edge::Sleep) fence, look for work a last time, futex-wait on
//! the sequence. Waker: publish work, [`Edge::Sleep`](crate::sync::Edge::Sleep) fence, look at the flag; if it is up, take it down, bump
//! the sequence, futex-wake. One of the two sees the other (Dekker). With `membarrier` the waker's fence is
//! free; see [`crate::sync::FenceMode`]. That costs each sleep a call that interrupts all others: too much for those who sleep
//! after every other message. So a sleeper can leave a request for fences in the word ([`Payer::Wakers`]), also while it is
//! awake: a waker that reads the request fences and reads once more. What the first sleep with the request pays holds for all
//! that follow it until the request is taken back: a waker that has not read the request published before that barrier.
//!
//! The flag also says how the sleeper wants to be woken ([`Sleep`]): a process that sleeps in an event loop of its own waits
//! for its descriptors, not on a futex. Whoever does not sleep is never woken, so the ways cost a waker nothing.
//!
//! And it says how many messages the sleeper lacks ([`SleepWord::announce_for`]): who waits for the messages of many has
//! nothing to do before the last has come, and every switch to it before that costs more than they do. A waker that
//! brings one of them counts it; the last one, and whoever has other news, wakes. A waker remembers whom it has not woken
//! ([`Waking::Counted`]): once it can't go on itself, the sleeper may have to do something first, and is woken after all.
//!
//! The word lies in the sleeper's inbox, where a hostile peer can take the flag down, or change what it says: sleeps are
//! bounded.

use crate::sync::{FenceMode, Word32, asked_fence, sleeper_fence, waker_fence};

/// How a sleeper wants to be woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Sleep {
    /// By the futex call, on the sequence.
    Futex = 1,
    /// By a message on the connection with the waker, which its event loop watches.
    Event = 2,
}

/// Who pays for the sleeper and its wakers to see each other, where wakers have no fence of their own
/// ([`FenceMode::Asymmetric`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Payer {
    /// The sleeper, by `membarrier` before each sleep.
    #[default]
    Sleeper,
    /// The wakers, by a fence before each look at the word; the sleeper pays for the first of these sleeps only.
    Wakers,
}

/// What a waker has for the sleeper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum News {
    /// A whole message, for which nobody expects an answer.
    Message,
    /// Anything else: the sleeper has to see it.
    Other,
}

/// What a waker finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a sleeper that is not woken sleeps on"]
pub enum Waking {
    /// Nobody sleeps.
    Awake,
    /// The sleeper lacks more than this one message, and sleeps on.
    Counted,
    /// The kernel has to wake it, in this way.
    Asleep(Sleep),
}

/// The flag's lowest bits say how the sleeper wants to be woken, 0 if it is awake; the next, whether its wakers are to fence;
/// the others, how many messages it lacks beyond the next.
const HOW: u32 = ASKED - 1;
const ASKED: u32 = 1 << 7;
const ONE_MORE: u32 = 1 << 8;
const MOST_MORE: u32 = u32::MAX / ONE_MORE;
/// Wakers meet each other at the flag, each time one of them succeeds. Only a hostile peer makes it take more tries.
const TRIES: u32 = 64;

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
        self.announce_for(how, 1, Payer::Sleeper)
    }

    /// As [`SleepWord::announce`], by a sleeper that can't go on before at least so many messages have come (0 is taken
    /// for 1) that have not come yet. If the look for work finds any, or anything else, announce anew.
    ///
    /// No `membarrier` is needed if the wakers pay, and have done so ever since one that followed such an announcement.
    pub fn announce_for(&self, how: Sleep, messages: u32, payer: Payer) -> u32 {
        let sequence = self.sequence.load_relaxed();
        let more = messages.saturating_sub(1).min(MOST_MORE);
        self.flag.store_relaxed(how as u32 | asked(payer) | (more * ONE_MORE));
        sleeper_fence();
        sequence
    }

    /// Sleeper: takes the flag down. Whether the wakers go on paying.
    pub fn rise(&self, payer: Payer) {
        self.flag.store_relaxed(asked(payer));
    }

    /// Waker, after publishing work: whether and how the sleeper has to be woken by the kernel. Once a sleep.
    #[inline(always)]
    pub fn must_wake(&self, mode: FenceMode, news: News) -> Waking {
        waker_fence(mode);
        match self.flag.load_relaxed() {
            0 => Waking::Awake,
            flag => self.claim(flag, news),
        }
    }

    /// Waker, after publishing work: whether the sleeper sleeps, or asks for a fence; if so, [`SleepWord::must_wake`] says more.
    #[inline(always)]
    pub fn is_asleep(&self, mode: FenceMode) -> bool {
        waker_fence(mode);
        self.flag.load_relaxed() != 0
    }

    #[cold]
    fn claim(&self, mut flag: u32, news: News) -> Waking {
        let mut fenced = false;
        for _ in 0..TRIES {
            if flag & HOW == 0 {
                if flag & ASKED == 0 || fenced {
                    return Waking::Awake;
                }
                // It may have announced a sleep before it could see our work: also when we saw the one before, which is over.
                asked_fence();
                (flag, fenced) = (self.flag.load_relaxed(), true);
                continue;
            }
            let counted = news == News::Message && flag >= ONE_MORE;
            let next = if counted { flag - ONE_MORE } else { flag & ASKED };
            // Of several wakers one takes the flag down, and each message is counted once; no ordering is owed, as the system
            // call is a barrier. It may be another sleep by now, announced after our work was published: waking that one
            // too early does no harm.
            match self.flag.cas_relaxed(flag, next) {
                Ok(_) if counted => return Waking::Counted,
                Ok(_) => break,
                Err(found) => flag = found,
            }
        }
        self.sequence.bump_relaxed();
        // What nobody says who is honest wakes nobody who sleeps.
        let event = flag & HOW == Sleep::Event as u32;
        Waking::Asleep(if event { Sleep::Event } else { Sleep::Futex })
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

/// The part of the flag that says whether the wakers are to fence.
const fn asked(payer: Payer) -> u32 {
    match payer {
        Payer::Sleeper => 0,
        Payer::Wakers => ASKED,
    }
}
