//! Messages whose bytes follow their RTS unasked.

use std::vec::Vec;

use super::rendezvous::assert_received;
use crate::engine::tests::world::{AMPLE, RequestHandle, World, WorldRoom, pattern};
use crate::engine::{CompletionError, Failure, RequestId, SendOptions, Status, Tuning};
use crate::matching::Source;
use crate::port::{PacketPieces, PacketPort as _, PeerId, PortFault};
use crate::shared::tests::contents;
use crate::shared::tests::fabric::{Fabric, Reading, WorldShape, tiny};
use crate::wire::rendezvous::{Rts, UNASKED};
use crate::wire::{Envelope, Kind};

/// Longer than the four cells of the sender, so that it leaves in several turns.
const LEN: usize = 3000;

fn world(fabric: &Fabric) -> World<'_> {
    let mut world = World::new(fabric, AMPLE);
    world.engines.iter_mut().for_each(|engine| engine.port_mut().unasked_bytes = LEN);
    world
}

/// Reading a peer's memory is possible, and not used for such messages.
fn fabric() -> Fabric {
    Fabric::reading(WorldShape { cells: 4, ..tiny(3) }, Reading::Always, 1)
}

/// Lets rank 0 send, and rank 1 take `packets` packets.
fn take(world: &mut World<'_>, packets: usize) {
    for _ in 0..packets {
        world.engine(0).progress();
        world.engine(1).step();
    }
    world.engine(0).progress();
}

fn assert_sent(world: &mut World<'_>, send: RequestHandle, tag: u64) {
    let status = Status { peer: 1, tag, len: LEN, immediate: None };
    if send.id != RequestId::SENT {
        assert_eq!(world.done(send).0, Ok(status));
    }
}

#[test]
fn a_receive_that_is_posted_at_any_time_gets_the_bytes_that_follow_unasked() {
    for room in [LEN, LEN + 100, 700, 0] {
        for taken in 0..20 {
            let fabric = fabric();
            let mut world = world(&fabric);
            let send = world.isend(0, 1, 5, contents(5, LEN));
            let later = world.isend(0, 1, 5, contents(6, 40));
            take(&mut world, taken);
            let probed = world.engine(1).iprobe(&pattern(Source::Any, 5));
            assert_eq!(probed, (taken > 0).then_some(Status { peer: 0, tag: 5, len: LEN, immediate: None }));
            let receive = world.recv(1, 0, 5, room);
            let second = world.recv(1, 0, 5, 40);
            world.settle();
            assert_received(&mut world, receive, 0, 5, LEN, room);
            assert_eq!(world.done(second).1, contents(6, 40));
            assert_sent(&mut world, send, 5);
            if later.id != RequestId::SENT {
                world.done(later).0.unwrap();
            }
            let pulled = fabric.with_memory(|memory| memory.pulled + memory.pushed);
            assert_eq!(pulled, 0, "nothing is asked for");
            world.assert_empty(&[0, 1], "unasked");
        }
    }
}

#[test]
fn a_send_whose_bytes_follow_unasked_is_complete_before_a_receive_matches() {
    let fabric = fabric();
    let mut world = world(&fabric);
    let options = SendOptions { immediate: Some(77), synchronous: false };
    let send = world.isend_with((0, 1), 0, 5, contents(5, LEN), options).unwrap();
    world.settle();
    assert_sent(&mut world, send, 5);
    // A matched probe takes the message out of the queue.
    let (id, status) = world.improbe(1, pattern(Source::Any, 5)).unwrap();
    assert_eq!(status, Status { peer: 0, tag: 5, len: LEN, immediate: Some(77) });
    let receive = world.imrecv(1, id, LEN).unwrap();
    assert_eq!(world.done(receive), (Ok(status), contents(5, LEN)));
    // A synchronous one waits for its receive, and so does one without credit.
    let send = world.issend(0, 1, 6, contents(6, LEN));
    world.settle();
    assert_eq!(world.test(send), None);
    let receive = world.recv(1, 0, 6, LEN);
    world.settle();
    world.done(send).0.unwrap();
    assert_received(&mut world, receive, 0, 6, LEN, LEN);
    world.assert_empty(&[0, 1], "unasked");
}

