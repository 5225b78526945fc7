//! The guarantees of the cache to its users, one at a time. `cargo regcache` compares the cache with a
//! reference model at length.

use std::vec;
use std::vec::Vec;

use super::{AcquireError, Bucket, Cache, Entry, Held, Limits, Range, Registrar, buckets};
use crate::shared::tests::Rng;

const PAGE: u64 = 4096;

/// Numbers each registration, and records which exist.
#[derive(Default)]
struct Device {
    registered: Vec<(u32, Range, u32)>,
    made: u32,
    /// Registrations beyond this address are refused.
    end: Option<u64>,
    /// Most bytes that the system allows to pin.
    most: Option<u64>,
    /// Changes of this range are not reported.
    mute: Option<Range>,
}

impl Registrar for Device {
    type Handle = u32;
    type Error = &'static str;

    fn register(&mut self, range: Range, rights: u32) -> Result<u32, &'static str> {
        let pinned: u64 = self.registered.iter().map(|(_, range, _)| range.len()).sum();
        if self.end.is_some_and(|end| range.end > end) {
            return Err("nothing is mapped there");
        }
        if self.most.is_some_and(|most| pinned + range.len() > most) {
            return Err("out of memory");
        }
        self.made += 1;
        self.registered.push((self.made, range, rights));
        Ok(self.made)
    }

    fn deregister(&mut self, range: Range, handle: u32) {
        let at = self.registered.iter().position(|(it, ..)| *it == handle).unwrap();
        assert_eq!(self.registered.remove(at).1, range);
    }

    fn reported(&mut self, range: Range) -> bool {
        self.mute.is_none_or(|mute| !mute.overlaps(&range))
    }
}

type TestCache = Cache<u32, Vec<Entry<u32>>, Vec<Bucket>>;

fn cache(entries: usize, pages: u64, keep: bool) -> TestCache {
    let slots = vec![Entry::default(); entries];
    Cache::new(
        Limits { bytes: pages * PAGE, keep, page_shift: 12 },
        slots,
        vec![Bucket::default(); buckets(entries)],
    )
    .unwrap()
}

fn pages(start: u64, end: u64) -> Range {
    Range { start: start * PAGE, end: end * PAGE }
}

/// Acquires whole pages.
fn acquire(cache: &mut TestCache, device: &mut Device, start: u64, end: u64) -> Held {
    cache.acquire(device, start * PAGE, (end - start) * PAGE, 1).unwrap()
}

/// Acquires whole pages, and releases them.
fn touch(cache: &mut TestCache, device: &mut Device, start: u64, end: u64) -> u32 {
    let held = acquire(cache, device, start, end);
    let handle = cache.handle(&held).unwrap();
    cache.release(device, held);
    handle
}

#[test]
fn any_part_of_a_registered_range_is_a_hit() {
    for (start, end) in [(1, 2), (7, 8), (8, 16), (5, 20), (3, 66), (1000, 1127), (0, 1024)] {
        let (mut cache, mut device) = (cache(4, 1 << 20, true), Device::default());
        let whole = touch(&mut cache, &mut device, start, end);
        for at in start..end {
            for (address, len) in [(at * PAGE, PAGE), (at * PAGE + 17, 1), (at * PAGE, (end - at) * PAGE)] {
                let held = cache.acquire(&mut device, address, len, 1).unwrap();
                assert_eq!(cache.handle(&held), Some(whole), "{len} bytes at {address:#x} of {start}..{end}");
                cache.release(&mut device, held);
            }
        }
        assert_eq!(device.made, 1);
    }
}

#[test]
fn ranges_that_overlap_become_one_and_ranges_that_touch_do_not() {
    let (mut cache, mut device) = (cache(8, 1000, true), Device::default());
    touch(&mut cache, &mut device, 10, 14);
    touch(&mut cache, &mut device, 14, 18);
    assert_eq!(cache.registrations(), 2);
    // Over both ranges, and beyond.
    let held = acquire(&mut cache, &mut device, 12, 20);
    assert_eq!(cache.range(&held), Some(pages(10, 20)));
    assert_eq!((cache.registrations(), cache.bytes(), cache.counts().merged), (1, 10 * PAGE, 2));
    cache.release(&mut device, held);
    assert_eq!(device.registered.len(), 1);
}

