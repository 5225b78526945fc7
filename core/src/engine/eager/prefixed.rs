//! Eager messages with a prefix ([`crate::wire::prefix`]): immediate data, and acknowledged messages.
//!
//! A synchronous send that is small enough leaves at once, as any eager message does. It completes when the receiver's
//! FIN has come back, which the receiver sends after it has copied the message into the buffer of a receive. A FIN that
//! finds no space waits as the receive's request in the queue `Answers`: the receive completes when the FIN has left.
//! Thus an acknowledgement needs no memory of its own.
//!
//! If the sender fails, a stored message of it can still be received, and no acknowledgement is sent.
#![forbid(unsafe_code)]

use crate::engine::peer::PeerQueue;
use crate::engine::request::{Outcome, SendMessage, State, outcome, with_immediate};
use crate::engine::unload::{read, unload};
use crate::engine::{Engine, RequestId, SendOptions, StartError, Status, Storage};
#[cfg(nemesia_injected_fault)]
use crate::injected_fault::{InjectedFault, injected};
use crate::matching::Pattern;
use crate::payload::{RecvBuf, SendBuf};
use crate::port::{Arrival, PacketPieces, PeerFault, PeerId, Port, PortFault};
use crate::store::cost;
use crate::trace::Recorder as _;
use crate::wire::prefix::{EagerPrefix, MOST_PREFIX_BYTES};
use crate::wire::rendezvous::FIN_BYTES;
use crate::wire::{Envelope, Kind};

/// Most bytes of a packet that is copied as a whole on both sides, prefix and message together.
const SMALL_BYTES: usize = 64;
/// Most bytes of an eager packet with a prefix whose message is a list. The list is gathered behind the prefix first; a
/// longer one uses rendezvous.
const MOST_LISTED_BYTES: usize = 1024;

impl SendMessage {
    /// Returns whether the message has no prefix.
    pub(in crate::engine) const fn is_plain(&self) -> bool {
        !self.synchronous && self.immediate.is_none()
    }

    /// Returns the prefix of the message if it is sent eagerly. `id` is its request.
    pub(in crate::engine) fn prefix(&self, id: RequestId) -> EagerPrefix {
        EagerPrefix { sender: self.synchronous.then(|| id.to_bits()), immediate: self.immediate }
    }

    /// Returns the payload of the message's eager packet in bytes, the prefix included; `None` if the message is
    /// larger than `eager_bytes`, or has to use rendezvous for another reason.
    pub(in crate::engine) fn eager_len(&self, eager_bytes: usize) -> Option<usize> {
        let len = self.buf.len() + self.prefix(RequestId::SENT).bytes();
        let is_list = || self.buf.whole(0, self.buf.len()).is_none();
        let fits = len <= eager_bytes && (self.is_plain() || len <= MOST_LISTED_BYTES || !is_list());
        fits.then_some(len)
    }
}

impl<P: Port, S: Storage> Engine<P, S> {
    /// Starts a send with options; otherwise as [`Engine::isend`].
    ///
    /// # Errors
    /// See [`StartError`]; nothing was sent.
    pub fn isend_with(
        &mut self,
        to: PeerId,
        context: u16,
        tag: u64,
        buf: SendBuf,
        options: SendOptions,
    ) -> Result<RequestId, StartError> {
        let SendOptions { immediate, synchronous } = options;
        #[cfg(nemesia_injected_fault)]
        let synchronous = synchronous && !injected(InjectedFault::ForgetSynchronous);
        let message = SendMessage { context, tag, buf, synchronous, immediate };
        if message.is_plain() {
            return self.isend(to, context, tag, message.buf);
        }
        self.reach(to)?;
        let now = match synchronous {
            true => self.send_synchronous_now(to, context, tag, (&message.buf, immediate)),
            false => {
                let body = message.buf.whole(0, message.buf.len());
                let sent = body
                    .zip(immediate)
                    .is_some_and(|(body, it)| self.send_immediate_now(to, context, (tag, it), body));
                sent.then_some(RequestId::SENT)
            }
        };
        if let Some(id) = now {
            return Ok(id);
        }
        match self.send_prefixed_now(to, &message)? {
            Some(id) => Ok(id),
            None => self.start_send(to, message),
        }
    }

    /// Sends a message with a prefix if it is small enough, there is space and credit, and no message waits before it.
    /// `None` if nothing was sent.
    fn send_prefixed_now(
        &mut self,
        to: PeerId,
        message: &SendMessage,
    ) -> Result<Option<RequestId>, StartError> {
        let Some(len) = message.eager_len(self.most_eager(to)) else { return Ok(None) };
        if to == self.rank || !self.peer(to).is_free() || !self.has_credit(to, cost(len)) {
            return Ok(None);
        }
        self.trace.note("send_prefixed", len as u64);
        if !message.synchronous {
            let sent = self.send_prefixed(to, message, RequestId::SENT);
            return Ok(self.is_sent(sent).then_some(RequestId::SENT));
        }
        // The request exists before the message leaves, because the message contains its number.
        let unacknowledged = State::Unacknowledged { to, tag: message.tag, len: message.buf.len() };
        let Some(index) = self.enqueue_new(to, PeerQueue::Offered, unacknowledged) else {
            return Err(StartError::Requests { capacity: self.requests.capacity() });
        };
        let id = self.id(index);
        let sent = self.send_prefixed(to, message, id);
        if matches!(sent, Ok(true)) {
            return Ok(Some(id));
        }
        self.dequeue(to, PeerQueue::Offered, index);
        self.requests.remove(index);
        self.is_sent(sent);
        Ok(None)
    }