#[test]
fn a_message_is_announced_if_there_is_no_credit_for_all_of_it() {
    let fabric = fabric();
    // There is memory for five such messages at most.
    let mut world = World::new(
        &fabric,
        WorldRoom { units: 300, tuning: Tuning { window: 100, ..AMPLE.tuning }, ..AMPLE },
    );
    world.engine(0).port_mut().unasked_bytes = LEN;
    let sends: Vec<_> = (0..10).map(|tag| world.isend(0, 1, tag, contents(tag, LEN))).collect();
    world.settle();
    let waiting = sends.iter().filter(|send| send.id != RequestId::SENT && world.test(**send).is_none());
    let waiting = waiting.count();
    assert!((1..10).contains(&waiting), "{waiting} of 10 are announced");
}

#[test]
fn a_window_is_widened_for_a_message_that_lacked_credit_and_for_no_other() {
    const WINDOW: u32 = 22;
    let tuning = Tuning { window: WINDOW, ..AMPLE.tuning };
    // Of eager messages the window has room for a few, and one that is longer than those that leave unasked needs none.
    for (len, sends, synchronous, widened) in
        [(LEN + 1, 10, false, false), (LEN, 1, true, false), (250, 2, false, false), (250, 10, false, true)]
    {
        let fabric = Fabric::reading(WorldShape { cells: 64, ..tiny(2) }, Reading::Always, 1);
        let mut world = World::new(&fabric, WorldRoom { tuning, ..AMPLE });
        world.engines.iter_mut().for_each(|engine| engine.port_mut().unasked_bytes = LEN);
        for _ in 0..20 {
            let receives: Vec<_> = (0..sends).map(|_| world.recv(1, 0, 5, len)).collect();
            for _ in 0..sends {
                match synchronous {
                    true => world.issend(0, 1, 5, contents(5, len)),
                    false => world.isend(0, 1, 5, contents(5, len)),
                };
            }
            world.settle();
            receives.into_iter().for_each(|receive| world.done(receive).0.map(drop).unwrap());
        }
        let widest = world.engine(1).ledger.widest();
        assert_eq!(widest > WINDOW, widened, "{widest} units: {sends} messages of {len} bytes");
    }
}

#[test]
fn a_message_that_has_come_in_part_is_lost_with_its_sender_and_a_whole_one_is_not() {
    for failure in [Failure::Died, Failure::Finished] {
        for taken in 0..20 {
            for posted in [false, true] {
                let fabric = fabric();
                let mut world = world(&fabric);
                let early = posted.then(|| world.recv(1, 0, 5, LEN));
                let send = world.isend(0, 1, 5, contents(5, LEN));
                take(&mut world, taken);
                let is_whole = send.id == RequestId::SENT || world.test(send).is_some();
                world.engine(1).depart(0, failure);
                while !world.engine(1).drain(0) {}
                world.engine(1).fail(0, failure);
                let lost = Err(CompletionError::PeerFailed { peer: 0, failure });
                let stored = world.engine(1).iprobe(&pattern(Source::Any, 5)).is_some();
                match early {
                    Some(receive) if is_whole => assert_received(&mut world, receive, 0, 5, LEN, LEN),
                    Some(receive) => assert_eq!(world.done(receive).0, lost),
                    None if stored => {
                        assert!(is_whole, "{taken} packets");
                        let receive = world.recv(1, 0, 5, LEN);
                        assert_received(&mut world, receive, 0, 5, LEN, LEN);
                    }
                    None => assert!(!is_whole, "{taken} packets"),
                }
                world.assert_empty(&[1], "after the end of the sender");
            }
        }
    }
}

#[test]
fn a_matched_probe_of_a_message_that_is_lost_in_part_ends_with_the_failure() {
    let fabric = fabric();
    let mut world = world(&fabric);
    world.isend(0, 1, 5, contents(5, LEN));
    take(&mut world, 2);
    let (id, status) = world.improbe(1, pattern(Source::Any, 5)).unwrap();
    assert_eq!(status.len, LEN);
    world.engine(1).fail(0, Failure::Died);
    let receive = world.imrecv(1, id, LEN).unwrap();
    let lost = CompletionError::PeerFailed { peer: 0, failure: Failure::Died };
    assert_eq!(world.done(receive).0, Err(lost));
    world.assert_empty(&[1], "after the end of the sender");
}

/// A packet of rank 1 to rank 0.
fn packet(world: &mut World<'_>, kind: Kind, tag: u64, payload: &[u8]) -> Option<Failure> {
    let envelope = Envelope { kind, context: 0, tag, total: payload.len() as u64 };
    let sent = world.engine(1).port_mut().send(0, &envelope, PacketPieces::Whole(payload));
    assert_eq!(sent, Ok(true));
    world.engine(0).progress();
    world.engine(0).failure(1)
}

