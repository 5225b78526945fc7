//! The ways in which a process leaves its world, and what the remaining processes observe.

use nemesia::bootstrap::ExitKind;
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

/// Rank 1 dies while a child of it lives, which has copies of its descriptors unless a handler of `fork` took them.
fn a_death_is_noticed(by_pipe: bool, raw: bool, settings: &[(&str, &str)]) -> Result<(), String> {
    let job = job(&format!("outlived {} {}", u8::from(by_pipe), u8::from(raw)));
    let ranks = settings.iter().fold(job, |job, (name, value)| job.env(name, value)).run(2)?;
    assert_eq!(ranks[1].kind, ExitKind::Signaled(libc::SIGKILL), "{}", report(&ranks));
    assert!(ranks[0].kind.is_success(), "{settings:?}\n{}", report(&ranks));
    Ok(())
}

const OVER_TCP: [(&str, &str); 2] = [("NEMESIA_LOCAL", "off"), ("NEMESIA_NET", "tcp")];

#[test]
fn a_death_is_noticed_over_tcp_while_a_child_lives() -> Result<(), String> {
    a_death_is_noticed(false, false, &OVER_TCP)?;
    a_death_is_noticed(true, false, &OVER_TCP)
}

#[test]
fn a_death_is_noticed_inside_a_machine_while_a_child_lives() -> Result<(), String> {
    for raw in [false, true] {
        a_death_is_noticed(false, raw, &[])?;
        a_death_is_noticed(true, raw, &[])?;
        a_death_is_noticed(true, raw, &[("NEMESIA_CHANNEL_DESIGN", "piggyback")])?;
    }
    Ok(())
}
