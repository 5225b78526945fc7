//! Engines over a fabric, with storage in vectors.

use std::vec;
use std::vec::Vec;

use super::recording::RecordingPort;
use crate::engine::PeerSelection;
use crate::engine::active::tests::Log;
use crate::engine::rma::{ExposedRegion, Reply, WINDOW};
use crate::engine::{
    CompletionError, Engine, Failure, Lent, Outcome, Peer, Request, RequestId, SendOptions, StartError,
    Status, Storage, Tuning,
};
use crate::flow::CeilingError;
use crate::matching::{Pattern, Source};
use crate::port::PeerId;
use crate::shared::tests::fabric::{Fabric, Lender, Loan, TestPort};
use crate::slab::{List, Slot};
use crate::store::{UNIT, Unit, UnitMemory};

#[derive(Debug)]
pub(in crate::engine) struct WorldStorage;

impl Storage for WorldStorage {
    type Requests = Vec<Slot<Request>>;
    type Peers = Vec<Peer>;
    type Units = SteppedUnits;
    type Stored = Vec<u32>;
    type Buckets = Vec<List>;
    type Regions = Vec<Slot<ExposedRegion>>;
    type Replies = Vec<Slot<Reply>>;
    type Selections = Vec<PeerSelection>;
    type Handlers = Log;
    type Trace = ();
}

/// Memory that commits no more units than it must, and none beyond `most`.
#[derive(Debug)]
pub(in crate::engine) struct SteppedUnits {
    units: Vec<Unit>,
    committed: u32,
    pub(in crate::engine) ceiling: u32,
    pub(in crate::engine) most: u32,
}

impl SteppedUnits {
    pub(in crate::engine) fn new(count: usize) -> Self {
        let units = vec![[0xee; UNIT]; count];
        Self { units, committed: 0, ceiling: count as u32, most: u32::MAX }
    }

    /// Returns `count` units, of which no more than `most` can be committed.
    pub(in crate::engine) fn limited(count: usize, most: u32) -> Self {
        Self { most, ..Self::new(count) }
    }
}

impl UnitMemory for SteppedUnits {
    fn units(&self) -> &[Unit] {
        &self.units
    }

    fn units_mut(&mut self) -> &mut [Unit] {
        &mut self.units
    }

    fn ceiling(&self) -> u32 {
        self.ceiling
    }

    fn commit(&mut self, units: u32) -> u32 {
        self.committed = self.committed.max(units.min(self.most));
        self.committed
    }
}

pub(in crate::engine) type TestEngine<'a> = Engine<RecordingPort<TestPort<'a>>, WorldStorage>;

/// The storage sizes and the tuning of each engine.
#[derive(Clone, Copy, Debug)]
pub(in crate::engine) struct WorldRoom {
    pub(in crate::engine) requests: usize,
    pub(in crate::engine) units: usize,
    pub(in crate::engine) buckets: usize,
    pub(in crate::engine) tuning: Tuning,
}

/// The size of large messages is small in tests.
pub(in crate::engine) const ASSIST: u64 = 1 << 10;
/// One cell of the smallest geometry holds one message.
pub(in crate::engine) const TUNING: Tuning = Tuning {
    eager_bytes: 256,
    window: 4096,
    assist_bytes: ASSIST,
    lent_assist_bytes: ASSIST / 2,
    non_temporal_bytes: 2 << 10,
    pull_bytes: 512,
    run_bytes: 16,
    direct_bytes: u64::MAX,
};

/// Number of regions of each engine.
pub(in crate::engine) const REGIONS: usize = 3;
/// Enough storage for any test.
pub(in crate::engine) const AMPLE: WorldRoom =
    WorldRoom { requests: 512, units: 8192, buckets: 4, tuning: TUNING };

fn slots<T: Default>(count: usize) -> Vec<Slot<T>> {
    (0..count).map(|_| Slot::default()).collect()
}

