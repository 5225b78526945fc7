//! The interface that the engine requires of a transport.
//!
//! A [`MessagePort`] carries packets between this process and its peers, in order for each pair. A
//! [`MemoryPort`](memory::MemoryPort) accesses remote memory. A [`Channel`](channel::Channel) is a message
//! port over a memory port.
#![deny(unsafe_code)]

use crate::counters::TrafficCounters;
use crate::payload::{BOUNCE, BorrowedGather, BorrowedRecv, Bounce, Exposed};
use crate::shared::fastbox::{FastboxFault, Word};
use crate::shared::pool::ReturnFault;
use crate::sync::spin_hint;
pub use crate::wire::rendezvous::Stores;
use crate::wire::{Envelope, Kind};

pub mod channel;
pub mod memory;

use memory::{LostError, PostError, WorkError};

/// A peer's rank in the world.
pub type PeerId = u32;

/// The reason why a peer's connection failed: the peer violated the protocol, except in the cases of
/// [`PortFault::is_innocent`]. Other peers are not affected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PortFault {
    /// An invalid value in the peer's fastbox, or in its position in this process's fastbox.
    #[error("{0}")]
    Fastbox(#[from] FastboxFault),
    /// An invalid returned cell.
    #[error("{0}")]
    Return(#[from] ReturnFault),
    /// A packet is out of order, and an earlier one does not exist.
    #[error("packet {expected} is missing, but a later one has arrived")]
    Gap {
        /// The sequence number of the missing packet.
        expected: u64,
    },
    /// A cell's header is inconsistent.
    #[error("cell {cell} has a malformed header")]
    Malformed {
        /// Number of the cell.
        cell: u32,
    },
    /// A packet answers no operation in progress, or has invalid content.
    #[error("a {kind:?} packet is invalid, or matches no operation in progress")]
    Protocol {
        /// Kind of the packet.
        kind: Kind,
    },
    /// The peer takes part in another agreement than the next one ([`agreement`](crate::agreement)), or
    /// reports an impossible number of agreements.
    #[error(
        "it takes part in agreement {number}, but {due} is next: readmit a rank between the same two everywhere"
    )]
    Agreement {
        /// The number that the peer sent.
        number: u64,
        /// The next agreement, as far as this process knows.
        due: u64,
    },
    /// More requests than the target must be able to answer at once.
    #[error("it has more one-sided operations in flight than the window allows")]
    Window,
    /// A peer sent more than its credit.
    #[error("it exceeded its credit by {units} units of 64 bytes")]
    Credit {
        /// The excess in units.
        units: u64,
    },
    /// A packet of a channel has an invalid header.
    #[error("a packet has a malformed header")]
    Header,
    /// A peer of a channel sent a packet without credit for a receive.
    #[error("it sent a packet for which it had no credit")]
    Overdrawn,
    /// A packet of a channel arrived twice, or outside the window.
    #[error("packet {sequence} arrived twice, or is outside the window")]
    Sequence {
        /// Sequence number of the packet.
        sequence: u32,
    },
    /// A connection of a channel was lost.
    #[error("connection lost: {0}")]
    Lost(LostError),
    /// A work request of a channel failed.
    #[error("a work request failed: {0}")]
    Work(WorkError),
    /// A work request of a channel was refused.
    #[error("a work request was refused: {0}")]
    Post(PostError),
    /// This process has no memory for the message. The connection fails so that the message is not lost
    /// silently.
    #[error("this process has no memory for an active message of {len} bytes")]
    Memory {
        /// Length of the message in bytes.
        len: usize,
    },
}

impl PortFault {
    /// Returns whether the peer may have obeyed the protocol.
    pub const fn is_innocent(&self) -> bool {
        matches!(self, Self::Lost(_) | Self::Work(_) | Self::Post(_) | Self::Memory { .. })
    }
}

/// A fault and the peer that it concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("peer {peer}: {fault}")]
pub struct PeerFault {
    /// Rank of the peer.
    pub peer: PeerId,
    /// The fault.
    pub fault: PortFault,
}

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
    /// A peer violated the protocol.
    Fault(PeerFault),
}

/// The result of reading a peer's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pulled {
    /// All bytes were read.
    Done,
    /// These bytes cannot be read, because the address is not readable. Other messages may succeed.
    Unreadable,
    /// No read from this peer will succeed: the kernel refuses it, or the process has ended.
    Refused,
}

/// A large message of which receiver and sender each copy a part (sender-assisted copy).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AssistedCopy {
    /// Identifier of the sender's request.
    pub request: u64,
    /// Address of the message's first byte in the receiver's memory.
    pub address: u64,
    /// First byte to copy.
    pub start: u64,
    /// End of the bytes to copy.
    pub end: u64,
}

/// A range of bytes of the message, which one side copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// First byte.
    pub start: u64,
    /// End of the range.
    pub end: u64,
}

