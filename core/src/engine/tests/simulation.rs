//! Random worlds against the oracle: any operation at any rank in any order, from one seed.

mod check;

use std::vec;
use std::vec::Vec;

use super::oracle::{MessageEnd as Expected, Name, Oracle};
use super::world::{ASSIST, RequestHandle, World, WorldRoom};
use crate::engine::peer::PeerQueue;
use crate::engine::{Failure, RequestId, SendOptions, StartError, Status, Tuning};
use crate::matching::{Pattern, Source};
use crate::port::PeerId;
use crate::shared::tests::fabric::WorldShape;
use crate::shared::tests::fabric::{Fabric, Reading};
use crate::shared::tests::{Rng, contents, portion};

const CONTEXTS: u16 = 2;
/// Most receives posted, messages stored, and sends in progress at one rank.
const MANY: usize = 12;
const LARGEST: usize = 9 * 256;
/// Most messages at one rank that were removed by a probe and not yet received.
const PROBED: usize = 2;

#[derive(Debug)]
struct SimulatedSend {
    context: u16,
    tag: u64,
    bytes: Vec<u8>,
    immediate: Option<u64>,
    /// Whether the message must be announced; whether it must be matched before its send is complete; whether that is
    /// so.
    rendezvous: bool,
    synchronous: bool,
    complete: bool,
}

#[derive(Debug)]
struct SimulatedReceive {
    handle: RequestHandle,
    /// Number of the receive in its rank's oracle.
    number: usize,
    room: usize,
}

#[derive(Debug)]
struct Sending {
    handle: RequestHandle,
    to: PeerId,
    number: usize,
    tag: u64,
    len: usize,
}

/// A message that a probe removed from the queue.
#[derive(Clone, Copy, Debug)]
struct Probed {
    rank: PeerId,
    id: RequestId,
    name: Name,
}

struct Simulation<'a> {
    seed: u64,
    rng: Rng,
    peers: u32,
    world: World<'a>,
    oracles: Vec<Oracle>,
    /// Messages sent, by source and destination.
    sent: Vec<Vec<Vec<SimulatedSend>>>,
    receives: Vec<SimulatedReceive>,
    sends: Vec<Sending>,
    probed: Vec<Probed>,
    eager_bytes: usize,
    /// Failed ranks, with the reason.
    gone: Vec<Option<Failure>>,
    /// Failures that were reported, by observer and observed rank.
    reported: Vec<Vec<Option<Failure>>>,
    /// Whether the packets of a failed rank are being delivered; they may include answers.
    draining: bool,
    any_failed: Vec<bool>,
    salt: u64,
}

impl<'a> Simulation<'a> {
    fn new(seed: u64, rng: Rng, fabric: &'a Fabric, room: WorldRoom) -> Self {
        let peers = fabric.geometry.peers;
        let count = peers as usize;
        Self {
            seed,
            rng,
            peers,
            world: World::new(fabric, room),
            oracles: (0..peers).map(|_| Oracle::new(peers)).collect(),
            sent: (0..peers).map(|_| (0..peers).map(|_| vec![]).collect()).collect(),
            receives: vec![],
            sends: vec![],
            probed: vec![],
            eager_bytes: room.tuning.eager_bytes,
            gone: vec![None; count],
            reported: vec![vec![None; count]; count],
            draining: false,
            any_failed: vec![false; count],
            salt: seed << 32,
        }
    }

    fn alive(&self) -> Vec<PeerId> {
        (0..self.peers).filter(|&rank| self.gone[rank as usize].is_none()).collect()
    }

    fn step(&mut self) {
        let alive = self.alive();
        let rank = self.rng.pick(&alive);
        match self.rng.below(23) {
            20 => self.iprobe(rank),
            21 => self.improbe(rank),
            22 => self.imrecv(rank),
            0..=5 => self.isend(rank),
            6..=11 => {
                let pattern = self.pattern();
                let room = self.length();
                self.irecv(rank, pattern, room);
            }
            12..=17 => self.progress(rank),
            18 => self.cancel(rank),
            _ => self.world.engine(rank).acknowledge_if(&mut self.any_failed[rank as usize]),
        }
        self.listen(rank);
        self.complete();
    }

