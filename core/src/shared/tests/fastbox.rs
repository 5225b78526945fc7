//! The fastbox against a queue of messages.

use std::collections::VecDeque;
use std::vec;
use std::vec::Vec;

use proptest::prelude::*;

use super::fabric::FabricRegion;
use super::{Rng, cases, contents};
use crate::port::SHORT_BYTES;
use crate::shared::fastbox::{
    FIRST_BYTES, FastboxFault, FastboxReceiver, FastboxSender, FastboxSlot, MORE_BYTES, max_payload,
};
use crate::shared::layout::Line;
use crate::sync::Word64;
use crate::wire::{Envelope, Kind};

/// Bytes of the fastbox's region before its slots, including the line of the position.
const SLOTS_AT: usize = 4096;

#[derive(Clone, Copy, Debug)]
enum FastboxOp {
    Push(usize),
    Take,
    /// Reads `len` bytes from `at` on, and leaves the packet.
    Read(usize, usize),
    /// Limits further runs to this number of slots.
    Limit(usize),
}

#[derive(Debug)]
struct FastboxSent {
    sequence: u64,
    envelope: Envelope,
    bytes: Vec<u8>,
}

/// Both ends, and the packets that must be between them.
struct FastboxPair<'a> {
    sender: FastboxSender<'a>,
    receiver: FastboxReceiver<'a>,
    slots: u64,
    between: VecDeque<FastboxSent>,
    sequence: u64,
    /// Slots written, read, and reported as read.
    written: u64,
    read: u64,
    reported: u64,
}

fn slots_of(len: usize) -> u64 {
    let mut slots = 1;
    let mut room = FIRST_BYTES;
    while room < len {
        room += MORE_BYTES;
        slots += 1;
    }
    slots
}

fn region(slots: usize) -> FabricRegion {
    FabricRegion::new(SLOTS_AT + slots * size_of::<FastboxSlot>())
}

fn ends(region: &FabricRegion, slots: usize) -> (FastboxSender<'_>, FastboxReceiver<'_>) {
    let ack = &region.view::<Line>(0, 1)[0].word;
    let slots = region.view::<FastboxSlot>(SLOTS_AT, slots);
    (FastboxSender::new(slots, ack), FastboxReceiver::new(slots, ack))
}

fn eager(tag: u64, context: u16, len: usize) -> Envelope {
    Envelope { kind: Kind::Eager, context, tag, total: len as u64 }
}

impl<'a> FastboxPair<'a> {
    fn new(region: &'a FabricRegion, slots: usize, sequence: u64) -> Self {
        let (sender, receiver) = ends(region, slots);
        let between = VecDeque::new();
        Self { sender, receiver, slots: slots as u64, between, sequence, written: 0, read: 0, reported: 0 }
    }

    fn apply(&mut self, op: FastboxOp) {
        match op {
            FastboxOp::Push(len) => self.push(len),
            FastboxOp::Take => self.take(),
            FastboxOp::Read(at, len) => self.read(at, len),
            FastboxOp::Limit(most) => self.receiver.limit_run(most),
        }
    }

    fn push(&mut self, len: usize) {
        let bytes = contents(self.sequence, len);
        let envelope = eager(self.sequence.wrapping_mul(0x1234_5678_9abc_def1), self.sequence as u16, len);
        // The faster calls refuse nothing else than a look at the receiver's position, or a wrap.
        let Envelope { context, tag, .. } = envelope;
        let quick = match self.sequence % 3 {
            0 if len <= SHORT_BYTES => self.sender.push_short(self.sequence, context, tag, &bytes),
            1 => self.sender.push_now(self.sequence, context, tag, &bytes),
            _ => false,
        };
        let pushed = quick || self.sender.push(self.sequence, &envelope, &bytes).unwrap();
        let slots = slots_of(len);
        let fits =
            len <= max_payload(self.slots as usize) && self.written + slots - self.reported <= self.slots;
        assert_eq!(
            pushed,
            fits,
            "{len} bytes with {} of {} slots used",
            self.written - self.reported,
            self.slots
        );
        if pushed {
            self.written += slots;
            self.between.push_back(FastboxSent { sequence: self.sequence, envelope, bytes });
            self.sequence += 1;
        }
    }

