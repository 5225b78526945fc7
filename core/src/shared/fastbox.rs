//! The fastbox: a ring of half cache lines from one process to one other (paper 4, section 2).
//!
//! Header and payload of a small message share the cache line that the receiver polls, so its delivery costs one
//! cache-line transfer. The paper has a single slot per pair; this is a ring, so a burst fits, and larger messages
//! take several slots. A slot is half a line: in a stream of small messages, one line transfer moves two messages,
//! which matters between distant cores. Nothing is cleared after reading. A lap number in each stamp distinguishes
//! new from old: every slot of a packet has one, and each lap writes every slot. The receiver reports its position
//! rarely, in its own memory, and the sender reads that position only when the ring looks full. If the ring is full,
//! the sender waits for a short time: a packet in a cell instead costs both ends several times as much.
//!
//! The first stamp of a packet publishes it and is stored last ([`Edge::FastboxPublish`]). The position releases the
//! slots ([`Edge::FastboxAck`]).

mod immediate;
mod inbound;
mod payload;
mod place;
mod room;
mod short;

use crate::port::SHORT_BYTES;
use crate::sync::{Edge, PayloadWord, Word64, spin_hint};
pub use crate::wire::fault::FastboxFault;
use crate::wire::prefix::{MOST_PREFIX_BYTES, PrefixWords};
use crate::wire::{Envelope, Kind};
pub use inbound::InboundShort;

use payload::PrefixedPayload;
use place::FastboxPlace;
use short::ShortMessage;

/// Payload bytes in the first slot of a packet: a short message is one slot.
pub const FIRST_BYTES: usize = SHORT_BYTES;
/// Payload bytes in each further slot.
pub const MORE_BYTES: usize = 24;
/// Position of the fields in a stamp; the length has the lowest bits. So one subtraction and one comparison check
/// all other fields and the limit of the length.
const CONTEXT_AT: u32 = 16;
const LAP_AT: u32 = 32;
const KIND_AT: u32 = 40;
const SEQUENCE_AT: u32 = 48;
/// Kind code in the stamp of a further slot.
const CONTINUATION: u64 = 0xff << KIND_AT;
/// Most polls of the receiver's position by a sender that finds the ring full: about two microseconds, in which a
/// receiver between two cores that reads without pause releases half of a ring.
const ROOM_POLLS: u32 = if cfg!(nemesia_loom) { 1 } else { 64 };
/// Flag in the kind code of a packet whose payload lies in a cell of the sender.
const IN_CELL: u64 = 0x80 << KIND_AT;

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

/// Returns the number of slots of a packet with `len` payload bytes.
#[inline(always)]
const fn slots_for(len: usize) -> usize {
    // All slots but the first are full, rounded up; at most `FIRST_BYTES` give one slot.
    const { assert!(FIRST_BYTES < MORE_BYTES) };
    (len + 2 * MORE_BYTES - 1 - FIRST_BYTES) / MORE_BYTES
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
    beyond: u32,
    /// Whether the last wait for space was in vain. There is no further wait until the receiver has released slots:
    /// a receiver that does other work costs one wait for each ring that it leaves full.
    is_stalled: bool,
}

impl<'a> FastboxSender<'a> {
    /// Returns a sender at the start of the ring. The number of `slots` is a power of two of at least 4. They lie in
    /// this process's memory; `ack` lies in the receiver's.
    pub fn new(slots: &'a [FastboxSlot], ack: &'a Word64) -> Self {
        Self { ack, tail: FastboxPlace::new(slots, slots.len()), beyond: 0, is_stalled: false }
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
        let stamp = self.stamp(sequence, envelope, payload.len());
        if !self.fill(count, stamp, envelope.tag, payload) {
            self.fill_around(count, stamp, envelope.tag, payload);
        }
        Ok(true)
    }

    /// As [`FastboxSender::push`], for a whole message whose slots are known to be free and do not wrap. Returns
    /// `false` in all other cases.
    #[inline(always)]
    pub fn push_now(&mut self, sequence: u64, context: u16, tag: u64, payload: &[u8]) -> bool {
        let count = slots_for(payload.len());
        let stamp = self.tail.eager_stamp(sequence, context) | payload.len() as u64;
        count <= self.tail.slots.len() / 4 && self.fill(count, stamp, tag, payload)
    }

