//! Drives a cache and its twin with the same operations.

use std::fmt;
use std::ops::AddAssign;

use nemesia_core::regcache::{AcquireError, Bucket, Cache, Counts, Entry, Held, Limits, Range, buckets};

use crate::recorder::{Event, Id, Recorder};
use crate::rng::Rng;
use crate::twin::{Answer, Script, Twin};

/// The number of operations on one cache.
const OPERATIONS: u64 = 20_000;

/// The number of ranges that are used again and again.
const RECENT: usize = 12;

/// Counts of everything that was done.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Total {
    pub(crate) operations: u64,
    caches: u64,
    refused: u64,
    full: u64,
    counts: Counts,
}

impl AddAssign for Total {
    fn add_assign(&mut self, other: Self) {
        self.operations += other.operations;
        self.caches += other.caches;
        self.refused += other.refused;
        self.full += other.full;
        self.counts.hits += other.counts.hits;
        self.counts.misses += other.counts.misses;
        self.counts.evicted += other.counts.evicted;
        self.counts.merged += other.counts.merged;
        self.counts.invalidated += other.counts.invalidated;
    }
}

impl fmt::Display for Total {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Counts { hits, misses, evicted, merged, invalidated } = self.counts;
        writeln!(
            out,
            "{} operations on {} caches: {hits} hits, {misses} misses",
            self.operations, self.caches
        )?;
        writeln!(out, "{evicted} evicted, {merged} merged, {invalidated} invalidated")?;
        writeln!(out, "{} refused by the registrar, {} by the limits", self.refused, self.full)?;
        writeln!(out, "the cache and its twin agree")
    }
}

/// A cache, its twin, and the handles that are held.
struct Pair {
    rng: Rng,
    cache: Cache<Id, Vec<Entry<Id>>, Vec<Bucket>>,
    twin: Twin,
    recorder: Recorder,
    held: Vec<(Held, Id)>,
    page: u64,
    /// The number of pages of the address space.
    pages: u64,
    most_held: usize,
    /// The ranges used most recently.
    wanted: Vec<(u64, u64)>,
    total: Total,
}

/// Runs at most `most` operations on the cache of this seed.
///
/// # Errors
/// How the cache differs from its twin.
pub(crate) fn run(seed: u64, most: u64) -> Result<Total, String> {
    let mut pair = Pair::new(seed)?;
    for step in 0..OPERATIONS.min(most) {
        pair.step().map_err(|what| format!("seed {seed}, operation {step}: {what}"))?;
    }
    pair.finish().map_err(|what| format!("seed {seed}, at the end: {what}"))
}

impl Pair {
    fn new(seed: u64) -> Result<Self, String> {
        let mut rng = Rng::new(seed, 1);
        let mut pick = |choices: &[u64]| choices[rng.below(choices.len())];
        let page_shift = pick(&[12, 16, 21]) as u32;
        let (pages, capacity) = (pick(&[16, 100, 1000, 1 << 14]), pick(&[1, 3, 8, 40]) as usize);
        let limits = Limits {
            bytes: pick(&[4, 30, 300, 1 << 20]) << page_shift,
            keep: pick(&[0, 1, 1, 1]) == 1,
            page_shift,
        };
        // From the smallest table, where many entries are not in their home slot.
        let (fewest, good) =
            ((capacity * 2).div_ceil(7).next_power_of_two() as u64, buckets(capacity) as u64);
        let table = vec![Bucket::default(); pick(&[fewest, good, good + 3, 256]) as usize];
        let refuse = pick(&[0, 0, 20, 4]) as usize;
        let most_held = pick(&[1, 4, 20]) as usize;
        let entries = vec![Entry::default(); capacity];
        Ok(Self {
            cache: Cache::new(limits, entries, table).ok_or("the cache refuses its limits")?,
            twin: Twin::new(limits, capacity),
            recorder: Recorder::new(seed, refuse),
            held: Vec::new(),
            page: 1 << page_shift,
            pages,
            most_held,
            wanted: Vec::new(),
            total: Total { caches: 1, ..Total::default() },
            rng,
        })
    }

    fn step(&mut self) -> Result<(), String> {
        self.total.operations += 1;
        match self.rng.below(100) {
            0 => {
                let (flushed, expected) = (self.cache.flush(&mut self.recorder), self.twin.flush());
                same("flushed", flushed, expected)?;
            }
            1..=3 => self.invalidate()?,
            4..=49 if !self.held.is_empty() => self.release(),
            _ if self.held.len() < self.most_held => self.acquire()?,
            _ => self.release(),
        }
        self.compare()
    }

