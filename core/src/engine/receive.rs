//! Receiving: posting receives, and delivering messages to receives or to the store of unexpected messages.
#![forbid(unsafe_code)]

use core::borrow::BorrowMut;

use super::request::{CompletionError, Incoming, Outcome, State, TransferPhase, outcome};
use super::{Engine, Failure, RequestId, StartError, Status, Storage};
#[cfg(nemesia_injected_fault)]
use crate::injected_fault::{InjectedFault, injected};
use crate::matching::{Pattern, Source};
use crate::payload::{BorrowedRecv, RecvBuf, Scatter};
use crate::port::{Arrival, Part, PeerFault, PeerId, Polled, Port, PortFault};
use crate::shared::fastbox::SHORT_BYTES;
use crate::store::{Store, Stored, Unit, cost};
use crate::trace::Recorder as _;
use crate::wire::rendezvous::{MOST_RTS_BYTES, Rts};
use crate::wire::{Envelope, Kind};

/// The result of [`Engine::receive_step`].
#[derive(Debug)]
pub enum Bypass {
    /// Nothing has arrived, and no work was done.
    Idle,
    /// Another packet has arrived, or pending work was done. Continue only if [`Engine::can_bypass`] still allows
    /// it.
    Busy,
    /// The receive is complete.
    Done(Outcome),
    /// The receive has become a request, which now owns the buffer.
    Posted(RequestId),
    /// A failure occurred. The caller posts the receive, which returns the error.
    Post,
}

/// Copies bytes of a packet, from `skip` on, into `len` bytes of a buffer from `at` on, as far as they fit.
#[inline(always)]
pub(super) fn unload<P: Port>(
    port: &P,
    arrival: &Arrival<P::Token>,
    skip: usize,
    buf: &mut RecvBuf,
    (at, len): (usize, usize),
) {
    match buf.whole(at, len) {
        Some(to) => port.read(arrival, skip, to),
        None => scatter(port, *arrival, skip, buf, (at, len)),
    }
}

/// The arrival is passed by value, so that it stays in registers on the critical path.
#[cold]
#[inline(never)]
fn scatter<P: Port>(
    port: &P,
    arrival: Arrival<P::Token>,
    skip: usize,
    buf: &mut RecvBuf,
    (at, len): (usize, usize),
) {
    buf.each(at, len, |done, to| port.read(&arrival, skip + done, to));
}

/// Takes the next message if it fits and the pattern names its source and its tag.
#[inline(always)]
fn take_named<P: Port>(port: &mut P, pattern: &Pattern, buf: &mut RecvBuf) -> Option<(PeerId, usize)> {
    let Pattern { source: Source::Rank(rank), context, tag, .. } = *pattern else { return None };
    let room = buf.len() as u64;
    let wanted = |from: PeerId, envelope: &Envelope| {
        from == rank && envelope.context == context && envelope.tag == tag && envelope.total <= room
    };
    port.take(wanted, &mut BorrowedRecv::new(buf)).map(|(_, envelope)| (rank, envelope.total as usize))
}

/// Returns the RTS of a stored message; `None` if the message is of another kind. The RTS was validated on arrival.
pub(super) fn stored_rts<M, H>(store: &Store<M, H>, id: u32, stored: &Stored) -> Option<Rts>
where
    M: BorrowMut<[Unit]>,
    H: BorrowMut<[u32]>,
{
    if stored.kind != Kind::Rts {
        return None;
    }
    let mut head = [0; MOST_RTS_BYTES];
    let len = store.read(id, 0, &mut head);
    Rts::decode(&head[..len], stored.len)
}

impl<P: Port, S: Storage> Engine<P, S> {
    /// Posts a receive. The receive may complete at once; [`Engine::test`] returns its state. The engine takes the
    /// buffer out of `buf`, unless it returns an error.
    ///
    /// # Errors
    /// See [`StartError`]; nothing was posted. A failed source is an error unless a message from it is stored.
    #[inline]
    pub fn irecv(&mut self, pattern: Pattern, buf: &mut RecvBuf) -> Result<RequestId, StartError> {
        if let Some(id) = self.post_now(&pattern, buf) {
            return Ok(id);
        }
        self.check_source(pattern.source)?;
        if let Some(stored) = self.store.find(&pattern) {
            // The slot is reserved first: if none is free, the stored message must stay.
            let index = self.start(State::Free)?;
            self.trace.enter("receive_stored", buf.len() as u64);
            self.receive_stored(index, stored, core::mem::replace(buf, RecvBuf::empty()));
            self.trace.leave(true);
            return Ok(self.id(index));
        }
        self.check_alive(pattern.source)?;
        self.post(&pattern, buf).ok_or(StartError::Requests { capacity: self.requests.capacity() })
    }

