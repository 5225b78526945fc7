//! The cell pool: a process's buffers for messages that do not go through a fastbox (paper 4, section 2).
//!
//! Cells lie in their owner's segment, and only the owner writes them. A filled cell is published in one of
//! two ways. An announcement in a fastbox publishes it and describes it completely. Or the cell's own
//! sequence word publishes it ([`Edge::CellPublish`]); the word includes the destination, so the receiver can
//! validate the cell wherever it found the cell's number. The receiver returns the cell through a ring in
//! *its* own segment, one ring per owner ([`Edge::CellReturn`]). The ring replaces Nemesis's free queue: it
//! has one writer and one reader, so no dead process can block it. If the receiver replies at once, the
//! announcement of its own cell returns the cell instead.
//!
//! The owner records in private memory which peer holds each cell. A peer therefore cannot return a cell that
//! it does not hold, and the owner reclaims the cells of a dead peer. From a peer that lives, it takes them back by a
//! [`EndMark`].

use core::borrow::BorrowMut;

use super::end_mark::EndMark;
#[cfg(nemesia_injected_fault)]
use crate::injected_fault::{InjectedFault, injected};
use crate::payload::{BorrowedGather, Exposed};
use crate::sync::{Edge, Payload, PayloadMut, PayloadWord, Word32, Word64};
pub use crate::wire::fault::ReturnFault;
use crate::wire::rendezvous::Stores;
use crate::wire::{Envelope, Kind, SEQUENCE_MASK};

/// The smallest page of every processor that this library knows, in bytes.
const PAGE: usize = 4096;

/// The header of a cell: one cache line, whose layout [`crate::wire`] defines.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct CellHeader {
    publish: Word64,
    shape: PayloadWord,
    tag: PayloadWord,
    reserved: [PayloadWord; 5],
}

impl CellHeader {
    /// Returns the header of a cell that was never sent, for a model or private memory.
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
    /// Returns an empty entry (lap 0), for a model or private memory.
    pub fn empty() -> Self {
        Self(Word32::new(0))
    }
}

/// The reuse order of a returned cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReuseOrder {
    /// Next: the cell is probably in this core's cache.
    First,
    /// After the next cell, for which a write prefetch was made ([`CellPool::prefetch`]).
    Second,
    /// After all other cells: non-temporal stores are best into a cell that is in no cache.
    Last,
}

/// The owner's private record of one cell.
#[derive(Clone, Copy, Debug, Default)]
pub struct CellRecord {
    /// The peer that holds the cell, plus one; 0 if the cell is free.
    holder: u32,
    /// The next free cell, plus one; 0 at the end of the list.
    next: u32,
    /// The bytes that were filled so far.
    filled: u32,
    /// How it was filled, if that is measured; 0 if not.
    measured: u8,
}

/// The owner's end of the pool.
#[derive(Debug)]
pub struct CellPool<'a, R: BorrowMut<[CellRecord]>> {
    headers: &'a [CellHeader],
    payload: PayloadMut<'a>,
    cell_bytes: usize,
    records: R,
    first_free: u32,
    last_free: u32,
    free: usize,
}

