//! Conventions of system calls: -1 and errno, EINTR, deadlines.

use std::ffi::{c_int, c_long, c_short};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::{Duration, Instant};

use super::error::ShmError;

/// Turns the result of a `libc` function into a `Result`. Call at once: it reads `errno`.
pub(super) fn checked(result: c_int) -> io::Result<c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Does the same for `libc::syscall`.
pub(super) fn checked_long(result: c_long) -> io::Result<c_long> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Repeats a call while signals interrupt it.
pub(super) fn uninterrupted<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.raw_os_error() == Some(libc::EINTR) => {}
            result => return result,
        }
    }
}

/// Returns random bytes from the kernel. At most 256, which the kernel returns whole or not at all.
pub(crate) fn random<const N: usize>() -> Result<[u8; N], ShmError> {
    const { assert!(N <= 256) };
    let mut random = [0; N];
    // SAFETY: the kernel writes at most the length announced.
    uninterrupted(|| checked_long(unsafe { libc::getrandom(random.as_mut_ptr().cast(), N, 0) } as _))
        .map_err(|errno| ShmError::system("drawing random bytes", errno))?;
    Ok(random)
}

/// Returns the effective user of this process.
pub(super) fn effective_uid() -> u32 {
    // SAFETY: takes nothing and cannot fail.
    unsafe { libc::geteuid() }
}

/// Returns the id of this process.
pub(super) fn process_id() -> i32 {
    // SAFETY: takes nothing and cannot fail.
    unsafe { libc::getpid() }
}

/// Returns the time until the deadline, zero if it has passed.
pub(super) fn left(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now())
}

/// Converts a duration for the kernel. A duration that does not fit becomes the longest possible wait.
pub(super) fn timespec(duration: Duration) -> libc::timespec {
    let tv_sec = libc::time_t::try_from(duration.as_secs()).unwrap_or(libc::time_t::MAX);
    libc::timespec { tv_sec, tv_nsec: duration.subsec_nanos().into() }
}

/// Waits until one of `events`, a disconnection or an error is reported. False if the deadline passes first.
/// Polls once even if the deadline has already passed.
pub(crate) fn wait_ready(fd: BorrowedFd<'_>, events: c_short, deadline: Instant) -> io::Result<bool> {
    Ok(poll_once(fd, events, || left(deadline))? != 0)
}

/// Waits until one of the descriptors is readable or at its end, or until the deadline.
pub(crate) fn wait_any(fds: &[BorrowedFd<'_>], deadline: Instant) -> io::Result<()> {
    let poll = |fd: &BorrowedFd<'_>| libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    let mut polls: Vec<_> = fds.iter().map(poll).collect();
    uninterrupted(|| {
        let timeout = timespec(left(deadline));
        // SAFETY: as many pollfds as are announced, and a valid timespec, outlive the call; a null signal mask is
        // allowed.
        checked(unsafe {
            libc::ppoll(polls.as_mut_ptr(), polls.len() as libc::nfds_t, &raw const timeout, std::ptr::null())
        })
    })
    .map(|_| ())
}

/// Returns the events that are ready now, without waiting.
pub(super) fn ready_now(fd: BorrowedFd<'_>, events: c_short) -> io::Result<c_short> {
    poll_once(fd, events, || Duration::ZERO)
}

fn poll_once(fd: BorrowedFd<'_>, events: c_short, timeout: impl Fn() -> Duration) -> io::Result<c_short> {
    let mut poll = libc::pollfd { fd: fd.as_raw_fd(), events, revents: 0 };
    uninterrupted(|| {
        let timeout = timespec(timeout());
        // SAFETY: one valid pollfd and a valid timespec outlive the call; a null signal mask is allowed.
        checked(unsafe { libc::ppoll(&raw mut poll, 1, &raw const timeout, std::ptr::null()) })
    })?;
    Ok(poll.revents)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interruptions_are_repeated_and_other_errors_are_not() {
        let mut interruptions = 3;
        let result = uninterrupted(|| {
            interruptions -= 1;
            Err::<(), _>(io::Error::from_raw_os_error(if interruptions > 0 {
                libc::EINTR
            } else {
                libc::EIO
            }))
        });
        assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::EIO));
        assert_eq!(interruptions, 0);
    }

    #[test]
    fn a_wait_that_exceeds_the_kernels_range_is_clamped() {
        assert_eq!(timespec(Duration::MAX).tv_sec, libc::time_t::MAX);
    }
}
