//! A simulated network of carriers: sockets of one machine, TCP connections and datagrams.

use std::collections::BTreeMap;
use std::time::Duration;

use nemesia_core::link::machine::terms::{CarrierKind, CarrierRef, DialFault};

use crate::rng::Rng;

/// At most so many datagrams between two processes are lost in a row.
const MOST_LOST: u8 = 3;

/// What happens to a process.
#[derive(Clone, Debug)]
pub(super) enum Happening {
    /// A connection has reached it.
    Accept(u64),
    /// A connection that it dials has reached the other end, or cannot.
    Reached(u64),
    Failed(u64, DialFault),
    /// A message, or the end, of a connection has come to this side.
    Message(u64, usize, Vec<u8>),
    Partial(u64),
    End(u64, usize),
    /// A datagram of this process has come.
    Datagram(usize, Vec<u8>),
    /// The kernel says that a process of the same host has ended.
    ProcessEnded(usize),
    /// The owner's own steps, for the link with this process.
    Path(usize, u32, bool),
    Drained(usize),
    Free(usize),
    Probe(usize, u32),
    Launcher(u32),
    Readmit(u32),
    Resume,
}

/// One side of a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct WireSide {
    /// The process; of a stranger, one of the host from which it connects.
    pub(super) process: usize,
    pub(super) carrier: Option<CarrierRef>,
    pub(super) is_closed: bool,
    /// It reads no more.
    is_withdrawn: bool,
    /// The messages that have not been read, and when the last one arrives.
    pending: u32,
    last: Duration,
}

/// A connection.
#[derive(Clone, Debug)]
pub(super) struct Connection {
    pub(super) kind: CarrierKind,
    pub(super) sides: [WireSide; 2],
    /// The process at the first side is only what a stranger pretends to be.
    pub(super) stranger: Option<Attack>,
    /// It is broken: nothing passes, and each side learns it by itself.
    is_cut: bool,
}

/// What a stranger does.
#[derive(Clone, Debug)]
pub(super) enum Attack {
    Silent,
    Partial,
    Says(Vec<u8>),
    /// It is a process that has left, and says so.
    Departs(Vec<u8>),
    /// It calls with a false token of the called process.
    Guess,
    /// It knows the called process and claims the address of another one, from elsewhere.
    Claim(usize),
    /// It sends the call of another process once more.
    Replay,
}

/// What a carrier of a process is.
#[derive(Clone, Copy, Debug)]
pub(super) enum CarrierUse {
    Connection(u64, usize),
    /// Datagrams to this process.
    Place(usize),
}

/// The network.
#[derive(Debug)]
pub(super) struct LinkNetwork {
    pub(super) rng: Rng,
    pub(super) now: Duration,
    pub(super) events: BTreeMap<(Duration, u64), (usize, Happening)>,
    serial: u64,
    pub(super) connections: BTreeMap<u64, Connection>,
    /// The carriers of each process.
    pub(super) uses: BTreeMap<(usize, CarrierRef), CarrierUse>,
    /// The share of datagrams that are lost, in percent, and the longest delay in microseconds.
    loss: usize,
    delay: usize,
    /// One datagram in so many is seconds late.
    late: usize,
    lost: BTreeMap<(usize, usize), u8>,
    pub(super) dropped: u64,
    pub(super) repeated: u64,
}

impl LinkNetwork {
    pub(super) fn new(mut rng: Rng) -> Self {
        let (loss, delay) = (rng.pick(&[0, 5, 20, 30]), rng.pick(&[20, 1000, 20_000]));
        let late = rng.pick(&[40, 40, 4]);
        Self {
            rng,
            now: Duration::from_millis(1),
            events: BTreeMap::new(),
            serial: 0,
            connections: BTreeMap::new(),
            uses: BTreeMap::new(),
            loss,
            delay,
            late,
            lost: BTreeMap::new(),
            dropped: 0,
            repeated: 0,
        }
    }

    pub(super) fn schedule(&mut self, at: Duration, process: usize, happening: Happening) {
        self.serial += 1;
        self.events.insert((at, self.serial), (process, happening));
    }

    pub(super) fn later(&mut self, below: usize) -> Duration {
        self.now + Duration::from_micros(self.rng.below(below) as u64)
    }

    /// Begins a connection, which arrives later.
    pub(super) fn connect(
        &mut self,
        kind: CarrierKind,
        from: (usize, Option<CarrierRef>),
        to: usize,
        stranger: Option<Attack>,
    ) -> u64 {
        self.serial += 1;
        let id = self.serial;
        let side = |process, carrier| WireSide {
            process,
            carrier,
            is_closed: false,
            is_withdrawn: false,
            pending: 0,
            last: Duration::ZERO,
        };
        let sides = [side(from.0, from.1), side(to, None)];
        self.connections.insert(id, Connection { kind, sides, stranger, is_cut: false });
        if let Some(carrier) = from.1 {
            self.uses.insert((from.0, carrier), CarrierUse::Connection(id, 0));
        }
        let at = self.later(self.delay);
        self.schedule(at, to, Happening::Accept(id));
        id
    }

