//! Honest processes exchange messages: every size, many ranks, few cores, under our launcher and under Hydra.

use std::process::Command;

use nemesia_tests::job::{Job, report};
use nemesia_tests::leftovers::Traces;
use nemesia_tests::{quick, say, seed, skip};

const PEER: &str = env!("CARGO_BIN_EXE_peer");
const SCRATCH: &str = env!("CARGO_TARGET_TMPDIR");

fn job(args: &str) -> Job {
    Job::new(PEER, SCRATCH, args)
}

/// The smallest allowed structures: every limit is reached all the time.
fn tiny(job: Job) -> Job {
    job.env("NEMESIA_CELLS", "4").env("NEMESIA_FASTBOX_SLOTS", "4").env("NEMESIA_CELL_BYTES", "256")
}

#[test]
fn two_processes_exchange_every_size_in_every_way() -> Result<(), String> {
    let ranks = job(&format!("exchange {}", seed())).succeed(2)?;
    assert!(ranks.iter().all(|rank| rank.output.contains("sizes in both directions")), "{}", report(&ranks));
    Ok(())
}

#[test]
fn sizes_around_the_limits_of_tiny_structures_arrive() -> Result<(), String> {
    tiny(job(&format!("exchange {}", seed()))).succeed(2).map(drop)
}

#[test]
fn scattered_messages_arrive_on_every_way() -> Result<(), String> {
    let ranks = job(&format!("lists {}", seed())).succeed(2)?;
    assert!(ranks.iter().all(|rank| rank.output.contains("rounds of lists")), "{}", report(&ranks));
    job(&format!("lists {}", seed())).env("NEMESIA_SINGLE_COPY", "off").succeed(2)?;
    job(&format!("lists {}", seed())).env("NEMESIA_FASTBOX_LIMIT", "0").succeed(3)?;
    tiny(job(&format!("lists {}", seed()))).succeed(2).map(drop)
}

#[test]
fn buffers_for_many_messages_hold_them_in_the_order_sent() -> Result<(), String> {
    let many = || job(&format!("many {}", seed()));
    let ranks = many().succeed(3)?;
    assert!(ranks.iter().all(|rank| rank.output.contains("buffers for many")), "{}", report(&ranks));
    many().env("NEMESIA_SINGLE_COPY", "off").env("NEMESIA_REQUESTS", "64").succeed(2)?;
    tiny(many()).succeed(2).map(drop)
}

#[test]
fn three_processes_exchange_without_fastboxes() -> Result<(), String> {
    job(&format!("exchange {}", seed())).env("NEMESIA_FASTBOX_LIMIT", "0").succeed(3).map(drop)
}

#[test]
fn a_process_without_launcher_is_a_world_of_one_and_reaches_itself() -> Result<(), String> {
    let mut command = Command::new(PEER);
    for name in ["PMI_FD", "PMI_RANK", "PMI_SIZE", "PMI_PORT"] {
        command.env_remove(name);
    }
    let output = command.args(["exchange", "1"]).output().map_err(|error| error.to_string())?;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    job("exchange 1").succeed(1).map(drop)
}

#[test]
fn sixteen_processes_on_few_cores_exchange_all_to_all_without_a_stall() -> Result<(), String> {
    let (small, large) = if quick() { (40, 5) } else { (200, 20) };
    job(&format!("all-to-all {small} 8")).succeed(16)?;
    job(&format!("all-to-all {large} 102400")).succeed(16).map(drop)
}

#[test]
fn sixteen_processes_with_tiny_structures_exchange_all_to_all_without_a_stall() -> Result<(), String> {
    // In the short form a message takes ten times the cells that its sender has.
    let (small, large, bytes) = if quick() { (20, 1, 10_240) } else { (100, 2, 102_400) };
    tiny(job(&format!("all-to-all {small} 8"))).succeed(16)?;
    tiny(job(&format!("all-to-all {large} {bytes}"))).succeed(16).map(drop)
}

#[test]
fn a_ring_of_eight_processes_on_few_cores_goes_round() -> Result<(), String> {
    job("ring 1000").succeed(8).map(drop)
}

#[test]
fn waiting_for_two_seconds_costs_almost_no_processor_time() -> Result<(), String> {
    let ranks = job("idle 2000").succeed(2)?;
    let share: f64 = ranks[0].output.trim().parse().map_err(|_| report(&ranks))?;
    say(&format!("waiting: {share} % of a processor"));
    assert!(share < 20.0, "{share} % of a processor");
    Ok(())
}

/// Most likely more processes than cores: none may spin or yield for ever.
#[test]
fn oversubscribed_processes_that_wait_cost_almost_no_processor_time() -> Result<(), String> {
    let ranks = job("idle 2000").succeed(8)?;
    let shares =
        ranks.iter().enumerate().filter(|(rank, _)| *rank != 1).map(|(_, it)| it.output.trim().parse());
    let shares: Vec<f64> = shares.collect::<Result<_, _>>().map_err(|_| report(&ranks))?;
    say(&format!("waiting: {shares:?} % of a processor"));
    assert!(shares.iter().sum::<f64>() < 50.0, "{shares:?} % of a processor");
    Ok(())
}

/// A process that waits for many messages sleeps about once for all of them, not once for each.
#[test]
fn oversubscribed_processes_that_never_spin_sleep_once_for_many_messages() -> Result<(), String> {
    const ROUNDS: u64 = 500;
    let ranks = job(&format!("sleeps {ROUNDS}")).env("NEMESIA_SPIN", "0").succeed(8)?;
    let sleeps = ranks.iter().map(|rank| rank.output.trim().parse());
    let sleeps: Vec<u64> = sleeps.collect::<Result<_, _>>().map_err(|_| report(&ranks))?;
    say(&format!("{ROUNDS} rounds of 7 messages: {sleeps:?} sleeps"));
    let most = 2 * ROUNDS * ranks.len() as u64;
    assert!(sleeps.iter().sum::<u64>() < most, "{sleeps:?} sleeps in {ROUNDS} rounds");
    Ok(())
}

#[test]
fn messages_pass_over_segments_in_dev_shm() -> Result<(), String> {
    let traces = Traces::now();
    job("exchange 3").env("NEMESIA_BACKING", "devshm").succeed(2)?;
    assert_eq!(traces.new_ones(), [""; 0]);
    Ok(())
}

#[test]
fn four_processes_exchange_under_the_real_hydra() -> Result<(), String> {
    const NAME: &str = "four_processes_exchange_under_the_real_hydra";
    let hydra = Command::new("mpiexec.hydra").args(["-n", "4", PEER, "exchange", "5"]).output();
    let output = match hydra {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            skip(NAME, "mpiexec.hydra is not installed (package mpich)");
            return Ok(());
        }
        outcome => outcome.map_err(|error| error.to_string())?,
    };
    let words = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {words}{errors}", output.status);
    assert_eq!(words.matches("sizes in both directions").count(), 4, "{words}{errors}");
    Ok(())
}
