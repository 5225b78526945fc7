//! Memory that the caller lends to a memory port by registering it.

use core::ptr::NonNull;

use crate::sync::{Edge, Word64, in_order, opaque};

/// One contiguous range that a memory port may access, and through the port every peer with its key. No
/// reference to the bytes is made here: they are copied, changed eight at a time, or passed to the kernel or
/// a device by address.
#[derive(Debug)]
pub struct LentMemory {
    base: NonNull<u8>,
    len: usize,
    writable: bool,
}

// SAFETY: the maker's promise (usable until it is deregistered) does not depend on the thread.
unsafe impl Send for LentMemory {}

impl LentMemory {
    /// Describes `len` bytes at `base`; a null `base` is allowed when `len` is 0.
    ///
    /// # Safety
    /// As long as this value exists and, if it is registered, until the port has deregistered the region or is
    /// dropped: the bytes are initialised, and mapped readable and writable. No reference to a part of them is alive
    ///
    /// - that is exclusive (`&mut`) while this value is read, or while a work request, or a peer that has the key, may
    ///   read that part;
    /// - of any kind while one of them may write it; it is then accessed only through raw pointers or atomics.
    pub unsafe fn from_raw(base: *mut u8, len: usize) -> Self {
        Self { base: NonNull::new(base).unwrap_or(NonNull::dangling()), len, writable: true }
    }

    /// Describes `len` bytes that may only be read. Ports register it with rights to read only.
    ///
    /// # Safety
    /// As for [`LentMemory::from_raw`], but the bytes need not be writable.
    pub unsafe fn from_readable(base: *const u8, len: usize) -> Self {
        Self { base: NonNull::new(base.cast_mut()).unwrap_or(NonNull::dangling()), len, writable: false }
    }

    /// Whether the bytes may be written. A port registers others with no right to write.
    pub const fn is_writable(&self) -> bool {
        self.writable
    }

    /// Returns two views of new private memory, for a test to register and to inspect. It is never freed.
    #[cfg(test)]
    pub(crate) fn leaked(len: usize) -> [Self; 2] {
        let words = std::boxed::Box::leak(std::vec![0_u64; len.div_ceil(8)].into_boxed_slice());
        let base = words.as_mut_ptr().cast::<u8>();
        // SAFETY: the memory has at least `len` bytes and is never freed; the only reference to it has ended.
        [(), ()].map(|()| unsafe { Self::from_raw(base, len) })
    }

    /// Returns the length in bytes.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the memory is empty.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the address of the first byte in this process.
    pub fn address(&self) -> u64 {
        self.base.as_ptr().addr() as u64
    }

    /// Returns the address of `len` bytes from `at` on; `None` if they do not all lie in the memory.
    #[inline]
    pub fn part(&self, at: u64, len: u64) -> Option<NonNull<u8>> {
        if at.checked_add(len)? > self.len as u64 {
            return None;
        }
        // SAFETY: `at` is at most the length.
        Some(unsafe { self.base.add(at as usize) })
    }

    /// Describes a part of the memory once more; `None` if it does not lie in the memory.
    ///
    /// # Safety
    /// What the maker has promised for this value holds for the other one too, as long as it exists and is registered.
    pub(crate) unsafe fn part_again(&self, at: u64, len: u64) -> Option<Self> {
        let (base, len) = (self.part(at, len)?, usize::try_from(len).ok()?);
        Some(Self { base, len, writable: self.writable })
    }

    /// Copies bytes out, from `at` on. Returns `false`, with nothing copied, if they do not all lie in the
    /// memory.
    pub fn read(&self, at: u64, to: &mut [u8]) -> bool {
        let Some(from) = self.part(at, to.len() as u64) else { return false };
        // SAFETY: the bytes lie in the memory, which the maker guarantees to be readable. `to` is exclusive,
        // so the ranges do not overlap. No reference is made: a concurrent write changes only which bytes are
        // copied.
        unsafe { opaque::copy(from.as_ptr(), to.as_mut_ptr(), to.len()) };
        true
    }

