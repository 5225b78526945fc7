//! The layout of a ring: memory of a process into which one peer writes packets, without a receive and without a
//! completion at the receiver (the RDMA fast path of paper 3, section 3.3, and of paper 5, section 3.3).
//!
//! All words are little-endian. **Ring**: a power of two of slots, 2 to [`MOST_SLOTS`], each of [`SLOT_BYTES`]. Packet
//! number `n` of a ring, counted from 0 and 32 bits wide, takes slot `n` modulo the number of slots.
//!
//! **Slot**: the packet is at the end. Its header and payload are those of any packet
//! ([`channel`](super::channel)), but the header may be cached. The last eight bytes are the *trailer*: bits 0-15 the
//! bytes of the payload, 16-47 the number of the packet, bit 48 whether the header is cached, 49-55 0, 56-63 the *lap*:
//! `n / slots + 1`, modulo 256. One write places header, payload and trailer. Its last byte is the lap, which differs
//! from the lap before and from the zeros of a new ring. A fabric that places the bytes of a write in the order of
//! their addresses places the lap last, so that the receiver may poll it.
//!
//! **Cached header**: a word of 64 bits in place of the header, which is that of packet `n - 1` of the ring with the
//! next sequence number. Bits 0-15 are added to its total of receives, 16-31 to its total of units, 32-47 to its total
//! of slots; 48-63 are 0. So a message of eight bytes like the one before takes 24 bytes instead of 56.
//!
//! **Offer**: the payload of the packet that opens a ring: the address of the ring's first byte, its remote key, and
//! the number of slots (words of 64 bits).
#![forbid(unsafe_code)]

use super::channel::{HEADER_BYTES, Header, Numbered, Stamp};

/// Bytes of a slot.
pub const SLOT_BYTES: u32 = 512;
/// Bytes of the trailer.
pub const TRAILER_BYTES: usize = 8;
/// Bytes of a cached header.
pub const CACHED_BYTES: usize = 8;
/// The bit of the trailer that shows that the header is cached.
const CACHED: u64 = 1 << 48;
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
    pub const fn trailer(self, number: u32, ArrivedSlot { len, is_cached }: ArrivedSlot) -> u64 {
        self.stamp(number) | if is_cached { CACHED } else { 0 } | (len as u64 & 0xffff)
    }

    /// Returns what this trailer announces, which is unchecked, if it is the trailer of packet `number`; else `None`:
    /// the packet is not there, or not whole.
    #[inline]
    pub const fn arrived(self, trailer: u64, number: u32) -> Option<ArrivedSlot> {
        if trailer & !(CACHED | 0xffff) != self.stamp(number) {
            return None;
        }
        Some(ArrivedSlot { len: (trailer & 0xffff) as usize, is_cached: trailer & CACHED != 0 })
    }
}

/// What a trailer says of its packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArrivedSlot {
    /// The bytes of the payload.
    pub len: usize,
    /// Whether the header is cached.
    pub is_cached: bool,
}

/// The header of a packet in a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotHeader {
    /// The header itself.
    Whole([u8; HEADER_BYTES]),
    /// How it differs from that of the packet before.
    Cached([u8; CACHED_BYTES]),
}

impl SlotHeader {
    /// Encodes a header for the place behind the packet with the other one, if there is one.
    #[inline]
    pub fn new(header: &Header, before: Option<&Header>) -> Self {
        let cached = before.and_then(|before| differences(before, header));
        cached.map_or_else(|| Self::Whole(header.encode()), |word| Self::Cached(word.to_le_bytes()))
    }

    /// Returns its bytes.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Whole(bytes) => bytes,
            Self::Cached(bytes) => bytes,
        }
    }

    /// Decodes the header, which stands behind the packet with the other one; `None` if it violates the protocol.
    #[inline]
    pub fn decode(&self, before: Option<&Header>) -> Option<Header> {
        match self {
            Self::Whole(bytes) => Header::decode(bytes),
            Self::Cached(bytes) => changed(before?, u64::from_le_bytes(*bytes)),
        }
    }
}

/// Returns the word of a cached header; `None` if only the whole one can say how it differs.
fn differences(before: &Header, header: &Header) -> Option<u64> {
    let like = changed(before, 0)?;
    if (like.packet, like.stamp.target, like.waited) != (header.packet, header.stamp.target, header.waited) {
        return None;
    }
    let receives = u16::try_from(header.stamp.posted.wrapping_sub(like.stamp.posted)).ok()?;
    let units = u16::try_from(header.units.wrapping_sub(like.units)).ok()?;
    let slots = u16::try_from(header.slots.wrapping_sub(like.slots)).ok()?;
    Some(u64::from(receives) | u64::from(units) << 16 | u64::from(slots) << 32)
}

