//! The control: a crate that allocates. The check must report its `malloc`.

extern crate alloc;

use alloc::vec::Vec;
use core::alloc::{GlobalAlloc, Layout};

unsafe extern "C" {
    fn malloc(size: usize) -> *mut u8;
    fn free(memory: *mut u8);
}

struct System;

// SAFETY: `malloc` aligns for every fundamental type, and this control asks for nothing larger.
unsafe impl GlobalAlloc for System {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: `malloc` accepts any size.
        unsafe { malloc(layout.size()) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, _: Layout) {
        // SAFETY: `memory` came from `malloc` in `alloc`.
        unsafe { free(memory) }
    }
}

#[global_allocator]
static SYSTEM: System = System;

/// Allocates `count` words and returns their sum.
#[unsafe(no_mangle)]
pub extern "C" fn nemesia_bare_allocates(count: u32) -> u64 {
    let words: Vec<u64> = (0..u64::from(count)).collect();
    words.iter().sum()
}
