//! The network of a simulated world: who sent what to whom, and when it can be seen. It knows nothing of engines.
//!
//! As over shared memory, a packet takes one of two paths: a short one for small packets, with few places, or one of its
//! sender's few cells. Each path keeps its order and has delays of its own; a receiver takes the packets of a sender by
//! their sequence numbers. Time is a counter.

mod life;
mod remote;

use std::collections::VecDeque;

use nemesia_core::counters::{Count, Traffic};
use nemesia_core::wire::Envelope;

use crate::bug::{Bug, Slip};
use crate::memory::Memory;
use crate::rng::Rng;
use crate::share::Shared;
use crate::tally::{Event, Tally};
use crate::trace::Trace;
use crate::violation::{Check, ensure};

/// Calls of the port in one call of the engine, after which that call counts as endless.
const ENDLESS: u32 = 20_000;

/// What a world is like.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Conditions {
    pub(crate) ranks: u32,
    /// Most payload bytes of a packet.
    pub(crate) packet_bytes: usize,
    /// Cells of each process.
    pub(crate) cells: usize,
    /// Places of the short path of each pair, and the most bytes of a packet there.
    pub(crate) places: usize,
    pub(crate) small: usize,
    /// The longest usual delay; once in a while it is many times that.
    pub(crate) delay: usize,
    /// Once in so many times there is no room, for no reason that anyone could see; 0 is never.
    pub(crate) refusal: usize,
    /// How often a single copy of remote memory works.
    pub(crate) pull: Pull,
    /// Both sides may make it together.
    pub(crate) shares: bool,
    /// Some buffers lie in several places.
    pub(crate) scatter: bool,
}

/// Whether memory of another process can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pull {
    Never,
    /// Until a random moment for each pair; and single messages can't be read before.
    Sometimes,
    Always,
}

/// What came of reading a peer's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pulled {
    Done,
    Unreadable,
    Refused,
}

/// What a packet carries, as far as mistakes are concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// Bytes of a message, and nothing else.
    Content,
    /// The end of a rendezvous.
    Fin,
    Other,
}

/// A packet on its way.
#[derive(Clone, Debug)]
struct Packet {
    sequence: u64,
    visible: u64,
    envelope: Envelope,
    payload: Vec<u8>,
}

/// A way from one process to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Path {
    Short,
    Cell,
}

/// From one process to another.
#[derive(Debug, Default)]
struct Pair {
    paths: [VecDeque<Packet>; 2],
    /// Numbers of the next packet to be sent, and to be taken.
    next: u64,
    expected: u64,
    /// When the sender sees the cells that were given back.
    returned: VecDeque<u64>,
    /// Cells of the sender that hold packets of this pair, or are on their way back.
    lent: usize,
    /// Units that the receiver has granted in all; and as the sender sees them, from when.
    granted: u64,
    grants: VecDeque<(u64, u64)>,
    /// What a lost grant, or one too many, will always be off.
    grant_error: i64,
    /// Units that the sender has used.
    spent: u64,
    /// One of the two has let go of the other.
    closed: bool,
    /// The receiver may not read the sender's memory any more.
    unreadable: bool,
    /// Packets that went by a cell, when they were sent and when they were taken.
    cells: [Count; 2],
    /// What the two copy together.
    shared: Shared,
}

#[derive(Debug)]
struct Process {
    dead: bool,
    /// Effects on other processes that it still has before it dies.
    fuse: Option<u32>,
    free_cells: usize,
}

/// A packet that an engine has taken.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Taken {
    pub(crate) peer: u32,
    pub(crate) envelope: Envelope,
    pub(crate) len: usize,
}

