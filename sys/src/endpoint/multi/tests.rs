//! Buffers that receive one message after the other.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::endpoint::tests::{pair, world};
use crate::{
    Completion, CompletionKind, Config, Endpoint, Error, MultiReceiveOptions, Request, SendOp, Source, Tag,
};

/// A time after which a thread certainly hangs.
const EVER: Option<Duration> = Some(Duration::from_secs(60));

const ONE: Source = Source::Rank(1);

fn options() -> MultiReceiveOptions {
    MultiReceiveOptions::default()
}

fn post(endpoint: &mut Endpoint, number: u64, len: usize) -> Request {
    endpoint.receive_many(number, Source::Any, Tag::Any, vec![0; len], options()).unwrap()
}

/// Waits for `count` completions.
fn take(endpoint: &mut Endpoint, count: usize) -> Vec<Completion> {
    let mut all = Vec::new();
    let mut some = [Completion::default(); 8];
    while all.len() < count {
        let most = (count - all.len()).min(8);
        let taken = endpoint.wait_completions(&mut some[..most], EVER).unwrap();
        assert!(taken > 0, "after {} of {count}", all.len());
        all.extend_from_slice(&some[..taken]);
    }
    all
}

fn requests(count: usize) -> Config {
    let mut config = Config::default();
    config.set("NEMESIA_REQUESTS", &count.to_string()).unwrap();
    config
}

#[test]
fn messages_of_every_size_lie_behind_each_other() {
    for count in [1 << 16, 64] {
        let (mut zero, mut one) = pair(&requests(count));
        let lens = [0, 8, 100, 4000, 70_000, 1 << 20, 3];
        let sender = std::thread::spawn(move || {
            for (tag, len) in (0..).zip(lens) {
                zero.send(1, tag, &vec![tag as u8 + 1; len]).unwrap();
            }
            zero
        });
        let buffer = post(&mut one, 9, 2 << 20);
        let done = take(&mut one, lens.len());
        for done in &done {
            let status = done.result().unwrap();
            assert_eq!(
                (done.context, done.kind, done.buffer()),
                (9, CompletionKind::MultiReceive, Some(buffer))
            );
            let at = status.tag as usize;
            let before: usize = lens[..at].iter().map(|len| len.next_multiple_of(8)).sum();
            assert_eq!((done.offset(), status.len, status.rank), (before, lens[at], 0));
            assert_eq!(one.received(done), Some(&vec![at as u8 + 1; lens[at]][..]));
        }
        assert!(one.cancel(buffer));
        let end = take(&mut one, 1)[0];
        assert_eq!((end.context, end.kind, end.offset()), (9, CompletionKind::MultiReceiveEnd, 0));
        assert!(matches!(end.result(), Err(Error::Cancelled)) && one.received(&end).is_none());
        assert_eq!(one.take_buffer(&end).map(|bytes| bytes.len()), Some(2 << 20));
        assert!(one.take_buffer(&end).is_none() && one.received(&done[0]).is_none(), "it was taken");
        drop(sender.join().unwrap());
    }
}

#[test]
fn buffers_are_used_up_one_after_the_other_and_slots_grow_up_to_their_limit() {
    for count in [1 << 16, 64] {
        let (mut zero, mut one) = pair(&requests(count));
        for number in 0..4 {
            let _ = post(&mut zero, number, 8 * 100);
        }
        let sender = std::thread::spawn(move || {
            (0..400_u64).for_each(|tag| one.send(0, tag, &tag.to_le_bytes()).unwrap());
            one
        });
        let done = take(&mut zero, 404);
        drop(sender.join().unwrap());
        let mut next = 0_u64;
        for done in &done {
            if done.kind == CompletionKind::MultiReceiveEnd {
                assert_eq!((next % 100, done.result().unwrap().len), (0, 800));
                continue;
            }
            assert_eq!((done.context, done.offset() as u64), (next / 100, 8 * (next % 100)));
            assert_eq!(zero.received(done), Some(&next.to_le_bytes()[..]));
            next += 1;
        }
        assert_eq!(next, 400);
    }
}

