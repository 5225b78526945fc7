//! Slots over lent storage, with a free list and doubly linked lists by index.
//!
//! The storage may grow between calls (for example a `Vec` of the layer above); indices stay valid.
#![forbid(unsafe_code)]

use core::borrow::BorrowMut;

/// The index of no slot.
pub const NONE: u32 = u32::MAX;

/// A slot: a value, its list links, and a generation that invalidates stale identifiers.
#[derive(Debug, Default)]
pub struct Slot<T> {
    value: T,
    prev: u32,
    next: u32,
    generation: u32,
    occupancy: Occupancy,
}

/// Whether a slot is in use, and whether its identifier is good for the calls that end its use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Occupancy {
    #[default]
    Free,
    Used,
    /// In use; [`Slab::live_mut`] and [`Slab::is_open`] do not find it.
    Hidden,
}

/// A set of slots.
#[derive(Debug)]
pub struct Slab<T, B: BorrowMut<[Slot<T>]>> {
    slots: B,
    free: u32,
    /// Slots below this index were used at least once. The others are not touched, so their pages stay
    /// uncommitted.
    fresh: u32,
    used: usize,
    value: core::marker::PhantomData<T>,
}

/// A first-in first-out list of slots.
#[derive(Clone, Copy, Debug)]
pub struct List {
    pub(crate) head: u32,
    pub(crate) tail: u32,
}

impl Default for List {
    fn default() -> Self {
        Self::new()
    }
}

impl List {
    /// Returns an empty list.
    pub const fn new() -> Self {
        Self { head: NONE, tail: NONE }
    }

    /// Returns the first slot.
    #[inline(always)]
    pub fn first(&self) -> Option<u32> {
        (self.head != NONE).then_some(self.head)
    }

    /// Returns whether the list is empty.
    #[inline(always)]
    pub const fn is_empty(&self) -> bool {
        self.head == NONE
    }
}

impl<T, B: BorrowMut<[Slot<T>]>> Slab<T, B> {
    /// Returns a slab with every slot free.
    pub const fn new(slots: B) -> Self {
        Self { slots, free: NONE, fresh: 0, used: 0, value: core::marker::PhantomData }
    }

    /// Appends `count` free slots. The storage itself is never lent: its values must not move to another slab.
    pub fn grow(&mut self, count: usize)
    where
        T: Default,
        B: Extend<Slot<T>>,
    {
        self.slots.extend(core::iter::repeat_with(Slot::default).take(count));
    }

    /// Makes sure that at least `count` slots are free. If there are fewer, the number of slots in use may double.
    pub fn make_free(&mut self, count: usize)
    where
        T: Default,
        B: Extend<Slot<T>>,
    {
        let lacking = (self.used + count).saturating_sub(self.capacity());
        if lacking > 0 {
            self.grow(lacking.max(self.used));
        }
    }

    /// Returns the number of slots in use.
    pub const fn used(&self) -> usize {
        self.used
    }

    /// Returns the number of slots that were ever in use: those with an index below the result. A free slot
    /// keeps its last value.
    pub const fn touched(&self) -> usize {
        self.fresh as usize
    }

    /// Returns the number of slots.
    pub fn capacity(&self) -> usize {
        self.slots.borrow().len()
    }

    /// Puts a value into a free slot and returns its index.
    ///
    /// # Errors
    /// The value, if every slot is in use.
    #[inline]
    pub fn insert(&mut self, value: T) -> Result<u32, T> {
        match self.reserve_behind(NONE) {
            Some((index, place)) => {
                *place = value;
                Ok(index)
            }
            None => Err(value),
        }
    }

    /// Appends a free slot to a list, and returns its index and its place. The place still holds its last
    /// value. `None` if every slot is in use.
    ///
    /// The caller fills the slot in place, because a value passed as an argument would be copied on the
    /// critical path.
    #[inline(always)]
    pub fn reserve_back(&mut self, list: &mut List) -> Option<(u32, &mut T)> {
        let tail = list.tail;
        let (index, _) = self.reserve_behind(tail)?;
        list.tail = index;
        let slots = self.slots.borrow_mut();
        match tail {
            NONE => list.head = index,
            tail => slots[tail as usize].next = index,
        }
        Some((index, &mut slots[index as usize].value))
    }

    /// Returns a free slot that is in no list: its index and its place, which still holds its last value. `None` if
    /// every slot is in use.
    #[inline(always)]
    pub fn reserve(&mut self) -> Option<(u32, &mut T)> {
        self.reserve_behind(NONE)
    }

    #[inline(always)]
    fn reserve_behind(&mut self, prev: u32) -> Option<(u32, &mut T)> {
        let slots = self.slots.borrow_mut();
        // No slot is free: `NONE` is not a valid index.
        let again = (self.free as usize) < slots.len();
        let index = if again { self.free } else { self.fresh };
        let slot = slots.get_mut(index as usize)?;
        if again {
            self.free = slot.next;
        } else {
            self.fresh += 1;
        }
        slot.occupancy = Occupancy::Used;
        slot.prev = prev;
        slot.next = NONE;
        self.used += 1;
        Some((index, &mut slot.value))
    }

