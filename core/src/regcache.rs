//! The registration cache: memory that a device may access stays registered after its use, for the next use.
//!
//! Registration pins pages and costs microseconds to milliseconds, and programs send from the same buffers
//! again and again. A registration is therefore dropped lazily (paper 1, section 5; paper 2, section 2.4.2,
//! the Dynamic Memory Engine). The cache keeps reference counts, a free list, and a list of unused
//! registrations in the order of their last use, from which it evicts the oldest when space is needed. Beyond
//! paper 2, any part of a registered range is a hit.
//!
//! **Index.** A range of more than `16^k` and at most `16^(k+1)` pages (at most 16 for `k = 0`) has level
//! `k`. It touches one or two aligned blocks of `16^(k+1)` pages. The hash table has an entry for it under
//! each, with the sixteenths of the block that it touches. An address lies in one block of each level, so a
//! look-up probes once per level in use, most populated level first. There are at most 13 levels, in practice
//! two or three, however many ranges there are. A probe reads one cache line, and the found registration
//! another. The sixteenths distinguish the ranges of a block. Few ranges overlap, because a miss that
//! overlaps known ranges registers the union and withdraws them. Adjacent ranges are not joined: that would
//! register a growing heap anew after each growth.
//!
//! **Withdrawn** ranges are no longer hits. If they are in use, their last user deregisters them.
//! [`Cache::invalidate`] withdraws ranges too; the owner must call it before an address range gets other
//! pages (unmapped, remapped, returned to the system): invariant 9. If such changes are not reported,
//! [`Limits::keep`] must be off. Then no registration outlives its use, and only exactly the same pages are a
//! hit, because a user guarantees the stability only of the pages that it requested.
//!
//! A miss and an invalidation cost one probe for each block of the range at each level, and at most a walk
//! over all entries. That is little compared with the kernel's cost for the pages of the range.
#![forbid(unsafe_code)]

use core::borrow::BorrowMut;
use core::marker::PhantomData;

use crate::slab::NONE;

mod entries;
mod index;
pub mod releases;
pub use entries::Entry;
use entries::{Entries, Wanted};
pub use index::Bucket;
use index::Index;

/// A range of addresses in bytes. The end is exclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Range {
    /// First address.
    pub start: u64,
    /// The address after the last.
    pub end: u64,
}

impl Range {
    /// Returns the length in bytes.
    pub const fn len(&self) -> u64 {
        self.end - self.start
    }

    /// Returns whether the range is empty.
    pub const fn is_empty(&self) -> bool {
        self.start >= self.end
    }

    /// Returns whether the other range lies in this one.
    #[inline(always)]
    pub const fn contains(&self, other: &Range) -> bool {
        self.start <= other.start && other.end <= self.end
    }

    /// Returns whether the ranges share an address.
    #[inline(always)]
    pub const fn overlaps(&self, other: &Range) -> bool {
        self.start < other.end && other.start < self.end
    }

    fn join(&self, other: &Range) -> Range {
        Range { start: self.start.min(other.start), end: self.end.max(other.end) }
    }
}

/// The interface of a memory port that registers ranges.
pub trait Registrar {
    /// Identifies a registration: its keys.
    type Handle: Copy;
    /// The reason why a registration failed.
    type Error;

    /// Registers a range of whole pages with these rights.
    ///
    /// # Errors
    /// The device or the system refuses. The cache then evicts registrations and tries again, as far as
    /// possible.
    fn register(&mut self, range: Range, rights: u32) -> Result<Self::Handle, Self::Error>;

    /// Deregisters an unused range.
    fn deregister(&mut self, range: Range, handle: Self::Handle);

    /// Returns whether [`Cache::invalidate`] will be called when this range, just registered, gets other
    /// pages. If not, the registration ends with its last use, and serves only uses of exactly this range.
    fn reported(&mut self, range: Range) -> bool {
        let _ = range;
        true
    }
}

/// The limits of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most bytes registered at once, used or unused.
    pub bytes: u64,
    /// Whether registrations outlive their use. Allowed only if every change of a mapping is reported: see
    /// [`Cache::invalidate`].
    pub keep: bool,
    /// Binary logarithm of the page size, 12 to 30, to which registrations are rounded.
    pub page_shift: u32,
}

