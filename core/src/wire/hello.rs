//! The private data with which a connection of a [channel](crate::port::channel) is requested, accepted or challenged.
//!
//! A connection is made in two steps. The first request, a *call*, is always refused with a [`Challenge`]. The second
//! request carries the [`Proof`] that the caller knows the job's key. The acceptance carries the proof of the called
//! process. [`job_key`](crate::job_key) says what the proofs cover. The key itself is never sent.
//!
//! All words are little-endian and have 32 bits. **Hello**, at most [`HELLO_BYTES`]: 0:
//! [`CHANNEL_VERSION`] in bits 0-15, the identity stamp `0x4e4d` in bits 16-31; 1:
//! the sender's rank; 2: bits 0-7 rail, 8-15 kind, 16-31 receives posted at the start; 3: payload bytes of the largest
//! packet; 4 and 5: the sender's token for this peer; 6: how often its rank was started before.
//!
//! | kind | code | further words |
//! |---|---|---|
//! | [`HelloContent::Call`] | 1 | none |
//! | [`HelloContent::Request`] | 2 | 7: number of the challenge; 8 and 9: the caller's nonce; 10 to 13: its proof |
//! | [`HelloContent::Answer`] | 3 | 7 and 8: a number that the application passes on; 9 to 12: the proof |
//!
//! **Challenge**, [`CHALLENGE_BYTES`], the private data of the refusal of a call. Byte 0: the code of
//! [`ChannelRefusal::Unproven`]; bytes 1 to 4: its number; bytes 5 to 20: its random bytes.
//!
//! A fabric may append zeros to private data.
#![forbid(unsafe_code)]

use core::fmt;

use super::channel::{CHANNEL_VERSION, ChannelRefusal};
use super::fabric::Private;

/// Bytes of the words that all hellos have.
pub const CALL_BYTES: usize = 28;
/// Bytes of the longest hello.
pub const HELLO_BYTES: usize = 56;
/// Bytes of a challenge.
pub const CHALLENGE_BYTES: usize = 21;
/// Bytes of a proof, and of the random part of a challenge.
pub const PROOF_BYTES: usize = 16;

const MARK: u32 = 0x4e4d;
const CALL: u8 = 1;
const REQUEST: u8 = 2;
const ANSWER: u8 = 3;
/// Bytes of an answer before its proof.
const ANSWER_BYTES: usize = CALL_BYTES + 8;

/// A proof that its sender knows the key of the job: the first 16 bytes of an HMAC-SHA256.
///
/// Only [`JobKey`](crate::job_key::JobKey) compares proofs with computed ones, in constant time. The comparison of two
/// proofs by `==` is not in constant time.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Proof(pub [u8; PROOF_BYTES]);

impl fmt::Debug for Proof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Proof(")?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        f.write_str(")")
    }
}

/// What a called process sends to a caller, which then proves that it knows the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Challenge {
    /// Low half of its number; a process numbers its challenges from 0.
    pub number: u32,
    /// Bytes that no process can predict.
    pub random: [u8; PROOF_BYTES],
}

impl Challenge {
    /// Encodes the challenge as the private data of a refusal.
    pub fn encode(&self) -> Private {
        let code = ChannelRefusal::Unproven.code();
        let [a, b, c, d] = self.number.to_le_bytes();
        let mut bytes = [0; CHALLENGE_BYTES];
        bytes[..5].copy_from_slice(&[code, a, b, c, d]);
        bytes[5..].copy_from_slice(&self.random);
        Private::new(&bytes).unwrap_or(Private::EMPTY)
    }

    /// Decodes the private data of a refusal; `None` if it holds no challenge.
    pub fn decode(private: &Private) -> Option<Self> {
        let (bytes, rest) = private.bytes().split_first_chunk::<CHALLENGE_BYTES>()?;
        let [code, a, b, c, d, random @ ..] = *bytes;
        let is_valid = code == ChannelRefusal::Unproven.code() && rest.iter().all(|byte| *byte == 0);
        is_valid.then(|| Self { number: u32::from_le_bytes([a, b, c, d]), random })
    }
}

