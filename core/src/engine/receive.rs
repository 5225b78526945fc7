//! Receiving: posting, and delivering messages to receives or to the store of unexpected messages.
#![forbid(unsafe_code)]

use core::borrow::BorrowMut;

use super::peer::Queue;
use super::request::{Fate, How, Incoming, Message, Outcome, State};
use super::{Engine, Failure, RequestId, StartError, Status, Storage, Truncation};
#[cfg(nemesia_blunder)]
use crate::blunder::{Blunder, made};
use crate::matching::{Pattern, Source};
use crate::payload::{BorrowedRecv, Gather, RecvBuf, Scatter};
use crate::port::{Arrival, MessagePort, Part, PeerFault, PeerId, Polled, PortFault};
use crate::shared::fastbox::Word;
use crate::store::cost;
use crate::trace::Recorder as _;
use crate::wire::rendezvous::{RTS_BYTES, Rts, Stores};
use crate::wire::{Envelope, Kind};

/// What came of [`Engine::receive_step`].
#[derive(Debug)]
pub enum Bypass {
    /// Nothing has come.
    Idle,
    /// Something else has come; go on only if [`Engine::can_bypass`] still allows it.
    Busy,
    /// The receive is complete.
    Done(Outcome),
    /// The receive has become a request, which holds the buffer.
    Posted(RequestId),
    /// Something failed: post the receive, and learn what.
    Post,
}

/// What a receive into `room` bytes reports.
#[inline(always)]
pub(super) fn outcome(from: PeerId, tag: u64, total: u64, room: usize) -> Outcome {
    let status = Status { peer: from, tag, len: total.min(room as u64) as usize };
    if total > room as u64 {
        return Err(Fate::Truncated(Truncation { status, message: total }));
    }
    Ok(status)
}

