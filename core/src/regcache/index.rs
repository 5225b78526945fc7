//! From an address to the registered ranges that may hold it: see [`super`].
#![forbid(unsafe_code)]

use core::borrow::BorrowMut;

use super::{Entry, Range};
use crate::slab::{NONE, Slab, Slot};

/// Binary logarithm of how much larger the blocks of a level are than those of the level below. More means fewer levels to
/// probe and more chains for a range to stand in.
const STEP: u32 = 3;
/// Most blocks of its level that a range touches.
pub(super) const BLOCKS: usize = (1 << STEP) + 1;
/// Levels that a range of addresses can have.
const LEVELS: usize = 64usize.div_ceil(STEP as usize);

/// The chains. A link is `entry * BLOCKS + block`, so that each entry has a place for every block that it touches.
#[derive(Debug)]
pub(super) struct Index<B> {
    heads: B,
    /// Takes a hash to its chain.
    shift: u32,
    page_shift: u32,
    /// Bit `k`: there are ranges of level `k`.
    levels: u64,
    /// Ranges of each level.
    counts: [u32; LEVELS],
}

/// A walk over what overlaps a range, during which entries may be taken out.
#[derive(Clone, Copy, Debug)]
pub(super) struct Walk {
    range: Range,
    /// Levels that are still to be looked at.
    levels: u64,
    /// The next block of the lowest of them.
    block: u64,
    /// The next entry, when it is all entries that are looked at: the range has more blocks.
    every: Option<u32>,
}

impl<B: BorrowMut<[u32]>> Index<B> {
    /// Empty chains; `None` when there are none.
    pub(super) fn new(mut heads: B, page_shift: u32) -> Option<Self> {
        let bits = heads.borrow().len().checked_ilog2()?;
        heads.borrow_mut().fill(NONE);
        // A shift by 64 is none: one chain needs two.
        let shift = 64u32.checked_sub(bits.max(1))?;
        (bits > 0).then_some(Self { heads, shift, page_shift, levels: 0, counts: [0; LEVELS] })
    }

    #[inline(always)]
    fn chain(&self, level: u32, block: u64) -> usize {
        // Blocks have at most 52 bits, so no two keys are equal. The high bits of the product are the well mixed ones.
        let key = block ^ u64::from(level) << 56;
        (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> self.shift) as usize
    }

    fn level(&self, range: &Range) -> u32 {
        (range.len() >> self.page_shift).checked_ilog2().unwrap_or(0) / STEP
    }

    /// The blocks of its level that a range touches.
    fn blocks(&self, level: u32, range: &Range) -> core::ops::RangeInclusive<u64> {
        let shift = self.page_shift + level * STEP;
        range.start >> shift..=(range.end - 1) >> shift
    }

    /// The first range with this address that satisfies the test.
    #[inline]
    pub(super) fn find<H, E: BorrowMut<[Slot<Entry<H>>]>>(
        &self,
        entries: &Slab<Entry<H>, E>,
        address: u64,
        test: impl Fn(&Entry<H>) -> bool,
    ) -> Option<u32> {
        let mut levels = self.levels;
        while levels != 0 {
            let level = levels.trailing_zeros();
            levels &= levels - 1;
            let found = self.find_in(entries, level, address >> (self.page_shift + level * STEP), &test);
            if found.is_some() {
                return found;
            }
        }
        None
    }

    #[inline(always)]
    fn find_in<H, E: BorrowMut<[Slot<Entry<H>>]>>(
        &self,
        entries: &Slab<Entry<H>, E>,
        level: u32,
        block: u64,
        test: impl Fn(&Entry<H>) -> bool,
    ) -> Option<u32> {
        let mut link = self.heads.borrow()[self.chain(level, block)];
        while link != NONE {
            let (index, place) = (link / BLOCKS as u32, link as usize % BLOCKS);
            let entry = entries.get(index);
            if test(entry) {
                return Some(index);
            }
            link = entry.links[place];
        }
        None
    }

