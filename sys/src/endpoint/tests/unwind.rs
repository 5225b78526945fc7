//! Panics: of handlers during a call, and of programs.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::thread::JoinHandle;
use std::time::Duration;

use super::{Access, Endpoint, Source, Tag, pair, world};
use crate::{Config, Error, Failure, RecvOp, SendOp};

/// The number of the handler that panics.
const PANICS: u16 = 3;

/// Opens two endpoints, of which the first has a handler that panics.
fn pair_with_panics() -> (Endpoint, Endpoint) {
    let (mut zero, one) = pair(&Config::default());
    zero.set_handler(PANICS, |_| panic!("a handler panics, as it should"));
    (zero, one)
}

/// Returns whether `work` unwinds.
fn unwinds<T>(work: impl FnOnce() -> T) -> bool {
    catch_unwind(AssertUnwindSafe(work)).is_err()
}

/// Sleeps long enough for the other side to be in its wait. The test also holds if it is not.
fn let_it_wait() {
    std::thread::sleep(Duration::from_millis(50));
}

/// Makes rank 1 cause the panic of the handler, and then call `work` once the call of rank 0 has unwound.
fn after(
    mut one: Endpoint,
    work: impl FnOnce(&mut Endpoint) + Send + 'static,
) -> (Arc<Barrier>, JoinHandle<Endpoint>) {
    let unwound = Arc::new(Barrier::new(2));
    let wait = Arc::clone(&unwound);
    let thread = std::thread::spawn(move || {
        let_it_wait();
        one.send_active(0, PANICS, b"", b"").unwrap();
        wait.wait();
        work(&mut one);
        one
    });
    (unwound, thread)
}

/// Makes rank 1 cause the panic of the handler, and call `work` some time later. Returns a flag that `work` has
/// begun.
fn later(
    mut one: Endpoint,
    work: impl FnOnce(&mut Endpoint) + Send + 'static,
) -> (Arc<AtomicBool>, JoinHandle<Endpoint>) {
    let begun = Arc::new(AtomicBool::new(false));
    let tell = Arc::clone(&begun);
    let thread = std::thread::spawn(move || {
        let_it_wait();
        one.send_active(0, PANICS, b"", b"").unwrap();
        let_it_wait();
        tell.store(true, Ordering::SeqCst);
        work(&mut one);
        one
    });
    (begun, thread)
}

#[test]
fn a_receive_that_a_panic_ends_is_withdrawn() {
    let (mut zero, one) = pair_with_panics();
    let (unwound, other) = after(one, |one| one.send(0, 7, &[5; 4096]).unwrap());
    let mut gone = vec![1; 4096];
    assert!(unwinds(|| zero.recv(Source::Any, Tag::Exactly(7), &mut gone)));
    unwound.wait();
    let mut got = vec![0; 4096];
    assert_eq!(zero.recv(Source::Any, Tag::Exactly(7), &mut got).unwrap().len, 4096);
    assert!(gone.iter().all(|&byte| byte == 1), "the buffer was used after it was given back");
    assert!(got.iter().all(|&byte| byte == 5));
    drop(other.join().unwrap());
}

#[test]
fn an_operation_that_runs_and_that_a_panic_ends_is_withdrawn() {
    let (mut zero, one) = pair_with_panics();
    let (unwound, other) = after(one, |one| one.send(0, 7, &[5; 4096]).unwrap());
    let mut gone = vec![1; 4096];
    let receive = RecvOp::new(Source::Any, Tag::Exactly(7), &mut gone);
    // SAFETY: the buffer is borrowed until `run` returns or unwinds.
    assert!(unwinds(|| zero.run(|zero| unsafe { zero.irecv_op(receive) })));
    unwound.wait();
    let mut got = vec![0; 4096];
    let again = RecvOp::new(Source::Any, Tag::Exactly(7), &mut got);
    // SAFETY: the same.
    assert_eq!(zero.run(|zero| unsafe { zero.irecv_op(again) }).unwrap().len, 4096);
    assert!(gone.iter().all(|&byte| byte == 1), "the buffer was used after it was given back");
    assert!(got.iter().all(|&byte| byte == 5));
    drop(other.join().unwrap());
}

#[test]
fn a_receive_of_threads_that_a_panic_ends_is_withdrawn() {
    let (zero, one) = pair_with_panics();
    let zero = zero.into_shared();
    let (unwound, other) = after(one, |one| one.send(0, 7, &[5; 4096]).unwrap());
    let mut gone = vec![1; 4096];
    assert!(unwinds(|| zero.recv(Source::Any, Tag::Exactly(7), &mut gone)));
    unwound.wait();
    let mut got = vec![0; 4096];
    assert_eq!(zero.recv(Source::Any, Tag::Exactly(7), &mut got).unwrap().len, 4096);
    assert!(gone.iter().all(|&byte| byte == 1), "the buffer was used after it was given back");
    drop(other.join().unwrap());
}

#[test]
fn a_send_that_a_panic_ends_is_over_when_its_buffer_is_given_back() {
    let (mut zero, one) = pair_with_panics();
    let (begun, other) = later(one, |one| {
        let mut got = vec![0; 1 << 20];
        one.recv(Source::Rank(0), Tag::Exactly(7), &mut got).unwrap();
        assert!(got.iter().all(|&byte| byte == 5), "the buffer was given back too early");
    });
    let mut bytes = vec![5; 1 << 20];
    assert!(unwinds(|| zero.send_op(SendOp::new(1, 7, &bytes).synchronous())));
    assert!(begun.load(Ordering::SeqCst), "no receive has matched it yet");
    bytes.fill(6);
    drop(other.join().unwrap());
}