pub(in crate::engine) struct World<'a> {
    pub(in crate::engine) engines: Vec<TestEngine<'a>>,
    pub(in crate::engine) fabric: &'a Fabric,
    room: WorldRoom,
    /// The most peers of each engine, if they were opened alone.
    most: Option<u32>,
    /// Declared after the engines, which use its buffers.
    pub(in crate::engine) lender: Lender,
}

/// A receive and its buffer.
#[derive(Clone, Copy, Debug)]
pub(in crate::engine) struct RequestHandle {
    pub(in crate::engine) rank: PeerId,
    pub(in crate::engine) id: RequestId,
    pub(in crate::engine) loan: Loan,
}

pub(in crate::engine) const fn pattern(source: Source, tag: u64) -> Pattern {
    Pattern { source, context: 0, tag, ignore: 0 }
}

fn start(rank: PeerId, port: TestPort<'_>, room: WorldRoom) -> TestEngine<'_> {
    start_with(rank, port, room, SteppedUnits::new(room.units))
}

fn start_with(rank: PeerId, port: TestPort<'_>, room: WorldRoom, units: SteppedUnits) -> TestEngine<'_> {
    let peers = port.ranks();
    let lent = lent(room, peers, units);
    Engine::new(rank, RecordingPort::new(port), room.tuning, lent).unwrap()
}

/// Opens an engine without peers.
pub(in crate::engine) fn open_alone(
    rank: PeerId,
    port: TestPort<'_>,
    room: WorldRoom,
    units: SteppedUnits,
    most: u32,
) -> TestEngine<'_> {
    let lent = Lent { replies: vec![], ..lent(room, rank as usize + 1, units) };
    Engine::alone(rank, RecordingPort::new(port), room.tuning, lent, most).unwrap()
}

/// Opens an engine of a world whose ranks were not met.
pub(in crate::engine) fn open_unmet(
    port: TestPort<'_>,
    (rank, ranks): (PeerId, u32),
    units: SteppedUnits,
) -> TestEngine<'_> {
    let lent = Lent { replies: vec![], ..lent(AMPLE, ranks as usize, units) };
    Engine::unmet(rank, RecordingPort::new(port), TUNING, lent).unwrap()
}

fn lent(room: WorldRoom, peers: usize, units: SteppedUnits) -> Lent<WorldStorage> {
    Lent {
        requests: slots(room.requests),
        peers: (0..peers).map(|_| Peer::default()).collect(),
        units,
        stored: vec![0; room.buckets],
        posted: vec![List::new(); room.buckets],
        regions: slots(REGIONS),
        replies: slots(peers * WINDOW as usize),
        selections: vec![PeerSelection::default(); peers],
        handlers: Log::default(),
        trace: (),
    }
}

impl<'a> World<'a> {
    pub(in crate::engine) fn new(fabric: &'a Fabric, room: WorldRoom) -> Self {
        let engine = |rank| start(rank, fabric.port(rank), room);
        let engines = (0..fabric.geometry.peers).map(engine).collect();
        Self { engines, fabric, room, most: None, lender: fabric.lender() }
    }

    /// Makes engines that have no peer, and may have `most`.
    pub(in crate::engine) fn alone(fabric: &'a Fabric, room: WorldRoom, most: u32) -> Self {
        let units = || SteppedUnits::new(room.units);
        let engine = |rank| open_alone(rank, fabric.port_alone(rank), room, units(), most);
        let engines = (0..fabric.geometry.peers).map(engine).collect();
        Self { engines, fabric, room, most: Some(most), lender: fabric.lender() }
    }

