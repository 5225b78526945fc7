//! The completion queue, the withdrawal of sends, and `inject`.

use std::vec;
use std::vec::Vec;

use super::world::{AMPLE, RequestHandle, World, WorldRoom, pattern};
use crate::engine::rma::{Access, Addressing, Target};
use crate::engine::{
    CompletionError, CompletionKind, Engine, Failure, OperationCompletion, Outcome, RequestId, SendOptions,
    StartError, Status, Storage, Truncation,
};
use crate::matching::{Pattern, Source};
use crate::payload::RecvBuf;
use crate::port::{PeerId, Port};
use crate::shared::tests::contents;
use crate::shared::tests::fabric::{Fabric, Reading, tiny};

/// Puts an operation just started into the queue, with the number `context`.
fn collect<P: Port, S: Storage>(
    engine: &mut Engine<P, S>,
    id: RequestId,
    entry: (u64, CompletionKind),
    done: Status,
) -> RequestId {
    let queued = engine.collect(id, entry, done).unwrap();
    assert_ne!(queued, RequestId::SENT);
    assert_eq!(
        engine.test(queued),
        Some(Err(CompletionError::Stale)),
        "a test sees an operation of the queue"
    );
    assert_eq!(engine.finish_now(queued), None);
    queued
}

/// Takes all completions, `most` at a time.
fn take(world: &mut World<'_>, rank: PeerId, most: usize) -> Vec<(u64, CompletionKind, Outcome)> {
    let mut all = Vec::new();
    loop {
        let mut some = vec![OperationCompletion::default(); most];
        let count = world.engine(rank).take_completions(&mut some);
        all.extend(some[..count].iter().map(|it| {
            assert_eq!(it.immediate, None);
            (it.context, it.kind, it.outcome)
        }));
        if count < most {
            assert!(!world.engine(rank).has_completions());
            return all;
        }
    }
}

fn receive(world: &mut World<'_>, context: u64, rank: PeerId, from: PeerId, room: usize) -> RequestHandle {
    let mut handle = world.recv(rank, from, context, room);
    let done = Status { peer: 9, tag: 9, len: 9, immediate: None };
    handle.id = collect(world.engine(rank), handle.id, (context, CompletionKind::Receive), done);
    handle
}

fn send(world: &mut World<'_>, context: u64, from: PeerId, to: PeerId, len: usize) -> RequestHandle {
    let mut handle = world.isend(from, to, context, contents(context, len));
    let done = Status { peer: to, tag: context, len, immediate: None };
    handle.id = collect(world.engine(from), handle.id, (context, CompletionKind::Send), done);
    handle
}

#[test]
fn operations_of_each_size_enter_the_queue_once_whether_expected_or_not() {
    for reading in [Reading::Never, Reading::Always] {
        let fabric = Fabric::reading(tiny(2), reading, 1);
        let mut world = World::new(&fabric, AMPLE);
        for expected in [true, false] {
            for len in [0, 1, 48, 49, 256, 257, 2045, 10_000] {
                let early = expected.then(|| receive(&mut world, 3, 1, 0, len));
                let sent = send(&mut world, 3, 0, 1, len);
                world.settle();
                let received = early.unwrap_or_else(|| receive(&mut world, 3, 1, 0, len));
                world.settle();
                let status = |peer| Ok(Status { peer, tag: 3, len, immediate: None });
                assert_eq!(take(&mut world, 0, 2), [(3, CompletionKind::Send, status(1))], "{len} bytes");
                assert_eq!(take(&mut world, 1, 2), [(3, CompletionKind::Receive, status(0))], "{len} bytes");
                assert_eq!(world.lender.end(received.loan), contents(3, len));
                world.lender.end(sent.loan);
            }
        }
        world.assert_empty(&[0, 1], "every size");
    }
}

