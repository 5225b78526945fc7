//! Buffers that receive one message after the other.

use std::vec::Vec;

use crate::engine::tests::world::{AMPLE, RequestHandle, World, WorldRoom, pattern};
use crate::engine::{
    CompletionError, CompletionKind, Failure, MultiPlace, MultiReceiveOptions, OperationCompletion, Outcome,
    SendOptions, StartError, Status,
};
use crate::matching::{Pattern, Source};
use crate::port::PeerId;
use crate::shared::tests::contents;
use crate::shared::tests::fabric::{Fabric, Reading, tiny};

/// The receiving rank.
const HERE: PeerId = 0;
const ANY: Pattern = Pattern { source: Source::Any, context: 0, tag: 0, ignore: u64::MAX };

fn options() -> MultiReceiveOptions {
    MultiReceiveOptions::default()
}

/// Posts a buffer of `len` bytes with the number `context`.
fn try_post(
    world: &mut World<'_>,
    context: u64,
    pattern: Pattern,
    len: usize,
    options: MultiReceiveOptions,
) -> Result<RequestHandle, StartError> {
    let (loan, mut buf) = world.lender.receive(HERE, len);
    let posted = world.engine(HERE).post_multi(pattern, &mut buf, options, context);
    world.handle(HERE, loan, posted)
}

fn post(world: &mut World<'_>, context: u64, pattern: Pattern, len: usize) -> RequestHandle {
    try_post(world, context, pattern, len, options()).unwrap()
}

/// Takes all completions, three at a time.
fn take(world: &mut World<'_>) -> Vec<OperationCompletion> {
    let mut all = Vec::new();
    loop {
        let mut some = [OperationCompletion::default(); 3];
        let count = world.engine(HERE).take_completions(&mut some);
        all.extend_from_slice(&some[..count]);
        if count == 0 {
            return all;
        }
    }
}

/// The completion of a message.
fn message(
    buffer: RequestHandle,
    context: u64,
    (peer, tag, offset, len): (PeerId, u64, usize, usize),
) -> OperationCompletion {
    OperationCompletion {
        context,
        kind: CompletionKind::MultiReceive,
        immediate: None,
        place: MultiPlace::Message(buffer.id, offset),
        outcome: Ok(Status { peer, tag, len, immediate: None }),
    }
}

/// The completion of a buffer.
fn end(buffer: RequestHandle, context: u64, outcome: Outcome) -> OperationCompletion {
    let kind = CompletionKind::MultiReceiveEnd;
    OperationCompletion { context, kind, immediate: None, place: MultiPlace::End(buffer.id), outcome }
}

fn used(len: usize) -> Outcome {
    Ok(Status { peer: HERE, tag: 0, len, immediate: None })
}

fn send(world: &mut World<'_>, from: PeerId, tag: u64, len: usize) {
    let sent = world.isend(from, HERE, tag, contents(tag, len));
    world.settle();
    world.test(sent);
}

#[test]
fn messages_of_every_size_lie_behind_each_other_whether_expected_or_not() {
    let lens = [8, 0, 1, 49, 256, 257, 2045, 10_000, 3];
    for reading in [Reading::Never, Reading::Always] {
        for (expected, from) in [(true, 1), (false, 1), (true, HERE), (false, HERE)] {
            let fabric = Fabric::reading(tiny(2), reading, 1);
            let mut world = World::new(&fabric, AMPLE);
            let (mut at, mut places) = (0_usize, Vec::new());
            for len in lens {
                places.push((at, len));
                at = (at + len).next_multiple_of(8);
            }
            let before = expected.then(|| post(&mut world, 7, ANY, at));
            let mut sends = Vec::new();
            for (tag, len) in lens.into_iter().enumerate() {
                sends.push(world.isend(from, HERE, tag as u64, contents(tag as u64, len)));
                world.settle();
            }
            let buffer = before.unwrap_or_else(|| post(&mut world, 7, ANY, at));
            world.settle();
            let mut taken = take(&mut world);
            let last = taken.pop();
            assert_eq!(last, Some(end(buffer, 7, used(at - 5))), "{reading:?}, expected {expected}");
            taken.sort_by_key(|done| if let MultiPlace::Message(_, at) = done.place { at } else { 0 });
            let right = (0..).zip(&places).map(|(tag, &(at, len))| message(buffer, 7, (from, tag, at, len)));
            // Empty messages have the place of the next one.
            let mut right: Vec<_> = right.collect();
            right.sort_by_key(|done| if let MultiPlace::Message(_, at) = done.place { at } else { 0 });
            assert_eq!(taken, right);
            let bytes = world.lender.end(buffer.loan);
            for ((tag, (at, len)), sent) in (0..).zip(places).zip(sends) {
                assert_eq!(bytes[at..at + len], contents(tag, len), "{len} bytes");
                assert!(world.done(sent).0.is_ok());
            }
            world.assert_empty(&[0, 1], "every size");
        }
    }
}

