//! Models of the whole shared-memory port at both ends: fastboxes, cells and queue under one sequence number.

use loom::cell::UnsafeCell;
use nemesia_core::port::{Arrival, PacketPieces, PacketPort, PeerId, Polled, ShortPath as _};
use nemesia_core::shared::assist::{self, AssistLine, Pieces};
use nemesia_core::shared::end_mark::EndMark;
use nemesia_core::shared::fastbox::{FastboxReceiver, FastboxSender, FastboxSlot};
use nemesia_core::shared::layout::Line;
use nemesia_core::shared::pool::{
    CellHeader, CellPool, CellRecord, PeerPool, ReturnReceiver, ReturnSender, ReturnSlot,
};
use nemesia_core::shared::port::{Ends, Host, Link, PacketPlace, PortConfig, ShmPort, Stores};
use nemesia_core::shared::queue::{CellQueue, Consumer, Producer};
use nemesia_core::shared::sleep::{Sleep, SleepWord};
use nemesia_core::sync::{Edge, FenceMode, PayloadMut, Word64};

use super::Model;
use crate::mutant::InjectedFault;
use crate::stage::{Run, assert_whole, both, bytes, envelope, payload, several, three};

/// The size of the message selects the path.
pub(super) const BY_SIZE: Model = Model {
    name: "port/by-size",
    structure: "port (4 slots, 4 cells)",
    property: "messages alternate between fastbox and cells: all arrive, whole, in order; no fault",
    edges: &[Edge::FastboxPublish, Edge::QueuePublish],
    injected_faults: &[],
    run: by_size,
};

/// The fastbox announces the cells.
pub(super) const ANNOUNCED: Model = Model {
    name: "port/announced",
    structure: "port (4 slots, 4 cells)",
    property: "a cell announced in the fastbox, without header and queue, is whole; a full fastbox falls back to the \
        queue",
    edges: &[Edge::FastboxPublish],
    injected_faults: &[],
    run: announced,
};

/// A cell is given back together with the answer.
pub(super) const RETURNED: Model = Model {
    name: "port/returned",
    structure: "port (4 slots, 4 cells)",
    property: "a cell that the announcement of the answer returns has been read before it is filled again",
    edges: &[Edge::FastboxPublish],
    injected_faults: &[InjectedFault::ReturnBeforeRead],
    run: returned,
};

/// The same; while it waits for the answer, the sender also writes ahead to the cell of its next message.
pub(super) const PREFETCHED: Model = Model {
    name: "port/prefetched",
    structure: "port (4 slots, 4 cells)",
    property: "a cell that is prefetched for writing while an answer is awaited has been returned",
    edges: &[Edge::FastboxPublish],
    injected_faults: &[InjectedFault::ReturnBeforeRead],
    run: prefetched,
};

/// The free room selects the path.
pub(super) const OVERFLOW: Model = Model {
    name: "port/overflow",
    structure: "port (4 slots, 4 cells)",
    property: "messages that a full fastbox refuses go into cells, later ones into the fastbox again: in order",
    edges: &[Edge::FastboxPublish, Edge::FastboxAck, Edge::QueuePublish],
    injected_faults: &[],
    run: overflow,
};

/// Two peers send.
pub(super) const TWO_SENDERS: Model = Model {
    name: "port/two-senders",
    structure: "port (4 slots, 4 cells)",
    property: "two senders, both paths: the messages of each arrive in its order",
    edges: &[Edge::FastboxPublish, Edge::QueuePublish],
    injected_faults: &[],
    run: two_senders,
};

/// Cells in each pool.
const CELLS: usize = 4;
/// Payload bytes of a cell.
const CELL_BYTES: usize = 4;
/// Slots of each fastbox.
const SLOTS: usize = 4;
/// The largest payload, in bytes, that still goes through a fastbox.
const SMALL: usize = 2;
/// A payload, in bytes, that needs a cell.
const LARGE: usize = 3;
/// The number of attempts of a thread; the final single-threaded phase does the rest.
const ATTEMPTS: usize = 4;
/// The number of polls within which a present packet must be found when no other thread runs.
const POLLS: usize = 4;

/// The two segments of one process.
struct Process {
    acks: Vec<Line>,
    end_marks: Vec<Word64>,
    assist_lines: Vec<AssistLine>,
    returns: Vec<Vec<ReturnSlot>>,
    fastboxes: Vec<Vec<FastboxSlot>>,
    headers: Vec<CellHeader>,
    payload: Vec<UnsafeCell<u8>>,
    tail: Word64,
    entries: Vec<Word64>,
    sleep: SleepWord,
}

