//! A deliberate data race, for `tests/sanitize`: if ThreadSanitizer does not find it, its other results mean
//! nothing.
//!
//! Only builds with the private cfg `nemesia_race`, which that script sets, contain this module.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use super::{Guard, SharedEndpoint};
use crate::bootstrap::Singleton;
use crate::{Config, Endpoint};

/// Returns the number of waiting threads without taking the lock.
fn count_waiting(endpoint: &SharedEndpoint) -> usize {
    let unlocked = std::mem::ManuallyDrop::new(Guard(&endpoint.0));
    unlocked.waiters.count() + unlocked.endpoint.turns as usize
}

/// The threads take turns. ThreadSanitizer reports a race only while it remembers the earlier of the two accesses, and
/// a thread that is started late may find that the other has done all its rounds. Relaxed operations order nothing, so
/// they hide no race.
#[test]
fn a_forgotten_lock_is_a_race() {
    let exchange = Box::new(Singleton::new());
    let endpoint = Endpoint::open_with(&Config::default(), exchange).unwrap().into_shared();
    let rounds = [AtomicU32::new(0), AtomicU32::new(0)];
    std::thread::scope(|scope| {
        for locks in [true, false] {
            let (endpoint, rounds) = (&endpoint, &rounds);
            scope.spawn(move || {
                for round in 1..=100 {
                    if locks {
                        endpoint.with(|endpoint| endpoint.progress()).ok();
                    } else {
                        std::hint::black_box(count_waiting(endpoint));
                    }
                    rounds[usize::from(locks)].store(round, Relaxed);
                    while rounds[usize::from(!locks)].load(Relaxed) < round {
                        std::thread::yield_now();
                    }
                }
            });
        }
    });
}
