//! Detection of addresses that get other pages, by the kernel and without patching code: `userfaultfd` with its
//! events for unmapped, moved and discarded ranges (Linux 5.7 or later).
//!
//! The kernel blocks the thread that changes a watched mapping until the event has been read. So a separate
//! thread reads the events. It never allocates, takes no lock that another thread holds while it changes
//! mappings, and ends with the watch.
//!
//! [`MappingWatch::changed`] is true when the call that changed the mapping returns: the reading thread sets
//! the state before it reads. It is true even earlier: addresses are free, and the kernel may give them to
//! another mapping, before the event of the call is read.
//!
//! Only private memory without a file is watched. The pages of a file, shared memory among them, also change by
//! calls on the file and in other processes, for which the kernel has no events.

use std::fmt;
use std::fs::File;
use std::io::{self, BufRead as _, BufReader};
use std::mem::size_of;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use super::background;
use super::call::{checked, process_id, uninterrupted};
use super::descriptor::{above_standard, own};

/// A range of addresses: the first, and the one behind the last.
pub type Addresses = std::ops::Range<u64>;

/// The number of changes that are remembered one by one; if there are more, every range counts as changed.
const REMEMBERED: usize = 64;

/// The reasons for which mappings cannot be watched.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum MappingError {
    /// The kernel refuses a `userfaultfd`.
    #[error(
        "userfaultfd is refused ({0}): sysctl vm.unprivileged_userfaultfd=1, or CAP_SYS_PTRACE, allows it"
    )]
    Refused(io::Error),
    /// The kernel's `userfaultfd` is too old.
    #[error("the kernel's userfaultfd has no events for unmapped ranges ({0}): use Linux 5.7 or later")]
    Features(io::Error),
    /// The thread, or the descriptor that stops it, could not be made.
    #[error("starting the thread that reads mapping events: {0}")]
    Thread(io::Error),
    /// The library that intercepts the calls of this process is not loaded.
    #[error(
        "the calls that change mappings are not intercepted: start the program with \
        LD_PRELOAD=libnemesia_interpose.so (glibc on x86-64 or AArch64)"
    )]
    NotPreloaded,
    /// The library is loaded, but this process can unmap memory by calls that the library does not intercept.
    #[error(
        "libnemesia_interpose.so does not intercept the munmap of this library: preload it (LD_PRELOAD), and do \
        not load this library with RTLD_DEEPBIND"
    )]
    Unseen,
    /// The library is loaded, and refuses.
    #[error(
        "libnemesia_interpose.so could not configure malloc and threads so that their calls are intercepted, or has \
        too many subscribers"
    )]
    Untamed,
}

/// The changes since the last call of [`MappingWatch::settle`].
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

    /// Returns the changed ranges. If there were too many to remember, returns one range of all addresses.
    pub fn ranges(&self) -> &[Addresses] {
        const ALL: &Addresses = &(0..u64::MAX);
        if self.all { std::slice::from_ref(ALL) } else { &self.ranges[..self.count] }
    }
}

/// The state that the thread and its owner share.
struct MappingState {
    /// Whether a mapping has changed, or an event is being read: [`QUIET`] or [`CHANGED`].
    state: AtomicU32,
    changes: Mutex<Changes>,
    uffd: OwnedFd,
    stop: OwnedFd,
}

const QUIET: u32 = 0;
const CHANGED: u32 = 1;

/// The pages that each watch of this process watches, by its descriptor. Before Linux 6.17 the kernel lets one
/// watch end what another one watches, so each watch checks this list first. The lock is held during the system
/// call; no thread that reads events takes it.
static WATCHED: Mutex<Vec<(i32, Addresses)>> = Mutex::new(Vec::new());

fn all_watched() -> MutexGuard<'static, Vec<(i32, Addresses)>> {
    WATCHED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A watch by which the kernel reports changed mappings to this process. One thread at a time queries it; any
/// thread may change mappings.
///
/// Must not be used in a forked child, whose mappings it does not watch. Dropping it there is harmless.
pub struct MappingWatch {
    shared: Arc<MappingState>,
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
const WRITE_PROTECT: libc::Ioctl = libc::_IOWR::<[u64; 3]>(0xaa, 0x06);
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

/// An event. The meaning of its arguments depends on the kind of event.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct MappingMessage {
    event: u8,
    reserved: [u8; 7],
    arguments: [u64; 3],
}

const MESSAGE_REMAP: u8 = 0x14;
const MESSAGE_REMOVE: u8 = 0x15;
const MESSAGE_UNMAP: u8 = 0x16;

/// Makes one `ioctl` on a `userfaultfd`, with this argument.
fn control<T>(uffd: &OwnedFd, request: libc::Ioctl, argument: &mut T) -> io::Result<()> {
    // SAFETY: each request of this file is used with the type from which it was made; the kernel writes nothing
    // beyond that.
    uninterrupted(|| checked(unsafe { libc::ioctl(uffd.as_raw_fd(), request, &raw mut *argument) })).map(drop)
}