    /// Copies bytes in, from `at` on, so that the last ones become visible last ([`in_order`]). Returns `false`, with
    /// nothing copied, if they do not all fit, or may not be written.
    pub fn write(&self, at: u64, from: &[u8]) -> bool {
        let Some(to) = self.part(at, from.len() as u64).filter(|_| self.writable) else { return false };
        // SAFETY: as for `read`, and writable, as the maker guarantees. `from` is a reference, so it is no
        // part of the memory.
        unsafe { in_order::copy(NonNull::from(from).cast(), to, from.len()) };
        true
    }

    /// Reads the eight bytes at `at` in one atomic step. Bytes that their writer placed before the value, in
    /// order, are then visible. `None` if they do not all lie in the memory or are not aligned to eight bytes.
    #[inline]
    pub fn load(&self, at: u64) -> Option<u64> {
        let value = self.part(at, 8)?;
        if !value.as_ptr().addr().is_multiple_of(8) {
            return None;
        }
        // SAFETY: the value lies in the memory, which the maker guarantees to be readable, and is aligned. A
        // device or another process may write it meanwhile; this process does so only by copies or atomically.
        Some(unsafe { Word64::load_acquire_at(value.cast(), Edge::Region) })
    }

    /// Changes the eight bytes at `at` in one atomic step and returns the old value. `None`, without any
    /// effect, if they do not all lie in the memory, are not aligned to eight bytes, or may not be written.
    pub fn update(&self, at: u64, change: impl Fn(u64) -> u64) -> Option<u64> {
        let value = self.part(at, 8).filter(|_| self.writable)?;
        if !value.as_ptr().addr().is_multiple_of(8) {
            return None;
        }
        // SAFETY: the value lies in the memory and is aligned, and it is writable, as the maker guarantees.
        // Others access it meanwhile only by atomic operations.
        Some(unsafe { Word64::update_acq_rel_at(value.cast(), Edge::Region, change) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_bytes_within_the_memory_are_copied() {
        let mut bytes = [1_u8, 2, 3, 4];
        // SAFETY: the array outlives the descriptor and is not used meanwhile.
        let lent = unsafe { LentMemory::from_raw(bytes.as_mut_ptr(), bytes.len()) };
        let mut two = [0; 2];
        assert!(lent.read(2, &mut two) && two == [3, 4]);
        for (at, len) in [(3, 2), (5, 0), (u64::MAX, 1), (1, u64::MAX)] {
            assert_eq!(lent.part(at, len), None, "{at} {len}");
        }
        assert!(!lent.read(3, &mut two) && !lent.write(u64::MAX, &two) && two == [3, 4]);
        assert!(lent.write(4, &[]) && lent.write(0, &[9, 8]));
        assert_eq!(bytes, [9, 8, 3, 4]);
    }

    #[test]
    fn read_only_memory_is_not_written() {
        let bytes = [1_u64];
        // SAFETY: the array outlives the descriptor, which permits reading only.
        let lent = unsafe { LentMemory::from_readable(bytes.as_ptr().cast(), 8) };
        let mut to = [0; 8];
        assert!(lent.read(0, &mut to) && to[0] == 1 && !lent.is_writable());
        assert!(!lent.write(0, &[9]) && lent.update(0, |_| 9).is_none());
        assert_eq!(bytes, [1]);
    }

    #[test]
    fn a_value_is_changed_only_where_it_is_whole_and_aligned() {
        let mut words = [5_u64, 6];
        // SAFETY: as above.
        let lent = unsafe { LentMemory::from_raw(words.as_mut_ptr().cast(), 16) };
        assert_eq!(lent.update(8, |old| old + 1), Some(6));
        for at in [4, 9, 12, 16, u64::MAX] {
            assert_eq!(lent.update(at, |old| old + 1), None, "{at}");
        }
        assert_eq!(lent.load(8), Some(7));
        for at in [4, 9, 12, 16, u64::MAX] {
            assert_eq!(lent.load(at), None, "{at}");
        }
        assert_eq!(words, [5, 7]);
    }
}
