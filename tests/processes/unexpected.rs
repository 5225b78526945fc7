//! Messages that nobody receives: their memory, their ceiling, and the errors at it; receives from any source that
//! outlive the other ranks. In shared memory and over TCP.

use nemesia_tests::job::{DEADLINE, Job, report};

const PEER: &str = env!("CARGO_BIN_EXE_peer");
const SCRATCH: &str = env!("CARGO_TARGET_TMPDIR");

/// Returns the job in shared memory, and over TCP.
fn jobs(how: u32) -> [Job; 2] {
    let job = || Job::new(PEER, SCRATCH, &format!("unexpected {how}"));
    [job(), job().env("NEMESIA_LOCAL", "off").env("NEMESIA_NET", "tcp")]
}

#[test]
fn a_ceiling_grows_for_a_receiver_that_tests_for_the_last_message() -> Result<(), String> {
    for job in jobs(0) {
        // From 64 KiB on, in steps of 1 MiB.
        let job = job.env("NEMESIA_UNEXPECTED_BYTES", "65536").env("NEMESIA_UNEXPECTED_LIMIT", "8388608");
        job.succeed(2)?;
    }
    // Below the default ceiling nothing has to grow, and memory is committed all the same.
    jobs(0).iter().try_for_each(|job| job.succeed(2).map(drop))
}

#[test]
fn a_receive_at_the_ceiling_ends_with_an_error_and_nothing_is_lost() -> Result<(), String> {
    for job in jobs(1) {
        let ranks = job.env("NEMESIA_UNEXPECTED_BYTES", "262144").succeed(2)?;
        assert!(ranks[0].output.contains("raise NEMESIA_UNEXPECTED_BYTES"), "{}", report(&ranks));
    }
    Ok(())
}

#[test]
fn a_sender_ends_with_a_receiver_that_gives_up_at_the_ceiling() -> Result<(), String> {
    for job in jobs(2) {
        let ranks = job.env("NEMESIA_UNEXPECTED_BYTES", "65536").succeed(2)?;
        assert!(
            ranks[0].output.contains("full: ") && ranks[1].output.contains("given up"),
            "{}",
            report(&ranks)
        );
    }
    Ok(())
}

#[test]
fn the_close_of_a_sender_names_the_receiver_that_has_no_room() -> Result<(), String> {
    // Both wait at the same time until the limit of the close, within which they must also have started.
    let job = |job: Job| job.env("NEMESIA_UNEXPECTED_BYTES", "65536").env("NEMESIA_TIMEOUT", "30");
    for world in jobs(3).map(|it| job(it).spawn(2)) {
        let ranks = world?.wait(DEADLINE)?;
        assert!(ranks.iter().all(|rank| rank.kind.is_success()), "{}", report(&ranks));
        assert!(ranks[1].output.contains("held: messages to rank 0"), "{}", report(&ranks));
    }
    Ok(())
}

#[test]
fn a_receive_from_any_source_outlives_all_other_ranks_if_that_is_set() -> Result<(), String> {
    for job in jobs(4) {
        job.env("NEMESIA_ANY_SOURCE", "outlive").succeed(3)?;
    }
    // Without the setting it ends with the rank that leaves early.
    for job in jobs(4) {
        let ranks = job.run(3)?;
        assert!(ranks[0].errors.contains("rank 1 is gone"), "{}", report(&ranks));
    }
    Ok(())
}
