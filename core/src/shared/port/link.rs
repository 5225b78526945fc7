//! The link with one peer: the ends of all shared structures in both segments, and this process's positions in them.

use super::Stores;
use crate::counters::{Count, TrafficCounters as Reported};
use crate::shared::end_mark::EndMark;
use crate::shared::layout::Line;
use crate::shared::pool::{PeerPool, ReturnReceiver, ReturnSender, ReuseOrder};
use crate::shared::queue::Producer;
use crate::shared::sleep::SleepWord;
use crate::shared::{assist, fastbox};

/// The ends of all structures shared with one peer, as the layer above finds them in the mappings.
#[derive(Debug)]
pub struct Ends<'a> {
    /// To the peer: slots in this process's segment, position in the peer's.
    pub outbound: fastbox::FastboxSender<'a>,
    /// From the peer: slots in the peer's segment, position in this process's.
    pub inbound: fastbox::FastboxReceiver<'a>,
    /// The peer's cells.
    pub cells: PeerPool<'a>,
    /// The ring that returns the peer's cells; in this process's segment.
    pub give_back: ReturnSender<'a>,
    /// The ring of this process's cells that the peer returns; in the peer's segment.
    pub given_back: ReturnReceiver<'a>,
    /// The peer's receive queue.
    pub queue: Producer<'a>,
    /// The peer's sleep word.
    pub sleep: &'a SleepWord,
    /// The line with the credit that this process grants the peer, in units; in this process's segment.
    pub grant: &'a Line,
    /// The line with the credit that the peer grants this process, in units; in the peer's segment.
    pub granted: &'a Line,
    /// The mark of this process.
    pub end_mark: EndMark<'a>,
    /// Sender-assisted copies of messages from the peer.
    pub assist: assist::AssistReceiver<'a>,
    /// Sender-assisted copies of messages to the peer.
    pub assist_sender: assist::AssistSender<'a>,
}

/// A connection with one peer.
#[derive(Debug)]
pub struct Link<'a> {
    pub(super) ends: Ends<'a>,
    pub(super) traffic: LinkTraffic,
}

/// A condition of a link.
#[derive(Clone, Copy, Debug)]
pub(super) enum Condition {
    /// The cells may hold a packet whose queue entry is lost.
    Sweep = 1,
    /// The peer probably sleeps although messages were sent to it.
    Counted = 2,
    /// The last send found no free cell.
    Waits = 4,
    /// Its close leaves the peer the cells that it holds.
    LeavesCells = 8,
    /// Its close keeps the share that the peer may be writing.
    KeepsShare = 16,
}

/// The conditions that hold, in one byte.
#[derive(Clone, Copy, Debug)]
pub(super) struct Conditions(u8);

impl Conditions {
    #[inline(always)]
    pub(super) const fn has(self, condition: Condition) -> bool {
        self.0 & condition as u8 != 0
    }

    #[inline(always)]
    pub(super) const fn set(&mut self, condition: Condition, holds: bool) {
        self.0 = if holds { self.0 | condition as u8 } else { self.0 & !(condition as u8) };
    }
}

/// Private counters and state of a link.
#[derive(Debug)]
pub(super) struct LinkTraffic {
    /// The number by which the peer knows this process. It is the destination of cells from the peer, and a part of the
    /// entries in the peer's receive queue. Each side chooses the number of the other: the index of its link.
    pub(super) number: u16,
    /// Sequence number of the next packet to the peer.
    pub(super) next: u64,
    /// Sequence number of the next packet from the peer.
    pub(super) expected: u64,
    /// Number of this process's cells that the peer holds. Every pool is smaller than the range of this type.
    pub(super) lent: u16,
    pub(super) conditions: Conditions,
    /// The reuse order of the next cell that the peer returns.
    pub(super) reuse_order: ReuseOrder,
    /// See [`Reported`]. All other packets went through a fastbox.
    pub(super) cells_sent: Count,
    pub(super) cells_received: Count,
    pub(super) fastbox_full: u64,
    pub(super) exhausted: u64,
    pub(super) wakes: u64,
    pub(super) non_temporal: u64,
}

impl LinkTraffic {
    /// Counts a packet of `len` bytes that was sent in a cell, which the peer now holds.
    #[inline(always)]
    pub(super) fn sent_cell(&mut self, len: usize, fill: Stores, reuse_order: ReuseOrder) {
        self.non_temporal += u64::from(fill == Stores::NonTemporal);
        self.reuse_order = reuse_order;
        self.next += 1;
        self.lent += 1;
        self.conditions.set(Condition::Waits, false);
        self.cells_sent.add(len);
    }

    const fn new(number: u16) -> Self {
        let none = Count { count: 0, bytes: 0 };
        Self {
            number,
            next: 1,
            expected: 1,
            lent: 0,
            conditions: Conditions(0),
            reuse_order: ReuseOrder::First,
            cells_sent: none,
            cells_received: none,
            fastbox_full: 0,
            exhausted: 0,
            wakes: 0,
            non_temporal: 0,
        }
    }

    /// Records that no cell is free for a packet.
    #[cold]
    pub(super) const fn wait(&mut self) {
        if !self.conditions.has(Condition::Waits) {
            self.conditions.set(Condition::Waits, true);
            self.exhausted += 1;
        }
    }

    pub(super) const fn reported(&self) -> Reported {
        Reported {
            sent: self.next - 1,
            received: self.expected - 1,
            cells_sent: self.cells_sent,
            cells_received: self.cells_received,
            fastbox_full: self.fastbox_full,
            cells_exhausted: self.exhausted,
            wakes: self.wakes,
            non_temporal: self.non_temporal,
            rings_sent: Count { count: 0, bytes: 0 },
            rings_received: Count { count: 0, bytes: 0 },
            rings_full: 0,
        }
    }
}

impl<'a> Link<'a> {
    /// Returns a link over which nothing was sent. `number` is the number by which the peer knows this process.
    pub const fn new(number: u16, ends: Ends<'a>) -> Self {
        Self { ends, traffic: LinkTraffic::new(number) }
    }

    /// Grants the peer credit, in units, before the link is opened: the peer may use it as soon as it has opened its
    /// own.
    pub fn grant(&self, units: u64) {
        // No other data depends on this number, so it needs no ordering.
        self.ends.grant.credit.store_relaxed(units);
    }
}

// A power of two, so that an index becomes a shift. (Models have other words.)
#[cfg(not(nemesia_loom))]
static_assertions::const_assert!(size_of::<Option<Link<'static>>>() == 512);
