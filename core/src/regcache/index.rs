//! The index from an address to the registered ranges that may contain it: see [`super`].
#![forbid(unsafe_code)]

use core::borrow::BorrowMut;

use super::Range;
use super::entries::{Entries, Entry, Wanted};

/// Binary logarithm of the number of parts of a block, and of the factor between the block sizes of
/// neighbouring levels.
const STEP: u32 = 4;
/// Number of levels. The smallest pages have 2^12 bytes.
const LEVELS: usize = (64 - 12usize).div_ceil(STEP as usize);
/// Places in a bucket.
const LANES: usize = 7;

/// A bucket of the hash table: one cache line. A place holds a tag of 16 bits, the parts of the block that
/// the range touches (never none, which marks a free place), and the entry. Tags and parts are packed four to
/// a word, and compared together.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(64))]
pub struct Bucket {
    /// The last lane is not a place and always stays free.
    tags: [u64; 2],
    parts: [u64; 2],
    /// The last element counts the ranges that belong in this bucket or an earlier one and overflowed to a
    /// later one.
    entries: [u32; LANES + 1],
}

/// The lowest bit of each place in a word.
const LOW: u64 = 0x0001_0001_0001_0001;
/// The highest bit of each place in a word.
const HIGH: u64 = LOW << 15;

/// Returns the lowest bit of each place with this tag. In rare cases it also sets the bit of the place above
/// such a place; other bits have no meaning.
#[inline(always)]
const fn same(tags: u64, tag: u64) -> u64 {
    let differ = tags ^ (tag * LOW);
    (differ.wrapping_sub(LOW) & !differ) >> 15
}

impl Bucket {
    /// Returns the places that may have this tag and touch one of these parts. No such place is missing. See
    /// [`lane`].
    #[inline(always)]
    fn matches(&self, wanted: IndexKey) -> u64 {
        let wanted_parts = wanted.parts * LOW;
        let touch = |parts: u64| {
            let both = parts & wanted_parts;
            // The highest bit of a place is set if any of its bits is set.
            (((both & !HIGH) + (HIGH - LOW)) | both) >> 15
        };
        let [first, second] = [0, 1].map(|at| same(self.tags[at], wanted.tag) & touch(self.parts[at]) & LOW);
        first | second << 1
    }

    /// As [`Bucket::matches`], for a single part.
    #[inline(always)]
    fn matches_one(&self, tag: u64, part: u32) -> u64 {
        let [first, second] = [0, 1].map(|at| same(self.tags[at], tag) & (self.parts[at] >> part) & LOW);
        first | second << 1
    }

    /// Returns the number of ranges that belong in this bucket or an earlier one and overflowed to a later
    /// one.
    #[inline(always)]
    const fn beyond(&self) -> u32 {
        self.entries[LANES]
    }

    /// Returns tag and parts of a place.
    fn place(&self, lane: usize) -> (u64, u64) {
        let shift = lane % 4 * 16;
        (self.tags[lane / 4] >> shift & PARTS, self.parts[lane / 4] >> shift & PARTS)
    }

    fn set(&mut self, lane: usize, tag: u64, parts: u64) {
        let shift = lane % 4 * 16;
        for (word, value) in [(&mut self.tags[lane / 4], tag), (&mut self.parts[lane / 4], parts)] {
            *word = *word & !(PARTS << shift) | value << shift;
        }
    }
}

/// Returns the first place in a set of matches.
#[inline(always)]
const fn lane(found: u64) -> usize {
    let bit = found.trailing_zeros() as usize;
    (bit >> 4 | (bit & 1) << 2) % (LANES + 1)
}

const PARTS: u64 = 0xffff;

/// The search key of a block: the bucket where the search begins, the tag, and the relevant parts.
#[derive(Clone, Copy, Debug, Default)]
struct IndexKey {
    home: usize,
    tag: u64,
    parts: u64,
}

