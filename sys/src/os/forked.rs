//! Sockets that a forked child does not keep.
//!
//! A peer takes the end of a connection for the end of this process. A child made by `fork` has a copy of every
//! socket, and so hides the end of its parent for as long as it lives. So the child puts an unconnected socket in the
//! place of each: a handler of `pthread_atfork(3)`, which the C library calls in the child before `fork` returns. The
//! numbers stay in use, so that the drop of their owners there closes nothing that the child has opened meanwhile.
//!
//! A socket is known by its number and by its cookie, which the kernel gives to one socket only. So a number that was
//! closed, and that another file has now, is left alone, and nothing needs to be unregistered.
//!
//! A child that no handler reaches keeps its copies: one made by `vfork`, `posix_spawn` or `clone(2)` itself, if it
//! does not `exec`, and one that a thread forks between the making of a socket and its registration here. A death is
//! then seen by its pidfd, inside one machine.

use std::ffi::c_int;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::sync::Once;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// The numbers of descriptors that are registered: a child keeps those above.
const MOST: usize = 1 << 16;

/// The cookie of the socket with each number, when it was registered; 0 if there was none.
static COOKIES: [AtomicU64; MOST] = [const { AtomicU64::new(0) }; MOST];
/// One more than the highest number that is registered.
static END: AtomicUsize = AtomicUsize::new(0);
static HANDLER: Once = Once::new();

/// Registers a socket of this process: a forked child does not keep it. If the kernel (before 4.12) gives it no cookie,
/// nothing happens.
pub(crate) fn close_in_children(socket: BorrowedFd<'_>) {
    let number = socket.as_raw_fd();
    let place = usize::try_from(number).ok().and_then(|at| Some((at, COOKIES.get(at)?)));
    let Some((at, place)) = place else { return };
    HANDLER.call_once(|| {
        // SAFETY: the handler is a function of this library, which makes only system calls. The C library forgets it
        // when the library is unloaded. Without memory for it, a child keeps the sockets.
        unsafe { libc::pthread_atfork(None, None, Some(leave_sockets)) };
    });
    place.store(cookie(number), Ordering::Relaxed);
    END.fetch_max(at + 1, Ordering::Relaxed);
}

/// Runs in a forked child, in its only thread. It must not allocate, lock or fail.
unsafe extern "C" fn leave_sockets() {
    let end = END.swap(0, Ordering::Relaxed);
    let mut other = None;
    for (number, place) in (0..).zip(COOKIES.iter().take(end)) {
        let known = place.swap(0, Ordering::Relaxed);
        if known == 0 || cookie(number) != known {
            continue;
        }
        // SAFETY: takes no pointers.
        let other = *other.get_or_insert_with(|| unsafe {
            libc::socket(libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0)
        });
        // SAFETY: takes no pointers. The number is one of ours. If no descriptor is left, the call fails.
        unsafe { libc::dup3(other, number, libc::O_CLOEXEC) };
    }
    if let Some(other) = other {
        // SAFETY: made above, and known only here.
        unsafe { libc::close(other) };
    }
}

/// Returns the cookie of a socket; 0 if the number is not that of a socket, or the kernel has none.
fn cookie(number: RawFd) -> u64 {
    let (mut cookie, mut len) = (0_u64, size_of::<u64>() as libc::socklen_t);
    // From asm-generic/socket.h; some C libraries lack it.
    const SO_COOKIE: c_int =
        if cfg!(any(target_arch = "sparc", target_arch = "sparc64")) { 0x3b } else { 57 };
    // SAFETY: the kernel writes at most the length announced to a variable of that size.
    let result = unsafe {
        libc::getsockopt(number, libc::SOL_SOCKET, SO_COOKIE, (&raw mut cookie).cast(), &raw mut len)
    };
    if result == 0 { cookie } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::testing;
    use std::io::Read as _;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::{AsFd as _, FromRawFd as _, OwnedFd};
    use std::os::unix::net::UnixStream;

    fn connected() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (stream, listener.accept().unwrap().0)
    }

    #[test]
    fn a_child_holds_no_registered_socket_and_its_parent_keeps_it() {
        let (ours, mut theirs) = connected();
        close_in_children(ours.as_fd());
        let (ready, parents) = UnixStream::pair().unwrap();
        let child = testing::fork(|| {
            // SAFETY: one byte of a constant.
            unsafe { libc::write(ready.as_raw_fd(), c"x".as_ptr().cast(), 1) };
            testing::sleep_forever()
        });
        (&parents).read_exact(&mut [0]).unwrap();
        theirs.set_nonblocking(true).unwrap();
        assert_eq!(theirs.read(&mut [0]).unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
        theirs.set_nonblocking(false).unwrap();
        drop(ours);
        // The child lives.
        assert_eq!(theirs.read(&mut [0]).unwrap(), 0);
        drop(child);
    }

    #[test]
    fn the_number_stays_in_use_in_the_child_and_another_file_of_that_number_is_left_alone() {
        let ((ours, _theirs), (closed, _)) = (connected(), connected());
        close_in_children(ours.as_fd());
        close_in_children(closed.as_fd());
        let number = closed.as_raw_fd();
        drop(closed);
        let null = std::fs::File::open("/dev/null").unwrap();
        // Another test may have taken the number first: then that is the file which must stay.
        // SAFETY: takes no pointers.
        let copy = unsafe { libc::fcntl(null.as_raw_fd(), libc::F_DUPFD_CLOEXEC, number) };
        // SAFETY: a new descriptor.
        let copy = unsafe { OwnedFd::from_raw_fd(copy) };
        let child = testing::fork(|| {
            let is_open = |fd: RawFd| {
                // SAFETY: takes no pointers.
                unsafe { libc::fcntl(fd, libc::F_GETFD) >= 0 }
            };
            let is_socket = cookie(copy.as_raw_fd()) != 0;
            i32::from(!is_open(ours.as_raw_fd()) || !is_open(copy.as_raw_fd()) || is_socket)
        });
        assert_eq!(child.exit_code(), Some(0));
    }
}
