//! The library prints the requested output and nothing else.

use nemesia_tests::job::{Job, Rank};

const PEER: &str = env!("CARGO_BIN_EXE_peer");
const SCRATCH: &str = env!("CARGO_TARGET_TMPDIR");

fn ring() -> Job {
    Job::new(PEER, SCRATCH, "ring 3")
}

/// What a rank says that waits for others when its world opens.
const WAITING: &str = ": waiting for rank";

/// Returns the lines that a rank wrote on its standard error output, without those about a start that takes long.
fn lines(rank: &Rank) -> Vec<&str> {
    rank.errors.lines().filter(|line| !line.contains(WAITING)).collect()
}

#[test]
fn unasked_the_library_prints_nothing() -> Result<(), String> {
    let ranks = ring().env("NEMESIA_TYPO", "1").succeed(2)?;
    assert!(ranks.iter().all(|rank| rank.errors.is_empty()), "{ranks:?}");
    Ok(())
}

#[test]
fn how_peers_are_reached_is_printed_at_start_one_line_for_those_alike() -> Result<(), String> {
    let ranks = ring().env("NEMESIA_EXPLAIN", "1").env("NEMESIA_TYPO", "1").succeed(3)?;
    let lines = lines(&ranks[1]);
    assert_eq!(lines.len(), 3, "{lines:?}");
    assert!(lines[0].starts_with("nemesia: rank 1 of 3: ranks 0, 2 over shm; fastbox: "), "{}", lines[0]);
    assert!(lines[0].contains("; not tcp: ") && lines[0].contains("; not verbs: "), "{}", lines[0]);
    assert!(lines[1].starts_with("nemesia: rank 1 of 3: rank 1 over self; not shm: "), "{}", lines[1]);
    assert!(lines[2].contains(": warning: there is no variable NEMESIA_TYPO: "), "{}", lines[2]);
    Ok(())
}

#[test]
fn ranks_that_wait_for_another_one_at_the_start_say_so() -> Result<(), String> {
    for local in ["on", "off"] {
        let world = Job::new(PEER, SCRATCH, "slow 6").env("NEMESIA_LOCAL", local);
        let ranks = world.env("NEMESIA_EXPLAIN", "1").succeed(3)?;
        for rank in &ranks[..2] {
            assert!(rank.errors.contains(WAITING), "{}", rank.errors);
        }
    }
    Ok(())
}
