//! The records that two connected VIs exchange in shared memory (paper 2, sections 1.4.3 and 1.4.4): receive
//! descriptors for the sender, several at a time, and the events of transfers.
//!
//! A record travels as one packet of a [fastbox](crate::shared::fastbox): a code of 16 bits, a word of 64 bits and some
//! bytes. The other process wrote it, so every value is checked here or by [`super::vi`].
//!
//! | record | code | word | bytes |
//! |---|---|---|---|
//! | message | 1, flags | length, immediate | status, if it is not 0 |
//! | written | 2, flags | address | handle, length |
//! | mirror | 3 | number of descriptors | each: number of segments, segments |
//! | starved | 4 | 0 | |
//! | empty | 5 | descriptors mirrored so far | |
//! | dropped | 6 | bytes | |
//! | read request | 7 | address | handle, length, number |
//! | read answer | 8 | number | 1 if the memory permits it |
//! | acknowledgement | 9 | number of records | |
//! | region gone | 10 | handle | |
//! | region rights | 11 | handle | rights |
//! | failure | 12 | error | |
//! | disconnect | 13 | 0 | |
#![forbid(unsafe_code)]

use super::codes::{AsyncError, STATUS_ERRORS};
use super::descriptor::{SEGMENT_BYTES, ViaSegment};

/// A flag of a code: there is an immediate.
const IMMEDIATE: u16 = 0x100;
/// A flag of a code: an RDMA write consumed the receive descriptor.
const RDMA: u16 = 0x200;
/// A flag of a code: the sender waits for an acknowledgement.
const ACK: u16 = 0x400;
/// Most bytes of a record without a list.
pub const FIXED_RECORD_BYTES: usize = 16;
/// Bytes before the segments of a mirrored descriptor.
pub const MIRROR_HEAD_BYTES: usize = 4;

/// One record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ViaRecord<'a> {
    /// A message lies in the memory of the oldest mirrored receive descriptor.
    Message {
        /// Bytes.
        length: u32,
        /// Immediate data.
        immediate: Option<u32>,
        /// Whether an RDMA write consumed the descriptor.
        is_rdma: bool,
        /// Error bits of the receive descriptor; 0 if there is no error.
        status: u32,
        /// Whether the sender waits for an acknowledgement.
        wants_ack: bool,
    },
    /// An RDMA write is complete.
    Written {
        /// The range written.
        segment: ViaSegment,
        /// Whether the sender waits for an acknowledgement.
        wants_ack: bool,
    },
    /// The next receive descriptors, in the order posted.
    Mirror {
        /// Their number.
        count: u32,
        /// Their segments, to be read by [`MirrorReader`].
        bytes: &'a [u8],
    },
    /// The sender needs receive descriptors.
    Starved {
        /// The descriptors that the other side has been informed of since the start of the connection. If it was
        /// informed of more meanwhile, they are the answer.
        mirrored: u64,
    },
    /// No more receive descriptors are posted.
    Empty {
        /// The number of those that were mirrored since the connection.
        mirrored: u64,
    },
    /// A message was dropped, because no receive descriptor was posted.
    Dropped {
        /// Its bytes.
        length: u32,
    },
    /// The other side wants to read memory that must first be copied to its shadow segment.
    ReadRequest {
        /// The range.
        segment: ViaSegment,
        /// The number of the request.
        number: u32,
    },
    /// The answer.
    ReadAnswer {
        /// The number of the request.
        number: u32,
        /// Whether the memory permits it.
        is_permitted: bool,
    },
    /// Records that asked for an acknowledgement were executed.
    Ack {
        /// Their number since the connection.
        count: u64,
    },
    /// A region was deregistered.
    RegionGone {
        /// Its handle.
        handle: u32,
    },
    /// The rights of a region changed.
    RegionRights {
        /// Its handle.
        handle: u32,
        /// The new rights.
        rights: RegionRights,
    },
    /// The connection failed.
    Failure {
        /// The error that this side reports.
        error: AsyncError,
    },
    /// The other side disconnects.
    Disconnect,
}

