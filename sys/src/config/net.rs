//! Settings of the ranks on other machines.

use std::time::Duration;

use nemesia_core::port::channel::{MOST_RAILS, MOST_RINGS, RendezvousChoice};

use super::{Config, Origin};
use crate::regcache::Telling;
use crate::tcp::SILENCE_SECONDS;
use crate::verbs::SetUpChoice;

/// The longest rest of a message that one access reads over TCP, unless NEMESIA_PULL_BYTES is set. Longer messages are
/// read in pieces of that setting: other packets of the connection wait for a piece, and congestion control with pacing
/// (BBR) delays longer ones.
const TCP_ACCESS_BYTES: u64 = 512 << 10;
/// The least payload of the largest packet over TCP. A message of this size costs less in one packet and one copy than
/// by a rendezvous, which needs two more ways and several system calls. Only the pages of a buffer into which bytes
/// have come take memory.
const TCP_PACKET_BYTES: u32 = 128 << 10;

/// The transport to ranks on other machines. All processes of a world use the same one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NetChoice {
    /// RDMA devices if every process has one that it can use, else TCP.
    #[default]
    Auto,
    /// TCP.
    Tcp,
    /// RDMA devices.
    Verbs,
    /// None: a rank on another machine is an error at start.
    Off,
}

/// Whether small packets of ranks on other machines are written into rings in the memory of this process, where it
/// polls their last bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FastPathChoice {
    /// On RDMA devices whose library promises that the bytes of a write arrive in order
    /// (`ibv_query_qp_data_in_order(3)`).
    #[default]
    Auto,
    /// The user asserts that the device of this process places the bytes of each write in the order of their addresses,
    /// although its library does not promise it. If the assertion is false, messages are corrupted. On an iWARP device,
    /// whose order is undefined, it is an error. Over TCP the order is known, so that nothing is asserted.
    On,
    /// Nowhere, in neither direction.
    Off,
}

impl Config {
    /// Sets how connections over RDMA devices are set up. All processes must agree.
    #[must_use]
    pub fn net_set_up(self, choice: SetUpChoice) -> Self {
        self.with(["NEMESIA_NET_SETUP"], |config| config.net_set_up = choice)
    }

    /// Sets whether ranks on other machines write small packets into the memory of this process.
    #[must_use]
    pub fn net_fast_path(self, choice: FastPathChoice) -> Self {
        self.with(["NEMESIA_NET_FAST_PATH"], |config| config.net_fast_path = choice)
    }

    /// Sets how many ranks on other machines may do that at once: 1 to 32. Each takes 32 KiB of registered memory.
    /// Every poll reads a word for each of them.
    #[must_use]
    pub fn net_fast_peers(self, peers: u32) -> Self {
        self.with(["NEMESIA_NET_FAST_PEERS"], |config| config.net_fast_peers = peers.clamp(1, MOST_RINGS))
    }

    /// Sets whether this process shares memory with other processes of its machine. If not, it reaches them as if
    /// they ran on other machines.
    #[must_use]
    pub fn local(self, local: bool) -> Self {
        self.with(["NEMESIA_LOCAL"], |config| config.local = local)
    }

    /// Sets the transport to ranks on other machines.
    #[must_use]
    pub fn net(self, net: NetChoice) -> Self {
        self.with(["NEMESIA_NET"], |config| config.net = net)
    }

    /// Sets the address at which this process listens for ranks on other machines: an IP address, or the name of an
    /// interface. `None`: an address of the interface with the default route; without one, the first address that is
    /// not local to this machine.
    #[must_use]
    pub fn net_address(self, address: Option<&str>) -> Self {
        self.with(["NEMESIA_NET_ADDRESS"], |config| config.net_address = address.map(str::to_owned))
    }

    /// Sets the payload bytes of the largest packet to another machine: 256 to 16 MiB; `None` means those of a cell.
    /// All processes must agree.
    #[must_use]
    pub fn net_packets(self, bytes: Option<u32>) -> Self {
        let bytes = bytes.map(|bytes| bytes.clamp(256, 16 << 20));
        self.with(["NEMESIA_NET_PACKET_BYTES"], |config| config.net_packet_bytes = bytes)
    }

    /// Sets the largest message, in bytes, that is sent eagerly to ranks on other machines, if more than
    /// [`Config::eager_bytes`]. It has at most the bytes of the largest packet. `None`: over TCP those of the largest
    /// packet, unless [`Config::eager_bytes`] was set; over RDMA devices no more than [`Config::eager_bytes`].
    #[must_use]
    pub fn net_eager(self, bytes: Option<u32>) -> Self {
        self.with(["NEMESIA_NET_EAGER_BYTES"], |config| config.net_eager_bytes = bytes)
    }

