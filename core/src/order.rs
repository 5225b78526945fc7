//! The reorder window: packets that overtake each other, put back in order.
//!
//! What is sent over several paths, rails or streams to one peer carries one sequence number, and is handed on in that order
//! (paper 4, section 3.1, for fastbox and queue; paper 5, section 4.3, for streams). What comes too early waits in a queue of
//! bounded size, the wait-for-process queue of paper 5. A sender never has more on its way than the window, which
//! credits see to; who breaks that, or sends a number twice, is told apart, and nothing is lost of what was there.
//!
//! Sequence numbers are as many bits wide as they are on the wire, and wrap around. The window is at most half of their
//! circle, so that early and late can be told apart: the far half of the circle is the past.
#![forbid(unsafe_code)]

use core::borrow::BorrowMut;

/// What came of an arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Arrived<T> {
    /// It is the next one, and is given back to be handed on. [`Window::next_due`] has what may follow.
    Due(T),
    /// Others must come before it: it waits in the window.
    Waits,
    /// A fault of the sender: the number was handed on before, or waits already.
    Twice(T),
    /// A fault of the sender: the number is beyond the window.
    Beyond(T),
}

/// The window. `B` lends one slot for each packet that may be on its way: a power of two.
#[derive(Debug)]
pub struct Window<T, B: BorrowMut<[Option<T>]>> {
    slots: B,
    /// The number that is due, counted from the start: it does not wrap.
    due: u64,
    waiting: usize,
    /// Width of the numbers.
    mask: u64,
    value: core::marker::PhantomData<T>,
}

impl<T, B: BorrowMut<[Option<T>]>> Window<T, B> {
    /// A window whose first number is `first`, with numbers of `bits` bits on the wire. `None` unless the slots are a power
    /// of two and at most half of the numbers, and there are 1 to 64 bits. The slots are cleared.
    pub fn new(mut slots: B, bits: u32, first: u64) -> Option<Self> {
        let count = slots.borrow().len() as u64;
        if !(1..=64).contains(&bits) || !count.is_power_of_two() || count > 1 << (bits - 1) {
            return None;
        }
        slots.borrow_mut().iter_mut().for_each(|slot| *slot = None);
        let mask = u64::MAX >> (64 - bits);
        Some(Self { slots, due: first & mask, waiting: 0, mask, value: core::marker::PhantomData })
    }

    /// The number that is due, as it is on the wire.
    pub const fn due(&self) -> u64 {
        self.due & self.mask
    }

    /// Packets that wait for others.
    pub const fn waiting(&self) -> usize {
        self.waiting
    }

    /// Packets that may be on their way at once.
    pub fn size(&self) -> usize {
        self.slots.borrow().len()
    }

    /// A packet with this number, of which only the bits that the wire has count, has come.
    #[inline]
    pub fn arrive(&mut self, sequence: u64, value: T) -> Arrived<T> {
        let ahead = sequence.wrapping_sub(self.due) & self.mask;
        // The usual case, for which nothing is stored. While others wait they wait for this one.
        if ahead == 0 {
            self.due = self.due.wrapping_add(1);
            return Arrived::Due(value);
        }
        if ahead > self.mask / 2 {
            return Arrived::Twice(value);
        }
        let slots = self.slots.borrow_mut();
        if ahead >= slots.len() as u64 {
            return Arrived::Beyond(value);
        }
        let at = self.due.wrapping_add(ahead) as usize & (slots.len() - 1);
        match &mut slots[at] {
            Some(_) => Arrived::Twice(value),
            free => {
                *free = Some(value);
                self.waiting += 1;
                Arrived::Waits
            }
        }
    }

    /// The next packet, if it is one that waited: to be asked after each that was due, until there is none.
    #[inline]
    pub fn next_due(&mut self) -> Option<T> {
        if self.waiting == 0 {
            return None;
        }
        let slots = self.slots.borrow_mut();
        let at = self.due as usize & (slots.len() - 1);
        let value = slots[at].take()?;
        self.due = self.due.wrapping_add(1);
        self.waiting -= 1;
        Some(value)
    }

    /// Begins again, with this number. What waits must have been taken back ([`Window::drain`]).
    pub fn restart(&mut self, first: u64) {
        self.slots.borrow_mut().iter_mut().for_each(|slot| *slot = None);
        (self.due, self.waiting) = (first & self.mask, 0);
    }

    /// Takes back what waits, in order and with gaps: when the peer is gone, and what is missing will not come.
    pub fn drain(&mut self) -> Option<T> {
        if self.waiting == 0 {
            return None;
        }
        loop {
            if let Some(value) = self.next_due() {
                return Some(value);
            }
            self.due = self.due.wrapping_add(1);
        }
    }
}

#[cfg(test)]
mod tests;
