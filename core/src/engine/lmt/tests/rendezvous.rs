//! Messages that are matched before their data moves: synchronous ones, large ones, and peers that die during
//! the transfer.

use crate::port::SharedCopy as _;
use std::vec::Vec;

use crate::engine::tests::world::{AMPLE, ASSIST, RequestHandle, TUNING, World, WorldRoom, pattern};
use crate::engine::{CompletionError, Failure, PACKETS_A_TURN, RequestId, Status, Truncation, Tuning};
use crate::matching::{Pattern, Source};
use crate::port::{Part, PeerId, PortFault};
use crate::shared::tests::contents;
use crate::shared::tests::fabric::WorldShape;
use crate::shared::tests::fabric::{Fabric, Reading, tiny};

const READINGS: [Reading; 4] = [Reading::Never, Reading::Always, Reading::Unreadable(4), Reading::Refused(4)];

fn start(
    world: &mut World<'_>,
    synchronous: bool,
    from: PeerId,
    to: PeerId,
    tag: u64,
    len: usize,
) -> RequestHandle {
    match synchronous {
        true => world.issend(from, to, tag, contents(tag, len)),
        false => world.isend(from, to, tag, contents(tag, len)),
    }
}

/// Checks the result of receiving a message of `len` bytes into `room` bytes.
pub(super) fn assert_received(
    world: &mut World<'_>,
    receive: RequestHandle,
    from: PeerId,
    tag: u64,
    len: usize,
    room: usize,
) {
    let (outcome, bytes) = world.done(receive);
    let moved = len.min(room);
    let status = Status { peer: from, tag, len: moved, immediate: None };
    let cut = Err(CompletionError::Truncated(Truncation { status, message: len as u64 }));
    assert_eq!(outcome, if moved < len { cut } else { Ok(status) });
    assert_eq!(bytes[..moved], contents(tag, len)[..moved], "{len} bytes into {room}");
    assert!(bytes[moved..].iter().all(|&byte| byte == 0xee), "bytes beyond the message were written");
}

#[test]
fn synchronous_or_large_send_is_complete_only_when_it_is_received() {
    for (seed, reading) in (0..).zip(READINGS) {
        let fabric = Fabric::reading(tiny(2), reading, seed);
        let mut world = World::new(&fabric, AMPLE);
        let synchronous = [0, 1, 48, 200, 223, 224, 225, 256, 257, 512, 4000].map(|len| (true, len));
        for (synchronous, len) in synchronous.into_iter().chain([(false, 257), (false, 512), (false, 4000)]) {
            for room in [len, len + 100] {
                let send = start(&mut world, synchronous, 0, 1, 3, len);
                assert_ne!(send.id, RequestId::SENT);
                let other = world.recv(1, 0, 4, room);
                world.settle();
                assert_eq!(world.test(send), None, "{len} bytes: no receive has matched it");
                assert!(world.engine(0).sends_pending());
                let receive = world.recv(1, 0, 3, room);
                world.settle();
                assert_received(&mut world, receive, 0, 3, len, room);
                assert_eq!(world.done(send).0, Ok(Status { peer: 1, tag: 3, len, immediate: None }));
                let expected = start(&mut world, synchronous, 0, 1, 4, len);
                world.settle();
                assert_received(&mut world, other, 0, 4, len, room);
                assert_eq!(world.done(expected).0, Ok(Status { peer: 1, tag: 4, len, immediate: None }));
            }
        }
        world.assert_empty(&[0, 1], "synchronous sends");
    }
}

#[test]
fn truncated_rendezvous_moves_the_bytes_that_fit_and_completes_its_send() {
    for (seed, reading) in (0..).zip(READINGS) {
        let fabric = Fabric::reading(tiny(2), reading, seed);
        let mut world = World::new(&fabric, AMPLE);
        let cases = [(true, 8, 0), (true, 200, 7), (true, 224, 223), (true, 300, 224), (true, 300, 225)];
        for (synchronous, len, room) in cases
            .into_iter()
            .chain([(true, 3000, 1), (true, 3000, 0)])
            .chain([0, 1, 223, 224, 225, 256, 512, 513, 2047, 4999].map(|room| (false, 5000, room)))
        {
            for expected in [true, false] {
                let early = expected.then(|| world.recv(1, 0, 3, room));
                let send = start(&mut world, synchronous, 0, 1, 3, len);
                world.settle();
                let receive = early.unwrap_or_else(|| world.recv(1, 0, 3, room));
                world.settle();
                assert_received(&mut world, receive, 0, 3, len, room);
                assert_eq!(world.done(send).0, Ok(Status { peer: 1, tag: 3, len, immediate: None }));
            }
        }
        world.assert_empty(&[0, 1], "truncated");
    }
}

