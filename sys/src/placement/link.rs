//! A connection: its queues, and how it ends.

use std::collections::VecDeque;
use std::time::Duration;

use nemesia_core::port::memory::{
    Completion, Connection, ConnectionState, Event, LostError, PortRegion, Private, RemoteRange, Slice,
    WorkError, WorkOutcome,
};
use nemesia_core::wire::placement::{Frame, MOST_REPLIES, Reason};

use super::STAGE_BYTES;
use super::regions::PlacementParts;

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
pub(super) enum Local {
    Parts(PlacementParts),
    Inline([u8; MOST_INLINE]),
}

/// A work request of the send queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct PostedReceives {
    pub(super) id: u64,
    pub(super) quiet: bool,
    pub(super) fence: bool,
    pub(super) kind: PlacementKind,
    pub(super) local: Local,
    pub(super) len: u32,
    /// Whether its reply has arrived.
    pub(super) answered: bool,
    /// Whether the peer was told where its bytes are.
    pub(super) lent: bool,
}

/// Room for a message.
#[derive(Clone, Copy, Debug)]
pub(super) struct Receive {
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
pub(super) struct Body {
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
    pub(super) what: What,
    /// The place of the bytes in the peer's memory; `None` if they follow in the stream.
    pub(super) source: Option<u64>,
}

/// The destination of arriving bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    Write { immediate: Option<u32> },
    Send { immediate: Option<u32> },
    Reply,
}

/// Why a connection must end.
#[derive(Clone, Copy, Debug)]
pub(super) struct End {
    pub(super) lost: LostError,
    /// The work request of ours that failed, and its error.
    pub(super) work: Option<(u64, WorkError)>,
    /// The error of the receive at the front, if it failed.
    pub(super) receive: Option<WorkError>,
    /// The reason that the peer is told.
    pub(super) refuse: Option<Reason>,
}

impl End {
    pub(super) const fn new(lost: LostError) -> Self {
        Self { lost, work: None, receive: None, refuse: None }
    }

    /// The peer violated the protocol.
    pub(super) const PROTOCOL: Self = Self::new(LostError::Protocol);

    /// A work request of ours failed.
    pub(super) const fn work(number: u64, error: WorkError) -> Self {
        Self { work: Some((number, error)), ..Self::new(LostError::Work) }
    }

    /// The peer requested something forbidden.
    pub(super) const fn refuse(reason: Reason) -> Self {
        Self { refuse: Some(reason), ..Self::new(LostError::Access) }
    }
}

/// A connection.
#[derive(Debug)]
pub(super) struct PlacementLink<S> {
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
    /// Completions that were not polled.
    pub(super) unpolled: u32,
    /// Whether it is in the port's list of connections to handle.
    pub(super) listed: bool,
    /// Whether there may be more to read without a further event.
    pub(super) more_input: bool,
    /// Whether the kernel reports when it is writable.
    pub(super) writable_wanted: bool,

    /// The send queue. A work request's place is its number modulo the depth.
    pub(super) work: Vec<Option<PostedReceives>>,
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
    pub(super) receives: VecDeque<Receive>,
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
    pub(super) replies: VecDeque<PlacementReply>,

    /// Whether the peer can read our memory.
    pub(super) peer_pulls: bool,
    /// Whether it was told that we can read its memory.
    pub(super) reported_pulls: bool,
    /// Regions that the peer reads for our replies, and the number that it has finished.
    pub(super) lent: VecDeque<PortRegion>,
    pub(super) lent_done: u64,
    /// A region that is being deregistered, and the deadline for the peer.
    demanded: Option<(PortRegion, Duration)>,
    /// Replies that were read from the peer's memory, and the number that it was told.
    pub(super) pulled: u64,
    pub(super) pulled_reported: u64,

    /// Bytes to send before the body.
    pub(super) stage: Vec<u8>,
    pub(super) staged: usize,
    pub(super) body: Option<Body>,
    /// Whether replies or requests are next; they alternate.
    pub(super) turn: bool,
    pub(super) incoming: Option<IncomingFrame>,
    pub(super) input: Vec<u8>,
    pub(super) input_start: usize,
    pub(super) input_end: usize,
}

/// Events of a port that its owner has not polled.
#[derive(Debug, Default)]
pub(super) struct PendingReports {
    pub(super) done: VecDeque<(Completion, Freed)>,
    pub(super) events: VecDeque<Event>,
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

impl<S> PlacementLink<S> {
    pub(super) fn new(connection: Connection, state: ConnectionState, (sends, receives): (u32, u32)) -> Self {
        Self {
            connection,
            state,
            stream: None,
            deadline: Duration::MAX,
            private: Private::EMPTY,
            token: 0,
            handshake_done: false,
            closing: false,
            unpolled: 0,
            listed: false,
            more_input: false,
            writable_wanted: false,
            work: vec![None; sends as usize],
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
            receives: VecDeque::with_capacity(receives as usize),
            receive_depth: receives,
            receiving: 0,
            shared: false,
            granted: 0,
            begun: 0,
            wanted: 0,
            granted_reported: 0,
            executed: 0,
            executed_reported: 0,
            replies: VecDeque::with_capacity(MOST_REPLIES),
            peer_pulls: false,
            reported_pulls: false,
            lent: VecDeque::new(),
            lent_done: 0,
            demanded: None,
            pulled: 0,
            pulled_reported: 0,
            stage: Vec::with_capacity(STAGE_BYTES),
            staged: 0,
            body: None,
            turn: false,
            incoming: None,
            input: vec![0; STAGE_BYTES],
            input_start: 0,
            input_end: 0,
        }
    }

