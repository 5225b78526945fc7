//! Whole engines against a malicious peer that corrupts all memory that it can write.

use crate::port::PacketPieces;
use std::vec;
use std::vec::Vec;

use proptest::prelude::*;

use super::world::{RequestHandle, TUNING, World, WorldRoom, pattern};
use crate::engine::{CompletionError, Failure, StartError, Status, Tuning};
use crate::matching::{Pattern, Source};
use crate::port::{PacketPort, PeerId};
use crate::shared::tests::fabric::WorldShape;
use crate::shared::tests::fabric::{Fabric, Reading};
use crate::shared::tests::{Rng, cases, contents, portion};
use crate::wire::{Envelope, Kind};

const HOSTILE: PeerId = 2;
/// The context of the two honest ranks. The third rank may forge messages in it, but not their source.
const HONEST: u16 = 7;
const LARGEST: usize = 900;

/// One direction between the honest ranks. Receives are posted in the order in which messages are sent.
#[derive(Debug, Default)]
struct HostileStream {
    salts: Vec<u64>,
    sends: Vec<RequestHandle>,
    receives: Vec<RequestHandle>,
    received: usize,
}

struct EngineSiege<'a> {
    seed: u64,
    rng: Rng,
    world: World<'a>,
    streams: [HostileStream; 2],
    /// Requests of honest ranks that involve the malicious one.
    doubtful: Vec<RequestHandle>,
    corrupts: usize,
    forged: usize,
}

fn length(salt: u64) -> usize {
    Rng::new(salt).below(LARGEST)
}

impl<'a> EngineSiege<'a> {
    fn step(&mut self) {
        let rank = self.rng.below(2) as PeerId;
        match self.rng.below(16) {
            0..=5 => {
                // Some runs corrupt only inboxes, which is never detected.
                if !self.seed.is_multiple_of(3) && self.rng.one_in(2) {
                    self.world.fabric.corrupt_own(&mut self.rng, HOSTILE);
                } else {
                    self.world.fabric.corrupt_inbox(&mut self.rng);
                }
                self.corrupts += 1;
            }
            6 | 7 => self.send(rank),
            8 => self.receive(rank),
            9 => self.doubt(rank),
            10 if self.rng.one_in(3) => self.forge(),
            10 => self.behave(),
            _ => self.turn(rank),
        }
    }

    fn send(&mut self, rank: PeerId) {
        let stream = &mut self.streams[rank as usize];
        if stream.sends.len() > 8 {
            return;
        }
        let salt = self.rng.next();
        stream.salts.push(salt);
        let bytes = contents(salt, length(salt));
        let (tag, to) = (stream.salts.len() as u64, 1 - rank);
        let started = match salt % 4 {
            0 => self.world.issend_in(HONEST, rank, to, tag, bytes),
            _ => self.world.isend_in(HONEST, rank, to, tag, bytes),
        };
        let handle = started.unwrap();
        self.streams[rank as usize].sends.push(handle);
    }

    /// Posts the next receive for a message of the other honest rank.
    fn receive(&mut self, rank: PeerId) {
        let from = 1 - rank;
        let stream = &self.streams[from as usize];
        let next = stream.received + stream.receives.len();
        if stream.receives.len() > 8 || next >= stream.salts.len() {
            return;
        }
        let tag = next as u64 + 1;
        let wanted = Pattern { source: Source::Rank(from), context: HONEST, tag, ignore: 0 };
        let handle = self.world.irecv(rank, wanted, LARGEST).unwrap();
        self.streams[from as usize].receives.push(handle);
    }

    /// Starts an operation of an honest rank with the malicious one.
    fn doubt(&mut self, rank: PeerId) {
        if self.doubtful.len() > 30 {
            return;
        }
        let len = self.rng.below(LARGEST);
        let wanted = Pattern { ignore: u64::MAX, ..pattern(Source::Rank(HOSTILE), 0) };
        let started = match self.rng.below(4) {
            0 => self.world.isend_in(0, rank, HOSTILE, 1, contents(1, len)),
            3 => self.world.issend_in(0, rank, HOSTILE, 1, contents(1, len)),
            1 => self.world.irecv(rank, Pattern { source: Source::Any, ..wanted }, len),
            _ => self.world.irecv(rank, wanted, len),
        };
        match started {
            Ok(handle) => self.doubtful.push(handle),
            Err(StartError::PeerFailed { peer, failure: Failure::Fault(_) }) => assert_eq!(peer, HOSTILE),
            Err(error) => panic!("seed {}: {error}", self.seed),
        }
    }

