//! The description of bytes in memory that its owner has allocated for its peers: a peer of the same machine maps
//! the memory, and copies the bytes without the kernel.
//!
//! It is four words of 64 bits, little-endian in a [`Descriptor`]. Word 0: the address of the first byte in the
//! owner's memory, for a peer that cannot map it. Word 1: the key that the memory's first word holds as long as the
//! memory may be mapped. Word 2: bits 0-47 the position of the first byte in the memory, bits 48-63 the low half of
//! the share number. Word 3: bits 0-47 the bytes of the memory, bits 48-62 the high half of the share number, bit 63
//! whether the owner lends the memory for writing.
//!
//! The share number is the number of the owner's file descriptor of the memory, plus one.
#![forbid(unsafe_code)]

use super::rendezvous::Descriptor;

/// Bits of a position or a length.
const EXTENT_BITS: u32 = 48;
const MOST_EXTENT: u64 = (1 << EXTENT_BITS) - 1;
const WRITABLE: u64 = 1 << 63;

/// Bytes in memory that peers can map. A value from a peer is unchecked, except that `offset` is at most `len` and
/// `share` is not 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MappableBytes {
    /// The address of the first byte in the owner's memory.
    pub address: u64,
    /// The key of the memory.
    pub key: u64,
    /// The position of the first byte in the memory.
    pub offset: u64,
    /// The number of bytes of the memory, whose end is at least that of the described bytes.
    pub len: u64,
    /// The number of the owner's file descriptor, plus one.
    pub share: u32,
    /// Whether peers may map the memory for writing.
    pub writable: bool,
}

impl MappableBytes {
    /// Returns the description as words. `None` if a number is too large.
    pub fn to_words(&self) -> Option<[u64; 4]> {
        let Self { address, key, offset, len, share, writable } = *self;
        let share = u64::from(share);
        if offset > len || len > MOST_EXTENT || share == 0 || share >> 31 != 0 {
            return None;
        }
        let high = (share >> 16) << EXTENT_BITS | if writable { WRITABLE } else { 0 };
        Some([address, key, offset | (share & 0xffff) << EXTENT_BITS, len | high])
    }

    /// Returns the description that these words are. `None` if they are malformed, or describe an address only.
    pub fn from_words([address, key, place, extent]: [u64; 4]) -> Option<Self> {
        let share = (place >> EXTENT_BITS | (extent & !WRITABLE) >> EXTENT_BITS << 16) as u32;
        let (offset, len) = (place & MOST_EXTENT, extent & MOST_EXTENT);
        let bytes = Self { address, key, offset, len, share, writable: extent & WRITABLE != 0 };
        (share != 0 && offset <= len).then_some(bytes)
    }
}

impl Descriptor {
    /// Method: the bytes are [`MappableBytes`], which peers of the same machine map.
    pub const MAPPABLE: u8 = 2;

    /// Returns the description of bytes that peers can map. `None` if a number is too large.
    pub fn of_mappable(bytes: &MappableBytes) -> Option<Self> {
        let words = bytes.to_words()?.map(u64::to_le_bytes);
        Self::new(Self::MAPPABLE, words.as_flattened())
    }

    /// Returns the bytes that peers can map, if the method is [`Descriptor::MAPPABLE`] and the bytes are well-formed.
    pub fn mappable(&self) -> Option<MappableBytes> {
        let (words, rest) = self.bytes().as_chunks::<8>();
        let words = <[[u8; 8]; 4]>::try_from(words).ok().filter(|_| rest.is_empty())?;
        let bytes = MappableBytes::from_words(words.map(u64::from_le_bytes));
        bytes.filter(|_| self.method() == Self::MAPPABLE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: MappableBytes = MappableBytes {
        address: 0x7fff_1234_5678,
        key: u64::MAX,
        offset: 5,
        len: MOST_EXTENT,
        share: 1,
        writable: false,
    };

    #[test]
    fn descriptions_of_mappable_bytes_survive_the_wire() {
        let some = [
            BYTES,
            MappableBytes { writable: true, share: i32::MAX.cast_unsigned(), ..BYTES },
            MappableBytes { offset: MOST_EXTENT, share: 0x1_0000, ..BYTES },
            MappableBytes { offset: 0, len: 0, key: 0, address: 0, ..BYTES },
        ];
        for bytes in some {
            let descriptor = Descriptor::of_mappable(&bytes).unwrap();
            assert_eq!(descriptor.mappable(), Some(bytes));
            assert_eq!(descriptor.address(), Some(bytes.address), "the address is for peers that cannot map");
        }
        assert_eq!(Descriptor::of_address(7).mappable(), None);
    }

    #[test]
    fn malformed_descriptions_of_mappable_bytes_are_not_accepted() {
        let large = [
            MappableBytes { len: MOST_EXTENT + 1, ..BYTES },
            MappableBytes { offset: 6, len: 5, ..BYTES },
            MappableBytes { share: 0, ..BYTES },
            MappableBytes { share: 1 << 31, ..BYTES },
        ];
        for bytes in large {
            assert_eq!(Descriptor::of_mappable(&bytes), None, "{bytes:?}");
        }
        let words = BYTES.to_words().unwrap();
        assert_eq!(MappableBytes::from_words([7, 0, 0, 0]), None);
        // Bytes that begin after the end of the memory.
        assert_eq!(MappableBytes::from_words([words[0], words[1], words[2], 4]), None);
        let content = words.map(u64::to_le_bytes);
        let content = content.as_flattened();
        for len in 0..content.len() {
            let short = Descriptor::new(Descriptor::MAPPABLE, &content[..len]).unwrap();
            assert_eq!((short.mappable(), short.address()), (None, None), "{len}");
        }
        assert_eq!(Descriptor::new(Descriptor::ADDRESS, content).unwrap().mappable(), None);
        assert_eq!(Descriptor::new(3, content).unwrap().address(), None);
    }
}
