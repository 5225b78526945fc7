//! The cell pool: a process's buffers for messages that a fastbox does not take (paper 4, section 2).
//!
//! Cells live in their owner's segment and only the owner writes them. A filled cell is announced in a fastbox, which
//! publishes it and says all that there is to say; or it is published by its own
//! sequence word ([`Edge::CellPublish`]), which also says whom it is for: the cell proves itself, wherever its
//! number was found. The receiver gives it back through a ring in *its* own segment, one ring an owner
//! ([`Edge::CellReturn`]), which stands for Nemesis's free queue: one writer, one reader, nothing to wedge; or with the
//! announcement of a cell of its own, if it answers at once.
//!
//! The owner remembers in private memory to whom each cell went. So a peer can't give back what it does not
//! hold, and the cells that a dead peer held are simply taken back.

use core::borrow::BorrowMut;

use crate::payload::BorrowedGather;
use crate::sync::{Edge, Payload, PayloadMut, PayloadWord, Word32, Word64};
use crate::wire::{Envelope, Kind, SEQUENCE_MASK};

/// A cell's header: one cache line, laid out as [`crate::wire`] says.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct CellHeader {
    publish: Word64,
    shape: PayloadWord,
    tag: PayloadWord,
    reserved: [PayloadWord; 5],
}

impl CellHeader {
    /// A cell that was never sent, for a model or private memory.
    pub fn empty() -> Self {
        let word = || PayloadWord::new(0);
        Self {
            publish: Word64::new(0),
            shape: word(),
            tag: word(),
            reserved: core::array::from_fn(|_| word()),
        }
    }
}

/// An entry of a return ring.
#[repr(transparent)]
#[derive(Debug)]
pub struct ReturnSlot(Word32);

impl ReturnSlot {
    /// An empty entry (lap 0), for a model or private memory.
    pub fn empty() -> Self {
        Self(Word32::new(0))
    }
}

/// How the lines of a cell are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writing {
    /// As any memory.
    Plain,
    /// The receiver has the lines, as it read them last: [all are taken first](PayloadMut::write_taking).
    Taking,
    /// [Past the caches](PayloadMut::write_past_caches).
    PastCaches,
}

/// When a cell that comes back is taken again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// At once: it is likeliest in our cache.
    First,
    /// After the next one, which has been [made ready](Pool::warm).
    Second,
    /// After all others: whoever fills cells past the caches wants one that is in no cache any more.
    Last,
}

/// What the owner privately knows of one cell.
#[derive(Clone, Copy, Debug, Default)]
pub struct CellRecord {
    /// Who holds it, plus one; 0 when it is free.
    holder: u32,
    /// The next free cell, plus one; 0 at the end of the list.
    next: u32,
}

/// A peer gave back a cell that it did not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cell {cell} was given back by a peer that does not hold it")]
pub struct ReturnFault {
    /// What the peer wrote.
    pub cell: u32,
}

/// The owner's end of the pool.
#[derive(Debug)]
pub struct Pool<'a, R: BorrowMut<[CellRecord]>> {
    headers: &'a [CellHeader],
    payload: PayloadMut<'a>,
    cell_bytes: usize,
    records: R,
    first_free: u32,
    last_free: u32,
    free: usize,
}

impl<'a, R: BorrowMut<[CellRecord]>> Pool<'a, R> {
    /// A pool with every cell free. `None` when there are more headers than records, or less payload than
    /// `cell_bytes` for each.
    pub fn new(
        headers: &'a [CellHeader],
        payload: PayloadMut<'a>,
        cell_bytes: usize,
        mut records: R,
    ) -> Option<Self> {
        let count = headers.len();
        if records.borrow().len() != count || count.checked_mul(cell_bytes)? > payload.len() {
            return None;
        }
        for (record, next) in records.borrow_mut().iter_mut().zip(2u32..) {
            let last = next as usize > count;
            *record = CellRecord { holder: 0, next: if last { 0 } else { next } };
        }
        let first_free = u32::from(count > 0);
        let last_free = count as u32;
        Some(Self { headers, payload, cell_bytes, records, first_free, last_free, free: count })
    }

