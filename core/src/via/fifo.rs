//! A first-in first-out queue over lent storage.
//!
//! The storage is a slice, which the layer above may exchange for a longer one while the queue is in use: so queues are
//! resized without a stop.
#![forbid(unsafe_code)]

use core::borrow::BorrowMut;

/// A queue of copyable items, in the order in which they were pushed.
#[derive(Debug)]
pub struct Fifo<T, B: BorrowMut<[T]>> {
    storage: B,
    first: usize,
    count: usize,
    item: core::marker::PhantomData<T>,
}

impl<T: Copy, B: BorrowMut<[T]>> Fifo<T, B> {
    /// Returns an empty queue over the storage, whose content does not matter.
    #[inline(always)]
    pub const fn new(storage: B) -> Self {
        Self { storage, first: 0, count: 0, item: core::marker::PhantomData }
    }

    /// Returns the number of items.
    #[inline(always)]
    pub const fn len(&self) -> usize {
        self.count
    }

    /// Returns whether there is no item.
    #[inline(always)]
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns the number of items for which there is storage.
    #[inline(always)]
    pub fn capacity(&self) -> usize {
        self.storage.borrow().len()
    }

    #[inline(always)]
    fn place(&self, at: usize) -> usize {
        let place = self.first + at;
        if place >= self.capacity() { place - self.capacity() } else { place }
    }

    /// Appends an item. Returns whether there was storage for it.
    #[inline(always)]
    pub fn push(&mut self, item: T) -> bool {
        if self.count == self.capacity() {
            return false;
        }
        let place = self.place(self.count);
        self.storage.borrow_mut()[place] = item;
        self.count += 1;
        true
    }

    /// Takes the first item.
    #[inline(always)]
    pub fn pop(&mut self) -> Option<T> {
        let item = self.get(0)?;
        self.skip(1);
        Some(item)
    }

    /// Removes the first `count` items, or all if there are fewer.
    #[inline(always)]
    pub fn skip(&mut self, count: usize) {
        let count = count.min(self.count);
        if count == self.count {
            (self.first, self.count) = (0, 0);
        } else {
            self.first = self.place(count);
            self.count -= count;
        }
    }

    /// Returns the item at this position, counted from the first.
    #[inline(always)]
    pub fn get(&self, at: usize) -> Option<T> {
        self.peek(at).copied()
    }

    /// Returns a reference to the item at this position.
    #[inline(always)]
    pub fn peek(&self, at: usize) -> Option<&T> {
        if at < self.count { self.storage.borrow().get(self.place(at)) } else { None }
    }

    /// Returns the item at this position, to be changed.
    #[inline(always)]
    pub fn get_mut(&mut self, at: usize) -> Option<&mut T> {
        let place = self.place(at);
        if at < self.count { self.storage.borrow_mut().get_mut(place) } else { None }
    }

    /// Moves the items to other storage and returns the old one.
    ///
    /// # Errors
    /// The storage, if it has no room for the items.
    pub fn replace(&mut self, mut storage: B) -> Result<B, B> {
        if storage.borrow().len() < self.count {
            return Err(storage);
        }
        for at in 0..self.count {
            storage.borrow_mut()[at] = self.storage.borrow()[self.place(at)];
        }
        self.first = 0;
        Ok(core::mem::replace(&mut self.storage, storage))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::vec;
    use std::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_queue_is_like_its_twin(steps in prop::collection::vec((0..5_u8, 0..9_usize), 0..200)) {
            let mut queue: Fifo<usize, Vec<usize>> = Fifo::new(vec![0; 3]);
            let mut twin = VecDeque::new();
            for (number, (step, amount)) in steps.into_iter().enumerate() {
                match step {
                    0 | 1 => {
                        let fits = twin.len() < queue.capacity();
                        prop_assert_eq!(queue.push(number), fits);
                        if fits {
                            twin.push_back(number);
                        }
                    }
                    2 => prop_assert_eq!(queue.pop(), twin.pop_front()),
                    3 => {
                        queue.skip(amount);
                        twin.drain(..amount.min(twin.len()));
                    }
                    _ => prop_assert_eq!(queue.replace(vec![0; amount]).is_ok(), amount >= twin.len()),
                }
                let all: Vec<usize> = (0..queue.len()).filter_map(|at| queue.get(at)).collect();
                prop_assert_eq!(&all, &twin.iter().copied().collect::<Vec<_>>());
                prop_assert_eq!(queue.get(queue.len()), None);
                prop_assert!(queue.get_mut(queue.len()).is_none());
            }
        }
    }
}
