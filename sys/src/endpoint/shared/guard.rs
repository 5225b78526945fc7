//! The lock of a shared endpoint, held, and the slots of the threads that wait.

use std::ops::{Deref, DerefMut};

use nemesia_core::sync::Word32;
use nemesia_core::threads::{Bits, Park};

use super::{Ask, Inner, SharedAnswer, SharedState, WaiterEntry};
use crate::error::Error;
use crate::os::{futex_wait, futex_wake, futex_wake_bits};

/// The lock, held.
pub(super) struct Guard<'a>(pub(super) &'a SharedState);

impl Guard<'_> {
    /// Passes the lock to the threads that wait for it, calls `work`, and takes the lock again.
    pub(super) fn unlocked<T>(&mut self, work: impl FnOnce() -> T) -> T {
        struct Retake<'a>(&'a SharedState);
        impl Drop for Retake<'_> {
            fn drop(&mut self) {
                self.0.lock.acquire(&Futex);
            }
        }
        let served = std::mem::take(&mut self.served);
        self.0.lock.hand_over(&Futex);
        let _retake = Retake(self.0);
        wake(self.0, served);
        work()
    }
}

impl Deref for Guard<'_> {
    type Target = Inner;

    fn deref(&self) -> &Inner {
        // SAFETY: this guard holds the lock, so no other reference exists. It lends the state for its own
        // borrow only.
        unsafe { &*self.0.inner.get() }
    }
}

impl DerefMut for Guard<'_> {
    fn deref_mut(&mut self) -> &mut Inner {
        // SAFETY: this guard holds the lock, so no other reference exists. It lends the state for its own
        // borrow only.
        unsafe { &mut *self.0.inner.get() }
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        let served = std::mem::take(&mut self.served);
        self.0.lock.release(&Futex);
        wake(self.0, served);
    }
}

/// Wakes the threads for which the event count has moved. The caller does not hold the lock, which these
/// threads will take.
fn wake(shared: &SharedState, served: Bits) {
    if served != Bits::NONE {
        futex_wake_bits(shared.event_count.word().as_futex(), served.mask());
    }
}

/// The slot of a thread that waits. It is given up however the wait ends, so that another thread drives.
pub(super) struct WaiterPlace<'a> {
    pub(super) inner: Guard<'a>,
    pub(super) ask: Ask,
    pub(super) slot: usize,
}

impl<'a> WaiterPlace<'a> {
    pub(super) fn take(mut inner: Guard<'a>, ask: Ask) -> Self {
        let mut entry = WaiterEntry { ask, answer: None };
        let slot = loop {
            match inner.waiters.join(entry) {
                Ok(slot) => break slot,
                Err(refused) => {
                    entry = refused;
                    inner.waiters.slots_mut().push(None);
                }
            }
        };
        Self { inner, ask, slot }
    }

    pub(super) fn drives(&mut self) -> bool {
        self.inner.waiters.drives(self.slot)
    }

    pub(super) fn answer(&mut self) -> Option<Result<SharedAnswer, Error>> {
        self.inner.waiters.entry(self.slot)?.answer.take()
    }
}

impl Drop for WaiterPlace<'_> {
    fn drop(&mut self) {
        let (_, next) = self.inner.waiters.leave(self.slot);
        let shared = self.inner.0;
        shared.ring(&mut self.inner, (next, false));
    }
}

/// Parks threads that wait for the lock by the futex call.
pub(super) struct Futex;

impl Park for Futex {
    fn park(&self, word: &Word32, expected: u32) {
        futex_wait(word.as_futex(), expected, None);
    }

    fn unpark(&self, word: &Word32) {
        futex_wake(word.as_futex(), 1);
    }

    fn unpark_all(&self, word: &Word32) {
        futex_wake(word.as_futex(), u32::MAX);
    }
}