    /// Payload bytes of a cell.
    #[inline]
    pub fn cell_bytes(&self) -> usize {
        self.cell_bytes
    }

    /// Cells that can be taken now.
    #[inline]
    pub fn free(&self) -> usize {
        self.free
    }

    /// Takes a free cell for `holder`: the one given back last, or as its [`Turn`] says.
    #[inline]
    pub fn take(&mut self, holder: u32) -> Option<u32> {
        let cell = self.first_free.checked_sub(1)?;
        let record = &mut self.records.borrow_mut()[cell as usize];
        self.first_free = record.next;
        record.holder = holder + 1;
        self.free -= 1;
        Some(cell)
    }

    /// Fills a cell that [`Pool::take`] gave with bytes in two pieces; whoever sends it publishes it. False
    /// when they do not fit: nothing is done.
    #[inline(always)]
    #[must_use]
    pub fn fill(&self, cell: u32, [head, body]: [&[u8]; 2], how: Writing) -> bool {
        let at = cell as usize * self.cell_bytes;
        self.holds(cell, head.len() + body.len())
            && self.write(at, head, how)
            && self.write(at + head.len(), body, how)
    }

    /// As [`Pool::fill`], with `len` bytes of a list, from `at` on: gathered in the cell itself.
    #[must_use]
    pub fn fill_list(
        &self,
        cell: u32,
        from: &mut BorrowedGather<'_>,
        at: usize,
        len: usize,
        how: Writing,
    ) -> bool {
        if !self.holds(cell, len) {
            return false;
        }
        let base = cell as usize * self.cell_bytes;
        let mut fit = true;
        from.each(at, len, |done, part| fit &= self.write(base + done, part, how));
        fit
    }

    #[inline(always)]
    fn write(&self, at: usize, bytes: &[u8], how: Writing) -> bool {
        match how {
            Writing::Taking => self.payload.write_taking(at, bytes),
            Writing::PastCaches if !bytes.is_empty() => self.payload.write_past_caches(at, bytes),
            _ => self.payload.write(at, bytes),
        }
    }

    fn holds(&self, cell: u32, len: usize) -> bool {
        (cell as usize) < self.headers.len() && len <= self.cell_bytes
    }

    /// The cell that will be taken next.
    #[inline(always)]
    pub fn first(&self) -> Option<u32> {
        self.first_free.checked_sub(1)
    }

    /// Writes to each line of `len` bytes of a free cell, from `at` on, which is a line's beginning: they then belong to this core, and
    /// whoever fills the cell does not wait for them. False, and nothing is done, if the cell is not free or has fewer.
    #[must_use]
    pub fn warm(&self, cell: u32, at: usize, len: usize) -> bool {
        let record = self.records.borrow().get(cell as usize);
        let is_free = record.is_some_and(|record| record.holder == 0);
        is_free
            && at.checked_add(len).is_some_and(|end| end <= self.cell_bytes)
            && self.payload.warm(cell as usize * self.cell_bytes + at, len)
    }

    /// Publishes a filled cell of `envelope.total` bytes by its own header: it is then found wherever its number stands.
    #[inline]
    pub fn publish(&self, cell: u32, holder: u16, sequence: u64, envelope: &Envelope) {
        let Some(header) = self.headers.get(cell as usize) else { return };
        header.shape.set(envelope.total | (envelope.kind as u64) << 32 | u64::from(envelope.context) << 48);
        header.tag.set(envelope.tag);
        header.publish.store_release(publish_word(holder, sequence), Edge::CellPublish);
    }

