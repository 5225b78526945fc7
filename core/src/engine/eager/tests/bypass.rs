//! Blocking receives without a posted request.

use std::vec;
use std::vec::Vec;

use crate::engine::tests::world::{AMPLE, World, WorldRoom, pattern};
use crate::engine::{Bypass, CompletionError, Engine, Failure, Status, Storage};
use crate::matching::{MOST_COMPARED, Pattern, Source};
use crate::port::{PacketPieces, PacketPort, Port, PortFault, SHORT_BYTES};
use crate::shared::tests::contents;
use crate::shared::tests::fabric::{Fabric, Reading, tiny};
use crate::wire::{Envelope, Kind};

#[test]
fn packet_in_hand_is_received_without_a_request() {
    let fabric = Fabric::new(tiny(2));
    let mut world = World::new(&fabric, AMPLE);
    for (tag, len) in [(1, 8), (2, 0), (3, 256)] {
        let wanted = pattern(Source::Rank(0), tag);
        assert!(world.engine(1).can_bypass(&wanted));
        world.isend(0, 1, tag, contents(tag, len));
        let (loan, mut buf) = world.lender.receive(1, len);
        let Bypass::Done(outcome) = world.engine(1).receive_step(&wanted, &mut buf) else { panic!("{len}") };
        assert_eq!(outcome, Ok(Status { peer: 0, tag, len, immediate: None }));
        assert_eq!(world.lender.end(loan), contents(tag, len));
    }
    world.assert_empty(&[0, 1], "bypass");
}

#[test]
fn message_of_a_rendezvous_becomes_a_request() {
    for reading in [Reading::Never, Reading::Always] {
        for (synchronous, len, room) in [(false, 2000, 2000), (true, 2000, 2000)] {
            let fabric = Fabric::reading(tiny(2), reading, 1);
            let mut world = World::new(&fabric, AMPLE);
            let send = match synchronous {
                true => world.issend(0, 1, 1, contents(1, len)),
                false => world.isend(0, 1, 1, contents(1, len)),
            };
            let (loan, mut buf) = world.lender.receive(1, room);
            let step = world.engine(1).receive_step(&pattern(Source::Any, 1), &mut buf);
            let Bypass::Posted(id) = step else { panic!("{step:?}") };
            assert!(buf.is_empty(), "the request owns the buffer");
            world.settle();
            assert_eq!(world.engine(1).test(id), Some(Ok(Status { peer: 0, tag: 1, len, immediate: None })));
            assert_eq!(world.lender.end(loan), contents(1, len));
            assert_eq!(world.done(send).0, Ok(Status { peer: 1, tag: 1, len, immediate: None }));
            world.assert_empty(&[0, 1], "bypass of a rendezvous");
        }
    }
}

#[test]
fn packet_that_violates_the_protocol_ends_the_bypass() {
    for kind in [Kind::Rts, Kind::Cts, Kind::Data, Kind::Fin, Kind::Rma] {
        let fabric = Fabric::new(tiny(2));
        let mut world = World::new(&fabric, AMPLE);
        let envelope = Envelope { kind, context: 0, tag: 1, total: 3 };
        assert_eq!(world.engine(0).port_mut().send(1, &envelope, PacketPieces::Whole(&[1; 3])), Ok(true));
        let (_, mut buf) = world.lender.receive(1, 10);
        let wanted = pattern(Source::Rank(0), 1);
        match world.engine(1).receive_step(&wanted, &mut buf) {
            Bypass::Posted(id) => {
                let outcome = world.engine(1).test(id);
                assert!(
                    matches!(outcome, Some(Err(CompletionError::PeerFailed { peer: 0, .. }))),
                    "{kind:?}: {outcome:?}"
                );
            }
            Bypass::Post => assert_eq!(buf.len(), 10),
            step => panic!("{kind:?}: {step:?}"),
        }
        assert_eq!(world.engine(1).failure(0), Some(Failure::Fault(PortFault::Protocol { kind })));
        world.assert_empty(&[1], "a broken bypass");
    }
}

const fn masked(source: Source, tag: u64, ignore: u64) -> Pattern {
    Pattern { source, context: 0, tag, ignore }
}

