//! New descriptors: none has the number of a standard stream, where the program may print.

use std::io;
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};

/// Returns what was just made, under a number above those of the standard streams.
///
/// # Errors
/// The number is low, and no other one is free.
pub(crate) fn above_standard<T: AsFd + From<OwnedFd>>(new: T) -> io::Result<T> {
    if new.as_fd().as_raw_fd() > libc::STDERR_FILENO {
        return Ok(new);
    }
    // The standard library gives no copy a low number.
    new.as_fd().try_clone_to_owned().map(T::from)
}
