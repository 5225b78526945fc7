use std::vec::Vec;

use crate::engine::rma::WINDOW;
use crate::engine::tests::exchange::exchange;
use crate::engine::tests::world::{AMPLE, SteppedUnits, TestEngine, World, open_unmet, pattern};
use crate::engine::{Failure, StartError};
use crate::flow::CeilingError;
use crate::matching::Source;
use crate::shared::tests::contents;
use crate::shared::tests::fabric::{Fabric, tiny};

fn wanted(engine: &mut TestEngine<'_>) -> Vec<u32> {
    core::iter::from_fn(|| engine.next_wanted()).collect()
}

#[test]
fn an_operation_makes_the_rank_wanted_that_it_names_and_only_once() {
    let fabric = Fabric::new(tiny(5));
    let mut world = World::new(&fabric, AMPLE);
    world.engine(0).begin_unmet();
    assert_eq!((world.engine(0).unmet_ranks(), world.engine(0).has_wanted()), (4, false));
    assert!((1..5).all(|rank| world.engine(0).failure(rank).is_none() && world.engine(0).is_unmet(rank)));
    let send = world.isend(0, 3, 1, contents(1, 8));
    world.irecv(0, pattern(Source::Rank(1), 1), 8).unwrap();
    world.isend(0, 3, 1, contents(1, 8));
    assert!(world.engine(0).has_wanted());
    assert_eq!(wanted(world.engine(0)), [1, 3]);
    assert!(!world.engine(0).has_wanted());
    world.isend(0, 3, 1, contents(1, 8));
    assert_eq!(wanted(world.engine(0)), []);
    world.engine(0).connected(3);
    world.engine(0).progress();
    world.done(send).0.unwrap();
    // A flush of nothing needs no rank.
    world.engine(0).flush(4).unwrap();
    assert_eq!((world.engine(0).unmet_ranks(), world.engine(0).has_wanted()), (2, false));
}

#[test]
fn a_rank_that_calls_is_met_and_not_wanted() {
    let fabric = Fabric::new(tiny(3));
    let mut world = World::new(&fabric, AMPLE);
    world.engine(0).begin_unmet();
    assert!(world.engine(0).meet(2) && !world.engine(0).meet(2));
    world.engine(0).connected(2);
    world.irecv(0, pattern(Source::Rank(2), 1), 8).unwrap();
    assert_eq!(wanted(world.engine(0)), []);
}

#[test]
fn receives_from_any_source_want_all_ranks_unless_they_outlive_failures() {
    for outlived in [false, true] {
        let fabric = Fabric::new(tiny(4));
        let mut world = World::new(&fabric, AMPLE);
        world.engine(0).outlive_failures(outlived);
        world.engine(0).begin_unmet();
        world.engine(0).meet(2);
        world.irecv(0, pattern(Source::Any, 1), 8).unwrap();
        let all: &[u32] = if outlived { &[] } else { &[1, 3] };
        assert_eq!(wanted(world.engine(0)), all);
    }
}

#[test]
fn the_failure_of_an_unmet_rank_counts_as_any_other() {
    let fabric = Fabric::new(tiny(3));
    let mut world = World::new(&fabric, AMPLE);
    world.engine(0).begin_unmet();
    world.engine(0).fail(1, Failure::Died);
    assert_eq!(world.engine(0).failure(1), Some(Failure::Died));
    let gone = Some(StartError::PeerFailed { peer: 1, failure: Failure::Died });
    assert_eq!(world.irecv(0, pattern(Source::Rank(1), 1), 8).err(), gone);
    assert_eq!(world.irecv(0, pattern(Source::Any, 1), 8).err(), gone);
    // The receive would have needed the others as well.
    assert_eq!(wanted(world.engine(0)), [2]);
    world.engine(0).acknowledge();
    world.irecv(0, pattern(Source::Any, 1), 8).unwrap();
    world.engine(0).fail(2, Failure::Finished);
    assert!(world.engine(0).is_alone() && world.engine(0).unmet_ranks() == 0);
}

