//! The network of a simulated world: which packets are under way, and when each becomes visible. It knows
//! nothing of engines.
//!
//! As over shared memory, a packet takes one of two paths: a short path with few places for small packets, or
//! one of its sender's few cells. Each path keeps its order and has its own delays. A receiver takes the
//! packets of a sender by their sequence numbers. Time is a counter.

pub(crate) mod access;
mod life;
mod remote;

use std::collections::VecDeque;

use nemesia_core::counters::{Count, TrafficCounters};
use nemesia_core::wire::prefix::EagerPrefix;
use nemesia_core::wire::rendezvous::{Rts, UNASKED};
use nemesia_core::wire::{Envelope, Kind};

use access::AccessState;

use crate::assist::AssistState;
use crate::bug::{Bug, Slip};
use crate::memory::Memory;
use crate::rng::Rng;
use crate::tally::{Event, Tally};
use crate::trace::Trace;
use crate::violation::{Check, ensure};

/// The number of port calls within one engine call after which that call counts as endless.
const ENDLESS: u32 = 20_000;
/// The most bytes of a short first segment.
const MOST_HEADER: usize = 80;

/// The properties of a world.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Conditions {
    pub(crate) ranks: u32,
    /// Most payload bytes of a packet.
    pub(crate) packet_bytes: usize,
    /// Cells of each process.
    pub(crate) cells: usize,
    /// The places on the short path of each pair, and the largest packet there in bytes.
    pub(crate) places: usize,
    pub(crate) small: usize,
    /// The longest usual delay; once in a while it is many times that.
    pub(crate) delay: usize,
    /// One send in so many finds no room, without any visible reason; 0 means never.
    pub(crate) refusal: usize,
    /// Whether the ports prefer eager messages of a whole packet to some peers.
    pub(crate) prefers_eager: bool,
    /// Whether some messages wait for the next progress step, so that they leave together.
    pub(crate) gathers: bool,
    /// How often a single copy of remote memory succeeds.
    pub(crate) pull: Pull,
    /// The most accesses to remote memory that a process has under way; 0 if each ends at once.
    pub(crate) accesses: usize,
    /// Whether a receiver exposes its buffer, so that the sender writes there.
    pub(crate) puts: bool,
    /// Whether both sides may copy a message together.
    pub(crate) assists: bool,
    /// Whether some buffers consist of several segments.
    pub(crate) scatter: bool,
}

/// Whether memory of another process can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pull {
    Never,
    /// Possible until a random moment for each pair; before it, single messages may be unreadable.
    Sometimes,
    Always,
}

/// The result of reading a peer's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pulled {
    Done,
    Unreadable,
    Refused,
}

/// The content of a packet, as far as injected faults are concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// Bytes of a message and nothing else.
    Content,
    /// The end of a rendezvous.
    Fin,
    Other,
}

/// A packet under way.
#[derive(Clone, Debug)]
struct SimPacket {
    sequence: u64,
    visible: u64,
    envelope: Envelope,
    payload: Vec<u8>,
}

/// The path from one process to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Path {
    Short,
    Cell,
}

/// The state of one direction between two processes.
#[derive(Debug, Default)]
struct FabricPair {
    paths: [VecDeque<SimPacket>; 2],
    /// The numbers of the next packet to send and to take.
    next: u64,
    expected: u64,
    /// When each returned cell becomes visible to the sender.
    returned: VecDeque<u64>,
    /// Cells of the sender that hold packets of this pair, or are on their way back.
    lent: usize,
    /// The total of units that the receiver has granted; and the totals that the sender sees, each from its
    /// time on.
    granted: u64,
    grants: VecDeque<(u64, u64)>,
    /// The error that a lost or inflated grant leaves for good.
    grant_error: i64,
    /// Units that the sender has used.
    spent: u64,
    /// Whether one of the two has disconnected from the other.
    closed: bool,
    /// Whether the receiver may no longer read the sender's memory.
    unreadable: bool,
    /// Packets that went through a cell: those sent and those taken.
    cells: [Count; 2],
    /// The message that the two copy together.
    shared: AssistState,
}

#[derive(Debug)]
struct Process {
    dead: bool,
    /// The number of effects on other processes that it still has before it dies.
    fuse: Option<u32>,
    free_cells: usize,
}

/// A packet that an engine has taken.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Taken {
    pub(crate) peer: u32,
    pub(crate) envelope: Envelope,
    pub(crate) len: usize,
    /// Its content, if it is an RTS. Known when the packet is released.
    pub(crate) rts: Option<Rts>,
}

