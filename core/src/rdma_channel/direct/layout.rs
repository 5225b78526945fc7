//! Where the parts of a [`DirectPipe`](super::DirectPipe) lie in the memory that both processes have mapped.
//!
//! The memory begins with the direction from the process that made it; the other direction follows. Words that
//! different processes write lie in different pairs of cache lines.
//!
//! | offset in a direction | bytes | contents |
//! |---|---|---|
//! | 0 | 8 | position that the receiver has read in the fastbox |
//! | 128 | 8 | position up to which the sender has written the ring |
//! | 256 | 8 | position up to which the receiver has read the ring |
//! | 384 | 64 | sleep word of the sender, which the receiver reads after each put and get of its own |
//! | 4096 | 4096 | slots of the fastbox |
//! | 8192 | a power of two | the ring |
#![forbid(unsafe_code)]

use crate::shared::fastbox::FastboxSlot;

/// Offset in a direction of the fastbox's position.
pub const DIRECT_ACK_AT: usize = 0;
/// Offset in a direction of the ring's position that the sender writes.
pub const DIRECT_WRITTEN_AT: usize = 128;
/// Offset in a direction of the ring's position that the receiver writes.
pub const DIRECT_READ_AT: usize = 256;
/// Offset in a direction of the sender's sleep word.
pub const DIRECT_SLEEP_AT: usize = 384;
/// Offset in a direction of the fastbox's slots.
pub const DIRECT_SLOTS_AT: usize = 4096;
/// The slots of a fastbox.
pub const DIRECT_SLOTS: usize = 128;
/// Offset in a direction of the ring.
pub const DIRECT_RING_AT: usize = DIRECT_SLOTS_AT + DIRECT_SLOTS * size_of::<FastboxSlot>();

/// Returns the bytes of a direction with a ring of this size. The memory of a pipe has two.
pub const fn direct_bytes(ring_bytes: usize) -> usize {
    DIRECT_RING_AT + ring_bytes
}

#[cfg(not(nemesia_loom))]
const _: () = assert!(DIRECT_RING_AT == 8192);
