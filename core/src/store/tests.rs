//! The store against a vector of messages.

use std::cell::Cell;
use std::thread_local;
use std::vec;
use std::vec::Vec;

use proptest::prelude::*;

use super::{FIRST, INLINE, LINK, Store, Stored, Unit, cost, split};
use crate::matching::{Pattern, Source};
use crate::shared::tests::{Rng, cases, contents};
use crate::wire::{Envelope, Kind};

thread_local! {
    /// Number of heads that this test visited in hash lists.
    static STEPS: Cell<u64> = const { Cell::new(0) };
}

pub(super) fn count_step() {
    STEPS.set(STEPS.get() + 1);
}

/// Returns the number of steps since the last call.
fn steps() -> u64 {
    STEPS.replace(0)
}

#[derive(Clone, Copy, Debug)]
enum StoreOp {
    /// Source, tag, bytes.
    Insert(u32, u64, usize),
    /// Reads the n-th message from this offset into a buffer of this size.
    Read(usize, usize, usize),
    /// Finds a matching message, and then claims it, removes it or leaves it.
    Find(Pattern, Then),
    Claim(usize),
    Remove(usize),
    /// Removes messages of this kind from this source.
    RemoveWhere(u32, Kind),
}

#[derive(Clone, Copy, Debug)]
enum Then {
    Nothing,
    Claim,
    Remove,
}

struct Expected {
    id: u32,
    stored: Stored,
    bytes: Vec<u8>,
    claimed: bool,
}

/// The store and its oracle. Few sources, contexts, tags and lists are used, so that envelopes repeat and
/// lists are shared.
struct StoreTwin {
    store: Store<Vec<Unit>, Vec<u32>>,
    units: u32,
    messages: Vec<Expected>,
    inserted: u64,
}

const KINDS: [Kind; 3] = [Kind::Eager, Kind::Rts, Kind::Active];

impl StoreTwin {
    fn new(units: usize, lists: usize) -> Self {
        let store = Store::new(vec![[0xee; 64]; units], vec![0; lists]);
        Self { store, units: units as u32, messages: vec![], inserted: 0 }
    }

    fn apply(&mut self, op: StoreOp) {
        match op {
            StoreOp::Insert(source, tag, len) => self.insert(source, tag, len),
            StoreOp::Read(at, from, room) => self.read(at, from, room),
            StoreOp::Find(pattern, then) => self.find(&pattern, then),
            StoreOp::Claim(at) => {
                if let Some(at) = self.nth(at) {
                    self.store.claim(self.messages[at].id);
                    self.messages[at].claimed = true;
                }
            }
            StoreOp::Remove(at) => {
                if let Some(at) = self.nth(at) {
                    self.remove(at);
                }
            }
            StoreOp::RemoveWhere(source, kind) => self.remove_where(source, kind),
        }
        let used: u32 = self.messages.iter().map(|message| cost(message.bytes.len())).sum();
        assert_eq!(self.store.free_units(), self.units - used);
        assert_eq!(self.store.capacity_units(), self.units);
        assert_eq!(self.store.len(), self.messages.len());
        assert_eq!(self.store.is_empty(), self.messages.iter().all(|message| message.claimed));
    }

    fn nth(&self, at: usize) -> Option<usize> {
        (!self.messages.is_empty()).then(|| at % self.messages.len())
    }

    fn insert(&mut self, source: u32, tag: u64, len: usize) {
        self.inserted += 1;
        let bytes = contents(self.inserted, len);
        let stored =
            Stored { source, kind: KINDS[len % 3], context: (self.inserted % 2) as u16 * 0x8001, tag, len };
        let envelope = Envelope { kind: stored.kind, context: stored.context, tag, total: u64::MAX };
        let fits = cost(len) <= self.store.free_units();
        let mut copied = 0;
        let id = self.store.insert(source, &envelope, len, |at, to| {
            assert_eq!(at, copied, "a gap between the pieces");
            to.copy_from_slice(&bytes[at..at + to.len()]);
            copied += to.len();
        });
        assert_eq!((id.is_some(), copied), (fits, if fits { len } else { 0 }), "{len} bytes");
        if let Some(id) = id {
            assert_eq!(self.store.get(id), stored);
            self.messages.push(Expected { id, stored, bytes, claimed: false });
        }
    }

    fn read(&self, at: usize, from: usize, room: usize) {
        let Some(at) = self.nth(at) else { return };
        let Expected { id, stored, bytes, .. } = &self.messages[at];
        assert_eq!(self.store.get(*id), *stored);
        let mut to = vec![0xdd; room];
        let count = self.store.read(*id, from, &mut to);
        let expected = &bytes[from.min(bytes.len())..];
        assert_eq!(count, room.min(expected.len()));
        assert_eq!(to[..count], expected[..count], "{} bytes from {from}", bytes.len());
        assert!(to[count..].iter().all(|&byte| byte == 0xdd));
    }

