//! Engines that are opened alone: their peers come one by one, are refused at limits, leave, and come again.

mod cost;

use std::vec::Vec;

use crate::engine::tests::exchange::exchange;
use crate::engine::tests::world::{AMPLE, SteppedUnits, TestEngine, World, WorldRoom, open_alone, pattern};
use crate::engine::{CompletionError, Failure, Peer, StartError};
use crate::flow::CeilingError;
use crate::matching::Source;
use crate::port::PeerId;
use crate::shared::tests::contents;
use crate::shared::tests::fabric::{Fabric, tiny};

const fn absent(peer: PeerId) -> StartError {
    StartError::PeerFailed { peer, failure: Failure::Absent }
}

/// Everything that a refused peer must leave as it was.
fn state(engine: &TestEngine<'_>) -> impl PartialEq + core::fmt::Debug + use<> {
    let failures: Vec<_> = engine.peers.iter().map(|peer| peer.failure).collect();
    let accounts: Vec<_> = engine.peers.iter().map(|peer| peer.account.clone()).collect();
    let bytes = (engine.committed_bytes(), engine.replies.capacity());
    (failures, accounts, engine.ledger.clone(), engine.backing, bytes)
}

#[test]
fn engine_that_is_alone_sends_to_itself_and_to_nobody_else() {
    let fabric = Fabric::new(tiny(3));
    let mut world = World::alone(&fabric, AMPLE, 2);
    for rank in [0, 2] {
        assert!(world.engine(rank).is_alone() && world.engine(rank).size() == rank + 1);
        let any = world.irecv(rank, pattern(Source::Any, 5), 700).unwrap();
        let send = world.isend(rank, rank, 5, contents(5, 700));
        world.settle();
        assert_eq!(world.done(any).1, contents(5, 700));
        world.done(send).0.unwrap();
        for other in [1, 9] {
            assert_eq!(world.isend_in(0, rank, other, 1, contents(1, 8)).err(), Some(absent(other)));
            assert_eq!(world.issend_in(0, rank, other, 1, contents(1, 3000)).err(), Some(absent(other)));
            let receive = world.irecv(rank, pattern(Source::Rank(other), 1), 8);
            assert_eq!(receive.err(), Some(absent(other)));
            assert_eq!(world.engine(rank).flush(other).err(), Some(absent(other)));
            assert_eq!(world.engine(rank).fence(other).err(), Some(absent(other)));
            assert!(world.engine(rank).is_vacant(other) && !world.engine(rank).reconnect(other));
        }
        assert!(!world.engine(rank).is_vacant(rank));
    }
    let own = world.engine(0).ledger.own_units() as usize;
    assert_eq!(world.engine(0).committed_bytes(), own * 64, "memory for messages to itself only");
    world.assert_empty(&[0, 1, 2], "alone");
}

#[test]
fn peers_are_added_in_any_order_and_numbers_between_them_have_no_peer() {
    let fabric = Fabric::new(tiny(6));
    let mut world = World::alone(&fabric, AMPLE, 5);
    let early = world.irecv(1, pattern(Source::Any, 77), 60).unwrap();
    for (one, other) in [(1, 4), (0, 4), (5, 0), (2, 5), (1, 0)] {
        world.meet(one, other).unwrap();
        exchange(&mut world, [one, other], "the new");
        exchange(&mut world, [1, 4], "the first");
    }
    for (rank, other) in [(1, 2), (1, 3), (0, 2), (4, 2), (2, 0)] {
        assert_eq!(world.isend_in(0, rank, other, 1, contents(1, 8)).err(), Some(absent(other)));
        assert!(!world.engine(rank).is_alone());
    }
    // A second time changes nothing.
    for rank in [0, 1] {
        let before = state(world.engine(rank));
        assert_eq!((world.engine(rank).add_peer(4), world.engine(rank).add_peer(rank)), (Ok(()), Ok(())));
        assert_eq!(state(world.engine(rank)), before);
    }
    exchange(&mut world, [0, 4], "added again");
    world.isend(0, 1, 77, contents(77, 60));
    world.settle();
    assert_eq!(world.done(early).1, contents(77, 60), "the receive was posted before any peer was there");
    world.assert_empty(&[0, 1, 2, 3, 4, 5], "after all");
}

