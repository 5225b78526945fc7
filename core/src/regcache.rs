//! The registration cache: memory that a device may reach stays registered after its use, for the next one.
//!
//! Registering pins pages and costs microseconds to milliseconds; programs send from the same buffers again and again.
//! So a registration is dropped lazily (paper 1, section 5; paper 2, section 2.4.2, the Dynamic Memory Engine): reference
//! counts, a free list, and a list of the unused ones in the order of their last use, of which the oldest go when room is
//! wanted. Beyond paper 2, any part of a registered range is a hit.
//!
//! **Index.** A range of more than `16^k` and at most `16^(k+1)` pages (of at most 16 for `k = 0`) is of level `k`. It touches one or
//! two aligned blocks of `16^(k+1)` pages, and is entered in a hash table under each, with the sixteenths of the block that it
//! touches. An address lies in one block of each level, so a look-up probes once a level in use, of which there are at most 13
//! and in practice two or three, however many ranges there are: the level of most ranges first. A probe is one cache line, and
//! the registration found another; the sixteenths tell apart the ranges of a block, of which few overlap: a miss that
//! overlaps known ranges registers the union and withdraws them. Ranges that only touch are left apart: to join
//! them would register a growing heap anew each time that it grows.
//!
//! **Withdrawn** ranges are no hits any more; those still in use are deregistered by their last user. That is also what
//! [`Cache::invalidate`] does, which the owner must call before an address range gets other pages (unmapped, remapped,
//! returned to the system): invariant 9. Where nobody tells, [`Limits::keep`] must be off: then nothing outlives its use, and
//! only the same pages are a hit, as a user vouches for the pages that it asked for and for no others.
//!
//! A miss and an invalidation cost a probe a block of the range at each level, and never more than a walk over all entries:
//! little beside what the pages of the range cost the kernel.
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

/// A range of addresses, in bytes; the end is not in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Range {
    /// First address.
    pub start: u64,
    /// The address behind the last.
    pub end: u64,
}

impl Range {
    /// Bytes.
    pub const fn len(&self) -> u64 {
        self.end - self.start
    }

    /// Whether there is nothing in it.
    pub const fn is_empty(&self) -> bool {
        self.start >= self.end
    }

    /// Whether the other lies in this one.
    #[inline(always)]
    pub const fn contains(&self, other: &Range) -> bool {
        self.start <= other.start && other.end <= self.end
    }

    /// Whether they share an address.
    #[inline(always)]
    pub const fn overlaps(&self, other: &Range) -> bool {
        self.start < other.end && other.start < self.end
    }

    fn join(&self, other: &Range) -> Range {
        Range { start: self.start.min(other.start), end: self.end.max(other.end) }
    }
}

/// Who registers: a memory port.
pub trait Registrar {
    /// What a registration is known by: its keys.
    type Handle: Copy;
    /// Why a registration failed.
    type Error;

    /// Registers a range of whole pages with these rights.
    ///
    /// # Errors
    /// The device or the system refuses. The cache then tries again with less, as far as it can.
    fn register(&mut self, range: Range, rights: u32) -> Result<Self::Handle, Self::Error>;

    /// Ends the registration of a range, which nobody uses.
    fn deregister(&mut self, range: Range, handle: Self::Handle);

    /// Whether the cache will be told, by [`Cache::invalidate`], when this range, just registered, gets other pages. If not,
    /// the registration ends with its last use, and serves uses of just this range.
    fn told(&mut self, range: Range) -> bool {
        let _ = range;
        true
    }
}

/// The bounds of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most bytes registered at once, used or not.
    pub bytes: u64,
    /// Whether registrations outlive their use. Only where every change of a mapping is told: see [`Cache::invalidate`].
    pub keep: bool,
    /// Binary logarithm of the page size, 12 to 30: what registrations are rounded to.
    pub page_shift: u32,
}

/// Why a range could not be had.
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
    /// Everything registered is in use, and there is no room besides.
    #[error(
        "{wanted} bytes do not fit beside {used} bytes that are in use: the limit is {limit} bytes and {entries} entries"
    )]
    Full {
        /// Bytes of the pages wanted.
        wanted: u64,
        /// Bytes registered, all in use.
        used: u64,
        /// The limit in bytes.
        limit: u64,
        /// The limit in entries.
        entries: usize,
    },
    /// The registrar refuses, and nothing unused is left to be given up.
    #[error("registration failed")]
    Refused(E),
}

/// A use of a registration. To be given back to [`Cache::release`] of the same cache: another one does not always know it
/// for a stranger.
#[derive(Debug)]
#[must_use = "a registration that is not released stays for ever"]
pub struct Held {
    index: u32,
    generation: u32,
}

/// What has happened so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Acquired what was registered.
    pub hits: u64,
    /// Acquired what was not.
    pub misses: u64,
    /// Given up unused for want of room.
    pub evicted: u64,
    /// Replaced by a range that covers them.
    pub merged: u64,
    /// Withdrawn by [`Cache::invalidate`].
    pub invalidated: u64,
}