#[test]
fn immediate_data_and_acknowledgements_pass_through_the_buffer() {
    for early in [true, false] {
        let fabric = Fabric::new(tiny(2));
        let mut world = World::new(&fabric, AMPLE);
        let before = early.then(|| post(&mut world, 1, ANY, 5000));
        let mut sends = Vec::new();
        for (len, synchronous) in [(8, false), (8, true), (200, true), (3000, true)] {
            let with = SendOptions { immediate: Some(len as u64), synchronous };
            sends.push(world.isend_with((1, HERE), 0, 2, contents(2, len), with).unwrap());
            world.settle();
        }
        let buffer = before.unwrap_or_else(|| post(&mut world, 1, ANY, 5000));
        world.settle();
        let taken = take(&mut world);
        let lens: Vec<_> = taken.iter().map(|done| (done.immediate, done.outcome.unwrap().len)).collect();
        assert_eq!(lens, [8, 8, 200, 3000].map(|len| (Some(len as u64), len)));
        assert!(taken.iter().all(|done| done.outcome.unwrap().immediate == done.immediate));
        sends.into_iter().for_each(|sent| assert!(world.done(sent).0.is_ok(), "it is matched"));
        assert!(world.engine(HERE).cancel(buffer.id) && !world.engine(HERE).cancel(buffer.id));
        assert_eq!(take(&mut world), [end(buffer, 1, Err(CompletionError::Cancelled))]);
        world.lender.end(buffer.loan);
        world.assert_empty(&[0, 1], "prefixes");
    }
}

#[test]
fn buffers_are_filled_in_the_order_of_posting_and_a_message_that_does_not_fit_ends_the_first() {
    for expected in [true, false] {
        let fabric = Fabric::new(tiny(3));
        let mut world = World::new(&fabric, AMPLE);
        let post_all = |world: &mut World<'_>| {
            let exact = pattern(Source::Rank(1), 5);
            [post(world, 1, exact, 64), post(world, 2, ANY, 64), post(world, 3, ANY, 300)]
        };
        let before = expected.then(|| post_all(&mut world));
        // The first buffer takes one tag of one rank only.
        let mut sends = Vec::new();
        for (from, tag, len) in
            [(1, 5, 40), (2, 5, 8), (1, 5, 30), (1, 5, 8), (2, 6, 280), (2, 6, 1), (2, 6, 17)]
        {
            sends.push(world.isend(from, HERE, tag, contents(tag, len)));
            world.settle();
        }
        let buffers = before.unwrap_or_else(|| post_all(&mut world));
        world.settle();
        let [a, b, c] = buffers;
        let mut taken = take(&mut world);
        let mut right = [
            message(a, 1, (1, 5, 0, 40)),
            end(a, 1, used(40)),
            message(b, 2, (2, 5, 0, 8)),
            message(b, 2, (1, 5, 8, 30)),
            message(b, 2, (1, 5, 40, 8)),
            message(b, 2, (2, 6, 48, 1)),
            message(c, 3, (2, 6, 0, 280)),
            message(c, 3, (2, 6, 280, 17)),
            end(b, 2, used(49)),
            end(c, 3, used(297)),
        ];
        // The announced message may be complete later.
        let order = |done: &OperationCompletion| match done.place {
            MultiPlace::Message(_, at) => (done.context, at),
            _ => (done.context, usize::MAX),
        };
        taken.sort_by_key(order);
        right.sort_by_key(order);
        assert_eq!(taken, right, "expected {expected}");
        sends.into_iter().for_each(|sent| assert!(world.done(sent).0.is_ok()));
        buffers.into_iter().for_each(|buffer| _ = world.lender.end(buffer.loan));
        world.assert_empty(&[0, 1, 2], "two buffers");
    }
}

