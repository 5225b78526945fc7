//! Receiving: posting, and delivering packets to receives or to the store of unexpected messages.
#![forbid(unsafe_code)]

use core::borrow::Borrow;

use super::request::{Fate, Outcome, Request, State};
use super::{Engine, Failure, Partial, Peer, RequestId, StartError, Status, Storage, Truncation};
use crate::matching::{Pattern, Source};
use crate::payload::{RecvBuf, SendBuf};
use crate::port::{Arrival, MessagePort, PeerFault, PeerId, Polled, PortFault};
use crate::wire::{Envelope, Kind};

/// What came of a packet.
pub(super) enum Delivery {
    /// It was taken.
    Taken,
    /// There is no room for it; its sender is held.
    Held,
    /// It makes no sense.
    Fault(PortFault),
}

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

fn outcome(from: PeerId, envelope: &Envelope, room: usize) -> Outcome {
    let len = (room as u64).min(envelope.total) as usize;
    let status = Status { peer: from, tag: envelope.tag, len };
    if envelope.total > room as u64 {
        return Err(Fate::Truncated(Truncation { status, message: envelope.total }));
    }
    Ok(status)
}

impl<P: MessagePort, S: Storage> Engine<P, S> {
    /// Posts a receive. It may be complete at once; [`Engine::test`] tells. The buffer is taken out of `buf`, unless there
    /// is an error.
    ///
    /// # Errors
    /// See [`StartError`]; nothing was posted. A source that is gone is an error unless a message of it waits.
    #[inline]
    pub fn irecv(&mut self, pattern: Pattern, buf: &mut RecvBuf) -> Result<RequestId, StartError> {
        if let Source::Rank(rank) = pattern.source
            && rank >= self.size()
        {
            return Err(StartError::Rank { rank, size: self.size() });
        }
        if let Some(message) = self.unexpected.find(&pattern) {
            return self.receive_stored(message, buf);
        }
        self.check_alive(pattern.source)?;
        let number = self.posted.take_number();
        // The slot first: without one, the buffer stays the caller's.
        let index = self.start(State::Posted { pattern, buf: RecvBuf::empty(), number })?;
        if let State::Posted { buf: posted, .. } = &mut self.requests.get_mut(index).0 {
            core::mem::swap(posted, buf);
        }
        self.posted.push(&mut self.requests, index, &pattern);
        if let Source::Rank(rank) = pattern.source {
            self.port.expect(rank);
        }
        if self.held > 0 {
            self.unhold(pattern.source);
        }
        Ok(self.id(index))
    }