#[test]
fn messages_to_a_peer_wait_until_the_two_are_connected() {
    let fabric = Fabric::new(tiny(2));
    let mut world = World::alone(&fabric, AMPLE, 1);
    world.engine(0).add_peer(1).unwrap();
    let sends: Vec<_> = [8, 200, 3000].map(|len| world.isend(0, 1, 1, contents(1, len))).into();
    world.settle();
    assert!(sends.iter().all(|send| world.test(*send).is_none()));
    world.meet(1, 0).unwrap();
    for len in [8, 200, 3000] {
        let receive = world.recv(1, 0, 1, len);
        world.settle();
        assert_eq!(world.done(receive).1, contents(1, len));
    }
    sends.into_iter().for_each(|send| _ = world.done(send).0.unwrap());
    world.assert_empty(&[0, 1], "connected late");
}

#[test]
fn peer_beyond_the_most_is_refused_and_one_that_leaves_makes_place() {
    let fabric = Fabric::new(tiny(5));
    let mut world = World::alone(&fabric, AMPLE, 2);
    world.meet(0, 1).unwrap();
    world.meet(0, 2).unwrap();
    let refused = Err(CeilingError::Connections { peers: 2, needed: 3 });
    let before = state(world.engine(0));
    for peer in [3, 4, 1000] {
        assert_eq!(world.engine(0).add_peer(peer), refused);
        assert_eq!(state(world.engine(0)), before, "a refused peer changes nothing");
    }
    // The place of a peer that has left is not free before its messages are taken.
    world.isend(2, 0, 7, contents(7, 100));
    world.settle();
    world.replace(2, Failure::Finished);
    assert_eq!(world.engine(0).add_peer(3), refused);
    let late = world.recv(0, 2, 7, 100);
    assert_eq!(world.done(late).1, contents(7, 100));
    world.meet(0, 3).unwrap();
    assert_eq!(world.engine(0).add_peer(2), refused);
    assert!(!world.engine(0).reconnect(2), "its credit belongs to another peer by now");
    exchange(&mut world, [0, 3], "in the place of another");
    exchange(&mut world, [1, 0], "beside another");
    world.assert_empty(&[0, 1, 3], "after a change of peers");
}

#[test]
fn error_names_a_ceiling_that_suffices() {
    let fabric = Fabric::new(tiny(16));
    let mut needed = 20;
    for _ in 0..4 {
        let room = WorldRoom { units: needed, ..AMPLE };
        let mut engine = open_alone(0, fabric.port_alone(0), room, SteppedUnits::new(needed), 15);
        let fits = (1..16).take_while(|&peer| engine.add_peer(peer).is_ok()).count() as u32;
        let last = engine.add_peer(15);
        let Err(CeilingError::Units { ceiling, peers, needed: suffices }) = last else {
            assert_eq!((fits, last), (15, Ok(())));
            return;
        };
        assert_eq!((ceiling as usize, peers), (needed, fits + 1), "{last:?}");
        assert!(suffices > needed as u64, "{suffices} units do not suffice, as {needed} do not");
        needed = suffices as usize;
        let room = WorldRoom { units: needed, ..AMPLE };
        let mut engine = open_alone(0, fabric.port_alone(0), room, SteppedUnits::new(needed), 15);
        assert!((1..=peers).all(|peer| engine.add_peer(peer).is_ok()), "{suffices} units do not suffice");
        needed += 20;
    }
    panic!("{needed} units are too few");
}

#[test]
fn memory_that_the_system_refuses_is_not_promised() {
    let fabric = Fabric::new(tiny(5));
    let units = SteppedUnits::limited(4000, 1200);
    let mut engine = open_alone(0, fabric.port_alone(0), WorldRoom { units: 4000, ..AMPLE }, units, 4);
    let reserve = engine.ledger.reserve();
    let fits = (1200 - engine.ledger.own_units()) / reserve;
    assert!((1..4).contains(&fits), "{fits}");
    (1..=fits).for_each(|peer| engine.add_peer(peer).unwrap());
    let before = (engine.ledger.clone(), engine.size());
    let needed = u64::from(engine.ledger.own_units() + (fits + 1) * reserve);
    let refused = CeilingError::Memory { committed: 1200, peers: fits + 1, needed };
    assert_eq!(engine.add_peer(fits + 1), Err(refused));
    assert_eq!((engine.ledger.clone(), engine.size()), before, "a refused peer changes nothing");
    // A reserve that has memory keeps it for the next peer.
    engine.fail(1, Failure::Died);
    engine.add_peer(fits + 1).unwrap();
    assert_eq!(engine.add_peer(1), Err(refused));
}