    /// Lets the malicious rank act like an honest one, so that its state is plausible and worth corrupting.
    fn behave(&mut self) {
        let to = self.rng.below(2) as PeerId;
        let len = self.rng.below(LARGEST);
        let wanted = Pattern { source: Source::Any, ignore: u64::MAX, ..pattern(Source::Any, 0) };
        let _ = match self.rng.below(3) {
            0 => self.world.isend_in(0, HOSTILE, to, 1, contents(2, len)),
            1 => self.world.issend_in(0, HOSTILE, to, 1, contents(2, len)),
            _ => self.world.irecv(HOSTILE, wanted, len),
        };
        self.world.engine(HOSTILE).progress();
    }

    /// Lets the malicious rank send a well-formed but forged packet.
    fn forge(&mut self) {
        let to = self.rng.below(2) as PeerId;
        let kinds = [
            Kind::Eager,
            Kind::EagerImmediate,
            Kind::EagerAcknowledged,
            Kind::EagerBoth,
            Kind::Rts,
            Kind::Rts,
            Kind::Cts,
            Kind::Data,
            Kind::Fin,
        ];
        let kind = self.rng.pick(&kinds);
        // Request numbers of the receiver, as far as they can be guessed, and addresses.
        let number = |rng: &mut Rng| match rng.below(4) {
            0 => rng.next(),
            1 => rng.next() >> 40,
            _ => (rng.below(40) as u64) << 32 | rng.below(8) as u64,
        };
        let mut words: Vec<u64> = (0..4).map(|_| number(&mut self.rng)).collect();
        if kind == Kind::Rts && self.rng.one_in(2) {
            words[0] = self.rng.below(2 * LARGEST) as u64;
        } else if kind == Kind::Cts && self.rng.one_in(2) {
            (words[2], words[3]) = (0, self.rng.below(LARGEST) as u64);
        }
        let mut payload: Vec<u8> = words.into_iter().flat_map(u64::to_le_bytes).collect();
        match kind {
            Kind::Eager | Kind::EagerImmediate | Kind::EagerBoth | Kind::Data => {
                payload.resize(self.rng.below(257), 7);
            }
            Kind::Fin => payload.truncate(8),
            _ if self.rng.one_in(4) => payload.resize(self.rng.below(257), 7),
            _ => {}
        }
        let context = self.rng.pick(&[0, HONEST]);
        let tag = number(&mut self.rng);
        let envelope = Envelope { kind, context, tag, total: payload.len() as u64 };
        self.forged += usize::from(matches!(
            self.world.engine(HOSTILE).port_mut().send(to, &envelope, PacketPieces::Whole(&payload)),
            Ok(true)
        ));
    }

    fn turn(&mut self, rank: PeerId) {
        if self.rng.one_in(50) {
            self.world.engine(rank).port_mut().port.sweep_all();
        }
        let engine = self.world.engine(rank);
        engine.progress();
        let faults = core::mem::take(&mut engine.port_mut().faults);
        assert!(faults.iter().all(|fault| fault.peer == HOSTILE), "seed {}: {faults:?}", self.seed);
        assert_eq!(engine.failure(1 - rank), None, "seed {}: an honest rank was blamed", self.seed);
        self.check(rank);
    }

