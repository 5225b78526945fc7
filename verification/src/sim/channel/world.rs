//! Channels that exchange packets over a simulated fabric, and the checks of the result.
//!
//! Between two processes, each packet arrives once, whole and in the order sent, or never if one of them is
//! gone. When a world is left alone, everything submitted has arrived, all buffers but the posted ones are
//! back, and each process that lost a peer knows it.

use nemesia_core::job_key::{JobKey, KEY_BYTES};
use nemesia_core::port::PacketPieces;
use std::collections::VecDeque;
use std::time::Duration;

use nemesia_core::port::channel::{
    ChannelEvent, Config, FastPath, Introduction, JoinError, OWN, RendezvousChoice,
};
use nemesia_core::port::memory::{LostError, MemoryPort as _};
use nemesia_core::port::{PacketPort as _, PeerFault, Polled, PortFault};
use nemesia_core::wire::channel::{ChannelRefusal, CloseReason};
use nemesia_core::wire::{Envelope, Kind};

use super::fabric::ChannelFabric;
use super::node::Node;
use super::transfer::WorldAccesses;
use crate::rng::{Rng, mix};
use crate::tally::{Event, Tally};
use crate::trace::Trace;
use crate::violation::{Check, Violation, ensure};

/// The packets of one sender that may wait for credit.
const BACKLOG: usize = 24;
const KINDS: [Kind; 4] = [Kind::Eager, Kind::Rts, Kind::Data, Kind::Active];

/// A packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ChannelPacket {
    envelope: Envelope,
    key: u64,
}

impl ChannelPacket {
    /// Returns a packet without bytes.
    pub(super) const fn report(envelope: Envelope) -> Self {
        Self { envelope, key: 0 }
    }

    fn bytes(&self) -> Vec<u8> {
        (0..self.envelope.total).map(|at| mix(self.key.wrapping_add(at)) as u8).collect()
    }
}

/// The state that one process keeps for another.
#[derive(Debug, Default)]
pub(super) struct ChannelPair {
    /// Packets that are not sent yet.
    pub(super) backlog: VecDeque<ChannelPacket>,
    /// Packets that are sent and not received.
    pub(super) flying: VecDeque<ChannelPacket>,
    /// The units granted to it.
    pub(super) granted: u64,
    /// For each connection that this process requests: whether it has been requested.
    pub(super) asked: Vec<bool>,
    /// How the peer announced to this process that it leaves, until this process has learned of it.
    pub(super) parting: Option<CloseReason>,
    /// Whether the peer has left after that announcement was complete, so that this process has the announcement.
    pub(super) has_left: bool,
    /// Whether this process has announced to the peer that it leaves.
    pub(super) told: bool,
    /// Whether this process has accepted the peer's restarted process, and the number that it has sent with that.
    pub(super) accepted: Option<u64>,
}

/// The present process of a rank.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Life {
    /// The number of processes of the rank before.
    pub(super) incarnation: u64,
    /// The number of processes that were started before, of all ranks.
    pub(super) turn: u64,
    /// Whether it accepts only what it was asked to accept.
    pub(super) holds: bool,
    /// How it leaves, and whether it is gone as soon as it has said so.
    pub(super) leaving: Option<(CloseReason, bool)>,
}

/// The world.
#[derive(Debug)]
pub(crate) struct ChannelWorld<F: ChannelFabric> {
    pub(super) rng: Rng,
    /// Dropped before the fabric: the death of a process is an event of the fabric.
    pub(super) nodes: Vec<Option<Node<F::Port>>>,
    pub(super) fabric: F,
    pub(super) pairs: Vec<Vec<ChannelPair>>,
    /// For each pair: whether the peer died while connected, and the death was not reported yet.
    pub(super) died: Vec<Vec<bool>>,
    pub(super) config: Config,
    window: usize,
    pub(super) deaths: usize,
    restarts: bool,
    /// If a process requests further connections one by one, each when the one before is ready: the number of
    /// opportunities for one request. Otherwise it requests all at once.
    widening: Option<usize>,
    /// Whether restarted processes wait to be accepted.
    pub(super) holds: bool,
    /// For each rank: its process, in the order of starts.
    pub(super) lives: Vec<Life>,
    /// The number of processes that were started.
    starts: u64,
    pub(super) now: Duration,
    pub(crate) tally: Tally,
    pub(crate) trace: Trace,
    /// Holds memory that the ports use, and is dropped after them.
    pub(super) accesses: WorldAccesses,
}

