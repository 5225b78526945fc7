//! The bytes that two connected virtual interfaces exchange between machines (paper 2, section 1.4.3), over a memory
//! port. Payload moves by the port's writes and reads; everything else is a message of at most [`MOST_VIPL_BYTES`].
//!
//! A message has a head of 16 bytes, and then bytes of its own. All words are little-endian. Bytes that no row lists
//! are zero.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 2 | code: that of a [record](crate::via::record), or one of the following constants |
//! | 8 | 8 | word: that of the record; for a region, its virtual address; a count; else 0 |
//! | 16 | | the bytes of the record, or those of the region |
//!
//! The bytes of a region: handle (4), rights of the other side (4, bit 0: RDMA writes, bit 1: RDMA reads), length (8),
//! and two keys of the memory port ([`KEY_BYTES`] each): for messages and RDMA writes, and for RDMA reads. A key that
//! the other side does not need is zero. With one key for each, a right to read can be withdrawn while a message is
//! under way to the same memory.
//!
//! A process that does not know a region asks its owner by a message without bytes ([`SYNC_CODE`]), which the owner
//! answers by another one ([`SYNCED_CODE`]). All regions that were lent before the answer arrive before it.
//!
//! A process sends no message for which the other one may have no receive: each has [`VIPL_RECEIVES`], and reports
//! now and then how many messages it has taken since the connection began ([`TAKEN_CODE`], the count is the word). The
//! last receive is for such a report alone.
//!
//! A connection begins with a [`ViplHello`] as its private data: `"vipl"` (4), [`VIPL_VERSION`] (2), 0 (2), and the
//! ticket (16) that the accepting process has named in its last frame ([`crate::via::setup`]).
//!
//! The other process wrote all of this, so every value is checked here or by its user.
#![forbid(unsafe_code)]

/// The version of the messages.
pub const VIPL_VERSION: u16 = 2;
/// Most bytes of a message: a receive descriptor with the most segments fits.
pub const MOST_VIPL_BYTES: usize = 4096;
/// Bytes of the head of a message.
pub const VIPL_HEAD_BYTES: usize = 16;
/// The code of a message that lends a region.
pub const REGION_CODE: u16 = 0x80;
/// The code of a question whether all regions have arrived.
pub const SYNC_CODE: u16 = 0x81;
/// The code of its answer.
pub const SYNCED_CODE: u16 = 0x82;
/// The code of a report of the messages that were taken.
pub const TAKEN_CODE: u16 = 0x83;
/// Messages that a process can receive before it takes one.
pub const VIPL_RECEIVES: u64 = 16;
/// Bytes of a key of a memory port.
pub const KEY_BYTES: usize = 24;
/// Bytes of a [`ViplHello`].
pub const VIPL_HELLO_BYTES: usize = 24;
const MARK: [u8; 4] = *b"vipl";
const REGION_BYTES: usize = 16 + 2 * KEY_BYTES;

/// The private data of a connection: it belongs to the request with this ticket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ViplHello {
    /// Random bytes, which only the two processes know.
    pub ticket: [u8; 16],
}

impl ViplHello {
    /// Returns the bytes.
    pub fn encode(&self) -> [u8; VIPL_HELLO_BYTES] {
        let mut bytes = [0; VIPL_HELLO_BYTES];
        bytes[..4].copy_from_slice(&MARK);
        bytes[4..6].copy_from_slice(&VIPL_VERSION.to_le_bytes());
        bytes[8..].copy_from_slice(&self.ticket);
        bytes
    }

    /// Returns the hello in private data, after which a fabric may append zeros; `None` if there is none of this
    /// version.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (bytes, rest) = bytes.split_first_chunk::<VIPL_HELLO_BYTES>()?;
        let hello = Self { ticket: *bytes[8..].first_chunk()? };
        (hello.encode() == *bytes && rest.iter().all(|byte| *byte == 0)).then_some(hello)
    }
}

/// A region that one process lends to the VI of the other one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LentRegion {
    /// Its handle, not 0.
    pub handle: u32,
    /// The rights of the other side, two bits.
    pub rights: u32,
    /// The virtual address of its first byte.
    pub base: u64,
    /// Bytes, not 0.
    pub len: u64,
    /// The key of the memory port for messages and RDMA writes.
    pub write_key: [u8; KEY_BYTES],
    /// The key of the memory port for RDMA reads.
    pub read_key: [u8; KEY_BYTES],
}