    /// Enters a range of whole pages.
    pub(super) fn insert<H, E: BorrowMut<[Slot<Entry<H>>]>>(
        &mut self,
        entries: &mut Slab<Entry<H>, E>,
        index: u32,
    ) {
        let range = entries.get(index).range;
        let level = self.level(&range);
        for (place, block) in self.blocks(level, &range).enumerate() {
            let chain = self.chain(level, block);
            let head = &mut self.heads.borrow_mut()[chain];
            entries.get_mut(index).links[place] = *head;
            *head = index * BLOCKS as u32 + place as u32;
        }
        entries.get_mut(index).indexed = true;
        self.counts[level as usize] += 1;
        self.levels |= 1 << level;
    }

    /// Takes a range out, if it is in.
    pub(super) fn remove<H, E: BorrowMut<[Slot<Entry<H>>]>>(
        &mut self,
        entries: &mut Slab<Entry<H>, E>,
        index: u32,
    ) {
        let entry = entries.get_mut(index);
        if !core::mem::replace(&mut entry.indexed, false) {
            return;
        }
        let range = entry.range;
        let level = self.level(&range);
        for (place, block) in self.blocks(level, &range).enumerate() {
            self.unlink(entries, self.chain(level, block), index * BLOCKS as u32 + place as u32);
        }
        self.counts[level as usize] -= 1;
        if self.counts[level as usize] == 0 {
            self.levels &= !(1 << level);
        }
    }

    fn unlink<H, E: BorrowMut<[Slot<Entry<H>>]>>(
        &mut self,
        entries: &mut Slab<Entry<H>, E>,
        chain: usize,
        gone: u32,
    ) {
        let place = |link: u32| (link / BLOCKS as u32, link as usize % BLOCKS);
        let next = {
            let (index, block) = place(gone);
            entries.get(index).links[block]
        };
        let mut link = self.heads.borrow()[chain];
        if link == gone {
            self.heads.borrow_mut()[chain] = next;
            return;
        }
        while link != NONE {
            let (index, block) = place(link);
            link = entries.get(index).links[block];
            if link == gone {
                entries.get_mut(index).links[block] = next;
                return;
            }
        }
    }

    /// A walk over all ranges that overlap this one.
    pub(super) fn walk<H, E: BorrowMut<[Slot<Entry<H>>]>>(
        &self,
        range: Range,
        entries: &Slab<Entry<H>, E>,
    ) -> Walk {
        if range.is_empty() {
            return Walk { range, levels: 0, block: 0, every: None };
        }
        let mut probes = 0u64;
        let mut levels = self.levels;
        while levels != 0 {
            let blocks = self.blocks(levels.trailing_zeros(), &range);
            probes = probes.saturating_add(blocks.end() - blocks.start() + 1);
            levels &= levels - 1;
        }
        let every = (probes > entries.touched() as u64).then_some(0);
        let mut walk = Walk { range, levels: self.levels, block: 0, every };
        self.begin(&mut walk);
        walk
    }

    /// Goes to the first block of the walk's level.
    fn begin(&self, walk: &mut Walk) {
        if walk.levels != 0 {
            walk.block = *self.blocks(walk.levels.trailing_zeros(), &walk.range).start();
        }
    }

    /// The next range of a walk, which may be taken out before the walk goes on.
    pub(super) fn next_overlapping<H, E: BorrowMut<[Slot<Entry<H>>]>>(
        &self,
        walk: &mut Walk,
        entries: &Slab<Entry<H>, E>,
    ) -> Option<u32> {
        let range = walk.range;
        let overlaps = |entry: &Entry<H>| entry.indexed && entry.range.overlaps(&range);
        if let Some(next) = walk.every {
            let touched = entries.touched() as u32;
            let found = (next..touched).find(|&index| overlaps(entries.get(index)));
            walk.every = Some(found.map_or(touched, |index| index + 1));
            return found;
        }
        while walk.levels != 0 {
            let level = walk.levels.trailing_zeros();
            let found = self.find_in(entries, level, walk.block, overlaps);
            if found.is_some() {
                // What was found is taken out, and the chain is looked at again.
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
}
