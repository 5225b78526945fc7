//! Files without a name that hold a segment: memfd, huge memfd, or an unnamed file in /dev/shm.

use std::ffi::{CString, c_int, c_uint};
use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

use super::call::{checked, uninterrupted};
use super::closer::{ForeignFd, is_memory};
use super::descriptor::own;
use super::error::{Bytes, ShmError};
use super::limits;

/// The kind of file behind a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Store {
    Memfd,
    /// With the size of a huge page.
    HugeMemfd(usize),
    DevShm,
}

/// The bytes of one reservation call. The kernel abandons an interrupted call, which then has to start again;
/// with small pieces a process with a fast interval timer makes progress.
const PIECE: usize = 8 << 20;

impl Store {
    /// Creates an empty file. The name is for `/proc` only and need not be unique.
    pub(super) fn open(self, name: &str) -> Result<OwnedFd, ShmError> {
        let bad_name = || ShmError::Name {
            what: "segment",
            name: name.into(),
            rule: "at most 249 bytes, none of them zero",
        };
        let name = CString::new(name).ok().filter(|c| c.as_bytes().len() <= 249).ok_or_else(bad_name)?;
        match self {
            Self::Memfd => memfd(&name, 0),
            Self::HugeMemfd(_) => memfd(&name, libc::MFD_HUGETLB),
            Self::DevShm => dev_shm(),
        }
    }

    /// Sets the length. Refuses before the kernel would send a signal or start the out-of-memory killer.
    pub(super) fn resize(self, fd: BorrowedFd<'_>, len: usize) -> Result<(), ShmError> {
        limits::require_file_size(len)?;
        match self {
            Self::Memfd => limits::require_memory(len)?,
            Self::DevShm => {
                require_room(fd, len)?;
                limits::require_memory(len)?;
            }
            Self::HugeMemfd(_) => {} // taken from the pool; mapping it fails cleanly when that is too small
        }
        let size = offset(len)?;
        // SAFETY: takes no pointers.
        uninterrupted(|| checked(unsafe { libc::ftruncate(fd.as_raw_fd(), size) }))
            .map_err(|errno| ShmError::system("setting the size of a segment", errno))?;
        Ok(())
    }

    /// Reserves all pages now, so that no later access fails.
    pub(super) fn reserve(self, fd: BorrowedFd<'_>, len: usize) -> Result<(), ShmError> {
        let piece = match self {
            Self::HugeMemfd(page) => PIECE.max(page),
            _ => PIECE,
        };
        for start in (0..len).step_by(piece) {
            let (from, bytes) = (offset(start)?, offset(piece.min(len - start))?);
            // SAFETY: takes no pointers.
            uninterrupted(|| checked(unsafe { libc::fallocate(fd.as_raw_fd(), 0, from, bytes) }))
                .map_err(|errno| self.exhausted(fd, len, errno))?;
        }
        Ok(())
    }

    /// Returns the error for a refusal of memory, by the kind of file.
    pub(super) fn exhausted(self, fd: BorrowedFd<'_>, len: usize, errno: io::Error) -> ShmError {
        let wanted = Bytes(len as u64);
        match (self, errno.raw_os_error()) {
            (Self::HugeMemfd(_), _) => match limits::huge_pages() {
                Some(pool) => pool.too_small(len, errno),
                None => ShmError::system("reserving huge pages", errno),
            },
            (Self::DevShm, Some(libc::ENOSPC)) => {
                ShmError::DevShmFull { wanted, available: Bytes(room(fd).ok().flatten().unwrap_or(0)) }
            }
            (_, Some(libc::ENOSPC | libc::ENOMEM)) => ShmError::Reserve { wanted, errno },
            _ => ShmError::system("reserving the pages of a segment", errno),
        }
    }
}

fn offset(bytes: usize) -> Result<libc::off_t, ShmError> {
    libc::off_t::try_from(bytes)
        .map_err(|_| ShmError::Length { len: bytes as u64, why: "longer than a file can be".into() })
}

