//! Opening the memory ports of a process, and making the port of the world out of one of them.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nemesia_core::job_key::JobKey;
use nemesia_core::port::PeerId;
use nemesia_core::port::channel::FastPath;
use nemesia_core::port::memory::{Address, MemoryPort as _};

use super::choice::{NotOpen, OpenedPort, listen_tcp, open_device};
use super::fabric::{ChannelSizes, FabricChannel, try_memory};
use super::rejoin::NetRejoin;
use super::streams::FurtherStreams;
use super::{AnyChannel, Burst, NetPort};
use crate::config::{Config, ConfigError, FastPathChoice, NetChoice};
use crate::os::ProcessOrigin;
use crate::tcp::{self, TcpPort};
use crate::verbs::{PortOptions, VerbsPort};

/// The connections that a port has beyond one for each rank: of processes that are refused, or end.
const SPARE: u32 = 16;
/// The slots of a ring for small packets.
const RING_SLOTS: u32 = 64;

/// A transport between machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transport {
    /// RDMA devices.
    Verbs,
    Tcp,
}

impl Transport {
    /// All transports, the preferred one first.
    pub(crate) const ALL: [Self; 2] = [Self::Verbs, Self::Tcp];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Verbs => "verbs",
            Self::Tcp => "tcp",
        }
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// This process as a member of its world.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WorldMember {
    pub(crate) rank: PeerId,
    /// The number of previous starts of the rank.
    pub(crate) incarnation: u64,
    /// The number of the world.
    pub(crate) world: u64,
    /// The key of the job, which only its processes know.
    pub(crate) key: JobKey,
}

/// The memory ports that this process has opened, and why the others are not open.
#[derive(Debug)]
pub(crate) struct OpenedPorts {
    verbs: Result<OpenedPort<VerbsPort>, String>,
    tcp: Result<OpenedPort<TcpPort>, String>,
}

impl OpenedPorts {
    /// Opens the ports that the settings permit, for a world of so many ranks, of which `remote` at least are on other
    /// machines. Preferences that cannot be met are added to the warnings.
    ///
    /// # Errors
    /// In strict mode, a preference that cannot be met.
    pub(crate) fn open(
        config: &Config,
        (ranks, remote): (u32, u32),
        warnings: &mut Vec<String>,
    ) -> Result<Self, ConfigError> {
        // Over TCP the world may have further peers.
        let most = ranks.saturating_add(config.connections);
        let verbs = match config.net {
            NetChoice::Off => is_off("off"),
            NetChoice::Tcp => is_off("tcp"),
            NetChoice::Verbs | NetChoice::Auto => open_verbs(config, (ranks, remote), warnings),
        };
        let tcp = match config.net {
            NetChoice::Off => is_off("off"),
            NetChoice::Verbs => is_off("verbs"),
            NetChoice::Tcp | NetChoice::Auto => open_tcp(config, most, warnings),
        };
        let verbs = unless_strict(verbs)?;
        let wished = config.place.of_devices();
        if let (Err(why), NetChoice::Auto, false) = (&verbs, config.net, wished.is_empty()) {
            config.give_up(format!("{wished}: no RDMA device is used: {why}"), warnings)?;
        }
        Ok(Self { verbs, tcp: unless_strict(tcp)? })
    }

    /// Returns the address at which this process is reached by this transport, or why it is not.
    pub(crate) fn address(&self, transport: Transport) -> Result<Address, String> {
        let address = match transport {
            Transport::Verbs => self.verbs.as_ref().map(|it| it.port.address()),
            Transport::Tcp => self.tcp.as_ref().map(|it| it.port.address()),
        };
        address.map_err(Clone::clone)?.ok_or_else(|| "the port accepts no connections".to_owned())
    }

