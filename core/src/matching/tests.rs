//! The cost of finding a posted receive, in receives compared.

use std::cell::Cell;
use std::vec;
use std::vec::Vec;

use super::{MOST_COMPARED, Pattern, Posted, Posting, Source};
use crate::shared::tests::Rng;
use crate::slab::{List, Slab, Slot};
use crate::wire::{Envelope, Kind};

/// Lengths of the queues.
const QUEUED: [u64; 3] = [1, 1_000, 100_000];

#[derive(Debug)]
struct PostedReceive {
    pattern: Pattern,
    number: u64,
    /// How often the receive was compared.
    looked: Cell<u64>,
}

impl Default for PostedReceive {
    fn default() -> Self {
        Self { pattern: exact(0, 0, 0), number: 0, looked: Cell::new(0) }
    }
}

impl Posting for PostedReceive {
    fn posted(&self) -> Option<(&Pattern, u64)> {
        self.looked.set(self.looked.get() + 1);
        Some((&self.pattern, self.number))
    }
}

const fn exact(source: u32, context: u16, tag: u64) -> Pattern {
    Pattern { source: Source::Rank(source), context, tag, ignore: 0 }
}

const fn envelope(context: u16, tag: u64) -> Envelope {
    Envelope { kind: Kind::Eager, context, tag, total: 0 }
}

struct PostedQueue {
    slots: Slab<PostedReceive, Vec<Slot<PostedReceive>>>,
    posted: Posted<Vec<List>>,
}

impl PostedQueue {
    /// A queue with as many lists as an endpoint has for so many receives.
    fn new(receives: u64) -> Self {
        let slots = (0..=receives).map(|_| Slot::default()).collect();
        let lists = receives.next_power_of_two().max(1024) as usize;
        Self { slots: Slab::new(slots), posted: Posted::new(vec![List::new(); lists]) }
    }

    fn post(&mut self, pattern: Pattern) -> u32 {
        let number = self.posted.take_number();
        let receive = PostedReceive { pattern, number, looked: Cell::new(0) };
        let (index, slot) = self.posted.push(&mut self.slots, &pattern).unwrap();
        *slot = receive;
        index
    }

    fn take(&mut self, source: u32, envelope: &Envelope) -> Option<u32> {
        let index = self.posted.take(&mut self.slots, source, envelope)?;
        self.slots.remove(index);
        Some(index)
    }

    /// Returns the number of receives compared since the last call.
    fn looks(&self) -> u64 {
        (0..self.slots.capacity() as u32).map(|index| self.slots.get(index).looked.take()).sum()
    }
}

/// Finds every exact receive, in an order unrelated to that of posting. The average and the maximum number of
/// comparisons do not depend on the number of receives.
#[test]
fn exact_receives_cost_the_same_however_many_are_queued() {
    let strides = [1, 3, 64, 1000, 4096, 1 << 20, (1 << 32) + 1, 1 << 40, 1 << 47];
    for queued in QUEUED {
        let by_tag = strides.map(|stride| (std::format!("tags {stride} apart"), stride));
        for (what, stride) in by_tag {
            let all = (0..queued).map(|n| (3, 7, n * stride));
            assert_cheap(&what, &all.collect::<Vec<_>>());
        }
        assert_cheap("sources", &(0..queued).map(|n| (n as u32, 7, 5)).collect::<Vec<_>>());
        let contexts = (0..queued).map(|n| (1, n as u16, n >> 16));
        assert_cheap("contexts", &contexts.collect::<Vec<_>>());
        let mixed = (0..queued).map(|n| (n as u32 % 64, (n / 64) as u16 % 16, n / 1024));
        assert_cheap("sources, contexts and tags", &mixed.collect::<Vec<_>>());
    }
}

fn assert_cheap(what: &str, receives: &[(u32, u16, u64)]) {
    let count = receives.len();
    let mut queue = PostedQueue::new(count as u64);
    let posted: Vec<_> =
        receives.iter().map(|&(from, context, tag)| queue.post(exact(from, context, tag))).collect();
    let (mut all, mut most) = (0, 0);
    for n in 0..count {
        // A prime that divides no count, so that each receive is taken once.
        let at = n * 7919 % count;
        let (from, context, tag) = receives[at];
        let one = count <= 1_000 || n % 1_000 == 0;
        all += if one { queue.looks() } else { 0 };
        assert_eq!(queue.take(from, &envelope(context, tag)), Some(posted[at]), "{what}");
        if one {
            let looks = queue.looks();
            (all, most) = (all + looks, most.max(looks));
        }
    }
    all += queue.looks();
    assert!(
        all <= 2 * count as u64 && most <= 8,
        "{what}, {count} queued: {all} comparisons, {most} for one message"
    );
    assert!(queue.posted.is_empty());
}

