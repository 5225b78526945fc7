//! Opening a segment of a peer by the number of its descriptor, where nobody wants to hand it over: most regions are used by
//! few peers, and each copy of a descriptor counts.
//!
//! The kernel lets a process of the same user do that by `/proc`. What the descriptor is, is asked before it is opened:
//! opening a device or a pipe could do anything.

use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;

use super::error::ShmError;
use super::segment::Access;

const WHAT: &str = "opening a region of a peer";

/// Opens the file behind a descriptor of another process. What comes is judged by [`Segment::attach`](super::Segment).
///
/// # Errors
/// When there is no such process or descriptor, when it is no regular file, and when the kernel does not allow it: for another
/// user, and for a process that has forbidden it (`PR_SET_DUMPABLE`).
pub fn open_foreign(pid: i32, descriptor: u32, access: Access) -> Result<OwnedFd, ShmError> {
    let system = |error| ShmError::system(WHAT, error);
    // Names the file without opening it.
    let named = File::options()
        .read(true)
        .custom_flags(libc::O_PATH | libc::O_CLOEXEC)
        .open(format!("/proc/{pid}/fd/{descriptor}"))
        .map_err(system)?;
    if !named.metadata().map_err(system)?.is_file() {
        return Err(ShmError::Untrustworthy("it is not a regular file".into()));
    }
    // The very file that was looked at.
    let file = File::options()
        .read(true)
        .write(access == Access::ReadWrite)
        .open(format!("/proc/self/fd/{}", named.as_raw_fd()))
        .map_err(system)?;
    Ok(file.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::{AttachLimits, Segment, SegmentOptions};

    fn own(segment: &Segment) -> (i32, u32) {
        let number = segment.fd().map_or(-1, |fd| fd.as_raw_fd());
        (crate::os::call::process_id(), number.cast_unsigned())
    }

    #[test]
    fn a_segment_is_opened_by_number_and_shares_its_memory() {
        let segment = Segment::create("test", 4096, &SegmentOptions::default()).unwrap();
        let (pid, number) = own(&segment);
        let fd = open_foreign(pid, number, Access::ReadWrite).unwrap();
        let limits = AttachLimits { lengths: 4096..=4096, allow_unsealed: false };
        let other = Segment::attach(fd, Access::ReadWrite, limits).unwrap();
        // SAFETY: both are mapped, and used by this thread alone.
        unsafe { segment.as_ptr().as_ptr().write_volatile(9) };
        // SAFETY: as above.
        assert_eq!(unsafe { other.as_ptr().as_ptr().read_volatile() }, 9);
    }

    #[test]
    fn what_is_sealed_against_writing_is_not_opened_for_it() {
        let segment = Segment::create("test", 4096, &SegmentOptions::default()).unwrap();
        if !segment.seal_against_foreign_writes().unwrap() {
            crate::os::testing::skipped("this kernel cannot seal");
            return;
        }
        let (pid, number) = own(&segment);
        let limits = || AttachLimits { lengths: 4096..=4096, allow_unsealed: false };
        let written = open_foreign(pid, number, Access::ReadWrite)
            .and_then(|fd| Segment::attach(fd, Access::ReadWrite, limits()));
        assert!(written.is_err());
        let fd = open_foreign(pid, number, Access::ReadOnly).unwrap();
        Segment::attach(fd, Access::ReadOnly, limits()).unwrap();
    }

    #[test]
    fn nothing_else_is_opened() {
        let pid = crate::os::call::process_id();
        let (end, _other) = std::io::pipe().unwrap();
        for number in [end.as_raw_fd().cast_unsigned(), u32::MAX, 1 << 20] {
            assert!(open_foreign(pid, number, Access::ReadOnly).is_err(), "{number}");
        }
        assert!(open_foreign(0, 0, Access::ReadOnly).is_err());
        let device = File::open("/dev/null").unwrap();
        assert!(open_foreign(pid, device.as_raw_fd().cast_unsigned(), Access::ReadOnly).is_err());
    }
}
