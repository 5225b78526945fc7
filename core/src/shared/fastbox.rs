//! The fastbox: a ring of half cache lines from one process to one other (paper 4, section 2).
//!
//! Header and payload of a small message share the cache line that the receiver polls, so its delivery costs one
//! cache-line transfer. The paper has a single slot per pair; this is a ring, so a burst fits, and larger messages
//! take several slots. A slot is half a line: in a stream of small messages, one line transfer moves two messages,
//! which matters between distant cores. Nothing is cleared after reading. A lap number in each stamp distinguishes
//! new from old: every slot of a packet has one, and each lap writes every slot. The receiver reports its position
//! rarely, in its own memory, and the sender reads that position only when the ring looks full.
//!
//! The first stamp of a packet publishes it and is stored last ([`Edge::FastboxPublish`]). The position releases the
//! slots ([`Edge::FastboxAck`]).

mod place;

use crate::sync::{Edge, PayloadWord, Word64};
use crate::wire::{Envelope, Kind};
use place::FastboxPlace;

/// Payload bytes in the first slot of a packet.
pub const FIRST_BYTES: usize = 16;
/// Payload bytes in each further slot.
pub const MORE_BYTES: usize = 24;
/// A message of the most common size; the critical path is optimized for it.
pub type Word = [u8; 8];
/// Kind code in the stamp of a further slot.
const CONTINUATION: u64 = 0xff << 8;
/// Flag in the kind code of a packet whose payload lies in a cell of the sender.
const IN_CELL: u64 = 0x80 << 8;

/// One slot of a fastbox: half a cache line. [`crate::wire`] defines the layout of its words.
#[repr(C, align(32))]
#[derive(Debug)]
pub struct FastboxSlot {
    stamp: Word64,
    body: [PayloadWord; 3],
}

impl FastboxSlot {
    /// Returns an empty slot (lap 0), for a model or private memory.
    pub fn empty() -> Self {
        Self { stamp: Word64::new(0), body: core::array::from_fn(|_| PayloadWord::new(0)) }
    }
}

/// A fastbox value or position that violates the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FastboxFault {
    /// The receiver's position went back, or beyond the packets sent.
    #[error("fastbox position {found} is outside {low}..={high}")]
    Position {
        /// The position that the peer wrote.
        found: u64,
        /// The last valid position that the peer wrote.
        low: u64,
        /// The position of the next send.
        high: u64,
    },
    /// A stamp has an unknown kind.
    #[error("fastbox stamp {0:#x} has an unknown kind")]
    Kind(u64),
    /// A packet claims more bytes than a fastbox can carry.
    #[error("fastbox packet claims {len} bytes, but the limit is {most}")]
    Length {
        /// The claimed length.
        len: usize,
        /// The largest payload of this ring.
        most: usize,
    },
}

/// Returns the number of slots of a packet with `len` payload bytes.
#[inline(always)]
const fn slots_for(len: usize) -> usize {
    if len <= FIRST_BYTES { 1 } else { 1 + (len - FIRST_BYTES).div_ceil(MORE_BYTES) }
}

/// Returns the largest payload of a packet in a ring of `slots`: a quarter of the ring, so that neither lazily
/// reported positions nor one large packet block small packets.
pub const fn max_payload(slots: usize) -> usize {
    FIRST_BYTES + (slots / 4 - 1) * MORE_BYTES
}

/// Returns the number of slots after which the receiver reports its position: half of the ring. The other half always
/// has space for a largest packet, and the cost of the report per packet is small.
const fn pending_most(slots: usize) -> usize {
    slots / 2
}

/// The sending end. Only one thread at a time may use it.
#[derive(Debug)]
pub struct FastboxSender<'a> {
    ack: &'a Word64,
    /// The next slot to fill. The run consists of slots that the receiver is known to have released.
    tail: FastboxPlace<'a>,
    /// Number of released slots after the run; the end of the ring separates them from it.
    beyond: usize,
}

impl<'a> FastboxSender<'a> {
    /// Returns a sender at the start of the ring. The number of `slots` is a power of two of at least 4. They lie in
    /// this process's memory; `ack` lies in the receiver's.
    pub fn new(slots: &'a [FastboxSlot], ack: &'a Word64) -> Self {
        Self { ack, tail: FastboxPlace::new(slots, slots.len()), beyond: 0 }
    }

    /// Empties the ring for a new receiver; the former one has failed. The new receiver is informed by other means.
    pub(super) fn clear(&self) {
        self.tail.slots.iter().for_each(|slot| slot.stamp.store_relaxed(0));
    }

