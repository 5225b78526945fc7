//! Payloads that can be checked, and the random numbers they are made of (SplitMix64: reproducible from one seed).

/// A stream of random numbers.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The stream of this seed.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    pub const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// A number below `bound`; 0 when that is 0.
    pub const fn below(&mut self, bound: u64) -> u64 {
        // A slight bias does not matter here.
        match self.next().checked_rem(bound) {
            Some(number) => number,
            None => 0,
        }
    }

    /// One of these, which are not none.
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }
}

const fn mix(mut word: u64) -> u64 {
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

/// One seed out of several facts about a message.
pub fn seed_of(facts: &[u64]) -> u64 {
    facts.iter().fold(0x6e65_6d65_7369_6121, |seed, fact| mix(seed ^ mix(fact.wrapping_add(1))))
}

/// Fills a buffer with the content of this seed.
pub fn fill(seed: u64, buf: &mut [u8]) {
    let mut random = Random::new(seed);
    for chunk in buf.chunks_mut(8) {
        chunk.copy_from_slice(&random.next().to_le_bytes()[..chunk.len()]);
    }
}

/// A buffer with the content of this seed.
pub fn filled(seed: u64, len: usize) -> Vec<u8> {
    let mut buf = vec![0; len];
    fill(seed, &mut buf);
    buf
}

/// Where a buffer differs from the content of this seed.
pub fn difference(seed: u64, buf: &[u8]) -> Option<usize> {
    let wanted = filled(seed, buf.len());
    if wanted == buf { None } else { wanted.iter().zip(buf).position(|(wanted, found)| wanted != found) }
}
