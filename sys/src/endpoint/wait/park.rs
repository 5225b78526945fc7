//! Falling asleep and rising: the sleep word's owner, and who pays for its fences.
//!
//! A sleeper pays for its first sleep with a fence that interrupts all other processes, some microseconds, and asks its
//! wakers in the same breath to fence from then on. As long as short sleeps follow each other, as with more processes
//! than cores, they cost no more than the wakers' fences; after a long sleep, or traffic without any, the request is
//! taken back.

use std::time::{Duration, Instant};

use nemesia_core::shared::sleep::{Payer, Sleep};

use super::spin::{SHORT_SLEEP, SpinPolicy};
use crate::config::Config;
use crate::endpoint::counters::WaitCounters;
use crate::os::{HeavyFence, WaitResult, Watch, futex_wait};
use crate::shm::{Oversubscription, OwnSleep};

/// Looks at the clock without a sleep, each after some tens of packets or polls, before wakers are asked for no more
/// fences.
const POLLS_WITHOUT_SLEEP: u32 = 8;

/// What waiting needs of the operating system.
#[derive(Debug)]
pub(in crate::endpoint) struct Waiter {
    pub(in crate::endpoint) sleep: OwnSleep,
    pub(in crate::endpoint) watch: Watch,
    pub(in crate::endpoint) fence: HeavyFence,
    pub(in crate::endpoint) counters: WaitCounters,
    pub(super) spin_policy: SpinPolicy,
    /// Who pays for the fences of sleeps.
    payer: Payer,
    /// Looks at the clock since the wakers were last asked to pay.
    polls: u32,
    /// A sleep is announced.
    announced: bool,
}

impl Waiter {
    /// See [`SpinPolicy::polls`].
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
        let (counters, spin_policy) = (WaitCounters::default(), SpinPolicy::new(load, config.spin));
        Self {
            sleep,
            watch,
            fence,
            counters,
            spin_policy,
            payer: Payer::default(),
            polls: 0,
            announced: false,
        }
    }

    /// The process of a peer, if it can be named.
    pub(in crate::endpoint) fn pid(&self, peer: usize) -> Option<i32> {
        self.watch.pid(peer)
    }

    /// Closes the connection to a peer: the peer sees our end. Whether it was open.
    pub(in crate::endpoint) fn release(&mut self, peer: usize) -> bool {
        self.watch.remove(peer).is_some()
    }

    /// Tells the peers that we leave, having finished or not.
    pub(in crate::endpoint) fn say_goodbye(&self, finished: bool) {
        if finished { self.watch.send_goodbyes() } else { self.watch.send_dropped() }
    }

    /// Says that we sleep, in this way, and for how many messages; returns the sequence to wait on. Look for work
    /// before waiting.
    pub(in crate::endpoint) fn announce(&mut self, how: Sleep, lacks: u32) -> u32 {
        self.announced = true;
        let request = if self.fence.is_expedited() { Payer::Wakers } else { Payer::Sleeper };
        let sequence = self.sleep.announce_for(how, lacks, request);
        // Whatever we were told of the others' fences: a waker without one counts on ours, unless it was asked for one
        // of its own before. A failure costs at most the bounded sleep.
        if self.payer == Payer::Sleeper && self.fence.issue() {
            self.payer = request;
        }
        self.polls = 0;
        sequence
    }

    /// Takes back what was announced. The wakers go on paying, as the next sleep may follow soon.
    pub(in crate::endpoint) fn unpark(&mut self) {
        self.announced = false;
        self.sleep.unpark(self.payer);
    }

    /// After a sleep: whoever slept for long may not sleep again soon.
    pub(super) fn unpark_after(&mut self, slept: Slept) {
        if !slept.woken || slept.took >= SHORT_SLEEP {
            self.payer = Payer::Sleeper;
        }
        self.unpark();
        self.counters.sleeps += 1;
        self.counters.sleeps_woken += u64::from(slept.woken);
        self.counters.slept_ns += slept.took.as_nanos() as u64;
    }

    /// From time to time: asks the wakers for no more fences when that has been of no use for a while.
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

/// A sleep that was announced. It needs nothing of the endpoint.
pub(in crate::endpoint) struct Parker {
    /// It stays mapped though another thread may drop the endpoint meanwhile.
    word: OwnSleep,
    sequence: u32,
    longest: Duration,
}

/// How a sleep was.
#[derive(Clone, Copy)]
pub(in crate::endpoint) struct Slept {
    /// Somebody woke us.
    pub(in crate::endpoint) woken: bool,
    pub(super) took: Duration,
}

impl Parker {
    pub(super) fn new(word: OwnSleep, sequence: u32, longest: Duration) -> Self {
        Self { word, sequence, longest }
    }

    /// Sleeps until somebody wakes us.
    pub(in crate::endpoint) fn sleep(&self) -> Slept {
        let begun = Instant::now();
        let result = futex_wait(self.word.futex(), self.sequence, Some(self.longest));
        Slept { woken: result != WaitResult::TimedOut, took: begun.elapsed() }
    }
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
        endpoint.waiter.unpark_after(Slept { woken, took });
    }

    /// Whether a sender that looks at the word finds more to do than nothing.
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
        assert!(!asks(&zero), "it slept for long");
        slept(&mut zero, true, Duration::ZERO);
        slept(&mut zero, false, Duration::ZERO);
        assert!(!asks(&zero), "nobody woke it");
    }

    #[test]
    fn wakers_are_asked_no_longer_once_nobody_sleeps() {
        let (mut zero, _one) = pair(&Config::default());
        slept(&mut zero, true, Duration::ZERO);
        (0..POLLS_WITHOUT_SLEEP).for_each(|_| zero.waiter.take_back_request());
        assert!(!asks(&zero));
        // Never from under a sleep, such as that of another thread.
        slept(&mut zero, true, Duration::ZERO);
        zero.waiter.announce(Sleep::Event, 1);
        (0..2 * POLLS_WITHOUT_SLEEP).for_each(|_| zero.waiter.take_back_request());
        assert_eq!(wake(&zero), Waking::Asleep(Sleep::Event));
    }
}
