//! Models in which a process is killed before each of its accesses to shared memory, and the others go on.
//!
//! No thread in these models waits for another. Each call returns, and the final state is checked once.

use nemesia_core::port::{PacketPort, PeerId};
use nemesia_core::shared::fastbox::{FastboxSender, FastboxSlot};
use nemesia_core::shared::pool::CellState;
use nemesia_core::shared::queue::{Consumer, Producer};
use nemesia_core::shared::ring::{RecordReader, RecordWriter};
use nemesia_core::sync::{Edge, Word64};

use super::Model;
use super::cells::{CellMemory, RECEIVER};
use super::{fastbox, port, ring};
use crate::mutant::InjectedFault;
use crate::stage::{Run, both, crash, several, three};

/// A producer dies.
pub(super) const PRODUCER: Model = Model {
    name: "crash/producer",
    structure: "pool, queue (4 entries)",
    property: "a producer dies anywhere: its cell arrives whole or not at all; all cells of the others arrive",
    edges: &[],
    injected_faults: &[InjectedFault::EnqueueBeforePublish],
    run: producer,
};

/// The sender of a fastbox dies.
pub(super) const FASTBOX: Model = Model {
    name: "crash/fastbox",
    structure: "fastbox (8 slots)",
    property: "a sender dies anywhere: only whole messages arrive, among them all whose sending had ended",
    edges: &[Edge::FastboxPublish],
    injected_faults: &[],
    run: fastbox_sender,
};

/// A receiver dies.
pub(super) const RECEIVER_DIES: Model = Model {
    name: "crash/receiver",
    structure: "pool, return ring",
    property: "a receiver dies anywhere: the owner of the cells recovers each of them once, and fills it again",
    edges: &[Edge::CellReturn],
    injected_faults: &[],
    run: receiver,
};

/// The writer of a ring dies.
pub(super) const RING: Model = Model {
    name: "crash/ring",
    structure: "record ring (8 bytes)",
    property: "a writer dies anywhere: only whole records arrive, among them all whose writing had ended",
    edges: &[Edge::RingPublish],
    injected_faults: &[],
    run: ring_writer,
};

/// A process that sends on both paths dies.
pub(super) const PORT: Model = Model {
    name: "crash/port",
    structure: "port (4 slots, 4 cells)",
    property: "a sender dies anywhere: no fault, no wait; the other's messages arrive; lent cells return",
    edges: &[Edge::FastboxPublish],
    injected_faults: &[],
    run: |run| whole_port(run, false, port::sending_both),
};

/// A process that announces cells in a fastbox dies.
pub(super) const ANNOUNCED: Model = Model {
    name: "crash/announced",
    structure: "port (4 slots, 4 cells)",
    property: "the same for cells that the fastbox announces: whole or absent, and all of the living sender's arrive",
    edges: &[Edge::FastboxPublish],
    injected_faults: &[],
    run: |run| whole_port(run, true, port::sending_cells),
};

/// The number in the dying producer's cell. The living producer uses the numbers below.
const DEAD: u32 = 2;

fn producer(run: &Run) {
    let early = run.injected_faults(InjectedFault::EnqueueBeforePublish);
    run.explore_crashes(2, move |accesses| {
        let (alive, doomed) = (CellMemory::new(2, 4), CellMemory::new(1, 4));
        let queue = alive.queue();
        let mut consumer = Consumer::new(queue);
        let mut came = Vec::new();
        let mut take = || match consumer.peek().expect("no process corrupts the queue") {
            Some(cell) => {
                consumer.advance();
                came.push(cell);
                true
            }
            None => false,
        };
        let live = || {
            let mut producer = Producer::new(queue);
            (0..DEAD).for_each(|cell| producer.push(cell).expect("no process corrupts the queue"));
        };
        let (mut owner, mut ended) = (doomed.owner_without_queue(), false);
        let dying = || {
            crash(accesses, || {
                let enqueue = || Producer::new(queue).push(DEAD).expect("no process corrupts the queue");
                if early {
                    enqueue();
                }
                assert!(owner.send(None));
                if !early {
                    enqueue();
                }
                ended = true;
            })
        };
        let poll = || (0..2).for_each(|_| _ = take());
        let (crashed, (), ()) = three(dying, live, poll);
        while take() {}
        let enqueued = came.contains(&DEAD);
        came.retain(|&cell| cell != DEAD);
        assert_eq!(came, [0, 1], "the living one's cells, in order");
        assert!(enqueued || !ended, "its push had ended");
        let mut receiver = doomed.receiver();
        let published = receiver.cells.inspect(0, RECEIVER, 1) != CellState::Other;
        assert!(published || !enqueued, "an entry names a cell that is not filled");
        assert_eq!(receiver.sweep(), published, "a cell that is there is whole");
        crashed
    });
}

