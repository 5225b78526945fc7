//! Shared memory without a name.
//!
//! A process creates its segments and sends their descriptors to peers over a
//! [`Connection`](super::HandoffConnection). The memory lives while a process maps it or holds a descriptor,
//! and ends with the last of them, even by SIGKILL. All pages are reserved at creation, and the size is sealed.
//! So no access to a segment raises SIGBUS.
//!
//! # Pages that are punched out
//! A process that can write a file in memory can also punch holes into it (`fallocate`,
//! `madvise(MADV_REMOVE)`). The next access to such a page then allocates a new one, charged to the process
//! that makes the access.
//!
//! - **Sealed against writing** ([`Segment::seal_against_foreign_writes`]; Linux 5.1): no process can punch it
//!   any more, not even its owner. A peer that attaches it with [`AttachLimits::keeps_pages`] has verified that
//!   all its pages exist.
//! - **Written by peers, memfd**: any peer can punch it. An access then allocates a zeroed page, in total at
//!   most the length of the segment. In a cgroup at its limit, the out-of-memory killer chooses a process. It is
//!   a SIGBUS only if the system refuses a single page, with `vm.overcommit_memory=2`.
//! - **Written by peers, huge pages**: never made by the transport, and refused by [`Segment::attach`]. A
//!   punched page returns to a pool that other processes can exhaust, and the next access is a SIGBUS.
//! - **In `/dev/shm`**: cannot be sealed, and its users trust each other. If `/dev/shm` is full, an access to a
//!   punched page is a SIGBUS.
//!
//! Untrusted processes share the memory of a segment: access it by atomics and volatile copies only, never by a
//! reference to plain data.

use std::ops::{Range, RangeInclusive};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};

use super::call::{checked, process_id};
use super::closer::ForeignFd;
use super::error::{Bytes, ShmError};
use super::limits;
use super::numa;
use super::store::{self, Store};

/// The use of huge pages for a segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HugePages {
    /// Uses ordinary pages.
    #[default]
    Never,
    /// Uses huge pages if there are enough, else ordinary ones; `Segment::warnings` then has the reason.
    Try,
    /// Uses huge pages, or fails with an error that states the remedy.
    Require,
}

/// The kind of file behind a segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SegmentBacking {
    /// An anonymous memory file: its size is sealed, and it is not limited by the size of `/dev/shm`.
    #[default]
    Memfd,
    /// An unnamed file in `/dev/shm`, for systems that refuse memfd. It cannot be sealed: peers must trust its
    /// owner not to truncate it (`AttachLimits::allow_unsealed`), and its owner must trust peers not to write
    /// it.
    DevShm,
}

/// The options for creating a segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SegmentOptions {
    /// The use of huge pages; only with [`SegmentBacking::Memfd`].
    pub huge: HugePages,
    /// Takes the pages from the memory node of the calling thread, if possible.
    pub numa_local: bool,
    /// Locks the pages into memory; an error if the memlock limit is too low.
    pub lock: bool,
    /// The kind of file behind the segment.
    pub backing: SegmentBacking,
}

impl SegmentOptions {
    /// Returns the same options for a segment that other processes may write: never on huge pages. A descriptor
    /// that permits writing also permits punching holes. A punched page returns to the pool, which may be empty
    /// at the next access.
    #[must_use]
    pub fn for_foreign_writers(self) -> Self {
        Self { huge: HugePages::Never, ..self }
    }
}

/// The accesses that a mapping permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Loads only; a store raises SIGSEGV.
    ReadOnly,
    /// Loads and stores.
    ReadWrite,
}

/// The requirements on a segment from a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttachLimits {
    /// The accepted lengths in bytes.
    pub lengths: RangeInclusive<usize>,
    /// Accepts a file whose size is not sealed, if it is memory without a name. Its owner can then kill this
    /// process by truncating it: for [`SegmentBacking::DevShm`] only.
    pub allow_unsealed: bool,
    /// Accepts only a file in memory from which no process can remove pages, its owner and other peers
    /// included: it is sealed against new writers, and all its pages exist. For segments that are only read
    /// here.
    pub keeps_pages: bool,
}

impl From<RangeInclusive<usize>> for AttachLimits {
    fn from(lengths: RangeInclusive<usize>) -> Self {
        Self { lengths, allow_unsealed: false, keeps_pages: false }
    }
}

/// A mapped range, which is unmapped on drop.
#[derive(Debug)]
struct Mapping {
    base: NonNull<u8>,
    len: usize,
    /// The process that mapped it. A forked child does not have the mapping (MADV_DONTFORK), and must not unmap
    /// other memory that it may have at that address.
    process: i32,
}

