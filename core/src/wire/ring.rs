//! The layout of a ring: memory of a process into which one peer writes packets, without a receive and without a
//! completion at the receiver (the RDMA fast path of paper 3, section 3.3, and of paper 5, section 3.3).
//!
//! All words are little-endian. **Ring**: a power of two of slots, 2 to [`MOST_SLOTS`], each of [`SLOT_BYTES`]. Packet
//! number `n` of a ring, counted from 0 and 32 bits wide, takes slot `n` modulo the number of slots.
//!
//! **Slot**: the packet is at the end. Its header and payload are those of any packet
//! ([`channel`](super::channel)). The last eight bytes are the *trailer*: bits 0-15 the bytes of the payload, 16-47 the
//! number of the packet, 48-55 0, 56-63 the *lap*: `n / slots + 1`, modulo 256. One write places header, payload and
//! trailer. Its last byte is the lap, which differs from the lap before and from the zeros of a new ring. A fabric that
//! places the bytes of a write in the order of their addresses places the lap last, so that the receiver may poll it.
//!
//! **Offer**: the payload of the packet that opens a ring: the address of the ring's first byte, its remote key, and
//! the number of slots (words of 64 bits).
#![forbid(unsafe_code)]

use super::channel::HEADER_BYTES;

/// Bytes of a slot.
pub const SLOT_BYTES: u32 = 512;
/// Bytes of the trailer.
pub const TRAILER_BYTES: usize = 8;
/// Bytes of the longest payload in a slot.
pub const SLOT_PAYLOAD: usize = SLOT_BYTES as usize - HEADER_BYTES - TRAILER_BYTES;
/// The most slots of a ring.
pub const MOST_SLOTS: u32 = 4096;
/// Bytes of an offer.
pub const OFFER_BYTES: usize = 24;

/// The number of slots of a ring, a power of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingShape(u32);

impl RingShape {
    /// Returns the shape of a ring with so many slots; `None` unless it is a power of two, 2 to [`MOST_SLOTS`].
    pub const fn new(slots: u32) -> Option<Self> {
        if slots.is_power_of_two() && slots >= 2 && slots <= MOST_SLOTS { Some(Self(slots)) } else { None }
    }

    /// Returns the number of slots.
    pub const fn slots(self) -> u32 {
        self.0
    }

    /// Returns the bytes of the ring.
    pub const fn bytes(self) -> u64 {
        self.0 as u64 * SLOT_BYTES as u64
    }

    /// Returns the offset of the first byte behind the slot of a packet.
    pub const fn end(self, number: u32) -> u64 {
        ((number & (self.0 - 1)) as u64 + 1) * SLOT_BYTES as u64
    }

    /// Returns the trailer of a packet without its length.
    #[inline]
    const fn stamp(self, number: u32) -> u64 {
        let lap = ((number >> self.0.trailing_zeros()) + 1) as u8;
        (number as u64) << 16 | (lap as u64) << 56
    }

    /// Returns the trailer of packet `number` with `len` bytes of payload, at most [`SLOT_PAYLOAD`].
    #[inline]
    pub const fn trailer(self, number: u32, len: usize) -> u64 {
        self.stamp(number) | (len as u64 & 0xffff)
    }

    /// Returns the number of payload bytes that this trailer announces, which is unchecked, if it is the trailer of
    /// packet `number`; else `None`: the packet is not there, or not whole.
    #[inline]
    pub const fn arrived(self, trailer: u64, number: u32) -> Option<usize> {
        if trailer & !0xffff == self.stamp(number) { Some((trailer & 0xffff) as usize) } else { None }
    }
}

/// The description of a ring for the peer that may write there. A value from a peer is unchecked, except for the shape:
/// the fabric of the peer checks each access to its own memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingOffer {
    /// The owner's address of the first byte, as its fabric knows it.
    pub address: u64,
    /// The remote key.
    pub key: u64,
    /// The number of slots.
    pub shape: RingShape,
}

impl RingOffer {
    /// Encodes the offer.
    pub fn encode(&self) -> [u8; OFFER_BYTES] {
        let mut bytes = [0; OFFER_BYTES];
        let words = [self.address, self.key, self.shape.slots().into()];
        for (to, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(words) {
            *to = word.to_le_bytes();
        }
        bytes
    }

    /// Decodes an offer; `None` if the number of slots is invalid.
    pub fn decode(bytes: &[u8; OFFER_BYTES]) -> Option<Self> {
        let mut words = [0; 3];
        for (to, word) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
            *to = u64::from_le_bytes(*word);
        }
        let [address, key, slots] = words;
        let shape = RingShape::new(u32::try_from(slots).ok()?)?;
        Some(Self { address, key, shape })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: RingShape = RingShape(8);

    #[test]
    fn the_bytes_of_a_trailer_and_of_an_offer_are_these() {
        assert_eq!(SHAPE.trailer(0x0102_0309, 0x1ff).to_le_bytes(), [0xff, 1, 9, 3, 2, 1, 0, 0x62]);
        assert_eq!((SHAPE.bytes(), SHAPE.end(0), SHAPE.end(9)), (4096, 512, 1024));
        let offer = RingOffer { address: 0x0102, key: 0x0304, shape: SHAPE };
        let mut bytes = [0; OFFER_BYTES];
        (bytes[0], bytes[1], bytes[8], bytes[9], bytes[16]) = (2, 1, 4, 3, 8);
        assert_eq!((offer.encode(), RingOffer::decode(&bytes)), (bytes, Some(offer)));
        assert_eq!((SLOT_PAYLOAD, SLOT_BYTES), (464, 512));
    }

    #[test]
    fn impossible_shapes_are_refused() {
        for slots in [0, 1, 3, 12, MOST_SLOTS * 2, u32::MAX] {
            assert_eq!(RingShape::new(slots), None, "{slots}");
            let mut bytes = [1; OFFER_BYTES];
            bytes[16..].copy_from_slice(&u64::from(slots).to_le_bytes());
            assert_eq!(RingOffer::decode(&bytes), None, "{slots}");
        }
        let mut bytes = RingOffer { address: 1, key: 2, shape: SHAPE }.encode();
        bytes[20] = 1;
        assert_eq!(RingOffer::decode(&bytes), None);
    }

    #[test]
    fn a_trailer_belongs_to_one_packet_of_its_slot() {
        // Also where the numbers wrap around.
        for first in [0, u32::MAX - 20, 255 * 8 - 3] {
            for number in (0..40).map(|step| first.wrapping_add(step)) {
                let trailer = SHAPE.trailer(number, 464);
                assert_eq!(SHAPE.arrived(trailer, number), Some(464));
                let before = SHAPE.trailer(number.wrapping_sub(8), 464);
                assert_eq!(SHAPE.arrived(before, number), None);
                assert_ne!(trailer >> 56, before >> 56, "the last byte shows the lap");
            }
        }
        assert_eq!(SHAPE.arrived(0, 0), None, "a new ring has no packet");
        assert_ne!(SHAPE.trailer(0, 0) >> 56, 0);
    }

    #[test]
    fn a_trailer_counts_only_when_its_last_byte_is_there() {
        for number in [0, 8, 2047, u32::MAX] {
            let (old, new) =
                (SHAPE.trailer(number.wrapping_sub(8), 3), SHAPE.trailer(number, 464).to_le_bytes());
            for placed in 0..8 {
                let mut bytes = old.to_le_bytes();
                bytes[..placed].copy_from_slice(&new[..placed]);
                assert_eq!(SHAPE.arrived(u64::from_le_bytes(bytes), number), None, "{number} {placed}");
            }
        }
    }
}
