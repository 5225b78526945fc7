//! Endpoints that several threads share.

mod one_sided;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::endpoint::tests::{pair, world};
use crate::{Config, Error, Failure, LockedEndpoint, SharedEndpoint, Source, Tag};

/// The number of messages to each thread. Tests are slow under ThreadSanitizer.
const MESSAGES: u64 = if cfg!(nemesia_race) { 12 } else { 30 };
/// The number of threads of each endpoint.
const THREADS: u64 = 4;

/// A time after which a thread certainly hangs.
const EVER: Duration = Duration::from_secs(60);

fn shared_pair(config: &Config) -> (SharedEndpoint, SharedEndpoint) {
    let (zero, one) = pair(config);
    (zero.into_shared(), one.into_shared())
}

fn tag(from: u64, to: u64, number: u64) -> u64 {
    from << 48 | to << 32 | number
}

/// Returns a length from one byte to more than a cell holds; some need a rendezvous.
fn len(number: u64) -> usize {
    [8, 1, 100, 4000, 40_000, 300_000][(number % 6) as usize]
}

/// Returns bytes that repeat after `PERIOD`. They are copies: one number after the other would take most of the time of
/// these tests, which are not optimised.
fn content(tag: u64, len: usize) -> Vec<u8> {
    const PERIOD: usize = 256;
    let numbers = (0..PERIOD as u64).map(|at| (tag >> 32 ^ tag ^ at.wrapping_mul(31)) as u8);
    let mut bytes = numbers.collect::<Vec<u8>>().repeat(len.div_ceil(PERIOD));
    bytes.truncate(len);
    bytes
}

/// Sends from one thread to every thread of the other endpoint, and receives from each, in three ways.
fn converse(endpoint: &SharedEndpoint, me: u64, peer: usize, received: &AtomicU64) {
    // Asserted at the end: the other threads would wait for this one.
    let mut damaged = Vec::new();
    for number in 0..MESSAGES {
        for other in 0..THREADS {
            let (out, into) = (tag(me, other, number), tag(other, me, number));
            let (sent, mut got) = (content(out, len(number)), vec![0; len(number)]);
            let (base, room) = (got.as_mut_ptr(), got.len());
            // SAFETY: the buffer lives, unused, until the request is complete.
            let post = |it: &mut LockedEndpoint<'_>| unsafe {
                it.irecv(Source::Rank(peer), Tag::Exactly(into), base, room)
            };
            let request = endpoint.with(post).unwrap().unwrap();
            // SAFETY: the bytes live, unchanged, until the request is complete.
            let send = endpoint
                .with(|it| unsafe { it.isend(peer, out, sent.as_ptr(), sent.len()) })
                .unwrap()
                .unwrap();
            let status = match (me + number) % 3 {
                0 => endpoint.wait(request).unwrap(),
                1 => endpoint.wait_timeout(request, EVER).unwrap(),
                _ => loop {
                    if let Some(status) = endpoint.test(request).unwrap() {
                        break status;
                    }
                    std::thread::yield_now();
                },
            };
            if (status.tag, status.len) != (into, got.len()) || got != content(into, got.len()) {
                damaged.push(format!("{into:x}: {status:?}"));
            }
            endpoint.wait(send).unwrap();
            received.fetch_add(1, Ordering::Relaxed);
        }
    }
    assert!(damaged.is_empty(), "{damaged:?}");
}

pub(in crate::endpoint) fn exchange(config: &Config) {
    let (zero, one) = shared_pair(config);
    let received = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let spawn = |endpoint: &SharedEndpoint, me, peer| {
            let (endpoint, received) = (endpoint.clone(), &received);
            scope.spawn(move || converse(&endpoint, me, peer, received))
        };
        let both = |me| [spawn(&zero, me, 1), spawn(&one, me, 0)];
        let threads: Vec<_> = (0..THREADS).flat_map(both).collect();
        // The threads are joined one by one, because ThreadSanitizer does not see how a scope waits.
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
    assert_eq!(received.into_inner(), 2 * THREADS * THREADS * MESSAGES);
    // One of the two is the last, and closes.
    let other = std::thread::spawn(move || one.close());
    zero.close().unwrap();
    other.join().unwrap().unwrap();
}

