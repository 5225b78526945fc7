//! Packets that violate the protocol: their connection fails, memory is unchanged, and nothing panics.

use crate::port::PacketPieces;
use std::vec;
use std::vec::Vec;

use super::{ALL, BYTES};
use crate::engine::rma::{Access, Datatype, Reduction, WINDOW};
use crate::engine::tests::world::{AMPLE, World};
use crate::engine::{CompletionError, Failure};
use crate::port::{PacketPort, PortFault};
use crate::shared::tests::fabric::WorldShape;
use crate::shared::tests::fabric::{Fabric, FabricRegion, tiny};
use crate::shared::tests::{Rng, contents, portion};
use crate::wire::rma::{Comparison, Confirm, Head, RmaOperation, Verb};
use crate::wire::{Envelope, Kind};

pub(super) fn forge(
    world: &mut World<'_>,
    kind: Kind,
    context: u16,
    tag: u64,
    bytes: &[u8],
) -> Option<Failure> {
    let envelope = Envelope { kind, context, tag, total: bytes.len() as u64 };
    let sent = world.engine(1).port_mut().send(0, &envelope, PacketPieces::Whole(bytes));
    assert_eq!(sent, Ok(true));
    world.engine(0).progress();
    world.engine(0).failure(1)
}

pub(super) fn protocol(kind: Kind) -> Option<Failure> {
    Some(Failure::Fault(PortFault::Protocol { kind }))
}

#[test]
fn malformed_requests_are_faults() {
    let memory = FabricRegion::new(BYTES);
    let good = Head { key: 7, offset: 0, value: 8, expected: 0 }.encode();
    let code = |operation| Verb::plain(operation).encode();
    let cases: Vec<(u16, &[u8])> = vec![
        (0, &good),
        (8, &good[..16]),
        (15, &good[..16]),
        (code(RmaOperation::Put) | 1 << 15, &good[..16]),
        (code(RmaOperation::Put) | 3 << 13, &good[..16]),
        (code(RmaOperation::Get) | 1 << 13, &good[..24]),
        (code(RmaOperation::Flush) | 2 << 13, &[]),
        (code(RmaOperation::Put) | 12 << 4, &good[..16]),
        (code(RmaOperation::CompareSwap) | 7 << 4, &good[..32]),
        (code(RmaOperation::Put) | 10 << 8, &good[..16]),
        (code(RmaOperation::Put), &good[..15]),
        (code(RmaOperation::Put), &[]),
        (code(RmaOperation::Accumulate), &good[..19]),
        (code(RmaOperation::Get), &good[..23]),
        (code(RmaOperation::Get), &good[..25]),
        (code(RmaOperation::Fetch), &good[..32]),
        (code(RmaOperation::CompareSwap), &good[..24]),
        (code(RmaOperation::Flush), &good[..1]),
        (code(RmaOperation::FetchAccumulate), &good[..15]),
        (code(RmaOperation::FetchAccumulate), &good[..16]),
        (code(RmaOperation::FetchAccumulate), &good[..19]),
        (code(RmaOperation::FetchAccumulate), &[0; 44]),
    ];
    for (context, bytes) in cases {
        let fabric = Fabric::new(tiny(2));
        let mut world = World::new(&fabric, AMPLE);
        world.expose(0, &memory, ALL, 7);
        assert_eq!(
            forge(&mut world, Kind::Rma, context, 5, bytes),
            protocol(Kind::Rma),
            "{context:#x} {bytes:?}"
        );
        assert_eq!(memory.copy(), vec![0; BYTES]);
        world.assert_empty(&[0], "forged");
    }
}

#[test]
fn random_requests_access_only_exposed_memory() {
    let mut rng = Rng::new(3);
    let fabric = Fabric::new(tiny(2));
    let memories = [FabricRegion::new(BYTES), FabricRegion::new(BYTES)];
    let before = contents(9, BYTES);
    memories.iter().for_each(|memory| memory.fill(&before));
    let mut world = World::new(&fabric, AMPLE);
    world.expose(0, &memories[0], Access::Read, 7);
    for _ in 0..portion(20_000) {
        let numbers = [0, 7, 8, BYTES as u64 - 8, BYTES as u64, 1 << 32, u64::MAX - 7, u64::MAX];
        let mut number = || rng.pick(&numbers);
        let (key, offset, value, expected) = (number(), number(), number(), number());
        let head = Head { key, offset, value, expected };
        let operation = rng.pick(&[
            RmaOperation::Put,
            RmaOperation::Get,
            RmaOperation::Accumulate,
            RmaOperation::Fetch,
            RmaOperation::CompareSwap,
            RmaOperation::Flush,
            RmaOperation::FetchAccumulate,
        ]);
        let (reduction, datatype) = (rng.pick(&Reduction::ALL), rng.pick(&Datatype::ALL));
        let compares = operation == RmaOperation::CompareSwap;
        let verb = Verb {
            operation,
            reduction: if compares { Reduction::Sum } else { reduction },
            datatype,
            comparison: if compares { rng.pick(&Comparison::ALL) } else { Comparison::Equal },
            notify: rng.one_in(2),
            confirm: match operation {
                RmaOperation::Put | RmaOperation::Accumulate => {
                    rng.pick(&[Confirm::No, Confirm::Later, Confirm::Now])
                }
                _ => Confirm::No,
            },
        };
        let mut bytes = head.encode()[..verb.head_bytes()].to_vec();
        if matches!(operation, RmaOperation::Put | RmaOperation::Accumulate) {
            bytes.extend(contents(1, 8 * rng.below(20)));
        } else if operation == RmaOperation::FetchAccumulate {
            bytes.extend(contents(1, 8 + 8 * rng.below(3)));
        }
        let envelope =
            Envelope { kind: Kind::Rma, context: verb.encode(), tag: rng.next(), total: bytes.len() as u64 };
        let _ = world.engine(1).port_mut().send(0, &envelope, PacketPieces::Whole(&bytes));
        world.engine(0).progress();
        // The forger receives packets but sends no reply.
        while let crate::port::Polled::Packet(arrival) = world.engine(1).port_mut().poll() {
            world.engine(1).port_mut().release(arrival);
        }
        assert_eq!(world.engine(0).failure(1), None, "a refusal is not a fault");
    }
    memories.iter().for_each(|memory| assert_eq!(memory.copy(), before));
}

