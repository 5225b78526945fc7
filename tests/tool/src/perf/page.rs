//! Memory that `perf` shares with its two processes: a page with one cache line to hand over and the
//! progress, and a memory file for the report of each process. All of it is anonymous and ends with the last
//! process.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

/// The bytes of the shared mapping: the line lies in its first half, the progress in its second.
const LEN: usize = 8192;
/// The longest report that is read, in bytes.
const LONGEST_REPORT: u64 = 16 << 20;

/// Makes an anonymous memory of `len` bytes that child processes inherit.
///
/// # Errors
/// The system has no room for it.
pub(crate) fn inherited_memory(len: usize) -> io::Result<OwnedFd> {
    // SAFETY: the name is a terminated string; without flags the descriptor stays open across exec.
    let fd = unsafe { libc::memfd_create(c"nemesia-perf".as_ptr(), 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made this descriptor for this call, and nothing else owns it.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    File::from(fd.try_clone()?).set_len(len as u64)?;
    Ok(fd)
}

/// Takes over a descriptor that `perf` left open for this process.
///
/// # Errors
/// It is not a memory of [`inherited_memory`].
pub(crate) fn inherit(fd: RawFd) -> io::Result<OwnedFd> {
    // Only such memory has seals: no other descriptor of this process is confused with it.
    // SAFETY: F_GET_SEALS takes no argument and touches no memory.
    if unsafe { libc::fcntl(fd, libc::F_GET_SEALS) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: it is open, and was made by the parent for this process alone to own; each number is taken once.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Returns everything that was written to a memory, from its start.
///
/// # Errors
/// The memory cannot be read.
pub(crate) fn contents(fd: OwnedFd) -> io::Result<String> {
    let mut file = File::from(fd);
    file.seek(SeekFrom::Start(0))?;
    let mut text = String::new();
    file.take(LONGEST_REPORT).read_to_string(&mut text)?;
    Ok(text)
}

/// The mapped page. Only atomics are used, because three processes use it at once.
#[derive(Debug)]
pub(crate) struct Page(NonNull<u8>);

// SAFETY: the mapping belongs to this value until it is dropped, on whichever thread.
unsafe impl Send for Page {}
// SAFETY: it is reached through atomics only.
unsafe impl Sync for Page {}

impl Page {
    /// The bytes of memory that a page needs.
    pub(crate) const LEN: usize = LEN;

    /// Maps the memory.
    ///
    /// # Errors
    /// It is too small, or the system refuses.
    pub(crate) fn map(fd: &OwnedFd) -> io::Result<Self> {
        let file = File::from(fd.try_clone()?);
        if file.metadata()?.len() < LEN as u64 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing; the file is long
        // enough, and nothing shortens it.
        let base =
            unsafe { libc::mmap(std::ptr::null_mut(), LEN, access, libc::MAP_SHARED, fd.as_raw_fd(), 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        NonNull::new(base.cast()).map(Self).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
    }

    /// Returns the line that is handed over; nothing else lies in its page.
    pub(crate) fn line(&self) -> &AtomicU64 {
        // SAFETY: the mapping is aligned, live as long as `self`, and used through atomics only.
        unsafe { self.0.cast::<AtomicU64>().as_ref() }
    }

    /// Returns the number of steps that rank 0 has completed.
    pub(crate) fn steps(&self) -> &AtomicU64 {
        // SAFETY: as above; the offset is a multiple of 8 within the mapping.
        unsafe { self.0.add(LEN / 2).cast::<AtomicU64>().as_ref() }
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: this mapping was made by `map` with this length, and no reference to it outlives `self`.
        unsafe { libc::munmap(self.0.as_ptr().cast(), LEN) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::sync::atomic::Ordering;

    #[test]
    fn two_mappings_of_a_memory_are_the_same_page() {
        let fd = inherited_memory(Page::LEN).unwrap();
        let (one, other) = (Page::map(&fd).unwrap(), Page::map(&fd).unwrap());
        one.line().store(7, Ordering::Relaxed);
        one.steps().store(9, Ordering::Relaxed);
        assert_eq!((other.line().load(Ordering::Relaxed), other.steps().load(Ordering::Relaxed)), (7, 9));
    }

    #[test]
    fn a_memory_that_is_too_small_is_refused() {
        assert!(Page::map(&inherited_memory(64).unwrap()).is_err());
    }

    #[test]
    fn a_descriptor_of_another_kind_is_not_taken() {
        assert!(inherit(0).is_err());
        assert!(inherit(-1).is_err());
        assert!(inherit(1_000_000).is_err());
    }

    #[test]
    fn a_report_is_read_from_its_start() {
        let fd = inherited_memory(0).unwrap();
        File::from(fd.try_clone().unwrap()).write_all(b"{}").unwrap();
        assert_eq!(contents(fd).unwrap(), "{}");
    }
}