#[test]
fn message_longer_than_a_whole_buffer_passes_it_by_and_waits_for_another_receive() {
    for len in [100, 3000] {
        let fabric = Fabric::new(tiny(2));
        let mut world = World::new(&fabric, AMPLE);
        let buffer = post(&mut world, 1, ANY, 99);
        let plain = world.recv(HERE, 1, 2, len);
        for _ in 0..2 {
            send(&mut world, 1, 2, len);
        }
        assert_eq!(world.done(plain).1, contents(2, len), "the next receive takes it");
        assert_eq!(world.engine(HERE).unexpected_messages(), 1, "the other waits");
        send(&mut world, 1, 3, 99);
        let taken = take(&mut world);
        assert_eq!(taken, [message(buffer, 1, (1, 3, 0, 99)), end(buffer, 1, used(99))]);
        let late = world.recv(HERE, 1, 2, len);
        world.settle();
        assert_eq!(world.done(late).1, contents(2, len));
        assert_eq!(world.lender.end(buffer.loan), contents(3, 99));
        world.settle();
    }
}

#[test]
fn least_and_alignment_are_kept_and_a_buffer_that_is_too_short_ends_at_once() {
    let fabric = Fabric::new(tiny(2));
    let mut world = World::new(&fabric, AMPLE);
    let wide = options().align(64).unwrap().least(64);
    let buffer = try_post(&mut world, 1, ANY, 200, wide).unwrap();
    for tag in 1..4 {
        send(&mut world, 1, tag, 1);
    }
    let taken = take(&mut world);
    let right: Vec<_> = (1..4).map(|tag| message(buffer, 1, (1, tag, 64 * (tag as usize - 1), 1))).collect();
    assert_eq!((&taken[..3], taken[3]), (&right[..], end(buffer, 1, used(129))), "8 bytes are left");
    let short = try_post(&mut world, 2, ANY, 63, wide).unwrap();
    assert_eq!(take(&mut world), [end(short, 2, used(0))]);
    assert!(!world.engine(HERE).cancel(short.id));
    world.lender.scatter(1);
    let (loan, mut list) = loop {
        let lent = world.lender.receive(HERE, 5000);
        if lent.1.is_list() {
            break lent;
        }
        world.lender.end(lent.0);
    };
    let refused = world.engine(HERE).post_multi(ANY, &mut list, options(), 3);
    assert_eq!((refused, list.len()), (Err(StartError::List), 5000));
    world.lender.end(loan);
    for buffer in [buffer, short] {
        world.lender.end(buffer.loan);
    }
    world.assert_empty(&[0, 1], "short");
}

#[test]
fn withdrawn_buffer_ends_after_the_messages_that_it_has_taken() {
    let fabric = Fabric::reading(tiny(2), Reading::Never, 1);
    let mut world = World::new(&fabric, AMPLE);
    let buffer = post(&mut world, 1, ANY, 20_000);
    let large = world.isend(1, HERE, 4, contents(4, 10_000));
    world.engine(1).progress();
    world.engine(HERE).progress();
    let small = world.isend(1, HERE, 5, contents(5, 8));
    // The announcement has reserved its place, and its bytes are missing.
    assert!(world.engine(HERE).uses(0, usize::MAX) && world.engine(HERE).cancel(buffer.id));
    assert_eq!(take(&mut world), [], "a message is under way");
    assert!(!world.engine(HERE).cancel(buffer.id), "it is withdrawn");
    world.settle();
    let right = [message(buffer, 1, (1, 4, 0, 10_000)), end(buffer, 1, Err(CompletionError::Cancelled))];
    assert_eq!(take(&mut world), right);
    assert_eq!(world.lender.end(buffer.loan)[..10_000], contents(4, 10_000));
    assert!(world.done(large).0.is_ok());
    world.test(small);
    let later = world.recv(HERE, 1, 5, 8);
    assert_eq!(world.done(later).1, contents(5, 8), "it came after the withdrawal");
    world.assert_empty(&[0, 1], "withdrawn");
}

#[test]
fn place_of_an_announced_message_is_reserved_before_that_of_a_later_one() {
    let fabric = Fabric::reading(tiny(2), Reading::Never, 1);
    let mut world = World::new(&fabric, AMPLE);
    let buffer = post(&mut world, 1, ANY, 10_008);
    let large = world.isend(1, HERE, 4, contents(4, 10_000));
    world.engine(1).progress();
    let small = world.isend(1, HERE, 5, contents(5, 8));
    let mut taken = Vec::new();
    while taken.is_empty() {
        world.engine(HERE).progress();
        taken = take(&mut world);
    }
    assert_eq!(taken, [message(buffer, 1, (1, 5, 10_000, 8))], "the later one is complete first");
    world.settle();
    assert_eq!(take(&mut world), [message(buffer, 1, (1, 4, 0, 10_000)), end(buffer, 1, used(10_008))]);
    let bytes = world.lender.end(buffer.loan);
    assert_eq!((&bytes[..10_000], &bytes[10_000..]), (&contents(4, 10_000)[..], &contents(5, 8)[..]));
    assert!(world.done(large).0.is_ok());
    world.test(small);
}