#[test]
fn stored_message_forbids_the_bypass_only_of_receives_that_match_it() {
    let fabric = Fabric::new(tiny(2));
    let mut world = World::new(&fabric, AMPLE);
    let wanted = pattern(Source::Rank(0), 1);
    let matching = [
        pattern(Source::Rank(0), 2),
        pattern(Source::Any, 2),
        masked(Source::Rank(0), 1, 3),
        masked(Source::Any, 0, u64::MAX),
    ];
    for len in [8, 700] {
        world.isend(0, 1, 2, contents(2, len));
        let (loan, mut buf) = world.lender.receive(1, 8);
        assert!(matches!(world.engine(1).receive_step(&wanted, &mut buf), Bypass::Busy));
        world.lender.end(loan);
        for it in matching {
            assert!(!world.engine(1).can_bypass(&it), "{it:?}");
            assert!(world.engine(1).can_bypass(&Pattern { context: 1, ..it }), "{it:?}");
        }
        for it in [wanted, pattern(Source::Any, 3), masked(Source::Rank(0), 1, 1)] {
            assert!(world.engine(1).can_bypass(&it), "{it:?}");
        }
        let receive = world.recv(1, 0, 2, len);
        world.settle();
        assert_eq!(world.done(receive).1, contents(2, len));
        assert!(matching.iter().all(|it| world.engine(1).can_bypass(it)));
    }
}

#[test]
fn posted_receive_forbids_the_bypass_only_of_receives_that_want_its_messages() {
    let fabric = Fabric::new(tiny(3));
    let mut world = World::new(&fabric, AMPLE);
    let exact = pattern(Source::Rank(0), 2);
    // What is posted, what else wants its messages, and what does not.
    let cases = [
        (
            exact,
            vec![exact, pattern(Source::Any, 2), masked(Source::Any, 0, 2)],
            vec![pattern(Source::Rank(0), 1), pattern(Source::Rank(2), 2), masked(Source::Any, 1, 2)],
        ),
        (
            pattern(Source::Any, 2),
            vec![exact, pattern(Source::Rank(2), 2), masked(Source::Rank(0), 3, 1)],
            vec![pattern(Source::Any, 3), masked(Source::Rank(0), 5, 2)],
        ),
        (
            masked(Source::Rank(0), 6, 4),
            vec![exact, masked(Source::Any, 3, 1)],
            vec![pattern(Source::Rank(0), 3), pattern(Source::Rank(2), 2)],
        ),
        (masked(Source::Any, 0, u64::MAX), vec![exact, pattern(Source::Any, 9)], vec![]),
    ];
    for (posted, rivals, others) in cases {
        let receive = world.irecv(1, posted, 8).unwrap();
        for it in &rivals {
            assert!(!world.engine(1).can_bypass(it), "{it:?} beside {posted:?}");
        }
        for it in rivals.iter().map(|it| Pattern { context: 1, ..*it }).chain(others) {
            assert!(world.engine(1).can_bypass(&it), "{it:?} beside {posted:?}");
        }
        assert!(world.engine(1).cancel(receive.id));
        assert_eq!(world.done(receive).0, Err(CompletionError::Cancelled));
        assert!(rivals.iter().all(|it| world.engine(1).can_bypass(it)));
    }
    world.assert_empty(&[0, 1, 2], "patterns");
}