#[test]
fn bytes_move_by_a_protocol_that_works() {
    for (reading, pulled) in [(Reading::Never, false), (Reading::Always, true)] {
        let fabric = Fabric::reading(tiny(2), reading, 1);
        let mut world = World::new(&fabric, AMPLE);
        let receive = world.recv(1, 0, 1, 10_000);
        let send = world.isend(0, 1, 1, contents(1, 10_000));
        world.settle();
        world.done(send).0.unwrap();
        assert_eq!(world.done(receive).1, contents(1, 10_000));
        let moved = fabric.with_memory(|memory| memory.pulled + memory.pushed);
        // Bytes that both sides wanted to copy may be copied twice.
        assert_eq!(moved >= 10_000, pulled, "{moved} bytes");
        let packets = world.engine(0).port_mut().sent;
        assert!(if pulled { packets == 1 } else { packets > 10_000 / 256 }, "{packets} packets");
    }
}

#[test]
fn bytes_in_memory_that_can_be_mapped_move_without_the_kernel() {
    // Once in three times a mapping fails; the bytes then move by the kernel, or as a stream.
    for (reading, mapping) in [
        (Reading::Never, usize::MAX),
        (Reading::Always, usize::MAX),
        (Reading::Always, 3),
        (Reading::Never, 3),
        (Reading::Refused(3), 3),
    ] {
        let fabric = Fabric::reading(tiny(2), reading, 1);
        fabric.with_memory(|memory| memory.mapping = Some(mapping));
        let mut world = World::new(&fabric, AMPLE);
        for len in [600, 10_000] {
            for tag in 0..20 {
                let receive = world.recv(1, 0, tag, len);
                let send = world.isend(0, 1, tag, contents(tag, len));
                for _ in 0..200 {
                    world.engine(1).step();
                    world.engine(0).step();
                }
                world.settle();
                world.done(send).0.unwrap();
                assert_eq!(world.done(receive).1, contents(tag, len));
            }
        }
        let (by_kernel, mapped) = fabric.with_memory(|memory| (memory.pulled + memory.pushed, memory.mapped));
        let packets = world.engine(0).port_mut().sent;
        assert!(mapped > 0, "{reading:?}");
        if mapping == usize::MAX {
            // A sender that assists writes memory that is not lent to it through the kernel.
            let moved = mapped + by_kernel;
            assert!(moved >= 20 * 10_000 && packets == 40, "{reading:?}: {moved} bytes, {packets} packets");
        }
        assert!(by_kernel == 0 || reading != Reading::Never, "{by_kernel} bytes by the kernel");
    }
}

#[test]
fn sender_copies_a_part_from_the_chosen_size_on() {
    for (assist_bytes, shared) in [(ASSIST, true), (10_000, true), (10_001, false), (u64::MAX, false)] {
        let fabric = Fabric::reading(tiny(2), Reading::Always, 1);
        let mut world = World::new(&fabric, WorldRoom { tuning: Tuning { assist_bytes, ..TUNING }, ..AMPLE });
        let receive = world.recv(1, 0, 1, 10_000);
        let send = world.isend(0, 1, 1, contents(1, 10_000));
        for _ in 0..200 {
            // One piece each.
            world.engine(1).step();
            world.engine(0).step();
        }
        world.done(send).0.unwrap();
        assert_eq!(world.done(receive).1, contents(1, 10_000));
        let pushed = fabric.with_memory(|memory| memory.pushed);
        assert_eq!(pushed > 0, shared, "{pushed} bytes pushed, of messages from {assist_bytes} on");
    }
}

