//! New descriptors: none is below 3, where programs expect their standard streams.
//!
//! The kernel gives each new descriptor the smallest free number. In a program that has closed its standard streams,
//! as daemons do, that would be 0, 1 or 2, and the next line that the program prints would go into a connection or a
//! segment. So each descriptor that the library makes or receives comes from here ([`own`], [`above_standard`]), and
//! other libraries make theirs while [`occupy_standard`] keeps the low numbers taken. `tests/tidy` checks that.
//! Exempt are copies (`try_clone` of the standard library never returns a low number), and files that the standard
//! library opens for reading and closes within one call.

use std::fs::File;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;

use super::call::checked;

/// The largest number of a standard stream.
const LAST_STANDARD: RawFd = libc::STDERR_FILENO;

/// Takes ownership of the descriptor that a system call has made. Call at once: it reads `errno`.
///
/// # Errors
/// The system call has failed, or the number is low and no other one is free.
///
/// # Safety
/// The argument is the result of a system call that returns a new descriptor, close-on-exec, or -1. No other code owns
/// the descriptor.
pub(crate) unsafe fn own(result: RawFd) -> io::Result<OwnedFd> {
    let fd = checked(result)?;
    // SAFETY: a new descriptor, which the caller gives away.
    above_standard(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Returns what was just made, under a number above those of the standard streams.
///
/// # Errors
/// The number is low, and no other one is free.
pub(crate) fn above_standard<T: AsFd + From<OwnedFd>>(new: T) -> io::Result<T> {
    if new.as_fd().as_raw_fd() > LAST_STANDARD {
        return Ok(new);
    }
    // The standard library gives no copy a low number.
    new.as_fd().try_clone_to_owned().map(T::from)
}

/// Returns two connected sockets.
pub(crate) fn pair() -> io::Result<(UnixStream, UnixStream)> {
    let (one, other) = UnixStream::pair()?;
    Ok((above_standard(one)?, above_standard(other)?))
}

/// Listens at an address of this machine, without blocking.
#[cfg(any(test, feature = "internals"))]
pub(crate) fn listen(at: SocketAddr) -> io::Result<TcpListener> {
    let listener = TcpListener::bind(at).and_then(above_standard)?;
    listener.set_nonblocking(true)?;
    begin_listening(&listener)?;
    Ok(listener)
}

/// Begins to listen on a socket that has a port and does not block. The kernel queues as many connections as the system
/// permits (the standard library asks for 128): if the queue is full, it drops requests, and callers repeat theirs
/// after seconds only.
pub(crate) fn begin_listening(listener: &TcpListener) -> io::Result<()> {
    // SAFETY: takes no pointers.
    checked(unsafe { libc::listen(listener.as_raw_fd(), libc::SOMAXCONN) })?;
    check_accept(listener.as_fd())
}

/// Checks that connections may be accepted from a new listener, which does not block. Where a sandbox refuses that,
/// each caller would wait for ever.
pub(super) fn check_accept(listener: BorrowedFd<'_>) -> io::Result<()> {
    let (address, flags) = (std::ptr::null_mut(), libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK);
    // SAFETY: null addresses are allowed. A new descriptor is given to us alone.
    let accepted = unsafe { own(libc::accept4(listener.as_raw_fd(), address, address.cast(), flags)) };
    match accepted.map_err(|error| (error.raw_os_error(), error)) {
        Err((Some(libc::EPERM | libc::EACCES | libc::ENOSYS), error)) => Err(io::Error::new(
            error.kind(),
            format!("accept4 is refused here: {error}: permit the call (seccomp of a container)"),
        )),
        // There is no connection yet, or one whose caller was faster than any that knows the address.
        _ => Ok(()),
    }
}

/// Accepts a connection.
pub(crate) fn accept(listener: &TcpListener) -> io::Result<(TcpStream, SocketAddr)> {
    let (stream, from) = listener.accept()?;
    Ok((above_standard(stream)?, from))
}

/// Keeps the free numbers of the standard streams taken until the result is dropped: for a call of another library
/// that makes descriptors. What the program writes there meanwhile fails, as before.
pub(crate) fn occupy_standard() -> Vec<File> {
    let null = || File::open("/dev/null").ok().filter(|file| file.as_raw_fd() <= LAST_STANDARD);
    std::iter::from_fn(null).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::{HandoffListener, testing};

    /// In a process of its own: other tests open descriptors at the same time.
    fn without_standard_input(name: &str, body: impl FnOnce()) {
        if !testing::is_child() {
            return testing::run_again(name, || Ok(()));
        }
        // SAFETY: nothing in this process reads its standard input.
        unsafe { libc::close(libc::STDIN_FILENO) };
        body();
        // SAFETY: takes no pointers.
        assert!(unsafe { libc::fcntl(libc::STDIN_FILENO, libc::F_GETFD) } < 0, "the number stays free");
    }

    #[test]
    fn a_new_descriptor_leaves_the_numbers_of_closed_streams_free() {
        without_standard_input(
            concat!(module_path!(), "::a_new_descriptor_leaves_the_numbers_of_closed_streams_free"),
            || {
                // SAFETY: takes no pointers.
                let made = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
                assert_eq!(made, libc::STDIN_FILENO);
                // SAFETY: a new descriptor, given to us alone.
                let owned = unsafe { own(made) }.unwrap();
                assert!(owned.as_raw_fd() > LAST_STANDARD);
                let (one, other) = pair().unwrap();
                assert!(one.as_raw_fd() > LAST_STANDARD && other.as_raw_fd() > LAST_STANDARD);
            },
        );
    }

    /// Callers would wait for ever.
    #[test]
    fn a_process_that_may_not_accept_does_not_listen() {
        const NAME: &str = concat!(module_path!(), "::a_process_that_may_not_accept_does_not_listen");
        if !testing::is_child() {
            return testing::run_again(NAME, || Ok(()));
        }
        let place = "127.0.0.1:0".parse().unwrap();
        assert!(listen(place).is_ok() && HandoffListener::bind().is_ok());
        testing::refuse_call(libc::SYS_accept4);
        let errors =
            [listen(place).unwrap_err().to_string(), HandoffListener::bind().unwrap_err().to_string()];
        assert!(errors.iter().all(|error| error.contains("accept4 is refused here")), "{errors:?}");
    }

    #[test]
    fn other_libraries_get_no_number_of_a_closed_stream() {
        without_standard_input(
            concat!(module_path!(), "::other_libraries_get_no_number_of_a_closed_stream"),
            || {
                let occupied = occupy_standard();
                assert_eq!(occupied.len(), 1);
                assert!(File::open("/dev/null").unwrap().as_raw_fd() > LAST_STANDARD);
            },
        );
    }
}
