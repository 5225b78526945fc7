//! One endpoint for several threads of a process: a lock around it, and who makes progress while several wait.
//!
//! - A [`Lock`] is held for the length of a call that does not block, never while somebody sleeps. Whoever waits for it long
//!   has it handed over, so that threads that come and go all the time keep nobody out (W. Amer et al., "MPI+Threads:
//!   Runtime Contention and Remedies", PPoPP 2015, on what becomes of runtimes whose locks do not).
//! - Of the threads that wait for requests one is the *driver*: it polls, and sleeps on the endpoint's sleep word when nothing
//!   comes. The others sleep until the driver, or whoever else makes progress, has found what they wait for. A driver that leaves
//!   makes another of them the driver, and wakes it. The [`Roster`] knows them all; it lies behind the lock.
//! - A [`Bell`] wakes those who are not the driver. It is listened to with the lock held, and rung with the lock held: so
//!   nobody falls asleep who was rung for.
//!
//! The models `threads/...` run this code with the sleep word, and look for lost wake-ups and idle drivers.
#![forbid(unsafe_code)]

mod lock;
mod roster;
#[cfg(test)]
mod tests;

pub use lock::{Lock, Park};
pub use roster::{Bits, Roster, Seat};

use crate::sync::Word32;

/// Wakes threads that wait without being the driver.
#[derive(Debug)]
pub struct Bell(Word32);

impl Default for Bell {
    fn default() -> Self {
        Self(Word32::new(0))
    }
}

impl Bell {
    /// With the lock held: what to sleep on, once the lock is free.
    pub fn listen(&self) -> u32 {
        self.0.load_relaxed()
    }

    /// With the lock held: whoever has listened before, and is not asleep yet, will not fall asleep. Wake the sleepers after
    /// this, those whose bits are meant.
    pub fn ring(&self) {
        self.0.bump_relaxed();
    }

    /// The word to sleep on.
    pub fn word(&self) -> &Word32 {
        &self.0
    }
}