/// The reason why a range could not be acquired.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AcquireError<E> {
    /// The range wraps around the end of the address space.
    #[error("{len} bytes at {address:#x} are beyond the end of the address space")]
    Range {
        /// First address.
        address: u64,
        /// Bytes.
        len: u64,
    },
    /// All registrations are in use, and there is no space for another.
    #[error(
        "{wanted} bytes do not fit beside {used} bytes in use: the limit is {limit} bytes and {entries} entries"
    )]
    Full {
        /// Bytes of the requested pages.
        wanted: u64,
        /// Bytes registered, all in use.
        used: u64,
        /// The limit in bytes.
        limit: u64,
        /// The limit in entries.
        entries: usize,
    },
    /// The registrar refused, and no unused registration is left to evict.
    #[error("registration failed")]
    Refused(E),
}

/// A use of a registration. It must be passed to [`Cache::release`] of the same cache; another cache may not
/// recognise it as foreign.
#[derive(Debug)]
#[must_use = "a registration that is not released stays registered forever"]
pub struct Held {
    index: u32,
    generation: u32,
}

/// Event counts of a cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Acquisitions of a registered range.
    pub hits: u64,
    /// Acquisitions of a range that was not registered.
    pub misses: u64,
    /// Unused registrations that were evicted.
    pub evicted: u64,
    /// Registrations that were replaced by a range that covers them.
    pub merged: u64,
    /// Registrations withdrawn by [`Cache::invalidate`].
    pub invalidated: u64,
}

/// The cache, over lent storage: `E` has one slot per registration; `B` is the hash table, see [`buckets`].
/// Only one thread at a time may use it.
#[derive(Debug)]
pub struct Cache<H: Copy, E, B>
where
    E: BorrowMut<[Entry<H>]>,
    B: BorrowMut<[Bucket]>,
{
    entries: Entries<E>,
    index: Index<B>,
    /// The last hit, which is checked first.
    recent: u32,
    limits: Limits,
    bytes: u64,
    counts: Counts,
    handle: PhantomData<H>,
}

/// Returns the number of buckets for a cache of `entries` registrations: one for three of them, or up to
/// twice as many. A bucket has seven places, and a registration takes up to two. [`Cache::new`] refuses a
/// number that could be too small.
pub const fn buckets(entries: usize) -> usize {
    index::buckets(entries)
}

