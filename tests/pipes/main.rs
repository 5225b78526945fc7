//! The pipes of the RDMA Channel pass their one suite over every memory port. `cargo pipes` searches longer.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use nemesia::shm::pipe::{self, Copying, ShmMemoryPort};
use nemesia::tcp::{self, TcpPort};
use nemesia_core::rdma_channel::Design;
use nemesia_tests::pipes::{HANGS, RealPipes, all_pass, moves_long_runs_as};
use nemesia_tests::quick;
use nemesia_verification::pipes::{PipeFabric, PipeRun, PipeTally, PipeTrouble, run};
use nemesia_verification::rdma::{Conditions, Fabric, Flaw, SimPort};

struct SimulatedPipes(Fabric);

impl PipeFabric for SimulatedPipes {
    type Port = SimPort;

    fn port(&mut self) -> Result<SimPort, String> {
        Ok(self.0.port())
    }

    fn pass(&mut self) -> Duration {
        self.0.pass()
    }
}

fn simulated(conditions: Conditions, seeds: u64) -> BTreeMap<&'static str, PipeTally> {
    all_pass(seeds, (1500, 4, Duration::ZERO), |seed| SimulatedPipes(Fabric::new(seed, conditions)))
}

#[test]
fn pipes_pass_where_placement_is_in_order() {
    for (design, tally) in simulated(Conditions::INFINIBAND, 30) {
        let seen = [tally.polled, tally.announced, tally.violated, tally.lost];
        assert!(quick() || seen.iter().all(|count| *count > 0), "{design}: {tally:?}");
        assert!(moves_long_runs_as(design, &tally), "{design}: {tally:?}");
    }
}

#[test]
fn pipes_pass_where_bytes_are_placed_in_any_order() {
    for (design, tally) in simulated(Conditions::IWARP, 30) {
        assert!(tally.polled == 0 && tally.announced > 0, "{design}: {tally:?}");
    }
}

#[test]
fn pipes_pass_where_registrations_fail() {
    // Memory of the pipes of four processes, and hardly more.
    let mut conditions = Conditions::INFINIBAND;
    conditions.facts.regions = 8;
    simulated(conditions, 10);
}

#[test]
fn pipes_pass_over_the_least_that_a_fabric_may_have() {
    let mut conditions = Conditions::MEAGRE;
    conditions.facts.receive_depth = 3;
    all_pass(15, (1500, 3, Duration::ZERO), |seed| SimulatedPipes(Fabric::new(seed, conditions)));
}

#[test]
fn a_port_with_too_few_receives_is_refused_with_the_reason() {
    let what = PipeRun {
        design: Design::Basic,
        seed: 1,
        steps: 1,
        processes: 2,
        trouble: PipeTrouble::None,
        most_turns: 1000,
        most_time: Duration::ZERO,
    };
    let why = run(SimulatedPipes(Fabric::new(1, Conditions::MEAGRE)), &what).err().unwrap_or_default();
    assert!(why.contains("2 receives") && why.contains("needs 3"), "{why}");
}

#[test]
fn pipes_pass_over_tcp() {
    let open = || {
        let options = tcp::Options { connections: 16, ..tcp::Options::default() };
        tcp::listen(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0), &options)
            .map_err(|error| error.to_string())
    };
    all_pass(10, (2000, 3, HANGS), |_| RealPipes::<_, TcpPort>::new(open));
}

fn over_shared_memory(open: fn() -> Result<ShmMemoryPort, String>) {
    all_pass(10, (2000, 3, HANGS), |_| RealPipes::new(open));
}

#[test]
fn pipes_pass_over_shared_memory_by_the_kernel() {
    over_shared_memory(|| {
        pipe::listen(Copying::Kernel, &pipe::Options::default()).map_err(|error| error.to_string())
    });
}

#[test]
fn pipes_pass_over_shared_memory_through_rings() {
    over_shared_memory(|| {
        pipe::listen(Copying::Rings, &pipe::Options::default()).map_err(|error| error.to_string())
    });
}

/// A port whose later work overtakes a write breaks the promise on which every design rests.
#[test]
fn a_port_on_which_work_overtakes_writes_is_found() {
    for design in Design::ALL {
        let found = (0..200).any(|seed| {
            let conditions = Conditions { flaw: Some(Flaw::Overtaking), ..Conditions::INFINIBAND };
            let what = PipeRun {
                design,
                seed,
                steps: 1500,
                processes: 2,
                trouble: PipeTrouble::None,
                most_turns: 10_000,
                most_time: Duration::ZERO,
            };
            run(SimulatedPipes(Fabric::new(seed, conditions)), &what).is_err()
        });
        assert!(found, "{}", design.name());
    }
}
