//! Conventions of system calls: -1 and errno, EINTR, deadlines.

use std::ffi::{c_int, c_long, c_short};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::{Duration, Instant};

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

/// The type of the number of a resource limit.
#[cfg(target_env = "musl")]
pub(super) type Resource = c_int;
#[cfg(not(target_env = "musl"))]
pub(super) type Resource = libc::__rlimit_resource_t;

/// A soft and a hard limit; `None` is unlimited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ResourceLimit {
    pub(super) soft: Option<u64>,
    pub(super) hard: Option<u64>,
}

/// Returns a resource limit of this process.
pub(super) fn resource_limit(resource: Resource) -> io::Result<ResourceLimit> {
    let mut limit = MaybeUninit::<libc::rlimit>::uninit();
    // SAFETY: the kernel fills the structure, which is a local variable.
    checked(unsafe { libc::getrlimit(resource, limit.as_mut_ptr()) })?;
    // SAFETY: filled, since the call succeeded.
    let limit = unsafe { limit.assume_init() };
    let finite = |value| (value != libc::RLIM_INFINITY).then_some(value);
    Ok(ResourceLimit { soft: finite(limit.rlim_cur), hard: finite(limit.rlim_max) })
}

/// Returns the soft limit of open files. `None` if there is none.
pub(super) fn open_files() -> Option<u64> {
    resource_limit(libc::RLIMIT_NOFILE).ok()?.soft
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
