//! Processes that corrupt all memory they can write: the others neither crash nor hang, nor accept wrong
//! messages.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use nemesia_tests::content::Random;
use nemesia_tests::job::{Job, report};
use nemesia_tests::{quick, say, seed};

const PEER: &str = env!("CARGO_BIN_EXE_peer");
const SCRATCH: &str = env!("CARGO_TARGET_TMPDIR");
/// The limit for one pair, which takes about 50 ms on an idle machine.
const LIMIT: Duration = Duration::from_secs(120);

/// Geometries in which structures lie close together, and far apart.
const GEOMETRIES: [[&str; 3]; 4] =
    [["64", "32768", "64"], ["4", "256", "4"], ["16", "1024", "16"], ["8", "4096", "64"]];

fn job(args: &str, random: &mut Random) -> Job {
    let [cells, bytes, slots] = random.pick(&GEOMETRIES);
    Job::new(PEER, SCRATCH, args)
        .env("NEMESIA_CELLS", cells)
        .env("NEMESIA_CELL_BYTES", bytes)
        .env("NEMESIA_FASTBOX_SLOTS", slots)
}

#[test]
fn a_process_survives_a_peer_that_corrupts_all_shared_memory() -> Result<(), String> {
    // The short form has each pattern with each geometry about twice.
    let runs = if quick() { 56 } else { 1000 };
    let (seed, start) = (seed(), Instant::now());
    let next = Mutex::new(0..runs);
    let worker = || -> Result<(), String> {
        loop {
            let run = next.lock().map_err(|error| error.to_string())?.next();
            let Some(run) = run else { return Ok(()) };
            let number = seed % (1 << 40) + run;
            let ranks = job(&format!("corrupt {number}"), &mut Random::new(number)).spawn(2)?.wait(LIMIT);
            let ranks = ranks.map_err(|error| format!("NEMESIA_TEST_SEED={number}: {error}"))?;
            if !ranks[0].kind.is_success() {
                return Err(format!("NEMESIA_TEST_SEED={number}:\n{}", report(&ranks)));
            }
            if !ranks[1].kind.is_success() {
                say(&format!("the corrupting process itself, seed {number}:\n{}", report(&ranks[1..])));
            }
        }
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..2).map(|_| scope.spawn(worker)).collect();
        workers.into_iter().try_for_each(|worker| worker.join().map_err(|_| "panicked".to_owned())?)
    })?;
    say(&format!("{runs} corrupted worlds in {:?}", start.elapsed()));
    Ok(())
}

#[test]
fn two_processes_exchange_in_order_while_a_third_corrupts_all_it_can_write() -> Result<(), String> {
    let (seed, start) = (seed(), Instant::now());
    for run in 0..if quick() { 4 } else { 12 } {
        let number = seed % (1 << 40) + run;
        let ranks = job(&format!("bystander {number} 1000"), &mut Random::new(number)).run(3);
        let ranks = ranks.map_err(|error| format!("NEMESIA_TEST_SEED={number}: {error}"))?;
        let fine = ranks[..2].iter().all(|rank| rank.kind.is_success());
        assert!(fine, "NEMESIA_TEST_SEED={number}:\n{}", report(&ranks));
    }
    say(&format!("bystanders in {:?}", start.elapsed()));
    Ok(())
}

#[test]
fn no_peer_can_write_our_own_segment_or_change_the_size_of_any() -> Result<(), String> {
    Job::new(PEER, SCRATCH, "doors").succeed(2).map(drop)
}

#[test]
fn deadlines_and_deaths_are_seen_while_a_peer_never_stops_sending() -> Result<(), String> {
    // As on a machine with a core for each process: no process sleeps while a message may arrive.
    let job = Job::new(PEER, SCRATCH, "flood").env("NEMESIA_SPIN", "1000000");
    let ranks = job.spawn(3)?.wait(LIMIT)?;
    assert!(ranks[..2].iter().all(|rank| rank.kind.is_success()), "{}", report(&ranks));
    Ok(())
}
