//! Learning that addresses get other pages, from the kernel and without patching anything: `userfaultfd` with its events
//! for unmapped, moved and discarded ranges (Linux 5.7 or later).
//!
//! The kernel holds up whoever changes a watched mapping until the event has been read. So a thread of its own
//! reads them: it never allocates, takes no lock that anyone holds while changing mappings, and ends with the watch.
//! When the call that changed the mapping returns, [`MappingWatch::changed`] is true: the thread says so before it reads.

use std::fmt;
use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use super::call::{checked, checked_long, process_id, uninterrupted};

/// A range of addresses: the first, and the one behind the last.
pub type Addresses = std::ops::Range<u64>;

/// Changes that are remembered one by one; beyond that, everything counts as changed.
const REMEMBERED: usize = 64;

/// Why mappings cannot be watched.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MappingError {
    /// The kernel does not give us a `userfaultfd`.
    #[error(
        "userfaultfd is refused ({0}): sysctl vm.unprivileged_userfaultfd=1, or CAP_SYS_PTRACE, allows it"
    )]
    Refused(io::Error),
    /// The kernel's `userfaultfd` is too old.
    #[error("the kernel's userfaultfd has no events for unmapped ranges ({0}): Linux 5.7 or later has")]
    Features(io::Error),
    /// No thread, or no descriptor to stop it by.
    #[error("starting the thread that reads of changed mappings: {0}")]
    Thread(io::Error),
}

/// What has changed since the last look.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changes {
    ranges: [Addresses; REMEMBERED],
    count: usize,
    all: bool,
}

impl Changes {
    const NONE: Self = Self { ranges: [const { 0..0 }; REMEMBERED], count: 0, all: false };

    fn add(&mut self, range: Addresses) {
        match self.ranges.get_mut(self.count) {
            Some(free) => {
                *free = range;
                self.count += 1;
            }
            None => self.all = true,
        }
    }

    /// The ranges; all there are, when there were too many to remember.
    pub fn ranges(&self) -> &[Addresses] {
        const ALL: &Addresses = &(0..u64::MAX);
        if self.all { std::slice::from_ref(ALL) } else { &self.ranges[..self.count] }
    }
}

/// What the thread and its owner share.
struct Shared {
    /// Something has changed, or is being read: [`QUIET`] or [`STIRRED`].
    state: AtomicU32,
    changes: Mutex<Changes>,
    uffd: OwnedFd,
    stop: OwnedFd,
}

const QUIET: u32 = 0;
const STIRRED: u32 = 1;

/// The kernel tells this process of changed mappings. One thread at a time asks; any may change mappings.
///
/// Not to be used in a forked child, which it does not watch; dropping it there is harmless.
pub struct MappingWatch {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    process: i32,
}

impl fmt::Debug for MappingWatch {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("MappingWatch").field("uffd", &self.shared.uffd).finish_non_exhaustive()
    }
}

// <linux/userfaultfd.h>
const UFFD_USER_MODE_ONLY: i32 = 1;
const UFFD_API: u64 = 0xaa;
const FEATURES: u64 = EVENT_REMAP | EVENT_REMOVE | EVENT_UNMAP;
const EVENT_REMAP: u64 = 1 << 2;
const EVENT_REMOVE: u64 = 1 << 3;
const EVENT_UNMAP: u64 = 1 << 6;
const REGISTER_MODE_WP: u64 = 1 << 1;
const API: libc::Ioctl = libc::_IOWR::<Api>(0xaa, 0x3f);
const REGISTER: libc::Ioctl = libc::_IOWR::<Register>(0xaa, 0x00);
const UNREGISTER: libc::Ioctl = libc::_IOR::<[u64; 2]>(0xaa, 0x01);

#[repr(C)]
struct Api {
    api: u64,
    features: u64,
    ioctls: u64,
}

#[repr(C)]
struct Register {
    start: u64,
    len: u64,
    mode: u64,
    ioctls: u64,
}

/// An event; what the arguments are depends on it.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Message {
    event: u8,
    reserved: [u8; 7],
    arguments: [u64; 3],
}

const MESSAGE_REMAP: u8 = 0x14;
const MESSAGE_REMOVE: u8 = 0x15;
const MESSAGE_UNMAP: u8 = 0x16;

/// One `ioctl` on a `userfaultfd`, on this argument.
fn control<T>(uffd: &OwnedFd, request: libc::Ioctl, argument: &mut T) -> io::Result<()> {
    // SAFETY: each request of this file is used with the type that it was made from; the kernel writes nothing beyond it.
    uninterrupted(|| checked(unsafe { libc::ioctl(uffd.as_raw_fd(), request, &raw mut *argument) })).map(drop)
}

fn open() -> Result<OwnedFd, MappingError> {
    let flags = libc::O_CLOEXEC | libc::O_NONBLOCK;
    // Without kernel faults first: that is allowed to more users.
    let call = |flags: i32| {
        // SAFETY: the call takes flags only, and returns a new descriptor.
        checked_long(unsafe { libc::syscall(libc::SYS_userfaultfd, flags) })
    };
    let fd = call(flags | UFFD_USER_MODE_ONLY).or_else(|_| call(flags)).map_err(MappingError::Refused)?;
    // SAFETY: a new descriptor that is nobody else's; the kernel's numbers fit.
    let uffd = unsafe { OwnedFd::from_raw_fd(fd as i32) };
    let mut api = Api { api: UFFD_API, features: FEATURES, ioctls: 0 };
    control(&uffd, API, &mut api).map_err(MappingError::Features)?;
    Ok(uffd)
}