/// Posted receives get their messages as usual while another receive is bypassed, also if its own message is large.
#[test]
fn messages_of_posted_receives_are_delivered_during_a_bypass() {
    let fabric = Fabric::new(tiny(2));
    let mut world = World::new(&fabric, AMPLE);
    let wanted = pattern(Source::Rank(0), 1);
    for len in [8, 100, 2000] {
        let others = [(2, 8), (3, 700)].map(|(tag, len)| world.recv(1, 0, tag, len));
        let wild = world.irecv(1, masked(Source::Any, 4, 3), 8).unwrap();
        let messages = [(2, 8), (3, 700), (7, 8), (9, 8), (1, len)];
        let sends = messages.map(|(tag, len)| world.isend(0, 1, tag, contents(tag, len)));
        let (loan, mut buf) = world.lender.receive(1, len);
        let mut received = None;
        while received.is_none() {
            assert!(world.engine(1).can_bypass(&wanted));
            match world.engine(1).receive_step(&wanted, &mut buf) {
                Bypass::Done(outcome) => received = Some(outcome),
                Bypass::Posted(id) => {
                    world.settle();
                    received = world.engine(1).test(id);
                }
                Bypass::Busy | Bypass::Idle => _ = world.engine(0).progress(),
                Bypass::Post => panic!("nothing has failed"),
            }
        }
        assert_eq!(received, Some(Ok(Status { peer: 0, tag: 1, len, immediate: None })));
        assert_eq!(world.lender.end(loan), contents(1, len));
        world.settle();
        assert_eq!(world.done(others[0]).1, contents(2, 8));
        assert_eq!(world.done(others[1]).1, contents(3, 700));
        assert_eq!(world.done(wild).1, contents(7, 8));
        let stored = world.recv(1, 0, 9, 8);
        assert_eq!(world.done(stored).1, contents(9, 8));
        assert!(sends.into_iter().all(|send| world.done(send).0.is_ok()));
    }
    world.assert_empty(&[0, 1], "a bypass beside posted receives");
}

/// A message to a third rank waits for room. The rank that sent it then blocks in a receive.
#[test]
fn pending_sends_leave_during_a_bypass() {
    let fabric = Fabric::new(tiny(3));
    let mut world = World::new(&fabric, AMPLE);
    let sends: Vec<_> = (0..100).map(|n| world.isend(1, 2, n, contents(n, 200))).collect();
    assert!(world.engine(1).has_work(), "the cells are not full");
    let wanted = pattern(Source::Rank(0), 1);
    let (loan, mut buf) = world.lender.receive(1, 8);
    let mut steps = 0;
    while world.engine(1).has_work() {
        assert!(world.engine(1).can_bypass(&wanted));
        let step = world.engine(1).receive_step(&wanted, &mut buf);
        assert!(matches!(step, Bypass::Busy | Bypass::Idle), "{step:?}");
        world.engine(2).progress();
        steps += 1;
        assert!(steps < 10_000, "the sends are stuck");
    }
    world.lender.end(loan);
    sends.into_iter().for_each(|send| assert!(world.done(send).0.is_ok()));
    for tag in 0..100 {
        let receive = world.recv(2, 1, tag, 200);
        world.settle();
        assert_eq!(world.done(receive).1, contents(tag, 200));
    }
    world.assert_empty(&[0, 1, 2], "sends beside a bypass");
}

/// A message to the own rank that waits for room in the store can leave only if the receive is posted.
#[test]
fn pending_message_to_the_own_rank_forbids_the_bypass_of_its_receive() {
    let fabric = Fabric::new(tiny(2));
    let mut world = World::new(&fabric, WorldRoom { units: 64, ..AMPLE });
    let mut sends = vec![];
    while world.engine(1).can_bypass(&pattern(Source::Rank(1), 7)) {
        sends.push(world.isend(1, 1, 2, contents(sends.len() as u64, 200)));
        assert!(world.engine(1).unexpected_messages() < MOST_COMPARED, "the store is never full");
    }
    let from = |rank| world.engines[1].can_bypass(&pattern(rank, 7));
    assert_eq!([Source::Rank(0), Source::Rank(1), Source::Any].map(from), [true, false, false]);
    for (number, send) in sends.into_iter().enumerate() {
        let receive = world.recv(1, 1, 2, 200);
        world.settle();
        assert_eq!(world.done(receive).1, contents(number as u64, 200));
        assert!(world.done(send).0.is_ok());
    }
    world.assert_empty(&[1], "messages to the own rank");
}

/// With very many others, the comparison would take longer than posting the receive.
#[test]
fn receive_is_posted_if_too_many_others_would_have_to_be_compared() {
    let fabric = Fabric::new(tiny(2));
    let mut world = World::new(&fabric, AMPLE);
    let any = pattern(Source::Any, 1);
    let few = MOST_COMPARED as u64;
    let mut receives = vec![];
    for tag in 2..2 + 4 * few {
        receives.push(world.recv(1, 0, tag, 8));
        assert_eq!(world.engine(1).can_bypass(&any), receives.len() <= MOST_COMPARED);
    }
    for (tag, receive) in (2..).zip(receives) {
        world.isend(0, 1, tag, contents(tag, 8));
        world.settle();
        assert_eq!(world.done(receive).1, contents(tag, 8));
    }
    for tag in 2..2 + 2 * few {
        world.isend(0, 1, tag, contents(tag, 8));
        world.settle();
        assert_eq!(world.engine(1).can_bypass(&any), tag - 1 <= few);
    }
    for tag in 2..2 + 2 * few {
        let receive = world.recv(1, 0, tag, 8);
        assert_eq!(world.done(receive).1, contents(tag, 8));
    }
    world.assert_empty(&[0, 1], "many others");
}