#[test]
fn completions_come_in_the_order_in_which_they_happened() {
    let fabric = Fabric::new(tiny(2));
    let mut world = World::new(&fabric, AMPLE);
    let handles: Vec<_> = (0..40).map(|context| receive(&mut world, context, 1, 0, 8)).collect();
    let order = |at: u64| (at * 17) % 40;
    for at in 0..40 {
        let sent = world.isend(0, 1, order(at), contents(1, 8));
        world.settle();
        world.test(sent);
    }
    let taken: Vec<u64> = take(&mut world, 1, 7).iter().map(|(context, ..)| *context).collect();
    assert_eq!(taken, (0..40).map(order).collect::<Vec<_>>());
    handles.into_iter().for_each(|handle| _ = world.lender.end(handle.loan));
    world.assert_empty(&[0, 1], "order");
}

#[test]
fn truncation_has_both_lengths_in_the_queue() {
    let fabric = Fabric::new(tiny(2));
    let mut world = World::new(&fabric, AMPLE);
    for (len, room) in [(48, 47), (256, 10), (3000, 2999)] {
        let received = receive(&mut world, 5, 1, 0, room);
        let sent = world.isend(0, 1, 5, contents(1, len));
        world.settle();
        world.test(sent);
        let status = Status { peer: 0, tag: 5, len: room, immediate: None };
        let error = CompletionError::Truncated(Truncation { status, message: len as u64 });
        assert_eq!(take(&mut world, 1, 4), [(5, CompletionKind::Receive, Err(error))]);
        assert_eq!(world.lender.end(received.loan), contents(1, len)[..room]);
    }
}

#[test]
fn failure_of_a_peer_completes_all_its_operations_in_the_queue() {
    let fabric = Fabric::new(tiny(3));
    let mut world = World::new(&fabric, AMPLE);
    let handles =
        [receive(&mut world, 1, 1, 0, 8), send(&mut world, 2, 1, 0, 5000), receive(&mut world, 3, 1, 2, 8)];
    let region = world
        .engine(1)
        .expose(crate::payload::Exposed::empty(), Access::Read, 7, Addressing::Offset)
        .unwrap();
    let waiting = world.engine(1).await_notifications(region, 1).unwrap();
    let entry = (4, CompletionKind::Notification);
    collect(world.engine(1), waiting, entry, Status { peer: 1, tag: 0, len: 0, immediate: None });
    world.engine(1).fail(0, Failure::Died);
    let error = Err(CompletionError::PeerFailed { peer: 0, failure: Failure::Died });
    let mut failed = take(&mut world, 1, 8);
    failed.sort_by_key(|(context, ..)| *context);
    let kinds = [CompletionKind::Receive, CompletionKind::Send, CompletionKind::Notification];
    assert_eq!(failed, [(1, kinds[0], error), (2, kinds[1], error), (4, kinds[2], error)]);
    assert!(world.engine(1).cancel(handles[2].id) && !world.engine(1).cancel(handles[2].id));
    let cancelled = Err(CompletionError::Cancelled);
    assert_eq!(take(&mut world, 1, 8), [(3, CompletionKind::Receive, cancelled)]);
    assert!(!world.engine(1).cancel(handles[2].id), "its completion was taken");
    handles.into_iter().for_each(|handle| _ = world.lender.end(handle.loan));
    assert_eq!(world.engine(1).requests.used(), 0);
}

#[test]
fn cancelled_and_complete_operations_of_the_queue_cannot_be_cancelled_again() {
    let fabric = Fabric::new(tiny(2));
    let mut world = World::new(&fabric, AMPLE);
    let received = receive(&mut world, 1, 1, 0, 8);
    let sent = world.isend(0, 1, 1, contents(1, 8));
    world.settle();
    world.test(sent);
    assert!(!world.engine(1).cancel(received.id), "it is complete");
    assert_eq!(take(&mut world, 1, 1).len(), 1);
    world.lender.end(received.loan);
    // The slot's next user is not reached by the old identifier.
    let next = world.recv(1, 0, 2, 8);
    assert_eq!(next.id.index, received.id.index);
    assert!(!world.engine(1).cancel(received.id) && world.engine(1).cancel(next.id));
    assert_eq!(world.done(next).0, Err(CompletionError::Cancelled));
}