    /// As [`FastboxSender::push_now`], for a packet of another kind that begins with `words` and goes on with `body`.
    #[inline(always)]
    pub fn push_prefixed(
        &mut self,
        sequence: u64,
        envelope: &Envelope,
        words: PrefixWords,
        body: &[u8],
    ) -> bool {
        let len = words.bytes() + body.len();
        let count = slots_for(len);
        if count > self.tail.slots.len() / 4 {
            return false;
        }
        let run = self.tail.run.as_slice();
        let (Some(packet), Some(rest)) = (run.get(..count), run.get(count..)) else { return false };
        let Some((slot, further)) = packet.split_first() else { return false };
        let stamp = self.stamp(sequence, envelope, len);
        let payload = PrefixedPayload::new(words, body);
        payload.store_further(further, self.tail.lap() | CONTINUATION);
        payload::store_short(slot, envelope.tag, payload.first);
        slot.stamp.store_release(stamp, Edge::FastboxPublish);
        self.tail.run = rest.iter();
        true
    }

    /// Fills the next `count` slots, if they are in the run, and publishes the packet.
    #[inline(always)]
    fn fill(&mut self, count: usize, stamp: u64, tag: u64, payload: &[u8]) -> bool {
        let run = self.tail.run.as_slice();
        let (Some(packet), Some(rest)) = (run.get(..count), run.get(count..)) else { return false };
        let Some((first, further)) = packet.split_first() else { return false };
        // The first line is written last and all at once: the receiver polls it, and would fetch the line between
        // separate writes.
        payload::store_further(further, self.tail.lap() | CONTINUATION, payload);
        payload::store_first(first, tag, payload);
        first.stamp.store_release(stamp, Edge::FastboxPublish);
        self.tail.run = rest.iter();
        true
    }

    /// As [`FastboxSender::fill`], for slots that are free, but are not all in the run.
    #[inline(never)]
    fn fill_around(&mut self, count: usize, stamp: u64, tag: u64, payload: &[u8]) {
        let Some(first) = self.tail.run.as_slice().first() else { return };
        for number in 1..count {
            let (slot, lap) = self.tail.further(number);
            slot.stamp.store_relaxed(lap | CONTINUATION);
            payload::store_one(slot, payload, (number, count));
        }
        payload::store_first(first, tag, payload);
        first.stamp.store_release(stamp, Edge::FastboxPublish);
        self.advance(count);
    }

    #[inline(always)]
    const fn stamp(&self, sequence: u64, envelope: &Envelope, len: usize) -> u64 {
        self.tail.lap()
            | (envelope.kind as u64) << KIND_AT
            | sequence << SEQUENCE_AT
            | (envelope.context as u64) << CONTEXT_AT
            | len as u64
    }

    /// As [`FastboxSender::push`], for a short message: the critical path. Also returns `false` if space is known
    /// only after reading the receiver's position.
    #[inline(always)]
    pub fn push_short(&mut self, sequence: u64, context: u16, tag: u64, bytes: &[u8]) -> bool {
        let stamp = self.tail.eager_stamp(sequence, context) | bytes.len() as u64;
        let Some(slot) = self.tail.run.next() else { return false };
        payload::store_short(slot, tag, ShortMessage::new(bytes));
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
        let stamp = self.stamp(sequence, envelope, 0) | IN_CELL;
        let Some(slot) = self.tail.run.next() else { return false };
        slot.body[0].set(envelope.tag);
        slot.body[1].set(u64::from(cell) | envelope.total << 32);
        slot.body[2].set(back.map_or(0, |cell| u64::from(cell) + 1));
        // This store also publishes the payload of the cell, which needs no header and no queue entry. Reads of the
        // returned cell happen before this store.
        slot.stamp.store_release(stamp, Edge::FastboxPublish);
        true
    }

    /// Advances past `count` filled slots, which are more than the run has.
    #[cold]
    fn advance(&mut self, count: usize) {
        let room = self.room() - count;
        self.set_room(self.tail.at() + count, room);
    }

    fn room(&self) -> usize {
        self.tail.run.as_slice().len() + self.beyond as usize
    }