fn open() -> Result<OwnedFd, MappingError> {
    let flags = libc::O_CLOEXEC | libc::O_NONBLOCK;
    // First without kernel faults, which the kernel allows to more users.
    let call = |flags: i32| {
        // SAFETY: the call takes flags only.
        let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, flags) };
        // SAFETY: a new descriptor, given to us alone; the kernel's numbers fit.
        unsafe { own(fd as i32) }
    };
    let uffd = call(flags | UFFD_USER_MODE_ONLY).or_else(|_| call(flags)).map_err(MappingError::Refused)?;
    let mut api = Api { api: UFFD_API, features: FEATURES, ioctls: 0 };
    control(&uffd, API, &mut api).map_err(MappingError::Features)?;
    Ok(uffd)
}

impl MappingWatch {
    /// Opens the `userfaultfd` and starts the thread.
    ///
    /// # Errors
    /// The kernel refuses, lacks these events, or no thread can be started.
    pub fn start() -> Result<Self, MappingError> {
        let uffd = open()?;
        // SAFETY: the call takes numbers only.
        let stop = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
        // SAFETY: a new descriptor, given to us alone.
        let stop = unsafe { own(stop) }.map_err(MappingError::Thread)?;
        let shared = Arc::new(MappingState {
            state: AtomicU32::new(QUIET),
            changes: Mutex::new(Changes::NONE),
            uffd,
            stop,
        });
        let reader = Arc::clone(&shared);
        let thread = background::start("nemesia-memory", STACK, move || reader.read_on());
        let thread = thread.map_err(MappingError::Thread)?;
        Ok(Self { shared, thread: Some(thread), process: process_id() })
    }

    /// Watches these whole pages from now on. False if the kernel cannot: they are not all mapped, they are
    /// shared or of a file, or another watch has them.
    pub fn watch(&mut self, pages: &Addresses) -> bool {
        let (start, len) = (pages.start, pages.end - pages.start);
        let mut argument = Register { start, len, mode: REGISTER_MODE_WP, ioctls: 0 };
        let mut watched = all_watched();
        if control(&self.shared.uffd, REGISTER, &mut argument).is_err() {
            return false;
        }
        let mine = (self.id(), pages.clone());
        if !watched.contains(&mine) {
            watched.push(mine);
        }
        drop(watched);
        // The kernel would also accept shared memory, and gaps between mappings.
        let private = is_private(pages);
        if !private {
            self.unwatch(pages);
        }
        private
    }

    /// Stops watching these pages. Until then, a thread that changes them waits for the reading thread.
    pub fn unwatch(&mut self, pages: &Addresses) {
        let (mut watched, id) = (all_watched(), self.id());
        watched.retain(|(owner, it)| *owner != id || it.start < pages.start || pages.end < it.end);
        self.forget(pages, &watched);
    }

    /// Returns the number of this watch among those of the process.
    fn id(&self) -> i32 {
        self.shared.uffd.as_raw_fd()
    }

    /// Stops watching these pages, except those that another watch has.
    fn forget(&self, pages: &Addresses, watched: &[(i32, Addresses)]) {
        let mut from = pages.start;
        while from < pages.end {
            let others = watched.iter().filter(|(owner, it)| *owner != self.id() && it.end > from);
            let next = others.map(|(_, it)| it).min_by_key(|it| it.start);
            let end = next.map_or(pages.end, |it| it.start.clamp(from, pages.end));
            if from < end {
                // Pages that are unmapped already are not watched either.
                let _ = control(&self.shared.uffd, UNREGISTER, &mut [from, end - from]);
            }
            from = next.map_or(pages.end, |it| it.end);
        }
    }

    /// Returns whether a mapping has changed since [`MappingWatch::settle`], or changes now. Makes one system
    /// call. If this thread has got addresses that were watched, or knows that a call which changed them has
    /// returned, the result is true.
    #[inline]
    pub fn changed(&self) -> bool {
        // Asked before the state is read: the reading thread sets the state before the change is over.
        let changing = self.shared.is_changing();
        changing || self.shared.state.load(Ordering::Acquire) != QUIET
    }

    /// Returns whether a mapping has changed since [`MappingWatch::settle`] by a call that has returned. Makes
    /// no system call. May miss a call that has not returned yet: see [`MappingWatch::changed`].
    #[inline]
    pub fn has_changed(&self) -> bool {
        self.shared.state.load(Ordering::Acquire) != QUIET
    }

    /// Returns the changes since the last call, perhaps none. Waits while the thread reads an event. Also waits
    /// briefly while a change is in progress that the thread has not read yet, so that the changing thread can
    /// go on.
    pub fn settle(&self) -> Changes {
        if self.shared.state.load(Ordering::Acquire) == QUIET {
            // A yield is not enough: it would starve a thread of a lower priority.
            std::thread::sleep(MOMENT);
        }
        let mut changes = self.shared.lock();
        self.shared.state.store(QUIET, Ordering::Release);
        std::mem::replace(&mut *changes, Changes::NONE)
    }
}

