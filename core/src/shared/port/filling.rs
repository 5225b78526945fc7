//! The copy policy for cells: plain stores, plain stores after a write prefetch, or non-temporal
//! stores, whichever is fastest between the two cores.
//!
//! A plain store needs its cache line, which the receiver's core holds from the last use. The line
//! moves to the sender, and later back to the receiver, and a core can wait for only a few such
//! lines at a time. A process that waits for an answer can [prefetch the lines](super::warm) for
//! the next message in that time. If both processes share one core, nothing needs to move, and
//! reusing one cell is better. Non-temporal stores need no line; the receiver then reads from
//! memory, whose latency is the same for one line as for many, and for any position of the other
//! core.
//!
//! On one test machine 4 KiB took 0.53 us in a ping-pong between near cores with plain stores, 0.28
//! us with write prefetch and 0.8 us with non-temporal stores; between distant cores 2.2 us with
//! plain stores and 0.9 us with non-temporal stores; in a stream between near cores 0.35 us with
//! plain stores and 0.4 us with non-temporal stores. The policy is therefore selected by
//! measurement. A *run* consists of messages of similar size. The cost of a run is the time from
//! the start of its first message to the start of the next run's first message. [`Ways`] compares
//! the costs.
//!
//! Messages that answer another message are learned separately from messages in a stream. Large
//! messages in a stream use non-temporal stores until something is learned. Time that a process
//! spends elsewhere is included; it is the same for all policies, and hides a difference only where
//! the difference does not matter.
#![forbid(unsafe_code)]

use super::HOT;
use crate::port::{PeerId, Stores};
use crate::ways::Ways;

/// The copy policy for a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Fill {
    /// Plain stores, into the same cell if possible.
    Cached,
    /// Plain stores; while the port waits, it [prefetches](super::warm) the next cell for writing.
    Warm,
    /// Non-temporal stores.
    PastCaches,
}

impl Fill {
    const ALL: [Self; 3] = [Self::Cached, Self::Warm, Self::PastCaches];
}

/// Size classes, one per power of two: from 256 bytes, below which plain stores are as fast as the
/// others, to 8 KiB and more.
const SMALLEST: u32 = 8;
const CLASSES: usize = 6;
/// Messages of a run of answers.
const ANSWERS: u16 = 32;
/// Messages of a run in a stream: so many that waits for the receiver, for example after each
/// window, occur alike in all runs.
const STREAM: u16 = 128;
/// The first size class whose streams use non-temporal stores before anything is learned.
const LARGE: usize = 4;
/// Most runs until another policy is tried. A trial is seldom much slower.
const LONGEST_WAIT: u16 = 128;
/// Limit of the counter that rises with each message sent after one from the peer, and falls with
/// each other message. Messages count as answers when the counter exceeds three quarters of the
/// limit, and until it falls to one quarter.
const TURNS: u8 = 16;

/// The measurements of one peer.
#[derive(Clone, Copy, Debug)]
struct Filling {
    /// The selectors for messages in a stream, and for answers.
    ways: [[Ways<{ Fill::ALL.len() }, LONGEST_WAIT>; CLASSES]; 2],
    run: Run,
    /// Number of packets received from the peer when the last cell was filled; see [`TURNS`].
    received: u64,
    turns: u8,
    answers: bool,
}

#[derive(Clone, Copy, Debug)]
struct Run {
    /// Messages until the run ends; 0 if there is no run.
    left: u16,
    count: u16,
    answers: bool,
    class: u8,
    way: Fill,
    since: u64,
}

impl Run {
    const NONE: Self = Self { left: 0, count: 0, answers: false, class: 0, way: Fill::Cached, since: 0 };
}

impl Default for Filling {
    fn default() -> Self {
        let mut ways = [[Ways::preferring(Fill::Warm as u8); CLASSES]; 2];
        ways[0][LARGE..].fill(Ways::preferring(Fill::PastCaches as u8));
        Self { ways, run: Run::NONE, received: 0, turns: 0, answers: false }
    }
}