/// The packet that is due, and where it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Due {
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
    pairs: Vec<Pair>,
    processes: Vec<Process>,
    /// For each process, what it took since somebody last asked.
    pub(crate) taken: Vec<Vec<Taken>>,
    /// Grows with everything that one process does to another.
    pub(crate) activity: u64,
    /// No refusals without a reason.
    pub(crate) calm: bool,
    /// For each process, when it is woken.
    bells: Vec<Vec<u64>>,
    calls: u32,
    /// What an engine did that no engine may.
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
            pairs: std::iter::repeat_with(Pair::default).take(count * count).collect(),
            processes: std::iter::repeat_with(process).take(count).collect(),
            taken: vec![Vec::new(); count],
            activity: 0,
            calm: false,
            bells: vec![Vec::new(); count],
            calls: 0,
            misuse: None,
        }
    }

    fn pair(&mut self, from: u32, to: u32) -> &mut Pair {
        &mut self.pairs[(from * self.conditions.ranks + to) as usize]
    }

    /// Whether the chosen mistake is this one, and is made now.
    pub(crate) fn slips(&mut self, slip: Slip) -> bool {
        let slips = self.bug == Some(Bug::Slip(slip)) && self.rng.one_in(slip.opportunities());
        if slips {
            self.trace.note(self.now, || format!("BUG: {slip}"));
        }
        slips
    }

    /// Where a buffer of so many bytes is to be cut into runs: mostly nowhere.
    pub(crate) fn cuts(&mut self, len: usize) -> Vec<usize> {
        if !self.conditions.scatter || self.rng.one_in(2) {
            return Vec::new();
        }
        let mut cuts: Vec<_> = (0..=self.rng.below(4)).map(|_| self.rng.below(len + 1)).collect();
        cuts.sort_unstable();
        self.tally.count(Event::List);
        cuts
    }

    /// An engine did what no engine may.
    pub(crate) fn misuse(&mut self, what: String) {
        self.misuse.get_or_insert(what);
    }

    /// What an engine did that no engine may, if anything.
    pub(crate) fn check(&mut self) -> Check {
        let misuse = self.misuse.take();
        ensure!(misuse.is_none(), "{}", misuse.unwrap_or_default());
        self.memory.check()
    }

    /// When what is done now will be seen.
    pub(crate) fn later(&mut self) -> u64 {
        let usual = self.rng.below(self.conditions.delay + 1) as u64;
        self.now + if self.rng.one_in(200) { 20 * usual } else { usual }
    }

    /// The longest delay.
    pub(crate) const fn horizon(&self) -> u64 {
        20 * self.conditions.delay as u64 + 1
    }

    /// A call of an engine begins.
    pub(crate) const fn begin_call(&mut self) {
        self.calls = 0;
    }

    fn count_call(&mut self) {
        self.calls += 1;
        assert!(self.calls < ENDLESS, "a call of the engine does not end");
    }

    /// Whether a process still has effects on others; counts one.
    fn acts(&mut self, rank: u32) -> bool {
        self.count_call();
        let process = &mut self.processes[rank as usize];
        if process.dead {
            return false;
        }
        if let Some(left) = &mut process.fuse {
            if *left == 0 {
                process.dead = true;
                self.trace.note(self.now, || format!("rank {rank} dies within a call"));
                return false;
            }
            *left -= 1;
        }
        self.activity += 1;
        true
    }

    /// Puts a packet on its way. False when there is no room.
    pub(crate) fn send(
        &mut self,
        from: u32,
        to: u32,
        class: Class,
        envelope: &Envelope,
        payload: &[u8],
    ) -> bool {
        self.count_call();
        let Conditions { small, places, refusal, packet_bytes, .. } = self.conditions;
        if payload.len() > packet_bytes {
            self.misuse(format!("rank {from} sends a packet of {} bytes", payload.len()));
        }
        if self.pair(from, to).closed || !self.calm && self.rng.one_in(refusal) {
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
        let mut packet = Packet { sequence: pair.next, visible, envelope, payload };
        pair.next += 1;
        if swaps && let Some(last) = queue.back_mut() {
            std::mem::swap(&mut last.envelope, &mut packet.envelope);
            std::mem::swap(&mut last.payload, &mut packet.payload);
        }
        queue.push_back(packet);
        self.bells[to as usize].push(visible);
    }

    /// What a process has sent to another, and taken from it.
    pub(crate) fn traffic(&mut self, me: u32, peer: u32) -> Traffic {
        let (sent, cells_sent) = (self.pair(me, peer).next, self.pair(me, peer).cells[0]);
        let (received, cells_received) = (self.pair(peer, me).expected, self.pair(peer, me).cells[1]);
        Traffic { sent, received, cells_sent, cells_received, ..Traffic::default() }
    }

    /// Takes back the cells whose return can be seen.
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

    /// The next packet of some peer.
    pub(crate) fn poll(&mut self, me: u32) -> Option<Due> {
        let ranks = self.conditions.ranks;
        let first = self.rng.below(ranks as usize) as u32;
        (0..ranks).find_map(|step| self.poll_peer(me, (first + step) % ranks, self.now))
    }

    /// The next packet of this peer, of those that can be seen at that time.
    pub(crate) fn poll_peer(&mut self, me: u32, peer: u32, now: u64) -> Option<Due> {
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
            is_due.then_some(Due { taken: Taken { peer, envelope: packet.envelope, len }, path })
        };
        due(Path::Short).or_else(|| due(Path::Cell))
    }

    fn can_overtake(&mut self, me: u32, peer: u32) -> bool {
        let pair = self.pair(peer, me);
        let [short, cell] = [0, 1].map(|path| pair.paths[path].front().map(|packet| packet.sequence));
        matches!((short, cell), (Some(short), Some(cell)) if short.abs_diff(cell) == 1)
    }

    /// Copies payload bytes of the packet that is due.
    pub(crate) fn read(&mut self, me: u32, peer: u32, path: Path, at: usize, to: &mut [u8]) {
        let pair = self.pair(peer, me);
        let packet = pair.paths[path as usize].front();
        match packet.and_then(|packet| packet.payload.get(at..at + to.len())) {
            Some(bytes) => to.copy_from_slice(bytes),
            None => self.misuse(format!("rank {me} reads what is not in a packet of rank {peer}")),
        }
    }

    /// The packet that is due was taken.
    pub(crate) fn release(&mut self, me: u32, due: &Due) {
        if !self.acts(me) {
            return;
        }
        let Taken { peer, envelope, len } = due.taken;
        self.trace.note(self.now, || format!("{me} takes {:?} of {len} bytes from {peer}", envelope.kind));
        let seen = self.later();
        let loses = due.path == Path::Cell && self.slips(Slip::LoseCell);
        let pair = self.pair(peer, me);
        let seen = pair.returned.back().map_or(seen, |&last| last.max(seen));
        pair.paths[due.path as usize].pop_front();
        pair.expected += 1;
        if due.path == Path::Cell {
            pair.cells[1].add(len);
        }
        if due.path == Path::Cell && !loses {
            pair.returned.push_back(seen);
        }
        self.bells[peer as usize].push(seen);
        self.taken[me as usize].push(due.taken);
    }
}
