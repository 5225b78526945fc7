//! The store of unexpected messages against a vector of messages.

use std::vec;
use std::vec::Vec;

use proptest::prelude::*;

use super::{BODY, CHUNK, INLINE, Unexpected};
use crate::matching::{Pattern, Source};
use crate::shared::tests::{Rng, cases, contents};
use crate::slab::{List, Slot};
use crate::wire::{Envelope, Kind};

type Store = Unexpected<Vec<Slot<super::Message>>, Vec<u8>, Vec<List>>;

#[derive(Clone, Copy, Debug)]
enum Op {
    Begin(usize),
    /// The next bytes of the n-th message.
    Append(usize, usize),
    /// Reads the n-th message into so much room.
    Read(usize, usize),
    Remove(usize),
}

fn store(entries: usize, chunks: usize) -> Store {
    Unexpected::new(
        (0..entries).map(|_| Slot::default()).collect(),
        vec![0xee; chunks * CHUNK],
        vec![List::new(); 2],
    )
}

fn chunks_of(len: usize) -> usize {
    if len <= INLINE { 0 } else { len.div_ceil(BODY) }
}

struct Expected {
    id: u32,
    source: u32,
    bytes: Vec<u8>,
    come: usize,
}

struct Stored {
    store: Store,
    entries: usize,
    chunks: usize,
    messages: Vec<Expected>,
    begun: u64,
}

impl Stored {
    fn new(entries: usize, chunks: usize) -> Self {
        Self { store: store(entries, chunks), entries, chunks, messages: vec![], begun: 0 }
    }

    fn used_chunks(&self) -> usize {
        self.messages.iter().map(|message| chunks_of(message.bytes.len())).sum()
    }

    fn apply(&mut self, op: Op) {
        match op {
            Op::Begin(len) => self.begin(len),
            Op::Append(at, len) => self.append(at, len),
            Op::Read(at, len) => self.read(at, len),
            Op::Remove(at) => {
                if let Some(at) = self.nth(at) {
                    self.store.remove(self.messages.remove(at).id);
                }
            }
        }
        assert_eq!(self.store.len(), self.messages.len());
        assert_eq!(self.store.is_empty(), self.messages.is_empty());
        assert_eq!(self.store.free_bytes(), (self.chunks - self.used_chunks()) * BODY);
    }

    fn nth(&self, at: usize) -> Option<usize> {
        (!self.messages.is_empty()).then(|| at % self.messages.len())
    }

    fn begin(&mut self, len: usize) {
        self.begun += 1;
        let source = self.begun as u32;
        let envelope = Envelope { kind: Kind::First, context: 1, tag: self.begun, total: len as u64 };
        let fits = self.messages.len() < self.entries && chunks_of(len) <= self.chunks - self.used_chunks();
        let id = self.store.begin(source, envelope);
        assert_eq!(id.is_some(), fits, "{len} bytes");
        let Some(id) = id else { return };
        assert_eq!(self.store.get(id).is_whole(), len == 0);
        self.messages.push(Expected { id, source, bytes: contents(self.begun, len), come: 0 });
    }

    fn append(&mut self, at: usize, len: usize) {
        let Some(at) = self.nth(at) else { return };
        let message = &mut self.messages[at];
        let part = &message.bytes[message.come..];
        let part = &part[..len.min(part.len())];
        let mut copied = 0;
        self.store.append(message.id, part.len(), |from, to| {
            assert_eq!(from, copied, "a gap between the parts");
            to.copy_from_slice(&part[from..from + to.len()]);
            copied += to.len();
        });
        assert_eq!(copied, part.len());
        message.come += copied;
        let stored = self.store.get(message.id);
        assert_eq!(stored.received, message.come as u64);
        assert_eq!(stored.is_whole(), message.come == message.bytes.len());
    }

