//! How connections over a device are set up, and the addresses of ports that use datagrams.

use nemesia_core::joining::{JoinPlace, PLACE_BYTES};
use nemesia_core::port::memory::Address;

/// How connections over RDMA devices are set up (`NEMESIA_NET_SETUP`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SetUpChoice {
    /// By RDMA-CM if an IP address leads to a device that can be used, otherwise by datagrams on an InfiniBand fabric.
    #[default]
    Auto,
    /// By RDMA-CM, which needs an IP address on each device.
    Manager,
    /// By datagrams of each process, on InfiniBand and `RoCE`: no IP address and no librdmacm is needed. See
    /// [`nemesia_core::joining`].
    Datagrams,
}

/// The version, and in place of the family of an IP address the mark of a place of datagrams.
const HEAD: [u8; 2] = [2, 0];
/// The largest code of a path MTU: 4096 bytes.
const MOST_MTU: u8 = 5;

/// Returns whether an address is that of a port whose connections are set up by datagrams.
pub(crate) fn is_joined_address(address: &Address) -> bool {
    JoinAddress::decode(address).is_some()
}

/// The address of a port whose connections are set up by datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct JoinAddress {
    /// Where it receives datagrams.
    pub(super) place: JoinPlace,
    /// The code of the largest path MTU by its settings, on which both ends of a connection must agree; 0: that of the
    /// port.
    pub(super) path_mtu: u8,
}

impl JoinAddress {
    pub(super) fn encode(&self) -> Option<Address> {
        let mut bytes = [0; 3 + PLACE_BYTES];
        bytes[..2].copy_from_slice(&HEAD);
        bytes[2] = self.path_mtu;
        bytes[3..].copy_from_slice(&self.place.to_bytes());
        Address::new(&bytes)
    }

    /// Decodes an address from a peer; `None` if the bytes are not one. They are untrusted.
    pub(super) fn decode(address: &Address) -> Option<Self> {
        let (head, place) = address.bytes().split_first_chunk::<3>()?;
        let place = JoinPlace::from_bytes(place.try_into().ok()?)?;
        let path_mtu = head[2];
        (head[..2] == HEAD && path_mtu <= MOST_MTU).then_some(Self { place, path_mtu })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cm::{CmAddress, decode_address, encode_address};

    #[test]
    fn an_address_is_of_one_way_to_set_up_connections() {
        let place = JoinPlace { number: 17, key: 5, lid: 0, gid: [3; 16] };
        let joined = JoinAddress { place, path_mtu: 5 };
        let address = joined.encode().unwrap();
        assert_eq!((JoinAddress::decode(&address), decode_address(&address)), (Some(joined), None));
        let socket = "[2001:db8::7]:65535".parse().unwrap();
        let address = encode_address(CmAddress { socket, path_mtu: 0 }).unwrap();
        assert_eq!(JoinAddress::decode(&address), None);
        let far = JoinAddress { path_mtu: 6, ..joined }.encode().unwrap();
        let short = Address::new(&joined.encode().unwrap().bytes()[..20]).unwrap();
        assert!(JoinAddress::decode(&far).is_none() && JoinAddress::decode(&short).is_none());
    }
}