#[test]
fn sender_copies_nothing_more_after_its_receiver_has_failed_it() {
    let fabric = Fabric::reading(tiny(2), Reading::Always, 1);
    let mut world = World::new(&fabric, AMPLE);
    let receive = world.recv(1, 0, 1, 100_000);
    world.isend(0, 1, 1, contents(1, 100_000));
    let pushed = || fabric.with_memory(|memory| memory.pushed);
    while pushed() == 0 {
        world.engine(1).step();
        world.engine(0).step();
    }
    world.engine(1).fail(0, Failure::Fault(PortFault::Memory { len: 1 }));
    // The buffer belongs to its owner again. The sender is alive and has not learned of the failure.
    assert!(matches!(world.engine(1).test(receive.id), Some(Err(CompletionError::PeerFailed { .. }))));
    let before = pushed();
    for _ in 0..100 {
        world.engine(0).step();
    }
    assert_eq!(pushed(), before, "bytes were copied into a buffer of another owner");
}

/// Makes each of these ranks announce a message to `to`, and claim a part that it does not write. Returns the receives,
/// and the parts.
fn stopped_copies(world: &mut World<'_>, from: &[PeerId], to: PeerId) -> Vec<(RequestHandle, Part)> {
    let mut claim = |from: PeerId| {
        let receive = world.recv(to, from, 1, 100_000);
        world.isend(from, to, 1, contents(1, 100_000));
        let assist = loop {
            world.engine(to).step();
            if let Some(assist) = world.engine(from).port_mut().find_assist(to) {
                break assist;
            }
        };
        (receive, world.engine(from).port_mut().join_assist(to, assist.end).unwrap())
    };
    from.iter().map(|from| claim(*from)).collect()
}

#[test]
fn receive_from_a_faulty_peer_ends_when_the_peer_has_ended_its_part_or_is_dead() {
    let fault = Failure::Fault(PortFault::Memory { len: 1 });
    for end in [None, Some(Failure::Died)] {
        let fabric = Fabric::reading(tiny(2), Reading::Always, 1);
        let mut world = World::new(&fabric, AMPLE);
        let (receive, part) = stopped_copies(&mut world, &[0], 1)[0];
        let posted = world.recv(1, 0, 2, 8);
        world.engine(1).fail(0, fault);
        let failed = Err(CompletionError::PeerFailed { peer: 0, failure: fault });
        assert_eq!(world.done(posted).0, failed, "all others end at once");
        for _ in 0..100 {
            world.engine(1).progress();
            assert!(world.test(receive).is_none(), "the sender is about to write");
        }
        assert!(world.engine(1).writes_late(0) && !world.engine(1).end_assists());
        assert!(!world.engine(1).reconnect(0), "the segments are in use");
        match end {
            None => world.engine(0).port_mut().end_part(1, part, true),
            Some(failure) => world.engine(1).fail(0, failure),
        }
        world.engine(1).progress();
        assert_eq!(world.done(receive).0, failed);
        assert!(!world.engine(1).writes_late(0) && world.engine(1).end_assists());
        assert!(world.engine(1).reconnect(0));
    }
}

#[test]
fn receives_for_whose_shares_there_is_no_place_end_when_their_peers_are_dead() {
    let fabric = Fabric::reading(tiny(12), Reading::Always, 1);
    let mut world = World::new(&fabric, AMPLE);
    // Rank 0 copies the smallest parts, and so leaves some to the others.
    let from: Vec<_> = (1..12).collect();
    let copies = stopped_copies(&mut world, &from, 0);
    for from in from {
        world.engine(0).fail(from, Failure::Fault(PortFault::Memory { len: 1 }));
    }
    for (from, (_, part)) in (1..).zip(&copies) {
        world.engine(from).port_mut().end_part(0, *part, true);
    }
    world.engine(0).progress();
    assert_eq!((1..12).filter(|from| world.engine(0).writes_late(*from)).count(), 3);
    (1..12).for_each(|from| world.engine(0).fail(from, Failure::Died));
    for (receive, _) in copies {
        assert!(matches!(world.done(receive).0, Err(CompletionError::PeerFailed { .. })));
    }
}