/// Returns the header that differs by this word from that of the packet before; `None` if a reserved bit is set.
fn changed(before: &Header, word: u64) -> Option<Header> {
    let [receives, units, slots, reserved] = [0, 16, 32, 48].map(|at| (word >> at) as u16);
    if reserved != 0 {
        return None;
    }
    let packet = before.packet?;
    let stamp = Stamp { posted: before.stamp.posted.wrapping_add(receives.into()), ..before.stamp };
    Some(Header {
        packet: Some(Numbered { sequence: packet.sequence.wrapping_add(1), ..packet }),
        stamp,
        units: before.units.wrapping_add(units.into()),
        slots: before.slots.wrapping_add(slots.into()),
        ..*before
    })
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
    use crate::wire::Kind;
    use crate::wire::channel::PacketKind;

    const SHAPE: RingShape = RingShape(8);

    const BEFORE: Header = Header {
        packet: Some(Numbered {
            kind: PacketKind::Engine(Kind::Eager),
            context: 3,
            tag: 4,
            sequence: u32::MAX,
        }),
        stamp: Stamp { posted: u32::MAX - 1, target: 9 },
        units: u64::MAX - 2,
        waited: false,
        slots: u32::MAX,
    };

    const fn whole(len: usize) -> ArrivedSlot {
        ArrivedSlot { len, is_cached: false }
    }

    #[test]
    fn the_bytes_of_a_trailer_and_of_an_offer_are_these() {
        assert_eq!(SHAPE.trailer(0x0102_0309, whole(0x1ff)).to_le_bytes(), [0xff, 1, 9, 3, 2, 1, 0, 0x62]);
        let cached = ArrivedSlot { len: 3, is_cached: true };
        assert_eq!(SHAPE.trailer(0, cached).to_le_bytes(), [3, 0, 0, 0, 0, 0, 1, 1]);
        assert_eq!((SHAPE.bytes(), SHAPE.end(0), SHAPE.end(9)), (4096, 512, 1024));
        let offer = RingOffer { address: 0x0102, key: 0x0304, shape: SHAPE };
        let mut bytes = [0; OFFER_BYTES];
        (bytes[0], bytes[1], bytes[8], bytes[9], bytes[16]) = (2, 1, 4, 3, 8);
        assert_eq!((offer.encode(), RingOffer::decode(&bytes)), (bytes, Some(offer)));
        assert_eq!((SLOT_PAYLOAD, SLOT_BYTES), (464, 512));
    }

    #[test]
    fn the_bytes_of_a_cached_header_are_these() {
        let packet = BEFORE.packet.map(|packet| Numbered { sequence: 0, ..packet });
        let stamp = Stamp { posted: 1, target: 9 };
        let header = Header { packet, stamp, units: 1, slots: 0x0102 - 1, ..BEFORE };
        let encoded = SlotHeader::new(&header, Some(&BEFORE));
        assert_eq!(encoded.bytes(), [3, 0, 4, 0, 2, 1, 0, 0]);
        assert_eq!(encoded.decode(Some(&BEFORE)), Some(header));
        assert_eq!(encoded.decode(None), None, "there is no packet before");
        for at in [6, 7] {
            let mut bytes = [0; CACHED_BYTES];
            bytes[at] = 1;
            assert_eq!(SlotHeader::Cached(bytes).decode(Some(&BEFORE)), None, "byte {at}");
        }
    }

    #[test]
    fn a_header_that_differs_in_another_way_is_whole() {
        let like = changed(&BEFORE, 0).unwrap();
        assert_eq!(SlotHeader::new(&like, Some(&BEFORE)), SlotHeader::Cached([0; CACHED_BYTES]));
        let packet = like.packet.unwrap();
        let with = |packet| Header { packet: Some(packet), ..like };
        let others = [
            with(Numbered { sequence: 1, ..packet }),
            with(Numbered { tag: 5, ..packet }),
            with(Numbered { context: 4, ..packet }),
            with(Numbered { kind: PacketKind::Engine(Kind::Active), ..packet }),
            Header { stamp: Stamp { target: 8, ..like.stamp }, ..like },
            Header {
                stamp: Stamp { posted: like.stamp.posted.wrapping_add(0x1_0000), ..like.stamp },
                ..like
            },
            Header { units: like.units - 1, ..like },
            Header { slots: like.slots.wrapping_sub(1), ..like },
            Header { waited: true, ..like },
        ];
        for header in others {
            let encoded = SlotHeader::new(&header, Some(&BEFORE));
            assert_eq!(encoded, SlotHeader::Whole(header.encode()), "{header:?}");
            assert_eq!(encoded.decode(Some(&BEFORE)), Some(header));
        }
        assert_eq!(SlotHeader::new(&like, None), SlotHeader::Whole(like.encode()));
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
                let said = ArrivedSlot { len: 464, is_cached: number % 2 == 0 };
                let trailer = SHAPE.trailer(number, said);
                assert_eq!(SHAPE.arrived(trailer, number), Some(said));
                let before = SHAPE.trailer(number.wrapping_sub(8), said);
                assert_eq!(SHAPE.arrived(before, number), None);
                assert_ne!(trailer >> 56, before >> 56, "the last byte shows the lap");
            }
        }
        assert_eq!(SHAPE.arrived(0, 0), None, "a new ring has no packet");
        assert_ne!(SHAPE.trailer(0, whole(0)) >> 56, 0);
    }

    #[test]
    fn a_trailer_counts_only_when_its_last_byte_is_there() {
        for number in [0, 8, 2047, u32::MAX] {
            let (old, new) = (
                SHAPE.trailer(number.wrapping_sub(8), whole(3)),
                SHAPE.trailer(number, whole(464)).to_le_bytes(),
            );
            for placed in 0..8 {
                let mut bytes = old.to_le_bytes();
                bytes[..placed].copy_from_slice(&new[..placed]);
                assert_eq!(SHAPE.arrived(u64::from_le_bytes(bytes), number), None, "{number} {placed}");
            }
        }
    }
}
