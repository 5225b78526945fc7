//! A recording port: it counts what the engine asks of its port, and records faults.

use core::cell::Cell;
use std::vec::Vec;

use crate::counters::TrafficCounters;
use crate::payload::{BorrowedRecv, ReceiveRange, ReceiveRanges, SendRange, SendRuns};
use crate::port::{
    Accessed, AccessedRanges, Arrival, AssistedCopy, CompletedAccess, Exposure, NextChunk, PacketPieces,
    PacketPort, Part, PeerFault, PeerId, Polled, RemoteAccess, SharedCopy, ShortPath,
};
use crate::wire::prefix::PrefixWords;
use crate::wire::rendezvous::Descriptor;
use crate::wire::{Envelope, Kind};

#[derive(Debug)]
pub(in crate::engine) struct RecordingPort<P> {
    pub(in crate::engine) port: P,
    pub(in crate::engine) faults: Vec<PeerFault>,
    /// Packets sent, and pieces that were read from peers or written to them.
    pub(in crate::engine) sent: usize,
    /// Number of attempts to send a packet, successful or not.
    pub(in crate::engine) attempts: usize,
    pub(in crate::engine) pulls: usize,
    /// The most bytes of messages that leave unasked.
    pub(in crate::engine) unasked_bytes: usize,
    /// Whether a second read of an RTS returns another content, as if its sender had changed it meanwhile.
    pub(in crate::engine) twist: bool,
    reads: Cell<usize>,
    /// Bytes that were read with non-temporal stores.
    pub(in crate::engine) non_temporal: Cell<usize>,
    /// Credit granted to each peer.
    promised: Vec<u64>,
}

impl<P: PacketPort> RecordingPort<P> {
    pub(in crate::engine) const fn new(port: P) -> Self {
        Self {
            port,
            faults: Vec::new(),
            sent: 0,
            attempts: 0,
            pulls: 0,
            unasked_bytes: 0,
            twist: false,
            reads: Cell::new(0),
            non_temporal: Cell::new(0),
            promised: Vec::new(),
        }
    }

    fn note(&mut self, polled: &Polled<P::Token>) {
        if let Polled::Fault(fault) = polled {
            self.faults.push(*fault);
        }
    }
}

impl<P: PacketPort> PacketPort for RecordingPort<P> {
    type Token = P::Token;

    fn send(
        &mut self,
        peer: PeerId,
        envelope: &Envelope,
        pieces: PacketPieces<'_>,
    ) -> Result<bool, PeerFault> {
        self.attempts += usize::from(matches!(pieces, PacketPieces::Whole(_)));
        let sent = self.port.send(peer, envelope, pieces).inspect_err(|fault| self.faults.push(*fault))?;
        self.sent += usize::from(sent);
        Ok(sent)
    }

    fn packet_bytes(&self) -> usize {
        self.port.packet_bytes()
    }

    fn eager_bytes(&self, _: PeerId) -> usize {
        self.unasked_bytes.min(self.packet_bytes())
    }

    fn unasked_bytes(&self, _: PeerId) -> usize {
        self.unasked_bytes
    }

    fn poll(&mut self) -> Polled<Self::Token> {
        let polled = self.port.poll();
        self.note(&polled);
        polled
    }

    fn poll_peer(&mut self, peer: PeerId) -> Polled<Self::Token> {
        let polled = self.port.poll_peer(peer);
        self.note(&polled);
        polled
    }

    fn read(&self, arrival: &Arrival<Self::Token>, at: usize, to: &mut [u8]) -> bool {
        assert!(at + to.len() <= arrival.len, "{} bytes from {at} of {}", to.len(), arrival.len);
        let whole = self.port.read(arrival, at, to);
        if self.twist && arrival.envelope.kind == Kind::Rts && at == 0 && to.len() > 7 {
            self.reads.set(self.reads.get() + 1);
            // The length of the message.
            to[7] ^= if self.reads.get() > 1 { 0x80 } else { 0 };
        }
        whole
    }

