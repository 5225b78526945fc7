//! Random worlds against the oracle: any operation at any rank in any order, from one seed.

use std::vec;
use std::vec::Vec;

use super::oracle::{Fate as Expected, Name, Oracle};
use super::world::{Room, Ticket, World};
use crate::engine::{Failure, Fate, Outcome, RequestId, StartError, Status, Truncation};
use crate::matching::{Pattern, Source};
use crate::port::PeerId;
use crate::shared::layout::Geometry;
use crate::shared::tests::fabric::Fabric;
use crate::shared::tests::{Rng, contents};
use crate::wire::Kind;

const CONTEXTS: u16 = 2;
/// Most receives posted, messages waiting, and sends under way at one rank.
const MANY: usize = 12;
const LARGEST: usize = 3 * 256;

#[derive(Debug)]
struct Sent {
    context: u16,
    tag: u64,
    bytes: Vec<u8>,
}

#[derive(Debug)]
struct Receive {
    ticket: Ticket,
    /// Its number at its rank's oracle.
    number: usize,
    room: usize,
}

#[derive(Debug)]
struct Sending {
    ticket: Ticket,
    to: PeerId,
    tag: u64,
    len: usize,
}

struct Simulation<'a> {
    seed: u64,
    rng: Rng,
    peers: u32,
    world: World<'a>,
    oracles: Vec<Oracle>,
    /// What was sent, by source and destination.
    sent: Vec<Vec<Vec<Sent>>>,
    receives: Vec<Receive>,
    sends: Vec<Sending>,
    /// Ranks that have stopped, and how.
    gone: Vec<Option<Failure>>,
    /// By observer and observed: what the observer was told.
    told: Vec<Vec<Option<Failure>>>,
    any_failed: Vec<bool>,
    salt: u64,
}