#[test]
fn threads_of_two_endpoints_exchange_in_all_directions() {
    exchange(&Config::default());
}

#[test]
fn threads_that_only_sleep_exchange_in_all_directions() {
    exchange(&Config::default().spin(0));
}

#[test]
fn threads_exchange_through_tiny_structures() {
    exchange(&Config::default().cells(4).cell_bytes(256).fastbox_slots(4));
}

/// Receives into a buffer of its own, in a thread of its own.
fn wait_for(
    endpoint: &SharedEndpoint,
    tag: u64,
) -> std::thread::JoinHandle<Result<(crate::Status, Vec<u8>), Error>> {
    let endpoint = endpoint.clone();
    std::thread::spawn(move || {
        let mut got = vec![0; 8];
        let status = endpoint.recv(Source::Any, Tag::Exactly(tag), &mut got)?;
        Ok((status, got))
    })
}

/// Sleeps long enough for a thread to fall asleep. The test also holds if it does not.
fn let_them_sleep() {
    std::thread::sleep(Duration::from_millis(20));
}

#[test]
fn the_remaining_threads_continue_when_others_are_served() {
    let (zero, one) = shared_pair(&Config::default());
    // The driver is served first, last, and between the others.
    for round in 0..12_u64 {
        let waiting: Vec<_> = (0..3).map(|tag| wait_for(&zero, 3 * round + tag)).collect();
        let_them_sleep();
        for step in 0..3 {
            one.send(0, 3 * round + (step + round) % 3, &[step as u8; 8]).unwrap();
            let_them_sleep();
        }
        for thread in waiting {
            assert_eq!(thread.join().unwrap().unwrap().0.len, 8);
        }
    }
}

#[test]
fn a_message_to_the_own_rank_ends_the_wait_of_another_thread() {
    let zero = world(1, &Config::default()).pop().unwrap().into_shared();
    for tag in 0..20 {
        let waiting = wait_for(&zero, tag);
        if tag % 2 == 0 {
            let_them_sleep();
        }
        zero.send(0, tag, &[9; 8]).unwrap();
        assert_eq!(waiting.join().unwrap().unwrap().1, [9; 8]);
    }
}

#[test]
fn the_wait_for_a_request_ends_when_another_thread_withdraws_it() {
    let (zero, _one) = shared_pair(&Config::default());
    let mut got = vec![0; 8];
    // SAFETY: the buffer outlives the request.
    let request =
        zero.with(|it| unsafe { it.irecv(Source::Any, Tag::Any, got.as_mut_ptr(), 8) }).unwrap().unwrap();
    let waiting = std::thread::spawn({
        let zero = zero.clone();
        move || zero.wait(request)
    });
    let_them_sleep();
    assert!(zero.with(|it| it.cancel(request)).unwrap());
    assert!(matches!(waiting.join().unwrap(), Err(Error::Cancelled)));
}

#[test]
fn every_thread_that_waits_for_a_peer_gets_an_error_when_it_leaves() {
    let (zero, one) = shared_pair(&Config::default());
    let waiting: Vec<_> = (0..3).map(|tag| wait_for(&zero, tag)).collect();
    let_them_sleep();
    one.close().unwrap();
    for thread in waiting {
        let outcome = thread.join().unwrap();
        assert!(matches!(outcome, Err(Error::PeerFailed { rank: 1, .. })), "{outcome:?}");
    }
    assert_eq!(zero.with(|it| it.failure(1)).unwrap(), Some(Failure::Finished));
}

#[test]
fn each_thread_has_a_limit_of_its_own() {
    let (zero, one) = shared_pair(&Config::default());
    let (driver, begun) = (wait_for(&zero, 1), Instant::now());
    let_them_sleep();
    let mut got = vec![0; 8];
    // SAFETY: the buffer outlives the request.
    let request = zero
        .with(|it| unsafe { it.irecv(Source::Any, Tag::Exactly(2), got.as_mut_ptr(), 8) })
        .unwrap()
        .unwrap();
    let outcome = zero.wait_timeout(request, Duration::from_millis(30));
    assert!(matches!(outcome, Err(Error::Timeout(_))), "{outcome:?}");
    assert!(begun.elapsed() >= Duration::from_millis(30));
    // The request is still under way.
    one.send(0, 2, &[2; 8]).unwrap();
    assert_eq!(zero.wait_timeout(request, EVER).unwrap().tag, 2);
    one.send(0, 1, &[1; 8]).unwrap();
    driver.join().unwrap().unwrap();
}