#[test]
fn slot_for_the_entry_is_checked_before_the_operation_starts() {
    let fabric = Fabric::new(tiny(2));
    let mut world = World::new(&fabric, WorldRoom { requests: 2, ..AMPLE });
    let full = Err(StartError::Requests { capacity: 2 });
    let handles = [send(&mut world, 1, 0, 1, 8), send(&mut world, 2, 0, 1, 8)];
    assert_eq!(world.engine(0).check_slot(), full, "entries take slots until they are taken");
    assert_eq!(take(&mut world, 0, 1).len(), 2);
    assert_eq!(world.engine(0).check_slot(), Ok(()));
    handles.into_iter().for_each(|handle| _ = world.lender.end(handle.loan));
}

#[test]
fn probed_and_remote_operations_enter_the_queue() {
    let fabric = Fabric::new(tiny(2));
    let mut world = World::new(&fabric, AMPLE);
    let mut memory = vec![7_u8; 64];
    // SAFETY: the memory outlives the engines' use of it, which ends with this function.
    let exposed = unsafe { crate::payload::Exposed::from_raw(memory.as_mut_ptr(), memory.len()) };
    let region = world.engine(1).expose(exposed, Access::ReadWrite, 7, Addressing::Offset).unwrap();
    let key = world.engine(1).remote_key(region).unwrap();
    let (loan, mut buf) = world.lender.receive(0, 64);
    let id = world.engine(0).get(&Target { key: &key, offset: 0 }, &mut buf).unwrap();
    collect(
        world.engine(0),
        id,
        (1, CompletionKind::Get),
        Status { peer: 1, tag: 0, len: 64, immediate: None },
    );
    let sent = world.isend(1, 0, 4, contents(4, 8));
    world.settle();
    world.test(sent);
    let (message, _) = world.improbe(0, pattern(Source::Rank(1), 4)).unwrap();
    let received = world.imrecv(0, message, 8).unwrap();
    collect(
        world.engine(0),
        received.id,
        (2, CompletionKind::Receive),
        Status { peer: 1, tag: 0, len: 0, immediate: None },
    );
    let taken = take(&mut world, 0, 8);
    let get = (1, CompletionKind::Get, Ok(Status { peer: 1, tag: 0, len: 64, immediate: None }));
    assert_eq!(
        taken,
        [get, (2, CompletionKind::Receive, Ok(Status { peer: 1, tag: 4, len: 8, immediate: None }))]
    );
    assert_eq!(world.lender.end(loan), [7; 64]);
    assert_eq!(world.lender.end(received.loan), contents(4, 8));
    world.engine(1).unexpose(region);
    world.assert_empty(&[0, 1], "probes and gets");
}

/// Fills the path from rank 0 to rank 1, and returns the sends; at least the last three wait.
fn fill(world: &mut World<'_>) -> Vec<RequestHandle> {
    let mut sends: Vec<RequestHandle> = Vec::new();
    while sends.iter().filter(|it| it.id != RequestId::SENT).count() < 4 {
        let tag = sends.len() as u64;
        sends.push(world.isend(0, 1, tag, contents(tag, 100)));
    }
    sends
}

