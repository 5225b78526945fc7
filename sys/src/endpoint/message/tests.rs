//! Matching contexts, modes of sending, and probes.

use std::io::{IoSlice, IoSliceMut};
use std::time::Duration;

use crate::endpoint::tests::{pair, world};
use crate::endpoint::{Endpoint, RecvOp, SendOp, Source, Tag};
use crate::{Config, Error};

const ZERO: Source = Source::Rank(0);
const SOON: Duration = Duration::from_millis(20);

fn alone() -> Endpoint {
    world(1, &Config::default()).pop().unwrap()
}

/// Starts a synchronous send of static bytes.
fn issend(endpoint: &mut Endpoint, to: usize, tag: u64, bytes: &'static [u8]) -> crate::Request {
    // SAFETY: the bytes are static.
    unsafe { endpoint.isend_op(SendOp::new(to, tag, bytes).synchronous()) }.unwrap()
}

/// Only agreements use their context: every other call refuses it.
#[test]
fn reserved_context_is_refused_everywhere() {
    const RESERVED: u16 = u16::MAX;
    let mut alone = alone();
    let (from, tag) = (Source::Any, Tag::Any);
    let refused = |outcome: Result<(), Error>, what| {
        assert!(matches!(outcome, Err(Error::Context)), "{what}: {outcome:?}");
    };
    refused(alone.in_context(RESERVED).send(0, 1, &[]), "send");
    refused(alone.in_context(RESERVED).inject(0, 1, &[]).map(drop), "inject");
    refused(alone.send_op(SendOp::list(0, 1, &[]).context(RESERVED)), "send_op");
    refused(alone.send_op(SendOp::new(0, 1, &[]).context(RESERVED).synchronous()), "synchronous");
    refused(alone.send_op(SendOp::new(0, 1, &[]).context(RESERVED).immediate(1)), "immediate");
    refused(alone.in_context(RESERVED).recv(from, tag, &mut []).map(drop), "recv");
    refused(alone.recv_op(RecvOp::list(from, tag, &mut []).context(RESERVED)).map(drop), "recv_op");
    refused(alone.in_context(RESERVED).iprobe(from, tag).map(drop), "iprobe");
    refused(alone.in_context(RESERVED).probe(from, tag).map(drop), "probe");
    refused(alone.in_context(RESERVED).probe_timeout(from, tag, SOON).map(drop), "probe_timeout");
    refused(alone.in_context(RESERVED).improbe(from, tag).map(drop), "improbe");
    refused(alone.in_context(RESERVED).mprobe(from, tag).map(drop), "mprobe");
    refused(alone.in_context(RESERVED).mprobe_timeout(from, tag, SOON).map(drop), "mprobe_timeout");
    let scoped = alone.scope(|scope| {
        refused(scope.in_context(RESERVED).isend(0, 1, &[]).map(drop), "isend");
        refused(scope.isend_op(SendOp::list(0, 1, &[]).context(RESERVED)).map(drop), "isend_op");
        refused(scope.in_context(RESERVED).irecv(from, tag, &mut []).map(drop), "irecv");
        refused(scope.irecv_op(RecvOp::list(from, tag, &mut []).context(RESERVED)).map(drop), "irecv_op");
        Ok(())
    });
    scoped.unwrap();
    let shared = alone.into_shared();
    refused(shared.probe(RESERVED, from, tag, None).map(drop), "probe of threads");
    refused(shared.mprobe(RESERVED, from, tag, None).map(drop), "mprobe of threads");
    shared.with(|it| it.shrink()).unwrap().unwrap();
}

