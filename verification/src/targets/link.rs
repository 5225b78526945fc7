//! The fuzz target of links: what any process may send to the carrier of one, before and after it has proved itself.

use nemesia_core::link::bytes::MOST_LINK_BYTES;
use nemesia_core::link::wire::{
    LINK_HEADER_BYTES, LINK_VERSION, LinkBody, LinkFault, LinkMessage, length_of,
};

/// Decodes the bytes as a message of a link, as they are, and with a valid header. What is accepted must be encoded to
/// the same bytes, the length must be known from the header, and texts must be printable.
///
/// # Errors
/// The broken promise.
pub fn link_decoder(input: &[u8]) -> Result<(), String> {
    check(input)?;
    // Random bytes hardly begin as a message does, and hardly have a list of offers.
    let mut bytes = input.to_vec();
    bytes.truncate(MOST_LINK_BYTES);
    let choice = input.first().copied().unwrap_or(0);
    mend(&mut bytes, choice);
    check(&bytes)?;
    let kinds = [(3, LINK_HEADER_BYTES + 28, 128), (4, LINK_HEADER_BYTES + 36, 64)];
    let (kind, count, offers) = kinds[usize::from(choice / 16 % 2)];
    if bytes.len() > offers + 40 {
        bytes[3] = kind;
        bytes[offers] = 1 + choice % 6;
        let len = [104, 8, 32, 8, 40, 32][usize::from(choice % 6)];
        bytes.truncate(offers + len + 16);
        bytes[count..count + 4].copy_from_slice(&[1, 0, 0, 0]);
        bytes[offers + 1] %= 4;
        mend_length(&mut bytes);
        check(&bytes)?;
    }
    Ok(())
}

/// Gives bytes the header of a message of some kind.
fn mend(bytes: &mut Vec<u8>, choice: u8) {
    let fixed = [48, 48, 144, 80, 48, 24, 44, 120, 24, 24];
    let kind = choice % 10;
    let least = fixed[usize::from(kind)];
    if !matches!(kind, 2 | 3 | 4 | 6) || bytes.len() < least {
        bytes.resize(least, 0);
    }
    bytes[..4].copy_from_slice(&[b'L', b'N', LINK_VERSION, 1 + kind]);
    (bytes[6], bytes[7]) = (1 + choice % 4, 0);
    if kind == 6 {
        bytes[26] &= 1;
        bytes[27] = (bytes.len() - least) as u8;
    }
    mend_length(bytes);
}

fn mend_length(bytes: &mut [u8]) {
    let len = (bytes.len() as u16).to_le_bytes();
    bytes[4..6].copy_from_slice(&len);
}

fn check(bytes: &[u8]) -> Result<(), String> {
    let message = match LinkMessage::decode(bytes, LINK_VERSION) {
        Ok(message) => message,
        Err(LinkFault::Version { theirs, .. }) if theirs == LINK_VERSION => {
            return Err("a version differs from itself".into());
        }
        Err(_) => return Ok(()),
    };
    if message.encode().get() != bytes {
        return Err(format!("{message:?} is encoded otherwise"));
    }
    let header = bytes.first_chunk::<LINK_HEADER_BYTES>();
    if header.map(length_of) != Some(Ok(bytes.len())) {
        return Err(format!("the header of {message:?} has another length"));
    }
    let (text, offers) = match message.body {
        LinkBody::Refuse(refuse) => (refuse.text.get(), None),
        LinkBody::Confirm(confirm) => (confirm.reason.get(), None),
        LinkBody::Call(call) => ("", Some(call.offers)),
        LinkBody::Answer(answer) => ("", Some(answer.offers)),
        _ => ("", None),
    };
    if !text.bytes().all(|byte| (b' '..=b'~').contains(&byte)) {
        return Err(format!("the text {text:?} is not printable"));
    }
    match offers.map(|offers| offers.iter().count()) {
        Some(count) if count > 6 => Err(format!("{count} offers of six kinds")),
        _ => Ok(()),
    }
}
