//! A connection: its queues, and how it ends.
#![forbid(unsafe_code)]

use core::borrow::{Borrow as _, BorrowMut as _};
use core::time::Duration;

use super::buffers::{InputBuffer, StageBuffer};
use super::expected::ReadAhead;
use super::queue::{Hooked, LentQueue, QueueHook};
use super::regions::PlacementParts;
use super::{PlacementStorage, STAGE_BYTES};
use crate::port::memory::{
    Completion, Connection, ConnectionState, Event, LostError, PortRegion, Private, RemoteRange, Slice,
    WorkError, WorkOutcome,
};
use crate::slab::NONE;
use crate::sync::in_order::LAST;
use crate::wire::placement::{FRAME_BYTES, Frame, MOST_ASKED, MOST_REPLIES, Reason};

/// The longest inline source in bytes.
pub(super) const MOST_INLINE: usize = 64;

/// The kind of a work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PlacementKind {
    Write { to: RemoteRange, immediate: Option<u32> },
    Read { from: RemoteRange },
    Send { immediate: Option<u32> },
    Add { at: RemoteRange, add: u64 },
    Swap { at: RemoteRange, expected: u64, new: u64 },
}

impl PlacementKind {
    /// Returns whether it has a reply of its own.
    pub(super) const fn is_answered(self) -> bool {
        matches!(self, Self::Read { .. } | Self::Add { .. } | Self::Swap { .. })
    }

    /// Returns whether it consumes a receive.
    pub(super) const fn is_message(self) -> bool {
        matches!(self, Self::Send { .. } | Self::Write { immediate: Some(_), .. })
    }
}

/// The bytes of a work request.
#[derive(Clone, Copy, Debug)]
pub(super) enum WorkBytes {
    Parts(PlacementParts),
    Inline([u8; MOST_INLINE]),
}

/// A work request of the send queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct PlacementWork {
    pub(super) id: u64,
    pub(super) quiet: bool,
    pub(super) fence: bool,
    pub(super) kind: PlacementKind,
    pub(super) local: WorkBytes,
    pub(super) len: u32,
    /// Whether its reply has arrived.
    pub(super) answered: bool,
    /// Whether the peer was told where its bytes are.
    pub(super) lent: bool,
}

/// Room for a message.
#[derive(Clone, Copy, Debug)]
pub(super) struct PlacementReceive {
    pub(super) id: u64,
    pub(super) parts: PlacementParts,
}

/// The answer to a peer's request.
#[derive(Clone, Copy, Debug)]
pub(super) enum PlacementReply {
    Bytes { from: Slice, operation: u64 },
    Value { old: u64 },
}

/// Bytes that go out directly from registered memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct OutgoingBody {
    pub(super) parts: PlacementParts,
    pub(super) len: u64,
    pub(super) done: u64,
    /// The number of the work request, if it is one of ours.
    pub(super) work: Option<u64>,
}

/// Bytes that are arriving.
#[derive(Clone, Copy, Debug)]
pub(super) struct IncomingFrame {
    pub(super) parts: PlacementParts,
    pub(super) len: u64,
    pub(super) done: u64,
    pub(super) what: IncomingKind,
    /// The place of the bytes in the peer's memory; `None` if they follow in the stream.
    pub(super) source: Option<u64>,
}

impl IncomingFrame {
    /// Returns the number of bytes at the end of a write that are placed last, all at once: the owner of the memory may
    /// poll them, and streams do not copy in order.
    pub(super) fn held(&self) -> u64 {
        match self.what {
            IncomingKind::Write { .. } => (self.len - self.done).min(LAST as u64),
            IncomingKind::Send { .. } | IncomingKind::Reply => 0,
        }
    }
}

/// The destination of arriving bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IncomingKind {
    Write { immediate: Option<u32> },
    Send { immediate: Option<u32> },
    Reply,
}