    /// Only looks where the message of a blocking receive is likeliest to come next: the cheapest of polls, for between
    /// two calls of [`Engine::receive_step`].
    #[inline(always)]
    pub fn receive_next(&mut self, pattern: &Pattern, buf: &mut RecvBuf) -> Option<Outcome> {
        let Self { port, peers, .. } = self;
        let peers: &[Peer] = (*peers).borrow();
        let whole = |from: PeerId| peers.get(from as usize).is_some_and(|peer| peer.partial == Partial::None);
        let wanted = |from: PeerId, envelope: &Envelope| pattern.matches(from, envelope) && whole(from);
        let (from, envelope) = port.take(wanted, buf)?;
        Some(outcome(from, &envelope, buf.len()))
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
            Polled::Packet(arrival) => {
                let Arrival { peer: from, envelope, len, .. } = arrival;
                let whole = envelope.kind == Kind::Eager && self.peer(from).partial == Partial::None;
                if !whole || !pattern.matches(from, &envelope) {
                    return self.receive_indirectly(pattern, buf, arrival);
                }
                let room = buf.len();
                self.port.read(&arrival, 0, buf.part(0, len));
                self.port.release(arrival);
                Bypass::Done(outcome(from, &envelope, room))
            }
            Polled::Fault(fault) => {
                self.fault(fault);
                Bypass::Post
            }
        }
    }

    /// A packet that the bypass can't take. A message of several packets gets a request to go on with.
    #[cold]
    fn receive_indirectly(
        &mut self,
        pattern: &Pattern,
        buf: &mut RecvBuf,
        arrival: Arrival<P::Token>,
    ) -> Bypass {
        let Arrival { peer, envelope, .. } = arrival;
        let mut posted = None;
        if envelope.kind == Kind::First && pattern.matches(peer, &envelope) {
            // Without a free slot it is stored as unexpected, and posting will tell.
            let room = core::mem::replace(buf, RecvBuf::empty());
            let number = self.posted.take_number();
            match self.requests.insert(Request(State::Posted { pattern: *pattern, buf: room, number })) {
                Ok(index) => {
                    self.posted.push(&mut self.requests, index, pattern);
                    posted = Some(self.id(index));
                }
                Err(Request(State::Posted { buf: room, .. })) => *buf = room,
                Err(_) => {}
            }
        }
        if let Delivery::Fault(fault) = self.deliver(arrival) {
            self.fault(PeerFault { peer, fault });
            return posted.map_or(Bypass::Post, Bypass::Posted);
        }
        posted.map_or(Bypass::Busy, Bypass::Posted)
    }

    /// Whether a blocking receive can do without being posted: nothing else may take its message, and its message has
    /// not come yet.
    #[inline(always)]
    pub fn can_bypass(&self, pattern: &Pattern) -> bool {
        self.posted.is_empty()
            && self.unexpected.is_empty()
            && self.first_pending.is_none()
            && self.held == 0
            && self.check_alive(pattern.source).is_ok()
    }

    fn check_alive(&self, source: Source) -> Result<(), StartError> {
        match (source, self.any_source_failure) {
            (Source::Rank(rank), _) => self.check_peer(rank),
            (Source::Any, Some((peer, failure))) => Err(StartError::PeerFailed { peer, failure }),
            (Source::Any, None) => Ok(()),
        }
    }

    /// A receive that finds its message in the store.
    fn receive_stored(&mut self, message: u32, buf: &mut RecvBuf) -> Result<RequestId, StartError> {
        let stored = self.unexpected.get(message);
        let (from, envelope, received) = (stored.source, stored.envelope, stored.received);
        let whole = stored.is_whole();
        let room = buf.len();
        // The slot first: without one, nothing may be lost.
        let index = self.start(State::Done(outcome(from, &envelope, room)))?;
        self.unexpected.read(message, buf.part(0, room));
        self.unexpected.remove(message);
        if !whole {
            let buf = core::mem::replace(buf, RecvBuf::empty());
            self.requests.get_mut(index).0 = State::Receiving { from, envelope, buf, received };
            self.peer(from).partial = Partial::Request(index);
        }
        // Room for others.
        self.unhold(Source::Any);
        Ok(self.id(index))
    }

    /// Takes packets again from the held peers among these.
    pub(super) fn unhold(&mut self, source: Source) {
        if self.held == 0 {
            return;
        }
        for rank in 0..self.size() {
            if source.accepts(rank) && core::mem::take(&mut self.peer(rank).held) {
                self.held -= 1;
                self.port.unhold(rank);
            }
        }
    }

    /// The first posted receive that matches, taken out of the queue.
    #[inline(always)]
    fn take_posted(&mut self, from: PeerId, envelope: &Envelope) -> Option<u32> {
        self.posted.take(&mut self.requests, from, envelope)
    }

    /// Takes the buffer out of a posted receive that will be complete or receiving next.
    #[inline(always)]
    fn take_buffer(&mut self, index: u32) -> RecvBuf {
        match &mut self.requests.get_mut(index).0 {
            State::Posted { buf, .. } | State::Receiving { buf, .. } => {
                core::mem::replace(buf, RecvBuf::empty())
            }
            _ => RecvBuf::empty(),
        }
    }

    /// Brings a packet where it belongs.
    #[inline(always)]
    pub(super) fn deliver(&mut self, arrival: Arrival<P::Token>) -> Delivery {
        let Arrival { peer: from, envelope, len, .. } = arrival;
        let under_way = self.peer(from).partial;
        match (envelope.kind, under_way) {
            (Kind::Eager, Partial::None) => match self.take_posted(from, &envelope) {
                Some(index) => {
                    let mut buf = self.take_buffer(index);
                    let room = buf.len();
                    self.port.read(&arrival, 0, buf.part(0, len));
                    self.port.release(arrival);
                    self.complete(index, outcome(from, &envelope, room));
                    Delivery::Taken
                }
                None => self.store(arrival),
            },
            (Kind::First, Partial::None) => self.deliver_first(arrival),
            (Kind::More, Partial::Request(index)) => self.deliver_more(index, arrival),
            (Kind::More, Partial::Stored(message)) => self.store_more(message, arrival),
            _ => Delivery::Fault(PortFault::Continuation),
        }
    }

    /// Nobody has asked for it yet: copied out, so that its cell is free at once.
    #[inline(never)]
    fn store(&mut self, arrival: Arrival<P::Token>) -> Delivery {
        let from = arrival.peer;
        let Some(message) = self.unexpected.begin(from, arrival.envelope) else {
            return self.hold(from);
        };
        let port = &self.port;
        self.unexpected.append(message, arrival.len, |at, to| port.read(&arrival, at, to));
        if arrival.envelope.kind == Kind::First {
            self.peer(from).partial = Partial::Stored(message);
        }
        self.port.release(arrival);
        Delivery::Taken
    }

    fn hold(&mut self, from: PeerId) -> Delivery {
        self.port.hold(from);
        self.held += usize::from(!core::mem::replace(&mut self.peer(from).held, true));
        Delivery::Held
    }

    fn deliver_first(&mut self, arrival: Arrival<P::Token>) -> Delivery {
        let Arrival { peer: from, envelope, len, .. } = arrival;
        let Some(index) = self.take_posted(from, &envelope) else { return self.store(arrival) };
        let mut buf = self.take_buffer(index);
        self.port.read(&arrival, 0, buf.part(0, len));
        self.port.release(arrival);
        self.requests.get_mut(index).0 = State::Receiving { from, envelope, buf, received: len as u64 };
        self.peer(from).partial = Partial::Request(index);
        Delivery::Taken
    }

    fn deliver_more(&mut self, index: u32, arrival: Arrival<P::Token>) -> Delivery {
        let State::Receiving { from, envelope, buf, received } = &mut self.requests.get_mut(index).0 else {
            return Delivery::Fault(PortFault::Continuation);
        };
        let (from, envelope) = (*from, *envelope);
        let Some(now) = continued(*received, &envelope, &arrival) else {
            return Delivery::Fault(PortFault::Continuation);
        };
        let room = buf.len();
        self.port.read(&arrival, 0, buf.part(*received as usize, arrival.len));
        *received = now;
        self.port.release(arrival);
        if now == envelope.total {
            self.peer(from).partial = Partial::None;
            self.complete(index, outcome(from, &envelope, room));
        }
        Delivery::Taken
    }

    fn store_more(&mut self, message: u32, arrival: Arrival<P::Token>) -> Delivery {
        let stored = self.unexpected.get(message);
        let Some(now) = continued(stored.received, &stored.envelope, &arrival) else {
            return Delivery::Fault(PortFault::Continuation);
        };
        let total = stored.envelope.total;
        let port = &self.port;
        self.unexpected.append(message, arrival.len, |at, to| port.read(&arrival, at, to));
        if now == total {
            self.peer(arrival.peer).partial = Partial::None;
        }
        self.port.release(arrival);
        Delivery::Taken
    }

    /// A message to ourselves: matched as any other, complete at once.
    pub(super) fn send_to_self(
        &mut self,
        envelope: &Envelope,
        from: SendBuf,
    ) -> Result<RequestId, StartError> {
        let bytes = from.len();
        if let Some(index) = self.take_posted(self.rank, envelope) {
            let mut buf = self.take_buffer(index);
            let room = buf.len().min(bytes);
            buf.part(0, room).copy_from_slice(from.part(0, room));
            self.complete(index, outcome(self.rank, envelope, buf.len()));
            return Ok(RequestId::SENT);
        }
        let stored = self.unexpected.begin(self.rank, *envelope);
        let message = stored.ok_or(StartError::Unexpected { bytes })?;
        self.unexpected.append(message, bytes, |at, to| to.copy_from_slice(from.part(at, to.len())));
        Ok(RequestId::SENT)
    }

    /// Ends the receives that only a peer that is gone could have satisfied, and those from any source when
    /// they are concerned.
    pub(super) fn fail_receives(&mut self, peer: PeerId, failure: Failure, concerns_any: bool) {
        let fate = Err(Fate::PeerFailed { peer, failure });
        match core::mem::take(&mut self.peer(peer).partial) {
            Partial::None => {}
            Partial::Request(index) => self.complete(index, fate),
            // Half a message is nobody's.
            Partial::Stored(message) => self.unexpected.remove(message),
        }
        let listens = |pattern: &Pattern| match pattern.source {
            Source::Rank(rank) => rank == peer,
            Source::Any => concerns_any,
        };
        self.posted.extract(&mut self.requests, listens, |requests, index| {
            requests.get_mut(index).0 = State::Done(fate);
        });
    }
}

/// Bytes received with this packet, if it continues the message.
fn continued<T>(received: u64, envelope: &Envelope, arrival: &Arrival<T>) -> Option<u64> {
    let now = received.checked_add(arrival.len as u64)?;
    (now <= envelope.total && arrival.envelope.total == envelope.total).then_some(now)
}