/// The rights of the other side in a region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RegionRights {
    /// RDMA writes are permitted.
    pub write: bool,
    /// RDMA reads are permitted.
    pub read: bool,
}

impl RegionRights {
    /// Returns the rights as a number.
    pub const fn bits(self) -> u32 {
        self.write as u32 | (self.read as u32) << 1
    }

    /// Returns the rights of a number; `None` if it has other bits.
    pub const fn from_bits(bits: u32) -> Option<Self> {
        if bits > 3 {
            return None;
        }
        Some(Self { write: bits & 1 != 0, read: bits & 2 != 0 })
    }
}

/// The encoded form of a record: code, word and bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EncodedRecord<'a> {
    /// The code with its flags.
    pub code: u16,
    /// The word.
    pub word: u64,
    /// The fixed bytes and their number; unused if there is a list.
    fixed: ([u8; FIXED_RECORD_BYTES], usize),
    list: Option<&'a [u8]>,
}

impl EncodedRecord<'_> {
    /// Returns the bytes.
    pub fn bytes(&self) -> &[u8] {
        self.list.unwrap_or(&self.fixed.0[..self.fixed.1])
    }
}

fn words<const N: usize>(words: [u32; N]) -> ([u8; FIXED_RECORD_BYTES], usize) {
    let mut bytes = [0; FIXED_RECORD_BYTES];
    for (place, word) in bytes.chunks_exact_mut(4).zip(words) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    (bytes, N * 4)
}

const fn flag(set: bool, flag: u16) -> u16 {
    if set { flag } else { 0 }
}

impl<'a> ViaRecord<'a> {
    /// Returns the encoded form.
    #[inline(always)]
    pub fn encode(&self) -> EncodedRecord<'a> {
        let plain = |code, word, fixed| EncodedRecord { code, word, fixed, list: None };
        match *self {
            Self::Message { length, immediate, is_rdma, status, wants_ack } => {
                let flags = flag(immediate.is_some(), IMMEDIATE) | flag(is_rdma, RDMA) | flag(wants_ack, ACK);
                let word = u64::from(length) | u64::from(immediate.unwrap_or(0)) << 32;
                plain(1 | flags, word, if status == 0 { words([]) } else { words([status]) })
            }
            Self::Written { segment, wants_ack } => {
                plain(2 | flag(wants_ack, ACK), segment.address, words([segment.handle, segment.length]))
            }
            Self::Mirror { count, bytes } => {
                EncodedRecord { code: 3, word: count.into(), fixed: words([]), list: Some(bytes) }
            }
            Self::Starved { mirrored } => plain(4, mirrored, words([])),
            Self::Empty { mirrored } => plain(5, mirrored, words([])),
            Self::Dropped { length } => plain(6, length.into(), words([])),
            Self::ReadRequest { segment, number } => {
                plain(7, segment.address, words([segment.handle, segment.length, number]))
            }
            Self::ReadAnswer { number, is_permitted } => {
                plain(8, number.into(), words([u32::from(is_permitted)]))
            }
            Self::Ack { count } => plain(9, count, words([])),
            Self::RegionGone { handle } => plain(10, handle.into(), words([])),
            Self::RegionRights { handle, rights } => plain(11, handle.into(), words([rights.bits()])),
            Self::Failure { error } => plain(12, error as u64, words([])),
            Self::Disconnect => plain(13, 0, words([])),
        }
    }

    /// Returns whether this is the code of a message, with any flags.
    #[inline(always)]
    pub const fn is_message(code: u16) -> bool {
        code & 0xff == 1
    }

    /// Returns the record of these parts; `None` if they are no record.
    pub fn decode(code: u16, word: u64, bytes: &'a [u8]) -> Option<Self> {
        let kind = code & 0xff;
        let flags = code & !0xff;
        let permitted = match kind {
            1 => IMMEDIATE | RDMA | ACK,
            2 => ACK,
            _ => 0,
        };
        if flags & !permitted != 0 {
            return None;
        }
        let low = u32::try_from(word).ok();
        Some(match (kind, bytes.len()) {
            (1, 0 | 4) => Self::message(flags, word, bytes)?,
            (2, 8) => {
                let segment =
                    ViaSegment { address: word, handle: number(bytes, 0)?, length: number(bytes, 4)? };
                Self::Written { segment, wants_ack: flags & ACK != 0 }
            }
            (3, _) => Self::Mirror { count: low?, bytes },
            (4, 0) => Self::Starved { mirrored: word },
            (5, 0) => Self::Empty { mirrored: word },
            (6, 0) => Self::Dropped { length: low? },
            (7, 12) => {
                let segment =
                    ViaSegment { address: word, handle: number(bytes, 0)?, length: number(bytes, 4)? };
                Self::ReadRequest { segment, number: number(bytes, 8)? }
            }
            (8, 4) => {
                let is_permitted = match number(bytes, 0)? {
                    0 => false,
                    1 => true,
                    _ => return None,
                };
                Self::ReadAnswer { number: low?, is_permitted }
            }
            (9, 0) => Self::Ack { count: word },
            (10, 0) => Self::RegionGone { handle: low? },
            (11, 4) => {
                Self::RegionRights { handle: low?, rights: RegionRights::from_bits(number(bytes, 0)?)? }
            }
            (12, 0) => {
                let error = AsyncError::ALL.get(usize::try_from(word).ok()?)?;
                Self::Failure { error: *error }
            }
            (13, 0) if word == 0 => Self::Disconnect,
            _ => return None,
        })
    }

    /// Returns the message of these parts; `None` if they are no message.
    #[inline(always)]
    pub fn decode_message(code: u16, word: u64, bytes: &[u8]) -> Option<Self> {
        let flags = code & !0xff;
        let is_valid = Self::is_message(code) && flags & !(IMMEDIATE | RDMA | ACK) == 0;
        if is_valid { Self::message(flags, word, bytes) } else { None }
    }

    #[inline(always)]
    fn message(flags: u16, word: u64, bytes: &[u8]) -> Option<Self> {
        let status = if bytes.is_empty() { 0 } else { number(bytes, 0)? };
        let has_immediate = flags & IMMEDIATE != 0;
        let immediate = (word >> 32) as u32;
        if status & !STATUS_ERRORS != 0
            || status == 0 && !bytes.is_empty()
            || !has_immediate && immediate != 0
        {
            return None;
        }
        Some(Self::Message {
            length: word as u32,
            immediate: has_immediate.then_some(immediate),
            is_rdma: flags & RDMA != 0,
            status,
            wants_ack: flags & ACK != 0,
        })
    }
}