impl Mapping {
    fn new(fd: BorrowedFd<'_>, len: usize, access: Access) -> std::io::Result<Self> {
        let protection = match access {
            Access::ReadOnly => libc::PROT_READ,
            Access::ReadWrite => libc::PROT_READ | libc::PROT_WRITE,
        };
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory that is in use.
        let base =
            unsafe { libc::mmap(ptr::null_mut(), len, protection, libc::MAP_SHARED, fd.as_raw_fd(), 0) };
        if base == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error());
        }
        let base =
            NonNull::new(base.cast()).ok_or_else(|| std::io::Error::from_raw_os_error(libc::ENOMEM))?;
        let mapping = Self { base, len, process: process_id() };
        // SAFETY: the range was just mapped; the advice concerns children only.
        checked(unsafe { libc::madvise(base.as_ptr().cast(), len, libc::MADV_DONTFORK) })?;
        Ok(mapping)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.process == process_id() {
            // SAFETY: this process mapped the range, and only this value unmaps it. Users of the memory borrow
            // the segment or have promised to have finished their accesses (see `Segment::as_ptr`).
            unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
        }
    }
}

/// Memory that other processes also map. Unmapped on drop.
///
/// Not inherited by `fork`: the child has no mapping at that address.
#[derive(Debug)]
pub struct Segment {
    mapping: Mapping,
    /// Kept by the creator, to be sent to peers, until [`Segment::close_descriptor`]. Attached segments do not keep
    /// it, which would cost a descriptor per peer.
    fd: Option<OwnedFd>,
    #[cfg(test)]
    access: Access,
    huge: bool,
    page: usize,
    /// For a segment without descriptor: whether it is sealed against writing.
    foreign_write_sealed: bool,
    warnings: Vec<String>,
}

// SAFETY: a segment is an address, a length and a descriptor; it lends no references to the memory, and any thread may
// unmap it.
unsafe impl Send for Segment {}
// SAFETY: all methods by shared reference only read the fields or make system calls that are safe from any thread.
unsafe impl Sync for Segment {}

impl Segment {
    /// Creates a zeroed segment of at least `len` bytes, rounded up to whole pages, mapped for reading and
    /// writing. All its pages are reserved, and its size is sealed (memfd). The name is visible only in
    /// `/proc/*/maps`.
    ///
    /// # Errors
    /// Each limit has its own variant, and is checked before memory is reserved where possible. After an error
    /// nothing is left behind.
    pub fn create(name: &str, len: usize, opts: &SegmentOptions) -> Result<Self, ShmError> {
        let refused = match (opts.huge, huge_store(opts.backing)) {
            (HugePages::Never, _) => None,
            (HugePages::Require, store) => return Self::build(name, len, opts, store?),
            (HugePages::Try, store) => match store.and_then(|store| Self::build(name, len, opts, store)) {
                Ok(segment) => return Ok(segment),
                Err(why) => Some(format!("huge pages not used: {why}")),
            },
        };
        let store = match opts.backing {
            SegmentBacking::Memfd => Store::Memfd,
            SegmentBacking::DevShm => Store::DevShm,
        };
        let mut segment = Self::build(name, len, opts, store)?;
        segment.warnings.extend(refused);
        Ok(segment)
    }

    /// Creates a segment as [`create`](Self::create) does, and seals it against writing by other processes if
    /// the kernel can ([`write_sealed`](Self::write_sealed)). Huge pages that cannot be sealed are not used.
    ///
    /// # Errors
    /// Those of `create`; and required huge pages cannot be sealed.
    pub fn create_sealed(name: &str, len: usize, opts: &SegmentOptions) -> Result<Self, ShmError> {
        const UNSEALED: &str = "sealing huge pages, which peers could otherwise remove (needs Linux 5.1)";
        let segment = Self::create(name, len, opts)?;
        if segment.seal_against_foreign_writes()? || !segment.huge() {
            return Ok(segment);
        }
        drop(segment);
        let error = ShmError::system(UNSEALED, std::io::Error::from_raw_os_error(libc::EOPNOTSUPP));
        if opts.huge == HugePages::Require {
            return Err(error);
        }
        let mut segment = Self::create(name, len, &opts.for_foreign_writers())?;
        segment.warnings.push(format!("huge pages not used: {error}"));
        Ok(segment)
    }

    /// Enters pages of the range into this process's page table now, for the access that is meant, so that the first
    /// accesses cost no more than later ones. Does nothing before Linux 5.14; an error has no other effect.
    pub(crate) fn prefault(&self, range: Range<usize>, access: Access) {
        let start = range.start.min(self.len()) / self.page * self.page;
        let end = range.end.min(self.len());
        let advice = match access {
            Access::ReadOnly => libc::MADV_POPULATE_READ,
            Access::ReadWrite => libc::MADV_POPULATE_WRITE,
        };
        if start < end {
            // SAFETY: the range is within the mapping, and starts at a page. The advice changes no byte; a page that
            // cannot be accessed gives an error and no signal.
            unsafe { libc::madvise(self.as_ptr().add(start).as_ptr().cast(), end - start, advice) };
        }
    }