impl<'a, R: BorrowMut<[CellRecord]>> CellPool<'a, R> {
    /// Returns a pool with every cell free. `None` if there are more headers than records, or less payload
    /// than `cell_bytes` for each.
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
            *record = CellRecord { next: if last { 0 } else { next }, ..CellRecord::default() };
        }
        let first_free = u32::from(count > 0);
        let last_free = count as u32;
        Some(Self { headers, payload, cell_bytes, records, first_free, last_free, free: count })
    }

    /// Returns the payload bytes of a cell.
    #[inline]
    pub fn cell_bytes(&self) -> usize {
        self.cell_bytes
    }

    /// Returns the number of free cells.
    #[inline]
    pub fn free(&self) -> usize {
        self.free
    }

    /// Takes a free cell for `holder`: the most recently returned one, unless its [`ReuseOrder`] says
    /// otherwise.
    #[inline]
    pub fn take(&mut self, holder: u32) -> Option<u32> {
        let cell = self.first_free.checked_sub(1)?;
        let record = &mut self.records.borrow_mut()[cell as usize];
        self.first_free = record.next;
        record.holder = holder + 1;
        self.free -= 1;
        Some(cell)
    }

    /// Returns the stores for a cell that is filled with `len` bytes now, where `wanted` are wanted: plain ones for
    /// pages and more, if some of these were never used. The first store to a page makes the kernel clear it, so all
    /// its lines are in this core's cache, and non-temporal stores would force each of them out: 20 KB took 25 us on a
    /// Zen 3. The time of such a fill differs from that of later ones.
    #[inline(always)]
    pub(super) fn stores(&mut self, cell: u32, len: usize, wanted: Option<Stores>) -> Option<Stores> {
        if len < PAGE {
            return wanted;
        }
        match self.records.borrow_mut().get_mut(cell as usize) {
            Some(record) if len > record.filled as usize => {
                record.filled = len.next_multiple_of(PAGE) as u32;
                Some(Stores::Cached)
            }
            _ => wanted,
        }
    }

    /// Copies bytes in two pieces into a cell that [`CellPool::take`] returned. The caller publishes the
    /// cell. Returns `false`, without any effect, if the bytes do not fit.
    #[inline(always)]
    #[must_use]
    pub fn fill(&self, cell: u32, [head, body]: [&[u8]; 2], how: Stores) -> bool {
        let at = cell as usize * self.cell_bytes;
        self.holds(cell, head.len() + body.len())
            && self.write(at, head, how)
            && self.write(at + head.len(), body, how)
    }

    /// As [`CellPool::fill`], with `len` bytes of a list from `at` on, gathered in the cell itself.
    #[must_use]
    pub fn fill_list(
        &self,
        cell: u32,
        from: &mut BorrowedGather<'_>,
        at: usize,
        len: usize,
        how: Stores,
    ) -> bool {
        if !self.holds(cell, len) {
            return false;
        }
        let base = cell as usize * self.cell_bytes;
        let mut fit = true;
        from.each(at, len, |done, part| fit &= self.write(base + done, part, how));
        fit
    }

    /// As [`CellPool::fill`], with `len` bytes of exposed memory from `at` on.
    #[must_use]
    pub fn fill_exposed(&self, cell: u32, from: &Exposed, (at, len): (usize, usize), how: Stores) -> bool {
        if !self.holds(cell, len) || at.checked_add(len).is_none_or(|end| end > from.len()) {
            return false;
        }
        let base = cell as usize * self.cell_bytes;
        let mut fit = true;
        from.each(at, len, |done, part| fit &= self.write(base + done, part, how));
        fit
    }

    #[inline(always)]
    fn write(&self, at: usize, bytes: &[u8], how: Stores) -> bool {
        match how {
            Stores::Prefetched => self.payload.prefetch_and_write(at, bytes),
            Stores::NonTemporal if !bytes.is_empty() => self.payload.write_non_temporal(at, bytes),
            _ => self.payload.write(at, bytes),
        }
    }

    fn holds(&self, cell: u32, len: usize) -> bool {
        (cell as usize) < self.headers.len() && len <= self.cell_bytes
    }

    /// Returns the cell that will be taken next.
    #[inline(always)]
    pub fn first(&self) -> Option<u32> {
        self.first_free.checked_sub(1)
    }

    /// Write-prefetches `len` bytes of a free cell from `at` on, by a store to each line; `at` is the start
    /// of a line. The lines then belong to this core, and filling the cell does not stall. Returns `false`,
    /// without any effect, if the cell is not free or is too short.
    #[must_use]
    pub fn prefetch(&self, cell: u32, at: usize, len: usize) -> bool {
        let record = self.records.borrow().get(cell as usize);
        let is_free = record.is_some_and(|record| record.holder == 0);
        is_free
            && at.checked_add(len).is_some_and(|end| end <= self.cell_bytes)
            && self.payload.prefetch(cell as usize * self.cell_bytes + at, len)
    }

    /// Records how a cell is filled, if that is measured, or 0.
    #[inline(always)]
    pub(super) fn set_measured(&mut self, cell: u32, measured: u8) {
        if let Some(record) = self.records.borrow_mut().get_mut(cell as usize) {
            record.measured = measured;
        }
    }

    /// Returns what [`CellPool::set_measured`] has recorded of a cell that `holder` holds.
    pub(super) fn measured(&mut self, cell: u32, holder: u32) -> Option<u8> {
        self.held_by(cell, holder).ok().map(|record| record.measured).filter(|measured| *measured != 0)
    }

    /// Publishes a filled cell of `envelope.total` bytes by its own header. The receiver then recognises the
    /// cell wherever it finds the cell's number.
    #[inline]
    pub fn publish(&self, cell: u32, holder: u16, sequence: u64, envelope: &Envelope) {
        let Some(header) = self.headers.get(cell as usize) else { return };
        header.shape.set(envelope.total | (envelope.kind as u64) << 32 | u64::from(envelope.context) << 48);
        header.tag.set(envelope.tag);
        header.publish.store_release(publish_word(holder, sequence), Edge::CellPublish);
    }

    /// Returns to the pool a cell that `holder` has released, for reuse in the order `reuse_order`.
    ///
    /// # Errors
    /// `holder` does not hold the cell; nothing was done.
    #[inline]
    pub fn give_back(&mut self, cell: u32, holder: u32, reuse_order: ReuseOrder) -> Result<(), ReturnFault> {
        let before = match reuse_order {
            ReuseOrder::First => None,
            ReuseOrder::Second => self.first(),
            ReuseOrder::Last => self.last_free.checked_sub(1).filter(|_| self.free > 0),
        };
        let next = before.map_or(self.first_free, |before| self.records.borrow()[before as usize].next);
        let record = self.held_by(cell, holder)?;
        (record.holder, record.next) = (0, next);
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

    /// Returns the record of a cell if `holder` holds it.
    #[inline(always)]
    fn held_by(&mut self, cell: u32, holder: u32) -> Result<&mut CellRecord, ReturnFault> {
        let record = self.records.borrow_mut().get_mut(cell as usize);
        record.filter(|record| record.holder == holder + 1).ok_or(ReturnFault { cell })
    }

    /// Clears the headers of all cells that were sent to a peer which is closed, because the sequence numbers of
    /// the next peer with its number start anew. The peer must no longer hold any cell.
    pub(super) fn forget(&self, holder: u32) {
        #[cfg(nemesia_injected_fault)]
        if injected(InjectedFault::KeepCellHeaders) {
            return;
        }
        for header in
            self.headers.iter().filter(|header| header.publish.load_relaxed() as u16 == holder as u16)
        {
            header.publish.store_relaxed(0);
        }
    }

    /// Reclaims every cell that a dead peer held. Returns their number.
    pub fn reclaim(&mut self, holder: u32) -> usize {
        let before = self.free;
        for cell in 0..self.headers.len() as u32 {
            // `give_back` refuses a cell that the peer does not hold.
            let _ = self.give_back(cell, holder, ReuseOrder::First);
        }
        self.free - before
    }
}

