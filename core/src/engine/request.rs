//! Requests: what was asked for, and what came of it.
#![forbid(unsafe_code)]

use core::borrow::Borrow;

use super::active::Outgoing;
use super::rma::{Refusal, RegionId, Remote};
use super::{Engine, Peer, Storage};
use crate::matching::{Pattern, Posting, Source};
use crate::payload::{Gather, RecvBuf, Scatter, SendBuf};
use crate::port::{MessagePort, Part, PeerId, PortFault};
use crate::slab::NONE;
use crate::wire::rendezvous::{Rts, Stores};
use crate::wire::{Envelope, Kind};

/// Names a request. Copyable; stale ones are recognised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RequestId {
    pub(super) index: u32,
    pub(super) generation: u32,
}

impl RequestId {
    /// A send that was complete when it started: the usual case, which takes no storage.
    pub const SENT: Self = Self { index: NONE, generation: 0 };

    /// The two halves as one number, for C.
    pub const fn to_bits(self) -> u64 {
        (self.index as u64) << 32 | self.generation as u64
    }

    /// The inverse of [`RequestId::to_bits`]; any number is safe, and nonsense is recognised.
    pub const fn from_bits(bits: u64) -> Self {
        Self { index: (bits >> 32) as u32, generation: bits as u32 }
    }
}

/// What came of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    /// Receive: who sent it. Send: to whom it went.
    pub peer: PeerId,
    /// The message's tag.
    pub tag: u64,
    /// Bytes of the message that were moved.
    pub len: usize,
}

/// A message was longer than the buffer; what fits was received, the rest is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("message of {message} bytes from rank {} into a buffer of {} bytes", status.peer, status.len)]
pub struct Truncation {
    /// Sender, tag, and the bytes that were received.
    pub status: Status,
    /// Bytes of the message.
    pub message: u64,
}

/// Why a request came to nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The peer's process died.
    #[error("its process died")]
    Died,
    /// The peer has finished, in good order: it has closed its endpoint.
    #[error("it has closed its endpoint")]
    Finished,
    /// The peer has given up its endpoint without closing it, by a panic or an early return; or closing it failed.
    #[error("it dropped its endpoint without closing it")]
    Dropped,
    /// The connection to the peer is over; most often as it broke the rules of the transport.
    #[error("{}{_0}", blame(_0))]
    Fault(#[from] PortFault),
}

const fn blame(fault: &PortFault) -> &'static str {
    if fault.is_innocent() { "" } else { "it broke the transport's rules: " }
}

/// Why a request could not be started; nothing has happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StartError {
    /// No such rank.
    #[error("rank {rank} does not exist: the world has {size}")]
    Rank {
        /// The rank asked for.
        rank: PeerId,
        /// Ranks in the world.
        size: u32,
    },
    /// The peer is gone.
    #[error("rank {peer} is gone: {failure}")]
    PeerFailed {
        /// Its rank.
        peer: PeerId,
        /// Why.
        failure: Failure,
    },
    /// An active message is longer than one may be.
    #[error("active message of {len} bytes, header included: {most} are the most")]
    TooLong {
        /// Bytes of header and payload.
        len: usize,
        /// Bytes there may be.
        most: usize,
    },
    /// The buffer of a one-sided operation, or of an active message, is a list.
    #[error("one-sided operations and active messages take buffers in one place, not lists")]
    List,
    /// The target's key says that it would refuse.
    #[error("{0}")]
    Refused(Refusal),
    /// No such region of ours.
    #[error("no such region: it was concealed, or never exposed")]
    Region,
    /// Every request slot is in use.
    #[error("all {capacity} requests are in use")]
    Requests {
        /// How many there are.
        capacity: usize,
    },
}

/// A request under way or complete. Private to the engine; public only so that its storage can be lent.
#[derive(Debug, Default)]
pub struct Request(pub(super) State);

impl Posting for Request {
    #[inline(always)]
    fn posted(&self) -> Option<(&Pattern, u64)> {
        match &self.0 {
            State::Posted { pattern, number, .. } => Some((pattern, *number)),
            _ => None,
        }
    }
}

