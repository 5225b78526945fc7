//! Operations as futures.

use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Wake, Waker};
use std::time::Duration;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::endpoint::tests::{pair, world};
use crate::{AsyncEndpoint, AsyncTransfer, Config, Error, Source, Tag};

const LENS: [usize; 6] = [0, 8, 1000, 8192, 100_000, 1 << 20];

fn bytes(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 31 + seed) as u8).collect()
}

/// Exchanges messages of every length with the peer, all at once. The receives are in the opposite order.
async fn exchange(endpoint: AsyncEndpoint, peer: usize) -> AsyncEndpoint {
    let sends: Vec<AsyncTransfer> =
        LENS.iter().map(|len| endpoint.send(peer, *len as u64, bytes(*len, peer))).collect();
    let receive =
        |len: &usize| endpoint.recv(Source::Rank(peer), Tag::Exactly(*len as u64), vec![0; len + 1]);
    let receives: Vec<(usize, AsyncTransfer)> = LENS.iter().rev().map(|len| (*len, receive(len))).collect();
    for (len, receive) in receives {
        let (status, buf) = receive.await;
        assert_eq!((status.unwrap().len, buf.len()), (len, len + 1));
        assert_eq!(buf[..len], bytes(len, 1 - peer));
    }
    for (send, len) in sends.into_iter().zip(LENS) {
        let (sent, buf) = send.await;
        sent.unwrap();
        assert_eq!(buf, bytes(len, peer), "the buffer comes back");
    }
    endpoint
}

#[test]
fn futures_own_their_buffers_and_give_them_back() {
    let (zero, one) = pair(&Config::default());
    let other = std::thread::spawn(move || {
        let endpoint = one.into_async();
        endpoint.block_on(exchange(endpoint.clone(), 0)).unwrap()
    });
    let endpoint = zero.into_async();
    endpoint.block_on(exchange(endpoint.clone(), 1)).unwrap();
    let other = other.join().unwrap();
    let closing = std::thread::spawn(move || other.close().unwrap());
    endpoint.close().unwrap();
    closing.join().unwrap();
}

/// Runs the exchange as a task of tokio, beside the driver.
fn in_tokio(endpoint: AsyncEndpoint, peer: usize) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let fd = endpoint.event_fd().unwrap();
        // SAFETY: the descriptor stays the same, and stays open until it is dropped.
        let fd = unsafe { AsyncFd::<OwnedFd>::register_with_interest(fd, Interest::READABLE) }.unwrap();
        let driver = tokio::spawn({
            let endpoint = endpoint.clone();
            async move {
                let readable = || async {
                    fd.readable().await?.clear_ready();
                    Ok(())
                };
                endpoint.drive(readable).await
            }
        });
        tokio::spawn(exchange(endpoint.clone(), peer)).await.unwrap();
        endpoint.close().unwrap();
        // The driver returns because the endpoint is closed.
        driver.await.unwrap().unwrap();
    });
}

#[test]
fn tokio_runs_the_futures_and_the_driver() {
    let (zero, one) = pair(&Config::default());
    let other = std::thread::spawn(move || in_tokio(one.into_async(), 0));
    in_tokio(zero.into_async(), 1);
    other.join().unwrap();
}

#[test]
fn a_thread_drives_for_futures_of_another_executor() {
    let endpoint = world(1, &Config::default()).pop().unwrap().into_async();
    let driver = std::thread::spawn({
        let endpoint = endpoint.clone();
        move || endpoint.run()
    });
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let received = runtime.block_on(async {
        let receive = endpoint.recv(Source::Any, Tag::Exactly(1), vec![0; 4]);
        let task = tokio::spawn(receive);
        endpoint.in_context(3).send(0, 1, b"3333".to_vec()).await.0.unwrap();
        endpoint.send(0, 1, b"0000".to_vec()).await.0.unwrap();
        let (status, buf) = endpoint.in_context(3).recv(Source::Any, Tag::Any, vec![0; 4]).await;
        assert_eq!((status.unwrap().len, &buf[..]), (4, &b"3333"[..]));
        task.await.unwrap()
    });
    assert_eq!((received.0.unwrap().tag, &received.1[..]), (1, &b"0000"[..]));
    endpoint.close().unwrap();
    // The driver returns because the endpoint is closed.
    driver.join().unwrap().unwrap();
}

#[test]
fn a_dropped_receive_is_withdrawn_and_takes_no_message() {
    let endpoint = world(1, &Config::default()).pop().unwrap().into_async();
    drop(endpoint.recv(Source::Any, Tag::Exactly(1), vec![0; 4]));
    let buf = endpoint.block_on(async {
        endpoint.send(0, 1, b"kept".to_vec()).await.0.unwrap();
        endpoint.recv(Source::Any, Tag::Exactly(1), vec![0; 4]).await.1
    });
    assert_eq!(buf.unwrap(), b"kept");
    assert_eq!(endpoint.shared.locked(|state| state.used_slots()).unwrap(), 0);
    endpoint.close().unwrap();
}

