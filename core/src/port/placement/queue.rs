//! Queues over lent storage: of values, and of the connections of a port.
#![forbid(unsafe_code)]

use core::borrow::BorrowMut;
use core::marker::PhantomData;

use crate::slab::NONE;

/// A double-ended queue of values. Its storage limits its length, and may grow.
#[derive(Debug)]
pub(super) struct LentQueue<T, B> {
    places: B,
    first: usize,
    count: usize,
    value: PhantomData<T>,
}

impl<T, B: BorrowMut<[Option<T>]> + Default> LentQueue<T, B> {
    pub(super) fn new() -> Self {
        Self { places: B::default(), first: 0, count: 0, value: PhantomData }
    }

    /// Grows the storage until the queue can hold `most` values. Returns whether it can.
    pub(super) fn reserve(&mut self, most: usize) -> bool
    where
        B: Extend<Option<T>>,
    {
        let places = self.places.borrow_mut();
        let have = places.len();
        if have < most {
            places.rotate_left(self.first.min(have));
            self.first = 0;
            self.places.extend(core::iter::repeat_with(|| None).take(most - have));
        }
        self.places.borrow().len() >= most
    }

    fn index(&self, at: usize) -> usize {
        let (index, len) = (self.first + at, self.places.borrow().len());
        if index >= len { index - len } else { index }
    }

    pub(super) const fn len(&self) -> usize {
        self.count
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub(super) fn is_full(&self) -> bool {
        self.count >= self.places.borrow().len()
    }

    /// Appends a value. Returns false, without any effect, if the storage is full.
    pub(super) fn push_back(&mut self, value: T) -> bool {
        if self.is_full() {
            return false;
        }
        let index = self.index(self.count);
        if let Some(place) = self.places.borrow_mut().get_mut(index) {
            *place = Some(value);
            self.count += 1;
        }
        true
    }

    /// Adds a value at the front. Returns false, without any effect, if the storage is full.
    pub(super) fn push_front(&mut self, value: T) -> bool {
        if self.is_full() {
            return false;
        }
        self.first = if self.first == 0 { self.places.borrow().len() - 1 } else { self.first - 1 };
        if let Some(place) = self.places.borrow_mut().get_mut(self.first) {
            *place = Some(value);
            self.count += 1;
        }
        true
    }

    pub(super) fn pop_front(&mut self) -> Option<T> {
        if self.count == 0 {
            return None;
        }
        let value = self.places.borrow_mut().get_mut(self.first)?.take();
        self.first = self.index(1);
        self.count -= 1;
        value
    }

    pub(super) fn pop_back(&mut self) -> Option<T> {
        let last = self.index(self.count.checked_sub(1)?);
        self.count -= 1;
        self.places.borrow_mut().get_mut(last)?.take()
    }

    pub(super) fn front(&self) -> Option<&T> {
        self.places.borrow().get(self.first).filter(|_| self.count > 0)?.as_ref()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        (0..self.count).filter_map(|at| self.places.borrow().get(self.index(at))?.as_ref())
    }

    pub(super) fn clear(&mut self) {
        while self.pop_front().is_some() {}
    }
}

/// The membership of a place in one [`IndexQueue`].
#[derive(Clone, Copy, Debug)]
pub(super) struct QueueHook {
    prev: u32,
    next: u32,
    queued: bool,
}

impl QueueHook {
    pub(super) const NEW: Self = Self { prev: NONE, next: NONE, queued: false };
}

/// A value that can be in several queues.
pub(super) trait Hooked {
    fn hook(&mut self, queue: usize) -> Option<&mut QueueHook>;
}

/// A first-in first-out queue of places by index. A place is in it at most once.
#[derive(Clone, Copy, Debug)]
pub(super) struct IndexQueue {
    /// The number of the hook that it uses.
    number: usize,
    first: u32,
    last: u32,
    count: usize,
}

impl IndexQueue {
    pub(super) const fn new(number: usize) -> Self {
        Self { number, first: NONE, last: NONE, count: 0 }
    }

    pub(super) const fn len(&self) -> usize {
        self.count
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub(super) fn first(&self) -> Option<u32> {
        (self.first != NONE).then_some(self.first)
    }

    fn hook<'a, P: Hooked>(&self, places: &'a mut [P], at: u32) -> Option<&'a mut QueueHook> {
        places.get_mut(at as usize)?.hook(self.number)
    }

