//! Engines over a fabric, with storage in vectors.

use std::vec;
use std::vec::Vec;

use super::active::Log;
use super::recording::RecordingPort;
use crate::engine::PeerSelection;
use crate::engine::rma::{ExposedRegion, Reply, WINDOW};
use crate::engine::{
    CompletionError, Engine, Failure, Lent, Outcome, Peer, Request, RequestId, StartError, Status, Storage,
    Tuning,
};
use crate::matching::{Pattern, Source};
use crate::port::PeerId;
use crate::shared::tests::fabric::{Fabric, Lender, Loan, TestPort};
use crate::slab::{List, Slot};
use crate::store::{UNIT, Unit};

#[derive(Debug)]
pub(super) struct WorldStorage;

impl Storage for WorldStorage {
    type Requests = Vec<Slot<Request>>;
    type Peers = Vec<Peer>;
    type Units = Vec<Unit>;
    type Stored = Vec<u32>;
    type Buckets = Vec<List>;
    type Regions = Vec<Slot<ExposedRegion>>;
    type Replies = Vec<Slot<Reply>>;
    type Selections = Vec<PeerSelection>;
    type Handlers = Log;
    type Trace = ();
}

pub(super) type TestEngine<'a> = Engine<RecordingPort<TestPort<'a>>, WorldStorage>;

/// The storage sizes and the tuning of each engine.
#[derive(Clone, Copy, Debug)]
pub(super) struct WorldRoom {
    pub(super) requests: usize,
    pub(super) units: usize,
    pub(super) buckets: usize,
    pub(super) tuning: Tuning,
}

/// The size of large messages is small in tests.
pub(super) const ASSIST: u64 = 1 << 10;
/// One cell of the smallest geometry holds one message.
pub(super) const TUNING: Tuning = Tuning {
    eager_bytes: 256,
    window: 4096,
    assist_bytes: ASSIST,
    lent_assist_bytes: ASSIST / 2,
    non_temporal_bytes: 2 << 10,
    pull_bytes: 512,
    run_bytes: 16,
};

/// Number of regions of each engine.
pub(super) const REGIONS: usize = 3;
/// Enough storage for any test.
pub(super) const AMPLE: WorldRoom = WorldRoom { requests: 512, units: 8192, buckets: 4, tuning: TUNING };

fn slots<T: Default>(count: usize) -> Vec<Slot<T>> {
    (0..count).map(|_| Slot::default()).collect()
}

pub(super) struct World<'a> {
    pub(super) engines: Vec<TestEngine<'a>>,
    pub(super) fabric: &'a Fabric,
    room: WorldRoom,
    /// Declared after the engines, which use its buffers.
    pub(super) lender: Lender,
}

/// A receive and its buffer.
#[derive(Clone, Copy, Debug)]
pub(super) struct RequestHandle {
    pub(super) rank: PeerId,
    pub(super) id: RequestId,
    pub(super) loan: Loan,
}

pub(super) const fn pattern(source: Source, tag: u64) -> Pattern {
    Pattern { source, context: 0, tag, ignore: 0 }
}