/// Returns whether these pages are all mapped, private, and not of a file.
pub(crate) fn is_private(pages: &Addresses) -> bool {
    let mut from = pages.start;
    for mapping in mappings() {
        if mapping.range.end <= from {
            continue;
        }
        if mapping.range.start > from || !mapping.private {
            return false;
        }
        from = mapping.range.end;
        if from >= pages.end {
            return true;
        }
    }
    false
}

/// One mapping of this process.
struct ObservedMapping {
    range: Addresses,
    private: bool,
}

/// Returns the mappings of this process, by address. None if the kernel does not show them.
fn mappings() -> impl Iterator<Item = ObservedMapping> {
    let lines =
        File::open("/proc/self/maps").and_then(above_standard).map(|file| BufReader::new(file).split(b'\n'));
    let lines = lines.into_iter().flatten().map_while(Result::ok);
    lines.filter_map(|line| mapping(&String::from_utf8_lossy(&line)))
}

/// Parses a line `start-end rwxp offset device inode path`.
fn mapping(line: &str) -> Option<ObservedMapping> {
    let mut words = line.split_ascii_whitespace();
    let (start, end) = words.next()?.split_once('-')?;
    let hex = |digits| u64::from_str_radix(digits, 16).ok();
    let range = hex(start)?..hex(end)?;
    let shared = !words.next()?.ends_with('p');
    let (inode, path) = (words.nth(2)?, words.next());
    // The kernel's internal file of huge pages, which only this process has.
    let private = !shared && (inode == "0" || path == Some("/anon_hugepage"));
    Some(ObservedMapping { range, private })
}

impl Drop for MappingWatch {
    fn drop(&mut self) {
        // A forked child has no such thread, and its parent has the same descriptors.
        let Some(thread) = self.thread.take().filter(|_| self.process == process_id()) else { return };
        // A child may keep the descriptor open, and thus the watch. Without this call, no thread would then
        // read the events.
        self.forget_all();
        let one = 1u64;
        // SAFETY: eight bytes of our own are read.
        let wrote = unsafe { libc::write(self.shared.stop.as_raw_fd(), (&raw const one).cast(), 8) };
        if wrote == 8 {
            // The thread cannot panic.
            let _ = thread.join();
        }
    }
}

impl MappingWatch {
    fn forget_all(&self) {
        let (mut watched, id) = (all_watched(), self.id());
        let mine: Vec<_> = watched.extract_if(.., |(owner, _)| *owner == id).map(|(_, it)| it).collect();
        if mine.is_empty() {
            return;
        }
        // One mapping at a time: an unsupported mapping would fail the request for the whole range.
        for mapping in mappings().filter(|mapping| mapping.private) {
            for pages in &mine {
                let (start, end) = (pages.start.max(mapping.range.start), pages.end.min(mapping.range.end));
                if start < end {
                    self.forget(&(start..end), &watched);
                }
            }
        }
    }
}

/// The bytes of the thread's stack. The thread makes only system calls.
const STACK: usize = 64 << 10;
/// The time for which the thread sleeps if the kernel returns invalid data.
const REST: Duration = Duration::from_millis(1);
/// The time for which a query sleeps while a mapping is being changed.
const MOMENT: Duration = Duration::from_micros(20);

impl MappingState {
    fn lock(&self) -> MutexGuard<'_, Changes> {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether a call is changing watched mappings and its event has not been read. The kernel checks
    /// that first in this request, whose argument, an empty range, is always invalid.
    #[inline]
    fn is_changing(&self) -> bool {
        let mut empty = [0u64; 3];
        // SAFETY: the argument has the size that the request has; the kernel refuses it.
        let refused = unsafe { libc::ioctl(self.uffd.as_raw_fd(), WRITE_PROTECT, empty.as_mut_ptr()) };
        // The state is read after this fence, and was written before the changing thread could go on.
        fence(Ordering::SeqCst);
        refused < 0 && io::Error::last_os_error().kind() == io::ErrorKind::WouldBlock
    }

    /// Reads events until the owner stops the thread.
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

    /// Reads the pending events. False if the kernel fails.
    fn read(&self) -> bool {
        let mut changes = self.lock();
        // Before the read, which lets the changing thread go on: that thread must find the state CHANGED, and
        // wait for the lock.
        self.state.store(CHANGED, Ordering::SeqCst);
        let mut messages = [MappingMessage::default(); 16];
        let room = size_of::<MappingMessage>() * messages.len();
        // SAFETY: the kernel writes at most `room` bytes into the array, any of which are valid there.
        let got = unsafe { libc::read(self.uffd.as_raw_fd(), messages.as_mut_ptr().cast(), room) };
        let Ok(got) = usize::try_from(got) else {
            // Any event may have been missed.
            let again = io::Error::last_os_error().kind() == io::ErrorKind::WouldBlock;
            changes.all |= !again;
            return again;
        };
        for message in &messages[..got / size_of::<MappingMessage>()] {
            let [first, second, len] = message.arguments;
            match message.event {
                MESSAGE_REMOVE | MESSAGE_UNMAP => changes.add(first..second),
                // Moved from the first address to the second. The old range is empty; the new one had other
                // pages.
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
