//! The fuzz target of rings: what a peer may write into a slot, and into the description of its own ring.

use nemesia_core::wire::Kind;
use nemesia_core::wire::channel::{HEADER_BYTES, Header, Numbered, PacketKind, Stamp};
use nemesia_core::wire::ring::{ArrivedSlot, OFFER_BYTES, RingOffer, RingShape, SlotHeader};

/// A header that few random bytes are.
const LAST: Header = Header {
    packet: Some(Numbered { kind: PacketKind::Engine(Kind::Eager), context: 1, tag: 2, sequence: u32::MAX }),
    stamp: Stamp { posted: u32::MAX, target: 3 },
    units: u64::MAX,
    waited: false,
    slots: u32::MAX,
};

/// Decodes the bytes as an offer, and as trailers of slots in rings of all shapes. What is accepted must be encoded to
/// the same bytes, and a trailer must not be accepted for two packets that use the same slot one after the other. What
/// is accepted as a cached header is encoded to the same bytes behind the same header.
///
/// # Errors
/// The broken promise.
pub fn ring_decoder(input: &[u8]) -> Result<(), String> {
    if let Some(bytes) = input.first_chunk::<OFFER_BYTES>()
        && let Some(offer) = RingOffer::decode(bytes)
        && offer.encode() != *bytes
    {
        return Err(format!("{offer:?} is encoded otherwise than {bytes:?}"));
    }
    if let Some((before, rest)) = input.split_first_chunk::<HEADER_BYTES>()
        && let Some(bytes) = rest.first_chunk()
    {
        cached(Header::decode(before).as_ref(), *bytes)?;
        cached(Some(&LAST), *bytes)?;
    }
    for word in input.as_chunks::<8>().0.iter().map(|bytes| u64::from_le_bytes(*bytes)) {
        for shape in (1..13).filter_map(|shift| RingShape::new(1 << shift)) {
            let number = (word >> 16) as u32;
            // Few random words have the right lap.
            check(shape, word, number)?;
            let none = ArrivedSlot { len: 0, is_cached: false };
            check(shape, shape.trailer(number, none) | word & 0x0001_0000_0000_ffff, number)?;
        }
    }
    Ok(())
}

fn cached(before: Option<&Header>, bytes: [u8; 8]) -> Result<(), String> {
    let read = SlotHeader::Cached(bytes);
    match read.decode(before) {
        Some(header) if SlotHeader::new(&header, before) != read => {
            Err(format!("{header:?} behind {before:?} is encoded otherwise than {bytes:?}"))
        }
        _ => Ok(()),
    }
}

fn check(shape: RingShape, trailer: u64, number: u32) -> Result<(), String> {
    let slots = shape.slots();
    for other in [number.wrapping_sub(slots), number.wrapping_add(slots), number.wrapping_add(1)] {
        if shape.arrived(trailer, other).is_some() {
            return Err(format!("{trailer:#x} is accepted for packet {other} of {slots} slots"));
        }
    }
    match shape.arrived(trailer, number) {
        Some(said) if shape.trailer(number, said) != trailer => {
            Err(format!("{trailer:#x} is encoded otherwise"))
        }
        _ => Ok(()),
    }
}