#[test]
fn full_table_of_requests_leaves_the_buffer_with_its_owner() {
    let fabric = Fabric::new(tiny(2));
    let mut world = World::new(&fabric, WorldRoom { requests: 0, ..AMPLE });
    let isent = world.isend_in(0, 0, 1, 1, contents(1, 2000)).err();
    assert!(isent.is_some(), "not even a pending send found a slot");
    world.engines[0].grow_requests(1);
    world.isend(0, 1, 1, contents(1, 2000));
    let (_, mut buf) = world.lender.receive(1, 2000);
    assert!(matches!(world.engine(1).receive_step(&pattern(Source::Any, 1), &mut buf), Bypass::Busy));
    assert_eq!((buf.len(), world.engine(1).unexpected_messages()), (2000, 1));
    world.engines[1].grow_requests(1);
    let receive = world.recv(1, 0, 1, 2000);
    world.settle();
    assert_eq!(world.done(receive).1, contents(1, 2000));
}

/// Receives a short message that is there, as a blocking receive does.
fn receive_short<P: Port, S: Storage>(
    engine: &mut Engine<P, S>,
    wanted: &Pattern,
    into: &mut [u8],
) -> Option<Status> {
    let from = match wanted.source {
        Source::Rank(rank) => Some(rank as usize),
        Source::Any => None,
    };
    if engine.is_idle() {
        return engine.receive_short(from, wanted.context, |tag| wanted.accepts(tag), into);
    }
    assert_eq!(engine.receive_short(from, wanted.context, |tag| wanted.accepts(tag), into), None);
    engine.receive_short_beside(wanted, into)
}

/// Returns the short message that a blocking receive finds at once.
fn short(world: &mut World<'_>, wanted: &Pattern) -> Option<(Status, Vec<u8>)> {
    let mut into = [0xee; SHORT_BYTES + 1];
    let status = receive_short(world.engine(1), wanted, &mut into)?;
    assert!(into[status.len..].iter().all(|byte| *byte == 0xee), "written beyond {} bytes", status.len);
    Some((status, into[..status.len].to_vec()))
}

#[test]
fn short_message_of_every_length_is_received_at_once_and_no_other() {
    let fabric = Fabric::new(tiny(2));
    let mut world = World::new(&fabric, AMPLE);
    let wanted = pattern(Source::Rank(0), 1);
    assert_eq!(short(&mut world, &wanted), None);
    for len in 0..=SHORT_BYTES {
        for from in [Source::Rank(0), Source::Any] {
            world.isend(0, 1, 1, contents(1, len));
            // Another tag, source or context than that of the message, and no room.
            assert_eq!(short(&mut world, &pattern(from, 2)), None);
            assert_eq!(short(&mut world, &pattern(Source::Rank(1), 1)), None);
            assert_eq!(short(&mut world, &pattern(Source::Rank(7), 1)), None);
            assert_eq!(short(&mut world, &Pattern { context: 3, ..pattern(from, 1) }), None);
            let room = &mut [0; SHORT_BYTES][..len.saturating_sub(1)];
            assert_eq!(receive_short(world.engine(1), &wanted, room).is_some(), len == 0);
            if len == 0 {
                continue;
            }
            let (status, bytes) = short(&mut world, &pattern(from, 1)).unwrap();
            assert_eq!((status, bytes), (Status { peer: 0, tag: 1, len, immediate: None }, contents(1, len)));
        }
    }
    for len in [SHORT_BYTES + 1, 24, 48, 64] {
        world.isend(0, 1, 1, contents(1, len));
        assert_eq!(short(&mut world, &wanted), None, "{len} bytes");
        let receive = world.irecv(1, wanted, len).unwrap();
        world.settle();
        assert_eq!(world.done(receive).0, Ok(Status { peer: 0, tag: 1, len, immediate: None }));
    }
    world.assert_empty(&[0, 1], "short messages");
}

