//! Models of the cell pool, its return rings, and the scan that finds cells whose queue entry is lost.

use loom::cell::UnsafeCell;
use nemesia_core::shared::pool::{
    CellHeader, CellRecord, CellState, PeerPool, Pool, ReturnReceiver, ReturnSender, ReturnSlot, Turn,
    Writing,
};
use nemesia_core::shared::queue::{Consumer, Producer, Queue};
use nemesia_core::sync::model::leave_undrained;
use nemesia_core::sync::{Edge, PayloadMut, Word64};

use super::Model;
use crate::mutant::Blunder;
use crate::stage::{Run, assert_whole, both, bytes, envelope, payload, several};

/// One cell is sent and given back again and again.
pub(super) const REFILL: Model = Model {
    name: "cells/refill",
    structure: "pool, return ring, queue",
    property: "a cell named by the queue is whole; it is not refilled before it is given back",
    edges: &[Edge::QueuePublish, Edge::CellReturn],
    blunders: &[Blunder::ReturnBeforeRead, Blunder::EnqueueBeforePublish, Blunder::RefillUnreturned],
    run: refill,
};

/// The same cells, filled by non-temporal stores, which a Release does not order.
pub(super) const PAST_CACHES: Model = Model {
    name: "cells/past-caches",
    structure: "pool, return ring, queue; copies past the caches",
    property: "a cell that is filled past the caches is whole when it is found",
    edges: &[Edge::QueuePublish, Edge::CellReturn],
    blunders: &[Blunder::Undrained],
    run: past_caches,
};

/// The same cells; the owner prefetches the next cell's lines for writing before it needs them.
pub(super) const WARMED: Model = Model {
    name: "cells/warmed",
    structure: "pool, return ring, queue; lines of the next cell are written to ahead",
    property: "a cell is written to ahead only when it was given back",
    edges: &[Edge::QueuePublish, Edge::CellReturn],
    blunders: &[Blunder::WarmUnreturned],
    run: warmed,
};

/// The entry in the queue is lost.
pub(super) const SWEEP: Model = Model {
    name: "cells/sweep",
    structure: "pool, without queue",
    property: "a packet whose queue entry is lost is found, whole, by its cell alone",
    edges: &[Edge::CellPublish, Edge::CellReturn],
    blunders: &[],
    run: sweep,
};

/// The receiver's rank.
pub(super) const RECEIVER: u16 = 1;
/// Payload bytes of a cell.
pub(super) const LEN: usize = 2;
/// The number of attempts of a thread; the final single-threaded phase does the rest.
const ATTEMPTS: usize = 4;

/// The shared memory of one owner and one receiver.
pub(super) struct Memory {
    headers: Vec<CellHeader>,
    payload: Vec<UnsafeCell<u8>>,
    returns: Vec<ReturnSlot>,
    entries: Vec<Word64>,
    tail: Word64,
}

impl Memory {
    pub(super) fn new(cells: usize, entries: usize) -> Self {
        Self {
            headers: several(cells, CellHeader::empty),
            payload: payload(cells * LEN),
            returns: several(cells, ReturnSlot::empty),
            entries: several(entries, || Word64::new(0)),
            tail: Word64::new(0),
        }
    }

    pub(super) fn queue(&self) -> Queue<'_> {
        Queue::new(&self.entries, &self.tail)
    }

    pub(super) fn owner(&self) -> Owner<'_> {
        let records = vec![CellRecord::default(); self.headers.len()];
        let payload = PayloadMut::from_cells(&self.payload);
        let pool = Pool::new(&self.headers, payload, LEN, records);
        Owner {
            payload,
            pool: pool.expect("the sizes fit"),
            returned: ReturnReceiver::new(&self.returns),
            queue: Some(Producer::new(self.queue())),
            next: 1,
            writing: Writing::Plain,
            warms: false,
        }
    }

    /// Returns an owner that enqueues none of its cells.
    pub(super) fn owner_without_queue(&self) -> Owner<'_> {
        Owner { queue: None, ..self.owner() }
    }

    pub(super) fn receiver(&self) -> Receiving<'_> {
        let payload = PayloadMut::from_cells(&self.payload).as_read();
        Receiving {
            cells: PeerPool::new(&self.headers, payload, LEN),
            give_back: ReturnSender::new(&self.returns),
            queue: Consumer::new(self.queue()),
            next: 1,
            return_early: false,
        }
    }
}

/// The owner of the cells, with the number of its next message.
pub(super) struct Owner<'a> {
    pub(super) pool: Pool<'a, Vec<CellRecord>>,
    payload: PayloadMut<'a>,
    returned: ReturnReceiver<'a>,
    /// `None` if entries are lost.
    queue: Option<Producer<'a>>,
    pub(super) next: u8,
    writing: Writing,
    /// Whether the owner writes to the next cell as soon as that cell is free.
    warms: bool,
}