impl<F: ChannelFabric> ChannelWorld<F> {
    /// Makes a world without connections.
    pub(crate) fn new(seed: u64, stream: u64, trace: Trace) -> Result<Self, Violation> {
        let mut rng = Rng::new(seed, stream ^ 0xc4a7_7e15);
        let fabric = F::draw(&mut rng);
        let (ranks, rails) = (2 + rng.below(4), 1 + rng.below(3) as u32);
        // With as few slots as possible the rings wrap around and overflow all the time.
        let fast = FastPath { rings: rng.pick(&[0, 1, 2, 4]), slots: rng.pick(&[2, 4, 8]) };
        let config = Config {
            rank: 0,
            incarnation: 0,
            world: rng.next(),
            key: JobKey::from_bytes([rng.next() as u8; KEY_BYTES]),
            seed: [0; KEY_BYTES],
            packet_bytes: rng.pick(&F::PACKET_BYTES),
            rails,
            most_receives: rng.pick(&[3, 4, 6, 20]),
            patience: Duration::from_secs(1),
            rendezvous: RendezvousChoice::Auto,
            fast,
        };
        let pair = || ChannelPair { asked: vec![false; rails as usize], ..ChannelPair::default() };
        let mut world = Self {
            nodes: (0..ranks).map(|_| None).collect(),
            fabric,
            pairs: (0..ranks).map(|_| (0..ranks).map(|_| pair()).collect()).collect(),
            died: vec![vec![false; ranks]; ranks],
            config,
            window: rng.pick(&[32, 64]),
            deaths: rng.below(6),
            restarts: rng.one_in(2),
            widening: rng.pick(&[None, None, Some(1), Some(10)]),
            holds: rng.one_in(2),
            lives: vec![Life::default(); ranks],
            starts: 0,
            now: Duration::ZERO,
            tally: Tally::default(),
            trace,
            rng,
            accesses: WorldAccesses::default(),
        };
        (0..ranks).try_for_each(|rank| world.start(rank))?;
        Ok(world)
    }

    pub(super) fn ranks(&self) -> usize {
        self.nodes.len()
    }

    /// Starts a process with the memory that its connections need. Further memory comes later.
    fn start(&mut self, rank: usize) -> Check {
        let incarnation = self.lives[rank].incarnation;
        let mut seed = [0; KEY_BYTES];
        seed[..8].copy_from_slice(&self.rng.next().to_le_bytes());
        let config = Config { rank: rank as u32, incarnation, seed, ..self.config };
        let ranks = self.ranks() as u32;
        let tokens = (0..ranks).map(|_| self.rng.next());
        let port = self.fabric.port().map_err(|error| Violation(format!("no port: {error}")))?;
        let opened = Node::new(port, config, tokens, self.window);
        let mut node = opened.map_err(|error| Violation(format!("no channel: {error}")))?;
        let needed = u64::from((ranks - 1) * config.rails * OWN) + self.rng.below(4) as u64;
        while !node.lend(needed).map_err(Violation)? {
            self.tally.count(Event::NotRegistered);
        }
        let holds = self.holds && incarnation > 0;
        if holds {
            node.channel.hold_requests();
        }
        self.lives[rank] = Life { incarnation, turn: self.starts, holds, leaving: None };
        self.starts += 1;
        self.nodes[rank] = Some(node);
        Ok(())
    }

