//! One-sided operations and active messages of several threads.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use super::{EVER, THREADS, shared_pair};
use crate::{
    Access, Comparison, CompleteAt, Config, Error, KEY_BYTES, Reduction, Refusal, Region, RemoteKey,
    SharedEndpoint,
};

/// The bytes of each thread's area, and the number of its operations.
const AREA: usize = 20_000;
const ROUNDS: u64 = if cfg!(nemesia_race) { 15 } else { 60 };
/// The values that all threads use, after the areas.
const COUNTER: u64 = THREADS * AREA as u64;
const SUM: u64 = COUNTER + 8;
const LOCK: u64 = COUNTER + 16;
const GUARDED: u64 = COUNTER + 24;
const BYTES: usize = COUNTER as usize + 32;

/// Exposes the memory of an endpoint: allocated, or its own.
fn region_of(endpoint: &SharedEndpoint, allocated: bool) -> Region {
    let expose = |endpoint: &mut crate::LockedEndpoint<'_>| {
        if allocated {
            return endpoint.allocate(BYTES, Access::ReadWrite);
        }
        let memory = vec![0_u64; BYTES / 8].leak();
        // SAFETY: the bytes live for ever, and nothing else uses them.
        unsafe { endpoint.expose(memory.as_mut_ptr().cast(), BYTES, Access::ReadWrite) }
    };
    endpoint.with(expose).unwrap().unwrap()
}

/// Returns the key of a region of rank `of`, as another process gets it.
fn key_of(endpoint: &SharedEndpoint, region: Region, of: usize) -> RemoteKey {
    let bytes: [u8; KEY_BYTES] = endpoint.with(|it| it.remote_key(region)).unwrap().unwrap().to_bytes();
    RemoteKey::from_bytes(of, &bytes).unwrap()
}

/// Uses the other endpoint's memory from one thread.
fn use_memory(endpoint: &SharedEndpoint, key: &RemoteKey, me: u64) {
    let base = me * AREA as u64;
    for round in 0..ROUNDS {
        let len = [1, 8, 100, 3000, AREA][(round % 5) as usize];
        let bytes: Vec<u8> = (0..len as u64).map(|at| (at.wrapping_mul(7) ^ round ^ me << 3) as u8).collect();
        match round % 3 {
            0 => endpoint.put(key, base, &bytes).unwrap(),
            1 => endpoint.put_as(key, base, &bytes, false, CompleteAt::Target).unwrap(),
            _ => endpoint.put_notify(key, base, &bytes).unwrap(),
        }
        let mut back = vec![0; len];
        endpoint.get(key, base, &mut back).unwrap();
        assert!(back == bytes, "thread {me}, round {round}");
        assert!(endpoint.fetch_add(key, COUNTER, 1_u64).unwrap() < 2 * THREADS * ROUNDS);
        endpoint.accumulate(key, SUM, Reduction::Sum, &[round]).unwrap();
        // The threads exclude each other.
        let begun = Instant::now();
        while endpoint.compare_swap(key, LOCK, 0_u32, 1).unwrap() != 0 {
            assert!(begun.elapsed() < EVER, "thread {me}, round {round}: the lock stays taken");
            std::thread::yield_now();
        }
        let guarded: u16 = endpoint.fetch(key, GUARDED, Reduction::Nothing, 0).unwrap();
        endpoint.swap(key, GUARDED, guarded + 1).unwrap();
        assert_eq!(endpoint.swap_if(key, LOCK, Comparison::Less, 0_u32, 0).unwrap(), 1);
    }
    let mut old = [9_u64; 2];
    endpoint.fetch_accumulate(key, COUNTER, Reduction::Nothing, &[], &mut old).unwrap();
    assert!(old[0] >= ROUNDS);
    endpoint.flush(key.rank()).unwrap();
}

/// Counts the end of a thread, also if it panics: the other threads wait for the count.
struct CountEnd<'a>(&'a AtomicU64);

impl Drop for CountEnd<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// Makes progress until the count is reached: of threads that have ended, for instance.
fn serve(endpoint: &SharedEndpoint, count: &AtomicU64, all: u64) {
    while count.load(Ordering::Relaxed) < all {
        endpoint.with(|it| it.progress()).unwrap();
        std::thread::yield_now();
    }
}

