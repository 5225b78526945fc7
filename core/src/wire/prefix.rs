//! The prefix of an eager message, in words of 64 bits, little-endian. The bytes of the message follow it.
//!
//! | kind | word 0 | word 1 |
//! |---|---|---|
//! | [`Kind::Eager`] | - | - |
//! | [`Kind::EagerImmediate`] | immediate data | - |
//! | [`Kind::EagerAcknowledged`] | the sender's request | - |
//! | [`Kind::EagerBoth`] | the sender's request | immediate data |
//!
//! The receiver returns the sender's request in a `Fin` packet ([`super::rendezvous`]) when it has copied the message
//! into the buffer of a receive, once for each message. A request is a number that its owner checks when the number
//! returns. Immediate data have no meaning for the protocol: every value is valid.
#![forbid(unsafe_code)]

use super::Kind;
use super::rendezvous::FIN_BYTES;

/// Most bytes of a prefix.
pub const MOST_PREFIX_BYTES: usize = 16;
/// Bytes of a prefix that is immediate data only.
pub const IMMEDIATE_BYTES: usize = EagerPrefix::bytes_of(Kind::EagerImmediate);

/// The content of a prefix.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EagerPrefix {
    /// The sender's request, which waits for the acknowledgement; `None` if the message needs none.
    pub sender: Option<u64>,
    /// The immediate data, if the message has them.
    pub immediate: Option<u64>,
}

/// The words at the beginning of a packet: those of a prefix, or the request that a `Fin` names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrefixWords {
    /// Word 0.
    pub first: u64,
    /// Word 1, if there is one.
    pub second: Option<u64>,
}

impl PrefixWords {
    /// Returns the number of bytes of these words in a packet of this kind; 0 for kinds without them.
    #[inline(always)]
    pub const fn bytes_of(kind: Kind) -> usize {
        match kind {
            Kind::Fin => FIN_BYTES,
            _ => EagerPrefix::bytes_of(kind),
        }
    }

    /// Returns the number of bytes of the words.
    #[inline(always)]
    pub const fn bytes(&self) -> usize {
        if self.second.is_some() { 16 } else { 8 }
    }

    /// Returns the words as bytes. Only the first [`PrefixWords::bytes`] are significant.
    #[inline(always)]
    pub fn encode(&self) -> [u8; MOST_PREFIX_BYTES] {
        (u128::from(self.first) | u128::from(self.second.unwrap_or(0)) << 64).to_le_bytes()
    }

    /// Returns the words of a packet of this kind that begins with these two words. `None` for kinds without them.
    #[inline(always)]
    pub const fn of(kind: Kind, words: [u64; 2]) -> Option<Self> {
        let [first, second] = words;
        match Self::bytes_of(kind) {
            8 => Some(Self { first, second: None }),
            16 => Some(Self { first, second: Some(second) }),
            _ => None,
        }
    }
}

impl EagerPrefix {
    /// Returns the words of the prefix; `None` if it is empty.
    #[inline(always)]
    pub fn words(&self) -> Option<PrefixWords> {
        match self.sender {
            Some(first) => Some(PrefixWords { first, second: self.immediate }),
            None => self.immediate.map(|first| PrefixWords { first, second: None }),
        }
    }

    /// Returns the prefix of these words in a packet of this kind.
    #[inline(always)]
    pub const fn from_words(kind: Kind, words: PrefixWords) -> Self {
        match kind {
            Kind::EagerImmediate => Self { sender: None, immediate: Some(words.first) },
            Kind::EagerAcknowledged | Kind::EagerBoth => {
                Self { sender: Some(words.first), immediate: words.second }
            }
            _ => Self { sender: None, immediate: None },
        }
    }

    /// Returns the kind of a packet that begins with this prefix.
    pub const fn kind(&self) -> Kind {
        match (self.sender, self.immediate) {
            (None, None) => Kind::Eager,
            (None, Some(_)) => Kind::EagerImmediate,
            (Some(_), None) => Kind::EagerAcknowledged,
            (Some(_), Some(_)) => Kind::EagerBoth,
        }
    }