#[test]
fn more_requests_than_the_window_are_a_fault_and_not_memory() {
    let fabric = Fabric::new(WorldShape { fastbox_slots: 4096, ..tiny(2) });
    let memory = FabricRegion::new(BYTES);
    let mut world = World::new(&fabric, AMPLE);
    world.expose(0, &memory, ALL, 7);
    let head = Head { key: 7, offset: 0, value: 2000, expected: 0 }.encode();
    let get = Verb::plain(RmaOperation::Get).encode();
    let mut asked = 0;
    let failure = loop {
        asked += 1;
        let failure = forge(&mut world, Kind::Rma, get, asked, &head[..24]);
        if failure.is_some() || asked > 1000 {
            break failure;
        }
        assert!(world.engine(0).replies.used() <= WINDOW as usize);
    };
    assert_eq!(failure, Some(Failure::Fault(PortFault::Window)));
    // Some replies have found space.
    assert!(asked > u64::from(WINDOW), "{asked}");
    assert_eq!(world.engine(0).replies.used(), 0);
}

/// Rank 1 requests as many answers as it may, and receives none. All space for answers that is not its own
/// remains for the other peers.
#[test]
fn a_peer_that_takes_no_answers_keeps_no_other_from_being_answered() {
    let fabric = Fabric::new(WorldShape { cells: 16, fastbox_slots: 4, ..tiny(3) });
    let memory = FabricRegion::new(BYTES);
    memory.fill(&contents(5, BYTES));
    let mut world = World::new(&fabric, AMPLE);
    let (_, key) = world.expose(0, &memory, ALL, 7);
    let get = Verb::plain(RmaOperation::Get).encode();
    let head = Head { key: 7, offset: 0, value: 8, expected: 0 }.encode();
    let envelope = Envelope { kind: Kind::Rma, context: get, tag: 1, total: 24 };
    while world.engine(0).replies.used() < WINDOW as usize {
        let _ = world.engine(1).port_mut().send(0, &envelope, PacketPieces::Whole(&head[..24]));
        world.engine(0).progress();
        assert_eq!(world.engine(0).failure(1), None);
    }
    for round in 0..4 * WINDOW as usize {
        let asked = world.get(2, &key, round as u64, 8).unwrap();
        let answer = loop {
            world.engine(0).progress();
            world.engine(2).progress();
            if let Some(answer) = world.try_finish(asked) {
                break answer;
            }
        };
        assert_eq!(answer.1, contents(5, BYTES)[round..round + 8]);
        assert_eq!(world.engine(0).replies.used(), WINDOW as usize, "those of rank 1");
    }
}

#[test]
fn replies_without_a_request_are_faults() {
    for case in 0..9 {
        let fabric = Fabric::new(WorldShape { fastbox_slots: 64, ..tiny(3) });
        let memory = FabricRegion::new(BYTES);
        let mut world = World::new(&fabric, AMPLE);
        let (_, mut key) = world.expose(1, &memory, ALL, 7);
        if case == 0 {
            key.rank = 2;
        }
        let get = world.get(0, &key, 0, 100).unwrap();
        let receive = world.recv(0, 1, 1, 8);
        let flush = world.flush(0, key.rank).unwrap();
        let (tag, context, bytes): (u64, u16, &[u8]) = match case {
            // The request was sent to another rank.
            0 => (get.id.to_bits(), 0, &[1; 8]),
            1 => (get.id.to_bits() ^ 1, 0, &[1; 8]),
            2 => (u64::MAX, 0, &[1; 8]),
            3 => (receive.id.to_bits(), 0, &[1; 8]),
            4 => (get.id.to_bits(), 0, &[1; 101]),
            5 => (get.id.to_bits(), 0, &[]),
            6 => (get.id.to_bits(), 6, &[]),
            7 => (get.id.to_bits(), 1, &[1]),
            _ => (flush.id.to_bits(), 0, &[1; 7]),
        };
        let failure = forge(&mut world, Kind::RmaReply, context, tag, bytes);
        assert_eq!(failure, protocol(Kind::RmaReply), "case {case}");
        if case > 0 {
            let completion_error = Err(CompletionError::PeerFailed { peer: 1, failure: failure.unwrap() });
            assert_eq!(world.done(get).0, completion_error);
            assert_eq!(world.done(flush).0, completion_error);
        }
    }
}

#[test]
fn answer_to_a_request_that_has_not_left_is_a_fault() {
    let fabric = Fabric::new(WorldShape { fastbox_slots: 4096, ..tiny(2) });
    let memory = FabricRegion::new(BYTES);
    let mut world = World::new(&fabric, AMPLE);
    let (_, key) = world.expose(1, &memory, ALL, 7);
    let gets: Vec<_> = (0..=WINDOW).map(|_| world.get(0, &key, 0, 8).unwrap()).collect();
    let last = gets[WINDOW as usize];
    let failure = forge(&mut world, Kind::RmaReply, 0, last.id.to_bits(), &[1; 8]);
    assert_eq!(failure, protocol(Kind::RmaReply));
    gets.into_iter().for_each(|get| assert!(world.done(get).0.is_err()));
    world.assert_empty(&[0], "early answer");
}