    /// Returns a range that was used before, a part of one, or a new one.
    fn wanted(&mut self) -> (u64, u64) {
        if self.wanted.is_empty() || self.rng.one_in(4) {
            let range = self.range();
            if self.wanted.len() == RECENT {
                self.wanted.swap_remove(self.rng.below(RECENT));
            }
            self.wanted.push(range);
            return range;
        }
        let (start, len) = self.rng.pick(&self.wanted);
        let skip = if self.rng.one_in(2) { 0 } else { self.rng.next() % len.max(1) };
        (start.saturating_add(skip), len - skip)
    }

    /// Returns a range, sometimes at the very end of the address space.
    fn range(&mut self) -> (u64, u64) {
        let span = self.page * self.pages;
        let most = if self.rng.one_in(4) { span / 2 } else { self.page * 3 };
        let len = self.rng.next() % most;
        let start = self.rng.next() % span;
        if self.rng.one_in(200) { (u64::MAX - len / 2, len) } else { (self.page * 1000 + start, len) }
    }

    fn acquire(&mut self) -> Result<(), String> {
        let (address, len) = self.wanted();
        let rights = self.rng.pick(&[1, 1, 3, 7]);
        let outcome = self.cache.acquire(&mut self.recorder, address, len, rights);
        let id = outcome.as_ref().ok().and_then(|held| self.cache.handle(held));
        let answer = match &outcome {
            Ok(_) => Answer::Held(id.ok_or("what is held has no handle")?),
            Err(AcquireError::Range { .. }) => Answer::Range,
            Err(AcquireError::Full { .. }) => Answer::Full,
            Err(AcquireError::Refused(())) => Answer::Refused,
        };
        self.total.refused += u64::from(answer == Answer::Refused);
        self.total.full += u64::from(answer == Answer::Full);
        let expected = self.twin.acquire(address, len, rights, id, Script(self.recorder.events.iter()));
        same("answered", answer, expected)?;
        let (Ok(held), Some(id)) = (outcome, id) else { return Ok(()) };
        let range = self.cache.range(&held).ok_or("what is held has no range")?;
        let wanted = Range { start: address, end: address + len.max(1) };
        self.held.push((held, id));
        if range.contains(&wanted) { Ok(()) } else { Err(format!("{range:?} for {wanted:?}")) }
    }

    fn release(&mut self) {
        if self.held.is_empty() {
            return;
        }
        let (held, id) = self.held.swap_remove(self.rng.below(self.held.len()));
        self.cache.release(&mut self.recorder, held);
        self.twin.release(id);
    }

    fn invalidate(&mut self) -> Result<(), String> {
        let (start, len) = self.range();
        let range = Range { start, end: start.saturating_add(len) };
        let found = self.cache.invalidate(&mut self.recorder, range);
        same("withdrawn", found, self.twin.invalidate(&range))
    }

    /// Compares the requests of both to the registrar, and their counts.
    fn compare(&mut self) -> Result<(), String> {
        let events: Vec<Event> = std::mem::take(&mut self.recorder.events);
        self.twin.agrees(&events)?;
        same("bytes", self.cache.bytes(), self.twin.bytes())?;
        same("registrations", self.cache.registrations(), self.twin.registrations())?;
        match self.held.iter().find(|(_, id)| !self.recorder.is_live(*id)) {
            Some((_, id)) => Err(format!("{id} is in use, and not registered")),
            None => Ok(()),
        }
    }

    fn finish(mut self) -> Result<Total, String> {
        same("bytes of the registrar", self.recorder.bytes(), self.cache.bytes())?;
        while !self.held.is_empty() {
            self.release();
            self.compare()?;
        }
        self.cache.flush(&mut self.recorder);
        self.twin.flush();
        self.compare()?;
        same("bytes left behind", (self.recorder.bytes(), self.cache.bytes()), (0, 0))?;
        Ok(Total { counts: self.cache.counts(), ..self.total })
    }
}

fn same<T: Copy + PartialEq + fmt::Debug>(what: &str, found: T, expected: T) -> Result<(), String> {
    if found == expected { Ok(()) } else { Err(format!("{what}: {found:?}, should be {expected:?}")) }
}
