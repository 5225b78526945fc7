//! Random numbers that a seed repeats.

/// splitmix64: small, fast, and good enough for random choices.
#[derive(Debug)]
pub(crate) struct Rng(u64);

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// Returns a word that depends on every bit of the argument.
pub(crate) const fn mix(word: u64) -> u64 {
    let word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ word >> 31
}

impl Rng {
    /// Makes a generator. Seed and stream together name a sequence.
    pub(crate) const fn new(seed: u64, stream: u64) -> Self {
        Self(mix(seed.wrapping_mul(GOLDEN) ^ mix(stream.wrapping_add(GOLDEN))))
    }

    pub(crate) const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GOLDEN);
        mix(self.0)
    }

    /// Returns a number below `end`; 0 if `end` is 0.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }

    /// Returns true once in `count` times on average; never if `count` is 0.
    pub(crate) fn one_in(&mut self, count: usize) -> bool {
        count > 0 && self.below(count) == 0
    }

    /// Returns one of several choices, of which there is at least one.
    pub(crate) fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seed_and_stream_replay_and_differ() {
        let first = |seed, stream| Rng::new(seed, stream).next();
        assert_eq!(first(1, 2), first(1, 2));
        assert!(first(1, 2) != first(2, 1) && first(1, 2) != first(1, 3) && first(0, 0) != first(0, 1));
    }

    #[test]
    fn every_choice_comes() {
        let mut rng = Rng::new(7, 0);
        let mut seen = [false; 5];
        (0..200).for_each(|_| seen[rng.below(5)] = true);
        assert_eq!((seen, rng.below(0), rng.one_in(0)), ([true; 5], 0, false));
    }
}