/// A message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ViplMessage<'a> {
    /// A record, to be decoded by [`ViaRecord`](crate::via::record::ViaRecord).
    Record {
        /// Its code.
        code: u16,
        /// Its word.
        word: u64,
        /// Its bytes.
        bytes: &'a [u8],
    },
    /// A region is lent, or its rights or keys have changed.
    Region(LentRegion),
    /// The other process asks whether it knows all regions.
    Sync,
    /// The answer: all regions that were lent before it have arrived.
    Synced,
    /// The messages that the sender has taken since the connection began.
    Taken(u64),
}

impl<'a> ViplMessage<'a> {
    /// Writes the message to lent bytes and returns its length; `None` if it does not fit.
    pub fn encode(&self, to: &mut [u8]) -> Option<usize> {
        let mut region = [0; REGION_BYTES];
        let (code, word, bytes) = match self {
            Self::Record { code, word, bytes } => (*code, *word, *bytes),
            Self::Region(lent) => {
                region[..4].copy_from_slice(&lent.handle.to_le_bytes());
                region[4..8].copy_from_slice(&lent.rights.to_le_bytes());
                region[8..16].copy_from_slice(&lent.len.to_le_bytes());
                region[16..16 + KEY_BYTES].copy_from_slice(&lent.write_key);
                region[16 + KEY_BYTES..].copy_from_slice(&lent.read_key);
                (REGION_CODE, lent.base, region.as_slice())
            }
            Self::Sync => (SYNC_CODE, 0, &[][..]),
            Self::Synced => (SYNCED_CODE, 0, &[][..]),
            Self::Taken(count) => (TAKEN_CODE, *count, &[][..]),
        };
        let len = VIPL_HEAD_BYTES + bytes.len();
        let (head, rest) = to.get_mut(..len)?.split_first_chunk_mut::<VIPL_HEAD_BYTES>()?;
        *head = [0; VIPL_HEAD_BYTES];
        head[..2].copy_from_slice(&code.to_le_bytes());
        head[8..].copy_from_slice(&word.to_le_bytes());
        rest.copy_from_slice(bytes);
        Some(len)
    }

