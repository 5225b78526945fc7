//! Memory that the process itself reports as released: by its allocator, by another runtime, or by the
//! preloaded library `libnemesia_interpose.so`, which intercepts calls of the C library (`ffi/interpose`).

use std::ffi::c_void;
use std::mem::transmute;
use std::ptr;

use nemesia_core::regcache::Range;
use nemesia_core::regcache::releases::{Released, Releases, SeenReleases};

use super::mapping::MappingError;
use super::numa::page_size;

/// The number of ranges that are remembered one by one, for the whole process. If a cache is further behind, it
/// treats every range as released.
pub(crate) const REMEMBERED: usize = 256;

static RELEASES: Releases<REMEMBERED> = Releases::new();

/// Reports to the caches of this process that addresses are about to get other pages, or have got them. It
/// reaches the caches with [`Telling::Program`](crate::regcache::Telling::Program) or
/// [`Telling::Interposed`](crate::regcache::Telling::Interposed). Call it before the change. Call it again
/// after the change if other threads may use these addresses meanwhile, as they may while pages are discarded.
///
/// May be called from any thread in any state, for example in a signal handler or an allocator: it takes no
/// lock, allocates nothing, and preserves `errno`.
pub fn memory_released(address: u64, bytes: u64) {
    RELEASES.report(Range { start: address, end: address.saturating_add(bytes) });
}

extern "C" fn report(address: *const c_void, bytes: usize) {
    memory_released(address.addr() as u64, bytes as u64);
}

/// The position of one cache in the list of released ranges.
#[derive(Debug)]
pub(crate) struct ReleaseListener(SeenReleases);

impl ReleaseListener {
    /// Returns a listener for ranges that are reported from now on.
    pub(crate) fn new() -> Self {
        Self(RELEASES.now())
    }

    /// Does as [`ReleaseListener::new`], if the calls of this process are intercepted.
    ///
    /// # Errors
    /// The library was not preloaded, or does not intercept our calls.
    pub(crate) fn interposed() -> Result<Self, MappingError> {
        // SAFETY: a name that ends with zero.
        let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"nemesia_interposer_1".as_ptr()) };
        // SAFETY: the function of this name has this type; null is `None`.
        let subscribe = unsafe { transmute::<*mut c_void, Option<Subscribe>>(found) };
        // A second subscription of the same function has no effect.
        match subscribe.ok_or(MappingError::NotPreloaded)?(report) {
            0 if is_seen() => Ok(Self::new()),
            0 => Err(MappingError::Unseen),
            _ => Err(MappingError::Untamed),
        }
    }

    /// Returns whether a range was reported.
    #[inline(always)]
    pub(crate) fn has_more(&self) -> bool {
        RELEASES.has_more(self.0)
    }

    /// Returns the next range; all addresses if the range was overwritten.
    pub(crate) fn next(&mut self) -> Option<Range> {
        const ALL: Range = Range { start: 0, end: u64::MAX };
        RELEASES.next(&mut self.0).map(|released| match released {
            Released::Range(range) => range,
            Released::All => ALL,
        })
    }
}

/// Subscribes the function that is called for each release. 0 is success.
type Subscribe = extern "C" fn(extern "C" fn(*const c_void, usize)) -> i32;

/// The number of times that a test page is unmapped, while other threads report too many ranges to find it.
const TRIES: usize = 100;

/// Returns whether unmapping a page of our own is reported.
fn is_seen() -> bool {
    (0..TRIES).find_map(|_| probe()).unwrap_or(false)
}

/// `None` if undecided.
fn probe() -> Option<bool> {
    let (bytes, rights) = (page_size(), libc::PROT_READ);
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping at an address of the kernel's choice.
    let page = unsafe { libc::mmap(ptr::null_mut(), bytes, rights, flags, -1, 0) };
    if page == libc::MAP_FAILED {
        return Some(false);
    }
    let mut seen = RELEASES.now();
    // SAFETY: just mapped, and no reference to it exists.
    unsafe { libc::munmap(page, bytes) };
    let page = Range { start: page.addr() as u64, end: (page.addr() + bytes) as u64 };
    loop {
        match RELEASES.next(&mut seen) {
            Some(Released::Range(range)) if range == page => return Some(true),
            Some(Released::Range(_)) => {}
            Some(Released::All) => return None,
            None => return Some(false),
        }
    }
}
