//! What a channel knows of a peer, and of each connection to it.
#![forbid(unsafe_code)]

use core::borrow::BorrowMut;

use super::buffers::Queue;
use super::{OWN, SENDS};
use crate::counters::{Count, Traffic};
use crate::flow::posted::{Credits, FIRST, LEAST};
use crate::order::Window;
use crate::port::memory::{Connection, Origin, WorkError};
use crate::port::{PeerId, PortFault};
use crate::slab::NONE;

/// Most connections to one peer.
pub const MOST_RAILS: usize = 4;

/// Where a connection stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Not yet ready.
    Opening,
    Ready,
    /// It has ended by itself; what had come is still to be handed on.
    Lost,
    /// We have closed it; completions may be missing.
    Closing,
}

/// A connection.
#[derive(Debug)]
pub(super) struct Rail {
    pub(super) connection: Connection,
    pub(super) stage: Stage,
    pub(super) credits: Credits,
    /// We asked for it.
    pub(super) active: bool,
    /// Something has come on it.
    pub(super) heard: bool,
    /// Something has come since we last looked for buffers that are not used.
    pub(super) used: bool,
    /// The other side waits for us to speak first.
    pub(super) hello: bool,
    /// Receives posted whose completions have not come.
    pub(super) receiving: u32,
    /// Buffers that are being sent.
    pub(super) sending: u32,
    /// Packets that came before it was ready.
    pub(super) early: Queue,
}

impl Rail {
    pub(super) const fn new(connection: Connection, receives: u32, active: bool) -> Self {
        Self {
            connection,
            stage: Stage::Opening,
            credits: Credits::new(receives),
            active,
            heard: false,
            used: true,
            hello: false,
            receiving: 0,
            sending: 0,
            early: Queue::new(),
        }
    }

    /// Buffers of the pool that are kept for it: those of its own that it does not use.
    pub(super) fn kept(&self) -> u32 {
        OWN - self.credits.size().min(LEAST) - self.sending.min(SENDS)
    }

    /// Whether packets may be sent, as far as the connection goes.
    pub(super) fn may_speak(&self, active_first: bool) -> bool {
        self.stage == Stage::Ready && (self.active || self.heard || !active_first)
    }
}

/// How things stand with a peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Connections that exist, in any state.
    pub rails: u32,
    /// Those that are ready.
    pub ready: u32,
    /// Receives posted, or with a packet that was not released, on all of them.
    pub receives: u32,
    /// Packets that we may send, the reserves included.
    pub credits: u32,
    /// Packets that wait for earlier ones of other rails.
    pub waiting: u32,
    /// Packets without content that were sent: updates, recalls, credits given up, and who speaks first.
    pub updates: u64,
    /// Times that receives were added, and that they were called back.
    pub grown: u64,
    /// See `grown`.
    pub shrunk: u64,
}

/// A peer.
#[derive(Debug)]
pub struct Peer<W: BorrowMut<[Option<u32>]>> {
    pub(super) rails: [Option<Rail>; MOST_RAILS],
    /// What we show this peer on each connection, and what it has shown on the first.
    pub(super) token: u64,
    shown: Option<u64>,
    /// Where it has to be.
    pub(super) origin: Option<Origin>,
    /// Packets that came too early.
    pub(super) window: Window<u32, W>,
    /// Packets that are next.
    ready: Queue,
    /// Number of the next packet to it.
    pub(super) next: u32,
    /// The rail that has its turn.
    pub(super) turn: usize,
    /// Units of the store that we promise, those that it was told, and those that it promises.
    units: u64,
    units_told: u64,
    pub(super) granted: u64,
    /// Why it has failed, until that is told; what it sends is not looked at after a fault of its own.
    fault: Option<PortFault>,
    told: bool,
    rude: bool,
    /// Its place among the peers that have packets.
    queued: bool,
    after: PeerId,
    /// Packets with content.
    pub(super) sent: u64,
    pub(super) received: u64,
    pub(super) buffered: Count,
    pub(super) holds: u64,
    pub(super) held: bool,
    pub(super) updates: u64,
    pub(super) grown: u64,
    pub(super) shrunk: u64,
}

impl<W: BorrowMut<[Option<u32>]>> Peer<W> {
    /// A peer without connections. `token` is a random number, which nobody but the peer gets to know, and another one for each
    /// peer: by it all connections are known to be of one process. `None` unless the places of the window are a power of two.
    pub fn new(window: W, token: u64) -> Option<Self> {
        Some(Self {
            rails: [const { None }; MOST_RAILS],
            token,
            shown: None,
            origin: None,
            window: Window::new(window, u32::BITS, FIRST.into())?,
            ready: Queue::new(),
            next: FIRST,
            turn: 0,
            units: 0,
            units_told: 0,
            granted: 0,
            fault: None,
            told: false,
            rude: false,
            queued: false,
            after: NONE,
            sent: 0,
            received: 0,
            buffered: Count::default(),
            holds: 0,
            held: false,
            updates: 0,
            grown: 0,
            shrunk: 0,
        })
    }

    pub(super) fn window_size(&self) -> usize {
        self.window.size()
    }

    pub(super) const fn ready_mut(&mut self) -> &mut Queue {
        &mut self.ready
    }

    pub(super) fn rail(&mut self, rail: u32) -> Option<&mut Rail> {
        self.rails.get_mut(rail as usize)?.as_mut()
    }

