//! The models, and the mutants that each must kill.
#![allow(clippy::expect_used, clippy::panic, reason = "panicking is how a model fails")]

mod assist;
mod cells;
mod crash;
mod ends;
mod fastbox;
mod header;
mod port;
mod queue;
mod region;
mod releases;
mod ring;
mod sleep;
mod threads;

use nemesia_core::sync::Edge;

use crate::mutant::{ENDS, InjectedFault, Mutant};
use crate::stage::Run;

/// A model of one promise of one structure.
pub(crate) struct Model {
    /// `structure/promise`, for the command line.
    pub(crate) name: &'static str,
    /// The code under test, in `nemesia-core`.
    pub(crate) structure: &'static str,
    /// The promise that the model checks.
    pub(crate) property: &'static str,
    /// The edges on which the promise rests. Both ends of each are mutants that the model must kill.
    pub(crate) edges: &'static [Edge],
    /// The injected faults that the model can enable, and must detect.
    pub(crate) injected_faults: &'static [InjectedFault],
    /// Explores the model.
    pub(crate) run: fn(&Run),
}

impl Model {
    /// Returns every mutant that the model must kill.
    pub(crate) fn mutants(&self) -> impl Iterator<Item = Mutant> {
        let weak = self.edges.iter().flat_map(|&edge| ENDS.map(|end| Mutant::Weak(edge, end)));
        weak.chain(self.injected_faults.iter().copied().map(Mutant::InjectedFault))
    }
}

/// All models.
pub(crate) const ALL: &[Model] = &[
    fastbox::WRAP,
    fastbox::SHORT,
    fastbox::SEVERAL_SLOTS,
    cells::REFILL,
    cells::NON_TEMPORAL,
    cells::PREFETCHED,
    cells::SWEEP,
    ends::WITHDRAWN,
    ends::ENDED,
    ends::DIED,
    ends::READ,
    queue::PRODUCERS,
    queue::HINT,
    queue::STALE,
    queue::OVERRUN,
    ring::BYTES,
    ring::RECORDS,
    header::READY,
    region::HANDED_OVER,
    region::LAST_WORD,
    region::COUNTED,
    region::NON_TEMPORAL,
    releases::REPORTED,
    releases::TWO_REPORT,
    assist::ONE,
    assist::TWO,
    assist::UNEVEN,
    sleep::WAKE,
    sleep::TWICE,
    sleep::TWO_WAKERS,
    sleep::EVENT,
    sleep::COUNTED,
    sleep::ASKED,
    sleep::ASKED_AGAIN,
    sleep::ROOM,
    threads::LOCK,
    threads::AGAIN,
    threads::TWICE,
    threads::DRIVER,
    threads::NOTIFY,
    threads::HEIR,
    port::BY_SIZE,
    port::ANNOUNCED,
    port::RETURNED,
    port::PREFETCHED,
    port::OVERFLOW,
    port::TWO_SENDERS,
    crash::PRODUCER,
    crash::FASTBOX,
    crash::RECEIVER_DIES,
    crash::RING,
    crash::PORT,
    crash::ANNOUNCED,
];
