//! A recording port: it records the packets that arrive, for the oracle.

use core::cell::Cell;
use std::vec::Vec;

use crate::counters::TrafficCounters;
use crate::payload::{BorrowedGather, BorrowedRecv};
use crate::port::{
    Arrival, AssistedCopy, MessagePort, NextChunk, Part, PeerFault, PeerId, Polled, Pulled, Stores,
};
use crate::shared::fastbox::Word;
use crate::wire::rendezvous::{CTS_BYTES, Cts, RTS_BYTES, Rts};
use crate::wire::{Envelope, Kind};

/// A packet that the engine received.
#[derive(Clone, Copy, Debug)]
pub(super) struct Recorded {
    pub(super) peer: PeerId,
    pub(super) envelope: Envelope,
    pub(super) len: usize,
    /// Its content, if it is an RTS.
    pub(super) rts: Option<Rts>,
}

#[derive(Debug)]
pub(super) struct RecordingPort<P> {
    pub(super) port: P,
    pub(super) seen: Vec<Recorded>,
    pub(super) faults: Vec<PeerFault>,
    /// Number of `Data` packets, and of CTS that request only the rest of a message.
    pub(super) streamed: usize,
    pub(super) resumed: usize,
    /// Packets sent, and pieces that were read from peers or written to them.
    pub(super) sent: usize,
    /// Packets that took the path of large eager messages.
    pub(super) copied: usize,
    /// Number of attempts to send a packet, successful or not.
    pub(super) attempts: usize,
    pub(super) pulls: usize,
    /// Whether a second read of an RTS returns another content, as if its sender had changed it meanwhile.
    pub(super) twist: bool,
    reads: Cell<usize>,
    /// Bytes that were read with non-temporal stores.
    pub(super) non_temporal: Cell<usize>,
    /// Credit granted to each peer.
    promised: Vec<u64>,
}

impl<P: MessagePort> RecordingPort<P> {
    pub(super) const fn new(port: P) -> Self {
        Self {
            port,
            seen: Vec::new(),
            faults: Vec::new(),
            streamed: 0,
            resumed: 0,
            sent: 0,
            copied: 0,
            attempts: 0,
            pulls: 0,
            twist: false,
            reads: Cell::new(0),
            non_temporal: Cell::new(0),
            promised: Vec::new(),
        }
    }

    fn note(&mut self, polled: &Polled<P::Token>) {
        match polled {
            Polled::Idle => {}
            Polled::Packet(arrival) => {
                let Arrival { peer, envelope, len, .. } = *arrival;
                let mut head = [0; CTS_BYTES];
                self.port.read(arrival, 0, &mut head[..len.min(CTS_BYTES)]);
                let rts = head.first_chunk::<RTS_BYTES>().and_then(|head| Rts::decode(head, len));
                let rts = rts.filter(|_| envelope.kind == Kind::Rts);
                self.seen.push(Recorded { peer, envelope, len, rts });
                self.streamed += usize::from(envelope.kind == Kind::Data);
                let cts = Cts::decode(&head).filter(|cts| envelope.kind == Kind::Cts && cts.start > 0);
                self.resumed += usize::from(cts.is_some());
            }
            Polled::Fault(fault) => self.faults.push(*fault),
        }
    }
}

impl<P: MessagePort> MessagePort for RecordingPort<P> {
    type Token = P::Token;

    fn packet_bytes(&self) -> usize {
        self.port.packet_bytes()
    }

    fn send(&mut self, peer: PeerId, envelope: &Envelope, payload: &[u8]) -> Result<bool, PeerFault> {
        self.attempts += 1;
        let sent = self.port.send(peer, envelope, payload).inspect_err(|fault| self.faults.push(*fault))?;
        self.sent += usize::from(sent);
        Ok(sent)
    }

    fn sends_words(&self) -> bool {
        self.port.sends_words()
    }

    fn send_word(&mut self, peer: PeerId, context: u16, tag: u64, word: Word) -> Option<bool> {
        self.attempts += 1;
        let sent = self.port.send_word(peer, context, tag, word);
        self.sent += usize::from(sent.is_some());
        sent
    }

    fn send_copy(&mut self, peer: PeerId, context: u16, tag: u64, bytes: &[u8]) -> Option<bool> {
        let sent = self.port.send_copy(peer, context, tag, bytes);
        self.attempts += usize::from(sent.is_some());
        self.sent += usize::from(sent.is_some());
        self.copied += usize::from(sent.is_some());
        sent
    }

    fn settle_send(&mut self, peer: PeerId) {
        self.port.settle_send(peer);
    }

    fn send_parts(
        &mut self,
        peer: PeerId,
        envelope: &Envelope,
        head: &[u8],
        body: &[u8],
    ) -> Result<bool, PeerFault> {
        let sent = self.port.send_parts(peer, envelope, head, body);
        let sent = sent.inspect_err(|fault| self.faults.push(*fault))?;
        self.sent += usize::from(sent);
        Ok(sent)
    }