    /// Lets one thing happen.
    pub(crate) fn step(&mut self) -> Check {
        let rank = self.rng.below(self.ranks());
        match self.rng.below(28) {
            0..8 => self.submit(rank),
            8..15 => self.poll(rank)?,
            15 => self.dial(rank)?,
            16 => self.events(rank)?,
            17 => self.grant(rank),
            18 if self.rng.one_in(8) => self.lend(rank)?,
            19 if self.deaths > 0 && self.nodes[rank].is_some() && self.rng.one_in(80) => self.kill(rank),
            19 if self.rng.one_in(40) => self.begin_to_leave(rank),
            24 | 26 => self.begin_transfer(rank)?,
            25 => self.go_on_with_transfers(rank)?,
            21 => self.accept(rank)?,
            22 => self.leave(rank)?,
            23 if self.rng.one_in(6) => self.quiet(rank)?,
            27 => self.give_up(rank),
            20 if self.restarts && self.nodes[rank].is_none() && self.rng.one_in(20) => self.start(rank)?,
            _ => {
                self.now = self.fabric.pass();
                return Ok(());
            }
        }
        Ok(())
    }

    /// Submits one more packet, and sends as many waiting packets as possible.
    fn submit(&mut self, rank: usize) {
        let to = self.rng.below(self.ranks());
        if to == rank || self.nodes[rank].is_none() || self.lives[rank].leaving.is_some() {
            return;
        }
        let most = self.config.packet_bytes as usize + 1;
        let short = if self.rng.one_in(2) { 40 } else { most };
        let mut last: Option<Envelope> = None;
        for _ in 0..1 + self.rng.below(4) {
            if self.pairs[rank][to].backlog.len() < BACKLOG {
                let total = self.rng.below(short) as u64;
                let (context, tag, key) = (self.rng.below(5) as u16, self.rng.next(), self.rng.next());
                let envelope = Envelope { kind: self.rng.pick(&KINDS), context, tag, total };
                // A packet that differs from the one before only in its content may have a cached header.
                let like = last.filter(|_| key & 3 != 0).map(|like| Envelope { total, ..like });
                let envelope = like.unwrap_or(envelope);
                last = Some(envelope);
                self.pairs[rank][to].backlog.push_back(ChannelPacket { envelope, key });
            }
        }
        self.push(rank, to);
    }

    pub(super) fn push(&mut self, rank: usize, to: usize) {
        let Some(node) = &mut self.nodes[rank] else { return };
        let pair = &mut self.pairs[rank][to];
        while let Some(packet) = pair.backlog.front() {
            let bytes = packet.bytes();
            let (head, body) = bytes.split_at(bytes.len() / 3);
            let sent = if self.rng.one_in(2) {
                node.channel.send(to as u32, &packet.envelope, PacketPieces::Whole(&bytes))
            } else {
                node.channel.send(to as u32, &packet.envelope, PacketPieces::Parts(head, body))
            };
            // The next poll reports a fault as well.
            if sent != Ok(true) {
                self.tally.count(Event::NoCredit);
                return;
            }
            self.tally.count(Event::ChannelPacket);
            self.tally.add_to(Event::Placed, F::IS_PLACEMENT.into());
            self.trace.note(self.now.as_micros() as u64, || format!("{rank} sends {packet:?} to {to}"));
            pair.flying.extend(pair.backlog.pop_front());
        }
    }

    /// Polls until nothing more arrives.
    fn poll(&mut self, rank: usize) -> Check {
        for _ in 0..1 + self.rng.below(3) {
            if !self.poll_once(rank)? {
                break;
            }
        }
        Ok(())
    }

