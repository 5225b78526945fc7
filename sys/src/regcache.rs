//! A cache of memory registrations, kept for their next use and distinguished from stale ones.
//!
//! A [`RegistrationCache`] is [`nemesia_core::regcache`] with memory of its own and a way to learn that
//! addresses got other pages. No buffer that was freed, unmapped or remapped is reached through an old
//! registration (invariant 9). [`Telling`] selects how the cache learns. Nothing is patched unless the user
//! preloads a library for it. If nothing reports changes, no registration outlives its use.

use std::fmt;

use nemesia_core::regcache::{Bucket, Cache, Entry, buckets};

pub use nemesia_core::regcache::{AcquireError, Counts, Held, Limits, Range, Registrar};

pub use crate::os::mapping::MappingError;
use crate::os::mapping::{MappingWatch, is_private};
use crate::os::numa::page_size;
pub use crate::os::released::memory_released;
use crate::os::released::{REMEMBERED, ReleaseListener};

/// How a cache learns of changed mappings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Telling {
    /// From the kernel (`userfaultfd`), which takes a thread. If the kernel refuses, no registration outlives
    /// its use.
    #[default]
    Kernel,
    /// From the program. It promises to call [`RegistrationCache::invalidate`], or [`memory_released`] from any
    /// thread, before or as soon as addresses get other pages. This suits runtimes that see every `munmap`
    /// anyway, by their own allocator or by interposition.
    Program,
    /// From the library `libnemesia_interpose.so`, which must be preloaded and intercepts calls of the C
    /// library. If it does not see this process's calls, no registration outlives its use. Its limits, and its
    /// effect on `malloc`, are in its documentation (`ffi/interpose`). As with [`Telling::Kernel`], only
    /// private memory without a file is kept.
    Interposed,
    /// From nothing: uses of the same pages share a registration while they last, and it ends with the last of
    /// them.
    Nobody,
}

/// The limits of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// The largest number of bytes registered at once.
    pub bytes: u64,
    /// The largest number of registrations at once. Each takes about 100 bytes of memory.
    pub entries: usize,
}

impl Default for Size {
    /// Returns 1 GiB in 4,096 registrations.
    fn default() -> Self {
        Self { bytes: 1 << 30, entries: 4096 }
    }
}

/// A registrar, and the source of reports about its registrations.
struct ReportedRegistrar<'a, R> {
    registrar: &'a mut R,
    reports: &'a mut MappingReports,
}

/// The source of reports about changed mappings.
#[derive(Debug)]
struct MappingReports {
    watch: Option<MappingWatch>,
    /// Whether calls are seen, but not those that change pages through a file.
    interposed: bool,
    /// Ranges that may no longer need to be watched.
    ended: Vec<Range>,
}

impl<R: Registrar> Registrar for ReportedRegistrar<'_, R> {
    type Handle = R::Handle;
    type Error = R::Error;

    fn register(&mut self, range: Range, rights: u32) -> Result<R::Handle, R::Error> {
        self.registrar.register(range, rights)
    }

    fn deregister(&mut self, range: Range, handle: R::Handle) {
        self.registrar.deregister(range, handle);
        if self.reports.watch.is_some() {
            self.reports.ended.push(range);
        }
    }

    fn reported(&mut self, range: Range) -> bool {
        let kernel = self.reports.watch.as_mut().is_none_or(|watch| watch.watch(&(range.start..range.end)));
        let calls = !self.reports.interposed || is_private(&(range.start..range.end));
        kernel && calls && self.registrar.reported(range)
    }
}

/// The core's cache over memory that it owns.
type Owned<H> = Cache<H, Vec<Entry<H>>, Vec<Bucket>>;

/// A registration cache that is passed its registrar in each call. All calls must pass the same one.
pub(crate) struct KeptRegistrations<H: Copy> {
    cache: Owned<H>,
    reports: MappingReports,
    listener: Option<ReleaseListener>,
    refused: Option<MappingError>,
}

impl<H: Copy> fmt::Debug for KeptRegistrations<H> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (bytes, registrations) = (self.cache.bytes(), self.cache.registrations());
        let mut out = out.debug_struct("KeptRegistrations");
        out.field("bytes", &bytes).field("registrations", &registrations).finish_non_exhaustive()
    }
}

