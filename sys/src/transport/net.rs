//! The port to ranks on other machines: a channel over TCP or over an RDMA device.
//!
//! Of two ranks, the lower one serves and the higher one connects. Connections are made when the world is opened,
//! within a time limit, or over TCP one by one when they are first needed ([`door`]). In the first case both ends prove
//! that they know the key of the job ([`job_key`](nemesia_core::job_key)), which the exchange or a setting has given
//! them; in the second, that they were given each other's address ([`link::proof`](nemesia_core::link::proof)).
//! Afterwards only processes that were started again connect, and only when this process readmits them.

mod bill;
mod choice;
mod connect;
mod door;
mod fabric;
mod growing;
mod memory;
mod open;
mod registered;
mod rejoin;
mod remote;
mod streams;

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nemesia_core::counters::TrafficCounters;
use nemesia_core::port::channel::{self, ChannelEvent, Token};
use nemesia_core::port::memory::{Address, MemoryPort as _};
use nemesia_core::port::{Arrival, PacketPieces, PacketPort, PeerFault, PeerId, Polled};
use nemesia_core::wire::Envelope;
use nemesia_core::wire::channel::CloseReason;

use crate::config::Config;
use crate::os::{ProcessOrigin, wait_any};
use crate::tcp::TcpPort;
use crate::verbs::VerbsPort;
pub use bill::{NetBill, NetUsage, TransportBill};
pub(crate) use choice::{NotOpen, device_preference, listen_tcp, open_device, tcp_place};
pub(crate) use door::{
    OTHER_DIRECTION, STREAM, StreamDoor, StreamLine, StreamLoss, StreamPeer, refused_connection,
};
use fabric::{Fabric as _, FabricChannel};
pub(crate) use growing::EnteredStream;
use growing::GrowingPeers;
pub(crate) use open::{OpenedPorts, Transport, WorldMember};
use rejoin::NetRejoin;
pub(crate) use rejoin::{NetAnswer, RemoteMember};
use streams::FurtherStreams;

/// The remedy if the network between two processes is at fault.
pub(crate) const CHECK_NETWORK: &str =
    "; check the network between both machines and their firewalls, or set NEMESIA_NET_ADDRESS";
/// What a connection over TCP stages in each direction, and the room of what it reads ahead.
const STREAM_BYTES: u64 = 2 * (16 << 10) + (64 << 10);
/// The longest wait between two looks at connections that close.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Returns the most bytes that each rank on another machine adds to this process for packets, on any transport: over
/// TCP.
pub(crate) fn bytes_per_peer(config: &Config) -> u64 {
    let packet = channel::buffer_bytes(config.net_packet_bytes(true));
    let stream = u64::from(fabric::buffers_per_stream(config.net_receives)) * packet + STREAM_BYTES;
    u64::from(config.net_streams) * stream
}

#[derive(Debug)]
enum AnyChannel {
    Tcp(Box<FabricChannel<TcpPort>>),
    Verbs(Box<FabricChannel<VerbsPort>>),
}

/// Does the same with the channel over either fabric.
macro_rules! with {
    ($any:expr, $it:ident => $body:expr) => {
        match $any {
            $crate::transport::net::AnyChannel::Tcp($it) => $body,
            $crate::transport::net::AnyChannel::Verbs($it) => $body,
        }
    };
}
use with;

/// The longest packet that is sent together with others: a longer one gains nothing by that.
const MOST_GATHERED_BYTES: usize = 2048;
/// The packets to a peer that leave at once although no poll came in between. Those that follow leave together.
const PROMPT_PACKETS: u32 = 2;

/// The packets that were sent since the last poll.
#[derive(Clone, Copy, Debug, Default)]
struct Burst {
    /// The peer to which the last ones went, and their number.
    peer: PeerId,
    packets: u32,
    /// Whether packets may wait for the end of a batch.
    is_batch: bool,
}

impl Burst {
    const fn add(&mut self, peer: PeerId) {
        self.packets = if self.peer == peer { self.packets.saturating_add(1) } else { 1 };
        self.peer = peer;
    }
}