fn fastbox_sender(run: &Run) {
    // Two slots long.
    const LEN: usize = 40;
    run.explore_crashes(3, |accesses| {
        let (slots, ack) = (several(8, FastboxSlot::empty), Word64::new(0));
        let sender = FastboxSender::new(&slots, &ack);
        let mut sending = fastbox::FastboxSending { sender, next: 1, len: LEN, quick: true };
        let mut taking = fastbox::FastboxTaking::new(&slots, &ack, LEN, true);
        let (crashed, ()) = both(
            || {
                crash(accesses, || {
                    while sending.next <= 2 {
                        assert!(sending.push(), "the ring is empty");
                    }
                })
            },
            || (0..2).for_each(|_| _ = taking.take()),
        );
        while taking.take() {}
        assert!(taking.next >= sending.next, "a message whose sending had ended is lost");
        crashed
    });
}

fn receiver(run: &Run) {
    run.explore_crashes(3, |accesses| {
        let memory = CellMemory::new(2, 2);
        let (mut owner, mut receiver) = (memory.owner(), memory.receiver());
        assert!(owner.send(None) && owner.send(None));
        let (crashed, sent) = both(
            || crash(accesses, || while receiver.take() {}),
            || (0..2).filter(|_| owner.send(None)).count(),
        );
        owner.collect();
        let returned = owner.pool.free();
        assert!(returned + sent >= usize::from(receiver.next) - 1, "a cell that was given back is lost");
        assert_eq!(owner.pool.reclaim(RECEIVER.into()), 2 - returned);
        assert_eq!((owner.pool.free(), owner.pool.reclaim(RECEIVER.into())), (2, 0));
        assert!(owner.send(None) && owner.send(None) && !owner.send(None), "each cell is free once");
        crashed
    });
}

fn ring_writer(run: &Run) {
    run.explore_crashes(3, |accesses| {
        let memory = ring::RingMemory::new(8);
        let (mut next, mut due) = (1, 1);
        let mut writer = RecordWriter::new(memory.ring());
        let mut reader = RecordReader::new(memory.ring());
        let (crashed, ()) = both(
            || crash(accesses, || (0..3).for_each(|_| _ = ring::push(&mut writer, &mut next))),
            || (0..2).for_each(|_| _ = ring::pop(&mut reader, &mut due)),
        );
        while ring::pop(&mut reader, &mut due) {}
        assert!(due >= next, "a record whose writing had ended is lost");
        crashed
    });
}

fn whole_port(run: &Run, announce: bool, sending: fn(port::Port<'_>, PeerId) -> port::PortSending<'_>) {
    run.explore_crashes(1, move |accesses| {
        let world = port::PortWorld::new(3);
        let mut taking = port::PortTaking::new(world.port_announcing(0, announce), 3);
        let whole = taking.port.free_cells();
        let lent = port::lend(&mut taking.port, 1);
        let mut doomed = sending(world.port_announcing(1, announce), 0);
        let mut alive = sending(world.port_announcing(2, announce), 0);
        let (crashed, (), ()) = three(
            || crash(accesses, || while doomed.send() {}),
            || while alive.send() {},
            || taking.attempt(2),
        );
        taking.take_all();
        assert_eq!(taking.due[2], alive.next(), "the living one's messages all come");
        assert!(taking.due[1] >= doomed.next(), "a message whose sending had ended is lost");
        assert_eq!(taking.port.free_cells(), whole - lent);
        taking.port.close(1);
        assert_eq!(taking.port.free_cells(), whole, "a cell that the dead one held is lost");
        crashed
    });
}
