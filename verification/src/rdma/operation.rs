//! A posted work request while it is under way.

use nemesia_core::port::memory::{PortRegion, RemoteRange, Slice};

use super::Flaw;
use super::memory::Reach;
use crate::rng::Rng;

/// The kind of a work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Write { to: RemoteRange, immediate: Option<u32> },
    Read { from: RemoteRange },
    Send { immediate: Option<u32> },
    Add { at: RemoteRange, add: u64 },
    Swap { at: RemoteRange, expected: u64, new: u64 },
}

impl Kind {
    /// Returns the access to the target's memory, and its place.
    pub(super) const fn reach(self) -> Option<(RemoteRange, Reach)> {
        match self {
            Self::Write { to, .. } => Some((to, Reach::Write)),
            Self::Read { from } => Some((from, Reach::Read)),
            Self::Add { at, .. } | Self::Swap { at, .. } => Some((at, Reach::Atomic)),
            Self::Send { .. } => None,
        }
    }

    /// Returns whether the operation brings data back.
    pub(super) const fn is_answered(self) -> bool {
        matches!(self, Self::Read { .. } | Self::Add { .. } | Self::Swap { .. })
    }

    /// Returns whether the operation is a write without immediate.
    pub(super) const fn is_plain_write(self) -> bool {
        matches!(self, Self::Write { immediate: None, .. })
    }
}

/// Room for a message: a posted receive.
#[derive(Clone, Debug)]
pub(super) struct Receive {
    pub(super) id: u64,
    pub(super) slices: Vec<Slice>,
}

impl Receive {
    pub(super) fn len(&self) -> u64 {
        self.slices.iter().map(|slice| u64::from(slice.len)).sum()
    }
}

/// The local parts of the work request.
#[derive(Clone, Debug)]
pub(super) enum Local {
    Slices(Vec<Slice>),
    Bytes(Vec<u8>),
}

/// The progress of a work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Nothing has happened at the target.
    Waiting,
    /// Some of its parts are placed.
    Moving,
    /// Everything is placed.
    Done,
}

/// A work request of a send queue.
#[derive(Debug)]
pub(super) struct Operation {
    pub(super) id: u64,
    /// Its number in its queue.
    pub(super) number: u64,
    pub(super) quiet: bool,
    pub(super) fence: bool,
    pub(super) kind: Kind,
    pub(super) local: Local,
    pub(super) len: u64,
    pub(super) stage: Stage,
    /// Whether its completion was reported to its owner.
    pub(super) reported: bool,
    /// The parts that are not placed yet: position and length in bytes.
    pub(super) parts: Vec<(u64, u64)>,
    /// The place at the target that it writes or reads.
    pub(super) target: Option<(PortRegion, u64)>,
    /// The receive that it consumes.
    pub(super) receive: Option<Receive>,
}

impl Operation {
    /// Divides the bytes into at most eight parts, at random.
    pub(super) fn divide(&mut self, rng: &mut Rng) {
        let mut ends: Vec<u64> =
            (0..rng.below(8)).map(|_| rng.next() % self.len.max(1)).filter(|end| *end > 0).collect();
        ends.push(self.len);
        ends.sort_unstable();
        ends.dedup();
        let starts = std::iter::once(0).chain(ends.iter().copied());
        self.parts = starts.zip(&ends).map(|(start, end)| (start, end - start)).collect();
        self.parts.retain(|(_, len)| *len > 0);
        // Parts are taken from the back.
        self.parts.reverse();
    }

    /// Returns whether it may begin while `earlier` of the same queue is in its state (IBA, "Transaction
    /// Ordering").
    pub(super) fn may_follow(&self, earlier: &Self, ordered: bool, flaw: Option<Flaw>) -> bool {
        let fence = self.fence && flaw != Some(Flaw::Fence);
        let overtakes = earlier.kind.is_answered() && !fence && !self.kind.is_answered();
        let beside = !ordered
            && earlier.kind.is_plain_write()
            && self.kind.is_plain_write()
            && earlier.stage != Stage::Waiting;
        let early = flaw == Some(Flaw::Overtaking) && earlier.kind.is_plain_write();
        earlier.stage == Stage::Done || overtakes || beside || early
    }

    /// Returns whether it uses a region of the sender now.
    pub(super) fn holds(&self, region: PortRegion) -> bool {
        let moving = self.stage == Stage::Moving;
        moving
            && matches!(&self.local, Local::Slices(slices) if slices.iter().any(|slice| slice.region == region))
    }

    /// Returns whether the target can't take a region back now: a message arrives in it, or it is read. A write is cut
    /// off instead.
    pub(super) fn reaches(&self, region: PortRegion) -> bool {
        let receive = self.receive.as_ref();
        let takes = receive.is_some_and(|receive| receive.slices.iter().any(|slice| slice.region == region));
        let is_read = self.kind.is_answered() && self.target.is_some_and(|(target, _)| target == region);
        self.stage == Stage::Moving && (takes || is_read)
    }
}