    /// Returns the message of these bytes; `None` if they are none.
    pub fn decode(bytes: &'a [u8]) -> Option<Self> {
        let (head, rest) = bytes.split_first_chunk::<VIPL_HEAD_BYTES>()?;
        if head[2..8] != [0; 6] || bytes.len() > MOST_VIPL_BYTES {
            return None;
        }
        let code = u16::from_le_bytes([head[0], head[1]]);
        let word = u64::from_le_bytes(*head[8..].first_chunk()?);
        match code {
            REGION_CODE => {}
            SYNC_CODE if rest.is_empty() && word == 0 => return Some(Self::Sync),
            SYNCED_CODE if rest.is_empty() && word == 0 => return Some(Self::Synced),
            TAKEN_CODE if rest.is_empty() => return Some(Self::Taken(word)),
            SYNC_CODE | SYNCED_CODE | TAKEN_CODE => return None,
            _ => return Some(Self::Record { code, word, bytes: rest }),
        }
        let rest: &[u8; REGION_BYTES] = rest.try_into().ok()?;
        let number = |at: usize| Some(u32::from_le_bytes(*rest[at..].first_chunk()?));
        let len = u64::from_le_bytes(*rest[8..].first_chunk()?);
        let lent = LentRegion {
            handle: number(0)?,
            rights: number(4)?,
            base: word,
            len,
            write_key: *rest[16..].first_chunk()?,
            read_key: *rest[16 + KEY_BYTES..].first_chunk()?,
        };
        let is_valid = lent.handle != 0 && lent.rights <= 3 && len > 0 && word.checked_add(len).is_some();
        is_valid.then_some(Self::Region(lent))
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    const LENT: LentRegion = LentRegion {
        handle: 0x3_0007,
        rights: 1,
        base: 0x7f00_0000_1000,
        len: 0x2000,
        write_key: [9; KEY_BYTES],
        read_key: [8; KEY_BYTES],
    };

    fn encoded(message: &ViplMessage<'_>) -> Vec<u8> {
        let mut bytes = [0xee; 100];
        let len = message.encode(&mut bytes).unwrap();
        bytes[..len].to_vec()
    }

    #[test]
    fn the_bytes_are_those_of_version_2() {
        let record = ViplMessage::Record { code: 0x401, word: 0x0102_0304, bytes: &[5, 6] };
        assert_eq!(encoded(&record), [1, 4, 0, 0, 0, 0, 0, 0, 4, 3, 2, 1, 0, 0, 0, 0, 5, 6]);
        let mut region =
            std::vec![0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0, 0x7f, 0, 0, 7, 0, 3, 0, 1, 0, 0, 0];
        region.extend([0, 0x20, 0, 0, 0, 0, 0, 0]);
        region.extend([[9; KEY_BYTES], [8; KEY_BYTES]].concat());
        assert_eq!(encoded(&ViplMessage::Region(LENT)), region);
        assert_eq!(encoded(&ViplMessage::Sync), [0x81, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(encoded(&ViplMessage::Synced), [0x82, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        let taken = encoded(&ViplMessage::Taken(0x0506));
        assert_eq!(taken, [0x83, 0, 0, 0, 0, 0, 0, 0, 6, 5, 0, 0, 0, 0, 0, 0]);
        let hello = ViplHello { ticket: [3; 16] };
        assert_eq!(hello.encode()[..8], [b'v', b'i', b'p', b'l', 2, 0, 0, 0]);
        assert_eq!(hello.encode()[8..], [3; 16]);
    }

    #[test]
    fn messages_are_decoded_as_they_were_encoded() {
        let record = ViplMessage::Record { code: 13, word: 0, bytes: &[] };
        let plain = [ViplMessage::Sync, ViplMessage::Synced, ViplMessage::Taken(7)];
        for message in [ViplMessage::Region(LENT), record].into_iter().chain(plain) {
            assert_eq!(ViplMessage::decode(&encoded(&message)), Some(message));
            assert_eq!(message.encode(&mut [0; VIPL_HEAD_BYTES - 1]), None);
        }
        let hello = ViplHello { ticket: [3; 16] };
        let mut padded = [0; 56];
        padded[..VIPL_HELLO_BYTES].copy_from_slice(&hello.encode());
        assert_eq!(ViplHello::decode(&padded), Some(hello));
        assert_eq!(ViplHello::decode(&padded[..VIPL_HELLO_BYTES - 1]), None);
        padded[30] = 1;
        assert_eq!(ViplHello::decode(&padded), None);
    }

    #[test]
    fn malformed_messages_are_refused() {
        let region = encoded(&ViplMessage::Region(LENT));
        assert_eq!(ViplMessage::decode(&region[..region.len() - 1]), None, "short");
        assert_eq!(ViplMessage::decode(&region[..VIPL_HEAD_BYTES - 1]), None, "no head");
        assert_eq!(ViplMessage::decode(&[0; MOST_VIPL_BYTES + 1]), None, "long");
        for (at, byte) in [(2, 1), (7, 1), (20, 4), (23, 1)] {
            let mut other = region.clone();
            other[at] = byte;
            assert_eq!(ViplMessage::decode(&other), None, "byte {at}");
        }
        for message in [ViplMessage::Sync, ViplMessage::Synced] {
            let mut other = encoded(&message);
            other.push(0);
            assert_eq!(ViplMessage::decode(&other), None, "with a byte");
            other[8] = 1;
            assert_eq!(ViplMessage::decode(&other[..VIPL_HEAD_BYTES]), None, "with a word");
        }
        let taken = [encoded(&ViplMessage::Taken(7)), std::vec![0]].concat();
        assert_eq!(ViplMessage::decode(&taken), None, "with a byte");
        for (range, byte) in [(16..20, 0), (24..32, 0), (8..16, 0xff)] {
            let mut other = region.clone();
            other[range.clone()].fill(byte);
            assert_eq!(ViplMessage::decode(&other), None, "bytes {range:?}");
        }
        for at in 0..8 {
            let mut other = ViplHello { ticket: [3; 16] }.encode();
            other[at] ^= 1;
            assert_eq!(ViplHello::decode(&other), None, "byte {at}");
        }
    }

    proptest! {
        #[test]
        fn what_is_decoded_is_encoded_to_the_same_bytes(
            code in prop_oneof![REGION_CODE..=TAKEN_CODE, any::<u16>()],
            rest in prop::collection::vec(prop_oneof![Just(0), Just(1), any::<u8>()], 0..80),
        ) {
            let mut bytes = std::vec![0; 8];
            bytes[..2].copy_from_slice(&code.to_le_bytes());
            bytes.extend(rest);
            if let Some(message) = ViplMessage::decode(&bytes) {
                prop_assert_eq!(encoded(&message), bytes);
            }
        }
    }
}
