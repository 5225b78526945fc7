//! The fuzz target of what comes before the bytes of a message: prefixes of eager messages, and announcements.

use nemesia_core::wire::Kind;
use nemesia_core::wire::prefix::{EagerPrefix, MOST_PREFIX_BYTES};
use nemesia_core::wire::rendezvous::{MOST_RTS_BYTES, Rts};

/// Decodes the first byte as a kind, and the others as the payload of a packet of this kind. A prefix or an RTS that is
/// accepted must be encoded to the same bytes, and must lie in the packet. A packet that is long enough for its prefix
/// must be accepted.
///
/// # Errors
/// The broken promise.
pub fn message_prefix(input: &[u8]) -> Result<(), String> {
    let Some((code, payload)) = input.split_first() else { return Ok(()) };
    // Most codes are unknown, and random bytes should reach the decoders.
    let Some(kind) = Kind::from_code(code % 16) else { return Ok(()) };
    if kind == Kind::Rts {
        return announcement(payload);
    }
    let head = payload.get(..MOST_PREFIX_BYTES).unwrap_or(payload);
    let len = EagerPrefix::bytes_of(kind);
    let Some(prefix) = EagerPrefix::decode(kind, head) else {
        return if payload.len() < len {
            Ok(())
        } else {
            Err(format!("{kind:?} of {} bytes is refused", payload.len()))
        };
    };
    let is_same = prefix.encode().get(..len) == payload.get(..len);
    if prefix.bytes() != len || !is_same || (kind.is_eager() && prefix.kind() != kind) {
        return Err(format!("{prefix:?} of {kind:?} is encoded otherwise"));
    }
    Ok(())
}

fn announcement(payload: &[u8]) -> Result<(), String> {
    let head = payload.get(..MOST_RTS_BYTES).unwrap_or(payload);
    let Some(rts) = Rts::decode(head, payload.len()) else { return Ok(()) };
    let bytes = rts.encode();
    // The descriptor is filled with zeros, which the decoder does not check.
    let described =
        bytes.len() - rts.descriptor.bytes().len().next_multiple_of(8) + rts.descriptor.bytes().len();
    let first = payload.len().checked_sub(rts.bytes()).map(|first| first as u64);
    let is_inside = first.is_some_and(|first| first <= rts.total && u64::from(rts.origin) <= first);
    if bytes.len() != rts.bytes() || payload.get(..described) != bytes.get(..described) || !is_inside {
        return Err(format!("{rts:?} is encoded otherwise, or lies outside of its packet"));
    }
    Ok(())
}
