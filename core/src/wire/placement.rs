//! The format of software placement: the protocol of a memory port without an RDMA device over a byte stream
//! (for example TCP).
//!
//! All words are little-endian. **Handshake**, [`HANDSHAKE_BYTES`], from each side, once; the connecting side
//! sends first. Words of 64 bits: 0: [`MAGIC`]; 1: [`PLACEMENT_VERSION`] in bits 0-31, bytes of the handshake
//! in bits 32-63: these two words never change; 2: the token of the address that was connected to, 0 in an
//! answer; 3: bits 0-7 the [`PlacementAnswer`], bit 8 is set if receives are taken from a shared queue, bits
//! 16-23 number of private bytes; then 56 private bytes, padded with zeros.
//!
//! **Frame**: four words, then the fields of its kind. Word 0: bits 0-7 kind, bit 8 is set if there is an
//! immediate, 32-63 bytes. Word 1: bits 0-31 the immediate. All other bits are 0.
//!
//! | kind | code | bytes | word 2 | word 3 | then |
//! |---|---|---|---|---|---|
//! | [`Frame::Write`] | 1 | of the payload | address | key | payload |
//! | [`Frame::Read`] | 2 | wanted | address | key | |
//! | [`Frame::Send`] | 3 | of the payload | 0 | 0 | payload |
//! | [`Frame::Add`] | 4 | 16 | address | key | operand, 0 |
//! | [`Frame::Swap`] | 5 | 16 | address | key | new value, expected value |
//! | [`Frame::ReadReply`] | 6 | of the payload | 0 | 0 | payload |
//! | [`Frame::ValueReply`] | 7 | 0 | old value | 0 | |
//! | [`Frame::Ack`] | 8 | 0 | operations executed | messages for which there is space | |
//! | [`Frame::Refuse`] | 9 | 0 | operation | [`Reason`] | the last frame |
//! | [`Frame::Ask`] | 10 | 0 | messages wanted | 0 | |
//! | [`Frame::WriteFrom`] | 11 | of the payload | address | key | address of the payload in the sender's memory, 0 |
//! | [`Frame::ReadFrom`] | 12 | of the payload | its address in the sender's memory | 0 | |
//! | [`Frame::Pulled`] | 13 | 0 | number of payloads of kind 12 that were read | 0 | |
//! | [`Frame::CanPull`] | 14 | 0 | 0 | 0 | |
//!
//! The last four kinds are for processes of one machine. A process that has found that it can read the
//! other's memory reports this (14). The other process may then send the address of a payload instead of the
//! payload (11 instead of 1, 12 instead of 6).
//!
//! *Operations* (1 to 5, and 11) are executed in the order sent and counted from 0. Replies arrive in the
//! order of their operations. A message (3, or 1 or 11 with an immediate) is sent only if there is space for
//! it: the receiver reports the total number of messages since the start for which it has space. Space in a
//! shared queue must be requested, for at most [`MOST_ASKED`] messages ahead. At most [`MOST_REPLIES`]
//! operations with replies may be in flight. A receiver of any other frame ends the connection.
#![forbid(unsafe_code)]

use super::fabric::{MOST_PRIVATE_BYTES, Private, RemoteRange};

/// Version of the formats on this page.
pub const PLACEMENT_VERSION: u32 = 1;
/// First word of a handshake.
pub const MAGIC: u64 = u64::from_le_bytes(*b"nemesiap");
/// Bytes of a handshake.
pub const HANDSHAKE_BYTES: usize = 88;
/// Bytes of the part of the handshake that is the same in all versions.
pub const FIXED_BYTES: usize = 16;
/// Bytes of a frame header, without operands and payload.
pub const FRAME_BYTES: usize = 32;
/// Bytes of the longest frame without payload.
pub const MOST_FRAME_BYTES: usize = 48;
/// Most operations with replies in flight.
pub const MOST_REPLIES: usize = 16;
/// Most messages for which space is requested ahead.
pub const MOST_ASKED: u64 = 4;

const IMMEDIATE: u64 = 1 << 8;
const SHARED: u64 = 1 << 8;

/// The purpose of a handshake message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlacementAnswer {
    /// Requests the connection.
    Request = 0,
    /// Accepts the connection.
    Accept = 1,
    /// Refuses the connection.
    Refuse = 2,
}

