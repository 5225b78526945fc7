//! Structures that two processes share: layouts and lock-free structures, each a view over borrowed memory.
//!
//! # The segments of a process
//! - The *own* segment holds the cell pool. Only its owner writes it. Peers map it read-only, which the kernel
//!   enforces (`F_SEAL_FUTURE_WRITE`).
//! - A *link* segment holds the structures for one peer: the fastbox to it, positions, and the ring that returns
//!   its cells. It is made with the connection, and its memory is reserved then. Only its owner writes it, and only
//!   its peer maps it, read-only.
//! - An *inbox* holds the entries of a receive queue, and the first one the sleep word. Every peer that the queue
//!   serves writes it. A process has one inbox, and further ones if it has many peers ([`layout::queue_of`]).
//!
//! Each process knows each of its peers by a number of its own choice. Two processes tell each other these numbers
//! when they connect.
//!
//! A malicious peer can therefore corrupt only its own messages and the inboxes of other processes. An inbox
//! holds only hints: each entry names a cell in the sender's own segment, and the cell itself records its
//! destination and sequence number. The receiver skips a forged entry. If an entry is lost, the receiver
//! finds the message by scanning the senders' cells. The worst that a peer can do is fail its own connection
//! (invariant 1).
//!
//! # Why there is no incomplete enqueue
//! Nemesis's queue (paper 4, section 2) swaps the tail and then links the previous cell. If a producer dies
//! between the two steps, the consumer hangs. Here the entry itself is the commit: one compare-and-swap
//! writes the number of a filled cell into the next free entry. If the producer dies before it, the queue is
//! unchanged; after it, the message is in the queue. The tail is a hint that every producer corrects. See
//! [`queue`].

pub mod assist;
pub mod end_mark;
pub mod fastbox;
pub mod layout;
pub mod life;
pub mod pool;
pub mod port;
pub mod queue;
pub mod ring;
pub mod sleep;
// Models have no addresses.
#[cfg(not(nemesia_loom))]
pub mod window;

#[cfg(test)]
pub(crate) mod tests;
