//! The ceiling of unexpected messages: senders wait, no message is lost, and unaffected operations continue.

use crate::port::PacketPieces;
use std::vec::Vec;

use crate::engine::tests::world::{AMPLE, RequestHandle, SteppedUnits, TUNING, World, WorldRoom, pattern};
use crate::engine::{CompletionError, Engine, Failure, Lent, Peer, RequestId, Status, Tuning};
use crate::flow::CeilingError;
use crate::matching::{Pattern, Source};
use crate::port::{PacketPort, PeerId, PortFault};
use crate::shared::sleep::Sleep;
use crate::shared::tests::contents;
use crate::shared::tests::fabric::{Fabric, Reading, tiny};
use crate::slab::{List, Slot};
use crate::store::cost;
use crate::wire::rendezvous::Rts;
use crate::wire::{Envelope, Kind};

const ANY: Pattern = Pattern { source: Source::Any, context: 0, tag: 0, ignore: u64::MAX };

/// Cost of the largest packet. The pool is granted in no smaller pieces.
const PACKET: u32 = cost(256);

/// A store with `units` units for peers, the reserve for this process itself, and the smallest possible window.
const fn units(units: usize) -> WorldRoom {
    WorldRoom { units: units + 1, tuning: Tuning { window: 1, ..TUNING }, ..AMPLE }
}

fn received(world: &mut World<'_>, receive: RequestHandle, from: PeerId, tag: u64, len: usize) {
    let (outcome, bytes) = world.done(receive);
    assert_eq!(outcome, Ok(Status { peer: from, tag, len, immediate: None }));
    assert_eq!(bytes, contents(tag, len));
}

#[test]
fn sender_is_held_at_the_ceiling_and_everything_arrives_in_order() {
    for room in [units(1), units(2), units(7), units(40)] {
        for (synchronous, len) in
            [(false, 8), (false, 100), (false, 256), (false, 700), (true, 0), (true, 200), (true, 700)]
        {
            for (seed, reading) in (0..).zip([Reading::Never, Reading::Always, Reading::Refused(3)]) {
                let fabric = Fabric::reading(tiny(2), reading, seed);
                let mut world = World::new(&fabric, room);
                let sends: Vec<_> = (0..60)
                    .map(|tag| match synchronous {
                        true => world.issend(0, 1, tag, contents(tag, len)),
                        false => world.isend(0, 1, tag, contents(tag, len)),
                    })
                    .collect();
                world.settle();
                assert_eq!(world.engine(1).held_peers(), 1, "{len} bytes");
                assert!(world.engine(1).is_held(0) && !world.engine(1).is_held(1));
                assert!((1..=room.units).contains(&world.engine(1).unexpected_messages()));
                let (free, own) = (world.engine(1).store.free_units(), world.engine(1).ledger.own_units());
                assert_eq!(free, own, "every unit except rank 1's own reserve is used");
                for tag in 0..60 {
                    let receive = world.recv(1, 0, tag, len);
                    world.settle();
                    received(&mut world, receive, 0, tag, len);
                }
                for send in sends {
                    world.done(send).0.unwrap();
                }
                world.assert_empty(&[0, 1], "after the ceiling");
            }
        }
    }
}

#[test]
fn receive_reports_whether_its_message_may_be_held() {
    let fabric = Fabric::new(tiny(3));
    let mut world = World::new(&fabric, units(2));
    let other = world.recv(1, 0, 77, 8);
    let any = world.irecv(1, pattern(Source::Any, 77), 8).unwrap();
    let sends: Vec<_> = (0..3).map(|tag| world.isend(0, 1, tag, contents(tag, 8))).collect();
    world.settle();
    assert!(world.engine(1).is_held(0) && !world.engine(1).is_held(2));
    assert!(world.engine(1).may_be_held(other.id), "its message may wait behind others");
    assert!(!world.engine(1).may_be_held(any.id), "rank 2 can still send");
    world.isend(2, 1, 5, contents(5, 8));
    world.settle();
    assert_eq!(world.engine(1).held_peers(), 2);
    assert!(world.engine(1).may_be_held(any.id));
    for (from, tag) in [(0, 0), (0, 1), (0, 2), (2, 5)] {
        let receive = world.recv(1, from, tag, 8);
        world.settle();
        received(&mut world, receive, from, tag, 8);
    }
    assert_eq!(world.engine(1).held_peers(), 0);
    assert!(!world.engine(1).may_be_held(other.id) && !world.engine(1).may_be_held(any.id));
    assert!(sends.into_iter().all(|send| world.done(send).0.is_ok()));
}