/// The first message of each side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handshake {
    /// Request or answer.
    pub answer: PlacementAnswer,
    /// The address's token.
    pub token: u64,
    /// Whether receives are taken from a shared queue.
    pub shared: bool,
    /// Private data of the user.
    pub private: Private,
}

/// The reason why a handshake is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HandshakeError {
    /// The other side uses another version.
    #[error("the peer uses version {theirs} instead of {PLACEMENT_VERSION}")]
    Version {
        /// Version of the other side.
        theirs: u32,
    },
    /// The bytes are not a handshake.
    #[error("the peer's first bytes are not a handshake")]
    Malformed,
}

fn words<const N: usize>(bytes: &[u8]) -> [u64; N] {
    let mut words = [0; N];
    for (to, word) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
        *to = u64::from_le_bytes(*word);
    }
    words
}

impl Handshake {
    /// Encodes the handshake.
    pub fn encode(&self) -> [u8; HANDSHAKE_BYTES] {
        let mut bytes = [0; HANDSHAKE_BYTES];
        let private = self.private.bytes();
        let shared = if self.shared { SHARED } else { 0 };
        let second = u64::from(PLACEMENT_VERSION) | (HANDSHAKE_BYTES as u64) << 32;
        let last = self.answer as u64 | shared | (private.len() as u64) << 16;
        for (to, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip([MAGIC, second, self.token, last]) {
            *to = word.to_le_bytes();
        }
        if let Some(to) = bytes.get_mut(32..32 + private.len()) {
            to.copy_from_slice(private);
        }
        bytes
    }

    /// Checks the part that all versions share.
    ///
    /// # Errors
    /// See [`HandshakeError`].
    pub fn check(bytes: &[u8; FIXED_BYTES]) -> Result<(), HandshakeError> {
        let [magic, second] = words(bytes);
        let (theirs, len) = (second as u32, second >> 32);
        match (magic, theirs, len) {
            (MAGIC, PLACEMENT_VERSION, len) if len == HANDSHAKE_BYTES as u64 => Ok(()),
            (MAGIC, PLACEMENT_VERSION, _) => Err(HandshakeError::Malformed),
            (MAGIC, ..) => Err(HandshakeError::Version { theirs }),
            _ => Err(HandshakeError::Malformed),
        }
    }

    /// Decodes the handshake.
    ///
    /// # Errors
    /// See [`HandshakeError`].
    pub fn decode(bytes: &[u8; HANDSHAKE_BYTES]) -> Result<Self, HandshakeError> {
        Self::check(bytes.first_chunk().ok_or(HandshakeError::Malformed)?)?;
        let [_, _, token, last] = words(bytes);
        let answer = [PlacementAnswer::Request, PlacementAnswer::Accept, PlacementAnswer::Refuse];
        let answer = answer.into_iter().find(|it| *it as u64 == last & 0xff);
        let len = (last >> 16) as usize & 0xff;
        let private = bytes.get(32..32 + len).filter(|_| len <= MOST_PRIVATE_BYTES).and_then(Private::new);
        let (Some(answer), Some(private)) = (answer, private) else { return Err(HandshakeError::Malformed) };
        let read = Self { answer, token, shared: last & SHARED != 0, private };
        if read.encode() == *bytes { Ok(read) } else { Err(HandshakeError::Malformed) }
    }
}

/// The reason why an operation was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Wrong key, out of bounds, or insufficient rights.
    Access = 1,
    /// An unaligned value, or a message that is longer than the receive.
    Invalid = 2,
    /// The target could not execute the operation.
    Failed = 3,
}

impl Reason {
    const ALL: [Self; 3] = [Self::Access, Self::Invalid, Self::Failed];
}

/// A frame, without its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // The table above describes them.
pub enum Frame {
    Write { len: u32, to: RemoteRange, immediate: Option<u32> },
    Read { len: u32, from: RemoteRange },
    Send { len: u32, immediate: Option<u32> },
    Add { at: RemoteRange, add: u64 },
    Swap { at: RemoteRange, new: u64, expected: u64 },
    ReadReply { len: u32 },
    ValueReply { old: u64 },
    Ack { executed: u64, room: u64 },
    Refuse { operation: u64, reason: Reason },
    Ask { wanted: u64 },
    WriteFrom { len: u32, to: RemoteRange, immediate: Option<u32>, source: u64 },
    ReadFrom { len: u32, source: u64 },
    Pulled { count: u64 },
    CanPull,
}

