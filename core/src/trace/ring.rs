//! The ring of entries and exits, and the tree built from it.
#![forbid(unsafe_code)]

use core::borrow::BorrowMut;
use core::fmt;

use super::Recorder;

/// One entry or exit. Private to the ring; public only so that the caller can lend its storage.
#[derive(Clone, Copy, Debug, Default)]
pub struct Record {
    /// Time by the lent clock.
    time: u64,
    /// Name of the function; empty for an exit.
    name: &'static str,
    value: u64,
}

impl Record {
    const fn is_entry(&self) -> bool {
        !self.name.is_empty()
    }
}

/// The last entries and exits of one thread, in as many records as the caller lends. Without records nothing
/// is recorded.
#[derive(Debug)]
pub struct TraceRing<B> {
    records: B,
    /// Number of records written and not removed.
    next: u64,
    /// The highest value of `next`. Records older than this by the length of the ring are overwritten.
    most: u64,
    /// Nanoseconds since any moment; must never decrease.
    clock: fn() -> u64,
}

impl<B: BorrowMut<[Record]>> TraceRing<B> {
    /// Returns an empty ring.
    pub const fn new(records: B, clock: fn() -> u64) -> Self {
        Self { records, next: 0, most: 0, clock }
    }

    /// Returns the content of the ring as a tree, for printing.
    pub const fn tree(&self) -> Tree<'_, B> {
        Tree { ring: self }
    }

    /// Returns the number of overwritten records.
    pub fn lost(&self) -> u64 {
        self.most.saturating_sub(self.records.borrow().len() as u64)
    }

    /// Removes all records.
    pub const fn clear(&mut self) {
        (self.next, self.most) = (0, 0);
    }

    fn push(&mut self, record: Record) {
        let records = self.records.borrow_mut();
        let Some(at) = self.next.checked_rem(records.len() as u64) else { return };
        records[at as usize] = record;
        self.next += 1;
        self.most = self.most.max(self.next);
    }

    fn get(&self, number: u64) -> Option<&Record> {
        let records = self.records.borrow();
        if number >= self.next || number < self.lost() {
            return None;
        }
        records.get(number.checked_rem(records.len() as u64)? as usize)
    }

    fn iter(&self) -> impl Iterator<Item = (u64, &Record)> {
        (self.lost()..self.next).filter_map(|number| Some((number, self.get(number)?)))
    }

    /// Returns the duration of a function including the functions that it called, and the part spent in
    /// those. `None` if the function has not returned.
    fn took(&self, entry: u64) -> Option<(u64, u64)> {
        let start = self.get(entry)?.time;
        let (mut depth, mut child, mut called) = (0_u32, 0, 0);
        for number in entry + 1..self.next {
            let record = self.get(number)?;
            if record.is_entry() {
                if depth == 0 {
                    child = record.time;
                }
                depth += 1;
                continue;
            }
            match depth {
                0 => return Some((record.time.saturating_sub(start), called)),
                1 => called += record.time.saturating_sub(child),
                _ => {}
            }
            depth -= 1;
        }
        None
    }
}

impl<B: BorrowMut<[Record]>> Recorder for TraceRing<B> {
    fn enter(&mut self, name: &'static str, value: u64) {
        let time = (self.clock)();
        self.push(Record { time, name, value });
    }

    fn leave(&mut self, happened: bool) {
        let last = self.next.checked_sub(1);
        if !happened && last.and_then(|last| self.get(last)).is_some_and(Record::is_entry) {
            self.next -= 1;
            return;
        }
        let time = (self.clock)();
        self.push(Record { time, name: "", value: 0 });
    }
}

/// The tree: one line per entry, with its start, its duration, and its duration without called functions, in
/// nanoseconds.
#[derive(Debug)]
pub struct Tree<'a, B> {
    ring: &'a TraceRing<B>,
}

