//! What two processes see: layouts and lock-free structures, each a view over borrowed memory.
//!
//! # Two segments a process
//! | segment | written by | holds |
//! |---|---|---|
//! | *own* | its owner only; peers map it read-only, and the kernel keeps it so (`F_SEAL_FUTURE_WRITE`) | header; per peer: fastbox to it, positions and cells given back to it; the cell pool |
//! | *inbox* | everyone | header; sleep word; the entries of the receive queue |
//!
//! So a peer that scribbles can damage what it sends, and the inbox of others; and an inbox holds only hints:
//! each entry names a cell in its sender's own segment, which proves itself by destination and sequence
//! number. A forged entry is skipped, a lost one is found by a sweep over the senders' cells. The worst that
//! a peer can do is fail its own connection (invariant 1).
//!
//! # Why there is no half-done enqueue
//! Nemesis's queue (paper 4, section 2) swaps the tail and then links the previous cell; a producer that dies
//! in between hangs the consumer. Here the entry itself is the commit: one compare-and-swap puts a filled
//! cell's number into the next free entry. Before it, the dead producer has done nothing to the queue; after
//! it, the message is there. The tail is a hint that every producer corrects. See [`queue`].

pub mod fastbox;
pub mod layout;
pub mod pool;
pub mod port;
pub mod queue;
pub mod ring;
pub mod share;
pub mod sleep;
// Addresses, of which models know none.
#[cfg(not(nemesia_loom))]
pub mod window;

#[cfg(test)]
pub(crate) mod tests;