    /// Moves to slot `at`. `room` slots from there on are released.
    fn set_room(&mut self, at: usize, room: usize) {
        self.tail.set(at, room);
        self.beyond = (room - self.tail.run.as_slice().len()) as u32;
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
            room = self.await_room(count, room)?;
        }
        self.set_room(self.tail.at(), room);
        Ok(count <= room)
    }

    /// Reads the receiver's position until `count` slots are free, but only for a short time. Returns the number of
    /// free slots. `room` slots were free before.
    fn await_room(&mut self, count: usize, mut room: usize) -> Result<usize, FastboxFault> {
        let high = self.tail.position();
        let mut low = high + room as u64 - self.tail.slots.len() as u64;
        let mut left = if self.is_stalled { 0 } else { ROOM_POLLS };
        loop {
            let found = self.ack.load_acquire(Edge::FastboxAck);
            if found < low || found > high {
                return Err(FastboxFault::Position { found, low, high });
            }
            room += (found - low) as usize;
            if count <= room || left == 0 {
                self.is_stalled = count > room;
                return Ok(room);
            }
            low = found;
            left -= 1;
            spin_hint();
        }
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

    /// Limits further runs to `most` slots, at least one. At most this number of short messages can be taken before
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

    /// Returns the packet at the head if it has this sequence number and is a whole message: the critical path, one
    /// load and two comparisons. If the result is `None`, another packet may be at the head: [`FastboxReceiver::peek`]
    /// returns it.
    #[inline(always)]
    pub fn due(&self, sequence: u64) -> Option<FastboxPacket> {
        let slot = self.head.run.as_slice().first()?;
        let stamp = slot.stamp.load_acquire(Edge::FastboxPublish);
        let len = stamp as u16 as usize;
        if (stamp ^ self.head.eager_stamp(sequence, 0)) >> LAP_AT != 0 || len > self.most {
            return None;
        }
        Some(packet(Kind::Eager, stamp, len, slot))
    }

    /// As [`FastboxReceiver::due`], for a packet of any kind whose payload lies in the fastbox.
    #[inline(always)]
    pub fn due_of_any_kind(&self, sequence: u64) -> Option<FastboxPacket> {
        const KIND_BITS: u64 = 0xff << (KIND_AT - LAP_AT);
        let slot = self.head.run.as_slice().first()?;
        let stamp = slot.stamp.load_acquire(Edge::FastboxPublish);
        let len = stamp as u16 as usize;
        if ((stamp ^ self.head.eager_stamp(sequence, 0)) >> LAP_AT) & !KIND_BITS != 0 || len > self.most {
            return None;
        }
        // The code of a packet in a cell, or of a further slot, is that of no kind.
        Some(packet(Kind::from_code((stamp >> KIND_AT) as u8)?, stamp, len, slot))
    }

    /// As [`FastboxReceiver::due`], for a packet whose payload lies in a cell.
    #[inline(always)]
    pub fn due_in_cell(&self, sequence: u64) -> Option<FastboxPacket> {
        let slot = self.head.run.as_slice().first()?;
        let stamp = slot.stamp.load_acquire(Edge::FastboxPublish);
        let wanted = self.head.eager_stamp(sequence, 0) | IN_CELL;
        ((stamp ^ wanted) >> LAP_AT == 0).then(|| in_cell(Kind::Eager, stamp, slot))
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
        stamp.is_some_and(|stamp| self.head.is_current(stamp))
    }

    /// Returns the packet at the head, if there is one. The packet stays until [`FastboxReceiver::advance`].
    ///
    /// # Errors
    /// A value that violates the protocol. Every value is read once and checked here.
    #[inline(always)]
    pub fn peek(&self) -> Result<Option<FastboxPacket>, FastboxFault> {
        let Some(slot) = self.head.run.as_slice().first() else { return Ok(None) };
        let stamp = slot.stamp.load_acquire(Edge::FastboxPublish);
        if !self.head.is_current(stamp) {
            return Ok(None);
        }
        let code = (stamp & !IN_CELL) >> KIND_AT;
        let kind = Kind::from_code(code as u8).ok_or(FastboxFault::Kind(stamp))?;
        if stamp & IN_CELL != 0 {
            return Ok(Some(in_cell(kind, stamp, slot)));
        }
        let len = stamp as u16 as usize;
        if len > self.most {
            return Err(FastboxFault::Length { len, most: self.most });
        }
        Ok(Some(packet(kind, stamp, len, slot)))
    }

    /// Returns the first two words of the packet at the head, which lies in the fastbox. A word is significant if the
    /// packet is so long. The peer wrote the values.
    #[inline(always)]
    pub fn words(&self) -> [u64; 2] {
        let Some(slot) = self.head.run.as_slice().first() else { return [0; 2] };
        [slot.body[1].get(), slot.body[2].get()]
    }

    /// As [`FastboxReceiver::read`], for all bytes of the packet at the head after its words, of 8 or 16 bytes.
    #[inline(always)]
    pub fn read_behind(&self, len: usize, skip: usize, to: &mut [u8]) {
        const SHORT: usize = MOST_PREFIX_BYTES + MORE_BYTES;
        let Some(first) = self.head.run.as_slice().first() else { return };
        if skip == 8 && len <= FIRST_BYTES {
            payload::load_short(first, len).rest().write(to);
        } else if len <= SHORT && to.len() + skip == len {
            let mut whole = [0; SHORT];
            self.read(len, 0, &mut whole[..len]);
            to.copy_from_slice(&whole[skip..len]);
        } else {
            self.read_part(len, skip, to);
        }
    }

    /// Copies payload bytes, from `at` on, of the packet at the head, which has `len` bytes. If the packet is not so
    /// long, or no packet can be, nothing is copied.
    #[inline(always)]
    pub fn read(&self, len: usize, at: usize, to: &mut [u8]) {
        let Some(first) = self.head.run.as_slice().first() else { return };
        if to.len() != len || at != 0 {
            return self.read_part(len, at, to);
        }
        if len <= FIRST_BYTES {
            return payload::load_short(first, len).write(to);
        }
        match self.head.contiguous(slots_for(len)) {
            Some([first, further @ ..]) => payload::load(first, further, to),
            _ => self.read_around(first, slots_for(len), to),
        }
    }

    /// As [`FastboxReceiver::read`], for a whole packet that wraps.
    #[inline(never)]
    fn read_around(&self, first: &FastboxSlot, count: usize, to: &mut [u8]) {
        if to.len() > self.most {
            return;
        }
        payload::load(first, &[], to);
        for number in 1..count {
            payload::load_one(self.head.further(number).0, to, (number, count));
        }
    }

    /// Copies a part of a packet: word by word, if it is not what follows after one or two words.
    #[inline(never)]
    fn read_part(&self, len: usize, mut at: usize, mut to: &mut [u8]) {
        if to.len() >= MORE_BYTES
            && at.checked_add(to.len()) == Some(len)
            && let Some([first, further @ ..]) = self.head.contiguous(slots_for(len))
            && payload::load_behind(first, further, at, to)
        {
            return;
        }
        if len > self.most || at.checked_add(to.len()).is_none_or(|end| end > len) {
            return;
        }
        while !to.is_empty() {
            let (number, word, bytes) = payload::locate(len, at);
            let word = self.head.further(number).0.body[word].get().to_le_bytes();
            let part = word.get(bytes).unwrap_or_default();
            let (now, later) = to.split_at_mut(part.len().min(to.len()));
            now.copy_from_slice(&part[..now.len()]);
            at += now.len();
            to = later;
        }
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

    /// Takes the packet at the head if it has this sequence number, is a short message in this context of at most
    /// `room` bytes, and its tag is wanted: the critical path, one load and one comparison. Returns the packet, which
    /// the caller reads next, and whether [`FastboxReceiver::end_run`] must be called after that. If the result is
    /// `None`, another packet may be at the head.
    #[inline(always)]
    pub fn take_short(
        &mut self,
        sequence: u64,
        context: u16,
        room: usize,
        wanted: impl FnOnce(u64) -> bool,
    ) -> Option<(InboundShort<'a>, bool)> {
        let mut run = self.head.run.clone();
        let slot = run.next()?;
        let stamp = slot.stamp.load_acquire(Edge::FastboxPublish);
        // If no other field differs, the difference is the length.
        if stamp ^ self.head.eager_stamp(sequence, context) > SHORT_BYTES as u64 {
            return None;
        }
        let (tag, len) = (slot.body[0].get(), stamp as u16 as usize);
        if len > room || !wanted(tag) {
            return None;
        }
        let ended = run.as_slice().is_empty();
        self.head.run = run;
        Some((InboundShort { slot, tag, len }, ended))
    }

    /// Starts the next run, after [`FastboxReceiver::take_short`]. Returns the largest possible number of slots of the
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
    let context = (stamp >> CONTEXT_AT) as u16;
    let envelope = Envelope { kind, context, tag: slot.body[0].get(), total: len as u64 };
    FastboxPacket { sequence: (stamp >> SEQUENCE_AT) as u16, envelope, len, cell: None }
}

/// Returns a packet whose payload lies in a cell.
#[inline(always)]
fn in_cell(kind: Kind, stamp: u64, slot: &FastboxSlot) -> FastboxPacket {
    let shape = slot.body[1].get();
    FastboxPacket { cell: Some(shape as u32), ..packet(kind, stamp, (shape >> 32) as usize, slot) }
}
