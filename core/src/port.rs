//! What the engine asks of a transport.
//!
//! A [`MessagePort`] carries packets between this process and its peers, in order for each pair. A
//! [`MemoryPort`](memory::MemoryPort) writes and reads remote memory. A [`Channel`](channel::Channel) is a message port over a
//! memory port.
#![deny(unsafe_code)]

use crate::counters::Traffic;
use crate::payload::{BorrowedGather, BorrowedRecv};
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

/// Why a peer's connection is over: it did what an honest peer never does, or see [`PortFault::is_innocent`]. The others are
/// not touched.
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
    /// A packet answers nothing that is under way, or says what no honest peer says.
    #[error("a {kind:?} packet does not fit what is under way")]
    Protocol {
        /// What the packet is.
        kind: Kind,
    },
    /// It takes part in another agreement than the one that is due ([`agreement`](crate::agreement)), or says that there were
    /// so many as there can't have been.
    #[error(
        "it takes part in agreement {number}, and {due} is due: readmit a rank between the same two everywhere"
    )]
    Agreement {
        /// The number that it says.
        number: u64,
        /// The next, as far as is known here.
        due: u64,
    },
    /// More requests than a target has to answer at once.
    #[error("it has more one-sided operations under way than the window allows")]
    Window,
    /// A peer sent more than it was promised room for.
    #[error("it sent {units} units of 64 bytes more than it had credit for")]
    Credit {
        /// How much more.
        units: u64,
    },
    /// A packet of a channel has a header that no honest peer writes.
    #[error("a packet has a malformed header")]
    Header,
    /// A peer of a channel sent a packet for which we had promised no receive.
    #[error("it sent a packet for which it had no credit")]
    Overdrawn,
    /// A packet of a channel came twice, or before its time.
    #[error("packet {sequence} came twice, or is beyond the window")]
    Sequence {
        /// Its number.
        sequence: u32,
    },
    /// A connection of a channel has ended.
    #[error("connection lost: {0}")]
    Lost(LostError),
    /// A work request of a channel failed.
    #[error("a work request failed: {0}")]
    Work(WorkError),
    /// A work request of a channel was refused.
    #[error("a work request was refused: {0}")]
    Post(PostError),
    /// We have no memory for what it sent, and it is not to be lost unnoticed.
    #[error("this process has no memory for an active message of {len} bytes")]
    Memory {
        /// Its bytes.
        len: usize,
    },
}

impl PortFault {
    /// Whether the peer may have kept to the rules.
    pub const fn is_innocent(&self) -> bool {
        matches!(self, Self::Lost(_) | Self::Work(_) | Self::Post(_) | Self::Memory { .. })
    }
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
    /// Kind, context, tag, payload bytes.
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

/// What came of reading a peer's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pulled {
    /// All bytes are here.
    Done,
    /// Not these bytes: the address is not one that can be read. Other messages may fare better.
    Unreadable,
    /// Never again from this peer: the kernel refuses it, or the process is gone.
    Refused,
}

/// A large message that receiver and sender copy together, each a part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// The sender's request.
    pub request: u64,
    /// Where the message's first byte goes in the receiver's memory.
    pub address: u64,
    /// First byte to copy.
    pub start: u64,
    /// End of the bytes to copy.
    pub end: u64,
}

/// Bytes of the message, to be copied by whoever is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// The first.
    pub start: u64,
    /// Their end.
    pub end: u64,
}

/// What the receiver of a [`Share`] is to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Copy these.
    Copy(Part),
    /// The sender is about to leave: ask again.
    Wait,
    /// Nothing: everything is there.
    Done,
}

/// A transport that carries packets.
///
/// Every call does a bounded amount of work and never blocks. A packet that [`MessagePort::poll`] returned is
/// read, and then released, before the next poll.
///
/// It is a safe trait: memory of this process is lent to a port by slices, for the length of a call. No unsafe code relies on
/// what a port does with them, or reports. Addresses in [`MessagePort::pull`] and [`MessagePort::push`] are those of the peer's
/// memory, which the kernel checks.
pub trait MessagePort {
    /// Where an arrived packet is.
    type Token: Copy;

    /// The most payload bytes of one packet, at least 256.
    fn packet_bytes(&self) -> usize;

    /// Reserves room, fills it and commits it, in one call. False when there is no room now.
    ///
    /// # Errors
    /// A peer (not always `peer`) broke the rules; nothing was sent.
    fn send(&mut self, peer: PeerId, envelope: &Envelope, payload: &[u8]) -> Result<bool, PeerFault>;

    /// Whether [`MessagePort::send_word`] may be called.
    fn sends_words(&self) -> bool {
        false
    }

    /// The critical path of [`MessagePort::send`]: sends a whole message of a word, if that takes no more than to write it.
    /// Says whether [`MessagePort::settle_send`] is to follow. `None` says nothing: [`MessagePort::send`] does.
    #[inline(always)]
    fn send_word(&mut self, peer: PeerId, context: u16, tag: u64, word: Word) -> Option<bool> {
        let _ = (peer, context, tag, word);
        None
    }

    /// As [`MessagePort::send_word`], of a whole message for which a fastbox is too small, if that takes no more than to copy it.
    #[inline(always)]
    fn send_copy(&mut self, peer: PeerId, context: u16, tag: u64, bytes: &[u8]) -> Option<bool> {
        let _ = (peer, context, tag, bytes);
        None
    }

    /// What is rarely to be done after [`MessagePort::send_word`] and [`MessagePort::send_copy`].
    fn settle_send(&mut self, peer: PeerId) {
        let _ = peer;
    }

