//! Peers that reconnect as new processes: all state starts anew, and no message of the former process is
//! delivered.

use std::vec::Vec;

use crate::engine::tests::exchange::exchange;
use crate::engine::tests::world::{AMPLE, TUNING, World, WorldRoom, pattern};
use crate::engine::{CompletionError, Failure, StartError};
use crate::matching::Source;
use crate::shared::tests::contents;
use crate::shared::tests::fabric::WorldShape;
use crate::shared::tests::fabric::{Fabric, Reading, tiny};

const DIED: CompletionError = CompletionError::PeerFailed { peer: 1, failure: Failure::Died };

#[test]
fn peer_that_has_not_failed_is_not_reconnected() {
    let fabric = Fabric::new(tiny(2));
    let mut world = World::new(&fabric, AMPLE);
    assert!(!world.engine(0).reconnect(1) && !world.engine(0).reconnect(0) && !world.engine(0).reconnect(9));
    exchange(&mut world, [0, 1], "before any failure");
    world.engine(0).depart(1, Failure::Died);
    assert!(!world.engine(0).reconnect(1), "its packets may not be delivered yet");
}

#[test]
fn all_state_starts_anew_after_each_death_of_a_peer() {
    for (cells, reading) in [(4, Reading::Never), (4, Reading::Always), (16, Reading::Always)] {
        let fabric = Fabric::reading(WorldShape { cells, ..tiny(3) }, reading, 7);
        let mut world = World::new(&fabric, AMPLE);
        for death in 0..30 {
            exchange(&mut world, [0, 1], "before");
            exchange(&mut world, [2, 1], "before");
            // An operation of every kind is in progress in both directions.
            let lens = [8, 60, 200, 3000, 3000, 48, 256, 700];
            let sends: Vec<_> = lens.map(|len| world.isend(0, 1, 1, contents(1, len))).into_iter().collect();
            for (tag, len) in (0..).zip(lens) {
                world.isend(1, 0, tag, contents(tag, len));
            }
            let part = world.recv(0, 1, 3, 3000);
            let never = world.recv(0, 1, 999, 8);
            for turn in 0..death {
                world.engine(turn % 2).progress();
            }
            world.replace(1, Failure::Died);
            assert_eq!(world.done(never).0, Err(DIED));
            let part = world.done(part);
            assert!(part.0 == Err(DIED) || part.1 == contents(3, 3000), "{:?}", part.0);
            sends.into_iter().for_each(|send| drop(world.done(send)));
            let gone = Some(StartError::PeerFailed { peer: 1, failure: Failure::Died });
            assert_eq!(world.isend_in(0, 0, 1, 1, contents(1, 8)).err(), gone);
            for survivor in [0, 2] {
                world.readmit(survivor, 1);
                assert_eq!(world.engine(survivor).unexpected_messages(), 0, "stale messages");
            }
            exchange(&mut world, [0, 1], "after");
            exchange(&mut world, [1, 2], "after");
            exchange(&mut world, [2, 0], "the others");
            world.assert_empty(&[0, 1, 2], "after a restart");
        }
    }
}

#[test]
fn new_process_waits_for_peers_that_have_not_readmitted_it() {
    let fabric = Fabric::new(tiny(3));
    let mut world = World::new(&fabric, AMPLE);
    exchange(&mut world, [0, 1], "before");
    world.replace(1, Failure::Finished);
    let sends: Vec<_> = [0, 2].map(|to| world.isend(1, to, 1, contents(1, 200))).into_iter().collect();
    let receive = world.recv(1, 2, 5, 8);
    world.readmit(0, 1);
    world.settle();
    assert!(world.test(sends[0]).is_some_and(|done| done.0.is_ok()) && world.test(sends[1]).is_none());
    let early = world.recv(0, 1, 1, 200);
    assert_eq!(world.done(early).1, contents(1, 200));
    world.readmit(2, 1);
    world.isend(2, 1, 5, contents(5, 8));
    world.settle();
    world.done(sends[1]).0.unwrap();
    assert_eq!(world.done(receive).1, contents(5, 8));
    let late = world.recv(2, 1, 1, 200);
    assert_eq!(world.done(late).1, contents(1, 200));
    world.assert_empty(&[0, 1, 2], "readmitted late");
}

