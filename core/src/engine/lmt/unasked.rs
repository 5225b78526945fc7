//! Messages whose bytes follow their RTS unasked: a stream without a question. A message that is too long for one
//! packet leaves so if the receiver has granted credit for all of it ([`PacketPort::unasked_bytes`]). It is matched by
//! its RTS. A posted receive takes the bytes as they come. Otherwise the store holds the whole message from the first
//! packet on, and the parts fill it; the number of bytes that have come stands in place of the sender's request. A
//! receive that matches meanwhile takes what is there, and then the parts. The parts of two messages do not mix, so the
//! receiver has at most one such message of each peer ([`UnaskedPlace`]).
//!
//! The send is complete when the last part has left, whether or not a receive has matched: as an eager message, of
//! which this is the longer form (papers 4 and 5: the cells of a message follow each other without a question).
//!
//! [`PacketPort::unasked_bytes`]: crate::port::PacketPort::unasked_bytes
#![forbid(unsafe_code)]

use super::ask::LEAST_ASKED;
use super::{Stream, Transfer};
use crate::engine::peer::PeerQueue;
use crate::engine::request::{CompletionError, SendMessage, State, outcome, with_immediate};
use crate::engine::state::{FIRST_BYTES, Incoming, Protocol, StreamState, TransferPhase, UnaskedPlace};
use crate::engine::stored::stored_rts;
use crate::engine::unload::TAKEN_BACK;
use crate::engine::{Engine, Storage};
#[cfg(nemesia_injected_fault)]
use crate::injected_fault::{InjectedFault, injected};
use crate::payload::{Gather, RecvBuf, Scatter};
use crate::port::{Arrival, PacketPieces, Part, PeerFault, PeerId, Port, PortFault};
use crate::store::cost;
use crate::wire::rendezvous::{Descriptor, IMMEDIATE_BYTES, RTS_BYTES, Rts, UNASKED};
use crate::wire::{Envelope, Kind};

/// Offset of the sender's request in an RTS.
const SENDER_AT: usize = 8;

const INVALID: PortFault = PortFault::Protocol { kind: Kind::Data };

/// Returns the units of a message whose bytes follow unasked: those that its receiver needs to store it.
const fn units(rts: &Rts) -> u32 {
    cost(rts.bytes().saturating_add(rts.following()))
}

impl<P: Port, S: Storage> Engine<P, S> {
    /// Sender: returns whether a pending message can leave unasked now. One that lies in memory which the receiver may
    /// map is copied once, if it is announced.
    pub(in crate::engine) fn may_leave_unasked(&mut self, to: PeerId, message: &SendMessage) -> bool {
        let len = message.buf.len();
        let may = len <= self.port.unasked_bytes(to)
            && len > 0
            && !message.synchronous
            && self.first(to, PeerQueue::Streaming).is_none();
        #[cfg(nemesia_injected_fault)]
        if may && injected(InjectedFault::SendUncredited) {
            return self.has_credit(to, cost(RTS_BYTES + IMMEDIATE_BYTES));
        }
        may && self.has_credit(to, cost(RTS_BYTES + IMMEDIATE_BYTES + len))
            && !self.is_mappable(to, message)
            && !self.asks_first(to, len)
    }

    /// Sender: returns whether a message that may leave at once is to be announced, because that was learned to be
    /// faster.
    #[inline(always)]
    pub(in crate::engine) fn asks_first(&mut self, to: PeerId, len: usize) -> bool {
        self.is_learned(len) && self.has_learned_to_ask(to, len)
    }

    /// Returns whether the sender learns how messages of this length leave. What the settings prefer to send at once
    /// is never announced for its speed.
    #[inline(always)]
    const fn is_learned(&self, len: usize) -> bool {
        len >= LEAST_ASKED && len > self.eager_bytes
    }

    /// As [`Engine::asks_first`], for a length that is learned. Without a pull the question has no use.
    #[inline(never)]
    fn has_learned_to_ask(&mut self, to: PeerId, len: usize) -> bool {
        if !self.port.can_get(to) {
            return false;
        }
        let traffic = self.port.traffic(to);
        let heard = self.peer(to).tally.heard(&traffic);
        let Some(asking) = self.selections.asking(to) else { return false };
        asking.asks(len as u64, heard, || self.port.ticks())
    }

    /// Sender: takes note of a message that has left, or was announced.
    #[inline(always)]
    pub(in crate::engine) fn count_turn(&mut self, to: PeerId, len: usize) {
        if self.is_learned(len)
            && len <= self.port.unasked_bytes(to)
            && let Some(asking) = self.selections.asking(to)
        {
            asking.left(len as u64);
        }
    }

    /// Sender: returns whether a message lies in memory that the receiver may map, but for its first bytes.
    fn is_mappable(&mut self, to: PeerId, message: &SendMessage) -> bool {
        message.buf.last_run(FIRST_BYTES).is_some_and(|(_, range)| {
            let (descriptor, exposure) = self.port.expose(to, range);
            self.revoke(to, exposure);
            descriptor.mappable().is_some()
        })
    }

