//! Challenges that are accepted once, without memory for each, and nonces.
#![forbid(unsafe_code)]

use core::fmt;
use core::time::Duration;

use super::{CHALLENGE, KEY_BYTES, NONCE, mac, truncated};
use crate::wire::hello::Challenge;

/// The most challenges that can wait for their proof. When more are issued, the oldest become invalid.
pub const WINDOW: u64 = 4096;
/// The least time for which a challenge is valid, unless [`WINDOW`] later ones are issued. It is valid for at most
/// twice this time.
pub const LIFE: Duration = Duration::from_secs(10);

const WORDS: usize = (WINDOW / 64) as usize;

/// The challenges that a process has issued. Their random bytes are computed from a secret and from their number, so a
/// challenge takes no memory until its proof has arrived, and then one bit. A flood of strangers costs a process no
/// memory; it can make a challenge invalid before its proof arrives, and the caller then gets another one.
#[derive(Clone)]
pub struct Challenges {
    secret: [u8; KEY_BYTES],
    /// Number of the next challenge.
    next: u64,
    /// The number of the first challenge of the present and of the previous period.
    recent: u64,
    oldest: u64,
    /// The end of the present period.
    until: Duration,
    /// A bit for each of the last [`WINDOW`] challenges: whether it is used up.
    used: [u64; WORDS],
}

impl fmt::Debug for Challenges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Challenges").field("next", &self.next).finish_non_exhaustive()
    }
}

impl Challenges {
    /// Returns the state of a process that has issued none. `seed` is random, and no other process knows it.
    pub const fn new(seed: [u8; KEY_BYTES]) -> Self {
        Self { secret: seed, next: 0, recent: 0, oldest: 0, until: Duration::ZERO, used: [0; WORDS] }
    }

    fn challenge(&self, number: u64) -> Challenge {
        use hmac::Mac as _;
        let mut mac = mac(&self.secret, CHALLENGE);
        mac.update(&number.to_le_bytes());
        Challenge { number: number as u32, random: truncated(mac) }
    }

    fn pass(&mut self, now: Duration) {
        if now >= self.until {
            let is_late = now >= self.until.saturating_add(LIFE);
            self.oldest = if is_late { self.next } else { self.recent };
            self.recent = self.next;
            self.until = now.saturating_add(LIFE);
        }
    }

    /// Issues a challenge at time `now`.
    pub fn issue(&mut self, now: Duration) -> Challenge {
        self.pass(now);
        let number = self.next;
        self.next += 1;
        let (word, bit) = place(number);
        if let Some(word) = self.used.get_mut(word) {
            *word &= !bit;
        }
        self.challenge(number)
    }

    /// Returns the challenge with this number; `None` unless it was issued, is still valid, and is not used up.
    pub fn find(&mut self, number: u32, now: Duration) -> Option<Challenge> {
        self.issued(number, now).filter(|(_, is_used)| !is_used).map(|(challenge, _)| challenge)
    }

    /// Returns the challenge with this number, and whether it is used up; `None` unless it was issued and is still
    /// valid.
    pub fn issued(&mut self, number: u32, now: Duration) -> Option<(Challenge, bool)> {
        self.pass(now);
        let number = self.full(number)?;
        let (word, bit) = place(number);
        let is_used = self.used.get(word).is_none_or(|word| word & bit != 0);
        Some((self.challenge(number), is_used))
    }

    /// Uses a challenge up: its proof has arrived and is right.
    pub fn redeem(&mut self, number: u32) {
        #[cfg(nemesia_injected_fault)]
        if crate::injected_fault::injected(crate::injected_fault::InjectedFault::ReuseChallenge) {
            return;
        }
        let Some(number) = self.full(number) else { return };
        let (word, bit) = place(number);
        if let Some(word) = self.used.get_mut(word) {
            *word |= bit;
        }
    }

    /// Returns the whole number of a valid challenge.
    fn full(&self, number: u32) -> Option<u64> {
        let back = u64::from((self.next as u32).wrapping_sub(number));
        let number = self.next.checked_sub(back).filter(|_| (1..=WINDOW).contains(&back))?;
        (number >= self.oldest).then_some(number)
    }
}

/// Returns the word and the bit of a challenge.
const fn place(number: u64) -> (usize, u64) {
    let at = number % WINDOW;
    ((at / 64) as usize, 1 << (at % 64))
}

/// The nonces of a process: numbers that it uses once, and that no other process can predict.
#[derive(Clone)]
pub struct Nonces {
    secret: [u8; KEY_BYTES],
    count: u64,
}

impl fmt::Debug for Nonces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Nonces").field("count", &self.count).finish_non_exhaustive()
    }
}

impl Nonces {
    /// Returns the nonces of a process. `seed` is random, and no other process knows it.
    pub const fn new(seed: [u8; KEY_BYTES]) -> Self {
        Self { secret: seed, count: 0 }
    }

    /// Returns the next nonce.
    pub fn draw(&mut self) -> u64 {
        use hmac::Mac as _;
        let mut mac = mac(&self.secret, NONCE);
        mac.update(&self.count.to_le_bytes());
        self.count += 1;
        #[cfg(nemesia_injected_fault)]
        if crate::injected_fault::injected(crate::injected_fault::InjectedFault::RepeatNonce) {
            self.count = 0;
        }
        let random = truncated(mac);
        random.first_chunk().map_or(self.count, |first| u64::from_le_bytes(*first))
    }
}
