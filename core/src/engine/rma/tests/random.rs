//! Random worlds against an oracle that executes each request on plain vectors when the target takes its
//! packet.

use std::collections::VecDeque;
use std::vec;
use std::vec::Vec;

use super::{ALL, BYTES};
use crate::engine::rma::{
    Comparison, CompleteAt, Datatype, Reduction, RegionId, RemoteKey, Target, combine, swap,
};
use crate::engine::tests::world::{AMPLE, RequestHandle, World, WorldRoom};
use crate::engine::{CompletionError, Failure, Outcome, StartError};
use crate::port::PeerId;
use crate::shared::tests::fabric::WorldShape;
use crate::shared::tests::fabric::{Fabric, FabricRegion};
use crate::shared::tests::{Rng, contents, portion};
use crate::wire::Kind;
use crate::wire::rma::HEAD_BYTES;

/// Bytes of each region that only one origin accesses; the values after them are shared.
const OWN: usize = 700;
const SHARED: usize = BYTES - 4 * OWN;

#[derive(Clone, Debug)]
enum What {
    Put { bytes: Vec<u8>, notify: bool, complete: CompleteAt },
    Get { len: usize },
    Accumulate { datatype: Datatype, reduction: Reduction, operands: Vec<u8>, complete: CompleteAt },
    Fetch { datatype: Datatype, reduction: Reduction, operand: u64 },
    CompareSwap { datatype: Datatype, comparison: Comparison, values: [u64; 2] },
    FetchAccumulate { datatype: Datatype, reduction: Reduction, operands: Vec<u8> },
    Flush,
}

#[derive(Debug)]
struct RandomOperation {
    from: PeerId,
    to: PeerId,
    at: usize,
    what: What,
    handle: Option<RequestHandle>,
    /// Bytes or operands that the target has taken.
    taken: usize,
    /// The expected answer to the origin.
    answer: Vec<u8>,
}

struct Random<'a> {
    seed: u64,
    rng: Rng,
    peers: u32,
    world: World<'a>,
    regions: Vec<(RegionId, RemoteKey)>,
    memories: &'a [FabricRegion],
    models: Vec<Vec<u8>>,
    notified: Vec<u64>,
    operations: Vec<RandomOperation>,
    /// Operations by origin and target that were started and not yet taken.
    under_way: Vec<Vec<VecDeque<usize>>>,
    open: Vec<usize>,
    gone: Vec<bool>,
    reported: Vec<Vec<bool>>,
    /// Active messages sent, and the last one handled, by sender and receiver.
    actives: Vec<Vec<(u64, u64)>>,
    buffers: Vec<RequestHandle>,
}

fn load(model: &[u8], at: usize, len: usize) -> u64 {
    model[at..at + len].iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte))
}

impl<'a> Random<'a> {
    fn new(seed: u64, rng: Rng, fabric: &'a Fabric, memories: &'a [FabricRegion], room: WorldRoom) -> Self {
        let peers = fabric.geometry.peers;
        let mut world = World::new(fabric, room);
        let regions = (0..peers).map(|rank| world.expose(rank, &memories[rank as usize], ALL, seed ^ 5));
        let regions = regions.collect();
        let count = peers as usize;
        Self {
            seed,
            rng,
            peers,
            world,
            regions,
            memories,
            models: vec![vec![0; BYTES]; count],
            notified: vec![0; count],
            operations: vec![],
            under_way: vec![vec![VecDeque::new(); count]; count],
            open: vec![],
            gone: vec![false; count],
            reported: vec![vec![false; count]; count],
            actives: vec![vec![(0, 0); count]; count],
            buffers: vec![],
        }
    }

    fn alive(&self) -> Vec<PeerId> {
        (0..self.peers).filter(|&rank| !self.gone[rank as usize]).collect()
    }

    fn step(&mut self) {
        let rank = self.rng.pick(&self.alive());
        match self.rng.below(10) {
            0..=4 => self.start(rank),
            5 => self.active(rank),
            _ => self.turn(rank),
        }
    }

    fn turn(&mut self, rank: PeerId) {
        let whole = self.rng.one_in(2);
        let engine = self.world.engine(rank);
        let done = if whole { engine.progress() } else { engine.step() };
        assert_eq!(done.failed, None, "seed {}: {:?}", self.seed, engine.port_mut().faults);
        self.listen(rank);
        self.complete();
    }

