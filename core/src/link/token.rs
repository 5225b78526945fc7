//! The token of an endpoint, and the values that are derived from it.
#![forbid(unsafe_code)]

use core::fmt;

use crate::job_key::{KEY_BYTES, mac, truncated};

/// Bytes of a token.
pub const TOKEN_BYTES: usize = 16;
/// The place of the token in an address.
pub const TOKEN_AT: usize = 8;

const NAME: &[u8; 16] = b"nemesia hand-off";
const EPOCH: &[u8; 16] = b"nemesia epoch   ";
const QUEUE_KEY: &[u8; 16] = b"nemesia q_key   ";

/// The token of an endpoint: a secret of those that were given its address.
///
/// It is not printed: its `Debug` shows no byte of it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct LinkToken([u8; TOKEN_BYTES]);

impl LinkToken {
    /// Returns the token of these random bytes.
    pub const fn from_bytes(bytes: [u8; TOKEN_BYTES]) -> Self {
        Self(bytes)
    }

    /// Returns the token in the bytes of an address, masked or not.
    pub(super) fn in_address(bytes: &[u8; 64]) -> Self {
        let mut token = [0; TOKEN_BYTES];
        token.iter_mut().zip(&bytes[TOKEN_AT..]).for_each(|(to, from)| *to = *from);
        Self(token)
    }

    /// Returns the bytes, for the address.
    pub const fn bytes(&self) -> &[u8; TOKEN_BYTES] {
        &self.0
    }

    fn derived(&self, label: &[u8; 16]) -> [u8; 16] {
        truncated(mac(&padded(&self.0), label))
    }

    /// Returns the name of the hand-off socket.
    pub fn hand_off_name(&self) -> [u8; 16] {
        self.derived(NAME)
    }

    /// Returns the epoch: the number that tells the segments of two processes with equal process ids apart.
    pub fn epoch(&self) -> u64 {
        self.derived(EPOCH).first_chunk().map_or(0, |first| u64::from_le_bytes(*first))
    }

    /// Returns the key of the datagram queue pair. Its highest bit is 0: only privileged processes may use the others.
    pub fn queue_key(&self) -> u32 {
        self.derived(QUEUE_KEY).first_chunk().map_or(0, |first| u32::from_le_bytes(*first) & 0x7fff_ffff)
    }
}

impl fmt::Debug for LinkToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LinkToken(..)")
    }
}

/// Returns 16 bytes as a key.
pub(super) fn padded(bytes: &[u8; 16]) -> [u8; KEY_BYTES] {
    let mut key = [0; KEY_BYTES];
    key.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
    key
}
