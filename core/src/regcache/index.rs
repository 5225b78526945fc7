//! From an address to the registered ranges that may hold it: see [`super`].
#![forbid(unsafe_code)]

use core::borrow::BorrowMut;

use super::Range;
use super::entries::{Entries, Entry, Wanted};

/// Binary logarithm of the parts of a block, and of how much larger the blocks of a level are than those below.
const STEP: u32 = 4;
/// Levels that a range of addresses can have: the smallest pages are of 2^12 bytes.
const LEVELS: usize = (64 - 12usize).div_ceil(STEP as usize);
/// Places in a bucket.
const LANES: usize = 7;

/// A part of the hash table: a cache line. A place holds a tag of 16 bits, the parts of the block that the range touches (never
/// none: that is a free place), and the entry. Tags and parts are four to a word, which are looked at together.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(64))]
pub struct Bucket {
    /// The last ones are no place, and always free.
    tags: [u64; 2],
    parts: [u64; 2],
    /// The last one counts the ranges that belong here or before, and had to go behind.
    entries: [u32; LANES + 1],
}

/// The lowest bit of each place in a word.
const LOW: u64 = 0x0001_0001_0001_0001;
/// The highest.
const HIGH: u64 = LOW << 15;

/// The lowest bit of each place whose tag is this one; also, rarely, of the place above such a one, and bits that mean nothing.
#[inline(always)]
const fn same(tags: u64, tag: u64) -> u64 {
    let differ = tags ^ (tag * LOW);
    (differ.wrapping_sub(LOW) & !differ) >> 15
}

