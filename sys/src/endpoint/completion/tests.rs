//! The completion queue, many requests at once, waits with a limit of zero, withdrawn sends, and `inject`.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nemesia_core::payload::Segment;

use crate::endpoint::tests::{pair, world};
use crate::{
    Access, Arm, Comparison, CompleteAt, Completion, CompletionKind, Config, Datatype, Endpoint, Error,
    RecvOp, Reduction, Request, SendOp, Source, StartedOperation, Status, Tag,
};

const ONE: Source = Source::Rank(1);
const ZERO: Source = Source::Rank(0);
/// A time after which a thread certainly hangs.
const EVER: Option<Duration> = Some(Duration::from_secs(60));

/// Posts a receive into the queue.
fn post(endpoint: &mut Endpoint, context: u64, from: Source, buf: &mut [u8]) -> StartedOperation {
    let (base, len) = (buf.as_mut_ptr(), buf.len());
    // SAFETY: the tests take the completion, or drop the endpoint, before the buffer ends.
    let op = unsafe { RecvOp::from_raw(from, Tag::Exactly(context), base, len) };
    // SAFETY: the same.
    unsafe { endpoint.with_completion(context).irecv_op(op) }.unwrap()
}

/// Waits for `count` completions.
fn take(endpoint: &mut Endpoint, count: usize) -> Vec<Completion> {
    let mut all = Vec::new();
    let mut some = [Completion::default(); 8];
    while all.len() < count {
        let taken = endpoint.wait_completions(&mut some, EVER).unwrap();
        assert!(taken > 0, "after {} of {count}", all.len());
        all.extend_from_slice(&some[..taken]);
    }
    assert_eq!((all.len(), endpoint.completions(&mut some)), (count, 0));
    all
}

#[test]
fn messages_of_every_size_enter_the_queue_with_their_status() {
    for requests in [1 << 16, 64] {
        let mut config = Config::default();
        config.set("NEMESIA_REQUESTS", &requests.to_string()).unwrap();
        let (mut zero, mut one) = pair(&config);
        for len in [0, 8, 100, 4000, 70_000, 1 << 20] {
            let bytes = vec![len as u8 ^ 3; len];
            let mut got = vec![0; len];
            let receiver = std::thread::spawn(move || {
                post(&mut one, 7, ZERO, &mut got);
                let done = take(&mut one, 1)[0];
                assert_eq!((done.context, done.kind, done.immediate), (7, CompletionKind::Receive, None));
                let status = done.result().unwrap();
                assert_eq!((status.rank, status.tag, status.len), (0, 7, len));
                (one, got)
            });
            // SAFETY: the bytes live until the completion was taken.
            unsafe { zero.with_completion(u64::MAX).isend_op(SendOp::new(1, 7, &bytes)) }.unwrap();
            let done = take(&mut zero, 1)[0];
            assert!(done.is_success());
            let status = done.result().unwrap();
            assert_eq!((done.context, done.kind), (u64::MAX, CompletionKind::Send));
            assert_eq!((status.rank, status.tag, status.len), (1, 7, len));
            let (endpoint, got) = receiver.join().unwrap();
            assert!(got == bytes);
            one = endpoint;
        }
    }
}