    /// Polls for one packet or one fault. Returns false if there is nothing.
    pub(super) fn poll_once(&mut self, rank: usize) -> Result<bool, Violation> {
        let ranks = self.ranks();
        let only = self.rng.one_in(8).then(|| self.rng.below(ranks) as u32);
        let Some(node) = &mut self.nodes[rank] else { return Ok(false) };
        let polled = match only {
            Some(peer) => node.channel.poll_peer(peer),
            None => node.channel.poll(),
        };
        let early = (0..ranks as u32).any(|peer| node.channel.report(peer).waiting > 0);
        if early {
            self.tally.count(Event::Early);
        }
        match polled {
            Polled::Idle => Ok(false),
            Polled::Packet(arrival) => {
                let from = arrival.peer as usize;
                let mut bytes = vec![0; arrival.len];
                let at = self.rng.below(arrival.len + 1);
                let (head, body) = bytes.split_at_mut(at);
                assert!(node.channel.read(&arrival, 0, head));
                assert!(node.channel.read(&arrival, at, body));
                if !self.rng.one_in(20) {
                    // An arrival that is not released is given up by the next poll.
                    node.channel.release(arrival);
                }
                ensure!(
                    only.is_none_or(|only| only == arrival.peer),
                    "a packet of {from} instead of {only:?}"
                );
                self.trace.note(self.now.as_micros() as u64, || format!("{rank} has a packet of {from}"));
                if self.has_parted(rank, from) {
                    return Ok(true);
                }
                let is_report = arrival.len == 0 && self.is_report(&arrival.envelope);
                if is_report && self.take_report(rank, from, &arrival.envelope)? {
                    return Ok(true);
                }
                let expected = self.pairs[from][rank].flying.pop_front();
                let Some(packet) = expected else {
                    return Err(Violation(format!("rank {rank} has a packet that {from} never sent")));
                };
                ensure!(
                    packet.envelope == arrival.envelope && packet.bytes() == bytes,
                    "rank {rank} has {arrival:?} from {from} instead of {packet:?}"
                );
                Ok(true)
            }
            Polled::Fault(fault) => {
                let introduction = node.channel.introduction(fault.peer);
                self.trace.note(self.now.as_micros() as u64, || format!("reported to {rank}: {fault}"));
                let from = fault.peer as usize;
                self.check_fault(rank, fault, introduction)?;
                self.release(rank, from);
                Ok(true)
            }
        }
    }

    /// Checks that a peer has really ended. `introduction` is what its process had said.
    fn check_fault(&mut self, rank: usize, fault: PeerFault, introduction: Option<Introduction>) -> Check {
        let from = fault.peer as usize;
        if let PortFault::Left(reason) = fault.fault {
            return self.learns_of_leave(rank, from, reason);
        }
        if self.has_parted(rank, from) || self.has_lied(from, rank, fault.fault) {
            return Ok(());
        }
        // Work of this process that was under way may fail before.
        let pair = &self.pairs[rank][from];
        let is_late = matches!(fault.fault, PortFault::Lost(LostError::Closed | LostError::Unreachable))
            && pair.parting.is_some()
            && pair.has_left;
        ensure!(!is_late, "rank {rank} has not learned that {from} leaves: {fault}");
        let is_end = matches!(fault.fault, PortFault::Lost(_) | PortFault::Work(_));
        ensure!(is_end, "rank {rank} accuses {from}: {fault}");
        // The process may have died while its request was on its way.
        let present = self.lives[from].incarnation;
        let was_former = introduction.is_some_and(|said| said.incarnation < present);
        let has_died = self.died[rank][from] || was_former;
        ensure!(has_died, "rank {rank} has lost rank {from}, which lives: {fault}");
        self.tally.count(Event::ChannelLost);
        Ok(())
    }

    pub(super) fn release(&mut self, rank: usize, from: usize) {
        if let Some(node) = &mut self.nodes[rank] {
            node.channel.close(from as u32);
        }
        self.end_transfers(rank, from);
        self.died[rank][from] = false;
        if !self.died[from][rank] {
            // Otherwise that process lives, and may still get what was sent.
            self.pairs[rank][from].flying.clear();
        }
        self.pairs[from][rank].flying.clear();
        self.pairs[rank][from].granted = 0;
        self.pairs[rank][from].parting = None;
        self.pairs[rank][from].accepted = None;
    }

