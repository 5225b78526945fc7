//! A deliberate data race, for `tests/sanitize`: if ThreadSanitizer does not find it, its other results mean
//! nothing.
//!
//! Only builds with the private cfg `nemesia_race`, which that script sets, contain this module.

use super::{Guard, SharedEndpoint};
use crate::bootstrap::Singleton;
use crate::{Config, Endpoint};

/// Returns the number of waiting threads without taking the lock.
fn count_waiting(endpoint: &SharedEndpoint) -> usize {
    let unlocked = std::mem::ManuallyDrop::new(Guard(&endpoint.0));
    unlocked.waiters.count() + unlocked.endpoint.turns as usize
}

#[test]
fn a_forgotten_lock_is_a_race() {
    let exchange = Box::new(Singleton::new());
    let endpoint = Endpoint::open_with(&Config::default(), exchange).unwrap().into_shared();
    let threads = [true, false].map(|locks| {
        let endpoint = endpoint.clone();
        std::thread::spawn(move || {
            for _ in 0..1000 {
                if locks {
                    endpoint.with(|endpoint| endpoint.progress()).unwrap();
                } else {
                    std::hint::black_box(count_waiting(&endpoint));
                }
            }
        })
    });
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}
