//! The fuzz target of rings: what a peer may write into a slot, and into the description of its own ring.

use nemesia_core::wire::ring::{OFFER_BYTES, RingOffer, RingShape};

/// Decodes the bytes as an offer, and as trailers of slots in rings of all shapes. What is accepted must be encoded to
/// the same bytes, and a trailer must not be accepted for two packets that use the same slot one after the other.
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
    for word in input.as_chunks::<8>().0.iter().map(|bytes| u64::from_le_bytes(*bytes)) {
        for shape in (1..13).filter_map(|shift| RingShape::new(1 << shift)) {
            let number = (word >> 16) as u32;
            // Few random words have the right lap.
            check(shape, word, number)?;
            check(shape, shape.trailer(number, 0) | word & 0xffff, number)?;
        }
    }
    Ok(())
}

fn check(shape: RingShape, trailer: u64, number: u32) -> Result<(), String> {
    let slots = shape.slots();
    for other in [number.wrapping_sub(slots), number.wrapping_add(slots), number.wrapping_add(1)] {
        if shape.arrived(trailer, other).is_some() {
            return Err(format!("{trailer:#x} is accepted for packet {other} of {slots} slots"));
        }
    }
    match shape.arrived(trailer, number) {
        Some(len) if shape.trailer(number, len) != trailer => {
            Err(format!("{trailer:#x} is encoded otherwise"))
        }
        _ => Ok(()),
    }
}
