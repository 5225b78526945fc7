//! The copy policy for cells: plain stores, plain stores after a write prefetch, or non-temporal stores,
//! whichever is fastest between the two cores.
//!
//! A plain store needs its cache line, which the receiver's core holds from the last use. The line moves to
//! the sender, and later back to the receiver, and a core can wait for only a few such lines at a time. A
//! process that waits for an answer can [prefetch the lines](super::prefetch) for the next message in that
//! time. If both processes share one core, nothing needs to move, and reusing one cell is better.
//! Non-temporal stores need no line; the receiver then reads from memory, whose latency is the same for one
//! line as for many, and for any position of the other core.
//!
//! On one test machine 4 KiB took 0.53 us in a ping-pong between near cores with plain stores, 0.28 us with
//! write prefetch and 0.8 us with non-temporal stores; between distant cores 2.2 us with plain stores and 0.9
//! us with non-temporal stores; in a stream between near cores 0.35 us with plain stores and 0.4 us with
//! non-temporal stores. The policy is therefore selected by measurement. A *run* consists of messages of
//! similar size. The cost of a run is the time from the start of its first message to the start of the next
//! run's first message. [`AdaptiveSelector`] compares the costs.
//!
//! Messages that answer another message are learned separately from messages in a stream. Large messages in a
//! stream use non-temporal stores until something is learned. Time that a process spends elsewhere is
//! included; it is the same for all policies, and hides a difference only where the difference does not
//! matter.
#![forbid(unsafe_code)]

use super::HOT;
use crate::port::{PeerId, Stores};
use crate::selector::AdaptiveSelector;

/// The copy policy for a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum FillMethod {
    /// Plain stores, into the same cell if possible.
    Cached,
    /// Plain stores; while the port waits, it [prefetches](super::prefetch) the next cell for writing.
    Prefetched,
    /// Non-temporal stores.
    NonTemporal,
}

impl FillMethod {
    const ALL: [Self; 3] = [Self::Cached, Self::Prefetched, Self::NonTemporal];
}

/// Size classes, one per power of two: from 256 bytes, below which plain stores are as fast as the others, to
/// 8 KiB and more.
const SMALLEST: u32 = 8;
const CLASSES: usize = 6;
/// Messages of a run of answers.
const ANSWERS: u16 = 32;
/// Messages of a run in a stream: so many that waits for the receiver, for example after each window, occur
/// alike in all runs.
const STREAM: u16 = 128;
/// The first size class whose streams use non-temporal stores before anything is learned.
const LARGE: usize = 4;
/// Most runs until another policy is tried. A trial is seldom much slower.
const LONGEST_WAIT: u16 = 128;
/// Limit of the counter that rises with each message sent after one from the peer, and falls with each other
/// message. Messages count as answers when the counter exceeds three quarters of the limit, and until it
/// falls to one quarter.
const TURNS: u8 = 16;

/// The measurements of one peer.
#[derive(Clone, Copy, Debug)]
struct CopyPolicy {
    /// The selectors for messages in a stream, and for answers.
    selector: [[AdaptiveSelector<{ FillMethod::ALL.len() }, LONGEST_WAIT>; CLASSES]; 2],
    run: FillRun,
    /// Number of packets received from the peer when the last cell was filled; see [`TURNS`].
    received: u64,
    turns: u8,
    answers: bool,
}

#[derive(Clone, Copy, Debug)]
struct FillRun {
    /// Messages until the run ends; 0 if there is no run.
    left: u16,
    count: u16,
    answers: bool,
    class: u8,
    option: FillMethod,
    since: u64,
}

impl FillRun {
    const NONE: Self =
        Self { left: 0, count: 0, answers: false, class: 0, option: FillMethod::Cached, since: 0 };
}

impl Default for CopyPolicy {
    fn default() -> Self {
        let mut selector = [[AdaptiveSelector::preferring(FillMethod::Prefetched as u8); CLASSES]; 2];
        selector[0][LARGE..].fill(AdaptiveSelector::preferring(FillMethod::NonTemporal as u8));
        Self { selector, run: FillRun::NONE, received: 0, turns: 0, answers: false }
    }
}

