//! The state of a peer in a channel, and of each connection to it.
#![forbid(unsafe_code)]

use core::borrow::BorrowMut;

use super::buffers::BufferQueue;
use super::call::{Acquaintance, OutgoingCall, RequestProof};
use super::fast::{FastPeer, RingStage};
use super::{OWN, SENDS};
use crate::counters::{Count, TrafficCounters};
use crate::flow::posted::{Credits, FIRST, LEAST};
use crate::order::ReorderWindow;
use crate::port::memory::{Connection, Origin, WorkError};
use crate::port::{PeerId, PortFault};
use crate::slab::NONE;
use crate::wire::hello::{Hello, HelloContent};

/// Most connections to one peer.
pub const MOST_RAILS: usize = 4;

/// The state of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChannelStage {
    /// The connection is not ready yet.
    Opening,
    Ready,
    /// The connection was lost; packets that arrived before must still be delivered.
    Lost,
    /// The peer has challenged this process. The connection is closed, and will be requested again with the proof.
    Challenged,
    /// This process has closed the connection; completions may be outstanding.
    Closing,
}

impl ChannelStage {
    /// Returns whether nothing that arrives on the connection counts any more.
    pub(super) const fn is_closing(self) -> bool {
        matches!(self, Self::Closing | Self::Challenged)
    }
}

/// A connection.
#[derive(Debug)]
pub(super) struct Rail {
    pub(super) connection: Connection,
    pub(super) stage: ChannelStage,
    pub(super) credits: Credits,
    /// The request of this process until it is accepted; `None` if the peer requested the connection.
    pub(super) call: Option<OutgoingCall>,
    /// Whether this process requested the connection.
    pub(super) active: bool,
    /// Whether a packet has arrived on the connection.
    pub(super) heard: bool,
    /// Whether a packet has arrived since the last check for unused buffers.
    pub(super) used: bool,
    /// Whether the other side waits for this side to send first.
    pub(super) hello: bool,
    /// Posted receives that have not completed.
    pub(super) receiving: u32,
    /// Buffers that are being sent.
    pub(super) sending: u32,
    /// Posted packets and accesses that complete and have not.
    pub(super) outstanding: u32,
    /// Packets posted without a completion since the last packet with one.
    quiet: u32,
    /// The accesses to the peer's memory among them.
    pub(super) accesses: u32,
    /// Packets that arrived before the connection was ready.
    pub(super) early: BufferQueue,
}

impl Rail {
    pub(super) const fn new(connection: Connection, receives: u32, call: Option<OutgoingCall>) -> Self {
        Self {
            connection,
            stage: ChannelStage::Opening,
            credits: Credits::new(receives),
            active: call.is_some(),
            call,
            heard: false,
            used: true,
            hello: false,
            receiving: 0,
            sending: 0,
            outstanding: 0,
            quiet: 0,
            accesses: 0,
            early: BufferQueue::new(),
        }
    }

    /// Returns the number of free buffers that are reserved for this connection.
    pub(super) fn kept(&self) -> u32 {
        OWN - self.credits.size().min(LEAST) - self.sending.min(SENDS)
    }

    /// Returns whether the next inline packet needs no completion: of `depth` work requests in a row, four complete.
    pub(super) const fn may_be_quiet(&self, depth: u32) -> bool {
        self.quiet + 1 < depth / 4
    }

    /// Records a posted packet.
    pub(super) const fn was_posted(&mut self, is_quiet: bool) {
        self.outstanding += !is_quiet as u32;
        self.quiet = if is_quiet { self.quiet + 1 } else { 0 };
    }

    /// Returns whether the state of the connection allows sending.
    pub(super) fn may_speak(&self, active_first: bool) -> bool {
        self.stage == ChannelStage::Ready && (self.active || self.heard || !active_first)
    }
}

/// The state of the connections with a peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The first connection, in the memory port; `None` if there is none.
    pub connection: Option<Connection>,
    /// Number of connections in any state.
    pub rails: u32,
    /// Number of ready connections.
    pub ready: u32,
    /// Receives on all connections that are posted, or that hold an unreleased packet.
    pub receives: u32,
    /// Packets that this process may send, reserves included.
    pub credits: u32,
    /// Packets that wait for earlier ones from other rails.
    pub waiting: u32,
    /// Packets sent without content: updates, recalls, returned credits, and the first packet of the side that
    /// sends first.
    pub updates: u64,
    /// Number of times that receives were added.
    pub grown: u64,
    /// Number of times that receives were recalled.
    pub shrunk: u64,
    /// Whether this process may write packets into a ring of the peer.
    pub writes_ring: bool,
    /// Whether the peer may write packets into a ring of this process, or is about to learn that it may.
    pub has_ring: bool,
    /// Packets in the peer's ring that the peer has not reported as taken.
    pub in_ring: u32,
    /// Packets written into the peer's ring.
    pub written: u64,
    /// Of them, those with a cached header ([`ring`](crate::wire::ring)).
    pub cached: u64,
    /// Packets taken out of the ring that the peer writes.
    pub taken: u64,
    /// Small packets that were sent because the peer's ring was full.
    pub overflows: u64,
}