#[test]
fn number_is_not_used_again_while_a_message_of_its_former_peer_is_stored() {
    let fabric = Fabric::new(tiny(3));
    let mut world = World::alone(&fabric, AMPLE, 2);
    world.meet(0, 1).unwrap();
    for tag in 0..4 {
        world.isend(1, 0, tag, contents(tag, 60));
    }
    world.settle();
    world.replace(1, Failure::Finished);
    let (claimed, _) = world.improbe(0, pattern(Source::Any, 2)).unwrap();
    for (left, tag) in [0, 1, 3].into_iter().enumerate() {
        assert!(!world.engine(0).is_vacant(1));
        let units = 2 * (4 - left as u32);
        assert_eq!(world.engine(0).add_peer(1), Err(CeilingError::Stored { peer: 1, units }));
        let receive = world.recv(0, 1, tag, 60);
        assert_eq!(world.done(receive).1, contents(tag, 60));
    }
    // A message that a probe has removed is stored until it is received.
    assert_eq!(world.engine(0).add_peer(1), Err(CeilingError::Stored { peer: 1, units: 2 }));
    let last = world.imrecv(0, claimed, 60).unwrap();
    assert_eq!(world.done(last).1, contents(2, 60));
    assert!(world.engine(0).is_vacant(1));
    world.meet(0, 1).unwrap();
    let counters = world.engine(0).peer_counters(1).unwrap();
    assert_eq!((counters.eager_received, counters.unexpected), (0, 0), "of the former peer");
    exchange(&mut world, [0, 1], "the next peer with the number");
    world.assert_empty(&[0, 1], "used again");
}

#[test]
fn requests_of_a_peer_that_left_do_not_reach_the_next_one() {
    let fabric = Fabric::new(tiny(2));
    let mut world = World::alone(&fabric, AMPLE, 1);
    let gone = |peer| Err(CompletionError::PeerFailed { peer, failure: Failure::Died });
    for _ in 0..5 {
        world.meet(0, 1).unwrap();
        exchange(&mut world, [0, 1], "before");
        let send = world.isend(0, 1, 3, contents(3, 3000));
        let receive = world.recv(0, 1, 9, 8);
        let any = world.irecv(0, pattern(Source::Any, 9), 8).unwrap();
        world.isend(1, 0, 4, contents(4, 3000));
        world.settle();
        world.replace(1, Failure::Died);
        assert_eq!([send, receive, any].map(|it| world.done(it).0), [gone(1), gone(1), gone(1)]);
        assert!(world.engine(0).is_vacant(1), "what was only announced is dropped");
        assert!(world.irecv(0, pattern(Source::Any, 1), 8).is_err());
    }
    // The failure counts as acknowledged when the number has a peer again.
    world.meet(0, 1).unwrap();
    let any = world.irecv(0, pattern(Source::Any, 9), 8).unwrap();
    world.isend(1, 0, 9, contents(9, 8));
    world.settle();
    assert_eq!(world.done(any).1, contents(9, 8));
    world.assert_empty(&[0, 1], "after five deaths");
}

#[test]
fn number_without_a_peer_costs_one_state() {
    // Most of it are counters.
    let bytes = size_of::<Peer>();
    assert!(bytes <= 1088, "{bytes} bytes");
}

#[test]
fn each_end_is_returned_once_and_the_last_first() {
    let fabric = Fabric::new(tiny(4));
    let mut world = World::alone(&fabric, AMPLE, 3);
    for other in 1..4 {
        world.meet(0, other).unwrap();
    }
    assert_eq!(world.engine(0).next_ended(), None);
    world.engine(0).fail(1, Failure::Died);
    world.engine(0).fail(3, Failure::Finished);
    world.engine(0).fail(3, Failure::Died);
    assert_eq!([0; 3].map(|_| world.engine(0).next_ended()), [Some(3), Some(1), None]);
    // A number that has another peer by now is in the list once.
    world.engine(0).fail(2, Failure::Died);
    world.engine(0).add_peer(2).unwrap();
    world.engine(0).fail(2, Failure::Died);
    assert_eq!([0; 2].map(|_| world.engine(0).next_ended()), [Some(2), None]);
}

