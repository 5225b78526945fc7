//! `cargo pipes`: the suite of pipes over the simulated fabric, with many seeds, and the injected faults that it must
//! find.
#![deny(unsafe_code)]

use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::time::Duration;

use nemesia_core::rdma_channel::Design;
use nemesia_verification::pipes::{PipeRun, PipeTally, PipeTrouble, run};
use nemesia_verification::rdma::{Conditions, Fabric};

const HELP: &str = "\
Usage: cargo pipes [SEEDS [STEPS]]
       cargo pipes --bugs [SEEDS]

Runs worlds of processes with pipes over simulated RDMA fabrics: SEEDS seeds (default 100) of STEPS steps
(default 5000), for each design, each fabric and each trouble. With --bugs, makes each injected fault in turn, and
fails unless one of SEEDS seeds (default 300) finds it.
";

/// Prints a line; a closed output is not worth an error.
fn print(line: &str) {
    let _ = writeln!(std::io::stdout(), "{line}");
}

/// Runs one seed over each fabric with each trouble.
fn run_seed(design: Design, seed: u64, steps: usize) -> Result<PipeTally, String> {
    let mut tally = PipeTally::default();
    let mut meagre = Conditions::MEAGRE;
    meagre.facts.receive_depth = 3;
    let slow = Conditions { delay: 20, ..Conditions::INFINIBAND };
    for conditions in [Conditions::INFINIBAND, Conditions::IWARP, meagre, slow] {
        for trouble in [PipeTrouble::None, PipeTrouble::Death, PipeTrouble::Hostile] {
            let most_time = Duration::ZERO;
            // Every other seed has worlds of up to eight processes.
            let processes =
                if seed.is_multiple_of(2) { 3 } else { 8.min(conditions.facts.connections as usize) };
            let calm = None;
            let what =
                PipeRun { design, seed, steps, processes, trouble, calm, most_turns: 100_000, most_time };
            let name = conditions.facts.name;
            let world = || run(Fabric::new(seed, conditions), &what);
            // A panic is a finding; its message was printed.
            let result = catch_unwind(AssertUnwindSafe(world)).unwrap_or_else(|_| Err("a panic".into()));
            tally.add(&result.map_err(|why| format!("{name}, {what:?}: {why}"))?);
        }
    }
    Ok(tally)
}

fn explore(seeds: u64, steps: usize) -> Result<(), String> {
    for design in Design::ALL {
        let mut tally = PipeTally::default();
        for seed in 0..seeds {
            tally.add(&run_seed(design, seed, steps)?);
        }
        print(&format!("{}: {tally:?}", design.name()));
    }
    Ok(())
}

#[cfg(nemesia_injected_fault)]
fn find_all(seeds: u64) -> Result<(), String> {
    use nemesia_core::rdma_channel::fault::{PipeFault, make};
    let mut missing = Vec::new();
    for fault in PipeFault::ALL {
        make(Some(fault));
        let mut all = (0..seeds).flat_map(|seed| Design::ALL.map(|design| (design, seed)));
        let found = all.find_map(|(design, seed)| {
            let why = run_seed(design, seed, 600).err()?;
            Some(format!("{}, seed {seed}: {why}", design.name()))
        });
        print(&format!("{fault:?} | {}", found.as_deref().unwrap_or("NOT FOUND")));
        if found.is_none() {
            missing.push(fault);
        }
    }
    make(None);
    if missing.is_empty() { Ok(()) } else { Err(format!("not found: {missing:?}")) }
}

#[cfg(not(nemesia_injected_fault))]
fn find_all(_: u64) -> Result<(), String> {
    Err("this build contains no injected faults: use `cargo pipes`".into())
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|it| it != "--").collect();
    let number = |at: usize, default: u64| match arguments.get(at) {
        Some(text) => text.parse().map_err(|_| HELP.to_owned()),
        None => Ok(default),
    };
    let result = match arguments.first().map(String::as_str) {
        Some("--help" | "-h") => {
            print(HELP);
            Ok(())
        }
        Some("--bugs") => number(1, 300).and_then(find_all),
        _ => number(0, 100).and_then(|seeds| explore(seeds, number(1, 5000)? as usize)),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            let _ = writeln!(std::io::stderr(), "{why}");
            ExitCode::FAILURE
        }
    }
}