impl<H: Copy> KeptRegistrations<H> {
    /// Makes an empty cache.
    pub(crate) fn new(size: Size, telling: Telling) -> Self {
        let (mut watch, mut listener, mut refused) = (None, None, None);
        match telling {
            Telling::Kernel => match MappingWatch::start() {
                Ok(started) => watch = Some(started),
                Err(error) => refused = Some(error),
            },
            Telling::Interposed => match ReleaseListener::interposed() {
                Ok(listening) => listener = Some(listening),
                Err(error) => refused = Some(error),
            },
            Telling::Program => listener = Some(ReleaseListener::new()),
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
        let reports = MappingReports { watch, interposed, ended: Vec::new() };
        Self { cache, reports, listener, refused }
    }

    /// As [`RegistrationCache::refused`].
    pub(crate) const fn refused(&self) -> Option<&MappingError> {
        self.refused.as_ref()
    }

    /// Returns whether registrations outlive their use.
    pub(crate) const fn keeps(&self) -> bool {
        self.reports.watch.is_some() || self.listener.is_some()
    }

    /// As [`RegistrationCache::acquire`].
    #[inline]
    pub(crate) fn acquire<R: Registrar<Handle = H>>(
        &mut self,
        registrar: &mut R,
        (address, len): (u64, u64),
        rights: u32,
    ) -> Result<Held, AcquireError<R::Error>> {
        self.catch_up(registrar);
        self.acquire_now(registrar, (address, len), rights)
    }

    #[inline]
    fn acquire_now<R: Registrar<Handle = H>>(
        &mut self,
        registrar: &mut R,
        (address, len): (u64, u64),
        rights: u32,
    ) -> Result<Held, AcquireError<R::Error>> {
        let mut reported = ReportedRegistrar { registrar, reports: &mut self.reports };
        let held = self.cache.acquire(&mut reported, address, len, rights);
        self.tidy();
        held
    }

    /// As [`RegistrationCache::handle`].
    pub(crate) fn handle(&self, held: &Held) -> Option<H> {
        self.cache.handle(held)
    }

    /// As [`RegistrationCache::range`].
    pub(crate) fn range(&self, held: &Held) -> Option<Range> {
        self.cache.range(held)
    }

    /// Ends a use.
    pub(crate) fn release<R: Registrar<Handle = H>>(&mut self, registrar: &mut R, held: Held) {
        self.cache.release(&mut ReportedRegistrar { registrar, reports: &mut self.reports }, held);
        self.tidy();
    }

    /// As [`RegistrationCache::counts`].
    pub(crate) const fn counts(&self) -> Counts {
        self.cache.counts()
    }

    fn invalidate<R: Registrar<Handle = H>>(&mut self, registrar: &mut R, range: Range) -> usize {
        let mut reported = ReportedRegistrar { registrar, reports: &mut self.reports };
        self.cache.invalidate(&mut reported, range)
    }

    fn flush<R: Registrar<Handle = H>>(&mut self, registrar: &mut R) -> usize {
        let count = self.cache.flush(&mut ReportedRegistrar { registrar, reports: &mut self.reports });
        self.tidy();
        count
    }

    /// Drops what the kernel reports as changed. If the kernel reports changes, this is a system call: nothing
    /// else shows addresses that were reused before the call that freed them has returned.
    #[inline]
    fn catch_up<R: Registrar<Handle = H>>(&mut self, registrar: &mut R) {
        if self.reports.watch.as_ref().is_some_and(MappingWatch::changed) {
            self.drop_changed(registrar);
        }
        self.listen(registrar);
    }

    /// Drops what the process itself reports as released.
    #[inline]
    fn listen<R: Registrar<Handle = H>>(&mut self, registrar: &mut R) {
        if self.listener.as_ref().is_some_and(ReleaseListener::has_more) {
            self.drop_released(registrar);
        }
    }

    /// Handles all reports made before this call. Others may go on reporting, and so may deregistering; the
    /// next acquire handles those.
    #[cold]
    fn drop_released<R: Registrar<Handle = H>>(&mut self, registrar: &mut R) {
        // At most this number is reported one by one: beyond it, one report covers everything.
        let mut reported = 0;
        while reported < REMEMBERED
            && let Some(range) = self.listener.as_mut().and_then(ReleaseListener::next)
        {
            self.invalidate(registrar, range);
            reported += 1;
        }
    }

    #[cold]
    fn drop_changed<R: Registrar<Handle = H>>(&mut self, registrar: &mut R) {
        // Deregistering may change mappings too. The loop ends, because changed ranges are no longer watched.
        while let Some(watch) = self.reports.watch.as_ref().filter(|watch| watch.changed()) {
            for changed in watch.settle().ranges() {
                self.invalidate(registrar, Range { start: changed.start, end: changed.end });
            }
            self.tidy();
        }
    }

    /// Ends the watch of ranges that are no longer registered, so that the program's own `munmap` is not
    /// delayed.
    #[inline]
    fn tidy(&mut self) {
        while let Some(range) = self.reports.ended.pop() {
            if let Some(watch) = &mut self.reports.watch
                && !self.cache.overlaps(range)
            {
                watch.unwatch(&(range.start..range.end));
            }
        }
    }
}

/// A registration cache. One thread at a time may use it; any thread may change mappings.
pub struct RegistrationCache<R: Registrar> {
    kept: KeptRegistrations<R::Handle>,
    registrar: R,
}

impl<R: Registrar> fmt::Debug for RegistrationCache<R> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("RegistrationCache").field("kept", &self.kept).finish_non_exhaustive()
    }
}