#[test]
fn operations_of_each_kind_enter_the_queue() {
    let mut alone = world(1, &Config::default()).pop().unwrap();
    let region = alone.allocate(64, Access::ReadWrite).unwrap();
    let key = alone.remote_key(region).unwrap();
    alone.set_handler(1, |_| {});
    let (mut bytes, mut old) = ([1_u8; 8], [0_u8; 8]);
    let (base, result) = (bytes.as_mut_ptr(), old.as_mut_ptr());
    let sum = (Datatype::U64, Reduction::Sum);
    let header: *const [u8] = &[];
    let list = [Segment { base, len: 3 }, Segment { base: base.wrapping_add(3), len: 5 }];
    // SAFETY: all buffers live, unused, until the completions were taken.
    unsafe {
        alone.with_completion(1).iput(&key, 0, base, 8, true, CompleteAt::Origin).unwrap();
        alone.with_completion(2).iget(&key, 0, result, 8).unwrap();
        alone.with_completion(3).iaccumulate(&key, 8, sum, base, 8, CompleteAt::Target).unwrap();
        alone.with_completion(4).ifetch(&key, 8, sum, 1, result).unwrap();
        alone
            .with_completion(5)
            .icompare_swap(&key, 8, (Datatype::U64, Comparison::Equal), [0, 1], result)
            .unwrap();
        alone.with_completion(6).ifetch_accumulate(&key, 16, sum, base, result, 8).unwrap();
        alone.with_completion(7).isend_active(0, 1, header, std::ptr::from_ref(&[9_u8; 4])).unwrap();
        alone.with_completion(8).isend_op(SendOp::from_raw_list(0, 5, list.as_ptr(), 2)).unwrap();
        let op = SendOp::from_raw(0, 6, base, 8).context(3).synchronous().immediate(9);
        alone.with_completion(9).isend_op(op).unwrap();
    }
    alone.with_completion(10).iflush(0).unwrap();
    alone.with_completion(11).inotified(region, 1).unwrap();
    let message = alone.mprobe(ZERO, Tag::Exactly(5)).unwrap();
    let mut into = [0_u8; 8];
    let base = into.as_mut_ptr();
    let into = [Segment { base, len: 3 }, Segment { base: base.wrapping_add(3), len: 5 }];
    // SAFETY: as above.
    unsafe {
        let op = RecvOp::from_raw_list(ZERO, Tag::Any, into.as_ptr(), 2);
        alone.with_completion(12).irecv_op(op.matched(message)).unwrap();
        let op = RecvOp::from_raw_list(ZERO, Tag::Any, into.as_ptr(), 2);
        alone.with_completion(13).irecv_op(op.context(3)).unwrap();
    }
    let mut done = take(&mut alone, 13);
    done.sort_by_key(|done| done.context);
    use CompletionKind::{Active, Atomic, Flush, Get, Notification, Put, Receive, Send};
    let kinds =
        [Put, Get, Atomic, Atomic, Atomic, Atomic, Active, Send, Send, Flush, Notification, Receive, Receive];
    let lens = [8, 8, 8, 8, 8, 8, 4, 8, 8, 0, 0, 8, 8];
    for (at, done) in done.iter().enumerate() {
        assert_eq!((done.context, done.kind), (at as u64 + 1, kinds[at]));
        assert_eq!(done.result().unwrap().len, lens[at], "{:?}", kinds[at]);
        assert_eq!(done.immediate, (at == 12).then_some(9), "{:?}", kinds[at]);
    }
}

#[test]
fn errors_are_in_the_queue_with_both_lengths_of_a_truncated_message() {
    let (mut zero, mut one) = pair(&Config::default());
    let (mut short, mut never) = ([0; 4], [0; 4]);
    post(&mut zero, 1, ONE, &mut short);
    let request = post(&mut zero, 2, ONE, &mut never).request();
    one.send(0, 1, b"too long").unwrap();
    let done = take(&mut zero, 1)[0];
    assert!(!done.is_success());
    match done.result() {
        Err(Error::Truncated(truncation)) => {
            assert_eq!((truncation.status.len, truncation.message, truncation.status.tag), (4, 8, 1));
        }
        other => panic!("{other:?}"),
    }
    assert!(
        matches!(zero.test(request), Err(Error::Stale)) && matches!(zero.wait(request), Err(Error::Stale))
    );
    assert!(zero.cancel(request) && !zero.cancel(request));
    assert!(matches!(take(&mut zero, 1)[0].result(), Err(Error::Cancelled)));
    post(&mut zero, 3, ONE, &mut never);
    drop(one);
    let failed = take(&mut zero, 1)[0];
    assert!(matches!(failed.result(), Err(Error::PeerFailed { rank: 1, .. })), "{failed:?}");
    // A start that fails makes no entry.
    // SAFETY: there are no bytes.
    let refused = unsafe { zero.with_completion(4).isend_op(SendOp::new(7, 1, &[])) };
    assert!(matches!(refused, Err(Error::Rank { rank: 7, .. })));
    assert_eq!(zero.completions(&mut [Completion::default()]), 0);
}