/// Why a connection must end.
#[derive(Clone, Copy, Debug)]
pub(super) struct LinkEnd {
    pub(super) lost: LostError,
    /// The work request of ours that failed, and its error.
    pub(super) work: Option<(u64, WorkError)>,
    /// The error of the receive at the front, if it failed.
    pub(super) receive: Option<WorkError>,
    /// The reason that the peer is told.
    pub(super) refuse: Option<Reason>,
}

impl LinkEnd {
    pub(super) const fn new(lost: LostError) -> Self {
        Self { lost, work: None, receive: None, refuse: None }
    }

    /// The peer violated the protocol.
    pub(super) const PROTOCOL: Self = Self::new(LostError::Protocol);

    /// A work request of ours failed.
    pub(super) const fn work(number: u64, error: WorkError) -> Self {
        Self { work: Some((number, error)), ..Self::new(LostError::Work) }
    }

    /// Returns whether the stream has ended, and nothing else has failed.
    pub(super) const fn is_of_stream(&self) -> bool {
        self.work.is_none() && self.receive.is_none() && self.refuse.is_none()
    }

    /// The peer requested something forbidden.
    pub(super) const fn refuse(reason: Reason) -> Self {
        Self { refuse: Some(reason), ..Self::new(LostError::Access) }
    }
}

/// The queues of connections in which a port keeps its connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LinkQueue {
    /// Connections to handle.
    Listed,
    /// Receive-starved connections.
    Starved,
    /// Closed connections, until all their completions were polled.
    Closing,
    /// Connections with a deadline: to be made, or to give memory back.
    Timed,
}

impl LinkQueue {
    const COUNT: usize = 4;
}

/// A place for a connection.
pub(super) struct ConnectionPlace<S, P: PlacementStorage> {
    pub(super) generation: u32,
    /// The next free place.
    pub(super) next: u32,
    hooks: [QueueHook; LinkQueue::COUNT],
    pub(super) link: Option<PlacementLink<S, P>>,
}

impl<S, P: PlacementStorage> ConnectionPlace<S, P> {
    pub(super) const fn new() -> Self {
        Self { generation: 0, next: NONE, hooks: [QueueHook::NEW; LinkQueue::COUNT], link: None }
    }
}

impl<S, P: PlacementStorage> Hooked for ConnectionPlace<S, P> {
    fn hook(&mut self, queue: usize) -> Option<&mut QueueHook> {
        self.hooks.get_mut(queue)
    }
}

type Own<T, const N: usize> = LentQueue<T, [Option<T>; N]>;
type Grown<P, T> = LentQueue<T, <P as PlacementStorage>::Table<Option<T>>>;

/// Whether an unreported write keeps the report of what was executed from being held back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AwaitedReport {
    /// There is no such write.
    Nothing,
    /// There is one, and the owner of this port does not know.
    Write,
    /// There is one, and the owner of this port knows, from its immediate or from a message after it. The owner may
    /// have got what it waited for, and poll no more; the peer may wait for the completion of the write.
    KnownWrite,
}

/// A connection.
pub(super) struct PlacementLink<S, P: PlacementStorage> {
    pub(super) connection: Connection,
    pub(super) state: ConnectionState,
    pub(super) stream: Option<S>,
    pub(super) deadline: Duration,
    pub(super) private: Private,
    /// The token of the address to which it connects.
    pub(super) token: u64,
    /// Whether the connecting side has sent its handshake.
    pub(super) handshake_done: bool,
    pub(super) closing: bool,
    /// Whether its request was refused: its end is not reported.
    pub(super) refused: bool,
    /// Completions that were not polled.
    pub(super) unpolled: u32,
    /// Whether there may be more to read without a further event.
    pub(super) more_input: bool,
    /// Whether the kernel reports when it is writable.
    pub(super) writable_wanted: bool,

    /// The send queue. A work request's place is its number modulo the depth.
    pub(super) work: P::Table<Option<PlacementWork>>,
    pub(super) posted: u64,
    pub(super) sent: u64,
    pub(super) acked: u64,
    pub(super) completed: u64,
    pub(super) freed: u64,
    /// The number of sent operations without their answer; the oldest that may be one.
    pub(super) unanswered: u32,
    pub(super) next_reply: u64,
    /// Messages sent; messages for which there is room; messages for which room was requested.
    pub(super) messages: u64,
    pub(super) room: u64,
    pub(super) asked: u64,