    fn length(&mut self) -> usize {
        match self.rng.below(4) {
            0 => self.rng.pick(&[0, 1, 8, 8, 8, 32, 33, 48, 49, 224, 225, 255, 256, 257, 512, 513, LARGEST]),
            1 => self.rng.below(50),
            2 => self.rng.below(300),
            _ => self.rng.below(LARGEST + 1),
        }
    }

    fn pattern(&mut self) -> Pattern {
        let source = match self.rng.below(3) {
            0 => Source::Any,
            _ => Source::Rank(self.rng.below(self.peers as usize) as PeerId),
        };
        let ignore = self.rng.pick(&[0, 0, 1, 2, u64::MAX]);
        let context = self.rng.below(CONTEXTS.into()) as u16;
        Pattern { source, context, tag: self.rng.below(4) as u64, ignore }
    }

    fn isend(&mut self, from: PeerId) {
        // At most half of the requests, because receives need some to make progress.
        let most = MANY.min(self.world.engine(from).requests.capacity() / 2);
        if self.sends.iter().filter(|send| send.handle.rank == from).count() >= most
            || self.oracles.iter().any(|oracle| oracle.waiting() > MANY)
        {
            return;
        }
        self.salt += 1;
        let to = self.rng.below(self.peers as usize) as PeerId;
        let (context, tag) = (self.rng.below(CONTEXTS.into()) as u16, self.rng.below(4) as u64);
        let bytes = contents(self.salt, self.length());
        let (len, seed) = (bytes.len(), self.seed);
        let synchronous = self.rng.one_in(4);
        let immediate = if self.rng.one_in(3) { Some(self.rng.next()) } else { None };
        let options = SendOptions { immediate, synchronous };
        let started = self.world.isend_with((from, to), context, tag, bytes.clone(), options);
        match started {
            Ok(handle) => {
                assert_eq!(
                    self.reported[from as usize][to as usize], None,
                    "seed {seed}: sent to a failed rank"
                );
                let rendezvous = len > self.eager_bytes;
                let sent = &mut self.sent[from as usize][to as usize];
                let number = sent.len();
                sent.push(SimulatedSend {
                    context,
                    tag,
                    bytes,
                    immediate,
                    rendezvous,
                    synchronous,
                    complete: false,
                });
                self.sends.push(Sending { handle, to, number, tag, len });
            }
            Err(StartError::PeerFailed { peer, failure }) => {
                assert_eq!(
                    (peer, Some(failure)),
                    (to, self.reported[from as usize][to as usize]),
                    "seed {seed}"
                );
            }
            Err(StartError::Requests { capacity }) => {
                assert_eq!(self.world.engine(from).requests.used(), capacity, "seed {seed}");
            }
            Err(error) => panic!("seed {seed}: {error}"),
        }
    }

    fn irecv(&mut self, rank: PeerId, pattern: Pattern, room: usize) {
        let (at, seed) = (rank as usize, self.seed);
        if self.oracles[at].posted() > MANY {
            return;
        }
        let lost = match pattern.source {
            Source::Any => self.any_failed[at],
            Source::Rank(peer) => self.reported[at][peer as usize].is_some(),
        };
        let waits = self.oracles[at].has(&pattern);
        match self.world.irecv(rank, pattern, room) {
            Ok(handle) => {
                assert!(waits || !lost, "seed {seed}: posted {pattern:?} for a failed rank");
                let number = self.oracles[at].receives.len();
                self.oracles[at].post(pattern);
                self.receives.push(SimulatedReceive { handle, number, room });
            }
            Err(StartError::PeerFailed { peer, failure }) => {
                assert!(lost && !waits, "seed {seed}: {pattern:?} refused because {peer} failed");
                assert_eq!(self.reported[at][peer as usize], Some(failure), "seed {seed}");
            }
            Err(StartError::Requests { capacity }) => {
                assert_eq!(self.world.engine(rank).requests.used(), capacity, "seed {seed}");
            }
            Err(error) => panic!("seed {seed}: {error}"),
        }
    }

