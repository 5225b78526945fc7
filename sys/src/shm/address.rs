//! The address of this process ([`LinkAddress`]), and the comparison of an address with what the kernel says.
//!
//! An address comes from others and proves nothing. Inside a machine it is compared with what the kernel says about
//! the process that claims it. Between machines, only processes that prove that they know the token of the called one
//! may claim one.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use nemesia_core::link::address::{AddressKinds, LinkAddress};
use nemesia_core::link::token::LinkToken;
use nemesia_core::peers::PeerAddress;

use crate::os::HandoffConnection;
use crate::transport::hosts::HostAddress;

/// Returns the address of the process with this token at this place, which takes no calls of other machines.
pub(super) fn address_at(host: &HostAddress, token: LinkToken) -> LinkAddress {
    let boot = host.host.get(..16).and_then(|digits| u64::from_str_radix(digits, 16).ok()).unwrap_or(0);
    let network = host.network.parse::<u32>().unwrap_or(0);
    LinkAddress {
        kinds: if host.is_apart_from_all() { AddressKinds::APART } else { AddressKinds::default() },
        port: 0,
        pid: u32::try_from(host.pid).unwrap_or(0),
        token,
        // Network namespaces of one machine do not see each other's sockets.
        machine: boot ^ u64::from(network).wrapping_mul(0x9e37_79b9_7f4a_7c15),
        space: host.space.parse().unwrap_or(0),
        datagrams: (0, 0, 0),
        place: [0; 16],
    }
}

/// Returns the address of the same process, if it takes calls from other machines at this place.
pub(super) fn with_remote(address: LinkAddress, remote: SocketAddr) -> LinkAddress {
    let ip = match remote.ip() {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    LinkAddress {
        kinds: address.kinds.with(AddressKinds::IP),
        port: remote.port(),
        place: ip.octets(),
        ..address
    }
}

/// Decodes an address, or returns what is wrong with it.
pub(super) fn decode(address: &PeerAddress) -> Result<LinkAddress, String> {
    LinkAddress::decode(address).map_err(|fault| fault.to_string())
}

/// Returns where the process takes calls from other machines.
pub(super) fn remote(address: &LinkAddress) -> Option<SocketAddr> {
    let ip = Ipv6Addr::from(address.place).to_canonical();
    address.has(AddressKinds::IP).then(|| SocketAddr::new(ip, address.port))
}

/// Returns the name of the hand-over socket of the process with this token.
pub(super) fn socket(token: &LinkToken) -> String {
    format!("{:032x}", u128::from_be_bytes(token.hand_off_name()))
}

/// Checks that the other end of a connection is the process of this address, of the same user, as the kernel says.
/// Process ids of another pid namespace have no meaning here and are not compared.
pub(super) fn check(
    claimed: &LinkAddress,
    own: &LinkAddress,
    connection: &HandoffConnection,
) -> Result<(), String> {
    connection.require_same_user().map_err(|error| error.to_string())?;
    let pid = connection.peer().pid;
    if claimed.space == own.space && i64::from(pid) != i64::from(claimed.pid) {
        let said = claimed.pid;
        return Err(format!("the address belongs to process {said}, but process {pid} answers to it"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn address(config: &Config) -> LinkAddress {
        address_at(&HostAddress::of("0".repeat(32), config), LinkToken::from_bytes([3; 16]))
    }

    #[test]
    fn an_address_survives_its_64_bytes() {
        let here = address(&Config::default());
        assert_eq!(decode(&here.encode()), Ok(here));
        assert!(here.shares_machine(&here) && remote(&here).is_none());
        assert!(!address(&Config::default().local(false)).shares_machine(&here));
        for place in ["10.77.0.1:5000", "[fd00::7]:65535", "127.0.0.1:1"] {
            let place = place.parse().unwrap();
            let reached = with_remote(here, place);
            assert_eq!(decode(&reached.encode()), Ok(reached));
            assert_eq!(remote(&reached), Some(place));
        }
        assert!(decode(&PeerAddress::from_bytes([0; 64])).unwrap_err().contains("version 0, ours 3"));
    }

    #[test]
    fn a_claimed_address_is_compared_with_the_process_that_the_kernel_names() {
        let (one, _other) = HandoffConnection::pair().unwrap();
        let mine = address(&Config::default());
        assert_eq!(check(&mine, &mine, &one), Ok(()));
        let error = check(&LinkAddress { pid: 1, ..mine }, &mine, &one).unwrap_err();
        assert!(error.contains("belongs to process 1"), "{error}");
        let elsewhere = LinkAddress { pid: 1, space: mine.space + 1, ..mine };
        assert_eq!(check(&elsewhere, &mine, &one), Ok(()));
    }
}
