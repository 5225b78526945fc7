//! Processes that are killed while they agree on the survivors: all processes that decide reach the same
//! decision, and continue without the dead ones.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use nemesia_tests::content::Random;
use nemesia_tests::job::{Job, Rank, report};
use nemesia_tests::leftovers::Traces;
use nemesia_tests::{quick, say, seed};

const PEER: &str = env!("CARGO_BIN_EXE_peer");
const SCRATCH: &str = env!("CARGO_TARGET_TMPDIR");
const LIMIT: Duration = Duration::from_secs(60);

#[test]
fn survivors_of_random_deaths_agree_on_their_group() -> Result<(), String> {
    let (seed, traces) = (seed(), Traces::now());
    let mut random = Random::new(seed);
    let (mut deaths, mut rounds) = (0, 0);
    for world in 0..if quick() { 6 } else { 60 } {
        let size = 2 + random.below(5) as usize;
        let victims = random.below(size as u64) as usize;
        rounds +=
            kill(&mut random, size, victims).map_err(|error| format!("seed {seed}, {world}: {error}"))?;
        deaths += victims;
    }
    say(&format!("{deaths} deaths in {rounds} agreements"));
    assert_eq!(traces.new_ones(), [""; 0]);
    Ok(())
}

/// Kills `victims` ranks of a world, and compares the decisions of all ranks. Returns the rounds.
fn kill(random: &mut Random, size: usize, victims: usize) -> Result<usize, String> {
    let world = Job::new(PEER, SCRATCH, &format!("shrink {victims}")).spawn(size)?;
    let deadline = Instant::now() + LIMIT;
    while !(0..size).all(|rank| world.output(rank).contains("open")) && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(1));
    }
    let mut living: Vec<usize> = (0..size).collect();
    for _ in 0..victims {
        // Often two at once, and most often the coordinator.
        std::thread::sleep(Duration::from_micros(random.below(2) * random.below(20_000)));
        let at = random.below(2) * random.below(living.len() as u64);
        world.signal(living.remove(at as usize), libc::SIGKILL);
    }
    let ranks = world.wait(LIMIT)?;
    let decided = compare(&ranks).map_err(|error| format!("{error}\n{}", report(&ranks)))?;
    let survivors = format!("{living:?}");
    for rank in &living {
        let end = &ranks[*rank];
        if !end.kind.is_success() || decided.get("survivors") != Some(&survivors.as_str()) {
            return Err(format!("rank {rank}: {decided:?}\n{}", report(&ranks)));
        }
    }
    Ok(decided.len() - 1)
}

/// Returns the decision of each round, including those of ranks that died later.
fn compare(ranks: &[Rank]) -> Result<BTreeMap<&str, &str>, String> {
    let mut decided = BTreeMap::new();
    for rank in ranks {
        // The last line of a dead rank may be incomplete.
        let whole = rank.output.rfind('\n').map_or("", |end| &rank.output[..end]);
        for (round, decision) in whole.lines().filter_map(|line| line.split_once(": ")) {
            if *decided.entry(round).or_insert(decision) != decision {
                return Err(format!("{round}: {decision} and {}", decided[round]));
            }
        }
    }
    Ok(decided)
}