#[test]
fn range_in_use_is_replaced_and_lives_until_its_last_user_is_done() {
    let (mut cache, mut device) = (cache(8, 1000, true), Device::default());
    let old = acquire(&mut cache, &mut device, 10, 14);
    let new = acquire(&mut cache, &mut device, 13, 16);
    assert_eq!(cache.range(&new), Some(pages(10, 16)));
    assert_eq!(cache.range(&old), Some(pages(10, 14)));
    assert_eq!(device.registered.len(), 2, "the first is still in use");
    cache.release(&mut device, old);
    assert_eq!(device.registered.len(), 1);
    cache.release(&mut device, new);
    assert_eq!((device.registered.len(), cache.bytes()), (1, 6 * PAGE));
}

#[test]
fn more_rights_than_registered_are_no_hit_and_less_are() {
    let (mut cache, mut device) = (cache(8, 1000, true), Device::default());
    let all = cache.acquire(&mut device, PAGE, PAGE, 0b11).unwrap();
    let less = cache.acquire(&mut device, PAGE, PAGE, 0b01).unwrap();
    assert_eq!(cache.handle(&all), cache.handle(&less));
    let more = cache.acquire(&mut device, PAGE, PAGE, 0b100).unwrap();
    assert_ne!(cache.handle(&all), cache.handle(&more));
    assert_eq!(device.registered.last(), Some(&(2, pages(1, 2), 0b111)));
    for held in [all, less, more] {
        cache.release(&mut device, held);
    }
    assert_eq!(device.registered.len(), 1);
}

#[test]
fn least_recently_used_is_evicted_first_and_ranges_in_use_never() {
    let (mut cache, mut device) = (cache(3, 1000, true), Device::default());
    let held = acquire(&mut cache, &mut device, 0, 1);
    touch(&mut cache, &mut device, 10, 11);
    touch(&mut cache, &mut device, 20, 21);
    touch(&mut cache, &mut device, 10, 11);
    touch(&mut cache, &mut device, 30, 31);
    let left: Vec<_> = device.registered.iter().map(|(_, range, _)| *range).collect();
    assert_eq!(left, [pages(0, 1), pages(10, 11), pages(30, 31)]);
    cache.release(&mut device, held);
}

#[test]
fn limits_hold_for_bytes_and_for_entries() {
    let (mut cache, mut device) = (cache(2, 10, true), Device::default());
    let full = cache.acquire(&mut device, 0, 11 * PAGE, 1).unwrap_err();
    assert_eq!(full, AcquireError::Full { wanted: 11 * PAGE, used: 0, limit: 10 * PAGE, entries: 2 });
    let six = acquire(&mut cache, &mut device, 0, 6);
    let full = cache.acquire(&mut device, 20 * PAGE, 5 * PAGE, 1).unwrap_err();
    assert_eq!(full, AcquireError::Full { wanted: 5 * PAGE, used: 6 * PAGE, limit: 10 * PAGE, entries: 2 });
    let one = acquire(&mut cache, &mut device, 20, 21);
    let full = cache.acquire(&mut device, 30 * PAGE, 1, 1).unwrap_err();
    assert_eq!(full, AcquireError::Full { wanted: PAGE, used: 7 * PAGE, limit: 10 * PAGE, entries: 2 });
    cache.release(&mut device, six);
    touch(&mut cache, &mut device, 30, 39);
    assert_eq!(device.registered.len(), 2);
    cache.release(&mut device, one);
}