/// A message for a wildcard receive among many exact ones: the exact receives are not compared.
#[test]
fn a_wildcard_does_not_search_exact_receives() {
    for queued in QUEUED {
        let mut queue = PostedQueue::new(queued);
        (0..queued).for_each(|tag| _ = queue.post(exact(1, 0, tag)));
        let any = queue.post(Pattern { source: Source::Any, context: 0, tag: queued, ignore: 0 });
        queue.looks();
        assert_eq!(queue.take(1, &envelope(0, queued)), Some(any));
        assert!(queue.looks() <= 8, "{queued} queued");
    }
}

/// Wildcard receives are in one list, and cost as many comparisons as documented.
#[test]
fn wildcards_are_compared_in_order() {
    for queued in [1, 1_000] {
        let mut queue = PostedQueue::new(queued);
        let last = (0..queued)
            .map(|tag| queue.post(Pattern { source: Source::Any, context: 0, tag, ignore: 0 }))
            .last();
        queue.looks();
        assert_eq!(queue.take(1, &envelope(0, queued - 1)), last);
        assert_eq!(queue.looks(), queued);
    }
}

/// Returns patterns over few sources, contexts, tags and masks, in all combinations.
fn small_patterns() -> Vec<Pattern> {
    let mut all = vec![];
    for source in [Source::Any, Source::Rank(0), Source::Rank(1)] {
        for context in 0..2 {
            for tag in 0..4 {
                let masks = [0, 1, 2, 3, u64::MAX];
                all.extend(masks.map(|ignore| Pattern { source, context, tag, ignore }));
            }
        }
    }
    all
}

#[test]
fn patterns_overlap_exactly_if_a_message_matches_both() {
    let all = small_patterns();
    for one in &all {
        for other in &all {
            let both = |source: u32, envelope: &Envelope| {
                one.matches(source, envelope) && other.matches(source, envelope)
            };
            let mut messages = (0..2).flat_map(|source| {
                (0..2).flat_map(move |context| (0..4).map(move |tag| (source, envelope(context, tag))))
            });
            assert_eq!(
                one.overlaps(other),
                messages.any(|(source, envelope)| both(source, &envelope)),
                "{one:?} and {other:?}"
            );
        }
    }
}

#[test]
fn receive_is_apart_if_and_only_if_it_overlaps_none_of_few_posted_receives() {
    let all = small_patterns();
    let mut rng = Rng::new(1);
    let (mut apart, mut rivals) = (0, 0);
    for _ in 0..2_000 {
        let mut queue = PostedQueue::new(64);
        let posted: Vec<_> = (0..rng.below(MOST_COMPARED)).map(|_| rng.pick(&all)).collect();
        // Some receives were taken since, so that slots are free in between.
        let mut slots: Vec<_> = posted.iter().map(|pattern| (queue.post(*pattern), *pattern)).collect();
        while slots.len() > 2 && rng.one_in(2) {
            let (index, pattern) = slots.swap_remove(rng.below(slots.len()));
            queue.posted.remove(&mut queue.slots, index, &pattern);
            queue.slots.remove(index);
        }
        for wanted in &all {
            let overlaps = slots.iter().any(|(_, pattern)| pattern.overlaps(wanted));
            assert_eq!(queue.posted.is_apart(&queue.slots, wanted), !overlaps, "{wanted:?} beside {slots:?}");
            (apart, rivals) = (apart + usize::from(!overlaps), rivals + usize::from(overlaps));
        }
    }
    assert!(apart > 10_000 && rivals > 10_000, "{apart} apart, {rivals} not");
}

/// With any number of posted receives, the comparison is short, and wrong only by refusing.
#[test]
fn comparison_with_many_posted_receives_is_bounded() {
    for queued in QUEUED {
        let mut queue = PostedQueue::new(3 * queued);
        for tag in 0..queued {
            queue.post(exact(1, 0, tag));
            queue.post(Pattern { source: Source::Any, ..exact(0, 1, tag) });
        }
        queue.looks();
        let apart = |wanted: &Pattern| queue.posted.is_apart(&queue.slots, wanted);
        let any = Pattern { source: Source::Any, ..exact(0, 0, queued) };
        for (wanted, free) in [(exact(1, 0, queued), true), (exact(1, 0, 0), false), (any, true)] {
            assert_eq!(apart(&wanted), free && queued == 1, "{wanted:?} beside {queued}");
            assert!(queue.looks() <= 2 * MOST_COMPARED as u64);
        }
        assert!(!apart(&Pattern { ignore: u64::MAX, ..any }));
    }
}
