//! What a peer sends to move a large message, or to let this process access its memory: RTS, CTS, and the descriptions
//! of memory in them.

use nemesia_core::wire::direct::{DESCRIPTION_BYTES, DirectRegion};
use nemesia_core::wire::rendezvous::{Cts, Descriptor, MOST_CTS_BYTES};
use nemesia_core::wire::rma::Access;

/// Decodes the bytes as CTS packets, and as descriptions of registered memory and of regions. What is accepted must be
/// encoded to the same bytes, and a place that a description allows must lie in the described bytes.
///
/// # Errors
/// The broken promise.
pub fn rendezvous_decoder(input: &[u8]) -> Result<(), String> {
    for at in 0..input.len().min(64) {
        let rest = &input[at..];
        for len in 0..rest.len().min(MOST_CTS_BYTES + 1) {
            if let Some(cts) = Cts::decode(&rest[..len])
                && cts.encode()[..] != rest[..len]
            {
                return Err(format!("{cts:?} is encoded otherwise"));
            }
            if let Some(described) = Descriptor::new(Descriptor::REGION, &rest[..len]) {
                check_descriptor(
                    &described,
                    rest.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes)),
                )?;
            }
        }
        if let Some(bytes) = rest.first_chunk::<DESCRIPTION_BYTES>() {
            check_region(bytes)?;
            // With rights that exist.
            let mut likely = *bytes;
            likely[32..].fill(0);
            likely[32] = 1 + bytes[32] % 3;
            if !check_region(&likely)? {
                return Err(format!("{likely:?} is no description"));
            }
        }
    }
    Ok(())
}

fn check_descriptor(described: &Descriptor, number: u64) -> Result<(), String> {
    let Some(bytes) = described.region() else { return Ok(()) };
    if Descriptor::of_region(&bytes) != *described {
        return Err(format!("{bytes:?} is described otherwise"));
    }
    for at in [0, 1, number, bytes.len, bytes.len.wrapping_sub(1), u64::MAX] {
        for len in [0, 1, number, bytes.len, u64::MAX] {
            let lies_in = u128::from(at) + u128::from(len) <= u128::from(bytes.len)
                && u128::from(bytes.address) + u128::from(at) <= u128::from(u64::MAX);
            let is = bytes.part(at, len).map(|range| range.address);
            if is != lies_in.then(|| bytes.address.wrapping_add(at)) {
                return Err(format!("{len} bytes at {at} of {bytes:?} are at {is:?}"));
            }
        }
    }
    Ok(())
}

/// Returns whether the bytes describe a region.
fn check_region(bytes: &[u8; DESCRIPTION_BYTES]) -> Result<bool, String> {
    let Some(region) = DirectRegion::decode(bytes) else { return Ok(false) };
    if region.encode() != *bytes {
        return Err(format!("{region:?} is encoded otherwise"));
    }
    for offset in [0, region.base, region.base.wrapping_add(region.bytes.len), region.base.wrapping_sub(1)] {
        for len in [0, 1, region.bytes.len, u64::MAX] {
            let end = u128::from(offset) + u128::from(len);
            let lies_in =
                offset >= region.base && end <= u128::from(region.base) + u128::from(region.bytes.len);
            for wanted in [Access::Read, Access::Write, Access::ReadWrite] {
                if region.place(offset, len, wanted).is_some() && !(lies_in && region.access.allows(wanted)) {
                    return Err(format!("{len} bytes at {offset} of {region:?} have a place"));
                }
            }
        }
    }
    Ok(true)
}
