//! Requests: their states and outcomes.
#![forbid(unsafe_code)]

use core::borrow::BorrowMut;

use super::state::{
    CompletionKind, CompletionMark, CompletionQueue, FIRST_BYTES, Incoming, MultiBuffer, MultiFit, Outgoing,
    RegionId, RemoteOperation, StreamState,
};
use super::{Engine, Storage};
#[cfg(nemesia_injected_fault)]
use crate::injected_fault::{InjectedFault, injected};
use crate::matching::{Pattern, Posting, Source};
use crate::payload::{Gather, RecvBuf, Scatter, SendBuf};
use crate::port::{Exposure, PeerId, Port, PortFault};
use crate::slab::{NONE, Slab, Slot};
use crate::wire::channel::CloseReason;
use crate::wire::listed::MOST_RUNS;
use crate::wire::rma::Refusal;
use crate::wire::{Envelope, Kind};

/// The identifier of a request. It can be copied; the engine recognises stale identifiers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RequestId {
    pub(super) index: u32,
    pub(super) generation: u32,
}

impl RequestId {
    /// The identifier of a send that was complete when it started. This is the common case and takes no storage.
    pub const SENT: Self = Self { index: NONE, generation: 0 };

    /// Returns the identifier as one number, for C.
    pub const fn to_bits(self) -> u64 {
        (self.index as u64) << 32 | self.generation as u64
    }

    /// Returns the identifier that [`RequestId::to_bits`] encoded. Any number is safe; the engine recognises invalid
    /// ones.
    pub const fn from_bits(bits: u64) -> Self {
        Self { index: (bits >> 32) as u32, generation: bits as u32 }
    }
}

/// The result of a successful request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    /// Receive: the sender. Send: the destination.
    pub peer: PeerId,
    /// The message's tag.
    pub tag: u64,
    /// Bytes of the message that were transferred.
    pub len: usize,
    /// Receive and probe: the immediate data that the sender attached to the message; `None` if there is none.
    pub immediate: Option<u64>,
}

/// A message was longer than the buffer. The first bytes were received; the rest was discarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("message of {message} bytes from rank {} into a buffer of {} bytes", status.peer, status.len)]
pub struct Truncation {
    /// Sender, tag, and the number of bytes received.
    pub status: Status,
    /// Length of the message in bytes.
    pub message: u64,
}

/// The reason why a peer failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The peer's process died.
    #[error("its process died")]
    Died,
    /// The peer closed its endpoint in an orderly way.
    #[error("it closed its endpoint")]
    Finished,
    /// The peer dropped its endpoint without closing it, by a panic or an early return; or closing it failed.
    #[error("it dropped its endpoint without closing it")]
    Dropped,
    /// No peer has this number: none was added, in an engine that was opened alone ([`Engine::add_peer`]).
    #[error("no peer has this number")]
    Absent,
    /// The peer could not be connected with: it refuses, or does not answer.
    #[error("it could not be connected with: it refuses, or does not answer")]
    Unreachable,
    /// The connection to the peer failed; usually because the peer violated the transport's protocol.
    #[error("{}{_0}", blame(_0))]
    Fault(#[from] PortFault),
}

impl Failure {
    /// Returns the failure of a peer whose port reports this fault.
    pub(in crate::engine) const fn of(fault: PortFault) -> Self {
        match fault {
            PortFault::Left(CloseReason::Finished) => Self::Finished,
            PortFault::Left(CloseReason::Dropped) => Self::Dropped,
            fault => Self::Fault(fault),
        }
    }
}

const fn blame(fault: &PortFault) -> &'static str {
    if fault.is_innocent() { "" } else { "it violated the transport's protocol: " }
}

/// The reason why a request could not be started. The call had no effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StartError {
    /// The rank does not exist.
    #[error("rank {rank} does not exist: the world has {size}")]
    Rank {
        /// The requested rank.
        rank: PeerId,
        /// Number of ranks in the world.
        size: u32,
    },
    /// The peer failed.
    #[error("rank {peer} is gone: {failure}")]
    PeerFailed {
        /// Rank of the peer.
        peer: PeerId,
        /// The reason of the failure.
        failure: Failure,
    },
    /// The active message is too long.
    #[error("active message of {len} bytes, header included, exceeds the limit of {most} bytes")]
    TooLong {
        /// Bytes of header and payload together.
        len: usize,
        /// Most bytes allowed.
        most: usize,
    },
    /// The buffer of a one-sided operation, or of an active message, is a list.
    #[error("one-sided operations and active messages need contiguous buffers, not lists")]
    List,
    /// The access rights in the target's key do not allow the operation.
    #[error("{0}")]
    Refused(Refusal),
    /// This process has no such region.
    #[error("no such region: it was unexposed, or never exposed")]
    Region,
    /// Every request slot is in use.
    #[error("all {capacity} requests are in use")]
    Requests {
        /// Number of request slots.
        capacity: usize,
    },
}