#[test]
fn shares_end_with_every_peer_although_one_does_not_leave() {
    let fabric = Fabric::reading(tiny(3), Reading::Always, 1);
    let mut world = World::new(&fabric, AMPLE);
    for from in [0, 1] {
        world.recv(2, from, 1, 100_000);
        world.isend(from, 2, 1, contents(1, 100_000));
    }
    while fabric.with_memory(|memory| memory.pushed) == 0 {
        world.engine(2).step();
        world.engine(1).step();
    }
    // Rank 0 claims a part and never writes it.
    let port = world.engine(0).port_mut();
    let assist = port.find_assist(2).unwrap();
    port.join_assist(2, assist.end).unwrap();
    assert!(!world.engine(2).end_assists(), "rank 0 may be about to write");
    let before = fabric.with_memory(|memory| memory.pushed);
    for _ in 0..100 {
        world.engine(1).step();
    }
    assert_eq!(fabric.with_memory(|memory| memory.pushed), before, "rank 1 still copies");
}

#[test]
fn message_is_read_with_non_temporal_stores_from_the_chosen_size_on() {
    for (non_temporal_bytes, non_temporal) in [(0, true), (10_000, true), (10_001, false), (u64::MAX, false)]
    {
        let fabric = Fabric::new(tiny(2));
        let tuning = Tuning { non_temporal_bytes, ..TUNING };
        let mut world = World::new(&fabric, WorldRoom { tuning, ..AMPLE });
        let receive = world.recv(1, 0, 1, 10_000);
        let send = world.isend(0, 1, 1, contents(1, 10_000));
        world.settle();
        world.done(send).0.unwrap();
        assert_eq!(world.done(receive).1, contents(1, 10_000));
        let bytes = world.engine(1).port_mut().non_temporal.get();
        // The first bytes travel with the RTS.
        assert_eq!(bytes > 9_000, non_temporal, "{bytes} bytes");
    }
}

#[test]
fn message_that_is_announced_keeps_its_place_in_the_order() {
    let any = Pattern { source: Source::Any, context: 0, tag: 0, ignore: u64::MAX };
    for (seed, reading) in (0..).zip(READINGS) {
        for expected in [true, false] {
            let fabric = Fabric::reading(tiny(2), reading, seed);
            let mut world = World::new(&fabric, AMPLE);
            let lens: Vec<_> = [4000, 8, 300, 256, 0, 2000, 100].into_iter().cycle().take(40).collect();
            let mut receives = Vec::new();
            if expected {
                receives.extend(lens.iter().map(|_| world.irecv(1, any, 4000).unwrap()));
            }
            let sends: Vec<_> =
                (0..).zip(&lens).map(|(tag, &len)| start(&mut world, tag % 3 == 2, 0, 1, tag, len)).collect();
            world.settle();
            if !expected {
                receives.extend(lens.iter().map(|_| world.irecv(1, any, 4000).unwrap()));
            }
            world.settle();
            for ((tag, len), receive) in (0..).zip(lens).zip(receives) {
                assert_received(&mut world, receive, 0, tag, len, 4000);
            }
            assert!(sends.into_iter().all(|send| world.done(send).0.is_ok()));
            world.assert_empty(&[0, 1], "order");
        }
    }
}

#[test]
fn many_are_in_flight_in_both_directions_at_once() {
    for (seed, reading) in (0..).zip(READINGS) {
        for forward in [true, false] {
            let fabric = Fabric::reading(tiny(3), reading, seed);
            let mut world = World::new(&fabric, AMPLE);
            let pairs = [(0, 1), (1, 0), (0, 2), (2, 0), (1, 2), (2, 1)];
            let mut sends = Vec::new();
            for tag in 0..30 {
                for (from, to) in pairs {
                    sends.push(start(&mut world, tag % 2 == 0, from, to, tag, 300 + 61 * tag as usize));
                }
            }
            if forward {
                // All messages are announced before the first is matched.
                world.settle();
                assert_eq!(world.engine(0).unexpected_messages(), 60);
            }
            let mut receives = Vec::new();
            for tag in (0..30).rev() {
                receives.extend(pairs.map(|(from, to)| (from, tag, world.recv(to, from, tag, 5000))));
            }
            world.settle();
            for (from, tag, receive) in receives {
                assert_received(&mut world, receive, from, tag, 300 + 61 * tag as usize, 5000);
            }
            assert!(sends.into_iter().all(|send| world.done(send).0.is_ok()));
            world.assert_empty(&[0, 1, 2], "both directions");
        }
    }
}