#[test]
fn failure_of_a_peer_ends_its_messages_and_the_buffers_that_only_it_could_fill() {
    let fabric = Fabric::reading(tiny(3), Reading::Never, 1);
    let mut world = World::new(&fabric, AMPLE);
    world.engine(HERE).outlive_failures(true);
    let only = post(&mut world, 1, pattern(Source::Rank(1), 1), 20_000);
    let any = post(&mut world, 2, ANY, 20_000);
    for tag in [1, 2] {
        let large = world.isend(1, HERE, tag, contents(tag, 5000));
        world.engine(1).progress();
        world.engine(HERE).progress();
        assert!(world.test(large).is_none());
    }
    world.engine(HERE).depart(1, Failure::Died);
    while !world.engine(HERE).drain(1) {}
    world.engine(HERE).fail(1, Failure::Died);
    let error = Err(CompletionError::PeerFailed { peer: 1, failure: Failure::Died });
    let mut taken = take(&mut world);
    taken.sort_by_key(|done| (done.context, done.kind == CompletionKind::MultiReceiveEnd));
    assert_eq!(taken.len(), 3);
    for (done, right) in taken.iter().zip([
        OperationCompletion { outcome: error, ..message(only, 1, (1, 1, 0, 0)) },
        end(only, 1, error),
        OperationCompletion { outcome: error, ..message(any, 2, (1, 2, 0, 0)) },
    ]) {
        assert_eq!(*done, right);
    }
    send(&mut world, 2, 9, 8);
    assert_eq!(take(&mut world), [message(any, 2, (2, 9, 5000, 8))], "the other buffer goes on");
    let gone = StartError::PeerFailed { peer: 1, failure: Failure::Died };
    let refused = try_post(&mut world, 3, pattern(Source::Rank(1), 1), 8, options());
    assert_eq!(refused.unwrap_err(), gone);
    world.lender.end(only.loan);
    world.lender.end(any.loan);
}

#[test]
fn stored_messages_of_a_failed_peer_enter_a_buffer_which_then_ends() {
    let fabric = Fabric::new(tiny(2));
    let mut world = World::new(&fabric, AMPLE);
    send(&mut world, 1, 3, 8);
    world.engine(HERE).depart(1, Failure::Finished);
    world.engine(HERE).fail(1, Failure::Finished);
    let buffer = post(&mut world, 1, pattern(Source::Rank(1), 3), 100);
    let error = Err(CompletionError::PeerFailed { peer: 1, failure: Failure::Finished });
    assert_eq!(take(&mut world), [message(buffer, 1, (1, 3, 0, 8)), end(buffer, 1, error)]);
    world.lender.end(buffer.loan);
}

#[test]
fn messages_without_a_slot_wait_in_the_store_and_keep_their_order() {
    let fabric = Fabric::new(tiny(2));
    let mut world = World::new(&fabric, WorldRoom { requests: 4, ..AMPLE });
    let buffer = post(&mut world, 1, ANY, 16 * 8);
    for tag in 0..8 {
        send(&mut world, 1, tag, 16);
    }
    assert!(world.engine(HERE).is_starved());
    assert_eq!(world.engine(HERE).unexpected_messages(), 5);
    let mut some = [OperationCompletion::default(); 2];
    assert_eq!(world.engine(HERE).take_completions(&mut some), 2);
    assert_eq!(world.engine(HERE).unexpected_messages(), 3, "the free slots are used");
    let mut taken = some.to_vec();
    taken.extend(take(&mut world));
    let mut right: Vec<_> = (0..8).map(|tag| message(buffer, 1, (1, tag, 16 * tag as usize, 16))).collect();
    right.push(end(buffer, 1, used(128)));
    assert_eq!(taken, right);
    world.lender.end(buffer.loan);
    // Receives behind the buffer get what it does not take, at once.
    let buffer = post(&mut world, 2, ANY, 16 * 3);
    let plain = [(); 2].map(|()| world.recv(HERE, 1, 9, 16));
    for _ in 0..5 {
        send(&mut world, 1, 9, 16);
    }
    assert!(world.engine(HERE).is_starved());
    for receive in plain {
        assert!(world.done(receive).0.is_ok());
    }
    assert_eq!(take(&mut world).len(), 4);
    world.lender.end(buffer.loan);
    assert!(!world.engine(HERE).is_starved());
    // A buffer that is withdrawn receives what it has matched, and no probe sees that.
    let buffer = post(&mut world, 3, ANY, 160);
    for _ in 0..6 {
        send(&mut world, 1, 9, 16);
    }
    assert!(world.engine(HERE).is_starved() && world.engine(HERE).iprobe(&ANY).is_none());
    assert!(world.engine(HERE).cancel(buffer.id));
    let taken = take(&mut world);
    assert_eq!((taken.len(), taken[6]), (7, end(buffer, 3, Err(CompletionError::Cancelled))));
    world.lender.end(buffer.loan);
    world.assert_empty(&[0, 1], "slots");
}