fn memfd(name: &CString, kind: c_uint) -> Result<OwnedFd, ShmError> {
    let base = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING | kind;
    // SAFETY: the name ends with zero and outlives the call.
    let create = |flags| unsafe { libc::memfd_create(name.as_ptr(), flags) };
    // SAFETY: a new descriptor, given to us alone.
    let create = |flags| unsafe { own(create(flags)) };
    // Kernels before 6.3 do not know the flag; some kernels with vm.memfd_noexec=2 require it.
    let result = match create(base | libc::MFD_NOEXEC_SEAL) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => create(base),
        result => result,
    };
    result.map_err(|errno| match errno.raw_os_error() {
        Some(libc::ENOSYS | libc::EPERM | libc::EACCES) => ShmError::NoMemfd { errno },
        _ => ShmError::system("memfd_create", errno),
    })
}

fn dev_shm() -> Result<OwnedFd, ShmError> {
    // With O_EXCL the file can never get a name.
    let flags = libc::O_TMPFILE | libc::O_EXCL | libc::O_RDWR | libc::O_CLOEXEC;
    // SAFETY: the path ends with zero.
    let open = || unsafe { libc::open(c"/dev/shm".as_ptr(), flags, 0o600) };
    // SAFETY: a new descriptor, given to us alone.
    let fd = uninterrupted(|| unsafe { own(open()) })
        .map_err(|errno| ShmError::system("making an unnamed file in /dev/shm", errno))?;
    match magic(&fd) {
        Ok(libc::TMPFS_MAGIC) => Ok(fd),
        Ok(_) => Err(ShmError::system(
            "/dev/shm is not a tmpfs (mount -t tmpfs tmpfs /dev/shm)",
            io::Error::from_raw_os_error(libc::ENODEV),
        )),
        Err(errno) => Err(ShmError::system("asking what /dev/shm is", errno)),
    }
}

#[cfg(all(target_os = "linux", target_env = "musl"))]
type Magic = std::ffi::c_ulong;
#[cfg(not(all(target_os = "linux", target_env = "musl")))]
type Magic = libc::__fsword_t;

/// Returns the type of a file's file system.
fn magic(fd: &OwnedFd) -> io::Result<Magic> {
    let mut about = MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: the kernel fills the structure, which is a local variable.
    uninterrupted(|| checked(unsafe { libc::fstatfs(fd.as_raw_fd(), about.as_mut_ptr()) }))?;
    // SAFETY: filled, since the call succeeded.
    Ok(unsafe { about.assume_init() }.f_type)
}

/// Returns the free bytes of the file system; `None` if it has no bound of its own.
fn room(fd: BorrowedFd<'_>) -> io::Result<Option<u64>> {
    let mut about = MaybeUninit::<libc::statvfs>::uninit();
    // SAFETY: the kernel fills the structure, which is a local variable.
    uninterrupted(|| checked(unsafe { libc::fstatvfs(fd.as_raw_fd(), about.as_mut_ptr()) }))?;
    // SAFETY: filled, since the call succeeded.
    let about = unsafe { about.assume_init() };
    Ok((about.f_blocks != 0).then(|| about.f_bavail.saturating_mul(about.f_frsize)))
}

fn require_room(fd: BorrowedFd<'_>, len: usize) -> Result<(), ShmError> {
    match room(fd) {
        Ok(Some(available)) if available < len as u64 => {
            Err(ShmError::DevShmFull { wanted: Bytes(len as u64), available: Bytes(available) })
        }
        _ => Ok(()), // when the question fails, the reservation will answer it
    }
}

/// Returns the seals on a file; none if it cannot have any.
pub(super) fn seals(fd: BorrowedFd<'_>) -> c_int {
    // SAFETY: takes no pointers.
    checked(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GET_SEALS) }).unwrap_or(0)
}

/// Adds seals.
pub(super) fn add_seals(fd: BorrowedFd<'_>, seals: c_int) -> io::Result<()> {
    // SAFETY: takes no pointers.
    checked(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, seals) }).map(|_| ())
}

/// The properties of a received descriptor.
pub(super) struct Found {
    pub(super) len: u64,
    pub(super) seals: c_int,
    pub(super) huge: bool,
    pub(super) page: usize,
}