/// The port to ranks on other machines.
#[derive(Debug)]
pub(crate) struct NetPort {
    any: AnyChannel,
    rank: PeerId,
    /// Where this process is reached, and why there.
    place: String,
    /// The address of each rank that is reached through this port.
    addresses: Vec<Option<Address>>,
    /// The beginning of the clock that the channel is given.
    begun: Instant,
    rejoin: NetRejoin,
    streams: FurtherStreams,
    /// The largest message that is sent eagerly, if more than to ranks of this machine.
    eager_bytes: usize,
    /// The longest rest of a message that is one access to memory of a peer, whatever the engine prefers.
    whole_access: u64,
    burst: Burst,
    /// The peers, if they are connected one by one.
    growing: Option<Box<GrowingPeers>>,
    /// The process to which the connections belong. In a forked child no call has an effect.
    origin: Arc<ProcessOrigin>,
}

impl NetPort {
    /// Returns the next report of a shortage of this process, which keeps it from accepting streams for now.
    pub(crate) fn next_shortage(&mut self) -> Option<String> {
        match &mut self.any {
            AnyChannel::Tcp(it) => it.channel.port_mut().transport_mut().next_shortage(),
            AnyChannel::Verbs(_) => None,
        }
    }

    /// Returns the number of streams that could not be accepted.
    pub(crate) fn failed_accepts(&self) -> u64 {
        match &self.any {
            AnyChannel::Tcp(it) => it.channel.port().transport().failed_accepts(),
            AnyChannel::Verbs(_) => 0,
        }
    }

    /// Returns the transport.
    pub(crate) fn transport(&self) -> Transport {
        match self.any {
            AnyChannel::Tcp(_) => Transport::Tcp,
            AnyChannel::Verbs(_) => Transport::Verbs,
        }
    }

    /// Returns whether this rank is reached through this port.
    #[inline]
    pub(crate) fn reaches(&self, peer: PeerId) -> bool {
        match &self.growing {
            Some(growing) => growing.has(peer),
            None => self.addresses.get(peer as usize).is_some_and(Option::is_some),
        }
    }

    fn ranks(&self) -> PeerId {
        self.growing.as_ref().map_or(self.addresses.len() as PeerId, |growing| growing.numbers())
    }

    /// Returns the present time, for [`PacketPort::advance`].
    pub(crate) fn now(&self) -> Duration {
        self.begun.elapsed()
    }

    fn advance_with(&mut self, now: Duration, heed: impl FnMut(ChannelEvent)) {
        if !self.origin.is_elsewhere() {
            with!(&mut self.any, it => it.advance(now, heed));
        }
    }

    /// Prepares for a sleep on [`NetPort::descriptor`]. `false`: there may be something to do already.
    pub(crate) fn arm(&mut self) -> bool {
        self.origin.is_elsewhere() || with!(&mut self.any, it => it.arm())
    }

    /// Returns the descriptor that becomes readable when there is something to do.
    pub(crate) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        let number = with!(&self.any, it => it.channel.port().descriptor())?;
        // SAFETY: the port owns the descriptor, and the result borrows the port.
        Some(unsafe { BorrowedFd::borrow_raw(number) })
    }

    /// Returns the number of receives of the connection with a rank.
    #[cfg(test)]
    pub(crate) fn receives(&self, peer: PeerId) -> u32 {
        with!(&self.any, it => it.channel.report(peer)).receives
    }

    /// Returns whether something that was sent could be lost if the port were dropped now.
    pub(crate) fn has_unsent(&self) -> bool {
        let ranks = self.ranks();
        !self.origin.is_elsewhere() && with!(&self.any, it => it.has_unsent(ranks))
    }

    /// Tells all peers that this process leaves, and whether it has finished. Waits at most for `patience` until this
    /// and everything before has left. Packets that arrive meanwhile are dropped.
    pub(crate) fn leave(&mut self, finished: bool, patience: Duration) {
        if self.origin.is_elsewhere() {
            return;
        }
        let reason = if finished { CloseReason::Finished } else { CloseReason::Dropped };
        let until = Instant::now() + patience;
        self.dismiss_all(reason);
        let mut remaining: Vec<PeerId> = (0..self.ranks()).filter(|peer| self.reaches(*peer)).collect();
        loop {
            self.advance(self.now());
            while self.discard() {}
            // A peer whose port refuses the packet sees that the connection is lost.
            remaining.retain(
                |peer| with!(&mut self.any, it => matches!(it.channel.send_close(*peer, reason), Ok(false))),
            );
            self.advance(self.now());
            let now = Instant::now();
            if now >= until || remaining.is_empty() && !self.has_unsent() {
                return;
            }
            let next = until.min(now + LOOK_EVERY);
            if self.arm()
                && let Some(descriptor) = self.descriptor()
            {
                // If it fails, the loop looks again until its own time limit.
                let _ = wait_any(&[descriptor], next);
            }
        }
    }

    /// Drops the next packet. Returns whether there was anything.
    fn discard(&mut self) -> bool {
        match self.poll() {
            Polled::Idle => false,
            Polled::Packet(arrival) => {
                self.release(arrival);
                true
            }
            Polled::Fault(PeerFault { peer, .. }) => {
                self.close(peer);
                true
            }
        }
    }
}

