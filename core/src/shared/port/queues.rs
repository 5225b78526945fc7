//! The receive queues of a port. Most processes have one. Each further one serves as many peers as all before it, and
//! is made with the first connection that needs it ([`queue_of`](crate::shared::layout::queue_of)).
#![forbid(unsafe_code)]

use crate::shared::layout::MAX_QUEUES;
use crate::shared::queue::Consumer;

/// The consumers' ends of the receive queues, polled in rotation.
#[derive(Debug)]
pub(super) struct ReceiveQueues<'a> {
    queues: [Option<Consumer<'a>>; MAX_QUEUES],
    count: usize,
    /// The queue that is polled first, and that [`ReceiveQueues::advance`] refers to.
    at: usize,
    damaged: bool,
    /// Entries of a queue were overwritten before they were read.
    overrun: bool,
}

impl<'a> ReceiveQueues<'a> {
    pub(super) fn new(first: Consumer<'a>) -> Self {
        let mut queues = [const { None }; MAX_QUEUES];
        queues[0] = Some(first);
        Self { queues, count: 1, at: 0, damaged: false, overrun: false }
    }

    /// Adds a queue. Returns `false` if there are [`MAX_QUEUES`].
    pub(super) fn add(&mut self, queue: Consumer<'a>) -> bool {
        let Some(free) = self.queues.get_mut(self.count) else { return false };
        *free = Some(queue);
        self.count += 1;
        true
    }

    /// Returns whether a queue held values that violate the protocol.
    pub(super) const fn is_damaged(&self) -> bool {
        self.damaged
    }

    /// Returns, once, whether entries were overwritten before they were read. The cells that they named are found by
    /// scanning.
    pub(super) const fn take_overrun(&mut self) -> bool {
        core::mem::replace(&mut self.overrun, false)
    }

    /// Treats every queue as damaged from now on.
    pub(super) const fn distrust(&mut self) {
        self.damaged = true;
    }

    /// Returns the unchecked cell number at the head of a queue. A damaged queue counts as empty.
    #[inline]
    pub(super) fn peek(&mut self) -> Option<u32> {
        let mut at = self.at;
        for _ in 0..self.count {
            let queue = self.queues.get_mut(at)?.as_mut()?;
            match queue.peek() {
                Ok(Some(number)) => {
                    self.at = at;
                    return Some(number);
                }
                Ok(None) => {}
                Err(fault) if queue.catch_up(&fault) => self.overrun = true,
                Err(_) => self.damaged = true,
            }
            at = self.after(at);
        }
        None
    }

    /// Moves past the entry that [`ReceiveQueues::peek`] returned. The next queue is polled first then.
    #[inline]
    pub(super) fn advance(&mut self) {
        if let Some(Some(queue)) = self.queues.get_mut(self.at) {
            queue.advance();
        }
        self.at = self.after(self.at);
    }

    const fn after(&self, at: usize) -> usize {
        if at + 1 < self.count { at + 1 } else { 0 }
    }
}