/// The states of a request, and the list of its peer in which it stands.
#[derive(Debug, Default)]
pub(super) enum State {
    #[default]
    Free,
    /// Waits for room or credit, in order (`pending`).
    Sending { message: Message },
    /// Its RTS has left; the receiver pulls the bytes, or clears them (`offered`).
    Offered { to: PeerId, message: Message },
    /// Cleared: the bytes leave (`streaming`).
    Streaming { tag: u64, from: Gather, stream: Stream },
    /// Waits in the queue of posted receives.
    Posted { pattern: Pattern, buf: RecvBuf, number: u64 },
    /// Matched with an RTS; its bytes are pulled (`pulling`), or are to be cleared (`answers`), or come (`incoming`).
    Receiving { incoming: Incoming, buf: Scatter },
    /// All bytes are here; the sender is to be told (`answers`).
    Finishing { sender: u64, outcome: Outcome },
    /// Taken out of the store by a matched probe: this stored message.
    Probed(u32),
    /// As [`State::Probed`], of a message whose sender failed before it was received.
    Lost(Fate),
    /// An active message that waits to leave (`side.leaving`).
    Active(Outgoing),
    /// A one-sided operation that waits to leave (`side.leaving`), or for its answer (`side.awaited`).
    Remote(Remote),
    /// Holds back what stands behind it (`side.leaving`) until the peer has answered all before it. Nobody waits for it.
    Fence,
    /// Waits until a region has had so many notifications (the region's list).
    Notified { region: RegionId, count: u64 },
    /// Complete.
    Done(Outcome),
}

impl Request {
    /// Whether this waits for no more than so many notifications.
    pub(super) fn is_notified_by(&self, notified: u64) -> bool {
        matches!(self.0, State::Notified { count, .. } if count <= notified)
    }
}

/// A message to send.
#[derive(Debug)]
pub(super) struct Message {
    pub(super) context: u16,
    pub(super) tag: u64,
    pub(super) buf: SendBuf,
    /// Complete only when a receive has matched it.
    pub(super) synchronous: bool,
}

impl Message {
    /// As [`SendBuf::alias`], of the whole.
    pub(super) const fn alias(&self) -> Self {
        let Self { context, tag, synchronous, .. } = *self;
        Self { context, tag, buf: self.buf.alias(), synchronous }
    }

    pub(super) fn envelope(&self, kind: Kind) -> Envelope {
        Envelope { kind, context: self.context, tag: self.tag, total: self.buf.len() as u64 }
    }
}

/// Which bytes of a cleared message are still to leave, and how they are named.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stream {
    /// The receiver's request.
    pub(super) receiver: u64,
    pub(super) next: u64,
    pub(super) end: u64,
    /// How the receiver wants them copied.
    pub(super) stores: Stores,
}

/// A message whose bytes are on the way to us.
#[derive(Clone, Copy, Debug)]
pub(super) struct Incoming {
    pub(super) from: PeerId,
    pub(super) tag: u64,
    pub(super) rts: Rts,
    /// The bytes that are still to come, as far as they are ours to ask for.
    pub(super) left: Part,
    pub(super) how: How,
    /// It counts for what is learned of the protocols ([`super::lmt::Choices`]).
    pub(super) measured: bool,
    /// How the sender is to copy what it streams.
    pub(super) stores: Stores,
}

/// How the bytes of a message come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum How {
    /// We read them.
    Pull,
    /// We read them, and the sender may write some.
    Share,
    /// The same, but we can't read them any more; the sender may still write.
    Broken,
    /// We can't read them; the sender is to be told to stream them.
    Lost,
    /// The sender was told to stream them.
    Stream,
}

impl Incoming {
    /// Bytes that are still to come.
    pub(super) const fn wanted(&self) -> u64 {
        self.left.end - self.left.start
    }
}

/// What a completed request, or a bypassed receive, reports.
pub type Outcome = Result<Status, Fate>;

