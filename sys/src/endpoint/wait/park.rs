//! Parking and unparking: the owner's side of the sleep word, and the cost of its fences.
//!
//! The first sleep costs the sleeper a fence that interrupts all other processes, some microseconds. With it,
//! the sleeper requests that its wakers fence from then on. Short sleeps that follow each other, as with more
//! processes than cores, then cost only the wakers' fences. After a long sleep, or traffic without sleeps, the
//! sleeper takes the request back.

use std::time::{Duration, Instant};

use nemesia_core::shared::sleep::{Payer, Sleep};
use nemesia_core::spin::{Oversubscription, SHORT_SLEEP, SpinPolicy};
use nemesia_core::sync::FutexWord;

use crate::config::Config;
use crate::endpoint::WaitCounters;
use crate::os::{EventSet, HeavyFence, WaitResult, Watch, futex_wait, futex_wake};
use crate::shm::OwnSleep;

/// The failed polls of calls that never wait.
#[derive(Debug, Default)]
pub(super) struct FailedCalls {
    /// The number of failed polls since something came, or since the last yield.
    pub(super) polls: u32,
    /// Whether several threads use the endpoint. A yield then has to wait until the lock is free.
    pub(super) shared: bool,
    /// Whether a yield waits for that.
    pub(super) due: bool,
}

/// The number of clock readings without a sleep after which wakers are asked for no more fences. Each reading
/// follows some tens of packets or polls.
const POLLS_WITHOUT_SLEEP: u32 = 8;

/// The objects of the operating system that a wait needs.
#[derive(Debug)]
pub(in crate::endpoint) struct Waiter {
    pub(in crate::endpoint) sleep: OwnSleep,
    pub(in crate::endpoint) watch: Watch,
    pub(in crate::endpoint) fence: HeavyFence,
    pub(in crate::endpoint) counters: WaitCounters,
    pub(super) spin_policy: SpinPolicy,
    /// The start of the time that the spin policy is passed.
    started: Instant,
    pub(super) failed_calls: FailedCalls,
    /// The side that issues the fences of sleeps.
    payer: Payer,
    /// The number of clock readings since the wakers were last asked for fences.
    polls: u32,
    /// Whether a sleep is announced.
    announced: bool,
    /// The number of times that a wait made progress outside of its own polls, or found that peers are gone.
    pub(in crate::endpoint) changes: u64,
}

impl Waiter {
    /// Returns the number of polls before a yield or a sleep; see [`SpinPolicy::polls`].
    #[inline(always)]
    pub(in crate::endpoint) fn polls(&self) -> u32 {
        self.spin_policy.polls()
    }

    pub(in crate::endpoint) fn new(
        config: &Config,
        load: Oversubscription,
        sleep: OwnSleep,
        watch: Watch,
        fence: HeavyFence,
    ) -> Self {
        let (counters, spin_policy) =
            (WaitCounters::default(), SpinPolicy::new(load, config.spin, empty_call()));
        Self {
            sleep,
            watch,
            fence,
            counters,
            spin_policy,
            started: Instant::now(),
            failed_calls: FailedCalls::default(),
            payer: Payer::default(),
            polls: 0,
            announced: false,
            changes: 0,
        }
    }

    /// Adapts the spin to another load of the processors.
    pub(in crate::endpoint) fn set_load(&mut self, load: Oversubscription) {
        self.spin_policy.set_load(load);
    }

    /// Returns the process of a peer, if this process can name it.
    pub(in crate::endpoint) fn pid(&self, peer: usize) -> Option<i32> {
        self.watch.pid(peer)
    }

    /// Returns the processes of the peers on this machine; 0 for one that this process cannot name.
    pub(in crate::endpoint) fn neighbours(&self) -> impl ExactSizeIterator<Item = i32> {
        self.watch.pids()
    }

    /// Closes the connection to a peer, which sees its end. Returns whether it was open.
    pub(in crate::endpoint) fn release(&mut self, peer: usize) -> bool {
        self.watch.remove(peer).is_some()
    }

    /// Notifies the peers that this process leaves, and whether it has finished.
    pub(in crate::endpoint) fn say_goodbye(&self, finished: bool) {
        if finished { self.watch.send_goodbyes() } else { self.watch.send_dropped() }
    }

    /// Announces a sleep of this kind, and the number of messages that it lacks. Returns the sequence to wait
    /// for. The caller polls once more before it waits.
    pub(in crate::endpoint) fn announce(&mut self, how: Sleep, lacks: u32) -> u32 {
        self.announced = true;
        let request = if self.fence.is_expedited() { Payer::Wakers } else { Payer::Sleeper };
        let sequence = self.sleep.announce_for(how, lacks, request);
        // A waker without a fence relies on this one, whatever is known of the others' fences, unless it was
        // asked for its own before. A failure costs at most the bounded sleep.
        if self.payer == Payer::Sleeper && self.fence.issue() {
            self.payer = request;
        }
        self.polls = 0;
        sequence
    }

    /// Takes back the announcement. The wakers continue to fence, because the next sleep may follow soon.
    pub(in crate::endpoint) fn unpark(&mut self) {
        self.announced = false;
        self.sleep.unpark(self.payer);
    }

