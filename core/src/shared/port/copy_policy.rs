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
//! Messages that answer another message are learned separately from messages in a stream. Time that a process spends
//! elsewhere is included; it is the same for all policies, and hides a difference only where the difference does not
//! matter. All this concerns cells of less than a page, whose copies are too short to be timed one by one; see
//! [`pace`](super::pace) for the others.
#![forbid(unsafe_code)]

use super::HOT;
use super::pace::CellPaces;
use crate::port::{PeerId, Stores};
use crate::selector::run::Run;
use crate::selector::turns::Turns;
use crate::selector::{AdaptiveSelector, RunAmount, TrialBudget};

/// Size classes, one per power of two: from 256 bytes, below which plain stores are as fast as the others, to 2 KiB.
/// Longer cells are measured one by one ([`pace`](super::pace)).
const SMALLEST: u32 = 8;
const CLASSES: usize = 4;
/// Messages of a run of answers.
const ANSWERS: u64 = 32;
/// Messages of a run in a stream: so many that waits for the receiver, for example after each window, occur
/// alike in all runs.
const STREAM: u64 = 64;
/// Messages of a short run. The first cells filled by another policy may cost more than later ones.
const SHORT: u64 = 2;
/// Messages between two looks at the clock.
const STEP: u64 = 4;
/// Most runs until another policy is tried. A trial is seldom much slower.
const LONGEST_WAIT: u16 = 128;

/// Messages of one size class, in a stream or as answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FillClass {
    answers: bool,
    size: u8,
}

type FillSelector = AdaptiveSelector<{ Stores::ALL.len() }, LONGEST_WAIT>;

/// The measurements of one peer.
#[derive(Clone, Copy, Debug)]
struct CopyPolicy {
    /// The selectors for messages in a stream, and for answers.
    selectors: [[FillSelector; CLASSES]; 2],
    budget: TrialBudget,
    /// Costs are in ticks for each message.
    run: Option<Run<FillClass, 1>>,
    /// The class and the stores of the run, and messages until the clock is read; 0 if there is no run.
    class: FillClass,
    stores: Stores,
    left: u8,
    /// Messages since the clock was read.
    step: u8,
    /// Number of packets received from the peer when the last cell was filled.
    received: u64,
    turns: Turns,
    /// What was learned about cells of a page and more.
    paces: CellPaces,
}

/// The stores with this number; it is their place in [`Stores::ALL`].
fn stores(option: u8) -> Stores {
    Stores::ALL.get(usize::from(option)).copied().unwrap_or(Stores::Cached)
}

const fn option(stores: Stores) -> u8 {
    stores as u8 - Stores::Cached as u8
}

impl Default for CopyPolicy {
    fn default() -> Self {
        let selectors = [[AdaptiveSelector::preferring(option(Stores::Prefetched)); CLASSES]; 2];
        Self {
            selectors,
            budget: TrialBudget::default(),
            run: None,
            class: FillClass { answers: false, size: 0 },
            stores: Stores::Cached,
            left: 0,
            step: 0,
            received: 0,
            turns: Turns::default(),
            paces: CellPaces::default(),
        }
    }
}

impl CopyPolicy {
    /// Returns the stores for a cell of this size class.
    #[inline(always)]
    fn fill(&mut self, size: u8, received: u64, ticks: impl FnOnce() -> Option<u64>) -> Stores {
        let answers = self.turns.take(received != self.received);
        self.received = received;
        let class = FillClass { answers, size };
        if self.left > 0 && self.class == class {
            self.left -= 1;
            return self.stores;
        }
        self.step(class, ticks())
    }

    /// Ends the run if it is over or if this message is of another class, and starts the next run.
    #[cold]
    #[inline(never)]
    fn step(&mut self, class: FillClass, now: Option<u64>) -> Stores {
        let Some(now) = now else { return Stores::Cached };
        if let Some(mut run) = self.run.take() {
            run.end(self.step.into());
            if run.class != class {
                // Another message interrupted the run, so its time is discarded.
                run.spoil();
            } else if !run.is_over(now) {
                self.run = Some(run);
                self.look_again(run.left());
                return self.stores;
            }
            let selector = &mut self.selectors[usize::from(run.class.answers)][usize::from(run.class.size)];
            run.close(now, selector, &mut self.budget);
        }
        let full = if class.answers { ANSWERS } else { STREAM };
        let selector = &mut self.selectors[usize::from(class.answers)][usize::from(class.size)];
        let plan = selector.plan(RunAmount { first: SHORT, least: SHORT, full }, &self.budget);
        (self.class, self.stores) = (class, stores(plan.option));
        self.run = Some(Run::start(class, plan, now));
        self.look_again(plan.amount);
        self.stores
    }

    /// Reads the clock again after a step, or when the run's last messages were sent.
    fn look_again(&mut self, left: u64) {
        self.step = left.min(STEP) as u8;
        self.left = self.step - u8::from(self.step > 0);
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

    /// Returns what was learned about cells of a page and more for this peer, if it has an entry.
    #[inline(always)]
    pub(super) fn paces(&mut self, peer: PeerId) -> Option<&mut CellPaces> {
        self.of(peer).map(|copy_policy| &mut copy_policy.paces)
    }

    /// Returns the copy policy for a cell with `len` bytes, less than a page, for this peer. `received` is the
    /// number of packets received from the peer.
    #[inline(always)]
    pub(super) fn fill(
        &mut self,
        peer: PeerId,
        stores: Option<Stores>,
        len: usize,
        received: u64,
        ticks: impl FnOnce() -> Option<u64>,
    ) -> Stores {
        let class = (len as u64 | 1).ilog2().checked_sub(SMALLEST);
        let class = match (stores, class) {
            (Some(Stores::Prefetched), _) => return Stores::Prefetched,
            (Some(Stores::NonTemporal), Some(_)) => return Stores::NonTemporal,
            (None, Some(class)) => class,
            _ => return Stores::Cached,
        };
        let class = class.min(CLASSES as u32 - 1) as u8;
        self.of(peer).map_or(Stores::Cached, |copy_policy| copy_policy.fill(class, received, ticks))
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
