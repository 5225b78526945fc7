//! What the cache costs beside other structures that could hold the same ranges. Only the structures are timed: the registrar
//! does nothing.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;
use std::hash::{BuildHasherDefault, Hasher};
use std::hint::black_box;
use std::time::Instant;

use nemesia_core::regcache::{Cache, Entry, Limits, Range, Registrar};
use nemesia_core::slab::Slot;

use crate::avl::Tree;
use crate::rng::Rng;

const PAGE: u64 = 4096;
/// Operations in one timing.
const COUNT: usize = 200_000;
/// Timings, of which the median counts.
const ROUNDS: usize = 7;

/// Registers without doing anything.
struct Nothing;

impl Registrar for Nothing {
    type Handle = u32;
    type Error = ();

    fn register(&mut self, range: Range, _: u32) -> Result<u32, ()> {
        Ok((range.start / PAGE) as u32)
    }

    fn deregister(&mut self, _: Range, handle: u32) {
        black_box(handle);
    }
}

type Ours = Cache<u32, Vec<Slot<Entry<u32>>>, Vec<u32>>;

/// A multiplication: the cheapest hash that spreads addresses.
#[derive(Default)]
struct Multiply(u64);

impl Hasher for Multiply {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64((*byte).into()));
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = (self.0 ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(26);
    }
}

/// Ranges of 1 to 128 pages with gaps between them, and uses of random parts of them.
struct Load {
    ranges: Vec<Range>,
    parts: Vec<(usize, Range)>,
}

impl Load {
    fn new(count: usize) -> Self {
        let mut rng = Rng::new(7, count as u64);
        let mut at = PAGE * 1000;
        let mut range = || {
            let start = at + PAGE * (1 + rng.next() % 64);
            at = start + PAGE * (1 << (rng.next() % 8));
            Range { start, end: at }
        };
        let ranges: Vec<_> = (0..count).map(|_| range()).collect();
        let part = |_| {
            let at = rng.below(count);
            let (whole, len) = (ranges[at], 1 + rng.next() % PAGE);
            let start = whole.start + rng.next() % (whole.len() - len + 1);
            (at, Range { start, end: start + len })
        };
        let parts = (0..COUNT).map(part).collect();
        Self { ranges, parts }
    }
}

/// Nanoseconds for one of `count` operations, at the median.
fn time(count: usize, mut round: impl FnMut()) -> f64 {
    let mut times: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let start = Instant::now();
            round();
            start.elapsed().as_nanos() as f64 / count as f64
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times[ROUNDS / 2]
}

fn ours(entries: usize) -> Option<Ours> {
    let limits = Limits { bytes: u64::MAX / 2, keep: true, page_shift: 12 };
    let slots = (0..entries).map(|_| Slot::default()).collect();
    Cache::new(limits, slots, vec![0; (entries * 3).next_power_of_two()])
}

/// Acquires and releases; false when the cache refuses.
fn use_part(cache: &mut Ours, part: &Range) -> bool {
    let Ok(held) = cache.acquire(&mut Nothing, part.start, part.len(), 1) else { return false };
    black_box(cache.handle(&held));
    cache.release(&mut Nothing, held);
    true
}

