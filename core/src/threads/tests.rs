//! One thread at a time. The models cover interleavings.

use std::cell::Cell;
use std::vec;
use std::vec::Vec;

use super::{Bits, EventCount, Lock, Park, WaiterList, WaiterSlot};
use crate::sync::Word32;

/// No thread can sleep here, because there is only one.
#[derive(Default)]
struct Calls {
    unparked: Cell<u32>,
}

impl Park for Calls {
    fn park(&self, _: &Word32, _: u32) {
        panic!("no thread could wake this one");
    }

    fn unpark(&self, _: &Word32) {
        self.unparked.set(self.unparked.get() + 1);
    }

    fn unpark_all(&self, word: &Word32) {
        self.unpark(word);
    }
}

#[test]
fn uncontended_lock_costs_no_call() {
    let (lock, calls) = (Lock::default(), Calls::default());
    for _ in 0..100 {
        lock.acquire(&calls);
        assert!(!lock.is_wanted());
        lock.release(&calls);
        lock.acquire(&calls);
        lock.hand_over(&calls);
    }
    assert_eq!(calls.unparked.get(), 0);
}

#[test]
fn lock_excludes_and_starves_no_thread() {
    use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

    #[derive(Default)]
    struct Threads(std::sync::Mutex<()>, std::sync::Condvar);
    impl Park for Threads {
        fn park(&self, word: &Word32, expected: u32) {
            let guard = self.0.lock().unwrap();
            if word.load_relaxed() == expected {
                drop(self.1.wait(guard).unwrap());
            }
        }
        fn unpark(&self, _: &Word32) {
            let _guard = self.0.lock().unwrap();
            // Waking more than one is allowed: each checks for itself.
            self.1.notify_all();
        }
        fn unpark_all(&self, word: &Word32) {
            self.unpark(word);
        }
    }
    let (lock, threads) = (Lock::default(), Threads::default());
    let (inside, total, broken) = (AtomicU32::new(0), AtomicU64::new(0), AtomicU32::new(0));
    std::thread::scope(|scope| {
        let (lock, threads, inside, total, broken) = (&lock, &threads, &inside, &total, &broken);
        let spawn = |number| {
            scope.spawn(move || {
                for round in 0..20_000 {
                    lock.acquire(threads);
                    // Not asserted here: the others would wait for the lock for ever.
                    broken.fetch_add(inside.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
                    total.fetch_add(1, Ordering::Relaxed);
                    inside.fetch_sub(1, Ordering::Relaxed);
                    if (round + number) % 3 == 0 { lock.hand_over(threads) } else { lock.release(threads) }
                }
            })
        };
        // Joined one by one, because ThreadSanitizer does not recognise the waiting of a scope.
        (0..4).map(spawn).collect::<Vec<_>>().into_iter().for_each(|thread| thread.join().unwrap());
    });
    assert_eq!(broken.into_inner(), 0, "two threads held the lock");
    assert_eq!(total.into_inner(), 80_000);
}

fn waiters(slots: usize) -> WaiterList<Vec<Option<WaiterSlot<&'static str>>>> {
    WaiterList::new((0..slots).map(|_| None).collect())
}

#[test]
fn there_is_one_driver_and_the_oldest_follows() {
    let mut waiters = waiters(3);
    let slots: Vec<usize> = ["a", "b", "c"].map(|name| waiters.join(name).unwrap()).to_vec();
    assert_eq!(waiters.join("d"), Err("d"));
    assert!(waiters.drives(slots[1]) && !waiters.drives(slots[0]) && !waiters.drives(slots[2]));
    assert_eq!(waiters.leave(slots[1]), (Some("b"), Bits::of(slots[0])));
    assert!(waiters.drives(slots[0]));
    // The free slot is later in the order.
    assert_eq!(waiters.join("e"), Ok(slots[1]));
    assert_eq!(waiters.leave(slots[0]), (Some("a"), Bits::of(slots[2])));
    assert_eq!(waiters.leave(slots[1]), (Some("e"), Bits::NONE), "not the driver");
    assert_eq!(waiters.leave(slots[2]), (Some("c"), Bits::NONE), "no thread is left");
    assert_eq!(waiters.count(), 0);
    assert_eq!(waiters.leave(slots[2]), (None, Bits::NONE));
}

#[test]
fn a_thread_whose_wait_ended_is_woken_once_and_does_not_become_driver() {
    let mut waiters = waiters(4);
    let slots = ["a", "b", "c"].map(|name| waiters.join(name).unwrap());
    assert!(waiters.drives(slots[0]));
    assert_eq!(waiters.serve(|name| *name == "b"), (Bits::of(slots[1]), false));
    assert_eq!(waiters.serve(|name| *name == "b"), (Bits::NONE, false));
    assert!(waiters.is_served(slots[1]) && !waiters.is_served(slots[0]));
    assert_eq!(waiters.serve(|name| *name == "a"), (Bits::of(slots[0]), true));
    assert_eq!(waiters.leave(slots[0]), (Some("a"), Bits::of(slots[2])));
    assert_eq!(waiters.entry(slots[1]), Some(&mut "b"));
}

#[test]
fn bits_are_shared_by_every_32nd_slot() {
    let all = vec![0, 31, 32, 63].into_iter().fold(Bits::NONE, |bits, slot| bits.and(Bits::of(slot)));
    assert_eq!(all.mask(), 1 | 1 << 31);
}

#[test]
fn event_count_that_was_advanced_lets_no_thread_sleep() {
    let event_count = EventCount::default();
    let since = event_count.listen();
    assert_eq!(event_count.word().load_relaxed(), since);
    event_count.ring();
    assert_ne!(event_count.word().load_relaxed(), since);
}
