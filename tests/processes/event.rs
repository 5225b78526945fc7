//! Processes that wait in event loops.

use std::path::PathBuf;
use std::process::Command;

use nemesia_tests::job::{Job, report};

const SCRATCH: &str = env!("CARGO_TARGET_TMPDIR");

/// Builds an example of the package `nemesia`.
fn example(name: &str) -> Result<PathBuf, String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    // A target directory of its own: the build of these tests may hold the other one.
    let target = PathBuf::from(SCRATCH).with_file_name("examples");
    let mut build = Command::new(cargo);
    build.args(["build", "--quiet", "--package", "nemesia", "--example", name, "--target-dir"]).arg(&target);
    let output = build.output().map_err(|error| error.to_string())?;
    if output.status.success() {
        return Ok(target.join("debug/examples").join(name));
    }
    Err(format!("{build:?}: {}", String::from_utf8_lossy(&output.stderr)))
}

#[test]
fn two_processes_converse_in_event_loops_of_tokio() -> Result<(), String> {
    let ranks = Job::new(example("tokio")?, SCRATCH, "").succeed(2)?;
    for (rank, words) in ranks.iter().enumerate() {
        let turns = words.output.strip_prefix(&format!("rank {rank}: 200 after 200 trips, "));
        let turns = turns.and_then(|rest| rest.split(' ').next()?.parse::<u64>().ok());
        // Rank 1 waits for more than 100 ms in all before it answers. The other tasks run meanwhile.
        assert!(turns.is_some_and(|turns| turns >= 10), "{}", report(&ranks));
    }
    Ok(())
}
