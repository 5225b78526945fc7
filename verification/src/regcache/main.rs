//! `cargo regcache`: the registration cache against a simple twin, and beside other structures.

mod avl;
mod bench;
mod driver;
mod recorder;
mod rivals;
#[path = "../sim/rng.rs"]
mod rng;
mod twin;

use std::io::Write;
use std::process::ExitCode;

const HELP: &str = "\
Usage: cargo regcache [--operations N] [--seed S]
       cargo regcache --bench

Runs random operations on the registration cache (core/src/regcache.rs) and on a naive twin that knows the same rules, \
and
compares what each registers, deregisters and answers. The operations are spread over many small caches of all shapes.

  --operations N   operations in all (default 10000000)
  --seed S         the first cache's seed (default 1); a failure prints the seed that shows it again
  --bench          instead, times hit, miss and eviction beside caches that find ranges by a B-tree or an AVL tree, and
                   a look-up in a plain hash table
  --help           this text
";

/// What the command line asks for.
enum Command {
    Help,
    Bench,
    Compare { operations: u64, seed: u64 },
}

fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Command, String> {
    let (mut operations, mut seed) = (10_000_000, 1);
    let mut bench = false;
    while let Some(argument) = arguments.next() {
        let mut number = || {
            let value = arguments.next().ok_or_else(|| format!("{argument} needs a value"))?;
            value.parse().map_err(|_| format!("`{value}` is not a number"))
        };
        match argument.as_str() {
            "--help" | "-h" => return Ok(Command::Help),
            "--bench" => bench = true,
            "--operations" => operations = number()?,
            "--seed" => seed = number()?,
            _ => return Err(format!("unknown argument `{argument}`")),
        }
    }
    Ok(if bench { Command::Bench } else { Command::Compare { operations, seed } })
}

fn compare(operations: u64, seed: u64) -> Result<String, String> {
    let mut total = driver::Total::default();
    for seed in seed.. {
        if total.operations >= operations {
            break;
        }
        let most = operations - total.operations;
        total += driver::run(seed, most)
            .map_err(|what| format!("{what}\nagain: cargo regcache --seed {seed} --operations {most}"))?;
    }
    Ok(total.to_string())
}

fn main() -> ExitCode {
    let done = match parse(std::env::args().skip(1)) {
        Ok(Command::Help) => Ok(HELP.to_owned()),
        Ok(Command::Bench) => bench::table(),
        Ok(Command::Compare { operations, seed }) => compare(operations, seed),
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "regcache: {error}; see `cargo regcache --help`");
            return ExitCode::from(2);
        }
    };
    let (text, code) = match done {
        Ok(text) => (text, ExitCode::SUCCESS),
        Err(text) => (text + "\n", ExitCode::FAILURE),
    };
    match std::io::stdout().write_all(text.as_bytes()) {
        Ok(()) => code,
        Err(_) => ExitCode::FAILURE,
    }
}
