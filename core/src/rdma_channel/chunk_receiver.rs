//! The receiver's end of a ring of chunks.
//!
//! Always `published <= taken <= arrived <= published + chunks`. A chunk arrives when its flags do, or when the
//! sender's message says so. Its header is copied, checked, and used from the copy.
#![forbid(unsafe_code)]

use super::chunk::{ChunkHeader, ChunkKind, HEADER, NUMBER_AT};
#[cfg(nemesia_injected_fault)]
use super::fault::{PipeFault, injected};
use super::link::PipeLink;
use super::pointer::Pointer;
use super::pointers::Pointers;
use super::shape::RING_AT;
use super::{PipeError, checked};
use crate::payload::Scatter;

/// The receiver's end. Positions count chunks.
#[derive(Debug, Default)]
pub(super) struct ChunkReceiver {
    /// Chunks that have arrived.
    arrived: u64,
    /// Chunks of puts of which all chunks have arrived.
    whole: u64,
    /// Chunks that were read and released: the master copy of the tail.
    taken: u64,
    /// The tail that the peer was sent last.
    published: u64,
    /// The replica of the peer's head, where chunks are announced.
    head: u64,
    /// The chunk that is being read.
    current: Option<OpenChunk>,
    /// The largest tail of the other direction in the headers that arrived.
    tail: u64,
}

/// A chunk that is being read.
#[derive(Clone, Copy, Debug)]
pub(super) struct OpenChunk {
    pub(super) kind: ChunkKind,
    /// Offset of the payload in the ring, bytes of the payload, and bytes of it that were read.
    pub(super) payload: u64,
    pub(super) len: u32,
    pub(super) done: u32,
}

impl ChunkReceiver {
    /// Looks for further chunks, each at most once. Returns the largest tail that a header has brought.
    pub(super) fn look(&mut self, link: &PipeLink, pointers: &mut Pointers) -> Result<u64, PipeError> {
        // A sender that keeps to the tail that it was sent writes no further.
        let limit = self.published + link.shape.chunks();
        while self.arrived < limit {
            let Some(header) = self.next(link, pointers)? else { break };
            self.arrived += 1;
            self.tail = self.tail.max(header.tail);
            if !header.more {
                self.whole = self.arrived;
            }
        }
        let (found, limit) = (self.arrived - self.whole, link.shape.chunks());
        if found >= limit {
            // A put that is longer than the ring would never arrive as a whole.
            return Err(PipeError::Violated { what: "chunks of a put", found, limit });
        }
        Ok(self.tail)
    }

    /// Returns whether a chunk is there that was not read to its end, or its header is wrong.
    pub(super) fn has_chunk(&mut self, link: &PipeLink, pointers: &mut Pointers) -> bool {
        self.taken < self.arrived || self.next(link, pointers).map_or(true, |header| header.is_some())
    }

    /// Returns the header of the next chunk if it has arrived.
    fn next(&mut self, link: &PipeLink, pointers: &mut Pointers) -> Result<Option<ChunkHeader>, PipeError> {
        let announced = matches!(pointers, Pointers::Messages(_));
        #[cfg(nemesia_injected_fault)]
        let announced = announced && !injected(PipeFault::TrustFlags);
        if !announced {
            return self.polled(link);
        }
        if self.head == self.arrived {
            let most = self.published + link.shape.chunks();
            self.head = checked("head", pointers.theirs(link, Pointer::Head), (self.head, most))?;
        }
        if self.head == self.arrived { Ok(None) } else { self.header(link, self.arrived).map(Some) }
    }

    /// Polls the flags of the next chunk.
    fn polled(&self, link: &PipeLink) -> Result<Option<ChunkHeader>, PipeError> {
        let ring = &link.inbox.view;
        let number = ring.load(RING_AT + link.shape.header_at(self.arrived) + NUMBER_AT);
        if number.map(u64::from_le) != Some(self.arrived + 1) {
            return Ok(None);
        }
        let header = self.header(link, self.arrived)?;
        let Some(flag) = link.shape.places(self.arrived, header.len).flag else { return Ok(Some(header)) };
        #[cfg(nemesia_injected_fault)]
        if injected(PipeFault::OneFlag) {
            return Ok(Some(header));
        }
        let found = ring.load(RING_AT + flag).ok_or(PipeError::Memory)?;
        Ok((u64::from_le(found) == header.flag()).then_some(header))
    }

    fn header(&self, link: &PipeLink, before: u64) -> Result<ChunkHeader, PipeError> {
        let mut bytes = [0; HEADER as usize];
        if !link.inbox.view.read(RING_AT + link.shape.header_at(before), &mut bytes) {
            return Err(PipeError::Memory);
        }
        ChunkHeader::from_bytes(&bytes, before + 1, link.shape.capacity())
    }

    /// Returns the chunk at the end of the pipe. `None` if none has arrived, or, if `whole` is set, the put to which it
    /// belongs has not arrived as a whole.
    pub(super) fn open(&mut self, link: &PipeLink, whole: bool) -> Result<Option<OpenChunk>, PipeError> {
        let limit = if whole { self.whole } else { self.arrived };
        if self.current.is_none() && self.taken < limit {
            // The peer may have changed the header since it arrived, so it is copied and checked again.
            let header = self.header(link, self.taken)?;
            let payload = link.shape.places(self.taken, header.len).payload;
            self.current = Some(OpenChunk { kind: header.kind, payload, len: header.len, done: 0 });
        }
        Ok(self.current)
    }

    /// Copies from the open chunk into a list from `at` on. Returns the number of bytes, and releases the chunk after
    /// its last byte.
    pub(super) fn copy(&mut self, link: &PipeLink, into: &mut Scatter, at: usize) -> usize {
        let Some(chunk) = &mut self.current else { return 0 };
        let len = ((chunk.len - chunk.done) as usize).min(into.len() - at);
        let from = chunk.payload + u64::from(chunk.done);
        #[cfg(nemesia_injected_fault)]
        let from = if injected(PipeFault::ForgetOffset) { chunk.payload } else { from };
        link.unstage(from, into, (at, len));
        chunk.done += len as u32;
        if chunk.done == chunk.len {
            self.release();
        }
        len
    }

    /// Releases the open chunk.
    pub(super) const fn release(&mut self) {
        self.current = None;
        self.taken += 1;
    }

    /// Returns the tail to send with traffic of the other direction.
    pub(super) const fn carry_tail(&mut self) -> u64 {
        self.published = self.taken;
        self.taken
    }

    /// Publishes the tail if the sender sees less free space than a half of the ring and there is more.
    pub(super) fn publish_tail(&mut self, link: &PipeLink, pointers: &mut Pointers) {
        #[cfg(nemesia_injected_fault)]
        if injected(PipeFault::ForgetTail) {
            return;
        }
        let free = (self.published + link.shape.chunks()).saturating_sub(self.arrived);
        if self.taken > self.published && free < (link.shape.chunks() / 2).max(1) {
            pointers.publish(Pointer::Tail, self.carry_tail());
        }
    }
}
