//! A lock that is handed over to threads that wait long for it.
#![forbid(unsafe_code)]

use crate::sync::{Edge, Word32, spin_hint};

/// The lock is free.
const FREE: u32 = 0;
/// The lock is held. Either no thread sleeps for it, or a woken thread will record further sleepers.
const HELD: u32 = 1;
/// The lock is held, and threads may sleep for it.
const CONTENDED: u32 = 2;
/// The lock was handed over to the threads that waited at that time; only they can take it. The bits above
/// the state identify them ([`NUMBER`]). A thread that falls asleep on this state therefore sleeps on this
/// hand-over, and not on a later one that may include the thread.
const HANDED: u32 = 3;
/// As `HANDED`, and other threads may sleep for the lock.
const HANDED_CONTENDED: u32 = 4;
/// The bits that distinguish the states.
const KIND: u32 = 7;
/// Increment of the upper bits, which hold the number of threads that had begun to wait when the lock was
/// handed over. The number wraps.
const NUMBER: u32 = 8;

/// Polls before a thread sleeps. The lock is never held for long.
#[cfg(not(nemesia_loom))]
const LOOKS: u32 = 64;
#[cfg(nemesia_loom)]
const LOOKS: u32 = 1;
/// Number of releases of a contended lock until it is handed over.
#[cfg(not(nemesia_loom))]
const GRABS: u32 = 8;
#[cfg(nemesia_loom)]
const GRABS: u32 = 1;

/// The operations by which a thread sleeps: the futex call, or a model's replacement.
pub trait Park {
    /// Sleeps until [`Park::unpark`], but only if `word` holds `expected`. May return at any time.
    fn park(&self, word: &Word32, expected: u32);

    /// Wakes one thread that sleeps on this word, if there is one.
    fn unpark(&self, word: &Word32);

    /// Wakes all threads that sleep on this word.
    fn unpark_all(&self, word: &Word32);
}

/// The lock. The data that it protects lies elsewhere.
#[derive(Debug)]
pub struct Lock {
    state: Word32,
    /// Number of threads that have begun to wait, and of those that then took the lock; both wrap.
    came: Word32,
    got: Word32,
    /// Number of releases while others waited. Only the holder accesses it.
    grabs: Word32,
}

impl Default for Lock {
    fn default() -> Self {
        let word = || Word32::new(0);
        Self { state: word(), came: word(), got: word(), grabs: word() }
    }
}

impl Lock {
    /// Takes the lock, and waits for it if necessary.
    #[inline]
    pub fn acquire(&self, park: &impl Park) {
        if self.state.cas_acquire(FREE, HELD, Edge::Lock).is_err() {
            self.acquire_slowly(park);
        }
    }

    #[cold]
    fn acquire_slowly(&self, park: &impl Park) {
        let number = self.came.bump_relaxed();
        // A thread that has slept does not know whether others still sleep.
        let (mut looks, mut taken) = (0, HELD);
        loop {
            let state = self.state.load_acquire(Edge::Lock);
            let ours = match state & KIND {
                FREE => Some(taken),
                HANDED if is_before(number, state) => Some(taken),
                HANDED_CONTENDED if is_before(number, state) => Some(CONTENDED),
                _ => None,
            };
            if let Some(taken) = ours {
                if self.state.cas_acquire(state, taken, Edge::Lock).is_ok() {
                    break;
                }
            } else if looks < LOOKS {
                looks += 1;
                spin_hint();
            } else if let Some(contended) = contended(state) {
                // If this fails, the state has changed and is read again.
                let _ = self.state.cas_relaxed(state, contended);
            } else {
                taken = CONTENDED;
                park.park(&self.state, state);
            }
        }
        self.got.bump_relaxed();
    }

    /// Holder: returns whether others wait for the lock. Others may begin to wait at any time.
    #[inline]
    pub fn is_wanted(&self) -> bool {
        self.came.load_relaxed() != self.got.load_relaxed()
    }

    /// Holder: releases the lock to the first thread that takes it, and occasionally hands it over to the
    /// waiters.
    #[inline]
    pub fn release(&self, park: &impl Park) {
        if self.is_wanted() {
            let grabs = self.grabs.load_relaxed();
            if grabs >= GRABS {
                return self.hand_over(park);
            }
            self.grabs.store_relaxed(grabs + 1);
        }
        self.free(park);
    }

    /// Holder: hands the lock over to the waiters, before the holder can take it again.
    pub fn hand_over(&self, park: &impl Park) {
        self.grabs.store_relaxed(0);
        let came = self.came.load_relaxed();
        if came == self.got.load_relaxed() {
            return self.free(park);
        }
        // One of the waiters takes the lock: not all of them have taken it, and none gives up. A thread that
        // began to wait later may sleep in front of them, and must not be the only one that is woken.
        let handed = HANDED + came.wrapping_mul(NUMBER);
        if self.state.swap_release(handed, Edge::Lock) == CONTENDED {
            park.unpark_all(&self.state);
        }
    }

    #[inline]
    fn free(&self, park: &impl Park) {
        if self.state.swap_release(FREE, Edge::Lock) == CONTENDED {
            park.unpark(&self.state);
        }
    }
}

/// Returns whether a thread had begun to wait when the lock was handed over. Numbers wrap, and fewer than
/// 2^28 threads wait.
fn is_before(number: u32, handed: u32) -> bool {
    (number.wrapping_mul(NUMBER).wrapping_sub(handed & !KIND) as i32) < 0
}

/// Returns the state that records a sleeper; `None` if the state already does.
fn contended(state: u32) -> Option<u32> {
    match state & KIND {
        HELD => Some(CONTENDED),
        HANDED => Some(state - HANDED + HANDED_CONTENDED),
        _ => None,
    }
}
