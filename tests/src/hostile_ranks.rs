//! Ranks that know the job's key, take their places in the world, and then use their connections with one rank against
//! the protocol. That rank loses each of them by name, and nothing else.
//!
//! All ranks of such a world are in one process. Rank 0 is the victim. Ranks 0 and 1 are endpoints, which exchange
//! checked messages all the time. Each further rank does one attack. These ranks are no endpoints: one memory port has
//! the connections of all of them, so that each message, write and read is theirs alone.
//!
//! | module | contents |
//! |---|---|
//! | `meeting` | the exchange in which the world meets |
//! | `honest` | ranks 0 and 1, and what rank 0 offers to each attacker |
//! | `attacker` | the connections of the other ranks, by hand |
//! | `attacks` | the list of attacks |
//! | `packets`, `memory`, `rings` | the attacks |

mod attacker;
mod attacks;
mod honest;
mod meeting;
mod memory;
mod packets;
mod rings;

use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use nemesia::regcache::Telling;
use nemesia::{Config, FastPathChoice, RendezvousChoice};

use crate::memory_port::bench::Bench;
use crate::memory_port::{Fabric, Verdict, ensure};
use attacker::{Attacker, Stages, scratch, take_places};
use attacks::{Attack, AttackedWorld};
use honest::{Signals, Victim};
use meeting::HonestMeeting;

/// The payload bytes of the largest packet of these worlds.
const PACKET_BYTES: u32 = 4096;
/// The time after which a wait counts as a hang.
const PATIENCE: Duration = Duration::from_secs(60);
/// The rings of each rank: one for the other honest rank, and one for an attacker.
const RINGS: u32 = 2;
/// The most attacks in a world.
const ATTACKERS: usize = 12;
/// The number of the first rank that is hostile.
const HOSTILE: usize = 2;

/// Runs the attacks, in worlds in which receivers let senders write their large messages, and in worlds in which
/// receivers read them. `config` returns the settings of rank 0 or 1 that lead to the fabric.
///
/// # Errors
/// What a rank has lost, or has not noticed.
pub fn run<F: Fabric>(fabric: impl Fn() -> F, config: impl Fn(usize) -> Config + Sync) -> Verdict {
    in_world(AttackedWorld::Writing, &fabric, &config)?;
    in_world(AttackedWorld::Reading, &fabric, &config)
}

/// Runs the attacks by writes into rings, in worlds that use the fast path.
///
/// # Errors
/// As [`run`].
pub fn run_with_rings<F: Fabric>(fabric: impl Fn() -> F, config: impl Fn(usize) -> Config + Sync) -> Verdict {
    in_world(AttackedWorld::Rings, &fabric, &config)
}

fn in_world<F: Fabric>(
    world: AttackedWorld,
    fabric: &dyn Fn() -> F,
    config: &(dyn Fn(usize) -> Config + Sync),
) -> Verdict {
    let (rendezvous, path) = match world {
        AttackedWorld::Writing => (RendezvousChoice::WriteNotify, FastPathChoice::Off),
        AttackedWorld::Reading => (RendezvousChoice::Read, FastPathChoice::Off),
        AttackedWorld::Rings => (RendezvousChoice::Auto, FastPathChoice::On),
    };
    let settings = |rank| {
        // Only the pages of a message that is under way can be read.
        let it = config(rank).registrations(Telling::Nobody).net_direct_bytes(Some(1));
        let it = it.local(false).connect_on_demand(false).net_packets(Some(PACKET_BYTES)).net_streams(1);
        it.net_rendezvous(rendezvous).net_fast_path(path).net_fast_peers(RINGS)
    };
    let mut bench = Bench::new(fabric());
    bench.open(1)?;
    let attacks = attacks::possible(world, &bench.facts()?, !bench.fabric.ignores_read_rights());
    ensure(!attacks.is_empty(), || format!("{world:?}: NEMESIA_TEST_CHECK names no attack"))?;
    for attacks in attacks.chunks(ATTACKERS) {
        let mut bench = Bench::new(fabric());
        bench.open(1)?;
        meet(&mut bench, &settings, attacks).map_err(|why| format!("{world:?}: {why}"))?;
    }
    Ok(())
}

/// Runs one world, with a hostile rank for each attack.
fn meet<F: Fabric>(
    bench: &mut Bench<F>,
    settings: &(dyn Fn(usize) -> Config + Sync),
    attacks: &[Attack<F>],
) -> Verdict {
    let meeting = HonestMeeting::new(HOSTILE + attacks.len());
    let traps: Vec<_> = attacks.iter().map(|attack| attack.trap).collect();
    thread::scope(|scope| {
        let (to_victim, from_attacker) = channel();
        let (to_attacker, from_victim) = channel();
        let victim = scope.spawn(|| {
            let signals = Signals { told: from_attacker, tells: to_attacker };
            Victim::open(&settings(0), meeting.exchange(0), signals)?.fall_for_all(&traps)
        });
        let bystander =
            scope.spawn(|| honest::stand_by(&settings(1), meeting.exchange(1), traps.len() as u64));
        let stages = Stages { told: from_victim, tells: to_victim };
        let attacked = attack_all(bench, meeting, attacks, &stages);
        // A rank that waits for an attacker learns that it has ended.
        drop(stages);
        while !(victim.is_finished() && bystander.is_finished()) {
            bench.turn();
            thread::sleep(Duration::from_millis(1));
        }
        let died = |_| Err("it has panicked".to_owned());
        let ends = [
            ("rank 0", victim.join().unwrap_or_else(died)),
            ("rank 1", bystander.join().unwrap_or_else(died)),
            ("hostile ranks", attacked),
        ];
        let whys = ends.into_iter().filter_map(|(who, end)| Some(format!("{who}: {}", end.err()?)));
        let whys: Vec<String> = whys.collect();
        if whys.is_empty() { Ok(()) } else { Err(whys.join("\n")) }
    })
}

/// Takes the places of all hostile ranks, and lets each attack in turn.
fn attack_all<F: Fabric>(
    bench: &mut Bench<F>,
    meeting: &HonestMeeting,
    attacks: &[Attack<F>],
    stages: &Stages,
) -> Verdict {
    let scratch = scratch(bench)?;
    let lines = take_places(bench, meeting, attacks.len())?;
    for (rank, (attack, line)) in (HOSTILE..).zip(attacks.iter().zip(lines)) {
        let attacker = Attacker::prepare_for(rank, (&mut *bench, &scratch), line, stages);
        let attacked = attacker.and_then(|mut attacker| (attack.act)(&mut attacker));
        attacked.map_err(|why| format!("{}: {why}", attack.trap.name))?;
    }
    let mut end = None;
    bench.until("rank 0 has lost all attackers", |_| {
        end = stages.word();
        end.is_some()
    })?;
    end.unwrap_or(Ok(0)).map(drop)
}
