//! Messages with immediate data, and messages that their receiver acknowledges.

use std::vec::Vec;

use crate::engine::tests::world::{AMPLE, RequestHandle, World, pattern};
use crate::engine::{Bypass, CompletionError, Failure, SendOptions, Status, Truncation};
use crate::matching::Source;
use crate::port::{PacketPieces, PacketPort, PeerId, PortFault};
use crate::shared::tests::contents;
use crate::shared::tests::fabric::{Fabric, Reading, tiny};
use crate::wire::rendezvous::{Cts, Descriptor};
use crate::wire::{Envelope, Kind};

/// Lengths of eager messages, the longest of which is announced if it has a prefix, and of announced ones.
const LENS: [usize; 9] = [0, 1, 8, 16, 200, 240, 249, 256, 3000];
const IMMEDIATE: [Option<u64>; 4] = [None, Some(0), Some(7), Some(u64::MAX)];

fn all() -> impl Iterator<Item = (Reading, usize, SendOptions)> {
    let readings = [Reading::Never, Reading::Always].into_iter();
    readings.flat_map(|reading| LENS.map(|len| (reading, len))).flat_map(|(reading, len)| {
        let both = move |immediate| {
            [false, true].map(|synchronous| (reading, len, SendOptions { immediate, synchronous }))
        };
        IMMEDIATE.into_iter().flat_map(both)
    })
}

fn send(world: &mut World<'_>, from: PeerId, to: PeerId, len: usize, options: SendOptions) -> RequestHandle {
    world.isend_with((from, to), 0, 1, contents(1, len), options).unwrap()
}

#[test]
fn immediate_data_come_with_every_message() {
    for (reading, len, options) in all() {
        let SendOptions { immediate, synchronous } = options;
        let status = Status { peer: 0, tag: 1, len, immediate };
        for (to, early, room) in
            [(1, true, len), (1, false, len), (0, true, len), (0, false, len), (1, false, 5)]
        {
            let fabric = Fabric::reading(tiny(2), reading, 1);
            let mut world = World::new(&fabric, AMPLE);
            let posted = early.then(|| world.recv(to, 0, 1, room));
            let sent = send(&mut world, 0, to, len, options);
            world.settle();
            if !early {
                let wanted = pattern(Source::Any, 1);
                assert_eq!(world.engine(to).iprobe(&wanted), Some(status));
                assert!(!synchronous || world.test(sent).is_none(), "no receive has matched it");
            }
            let receive = posted.unwrap_or_else(|| world.recv(to, 0, 1, room));
            world.settle();
            let (outcome, bytes) = world.done(receive);
            let cut = Status { len: len.min(room), ..status };
            let right = match len > room {
                true => Err(CompletionError::Truncated(Truncation { status: cut, message: len as u64 })),
                false => Ok(cut),
            };
            assert_eq!(outcome, right, "{len} bytes, {options:?}");
            assert_eq!(bytes[..cut.len], contents(1, len)[..cut.len]);
            assert!(world.done(sent).0.is_ok());
            world.assert_empty(&[0, 1], "immediate data");
        }
    }
}

#[test]
fn immediate_data_are_in_matched_probes_and_in_bypassed_receives() {
    for (reading, len, options) in all() {
        let status = Status { peer: 0, tag: 1, len, immediate: options.immediate };
        let fabric = Fabric::reading(tiny(2), reading, 1);
        let mut world = World::new(&fabric, AMPLE);
        let first = send(&mut world, 0, 1, len, options);
        world.settle();
        let (claim, probed) = world.improbe(1, pattern(Source::Any, 1)).unwrap();
        assert_eq!(probed, status);
        let receive = world.imrecv(1, claim, len).unwrap();
        world.settle();
        assert_eq!(world.done(receive), (Ok(status), contents(1, len)));
        assert!(world.done(first).0.is_ok());

        let second = send(&mut world, 0, 1, len, options);
        let (loan, mut buf) = world.lender.receive(1, len);
        let step = world.engine(1).receive_step(&pattern(Source::Rank(0), 1), &mut buf);
        let outcome = match step {
            Bypass::Done(outcome) => outcome,
            Bypass::Posted(id) => {
                world.settle();
                world.engine(1).test(id).unwrap()
            }
            other => panic!("{other:?}"),
        };
        assert_eq!(outcome, Ok(status));
        assert_eq!(world.lender.end(loan), contents(1, len));
        world.settle();
        assert!(world.done(second).0.is_ok());
        world.assert_empty(&[0, 1], "probes and bypass");
    }
}