    /// Returns a work request by its number.
    pub(super) fn at(&self, number: u64) -> Option<&PostedReceives> {
        self.work.get((number % self.work.len() as u64) as usize)?.as_ref()
    }

    pub(super) fn at_mut(&mut self, number: u64) -> Option<&mut PostedReceives> {
        let depth = self.work.len() as u64;
        self.work.get_mut((number % depth) as usize)?.as_mut()
    }

    /// Returns whether the peer may be reading a region.
    pub(super) fn has_lent(&self, region: PortRegion) -> bool {
        let mut sent = self.lent_work();
        let uses =
            |posted: &PostedReceives| matches!(&posted.local, Local::Parts(parts) if parts.contain(region));
        self.state == ConnectionState::Ready && (self.lent.contains(&region) || sent.any(uses))
    }

    /// Returns whether the peer may be reading any region.
    pub(super) fn has_lent_any(&self) -> bool {
        self.state == ConnectionState::Ready && (!self.lent.is_empty() || self.lent_work().next().is_some())
    }

    /// Returns the work requests whose place the peer was told.
    fn lent_work(&self) -> impl Iterator<Item = &PostedReceives> {
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
    pub(super) const fn has_place(&self) -> bool {
        self.posted - self.freed < self.work.len() as u64
    }

    pub(super) fn post(&mut self, posted: PostedReceives) {
        let depth = self.work.len() as u64;
        self.work[(self.posted % depth) as usize] = Some(posted);
        self.posted += 1;
    }

    fn tell(&mut self, reports: &mut PendingReports, id: u64, outcome: WorkOutcome, freed: Freed) {
        reports.done.push_back((Completion { id, connection: self.connection, outcome }, freed));
        self.unpolled += 1;
    }

    /// Completes the receive at the front.
    pub(super) fn finish_receive(&mut self, reports: &mut PendingReports, outcome: WorkOutcome) {
        if let Some(receive) = self.receives.pop_front() {
            let freed = if self.shared { Freed::Shared } else { Freed::Receive };
            self.tell(reports, receive.id, outcome, freed);
        }
    }

    /// Reports the completed work requests, in order.
    pub(super) fn complete(&mut self, reports: &mut PendingReports) {
        while self.completed < self.sent {
            let number = self.completed;
            let Some(posted) = self.at(number).copied() else { break };
            let done = if posted.kind.is_answered() { posted.answered } else { number < self.acked };
            if !done {
                break;
            }
            self.completed += 1;
            if !posted.quiet {
                self.tell(reports, posted.id, WorkOutcome::Done, Freed::Work(number + 1));
            }
        }
    }

    /// Ends the connection: every posted request completes. Returns the unused receives that were reserved for
    /// a sharing connection.
    pub(super) fn end(&mut self, end: End, reports: &mut PendingReports) -> Vec<Receive> {
        if matches!(self.state, ConnectionState::Lost | ConnectionState::Gone) {
            return Vec::new();
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
        let begun = matches!(self.incoming, Some(IncomingFrame { what: What::Send { .. }, .. }));
        if end.receive.is_some() || begun {
            self.finish_receive(reports, WorkOutcome::Failed(end.receive.unwrap_or(WorkError::Flushed)));
        }
        let mut left = Vec::new();
        if self.shared {
            left.extend(self.receives.drain(..));
        }
        while !self.receives.is_empty() {
            self.finish_receive(reports, WorkOutcome::Failed(WorkError::Flushed));
        }
        let reported = !self.closing && self.state == ConnectionState::Ready;
        self.state = ConnectionState::Lost;
        (self.body, self.incoming) = (None, None);
        self.replies.clear();
        if reported {
            reports.events.push_back(Event::Lost { connection: self.connection, error: end.lost });
        }
        left
    }

    /// Returns whether a frame of this length can be added to the outgoing bytes.
    pub(super) fn has_stage_room(&self, bytes: usize) -> bool {
        self.stage.len() + bytes <= STAGE_BYTES
    }

    /// Adds a frame to the outgoing bytes, which have room.
    pub(super) fn stage_frame(&mut self, frame: &Frame) {
        let (bytes, count) = frame.encode();
        self.stage.extend_from_slice(&bytes[..count]);
    }
}
