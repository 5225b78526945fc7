//! Peers on other machines that are connected one by one, by number: those of an endpoint that was opened alone, which
//! come and go, and the ranks of a world that connects on demand.
//!
//! Calls connect them ([`StreamDoor`](super::StreamDoor)): a place is made before a call is answered, and the
//! connection of the call carries the packets. If buffers lack then, the connection waits for them. A number can be
//! given to another peer when nothing of the connection is left. A peer that this process disconnects from gets what
//! was sent before, for a limited time; what it sends meanwhile is dropped.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nemesia_core::job_key::JobKey;
use nemesia_core::link::proof::TokenMask;
use nemesia_core::port::channel::{Acquaintance, JoinError, Token};
use nemesia_core::port::memory::{Address, ConnectError};
use nemesia_core::port::{PacketPort as _, PeerFault, PeerId, Polled};
use nemesia_core::wire::channel::CloseReason;

use super::choice::{NotOpen, OpenedPort};
use super::fabric::FabricChannel;
use super::open::{WorldMember, channel_sizes, open_tcp};
use super::rejoin::NetRejoin;
use super::streams::FurtherStreams;
use super::{AnyChannel, Burst, NetPort, Transport, with};
use crate::config::Config;
use crate::os::{ProcessOrigin, random};
use crate::tcp::{Socket, TcpPort};

/// The number of the world of all channels that grow with their peers: no world has it by chance.
const NO_WORLD: u64 = u64::from_le_bytes(*b"no world");
/// The most packets of closed connections that one poll drops.
const DROPPED_A_POLL: usize = 64;
/// How long the last packets to a disconnected peer may take.
const LINGER: Duration = Duration::from_secs(5);

/// The state of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NumberStage {
    /// It has no peer on another machine.
    Free,
    /// Its peer is connected, or may connect.
    Open,
    /// This process has disconnected. The last packets leave until this time; whether the last packet has left.
    Leaving(Instant, bool),
    /// The connection is closed here, and its end is not reported yet.
    Closing,
}

/// The connection of an open link, to carry packets from now on.
#[derive(Debug)]
pub(crate) struct EnteredStream {
    /// The number by which this process knows the peer.
    pub(crate) number: PeerId,
    pub(crate) socket: Socket,
    /// The receives that the peer posts.
    pub(crate) receives: u32,
    /// What both have agreed upon for further streams.
    pub(crate) known: Acquaintance,
    /// The address at which the peer takes further streams.
    pub(crate) further: Option<Address>,
    /// Whether this process requests them, as it has called, and not the peer.
    pub(crate) is_caller: bool,
    /// How both mask tokens in packets.
    pub(crate) mask: TokenMask,
}

/// The peers that are connected one by one.
#[derive(Debug)]
pub(super) struct GrowingPeers {
    stages: Vec<NumberStage>,
    /// The numbers that are not free.
    used: u32,
    /// The connections for which buffers lack.
    waiting: Vec<EnteredStream>,
    /// The numbers whose connections have become ready, and why others will not.
    ready: VecDeque<PeerId>,
    failed: VecDeque<(PeerId, String)>,
}

impl GrowingPeers {
    fn stage(&self, number: PeerId) -> NumberStage {
        self.stages.get(number as usize).copied().unwrap_or(NumberStage::Free)
    }

    fn set(&mut self, number: PeerId, stage: NumberStage) {
        let former = self.stage(number);
        if number as usize >= self.stages.len() {
            self.stages.resize(number as usize + 1, NumberStage::Free);
        }
        self.used -= u32::from(former != NumberStage::Free);
        self.used += u32::from(stage != NumberStage::Free);
        self.stages[number as usize] = stage;
    }

    pub(super) const fn numbers(&self) -> PeerId {
        self.stages.len() as PeerId
    }

    /// Returns whether packets may still leave for this number.
    pub(super) fn has(&self, number: PeerId) -> bool {
        matches!(self.stage(number), NumberStage::Open | NumberStage::Leaving(..))
    }

    pub(super) fn is_open(&self, number: PeerId) -> bool {
        self.stage(number) == NumberStage::Open
    }

    fn forget(&mut self, number: PeerId) {
        self.waiting.retain(|it| it.number != number);
        self.ready.retain(|of| *of != number);
        self.failed.retain(|(of, _)| *of != number);
    }
}

impl NetPort {
    /// Opens a port over TCP whose peers are connected one by one, for a process with this number. Preferences that
    /// cannot be met are added to the warnings.
    pub(crate) fn for_peers(
        config: &Config,
        rank: PeerId,
        origin: &Arc<ProcessOrigin>,
        warnings: &mut Vec<String>,
    ) -> Result<Self, NotOpen> {
        let port = open_tcp(config, config.connections, warnings)?;
        Ok(Self::growing(port, config, rank, origin)?)
    }