    fn what(&mut self, from: PeerId) -> (usize, What) {
        let datatype = self.rng.pick(&Datatype::ALL);
        let mut reduction = self.rng.pick(&Reduction::ALL);
        if !datatype.allows(reduction) {
            reduction = Reduction::Sum;
        }
        let size = datatype.bytes();
        let value = 4 * OWN + self.rng.below(SHARED / 8) * 8 + (8 - size) * self.rng.below(2);
        let complete = if self.rng.one_in(3) { CompleteAt::Target } else { CompleteAt::Origin };
        let len = if self.rng.one_in(3) { self.rng.below(OWN) } else { self.rng.below(40) };
        let own = from as usize * OWN + self.rng.below(OWN - len);
        match self.rng.below(9) {
            0 | 1 => {
                let bytes = contents(self.rng.next(), len);
                (own, What::Put { bytes, notify: self.rng.one_in(3), complete })
            }
            2 | 3 => (own, What::Get { len }),
            4 => {
                let count = self.rng.below((BYTES - value) / size + 1);
                let operands = contents(self.rng.next(), count * size);
                (value, What::Accumulate { datatype, reduction, operands, complete })
            }
            5 => (value, What::Fetch { datatype, reduction, operand: self.rng.next() }),
            6 => {
                // Often the right value: values begin as 0.
                let expected = self.rng.pick(&[0, 1, self.seed]);
                let mut comparison = self.rng.pick(&Comparison::ALL);
                if !datatype.allows_comparison(comparison) {
                    comparison = Comparison::Equal;
                }
                (
                    value,
                    What::CompareSwap { datatype, comparison, values: [expected, self.rng.below(2) as u64] },
                )
            }
            7 => {
                let most = (BYTES - value) / size + 1;
                let count =
                    if self.rng.one_in(3) { self.rng.below(most) } else { self.rng.below(most.min(9)) };
                let operands = contents(self.rng.next(), count * size);
                (value, What::FetchAccumulate { datatype, reduction, operands })
            }
            _ => (0, What::Flush),
        }
    }

    fn start(&mut self, from: PeerId) {
        if self.open.len() > 200 {
            return;
        }
        let to = self.rng.below(self.peers as usize) as PeerId;
        let (at, what) = self.what(from);
        let gets = self.under(from, to, |what| matches!(what, What::Get { .. }));
        if gets && matches!(what, What::Put { .. }) && self.world.engine(from).fence(to).is_err() {
            return;
        }
        let target = Target { key: &self.regions[to as usize].1, offset: at as u64 };
        let engine = &mut self.world.engines[from as usize];
        let lender = &mut self.world.lender;
        let (loan, started) = match &what {
            What::Put { bytes, notify, complete } => {
                let (loan, buf) = lender.send(from, bytes.clone());
                (loan, engine.put(&target, buf, *notify, *complete))
            }
            What::Get { len } => {
                let (loan, mut buf) = lender.receive(from, *len);
                (loan, engine.get(&target, &mut buf))
            }
            What::Accumulate { datatype, reduction, operands, complete } => {
                let (loan, buf) = lender.send(from, operands.clone());
                (loan, engine.accumulate(&target, (*datatype, *reduction), buf, *complete))
            }
            What::Fetch { datatype, reduction, operand } => {
                let (loan, mut old) = lender.receive(from, datatype.bytes());
                (loan, engine.fetch(&target, *datatype, *reduction, *operand, &mut old))
            }
            What::CompareSwap { datatype, comparison, values } => {
                let (loan, mut old) = lender.receive(from, datatype.bytes());
                (loan, engine.compare_swap(&target, (*datatype, *comparison), *values, &mut old))
            }
            What::FetchAccumulate { datatype, reduction, operands } => {
                // Lent until the world ends, because an engine that drops a part of the array may still hold
                // the buffer.
                let (_, buf) = lender.send(from, operands.clone());
                let (loan, mut old) = lender.receive(from, operands.len());
                (loan, engine.fetch_accumulate(&target, *datatype, *reduction, buf, &mut old))
            }
            What::Flush => (lender.send(from, vec![]).0, engine.flush(to)),
        };
        let number = self.operations.len();
        match self.world.handle(from, loan, started) {
            Ok(handle) => {
                let handle = Some(handle);
                self.operations.push(RandomOperation {
                    from,
                    to,
                    at,
                    what,
                    handle,
                    taken: 0,
                    answer: vec![],
                });
                self.open.push(number);
                self.begin(number);
            }
            Err(StartError::PeerFailed { peer, .. }) => {
                assert!(peer == to && self.reported[from as usize][to as usize], "seed {}", self.seed);
            }
            Err(StartError::Requests { .. }) => {}
            Err(error) => panic!("seed {}: {error}", self.seed),
        }
        self.complete();
    }

    /// Returns whether, for the origin, an operation of that kind may be in progress.
    fn under(&self, from: PeerId, to: PeerId, kind: impl Fn(&What) -> bool) -> bool {
        self.open.iter().any(|&number| {
            let it = &self.operations[number];
            (it.from, it.to) == (from, to) && kind(&it.what)
        })
    }