#[test]
fn send_of_which_nothing_was_sent_can_be_withdrawn_and_the_others_keep_their_order() {
    for which in 1..4 {
        let fabric = Fabric::new(tiny(2));
        let mut world = World::new(&fabric, AMPLE);
        let sends = fill(&mut world);
        let at = sends.len() - which;
        assert!(!world.engine(0).cancel_receive(sends[at].id));
        assert!(world.engine(0).cancel(sends[at].id) && !world.engine(0).cancel(sends[at].id));
        assert_eq!(world.done(sends[at]).0, Err(CompletionError::Cancelled));
        world.settle();
        for (tag, send) in sends.iter().enumerate().filter(|(tag, _)| *tag != at) {
            assert!(world.test(*send).is_some(), "send {tag}");
            // Any tag: the messages come in the order of their sends.
            let any = Pattern { ignore: u64::MAX, ..pattern(Source::Rank(0), 0) };
            let received = world.irecv(1, any, 100).unwrap();
            let (outcome, bytes) = world.done(received);
            assert_eq!(outcome.unwrap().tag, tag as u64);
            assert_eq!(bytes, contents(tag as u64, 100));
        }
        assert_eq!(world.engine(1).unexpected_messages(), 0);
        world.assert_empty(&[0, 1], "withdrawn sends");
    }
}

#[test]
fn send_that_was_announced_or_completed_cannot_be_withdrawn() {
    let fabric = Fabric::new(tiny(2));
    let mut world = World::new(&fabric, AMPLE);
    let large = world.isend(0, 1, 1, contents(1, 5000));
    assert!(large.id != RequestId::SENT && !world.engine(0).cancel(large.id));
    assert!(!world.engine(0).cancel(RequestId::SENT));
    let received = world.recv(1, 0, 1, 5000);
    world.settle();
    assert!(!world.engine(0).cancel(large.id), "it is complete");
    assert_eq!(world.done(received).1, contents(1, 5000));
    assert!(world.done(large).0.is_ok());
}

#[test]
fn inject_sends_now_or_not_at_all() {
    let fabric = Fabric::new(tiny(2));
    let mut world = World::new(&fabric, AMPLE);
    let most = world.engine(0).inject_bytes();
    let inject = |world: &mut World<'_>, to, tag: u64, len| {
        let (loan, buf) = world.lender.send(0, contents(tag, len));
        let sent = world.engine(0).inject(to, 0, tag, buf);
        // The buffer is free in any case.
        world.lender.end(loan);
        sent
    };
    for to in [1, 0] {
        let mut count = 0;
        while inject(&mut world, to, count, most).unwrap() {
            count += 1;
        }
        assert!(count > 1);
        assert_eq!(world.engine(0).requests.used(), 0, "a refused message takes no slot");
        world.settle();
        for tag in 0..count {
            let received = world.recv(to, 0, tag, most);
            assert_eq!(world.done(received).1, contents(tag, most));
        }
        world.settle();
        assert_eq!(inject(&mut world, to, 77, most), Ok(true), "there is room again");
        world.settle();
        let received = world.recv(to, 0, 77, most);
        assert_eq!(world.done(received).1, contents(77, most));
        assert_eq!(inject(&mut world, to, 1, most + 1), Ok(false));
    }
    assert_eq!(inject(&mut world, 2, 1, 1), Err(StartError::Rank { rank: 2, size: 2 }));
    world.assert_empty(&[0, 1], "inject");
    world.engine(0).fail(1, Failure::Died);
    let gone = StartError::PeerFailed { peer: 1, failure: Failure::Died };
    assert_eq!(inject(&mut world, 1, 1, 1), Err(gone));
}

#[test]
fn inject_does_not_overtake_messages_that_wait() {
    let fabric = Fabric::new(tiny(2));
    let mut world = World::new(&fabric, AMPLE);
    let sends = fill(&mut world);
    let (loan, buf) = world.lender.send(0, contents(1, 1));
    assert_eq!(world.engine(0).inject(1, 0, 99, buf), Ok(false));
    world.lender.end(loan);
    world.settle();
    for (tag, send) in sends.into_iter().enumerate() {
        let received = world.recv(1, 0, tag as u64, 100);
        world.settle();
        assert!(world.test(send).is_some() && world.test(received).is_some());
    }
    world.assert_empty(&[0, 1], "inject behind others");
}

