//! The memory port over verbs: the suite of all memory ports on the RDMA devices of this machine, and
//! properties of devices. Without a device, as on most machines, the tests are skipped; `tests/vm/run` has
//! some.

#![allow(clippy::print_stdout, reason = "visible with --nocapture only: how a device gets on")]

#[cfg(test)]
mod across;
#[cfg(test)]
mod choice;
#[cfg(test)]
mod conformance;
#[cfg(test)]
mod device;
#[cfg(test)]
mod endpoints;
#[cfg(test)]
mod ends;
#[cfg(test)]
mod fabric;
#[cfg(test)]
mod hostile;
#[cfg(test)]
mod large;
#[cfg(test)]
mod pipes;

use nemesia_tests::memory_port::{self, bench::Bench};

/// Returns the devices' addresses; `None` after reporting why the test is skipped.
fn usable(test: &str) -> Option<Vec<std::net::IpAddr>> {
    match fabric::addresses() {
        Ok(addresses) => Some(addresses),
        Err(reason) => {
            nemesia_tests::skip(test, &reason);
            None
        }
    }
}

/// Runs the suite, on new devices for each check.
fn all_pass(devices: impl Fn() -> fabric::Devices) {
    let mut failures = Vec::new();
    for (name, check) in memory_port::wanted() {
        let start = std::time::Instant::now();
        let verdict = check(&mut Bench::new(devices()));
        // One line for each check: with a slow device it is good to see which one runs.
        println!("{name}: {:.1} s: {verdict:?}", start.elapsed().as_secs_f32());
        failures.extend(verdict.err().map(|why| format!("{name}: {why}")));
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn verbs_do_what_every_memory_port_does() {
    let Some(addresses) = usable("verbs_do_what_every_memory_port_does") else { return };
    all_pass(|| fabric::Devices::new(&addresses));
}

/// Not a power of two, and less than the windows of the random check.
const SHORT: u32 = 5000;

#[test]
fn writes_and_reads_in_several_work_requests_do_the_same() {
    let Some(addresses) = usable("writes_and_reads_in_several_work_requests_do_the_same") else { return };
    all_pass(|| {
        let mut devices = fabric::Devices::new(&addresses);
        devices.work_bytes = SHORT;
        devices
    });
}