#[test]
fn a_held_sender_is_reported_to_every_thread_that_waits_for_it() {
    let (zero, mut one) = pair(&Config::default().unexpected_bytes(64 << 10));
    let zero = zero.into_shared();
    let bytes = vec![1; 8];
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    let held = std::thread::spawn(move || {
        // There are as many sends as there is room for, and one more, which is never complete.
        while !stopped.load(Ordering::Relaxed) {
            // SAFETY: the bytes outlive the endpoint.
            let request = unsafe { one.isend(0, 7, bytes.as_ptr(), 8) }.unwrap();
            while !stopped.load(Ordering::Relaxed) && one.test(request).unwrap().is_none() {
                std::thread::yield_now();
            }
        }
        (one, bytes)
    });
    let waiting: Vec<_> = (0..2)
        .map(|tag| {
            let zero = zero.clone();
            std::thread::spawn(move || zero.recv(Source::Rank(1), Tag::Exactly(tag), &mut [0; 8]))
        })
        .collect();
    for thread in waiting {
        let outcome = thread.join().unwrap();
        assert!(matches!(outcome, Err(Error::Unexpected { held: 1, .. })), "{outcome:?}");
    }
    stop.store(true, Ordering::Relaxed);
    drop(held.join().unwrap());
}

#[test]
fn threads_wait_for_unexpected_messages() {
    let (zero, one) = shared_pair(&Config::default());
    let probing: Vec<_> = (0..4_u64)
        .map(|tag| {
            let zero = zero.clone();
            std::thread::spawn(move || {
                let found = zero.probe(3, Source::Any, Tag::Exactly(tag), Some(EVER)).unwrap();
                let message = zero.mprobe(3, Source::Any, Tag::Exactly(tag), None).unwrap();
                assert_eq!((found, found.rank, found.len), (message.status(), 1, 8));
                let mut got = [0; 8];
                let (base, len) = (got.as_mut_ptr(), got.len());
                // SAFETY: the buffer is borrowed until `run` returns.
                zero.run(|it| unsafe { it.imrecv(message, base, len) }).unwrap();
                assert_eq!(got, [tag as u8; 8]);
            })
        })
        .collect();
    let_them_sleep();
    for tag in [2, 0, 3, 1] {
        one.with(|it| it.in_context(3).send(0, tag, &[tag as u8; 8])).unwrap().unwrap();
    }
    for thread in probing {
        thread.join().unwrap();
    }
    let nothing = zero.probe(3, Source::Any, Tag::Any, Some(Duration::from_millis(5)));
    assert!(matches!(nothing, Err(Error::Timeout(_))), "{nothing:?}");
}

#[test]
fn two_endpoints_of_one_thread_belong_to_two_worlds() {
    let (zero, one) = pair(&Config::default());
    let (mut other_zero, mut other_one) = pair(&Config::default().cells(8));
    let (zero, one) = (zero.into_shared(), one.into_shared());
    // This thread uses all four endpoints. Each message waits until it is received.
    for number in 0..100 {
        zero.send(1, number, b"first").unwrap();
        other_zero.send(1, number, b"second").unwrap();
        let mut got = [0; 6];
        assert_eq!(one.recv(Source::Any, Tag::Exactly(number), &mut got).unwrap().len, 5);
        assert_eq!(&got[..5], b"first");
        assert_eq!(other_one.recv(Source::Any, Tag::Exactly(number), &mut got).unwrap().len, 6);
        assert_eq!(&got, b"second");
    }
    // One world ends, and the other continues.
    drop((zero, one));
    other_zero.send(1, 1, b"still").unwrap();
    assert_eq!(other_one.recv(Source::Rank(0), Tag::Any, &mut [0; 8]).unwrap().len, 5);
}