    /// Posted receives; of a sharing connection, those reserved for it.
    pub(super) receives: Grown<P, PlacementReceive>,
    pub(super) receive_depth: u32,
    pub(super) receiving: u32,
    pub(super) shared: bool,
    /// Receives granted in all; messages begun; the number that the peer requests and was told.
    pub(super) granted: u64,
    pub(super) begun: u64,
    pub(super) wanted: u64,
    pub(super) granted_reported: u64,
    /// Operations of the peer that were executed, and the number that it was told.
    pub(super) executed: u64,
    pub(super) executed_reported: u64,
    /// What the peer may wait for in the report of these numbers.
    pub(super) awaited: AwaitedReport,
    /// The polls for which a report of these numbers has waited for something to go with.
    pub(super) held: u8,
    pub(super) replies: Own<PlacementReply, MOST_REPLIES>,

    /// Whether the peer can read our memory.
    pub(super) peer_pulls: bool,
    /// Whether it was told that we can read its memory.
    pub(super) reported_pulls: bool,
    /// Regions that the peer reads for our replies, and the number that it has finished.
    pub(super) lent: Own<PortRegion, MOST_REPLIES>,
    pub(super) lent_done: u64,
    /// A region that is being deregistered, and the deadline for the peer.
    demanded: Option<(PortRegion, Duration)>,
    /// Replies that were read from the peer's memory, and the number that it was told.
    pub(super) pulled: u64,
    pub(super) pulled_reported: u64,

    /// Bytes to send before the body.
    pub(super) stage: StageBuffer<P::Table<u8>>,
    pub(super) body: Option<OutgoingBody>,
    /// Whether replies or requests are next; they alternate.
    pub(super) turn: bool,
    pub(super) incoming: Option<IncomingFrame>,
    /// What the next read probably brings.
    pub(super) ahead: ReadAhead,
    pub(super) input: InputBuffer<P::Table<u8>>,
}

/// Events of a port that its owner has not polled.
pub(super) struct PendingReports<P: PlacementStorage> {
    done: Grown<P, (Completion, Freed)>,
    events: Grown<P, Event>,
}

impl<P: PlacementStorage> PendingReports<P> {
    pub(super) fn new() -> Self {
        Self { done: LentQueue::new(), events: LentQueue::new() }
    }

    /// Grows the storage, so that it suffices when work completes. Returns whether it does.
    pub(super) fn reserve(&mut self, completions: usize, events: usize) -> bool {
        self.done.reserve(completions) && self.events.reserve(events)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.done.is_empty() && self.events.is_empty()
    }

    pub(super) const fn completions(&self) -> usize {
        self.done.len()
    }

    pub(super) const fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    pub(super) fn next_completion(&mut self) -> Option<(Completion, Freed)> {
        self.done.pop_front()
    }

    pub(super) fn next_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    fn complete(&mut self, completion: Completion, freed: Freed) {
        // `PlacementPort::new_link` has reserved room for everything that can complete.
        let has_room = self.done.push_back((completion, freed));
        debug_assert!(has_room, "more completions than work requests");
    }

    /// Adds an event.
    pub(super) fn report(&mut self, event: Event) {
        // `PlacementPort::new_link` has reserved room for every event of each connection.
        let has_room = self.events.push_back(event);
        debug_assert!(has_room, "more events than connections can have");
    }
}

/// The place that is freed when a completion is polled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Freed {
    /// All places of the send queue below this number.
    Work(u64),
    /// A place of the connection's receive queue.
    Receive,
    /// A place of the shared queue.
    Shared,
}

