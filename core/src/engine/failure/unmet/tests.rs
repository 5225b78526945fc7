use std::vec::Vec;

use crate::engine::tests::world::{AMPLE, TestEngine, World, pattern};
use crate::engine::{Failure, StartError};
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
    assert_eq!((world.engine(0).unmet(), world.engine(0).has_wanted()), (4, false));
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
    assert_eq!((world.engine(0).unmet(), world.engine(0).has_wanted()), (2, false));
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
    assert!(world.engine(0).is_alone() && world.engine(0).unmet() == 0);
}
