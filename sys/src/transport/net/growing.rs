//! Peers on other machines that are connected one by one, by number: those of an endpoint that was opened alone, which
//! come and go, and the ranks of a world that connects on demand.
//!
//! A peer is introduced when both sides have agreed upon the connection ([`NetCalls`](super::NetCalls)). The caller
//! then requests the connection of the channel, and repeats a request that failed for a passing reason, within a time
//! limit. A number can be given to another peer when nothing of the channel's connection is left. A peer that this
//! process disconnects from gets what was sent before, for a limited time; what it sends meanwhile is dropped.

use std::sync::Arc;
use std::time::{Duration, Instant};

use nemesia_core::job_key::JobKey;
use nemesia_core::port::channel::{Acquaintance, ChannelEvent, JoinError, Token};
use nemesia_core::port::memory::{Address, ConnectError};
use nemesia_core::port::{PacketPort as _, PeerFault, PeerId, Polled};
use nemesia_core::wire::channel::{ChannelRefusal, CloseReason};

use super::choice::{NotOpen, OpenedPort};
use super::connect::{RETRY_AFTER, is_passing};
use super::fabric::FabricChannel;
use super::open::{WorldMember, channel_sizes, open_tcp};
use super::rejoin::NetRejoin;
use super::streams::FurtherStreams;
use super::{AnyChannel, Burst, NetPort, Transport, with};
use crate::config::Config;
use crate::os::ProcessOrigin;
use crate::tcp::TcpPort;

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

/// A connection that this process requests.
#[derive(Debug)]
struct Dial {
    number: PeerId,
    to: Address,
    until: Instant,
    /// A request waits as long as the peer's machine is reached.
    is_patient: bool,
    stage: DialStage,
    problem: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DialStage {
    /// The connection is requested from this time on.
    Due(Instant),
    Requested,
    /// The request failed, and its connection is not closed yet.
    Closing,
}

/// The state of the connection with an introduced peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LinkStage {
    /// It is being made.
    Opening,
    /// It is there.
    Ready,
    /// There is nothing of it: the peer has not requested it yet.
    Nothing,
    /// It cannot be made.
    Failed {
        /// Why.
        problem: String,
        /// Whether the peer expects the connection no more: the call shows how the peer has left.
        withdrawn: bool,
    },
}

/// The peers that are connected one by one.
#[derive(Debug)]
pub(super) struct GrowingPeers {
    stages: Vec<NumberStage>,
    /// The numbers that are not free.
    used: u32,
    dials: Vec<Dial>,
    /// The connections that cannot be made, and whether the peer does not expect them any more.
    failed: Vec<(PeerId, String, bool)>,
    key: JobKey,
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

    /// Returns the address at which this process requests a connection.
    pub(super) fn dialed(&self, number: PeerId) -> Option<Address> {
        self.dials.iter().find(|dial| dial.number == number).map(|dial| dial.to)
    }

    fn dial(&mut self, number: PeerId) -> Option<&mut Dial> {
        self.dials.iter_mut().find(|dial| dial.number == number)
    }

    /// Gives up a connection that this process requests.
    fn give_up(&mut self, number: PeerId, problem: String, withdrawn: bool) {
        self.dials.retain(|dial| dial.number != number);
        self.failed.push((number, problem, withdrawn));
    }
}

impl NetPort {
    /// Opens a port over TCP for a process that opens alone. Preferences that cannot be met are added to the warnings.
    pub(crate) fn alone(
        config: &Config,
        key: JobKey,
        origin: &Arc<ProcessOrigin>,
        warnings: &mut Vec<String>,
    ) -> Result<Self, NotOpen> {
        let port = open_tcp(config, config.connections, warnings)?;
        Ok(Self::growing(port, config, (0, key), origin)?)
    }

