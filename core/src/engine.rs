//! The engine: tagged messages over a [`MessagePort`], non-blocking, driven by [`Engine::progress`].
//!
//! All storage is lent ([`Storage`]); no call blocks, and each does a bounded amount of work. The layer above
//! decides when to call, when to sleep, and tells when a peer has died.
//!
//! | file | what it holds |
//! |---|---|
//! | `engine/request.rs` | requests: what was asked for, and what came of it |
//! | `engine/send.rs` | starting sends; the queue of pending sends of each peer (paper 4, section 3.1) |
//! | `engine/receive.rs` | posting receives; delivering packets |
//! | `engine/progress.rs` | one turn of the crank; failures |
#![forbid(unsafe_code)]

mod progress;
mod receive;
mod request;
mod send;
#[cfg(test)]
mod tests;

use core::borrow::{Borrow, BorrowMut};

pub use progress::{PACKETS_A_TURN, Progress};
pub use receive::Bypass;
pub use request::{Failure, Fate, Outcome, Request, RequestId, StartError, Status, Truncation};

use crate::matching::{Posted, Source};
use crate::port::{MessagePort, PeerId};
use crate::slab::{List, Slab, Slot};
use crate::unexpected::{Message, Unexpected};

/// The memory that the engine is lent, by type. Slices and `Vec`s will do; those of requests may grow.
pub trait Storage {
    /// One slot for each request under way.
    type Requests: BorrowMut<[Slot<Request>]>;
    /// One for each rank of the world.
    type Peers: BorrowMut<[Peer]>;
    /// One entry for each unexpected message.
    type Entries: BorrowMut<[Slot<Message>]>;
    /// The bytes of larger unexpected messages.
    type Chunks: BorrowMut<[u8]>;
    /// Lists by hash, for matching: about as many as there are requests, or entries. The largest power of two is used.
    type Buckets: BorrowMut<[List]>;
}

/// The lent memory itself.
#[derive(Debug)]
pub struct Lent<S: Storage> {
    /// See [`Storage::Requests`].
    pub requests: S::Requests,
    /// See [`Storage::Peers`].
    pub peers: S::Peers,
    /// See [`Storage::Entries`].
    pub entries: S::Entries,
    /// See [`Storage::Chunks`].
    pub chunks: S::Chunks,
    /// See [`Storage::Buckets`]; for posted receives.
    pub posted: S::Buckets,
    /// See [`Storage::Buckets`]; for unexpected messages.
    pub stored: S::Buckets,
}

/// What the engine knows of one rank.
#[derive(Debug, Default)]
pub struct Peer {
    /// Sends that wait for room, in order.
    pending: List,
    /// The message of which more packets are to come.
    partial: Partial,
    failure: Option<Failure>,
    /// It is gone, but what it has sent may not have been taken yet.
    departed: Option<Failure>,
    /// There is no room for what it has sent.
    held: bool,
    /// Whether it stands in the list of peers with pending sends, and the next one there.
    next_pending: Option<PeerId>,
    listed: bool,
}

/// Where the next packet of a message goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Partial {
    /// No message is under way.
    #[default]
    None,
    /// Into the buffer of this request.
    Request(u32),
    /// Into the store of unexpected messages.
    Stored(u32),
}

/// The engine of one endpoint. Exclusive to one thread at a time.
#[derive(Debug)]
pub struct Engine<P: MessagePort, S: Storage> {
    rank: PeerId,
    port: P,
    requests: Slab<Request, S::Requests>,
    posted: Posted<S::Buckets>,
    unexpected: Unexpected<S::Entries, S::Chunks, S::Buckets>,
    peers: S::Peers,
    /// First of the peers with pending sends.
    first_pending: Option<PeerId>,
    /// Peers for whose messages there is no room.
    held: usize,
    /// The most recent failure that receives from any source have to report; see [`Engine::acknowledge`].
    any_source_failure: Option<(PeerId, Failure)>,
}

impl<P: MessagePort, S: Storage> Engine<P, S> {
    /// An engine for rank `rank` of a world of as many ranks as `lent.peers` has elements.
    pub fn new(rank: PeerId, port: P, lent: Lent<S>) -> Self {
        Self {
            rank,
            port,
            requests: Slab::new(lent.requests),
            posted: Posted::new(lent.posted),
            unexpected: Unexpected::new(lent.entries, lent.chunks, lent.stored),
            peers: lent.peers,
            first_pending: None,
            held: 0,
            any_source_failure: None,
        }
    }

    /// Our rank.
    pub const fn rank(&self) -> PeerId {
        self.rank
    }

    /// Ranks in the world.
    pub fn size(&self) -> u32 {
        self.peers.borrow().len() as u32
    }

    /// The port.
    pub const fn port_mut(&mut self) -> &mut P {
        &mut self.port
    }

    /// The storage of requests, for its owner to let it grow. It must never shrink.
    pub fn requests_mut(&mut self) -> &mut S::Requests {
        self.requests.storage_mut()
    }

    /// Lets the lists that find posted receives grow.
    pub fn grow_posted(&mut self, grow: impl FnOnce(&mut S::Buckets)) {
        self.posted.grow(&mut self.requests, grow);
    }

    /// Lets the storage of unexpected messages, and the lists that find them, grow. Entries must never shrink.
    pub fn grow_unexpected(&mut self, grow: impl FnOnce(&mut S::Entries, &mut S::Buckets)) {
        self.unexpected.grow(grow);
        self.release_held();
    }

    /// Unexpected messages for which there are entries.
    pub fn unexpected_capacity(&self) -> usize {
        self.unexpected.capacity()
    }

    /// Takes packets of every held peer again: there is more room.
    pub fn release_held(&mut self) {
        self.unhold(Source::Any);
    }

    /// Whether a peer is held back, as there is no room for what it sent.
    pub fn is_held(&self, peer: PeerId) -> bool {
        self.peers.borrow().get(peer as usize).is_some_and(|peer| peer.held)
    }

    /// Whether this receive is posted, and what it asks for may be held back for want of room.
    pub fn may_be_held(&self, id: RequestId) -> bool {
        let Some(source) = self.posted_source(id) else { return false };
        if let Source::Rank(rank) = source {
            return self.is_held(rank);
        }
        // From anyone: as long as one peer can still be heard, the message may come from there.
        let silent = |rank| rank == self.rank || self.is_held(rank) || self.failure(rank).is_some();
        self.held > 0 && (0..self.size()).all(silent)
    }

    /// Whether some send has not left yet.
    pub const fn sends_pending(&self) -> bool {
        self.first_pending.is_some()
    }

    /// Messages that came unasked and are stored.
    pub const fn unexpected_messages(&self) -> usize {
        self.unexpected.len()
    }

    /// Peers that are held back, as there is no room for what they sent.
    pub const fn held_peers(&self) -> usize {
        self.held
    }

    /// Why a rank is gone, if it is.
    pub fn failure(&self, peer: PeerId) -> Option<Failure> {
        self.peers.borrow().get(peer as usize)?.failure
    }

    fn peer(&mut self, peer: PeerId) -> &mut Peer {
        &mut self.peers.borrow_mut()[peer as usize]
    }
}
