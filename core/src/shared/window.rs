//! A region of a peer, mapped into this process: put, get and atomic operations without the owner's
//! participation.
//!
//! Puts and gets are copies, as for any shared payload. Atomic operations are the processor's, as on the
//! owner's side ([`Exposed`](crate::payload::Exposed)). All of them are therefore atomic with respect to each
//! other, whichever process executes them.

use core::ptr::NonNull;

use super::layout::{Extent, LayoutError};
use crate::payload;
use crate::sync::{Payload, PayloadMut, Word64};
use crate::wire::rma::SHARED_BYTES;

/// A mapped region. The peer may change the bytes in the segment at any time; only local values are checked.
#[derive(Debug)]
pub struct SharedWindow<'a> {
    key: &'a Word64,
    base: NonNull<u8>,
    len: usize,
    writable: bool,
}

// SAFETY: an address range that the constructor's caller keeps mapped for 'a, reached by copies and atomics only.
unsafe impl Send for SharedWindow<'_> {}

impl<'a> SharedWindow<'a> {
    /// Returns the region of `len` bytes in a segment that is mapped at `extent`.
    ///
    /// # Errors
    /// [`LayoutError::Extent`] if the region does not lie in the segment.
    ///
    /// # Safety
    /// The segment stays mapped for `'a`, for writing if `writable`. No reference to its bytes exists
    /// meanwhile, except to its first word as an atomic.
    pub unsafe fn new(extent: &Extent, len: usize, writable: bool) -> Result<Self, LayoutError> {
        let key: NonNull<Word64> = extent.resolve(0, 1)?;
        let base: NonNull<u8> = extent.resolve(SHARED_BYTES, len)?;
        // SAFETY: resolved, so mapped and aligned; an atomic word, whatever the peer writes.
        Ok(Self { key: unsafe { key.as_ref() }, base, len, writable })
    }

    /// Returns whether the region is still exposed under this key. Operations after it was unexposed affect
    /// only the orphaned segment.
    #[inline]
    pub fn is_open(&self, key: u64) -> bool {
        self.key.load_relaxed() == key
    }

    /// Publishes the key under which the region is exposed; 0 unexposes it. For the owner: a window that can
    /// only be read stays as it is.
    pub fn set_key(&self, key: u64) {
        if self.writable {
            self.key.store_relaxed(key);
        }
    }

    /// Copies bytes into the region. Returns `false`, with nothing copied, if they do not all fit or the
    /// region is read-only.
    #[inline]
    #[must_use]
    pub fn put(&self, at: u64, from: &[u8]) -> bool {
        let Ok(at) = usize::try_from(at) else { return false };
        self.put_in_order(at, from, false)
    }

    /// As [`SharedWindow::put`], with non-temporal stores: for data that exceeds the caches.
    #[must_use]
    pub fn put_non_temporal(&self, at: u64, from: &[u8]) -> bool {
        let Ok(at) = usize::try_from(at) else { return false };
        self.put_in_order(at, from, true)
    }

    /// The owner may poll the last word.
    #[inline]
    fn put_in_order(&self, at: usize, from: &[u8], is_long: bool) -> bool {
        // SAFETY: in the mapping, which the constructor's caller keeps; it is used only if it is writable.
        let bytes = unsafe { PayloadMut::from_raw(self.base, self.len) };
        let source = NonNull::from(from).cast();
        // SAFETY: a reference, so readable, and no part of the mapping.
        self.writable && unsafe { bytes.write_in_order_from(at, source, from.len(), is_long) }
    }

    /// Copies bytes out of the region. Returns `false`, with nothing copied, if they do not all lie in it.
    #[inline]
    #[must_use]
    pub fn get(&self, at: u64, to: &mut [u8]) -> bool {
        let Ok(at) = usize::try_from(at) else { return false };
        // SAFETY: in the mapping, which the constructor's caller keeps.
        unsafe { Payload::from_raw(self.base, self.len) }.read(at, to)
    }

    /// As [`SharedWindow::get`], with non-temporal stores: for data that exceeds the caches.
    #[must_use]
    pub fn get_non_temporal(&self, at: u64, to: &mut [u8]) -> bool {
        let Ok(at) = usize::try_from(at) else { return false };
        // SAFETY: as for `get`.
        unsafe { Payload::from_raw(self.base, self.len) }.read_non_temporal(at, to)
    }

    /// Changes the value of one, two, four or eight bytes at `at` in one atomic step and returns the old value. `None`,
    /// without any effect, if the value is not in the region, is not aligned, or the region is read-only.
    #[inline]
    pub fn update(&self, at: u64, bytes: usize, change: impl Fn(u64) -> u64) -> Option<u64> {
        let at = usize::try_from(at).ok()?;
        if !self.writable || at.checked_add(bytes)? > self.len || !at.is_multiple_of(bytes) {
            return None;
        }
        // SAFETY: `at` is in the region.
        let value = unsafe { self.base.add(at) };
        // SAFETY: in the mapping and writable; aligned, as the region begins at a page; others use it by copies, which
        // tear, or by atomic operations.
        unsafe { payload::update(value, bytes, change) }
    }
}

#[cfg(test)]
mod tests {
    use std::boxed::Box;

    use super::*;

    const LEN: usize = 300;

    #[repr(C, align(4096))]
    struct WindowMemory([u8; SHARED_BYTES + LEN]);

    #[test]
    fn non_temporal_puts_and_gets_copy_the_bytes_and_bounds_hold() {
        let mut memory = Box::new(WindowMemory([0; SHARED_BYTES + LEN]));
        let base = NonNull::from(&mut memory.0).cast();
        // SAFETY: it outlives all of this, and is not used otherwise.
        let extent = unsafe { Extent::new(base, SHARED_BYTES + LEN, SHARED_BYTES + LEN) }.unwrap();
        // SAFETY: as above.
        let open = |writable| unsafe { SharedWindow::new(&extent, LEN, writable) }.unwrap();
        let (window, read_only) = (open(true), open(false));
        let (mut bytes, mut there) = ([7_u8; LEN], [0; LEN]);
        for (at, len) in [(0, LEN), (3, 200), (299, 1), (300, 0)] {
            bytes.iter_mut().for_each(|byte| *byte = byte.wrapping_mul(5).wrapping_add(1));
            assert!(window.put_non_temporal(at, &bytes[..len]));
            assert!(window.get(at, &mut there[..len]) && there[..len] == bytes[..len]);
            there.fill(0);
            assert!(read_only.get_non_temporal(at, &mut there[..len]) && there[..len] == bytes[..len]);
            assert!(!read_only.put_non_temporal(at, &bytes[..len]));
        }
        window.set_key(7);
        // Where the mapping can only be read, a store would end the process.
        read_only.set_key(8);
        assert!(read_only.is_open(7) && window.is_open(7));
        for (at, len) in [(1, LEN), (301, 0), (u64::MAX, 1), (299, 2)] {
            assert!(!window.put_non_temporal(at, &bytes[..len]), "{len} bytes at {at}");
            assert!(!window.get_non_temporal(at, &mut there[..len]), "{len} bytes at {at}");
        }
    }
}