impl PacketPort for NetPort {
    type Token = Token;

    fn packet_bytes(&self) -> usize {
        with!(&self.any, it => it.channel.packet_bytes())
    }

    #[inline]
    fn eager_bytes(&self, _: PeerId) -> usize {
        self.eager_bytes
    }

    fn send(
        &mut self,
        peer: PeerId,
        envelope: &Envelope,
        pieces: PacketPieces<'_>,
    ) -> Result<bool, PeerFault> {
        if self.origin.is_elsewhere() {
            return Ok(false);
        }
        self.burst.add(peer);
        let waits = self.burst.is_batch && pieces.len() <= MOST_GATHERED_BYTES;
        with!(&mut self.any, it => {
            let sent = it.channel.send(peer, envelope, pieces);
            if !waits {
                it.channel.port_mut().push_out();
            }
            sent
        })
    }

    #[inline]
    fn gathers(&self, peer: PeerId, len: usize) -> bool {
        let Burst { peer: recent, packets, .. } = self.burst;
        recent == peer && packets >= PROMPT_PACKETS && len <= MOST_GATHERED_BYTES
    }

    fn set_batch(&mut self, _: PeerId, is_batch: bool) {
        self.burst.is_batch = is_batch;
        if !is_batch && !self.origin.is_elsewhere() {
            with!(&mut self.any, it => it.channel.port_mut().push_out());
        }
    }

    fn poll(&mut self) -> Polled<Token> {
        self.burst.packets = 0;
        if self.origin.is_elsewhere() {
            return Polled::Idle;
        }
        if self.growing.is_some() {
            return self.poll_growing();
        }
        with!(&mut self.any, it => it.channel.poll())
    }

    fn poll_peer(&mut self, peer: PeerId) -> Polled<Token> {
        if self.origin.is_elsewhere() || self.growing.as_ref().is_some_and(|it| !it.is_open(peer)) {
            return Polled::Idle;
        }
        with!(&mut self.any, it => it.channel.poll_peer(peer))
    }

    fn read(&self, arrival: &Arrival<Token>, at: usize, to: &mut [u8]) -> bool {
        with!(&self.any, it => it.channel.read(arrival, at, to))
    }

    fn release(&mut self, arrival: Arrival<Token>) {
        with!(&mut self.any, it => it.channel.release(arrival));
    }

    fn grant(&mut self, peer: PeerId, units: u64) {
        if !self.origin.is_elsewhere() {
            with!(&mut self.any, it => {
                it.channel.grant(peer, units);
                it.channel.port_mut().push_out();
            });
        }
    }

    fn granted(&self, peer: PeerId) -> u64 {
        with!(&self.any, it => it.channel.granted(peer))
    }

    fn traffic(&self, peer: PeerId) -> TrafficCounters {
        with!(&self.any, it => it.channel.traffic(peer))
    }

    fn close(&mut self, peer: PeerId) {
        if self.growing.is_some() {
            return self.close_growing(peer);
        }
        if !self.origin.is_elsewhere() {
            with!(&mut self.any, it => it.channel.close(peer));
        }
    }

    fn advance(&mut self, now: Duration) {
        let mut events = Vec::new();
        self.advance_with(now, |event| events.push(event));
        self.widen(&events);
        if self.growing.is_some() {
            return self.attend_growing();
        }
        self.attend(&events);
    }
}
