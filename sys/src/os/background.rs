//! Threads of this library, which wait so that no thread of the program has to.

use std::io;
use std::ptr;
use std::sync::Once;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{Builder, JoinHandle};

/// The most threads that wait for pages: any number of connections may have offered pages that never arrive.
const MOST_FETCHES: usize = 16;
/// The stack of such a thread, which makes only system calls.
const FETCH_STACK: usize = 64 << 10;
/// The number of such threads. It protects no memory.
static FETCHES: AtomicUsize = AtomicUsize::new(0);
static HANDLER: Once = Once::new();

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
        HANDLER.call_once(|| {
            // SAFETY: the handler is a function of this library, which only stores a number. The C library forgets it
            // when the library is unloaded. Without memory for it, a child has fewer such threads.
            unsafe { libc::pthread_atfork(None, None, Some(forget_fetches)) };
        });
        let place = Self;
        // The place is given back if there are too many.
        (FETCHES.fetch_add(1, Ordering::Relaxed) < MOST_FETCHES).then_some(place)
    }
}

/// Runs in a forked child: the threads of its parent do not exist there, and so never return their places.
unsafe extern "C" fn forget_fetches() {
    FETCHES.store(0, Ordering::Relaxed);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::testing;

    #[test]
    fn a_forked_child_has_all_places_although_its_parent_uses_them() {
        if !testing::is_child() {
            // Other tests of this process use such threads, too.
            let name = "a_forked_child_has_all_places_although_its_parent_uses_them";
            return testing::run_again(&format!("{}::{name}", module_path!()), || Ok(()));
        }
        let held: Vec<_> = std::iter::from_fn(FetchPlace::take).collect();
        assert_eq!(held.len(), MOST_FETCHES);
        let child = testing::fork(|| {
            let places = [const { None::<FetchPlace> }; MOST_FETCHES].map(|_| FetchPlace::take());
            i32::from(places.iter().any(Option::is_none) || FetchPlace::take().is_some())
        });
        assert_eq!(child.exit_code(), Some(0));
    }
}