#[test]
fn held_completions_are_found() {
    let fabric = Fabric::new(tiny(2));
    let mut world = World::new(&fabric, AMPLE);
    assert!(!world.engine(1).are_completions_held(), "nothing is awaited");
    let received = receive(&mut world, 1 << 40, 1, 0, 8);
    assert!(!world.engine(1).are_completions_held());
    // Rank 0 uses up its credit.
    let mut sends = Vec::new();
    while !world.engine(1).is_held(0) {
        sends.push(world.isend(0, 1, 1, contents(1, 200)));
        world.settle();
        assert!(sends.len() < 10_000);
    }
    assert!(world.engine(1).are_completions_held());
    assert!(world.engine(1).cancel(received.id));
    assert!(!world.engine(1).are_completions_held(), "a completion is in the queue");
    assert_eq!(take(&mut world, 1, 4).len(), 1);
    world.lender.end(received.loan);
}

#[test]
fn messages_wait_for_receives_while_a_completion_was_not_taken() {
    let fabric = Fabric::new(tiny(2));
    let mut world = World::new(&fabric, AMPLE);
    for tag in 1..=4 {
        send(&mut world, tag, 0, 1, 8);
    }
    for tag in 1..=3 {
        let mut buf = [0; 8];
        // SAFETY: the message is received in this turn, and the buffer lives until its end.
        let mut room = unsafe { RecvBuf::from_raw(buf.as_mut_ptr(), buf.len()) };
        let posted = world.engine(1).post_collected_now(&pattern(Source::Rank(0), tag), &mut room, 70 + tag);
        assert_eq!(world.engine(1).test(posted.unwrap()), Some(Err(CompletionError::Stale)));
        assert!(!world.engine(1).awaits_no_message());
        assert_eq!(world.engine(1).progress_to_completions().packets, 1);
        assert!(world.engine(1).awaits_no_message());
        assert_eq!(world.engine(1).unexpected_messages(), 0);
        let status = Status { peer: 0, tag, len: 8, immediate: None };
        assert_eq!(take(&mut world, 1, 4), [(70 + tag, CompletionKind::Receive, Ok(status))]);
        assert_eq!(buf[..], contents(tag, 8)[..]);
    }
    // Without a completion, all are taken.
    assert_eq!(world.engine(1).progress_to_completions().packets, 1);
    assert_eq!(world.engine(1).unexpected_messages(), 1);
    let mut room = RecvBuf::empty();
    assert_eq!(world.engine(1).post_collected_now(&pattern(Source::Any, 4), &mut room, 0), None);
}

/// Posts a receive of the queue with the number 70, and sends a message for it. Returns what is completed at once, and
/// what the queue has after progress.
fn completed_at_once(
    (len, immediate): (usize, Option<u64>),
    (wanted, room): (Pattern, usize),
) -> (Option<(u64, Status)>, Vec<OperationCompletion>) {
    let fabric = Fabric::new(tiny(2));
    let mut world = World::new(&fabric, AMPLE);
    let mut buf = vec![0xee; room];
    // SAFETY: the receive is complete, or the world is gone, before the buffer.
    let mut place = unsafe { RecvBuf::from_raw(buf.as_mut_ptr(), room) };
    let posted = world.engine(1).post_collected_now(&wanted, &mut place, 70).unwrap();
    assert_eq!(world.engine(1).complete_next(), None, "nothing has come");
    let options = SendOptions { immediate, synchronous: false };
    let sent = world.isend_with((0, 1), 3, 5, contents(5, len), options).unwrap();
    let next = world.engine(1).complete_next();
    assert_eq!(world.engine(1).complete_next(), None, "one message, one completion");
    assert_ne!(next.is_some(), world.engine(1).is_posted(posted));
    world.settle();
    let mut taken = vec![OperationCompletion::default(); 4];
    let count = world.engine(1).take_completions(&mut taken);
    taken.truncate(count);
    assert_eq!(buf[..len.min(room)], contents(5, len)[..len.min(room)]);
    assert!(buf[len.min(room)..].iter().all(|byte| *byte == 0xee), "bytes behind the message");
    assert!(world.done(sent).0.is_ok());
    let counted = world.engine(1).peer_counters(0).unwrap();
    assert_eq!((counted.matched_posted, counted.unexpected), (1, 0));
    assert_eq!(counted.credit_used, world.engine(0).peer_counters(1).unwrap().credit_spent);
    world.assert_empty(&[0, 1], "completed at once");
    (next, taken)
}