    /// Executes operations on the rank itself at once; others execute on arrival.
    fn begin(&mut self, number: usize) {
        let it = &self.operations[number];
        let (from, to) = (it.from, it.to);
        let nothing = match &it.what {
            What::Get { len } => *len == 0,
            What::FetchAccumulate { operands, .. } => operands.is_empty(),
            What::Flush => !self.world.engine(from).is_unflushed(to),
            _ => false,
        };
        if nothing {
            return;
        }
        self.under_way[from as usize][to as usize].push_back(number);
        if from == to {
            self.take(from, to, usize::MAX);
        }
    }

    /// Executes a packet of `len` payload bytes.
    fn take(&mut self, from: PeerId, to: PeerId, len: usize) {
        let queue = &mut self.under_way[from as usize][to as usize];
        let number = queue.pop_front().unwrap_or_else(|| panic!("seed {}: no rank sent this", self.seed));
        let it = &mut self.operations[number];
        let (at, model) = (it.at, &mut self.models[to as usize]);
        let part = |all: usize, taken: usize| (all - taken).min(len.saturating_sub(HEAD_BYTES));
        let more = match &it.what {
            What::Put { bytes, notify, .. } => {
                let end = it.taken + part(bytes.len(), it.taken);
                model[at + it.taken..at + end].copy_from_slice(&bytes[it.taken..end]);
                it.taken = end;
                self.notified[to as usize] += u64::from(*notify && end == bytes.len());
                end < bytes.len()
            }
            What::Accumulate { datatype, reduction, operands, .. } => {
                let (size, end) = (datatype.bytes(), it.taken + part(operands.len(), it.taken));
                for value in (it.taken..end).step_by(size) {
                    let old = load(model, at + value, size);
                    let new = combine(*datatype, *reduction, old, load(operands, value, size));
                    model[at + value..][..size].copy_from_slice(&new.to_le_bytes()[..size]);
                }
                it.taken = end;
                end < operands.len()
            }
            What::FetchAccumulate { datatype, reduction, operands } => {
                let (size, end) = (datatype.bytes(), it.taken + part(operands.len(), it.taken));
                for value in (it.taken..end).step_by(size) {
                    let old = load(model, at + value, size);
                    let new = combine(*datatype, *reduction, old, load(operands, value, size));
                    model[at + value..][..size].copy_from_slice(&new.to_le_bytes()[..size]);
                    it.answer.extend(&old.to_le_bytes()[..size]);
                }
                it.taken = end;
                end < operands.len()
            }
            What::Get { len } => {
                it.answer = model[at..at + len].to_vec();
                false
            }
            What::Fetch { datatype, reduction, operand } => {
                let size = datatype.bytes();
                let old = load(model, at, size);
                let new = combine(*datatype, *reduction, old, *operand);
                model[at..at + size].copy_from_slice(&new.to_le_bytes()[..size]);
                it.answer = old.to_le_bytes()[..size].to_vec();
                false
            }
            What::CompareSwap { datatype, comparison, values } => {
                let size = datatype.bytes();
                let old = load(model, at, size);
                let new = swap(*datatype, *comparison, old, *values);
                model[at..at + size].copy_from_slice(&new.to_le_bytes()[..size]);
                it.answer = old.to_le_bytes()[..size].to_vec();
                false
            }
            What::Flush => false,
        };
        if more {
            self.under_way[from as usize][to as usize].push_front(number);
        }
    }

    fn active(&mut self, from: PeerId) {
        let to = self.rng.below(self.peers as usize) as PeerId;
        if from == to || self.buffers.len() > 60 {
            return;
        }
        let number = self.actives[from as usize][to as usize].0 + 1;
        let len = self.rng.below(200);
        if let Ok(handle) = self.world.active(from, to, 1, &number.to_le_bytes(), &contents(number, len)) {
            self.actives[from as usize][to as usize].0 = number;
            self.buffers.push(handle);
        }
    }

    /// Executes, in the oracle, the packets that a rank has taken.
    fn listen(&mut self, rank: PeerId) {
        for seen in core::mem::take(&mut self.world.engine(rank).port_mut().seen) {
            if seen.envelope.kind == Kind::Rma {
                self.take(seen.peer, rank, seen.len);
            }
        }
        for handled in core::mem::take(&mut self.world.engine(rank).handlers_mut().handled) {
            let number = u64::from_le_bytes(handled.header[..].try_into().unwrap());
            let last = &mut self.actives[handled.from as usize][rank as usize].1;
            assert_eq!(number, *last + 1, "seed {}: overtaken", self.seed);
            *last = number;
            assert_eq!(handled.payload, contents(number, handled.payload.len()));
        }
    }