fn number(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// Writes the list of a mirror record into lent bytes.
#[derive(Debug)]
pub struct MirrorWriter<'a> {
    bytes: &'a mut [u8],
    used: usize,
    count: u32,
}

impl<'a> MirrorWriter<'a> {
    /// Returns an empty list.
    pub fn new(bytes: &'a mut [u8]) -> Self {
        Self { bytes, used: 0, count: 0 }
    }

    /// Appends a descriptor. Returns whether there was room.
    pub fn push(&mut self, count: u16, segments: impl Iterator<Item = ViaSegment>) -> bool {
        let len = MIRROR_HEAD_BYTES + usize::from(count) * SEGMENT_BYTES;
        let Some(room) = self.bytes.get_mut(self.used..self.used + len) else { return false };
        let (head, list) = room.split_at_mut(MIRROR_HEAD_BYTES);
        head.copy_from_slice(&u32::from(count).to_le_bytes());
        for (place, segment) in list.chunks_exact_mut(SEGMENT_BYTES).zip(segments) {
            place.copy_from_slice(&segment.encode());
        }
        self.used += len;
        self.count += 1;
        true
    }

    /// Returns the record.
    pub fn record(&self) -> ViaRecord<'_> {
        ViaRecord::Mirror { count: self.count, bytes: &self.bytes[..self.used] }
    }

    /// Returns the number of descriptors.
    pub const fn count(&self) -> u32 {
        self.count
    }
}

/// Reads the list of a mirror record.
#[derive(Clone, Debug)]
pub struct MirrorReader<'a>(pub &'a [u8]);

