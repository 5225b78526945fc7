use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use super::*;
use crate::endpoint::reserved::BARRIER_CONTEXT as CONTEXT;
use crate::endpoint::tests::world;
use crate::{Config, Source, Tag};

/// Runs `body` for each endpoint in a thread of its own. Returns the results in the order of the ranks.
fn each<T: Send + 'static>(
    all: Vec<Endpoint>,
    body: impl Fn(Endpoint) -> T + Send + Sync + Clone + 'static,
) -> Vec<T> {
    let start = |endpoint| {
        let body = body.clone();
        thread::spawn(move || body(endpoint))
    };
    let threads: Vec<_> = all.into_iter().map(start).collect();
    threads.into_iter().map(|thread| thread.join().unwrap()).collect()
}

#[test]
fn no_rank_leaves_a_barrier_before_all_have_entered_it() {
    static ENTERED: AtomicUsize = AtomicUsize::new(0);
    const ROUNDS: usize = 100;
    for size in [1, 2, 3, 5, 8] {
        ENTERED.store(0, Ordering::SeqCst);
        each(world(size, &Config::default()), move |mut endpoint| {
            for round in 1..=ROUNDS {
                ENTERED.fetch_add(1, Ordering::SeqCst);
                endpoint.barrier().unwrap();
                let entered = ENTERED.load(Ordering::SeqCst);
                assert!(entered >= round * size, "{entered} of {}", round * size);
                endpoint.barrier().unwrap();
            }
            endpoint.close().unwrap();
        });
    }
}

#[test]
fn a_barrier_takes_no_message_of_the_callers_and_leaves_none() {
    each(world(3, &Config::default()), |mut endpoint| {
        let (me, size) = (endpoint.rank(), endpoint.size());
        for to in 0..size {
            for tag in 0..3 {
                endpoint.send(to, tag, &[me as u8; 4]).unwrap();
            }
        }
        endpoint.barrier().unwrap();
        for from in 0..size {
            for tag in 0..3 {
                let mut got = [0; 4];
                endpoint.recv(Source::Rank(from), Tag::Exactly(tag), &mut got).unwrap();
                assert_eq!(got, [from as u8; 4]);
            }
        }
        endpoint.barrier().unwrap();
        assert!(endpoint.in_context(0).iprobe(Source::Any, Tag::Any).unwrap().is_none());
        assert_eq!(endpoint.engine.unexpected_messages(), 0);
        for context in [CONTEXT, u16::MAX] {
            assert!(matches!(endpoint.in_context(context).send(0, 1, b"x"), Err(Error::Context)));
        }
        endpoint.close().unwrap();
    });
}

#[test]
fn a_rank_that_is_gone_fails_the_barrier_of_all_others_and_the_survivors_have_their_own() {
    for size in [2, 3, 4, 7] {
        let ends = each(world(size, &Config::default()), move |mut endpoint| {
            endpoint.barrier().unwrap();
            // Rank 1 never enters the second barrier.
            if endpoint.rank() == 1 {
                return None;
            }
            let broken = endpoint.barrier();
            let ranking = endpoint.shrink().unwrap();
            assert_eq!(ranking.size(), size - 1);
            for _ in 0..3 {
                endpoint.barrier().unwrap();
            }
            endpoint.close().unwrap();
            Some(broken)
        });
        for broken in ends.into_iter().flatten() {
            let error = broken.unwrap_err();
            match error {
                Error::PeerFailed { rank: 1, .. } | Error::BarrierBroken { rank: 1, .. } => {}
                other => panic!("{other}"),
            }
        }
    }
}

#[test]
fn an_invalid_message_of_a_barrier_fails_its_sender_only() {
    for bytes in [&[0; 3][..], &[0; 5], &7_u32.to_le_bytes()] {
        let mut all = world(2, &Config::default());
        let mut liar = all.pop().unwrap();
        let mut honest = all.pop().unwrap();
        // SAFETY: the bytes outlive the endpoint.
        let buf = unsafe { SendBuf::from_raw(bytes.as_ptr(), bytes.len()) };
        let sent = liar.start(0, CONTEXT, 0, buf, Mode::Standard).unwrap();
        assert!(sent.is_complete());
        match honest.barrier().unwrap_err() {
            Error::PeerFailed { rank: 1, .. } => {}
            other => panic!("{other}"),
        }
    }
}

#[test]
fn one_thread_of_a_rank_is_in_a_barrier_while_others_exchange() {
    each(world(2, &Config::default()), |endpoint| {
        let peer = 1 - endpoint.rank();
        let shared = endpoint.into_shared();
        thread::scope(|scope| {
            scope.spawn(|| {
                for tag in 0..100 {
                    let mut got = [0; 8];
                    shared.send(peer, tag, &tag.to_le_bytes()).unwrap();
                    shared.recv(Source::Rank(peer), Tag::Exactly(tag), &mut got).unwrap();
                    assert_eq!(u64::from_le_bytes(got), tag);
                }
            });
            for _ in 0..100 {
                shared.barrier().unwrap();
            }
        });
        shared.barrier().unwrap();
        shared.close().unwrap();
    });
}
