//! What memory ports tell each other outside their operations: keys, addresses, private bytes.
#![forbid(unsafe_code)]

use core::fmt;

use super::Key;

/// Bytes of a key.
pub const KEY_BYTES: usize = 24;
/// The most bytes of an address.
pub const MOST_ADDRESS_BYTES: usize = 108;
/// The most private bytes: what `rdma_connect(3)` leaves on InfiniBand.
pub const MOST_PRIVATE_BYTES: usize = 56;

/// A few bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Short<const N: usize> {
    len: u8,
    bytes: [u8; N],
}

impl<const N: usize> Short<N> {
    fn new(from: &[u8]) -> Option<Self> {
        let mut bytes = [0; N];
        bytes.get_mut(..from.len())?.copy_from_slice(from);
        Some(Self { len: u8::try_from(from.len()).ok()?, bytes })
    }

    fn get(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.len)).unwrap_or(&[])
    }
}

impl<const N: usize> fmt::Debug for Short<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.get().fmt(f)
    }
}

/// Where a port can be connected to. Only ports of the same fabric understand it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address(Short<MOST_ADDRESS_BYTES>);

impl Address {
    /// These bytes; `None` when they are more than [`MOST_ADDRESS_BYTES`].
    pub fn new(bytes: &[u8]) -> Option<Self> {
        Short::new(bytes).map(Self)
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        self.0.get()
    }
}

/// Where the other end of a connection is, as the system says and not the peer: this machine's kernel, or, of another machine,
/// the network and the kernel there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A process of this machine, by the number that it has here.
    Process(u32),
    /// A machine, by the address from which it is connected, or at which it accepted.
    Host(core::net::IpAddr),
}

/// Bytes that travel with a connection's request or answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Private(Short<MOST_PRIVATE_BYTES>);

impl Private {
    /// None.
    pub const EMPTY: Self = Self(Short { len: 0, bytes: [0; MOST_PRIVATE_BYTES] });

    /// These bytes; `None` when they are more than [`MOST_PRIVATE_BYTES`].
    pub fn new(bytes: &[u8]) -> Option<Self> {
        Short::new(bytes).map(Self)
    }

    /// The bytes. A fabric may add zeros at the end (`rdma_get_cm_event(3)`: the length is not that which was sent).
    pub fn bytes(&self) -> &[u8] {
        self.0.get()
    }
}

impl Key {
    /// As bytes: three words of 64 bits, little-endian: address, bytes, key.
    pub fn to_bytes(&self) -> [u8; KEY_BYTES] {
        let mut bytes = [0; KEY_BYTES];
        for (to, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip([self.address, self.len, self.key]) {
            *to = word.to_le_bytes();
        }
        bytes
    }

    /// From bytes; any are a key, and harmless: the owner checks.
    pub fn from_bytes(bytes: &[u8; KEY_BYTES]) -> Self {
        let mut words = [0; 3];
        for (to, word) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
            *to = u64::from_le_bytes(*word);
        }
        let [address, len, key] = words;
        Self { address, len, key }
    }

    /// Where `offset` is.
    pub const fn at(&self, offset: u64) -> super::Remote {
        super::Remote { address: self.address.wrapping_add(offset), key: self.key }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_survive_the_way() {
        let key = Key { address: u64::MAX - 1, len: 1 << 40, key: 0x0123_4567_89ab_cdef };
        assert_eq!(Key::from_bytes(&key.to_bytes()), key);
        assert_eq!(key.at(3).address, 1);
    }

    #[test]
    fn only_so_many_bytes_fit() {
        assert_eq!(Private::new(&[7; MOST_PRIVATE_BYTES]).unwrap().bytes(), [7; MOST_PRIVATE_BYTES]);
        assert_eq!(Private::new(&[7; MOST_PRIVATE_BYTES + 1]), None);
        assert_eq!(Address::new(&[1; MOST_ADDRESS_BYTES]).unwrap().bytes().len(), MOST_ADDRESS_BYTES);
        assert_eq!(Address::new(&[1; MOST_ADDRESS_BYTES + 1]), None);
        assert_eq!(Private::EMPTY.bytes(), []);
    }
}
