//! Engines over channels: the simulated fabric, TCP and rings, all in one thread.

use std::time::{Duration, Instant};

use nemesia::shm::pipe::{self, Copying, ShmMemoryPort};
use nemesia::tcp::{Options, TcpPort, listen};
use nemesia_core::port::channel::RendezvousChoice::{self, Auto, Read, Stream, Write, WriteNotify};
use nemesia_tests::conformance::RunPlan;
use nemesia_tests::conformance::cases::{run_cases, run_protocol_cases};
use nemesia_tests::conformance::over_channels::{ABILITIES, over_channels};
use nemesia_tests::memory_port::{Fabric, Verdict};
use nemesia_verification::rdma::{self, Conditions, SimPort};

use crate::plan;

struct Simulated(rdma::Fabric);

impl Fabric for Simulated {
    type Port = SimPort;

    fn port(&mut self) -> Result<SimPort, String> {
        Ok(self.0.port())
    }

    fn pass(&mut self) -> Duration {
        self.0.pass()
    }

    fn most_turns(&self) -> Option<u64> {
        Some(50_000)
    }
}

struct Loopback(Instant);

impl Fabric for Loopback {
    type Port = TcpPort;

    fn port(&mut self) -> Result<TcpPort, String> {
        listen(([127, 0, 0, 1], 0).into(), &Options::default()).map_err(|error| error.to_string())
    }

    fn pass(&mut self) -> Duration {
        self.0.elapsed()
    }
}

struct Rings(Instant);

impl Fabric for Rings {
    type Port = ShmMemoryPort;

    fn port(&mut self) -> Result<ShmMemoryPort, String> {
        pipe::listen(Copying::Rings, &Options::default()).map_err(|error| error.to_string())
    }

    fn pass(&mut self) -> Duration {
        self.0.elapsed()
    }
}

fn passes<F: Fabric>(name: &str, size: (usize, u32, RendezvousChoice), fabric: impl Fn(u64) -> F) -> Verdict {
    let plan @ RunPlan { seed, .. } = plan();
    let run =
        |case| over_channels(case, plan, fabric(seed), size).map_err(|why| format!("seed {seed}: {why}"));
    match size.2 {
        Auto => run_cases(name, ABILITIES, size.0, run),
        _ => run_protocol_cases(name, ABILITIES, size.0, run),
    }
}

#[test]
fn simulated_infiniband_passes() -> Verdict {
    passes("simulated_infiniband_passes", (3, 2, Auto), |seed| {
        Simulated(rdma::Fabric::new(seed, Conditions::INFINIBAND))
    })
}

#[test]
fn simulated_iwarp_passes() -> Verdict {
    passes("simulated_iwarp_passes", (4, 1, Auto), |seed| {
        Simulated(rdma::Fabric::new(seed, Conditions::IWARP))
    })
}

#[test]
fn the_least_that_a_channel_needs_passes() -> Verdict {
    passes("the_least_that_a_channel_needs_passes", (3, 1, Auto), |seed| {
        let mut conditions = Conditions::MEAGRE;
        conditions.facts.receive_depth = 3;
        conditions.facts.connections = 8;
        Simulated(rdma::Fabric::new(seed, conditions))
    })
}

#[test]
fn tcp_passes() -> Verdict {
    passes("tcp_passes", (3, 2, Auto), |_| Loopback(Instant::now()))
}

#[test]
fn rings_pass() -> Verdict {
    passes("rings_pass", (3, 1, Auto), |_| Rings(Instant::now()))
}

#[test]
fn simulated_infiniband_passes_by_read() -> Verdict {
    passes("simulated_infiniband_passes_by_read", (3, 1, Read), |seed| {
        Simulated(rdma::Fabric::new(seed, Conditions::INFINIBAND))
    })
}

#[test]
fn simulated_infiniband_passes_by_write() -> Verdict {
    passes("simulated_infiniband_passes_by_write", (3, 1, Write), |seed| {
        Simulated(rdma::Fabric::new(seed, Conditions::INFINIBAND))
    })
}

#[test]
fn simulated_infiniband_passes_by_notify() -> Verdict {
    passes("simulated_infiniband_passes_by_notify", (3, 1, WriteNotify), |seed| {
        Simulated(rdma::Fabric::new(seed, Conditions::INFINIBAND))
    })
}

#[test]
fn simulated_infiniband_passes_by_stream() -> Verdict {
    passes("simulated_infiniband_passes_by_stream", (3, 1, Stream), |seed| {
        Simulated(rdma::Fabric::new(seed, Conditions::INFINIBAND))
    })
}

#[test]
fn simulated_iwarp_passes_by_read() -> Verdict {
    passes("simulated_iwarp_passes_by_read", (3, 1, Read), |seed| {
        Simulated(rdma::Fabric::new(seed, Conditions::IWARP))
    })
}

#[test]
fn simulated_iwarp_passes_by_write() -> Verdict {
    passes("simulated_iwarp_passes_by_write", (3, 1, Write), |seed| {
        Simulated(rdma::Fabric::new(seed, Conditions::IWARP))
    })
}

#[test]
fn simulated_iwarp_passes_by_notify() -> Verdict {
    passes("simulated_iwarp_passes_by_notify", (3, 1, WriteNotify), |seed| {
        Simulated(rdma::Fabric::new(seed, Conditions::IWARP))
    })
}

#[test]
fn simulated_iwarp_passes_by_stream() -> Verdict {
    passes("simulated_iwarp_passes_by_stream", (3, 1, Stream), |seed| {
        Simulated(rdma::Fabric::new(seed, Conditions::IWARP))
    })
}

#[test]
fn tcp_passes_by_read() -> Verdict {
    passes("tcp_passes_by_read", (3, 1, Read), |_| Loopback(Instant::now()))
}

#[test]
fn tcp_passes_by_write() -> Verdict {
    passes("tcp_passes_by_write", (3, 1, Write), |_| Loopback(Instant::now()))
}

#[test]
fn tcp_passes_by_notify() -> Verdict {
    passes("tcp_passes_by_notify", (3, 1, WriteNotify), |_| Loopback(Instant::now()))
}

#[test]
fn tcp_passes_by_stream() -> Verdict {
    passes("tcp_passes_by_stream", (3, 1, Stream), |_| Loopback(Instant::now()))
}

#[test]
fn rings_passes_by_read() -> Verdict {
    passes("rings_passes_by_read", (3, 1, Read), |_| Rings(Instant::now()))
}

#[test]
fn rings_passes_by_write() -> Verdict {
    passes("rings_passes_by_write", (3, 1, Write), |_| Rings(Instant::now()))
}

#[test]
fn rings_passes_by_notify() -> Verdict {
    passes("rings_passes_by_notify", (3, 1, WriteNotify), |_| Rings(Instant::now()))
}

#[test]
fn rings_passes_by_stream() -> Verdict {
    passes("rings_passes_by_stream", (3, 1, Stream), |_| Rings(Instant::now()))
}
