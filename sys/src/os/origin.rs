//! The process that an object belongs to, by a page that the kernel empties in a forked child (`MADV_WIPEONFORK`).
//!
//! Reading the page costs one load and no system call.

use std::ffi::c_void;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicUsize, Ordering};

use super::call::checked;
use super::error::ShmError;

/// The bytes of the mapping: no machine has a longer page.
const BYTES: usize = 64 << 10;

/// A number that is 0 in every forked child, and keeps its value in the process itself.
#[derive(Debug)]
pub(crate) struct ProcessOrigin {
    word: NonNull<AtomicUsize>,
    /// Whether the kernel empties the page. Before Linux 4.14 it does not, and children are not distinguished.
    wiped: bool,
}

// SAFETY: after its construction, the page is only reached by atomic loads and stores; the last owner unmaps it.
unsafe impl Send for ProcessOrigin {}
// SAFETY: as above.
unsafe impl Sync for ProcessOrigin {}

impl ProcessOrigin {
    /// Marks the calling process with a number, which is not 0.
    ///
    /// # Errors
    /// No memory is left.
    pub(crate) fn here(number: usize) -> Result<Self, ShmError> {
        let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping at a place of the kernel's choice.
        let page = unsafe { libc::mmap(ptr::null_mut(), BYTES, access, kind, -1, 0) };
        let word = (page != libc::MAP_FAILED).then(|| NonNull::new(page.cast::<AtomicUsize>())).flatten();
        let Some(word) = word else {
            let error = std::io::Error::last_os_error();
            return Err(ShmError::system("mapping the page that identifies forked children", error));
        };
        // SAFETY: the mapping made above, of this length.
        let wiped = checked(unsafe { libc::madvise(word.as_ptr().cast(), BYTES, libc::MADV_WIPEONFORK) });
        let origin = Self { word, wiped: wiped.is_ok() };
        origin.word().store(number.max(1), Ordering::Relaxed);
        Ok(origin)
    }

    /// Replaces the number by another one, which is not 0. Has no effect in a forked child. Only the thread that uses
    /// what the number counts calls this.
    pub(crate) fn renumber(&self, number: usize) {
        if !self.is_elsewhere() {
            self.word().store(number.max(1), Ordering::Relaxed);
        }
    }

    /// Returns whether the kernel lets forked children be distinguished.
    pub(crate) fn is_known(&self) -> bool {
        self.wiped
    }

    /// Returns the number passed to [`ProcessOrigin::here`]; 0 in a forked child.
    #[inline(always)]
    pub(crate) fn number(&self) -> usize {
        self.word().load(Ordering::Relaxed)
    }

    /// Returns whether this process was forked from the one that made this value.
    #[inline(always)]
    pub(crate) fn is_elsewhere(&self) -> bool {
        self.number() == 0
    }

    /// Returns the address of the number: mapped until this value is dropped, to be read by atomic loads.
    pub(crate) fn place(&self) -> NonNull<AtomicUsize> {
        self.word
    }

    #[inline(always)]
    fn word(&self) -> &AtomicUsize {
        // SAFETY: the page is mapped until this is dropped, aligned, and begins with zeroes or a number that was
        // stored.
        unsafe { self.word.as_ref() }
    }
}

impl Drop for ProcessOrigin {
    fn drop(&mut self) {
        // SAFETY: our own mapping, which a forked child has as well; no reference to it is left.
        unsafe { libc::munmap(self.word.as_ptr().cast::<c_void>(), BYTES) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::testing;

    #[test]
    fn a_forked_child_sees_that_it_is_elsewhere_and_its_parent_sees_nothing() {
        let origin = ProcessOrigin::here(7).unwrap();
        if !origin.is_known() {
            testing::skipped("this kernel (before 4.14) empties no pages in forked children");
            return;
        }
        let child = testing::fork(|| i32::from(!origin.is_elsewhere()));
        assert_eq!(child.exit_code(), Some(0));
        assert_eq!((origin.number(), origin.is_elsewhere()), (7, false));
    }
}