/// The shared memory of a world.
pub(super) struct PortWorld(Vec<Process>);

impl PortWorld {
    pub(super) fn new(peers: usize) -> Self {
        Self(several(peers, || Process {
            acks: several(peers, || Line::new(0)),
            end_marks: several(peers, || Word64::new(0)),
            assist_lines: several(peers, AssistLine::empty),
            returns: several(peers, || several(CELLS, ReturnSlot::empty)),
            fastboxes: several(peers, || several(SLOTS, FastboxSlot::empty)),
            headers: several(CELLS, CellHeader::empty),
            payload: payload(CELLS * CELL_BYTES),
            tail: Word64::new(0),
            entries: several((peers * CELLS).next_power_of_two(), || Word64::new(0)),
            sleep: SleepWord::awake(),
        }))
    }

    fn queue(&self, rank: usize) -> CellQueue<'_> {
        CellQueue::new(&self.0[rank].entries, &self.0[rank].tail)
    }

    fn link(&self, me: usize, peer: usize) -> Link<'_> {
        let (own, its) = (&self.0[me], &self.0[peer]);
        Link::new(
            me as u16,
            Ends {
                outbound: FastboxSender::new(&own.fastboxes[peer], &its.acks[me].word),
                inbound: FastboxReceiver::new(&its.fastboxes[me], &own.acks[peer].word),
                cells: PeerPool::new(
                    &its.headers,
                    PayloadMut::from_cells(&its.payload).as_read(),
                    CELL_BYTES,
                    EndMark::new(&its.end_marks[me]),
                ),
                end_mark: EndMark::new(&own.end_marks[peer]),
                give_back: ReturnSender::new(&own.returns[peer]),
                given_back: ReturnReceiver::new(&its.returns[me]),
                queue: Producer::new(self.queue(peer)),
                sleep: &its.sleep,
                grant: &own.acks[peer],
                granted: &its.acks[me],
                assist: assist::AssistReceiver::new(&own.assist_lines[peer], &its.assist_lines[me]),
                assist_sender: assist::AssistSender::new(&own.assist_lines[peer], &its.assist_lines[me]),
            },
        )
    }

    /// Returns the port of one process.
    pub(super) fn port(&self, me: usize) -> Port<'_> {
        self.port_announcing(me, false)
    }

    /// As [`PortWorld::port`]; if `announce` is set, the fastbox announces the cells.
    pub(super) fn port_announcing(&self, me: usize, announce: bool) -> Port<'_> {
        self.port_storing(me, announce, None)
    }

    fn port_storing(&self, me: usize, announce: bool, stores: Option<Stores>) -> Port<'_> {
        let own = &self.0[me];
        let records = vec![CellRecord::default(); CELLS];
        let pool = CellPool::new(&own.headers, PayloadMut::from_cells(&own.payload), CELL_BYTES, records);
        let links = (0..self.0.len()).map(|peer| (peer != me).then(|| self.link(me, peer))).collect();
        let fences = FenceMode::Symmetric;
        let config = PortConfig {
            fastbox_limit: SMALL,
            eager_bytes: 0,
            fences,
            announce,
            pieces: Pieces::default(),
            stores,
            clocked: true,
        };
        let pool = pool.expect("the sizes fit");
        ShmPort::new(config, links, pool, CELLS as u32, Consumer::new(self.queue(me)), Wakes(0))
    }
}

/// Counts wake-ups. No process sleeps in these models, so the count must stay zero.
#[derive(Debug)]
pub(super) struct Wakes(u32);

impl Host for Wakes {
    fn wake(&mut self, _: PeerId, _: &SleepWord, _: Sleep) {
        self.0 += 1;
    }
}

/// The port type of the models.
pub(super) type Port<'a> = ShmPort<'a, Wakes, Vec<Option<Link<'a>>>, Vec<CellRecord>>;

/// A port that sends numbered messages to one peer.
pub(super) struct PortSending<'a> {
    port: Port<'a>,
    to: PeerId,
    next: u8,
    count: u8,
    size: fn(u8) -> usize,
}

impl<'a> PortSending<'a> {
    pub(super) fn new(port: Port<'a>, to: PeerId, count: u8, size: fn(u8) -> usize) -> Self {
        Self { port, to, next: 1, count, size }
    }