impl<H: Copy, E, B> Cache<H, E, B>
where
    E: BorrowMut<[Entry<H>]>,
    B: BorrowMut<[Bucket]>,
{
    /// Returns an empty cache. `None` if there are too few buckets, or the page size is out of range.
    pub fn new(limits: Limits, entries: E, buckets: B) -> Option<Self> {
        if !(12..=30).contains(&limits.page_shift) {
            return None;
        }
        let index = Index::new(buckets, entries.borrow().len(), limits.page_shift)?;
        Some(Self {
            entries: Entries::new(entries),
            index,
            recent: NONE,
            limits,
            bytes: 0,
            counts: Counts::default(),
            handle: PhantomData,
        })
    }

    /// Returns the bytes registered now, used or unused.
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the number of registrations, used or unused.
    pub const fn registrations(&self) -> usize {
        self.entries.used()
    }

    /// Returns the event counts.
    pub const fn counts(&self) -> Counts {
        self.counts
    }

    /// Returns a registration of `len` bytes at `address` (at least one byte) with at least these rights. A
    /// missing one is made.
    ///
    /// # Errors
    /// See [`AcquireError`]. Nothing is held then; unused registrations may have been evicted.
    #[inline]
    pub fn acquire<R: Registrar<Handle = H>>(
        &mut self,
        registrar: &mut R,
        address: u64,
        len: u64,
        rights: u32,
    ) -> Result<Held, AcquireError<R::Error>> {
        let len = len.max(1);
        if address.checked_add(len).is_none() {
            return Err(AcquireError::Range { address, len });
        }
        let wanted = Wanted { start: address, len, rights, page_shift: self.limits.page_shift };
        match self.look_up(&wanted) {
            Some(index) => {
                self.counts.hits += 1;
                self.recent = index;
                Ok(self.hold(index))
            }
            None => self.miss(registrar, wanted),
        }
    }

    /// Returns the handle of a registration; `None` for a use that the cache does not know.
    #[inline]
    pub fn handle(&self, held: &Held) -> Option<H> {
        self.get(held)?.handle
    }

    /// Returns the whole registered range; `None` for a use that the cache does not know.
    pub fn range(&self, held: &Held) -> Option<Range> {
        Some(self.get(held)?.range)
    }

    /// Ends a use. The registration stays for the next use, unless it was withdrawn or nothing is kept.
    #[inline]
    #[expect(clippy::needless_pass_by_value, reason = "a use can end only once")]
    pub fn release<R: Registrar<Handle = H>>(&mut self, registrar: &mut R, held: Held) {
        if self.get(&held).is_none() {
            return;
        }
        let index = held.index;
        let entry = self.entries.get_mut(index);
        entry.holders -= 1;
        if entry.holders > 0 {
            return;
        }
        if entry.kept && entry.indexed {
            self.entries.rest(index);
        } else {
            self.index.remove(&mut self.entries, index);
            self.drop_entry(registrar, index);
        }
    }

    /// Withdraws all registrations that overlap this range, because its addresses are about to get other
    /// pages or already have them. Unused ones are deregistered at once, the others by their last user.
    /// Returns the number withdrawn.
    pub fn invalidate<R: Registrar<Handle = H>>(&mut self, registrar: &mut R, range: Range) -> usize {
        let (mut count, mut walk) = (0, self.index.walk(range, &self.entries));
        while let Some(index) = self.index.next_overlapping(&mut walk, &self.entries) {
            self.withdraw(registrar, index);
            count += 1;
        }
        self.counts.invalidated += count as u64;
        count
    }

    /// Returns whether a registration overlaps the range and can be a hit.
    pub fn overlaps(&self, range: Range) -> bool {
        let mut walk = self.index.walk(range, &self.entries);
        self.index.next_overlapping(&mut walk, &self.entries).is_some()
    }

    /// Evicts all unused registrations. Returns their number.
    pub fn flush<R: Registrar<Handle = H>>(&mut self, registrar: &mut R) -> usize {
        let mut count = 0;
        while self.evict(registrar).is_some() {
            count += 1;
        }
        count
    }

    #[inline]
    fn get(&self, held: &Held) -> Option<&Entry<H>> {
        self.entries.held(held.index, held.generation)
    }

    #[inline(always)]
    fn look_up(&self, wanted: &Wanted) -> Option<u32> {
        if self.recent != NONE && self.entries.get(self.recent).serves(wanted) {
            return Some(self.recent);
        }
        self.index.find(&self.entries, wanted)
    }

    #[inline(always)]
    fn hold(&mut self, index: u32) -> Held {
        let entry = self.entries.get_mut(index);
        entry.holders += 1;
        Held { index, generation: entry.generation }
    }

    #[cold]
    #[inline(never)]
    fn miss<R: Registrar<Handle = H>>(
        &mut self,
        registrar: &mut R,
        wanted: Wanted,
    ) -> Result<Held, AcquireError<R::Error>> {
        self.counts.misses += 1;
        let rights = wanted.rights;
        let Some(pages) = wanted.pages() else {
            return Err(AcquireError::Range { address: wanted.start, len: wanted.len });
        };
        let (union, all_rights) = self.merge(registrar, &pages, rights);
        if union != pages || all_rights != rights {
            // The union is optional: a part of it may have been unmapped, may not allow the same rights, or
            // may have changes that are not reported.
            if let Ok(held) = self.register(registrar, &union, all_rights, false) {
                return Ok(held);
            }
        }
        self.register(registrar, &pages, rights, true)
    }

    /// Withdraws registrations that overlap these pages. Returns the union of the ranges and of the rights.
    /// Registrations whose changes are not reported are left out, because they serve only their own users.
    fn merge<R: Registrar<Handle = H>>(
        &mut self,
        registrar: &mut R,
        pages: &Range,
        rights: u32,
    ) -> (Range, u32) {
        let (mut union, mut all_rights) = (*pages, rights);
        let mut walk = self.index.walk(*pages, &self.entries);
        while let Some(index) = self.index.next_overlapping(&mut walk, &self.entries) {
            let entry = self.entries.get(index);
            if entry.kept {
                union = union.join(&entry.range);
                all_rights |= entry.rights;
            }
            self.withdraw(registrar, index);
            self.counts.merged += 1;
        }
        (union, all_rights)
    }

    fn register<R: Registrar<Handle = H>>(
        &mut self,
        registrar: &mut R,
        range: &Range,
        rights: u32,
        insist: bool,
    ) -> Result<Held, AcquireError<R::Error>> {
        self.make_room(registrar, range.len())?;
        let handle = loop {
            match registrar.register(*range, rights) {
                Ok(handle) => break handle,
                // The limit may also be exhausted by memory that others have pinned, so evicting less than
                // everything may not help: evict as much as is needed, and try again.
                Err(_) if insist && self.yield_bytes(registrar, range.len()) => {}
                Err(error) => return Err(AcquireError::Refused(error)),
            }
        };
        let kept = self.limits.keep && registrar.reported(*range);
        if !kept && !insist {
            registrar.deregister(*range, handle);
            return Err(self.full(range.len()));
        }
        let entry =
            Entry { range: *range, handle: Some(handle), rights, holders: 1, kept, ..Entry::default() };
        match self.entries.insert(entry) {
            Some(index) => {
                self.bytes += range.len();
                self.index.insert(&mut self.entries, index);
                self.recent = index;
                Ok(Held { index, generation: self.entries.get(index).generation })
            }
            None => {
                // A slot was free before, and the registrar cannot call the cache, so this does not occur.
                registrar.deregister(*range, handle);
                Err(self.full(range.len()))
            }
        }
    }

    /// Evicts unused registrations, oldest first, until a slot is free and `wanted` bytes fit within the
    /// limit.
    fn make_room<R: Registrar<Handle = H>>(
        &mut self,
        registrar: &mut R,
        wanted: u64,
    ) -> Result<(), AcquireError<R::Error>> {
        if wanted > self.limits.bytes {
            return Err(self.full(wanted));
        }
        while self.entries.used() >= self.entries.capacity()
            || self.bytes.saturating_add(wanted) > self.limits.bytes
        {
            if self.evict(registrar).is_none() {
                return Err(self.full(wanted));
            }
        }
        Ok(())
    }

    fn full<X>(&self, wanted: u64) -> AcquireError<X> {
        let (limit, entries) = (self.limits.bytes, self.entries.capacity());
        AcquireError::Full { wanted, used: self.bytes, limit, entries }
    }

    /// Evicts at least this many bytes, or all unused registrations. Returns `false` if none was unused.
    fn yield_bytes<R: Registrar<Handle = H>>(&mut self, registrar: &mut R, bytes: u64) -> bool {
        let mut given = 0;
        while given < bytes
            && let Some(more) = self.evict(registrar)
        {
            given += more;
        }
        given > 0
    }

    /// Evicts the registration that has been unused longest. Returns its bytes.
    fn evict<R: Registrar<Handle = H>>(&mut self, registrar: &mut R) -> Option<u64> {
        let index = self.entries.oldest()?;
        let bytes = self.entries.get(index).range.len();
        self.index.remove(&mut self.entries, index);
        self.drop_entry(registrar, index);
        self.counts.evicted += 1;
        Some(bytes)
    }

    /// Removes a registration from the index, and deregisters it if it is unused.
    fn withdraw<R: Registrar<Handle = H>>(&mut self, registrar: &mut R, index: u32) {
        self.index.remove(&mut self.entries, index);
        if self.recent == index {
            self.recent = NONE;
        }
        if self.entries.get(index).holders == 0 {
            self.drop_entry(registrar, index);
        }
    }

    /// Deregisters an entry that is not in the index.
    fn drop_entry<R: Registrar<Handle = H>>(&mut self, registrar: &mut R, index: u32) {
        if self.recent == index {
            self.recent = NONE;
        }
        let entry = self.entries.get_mut(index);
        let range = entry.range;
        self.bytes -= range.len();
        if let Some(handle) = entry.handle.take() {
            registrar.deregister(range, handle);
        }
        self.entries.remove(index);
    }
}

#[cfg(test)]
mod tests;
