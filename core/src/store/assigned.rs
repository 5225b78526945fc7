//! Messages that are assigned to a receive which has no request for them yet, and walks over all messages.
#![forbid(unsafe_code)]

use core::borrow::BorrowMut;

use super::{CHAIN, NEXT, PREV, Store, Stored, UnitMemory, put, word};
use crate::slab::NONE;

/// A stored message that is assigned to a receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AssignedMessage {
    /// The message.
    pub id: u32,
    /// The receive.
    pub owner: u32,
    /// The value of [`Store::mark_assigned`]; 0 before.
    pub mark: u32,
}

impl<U: UnitMemory, B: BorrowMut<[u32]>> Store<U, B> {
    /// Returns the message that arrived first, of those that receives can find.
    pub fn first(&self) -> Option<u32> {
        self.order.first()
    }

    /// Returns the message that arrived after this one, which receives can find.
    pub fn next(&self, id: u32) -> Option<u32> {
        Some(word(self.unit(id), NEXT)).filter(|id| *id != NONE)
    }

    /// Assigns a message to a receive: claims it, and appends it to the list of assigned messages.
    #[cold]
    pub fn assign(&mut self, id: u32, owner: u32) {
        self.claim(id);
        let last = core::mem::replace(&mut self.assigned.tail, id);
        let head = self.unit_mut(id);
        put(head, NEXT, NONE);
        put(head, PREV, owner);
        put(head, CHAIN, 0);
        match last {
            NONE => self.assigned.head = id,
            last => put(self.unit_mut(last), NEXT, id),
        }
    }

    /// Returns the message that was assigned first.
    pub fn first_assigned(&self) -> Option<AssignedMessage> {
        let id = self.assigned.first()?;
        let head = self.unit(id);
        Some(AssignedMessage { id, owner: word(head, PREV), mark: word(head, CHAIN) })
    }

    /// Removes the first message from the list of assigned messages. It stays claimed.
    pub fn take_assigned(&mut self) {
        if let Some(id) = self.assigned.first() {
            self.assigned.head = word(self.unit(id), NEXT);
            if self.assigned.head == NONE {
                self.assigned.tail = NONE;
            }
        }
    }

    /// Marks the assigned messages that satisfy the test and have no mark.
    #[cold]
    pub fn mark_assigned(&mut self, mark: u32, test: impl Fn(&Self, u32, &Stored) -> bool) {
        let mut id = self.assigned.head;
        while id != NONE {
            let is_it = test(self, id, &self.get(id));
            let head = self.unit_mut(id);
            if word(head, CHAIN) == 0 && is_it {
                put(head, CHAIN, mark);
            }
            id = word(head, NEXT);
        }
    }
}
