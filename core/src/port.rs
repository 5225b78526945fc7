//! What the engine asks of a transport.
//!
//! A [`MessagePort`] carries packets between this process and its peers, in order for each pair. (Memory ports,
//! which write and read remote memory, come with the RDMA transports.)
#![forbid(unsafe_code)]

use crate::payload::RecvBuf;
use crate::shared::fastbox::FastboxFault;
use crate::shared::pool::ReturnFault;
use crate::wire::Envelope;

/// A peer's rank in the world.
pub type PeerId = u32;

/// What a peer did that an honest one never does. Its connection is over; the others are not touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PortFault {
    /// In its fastbox, or in its position in ours.
    #[error("{0}")]
    Fastbox(#[from] FastboxFault),
    /// In the cells that it gave back.
    #[error("{0}")]
    Return(#[from] ReturnFault),
    /// A packet is out of order, and the one before it does not exist.
    #[error("packet {expected} is missing, a later one is here")]
    Gap {
        /// The sequence number that is due.
        expected: u64,
    },
    /// A cell's header contradicts itself.
    #[error("cell {cell} has a malformed header")]
    Malformed {
        /// The cell.
        cell: u32,
    },
    /// A packet does not continue the message that is under way.
    #[error("packet does not fit the message under way")]
    Continuation,
}

/// Which peer did it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("peer {peer}: {fault}")]
pub struct PeerFault {
    /// Its rank.
    pub peer: PeerId,
    /// What it did.
    pub fault: PortFault,
}

/// A packet that has come. It stays where it is until released or held.
#[derive(Clone, Copy, Debug)]
pub struct Arrival<T> {
    /// Who sent it.
    pub peer: PeerId,
    /// Kind, context, tag, size of the message.
    pub envelope: Envelope,
    /// Payload bytes of this packet.
    pub len: usize,
    /// Where it is, for the port.
    pub token: T,
}

/// What a poll found.
#[derive(Clone, Copy, Debug)]
pub enum Polled<T> {
    /// Nothing.
    Idle,
    /// A packet, the next in its sender's order.
    Packet(Arrival<T>),
    /// A peer broke the rules.
    Fault(PeerFault),
}

/// A transport that carries packets.
///
/// Every call does a bounded amount of work and never blocks. A packet that [`MessagePort::poll`] returned is
/// read, and then released or held, before the next poll.
pub trait MessagePort {
    /// Where an arrived packet is.
    type Token: Copy;

    /// The most payload bytes of one packet.
    fn packet_bytes(&self) -> usize;

    /// Reserves room, fills it and commits it, in one call. False when there is no room now.
    ///
    /// # Errors
    /// A peer (not always `peer`) broke the rules; nothing was sent.
    fn send(&mut self, peer: PeerId, envelope: &Envelope, payload: &[u8]) -> Result<bool, PeerFault>;

    /// The next packet, or a fault, or nothing.
    fn poll(&mut self) -> Polled<Self::Token>;

    /// The critical path in one step: if the packet that a poll would find first is a whole small message, and `wanted`,
    /// copies it into `to` (what fits), releases it, and says whose it was and what. `None` says nothing.
    #[inline(always)]
    fn take(
        &mut self,
        wanted: impl FnOnce(PeerId, &Envelope) -> bool,
        to: &mut RecvBuf,
    ) -> Option<(PeerId, Envelope)> {
        let _ = (wanted, to);
        None
    }

    /// As [`MessagePort::poll`], for packets of one peer only, wherever they are: to the last one, so that a peer that is
    /// gone can be let go of.
    fn poll_peer(&mut self, peer: PeerId) -> Polled<Self::Token>;

    /// Copies payload bytes of an arrived packet, from `at`, into `to`; `at + to.len()` is at most its size.
    fn read(&self, arrival: &Arrival<Self::Token>, at: usize, to: &mut [u8]);

    /// Finishes with a packet: its memory goes back to the sender.
    fn release(&mut self, arrival: Arrival<Self::Token>);

    /// Leaves packets of this peer where they are until [`MessagePort::unhold`]: there is no room for them.
    fn hold(&mut self, peer: PeerId);

    /// Takes packets of this peer again.
    fn unhold(&mut self, peer: PeerId);

    /// A receive from this peer was posted: look for its packets first (paper 4, section 3.1).
    fn expect(&mut self, peer: PeerId);

    /// The peer is gone, or broke the rules: no more packets to or from it; what it held of ours comes back.
    fn close(&mut self, peer: PeerId);
}