impl<B: BorrowMut<[Record]>> fmt::Display for Tree<'_, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ring = self.ring;
        let entries = ring.iter().filter(|(_, record)| record.is_entry()).count();
        writeln!(f, "call tree of {entries} entries; {} records before them are lost", ring.lost())?;
        writeln!(f, "{:>12} {:>10} {:>10}  function, value", "at ns", "total ns", "self ns")?;
        let origin = ring.iter().next().map_or(0, |(_, record)| record.time);
        let mut depth = 0_usize;
        for (number, record) in ring.iter() {
            if !record.is_entry() {
                // If the entry of an exit was overwritten, the depth is unchanged.
                depth = depth.saturating_sub(1);
                continue;
            }
            let at = record.time.saturating_sub(origin);
            match ring.took(number) {
                Some((total, called)) => {
                    write!(f, "{at:>12} {total:>10} {:>10}", total.saturating_sub(called))?;
                }
                // The function has not returned yet.
                None => write!(f, "{at:>12} {:>10} {:>10}", "-", "-")?,
            }
            writeln!(f, "  {:indent$}{} {}", "", record.name, record.value, indent = 2 * depth)?;
            depth += 1;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use core::sync::atomic::{AtomicU64, Ordering};
    use std::string::{String, ToString};
    use std::vec;
    use std::vec::Vec;

    use super::*;

    /// Each reading of the clock is 10 ns after the preceding one.
    fn clock() -> u64 {
        std::thread_local!(static MINE: AtomicU64 = const { AtomicU64::new(1000) });
        MINE.with(|now| now.fetch_add(10, Ordering::Relaxed))
    }

    fn ring(records: usize) -> TraceRing<Vec<Record>> {
        TraceRing::new(vec![Record::default(); records], clock)
    }

    fn lines(ring: &TraceRing<Vec<Record>>) -> Vec<String> {
        ring.tree()
            .to_string()
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
            .collect()
    }

    #[test]
    fn functions_stand_below_their_callers_with_total_and_own_time() {
        let mut ring = ring(16);
        ring.enter("outer", 1);
        ring.enter("first", 2);
        ring.leave(true);
        ring.enter("second", 3);
        ring.note("leaf", 4);
        ring.leave(true);
        ring.leave(true);
        let lines = lines(&ring);
        assert_eq!(lines[0], "call tree of 4 entries; 0 records before them are lost");
        assert_eq!(
            lines[2..],
            ["0 70 30 outer 1", "10 10 10 first 2", "30 30 20 second 3", "40 10 10 leaf 4"]
        );
        let text = ring.tree().to_string();
        let indents: Vec<_> =
            text.lines().skip(2).map(|line| line[36..].len() - line[36..].trim_start().len()).collect();
        assert_eq!(indents, [0, 2, 2, 4]);
    }

    #[test]
    fn a_function_that_did_nothing_is_removed_unless_it_called_one_that_did() {
        let mut ring = ring(8);
        for _ in 0..100 {
            ring.enter("idle", 0);
            ring.enter("inner", 0);
            ring.leave(false);
            ring.leave(false);
        }
        assert_eq!((lines(&ring).len(), ring.lost()), (2, 0));
        ring.enter("idle", 0);
        ring.note("packet", 8);
        ring.leave(false);
        assert_eq!(lines(&ring)[2..].len(), 2);
    }

    #[test]
    fn the_oldest_are_overwritten_and_counted_and_exits_without_entries_are_left_out() {
        let mut ring = ring(5);
        ring.enter("outer", 0);
        (0..3).for_each(|value| ring.note("leaf", value));
        ring.leave(true);
        ring.enter("open", 9);
        assert_eq!(ring.lost(), 4);
        let lines = lines(&ring);
        assert_eq!(lines[0], "call tree of 2 entries; 4 records before them are lost");
        assert!(lines[2].ends_with("leaf 2") && lines[3].ends_with("- - open 9"), "{lines:?}");
        // A removed entry does not restore the record that it overwrote.
        ring.enter("idle", 0);
        ring.leave(false);
        assert_eq!(ring.lost(), 5);
        ring.clear();
        assert_eq!((ring.lost(), ring.iter().count()), (0, 0));
    }

    #[test]
    fn without_storage_nothing_is_recorded() {
        let mut ring = ring(0);
        ring.note("leaf", 1);
        ring.leave(false);
        assert_eq!((ring.iter().count(), ring.lost()), (0, 0));
    }
}