#[inline(always)]
const fn publish_word(holder: u16, sequence: u64) -> u64 {
    (sequence & SEQUENCE_MASK) << 16 | holder as u64
}

/// The state of a peer's cell, for this receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CellState {
    /// The cell is not for this process, or its message was already received.
    Other,
    /// The cell is for this process, but earlier packets have not arrived.
    Early,
    /// The cell holds the next packet from its owner.
    Due {
        /// Kind, context, tag and size of the message.
        envelope: Envelope,
        /// Payload bytes in this cell.
        len: usize,
    },
    /// The cell holds the next packet from its owner, but its header violates the protocol.
    Malformed,
}

/// A peer's pool, as its receivers see it.
#[derive(Clone, Copy, Debug)]
pub struct PeerPool<'a> {
    headers: &'a [CellHeader],
    payload: Payload<'a>,
    cell_bytes: usize,
    end_mark: EndMark<'a>,
}

impl<'a> PeerPool<'a> {
    /// Returns a view of a peer's cells. `end_mark` is the mark of the peer.
    pub const fn new(
        headers: &'a [CellHeader],
        payload: Payload<'a>,
        cell_bytes: usize,
        end_mark: EndMark<'a>,
    ) -> Self {
        Self { headers, payload, cell_bytes, end_mark }
    }