    fn find(&mut self, pattern: &Pattern, then: Then) {
        let matches = |message: &Expected| {
            let Stored { source, context, tag, .. } = message.stored;
            !message.claimed
                && (pattern.source == Source::Any || pattern.source == Source::Rank(source))
                && pattern.context == context
                && pattern.tag | pattern.ignore == tag | pattern.ignore
        };
        let expected = self.messages.iter().position(matches);
        assert_eq!(self.store.find(pattern), expected.map(|at| self.messages[at].id), "{pattern:?}");
        // Undecided at first, then certain.
        let steps = self.store.steps(pattern);
        assert_eq!(self.store.has_none(pattern, steps), expected.is_none(), "{pattern:?}");
        assert_eq!(self.store.has_none(pattern, steps.saturating_sub(1)), steps == 0, "{pattern:?}");
        match (expected, then) {
            (Some(at), Then::Claim) => self.apply(StoreOp::Claim(at)),
            (Some(at), Then::Remove) => self.remove(at),
            _ => {}
        }
    }

    fn remove(&mut self, at: usize) {
        let message = self.messages.remove(at);
        let len = message.bytes.len();
        let mut to = vec![0; len];
        assert_eq!(self.store.read(message.id, 0, &mut to), len);
        assert_eq!(to, message.bytes);
        assert_eq!(self.store.remove(message.id), cost(len));
    }

    fn remove_where(&mut self, source: u32, kind: Kind) {
        let doomed = |stored: &Stored| stored.source == source && stored.kind == kind;
        let mut removed = vec![];
        self.store.remove_where(|_, _, stored| doomed(stored), |id, stored| removed.push((id, *stored)));
        let dropped = |message: &Expected| !message.claimed && doomed(&message.stored);
        let expected: Vec<_> = self
            .messages
            .iter()
            .filter(|message| dropped(message))
            .map(|message| (message.id, message.stored))
            .collect();
        assert_eq!(removed, expected);
        self.messages.retain(|message| !dropped(message));
    }

    fn empty(&mut self) {
        while !self.messages.is_empty() {
            self.apply(StoreOp::Remove(self.messages.len() / 2));
        }
        assert_eq!(self.store.free_units(), self.units);
    }
}

const LENGTHS: [usize; 19] = [0, 1, 8, 27, 28, 29, 31, 32, 33, 59, 60, 61, 87, 88, 89, 147, 148, 149, 2000];

fn length() -> impl Strategy<Value = usize> {
    prop_oneof![3 => prop::sample::select(LENGTHS.to_vec()), 1 => 0..700usize]
}

fn pattern() -> impl Strategy<Value = Pattern> {
    let source = prop_oneof![1 => Just(Source::Any), 3 => (0..3u32).prop_map(Source::Rank)];
    let ignore = prop::sample::select(vec![0, 0, 0, 1, 2, u64::MAX]);
    (source, 0..2u16, 0..4u64, ignore).prop_map(|(source, context, tag, ignore)| Pattern {
        source,
        context: context * 0x8001,
        tag,
        ignore,
    })
}

fn op() -> impl Strategy<Value = StoreOp> {
    let then = prop::sample::select(vec![Then::Nothing, Then::Claim, Then::Remove, Then::Remove]);
    prop_oneof![
        8 => (0..3u32, 0..4u64, length()).prop_map(|(source, tag, len)| StoreOp::Insert(source, tag, len)),
        3 => (any::<usize>(), length(), length()).prop_map(|(at, from, room)| StoreOp::Read(at, from, room)),
        6 => (pattern(), then).prop_map(|(pattern, then)| StoreOp::Find(pattern, then)),
        1 => any::<usize>().prop_map(StoreOp::Claim),
        2 => any::<usize>().prop_map(StoreOp::Remove),
        1 => (0..3u32, prop::sample::select(KINDS.to_vec()))
            .prop_map(|(source, kind)| StoreOp::RemoveWhere(source, kind)),
    ]
}

proptest! {
    #![proptest_config(cases(192))]

    #[test]
    fn store_agrees_with_the_vector(
        units in 0..80usize, lists in 0..6usize, ops in prop::collection::vec(op(), 0..150),
    ) {
        let mut twin = StoreTwin::new(units, lists);
        for op in ops {
            twin.apply(op);
        }
        twin.empty();
    }
}