    fn cancel(&mut self, rank: PeerId) {
        let mine: Vec<(RequestId, usize)> = self
            .receives
            .iter()
            .filter(|receive| receive.handle.rank == rank)
            .map(|receive| (receive.handle.id, receive.number))
            .collect();
        if mine.is_empty() {
            return;
        }
        let (id, number) = self.rng.pick(&mine);
        let withdrawn = self.oracles[rank as usize].withdraw(number);
        assert_eq!(self.world.engine(rank).cancel(id), withdrawn, "seed {}", self.seed);
    }

    fn iprobe(&mut self, rank: PeerId) {
        let pattern = self.pattern();
        let expected = self.oracles[rank as usize].first(&pattern).map(|name| self.status(rank, name));
        assert_eq!(self.world.engine(rank).iprobe(&pattern), expected, "seed {}", self.seed);
    }

    /// Returns the expected result of a probe.
    fn status(&self, rank: PeerId, name: Name) -> Status {
        let sent = &self.sent[name.source as usize][rank as usize][name.number];
        Status { peer: name.source, tag: sent.tag, len: sent.bytes.len(), immediate: sent.immediate }
    }

    fn improbe(&mut self, rank: PeerId) {
        let (pattern, seed) = (self.pattern(), self.seed);
        if self.probed.iter().filter(|probed| probed.rank == rank).count() >= PROBED {
            return;
        }
        match self.world.engine(rank).improbe(&pattern) {
            Ok(found) => {
                let name = self.oracles[rank as usize].take(&pattern);
                let expected = name.map(|name| self.status(rank, name));
                assert_eq!(found.map(|(_, status)| status), expected, "seed {seed}");
                self.probed.extend(found.zip(name).map(|((id, _), name)| Probed { rank, id, name }));
            }
            Err(StartError::Requests { capacity }) => {
                assert!(self.oracles[rank as usize].has(&pattern), "seed {seed}");
                assert_eq!(self.world.engine(rank).requests.used(), capacity, "seed {seed}");
            }
            Err(error) => panic!("seed {seed}: {error}"),
        }
    }

    /// Receives a message that a probe removed.
    fn imrecv(&mut self, rank: PeerId) {
        let Some(at) = self.probed.iter().position(|probed| probed.rank == rank) else { return };
        let Probed { id, name, .. } = self.probed.remove(at);
        let room = self.length();
        let handle = self.world.imrecv(rank, id, room).unwrap();
        let number = self.oracles[rank as usize].receives.len();
        self.oracles[rank as usize].receive(name);
        self.receives.push(SimulatedReceive { handle, number, room });
    }

    /// Lets a rank make progress.
    fn progress(&mut self, rank: PeerId) {
        // A single step has a fixed order: first a packet, else pending work.
        let whole = self.pending_to_self(rank) == 0 && self.rng.one_in(2);
        let engine = self.world.engine(rank);
        let done = if whole { engine.progress() } else { engine.step() };
        assert_eq!(done.failed, None, "seed {}: {:?}", self.seed, engine.port_mut().faults);
    }

    /// Returns the number of messages of a rank to itself that have not reached its queues.
    fn pending_to_self(&mut self, rank: PeerId) -> usize {
        let engine = self.world.engine(rank);
        let mut at = engine.first(rank, PeerQueue::Pending);
        let mut count = 0;
        while let Some(index) = at {
            at = engine.requests.next(index);
            count += 1;
        }
        count
    }

    /// Stops a rank for good; no other rank has detected this yet.
    fn stop(&mut self, rank: PeerId, failure: Failure) {
        self.gone[rank as usize] = Some(failure);
        self.world.fabric.with_memory(|memory| memory.gone.push(rank));
    }

