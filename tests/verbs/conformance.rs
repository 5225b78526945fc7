//! The engine's conformance suite over channels on the devices.

use nemesia_core::port::channel::RendezvousChoice;
use nemesia_tests::conformance::RunPlan;
use nemesia_tests::conformance::cases::run_cases;
use nemesia_tests::conformance::over_channels::{ABILITIES, over_channels};
use nemesia_tests::memory_port::Verdict;
use nemesia_tests::seed;

use crate::{fabric, usable};

#[test]
fn engines_pass_over_devices() -> Verdict {
    let Some(addresses) = usable("engines_pass_over_devices") else { return Ok(()) };
    let given = std::env::var("NEMESIA_TEST_STEPS").ok().and_then(|steps| steps.parse().ok());
    let plan = RunPlan { seed: seed(), steps: given.unwrap_or(10_000) };
    run_cases("engines_pass_over_devices", ABILITIES, 3, |case| {
        let devices = fabric::Devices::new(&addresses);
        over_channels(case, plan, devices, (3, 1, RendezvousChoice::Auto))
            .map_err(|why| format!("seed {}: {why}", plan.seed))
    })
}
