//! The engine's conformance suite over channels on the devices.

use nemesia_core::port::channel::RendezvousChoice;
use nemesia_tests::conformance::RunPlan;
use nemesia_tests::conformance::cases::run_protocol_cases;
use nemesia_tests::conformance::over_channels::{ABILITIES, over_channels};
use nemesia_tests::memory_port::Verdict;
use nemesia_tests::seed;

use crate::{fabric, usable};

/// Runs the suite on the devices, with large messages moved by one protocol.
fn pass(name: &str, rendezvous: RendezvousChoice) -> Verdict {
    let Some(addresses) = usable(name) else { return Ok(()) };
    let given = std::env::var("NEMESIA_TEST_STEPS").ok().and_then(|steps| steps.parse().ok());
    let plan = RunPlan { seed: seed(), steps: given.unwrap_or(10_000) };
    run_protocol_cases(name, ABILITIES, 3, |case| {
        let devices = fabric::Devices::new(&addresses);
        over_channels(case, plan, devices, (3, 1, rendezvous))
            .map_err(|why| format!("seed {}: {why}", plan.seed))
    })
}

#[test]
fn engines_pass_over_devices_by_read() -> Verdict {
    pass("engines_pass_over_devices_by_read", RendezvousChoice::Read)
}

#[test]
fn engines_pass_over_devices_by_write() -> Verdict {
    pass("engines_pass_over_devices_by_write", RendezvousChoice::Write)
}

/// On a device without immediates, packets report the ends of the writes.
#[test]
fn engines_pass_over_devices_by_notify() -> Verdict {
    pass("engines_pass_over_devices_by_notify", RendezvousChoice::WriteNotify)
}

#[test]
fn engines_pass_over_devices_by_stream() -> Verdict {
    pass("engines_pass_over_devices_by_stream", RendezvousChoice::Stream)
}
