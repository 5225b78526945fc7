//! The pipes of the RDMA Channel pass their one suite over every memory port. `cargo pipes` searches longer.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use nemesia::shm::pipe::{self, Copying, ShmMemoryPort};
use nemesia::tcp::{self, TcpPort};
use nemesia_core::rdma_channel::Design;
use nemesia_tests::pipes::{HANGS, RealPipes, TROUBLES, all_pass, all_pass_until, moves_long_runs_as};
use nemesia_tests::quick;
use nemesia_verification::pipes::{PipeRun, PipeTally, PipeTrouble, run};
use nemesia_verification::rdma::{Conditions, Fabric, Flaw};

fn simulated(conditions: Conditions, seeds: u64) -> BTreeMap<&'static str, PipeTally> {
    all_pass(seeds, (1500, 8, Duration::ZERO), |seed| Fabric::new(seed, conditions))
}

#[test]
fn pipes_pass_where_placement_is_in_order() {
    let open = |seed| Fabric::new(seed, Conditions::INFINIBAND);
    for (design, tally) in all_pass_until(20, (1500, 8, Duration::ZERO), open, moves_long_runs_as) {
        let seen = [tally.polled, tally.announced, tally.violated, tally.lost];
        assert!(quick() || seen.iter().all(|count| *count > 0), "{design}: {tally:?}");
        assert!(moves_long_runs_as(design, &tally), "{design}: {tally:?}");
    }
}

#[test]
fn pipes_pass_where_bytes_are_placed_in_any_order() {
    for (design, tally) in simulated(Conditions::IWARP, 20) {
        assert!(tally.polled == 0 && tally.announced > 0, "{design}: {tally:?}");
    }
}

#[test]
fn pipes_pass_where_registrations_fail() {
    // Memory of the pipes of four processes, and hardly more.
    let mut conditions = Conditions::INFINIBAND;
    conditions.facts.regions = 8;
    all_pass(10, (1500, 4, Duration::ZERO), |seed| Fabric::new(seed, conditions));
}

#[test]
fn pipes_pass_over_the_least_that_a_fabric_may_have() {
    let mut conditions = Conditions::MEAGRE;
    conditions.facts.receive_depth = 3;
    all_pass(15, (1500, 3, Duration::ZERO), |seed| Fabric::new(seed, conditions));
}

#[test]
fn a_port_with_too_few_receives_is_refused_with_the_reason() {
    let what = PipeRun {
        design: Design::Basic,
        seed: 1,
        steps: 1,
        processes: 2,
        trouble: PipeTrouble::None,
        calm: None,
        most_turns: 1000,
        most_time: Duration::ZERO,
    };
    let why = run(Fabric::new(1, Conditions::MEAGRE), &what).err().unwrap_or_default();
    assert!(why.contains("2 receives") && why.contains("needs 3"), "{why}");
}

#[test]
fn pipes_pass_over_tcp() {
    let open = || {
        let options = tcp::Options { connections: 16, ..tcp::Options::default() };
        tcp::listen(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0), &options)
            .map_err(|error| error.to_string())
    };
    all_pass(10, (2000, 8, HANGS), |_| RealPipes::<_, TcpPort>::new(open));
}

fn over_shared_memory(open: fn() -> Result<ShmMemoryPort, String>) {
    all_pass(10, (2000, 8, HANGS), |_| RealPipes::new(open));
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

#[test]
fn a_process_alone_has_no_pipes_and_waits_for_nobody() {
    for (design, trouble) in Design::ALL.into_iter().flat_map(|it| TROUBLES.map(|trouble| (it, trouble))) {
        let processes = 1;
        let what = PipeRun { design, trouble, processes, ..short(0) };
        let tally = run(Fabric::new(1, Conditions::INFINIBAND), &what).unwrap();
        assert_eq!((tally.bytes, tally.lost), (0, 0), "{what:?}");
    }
}

/// The same history each time, in which a process dies one step later each time.
#[test]
fn a_process_may_die_before_every_step() {
    let seed = nemesia_tests::seed();
    for design in Design::ALL {
        for conditions in [Conditions::INFINIBAND, Conditions::IWARP] {
            let mut lost = 0;
            for calm in (0..short(0).steps).step_by(if quick() { 10 } else { 1 }) {
                let what = PipeRun { design, seed, trouble: PipeTrouble::Death, ..short(calm) };
                match run(Fabric::new(what.seed, conditions), &what) {
                    Ok(tally) => lost += tally.lost,
                    Err(why) => assert!(why.is_empty(), "{what:?}: {why}"),
                }
            }
            assert!(lost > 0, "{design:?}");
        }
    }
}

/// Returns a short world whose trouble begins after so many steps.
fn short(calm: usize) -> PipeRun {
    PipeRun {
        design: Design::Basic,
        seed: nemesia_tests::seed(),
        steps: 150,
        processes: 3,
        trouble: PipeTrouble::None,
        calm: Some(calm),
        most_turns: 100_000,
        most_time: Duration::ZERO,
    }
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
                calm: None,
                most_turns: 10_000,
                most_time: Duration::ZERO,
            };
            run(Fabric::new(seed, conditions), &what).is_err()
        });
        assert!(found, "{}", design.name());
    }
}