/// Copies bytes of a packet, from `skip` on, to where `len` bytes from `at` on are in a buffer, as far as they fit.
#[inline(always)]
pub(super) fn unload<P: MessagePort>(
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

/// The arrival is a copy: on the critical path it stays in registers.
#[cold]
#[inline(never)]
fn scatter<P: MessagePort>(
    port: &P,
    arrival: Arrival<P::Token>,
    skip: usize,
    buf: &mut RecvBuf,
    (at, len): (usize, usize),
) {
    buf.each(at, len, |done, to| port.read(&arrival, skip + done, to));
}

/// Takes the message that is next, if the pattern names its source and its tag, and it fits.
#[inline(always)]
fn take_named<P: MessagePort>(port: &mut P, pattern: &Pattern, buf: &mut RecvBuf) -> Option<(PeerId, usize)> {
    let Pattern { source: Source::Rank(rank), context, tag, .. } = *pattern else { return None };
    let room = buf.len() as u64;
    let wanted = |from: PeerId, envelope: &Envelope| {
        from == rank && envelope.context == context && envelope.tag == tag && envelope.total <= room
    };
    port.take(wanted, &mut BorrowedRecv::new(buf)).map(|(_, envelope)| (rank, envelope.total as usize))
}

impl<P: MessagePort, S: Storage> Engine<P, S> {
    /// Posts a receive. It may be complete at once; [`Engine::test`] tells. The buffer is taken out of `buf`, unless there
    /// is an error.
    ///
    /// # Errors
    /// See [`StartError`]; nothing was posted. A source that is gone is an error unless a message of it waits.
    #[inline]
    pub fn irecv(&mut self, pattern: Pattern, buf: &mut RecvBuf) -> Result<RequestId, StartError> {
        if let Some(id) = self.post_now(&pattern, buf) {
            return Ok(id);
        }
        self.check_source(pattern.source)?;
        if let Some(stored) = self.store.find(&pattern) {
            // The slot first: without one, nothing may be lost.
            let index = self.start(State::Free)?;
            self.trace.enter("receive_stored", buf.len() as u64);
            self.receive_stored(index, stored, core::mem::replace(buf, RecvBuf::empty()));
            self.trace.leave(true);
            return Ok(self.id(index));
        }
        self.check_alive(pattern.source)?;
        self.post(&pattern, buf).ok_or(StartError::Requests { capacity: self.requests.capacity() })
    }

    /// As [`Engine::irecv`], of a receive for which no message is stored: the critical path. `None` says nothing, and nothing
    /// was posted.
    #[inline(always)]
    pub fn post_now(&mut self, pattern: &Pattern, buf: &mut RecvBuf) -> Option<RequestId> {
        if !self.store.is_empty() || self.check_alive(pattern.source).is_err() {
            return None;
        }
        self.post(pattern, buf)
    }

    /// Appends a receive to those posted. Without a slot the buffer stays where it is.
    #[inline(always)]
    fn post(&mut self, pattern: &Pattern, buf: &mut RecvBuf) -> Option<RequestId> {
        let number = self.posted.take_number();
        let (index, request) = self.posted.push(&mut self.requests, pattern)?;
        let buf = core::mem::replace(buf, RecvBuf::empty());
        request.0 = State::Posted { pattern: *pattern, buf, number };
        self.trace.note("post", index.into());
        if let Source::Rank(rank) = pattern.source {
            self.port.expect(rank);
        }
        Some(self.id(index))
    }

    /// Only looks where the message of a blocking receive is likeliest to come next: the cheapest of polls, for between
    /// two calls of [`Engine::receive_step`].
    #[inline(always)]
    pub fn receive_next(&mut self, pattern: &Pattern, buf: &mut RecvBuf) -> Option<Outcome> {
        let wanted = |from, envelope: &Envelope| pattern.matches(from, envelope);
        let (from, envelope) = self.port.take(wanted, &mut BorrowedRecv::new(buf))?;
        self.trace.note("receive_next", envelope.total);
        self.book_packet(from, envelope.total as usize);
        Some(outcome(from, envelope.tag, envelope.total, buf.len()))
    }

    /// Whether [`Engine::receive_step`] may find something where [`Engine::receive_next`] does not take it: a packet of another
    /// kind, or one that lies in a cell.
    #[inline(always)]
    pub fn has_next(&self) -> bool {
        self.port.has_next()
    }

    /// Between two calls of [`Engine::receive_next`] or [`Engine::receive_word`] that found nothing.
    #[inline(always)]
    pub fn pause(&mut self) {
        self.port.pause();
    }

    /// A blocking receive whose message is there, and a word: the critical path. `None` says nothing: the receive goes on as any
    /// other.
    #[inline(always)]
    pub fn receive_word(&mut self, pattern: &Pattern, into: &mut Word) -> Option<Status> {
        const LEN: usize = size_of::<Word>();
        // As `can_bypass` says, but that a source which is gone has no packets.
        if !self.is_idle() {
            return None;
        }
        let from = match pattern.source {
            Source::Rank(rank) => Some(rank),
            Source::Any if self.any_source_failure.is_some() => return None,
            Source::Any => None,
        };
        let (peer, tag, word, unsettled) =
            self.port.take_word(from, pattern.context, |tag| pattern.accepts(tag))?;
        *into = word;
        self.trace.note("receive_word", LEN as u64);
        self.book_word(peer, unsettled, 0);
        Some(Status { peer, tag, len: LEN })
    }

    /// Finishes a request that has succeeded, or a posted receive whose message is there, and would be taken by
    /// nothing else: the request in hand is what a poll is for (paper 4, section 3.3). The request is gone then. `None` says
    /// nothing.
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
        if let Some(into) = buf.whole(0, usize::MAX).and_then(<[u8]>::first_chunk_mut)
            && let Some((peer, tag, word, unsettled)) =
                self.port.take_word(Some(rank), pattern.context, |tag| tag == wanted)
        {
            *into = word;
            first.take(&mut self.requests);
            self.requests.remove(id.index);
            self.trace.note("receive_posted", size_of::<Word>() as u64);
            self.book_word(peer, unsettled, 1);
            return Some(Status { peer, tag, len: size_of::<Word>() });
        }
        let len = self.finish_packet(id)?;
        Some(Status { peer: rank, tag: wanted, len })
    }

    /// As [`Engine::finish_now`], of a posted receive whose message is of another size. Returns that: all else is as it was asked
    /// for, and a number comes back in a register.
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

    /// As [`Engine::receive_word`], of a message of another size that fits, from a source and with a tag that the pattern names.
    /// Returns its size: all else is as it was asked for, and a number comes back in a register.
    #[inline(never)]
    pub fn receive_packet(&mut self, pattern: &Pattern, buf: &mut RecvBuf) -> Option<usize> {
        if !self.is_idle() {
            return None;
        }
        pattern.hash()?;
        let (rank, len) = take_named(&mut self.port, pattern, buf)?;
        self.trace.note("receive_packet", len as u64);
        self.book_packet(rank, len);
        Some(len)
    }

    /// A whole message was taken that nobody had to store.
    #[inline(always)]
    fn book_packet(&mut self, from: PeerId, len: usize) {
        self.count_eager(from, len);
        if let Err(fault) = self.charge(from, cost(len), false) {
            self.fault(PeerFault { peer: from, fault });
        }
    }

    /// A word was taken, by a receive that was posted or by none.
    #[inline(always)]
    fn book_word(&mut self, peer: PeerId, unsettled: bool, posted: u64) {
        const LEN: usize = size_of::<Word>();
        let booked = self.peers.borrow_mut().get_mut(peer as usize).is_some_and(|peer| {
            peer.tally.received[Kind::Eager.index()].bytes += LEN as u64;
            peer.tally.posted += posted;
            peer.account.try_arrive(cost(LEN), false)
        });
        if unsettled || !booked {
            self.settle_word(peer, unsettled, booked);
        }
    }

    /// What is rarely to be done after a word.
    #[cold]
    #[inline(never)]
    fn settle_word(&mut self, peer: PeerId, unsettled: bool, booked: bool) {
        if unsettled {
            self.port.settle_take(peer);
        }
        if !booked && let Err(fault) = self.charge(peer, cost(size_of::<Word>()), false) {
            self.fault(PeerFault { peer, fault });
        }
    }

    /// Whether nothing is posted, stored or pending.
    #[inline(always)]
    fn is_idle(&self) -> bool {
        self.posted.is_empty() && self.store.is_empty() && self.first_work.is_none()
    }

    /// One turn of the crank for a caller that blocks in one receive, which need not be posted: the packet in hand is
    /// matched against it directly (paper 4, section 3.3).
    ///
    /// Only for a pattern that [`Engine::can_bypass`] allowed; what comes for others is delivered as ever.
    #[inline(always)]
    pub fn receive_step(&mut self, pattern: &Pattern, buf: &mut RecvBuf) -> Bypass {
        if let Some(outcome) = self.receive_next(pattern, buf) {
            return Bypass::Done(outcome);
        }
        match self.port.poll() {
            Polled::Idle => Bypass::Idle,
            Polled::Packet(arrival) => self.receive_arrival(pattern, buf, arrival),
            Polled::Fault(fault) => {
                self.fault(fault);
                Bypass::Post
            }
        }
    }

    /// A packet that may be the message of the bypass. A message of a rendezvous gets a request to go on with.
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
                // Without a free slot it is stored as unexpected, and posting will tell.
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

    /// Whether a blocking receive can do without being posted: nothing else may take its message, and its message has
    /// not come yet.
    #[inline(always)]
    pub fn can_bypass(&self, pattern: &Pattern) -> bool {
        self.is_idle() && self.check_alive(pattern.source).is_ok()
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

    /// Gives a stored message to a receive. The slot is the receive's.
    pub(super) fn receive_stored(&mut self, index: u32, id: u32, mut buf: RecvBuf) {
        let stored = self.store.get(id);
        let room = buf.len();
        if stored.kind == Kind::Rts {
            let mut head = [0; RTS_BYTES];
            self.store.read(id, 0, &mut head);
            // It was understood when it came.
            if let Some(rts) = Rts::decode(&head, stored.len) {
                let first = stored.len - RTS_BYTES;
                buf.each(0, first, |done, to| _ = self.store.read(id, RTS_BYTES + done, to));
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

    /// Forgets a stored message: there is room for others.
    pub(super) fn discard(&mut self, id: u32) {
        let source = self.store.get(id).source;
        let units = self.store.remove(id);
        self.credit_removed(source, units);
    }

    /// A receive has matched an RTS, whose `first` bytes are in its buffer as far as they fit.
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
            // Probed before, or whole with its announcement; what did not come with that is gone with its sender.
            let fate = match first as u64 == rts.total {
                true => outcome(from, tag, rts.total, buf.len()),
                false => Err(Fate::PeerFailed { peer: from, failure }),
            };
            return self.complete(index, fate);
        }
        let incoming =
            Incoming { from, tag, rts, left, how: How::Pull, measured: false, stores: Stores::Learned };
        self.requests.get_mut(index).0 = State::Receiving { incoming, buf: Scatter::new(buf) };
        self.start_transfer(index);
    }

    /// The first posted receive that matches, taken out of the queue.
    #[inline(always)]
    fn take_posted(&mut self, from: PeerId, envelope: &Envelope) -> Option<u32> {
        let index = self.posted.take(&mut self.requests, from, envelope)?;
        self.peer(from).tally.posted += 1;
        Some(index)
    }

    /// Takes the buffer out of a posted receive that will be complete or receiving next.
    #[inline(always)]
    fn take_buffer(&mut self, index: u32) -> RecvBuf {
        match &mut self.requests.get_mut(index).0 {
            State::Posted { buf, .. } => core::mem::replace(buf, RecvBuf::empty()),
            _ => RecvBuf::empty(),
        }
    }

    /// Brings a packet where it belongs, and releases it.
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
        #[cfg(nemesia_blunder)]
        let kind = if kind == Kind::Data && made(Blunder::ForgetCount) { Kind::Eager } else { kind };
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
        let mut head = [0; RTS_BYTES];
        let head_len = len.min(RTS_BYTES);
        self.port.read(&arrival, 0, &mut head[..head_len]);
        let Some(rts) = Rts::decode(&head, len) else {
            self.port.release(arrival);
            return Err(PortFault::Protocol { kind: envelope.kind });
        };
        let Some(index) = self.take_posted(from, &envelope) else { return self.keep(arrival, &head) };
        let mut buf = self.take_buffer(index);
        let first = len - RTS_BYTES;
        unload(&self.port, &arrival, RTS_BYTES, &mut buf, (0, first));
        self.port.release(arrival);
        let charged = self.charge(from, cost(len), false);
        self.receive_offered(index, (from, envelope.tag), rts, first, buf);
        charged
    }

    /// Nobody has asked for it yet: copied out, so that its cell is free at once (paper 4, section 3.1). It begins with
    /// `head`, which was checked: the sender could have written something else since.
    #[inline(never)]
    fn keep(&mut self, arrival: Arrival<P::Token>, head: &[u8]) -> Result<(), PortFault> {
        let Arrival { peer: from, envelope, len, .. } = arrival;
        if envelope.kind == Kind::Eager {
            self.count_eager(from, len);
        }
        // Whoever keeps to its credit finds room.
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
        debug_assert!(stored.is_some(), "credit promised room");
        self.count_stored(from, len);
        self.port.release(arrival);
        Ok(())
    }

    /// A pending message to ourselves: matched as any other, and copied once or twice. False when there is no room to keep
    /// it, or to remember it.
    pub(super) fn send_to_self(&mut self, index: u32, message: &Message) -> bool {
        let (me, len) = (self.rank, message.buf.len());
        let envelope = message.envelope(Kind::Eager);
        if let Some(receive) = self.take_posted(me, &envelope) {
            let mut buf = self.take_buffer(receive);
            let fits = buf.len().min(len);
            let mut from = Gather::new(message.buf.alias());
            buf.each(0, fits, |done, to| from.read(done, to));
            self.complete(receive, outcome(me, message.tag, len as u64, buf.len()));
            self.count_own(len);
            self.dequeue(me, Queue::Pending, index);
            self.complete_send(me, index);
            return true;
        }
        if !message.synchronous && len <= self.eager_bytes && self.ledger.try_reserve(cost(len)) {
            let mut from = Gather::new(message.buf.alias());
            let read = |at: usize, to: &mut [u8]| from.read(at, to);
            let stored = self.store.insert(me, &envelope, len, read);
            debug_assert!(stored.is_some(), "room was reserved");
            self.count_own(len);
            self.count_stored(me, len);
            self.dequeue(me, Queue::Pending, index);
            self.complete_send(me, index);
            return true;
        }
        if !self.ledger.try_reserve(cost(RTS_BYTES)) {
            return false;
        }
        let rts = Rts { total: len as u64, sender: self.id(index).to_bits(), address: 0, way: 0 }.encode();
        let envelope = Envelope { kind: Kind::Rts, ..envelope };
        let read = |at: usize, to: &mut [u8]| to.copy_from_slice(&rts[at..at + to.len()]);
        let stored = self.store.insert(me, &envelope, RTS_BYTES, read);
        debug_assert!(stored.is_some(), "room was reserved");
        self.count_own(len);
        self.count_stored(me, RTS_BYTES);
        self.dequeue(me, Queue::Pending, index);
        self.requests.get_mut(index).0 = State::Offered { to: me, message: message.alias() };
        self.enqueue(me, Queue::Offered, index);
        true
    }

    /// Copies a message of ours that was remembered, not kept, and completes its send.
    fn take_from_self(&mut self, tag: u64, rts: &Rts, buf: &mut RecvBuf) -> Outcome {
        let me = self.rank;
        if let Some((index, message)) = self.offered(me, rts.sender) {
            let fits = buf.len().min(message.buf.len());
            let mut from = Gather::new(message.buf.alias());
            buf.each(0, fits, |done, to| from.read(done, to));
            self.dequeue(me, Queue::Offered, index);
            self.complete_send(me, index);
        }
        outcome(me, tag, rts.total, buf.len())
    }

    /// Ends the receives that only a peer that is gone could have satisfied, and those from any source when
    /// they are concerned.
    pub(super) fn fail_receives(&mut self, peer: PeerId, failure: Failure, concerns_any: bool) {
        self.fail_transfers(peer, failure);
        let fate = Err(Fate::PeerFailed { peer, failure });
        let listens = |pattern: &Pattern| match pattern.source {
            Source::Rank(rank) => rank == peer,
            Source::Any => concerns_any,
        };
        self.posted.extract(&mut self.requests, listens, |requests, index| {
            requests.get_mut(index).0 = State::Done(fate);
        });
    }
}