    /// Returns whether a packet was sent. If it was not because a peer has failed, the failure is recorded.
    fn is_sent(&mut self, sent: Result<bool, PeerFault>) -> bool {
        sent.unwrap_or_else(|fault| {
            self.fault(fault);
            false
        })
    }

    /// Sends a message eagerly, behind its prefix. Returns `false` if there is no space.
    pub(in crate::engine) fn send_prefixed(
        &mut self,
        to: PeerId,
        message: &SendMessage,
        id: RequestId,
    ) -> Result<bool, PeerFault> {
        let prefix = message.prefix(id);
        let (bytes, body_len) = (prefix.encode(), message.buf.len());
        let (head, _) = bytes.split_at(prefix.bytes());
        let len = head.len() + body_len;
        let envelope = Envelope { total: len as u64, ..message.envelope(prefix.kind()) };
        if let (Some(body), Some(words)) = (message.buf.whole(0, body_len), prefix.words())
            && self.push_prefixed(to, &envelope, words, body)
        {
            return Ok(true);
        }
        let sent = match message.buf.whole(0, body_len) {
            Some(body) if len <= SMALL_BYTES => {
                // In one piece, because the prefix is then copied by two stores.
                let mut packet = [0; SMALL_BYTES];
                packet[..MOST_PREFIX_BYTES].copy_from_slice(&bytes);
                packet[head.len()..len].copy_from_slice(body);
                self.port.send(to, &envelope, PacketPieces::Whole(&packet[..len]))?
            }
            Some(body) => self.port.send(to, &envelope, PacketPieces::Parts(head, body))?,
            None => {
                let mut gathered = [0; MOST_LISTED_BYTES];
                let Some(body) = gathered.get_mut(..body_len) else { return Ok(false) };
                message.buf.read(0, body);
                self.port.send(to, &envelope, PacketPieces::Parts(head, body))?
            }
        };
        if sent {
            let peer = self.peer(to);
            peer.allowance.spend(cost(len));
            peer.tally.sent(prefix.kind(), len);
            peer.tally.is_held = false;
        }
        Ok(sent)
    }

    /// Lets the request of a message that has left wait for the receiver's FIN. The caller may not yet reuse the
    /// buffer, although this process needs it no longer.
    pub(in crate::engine) fn await_acknowledgement(&mut self, to: PeerId, index: u32, message: &SendMessage) {
        let (tag, len) = (message.tag, message.buf.len());
        self.requests.get_mut(index).0 = State::Unacknowledged { to, tag, len };
        self.enqueue(to, PeerQueue::Offered, index);
    }

    /// Returns this process's request that a FIN names, if it is an eager message to this peer that waits for it.
    pub(in crate::engine) fn unacknowledged(&self, peer: PeerId, bits: u64) -> Option<u32> {
        let id = RequestId::from_bits(bits);
        if !self.requests.is_live(id.index, id.generation) {
            return None;
        }
        match self.requests.get(id.index).0 {
            State::Unacknowledged { to, .. } if to == peer => Some(id.index),
            _ => None,
        }
    }

    /// Completes a receive whose message arrived whole with this prefix. If the sender waits for an acknowledgement,
    /// the receive completes when the acknowledgement has left.
    #[inline]
    pub(in crate::engine) fn complete_prefixed(
        &mut self,
        index: u32,
        from: PeerId,
        prefix: EagerPrefix,
        outcome: Outcome,
    ) {
        let outcome = with_immediate(outcome, prefix.immediate);
        match prefix.sender {
            Some(sender) if self.failure(from).is_none() => {
                self.requests.get_mut(index).0 = State::Finishing { sender, outcome };
                self.start_answer(from, index);
            }
            _ => self.complete(index, outcome),
        }
    }

    /// Reads the prefix of a packet that has arrived, and with it the message behind it if the packet is small.
    #[inline(always)]
    fn read_head(
        &self,
        arrival: &Arrival<P::Token>,
        packet: &mut [u8; SMALL_BYTES],
    ) -> Result<EagerPrefix, PortFault> {
        let (kind, len) = (arrival.envelope.kind, arrival.len);
        let head = if len <= SMALL_BYTES { len } else { EagerPrefix::bytes_of(kind) };
        let head = &mut packet[..head];
        read(&self.port, arrival, 0, head)?;
        EagerPrefix::decode(kind, head).ok_or(PortFault::Protocol { kind })
    }