    /// As [`Engine::irecv`], if no message is stored: the critical path. `None` if nothing was posted: the caller
    /// takes the slow path.
    #[inline(always)]
    pub fn post_now(&mut self, pattern: &Pattern, buf: &mut RecvBuf) -> Option<RequestId> {
        if !self.store.is_empty() || self.check_alive(pattern.source).is_err() {
            return None;
        }
        self.post(pattern, buf)
    }

    /// Appends a receive to the posted receives. If no slot is free, the buffer stays in `buf`.
    #[inline(always)]
    fn post(&mut self, pattern: &Pattern, buf: &mut RecvBuf) -> Option<RequestId> {
        let number = self.posted.take_number();
        let (index, request) = self.posted.push(&mut self.requests, pattern)?;
        let buf = core::mem::replace(buf, RecvBuf::empty());
        request.0 = State::Posted { pattern: *pattern, buf, number };
        self.trace.note("post", index.into());
        if let Source::Rank(rank) = pattern.source {
            self.port.prioritize(rank);
        }
        Some(self.id(index))
    }

    /// Polls only the place where the next message of a blocking receive most probably arrives. This is the cheapest
    /// poll, for use between two calls of [`Engine::receive_step`].
    #[inline(always)]
    pub fn receive_next(&mut self, pattern: &Pattern, buf: &mut RecvBuf) -> Option<Outcome> {
        let wanted = |from, envelope: &Envelope| pattern.matches(from, envelope);
        let (from, envelope) = self.port.take(wanted, &mut BorrowedRecv::new(buf))?;
        self.trace.note("receive_next", envelope.total);
        self.book_packet(from, envelope.total as usize);
        Some(outcome(from, envelope.tag, envelope.total, buf.len()))
    }

    /// Returns whether a packet may wait that only [`Engine::receive_step`] takes: of another kind, or in a cell.
    #[inline(always)]
    pub fn has_next(&self) -> bool {
        self.port.has_next()
    }

    /// Pauses between two calls of [`Engine::receive_next`] that found nothing.
    #[inline(always)]
    pub fn pause(&mut self) {
        self.port.pause();
    }

    /// Completes a blocking receive whose message has arrived, is short and fits: the critical path. `None`
    /// if no message was taken, or anything is posted, stored or pending: the caller takes the slow path, or
    /// [`Engine::receive_short_beside`]. `from` is a rank, which need not exist, or any. There is no
    /// [`Pattern`], because to make one takes instructions that only the slow path needs.
    #[inline(always)]
    pub fn receive_short(
        &mut self,
        from: Option<usize>,
        context: u16,
        wanted: impl FnOnce(u64) -> bool,
        into: &mut [u8],
    ) -> Option<Status> {
        if self.is_idle() { self.take_short(from, context, wanted, into) } else { None }
    }

    /// Receives a short message if it is the next one of its source, for a caller that has checked that it
    /// may. There is no check for a failed source: a failed source has no packets.
    #[inline(always)]
    pub(super) fn take_short(
        &mut self,
        from: Option<usize>,
        context: u16,
        wanted: impl FnOnce(u64) -> bool,
        into: &mut [u8],
    ) -> Option<Status> {
        if from.is_none() && self.any_source_failure.is_some() {
            return None;
        }
        let (peer, tag, len, unsettled) = self.port.take_short(from, context, wanted, into)?;
        self.trace.note("receive_short", len as u64);
        self.book_short(peer, len, unsettled, 0);
        Some(Status { peer, tag, len })
    }

    /// Completes a request that has succeeded, or a posted receive whose message has arrived and which is the first
    /// to match it. The poll serves the request at hand (paper 4, section 3.3). The request is then freed. `None` if
    /// nothing was completed: the caller takes the slow path.
    #[inline(always)]
    pub fn finish_now(&mut self, id: RequestId) -> Option<Status> {
        let request = self.requests.live_mut(id.index, id.generation)?;
        let State::Posted { pattern, buf, .. } = &mut request.0 else {
            let State::Done(Ok(status)) = request.0 else { return None };
            self.requests.remove(id.index);
            return Some(status);
        };
        let (Some(hash), Source::Rank(rank)) = (pattern.hash(), pattern.source) else { return None };
        let first = self.posted.first(hash, id.index)?;
        let wanted = pattern.tag;
        if let Some(into) = buf.whole(0, usize::MAX)
            && let Some((peer, tag, len, unsettled)) =
                self.port.take_short(Some(rank as usize), pattern.context, |tag| tag == wanted, into)
        {
            first.take(&mut self.requests);
            self.requests.remove(id.index);
            self.trace.note("receive_posted", len as u64);
            self.book_short(peer, len, unsettled, 1);
            return Some(Status { peer, tag, len });
        }
        // Most polls find nothing at all.
        if !self.port.has_next() {
            return None;
        }
        let len = self.finish_packet(id)?;
        Some(Status { peer: rank, tag: wanted, len })
    }