impl<R: Registrar> RegistrationCache<R> {
    /// Makes an empty cache. [`RegistrationCache::close`] returns `registrar`.
    pub fn new(registrar: R, size: Size, telling: Telling) -> Self {
        Self { kept: KeptRegistrations::new(size, telling), registrar }
    }

    /// Returns why the kernel or the preloaded library does not report changes, if it was asked to and does
    /// not. Then no registration outlives its use.
    pub const fn refused(&self) -> Option<&MappingError> {
        self.kept.refused()
    }

    /// Returns the registration of `len` bytes at `address` with at least these access rights, and makes one if
    /// there is none. The caller must keep the memory mapped until [`RegistrationCache::release`].
    ///
    /// # Errors
    /// See [`AcquireError`].
    #[inline]
    pub fn acquire(&mut self, address: u64, len: u64, rights: u32) -> Result<Held, AcquireError<R::Error>> {
        self.kept.acquire(&mut self.registrar, (address, len), rights)
    }

    /// As [`RegistrationCache::acquire`], without the system call that `acquire` makes if the kernel reports
    /// changes. The caller promises that these addresses were not mapped anew while another thread's call that
    /// unmapped, moved or discarded the former pages had yet to return. A program that changes mappings in one
    /// thread at a time keeps that promise.
    ///
    /// Without the promise the call is needed: `munmap` frees the addresses, and lets other threads map them,
    /// before it reports that to watchers. Until then the kernel writes only a count of its own, which only a
    /// system call can read.
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
        let Self { kept, registrar } = self;
        if kept.reports.watch.as_ref().is_some_and(MappingWatch::has_changed) {
            kept.drop_changed(registrar);
        }
        kept.listen(registrar);
        kept.acquire_now(registrar, (address, len), rights)
    }

    /// Returns the registrar's handle; `None` for a use that the cache does not know.
    pub fn handle(&self, held: &Held) -> Option<R::Handle> {
        self.kept.handle(held)
    }

    /// Returns the whole registered range; `None` for a use that the cache does not know.
    pub fn range(&self, held: &Held) -> Option<Range> {
        self.kept.range(held)
    }

    /// Ends a use.
    pub fn release(&mut self, held: Held) {
        self.kept.release(&mut self.registrar, held);
    }

    /// Reports that these addresses are about to get other pages, or have got them. Returns the number of
    /// registrations that this ends; those in use end with their last use.
    pub fn invalidate(&mut self, address: u64, len: u64) -> usize {
        let range = Range { start: address, end: address.saturating_add(len) };
        let count = self.kept.invalidate(&mut self.registrar, range);
        self.kept.tidy();
        count
    }

    /// Ends every unused registration. Returns their number.
    pub fn flush(&mut self) -> usize {
        self.kept.flush(&mut self.registrar)
    }

    /// Returns the counts so far.
    pub const fn counts(&self) -> Counts {
        self.kept.counts()
    }

    /// Returns the number of bytes registered now, used or not.
    pub const fn bytes(&self) -> u64 {
        self.kept.cache.bytes()
    }

    /// Returns the registrar, for its other tasks.
    pub const fn registrar_mut(&mut self) -> &mut R {
        &mut self.registrar
    }

    /// Ends every unused registration, and returns the registrar.
    pub fn close(mut self) -> R {
        self.flush();
        self.registrar
    }
}

/// Returns the binary logarithm of the page size.
fn page_shift() -> u32 {
    page_size().checked_ilog2().unwrap_or(12).clamp(12, 30)
}

#[cfg(test)]
mod tests;