    fn complete(&mut self) {
        for number in core::mem::take(&mut self.open) {
            let (from, handle) = (self.operations[number].from, self.operations[number].handle);
            if self.gone[from as usize] {
                continue;
            }
            match handle.and_then(|handle| self.world.test(handle)) {
                Some((outcome, bytes)) => self.check(number, outcome, &bytes),
                None => self.open.push(number),
            }
        }
        for handle in core::mem::take(&mut self.buffers) {
            if !self.gone[handle.rank as usize] && self.world.test(handle).is_none() {
                self.buffers.push(handle);
            }
        }
    }

    fn check(&self, number: usize, outcome: Outcome, bytes: &[u8]) {
        let (seed, it) = (self.seed, &self.operations[number]);
        let reported = self.reported[it.from as usize][it.to as usize];
        match outcome {
            Ok(_) => match &it.what {
                What::Put { complete, .. } | What::Accumulate { complete, .. }
                    if *complete == CompleteAt::Origin => {}
                What::Flush | What::Put { .. } | What::Accumulate { .. } if reported => {}
                What::Flush | What::Put { .. } | What::Accumulate { .. } => {
                    let waits = self.under_way[it.from as usize][it.to as usize].front();
                    assert!(
                        waits.is_none_or(|first| *first > number),
                        "seed {seed}: {it:?} completed too early"
                    );
                }
                _ => assert_eq!(bytes, it.answer, "seed {seed}: {it:?}"),
            },
            Err(CompletionError::PeerFailed { peer, .. }) => {
                assert!(peer == it.to && reported, "seed {seed}");
            }
            Err(completion_error) => panic!("seed {seed}: {completion_error}"),
        }
    }

    fn tell(&mut self, rank: PeerId, peer: PeerId) {
        if !self.gone[peer as usize]
            || core::mem::replace(&mut self.reported[rank as usize][peer as usize], true)
        {
            return;
        }
        self.world.engine(rank).fail(peer, Failure::Died);
        self.complete();
        let left = self.under(rank, peer, |_| true);
        assert!(!left, "seed {}: a request waits for a dead rank", self.seed);
    }

    fn finish(&mut self) {
        let alive = self.alive();
        for rank in 0..self.peers {
            alive.iter().for_each(|&it| self.tell(it, rank));
        }
        for turn in 0.. {
            assert!(turn < 20_000, "seed {}: {:?} did not complete", self.seed, self.open);
            for &rank in &alive {
                self.world.engine(rank).port_mut().port.sweep_all();
                self.turn(rank);
            }
            let pair = |to: PeerId, from: PeerId| {
                let (sent, handled) = self.actives[from as usize][to as usize];
                self.under_way[from as usize][to as usize].is_empty() && sent == handled
            };
            let taken = alive.iter().all(|&to| alive.iter().all(|&from| pair(to, from)));
            // Operations that the target has executed may still need an acknowledgement.
            let mut idle = true;
            for &rank in &alive {
                idle &= self.world.engine(rank).requests.used() == 0;
            }
            if self.open.is_empty() && self.buffers.is_empty() && taken && idle {
                break;
            }
        }
        for &rank in &alive {
            let at = rank as usize;
            assert_eq!(self.memories[at].copy(), self.models[at], "seed {}: memory of {rank}", self.seed);
            let notified = self.world.engine(rank).notifications(self.regions[at].0);
            assert_eq!(notified, Some(self.notified[at]), "seed {}", self.seed);
            assert_eq!(self.world.engine(rank).replies.used(), 0, "seed {}", self.seed);
        }
        self.world.assert_empty(&alive, &std::format!("seed {}", self.seed));
    }
}

fn simulate(seed: u64, deaths: bool) {
    let mut rng = Rng::new(seed);
    let (peers, cells) = (rng.pick(&[2, 3, 4]), rng.pick(&[4, 4, 8, 32]));
    let fabric =
        Fabric::new(WorldShape { peers, cells, cell_bytes: 256, fastbox_slots: rng.pick(&[4, 16, 64]) });
    let memories: Vec<_> = (0..peers).map(|_| FabricRegion::new(BYTES)).collect();
    let room = WorldRoom { requests: rng.pick(&[8, 512]), ..AMPLE };
    let mut random = Random::new(seed, rng, &fabric, &memories, room);
    for _ in 0..2000 {
        random.step();
        if deaths && random.rng.one_in(700) && random.alive().len() > 1 {
            let rank = random.rng.pick(&random.alive());
            random.gone[rank as usize] = true;
        }
        if deaths && random.rng.one_in(20) {
            let rank = random.rng.pick(&random.alive());
            let peer = random.rng.below(peers as usize) as PeerId;
            random.tell(rank, peer);
        }
    }
    random.finish();
}

#[test]
fn random_operations_of_several_origins_agree_with_the_oracle() {
    for seed in 0..portion(150) {
        simulate(seed, false);
    }
}

#[test]
fn random_operations_go_on_when_ranks_die() {
    for seed in 1000..1000 + portion(150) {
        simulate(seed, true);
    }
}
