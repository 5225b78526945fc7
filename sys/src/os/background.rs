//! Threads of this library, which wait so that no thread of the program has to.

use std::io;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{Builder, JoinHandle};

/// The most threads that wait for pages: any number of connections may have offered pages that never arrive.
const MOST_FETCHES: usize = 16;
/// The stack of such a thread, which makes only system calls.
const FETCH_STACK: usize = 64 << 10;
/// The number of such threads. It protects no memory.
static FETCHES: AtomicUsize = AtomicUsize::new(0);

/// Starts a thread to which no signal of the program is delivered.
///
/// # Errors
/// There can be no further thread. `work` is dropped.
pub(super) fn start(
    name: &str,
    stack: usize,
    work: impl FnOnce() + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    let builder = Builder::new().name(name.into()).stack_size(stack);
    // SAFETY: the sets are local variables and written before they are read; the calling thread gets its mask
    // back.
    unsafe {
        let (mut all, mut before) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
        let started = builder.spawn(work);
        libc::pthread_sigmask(libc::SIG_SETMASK, &before, ptr::null_mut());
        started
    }
}

/// One of the threads that may wait for pages.
struct FetchPlace;

impl FetchPlace {
    fn take() -> Option<Self> {
        let place = Self;
        // The place is given back if there are too many.
        (FETCHES.fetch_add(1, Ordering::Relaxed) < MOST_FETCHES).then_some(place)
    }
}

impl Drop for FetchPlace {
    fn drop(&mut self) {
        FETCHES.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A wait for pages of another process, in a thread of its own: no other thread waits. If it is dropped, the thread
/// ends when the pages are there, or when their process has ended.
#[derive(Debug)]
pub(crate) struct PageFetch(JoinHandle<()>);

impl PageFetch {
    /// Runs `wait` in another thread. `None` if there are as many as may be, or if there can be no further one.
    pub(super) fn begin(wait: impl FnOnce() + Send + 'static) -> Option<Self> {
        let place = FetchPlace::take()?;
        let run = move || {
            let _place = place;
            wait();
        };
        start("nemesia-pages", FETCH_STACK, run).ok().map(Self)
    }

    /// Returns whether the wait has ended.
    pub(crate) fn is_over(&self) -> bool {
        self.0.is_finished()
    }
}
