//! The bytes that two queue pairs exchange to be joined on InfiniBand and `RoCE`, where any bootstrap may carry
//! them and no connection manager is needed.

/// The length of an encoded [`PairInfo`] in bytes.
pub const INFO_BYTES: usize = 32;

const VERSION: u8 = 1;
const MAGIC: u8 = 0x4e;

/// The description of a queue pair for the other side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PairInfo {
    /// Its number, 24 bits.
    pub number: u32,
    /// The sequence number of its first packet, 24 bits.
    pub psn: u32,
    /// The path MTU as a code: 1 is 256 bytes, 5 is 4096.
    pub mtu: u8,
    /// The reads and atomic operations of the other side that it serves at once.
    pub reads: u8,
    /// Its port's address in an InfiniBand fabric; 0 on Ethernet.
    pub lid: u16,
    /// Its port's identifier, by which Ethernet finds it.
    pub gid: [u8; 16],
}

/// The reason why bytes are no [`PairInfo`]. The bytes come from outside and are untrusted.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InfoError {
    /// They have another format.
    #[error("these are not the bytes of a queue pair")]
    Foreign,
    /// They have another version.
    #[error(
        "the peer describes its queue pairs by version {theirs}, we by {}: use the same release",
        VERSION
    )]
    Version {
        /// The version found.
        theirs: u8,
    },
    /// They contain a value that no device has.
    #[error("a queue pair can't have this {field}")]
    Value {
        /// The field with that value.
        field: &'static str,
    },
}

impl PairInfo {
    /// Encodes the description; numbers are little-endian.
    pub fn to_bytes(&self) -> [u8; INFO_BYTES] {
        let mut bytes = [0; INFO_BYTES];
        bytes[0] = MAGIC;
        bytes[1] = VERSION;
        bytes[2] = self.mtu;
        bytes[3] = self.reads;
        bytes[4..8].copy_from_slice(&self.number.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.psn.to_le_bytes());
        bytes[12..14].copy_from_slice(&self.lid.to_le_bytes());
        bytes[16..].copy_from_slice(&self.gid);
        bytes
    }

    /// Decodes a description.
    ///
    /// # Errors
    /// The bytes are none, or no device has such values.
    pub fn from_bytes(bytes: &[u8; INFO_BYTES]) -> Result<Self, InfoError> {
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        if bytes[0] != MAGIC {
            return Err(InfoError::Foreign);
        }
        if bytes[1] != VERSION {
            return Err(InfoError::Version { theirs: bytes[1] });
        }
        let mut gid = [0; 16];
        gid.copy_from_slice(&bytes[16..]);
        let lid = u16::from_le_bytes([bytes[12], bytes[13]]);
        let info = Self { number: word(4), psn: word(8), mtu: bytes[2], reads: bytes[3], lid, gid };
        let checks = [
            ("number", (1..1 << 24).contains(&info.number)),
            ("sequence number", info.psn < 1 << 24),
            ("MTU", (1..=5).contains(&info.mtu)),
            ("number of reads", info.reads <= 128),
            ("address", lid != 0 || gid != [0; 16]),
        ];
        match checks.into_iter().find(|(_, good)| !good) {
            Some((field, _)) => Err(InfoError::Value { field }),
            None => Ok(info),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INFO: PairInfo = PairInfo { number: 0x12_3456, psn: 7, mtu: 5, reads: 16, lid: 3, gid: [9; 16] };

    #[test]
    fn encoded_messages_are_decoded() {
        assert_eq!(PairInfo::from_bytes(&INFO.to_bytes()), Ok(INFO));
    }

    #[test]
    fn values_that_no_device_has_are_refused() {
        let none = PairInfo { lid: 0, gid: [0; 16], ..INFO };
        for (field, bad) in [
            ("number", PairInfo { number: 1 << 24, ..INFO }),
            ("number", PairInfo { number: 0, ..INFO }),
            ("sequence number", PairInfo { psn: u32::MAX, ..INFO }),
            ("MTU", PairInfo { mtu: 0, ..INFO }),
            ("MTU", PairInfo { mtu: 6, ..INFO }),
            ("number of reads", PairInfo { reads: 200, ..INFO }),
            ("address", none),
        ] {
            assert_eq!(PairInfo::from_bytes(&bad.to_bytes()), Err(InfoError::Value { field }));
        }
    }

    #[test]
    fn foreign_bytes_and_versions_are_distinguished() {
        assert_eq!(PairInfo::from_bytes(&[0; INFO_BYTES]), Err(InfoError::Foreign));
        let mut bytes = INFO.to_bytes();
        bytes[1] = 9;
        assert_eq!(PairInfo::from_bytes(&bytes), Err(InfoError::Version { theirs: 9 }));
    }
}
