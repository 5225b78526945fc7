//! Models of the receive queue: several producers, one consumer.

use nemesia_core::shared::queue::{CellQueue, Consumer, Producer};
use nemesia_core::sync::{Edge, PayloadWord, Word64};

use super::Model;
use crate::stage::{Run, both, several, three};

/// Two producers contend for the tail.
pub(super) const PRODUCERS: Model = Model {
    name: "queue/producers",
    structure: "cell queue (4 entries)",
    property: "two producers: no cell lost or doubled, each producer's in order; no fault from honest producers",
    edges: &[Edge::QueuePublish],
    injected_faults: &[],
    run: producers,
};

/// A producer starts at the tail hint of another producer.
pub(super) const HINT: Model = Model {
    name: "queue/hint",
    structure: "cell queue (4 entries)",
    property: "a thread that starts at another's tail hint sees the entries below as taken: no fault, no gap",
    edges: &[Edge::QueueTail],
    injected_faults: &[],
    run: hint,
};

/// A producer was stopped while the ring wrapped.
pub(super) const STALE: Model = Model {
    name: "queue/stale",
    structure: "cell queue (2 entries)",
    property: "a producer that missed several laps still enqueues its cells: no fault, no gap",
    edges: &[Edge::QueuePublish],
    injected_faults: &[],
    run: stale,
};

/// Producers go round the ring past entries that were not read.
pub(super) const OVERRUN: Model = Model {
    name: "queue/overrun",
    structure: "cell queue (2 entries)",
    property: "a consumer that was overtaken goes on with a later lap: no other fault, and the last cell is found",
    edges: &[Edge::QueuePublish],
    injected_faults: &[],
    run: overrun,
};

/// A queue with a payload word for each cell number, so that loom sees what an entry publishes.
struct QueueMemory {
    entries: Vec<Word64>,
    tail: Word64,
    cells: Vec<PayloadWord>,
}

impl QueueMemory {
    fn new(entries: usize, cells: usize) -> Self {
        Self {
            entries: several(entries, || Word64::new(0)),
            tail: Word64::new(0),
            cells: several(cells, || PayloadWord::new(0)),
        }
    }

    fn queue(&self) -> CellQueue<'_> {
        CellQueue::new(&self.entries, &self.tail)
    }

    /// Fills the cell, then enqueues it.
    fn send(&self, producer: &mut Producer<'_>, cell: u32) {
        self.cells[cell as usize].set(u64::from(cell) + 1);
        producer.push(cell).expect("an honest producer never sees a fault");
    }

    /// Takes the cell at the head, if there is one.
    fn take(&self, consumer: &mut Consumer<'_>) -> Option<u32> {
        let cell = consumer.peek().expect("no process corrupts the queue")?;
        assert_eq!(self.cells[cell as usize].get(), u64::from(cell) + 1, "an entry names an unfilled cell");
        consumer.advance();
        Some(cell)
    }
}

/// Checks that each producer's cells came completely and in ascending order. Cells below `split` belong to one
/// producer, the others to the other.
fn assert_complete(came: &[u32], split: u32, count: u32) {
    let (first, second): (Vec<u32>, Vec<u32>) = came.iter().partition(|&&cell| cell < split);
    assert_eq!(first, Vec::from_iter(0..split), "the first producer's cells, in order");
    assert_eq!(second, Vec::from_iter(split..count), "the second producer's cells, in order");
}

fn producers(run: &Run) {
    let (polls, preemptions) = run.size((2, 3), (4, 3));
    run.explore(preemptions, move || {
        let memory = QueueMemory::new(4, 4);
        let mut consumer = Consumer::new(memory.queue());
        let produce = |cells: [u32; 2]| {
            let mut producer = Producer::new(memory.queue());
            cells.into_iter().for_each(|cell| memory.send(&mut producer, cell));
        };
        let poll = || {
            let mut came = Vec::new();
            for _ in 0..polls {
                came.extend(memory.take(&mut consumer));
            }
            came
        };
        let (mut came, (), ()) = three(poll, || produce([0, 1]), || produce([2, 3]));
        came.extend(std::iter::from_fn(|| memory.take(&mut consumer)));
        assert_complete(&came, 2, 4);
    });
}

/// One thread produces and consumes, so that the ring wraps, while another produces. The first must see its own
/// cell, and all cells before it, as soon as it has enqueued its own.
fn round(run: &Run, preemptions: usize, entries: usize, own: u32, others: u32) {
    run.explore(preemptions, move || {
        let memory = QueueMemory::new(entries, (own + others) as usize);
        let mut consumer = Consumer::new(memory.queue());
        let go_round = || {
            let mut producer = Producer::new(memory.queue());
            let mut came = Vec::new();
            for cell in 0..own {
                memory.send(&mut producer, cell);
                while came.last() != Some(&cell) {
                    came.push(memory.take(&mut consumer).expect("the entries below one's own are taken"));
                }
            }
            came
        };
        let produce = || {
            let mut producer = Producer::new(memory.queue());
            (own..own + others).for_each(|cell| memory.send(&mut producer, cell));
        };
        let (mut came, ()) = both(go_round, produce);
        came.extend(std::iter::from_fn(|| memory.take(&mut consumer)));
        assert_complete(&came, own, own + others);
    });
}

fn hint(run: &Run) {
    round(run, 2, 4, run.size(4, 6), 2);
}

fn stale(run: &Run) {
    round(run, 3, 2, run.size(4, 6), 1);
}

fn overrun(run: &Run) {
    let (polls, preemptions) = run.size((2, 2), (3, 3));
    run.explore(preemptions, move || {
        let memory = QueueMemory::new(2, 5);
        let mut consumer = Consumer::new(memory.queue());
        let produce = |cells: std::ops::Range<u32>| {
            let mut producer = Producer::new(memory.queue());
            cells.for_each(|cell| memory.send(&mut producer, cell));
        };
        let mut take = || match consumer.peek() {
            Ok(None) => None,
            Ok(Some(cell)) => {
                assert_eq!(
                    memory.cells[cell as usize].get(),
                    u64::from(cell) + 1,
                    "an entry names an unfilled cell"
                );
                consumer.advance();
                Some(cell)
            }
            Err(fault) => {
                assert!(consumer.catch_up(&fault), "no process corrupts the queue: {fault}");
                None
            }
        };
        let poll = || (0..polls).filter_map(|_| take()).collect::<Vec<_>>();
        let (mut came, (), ()) = three(poll, || produce(0..3), || produce(3..5));
        // Two more polls than entries: the consumer is overtaken at most once.
        came.extend((0..4).filter_map(|_| take()));
        let is_ascending = |cells: &[u32]| cells.windows(2).all(|pair| pair[0] < pair[1]);
        let (first, second): (Vec<u32>, Vec<u32>) = came.iter().partition(|&&cell| cell < 3);
        assert!(is_ascending(&first) && is_ascending(&second), "an entry comes twice, or late");
        assert!(first.last() == Some(&2) || second.last() == Some(&4), "the last entry is not found");
    });
}