    /// Copies the message behind a prefix of `skip` bytes into a buffer, as far as it fits. `packet` is what
    /// [`Engine::read_head`] has read. Returns `false` if the peer has taken the packet back.
    #[inline(always)]
    fn unload_behind(
        &self,
        arrival: &Arrival<P::Token>,
        packet: &[u8; SMALL_BYTES],
        skip: usize,
        buf: &mut RecvBuf,
    ) -> bool {
        let len = arrival.len;
        let Some(message) = packet.get(skip..len) else {
            return unload(&self.port, arrival, skip, buf, (0, len - skip));
        };
        match buf.whole(0, message.len()) {
            Some(to) => to.copy_from_slice(&message[..to.len()]),
            None => {
                buf.each(0, message.len(), |done, to| to.copy_from_slice(&message[done..done + to.len()]));
            }
        }
        true
    }

    /// Delivers an eager message with a prefix.
    pub(in crate::engine) fn deliver_prefixed(
        &mut self,
        arrival: Arrival<P::Token>,
    ) -> Result<(), PortFault> {
        let Arrival { peer: from, envelope, len, .. } = arrival;
        let mut packet = [0; SMALL_BYTES];
        let prefix = match self.read_head(&arrival, &mut packet) {
            Ok(prefix) => prefix,
            Err(fault) => {
                self.port.release(arrival);
                return Err(fault);
            }
        };
        let skip = prefix.bytes();
        let total = len - skip;
        let Some((index, mut buf)) = self.take_posted(from, &envelope, total as u64) else {
            #[cfg(nemesia_injected_fault)]
            if injected(InjectedFault::AcknowledgeUnmatched)
                && let Some(sender) = prefix.sender
            {
                let _ = self.send_fin(from, sender);
            }
            return self.keep(arrival, &packet[..skip]);
        };
        let room = buf.len();
        let whole = self.unload_behind(&arrival, &packet, skip, &mut buf);
        self.port.release(arrival);
        if !whole {
            return self.end_taken_back(index, from);
        }
        let charged = self.charge(from, cost(len), false);
        self.complete_prefixed(index, from, prefix, outcome(from, envelope.tag, total as u64, room));
        charged
    }

    /// Receives an eager message with a prefix for a caller that has no request ([`Engine::receive_step`]). `None` if
    /// the message needs a request: the acknowledgement cannot leave now, or the packet is invalid.
    pub(super) fn receive_prefixed(
        &mut self,
        pattern: &Pattern,
        buf: &mut RecvBuf,
        arrival: &Arrival<P::Token>,
    ) -> Option<Outcome> {
        let Arrival { peer: from, envelope, len, .. } = *arrival;
        if !pattern.matches(from, &envelope) {
            return None;
        }
        let mut packet = [0; SMALL_BYTES];
        let prefix = self.read_head(arrival, &mut packet).ok()?;
        if !self.unload_behind(arrival, &packet, prefix.bytes(), buf) {
            return None;
        }
        let total = len - prefix.bytes();
        if let Some(sender) = prefix.sender {
            // An acknowledgement does not overtake those that wait, and a failure is left to the caller.
            let is_first = self.first(from, PeerQueue::Answers).is_none();
            if !is_first || !self.send_fin(from, sender).unwrap_or(false) {
                return None;
            }
        }
        self.trace.note("receive_prefixed", total as u64);
        self.port.release(*arrival);
        self.peer(from).tally.received[envelope.kind.index()].add(len);
        if let Err(fault) = self.charge(from, cost(len), false) {
            self.fault(PeerFault { peer: from, fault });
        }
        Some(with_immediate(outcome(from, envelope.tag, total as u64, buf.len()), prefix.immediate))
    }

    /// Sends a FIN for this request of the peer. Returns `false` if there is no space.
    pub(in crate::engine) fn send_fin(&mut self, peer: PeerId, sender: u64) -> Result<bool, PeerFault> {
        let envelope = Envelope { kind: Kind::Fin, context: 0, tag: 0, total: FIN_BYTES as u64 };
        let sent = self.port.send(peer, &envelope, PacketPieces::Whole(&sender.to_le_bytes()))?;
        #[cfg(nemesia_injected_fault)]
        let sent = sent || injected(InjectedFault::ForgetAcknowledgement);
        if sent {
            self.peer(peer).tally.sent(Kind::Fin, FIN_BYTES);
        }
        Ok(sent)
    }

    /// Reads the prefix of a stored message, which was validated on arrival.
    pub(in crate::engine) fn stored_prefix(&self, id: u32, kind: Kind) -> EagerPrefix {
        let mut head = [0; MOST_PREFIX_BYTES];
        let len = self.store.read(id, 0, &mut head);
        let prefix = EagerPrefix::decode(kind, &head[..len]).unwrap_or_default();
        #[cfg(nemesia_injected_fault)]
        if injected(InjectedFault::AcknowledgeUnmatched) {
            return EagerPrefix { sender: None, ..prefix };
        }
        prefix
    }

    /// Completes a send whose receiver has acknowledged it.
    pub(in crate::engine) fn acknowledged(&mut self, to: PeerId, index: u32) {
        self.dequeue(to, PeerQueue::Offered, index);
        if let State::Unacknowledged { tag, len, .. } = self.requests.get(index).0 {
            self.complete(index, Ok(Status { peer: to, tag, len, immediate: None }));
        }
    }
}