    /// As [`MessagePort::send`], of a payload in two pieces: what a protocol puts before the user's bytes, and those.
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

    /// As [`MessagePort::send`], of `envelope.total` bytes of a list, from `at` on, which there are.
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

    /// How the packets of kind `Data` that follow are to be filled, as their receiver asks. A port may know better, or fill nothing.
    #[inline]
    fn fill_data(&mut self, peer: PeerId, stores: Stores) {
        let _ = (peer, stores);
    }

    /// The next packet, or a fault, or nothing.
    fn poll(&mut self) -> Polled<Self::Token>;

    /// The critical path in one step: if the packet that a poll would find first is a whole small message, and `wanted`,
    /// copies it into `to` (what fits), releases it, and says whose it was and what. `None` says nothing.
    #[inline(always)]
    fn take(
        &mut self,
        wanted: impl FnOnce(PeerId, &Envelope) -> bool,
        to: &mut BorrowedRecv<'_>,
    ) -> Option<(PeerId, Envelope)> {
        let _ = (wanted, to);
        None
    }

    /// As [`MessagePort::take`], of a message of a word in this context, from this peer or, without one, from whomever a poll
    /// would look at first. Says whose it was, its tag, what it was, and whether [`MessagePort::settle_take`] is to follow.
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

    /// What is rarely to be done after [`MessagePort::take_word`].
    fn settle_take(&mut self, peer: PeerId) {
        let _ = peer;
    }

    /// As [`MessagePort::poll`], for packets of one peer only, wherever they are: to the last one, so that a peer that is
    /// gone can be let go of.
    fn poll_peer(&mut self, peer: PeerId) -> Polled<Self::Token>;

    /// Whether something may be there for [`MessagePort::poll`] where [`MessagePort::take`] looks; as cheap as that.
    fn has_next(&self) -> bool {
        false
    }

    /// Between two looks that found nothing: lets the core rest for some ten nanoseconds, or uses the time for something that makes
    /// later calls faster and takes about as long.
    fn pause(&mut self) {
        spin_hint();
    }

    /// Copies payload bytes of an arrived packet, from `at`, into `to`; `at + to.len()` is at most its size.
    fn read(&self, arrival: &Arrival<Self::Token>, at: usize, to: &mut [u8]);

    /// As [`MessagePort::read`], past the caches where that can be: the packet is of a message that they have no room for.
    fn read_past_caches(&self, arrival: &Arrival<Self::Token>, at: usize, to: &mut [u8]) {
        self.read(arrival, at, to);
    }

    /// Finishes with a packet: its memory goes back to the sender.
    fn release(&mut self, arrival: Arrival<Self::Token>);

    /// A receive from this peer was posted: look for its packets first (paper 4, section 3.1).
    fn expect(&mut self, peer: PeerId);

    /// Promises the peer room for so many units in all, since the start, and wakes it if it may wait for that.
    fn grant(&mut self, peer: PeerId, units: u64);

    /// Units in all that the peer promises us room for, as it says.
    fn granted(&self, peer: PeerId) -> u64;

    /// A steady clock of any unit, read in some tens of nanoseconds, by which the engine learns whether messages are pulled or
    /// streamed faster. `None`: what can be pulled is pulled.
    fn ticks(&self) -> Option<u64> {
        None
    }

    /// Whether [`MessagePort::pull`] may be tried.
    fn can_pull(&self, peer: PeerId) -> bool {
        let _ = peer;
        false
    }

    /// Fills `to` from `address` in the peer's memory, in one copy. What `to` holds is unspecified unless it is done.
    fn pull(&mut self, peer: PeerId, address: u64, to: &mut [u8]) -> Pulled {
        let _ = (peer, address, to);
        Pulled::Refused
    }

    /// Opens a message from this peer for both sides to copy; the one before is done. False when the port can't.
    fn open_share(&mut self, peer: PeerId, share: &Share) -> bool {
        let _ = (peer, share);
        false
    }

    /// What the receiver is to do next; what it was given before it has copied.
    fn next_turn(&mut self, peer: PeerId) -> Turn {
        let _ = peer;
        Turn::Done
    }

    /// Lets the sender claim nothing more: [`MessagePort::next_turn`] then tells what is left.
    fn close_share(&mut self, peer: PeerId) {
        let _ = peer;
    }

    /// A share that the peer, as receiver, has opened and that was not returned before. Nothing of it is checked.
    fn find_share(&mut self, peer: PeerId) -> Option<Share> {
        let _ = peer;
        None
    }

    /// Joins the share found last, as sender, and claims a part that ends at `end`. `None` when it is closed by now.
    fn join_share(&mut self, peer: PeerId, end: u64) -> Option<Part> {
        let _ = (peer, end);
        None
    }

    /// Claims the next part. `None` when there is none.
    fn next_part(&mut self, peer: PeerId) -> Option<Part> {
        let _ = peer;
        None
    }

    /// The part claimed last is written, or not. The receiver does not wait for the next one.
    fn end_part(&mut self, peer: PeerId, part: Part, written: bool) {
        let _ = (peer, part, written);
    }

    /// Copies `from` to `address` in the peer's memory. False when it can't be done.
    fn push(&mut self, peer: PeerId, address: u64, from: &[u8]) -> bool {
        let _ = (peer, address, from);
        false
    }

    /// What was done for this peer, until it was let go of ([`MessagePort::close`]).
    fn traffic(&self, peer: PeerId) -> Traffic;

    /// The peer is gone, or broke the rules: no more packets to or from it; what it held of ours comes back.
    fn close(&mut self, peer: PeerId);
}
