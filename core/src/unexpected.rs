//! Storage for messages that nobody has asked for yet.
//!
//! They are copied out of the transport's cells at once, so that cells stay few (paper 4, section 3.1). The
//! storage is lent and has a ceiling; what does not fit stays with its sender, which is then held back.
//! They stand in one list in the order they came, for receives with a wildcard, and in lists by hash for the others.
//! A message of up to [`INLINE`] bytes lives in its entry; the rest in a chain of chunks.
#![forbid(unsafe_code)]

use core::borrow::BorrowMut;

use crate::matching::{Buckets, Pattern, hash};
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
    /// Neighbours among those of the same hash; the slab's own links are for the order of coming.
    prev: u32,
    next: u32,
    /// Taken out of the lists by [`Unexpected::claim`].
    claimed: bool,
    inline: [u8; INLINE],
}

impl Default for Message {
    fn default() -> Self {
        let envelope = Envelope { kind: crate::wire::Kind::Eager, context: 0, tag: 0, total: 0 };
        Self {
            source: 0,
            envelope,
            received: 0,
            first: NONE,
            last: NONE,
            prev: NONE,
            next: NONE,
            claimed: false,
            inline: [0; INLINE],
        }
    }
}

impl Message {
    /// Whether all of it has come.
    pub const fn is_whole(&self) -> bool {
        self.received == self.envelope.total
    }

    #[inline(always)]
    fn hash(&self) -> u32 {
        hash(self.source, self.envelope.context, self.envelope.tag)
    }
}

/// The messages, in the order they came. `E` lends the entries, `C` the chunks' bytes, `B` the lists by hash.
#[derive(Debug)]
pub struct Unexpected<E: BorrowMut<[Slot<Message>]>, C: BorrowMut<[u8]>, B: BorrowMut<[List]>> {
    entries: Slab<Message, E>,
    order: List,
    buckets: Buckets<B>,
    /// Messages in the lists: all but the claimed ones.
    listed: usize,
    chunks: C,
    free_chunk: u32,
    /// Chunks below were used at least once; the others are not touched.
    fresh: u32,
    free_count: usize,
}

impl<E: BorrowMut<[Slot<Message>]>, C: BorrowMut<[u8]>, B: BorrowMut<[List]>> Unexpected<E, C, B> {
    /// Nothing stored yet.
    pub fn new(entries: E, chunks: C, buckets: B) -> Self {
        let free_count = (chunks.borrow().len() / CHUNK).min(NONE as usize - 1);
        Self {
            entries: Slab::new(entries),
            order: List::new(),
            buckets: Buckets::new(buckets),
            listed: 0,
            chunks,
            free_chunk: NONE,
            fresh: 0,
            free_count,
        }
    }

    /// Lets the storage of entries and lists grow, and finds every message its new place. Entries must never shrink.
    pub fn grow(&mut self, grow: impl FnOnce(&mut E, &mut B)) {
        grow(self.entries.storage_mut(), self.buckets.storage_mut());
        self.buckets.clear();
        let mut at = self.order.first();
        while let Some(id) = at {
            at = self.entries.next(id);
            self.link_bucket(id);
        }
    }

    /// Messages for which there are entries.
    pub fn capacity(&self) -> usize {
        self.entries.capacity()
    }

    /// Messages stored.
    pub const fn len(&self) -> usize {
        self.entries.used()
    }

    /// Whether there is none that a receive could find.
    pub const fn is_empty(&self) -> bool {
        self.listed == 0
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
            self.add_chunk(id);
        }
        self.entries.push_back(&mut self.order, id);
        self.link_bucket(id);
        self.listed += 1;
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
        self.claim(id);
        self.entries.remove(id);
    }

    /// Takes a message out of the lists, so that no receive finds it any more; it stays stored.
    fn claim(&mut self, id: u32) {
        let message = self.entries.get_mut(id);
        if core::mem::replace(&mut message.claimed, true) {
            return;
        }
        self.listed -= 1;
        self.unlink_bucket(id);
        self.entries.unlink(&mut self.order, id);
    }

    /// The first message, in the order they came, that matches.
    #[inline]
    pub fn find(&self, pattern: &Pattern) -> Option<u32> {
        if self.listed == 0 {
            return None;
        }
        let matches = |message: &Message| pattern.matches(message.source, &message.envelope);
        let Some(hash) = pattern.hash() else { return self.entries.find(&self.order, matches) };
        let mut id = self.buckets.get(hash).head;
        while id != NONE {
            let message = self.entries.get(id);
            if matches(message) {
                return Some(id);
            }
            id = message.next;
        }
        None
    }

    /// Appends a message to the list of its hash.
    fn link_bucket(&mut self, id: u32) {
        let list = self.buckets.get_mut(self.entries.get(id).hash());
        let last = core::mem::replace(&mut list.tail, id);
        if last == NONE {
            list.head = id;
        } else {
            self.entries.get_mut(last).next = id;
        }
        let message = self.entries.get_mut(id);
        (message.prev, message.next) = (last, NONE);
    }

    fn unlink_bucket(&mut self, id: u32) {
        let message = self.entries.get(id);
        let (prev, next) = (message.prev, message.next);
        let list = self.buckets.get_mut(message.hash());
        if prev == NONE {
            list.head = next;
        }
        if next == NONE {
            list.tail = prev;
        }
        if prev != NONE {
            self.entries.get_mut(prev).next = next;
        }
        if next != NONE {
            self.entries.get_mut(next).prev = prev;
        }
    }

    fn add_chunk(&mut self, id: u32) {
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