#[test]
fn peer_that_failed_is_not_held() {
    let fabric = Fabric::new(tiny(3));
    let mut world = World::new(&fabric, units(2));
    world.isend(0, 1, 1, contents(1, 8));
    world.isend(0, 1, 2, contents(2, 8));
    world.settle();
    assert!(world.engine(1).is_held(0));
    let any = world.irecv(1, pattern(Source::Any, 77), 8).unwrap();
    world.engine(1).fail(0, Failure::Finished);
    assert!(!world.engine(1).is_held(0) && !world.engine(1).may_be_held(any.id));
    let receive = world.recv(1, 0, 1, 8);
    received(&mut world, receive, 0, 1, 8);
}

#[test]
fn bypass_continues_with_peers_that_have_credit() {
    let fabric = Fabric::new(tiny(3));
    let mut world = World::new(&fabric, units(2));
    world.isend(0, 1, 1, contents(1, 8));
    world.settle();
    assert!(world.engine(1).is_held(0));
    assert!(!world.engine(1).can_bypass(&pattern(Source::Rank(0), 1)), "its message has arrived");
}

#[test]
fn held_peer_does_not_block_the_others() {
    for (reading, room) in [(Reading::Never, units(2)), (Reading::Always, units(20))] {
        let fabric = Fabric::reading(tiny(3), reading, 1);
        let mut world = World::new(&fabric, room);
        for len in [8, 100, 600].into_iter().cycle().take(60) {
            world.isend(0, 1, 1, contents(1, len));
        }
        world.settle();
        for (tag, len) in (10..60).zip([8, 100, 600].into_iter().cycle()) {
            let receive = world.recv(1, 2, tag, len);
            let send = world.isend(2, 1, tag, contents(tag, len));
            world.settle();
            received(&mut world, receive, 2, tag, len);
            world.done(send).0.unwrap();
        }
        assert!(world.engine(1).is_held(0));
    }
}

#[test]
fn small_message_to_a_full_peer_waits_and_a_larger_one_is_announced() {
    let fabric = Fabric::new(tiny(2));
    let mut world = World::new(&fabric, units(2 * PACKET as usize));
    // Nine units are used; one unit and rank 1's own reserve are left.
    for (tag, len) in [(1, 256), (4, 200)] {
        assert_eq!(world.isend(0, 1, tag, contents(tag, len)).id, RequestId::SENT);
        world.settle();
    }
    assert_eq!((world.engine(1).store.free_units(), world.engine(1).is_held(0)), (2, false));
    let announced = world.isend(0, 1, 2, contents(2, 200));
    assert_ne!(announced.id, RequestId::SENT);
    world.settle();
    assert_eq!((world.engine(1).unexpected_messages(), world.engine(1).store.free_units()), (3, 1));
    let waiting = world.isend(0, 1, 3, contents(3, 8));
    world.settle();
    assert_eq!((world.test(announced), world.test(waiting)), (None, None));
    assert_eq!(world.engine(1).unexpected_messages(), 3);
    let receive = world.recv(1, 0, 2, 200);
    world.settle();
    received(&mut world, receive, 0, 2, 200);
    world.done(announced).0.unwrap();
    let receives = [(1, 256), (4, 200)].map(|(tag, len)| (tag, len, world.recv(1, 0, tag, len)));
    world.settle();
    world.done(waiting).0.unwrap();
    for (tag, len, receive) in receives {
        received(&mut world, receive, 0, tag, len);
    }
    let receive = world.recv(1, 0, 3, 8);
    received(&mut world, receive, 0, 3, 8);
    world.assert_empty(&[0, 1], "announced for want of credit");
}

#[test]
fn expected_messages_are_never_held() {
    let fabric = Fabric::new(tiny(2));
    let mut world = World::new(&fabric, units(1));
    for tag in 0..1000 {
        let len = tag as usize % 257;
        let receive = world.recv(1, 0, tag, len);
        let send = world.isend(0, 1, tag, contents(tag, len));
        for _ in 0..6 {
            world.engine(1).progress();
            world.engine(0).progress();
        }
        world.done(send).0.unwrap();
        received(&mut world, receive, 0, tag, len);
    }
    world.assert_empty(&[0, 1], "expected");
}

