//! The critical path of messages with a prefix, and of their acknowledgements: a packet that can leave or be taken at
//! once, as one call of the port. All other cases are left to `eager/prefixed.rs`.
//!
//! A receive returns after it has sent the acknowledgement, or becomes a request that sends it when there is space.
#![forbid(unsafe_code)]

use core::borrow::{Borrow, BorrowMut};

use super::Bypass;
use crate::engine::peer::PeerQueue;
use crate::engine::request::State;
use crate::engine::{Engine, Request, RequestId, Status, Storage};
use crate::matching::Pattern;
use crate::payload::{BorrowedRecv, RecvBuf, SendBuf};
use crate::port::{PeerFault, PeerId, Port};
use crate::store::cost;
use crate::trace::Recorder as _;
use crate::wire::prefix::{EagerPrefix, PrefixWords};
use crate::wire::rendezvous::FIN_BYTES;
use crate::wire::{Envelope, Kind};

impl<P: Port, S: Storage> Engine<P, S> {
    /// Sends a contiguous message with a prefix, for which there is credit, and counts it. Returns `false` if nothing
    /// was sent.
    #[inline(always)]
    pub(super) fn push_prefixed(
        &mut self,
        to: PeerId,
        envelope: &Envelope,
        words: PrefixWords,
        body: &[u8],
    ) -> bool {
        if !self.port.send_prefixed(to, envelope, words, body) {
            return false;
        }
        let len = envelope.total as usize;
        let peer = &mut self.peers.borrow_mut()[to as usize];
        peer.allowance.spend(cost(len));
        peer.tally.sent(envelope.kind, len);
        peer.tally.is_held = false;
        true
    }

    /// Sends a contiguous message with this prefix if it can leave at once. Returns `false` if nothing was sent.
    #[inline(always)]
    fn send_prompt(
        &mut self,
        to: PeerId,
        (context, tag): (u16, u64),
        prefix: EagerPrefix,
        body: &[u8],
    ) -> bool {
        let most = self.most_eager(to);
        let (Some(words), Some(peer)) = (prefix.words(), self.peers.borrow().get(to as usize)) else {
            return false;
        };
        let len = words.bytes() + body.len();
        if !peer.is_free() || len > most || !peer.allowance.may(cost(len)) {
            return false;
        }
        let envelope = Envelope { kind: prefix.kind(), context, tag, total: len as u64 };
        let sent = self.push_prefixed(to, &envelope, words, body);
        if sent {
            self.trace.note("send_prompt", len as u64);
        }
        sent
    }

    /// Sends a message with immediate data if it can leave at once; see [`Engine::send_now`]. Returns `false` if
    /// nothing was sent.
    #[inline(always)]
    pub fn send_immediate_now(&mut self, to: PeerId, context: u16, words: (u64, u64), body: &[u8]) -> bool {
        self.send_short_immediate(to as usize, context, words, body)
            || self.send_immediate_any(to, context, words, body)
    }

    /// As [`Engine::send_immediate_now`], for a message that need not be short.
    #[inline(never)]
    fn send_immediate_any(
        &mut self,
        to: PeerId,
        context: u16,
        (tag, immediate): (u64, u64),
        body: &[u8],
    ) -> bool {
        let prefix = EagerPrefix { sender: None, immediate: Some(immediate) };
        self.send_prompt(to, (context, tag), prefix, body)
    }

    /// Starts a synchronous send if the message can leave at once. `None` if nothing was sent: the caller uses
    /// [`Engine::isend_with`].
    #[inline(never)]
    pub fn send_synchronous_now(
        &mut self,
        to: PeerId,
        context: u16,
        tag: u64,
        (buf, immediate): (&SendBuf, Option<u64>),
    ) -> Option<RequestId> {
        let body = buf.whole(0, buf.len())?;
        if to >= self.size() {
            return None;
        }
        // The request exists before the message leaves, because the message contains its number.
        let unacknowledged = State::Unacknowledged { to, tag, len: body.len() };
        let index = self.enqueue_new(to, PeerQueue::Offered, unacknowledged)?;
        let id = self.id(index);
        let prefix = EagerPrefix { sender: Some(id.to_bits()), immediate };
        if self.send_prompt(to, (context, tag), prefix, body) {
            return Some(id);
        }
        self.dequeue(to, PeerQueue::Offered, index);
        self.requests.remove(index);
        None
    }

    /// Returns whether this is a synchronous send whose message has left and is not acknowledged.
    pub fn is_unacknowledged(&self, id: RequestId) -> bool {
        self.requests.is_open(id.index, id.generation)
            && matches!(self.requests.get(id.index).0, State::Unacknowledged { .. })
    }