    /// Takes back a cell that `holder` says it has finished with, to be taken in this turn.
    ///
    /// # Errors
    /// The cell is not one that `holder` holds; nothing is done.
    #[inline]
    pub fn give_back(&mut self, cell: u32, holder: u32, turn: Turn) -> Result<(), ReturnFault> {
        let before = match turn {
            Turn::First => None,
            Turn::Second => self.first(),
            Turn::Last => self.last_free.checked_sub(1).filter(|_| self.free > 0),
        };
        let next = before.map_or(self.first_free, |before| self.records.borrow()[before as usize].next);
        *self.held_by(cell, holder)? = CellRecord { holder: 0, next };
        match before {
            None => self.first_free = cell + 1,
            Some(before) => self.records.borrow_mut()[before as usize].next = cell + 1,
        }
        if next == 0 {
            self.last_free = cell + 1;
        }
        self.free += 1;
        Ok(())
    }

    /// What is known of a cell, if `holder` holds it.
    #[inline(always)]
    fn held_by(&mut self, cell: u32, holder: u32) -> Result<&mut CellRecord, ReturnFault> {
        let record = self.records.borrow_mut().get_mut(cell as usize);
        record.filter(|record| record.holder == holder + 1).ok_or(ReturnFault { cell })
    }

    /// Takes from every cell what it said to a peer that is gone: its next process counts from the beginning. None is the
    /// peer's by now.
    pub(super) fn forget(&self, holder: u32) {
        for header in
            self.headers.iter().filter(|header| header.publish.load_relaxed() as u16 == holder as u16)
        {
            header.publish.store_relaxed(0);
        }
    }

    /// Takes back every cell that a dead peer held. Returns how many.
    pub fn reclaim(&mut self, holder: u32) -> usize {
        let before = self.free;
        for cell in 0..self.headers.len() as u32 {
            // A cell that the peer does not hold is left alone.
            let _ = self.give_back(cell, holder, Turn::First);
        }
        self.free - before
    }
}

#[inline(always)]
const fn publish_word(holder: u16, sequence: u64) -> u64 {
    (sequence & SEQUENCE_MASK) << 16 | holder as u64
}

/// What a cell of a peer is to us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CellState {
    /// Not for us, or a message that we have had.
    Other,
    /// For us, but something before it has not come.
    Early,
    /// The next packet from its owner.
    Due {
        /// Kind, context, tag and size of the message.
        envelope: Envelope,
        /// Payload bytes in this cell.
        len: usize,
    },
    /// The next packet from its owner, but its header is not one that an honest peer writes.
    Malformed,
}

/// A peer's pool, as its receivers see it.
#[derive(Clone, Copy, Debug)]
pub struct PeerPool<'a> {
    headers: &'a [CellHeader],
    payload: Payload<'a>,
    cell_bytes: usize,
}

impl<'a> PeerPool<'a> {
    /// A view of a peer's cells.
    pub const fn new(headers: &'a [CellHeader], payload: Payload<'a>, cell_bytes: usize) -> Self {
        Self { headers, payload, cell_bytes }
    }

    /// Looks at a cell: is it for `me`, and is it packet `expected`? Every word is read once.
    #[inline]
    pub fn inspect(&self, cell: u32, me: u16, expected: u64) -> CellState {
        let Some(header) = self.headers.get(cell as usize) else { return CellState::Other };
        let word = header.publish.load_acquire(Edge::CellPublish);
        if word as u16 != me {
            return CellState::Other;
        }
        // Distance on the circle of 48-bit numbers: the far half is the past.
        match ((word >> 16).wrapping_sub(expected)) & SEQUENCE_MASK {
            0 => self.due(header),
            ahead if ahead <= SEQUENCE_MASK / 2 && word >> 16 != 0 => CellState::Early,
            _ => CellState::Other,
        }
    }

    #[inline]
    fn due(&self, header: &CellHeader) -> CellState {
        let shape = header.shape.get();
        let len = shape as u32 as usize;
        let Some(kind) = Kind::from_code((shape >> 32) as u8) else { return CellState::Malformed };
        if len > self.cell_bytes {
            return CellState::Malformed;
        }
        let (context, tag) = ((shape >> 48) as u16, header.tag.get());
        let envelope = Envelope { kind, context, tag, total: len as u64 };
        CellState::Due { envelope, len }
    }

