//! The completion queue: its list, and what a request of it carries.
#![forbid(unsafe_code)]

use core::borrow::BorrowMut;

#[cfg(nemesia_injected_fault)]
use crate::injected_fault::{InjectedFault, injected};
use crate::slab::{List, Slab, Slot};

/// The kind of an operation whose completion is in the completion queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CompletionKind {
    /// A send of a tagged message, synchronous or not.
    #[default]
    Send,
    /// A receive of a tagged message, matched probes included.
    Receive,
    /// A send of an active message.
    Active,
    /// A put.
    Put,
    /// A get.
    Get,
    /// An atomic operation: accumulate, fetch, fetch and accumulate, or compare and swap.
    Atomic,
    /// A flush of one rank.
    Flush,
    /// A wait for notifications of a region.
    Notification,
    /// A message that was placed into a multi-receive buffer.
    MultiReceive,
    /// The end of a multi-receive buffer, after all its messages: the buffer is free.
    MultiReceiveEnd,
}

/// What a request of the completion queue carries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::engine) struct CompletionMark {
    /// The number that the caller has given the operation. For a message in a multi-receive buffer, its offset.
    pub(in crate::engine) context: u64,
    pub(in crate::engine) kind: CompletionKind,
    /// The slot of the multi-receive buffer that holds the message, for a kind of
    /// [`CompletionKind::MultiReceive`]. The slot is in use at least until the message's completion was taken: the
    /// buffer's own comes later.
    pub(in crate::engine) buffer: u32,
}

impl CompletionMark {
    pub(in crate::engine) const fn new(context: u64, kind: CompletionKind) -> Self {
        Self { context, kind, buffer: 0 }
    }
}

/// The requests of the completion queue that are complete, in the order of their completion. They are in no other
/// list, so their slots' links form this one: an entry takes no memory, and the queue cannot overflow.
#[derive(Debug, Default)]
pub(in crate::engine) struct CompletionQueue {
    complete: List,
}

impl CompletionQueue {
    /// Appends a request that is complete.
    #[inline]
    pub(in crate::engine) fn enter<T, B: BorrowMut<[Slot<T>]>>(
        &mut self,
        requests: &mut Slab<T, B>,
        index: u32,
    ) {
        requests.push_back(&mut self.complete, index);
        #[cfg(nemesia_injected_fault)]
        if injected(InjectedFault::ReorderCompletions)
            && let Some(first) = requests.pop_front(&mut self.complete)
        {
            requests.push_back(&mut self.complete, first);
        }
    }

    /// Removes and returns the first request.
    pub(in crate::engine) fn take<T, B: BorrowMut<[Slot<T>]>>(
        &mut self,
        requests: &mut Slab<T, B>,
    ) -> Option<u32> {
        requests.pop_front(&mut self.complete)
    }

    pub(in crate::engine) const fn is_empty(&self) -> bool {
        self.complete.is_empty()
    }
}
