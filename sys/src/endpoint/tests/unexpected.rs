//! The ceiling of unexpected messages: what grows, what ends with an error, and what goes on.

use std::time::Duration;

use super::{pair, world};
use crate::endpoint::{Endpoint, Source, Tag};
use crate::{Config, Error};

const SMALL: usize = 64 << 10;
/// More messages than there is room for, with room for 1024 units at most.
const MANY: u64 = 3000;
const LAST: u64 = u64::MAX;

fn small() -> Config {
    Config::default().unexpected_bytes(SMALL)
}

/// Sends more messages than there is room for, and one that the receiver wants first.
fn flood(mut endpoint: Endpoint, to: usize) -> std::thread::JoinHandle<Endpoint> {
    std::thread::spawn(move || {
        send_flood(&mut endpoint, to);
        endpoint
    })
}

fn send_flood(endpoint: &mut Endpoint, to: usize) {
    for number in 0..MANY {
        endpoint.send(to, number, &number.to_le_bytes()).unwrap();
    }
    endpoint.send(to, LAST, b"the last").unwrap();
}

fn receive_flood(endpoint: &mut Endpoint, from: usize) {
    let mut got = [0; 8];
    for number in (0..MANY).rev() {
        endpoint.recv(Source::Rank(from), Tag::Exactly(number), &mut got).unwrap();
        assert_eq!(u64::from_le_bytes(got), number);
    }
}

#[test]
fn a_ceiling_with_a_limit_grows_for_a_receive_behind_others() {
    for spin in [None, Some(u32::MAX)] {
        let config = small().unexpected_limit(4 << 20);
        let config = spin.map_or_else(|| config.clone(), |polls| config.clone().spin(polls));
        let (mut zero, one) = pair(&config);
        let sender = flood(one, 0);
        let mut got = [0; 8];
        zero.recv(Source::Rank(1), Tag::Exactly(LAST), &mut got).unwrap();
        assert_eq!(&got, b"the last");
        assert_eq!(zero.engine.unexpected_messages() as u64, MANY);
        let one = sender.join().unwrap();
        receive_flood(&mut zero, 1);
        drop(one);
    }
}

#[test]
fn a_ceiling_with_a_limit_grows_for_a_caller_that_only_tests() {
    let (mut zero, one) = pair(&small().unexpected_limit(4 << 20));
    let sender = flood(one, 0);
    let mut got = [0; 8];
    // SAFETY: the buffer lives, unused, until the request is complete.
    let last = unsafe { zero.irecv(Source::Rank(1), Tag::Exactly(LAST), got.as_mut_ptr(), 8) }.unwrap();
    while zero.test(last).unwrap().is_none() {}
    assert_eq!(&got, b"the last");
    let one = sender.join().unwrap();
    receive_flood(&mut zero, 1);
    drop(one);
}

#[test]
fn a_ceiling_with_a_limit_grows_for_two_ranks_that_both_send_first() {
    let (zero, one) = pair(&small().unexpected_limit(4 << 20));
    // Each goes on to receive by itself: a rank that only waits to be joined makes no progress.
    let both = [(zero, 1), (one, 0)].map(|(mut endpoint, peer)| {
        std::thread::spawn(move || {
            send_flood(&mut endpoint, peer);
            receive_flood(&mut endpoint, peer);
            endpoint.barrier().unwrap();
            endpoint
        })
    });
    drop(both.map(|thread| thread.join().unwrap()));
}

#[test]
fn at_the_limit_a_receive_ends_with_an_error_that_names_it() {
    let (mut zero, mut one) = pair(&small().unexpected_limit(100 << 10));
    let sender = std::thread::spawn(move || {
        let mut sent = Ok(());
        let mut number = 0;
        while sent.is_ok() {
            sent = one.send(0, number, &[0; 8]);
            number += 1;
        }
        (number, one)
    });
    let outcome = zero.recv(Source::Rank(1), Tag::Exactly(LAST), &mut [0; 8]);
    let error = outcome.unwrap_err();
    let Error::Unexpected { messages, ceiling, held: 1, reserved: None } = error else { panic!("{error}") };
    assert_eq!(ceiling, 100 << 10);
    // A unit for each message, between the ceiling and the limit; a part is for messages to the own rank.
    assert!(messages * 64 > SMALL && messages * 64 <= ceiling, "{messages}");
    let text = error.to_string();
    assert!(text.contains("NEMESIA_UNEXPECTED_BYTES") && text.contains("NEMESIA_UNEXPECTED_LIMIT"), "{text}");
    drop(zero);
    drop(sender.join().unwrap());
}

/// Sends until the receiver has no room, and returns the first send that waits.
fn fill(zero: &mut Endpoint, one: &mut Endpoint, bytes: &'static [u8; 8]) -> crate::Request {
    loop {
        // SAFETY: the bytes are static.
        let request = unsafe { one.isend(0, 1, bytes.as_ptr(), 8) }.unwrap();
        if !request.is_complete() {
            zero.progress();
            if one.test(request).unwrap().is_none() && zero.progress() == 0 && zero.engine.is_held(1) {
                return request;
            }
        }
    }
}

