//! Memory that the process itself says is released: by its allocator, by another runtime, or by the preloaded library
//! `libnemesia_interpose.so`, which stands before the C library's calls (`ffi/interpose`).

use std::ffi::c_void;
use std::mem::transmute;
use std::ptr;

use nemesia_core::regcache::Range;
use nemesia_core::regcache::releases::{Released, Releases, SeenReleases};

use super::mapping::MappingError;
use super::numa::page_size;

/// Ranges that are remembered one by one, of the whole process; to a cache that is further behind, everything counts as
/// released.
pub(crate) const REMEMBERED: usize = 256;

static RELEASES: Releases<REMEMBERED> = Releases::new();

/// Tells the caches of this process that addresses are about to get other pages, or have got them: those with
/// [`Telling::Program`](crate::regcache::Telling::Program) or
/// [`Telling::Interposed`](crate::regcache::Telling::Interposed). To be called before the change; and once more after
/// it if others may use these addresses meanwhile, as they may while pages are discarded.
///
/// From any thread, in any state, a signal handler or an allocator among them: it takes no lock, allocates nothing, and
/// leaves `errno` alone.
pub fn memory_released(address: u64, bytes: u64) {
    RELEASES.report(Range { start: address, end: address.saturating_add(bytes) });
}

extern "C" fn report(address: *const c_void, bytes: usize) {
    memory_released(address.addr() as u64, bytes as u64);
}

/// What one cache has been told of.
#[derive(Debug)]
pub(crate) struct ReleaseListener(SeenReleases);

impl ReleaseListener {
    /// Of what is told from now on.
    pub(crate) fn new() -> Self {
        Self(RELEASES.now())
    }

    /// As [`ReleaseListener::new`], when the calls of this process are seen.
    ///
    /// # Errors
    /// The library was not preloaded, or does not see what we do.
    pub(crate) fn interposed() -> Result<Self, MappingError> {
        // SAFETY: a name that ends with zero.
        let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"nemesia_interposer_1".as_ptr()) };
        // SAFETY: the function of this name has this type; null is `None`.
        let subscribe = unsafe { transmute::<*mut c_void, Option<Subscribe>>(found) };
        // Twice is once.
        match subscribe.ok_or(MappingError::NotPreloaded)?(report) {
            0 if is_seen() => Ok(Self::new()),
            0 => Err(MappingError::Unseen),
            _ => Err(MappingError::Untamed),
        }
    }

    /// Whether something was told.
    #[inline(always)]
    pub(crate) fn has_more(&self) -> bool {
        RELEASES.has_more(self.0)
    }

    /// The next range; all addresses, when it is not known.
    pub(crate) fn next(&mut self) -> Option<Range> {
        const ALL: Range = Range { start: 0, end: u64::MAX };
        RELEASES.next(&mut self.0).map(|released| match released {
            Released::Range(range) => range,
            Released::All => ALL,
        })
    }
}

/// Takes who is to be told. 0 is success.
type Subscribe = extern "C" fn(extern "C" fn(*const c_void, usize)) -> i32;

/// How often a page is tried, while other threads tell of so much that it is not to be made out.
const TRIES: usize = 100;

/// Whether we are told of a page of our own that is unmapped.
fn is_seen() -> bool {
    (0..TRIES).find_map(|_| probe()).unwrap_or(false)
}

/// `None` when it is not to be made out.
fn probe() -> Option<bool> {
    let (bytes, rights) = (page_size(), libc::PROT_READ);
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping at a place of the kernel's choice.
    let page = unsafe { libc::mmap(ptr::null_mut(), bytes, rights, flags, -1, 0) };
    if page == libc::MAP_FAILED {
        return Some(false);
    }
    let mut seen = RELEASES.now();
    // SAFETY: just mapped, and nothing refers to it.
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
