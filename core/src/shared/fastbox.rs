//! The fastbox: a ring of cache lines from one process to one other (paper 4, section 2).
//!
//! A small message's header and payload share the line that the receiver polls, so its delivery costs one
//! cache-line hand-over. Beyond the paper's single slot a pair, this is a ring: a burst fits, and larger
//! messages take several lines. Nothing is cleared after reading: a lap number in each stamp tells new from
//! old, every line of a packet carries one, and each lap writes every line. The receiver tells its position
//! rarely, in its own memory; the sender reads it only when the ring looks full.
//!
//! The packet is published by its first stamp, stored last ([`Edge::FastboxPublish`]); the slots are given
//! back by the position ([`Edge::FastboxAck`]).

use crate::sync::{Edge, PayloadWord, Word64};
use crate::wire::{Envelope, Kind};

/// Payload bytes in a packet's first slot.
pub const FIRST_BYTES: usize = 48;
/// Payload bytes in each further slot.
pub const MORE_BYTES: usize = 56;
/// Kind code of a further slot's stamp.
const CONTINUATION: u64 = 0xff << 8;
/// Set in the kind code of a packet whose payload lies in one of the sender's cells.
const IN_CELL: u64 = 0x80 << 8;

/// One cache line of a fastbox. The words are laid out as [`crate::wire`] says.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Slot {
    stamp: Word64,
    body: [PayloadWord; 7],
}

impl Slot {
    /// An empty slot (lap 0), for a model or private memory.
    pub fn empty() -> Self {
        Self { stamp: Word64::new(0), body: core::array::from_fn(|_| PayloadWord::new(0)) }
    }
}

/// A value in a fastbox, or a position, that an honest peer never writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FastboxFault {
    /// The receiver's position went back or past what was sent.
    #[error("fastbox position {found} is outside {low}..={high}")]
    Position {
        /// What the peer wrote.
        found: u64,
        /// The last position it gave.
        low: u64,
        /// The position of the next send.
        high: u64,
    },
    /// A stamp has an unknown kind.
    #[error("fastbox stamp {0:#x} has an unknown kind")]
    Kind(u64),
    /// A packet claims more bytes than a fastbox carries.
    #[error("fastbox packet claims {len} bytes, {most} are possible")]
    Length {
        /// The claim.
        len: usize,
        /// The most that this ring carries.
        most: usize,
    },
}

/// Slots of a packet of `len` payload bytes.
#[inline(always)]
const fn slots_for(len: usize) -> usize {
    if len <= FIRST_BYTES { 1 } else { 1 + (len - FIRST_BYTES).div_ceil(MORE_BYTES) }
}

/// The most payload bytes of a packet in a ring of `slots`: a quarter of it, so that neither lazy positions
/// nor one large packet starve the small ones.
pub const fn max_payload(slots: usize) -> usize {
    FIRST_BYTES + (slots / 4 - 1) * MORE_BYTES
}

/// Ring position to slot index and lap. `mask` and `shift` come from our own geometry.
#[derive(Clone, Copy, Debug)]
struct Wheel {
    mask: u64,
    shift: u32,
}

impl Wheel {
    fn new(slots: usize) -> Self {
        debug_assert!(slots.is_power_of_two() && slots >= 4);
        Self { mask: slots as u64 - 1, shift: slots.trailing_zeros() }
    }

    #[inline(always)]
    fn lap(&self, position: u64) -> u64 {
        ((position >> self.shift) + 1) & 0xff
    }

    #[inline(always)]
    fn index(&self, position: u64) -> usize {
        (position & self.mask) as usize
    }
}

/// The sending end. Exclusive to one thread at a time.
#[derive(Debug)]
pub struct Sender<'a> {
    slots: &'a [Slot],
    ack: &'a Word64,
    wheel: Wheel,
    /// Position of the next slot to fill; never wraps in 64 bits.
    tail: u64,
    /// The receiver's position when last read.
    acked: u64,
}

impl<'a> Sender<'a> {
    /// A sender at the ring's start. `slots` is a power of two of at least 4, in our own memory; `ack` is in
    /// the receiver's.
    pub fn new(slots: &'a [Slot], ack: &'a Word64) -> Self {
        Self { slots, ack, wheel: Wheel::new(slots.len()), tail: 0, acked: 0 }
    }

    /// Empties the ring for a new receiver; the one before is gone. The new one learns of it by other means.
    pub(super) fn clear(&self) {
        self.slots.iter().for_each(|slot| slot.stamp.store_relaxed(0));
    }

    /// The most bytes that [`Sender::push`] takes.
    pub fn max_payload(&self) -> usize {
        max_payload(self.slots.len())
    }

