//! What a peer sends to use the memory of another process: requests, their words, refusals and keys.

use nemesia_core::engine::rma::{Comparison, Datatype, Reduction, Refusal, RemoteKey, combine, swap};
use nemesia_core::wire::rma::{Head, KEY_BYTES, MOST_HEAD_BYTES, Verb};

/// Decodes the bytes as contexts, words and keys. What is accepted must be encoded to the same bytes; a place that a
/// key allows must lie in the region; and an atomic operation must return a value of its type.
///
/// # Errors
/// The broken promise.
pub fn one_sided_decoder(input: &[u8]) -> Result<(), String> {
    for bytes in input.as_chunks::<2>().0 {
        decode_context(u16::from_le_bytes(*bytes))?;
    }
    for bytes in input.as_chunks::<MOST_HEAD_BYTES>().0 {
        let head = Head::decode(bytes);
        if head.encode() != *bytes {
            return Err(format!("{head:?} is encoded otherwise"));
        }
        combine_words(&head)?;
        // A region whose length and first byte are any numbers.
        let key = RemoteKey { len: head.value, base: head.expected, ..RemoteKey::new(0, head.key) };
        check_place(&key, head.offset, head.key)?;
    }
    for at in 0..input.len().min(64) {
        if let Some(bytes) = input[at..].first_chunk::<KEY_BYTES>() {
            decode_key(bytes)?;
            // With the version of a key, and access to it.
            let mut likely = *bytes;
            likely[..4].copy_from_slice(&[2, 0, 1 + bytes[2] % 3, 0]);
            if !decode_key(&likely)? {
                return Err(format!("{likely:?} is no key"));
            }
        }
    }
    Ok(())
}

fn decode_context(context: u16) -> Result<(), String> {
    if let Some(verb) = Verb::decode(context) {
        if verb.encode() != context {
            return Err(format!("{verb:?} is encoded otherwise than as {context:#x}"));
        }
        if verb.head_bytes() > MOST_HEAD_BYTES {
            return Err(format!("{verb:?} has too many words"));
        }
    }
    match Refusal::from_code(context) {
        Some(Some(refusal)) if refusal.code() != context => Err(format!("{refusal:?} has another code")),
        Some(None) if context != 0 => Err(format!("{context:#x} is no refusal")),
        _ => Ok(()),
    }
}

/// Returns whether the bytes are a key.
fn decode_key(bytes: &[u8; KEY_BYTES]) -> Result<bool, String> {
    let Some(key) = RemoteKey::from_bytes(9, bytes) else { return Ok(false) };
    if key.to_bytes() != *bytes || key.rank != 9 {
        return Err(format!("{key:?} is encoded otherwise"));
    }
    for offset in [0, key.base, key.base.wrapping_add(key.len), key.base.wrapping_sub(1), key.key] {
        for len in [0, 1, key.len, u64::MAX] {
            check_place(&key, offset, len)?;
        }
    }
    Ok(true)
}

fn check_place(key: &RemoteKey, offset: u64, len: u64) -> Result<(), String> {
    let (first, end) = (u128::from(key.base), u128::from(key.base) + u128::from(key.len));
    let lies_in = u128::from(offset) >= first && u128::from(offset) + u128::from(len) <= end;
    // The end of a region without a known length is not checked, but must be a number.
    let expected = lies_in.then(|| offset.wrapping_sub(key.base));
    let is = key.place(offset, len);
    if is == expected { Ok(()) } else { Err(format!("{len} bytes at {offset} of {key:?} are at {is:?}")) }
}

fn combine_words(head: &Head) -> Result<(), String> {
    let Head { key: old, offset: operand, value, expected } = *head;
    for datatype in Datatype::ALL {
        let low = u64::MAX >> (64 - 8 * datatype.bytes());
        for reduction in Reduction::ALL {
            let is = combine(datatype, reduction, old, operand);
            if is & !low != 0 {
                return Err(format!("{reduction:?} of {datatype:?} returns {is:#x}"));
            }
        }
        for comparison in Comparison::ALL {
            let is = swap(datatype, comparison, old, [expected, value]);
            let known = is == old & low || is == value & low || comparison == Comparison::Masked;
            if is & !low != 0 || !known {
                return Err(format!("{comparison:?} of {datatype:?} returns {is:#x}"));
            }
        }
    }
    Ok(())
}