/// Returns the number of buckets for `entries` entries; a good third of the places is then used.
pub(super) const fn buckets(entries: usize) -> usize {
    let least = entries.div_ceil(3).next_power_of_two();
    if least * LANES < entries * 2 { least * 2 } else { least }
}

/// The hash table, with open addressing by buckets.
#[derive(Debug)]
pub(super) struct Index<B> {
    buckets: B,
    /// The shift that selects the bucket from a hash.
    shift: u32,
    /// Number of buckets in use, a power of two, minus one.
    mask: usize,
    page_shift: u32,
    /// The levels that have ranges, most populated first; the first `in_use` elements are valid.
    levels: [u8; LEVELS],
    in_use: usize,
    /// Number of ranges of each level.
    counts: [u32; LEVELS],
}

/// A walk over the ranges that overlap a range. Entries may be removed during the walk.
#[derive(Clone, Copy, Debug)]
pub(super) struct Walk {
    range: Range,
    /// Bit `k` is set while level `k` must still be searched.
    levels: u32,
    /// The next block of the lowest of these levels.
    block: u64,
    /// The next entry if the walk visits all entries, because the range has more blocks than there are
    /// entries.
    every: Option<u32>,
}

impl<B: BorrowMut<[Bucket]>> Index<B> {
    /// Returns an empty table; `None` if it is too small for so many entries.
    pub(super) fn new(mut buckets: B, entries: usize, page_shift: u32) -> Option<Self> {
        let bits = buckets.borrow().len().checked_ilog2()?;
        // Each entry takes at most two places.
        (entries <= (LANES << bits) / 2).then_some(())?;
        buckets.borrow_mut().fill(Bucket::default());
        let (shift, mask) = (64 - bits.max(1), (1 << bits) - 1);
        let (levels, counts) = ([0; LEVELS], [0; LEVELS]);
        Some(Self { buckets, shift, mask, page_shift, levels, in_use: 0, counts })
    }

    /// Returns bucket and tag of a block of a level.
    #[inline(always)]
    fn home(&self, level: u32, block: u64) -> (usize, u64) {
        // Blocks have at most 52 bits, so no two hashes are equal. The high bits are the best distributed
        // ones.
        let hash = (block ^ u64::from(level) << 56).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        ((hash >> self.shift) as usize & self.mask, hash >> 32 & PARTS)
    }

    /// Returns the binary logarithm of the bytes of a part of this level's blocks.
    #[inline(always)]
    fn part_shift(&self, level: u32) -> u32 {
        self.page_shift + level * STEP
    }

    /// Returns the level of a range: 0 for up to 16 pages, 1 for up to 256, and so on. No range touches more
    /// than two blocks.
    fn level(&self, range: &Range) -> u32 {
        ((range.len() >> self.page_shift).max(2) - 1).ilog2() / STEP
    }

    /// Returns the blocks of a level that a range touches.
    fn blocks(&self, level: u32, range: &Range) -> core::ops::RangeInclusive<u64> {
        let shift = self.part_shift(level);
        range.start >> shift >> STEP..=(range.end - 1) >> shift >> STEP
    }

    /// Returns the key of a block, with the parts that a range touches.
    fn key_of(&self, level: u32, block: u64, range: &Range) -> IndexKey {
        let shift = self.part_shift(level);
        let part = |address: u64| (address >> shift).wrapping_sub(block << STEP);
        // The range may begin before the block, or end after it.
        let first = if range.start >> shift >> STEP < block { 0 } else { part(range.start) };
        let last = part(range.end - 1).min((1 << STEP) - 1);
        let parts = (PARTS << first) & (PARTS >> (((1 << STEP) - 1) - last));
        let (home, tag) = self.home(level, block);
        IndexKey { home, tag, parts }
    }