    /// Returns the time since the start, for the spin policy.
    pub(super) fn since_start(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.started)
    }

    /// Records a sleep. After a long one, the next sleep may be far away.
    pub(super) fn unpark_after(&mut self, slept: Slept) {
        if !slept.woken || slept.took >= SHORT_SLEEP {
            self.payer = Payer::Sleeper;
        }
        self.unpark();
        self.counters.sleeps += 1;
        self.counters.sleeps_woken += u64::from(slept.woken);
        self.counters.slept_ns += slept.took.as_nanos() as u64;
    }

    /// Asks the wakers for no more fences when these were of no use for a while.
    pub(super) fn take_back_request(&mut self) {
        if self.payer == Payer::Wakers && !self.announced {
            self.polls += 1;
            if self.polls >= POLLS_WITHOUT_SLEEP {
                self.payer = Payer::Sleeper;
                self.unpark();
            }
        }
    }
}

/// A sleep that was announced. It needs no access to the endpoint.
pub(in crate::endpoint) struct Parker {
    /// The word stays mapped even if another thread drops the endpoint meanwhile.
    word: OwnSleep,
    sequence: u32,
    /// The descriptor to wait for, if peers wake this process by events.
    events: Option<EventSet>,
    longest: Duration,
}

/// The result of a sleep.
#[derive(Clone, Copy)]
pub(in crate::endpoint) struct Slept {
    /// Whether a peer or another thread ended it.
    pub(in crate::endpoint) woken: bool,
    /// Whether this process waited for events.
    pub(super) by_event: bool,
    pub(super) took: Duration,
}

impl Parker {
    pub(super) fn new(word: OwnSleep, sequence: u32, events: Option<EventSet>, longest: Duration) -> Self {
        Self { word, sequence, events, longest }
    }

    /// Sleeps until a peer or another thread wakes this one, or until the limit.
    pub(in crate::endpoint) fn sleep(&self) -> Slept {
        let begun = Instant::now();
        if let Some(events) = &self.events {
            let woken = events.wait(begun + self.longest);
            return Slept { woken, by_event: true, took: begun.elapsed() };
        }
        let result = futex_wait(self.word.futex(), self.sequence, Some(self.longest));
        Slept { woken: result != WaitResult::TimedOut, by_event: false, took: begun.elapsed() }
    }
}

/// Yields the core, and returns the time until the thread has it again.
pub(in crate::endpoint) fn give_way() -> Duration {
    let begun = Instant::now();
    std::thread::yield_now();
    begun.elapsed()
}

/// Returns the time of a system call that does nothing.
fn empty_call() -> Duration {
    let word = FutexWord::new(0);
    let call = || {
        let begun = Instant::now();
        futex_wake(&word, 1);
        begun.elapsed()
    };
    (0..8).map(|_| call()).min().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use nemesia_core::shared::sleep::{WakeReason, Waking};
    use nemesia_core::sync::FenceMode;

    use super::*;
    use crate::endpoint::Endpoint;
    use crate::endpoint::tests::pair;

    fn slept(endpoint: &mut Endpoint, woken: bool, took: Duration) {
        endpoint.waiter.announce(Sleep::Futex, 1);
        endpoint.waiter.unpark_after(Slept { woken, by_event: false, took });
    }

    /// Returns whether a sender that reads the word has to do more than nothing.
    fn asks(endpoint: &Endpoint) -> bool {
        endpoint.waiter.sleep.is_asleep(FenceMode::Asymmetric)
    }

    fn wake(endpoint: &Endpoint) -> Waking {
        endpoint.waiter.sleep.must_wake(FenceMode::Asymmetric, WakeReason::Other)
    }

    #[test]
    fn wakers_are_asked_for_fences_after_short_sleeps_only() {
        let (mut zero, _one) = pair(&Config::default());
        let asked = zero.waiter.fence.is_expedited();
        slept(&mut zero, true, Duration::ZERO);
        assert_eq!((asks(&zero), wake(&zero)), (asked, Waking::Awake));
        slept(&mut zero, true, SHORT_SLEEP);
        assert!(!asks(&zero), "the sleep was long");
        slept(&mut zero, true, Duration::ZERO);
        slept(&mut zero, false, Duration::ZERO);
        assert!(!asks(&zero), "the sleep had no wake-up");
    }

    #[test]
    fn wakers_are_asked_for_no_fences_once_no_process_sleeps() {
        let (mut zero, _one) = pair(&Config::default());
        slept(&mut zero, true, Duration::ZERO);
        (0..POLLS_WITHOUT_SLEEP).for_each(|_| zero.waiter.take_back_request());
        assert!(!asks(&zero));
        // A request is never taken back during a sleep, for instance one of another thread.
        slept(&mut zero, true, Duration::ZERO);
        zero.waiter.announce(Sleep::Event, 1);
        (0..2 * POLLS_WITHOUT_SLEEP).for_each(|_| zero.waiter.take_back_request());
        assert_eq!(wake(&zero), Waking::Asleep(Sleep::Event));
    }
}
