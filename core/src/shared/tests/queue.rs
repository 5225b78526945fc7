//! The receive queue against a `VecDeque`.

use std::collections::VecDeque;
use std::vec::Vec;

use proptest::prelude::*;

use super::fabric::FabricRegion;
use super::{Rng, cases, portion};
use crate::shared::queue::{CellQueue, Consumer, Producer};

const ENTRIES_AT: usize = 4096;
const PRODUCERS: usize = 3;

#[derive(Clone, Copy, Debug)]
enum QueueOp {
    /// This producer enqueues a cell.
    Push(usize),
    Pop,
    /// Moves the hint back by this amount, like the late store of a slow producer.
    Hint(u64),
}

struct SharedQueue<'a> {
    region: &'a FabricRegion,
    producers: Vec<Producer<'a>>,
    consumer: Consumer<'a>,
    entries: usize,
    between: VecDeque<u32>,
    pushed: u32,
}

fn queue(region: &FabricRegion, entries: usize) -> CellQueue<'_> {
    CellQueue::new(region.view(ENTRIES_AT, entries), region.word(0))
}

fn region(entries: usize) -> FabricRegion {
    FabricRegion::new(ENTRIES_AT + entries * 8)
}

impl<'a> SharedQueue<'a> {
    fn new(region: &'a FabricRegion, entries: usize) -> Self {
        let queue = queue(region, entries);
        Self {
            region,
            producers: (0..PRODUCERS).map(|_| Producer::new(queue)).collect(),
            consumer: Consumer::new(queue),
            entries,
            between: VecDeque::new(),
            pushed: 0,
        }
    }

    fn apply(&mut self, op: QueueOp) {
        match op {
            // The queue has an entry for every cell of the world, so it never holds more.
            QueueOp::Push(_) if self.between.len() == self.entries => {}
            QueueOp::Push(producer) => {
                let cell = self.pushed.wrapping_mul(0x9e37_79b9);
                self.producers[producer].push(cell).unwrap();
                self.between.push_back(cell);
                self.pushed += 1;
            }
            QueueOp::Pop => {
                let found = self.consumer.peek().unwrap();
                assert_eq!(found, self.between.pop_front());
                if found.is_some() {
                    self.consumer.advance();
                }
            }
            QueueOp::Hint(back) => {
                let hint = self.region.word(0);
                hint.store_relaxed(hint.load_relaxed().saturating_sub(back));
            }
        }
    }
}

fn op() -> impl Strategy<Value = QueueOp> {
    prop_oneof![
        5 => (0..PRODUCERS).prop_map(QueueOp::Push),
        4 => Just(QueueOp::Pop),
        1 => (0..40u64).prop_map(QueueOp::Hint),
    ]
}

proptest! {
    #![proptest_config(cases(128))]

    #[test]
    fn queue_delivers_every_cell_once_and_in_order(
        shift in 2u32..=5, ops in prop::collection::vec(op(), 0..400),
    ) {
        let region = region(1 << shift);
        let mut shared = SharedQueue::new(&region, 1 << shift);
        for op in ops {
            shared.apply(op);
        }
    }

    #[test]
    fn corrupted_queue_never_panics_and_always_returns(seed: u64) {
        corrupted(seed);
    }
}

#[test]
fn queue_agrees_with_the_oracle_over_many_laps() {
    for seed in 0..portion(8) {
        let mut rng = Rng::new(seed);
        let entries = 4 << (seed % 3);
        let region = region(entries);
        let mut shared = SharedQueue::new(&region, entries);
        for _ in 0..20_000 {
            // One producer pauses for thousands of entries at a time.
            let awake = if rng.one_in(3000) { PRODUCERS } else { PRODUCERS - 1 };
            shared.apply(match rng.below(20) {
                0 => QueueOp::Hint(rng.below(100) as u64),
                1..=10 => QueueOp::Push(rng.below(awake)),
                _ => QueueOp::Pop,
            });
        }
        assert!(shared.pushed > 5000, "seed {seed}");
    }
}

#[test]
fn producer_that_paused_for_many_laps_finds_the_tail_without_the_hint() {
    let region = region(4);
    let mut shared = SharedQueue::new(&region, 4);
    for _ in 0..4000 {
        shared.apply(QueueOp::Push(0));
        shared.apply(QueueOp::Pop);
    }
    shared.apply(QueueOp::Push(0));
    shared.apply(QueueOp::Hint(u64::MAX));
    shared.apply(QueueOp::Push(1));
    shared.apply(QueueOp::Hint(u64::MAX));
    shared.apply(QueueOp::Push(2));
    for _ in 0..4 {
        shared.apply(QueueOp::Pop);
    }
}