    fn build(name: &str, len: usize, opts: &SegmentOptions, store: Store) -> Result<Self, ShmError> {
        let (page, huge) = match store {
            Store::HugeMemfd(page) => (page, true),
            _ => (numa::page_size(), false),
        };
        let len = whole_pages(len, page)?;
        limits::require_address_space(len)?;
        if opts.lock {
            limits::require_memlock(len)?;
        }
        let fd = store.open(name)?;
        store.resize(fd.as_fd(), len)?;
        let mapping = Mapping::new(fd.as_fd(), len, Access::ReadWrite)
            .map_err(|e| store.exhausted(fd.as_fd(), len, e))?;
        let mut warnings = Vec::new();
        if opts.numa_local {
            // Before the reservation, which places the pages.
            // SAFETY: our own new mapping.
            if let Err(why) = unsafe { numa::prefer_local(mapping.base, len) } {
                warnings.push(format!("memory not placed on the local NUMA node: {why}"));
            }
        }
        store.reserve(fd.as_fd(), len)?;
        if store != Store::DevShm {
            store::add_seals(fd.as_fd(), libc::F_SEAL_SHRINK | libc::F_SEAL_GROW)
                .map_err(|errno| ShmError::system("sealing the size of a segment", errno))?;
        }
        let segment = Self {
            mapping,
            fd: Some(fd),
            #[cfg(test)]
            access: Access::ReadWrite,
            huge,
            page,
            foreign_write_sealed: false,
            warnings,
        };
        if opts.lock {
            segment.lock()?;
        }
        Ok(segment)
    }

    fn lock(&self) -> Result<(), ShmError> {
        // SAFETY: our own mapping.
        let result = checked(unsafe { libc::mlock(self.as_ptr().as_ptr().cast(), self.len()) });
        result
            .map(|_| ())
            .map_err(|errno| ShmError::system("locking a segment into memory (see ulimit -l)", errno))
    }

    /// Seals the segment: from now on no process can map it for writing, write to it by a system call, or
    /// remove pages from it. The mapping in this process stays writable. No further seal can be added.
    ///
    /// Call it once, before the descriptor is sent. False if the file cannot be sealed: with a kernel before
    /// 5.1, with [`SegmentBacking::DevShm`], after [`seal_seals`](Self::seal_seals), or on a segment of another
    /// process. Peers are then *able* to write.
    ///
    /// # Errors
    /// The kernel refuses for any other reason.
    pub fn seal_against_foreign_writes(&self) -> Result<bool, ShmError> {
        if self.write_sealed() {
            return Ok(true);
        }
        let Some(fd) = self.fd() else { return Ok(false) };
        match store::add_seals(fd, libc::F_SEAL_FUTURE_WRITE) {
            Ok(()) => {}
            // An old kernel does not know the seal; a file that is no memfd does not permit it.
            Err(errno) if matches!(errno.raw_os_error(), Some(libc::EINVAL | libc::EPERM)) => {
                return Ok(false);
            }
            Err(errno) => return Err(ShmError::system("sealing a segment against writes", errno)),
        }
        self.seal_seals()?;
        Ok(true)
    }

