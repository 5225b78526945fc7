//! Short messages: as many bytes as one slot carries beside its stamp and its tag.
#![forbid(unsafe_code)]

use crate::port::SHORT_BYTES;

/// A whole message of at most [`SHORT_BYTES`] bytes, as two words of a slot and a length.
///
/// The words are the first and the last bytes, as many as [`ShortMessage::width`] returns, which overlap if the length
/// is no power of two. So every length takes two loads and two stores, and no byte is copied alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ShortMessage {
    pub(super) first: u64,
    pub(super) last: u64,
    pub(super) len: usize,
}

impl ShortMessage {
    /// Returns the message of these bytes, of which there are at most [`SHORT_BYTES`]. The content of a longer
    /// message is unspecified.
    #[inline(always)]
    pub(super) fn new(bytes: &[u8]) -> Self {
        let len = bytes.len();
        debug_assert!(len <= SHORT_BYTES, "the caller checks the length");
        if let (Some(first), Some(last)) = (bytes.first_chunk(), bytes.last_chunk()) {
            return Self { first: u64::from_le_bytes(*first), last: u64::from_le_bytes(*last), len };
        }
        if let (Some(first), Some(last)) = (bytes.first_chunk(), bytes.last_chunk()) {
            let (first, last) = (u32::from_le_bytes(*first), u32::from_le_bytes(*last));
            return Self { first: first.into(), last: last.into(), len };
        }
        if let (Some(first), Some(last)) = (bytes.first_chunk(), bytes.last_chunk()) {
            let (first, last) = (u16::from_le_bytes(*first), u16::from_le_bytes(*last));
            return Self { first: first.into(), last: last.into(), len };
        }
        let only = bytes.first().map_or(0, |byte| u64::from(*byte));
        Self { first: only, last: only, len }
    }

    /// Returns the message of a word and at most 8 further bytes.
    #[inline(always)]
    pub(super) fn behind(word: u64, bytes: &[u8]) -> Self {
        let bits = 8 * bytes.len() as u32;
        let last = (u128::from(word) | u128::from(Self::new(bytes).word()) << 64) >> bits;
        Self { first: word, last: last as u64, len: 8 + bytes.len() }
    }

    /// Returns a message of at most 8 bytes as one word, padded with zeros.
    #[inline(always)]
    pub(super) const fn word(&self) -> u64 {
        // Bytes in both words are the same.
        self.first | self.last << (8 * self.len.saturating_sub(Self::width(self.len)))
    }

    /// Returns what follows after the first word, in a message of at least 8 bytes.
    #[inline(always)]
    pub(super) fn rest(&self) -> Self {
        let len = self.len - 8;
        // No byte is left of a shift by the whole word.
        let word = self.last.checked_shr(64 - 8 * len as u32).unwrap_or(0);
        let last = word >> (8 * len.saturating_sub(Self::width(len)));
        Self { first: word, last, len }
    }

    /// Writes the message to the beginning of `to`. If `to` is shorter than the message, nothing is written.
    #[inline(always)]
    pub(super) fn write(&self, to: &mut [u8]) {
        let Some(to) = to.get_mut(..self.len) else { return };
        let Self { first, last, .. } = *self;
        if let Some(bytes) = to.first_chunk_mut() {
            *bytes = first.to_le_bytes();
            if let Some(bytes) = to.last_chunk_mut() {
                *bytes = last.to_le_bytes();
            }
        } else if let Some(bytes) = to.first_chunk_mut() {
            *bytes = (first as u32).to_le_bytes();
            if let Some(bytes) = to.last_chunk_mut() {
                *bytes = (last as u32).to_le_bytes();
            }
        } else if let Some(bytes) = to.first_chunk_mut() {
            *bytes = (first as u16).to_le_bytes();
            if let Some(bytes) = to.last_chunk_mut() {
                *bytes = (last as u16).to_le_bytes();
            }
        } else if let Some(byte) = to.first_mut() {
            *byte = first as u8;
        }
    }

    /// Returns the number of bytes in each word of a message of `len` bytes: the largest power of two up to `len`, at
    /// most 8.
    pub(super) const fn width(len: usize) -> usize {
        match len {
            8.. => 8,
            4.. => 4,
            2.. => 2,
            _ => 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{SHORT_BYTES, ShortMessage};

    #[test]
    fn bytes_behind_a_word_are_read_as_they_were_written() {
        for len in 0..=8 {
            let bytes: [u8; 8] = core::array::from_fn(|at| (at * 7 + 3) as u8);
            let word = 0x1122_3344_5566_7788_u64;
            let joined = [&word.to_le_bytes()[..], &bytes[..len]].concat();
            let message = ShortMessage::behind(word, &bytes[..len]);
            assert_eq!(message, ShortMessage::new(&joined), "{len} bytes");
            let mut to = [0xee; 12];
            message.rest().write(&mut to);
            assert_eq!(to[..len], bytes[..len]);
            assert!(to[len..].iter().all(|byte| *byte == 0xee), "{len} bytes");
        }
    }

    #[test]
    fn every_length_is_written_as_it_was_read_and_nothing_beyond_it() {
        let bytes: [u8; SHORT_BYTES] = core::array::from_fn(|at| (at * 7 + 3) as u8);
        for len in 0..=SHORT_BYTES {
            let message = ShortMessage::new(&bytes[..len]);
            for room in len..=SHORT_BYTES + 4 {
                let mut to = [0xee; SHORT_BYTES + 4];
                message.write(&mut to[..room]);
                assert_eq!(to[..len], bytes[..len]);
                assert!(to[len..].iter().all(|byte| *byte == 0xee), "{len} bytes into {room}");
            }
            for room in 0..len {
                let mut to = [0xee; SHORT_BYTES];
                message.write(&mut to[..room]);
                assert_eq!(to, [0xee; SHORT_BYTES], "{len} bytes do not fit into {room}");
            }
        }
    }
}