#[test]
fn a_message_of_one_context_is_visible_in_no_other() {
    let (mut zero, mut one) = pair(&Config::default());
    for (context, large) in [(0, false), (1, false), (u16::MAX - 2, true)] {
        let bytes = vec![context as u8; if large { 3000 } else { 8 }];
        zero.in_context(context).send(1, 5, &bytes).unwrap();
    }
    zero.in_context(3).send(1, 6, &[]).unwrap();
    // The last message has come, so all have.
    one.in_context(3).recv(ZERO, Tag::Any, &mut []).unwrap();
    assert!(one.in_context(2).iprobe(Source::Any, Tag::Any).unwrap().is_none());
    assert!(one.in_context(3).iprobe(Source::Any, Tag::Any).unwrap().is_none());
    assert_eq!(one.in_context(u16::MAX - 2).probe(Source::Any, Tag::Any).unwrap().len, 3000);
    let mut buf = [0; 3000];
    for context in [u16::MAX - 2, 0, 1] {
        let status = one.in_context(context).recv(Source::Any, Tag::Any, &mut buf).unwrap();
        assert_eq!((status.rank, status.tag, status.len), (0, 5, if context > 1 { 3000 } else { 8 }));
        assert!(buf[..status.len].iter().all(|byte| *byte == context as u8), "context {context}");
    }
    // The second of the posted receives is completed first.
    let (mut first, mut second) = ([0; 8], [0; 8]);
    let (into, other) = (&mut first, &mut second);
    one.scope(|scope| {
        let first = scope.in_context(8).irecv(Source::Any, Tag::Any, into)?;
        let second = scope.in_context(9).irecv(Source::Any, Tag::Any, other)?;
        zero.in_context(9).send(1, 1, b"nine")?;
        assert_eq!(scope.wait(second)?.len, 4);
        assert!(scope.test(first)?.is_none());
        assert!(scope.in_context(9).improbe(Source::Any, Tag::Any)?.is_none());
        zero.send_op(SendOp::new(1, 1, b"eight").context(8).ready())?;
        assert_eq!(scope.wait(first)?.len, 5);
        Ok(())
    })
    .unwrap();
    assert_eq!((&first[..5], &second[..4]), (&b"eight"[..], &b"nine"[..]));
}

#[test]
fn a_synchronous_send_is_complete_when_a_receive_has_matched_it() {
    let (mut zero, mut one) = pair(&Config::default());
    let sent = issend(&mut zero, 1, 7, b"match me");
    assert!(!sent.is_complete());
    assert_eq!(one.probe(ZERO, Tag::Exactly(7)).unwrap().len, 8);
    for _ in 0..1000 {
        assert!(zero.test(sent).unwrap().is_none(), "no receive has matched it");
        one.progress();
    }
    let mut buf = [0; 8];
    assert_eq!(one.recv(ZERO, Tag::Any, &mut buf).unwrap().len, 8);
    zero.wait(sent).unwrap();
    assert_eq!(&buf, b"match me");
    let receiver = std::thread::spawn(move || {
        // The sender returns after this receive was posted, so its next message comes second.
        let status = one.recv(Source::Any, Tag::Any, &mut [0; 8]).unwrap();
        assert_eq!(status.tag, 8);
        one
    });
    zero.send_op(SendOp::new(1, 8, b"blocking").synchronous()).unwrap();
    drop((receiver.join().unwrap(), zero));
}

#[test]
fn a_blocking_probe_sleeps_until_the_message_comes_and_leaves_it() {
    let (mut zero, mut one) = pair(&Config::default());
    let early = zero.in_context(4).probe_timeout(Source::Any, Tag::Any, SOON);
    assert!(matches!(early, Err(Error::Timeout(_))), "{early:?}");
    let early = zero.in_context(4).mprobe_timeout(Source::Any, Tag::Any, SOON);
    assert!(matches!(early, Err(Error::Timeout(_))), "{early:?}");
    let late = std::thread::spawn(move || {
        for context in [4, 0] {
            std::thread::sleep(Duration::from_millis(100));
            one.in_context(context).send(0, 9, &[3; 300]).unwrap();
        }
        one
    });
    for _ in 0..3 {
        let status = zero.in_context(4).probe(Source::Rank(1), Tag::Exactly(9)).unwrap();
        assert_eq!((status.rank, status.tag, status.len), (1, 9, 300));
    }
    let message = zero.mprobe(Source::Any, Tag::Any).unwrap();
    assert_eq!(message.status().len, 300);
    assert_eq!(zero.mrecv(message, &mut [0; 300]).unwrap().len, 300);
    let one = late.join().unwrap();
    zero.in_context(4).recv(Source::Any, Tag::Any, &mut [0; 300]).unwrap();
    assert!(matches!(zero.iprobe(Source::Rank(2), Tag::Any), Err(Error::Rank { rank: 2, last: 1 })));
    drop(one);
    let gone = zero.probe(Source::Rank(1), Tag::Any);
    assert!(matches!(gone, Err(Error::PeerFailed { rank: 1, .. })), "{gone:?}");
}

