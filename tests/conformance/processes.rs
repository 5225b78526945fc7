//! Real processes and their endpoints, under our launcher and under Hydra: the program `conformance`.

use std::process::Command;

use nemesia_tests::conformance::actor::Abilities;
use nemesia_tests::conformance::cases::{Need, skip_unfit};
use nemesia_tests::conformance::launched::{all, arguments, pass};
use nemesia_tests::conformance::program::ABILITIES;
use nemesia_tests::hosts::hosts;
use nemesia_tests::job::Job;
use nemesia_tests::memory_port::Verdict;
use nemesia_tests::skip;

use crate::plan;

const PROGRAM: &str = env!("CARGO_BIN_EXE_conformance");
const SCRATCH: &str = env!("CARGO_TARGET_TMPDIR");
/// What processes can do that Hydra has started: it starts no rank again.
const HYDRA: Abilities = Abilities { restarts: false, ..ABILITIES };

/// As [`pass`], in worlds of our launcher with these settings.
fn pass_launched(size: usize, abilities: Abilities, settings: &[(&str, &str)]) -> Verdict {
    pass(size, abilities, |case| {
        let job = Job::new(PROGRAM, SCRATCH, &arguments(plan(), case.map(|case| case.name)));
        let job = settings.iter().fold(job, |job, (name, value)| job.env(name, value));
        let restarts = u32::from(case.is_some_and(|case| case.need == Need::Restarts));
        job.restart(restarts).run(size)
    })
}

/// As [`pass_launched`], between processes that share no memory and reach each other over TCP.
fn pass_over_tcp(size: usize, settings: &[(&str, &str)]) -> Verdict {
    let tcp = [("NEMESIA_LOCAL", "off"), ("NEMESIA_NET", "tcp")];
    pass_launched(size, ABILITIES, &[&tcp, settings].concat())
}

#[test]
fn three_processes_pass() -> Verdict {
    pass_launched(3, ABILITIES, &[])
}

#[test]
fn two_processes_pass_without_reading_memory_and_with_the_smallest_structures() -> Verdict {
    let settings = [
        ("NEMESIA_SINGLE_COPY", "off"),
        ("NEMESIA_CELLS", "4"),
        ("NEMESIA_FASTBOX_SLOTS", "4"),
        ("NEMESIA_CELL_BYTES", "256"),
    ];
    pass_launched(2, ABILITIES, &settings)
}

#[test]
fn two_processes_pass_over_tcp_with_the_smallest_structures() -> Verdict {
    let settings =
        [("NEMESIA_CELL_BYTES", "256"), ("NEMESIA_NET_PACKET_BYTES", "256"), ("NEMESIA_NET_RECEIVES", "3")];
    pass_over_tcp(2, &settings)
}

#[test]
fn three_processes_pass_over_tcp() -> Verdict {
    pass_over_tcp(3, &[])
}

#[test]
fn four_processes_pass_over_tcp_by_three_connections_with_each() -> Verdict {
    pass_over_tcp(4, &[("NEMESIA_NET_STREAMS", "3")])
}

/// Ranks 0 and 1 share memory, and reach the others over TCP.
#[test]
fn four_processes_of_which_two_share_memory_pass() -> Verdict {
    pass(4, ABILITIES, |case| {
        let job = Job::new(PROGRAM, SCRATCH, &arguments(plan(), case.map(|case| case.name)));
        let restarts = u32::from(case.is_some_and(|case| case.need == Need::Restarts));
        let job = job.restart(restarts);
        job.env("NEMESIA_NET", "tcp").before("[ $PMI_RANK -ge 2 ] && export NEMESIA_LOCAL=off").run(4)
    })
}

/// All cases on two hosts with two processes each, over shared memory inside and TCP between them. Hydra itself starts
/// no rank again.
#[test]
fn two_hosts_with_two_processes_each_pass_under_hydra() -> Verdict {
    const NAME: &str = "two_hosts_with_two_processes_each_pass_under_hydra";
    let Some(hosts) = hosts(NAME, SCRATCH) else { return Ok(()) };
    pass(4, HYDRA, |case| {
        let words = arguments(plan(), case.map(|case| case.name));
        Ok(hosts.run((PROGRAM, &words), &[("NEMESIA_NET", "tcp")], case.is_some())?.ranks)
    })?;
    skip_unfit(NAME, HYDRA, 4);
    Ok(())
}

#[test]
fn four_processes_pass_under_hydra() -> Verdict {
    let mut command = Command::new("mpiexec.hydra");
    command.args(["-n", "4", PROGRAM]).args(arguments(plan(), None).split(' '));
    let output = match command.output() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            skip("four_processes_pass_under_hydra", "mpiexec.hydra is not installed (package mpich)");
            return Ok(());
        }
        outcome => outcome.map_err(|error| error.to_string())?,
    };
    let words = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    let quiet = all().into_iter().filter(|case| case.need == Need::Nothing).count();
    let passed = words.lines().filter(|line| line.ends_with(" passed")).count();
    let is_well = output.status.success() && passed == 4 * quiet;
    if is_well { Ok(()) } else { Err(format!("{}: {words}{errors}", output.status)) }
}