#[test]
fn a_posted_receive_of_the_queue_takes_the_next_message_without_an_entry() {
    let exact = Pattern { source: Source::Rank(0), context: 3, tag: 5, ignore: 0 };
    for wanted in [exact, Pattern { ignore: 2, ..exact }, Pattern { source: Source::Any, ..exact }] {
        for immediate in [None, Some(0), Some(u64::MAX)] {
            let most = if immediate.is_some() { 8 } else { 16 };
            for len in [0, 1, 4, 7, 8, 9, 16].into_iter().filter(|len| *len <= most) {
                let (next, taken) = completed_at_once((len, immediate), (wanted, len + 3));
                let status = Status { peer: 0, tag: 5, len, immediate };
                assert_eq!(next, Some((70, status)), "{wanted:?}");
                assert_eq!(taken, []);
            }
        }
    }
}

#[test]
fn a_posted_receive_of_the_queue_takes_the_next_message_from_its_cell() {
    let wanted = Pattern { source: Source::Rank(0), context: 3, tag: 5, ignore: 0 };
    for (len, room) in [(17, 17), (17, 40), (40, 40)] {
        for immediate in [None, Some(6)] {
            let (next, taken) = completed_at_once((len, immediate), (wanted, room));
            let status = Status { peer: 0, tag: 5, len, immediate };
            assert_eq!((next, taken), (Some((70, status)), vec![]));
        }
    }
}

#[test]
fn a_message_that_does_not_fit_or_is_long_completes_its_receive_in_the_queue() {
    let wanted = Pattern { source: Source::Rank(0), context: 3, tag: 5, ignore: 0 };
    for (len, room) in [(8, 7), (8, 0), (17, 16), (3000, 3000)] {
        for immediate in [None, Some(6)] {
            let (next, taken) = completed_at_once((len, immediate), (wanted, room));
            assert_eq!(next, None);
            let [OperationCompletion { context: 70, outcome, .. }] = taken[..] else {
                panic!("{taken:?}");
            };
            let status = Status { peer: 0, tag: 5, len: len.min(room), immediate };
            let cut = Truncation { status, message: len as u64 };
            let right = if len > room { Err(CompletionError::Truncated(cut)) } else { Ok(status) };
            assert_eq!(outcome, right);
        }
    }
}

#[test]
fn no_receive_completes_at_once_before_an_older_completion_or_one_that_was_posted_first() {
    let fabric = Fabric::new(tiny(2));
    let mut world = World::new(&fabric, AMPLE);
    // A request that its owner tests was posted first.
    let tested = world.irecv(1, pattern(Source::Any, 1), 8).unwrap();
    let queued = receive(&mut world, 1, 1, 0, 8);
    send(&mut world, 1, 0, 1, 8);
    assert_eq!(world.engine(1).complete_next(), None);
    world.settle();
    assert!(world.done(tested).0.is_ok());
    // A completion waits in the queue.
    let later = receive(&mut world, 1, 1, 0, 8);
    send(&mut world, 1, 0, 1, 8);
    world.settle();
    send(&mut world, 1, 0, 1, 8);
    assert_eq!(world.engine(1).complete_next(), None);
    assert!(!world.engine(1).is_quiet(), "a completion waits");
    assert_eq!(take(&mut world, 1, 4).len(), 1);
    assert!(!world.engine(1).is_quiet(), "a message waits");
    assert_eq!(world.engine(1).complete_next().map(|(context, _)| context), Some(1));
    assert!(world.engine(1).is_quiet());
    world.lender.end(queued.loan);
    world.lender.end(later.loan);
}