    fn take(&mut self) {
        let packet = self.receiver.peek().unwrap();
        let Some(sent) = self.between.front() else {
            assert!(packet.is_none(), "{packet:?} out of an empty fastbox");
            return;
        };
        let packet = packet.unwrap();
        assert_eq!((packet.sequence, packet.envelope), (sent.sequence as u16, sent.envelope));
        let due = self.receiver.due(sent.sequence).unwrap();
        assert_eq!((due.sequence, due.envelope, due.len), (packet.sequence, packet.envelope, packet.len));
        assert!(self.receiver.due(sent.sequence + 1).is_none());
        let any = self.receiver.due_of_any_kind(sent.sequence).unwrap();
        assert_eq!((any.sequence, any.envelope, any.len), (packet.sequence, packet.envelope, packet.len));
        assert!(self.receiver.due_of_any_kind(sent.sequence + 1).is_none());
        let mut got = vec![0xee; sent.bytes.len()];
        let before = self.reported;
        let reported = match self.take_short(packet.len, &mut got) {
            Some(reported) => reported,
            None => {
                let sent = self.between.front().unwrap();
                self.receiver.read(packet.len, 0, &mut got);
                assert_eq!(got, sent.bytes);
                self.receiver.advance(packet.len)
            }
        };
        assert_eq!(before, self.reported);
        self.read += slots_of(packet.len);
        assert_eq!(reported, self.read - self.reported >= self.slots / 2);
        if reported {
            self.reported = self.read;
        }
        self.between.pop_front();
    }

    /// Takes a short packet, every second time, by the critical path. Returns whether the position was reported.
    fn take_short(&mut self, len: usize, got: &mut [u8]) -> Option<bool> {
        let sent = self.between.front()?;
        let (sequence, Envelope { context, tag, .. }) = (sent.sequence, sent.envelope);
        let mut take = |sequence, context, room, tag| {
            self.receiver.take_short(sequence, context, room, |found| found == tag)
        };
        assert!(take(sequence + 1, context, len, tag).is_none());
        assert!(take(sequence, context ^ 1, len, tag).is_none());
        assert!(take(sequence, context, len, tag ^ 1).is_none());
        assert!(len == 0 || take(sequence, context, len - 1, tag).is_none());
        if len > SHORT_BYTES || sequence % 2 == 0 {
            assert!(len <= SHORT_BYTES || take(sequence, context, usize::MAX, tag).is_none());
            return None;
        }
        let (packet, ended) = take(sequence, context, len, tag).unwrap();
        packet.read(got);
        assert_eq!((packet.tag, packet.len, &*got), (tag, len, &sent.bytes[..]));
        Some(ended && self.receiver.end_run().1)
    }

    /// Reads, of the range of `len` bytes from `at` on, the part that the packet has.
    fn read(&self, at: usize, len: usize) {
        let Some(sent) = self.between.front() else { return };
        let there = sent.bytes.get(at..).unwrap_or(&[]);
        let there = &there[..there.len().min(len)];
        let mut got = vec![0xee; there.len()];
        self.receiver.read(sent.bytes.len(), at, &mut got);
        assert_eq!(got, there, "{len} bytes from {at} of {}", sent.bytes.len());
    }
}

fn op(most: usize) -> impl Strategy<Value = FastboxOp> {
    prop_oneof![
        3 => (0..=most + 60).prop_map(FastboxOp::Push),
        1 => Just(FastboxOp::Push(8)),
        3 => Just(FastboxOp::Take),
        2 => (0..=most, 0..=most + 8).prop_map(|(at, len)| FastboxOp::Read(at, len)),
        1 => prop::sample::select(vec![0, 1, 2, 5, 16, usize::MAX]).prop_map(FastboxOp::Limit),
    ]
}

fn run() -> impl Strategy<Value = (usize, Vec<FastboxOp>)> {
    (2u32..=6).prop_flat_map(|shift| {
        let slots = 1 << shift;
        (Just(slots), prop::collection::vec(op(max_payload(slots)), 0..400))
    })
}

proptest! {
    #![proptest_config(cases(64))]

    #[test]
    fn fastbox_delivers_packets_in_the_order_pushed((slots, ops) in run()) {
        let region = region(slots);
        let mut pair = FastboxPair::new(&region, slots, 1);
        for op in ops {
            pair.apply(op);
        }
    }

    #[test]
    fn corrupted_fastbox_never_panics(seed: u64, shift in 2u32..=6) {
        corrupted(seed, 1 << shift);
    }
}