#[test]
fn messages_of_the_former_process_are_received_before_it_is_readmitted_or_never() {
    let fabric = Fabric::new(tiny(2));
    let mut world = World::new(&fabric, AMPLE);
    for tag in 0..4 {
        world.isend(1, 0, tag, contents(tag, 60));
    }
    world.isend(1, 0, 9, contents(9, 3000));
    world.settle();
    let whole = world.improbe(0, pattern(Source::Rank(1), 3)).unwrap().0;
    let announced = world.improbe(0, pattern(Source::Rank(1), 9)).unwrap().0;
    world.replace(1, Failure::Died);
    let receive = world.recv(0, 1, 0, 60);
    assert_eq!(world.done(receive).1, contents(0, 60));
    world.readmit(0, 1);
    assert_eq!(world.engine(0).unexpected_messages(), 1, "only the message that a probe removed");
    world.isend(1, 0, 1, contents(77, 60));
    world.settle();
    let receive = world.recv(0, 1, 1, 60);
    assert_eq!(world.done(receive).1, contents(77, 60), "not the message of the former process");
    let receive = world.imrecv(0, whole, 60).unwrap();
    assert_eq!(world.done(receive).1, contents(3, 60));
    let receive = world.imrecv(0, announced, 3000).unwrap();
    assert_eq!(world.done(receive).0, Err(DIED));
    exchange(&mut world, [0, 1], "after");
    world.assert_empty(&[0, 1], "probed before");
}

#[test]
fn receives_from_any_source_match_the_new_process() {
    let fabric = Fabric::new(tiny(3));
    let mut world = World::new(&fabric, AMPLE);
    let any = pattern(Source::Any, 1);
    world.replace(1, Failure::Died);
    world.engine(0).acknowledge();
    let posted = world.irecv(0, any, 8).unwrap();
    world.engine(0).fail(2, Failure::Died);
    world.done(posted).0.unwrap_err();
    world.engine(0).acknowledge();
    let posted = world.irecv(0, any, 8).unwrap();
    world.readmit(0, 1);
    world.isend(1, 0, 1, contents(1, 8));
    world.settle();
    assert_eq!(world.done(posted).1, contents(1, 8));
}

#[test]
fn readmission_acknowledges_the_failure_of_that_peer_only() {
    for acknowledged in [false, true] {
        let fabric = Fabric::new(tiny(3));
        let mut world = World::new(&fabric, AMPLE);
        world.engine(0).fail(2, Failure::Died);
        if acknowledged {
            world.engine(0).acknowledge();
        }
        world.replace(1, Failure::Died);
        world.irecv(0, pattern(Source::Any, 1), 8).unwrap_err();
        world.readmit(0, 1);
        let other = StartError::PeerFailed { peer: 2, failure: Failure::Died };
        let posted = world.irecv(0, pattern(Source::Any, 1), 8).err();
        assert_eq!(posted, (!acknowledged).then_some(other));
    }
}

#[test]
fn credit_is_full_again_however_much_the_former_process_had_used() {
    let fabric = Fabric::new(WorldShape { cells: 64, ..tiny(3) });
    let units = 40;
    let mut world = World::new(&fabric, WorldRoom { units, tuning: TUNING, ..AMPLE });
    for round in 0..20 {
        let mut sends = Vec::new();
        for tag in 0..60 {
            world.isend(1, 0, tag, contents(tag, 60));
            sends.push(world.isend(2, 0, tag, contents(tag, 60)));
        }
        world.settle();
        assert_eq!(world.engine(0).held_peers(), 2, "round {round}: {:?}", world.engine(0).ledger);
        world.replace(1, Failure::Died);
        world.readmit(0, 1);
        world.readmit(2, 1);
        assert!(!world.engine(0).is_held(1), "round {round}: its reserve is available");
        for tag in 0..60 {
            let receive = world.recv(0, 2, tag, 60);
            world.settle();
            assert_eq!(world.done(receive).1, contents(tag, 60));
        }
        sends.into_iter().for_each(|send| _ = world.done(send).0.unwrap());
        exchange(&mut world, [0, 1], "after");
        world.assert_empty(&[0, 1, 2], "credit");
    }
}