/// The receiver's next step for a [`AssistedCopy`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextChunk {
    /// The receiver copies these bytes.
    Copy(Part),
    /// The sender is about to leave; the receiver polls again.
    Wait,
    /// All bytes have been copied.
    Done,
}

/// A transport that carries packets.
///
/// Every call does a bounded amount of work and never blocks. The engine reads and releases a packet that
/// [`MessagePort::poll`] returned before the next poll.
///
/// It is a safe trait: memory of this process is lent to a port by slices, for the length of a call. No
/// unsafe code relies on what a port does with them, or on its reports. Addresses in [`MessagePort::pull`]
/// and [`MessagePort::push`] belong to the peer's memory, and the kernel checks them.
pub trait MessagePort {
    /// The location of a received packet.
    type Token: Copy;

    /// Returns the largest payload of one packet, at least 256 bytes.
    fn packet_bytes(&self) -> usize;

    /// Sends a packet: reserves space, fills it and commits it in one call. Returns `false` if there is no
    /// space now.
    ///
    /// # Errors
    /// A peer (not always `peer`) violated the protocol; nothing was sent.
    fn send(&mut self, peer: PeerId, envelope: &Envelope, payload: &[u8]) -> Result<bool, PeerFault>;

    /// Returns whether [`MessagePort::send_word`] may be called.
    fn sends_words(&self) -> bool {
        false
    }

    /// The critical path of [`MessagePort::send`]: sends a whole message of one word, if only the word must
    /// be written. Returns whether the caller must call [`MessagePort::settle_send`] next. `None` if nothing
    /// was sent: the caller uses [`MessagePort::send`].
    #[inline(always)]
    fn send_word(&mut self, peer: PeerId, context: u16, tag: u64, word: Word) -> Option<bool> {
        let _ = (peer, context, tag, word);
        None
    }

    /// As [`MessagePort::send_word`], for a whole message that is too large for a fastbox, if the message
    /// only needs to be copied.
    #[inline(always)]
    fn send_copy(&mut self, peer: PeerId, context: u16, tag: u64, bytes: &[u8]) -> Option<bool> {
        let _ = (peer, context, tag, bytes);
        None
    }

    /// Does the rare work after [`MessagePort::send_word`] and [`MessagePort::send_copy`].
    fn settle_send(&mut self, peer: PeerId) {
        let _ = peer;
    }

    /// As [`MessagePort::send`], for a payload in two pieces: a protocol header and the user's bytes.
    ///
    /// # Errors
    /// As [`MessagePort::send`].
    fn send_parts(
        &mut self,
        peer: PeerId,
        envelope: &Envelope,
        head: &[u8],
        body: &[u8],
    ) -> Result<bool, PeerFault>;

    /// As [`MessagePort::send`], for `envelope.total` bytes of a list from `at` on. The list must contain
    /// them.
    ///
    /// # Errors
    /// As for [`MessagePort::send`].
    fn send_list(
        &mut self,
        peer: PeerId,
        envelope: &Envelope,
        from: &mut BorrowedGather<'_>,
        at: usize,
    ) -> Result<bool, PeerFault>;

    /// Returns the largest number of bytes of exposed memory that one packet carries.
    fn exposed_bytes(&self) -> usize {
        self.packet_bytes().min(BOUNCE)
    }

    /// As [`MessagePort::send`], for `envelope.total` bytes of exposed memory from `at` on, at most
    /// [`MessagePort::exposed_bytes`]. The memory must contain them.
    ///
    /// # Errors
    /// As for [`MessagePort::send`].
    fn send_exposed(
        &mut self,
        peer: PeerId,
        envelope: &Envelope,
        from: &Exposed,
        at: usize,
    ) -> Result<bool, PeerFault> {
        self.send(peer, envelope, from.view(at, envelope.total as usize, &mut Bounce::new()))
    }

    /// Sets the copy policy for later packets of kind `Data`, which their receiver has requested. A port may
    /// ignore it.
    #[inline]
    fn set_data_stores(&mut self, peer: PeerId, stores: Stores) {
        let _ = (peer, stores);
    }

    /// Returns the next packet, a fault, or nothing.
    fn poll(&mut self) -> Polled<Self::Token>;

    /// The critical path of receiving, in one step. If a poll would first find a whole small message, and
    /// `wanted` accepts it, copies the bytes that fit into `to`, releases the packet, and returns its sender
    /// and envelope. `None` if nothing was taken: the caller polls.
    #[inline(always)]
    fn take(
        &mut self,
        wanted: impl FnOnce(PeerId, &Envelope) -> bool,
        to: &mut BorrowedRecv<'_>,
    ) -> Option<(PeerId, Envelope)> {
        let _ = (wanted, to);
        None
    }

    /// As [`MessagePort::take`], for a message of one word in this context, from this peer; without a peer,
    /// from the one that a poll checks first. Returns the sender, the tag, the word, and whether the caller
    /// must call [`MessagePort::settle_take`] next.
    #[inline(always)]
    fn take_word(
        &mut self,
        from: Option<PeerId>,
        context: u16,
        wanted: impl FnOnce(u64) -> bool,
    ) -> Option<(PeerId, u64, Word, bool)> {
        let _ = (from, context, wanted);
        None
    }