    /// Whether there are no connections, nor any rest of some.
    pub(super) fn is_blank(&self) -> bool {
        self.rails.iter().all(Option::is_none) && self.fault.is_none()
    }

    /// Whether a connection more belongs to those that exist.
    pub(super) fn takes_rails(&self) -> bool {
        let open = |rail: &Rail| matches!(rail.stage, Stage::Opening | Stage::Ready);
        self.fault.is_none() && self.rails.iter().flatten().all(open)
    }

    /// Whether who shows this token may be the process that has the place, if one has.
    pub(super) fn is_holder(&self, token: u64) -> bool {
        self.is_blank() || self.shown.is_none_or(|shown| shown == token)
    }

    /// Whether we ask this peer for connections: then it does not ask us.
    pub(super) fn is_asked(&self) -> bool {
        self.rails.iter().flatten().any(|rail| rail.active)
    }

    /// Who shows this token has the place.
    pub(super) fn show(&mut self, token: u64) {
        self.shown.get_or_insert(token);
    }

    /// The first connection of a new process of that rank: everything is counted anew.
    pub(super) fn restart(&mut self) {
        self.window.restart(FIRST.into());
        self.shown = None;
        (self.next, self.turn) = (FIRST, 0);
        (self.units_told, self.granted) = (0, 0);
        self.held = false;
    }

    /// The peer has failed. True if that was not known.
    pub(super) fn fail(&mut self, fault: PortFault) -> bool {
        if self.rails.iter().all(Option::is_none) {
            return false;
        }
        self.rude |= !matches!(fault, PortFault::Lost(_) | PortFault::Work(_));
        let news = self.fault.is_none();
        if !self.told {
            match self.fault {
                // Something better than that everything was flushed.
                None | Some(PortFault::Work(WorkError::Flushed)) => {
                    self.fault = Some(fault);
                }
                Some(_) => {}
            }
        }
        news
    }

    pub(super) const fn has_failed(&self) -> bool {
        self.fault.is_some()
    }

    /// Whether what it sends is not to be looked at any more.
    pub(super) const fn is_rude(&self) -> bool {
        self.rude
    }

    /// The fault, once, when everything that had come before was handed on.
    pub(super) fn tell(&mut self) -> Option<PortFault> {
        let due = |rail: &Rail| rail.stage != Stage::Lost || rail.receiving == 0;
        if self.told || !self.ready.is_empty() || !(self.rude || self.rails.iter().flatten().all(due)) {
            return None;
        }
        self.told = self.fault.is_some();
        self.fault
    }

    /// We have let go of it. True if its fault was never told.
    pub(super) fn forget(&mut self) -> bool {
        let untold = self.fault.is_some() && !self.told;
        (self.fault, self.told, self.rude) = (None, false, false);
        (self.units, self.units_told, self.granted) = (0, 0, 0);
        untold
    }

    pub(super) fn grant(&mut self, units: u64) {
        self.units = self.units.max(units);
    }

    /// What is promised in all, and whether it was not told.
    pub(super) const fn promise(&self) -> (u64, bool) {
        (self.units, self.units != self.units_told)
    }

    pub(super) const fn told_units(&mut self, units: u64) {
        self.units_told = units;
    }

    pub(super) fn traffic(&self) -> Traffic {
        Traffic {
            sent: self.sent,
            received: self.received,
            cells_sent: self.buffered,
            cells_exhausted: self.holds,
            ..Traffic::default()
        }
    }

    pub(super) fn report(&self) -> Report {
        let mut report = Report {
            waiting: self.window.waiting() as u32,
            updates: self.updates,
            grown: self.grown,
            shrunk: self.shrunk,
            ..Report::default()
        };
        for rail in self.rails.iter().flatten() {
            report.rails += 1;
            report.ready += u32::from(rail.stage == Stage::Ready);
            report.receives += rail.credits.size();
            report.credits += rail.credits.left();
        }
        report
    }
}

/// Peers that have packets to be handed on, each in its turn.
#[derive(Clone, Copy, Debug)]
pub(super) struct Turns {
    first: PeerId,
    last: PeerId,
}

impl Turns {
    pub(super) const fn new() -> Self {
        Self { first: NONE, last: NONE }
    }

    /// The peer has a packet.
    pub(super) fn join<W: BorrowMut<[Option<u32>]>>(&mut self, peers: &mut [Peer<W>], peer: PeerId) {
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

    /// Whose turn it is. Those that have none any more leave.
    pub(super) fn first<W: BorrowMut<[Option<u32>]>>(&mut self, peers: &mut [Peer<W>]) -> Option<PeerId> {
        loop {
            let peer = self.first;
            if !peers.get(peer as usize)?.ready.is_empty() {
                return Some(peer);
            }
            self.leave(peers);
        }
    }

    /// The first leaves.
    fn leave<W: BorrowMut<[Option<u32>]>>(&mut self, peers: &mut [Peer<W>]) {
        if let Some(it) = peers.get_mut(self.first as usize) {
            it.queued = false;
            self.first = it.after;
            if self.first == NONE {
                self.last = NONE;
            }
        }
    }

    /// The peer has had a turn: the others come first now.
    pub(super) fn served<W: BorrowMut<[Option<u32>]>>(&mut self, peers: &mut [Peer<W>], peer: PeerId) {
        if self.first == peer {
            self.leave(peers);
            if peers.get(peer as usize).is_some_and(|it| !it.ready.is_empty()) {
                self.join(peers, peer);
            }
        }
    }
}
