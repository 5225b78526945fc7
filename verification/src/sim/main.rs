//! `cargo sim`: the engine that ships, many times in one process and in virtual time, over a simulated message port and
//! over the port for shared memory that ships.
//!
//! A seed determines everything that happens, and an oracle of MPI's matching rules checks it. A failure
//! prints the command that repeats it. See `README.md` beside this crate.

mod arguments;
mod assist;
mod bug;
mod cells;
mod channel;
mod checks;
mod collect;
mod counters;
mod credit;
mod death;
mod desk;
mod fabric;
mod joining;
mod keys;
mod links;
mod meet;
mod memory;
mod operations;
mod peers;
mod port;
mod remote;
mod remotes;
mod replies;
mod rest;
mod restart;
mod rng;
mod runner;
mod segments;
mod shape;
mod shared;
mod simulation;
mod tally;
mod trace;
mod unmet;
mod violation;
mod vipl;
mod world;

use std::io::Write;
use std::process::ExitCode;

use arguments::Command;

/// Exit code: the command line is wrong.
const USAGE: u8 = 2;

/// Writes one line to standard error. A failed write is ignored: no other channel is left.
fn complain(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Writes to standard output. The exit code is a failure if the write fails.
fn print(text: &str) -> ExitCode {
    match std::io::stdout().write_all(text.as_bytes()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn main() -> ExitCode {
    match arguments::parse(std::env::args().skip(1)) {
        Ok(Command::Help) => print(arguments::HELP),
        Ok(Command::List) => print(&bug::list()),
        Ok(Command::Simulate(options)) => runner::simulate(&options),
        Err(error) => {
            complain(&format!("sim: {error}; see `cargo sim -- --help`"));
            ExitCode::from(USAGE)
        }
    }
}