/// The lines of the table for so many ranges.
fn lines(out: &mut String, count: usize) -> Option<()> {
    let load = Load::new(count);
    let mut cache = ours(count)?;
    let mut tree = BTreeMap::new();
    let mut avl = Tree::new();
    let mut hash = HashMap::<u64, u32, BuildHasherDefault<Multiply>>::default();
    for (range, id) in load.ranges.iter().zip(0u32..) {
        use_part(&mut cache, range).then_some(())?;
        tree.insert(range.start, (range.end, id));
        avl.insert(range.start, range.end, id);
        hash.insert(range.start, id);
    }
    let before = cache.counts();
    let hit = [
        time(COUNT, || load.parts.iter().for_each(|(_, part)| _ = use_part(&mut cache, part))),
        time(COUNT, || {
            for (_, part) in &load.parts {
                let found = tree.range(..=part.start).next_back();
                black_box(found.filter(|(_, (end, _))| part.end <= *end));
            }
        }),
        time(COUNT, || load.parts.iter().for_each(|(_, part)| _ = black_box(avl.find(part.start, part.end)))),
        time(COUNT, || {
            load.parts.iter().for_each(|(at, _)| _ = black_box(hash.get(&load.ranges[*at].start)));
        }),
    ];
    let hits = cache.counts().hits - before.hits;
    (hits == (COUNT * ROUNDS) as u64).then_some(())?;
    line(out, count, "hit", &hit);
    line(out, count, "miss", &miss(&load)?);
    line(out, count, "eviction", &eviction(&load)?);
    Some(())
}

/// Each range for the first time, into what is empty.
fn miss(load: &Load) -> Option<[f64; 3]> {
    let count = load.ranges.len();
    let (mut fine, mut caches) = (true, (0..ROUNDS).map(|_| ours(count)).collect::<Option<Vec<_>>>()?);
    Some([
        time(count, || {
            let mut cache = caches.pop();
            for range in &load.ranges {
                fine &= cache.as_mut().is_some_and(|cache| use_part(cache, range));
            }
        }),
        time(count, || {
            let mut tree = BTreeMap::new();
            for (range, id) in load.ranges.iter().zip(0u32..) {
                black_box(tree.range(..range.end).next_back());
                tree.insert(range.start, (range.end, id));
            }
        }),
        time(count, || {
            let mut avl = Tree::new();
            for (range, id) in load.ranges.iter().zip(0u32..) {
                black_box(avl.find(range.start, range.end));
                avl.insert(range.start, range.end, id);
            }
        }),
    ])
    .filter(|_| fine)
}

/// Each range in turn, where half of them have room: the one used least lately goes.
fn eviction(load: &Load) -> Option<[f64; 3]> {
    let count = load.ranges.len();
    let mut cache = ours(count / 2)?;
    let (mut tree, mut avl) = (BTreeMap::new(), Tree::new());
    let behind = |at: usize| load.ranges[(at + count - count / 2) % count];
    for (range, id) in load.ranges.iter().zip(0u32..).skip(count - count / 2) {
        use_part(&mut cache, range).then_some(())?;
        tree.insert(range.start, (range.end, id));
        avl.insert(range.start, range.end, id);
    }
    Some([
        time(count, || load.ranges.iter().for_each(|range| _ = use_part(&mut cache, range))),
        time(count, || {
            for (at, range) in load.ranges.iter().enumerate() {
                tree.remove(&behind(at).start);
                tree.insert(range.start, (range.end, at as u32));
            }
        }),
        time(count, || {
            for (at, range) in load.ranges.iter().enumerate() {
                avl.remove(behind(at).start);
                avl.insert(range.start, range.end, at as u32);
            }
        }),
    ])
}

fn line(out: &mut String, count: usize, what: &str, times: &[f64]) {
    let mut cells = [const { String::new() }; 4];
    for (cell, time) in cells.iter_mut().zip(times) {
        *cell = format!("{time:.1}");
    }
    let [ours, tree, avl, hash] = cells;
    let _ = writeln!(out, "{count:>8}  {what:<8} {ours:>8} {tree:>8} {avl:>8} {hash:>8}");
}

/// The table.
///
/// # Errors
/// The cache did not do what is timed.
pub(crate) fn table() -> Result<String, String> {
    let mut out =
        String::from("nanoseconds an operation; the cache's are with references, order of use and release\n");
    out += "  ranges  what        cache   B-tree      AVL     hash\n";
    for count in [16, 1000, 100_000] {
        lines(&mut out, count).ok_or_else(|| format!("the cache fails with {count} ranges"))?;
    }
    out += "hash: a look-up of the start in a plain hash table, which can't find a part\n";
    Ok(out)
}
