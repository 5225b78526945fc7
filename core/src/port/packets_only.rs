//! A port of packets as a whole port.
use core::time::Duration;

use super::{
    Arrival, PacketPieces, PacketPort, PeerFault, PeerId, Polled, RemoteAccess, SharedCopy, ShortPath,
};
use crate::counters::TrafficCounters;
use crate::wire::Envelope;

/// A port that provides packets only, in the form in which the engine takes it: with no short path, no access to
/// remote memory and no shared copies.
#[derive(Clone, Copy, Debug, Default)]
pub struct PacketsOnly<P>(
    /// The port.
    pub P,
);

impl<P: PacketPort> PacketPort for PacketsOnly<P> {
    type Token = P::Token;

    fn packet_bytes(&self) -> usize {
        self.0.packet_bytes()
    }

    fn eager_bytes(&self, peer: PeerId) -> usize {
        self.0.eager_bytes(peer)
    }

    fn unasked_bytes(&self, peer: PeerId) -> usize {
        self.0.unasked_bytes(peer)
    }

    fn gathers(&self, peer: PeerId, len: usize) -> bool {
        self.0.gathers(peer, len)
    }

    fn set_batch(&mut self, peer: PeerId, is_batch: bool) {
        self.0.set_batch(peer, is_batch);
    }

    #[inline]
    fn send(
        &mut self,
        peer: PeerId,
        envelope: &Envelope,
        pieces: PacketPieces<'_>,
    ) -> Result<bool, PeerFault> {
        self.0.send(peer, envelope, pieces)
    }

    #[inline]
    fn poll(&mut self) -> Polled<P::Token> {
        self.0.poll()
    }

    fn poll_peer(&mut self, peer: PeerId) -> Polled<P::Token> {
        self.0.poll_peer(peer)
    }

    #[inline]
    fn read(&self, arrival: &Arrival<P::Token>, at: usize, to: &mut [u8]) -> bool {
        self.0.read(arrival, at, to)
    }

    #[inline]
    fn release(&mut self, arrival: Arrival<P::Token>) {
        self.0.release(arrival);
    }

    fn grant(&mut self, peer: PeerId, units: u64) {
        self.0.grant(peer, units);
    }

    fn granted(&self, peer: PeerId) -> u64 {
        self.0.granted(peer)
    }

    fn traffic(&self, peer: PeerId) -> TrafficCounters {
        self.0.traffic(peer)
    }

    fn close(&mut self, peer: PeerId) {
        self.0.close(peer);
    }

    fn advance(&mut self, now: Duration) {
        self.0.advance(now);
    }

    fn ticks(&self) -> Option<u64> {
        self.0.ticks()
    }
}

impl<P: PacketPort> ShortPath for PacketsOnly<P> {}

impl<P> SharedCopy for PacketsOnly<P> {}

// SAFETY: every method is the default, which uses no memory.
#[allow(unsafe_code, reason = "the trait has obligations about memory; this file does nothing unsafe")]
unsafe impl<P> RemoteAccess for PacketsOnly<P> {}