#[test]
fn messages_that_wait_for_a_slot_outlive_their_sender_as_far_as_they_are_whole() {
    for (returns, failure) in [(false, Failure::Died), (true, Failure::Died), (true, Failure::Finished)] {
        let fabric = Fabric::new(tiny(2));
        let mut world = World::new(&fabric, WorldRoom { requests: 3, ..AMPLE });
        world.engine(HERE).outlive_failures(true);
        let buffer = post(&mut world, 1, ANY, 8000);
        for (tag, len, synchronous) in
            [(1, 8, false), (2, 8, false), (3, 8, false), (4, 8, true), (5, 3000, false)]
        {
            let with = SendOptions { immediate: None, synchronous };
            world.isend_with((1, HERE), 0, tag, contents(tag, len), with).unwrap();
            world.settle();
        }
        assert!(world.engine(HERE).is_starved());
        world.replace(1, failure);
        if returns {
            world.readmit(HERE, 1);
        }
        let error = Err(CompletionError::PeerFailed { peer: 1, failure });
        // Without a return, a message that has arrived whole needs no sender. An acknowledgement has no receiver.
        let taken = take(&mut world);
        let right = [(1, 0, 8), (2, 8, 8), (3, 16, 8), (4, 24, 8), (5, 32, 3000)].map(|(tag, at, len)| {
            let done = message(buffer, 1, (1, tag, at, len));
            let is_lost = tag == 5 || tag == 4 && returns;
            if is_lost { OperationCompletion { outcome: error, ..done } } else { done }
        });
        assert_eq!(taken, right, "returns {returns}");
        assert!(world.engine(HERE).cancel(buffer.id));
        assert_eq!(take(&mut world).len(), 1);
        let bytes = world.lender.end(buffer.loan);
        for tag in 1..4 {
            assert_eq!(bytes[8 * (tag as usize - 1)..8 * tag as usize], contents(tag, 8));
        }
        if returns {
            let again = post(&mut world, 2, ANY, 8);
            send(&mut world, 1, 9, 8);
            assert_eq!(take(&mut world), [message(again, 2, (1, 9, 0, 8)), end(again, 2, used(8))]);
            assert_eq!(world.lender.end(again.loan), contents(9, 8));
            world.assert_empty(&[HERE, 1], "return");
        }
    }
}

#[test]
fn messages_to_this_process_itself_wait_for_slots_too() {
    let fabric = Fabric::new(tiny(2));
    let mut world = World::new(&fabric, WorldRoom { requests: 5, ..AMPLE });
    let buffer = post(&mut world, 1, ANY, 5000);
    let sends: Vec<_> = [8, 3000, 0, 100]
        .into_iter()
        .zip(0..)
        .map(|(len, tag)| world.isend(HERE, HERE, tag, contents(tag, len)))
        .collect();
    world.settle();
    let mut taken = Vec::new();
    while taken.len() < 4 {
        taken.extend(take(&mut world));
        world.settle();
    }
    let right = [(0, 0, 8), (1, 8, 3000), (2, 3008, 0), (3, 3008, 100)];
    assert_eq!(taken, right.map(|(tag, at, len)| message(buffer, 1, (HERE, tag, at, len))));
    sends.into_iter().for_each(|sent| assert!(world.done(sent).0.is_ok()));
    assert!(world.engine(HERE).cancel(buffer.id));
    assert_eq!(take(&mut world).len(), 1);
    let bytes = world.lender.end(buffer.loan);
    assert_eq!((&bytes[8..3008], &bytes[3008..3108]), (&contents(1, 3000)[..], &contents(3, 100)[..]));
    world.assert_empty(&[HERE], "itself");
}
