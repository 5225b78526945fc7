//! Opening the memory ports of a process, and making the port of the world out of one of them.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nemesia_core::job_key::JobKey;
use nemesia_core::port::PeerId;
use nemesia_core::port::channel::FastPath;
use nemesia_core::port::memory::{Address, MemoryPort as _};

use super::fabric::{ChannelSizes, FabricChannel, try_memory};
use super::rejoin::NetRejoin;
use super::streams::FurtherStreams;
use super::{AnyChannel, NetPort};
use crate::config::{Config, FastPathChoice, NetChoice};
use crate::os::{ProcessOrigin, interfaces};
use crate::tcp::{self, TcpPort};
use crate::verbs::{DevicePreference, PortOptions, VerbsPort};

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
    verbs: Result<VerbsPort, String>,
    tcp: Result<TcpPort, String>,
}

impl OpenedPorts {
    /// Opens the ports that the settings permit, for a world of so many ranks, of which `remote` at least are on other
    /// machines.
    pub(crate) fn open(config: &Config, ranks: u32, remote: u32) -> Self {
        // Over TCP the world may have further peers.
        let most = ranks.saturating_add(config.connections);
        let (verbs, tcp) = match config.net {
            NetChoice::Off => (is_off("off"), is_off("off")),
            NetChoice::Tcp => (is_off("tcp"), open_tcp(config, most)),
            NetChoice::Verbs => (open_verbs(config, ranks, remote), is_off("verbs")),
            NetChoice::Auto => (open_verbs(config, ranks, remote), open_tcp(config, most)),
        };
        Self { verbs, tcp }
    }

    /// Returns the address at which this process is reached by this transport, or why it is not.
    pub(crate) fn address(&self, transport: Transport) -> Result<Address, String> {
        let address = match transport {
            Transport::Verbs => self.verbs.as_ref().map(VerbsPort::address),
            Transport::Tcp => self.tcp.as_ref().map(TcpPort::address),
        };
        address.map_err(Clone::clone)?.ok_or_else(|| "the port accepts no connections".to_owned())
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
        let any = match transport {
            Transport::Verbs => AnyChannel::Verbs(Box::new(FabricChannel::new(self.verbs?, &sizes)?)),
            Transport::Tcp => AnyChannel::Tcp(Box::new(FabricChannel::new(self.tcp?, &sizes)?)),
        };
        let begun = Instant::now();
        let origin = Arc::clone(origin);
        let rejoin = NetRejoin::default();
        let streams = FurtherStreams::new(config.net_streams);
        let mut port = NetPort { any, rank, addresses, begun, rejoin, streams, growing: None, origin };
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
        WorldMember { rank, key, .. }: WorldMember,
        origin: &Arc<ProcessOrigin>,
    ) -> Result<NetPort, String> {
        NetPort::growing(self.tcp?, config, (rank, key), origin)
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
        packet_bytes: config.net_packet_bytes(),
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
const fn fast_path(transport: Transport, config: &Config) -> FastPath {
    match (transport, config.net_fast_path) {
        (_, FastPathChoice::Off) | (Transport::Tcp, FastPathChoice::Auto) => FastPath::OFF,
        _ => FastPath { rings: config.net_fast_peers, slots: RING_SLOTS },
    }
}

fn is_off<T>(choice: &str) -> Result<T, String> {
    Err(format!("NEMESIA_NET is {choice}"))
}

/// Returns the most connections of a port for so many ranks.
const fn connections(config: &Config, ranks: u32) -> u32 {
    ranks.saturating_mul(config.net_streams).saturating_add(SPARE)
}

pub(super) fn open_tcp(config: &Config, ranks: u32) -> Result<TcpPort, String> {
    let address = interfaces::choose(config.net_address.as_deref())?;
    let options = tcp::Options {
        connections: connections(config, ranks),
        receive_depth: config.net_receives,
        shared_receive_depth: 0,
        ..tcp::Options::default()
    };
    tcp::listen(SocketAddr::new(address, 0), &options)
        .map_err(|error| format!("listening at {address}: {error}; set NEMESIA_NET_ADDRESS"))
}

/// Opens a device that can also lock the memory of the first packets: otherwise `auto` must mean TCP.
fn open_verbs(config: &Config, ranks: u32, remote: u32) -> Result<VerbsPort, String> {
    let address = config.net_address.as_deref().map(|wanted| interfaces::choose(Some(wanted))).transpose()?;
    let options = PortOptions {
        preference: DevicePreference { address, ..DevicePreference::default() },
        connections: connections(config, ranks),
        receive_depth: config.net_receives,
        shared_receive_depth: 0,
        assert_order: config.net_fast_path == FastPathChoice::On,
        ..PortOptions::default()
    };
    let mut port = VerbsPort::open(&options).map_err(|error| error.to_string())?;
    if config.net_fast_path == FastPathChoice::On && !port.facts().ordered_within_write {
        let device = port.device().name();
        return Err(format!(
            "NEMESIA_NET_FAST_PATH is on, but {device} is an iWARP device, which places bytes in any order: set it to \
            auto or off"
        ));
    }
    try_memory(&mut port, remote.saturating_mul(config.net_streams), config.net_packet_bytes())?;
    Ok(port)
}