    /// Forbids further seals: without this a peer could seal a queue segment against other peers' mappings. No
    /// effect on a file that cannot have seals.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn seal_seals(&self) -> Result<(), ShmError> {
        let Some(fd) = self.fd() else { return Ok(()) };
        if store::seals(fd) & libc::F_SEAL_SEAL != 0 {
            return Ok(());
        }
        match store::add_seals(fd, libc::F_SEAL_SEAL) {
            Err(errno) if errno.raw_os_error() != Some(libc::EINVAL) => {
                Err(ShmError::system("sealing the seals of a segment", errno))
            }
            _ => Ok(()),
        }
    }

    /// Maps a segment that a peer has sent. The descriptor is closed; the mapping remains.
    ///
    /// Takes the accepted lengths (`4096..=1 << 20`) or a whole [`AttachLimits`].
    ///
    /// # Errors
    /// [`ShmError::Untrustworthy`] unless the file is memory, belongs to our effective user, cannot change its
    /// size, and has all its pages. [`ShmError::Length`] outside the limits. Other errors if it cannot be
    /// mapped, for example because its owner permits no writing.
    pub fn attach(
        fd: impl Into<ForeignFd>,
        access: Access,
        limits: impl Into<AttachLimits>,
    ) -> Result<Self, ShmError> {
        let AttachLimits { lengths, allow_unsealed, keeps_pages } = limits.into();
        let (found, mut fd) = store::inspect(fd.into(), allow_unsealed)?;
        let (least, most) = (*lengths.start(), *lengths.end());
        let len = usize::try_from(found.len)
            .ok()
            .filter(|len| *len > 0 && lengths.contains(len))
            .ok_or_else(|| {
                let why = format!("{} to {} are accepted", Bytes(least as u64), Bytes(most as u64));
                ShmError::Length { len: found.len, why }
            })?;
        limits::require_address_space(len)?;
        let write_sealed = found.seals & store::KEEPS_PAGES != 0;
        if keeps_pages || (found.huge && write_sealed) {
            fd = store::require_kept_pages(fd, found.seals, found.len)?;
        } else if found.huge {
            // The pool may be empty at the next access to a punched page, which then raises SIGBUS.
            return Err(ShmError::Untrustworthy(
                "it is on huge pages, from which its writers could remove pages: use ordinary pages".into(),
            ));
        }
        if write_sealed && access == Access::ReadWrite {
            return Err(ShmError::Untrustworthy("it is sealed against writing, but is to be written".into()));
        }
        let mapping = Mapping::new(fd.as_fd(), len, access)
            .map_err(|errno| ShmError::system("mapping a segment of a peer", errno))?;
        let (huge, page) = (found.huge, found.page);
        Ok(Self {
            mapping,
            fd: None,
            #[cfg(test)]
            access,
            huge,
            page,
            foreign_write_sealed: write_sealed,
            warnings: Vec::new(),
        })
    }

    /// Returns the first byte, which is aligned to a page. The memory stays mapped until the segment is
    /// dropped, and other processes may write it at any time.
    pub fn as_ptr(&self) -> NonNull<u8> {
        self.mapping.base
    }

    /// Returns the length in bytes.
    #[allow(clippy::len_without_is_empty, reason = "a segment is never empty")]
    pub fn len(&self) -> usize {
        self.mapping.len
    }

    /// Returns the descriptor to send to peers; `None` if it is closed, as that of every attached segment is.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.fd.as_ref().map(AsFd::as_fd)
    }

    /// Closes the descriptor; the memory stays mapped. Call this when no further process will map the segment.
    pub fn close_descriptor(&mut self) {
        self.foreign_write_sealed = self.write_sealed();
        self.fd = None;
    }

    /// Returns whether the segment consists of huge pages.
    pub fn huge(&self) -> bool {
        self.huge
    }

    /// Returns the size of its pages in bytes.
    pub fn page_size(&self) -> usize {
        self.page
    }

    /// Returns whether this mapping is read-only.
    #[cfg(test)]
    pub(crate) fn read_only(&self) -> bool {
        self.access == Access::ReadOnly
    }

    /// Returns whether the kernel keeps every process but the creator from writing.
    pub fn write_sealed(&self) -> bool {
        match self.fd() {
            Some(fd) => store::seals(fd) & store::KEEPS_PAGES != 0,
            None => self.foreign_write_sealed,
        }
    }

    /// Returns the options that were requested and not granted, one line each.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }
}

fn huge_store(backing: SegmentBacking) -> Result<Store, ShmError> {
    let unsupported = |what| ShmError::system(what, std::io::Error::from_raw_os_error(libc::EOPNOTSUPP));
    if backing == SegmentBacking::DevShm {
        return Err(unsupported("huge pages are not possible with the /dev/shm backing: use memfd"));
    }
    limits::huge_pages()
        .map(|pool| Store::HugeMemfd(pool.page))
        .ok_or_else(|| unsupported("this kernel has no huge pages (CONFIG_HUGETLBFS)"))
}

