//! A registrar that remembers the contents of the pages that it registered; reading through it equals a
//! device's access to the pages that it has pinned. `tests/processes/interposed.rs` uses it too.

use std::collections::HashMap;
use std::ffi::c_void;
use std::ptr;

use super::{Held, Range, Registrar, RegistrationCache};

pub(super) const PAGE: usize = 4096;

/// Registers by remembering the first byte of each page at that time.
#[derive(Default)]
pub(super) struct Snapshot {
    /// By handle: the registered range, and the contents of its pages.
    pub(super) pinned: HashMap<u32, (Range, Vec<u8>)>,
    made: u32,
}

impl Registrar for Snapshot {
    type Handle = u32;
    type Error = ();

    fn register(&mut self, range: Range, _: u32) -> Result<u32, ()> {
        self.made += 1;
        // SAFETY: these tests register mapped pages only.
        let first = |at: u64| unsafe { ptr::with_exposed_provenance::<u8>(at as usize).read_volatile() };
        let bytes = (range.start..range.end).step_by(PAGE).map(first).collect();
        self.pinned.insert(self.made, (range, bytes));
        Ok(self.made)
    }

    fn deregister(&mut self, range: Range, handle: u32) {
        assert_eq!(self.pinned.remove(&handle).map(|(range, _)| range), Some(range));
    }
}

pub(super) type TestCache = RegistrationCache<Snapshot>;

pub(super) fn place(at: usize) -> *mut c_void {
    ptr::with_exposed_provenance_mut(at)
}

/// Maps new pages at `at`, or anywhere, with these flags; filled with `byte`.
pub(super) fn map_with(at: usize, pages: usize, byte: u8, flags: i32) -> Option<usize> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | flags;
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: new memory, or memory of this test that it does not refer to.
    let new = unsafe { libc::mmap(place(at), pages * PAGE, rights, flags, -1, 0) };
    if new == libc::MAP_FAILED {
        return None;
    }
    // SAFETY: just mapped, and ours.
    unsafe { ptr::write_bytes(new.cast::<u8>(), byte, pages * PAGE) };
    Some(new.expose_provenance())
}

pub(super) fn unmap(at: usize, pages: usize) {
    // SAFETY: pages of this test that it does not refer to.
    assert_eq!(unsafe { libc::munmap(place(at), pages * PAGE) }, 0);
}

/// Returns what a device would read at this page, through the registration that the cache returns.
pub(super) fn seen(cache: &mut TestCache, at: usize) -> u8 {
    let held = cache.acquire(at as u64, 1, 1).unwrap();
    seen_through(cache, held, at)
}

/// Returns the same through this registration, and releases it.
pub(super) fn seen_through(cache: &mut TestCache, held: Held, at: usize) -> u8 {
    let handle = cache.handle(&held).unwrap();
    let (range, bytes) = &cache.registrar_mut().pinned[&handle];
    let byte = bytes[(at - range.start as usize) / PAGE];
    cache.release(held);
    byte
}

/// Registers `pages` pages, and releases them.
pub(super) fn touch(cache: &mut TestCache, at: usize, pages: usize) {
    let held = cache.acquire(at as u64, (pages * PAGE) as u64, 1).unwrap();
    cache.release(held);
}