impl<'a> MirrorReader<'a> {
    /// Takes the next descriptor: its segments. `None` at the end, and if the rest is no descriptor.
    pub fn take(&mut self) -> Option<impl ExactSizeIterator<Item = ViaSegment> + use<'a>> {
        let count = number(self.0, 0)? as usize;
        let rest = &self.0[MIRROR_HEAD_BYTES..];
        let len = count.checked_mul(SEGMENT_BYTES).filter(|len| *len <= rest.len())?;
        let (list, rest) = rest.split_at(len);
        self.0 = rest;
        let (segments, _) = list.as_chunks::<SEGMENT_BYTES>();
        Some(segments.iter().map(ViaSegment::decode))
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    const SEGMENT: ViaSegment = ViaSegment { address: 1 << 45, handle: 0x3_0007, length: 99 };

    fn all() -> Vec<ViaRecord<'static>> {
        let mut all = std::vec![
            ViaRecord::Starved { mirrored: 1 << 41 },
            ViaRecord::Empty { mirrored: 1 << 40 },
            ViaRecord::Dropped { length: 3 },
            ViaRecord::ReadRequest { segment: SEGMENT, number: 6 },
            ViaRecord::ReadAnswer { number: 6, is_permitted: true },
            ViaRecord::Ack { count: 1 << 40 },
            ViaRecord::RegionGone { handle: 7 },
            ViaRecord::RegionRights { handle: 7, rights: RegionRights { write: false, read: true } },
            ViaRecord::Disconnect,
            ViaRecord::Mirror { count: 0, bytes: &[] },
        ];
        all.extend(AsyncError::ALL.map(|error| ViaRecord::Failure { error }));
        for wants_ack in [false, true] {
            all.push(ViaRecord::Written { segment: SEGMENT, wants_ack });
            for (immediate, status) in [(None, 0), (Some(0), 8), (Some(u32::MAX), 0)] {
                let is_rdma = immediate.is_some();
                all.push(ViaRecord::Message { length: 9, immediate, is_rdma, status, wants_ack });
            }
        }
        all
    }

    #[test]
    fn each_record_is_decoded_as_it_was_encoded() {
        for record in all() {
            let encoded = record.encode();
            assert_eq!(ViaRecord::decode(encoded.code, encoded.word, encoded.bytes()), Some(record));
        }
    }

    #[test]
    fn a_list_of_descriptors_is_read_as_it_was_written() {
        let mut room = [0; 100];
        let mut writer = MirrorWriter::new(&mut room);
        assert!(
            writer.push(2, [SEGMENT, ViaSegment::default()].into_iter()) && writer.push(0, [].into_iter())
        );
        assert!(!writer.push(4, [SEGMENT; 4].into_iter()) && writer.push(3, [SEGMENT; 3].into_iter()));
        assert_eq!(writer.count(), 3);
        let ViaRecord::Mirror { bytes, .. } = writer.record() else { unreachable!() };
        let mut reader = MirrorReader(bytes);
        let mut next = || reader.take().map(|segments| segments.collect::<Vec<_>>());
        assert_eq!(next(), Some(std::vec![SEGMENT, ViaSegment::default()]));
        assert_eq!((next(), next(), next()), (Some(Vec::new()), Some(std::vec![SEGMENT; 3]), None));
    }

    proptest! {
        #[test]
        fn what_is_decoded_is_encoded_to_the_same_parts(
            code in any::<u16>(),
            word in prop_oneof![any::<u64>(), 0..20_u64, any::<u32>().prop_map(u64::from)],
            bytes in prop::collection::vec(prop_oneof![Just(0), Just(1), any::<u8>()], 0..20),
        ) {
            for code in [code, code & 0x70f, code & 0xf] {
                if let Some(record) = ViaRecord::decode(code, word, &bytes) {
                    let encoded = record.encode();
                    prop_assert_eq!((encoded.code, encoded.word, encoded.bytes()), (code, word, &bytes[..]));
                }
            }
            let mut reader = MirrorReader(&bytes);
            let mut left = bytes.len();
            while let Some(segments) = reader.take() {
                prop_assert!(segments.len() * SEGMENT_BYTES + MIRROR_HEAD_BYTES <= left);
                left = reader.0.len();
            }
        }
    }
}
