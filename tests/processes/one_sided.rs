//! Processes that use each other's memory, and call each other's handlers.

use std::time::{Duration, Instant};

use nemesia_tests::job::{Job, report};
use nemesia_tests::kills::one_of_two_is_killed;
use nemesia_tests::{quick, say, seed, skip};

const PEER: &str = env!("CARGO_BIN_EXE_peer");
const SCRATCH: &str = env!("CARGO_TARGET_TMPDIR");

fn job(args: &str) -> Job {
    Job::new(PEER, SCRATCH, &format!("{args} {}", seed()))
}

/// The smallest allowed structures: every limit is reached all the time.
fn tiny(job: Job) -> Job {
    job.env("NEMESIA_CELLS", "4").env("NEMESIA_FASTBOX_SLOTS", "4").env("NEMESIA_CELL_BYTES", "256")
}

fn one_sided(own: u32) -> Job {
    Job::new(PEER, SCRATCH, &format!("one-sided {} {own}", seed()))
}

#[test]
fn processes_use_each_others_memory_in_packets_in_every_way() -> Result<(), String> {
    for size in [1, 2, 4] {
        let ranks = one_sided(1).succeed(size)?;
        assert!(ranks.iter().all(|rank| rank.output.contains("one-sided operations")), "{}", report(&ranks));
    }
    Ok(())
}

#[test]
fn processes_use_allocated_memory_of_each_other_directly() -> Result<(), String> {
    const NAME: &str = "processes_use_allocated_memory_of_each_other_directly";
    for (size, backing) in [(1, "memfd"), (2, "memfd"), (4, "memfd"), (2, "devshm")] {
        let ranks = one_sided(0).env("NEMESIA_BACKING", backing).succeed(size)?;
        if let Some(why) =
            ranks.iter().find_map(|rank| rank.output.lines().find(|line| line.starts_with("packets")))
        {
            skip(NAME, &format!("regions are not mapped here, all went in {why}"));
        }
    }
    Ok(())
}

#[test]
fn processes_use_each_others_memory_through_tiny_structures() -> Result<(), String> {
    for own in [0, 1] {
        tiny(one_sided(own)).succeed(3)?;
        one_sided(own).env("NEMESIA_FASTBOX_LIMIT", "0").succeed(2)?;
    }
    Ok(())
}

#[test]
fn floods_of_active_messages_are_handled_in_order_and_answered() -> Result<(), String> {
    for size in [1, 2, 4] {
        job("active").succeed(size)?;
    }
    tiny(job("active")).succeed(3).map(drop)
}

#[test]
fn a_stopped_process_that_has_asked_much_keeps_no_other_from_being_answered() -> Result<(), String> {
    let limit = Duration::from_secs(100);
    let world = Job::new(PEER, SCRATCH, "replies").spawn(3)?;
    let deadline = Instant::now() + limit;
    while !world.output(0).contains("rank 1 takes no replies") && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(1));
    }
    world.signal(1, libc::SIGSTOP);
    while !world.output(2).contains("all is answered") && world.signal(2, 0) && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(1));
    }
    world.signal(1, libc::SIGKILL);
    let ranks = world.wait(limit)?;
    assert!([0, 2].iter().all(|rank| ranks[*rank].kind.is_success()), "{}", report(&ranks));
    assert!(ranks[2].output.contains("all is answered"), "{}", report(&ranks));
    Ok(())
}

#[test]
fn a_killed_process_ends_what_others_do_with_its_memory() -> Result<(), String> {
    let count = if quick() { 10 } else { 60 };
    one_of_two_is_killed(count, |number| Job::new(PEER, SCRATCH, &format!("one-sided-crash {number}")))?;
    say(&format!("{count} processes were killed while others used their memory"));
    Ok(())
}
