//! What the tests between processes share: jobs of the program `peer`, what it does there, and what it may not leave
//! behind.
//!
//! | module | what it holds |
//! |---|---|
//! | [`job`] | starting a world of processes, waiting for it under a deadline, reading what each rank wrote |
//! | [`leftovers`] | names, System V objects and processes that a test leaves behind |
//! | [`content`] | payloads that can be checked |
//! | [`memory_port`] | what every memory port has to do |
//! | [`peer`] | the program itself, one module a mode |

pub mod content;
pub mod job;
pub mod leftovers;
pub mod memory_port;
pub mod peer;

use std::io::{Write, stderr};

/// Says that a test did not run, where `tests/run` counts it.
pub fn skip(test: &str, reason: &str) {
    let line = format!("SKIPPED: {test}: {reason}\n");
    say(line.trim_end());
    if let Some(path) = std::env::var_os("NEMESIA_SKIP_LOG") {
        let log = std::fs::OpenOptions::new().append(true).create(true).open(path);
        // The line above has said it already, should the log be out of reach.
        let _ = log.and_then(|mut log| log.write_all(line.as_bytes()));
    }
}

/// A line that is shown even when the test passes.
pub fn say(line: &str) {
    // Nobody is left to tell when this fails.
    let _ = writeln!(stderr(), "{line}");
}

/// Whether `tests/run --quick` wants the short form.
pub fn quick() -> bool {
    std::env::var_os("NEMESIA_QUICK").is_some()
}

/// `NEMESIA_TEST_SEED`, to repeat a failure, or a seed of this run.
pub fn seed() -> u64 {
    let given = std::env::var("NEMESIA_TEST_SEED").ok().and_then(|text| text.parse().ok());
    given.unwrap_or_else(|| {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        now.map_or(1, |now| now.as_nanos() as u64) ^ u64::from(std::process::id()) << 32
    })
}