    /// Returns the largest payload that [`FastboxSender::push`] accepts.
    pub fn max_payload(&self) -> usize {
        max_payload(self.tail.slots.len())
    }

    /// Sends one whole message. Returns `false` if there is no space now, or if the message is too large for a
    /// fastbox.
    ///
    /// # Errors
    /// [`FastboxFault::Position`] if the receiver wrote an invalid position.
    #[inline(always)]
    pub fn push(&mut self, sequence: u64, envelope: &Envelope, payload: &[u8]) -> Result<bool, FastboxFault> {
        let count = slots_for(payload.len());
        if !self.has_room(count)? {
            return Ok(false);
        }
        let Some(first) = self.tail.run.as_slice().first() else { return Ok(false) };
        let stamp = self.tail.lap()
            | (envelope.kind as u64) << 8
            | (sequence & 0xffff) << 16
            | (payload.len() as u64) << 32
            | u64::from(envelope.context) << 48;
        // The first line is written last and all at once: the receiver polls it, and would fetch the line between
        // separate writes.
        let head = if count == 1 { payload } else { self.push_rest(payload) };
        let [tag, body @ ..] = &first.body;
        tag.set(envelope.tag);
        store_words(body, head);
        first.stamp.store_release(stamp, Edge::FastboxPublish);
        match self.tail.run.as_slice().get(count..) {
            Some(rest) => self.tail.run = rest.iter(),
            None => self.advance(count),
        }
        Ok(true)
    }

    /// As [`FastboxSender::push`], for a whole message of one word: the critical path. Also returns `false` if space is
    /// known only after reading the receiver's position.
    #[inline(always)]
    pub fn push_word(&mut self, sequence: u64, context: u16, tag: u64, word: Word) -> bool {
        let stamp = self.tail.word_stamp(sequence, context);
        let Some(slot) = self.tail.run.next() else { return false };
        let [first, second, ..] = &slot.body;
        first.set(tag);
        second.set(u64::from_le_bytes(word));
        slot.stamp.store_release(stamp, Edge::FastboxPublish);
        true
    }

    /// Returns whether a slot is free, as far as is known without reading the receiver's position.
    #[inline(always)]
    pub fn has_run(&self) -> bool {
        !self.tail.run.as_slice().is_empty()
    }

    /// Sends one packet whose payload lies in `cell` of this process, which is already filled. The packet takes one
    /// slot, whatever its size. `back` is a cell of the receiver that this process has read and returns with the
    /// packet. Returns `false` if there is no space now.
    ///
    /// # Errors
    /// As [`FastboxSender::push`].
    #[inline(always)]
    pub fn announce(
        &mut self,
        sequence: u64,
        envelope: &Envelope,
        cell: u32,
        back: Option<u32>,
    ) -> Result<bool, FastboxFault> {
        Ok(self.has_room(1)? && self.announce_now(sequence, envelope, cell, back))
    }

    /// As [`FastboxSender::announce`]. Also returns `false` if space is known only after reading the receiver's
    /// position.
    #[inline(always)]
    pub fn announce_now(&mut self, sequence: u64, envelope: &Envelope, cell: u32, back: Option<u32>) -> bool {
        let stamp = self.tail.lap()
            | (envelope.kind as u64) << 8
            | IN_CELL
            | (sequence & 0xffff) << 16
            | u64::from(envelope.context) << 48;
        let Some(slot) = self.tail.run.next() else { return false };
        slot.body[0].set(envelope.tag);
        slot.body[1].set(u64::from(cell) | envelope.total << 32);
        slot.body[2].set(back.map_or(0, |cell| u64::from(cell) + 1));
        // This store also publishes the payload of the cell, which needs no header and no queue entry. Reads of the
        // returned cell happen before this store.
        slot.stamp.store_release(stamp, Edge::FastboxPublish);
        true
    }