#[test]
fn every_request_may_have_its_entry_in_the_queue_and_no_further_one_starts() {
    let mut config = Config::default();
    config.set("NEMESIA_REQUESTS", "64").unwrap();
    let mut alone = world(1, &config).pop().unwrap();
    let send = |alone: &mut Endpoint, context| {
        // SAFETY: there are no bytes.
        unsafe { alone.with_completion(context).isend_op(SendOp::new(0, 1, &[])) }.map(drop)
    };
    for context in 0..64 {
        send(&mut alone, context).unwrap();
    }
    assert!(matches!(send(&mut alone, 64), Err(Error::Requests { capacity: 64 })));
    let contexts: Vec<u64> = take(&mut alone, 64).iter().map(|done| done.context).collect();
    assert_eq!(contexts, (0..64).collect::<Vec<_>>(), "the one more was not sent");
    for _ in 0..64 {
        alone.recv(ZERO, Tag::Any, &mut []).unwrap();
    }
    assert!(alone.iprobe(ZERO, Tag::Any).unwrap().is_none());
}

#[test]
fn empty_queue_returns_at_the_limit_and_an_empty_array_at_once() {
    let (mut zero, mut one) = pair(&Config::default());
    let mut buf = [0; 8];
    post(&mut zero, 1, ONE, &mut buf);
    let mut place = [Completion::default()];
    assert_eq!(zero.wait_completions(&mut place, Some(Duration::ZERO)).unwrap(), 0);
    let start = Instant::now();
    assert_eq!(zero.wait_completions(&mut place, Some(Duration::from_millis(30))).unwrap(), 0);
    assert!(start.elapsed() >= Duration::from_millis(30));
    assert_eq!(zero.wait_completions(&mut [], None).unwrap(), 0);
    one.send(0, 1, b"nemesia!").unwrap();
    assert_eq!(zero.wait_completions(&mut place, None).unwrap(), 1);
    assert_eq!(&buf, b"nemesia!");
}

#[test]
fn wait_for_completions_names_the_full_store_that_no_operation_can_pass() {
    let config = Config::default().unexpected_bytes(256 << 10);
    let (mut zero, mut one) = pair(&config);
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let stopped = std::sync::Arc::clone(&stop);
    let sender = std::thread::spawn(move || {
        let bytes = vec![1; 4000];
        let mut open = Vec::new();
        for _ in 0..1000 {
            // SAFETY: the bytes live until the endpoint is dropped.
            open.push(unsafe { one.isend(0, 9, bytes.as_ptr(), bytes.len()) }.unwrap());
        }
        while !stopped.load(Ordering::Relaxed) {
            one.progress();
            std::thread::yield_now();
        }
        drop(one);
    });
    let mut buf = [0; 8];
    post(&mut zero, 1, ONE, &mut buf);
    let outcome = zero.wait_completions(&mut [Completion::default()], EVER);
    assert!(matches!(outcome, Err(Error::Unexpected { .. })), "{outcome:?}");
    stop.store(true, Ordering::Relaxed);
    sender.join().unwrap();
}

#[test]
fn arming_is_refused_while_a_completion_is_in_the_queue() {
    let (mut zero, mut one) = pair(&Config::default());
    let mut buf = [0; 8];
    post(&mut zero, 1, ONE, &mut buf);
    while zero.arm() == Arm::Busy {}
    one.send(0, 1, b"nemesia!").unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    assert!(crate::os::wait_ready(zero.waiter.watch.as_fd(), libc::POLLIN, deadline).unwrap());
    while !zero.engine.has_completions() {
        zero.progress();
    }
    for _ in 0..10 {
        assert_eq!(zero.arm(), Arm::Busy);
    }
    assert_eq!(take(&mut zero, 1)[0].context, 1);
    while zero.arm() == Arm::Busy {}
    assert_eq!(&buf, b"nemesia!");
}

