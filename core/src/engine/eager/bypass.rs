//! Receives that take their message from the port: the bypass of the posted receives (paper 4, section 3.3).
//!
//! A blocking receive may take its message out of the port itself if no posted receive can match that message, or
//! the message would miss the receive that was posted first. No earlier message for it may be stored either. Usually
//! nothing is posted, stored or pending, which the critical path checks by three words. Otherwise the pattern is
//! compared with the others, and a receive that would need more than [`MOST_COMPARED`] comparisons is posted.
//!
//! A test of one posted receive does the same, if this receive is the first that can match ([`Engine::finish_now`]).
#![forbid(unsafe_code)]

use core::borrow::{Borrow, BorrowMut};

use crate::engine::peer::{Peer, PeerQueue};
use crate::engine::request::{Outcome, State, outcome};
use crate::engine::unload::{TAKEN_BACK, unload};
use crate::engine::{Engine, Progress, RequestId, Status, Storage};
use crate::matching::{MOST_COMPARED, Pattern, Source};
use crate::payload::{BorrowedRecv, RecvBuf};
use crate::port::{Arrival, PeerFault, PeerId, Polled, Port, SHORT_BYTES};
use crate::store::cost;
use crate::trace::Recorder as _;
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

impl<P: Port, S: Storage> Engine<P, S> {
    /// Returns whether a blocking receive need not be posted: no posted receive can match its message, and no
    /// message for it is stored. The answer is `false` also if more than [`MOST_COMPARED`] comparisons were needed.
    #[inline(always)]
    pub fn can_bypass(&self, pattern: &Pattern) -> bool {
        (self.is_idle() || self.is_apart(pattern)) && self.check_alive(pattern.source).is_ok()
    }

    /// As [`Engine::can_bypass`], for a single poll. If work is pending, the answer is `false`: the caller then takes
    /// the slow path, which continues the work. Does not check for a failed source: a failed source has no packets.
    #[inline(always)]
    pub(in crate::engine) fn can_poll(&self, pattern: &Pattern) -> bool {
        self.is_idle() || !self.has_work() && self.is_apart(pattern)
    }

    /// As [`Engine::receive_short`], although something may be posted or stored. A function of its own, because the
    /// comparison would cost the critical path ten instructions even if nothing is posted.
    #[cold]
    #[inline(never)]
    pub fn receive_short_beside(&mut self, pattern: &Pattern, into: &mut [u8]) -> Option<Status> {
        if !self.can_poll(pattern) {
            return None;
        }
        let from = match pattern.source {
            Source::Rank(rank) => Some(rank as usize),
            Source::Any => None,
        };
        self.take_short(from, pattern.context, |tag| pattern.accepts(tag), into)
    }

    /// Returns whether nothing is posted, stored or pending.
    #[inline(always)]
    pub fn is_idle(&self) -> bool {
        self.posted.is_empty() && self.store.is_empty() && !self.has_work()
    }

    /// Returns whether no posted receive can match a message for this pattern, and no such message is stored or
    /// pending from this process to itself.
    #[cold]
    #[inline(never)]
    fn is_apart(&self, pattern: &Pattern) -> bool {
        self.posted.is_apart(&self.requests, pattern)
            && self.store.has_none(pattern, MOST_COMPARED)
            && !(pattern.source.accepts(self.rank) && self.sends_to_self())
    }

    /// Returns whether a message to this process itself is pending.
    fn sends_to_self(&self) -> bool {
        let own = self.peers.borrow().get(self.rank as usize);
        own.is_some_and(|own: &Peer| !own.queue(PeerQueue::Pending).is_empty())
    }

    /// Continues pending work while a blocking receive is not posted. The work may store a message for the receive.
    #[cold]
    #[inline(never)]
    pub(in crate::engine) fn work_beside(&mut self) -> Bypass {
        if self.work() == Progress::default() { Bypass::Idle } else { Bypass::Busy }
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
    pub(in crate::engine) fn take_short(
        &mut self,
        from: Option<usize>,
        context: u16,
        wanted: impl FnOnce(u64) -> bool,
        into: &mut [u8],
    ) -> Option<Status> {
        if from.is_none() && self.failures.any_source.is_some() {
            return None;
        }
        let (peer, tag, len, unsettled) = self.port.take_short(from, context, wanted, into)?;
        self.trace.note("receive_short", len as u64);
        self.book_short(peer, len, unsettled, 0);
        Some(Status { peer, tag, len, immediate: None })
    }

    /// Completes a request that has succeeded, or a posted receive whose message has arrived and which is the first
    /// to match it. The poll serves the request at hand (paper 4, section 3.3). The request is then freed. `None` if
    /// nothing was completed: the caller takes the slow path.
    #[inline(always)]
    pub fn finish_now(&mut self, id: RequestId) -> Option<Status> {
        let request = self.requests.live_mut(id.index, id.generation)?;
        let State::Posted { pattern, buf, .. } = &mut request.0 else {
            let State::Done(Ok(status)) = request.0 else { return self.finish_acknowledged(id) };
            self.requests.remove(id.index);
            return Some(status);
        };
        let (Some(hash), Source::Rank(rank)) = (pattern.hash(), pattern.source) else { return None };
        let first = self.posted.first(pattern.context, hash, id.index)?;
        let wanted = pattern.tag;
        if let Some(into) = buf.whole(0, usize::MAX)
            && let Some((peer, tag, len, unsettled)) =
                self.port.take_short(Some(rank as usize), pattern.context, |tag| tag == wanted, into)
        {
            first.take(&mut self.requests);
            self.requests.remove(id.index);
            self.trace.note("receive_posted", len as u64);
            self.book_short(peer, len, unsettled, 1);
            return Some(Status { peer, tag, len, immediate: None });
        }
        // Most polls find nothing at all.
        if !self.port.has_next() {
            return None;
        }
        let len = self.finish_packet(id)?;
        Some(Status { peer: rank, tag: wanted, len, immediate: None })
    }

    /// As [`Engine::finish_now`], for a posted receive whose message is not short. Returns the size of the
    /// message: the caller knows its source and tag, and a number is returned in a register.
    #[inline(never)]
    fn finish_packet(&mut self, id: RequestId) -> Option<usize> {
        let State::Posted { pattern, buf, .. } = &mut self.requests.live_mut(id.index, id.generation)?.0
        else {
            return None;
        };
        let first = self.posted.first(pattern.context, pattern.hash()?, id.index)?;
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

    /// Returns whether calls of [`Engine::receive_next`] between two whole polls are worth their time.
    #[inline(always)]
    pub fn expects_next(&self) -> bool {
        self.port.expects_next()
    }

    /// Pauses between two calls of [`Engine::receive_next`] that found nothing.
    #[inline(always)]
    pub fn pause(&mut self) {
        self.port.pause();
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
        if self.port.has_next()
            && let Some(done) = self.receive_prompt(pattern, buf)
        {
            return done;
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
                let whole = unload(&self.port, &arrival, 0, buf, (0, len));
                self.port.release(arrival);
                if !whole {
                    self.fault(PeerFault { peer, fault: TAKEN_BACK });
                    return Bypass::Post;
                }
                self.trace.note("receive_arrival", len as u64);
                self.book_packet(peer, len);
                return Bypass::Done(outcome(peer, envelope.tag, envelope.total, room));
            }
            Kind::EagerImmediate | Kind::EagerAcknowledged | Kind::EagerBoth => {
                if let Some(outcome) = self.receive_prefixed(pattern, buf, &arrival) {
                    return Bypass::Done(outcome);
                }
                if pattern.matches(peer, &envelope) {
                    posted = self.post(pattern, buf);
                }
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