    /// Reports the failure of a rank to another rank.
    fn tell(&mut self, rank: PeerId, peer: PeerId) {
        let Some(failure) = self.gone[peer as usize] else { return };
        let at = rank as usize;
        if self.reported[at][peer as usize].is_some() {
            return;
        }
        // The report may precede the last packets of the dead rank, follow them, or follow the end of pending
        // sends.
        let protocol_number = self.rng.below(3);
        if protocol_number == 1 {
            self.world.engine(rank).depart(peer, failure);
            self.reported[at][peer as usize] = Some(failure);
        }
        if protocol_number > 0 {
            self.draining = true;
            self.world.engine(rank).drain(peer);
            self.listen(rank);
            self.complete();
            self.draining = false;
        }
        self.reported[at][peer as usize] = Some(failure);
        let alone = (0..self.peers).all(|it| it == rank || self.reported[at][it as usize].is_some());
        let concerns_any = failure != Failure::Finished || alone;
        self.world.engine(rank).fail(peer, failure);
        self.oracles[at].fail(peer, concerns_any);
        self.any_failed[at] |= concerns_any;
        self.listen(rank);
        self.complete();
    }

    /// Receives all messages between surviving ranks, then checks that nothing is left.
    fn drain(&mut self) {
        let alive = self.alive();
        for rank in 0..self.peers {
            alive.iter().for_each(|&it| self.tell(it, rank));
        }
        self.withdraw_all();
        for &rank in &alive {
            (0..PROBED).for_each(|_| self.imrecv(rank));
        }
        for turn in 0.. {
            assert!(turn < 20_000, "seed {}: the world does not become idle", self.seed);
            for &rank in &alive {
                self.world.engine(rank).acknowledge_if(&mut self.any_failed[rank as usize]);
                for context in 0..CONTEXTS {
                    if self.oracles[rank as usize].listens_in(context) {
                        continue;
                    }
                    let any = Pattern { source: Source::Any, context, tag: 0, ignore: u64::MAX };
                    self.irecv(rank, any, LARGEST);
                }
                self.world.engine(rank).port_mut().port.sweep_all();
                self.progress(rank);
                self.listen(rank);
                self.complete();
            }
            if self.is_drained(&alive) {
                break;
            }
        }
        self.withdraw_all();
        assert!(self.receives.is_empty(), "seed {}: {:?}", self.seed, self.receives);
        self.world.assert_empty(&alive, &std::format!("seed {}", self.seed));
        self.check_counters(&alive);
    }

    fn withdraw_all(&mut self) {
        for receive in &self.receives {
            let handle = receive.handle;
            if self.gone[handle.rank as usize].is_none() {
                let withdrawn = self.oracles[handle.rank as usize].withdraw(receive.number);
                assert_eq!(self.world.engine(handle.rank).cancel(handle.id), withdrawn, "seed {}", self.seed);
            }
        }
        self.complete();
    }

    fn is_drained(&self, alive: &[PeerId]) -> bool {
        let here = |to: &PeerId, from: &PeerId| {
            let arrived = self.oracles[*to as usize].arrived(*from);
            arrived == self.sent[*from as usize][*to as usize].len()
        };
        self.sends.is_empty()
            && alive.iter().all(|to| {
                self.oracles[*to as usize].waiting() == 0 && alive.iter().all(|from| here(to, from))
            })
            && self.receives.iter().all(|receive| {
                self.oracles[receive.handle.rank as usize].receives[receive.number] == Expected::Posted
            })
    }
}

impl super::world::TestEngine<'_> {
    fn acknowledge_if(&mut self, failed: &mut bool) {
        if core::mem::take(failed) {
            self.acknowledge();
        }
    }
}

fn geometry(rng: &mut Rng) -> WorldShape {
    let (peers, cells) = (rng.pick(&[2, 3, 4]), rng.pick(&[4, 4, 8, 32]));
    WorldShape { peers, cells, cell_bytes: 256, fastbox_slots: rng.pick(&[4, 4, 16]) }
}