#[test]
fn several_threads_take_each_completion_once() {
    const MESSAGES: u64 = 200;
    let (zero, mut one) = pair(&Config::default());
    let zero = zero.into_shared();
    let mut bufs = vec![[0_u8; 8]; MESSAGES as usize];
    for (context, buf) in (0..).zip(&mut bufs) {
        // SAFETY: the buffers live, unused, until all completions were taken.
        let op = unsafe { RecvOp::from_raw(ONE, Tag::Exactly(context), buf.as_mut_ptr(), 8) };
        // SAFETY: the same.
        zero.with(|it| unsafe { it.with_completion(context).irecv_op(op) }).unwrap().unwrap();
    }
    let (taken, sum) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let take = || {
            let mut some = [Completion::default(); 3];
            while taken.load(Ordering::Relaxed) < MESSAGES {
                let count = zero.wait_completions(&mut some, Some(Duration::from_millis(100))).unwrap();
                taken.fetch_add(count as u64, Ordering::Relaxed);
                sum.fetch_add(some[..count].iter().map(|it| it.context).sum(), Ordering::Relaxed);
            }
        };
        let threads: Vec<_> = (0..3).map(|_| scope.spawn(take)).collect();
        for tag in 0..MESSAGES {
            one.send(0, tag, &tag.to_le_bytes()).unwrap();
        }
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
    assert_eq!(taken.into_inner(), MESSAGES);
    assert_eq!(sum.into_inner(), MESSAGES * (MESSAGES - 1) / 2);
    assert!((0..).zip(&bufs).all(|(tag, buf): (u64, _)| *buf == tag.to_le_bytes()));
}

fn irecv(endpoint: &mut Endpoint, tag: u64, buf: &mut [u8]) -> Request {
    // SAFETY: the tests end the request, or drop the endpoint, before the buffer ends.
    unsafe { endpoint.irecv(ONE, Tag::Exactly(tag), buf.as_mut_ptr(), buf.len()) }.unwrap()
}

#[test]
fn test_some_ends_the_requests_that_are_complete() {
    let (mut zero, mut one) = pair(&Config::default());
    let mut bufs = [[0; 8]; 4];
    let mut requests: Vec<_> =
        (0..).zip(&mut bufs).map(|(tag, buf)| Some(irecv(&mut zero, tag, buf))).collect();
    assert!(requests[2].take().is_some_and(|request| zero.cancel(request)));
    for tag in [3, 0] {
        one.send(0, tag, &tag.to_le_bytes()).unwrap();
    }
    let mut found = Vec::new();
    while found.len() < 2 {
        let before = found.len();
        let count =
            zero.test_some(&mut requests, |at, outcome| found.push((at as u64, outcome.unwrap().tag)));
        assert_eq!(found.len() - before, count);
    }
    found.sort_unstable();
    assert_eq!(found, [(0, 0), (3, 3)]);
    assert_eq!(requests.iter().map(Option::is_some).collect::<Vec<_>>(), [false, true, false, false]);
    assert_eq!(zero.test_some(&mut requests, |_, _| unreachable!()), 0);
    zero.cancel(requests[1].unwrap());
    let mut cancelled = false;
    zero.test_some(&mut requests, |at, outcome| {
        cancelled = at == 1 && matches!(outcome, Err(Error::Cancelled));
    });
    assert!(cancelled && requests == [None; 4]);
}