/// What the present process of a peer has said about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Introduction {
    /// Number of previous starts of the rank.
    pub incarnation: u64,
    /// The number of the application that came with its acceptance; 0 if it has requested the connection.
    pub agreements: u64,
}

/// A restarted process whose requests are held.
#[derive(Clone, Copy, Debug)]
pub(super) struct Caller {
    /// Its first request.
    pub(super) hello: Hello,
    /// Its requests by rail, with their proofs.
    pub(super) requests: [Option<(Connection, RequestProof)>; MOST_RAILS],
}

/// A peer.
#[derive(Debug)]
pub struct ChannelPeer<W: BorrowMut<[Option<u32>]>> {
    pub(super) rails: [Option<Rail>; MOST_RAILS],
    /// The token that this process presents to the peer on each connection, and the token that the peer
    /// presented on the first.
    pub(super) token: u64,
    shown: Option<u64>,
    /// What the process with that token has said.
    introduction: Option<Introduction>,
    /// The number of the application that goes with each acceptance of its connections.
    pub(super) agreements: u64,
    /// The process that waits to be accepted.
    pub(super) caller: Option<Caller>,
    /// What the caller has agreed upon with the peer; `None` in a world, where ranks say who it is.
    pub(super) expected: Option<Acquaintance>,
    /// The number of connections over which accesses go.
    pub(super) access_rails: u32,
    /// The required origin of the peer.
    pub(super) origin: Option<Origin>,
    /// Packets that arrived too early.
    pub(super) window: ReorderWindow<u32, W>,
    /// Packets that are next in order.
    ready: BufferQueue,
    /// Sequence number of the next packet to the peer.
    pub(super) next: u32,
    /// The rail that is next in rotation.
    pub(super) turn: usize,
    /// Credit in units of the store: granted to the peer, last reported to the peer, and granted by the peer.
    units: u64,
    units_reported: u64,
    pub(super) granted: u64,
    /// The fault of the peer until it is reported. If the peer violated the protocol, its later packets are
    /// ignored.
    fault: Option<PortFault>,
    reported: bool,
    violated: bool,
    /// The peer's place in the list of peers that have packets.
    queued: bool,
    after: PeerId,
    /// Counts of packets with content.
    pub(super) sent: u64,
    pub(super) received: u64,
    pub(super) buffered: Count,
    pub(super) holds: u64,
    pub(super) held: bool,
    /// Whether the next packet with content had to wait for a receive of the peer.
    pub(super) is_starved: bool,
    pub(super) updates: u64,
    pub(super) grown: u64,
    pub(super) shrunk: u64,
    pub(super) fast: FastPeer,
}

impl<W: BorrowMut<[Option<u32>]>> ChannelPeer<W> {
    /// Returns a peer without connections. `token` is a random number that only this peer receives, different
    /// for each peer. It proves that all connections belong to one process. `None` unless the number of
    /// places of the window is a power of two.
    pub fn new(window: W, token: u64) -> Option<Self> {
        Some(Self {
            rails: [const { None }; MOST_RAILS],
            token,
            shown: None,
            introduction: None,
            agreements: 0,
            caller: None,
            expected: None,
            access_rails: 0,
            origin: None,
            window: ReorderWindow::new(window, u32::BITS, FIRST.into())?,
            ready: BufferQueue::new(),
            next: FIRST,
            turn: 0,
            units: 0,
            units_reported: 0,
            granted: 0,
            fault: None,
            reported: false,
            violated: false,
            queued: false,
            after: NONE,
            sent: 0,
            received: 0,
            buffered: Count::default(),
            holds: 0,
            held: false,
            is_starved: false,
            updates: 0,
            grown: 0,
            shrunk: 0,
            fast: FastPeer::new(),
        })
    }

    pub(super) fn window_size(&self) -> usize {
        self.window.size()
    }

