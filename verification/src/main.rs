//! `cargo proofs`: loom models of the core's shared structures, and the mutants that they must catch.
//!
//! The models drive the code that ships, compiled against loom's atomics and cells by the private cfg
//! `nemesia_loom`. Every model also runs against weakened orderings and against injected faults of its own. A
//! model that none of them breaks would prove nothing. See `README.md` beside this crate.

#[cfg(nemesia_loom)]
mod arguments;
#[cfg(nemesia_loom)]
mod child;
#[cfg(nemesia_loom)]
mod models;
#[cfg(nemesia_loom)]
mod mutant;
#[cfg(nemesia_loom)]
mod runner;
#[cfg(nemesia_loom)]
mod stage;
#[cfg(nemesia_loom)]
mod table;

use std::io::Write;
use std::process::ExitCode;

/// Exit code: the command line is wrong, or this build cannot prove anything.
const USAGE: u8 = 2;

/// Writes one line to standard error. A failed write is ignored: no other channel is left.
fn complain(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

#[cfg(not(nemesia_loom))]
fn main() -> ExitCode {
    complain("proofs: this build has no models; run `cargo proofs`, which sets `--cfg nemesia_loom`");
    ExitCode::from(USAGE)
}

#[cfg(nemesia_loom)]
fn main() -> ExitCode {
    use arguments::Command;
    match arguments::parse(std::env::args().skip(1)) {
        Ok(Command::Help) => table::print(arguments::HELP),
        Ok(Command::List) => table::print(&table::list()),
        Ok(Command::Child(task)) => child::run(&task),
        Ok(Command::Prove(options)) => runner::prove(&options),
        Err(error) => {
            complain(&format!("proofs: {error}; see `cargo proofs --help`"));
            ExitCode::from(USAGE)
        }
    }
}
