//! Conversions of addresses: of the standard library, of the C library, and as bytes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use nemesia_core::port::memory::Address;

const VERSION: u8 = 2;
/// The largest code of a path MTU: 4096 bytes.
const MOST_MTU: u8 = 5;

/// The address of a port over a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CmAddress {
    /// Where it listens.
    pub socket: SocketAddr,
    /// The code of the largest path MTU by its settings, on which both ends of a connection must agree: 1 is 256
    /// bytes, 5 is 4096; 0: that of the path.
    pub path_mtu: u8,
}

/// Encodes an address for peers: version, family (4 or 6), port (big-endian), code of the path MTU, IP address.
pub fn encode_address(CmAddress { socket, path_mtu }: CmAddress) -> Option<Address> {
    let port = socket.port().to_be_bytes();
    let mut bytes = vec![VERSION, if socket.is_ipv4() { 4 } else { 6 }, port[0], port[1], path_mtu];
    match socket.ip() {
        IpAddr::V4(ip) => bytes.extend(ip.octets()),
        IpAddr::V6(ip) => bytes.extend(ip.octets()),
    }
    Address::new(&bytes)
}

/// Decodes an address from a peer; `None` if the bytes are not one. They are untrusted.
pub fn decode_address(address: &Address) -> Option<CmAddress> {
    let (head, ip) = address.bytes().split_first_chunk::<5>()?;
    let [version, family, high, low, path_mtu] = *head;
    let ip = match family {
        4 => IpAddr::V4(Ipv4Addr::from(<[u8; 4]>::try_from(ip).ok()?)),
        6 => IpAddr::V6(Ipv6Addr::from(<[u8; 16]>::try_from(ip).ok()?)),
        _ => return None,
    };
    let port = u16::from_be_bytes([high, low]);
    let is_good = version == VERSION && port != 0 && path_mtu <= MOST_MTU && !ip.is_unspecified();
    is_good.then(|| CmAddress { socket: SocketAddr::new(ip, port), path_mtu })
}

/// Converts an address for the C library.
pub(super) fn to_c(address: SocketAddr) -> libc::sockaddr_storage {
    // SAFETY: zeros are a value.
    let mut storage: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    let place = &raw mut storage;
    match address {
        SocketAddr::V4(address) => {
            // SAFETY: the storage has the size and the alignment of any address.
            let to = unsafe { &mut *place.cast::<libc::sockaddr_in>() };
            to.sin_family = libc::AF_INET as u16;
            to.sin_port = address.port().to_be();
            to.sin_addr.s_addr = u32::from_ne_bytes(address.ip().octets());
        }
        SocketAddr::V6(address) => {
            // SAFETY: as above.
            let to = unsafe { &mut *place.cast::<libc::sockaddr_in6>() };
            to.sin6_family = libc::AF_INET6 as u16;
            to.sin6_port = address.port().to_be();
            to.sin6_addr.s6_addr = address.ip().octets();
            to.sin6_scope_id = address.scope_id();
        }
    }
    storage
}

/// Converts an address of the C library; `None` if there is none, or one of another family.
///
/// # Safety
/// `address` is null, or points to an address of the length of its family.
pub(super) unsafe fn from_c(address: *const libc::sockaddr) -> Option<SocketAddr> {
    // SAFETY: the caller's promise. Fields are copied, because they may be unaligned.
    unsafe {
        if address.is_null() {
            return None;
        }
        match i32::from((&raw const (*address).sa_family).read_unaligned()) {
            libc::AF_INET => {
                let from = address.cast::<libc::sockaddr_in>().read_unaligned();
                let ip = Ipv4Addr::from(from.sin_addr.s_addr.to_ne_bytes());
                Some(SocketAddr::V4(SocketAddrV4::new(ip, u16::from_be(from.sin_port))))
            }
            libc::AF_INET6 => {
                let from = address.cast::<libc::sockaddr_in6>().read_unaligned();
                let ip = Ipv6Addr::from(from.sin6_addr.s6_addr);
                let port = u16::from_be(from.sin6_port);
                Some(SocketAddr::V6(SocketAddrV6::new(ip, port, 0, from.sin6_scope_id)))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_both_ways() {
        for (text, path_mtu) in [("10.7.0.1:4711", 0), ("[2001:db8::7]:65535", 5)] {
            let socket: SocketAddr = text.parse().unwrap();
            let address = CmAddress { socket, path_mtu };
            assert_eq!(decode_address(&encode_address(address).unwrap()), Some(address));
            let storage = to_c(socket);
            // SAFETY: the storage holds an address.
            assert_eq!(unsafe { from_c((&raw const storage).cast()) }, Some(socket));
        }
        // SAFETY: null is allowed.
        assert_eq!(unsafe { from_c(std::ptr::null()) }, None);
    }

    #[test]
    fn bytes_that_are_no_address_are_refused() {
        assert!(decode_address(&Address::new(&[2, 4, 0, 1, 5, 10, 0, 0, 1]).unwrap()).is_some());
        for bytes in [
            &[][..],
            &[2, 4, 0, 0],
            &[1, 4, 0, 1, 0, 10, 0, 0, 1],
            &[2, 5, 0, 1, 0, 10, 0, 0, 1],
            &[2, 4, 0, 0, 0, 10, 0, 0, 1],
            &[2, 4, 0, 1, 6, 10, 0, 0, 1],
            &[2, 4, 0, 1, 0, 10, 0, 0],
            &[2, 4, 0, 1, 0, 0, 0, 0, 0],
            &[2, 6, 0, 1, 0, 10, 0, 0, 1],
            &[2; 108],
        ] {
            assert_eq!(decode_address(&Address::new(bytes).unwrap()), None, "{bytes:?}");
        }
    }
}
