//! Completion queues.

use std::collections::VecDeque;

use nemesia_core::via::ViaError;
use nemesia_core::via::completion::{CompletionEntry, ViaCompletionQueue};

use super::vis::{MOST_ENTRIES, MOST_QUEUES};
use super::{Provider, deadline};
use crate::via::objects::QueueObject;
use crate::via::state::ViaState;

impl Provider {
    /// Creates a completion queue with room for at least this number of entries.
    ///
    /// # Errors
    /// [`ViaError::InvalidParameter`], [`ViaError::ErrorResource`].
    pub fn create_queue(&self, nic: u64, entries: u64) -> Result<u64, ViaError> {
        let storage = storage(entries)?;
        let mut state = self.lock();
        state.nics.get(nic).ok_or(ViaError::InvalidParameter)?;
        if state.queues.len() >= MOST_QUEUES {
            return Err(ViaError::ErrorResource);
        }
        let queue = QueueObject { nic, queue: ViaCompletionQueue::new(storage), notifies: VecDeque::new() };
        state.queues.insert(|_| queue).ok_or(ViaError::ErrorResource)
    }

    /// Destroys a completion queue. Its callbacks are cancelled.
    ///
    /// # Errors
    /// [`ViaError::InvalidParameter`]; [`ViaError::ErrorResource`] while a VI uses it.
    pub fn destroy_queue(&self, queue: u64) -> Result<(), ViaError> {
        let mut state = self.lock();
        let object = state.queues.get(queue).ok_or(ViaError::InvalidParameter)?;
        if object.queue.users > 0 {
            return Err(ViaError::ErrorResource);
        }
        let removed = state.queues.remove(queue);
        state.notifies -= removed.map_or(0, |queue| queue.notifies.len());
        // Threads that wait for the queue see that it is gone.
        state.is_changed = true;
        Ok(())
    }

    /// Changes the room of a completion queue, which may be in use.
    ///
    /// # Errors
    /// [`ViaError::InvalidParameter`]; [`ViaError::ErrorResource`] if it has more entries, or the room is too large.
    pub fn resize_queue(&self, queue: u64, entries: u64) -> Result<(), ViaError> {
        let storage = storage(entries)?;
        let mut state = self.lock();
        let object = state.queues.get_mut(queue).ok_or(ViaError::InvalidParameter)?;
        object.queue.resize(storage).map(drop).map_err(|_| ViaError::ErrorResource)
    }

    /// Takes the oldest entry.
    ///
    /// # Errors
    /// [`ViaError::NotDone`], [`ViaError::InvalidParameter`].
    pub fn queue_done(&self, queue: u64) -> Result<CompletionEntry, ViaError> {
        let mut state = self.lock();
        match take_entry(&mut state, queue) {
            Err(ViaError::NotDone) => {
                state.drive_queue(queue);
                take_entry(&mut state, queue)
            }
            result => result,
        }
    }

    /// Waits for an entry, at most for these milliseconds, and takes it.
    ///
    /// # Errors
    /// [`ViaError::Timeout`], [`ViaError::InvalidParameter`], also if the queue is destroyed meanwhile.
    pub fn queue_wait(&self, queue: u64, limit: u64) -> Result<CompletionEntry, ViaError> {
        let attempt = |state: &mut ViaState| match take_entry(state, queue) {
            Err(ViaError::NotDone) => None,
            result => Some(result),
        };
        self.0.wait(deadline(limit), |state| state.drive_queue(queue), attempt)?
    }
}

fn storage(entries: u64) -> Result<Vec<CompletionEntry>, ViaError> {
    let entries = usize::try_from(entries).map_err(|_| ViaError::ErrorResource)?;
    match entries {
        0 => Err(ViaError::InvalidParameter),
        1..=MOST_ENTRIES => Ok(vec![CompletionEntry::default(); entries]),
        _ => Err(ViaError::ErrorResource),
    }
}

fn take_entry(state: &mut ViaState, queue: u64) -> Result<CompletionEntry, ViaError> {
    let object = state.queues.get_mut(queue).ok_or(ViaError::InvalidParameter)?;
    object.queue.pop().ok_or(ViaError::NotDone)
}