/// Returns a random store size, from one unit for each rank, which is the minimum, to more than enough.
fn room(rng: &mut Rng, peers: usize) -> WorldRoom {
    let units = rng.pick(&[peers, peers + 1, 5 * peers, 6 * peers, 60, 4096]);
    let tuning = Tuning {
        eager_bytes: rng.pick(&[0, 64, 256, 256]),
        window: rng.pick(&[1, 5, 20, 4096]),
        assist_bytes: ASSIST,
        lent_assist_bytes: ASSIST / 2,
        non_temporal_bytes: rng.pick(&[0, 500, u64::MAX]),
        pull_bytes: rng.pick(&[0, 1, 512, u64::MAX]),
        run_bytes: rng.pick(&[0, 16, u64::MAX]),
        direct_bytes: u64::MAX,
    };
    WorldRoom { requests: rng.pick(&[12, 256]), units, buckets: rng.pick(&[0, 1, 3, 16]), tuning }
}

/// Returns how often mapped memory cannot be accessed.
fn mapping(rng: &mut Rng) -> Option<usize> {
    rng.pick(&[None, None, Some(2), Some(20), Some(usize::MAX)])
}

fn reading(rng: &mut Rng) -> Reading {
    rng.pick(&[
        Reading::Never,
        Reading::Always,
        Reading::Unreadable(3),
        Reading::Unreadable(10),
        Reading::Refused(3),
        Reading::Refused(30),
    ])
}

/// Counts of bytes read and written, of packets streamed, and of messages of which only a part was streamed.
#[derive(Debug, Default)]
struct SendCalls {
    pulled: u64,
    pushed: u64,
    streamed: u64,
    resumed: u64,
    /// Messages that took the path of large eager messages.
    copied: u64,
}

impl SendCalls {
    fn assert_all(&self) {
        let Self { pulled, pushed, streamed, resumed, copied } = *self;
        // A fraction of the seeds may contain far fewer of the rare cases.
        let few = |count: u64| if portion(count) < count { 0 } else { count };
        let moved =
            pulled > few(100_000) && pushed > few(10_000) && streamed > few(1000) && resumed > few(50);
        assert!(moved && copied > few(300), "{self:?}");
    }
}

fn simulate(seed: u64, deaths: bool, calls: &mut SendCalls) {
    let mut rng = Rng::new(seed);
    let geometry = geometry(&mut rng);
    let room = room(&mut rng, geometry.peers as usize);
    let fabric = Fabric::reading(geometry, reading(&mut rng), seed);
    fabric.with_memory(|memory| memory.mapping = mapping(&mut rng));
    fabric.with_memory(|memory| memory.clock = rng.one_in(2).then_some(0));
    let mut simulation = Simulation::new(seed, rng, &fabric, room);
    if seed % 2 == 1 {
        simulation.world.lender.scatter(seed);
    }
    for _ in 0..2000 {
        simulation.step();
        if deaths && simulation.rng.one_in(500) && simulation.alive().len() > 1 {
            let rank = simulation.rng.pick(&simulation.alive());
            let failure = simulation.rng.pick(&[Failure::Died, Failure::Finished]);
            simulation.stop(rank, failure);
        }
        if deaths && simulation.rng.one_in(20) {
            let rank = simulation.rng.pick(&simulation.alive());
            let peer = simulation.rng.below(geometry.peers as usize) as PeerId;
            simulation.tell(rank, peer);
        }
    }
    simulation.drain();
    fabric.with_memory(|memory| {
        calls.pulled += memory.pulled;
        calls.pushed += memory.pushed;
    });
    for engine in &mut simulation.world.engines {
        calls.streamed += engine.port_mut().streamed as u64;
        calls.resumed += engine.port_mut().resumed as u64;
        calls.copied += engine.port_mut().copied as u64;
    }
}

#[test]
fn random_worlds_follow_the_rules_of_matching() {
    let mut calls = SendCalls::default();
    for seed in 0..portion(200) {
        simulate(seed, false, &mut calls);
    }
    calls.assert_all();
}

#[test]
fn random_worlds_in_which_ranks_die_follow_the_rules_of_matching() {
    let mut calls = SendCalls::default();
    for seed in 1000..1000 + portion(200) {
        simulate(seed, true, &mut calls);
    }
    calls.assert_all();
}
