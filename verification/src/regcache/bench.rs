//! Measures the cache beside caches that find their ranges in other ways. All get the same uses, in the same
//! random order, from the same array. All count references and keep the order of use. The registrar does
//! nothing, so only the cache is timed.
//!
//! Hits are timed twice: back to back, so that the processor overlaps several; and dependent, so that the
//! next use depends on the handle of the last.

use std::collections::HashMap;
use std::fmt::Write;
use std::hash::{BuildHasherDefault, Hasher};
use std::hint::black_box;
use std::time::Instant;

use nemesia_core::regcache::{Bucket, Cache, Entry, Limits, Range, Registrar, buckets};

use crate::rivals::{ByAvl, ByBTree, Finder, Rival};
use crate::rng::Rng;

const PAGE: u64 = 4096;
/// The number of operations in one timing.
const COUNT: usize = 200_000;
/// The number of timings; the median counts.
const ROUNDS: usize = 7;

/// A registrar that does nothing.
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

type Ours = Cache<u32, Vec<Entry<u32>>, Vec<Bucket>>;

/// A hash by one multiplication, the cheapest that spreads addresses.
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

/// Some bytes of a range, and the start of the range.
struct Part {
    bytes: Range,
    whole: u64,
}

/// Ranges of 1 to 128 pages with gaps between them, in random order, and uses of random parts of them.
struct Load {
    ranges: Vec<Range>,
    parts: Vec<Part>,
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
        let mut ranges: Vec<_> = (0..count).map(|_| range()).collect();
        (1..count).for_each(|at| ranges.swap(at, rng.below(at + 1)));
        let part = |_| {
            let (whole, len) = (ranges[rng.below(count)], 1 + rng.next() % PAGE);
            let start = whole.start + rng.next() % (whole.len() - len + 1);
            Part { bytes: Range { start, end: start + len }, whole: whole.start }
        };
        let parts = (0..COUNT).map(part).collect();
        Self { ranges, parts }
    }
}

/// A cache under measurement.
trait Timed {
    /// Uses bytes and releases them. Returns the handle, below 2^31; `None` for a failure.
    fn use_once(&mut self, bytes: &Range) -> Option<u32>;
}

impl Timed for Ours {
    #[inline(never)]
    fn use_once(&mut self, bytes: &Range) -> Option<u32> {
        let held = self.acquire(&mut Nothing, bytes.start, bytes.len(), 1).ok()?;
        let handle = self.handle(&held);
        self.release(&mut Nothing, held);
        handle
    }
}

impl<F: Finder> Timed for Rival<F> {
    #[inline(never)]
    fn use_once(&mut self, bytes: &Range) -> Option<u32> {
        let (handle, held) = self.acquire(bytes, 1)?;
        self.release(held);
        Some(handle)
    }
}

/// A look-up of the start of a range, which cannot find a part of it.
type Plain = HashMap<u64, u32, BuildHasherDefault<Multiply>>;

/// Returns the median nanoseconds of one of `count` operations; `None` if one failed.
fn time(count: usize, mut round: impl FnMut() -> Option<()>) -> Option<f64> {
    let mut times = Vec::new();
    for _ in 0..ROUNDS {
        let start = Instant::now();
        round()?;
        times.push(start.elapsed().as_nanos() as f64 / count as f64);
    }
    times.sort_by(f64::total_cmp);
    Some(times[ROUNDS / 2])
}

/// Returns the cost of a hit back to back, and of a dependent hit.
fn hits(parts: &[Part], mut use_once: impl FnMut(&Part) -> Option<u32>) -> Option<[f64; 2]> {
    let fast = time(COUNT, || {
        parts.iter().try_for_each(|part| {
            black_box(use_once(part)?);
            Some(())
        })
    })?;
    let alone = time(COUNT, || {
        let mut last = 0;
        for at in 0..COUNT {
            // This bit is never set, but the processor cannot know that.
            last = use_once(&parts[at ^ (last >> 31) as usize])?;
        }
        Some(())
    })?;
    Some([fast, alone])
}

/// Returns the nanoseconds of a hit, a dependent hit, a miss and an eviction.
fn costs<T: Timed>(load: &Load, make: impl Fn(usize) -> Option<T>) -> Option<[f64; 4]> {
    let (count, ranges) = (load.ranges.len(), &load.ranges);
    let use_all = |cache: &mut T, ranges: &[Range]| {
        ranges.iter().try_for_each(|range| cache.use_once(range).map(|handle| _ = black_box(handle)))
    };
    let mut cache = make(count)?;
    use_all(&mut cache, ranges)?;
    let [fast, alone] = hits(&load.parts, |part| cache.use_once(&part.bytes))?;
    // Uses each range for the first time in an empty cache, often enough for the clock's resolution.
    let times = (COUNT / 10 / count).max(1);
    let mut empty = (0..ROUNDS * times).map(|_| make(count)).collect::<Option<Vec<_>>>()?;
    let mut full = Vec::new();
    let miss = time(count * times, || {
        for _ in 0..times {
            let mut cache = empty.pop()?;
            use_all(&mut cache, ranges)?;
            full.push(cache);
        }
        Some(())
    })?;
    // Uses the ranges in turn while only half of them have room: the least recently used entry is evicted.
    let mut small = make(count / 2)?;
    use_all(&mut small, ranges)?;
    let times = (COUNT / count).max(1);
    let eviction = time(count * times, || (0..times).try_for_each(|_| use_all(&mut small, ranges)))?;
    Some([fast, alone, miss, eviction])
}

fn ours(entries: usize) -> Option<Ours> {
    let limits = Limits { bytes: u64::MAX / 2, keep: true, page_shift: 12 };
    Cache::new(limits, vec![Entry::default(); entries], vec![Bucket::default(); buckets(entries)])
}

/// Adds the table's lines for `count` ranges.
fn lines(out: &mut String, count: usize) -> Option<()> {
    let load = Load::new(count);
    let cache = costs(&load, ours)?;
    let tree = costs(&load, |count| Some(Rival::<ByBTree>::new(count)))?;
    let avl = costs(&load, |count| Some(Rival::<ByAvl>::new(count)))?;
    let plain: Plain = load.ranges.iter().zip(0u32..).map(|(range, id)| (range.start, id)).collect();
    let hash = hits(&load.parts, |part| plain.get(&part.whole).copied())?;
    for (at, what) in ["hit", "hit alone", "miss", "eviction"].iter().enumerate() {
        let _ = write!(out, "{count:>8}  {what:<9} {:>8.1} {:>8.1} {:>8.1}", cache[at], tree[at], avl[at]);
        let _ = match hash.get(at) {
            Some(hash) => writeln!(out, " {hash:>8.1}"),
            None => writeln!(out),
        };
    }
    Some(())
}

/// Returns the table.
///
/// # Errors
/// A cache failed an operation that is timed.
pub(crate) fn table() -> Result<String, String> {
    let mut out = String::from("nanoseconds for a use and its end, with references and the order of use\n");
    out += "  ranges  what         cache   B-tree      AVL     hash\n";
    for count in [16, 1000, 100_000] {
        lines(&mut out, count).ok_or_else(|| format!("a cache fails with {count} ranges"))?;
    }
    out +=
        "hash: a look-up of the start in a plain hash table, which can't find a part, and counts nothing\n";
    out += "alone: the next use waits for the last one's handle\n";
    Ok(out)
}