fn whole_pages(len: usize, page: usize) -> Result<usize, ShmError> {
    let refused = |why: &str| ShmError::Length { len: len as u64, why: why.into() };
    if len == 0 {
        return Err(refused("empty"));
    }
    len.checked_next_multiple_of(page)
        .filter(|len| isize::try_from(*len).is_ok())
        .ok_or_else(|| refused("longer than the address space"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::{HandoffConnection, testing};
    use std::fs::File;
    use std::time::{Duration, Instant};

    const LEN: usize = 1 << 16;
    const SIZES: RangeInclusive<usize> = 1..=1 << 20;

    fn plain() -> Segment {
        Segment::create("nemesia-test", LEN, &SegmentOptions::default()).unwrap()
    }

    fn copy_of(segment: &Segment) -> OwnedFd {
        segment.fd().unwrap().try_clone_to_owned().unwrap()
    }

    fn store(segment: &Segment, at: usize, value: u8) {
        assert!(at < segment.len() && !segment.read_only());
        // SAFETY: inside the mapping, which is writable.
        unsafe { segment.as_ptr().add(at).write_volatile(value) }
    }

    fn load(segment: &Segment, at: usize) -> u8 {
        assert!(at < segment.len());
        // SAFETY: inside the mapping.
        unsafe { segment.as_ptr().add(at).read_volatile() }
    }

    fn raw_memfd(flags: u32, len: i64) -> OwnedFd {
        // SAFETY: a name that ends with zero; a new descriptor that this function owns.
        unsafe {
            let fd = libc::memfd_create(c"raw".as_ptr(), flags | libc::MFD_CLOEXEC);
            assert_eq!(libc::ftruncate(fd, len), 0);
            std::os::fd::FromRawFd::from_raw_fd(fd)
        }
    }

    #[test]
    fn both_sides_see_the_same_memory() {
        let segment = Segment::create("nemesia-test", 5000, &SegmentOptions::default()).unwrap();
        assert_eq!(segment.len(), 8192);
        assert!(!segment.read_only() && !segment.huge() && segment.warnings().is_empty());
        assert_eq!(segment.as_ptr().as_ptr().addr() % segment.page_size(), 0);
        let theirs = Segment::attach(copy_of(&segment), Access::ReadWrite, SIZES).unwrap();
        assert_eq!((theirs.len(), theirs.page_size()), (8192, segment.page_size()));
        assert!(theirs.fd().is_none());
        assert_eq!(load(&theirs, 8191), 0);
        store(&segment, 8191, 7);
        assert_eq!(load(&theirs, 8191), 7);
        store(&theirs, 0, 9);
        assert_eq!(load(&segment, 0), 9);
        drop(segment);
        assert_eq!(load(&theirs, 8191), 7, "the memory lives with its last mapping");
    }

    #[test]
    fn a_segment_without_descriptor_stays_mapped_and_sealed() {
        let mut segment = plain();
        let sealed = segment.seal_against_foreign_writes().unwrap();
        let theirs = Segment::attach(copy_of(&segment), Access::ReadOnly, SIZES).unwrap();
        segment.close_descriptor();
        assert!(segment.fd().is_none() && segment.write_sealed() == sealed);
        store(&segment, 1, 5);
        assert_eq!(load(&theirs, 1), 5);
    }

    #[test]
    fn a_write_sealed_segment_can_be_written_by_its_owner_only() {
        let segment = plain();
        if !segment.seal_against_foreign_writes().unwrap() {
            testing::skipped("no F_SEAL_FUTURE_WRITE here");
            return;
        }
        assert!(segment.seal_against_foreign_writes().unwrap() && segment.write_sealed());
        let theirs = Segment::attach(copy_of(&segment), Access::ReadOnly, SIZES).unwrap();
        assert!(theirs.read_only() && theirs.write_sealed());
        store(&segment, 1, 5);
        assert_eq!(load(&theirs, 1), 5);
        let error = Segment::attach(copy_of(&segment), Access::ReadWrite, SIZES).unwrap_err();
        assert!(matches!(error, ShmError::Untrustworthy(_)), "{error}");
        // The kernel enforces it: no mapping, no upgrade, no write, no hole, no further seal.
        let fd = copy_of(&segment);
        let error = Mapping::new(fd.as_fd(), LEN, Access::ReadWrite).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EPERM));
        let both = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: the kernel refuses.
        let upgraded = checked(unsafe { libc::mprotect(theirs.as_ptr().as_ptr().cast(), LEN, both) });
        assert_eq!(upgraded.unwrap_err().raw_os_error(), Some(libc::EACCES));
        let hole = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        // SAFETY: takes no pointers.
        assert!(checked(unsafe { libc::fallocate(fd.as_raw_fd(), hole, 0, 4096) }).is_err());
        assert!(store::add_seals(fd.as_fd(), libc::F_SEAL_WRITE).is_err());
        assert!(std::io::Write::write(&mut File::from(fd), b"x").is_err());
        assert_eq!(load(&segment, 1), 5);
    }

    /// Neither the owner nor another process can do it, by `fallocate` or by `madvise`. An incomplete segment
    /// is also not accepted as complete.
    #[test]
    fn no_process_can_remove_pages_from_a_sealed_segment() {
        let segment = plain();
        if !segment.seal_against_foreign_writes().unwrap() {
            testing::skipped("no F_SEAL_FUTURE_WRITE here");
            return;
        }
        let limits = AttachLimits { keeps_pages: true, ..SIZES.into() };
        let _theirs = Segment::attach(copy_of(&segment), Access::ReadOnly, limits).unwrap();
        let hole = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        // SAFETY: takes no pointers.
        let punched = checked(unsafe { libc::fallocate(copy_of(&segment).as_raw_fd(), hole, 0, 4096) });
        assert_eq!(punched.unwrap_err().raw_os_error(), Some(libc::EPERM));
        let base = segment.as_ptr().as_ptr().cast();
        // SAFETY: our own mapping, to which no reference exists.
        let removed = checked(unsafe { libc::madvise(base, segment.len(), libc::MADV_REMOVE) });
        assert_eq!(removed.unwrap_err().raw_os_error(), Some(libc::EPERM));
    }

    /// Otherwise the first access to a page would be charged to the reader.
    #[test]
    fn holes_hidden_by_pages_behind_the_end_are_found() {
        let page = numa::page_size() as i64;
        let fd = raw_memfd(libc::MFD_ALLOW_SEALING, 4 * page);
        let (keep, hole) = (libc::FALLOC_FL_KEEP_SIZE, libc::FALLOC_FL_PUNCH_HOLE);
        for (mode, at) in [(0, 0), (keep, 4 * page), (keep | hole, page)] {
            // SAFETY: takes no pointers.
            checked(unsafe { libc::fallocate(fd.as_raw_fd(), mode, at, 2 * page) }).unwrap();
        }
        // SAFETY: as above.
        checked(unsafe { libc::fallocate(fd.as_raw_fd(), 0, 3 * page, page) }).unwrap();
        let fixed = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;
        store::add_seals(fd.as_fd(), fixed).unwrap();
        let limits = || AttachLimits { keeps_pages: true, ..SIZES.into() };
        let attach = |fd: &OwnedFd| Segment::attach(fd.try_clone().unwrap(), Access::ReadOnly, limits());
        let error = attach(&fd).unwrap_err().to_string();
        assert!(error.contains("could remove pages from it"), "{error}");
        if store::add_seals(fd.as_fd(), libc::F_SEAL_FUTURE_WRITE).is_err() {
            testing::skipped("no F_SEAL_FUTURE_WRITE here");
            return;
        }
        let error = attach(&fd).unwrap_err().to_string();
        assert!(error.contains("pages are not reserved"), "{error}");
        // SAFETY: takes no pointers.
        checked(unsafe { libc::fallocate(fd.as_raw_fd(), 0, 0, 4 * page) }).unwrap();
        attach(&fd).unwrap();
    }

    /// A page that was punched out may be missing in the pool at the next access.
    #[test]
    fn huge_pages_that_others_may_write_are_refused() {
        let options = SegmentOptions { huge: HugePages::Require, ..SegmentOptions::default() };
        assert_eq!(options.for_foreign_writers().huge, HugePages::Never);
        let Ok(segment) = Segment::create("x", LEN, &options) else {
            testing::skipped("no huge pages here");
            return;
        };
        for access in [Access::ReadWrite, Access::ReadOnly] {
            let error = Segment::attach(copy_of(&segment), access, 1..=usize::MAX).unwrap_err().to_string();
            assert!(error.contains("on huge pages"), "{error}");
        }
        assert!(segment.seal_against_foreign_writes().unwrap());
        Segment::attach(copy_of(&segment), Access::ReadOnly, 1..=usize::MAX).unwrap();
    }

    #[test]
    fn a_queue_segment_cannot_be_sealed_against_other_peers() {
        let segment = plain();
        segment.seal_seals().unwrap();
        segment.seal_seals().unwrap();
        assert!(store::add_seals(copy_of(&segment).as_fd(), libc::F_SEAL_FUTURE_WRITE).is_err());
        Segment::attach(copy_of(&segment), Access::ReadWrite, SIZES).unwrap();
    }

    #[test]
    fn the_size_is_sealed_and_the_pages_are_there() {
        let segment = plain();
        let file = File::from(copy_of(&segment));
        assert!(file.set_len(0).is_err() && file.set_len(LEN as u64 * 2).is_err());
        let blocks = std::os::unix::fs::MetadataExt::blocks(&file.metadata().unwrap());
        assert!(blocks * 512 >= LEN as u64);
    }

    #[test]
    fn a_file_that_could_be_truncated_is_refused() {
        let fixed = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;
        for seals in [0, libc::F_SEAL_SHRINK, libc::F_SEAL_GROW] {
            let fd = raw_memfd(libc::MFD_ALLOW_SEALING, 4096);
            store::add_seals(fd.as_fd(), seals).unwrap();
            let error = Segment::attach(fd, Access::ReadOnly, SIZES).unwrap_err().to_string();
            assert!(error.contains("size is not sealed"), "{error}");
        }
        let fd = raw_memfd(libc::MFD_ALLOW_SEALING, 4096);
        store::add_seals(fd.as_fd(), fixed).unwrap();
        let error = Segment::attach(fd, Access::ReadOnly, SIZES).unwrap_err().to_string();
        assert!(error.contains("pages are not reserved (0 of 4096 bytes)"), "{error}");
    }

    #[test]
    fn a_file_that_is_not_memory_is_refused() {
        let (read, _write) = std::io::pipe().unwrap();
        let files: [OwnedFd; 4] = [
            File::open("/proc/self/exe").unwrap().into(),
            File::open("/dev/null").unwrap().into(),
            File::open("/dev/shm").unwrap().into(),
            read.into(),
        ];
        let limits = AttachLimits { lengths: 0..=usize::MAX, allow_unsealed: true, keeps_pages: false };
        for fd in files {
            let error = Segment::attach(fd, Access::ReadOnly, limits.clone()).unwrap_err();
            assert!(matches!(error, ShmError::Untrustworthy(_)), "{error}");
        }
    }

    #[test]
    fn another_size_is_refused() {
        let segment = plain();
        for lengths in [1..=LEN - 1, LEN + 1..=usize::MAX] {
            let error = Segment::attach(copy_of(&segment), Access::ReadOnly, lengths).unwrap_err();
            assert!(error.to_string().contains("65536 bytes refused"), "{error}");
        }
        Segment::attach(copy_of(&segment), Access::ReadOnly, LEN..=LEN).unwrap();
    }

    #[test]
    fn impossible_lengths_and_names_are_refused() {
        let opts = SegmentOptions::default();
        for len in [0, usize::MAX, isize::MAX.unsigned_abs() + 1] {
            let error = Segment::create("x", len, &opts).unwrap_err();
            assert!(matches!(error, ShmError::Length { .. }), "{error}");
        }
        for name in ["\0", &"x".repeat(250)] {
            let error = Segment::create(name, 1, &opts).unwrap_err();
            assert!(matches!(error, ShmError::Name { .. }), "{error}");
        }
        Segment::create(&"x".repeat(249), 1, &opts).unwrap();
    }

    #[test]
    fn a_petabyte_is_a_clear_error() {
        for backing in [SegmentBacking::Memfd, SegmentBacking::DevShm] {
            let opts = SegmentOptions { backing, ..SegmentOptions::default() };
            let error = Segment::create("x", 1 << 50, &opts).unwrap_err().to_string();
            assert!(error.contains("1 PiB") && error.contains("available"), "{error}");
        }
    }

    #[test]
    fn an_unnamed_file_in_dev_shm_is_accepted_only_on_request() {
        let names =
            || std::fs::read_dir("/dev/shm").unwrap().map(|e| e.unwrap().file_name()).collect::<Vec<_>>();
        let opts = SegmentOptions { backing: SegmentBacking::DevShm, ..SegmentOptions::default() };
        // The name is unique to this process.
        let own = format!("nemesia-test-{}", std::process::id());
        let segment = Segment::create(&own, LEN, &opts).unwrap();
        assert!(!names().iter().any(|name| name.to_string_lossy().contains(&own)));
        assert!(!segment.seal_against_foreign_writes().unwrap());
        segment.seal_seals().unwrap();
        let error = Segment::attach(copy_of(&segment), Access::ReadWrite, SIZES).unwrap_err();
        assert!(error.to_string().contains("size is not sealed"), "{error}");
        let limits = AttachLimits { lengths: SIZES, allow_unsealed: true, keeps_pages: false };
        let theirs = Segment::attach(copy_of(&segment), Access::ReadWrite, limits).unwrap();
        store(&theirs, 3, 4);
        assert_eq!(load(&segment, 3), 4);
        let huge = SegmentOptions { huge: HugePages::Require, ..opts };
        assert!(Segment::create("x", 1, &huge).unwrap_err().to_string().contains("use memfd"));
    }

    #[test]
    fn huge_pages_are_used_or_their_absence_is_explained() {
        let opts = |huge| SegmentOptions { huge, ..SegmentOptions::default() };
        let tried = Segment::create("x", LEN, &opts(HugePages::Try)).unwrap();
        store(&tried, LEN - 1, 1);
        assert_eq!(tried.huge(), tried.warnings().is_empty(), "{:?}", tried.warnings());
        match Segment::create("x", LEN, &opts(HugePages::Require)) {
            Ok(segment) => {
                assert!(segment.huge() && segment.len() == segment.page_size());
                store(&segment, LEN, 1);
                assert!(segment.seal_against_foreign_writes().unwrap());
                let most = 1..=usize::MAX;
                let theirs = Segment::attach(copy_of(&segment), Access::ReadOnly, most).unwrap();
                assert!(
                    theirs.huge() && theirs.page_size() == segment.page_size() && load(&theirs, LEN) == 1
                );
            }
            Err(error) => {
                testing::skipped("no huge pages here: only their absence was tested");
                assert!(error.to_string().contains("sysctl vm.nr_hugepages="), "{error}");
            }
        }
        let error = Segment::create("x", 1 << 45, &opts(HugePages::Require)).unwrap_err().to_string();
        assert!(error.contains("32 TiB of huge pages wanted") && error.contains("nr_hugepages="), "{error}");
    }

    #[test]
    fn local_placement_and_locking_are_granted_or_explained() {
        let opts = SegmentOptions { numa_local: true, lock: true, ..SegmentOptions::default() };
        match Segment::create("x", LEN, &opts) {
            Ok(segment) => {
                store(&segment, 0, 1);
                assert!(
                    limits::kib_field(&std::fs::read_to_string("/proc/self/status").unwrap(), "VmLck")
                        >= Some(1)
                );
            }
            Err(error) => assert!(error.to_string().contains("ulimit -l"), "{error}"),
        }
    }

    #[test]
    fn a_low_memlock_limit_is_a_clear_error() {
        const NAME: &str = concat!(module_path!(), "::a_low_memlock_limit_is_a_clear_error");
        if !testing::is_child() {
            testing::run_again(NAME, || {
                testing::set_limit(libc::RLIMIT_MEMLOCK, 8 << 20)?;
                // Without privilege: in a user namespace of its own, else unchanged.
                // SAFETY: takes no pointers.
                unsafe { libc::unshare(libc::CLONE_NEWUSER) };
                Ok(())
            });
            return;
        }
        let opts = SegmentOptions { lock: true, ..SegmentOptions::default() };
        match Segment::create("x", 64 << 20, &opts) {
            Err(error) => {
                let text = error.to_string();
                assert!(text.starts_with("memlock limit is 8 MiB, 64 MiB wanted: ulimit -l 65536"), "{text}");
            }
            Ok(_) => testing::skipped("this process may lock without limit"),
        }
        Segment::create("x", 4096, &opts).unwrap();
    }

    #[test]
    fn a_file_size_limit_is_an_error_and_not_a_signal() {
        const NAME: &str = concat!(module_path!(), "::a_file_size_limit_is_an_error_and_not_a_signal");
        if !testing::is_child() {
            testing::run_again(NAME, || testing::set_limit(libc::RLIMIT_FSIZE, 4096));
            return;
        }
        let error = Segment::create("x", 8192, &SegmentOptions::default()).unwrap_err().to_string();
        assert_eq!(error, "file size limit is 4 KiB, 8 KiB wanted: ulimit -f unlimited");
        Segment::create("x", 4096, &SegmentOptions::default()).unwrap();
    }

    #[test]
    fn a_full_dev_shm_is_a_clear_error() {
        const NAME: &str = concat!(module_path!(), "::a_full_dev_shm_is_a_clear_error");
        if !testing::is_child() {
            if testing::private_dev_shm_is_possible() {
                testing::run_again(NAME, testing::small_dev_shm);
            } else {
                testing::skipped("no mount namespaces here: run it as root");
            }
            return;
        }
        let opts = SegmentOptions { backing: SegmentBacking::DevShm, ..SegmentOptions::default() };
        let error = Segment::create("x", 2 << 20, &opts).unwrap_err().to_string();
        assert!(error.starts_with("/dev/shm is full: 2 MiB wanted, 1 MiB available"), "{error}");
        assert!(error.contains("--shm-size"), "{error}");
        // Past the first check, as if other processes had filled it meanwhile.
        let held = Segment::create("x", 1 << 19, &opts).unwrap();
        let fd = Store::DevShm.open("x").unwrap();
        // SAFETY: takes no pointers.
        checked(unsafe { libc::ftruncate(fd.as_raw_fd(), 1 << 20) }).unwrap();
        let error = Store::DevShm.reserve(fd.as_fd(), 1 << 20).unwrap_err().to_string();
        assert!(error.starts_with("/dev/shm is full: 1 MiB wanted, 512 KiB available"), "{error}");
        drop((held, fd));
        Segment::create("x", 1 << 20, &opts).unwrap();
        // A memfd does not use that file system.
        Segment::create("x", 2 << 20, &SegmentOptions::default()).unwrap();
    }

    #[test]
    fn a_forked_child_has_no_share_and_unmaps_nothing() {
        let segment = plain();
        let (base, len) = (segment.as_ptr().as_ptr(), segment.len());
        let mut segment = Some(segment);
        let child = testing::fork(|| {
            // SAFETY: queries the range; a hole is the expected answer. Then maps a page of its own in the
            // hole.
            unsafe {
                let mut core = [0_u8; 64];
                if libc::mincore(base.cast(), len, core.as_mut_ptr()) == 0 {
                    return 1;
                }
                let (access, kind) =
                    (libc::PROT_READ, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED);
                libc::mmap(base.cast(), len, access, kind, -1, 0);
                drop(segment.take());
                i32::from(libc::mincore(base.cast(), len, core.as_mut_ptr()) != 0) * 2
            }
        });
        assert_eq!(child.exit_code(), Some(0));
        store(segment.as_ref().unwrap(), 0, 1);
    }

    /// The whole life cycle between two processes: connect, check, send, write, die.
    #[test]
    fn a_segment_travels_to_another_process() {
        const NAME: &str = concat!(module_path!(), "::a_segment_travels_to_another_process");
        let soon = || Instant::now() + Duration::from_secs(60);
        if testing::is_child() {
            let peer = HandoffConnection::connect(&testing::child_argument(), soon()).unwrap();
            peer.require_same_user().unwrap();
            let segment = plain();
            store(&segment, 100, 42);
            peer.send(b"hello", &[segment.fd().unwrap()], soon()).unwrap();
            while load(&segment, 101) == 0 {
                std::thread::yield_now();
            }
            peer.send_goodbye().unwrap();
            return;
        }
        let listener = crate::os::HandoffListener::bind().unwrap();
        let mut child =
            testing::again(NAME, &listener.name()).stdout(std::process::Stdio::null()).spawn().unwrap();
        let peer = listener.accept(soon()).unwrap();
        peer.require_same_user().unwrap();
        assert_eq!(u32::try_from(peer.peer().pid).unwrap(), child.id());
        let (_, fds) = peer.recv(&mut [0; 16], 1, soon()).unwrap();
        let segment = Segment::attach(fds.into_iter().next().unwrap(), Access::ReadWrite, SIZES).unwrap();
        assert_eq!(load(&segment, 100), 42);
        let mut watch = crate::os::Watch::new().unwrap();
        let pidfd = peer.pidfd();
        watch.add(0, peer, pidfd).unwrap();
        assert_eq!(watch.poll().unwrap().len(), 0);
        store(&segment, 101, 1);
        assert!(child.wait().unwrap().success());
        assert_eq!(watch.poll().unwrap().collect::<Vec<_>>(), [(0, crate::os::Departure::Finished)]);
        assert_eq!(load(&segment, 100), 42, "the memory of a dead process stays");
    }
}