    /// Checks that messages from the other honest rank arrived at `rank` in order and unchanged.
    fn check(&mut self, rank: PeerId) {
        let (from, seed) = (1 - rank, self.seed);
        while let Some(&handle) = self.streams[from as usize].receives.first() {
            let Some((outcome, bytes)) = self.world.test(handle) else { break };
            let stream = &mut self.streams[from as usize];
            stream.receives.remove(0);
            let salt = stream.salts[stream.received];
            stream.received += 1;
            let status =
                Status { peer: from, tag: stream.received as u64, len: length(salt), immediate: None };
            assert_eq!(outcome, Ok(status), "seed {seed}");
            assert_eq!(bytes[..status.len], contents(salt, status.len), "seed {seed}: contents");
        }
        while let Some(&handle) = self.streams[rank as usize].sends.first() {
            let Some((outcome, _)) = self.world.test(handle) else { break };
            outcome.unwrap();
            self.streams[rank as usize].sends.remove(0);
        }
        for handle in core::mem::take(&mut self.doubtful) {
            match self.world.test(handle) {
                None => self.doubtful.push(handle),
                Some((Err(CompletionError::PeerFailed { peer, failure: Failure::Fault(_) }), _)) => {
                    assert_eq!(peer, HOSTILE);
                }
                Some((
                    Err(
                        CompletionError::PeerFailed { .. }
                        | CompletionError::Stale
                        | CompletionError::Cancelled
                        | CompletionError::Refused { .. },
                    ),
                    _,
                )) => {
                    panic!("seed {seed}")
                }
                Some((Ok(_) | Err(CompletionError::Truncated(_)), _)) => {}
            }
        }
    }

    /// Kills the malicious rank. All messages between the honest ranks must then arrive.
    fn lift(&mut self) {
        let mut rounds = 0;
        while self
            .streams
            .iter()
            .any(|stream| stream.received < stream.salts.len() || !stream.sends.is_empty())
        {
            rounds += 1;
            assert!(rounds < 20_000, "seed {}: {:?}", self.seed, self.streams);
            for rank in [0, 1] {
                self.receive(rank);
                if rounds % 100 == 0 {
                    self.world.engine(rank).port_mut().port.sweep_all();
                }
                self.turn(rank);
            }
        }
        for rank in [0, 1] {
            self.world.engine(rank).fail(HOSTILE, Failure::Died);
        }
        let before = self.doubtful.len();
        for handle in core::mem::take(&mut self.doubtful) {
            assert!(self.world.test(handle).is_some(), "seed {}: of {before}, {handle:?} hangs", self.seed);
        }
    }
}

/// Returns the number of corrupted words, and the number of forged packets.
fn siege(seed: u64, steps: usize) -> (usize, usize) {
    let mut rng = Rng::new(seed);
    let (cells, fastbox_slots) = (rng.pick(&[4, 8]), rng.pick(&[4, 16]));
    let geometry = WorldShape { peers: 3, cells, cell_bytes: 256, fastbox_slots };
    let readings = [Reading::Never, Reading::Always, Reading::Unreadable(5), Reading::Refused(20)];
    let fabric = Fabric::reading(geometry, rng.pick(&readings), seed);
    let (eager_bytes, window) = (rng.pick(&[64, 256]), rng.pick(&[4, 64]));
    let tuning = Tuning { eager_bytes, window, ..TUNING };
    let room = WorldRoom { requests: 256, units: rng.pick(&[3, 11, 60, 4096]), buckets: 2, tuning };
    let (world, streams) = (World::new(&fabric, room), Default::default());
    let mut siege = EngineSiege { seed, rng, world, streams, doubtful: vec![], corrupts: 0, forged: 0 };
    for _ in 0..steps {
        siege.step();
    }
    siege.lift();
    (siege.corrupts, siege.forged)
}

#[test]
fn honest_ranks_communicate_whatever_the_third_corrupts() {
    let (mut corrupts, mut forged) = (0, 0);
    let seeds = portion(300);
    for seed in 0..seeds {
        let done = siege(seed, 1200);
        (corrupts, forged) = (corrupts + done.0, forged + done.1);
    }
    let each = seeds as usize;
    assert!(corrupts > 300 * each && forged > 3 * each, "{corrupts} corrupts, {forged} packets");
}

proptest! {
    #![proptest_config(cases(24))]

    #[test]
    fn honest_ranks_communicate_for_any_seed(seed: u64) {
        siege(seed, 600);
    }
}
