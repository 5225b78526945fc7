//! Tests of the shared structures, each against a simple oracle; and of malicious peers.

mod announced;
pub(crate) mod fabric;
mod fastbox;
mod hostile;
mod layout;
mod left_cells;
mod pool;
mod port;
mod prefixed;
mod queue;
mod records;
mod returned;
mod ring;
mod silent;
mod sleep;
mod threads;

use std::vec::Vec;

pub(crate) use port::collected;
use proptest::test_runner::Config;

/// Reproducible random numbers (splitmix64).
#[derive(Debug)]
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x6e65_6d65_7369_6131)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ word >> 31
    }

    /// Returns a number below `end`.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    /// Returns `true` once in `count` calls, on average.
    pub(crate) fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }

    pub(crate) fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }
}

/// Returns `len` bytes that depend on `salt`, each different from its neighbours.
pub(crate) fn contents(salt: u64, len: usize) -> Vec<u8> {
    let mut rng = Rng::new(salt);
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        bytes.extend(rng.next().to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// Returns the part of `count` that a random test executes: all, or one N-th if `NEMESIA_TEST_PART` is N, for
/// slow runs such as those under a sanitizer.
pub(crate) fn portion(count: u64) -> u64 {
    let part = std::env::var("NEMESIA_TEST_PART").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    count.div_ceil(part.max(1))
}

/// Returns the configuration of proptest, which leaves no file behind.
pub(crate) fn cases(cases: u32) -> Config {
    Config { cases: portion(cases.into()) as u32, failure_persistence: None, ..Config::default() }
}