impl Owner<'_> {
    /// Collects the cells that were given back.
    pub(super) fn collect(&mut self) {
        while let Some(cell) = self.returned.pop() {
            self.pool.give_back(cell, RECEIVER.into(), Turn::First).expect("the receiver is honest");
        }
    }

    /// Sends the next message if a cell is free.
    pub(super) fn send(&mut self, blunder: Option<Blunder>) -> bool {
        self.collect();
        if self.pool.free() == 0 && blunder == Some(Blunder::RefillUnreturned) {
            self.pool.reclaim(RECEIVER.into());
        }
        let Some(cell) = self.pool.take(RECEIVER.into()) else { return false };
        if blunder == Some(Blunder::EnqueueBeforePublish) {
            self.enqueue(cell);
        }
        let (envelope, payload) = (envelope(self.next, LEN), bytes(self.next, LEN));
        assert!(self.pool.fill(cell, [&payload, &[]], self.writing));
        self.pool.publish(cell, RECEIVER, self.next.into(), &envelope);
        if blunder != Some(Blunder::EnqueueBeforePublish) {
            self.enqueue(cell);
        }
        self.next += 1;
        if self.warms {
            self.warm(cell, blunder);
        }
        true
    }

    /// Writes to the next cell if one is free.
    fn warm(&mut self, sent: u32, blunder: Option<Blunder>) {
        if blunder == Some(Blunder::WarmUnreturned) {
            assert!(self.payload.warm(sent as usize * LEN, LEN));
            return;
        }
        self.collect();
        assert!(
            !self.pool.warm(sent, 0, LEN) || self.pool.first() == Some(sent),
            "a cell that the receiver holds"
        );
        if let Some(cell) = self.pool.first() {
            assert!(self.pool.warm(cell, 0, LEN));
        }
    }

    fn enqueue(&mut self, cell: u32) {
        if let Some(queue) = &mut self.queue {
            queue.push(cell).expect("nobody scribbles");
        }
    }
}

/// The receiver, with the number of the next message.
pub(super) struct Receiving<'a> {
    pub(super) cells: PeerPool<'a>,
    give_back: ReturnSender<'a>,
    queue: Consumer<'a>,
    pub(super) next: u8,
    return_early: bool,
}

impl Receiving<'_> {
    /// Takes the cell at the head of the queue, if there is one, and checks it.
    pub(super) fn take(&mut self) -> bool {
        let Some(cell) = self.queue.peek().expect("nobody scribbles") else { return false };
        self.take_cell(cell);
        self.queue.advance();
        true
    }

    /// Takes the next message from whichever cell holds it.
    pub(super) fn sweep(&mut self) -> bool {
        let Some(cell) = self.cells.find(RECEIVER, self.next.into()) else { return false };
        self.take_cell(cell);
        true
    }

    fn take_cell(&mut self, cell: u32) {
        let state = self.cells.inspect(cell, RECEIVER, self.next.into());
        let CellState::Due { envelope, len } = state else {
            panic!("cell {cell} should hold message {}, but it is {state:?}", self.next);
        };
        if self.return_early {
            self.give_back.push(cell);
        }
        let mut payload = vec![0; len];
        assert!(self.cells.read(cell, 0, &mut payload));
        assert_whole(self.next, &envelope, &payload);
        if !self.return_early {
            self.give_back.push(cell);
        }
        self.next += 1;
    }
}

fn refill(run: &Run) {
    refill_by(run, Writing::Taking, false);
}

fn warmed(run: &Run) {
    refill_by(run, Writing::Plain, true);
}

fn past_caches(run: &Run) {
    leave_undrained(run.blunders(Blunder::Undrained));
    refill_by(run, Writing::PastCaches, false);
}

fn refill_by(run: &Run, writing: Writing, warms: bool) {
    let blunder = run.blunder;
    let (count, cells) = (run.size(3, 4), run.size(1, 2));
    run.explore(3, move || {
        let memory = Memory::new(cells, 2);
        let (mut owner, mut receiver) = (memory.owner(), memory.receiver());
        (owner.writing, owner.warms) = (writing, warms);
        receiver.return_early = blunder == Some(Blunder::ReturnBeforeRead);
        both(
            || (0..ATTEMPTS).for_each(|_| _ = owner.next <= count && owner.send(blunder)),
            || (0..ATTEMPTS).for_each(|_| _ = receiver.take()),
        );
        while receiver.next <= count {
            let sent = owner.next <= count && owner.send(None);
            assert!(receiver.take() || sent, "message {} is lost", receiver.next);
        }
        assert!(!receiver.take(), "a message came twice");
        owner.collect();
        assert_eq!(owner.pool.free(), cells, "a cell is lost");
    });
}

fn sweep(run: &Run) {
    let count = run.size(3, 4);
    run.explore(3, move || {
        let memory = Memory::new(2, 2);
        let (mut owner, mut receiver) = (memory.owner_without_queue(), memory.receiver());
        both(
            || (0..ATTEMPTS).for_each(|_| _ = owner.next <= count && owner.send(None)),
            || (0..ATTEMPTS).for_each(|_| _ = receiver.sweep()),
        );
        while receiver.next <= count {
            let sent = owner.next <= count && owner.send(None);
            assert!(receiver.sweep() || sent, "message {} is lost", receiver.next);
        }
        assert!(!receiver.sweep(), "a message came twice");
    });
}