    /// As [`World::alone`], but the first `ranks` engines are a world, and connected.
    pub(in crate::engine) fn with_ranks(fabric: &'a Fabric, room: WorldRoom, ranks: u32, most: u32) -> Self {
        let mut world = Self::alone(fabric, room, most);
        for rank in 0..ranks {
            let lent = lent(room, ranks as usize, SteppedUnits::new(room.units));
            let port = RecordingPort::new(fabric.port_alone(rank));
            world.engines[rank as usize] = Engine::new(rank, port, room.tuning, lent).unwrap();
        }
        for (me, peer) in (0..ranks).flat_map(|me| (0..ranks).map(move |peer| (me, peer))) {
            if me != peer {
                assert!(world.engine(me).port_mut().port.open(peer, fabric.link(me, peer)));
                world.engine(me).connected(peer);
            }
        }
        world
    }

    /// Two engines that were opened alone add each other, and are connected. If one is refused, the other remains with
    /// a peer that is not there.
    pub(in crate::engine) fn meet(&mut self, one: PeerId, other: PeerId) -> Result<(), CeilingError> {
        let fabric = self.fabric;
        for [me, peer] in [[one, other], [other, one]] {
            self.engine(me).add_peer(peer)?;
        }
        for [me, peer] in [[one, other], [other, one]] {
            assert!(self.engine(me).port_mut().port.open(peer, fabric.link(me, peer)));
            self.engine(me).connected(peer);
        }
        Ok(())
    }

    /// Makes a world in which the ceiling is lower than the limit at first, and no process has memory for more than
    /// `most` units.
    pub(in crate::engine) fn growing(fabric: &'a Fabric, room: WorldRoom, ceiling: u32, most: u32) -> Self {
        let units = || SteppedUnits { ceiling, most, ..SteppedUnits::new(room.units) };
        let engine = |rank| start_with(rank, fabric.port(rank), room, units());
        let engines = (0..fabric.geometry.peers).map(engine).collect();
        Self { engines, fabric, room, most: None, lender: fabric.lender() }
    }

    /// Checks that no rank has promised memory that is not committed (invariant 4).
    pub(in crate::engine) fn assert_backed(&self) {
        for engine in &self.engines {
            let promised = engine.peers.iter().map(|peer| peer.account.window() + peer.account.stored());
            let promised = promised.sum::<u32>() + engine.ledger.own_units() + engine.ledger.free();
            assert!(promised <= engine.store.committed_units(), "{promised} units are promised");
        }
    }

    /// Replaces a rank: the process fails, all others deliver its packets and learn of the failure, and a new
    /// process starts without connections.
    pub(in crate::engine) fn replace(&mut self, rank: PeerId, failure: Failure) {
        for survivor in (0..self.fabric.geometry.peers).filter(|&survivor| survivor != rank) {
            let engine = self.engine(survivor);
            engine.depart(rank, failure);
            while !engine.drain(rank) {}
            engine.fail(rank, failure);
        }
        self.fabric.wipe(rank);
        let (port, room) = (self.fabric.port_alone(rank), self.room);
        self.engines[rank as usize] = match self.most {
            Some(most) => open_alone(rank, port, room, SteppedUnits::new(room.units), most),
            None => start(rank, port, room),
        };
    }

    /// A survivor reconnects the new process of a rank, which is then connected to the survivor.
    pub(in crate::engine) fn readmit(&mut self, survivor: PeerId, rank: PeerId) {
        let fabric = self.fabric;
        assert!(self.engine(survivor).port_mut().port.open(rank, fabric.link(survivor, rank)));
        assert!(self.engine(survivor).reconnect(rank));
        assert!(self.engine(rank).port_mut().port.open(survivor, fabric.link(rank, survivor)));
        self.engine(rank).connected(survivor);
        // A second call has no effect.
        assert!(!self.engine(survivor).port_mut().port.open(rank, fabric.link(survivor, rank)));
        assert!(!self.engine(survivor).reconnect(rank));
    }

