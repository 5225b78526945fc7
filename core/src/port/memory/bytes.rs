//! Keys of registered memory as bytes.
#![forbid(unsafe_code)]

use super::MemoryKey;
use crate::wire::fabric::RemoteRange;

/// Bytes of a key.
pub const KEY_BYTES: usize = 24;
impl MemoryKey {
    /// Encodes the key as three words of 64 bits, little-endian: address, length, key.
    pub fn to_bytes(&self) -> [u8; KEY_BYTES] {
        let mut bytes = [0; KEY_BYTES];
        for (to, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip([self.address, self.len, self.key]) {
            *to = word.to_le_bytes();
        }
        bytes
    }

    /// Decodes a key. Any bytes are a key and harmless, because the owner of the region checks it.
    pub fn from_bytes(bytes: &[u8; KEY_BYTES]) -> Self {
        let mut words = [0; 3];
        for (to, word) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
            *to = u64::from_le_bytes(*word);
        }
        let [address, len, key] = words;
        Self { address, len, key }
    }

    /// Returns the remote address at `offset` in the region.
    pub const fn at(&self, offset: u64) -> RemoteRange {
        RemoteRange { address: self.address.wrapping_add(offset), key: self.key }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_survive_encoding() {
        let key = MemoryKey { address: u64::MAX - 1, len: 1 << 40, key: 0x0123_4567_89ab_cdef };
        assert_eq!(MemoryKey::from_bytes(&key.to_bytes()), key);
        assert_eq!(key.at(3).address, 1);
    }
}