#[test]
fn fastbox_carries_every_size_in_every_ring() {
    for slots in [4, 8, 16, 32, 64] {
        let region = region(slots);
        let mut pair = FastboxPair::new(&region, slots, 1);
        for len in 0..=max_payload(slots) {
            pair.push(len);
            assert_eq!(pair.between.len(), 1, "{len} bytes were refused by an empty ring of {slots}");
            for at in [0, 1, 7, 8, 15, 16, 17, 23, 24, 39, 40, 41, len / 2, len] {
                pair.read(at, len + 3);
                pair.read(at, 1);
            }
            pair.take();
        }
    }
}

#[test]
fn message_beyond_the_fastbox_is_refused_even_by_an_empty_ring() {
    for slots in [4, 8, 16, 64] {
        for more in [1, 8, 25, 1000, 70_000] {
            let region = region(slots);
            let mut pair = FastboxPair::new(&region, slots, 1);
            pair.push(max_payload(slots) + more);
            assert!(pair.between.is_empty());
            pair.take();
        }
    }
}

#[test]
fn fastbox_survives_hundreds_of_laps_and_the_wrap_of_the_sequence() {
    for (seed, slots) in [(1, 4), (2, 8), (3, 16), (4, 32), (5, 64)] {
        let region = region(slots);
        let mut pair = FastboxPair::new(&region, slots, 0xff80);
        let mut rng = Rng::new(seed);
        // Phases of mostly pushing and mostly taking reach the full and the empty ring.
        while pair.written < 600 * slots as u64 {
            let pushing = (pair.written / slots as u64).is_multiple_of(2);
            let most = max_payload(slots);
            let len = rng.pick(&[0, 8, 15, 16, 17, 40, 41, most, most + 1]);
            let len = if rng.one_in(2) { rng.below(most + 1) } else { len };
            match rng.below(8) {
                0 => pair.apply(FastboxOp::Read(rng.below(most + 2), rng.below(most + 2))),
                1..=5 if pushing => pair.apply(FastboxOp::Push(len)),
                1..=5 => pair.apply(FastboxOp::Take),
                6 => pair.apply(FastboxOp::Push(len)),
                _ => pair.apply(FastboxOp::Take),
            }
        }
        assert!(pair.sequence > 0x1_0000, "the sequence must have wrapped");
    }
}

#[test]
fn largest_packet_fits_as_soon_as_the_ring_was_read_empty() {
    for slots in [4, 8, 16, 32, 64] {
        for small in 0..slots {
            let region = region(slots);
            let mut pair = FastboxPair::new(&region, slots, 1);
            for _ in 0..small {
                pair.push(8);
                pair.take();
            }
            pair.push(max_payload(slots));
            assert_eq!(pair.between.len(), 1, "after {small} small packets in a ring of {slots}");
            pair.take();
        }
    }
}

#[test]
fn a_sender_is_woken_only_if_packets_are_left_when_space_is_reported() {
    let region = region(8);
    let (mut sender, mut receiver) = ends(&region, 8);
    let take = |receiver: &mut FastboxReceiver<'_>| {
        assert!(receiver.peek().unwrap().is_some());
        receiver.advance(0).then(|| receiver.must_wake_sender())
    };
    for lap in 0..5 {
        // The receiver keeps up: half of the ring is reported, and nothing is left.
        for number in 1..=4 {
            assert!(sender.push_or_sleep(0, &eager(1, 2, 0), &[]).unwrap());
            assert_eq!(take(&mut receiver), (number == 4).then_some(false), "packet {number} of lap {lap}");
        }
    }
    while sender.push_or_sleep(0, &eager(1, 2, 0), &[]).unwrap() {}
    let reports: Vec<_> = (0..8).map(|_| take(&mut receiver)).collect();
    let (nothing, woken, empty) = (None, Some(true), Some(false));
    assert_eq!(reports, [nothing, nothing, nothing, woken, nothing, nothing, nothing, empty]);
}

#[test]
fn impossible_positions_are_faults() {
    let region = region(8);
    let (mut sender, _) = ends(&region, 8);
    let ack = region.word(0);
    let full = |sender: &mut FastboxSender<'_>| {
        while sender.push(1, &eager(0, 0, 8), &[0; 8]).is_ok_and(|pushed| pushed) {}
    };
    full(&mut sender);
    ack.store_relaxed(9);
    let past = sender.push(9, &eager(0, 0, 8), &[0; 8]);
    assert_eq!(past, Err(FastboxFault::Position { found: 9, low: 0, high: 8 }));
    ack.store_relaxed(4);
    full(&mut sender);
    ack.store_relaxed(3);
    let back = sender.push(9, &eager(0, 0, 8), &[0; 8]);
    assert_eq!(back, Err(FastboxFault::Position { found: 3, low: 4, high: 12 }));
}

