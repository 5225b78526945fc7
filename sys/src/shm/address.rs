//! The address of a process: 64 bytes by which another process finds it.
//!
//! | bytes | contents (little-endian) |
//! |---|---|
//! | 0 to 1 | version of this table: 2 |
//! | 2 to 3 | TCP port at which it takes calls from other machines; 0: it takes none |
//! | 4 to 7 | process id |
//! | 8 to 15 | epoch: a random number that the process draws |
//! | 16 to 31 | name of the hand-over socket, a random number |
//! | 32 to 39 | boot of the machine: the first 64 bits of its random identifier |
//! | 40 to 43 | number of the network namespace |
//! | 44 to 47 | number of the pid namespace |
//! | 48 to 63 | IPv6 address of that port, in network order; an IPv4 address is mapped (`::ffff:1.2.3.4`); else 0 |
//!
//! A process that shares memory with no other (NEMESIA_LOCAL=off) has a random number instead of the boot. Others then
//! see it on another machine.
//!
//! An address comes from others and proves nothing. Inside a machine it is compared with what the kernel says about
//! the process that claims it. Between machines, only processes that prove that they know the key of the job may claim
//! one.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use nemesia_core::peers::PeerAddress;

use crate::config::Config;
use crate::os::{HandoffConnection, HandoffListener};
use crate::transport::hosts::HostAddress;

const VERSION: u16 = 2;

/// The contents of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProcessAddress {
    pid: u32,
    pub(super) epoch: u64,
    socket: [u8; 16],
    boot: u64,
    network: u32,
    space: u32,
    /// Where it takes calls from other machines.
    remote: Option<SocketAddr>,
}

impl ProcessAddress {
    /// Returns the address of this process, which listens here, and there for other machines. `apart` is the random
    /// boot of a process that shares memory with no other.
    pub(super) fn here(
        listener: &HandoffListener,
        epoch: u64,
        remote: Option<SocketAddr>,
        apart: Option<u64>,
    ) -> Self {
        let here = Self::of(&HostAddress::of(listener.name(), &Config::default()), epoch);
        Self { boot: apart.unwrap_or(here.boot), remote, ..here }
    }

    /// Returns the address of the process at this place, which takes no calls of other machines.
    pub(super) fn of(host: &HostAddress, epoch: u64) -> Self {
        Self {
            pid: u32::try_from(host.pid).unwrap_or(0),
            epoch,
            socket: u128::from_str_radix(&host.name, 16).unwrap_or(0).to_be_bytes(),
            boot: host.host.get(..16).and_then(|digits| u64::from_str_radix(digits, 16).ok()).unwrap_or(0),
            network: host.network.parse().unwrap_or(0),
            space: host.space.parse().unwrap_or(0),
            remote: None,
        }
    }

    /// Returns the address of the same process, if it takes calls from other machines at this place.
    pub(super) const fn with_remote(self, remote: SocketAddr) -> Self {
        Self { remote: Some(remote), ..self }
    }

    /// Returns the 64 bytes.
    pub(super) fn encode(&self) -> PeerAddress {
        let mut bytes = [0; 64];
        let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
        put(0, &VERSION.to_le_bytes());
        put(4, &self.pid.to_le_bytes());
        put(8, &self.epoch.to_le_bytes());
        put(16, &self.socket);
        put(32, &self.boot.to_le_bytes());
        put(40, &self.network.to_le_bytes());
        put(44, &self.space.to_le_bytes());
        if let Some(remote) = self.remote {
            let ip = match remote.ip() {
                IpAddr::V4(ip) => ip.to_ipv6_mapped(),
                IpAddr::V6(ip) => ip,
            };
            put(2, &remote.port().to_le_bytes());
            put(48, &ip.octets());
        }
        PeerAddress::from_bytes(bytes)
    }