/// The result of parsing the start of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parsed {
    /// A frame of this length; its payload follows.
    Frame(Frame, usize),
    /// The bytes are too few to decide.
    Short,
    /// The bytes violate the protocol.
    Malformed,
}

impl Frame {
    /// Encodes the frame; returns the bytes and how many of them are used.
    pub fn encode(&self) -> ([u8; MOST_FRAME_BYTES], usize) {
        let head = |kind: u64, len: u32| kind | u64::from(len) << 32;
        let flagged = |kind: u64, len: u32, immediate: Option<u32>| {
            (
                head(kind, len) | if immediate.is_some() { IMMEDIATE } else { 0 },
                u64::from(immediate.unwrap_or(0)),
            )
        };
        let words = match *self {
            Self::Write { len, to, immediate } => {
                let (first, second) = flagged(1, len, immediate);
                [first, second, to.address, to.key, 0, 0]
            }
            Self::Read { len, from } => [head(2, len), 0, from.address, from.key, 0, 0],
            Self::Send { len, immediate } => {
                let (first, second) = flagged(3, len, immediate);
                [first, second, 0, 0, 0, 0]
            }
            Self::Add { at, add } => [head(4, 16), 0, at.address, at.key, add, 0],
            Self::Swap { at, new, expected } => [head(5, 16), 0, at.address, at.key, new, expected],
            Self::ReadReply { len } => [head(6, len), 0, 0, 0, 0, 0],
            Self::ValueReply { old } => [head(7, 0), 0, old, 0, 0, 0],
            Self::Ack { executed, room } => [head(8, 0), 0, executed, room, 0, 0],
            Self::Refuse { operation, reason } => [head(9, 0), 0, operation, reason as u64, 0, 0],
            Self::Ask { wanted } => [head(10, 0), 0, wanted, 0, 0, 0],
            Self::WriteFrom { len, to, immediate, source } => {
                let (first, second) = flagged(11, len, immediate);
                [first, second, to.address, to.key, source, 0]
            }
            Self::ReadFrom { len, source } => [head(12, len), 0, source, 0, 0, 0],
            Self::Pulled { count } => [head(13, 0), 0, count, 0, 0, 0],
            Self::CanPull => [head(14, 0), 0, 0, 0, 0, 0],
        };
        let mut bytes = [0; MOST_FRAME_BYTES];
        for (to, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(words) {
            *to = word.to_le_bytes();
        }
        let long = matches!(self, Self::Add { .. } | Self::Swap { .. } | Self::WriteFrom { .. });
        (bytes, if long { MOST_FRAME_BYTES } else { FRAME_BYTES })
    }

    /// Returns whether this is a message, or has a payload: in the stream or in the sender's memory. A message without
    /// bytes takes a receive, too.
    pub const fn is_transfer(&self) -> bool {
        matches!(
            self,
            Self::Write { .. }
                | Self::Send { .. }
                | Self::ReadReply { .. }
                | Self::WriteFrom { .. }
                | Self::ReadFrom { .. }
        )
    }

    /// Parses the frame at the start of a stream.
    pub fn parse(bytes: &[u8]) -> Parsed {
        let Some(head) = bytes.first_chunk::<FRAME_BYTES>() else { return Parsed::Short };
        let [first, second, third, fourth] = words(head);
        let (len, immediate) = ((first >> 32) as u32, (first & IMMEDIATE != 0).then_some(second as u32));
        let remote = RemoteRange { address: third, key: fourth };
        let size = match first & 0xff {
            4 | 5 | 11 => MOST_FRAME_BYTES,
            _ => FRAME_BYTES,
        };
        if bytes.len() < size {
            return Parsed::Short;
        }
        let [.., fifth, sixth] = words::<6>(bytes);
        let reason = Reason::ALL.into_iter().find(|it| *it as u64 == fourth);
        let frame = match (first & 0xff, reason) {
            (1, _) => Self::Write { len, to: remote, immediate },
            (2, _) => Self::Read { len, from: remote },
            (3, _) => Self::Send { len, immediate },
            (4, _) => Self::Add { at: remote, add: fifth },
            (5, _) => Self::Swap { at: remote, new: fifth, expected: sixth },
            (6, _) => Self::ReadReply { len },
            (7, _) => Self::ValueReply { old: third },
            (8, _) => Self::Ack { executed: third, room: fourth },
            (9, Some(reason)) => Self::Refuse { operation: third, reason },
            (10, _) => Self::Ask { wanted: third },
            (11, _) => Self::WriteFrom { len, to: remote, immediate, source: fifth },
            (12, _) => Self::ReadFrom { len, source: third },
            (13, _) => Self::Pulled { count: third },
            (14, _) => Self::CanPull,
            _ => return Parsed::Malformed,
        };
        // All unused bits must be 0.
        let (wanted, count) = frame.encode();
        let same = bytes.get(..count).is_some_and(|bytes| *bytes == wanted[..count]);
        if same { Parsed::Frame(frame, size) } else { Parsed::Malformed }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: RemoteRange = RemoteRange { address: 0x1122_3344_5566_7788, key: u64::MAX };

    fn frames() -> [Frame; 18] {
        [
            Frame::Write { len: u32::MAX, to: AT, immediate: None },
            Frame::Write { len: 0, to: AT, immediate: Some(0) },
            Frame::Read { len: 5, from: AT },
            Frame::Send { len: 7, immediate: None },
            Frame::Send { len: 7, immediate: Some(u32::MAX) },
            Frame::Add { at: AT, add: 9 },
            Frame::Swap { at: AT, new: 1, expected: 2 },
            Frame::ReadReply { len: 5 },
            Frame::ValueReply { old: 77 },
            Frame::Ack { executed: 3, room: 4 },
            Frame::Refuse { operation: 1, reason: Reason::Access },
            Frame::Refuse { operation: 2, reason: Reason::Invalid },
            Frame::Refuse { operation: 3, reason: Reason::Failed },
            Frame::Ask { wanted: 6 },
            Frame::WriteFrom { len: 1, to: AT, immediate: Some(2), source: 3 },
            Frame::ReadFrom { len: 1, source: 2 },
            Frame::Pulled { count: 1 },
            Frame::CanPull,
        ]
    }

    #[test]
    fn frames_survive_the_wire_whatever_follows() {
        for frame in frames() {
            let (mut bytes, count) = frame.encode();
            bytes[count..].fill(0xff);
            assert_eq!(Frame::parse(&bytes), Parsed::Frame(frame, count));
            for len in 0..count {
                assert_eq!(Frame::parse(&bytes[..len]), Parsed::Short, "{frame:?}");
            }
        }
    }

    #[test]
    fn invalid_frames_are_malformed() {
        for kind in (0..=255_u64).filter(|kind| !(1..=14).contains(kind)) {
            let mut bytes = [0; MOST_FRAME_BYTES];
            bytes[..8].copy_from_slice(&kind.to_le_bytes());
            assert_eq!(Frame::parse(&bytes), Parsed::Malformed, "{kind}");
        }
        for frame in frames() {
            // Reserved bits of the first two words.
            for at in [2, 3, 12, 15] {
                let (mut bytes, count) = frame.encode();
                bytes[at] = 1;
                assert_eq!(Frame::parse(&bytes[..count]), Parsed::Malformed, "{frame:?}, byte {at}");
            }
        }
        let (mut bytes, count) = Frame::Refuse { operation: 1, reason: Reason::Access }.encode();
        bytes[24] = 4;
        assert_eq!(Frame::parse(&bytes[..count]), Parsed::Malformed);
    }

    fn handshake(private: &[u8]) -> Handshake {
        let private = Private::new(private).unwrap();
        Handshake { answer: PlacementAnswer::Accept, token: 3, shared: true, private }
    }

    #[test]
    fn handshakes_survive_the_wire() {
        for private in [&[] as &[u8], b"abc", &[0; 56], &[9; 56]] {
            for answer in [PlacementAnswer::Request, PlacementAnswer::Accept, PlacementAnswer::Refuse] {
                let handshake = Handshake { answer, ..handshake(private) };
                assert_eq!(Handshake::decode(&handshake.encode()), Ok(handshake));
            }
        }
    }

    #[test]
    fn other_versions_and_other_protocols_are_distinguished() {
        let mut bytes = handshake(b"abc").encode();
        bytes[8] = 2;
        assert_eq!(Handshake::decode(&bytes), Err(HandshakeError::Version { theirs: 2 }));
        for (at, value) in [(0, b'x'), (12, 1), (24, 3), (26, 57), (26, 2), (27, 1), (40, 1)] {
            let mut bytes = handshake(b"abc").encode();
            bytes[at] = value;
            assert_eq!(Handshake::decode(&bytes), Err(HandshakeError::Malformed), "byte {at}");
        }
    }
}
