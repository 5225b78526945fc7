//! The receive queue: many producers and one consumer of cell numbers (paper 4, section 2).
//!
//! Nemesis's queue links cells: a producer swaps the tail, then links the preceding cell. If the producer
//! dies between the two steps, the consumer hangs forever. This queue has no such interval. Its entries are a
//! ring with space for every cell of the world. After a producer has filled a cell, it commits the cell with
//! *one* compare-and-swap of the entry at the tail, from "last lap" to "this lap, this cell". If the producer
//! dies before that instruction, the queue is unchanged; after it, the message is complete. Each entry names
//! the cell and thereby its owner.
//!
//! The tail is a hint: a producer that finds its entry taken moves on. If a producer dies before it updates
//! the hint, the next producer needs one more step. The head belongs to the consumer alone and is never
//! shared, which completes the idea of Nemesis's shadow head. Polling an empty queue therefore reads one line
//! that changes only when a message arrives.
//!
//! Entries of cells that their owner has taken back stay in the ring until the consumer reads them. If it does not poll
//! meanwhile, producers can overtake it, and overwrite entries that it has not read ([`Consumer::catch_up`]).
//!
//! A peer that corrupts this memory can forge or lose entries; [`super`] explains why neither matters.

use crate::sync::{Edge, Word64};

/// The queue that both ends share. Its memory is the consumer's inbox.
#[derive(Clone, Copy, Debug)]
pub struct CellQueue<'a> {
    entries: &'a [Word64],
    tail: &'a Word64,
}

impl<'a> CellQueue<'a> {
    /// Returns a queue over zeroed memory. The number of entries is a power of two, at least the number of
    /// cells that can be in the queue at once.
    pub fn new(entries: &'a [Word64], tail: &'a Word64) -> Self {
        debug_assert!(entries.len().is_power_of_two());
        Self { entries, tail }
    }

    #[inline]
    fn entry(&self, position: u64) -> &'a Word64 {
        &self.entries[position as usize & (self.entries.len() - 1)]
    }

    /// Returns the lap of a position, in the upper half of an entry. The first lap is 1, because zeroed
    /// memory is lap 0.
    ///
    /// Laps have 32 bits: the smallest queue (4 entries) wraps after 17 billion cells. Every comparison then
    /// fails, and receivers fall back to scanning the senders' cells, which is slower but correct.
    #[inline]
    fn lap(&self, position: u64) -> u64 {
        ((position >> self.entries.len().trailing_zeros()) + 1) << 32
    }
}

const LAP: u64 = 0xffff_ffff_0000_0000;
const MAX_POSITION: u64 = 1 << 50;

/// The queue's memory holds a value that violates the protocol. The process that wrote it cannot be
/// determined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("receive queue entry {position} holds the invalid value {found:#x}")]
pub struct QueueFault {
    /// Position of the entry.
    pub position: u64,
    /// The value of the entry.
    pub found: u64,
}

/// The end of one producer.
#[derive(Debug)]
pub struct Producer<'a> {
    queue: CellQueue<'a>,
    /// All entries before this position are known to be taken.
    from: u64,
}

impl<'a> Producer<'a> {
    /// Returns a producer that has sent nothing.
    pub const fn new(queue: CellQueue<'a>) -> Self {
        Self { queue, from: 0 }
    }

    /// Enqueues a published cell by its number in the world.
    ///
    /// Lock-free: a retry means that another producer has enqueued its cell. The function walks at most four
    /// times around the ring.
    ///
    /// # Errors
    /// The entries are invalid. The cell is not enqueued; the consumer finds it by scanning.
    #[inline]
    pub fn push(&mut self, cell: u32) -> Result<(), QueueFault> {
        // A hint below the known position is outdated. A hint above it was written after the entries below it
        // were taken.
        let hint = self.queue.tail.load_acquire(Edge::QueueTail);
        let position = match self.walk(hint.max(self.from), cell) {
            Ok(position) => position,
            // The hint is corrupt. The known position is a safe, if possibly outdated, place to start.
            Err(_) => self.walk(self.from, cell)?,
        };
        self.from = position + 1;
        self.queue.tail.store_release(self.from, Edge::QueueTail);
        Ok(())
    }

    /// Puts the cell into the first free entry at or after `position`, and returns the position of that
    /// entry.
    #[inline]
    fn walk(&self, mut position: u64, cell: u32) -> Result<u64, QueueFault> {
        let queue = self.queue;
        let entries = queue.entries.len() as u64;
        // No correct run reaches this limit: 2^50 messages take a year at 30 million a second.
        let fault = |position, found| Err(QueueFault { position, found });
        for _ in 0..=2 * entries {
            if position > MAX_POSITION {
                return fault(position, 0);
            }
            let (entry, lap) = (queue.entry(position), queue.lap(position));
            // Acquire ordering is needed because the step below skips entries. A producer that sees this
            // entry must see all earlier entries as taken; otherwise it mistakes an entry that is two laps
            // behind for a corrupt one.
            let found = entry.load_acquire(Edge::QueuePublish);
            let taken = found & LAP;
            if taken >= lap {
                // The entry is taken in this lap or in a later one, so everything before it is taken as well.
                position += 1 + ((taken - lap) >> 32) * entries;
            } else if taken + (1 << 32) != lap {
                return fault(position, found);
            } else if entry.cas_release(found, lap | u64::from(cell), Edge::QueuePublish).is_ok() {
                return Ok(position);
            }
            // Otherwise another producer took the entry: the next iteration reads it again and steps over it.
        }
        fault(position, 0)
    }
}

/// The consumer's end. Exclusive to one thread at a time.
#[derive(Debug)]
pub struct Consumer<'a> {
    queue: CellQueue<'a>,
    head: u64,
}

impl<'a> Consumer<'a> {
    /// Returns a consumer at the start of the queue.
    pub const fn new(queue: CellQueue<'a>) -> Self {
        Self { queue, head: 0 }
    }

    /// Returns the unchecked cell number at the head; `None` if the queue is empty. Never waits for a
    /// producer.
    ///
    /// # Errors
    /// The entry is invalid.
    #[inline]
    pub fn peek(&self) -> Result<Option<u32>, QueueFault> {
        let found = self.queue.entry(self.head).load_acquire(Edge::QueuePublish);
        let lap = self.queue.lap(self.head);
        if found & LAP == lap {
            Ok(Some(found as u32))
        } else if (found & LAP).wrapping_add(1 << 32) == lap {
            Ok(None)
        } else {
            Err(QueueFault { position: self.head, found })
        }
    }

    /// Moves to the entry in which [`Consumer::peek`] has found a fault, if it belongs to a later lap. Producers have
    /// then gone round the ring past entries that were not read: a process that does not poll leaves entries for cells
    /// that their owners have taken back, so the ring can get full. Some entries are overwritten; the caller scans the
    /// cells once. Returns `false`, and does not move, if no producer can have written the entry.
    #[cold]
    pub fn catch_up(&mut self, fault: &QueueFault) -> bool {
        let Some(ahead) = (fault.found & LAP).checked_sub(self.queue.lap(self.head)) else { return false };
        let position = self.head + (ahead >> 32) * self.queue.entries.len() as u64;
        let is_later = position > self.head && position <= MAX_POSITION;
        if is_later {
            self.head = position;
        }
        is_later
    }

    /// Moves past the entry that [`Consumer::peek`] returned.
    #[inline]
    pub fn advance(&mut self) {
        self.head += 1;
    }
}
