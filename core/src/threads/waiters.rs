//! The waiter list: the threads that wait, and which of them is the driver. The lock protects it.
#![forbid(unsafe_code)]

use core::borrow::BorrowMut;

/// The set of threads to wake. It may include other threads whose slots share a bit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use = "threads that are not woken keep sleeping"]
pub struct Bits(u32);

impl Bits {
    /// The empty set.
    pub const NONE: Self = Self(0);

    /// Returns the set with the thread in this slot.
    pub const fn of(slot: usize) -> Self {
        Self(1 << (slot % 32))
    }

    /// Returns the union.
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns the set as a mask.
    pub const fn mask(self) -> u32 {
        self.0
    }
}

/// A waiting thread.
#[derive(Debug)]
pub struct WaiterSlot<T> {
    /// The entry: what the thread waits for.
    entry: T,
    /// Whether the wait has ended successfully.
    served: bool,
    /// Number in the order of arrival.
    number: u64,
}

/// The waiting threads. `S` lends a slot for each; free slots are `None`. The storage may grow.
#[derive(Debug)]
pub struct WaiterList<S> {
    slots: S,
    driver: Option<usize>,
    next: u64,
    /// Number of occupied slots.
    count: usize,
}

impl<S> WaiterList<S> {
    /// Returns an empty waiter list.
    pub const fn new(slots: S) -> Self {
        Self { slots, driver: None, next: 0, count: 0 }
    }

    /// Returns the number of occupied slots.
    pub const fn count(&self) -> usize {
        self.count
    }

    /// Returns the slots, so that their owner can let them grow. Occupied slots keep their index.
    pub const fn slots_mut(&mut self) -> &mut S {
        &mut self.slots
    }

    /// Adds a waiting thread and returns its slot.
    ///
    /// # Errors
    /// The entry, if every slot is occupied.
    pub fn join<T>(&mut self, entry: T) -> Result<usize, T>
    where
        S: BorrowMut<[Option<WaiterSlot<T>>]>,
    {
        let slots = self.slots.borrow_mut();
        let Some(at) = slots.iter().position(Option::is_none) else { return Err(entry) };
        slots[at] = Some(WaiterSlot { entry, served: false, number: self.next });
        self.next += 1;
        self.count += 1;
        Ok(at)
    }

    /// Returns whether this thread is the driver. If there is no driver, the thread becomes it.
    pub fn drives(&mut self, slot: usize) -> bool {
        *self.driver.get_or_insert(slot) == slot
    }

    /// Returns the entry of this thread.
    pub fn entry<T>(&mut self, slot: usize) -> Option<&mut T>
    where
        S: BorrowMut<[Option<WaiterSlot<T>>]>,
    {
        self.slots.borrow_mut().get_mut(slot)?.as_mut().map(|slot| &mut slot.entry)
    }

    /// Returns whether the wait of this thread has ended successfully.
    pub fn is_served<T>(&self, slot: usize) -> bool
    where
        S: BorrowMut<[Option<WaiterSlot<T>>]>,
    {
        self.slots.borrow().get(slot).and_then(Option::as_ref).is_some_and(|slot| slot.served)
    }

    /// Calls `serve` for each waiting thread, after progress was made, to test whether its wait has ended.
    /// Returns the threads to wake, and whether the driver, which may sleep elsewhere, is among them.
    pub fn serve<T>(&mut self, mut serve: impl FnMut(&mut T) -> bool) -> (Bits, bool)
    where
        S: BorrowMut<[Option<WaiterSlot<T>>]>,
    {
        let (mut bits, mut drives) = (Bits::NONE, false);
        for (at, slot) in self.slots.borrow_mut().iter_mut().enumerate() {
            if let Some(slot) = slot.as_mut().filter(|slot| !slot.served)
                && serve(&mut slot.entry)
            {
                slot.served = true;
                bits = bits.and(Bits::of(at));
                drives |= self.driver == Some(at);
            }
        }
        (bits, drives)
    }

    /// Removes a thread. If it was the driver, the thread that has waited longest becomes the driver and must
    /// be woken.
    pub fn leave<T>(&mut self, slot: usize) -> (Option<T>, Bits)
    where
        S: BorrowMut<[Option<WaiterSlot<T>>]>,
    {
        let slots = self.slots.borrow_mut();
        let left = slots.get_mut(slot).and_then(Option::take);
        self.count -= usize::from(left.is_some());
        let mut bits = Bits::NONE;
        if self.driver == Some(slot) {
            let waiting =
                |slot: &Option<WaiterSlot<T>>| slot.as_ref().filter(|it| !it.served).map(|it| it.number);
            let numbers = slots.iter().enumerate().filter_map(|(at, slot)| Some((waiting(slot)?, at)));
            self.driver = numbers.min().map(|(_, at)| at);
            bits = self.driver.map_or(Bits::NONE, Bits::of);
        }
        (left.map(|slot| slot.entry), bits)
    }
}