/// A request that is in progress or complete. Private to the engine; public only so that the caller can lend its
/// storage. The second field is meaningful only in a slot that is hidden: see `engine/completion.rs`.
#[derive(Debug, Default)]
pub struct Request(pub(super) State, pub(super) CompletionMark);

impl Posting for Request {
    #[inline(always)]
    fn posted(&self) -> Option<(&Pattern, u64)> {
        match &self.0 {
            State::Posted { pattern, number, .. } => Some((pattern, *number)),
            State::Multi { buffer, end: None } => Some((&buffer.pattern, buffer.number)),
            _ => None,
        }
    }
}

/// The state of a request. Parentheses name the queue of its peer that contains it.
#[derive(Debug, Default)]
pub(super) enum State {
    #[default]
    Free,
    /// Waits for space or credit, in order (`pending`). Nothing of it was sent.
    Sending { to: PeerId, message: SendMessage },
    /// The whole message was sent; the receiver has not acknowledged it (`offered`).
    Unacknowledged { to: PeerId, tag: u64, len: usize },
    /// The RTS was sent. The receiver pulls the bytes or answers with CTS (`offered`).
    Offered { to: PeerId, message: SendMessage, exposure: Option<Exposure> },
    /// The receiver has sent CTS; the bytes are being streamed (`streaming`).
    Streaming { tag: u64, from: Gather, stream: StreamState },
    /// Waits in the queue of posted receives.
    Posted { pattern: Pattern, buf: RecvBuf, number: u64 },
    /// A multi-receive buffer: waits in the queue of posted receives. With an `end` it has left the queue, and that is
    /// its outcome when all messages that it has taken are complete.
    Multi { buffer: MultiBuffer, end: Option<Outcome> },
    /// Has matched an RTS. The receiver pulls the bytes (`pulling`), must send CTS (`answers`), or receives the stream
    /// (`incoming`).
    Receiving { incoming: Incoming, buf: Scatter },
    /// All bytes have arrived; the FIN must be sent (`answers`).
    Finishing { sender: u64, outcome: Outcome },
    /// A matched probe has removed this stored message from the queue.
    Probed(u32),
    /// As [`State::Probed`], but the sender failed before the message was received.
    Lost(CompletionError),
    /// An active message that waits to be sent (`rma_state.leaving`).
    Active(Outgoing),
    /// A one-sided operation that waits to be sent (`rma_state.leaving`), or for its answer (`rma_state.awaited`).
    Remote(RemoteOperation),
    /// Blocks later entries of its queue (`rma_state.leaving`) until the peer has answered all earlier ones. The caller
    /// holds no identifier for it.
    Fence,
    /// Waits until a region has had `count` notifications (the region's list).
    Notified { region: RegionId, count: u64 },
    /// Complete.
    Done(Outcome),
}

impl Request {
    /// Returns whether this request waits for at most `notified` notifications.
    pub(super) fn is_notified_by(&self, notified: u64) -> bool {
        matches!(self.0, State::Notified { count, .. } if count <= notified)
    }

    /// Returns whether a receive takes a message of `total` bytes that it matches. A multi-receive buffer does not take
    /// one that is longer than the whole buffer.
    pub(super) const fn takes(&self, total: u64) -> bool {
        match &self.0 {
            State::Multi { buffer, .. } => !matches!(buffer.fit(total), MultiFit::Never),
            _ => true,
        }
    }

    /// Returns whether the operation may use a byte of the `len` bytes at address `base`.
    fn may_touch(&self, base: usize, len: usize) -> bool {
        match &self.0 {
            State::Sending { message, .. } | State::Offered { message, .. } => {
                message.buf.may_touch(base, len)
            }
            State::Streaming { from, .. } => from.buf().may_touch(base, len),
            State::Posted { buf, .. } => buf.may_touch(base, len),
            State::Multi { buffer, .. } => buffer.rest.may_touch(base, len),
            State::Receiving { buf, .. } => buf.may_touch(base, len),
            State::Active(Outgoing { header, payload, .. }) => {
                header.may_touch(base, len) || payload.may_touch(base, len)
            }
            State::Remote(operation) => operation.may_touch(base, len),
            State::Free
            | State::Unacknowledged { .. }
            | State::Finishing { .. }
            | State::Probed(_)
            | State::Lost(_)
            | State::Fence
            | State::Notified { .. }
            | State::Done(_) => false,
        }
    }
}