#[test]
fn synchronous_message_leaves_at_once_and_costs_one_packet_more() {
    for (len, posted) in [(0, false), (8, true), (8, false), (240, true), (240, false)] {
        let fabric = Fabric::new(tiny(2));
        let mut world = World::new(&fabric, AMPLE);
        let early = posted.then(|| world.recv(1, 0, 1, len));
        let sent = world.issend(0, 1, 1, contents(1, len));
        world.settle();
        assert_eq!(world.test(sent).is_some(), posted, "complete when a receive has matched it");
        if !posted {
            let receive = world.recv(1, 0, 1, len);
            world.settle();
            assert_eq!(world.done(receive).1, contents(1, len));
            assert!(world.done(sent).0.is_ok());
        }
        assert!(early.is_none_or(|receive| world.done(receive).1 == contents(1, len)));
        let counters = world.engine(0).peer_counters(1).unwrap();
        assert_eq!((counters.eager_sent, counters.rts_sent, counters.fin_received), (1, 0, 1));
        assert_eq!(counters.eager_sent_bytes, len as u64 + 8);
        assert_eq!(world.engine(1).peer_counters(0).unwrap().eager_received_bytes, len as u64 + 8);
        world.assert_empty(&[0, 1], "acknowledged");
    }
}

#[test]
fn acknowledgement_that_finds_no_space_is_sent_later() {
    let fabric = Fabric::new(tiny(2));
    let mut world = World::new(&fabric, AMPLE);
    let sent: Vec<_> = (0..3).map(|tag| world.issend(0, 1, tag, contents(tag, 8))).collect();
    // Messages to rank 0 fill the whole space, as rank 0 does nothing.
    let fill: Vec<_> = (0..200).map(|_| world.isend(1, 0, 9, contents(9, 8))).collect();
    let receives: Vec<_> = (0..3).map(|tag| world.recv(1, 0, tag, 8)).collect();
    for _ in 0..10 {
        world.engine(1).progress();
    }
    assert!(receives.iter().all(|receive| world.test(*receive).is_none()), "no acknowledgement has left");
    for _ in 0..200 {
        world.recv(0, 1, 9, 8);
    }
    world.settle();
    for (tag, (sent, receive)) in (0..).zip(sent.into_iter().zip(receives)) {
        assert!(world.done(sent).0.is_ok());
        assert_eq!(world.done(receive).1, contents(tag, 8));
    }
    assert!(fill.into_iter().all(|fill| world.done(fill).0.is_ok()));
}

#[test]
fn unacknowledged_send_ends_with_its_receiver() {
    let fabric = Fabric::new(tiny(3));
    let mut world = World::new(&fabric, AMPLE);
    let sent = world.issend(0, 1, 1, contents(1, 8));
    let other = world.issend(0, 2, 1, contents(1, 8));
    world.settle();
    assert!(world.test(sent).is_none() && world.engine(0).sends_pending());
    world.engine(0).fail(1, Failure::Died);
    let failed = Err(CompletionError::PeerFailed { peer: 1, failure: Failure::Died });
    assert_eq!(world.done(sent).0, failed);
    let receive = world.recv(2, 0, 1, 8);
    world.settle();
    assert!(world.done(receive).0.is_ok() && world.done(other).0.is_ok(), "another receiver");
}

/// Lets rank 1 send a forged packet to rank 0. Returns the failure of rank 1 at rank 0.
fn forge(world: &mut World<'_>, kind: Kind, payload: &[u8]) -> Option<Failure> {
    let envelope = Envelope { kind, context: 0, tag: 1, total: payload.len() as u64 };
    assert_eq!(world.engine(1).port_mut().send(0, &envelope, PacketPieces::Whole(payload)), Ok(true));
    for _ in 0..3 {
        world.engine(0).progress();
    }
    world.engine(0).failure(1)
}

#[test]
fn acknowledgement_of_nothing_fails_only_its_connection() {
    let cts = |sender| Cts { sender, receiver: 1, start: 0, end: 8, descriptor: Descriptor::NONE };
    type Forged = fn(u64, u64) -> u64;
    let cases: [(Kind, Forged); 5] = [
        (Kind::Fin, |mine, _| mine ^ 1),
        (Kind::Fin, |mine, _| mine ^ 1 << 32),
        (Kind::Fin, |_, others| others),
        (Kind::Fin, |_, _| u64::MAX),
        // The message has travelled; its bytes cannot be requested.
        (Kind::Cts, |mine, _| mine),
    ];
    for (kind, forged) in cases {
        let fabric = Fabric::new(tiny(3));
        let mut world = World::new(&fabric, AMPLE);
        let mine = world.issend(0, 1, 1, contents(1, 8));
        let others = world.issend(0, 2, 1, contents(1, 8));
        let number = forged(mine.id.to_bits(), others.id.to_bits());
        let payload =
            if kind == Kind::Cts { cts(number).encode().to_vec() } else { number.to_le_bytes().to_vec() };
        let fault = Failure::Fault(PortFault::Protocol { kind });
        assert_eq!(forge(&mut world, kind, &payload), Some(fault), "{kind:?} {number:#x}");
        assert_eq!(world.done(mine).0, Err(CompletionError::PeerFailed { peer: 1, failure: fault }));
        assert!(world.test(others).is_none());
        let receive = world.recv(2, 0, 1, 8);
        world.settle();
        assert!(world.done(receive).0.is_ok() && world.done(others).0.is_ok());
    }
}

