//! The sender's end of a ring of chunks.
//!
//! Always `tail, settled <= posted <= staged <= tail + chunks`: a chunk of the staging buffer is filled again only when
//! the peer has released it and the port no longer reads it.
#![forbid(unsafe_code)]

use super::chunk::{ChunkHeader, ChunkKind, HEADER, NUMBER_AT};
#[cfg(nemesia_injected_fault)]
use super::fault::{PipeFault, injected};
use super::link::{PipeLink, PipeWork};
use super::pointer::Pointer;
use super::pointers::Pointers;
use super::{PipeError, checked};
use crate::payload::Gather;
use crate::port::memory::MemoryPort;

/// The sender's end. All fields count chunks.
#[derive(Debug, Default)]
pub(super) struct ChunkSender {
    /// Chunks that were filled in the staging buffer.
    staged: u64,
    /// Chunks whose writes are posted.
    posted: u64,
    /// Chunks whose writes are complete.
    settled: u64,
    /// The replica of the peer's tail: chunks that the peer has released.
    tail: u64,
}

impl ChunkSender {
    /// Takes a tail of the peer, which is untrusted.
    pub(super) fn on_tail(&mut self, tail: u64) -> Result<(), PipeError> {
        self.tail = checked("tail", tail, (self.tail, self.posted))?;
        Ok(())
    }

    /// Returns the number of free chunks. Reads the peer's explicit tail only if without it they do not hold `len`
    /// bytes.
    pub(super) fn room(
        &mut self,
        link: &PipeLink,
        pointers: &mut Pointers,
        len: usize,
    ) -> Result<u64, PipeError> {
        if self.free(link) * u64::from(link.shape.capacity()) < len as u64 {
            self.on_tail(pointers.theirs(link, Pointer::Tail))?;
        }
        Ok(self.free(link))
    }

    fn free(&self, link: &PipeLink) -> u64 {
        let free = self.tail.min(self.settled);
        #[cfg(nemesia_injected_fault)]
        let free = if injected(PipeFault::ReuseStaging) { self.posted } else { free };
        link.shape.chunks() - (self.staged - free)
    }

    /// Fills the next chunk with as many of `len` bytes from `at` on as it takes, and returns how many. The caller has
    /// found room for this chunk and, if `more` is set, for another, which it fills next with what is left.
    pub(super) fn stage(
        &mut self,
        link: &PipeLink,
        (tail, more): (u64, bool),
        from: &mut Gather,
        (at, len): (usize, usize),
    ) -> Result<usize, PipeError> {
        let count = len.min(link.shape.capacity() as usize);
        let places = link.shape.places(self.staged, count as u32);
        self.seal(link, (ChunkKind::Data, count as u32, more && len > count), tail)?;
        link.stage(places.payload, from, (at, count));
        Ok(count)
    }

    /// As [`ChunkSender::stage`], for a chunk that holds these bytes.
    pub(super) fn stage_bytes(
        &mut self,
        link: &PipeLink,
        tail: u64,
        (kind, bytes): (ChunkKind, &[u8]),
    ) -> Result<(), PipeError> {
        let len = bytes.len() as u32;
        let payload = link.shape.places(self.staged, len).payload;
        self.seal(link, (kind, len, false), tail)?;
        if link.outbox.view.write(payload, bytes) { Ok(()) } else { Err(PipeError::Memory) }
    }

    /// Writes header and second flag of the next chunk into the staging buffer.
    fn seal(
        &mut self,
        link: &PipeLink,
        (kind, len, more): (ChunkKind, u32, bool),
        tail: u64,
    ) -> Result<(), PipeError> {
        let (number, places) = (self.staged + 1, link.shape.places(self.staged, len));
        let mut header = ChunkHeader { len, kind, inverted: false, more, tail, number };
        if let Some(flag) = places.flag {
            let before = link.outbox.view.load(flag).ok_or(PipeError::Memory)?;
            header.inverted = u64::from_le(before) == number;
            #[cfg(nemesia_injected_fault)]
            if injected(PipeFault::FixedFlag) {
                header.inverted = false;
            }
            if !link.outbox.view.write(flag, &header.flag().to_le_bytes()) {
                return Err(PipeError::Memory);
            }
        }
        if !link.outbox.view.write(places.header, &header.to_bytes()) {
            return Err(PipeError::Memory);
        }
        self.staged = number;
        Ok(())
    }

    /// Posts the writes of staged chunks as far as the queue has room, and moves the head.
    pub(super) fn post<P: MemoryPort>(
        &mut self,
        port: &mut P,
        link: &PipeLink,
        pointers: &mut Pointers,
    ) -> Result<(), PipeError> {
        while self.posted < self.staged {
            let len = self.staged_len(link)?;
            let (at, count) = link.shape.places(self.posted, len).whole;
            let id = PipeWork::Data.id(self.posted + 1);
            if !link.write_ring(port, id, at, count)? {
                break;
            }
            self.posted += 1;
        }
        // Where flags are polled nobody reads the head.
        if let Pointers::Messages(messages) = pointers {
            messages.publish(Pointer::Head, self.posted);
        }
        if pointers.is_clean() { Ok(()) } else { pointers.push(port, link) }
    }

    /// Returns the payload's length of the next chunk to post, from the own staging buffer.
    fn staged_len(&self, link: &PipeLink) -> Result<u32, PipeError> {
        let mut bytes = [0; HEADER as usize];
        if !link.outbox.view.read(link.shape.header_at(self.posted), &mut bytes) {
            return Err(PipeError::Memory);
        }
        ChunkHeader::from_bytes(&bytes, self.posted + 1, link.shape.capacity()).map(|header| header.len)
    }

    /// Takes note that the port no longer uses these chunks of the staging buffer.
    pub(super) const fn on_written(&mut self, count: u64) {
        self.settled = count;
    }

    /// Returns whether no staged chunk waits for its write.
    pub(super) const fn is_posted(&self) -> bool {
        self.posted == self.staged
    }

    /// Returns whether all chunks have left this end.
    pub(super) const fn is_sent(&self) -> bool {
        self.settled == self.staged
    }
}

// The first flag is polled as an aligned word.
const _: () = assert!(NUMBER_AT.is_multiple_of(8) && HEADER == NUMBER_AT + 8);
