//! The handshake of the two sides of a connection: identity and version. It travels in the private bytes, of
//! which InfiniBand has at most 56, and to which a fabric may add zeros.

use nemesia_core::port::memory::Private;

/// The length of a [`CmHandshake`] in bytes. The bytes behind it belong to the caller.
pub const HANDSHAKE_BYTES: usize = 24;

const MAGIC: u32 = u32::from_le_bytes(*b"NMSA");

/// The version of the protocol behind the handshake.
const VERSION: u16 = 1;

/// The identity of a side. The embedding engine chooses all fields except the magic number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CmHandshake {
    /// The world, so that processes of two runs never connect.
    pub world: u64,
    /// The speaker's rank.
    pub rank: u32,
    /// The size of the sender's world.
    pub size: u32,
    /// The number of this connection among several of the pair.
    pub stream: u16,
}

/// The reason why private bytes are no valid handshake. The bytes come from outside and are untrusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CmHandshakeError {
    /// They have another format.
    #[error("who connects does not speak this protocol")]
    Foreign,
    /// They have another version.
    #[error("the peer speaks version {theirs}, we speak {}: use the same release on both sides", VERSION)]
    Version {
        /// The version found.
        theirs: u16,
    },
    /// They belong to another world.
    #[error("the peer is of another run")]
    World,
    /// They name a rank that this world does not have, or another size.
    #[error("rank {rank} of {size} is not of this world")]
    Rank {
        /// The rank found.
        rank: u32,
        /// The size found.
        size: u32,
    },
}

impl CmHandshake {
    /// Encodes the handshake as private bytes; numbers are little-endian.
    pub fn to_private(&self) -> Private {
        let mut bytes = [0; HANDSHAKE_BYTES];
        bytes[..4].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[4..6].copy_from_slice(&VERSION.to_le_bytes());
        bytes[6..8].copy_from_slice(&self.stream.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.rank.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.size.to_le_bytes());
        bytes[16..].copy_from_slice(&self.world.to_le_bytes());
        Private::new(&bytes).unwrap_or(Private::EMPTY)
    }

    /// Decodes the peer's handshake and compares it with ours.
    ///
    /// # Errors
    /// The peer does not belong to this connection.
    pub fn check(private: &Private, ours: &Self) -> Result<Self, CmHandshakeError> {
        let bytes = private.bytes().first_chunk::<HANDSHAKE_BYTES>().ok_or(CmHandshakeError::Foreign)?;
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let half = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        if word(0) != MAGIC {
            return Err(CmHandshakeError::Foreign);
        }
        if half(4) != VERSION {
            return Err(CmHandshakeError::Version { theirs: half(4) });
        }
        let world = u64::from(word(16)) | u64::from(word(20)) << 32;
        let theirs = Self { world, rank: word(8), size: word(12), stream: half(6) };
        if theirs.world != ours.world {
            return Err(CmHandshakeError::World);
        }
        if theirs.size != ours.size || theirs.rank >= ours.size || theirs.rank == ours.rank {
            return Err(CmHandshakeError::Rank { rank: theirs.rank, size: theirs.size });
        }
        Ok(theirs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: CmHandshake = CmHandshake { world: 0xfeed_beef_0000_0001, rank: 0, size: 4, stream: 0 };
    const THEIRS: CmHandshake = CmHandshake { rank: 3, stream: 2, ..OURS };

    #[test]
    fn a_handshake_with_zeros_behind_it_is_understood() {
        let mut bytes = THEIRS.to_private().bytes().to_vec();
        assert_eq!(CmHandshake::check(&THEIRS.to_private(), &OURS), Ok(THEIRS));
        bytes.resize(56, 0);
        assert_eq!(CmHandshake::check(&Private::new(&bytes).unwrap(), &OURS), Ok(THEIRS));
    }

    #[test]
    fn whoever_is_not_of_this_world_is_refused() {
        let of = |handshake: CmHandshake| CmHandshake::check(&handshake.to_private(), &OURS);
        assert_eq!(of(CmHandshake { world: 1, ..THEIRS }), Err(CmHandshakeError::World));
        for (rank, size) in [(4, 4), (u32::MAX, 4), (0, 4), (3, 5), (1, 0)] {
            assert_eq!(of(CmHandshake { rank, size, ..THEIRS }), Err(CmHandshakeError::Rank { rank, size }));
        }
    }

    #[test]
    fn foreign_bytes_are_refused_whatever_they_are() {
        for bytes in [&[][..], &[0; 23], &[0; 56], &[255; 56], b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"] {
            assert_eq!(
                CmHandshake::check(&Private::new(bytes).unwrap(), &OURS),
                Err(CmHandshakeError::Foreign)
            );
        }
        let mut bytes = THEIRS.to_private().bytes().to_vec();
        bytes[4] = 9;
        let private = Private::new(&bytes).unwrap();
        assert_eq!(CmHandshake::check(&private, &OURS), Err(CmHandshakeError::Version { theirs: 9 }));
    }
}