/// A message to send.
#[derive(Debug)]
pub(super) struct SendMessage {
    pub(super) context: u16,
    pub(super) tag: u64,
    pub(super) buf: SendBuf,
    /// Whether the send completes only when a receive has matched it.
    pub(super) synchronous: bool,
    /// The immediate data, if the message has them.
    pub(super) immediate: Option<u64>,
}

/// The options of a send ([`Engine::isend_with`]). By default it has none, and is a standard send.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendOptions {
    /// Immediate data: 64 bits that travel with the message. Probes and the receive's [`Status`] report them. They are
    /// not matched.
    pub immediate: Option<u64>,
    /// Whether the send completes only when a receive has matched the message (MPI 4.1, section 3.4). The message of a
    /// small one travels at once, and the receiver acknowledges it after the bytes are in the receive buffer.
    pub synchronous: bool,
}

impl SendMessage {
    /// As [`SendBuf::alias`], of the whole.
    pub(super) const fn alias(&self) -> Self {
        let Self { context, tag, synchronous, immediate, .. } = *self;
        Self { context, tag, buf: self.buf.alias(), synchronous, immediate }
    }

    /// Returns whether the message is large enough for a sender-assisted copy, and is described to the receiver: it is
    /// contiguous except for its first bytes, or has few enough runs of `run_bytes` bytes on average. Its sender then
    /// looks for a shared copy.
    pub(super) fn may_be_assisted(&self, assist_bytes: u64, run_bytes: u64) -> bool {
        let is_described = || {
            self.buf.last_run(FIRST_BYTES).is_some() || self.buf.runs(MOST_RUNS, run_bytes as usize).is_some()
        };
        self.buf.len() as u64 >= assist_bytes && is_described()
    }

    pub(super) fn envelope(&self, kind: Kind) -> Envelope {
        Envelope { kind, context: self.context, tag: self.tag, total: self.buf.len() as u64 }
    }
}

/// The result of a completed request or of a bypassed receive.
pub type Outcome = Result<Status, CompletionError>;

/// The completion error of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CompletionError {
    /// The message was longer than the buffer.
    #[error(transparent)]
    Truncated(#[from] Truncation),
    /// The peer failed; for a receive from any source, some peer failed.
    #[error("rank {peer} is gone: {failure}")]
    PeerFailed {
        /// Rank of the peer.
        peer: PeerId,
        /// The reason of the failure.
        failure: Failure,
    },
    /// The target refused `count` one-sided operations; `refusal` is the reason of the first.
    #[error("rank {peer} refused {count} one-sided operations, the first because {refusal}")]
    Refused {
        /// Rank of the target.
        peer: PeerId,
        /// The reason of the first refusal.
        refusal: Refusal,
        /// Number of refused operations.
        count: u64,
    },
    /// [`Engine::cancel`] withdrew the operation before it began.
    #[error("the operation was cancelled before it began")]
    Cancelled,
    /// The identifier names no request: the request was already tested to completion, or it never existed.
    #[error("no such request")]
    Stale,
}

/// Returns the outcome of a receive of a message of `total` bytes into `room` bytes.
#[inline(always)]
pub(super) fn outcome(from: PeerId, tag: u64, total: u64, room: usize) -> Outcome {
    let status = Status { peer: from, tag, len: total.min(room as u64) as usize, immediate: None };
    if total > room as u64 {
        return Err(CompletionError::Truncated(Truncation { status, message: total }));
    }
    Ok(status)
}

/// Returns the outcome of a receive whose message has these immediate data.
pub(super) fn with_immediate(outcome: Outcome, immediate: Option<u64>) -> Outcome {
    match outcome {
        Ok(status) => Ok(Status { immediate, ..status }),
        Err(CompletionError::Truncated(Truncation { status, message })) => {
            let status = Status { immediate, ..status };
            Err(CompletionError::Truncated(Truncation { status, message }))
        }
        other => other,
    }
}

impl<P: Port, S: Storage> Engine<P, S> {
    /// Returns the outcome of a request if it is complete; `None` if it is not. A complete request is freed, and its
    /// identifier becomes stale.
    ///
    /// The error of the outcome is a [`CompletionError`].
    #[inline]
    pub fn test(&mut self, id: RequestId) -> Option<Result<Status, CompletionError>> {
        if id == RequestId::SENT {
            return Some(Ok(Status { peer: self.rank, tag: 0, len: 0, immediate: None }));
        }
        if !self.requests.is_open(id.index, id.generation) {
            return Some(Err(CompletionError::Stale));
        }
        let State::Done(outcome) = self.requests.get(id.index).0 else { return None };
        self.requests.remove(id.index);
        Some(outcome)
    }

