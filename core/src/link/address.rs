//! The address of a process: 64 bytes, which are the capability to call it.
//!
//! | bytes | version 3 |
//! |---|---|
//! | 0 | version |
//! | 1 | kinds of carriers and paths: see [`AddressKinds`] |
//! | 2-3 | TCP port |
//! | 4-7 | process id |
//! | 8-23 | token: 128 random bits of the endpoint |
//! | 24-31 | machine: a hash of boot and network namespace; random if the process shares memory with no other |
//! | 32-35 | number of the pid namespace |
//! | 36-37 | LID |
//! | 38-40 | number of the datagram queue pair |
//! | 41 | code of its MTU |
//! | 42-47 | 0 |
//! | 48-63 | IPv6 address, an IPv4 address mapped; without IP the GID |
//!
//! Integers are little-endian, IP and GID in network order. A process with IP and LID has both in its address. IP and
//! a GID of another subnet do not fit together.
//!
//! A process that was given an address may call its owner. It proves by the token that it was given the address
//! ([`proof`](super::proof)). No link sends a token in the clear, and no text shows one. The other random values of a
//! process are derived from its token.
#![forbid(unsafe_code)]

use super::token::LinkToken;
use crate::peers::PeerAddress;

/// Version of the layout.
pub const ADDRESS_VERSION: u8 = 3;

/// What an address names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AddressKinds(u8);

impl AddressKinds {
    /// The process takes calls over TCP.
    pub const IP: Self = Self(1);
    /// It takes calls by datagrams.
    pub const DATAGRAMS: Self = Self(2);
    /// Bytes 48-63 are a GID.
    pub const GID: Self = Self(4);
    /// It shares memory with no other process.
    pub const APART: Self = Self(8);
    /// It has queue pairs that need no connection manager.
    pub const PAIRS: Self = Self(16);
    /// It has an iWARP device.
    pub const IWARP: Self = Self(32);
    const ALL: u8 = 63;

    /// Returns both.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns whether all of these are there.
    pub const fn has(self, all: Self) -> bool {
        self.0 & all.0 == all.0
    }
}

/// The contents of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkAddress {
    /// What it names.
    pub kinds: AddressKinds,
    /// TCP port; 0 without IP.
    pub port: u16,
    /// Process id.
    pub pid: u32,
    /// The token.
    pub token: LinkToken,
    /// The machine.
    pub machine: u64,
    /// The pid namespace.
    pub space: u32,
    /// LID, number of the datagram queue pair (24 bits), and the code of its MTU; 0 without datagrams.
    pub datagrams: (u16, u32, u8),
    /// IPv6 address or GID; 0 without both.
    pub place: [u8; 16],
}

/// The reason why bytes are no address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressFault {
    /// The version differs.
    #[error("its address has version {theirs}, ours {ADDRESS_VERSION}: is it an address of nemesia?")]
    Version {
        /// The version found.
        theirs: u8,
    },
    /// There are unknown kinds.
    #[error("its address has the unknown kinds {0:#x}")]
    Kinds(u8),
    /// A field is there without its kind, or a kind without its field.
    #[error("its address does not have the fields of the kinds {0:#x}, or has others")]
    Fields(u8),
}

impl LinkAddress {
    /// Returns the 64 bytes.
    pub fn encode(&self) -> PeerAddress {
        let (lid, queue_pair, mtu) = self.datagrams;
        let [a, b, c, _] = queue_pair.to_le_bytes();
        let mut bytes = [0; 64];
        let mut at = 0;
        let mut put = |field: &[u8]| {
            bytes.iter_mut().skip(at).zip(field).for_each(|(to, from)| *to = *from);
            at += field.len();
        };
        put(&[ADDRESS_VERSION, self.kinds.0]);
        put(&self.port.to_le_bytes());
        put(&self.pid.to_le_bytes());
        put(self.token.bytes());
        put(&self.machine.to_le_bytes());
        put(&self.space.to_le_bytes());
        put(&lid.to_le_bytes());
        put(&[a, b, c, mtu, 0, 0, 0, 0, 0, 0]);
        put(&self.place);
        PeerAddress::from_bytes(bytes)
    }