#[test]
fn refusal_of_the_system_costs_unused_registrations_before_it_is_reported() {
    let (mut cache, mut device) = (cache(8, 1000, true), Device::default());
    touch(&mut cache, &mut device, 0, 4);
    touch(&mut cache, &mut device, 10, 14);
    let held = acquire(&mut cache, &mut device, 20, 24);
    device.most = Some(12 * PAGE);
    touch(&mut cache, &mut device, 30, 34);
    assert_eq!(cache.counts().evicted, 1, "no more than needed");
    let refused = cache.acquire(&mut device, 40 * PAGE, 10 * PAGE, 1).unwrap_err();
    assert_eq!(refused, AcquireError::Refused("out of memory"));
    assert_eq!(device.registered.len(), 1, "every unused registration was evicted");
    cache.release(&mut device, held);
}

#[test]
fn union_that_is_refused_is_not_retried() {
    let (mut cache, mut device) = (cache(8, 1000, true), Device::default());
    touch(&mut cache, &mut device, 100, 101);
    touch(&mut cache, &mut device, 8, 12);
    // The end of the union was unmapped without a report.
    device.end = Some(200 * PAGE);
    device.most = Some(5 * PAGE);
    let held = acquire(&mut cache, &mut device, 6, 10);
    assert_eq!(cache.range(&held), Some(pages(6, 10)));
    assert_eq!(device.registered[0].1, pages(100, 101), "an optional union evicts nothing");
    cache.release(&mut device, held);
}

#[test]
fn invalidated_range_is_no_hit_and_is_deregistered_by_its_last_user() {
    let (mut cache, mut device) = (cache(8, 1000, true), Device::default());
    touch(&mut cache, &mut device, 0, 4);
    let held = acquire(&mut cache, &mut device, 10, 14);
    touch(&mut cache, &mut device, 20, 24);
    assert_eq!(cache.invalidate(&mut device, pages(14, 20)), 0, "between them");
    assert_eq!(cache.invalidate(&mut device, Range { start: 4 * PAGE - 1, end: 10 * PAGE + 1 }), 2);
    assert_eq!(device.registered.len(), 2, "one is in use, and one was not affected");
    assert_eq!(cache.handle(&held), Some(2));
    let again = acquire(&mut cache, &mut device, 10, 14);
    assert_eq!(cache.handle(&again), Some(4), "a new registration, of the new pages");
    cache.release(&mut device, held);
    cache.release(&mut device, again);
    assert_eq!(cache.invalidate(&mut device, Range { start: 0, end: u64::MAX }), 2);
    assert_eq!((device.registered.len(), cache.bytes(), cache.registrations()), (0, 0, 0));
    assert_eq!(cache.invalidate(&mut device, Range { start: 9, end: 9 }), 0);
}

#[test]
fn nothing_outlives_its_use_where_changes_are_not_reported() {
    let (mut cache, mut device) = (cache(8, 1000, false), Device::default());
    let first = acquire(&mut cache, &mut device, 0, 4);
    let second = cache.acquire(&mut device, 17, 4 * PAGE - 17, 1).unwrap();
    assert_eq!((device.made, cache.counts().hits), (1, 1), "a registration in use is shared");
    cache.release(&mut device, first);
    assert_eq!(device.registered.len(), 1);
    cache.release(&mut device, second);
    assert_eq!(device.registered.len(), 0);
}

/// A user guarantees the stability only of the pages that it acquired. If changes are not reported, the other
/// pages may change.
#[test]
fn unreported_pages_that_no_user_guarantees_are_no_hit() {
    for (keep, mute) in [(false, None), (true, Some(pages(0, 9)))] {
        let (mut cache, mut device) = (cache(8, 1000, keep), Device { mute, ..Device::default() });
        let whole = acquire(&mut cache, &mut device, 0, 4);
        let part = acquire(&mut cache, &mut device, 1, 2);
        cache.release(&mut device, whole);
        // The first page may have changed now.
        let made = device.made;
        let first = acquire(&mut cache, &mut device, 0, 1);
        assert_eq!((device.made, cache.range(&first)), (made + 1, Some(pages(0, 1))), "keep: {keep}");
        cache.release(&mut device, first);
        cache.release(&mut device, part);
        assert_eq!((device.registered.len(), cache.bytes()), (0, 0));
    }
}

