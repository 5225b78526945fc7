//! The description of bytes in memory that their owner has registered at an RDMA fabric: a peer reads or writes
//! them by a work request on a connection with the owner.
//!
//! In a [`Descriptor`]: three words of 64 bits, little-endian: the owner's address of the first byte, the number of
//! bytes, and the remote key. Then, if the owner wants to be notified of the last write, four bytes: the immediate that
//! this write must carry.
#![forbid(unsafe_code)]

use super::fabric::RemoteRange;
use super::rendezvous::Descriptor;

/// Bytes without and with the immediate.
const PLAIN_BYTES: usize = 24;
const NOTICE_BYTES: usize = 28;

/// Bytes in registered memory. A value from a peer is unchecked: the fabric of the peer checks each access to its own
/// memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionBytes {
    /// The owner's address of the first byte, as its fabric knows it.
    pub address: u64,
    /// The number of bytes.
    pub len: u64,
    /// The remote key.
    pub key: u64,
    /// The immediate of the last write to the bytes; `None` if the writer must send a packet instead.
    pub notice: Option<u32>,
}

impl RegionBytes {
    /// Returns the place of `len` bytes from `at` on. `None` if some of them are not described.
    pub fn part(&self, at: u64, len: u64) -> Option<RemoteRange> {
        let end = at.checked_add(len)?;
        let address = self.address.checked_add(at)?;
        (end <= self.len).then_some(RemoteRange { address, key: self.key })
    }
}

impl Descriptor {
    /// Method: the bytes are [`RegionBytes`], which peers access by work requests.
    pub const REGION: u8 = 4;

    /// Returns the description of bytes in registered memory.
    pub fn of_region(bytes: &RegionBytes) -> Self {
        let mut content = [0; NOTICE_BYTES];
        let words = [bytes.address, bytes.len, bytes.key];
        for (to, word) in content.as_chunks_mut::<8>().0.iter_mut().zip(words) {
            *to = word.to_le_bytes();
        }
        let (plain, notice) = content.split_at_mut(PLAIN_BYTES);
        notice.copy_from_slice(&bytes.notice.unwrap_or_default().to_le_bytes());
        let content = if bytes.notice.is_some() { &content[..] } else { plain };
        Self::new(Self::REGION, content).unwrap_or(Self::NONE)
    }

    /// Returns the bytes in registered memory, if the method is [`Descriptor::REGION`] and the description is
    /// well-formed.
    pub fn region(&self) -> Option<RegionBytes> {
        let (words, rest) = self.bytes().as_chunks::<8>();
        let [address, len, key] = <[[u8; 8]; 3]>::try_from(words).ok()?.map(u64::from_le_bytes);
        let notice = match rest {
            [] => None,
            rest => Some(u32::from_le_bytes(rest.try_into().ok()?)),
        };
        (self.method() == Self::REGION).then_some(RegionBytes { address, len, key, notice })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: RegionBytes =
        RegionBytes { address: u64::MAX - 5, len: 9, key: 0x1234_5678_9abc, notice: None };

    #[test]
    fn descriptions_survive_the_wire() {
        for notice in [None, Some(0), Some(u32::MAX)] {
            let bytes = RegionBytes { notice, ..BYTES };
            assert_eq!(Descriptor::of_region(&bytes).region(), Some(bytes));
        }
        let golden =
            Descriptor::of_region(&RegionBytes { address: 1, len: 2, key: 3, notice: Some(0x0605_0407) });
        let mut expected = [0; NOTICE_BYTES];
        (expected[0], expected[8], expected[16]) = (1, 2, 3);
        expected[PLAIN_BYTES..].copy_from_slice(&[7, 4, 5, 6]);
        assert_eq!((golden.method(), golden.bytes()), (4, &expected[..]));
    }

    #[test]
    fn malformed_descriptions_are_refused() {
        for len in 0..=32 {
            let described = Descriptor::new(Descriptor::REGION, &[1; 32][..len]).unwrap();
            assert_eq!(described.region().is_some(), len == PLAIN_BYTES || len == NOTICE_BYTES, "{len}");
        }
        assert_eq!(Descriptor::new(Descriptor::MAPPABLE, &[1; PLAIN_BYTES]).unwrap().region(), None);
        assert_eq!(Descriptor::NONE.region(), None);
    }

    #[test]
    fn only_described_bytes_have_a_place() {
        let bytes = RegionBytes { address: 100, ..BYTES };
        assert_eq!(bytes.part(2, 7), Some(RemoteRange { address: 102, key: bytes.key }));
        assert_eq!((bytes.part(2, 8), bytes.part(u64::MAX, 2), bytes.part(10, 0)), (None, None, None));
        assert_eq!(BYTES.part(6, 1), None);
    }
}