#[test]
fn answer_that_finds_no_room_leaves_later() {
    for reading in [Reading::Never, Reading::Always] {
        for (synchronous, len) in [(false, 2000), (true, 2000), (true, 100), (true, 0)] {
            let fabric = Fabric::reading(tiny(2), reading, 1);
            let mut world = World::new(&fabric, AMPLE);
            let receive = world.recv(1, 0, 1, len);
            let send = start(&mut world, synchronous, 0, 1, 1, len);
            // The opposite direction is full: fastbox and cells.
            let mut blockers = Vec::new();
            loop {
                let blocker = world.isend(1, 0, 9, contents(9, 8));
                blockers.push(blocker);
                if blocker.id != RequestId::SENT {
                    break;
                }
            }
            for _ in 0..50 {
                world.engine(1).progress();
            }
            assert_eq!((world.test(receive), world.test(send)), (None, None), "the FIN has not left yet");
            assert!(!world.engine(1).cancel(receive.id));
            world.settle();
            assert_received(&mut world, receive, 0, 1, len, len);
            world.done(send).0.unwrap();
            for blocker in blockers {
                world.done(blocker).0.unwrap();
                let taken = world.recv(0, 1, 9, 8);
                assert_eq!(world.done(taken).1, contents(9, 8));
            }
            world.assert_empty(&[0, 1], "an answer that waits");
        }
    }
}

/// Runs both ranks alternately in single steps; after a number of steps one of them dies.
fn death(
    reading: Reading,
    synchronous: bool,
    (len, room): (usize, usize),
    steps: usize,
    dead: PeerId,
    protocol_number: u64,
) {
    let fabric = Fabric::reading(tiny(3), reading, steps as u64);
    let mut world = World::new(&fabric, WorldRoom { requests: 8, units: 64, ..AMPLE });
    let early = steps.is_multiple_of(2).then(|| world.recv(1, 0, 1, room));
    let send = start(&mut world, synchronous, 0, 1, 1, len);
    let mut receive = early;
    for step in 0..steps {
        if step == 2 && receive.is_none() {
            receive = Some(world.recv(1, 0, 1, room));
        }
        world.engine(step as PeerId % 2).step();
    }
    let receive = receive.unwrap_or_else(|| world.recv(1, 0, 1, room));
    let other = 1 - dead;
    let what = std::format!(
        "{reading:?}, {len} into {room} bytes, {steps} steps, rank {dead} dies, way {protocol_number}"
    );
    fabric.with_memory(|memory| memory.gone.push(dead));
    if protocol_number > 0 {
        world.engine(other).depart(dead, Failure::Died);
        if protocol_number > 1 {
            world.engine(other).progress();
        }
        while !world.engine(other).drain(dead) {}
    }
    world.engine(other).fail(dead, Failure::Died);
    // If the other side exists, it learns of the failure too, and its requests end as well.
    world.engine(dead).fail(other, Failure::Died);
    let (sent, _) = world.done(send);
    let (received, bytes) = world.done(receive);
    match sent {
        Ok(status) => assert_eq!(status, Status { peer: 1, tag: 1, len, immediate: None }, "{what}"),
        Err(completion_error) => assert_eq!(
            completion_error,
            CompletionError::PeerFailed { peer: 1, failure: Failure::Died },
            "{what}"
        ),
    }
    match received {
        Err(CompletionError::PeerFailed { peer: 0, failure: Failure::Died }) => {}
        Ok(_) | Err(CompletionError::Truncated(_)) => {
            let moved = len.min(room);
            assert_eq!(bytes[..moved], contents(1, len)[..moved], "{what}");
        }
        Err(completion_error) => panic!("{what}: {completion_error}"),
    }
    assert_eq!(world.engine(other).failure(dead), Some(Failure::Died), "{what}");
    world.assert_empty(&[0, 1], &what);
    // The third rank is not affected.
    let receive = world.recv(other, 2, 7, 3000);
    let send = world.isend(2, other, 7, contents(7, 3000));
    for _ in 0..100 {
        world.engine(other).progress();
        world.engine(2).progress();
    }
    world.done(send).0.unwrap();
    assert_eq!(world.done(receive).1, contents(7, 3000), "{what}");
}

