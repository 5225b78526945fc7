//! The reorder window: packets that arrive out of order are put back in order.
//!
//! Packets that travel over several paths, rails or streams to one peer share one sequence number, and are
//! delivered in that order (paper 4, section 3.1, for fastbox and queue; paper 5, section 4.3, for streams).
//! A packet that arrives too early waits in a queue of bounded size, the wait-for-process queue of paper 5.
//! Credits ensure that a sender never has more packets in flight than the window. If a sender violates this,
//! or repeats a number, the window reports it and loses no waiting packet.
//!
//! Sequence numbers have as many bits as on the wire, and wrap around. The window covers at most half of the
//! number range, so that early and late packets can be distinguished: the far half is the past.
#![forbid(unsafe_code)]

use core::borrow::BorrowMut;

/// The result of an arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Placed<T> {
    /// The packet is the next one, and is returned for delivery. [`ReorderWindow::next_due`] returns those
    /// that may follow.
    Due(T),
    /// Earlier packets are missing; the packet waits in the window.
    Waits,
    /// A fault of the sender: the number was already delivered, or already waits.
    Twice(T),
    /// A fault of the sender: the number is beyond the window.
    Beyond(T),
}

/// The window. `B` lends one slot for each packet that may be in flight: a power of two.
#[derive(Debug)]
pub struct ReorderWindow<T, B: BorrowMut<[Option<T>]>> {
    slots: B,
    /// The next sequence number, counted from the start; it does not wrap.
    due: u64,
    waiting: usize,
    /// Mask of the bits that a sequence number has on the wire.
    mask: u64,
    value: core::marker::PhantomData<T>,
}

impl<T, B: BorrowMut<[Option<T>]>> ReorderWindow<T, B> {
    /// Returns a window whose first number is `first`, with numbers of `bits` bits on the wire. The slots are
    /// cleared. `None` unless the number of slots is a power of two and at most half of the number range, and
    /// `bits` is 1 to 64.
    pub fn new(mut slots: B, bits: u32, first: u64) -> Option<Self> {
        let count = slots.borrow().len() as u64;
        if !(1..=64).contains(&bits) || !count.is_power_of_two() || count > 1 << (bits - 1) {
            return None;
        }
        slots.borrow_mut().iter_mut().for_each(|slot| *slot = None);
        let mask = u64::MAX >> (64 - bits);
        Some(Self { slots, due: first & mask, waiting: 0, mask, value: core::marker::PhantomData })
    }

    /// Returns the next sequence number, as on the wire.
    pub const fn due(&self) -> u64 {
        self.due & self.mask
    }

    /// Returns the number of waiting packets.
    pub const fn waiting(&self) -> usize {
        self.waiting
    }

    /// Returns the number of packets that may be in flight at once.
    pub fn size(&self) -> usize {
        self.slots.borrow().len()
    }

    /// Accepts a packet. Of `sequence` only the bits on the wire count.
    #[inline]
    pub fn arrive(&mut self, sequence: u64, value: T) -> Placed<T> {
        let ahead = sequence.wrapping_sub(self.due) & self.mask;
        // The usual case stores nothing. If packets wait, they wait for this one.
        if ahead == 0 {
            self.due = self.due.wrapping_add(1);
            return Placed::Due(value);
        }
        if ahead > self.mask / 2 {
            return Placed::Twice(value);
        }
        let slots = self.slots.borrow_mut();
        if ahead >= slots.len() as u64 {
            return Placed::Beyond(value);
        }
        let at = self.due.wrapping_add(ahead) as usize & (slots.len() - 1);
        match &mut slots[at] {
            Some(_) => Placed::Twice(value),
            free => {
                *free = Some(value);
                self.waiting += 1;
                Placed::Waits
            }
        }
    }

    /// Returns the next packet if it is one that waited. The caller repeats this after each delivery until it
    /// returns `None`.
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

    /// Starts again with this number. The waiting packets must have been removed before
    /// ([`ReorderWindow::drain`]).
    pub fn restart(&mut self, first: u64) {
        self.slots.borrow_mut().iter_mut().for_each(|slot| *slot = None);
        (self.due, self.waiting) = (first & self.mask, 0);
    }

    /// Removes the waiting packets, in order and with gaps: after the peer has failed and the missing ones
    /// will not arrive.
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