    fn send_list(
        &mut self,
        peer: PeerId,
        envelope: &Envelope,
        from: &mut BorrowedGather<'_>,
        at: usize,
    ) -> Result<bool, PeerFault> {
        let sent = self.port.send_list(peer, envelope, from, at);
        let sent = sent.inspect_err(|fault| self.faults.push(*fault))?;
        self.sent += usize::from(sent);
        Ok(sent)
    }

    fn poll(&mut self) -> Polled<Self::Token> {
        let polled = self.port.poll();
        self.note(&polled);
        polled
    }

    fn take(
        &mut self,
        wanted: impl FnOnce(PeerId, &Envelope) -> bool,
        to: &mut BorrowedRecv<'_>,
    ) -> Option<(PeerId, Envelope)> {
        let (peer, envelope) = self.port.take(wanted, to)?;
        self.seen.push(Recorded { peer, envelope, len: envelope.total as usize, rts: None });
        Some((peer, envelope))
    }

    fn take_word(
        &mut self,
        from: Option<PeerId>,
        context: u16,
        wanted: impl FnOnce(u64) -> bool,
    ) -> Option<(PeerId, u64, Word, bool)> {
        let (peer, tag, word, unsettled) = self.port.take_word(from, context, wanted)?;
        let envelope = Envelope { kind: Kind::Eager, context, tag, total: word.len() as u64 };
        self.seen.push(Recorded { peer, envelope, len: word.len(), rts: None });
        Some((peer, tag, word, unsettled))
    }

    fn settle_take(&mut self, peer: PeerId) {
        self.port.settle_take(peer);
    }

    fn poll_peer(&mut self, peer: PeerId) -> Polled<Self::Token> {
        let polled = self.port.poll_peer(peer);
        self.note(&polled);
        polled
    }

    fn pause(&mut self) {
        self.port.pause();
    }

    fn has_next(&self) -> bool {
        self.port.has_next()
    }

    fn read(&self, arrival: &Arrival<Self::Token>, at: usize, to: &mut [u8]) {
        assert!(at + to.len() <= arrival.len, "{} bytes from {at} of {}", to.len(), arrival.len);
        self.port.read(arrival, at, to);
        if self.twist && arrival.envelope.kind == Kind::Rts && at == 0 && to.len() > 7 {
            self.reads.set(self.reads.get() + 1);
            // The length of the message.
            to[7] ^= if self.reads.get() > 1 { 0x80 } else { 0 };
        }
    }

    fn read_non_temporal(&self, arrival: &Arrival<Self::Token>, at: usize, to: &mut [u8]) {
        assert!(at + to.len() <= arrival.len, "{} bytes from {at} of {}", to.len(), arrival.len);
        self.non_temporal.set(self.non_temporal.get() + to.len());
        self.port.read_non_temporal(arrival, at, to);
    }

    fn release(&mut self, arrival: Arrival<Self::Token>) {
        self.port.release(arrival);
    }

    fn prioritize(&mut self, peer: PeerId) {
        self.port.prioritize(peer);
    }

    fn set_data_stores(&mut self, peer: PeerId, stores: Stores) {
        self.port.set_data_stores(peer, stores);
    }

    fn grant(&mut self, peer: PeerId, units: u64) {
        let at = peer as usize;
        self.promised.resize(self.promised.len().max(at + 1), 0);
        let before = core::mem::replace(&mut self.promised[at], units);
        assert!(units >= before, "the credit of rank {peer} has decreased: {before}, {units}");
        self.port.grant(peer, units);
    }

    fn granted(&self, peer: PeerId) -> u64 {
        self.port.granted(peer)
    }

    fn ticks(&self) -> Option<u64> {
        self.port.ticks()
    }

    fn can_pull(&self, peer: PeerId) -> bool {
        self.port.can_pull(peer)
    }

    fn pull(&mut self, peer: PeerId, address: u64, to: &mut [u8]) -> Pulled {
        self.pulls += 1;
        self.port.pull(peer, address, to)
    }

    fn open_assist(&mut self, peer: PeerId, assist: &AssistedCopy) -> bool {
        self.port.open_assist(peer, assist)
    }

    fn next_chunk(&mut self, peer: PeerId) -> NextChunk {
        self.port.next_chunk(peer)
    }

    fn close_assist(&mut self, peer: PeerId) {
        self.port.close_assist(peer);
    }

    fn find_assist(&mut self, peer: PeerId) -> Option<AssistedCopy> {
        self.port.find_assist(peer)
    }

    fn join_assist(&mut self, peer: PeerId, end: u64) -> Option<Part> {
        self.port.join_assist(peer, end)
    }

    fn next_part(&mut self, peer: PeerId) -> Option<Part> {
        self.port.next_part(peer)
    }

    fn end_part(&mut self, peer: PeerId, part: Part, written: bool) {
        self.port.end_part(peer, part, written);
    }

    fn push(&mut self, peer: PeerId, address: u64, from: &[u8]) -> bool {
        self.pulls += 1;
        self.port.push(peer, address, from)
    }

    fn traffic(&self, peer: PeerId) -> TrafficCounters {
        self.port.traffic(peer)
    }

    fn close(&mut self, peer: PeerId) {
        // The credit of the peer's next process starts anew.
        if let Some(promised) = self.promised.get_mut(peer as usize) {
            *promised = 0;
        }
        self.port.close(peer);
    }
}
