//! The fuzz target of calls between machines: what any process may send to the listener of an endpoint.

use nemesia_core::wire::call::{CALL_MESSAGE_BYTES, CallBytes, CallMessage};

/// Decodes the bytes as a message of a call, as they are, and with a valid beginning. What is accepted must be encoded
/// to the same bytes, and the reason of a refusal must be printable.
///
/// # Errors
/// The broken promise.
pub fn call_decoder(input: &[u8]) -> Result<(), String> {
    let mut bytes: CallBytes = [0; CALL_MESSAGE_BYTES];
    bytes.iter_mut().zip(input).for_each(|(to, from)| *to = *from);
    check(&bytes)?;
    // Random bytes hardly begin as a message does.
    let [mark @ .., _, _, _, _] = CallMessage::Confirmation.encode().first_chunk().copied().unwrap_or([0; 8]);
    bytes[..mark.len()].copy_from_slice(&mark);
    bytes[4] = input.first().map_or(0, |kind| kind % 8);
    bytes[5..8].fill(0);
    check(&bytes)
}

fn check(bytes: &CallBytes) -> Result<(), String> {
    let Ok(message) = CallMessage::decode(bytes) else { return Ok(()) };
    if message.encode() != *bytes {
        return Err(format!("{message:?} is encoded otherwise"));
    }
    if let CallMessage::Refusal(reason) = message
        && !reason.text().bytes().all(|byte| (b' '..=b'~').contains(&byte))
    {
        return Err(format!("the reason {reason:?} is not printable"));
    }
    Ok(())
}
