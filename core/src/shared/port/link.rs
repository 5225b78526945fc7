//! What connects us with one peer: the ends of everything that lies in both segments, and where we are in it.

use crate::shared::pool::{PeerPool, ReturnReceiver, ReturnSender};
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
    /// Our cells that the peer holds.
    pub(super) lent: u32,
    /// The cells may hold a packet whose queue entry is gone.
    pub(super) sweep: bool,
}

impl<'a> Link<'a> {
    /// A link over which nothing was sent.
    pub const fn new(ends: Ends<'a>) -> Self {
        Self { ends, traffic: Traffic { next: 1, expected: 1, lent: 0, sweep: false } }
    }
}