    /// Returns the mark of the peer.
    pub const fn end_mark(&self) -> EndMark<'a> {
        self.end_mark
    }

    /// Returns whether the peer has taken its cells back: none of them holds a message for this process any more.
    #[inline(always)]
    pub fn is_withdrawn(&self) -> bool {
        self.end_mark.is_withdrawn()
    }

    /// Returns whether what was just read counts.
    #[inline(always)]
    fn is_read_whole(&self) -> bool {
        #[cfg(nemesia_injected_fault)]
        if injected(InjectedFault::TrustFound) {
            return true;
        }
        !self.is_withdrawn()
    }

    /// Inspects a cell: whether it is for `me`, and whether it holds packet `expected`. Every word is read
    /// once.
    #[inline]
    pub fn inspect(&self, cell: u32, me: u16, expected: u64) -> CellState {
        let Some(header) = self.headers.get(cell as usize) else { return CellState::Other };
        let word = header.publish.load_acquire(Edge::CellPublish);
        if word as u16 != me {
            return CellState::Other;
        }
        // The distance between 48-bit numbers modulo 2^48; the upper half is the past.
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

    /// Returns the cell that holds packet `expected` for `me`, by scanning all cells. Because of this
    /// function, entries of the receive queue are only hints.
    pub fn find(&self, me: u16, expected: u64) -> Option<u32> {
        (0..self.headers.len() as u32).find(|&cell| {
            matches!(self.inspect(cell, me, expected), CellState::Due { .. } | CellState::Malformed)
        })
    }

    /// Returns whether `cell` exists and can hold `len` bytes. Checks the values that a peer has announced.
    #[inline]
    pub fn holds(&self, cell: u32, len: usize) -> bool {
        (cell as usize) < self.headers.len() && len <= self.cell_bytes
    }

    /// Copies payload bytes out of a cell, from `at` on. Returns `false` if they do not all lie in the cell, or if the
    /// peer has taken its cells back: the bytes may then be those of other messages.
    #[inline]
    #[must_use]
    pub fn read(&self, cell: u32, at: usize, to: &mut [u8]) -> bool {
        at + to.len() <= self.cell_bytes
            && self.payload.read(cell as usize * self.cell_bytes + at, to)
            && self.is_read_whole()
    }

    /// As [`PeerPool::read`], with non-temporal stores.
    #[inline]
    #[must_use]
    pub fn read_non_temporal(&self, cell: u32, at: usize, to: &mut [u8]) -> bool {
        at + to.len() <= self.cell_bytes
            && self.payload.read_non_temporal(cell as usize * self.cell_bytes + at, to)
            && self.is_read_whole()
    }
}

/// The receiver's end of a return ring, in the receiver's memory. The ring cannot overflow: the owner has at
/// most as many cells as the ring has slots, and each cell is returned once.
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

/// Returns the lap of a position, in the upper half of a slot. Lap 0 (an empty slot) recurs after 65,535
/// laps; each slot then holds the preceding lap.
#[inline]
fn return_lap(slots: &[ReturnSlot], position: u32) -> u32 {
    ((position >> slots.len().trailing_zeros()).wrapping_add(1)) << 16
}

#[inline]
fn return_slot(slots: &[ReturnSlot], position: u32) -> &ReturnSlot {
    &slots[position as usize & (slots.len() - 1)]
}

impl<'a> ReturnSender<'a> {
    /// Returns the sending end of an empty ring. The number of slots is a power of two, at most 65,536.
    pub const fn new(slots: &'a [ReturnSlot]) -> Self {
        Self { slots, tail: 0 }
    }

    /// Returns a cell, whose payload must not be read afterwards.
    #[inline]
    pub fn push(&mut self, cell: u32) {
        let value = return_lap(self.slots, self.tail) | (cell & 0xffff);
        return_slot(self.slots, self.tail).0.store_release(value, Edge::CellReturn);
        self.tail = self.tail.wrapping_add(1);
    }
}

impl<'a> ReturnReceiver<'a> {
    /// Returns the receiving end of an empty ring. The number of slots is a power of two, at most 65,536.
    pub const fn new(slots: &'a [ReturnSlot]) -> Self {
        Self { slots, head: 0 }
    }

    /// Takes the number of the next returned cell. The peer wrote the number; [`CellPool::give_back`] checks
    /// it.
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