    /// Sends the next message if one is left and there is room.
    pub(super) fn send(&mut self) -> bool {
        if self.next > self.count {
            return false;
        }
        let len = (self.size)(self.next);
        let sent =
            self.port.send(self.to, &envelope(self.next, len), PacketPieces::Whole(&bytes(self.next, len)));
        let sent = sent.expect("the receiver is honest");
        self.next += u8::from(sent);
        sent
    }

    pub(super) fn attempt(&mut self) {
        for _ in 0..ATTEMPTS {
            self.send();
        }
    }
}

impl PortSending<'_> {
    /// Returns the number of the next message.
    pub(super) fn next(&self) -> u8 {
        self.next
    }
}

/// Returns a port that sends one message on each path.
pub(super) fn sending_both(port: Port<'_>, to: PeerId) -> PortSending<'_> {
    PortSending::new(port, to, 2, |number| if number == 1 { LARGE } else { SMALL })
}

/// Returns a port that sends two messages in cells.
pub(super) fn sending_cells(port: Port<'_>, to: PeerId) -> PortSending<'_> {
    PortSending::new(port, to, 2, |_| LARGE)
}

/// Lends a cell to a peer. Returns how many cells are lent now.
pub(super) fn lend(port: &mut Port<'_>, to: PeerId) -> usize {
    let sent = port.send(to, &envelope(1, LARGE), PacketPieces::Whole(&bytes(1, LARGE)));
    usize::from(sent.expect("the receiver is honest"))
}

/// A port that receives numbered messages.
pub(super) struct PortTaking<'a> {
    pub(super) port: Port<'a>,
    /// The number of the next message from each sender.
    pub(super) due: Vec<u8>,
}

impl<'a> PortTaking<'a> {
    pub(super) fn new(port: Port<'a>, peers: usize) -> Self {
        Self { port, due: vec![1; peers] }
    }

    /// Polls once.
    pub(super) fn take(&mut self) -> bool {
        match self.port.poll() {
            Polled::Idle => false,
            Polled::Packet(arrival) => {
                self.check(&arrival);
                self.port.release(arrival);
                true
            }
            Polled::Fault(fault) => panic!("an honest peer is accused: {fault}"),
        }
    }

    /// Returns the payload of an arrival of any kind.
    fn look(&self, arrival: &Arrival<PacketPlace>) -> Vec<u8> {
        let mut payload = vec![0; arrival.len];
        assert!(self.port.read(arrival, 0, &mut payload));
        payload
    }

    fn check(&mut self, arrival: &Arrival<PacketPlace>) {
        let payload = self.look(arrival);
        let due = &mut self.due[arrival.peer as usize];
        assert_whole(*due, &arrival.envelope, &payload);
        *due += 1;
    }

    /// Polls up to `polls` times while other threads run.
    pub(super) fn attempt(&mut self, polls: usize) {
        for _ in 0..polls {
            self.take();
        }
    }

    /// Takes everything that is present while no other thread runs.
    pub(super) fn take_all(&mut self) {
        let mut idle = 0;
        while idle < POLLS {
            idle = if self.take() { 0 } else { idle + 1 };
        }
    }
}

/// One of two ports that alternate: each message answers the one before.
struct Player<'a> {
    taking: PortTaking<'a>,
    to: PeerId,
    sent: u8,
    count: u8,
    /// Whether this port sends first.
    leads: bool,
    /// Whether it reads a message only after it has answered it.
    reads_late: bool,
    late: Option<Arrival<PacketPlace>>,
}

impl<'a> Player<'a> {
    fn new(port: Port<'a>, to: PeerId, count: u8) -> Self {
        let taking = PortTaking::new(port, 2);
        Self { taking, to, sent: 0, count, leads: to != 0, reads_late: false, late: None }
    }

    /// Returns the number of the last message received from the other port.
    fn received(&self) -> u8 {
        self.taking.due[self.to as usize] - 1
    }

    /// Sends if it is this port's turn to send; otherwise polls for a message.
    fn step(&mut self) {
        let turn = self.received() + u8::from(self.leads);
        if self.sent < turn && self.sent < self.count {
            self.sent += 1;
            let bytes = bytes(self.sent, LARGE);
            let envelope = envelope(self.sent, LARGE);
            let sent = self.taking.port.send_copy(self.to, envelope.context, envelope.tag, &bytes);
            assert!(sent.is_some(), "one of four cells is always there");
        } else if self.reads_late {
            self.take_late();
        } else {
            self.taking.take();
        }
    }