    /// Returns what keeps this process and a peer with this address of this transport from connecting, with the remedy,
    /// if the addresses show it: a setting in which they differ, or addresses at which different machines (`is_apart`)
    /// do not reach each other.
    pub(crate) fn difference(
        &self,
        transport: Transport,
        address: &Address,
        is_apart: bool,
    ) -> Option<String> {
        match (transport, &self.verbs) {
            (Transport::Verbs, Ok(opened)) => opened.port.difference(address),
            (Transport::Verbs, Err(_)) => None,
            (Transport::Tcp, _) => {
                let own = self.address(transport).ok().filter(|_| is_apart)?;
                misplaced(tcp::ip_of(&own)?, tcp::ip_of(address)?)
            }
        }
    }

    /// Makes the port of the world out of the port of this transport. `addresses` has the address of each rank that is
    /// to be reached by it. The error is one line.
    pub(crate) fn into_net(
        self,
        transport: Transport,
        config: &Config,
        member: WorldMember,
        addresses: Vec<Option<Address>>,
        origin: &Arc<ProcessOrigin>,
    ) -> Result<NetPort, String> {
        let peers = (addresses.len() as u32, addresses.iter().flatten().count() as u32);
        let sizes = channel_sizes(transport, config, member, peers);
        let rank = member.rank;
        let (any, place) = match transport {
            Transport::Verbs => {
                let OpenedPort { port, place } = self.verbs?;
                (AnyChannel::Verbs(Box::new(FabricChannel::new(port, &sizes)?)), place)
            }
            Transport::Tcp => {
                let OpenedPort { port, place } = self.tcp?;
                (AnyChannel::Tcp(Box::new(FabricChannel::new(port, &sizes)?)), place)
            }
        };
        let begun = Instant::now();
        let origin = Arc::clone(origin);
        let rejoin = NetRejoin::default();
        let streams = FurtherStreams::new(config.net_streams);
        let eager_bytes = config.net_eager_bytes(transport == Transport::Tcp);
        let whole_access = config.net_whole_access(transport == Transport::Tcp);
        let (burst, growing) = (Burst::default(), None);
        let mut port = NetPort {
            any,
            rank,
            place,
            addresses,
            begun,
            rejoin,
            streams,
            eager_bytes,
            whole_access,
            burst,
            growing,
            origin,
        };
        for peer in (0..port.ranks()).filter(|peer| *peer != rank) {
            if !port.reaches(peer) {
                super::with!(&mut port.any, it => it.refuse(peer));
            }
        }
        Ok(port)
    }

    /// Makes a port whose peers are connected one by one out of the port over TCP. The error is one line.
    pub(crate) fn into_growing(
        self,
        config: &Config,
        rank: PeerId,
        origin: &Arc<ProcessOrigin>,
    ) -> Result<NetPort, String> {
        NetPort::growing(self.tcp?, config, rank, origin)
    }
}

/// Returns the sizes of a channel over this transport, with so many places for peers, of which `remote` may be
/// connected.
pub(super) fn channel_sizes(
    transport: Transport,
    config: &Config,
    WorldMember { rank, incarnation, world, key }: WorldMember,
    (size, remote): (u32, u32),
) -> ChannelSizes {
    ChannelSizes {
        rank,
        incarnation,
        size,
        remote,
        packet_bytes: config.net_packet_bytes(transport == Transport::Tcp),
        receives: config.net_receives,
        world,
        key,
        patience: Duration::from_secs(config.timeout_seconds.into()),
        rendezvous: config.net_rendezvous,
        fast: fast_path(transport, config),
        streams: config.net_streams,
        telling: config.registrations,
    }
}

/// Returns how many ranks may write small packets into rings. Over TCP a ring saves nothing, so that only a setting
/// makes them.
pub(super) const fn fast_path(transport: Transport, config: &Config) -> FastPath {
    match (transport, config.net_fast_path) {
        (_, FastPathChoice::Off) | (Transport::Tcp, FastPathChoice::Auto) => FastPath::OFF,
        _ => FastPath { rings: config.net_fast_peers, slots: RING_SLOTS },
    }
}

