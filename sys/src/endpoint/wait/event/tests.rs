//! Endpoints in event loops.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nemesia_core::shared::sleep::Sleep;

use crate::endpoint::tests::pair;
use crate::{Arm, Config, Endpoint, Source, Tag};

/// Waits until the descriptor is readable. The clock does not run unless `Endpoint::event_fd` was called: it
/// would hide a lost wake-up.
fn await_readable(endpoint: &Endpoint) {
    let deadline = Instant::now() + Duration::from_secs(60);
    assert!(crate::os::wait_ready(endpoint.waiter.watch.as_fd(), libc::POLLIN, deadline).unwrap());
}

/// Arms the endpoint once there is nothing left to do.
fn arm(endpoint: &mut Endpoint) {
    while endpoint.arm() == Arm::Busy {}
}

#[test]
fn an_armed_endpoint_becomes_readable_when_a_message_comes() {
    let (mut zero, mut one) = pair(&Config::default());
    let mut got = [0; 8];
    for len in [8, 20_000] {
        // SAFETY: the buffer lives, unused, until the request is complete.
        let request = unsafe { zero.irecv(Source::Rank(1), Tag::Any, got.as_mut_ptr(), 8) }.unwrap();
        assert!(zero.test(request).unwrap().is_none());
        arm(&mut zero);
        let late = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(20));
            one.send(0, 1, &vec![3; len]).unwrap();
            one
        });
        await_readable(&zero);
        let outcome = loop {
            if let Some(outcome) = zero.test(request).transpose() {
                break outcome;
            }
        };
        assert_eq!(outcome.is_ok(), len == 8, "{outcome:?}");
        assert_eq!(got, [3; 8]);
        one = late.join().unwrap();
    }
}

#[test]
fn a_message_that_came_before_arming_is_found_by_arming() {
    let (mut zero, mut one) = pair(&Config::default());
    one.send(0, 1, b"here").unwrap();
    assert_eq!(zero.arm(), Arm::Busy);
    let mut got = [0; 4];
    zero.recv(Source::Any, Tag::Any, &mut got).unwrap();
    assert_eq!(&got, b"here");
}

#[test]
fn a_sender_that_cannot_continue_wakes_a_receiver_that_sleeps_for_more_messages() {
    let (mut zero, mut one) = pair(&Config::default());
    let sequence = one.waiter.announce(Sleep::Futex, 1 << 20);
    loop {
        // SAFETY: the bytes are static.
        let request = unsafe { zero.isend(1, 1, b"a message".as_ptr(), 9) }.unwrap();
        if !request.is_complete() {
            break;
        }
    }
    assert!(!one.waiter.sleep.moved(sequence), "the sleeper lacks more messages");
    arm(&mut zero);
    assert!(one.waiter.sleep.moved(sequence), "the sleeper has to make room");
}

#[test]
fn an_armed_sender_becomes_readable_when_there_is_room() {
    let (mut zero, mut one) = pair(&Config::default().cells(4).cell_bytes(256));
    let large = vec![5; 1 << 20];
    // SAFETY: the buffer outlives the request.
    let request = unsafe { zero.isend(1, 1, large.as_ptr(), large.len()) }.unwrap();
    let receiver = std::thread::spawn(move || {
        let mut got = vec![0; 1 << 20];
        one.recv(Source::Rank(0), Tag::Exactly(1), &mut got).unwrap();
        assert_eq!(got, vec![5; 1 << 20]);
        one
    });
    while zero.test(request).unwrap().is_none() {
        if zero.arm() == Arm::Armed {
            await_readable(&zero);
        }
    }
    drop(receiver.join().unwrap());
}

#[test]
fn an_armed_endpoint_becomes_readable_when_a_peer_leaves() {
    let (mut zero, one) = pair(&Config::default());
    arm(&mut zero);
    drop(one);
    await_readable(&zero);
    // The message that the peer leaves comes before the end of its connection.
    while zero.failure(1).is_none() {
        await_readable(&zero);
        let _ = zero.arm();
    }
}

#[test]
fn a_suppressed_wake_up_delays_an_armed_endpoint_only_for_a_limited_time() {
    let (mut zero, mut one) = pair(&Config::default());
    zero.event_fd().unwrap();
    arm(&mut zero);
    // A hostile peer could do this.
    zero.waiter.unpark();
    one.send(0, 1, b"here").unwrap();
    await_readable(&zero);
    while zero.arm() != Arm::Busy {
        await_readable(&zero);
    }
    zero.recv(Source::Any, Tag::Any, &mut [0; 4]).unwrap();
}

#[test]
fn a_blocking_wait_of_an_armed_endpoint_is_woken() {
    let (mut zero, mut one) = pair(&Config::default().spin(0));
    let begun = Instant::now();
    for _ in 0..20 {
        arm(&mut zero);
        let sender = std::thread::spawn(move || {
            one.send(0, 1, b"here").unwrap();
            one
        });
        zero.recv(Source::Any, Tag::Any, &mut [0; 4]).unwrap();
        one = sender.join().unwrap();
    }
    assert!(begun.elapsed() < Duration::from_secs(60));
}
