//! A rank is killed under traffic and started again as the same rank, again and again. The others readmit it,
//! and nothing of the former processes is left. Impostors are refused.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use nemesia_tests::content::Random;
use nemesia_tests::job::{Job, Rank, World, report};
use nemesia_tests::leftovers::Traces;
use nemesia_tests::{quick, seed};

const PEER: &str = env!("CARGO_BIN_EXE_peer");
const SCRATCH: &str = env!("CARGO_TARGET_TMPDIR");
const LIMIT: Duration = Duration::from_secs(180);

#[test]
fn a_rank_of_three_comes_back_as_often_as_it_is_killed() -> Result<(), String> {
    kill_again_and_again(3, "")
}

#[test]
fn a_rank_of_four_comes_back_without_memory_reads_and_with_few_cells() -> Result<(), String> {
    kill_again_and_again(4, "NEMESIA_SINGLE_COPY=off NEMESIA_CELLS=8 NEMESIA_FASTBOX_SLOTS=8")
}

/// One test at a time: each checks what its processes leave behind.
static ONE: Mutex<()> = Mutex::new(());

fn kill_again_and_again(size: usize, settings: &str) -> Result<(), String> {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (seed, times) = (seed(), if quick() { 4 } else { 20 });
    let traces = Traces::now();
    let mut random = Random::new(seed);
    let mut job = Job::new(PEER, SCRATCH, &format!("restart {times}")).restart(times);
    for (name, value) in settings.split_whitespace().filter_map(|setting| setting.split_once('=')) {
        job = job.env(name, value);
    }
    let world = job.spawn(size)?;
    for generation in 0..times {
        await_words(&world, 0..size - 1, &format!("generation {generation}:"));
        std::thread::sleep(Duration::from_micros(random.below(20_000)));
        world.signal(size - 1, libc::SIGKILL);
    }
    let ranks = world.wait(LIMIT)?;
    check(&ranks, times).map_err(|error| format!("seed {seed}: {error}\n{}", report(&ranks)))?;
    assert_eq!(traces.new_ones(), [""; 0]);
    Ok(())
}

/// Waits until these ranks have printed these words, with a limit: ranks that are never killed may have failed.
fn await_words(world: &World, ranks: std::ops::Range<usize>, words: &str) {
    let deadline = Instant::now() + LIMIT;
    let said = |rank: usize| world.output(rank).contains(words);
    while !ranks.clone().all(said) && world.signal(0, 0) && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn check(ranks: &[Rank], times: u32) -> Result<(), String> {
    if let Some(rank) = ranks.iter().position(|rank| !rank.kind.is_success()) {
        return Err(format!("rank {rank} has failed"));
    }
    let (mortal, survivors) = ranks.split_last().ok_or("no ranks")?;
    for incarnation in 0..=times {
        if !mortal.output.contains(&format!("open {incarnation}\n")) {
            return Err(format!("there was no incarnation {incarnation}"));
        }
    }
    for (rank, survivor) in survivors.iter().enumerate() {
        let lines = survivor.output.lines().filter_map(|line| line.strip_prefix("generation "));
        let held: Vec<&str> = lines.filter_map(|line| Some(line.split_once(": ")?.1)).collect();
        if held.len() != times as usize + 1 {
            return Err(format!("rank {rank} has met {} processes", held.len()));
        }
        // The first process was met at start.
        if held[1..].iter().any(|held_then| *held_then != held[1]) {
            return Err(format!("rank {rank} holds more and more: {held:?}"));
        }
    }
    Ok(())
}

#[test]
fn a_rank_that_dies_before_its_first_message_comes_back_as_often() -> Result<(), String> {
    // At any point: the process may not even have joined.
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (seed, times) = (seed(), if quick() { 4 } else { 20 });
    let mut random = Random::new(seed);
    let world = Job::new(PEER, SCRATCH, &format!("restart {times}")).restart(times).spawn(3)?;
    await_words(&world, 0..2, "generation 0:");
    let (mut killed, mut kills, deadline) = (None, 0, Instant::now() + LIMIT);
    while kills < times && world.signal(0, 0) && world.signal(1, 0) && Instant::now() < deadline {
        std::thread::sleep(Duration::from_micros(random.below(25_000)));
        let pid = world.pid(2);
        // Each process once: it may not have been reaped yet.
        if pid.is_some() && pid != killed && world.signal(2, libc::SIGKILL) {
            (killed, kills) = (pid, kills + 1);
        }
    }
    let ranks = world.wait(LIMIT)?;
    if ranks.iter().all(|rank| rank.kind.is_success()) {
        return Ok(());
    }
    Err(format!("seed {seed}: killed {kills} times\n{}", report(&ranks)))
}

#[test]
fn two_ranks_of_four_come_back_at_once() -> Result<(), String> {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (seed, times) = (seed(), if quick() { 3 } else { 12 });
    let mut random = Random::new(seed);
    let world = Job::new(PEER, SCRATCH, &format!("restart-two {times}")).restart(2 * times).spawn(4)?;
    for generation in 0..times {
        await_words(&world, 0..4, &format!("generation {generation}:"));
        std::thread::sleep(Duration::from_micros(random.below(20_000)));
        world.signal(2 + generation as usize % 2, libc::SIGKILL);
        world.signal(3 - generation as usize % 2, libc::SIGKILL);
    }
    let ranks = world.wait(LIMIT)?;
    if ranks.iter().all(|rank| rank.kind.is_success()) {
        return Ok(());
    }
    Err(format!("seed {seed}\n{}", report(&ranks)))
}

#[test]
fn an_impostor_that_claims_to_be_a_restart_is_sent_away() -> Result<(), String> {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let world = Job::new(PEER, SCRATCH, "restart-impostor").restart(1).spawn(3)?;
    await_words(&world, 0..1, "refused all");
    // The restarted process waits for this.
    while world.signal(0, 0) || world.signal(2, 0) {
        std::thread::sleep(Duration::from_millis(1));
    }
    world.signal(1, libc::SIGKILL);
    let ranks = world.wait(LIMIT)?;
    if ranks[0].output.contains("refused all") && [0, 2].iter().all(|&rank| ranks[rank].kind.is_success()) {
        return Ok(());
    }
    Err(report(&ranks))
}
