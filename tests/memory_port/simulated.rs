//! The simulated fabric, in several kinds, with many seeds.

use std::time::Duration;

use nemesia_tests::memory_port::{Fabric, finds, run};
use nemesia_tests::quick;
use nemesia_verification::rdma::{self, Conditions, Flaw, SimPort};
use nemesia_verification::streams::{StreamConditions, StreamFabric, StreamPort};

struct Simulated {
    fabric: rdma::Fabric,
    seed: u64,
    most_bytes: u32,
}

impl Fabric for Simulated {
    type Port = SimPort;

    fn port(&mut self) -> Result<SimPort, String> {
        Ok(self.fabric.port())
    }

    fn pass(&mut self) -> Duration {
        self.fabric.pass()
    }

    fn seed(&self) -> u64 {
        self.seed
    }

    fn most_turns(&self) -> Option<u64> {
        Some(50_000)
    }

    fn most_bytes(&self) -> u32 {
        self.most_bytes
    }
}

/// Runs the suite with `seeds` seeds; the first one includes messages of all sizes.
fn all_pass(conditions: Conditions, seeds: u64) {
    let seeds = if quick() { seeds.div_ceil(10) } else { seeds };
    for seed in 0..seeds {
        let most_bytes = if seed == 0 && conditions.delay < 10 { 64 << 20 } else { 256 << 10 };
        let verdict = run(|| Ok(Simulated { fabric: rdma::Fabric::new(seed, conditions), seed, most_bytes }));
        let why = verdict.err().unwrap_or_default();
        assert!(why.is_empty(), "seed {seed}:\n{why}");
    }
}

#[test]
fn simulated_infiniband_passes() {
    all_pass(Conditions::INFINIBAND, 4);
}

#[test]
fn simulated_iwarp_passes() {
    all_pass(Conditions::IWARP, 4);
}

#[test]
fn the_least_that_a_fabric_may_have_passes() {
    all_pass(Conditions::MEAGRE, 8);
}

#[test]
fn a_fabric_without_delay_passes() {
    all_pass(Conditions { delay: 1, ..Conditions::INFINIBAND }, 3);
}

#[test]
fn a_slow_fabric_passes() {
    all_pass(Conditions { delay: 40, ..Conditions::IWARP }, 3);
}

/// The placement that ships, over simulated streams.
struct Streamed {
    fabric: StreamFabric,
    seed: u64,
    most_bytes: u32,
}

impl Fabric for Streamed {
    type Port = StreamPort;

    fn port(&mut self) -> Result<StreamPort, String> {
        self.fabric.port().map_err(|error| format!("error {error}"))
    }

    fn pass(&mut self) -> Duration {
        self.fabric.pass()
    }

    fn seed(&self) -> u64 {
        self.seed
    }

    fn most_turns(&self) -> Option<u64> {
        Some(200_000)
    }

    fn most_bytes(&self) -> u32 {
        self.most_bytes
    }
}

fn placement_passes(conditions: StreamConditions, most_bytes: u32, seeds: u64) {
    let seeds = if quick() { seeds.div_ceil(10) } else { seeds };
    for seed in 0..seeds {
        let fabric = || StreamFabric::new(seed, conditions);
        let verdict = run(|| Ok(Streamed { fabric: fabric(), seed, most_bytes }));
        let why = verdict.err().unwrap_or_default();
        assert!(why.is_empty(), "seed {seed}:\n{why}");
    }
}

#[test]
fn placement_over_wide_streams_passes() {
    placement_passes(StreamConditions::WIDE, 256 << 10, 3);
}

#[test]
fn placement_over_streams_of_a_few_bytes_passes() {
    placement_passes(StreamConditions::NARROW, 8 << 10, 3);
}

#[test]
fn placement_between_processes_that_read_each_others_memory_passes() {
    placement_passes(StreamConditions::PULLING, 256 << 10, 3);
}

/// The suite finds each flaw. A flaw that no check finds would prove nothing.
#[test]
fn every_flaw_is_found() {
    for flaw in Flaw::ALL {
        let found = (0..20).any(|seed| {
            let kind = if seed % 2 == 0 { Conditions::INFINIBAND } else { Conditions::IWARP };
            let conditions = Conditions { flaw: Some(flaw), ..kind };
            let fabric =
                || Simulated { fabric: rdma::Fabric::new(seed, conditions), seed, most_bytes: 65536 };
            finds(|| Ok(fabric())).unwrap()
        });
        assert!(found, "{flaw:?} is not found");
    }
}
