//! The engine's promises, over every transport that needs no device: see `nemesia_tests::conformance`.

mod channels;
mod faults;
mod memory;
mod over_pipe;
mod pipe;
mod processes;

use nemesia_tests::conformance::RunPlan;
use nemesia_tests::{quick, seed};

/// Returns the parameters of the tests. `NEMESIA_TEST_SEED` repeats a run, and `NEMESIA_TEST_STEPS` makes it longer.
fn plan() -> RunPlan {
    let given = std::env::var("NEMESIA_TEST_STEPS").ok().and_then(|steps| steps.parse().ok());
    RunPlan { seed: seed(), steps: given.unwrap_or(if quick() { 2000 } else { 10_000 }) }
}
