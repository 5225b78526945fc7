//! The slab against vectors.

use std::vec;
use std::vec::Vec;

use proptest::prelude::*;

use super::{List, Slab, Slot};
use crate::shared::tests::{Rng, cases};

const LISTS: usize = 3;

#[derive(Clone, Copy, Debug)]
enum SlabOp {
    /// Inserts a value into this list.
    Insert(usize),
    /// Removes the n-th slot of this list.
    Unlink(usize, usize),
    /// Moves the n-th slot of a list to another list.
    Move(usize, usize, usize),
    Grow,
}

/// The slab with a few lists in it, and their expected content.
struct Lists {
    slab: Slab<u64, Vec<Slot<u64>>>,
    lists: [List; LISTS],
    expected: [Vec<(u32, u64)>; LISTS],
    inserted: u64,
    /// Identifiers that were live before and are not any more.
    stale: Vec<(u32, u32)>,
}

fn slots(count: usize) -> Vec<Slot<u64>> {
    (0..count).map(|_| Slot::default()).collect()
}

impl Lists {
    fn new(capacity: usize) -> Self {
        Self {
            slab: Slab::new(slots(capacity)),
            lists: [List::new(); LISTS],
            expected: Default::default(),
            inserted: 0,
            stale: vec![],
        }
    }

    fn used(&self) -> usize {
        self.expected.iter().map(Vec::len).sum()
    }

    fn apply(&mut self, op: SlabOp) {
        match op {
            SlabOp::Insert(list) => {
                self.inserted += 1;
                let full = self.used() == self.slab.capacity();
                match self.slab.insert(self.inserted) {
                    Ok(index) => {
                        assert!(!full);
                        self.slab.push_back(&mut self.lists[list], index);
                        self.expected[list].push((index, self.inserted));
                    }
                    Err(value) => assert!(full && value == self.inserted),
                }
            }
            SlabOp::Unlink(list, at) => {
                let Some((index, _)) = self.unlink(list, at) else { return };
                self.stale.push((index, self.slab.generation(index)));
                self.slab.remove(index);
            }
            SlabOp::Move(from, at, to) => {
                let Some((index, value)) = self.unlink(from, at) else { return };
                self.slab.push_back(&mut self.lists[to], index);
                self.expected[to].push((index, value));
            }
            SlabOp::Grow => self.slab.grow(1),
        }
    }

    fn unlink(&mut self, list: usize, at: usize) -> Option<(u32, u64)> {
        if self.expected[list].is_empty() {
            return None;
        }
        let at = at % self.expected[list].len();
        let (index, value) = self.expected[list].remove(at);
        self.slab.unlink(&mut self.lists[list], index);
        Some((index, value))
    }

    fn check(&self) {
        assert_eq!(self.slab.used(), self.used());
        for (list, expected) in self.lists.iter().zip(&self.expected) {
            assert_eq!(list.is_empty(), expected.is_empty());
            let mut found = vec![];
            let mut at = list.first();
            while let Some(index) = at {
                found.push((index, *self.slab.get(index)));
                assert!(self.slab.is_live(index, self.slab.generation(index)));
                assert!(found.len() <= expected.len(), "the list has a cycle: {found:?}");
                at = self.slab.next(index);
            }
            assert_eq!(&found, expected);
            if let Some(&(index, value)) = expected.last() {
                assert_eq!(self.slab.find(list, |&it| it == value), Some(index));
            }
            assert_eq!(self.slab.find(list, |&it| it > self.inserted), None);
        }
        for &(index, generation) in self.stale.iter().rev().take(32) {
            assert!(!self.slab.is_live(index, generation), "a freed slot is live");
        }
    }
}

fn op() -> impl Strategy<Value = SlabOp> {
    prop_oneof![
        5 => (0..LISTS).prop_map(SlabOp::Insert),
        3 => (0..LISTS, any::<usize>()).prop_map(|(list, at)| SlabOp::Unlink(list, at)),
        2 => (0..LISTS, any::<usize>(), 0..LISTS).prop_map(|(from, at, to)| SlabOp::Move(from, at, to)),
        1 => Just(SlabOp::Grow),
    ]
}

proptest! {
    #![proptest_config(cases(128))]

    #[test]
    fn lists_keep_their_order(capacity in 0..10usize, ops in prop::collection::vec(op(), 0..200)) {
        let mut lists = Lists::new(capacity);
        for op in ops {
            lists.apply(op);
            lists.check();
        }
    }
}

#[test]
fn slab_agrees_with_the_vectors_for_long() {
    for seed in 0..4 {
        let mut rng = Rng::new(seed);
        let mut lists = Lists::new(5);
        for _ in 0..4000 {
            let (from, to, at) = (rng.below(LISTS), rng.below(LISTS), rng.below(100));
            lists.apply(match rng.below(100) {
                0 if lists.slab.capacity() < 40 => SlabOp::Grow,
                0..=45 => SlabOp::Insert(to),
                46..=80 => SlabOp::Unlink(from, at),
                _ => SlabOp::Move(from, at, to),
            });
            lists.check();
        }
    }
}

#[test]
fn identifier_of_a_freed_slot_stays_stale_when_the_slot_is_used_again() {
    let mut slab: Slab<u64, _> = Slab::new(slots(1));
    let index = slab.insert(1).unwrap();
    let generation = slab.generation(index);
    slab.remove(index);
    assert!(!slab.is_live(index, generation));
    assert_eq!(slab.insert(2), Ok(index));
    assert!(!slab.is_live(index, generation) && slab.is_live(index, slab.generation(index)));
}

#[test]
fn number_that_names_no_slot_is_not_live() {
    let mut slab: Slab<u64, _> = Slab::new(slots(2));
    slab.insert(1).unwrap();
    for index in [1, 2, u32::MAX - 1, u32::MAX] {
        assert!(!slab.is_live(index, 0), "slot {index}");
    }
}