#[test]
fn memory_that_a_dead_peer_leaves_is_granted_to_held_peers() {
    for (announced, len) in [(true, 2000), (false, 8)] {
        let fabric = Fabric::new(tiny(3));
        let mut world = World::new(&fabric, WorldRoom { tuning: TUNING, ..units(4 * PACKET as usize) });
        // Both ranks use all credit that they get.
        for from in [0, 2] {
            for tag in 0..20 {
                world.isend(from, 1, tag, contents(tag, len));
            }
        }
        world.settle();
        assert!(world.engine(1).held_peers() == 2 && world.engine(1).store.free_units() < PACKET);
        let before = world.engine(1).unexpected_messages();
        world.engine(1).fail(0, Failure::Died);
        for tag in (0..20).filter(|_| !announced) {
            // A message that arrived whole stays until it is received.
            let Ok(receive) = world.irecv(1, pattern(Source::Rank(0), tag), 8) else { break };
            received(&mut world, receive, 0, tag, 8);
        }
        let left = world.engine(1).unexpected_messages();
        assert!(left < before, "the messages of rank 0 were dropped");
        for _ in 0..50 {
            world.engine(2).progress();
            world.engine(1).progress();
        }
        // The reserve of rank 0 is kept, because the rank may reconnect.
        let (ledger, free) = (world.engine(1).ledger.clone(), world.engine(1).store.free_units());
        assert!(world.engine(1).is_held(2) && free < PACKET + ledger.reserve() && ledger.free() < PACKET);
        assert!(world.engine(1).unexpected_messages() > left, "other messages use the freed memory");
    }
}

#[test]
fn message_that_was_probed_keeps_its_room_until_it_is_received() {
    let fabric = Fabric::new(tiny(2));
    let mut world = World::new(&fabric, units(1));
    let sends: Vec<_> = (0..3).map(|tag| world.isend(0, 1, tag, contents(tag, 8))).collect();
    for tag in 0..3 {
        world.settle();
        let (id, status) = world.improbe(1, ANY).unwrap();
        assert_eq!(status, Status { peer: 0, tag, len: 8, immediate: None });
        world.settle();
        assert!(world.engine(1).is_held(0) && world.engine(1).iprobe(&ANY).is_none());
        let receive = world.imrecv(1, id, 8).unwrap();
        received(&mut world, receive, 0, tag, 8);
    }
    world.settle();
    assert!(sends.into_iter().all(|send| world.done(send).0.is_ok()));
    world.assert_empty(&[0, 1], "probed at the ceiling");
}

#[test]
fn message_to_self_without_memory_waits_for_memory_or_its_receive() {
    // Once with a peer to which all memory is granted, and then alone with very little memory.
    for (peers, room) in [(2, units(1)), (1, units(0)), (1, units(1)), (1, units(4))] {
        for len in [8, 100, 256, 2000] {
            let fabric = Fabric::new(tiny(peers));
            let mut world = World::new(&fabric, room);
            let sends: Vec<_> = (0..10).map(|tag| world.isend(0, 0, tag, contents(tag, len))).collect();
            world.settle();
            assert!(world.engine(0).sends_pending());
            assert!(world.engine(0).unexpected_messages() <= room.units);
            for tag in 0..10 {
                let receive = world.recv(0, 0, tag, len);
                world.settle();
                received(&mut world, receive, 0, tag, len);
            }
            assert!(sends.into_iter().all(|send| world.done(send).0.is_ok()));
            world.assert_empty(&[0], "to ourselves at the ceiling");
        }
    }
}

/// All other memory is granted to a peer that sends nothing. Messages to the process itself still arrive, whole or
/// announced.
#[test]
fn message_to_self_arrives_although_all_memory_is_granted_to_peers() {
    for (len, synchronous) in [(0, false), (8, false), (256, false), (2000, false), (8, true)] {
        let fabric = Fabric::new(tiny(3));
        let mut world = World::new(&fabric, units(2 * PACKET as usize));
        assert_eq!(world.engine(0).ledger.free(), 0);
        for tag in 0..10 {
            let send = match synchronous {
                true => world.issend(0, 0, tag, contents(tag, len)),
                false => world.isend(0, 0, tag, contents(tag, len)),
            };
            assert_eq!(world.engine(0).iprobe(&ANY), Some(Status { peer: 0, tag, len, immediate: None }));
            let next = world.isend(0, 0, tag + 100, contents(tag + 100, 8));
            let held = (world.engine(0).is_held(0), world.engine(0).held_peers());
            assert_eq!(held, (true, 1), "a second message finds no memory, and is reported as held");
            let late = world.recv(0, 0, tag, len);
            received(&mut world, late, 0, tag, len);
            let receive = world.recv(0, 0, tag + 100, 8);
            world.settle();
            received(&mut world, receive, 0, tag + 100, 8);
            world.done(send).0.unwrap();
            world.done(next).0.unwrap();
        }
        world.assert_empty(&[0], "to ourselves, beside promises");
    }
}

