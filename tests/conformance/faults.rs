//! Faults of a port that the suite must find: a suite that finds none would prove nothing.

use std::os::unix::net::UnixStream;

use nemesia_core::counters::TrafficCounters;
use nemesia_core::engine::Tuning;
use nemesia_core::port::{Arrival, PacketPieces, PacketPort, PacketsOnly, PeerFault, PeerId, Polled};
use nemesia_core::wire::{Envelope, Kind};
use nemesia_tests::conformance::RunPlan;
use nemesia_tests::conformance::actor::Abilities;
use nemesia_tests::conformance::cases::{CaseFacts, run_cases, script_of};
use nemesia_tests::conformance::engine::{EngineActor, Registry};
use nemesia_tests::conformance::world::{Stage, play};
use nemesia_tests::content::Random;
use nemesia_tests::memory_port::Verdict;

use crate::pipe::PipePort;

/// A violation of the promises of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PortMistake {
    /// None: the suite must pass.
    Nothing,
    /// A packet is lost.
    Loses,
    /// A packet arrives twice.
    Repeats,
    /// A packet of a message overtakes the one before.
    Overtakes,
    /// A byte of a message arrives changed.
    Corrupts,
    /// The tag of a message arrives changed.
    Retags,
    /// Less credit arrives than was granted.
    Holds,
}

/// A pipe with a mistake.
#[derive(Debug)]
struct FaultyPort {
    port: PipePort,
    mistake: PortMistake,
    random: Random,
    /// A packet that is held back until the next one was sent.
    late: Option<(Envelope, Vec<u8>)>,
}

impl FaultyPort {
    fn slips(&mut self, mistake: PortMistake) -> bool {
        self.mistake == mistake && self.random.below(50) == 0
    }
}

impl PacketPort for FaultyPort {
    type Token = ();

    fn packet_bytes(&self) -> usize {
        self.port.packet_bytes()
    }

    fn eager_bytes(&self, peer: PeerId) -> usize {
        self.port.eager_bytes(peer)
    }

    fn unasked_bytes(&self, peer: PeerId) -> usize {
        self.port.unasked_bytes(peer)
    }

    fn gathers(&self, peer: PeerId, len: usize) -> bool {
        self.port.gathers(peer, len)
    }

    fn set_batch(&mut self, peer: PeerId, is_batch: bool) {
        self.port.set_batch(peer, is_batch);
    }

    fn send(
        &mut self,
        peer: PeerId,
        envelope: &Envelope,
        mut pieces: PacketPieces<'_>,
    ) -> Result<bool, PeerFault> {
        let (mut envelope, mut bytes) = (*envelope, vec![0; pieces.len()]);
        pieces.copy_to(&mut bytes);
        let is_message = matches!(envelope.kind, Kind::Eager | Kind::Data) && !bytes.is_empty();
        if is_message && self.late.is_none() && self.slips(PortMistake::Overtakes) {
            self.late = Some((envelope, bytes));
            return Ok(true);
        }
        if self.slips(PortMistake::Loses) {
            return Ok(true);
        }
        if is_message && self.slips(PortMistake::Corrupts) {
            let at = self.random.below(bytes.len() as u64) as usize;
            bytes[at] ^= 16;
        }
        if is_message && self.slips(PortMistake::Retags) {
            envelope.tag ^= 1;
        }
        let mut sent = self.port.send(peer, &envelope, PacketPieces::Whole(&bytes))?;
        if sent && self.slips(PortMistake::Repeats) {
            sent = self.port.send(peer, &envelope, PacketPieces::Whole(&bytes))?;
        }
        if sent && let Some((envelope, bytes)) = self.late.take() {
            self.port.send(peer, &envelope, PacketPieces::Whole(&bytes))?;
        }
        Ok(sent)
    }

    fn poll(&mut self) -> Polled<()> {
        self.port.poll()
    }

    fn poll_peer(&mut self, peer: PeerId) -> Polled<()> {
        self.port.poll_peer(peer)
    }

    fn read(&self, arrival: &Arrival<()>, at: usize, to: &mut [u8]) -> bool {
        self.port.read(arrival, at, to)
    }

    fn release(&mut self, arrival: Arrival<()>) {
        self.port.release(arrival);
    }

    fn grant(&mut self, peer: PeerId, units: u64) {
        self.port.grant(peer, units);
    }

    fn granted(&self, peer: PeerId) -> u64 {
        let units = self.port.granted(peer);
        if self.mistake == PortMistake::Holds { units.min(500) } else { units }
    }

    fn traffic(&self, peer: PeerId) -> TrafficCounters {
        self.port.traffic(peer)
    }

    fn close(&mut self, peer: PeerId) {
        self.port.close(peer);
    }
}

/// A world that may not take for ever.
struct Limited;

impl<A> Stage<A> for Limited {
    fn most_turns(&self) -> Option<u64> {
        Some(100_000)
    }
}

const ABILITIES: Abilities = Abilities { deaths: false, endings: false, restarts: false };

fn run(case: CaseFacts, seed: u64, mistake: PortMistake) -> Verdict {
    let text = |error: std::io::Error| error.to_string();
    let (one, other) = UnixStream::pair().map_err(text)?;
    let registry = Registry::new(2, ABILITIES, false);
    let mut actors = Vec::new();
    for (rank, stream) in [(0, one), (1, other)] {
        let port = PipePort::new(1 - rank, stream).map_err(text)?;
        let random = Random::new(seed ^ u64::from(rank) << 32);
        let port = PacketsOnly(FaultyPort { port, mistake, random, late: None });
        actors.push(EngineActor::new(rank, (port, ()), Tuning::default(), &registry)?);
    }
    play(&script_of(case.name)?, RunPlan { seed, steps: 500 }, actors, &registry, &mut Limited)
}

#[test]
fn every_mistake_of_a_port_is_found() {
    for mistake in [
        PortMistake::Loses,
        PortMistake::Repeats,
        PortMistake::Overtakes,
        PortMistake::Corrupts,
        PortMistake::Retags,
        PortMistake::Holds,
    ] {
        let mut verdict = Ok(());
        // One case that fails is enough.
        let found = run_cases("faults", ABILITIES, 2, |case| {
            if verdict.is_ok() {
                verdict = run(case, 1, mistake);
            }
            verdict.clone()
        });
        assert!(found.is_err(), "{mistake:?} is not found");
    }
    let found = run_cases("no fault", ABILITIES, 2, |case| run(case, 1, PortMistake::Nothing));
    assert_eq!(found, Ok(()));
}
