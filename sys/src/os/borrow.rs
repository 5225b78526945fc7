//! Opening a segment of a peer by the number of its descriptor. Used where the peer does not send the
//! descriptor: most regions are used by few peers, and each copy of a descriptor counts towards a limit.
//!
//! The kernel permits processes of the same user to open descriptors of each other by `/proc`. The file's type
//! is checked before the file is opened. Opening a device or a pipe can have any side effect, and opening a
//! regular file can block: on FUSE until the serving process answers, elsewhere until the holder of a lease
//! releases it (`/proc/sys/fs/lease-break-time`, 45 s). So this module opens only files on the file systems of
//! our own memory, without waiting for leases.

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::OnceLock;

use super::call::checked;
use super::closer::{ForeignFd, is_memory};
use super::descriptor::above_standard;
use super::error::ShmError;
use super::store::Store;

const WHAT: &str = "opening a region of a peer";

/// Opens the file behind a descriptor of another process. [`Segment::attach`](super::Segment) validates the
/// result. Never waits.
///
/// The descriptor is opened for writing even if the memory is only read:
/// [`AttachLimits::keeps_pages`](super::AttachLimits) needs write access to set the file's present size again.
///
/// # Errors
/// There is no such process or descriptor; the descriptor is not memory; its owner holds a lease on it; or the
/// kernel refuses access: for another user, and for a process that has forbidden it (`PR_SET_DUMPABLE`).
pub fn open_foreign(pid: i32, descriptor: u32) -> Result<ForeignFd, ShmError> {
    let system = |error| ShmError::system(WHAT, error);
    // Names the file without opening it.
    let named = File::options()
        .read(true)
        .custom_flags(libc::O_PATH | libc::O_CLOEXEC)
        .open(format!("/proc/{pid}/fd/{descriptor}"))
        .and_then(above_standard)
        .map_err(system)?;
    let kind = Kind::of(named.as_fd()).map_err(system)?;
    if u32::from(kind.mode) & libc::S_IFMT != libc::S_IFREG {
        return Err(ShmError::Untrustworthy("it is not a regular file".into()));
    }
    if !memory_devices().contains(&kind.device) {
        return Err(ShmError::Untrustworthy("it is not a file in memory".into()));
    }
    // By the descriptor, so that the file that is opened is the file that was checked.
    let path = format!("/proc/self/fd/{}", named.as_raw_fd());
    let file = File::options().read(true).write(true).custom_flags(libc::O_NONBLOCK).open(path);
    match file.and_then(above_standard) {
        Ok(file) => Ok(OwnedFd::from(file).into()),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            Err(ShmError::Untrustworthy("its owner holds a lease on it (F_SETLEASE)".into()))
        }
        Err(error) => Err(system(error)),
    }
}

/// The facts that the kernel knows about a file without asking the process that serves it.
struct Kind {
    mode: u16,
    /// The major and minor number of its file system.
    device: (u32, u32),
}

impl Kind {
    fn of(fd: BorrowedFd<'_>) -> io::Result<Self> {
        const NOTHING: &CStr = c"";
        let flags = libc::AT_EMPTY_PATH | libc::AT_STATX_DONT_SYNC;
        let mut about = MaybeUninit::<libc::statx>::zeroed();
        // SAFETY: the path ends with zero; the kernel fills the structure, which is a local variable.
        checked(unsafe {
            libc::statx(
                fd.as_raw_fd(),
                NOTHING.as_ptr(),
                flags,
                libc::STATX_TYPE | libc::STATX_MODE,
                about.as_mut_ptr(),
            )
        })?;
        // SAFETY: zeroed, then filled.
        let about = unsafe { about.assume_init() };
        Ok(Self { mode: about.stx_mode, device: (about.stx_dev_major, about.stx_dev_minor) })
    }
}

