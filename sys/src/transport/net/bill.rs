//! The costs of reaching ranks on other machines: by the settings before anything is opened, and as they are.
//!
//! Both come from the functions that allocate, so that a test compares them.

use nemesia_core::port::channel::{self, ChannelPeer};
use nemesia_core::port::memory::MemoryPort as _;

use super::fabric::{BufferCounts, buffer_counts, window};
use super::open::{device_options, fast_path, tcp_options};
use super::{AnyChannel, NetPort, Transport, with};
use crate::config::Config;

/// The descriptors of a port over TCP: its listener and epoll.
const TCP_DESCRIPTORS: u32 = 2;

/// What one process of a world needs to reach the ranks on other machines, by the settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetBill {
    /// The number of hosts.
    pub hosts: u32,
    /// The ranks on other machines, of a process of the host with the fewest processes.
    pub remote: u32,
    /// The connections with them.
    pub connections: u32,
    /// The buffers when all are connected and nothing was sent.
    pub first_buffers: u32,
    /// The most buffers, if all peers send at once.
    pub most_buffers: u32,
    /// Bytes of state that each rank on another machine adds before it is connected, without its buffers.
    pub state_per_peer: u64,
    /// What depends on the transport: first that over RDMA devices, then that over TCP.
    pub transports: [TransportBill; 2],
}

/// What one process of a world needs for a transport to other machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransportBill {
    /// `verbs` or `tcp`.
    pub transport: &'static str,
    /// Bytes of a buffer for a packet. The buffers belong to the process, and serve all connections.
    pub buffer_bytes: u64,
    /// Bytes of the rings into which peers write small packets, if the device promises the order that they need.
    pub ring_bytes: u64,
    /// The queue pairs when all are connected; 0 over TCP.
    pub queue_pairs: u32,
    /// The work requests of a connection's send queue.
    pub send_depth: u32,
    /// The work requests of a connection's receive queue.
    pub receive_depth: u32,
    /// The entries of the completion queue, which all connections share; 0 over TCP. A device may have fewer.
    pub completion_entries: u32,
    /// The file descriptors without connections, those of libraries not counted.
    pub descriptors: u32,
    /// The file descriptors of each connection.
    pub descriptors_per_connection: u32,
}

impl NetBill {
    /// Returns the bill of a world of `processes` processes on `hosts` hosts. Processes that do not share memory
    /// (`NEMESIA_LOCAL=off`) are hosts of their own.
    pub fn new(config: &Config, processes: u32, hosts: u32) -> Self {
        let processes = processes.max(1);
        let hosts = if config.local { hosts.clamp(1, processes) } else { processes };
        let remote = processes - processes / hosts;
        let connections = remote.saturating_mul(config.net_streams);
        let BufferCounts { first, most } = buffer_counts(connections, config.net_receives);
        // The state is there for a ring, too, whether the device has rings or not.
        let places = window((config.net_receives, config.net_streams), fast_path(Transport::Verbs, config));
        let window_bytes = places * size_of::<Option<u32>>();
        Self {
            hosts,
            remote,
            connections,
            first_buffers: first,
            most_buffers: most,
            state_per_peer: (size_of::<ChannelPeer<Vec<Option<u32>>>>() + window_bytes) as u64,
            transports: [device_bill(config, processes, connections), tcp_bill(config, processes)],
        }
    }
}

fn device_bill(config: &Config, processes: u32, connections: u32) -> TransportBill {
    let options = device_options(config, processes);
    TransportBill {
        transport: Transport::Verbs.name(),
        buffer_bytes: channel::buffer_bytes(config.net_packet_bytes(false)),
        ring_bytes: fast_path(Transport::Verbs, config).bytes(),
        queue_pairs: connections,
        send_depth: options.send_depth,
        receive_depth: options.receive_depth,
        completion_entries: options.completion_entries(),
        descriptors: crate::verbs::DESCRIPTORS,
        descriptors_per_connection: 0,
    }
}

fn tcp_bill(config: &Config, processes: u32) -> TransportBill {
    let options = tcp_options(config, processes);
    TransportBill {
        transport: Transport::Tcp.name(),
        buffer_bytes: channel::buffer_bytes(config.net_packet_bytes(true)),
        ring_bytes: fast_path(Transport::Tcp, config).bytes(),
        queue_pairs: 0,
        send_depth: options.send_depth,
        receive_depth: options.receive_depth,
        completion_entries: 0,
        descriptors: TCP_DESCRIPTORS,
        descriptors_per_connection: 1,
    }
}

/// What the port to other machines of an endpoint has now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NetUsage {
    /// `verbs` or `tcp`.
    pub transport: &'static str,
    /// The connections that exist, in any state.
    pub connections: u32,
    /// The buffers for packets.
    pub buffers: u32,
    /// The bytes of these buffers and of rings for small packets.
    pub bytes: u64,
    /// The work requests of a connection's send queue.
    pub send_depth: u32,
    /// The work requests of a connection's receive queue.
    pub receive_depth: u32,
    /// The entries of the completion queue; 0 over TCP.
    pub completion_entries: u32,
}

impl NetPort {
    /// Returns what this port has now.
    pub(crate) fn usage(&self) -> NetUsage {
        let completion_entries = match &self.any {
            AnyChannel::Verbs(it) => it.channel.port().completion_entries(),
            AnyChannel::Tcp(_) => 0,
        };
        let (buffers, bytes, facts) = with!(&self.any, it => {
            (it.channel.buffers().0, it.bytes(), *it.channel.port().facts())
        });
        let connections = (0..self.ranks()).map(|peer| with!(&self.any, it => it.channel.report(peer)).rails);
        NetUsage {
            transport: self.transport().name(),
            connections: connections.sum(),
            buffers,
            bytes,
            send_depth: facts.send_depth,
            receive_depth: facts.receive_depth,
            completion_entries,
        }
    }
}
