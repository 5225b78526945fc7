//! The buffers of a channel: memory in slabs, and a record for each buffer.
#![forbid(unsafe_code)]

use core::borrow::BorrowMut;

use super::LendError;
use crate::flow::shares::SharedPool;
use crate::payload::LentMemory;
use crate::port::PeerId;
use crate::port::memory::{PortRegion, Slice};
use crate::slab::NONE;
use crate::wire::channel::{CloseReason, RingNotice};
use crate::wire::{Envelope, Kind};

/// One slab of lent memory.
#[derive(Debug)]
pub struct BufferSlab {
    region: PortRegion,
    memory: LentMemory,
    /// Index of its first buffer.
    first: u32,
}

/// The use of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    Free,
    /// Posted to receive.
    Posted,
    /// Holds a packet.
    Held,
    /// Is being sent.
    Sending,
}

/// The record of a buffer.
#[derive(Clone, Debug)]
pub struct ChannelBuffer {
    slab: u32,
    /// The next buffer in a list.
    next: u32,
    pub(super) used: Use,
    /// The connection that uses the buffer.
    pub(super) peer: PeerId,
    pub(super) rail: u32,
    /// The received packet.
    pub(super) envelope: Envelope,
    pub(super) len: u32,
    /// How the peer left, if the packet is a close.
    pub(super) close: Option<CloseReason>,
    /// What the packet says about a ring.
    pub(super) ring: Option<RingNotice>,
    /// The immediate of a write, if it arrived before its connection was ready.
    pub(super) notice: Option<u32>,
}

impl Default for ChannelBuffer {
    fn default() -> Self {
        let envelope = Envelope { kind: Kind::Eager, context: 0, tag: 0, total: 0 };
        let (slab, next, used) = (NONE, NONE, Use::Free);
        Self { slab, next, used, peer: 0, rail: 0, envelope, len: 0, close: None, ring: None, notice: None }
    }
}

/// A queue of buffers.
#[derive(Clone, Copy, Debug)]
pub(super) struct BufferQueue {
    first: u32,
    last: u32,
}

impl BufferQueue {
    pub(super) const fn new() -> Self {
        Self { first: NONE, last: NONE }
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.first == NONE
    }
}

/// All buffers of a channel.
#[derive(Debug)]
pub(super) struct Buffers<B, L> {
    records: B,
    slabs: L,
    bytes: u64,
    count: u32,
    free: u32,
    pool: SharedPool,
}

impl<B: BorrowMut<[ChannelBuffer]>, L: BorrowMut<[Option<BufferSlab>]>> Buffers<B, L> {
    pub(super) const fn new(records: B, slabs: L, bytes: u64) -> Self {
        Self { records, slabs, bytes, count: 0, free: NONE, pool: SharedPool::new() }
    }

    pub(super) const fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) const fn count(&self) -> u32 {
        self.count
    }

    pub(super) const fn pool(&self) -> &SharedPool {
        &self.pool
    }

    pub(super) const fn pool_mut(&mut self) -> &mut SharedPool {
        &mut self.pool
    }

    /// Makes place for so many more buffers and pieces of memory.
    pub(super) fn grow(&mut self, buffers: usize, slabs: usize)
    where
        B: Extend<ChannelBuffer>,
        L: Extend<Option<BufferSlab>>,
    {
        self.records.extend(core::iter::repeat_with(ChannelBuffer::default).take(buffers));
        self.slabs.extend(core::iter::repeat_with(|| None).take(slabs));
    }

    pub(super) fn lend(&mut self, region: PortRegion, memory: LentMemory) -> Result<u32, LendError> {
        let (len, needed) = (memory.len() as u64, self.bytes);
        let room = self.records.borrow().len() as u64 - u64::from(self.count);
        let more = match len / needed {
            0 => return Err(LendError::Short { len, needed }),
            more => more.min(room) as u32,
        };
        let slot = (0..).zip(self.slabs.borrow_mut()).find(|(_, slot)| slot.is_none());
        let Some((slab, slot)) = slot.filter(|_| more > 0) else { return Err(LendError::Full) };
        let first = self.count;
        *slot = Some(BufferSlab { region, memory, first });
        self.count += more;
        for index in first..self.count {
            if let Some(record) = self.records.borrow_mut().get_mut(index as usize) {
                *record = ChannelBuffer { slab, next: self.free, ..ChannelBuffer::default() };
                self.free = index;
            }
        }
        self.pool.add(more);
        Ok(more)
    }

    pub(super) fn get(&self, index: u32) -> Option<&ChannelBuffer> {
        self.records.borrow().get(index as usize)
    }

    pub(super) fn get_mut(&mut self, index: u32) -> Option<&mut ChannelBuffer> {
        self.records.borrow_mut().get_mut(index as usize)
    }

    /// Takes a free buffer: a reserved one if `own`, else a shared one.
    pub(super) fn take(&mut self, own: bool, used: Use, peer: PeerId, rail: u32) -> Option<u32> {
        let index = self.free;
        let record = self.records.borrow_mut().get_mut(index as usize)?;
        if !self.pool.take(own) {
            return None;
        }
        self.free = record.next;
        (record.used, record.peer, record.rail, record.next) = (used, peer, rail, NONE);
        Some(index)
    }

    /// Frees a buffer; if `own`, it is reserved for its user again.
    pub(super) fn put(&mut self, index: u32, own: bool) {
        let free = self.free;
        if let Some(record) = self.get_mut(index) {
            (record.used, record.next) = (Use::Free, free);
            self.free = index;
            self.pool.put(own);
        }
    }

    /// Returns the first `len` bytes of a buffer as a slice of its region.
    pub(super) fn slice(&self, index: u32, len: u32) -> Option<Slice> {
        let (slab, offset) = self.place(index)?;
        Some(Slice { region: slab.region, offset, len })
    }

    fn place(&self, index: u32) -> Option<(&BufferSlab, u64)> {
        let slab = self.slabs.borrow().get(self.get(index)?.slab as usize)?.as_ref()?;
        Some((slab, u64::from(index.checked_sub(slab.first)?) * self.bytes))
    }

    /// Copies bytes out of a buffer. Returns `false` if they do not all lie in it.
    pub(super) fn read(&self, index: u32, at: usize, to: &mut [u8]) -> bool {
        self.has(at, to.len())
            && self.place(index).is_some_and(|(slab, offset)| slab.memory.read(offset + at as u64, to))
    }

    /// Copies bytes into a buffer. Returns `false` if they do not fit.
    pub(super) fn write(&self, index: u32, at: usize, from: &[u8]) -> bool {
        self.has(at, from.len())
            && self.place(index).is_some_and(|(slab, offset)| slab.memory.write(offset + at as u64, from))
    }

    fn has(&self, at: usize, len: usize) -> bool {
        at.checked_add(len).is_some_and(|end| end as u64 <= self.bytes)
    }

    /// Appends a buffer to a queue.
    pub(super) fn push(&mut self, queue: &mut BufferQueue, index: u32) {
        if let Some(record) = self.get_mut(index) {
            record.next = NONE;
            match self.get_mut(queue.last) {
                Some(last) => last.next = index,
                None => queue.first = index,
            }
            queue.last = index;
        }
    }

    /// Removes the first buffer from a queue.
    pub(super) fn pop(&mut self, queue: &mut BufferQueue) -> Option<u32> {
        let index = queue.first;
        let record = self.get_mut(index)?;
        queue.first = core::mem::replace(&mut record.next, NONE);
        if queue.first == NONE {
            queue.last = NONE;
        }
        Some(index)
    }
}
