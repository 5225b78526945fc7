//! How a cell is filled: with plain stores, with plain stores to lines that were taken back before, or past the caches, as is faster
//! between these two cores.
//!
//! A plain store needs its line, which the receiver has from the last time: it comes from the receiver's core, the receiver takes it back,
//! and a core waits for only a few such lines at a time. Whoever waits for an answer can [take the lines back](super::warm) in that
//! time, for the next message; if both are on one core there is nothing to take back, and one cell that is always the same is
//! better. Stores past the caches ask nobody; the receiver reads from memory, which takes as long for one line as for many and
//! wherever the other core is.
//!
//! On one machine here 4 KiB cost 0.53 us in a ping-pong between near cores by plain stores, 0.28 us with lines that were taken
//! back and 0.8 us past the caches; between distant cores 2.2 us by plain stores and 0.9 us past the caches; in a stream
//! between near cores 0.35 us by plain stores and 0.4 us past the caches. So it is measured: what a *run* of messages of about
//! one size has cost, from the start of its first to the start of the next run's first, is what the [`Ways`] are compared by.
//!
//! Messages that answer one are learned apart from those that follow each other; of these, large ones go past the caches until
//! something is known. The time that a process spends elsewhere counts too; it is the same for all ways, and hides the difference where
//! it does not matter.
#![forbid(unsafe_code)]

use super::HOT;
use crate::port::{PeerId, Stores};
use crate::ways::Ways;

/// How a cell is filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Fill {
    /// With plain stores, always the same one if it can be.
    Cached,
    /// With plain stores; the next one is [made ready](super::warm) while nothing comes.
    Warm,
    /// Past the caches.
    PastCaches,
}

impl Fill {
    const ALL: [Self; 3] = [Self::Cached, Self::Warm, Self::PastCaches];
}

/// Powers of two that are told apart: from 256 bytes, below which plain stores are as fast, to 8 KiB and more.
const SMALLEST: u32 = 8;
const CLASSES: usize = 6;
/// Messages of a run, if each answers one.
const ANSWERS: u16 = 32;
/// And if they follow each other: so many that waits for the receiver, after each window perhaps, are in all runs alike.
const STREAM: u16 = 128;
/// The first class of which messages that follow each other go past the caches at first.
const LARGE: usize = 4;
/// Runs after which another way is tried at the latest. It is seldom slower by much.
const LONGEST_WAIT: u16 = 128;
/// Messages that came after one from the peer, less those that did not: so many, at most, are counted; more than three quarters are
/// needed for them to be taken for answers, and fewer than one quarter for that to end.
const TURNS: u8 = 16;

/// What is known of one peer.
#[derive(Clone, Copy, Debug)]
struct Filling {
    /// Of messages that follow each other, and of answers.
    ways: [[Ways<{ Fill::ALL.len() }, LONGEST_WAIT>; CLASSES]; 2],
    run: Run,
    /// Packets from the peer when the last cell was filled; see [`TURNS`].
    received: u64,
    turns: u8,
    answers: bool,
}

#[derive(Clone, Copy, Debug)]
struct Run {
    /// Messages until it ends; 0 is none.
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
    /// How a cell of this class of sizes is to be filled.
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

    /// The message is the first of a run, and the first after the last one, which is over.
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
            // Something else came in between: it tells nothing.
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

/// Cells in a row to peers that have no place, after which one of them takes it.
const TAKE_OVER: u16 = 256;

/// Peers of which something is known at a time. (Models have small stacks.)
const PLACES: usize = if cfg!(nemesia_loom) { 1 } else { HOT };

/// What is known of some peers: as much memory whether the world is large or small. More of them than there are places take
/// turns; cells to who has none are filled with plain stores.
#[derive(Debug)]
pub(super) struct Fillings([Place; PLACES]);

#[derive(Clone, Copy, Debug, Default)]
struct Place {
    peer: PeerId,
    /// Cells in a row to others that have this place.
    others: u16,
    filling: Filling,
}

impl Fillings {
    pub(super) fn new() -> Self {
        let place = |at| Place { peer: at as PeerId, ..Place::default() };
        Self(core::array::from_fn(place))
    }

    /// How a cell with so many bytes for this peer, from which so many packets have come, is to be filled.
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

    /// What is known of this peer, if it has a place.
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