#[test]
fn the_buffer_of_a_dropped_send_stays_until_the_message_has_left() {
    let (zero, mut one) = pair(&Config::default());
    let endpoint = zero.into_async();
    let expected = bytes(4 << 20, 5);
    drop(endpoint.send(1, 1, expected.clone()));
    assert_eq!(endpoint.shared.locked(|state| state.used_slots()).unwrap(), 1);
    // Memory that is freed would be used again here.
    let others: Vec<Vec<u8>> = (0..4).map(|_| vec![0xee; 4 << 20]).collect();
    let receiver = std::thread::spawn(move || {
        let mut got = vec![0; 4 << 20];
        one.recv(Source::Rank(0), Tag::Exactly(1), &mut got).unwrap();
        one.send(0, 2, b"").unwrap();
        (got, one)
    });
    endpoint.block_on(endpoint.recv(Source::Rank(1), Tag::Exactly(2), Vec::new())).unwrap().0.unwrap();
    let (got, _one) = receiver.join().unwrap();
    assert!(got == expected && others.len() == 4);
    // The driver frees the slot once the receiver has acknowledged the message, which came before its answer.
    endpoint.block_on(turns()).unwrap();
    assert_eq!(endpoint.shared.locked(|state| state.used_slots()).unwrap(), 0);
}

/// Lets the driver make a turn.
async fn turns() {
    for _ in 0..3 {
        super::drive::yield_once().await;
    }
}

#[test]
fn closing_ends_receives_and_gives_back_their_buffers() {
    let endpoint = world(1, &Config::default()).pop().unwrap().into_async();
    let clone = endpoint.clone();
    let receive = endpoint.recv(Source::Any, Tag::Any, vec![7; 3]);
    endpoint.close().unwrap();
    assert!(matches!(clone.with(|_| ()), Err(Error::Stale)));
    let (outcome, buf) = output_now(receive);
    assert!(matches!(outcome, Err(Error::Cancelled)), "{outcome:?}");
    assert_eq!(buf, [7; 3]);
    let (outcome, buf) = output_now(clone.send(0, 1, vec![1]));
    assert!(matches!(outcome, Err(Error::Stale)) && buf == [1]);
    assert!(matches!(clone.close(), Err(Error::Stale)));
}

/// Returns the output of a future that is ready.
fn output_now<F: Future>(future: F) -> F::Output {
    let mut task = std::task::Context::from_waker(Waker::noop());
    match std::pin::pin!(future).poll(&mut task) {
        std::task::Poll::Ready(output) => output,
        std::task::Poll::Pending => panic!("it is not ready"),
    }
}

#[test]
fn an_endpoint_returns_to_blocking_use_without_its_operations() {
    let endpoint = world(1, &Config::default()).pop().unwrap().into_async();
    let receive = endpoint.recv(Source::Any, Tag::Any, vec![7; 3]);
    let mut blocking = endpoint.into_endpoint().unwrap();
    blocking.send(0, 1, b"now").unwrap();
    let mut got = [0; 3];
    blocking.recv(Source::Any, Tag::Any, &mut got).unwrap();
    assert_eq!(&got, b"now");
    let (outcome, buf) = output_now(receive);
    assert!(matches!(outcome, Err(Error::Cancelled)) && buf == [7; 3], "{outcome:?}");
}

#[test]
fn a_start_in_another_thread_ends_the_sleep_of_the_driver() {
    let endpoint = world(1, &Config::default()).pop().unwrap().into_async();
    let clone = endpoint.clone();
    // Without a wake-up the test passes only after a tick of the clock; what it checks is that nothing is lost.
    let sender = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(20));
        output_now(clone.send(0, 1, b"late".to_vec())).0.unwrap();
    });
    let (status, buf) = endpoint.block_on(endpoint.recv(Source::Any, Tag::Any, vec![0; 4])).unwrap();
    assert_eq!((status.unwrap().len, &buf[..]), (4, &b"late"[..]));
    sender.join().unwrap();
}

#[test]
fn a_failed_peer_ends_the_future() {
    let (zero, one) = pair(&Config::default());
    let endpoint = zero.into_async();
    let receive = endpoint.recv(Source::Rank(1), Tag::Any, vec![0; 3]);
    drop(one);
    let (outcome, buf) = endpoint.block_on(receive).unwrap();
    assert!(matches!(outcome, Err(Error::PeerFailed { rank: 1, .. })), "{outcome:?}");
    assert_eq!(buf.len(), 3);
}

#[test]
fn a_handler_that_panics_while_the_endpoint_is_closed_leaves_no_future_pending() {
    let (mut zero, mut one) = pair(&Config::default());
    zero.set_handler(3, |_| panic!("a handler panics, as it should"));
    let endpoint = zero.into_async();
    let clone = endpoint.clone();
    let mut receive = endpoint.recv(Source::Any, Tag::Any, vec![7; 3]);
    // The end waits for it, and makes progress meanwhile.
    let send = endpoint.send(1, 1, vec![8; 4 << 20]);
    let woken = Arc::new(CountedWakes(AtomicUsize::new(0)));
    let waker = Waker::from(Arc::clone(&woken));
    assert!(Pin::new(&mut receive).poll(&mut std::task::Context::from_waker(&waker)).is_pending());
    one.send_active(0, 3, b"", b"").unwrap();
    assert!(catch_unwind(AssertUnwindSafe(|| endpoint.close())).is_err(), "the handler has run");
    assert_eq!(woken.0.load(Ordering::Relaxed), 1);
    let (outcome, buf) = output_now(receive);
    assert!(matches!(outcome, Err(Error::Cancelled)) && buf == [7; 3], "{outcome:?}");
    let (outcome, buf) = output_now(send);
    assert!(matches!(outcome, Err(Error::Cancelled)) && buf.len() == 4 << 20, "{outcome:?}");
    assert!(matches!(clone.with(|_| ()), Err(Error::Stale)));
}

/// Counts how often a task was woken.
struct CountedWakes(AtomicUsize);

impl Wake for CountedWakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}
