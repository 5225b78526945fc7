//! The fuzz target of channels: what a peer may write into the private data of a connection, and into a header.

use nemesia_core::port::memory::Private;
use nemesia_core::wire::channel::{ChannelRefusal, HEADER_BYTES, HELLO_BYTES, Header, Hello};

/// Bytes of a hello that say that it is one.
const MARK_BYTES: usize = 4;

/// Decodes the bytes as a header, as private data, and as a hello whose beginning is valid. What is accepted must be
/// encoded to the same bytes; private data may have zeros behind them.
///
/// # Errors
/// The broken promise.
pub fn channel_decoder(input: &[u8]) -> Result<(), String> {
    if let Some(bytes) = input.first_chunk::<HEADER_BYTES>() {
        header(bytes)?;
        // Few random headers have no bit that must be zero.
        let mut bytes = *bytes;
        (bytes[0], bytes[1], bytes[6], bytes[7]) = (bytes[0] & 15, bytes[1] & 1, 0, 0);
        header(&bytes)?;
    }
    let Some(raw) = input.get(..input.len().min(HELLO_BYTES + 4)).and_then(Private::new) else {
        return Ok(());
    };
    hello(&raw)?;
    refusal(&raw)?;
    let mut marked = raw.bytes().to_vec();
    let valid = Hello {
        rank: 0,
        world: 0,
        rail: 0,
        receives: 0,
        packet_bytes: 0,
        token: 0,
        incarnation: 0,
        agreements: 0,
    };
    let first = valid.encode();
    marked.iter_mut().zip(first.bytes()).take(MARK_BYTES).for_each(|(to, from)| *to = *from);
    Private::new(&marked).map_or(Ok(()), |marked| hello(&marked))
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
    let is_same = bytes.get(..HELLO_BYTES) == Some(encoded.bytes());
    if !is_same || bytes.iter().skip(HELLO_BYTES).any(|byte| *byte != 0) {
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
