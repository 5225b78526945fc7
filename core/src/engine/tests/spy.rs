//! A port that writes down what arrives, so that an oracle can be told.

use std::vec::Vec;

use crate::port::{Arrival, MessagePort, PeerFault, PeerId, Polled};
use crate::wire::Envelope;

/// A packet that the engine was given and did not hold.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    pub(super) peer: PeerId,
    pub(super) envelope: Envelope,
    pub(super) len: usize,
}

#[derive(Debug)]
pub(super) struct Spy<P> {
    pub(super) port: P,
    pub(super) seen: Vec<Seen>,
    pub(super) faults: Vec<PeerFault>,
}

impl<P> Spy<P> {
    pub(super) const fn new(port: P) -> Self {
        Self { port, seen: Vec::new(), faults: Vec::new() }
    }

    fn note<T>(&mut self, polled: &Polled<T>) {
        match polled {
            Polled::Idle => {}
            Polled::Packet(Arrival { peer, envelope, len, .. }) => {
                self.seen.push(Seen { peer: *peer, envelope: *envelope, len: *len });
            }
            Polled::Fault(fault) => self.faults.push(*fault),
        }
    }
}

impl<P: MessagePort> MessagePort for Spy<P> {
    type Token = P::Token;

    fn packet_bytes(&self) -> usize {
        self.port.packet_bytes()
    }

    fn send(&mut self, peer: PeerId, envelope: &Envelope, payload: &[u8]) -> Result<bool, PeerFault> {
        self.port.send(peer, envelope, payload).inspect_err(|fault| self.faults.push(*fault))
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

    fn read(&self, arrival: &Arrival<Self::Token>, at: usize, to: &mut [u8]) {
        assert!(at + to.len() <= arrival.len, "{} bytes from {at} of {}", to.len(), arrival.len);
        self.port.read(arrival, at, to);
    }

    fn release(&mut self, arrival: Arrival<Self::Token>) {
        self.port.release(arrival);
    }

    fn hold(&mut self, peer: PeerId) {
        assert_eq!(self.seen.pop().map(|seen| seen.peer), Some(peer), "held is who was polled");
        self.port.hold(peer);
    }

    fn unhold(&mut self, peer: PeerId) {
        self.port.unhold(peer);
    }

    fn expect(&mut self, peer: PeerId) {
        self.port.expect(peer);
    }

    fn close(&mut self, peer: PeerId) {
        self.port.close(peer);
    }
}