#[test]
fn wait_any_returns_the_request_that_ends_first() {
    let (mut zero, mut one) = pair(&Config::default());
    let mut bufs = [[0; 8]; 3];
    let mut requests: Vec<_> =
        (0..).zip(&mut bufs).map(|(tag, buf)| Some(irecv(&mut zero, tag, buf))).collect();
    for limit in [Duration::ZERO, Duration::from_millis(20)] {
        assert!(matches!(zero.wait_any(&mut requests, Some(limit)), Err(Error::Timeout(it)) if it == limit));
    }
    let sender = std::thread::spawn(move || {
        // Most probably the receiver sleeps by then; it need not.
        std::thread::sleep(Duration::from_millis(20));
        one.send(0, 2, b"nemesia!").unwrap();
        one
    });
    let (at, outcome) = zero.wait_any(&mut requests, EVER).unwrap().unwrap();
    assert_eq!((at, outcome.unwrap().tag, requests[2]), (2, 2, None));
    // The end of the peer ends the others.
    drop(sender.join().unwrap());
    for _ in 0..2 {
        let (_, outcome) = zero.wait_any(&mut requests, EVER).unwrap().unwrap();
        assert!(matches!(outcome, Err(Error::PeerFailed { rank: 1, .. })));
    }
    assert!(zero.wait_any(&mut requests, None).unwrap().is_none(), "there is no request left");
}

#[test]
fn threads_wait_for_any_of_their_requests_and_for_anything() {
    let (zero, mut one) = pair(&Config::default());
    let zero = zero.into_shared();
    let mut bufs = [[0_u8; 8]; 6];
    let mut requests: Vec<_> = (0..)
        .zip(&mut bufs)
        .map(|(tag, buf)| {
            let base = buf.as_mut_ptr();
            // SAFETY: the buffers live, unused, until the requests are complete.
            Some(zero.with(|it| unsafe { it.irecv(ONE, Tag::Exactly(tag), base, 8) }).unwrap().unwrap())
        })
        .collect();
    let ready = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for mine in requests.chunks_mut(2) {
            let (zero, ready) = (zero.clone(), &ready);
            threads.push(scope.spawn(move || {
                ready.fetch_add(1, Ordering::Relaxed);
                while let Some((at, outcome)) = zero.wait_any(mine, EVER).unwrap() {
                    assert_eq!((outcome.unwrap().len, mine[at]), (8, None));
                }
            }));
        }
        while ready.load(Ordering::Relaxed) < 3 {
            std::thread::yield_now();
        }
        for tag in [5, 0, 3, 1, 4, 2] {
            one.send(0, tag, b"nemesia!").unwrap();
        }
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
    assert_eq!(requests, [None; 6]);
    assert!(!zero.wait_progress(Some(Duration::from_millis(10))).unwrap());
    one.send(0, 9, b"nemesia!").unwrap();
    while zero.with(|it| it.iprobe(ONE, Tag::Exactly(9))).unwrap().unwrap().is_none() {
        zero.wait_progress(EVER).unwrap();
    }
}

#[test]
fn wait_until_anything_happens_ends_with_a_message_and_with_the_end_of_a_peer() {
    let (mut zero, mut one) = pair(&Config::default());
    while zero.wait_progress(Some(Duration::from_millis(1))).unwrap() {}
    assert!(!zero.wait_progress(Some(Duration::ZERO)).unwrap());
    let mut buf = [0; 8];
    let request = irecv(&mut zero, 1, &mut buf);
    one.send(0, 1, b"nemesia!").unwrap();
    while zero.test(request).unwrap().is_none() {
        assert!(zero.wait_progress(EVER).unwrap());
    }
    let request = irecv(&mut zero, 2, &mut buf);
    drop(one);
    let outcome = loop {
        match zero.test(request) {
            Ok(None) => assert!(zero.wait_progress(EVER).unwrap()),
            outcome => break outcome,
        }
    };
    assert!(matches!(outcome, Err(Error::PeerFailed { rank: 1, .. })));
}

