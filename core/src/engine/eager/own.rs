//! Messages to this process itself.
#![forbid(unsafe_code)]

use crate::engine::peer::PeerQueue;
use crate::engine::request::{Outcome, SendMessage, State, outcome, with_immediate};
use crate::engine::{Engine, RequestId, Storage};
use crate::payload::{Gather, RecvBuf};
use crate::port::Port;
use crate::store::cost;
use crate::wire::rendezvous::{IMMEDIATE_BYTES, RTS_BYTES, Rts};
use crate::wire::{Envelope, Kind};

/// Units of the RTS of a message to this process itself, with or without immediate data.
const OWN_RTS_UNITS: u32 = cost(RTS_BYTES);

static_assertions::const_assert!(cost(RTS_BYTES + IMMEDIATE_BYTES) == OWN_RTS_UNITS);

impl<P: Port, S: Storage> Engine<P, S> {
    /// Delivers a pending message to this process itself. It is matched like any other and copied once or twice.
    /// Returns `false` if there is no memory to store the message or its RTS.
    pub(in crate::engine) fn send_to_self(&mut self, index: u32, message: &SendMessage) -> bool {
        let (me, len) = (self.rank, message.buf.len());
        if self.deliver_own(message) {
            self.dequeue(me, PeerQueue::Pending, index);
            self.complete_send(me, index);
            return true;
        }
        let envelope = message.envelope(Kind::Eager);
        if !self.reserve_own(OWN_RTS_UNITS) {
            self.unplaced = None;
            return false;
        }
        let rts = Rts::of(len as u64, self.id(index).to_bits(), message.immediate);
        let bytes = rts.bytes();
        let rts = rts.encode();
        let envelope = Envelope { kind: Kind::Rts, ..envelope };
        let read = |at: usize, to: &mut [u8]| to.copy_from_slice(&rts[at..at + to.len()]);
        let stored = self.store.insert(me, &envelope, bytes, read);
        debug_assert!(stored.is_some(), "memory was reserved");
        self.assign_stored(stored);
        self.count_own(len);
        self.count_stored(me, bytes);
        self.dequeue(me, PeerQueue::Pending, index);
        self.requests.get_mut(index).0 = State::Offered { to: me, message: message.alias(), exposure: None };
        self.enqueue(me, PeerQueue::Offered, index);
        true
    }

    /// Copies a whole message to this process itself to the receive that matches it, or to the store. Returns
    /// `false` if no receive matches it, and it must not be stored or there is no memory.
    pub(in crate::engine) fn deliver_own(&mut self, message: &SendMessage) -> bool {
        let (me, len) = (self.rank, message.buf.len());
        if let Some((receive, mut buf)) = self.take_posted(me, &message.envelope(Kind::Eager), len as u64) {
            let fits = buf.len().min(len);
            let mut from = Gather::new(message.buf.alias());
            buf.each(0, fits, |done, to| from.read(done, to));
            let outcome = outcome(me, message.tag, len as u64, buf.len());
            self.complete(receive, with_immediate(outcome, message.immediate));
            self.count_own(len);
            return true;
        }
        let whole = message.eager_len(self.eager_bytes).filter(|_| !message.synchronous);
        let Some(whole) = whole.filter(|whole| self.reserve_own(cost(*whole))) else { return false };
        self.store_own(message, whole);
        self.count_own(len);
        self.count_stored(me, whole);
        true
    }

    /// Stores a message to this process itself, with its prefix: `whole` bytes, for which memory was reserved.
    fn store_own(&mut self, message: &SendMessage, whole: usize) {
        let prefix = message.prefix(RequestId::SENT);
        let (head, skip) = (prefix.encode(), prefix.bytes());
        let mut from = Gather::new(message.buf.alias());
        let read = |at: usize, to: &mut [u8]| {
            let (before, rest) = to.split_at_mut(skip.saturating_sub(at).min(to.len()));
            before.iter_mut().zip(head.iter().skip(at)).for_each(|(to, byte)| *to = *byte);
            from.read((at + before.len()).saturating_sub(skip), rest);
        };
        let stored = self.store.insert(self.rank, &message.envelope(prefix.kind()), whole, read);
        debug_assert!(stored.is_some(), "memory was reserved");
        self.assign_stored(stored);
    }

    /// Copies a message to this process itself of which only the RTS was stored, and completes its send.
    pub(in crate::engine) fn take_from_self(&mut self, tag: u64, rts: &Rts, buf: &mut RecvBuf) -> Outcome {
        let me = self.rank;
        if let Some((index, message)) = self.offered(me, rts.sender) {
            let fits = buf.len().min(message.buf.len());
            let mut from = Gather::new(message.buf.alias());
            buf.each(0, fits, |done, to| from.read(done, to));
            self.dequeue(me, PeerQueue::Offered, index);
            self.complete_send(me, index);
        }
        with_immediate(outcome(me, tag, rts.total, buf.len()), rts.immediate)
    }
}
