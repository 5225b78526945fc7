//! Callers that poll and never wait: they yield the core if there are more processes than cores, and never sleep.

use crate::endpoint::WaitCounters;
use crate::endpoint::tests::{pair, world};
use crate::os::numa;
use crate::{Config, Endpoint, Source, Tag};

/// The failed polls of each test.
const POLLS: u64 = 2000;
/// The most failed polls between two yields of processes that share cores.
const MOST_POLLS: u64 = 32;

/// Runs `work` with two endpoints that share one processor.
fn on_one_core(config: Config, work: impl FnOnce(Endpoint, Endpoint) + Send) {
    std::thread::scope(|scope| {
        let bound = scope.spawn(move || {
            let cpu = numa::allowed_cpus().unwrap()[0];
            numa::tests::pin_to_cpu(cpu);
            // Their threads inherit the binding.
            let (zero, one) = pair(&config);
            work(zero, one);
        });
        bound.join().unwrap();
    });
}

fn waits(endpoint: &Endpoint) -> WaitCounters {
    endpoint.counters().waits
}

/// Polls for a message that never comes, in each way. Returns the yields of each.
fn poll_for_nothing(endpoint: &mut Endpoint, from: usize) -> [u64; 3] {
    let (from, tag) = (Source::Rank(from), Tag::Exactly(9));
    // SAFETY: the buffer is empty.
    let request = unsafe { endpoint.irecv(from, tag, std::ptr::dangling_mut(), 0) }.unwrap();
    let calls: [&dyn Fn(&mut Endpoint) -> bool; 3] = [
        &|endpoint| endpoint.test(request).unwrap().is_some(),
        &|endpoint| endpoint.iprobe(from, tag).unwrap().is_some(),
        &|endpoint| endpoint.progress() > 0,
    ];
    let yields = calls.map(|call| {
        let before = waits(endpoint).yields;
        assert!((0..POLLS).all(|_| !call(endpoint)));
        waits(endpoint).yields - before
    });
    let WaitCounters { sleeps, armed, .. } = waits(endpoint);
    assert_eq!((sleeps, armed), (0, 0), "a call that never waits has slept");
    assert!(endpoint.cancel(request));
    yields
}

#[test]
fn failed_tests_probes_and_progress_yield_the_core_if_there_are_more_processes_than_cores() {
    on_one_core(Config::default(), |mut zero, _one| {
        // Packets of the opening do not count as failed polls.
        while zero.progress() > 0 {}
        let yields = poll_for_nothing(&mut zero, 1);
        assert!(yields.iter().all(|&yields| yields >= POLLS / MOST_POLLS - 1), "{yields:?}");
    });
}

#[test]
fn failed_tests_probes_and_progress_never_yield_with_a_core_for_each_process() {
    let mut alone = world(1, &Config::default()).pop().unwrap();
    assert_eq!(poll_for_nothing(&mut alone, 0), [0; 3]);
}

/// The number of polls before a sleep is then the caller's choice, and includes no yields.
#[test]
fn failed_tests_probes_and_progress_never_yield_with_a_fixed_spin() {
    on_one_core(Config::default().spin(50), |mut zero, _one| {
        assert_eq!(poll_for_nothing(&mut zero, 1), [0; 3]);
    });
}

#[test]
fn tests_that_find_their_message_never_yield_the_core() {
    on_one_core(Config::default(), |mut zero, mut one| {
        while zero.progress() > 0 {}
        let before = waits(&zero).yields;
        for number in 0..POLLS {
            one.send(0, 1, &number.to_le_bytes()).unwrap();
            let mut got = [0; 8];
            // SAFETY: the buffer lives, unused, until the request is complete.
            let request =
                unsafe { zero.irecv(Source::Rank(1), Tag::Exactly(1), got.as_mut_ptr(), 8) }.unwrap();
            // At most one poll fails before each message.
            zero.progress();
            assert!(zero.test(request).unwrap().is_some());
            assert_eq!(u64::from_le_bytes(got), number);
        }
        assert_eq!(waits(&zero).yields, before);
    });
}

#[test]
fn tests_of_a_shared_endpoint_yield_the_core_with_the_lock_free_or_held() {
    on_one_core(Config::default(), |zero, _one| {
        let zero = zero.into_shared();
        let (from, tag) = (Source::Rank(1), Tag::Exactly(9));
        // SAFETY: the buffer is empty.
        let posted = zero.with(|it| unsafe { it.irecv(from, tag, std::ptr::dangling_mut(), 0) });
        let request = posted.unwrap().unwrap();
        let yields = || zero.with(|it| waits(it).yields).unwrap();
        assert!((0..POLLS).all(|_| zero.test(request).unwrap().is_none()));
        let unlocked = yields();
        assert!(unlocked >= POLLS / MOST_POLLS - 1, "{unlocked}");
        zero.with(|it| assert!((0..POLLS).all(|_| it.test(request).unwrap().is_none()))).unwrap();
        // Without the release of the lock, every second yield is left out.
        assert!(yields() - unlocked >= POLLS / MOST_POLLS / 2 - 1, "{unlocked}");
        assert!(zero.with(|it| it.cancel(request)).unwrap());
    });
}