    /// Fills the further slots of a packet, which its first stamp will publish. Returns the payload of the first
    /// slot.
    #[inline(never)]
    fn push_rest<'p>(&self, payload: &'p [u8]) -> &'p [u8] {
        let (head, rest) = payload.split_at(FIRST_BYTES);
        let (whole, last) = rest.as_chunks::<MORE_BYTES>();
        let mut chunks = whole.iter();
        for (slots, lap) in self.tail.spans(whole.len()) {
            for (slot, chunk) in slots.iter().zip(&mut chunks) {
                slot.stamp.store_relaxed(lap | CONTINUATION);
                store_words(&slot.body, chunk);
            }
        }
        if !last.is_empty() {
            let (slot, lap) = self.tail.further(whole.len() + 1);
            slot.stamp.store_relaxed(lap | CONTINUATION);
            store_words(&slot.body, last);
        }
        head
    }

    /// Advances past `count` filled slots, which are more than the run has.
    #[cold]
    fn advance(&mut self, count: usize) {
        let room = self.room() - count;
        self.set_room(self.tail.at() + count, room);
    }

    fn room(&self) -> usize {
        self.tail.run.as_slice().len() + self.beyond
    }

    /// Moves to slot `at`. `room` slots from there on are released.
    fn set_room(&mut self, at: usize, room: usize) {
        self.tail.set(at, room);
        self.beyond = room - self.tail.run.as_slice().len();
    }

    /// Returns whether there is space for `count` slots, and the run is not empty.
    #[inline(always)]
    fn has_room(&mut self, count: usize) -> Result<bool, FastboxFault> {
        if count <= self.tail.run.as_slice().len() && count <= self.tail.slots.len() / 4 {
            return Ok(true);
        }
        self.look_for_room(count)
    }

    #[inline(never)]
    fn look_for_room(&mut self, count: usize) -> Result<bool, FastboxFault> {
        let slots = self.tail.slots.len();
        // A packet of this size exceeds the receiver's limit, however empty the ring is.
        if count > slots / 4 {
            return Ok(false);
        }
        let mut room = self.room();
        if count > room {
            let high = self.tail.position();
            let low = high + room as u64 - slots as u64;
            let found = self.ack.load_acquire(Edge::FastboxAck);
            if found < low || found > high {
                return Err(FastboxFault::Position { found, low, high });
            }
            room += (found - low) as usize;
        }
        self.set_room(self.tail.at(), room);
        Ok(count <= room)
    }
}

/// A packet that the receiver has seen but not yet released.
#[derive(Clone, Copy, Debug)]
pub struct FastboxPacket {
    /// Low half of the sequence number.
    pub sequence: u16,
    /// Kind, context, tag and size.
    pub envelope: Envelope,
    /// Payload bytes.
    pub len: usize,
    /// The sender's cell that holds the payload; `None` if the payload lies in the fastbox itself. Neither this value
    /// nor the length is checked against the sender's pool, which a fastbox does not know.
    pub cell: Option<u32>,
}

/// The receiving end. Only one thread at a time may use it.
#[derive(Debug)]
pub struct FastboxReceiver<'a> {
    ack: &'a Word64,
    /// Largest payload of a packet, in bytes.
    most: usize,
    /// The next slot to read. The run is never empty; it ends where the position must be reported to the sender.
    head: FastboxPlace<'a>,
    /// Slots after the run until the position is reported. They are not in the run because the ring ends before them
    /// or the run would be too long.
    beyond: usize,
    /// Most slots of a run.
    longest: usize,
}

impl<'a> FastboxReceiver<'a> {
    /// Returns a receiver at the start of the ring. `slots` lies in the sender's memory; `ack` lies in this process's
    /// memory.
    pub fn new(slots: &'a [FastboxSlot], ack: &'a Word64) -> Self {
        Self {
            ack,
            most: max_payload(slots.len()),
            head: FastboxPlace::new(slots, pending_most(slots.len())),
            beyond: 0,
            longest: usize::MAX,
        }
    }

    /// Limits further runs to `most` slots, at least one. At most this number of words can be taken before
    /// [`FastboxReceiver::end_run`].
    pub fn limit_run(&mut self, most: usize) {
        let pending = self.head.run.as_slice().len() + self.beyond;
        self.longest = most.max(1);
        self.set_pending(self.head.at(), pending);
    }

    /// Moves to slot `at`. The position is reported after `pending` further slots.
    fn set_pending(&mut self, at: usize, pending: usize) {
        self.head.set(at, pending.min(self.longest));
        self.beyond = pending - self.head.run.as_slice().len();
    }

    /// Resets the position for a new sender; the former one has failed.
    pub(super) fn clear(&self) {
        self.ack.store_relaxed(0);
    }

    /// Returns the packet at the head if it has this sequence number and is a whole message: the critical path, one
    /// load and two comparisons. If the result is `None`, another packet may be at the head: [`FastboxReceiver::peek`]
    /// returns it.
    #[inline(always)]
    pub fn due(&self, sequence: u64) -> Option<FastboxPacket> {
        let slot = self.head.run.as_slice().first()?;
        let stamp = slot.stamp.load_acquire(Edge::FastboxPublish);
        let wanted = self.head.lap() | (Kind::Eager as u64) << 8 | sequence << 16;
        let len = (stamp >> 32) as u16 as usize;
        if stamp as u32 != wanted as u32 || len > self.most {
            return None;
        }
        Some(packet(Kind::Eager, stamp, len, slot))
    }