#[test]
fn a_receive_that_polls_only_and_one_among_other_traffic_end_with_the_error_too() {
    // The receiver never sleeps.
    let (mut zero, mut one) = pair(&small().spin(u32::MAX));
    let waits = fill(&mut zero, &mut one, &[1; 8]);
    let held = zero.recv(Source::Rank(1), Tag::Exactly(2), &mut [0; 8]);
    assert!(matches!(held, Err(Error::Unexpected { held: 1, .. })), "{held:?}");
    let held = zero.probe(Source::Rank(1), Tag::Exactly(2));
    assert!(matches!(held, Err(Error::Unexpected { held: 1, .. })), "{held:?}");
    assert!(one.test(waits).unwrap().is_none());
    drop((zero, one));
    // Another rank's messages keep it awake.
    let mut all = world(3, &small());
    let (mut two, mut one) = (all.pop().unwrap(), all.pop().unwrap());
    let mut zero = all.pop().unwrap();
    let _ = fill(&mut zero, &mut one, &[1; 8]);
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let stopped = std::sync::Arc::clone(&stop);
    zero.set_handler(5, |_| {});
    let traffic = std::thread::spawn(move || {
        while !stopped.load(std::sync::atomic::Ordering::Relaxed) {
            two.send_active(0, 5, &[7; 8], &[]).unwrap();
        }
        two
    });
    let held = zero.recv(Source::Rank(1), Tag::Exactly(2), &mut [0; 8]);
    assert!(matches!(held, Err(Error::Unexpected { held: 1, .. })), "{held:?}");
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    while !traffic.is_finished() {
        zero.progress();
    }
    drop((traffic.join().unwrap(), zero, one));
}

#[test]
fn a_request_that_is_only_tested_can_be_asked_for_the_reason() {
    let (mut zero, mut one) = pair(&small());
    let mut got = [0; 8];
    // SAFETY: the buffer lives, unused, until the request is complete.
    let behind = unsafe { zero.irecv(Source::Rank(1), Tag::Exactly(2), got.as_mut_ptr(), 8) }.unwrap();
    zero.check_room(behind).unwrap();
    let waits = fill(&mut zero, &mut one, &[1; 8]);
    assert!(matches!(zero.check_room(behind), Err(Error::Unexpected { held: 1, .. })));
    one.check_room(waits).unwrap();
    assert_eq!(zero.test(behind).unwrap(), None, "the request stays");
    // Half of the messages are received, and the peer can send again.
    for _ in 0..zero.engine.unexpected_messages() / 2 {
        zero.recv(Source::Rank(1), Tag::Exactly(1), &mut [0; 8]).unwrap();
    }
    zero.check_room(behind).unwrap();
    one.wait(waits).unwrap();
    one.send(0, 2, b"it comes").unwrap();
    zero.wait(behind).unwrap();
    assert_eq!(&got, b"it comes");
}

#[test]
fn the_close_of_a_sender_whose_receiver_has_no_room_names_the_receiver() {
    let (mut zero, mut one) = pair(&small());
    let _ = fill(&mut zero, &mut one, &[1; 8]);
    one.config.timeout_seconds = 1;
    let error = one.close().unwrap_err();
    assert!(matches!(error, Error::Held { rank: 0, limit } if limit == Duration::from_secs(1)), "{error}");
    assert!(error.to_string().contains("NEMESIA_UNEXPECTED_BYTES"), "{error}");
    drop(zero);
}

#[test]
fn receives_from_any_source_outlive_the_last_other_rank_if_that_is_set() {
    let (mut zero, one) = pair(&Config::default().any_source_outlives(true));
    let mut got = [0; 8];
    // SAFETY: the buffer lives, unused, until the request is complete.
    let any = unsafe { zero.irecv(Source::Any, Tag::Any, got.as_mut_ptr(), 8) }.unwrap();
    one.close().unwrap();
    while zero.failure(1).is_none() {
        assert_eq!(zero.test(any).unwrap(), None);
    }
    let limit = zero.wait_timeout(any, Duration::from_millis(100));
    assert!(matches!(limit, Err(Error::Timeout(_))), "{limit:?}");
    // Further ones can be posted without an acknowledgement.
    assert!(zero.iprobe(Source::Any, Tag::Any).unwrap().is_none());
    zero.send(0, 3, b"to me").unwrap();
    assert_eq!(zero.wait(any).unwrap().len, 5);
    // By default they end.
    let (mut zero, one) = pair(&Config::default());
    // SAFETY: the buffer lives, unused, until the request is complete.
    let any = unsafe { zero.irecv(Source::Any, Tag::Any, got.as_mut_ptr(), 8) }.unwrap();
    one.close().unwrap();
    assert!(matches!(zero.wait(any), Err(Error::PeerFailed { rank: 1, .. })));
}

#[test]
fn a_barrier_behind_a_full_store_ends_with_the_error_and_goes_on_after_receives() {
    let (mut zero, mut one) = pair(&small());
    let other = std::thread::spawn(move || {
        // SAFETY: the bytes are static.
        let sends = [(); MANY as usize].map(|()| unsafe { one.isend(0, 1, b"a word".as_ptr(), 6) }.unwrap());
        one.barrier().unwrap();
        for send in sends {
            one.wait(send).unwrap();
        }
        one
    });
    let (mut left, mut full) = (MANY, 0);
    while let Err(error) = zero.barrier() {
        assert!(matches!(error, Error::Unexpected { .. }), "{error}");
        full += 1;
        for _ in 0..left.min(500) {
            zero.recv(Source::Rank(1), Tag::Exactly(1), &mut [0; 8]).unwrap();
            left -= 1;
        }
    }
    assert!(full > 0, "the store was not full");
    for _ in 0..left {
        zero.recv(Source::Rank(1), Tag::Exactly(1), &mut [0; 8]).unwrap();
    }
    drop(other.join().unwrap());
}