    /// As [`Engine::finish_now`], for a posted receive whose message is not short. Returns the size of the
    /// message: the caller knows its source and tag, and a number is returned in a register.
    #[inline(never)]
    fn finish_packet(&mut self, id: RequestId) -> Option<usize> {
        let State::Posted { pattern, buf, .. } = &mut self.requests.live_mut(id.index, id.generation)?.0
        else {
            return None;
        };
        let first = self.posted.first(pattern.hash()?, id.index)?;
        let (rank, len) = take_named(&mut self.port, pattern, buf)?;
        first.take(&mut self.requests);
        self.requests.remove(id.index);
        self.peer(rank).tally.posted += 1;
        self.trace.note("receive_posted", len as u64);
        self.book_packet(rank, len);
        Some(len)
    }

    /// As [`Engine::receive_short`], for a message of any size that fits, if the pattern names source and tag.
    /// Returns the size of the message: the caller knows the source and tag, and a number is returned in a register.
    #[inline(always)]
    pub fn receive_packet(&mut self, pattern: &Pattern, buf: &mut RecvBuf) -> Option<usize> {
        if !self.can_poll(pattern) {
            return None;
        }
        pattern.hash()?;
        let (rank, len) = take_named(&mut self.port, pattern, buf)?;
        self.trace.note("receive_packet", len as u64);
        self.book_packet(rank, len);
        Some(len)
    }

    /// Counts and charges a whole message that was received without being stored.
    #[inline(always)]
    fn book_packet(&mut self, from: PeerId, len: usize) {
        self.count_eager(from, len);
        if let Err(fault) = self.charge(from, cost(len), false) {
            self.fault(PeerFault { peer: from, fault });
        }
    }

    /// Counts and charges a short message that was received, by a posted receive or a blocking one.
    #[inline(always)]
    fn book_short(&mut self, peer: PeerId, len: usize, unsettled: bool, posted: u64) {
        let booked = self.peers.borrow_mut().get_mut(peer as usize).is_some_and(|peer| {
            peer.tally.received[Kind::Eager.index()].bytes += len as u64;
            peer.tally.posted += posted;
            peer.account.try_arrive(cost(SHORT_BYTES), false)
        });
        if unsettled || !booked {
            self.settle_short(peer, unsettled, booked);
        }
    }

    /// Does the rare work after a short message that was received.
    #[cold]
    #[inline(never)]
    fn settle_short(&mut self, peer: PeerId, unsettled: bool, booked: bool) {
        if unsettled {
            self.port.settle_take(peer);
        }
        if !booked && let Err(fault) = self.charge(peer, cost(SHORT_BYTES), false) {
            self.fault(PeerFault { peer, fault });
        }
    }

    /// Performs one progress step for a caller that blocks in one receive. The receive need not be posted: the engine
    /// matches each packet against it directly (paper 4, section 3.3).
    ///
    /// Call this only with a pattern for which [`Engine::can_bypass`] returned `true`, and ask again after each call
    /// of another function of the engine. Packets for other receives are delivered as usual. If no packet has
    /// arrived, pending work is continued.
    #[inline(always)]
    pub fn receive_step(&mut self, pattern: &Pattern, buf: &mut RecvBuf) -> Bypass {
        if let Some(outcome) = self.receive_next(pattern, buf) {
            return Bypass::Done(outcome);
        }
        match self.port.poll() {
            Polled::Idle if self.has_work() => self.work_beside(),
            Polled::Idle => Bypass::Idle,
            Polled::Packet(arrival) => self.receive_arrival(pattern, buf, arrival),
            Polled::Fault(fault) => {
                self.fault(fault);
                Bypass::Post
            }
        }
    }