impl CopyPolicy {
    /// Returns the copy policy for a cell of this size class.
    #[inline(always)]
    fn fill(&mut self, class: u8, received: u64, ticks: impl FnOnce() -> Option<u64>) -> FillMethod {
        self.turns =
            if received == self.received { self.turns.saturating_sub(1) } else { TURNS.min(self.turns + 1) };
        self.received = received;
        self.answers = self.turns > if self.answers { TURNS / 4 } else { 3 * TURNS / 4 };
        let run = &mut self.run;
        if run.left > 1 && run.class == class && run.answers == self.answers {
            run.left -= 1;
            return run.option;
        }
        self.begin(class, ticks())
    }

    /// Ends the last run, and starts a run with the current message.
    #[cold]
    #[inline(never)]
    fn begin(&mut self, class: u8, now: Option<u64>) -> FillMethod {
        let Some(now) = now else { return FillMethod::Cached };
        let FillRun { left, count, option, since, .. } = self.run;
        let known = &mut self.selector[usize::from(self.run.answers)][usize::from(self.run.class)];
        match left {
            0 => {}
            1 => {
                let cost = now.saturating_sub(since) / u64::from(count.max(1));
                known.record(option as u8, cost.clamp(1, u32::MAX.into()) as u32);
            }
            // Another message interrupted the run, so its time is discarded.
            _ if option as u8 != known.preferred() => known.miss(),
            _ => {}
        }
        let answers = self.answers;
        let option =
            FillMethod::ALL[usize::from(self.selector[usize::from(answers)][usize::from(class)].next())];
        let count = if answers { ANSWERS } else { STREAM };
        self.run = FillRun { left: count, count, answers, class, option, since: now };
        option
    }
}

/// Cells in a row to peers without an entry after which one of them takes the entry.
const TAKE_OVER: u16 = 256;

/// Number of peers that are learned at a time. (Models have small stacks.)
const PLACES: usize = if cfg!(nemesia_loom) { 1 } else { HOT };

/// The measurements of some peers. The memory does not depend on the size of the world. Peers that share an
/// entry replace each other; cells to peers without an entry are filled with plain stores.
#[derive(Debug)]
pub(super) struct CopyPolicies([PolicySlot; PLACES]);

#[derive(Clone, Copy, Debug, Default)]
struct PolicySlot {
    peer: PeerId,
    /// Cells in a row to other peers that share this entry.
    others: u16,
    copy_policy: CopyPolicy,
}

impl CopyPolicies {
    pub(super) fn new() -> Self {
        let place = |at| PolicySlot { peer: at as PeerId, ..PolicySlot::default() };
        Self(core::array::from_fn(place))
    }

    /// Returns the copy policy for a cell with `len` bytes for this peer. `received` is the number of packets
    /// received from the peer.
    #[inline(always)]
    pub(super) fn fill(
        &mut self,
        peer: PeerId,
        stores: Stores,
        len: usize,
        received: u64,
        ticks: impl FnOnce() -> Option<u64>,
    ) -> FillMethod {
        let class = (len as u64 | 1).ilog2().checked_sub(SMALLEST);
        let class = match (stores, class) {
            (Stores::Prefetched, _) => return FillMethod::Prefetched,
            (Stores::NonTemporal, Some(_)) => return FillMethod::NonTemporal,
            (Stores::Learned, Some(class)) => class,
            _ => return FillMethod::Cached,
        };
        let class = class.min(CLASSES as u32 - 1) as u8;
        self.of(peer).map_or(FillMethod::Cached, |copy_policy| copy_policy.fill(class, received, ticks))
    }

    /// Returns the measurements of this peer, if it has an entry.
    #[inline(always)]
    fn of(&mut self, peer: PeerId) -> Option<&mut CopyPolicy> {
        let place = &mut self.0[peer as usize % PLACES];
        if place.peer != peer {
            place.others += 1;
            if place.others < TAKE_OVER {
                return None;
            }
            *place = PolicySlot { peer, ..PolicySlot::default() };
        }
        place.others = 0;
        Some(&mut place.copy_policy)
    }
}

#[cfg(test)]
mod tests;