impl Taken {
    /// Returns the length of the message of which this is the first packet.
    pub(crate) fn total(&self) -> u64 {
        let whole = self.len - EagerPrefix::bytes_of(self.envelope.kind);
        self.rts.map_or(whole as u64, |rts| rts.total)
    }

    /// Returns the bytes for which the sender has paid with this packet.
    pub(crate) fn paid_bytes(&self) -> usize {
        self.len + self.rts.map_or(0, |rts| rts.following())
    }

    /// Returns whether this is a part of a message whose bytes follow unasked.
    pub(crate) fn is_unasked_part(&self) -> bool {
        self.envelope.kind == Kind::Data && self.envelope.tag == UNASKED
    }

    /// Returns whether the sender waits for an answer, although the packet carries the whole message.
    pub(crate) fn is_along(&self) -> bool {
        let is_whole = |rts: Rts| rts.total == (self.len - rts.bytes()) as u64;
        let kind = self.envelope.kind;
        kind.is_eager() && kind.is_answered() || self.rts.is_some_and(is_whole)
    }
}

/// The next packet of a sender, and its place.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DuePacket {
    pub(crate) taken: Taken,
    pub(crate) path: Path,
}

/// The network.
#[derive(Debug)]
pub(crate) struct Fabric {
    pub(crate) conditions: Conditions,
    pub(crate) now: u64,
    pub(crate) memory: Memory,
    pub(crate) trace: Trace,
    pub(crate) tally: Tally,
    rng: Rng,
    bug: Option<Bug>,
    pairs: Vec<FabricPair>,
    processes: Vec<Process>,
    /// For each process, its accesses to remote memory and its exposed buffers.
    remote: Vec<AccessState>,
    /// For each process, the packets that it has taken since the last query.
    pub(crate) taken: Vec<Vec<Taken>>,
    /// Grows with every effect of one process on another.
    pub(crate) activity: u64,
    /// Whether refusals without a reason are switched off.
    pub(crate) calm: bool,
    /// For each process, the times at which it is woken.
    doorbells: Vec<Vec<u64>>,
    calls: u32,
    /// A forbidden call by an engine, if there was one.
    misuse: Option<String>,
}

impl Fabric {
    pub(crate) fn new(conditions: Conditions, rng: Rng, bug: Option<Bug>, trace: Trace) -> Self {
        let count = conditions.ranks as usize;
        let process = || Process { dead: false, fuse: None, free_cells: conditions.cells };
        Self {
            conditions,
            now: 0,
            memory: Memory::default(),
            trace,
            tally: Tally::default(),
            rng,
            bug,
            pairs: std::iter::repeat_with(FabricPair::default).take(count * count).collect(),
            processes: std::iter::repeat_with(process).take(count).collect(),
            remote: std::iter::repeat_with(AccessState::default).take(count).collect(),
            taken: vec![Vec::new(); count],
            activity: 0,
            calm: false,
            doorbells: vec![Vec::new(); count],
            calls: 0,
            misuse: None,
        }
    }

    fn pair(&mut self, from: u32, to: u32) -> &mut FabricPair {
        &mut self.pairs[(from * self.conditions.ranks + to) as usize]
    }

    /// Returns whether the chosen injected fault is this one and happens now.
    pub(crate) fn slips(&mut self, slip: Slip) -> bool {
        let slips = self.bug == Some(Bug::Slip(slip)) && self.rng.one_in(slip.opportunities());
        if slips {
            self.trace.note(self.now, || format!("BUG: {slip}"));
        }
        slips
    }

    /// Returns where a buffer of `len` bytes is cut into segments: in most cases nowhere.
    pub(crate) fn cuts(&mut self, len: usize) -> Vec<usize> {
        if !self.conditions.scatter || self.rng.one_in(2) {
            return Vec::new();
        }
        self.tally.count(Event::List);
        if self.rng.one_in(4) {
            // A short header before a long payload, whose bytes can be described.
            self.tally.add_to(Event::Header, u64::from(len > 2 * MOST_HEADER));
            return vec![self.rng.below(MOST_HEADER + 1).min(len)];
        }
        let mut cuts: Vec<_> = (0..=self.rng.below(6)).map(|_| self.rng.below(len + 1)).collect();
        cuts.sort_unstable();
        cuts
    }

    /// Records a forbidden call by an engine.
    pub(crate) fn misuse(&mut self, what: String) {
        self.misuse.get_or_insert(what);
    }

    /// Returns the forbidden call, if there was one.
    pub(crate) fn check(&mut self) -> Check {
        let misuse = self.misuse.take();
        ensure!(misuse.is_none(), "{}", misuse.unwrap_or_default());
        self.memory.check()
    }

