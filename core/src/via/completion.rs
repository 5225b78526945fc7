//! Completion queues (paper 2, sections 1.3.1 and 1.4.4): one place where a program learns which work queues of its VIs
//! have finished descriptors.
#![forbid(unsafe_code)]

use core::borrow::BorrowMut;

use super::fifo::Fifo;

/// One finished descriptor: of which VI, and in which of its queues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CompletionEntry {
    /// The VI, by the number that the layer above gave it.
    pub vi: u64,
    /// Whether the descriptor was in the receive queue.
    pub is_receive: bool,
}

/// A completion queue over lent storage.
#[derive(Debug)]
pub struct ViaCompletionQueue<B: BorrowMut<[CompletionEntry]>> {
    entries: Fifo<CompletionEntry, B>,
    /// The number of work queues that report to this queue.
    pub users: u32,
}

impl<B: BorrowMut<[CompletionEntry]>> ViaCompletionQueue<B> {
    /// Returns an empty queue.
    pub const fn new(storage: B) -> Self {
        Self { entries: Fifo::new(storage), users: 0 }
    }

    /// Appends an entry. Returns whether there was room; if not, the entry is lost, which is an overrun.
    pub fn push(&mut self, entry: CompletionEntry) -> bool {
        self.entries.push(entry)
    }

    /// Takes the oldest entry.
    pub fn pop(&mut self) -> Option<CompletionEntry> {
        self.entries.pop()
    }

    /// Returns the number of entries.
    pub const fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns whether there is no entry.
    pub const fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns the number of entries for which there is room.
    pub fn capacity(&self) -> usize {
        self.entries.capacity()
    }

    /// Moves the entries to other storage, while the queue is in use, and returns the old one.
    ///
    /// # Errors
    /// The storage, if it has no room for the entries.
    pub fn resize(&mut self, storage: B) -> Result<B, B> {
        self.entries.replace(storage)
    }

    /// Removes the entries of a VI that is destroyed.
    pub fn forget(&mut self, vi: u64) {
        for _ in 0..self.entries.len() {
            if let Some(entry) = self.entries.pop()
                && entry.vi != vi
            {
                self.entries.push(entry);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::vec;

    use super::*;

    fn entry(vi: u64) -> CompletionEntry {
        CompletionEntry { vi, is_receive: vi.is_multiple_of(2) }
    }

    #[test]
    fn entries_leave_in_order_and_an_overrun_is_reported() {
        let mut queue = ViaCompletionQueue::new(vec![CompletionEntry::default(); 2]);
        assert!(queue.push(entry(1)) && queue.push(entry(2)) && !queue.push(entry(3)));
        assert_eq!((queue.pop(), queue.pop(), queue.pop()), (Some(entry(1)), Some(entry(2)), None));
    }

    #[test]
    fn a_queue_is_resized_while_it_has_entries() {
        let mut queue = ViaCompletionQueue::new(vec![CompletionEntry::default(); 2]);
        assert!(queue.push(entry(1)) && queue.push(entry(2)));
        assert!(queue.resize(vec![CompletionEntry::default(); 1]).is_err());
        assert!(queue.resize(vec![CompletionEntry::default(); 4]).is_ok());
        assert!(queue.push(entry(3)) && queue.capacity() == 4);
        assert_eq!([queue.pop(), queue.pop(), queue.pop()], [1, 2, 3].map(|vi| Some(entry(vi))));
    }

    #[test]
    fn the_entries_of_one_vi_are_forgotten_and_the_others_keep_their_order() {
        let mut queue = ViaCompletionQueue::new(vec![CompletionEntry::default(); 8]);
        for vi in [1, 2, 1, 3, 1, 2] {
            assert!(queue.push(entry(vi)));
        }
        queue.forget(1);
        assert_eq!([queue.pop(), queue.pop(), queue.pop()], [2, 3, 2].map(|vi| Some(entry(vi))));
        assert!(queue.is_empty());
    }
}