/// The step of the handshake to which a hello belongs, with what only this step sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HelloContent {
    /// The first request, which is refused with a challenge.
    Call,
    /// The second request.
    Request {
        /// Number of the challenge.
        number: u32,
        /// A number that the caller uses once.
        nonce: u64,
        /// Proves that the caller knows the key.
        proof: Proof,
    },
    /// The acceptance.
    Answer {
        /// A number that the accepting application passes on.
        agreements: u64,
        /// Proves that the called process knows the key.
        proof: Proof,
    },
}

impl HelloContent {
    const fn kind(&self) -> u8 {
        match self {
            Self::Call => CALL,
            Self::Request { .. } => REQUEST,
            Self::Answer { .. } => ANSWER,
        }
    }
}

/// The handshake data of the process that requests or accepts a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Rank of the process.
    pub rank: u32,
    /// Index of the connection between the two processes.
    pub rail: u8,
    /// Number of receives that the process has posted.
    pub receives: u16,
    /// Payload bytes of the largest packet.
    pub packet_bytes: u32,
    /// Random number that only this peer receives. All connections between the two processes carry the same
    /// token.
    pub token: u64,
    /// Number of previous starts of the process's rank.
    pub incarnation: u32,
    /// The step of the handshake.
    pub content: HelloContent,
}

impl Hello {
    /// Returns the words that all hellos have.
    pub fn common(&self) -> [u8; CALL_BYTES] {
        let kind = self.content.kind();
        let words = [
            u32::from(CHANNEL_VERSION) | MARK << 16,
            self.rank,
            u32::from(self.rail) | u32::from(kind) << 8 | u32::from(self.receives) << 16,
            self.packet_bytes,
            self.token as u32,
            (self.token >> 32) as u32,
            self.incarnation,
        ];
        let mut bytes = [0; CALL_BYTES];
        for (to, word) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(words) {
            *to = word.to_le_bytes();
        }
        bytes
    }

    /// Encodes the hello as private data.
    pub fn encode(&self) -> Private {
        let mut bytes = [0; HELLO_BYTES];
        let mut len = 0;
        let mut put = |piece: &[u8]| {
            if let Some(to) = bytes.get_mut(len..len + piece.len()) {
                to.copy_from_slice(piece);
                len += piece.len();
            }
        };
        put(&self.common());
        match self.content {
            HelloContent::Call => {}
            HelloContent::Request { number, nonce, proof } => {
                put(&number.to_le_bytes());
                put(&nonce.to_le_bytes());
                put(&proof.0);
            }
            HelloContent::Answer { agreements, proof } => {
                put(&agreements.to_le_bytes());
                put(&proof.0);
            }
        }
        bytes.get(..len).and_then(Private::new).unwrap_or(Private::EMPTY)
    }

    /// Decodes a hello. Fabrics may append zeros.
    ///
    /// # Errors
    /// The private data is not a hello, or one of another version.
    pub fn decode(private: &Private) -> Result<Self, ChannelRefusal> {
        let (bytes, rest) = private.bytes().split_first_chunk().ok_or(ChannelRefusal::Protocol)?;
        let (first, _) = bytes.split_first_chunk::<4>().ok_or(ChannelRefusal::Protocol)?;
        let first = u32::from_le_bytes(*first);
        if first >> 16 != MARK {
            return Err(ChannelRefusal::Protocol);
        }
        if first as u16 != CHANNEL_VERSION {
            return Err(ChannelRefusal::Version);
        }
        Self::decode_rest(bytes, rest).ok_or(ChannelRefusal::Protocol)
    }

    fn decode_rest(bytes: &[u8; CALL_BYTES], rest: &[u8]) -> Option<Self> {
        let mut words = [0; CALL_BYTES / 4];
        for (to, word) in words.iter_mut().zip(bytes.as_chunks::<4>().0) {
            *to = u32::from_le_bytes(*word);
        }
        let [_, rank, kinds, packet_bytes, low, high, incarnation] = words;
        let (content, rest) = match (kinds >> 8) as u8 {
            CALL => (HelloContent::Call, rest),
            REQUEST => {
                let (number, rest) = rest.split_first_chunk()?;
                let (nonce, rest) = rest.split_first_chunk()?;
                let (proof, rest) = rest.split_first_chunk()?;
                let (number, nonce) = (u32::from_le_bytes(*number), u64::from_le_bytes(*nonce));
                (HelloContent::Request { number, nonce, proof: Proof(*proof) }, rest)
            }
            ANSWER => {
                let (agreements, rest) = rest.split_first_chunk()?;
                let (proof, rest) = rest.split_first_chunk()?;
                let agreements = u64::from_le_bytes(*agreements);
                (HelloContent::Answer { agreements, proof: Proof(*proof) }, rest)
            }
            _ => return None,
        };
        rest.iter().all(|byte| *byte == 0).then(|| Self {
            rank,
            rail: kinds as u8,
            receives: (kinds >> 16) as u16,
            packet_bytes,
            token: u64::from(low) | u64::from(high) << 32,
            incarnation,
            content,
        })
    }