    /// Sender: sends the RTS of a message that may leave unasked, and as many of its bytes as there is space for.
    /// Returns `false` if there is no space for the RTS.
    pub(in crate::engine) fn send_unasked(
        &mut self,
        to: PeerId,
        index: u32,
        message: SendMessage,
    ) -> Result<bool, PeerFault> {
        let rts = Rts { is_unasked: true, ..Rts::of(message.buf.len() as u64, 0, message.immediate) };
        let packet = rts.encode();
        let envelope = Envelope { total: packet.len() as u64, ..message.envelope(Kind::Rts) };
        if !self.port.send(to, &envelope, PacketPieces::Whole(&packet))? {
            return Ok(false);
        }
        let peer = self.peer(to);
        peer.allowance.spend(units(&rts));
        peer.tally.sent(Kind::Rts, packet.len());
        peer.tally.is_held = false;
        self.dequeue(to, PeerQueue::Pending, index);
        let stream = StreamState::new((to, UNASKED), Part { start: 0, end: rts.total }, Descriptor::NONE);
        let (tag, from) = (message.tag, Gather::new(message.buf));
        self.requests.get_mut(index).0 = State::Streaming { tag, from, stream };
        self.enqueue(to, PeerQueue::Streaming, index);
        while self.first(to, PeerQueue::Streaming) == Some(index) && Stream::progress(self, to, index)? {}
        Ok(true)
    }

    /// Receiver: delivers the RTS of a message whose bytes follow unasked.
    pub(in crate::engine) fn deliver_unasked(
        &mut self,
        arrival: Arrival<P::Token>,
        rts: Rts,
    ) -> Result<(), PortFault> {
        let Arrival { peer: from, envelope, len, .. } = arrival;
        self.port.release(arrival);
        let is_open = self.peer(from).unasked.is_some();
        if len != rts.bytes() || is_open {
            return Err(PortFault::Protocol { kind: envelope.kind });
        }
        let matched = self.take_posted(from, &envelope, rts.total);
        let charged = self.charge(from, units(&rts), matched.is_none());
        match matched {
            Some((index, buf)) => self.receive_unasked(index, (from, envelope.tag), rts, 0, buf),
            None if charged.is_ok() => self.store_unasked(from, &envelope, rts),
            None => self.unplaced = None,
        }
        charged
    }

    /// Receiver: stores a message whose bytes follow, for which there is memory.
    fn store_unasked(&mut self, from: PeerId, envelope: &Envelope, rts: Rts) {
        let head = Rts { sender: 0, ..rts }.encode();
        let len = head.len() + rts.following();
        let stored = self.store.insert(from, envelope, len, |at, to| {
            to.iter_mut().zip(head.iter().skip(at)).for_each(|(to, byte)| *to = *byte);
        });
        debug_assert!(stored.is_some(), "credit guarantees memory");
        self.peer(from).unasked = stored.map(UnaskedPlace::Stored);
        self.assign_stored(stored);
        self.count_stored(from, len);
    }

    /// Receiver: lets a receive that has matched such a message, and has its `first` bytes, take the others as they
    /// come.
    pub(in crate::engine) fn receive_unasked(
        &mut self,
        index: u32,
        (from, tag): (PeerId, u64),
        rts: Rts,
        first: u64,
        buf: RecvBuf,
    ) {
        #[cfg(nemesia_injected_fault)]
        let first = if first > 0 && injected(InjectedFault::TakeUnfinished) { rts.total } else { first };
        if first == rts.total {
            let outcome = outcome(from, tag, rts.total, buf.len());
            return self.complete(index, with_immediate(outcome, rts.immediate));
        }
        if let Some(failure) = self.failure(from) {
            return self.complete(index, Err(CompletionError::PeerFailed { peer: from, failure }));
        }
        let left = Part { start: first, end: rts.total };
        let (phase, protocol) = (TransferPhase::Stream, Protocol::Stream);
        let incoming = Incoming { phase, protocol, ..Incoming::new((from, tag), rts, left) };
        self.requests.get_mut(index).0 = State::Receiving { incoming, buf: Scatter::new(buf) };
        self.enqueue(from, PeerQueue::Incoming, index);
        self.peer(from).unasked = Some(UnaskedPlace::Request(index));
    }

    /// Receiver: takes the next part of such a message.
    pub(super) fn take_unasked(&mut self, arrival: &Arrival<P::Token>) -> Result<(), PortFault> {
        let (from, len) = (arrival.peer, arrival.len as u64);
        let place = self.peer(from).unasked.ok_or(INVALID)?;
        let left = match place {
            UnaskedPlace::Stored(id) => self.fill_stored(id, arrival)?,
            UnaskedPlace::Request(index) => {
                let State::Receiving { incoming, .. } = &self.requests.get(index).0 else {
                    return Err(INVALID);
                };
                let wanted = incoming.wanted();
                Stream::handle_cookie(self, index, arrival)?;
                wanted - len
            }
        };
        if left == 0 {
            self.peer(from).unasked = None;
        }
        Ok(())
    }

    /// Receiver: adds a part to a stored message. Returns the number of bytes that are still missing.
    fn fill_stored(&mut self, id: u32, arrival: &Arrival<P::Token>) -> Result<u64, PortFault> {
        let rts = stored_rts(&self.store, id, &self.store.get(id)).ok_or(INVALID)?;
        let (at, len) = (rts.sender, arrival.len);
        let left = (rts.total - at).checked_sub(len as u64).filter(|_| len > 0).ok_or(INVALID)?;
        let (port, mut whole) = (&self.port, true);
        self.store.fill(id, rts.bytes() + at as usize, len, |done, to| whole &= port.read(arrival, done, to));
        if !whole {
            return Err(TAKEN_BACK);
        }
        let arrived = (at + len as u64).to_le_bytes();
        self.store
            .fill(id, SENDER_AT, arrived.len(), |at, to| to.copy_from_slice(&arrived[at..at + to.len()]));
        Ok(left)
    }
}
