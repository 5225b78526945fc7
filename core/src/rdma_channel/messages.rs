//! Pointers as messages, for ports on which a flag in memory proves nothing.
//!
//! A message holds all pointers of its sender. Its arrival proves that the writes posted before it are placed. Each
//! message consumes a receive of the peer, and on some fabrics a message without a receive ends the connection. An end
//! therefore never has more messages outstanding than the peer has receives, and each message also reports how many
//! messages its sender has seen, and so how many receives are posted again.
//!
//! Two rules exclude that both ends wait for each other:
//! - the last receive of the peer is used only by a message that reports receives which the peer does not know of;
//! - an end that has [`REPORT_AT`] such receives to report does so without other reason. It gives more than it
//!   takes, so idle ends do not exchange reports forever.
//!
//! Both ends must post at least [`LEAST_RECEIVES`].
#![forbid(unsafe_code)]

use super::PipeError;
#[cfg(nemesia_injected_fault)]
use super::fault::{PipeFault, injected};
use super::link::{PipeLink, PipeWork, posted};
use super::pointer::{POINTERS, Pointer};
use super::shape::{SLOT_BYTES, SLOTS};
use crate::port::memory::{CompletionSource, MemoryPort, ReceiveQueue, Slice, Work};

/// The fewest receives that the rules above need.
pub(super) const LEAST_RECEIVES: u32 = 3;
/// The receives to report without other reason.
const REPORT_AT: u64 = 2;

/// The words of a message: the pointers, and the number of messages seen.
const WORDS: usize = POINTERS + 1;

/// The pointers of an end that sends and receives messages.
#[derive(Debug)]
pub(super) struct PointerMessages {
    ours: [u64; POINTERS],
    published: [u64; POINTERS],
    theirs: [u64; POINTERS],
    /// Whether this end may send: it connected, or something has arrived.
    may_speak: bool,
    /// Whether a first message is still to be sent, so that the peer may speak.
    opens: bool,
    /// The receives that each end has posted at first.
    receives: u64,
    /// Messages sent, those whose slots are free again, and those that the peer has seen.
    sent: u64,
    completed: u64,
    seen_by_peer: u64,
    /// Messages of the peer that were seen, and those of which the peer knows that.
    seen: u64,
    reported: u64,
}

impl PointerMessages {
    /// Posts the receives. The connecting end sends first.
    ///
    /// # Errors
    /// The port has too few receives, or refuses one.
    pub(super) fn new<P: MemoryPort>(
        port: &mut P,
        link: &PipeLink,
        connects: bool,
    ) -> Result<Self, PipeError> {
        let facts = port.facts();
        if facts.receive_depth < LEAST_RECEIVES {
            return Err(PipeError::Receives { found: facts.receive_depth, needed: LEAST_RECEIVES });
        }
        let receives = u64::from(facts.receive_depth).min(SLOTS);
        let may_speak = connects || !facts.active_speaks_first;
        for slot in 0..receives {
            receive(port, link, slot)?;
        }
        Ok(Self {
            ours: [0; POINTERS],
            published: [0; POINTERS],
            theirs: [0; POINTERS],
            may_speak,
            opens: connects,
            receives,
            sent: 0,
            completed: 0,
            seen_by_peer: 0,
            seen: 0,
            reported: 0,
        })
    }

    pub(super) const fn theirs(&self, pointer: Pointer) -> u64 {
        self.theirs[pointer as usize]
    }

    pub(super) const fn publish(&mut self, pointer: Pointer, value: u64) {
        self.ours[pointer as usize] = value;
    }

    pub(super) const fn may_speak(&self) -> bool {
        self.may_speak
    }

    /// Returns whether there is no reason to send.
    pub(super) fn is_clean(&self) -> bool {
        self.ours == self.published && !self.opens && self.seen - self.reported < REPORT_AT
    }

    pub(super) fn push<P: MemoryPort>(&mut self, port: &mut P, link: &PipeLink) -> Result<(), PipeError> {
        if self.is_clean() || !self.may_speak || self.sent - self.completed >= SLOTS {
            return Ok(());
        }
        let outstanding = self.sent - self.seen_by_peer;
        let least = if self.seen > self.reported { 1 } else { 2 };
        #[cfg(nemesia_injected_fault)]
        let least = if injected(PipeFault::ForgetReserve) { 1 } else { least };
        if outstanding + least > self.receives {
            return Ok(());
        }
        let [head, tail, acks, end] = self.ours;
        let mut bytes = [0; 8 * WORDS];
        for (to, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip([head, tail, acks, end, self.seen]) {
            *to = word.to_le_bytes();
        }
        let slot = link.shape.send_slot(0, self.sent);
        if !link.outbox.view.write(slot, &bytes) {
            return Err(PipeError::Memory);
        }
        let work = Work::new(link.connection, PipeWork::Pointer(0).id(self.sent));
        let part = [Slice { region: link.outbox.region, offset: slot, len: bytes.len() as u32 }];
        if posted(port.send(work, CompletionSource::Gather(&part), None))? {
            (self.sent, self.published, self.reported, self.opens) =
                (self.sent + 1, self.ours, self.seen, false);
        }
        Ok(())
    }

    /// Counts a completed send.
    pub(super) const fn on_sent(&mut self, number: u64) {
        self.completed = number + 1;
    }

    /// Takes a message of the peer out of a slot, and posts the receive again.
    pub(super) fn on_received<P: MemoryPort>(
        &mut self,
        port: &mut P,
        link: &PipeLink,
        (slot, len): (u64, u32),
    ) -> Result<(), PipeError> {
        let mut bytes = [0; 8 * WORDS];
        if len as usize != bytes.len() || slot >= self.receives {
            let limit = bytes.len() as u64;
            return Err(PipeError::Violated { what: "length of a message", found: len.into(), limit });
        }
        if !link.outbox.view.read(link.shape.receive_slot(slot), &mut bytes) {
            return Err(PipeError::Memory);
        }
        let mut words = [0; WORDS];
        for (to, word) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
            *to = u64::from_le_bytes(*word);
        }
        let [head, tail, acks, end, seen_by_peer] = words;
        if seen_by_peer > self.sent {
            let (found, limit) = (seen_by_peer, self.sent);
            return Err(PipeError::Violated { what: "number of messages seen", found, limit });
        }
        self.seen_by_peer = self.seen_by_peer.max(seen_by_peer);
        for (known, word) in self.theirs.iter_mut().zip([head, tail, acks, end]) {
            *known = (*known).max(word);
        }
        self.may_speak = true;
        receive(port, link, slot)?;
        self.seen += 1;
        Ok(())
    }
}

/// Posts the receive of a slot.
fn receive<P: MemoryPort>(port: &mut P, link: &PipeLink, slot: u64) -> Result<(), PipeError> {
    let offset = link.shape.receive_slot(slot);
    let part = [Slice { region: link.outbox.region, offset, len: SLOT_BYTES as u32 }];
    let queue = ReceiveQueue::Of(link.connection);
    match port.receive(queue, PipeWork::Receive.id(slot), &part) {
        // A connection that is lost needs no receives; an event reports it.
        Ok(()) | Err(crate::port::memory::PostError::NotReady) => Ok(()),
        Err(error) => Err(PipeError::Post(error)),
    }
}