    /// Returns the bytes of an answer that its proof covers.
    pub fn answer_bytes(&self, agreements: u64) -> [u8; ANSWER_BYTES] {
        let mut bytes = [0; ANSWER_BYTES];
        bytes[..CALL_BYTES].copy_from_slice(&self.common());
        bytes[CALL_BYTES..].copy_from_slice(&agreements.to_le_bytes());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROOF: Proof = Proof([0xa5; PROOF_BYTES]);

    fn hello(content: HelloContent) -> Hello {
        Hello {
            rank: 7,
            rail: 3,
            receives: 0x1234,
            packet_bytes: 1 << 20,
            token: 0x0123_4567_89ab_cdef,
            incarnation: u32::MAX - 7,
            content,
        }
    }

    const CONTENTS: [(HelloContent, usize); 3] = [
        (HelloContent::Call, CALL_BYTES),
        (HelloContent::Request { number: 0x89ab_cdef, nonce: u64::MAX - 1, proof: PROOF }, HELLO_BYTES),
        (HelloContent::Answer { agreements: 0xfedc_ba98_7654_3210, proof: PROOF }, HELLO_BYTES - 4),
    ];

    #[test]
    fn hellos_survive_encoding_and_others_are_refused() {
        for (content, len) in CONTENTS {
            let hello = hello(content);
            let said = hello.encode();
            assert_eq!((said.bytes().len(), Hello::decode(&said)), (len, Ok(hello)));
            let with = |at: usize, byte: u8| {
                let mut bytes = said.bytes().to_vec();
                bytes.resize(bytes.len().max(at + 1), 0);
                bytes[at] = byte;
                Hello::decode(&Private::new(&bytes).unwrap())
            };
            assert_eq!(with(0, 1), Err(ChannelRefusal::Version));
            assert_eq!(with(2, 0), Err(ChannelRefusal::Protocol));
            assert_eq!(with(9, 0), Err(ChannelRefusal::Protocol));
            assert_eq!(with(9, 4), Err(ChannelRefusal::Protocol));
            if len < HELLO_BYTES {
                assert_eq!(with(len, 0), Ok(hello), "a fabric appends zeros");
                assert_eq!(with(len, 1), Err(ChannelRefusal::Protocol));
            }
            for short in 0..len {
                let cut = Private::new(&said.bytes()[..short]).unwrap();
                assert_eq!(Hello::decode(&cut), Err(ChannelRefusal::Protocol), "{short} of {len} bytes");
            }
        }
    }

    #[test]
    fn challenges_survive_encoding_and_are_refusals() {
        let challenge = Challenge { number: 0x89ab_cdef, random: [7; PROOF_BYTES] };
        let said = challenge.encode();
        assert_eq!(Challenge::decode(&said), Some(challenge));
        assert_eq!(ChannelRefusal::decode(&said), Some(ChannelRefusal::Unproven));
        let mut bytes = said.bytes().to_vec();
        bytes.extend([0; 30]);
        assert_eq!(Challenge::decode(&Private::new(&bytes).unwrap()), Some(challenge));
        bytes[CHALLENGE_BYTES + 2] = 1;
        assert_eq!(Challenge::decode(&Private::new(&bytes).unwrap()), None);
        for short in 0..CHALLENGE_BYTES {
            assert_eq!(Challenge::decode(&Private::new(&said.bytes()[..short]).unwrap()), None);
        }
        assert_eq!(Challenge::decode(&ChannelRefusal::Claimed.encode()), None);
    }
}