#[test]
fn completions_of_another_endpoint_name_no_buffer() {
    let (mut zero, mut one) = pair(&Config::default());
    for endpoint in [&mut zero, &mut one] {
        let _ = post(endpoint, 1, 100);
    }
    let me = one.rank();
    one.send(me, 1, b"nemesia!").unwrap();
    let done = take(&mut one, 1)[0];
    assert!(zero.received(&done).is_none() && zero.received(&Completion::default()).is_none());
    assert_eq!(one.received(&done), Some(&b"nemesia!"[..]));
    let buffer = done.buffer().unwrap();
    assert!(one.cancel(buffer));
    let end = take(&mut one, 1)[0];
    assert!(zero.take_buffer(&end).is_none() && one.take_buffer(&end).is_some());
}

#[test]
fn stored_messages_enter_a_buffer_of_their_context_with_their_immediate_data() {
    let mut alone = world(1, &Config::default()).pop().unwrap();
    for context in [3, 0] {
        alone.send_op(SendOp::new(0, 2, b"to me").context(context).immediate(5)).unwrap();
    }
    let mut bytes = [0_u8; 64];
    let align = options().align(16).unwrap().least(64);
    let place = (bytes.as_mut_ptr(), 64);
    // SAFETY: the buffer lives, unused, until the completion of its end was taken.
    let posted = unsafe { alone.in_context(3).irecv_many(8, Source::Rank(0), Tag::Exactly(2), place, align) };
    let done = take(&mut alone, 2);
    assert_eq!((done[0].immediate, done[0].offset(), done[0].context), (Some(5), 0, 8));
    assert!(alone.received(&done[0]).is_none(), "the endpoint does not own it");
    assert_eq!((done[1].buffer(), done[1].result().unwrap().len), (Some(posted.unwrap()), 5));
    assert_eq!(&bytes[..5], b"to me");
    let refused = alone.receive_many(1, Source::Rank(7), Tag::Any, vec![1; 3], options());
    assert!(matches!(refused, Err((Error::Rank { rank: 7, .. }, bytes)) if bytes == [1; 3]));
}

#[test]
fn death_of_the_peer_ends_the_buffer() {
    let (mut zero, one) = pair(&Config::default());
    let buffer = zero.receive_many(1, Source::Rank(1), Tag::Any, vec![0; 64], options()).unwrap();
    drop(one);
    let end = take(&mut zero, 1)[0];
    assert_eq!((end.buffer(), end.kind), (Some(buffer), CompletionKind::MultiReceiveEnd));
    assert!(matches!(end.result(), Err(Error::PeerFailed { rank: 1, .. })), "{end:?}");
    assert!(zero.take_buffer(&end).is_some());
}

#[test]
fn buffer_that_is_posted_does_not_hinder_the_end_of_its_endpoint() {
    let (mut zero, mut one) = pair(&Config::default());
    let _ = post(&mut zero, 1, 1 << 20);
    one.send(0, 1, &[1; 100_000][..50]).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| one.close().unwrap());
        zero.close().unwrap();
    });
}

#[test]
fn threads_share_a_buffer_and_each_message_is_reported_once() {
    const COUNT: u64 = 1000;
    let (zero, mut one) = pair(&requests(64));
    let zero = zero.into_shared();
    let posted =
        zero.with(|zero| zero.receive_many(4, ONE, Tag::Any, vec![0; 8 * COUNT as usize], options()));
    let buffer = posted.unwrap().unwrap();
    let (count, sum) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..3 {
            let zero = zero.clone();
            scope.spawn(|| {
                let zero = zero;
                let mut some = [Completion::default(); 5];
                // The end of the buffer counts, too.
                while count.load(Ordering::Relaxed) <= COUNT {
                    let taken = zero.wait_completions(&mut some, Some(Duration::from_millis(10))).unwrap();
                    // Before the assertions: the other threads wait for the count.
                    count.fetch_add(taken as u64, Ordering::Relaxed);
                    for done in &some[..taken] {
                        assert_eq!(done.buffer(), Some(buffer));
                        let status = done.result().unwrap();
                        if done.kind == CompletionKind::MultiReceive {
                            let seen = zero.with(|zero| zero.received(done).map(<[u8]>::to_vec)).unwrap();
                            assert_eq!(seen.as_deref(), Some(&status.tag.to_le_bytes()[..]));
                        }
                        sum.fetch_add(status.tag, Ordering::Relaxed);
                    }
                }
            });
        }
        for tag in 0..COUNT {
            one.send(0, tag, &tag.to_le_bytes()).unwrap();
        }
    });
    assert_eq!((count.into_inner(), sum.into_inner()), (COUNT + 1, (COUNT - 1) * COUNT / 2));
}
