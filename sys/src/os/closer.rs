//! Closing descriptors that other processes have sent, away from the thread that makes progress.
//!
//! `close(2)` can block for as long as the sender of a descriptor likes: a TCP socket with `SO_LINGER` and data that
//! nobody reads, or a file of a FUSE file system whose process does not answer. The kernel also closes what nobody has
//! received: with the last reference to a Unix socket it closes the descriptors that lie in its queue, in the thread
//! that closed the socket.
//!
//! So a helper thread closes them. It is started when there is something to close, and ends when nothing is left. At
//! most `MOST_THREADS` run at once, each for one `close` that blocks. While more than `MOST_WAITING` descriptors wait,
//! nobody accepts unauthenticated connections (`has_room`). No thread is ever waited for: not by an endpoint that is
//! closed or dropped, and not at the end of the process, where the kernel interrupts a close that lingers. The threads
//! block all signals. A library that is unloaded (`dlclose`) within that time must not have been attacked before.

use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::{Mutex, MutexGuard, TryLockError};

use super::call::process_id;
use super::mapping::without_signals;
use super::message;
use super::store;

/// Threads at once.
const MOST_THREADS: usize = 16;
/// Descriptors that wait before no unauthenticated connection is accepted any more.
const MOST_WAITING: usize = 128;
/// Packets of one socket that are taken apart; the kernel closes what the others carry.
const MOST_PACKETS: usize = 1024;
/// Bytes of a thread's stack.
const STACK: usize = 128 << 10;
/// How often the lock is tried. A forked child may find it locked for ever, by a thread that it does not have.
const TRIES: usize = 1000;

/// A descriptor that another process has sent or named, of a kind that is not known yet. It may be dropped anywhere:
/// unless it is memory, a helper thread closes it.
#[derive(Debug)]
pub struct ForeignFd(ManuallyDrop<OwnedFd>);

impl ForeignFd {
    /// The descriptor itself, for a caller that has found that closing it does not block.
    pub fn into_inner(self) -> OwnedFd {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: taken once: neither `this` nor its field is used or dropped after that.
        unsafe { ManuallyDrop::take(&mut this.0) }
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
        if !store::is_memory(fd.as_fd()) {
            close(Unwanted::Descriptor(fd));
        }
    }
}

/// What is to be closed.
#[derive(Debug)]
pub(super) enum Unwanted {
    Descriptor(OwnedFd),
    /// A Unix socket of ours with packets that nobody has received.
    Queue(OwnedFd),
}

#[derive(Debug)]
struct Waiting {
    /// The threads are this process's.
    process: i32,
    threads: usize,
    items: Vec<Unwanted>,
}

static WAITING: Mutex<Waiting> = Mutex::new(Waiting { process: 0, threads: 0, items: Vec::new() });

/// The lock, unless a thread holds it that does not run.
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

/// Has a helper thread close it. Returns at once.
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

/// Whether more descriptors of strangers may be taken in.
pub(crate) fn has_room() -> bool {
    waiting().is_none_or(|waiting| waiting.items.len() < MOST_WAITING)
}

fn spawn(work: impl FnOnce() + Send + 'static) -> bool {
    let builder = std::thread::Builder::new().name("nemesia-closer".into()).stack_size(STACK);
    without_signals(|| builder.spawn(work)).is_ok()
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
    /// May block.
    fn close(self) {
        match self {
            Self::Descriptor(fd) => close_soon(&fd),
            Self::Queue(socket) => {
                for _ in 0..MOST_PACKETS {
                    match message::receive(socket.as_fd(), &mut [0]) {
                        Ok(packet) if packet.len == 0 && packet.fds.is_empty() => break,
                        Ok(packet) => packet.fds.into_iter().for_each(|fd| close_soon(&fd.into_inner())),
                        Err(errno) if errno.raw_os_error() == Some(libc::EAGAIN) => break,
                        // A reset is reported once, before what the peer had sent.
                        Err(_) => {}
                    }
                }
            }
        }
    }
}

/// Lets the close that follows not linger. Where that does not help, the close blocks this thread alone.
fn close_soon(fd: &OwnedFd) {
    let no = libc::linger { l_onoff: 0, l_linger: 0 };
    let len = size_of_val(&no) as libc::socklen_t;
    // SAFETY: the value is alive and of the length that is passed. What is no socket refuses.
    unsafe {
        libc::setsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, libc::SO_LINGER, (&raw const no).cast(), len);
    }
}

/// Ends a Unix socket of ours for both sides and closes it: here if its queue is empty or holds plain bytes, else in a
/// helper thread.
pub(super) fn close_socket(socket: OwnedFd) {
    // From here on the peer can queue nothing more.
    // SAFETY: takes no memory. It fails only where nobody is there any more.
    unsafe { libc::shutdown(socket.as_raw_fd(), libc::SHUT_RDWR) };
    if !message::drop_plain_packets(socket.as_fd()) {
        close(Unwanted::Queue(socket));
    }
}

/// A socket whose last close blocks for up to `seconds`, and the peer that does not read, which has to stay open.
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