    pub(in crate::engine) fn engine(&mut self, rank: PeerId) -> &mut TestEngine<'a> {
        &mut self.engines[rank as usize]
    }

    pub(in crate::engine) fn isend_in(
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

    pub(in crate::engine) fn issend_in(
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

    pub(in crate::engine) fn isend_with(
        &mut self,
        (from, to): (PeerId, PeerId),
        context: u16,
        tag: u64,
        bytes: Vec<u8>,
        options: SendOptions,
    ) -> Result<RequestHandle, StartError> {
        let (loan, buf) = self.lender.send(from, bytes);
        let started = self.engine(from).isend_with(to, context, tag, buf, options);
        self.handle(from, loan, started)
    }

    pub(in crate::engine) fn handle(
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

    pub(in crate::engine) fn isend(
        &mut self,
        from: PeerId,
        to: PeerId,
        tag: u64,
        bytes: Vec<u8>,
    ) -> RequestHandle {
        self.isend_in(0, from, to, tag, bytes).unwrap()
    }

    pub(in crate::engine) fn issend(
        &mut self,
        from: PeerId,
        to: PeerId,
        tag: u64,
        bytes: Vec<u8>,
    ) -> RequestHandle {
        self.issend_in(0, from, to, tag, bytes).unwrap()
    }

    pub(in crate::engine) fn irecv(
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
    pub(in crate::engine) fn improbe(
        &mut self,
        rank: PeerId,
        pattern: Pattern,
    ) -> Option<(RequestId, Status)> {
        self.engine(rank).improbe(&pattern).unwrap()
    }

    /// Receives a message that a probe removed.
    pub(in crate::engine) fn imrecv(
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

    pub(in crate::engine) fn recv(
        &mut self,
        rank: PeerId,
        from: PeerId,
        tag: u64,
        room: usize,
    ) -> RequestHandle {
        self.irecv(rank, pattern(Source::Rank(from), tag), room).unwrap()
    }

    /// Returns the outcome and the buffer of a complete request, and checks that its identifier is stale
    /// afterwards.
    pub(in crate::engine) fn test(&mut self, handle: RequestHandle) -> Option<(Outcome, Vec<u8>)> {
        let outcome = self.engine(handle.rank).test(handle.id)?;
        Some(self.end(handle, outcome))
    }

    /// As [`World::test`], but also completes a posted receive whose message has arrived.
    pub(in crate::engine) fn try_finish(&mut self, handle: RequestHandle) -> Option<(Outcome, Vec<u8>)> {
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

    pub(in crate::engine) fn done(&mut self, handle: RequestHandle) -> (Outcome, Vec<u8>) {
        self.test(handle).unwrap_or_else(|| panic!("{handle:?} is not complete"))
    }

    /// Runs `progress` on every engine until nothing more happens.
    pub(in crate::engine) fn settle(&mut self) {
        let mut idle = 0;
        while idle < 3 * self.engines.len() + 8 {
            for engine in &mut self.engines {
                engine.port_mut().port.sweep_all();
            }
            let packets: usize = self.engines.iter_mut().map(|engine| engine.progress().packets).sum();
            self.assert_backed();
            idle = if packets > 0 { 0 } else { idle + 1 };
        }
    }

    /// Checks that nothing is left in the engines of these ranks, and that all their cells are free.
    pub(in crate::engine) fn assert_empty(&mut self, ranks: &[PeerId], what: &str) {
        let cells = self.fabric.geometry.cells as usize;
        self.settle();
        for &rank in ranks {
            let engine = self.engine(rank);
            assert_eq!(engine.unexpected_messages(), 0, "{what}: unexpected messages at rank {rank}");
            assert_eq!(engine.requests.used(), 0, "{what}: requests at rank {rank}");
            assert_eq!(engine.store.used_units(), 0, "{what}: units at rank {rank}");
            assert_eq!(engine.held_peers(), 0, "{what}: held peers at rank {rank}");
            assert!(!engine.sends_pending(), "{what}: pending sends at rank {rank}");
            let port = &mut engine.port_mut().port;
            crate::shared::tests::collected(port);
            assert_eq!(port.free_cells(), cells, "{what}: cells of rank {rank}");
        }
    }
}
