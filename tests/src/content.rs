//! Payloads that can be checked, and the random numbers behind them (SplitMix64: reproducible from one seed).

use std::sync::LazyLock;

/// A stream of random numbers.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Returns the stream of this seed.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns the next number.
    pub const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// Returns a number below `bound`; 0 if `bound` is 0.
    pub const fn below(&mut self, bound: u64) -> u64 {
        // A slight bias does not matter here.
        match self.next().checked_rem(bound) {
            Some(number) => number,
            None => 0,
        }
    }

    /// Returns one of these, of which there is at least one.
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }
}

const fn mix(mut word: u64) -> u64 {
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

/// Combines several facts about a message into one seed.
pub fn seed_of(facts: &[u64]) -> u64 {
    facts.iter().fold(0x6e65_6d65_7369_6121, |seed, fact| mix(seed ^ mix(fact.wrapping_add(1))))
}

/// The random bytes of which every content is a part, from a place that the seed decides. They are a prime number: no
/// block, packet or page of a transport has such a size, so misplaced bytes are wrong bytes.
///
/// Contents are copies: one number after the other would take most of the time of tests, which are not optimised.
static BYTES: LazyLock<[u8; 65_521]> = LazyLock::new(|| {
    let (mut random, mut bytes) = (Random::new(1), [0; 65_521]);
    for chunk in bytes.chunks_mut(8) {
        chunk.copy_from_slice(&random.next().to_le_bytes()[..chunk.len()]);
    }
    bytes
});

/// Fills a buffer with the content of this seed. The content of a shorter buffer is the beginning of it.
pub fn fill(seed: u64, buf: &mut [u8]) {
    let mut from = Random::new(seed).below(BYTES.len() as u64) as usize;
    let mut filled = 0;
    while filled < buf.len() {
        let len = (buf.len() - filled).min(BYTES.len() - from);
        buf[filled..filled + len].copy_from_slice(&BYTES[from..from + len]);
        (filled, from) = (filled + len, 0);
    }
}

/// Returns a buffer with the content of this seed.
pub fn filled(seed: u64, len: usize) -> Vec<u8> {
    let mut buf = vec![0; len];
    fill(seed, &mut buf);
    buf
}

/// Returns the first position at which a buffer differs from the content of this seed.
pub fn difference(seed: u64, buf: &[u8]) -> Option<usize> {
    let wanted = filled(seed, buf.len());
    if wanted == buf { None } else { wanted.iter().zip(buf).position(|(wanted, found)| wanted != found) }
}