impl<'a> Simulation<'a> {
    fn new(seed: u64, rng: Rng, fabric: &'a Fabric, room: Room) -> Self {
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
            gone: vec![None; count],
            told: vec![vec![None; count]; count],
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
        match self.rng.below(20) {
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
            0 => self.rng.pick(&[0, 1, 32, 33, 48, 49, 255, 256, 257, 512, 513, LARGEST]),
            1 => self.rng.below(50),
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
        // Half of the requests at most: receives need some, or nothing moves.
        let most = MANY.min(self.world.engine(from).requests.capacity() / 2);
        if self.sends.iter().filter(|send| send.ticket.rank == from).count() >= most
            || self.oracles.iter().any(|oracle| oracle.waiting() > MANY)
        {
            return;
        }
        self.salt += 1;
        let to = self.rng.below(self.peers as usize) as PeerId;
        let (context, tag) = (self.rng.below(CONTEXTS.into()) as u16, self.rng.below(4) as u64);
        let bytes = contents(self.salt, self.length());
        let (len, seed) = (bytes.len(), self.seed);
        match self.world.isend_in(context, from, to, tag, bytes.clone()) {
            Ok(ticket) => {
                assert_eq!(
                    self.told[from as usize][to as usize], None,
                    "seed {seed}: sent to a rank that is gone"
                );
                self.sent[from as usize][to as usize].push(Sent { context, tag, bytes });
                if from == to {
                    self.oracles[to as usize].arrive(from, context, tag, 0);
                }
                self.sends.push(Sending { ticket, to, tag, len });
            }
            Err(StartError::PeerFailed { peer, failure }) => {
                assert_eq!((peer, Some(failure)), (to, self.told[from as usize][to as usize]), "seed {seed}");
            }
            Err(StartError::Unexpected { .. }) => assert_eq!(from, to, "seed {seed}"),
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
            Source::Rank(peer) => self.told[at][peer as usize].is_some(),
        };
        let waits = self.oracles[at].has(&pattern);
        match self.world.irecv(rank, pattern, room) {
            Ok(ticket) => {
                assert!(waits || !lost, "seed {seed}: posted {pattern:?} to nobody");
                let number = self.oracles[at].receives.len();
                self.oracles[at].post(pattern);
                self.receives.push(Receive { ticket, number, room });
            }
            Err(StartError::PeerFailed { peer, failure }) => {
                assert!(lost && !waits, "seed {seed}: {pattern:?} refused as {peer} is gone");
                assert_eq!(self.told[at][peer as usize], Some(failure), "seed {seed}");
            }
            Err(StartError::Requests { capacity }) => {
                assert_eq!(self.world.engine(rank).requests.used(), capacity, "seed {seed}");
            }
            Err(error) => panic!("seed {seed}: {error}"),
        }
    }

    fn progress(&mut self, rank: PeerId) {
        let whole = self.rng.one_in(2);
        let engine = self.world.engine(rank);
        let done = if whole { engine.progress() } else { engine.step() };
        assert_eq!(done.failed, None, "seed {}: {:?}", self.seed, engine.port_mut().faults);
    }

    fn cancel(&mut self, rank: PeerId) {
        let mine: Vec<(RequestId, usize)> = self
            .receives
            .iter()
            .filter(|receive| receive.ticket.rank == rank)
            .map(|receive| (receive.ticket.id, receive.number))
            .collect();
        if mine.is_empty() {
            return;
        }
        let (id, number) = self.rng.pick(&mine);
        let withdrawn = self.oracles[rank as usize].withdraw(number);
        assert_eq!(self.world.engine(rank).cancel(id), withdrawn, "seed {}", self.seed);
    }

    /// Tells the oracle what has arrived at a rank, and checks that it is what was sent, in order.
    fn listen(&mut self, rank: PeerId) {
        let seed = self.seed;
        for seen in core::mem::take(&mut self.world.engine(rank).port_mut().seen) {
            let oracle = &mut self.oracles[rank as usize];
            if seen.envelope.kind == Kind::More {
                oracle.more(seen.peer, seen.len as u64);
                continue;
            }
            let rest = seen.envelope.total - seen.len as u64;
            let name = oracle.arrive(seen.peer, seen.envelope.context, seen.envelope.tag, rest);
            let sent = &self.sent[seen.peer as usize][rank as usize][name.number];
            let envelope = (seen.envelope.context, seen.envelope.tag, seen.envelope.total);
            assert_eq!(envelope, (sent.context, sent.tag, sent.bytes.len() as u64), "seed {seed}: overtaken");
        }
        let stored = self.world.engine(rank).unexpected_messages();
        assert_eq!(
            stored,
            self.oracles[rank as usize].waiting(),
            "seed {seed}: unexpected messages of {rank}"
        );
    }

    /// Every request is complete exactly when the oracle says so, with the right outcome.
    fn complete(&mut self) {
        let gone = self.gone.clone();
        let running = move |rank: PeerId| gone[rank as usize].is_none();
        for receive in core::mem::take(&mut self.receives) {
            if !running(receive.ticket.rank) {
                continue;
            }
            let oracle = &self.oracles[receive.ticket.rank as usize];
            let expected = oracle.receives[receive.number];
            let due = match expected {
                Expected::Posted => false,
                Expected::Matched(name) => oracle.is_whole(name),
                Expected::Withdrawn | Expected::Failed => true,
            };
            let outcome = self.world.test(receive.ticket);
            assert_eq!(outcome.is_some(), due, "seed {}: {receive:?} is {expected:?}", self.seed);
            match outcome {
                Some((outcome, bytes)) => self.check(&receive, expected, outcome, &bytes),
                None => self.receives.push(receive),
            }
        }
        for send in core::mem::take(&mut self.sends) {
            if !running(send.ticket.rank) {
                continue;
            }
            let told = self.told[send.ticket.rank as usize][send.to as usize];
            match self.world.test(send.ticket) {
                None => {
                    assert_eq!(told, None, "seed {}: {send:?} waits for a rank that is gone", self.seed);
                    self.sends.push(send);
                }
                Some((Ok(status), _)) if send.ticket.id != RequestId::SENT => {
                    assert_eq!((status.peer, status.tag, status.len), (send.to, send.tag, send.len));
                }
                Some((Ok(_), _)) => {}
                Some((Err(fate), _)) => {
                    let failed = told.map(|failure| Fate::PeerFailed { peer: send.to, failure });
                    assert_eq!(Some(fate), failed, "seed {}", self.seed);
                }
            }
        }
    }

    fn check(&self, receive: &Receive, expected: Expected, outcome: Outcome, bytes: &[u8]) {
        let (rank, seed) = (receive.ticket.rank as usize, self.seed);
        let name = match expected {
            Expected::Matched(name) => name,
            Expected::Withdrawn => return assert_eq!(outcome, Err(Fate::Cancelled), "seed {seed}"),
            Expected::Failed => {
                let Err(Fate::PeerFailed { peer, failure }) = outcome else {
                    panic!("seed {seed}: {outcome:?}");
                };
                return assert_eq!(self.told[rank][peer as usize], Some(failure), "seed {seed}");
            }
            Expected::Posted => unreachable!("checked by the caller"),
        };
        let Name { source, number } = name;
        let sent = &self.sent[source as usize][rank][number];
        let len = sent.bytes.len().min(receive.room);
        let status = Status { peer: source, tag: sent.tag, len };
        let message = sent.bytes.len() as u64;
        let right = if len < sent.bytes.len() {
            Err(Fate::Truncated(Truncation { status, message }))
        } else {
            Ok(status)
        };
        assert_eq!(outcome, right, "seed {seed}");
        assert_eq!(bytes[..len], sent.bytes[..len], "seed {seed}: contents of {name:?} at {rank}");
        assert!(
            bytes[len..].iter().all(|&byte| byte == 0xee),
            "seed {seed}: more than the message was written"
        );
    }

    /// A rank stops for good; nobody knows yet.
    fn stop(&mut self, rank: PeerId, failure: Failure) {
        self.gone[rank as usize] = Some(failure);
    }

    /// A rank learns that another is gone.
    fn tell(&mut self, rank: PeerId, peer: PeerId) {
        let Some(failure) = self.gone[peer as usize] else { return };
        let at = rank as usize;
        if self.told[at][peer as usize].is_some() {
            return;
        }
        if self.rng.one_in(2) {
            // Or not: a rank may be told of a death before it has seen all that came.
            self.world.engine(rank).drain(peer);
            self.listen(rank);
            self.complete();
        }
        self.told[at][peer as usize] = Some(failure);
        let alone = (0..self.peers).all(|it| it == rank || self.told[at][it as usize].is_some());
        let concerns_any = failure != Failure::Finished || alone;
        self.world.engine(rank).fail(peer, failure);
        self.oracles[at].fail(peer, concerns_any);
        self.any_failed[at] |= concerns_any;
        self.listen(rank);
        self.complete();
    }

    /// Receives everything that was sent between those that live, then expects nothing to be left.
    fn drain(&mut self) {
        let alive = self.alive();
        for rank in 0..self.peers {
            alive.iter().for_each(|&it| self.tell(it, rank));
        }
        self.withdraw_all();
        for turn in 0.. {
            assert!(turn < 20_000, "seed {}: the world does not come to rest", self.seed);
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
    }

    fn withdraw_all(&mut self) {
        for receive in &self.receives {
            let ticket = receive.ticket;
            if self.gone[ticket.rank as usize].is_none() {
                let withdrawn = self.oracles[ticket.rank as usize].withdraw(receive.number);
                assert_eq!(self.world.engine(ticket.rank).cancel(ticket.id), withdrawn, "seed {}", self.seed);
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
                self.oracles[receive.ticket.rank as usize].receives[receive.number] == Expected::Posted
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

fn geometry(rng: &mut Rng) -> Geometry {
    let (peers, cells) = (rng.pick(&[2, 3, 4]), rng.pick(&[4, 4, 8, 32]));
    Geometry { peers, cells, cell_bytes: 256, fastbox_slots: rng.pick(&[4, 4, 16]) }
}

fn room(rng: &mut Rng) -> Room {
    let (entries, chunks) = rng.pick(&[(512, 512), (4, 2), (1, 1), (2, 0), (0, 0)]);
    Room { requests: rng.pick(&[8, 256]), entries, chunks, buckets: rng.pick(&[0, 1, 3, 16]) }
}

fn simulate(seed: u64, deaths: bool) {
    let mut rng = Rng::new(seed);
    let (geometry, room) = (geometry(&mut rng), room(&mut rng));
    let fabric = Fabric::new(geometry);
    let mut simulation = Simulation::new(seed, rng, &fabric, room);
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
}

#[test]
fn random_worlds_follow_the_rules_of_matching() {
    for seed in 0..200 {
        simulate(seed, false);
    }
}

#[test]
fn random_worlds_in_which_ranks_die_follow_the_rules_of_matching() {
    for seed in 1000..1200 {
        simulate(seed, true);
    }
}