    /// Returns a range that serves the request.
    #[inline(always)]
    pub(super) fn find<H, E: BorrowMut<[Entry<H>]>>(
        &self,
        entries: &Entries<E>,
        wanted: &Wanted,
    ) -> Option<u32> {
        let buckets = self.buckets.borrow();
        for level in self.levels.iter().take(self.in_use) {
            let part = wanted.start >> self.part_shift(u32::from(*level));
            let (home, tag) = self.home(u32::from(*level), part >> STEP);
            let bucket = &buckets[home];
            let mut found = bucket.matches_one(tag, part as u32 % (1 << STEP));
            while found != 0 {
                let index = bucket.entries[lane(found)];
                if entries.get(index).serves(wanted) {
                    return Some(index);
                }
                found &= found - 1;
            }
            if bucket.beyond() != 0 {
                let key = IndexKey { home, tag, parts: 1 << (part % (1 << STEP)) };
                if let Some(index) = self.find_beyond(entries, key, *wanted) {
                    return Some(index);
                }
            }
        }
        None
    }

    #[cold]
    #[inline(never)]
    fn find_beyond<H, E: BorrowMut<[Entry<H>]>>(
        &self,
        entries: &Entries<E>,
        key: IndexKey,
        wanted: Wanted,
    ) -> Option<u32> {
        self.find_from(entries, key, |entry| entry.serves(&wanted))
    }

    /// Returns an entry with this key that satisfies the test.
    #[inline]
    fn find_from<H, E: BorrowMut<[Entry<H>]>>(
        &self,
        entries: &Entries<E>,
        key: IndexKey,
        test: impl Fn(&Entry<H>) -> bool,
    ) -> Option<u32> {
        let buckets = self.buckets.borrow();
        let mut at = key.home;
        loop {
            let bucket = &buckets[at];
            let mut found = bucket.matches(key);
            while found != 0 {
                let index = bucket.entries[lane(found)];
                if test(entries.get(index)) {
                    return Some(index);
                }
                found &= found - 1;
            }
            if bucket.beyond() == 0 {
                return None;
            }
            at = self.behind(at);
        }
    }

    fn behind(&self, home: usize) -> usize {
        (home + 1) & self.mask
    }

    /// Inserts a range of whole pages.
    pub(super) fn insert<H, E: BorrowMut<[Entry<H>]>>(&mut self, entries: &mut Entries<E>, index: u32) {
        let entry = entries.get_mut(index);
        entry.indexed = true;
        let level = self.level(&entry.range);
        for block in self.blocks(level, &entry.range) {
            self.place(self.key_of(level, block, &entry.range), index);
        }
        self.counts[level as usize] += 1;
        self.sort(level);
    }

    /// Moves a level to its place among those in use, after its count has changed by one.
    fn sort(&mut self, level: u32) {
        let count = |level: &u8| self.counts[usize::from(*level)];
        let mut at = match self.levels[..self.in_use].iter().position(|it| u32::from(*it) == level) {
            Some(at) => at,
            None => {
                self.levels[self.in_use] = level as u8;
                self.in_use += 1;
                self.in_use - 1
            }
        };
        let levels = &mut self.levels[..self.in_use];
        while at > 0 && count(&levels[at - 1]) < count(&levels[at]) {
            levels.swap(at - 1, at);
            at -= 1;
        }
        while at + 1 < levels.len() && count(&levels[at]) < count(&levels[at + 1]) {
            levels.swap(at, at + 1);
            at += 1;
        }
        // Only the last level can be empty.
        self.in_use -= usize::from(count(&self.levels[self.in_use - 1]) == 0);
    }

    fn place(&mut self, key: IndexKey, index: u32) {
        let mut at = key.home;
        loop {
            let bucket = &mut self.buckets.borrow_mut()[at];
            if let Some(lane) = (0..LANES).find(|&lane| bucket.place(lane).1 == 0) {
                bucket.set(lane, key.tag, key.parts);
                bucket.entries[lane] = index;
                return;
            }
            // A place is free, because `new` checked the size.
            bucket.entries[LANES] += 1;
            at = self.behind(at);
        }
    }

