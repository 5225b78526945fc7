//! Closing descriptors that other processes have sent, in a thread other than the one that makes progress.
//!
//! `close(2)` can block for as long as the sender of a descriptor chooses: on a TCP socket with `SO_LINGER` and
//! unread data, or on a file of a FUSE file system whose server does not answer. The kernel also closes
//! descriptors that were sent but not received: when the last reference to a Unix socket is closed, the kernel
//! closes the descriptors in its queue, in the closing thread.
//!
//! So a helper thread closes them. It starts when there is a descriptor to close, and ends when none is left.
//! At most `MOST_THREADS` run at once, each for one `close` that blocks. While more than `MOST_WAITING`
//! descriptors wait, no unauthenticated connection is accepted (`has_room`). Nothing ever waits for these
//! threads: neither an endpoint that is closed or dropped, nor the end of the process, at which the kernel
//! interrupts a lingering close. The threads block all signals. If the library is unloaded (`dlclose`) while
//! such a close blocks, its thread has no code to return to: a library that was attacked must not be unloaded.

use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::{Mutex, MutexGuard, TryLockError};

use super::background;
use super::call::{checked, process_id};

/// The largest number of threads at once.
const MOST_THREADS: usize = 16;
/// The number of waiting descriptors above which no unauthenticated connection is accepted.
const MOST_WAITING: usize = 128;
/// The bytes of a thread's stack.
const STACK: usize = 128 << 10;
/// The number of tries for the lock. A forked child may find it locked for ever, by a thread that the child
/// does not have.
const TRIES: usize = 1000;

/// A descriptor that another process has sent or named, and whose type is not known yet. It may be dropped in
/// any thread: unless it is memory, a helper thread closes it.
#[derive(Debug)]
pub struct ForeignFd(ManuallyDrop<OwnedFd>);

impl ForeignFd {
    /// Returns the descriptor itself, for a caller that has verified that closing it does not block.
    pub fn into_inner(self) -> OwnedFd {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: taken once: neither `this` nor its field is used or dropped after that.
        unsafe { ManuallyDrop::take(&mut this.0) }
    }

    /// Returns a copy of the descriptor.
    pub(crate) fn try_clone(&self) -> io::Result<Self> {
        self.0.try_clone().map(Self::from)
    }
}

impl From<OwnedFd> for ForeignFd {
    fn from(fd: OwnedFd) -> Self {
        Self(ManuallyDrop::new(fd))
    }
}

impl AsFd for ForeignFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for ForeignFd {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl Drop for ForeignFd {
    fn drop(&mut self) {
        // SAFETY: taken once: the field is not used after this, and not dropped by itself.
        let fd = unsafe { ManuallyDrop::take(&mut self.0) };
        if !is_memory(fd.as_fd()) {
            close(Unwanted::Descriptor(fd));
        }
    }
}

/// Returns whether this is a file on tmpfs or hugetlbfs, the only ones that support the query for seals. The
/// query returns at once for any file, whereas `fstat` and `fstatfs` of a file on FUSE wait for the serving
/// process.
pub(super) fn is_memory(fd: BorrowedFd<'_>) -> bool {
    // SAFETY: takes no pointers.
    checked(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GET_SEALS) }).is_ok()
}

/// A descriptor to be closed.
#[derive(Debug)]
pub(super) enum Unwanted {
    Descriptor(OwnedFd),
    /// A Unix socket of ours with unreceived packets, and the function that receives them and passes their
    /// descriptors to [`close_soon`].
    Queue(OwnedFd, fn(BorrowedFd<'_>)),
}

#[derive(Debug)]
struct Waiting {
    /// The process that the threads belong to.
    process: i32,
    threads: usize,
    items: Vec<Unwanted>,
}

static WAITING: Mutex<Waiting> = Mutex::new(Waiting { process: 0, threads: 0, items: Vec::new() });

/// Returns the lock. `None` if a thread that does not run holds it.
fn waiting() -> Option<MutexGuard<'static, Waiting>> {
    for _ in 0..TRIES {
        let mut waiting = match WAITING.try_lock() {
            Ok(waiting) => waiting,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => {
                std::thread::yield_now();
                continue;
            }
        };
        let process = process_id();
        if waiting.process != process {
            // A forked child has copies of the descriptors, but not of the threads.
            waiting.process = process;
            waiting.threads = 0;
        }
        return Some(waiting);
    }
    None
}

/// Queues the descriptor for a helper thread. Returns at once.
pub(super) fn close(item: Unwanted) {
    let Some(mut waiting) = waiting() else {
        let _ = spawn(move || item.close());
        return;
    };
    waiting.items.push(item);
    if waiting.threads < MOST_THREADS {
        waiting.threads += 1;
        if !spawn(close_all) {
            // The next call tries again.
            waiting.threads -= 1;
        }
    }
}

/// Returns whether more descriptors of unauthenticated connections may be accepted.
pub(crate) fn has_room() -> bool {
    waiting().is_none_or(|waiting| waiting.items.len() < MOST_WAITING)
}

fn spawn(work: impl FnOnce() + Send + 'static) -> bool {
    background::start("nemesia-closer", STACK, work).is_ok()
}

fn close_all() {
    while let Some(mut waiting) = waiting() {
        let Some(item) = waiting.items.pop() else {
            waiting.threads = waiting.threads.saturating_sub(1);
            return;
        };
        drop(waiting);
        item.close();
    }
}

impl Unwanted {
    /// Closes it, which may block.
    fn close(self) {
        match self {
            Self::Descriptor(fd) => close_soon(&fd),
            Self::Queue(socket, empty) => empty(socket.as_fd()),
        }
    }
}

/// Makes the following close not linger. If the kernel refuses, the close blocks this thread alone.
pub(super) fn close_soon(fd: &OwnedFd) {
    let no = libc::linger { l_onoff: 0, l_linger: 0 };
    let len = size_of_val(&no) as libc::socklen_t;
    // SAFETY: the value is alive and has the length that is passed. The call fails if the descriptor is no
    // socket.
    unsafe {
        libc::setsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, libc::SO_LINGER, (&raw const no).cast(), len);
    }
}

/// Returns a socket whose last close blocks for up to `seconds`, and its peer, which does not read and must
/// stay open.
#[cfg(test)]
pub(crate) fn lingering(seconds: std::ffi::c_int) -> (std::net::TcpStream, std::net::TcpStream) {
    use std::io::Write as _;
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut stream = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (other, _) = listener.accept().unwrap();
    stream.set_nonblocking(true).unwrap();
    for _ in 0..2 {
        while stream.write(&[1; 1 << 16]).is_ok() {}
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    stream.set_nonblocking(false).unwrap();
    let linger = libc::linger { l_onoff: 1, l_linger: seconds };
    let len = size_of_val(&linger) as libc::socklen_t;
    // SAFETY: the value is alive and of the length that is passed.
    let result = unsafe {
        libc::setsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_LINGER,
            (&raw const linger).cast(),
            len,
        )
    };
    assert_eq!(result, 0);
    (stream, other)
}