fn is_off<T>(choice: &str) -> Result<T, NotOpen> {
    Err(NotOpen::Unusable(format!("NEMESIA_NET is {choice}")))
}

/// Returns the port, or why it is not open.
///
/// # Errors
/// In strict mode, a preference that cannot be met.
fn unless_strict<T>(opened: Result<T, NotOpen>) -> Result<Result<T, String>, ConfigError> {
    match opened {
        Ok(port) => Ok(Ok(port)),
        Err(not_open) => not_open.reason().map(Err),
    }
}

/// Returns the most connections of a port for so many ranks.
const fn connections(config: &Config, ranks: u32) -> u32 {
    ranks.saturating_mul(config.net_streams).saturating_add(SPARE)
}

pub(super) fn open_tcp(
    config: &Config,
    ranks: u32,
    warnings: &mut Vec<String>,
) -> Result<OpenedPort<TcpPort>, NotOpen> {
    listen_tcp(config, &tcp_options(config, ranks), warnings)
}

/// Returns the options of a port over TCP for so many ranks.
pub(super) fn tcp_options(config: &Config, ranks: u32) -> tcp::Options {
    tcp::Options {
        connections: connections(config, ranks),
        receive_depth: config.net_receives,
        shared_receive_depth: 0,
        reads_ahead: true,
        ..tcp::Options::default()
    }
}

/// Returns what is wrong with the addresses of two machines, if they show that one does not reach the other.
fn misplaced(own: IpAddr, other: IpAddr) -> Option<String> {
    if own.is_loopback() || other.is_loopback() {
        let problem = "one of both has an address that does not leave its machine: set NEMESIA_NET_ADDRESS";
        return Some(problem.into());
    }
    (own == other).then(|| {
        format!(
            "both machines have the address {own}, as bridges of containers and virtual machines have (docker0, \
             virbr0): set NEMESIA_NET_ADDRESS to an interface, or a prefix of addresses, of the network between them"
        )
    })
}

/// Returns the options of a port over an RDMA device for so many ranks, without the choice of a device.
pub(super) fn device_options(config: &Config, ranks: u32) -> PortOptions {
    PortOptions {
        connections: connections(config, ranks),
        receive_depth: config.net_receives,
        shared_receive_depth: 0,
        set_up: config.net_set_up,
        assert_order: config.net_fast_path == FastPathChoice::On,
        ..PortOptions::default()
    }
}

/// Opens a device that can also lock the memory of the first packets: otherwise `auto` must mean TCP.
fn open_verbs(
    config: &Config,
    (ranks, remote): (u32, u32),
    warnings: &mut Vec<String>,
) -> Result<OpenedPort<VerbsPort>, NotOpen> {
    let mut opened = open_device(config, &device_options(config, ranks), warnings)?;
    let port = &mut opened.port;
    if config.net_fast_path == FastPathChoice::On && !port.facts().ordered_within_write {
        let device = port.device().name();
        return Err(NotOpen::Unusable(format!(
            "NEMESIA_NET_FAST_PATH is on, but {device} is an iWARP device, which places bytes in any order: set it to \
            auto or off"
        )));
    }
    try_memory(port, remote.saturating_mul(config.net_streams), config.net_packet_bytes(false))?;
    Ok(opened)
}

#[cfg(test)]
mod tests {
    use super::misplaced;

    #[test]
    fn machines_that_have_one_address_are_refused_with_the_remedy() {
        let of = |own: &str, other: &str| misplaced(own.parse().unwrap(), other.parse().unwrap());
        assert_eq!(of("10.77.0.1", "10.77.0.2"), None);
        let same = of("172.17.0.1", "172.17.0.1").unwrap();
        assert!(same.contains("172.17.0.1") && same.contains("set NEMESIA_NET_ADDRESS"), "{same}");
        assert!(of("127.0.0.1", "10.77.0.2").unwrap().contains("does not leave its machine"));
    }
}
