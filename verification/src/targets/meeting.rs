//! The fuzz target of meetings: what any peer may send to the first process of a group.

use nemesia_core::wire::meeting::{MOST_MEETING_BYTES, MeetingMessage};

/// Decodes the bytes as a message of a meeting, as they are, and with a valid beginning. What is accepted must be
/// encoded to the same bytes, and must lie in its list.
///
/// # Errors
/// The broken promise.
pub fn meeting_decoder(input: &[u8]) -> Result<(), String> {
    check(input)?;
    // Random bytes hardly begin as a message does, or have the length of one.
    let mut bytes = input.to_vec();
    bytes.resize(24 + bytes.len() / 64 * 64, 0);
    bytes[0] %= 9;
    bytes[1..4].fill(0);
    bytes[5..8].fill(0);
    bytes[9..16].fill(0);
    check(&bytes)
}

fn check(bytes: &[u8]) -> Result<(), String> {
    let Some(message) = MeetingMessage::decode(bytes) else { return Ok(()) };
    let mut encoded = [0; MOST_MEETING_BYTES];
    let len = message.encode(&mut encoded);
    if encoded[..len] != *bytes {
        return Err(format!("{message:?} is encoded otherwise"));
    }
    let count = message.addresses.len() as u64 / 64;
    if u64::from(message.first) + count > u64::from(message.total) {
        return Err(format!("{message:?} does not lie in its list"));
    }
    Ok(())
}
