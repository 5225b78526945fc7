//! The interface that the engine requires of a transport.
//!
//! A *port* is one way to reach peers. What the engine asks of a port comes in four parts, so that a transport
//! provides only what it can:
//!
//! - [`PacketPort`]: packets between this process and its peers, in order for each pair. It suffices for every
//!   protocol of the engine. A port that provides nothing else is passed to the engine as [`PacketsOnly`].
//! - [`ShortPath`] (optional): the critical path, which sends or takes a whole small message in one call.
//! - [`RemoteAccess`] (optional): access to the memory of peers, with completion now or later. With it large
//!   messages move without intermediate copies; without it they are streamed in packets.
//! - [`SharedCopy`] (optional): the sender-assisted copy of shared memory.
//!
//! [`Pair`] makes one port of two, of which each reaches some of the peers. A
//! [`MemoryPort`](memory::MemoryPort) is an interface one layer below: an RDMA fabric. A
//! [`Channel`](channel::Channel) is a port over it. A [`PlacementPort`](placement::PlacementPort) is a memory
//! port in software.
#![deny(unsafe_code)]

use core::time::Duration;

use crate::counters::TrafficCounters;
use crate::payload::{BorrowedGather, Exposed, GatherList};
use crate::wire::Envelope;
pub use crate::wire::PeerId;
pub use crate::wire::rendezvous::Stores;

pub mod channel;
mod fault;
pub mod memory;
mod packets_only;
mod pair;
pub mod placement;
mod remote;
mod runs;
mod shared_copy;
mod short;

pub use fault::{PeerFault, PortFault};
pub use packets_only::PacketsOnly;
pub use pair::{Either, Pair, Route};
pub use remote::{
    AccessError, AccessShape, Accessed, AccessedRanges, CompletedAccess, DirectAccess, Exposure,
    RemoteAccess, Rendezvous,
};
pub use runs::{RemoteRun, RunTable, describe_runs};
pub use shared_copy::{AssistedCopy, NextChunk, Part, SharedCopy};
pub use short::{SHORT_BYTES, ShortPath};

/// A packet that has arrived. It stays in place until it is released or held.
#[derive(Clone, Copy, Debug)]
pub struct Arrival<T> {
    /// Rank of the sender.
    pub peer: PeerId,
    /// Kind, context, tag, payload bytes.
    pub envelope: Envelope,
    /// Payload bytes of this packet.
    pub len: usize,
    /// The port's location of the packet.
    pub token: T,
}

/// The result of a poll.
#[derive(Clone, Copy, Debug)]
pub enum Polled<T> {
    /// No packet.
    Idle,
    /// A packet, the next in its sender's order.
    Packet(Arrival<T>),
    /// A peer violated the protocol, or its connection was lost.
    Fault(PeerFault),
}

/// The payload of a packet, in one or several pieces, for the length of one call.
#[derive(Debug)]
pub enum PacketPieces<'a> {
    /// One piece.
    Whole(&'a [u8]),
    /// A protocol header, then the user's bytes.
    Parts(&'a [u8], &'a [u8]),
    /// The second number of bytes of a list, from the first number on. The list contains them.
    List(BorrowedGather<'a>, usize, usize),
    /// As `List`, of memory that this process exposes to its peers.
    Exposed(&'a Exposed, usize, usize),
}

impl PacketPieces<'_> {
    /// Returns the number of bytes.
    #[inline(always)]
    pub const fn len(&self) -> usize {
        match self {
            Self::Whole(bytes) => bytes.len(),
            Self::Parts(head, body) => head.len() + body.len(),
            Self::List(_, _, len) | Self::Exposed(_, _, len) => *len,
        }
    }

    /// Returns whether there are no bytes.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds the pieces to a list; `false`, with nothing added, if they are not one or two.
    pub fn gather<'b>(&'b self, list: &mut GatherList<'b>) -> bool {
        match self {
            Self::Whole(bytes) => list.push(bytes),
            Self::Parts(head, body) => {
                list.push(head);
                list.push(body);
            }
            Self::List(..) | Self::Exposed(..) => return false,
        }
        true
    }

    /// Calls `each` with the pieces in order. Pieces may be empty.
    #[inline]
    pub fn each(&mut self, mut each: impl FnMut(&[u8])) {
        match self {
            Self::Whole(bytes) => each(bytes),
            Self::Parts(head, body) => {
                each(head);
                each(body);
            }
            Self::List(from, at, len) => from.each(*at, *len, |_, piece| each(piece)),
            Self::Exposed(from, at, len) => from.each(*at, *len, |_, piece| each(piece)),
        }
    }

    /// Copies the bytes into `to`, which has exactly their number.
    pub fn copy_to(&mut self, to: &mut [u8]) {
        let mut rest = to;
        self.each(|piece| {
            let (now, later) = core::mem::take(&mut rest).split_at_mut(piece.len());
            now.copy_from_slice(piece);
            rest = later;
        });
    }
}