/// How a request can end without success.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fate {
    /// The message was longer than the buffer.
    #[error(transparent)]
    Truncated(#[from] Truncation),
    /// The peer is gone; for a receive from any source, some peer is.
    #[error("rank {peer} is gone: {failure}")]
    PeerFailed {
        /// Its rank.
        peer: PeerId,
        /// Why.
        failure: Failure,
    },
    /// A target has refused so many one-sided operations, the first for this reason.
    #[error("rank {peer} refused {count} one-sided operations, the first because {refusal}")]
    Refused {
        /// Its rank.
        peer: PeerId,
        /// Why.
        refusal: Refusal,
        /// How many.
        count: u64,
    },
    /// The receive was withdrawn by [`Engine::cancel`].
    #[error("the receive was cancelled")]
    Cancelled,
    /// The identifier names no request: it was tested to completion before, or never existed.
    #[error("no such request")]
    Stale,
}

impl<P: MessagePort, S: Storage> Engine<P, S> {
    /// Whether a request is complete; if so it is freed, and the identifier is stale from now on.
    ///
    /// The outcome of a failed one is a [`Fate`].
    #[inline]
    pub fn test(&mut self, id: RequestId) -> Option<Result<Status, Fate>> {
        if id == RequestId::SENT {
            return Some(Ok(Status { peer: self.rank, tag: 0, len: 0 }));
        }
        if !self.requests.is_live(id.index, id.generation) {
            return Some(Err(Fate::Stale));
        }
        let State::Done(outcome) = self.requests.get(id.index).0 else { return None };
        self.requests.remove(id.index);
        Some(outcome)
    }

    /// As [`Engine::test`], but looks for the message first where that is cheap, if it is a receive.
    #[inline]
    pub fn try_finish(&mut self, id: RequestId) -> Option<Result<Status, Fate>> {
        let outcome = self.test(id);
        if outcome.is_some() {
            return outcome;
        }
        self.finish_now(id).map(Ok)
    }

    /// Withdraws a posted receive. False when a message has matched it, or it is complete, or a send.
    ///
    /// A withdrawn receive completes with [`Fate::Cancelled`]; its buffer is the caller's again at once.
    pub fn cancel(&mut self, id: RequestId) -> bool {
        if !self.requests.is_live(id.index, id.generation) {
            return false;
        }
        if let State::Notified { region, .. } = self.requests.get(id.index).0 {
            self.cancel_notified(id.index, region);
            return true;
        }
        let Some((pattern, _)) = self.requests.get(id.index).posted() else { return false };
        let pattern = *pattern;
        self.posted.remove(&mut self.requests, id.index, &pattern);
        self.complete(id.index, Err(Fate::Cancelled));
        true
    }

    /// Whether this is a receive that no message has matched yet.
    pub fn is_posted(&self, id: RequestId) -> bool {
        self.posted_source(id).is_some()
    }

    /// Whom a posted receive listens to.
    pub(super) fn posted_source(&self, id: RequestId) -> Option<Source> {
        if !self.requests.is_live(id.index, id.generation) {
            return None;
        }
        match &self.requests.get(id.index).0 {
            State::Posted { pattern, .. } => Some(pattern.source),
            _ => None,
        }
    }

    pub(super) fn id(&self, index: u32) -> RequestId {
        RequestId { index, generation: self.requests.generation(index) }
    }

    #[inline]
    pub(super) fn complete(&mut self, index: u32, outcome: Outcome) {
        self.requests.get_mut(index).0 = State::Done(outcome);
    }

    pub(super) fn start(&mut self, state: State) -> Result<u32, StartError> {
        let capacity = self.requests.capacity();
        self.requests.insert(Request(state)).map_err(|_| StartError::Requests { capacity })
    }

    /// Whether something can be sent to a rank.
    #[inline]
    pub(super) fn check_destination(&self, rank: PeerId) -> Result<(), StartError> {
        self.check_peer(rank)?;
        match self.peers.borrow().get(rank as usize).and_then(|peer| peer.departed) {
            Some(failure) => Err(StartError::PeerFailed { peer: rank, failure }),
            None => Ok(()),
        }
    }

    #[inline]
    pub(super) fn check_peer(&self, rank: PeerId) -> Result<(), StartError> {
        let peers: &[Peer] = self.peers.borrow();
        match peers.get(rank as usize) {
            None => Err(StartError::Rank { rank, size: peers.len() as u32 }),
            Some(Peer { failure: Some(failure), .. }) => {
                Err(StartError::PeerFailed { peer: rank, failure: *failure })
            }
            Some(_) => Ok(()),
        }
    }
}
