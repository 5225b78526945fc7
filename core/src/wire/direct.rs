//! The description of a region for direct access, which its owner sends to a peer that asks for it
//! ([`wire::rma`](super::rma)). Five words of 64 bits, little-endian.
#![forbid(unsafe_code)]

use super::region::RegionBytes;
use super::rma::Access;

/// Bytes of the description of a region.
pub const DESCRIPTION_BYTES: usize = 40;

/// The memory of a region, as its owner describes it for direct access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirectRegion {
    /// The registered bytes: those of the region.
    pub bytes: RegionBytes,
    /// The offset of the first byte, as in a remote key.
    pub base: u64,
    /// The rights of peers.
    pub access: Access,
}

impl DirectRegion {
    /// Encodes the words: address, length and key of the registered bytes, the offset of the first byte, the rights.
    pub fn encode(&self) -> [u8; DESCRIPTION_BYTES] {
        let Self { bytes: RegionBytes { address, len, key, .. }, base, access } = *self;
        let mut bytes = [0; DESCRIPTION_BYTES];
        for (to, word) in
            bytes.as_chunks_mut::<8>().0.iter_mut().zip([address, len, key, base, access as u64])
        {
            *to = word.to_le_bytes();
        }
        bytes
    }

    /// Decodes the words. `None` if the rights are none that exist. The other words are unchecked: the owner's fabric
    /// checks each access.
    pub fn decode(bytes: &[u8; DESCRIPTION_BYTES]) -> Option<Self> {
        let mut words = [0; 5];
        for (to, word) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
            *to = u64::from_le_bytes(*word);
        }
        let [address, len, key, base, access] = words;
        let access = Access::ALL.into_iter().find(|known| *known as u64 == access)?;
        Some(Self { bytes: RegionBytes { address, len, key, notice: None }, base, access })
    }

    /// Returns the position in the registered bytes of `len` bytes that an operation names by `offset`. `None` if the
    /// region does not have them, or does not allow the access.
    pub fn place(&self, offset: u64, len: u64, wanted: Access) -> Option<u64> {
        let at = offset.checked_sub(self.base)?;
        let _ = self.bytes.part(at, len)?;
        self.access.allows(wanted).then_some(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptions_of_regions_survive_the_wire() {
        let bytes = RegionBytes { address: 1 << 40, len: 300, key: 7, notice: None };
        for access in Access::ALL {
            let region = DirectRegion { bytes, base: 100, access };
            assert_eq!(DirectRegion::decode(&region.encode()), Some(region));
            assert_eq!(region.place(150, 250, access), Some(50));
            assert_eq!((region.place(150, 251, access), region.place(99, 1, access)), (None, None));
            let all = region.place(100, 1, Access::ReadWrite);
            assert_eq!(all.is_some(), access == Access::ReadWrite);
        }
        let mut golden = [0; DESCRIPTION_BYTES];
        (golden[5], golden[8], golden[9], golden[16], golden[24], golden[32]) = (1, 44, 1, 7, 100, 2);
        let described = DirectRegion::decode(&golden);
        assert_eq!(described, Some(DirectRegion { bytes, base: 100, access: Access::Write }));
        golden[32] = 0;
        assert_eq!(DirectRegion::decode(&golden), None);
        golden[32] = 4;
        assert_eq!(DirectRegion::decode(&golden), None);
    }
}