    /// Sets the most packets that each rank on another machine may send before this process has taken one: 3 to
    /// 1024. Memory is taken as busy ranks need it.
    #[must_use]
    pub fn net_receives(self, receives: u32) -> Self {
        self.with(["NEMESIA_NET_RECEIVES"], |config| config.net_receives = receives.clamp(3, 1024))
    }

    /// Sets the connections with each rank on another machine: 1 to 4. With several, small packets stay on the first
    /// one, and large ones take the others in turn, which helps where one connection can't use the whole link. Each
    /// takes the memory of [`Config::net_receives`]. Puts and gets then travel in packets. If two ranks have different
    /// numbers, the smaller one counts, and the loss of one connection ends the others.
    #[must_use]
    pub fn net_streams(self, streams: u32) -> Self {
        self.with(["NEMESIA_NET_STREAMS"], |config| config.net_streams = streams.clamp(1, MOST_RAILS as u32))
    }

    /// Sets the time after which a host that does not answer counts as gone: 2 to 3600 whole seconds, rounded up. Its
    /// ranks then fail, and operations with them end. Over TCP the kernel of the other host answers, so its processes
    /// may compute or be stopped for any time. RDMA devices derive the time between two attempts to send from this
    /// limit.
    #[must_use]
    pub fn net_silence(self, silence: Duration) -> Self {
        let seconds = silence.as_secs().saturating_add(u64::from(silence.subsec_nanos() > 0));
        let silence = Duration::from_secs(seconds.clamp(*SILENCE_SECONDS.start(), *SILENCE_SECONDS.end()));
        self.with(["NEMESIA_NET_SILENCE"], |config| config.net_silence = silence)
    }

    /// Sets how large messages of ranks on other machines move to this process. The receiver's choice counts.
    /// [`RendezvousChoice::Auto`] measures for each rank and size.
    #[must_use]
    pub fn net_rendezvous(self, choice: RendezvousChoice) -> Self {
        self.with(["NEMESIA_NET_RENDEZVOUS"], |config| config.net_rendezvous = choice)
    }

    /// Sets the smallest put or get, in bytes, on memory of a rank on another machine that is done by remote memory
    /// access instead of packets. `None`: never, and the ranks on other machines do not access the memory of this
    /// process in that way either. If both ends have a number, [`Endpoint::unexpose`](crate::Endpoint::unexpose) may
    /// wait, and exposed memory may change at any time. The default is `None`.
    #[must_use]
    pub fn net_direct_bytes(self, bytes: Option<u64>) -> Self {
        self.with(["NEMESIA_NET_DIRECT_BYTES"], |config| config.net_direct_bytes = bytes)
    }

    /// Sets how the registration cache for RDMA devices learns that memory was unmapped.
    /// [`Telling::Nobody`]: no registration outlives its use.
    #[must_use]
    pub fn registrations(self, telling: Telling) -> Self {
        self.with(["NEMESIA_REGISTRATIONS"], |config| config.registrations = telling)
    }

    /// Returns the largest message that is sent eagerly to another machine, over TCP or over an RDMA device, if more
    /// than NEMESIA_EAGER_BYTES. Over TCP a rendezvous costs several system calls and two more ways of a packet, and
    /// saves a copy.
    pub(crate) fn net_eager_bytes(&self, is_tcp: bool) -> usize {
        let most = self.net_packet_bytes(is_tcp);
        let chosen = if is_tcp { self.unless_eager_is_set(most) } else { 0 };
        self.net_eager_bytes.unwrap_or(chosen).min(most) as usize
    }

    /// Returns the longest rest of a message that is read from the memory of another machine in one access, over TCP or
    /// over an RDMA device, if more than NEMESIA_PULL_BYTES. Over TCP an access costs a round trip and system calls.
    pub(crate) fn net_whole_access(&self, is_tcp: bool) -> u64 {
        let is_free = is_tcp && self.origin("NEMESIA_PULL_BYTES") == Origin::Default;
        if is_free { TCP_ACCESS_BYTES } else { 0 }
    }

    /// Returns the payload bytes of the largest packet to another machine, over TCP or over an RDMA device.
    pub(crate) fn net_packet_bytes(&self, is_tcp: bool) -> u32 {
        let least = if is_tcp { TCP_PACKET_BYTES } else { 0 };
        self.net_packet_bytes.unwrap_or(self.cell_bytes.max(least))
    }
}