#[test]
fn impossible_hint_does_not_stop_a_producer() {
    for hint in [u64::MAX, 1 << 51, 1 << 50, 1 << 40, 4097] {
        let region = region(4);
        let mut shared = SharedQueue::new(&region, 4);
        shared.apply(QueueOp::Push(0));
        region.word(0).store_relaxed(hint);
        shared.apply(QueueOp::Push(1));
        shared.apply(QueueOp::Push(0));
        for _ in 0..4 {
            shared.apply(QueueOp::Pop);
        }
    }
}

#[test]
fn entry_of_another_lap_is_a_fault_of_no_peer() {
    let region = region(4);
    let queue = queue(&region, 4);
    let (mut producer, consumer) = (Producer::new(queue), Consumer::new(queue));
    region.word(ENTRIES_AT).store_relaxed(7 << 32 | 5);
    let fault = consumer.peek().unwrap_err();
    assert_eq!((fault.position, fault.found), (0, 7 << 32 | 5));
    // The producer assumes that six laps have passed, which the next entries contradict.
    assert!(producer.push(1).is_err());
}

#[test]
fn producer_at_the_wrap_of_the_laps_neither_panics_nor_hangs() {
    for near in [(1u64 << 34) - 5, (1 << 34) - 4, (1 << 34) - 1, 1 << 34, (1 << 50) - 1, 1 << 50] {
        for laps in [0u64, 1, u64::from(u32::MAX) - 1, u64::from(u32::MAX)] {
            let region = region(4);
            for entry in 0..4 {
                region.word(ENTRIES_AT + entry * 8).store_relaxed(laps << 32);
            }
            region.word(0).store_relaxed(near);
            let mut producer = Producer::new(queue(&region, 4));
            for cell in 0..20 {
                let _ = producer.push(cell);
            }
        }
    }
}

fn overrun(seed: u64) {
    let mut rng = Rng::new(seed);
    let entries = 4 << rng.below(3);
    let region = region(entries);
    let queue = queue(&region, entries);
    let mut producers = [Producer::new(queue), Producer::new(queue)];
    let mut consumer = Consumer::new(queue);
    let (mut pushed, mut next) = (0, 0);
    for _ in 0..200 {
        for _ in 0..rng.below(4 * entries) {
            producers[rng.below(2)].push(pushed).unwrap();
            pushed += 1;
        }
        for _ in 0..rng.below(2 * entries) {
            match consumer.peek() {
                Ok(None) => {
                    assert_eq!(next, pushed, "seed {seed}");
                    break;
                }
                Ok(Some(cell)) => {
                    assert_eq!(cell, next, "seed {seed}: an entry is lost without a fault");
                    next += 1;
                    consumer.advance();
                }
                Err(fault) => {
                    assert!(consumer.catch_up(&fault), "seed {seed}: {fault}");
                    let cell = consumer.peek().unwrap().unwrap();
                    assert!(cell > next && cell < pushed, "seed {seed}: from {next} to {cell} of {pushed}");
                    next = cell;
                }
            }
        }
    }
}

#[test]
fn consumer_that_was_overtaken_goes_on_with_a_later_lap() {
    for seed in 0..portion(200) {
        overrun(seed);
    }
}

#[test]
fn consumer_follows_entries_of_later_laps_only() {
    let region = region(4);
    let queue = queue(&region, 4);
    let (mut producer, mut consumer) = (Producer::new(queue), Consumer::new(queue));
    for cell in 0..5 {
        producer.push(cell).unwrap();
        consumer.advance();
    }
    // The head is in the second lap.
    region.word(ENTRIES_AT + 8).store_relaxed(7);
    let earlier = consumer.peek().unwrap_err();
    assert!(!consumer.catch_up(&earlier));
    assert_eq!(consumer.peek(), Err(earlier));
    region.word(ENTRIES_AT + 8).store_relaxed(5 << 32 | 9);
    let later = consumer.peek().unwrap_err();
    assert!(consumer.catch_up(&later));
    assert_eq!(consumer.peek(), Ok(Some(9)));
}

fn corrupted(seed: u64) {
    let mut rng = Rng::new(seed);
    let entries = 4 << rng.below(4);
    let region = region(entries);
    let queue = queue(&region, entries);
    let mut producers = [Producer::new(queue), Producer::new(queue)];
    let mut consumer = Consumer::new(queue);
    for _ in 0..500 {
        match rng.below(6) {
            0 => region.corrupt(&mut rng, 0, 8),
            1 => region.corrupt(&mut rng, ENTRIES_AT, ENTRIES_AT + entries * 8),
            2 | 3 => {
                let _ = producers[rng.below(2)].push(rng.next() as u32);
            }
            _ => match consumer.peek() {
                Ok(None) => {}
                Ok(Some(_)) => consumer.advance(),
                Err(fault) => {
                    let _ = consumer.catch_up(&fault);
                }
            },
        }
    }
}

#[test]
fn queues_corrupted_for_long_never_panic() {
    for seed in 0..100 {
        corrupted(seed);
    }
}