    /// Disconnects a peer that has requested the first connection, and perhaps a further one that is still on its way.
    fn give_up(&mut self, rank: usize) {
        let peer = self.rng.below(self.ranks());
        let may = self.widening.is_some() && !self.holds && peer > rank && self.is_connected(rank, peer);
        let Some(node) = self.nodes[rank].as_ref().filter(|_| may) else { return };
        if node.channel.report(peer as u32).ready < self.config.rails {
            self.trace.note(self.now.as_micros() as u64, || format!("rank {rank} gives {peer} up"));
            self.tally.count(Event::ChannelGivenUp);
            self.suspect(rank, peer);
            self.release(rank, peer);
        }
    }

    /// Requests missing connections: the higher rank requests (paper 3, section 3.1). If restarted processes wait to be
    /// accepted, the process that was started later requests.
    pub(super) fn dial(&mut self, rank: usize) -> Check {
        for to in 0..self.ranks() {
            let (mine, other) = (self.lives[rank], self.lives[to]);
            let is_mine = if self.holds { mine.turn > other.turn } else { rank > to };
            if !is_mine || mine.leaving.is_some() || other.leaving.is_some() {
                continue;
            }
            let Some(address) = self.nodes[to].as_ref().and_then(|node| node.channel.port().address()) else {
                continue;
            };
            let Some(node) = &mut self.nodes[rank] else { return Ok(()) };
            for (rail, asked) in (0..).zip(&mut self.pairs[rank][to].asked) {
                let widening = self.widening.filter(|_| rail > 0);
                // A further connection is requested as long as its process does not know that the first one has ended.
                if *asked || self.died[rank][to] && widening.is_none() {
                    continue;
                }
                if let Some(opportunities) = widening
                    && (node.channel.report(to as u32).ready < rail || !self.rng.one_in(opportunities))
                {
                    break;
                }
                match node.channel.connect(to as u32, rail, &address, Duration::MAX) {
                    Ok(()) => *asked = true,
                    Err(JoinError::Exists | JoinError::Buffers { .. }) => {}
                    Err(error) => return Err(Violation(format!("rank {rank} can't connect: {error}"))),
                }
            }
        }
        Ok(())
    }

    pub(super) fn events(&mut self, rank: usize) -> Check {
        let now = self.now;
        let mut ups = Vec::new();
        let Some(node) = &mut self.nodes[rank] else { return Ok(()) };
        while let Some(event) = node.channel.poll_event(now) {
            self.trace.note(now.as_micros() as u64, || format!("rank {rank}: {event:?}"));
            match event {
                ChannelEvent::Up { peer, rail } => {
                    self.tally.count(Event::ChannelUp);
                    let rails = node.channel.report(peer).rails;
                    ensure!(
                        self.widening.is_none() || rails > rail,
                        "rank {rank} has rail {rail} of {peer}, and only {rails} rails, which were requested in turn"
                    );
                    let introduction = node.channel.introduction(peer);
                    ups.push((peer as usize, introduction));
                }
                ChannelEvent::Called { .. } => self.tally.count(Event::ChannelHeld),
                ChannelEvent::Closed { peer, rail } => {
                    self.pairs[rank][peer as usize].asked[rail as usize] = false;
                    let gone = node.channel.report(peer).rails == 0;
                    if gone && std::mem::take(&mut self.died[rank][peer as usize]) {
                        // The process died before it was connected.
                        self.pairs[rank][peer as usize].flying.clear();
                        self.pairs[rank][peer as usize].parting = None;
                        self.pairs[peer as usize][rank].flying.clear();
                    }
                }
                // The other side has not noticed yet that the former process ended, or has ended itself.
                ChannelEvent::Failed { .. } => self.tally.count(Event::ChannelRefused),
                ChannelEvent::Refused { claimed, refusal } => {
                    // A restarted process may request before the peer has noticed the end of the former one.
                    let may = matches!(
                        refusal,
                        ChannelRefusal::Exists
                            | ChannelRefusal::Buffers
                            | ChannelRefusal::Claimed
                            | ChannelRefusal::NoFirst
                    );
                    ensure!(may, "rank {rank} refuses {claimed:?}: {refusal}");
                }
            }
        }
        ups.into_iter()
            .try_for_each(|(peer, introduction)| self.check_introduction(rank, peer, introduction))?;
        self.hold_when_complete(rank);
        Ok(())
    }

