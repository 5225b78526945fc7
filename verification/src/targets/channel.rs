//! The fuzz target of channels: what a peer may write into the private data of a connection, and into a header.

use nemesia_core::port::memory::Private;
use nemesia_core::wire::channel::{ChannelRefusal, HEADER_BYTES, Header};
use nemesia_core::wire::fabric::MOST_PRIVATE_BYTES;
use nemesia_core::wire::hello::{CHALLENGE_BYTES, Challenge, Hello, HelloContent};

/// Bytes of a hello that say that it is one.
const MARK_BYTES: usize = 4;
/// The byte that is its kind.
const KIND: usize = 9;

/// Decodes the bytes as a header, as private data, and as hellos and challenges whose beginning is valid. What is
/// accepted must be encoded to the same bytes; private data may have zeros behind them.
///
/// # Errors
/// The broken promise.
pub fn channel_decoder(input: &[u8]) -> Result<(), String> {
    if let Some(bytes) = input.first_chunk::<HEADER_BYTES>() {
        header(bytes)?;
        // Few random headers have no bit that must be zero.
        let mut bytes = *bytes;
        (bytes[0], bytes[1], bytes[6], bytes[7]) = (bytes[0] & 15, bytes[1] & 1, 0, 0);
        bytes[36..].fill(0);
        header(&bytes)?;
    }
    let Some(raw) = input.get(..input.len().min(MOST_PRIVATE_BYTES)).and_then(Private::new) else {
        return Ok(());
    };
    hello(&raw)?;
    refusal(&raw)?;
    challenge(&raw)?;
    // Few random hellos have the stamp, the version and a kind, and few challenges their code.
    let (rank, rail, receives, packet_bytes, token, incarnation) = (0, 0, 0, 0, 0, 0);
    let content = HelloContent::Call;
    let call = Hello { rank, rail, receives, packet_bytes, token, incarnation, content }.encode();
    for kind in 0..5 {
        let mut marked = raw.bytes().to_vec();
        marked.iter_mut().zip(call.bytes()).take(MARK_BYTES).for_each(|(to, from)| *to = *from);
        marked.get_mut(KIND).into_iter().for_each(|to| *to = kind);
        Private::new(&marked).map_or(Ok(()), |marked| hello(&marked))?;
        marked.truncate(CHALLENGE_BYTES + usize::from(kind));
        marked.first_mut().into_iter().for_each(|to| *to = ChannelRefusal::Unproven.code());
        Private::new(&marked).map_or(Ok(()), |marked| challenge(&marked))?;
    }
    Ok(())
}

fn header(bytes: &[u8; HEADER_BYTES]) -> Result<(), String> {
    match Header::decode(bytes) {
        Some(header) if header.encode() != *bytes => {
            Err(format!("{header:?} is encoded otherwise than {bytes:?}"))
        }
        _ => Ok(()),
    }
}

fn hello(private: &Private) -> Result<(), String> {
    let Ok(hello) = Hello::decode(private) else { return Ok(()) };
    let (encoded, bytes) = (hello.encode(), private.bytes());
    let len = encoded.bytes().len();
    let is_same = bytes.get(..len) == Some(encoded.bytes());
    if !is_same || bytes.iter().skip(len).any(|byte| *byte != 0) {
        return Err(format!("{hello:?} is encoded otherwise than {bytes:?}"));
    }
    Ok(())
}

fn refusal(private: &Private) -> Result<(), String> {
    let refusal = ChannelRefusal::decode(private);
    match refusal {
        Some(refusal) if refusal.encode().bytes().first() != private.bytes().first() => {
            Err(format!("{refusal:?} is encoded otherwise"))
        }
        _ => Ok(()),
    }
}

fn challenge(private: &Private) -> Result<(), String> {
    let Some(challenge) = Challenge::decode(private) else { return Ok(()) };
    let (encoded, bytes) = (challenge.encode(), private.bytes());
    let is_same = bytes.get(..CHALLENGE_BYTES) == Some(encoded.bytes());
    if !is_same || bytes.iter().skip(CHALLENGE_BYTES).any(|byte| *byte != 0) {
        return Err(format!("{challenge:?} is encoded otherwise than {bytes:?}"));
    }
    if ChannelRefusal::decode(private) != Some(ChannelRefusal::Unproven) {
        return Err(format!("{challenge:?} is no refusal"));
    }
    Ok(())
}