impl Bucket {
    /// The places that may have this tag, all that do among them, and touch one of these parts: see [`lane`].
    #[inline(always)]
    fn matches(&self, wanted: Key) -> u64 {
        let wanted_parts = wanted.parts * LOW;
        let touch = |parts: u64| {
            let both = parts & wanted_parts;
            // The highest bit of a place, if any of it is set.
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

    /// Ranges that belong here or before, and had to go behind.
    #[inline(always)]
    const fn beyond(&self) -> u32 {
        self.entries[LANES]
    }

    /// Tag and parts of a place.
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

/// The first place that a match tells of.
#[inline(always)]
const fn lane(found: u64) -> usize {
    let bit = found.trailing_zeros() as usize;
    (bit >> 4 | (bit & 1) << 2) % (LANES + 1)
}

const PARTS: u64 = 0xffff;

/// What a block is looked for by: the bucket where it begins, its tag, and the parts of it that matter.
#[derive(Clone, Copy, Debug, Default)]
struct Key {
    home: usize,
    tag: u64,
    parts: u64,
}

/// Buckets that are right for so many entries: a good third of the places is used then.
pub(super) const fn buckets(entries: usize) -> usize {
    let least = entries.div_ceil(3).next_power_of_two();
    if least * LANES < entries * 2 { least * 2 } else { least }
}

/// The hash table, with open addressing by buckets.
#[derive(Debug)]
pub(super) struct Index<B> {
    buckets: B,
    /// Takes a hash to its bucket.
    shift: u32,
    /// The buckets in use, which are a power of two, less one.
    mask: usize,
    page_shift: u32,
    /// The levels of which there are ranges: the first so many, that of most ranges first.
    levels: [u8; LEVELS],
    in_use: usize,
    /// Ranges of each level.
    counts: [u32; LEVELS],
}

/// A walk over what overlaps a range, during which entries may be taken out.
#[derive(Clone, Copy, Debug)]
pub(super) struct Walk {
    range: Range,
    /// Bit `k`: level `k` is still to be looked at.
    levels: u32,
    /// The next block of the lowest of them.
    block: u64,
    /// The next entry, when it is all entries that are looked at: the range has more blocks.
    every: Option<u32>,
}

impl<B: BorrowMut<[Bucket]>> Index<B> {
    /// An empty table; `None` when it is too small for so many entries.
    pub(super) fn new(mut buckets: B, entries: usize, page_shift: u32) -> Option<Self> {
        let bits = buckets.borrow().len().checked_ilog2()?;
        // Each entry takes two places at most.
        (entries <= (LANES << bits) / 2).then_some(())?;
        buckets.borrow_mut().fill(Bucket::default());
        let (shift, mask) = (64 - bits.max(1), (1 << bits) - 1);
        let (levels, counts) = ([0; LEVELS], [0; LEVELS]);
        Some(Self { buckets, shift, mask, page_shift, levels, in_use: 0, counts })
    }

    /// Where a block of a level is looked for: bucket and tag.
    #[inline(always)]
    fn home(&self, level: u32, block: u64) -> (usize, u64) {
        // Blocks have at most 52 bits, so no two hashes are equal. The high bits are the well mixed ones.
        let hash = (block ^ u64::from(level) << 56).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        ((hash >> self.shift) as usize & self.mask, hash >> 32 & PARTS)
    }

    /// Binary logarithm of the bytes of a part of this level's blocks.
    #[inline(always)]
    fn part_shift(&self, level: u32) -> u32 {
        self.page_shift + level * STEP
    }

    /// Ranges of up to 16 pages are of level 0, up to 256 of level 1, and so on: none touches more than two blocks.
    fn level(&self, range: &Range) -> u32 {
        ((range.len() >> self.page_shift).max(2) - 1).ilog2() / STEP
    }

    /// The blocks of a level that a range touches.
    fn blocks(&self, level: u32, range: &Range) -> core::ops::RangeInclusive<u64> {
        let shift = self.part_shift(level);
        range.start >> shift >> STEP..=(range.end - 1) >> shift >> STEP
    }

    /// The key of a block, with the parts that a range touches.
    fn key_of(&self, level: u32, block: u64, range: &Range) -> Key {
        let shift = self.part_shift(level);
        let part = |address: u64| (address >> shift).wrapping_sub(block << STEP);
        // Before the block, or behind it.
        let first = if range.start >> shift >> STEP < block { 0 } else { part(range.start) };
        let last = part(range.end - 1).min((1 << STEP) - 1);
        let parts = (PARTS << first) & (PARTS >> (((1 << STEP) - 1) - last));
        let (home, tag) = self.home(level, block);
        Key { home, tag, parts }
    }

    /// A range that serves.
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
                let key = Key { home, tag, parts: 1 << (part % (1 << STEP)) };
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
        key: Key,
        wanted: Wanted,
    ) -> Option<u32> {
        self.find_from(entries, key, |entry| entry.serves(&wanted))
    }

    /// An entry of this key that satisfies the test.
    #[inline]
    fn find_from<H, E: BorrowMut<[Entry<H>]>>(
        &self,
        entries: &Entries<E>,
        key: Key,
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

    /// Enters a range of whole pages.
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

    /// Puts a level into its place among those in use, after its count has changed by one.
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
        // Only the last one can have none.
        self.in_use -= usize::from(count(&self.levels[self.in_use - 1]) == 0);
    }

    fn place(&mut self, key: Key, index: u32) {
        let mut at = key.home;
        loop {
            let bucket = &mut self.buckets.borrow_mut()[at];
            if let Some(lane) = (0..LANES).find(|&lane| bucket.place(lane).1 == 0) {
                bucket.set(lane, key.tag, key.parts);
                bucket.entries[lane] = index;
                return;
            }
            // There is a free place: see `new`.
            bucket.entries[LANES] += 1;
            at = self.behind(at);
        }
    }

    /// Takes a range out, if it is in.
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

    fn clear(&mut self, key: Key, index: u32) {
        let mut at = key.home;
        loop {
            let bucket = &mut self.buckets.borrow_mut()[at];
            let is =
                |&lane: &usize| bucket.entries[lane] == index && bucket.place(lane) == (key.tag, key.parts);
            if let Some(lane) = (0..LANES).find(is) {
                bucket.set(lane, 0, 0);
                return;
            }
            // It is in: it went behind each bucket before its own.
            bucket.entries[LANES] -= 1;
            at = self.behind(at);
        }
    }

    /// A walk over all ranges that overlap this one.
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

    /// Goes to the first block of the walk's level.
    fn begin(&self, walk: &mut Walk) {
        if walk.levels != 0 {
            walk.block = *self.blocks(walk.levels.trailing_zeros(), &walk.range).start();
        }
    }

    /// The next range of a walk, which is taken out before the walk goes on.
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
                // What was found is taken out, and the block is looked at again.
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

    /// The cache lines that a look-up of an address reads, and those of entries that it may.
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