#[test]
fn a_message_that_was_taken_out_is_received_once_on_its_endpoint_only() {
    let (mut zero, mut one) = pair(&Config::default());
    let large = vec![5; 100_000];
    let sender = std::thread::spawn(move || {
        for bytes in [&large[..], b"two", b"three"] {
            one.send(0, 1, bytes).unwrap();
        }
        one
    });
    let first = zero.mprobe(Source::Any, Tag::Any).unwrap();
    assert_eq!((first.status().len, first.status().rank), (100_000, 1));
    let mut got = vec![0; 100_000];
    let request = {
        // SAFETY: the buffer lives, unused, until the request is complete.
        unsafe { zero.imrecv(first, got.as_mut_ptr(), got.len()) }.unwrap()
    };
    assert_eq!(zero.wait(request).unwrap().len, 100_000);
    assert!(got.iter().all(|byte| *byte == 5));
    let second = zero.mprobe(Source::Any, Tag::Any).unwrap();
    let mut buf = [0; 8];
    assert_eq!(zero.recv(Source::Any, Tag::Any, &mut buf).unwrap().len, 5, "this is the third message");
    let one = sender.join().unwrap();
    let bits = second.into_bits();
    let (again, foreign) = (zero.message(bits), zero.message(bits));
    assert!(matches!(zero.mrecv(again, &mut buf[..2]), Err(Error::Truncated(_))));
    assert_eq!(&buf[..2], b"tw");
    assert!(matches!(zero.mrecv(foreign, &mut buf), Err(Error::Stale)));
    zero.send(0, 1, b"self").unwrap();
    let mine = zero.improbe(ZERO, Tag::Any).unwrap().unwrap();
    let mut one = one;
    assert!(
        matches!(one.mrecv(mine, &mut buf), Err(Error::Stale)),
        "the message belongs to another endpoint"
    );
}

#[test]
fn dropped_messages_complete_their_senders_and_keep_no_slot() {
    let mut endpoint = world(1, &Config::default().requests(64)).pop().unwrap();
    for _ in 0..200 {
        let sent = issend(&mut endpoint, 0, 1, b"never received");
        drop(endpoint.improbe(ZERO, Tag::Any).unwrap().unwrap());
        assert!(endpoint.iprobe(Source::Any, Tag::Any).unwrap().is_none());
        endpoint.wait(sent).unwrap();
    }
    // Progress alone discards it, without another probe.
    let sent = issend(&mut endpoint, 0, 1, b"never received");
    drop(endpoint.improbe(ZERO, Tag::Any).unwrap().unwrap());
    endpoint.wait(sent).unwrap();
    // The endpoint may be dropped before the message.
    endpoint.send(0, 1, b"late").unwrap();
    let message = endpoint.mprobe(Source::Any, Tag::Any).unwrap();
    drop(endpoint);
    drop(message);
}

#[test]
fn a_number_that_names_no_message_receives_nothing_and_drops_nothing() {
    let mut endpoint = alone();
    let mut buf = [0; 8];
    let base = buf.as_mut_ptr();
    // SAFETY: the buffer lives, unused, until the request is complete.
    let posted = unsafe { endpoint.irecv(Source::Any, Tag::Any, base, 8) }.unwrap();
    endpoint.send(0, 1, b"complete").unwrap();
    for bits in [posted.to_bits(), 0, u64::MAX, 1 << 32] {
        let message = endpoint.message(bits);
        assert!(matches!(endpoint.mrecv(message, &mut [0; 8]), Err(Error::Stale)));
        drop(endpoint.message(bits));
    }
    assert!(endpoint.iprobe(Source::Any, Tag::Any).unwrap().is_none());
    assert_eq!(endpoint.wait(posted).unwrap().len, 8);
    assert_eq!(&buf, b"complete");
}