impl Filling {
    /// Returns the copy policy for a cell of this size class.
    #[inline(always)]
    fn fill(&mut self, class: u8, received: u64, ticks: impl FnOnce() -> Option<u64>) -> Fill {
        self.turns =
            if received == self.received { self.turns.saturating_sub(1) } else { TURNS.min(self.turns + 1) };
        self.received = received;
        self.answers = self.turns > if self.answers { TURNS / 4 } else { 3 * TURNS / 4 };
        let run = &mut self.run;
        if run.left > 1 && run.class == class && run.answers == self.answers {
            run.left -= 1;
            return run.way;
        }
        self.begin(class, ticks())
    }

    /// Ends the last run, and starts a run with the current message.
    #[cold]
    #[inline(never)]
    fn begin(&mut self, class: u8, now: Option<u64>) -> Fill {
        let Some(now) = now else { return Fill::Cached };
        let Run { left, count, way, since, .. } = self.run;
        let known = &mut self.ways[usize::from(self.run.answers)][usize::from(self.run.class)];
        match left {
            0 => {}
            1 => {
                let cost = now.saturating_sub(since) / u64::from(count.max(1));
                known.record(way as u8, cost.clamp(1, u32::MAX.into()) as u32);
            }
            // Another message interrupted the run, so its time is discarded.
            _ if way as u8 != known.preferred() => known.miss(),
            _ => {}
        }
        let answers = self.answers;
        let way = Fill::ALL[usize::from(self.ways[usize::from(answers)][usize::from(class)].next())];
        let count = if answers { ANSWERS } else { STREAM };
        self.run = Run { left: count, count, answers, class, way, since: now };
        way
    }
}

/// Cells in a row to peers without an entry after which one of them takes the entry.
const TAKE_OVER: u16 = 256;

/// Number of peers that are learned at a time. (Models have small stacks.)
const PLACES: usize = if cfg!(nemesia_loom) { 1 } else { HOT };

/// The measurements of some peers. The memory does not depend on the size of the world. Peers that
/// share an entry replace each other; cells to peers without an entry are filled with plain stores.
#[derive(Debug)]
pub(super) struct Fillings([Place; PLACES]);

#[derive(Clone, Copy, Debug, Default)]
struct Place {
    peer: PeerId,
    /// Cells in a row to other peers that share this entry.
    others: u16,
    filling: Filling,
}

impl Fillings {
    pub(super) fn new() -> Self {
        let place = |at| Place { peer: at as PeerId, ..Place::default() };
        Self(core::array::from_fn(place))
    }

    /// Returns the copy policy for a cell with `len` bytes for this peer. `received` is the number
    /// of packets received from the peer.
    #[inline(always)]
    pub(super) fn fill(
        &mut self,
        peer: PeerId,
        stores: Stores,
        len: usize,
        received: u64,
        ticks: impl FnOnce() -> Option<u64>,
    ) -> Fill {
        let class = (len as u64 | 1).ilog2().checked_sub(SMALLEST);
        let class = match (stores, class) {
            (Stores::Warmed, _) => return Fill::Warm,
            (Stores::PastCaches, Some(_)) => return Fill::PastCaches,
            (Stores::Learned, Some(class)) => class,
            _ => return Fill::Cached,
        };
        let class = class.min(CLASSES as u32 - 1) as u8;
        self.of(peer).map_or(Fill::Cached, |filling| filling.fill(class, received, ticks))
    }

    /// Returns the measurements of this peer, if it has an entry.
    #[inline(always)]
    fn of(&mut self, peer: PeerId) -> Option<&mut Filling> {
        let place = &mut self.0[peer as usize % PLACES];
        if place.peer != peer {
            place.others += 1;
            if place.others < TAKE_OVER {
                return None;
            }
            *place = Place { peer, ..Place::default() };
        }
        place.others = 0;
        Some(&mut place.filling)
    }
}

#[cfg(test)]
mod tests;
