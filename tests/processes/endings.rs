//! The ways in which a process leaves its world, and what the remaining processes observe.

use nemesia_tests::job::{Job, report};

const PEER: &str = env!("CARGO_BIN_EXE_peer");
const SCRATCH: &str = env!("CARGO_TARGET_TMPDIR");

fn job(args: &str) -> Job {
    Job::new(PEER, SCRATCH, args)
}

#[test]
fn a_forked_child_finds_the_endpoint_dead_and_the_parents_world_notices_nothing() -> Result<(), String> {
    job("fork 0").succeed(2).map(drop)
}

#[test]
fn a_forked_child_finds_an_endpoint_of_threads_dead_whatever_they_do() -> Result<(), String> {
    job("fork 1").succeed(2).map(drop)
}

#[test]
fn a_program_that_panics_or_returns_early_has_failed_and_one_that_closes_has_not() -> Result<(), String> {
    for (how, said) in [
        (0, "dropped its endpoint without closing it"),
        (1, "dropped its endpoint without closing it"),
        (2, "closed"),
    ] {
        let ranks = job(&format!("leaves {how}")).succeed(3)?;
        let reported =
            ranks[1..].iter().all(|rank| rank.output.contains("rank 0") && rank.output.contains(said));
        assert!(reported, "{said:?} wanted:\n{}", report(&ranks));
    }
    Ok(())
}

#[test]
fn a_flush_after_the_owner_has_closed_reports_executed_operations_as_done() -> Result<(), String> {
    for own in [0, 1] {
        for _ in 0..5 {
            job(&format!("flush {own}")).succeed(2)?;
        }
    }
    Ok(())
}
