//! Caches that find a range by a B-tree or an AVL tree, and otherwise do the same as ours: references, access
//! rights, order of use, eviction, and a check for overlaps before a range is inserted.

use std::collections::BTreeMap;

use nemesia_core::regcache::Range;

use crate::avl::Tree;

const NONE: u32 = u32::MAX;

/// A set of ranges that do not overlap, ordered by address.
pub(crate) trait Finder: Default {
    /// Returns the entry that starts at or below this address and ends last of these.
    fn before(&self, address: u64) -> Option<u32>;
    fn insert(&mut self, range: &Range, entry: u32);
    fn remove(&mut self, range: &Range);
}

#[derive(Default)]
pub(crate) struct ByBTree(BTreeMap<u64, u32>);

impl Finder for ByBTree {
    fn before(&self, address: u64) -> Option<u32> {
        self.0.range(..=address).next_back().map(|(_, entry)| *entry)
    }

    fn insert(&mut self, range: &Range, entry: u32) {
        self.0.insert(range.start, entry);
    }

    fn remove(&mut self, range: &Range) {
        self.0.remove(&range.start);
    }
}

pub(crate) struct ByAvl(Tree);

impl Default for ByAvl {
    fn default() -> Self {
        Self(Tree::new())
    }
}

impl Finder for ByAvl {
    fn before(&self, address: u64) -> Option<u32> {
        self.0.find(address)
    }

    fn insert(&mut self, range: &Range, entry: u32) {
        self.0.insert(range.start, entry);
    }

    fn remove(&mut self, range: &Range) {
        self.0.remove(range.start);
    }
}

/// One registration, one cache line long, as in ours.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Entry {
    range: Range,
    handle: u32,
    rights: u32,
    holders: u32,
    prev: u32,
    next: u32,
}

/// The cache.
pub(crate) struct Rival<F> {
    finder: F,
    entries: Vec<Entry>,
    most: usize,
    oldest: u32,
    newest: u32,
}

impl<F: Finder> Rival<F> {
    pub(crate) fn new(most: usize) -> Self {
        let entries = Vec::with_capacity(most);
        Self { finder: F::default(), entries, most, oldest: NONE, newest: NONE }
    }

    /// Returns the handle of the entry that holds a range, and the entry; makes one if there is none. Returns
    /// `None` if the range overlaps another.
    #[inline]
    pub(crate) fn acquire(&mut self, wanted: &Range, rights: u32) -> Option<(u32, u32)> {
        if let Some(index) = self.finder.before(wanted.start) {
            let entry = &mut self.entries[index as usize];
            if entry.range.contains(wanted) && entry.rights & rights == rights {
                entry.holders += 1;
                let handle = entry.handle;
                if entry.holders == 1 {
                    self.unlink(index);
                }
                return Some((handle, index));
            }
        }
        self.miss(wanted, rights)
    }

    #[inline]
    pub(crate) fn release(&mut self, index: u32) {
        let entry = &mut self.entries[index as usize];
        entry.holders -= 1;
        if entry.holders == 0 {
            self.push(index);
        }
    }

    #[cold]
    fn miss(&mut self, wanted: &Range, rights: u32) -> Option<(u32, u32)> {
        let page = 4096;
        let range = Range { start: wanted.start / page * page, end: wanted.end.next_multiple_of(page) };
        let last = self.finder.before(range.end - 1).map(|index| self.entries[index as usize].range);
        if last.is_some_and(|last| last.overlaps(&range)) {
            return None;
        }
        let handle = (range.start / page) as u32;
        let entry = Entry { range, handle, rights, holders: 1, prev: NONE, next: NONE };
        let index = if self.entries.len() < self.most {
            self.entries.push(entry);
            self.entries.len() as u32 - 1
        } else {
            let oldest = self.oldest;
            let gone = self.entries.get(oldest as usize)?.range;
            self.unlink(oldest);
            self.finder.remove(&gone);
            self.entries[oldest as usize] = entry;
            oldest
        };
        self.finder.insert(&range, index);
        Some((handle, index))
    }

    fn unlink(&mut self, index: u32) {
        let Entry { prev, next, .. } = self.entries[index as usize];
        match prev {
            NONE => self.oldest = next,
            prev => self.entries[prev as usize].next = next,
        }
        match next {
            NONE => self.newest = prev,
            next => self.entries[next as usize].prev = prev,
        }
    }

    fn push(&mut self, index: u32) {
        let before = std::mem::replace(&mut self.newest, index);
        let entry = &mut self.entries[index as usize];
        (entry.prev, entry.next) = (before, NONE);
        match before {
            NONE => self.oldest = index,
            before => self.entries[before as usize].next = index,
        }
    }
}
