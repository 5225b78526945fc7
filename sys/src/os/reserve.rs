//! Private memory that has its addresses from the start and gets its pages in steps.
//!
//! A page is committed before it is used: after [`ReservedMemory::commit`] has returned, no access to the committed
//! bytes needs a new page. The pages of the heap, by contrast, are made at the first access, and if there is none left
//! then, the kernel ends a process.

use std::ptr::{self, NonNull};

use super::call::{checked, uninterrupted};
use super::error::ShmError;
use super::limits;

/// The unit of a step. It is a multiple of every page size in use.
const STEP: usize = 64 << 10;

/// A private anonymous mapping. A forked child has a copy of it, as of all private memory.
#[derive(Debug)]
pub(crate) struct ReservedMemory {
    base: NonNull<u8>,
    len: usize,
    committed: usize,
}

// SAFETY: the mapping belongs to this value alone and can be used and unmapped by any thread.
unsafe impl Send for ReservedMemory {}
// SAFETY: shared references only read the memory and the fields.
unsafe impl Sync for ReservedMemory {}

impl ReservedMemory {
    /// Reserves addresses for `len` bytes, rounded up to whole steps. All bytes are 0.
    ///
    /// # Errors
    /// The limit of addresses or of data, or the kernel's refusal.
    pub(crate) fn new(len: usize) -> Result<Self, ShmError> {
        let len = len.max(1).checked_next_multiple_of(STEP).unwrap_or(usize::MAX);
        limits::require_private(len)?;
        let (protection, flags) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
        );
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory that is in use.
        let base = unsafe { libc::mmap(ptr::null_mut(), len, protection, flags, -1, 0) };
        let refused = || ShmError::system("reserving addresses", std::io::Error::last_os_error());
        if base == libc::MAP_FAILED {
            let error = refused();
            // After mlockall(MCL_FUTURE), addresses count as locked.
            if matches!(&error, ShmError::System { errno, .. } if errno.raw_os_error() == Some(libc::EAGAIN))
            {
                limits::require_memlock(len)?;
            }
            return Err(error);
        }
        let base = NonNull::new(base.cast()).ok_or_else(refused)?;
        Ok(Self { base, len, committed: 0 })
    }

    /// Returns the number of bytes from the first on that are committed.
    pub(crate) fn committed(&self) -> usize {
        self.committed
    }

    /// Commits the first `len` bytes, rounded up to whole steps. Returns the number of bytes that are committed.
    ///
    /// # Errors
    /// Less memory is available, by the machine or by a cgroup. What was committed before stays.
    pub(crate) fn commit(&mut self, len: usize) -> Result<usize, ShmError> {
        let end = len.checked_next_multiple_of(STEP).unwrap_or(usize::MAX).min(self.len);
        if end > self.committed {
            limits::require_memory(end - self.committed)?;
            self.populate(end)?;
            self.committed = end;
        }
        Ok(self.committed)
    }

    fn populate(&mut self, end: usize) -> Result<(), ShmError> {
        let (from, len) = (self.committed, end - self.committed);
        // SAFETY: the range is a part of this mapping.
        let start = unsafe { self.base.as_ptr().add(from) };
        // SAFETY: the advice allocates pages of this mapping, and changes no content.
        let advice = || checked(unsafe { libc::madvise(start.cast(), len, libc::MADV_POPULATE_WRITE) });
        match uninterrupted(advice) {
            // Linux before 5.14: a write allocates the page.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                for at in (0..len).step_by(4096) {
                    // SAFETY: a byte of this mapping that was never lent as committed; it is 0 and stays 0.
                    unsafe { start.add(at).write_volatile(0) };
                }
                Ok(())
            }
            done => done.map(drop).map_err(|errno| ShmError::system("committing memory", errno)),
        }
    }

    /// Returns the bytes. Those that are not committed are 0.
    #[inline(always)]
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: the mapping is readable, initialized, and borrowed with `self`.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.len) }
    }

    /// Returns the bytes for modification.
    #[inline(always)]
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: the mapping is writable, initialized, and borrowed exclusively with `self`.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr(), self.len) }
    }
}

impl Drop for ReservedMemory {
    fn drop(&mut self) {
        // SAFETY: this value owns the mapping, and nothing borrows it.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns how many pages of the memory are present.
    fn present(memory: &ReservedMemory) -> usize {
        let pages = memory.len.div_ceil(4096);
        let mut seen = vec![0; pages];
        // SAFETY: the range is mapped, and there is one byte for each page.
        let asked = unsafe { libc::mincore(memory.base.as_ptr().cast(), memory.len, seen.as_mut_ptr()) };
        assert_eq!(asked, 0);
        seen.iter().filter(|page| **page & 1 != 0).count()
    }

    #[test]
    fn pages_are_there_once_they_are_committed_and_not_before() {
        let mut memory = ReservedMemory::new(8 << 20).unwrap();
        assert_eq!((present(&memory), memory.committed()), (0, 0));
        assert_eq!(memory.commit(100_000).unwrap(), 2 * STEP);
        assert_eq!(present(&memory), 2 * STEP / 4096);
        memory.bytes_mut()[70_000] = 7;
        assert_eq!(memory.commit(1).unwrap(), 2 * STEP, "nothing is given back");
        assert_eq!(memory.commit(usize::MAX).unwrap(), 8 << 20);
        assert_eq!(present(&memory), (8 << 20) / 4096);
        assert_eq!(memory.bytes().iter().map(|byte| u32::from(*byte)).sum::<u32>(), 7);
    }

    #[test]
    fn a_step_that_the_machine_cannot_provide_is_refused_and_takes_nothing() {
        let len = limits::available_memory().map_or(1 << 50, |available| available.bytes as usize * 4);
        // Addresses are enough for this, unless the system counts them as memory.
        let Ok(mut memory) = ReservedMemory::new(len) else { return };
        memory.commit(STEP).unwrap();
        let error = memory.commit(len).unwrap_err().to_string();
        assert!(error.contains("available"), "{error}");
        assert_eq!((memory.committed(), present_at_end(&memory)), (STEP, 0));
    }

    fn present_at_end(memory: &ReservedMemory) -> u8 {
        let mut seen = 0;
        // SAFETY: the last page is mapped.
        unsafe { libc::mincore(memory.base.as_ptr().add(memory.len - STEP).cast(), 4096, &raw mut seen) };
        seen & 1
    }
}
