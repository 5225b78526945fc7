//! Messages to this process itself.
#![forbid(unsafe_code)]

use crate::engine::peer::PeerQueue;
use crate::engine::request::{Outcome, SendMessage, State, outcome};
use crate::engine::{Engine, Storage};
use crate::payload::{Gather, RecvBuf};
use crate::port::Port;
use crate::store::cost;
use crate::wire::rendezvous::{Descriptor, RTS_BYTES, Rts};
use crate::wire::{Envelope, Kind};

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
        if !self.reserve_own(cost(RTS_BYTES)) {
            return false;
        }
        let rts = Rts {
            total: len as u64,
            sender: self.id(index).to_bits(),
            descriptor: Descriptor::NONE,
            origin: 0,
            protocol_number: 0,
        };
        let rts = rts.encode();
        let envelope = Envelope { kind: Kind::Rts, ..envelope };
        let read = |at: usize, to: &mut [u8]| to.copy_from_slice(&rts[at..at + to.len()]);
        let stored = self.store.insert(me, &envelope, RTS_BYTES, read);
        debug_assert!(stored.is_some(), "memory was reserved");
        self.count_own(len);
        self.count_stored(me, RTS_BYTES);
        self.dequeue(me, PeerQueue::Pending, index);
        self.requests.get_mut(index).0 = State::Offered { to: me, message: message.alias(), exposure: None };
        self.enqueue(me, PeerQueue::Offered, index);
        true
    }

    /// Copies a whole message to this process itself to the receive that matches it, or to the store. Returns
    /// `false` if no receive matches it, and it must not be stored or there is no memory.
    pub(in crate::engine) fn deliver_own(&mut self, message: &SendMessage) -> bool {
        let (me, len) = (self.rank, message.buf.len());
        let envelope = message.envelope(Kind::Eager);
        let mut from = Gather::new(message.buf.alias());
        if let Some(receive) = self.take_posted(me, &envelope) {
            let mut buf = self.take_buffer(receive);
            let fits = buf.len().min(len);
            buf.each(0, fits, |done, to| from.read(done, to));
            self.complete(receive, outcome(me, message.tag, len as u64, buf.len()));
            self.count_own(len);
            return true;
        }
        if message.synchronous || len > self.eager_bytes || !self.reserve_own(cost(len)) {
            return false;
        }
        let stored = self.store.insert(me, &envelope, len, |at, to| from.read(at, to));
        debug_assert!(stored.is_some(), "memory was reserved");
        self.count_own(len);
        self.count_stored(me, len);
        true
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
        outcome(me, tag, rts.total, buf.len())
    }
}