    fn release(&mut self, arrival: Arrival<Self::Token>) {
        self.port.release(arrival);
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

impl<P: ShortPath> ShortPath for RecordingPort<P> {
    fn short_bytes(&self) -> usize {
        self.port.short_bytes()
    }

    fn send_short(&mut self, peer: PeerId, context: u16, tag: u64, bytes: &[u8]) -> Option<bool> {
        self.attempts += 1;
        let sent = self.port.send_short(peer, context, tag, bytes);
        self.sent += usize::from(sent.is_some());
        sent
    }

    fn send_immediate(&mut self, peer: PeerId, context: u16, words: [u64; 2], bytes: &[u8]) -> Option<bool> {
        self.attempts += 1;
        let sent = self.port.send_immediate(peer, context, words, bytes);
        self.sent += usize::from(sent.is_some());
        sent
    }

    fn send_copy(&mut self, peer: PeerId, context: u16, tag: u64, bytes: &[u8]) -> Option<bool> {
        let sent = self.port.send_copy(peer, context, tag, bytes);
        self.attempts += usize::from(sent.is_some());
        self.sent += usize::from(sent.is_some());
        sent
    }

    fn send_prefixed(&mut self, peer: PeerId, envelope: &Envelope, words: PrefixWords, body: &[u8]) -> bool {
        let sent = self.port.send_prefixed(peer, envelope, words, body);
        self.attempts += usize::from(sent);
        self.sent += usize::from(sent);
        sent
    }

    fn settle_send(&mut self, peer: PeerId) {
        self.port.settle_send(peer);
    }

    fn take(
        &mut self,
        wanted: impl FnOnce(PeerId, &Envelope) -> bool,
        to: &mut BorrowedRecv<'_>,
    ) -> Option<(PeerId, Envelope)> {
        self.port.take(wanted, to)
    }

    fn take_prefixed(
        &mut self,
        wanted: impl FnOnce(PeerId, &Envelope, PrefixWords) -> bool,
        to: &mut BorrowedRecv<'_>,
    ) -> Option<(PeerId, Envelope, PrefixWords)> {
        self.port.take_prefixed(wanted, to)
    }

    fn has_next(&self) -> bool {
        self.port.has_next()
    }

    fn expects_next(&self) -> bool {
        self.port.expects_next()
    }

    fn pause(&mut self) {
        self.port.pause();
    }

    fn take_short(
        &mut self,
        from: Option<usize>,
        context: u16,
        wanted: impl FnOnce(u64) -> bool,
        to: &mut [u8],
    ) -> Option<(PeerId, u64, usize, bool)> {
        self.port.take_short(from, context, wanted, to)
    }

    fn take_into<'b>(
        &mut self,
        place: impl FnOnce(PeerId, &Envelope) -> Option<&'b mut [u8]>,
    ) -> Option<(PeerId, Envelope, Option<u64>)> {
        self.port.take_into(place)
    }

    fn is_quiet(&mut self) -> bool {
        self.port.is_quiet()
    }

    fn settle_take(&mut self, peer: PeerId) {
        self.port.settle_take(peer);
    }

    fn prioritize(&mut self, peer: PeerId) {
        self.port.prioritize(peer);
    }

    fn read_non_temporal(&self, arrival: &Arrival<Self::Token>, at: usize, to: &mut [u8]) -> bool {
        assert!(at + to.len() <= arrival.len, "{} bytes from {at} of {}", to.len(), arrival.len);
        self.non_temporal.set(self.non_temporal.get() + to.len());
        self.port.read_non_temporal(arrival, at, to)
    }
}

#[allow(unsafe_code, reason = "the trait has obligations")]
// SAFETY: every method passes on to a port with the same obligations.
unsafe impl<P: RemoteAccess> RemoteAccess for RecordingPort<P> {
    fn can_get(&self, peer: PeerId) -> bool {
        self.port.can_get(peer)
    }

    fn is_accessible(&self, peer: PeerId, descriptor: &Descriptor) -> bool {
        self.port.is_accessible(peer, descriptor)
    }

    fn is_mappable(&self, peer: PeerId, descriptor: &Descriptor) -> bool {
        self.port.is_mappable(peer, descriptor)
    }

    fn expose(&mut self, peer: PeerId, range: SendRange) -> (Descriptor, Option<Exposure>) {
        self.port.expose(peer, range)
    }

    fn expose_list(&mut self, peer: PeerId, runs: &SendRuns) -> (Descriptor, Option<Exposure>) {
        self.port.expose_list(peer, runs)
    }

    fn revoke(&mut self, peer: PeerId, exposure: Exposure) {
        self.port.revoke(peer, exposure);
    }

    fn get(
        &mut self,
        peer: PeerId,
        from: &Descriptor,
        at: u64,
        to: ReceiveRange,
        operation: u64,
    ) -> Accessed {
        self.pulls += 1;
        self.port.get(peer, from, at, to, operation)
    }

    fn get_ranges(
        &mut self,
        peer: PeerId,
        from: &Descriptor,
        at: u64,
        to: &mut ReceiveRanges,
        operation: u64,
    ) -> AccessedRanges {
        self.pulls += 1;
        self.port.get_ranges(peer, from, at, to, operation)
    }

    fn poll_access(&mut self) -> Option<CompletedAccess> {
        self.port.poll_access()
    }
}

impl<P: SharedCopy> SharedCopy for RecordingPort<P> {
    fn open_assist(&mut self, peer: PeerId, assist: &AssistedCopy) -> bool {
        self.port.open_assist(peer, assist)
    }

    fn is_lent(&self, peer: PeerId, assist: &AssistedCopy) -> bool {
        self.port.is_lent(peer, assist)
    }

    fn next_chunk(&mut self, peer: PeerId) -> NextChunk {
        self.port.next_chunk(peer)
    }

    fn close_assist(&mut self, peer: PeerId) {
        self.port.close_assist(peer);
    }

    fn keep_assist(&mut self, peer: PeerId) {
        self.port.keep_assist(peer);
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
}