    /// As [`Engine::test`], but for a receive first polls for the message where that is cheap.
    #[inline]
    pub fn try_finish(&mut self, id: RequestId) -> Option<Result<Status, CompletionError>> {
        let outcome = self.test(id);
        if outcome.is_some() {
            return outcome;
        }
        self.finish_now(id).map(Ok)
    }

    /// Returns whether an operation under way may use a byte of the `len` bytes at address `base`. An operation with a
    /// list may use any byte. It takes time for each slot of the requests' storage that was ever in use.
    #[cold]
    pub fn uses(&self, base: usize, len: usize) -> bool {
        let requests = &self.requests;
        (0..requests.touched() as u32).any(|index| {
            requests.is_live(index, requests.generation(index)) && requests.get(index).may_touch(base, len)
        })
    }

    /// Withdraws an operation that has not begun: a receive that no message has matched, a wait for notifications, or a
    /// send of which nothing was sent. Returns `false` if it has begun or is complete.
    ///
    /// A withdrawn operation completes with [`CompletionError::Cancelled`], and the caller may reuse its buffer at
    /// once. Later sends to the same peer keep their order.
    pub fn cancel(&mut self, id: RequestId) -> bool {
        self.cancel_receive(id) || self.cancel_send(id)
    }

    /// As [`Engine::cancel`], but leaves sends as they are.
    pub fn cancel_receive(&mut self, id: RequestId) -> bool {
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
        self.end_posted(id.index, Err(CompletionError::Cancelled));
        true
    }

    /// Returns whether the request is a receive that no message has matched yet.
    pub fn is_posted(&self, id: RequestId) -> bool {
        self.posted_source(id).is_some()
    }

    /// Returns the source of a posted receive.
    pub(super) fn posted_source(&self, id: RequestId) -> Option<Source> {
        if !self.requests.is_live(id.index, id.generation) {
            return None;
        }
        self.requests.get(id.index).posted().map(|(pattern, _)| pattern.source)
    }

    pub(super) fn id(&self, index: u32) -> RequestId {
        RequestId { index, generation: self.requests.generation(index) }
    }

    #[inline]
    pub(super) fn complete(&mut self, index: u32, outcome: Outcome) {
        complete(&mut self.requests, &mut self.completions, index, outcome);
    }

    /// Ends a receive that the caller has removed from the queue of posted receives.
    pub(super) fn end_posted(&mut self, index: u32, outcome: Outcome) {
        end_posted(&mut self.requests, &mut self.completions, index, outcome);
    }

    pub(super) fn start(&mut self, state: State) -> Result<u32, StartError> {
        let capacity = self.requests.capacity();
        let (index, request) = self.requests.reserve().ok_or(StartError::Requests { capacity })?;
        request.0 = state;
        Ok(index)
    }
}

/// Completes a request, which the caller has removed from its queue. A hidden one enters the completion queue.
#[inline(always)]
pub(super) fn complete<B: BorrowMut<[Slot<Request>]>>(
    requests: &mut Slab<Request, B>,
    completions: &mut CompletionQueue,
    index: u32,
    outcome: Outcome,
) {
    requests.get_mut(index).0 = State::Done(outcome);
    if requests.is_hidden(index) {
        enter(requests, completions, index);
    }
}

/// Puts a complete request into the completion queue; with it the multi-receive buffer that waits for it alone.
#[inline(never)]
pub(super) fn enter<B: BorrowMut<[Slot<Request>]>>(
    requests: &mut Slab<Request, B>,
    completions: &mut CompletionQueue,
    index: u32,
) {
    #[cfg(nemesia_injected_fault)]
    if injected(InjectedFault::LoseCompletion) {
        return;
    }
    completions.enter(requests, index);
    let CompletionMark { kind, buffer: whole, .. } = requests.get(index).1;
    if kind != CompletionKind::MultiReceive {
        return;
    }
    let State::Multi { buffer, end } = &mut requests.get_mut(whole).0 else { return };
    buffer.under_way -= 1;
    if let (0, Some(outcome)) = (buffer.under_way, *end) {
        complete(requests, completions, whole, outcome);
    }
}

/// Ends a receive that the caller has removed from the queue of posted receives. A multi-receive buffer whose messages
/// are not all complete ends with the last of them.
pub(super) fn end_posted<B: BorrowMut<[Slot<Request>]>>(
    requests: &mut Slab<Request, B>,
    completions: &mut CompletionQueue,
    index: u32,
    outcome: Outcome,
) {
    #[cfg(nemesia_injected_fault)]
    if injected(InjectedFault::FreeEarly) {
        return complete(requests, completions, index, outcome);
    }
    match &mut requests.get_mut(index).0 {
        State::Multi { buffer, end } if buffer.under_way > 0 => *end = Some(outcome),
        _ => complete(requests, completions, index, outcome),
    }
}
