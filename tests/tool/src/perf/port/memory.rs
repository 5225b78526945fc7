//! Memory that is lent to a port for the whole measurement. It is reached by address only, never by a shared
//! reference.

use std::alloc::{Layout, alloc, dealloc};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, Ordering};

use nemesia_core::payload::LentMemory;

/// Devices pin pages, and perftest aligns to them.
const ALIGNMENT: usize = 4096;

/// Bytes of this process, from the beginning of a page.
#[derive(Debug)]
pub(super) struct PortMemory {
    base: NonNull<u8>,
    layout: Layout,
}

impl PortMemory {
    /// Allocates at least one byte. No byte is 0, so that every page is present before the measurement.
    pub(super) fn new(len: usize) -> Result<Self, String> {
        let problem = || format!("there is no memory for a message of {len} bytes");
        let layout = Layout::from_size_align(len.max(1), ALIGNMENT).map_err(|_| problem())?;
        // SAFETY: the layout has at least one byte.
        let base = NonNull::new(unsafe { alloc(layout) }).ok_or_else(problem)?;
        // SAFETY: as many bytes were just allocated, and nothing else knows them.
        unsafe { base.write_bytes(1, layout.size()) };
        Ok(Self { base, layout })
    }

    /// For registering.
    ///
    /// # Safety
    /// The port has deregistered it, or is dropped, before this value is.
    pub(super) unsafe fn lend(&self) -> LentMemory {
        // SAFETY: initialised and writable until this value is dropped, by the caller's promise not before the
        // port's use ends; references to it exist only in `with`, whose caller promises that nothing writes.
        unsafe { LentMemory::from_raw(self.base.as_ptr(), self.layout.size()) }
    }

    fn at(&self, at: usize, len: usize) -> NonNull<u8> {
        assert!(at <= self.layout.size() && len <= self.layout.size() - at, "within the memory");
        // SAFETY: just checked.
        unsafe { self.base.add(at) }
    }

    /// Stores bytes.
    pub(super) fn put(&self, at: usize, bytes: &[u8]) {
        // SAFETY: in the memory, which is no Rust object. `bytes` overlaps it only in `with`, which stores
        // nothing.
        unsafe { self.at(at, bytes.len()).as_ptr().copy_from(bytes.as_ptr(), bytes.len()) };
    }

    /// Copies bytes out.
    pub(super) fn get(&self, at: usize, bytes: &mut [u8]) {
        // SAFETY: as for `put`.
        unsafe { self.at(at, bytes.len()).as_ptr().copy_to(bytes.as_mut_ptr(), bytes.len()) };
    }

    /// Polls a byte that a peer writes, up to `looks` times. Returns whether it became `value`. Then everything
    /// that a port with ordered placement wrote before it has arrived too.
    #[inline]
    pub(super) fn becomes(&self, at: usize, value: u8, looks: u32) -> bool {
        // SAFETY: in the memory, live for the call; the device or the kernel may write it meanwhile, a whole
        // byte at once.
        let byte = unsafe { AtomicU8::from_ptr(self.at(at, 1).as_ptr()) };
        (0..looks).any(|_| byte.load(Ordering::Acquire) == value)
    }

    /// Lends the first bytes.
    ///
    /// # Safety
    /// Nothing writes them during the call: neither a peer, whose access rights forbid it, nor `use_`.
    #[inline]
    pub(super) unsafe fn with<T>(&self, len: usize, use_: impl FnOnce(&[u8]) -> T) -> T {
        // SAFETY: in the memory and initialised; the caller's promise.
        use_(unsafe { NonNull::slice_from_raw_parts(self.at(0, len), len).as_ref() })
    }
}

impl Drop for PortMemory {
    fn drop(&mut self) {
        // SAFETY: from `alloc`, with this layout; nothing uses it any more, as `lend` demands.
        unsafe { dealloc(self.base.as_ptr(), self.layout) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_where_they_were_put() {
        let memory = PortMemory::new(5000).unwrap();
        memory.put(4997, &[7, 8, 9]);
        let mut bytes = [0; 4];
        memory.get(4996, &mut bytes);
        assert_eq!(bytes, [1, 7, 8, 9]);
        assert!(memory.becomes(4999, 9, 1) && !memory.becomes(4999, 8, 3) && !memory.becomes(4999, 9, 0));
        // SAFETY: nothing else knows the memory.
        assert_eq!(unsafe { memory.with(2, <[u8]>::to_vec) }, [1, 1]);
        assert!(PortMemory::new(0).is_ok() && PortMemory::new(usize::MAX).is_err());
    }

    #[test]
    #[should_panic(expected = "within the memory")]
    fn nothing_else_is_reached() {
        PortMemory::new(8).unwrap().put(7, &[0; 2]);
    }
}