fn announce(world: &mut World<'_>, tag: u64, total: u64) -> Option<Failure> {
    let head = Rts { is_unasked: true, ..Rts::of(total, 0, None) };
    packet(world, Kind::Rts, tag, &head.encode())
}

fn part(world: &mut World<'_>, len: usize) -> Option<Failure> {
    packet(world, Kind::Data, UNASKED, &contents(0, len))
}

#[test]
fn a_peer_whose_parts_belong_to_no_message_or_are_too_long_is_at_fault_and_others_are_not() {
    const ME: PeerId = 0;
    let data = Some(Failure::Fault(PortFault::Protocol { kind: Kind::Data }));
    let rts = Some(Failure::Fault(PortFault::Protocol { kind: Kind::Rts }));
    for posted in [false, true] {
        let run = |steps: &dyn Fn(&mut World<'_>) -> Option<Failure>| {
            let fabric = fabric();
            let mut world = world(&fabric);
            let receive = posted.then(|| world.recv(ME, 1, 5, 300));
            let found = steps(&mut world);
            assert_eq!(world.engine(ME).failure(2), None);
            let failed = receive.map(|it| world.done(it).0.is_err());
            assert_ne!(failed, Some(false));
            world.assert_empty(&[ME], "after a violation by rank 1");
            found
        };
        assert_eq!(run(&|world| part(world, 8)), data, "without a message");
        let too_long = |world: &mut World<'_>| {
            announce(world, 5, 300).or_else(|| part(world, 256)).or_else(|| part(world, 45))
        };
        assert_eq!(run(&too_long), data);
        assert_eq!(run(&|world| announce(world, 5, 300).or_else(|| part(world, 0))), data, "an empty part");
        assert_eq!(
            run(&|world| announce(world, 5, 300).or_else(|| announce(world, 9, 300))),
            rts,
            "two at once"
        );
        // An RTS with first bytes, or of nothing.
        assert_eq!(run(&|world| announce(world, 5, 0)), rts);
        for total in [1 << 20, 1 << 40, isize::MAX as u64] {
            let found = run(&|world| announce(world, 5, total));
            assert!(matches!(found, Some(Failure::Fault(PortFault::Credit { .. }))), "{total}: {found:?}");
        }
    }
}

#[test]
fn a_message_of_one_packet_is_announced_where_that_was_learned_to_be_faster() {
    let shape = WorldShape { cells: 16, cell_bytes: 32 << 10, ..tiny(2) };
    let room = WorldRoom { tuning: Tuning { window: 64 << 10, ..AMPLE.tuning }, ..AMPLE };
    // The ticks of a turn, unasked and asked. Those of the engines' steps are few.
    for (costs, len, is_learned) in [
        ([50_000_000, 10_000_000], 20_000, true),
        ([10_000_000, 50_000_000], 20_000, false),
        ([50_000_000, 10_000_000], 16_000, false),
    ] {
        let fabric = Fabric::reading(shape, Reading::Always, 1);
        fabric.with_memory(|memory| memory.clock = Some(1));
        let mut world = World::new(&fabric, room);
        world.engine(0).port_mut().unasked_bytes = shape.cell_bytes as usize;
        let mut announced = [0; 2];
        for turn in 0..200 {
            let before = world.engine(0).peer_counters(1).unwrap().rts_sent;
            let receive = world.recv(1, 0, 5, len);
            let send = world.isend(0, 1, 5, contents(5, len));
            let answer = world.recv(0, 1, 6, 8);
            world.settle();
            assert_received(&mut world, receive, 0, 5, len, len);
            if send.id != RequestId::SENT {
                world.done(send).0.unwrap();
            }
            let is_announced = world.engine(0).peer_counters(1).unwrap().rts_sent > before;
            announced[turn / 100] += u32::from(is_announced);
            fabric.with_memory(|memory| *memory.clock.as_mut().unwrap() += costs[usize::from(is_announced)]);
            world.isend(1, 0, 6, contents(6, 8));
            world.settle();
            world.done(answer).0.unwrap();
        }
        assert_eq!(announced[1] > 80, is_learned, "{announced:?} of {costs:?}");
        assert_eq!(announced[1] < 20, !is_learned, "{announced:?} of {costs:?}");
        world.assert_empty(&[0, 1], "announced");
    }
}
