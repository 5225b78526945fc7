//! One endpoint shared by several threads of a process: a lock around it, and the election of the thread that
//! makes progress.
//!
//! - A [`Lock`] is held for the length of a non-blocking call, never while a thread sleeps. If a thread waits
//!   long for the lock, the lock is handed over to it, so that threads with frequent calls cannot starve it
//!   (W. Amer et al., "MPI+Threads: Runtime Contention and Remedies", PPoPP 2015, describes runtimes whose
//!   locks lack this).
//! - Of the threads that wait for requests one is the *driver*: it polls, and sleeps on the endpoint's sleep
//!   word when no packet arrives. The others sleep until the driver, or another thread that makes progress,
//!   has completed their requests. A driver that leaves makes another waiter the driver and wakes it. The
//!   [`WaiterList`] is the waiter list; the lock protects it.
//! - A [`EventCount`] is the event count that wakes waiters other than the driver. A waiter reads it, and a
//!   notifier advances it, with the lock held, so that no wake-up is lost.
//!
//! The models `threads/...` run this code with the sleep word, and search for lost wake-ups and idle drivers.
#![forbid(unsafe_code)]

mod lock;
#[cfg(test)]
mod tests;
mod waiters;

pub use lock::{Lock, Park};
pub use waiters::{Bits, WaiterList, WaiterSlot};

use crate::sync::Word32;

/// The event count that wakes waiting threads other than the driver.
#[derive(Debug)]
pub struct EventCount(Word32);

impl Default for EventCount {
    fn default() -> Self {
        Self(Word32::new(0))
    }
}

impl EventCount {
    /// Returns the value to sleep on after the lock is released. The caller holds the lock.
    pub fn listen(&self) -> u32 {
        self.0.load_relaxed()
    }

    /// Notifies the waiters: a thread that has read the value and is not asleep yet will not fall asleep. The
    /// caller holds the lock, and afterwards wakes the sleepers whose bits are set.
    pub fn ring(&self) {
        self.0.bump_relaxed();
    }

    /// Returns the word to sleep on.
    pub fn word(&self) -> &Word32 {
        &self.0
    }
}