#[test]
fn a_get_that_a_panic_ends_is_over_when_its_buffer_is_given_back() {
    let (mut zero, mut one) = pair_with_panics();
    let memory = vec![5_u8; 4096].leak();
    // SAFETY: the bytes live forever, and no other code uses them.
    let region = unsafe { one.expose(memory.as_mut_ptr(), 4096, Access::Read) }.unwrap();
    let key = one.remote_key(region).unwrap();
    let (begun, other) = later(one, |one| {
        one.recv(Source::Rank(0), Tag::Exactly(8), &mut []).unwrap();
    });
    let mut got = vec![0; 4096];
    assert!(unwinds(|| zero.get(&key, 0, &mut got)));
    assert!(begun.load(Ordering::SeqCst) && got.iter().all(|&byte| byte == 5), "the get has not ended");
    zero.send(1, 8, &[]).unwrap();
    drop(other.join().unwrap());
}

#[test]
fn a_scope_that_a_panic_ends_gives_back_every_buffer() {
    let (mut zero, one) = pair_with_panics();
    let (unwound, other) = after(one, |one| {
        one.send(0, 7, &[5; 64]).unwrap();
        one.send(0, 8, &[5; 64]).unwrap();
    });
    let (mut first, mut second) = ([1; 64], [1; 64]);
    let (into, also) = (&mut first, &mut second);
    assert!(unwinds(|| {
        zero.scope(|scope| {
            scope.irecv(Source::Any, Tag::Exactly(7), into)?;
            scope.irecv(Source::Any, Tag::Exactly(8), also)?;
            scope.wait_all()
        })
    }));
    unwound.wait();
    for tag in [7, 8] {
        assert_eq!(zero.recv(Source::Any, Tag::Exactly(tag), &mut [0; 64]).unwrap().len, 64);
    }
    assert_eq!((first, second), ([1; 64], [1; 64]));
    drop(other.join().unwrap());
}

#[test]
fn an_agreement_that_a_panic_interrupts_continues_with_the_next_call() {
    let (mut zero, one) = pair_with_panics();
    let (unwound, other) = after(one, |one| assert_eq!(one.agree(0b110).unwrap().flags, 0b010));
    assert!(unwinds(|| zero.agree(0b011)));
    unwound.wait();
    assert_eq!(zero.agree(0).unwrap().flags, 0b010, "the flags of the first call count");
    drop(other.join().unwrap());
}

#[test]
fn a_panic_while_a_buffer_is_given_back_is_raised_by_the_next_call() {
    let (mut zero, mut one) = pair_with_panics();
    let bytes = vec![5; 1 << 20];
    // If one poll delivers both panics, they count as one. Then the test tries again.
    let raised = (0..100).any(|_| {
        std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                let_it_wait();
                one.send_active(0, PANICS, b"", b"").unwrap();
                let_it_wait();
                one.send_active(0, PANICS, b"", b"").unwrap();
                one.recv(Source::Rank(0), Tag::Exactly(7), &mut vec![0; 1 << 20]).unwrap();
            });
            assert!(unwinds(|| zero.send_op(SendOp::new(1, 7, &bytes).synchronous())));
            other.join().unwrap();
            (0..1000).any(|_| unwinds(|| zero.progress()))
        })
    });
    assert!(raised, "no panic was raised");
}

#[test]
fn an_endpoint_remains_usable_after_a_panic_in_the_handler_of_its_own_message() {
    let mut alone = world(1, &Config::default()).pop().unwrap();
    alone.set_handler(PANICS, |_| panic!("a handler panics, as it should"));
    assert!(unwinds(|| {
        alone.send_active(0, PANICS, b"", b"").unwrap();
        (0..1000).for_each(|_| _ = alone.progress());
    }));
    alone.send(0, 1, b"still").unwrap();
    assert_eq!(alone.recv(Source::Any, Tag::Any, &mut [0; 8]).unwrap().len, 5);
}

#[test]
fn a_dropped_endpoint_is_a_failure_to_its_peers() {
    let mut all = world(3, &Config::default());
    let (two, one) = (all.pop().unwrap(), all.pop().unwrap());
    let mut zero = all.pop().unwrap();
    let barrier = Arc::new(Barrier::new(2));
    let ready = Arc::clone(&barrier);
    let panics = std::thread::spawn(move || {
        let _endpoint = one;
        ready.wait();
        panic!("a program panics, as it should");
    });
    barrier.wait();
    let error = zero.recv(Source::Any, Tag::Any, &mut [0; 8]).unwrap_err();
    assert!(matches!(error, Error::PeerFailed { rank: 1, failure: Failure::Dropped, .. }), "{error}");
    assert!(error.to_string().contains("rank 1") && error.to_string().contains("without closing it"));
    assert!(panics.join().is_err());
    zero.acknowledge_failures();
    two.close().unwrap();
    let error = zero.recv(Source::Rank(2), Tag::Any, &mut [0; 8]).unwrap_err();
    assert!(matches!(error, Error::PeerFailed { rank: 2, failure: Failure::Finished, .. }), "{error}");
}