#[test]
fn impossible_stamps_are_faults() {
    let region = region(16);
    let (_, receiver) = ends(&region, 16);
    let stamp: &Word64 = region.word(SLOTS_AT);
    let known = |code: u64| Kind::from_code(code as u8 & 0x7f).is_some();
    for kind in (0..=255).filter(|&code| !known(code)) {
        let value = 1 << 32 | kind << 40;
        stamp.store_relaxed(value);
        assert_eq!(receiver.peek().unwrap_err(), FastboxFault::Kind(value));
    }
    for code in 0..=255 {
        stamp.store_relaxed(1 << 32 | code << 40);
        let due = receiver.due_of_any_kind(0).map(|packet| packet.envelope.kind);
        assert_eq!(due, Kind::from_code(code as u8), "a packet in a cell, or of no kind, is not due");
    }
    let most = max_payload(16);
    stamp.store_relaxed(1 << 32 | 1 << 40 | most as u64);
    assert_eq!(receiver.peek().unwrap().unwrap().len, most);
    for len in [most + 1, 0xffff] {
        stamp.store_relaxed(1 << 32 | 1 << 40 | len as u64);
        assert_eq!(receiver.peek().unwrap_err(), FastboxFault::Length { len, most });
        assert!(receiver.due_of_any_kind(0).is_none());
    }
    for lap in (0..=255).filter(|&lap| lap != 1) {
        stamp.store_relaxed(lap << 32 | 1 << 40);
        assert!(receiver.peek().unwrap().is_none(), "lap {lap} is not this lap");
        assert!(receiver.due_of_any_kind(0).is_none(), "lap {lap} is not this lap");
    }
}

/// Both ends continue, whatever the other writes.
fn corrupted(seed: u64, slots: usize) {
    let region = region(slots);
    let (mut sender, mut receiver) = ends(&region, slots);
    let mut rng = Rng::new(seed);
    let mut to = vec![0; max_payload(slots) + 64];
    for sequence in 1..500 {
        match rng.below(6) {
            0 => region.corrupt(&mut rng, SLOTS_AT, SLOTS_AT + slots * size_of::<FastboxSlot>()),
            1 => region.corrupt(&mut rng, 0, 8),
            2 => {
                let bytes = contents(sequence, rng.below(max_payload(slots) + 2));
                let _ = sender.push(sequence, &eager(1, 2, bytes.len()), &bytes);
            }
            3 => {
                let bytes = contents(sequence, rng.below(SHORT_BYTES + 1));
                if rng.one_in(2) {
                    sender.push_short(sequence, 2, 1, &bytes);
                } else {
                    sender.push_now(sequence, 2, 1, &contents(sequence, rng.below(max_payload(slots) + 2)));
                }
            }
            4 => {
                let room = rng.below(SHORT_BYTES + 2);
                if let Some((packet, ended)) = receiver.take_short(sequence, 2, room, |_| true) {
                    assert!(packet.len <= room.min(SHORT_BYTES), "seed {seed}");
                    packet.read(&mut to[..room]);
                    if ended {
                        receiver.end_run();
                    }
                }
            }
            _ => {
                let Ok(Some(packet)) = receiver.peek() else { continue };
                // The length of a packet in a cell may have any value: the owner of the view on the cells
                // checks it.
                let len = if packet.cell.is_some() { 0 } else { packet.len };
                assert!(len <= max_payload(slots), "seed {seed}");
                region.corrupt(&mut rng, SLOTS_AT, SLOTS_AT + slots * size_of::<FastboxSlot>());
                let at = rng.below(len + 2);
                receiver.read(len, at, &mut to);
                receiver.read(len, 0, &mut to[..len]);
                receiver.read(len, at.min(len), &mut to[..len - at.min(len)]);
                receiver.due(sequence);
                receiver.advance(len);
            }
        }
    }
}

#[test]
fn fastboxes_corrupted_for_long_never_panic() {
    for seed in (0..60).chain([6098641220782234923]) {
        corrupted(seed, 4 << (seed % 5));
    }
}