    /// Sends one whole message. False when there is no room now, or it is too large for a fastbox.
    ///
    /// # Errors
    /// [`FastboxFault::Position`] when the receiver wrote an impossible position.
    #[inline(always)]
    pub fn push(&mut self, sequence: u64, envelope: &Envelope, payload: &[u8]) -> Result<bool, FastboxFault> {
        let count = slots_for(payload.len());
        if !self.has_room(count as u64)? {
            return Ok(false);
        }
        let stamp = self.wheel.lap(self.tail)
            | (envelope.kind as u64) << 8
            | (sequence & 0xffff) << 16
            | (payload.len() as u64) << 32
            | u64::from(envelope.context) << 48;
        let first = &self.slots[self.wheel.index(self.tail)];
        // The first line last, and all at once: the receiver polls it, and would take it away in between.
        let head = if count == 1 { payload } else { self.push_rest(payload) };
        first.body[0].set(envelope.tag);
        store_words(&first.body[1..], head);
        first.stamp.store_release(stamp, Edge::FastboxPublish);
        self.tail += count as u64;
        Ok(true)
    }

    /// Sends one packet whose payload lies in this cell of ours, already filled: one slot, whatever its size. False when
    /// there is no room now.
    ///
    /// # Errors
    /// As [`Sender::push`].
    #[inline(always)]
    pub fn announce(&mut self, sequence: u64, envelope: &Envelope, cell: u32) -> Result<bool, FastboxFault> {
        if !self.has_room(1)? {
            return Ok(false);
        }
        let stamp = self.wheel.lap(self.tail)
            | (envelope.kind as u64) << 8
            | IN_CELL
            | (sequence & 0xffff) << 16
            | u64::from(envelope.context) << 48;
        let slot = &self.slots[self.wheel.index(self.tail)];
        slot.body[0].set(envelope.tag);
        slot.body[1].set(u64::from(cell) | envelope.total << 32);
        // Publishes the cell's payload too: it needs no header, and no entry in the queue.
        slot.stamp.store_release(stamp, Edge::FastboxPublish);
        self.tail += 1;
        Ok(true)
    }

    /// Fills the further slots of a packet, which its first stamp will publish. Returns the first slot's payload.
    #[inline(never)]
    fn push_rest<'p>(&self, payload: &'p [u8]) -> &'p [u8] {
        let (head, rest) = payload.split_at(FIRST_BYTES);
        for (chunk, position) in rest.chunks(MORE_BYTES).zip(self.tail + 1..) {
            let slot = &self.slots[self.wheel.index(position)];
            slot.stamp.store_relaxed(self.wheel.lap(position) | CONTINUATION);
            store_words(&slot.body, chunk);
        }
        head
    }

    #[inline(always)]
    fn has_room(&mut self, count: u64) -> Result<bool, FastboxFault> {
        let slots = self.slots.len() as u64;
        // More than the receiver believes, however empty the ring is.
        if count > slots / 4 {
            return Ok(false);
        }
        if self.tail + count - self.acked <= slots {
            return Ok(true);
        }
        let found = self.ack.load_acquire(Edge::FastboxAck);
        if found < self.acked || found > self.tail {
            return Err(FastboxFault::Position { found, low: self.acked, high: self.tail });
        }
        self.acked = found;
        Ok(self.tail + count - found <= slots)
    }
}

/// A packet that the receiver sees and has not taken.
#[derive(Clone, Copy, Debug)]
pub struct Packet {
    /// Low half of the sequence number.
    pub sequence: u16,
    /// Kind, context, tag, size.
    pub envelope: Envelope,
    /// Payload bytes.
    pub len: usize,
    /// The sender's cell that holds the payload; `None` when it is in the fastbox itself. Neither this nor the length is
    /// checked against the sender's pool, which a fastbox does not know.
    pub cell: Option<u32>,
}

/// The receiving end. Exclusive to one thread at a time.
#[derive(Debug)]
pub struct Receiver<'a> {
    slots: &'a [Slot],
    ack: &'a Word64,
    wheel: Wheel,
    /// Most payload bytes of a packet.
    most: usize,
    /// Position of the next slot to read.
    head: u64,
    /// The position last told to the sender.
    told: u64,
}

impl<'a> Receiver<'a> {
    /// A receiver at the ring's start. `slots` is in the sender's memory; `ack` is in our own.
    pub fn new(slots: &'a [Slot], ack: &'a Word64) -> Self {
        Self { slots, ack, wheel: Wheel::new(slots.len()), most: max_payload(slots.len()), head: 0, told: 0 }
    }

    /// Begins anew for a new sender; the one before is gone.
    pub(super) fn clear(&self) {
        self.ack.store_relaxed(0);
    }