#[test]
fn second_acknowledgement_is_a_fault() {
    let fabric = Fabric::new(tiny(2));
    let mut world = World::new(&fabric, AMPLE);
    let sent = world.issend(0, 1, 1, contents(1, 8));
    let number = sent.id.to_bits().to_le_bytes();
    assert_eq!(forge(&mut world, Kind::Fin, &number), None);
    let fault = Failure::Fault(PortFault::Protocol { kind: Kind::Fin });
    assert_eq!(forge(&mut world, Kind::Fin, &number), Some(fault));
    assert!(world.done(sent).0.is_ok(), "it was complete");
}

#[test]
fn packet_that_is_shorter_than_its_prefix_is_a_fault() {
    for kind in [Kind::EagerImmediate, Kind::EagerAcknowledged, Kind::EagerBoth] {
        let least = if kind == Kind::EagerBoth { 16 } else { 8 };
        for (len, posted) in (0..least).flat_map(|len| [(len, false), (len, true)]) {
            let fabric = Fabric::new(tiny(2));
            let mut world = World::new(&fabric, AMPLE);
            let receive = posted.then(|| world.recv(0, 1, 1, 64));
            let fault = Failure::Fault(PortFault::Protocol { kind });
            assert_eq!(forge(&mut world, kind, &[3; 16][..len]), Some(fault), "{kind:?}, {len} bytes");
            let failed = Err(CompletionError::PeerFailed { peer: 1, failure: fault });
            assert!(receive.is_none_or(|receive| world.done(receive).0 == failed));
            assert_eq!(world.engine(0).unexpected_messages(), 0);
        }
    }
}

#[test]
fn blocking_receive_whose_acknowledgement_finds_no_space_becomes_a_request() {
    let fabric = Fabric::new(tiny(2));
    let mut world = World::new(&fabric, AMPLE);
    // Messages to rank 0 fill the whole space, as rank 0 does nothing.
    let fill: Vec<_> = (0..200).map(|_| world.isend(1, 0, 9, contents(9, 8))).collect();
    let sent = world.issend(0, 1, 1, contents(1, 8));
    let (loan, mut buf) = world.lender.receive(1, 8);
    let step = world.engine(1).receive_step(&pattern(Source::Rank(0), 1), &mut buf);
    let Bypass::Posted(id) = step else { panic!("{step:?}") };
    world.engine(1).progress();
    assert_eq!(world.engine(1).test(id), None, "the acknowledgement has not left");
    for _ in 0..200 {
        world.recv(0, 1, 9, 8);
    }
    world.settle();
    assert_eq!(world.engine(1).test(id), Some(Ok(Status { peer: 0, tag: 1, len: 8, immediate: None })));
    assert_eq!(world.lender.end(loan), contents(1, 8));
    assert!(world.done(sent).0.is_ok() && fill.into_iter().all(|fill| world.done(fill).0.is_ok()));
}

#[test]
fn waiting_sender_takes_its_own_acknowledgement_only() {
    let fabric = Fabric::new(tiny(3));
    let mut world = World::new(&fabric, AMPLE);
    let first = world.issend(0, 1, 1, contents(1, 8));
    let second = world.issend(0, 1, 2, contents(2, 8));
    let other = world.issend(0, 2, 1, contents(1, 8));
    let receives = [world.recv(1, 0, 2, 8), world.recv(1, 0, 1, 8)];
    for _ in 0..3 {
        world.engine(1).progress();
    }
    let status = |tag| Some(Status { peer: 1, tag, len: 8, immediate: None });
    // The acknowledgements come in the order of the messages.
    assert_eq!(world.engine(0).finish_now(second.id), None);
    assert_eq!(world.engine(0).finish_now(other.id), None);
    world.engine(0).progress();
    assert_eq!(world.engine(0).finish_now(first.id), status(1));
    assert_eq!(world.engine(0).finish_now(second.id), status(2));
    assert_eq!(world.engine(0).finish_now(second.id), None, "the request is gone");
    assert_eq!(world.engine(0).finish_now(other.id), None);
    let receive = world.recv(2, 0, 1, 8);
    world.settle();
    assert!(world.done(receive).0.is_ok() && world.done(other).0.is_ok());
    assert!(receives.into_iter().all(|receive| world.done(receive).0.is_ok()));
}

#[test]
fn next_acknowledgement_ends_a_send_without_a_poll() {
    let fabric = Fabric::new(tiny(2));
    let mut world = World::new(&fabric, AMPLE);
    for number in 0..20 {
        let sent = world.issend(0, 1, 1, contents(1, 8));
        let receive = world.recv(1, 0, 1, 8);
        world.engine(1).progress();
        let done = world.engine(0).finish_now(sent.id);
        assert_eq!(done, Some(Status { peer: 1, tag: 1, len: 8, immediate: None }), "message {number}");
        assert!(world.done(receive).0.is_ok());
    }
    let counters = world.engine(0).peer_counters(1).unwrap();
    assert_eq!((counters.eager_sent, counters.fin_received, counters.rts_sent), (20, 20, 0));
}