impl<S, P: PlacementStorage> PlacementLink<S, P> {
    /// Returns a new connection; `None` if there is no storage for it.
    pub(super) fn new(
        connection: Connection,
        state: ConnectionState,
        (sends, receive_depth): (u32, u32),
    ) -> Option<Self> {
        let (mut work, mut bytes, mut input) =
            (P::Table::default(), P::Table::default(), P::Table::default());
        work.extend(core::iter::repeat_n(None, sends as usize));
        // The last frame may follow a full stage.
        bytes.extend(core::iter::repeat_n(0, STAGE_BYTES + FRAME_BYTES));
        input.extend(core::iter::repeat_n(0, STAGE_BYTES));
        let mut receives = LentQueue::new();
        // A sharing connection has at most as many from the shared queue, beside its own.
        let is_whole = receives.reserve(receive_depth as usize + MOST_ASKED as usize)
            && work.borrow().len() == sends as usize
            && bytes.borrow().len() == STAGE_BYTES + FRAME_BYTES
            && input.borrow().len() == STAGE_BYTES;
        is_whole.then(|| Self {
            connection,
            state,
            stream: None,
            deadline: Duration::MAX,
            private: Private::EMPTY,
            token: 0,
            handshake_done: false,
            closing: false,
            refused: false,
            unpolled: 0,
            more_input: false,
            writable_wanted: false,
            work,
            posted: 0,
            sent: 0,
            acked: 0,
            completed: 0,
            freed: 0,
            unanswered: 0,
            next_reply: 0,
            messages: 0,
            room: 0,
            asked: 0,
            receives,
            receive_depth,
            receiving: 0,
            shared: false,
            granted: 0,
            begun: 0,
            wanted: 0,
            held: 0,
            granted_reported: 0,
            executed: 0,
            executed_reported: 0,
            awaited: AwaitedReport::Nothing,
            replies: LentQueue::new(),
            peer_pulls: false,
            reported_pulls: false,
            lent: LentQueue::new(),
            lent_done: 0,
            demanded: None,
            pulled: 0,
            pulled_reported: 0,
            stage: StageBuffer::new(bytes),
            body: None,
            turn: false,
            incoming: None,
            ahead: ReadAhead::default(),
            input: InputBuffer::new(input),
        })
    }

    /// Returns a work request by its number.
    pub(super) fn at(&self, number: u64) -> Option<&PlacementWork> {
        let work = self.work.borrow();
        work.get((number % work.len() as u64) as usize)?.as_ref()
    }

    pub(super) fn at_mut(&mut self, number: u64) -> Option<&mut PlacementWork> {
        let work = self.work.borrow_mut();
        let depth = work.len() as u64;
        work.get_mut((number % depth) as usize)?.as_mut()
    }

    /// Returns whether the peer may be reading a region.
    pub(super) fn has_lent(&self, region: PortRegion) -> bool {
        let mut sent = self.lent_work();
        let uses = |posted: &PlacementWork| matches!(&posted.local, WorkBytes::Parts(parts) if parts.contain(region));
        self.state == ConnectionState::Ready
            && (self.lent.iter().any(|lent| *lent == region) || sent.any(uses))
    }

    /// Returns whether the peer may be reading any region.
    pub(super) fn has_lent_any(&self) -> bool {
        self.state == ConnectionState::Ready && (!self.lent.is_empty() || self.lent_work().next().is_some())
    }

    /// Returns the work requests whose place the peer was told.
    fn lent_work(&self) -> impl Iterator<Item = &PlacementWork> {
        (self.completed..self.sent).filter_map(|number| self.at(number)).filter(|posted| posted.lent)
    }

    /// Demands a region back by a deadline. Returns false if a deadline is already set.
    pub(super) fn demand(&mut self, region: PortRegion, until: Duration) -> bool {
        let reports = self.demanded.is_none_or(|(region, _)| !self.has_lent(region));
        if reports {
            self.demanded = Some((region, until));
        }
        reports
    }

    /// Returns the deadline for a region that the peer still uses.
    pub(super) fn demanded(&self) -> Option<Duration> {
        self.demanded.filter(|(region, _)| self.has_lent(*region)).map(|(_, until)| until)
    }