    /// Returns the number of bytes of the prefix in a packet of this kind; 0 for kinds without a prefix.
    #[inline(always)]
    pub const fn bytes_of(kind: Kind) -> usize {
        match kind {
            Kind::EagerImmediate | Kind::EagerAcknowledged => 8,
            Kind::EagerBoth => 16,
            _ => 0,
        }
    }

    /// Returns the number of bytes of the prefix.
    pub const fn bytes(&self) -> usize {
        Self::bytes_of(self.kind())
    }

    /// Encodes the prefix. Only the first [`EagerPrefix::bytes`] are significant.
    pub fn encode(&self) -> [u8; MOST_PREFIX_BYTES] {
        let (first, second) = match (self.sender, self.immediate) {
            (Some(sender), immediate) => (sender, immediate.unwrap_or(0)),
            (None, immediate) => (immediate.unwrap_or(0), 0),
        };
        (u128::from(first) | u128::from(second) << 64).to_le_bytes()
    }

    /// Decodes the prefix of a packet of this kind that begins with `bytes`. `None` if the packet is shorter than its
    /// prefix.
    pub fn decode(kind: Kind, bytes: &[u8]) -> Option<Self> {
        let first = || bytes.first_chunk().map(|word| u64::from_le_bytes(*word));
        let second = || bytes.get(8..)?.first_chunk().map(|word| u64::from_le_bytes(*word));
        Some(match kind {
            Kind::EagerImmediate => Self { sender: None, immediate: Some(first()?) },
            Kind::EagerAcknowledged => Self { sender: Some(first()?), immediate: None },
            Kind::EagerBoth => Self { sender: Some(first()?), immediate: Some(second()?) },
            _ => Self::default(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{EagerPrefix, MOST_PREFIX_BYTES, PrefixWords};
    use crate::wire::Kind;

    fn all() -> impl Iterator<Item = EagerPrefix> {
        let words = [None, Some(0), Some(1), Some(u64::MAX)];
        words.into_iter().flat_map(move |sender| words.map(|immediate| EagerPrefix { sender, immediate }))
    }

    #[test]
    fn prefixes_survive_the_wire() {
        for prefix in all() {
            let bytes = prefix.encode();
            assert_eq!(EagerPrefix::decode(prefix.kind(), &bytes[..prefix.bytes()]), Some(prefix));
            assert_eq!(EagerPrefix::decode(prefix.kind(), &bytes), Some(prefix));
            assert!(prefix.kind().is_eager());
        }
    }

    #[test]
    fn a_packet_that_is_shorter_than_its_prefix_is_not_decoded() {
        for prefix in all() {
            for len in 0..prefix.bytes() {
                assert_eq!(
                    EagerPrefix::decode(prefix.kind(), &prefix.encode()[..len]),
                    None,
                    "{prefix:?}, {len}"
                );
            }
        }
    }

    #[test]
    fn words_are_those_of_the_encoded_prefix() {
        for prefix in all() {
            let bytes = u128::from_le_bytes(prefix.encode());
            let words = PrefixWords::of(prefix.kind(), [bytes as u64, (bytes >> 64) as u64]);
            assert_eq!(words, prefix.words());
            let Some(words) = words else { continue };
            assert_eq!((words.bytes(), words.encode()), (prefix.bytes(), prefix.encode()));
            assert_eq!(EagerPrefix::from_words(prefix.kind(), words), prefix);
        }
        assert_eq!(PrefixWords::of(Kind::Fin, [7, 8]), Some(PrefixWords { first: 7, second: None }));
        assert_eq!(PrefixWords::of(Kind::Rts, [7, 8]), None);
    }

    #[test]
    fn only_eager_kinds_have_a_prefix() {
        for code in 0..=u8::MAX {
            let Some(kind) = Kind::from_code(code) else { continue };
            let bytes = EagerPrefix::bytes_of(kind);
            assert!(bytes <= MOST_PREFIX_BYTES && (bytes == 0 || kind.is_eager()), "{kind:?}");
            assert_eq!(
                kind.is_eager(),
                EagerPrefix::decode(kind, &[7; 16]).is_some_and(|it| it.kind() == kind)
            );
        }
    }
}
