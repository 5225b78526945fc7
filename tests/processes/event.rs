//! Processes that wait in event loops, and the small runtime that embeds the library.

use std::path::PathBuf;
use std::process::Command;

use nemesia_tests::built;
use nemesia_tests::job::{Job, report};

const SCRATCH: &str = env!("CARGO_TARGET_TMPDIR");

/// Returns the path of an example of the package `nemesia`.
fn example(name: &str) -> Result<PathBuf, String> {
    built::workspace().map(|directory| directory.join("examples").join(name))
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

/// Runs the small runtime of `sys/examples/runtime.rs` in a directory of its own, in which it must leave nothing.
fn small_runtime(mut command: Command, size: usize, name: &str) -> Result<(), String> {
    let directory = PathBuf::from(SCRATCH).join(format!("runtime-rust-{name}"));
    let shown = |error: std::io::Error| format!("{}: {error}", directory.display());
    // What a run that failed has left there.
    let _ = std::fs::remove_dir_all(&directory);
    std::fs::create_dir_all(&directory).map_err(shown)?;
    let output = command.arg(size.to_string()).current_dir(&directory).env("NEMESIA_CONFIG", "").output();
    let output = output.map_err(|error| format!("{command:?}: {error}"))?;
    let (text, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{}\n{text}{errors}", output.status);
    let mut said: Vec<&str> = text.lines().collect();
    said.sort_unstable();
    // Each survivor has the words of the other survivors, which are their ranks and one, and has lost the last rank.
    let sum = |rank: usize| size * (size - 1) / 2 - rank - 1;
    let mut expected: Vec<String> =
        (0..size - 1).map(|rank| format!("rank {rank}: sum {}, lost 1", sum(rank))).collect();
    expected.sort_unstable();
    assert_eq!(said, expected, "{errors}");
    assert_eq!(std::fs::read_dir(&directory).map_err(shown)?.count(), 0);
    Ok(())
}

#[test]
fn the_small_runtime_in_rust_survives_a_death() -> Result<(), String> {
    let program = example("runtime")?;
    [2, 4, 9].into_iter().try_for_each(|size| small_runtime(Command::new(&program), size, "plain"))
}

#[test]
fn the_small_runtime_in_rust_makes_no_invalid_access_under_valgrind() -> Result<(), String> {
    if Command::new("valgrind").arg("--version").output().is_err() {
        let test = "the_small_runtime_in_rust_makes_no_invalid_access_under_valgrind";
        nemesia_tests::skip(test, "`valgrind` is not installed");
        return Ok(());
    }
    let mut valgrind = Command::new("valgrind");
    valgrind.args(["-q", "--trace-children=yes", "--error-exitcode=9"]).arg(example("runtime")?);
    small_runtime(valgrind, 3, "checked")
}