    /// Returns whether it takes receives from the shared queue now.
    pub(super) fn is_sharer(&self) -> bool {
        self.shared && self.state == ConnectionState::Ready
    }

    /// Returns whether one more request fits the send queue.
    pub(super) fn has_place(&self) -> bool {
        self.posted - self.freed < self.work.borrow().len() as u64
    }

    pub(super) fn post(&mut self, posted: PlacementWork) {
        let work = self.work.borrow_mut();
        let depth = work.len() as u64;
        if let Some(place) = work.get_mut((self.posted % depth) as usize) {
            *place = Some(posted);
            self.posted += 1;
        }
    }

    fn tell(&mut self, reports: &mut PendingReports<P>, id: u64, outcome: WorkOutcome, freed: Freed) {
        reports.complete(Completion { id, connection: self.connection, outcome }, freed);
        self.unpolled += 1;
    }

    /// Completes the receive at the front.
    pub(super) fn finish_receive(&mut self, reports: &mut PendingReports<P>, outcome: WorkOutcome) {
        if let Some(receive) = self.receives.pop_front() {
            let freed = if self.shared { Freed::Shared } else { Freed::Receive };
            self.tell(reports, receive.id, outcome, freed);
        }
    }

    /// Reports the completed work requests, in order.
    pub(super) fn complete(&mut self, reports: &mut PendingReports<P>) {
        while self.completed < self.sent {
            let number = self.completed;
            let Some(&PlacementWork { kind, answered, quiet, id, .. }) = self.at(number) else { break };
            let done = if kind.is_answered() { answered } else { number < self.acked };
            if !done {
                break;
            }
            self.completed += 1;
            if !quiet {
                self.tell(reports, id, WorkOutcome::Done, Freed::Work(number + 1));
            }
        }
    }

    /// Ends the connection: every posted request completes. The unused receives of a sharing connection stay:
    /// the caller takes them back.
    pub(super) fn end(&mut self, end: LinkEnd, reports: &mut PendingReports<P>) {
        if matches!(self.state, ConnectionState::Lost | ConnectionState::Gone) {
            return;
        }
        self.complete(reports);
        let gone = matches!(end.lost, LostError::Closed | LostError::Unreachable) && !self.closing;
        let failed = end.work.or(gone.then_some((self.completed, WorkError::PeerLost)));
        for number in self.completed..self.posted {
            let Some(posted) = self.at(number).copied() else { continue };
            let error = failed.filter(|(at, _)| *at == number).map_or(WorkError::Flushed, |(_, error)| error);
            self.tell(reports, posted.id, WorkOutcome::Failed(error), Freed::Work(number + 1));
        }
        self.completed = self.posted;
        // A message that has begun to arrive owns its receive.
        let begun = matches!(self.incoming, Some(IncomingFrame { what: IncomingKind::Send { .. }, .. }));
        if end.receive.is_some() || begun {
            self.finish_receive(reports, WorkOutcome::Failed(end.receive.unwrap_or(WorkError::Flushed)));
        }
        while !self.shared && !self.receives.is_empty() {
            self.finish_receive(reports, WorkOutcome::Failed(WorkError::Flushed));
        }
        let reported = !self.closing && self.state == ConnectionState::Ready;
        self.state = ConnectionState::Lost;
        (self.body, self.incoming) = (None, None);
        self.replies.clear();
        if reported {
            reports.report(Event::Lost { connection: self.connection, error: end.lost });
        }
    }

    /// Returns whether a frame of this length can be added to the outgoing bytes.
    pub(super) fn has_stage_room(&self, bytes: usize) -> bool {
        self.stage.len() + bytes <= STAGE_BYTES
    }

    /// Adds a frame to the outgoing bytes, which have room.
    pub(super) fn stage_frame(&mut self, frame: &Frame) {
        let (bytes, count) = frame.encode();
        let has_room = bytes.get(..count).is_some_and(|bytes| self.stage.push(bytes));
        debug_assert!(has_room, "the caller has checked that a frame fits");
    }
}