#[test]
fn unreported_pages_are_not_registered_beyond_the_request() {
    for (keep, mute) in [(false, None), (true, Some(pages(0, 9))), (true, Some(pages(6, 7)))] {
        let (mut cache, mut device) = (cache(8, 1000, keep), Device { mute, ..Device::default() });
        let old = acquire(&mut cache, &mut device, 0, 4);
        let new = acquire(&mut cache, &mut device, 3, 8);
        assert_eq!(cache.range(&new), Some(pages(3, 8)), "keep: {keep}");
        cache.release(&mut device, old);
        let made = device.made;
        let first = acquire(&mut cache, &mut device, 0, 1);
        assert_eq!(device.made, made + 1, "a stale registration, keep: {keep}");
        cache.release(&mut device, first);
        cache.release(&mut device, new);
    }
}

#[test]
fn range_whose_changes_are_not_reported_does_not_outlive_its_use() {
    let (mut cache, mut device) = (cache(8, 1000, true), Device::default());
    device.mute = Some(pages(5, 6));
    touch(&mut cache, &mut device, 0, 4);
    touch(&mut cache, &mut device, 5, 8);
    assert_eq!((cache.registrations(), device.registered[0].1), (1, pages(0, 4)));
    assert!(cache.overlaps(pages(3, 9)) && !cache.overlaps(pages(4, 9)));
}

#[test]
fn end_of_the_address_space_is_an_error_and_not_a_wrap() {
    let (mut cache, mut device) = (cache(8, 1 << 40, true), Device::default());
    for (address, len) in
        [(u64::MAX, 0), (u64::MAX, 1), (u64::MAX - 5, 6), (10, u64::MAX), (u64::MAX - PAGE, 2)]
    {
        let refused = cache.acquire(&mut device, address, len, 1);
        assert!(
            matches!(refused, Err(AcquireError::Range { .. })),
            "{len} bytes at {address:#x}: {refused:?}"
        );
    }
    touch(&mut cache, &mut device, (1 << 52) - 2, (1 << 52) - 1);
    assert_eq!(device.made, 1);
}

/// A use is a number, and may equal that of another cache. Its release must not deregister an unused entry.
#[test]
fn use_of_another_cache_deregisters_no_unused_entry() {
    let (mut mine, mut other) = (cache(8, 1000, true), cache(8, 1000, true));
    let (mut device, mut their_device) = (Device::default(), Device::default());
    touch(&mut mine, &mut device, 0, 4);
    let held = acquire(&mut other, &mut their_device, 0, 4);
    assert_eq!((mine.handle(&held), mine.range(&held)), (None, None));
    mine.release(&mut device, held);
    touch(&mut mine, &mut device, 0, 4);
    assert_eq!((device.made, mine.flush(&mut device), mine.bytes()), (1, 1, 0));
}

#[test]
fn more_than_can_be_counted_is_left_to_the_registrar() {
    let slots = vec![Entry::default(); 4];
    let limits = Limits { bytes: u64::MAX, keep: true, page_shift: 12 };
    let mut cache: TestCache = Cache::new(limits, slots, vec![Bucket::default(); 4]).unwrap();
    let mut device = Device { end: Some(1 << 47), ..Device::default() };
    let held = cache.acquire(&mut device, 0, 8 * PAGE, 1).unwrap();
    let refused = cache.acquire(&mut device, 8 * PAGE, u64::MAX - 16 * PAGE, 1).unwrap_err();
    assert_eq!(refused, AcquireError::Refused("nothing is mapped there"));
    let refused = cache.acquire(&mut device, 0, u64::MAX - 16 * PAGE, 1).unwrap_err();
    assert_eq!(refused, AcquireError::Refused("nothing is mapped there"));
    cache.release(&mut device, held);
}

#[test]
fn geometry_that_cannot_be_is_refused() {
    let limits = |page_shift| Limits { bytes: 1, keep: true, page_shift };
    let slots = || vec![Entry::<u32>::default(); 4];
    for (shift, chains) in [(11, 8), (31, 8), (12, 0), (12, 1)] {
        assert!(
            Cache::new(limits(shift), slots(), vec![Bucket::default(); chains]).is_none(),
            "{shift}, {chains}"
        );
    }
}