    /// Decodes an address.
    ///
    /// # Errors
    /// See [`AddressFault`].
    pub fn decode(address: &PeerAddress) -> Result<Self, AddressFault> {
        let [version, kinds, p0, p1, i0, i1, i2, i3, _token @ ..] = *address.bytes();
        if version != ADDRESS_VERSION {
            return Err(AddressFault::Version { theirs: version });
        }
        if kinds & !AddressKinds::ALL != 0 {
            return Err(AddressFault::Kinds(kinds));
        }
        let rest = address.bytes().get(24..).unwrap_or(&[]);
        let field = |at: usize| rest.get(at).copied().unwrap_or(0);
        let machine = rest.first_chunk().copied().unwrap_or_default();
        let place = rest.last_chunk().copied().unwrap_or_default();
        let decoded = Self {
            kinds: AddressKinds(kinds),
            port: u16::from_le_bytes([p0, p1]),
            pid: u32::from_le_bytes([i0, i1, i2, i3]),
            token: LinkToken::in_address(address.bytes()),
            machine: u64::from_le_bytes(machine),
            space: u32::from_le_bytes([field(8), field(9), field(10), field(11)]),
            datagrams: (
                u16::from_le_bytes([field(12), field(13)]),
                u32::from_le_bytes([field(14), field(15), field(16), 0]),
                field(17),
            ),
            place,
        };
        let (has_ip, has_gid) = (decoded.has(AddressKinds::IP), decoded.has(AddressKinds::GID));
        let is_whole = (decoded.port != 0) == has_ip
            && (place != [0; 16]) == (has_ip || has_gid)
            && !(has_ip && has_gid)
            && (decoded.datagrams != (0, 0, 0)) == decoded.has(AddressKinds::DATAGRAMS);
        if is_whole && decoded.encode() == *address { Ok(decoded) } else { Err(AddressFault::Fields(kinds)) }
    }

    /// Returns whether the address names all of these.
    pub const fn has(&self, kinds: AddressKinds) -> bool {
        self.kinds.has(kinds)
    }

    /// Returns whether both processes say that they run on one machine, where both see the same sockets. It is a claim:
    /// copies of a machine have equal addresses.
    pub const fn shares_machine(&self, other: &Self) -> bool {
        self.machine == other.machine && !self.has(AddressKinds::APART) && !other.has(AddressKinds::APART)
    }
}

#[cfg(test)]
mod tests {
    use std::format;

    use super::*;

    fn address() -> LinkAddress {
        let kinds = AddressKinds::IP.with(AddressKinds::DATAGRAMS).with(AddressKinds::PAIRS);
        let token = LinkToken::from_bytes(*b"0123456789abcdef");
        let datagrams = (0x1122, 0x33_4455, 5);
        LinkAddress { kinds, port: 0x6677, pid: 7, token, machine: 8, space: 9, datagrams, place: [0xfd; 16] }
    }

    #[test]
    fn bytes_are_golden_and_an_address_survives_them() {
        let bytes = address().encode();
        let hex: std::string::String = bytes.bytes().iter().map(|byte| format!("{byte:02x}")).collect();
        let token = "30313233343536373839616263646566";
        let rest = "0800000000000000 09000000 2211 554433 05 000000000000".replace(' ', "");
        assert_eq!(hex, format!("0313776607000000{token}{rest}{}", "fd".repeat(16)));
        assert_eq!(LinkAddress::decode(&bytes), Ok(address()));
        let kinds = AddressKinds::DATAGRAMS.with(AddressKinds::GID);
        let without = LinkAddress { kinds, port: 0, ..address() };
        assert_eq!(LinkAddress::decode(&without.encode()), Ok(without));
    }

    #[test]
    fn other_bytes_are_refused_by_name() {
        let with = |at: usize, byte: u8| {
            let mut bytes = *address().encode().bytes();
            bytes[at] = byte;
            LinkAddress::decode(&PeerAddress::from_bytes(bytes)).unwrap_err()
        };
        assert_eq!(with(0, 2), AddressFault::Version { theirs: 2 });
        assert_eq!(with(1, 0x93), AddressFault::Kinds(0x93));
        // IP without IP, both IP and GID, datagrams that no kind names, and a reserved byte.
        for (at, byte) in [(1, 0x12), (1, 0x17), (1, 0x11), (45, 1)] {
            assert!(matches!(with(at, byte), AddressFault::Fields(_)), "byte {at}");
        }
        for at in 2..64 {
            let mut bytes = *address().encode().bytes();
            bytes[at] ^= 1;
            let bytes = PeerAddress::from_bytes(bytes);
            let decoded = LinkAddress::decode(&bytes);
            assert!(decoded.is_err() || decoded.unwrap().encode() == bytes, "byte {at}");
        }
    }

    #[test]
    fn no_text_shows_a_token() {
        // Each byte of the token occurs nowhere else, in either notation.
        let token = LinkToken::from_bytes([0xab; 16]);
        let address = LinkAddress { token, ..address() };
        let texts = [
            format!("{token:?}"),
            format!("{address:?}"),
            format!("{address:#?}"),
            format!("{:?}", address.encode()),
            format!("{:?}", crate::link::proof::LinkKey::new(&token, None)),
        ];
        for text in texts {
            assert!(!text.to_lowercase().contains("ab") && !text.contains("171"), "{text}");
        }
    }

    #[test]
    fn processes_apart_share_no_machine() {
        let apart = LinkAddress { kinds: address().kinds.with(AddressKinds::APART), ..address() };
        assert!(address().shares_machine(&address()) && !apart.shares_machine(&address()));
        assert!(!address().shares_machine(&LinkAddress { machine: 1, ..address() }));
    }
}
