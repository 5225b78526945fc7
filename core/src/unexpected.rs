//! Storage for messages that nobody has asked for yet.
//!
//! They are copied out of the transport's cells at once, so that cells stay few (paper 4, section 3.1). The
//! storage is lent and has a ceiling; what does not fit stays with its sender, which is then held back.
//! A message of up to [`INLINE`] bytes lives in its entry; the rest in a chain of chunks.
#![forbid(unsafe_code)]

use core::borrow::BorrowMut;

use crate::port::PeerId;
use crate::slab::{List, NONE, Slab, Slot};
use crate::wire::Envelope;

/// Bytes kept in the entry itself.
pub const INLINE: usize = 32;
/// Bytes of a chunk; the first four hold the number of the next.
pub const CHUNK: usize = 2048;
const LINK: usize = 4;
const BODY: usize = CHUNK - LINK;

/// A message that has come, whole or in part.
#[derive(Debug)]
pub struct Message {
    /// Who sent it.
    pub source: PeerId,
    /// Kind of its first packet, context, tag, size.
    pub envelope: Envelope,
    /// Bytes that have come.
    pub received: u64,
    first: u32,
    last: u32,
    inline: [u8; INLINE],
}

impl Default for Message {
    fn default() -> Self {
        let envelope = Envelope { kind: crate::wire::Kind::Eager, context: 0, tag: 0, total: 0 };
        Self { source: 0, envelope, received: 0, first: NONE, last: NONE, inline: [0; INLINE] }
    }
}

impl Message {
    /// Whether all of it has come.
    pub const fn is_whole(&self) -> bool {
        self.received == self.envelope.total
    }
}

/// The messages, in the order they came. `E` lends the entries, `C` the chunks' bytes.
#[derive(Debug)]
pub struct Unexpected<E: BorrowMut<[Slot<Message>]>, C: BorrowMut<[u8]>> {
    entries: Slab<Message, E>,
    order: List,
    chunks: C,
    free_chunk: u32,
    /// Chunks below were used at least once; the others are not touched.
    fresh: u32,
    free_count: usize,
}

impl<E: BorrowMut<[Slot<Message>]>, C: BorrowMut<[u8]>> Unexpected<E, C> {
    /// Nothing stored yet.
    pub fn new(entries: E, chunks: C) -> Self {
        let free_count = (chunks.borrow().len() / CHUNK).min(NONE as usize - 1);
        Self {
            entries: Slab::new(entries),
            order: List::new(),
            chunks,
            free_chunk: NONE,
            fresh: 0,
            free_count,
        }
    }

    /// The storage of entries, for its owner to let it grow; it must never shrink.
    pub fn entries_mut(&mut self) -> &mut E {
        self.entries.storage_mut()
    }

    /// Messages stored.
    pub const fn len(&self) -> usize {
        self.entries.used()
    }

    /// Whether none is stored.
    pub const fn is_empty(&self) -> bool {
        self.entries.used() == 0
    }

    /// Bytes of chunks that are free.
    pub const fn free_bytes(&self) -> usize {
        self.free_count * BODY
    }

    /// The message.
    pub fn get(&self, id: u32) -> &Message {
        self.entries.get(id)
    }

    /// Makes room for a whole message and stores that it has begun; `None` when there is no room.
    pub fn begin(&mut self, source: PeerId, envelope: Envelope) -> Option<u32> {
        let wanted = if envelope.total <= INLINE as u64 { 0 } else { envelope.total.div_ceil(BODY as u64) };
        if wanted > self.free_count as u64 {
            return None;
        }
        let id = self.entries.insert(Message { source, envelope, ..Message::default() }).ok()?;
        for _ in 0..wanted {
            self.grow(id);
        }
        self.entries.push_back(&mut self.order, id);
        // From here on `last` is the chunk that the next bytes go to.
        let message = self.entries.get_mut(id);
        message.last = message.first;
        Some(id)
    }

    /// Stores the next `len` bytes, which `read` copies from an offset of the packet. The caller has checked
    /// that they belong to the message.
    pub fn append(&mut self, id: u32, len: usize, mut read: impl FnMut(usize, &mut [u8])) {
        let mut at = 0;
        while at < len {
            let message = self.entries.get(id);
            let received = message.received as usize;
            let part = if message.first == NONE {
                &mut self.entries.get_mut(id).inline[received..received + len]
            } else {
                let (chunk, offset) = (message.last, received % BODY);
                let count = (BODY - offset).min(len - at);
                if offset + count == BODY {
                    let next = self.link(chunk);
                    self.entries.get_mut(id).last = next;
                }
                let start = chunk as usize * CHUNK + LINK + offset;
                &mut self.chunks.borrow_mut()[start..start + count]
            };
            read(at, part);
            let count = part.len();
            at += count;
            self.entries.get_mut(id).received += count as u64;
        }
    }

    /// Copies what has come, up to `to.len()` bytes.
    pub fn read(&self, id: u32, to: &mut [u8]) {
        let message = self.entries.get(id);
        let len = (message.received as usize).min(to.len());
        if message.first == NONE {
            to[..len].copy_from_slice(&message.inline[..len]);
            return;
        }
        let mut chunk = message.first;
        for part in to[..len].chunks_mut(BODY) {
            let start = chunk as usize * CHUNK + LINK;
            part.copy_from_slice(&self.chunks.borrow()[start..start + part.len()]);
            chunk = self.link(chunk);
        }
    }

    /// Forgets a message and frees its room.
    pub fn remove(&mut self, id: u32) {
        let mut chunk = self.entries.get(id).first;
        while chunk != NONE {
            let next = self.link(chunk);
            self.set_link(chunk, self.free_chunk);
            self.free_chunk = chunk;
            self.free_count += 1;
            chunk = next;
        }
        self.entries.unlink(&mut self.order, id);
        self.entries.remove(id);
    }

    /// The first message, in the order they came, that satisfies the test.
    #[inline]
    pub fn find(&self, test: impl FnMut(&Message) -> bool) -> Option<u32> {
        if self.order.is_empty() {
            return None;
        }
        self.entries.find(&self.order, test)
    }

    fn grow(&mut self, id: u32) {
        let chunk = if self.free_chunk == NONE {
            self.fresh += 1;
            self.fresh - 1
        } else {
            let chunk = self.free_chunk;
            self.free_chunk = self.link(chunk);
            chunk
        };
        self.free_count -= 1;
        self.set_link(chunk, NONE);
        let message = self.entries.get_mut(id);
        let last = core::mem::replace(&mut message.last, chunk);
        if last == NONE {
            message.first = chunk;
        } else {
            self.set_link(last, chunk);
        }
    }

    fn link(&self, chunk: u32) -> u32 {
        let start = chunk as usize * CHUNK;
        let mut bytes = [0; LINK];
        bytes.copy_from_slice(&self.chunks.borrow()[start..start + LINK]);
        u32::from_le_bytes(bytes)
    }

    fn set_link(&mut self, chunk: u32, next: u32) {
        let start = chunk as usize * CHUNK;
        self.chunks.borrow_mut()[start..start + LINK].copy_from_slice(&next.to_le_bytes());
    }
}

#[cfg(test)]
mod tests;