#[test]
fn message_to_self_that_is_held_can_be_withdrawn_and_leaves_nothing_behind() {
    for len in [0, 8, 256] {
        let fabric = Fabric::new(tiny(1));
        let mut world = World::new(&fabric, units(PACKET as usize));
        let mut sends: Vec<_> = (0..20).map(|tag| world.isend(0, 0, tag % 3, contents(tag, len))).collect();
        let large = [world.isend(0, 0, 50, contents(50, 2000)), world.issend(0, 0, 51, contents(51, 8))];
        world.settle();
        assert!(
            large.iter().all(|it| !world.engine(0).is_own_send_held(it.id)),
            "these messages wait only for a receive"
        );
        assert!(!world.engine(0).withdraw_own_send(RequestId::SENT));
        let held: Vec<_> = (0..)
            .zip(&sends)
            .filter(|(_, it)| it.id != RequestId::SENT)
            .map(|(tag, it)| (tag, *it))
            .collect();
        assert!(held.len() > 5 && held.iter().all(|(_, it)| world.engine(0).is_own_send_held(it.id)));
        // Every second one; of the first perhaps only the RTS is stored.
        for (_, handle) in held.iter().step_by(2) {
            assert!(world.engine(0).withdraw_own_send(handle.id));
            assert!(!world.engine(0).withdraw_own_send(handle.id));
            assert_eq!(world.done(*handle).0, Err(CompletionError::Cancelled));
        }
        let withdrawn: Vec<u64> = held.iter().step_by(2).map(|(tag, _)| *tag).collect();
        for tag in (0..20).filter(|tag| !withdrawn.contains(tag)) {
            let receive = world.recv(0, 0, tag % 3, len);
            world.settle();
            assert_eq!(world.done(receive).1, contents(tag, len), "in the order sent");
            assert!(world.done(sends[tag as usize]).0.is_ok());
        }
        sends.clear();
        for (tag, len) in [(50, 2000), (51, 8)] {
            let receive = world.recv(0, 0, tag, len);
            world.settle();
            received(&mut world, receive, 0, tag, len);
        }
        assert!(large.into_iter().all(|send| world.done(send).0.is_ok()));
        world.assert_empty(&[0], "withdrawn");
    }
}

/// Credit that one peer no longer needs goes to another that waits for it, as soon as the ledger settles, also on an
/// arrival.
#[test]
fn memory_that_an_arrival_frees_is_granted_to_held_peers() {
    let fabric = Fabric::new(tiny(3));
    let mut world = World::new(&fabric, WorldRoom { tuning: Tuning { window: 40, ..TUNING }, ..units(80) });
    // Rank 0 has a stored message and holds pool units for its window. Rank 2 then uses all remaining units.
    for tag in 0..15 {
        world.isend(0, 1, tag, contents(tag, 8));
    }
    world.settle();
    for tag in 0..80 {
        world.isend(2, 1, tag, contents(tag, 8));
    }
    world.settle();
    assert_eq!((world.engine(1).is_held(2), world.engine(1).is_held(0)), (true, false));
    let before = world.engine(1).unexpected_messages();
    for _ in 0..12 {
        let receive = world.recv(1, 0, 99, 8);
        world.isend(0, 1, 99, contents(99, 8));
        world.settle();
        received(&mut world, receive, 0, 99, 8);
    }
    let now = world.engine(1).unexpected_messages();
    assert!(
        now > before,
        "{before} messages were stored and none was received, but there is memory for more"
    );
}

#[test]
fn memory_of_a_message_to_self_is_reused() {
    let fabric = Fabric::new(tiny(1));
    let mut world = World::new(&fabric, units(PACKET as usize));
    for tag in 0..50 {
        // The first message is stored; of the second, only the RTS.
        for len in [256, 2000] {
            let send = world.isend(0, 0, tag, contents(tag, len));
            assert_eq!(world.engine(0).unexpected_messages(), 1, "message {tag} of {len} bytes waits");
            let receive = world.recv(0, 0, tag, len);
            received(&mut world, receive, 0, tag, len);
            world.done(send).0.unwrap();
        }
    }
    world.assert_empty(&[0], "to ourselves, again");
}

#[test]
fn sender_that_gets_credit_while_it_sleeps_is_woken() {
    let fabric = Fabric::new(tiny(2));
    let mut world = World::new(&fabric, units(1));
    let sends = [world.isend(0, 1, 1, contents(1, 8)), world.isend(0, 1, 2, contents(2, 8))];
    world.settle();
    assert_eq!(world.test(sends[1]), None);
    world.engine(1).port_mut().port.host_mut().rung.clear();
    fabric.sleep(0).announce(Sleep::Futex);
    let receive = world.recv(1, 0, 1, 8);
    received(&mut world, receive, 0, 1, 8);
    assert_eq!(world.engine(1).port_mut().port.host_mut().rung, [0]);
    assert!(world.engine(0).progress().packets > 0, "the send leaves at once");
    world.done(sends[1]).0.unwrap();
}

