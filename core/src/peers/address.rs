//! The address of a process.
#![forbid(unsafe_code)]

use core::fmt;
use core::ops::Range;

/// The bytes of a [`PeerAddress`].
pub const ADDRESS_BYTES: usize = 64;
/// The place of the token ([`link::address`](crate::link::address)), which no text shows.
const TOKEN: Range<usize> = 8..24;

/// The address of an endpoint, by which other processes reach it: 64 opaque bytes. Two endpoints never have the same
/// address. Addresses have an order: two processes that call each other agree by it whose call counts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerAddress([u8; ADDRESS_BYTES]);

impl PeerAddress {
    /// Returns the address that consists of these bytes.
    pub const fn from_bytes(bytes: [u8; ADDRESS_BYTES]) -> Self {
        Self(bytes)
    }

    /// Returns the address that consists of these bytes and of zeros. `None` if there are too many bytes.
    pub fn padded(bytes: &[u8]) -> Option<Self> {
        let mut all = [0; ADDRESS_BYTES];
        all.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(Self(all))
    }

    /// Returns the bytes.
    pub const fn bytes(&self) -> &[u8; ADDRESS_BYTES] {
        &self.0
    }

    /// Returns a hash that no one can predict without the seed.
    pub(crate) fn hash(&self, seed: u64) -> u64 {
        let (words, _) = self.0.as_chunks::<8>();
        let mixed = words.iter().fold(seed, |hash, word| mix(hash ^ u64::from_le_bytes(*word), seed));
        mix(mixed, !seed)
    }
}

/// Mixes all bits of a word into all others: a multiplication to 128 bits, folded.
const fn mix(word: u64, seed: u64) -> u64 {
    let product = (word ^ 0x9e37_79b9_7f4a_7c15) as u128 * (seed | 1) as u128;
    (product as u64) ^ (product >> 64) as u64
}

impl fmt::Display for PeerAddress {
    /// Writes the bytes as hexadecimal digits, without the token of the process: it is a secret of those that were
    /// given the address.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (head, rest) = self.0.split_at(TOKEN.start);
        let rest = rest.get(TOKEN.len()..).unwrap_or(&[]);
        let used = rest.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        head.iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        f.write_str("..")?;
        rest.iter().take(used).try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for PeerAddress {
    /// As [`Display`](fmt::Display).
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PeerAddress({self})")
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_hash_depends_on_each_byte_and_on_the_seed() {
        let bytes = core::array::from_fn(|at| if at < 40 { at as u8 } else { 0 });
        let mut hashes = BTreeSet::from([PeerAddress(bytes).hash(5), PeerAddress(bytes).hash(6)]);
        for at in 0..ADDRESS_BYTES {
            let mut other = bytes;
            other[at] ^= 1;
            hashes.insert(PeerAddress(other).hash(5));
        }
        assert_eq!(hashes.len(), ADDRESS_BYTES + 2);
        assert_eq!(PeerAddress(bytes).hash(5), PeerAddress(bytes).hash(5));
    }
}