fn start(rank: PeerId, port: TestPort<'_>, room: WorldRoom) -> TestEngine<'_> {
    let peers = port.ranks();
    let lent = Lent {
        requests: slots(room.requests),
        peers: (0..peers).map(|_| Peer::default()).collect(),
        units: vec![[0xee; UNIT]; room.units],
        stored: vec![0; room.buckets],
        posted: vec![List::new(); room.buckets],
        regions: slots(REGIONS),
        replies: slots(peers * WINDOW as usize),
        selections: vec![PeerSelection::default(); peers],
        handlers: Log::default(),
        trace: (),
    };
    Engine::new(rank, RecordingPort::new(port), room.tuning, lent).unwrap()
}

impl<'a> World<'a> {
    pub(super) fn new(fabric: &'a Fabric, room: WorldRoom) -> Self {
        let engine = |rank| start(rank, fabric.port(rank), room);
        let engines = (0..fabric.geometry.peers).map(engine).collect();
        Self { engines, fabric, room, lender: fabric.lender() }
    }

    /// Replaces a rank: the process fails, all others deliver its packets and learn of the failure, and a new
    /// process starts without connections.
    pub(super) fn replace(&mut self, rank: PeerId, failure: Failure) {
        for survivor in (0..self.fabric.geometry.peers).filter(|&survivor| survivor != rank) {
            let engine = self.engine(survivor);
            engine.depart(rank, failure);
            while !engine.drain(rank) {}
            engine.fail(rank, failure);
        }
        self.fabric.wipe(rank);
        self.engines[rank as usize] = start(rank, self.fabric.port_alone(rank), self.room);
    }

    /// A survivor reconnects the new process of a rank, which is then connected to the survivor.
    pub(super) fn readmit(&mut self, survivor: PeerId, rank: PeerId) {
        let fabric = self.fabric;
        assert!(self.engine(survivor).port_mut().port.open(rank, fabric.ends(survivor, rank)));
        assert!(self.engine(survivor).reconnect(rank));
        assert!(self.engine(rank).port_mut().port.open(survivor, fabric.ends(rank, survivor)));
        self.engine(rank).connected(survivor);
        // A second call has no effect.
        assert!(!self.engine(survivor).port_mut().port.open(rank, fabric.ends(survivor, rank)));
        assert!(!self.engine(survivor).reconnect(rank));
    }

    pub(super) fn engine(&mut self, rank: PeerId) -> &mut TestEngine<'a> {
        &mut self.engines[rank as usize]
    }

    pub(super) fn isend_in(
        &mut self,
        context: u16,
        from: PeerId,
        to: PeerId,
        tag: u64,
        bytes: Vec<u8>,
    ) -> Result<RequestHandle, StartError> {
        let (loan, buf) = self.lender.send(from, bytes);
        let started = self.engine(from).isend(to, context, tag, buf);
        self.handle(from, loan, started)
    }

    pub(super) fn issend_in(
        &mut self,
        context: u16,
        from: PeerId,
        to: PeerId,
        tag: u64,
        bytes: Vec<u8>,
    ) -> Result<RequestHandle, StartError> {
        let (loan, buf) = self.lender.send(from, bytes);
        let started = self.engine(from).issend(to, context, tag, buf);
        self.handle(from, loan, started)
    }

    pub(in crate::engine::tests) fn handle(
        &mut self,
        rank: PeerId,
        loan: Loan,
        started: Result<RequestId, StartError>,
    ) -> Result<RequestHandle, StartError> {
        if started.is_err() {
            self.lender.end(loan);
        }
        Ok(RequestHandle { rank, id: started?, loan })
    }

    pub(super) fn isend(&mut self, from: PeerId, to: PeerId, tag: u64, bytes: Vec<u8>) -> RequestHandle {
        self.isend_in(0, from, to, tag, bytes).unwrap()
    }

    pub(super) fn issend(&mut self, from: PeerId, to: PeerId, tag: u64, bytes: Vec<u8>) -> RequestHandle {
        self.issend_in(0, from, to, tag, bytes).unwrap()
    }

    pub(super) fn irecv(
        &mut self,
        rank: PeerId,
        pattern: Pattern,
        room: usize,
    ) -> Result<RequestHandle, StartError> {
        let (loan, mut buf) = self.lender.receive(rank, room);
        let started = self.engine(rank).irecv(pattern, &mut buf);
        self.handle(rank, loan, started)
    }

    /// Removes a matching message from the queue by a probe, if there is one. Returns its identifier and its
    /// status.
    pub(super) fn improbe(&mut self, rank: PeerId, pattern: Pattern) -> Option<(RequestId, Status)> {
        self.engine(rank).improbe(&pattern).unwrap()
    }

    /// Receives a message that a probe removed.
    pub(super) fn imrecv(
        &mut self,
        rank: PeerId,
        id: RequestId,
        room: usize,
    ) -> Result<RequestHandle, CompletionError> {
        let (loan, mut buf) = self.lender.receive(rank, room);
        match self.engine(rank).imrecv(id, &mut buf) {
            Ok(()) => Ok(RequestHandle { rank, id, loan }),
            Err(completion_error) => {
                assert_eq!(buf.len(), room, "the caller keeps the buffer");
                self.lender.end(loan);
                Err(completion_error)
            }
        }
    }

    pub(super) fn recv(&mut self, rank: PeerId, from: PeerId, tag: u64, room: usize) -> RequestHandle {
        self.irecv(rank, pattern(Source::Rank(from), tag), room).unwrap()
    }

    /// Returns the outcome and the buffer of a complete request, and checks that its identifier is stale
    /// afterwards.
    pub(super) fn test(&mut self, handle: RequestHandle) -> Option<(Outcome, Vec<u8>)> {
        let outcome = self.engine(handle.rank).test(handle.id)?;
        Some(self.end(handle, outcome))
    }

    /// As [`World::test`], but also completes a posted receive whose message has arrived.
    pub(super) fn try_finish(&mut self, handle: RequestHandle) -> Option<(Outcome, Vec<u8>)> {
        let outcome = self.engine(handle.rank).try_finish(handle.id)?;
        Some(self.end(handle, outcome))
    }

    fn end(&mut self, handle: RequestHandle, outcome: Outcome) -> (Outcome, Vec<u8>) {
        let engine = self.engine(handle.rank);
        if handle.id != RequestId::SENT {
            let again = engine.test(handle.id);
            assert_eq!(again, Some(Err(CompletionError::Stale)), "a completed request still exists");
            assert!(!engine.cancel(handle.id) && !engine.may_be_held(handle.id));
        }
        (outcome, self.lender.end(handle.loan))
    }

    pub(super) fn done(&mut self, handle: RequestHandle) -> (Outcome, Vec<u8>) {
        self.test(handle).unwrap_or_else(|| panic!("{handle:?} is not complete"))
    }

    /// Runs `progress` on every engine until nothing more happens.
    pub(super) fn settle(&mut self) {
        let mut idle = 0;
        while idle < 3 * self.engines.len() + 8 {
            for engine in &mut self.engines {
                engine.port_mut().port.sweep_all();
            }
            let packets: usize = self.engines.iter_mut().map(|engine| engine.progress().packets).sum();
            idle = if packets > 0 { 0 } else { idle + 1 };
        }
    }

    /// Checks that nothing is left in the engines of these ranks, and that all their cells are free.
    pub(super) fn assert_empty(&mut self, ranks: &[PeerId], what: &str) {
        let cells = self.fabric.geometry.cells as usize;
        self.settle();
        for &rank in ranks {
            let engine = self.engine(rank);
            assert_eq!(engine.unexpected_messages(), 0, "{what}: unexpected messages at rank {rank}");
            assert_eq!(engine.requests.used(), 0, "{what}: requests at rank {rank}");
            assert_eq!(
                engine.store.free_units(),
                engine.store.capacity_units(),
                "{what}: units at rank {rank}"
            );
            assert_eq!(engine.held_peers(), 0, "{what}: held peers at rank {rank}");
            assert!(!engine.sends_pending(), "{what}: pending sends at rank {rank}");
            let port = &mut engine.port_mut().port;
            crate::shared::tests::collected(port);
            assert_eq!(port.free_cells(), cells, "{what}: cells of rank {rank}");
        }
    }
}