impl MappingWatch {
    /// Asks the kernel, and starts the thread.
    ///
    /// # Errors
    /// The kernel refuses, or has no such events, or there is no thread to be had.
    pub fn start() -> Result<Self, MappingError> {
        let uffd = open()?;
        // SAFETY: the call takes numbers only, and returns a new descriptor.
        let stop = checked(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) }).map_err(MappingError::Thread)?;
        // SAFETY: a new descriptor that is nobody else's.
        let stop = unsafe { OwnedFd::from_raw_fd(stop) };
        let shared =
            Arc::new(Shared { state: AtomicU32::new(QUIET), changes: Mutex::new(Changes::NONE), uffd, stop });
        let reader = Arc::clone(&shared);
        let thread = without_signals(|| {
            let builder = std::thread::Builder::new().name("nemesia-memory".into());
            builder.stack_size(STACK).spawn(move || reader.read_on())
        });
        let thread = thread.map_err(MappingError::Thread)?;
        Ok(Self { shared, thread: Some(thread), process: process_id() })
    }

    /// From now on, tells of changes of these whole pages. False when the kernel can't: they are not all mapped, are of a
    /// kind that it does not watch, or someone else watches them.
    pub fn watch(&self, pages: &Addresses) -> bool {
        let (start, len) = (pages.start, pages.end - pages.start);
        let mut argument = Register { start, len, mode: REGISTER_MODE_WP, ioctls: 0 };
        control(&self.shared.uffd, REGISTER, &mut argument).is_ok()
    }

    /// Does not tell of these pages any more. Until then, whoever changes them waits for the thread.
    pub fn unwatch(&self, pages: &Addresses) {
        // Pages that are unmapped already are not watched either.
        let _ = control(&self.shared.uffd, UNREGISTER, &mut [pages.start, pages.end - pages.start]);
    }

    /// Whether anything has changed since [`MappingWatch::take`]: one load. Whoever knows that a call which changed a mapping
    /// has returned sees true.
    #[inline]
    pub fn changed(&self) -> bool {
        self.shared.state.load(Ordering::Acquire) != QUIET
    }

    /// What has changed since the last time. Waits while the thread is reading of it.
    pub fn take(&self) -> Changes {
        let mut changes = self.shared.lock();
        self.shared.state.store(QUIET, Ordering::Release);
        std::mem::replace(&mut *changes, Changes::NONE)
    }
}

impl Drop for MappingWatch {
    fn drop(&mut self) {
        // In a forked child there is no thread, and the descriptors are its parent's too.
        let Some(thread) = self.thread.take().filter(|_| self.process == process_id()) else { return };
        let one = 1u64;
        // SAFETY: eight bytes of our own are read.
        let wrote = unsafe { libc::write(self.shared.stop.as_raw_fd(), (&raw const one).cast(), 8) };
        if wrote == 8 {
            // It does nothing that can panic.
            let _ = thread.join();
        }
    }
}

/// Bytes of the thread's stack: it calls nothing but the kernel.
const STACK: usize = 64 << 10;
/// How long the thread rests when the kernel gives it nonsense.
const REST: Duration = Duration::from_millis(1);

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Changes> {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The thread: reads events until it is told to stop.
    fn read_on(&self) {
        let wanted = |fd: &OwnedFd| libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        let mut wait = [wanted(&self.uffd), wanted(&self.stop)];
        loop {
            // SAFETY: two entries of our own are read and written.
            let ready = unsafe { libc::poll(wait.as_mut_ptr(), 2, -1) };
            if ready > 0 && wait[1].revents != 0 {
                return;
            }
            if ready > 0 && !self.read() {
                std::thread::sleep(REST);
            }
        }
    }

    /// Reads what there is. False when the kernel fails.
    fn read(&self) -> bool {
        let mut changes = self.lock();
        // Before the read, which lets whoever changed the mapping go on: it must find us stirred, and wait for the lock.
        self.state.store(STIRRED, Ordering::SeqCst);
        let mut messages = [Message::default(); 16];
        let room = size_of::<Message>() * messages.len();
        // SAFETY: the kernel writes at most `room` bytes into the array, any of which are valid there.
        let got = unsafe { libc::read(self.uffd.as_raw_fd(), messages.as_mut_ptr().cast(), room) };
        let Ok(got) = usize::try_from(got) else {
            // Nobody knows what was missed.
            let again = io::Error::last_os_error().kind() == io::ErrorKind::WouldBlock;
            changes.all |= !again;
            return again;
        };
        for message in &messages[..got / size_of::<Message>()] {
            let [first, second, len] = message.arguments;
            match message.event {
                MESSAGE_REMOVE | MESSAGE_UNMAP => changes.add(first..second),
                // From the first to the second address. The old place is empty; the new one had other pages.
                MESSAGE_REMAP => {
                    changes.add(first..first.saturating_add(len));
                    changes.add(second..second.saturating_add(len));
                }
                _ => changes.all = true,
            }
        }
        true
    }
}

/// Starts a thread that no signal of the program is delivered to.
fn without_signals<T>(start: impl FnOnce() -> T) -> T {
    // SAFETY: the sets are our own and written before they are read; the calling thread gets its mask back.
    unsafe {
        let (mut all, mut before) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
        let started = start();
        libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut());
        started
    }
}