    /// Returns the time at which an action of now becomes visible.
    pub(crate) fn later(&mut self) -> u64 {
        let usual = self.rng.below(self.conditions.delay + 1) as u64;
        self.now + if self.rng.one_in(200) { 20 * usual } else { usual }
    }

    /// Returns the longest delay.
    pub(crate) const fn horizon(&self) -> u64 {
        20 * self.conditions.delay as u64 + 1
    }

    /// Notes the beginning of an engine call.
    pub(crate) const fn begin_call(&mut self) {
        self.calls = 0;
    }

    /// Counts a call of a port within one engine call.
    pub(crate) fn count_call(&mut self) {
        self.calls += 1;
        assert!(self.calls < ENDLESS, "a call of the engine does not end");
    }

    /// Returns whether a process still has effects on others. It dies if it had the last one.
    pub(crate) fn may_act(&mut self, rank: u32) -> bool {
        self.count_call();
        let process = &mut self.processes[rank as usize];
        if !process.dead && process.fuse == Some(0) {
            process.dead = true;
            self.trace.note(self.now, || format!("rank {rank} dies within a call"));
        }
        !self.processes[rank as usize].dead
    }

    /// Returns whether a process still has effects on others, and counts one.
    pub(crate) fn acts(&mut self, rank: u32) -> bool {
        let acts = self.may_act(rank);
        if acts {
            let fuse = &mut self.processes[rank as usize].fuse;
            *fuse = fuse.map(|left| left - 1);
            self.activity += 1;
        }
        acts
    }

    /// Returns true once in so many times; never if the number is 0.
    pub(crate) fn one_in(&mut self, times: usize) -> bool {
        self.rng.one_in(times)
    }

