//! Memory that is lent to a memory port by registering it.

use core::ptr::NonNull;

use crate::sync::{Edge, Word64, opaque};

/// One run of bytes that a memory port may use, and through it peers that were given its key. Nothing here makes a
/// reference to the bytes: they are copied, or changed eight at a time, or handed to the kernel or a device by address.
#[derive(Debug)]
pub struct Lent {
    base: NonNull<u8>,
    len: usize,
    writable: bool,
}

// SAFETY: the maker's promise (usable until it is deregistered) does not depend on the thread.
unsafe impl Send for Lent {}

impl Lent {
    /// Describes `len` bytes at `base`; a null `base` is allowed when `len` is 0.
    ///
    /// # Safety
    /// For as long as this value exists and, if it is registered, until the port has deregistered the region or is dropped: the
    /// bytes are initialised, and mapped readable and writable. No reference to a part of them is alive
    /// - that excludes others (`&mut`) while this value is read, or a work request, or a peer that has the key, may read that
    ///   part;
    /// - of any kind while one of them may write it; it is then looked at through raw pointers or atomics only.
    pub unsafe fn from_raw(base: *mut u8, len: usize) -> Self {
        Self { base: NonNull::new(base).unwrap_or(NonNull::dangling()), len, writable: true }
    }

    /// Describes `len` bytes that may only be read. Ports register it with rights to read only.
    ///
    /// # Safety
    /// As for [`Lent::from_raw`], but the bytes need not be writable.
    pub unsafe fn from_readable(base: *const u8, len: usize) -> Self {
        Self { base: NonNull::new(base.cast_mut()).unwrap_or(NonNull::dangling()), len, writable: false }
    }

    /// Whether the bytes may be written. A port registers others with no right to write.
    pub const fn is_writable(&self) -> bool {
        self.writable
    }

    /// New memory that nobody else has, for a test to register and to look at. It is never freed.
    #[cfg(test)]
    pub(crate) fn leaked(len: usize) -> [Self; 2] {
        let words = std::boxed::Box::leak(std::vec![0_u64; len.div_ceil(8)].into_boxed_slice());
        let base = words.as_mut_ptr().cast::<u8>();
        // SAFETY: at least so many bytes, which live for ever; the only reference to them has ended.
        [(), ()].map(|()| unsafe { Self::from_raw(base, len) })
    }

    /// Bytes.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether there is none.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Address of the first byte in this process.
    pub fn address(&self) -> u64 {
        self.base.as_ptr().addr() as u64
    }

    /// Where `len` bytes from `at` are; `None` when they are not all in the memory.
    #[inline]
    pub fn part(&self, at: u64, len: u64) -> Option<NonNull<u8>> {
        if at.checked_add(len)? > self.len as u64 {
            return None;
        }
        // SAFETY: `at` is at most the length.
        Some(unsafe { self.base.add(at as usize) })
    }

    /// Copies bytes out, from `at`. False, with nothing copied, when they are not all in the memory.
    pub fn read(&self, at: u64, to: &mut [u8]) -> bool {
        let Some(from) = self.part(at, to.len() as u64) else { return false };
        // SAFETY: in the memory, which the maker promised to be readable; `to` is exclusive, so they do not overlap. No
        // reference is made: what others write meanwhile changes which bytes are copied and nothing else.
        unsafe { opaque::copy(from.as_ptr(), to.as_mut_ptr(), to.len()) };
        true
    }

    /// Copies bytes in, from `at`. False, with nothing copied, when they do not all fit, or may not be written.
    pub fn write(&self, at: u64, from: &[u8]) -> bool {
        let Some(to) = self.part(at, from.len() as u64).filter(|_| self.writable) else { return false };
        // SAFETY: as for `read`, and writable, as the maker promised; `from` is a reference, and so no part of it.
        unsafe { opaque::copy(from.as_ptr(), to.as_ptr(), from.len()) };
        true
    }

    /// Changes the eight bytes at `at` in one atomic step; returns what they were. `None`, with nothing done, when they are
    /// not in the memory, or not at an address that is a multiple of eight, or may not be written.
    pub fn update(&self, at: u64, change: impl Fn(u64) -> u64) -> Option<u64> {
        let value = self.part(at, 8).filter(|_| self.writable)?;
        if !value.as_ptr().addr().is_multiple_of(8) {
            return None;
        }
        // SAFETY: in the memory and aligned, and writable, as the maker promised; others use it meanwhile only by atomic
        // operations.
        Some(unsafe { Word64::update_acq_rel_at(value.cast(), Edge::Region, change) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_lies_in_the_memory_is_copied() {
        let mut bytes = [1_u8, 2, 3, 4];
        // SAFETY: the array outlives the descriptor and is not used meanwhile.
        let lent = unsafe { Lent::from_raw(bytes.as_mut_ptr(), bytes.len()) };
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
    fn what_may_only_be_read_is_not_written() {
        let bytes = [1_u64];
        // SAFETY: the array outlives the descriptor, which says that it may only be read.
        let lent = unsafe { Lent::from_readable(bytes.as_ptr().cast(), 8) };
        let mut to = [0; 8];
        assert!(lent.read(0, &mut to) && to[0] == 1 && !lent.is_writable());
        assert!(!lent.write(0, &[9]) && lent.update(0, |_| 9).is_none());
        assert_eq!(bytes, [1]);
    }

    #[test]
    fn a_value_is_changed_only_where_it_is_whole_and_aligned() {
        let mut words = [5_u64, 6];
        // SAFETY: as above.
        let lent = unsafe { Lent::from_raw(words.as_mut_ptr().cast(), 16) };
        assert_eq!(lent.update(8, |old| old + 1), Some(6));
        for at in [4, 9, 12, 16, u64::MAX] {
            assert_eq!(lent.update(at, |old| old + 1), None, "{at}");
        }
        assert_eq!(words, [5, 7]);
    }
}