#[test]
fn sending_beyond_the_granted_credit_is_a_fault() {
    let rts = Rts::of(5000, 1, None).encode();
    for (kind, payload) in [(Kind::Eager, &[1; 8][..]), (Kind::Eager, &[1; 256]), (Kind::Rts, &rts)] {
        for expected in [false, true] {
            let fabric = Fabric::new(tiny(3));
            let mut world = World::new(&fabric, units(12));
            let receive = expected.then(|| world.recv(0, 1, 9, 8));
            let other = world.recv(0, 2, 1, 8);
            let units = cost(payload.len());
            let mut sent = 0;
            let envelope = |tag| Envelope { kind, context: 0, tag, total: payload.len() as u64 };
            while sent + u64::from(units) <= world.engine(1).port_mut().granted(0) {
                assert_eq!(
                    world.engine(1).port_mut().send(0, &envelope(1), PacketPieces::Whole(payload)),
                    Ok(true)
                );
                world.engine(0).progress();
                assert_eq!(world.engine(0).failure(1), None, "the peer stayed within its credit");
                sent += u64::from(units);
            }
            assert!((6..=12).contains(&world.engine(1).port_mut().granted(0)), "the credit is exhausted");
            // One more message exceeds the credit, whether it matches or not.
            let stored = world.engine(0).unexpected_messages();
            assert_eq!(
                world.engine(1).port_mut().send(
                    0,
                    &envelope(if expected { 9 } else { 1 }),
                    PacketPieces::Whole(payload)
                ),
                Ok(true)
            );
            world.engine(0).progress();
            let failure = world.engine(0).failure(1);
            assert!(matches!(failure, Some(Failure::Fault(PortFault::Credit { .. }))), "{failure:?}");
            let kept = if kind == Kind::Rts { 0 } else { stored };
            assert_eq!(
                world.engine(0).unexpected_messages(),
                kept,
                "announced messages were dropped with their sender"
            );
            if let Some(receive) = receive {
                let (outcome, _) = world.done(receive);
                assert!(
                    kind == Kind::Eager
                        || matches!(outcome, Err(CompletionError::PeerFailed { peer: 1, .. })),
                    "{outcome:?}"
                );
            }
            world.isend(2, 0, 1, contents(1, 8));
            world.engine(0).progress();
            received(&mut world, other, 2, 1, 8);
        }
    }
}

#[test]
fn false_grant_harms_only_its_sender() {
    let fabric = Fabric::new(tiny(3));
    let mut world = World::new(&fabric, units(2));
    // Rank 1 grants rank 0 more than it has, and withdraws it.
    for lie in [u64::MAX, 0, 1 << 63] {
        fabric.line(1, 0).credit.store_relaxed(lie);
        for tag in 0..3 {
            world.isend(0, 1, tag, contents(tag, 100));
            world.isend(0, 2, tag, contents(tag, 8));
        }
        world.engine(0).progress();
    }
    world.settle();
    assert_eq!(world.engine(0).failure(2), None);
    for _ in 0..3 {
        for tag in 0..3 {
            let receive = world.recv(2, 0, tag, 8);
            world.settle();
            received(&mut world, receive, 0, tag, 8);
        }
    }
    let found = world.engine(1).failure(0);
    assert!(matches!(found, Some(Failure::Fault(PortFault::Credit { .. }))), "{found:?}");
}

#[test]
fn fewer_units_than_ranks_are_refused() {
    let fabric = Fabric::new(tiny(4));
    for (units, enough) in [(0, false), (3, false), (4, true), (5, true)] {
        let lent = Lent::<crate::engine::tests::world::WorldStorage> {
            requests: Vec::<Slot<_>>::new(),
            peers: (0..4).map(|_| Peer::default()).collect(),
            units: SteppedUnits::new(units),
            stored: Vec::new(),
            posted: Vec::<List>::new(),
            regions: Vec::new(),
            replies: Vec::new(),
            selections: Vec::new(),
            handlers: Default::default(),
            trace: (),
        };
        let made = Engine::new(0, fabric.port(0), TUNING, lent);
        match made {
            Ok(_) => assert!(enough, "{units} units"),
            Err(error) => {
                assert!(!enough, "{units} units");
                assert_eq!(error, CeilingError::Units { ceiling: units as u32, peers: 3, needed: 4 });
            }
        }
    }
}