/// Validates a descriptor from a peer: its owner is our user, its file system is memory, its size cannot
/// change, and its pages exist. The seals are read first: once they are set, the size that is read after them
/// is final. The query for seals is also the only one that returns at once for every file, and it succeeds only
/// for memory.
pub(super) fn inspect(fd: ForeignFd, allow_unsealed: bool) -> Result<(Found, OwnedFd), ShmError> {
    let refuse = |why: String| Err(ShmError::Untrustworthy(why));
    if !is_memory(fd.as_fd()) {
        return refuse("it is not a file in memory".into());
    }
    let fd = fd.into_inner();
    let seals = seals(fd.as_fd());
    let kind =
        magic(&fd).map_err(|errno| ShmError::system("querying the file system of a segment", errno))?;
    let huge = match kind {
        libc::TMPFS_MAGIC => false,
        libc::HUGETLBFS_MAGIC => true,
        _ => return refuse("it is not a file in memory".into()),
    };
    let file = File::from(fd);
    let about = file.metadata().map_err(|errno| ShmError::system("querying the file of a segment", errno))?;
    if !about.is_file() {
        return refuse("it is not a regular file".into());
    }
    let (owner, ours) = (about.uid(), super::call::effective_uid());
    if owner != ours {
        return refuse(format!("it belongs to uid {owner}, this process runs as uid {ours}"));
    }
    let fixed = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;
    if seals & fixed != fixed {
        if !allow_unsealed {
            return refuse(
                "its size is not sealed (F_SEAL_SHRINK, F_SEAL_GROW): its owner could truncate it".into(),
            );
        }
        if about.nlink() != 0 {
            return refuse("it has a name in a file system".into());
        }
    }
    require_pages(&about)?;
    let ordinary = super::numa::page_size(); // tmpfs reports the huge size wherever it may use it
    let page = if huge { usize::try_from(about.blksize()).unwrap_or(ordinary) } else { ordinary };
    Ok((Found { len: about.len(), seals, huge, page }, file.into()))
}

/// Checks that no page is missing. A missing page would be charged to us at the first access, or be a SIGBUS.
fn require_pages(about: &std::fs::Metadata) -> Result<(), ShmError> {
    let reserved = about.blocks().saturating_mul(512);
    if reserved >= about.len() {
        return Ok(());
    }
    let why = format!("its pages are not reserved ({reserved} of {} bytes)", about.len());
    Err(ShmError::Untrustworthy(why))
}

/// The seals under which no process can remove pages from a file, by `fallocate` or by `madvise(MADV_REMOVE)`,
/// not even its owner through a writable mapping.
pub(super) const KEEPS_PAGES: c_int = libc::F_SEAL_FUTURE_WRITE | libc::F_SEAL_WRITE;

/// Verifies that every page of a file of this size exists and stays. The file has all seals.
///
/// The number of blocks alone does not prove that: before the size was sealed, the owner may have reserved
/// pages behind the end, and punched as many holes before the end. Setting the size to its present value is
/// permitted, and frees the pages behind the end. Returns the file.
pub(super) fn require_kept_pages(fd: OwnedFd, seals: c_int, len: u64) -> Result<OwnedFd, ShmError> {
    const FIXED: c_int = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;
    let refuse = |why: &str| Err(ShmError::Untrustworthy(why.into()));
    if seals & FIXED != FIXED || seals & KEEPS_PAGES == 0 {
        return refuse(
            "its owner or a peer could remove pages from it: it is not sealed against writing (F_SEAL_FUTURE_WRITE)",
        );
    }
    let size = libc::off_t::try_from(len)
        .map_err(|_| ShmError::Length { len, why: "longer than a file can be".into() })?;
    // SAFETY: takes no pointers.
    let set = uninterrupted(|| checked(unsafe { libc::ftruncate(fd.as_raw_fd(), size) }));
    set.map_err(|errno| ShmError::system("setting the present size of a segment again", errno))?;
    let file = File::from(fd);
    let about = file.metadata().map_err(|errno| ShmError::system("querying the file of a segment", errno))?;
    require_pages(&about)?;
    Ok(file.into())
}