    /// The packet at the head, if there is one, it is this one in its sender's order, and a whole message: the critical
    /// path, one load and two comparisons. `None` says nothing about what else there may be; [`Receiver::peek`] does.
    #[inline(always)]
    pub fn due(&self, sequence: u64) -> Option<Packet> {
        let slot = &self.slots[self.wheel.index(self.head)];
        let stamp = slot.stamp.load_acquire(Edge::FastboxPublish);
        let wanted = self.wheel.lap(self.head) | (Kind::Eager as u64) << 8 | (sequence & 0xffff) << 16;
        let len = (stamp >> 32) as u16 as usize;
        if stamp as u32 != wanted as u32 || len > self.most {
            return None;
        }
        Some(packet(Kind::Eager, stamp, len, slot))
    }

    /// The packet at the head, if there is one. It stays until [`Receiver::advance`].
    ///
    /// # Errors
    /// What an honest sender never writes; every value is read once and checked here.
    #[inline(always)]
    pub fn peek(&self) -> Result<Option<Packet>, FastboxFault> {
        let slot = &self.slots[self.wheel.index(self.head)];
        let stamp = slot.stamp.load_acquire(Edge::FastboxPublish);
        if stamp & 0xff != self.wheel.lap(self.head) {
            return Ok(None);
        }
        let code = (stamp & !IN_CELL) >> 8;
        let kind = Kind::from_code(code as u8).ok_or(FastboxFault::Kind(stamp))?;
        if stamp & IN_CELL != 0 {
            let shape = slot.body[1].get();
            let len = (shape >> 32) as usize;
            return Ok(Some(Packet { cell: Some(shape as u32), ..packet(kind, stamp, len, slot) }));
        }
        let len = (stamp >> 32) as u16 as usize;
        if len > self.most {
            return Err(FastboxFault::Length { len, most: self.most });
        }
        Ok(Some(packet(kind, stamp, len, slot)))
    }

    /// Copies payload bytes of the packet at the head, from `at`. The caller asks for no more than the packet has;
    /// beyond its end stands what was sent before, and beyond the largest packet nothing is copied.
    #[inline(always)]
    pub fn read(&self, at: usize, to: &mut [u8]) {
        let len = to.len();
        if len > self.most.saturating_sub(at) {
            return;
        }
        let first = &self.slots[self.wheel.index(self.head)];
        if at != 0 {
            self.read_from(at, to);
        } else if len <= FIRST_BYTES {
            load_words(&first.body[1..], to);
        } else {
            self.read_rest(first, to);
        }
    }

    /// Bytes from the middle of a packet, word by word: for messages that nobody has asked for yet.
    #[cold]
    fn read_from(&self, mut at: usize, mut to: &mut [u8]) {
        while !to.is_empty() {
            // Seen as a run of 56-byte slots, the first slot's payload starts behind the tag, at byte 8.
            let (slot, byte) = ((at + 8) / MORE_BYTES, (at + 8) % MORE_BYTES);
            let word =
                self.slots[self.wheel.index(self.head + slot as u64)].body[byte / 8].get().to_le_bytes();
            let part = &word[byte % 8..];
            let (now, later) = to.split_at_mut(part.len().min(to.len()));
            now.copy_from_slice(&part[..now.len()]);
            at += now.len();
            to = later;
        }
    }

    #[inline(never)]
    fn read_rest(&self, first: &Slot, to: &mut [u8]) {
        let (head, rest) = to.split_at_mut(FIRST_BYTES);
        load_words(&first.body[1..], head);
        for (chunk, position) in rest.chunks_mut(MORE_BYTES).zip(self.head + 1..) {
            load_words(&self.slots[self.wheel.index(position)].body, chunk);
        }
    }

    /// Gives back the slots of the packet at the head, of `len` payload bytes. Returns whether the sender can see it: positions are told once a
    /// quarter of the ring.
    #[inline(always)]
    pub fn advance(&mut self, len: usize) -> bool {
        self.head += slots_for(len) as u64;
        if self.head - self.told < self.slots.len() as u64 / 4 {
            return false;
        }
        self.told = self.head;
        self.ack.store_release(self.head, Edge::FastboxAck);
        true
    }
}

#[inline(always)]
fn packet(kind: Kind, stamp: u64, len: usize, slot: &Slot) -> Packet {
    let context = (stamp >> 48) as u16;
    let envelope = Envelope { kind, context, tag: slot.body[0].get(), total: len as u64 };
    Packet { sequence: (stamp >> 16) as u16, envelope, len, cell: None }
}

/// Writes bytes as little-endian words, the last one padded with zeros.
#[inline(always)]
fn store_words(words: &[PayloadWord], bytes: &[u8]) {
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
