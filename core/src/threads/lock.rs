//! A lock that is handed over to those who wait for it long.
#![forbid(unsafe_code)]

use crate::sync::{Edge, Word32, spin_hint};

/// Nobody holds it.
const FREE: u32 = 0;
/// It is held, and nobody sleeps for it, or somebody who was woken will say so.
const HELD: u32 = 1;
/// It is held, and somebody may sleep for it.
const CONTENDED: u32 = 2;
/// It belongs to whoever takes it first of those that waited when it was handed over; nobody else can take it. The bits
/// above say who they are ([`NUMBER`]): so whoever falls asleep over a state falls asleep over this handing, not over a later
/// one that may be its own.
const HANDED: u32 = 3;
/// The same, and somebody else may sleep for it.
const HANDED_CONTENDED: u32 = 4;
/// The bits that tell these states apart.
const KIND: u32 = 7;
/// One in the bits above: how many had begun to wait when the lock was handed over. They wrap.
const NUMBER: u32 = 8;

/// Looks before a sleep. Nobody holds the lock for long.
#[cfg(not(nemesia_loom))]
const LOOKS: u32 = 64;
#[cfg(nemesia_loom)]
const LOOKS: u32 = 1;
/// How often a lock that others wait for is up for grabs before it is handed over.
#[cfg(not(nemesia_loom))]
const GRABS: u32 = 8;
#[cfg(nemesia_loom)]
const GRABS: u32 = 1;

/// How a thread sleeps: the futex call, or what a model has in its place.
pub trait Park {
    /// Sleeps until [`Park::unpark`], not at all unless `word` holds `expected`. May return at any time.
    fn park(&self, word: &Word32, expected: u32);

    /// Wakes one that sleeps on this word, if there is any.
    fn unpark(&self, word: &Word32);

    /// Wakes all that sleep on this word.
    fn unpark_all(&self, word: &Word32);
}

/// The lock. What it guards lies elsewhere.
#[derive(Debug)]
pub struct Lock {
    state: Word32,
    /// Threads that have begun to wait for it, and that have got it after waiting; both wrap.
    came: Word32,
    got: Word32,
    /// How often it was up for grabs while others waited. The holder's.
    grabs: Word32,
}

impl Default for Lock {
    fn default() -> Self {
        let word = || Word32::new(0);
        Self { state: word(), came: word(), got: word(), grabs: word() }
    }
}

impl Lock {
    /// Takes it, and waits for it if it must.
    #[inline]
    pub fn acquire(&self, park: &impl Park) {
        if self.state.cas_acquire(FREE, HELD, Edge::Lock).is_err() {
            self.acquire_slowly(park);
        }
    }

    #[cold]
    fn acquire_slowly(&self, park: &impl Park) {
        let number = self.came.bump_relaxed();
        // Who has slept does not know whether others still sleep.
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
                // If it fails there is something new to look at.
                let _ = self.state.cas_relaxed(state, contended);
            } else {
                taken = CONTENDED;
                park.park(&self.state, state);
            }
        }
        self.got.bump_relaxed();
    }

    /// The holder: whether others wait for it. They may have come since.
    #[inline]
    pub fn is_wanted(&self) -> bool {
        self.came.load_relaxed() != self.got.load_relaxed()
    }

    /// The holder gives it back, for whoever comes first; now and then to those who wait.
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

    /// The holder gives it to those who wait for it, before it can take it again itself.
    pub fn hand_over(&self, park: &impl Park) {
        self.grabs.store_relaxed(0);
        let came = self.came.load_relaxed();
        if came == self.got.load_relaxed() {
            return self.free(park);
        }
        // One of those who have come takes it: not all of them have got it, and none gives up. Somebody who has come since
        // may sleep before them, and must not be the only one that is woken.
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

/// Whether the one with this number had come when the lock was handed over. Numbers wrap, and fewer than 2^28 threads wait.
fn is_before(number: u32, handed: u32) -> bool {
    (number.wrapping_mul(NUMBER).wrapping_sub(handed & !KIND) as i32) < 0
}

/// What a state becomes when somebody is about to sleep; `None` if it says so already.
fn contended(state: u32) -> Option<u32> {
    match state & KIND {
        HELD => Some(CONTENDED),
        HANDED => Some(state - HANDED + HANDED_CONTENDED),
        _ => None,
    }
}
