//! A rank is killed under traffic and started again as the same rank, again and again. The others readmit it,
//! and nothing of the former processes is left. Impostors are refused. All of that in shared memory, over TCP, and
//! with some peers here and some there.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use nemesia_tests::content::Random;
use nemesia_tests::job::{Job, Rank, World, report};
use nemesia_tests::leftovers::Traces;
use nemesia_tests::{quick, seed};

const PEER: &str = env!("CARGO_BIN_EXE_peer");
const SCRATCH: &str = env!("CARGO_TARGET_TMPDIR");
const LIMIT: Duration = Duration::from_secs(180);

/// How the ranks of a world reach each other.
#[derive(Clone, Copy, Debug)]
enum Reach {
    SharedMemory,
    Tcp,
    /// Rank 0 is reached over TCP, and the others share memory.
    Both,
}

impl Reach {
    fn job(self, args: &str, restarts: u32) -> Job {
        let job = Job::new(PEER, SCRATCH, args).restart(restarts);
        match self {
            Self::SharedMemory => job,
            Self::Tcp => job.env("NEMESIA_LOCAL", "off").env("NEMESIA_NET", "tcp"),
            Self::Both => {
                job.env("NEMESIA_NET", "tcp").before("[ $PMI_RANK = 0 ] && export NEMESIA_LOCAL=off")
            }
        }
    }
}

#[test]
fn a_rank_of_three_comes_back_as_often_as_it_is_killed() -> Result<(), String> {
    kill_again_and_again(3, Reach::SharedMemory, "")
}

#[test]
fn a_rank_of_four_comes_back_without_memory_reads_and_with_few_cells() -> Result<(), String> {
    let settings = "NEMESIA_SINGLE_COPY=off NEMESIA_CELLS=8 NEMESIA_FASTBOX_SLOTS=8";
    kill_again_and_again(4, Reach::SharedMemory, settings)
}

#[test]
fn a_rank_of_three_comes_back_over_tcp_as_often_as_it_is_killed() -> Result<(), String> {
    kill_again_and_again(3, Reach::Tcp, "")
}

#[test]
fn a_rank_of_three_comes_back_over_tcp_with_the_smallest_packets_and_fewest_receives() -> Result<(), String> {
    let settings = "NEMESIA_NET_PACKET_BYTES=256 NEMESIA_NET_RECEIVES=3";
    kill_again_and_again(3, Reach::Tcp, settings)
}

#[test]
fn a_rank_of_four_with_local_and_remote_peers_comes_back_as_often_as_it_is_killed() -> Result<(), String> {
    kill_again_and_again(4, Reach::Both, "")
}

/// One test at a time: each checks what its processes leave behind.
static ONE: Mutex<()> = Mutex::new(());

fn kill_again_and_again(size: usize, reach: Reach, settings: &str) -> Result<(), String> {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (seed, times) = (seed(), if quick() { 4 } else { 20 });
    let traces = Traces::now();
    let mut random = Random::new(seed);
    let mut job = reach.job(&format!("restart {times}"), times);
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
    kill_at_any_point(Reach::SharedMemory)
}

#[test]
fn a_rank_that_dies_before_its_first_message_over_tcp_comes_back_as_often() -> Result<(), String> {
    kill_at_any_point(Reach::Tcp)?;
    kill_at_any_point(Reach::Both)
}

fn kill_at_any_point(reach: Reach) -> Result<(), String> {
    // At any point: the process may not even have joined.
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (seed, times) = (seed(), if quick() { 4 } else { 20 });
    let mut random = Random::new(seed);
    let world = reach.job(&format!("restart {times}"), times).spawn(3)?;
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
    Err(format!("{reach:?}, seed {seed}: killed {kills} times\n{}", report(&ranks)))
}

#[test]
fn two_ranks_of_four_come_back_at_once() -> Result<(), String> {
    kill_two(Reach::SharedMemory)
}

#[test]
fn two_ranks_of_four_come_back_at_once_over_tcp() -> Result<(), String> {
    kill_two(Reach::Tcp)?;
    kill_two(Reach::Both)
}

fn kill_two(reach: Reach) -> Result<(), String> {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (seed, times) = (seed(), if quick() { 3 } else { 12 });
    let mut random = Random::new(seed);
    let world = reach.job(&format!("restart-two {times}"), 2 * times).spawn(4)?;
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
    Err(format!("{reach:?}, seed {seed}\n{}", report(&ranks)))
}

#[test]
fn an_impostor_that_claims_to_be_a_restart_is_sent_away() -> Result<(), String> {
    send_away(Reach::SharedMemory, "restart-impostor")
}

#[test]
fn an_impostor_that_claims_to_be_a_restart_over_tcp_is_sent_away() -> Result<(), String> {
    send_away(Reach::Tcp, "restart-impostor-net")
}

fn send_away(reach: Reach, mode: &str) -> Result<(), String> {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let job = reach.job(mode, 1);
    // The impostor listens at the loopback interface, and must know the size of a packet.
    let world =
        job.env("NEMESIA_NET_PACKET_BYTES", "4096").env("NEMESIA_NET_ADDRESS", "127.0.0.1").spawn(3)?;
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