    /// Returns the place after this one.
    pub(super) fn next<P: Hooked>(&self, places: &mut [P], at: u32) -> Option<u32> {
        let next = self.hook(places, at)?.next;
        (next != NONE).then_some(next)
    }

    /// Appends a place, unless it is in the queue already.
    pub(super) fn push_back<P: Hooked>(&mut self, places: &mut [P], at: u32) {
        let last = self.last;
        match self.hook(places, at) {
            Some(hook) if !hook.queued => *hook = QueueHook { prev: last, next: NONE, queued: true },
            _ => return,
        }
        match self.hook(places, last) {
            Some(hook) => hook.next = at,
            None => self.first = at,
        }
        self.last = at;
        self.count += 1;
    }

    /// Removes a place, if it is in the queue.
    pub(super) fn remove<P: Hooked>(&mut self, places: &mut [P], at: u32) {
        let Some(hook) = self.hook(places, at).filter(|hook| hook.queued) else { return };
        let QueueHook { prev, next, .. } = core::mem::replace(hook, QueueHook::NEW);
        match self.hook(places, prev) {
            Some(hook) => hook.next = next,
            None => self.first = next,
        }
        match self.hook(places, next) {
            Some(hook) => hook.prev = prev,
            None => self.last = prev,
        }
        self.count -= 1;
    }

    pub(super) fn pop_front<P: Hooked>(&mut self, places: &mut [P]) -> Option<u32> {
        let first = self.first()?;
        self.remove(places, first);
        Some(first)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    struct Place([QueueHook; 2]);

    impl Hooked for Place {
        fn hook(&mut self, queue: usize) -> Option<&mut QueueHook> {
            self.0.get_mut(queue)
        }
    }

    proptest! {
        #[test]
        fn values_leave_the_queue_as_they_leave_a_deque(
            steps in prop::collection::vec((0..5_u8, any::<u16>()), 0..200),
        ) {
            let (mut queue, mut deque) = (LentQueue::<u16, Vec<Option<u16>>>::new(), VecDeque::new());
            let mut room = 0;
            for (step, value) in steps {
                match step {
                    0 => {
                        prop_assert_eq!(queue.push_back(value), deque.len() < room);
                        if deque.len() < room {
                            deque.push_back(value);
                        }
                    }
                    1 => {
                        prop_assert_eq!(queue.push_front(value), deque.len() < room);
                        if deque.len() < room {
                            deque.push_front(value);
                        }
                    }
                    2 | 3 => prop_assert_eq!(queue.pop_front(), deque.pop_front()),
                    _ => {
                        room = room.max(usize::from(value % 12));
                        prop_assert!(queue.reserve(usize::from(value % 12)));
                    }
                }
                prop_assert_eq!((queue.len(), queue.front()), (deque.len(), deque.front()));
                prop_assert!(queue.iter().eq(&deque));
            }
        }

        #[test]
        fn places_leave_the_queue_in_the_order_of_their_entry(
            steps in prop::collection::vec((0..4_u8, 0..6_u32), 0..200),
        ) {
            let mut places: Vec<Place> = (0..6).map(|_| Place([QueueHook::NEW; 2])).collect();
            let (mut queue, mut other, mut deque) = (IndexQueue::new(0), IndexQueue::new(1), VecDeque::new());
            for (step, at) in steps {
                match step {
                    0 | 1 => {
                        other.push_back(&mut places, at);
                        queue.push_back(&mut places, at);
                        if !deque.contains(&at) {
                            deque.push_back(at);
                        }
                    }
                    2 => prop_assert_eq!(queue.pop_front(&mut places), deque.pop_front()),
                    _ => {
                        queue.remove(&mut places, at);
                        deque.retain(|other| *other != at);
                    }
                }
                let (mut found, mut next) = (Vec::new(), queue.first());
                while let Some(at) = next {
                    found.push(at);
                    next = queue.next(&mut places, at);
                }
                prop_assert!(found.iter().eq(&deque) && queue.len() == deque.len());
            }
            prop_assert!(queue.pop_front(&mut places).is_some() != deque.is_empty());
        }
    }
}