#[test]
fn store_agrees_with_the_vector_for_long() {
    for seed in 0..6 {
        let mut rng = Rng::new(seed);
        let mut twin = StoreTwin::new(300, 1 << seed);
        for _ in 0..20_000 {
            let at = rng.below(1000);
            let (source, tag) = (rng.below(3) as u32, rng.below(4) as u64);
            let len = if rng.one_in(2) { rng.below(40) } else { rng.below(400) };
            let from = if rng.one_in(3) { Source::Any } else { Source::Rank(source) };
            let context = rng.pick(&[0, 0x8001]);
            let pattern = Pattern { source: from, context, tag, ignore: rng.pick(&[0, 0, 3, u64::MAX]) };
            twin.apply(match rng.below(20) {
                0..=8 => StoreOp::Insert(source, tag, len),
                9..=10 => StoreOp::Read(at, len, rng.below(400)),
                11..=16 => StoreOp::Find(pattern, rng.pick(&[Then::Nothing, Then::Claim, Then::Remove])),
                17..=18 => StoreOp::Remove(at),
                _ if rng.one_in(8) => StoreOp::RemoveWhere(source, rng.pick(&KINDS)),
                _ => StoreOp::Claim(at),
            });
        }
        twin.empty();
    }
}

#[test]
fn body_of_each_boundary_size_is_read_from_each_boundary() {
    for len in LENGTHS {
        let mut twin = StoreTwin::new(cost(len) as usize, 1);
        twin.apply(StoreOp::Insert(0, 0, len));
        assert_eq!(twin.store.free_units(), 0, "the cost of {len} bytes is exact");
        for from in LENGTHS.into_iter().chain([len, len + 1, usize::MAX]) {
            for room in LENGTHS {
                twin.apply(StoreOp::Read(0, from, room));
            }
        }
        twin.empty();
    }
}

#[test]
fn cost_counts_the_units_that_a_body_fills() {
    for len in 0..2000 {
        let further = if len <= INLINE { 0 } else { (len - FIRST).div_ceil(LINK) };
        assert_eq!(cost(len) as usize, 1 + further);
    }
    assert_eq!(cost(u32::MAX as usize), 1 + 71_582_788);
    assert_eq!(cost(u32::MAX as usize + 1), u32::MAX);
    assert_eq!(cost(usize::MAX), u32::MAX);
}

#[test]
fn scattered_units_hold_a_message_like_adjacent_ones() {
    let mut twin = StoreTwin::new(64, 4);
    for _ in 0..64 {
        twin.apply(StoreOp::Insert(0, 0, 1));
    }
    for at in 0..32 {
        twin.apply(StoreOp::Remove(at));
    }
    // One message in all the gaps between the 32 messages that stayed.
    twin.apply(StoreOp::Insert(1, 1, FIRST + 31 * LINK));
    assert_eq!((twin.store.free_units(), twin.messages.len()), (0, 33));
    twin.empty();
}

#[test]
fn refused_message_takes_nothing() {
    let mut twin = StoreTwin::new(3, 1);
    for len in [FIRST + 2 * LINK + 1, 1 << 32, usize::MAX] {
        let envelope = Envelope { kind: Kind::Eager, context: 0, tag: 0, total: 0 };
        let refused = twin.store.insert(0, &envelope, len, |_, _| panic!("nothing is read"));
        assert_eq!((refused, twin.store.free_units(), twin.store.len()), (None, 3, 0));
    }
    twin.apply(StoreOp::Insert(0, 0, FIRST + 2 * LINK));
    assert_eq!(twin.messages.len(), 1);
    twin.apply(StoreOp::Insert(0, 0, 0));
    assert_eq!(twin.messages.len(), 1, "not one unit is free");
}

#[test]
fn unused_units_are_not_touched() {
    let mut units = vec![[0xee; 64]; 100];
    let mut store = Store::new(units.as_mut_slice(), vec![0; 4]);
    let envelope = Envelope { kind: Kind::Eager, context: 0, tag: 0, total: 0 };
    for len in [0, 100, 200].repeat(20) {
        let id = store.insert(0, &envelope, len, |_, to| to.fill(0)).unwrap();
        store.remove(id);
    }
    drop(store);
    let touched = units.iter().filter(|unit| **unit != [0xee; 64]).count();
    assert_eq!(touched, cost(200) as usize);
}

#[test]
fn ceiling_is_spent_and_not_exceeded() {
    for ceiling in (0..5000).chain([1 << 20, 64 << 20, (1 << 30) + 4321]) {
        let (units, lists) = split(ceiling);
        let spent = units * 64 + lists * 4;
        assert!(spent <= ceiling && ceiling - spent < 64, "{ceiling}");
        assert!(lists == 0 && units <= 1 || lists.is_power_of_two() && units <= 4 * lists, "{ceiling}");
    }
}

