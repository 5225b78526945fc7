//! Values that a fabric carries for its users: addresses, private data of connections, places in memory.
#![forbid(unsafe_code)]

use core::fmt;

/// Most bytes of an address.
pub const MOST_ADDRESS_BYTES: usize = 108;
/// Most bytes of private data: the limit of `rdma_connect(3)` on InfiniBand.
pub const MOST_PRIVATE_BYTES: usize = 56;

/// A short byte string.
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

/// The address to which a port can be connected. Only ports of the same fabric understand it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address(Short<MOST_ADDRESS_BYTES>);

impl Address {
    /// Returns an address of these bytes; `None` if they exceed [`MOST_ADDRESS_BYTES`].
    pub fn new(bytes: &[u8]) -> Option<Self> {
        Short::new(bytes).map(Self)
    }

    /// Returns the bytes.
    pub fn bytes(&self) -> &[u8] {
        self.0.get()
    }
}

/// The origin of a connection, as reported by the system and not by the peer: by the local kernel, or, for
/// another machine, by the network and its kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A process of this machine, by its process number.
    Process(u32),
    /// A machine, by the address from which it connected or at which it accepted.
    Host(core::net::IpAddr),
}

/// Private data that travels with a connection request or its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Private(Short<MOST_PRIVATE_BYTES>);

impl Private {
    /// No private data.
    pub const EMPTY: Self = Self(Short { len: 0, bytes: [0; MOST_PRIVATE_BYTES] });

    /// Returns private data of these bytes; `None` if they exceed [`MOST_PRIVATE_BYTES`].
    pub fn new(bytes: &[u8]) -> Option<Self> {
        Short::new(bytes).map(Self)
    }

    /// Returns the bytes. A fabric may append zeros (`rdma_get_cm_event(3)`: the length may exceed the sent
    /// length).
    pub fn bytes(&self) -> &[u8] {
        self.0.get()
    }
}

/// A location in the peer's memory. The target checks it, not this port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteRange {
    /// The owner's address of the first byte: that of the
    /// [key](crate::port::memory::MemoryKey::address), and an offset.
    pub address: u64,
    /// The remote key.
    pub key: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_so_many_bytes_fit() {
        assert_eq!(Private::new(&[7; MOST_PRIVATE_BYTES]).unwrap().bytes(), [7; MOST_PRIVATE_BYTES]);
        assert_eq!(Private::new(&[7; MOST_PRIVATE_BYTES + 1]), None);
        assert_eq!(Address::new(&[1; MOST_ADDRESS_BYTES]).unwrap().bytes().len(), MOST_ADDRESS_BYTES);
        assert_eq!(Address::new(&[1; MOST_ADDRESS_BYTES + 1]), None);
        assert_eq!(Private::EMPTY.bytes(), []);
    }
}