#[test]
fn a_probe_without_room_for_its_message_fails() {
    let (mut zero, mut one) = pair(&Config::default().unexpected_bytes(64 << 10));
    // There are as many sends as there is room for, and one more, which waits.
    loop {
        // SAFETY: there are no bytes.
        let request = unsafe { one.isend(0, 1, std::ptr::null(), 0) }.unwrap();
        zero.progress();
        if !request.is_complete() && zero.progress() == 0 && one.test(request).unwrap().is_none() {
            break;
        }
    }
    let held = zero.probe(Source::Rank(1), Tag::Exactly(2));
    assert!(matches!(held, Err(Error::Unexpected { held: 1, .. })), "{held:?}");
    assert_eq!(zero.probe(Source::Rank(1), Tag::Exactly(1)).unwrap().len, 0);
}

#[test]
fn a_message_to_the_own_rank_without_room_fails() {
    let config = Config::default().unexpected_bytes(64 << 10);
    let mut endpoint = world(1, &config).pop().unwrap();
    let mut sent = 0_u64;
    let full = loop {
        match endpoint.send(0, sent, &[1; 8]) {
            Ok(()) => sent += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(full, Error::Unexpected { messages, .. } if messages as u64 == sent), "{full}");
    // For a non-blocking send, the wait reports that there is no room, and leaves the request as it is.
    // SAFETY: the bytes are static.
    let request = unsafe { endpoint.isend(0, sent, b"the last".as_ptr(), 8) }.unwrap();
    assert!(matches!(endpoint.wait(request), Err(Error::Unexpected { .. })));
    let scope = endpoint.scope(|scope| scope.isend(0, sent + 1, &[3; 8]).map(drop));
    assert!(matches!(scope, Err(Error::Unexpected { .. })));
    let mut got = [0; 8];
    for tag in 0..=sent {
        assert_eq!(endpoint.recv(Source::Rank(0), Tag::Exactly(tag), &mut got).unwrap().len, 8);
    }
    assert_eq!(&got, b"the last");
    endpoint.wait(request).unwrap();
    // Neither the refused message nor the one that its scope withdrew is there.
    assert!(endpoint.iprobe(Source::Any, Tag::Any).unwrap().is_none());
}

#[test]
fn slices_are_gathered_and_scattered_by_calls_that_block() {
    let (mut zero, mut one) = pair(&Config::default());
    let bytes: Vec<u8> = (0..200_000).map(|at| (at % 251) as u8).collect();
    let wanted = bytes.clone();
    let other = std::thread::spawn(move || {
        for len in [0, 8, 40, 700, 8000, 200_000] {
            let (head, tail) = bytes[..len].split_at(len / 3);
            let list = [IoSlice::new(head), IoSlice::new(&[]), IoSlice::new(tail)];
            one.send_op(SendOp::list(0, 1, &list)).unwrap();
            one.send_op(SendOp::list(0, 1, &list).context(1).synchronous()).unwrap();
            one.send_op(SendOp::list(0, 1, &list).context(2).immediate(len as u64)).unwrap();
        }
        one
    });
    for len in [0, 8, 40, 700, 8000, 200_000] {
        for context in [0, 1, 2] {
            let mut got = vec![0; len];
            let (head, tail) = got.split_at_mut(len / 2);
            let list = &mut [IoSliceMut::new(head), IoSliceMut::new(tail)];
            let status = zero.recv_op(RecvOp::list(Source::Any, Tag::Any, list).context(context)).unwrap();
            assert_eq!((status.len, got == wanted[..len]), (len, true), "{len} bytes");
            assert_eq!(status.immediate, (context == 2).then_some(len as u64), "{len} bytes");
        }
    }
    drop(other.join().unwrap());
}

#[test]
fn immediate_data_come_with_every_mode_and_length() {
    const LARGE: usize = 100_000;
    let (mut zero, mut one) = pair(&Config::default());
    let other = std::thread::spawn(move || {
        for len in [0, 8, 9, 700, LARGE] {
            let bytes = vec![len as u8; len];
            one.send_op(SendOp::new(0, 1, &bytes).immediate(0)).unwrap();
            one.send_op(SendOp::new(0, 1, &bytes).immediate(u64::MAX).synchronous()).unwrap();
            let sent = one.scope(|scope| {
                let first = scope.isend_op(SendOp::new(0, 1, &bytes).immediate(len as u64))?;
                scope.isend_op(SendOp::new(0, 1, &bytes).synchronous())?;
                scope.wait(first).map(drop)
            });
            sent.unwrap();
        }
        one
    });
    for len in [0, 8, 9, 700, LARGE] {
        for immediate in [Some(0), Some(u64::MAX), Some(len as u64), None] {
            let mut got = vec![0; len];
            assert_eq!(zero.probe(Source::Any, Tag::Any).unwrap().immediate, immediate);
            let status = zero.recv_op(RecvOp::new(Source::Rank(1), Tag::Exactly(1), &mut got)).unwrap();
            assert_eq!((status.len, status.immediate), (len, immediate));
            assert!(got.iter().all(|byte| *byte == len as u8), "{len} bytes");
        }
    }
    drop(other.join().unwrap());
}

#[test]
fn a_message_that_was_taken_out_is_received_into_a_list() {
    let (mut zero, mut one) = pair(&Config::default());
    for _ in 0..3 {
        one.send(0, 1, b"0123456789").unwrap();
    }
    let (mut first, mut rest) = ([0; 3], [0; 8]);
    let list = &mut [IoSliceMut::new(&mut first), IoSliceMut::new(&mut rest)];
    // Source and tag of the description have no effect.
    let (from, tag) = (Source::Rank(7), Tag::Exactly(9));
    let message = zero.mprobe(Source::Any, Tag::Any).unwrap();
    assert_eq!(zero.recv_op(RecvOp::list(from, tag, list).matched(message)).unwrap().len, 10);
    assert_eq!((&first, &rest), (b"012", b"3456789\0"));
    let message = zero.mprobe(Source::Any, Tag::Any).unwrap();
    let bits = message.into_bits();
    let (message, again) = (zero.message(bits), zero.message(bits));
    let mut buf = [0; 10];
    let received = zero.scope(|scope| {
        let pending = scope.irecv_op(RecvOp::new(from, tag, &mut buf).matched(message))?;
        scope.wait(pending)
    });
    assert_eq!((received.unwrap().len, &buf), (10, b"0123456789"));
    let stale = zero.recv_op(RecvOp::new(from, tag, &mut buf).matched(again));
    assert!(matches!(stale, Err(Error::Stale)), "{stale:?}");
    assert_eq!(zero.recv(Source::Rank(1), Tag::Any, &mut buf).unwrap().len, 10, "the third message is there");
}

#[test]
fn a_scope_keeps_places_for_what_is_under_way_and_not_for_what_was() {
    let mut endpoint = world(1, &Config::default()).pop().unwrap();
    let mut buffers = vec![[0; 8]; 200];
    endpoint
        .scope(|scope| {
            for buffer in &mut buffers {
                let received = scope.irecv(Source::Any, Tag::Exactly(1), buffer)?;
                // Complete at once, and never waited for.
                scope.isend(0, 1, b"12345678")?;
                scope.wait(received)?;
                assert!(matches!(scope.wait(received), Err(Error::Stale)), "it has ended");
            }
            assert!(scope.places() <= 2, "{} places", scope.places());
            Ok(())
        })
        .unwrap();
    assert!(buffers.iter().all(|buffer| buffer == b"12345678"));
}