    fn grant(&mut self, rank: usize) {
        let to = self.rng.below(self.ranks());
        if let Some(node) = self.nodes[rank].as_mut().filter(|_| to != rank) {
            let pair = &mut self.pairs[rank][to];
            pair.granted += self.rng.below(100) as u64;
            node.channel.grant(to as u32, pair.granted);
        }
    }

    pub(super) fn lend(&mut self, rank: usize) -> Check {
        let more = 1 + self.rng.below(12) as u64;
        if let Some(node) = self.nodes[rank].as_mut().filter(|node| node.channel.wants_memory()) {
            let done = node.lend(more).map_err(Violation)?;
            self.tally.count(if done { Event::Lent } else { Event::NotRegistered });
        }
        Ok(())
    }

    /// Ends a process at a random point of its work.
    fn kill(&mut self, rank: usize) {
        self.trace.note(self.now.as_micros() as u64, || format!("rank {rank} dies"));
        self.deaths -= 1;
        self.tally.count(Event::ChannelDeath);
        self.end(rank);
    }

    /// Ends a process.
    pub(super) fn end(&mut self, rank: usize) {
        let Some(node) = self.nodes[rank].take() else { return };
        self.lives[rank].leaving = None;
        self.lives[rank].incarnation += 1;
        for other in (0..self.nodes.len()).filter(|other| *other != rank) {
            let peer = rank as u32;
            let report = self.nodes[other].as_ref().map(|node| node.channel.report(peer));
            // Without a connection or a peer, nothing can be lost.
            if report.is_some_and(|report| report.rails > 0) {
                self.died[other][rank] = true;
            } else {
                self.pairs[rank][other].flying.clear();
                self.pairs[other][rank].flying.clear();
            }
        }
        for pair in &mut self.pairs[rank] {
            (pair.granted, pair.asked) = (0, vec![false; self.config.rails as usize]);
            pair.backlog.clear();
            (pair.parting, pair.accepted, pair.told) = (None, None, false);
        }
        self.pairs.iter_mut().for_each(|of| of[rank].accepted = None);
        self.died[rank].fill(false);
        self.fold(&node);
        drop(node);
        self.forget_transfers(rank);
    }

    /// Prepares a process for a sleep: when it may sleep, no peer may write to it without waking it.
    fn quiet(&mut self, rank: usize) -> Check {
        let Some(node) = &mut self.nodes[rank] else { return Ok(()) };
        if !node.channel.quiet_rings() {
            return Ok(());
        }
        for (peer, other) in self.nodes.iter().enumerate() {
            let (Some(here), Some(there)) = (&self.nodes[rank], other) else { continue };
            let (here, there) = (here.channel.report(peer as u32), there.channel.report(rank as u32));
            // Otherwise one of them ends the connection, and both will know it without any packet.
            let is_whole = here.ready > 0 && there.ready > 0;
            let is_lost = self.died[rank][peer] || self.died[peer][rank];
            ensure!(
                !(is_whole && !is_lost && there.writes_ring),
                "rank {rank} may sleep although rank {peer} writes into its ring"
            );
        }
        self.tally.count(Event::RingQuiet);
        Ok(())
    }

    /// Adds the counts of a channel to the tally.
    pub(super) fn fold(&mut self, node: &Node<F::Port>) {
        for peer in 0..self.nodes.len() as u32 {
            let report = node.channel.report(peer);
            self.tally.add_to(Event::Update, report.updates);
            self.tally.add_to(Event::Grown, report.grown);
            self.tally.add_to(Event::Shrunk, report.shrunk);
            self.tally.add_to(Event::RingWritten, report.written);
            self.tally.add_to(Event::RingCached, report.cached);
            self.tally.add_to(Event::RingFull, report.overflows);
        }
    }
}
