//! The receive queue: many producers, one consumer, cells by number (paper 4, section 2).
//!
//! Nemesis's queue links cells: a producer swaps the tail, then links the cell before. Dying in between, it
//! hangs the consumer for good. This queue has no such window. Its entries are a ring with room for every cell
//! of the world; a producer commits a cell with *one* compare-and-swap of the entry at the tail, from "last
//! lap" to "this lap, this cell", after the cell is filled. Before that instruction a dead producer has left
//! no trace, after it the message is whole. Each entry names the cell and thereby its owner.
//!
//! The tail is a hint: whoever finds its entry taken moves on, so a producer that dies before it updates the
//! hint costs the next one a step. The head is the consumer's alone and never shared, which is Nemesis's
//! shadow head taken to its end: polling an empty queue reads one line that only changes when a message comes.
//!
//! A peer that scribbles here can forge or lose entries; see [`super`] for why neither matters.

use crate::sync::{Edge, Word64};

/// The two ends share these; the memory is the consumer's inbox.
#[derive(Clone, Copy, Debug)]
pub struct Queue<'a> {
    entries: &'a [Word64],
    tail: &'a Word64,
}

impl<'a> Queue<'a> {
    /// A queue over zeroed memory. The number of entries is a power of two, at least the number of cells that
    /// can be in the queue at once.
    pub fn new(entries: &'a [Word64], tail: &'a Word64) -> Self {
        debug_assert!(entries.len().is_power_of_two());
        Self { entries, tail }
    }

    #[inline]
    fn entry(&self, position: u64) -> &'a Word64 {
        &self.entries[position as usize & (self.entries.len() - 1)]
    }

    /// Lap of a position, in the entry's upper half; the first lap is 1, as zeroed memory is lap 0.
    ///
    /// Laps have 32 bits: the smallest queue (4 entries) wraps after 17 billion cells. Then every comparison
    /// fails, and the queue is given up for the sweep: slower, never wrong.
    #[inline]
    fn lap(&self, position: u64) -> u64 {
        ((position >> self.entries.len().trailing_zeros()) + 1) << 32
    }
}

const LAP: u64 = 0xffff_ffff_0000_0000;
const MAX_POSITION: u64 = 1 << 50;

/// The queue's memory holds what no honest producer writes. Who wrote it can't be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("receive queue entry {position} holds {found:#x}")]
pub struct QueueFault {
    /// Position of the entry.
    pub position: u64,
    /// What it holds.
    pub found: u64,
}

/// A producer's end.
#[derive(Debug)]
pub struct Producer<'a> {
    queue: Queue<'a>,
    /// All entries below are taken, as far as we know for certain.
    from: u64,
}

impl<'a> Producer<'a> {
    /// A producer that has sent nothing.
    pub const fn new(queue: Queue<'a>) -> Self {
        Self { queue, from: 0 }
    }

    /// Enqueues a published cell by its number in the world.
    ///
    /// Lock-free: a retry means that another producer got its cell in. At most four times the ring is walked.
    ///
    /// # Errors
    /// The entries make no sense; the cell is not enqueued, and the consumer's sweep will find it.
    #[inline]
    pub fn push(&mut self, cell: u32) -> Result<(), QueueFault> {
        // A hint below what we know is late; one above was written after the entries below it were taken.
        let hint = self.queue.tail.load_acquire(Edge::QueueTail);
        let position = match self.walk(hint.max(self.from), cell) {
            Ok(position) => position,
            // A scribbled hint. What we know ourselves is a safe place to start, if a late one.
            Err(_) => self.walk(self.from, cell)?,
        };
        self.from = position + 1;
        self.queue.tail.store_release(self.from, Edge::QueueTail);
        Ok(())
    }

    /// Puts the cell into the first free entry at or after `position`, and returns where.
    #[inline]
    fn walk(&self, mut position: u64, cell: u32) -> Result<u64, QueueFault> {
        let queue = self.queue;
        let entries = queue.entries.len() as u64;
        // No honest run comes near: 2^50 messages take a year at 30 million a second.
        let fault = |position, found| Err(QueueFault { position, found });
        for _ in 0..=2 * entries {
            if position > MAX_POSITION {
                return fault(position, 0);
            }
            let (entry, lap) = (queue.entry(position), queue.lap(position));
            // Acquire, as the step below skips entries: who sees this one must see those before it as taken, or
            // it takes an entry two laps behind for a scribbled one.
            let found = entry.load_acquire(Edge::QueuePublish);
            let taken = found & LAP;
            if taken >= lap {
                // Taken in this lap, or in a later one: then everything before that entry is taken as well.
                position += 1 + ((taken - lap) >> 32) * entries;
            } else if taken + (1 << 32) != lap {
                return fault(position, found);
            } else if entry.cas_release(found, lap | u64::from(cell), Edge::QueuePublish).is_ok() {
                return Ok(position);
            }
            // Else another producer took the entry: look at it again, and step over it.
        }
        fault(position, 0)
    }
}

/// The consumer's end. Exclusive to one thread at a time.
#[derive(Debug)]
pub struct Consumer<'a> {
    queue: Queue<'a>,
    head: u64,
}

impl<'a> Consumer<'a> {
    /// A consumer at the queue's start.
    pub const fn new(queue: Queue<'a>) -> Self {
        Self { queue, head: 0 }
    }

    /// The number at the head, unchecked; `None` when the queue is empty. Never waits for a producer.
    ///
    /// # Errors
    /// The entry makes no sense.
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

    /// Steps over the entry that [`Consumer::peek`] showed.
    #[inline]
    pub fn advance(&mut self) {
        self.head += 1;
    }
}