    /// Decodes an address, or returns what is wrong with it.
    pub(crate) fn decode(address: &PeerAddress) -> Result<Self, String> {
        let bytes = address.bytes();
        let half = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let word = |at: usize| u64::from(half(at)) | u64::from(half(at + 4)) << 32;
        let version = u16::from_le_bytes([bytes[0], bytes[1]]);
        if version != VERSION {
            return Err(format!(
                "its address has version {version}, ours {VERSION}: is it an address of nemesia?"
            ));
        }
        let port = u16::from_le_bytes([bytes[2], bytes[3]]);
        let mut ip = [0; 16];
        ip.copy_from_slice(&bytes[48..]);
        if (port == 0) != (ip == [0; 16]) {
            return Err("its network address is none of nemesia".into());
        }
        let remote = (port != 0).then(|| SocketAddr::new(Ipv6Addr::from(ip).to_canonical(), port));
        let mut socket = [0; 16];
        socket.copy_from_slice(&bytes[16..32]);
        let (pid, epoch, boot) = (half(4), word(8), word(32));
        Ok(Self { pid, epoch, socket, boot, network: half(40), space: half(44), remote })
    }

    /// Returns the name of the hand-over socket.
    pub(super) fn socket(&self) -> String {
        format!("{:032x}", u128::from_be_bytes(self.socket))
    }

    /// Returns where the process takes calls from other machines.
    pub(crate) const fn remote(&self) -> Option<SocketAddr> {
        self.remote
    }

    /// Returns whether a process with this address runs on the same machine as one with the other, where both see the
    /// same sockets.
    pub(crate) fn shares_machine(&self, other: &Self) -> bool {
        (self.boot, self.network) == (other.boot, other.network)
    }

    /// Checks that the other end of a connection is the process of this address, of the same user, as the kernel says.
    /// Process ids of another pid namespace have no meaning here and are not compared.
    pub(super) fn check(&self, own: &Self, connection: &HandoffConnection) -> Result<(), String> {
        connection.require_same_user().map_err(|error| error.to_string())?;
        let pid = connection.peer().pid;
        if self.space == own.space && i64::from(pid) != i64::from(self.pid) {
            return Err(format!(
                "the address belongs to process {}, but process {pid} answers to it",
                self.pid
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address() -> ProcessAddress {
        let (pid, epoch, socket) = (7, 1 << 60, [3; 16]);
        ProcessAddress { pid, epoch, socket, boot: 9, network: 10, space: 11, remote: None }
    }

    #[test]
    fn an_address_survives_its_64_bytes() {
        assert_eq!(ProcessAddress::decode(&address().encode()), Ok(address()));
        let listener = HandoffListener::bind().unwrap();
        let here = ProcessAddress::here(&listener, 5, None, None);
        assert_eq!(here.socket(), listener.name());
        assert_eq!(ProcessAddress::decode(&here.encode()), Ok(here));
        let apart = ProcessAddress::here(&listener, 5, None, Some(6));
        assert!(!apart.shares_machine(&here) && here.shares_machine(&here));
        for remote in ["10.77.0.1:5000", "[fd00::7]:65535", "127.0.0.1:1"] {
            let remote = Some(remote.parse().unwrap());
            let reached = ProcessAddress { remote, ..address() };
            assert_eq!(ProcessAddress::decode(&reached.encode()), Ok(reached));
            assert_ne!(reached.encode(), address().encode());
        }
    }

    #[test]
    fn other_bytes_are_refused_in_words() {
        let with = |at: usize, byte: u8| {
            let mut bytes = *address().encode().bytes();
            bytes[at] = byte;
            ProcessAddress::decode(&PeerAddress::from_bytes(bytes)).unwrap_err()
        };
        assert!(with(0, 1).contains("version 1, ours 2"));
        // A port without an address, and an address without a port.
        assert!([2, 3, 48, 63].into_iter().all(|at| with(at, 1).contains("network address")));
        assert!(ProcessAddress::decode(&PeerAddress::from_bytes([0; 64])).is_err());
    }

    #[test]
    fn a_claimed_address_is_compared_with_the_process_that_the_kernel_names() {
        let (one, _other) = HandoffConnection::pair().unwrap();
        let mine = ProcessAddress { pid: std::process::id(), ..address() };
        assert_eq!(mine.check(&address(), &one), Ok(()));
        let error = ProcessAddress { pid: 1, ..address() }.check(&address(), &one).unwrap_err();
        assert!(error.contains("belongs to process 1"), "{error}");
        assert_eq!(ProcessAddress { pid: 1, space: 12, ..address() }.check(&address(), &one), Ok(()));
    }
}