fn threads_use_memory(config: &Config, allocated: bool) {
    let (zero, one) = shared_pair(config);
    let regions = [region_of(&zero, allocated), region_of(&one, allocated)];
    let keys = [key_of(&zero, regions[0], 0), key_of(&one, regions[1], 1)];
    let ended = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for me in 0..THREADS {
            for (endpoint, key) in [(&zero, keys[1]), (&one, keys[0])] {
                let (endpoint, ended) = (endpoint.clone(), &ended);
                threads.push(scope.spawn(move || {
                    let _end = CountEnd(ended);
                    use_memory(&endpoint, &key, me);
                }));
            }
        }
        for endpoint in [&zero, &one] {
            let (endpoint, ended) = (endpoint.clone(), &ended);
            threads.push(scope.spawn(move || serve(&endpoint, ended, 2 * THREADS)));
        }
        // The threads are joined one by one, because ThreadSanitizer does not see how a scope waits.
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
    for (endpoint, region) in [(&zero, regions[0]), (&one, regions[1])] {
        let mut values = [0; 32];
        endpoint.with(|it| it.read_region(region, COUNTER as usize, &mut values)).unwrap().unwrap();
        let value = |at: usize| u64::from_le_bytes(values[at..at + 8].try_into().unwrap());
        let each = THREADS * ROUNDS;
        assert_eq!([value(0), value(8)], [each, THREADS * ROUNDS * (ROUNDS - 1) / 2]);
        assert_eq!([value(16), value(24)], [0, each], "an unlocked lock, and what it guards");
        let notified = endpoint.with(|it| it.notifications(region)).unwrap().unwrap();
        assert_eq!(notified, THREADS * (ROUNDS / 3));
    }
    let other = std::thread::spawn(move || one.close());
    zero.close().unwrap();
    other.join().unwrap().unwrap();
}

#[test]
fn threads_use_mapped_memory_of_the_other_endpoint() {
    threads_use_memory(&Config::default(), true);
}

#[test]
fn threads_use_memory_of_the_other_endpoint_in_packets() {
    threads_use_memory(&Config::default(), false);
}

#[test]
fn threads_that_only_sleep_use_memory_through_tiny_structures() {
    threads_use_memory(&Config::default().spin(0).cells(4).cell_bytes(256).fastbox_slots(4), false);
}

#[test]
fn a_refusal_is_an_error_of_the_thread_whose_operation_was_refused() {
    let (zero, one) = shared_pair(&Config::default());
    let region = region_of(&one, false);
    let (good, forged) = (key_of(&one, region, 1), RemoteKey::new(1, 12));
    let ended = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|me| {
                let (zero, ended) = (zero.clone(), &ended);
                scope.spawn(move || {
                    let _end = CountEnd(ended);
                    for _ in 0..20 {
                        let key = if me % 2 == 0 { &good } else { &forged };
                        let put = zero.put_as(key, 8 * me, &[me as u8; 8], false, CompleteAt::Target);
                        let refused =
                            matches!(put, Err(Error::Refused { rank: 1, refusal: Refusal::Key, count: 1 }));
                        assert!(if me % 2 == 0 { put.is_ok() } else { refused }, "{put:?}");
                    }
                })
            })
            .collect();
        serve(&one, &ended, THREADS);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
    zero.flush_all().unwrap();
}

#[test]
fn a_thread_waits_for_the_notification_of_a_put() {
    let (zero, one) = shared_pair(&Config::default());
    let region = region_of(&one, false);
    let key = key_of(&one, region, 1);
    let waiting = std::thread::spawn({
        let one = one.clone();
        move || {
            one.wait_notified(region, 3)?;
            let mut bytes = [0; 8];
            one.with(|it| it.read_region(region, 16, &mut bytes))??;
            Ok::<_, Error>(bytes)
        }
    });
    super::let_them_sleep();
    for number in 0..3 {
        zero.put_notify(&key, 8 * number, &[number as u8 + 1; 8]).unwrap();
    }
    assert_eq!(waiting.join().unwrap().unwrap(), [3; 8]);
}

#[test]
fn threads_send_active_messages_which_are_handled_once_and_in_order() {
    let (zero, one) = shared_pair(&Config::default());
    let handled = Arc::new(AtomicU64::new(0));
    let last = Arc::new(Mutex::new([0_u64; THREADS as usize]));
    let (count, order) = (Arc::clone(&handled), Arc::clone(&last));
    one.set_handler(5, move |message| {
        let me = usize::from(message.header()[0]);
        let number = u64::from_le_bytes(message.payload()[..8].try_into().unwrap());
        let mut order = order.lock().unwrap();
        // Not asserted here: without this endpoint the senders would wait for ever.
        if number == order[me] + 1 {
            order[me] = number;
        }
        count.fetch_add(1, Ordering::Relaxed);
    })
    .unwrap();
    let receiver = std::thread::spawn({
        let (one, handled) = (one.clone(), Arc::clone(&handled));
        move || serve(&one, &handled, THREADS * ROUNDS)
    });
    let threads: Vec<_> = (0..THREADS)
        .map(|me| {
            let zero = zero.clone();
            std::thread::spawn(move || {
                for number in 1..=ROUNDS {
                    let mut payload = vec![0; [8, 200, 30_000][(number % 3) as usize]];
                    payload[..8].copy_from_slice(&number.to_le_bytes());
                    zero.send_active(1, 5, &[me as u8], &payload).unwrap();
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    receiver.join().unwrap();
    assert_eq!(*last.lock().unwrap(), [ROUNDS; THREADS as usize], "the last message in order");
}