/// Returns the file systems of memory: of a memfd, of a memfd on huge pages, and of `/dev/shm`.
fn memory_devices() -> &'static [(u32, u32)] {
    static DEVICES: OnceLock<Vec<(u32, u32)>> = OnceLock::new();
    DEVICES.get_or_init(|| {
        let stores = [Store::Memfd, Store::HugeMemfd(0), Store::DevShm];
        let files = stores.into_iter().filter_map(|store| store.open("nemesia-probe").ok());
        let memory = files.filter(|file| is_memory(file.as_fd()));
        memory.filter_map(|file| Some(Kind::of(file.as_fd()).ok()?.device)).collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::{Access, AttachLimits, Segment, SegmentOptions};

    fn own(segment: &Segment) -> (i32, u32) {
        let number = segment.fd().map_or(-1, |fd| fd.as_raw_fd());
        (crate::os::call::process_id(), number.cast_unsigned())
    }

    #[test]
    fn a_segment_is_opened_by_number_and_shares_its_memory() {
        let segment = Segment::create("test", 4096, &SegmentOptions::default()).unwrap();
        let (pid, number) = own(&segment);
        let fd = open_foreign(pid, number).unwrap();
        let limits = AttachLimits::from(4096..=4096);
        let other = Segment::attach(fd, Access::ReadWrite, limits).unwrap();
        // SAFETY: both are mapped, and used by this thread alone.
        unsafe { segment.as_ptr().as_ptr().write_volatile(9) };
        // SAFETY: as above.
        assert_eq!(unsafe { other.as_ptr().as_ptr().read_volatile() }, 9);
    }

    #[test]
    fn a_file_sealed_against_writing_is_not_opened_for_writing() {
        let segment = Segment::create("test", 4096, &SegmentOptions::default()).unwrap();
        if !segment.seal_against_foreign_writes().unwrap() {
            crate::os::testing::skipped("this kernel cannot seal");
            return;
        }
        let (pid, number) = own(&segment);
        let limits = || AttachLimits::from(4096..=4096);
        let written =
            open_foreign(pid, number).and_then(|fd| Segment::attach(fd, Access::ReadWrite, limits()));
        assert!(written.is_err());
        let fd = open_foreign(pid, number).unwrap();
        Segment::attach(fd, Access::ReadOnly, limits()).unwrap();
    }

    #[test]
    fn nothing_else_is_opened() {
        let pid = crate::os::call::process_id();
        let (end, _other) = io::pipe().unwrap();
        for number in [end.as_raw_fd().cast_unsigned(), u32::MAX, 1 << 20] {
            assert!(open_foreign(pid, number).is_err(), "{number}");
        }
        assert!(open_foreign(0, 0).is_err());
        for other in ["/dev/null", "/proc/self/exe", "/dev/shm"] {
            let file = File::open(other).unwrap();
            let error = open_foreign(pid, file.as_raw_fd().cast_unsigned()).unwrap_err();
            assert!(matches!(error, ShmError::Untrustworthy(_)), "{other}: {error}");
        }
    }

    /// Opening the file would break the lease, for which the kernel gives the holder 45 s.
    #[test]
    fn a_file_under_a_lease_is_refused_at_once() {
        // From asm-generic/fcntl.h.
        const F_SETSIG: std::ffi::c_int = 10;
        let path = std::env::temp_dir().join(format!("nemesia-leased-{}", std::process::id()));
        let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let memory = Store::Memfd.open("leased").unwrap();
        // A file that is also open for writing cannot have a write lease.
        let memory = File::open(format!("/proc/self/fd/{}", memory.as_raw_fd())).unwrap();
        let began = std::time::Instant::now();
        for (fd, kind) in [(file.as_fd(), libc::F_WRLCK), (memory.as_fd(), libc::F_RDLCK)] {
            // SAFETY: takes no pointers. The signal that reports a broken lease is one that is ignored by
            // default.
            let leased = unsafe {
                libc::fcntl(fd.as_raw_fd(), F_SETSIG, libc::SIGURG);
                libc::fcntl(fd.as_raw_fd(), libc::F_SETLEASE, kind) == 0
            };
            if !leased {
                crate::os::testing::skipped("no leases here");
                continue;
            }
            let number = fd.as_raw_fd().cast_unsigned();
            let refused = open_foreign(crate::os::call::process_id(), number);
            assert!(matches!(refused, Err(ShmError::Untrustworthy(_))), "{refused:?}");
        }
        // The kernel's limit is in /proc/sys/fs/lease-break-time.
        assert!(began.elapsed() < std::time::Duration::from_secs(40));
    }
}
