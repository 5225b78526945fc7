//! A transport in less than 200 lines, written from the documentation of [`PacketPort`] alone: packets between two
//! processes over a stream, the pipe. It shows what a transport must provide for every protocol of the engine.
//!
//! A packet is a header of 16 bytes and its payload: kind, a zero byte, context, payload bytes, tag. A header of
//! kind 0 grants credit: its tag is the total.
#![forbid(unsafe_code)]

use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;

use nemesia_core::counters::TrafficCounters;
use nemesia_core::port::memory::LostError;
use nemesia_core::port::{Arrival, PacketPieces, PacketPort, PeerFault, PeerId, Polled, PortFault};
use nemesia_core::wire::{Envelope, Kind};

const PACKET_BYTES: usize = 4096;
const HEADER_BYTES: usize = 16;
/// The bytes that may wait for room in the stream.
const WAITING: usize = 64 << 10;
const GRANT: u8 = 0;

/// The port of one of two processes.
#[derive(Debug)]
pub(crate) struct PipePort {
    peer: PeerId,
    /// `None` after it was closed.
    stream: Option<UnixStream>,
    outgoing: Vec<u8>,
    incoming: Vec<u8>,
    granted: u64,
    traffic: TrafficCounters,
    /// The fault, until it is reported.
    fault: Option<PortFault>,
    ended: bool,
}

/// Returns a header: kind, context, payload bytes, tag.
fn encode((kind, context, len, tag): (u8, u16, usize, u64)) -> [u8; HEADER_BYTES] {
    let first = u64::from(kind) | u64::from(context) << 16 | (len as u64) << 32;
    (u128::from(first) | u128::from(tag) << 64).to_le_bytes()
}

fn decode(bytes: [u8; HEADER_BYTES]) -> (u8, u16, usize, u64) {
    let (first, tag) = (u128::from_le_bytes(bytes) as u64, (u128::from_le_bytes(bytes) >> 64) as u64);
    (first as u8, (first >> 16) as u16, (first >> 32) as usize, tag)
}

impl PipePort {
    /// Returns the port over a stream to this peer.
    pub(crate) fn new(peer: PeerId, stream: UnixStream) -> std::io::Result<Self> {
        stream.set_nonblocking(true)?;
        let (outgoing, incoming, traffic) = (Vec::new(), Vec::new(), TrafficCounters::default());
        let (granted, fault, ended) = (0, None, false);
        Ok(Self { peer, stream: Some(stream), outgoing, incoming, granted, traffic, fault, ended })
    }

    /// Returns whether everything that was sent is in the stream.
    pub(crate) fn is_flushed(&self) -> bool {
        self.outgoing.is_empty() || self.stream.is_none() || self.ended
    }

    /// Records why nothing more comes from the peer.
    fn end(&mut self, fault: PortFault) {
        if !self.ended {
            (self.ended, self.fault) = (true, Some(fault));
        }
    }

    fn flush(&mut self) {
        let Some(stream) = self.stream.as_mut().filter(|_| !self.outgoing.is_empty() && !self.ended) else {
            return;
        };
        match stream.write(&self.outgoing) {
            Ok(count) => drop(self.outgoing.drain(..count)),
            Err(error) if is_temporary(error.kind()) => {}
            // What the peer sent before it ended may still be in the stream: reading finds the end.
            Err(_) => self.outgoing.clear(),
        }
    }

    /// Reads what is there, unless a whole packet waits already.
    fn fill(&mut self) {
        let Some(stream) = self.stream.as_mut().filter(|_| !self.ended) else { return };
        let mut bytes = [0; 2 * PACKET_BYTES];
        match stream.read(&mut bytes) {
            Ok(count @ 1..) => self.incoming.extend_from_slice(&bytes[..count]),
            Err(error) if is_temporary(error.kind()) => {}
            Ok(_) | Err(_) => self.end(PortFault::Lost(LostError::Closed)),
        }
    }

    /// Returns the first packet that is there as a whole; takes grants on the way.
    fn next_packet(&mut self) -> Option<Arrival<()>> {
        loop {
            let (kind, context, len, tag) = decode(*self.incoming.first_chunk()?);
            if kind == GRANT {
                self.granted = tag;
                self.incoming.drain(..HEADER_BYTES);
                continue;
            }
            let Some(kind) = Kind::from_code(kind).filter(|_| len <= PACKET_BYTES) else {
                self.incoming.clear();
                self.end(PortFault::Header);
                return None;
            };
            if self.incoming.len() < HEADER_BYTES + len {
                return None;
            }
            let envelope = Envelope { kind, context, tag, total: len as u64 };
            return Some(Arrival { peer: self.peer, envelope, len, token: () });
        }
    }
}

fn is_temporary(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

impl PacketPort for PipePort {
    type Token = ();

    fn packet_bytes(&self) -> usize {
        PACKET_BYTES
    }

    fn send(
        &mut self,
        _: PeerId,
        envelope: &Envelope,
        mut pieces: PacketPieces<'_>,
    ) -> Result<bool, PeerFault> {
        if self.outgoing.len() > WAITING {
            self.flush();
            return Ok(false);
        }
        let Envelope { kind, context, tag, .. } = *envelope;
        self.outgoing.extend_from_slice(&encode((kind as u8, context, pieces.len(), tag)));
        pieces.each(|piece| self.outgoing.extend_from_slice(piece));
        self.traffic.sent += 1;
        self.flush();
        Ok(true)
    }

    fn poll(&mut self) -> Polled<()> {
        self.flush();
        let mut arrival = self.next_packet();
        if arrival.is_none() {
            self.fill();
            arrival = self.next_packet();
        }
        match (arrival, self.fault) {
            (Some(arrival), _) => Polled::Packet(arrival),
            (None, Some(fault)) => {
                self.fault = None;
                Polled::Fault(PeerFault { peer: self.peer, fault })
            }
            (None, None) => Polled::Idle,
        }
    }

    fn poll_peer(&mut self, _: PeerId) -> Polled<()> {
        self.poll()
    }

    fn read(&self, _: &Arrival<()>, at: usize, to: &mut [u8]) -> bool {
        to.copy_from_slice(&self.incoming[HEADER_BYTES + at..][..to.len()]);
        true
    }

    fn release(&mut self, arrival: Arrival<()>) {
        self.traffic.received += 1;
        // After a close, nothing is kept.
        let len = (HEADER_BYTES + arrival.len).min(self.incoming.len());
        self.incoming.drain(..len);
    }

    fn grant(&mut self, _: PeerId, units: u64) {
        self.outgoing.extend_from_slice(&encode((GRANT, 0, 0, units)));
        self.flush();
    }

    fn granted(&self, _: PeerId) -> u64 {
        self.granted
    }

    fn traffic(&self, _: PeerId) -> TrafficCounters {
        self.traffic
    }

    fn close(&mut self, _: PeerId) {
        if let Some(stream) = self.stream.take() {
            // A stream that the peer has closed cannot be shut down, and need not be.
            let _ = stream.shutdown(Shutdown::Both);
        }
        (self.fault, self.ended) = (None, true);
        self.outgoing.clear();
        self.incoming.clear();
    }
}