/// A transport that carries packets: the part that every port provides.
///
/// # What a port guarantees
/// - Packets from one peer arrive exactly once and in the order sent, or the peer fails.
/// - Every call does a bounded amount of work and never blocks.
/// - A peer that fails is reported once, as [`Polled::Fault`], after all packets that arrived before. A stream that
///   ends is [`PortFault::Lost`], and a packet with impossible values is [`PortFault::Header`]. No peer is
///   affected by the failure of another.
/// - The port checks what it reads from peers: the sender, the kind and the length of an arrival are true.
///   Everything else in a packet is checked by the engine.
///
/// # What the engine guarantees
/// - It sends only to peers of the world other than itself, at most [`PacketPort::packet_bytes`] in a packet, or
///   [`PacketPort::eager_bytes`].
/// - It reads and releases a packet that [`PacketPort::poll`] returned before the next poll.
///
/// # Memory and threads
/// It is a safe trait: memory of this process is lent to a port for the length of a call, and no unsafe code
/// relies on what a port does with it, or on its reports. One thread at a time uses a port.
pub trait PacketPort {
    /// The location of a received packet.
    type Token: Copy;

    /// Returns the largest payload of one packet in bytes, at least 256. The number never changes.
    fn packet_bytes(&self) -> usize;

    /// Returns the most bytes of a message to this peer that are better sent at once, in one packet, than announced. A
    /// packet to this peer carries them, even if they are more than [`PacketPort::packet_bytes`], which all peers have
    /// in common. 0: the port prefers neither.
    fn eager_bytes(&self, peer: PeerId) -> usize {
        let _ = peer;
        0
    }

    /// Returns the most bytes of a message to this peer, or from it, that are better sent at once, in several packets,
    /// than announced. 0: a message that does not fit one packet is announced.
    fn unasked_bytes(&self, peer: PeerId) -> usize {
        let _ = peer;
        0
    }

    /// Sends a packet: `envelope`, and the bytes of `pieces`. Returns `false` if there is no space now; the
    /// engine then tries again later, with no other packet to this peer in between.
    ///
    /// The receiver gets the kind, the context and the tag of the envelope. Its `total` is the number of bytes
    /// of the packet, and need not be sent: the receiving port sets it to the length of the arrival.
    ///
    /// The call may come after the peer's connection was lost and before a poll has reported that. The port
    /// then accepts the packet and drops it, or has no space.
    ///
    /// # Errors
    /// A peer (not always `peer`) failed; nothing was sent.
    fn send(
        &mut self,
        peer: PeerId,
        envelope: &Envelope,
        pieces: PacketPieces<'_>,
    ) -> Result<bool, PeerFault>;

    /// Returns whether a message of `len` bytes to this peer had better wait for the next progress step, because others
    /// were sent just before: those that wait leave together. The engine asks only for operations whose caller waits
    /// for their end.
    fn gathers(&self, peer: PeerId, len: usize) -> bool {
        let _ = (peer, len);
        false
    }

    /// Begins or ends a batch: packets to this peer may leave as late as the end of the batch.
    fn set_batch(&mut self, peer: PeerId, is_batch: bool) {
        let _ = (peer, is_batch);
    }

    /// Returns the next packet, a fault, or nothing.
    fn poll(&mut self) -> Polled<Self::Token>;

    /// As [`PacketPort::poll`], for all packets of one peer. After the last packet, a failed peer can be
    /// closed.
    fn poll_peer(&mut self, peer: PeerId) -> Polled<Self::Token>;

    /// Copies payload bytes of a received packet, from `at` on, into `to`. `at + to.len()` is at most its
    /// size. Returns `false` if the peer has ended the connection and has taken the packet back: `to` may then
    /// have other bytes, the packet counts as not received, and the connection is at its end.
    #[must_use]
    fn read(&self, arrival: &Arrival<Self::Token>, at: usize, to: &mut [u8]) -> bool;

    /// Releases a packet: its memory returns to the sender. The packet may be one of a peer that was closed
    /// since the poll; then nothing returns.
    fn release(&mut self, arrival: Arrival<Self::Token>);

    /// Grants the peer a total credit of `units` units of 64 bytes since the start. The number only grows, and
    /// reaches the peer in bounded time even if no packet is sent to it. A grant also wakes a peer that may
    /// wait for credit.
    fn grant(&mut self, peer: PeerId, units: u64);

    /// Returns the total credit in units that the peer has granted, as the peer sent it; 0 before the first
    /// grant of the present connection. The engine checks it.
    fn granted(&self, peer: PeerId) -> u64;

    /// Returns the traffic with the present process of this peer, until its connection was closed
    /// ([`PacketPort::close`]). A packet counts as received when it is polled or released.
    fn traffic(&self, peer: PeerId) -> TrafficCounters;

    /// Closes the connection to a peer that failed or violated the protocol: no more packets are exchanged,
    /// the memory that the peer held is reclaimed, and every access to its memory that is under way has ended
    /// when this call returns ([`RemoteAccess`]).
    fn close(&mut self, peer: PeerId);

    /// Does what depends on time: connections, and limits on waiting. `now` is monotonic, since any start.
    fn advance(&mut self, now: Duration) {
        let _ = now;
    }

    /// Returns a monotonic clock of any unit that takes some tens of nanoseconds to read. The engine uses it
    /// to learn which protocol is faster. `None`: the engine accesses memory whenever possible.
    fn ticks(&self) -> Option<u64> {
        None
    }
}

/// A port with all of its parts: what the engine is generic over.
pub trait Port: PacketPort + ShortPath + RemoteAccess + SharedCopy {}

impl<P: PacketPort + ShortPath + RemoteAccess + SharedCopy> Port for P {}