/// A million messages of one byte in 64 MiB, inserted in the order of tags and taken in reverse order.
#[test]
fn a_million_messages_are_taken_in_reverse() {
    const COUNT: u64 = 1_000_000;
    let (units, lists) = split(64 << 20);
    let mut store = Store::new(vec![[0; 64]; units], vec![0; lists]);
    for tag in 0..COUNT {
        let envelope = Envelope { kind: Kind::Eager, context: 3, tag, total: 1 };
        store.insert(1, &envelope, 1, |_, to| to[0] = tag as u8).unwrap();
    }
    assert_eq!(store.len() as u64, COUNT);
    let (mut most, mut all) = (0, 0);
    steps();
    for tag in (0..COUNT).rev() {
        let id = store.find(&Pattern { source: Source::Rank(1), context: 3, tag, ignore: 0 }).unwrap();
        let mut byte = [0];
        assert_eq!((store.read(id, 0, &mut byte), byte[0]), (1, tag as u8));
        assert_eq!(store.remove(id), 1);
        let now = steps();
        (most, all) = (most.max(now), all + now);
    }
    assert!(store.is_empty());
    assert_eq!(store.free_units() as usize, units);
    // To find and to remove, with two messages in a list on average.
    assert!(all <= 4 * COUNT, "{all} steps");
    assert!(most <= 12, "{most} steps for one message");
}

#[test]
fn tags_of_every_stride_spread_over_the_lists() {
    const COUNT: u64 = 1 << 16;
    for stride in [1, 2, 3, 64, 1000, 4096, 1 << 20, (1 << 32) + 1, 1 << 40, 1 << 47] {
        let mut store = Store::new(vec![[0; 64]; COUNT as usize], vec![0; COUNT as usize / 2]);
        for n in 0..COUNT {
            let envelope = Envelope { kind: Kind::Eager, context: 3, tag: n * stride, total: 0 };
            store.insert(1, &envelope, 0, |_, _| {}).unwrap();
        }
        steps();
        for n in 0..COUNT {
            let pattern = Pattern { source: Source::Rank(1), context: 3, tag: n * stride, ignore: 0 };
            store.find(&pattern).unwrap();
        }
        let steps = steps();
        assert!(steps <= 4 * COUNT, "{steps} steps for a stride of {stride}");
    }
}

/// The same envelope a hundred thousand times: the first message is always at the front of its list.
#[test]
fn messages_of_one_envelope_are_taken_in_one_step_each() {
    const COUNT: u64 = 100_000;
    let mut store = Store::new(vec![[0; 64]; COUNT as usize], vec![0; 1 << 10]);
    let envelope = Envelope { kind: Kind::Eager, context: 0, tag: 5, total: 1 };
    for n in 0..COUNT {
        store.insert(1, &envelope, 8, |_, to| to.copy_from_slice(&n.to_le_bytes())).unwrap();
    }
    steps();
    for n in 0..COUNT {
        let source = if n % 2 == 0 { Source::Any } else { Source::Rank(1) };
        let id = store.find(&Pattern { source, context: 0, tag: 5, ignore: 0 }).unwrap();
        let mut bytes = [0; 8];
        store.read(id, 0, &mut bytes);
        assert_eq!(u64::from_le_bytes(bytes), n);
        store.remove(id);
    }
    assert!(STEPS.get() <= 2 * COUNT, "{} steps", STEPS.get());
}

/// Half of a hundred thousand messages in one list are removed at once.
#[test]
fn remove_where_visits_each_message_once() {
    const COUNT: u64 = 100_000;
    let mut store = Store::new(vec![[0; 64]; COUNT as usize], vec![0; 1]);
    for tag in 0..COUNT {
        let kind = if tag % 2 == 0 { Kind::Rts } else { Kind::Eager };
        store.insert(1, &Envelope { kind, context: 0, tag, total: 0 }, 0, |_, _| {}).unwrap();
    }
    let mut dropped = 0;
    steps();
    store.remove_where(|_, _, stored| stored.kind == Kind::Rts, |_, stored| dropped += 1 + stored.tag % 2);
    assert_eq!((dropped, store.len() as u64), (COUNT / 2, COUNT / 2));
    assert_eq!(steps(), 0, "no list is searched");
    let any = |ignore| Pattern { source: Source::Rank(1), context: 0, tag: 1, ignore };
    assert_eq!(store.find(&any(0)), store.find(&any(u64::MAX)));
}