#[test]
fn short_message_passes_by_nothing_that_is_posted_stored_or_before_it() {
    let fabric = Fabric::new(tiny(2));
    let mut world = World::new(&fabric, AMPLE);
    let (any, wanted) = (pattern(Source::Any, 1), pattern(Source::Rank(0), 1));
    // Posted before.
    let posted = world.irecv(1, any, 8).unwrap();
    world.isend(0, 1, 1, contents(1, 8));
    assert_eq!(short(&mut world, &wanted), None);
    world.settle();
    world.isend(0, 1, 2, contents(2, 8));
    let other = world.irecv(1, pattern(Source::Any, 3), 8).unwrap();
    assert_eq!(short(&mut world, &pattern(Source::Rank(0), 2)).unwrap().1[..], contents(2, 8)[..]);
    assert!(world.engine(1).cancel(other.id));
    assert_eq!(world.done(other).0, Err(CompletionError::Cancelled));
    assert_eq!(world.done(posted).1, contents(1, 8));
    // Stored before.
    world.isend(0, 1, 1, contents(2, 8));
    world.settle();
    world.isend(0, 1, 1, contents(3, 8));
    assert_eq!(short(&mut world, &wanted), None);
    let stored = world.irecv(1, wanted, 8).unwrap();
    assert_eq!(world.done(stored).1, contents(2, 8));
    assert_eq!(short(&mut world, &wanted).unwrap().1[..], contents(3, 8)[..]);
    // In a cell, and sent before.
    world.isend(0, 1, 1, contents(4, 200));
    world.isend(0, 1, 1, contents(5, 8));
    assert_eq!(short(&mut world, &wanted), None);
    let long = world.irecv(1, wanted, 200).unwrap();
    world.settle();
    assert_eq!(world.done(long).1, contents(4, 200));
    let last = world.irecv(1, wanted, 8).unwrap();
    assert_eq!(world.done(last).1, contents(5, 8));
    world.assert_empty(&[0, 1], "short messages");
}

#[test]
fn posted_receive_takes_its_word_only_if_it_is_the_first_that_matches() {
    let fabric = Fabric::new(tiny(2));
    let mut world = World::new(&fabric, AMPLE);
    let (any, wanted) = (pattern(Source::Any, 1), pattern(Source::Rank(0), 1));
    let [first, second] = [0, 1].map(|_| world.irecv(1, wanted, 8).unwrap());
    let short = world.irecv(1, pattern(Source::Rank(0), 2), 4).unwrap();
    for (number, tag) in [(1, 1), (2, 1), (3, 2)] {
        world.isend(0, 1, tag, contents(number, 8));
    }
    let done = Status { peer: 0, tag: 1, len: 8, immediate: None };
    assert_eq!(world.engine(1).try_finish(second.id), None, "the other receive was posted first");
    assert_eq!(world.engine(1).try_finish(short.id), None, "its message is not the next one");
    assert_eq!(world.engine(1).try_finish(first.id), Some(Ok(done)));
    assert_eq!(world.engine(1).try_finish(first.id), Some(Err(CompletionError::Stale)));
    assert_eq!(world.engine(1).try_finish(second.id), Some(Ok(done)));
    assert_eq!(world.engine(1).try_finish(short.id), None, "its buffer is too short");
    assert_eq!(world.lender.end(first.loan), contents(1, 8));
    assert_eq!(world.lender.end(second.loan), contents(2, 8));
    world.settle();
    assert!(matches!(world.done(short).0, Err(CompletionError::Truncated(_))));
    // A receive from any source was posted before it.
    let wild = world.irecv(1, any, 8).unwrap();
    let exact = world.irecv(1, wanted, 8).unwrap();
    world.isend(0, 1, 1, contents(4, 8));
    assert_eq!(world.engine(1).try_finish(exact.id), None);
    world.settle();
    assert_eq!(world.done(wild).1, contents(4, 8));
    assert!(world.engine(1).cancel(exact.id));
    assert_eq!(world.done(exact).0, Err(CompletionError::Cancelled));
    world.assert_empty(&[0, 1], "short messages");
}