    /// As [`FastboxReceiver::due`], for a packet whose payload lies in a cell.
    #[inline(always)]
    pub fn due_in_cell(&self, sequence: u64) -> Option<FastboxPacket> {
        let slot = self.head.run.as_slice().first()?;
        let stamp = slot.stamp.load_acquire(Edge::FastboxPublish);
        let wanted = self.head.lap() | (Kind::Eager as u64) << 8 | IN_CELL | sequence << 16;
        (stamp as u32 == wanted as u32).then(|| in_cell(Kind::Eager, stamp, slot))
    }

    /// Returns the receiver's cell that the packet at the head returns; that packet lies in a cell itself. The peer
    /// wrote the value, and it is unchecked.
    #[inline(always)]
    pub fn back(&self) -> Option<u32> {
        let word = self.head.run.as_slice().first()?.body[2].get();
        word.checked_sub(1).map(|cell| cell as u32)
    }

    /// Returns whether any packet is at the head, with one load. [`FastboxReceiver::peek`] returns the packet.
    #[inline(always)]
    pub fn has_next(&self) -> bool {
        let stamp = self.head.run.as_slice().first().map(|slot| slot.stamp.load_relaxed());
        stamp.is_some_and(|stamp| stamp & 0xff == self.head.lap())
    }

    /// Returns the packet at the head, if there is one. The packet stays until [`FastboxReceiver::advance`].
    ///
    /// # Errors
    /// A value that violates the protocol. Every value is read once and checked here.
    #[inline(always)]
    pub fn peek(&self) -> Result<Option<FastboxPacket>, FastboxFault> {
        let Some(slot) = self.head.run.as_slice().first() else { return Ok(None) };
        let stamp = slot.stamp.load_acquire(Edge::FastboxPublish);
        if stamp & 0xff != self.head.lap() {
            return Ok(None);
        }
        let code = (stamp & !IN_CELL) >> 8;
        let kind = Kind::from_code(code as u8).ok_or(FastboxFault::Kind(stamp))?;
        if stamp & IN_CELL != 0 {
            return Ok(Some(in_cell(kind, stamp, slot)));
        }
        let len = (stamp >> 32) as u16 as usize;
        if len > self.most {
            return Err(FastboxFault::Length { len, most: self.most });
        }
        Ok(Some(packet(kind, stamp, len, slot)))
    }

    /// Copies payload bytes of the packet at the head, from `at` on. The caller must not request more than the packet
    /// has: bytes after its end belong to earlier packets. Beyond the largest packet nothing is copied.
    #[inline(always)]
    pub fn read(&self, at: usize, to: &mut [u8]) {
        let len = to.len();
        if len > self.most.saturating_sub(at) {
            return;
        }
        let Some(first) = self.head.run.as_slice().first() else { return };
        if at != 0 {
            self.read_from(at, to);
        } else if len <= FIRST_BYTES {
            load_words(&first.body[1..], to);
        } else {
            self.read_rest(first, to);
        }
    }

    /// Copies bytes from the middle of a packet, word by word: for unexpected messages.
    #[cold]
    fn read_from(&self, mut at: usize, mut to: &mut [u8]) {
        while !to.is_empty() {
            // If the packet is viewed as a sequence of 24-byte slots, the payload of the first slot starts after the
            // tag, at byte 8.
            let (slot, byte) = ((at + 8) / MORE_BYTES, (at + 8) % MORE_BYTES);
            let word = self.head.further(slot).0.body[byte / 8].get().to_le_bytes();
            let part = &word[byte % 8..];
            let (now, later) = to.split_at_mut(part.len().min(to.len()));
            now.copy_from_slice(&part[..now.len()]);
            at += now.len();
            to = later;
        }
    }

    #[inline(never)]
    fn read_rest(&self, first: &FastboxSlot, to: &mut [u8]) {
        let (head, rest) = to.split_at_mut(FIRST_BYTES);
        load_words(&first.body[1..], head);
        let (whole, last) = rest.as_chunks_mut::<MORE_BYTES>();
        let count = whole.len();
        let mut chunks = whole.iter_mut();
        for (slots, _) in self.head.spans(count) {
            for (slot, chunk) in slots.iter().zip(&mut chunks) {
                load_words(&slot.body, chunk);
            }
        }
        load_words(&self.head.further(count + 1).0.body, last);
    }

