//! Memory that a channel is lent for its packets.

use std::alloc::{Layout, alloc_zeroed, dealloc};

use nemesia_core::payload::LentMemory;

/// The alignment that suits the strictest fabric.
const PAGE: usize = 4096;

/// A piece of memory. Its owner frees it after the port to which it is lent.
#[derive(Debug)]
pub(super) struct Block {
    base: *mut u8,
    layout: Layout,
}

// SAFETY: the block is an allocation without ties to a thread; only its owner frees it.
unsafe impl Send for Block {}

impl Block {
    /// Allocates zeroed memory; `None` if there is none.
    pub(super) fn new(len: usize) -> Option<Self> {
        let layout = Layout::from_size_align(len.max(1), PAGE).ok()?;
        // SAFETY: the size is not 0.
        let base = unsafe { alloc_zeroed(layout) };
        (!base.is_null()).then_some(Self { base, layout })
    }

    pub(super) const fn len(&self) -> usize {
        self.layout.size()
    }

    /// Describes the memory twice: for the port that registers it, and for the channel that fills and reads it.
    ///
    /// # Safety
    /// The block is dropped after the port and the channel.
    pub(super) unsafe fn lent(&self) -> [LentMemory; 2] {
        // SAFETY: allocated with this length and zeroed. No reference to the bytes exists, and the caller keeps the
        // block until their users are gone.
        [(), ()].map(|()| unsafe { LentMemory::from_raw(self.base, self.layout.size()) })
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout by `new`, and freed only here.
        unsafe { dealloc(self.base, self.layout) };
    }
}