    fn read(&self, at: usize, len: usize) {
        let Some(at) = self.nth(at) else { return };
        let message = &self.messages[at];
        let mut to = vec![0xdd; len];
        self.store.read(message.id, &mut to);
        let count = message.come.min(len);
        assert_eq!(to[..count], message.bytes[..count]);
        assert!(to[count..].iter().all(|&byte| byte == 0xdd));
        // The first in order of arrival is found, and others by what they are.
        let Envelope { tag, context, .. } = self.store.get(message.id).envelope;
        let pattern = |source, tag, ignore| Pattern { source, context, tag, ignore };
        let from = Source::Rank(message.source);
        assert_eq!(self.store.find(&pattern(from, tag, 0)), Some(message.id));
        assert_eq!(self.store.find(&pattern(from, tag, u64::MAX)), Some(message.id));
        assert_eq!(self.store.find(&pattern(Source::Any, 0, u64::MAX)), Some(self.messages[0].id));
        assert_eq!(self.store.find(&pattern(from, tag ^ 1, 0)), None);
    }
}

fn length() -> impl Strategy<Value = usize> {
    prop_oneof![
        prop::sample::select(vec![0, 1, 31, 32, 33, 2043, 2044, 2045, 2048, 4088, 4089, 20_000]),
        0..7000usize,
    ]
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        3 => length().prop_map(Op::Begin),
        4 => (any::<usize>(), length()).prop_map(|(at, len)| Op::Append(at, len)),
        2 => (any::<usize>(), length()).prop_map(|(at, len)| Op::Read(at, len)),
        2 => any::<usize>().prop_map(Op::Remove),
    ]
}

proptest! {
    #![proptest_config(cases(128))]

    #[test]
    fn messages_come_out_as_they_went_in(
        entries in 0..6usize, chunks in 0..8usize, ops in prop::collection::vec(op(), 0..120),
    ) {
        let mut stored = Stored::new(entries, chunks);
        for op in ops {
            stored.apply(op);
        }
        while !stored.messages.is_empty() {
            stored.apply(Op::Remove(0));
        }
        assert_eq!(stored.store.free_bytes(), chunks * BODY);
    }
}

#[test]
fn store_agrees_with_the_vector_for_long() {
    for seed in 0..6 {
        let mut rng = Rng::new(seed);
        let mut stored = Stored::new(6, 9);
        for _ in 0..3000 {
            let at = rng.below(100);
            let len = if rng.one_in(2) { rng.below(40) } else { rng.below(3 * BODY) };
            stored.apply(match rng.below(10) {
                0..=2 => Op::Begin(len),
                3..=6 => Op::Append(at, len),
                7 => Op::Read(at, len),
                _ => Op::Remove(at),
            });
        }
    }
}

#[test]
fn message_of_each_boundary_size_is_stored_in_parts_of_each_boundary_size() {
    for len in [0, 1, 31, 32, 33, 63, 2043, 2044, 2045, 4087, 4088, 4089, 10_000] {
        for part in [1, 7, 31, 32, 33, 255, 256, 2043, 2044, 2045, 5000] {
            let mut stored = Stored::new(2, 5);
            stored.apply(Op::Begin(len));
            for _ in 0..=len / part {
                stored.apply(Op::Append(0, part));
            }
            assert_eq!(stored.messages[0].come, len);
            for room in [0, 1, 32, 33, 2044, 2045, len, len + 1] {
                stored.apply(Op::Read(0, room));
            }
            stored.apply(Op::Remove(0));
        }
    }
}

#[test]
fn refused_message_loses_no_room() {
    let envelope = |total| Envelope { kind: Kind::Eager, context: 0, tag: 0, total };
    let mut full = store(1, 3);
    full.begin(0, envelope(10)).unwrap();
    for total in [0, 33, 3 * BODY as u64] {
        assert_eq!(full.begin(0, envelope(total)), None, "every entry is in use");
    }
    assert_eq!(full.free_bytes(), 3 * BODY);
    let mut roomy = store(4, 3);
    for total in [3 * BODY as u64 + 1, 1 << 40, u64::MAX] {
        assert_eq!(roomy.begin(0, envelope(total)), None);
    }
    assert_eq!((roomy.free_bytes(), roomy.len()), (3 * BODY, 0));
    assert!(roomy.begin(0, envelope(3 * BODY as u64)).is_some());
}