#[test]
fn waits_with_a_limit_of_zero_look_once() {
    let (mut zero, mut one) = pair(&Config::default());
    let mut buf = [0; 8];
    let request = irecv(&mut zero, 1, &mut buf);
    let timed_out = |outcome| matches!(outcome, Err(Error::Timeout(limit)) if limit.is_zero());
    let sleeps = zero.counters().waits.sleeps;
    for _ in 0..1000 {
        assert!(timed_out(zero.wait_timeout(request, Duration::ZERO)));
    }
    assert_eq!(zero.counters().waits.sleeps, sleeps);
    one.send(0, 1, b"nemesia!").unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        match zero.wait_timeout(request, Duration::ZERO) {
            Err(Error::Timeout(_)) => assert!(Instant::now() < deadline),
            outcome => break assert_eq!(outcome.unwrap().len, 8),
        }
    }
    let zero = zero.into_shared();
    let base = buf.as_mut_ptr();
    // SAFETY: the buffer lives, unused, until the request is cancelled.
    let request = zero.with(|it| unsafe { it.irecv(ONE, Tag::Exactly(2), base, 8) }).unwrap().unwrap();
    assert!(timed_out(zero.wait_timeout(request, Duration::ZERO)));
    assert!(zero.with(|it| it.cancel(request)).unwrap());
    assert!(matches!(zero.wait_timeout(request, Duration::ZERO), Err(Error::Cancelled)));
}

#[test]
fn sends_that_have_not_begun_can_be_withdrawn() {
    let (mut zero, mut one) = pair(&Config::default().unexpected_bytes(256 << 10));
    let bytes = vec![1; 4000];
    let mut sends = Vec::new();
    // The other process makes no progress, so its cells are taken at last, and the messages wait.
    for tag in 0..2000 {
        // SAFETY: the bytes live until the endpoint is dropped.
        sends.push(unsafe { zero.isend(1, tag, bytes.as_ptr(), bytes.len()) }.unwrap());
    }
    assert!(zero.cancel(sends[1998]) && !zero.cancel(sends[0]));
    assert!(matches!(zero.test(sends[1998]), Err(Error::Cancelled)));
    let receiver = std::thread::spawn(move || {
        let mut buf = vec![0; 4000];
        for tag in (0..2000).filter(|tag| *tag != 1998) {
            let status = one.recv(ZERO, Tag::Any, &mut buf).unwrap();
            assert_eq!((status.tag, status.len), (tag, 4000), "the others keep their order");
        }
        one
    });
    for (at, send) in sends.iter().enumerate().filter(|(at, _)| *at != 1998) {
        zero.wait(*send).unwrap_or_else(|error| panic!("{at}: {error}"));
    }
    receiver.join().unwrap();
}

#[test]
fn inject_sends_now_or_returns_false() {
    let (mut zero, mut one) = pair(&Config::default());
    let most = zero.inject_bytes();
    assert!(most >= 1024, "{most}");
    for to in [1, 0] {
        let mut count = 0_u64;
        while count < 1 << 20 && zero.inject(to, count, &vec![count as u8; most]).unwrap() {
            count += 1;
        }
        assert!((1..1 << 20).contains(&count), "{count}");
        let mut buf = vec![0; most];
        for tag in 0..count {
            let receiver = if to == 1 { &mut one } else { &mut zero };
            assert_eq!(receiver.recv(ZERO, Tag::Exactly(tag), &mut buf).unwrap().len, most);
            assert!(buf.iter().all(|byte| *byte == tag as u8));
        }
        while !zero.inject(to, 1, b"again").unwrap() {
            zero.progress();
        }
    }
    assert!(matches!(zero.inject(1, 1, &vec![0; most + 1]), Err(Error::LongInject { .. })));
    assert!(matches!(zero.inject(2, 1, &[]), Err(Error::Rank { rank: 2, last: 1 })));
    assert!(matches!(zero.in_context(u16::MAX).inject(1, 1, &[]), Err(Error::Context)));
}