    /// Makes a port whose peers are connected one by one, for a process with this number. The error is one line.
    pub(super) fn growing(
        OpenedPort { port, place }: OpenedPort<TcpPort>,
        config: &Config,
        (rank, key): (PeerId, JobKey),
        origin: &Arc<ProcessOrigin>,
    ) -> Result<Self, String> {
        let member = WorldMember { rank, incarnation: 0, world: NO_WORLD, key };
        let sizes = channel_sizes(Transport::Tcp, config, member, (1, 0));
        let mut channel = FabricChannel::new(port, &sizes)?;
        channel.channel.grow_with_peers();
        let growing =
            GrowingPeers { stages: Vec::new(), used: 0, dials: Vec::new(), failed: Vec::new(), key };
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

    /// Returns the key of the job, if peers are connected one by one.
    pub(crate) fn job_key(&self) -> Option<JobKey> {
        self.growing.as_ref().map(|growing| growing.key)
    }

    /// Introduces the peer with this number: it may connect, or be connected with, from now on. The error is one line.
    pub(crate) fn introduce(&mut self, number: PeerId, known: Acquaintance) -> Result<(), String> {
        let Some(growing) = &mut self.growing else { return Err("this process has a world".into()) };
        let more = u32::from(growing.stage(number) == NumberStage::Free);
        let used = growing.used + more;
        with!(&mut self.any, it => {
            it.pay(used)?;
            it.make_place(number)?;
            if !it.channel.expect(number, Some(known)) {
                return Err("a former connection with the same number is not closed".into());
            }
        });
        growing.failed.retain(|(failed, ..)| *failed != number);
        growing.dials.retain(|dial| dial.number != number);
        growing.set(number, NumberStage::Open);
        Ok(())
    }

    /// Requests the connection with an introduced peer, whose channel is at this address, within a time limit. If
    /// `is_patient`, the limit applies only while the peer's machine is not reached.
    pub(crate) fn dial(&mut self, number: PeerId, to: &Address, limit: Duration, is_patient: bool) {
        let now = Instant::now();
        if let Some(growing) = &mut self.growing {
            let until = now.checked_add(limit).unwrap_or(now);
            let stage = DialStage::Due(now);
            growing.dials.push(Dial { number, to: *to, until, is_patient, stage, problem: None });
        }
        self.dial_all();
    }

    /// Returns the state of the connection with an introduced peer.
    pub(crate) fn link_stage(&self, number: PeerId) -> LinkStage {
        let Some(growing) = &self.growing else { return LinkStage::Nothing };
        if let Some((_, problem, withdrawn)) = growing.failed.iter().find(|(failed, ..)| *failed == number) {
            return LinkStage::Failed { problem: problem.clone(), withdrawn: *withdrawn };
        }
        let report = with!(&self.any, it => it.channel.report(number));
        match (report.ready, report.rails) {
            (1.., _) => LinkStage::Ready,
            (0, 1..) => LinkStage::Opening,
            (0, 0) if growing.dials.iter().any(|dial| dial.number == number) => LinkStage::Opening,
            (0, 0) => LinkStage::Nothing,
        }
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
            growing.dials.retain(|dial| dial.number != number);
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
            growing.dials.retain(|dial| dial.number != number);
            growing.failed.retain(|(failed, ..)| *failed != number);
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

    /// Processes the events of connections.
    pub(super) fn attend_growing(&mut self, events: &[ChannelEvent]) {
        if self.origin.is_elsewhere() {
            return;
        }
        let Some(growing) = &mut self.growing else { return };
        for event in events {
            match *event {
                ChannelEvent::Up { peer, rail: 0 } => growing.dials.retain(|dial| dial.number != peer),
                ChannelEvent::Failed { peer, rail: 0, error, refusal } => {
                    let Some(dial) = growing.dial(peer) else { continue };
                    let problem = refusal.map_or_else(|| error.to_string(), |refusal| refusal.to_string());
                    if is_passing(error, refusal) {
                        (dial.stage, dial.problem) = (DialStage::Closing, Some(problem));
                    } else {
                        growing.give_up(peer, problem, refusal == Some(ChannelRefusal::NotAMember));
                    }
                }
                ChannelEvent::Closed { peer, rail: 0 } => {
                    if let Some(dial) = growing.dial(peer)
                        && dial.stage == DialStage::Closing
                    {
                        dial.stage = DialStage::Due(Instant::now() + RETRY_AFTER);
                    }
                }
                // Further connections are not awaited (`streams.rs`).
                _ => {}
            }
        }
        self.dial_all();
        for number in 0..self.ranks() {
            match self.growing.as_ref().map(|growing| growing.stage(number)) {
                Some(NumberStage::Closing) => self.vacate(number),
                Some(NumberStage::Leaving(..)) => self.linger(number),
                _ => {}
            }
        }
    }

    /// Sends the requests that are due, and gives up those that are late.
    fn dial_all(&mut self) {
        let (now, begun) = (Instant::now(), self.begun);
        let Some(growing) = self.growing.as_mut().filter(|growing| !growing.dials.is_empty()) else { return };
        let mut ended = Vec::new();
        for dial in &mut growing.dials {
            // Only then the end of a refused request is reported.
            if dial.stage != DialStage::Requested && now >= dial.until {
                let problem = dial.problem.take().unwrap_or_else(|| "there is no place for it".into());
                ended.push((dial.number, problem));
                continue;
            }
            let DialStage::Due(at) = dial.stage else { continue };
            if now < at {
                continue;
            }
            let until =
                if dial.is_patient { Duration::MAX } else { dial.until.saturating_duration_since(begun) };
            match with!(&mut self.any, it => it.channel.connect(dial.number, 0, &dial.to, until)) {
                Ok(()) => dial.stage = DialStage::Requested,
                Err(JoinError::Connect(error)) if !matches!(error, ConnectError::Full { .. }) => {
                    ended.push((dial.number, error.to_string()));
                }
                Err(error) => {
                    (dial.stage, dial.problem) = (DialStage::Due(now + RETRY_AFTER), Some(error.to_string()));
                }
            }
        }
        ended.into_iter().for_each(|(number, problem)| growing.give_up(number, problem, false));
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
