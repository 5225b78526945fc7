//! The common parts of the tests between processes: jobs of the program `peer`, its modes, and the search for
//! leftovers.
//!
//! | module | contents |
//! |---|---|
//! | [`built`] | what tests build with cargo |
//! | [`job`] | starting a world of processes, waiting for it under a deadline, reading the output of each rank
//! |
//! | [`leftovers`] | names, System V objects and processes that a test leaves behind |
//! | [`conformance`] | the promises of the engine over every transport |
//! | [`hostile_ranks`] | ranks that use their connections against the protocol, over any fabric |
//! | [`hosts`] | two hosts for worlds under Hydra |
//! | [`content`] | payloads that can be checked |
//! | [`memory_port`] | the requirements of every memory port |
//! | [`peer`] | the program itself, one module a mode |
//! | [`piped`] | processes without a launcher, each with a pipe for commands |
//! | [`pipes`] | the suite of the RDMA Channel's pipes |

pub mod built;
pub mod conformance;
pub mod content;
pub mod hostile_ranks;
pub mod hosts;
pub mod job;
pub mod kills;
pub mod leftovers;
pub mod memory_port;
pub mod peer;
pub mod piped;
pub mod pipes;

use std::io::{Write, stderr};

/// Reports that a test did not run; `tests/run` counts it.
pub fn skip(test: &str, reason: &str) {
    let line = format!("SKIPPED: {test}: {reason}\n");
    say(line.trim_end());
    if let Some(path) = std::env::var_os("NEMESIA_SKIP_LOG") {
        let log = std::fs::OpenOptions::new().append(true).create(true).open(path);
        // If the log cannot be written, the line above is the only report.
        let _ = log.and_then(|mut log| log.write_all(line.as_bytes()));
    }
}

/// Prints a line that is shown even if the test passes.
pub fn say(line: &str) {
    // A failed write is ignored: no other channel is left.
    let _ = writeln!(stderr(), "{line}");
}

/// Returns whether `tests/run` asks for the short form, which is its suite for every change.
pub fn quick() -> bool {
    std::env::var_os("NEMESIA_QUICK").is_some()
}

/// Returns `NEMESIA_TEST_SEED`, to repeat a failure, or else a new seed.
pub fn seed() -> u64 {
    let given = std::env::var("NEMESIA_TEST_SEED").ok().and_then(|text| text.parse().ok());
    given.unwrap_or_else(|| {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        now.map_or(1, |now| now.as_nanos() as u64) ^ u64::from(std::process::id()) << 32
    })
}
