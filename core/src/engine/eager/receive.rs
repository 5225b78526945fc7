//! Receiving: posting receives, and delivering messages to receives or to the store of unexpected messages.
#![forbid(unsafe_code)]

use crate::engine::request::{CompletionError, State, outcome, with_immediate};
use crate::engine::state::Incoming;
use crate::engine::stored::stored_rts;
use crate::engine::unload::{TAKEN_BACK, read, unload};
use crate::engine::{Engine, Failure, RequestId, StartError, Storage};
use crate::matching::{Pattern, Source};
use crate::payload::{RecvBuf, Scatter};
use crate::port::{Arrival, Part, PeerId, Port, PortFault};
use crate::store::cost;
use crate::trace::Recorder as _;
use crate::wire::prefix::EagerPrefix;
use crate::wire::rendezvous::{MOST_RTS_BYTES, Rts};
use crate::wire::{Envelope, Kind};

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
        self.reach_source(pattern.source)?;
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
    pub(super) fn post(&mut self, pattern: &Pattern, buf: &mut RecvBuf) -> Option<RequestId> {
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

    #[inline(always)]
    pub(in crate::engine) fn check_source(&self, source: Source) -> Result<(), StartError> {
        match source {
            Source::Rank(rank) if rank >= self.size() => Err(self.no_peer(rank)),
            _ => Ok(()),
        }
    }

    #[inline(always)]
    pub(in crate::engine) fn check_alive(&self, source: Source) -> Result<(), StartError> {
        match (source, self.failures.any_source) {
            (Source::Rank(rank), _) => self.check_peer(rank),
            (Source::Any, Some((peer, failure))) => Err(StartError::PeerFailed { peer, failure }),
            (Source::Any, None) => Ok(()),
        }
    }

    /// Moves a stored message to a receive, whose request has slot `index`.
    pub(in crate::engine) fn receive_stored(&mut self, index: u32, id: u32, mut buf: RecvBuf) {
        let stored = self.store.get(id);
        let room = buf.len();
        if stored.kind == Kind::Rts {
            if let Some(rts) = stored_rts(&self.store, id, &stored) {
                let first = rts.arrived(stored.len) as usize;
                buf.each(0, first, |done, to| _ = self.store.read(id, rts.bytes() + done, to));
                self.discard(id);
                if rts.is_unasked {
                    return self.receive_unasked(index, (stored.source, stored.tag), rts, first as u64, buf);
                }
                self.receive_offered(index, (stored.source, stored.tag), rts, first, buf);
            }
            return;
        }
        let skip = EagerPrefix::bytes_of(stored.kind);
        let len = stored.len - skip;
        match buf.whole(0, len) {
            Some(to) => _ = self.store.read(id, skip, to),
            None => buf.each(0, len, |done, to| _ = self.store.read(id, skip + done, to)),
        }
        let prefix = if skip == 0 { EagerPrefix::default() } else { self.stored_prefix(id, stored.kind) };
        self.discard(id);
        let outcome = outcome(stored.source, stored.tag, len as u64, room);
        self.complete_prefixed(index, stored.source, prefix, outcome);
    }

    /// Removes a stored message, which frees memory for others.
    pub(in crate::engine) fn discard(&mut self, id: u32) {
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
                true => with_immediate(outcome(from, tag, rts.total, buf.len()), rts.immediate),
                false => Err(CompletionError::PeerFailed { peer: from, failure }),
            };
            return self.complete(index, completion_error);
        }
        let incoming = Incoming::new((from, tag), rts, left);
        self.requests.get_mut(index).0 = State::Receiving { incoming, buf: Scatter::new(buf) };
        self.start_transfer(index);
    }

    /// Returns the request that receives a message of `total` bytes, and its buffer: the first posted receive that
    /// matches, which leaves the queue, or a place in a multi-receive buffer. The state of the request changes next.
    /// `None` if the message has to be stored.
    #[inline(always)]
    pub(in crate::engine) fn take_posted(
        &mut self,
        from: PeerId,
        envelope: &Envelope,
        total: u64,
    ) -> Option<(u32, RecvBuf)> {
        let index = self.posted.take(&mut self.requests, from, envelope)?;
        let taken = match &mut self.requests.get_mut(index).0 {
            State::Posted { buf, .. } => (index, core::mem::replace(buf, RecvBuf::empty())),
            _ => self.take_multi(index, (from, envelope), total)?,
        };
        self.peer(from).tally.posted += 1;
        Some(taken)
    }

    /// Delivers a packet and releases it.
    #[inline(always)]
    pub(in crate::engine) fn deliver(&mut self, arrival: Arrival<P::Token>) -> Result<(), PortFault> {
        let Arrival { peer: from, envelope, len, .. } = arrival;
        if envelope.kind != Kind::Eager {
            return self.deliver_other(arrival);
        }
        let Some((index, mut buf)) = self.take_posted(from, &envelope, len as u64) else {
            return self.keep(arrival, &[]);
        };
        let room = buf.len();
        let whole = unload(&self.port, &arrival, 0, &mut buf, (0, len));
        self.port.release(arrival);
        if !whole {
            return self.end_taken_back(index, from);
        }
        self.complete(index, outcome(from, envelope.tag, envelope.total, room));
        self.count_eager(from, len);
        self.charge(from, cost(len), false)
    }

    /// Ends a receive whose message its sender has taken back.
    #[cold]
    #[inline(never)]
    pub(super) fn end_taken_back(&mut self, index: u32, peer: PeerId) -> Result<(), PortFault> {
        let failure = Failure::of(TAKEN_BACK);
        self.complete(index, Err(CompletionError::PeerFailed { peer, failure }));
        Err(TAKEN_BACK)
    }

    pub(in crate::engine) fn deliver_rts(&mut self, arrival: Arrival<P::Token>) -> Result<(), PortFault> {
        let Arrival { peer: from, envelope, len, .. } = arrival;
        let mut head = [0; MOST_RTS_BYTES];
        let head = &mut head[..len.min(MOST_RTS_BYTES)];
        let invalid = PortFault::Protocol { kind: envelope.kind };
        let read = read(&self.port, &arrival, 0, head);
        let rts = match read.and_then(|()| Rts::decode(head, len).ok_or(invalid)) {
            Ok(rts) => rts,
            Err(fault) => {
                self.port.release(arrival);
                return Err(fault);
            }
        };
        if rts.is_unasked {
            return self.deliver_unasked(arrival, rts);
        }
        let Some((index, mut buf)) = self.take_posted(from, &envelope, rts.total) else {
            return self.keep(arrival, head);
        };
        let first = len - rts.bytes();
        let whole = unload(&self.port, &arrival, rts.bytes(), &mut buf, (0, first));
        self.port.release(arrival);
        if !whole {
            return self.end_taken_back(index, from);
        }
        let charged = self.charge(from, cost(len), false);
        if rts.lacks_credit {
            self.widen_credit(from);
        }
        self.receive_offered(index, (from, envelope.tag), rts, first, buf);
        charged
    }

    /// Stores a packet that matches no receive. It is copied out, so that its cell is free at once (paper 4, section
    /// 3.1). The stored message begins with `head`, which was validated: the cell may have changed since.
    #[inline(never)]
    pub(super) fn keep(&mut self, arrival: Arrival<P::Token>, head: &[u8]) -> Result<(), PortFault> {
        let Arrival { peer: from, envelope, len, .. } = arrival;
        if envelope.kind == Kind::Eager {
            self.count_eager(from, len);
        }
        // If the peer obeys its credit, there is memory.
        if let Err(fault) = self.charge(from, cost(len), true) {
            self.unplaced = None;
            self.port.release(arrival);
            return Err(fault);
        }
        let (port, mut whole) = (&self.port, true);
        let stored = self.store.insert(from, &envelope, len, |at, to| {
            whole &= port.read(&arrival, at, to);
            for (to, checked) in to.iter_mut().zip(head.iter().skip(at)) {
                *to = *checked;
            }
        });
        debug_assert!(stored.is_some(), "credit guarantees memory");
        if !whole {
            stored.into_iter().for_each(|id| self.discard(id));
            self.port.release(arrival);
            return Err(TAKEN_BACK);
        }
        self.assign_stored(stored);
        self.count_stored(from, len);
        self.port.release(arrival);
        Ok(())
    }
}
