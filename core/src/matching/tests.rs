//! The posted receives against a list in the order of posting, and the cost of finding one, in receives compared.

use std::cell::Cell;
use std::vec;
use std::vec::Vec;

use super::{MOST_COMPARED, Pattern, Posted, Posting, Source, WILD, hash, wild_of};
use crate::shared::tests::Rng;
use crate::slab::{List, Slab, Slot};
use crate::wire::{Envelope, Kind};

/// Lengths of the queues.
const QUEUED: [u64; 4] = [1, 1_000, DENSE, 100_000];
/// So many receives have as many lists.
const DENSE: u64 = 16_384;

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

/// Contexts of different lists of receives with a wildcard, and of the same one.
const CONTEXTS: [u16; 3] = [0, 1, WILD as u16];

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
    // Distances of each size; for one queue more powers of two.
    let strides = [1, 3, 64, 1000, 4096, 1 << 16, 1 << 20, 1 << 24, (1 << 32) + 1, 1 << 40, 1 << 47];
    for queued in QUEUED {
        let powers = if queued == DENSE { 48 } else { 0 };
        let strides = strides.into_iter().chain((0..powers).step_by(3).map(|power| 1 << power));
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
        all <= 2 * count as u64 && most <= 6,
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

/// A message is not compared with the wildcard receives of a neighbouring context.
#[test]
fn a_wildcard_of_another_context_is_not_compared() {
    let mut queue = PostedQueue::new(8);
    let any = |context| Pattern { source: Source::Any, context, tag: 0, ignore: u64::MAX };
    (0..4).for_each(|_| _ = queue.post(any(1)));
    let wanted = queue.post(any(0));
    queue.looks();
    assert_eq!(queue.take(1, &envelope(0, 5)), Some(wanted));
    assert_eq!(queue.looks(), 1);
}

/// Wildcard receives of a context are in one list, and cost as many comparisons as documented.
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
        for context in CONTEXTS {
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
                CONTEXTS
                    .into_iter()
                    .flat_map(move |context| (0..4).map(move |tag| (source, envelope(context, tag))))
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

/// An operation on the posted receives.
#[derive(Clone, Copy, Debug)]
enum PostedOp {
    Post,
    Take,
    /// Takes a receive and puts it back.
    Restore,
    Find,
    Remove,
    /// Takes a receive with source and whole tag without a search.
    First,
    /// Removes all receives of a context.
    Extract,
    Grow,
}

/// The posted receives beside a list of them in the order of posting.
struct MatchingTwin {
    queue: PostedQueue,
    /// Pattern, number and slot of each.
    model: Vec<(Pattern, u64, u32)>,
    patterns: Vec<Pattern>,
    /// Whether all receives with source and whole tag share one list.
    has_one_list: bool,
}

impl MatchingTwin {
    fn new(lists: usize) -> Self {
        let slots = (0..40).map(|_| Slot::default()).collect();
        let queue = PostedQueue { slots: Slab::new(slots), posted: Posted::new(vec![List::new(); lists]) };
        Self { queue, model: vec![], patterns: small_patterns(), has_one_list: lists < 2 }
    }

    /// Returns the position of the first receive that a message matches.
    fn place(&self, from: u32, envelope: &Envelope) -> Option<usize> {
        self.model.iter().position(|(pattern, ..)| pattern.matches(from, envelope))
    }

    /// Returns how many receives are compared with a message, one after the other in two lists.
    fn steps(&self, from: u32, envelope: &Envelope) -> usize {
        let of = |is_exact: bool| {
            let shares = |context| is_exact || wild_of(context) == wild_of(envelope.context);
            let list = self
                .model
                .iter()
                .filter(|(pattern, ..)| pattern.hash().is_some() == is_exact && shares(pattern.context));
            let before = list.clone().take_while(|(pattern, ..)| !pattern.matches(from, envelope)).count();
            (before + 1).min(list.count())
        };
        of(true) + of(false)
    }

    /// Takes a receive without a search, if it is the first. The answer may be no if receives share a list.
    fn take_first(&mut self, rng: &mut Rng) {
        let Self { queue: PostedQueue { slots, posted }, model, has_one_list, .. } = self;
        let at = rng.below(model.len());
        let (pattern, _, index) = model[at];
        let Pattern { source: Source::Rank(rank), context, tag, ignore: 0 } = pattern else { return };
        let is_wild = |other: &Pattern| other.hash().is_none() && wild_of(other.context) == wild_of(context);
        let has_wild = model.iter().any(|(other, ..)| is_wild(other));
        let taken = posted.first(context, hash(rank, context, tag), index).map(|first| first.take(slots));
        if taken.is_some() {
            assert!(!has_wild && model.iter().position(|it| it.0 == pattern) == Some(at));
            slots.remove(index);
            model.remove(at);
        } else {
            assert!(has_wild || !*has_one_list || at > 0);
        }
    }

    fn apply(&mut self, op: PostedOp, rng: &mut Rng) {
        let pattern = self.patterns[rng.below(self.patterns.len())];
        let (from, message) = (rng.below(3) as u32, envelope(rng.pick(&CONTEXTS), rng.below(4) as u64));
        let place = self.place(from, &message);
        let Self { queue, model, has_one_list, .. } = self;
        let PostedQueue { slots, posted } = queue;
        match op {
            PostedOp::Post if model.len() < 40 => {
                let index = queue.post(pattern);
                model.push((pattern, queue.slots.get(index).number, index));
            }
            PostedOp::Take => assert_eq!(queue.take(from, &message), place.map(|at| model.remove(at).2)),
            PostedOp::Restore => {
                let taken = posted.take(slots, from, &message);
                assert_eq!(taken, place.map(|at| model[at].2));
                if let Some(at) = place {
                    posted.restore(slots, model[at].2, &model[at].0);
                }
            }
            PostedOp::Find => {
                let is_odd = |receive: &PostedReceive| receive.number % 2 == 1;
                let odd = |(pattern, number, _): &&(Pattern, u64, u32)| {
                    pattern.matches(from, &message) && number % 2 == 1
                };
                let wanted = model.iter().find(odd).map(|(.., index)| *index);
                let found = posted.find(slots, (from, &message), is_odd);
                assert_eq!(found.map(|found| found.index), wanted);
                if let Some(found) = found {
                    posted.remove_found(slots, found);
                    let at = model.iter().position(|(.., index)| *index == found.index).unwrap_or(usize::MAX);
                    slots.remove(model.remove(at).2);
                }
            }
            PostedOp::Remove if !model.is_empty() => {
                let (pattern, _, index) = model.remove(rng.below(model.len()));
                posted.remove(slots, index, &pattern);
                slots.remove(index);
            }
            PostedOp::First if !model.is_empty() => self.take_first(rng),
            PostedOp::Extract => {
                let mut taken = vec![];
                posted.extract(
                    slots,
                    |it| it.context == message.context,
                    |slots, index| {
                        slots.remove(index);
                        taken.push(index);
                    },
                );
                let gone = model.extract_if(.., |(it, ..)| it.context == message.context);
                let mut gone: Vec<u32> = gone.map(|(.., index)| index).collect();
                taken.sort_unstable();
                gone.sort_unstable();
                assert_eq!(taken, gone);
            }
            PostedOp::Grow if !*has_one_list => posted.grow(slots, |lists| {
                let more = (lists.len() * 2).min(64);
                lists.resize(more, List::new());
            }),
            _ => {}
        }
        assert_eq!(self.queue.posted.is_empty(), self.model.is_empty());
        if self.has_one_list {
            let steps = self.queue.posted.steps(&self.queue.slots, from, &message);
            assert_eq!(steps, self.steps(from, &message), "{from} {message:?}");
        }
    }
}

#[test]
fn every_message_takes_the_receive_that_was_posted_first() {
    use PostedOp::{Extract, Find, First, Grow, Post, Remove, Restore, Take};
    let often = [Post, Post, Post, Post, Take, Take, Restore, Find, Remove, First, First];
    for seed in 0..60 {
        let (mut rng, mut twin) = (Rng::new(seed), MatchingTwin::new([0, 1, 2, 5][seed as usize % 4]));
        for _ in 0..300 {
            let op = if rng.one_in(30) { rng.pick(&[Extract, Grow]) } else { rng.pick(&often) };
            twin.apply(op, &mut rng);
        }
        // What is left is taken in the order of posting, too.
        while let Some(&(pattern, ..)) = twin.model.first() {
            let from = if let Source::Rank(rank) = pattern.source { rank } else { 0 };
            let message = envelope(pattern.context, pattern.tag);
            let at = twin.place(from, &message).unwrap();
            assert_eq!(twin.queue.take(from, &message), Some(twin.model.remove(at).2));
        }
        assert!(twin.queue.posted.is_empty());
    }
}
