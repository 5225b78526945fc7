//! The exchange of test worlds. It uses only atomics that are compiled with the test, and no synchronisation of
//! the precompiled standard library. So ThreadSanitizer sees what orders these threads (`tests/sanitize`).

use std::cell::UnsafeCell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::bootstrap::{BootstrapError, Exchange};

const LIMIT: Duration = Duration::from_secs(120);

/// The place where the processes of one world put their keys and wait for each other.
pub(super) struct TestMeeting {
    size: usize,
    held: AtomicBool,
    cards: UnsafeCell<HashMap<String, String>>,
    came: AtomicUsize,
    turns: AtomicUsize,
}

// SAFETY: only `with` reaches the keys, in one thread at a time.
unsafe impl Sync for TestMeeting {}

impl TestMeeting {
    /// Makes an exchange for `size` ranks. It is never freed, because no rank knows that it is the last user.
    pub(super) fn new(size: usize) -> &'static Self {
        let (held, cards) = (AtomicBool::new(false), UnsafeCell::default());
        let (came, turns) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Box::leak(Box::new(Self { size, held, cards, came, turns }))
    }

    /// Returns the exchange of a rank.
    pub(super) fn exchange(&'static self, rank: usize) -> Box<InMemory> {
        Box::new(InMemory { rank, meeting: self })
    }

    fn with<T>(&self, work: impl FnOnce(&mut HashMap<String, String>) -> T) -> T {
        while self.held.swap(true, Ordering::Acquire) {
            std::thread::yield_now();
        }
        // SAFETY: no other thread holds it.
        let result = work(unsafe { &mut *self.cards.get() });
        self.held.store(false, Ordering::Release);
        result
    }

    /// Waits until all ranks have called this. Fails if one does not come, because it has failed.
    pub(super) fn wait(&self) {
        let turn = self.turns.load(Ordering::Acquire);
        if self.came.fetch_add(1, Ordering::AcqRel) + 1 == self.size {
            self.came.store(0, Ordering::Relaxed);
            self.turns.store(turn + 1, Ordering::Release);
        }
        let begun = Instant::now();
        while self.turns.load(Ordering::Acquire) == turn {
            assert!(begun.elapsed() < LIMIT, "another rank does not come");
            std::thread::yield_now();
        }
    }
}

pub(super) struct InMemory {
    rank: usize,
    meeting: &'static TestMeeting,
}

impl Exchange for InMemory {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.meeting.size
    }

    fn put(&mut self, key: &str, value: &str) -> Result<(), BootstrapError> {
        self.meeting.with(|cards| cards.insert(key.to_owned(), value.to_owned()));
        Ok(())
    }

    fn get(&mut self, key: &str) -> Result<String, BootstrapError> {
        Ok(self.meeting.with(|cards| cards[key].clone()))
    }

    fn barrier(&mut self) -> Result<(), BootstrapError> {
        self.meeting.wait();
        Ok(())
    }

    fn finalize(&mut self) -> Result<(), BootstrapError> {
        Ok(())
    }
}