    /// Delivers a packet that may match the bypassed receive. A rendezvous message gets a request.
    fn receive_arrival(
        &mut self,
        pattern: &Pattern,
        buf: &mut RecvBuf,
        arrival: Arrival<P::Token>,
    ) -> Bypass {
        let Arrival { peer, envelope, len, .. } = arrival;
        let mut posted = None;
        match envelope.kind {
            Kind::Eager if pattern.matches(peer, &envelope) => {
                let room = buf.len();
                unload(&self.port, &arrival, 0, buf, (0, len));
                self.port.release(arrival);
                self.trace.note("receive_arrival", len as u64);
                self.book_packet(peer, len);
                return Bypass::Done(outcome(peer, envelope.tag, envelope.total, room));
            }
            Kind::Rts if pattern.matches(peer, &envelope) => {
                // Without a free slot the message is stored as unexpected, and posting the receive returns the error.
                posted = self.post(pattern, buf);
            }
            _ => {}
        }
        self.trace.enter(envelope.kind.name(), len as u64);
        let delivered = self.deliver(arrival);
        self.trace.leave(true);
        if let Err(fault) = delivered {
            self.fault(PeerFault { peer, fault });
            return posted.map_or(Bypass::Post, Bypass::Posted);
        }
        posted.map_or(Bypass::Busy, Bypass::Posted)
    }

    #[inline(always)]
    pub(super) fn check_source(&self, source: Source) -> Result<(), StartError> {
        match source {
            Source::Rank(rank) if rank >= self.size() => Err(StartError::Rank { rank, size: self.size() }),
            _ => Ok(()),
        }
    }

    #[inline(always)]
    pub(super) fn check_alive(&self, source: Source) -> Result<(), StartError> {
        match (source, self.any_source_failure) {
            (Source::Rank(rank), _) => self.check_peer(rank),
            (Source::Any, Some((peer, failure))) => Err(StartError::PeerFailed { peer, failure }),
            (Source::Any, None) => Ok(()),
        }
    }

    /// Moves a stored message to a receive, whose request has slot `index`.
    pub(super) fn receive_stored(&mut self, index: u32, id: u32, mut buf: RecvBuf) {
        let stored = self.store.get(id);
        let room = buf.len();
        if stored.kind == Kind::Rts {
            if let Some(rts) = stored_rts(&self.store, id, &stored) {
                let first = stored.len - rts.bytes();
                buf.each(0, first, |done, to| _ = self.store.read(id, rts.bytes() + done, to));
                self.discard(id);
                self.receive_offered(index, (stored.source, stored.tag), rts, first, buf);
            }
            return;
        }
        match buf.whole(0, stored.len) {
            Some(to) => _ = self.store.read(id, 0, to),
            None => buf.each(0, stored.len, |done, to| _ = self.store.read(id, done, to)),
        }
        self.discard(id);
        self.complete(index, outcome(stored.source, stored.tag, stored.len as u64, room));
    }

    /// Removes a stored message, which frees memory for others.
    pub(super) fn discard(&mut self, id: u32) {
        let source = self.store.get(id).source;
        let units = self.store.remove(id);
        self.credit_removed(source, units);
    }

    /// Starts a receive that has matched an RTS, whose `first` bytes are in its buffer as far as they fit.
    fn receive_offered(
        &mut self,
        index: u32,
        (from, tag): (PeerId, u64),
        rts: Rts,
        first: usize,
        mut buf: RecvBuf,
    ) {
        if from == self.rank {
            let outcome = self.take_from_self(tag, &rts, &mut buf);
            return self.complete(index, outcome);
        }
        let end = rts.total.min(buf.len() as u64);
        let left = Part { start: end.min(first as u64), end };
        if let Some(failure) = self.failure(from) {
            // The message was probed before the failure, or travelled whole with its RTS. Other bytes are lost.
            let completion_error = match first as u64 == rts.total {
                true => outcome(from, tag, rts.total, buf.len()),
                false => Err(CompletionError::PeerFailed { peer: from, failure }),
            };
            return self.complete(index, completion_error);
        }
        let incoming = Incoming {
            shared: 0,
            from,
            tag,
            rts,
            left,
            phase: TransferPhase::Pull,
            begun: left.start,
            accesses: 0,
            failed: false,
            measured: None,
            exposure: None,
        };
        self.requests.get_mut(index).0 = State::Receiving { incoming, buf: Scatter::new(buf) };
        self.start_transfer(index);
    }

    /// Returns the first posted receive that matches, and removes it from the queue.
    #[inline(always)]
    pub(super) fn take_posted(&mut self, from: PeerId, envelope: &Envelope) -> Option<u32> {
        let index = self.posted.take(&mut self.requests, from, envelope)?;
        self.peer(from).tally.posted += 1;
        Some(index)
    }

    /// Takes the buffer out of a posted receive whose state changes next.
    #[inline(always)]
    pub(super) fn take_buffer(&mut self, index: u32) -> RecvBuf {
        match &mut self.requests.get_mut(index).0 {
            State::Posted { buf, .. } => core::mem::replace(buf, RecvBuf::empty()),
            _ => RecvBuf::empty(),
        }
    }