    pub(super) const fn ready_mut(&mut self) -> &mut BufferQueue {
        &mut self.ready
    }

    pub(super) fn rail(&mut self, rail: u32) -> Option<&mut Rail> {
        self.rails.get_mut(rail as usize)?.as_mut()
    }

    /// Returns whether there is no connection, not even a partly closed one.
    pub(super) fn is_blank(&self) -> bool {
        self.rails.iter().all(Option::is_none) && self.fault.is_none()
    }

    /// Returns whether the existing connections allow another one.
    pub(super) fn takes_rails(&self) -> bool {
        use ChannelStage::{Challenged, Opening, Ready};
        let open = |rail: &Rail| matches!(rail.stage, Opening | Ready | Challenged);
        self.fault.is_none() && self.rails.iter().flatten().all(open)
    }

    /// Returns whether a process with this token may be the one that holds the rank, if one does.
    pub(super) fn is_holder(&self, token: u64) -> bool {
        self.is_blank() || self.shown.is_none_or(|shown| shown == token)
    }

    /// Returns whether this process connects actively to the peer; the peer then may not connect to this
    /// process.
    pub(super) fn is_asked(&self) -> bool {
        self.rails.iter().flatten().any(|rail| rail.active)
    }

    /// Returns whether a process has shown this token and holds the rank.
    pub(super) fn is_held_by(&self, token: u64) -> bool {
        !self.is_blank() && self.shown == Some(token)
    }

    /// Returns whether rail 0 exists, in any state.
    pub(super) fn has_first(&self) -> bool {
        self.rails.first().is_some_and(Option::is_some)
    }

    /// Returns whether the first connection of the process with this token is held.
    pub(super) fn holds_first(&self, token: u64) -> bool {
        self.caller
            .is_some_and(|it| it.hello.token == token && it.requests.first().is_some_and(Option::is_some))
    }

    /// Records the process that holds the rank.
    pub(super) fn show(&mut self, hello: &Hello) {
        if self.shown.is_none() {
            let Hello { token, incarnation, content, .. } = *hello;
            let agreements =
                if let HelloContent::Answer { agreements, .. } = content { agreements } else { 0 };
            self.shown = Some(token);
            self.introduction = Some(Introduction { incarnation: incarnation.into(), agreements });
        }
    }

    /// Records the token that the process presents on its further connections.
    pub(super) const fn show_token(&mut self, token: Option<u64>) {
        if self.shown.is_none() {
            self.shown = token;
        }
    }

    /// Returns what the process that holds the rank has said.
    pub(super) const fn introduction(&self) -> Option<Introduction> {
        self.introduction
    }

    /// Resets the state for the first connection of a new process of the rank.
    pub(super) fn restart(&mut self) {
        self.window.restart(FIRST.into());
        (self.shown, self.introduction, self.agreements) = (None, None, 0);
        (self.next, self.turn) = (FIRST, 0);
        (self.units_reported, self.granted) = (0, 0);
        (self.held, self.is_starved) = (false, false);
        self.access_rails = 0;
        // The counters of a peer concern its present process.
        (self.sent, self.received, self.buffered, self.holds) = (0, 0, Count::default(), 0);
        self.fast = FastPeer::new();
    }

    /// Records that the peer has failed. Returns `true` if this is new.
    pub(super) fn fail(&mut self, fault: PortFault) -> bool {
        if self.rails.iter().all(Option::is_none) {
            return false;
        }
        self.violated |= !matches!(fault, PortFault::Lost(_) | PortFault::Work(_) | PortFault::Left(_));
        let wake_reason = self.fault.is_none();
        if !self.reported {
            match (self.fault, fault) {
                // The new fault is more specific than the flush of all requests, or than the end of a connection.
                (None | Some(PortFault::Work(WorkError::Flushed)), _)
                | (Some(PortFault::Lost(_) | PortFault::Work(_)), PortFault::Left(_)) => {
                    self.fault = Some(fault);
                }
                _ => {}
            }
        }
        wake_reason
    }

    pub(super) const fn has_failed(&self) -> bool {
        self.fault.is_some()
    }

    /// Returns whether packets of the peer must be ignored: it violated the protocol, or has sent its last packet.
    pub(super) const fn is_ignored(&self) -> bool {
        self.violated || self.has_left()
    }

    /// Returns whether the peer has announced that it leaves.
    pub(super) const fn has_left(&self) -> bool {
        matches!(self.fault, Some(PortFault::Left(_)))
    }

