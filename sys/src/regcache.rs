//! Registrations of memory that are kept for their next use, and told apart from stale ones.
//!
//! A [`RegistrationCache`] is [`nemesia_core::regcache`] with memory of its own and a way to learn that addresses have got
//! other pages, so that no buffer that was freed, unmapped or remapped is reached through an old registration
//! (invariant 9). How it learns is [`Telling`]; nothing is patched unless the user has a
//! library preloaded for it, and where nobody tells, nothing outlives its use.

use std::fmt;

use nemesia_core::regcache::{Bucket, Cache, Entry, buckets};

pub use nemesia_core::regcache::{AcquireError, Counts, Held, Limits, Range, Registrar};

pub use crate::os::mapping::MappingError;
use crate::os::mapping::{MappingWatch, is_private};
use crate::os::numa::page_size;
pub use crate::os::released::memory_released;
use crate::os::released::{Listener, REMEMBERED};

/// Who tells a cache of changed mappings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Telling {
    /// The kernel (`userfaultfd`), which takes a thread; where it is refused, nothing outlives its use.
    #[default]
    Kernel,
    /// The program: it promises to call [`RegistrationCache::invalidate`], or [`memory_released`] from any thread, before, or as
    /// soon as, addresses get other pages. For runtimes that see every `munmap` anyway, by their own allocator or by interposition.
    Program,
    /// The library `libnemesia_interpose.so`, which has to be preloaded and stands before the calls of the C library; where it does
    /// not see what we do, nothing outlives its use. What it does not see, and does to `malloc`, is in its documentation
    /// (`ffi/interpose`). As with [`Telling::Kernel`], only private memory without a file is kept.
    Interposed,
    /// Nobody: uses of the same pages share a registration while they last, and it ends with the last of them.
    Nobody,
}

/// How large a cache is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// Most bytes registered at once.
    pub bytes: u64,
    /// Most registrations at once. Each takes about 100 bytes of memory.
    pub entries: usize,
}

impl Default for Size {
    /// 1 GiB in 4,096 registrations.
    fn default() -> Self {
        Self { bytes: 1 << 30, entries: 4096 }
    }
}

/// The registrar, and who tells of its registrations.
#[derive(Debug)]
struct Told<R> {
    registrar: R,
    watch: Option<MappingWatch>,
    /// Calls are seen, but not those that change pages by way of a file.
    interposed: bool,
    /// Ranges that may not have to be watched any more.
    ended: Vec<Range>,
}

impl<R: Registrar> Registrar for Told<R> {
    type Handle = R::Handle;
    type Error = R::Error;

    fn register(&mut self, range: Range, rights: u32) -> Result<R::Handle, R::Error> {
        self.registrar.register(range, rights)
    }

    fn deregister(&mut self, range: Range, handle: R::Handle) {
        self.registrar.deregister(range, handle);
        if self.watch.is_some() {
            self.ended.push(range);
        }
    }

    fn told(&mut self, range: Range) -> bool {
        let kernel = self.watch.as_mut().is_none_or(|watch| watch.watch(&(range.start..range.end)));
        let calls = !self.interposed || is_private(&(range.start..range.end));
        kernel && calls && self.registrar.told(range)
    }
}

/// The core's cache over memory that it owns.
type Owned<H> = Cache<H, Vec<Entry<H>>, Vec<Bucket>>;

/// The cache. One thread at a time; mappings may be changed by any.
pub struct RegistrationCache<R: Registrar> {
    cache: Owned<R::Handle>,
    told: Told<R>,
    listener: Option<Listener>,
    refused: Option<MappingError>,
}

impl<R: Registrar> fmt::Debug for RegistrationCache<R> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (bytes, registrations) = (self.cache.bytes(), self.cache.registrations());
        let mut out = out.debug_struct("RegistrationCache");
        out.field("bytes", &bytes).field("registrations", &registrations).finish_non_exhaustive()
    }
}

impl<R: Registrar> RegistrationCache<R> {
    /// An empty cache. `registrar` is given back by [`RegistrationCache::close`].
    pub fn new(registrar: R, size: Size, telling: Telling) -> Self {
        let (mut watch, mut listener, mut refused) = (None, None, None);
        match telling {
            Telling::Kernel => match MappingWatch::start() {
                Ok(started) => watch = Some(started),
                Err(error) => refused = Some(error),
            },
            Telling::Interposed => match Listener::interposed() {
                Ok(listening) => listener = Some(listening),
                Err(error) => refused = Some(error),
            },
            Telling::Program => listener = Some(Listener::new()),
            Telling::Nobody => {}
        }
        let keep = watch.is_some() || listener.is_some();
        let limits = Limits { bytes: size.bytes, keep, page_shift: page_shift() };
        let entries = vec![Entry::default(); size.entries];
        let table = vec![Bucket::default(); buckets(size.entries)];
        let Some(cache) = Cache::new(limits, entries, table) else {
            unreachable!("there are as many buckets as there should be, and pages of 4 KiB to 1 GiB")
        };
        let interposed = telling == Telling::Interposed;
        Self { cache, told: Told { registrar, watch, interposed, ended: Vec::new() }, listener, refused }
    }