    /// Returns a number below `end`.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        self.rng.below(end)
    }

    /// Returns whether a process cannot send a packet now: the two are not connected, or the fabric refuses at random.
    pub(crate) fn refuses(&mut self, from: u32, to: u32, len: usize) -> bool {
        let Conditions { refusal, packet_bytes, .. } = self.conditions;
        if len > packet_bytes {
            self.misuse(format!("rank {from} sends a packet of {len} bytes"));
        }
        self.pair(from, to).closed || !self.calm && self.rng.one_in(refusal)
    }

    /// Sends a packet. Returns false if there is no room.
    pub(crate) fn send(
        &mut self,
        from: u32,
        to: u32,
        class: Class,
        envelope: &Envelope,
        payload: &[u8],
    ) -> bool {
        self.count_call();
        let Conditions { small, places, .. } = self.conditions;
        if self.refuses(from, to, payload.len()) {
            return false;
        }
        let free = self.free_cells(from);
        let pair = self.pair(from, to);
        let path = if payload.len() <= small && pair.paths[Path::Short as usize].len() < places {
            Path::Short
        } else if free > 0 {
            Path::Cell
        } else {
            return false;
        };
        if !self.acts(from) {
            return true;
        }
        self.trace.note(self.now, || {
            format!("{from} -> {to}: {:?} of {} bytes by {path:?}", envelope.kind, payload.len())
        });
        if self.slips(Slip::Lose) || class == Class::Fin && self.slips(Slip::LoseFin) {
            return true;
        }
        let mut payload = payload.to_vec();
        if class == Class::Content && !payload.is_empty() && self.slips(Slip::Corrupt) {
            let at = self.rng.below(payload.len());
            payload[at] ^= 1 << self.rng.below(8);
        }
        if self.slips(Slip::Duplicate) {
            self.carry(from, to, Path::Short, *envelope, payload.clone());
        }
        self.carry(from, to, path, *envelope, payload);
        !self.slips(Slip::DenySent)
    }

    fn carry(&mut self, from: u32, to: u32, path: Path, envelope: Envelope, payload: Vec<u8>) {
        let visible = self.later();
        let swaps = self.slips(Slip::Swap);
        if path == Path::Cell {
            self.processes[from as usize].free_cells -= 1;
        }
        let pair = self.pair(from, to);
        if path == Path::Cell {
            pair.lent += 1;
            pair.cells[0].add(payload.len());
        }
        let queue = &mut pair.paths[path as usize];
        let visible = queue.back().map_or(0, |last| last.visible).max(visible);
        let mut packet = SimPacket { sequence: pair.next, visible, envelope, payload };
        pair.next += 1;
        if swaps && let Some(last) = queue.back_mut() {
            std::mem::swap(&mut last.envelope, &mut packet.envelope);
            std::mem::swap(&mut last.payload, &mut packet.payload);
        }
        queue.push_back(packet);
        self.doorbells[to as usize].push(visible);
    }

    /// Returns what a process has sent to another and taken from it.
    pub(crate) fn traffic(&mut self, me: u32, peer: u32) -> TrafficCounters {
        let (sent, cells_sent) = (self.pair(me, peer).next, self.pair(me, peer).cells[0]);
        let (received, cells_received) = (self.pair(peer, me).expected, self.pair(peer, me).cells[1]);
        TrafficCounters { sent, received, cells_sent, cells_received, ..TrafficCounters::default() }
    }

    /// Takes back the cells whose return is visible.
    fn collect(&mut self, from: u32, to: u32) {
        let now = self.now;
        let pair = self.pair(from, to);
        let mut count = 0;
        while pair.returned.front().is_some_and(|&seen| seen <= now) {
            pair.returned.pop_front();
            count += 1;
        }
        pair.lent -= count;
        self.processes[from as usize].free_cells += count;
    }

    /// Returns the next packet of any peer.
    pub(crate) fn poll(&mut self, me: u32) -> Option<DuePacket> {
        let ranks = self.conditions.ranks;
        let first = self.rng.below(ranks as usize) as u32;
        (0..ranks).find_map(|step| self.poll_peer(me, (first + step) % ranks, self.now))
    }

    /// Returns the next packet of this peer that is visible at this time.
    pub(crate) fn poll_peer(&mut self, me: u32, peer: u32, now: u64) -> Option<DuePacket> {
        self.count_call();
        if self.processes[me as usize].dead || self.pair(peer, me).closed {
            return None;
        }
        if self.can_overtake(me, peer) && self.slips(Slip::Overtake) {
            let [short, cell] = &mut self.pair(peer, me).paths;
            if let (Some(short), Some(cell)) = (short.front_mut(), cell.front_mut()) {
                std::mem::swap(&mut short.sequence, &mut cell.sequence);
            }
        }
        let pair = self.pair(peer, me);
        let due = |path: Path| {
            let packet = pair.paths[path as usize].front()?;
            let len = packet.payload.len();
            let is_due = packet.sequence == pair.expected && packet.visible <= now;
            is_due.then_some(DuePacket {
                taken: Taken { peer, envelope: packet.envelope, len, rts: None },
                path,
            })
        };
        due(Path::Short).or_else(|| due(Path::Cell))
    }

    fn can_overtake(&mut self, me: u32, peer: u32) -> bool {
        let pair = self.pair(peer, me);
        let [short, cell] = [0, 1].map(|path| pair.paths[path].front().map(|packet| packet.sequence));
        matches!((short, cell), (Some(short), Some(cell)) if short.abs_diff(cell) == 1)
    }

    /// Copies payload bytes of the packet that is next.
    pub(crate) fn read(&mut self, me: u32, peer: u32, path: Path, at: usize, to: &mut [u8]) {
        let pair = self.pair(peer, me);
        let packet = pair.paths[path as usize].front();
        match packet.and_then(|packet| packet.payload.get(at..at + to.len())) {
            Some(bytes) => to.copy_from_slice(bytes),
            None => self.misuse(format!("rank {me} reads what is not in a packet of rank {peer}")),
        }
    }

    /// Releases the packet that was taken.
    pub(crate) fn release(&mut self, me: u32, due: &DuePacket) {
        if !self.acts(me) {
            return;
        }
        let Taken { peer, envelope, len, .. } = due.taken;
        self.trace.note(self.now, || format!("{me} takes {:?} of {len} bytes from {peer}", envelope.kind));
        let seen = self.later();
        let loses = due.path == Path::Cell && self.slips(Slip::LoseCell);
        let pair = self.pair(peer, me);
        let seen = pair.returned.back().map_or(seen, |&last| last.max(seen));
        let packet = pair.paths[due.path as usize].pop_front();
        let rts = packet.and_then(|packet| rts_of(&due.taken.envelope, &packet.payload));
        pair.expected += 1;
        if due.path == Path::Cell {
            pair.cells[1].add(len);
        }
        if due.path == Path::Cell && !loses {
            pair.returned.push_back(seen);
        }
        self.doorbells[peer as usize].push(seen);
        self.taken[me as usize].push(Taken { rts, ..due.taken });
    }
}

/// Returns the content of a packet if it is an RTS.
pub(crate) fn rts_of(envelope: &Envelope, payload: &[u8]) -> Option<Rts> {
    if envelope.kind == Kind::Rts { Rts::decode(payload, payload.len()) } else { None }
}
