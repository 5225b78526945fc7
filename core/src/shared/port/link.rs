//! What connects us with one peer: the ends of everything that lies in both segments, and where we are in it.

use super::Stores;
use super::filling::Fill;
use crate::counters::{Count, Traffic as Told};
use crate::shared::pool::{PeerPool, ReturnReceiver, ReturnSender, Turn};
use crate::shared::queue::Producer;
use crate::shared::sleep::SleepWord;
use crate::shared::{fastbox, share};
use crate::sync::Word64;

/// The ends of everything that connects us with one peer, as the layer above finds them in the mappings.
#[derive(Debug)]
pub struct Ends<'a> {
    /// To the peer: slots in our segment, position in the peer's.
    pub outbound: fastbox::Sender<'a>,
    /// From the peer: slots in the peer's segment, position in ours.
    pub inbound: fastbox::Receiver<'a>,
    /// The peer's cells.
    pub cells: PeerPool<'a>,
    /// Gives the peer's cells back: in our segment.
    pub give_back: ReturnSender<'a>,
    /// Our cells that the peer gives back: in its segment.
    pub given_back: ReturnReceiver<'a>,
    /// The peer's receive queue.
    pub queue: Producer<'a>,
    /// The peer's sleep word.
    pub sleep: &'a SleepWord,
    /// Units of room that we promise the peer: in our segment.
    pub grant: &'a Word64,
    /// Units of room that the peer promises us: in its segment.
    pub granted: &'a Word64,
    /// Messages from the peer that both copy.
    pub share: share::Receiver<'a>,
    /// Messages to the peer that both copy.
    pub help: share::Helper<'a>,
}

/// A connection with one peer.
#[derive(Debug)]
pub struct Link<'a> {
    pub(super) ends: Ends<'a>,
    pub(super) traffic: Traffic,
}

/// Private counters of a link.
#[derive(Debug)]
pub(super) struct Traffic {
    /// Sequence number of the next packet to the peer.
    pub(super) next: u64,
    /// Sequence number of the next packet from the peer.
    pub(super) expected: u64,
    /// Our cells that the peer holds; no pool has as many as this counts.
    pub(super) lent: u16,
    /// The cells may hold a packet whose queue entry is gone.
    pub(super) sweep: bool,
    /// The peer sleeps on although it was sent something, as far as we know.
    pub(super) counted: bool,
    /// The last send found no cell.
    pub(super) waits: bool,
    /// When a cell that the peer gives back will be used again.
    pub(super) turn: Turn,
    /// How those with parts of large messages are filled, if the receiver has a wish.
    pub(super) data_stores: Stores,
    /// See [`Told`]; the packets that went through a fastbox are the others.
    pub(super) cells_sent: Count,
    pub(super) cells_received: Count,
    pub(super) fastbox_full: u64,
    pub(super) exhausted: u64,
    pub(super) wakes: u64,
    pub(super) past_caches: u64,
}

impl Traffic {
    /// A packet of so many bytes has left in a cell, which the peer holds now.
    #[inline(always)]
    pub(super) fn sent_cell(&mut self, len: usize, fill: Fill, turn: Turn) {
        self.past_caches += u64::from(fill == Fill::PastCaches);
        self.turn = turn;
        self.next += 1;
        self.lent += 1;
        self.waits = false;
        self.cells_sent.add(len);
    }

    const fn new() -> Self {
        let none = Count { count: 0, bytes: 0 };
        Self {
            next: 1,
            expected: 1,
            lent: 0,
            sweep: false,
            counted: false,
            waits: false,
            turn: Turn::First,
            data_stores: Stores::Learned,
            cells_sent: none,
            cells_received: none,
            fastbox_full: 0,
            exhausted: 0,
            wakes: 0,
            past_caches: 0,
        }
    }

    /// There is no cell for a packet.
    #[cold]
    pub(super) const fn wait(&mut self) {
        if !self.waits {
            self.waits = true;
            self.exhausted += 1;
        }
    }

    pub(super) const fn told(&self) -> Told {
        Told {
            sent: self.next - 1,
            received: self.expected - 1,
            cells_sent: self.cells_sent,
            cells_received: self.cells_received,
            fastbox_full: self.fastbox_full,
            cells_exhausted: self.exhausted,
            wakes: self.wakes,
            past_caches: self.past_caches,
        }
    }
}

impl<'a> Link<'a> {
    /// A link over which nothing was sent.
    pub const fn new(ends: Ends<'a>) -> Self {
        Self { ends, traffic: Traffic::new() }
    }
}

// Found by a shift. (Models have other words.)
#[cfg(not(nemesia_loom))]
static_assertions::const_assert!(size_of::<Option<Link<'static>>>() == 512);