    /// Sends a message from a side. Returns whether the other side reads.
    pub(super) fn send(&mut self, id: u64, side: usize, bytes: &[u8], is_alive: bool) -> bool {
        let delay = self.delay;
        let at = self.later(delay);
        let Some(connection) = self.connections.get_mut(&id) else { return true };
        let is_local = connection.kind == CarrierKind::HandOff;
        let other = &mut connection.sides[1 - side];
        if is_local && (other.is_closed || other.is_withdrawn || !is_alive) {
            return false;
        }
        if connection.is_cut {
            return true;
        }
        other.last = other.last.max(at);
        other.pending += 1;
        let (at, process) = (other.last, other.process);
        self.schedule(at, process, Happening::Message(id, 1 - side, bytes.to_vec()));
        true
    }

    /// A message is read. Returns the carrier of the side, unless it is closed.
    pub(super) fn read(&mut self, id: u64, side: usize) -> Option<WireSide> {
        let side = &mut self.connections.get_mut(&id)?.sides[side];
        side.pending = side.pending.saturating_sub(1);
        (!side.is_closed).then_some(*side)
    }

    pub(super) fn withdraw(&mut self, id: u64, side: usize) -> bool {
        let Some(connection) = self.connections.get_mut(&id) else { return false };
        connection.sides[side].is_withdrawn = true;
        connection.sides[side].pending > 0
    }

    /// Closes a side: the other one learns it after all messages.
    pub(super) fn close(&mut self, id: u64, side: usize) {
        let at = self.later(self.delay);
        let Some(connection) = self.connections.get_mut(&id) else { return };
        if core::mem::replace(&mut connection.sides[side].is_closed, true) {
            return;
        }
        if let Some(carrier) = connection.sides[side].carrier {
            self.uses.remove(&(connection.sides[side].process, carrier));
        }
        let other = &mut connection.sides[1 - side];
        other.last = other.last.max(at);
        let (at, process) = (other.last, other.process);
        if other.is_closed {
            self.connections.remove(&id);
        } else if !connection.is_cut {
            self.schedule(at, process, Happening::End(id, 1 - side));
        }
    }

    /// A connection breaks: what is on its way is lost.
    pub(super) fn cut(&mut self, id: u64) -> Option<[usize; 2]> {
        let connection = self.connections.get_mut(&id)?;
        connection.is_cut = true;
        let sides = connection.sides;
        let is_way = |happening: &Happening| matches!(happening, Happening::Message(of, ..) if *of == id);
        self.events.retain(|_, (_, happening)| !is_way(happening));
        // One side may learn it seconds later.
        let slow = self.rng.below(4);
        for (at, side) in sides.iter().enumerate() {
            let delay = if at == slow { 4_000_000 } else { self.delay };
            let when = self.later(delay);
            self.schedule(when, side.process, Happening::End(id, at));
        }
        Some(sides.map(|side| side.process))
    }

    /// Sends a datagram.
    pub(super) fn datagram(&mut self, from: usize, to: usize, bytes: &[u8]) {
        let lost = self.lost.entry((from, to)).or_default();
        let is_lost = self.rng.below(100) < self.loss && *lost < MOST_LOST;
        *lost = if is_lost { *lost + 1 } else { 0 };
        self.dropped += u64::from(is_lost);
        let copies = usize::from(!is_lost) + usize::from(self.rng.one_in(12));
        self.repeated += u64::from(copies > 1);
        for _ in 0..copies {
            let late = if self.rng.one_in(self.late) { 3_000_000 } else { self.delay };
            let at = self.later(late);
            self.schedule(at, to, Happening::Datagram(from, bytes.to_vec()));
        }
    }

    /// A process has ended: the kernel closes its connections.
    pub(super) fn end_process(&mut self, process: usize) {
        let mine: Vec<_> = self
            .connections
            .iter()
            .flat_map(|(id, connection)| (0..2).map(move |side| (*id, side, connection.sides[side])))
            .filter(|(id, _, side)| {
                let is_stranger = self.connections[id].stranger.is_some();
                side.process == process && !side.is_closed && !is_stranger
            })
            .map(|(id, side, _)| (id, side))
            .collect();
        mine.into_iter().for_each(|(id, side)| self.close(id, side));
        self.uses.retain(|(of, _), _| *of != process);
    }
}