    /// Takes a message without reading it; the next call reads it.
    fn take_late(&mut self) {
        if let Some(late) = self.late.take() {
            self.taking.look(&late);
        }
        if let Polled::Packet(arrival) = self.taking.port.poll() {
            self.late = Some(arrival);
            self.taking.due[self.to as usize] += 1;
            self.taking.port.release(arrival);
        }
    }

    fn attempt(&mut self) {
        (0..ATTEMPTS).for_each(|_| self.step());
    }

    fn is_done(&self) -> bool {
        self.sent == self.count && self.received() == self.count
    }
}

fn returned(run: &Run) {
    take_turns(run, None);
}

fn prefetched(run: &Run) {
    take_turns(run, Some(Stores::Prefetched));
}

fn take_turns(run: &Run, stores: Option<Stores>) {
    let reads_late = run.injected_fault == Some(InjectedFault::ReturnBeforeRead);
    let (count, preemptions) = run.size((2, 2), (3, 3));
    run.explore(preemptions, move || {
        let world = PortWorld::new(2);
        let player =
            |me: usize| Box::new(Player::new(world.port_storing(me, true, stores), 1 - me as PeerId, count));
        let mut one = player(0);
        let mut two = player(1);
        two.reads_late = reads_late;
        both(|| one.attempt(), || two.attempt());
        for _ in 0..8 * ATTEMPTS {
            one.step();
            two.step();
        }
        assert!(one.is_done() && two.is_done(), "a message is lost");
    });
}

/// Lets both sides run alone until every message has arrived.
fn finish(sending: &mut PortSending<'_>, taking: &mut PortTaking<'_>, from: usize) {
    taking.take_all();
    while sending.send() {
        taking.take_all();
    }
    assert_eq!(sending.next, sending.count + 1, "there is no room though all was released");
    assert_eq!(taking.due[from], sending.next, "a message is lost");
    assert_eq!(sending.port.host_mut().0 + taking.port.host_mut().0, 0, "no thread slept");
}

fn by_size(run: &Run) {
    let count = run.size(3, 4);
    let polls = run.size(3, 4);
    run.explore(3, move || {
        let world = PortWorld::new(2);
        let size = |number| if number % 2 == 1 { SMALL } else { LARGE };
        let (mut sending, mut taking) =
            (PortSending::new(world.port(0), 1, count, size), PortTaking::new(world.port(1), 2));
        both(|| sending.attempt(), || taking.attempt(polls));
        finish(&mut sending, &mut taking, 0);
    });
}

fn announced(run: &Run) {
    let (count, polls) = run.size((3, 3), (4, 4));
    run.explore(3, move || {
        let world = PortWorld::new(2);
        let mut sending = PortSending::new(world.port_announcing(0, true), 1, 2 + count, |_| LARGE);
        let mut taking = PortTaking::new(world.port_announcing(1, true), 2);
        for _ in 0..2 {
            assert!(sending.send());
        }
        both(|| sending.attempt(), || taking.attempt(polls));
        finish(&mut sending, &mut taking, 0);
    });
}

fn overflow(run: &Run) {
    let (count, polls) = run.size((6, 5), (8, 6));
    run.explore(3, move || {
        let world = PortWorld::new(2);
        let (mut sending, mut taking) =
            (PortSending::new(world.port(0), 1, count, |_| SMALL), PortTaking::new(world.port(1), 2));
        for _ in 0..SLOTS {
            assert!(sending.send());
        }
        both(|| sending.attempt(), || taking.attempt(polls));
        finish(&mut sending, &mut taking, 0);
    });
}

fn two_senders(run: &Run) {
    let (polls, preemptions) = run.size((2, 2), (3, 2));
    run.explore(preemptions, move || {
        let world = PortWorld::new(3);
        let mut taking = PortTaking::new(world.port(0), 3);
        let mut first =
            PortSending::new(world.port(1), 0, 2, |number| if number == 1 { LARGE } else { SMALL });
        let mut second = PortSending::new(world.port(2), 0, 1, |_| LARGE);
        three(|| taking.attempt(polls), || while first.send() {}, || while second.send() {});
        finish(&mut first, &mut taking, 1);
        finish(&mut second, &mut taking, 2);
    });
}
