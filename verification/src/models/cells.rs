//! Models of the cell pool, its return rings, and the scan that finds cells whose queue entry is lost.

use loom::cell::UnsafeCell;
use nemesia_core::shared::end_mark::EndMark;
use nemesia_core::shared::pool::{
    CellHeader, CellPool, CellRecord, CellState, PeerPool, ReturnReceiver, ReturnSender, ReturnSlot,
    ReuseOrder,
};
use nemesia_core::shared::port::Stores;
use nemesia_core::shared::queue::{CellQueue, Consumer, Producer};
use nemesia_core::sync::model::leave_undrained;
use nemesia_core::sync::{Edge, PayloadMut, Word64};

use super::Model;
use crate::mutant::InjectedFault;
use crate::stage::{Run, assert_whole, both, bytes, envelope, payload, several};

/// One cell is sent and given back again and again.
pub(super) const REFILL: Model = Model {
    name: "cells/refill",
    structure: "pool, return ring, queue",
    property: "a cell named by the queue is whole; it is not refilled before it is returned",
    edges: &[Edge::QueuePublish, Edge::CellReturn],
    injected_faults: &[
        InjectedFault::ReturnBeforeRead,
        InjectedFault::EnqueueBeforePublish,
        InjectedFault::RefillUnreturned,
    ],
    run: refill,
};

/// The same cells, filled by non-temporal stores, which a Release does not order.
pub(super) const NON_TEMPORAL: Model = Model {
    name: "cells/non-temporal",
    structure: "pool, return ring, queue; copies past the caches",
    property: "a cell that was filled with non-temporal stores is whole when it is found",
    edges: &[Edge::QueuePublish, Edge::CellReturn],
    injected_faults: &[InjectedFault::Undrained],
    run: non_temporal,
};

/// The same cells; the owner prefetches the next cell's lines for writing before it needs them.
pub(super) const PREFETCHED: Model = Model {
    name: "cells/prefetched",
    structure: "pool, return ring, queue; lines of the next cell are written to ahead",
    property: "a cell is prefetched for writing only after it was returned",
    edges: &[Edge::QueuePublish, Edge::CellReturn],
    injected_faults: &[InjectedFault::PrefetchUnreturned],
    run: prefetched,
};

/// The entry in the queue is lost.
pub(super) const SWEEP: Model = Model {
    name: "cells/sweep",
    structure: "pool, without queue",
    property: "a packet whose queue entry is lost is found, whole, by its cell alone",
    edges: &[Edge::CellPublish, Edge::CellReturn],
    injected_faults: &[],
    run: sweep,
};

/// The receiver's rank.
pub(super) const RECEIVER: u16 = 1;
/// Payload bytes of a cell.
pub(super) const LEN: usize = 2;
/// The number of attempts of a thread; the final single-threaded phase does the rest.
const ATTEMPTS: usize = 4;

/// The shared memory of one owner and one receiver.
pub(super) struct CellMemory {
    headers: Vec<CellHeader>,
    payload: Vec<UnsafeCell<u8>>,
    returns: Vec<ReturnSlot>,
    entries: Vec<Word64>,
    tail: Word64,
    end_mark: Word64,
}

impl CellMemory {
    pub(super) fn new(cells: usize, entries: usize) -> Self {
        Self {
            headers: several(cells, CellHeader::empty),
            payload: payload(cells * LEN),
            returns: several(cells, ReturnSlot::empty),
            entries: several(entries, || Word64::new(0)),
            tail: Word64::new(0),
            end_mark: Word64::new(0),
        }
    }

    pub(super) fn queue(&self) -> CellQueue<'_> {
        CellQueue::new(&self.entries, &self.tail)
    }

    pub(super) fn owner(&self) -> Owner<'_> {
        let records = vec![CellRecord::default(); self.headers.len()];
        let payload = PayloadMut::from_cells(&self.payload);
        let pool = CellPool::new(&self.headers, payload, LEN, records);
        Owner {
            payload,
            pool: pool.expect("the sizes fit"),
            returned: ReturnReceiver::new(&self.returns),
            queue: Some(Producer::new(self.queue())),
            next: 1,
            writing: Stores::Cached,
            prefetches: false,
        }
    }

    /// Returns an owner that enqueues none of its cells.
    pub(super) fn owner_without_queue(&self) -> Owner<'_> {
        Owner { queue: None, ..self.owner() }
    }

    pub(super) fn receiver(&self) -> Receiving<'_> {
        let payload = PayloadMut::from_cells(&self.payload).as_read();
        Receiving {
            cells: PeerPool::new(&self.headers, payload, LEN, EndMark::new(&self.end_mark)),
            give_back: ReturnSender::new(&self.returns),
            queue: Consumer::new(self.queue()),
            next: 1,
            return_early: false,
        }
    }
}