    /// The cell that holds packet `expected` for `me`, wherever it is: what makes the receive queue a hint.
    pub fn find(&self, me: u16, expected: u64) -> Option<u32> {
        (0..self.headers.len() as u32).find(|&cell| {
            matches!(self.inspect(cell, me, expected), CellState::Due { .. } | CellState::Malformed)
        })
    }

    /// Whether a cell of this number can hold so many bytes: for the word of a peer that says it does.
    #[inline]
    pub fn holds(&self, cell: u32, len: usize) -> bool {
        (cell as usize) < self.headers.len() && len <= self.cell_bytes
    }

    /// Copies payload bytes of a cell out, from `at`. False when they are not all in the cell.
    #[inline]
    #[must_use]
    pub fn read(&self, cell: u32, at: usize, to: &mut [u8]) -> bool {
        at + to.len() <= self.cell_bytes && self.payload.read(cell as usize * self.cell_bytes + at, to)
    }

    /// As [`PeerPool::read`], past the caches.
    #[inline]
    #[must_use]
    pub fn read_past_caches(&self, cell: u32, at: usize, to: &mut [u8]) -> bool {
        at + to.len() <= self.cell_bytes
            && self.payload.read_past_caches(cell as usize * self.cell_bytes + at, to)
    }
}

/// The receiver's end of a return ring, in the receiver's memory. It can't overflow: the owner has at most as
/// many cells as the ring has slots, and a cell is given back once.
#[derive(Debug)]
pub struct ReturnSender<'a> {
    slots: &'a [ReturnSlot],
    tail: u32,
}

/// The owner's end of a return ring, in the receiver's memory.
#[derive(Debug)]
pub struct ReturnReceiver<'a> {
    slots: &'a [ReturnSlot],
    head: u32,
}

/// Lap of a position, in the slot's upper half. Lap 0 (an empty slot) comes round again after 65,535 laps, when
/// each slot holds the lap before.
#[inline]
fn return_lap(slots: &[ReturnSlot], position: u32) -> u32 {
    ((position >> slots.len().trailing_zeros()).wrapping_add(1)) << 16
}

#[inline]
fn return_slot(slots: &[ReturnSlot], position: u32) -> &ReturnSlot {
    &slots[position as usize & (slots.len() - 1)]
}

impl<'a> ReturnSender<'a> {
    /// An empty ring; the number of slots is a power of two, at most 65,536.
    pub const fn new(slots: &'a [ReturnSlot]) -> Self {
        Self { slots, tail: 0 }
    }

    /// Empties the ring for a new owner of the cells; the one before is gone.
    pub(super) fn clear(&self) {
        self.slots.iter().for_each(|slot| slot.0.store_relaxed(0));
    }

    /// Gives a cell back; its payload is not read any more.
    #[inline]
    pub fn push(&mut self, cell: u32) {
        let value = return_lap(self.slots, self.tail) | (cell & 0xffff);
        return_slot(self.slots, self.tail).0.store_release(value, Edge::CellReturn);
        self.tail = self.tail.wrapping_add(1);
    }
}

impl<'a> ReturnReceiver<'a> {
    /// An empty ring; the number of slots is a power of two, at most 65,536.
    pub const fn new(slots: &'a [ReturnSlot]) -> Self {
        Self { slots, head: 0 }
    }

    /// The next cell given back. The value is the peer's word: [`Pool::give_back`] checks it.
    #[inline]
    pub fn pop(&mut self) -> Option<u32> {
        let value = return_slot(self.slots, self.head).0.load_acquire(Edge::CellReturn);
        if value & 0xffff_0000 != return_lap(self.slots, self.head) {
            return None;
        }
        self.head = self.head.wrapping_add(1);
        Some(value & 0xffff)
    }
}