    /// Makes a port whose peers are connected one by one, for a process with this number. The error is one line.
    pub(super) fn growing(
        OpenedPort { port, place }: OpenedPort<TcpPort>,
        config: &Config,
        rank: PeerId,
        origin: &Arc<ProcessOrigin>,
    ) -> Result<Self, String> {
        // No other process has it: what is agreed upon with each peer replaces it.
        let key = JobKey::from_bytes(random().map_err(|error| error.to_string())?);
        let member = WorldMember { rank, incarnation: 0, world: NO_WORLD, key };
        let sizes = channel_sizes(Transport::Tcp, config, member, (1, 0));
        let mut channel = FabricChannel::new(port, &sizes)?;
        channel.channel.grow_with_peers();
        let growing = GrowingPeers {
            stages: Vec::new(),
            used: 0,
            waiting: Vec::new(),
            ready: VecDeque::new(),
            failed: VecDeque::new(),
        };
        Ok(Self {
            any: AnyChannel::Tcp(Box::new(channel)),
            rank,
            place,
            addresses: Vec::new(),
            begun: Instant::now(),
            rejoin: NetRejoin::default(),
            streams: FurtherStreams::new(config.net_streams),
            eager_bytes: config.net_eager_bytes(true),
            whole_access: config.net_whole_access(true),
            burst: Burst::default(),
            growing: Some(Box::new(growing)),
            origin: Arc::clone(origin),
        })
    }

    /// Returns whether peers are connected one by one.
    pub(crate) const fn is_growing(&self) -> bool {
        self.growing.is_some()
    }

    /// Makes place for the connection with the peer of this number. The error is one line.
    pub(crate) fn expect_stream(&mut self, number: PeerId) -> Result<(), String> {
        let Some(growing) = &mut self.growing else { return Err("this process has a world".into()) };
        let used = growing.used + u32::from(growing.stage(number) == NumberStage::Free);
        with!(&mut self.any, it => {
            it.pay(used)?;
            it.make_place(number)?;
            if !it.channel.is_vacant(number) {
                return Err("a former connection with the same number is not closed".into());
            }
        });
        growing.forget(number);
        growing.set(number, NumberStage::Open);
        Ok(())
    }

    /// Takes the connection of an open link, for which there is a place. [`NetPort::next_ready`] or
    /// [`NetPort::next_failed`] follows.
    pub(crate) fn enter_stream(&mut self, entered: EnteredStream) {
        let Some(growing) = &mut self.growing else { return };
        let EnteredStream { number, known, .. } = entered;
        with!(&mut self.any, it => it.channel.expect(number, Some(known)));
        growing.waiting.push(entered);
        self.adopt_waiting();
    }

    /// Gives connections to the channel, as far as there are buffers.
    fn adopt_waiting(&mut self) {
        let (Some(growing), AnyChannel::Tcp(it)) = (&mut self.growing, &mut self.any) else { return };
        let mut adopted_now = Vec::new();
        for entered in std::mem::take(&mut growing.waiting) {
            let EnteredStream { number, socket, receives, further, is_caller, .. } = entered;
            let mut socket = Some(socket);
            let adopted = it.channel.adopt(number, (receives, is_caller), |port| {
                let taken = socket.take().ok_or(ConnectError::State)?;
                port.adopt(taken).map_err(|(error, rest)| {
                    socket = Some(rest);
                    error
                })
            });
            match (adopted, socket) {
                (Ok(()), _) => adopted_now.push((number, further)),
                (
                    Err(JoinError::Buffers { .. } | JoinError::Connect(ConnectError::Full { .. })),
                    Some(socket),
                ) => {
                    growing.waiting.push(EnteredStream { socket, ..entered });
                }
                (Err(error), _) => growing.failed.push_back((number, error.to_string())),
            }
        }
        growing.ready.extend(adopted_now.iter().map(|(number, _)| *number));
        adopted_now.into_iter().for_each(|(number, further)| self.want_streams(number, further));
    }

    /// Returns whether connections wait for buffers, or for [`NetPort::next_ready`] or [`NetPort::next_failed`].
    pub(crate) fn is_entering(&self) -> bool {
        let is_any =
            |it: &GrowingPeers| !(it.waiting.is_empty() && it.ready.is_empty() && it.failed.is_empty());
        self.growing.as_ref().is_some_and(|growing| is_any(growing))
    }