#[test]
fn a_check_of_a_number_finds_every_outcome_that_names_it_wherever_it_begins() {
    let fabric = Fabric::new(tiny(2));
    let mut world = World::alone(&fabric, AMPLE, 1);
    world.meet(0, 1).unwrap();
    let mut receives: Vec<_> = (0..6).map(|tag| world.recv(0, 1, tag, 8)).collect();
    world.replace(1, Failure::Died);
    let mut from = 0;
    // In an order in which the next one lies before or behind the last.
    for at in [3, 0, 2, 1, 0, 0] {
        from = world.engine(0).check_number(1, from).unwrap_err();
        assert_eq!(world.engine(0).check_number(1, u32::MAX).map_err(|_| ()), Err(()));
        world.done(receives.remove(at)).0.unwrap_err();
    }
    assert_eq!(world.engine(0).check_number(1, from), Ok(()));
    assert!(world.engine(0).is_vacant(1));
}

#[test]
fn worlds_are_joined_by_further_peers_whose_credit_comes_out_of_the_pool() {
    for ranks in [1, 2] {
        let fabric = Fabric::new(tiny(5));
        let mut world = World::with_ranks(&fabric, AMPLE, ranks, 4);
        let (before, last) = (state(world.engine(0)), ranks);
        assert_eq!(world.engine(0).add_peer(ranks - 1), Ok(()), "a rank is no further peer");
        assert_eq!(state(world.engine(0)), before);
        let refused = world.isend_in(0, 0, last, 1, contents(1, 8)).err();
        assert_eq!(refused, Some(StartError::Rank { rank: last, size: ranks }));
        for further in [ranks, ranks + 1] {
            world.meet(0, further).unwrap();
            exchange(&mut world, [0, further], "the new");
            world.assert_backed();
        }
        assert!(world.engine(0).ranks() == ranks && world.engine(0).size() >= ranks + 2);
        if ranks > 1 {
            exchange(&mut world, [0, 1], "the ranks");
        }
        let reserves = world.engine(0).ledger.reserves();
        world.assert_empty(&[0], "after all");
        // The reserve of one that has left serves the next.
        world.replace(ranks + 1, Failure::Died);
        world.meet(0, ranks + 1).unwrap();
        exchange(&mut world, [0, ranks + 1], "the next with the number");
        assert_eq!(world.engine(0).ledger.reserves(), reserves);
        world.assert_backed();
    }
}

#[test]
fn receives_from_any_source_of_a_world_outlive_a_further_peer_unless_it_is_the_last() {
    let fabric = Fabric::new(tiny(4));
    let mut world = World::with_ranks(&fabric, AMPLE, 2, 4);
    world.meet(0, 2).unwrap();
    world.meet(0, 3).unwrap();
    let any = world.irecv(0, pattern(Source::Any, 5), 60).unwrap();
    world.engine(0).fail(2, Failure::Died);
    assert_eq!((world.engine(0).next_ended(), world.engine(0).next_ended()), (Some(2), None));
    world.engine(0).fail(1, Failure::Finished);
    assert_eq!(world.engine(0).next_ended(), None, "ranks are not reported");
    assert!(world.test(any).is_none());
    world.engine(0).fail(3, Failure::Finished);
    let ended = Err(CompletionError::PeerFailed { peer: 3, failure: Failure::Finished });
    assert_eq!(world.done(any).0, ended);
    assert!(world.engine(0).is_alone());
}

#[test]
fn further_peers_that_the_pool_cannot_pay_are_refused_and_change_nothing() {
    let fabric = Fabric::new(tiny(5));
    let mut world = World::with_ranks(&fabric, AMPLE, 2, 4);
    let mut further = 2;
    let refused = loop {
        let before = state(world.engine(0));
        match world.engine(0).add_peer(further) {
            Ok(()) => further += 1,
            Err(error) => {
                assert_eq!(state(world.engine(0)), before);
                break error;
            }
        }
    };
    assert!(matches!(refused, CeilingError::Units { .. } | CeilingError::Memory { .. }), "{refused}");
    assert!(further > 2, "the pool pays for some");
    world.assert_backed();
    exchange(&mut world, [0, 1], "the ranks go on with their reserves");
}

#[test]
fn a_further_peer_does_not_hide_that_ranks_are_unmet() {
    let fabric = Fabric::new(tiny(3));
    let mut world = World::with_ranks(&fabric, AMPLE, 2, 4);
    world.engine(0).begin_unmet();
    world.engine(0).add_peer(2).unwrap();
    assert_eq!((world.engine(0).unmet_ranks(), world.engine(0).is_unmet(2)), (1, false));
    world.irecv(0, pattern(Source::Any, 5), 60).unwrap();
    assert_eq!((world.engine(0).next_wanted(), world.engine(0).next_wanted()), (Some(1), None));
}