/// The number of cache lines read does not grow with the number of ranges.
#[test]
fn look_ups_stay_short_however_many_ranges_there_are() {
    let lines = |count: u64| {
        let mut cache = cache(count as usize, u64::MAX / PAGE / 2, true);
        let mut device = Device::default();
        for at in 0..count {
            touch(&mut cache, &mut device, at * 20, at * 20 + 1 + at % 19);
            // Clearing this device's list keeps the test fast.
            device.registered.clear();
        }
        let lines: usize = (0..count).map(|at| cache.index.lines(at * 20 * PAGE)).sum();
        lines as f64 / count as f64
    };
    for count in [10, 1000, 20_000] {
        assert!(lines(count) < 4.0, "{count} ranges: {} lines read", lines(count));
    }
}

/// A look-up is short if the level with most ranges is searched first, whatever comes and goes.
#[test]
fn the_levels_with_most_ranges_are_searched_first_and_those_without_not_at_all() {
    let (mut cache, mut device) = (cache(200, u64::MAX / PAGE / 2, true), Device::default());
    let mut rng = Rng::new(3);
    // Ranges of three levels, by their number of pages.
    let lens = [2, 100, 3000];
    let mut there = [[false; 40]; 3];
    for _ in 0..2000 {
        let (level, at) = (rng.below(3), rng.below(40));
        let start = (level * 40 + at) as u64 * 4096;
        let range = pages(start, start + lens[level]);
        if there[level][at] {
            assert_eq!(cache.invalidate(&mut device, range), 1);
        } else {
            touch(&mut cache, &mut device, start, start + lens[level]);
        }
        there[level][at] = !there[level][at];
        let mut expected = there.map(|all| all.iter().filter(|is| **is).count() as u32).to_vec();
        expected.retain(|count| *count > 0);
        expected.sort_unstable_by(|one, other| other.cmp(one));
        assert_eq!(cache.index.populations().collect::<Vec<_>>(), expected);
    }
}

/// A range is not compared for the page before it, nor for the one behind it.
#[test]
fn neighbouring_pages_read_no_entry_of_a_range() {
    let (mut cache, mut device) = (cache(8, 1000, true), Device::default());
    touch(&mut cache, &mut device, 5, 7);
    let lines = [4, 5, 6, 7].map(|page| cache.index.lines(page * PAGE));
    assert_eq!(lines, [1, 2, 2, 1], "a bucket, and the entry");
}

/// Ranges that overflow their bucket are stored in later ones, found, and removed without a trace.
#[test]
fn full_buckets_overflow_into_their_neighbours() {
    let slots = vec![Entry::default(); 100];
    let limits = Limits { bytes: u64::MAX / 2, keep: true, page_shift: 12 };
    let mut cache: TestCache = Cache::new(limits, slots, vec![Bucket::default(); 32]).unwrap();
    let mut device = Device::default();
    // Sixteen ranges in a block: more than twice the capacity of a bucket.
    let handles: Vec<_> = (0..100).map(|at| touch(&mut cache, &mut device, at, at + 1)).collect();
    for (at, handle) in (0..).zip(&handles) {
        assert_eq!(touch(&mut cache, &mut device, at, at + 1), *handle);
    }
    for at in (0..100).step_by(2) {
        assert_eq!(cache.invalidate(&mut device, pages(at, at + 1)), 1);
    }
    for at in (1..100).step_by(2) {
        assert_eq!(touch(&mut cache, &mut device, at, at + 1), handles[at as usize]);
    }
    assert_eq!((cache.flush(&mut device), device.registered.len()), (50, 0));
    assert_eq!(cache.index.lines(5 * PAGE), 0, "an empty level is not searched");
    touch(&mut cache, &mut device, 5, 6);
    assert_eq!(cache.index.lines(5 * PAGE), 2, "its bucket and the entry");
}
