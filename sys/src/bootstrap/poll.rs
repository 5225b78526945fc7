//! A safe interface to `poll`, `recv` and `send` that handles interruptions.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

/// Returns an entry for [`wait`]. The descriptor stays its owner's.
pub(super) fn entry(fd: BorrowedFd<'_>, events: libc::c_short) -> libc::pollfd {
    libc::pollfd { fd: fd.as_raw_fd(), events, revents: 0 }
}

/// Waits until an entry is ready or `timeout` has passed (`None`: no limit), rounded up to milliseconds. An
/// interruption by a signal returns with no entry ready: callers read their clock again anyway.
pub(super) fn wait(entries: &mut [libc::pollfd], timeout: Option<Duration>) -> io::Result<()> {
    let millis =
        timeout.map_or(-1, |limit| i32::try_from(limit.as_nanos().div_ceil(1_000_000)).unwrap_or(i32::MAX));
    // Infallible on Linux, where nfds_t is as wide as usize.
    let count = libc::nfds_t::try_from(entries.len()).map_err(io::Error::other)?;
    // SAFETY: the pointer and the count describe `entries`, which is borrowed exclusively for the whole call.
    let ready = unsafe { libc::poll(entries.as_mut_ptr(), count, millis) };
    if ready >= 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    for entry in entries {
        entry.revents = 0;
    }
    if error.kind() == io::ErrorKind::Interrupted { Ok(()) } else { Err(error) }
}

/// Reads available bytes from a socket without waiting. Returns 0 at the end of the stream.
pub(super) fn receive(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<usize> {
    loop {
        // SAFETY: the pointer and the length describe `buffer`, which is borrowed exclusively for the call.
        let count = unsafe {
            libc::recv(socket.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len(), libc::MSG_DONTWAIT)
        };
        match usize::try_from(count) {
            Ok(count) => return Ok(count),
            Err(_) => retry_if_interrupted(io::Error::last_os_error())?,
        }
    }
}

/// Writes as much as a socket takes, without waiting, and without a SIGPIPE if the other side is gone.
pub(super) fn send(socket: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<usize> {
    loop {
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: the pointer and the length describe `bytes`, which is borrowed for the whole call.
        let count = unsafe { libc::send(socket.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), flags) };
        match usize::try_from(count) {
            Ok(count) => return Ok(count),
            Err(_) => retry_if_interrupted(io::Error::last_os_error())?,
        }
    }
}

/// Ends a connection in both directions, for every descriptor of it.
pub(super) fn shut_down(socket: BorrowedFd<'_>) {
    // SAFETY: takes numbers and touches no memory of this process. It fails if the other side is gone, which ends it as
    // well.
    unsafe { libc::shutdown(socket.as_raw_fd(), libc::SHUT_RDWR) };
}

fn retry_if_interrupted(error: io::Error) -> io::Result<()> {
    if error.kind() == io::ErrorKind::Interrupted { Ok(()) } else { Err(error) }
}