    /// Delivers a packet and releases it.
    #[inline(always)]
    pub(super) fn deliver(&mut self, arrival: Arrival<P::Token>) -> Result<(), PortFault> {
        let Arrival { peer: from, envelope, len, .. } = arrival;
        if envelope.kind != Kind::Eager {
            return self.deliver_other(arrival);
        }
        let Some(index) = self.take_posted(from, &envelope) else { return self.keep(arrival, &[]) };
        let mut buf = self.take_buffer(index);
        let room = buf.len();
        unload(&self.port, &arrival, 0, &mut buf, (0, len));
        self.port.release(arrival);
        self.complete(index, outcome(from, envelope.tag, envelope.total, room));
        self.count_eager(from, len);
        self.charge(from, cost(len), false)
    }

    #[inline(never)]
    fn deliver_other(&mut self, arrival: Arrival<P::Token>) -> Result<(), PortFault> {
        let kind = arrival.envelope.kind;
        #[cfg(nemesia_injected_fault)]
        let kind =
            if kind == Kind::Data && injected(InjectedFault::ForgetCount) { Kind::Eager } else { kind };
        self.peer(arrival.peer).tally.received[kind.index()].add(arrival.len);
        match arrival.envelope.kind {
            Kind::Eager | Kind::Rts => self.deliver_rts(arrival),
            Kind::Cts | Kind::Data | Kind::Fin => {
                let delivered = self.deliver_answer(&arrival);
                self.port.release(arrival);
                delivered
            }
            Kind::Active => self.deliver_active(arrival),
            Kind::Rma => {
                let delivered = self.deliver_request(&arrival);
                self.port.release(arrival);
                delivered
            }
            Kind::RmaReply => {
                let delivered = self.deliver_reply(&arrival);
                self.port.release(arrival);
                delivered
            }
        }
    }

    fn deliver_rts(&mut self, arrival: Arrival<P::Token>) -> Result<(), PortFault> {
        let Arrival { peer: from, envelope, len, .. } = arrival;
        let mut head = [0; MOST_RTS_BYTES];
        let head = &mut head[..len.min(MOST_RTS_BYTES)];
        self.port.read(&arrival, 0, head);
        let Some(rts) = Rts::decode(head, len) else {
            self.port.release(arrival);
            return Err(PortFault::Protocol { kind: envelope.kind });
        };
        let Some(index) = self.take_posted(from, &envelope) else { return self.keep(arrival, head) };
        let mut buf = self.take_buffer(index);
        let first = len - rts.bytes();
        unload(&self.port, &arrival, rts.bytes(), &mut buf, (0, first));
        self.port.release(arrival);
        let charged = self.charge(from, cost(len), false);
        self.receive_offered(index, (from, envelope.tag), rts, first, buf);
        charged
    }

    /// Stores a packet that matches no receive. It is copied out, so that its cell is free at once (paper 4, section
    /// 3.1). The stored message begins with `head`, which was validated: the cell may have changed since.
    #[inline(never)]
    fn keep(&mut self, arrival: Arrival<P::Token>, head: &[u8]) -> Result<(), PortFault> {
        let Arrival { peer: from, envelope, len, .. } = arrival;
        if envelope.kind == Kind::Eager {
            self.count_eager(from, len);
        }
        // If the peer obeys its credit, there is memory.
        if let Err(fault) = self.charge(from, cost(len), true) {
            self.port.release(arrival);
            return Err(fault);
        }
        let port = &self.port;
        let stored = self.store.insert(from, &envelope, len, |at, to| {
            port.read(&arrival, at, to);
            for (to, checked) in to.iter_mut().zip(head.iter().skip(at)) {
                *to = *checked;
            }
        });
        debug_assert!(stored.is_some(), "credit guarantees memory");
        self.count_stored(from, len);
        self.port.release(arrival);
        Ok(())
    }

    /// Fails the receives that only the failed peer could satisfy. If `concerns_any`, those from any source fail too.
    pub(super) fn fail_receives(&mut self, peer: PeerId, failure: Failure, concerns_any: bool) {
        self.fail_transfers(peer, failure);
        let completion_error = Err(CompletionError::PeerFailed { peer, failure });
        let listens = |pattern: &Pattern| match pattern.source {
            Source::Rank(rank) => rank == peer,
            Source::Any => concerns_any,
        };
        self.posted.extract(&mut self.requests, listens, |requests, index| {
            requests.get_mut(index).0 = State::Done(completion_error);
        });
    }
}