    /// Why the kernel, or the preloaded library, does not tell of changes, if it was asked to and does not: then nothing outlives
    /// its use.
    pub const fn refused(&self) -> Option<&MappingError> {
        self.refused.as_ref()
    }

    /// The registration of `len` bytes at `address` with at least these rights, made if there is none. The memory stays
    /// mapped until [`RegistrationCache::release`]; that is the caller's to see to.
    ///
    /// # Errors
    /// See [`AcquireError`].
    #[inline]
    pub fn acquire(&mut self, address: u64, len: u64, rights: u32) -> Result<Held, AcquireError<R::Error>> {
        self.catch_up();
        let held = self.cache.acquire(&mut self.told, address, len, rights);
        self.tidy();
        held
    }

    /// As [`RegistrationCache::acquire`], without the system call that it makes where the kernel tells: for callers who promise
    /// that these addresses were not mapped anew while another thread's call that unmapped, moved or discarded what was there
    /// before had yet to return. A program that changes mappings in one thread at a time keeps that promise.
    ///
    /// Why the call is needed without it: `munmap` frees the addresses, and lets other threads map them, before it says so to
    /// whoever watches. All that the kernel writes until then is a count of its own, which only a call can read.
    ///
    /// # Errors
    /// See [`AcquireError`].
    #[inline]
    pub fn acquire_trusting(
        &mut self,
        address: u64,
        len: u64,
        rights: u32,
    ) -> Result<Held, AcquireError<R::Error>> {
        if self.told.watch.as_ref().is_some_and(MappingWatch::has_changed) {
            self.drop_changed();
        }
        self.listen();
        let held = self.cache.acquire(&mut self.told, address, len, rights);
        self.tidy();
        held
    }

    /// What a registration is known by; `None` for a use that the cache knows nothing of.
    pub fn handle(&self, held: &Held) -> Option<R::Handle> {
        self.cache.handle(held)
    }

    /// The whole range that is registered; `None` for a use that the cache knows nothing of.
    pub fn range(&self, held: &Held) -> Option<Range> {
        self.cache.range(held)
    }

    /// Ends a use.
    pub fn release(&mut self, held: Held) {
        self.cache.release(&mut self.told, held);
        self.tidy();
    }

    /// Tells that these addresses are about to get other pages, or have got them. Returns how many registrations that ends;
    /// those in use are ended by their last user.
    pub fn invalidate(&mut self, address: u64, len: u64) -> usize {
        let range = Range { start: address, end: address.saturating_add(len) };
        let count = self.cache.invalidate(&mut self.told, range);
        self.tidy();
        count
    }

    /// Ends every registration that is not in use. Returns how many.
    pub fn flush(&mut self) -> usize {
        let count = self.cache.flush(&mut self.told);
        self.tidy();
        count
    }

    /// What has happened so far.
    pub const fn counts(&self) -> Counts {
        self.cache.counts()
    }

    /// Bytes registered now, used or not.
    pub const fn bytes(&self) -> u64 {
        self.cache.bytes()
    }

    /// The registrar, for its other duties.
    pub const fn registrar_mut(&mut self) -> &mut R {
        &mut self.told.registrar
    }

    /// Ends every registration that is not in use, and gives the registrar back.
    pub fn close(mut self) -> R {
        self.flush();
        self.told.registrar
    }

    /// Drops what the kernel says has changed. Where the kernel tells, this is a system call: there is no other way to know
    /// of addresses that were given to us before the call that freed them has returned.
    #[inline]
    fn catch_up(&mut self) {
        if self.told.watch.as_ref().is_some_and(MappingWatch::changed) {
            self.drop_changed();
        }
        self.listen();
    }

    /// Drops what the process itself says is released.
    #[inline]
    fn listen(&mut self) {
        if self.listener.as_ref().is_some_and(Listener::has_more) {
            self.drop_released();
        }
    }

    /// All that was told before this; others may go on telling, and so may deregistering, which is for the next acquire.
    #[cold]
    fn drop_released(&mut self) {
        let Some(listener) = &mut self.listener else { return };
        // No more than these are there one by one: if there were more, one of them is everything.
        let mut told = 0;
        while told < REMEMBERED
            && let Some(range) = listener.next()
        {
            self.cache.invalidate(&mut self.told, range);
            told += 1;
        }
    }

    #[cold]
    fn drop_changed(&mut self) {
        // To deregister may change mappings too. It ends: what has changed is not watched any more.
        while let Some(watch) = self.told.watch.as_ref().filter(|watch| watch.changed()) {
            for changed in watch.settle().ranges() {
                self.cache.invalidate(&mut self.told, Range { start: changed.start, end: changed.end });
            }
            self.tidy();
        }
    }

    /// Ends the watch of what is not registered any more, so that the program's own `munmap` is not held up.
    #[inline]
    fn tidy(&mut self) {
        while let Some(range) = self.told.ended.pop() {
            if let Some(watch) = &mut self.told.watch
                && !self.cache.overlaps(range)
            {
                watch.unwatch(&(range.start..range.end));
            }
        }
    }
}

/// Binary logarithm of the page size.
fn page_shift() -> u32 {
    page_size().checked_ilog2().unwrap_or(12).clamp(12, 30)
}

#[cfg(test)]
mod tests;