    /// Returns the fault once, after all earlier packets were delivered. A flush of requests is no reason: the event of
    /// the loss follows, and has one.
    pub(super) fn tell(&mut self) -> Option<PortFault> {
        if matches!(self.fault, Some(PortFault::Work(WorkError::Flushed))) {
            return None;
        }
        let due = |rail: &Rail| rail.stage != ChannelStage::Lost || rail.receiving == 0;
        if self.reported || !self.ready.is_empty() || !(self.violated || self.rails.iter().flatten().all(due))
        {
            return None;
        }
        self.reported = self.fault.is_some();
        self.fault
    }

    /// Resets the state after the peer was released. Returns `true` if its fault was never reported.
    pub(super) fn forget(&mut self) -> bool {
        let pending = self.fault.is_some() && !self.reported;
        (self.fault, self.reported, self.violated) = (None, false, false);
        (self.units, self.units_reported, self.granted) = (0, 0, 0);
        pending
    }

    pub(super) fn grant(&mut self, units: u64) {
        self.units = self.units.max(units);
    }

    /// Returns the total credit granted, and whether it must be reported to the peer.
    pub(super) const fn promise(&self) -> (u64, bool) {
        (self.units, self.units != self.units_reported)
    }

    pub(super) const fn reported_units(&mut self, units: u64) {
        self.units_reported = units;
    }

    pub(super) fn traffic(&self) -> TrafficCounters {
        TrafficCounters {
            sent: self.sent,
            received: self.received,
            cells_sent: self.buffered,
            cells_exhausted: self.holds,
            rings_sent: self.fast.sent,
            rings_received: self.fast.received,
            rings_full: self.fast.overflows,
            ..TrafficCounters::default()
        }
    }

    pub(super) fn report(&self) -> Report {
        let mut report = Report {
            connection: self.rails.first().and_then(Option::as_ref).map(|rail| rail.connection),
            waiting: self.window.waiting() as u32,
            updates: self.updates,
            grown: self.grown,
            shrunk: self.shrunk,
            writes_ring: self.fast.writes(),
            has_ring: self.fast.stage() != RingStage::Stopped,
            in_ring: self.fast.in_flight(),
            written: self.fast.sent.count,
            cached: self.fast.cached,
            taken: self.fast.received.count,
            overflows: self.fast.overflows,
            ..Report::default()
        };
        for rail in self.rails.iter().flatten() {
            report.rails += 1;
            report.ready += u32::from(rail.stage == ChannelStage::Ready);
            report.receives += rail.credits.size();
            report.credits += rail.credits.left();
        }
        report
    }
}

/// The peers that have packets to deliver, in rotation.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReadyPeers {
    first: PeerId,
    last: PeerId,
}

impl ReadyPeers {
    pub(super) const fn new() -> Self {
        Self { first: NONE, last: NONE }
    }

    /// Appends a peer that has a packet.
    pub(super) fn join<W: BorrowMut<[Option<u32>]>>(&mut self, peers: &mut [ChannelPeer<W>], peer: PeerId) {
        let Some(it) = peers.get_mut(peer as usize) else { return };
        if core::mem::replace(&mut it.queued, true) {
            return;
        }
        it.after = NONE;
        match peers.get_mut(self.last as usize) {
            Some(last) => last.after = peer,
            None => self.first = peer,
        }
        self.last = peer;
    }

    /// Returns the peer that is next. Peers without packets are removed.
    pub(super) fn first<W: BorrowMut<[Option<u32>]>>(
        &mut self,
        peers: &mut [ChannelPeer<W>],
    ) -> Option<PeerId> {
        loop {
            let peer = self.first;
            if !peers.get(peer as usize)?.ready.is_empty() {
                return Some(peer);
            }
            self.leave(peers);
        }
    }

    /// Removes the first peer.
    fn leave<W: BorrowMut<[Option<u32>]>>(&mut self, peers: &mut [ChannelPeer<W>]) {
        if let Some(it) = peers.get_mut(self.first as usize) {
            it.queued = false;
            self.first = it.after;
            if self.first == NONE {
                self.last = NONE;
            }
        }
    }

    /// Moves a peer that was served behind the others.
    pub(super) fn served<W: BorrowMut<[Option<u32>]>>(&mut self, peers: &mut [ChannelPeer<W>], peer: PeerId) {
        if self.first == peer {
            self.leave(peers);
            if peers.get(peer as usize).is_some_and(|it| !it.ready.is_empty()) {
                self.join(peers, peer);
            }
        }
    }
}