/// The owner of the cells, with the number of its next message.
pub(super) struct Owner<'a> {
    pub(super) pool: CellPool<'a, Vec<CellRecord>>,
    payload: PayloadMut<'a>,
    returned: ReturnReceiver<'a>,
    /// `None` if entries are lost.
    queue: Option<Producer<'a>>,
    pub(super) next: u8,
    pub(super) writing: Stores,
    /// Whether the owner writes to the next cell as soon as that cell is free.
    prefetches: bool,
}

impl Owner<'_> {
    /// Collects the cells that were given back.
    pub(super) fn collect(&mut self) {
        while let Some(cell) = self.returned.pop() {
            self.pool.give_back(cell, RECEIVER.into(), ReuseOrder::First).expect("the receiver is honest");
        }
    }

    /// Sends the next message if a cell is free.
    pub(super) fn send(&mut self, injected_fault: Option<InjectedFault>) -> bool {
        self.collect();
        if self.pool.free() == 0 && injected_fault == Some(InjectedFault::RefillUnreturned) {
            self.pool.reclaim(RECEIVER.into());
        }
        let Some(cell) = self.pool.take(RECEIVER.into()) else { return false };
        if injected_fault == Some(InjectedFault::EnqueueBeforePublish) {
            self.enqueue(cell);
        }
        let (envelope, payload) = (envelope(self.next, LEN), bytes(self.next, LEN));
        assert!(self.pool.fill(cell, [&payload, &[]], self.writing));
        self.pool.publish(cell, RECEIVER, self.next.into(), &envelope);
        if injected_fault != Some(InjectedFault::EnqueueBeforePublish) {
            self.enqueue(cell);
        }
        self.next += 1;
        if self.prefetches {
            self.prefetch(cell, injected_fault);
        }
        true
    }

    /// Writes to the next cell if one is free.
    fn prefetch(&mut self, sent: u32, injected_fault: Option<InjectedFault>) {
        if injected_fault == Some(InjectedFault::PrefetchUnreturned) {
            assert!(self.payload.prefetch(sent as usize * LEN, LEN));
            return;
        }
        self.collect();
        assert!(
            !self.pool.prefetch(sent, 0, LEN) || self.pool.first() == Some(sent),
            "a cell that the receiver holds"
        );
        if let Some(cell) = self.pool.first() {
            assert!(self.pool.prefetch(cell, 0, LEN));
        }
    }

    fn enqueue(&mut self, cell: u32) {
        if let Some(queue) = &mut self.queue {
            queue.push(cell).expect("no process corrupts the queue");
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
        let Some(cell) = self.queue.peek().expect("no process corrupts the queue") else { return false };
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
    refill_by(run, Stores::Prefetched, false);
}

fn prefetched(run: &Run) {
    refill_by(run, Stores::Cached, true);
}

fn non_temporal(run: &Run) {
    leave_undrained(run.injected_faults(InjectedFault::Undrained));
    refill_by(run, Stores::NonTemporal, false);
}

fn refill_by(run: &Run, writing: Stores, prefetches: bool) {
    let injected_fault = run.injected_fault;
    let (count, cells) = (run.size(3, 4), run.size(1, 2));
    run.explore(3, move || {
        let memory = CellMemory::new(cells, 2);
        let (mut owner, mut receiver) = (memory.owner(), memory.receiver());
        (owner.writing, owner.prefetches) = (writing, prefetches);
        receiver.return_early = injected_fault == Some(InjectedFault::ReturnBeforeRead);
        both(
            || (0..ATTEMPTS).for_each(|_| _ = owner.next <= count && owner.send(injected_fault)),
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
        let memory = CellMemory::new(2, 2);
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
