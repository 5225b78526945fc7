//! The engine's conformance suite over channels on the devices.

use nemesia_core::port::channel::RendezvousChoice;
use nemesia_tests::conformance::RunPlan;
use nemesia_tests::conformance::cases::run_cases;
use nemesia_tests::conformance::over_channels::{ABILITIES, over_channels};
use nemesia_tests::memory_port::Verdict;
use nemesia_tests::seed;

use crate::{fabric, usable};

/// Returns how large messages move: as `NEMESIA_TEST_RENDEZVOUS` says, or as devices do it unless a setting says else.
fn rendezvous() -> RendezvousChoice {
    match std::env::var("NEMESIA_TEST_RENDEZVOUS").as_deref() {
        Ok("auto") => RendezvousChoice::Auto,
        Ok("read") => RendezvousChoice::Read,
        Ok("write") => RendezvousChoice::Write,
        Ok("write-notify") => RendezvousChoice::WriteNotify,
        _ => RendezvousChoice::Stream,
    }
}

#[test]
fn engines_pass_over_devices() -> Verdict {
    let Some(addresses) = usable("engines_pass_over_devices") else { return Ok(()) };
    let given = std::env::var("NEMESIA_TEST_STEPS").ok().and_then(|steps| steps.parse().ok());
    let plan = RunPlan { seed: seed(), steps: given.unwrap_or(10_000) };
    run_cases("engines_pass_over_devices", ABILITIES, 3, |case| {
        let devices = fabric::Devices::new(&addresses);
        over_channels(case, plan, devices, (3, 1, rendezvous()))
            .map_err(|why| format!("seed {}: {why}", plan.seed))
    })
}