    /// Returns the next number whose connection is ready.
    pub(crate) fn next_ready(&mut self) -> Option<PeerId> {
        self.growing.as_mut()?.ready.pop_front()
    }

    /// Returns the next number whose connection cannot be made, and why.
    pub(crate) fn next_failed(&mut self) -> Option<(PeerId, String)> {
        self.growing.as_mut()?.failed.pop_front()
    }

    /// Returns a duplicate of the socket of a peer.
    #[cfg(test)]
    pub(crate) fn duplicate(&self, number: PeerId) -> Option<std::net::TcpStream> {
        let AnyChannel::Tcp(it) = &self.any else { return None };
        it.channel.port().stream(it.channel.report(number).connection?)?.stream().try_clone().ok()
    }

    /// Returns whether something is left of the connection with a former peer, so that the number must not be given to
    /// another one.
    pub(crate) fn is_taken(&self, number: PeerId) -> bool {
        self.growing.as_ref().is_some_and(|growing| growing.stage(number) != NumberStage::Free)
    }

    /// Lets the connection with a peer end once everything that was sent, and the news that this process has
    /// disconnected, has left.
    pub(crate) fn disconnect(&mut self, number: PeerId) {
        if let Some(growing) = &mut self.growing
            && growing.is_open(number)
        {
            growing.set(number, NumberStage::Leaving(Instant::now() + LINGER, false));
            self.linger(number);
        }
    }

    /// As [`PacketPort::poll`](nemesia_core::port::PacketPort::poll), without the packets of closed connections.
    pub(super) fn poll_growing(&mut self) -> Polled<Token> {
        for _ in 0..DROPPED_A_POLL {
            let Some(growing) = self.growing.as_ref().filter(|growing| growing.used > 0) else { break };
            let polled = with!(&mut self.any, it => it.channel.poll());
            match polled {
                Polled::Packet(arrival) if !growing.is_open(arrival.peer) => self.release(arrival),
                Polled::Fault(PeerFault { peer, .. }) if !growing.is_open(peer) => self.shut(peer),
                polled => return polled,
            }
        }
        Polled::Idle
    }

    /// As [`PacketPort::close`](nemesia_core::port::PacketPort::close). A peer from which this process has disconnected
    /// still gets its last packets.
    pub(super) fn close_growing(&mut self, number: PeerId) {
        let Some(growing) = &self.growing else { return };
        let mut is_over = growing.is_open(number);
        if growing.has(number) && !self.origin.is_elsewhere() {
            // What this process still accesses must end now.
            is_over |= with!(&mut self.any, it => it.channel.end_exposures(number));
        }
        if is_over {
            self.shut(number);
        }
    }

    /// Closes the connection with a peer.
    fn shut(&mut self, number: PeerId) {
        if self.origin.is_elsewhere() {
            return;
        }
        with!(&mut self.any, it => {
            it.channel.close(number);
            it.channel.expect(number, None);
        });
        if let Some(growing) = &mut self.growing {
            growing.forget(number);
            growing.set(number, NumberStage::Closing);
        }
        self.vacate(number);
    }

    fn vacate(&mut self, number: PeerId) {
        if with!(&self.any, it => it.channel.is_vacant(number))
            && let Some(growing) = &mut self.growing
        {
            growing.set(number, NumberStage::Free);
        }
    }

    /// Continues connections that begin or end.
    pub(super) fn attend_growing(&mut self) {
        if self.origin.is_elsewhere() {
            return;
        }
        self.adopt_waiting();
        for number in 0..self.ranks() {
            match self.growing.as_ref().map(|growing| growing.stage(number)) {
                Some(NumberStage::Closing) => self.vacate(number),
                Some(NumberStage::Leaving(..)) => self.linger(number),
                _ => {}
            }
        }
    }

    /// Sends the last packet to a peer, and closes the connection when everything has left.
    fn linger(&mut self, number: PeerId) {
        let Some(growing) = &self.growing else { return };
        let NumberStage::Leaving(until, mut said) = growing.stage(number) else { return };
        let now = Instant::now();
        let done = with!(&mut self.any, it => {
            let report = it.channel.report(number);
            // The peer may have accepted a connection that is still being made here, and waits for the last packet.
            if !said && report.ready > 0 {
                // If the port refuses the packet, the connection is lost.
                said = !matches!(it.channel.send_close(number, CloseReason::Finished), Ok(false));
                super::fabric::Fabric::push_out(it.channel.port_mut());
            }
            report.rails == 0 || said && !it.has_unsent(growing.numbers())
        });
        if done || now >= until {
            return self.shut(number);
        }
        if let Some(growing) = &mut self.growing {
            growing.set(number, NumberStage::Leaving(until, said));
        }
    }
}