/// The cache, over lent storage: `E` has one slot a registration, `B` the hash table: see [`buckets`]. One thread at a time.
#[derive(Debug)]
pub struct Cache<H: Copy, E, B>
where
    E: BorrowMut<[Entry<H>]>,
    B: BorrowMut<[Bucket]>,
{
    entries: Entries<E>,
    index: Index<B>,
    /// The last hit, which is looked at first.
    recent: u32,
    limits: Limits,
    bytes: u64,
    counts: Counts,
    handle: PhantomData<H>,
}

/// How many buckets a cache of so many registrations should have: one for three of them, or up to twice that. A bucket has seven places,
/// and a registration takes up to two: [`Cache::new`] refuses what could be too few.
pub const fn buckets(entries: usize) -> usize {
    index::buckets(entries)
}

impl<H: Copy, E, B> Cache<H, E, B>
where
    E: BorrowMut<[Entry<H>]>,
    B: BorrowMut<[Bucket]>,
{
    /// An empty cache. `None` when there are too few buckets, or the page size is out of its range.
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

    /// Bytes registered now, used or not.
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Registrations now, used or not.
    pub const fn registrations(&self) -> usize {
        self.entries.used()
    }

    /// What has happened so far.
    pub const fn counts(&self) -> Counts {
        self.counts
    }

    /// The registration of `len` bytes at `address` (at least one byte) with at least these rights, made if there is none.
    ///
    /// # Errors
    /// See [`AcquireError`]. Nothing is held then; unused registrations may have been given up.
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

    /// What the registration is known by; `None` for a use that the cache knows nothing of.
    #[inline]
    pub fn handle(&self, held: &Held) -> Option<H> {
        self.get(held)?.handle
    }

    /// The whole range that is registered; `None` for a use that the cache knows nothing of.
    pub fn range(&self, held: &Held) -> Option<Range> {
        Some(self.get(held)?.range)
    }

    /// Ends a use. The registration stays for the next one, unless it was withdrawn or nothing is to be kept.
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

    /// The addresses of this range are about to get other pages, or have got them: nothing registered there is a hit any
    /// more. What nobody uses is deregistered at once, the rest by its last user. Returns how many were withdrawn.
    pub fn invalidate<R: Registrar<Handle = H>>(&mut self, registrar: &mut R, range: Range) -> usize {
        let (mut count, mut walk) = (0, self.index.walk(range, &self.entries));
        while let Some(index) = self.index.next_overlapping(&mut walk, &self.entries) {
            self.withdraw(registrar, index);
            count += 1;
        }
        self.counts.invalidated += count as u64;
        count
    }

    /// Whether anything is registered that overlaps a range and can be a hit.
    pub fn overlaps(&self, range: Range) -> bool {
        let mut walk = self.index.walk(range, &self.entries);
        self.index.next_overlapping(&mut walk, &self.entries).is_some()
    }

    /// Gives up everything that nobody uses. Returns how many.
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
            // The union is a wish: part of it may have been unmapped, or not allow what the rest does, or nobody would tell of
            // its changes.
            if let Ok(held) = self.register(registrar, &union, all_rights, false) {
                return Ok(held);
            }
        }
        self.register(registrar, &pages, rights, true)
    }

    /// Withdraws what overlaps these pages. Returns the range and the rights of all together, but for those of whose changes
    /// nobody tells: they are good for their users alone.
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
                // What others have pinned counts too, so less of ours may help: as much as is wanted, and again.
                Err(_) if insist && self.yield_bytes(registrar, range.len()) => {}
                Err(error) => return Err(AcquireError::Refused(error)),
            }
        };
        let kept = self.limits.keep && registrar.told(*range);
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
                // There was a slot, and the registrar knows nothing of us.
                registrar.deregister(*range, handle);
                Err(self.full(range.len()))
            }
        }
    }

    /// Gives up unused registrations, oldest first, until there is a slot and this many bytes are within the limit.
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

    /// Gives up at least this many bytes, or all that is unused; false when nothing is.
    fn yield_bytes<R: Registrar<Handle = H>>(&mut self, registrar: &mut R, bytes: u64) -> bool {
        let mut given = 0;
        while given < bytes
            && let Some(more) = self.evict(registrar)
        {
            given += more;
        }
        given > 0
    }

    /// Gives up the registration that has been unused for longest. Returns its bytes.
    fn evict<R: Registrar<Handle = H>>(&mut self, registrar: &mut R) -> Option<u64> {
        let index = self.entries.oldest()?;
        let bytes = self.entries.get(index).range.len();
        self.index.remove(&mut self.entries, index);
        self.drop_entry(registrar, index);
        self.counts.evicted += 1;
        Some(bytes)
    }

    /// Takes a registration out of the index; and ends it if nobody uses it.
    fn withdraw<R: Registrar<Handle = H>>(&mut self, registrar: &mut R, index: u32) {
        self.index.remove(&mut self.entries, index);
        if self.recent == index {
            self.recent = NONE;
        }
        if self.entries.get(index).holders == 0 {
            self.drop_entry(registrar, index);
        }
    }

    /// Ends a registration that is not in the index.
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