/// A world whose ranks were not met.
fn unmet<'a>(fabric: &'a Fabric, ranks: u32) -> World<'a> {
    let mut world = World::alone(fabric, AMPLE, 1);
    for rank in 0..ranks {
        let units = SteppedUnits::new(AMPLE.units);
        world.engines[rank as usize] = open_unmet(fabric.port_alone(rank), (rank, ranks), units);
    }
    world
}

/// Two ranks meet, and are connected.
fn meet(world: &mut World<'_>, [one, other]: [u32; 2]) {
    let fabric = world.fabric;
    for [me, peer] in [[one, other], [other, one]] {
        world.engine(me).meet_paid(peer).unwrap();
        let state = (world.engine(me).ledger.clone(), world.engine(me).committed_bytes());
        world.engine(me).meet_paid(peer).unwrap();
        assert_eq!((world.engine(me).ledger.clone(), world.engine(me).committed_bytes()), state, "paid once");
    }
    for [me, peer] in [[one, other], [other, one]] {
        assert!(world.engine(me).port_mut().port.open(peer, fabric.link(me, peer)));
        world.engine(me).connected(peer);
    }
}

#[test]
fn the_memory_of_a_rank_is_taken_when_it_is_met() {
    let fabric = Fabric::new(tiny(5));
    let mut world = unmet(&fabric, 5);
    let (own, reserve) = (world.engine(0).ledger.own_units(), world.engine(0).ledger.reserve());
    let paid = |world: &mut World<'_>| {
        let engine = world.engine(0);
        (engine.ledger.reserves_used(), engine.replies.capacity(), engine.committed_bytes())
    };
    assert_eq!(paid(&mut world), (0, 0, own as usize * 64));
    for (met, rank) in [(1, 3), (2, 1)] {
        meet(&mut world, [0, rank]);
        assert_eq!(paid(&mut world), (met, (met * WINDOW) as usize, (own + met * reserve) as usize * 64));
    }
    for rank in [1, 3] {
        exchange(&mut world, [0, rank], "a rank that was met");
        world.assert_backed();
    }
    // The others keep their part of the ceiling: a further peer takes units of the pool.
    let (free, reserves) = (world.engine(0).ledger.free(), world.engine(0).ledger.reserves());
    world.engine(0).add_peer(5).unwrap();
    assert_eq!(world.engine(0).ledger.reserves(), reserves + 1);
    assert!(world.engine(0).ledger.free() <= free);
    (6..12).for_each(|peer| _ = world.engine(0).add_peer(peer));
    for rank in [2, 4] {
        meet(&mut world, [0, rank]);
        exchange(&mut world, [0, rank], "a rank behind many further peers");
    }
    world.assert_backed();
    world.assert_empty(&[0], "after all");
}

#[test]
fn a_rank_that_cannot_be_paid_for_has_no_credit_and_can_fail() {
    let fabric = Fabric::new(tiny(4));
    let probe = unmet(&fabric, 4);
    let (own, reserve) = (probe.engines[0].ledger.own_units(), probe.engines[0].ledger.reserve());
    let mut engine =
        open_unmet(fabric.port_alone(0), (0, 4), SteppedUnits::limited(AMPLE.units, own + 2 * reserve));
    engine.meet_paid(1).unwrap();
    engine.meet_paid(2).unwrap();
    let before = engine.ledger.clone();
    let refused = engine.meet_paid(3).unwrap_err();
    let needed = u64::from(own + 3 * reserve);
    assert_eq!(refused, CeilingError::Memory { committed: own + 2 * reserve, peers: 3, needed });
    assert_eq!((engine.ledger.clone(), engine.granted(3), engine.is_unmet(3)), (before, 0, false));
    engine.fail(3, Failure::Unreachable);
    assert_eq!(engine.meet_paid(3), Ok(()), "a rank that has failed costs nothing");
    assert_eq!((engine.ledger.reserves_used(), engine.failure(3)), (2, Some(Failure::Unreachable)));
    // The memory of one that has gone is not needed any more.
    engine.fail(1, Failure::Died);
    assert_eq!(engine.ledger.reserves_used(), 1);
}