    /// Completes a synchronous send whose acknowledgement is the next packet, and frees the request. Returns its
    /// status. `None` if nothing was completed.
    #[inline(never)]
    pub(super) fn finish_acknowledged(&mut self, id: RequestId) -> Option<Status> {
        let State::Unacknowledged { to, tag, len } = self.requests.live_mut(id.index, id.generation)?.0
        else {
            return None;
        };
        let wanted = |from: PeerId, envelope: &Envelope, words: PrefixWords| {
            from == to && envelope.kind == Kind::Fin && words.first == id.to_bits()
        };
        // The port takes no packet whose bytes do not fit: a FIN has no other bytes than its word.
        self.port.take_prefixed(wanted, &mut BorrowedRecv::new(&mut RecvBuf::empty()))?;
        self.trace.note("finish_acknowledged", len as u64);
        self.peer(to).tally.received[Kind::Fin.index()].add(FIN_BYTES);
        self.dequeue(to, PeerQueue::Offered, id.index);
        self.requests.remove(id.index);
        Some(Status { peer: to, tag, len, immediate: None })
    }

    /// Completes a blocking receive whose message has a prefix, if the message is the next packet and fits. If the
    /// sender waits for an acknowledgement, it is sent; if it cannot leave now, the result is a request that completes
    /// when it has left.
    #[inline(never)]
    pub(super) fn receive_prompt(&mut self, pattern: &Pattern, buf: &mut RecvBuf) -> Option<Bypass> {
        // An acknowledgement that cannot leave needs a request.
        let has_slot = self.requests.used() < self.requests.capacity();
        let wanted = |from: PeerId, envelope: &Envelope, _: PrefixWords| {
            envelope.kind.is_eager()
                && (has_slot || !envelope.kind.is_answered())
                && pattern.matches(from, envelope)
        };
        let (from, envelope, words) = self.port.take_prefixed(wanted, &mut BorrowedRecv::new(buf))?;
        let len = envelope.total as usize;
        self.trace.note("receive_prompt", envelope.total);
        self.peer(from).tally.received[envelope.kind.index()].add(len);
        if let Err(fault) = self.charge(from, cost(len), false) {
            self.fault(PeerFault { peer: from, fault });
        }
        let EagerPrefix { sender, immediate } = EagerPrefix::from_words(envelope.kind, words);
        let status = Status { peer: from, tag: envelope.tag, len: len - words.bytes(), immediate };
        let Some(sender) = sender else { return Some(Bypass::Done(Ok(status))) };
        let fin = Envelope { kind: Kind::Fin, context: 0, tag: 0, total: FIN_BYTES as u64 };
        let words = PrefixWords { first: sender, second: None };
        // An acknowledgement does not overtake those that wait.
        if self.first(from, PeerQueue::Answers).is_none() && self.port.send_prefixed(from, &fin, words, &[]) {
            self.peer(from).tally.sent(Kind::Fin, FIN_BYTES);
            return Some(Bypass::Done(Ok(status)));
        }
        Some(self.acknowledge_later(from, sender, status))
    }

    /// Completes the posted receive whose message is the next packet, if the receive is one of the completion queue
    /// ([`Engine::collect`]), this queue is empty, and the message fits and lies in a fastbox, or in a cell that a
    /// fastbox announces. Returns the number of the receive and its status: it makes no entry. `None` if nothing was
    /// done: the caller makes progress and takes completions.
    #[inline(always)]
    pub fn complete_next(&mut self) -> Option<(u64, Status)> {
        if self.posted.is_empty() || self.has_completions() || self.has_work() {
            return None;
        }
        let (posted, requests) = (&self.posted, &mut self.requests);
        let mut first = None;
        let (from, envelope, immediate) = self.port.take_into(|from, envelope| {
            let found = posted.find(requests, (from, envelope), |_| true)?;
            let is_queued = requests.is_hidden(found.index);
            let Request(State::Posted { buf, .. }, mark) = requests.get_mut(found.index) else {
                return None;
            };
            first = Some((found, mark.context));
            buf.whole(0, usize::MAX).filter(|_| is_queued)
        })?;
        let (found, number) = first?;
        self.posted.remove_found(&mut self.requests, found);
        self.requests.remove(found.index);
        let (kind, packet_len) = (envelope.kind, envelope.total as usize);
        self.trace.note("complete_next", envelope.total);
        let tally = &mut self.peer(from).tally;
        tally.posted += 1;
        tally.received[kind.index()].add(packet_len);
        if let Err(fault) = self.charge(from, cost(packet_len), false) {
            self.fault(PeerFault { peer: from, fault });
        }
        let len = packet_len - EagerPrefix::bytes_of(kind);
        Some((number, Status { peer: from, tag: envelope.tag, len, immediate }))
    }

    /// Returns whether progress would most probably find nothing: nothing is pending, no completion waits, and no
    /// packet is where most arrive ([`ShortPath::is_quiet`](crate::port::ShortPath::is_quiet)).
    #[inline(always)]
    pub fn is_quiet(&mut self) -> bool {
        !self.has_completions() && !self.has_work() && !self.is_starved() && self.port.is_quiet()
    }

    /// Queues the acknowledgement of a message that was received.
    #[cold]
    #[inline(never)]
    fn acknowledge_later(&mut self, to: PeerId, sender: u64, status: Status) -> Bypass {
        // The caller has checked that there is a slot.
        let outcome = Ok(status);
        if self.failure(to).is_none()
            && let Ok(index) = self.start(State::Finishing { sender, outcome })
        {
            let id = self.id(index);
            self.start_answer(to, index);
            return Bypass::Posted(id);
        }
        Bypass::Done(outcome)
    }
}