    /// Frees a slot, which the caller has removed from its list.
    #[inline(always)]
    pub fn remove(&mut self, index: u32) {
        let slot = &mut self.slots.borrow_mut()[index as usize];
        debug_assert!(slot.occupancy != Occupancy::Free);
        slot.occupancy = Occupancy::Free;
        slot.generation = slot.generation.wrapping_add(1);
        slot.next = self.free;
        self.free = index;
        self.used -= 1;
    }

    /// Returns the value of a slot in use.
    #[inline(always)]
    pub fn get(&self, index: u32) -> &T {
        &self.slots.borrow()[index as usize].value
    }

    /// Returns the value of a slot, if it is in use, of that generation, and not hidden.
    #[inline(always)]
    pub fn live_mut(&mut self, index: u32, generation: u32) -> Option<&mut T> {
        let slot = self.slots.borrow_mut().get_mut(index as usize)?;
        (slot.occupancy == Occupancy::Used && slot.generation == generation).then_some(&mut slot.value)
    }

    /// Returns the value of a slot in use for modification.
    #[inline(always)]
    pub fn get_mut(&mut self, index: u32) -> &mut T {
        &mut self.slots.borrow_mut()[index as usize].value
    }

    /// Returns the generation of a slot.
    #[inline(always)]
    pub fn generation(&self, index: u32) -> u32 {
        self.slots.borrow()[index as usize].generation
    }

    /// Returns whether the slot is in use and of that generation.
    #[inline(always)]
    pub fn is_live(&self, index: u32, generation: u32) -> bool {
        let slot = self.slots.borrow().get(index as usize);
        slot.is_some_and(|slot| slot.occupancy != Occupancy::Free && slot.generation == generation)
    }

    /// Returns whether the slot is in use, of that generation, and not hidden.
    #[inline(always)]
    pub fn is_open(&self, index: u32, generation: u32) -> bool {
        let slot = self.slots.borrow().get(index as usize);
        slot.is_some_and(|slot| slot.occupancy == Occupancy::Used && slot.generation == generation)
    }

    /// Hides a slot in use, until it is freed: [`Slab::live_mut`] and [`Slab::is_open`] do not find it.
    pub fn hide(&mut self, index: u32) {
        self.slots.borrow_mut()[index as usize].occupancy = Occupancy::Hidden;
    }

    /// Returns whether a slot is hidden.
    #[inline(always)]
    pub fn is_hidden(&self, index: u32) -> bool {
        self.slots.borrow()[index as usize].occupancy == Occupancy::Hidden
    }

    /// Appends a slot to a list.
    #[inline]
    pub fn push_back(&mut self, list: &mut List, index: u32) {
        let slots = self.slots.borrow_mut();
        slots[index as usize].prev = list.tail;
        slots[index as usize].next = NONE;
        match list.tail {
            NONE => list.head = index,
            tail => slots[tail as usize].next = index,
        }
        list.tail = index;
    }

    /// Removes a slot from its list.
    #[inline]
    pub fn unlink(&mut self, list: &mut List, index: u32) {
        let slots = self.slots.borrow_mut();
        let Slot { prev, next, .. } = slots[index as usize];
        match prev {
            NONE => list.head = next,
            prev => slots[prev as usize].next = next,
        }
        match next {
            NONE => list.tail = prev,
            next => slots[next as usize].prev = prev,
        }
    }

    /// Puts a slot back to the place from which [`Slab::unlink`] has just removed it: the list, and every link of its
    /// slots, is as the removal has left it.
    pub fn relink(&mut self, list: &mut List, index: u32) {
        let slots = self.slots.borrow_mut();
        let Slot { prev, next, .. } = slots[index as usize];
        match prev {
            NONE => list.head = index,
            prev => slots[prev as usize].next = index,
        }
        match next {
            NONE => list.tail = index,
            next => slots[next as usize].prev = index,
        }
    }

    /// Removes and returns the first slot of a list.
    #[inline(always)]
    pub fn pop_front(&mut self, list: &mut List) -> Option<u32> {
        let index = list.first()?;
        let slots = self.slots.borrow_mut();
        let next = slots[index as usize].next;
        list.head = next;
        match next {
            NONE => list.tail = NONE,
            next => slots[next as usize].prev = NONE,
        }
        Some(index)
    }

    /// Returns the values of those among the first `most` slots that are in use.
    pub fn first_used(&self, most: usize) -> impl Iterator<Item = &T> {
        let touched = most.min(self.fresh as usize);
        self.slots
            .borrow()
            .iter()
            .take(touched)
            .filter(|slot| slot.occupancy != Occupancy::Free)
            .map(|slot| &slot.value)
    }

    /// Returns the slot after this one in its list.
    #[inline(always)]
    pub fn next(&self, index: u32) -> Option<u32> {
        let next = self.slots.borrow()[index as usize].next;
        (next != NONE).then_some(next)
    }

    /// Returns the first slot of a list whose value satisfies the test.
    #[inline]
    pub fn find(&self, list: &List, mut test: impl FnMut(&T) -> bool) -> Option<u32> {
        let mut at = list.first();
        while let Some(index) = at {
            if test(self.get(index)) {
                break;
            }
            at = self.next(index);
        }
        at
    }
}

#[cfg(test)]
mod tests;