    /// Removes a range, if it is in the table.
    pub(super) fn remove<H, E: BorrowMut<[Entry<H>]>>(&mut self, entries: &mut Entries<E>, index: u32) {
        let entry = entries.get_mut(index);
        if !core::mem::replace(&mut entry.indexed, false) {
            return;
        }
        let level = self.level(&entry.range);
        for block in self.blocks(level, &entry.range) {
            self.clear(self.key_of(level, block, &entry.range), index);
        }
        self.counts[level as usize] -= 1;
        self.sort(level);
    }

    fn clear(&mut self, key: IndexKey, index: u32) {
        let mut at = key.home;
        loop {
            let bucket = &mut self.buckets.borrow_mut()[at];
            let is =
                |&lane: &usize| bucket.entries[lane] == index && bucket.place(lane) == (key.tag, key.parts);
            if let Some(lane) = (0..LANES).find(is) {
                bucket.set(lane, 0, 0);
                return;
            }
            // The range is in the table and has overflowed each bucket before its own.
            bucket.entries[LANES] -= 1;
            at = self.behind(at);
        }
    }

    /// Returns a walk over all ranges that overlap `range`.
    pub(super) fn walk<H, E: BorrowMut<[Entry<H>]>>(&self, range: Range, entries: &Entries<E>) -> Walk {
        let mut walk = Walk { range, levels: 0, block: 0, every: None };
        if range.is_empty() {
            return walk;
        }
        let mut probes = 0u64;
        for level in &self.levels[..self.in_use] {
            let blocks = self.blocks(u32::from(*level), &range);
            probes = probes.saturating_add(blocks.end() - blocks.start() + 1);
            walk.levels |= 1 << level;
        }
        walk.every = (probes > u64::from(entries.touched())).then_some(0);
        self.begin(&mut walk);
        walk
    }

    /// Moves to the first block of the walk's level.
    fn begin(&self, walk: &mut Walk) {
        if walk.levels != 0 {
            walk.block = *self.blocks(walk.levels.trailing_zeros(), &walk.range).start();
        }
    }

    /// Returns the next range of a walk. The caller must remove it before it continues the walk.
    pub(super) fn next_overlapping<H, E: BorrowMut<[Entry<H>]>>(
        &self,
        walk: &mut Walk,
        entries: &Entries<E>,
    ) -> Option<u32> {
        let range = walk.range;
        let overlaps = |entry: &Entry<H>| entry.indexed && entry.range.overlaps(&range);
        if let Some(next) = walk.every {
            let touched = entries.touched();
            let found = (next..touched).find(|&index| overlaps(entries.get(index)));
            walk.every = Some(found.map_or(touched, |index| index + 1));
            return found;
        }
        while walk.levels != 0 {
            let level = walk.levels.trailing_zeros();
            let found = self.find_from(entries, self.key_of(level, walk.block, &range), overlaps);
            if found.is_some() {
                // The caller removes the found range, and the next call searches this block again.
                return found;
            }
            if walk.block < *self.blocks(level, &range).end() {
                walk.block += 1;
            } else {
                walk.levels &= walk.levels - 1;
                self.begin(walk);
            }
        }
        None
    }

    /// Returns the number of ranges of each level, in the order in which a look-up searches the levels.
    #[cfg(test)]
    pub(super) fn populations(&self) -> impl Iterator<Item = u32> {
        self.levels[..self.in_use].iter().map(|level| self.counts[usize::from(*level)])
    }

    /// Returns the cache lines that a look-up of an address reads, including entries that it may read.
    #[cfg(test)]
    pub(super) fn lines(&self, address: u64) -> usize {
        let mut lines = 0;
        for level in &self.levels[..self.in_use] {
            let part = address >> self.part_shift(u32::from(*level));
            let (mut at, tag) = self.home(u32::from(*level), part >> STEP);
            loop {
                let bucket = &self.buckets.borrow()[at];
                lines += 1 + bucket.matches_one(tag, part as u32 % (1 << STEP)).count_ones() as usize;
                if bucket.beyond() == 0 {
                    break;
                }
                at = self.behind(at);
            }
        }
        lines
    }
}