    /// Does the rare work after [`MessagePort::take_word`].
    fn settle_take(&mut self, peer: PeerId) {
        let _ = peer;
    }

    /// As [`MessagePort::poll`], for all packets of one peer, wherever they are. After the last packet a
    /// failed peer can be released.
    fn poll_peer(&mut self, peer: PeerId) -> Polled<Self::Token>;

    /// Returns whether [`MessagePort::poll`] may find a packet where [`MessagePort::take`] looks. The cost is
    /// the same as that of `take`.
    fn has_next(&self) -> bool {
        false
    }

    /// Pauses between two polls that found nothing: the core idles for some ten nanoseconds, or does work of
    /// about that length that speeds up later calls.
    fn pause(&mut self) {
        spin_hint();
    }

    /// Copies payload bytes of a received packet, from `at` on, into `to`. `at + to.len()` is at most its
    /// size.
    fn read(&self, arrival: &Arrival<Self::Token>, at: usize, to: &mut [u8]);

    /// As [`MessagePort::read`], with non-temporal stores where possible: the message is too large for the
    /// caches.
    fn read_non_temporal(&self, arrival: &Arrival<Self::Token>, at: usize, to: &mut [u8]) {
        self.read(arrival, at, to);
    }

    /// Releases a packet: its memory returns to the sender.
    fn release(&mut self, arrival: Arrival<Self::Token>);

    /// Prioritizes polling for packets of this peer, after a receive was posted (paper 4, section 3.1).
    fn prioritize(&mut self, peer: PeerId);

    /// Grants the peer a total credit of `units` units since the start, and wakes the peer if it may wait for
    /// credit.
    fn grant(&mut self, peer: PeerId, units: u64);

    /// Returns the total credit in units that the peer has granted, as the peer wrote it.
    fn granted(&self, peer: PeerId) -> u64;

    /// Returns a monotonic clock of any unit that takes some tens of nanoseconds to read. The engine uses it
    /// to learn whether pulling or streaming is faster. `None`: the engine pulls whenever possible.
    fn ticks(&self) -> Option<u64> {
        None
    }

    /// Returns whether [`MessagePort::pull`] may be tried.
    fn can_pull(&self, peer: PeerId) -> bool {
        let _ = peer;
        false
    }

    /// Fills `to` from `address` in the peer's memory, in one copy. If the result is not `Done`, the content
    /// of `to` is unspecified.
    fn pull(&mut self, peer: PeerId, address: u64, to: &mut [u8]) -> Pulled {
        let _ = (peer, address, to);
        Pulled::Refused
    }

    /// Opens a message from this peer for sender-assisted copy. The preceding share must be complete. Returns
    /// `false` if the port does not support this.
    fn open_assist(&mut self, peer: PeerId, assist: &AssistedCopy) -> bool {
        let _ = (peer, assist);
        false
    }

    /// Returns the receiver's next step. The part that was returned before must have been copied.
    fn next_chunk(&mut self, peer: PeerId) -> NextChunk {
        let _ = peer;
        NextChunk::Done
    }

    /// Closes the share: the sender can claim nothing more. [`MessagePort::next_chunk`] then returns the
    /// rest.
    fn close_assist(&mut self, peer: PeerId) {
        let _ = peer;
    }

    /// Returns a share that the peer, as receiver, has opened and that was not returned before. Its fields
    /// are unchecked.
    fn find_assist(&mut self, peer: PeerId) -> Option<AssistedCopy> {
        let _ = peer;
        None
    }

    /// Joins, as sender, the share found last and claims a part that ends at `end`. `None` if the share is
    /// closed by now.
    fn join_assist(&mut self, peer: PeerId, end: u64) -> Option<Part> {
        let _ = (peer, end);
        None
    }

    /// Claims the next part. `None` if there is none.
    fn next_part(&mut self, peer: PeerId) -> Option<Part> {
        let _ = peer;
        None
    }

    /// Ends the claimed part; `written` says whether it was written. The receiver does not wait for the next
    /// part.
    fn end_part(&mut self, peer: PeerId, part: Part, written: bool) {
        let _ = (peer, part, written);
    }

    /// Copies `from` to `address` in the peer's memory. Returns `false` if this is impossible.
    fn push(&mut self, peer: PeerId, address: u64, from: &[u8]) -> bool {
        let _ = (peer, address, from);
        false
    }

    /// Returns the traffic with this peer until its connection was closed ([`MessagePort::close`]).
    fn traffic(&self, peer: PeerId) -> TrafficCounters;

    /// Closes the connection to a peer that failed or violated the protocol: no more packets are exchanged,
    /// and the memory that the peer held is reclaimed.
    fn close(&mut self, peer: PeerId);
}