#[test]
fn probed_message_is_received_into_a_list() {
    let (mut zero, mut one) = pair(&Config::default());
    for len in [8, 3000, 100_000] {
        let bytes: Vec<u8> = (0..len).map(|at| (at * 7) as u8).collect();
        let sender = std::thread::spawn(move || {
            one.send(0, 1, &bytes).unwrap();
            (one, bytes)
        });
        let message = zero.mprobe(ONE, Tag::Exactly(1)).unwrap();
        let (mut first, mut rest) = (vec![0; 5], vec![0; len - 5]);
        let list = [
            Segment { base: first.as_mut_ptr(), len: first.len() },
            Segment { base: rest.as_mut_ptr(), len: rest.len() },
        ];
        // SAFETY: the list and its buffers live, unused, until the request is complete.
        let op = unsafe { RecvOp::from_raw_list(ONE, Tag::Any, list.as_ptr(), 2) }.matched(message);
        // SAFETY: the same.
        let request = unsafe { zero.irecv_op(op) }.unwrap();
        assert_eq!(zero.wait(request).unwrap().len, len);
        let (endpoint, bytes) = sender.join().unwrap();
        assert!([first, rest].concat() == bytes);
        one = endpoint;
    }
}

#[test]
fn receives_and_messages_with_immediate_data_start_at_once() {
    let (mut zero, mut one) = pair(&Config::default());
    let mut got = [[0; 8]; 2];
    for (number, buf) in (1..).zip(&mut got) {
        // SAFETY: the buffers live until their completions are taken, or the endpoint is dropped.
        let posted = unsafe {
            one.with_completion(number).irecv_now(3, ZERO, Tag::Exactly(number), buf.as_mut_ptr(), buf.len())
        };
        assert!(posted.is_some());
    }
    assert!(!one.awaits_no_message());
    // The first message learns how much may be sent.
    zero.send(1, 9, b"").unwrap();
    assert!(!zero.in_context(0xffff).send_immediate_now(1, 1, b"reserved", 5));
    assert!(!zero.in_context(3).send_immediate_now(7, 1, b"no peer!", 5));
    assert!(zero.in_context(3).send_immediate_now(1, 2, b"second", 6));
    assert!(zero.in_context(3).send_immediate_now(1, 1, b"nemesia!", 5));
    let done = take(&mut one, 2)
        .iter()
        .map(|it| (it.context, it.immediate, it.result().unwrap().len))
        .collect::<Vec<_>>();
    assert_eq!(done, [(2, Some(6), 6), (1, Some(5), 8)]);
    assert!(one.awaits_no_message());
    assert_eq!((&got[0], &got[1][..6]), (b"nemesia!", &b"second"[..]));
}

#[test]
fn a_receive_whose_message_is_next_completes_without_an_entry() {
    let (mut zero, mut one) = pair(&Config::default());
    // The first message learns how much may be sent, and some make the sender one at which the receiver looks first.
    for _ in 0..64 {
        zero.send(1, 9, b"").unwrap();
        one.recv(ZERO, Tag::Exactly(9), &mut []).unwrap();
    }
    let mut got = [0; 8];
    for (number, immediate) in [(1, None), (2, Some(5))] {
        // SAFETY: the buffer lives until the completion is taken, or the endpoint is dropped.
        let posted = unsafe {
            one.with_completion(number).irecv_now(3, ZERO, Tag::Exactly(number), got.as_mut_ptr(), got.len())
        };
        assert!(posted.is_some());
        assert_eq!(one.next_completion(), None);
        let context = zero.in_context(3);
        assert!(match immediate {
            None => context.send_now(1, number, b"nemesia!"),
            Some(immediate) => context.send_immediate_now(1, number, b"nemesia!", immediate),
        });
        assert!(!one.is_quiet());
        let status = Status { rank: 0, tag: number, len: 8, immediate };
        assert_eq!(one.next_completion(), Some((number, status)));
        assert_eq!(std::mem::take(&mut got), *b"nemesia!");
        assert_eq!(one.next_completion(), None);
        assert_eq!(one.completions(&mut [Completion::default(); 2]), 0);
    }
}
