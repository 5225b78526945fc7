//! The registrations: slots over lent storage, and a list of the unused ones in the order of their last use.
#![forbid(unsafe_code)]

use core::borrow::BorrowMut;

use super::Range;
use crate::slab::NONE;

/// The cache's record of one registration. If the handle takes at most 16 bytes, all that a use touches lies
/// in one cache line.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub struct Entry<H> {
    pub(super) range: Range,
    /// `None` while the slot is free.
    pub(super) handle: Option<H>,
    pub(super) rights: u32,
    pub(super) holders: u32,
    /// Distinguishes uses of this registration from those of another in the same slot.
    pub(super) generation: u32,
    /// Neighbours in the list of unused entries; the next free slot.
    pub(super) prev: u32,
    pub(super) next: u32,
    /// Whether the entry is in the list.
    pub(super) listed: bool,
    /// Whether the entry can be a hit.
    pub(super) indexed: bool,
    /// Whether the registration may outlive its use.
    pub(super) kept: bool,
}

impl<H> Default for Entry<H> {
    fn default() -> Self {
        Self {
            range: Range { start: 0, end: 0 },
            handle: None,
            rights: 0,
            holders: 0,
            generation: 0,
            prev: NONE,
            next: NONE,
            listed: false,
            indexed: false,
            kept: false,
        }
    }
}

/// The requested range and rights: at least one byte, without address overflow.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    pub(super) start: u64,
    pub(super) len: u64,
    pub(super) rights: u32,
    pub(super) page_shift: u32,
}

impl Wanted {
    /// Returns the whole pages around the range; `None` if they end beyond the address space.
    pub(super) fn pages(&self) -> Option<Range> {
        let page = 1 << self.page_shift;
        let end = (self.start + self.len).checked_next_multiple_of(page)?;
        Some(Range { start: self.start / page * page, end })
    }

    #[cold]
    #[inline(never)]
    fn is_just(self, range: Range) -> bool {
        self.pages() == Some(range)
    }
}

impl<H> Entry<H> {
    /// Returns whether the entry serves the request. If its changes are not reported, it serves only exactly
    /// the same pages.
    #[inline(always)]
    pub(super) fn serves(&self, wanted: &Wanted) -> bool {
        // One comparison: with two, the branch is hard to predict.
        let holds =
            wanted.start.wrapping_sub(self.range.start).saturating_add(wanted.len) <= self.range.len();
        holds && self.rights & wanted.rights == wanted.rights && (self.kept || wanted.is_just(self.range))
    }
}

/// The slots. An entry that is used again stays in the list until it is found there or released. A use
/// therefore does not touch the list if the same entry was used last, and costs one move otherwise.
#[derive(Debug)]
pub(super) struct Entries<E> {
    slots: E,
    free: u32,
    /// Slots below this index were used at least once.
    fresh: u32,
    used: usize,
    /// The least recently used entry.
    oldest: u32,
    newest: u32,
}

impl<E> Entries<E> {
    /// Returns entries with every slot free.
    pub(super) const fn new(slots: E) -> Self {
        Self { slots, free: NONE, fresh: 0, used: 0, oldest: NONE, newest: NONE }
    }

    /// Returns the number of slots in use.
    pub(super) const fn used(&self) -> usize {
        self.used
    }

    /// Returns the number of slots that were ever in use: those with an index below the result.
    pub(super) const fn touched(&self) -> u32 {
        self.fresh
    }

    pub(super) fn capacity<H>(&self) -> usize
    where
        E: BorrowMut<[Entry<H>]>,
    {
        self.slots.borrow().len()
    }

    #[inline(always)]
    pub(super) fn get<H>(&self, index: u32) -> &Entry<H>
    where
        E: BorrowMut<[Entry<H>]>,
    {
        &self.slots.borrow()[index as usize]
    }

    #[inline(always)]
    pub(super) fn get_mut<H>(&mut self, index: u32) -> &mut Entry<H>
    where
        E: BorrowMut<[Entry<H>]>,
    {
        &mut self.slots.borrow_mut()[index as usize]
    }

    /// Returns the entry, if it is in use and of that generation.
    #[inline(always)]
    pub(super) fn held<H>(&self, index: u32, generation: u32) -> Option<&Entry<H>>
    where
        E: BorrowMut<[Entry<H>]>,
    {
        let entry = self.slots.borrow().get(index as usize)?;
        (entry.generation == generation && entry.holders > 0).then_some(entry)
    }

    /// Puts an entry into a free slot; `None` if there is none.
    pub(super) fn insert<H>(&mut self, entry: Entry<H>) -> Option<u32>
    where
        E: BorrowMut<[Entry<H>]>,
    {
        let slots = self.slots.borrow_mut();
        // No slot is free: `NONE` is not a valid index.
        let index = match slots.get(self.free as usize) {
            Some(slot) => core::mem::replace(&mut self.free, slot.next),
            None if self.fresh == NONE => return None,
            None => self.fresh,
        };
        let slot = slots.get_mut(index as usize)?;
        self.fresh = self.fresh.max(index + 1);
        *slot = Entry { generation: slot.generation, listed: false, ..entry };
        self.used += 1;
        Some(index)
    }

    /// Frees a slot.
    pub(super) fn remove<H>(&mut self, index: u32)
    where
        E: BorrowMut<[Entry<H>]>,
    {
        self.unlist(index);
        let free = core::mem::replace(&mut self.free, index);
        let slot = self.get_mut(index);
        slot.generation = slot.generation.wrapping_add(1);
        slot.next = free;
        self.used -= 1;
    }

    /// Records the end of the last use of an entry: it becomes the most recently used one.
    #[inline]
    pub(super) fn rest<H>(&mut self, index: u32)
    where
        E: BorrowMut<[Entry<H>]>,
    {
        if self.newest == index {
            return;
        }
        self.unlist(index);
        let before = core::mem::replace(&mut self.newest, index);
        let slots = self.slots.borrow_mut();
        let slot = &mut slots[index as usize];
        (slot.prev, slot.next, slot.listed) = (before, NONE, true);
        match slots.get_mut(before as usize) {
            Some(before) => before.next = index,
            None => self.oldest = index,
        }
    }

    /// Returns the entry that has been unused longest, and leaves it in the list.
    pub(super) fn oldest<H>(&mut self) -> Option<u32>
    where
        E: BorrowMut<[Entry<H>]>,
    {
        while self.oldest != NONE && self.get(self.oldest).holders > 0 {
            // The entry is in use again. Its release appends it to the list.
            self.unlist(self.oldest);
        }
        (self.oldest != NONE).then_some(self.oldest)
    }

    #[inline(always)]
    fn unlist<H>(&mut self, index: u32)
    where
        E: BorrowMut<[Entry<H>]>,
    {
        let slots = self.slots.borrow_mut();
        let slot = &mut slots[index as usize];
        if !core::mem::replace(&mut slot.listed, false) {
            return;
        }
        let (prev, next) = (slot.prev, slot.next);
        match slots.get_mut(prev as usize) {
            Some(prev) => prev.next = next,
            None => self.oldest = next,
        }
        match slots.get_mut(next as usize) {
            Some(next) => next.prev = prev,
            None => self.newest = prev,
        }
    }
}