    /// Releases the slots of the packet at the head, of `len` payload bytes. Returns whether the position was
    /// reported to the sender, which happens once per half of the ring.
    #[inline(always)]
    pub fn advance(&mut self, len: usize) -> bool {
        let count = slots_for(len);
        match self.head.run.as_slice().get(count..) {
            Some(rest) if !rest.is_empty() => {
                self.head.run = rest.iter();
                false
            }
            _ => self.advance_run(count),
        }
    }

    /// Takes the packet at the head if it has this sequence number, is a whole message of one word in this context,
    /// and its tag is wanted: the critical path, one load and one comparison. Returns the tag, the word, and whether
    /// [`FastboxReceiver::end_run`] must be called next. If the result is `None`, another packet may be at the head.
    #[inline(always)]
    pub fn take_word(
        &mut self,
        sequence: u64,
        context: u16,
        wanted: impl FnOnce(u64) -> bool,
    ) -> Option<(u64, Word, bool)> {
        let wanted_stamp = self.head.word_stamp(sequence, context);
        let mut run = self.head.run.clone();
        let slot = run.next()?;
        if slot.stamp.load_acquire(Edge::FastboxPublish) != wanted_stamp {
            return None;
        }
        let [first, second, ..] = &slot.body;
        let tag = first.get();
        if !wanted(tag) {
            return None;
        }
        let word = second.get().to_le_bytes();
        let ended = run.as_slice().is_empty();
        self.head.run = run;
        Some((tag, word, ended))
    }

    /// Starts the next run, after [`FastboxReceiver::take_word`]. Returns the largest possible number of slots of the
    /// last run, and whether the position was reported to the sender.
    pub fn end_run(&mut self) -> (usize, bool) {
        (pending_most(self.head.slots.len()).min(self.longest), self.advance_run(0))
    }

    /// Advances by `count` slots and starts the next run. Returns whether the position was reported to the sender.
    #[inline(never)]
    fn advance_run(&mut self, count: usize) -> bool {
        let slots = self.head.slots.len();
        let pending = self.head.run.as_slice().len() + self.beyond;
        let tell = count >= pending;
        let pending = if tell { pending_most(slots) } else { pending - count };
        self.set_pending(self.head.at() + count, pending);
        if tell {
            self.ack.store_release(self.head.position(), Edge::FastboxAck);
        }
        tell
    }
}

#[inline(always)]
fn packet(kind: Kind, stamp: u64, len: usize, slot: &FastboxSlot) -> FastboxPacket {
    let context = (stamp >> 48) as u16;
    let envelope = Envelope { kind, context, tag: slot.body[0].get(), total: len as u64 };
    FastboxPacket { sequence: (stamp >> 16) as u16, envelope, len, cell: None }
}

/// Returns a packet whose payload lies in a cell.
#[inline(always)]
fn in_cell(kind: Kind, stamp: u64, slot: &FastboxSlot) -> FastboxPacket {
    let shape = slot.body[1].get();
    FastboxPacket { cell: Some(shape as u32), ..packet(kind, stamp, (shape >> 32) as usize, slot) }
}

/// Writes bytes as little-endian words, the last one padded with zeros. Eight bytes, the most common size, need no
/// loop.
#[inline(always)]
fn store_words(words: &[PayloadWord], bytes: &[u8]) {
    if let (Ok(only), [word, ..]) = (<[u8; 8]>::try_from(bytes), words) {
        return word.set(u64::from_le_bytes(only));
    }
    let (whole, rest) = bytes.as_chunks::<8>();
    for (word, chunk) in words.iter().zip(whole) {
        word.set(u64::from_le_bytes(*chunk));
    }
    if let (false, Some(word)) = (rest.is_empty(), words.get(whole.len())) {
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        word.set(u64::from_le_bytes(last));
    }
}

/// Reads bytes from little-endian words.
#[inline(always)]
fn load_words(words: &[PayloadWord], bytes: &mut [u8]) {
    if let (Ok(only), [word, ..]) = (<&mut [u8; 8]>::try_from(&mut *bytes), words) {
        *only = word.get().to_le_bytes();
        return;
    }
    let (whole, rest) = bytes.as_chunks_mut::<8>();
    let count = whole.len();
    for (word, chunk) in words.iter().zip(whole) {
        *chunk = word.get().to_le_bytes();
    }
    if let (false, Some(word)) = (rest.is_empty(), words.get(count)) {
        let last = word.get().to_le_bytes();
        let len = rest.len();
        rest.copy_from_slice(&last[..len]);
    }
}
