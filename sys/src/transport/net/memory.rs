//! Memory that a channel is lent for its packets.

use std::alloc::{Layout, alloc_zeroed, dealloc};

use nemesia_core::payload::LentMemory;

/// The alignment that suits the strictest fabric.
const PAGE: usize = 4096;

/// A piece of memory. Its owner frees it after the port to which it is lent.
///
/// An allocator returns zeroed pages that no one has touched only for a small alignment: for a larger one, the standard
/// library writes the zeros. So the block is longer by a page, and its memory begins at the first page boundary. Pages
/// into which no bytes come then take no memory.
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
        let layout = Layout::from_size_align(len.checked_add(PAGE)?, align_of::<u64>()).ok()?;
        // SAFETY: the size is not 0.
        let base = unsafe { alloc_zeroed(layout) };
        (!base.is_null()).then_some(Self { base, layout })
    }

    pub(super) const fn len(&self) -> usize {
        self.layout.size() - PAGE
    }

    /// Returns the first byte behind a page boundary.
    fn memory(&self) -> *mut u8 {
        self.base.wrapping_add(self.base.align_offset(PAGE))
    }

    /// Describes the memory twice: for the port that registers it, and for the channel that fills and reads it.
    ///
    /// # Safety
    /// The block is dropped after the port and the channel.
    pub(super) unsafe fn lent(&self) -> [LentMemory; 2] {
        // SAFETY: these bytes are allocated, as the boundary is less than a page behind the base, and zeroed. No
        // reference to them exists, and the caller keeps the block until their users are gone.
        [(), ()].map(|()| unsafe { LentMemory::from_raw(self.memory(), self.len()) })
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout by `new`, and freed only here.
        unsafe { dealloc(self.base, self.layout) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Longer than every block that the allocator may have touched before.
    const LEN: usize = 64 << 20;

    #[test]
    fn a_block_begins_at_a_page_and_takes_no_memory_before_it_is_filled() {
        let block = Block::new(LEN).unwrap();
        let (base, mut present) = (block.memory(), vec![0_u8; LEN / PAGE]);
        assert_eq!((base as usize % PAGE, block.len()), (0, LEN));
        // SAFETY: the block has these bytes; one byte is written for each page.
        let asked = unsafe { libc::mincore(base.cast(), LEN, present.as_mut_ptr()) };
        assert_eq!(asked, 0, "{}", std::io::Error::last_os_error());
        assert_eq!(present.iter().filter(|it| **it & 1 != 0).count(), 0);
    }
}