#[test]
fn death_at_any_step_ends_the_requests_of_both_sides() {
    for reading in READINGS {
        for (synchronous, sizes) in [
            (true, (0, 0)),
            (true, (200, 200)),
            (false, (1500, 1500)),
            (false, (3000, 2000)),
            (true, (900, 0)),
        ] {
            for steps in 0..40 {
                for dead in [0, 1] {
                    for protocol_number in 0..3 {
                        death(reading, synchronous, sizes, steps, dead, protocol_number);
                    }
                }
            }
        }
    }
}

#[test]
fn death_ends_a_rendezvous_that_waits_for_room() {
    for failure in [Failure::Died, Failure::Finished] {
        for reading in [Reading::Never, Reading::Always] {
            let fabric = Fabric::reading(tiny(2), reading, 1);
            let mut world = World::new(&fabric, AMPLE);
            let receive = world.recv(1, 0, 1, 2000);
            world.isend(0, 1, 1, contents(1, 2000));
            while world.isend(1, 0, 9, contents(9, 8)).id == RequestId::SENT {}
            for _ in 0..50 {
                world.engine(1).progress();
            }
            assert_eq!(world.test(receive), None);
            world.engine(1).fail(0, failure);
            let (outcome, bytes) = world.done(receive);
            if reading == Reading::Always {
                // All bytes have arrived; only the FIN was not sent.
                assert_eq!(
                    (outcome, bytes),
                    (Ok(Status { peer: 0, tag: 1, len: 2000, immediate: None }), contents(1, 2000))
                );
            } else {
                assert_eq!(outcome, Err(CompletionError::PeerFailed { peer: 0, failure }));
            }
        }
    }
}

#[test]
fn turn_stays_bounded_however_many_messages_are_pulled() {
    const HALF: usize = 2000;
    let tuning = Tuning { eager_bytes: 64, window: 8192, ..TUNING };
    let room = WorldRoom { requests: 2 * HALF, buckets: 4096, tuning, ..AMPLE };
    let fabric = Fabric::reading(WorldShape { cells: 64, ..tiny(2) }, Reading::Always, 1);
    let mut world = World::new(&fabric, room);
    // Each posted receive moves a piece of the first message in the queue. Messages of many pieces let the
    // queue grow. When they are done, messages of one piece follow.
    let messages: Vec<_> =
        (0..2 * HALF as u64).map(|tag| (tag, if tag < HALF as u64 { 4000 } else { 100 })).collect();
    let sends: Vec<_> =
        messages.iter().map(|&(tag, len)| world.isend(0, 1, tag, contents(tag, len))).collect();
    world.settle();
    assert_eq!(world.engine(1).unexpected_messages(), messages.len());
    let mut most = 0;
    let mut receives = Vec::new();
    for &(tag, len) in &messages {
        let before = world.engine(1).port_mut().pulls;
        receives.push(world.recv(1, 0, tag, len));
        most = most.max(world.engine(1).port_mut().pulls - before);
    }
    while world.engine(1).requests.used() > 0 && most <= PACKETS_A_TURN {
        let before = world.engine(1).port_mut().pulls;
        world.engine(1).step();
        most = most.max(world.engine(1).port_mut().pulls - before);
        world.engine(0).progress();
        receives.retain(|&receive| world.test(receive).is_none());
    }
    assert!((1..=PACKETS_A_TURN).contains(&most), "{most} pieces in one step");
    world.settle();
    assert!(sends.into_iter().all(|send| world.done(send).0.is_ok()));
    world.assert_empty(&[0, 1], "after bounded steps");
}

#[test]
fn posted_receive_that_matched_can_not_be_withdrawn() {
    for reading in READINGS {
        let fabric = Fabric::reading(tiny(2), reading, 9);
        let mut world = World::new(&fabric, AMPLE);
        let receive = world.recv(1, 0, 1, 2000);
        let send = world.isend(0, 1, 1, contents(1, 2000));
        assert!(!world.engine(0).cancel(send.id), "a send");
        world.engine(1).step();
        assert!(!world.engine(1).cancel(receive.id));
        world.settle();
        assert_received(&mut world, receive, 0, 1, 2000, 2000);
        let withdrawn = world.irecv(1, pattern(Source::Rank(0), 1), 2000).unwrap();
        assert!(world.engine(1).cancel(withdrawn.id));
        world.done(withdrawn).0.unwrap_err();
        let send = world.isend(0, 1, 1, contents(1, 2000));
        world.settle();
        assert_eq!(world.test(send), None);
    }
}
