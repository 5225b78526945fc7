//! The spin policy: how long to spin and when to yield the core, learned from earlier results.
//!
//! A process that waits polls. After [`SpinPolicy::polls`] failed polls it yields the core (`sched_yield`), and
//! after a while without effect it sleeps. Nothing shows with certainty whether a peer waits for the same core,
//! but two observations help:
//!
//! - If a yield takes longer than the call itself, another thread has had the core. With peers on the same
//!   core, a yield is then the quickest way to get their messages, so the process yields after almost every
//!   poll from then on. A yield that returns at once doubles the number of polls before the next.
//! - A sleep that ends soon was hardly worth its cost, and the spin before the next sleep doubles. A long sleep
//!   was worth it, and the spin is halved. A spin during which the kernel preempted the process is halved as
//!   well.
//!
//! A yield needs neither a call of the sender's nor a fence, but it does not reach all processes. The kernel
//! puts the processes of another session into another scheduling group, for instance each process that Hydra
//! starts. That group gets its own share of the core, and a yield does not pass the core to it. There, and when
//! all other processes sleep, yields return at once. With more processes than cores the process then sleeps
//! soon.
//!
//! A yield of a millisecond or more has passed the core to a thread that computes. That thread is no peer that
//! waits, because such a peer yields or sleeps soon. As long as it computes, each yield takes its whole time
//! slice, and a sleep is better: the kernel runs a process that is woken before threads that compute all the
//! time. The process then sleeps after few polls, and tries yields again after some sleeps.
//!
//! The policy only decides: its caller reads the clock, yields and sleeps.
#![forbid(unsafe_code)]

use core::time::Duration;

/// The number of polls between two yields while yields pass the core on.
const FEWEST_POLLS: u32 = 2;
/// The number of polls between two yields while they do not, if each process can have a core.
const MOST_POLLS: u32 = 1024;
/// The number of failed polls before a sleep if each process can have a core: the peer is busy on another one.
const LONGEST_SPIN: u32 = 20_000;
/// The shortest spin that is learned.
const SHORTEST_SPIN: u32 = 256;
/// The number of failed polls before a sleep if there are more processes than cores, unless yields pass the
/// core on. If yields reach the others, this takes about as long as a wake-up. If not, it is hardly any.
const SPIN_TOGETHER: u32 = 256;
const SPIN_APART: u32 = 32;
/// The number of polls between two yields if yields reach the others, so that none of them waits long.
const MOST_POLLS_TOGETHER: u32 = 8;
/// The number of sleeps after which yields are tried again.
const RETRY: u32 = 64;
/// The number of failed yields before a sleep. They cost about as much as a sleep and its wake-up.
const MOST_YIELDS: u32 = 64;
/// A yield that takes more than so many times as long as the call has passed the core on. Two switches of threads take
/// longer, and a call whose code has left the caches takes less.
const HANDED_ON: u32 = 4;
/// A sleep that is shorter than this would have cost less as a spin.
pub const SHORT_SLEEP: Duration = Duration::from_millis(1);
/// A yield that takes this long has passed the core to a thread that computes.
const LONG_YIELD: Duration = SHORT_SLEEP;
/// Polls take less than this, unless the kernel preempts the process.
const FORCED: Duration = Duration::from_micros(500);

/// The way in which the processes of a world share their processors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Oversubscription {
    /// Each process can have a processor of its own.
    Room,
    /// There are more processes than processors. A yield lets the peers run.
    Together,
    /// There are more processes than processors. A yield is not known to let all peers run.
    Apart,
}

/// The learned state of spinning.
#[derive(Debug)]
pub struct SpinPolicy {
    /// The number of polls before another action.
    polls: u32,
    /// The upper limit of `polls`.
    most_polls: u32,
    /// The number of polls before a sleep.
    spin: u32,
    /// The upper limit of `spin`.
    longest_spin: u32,
    /// Whether the caller has fixed the number of polls before a sleep.
    fixed: bool,
    /// Whether there are more processes than cores.
    oversubscribed: bool,
    /// The number of sleeps since yields were last tried.
    untried: u32,
    /// Whether the last yield passed the core to a thread that computes: the process sleeps instead.
    contended: bool,
    /// The time of a yield that passes the core to no other thread.
    call: Duration,
}

/// The failed attempts of one wait since something came.
#[derive(Debug)]
pub struct FailedPolls {
    /// The number of polls since the core was last passed on.
    spun: u32,
    /// The number of yields that passed the core on.
    yields: u32,
    /// The time when the clock was last read, since the core was last yielded.
    clock_read: Option<Duration>,
}

impl FailedPolls {
    /// No failed attempts.
    pub const NONE: Self = Self { spun: 0, yields: 0, clock_read: None };
}

/// The action after failed polls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpinAction {
    /// Another poll.
    Poll,
    /// A yield of the core, then [`SpinPolicy::learn_yield`].
    Yield,
    /// A sleep, then [`SpinPolicy::learn_sleep`].
    Sleep,
}

impl SpinPolicy {
    /// Makes a policy from the facts at start: the oversubscription of the processors, the spin that the caller
    /// has fixed, and the time of a system call that does nothing.
    pub fn new(load: Oversubscription, fixed: Option<u32>, empty_call: Duration) -> Self {
        let (polls, most_polls, spin) = match (fixed, load) {
            // A poll that found something is followed by a check of its result, not by a sleep.
            (Some(polls), _) => (polls.max(1), MOST_POLLS, polls),
            (None, Oversubscription::Room) => (MOST_POLLS, MOST_POLLS, LONGEST_SPIN),
            (None, Oversubscription::Together) => (FEWEST_POLLS, MOST_POLLS_TOGETHER, SPIN_TOGETHER),
            (None, Oversubscription::Apart) => (FEWEST_POLLS, MOST_POLLS, SPIN_APART),
        };
        let most_polls = most_polls.min(spin).max(1);
        let (fixed, call) = (fixed.is_some(), empty_call);
        let oversubscribed = load != Oversubscription::Room;
        Self {
            polls,
            most_polls,
            spin,
            longest_spin: spin,
            fixed,
            oversubscribed,
            untried: 0,
            contended: false,
            call,
        }
    }

    /// Adapts to another way in which the processes share their processors: peers have come or gone. What was learned
    /// of the time of a yield stays, and so does a spin that the caller has fixed.
    pub fn set_load(&mut self, load: Oversubscription) {
        if self.fixed {
            self.oversubscribed = load != Oversubscription::Room;
        } else {
            *self = Self::new(load, None, self.call);
        }
    }

    /// Returns whether calls that never wait yield the core, after [`SpinPolicy::polls`] failed polls in a row.
    pub const fn yields_between_calls(&self) -> bool {
        self.oversubscribed && !self.fixed
    }

    /// Returns the number of failed polls before [`SpinPolicy::rest`].
    #[inline(always)]
    pub fn polls(&self) -> u32 {
        self.polls
    }

    /// Returns the action after so many failed polls.
    pub fn rest(&mut self, failed_polls: &mut FailedPolls, polls: u32) -> SpinAction {
        failed_polls.spun = failed_polls.spun.saturating_add(polls);
        let spin = if self.contended { self.spin.min(SPIN_APART) } else { self.spin };
        if self.fixed || failed_polls.spun >= spin || failed_polls.yields >= MOST_YIELDS {
            SpinAction::Sleep
        } else if self.contended {
            SpinAction::Poll
        } else {
            SpinAction::Yield
        }
    }

    /// Learns from a yield that took this time.
    pub fn learn_yield(&mut self, failed_polls: &mut FailedPolls, took: Duration) {
        failed_polls.clock_read = None;
        self.call = self.call.min(took);
        self.contended = took >= LONG_YIELD;
        if took > HANDED_ON * self.call {
            self.polls = FEWEST_POLLS;
            failed_polls.spun = 0;
            failed_polls.yields += 1;
        } else {
            self.polls = (2 * self.polls).min(self.most_polls);
        }
    }

    /// Learns from a sleep of this length, which a wake-up or its time limit ended.
    pub fn learn_sleep(&mut self, failed_polls: &mut FailedPolls, slept: Duration, woken: bool) {
        *failed_polls = FailedPolls::NONE;
        if self.fixed {
            return;
        }
        self.untried += 1;
        if self.untried >= RETRY {
            (self.untried, self.polls, self.contended) = (0, FEWEST_POLLS, false);
        }
        let shortest = SHORTEST_SPIN.min(self.longest_spin);
        let longer = woken && slept < SHORT_SLEEP;
        let spin = if longer { 2 * self.spin } else { self.spin / 2 };
        self.spin = spin.clamp(shortest, self.longest_spin);
        if !woken {
            // Nothing has changed: one poll, then the next sleep.
            failed_polls.spun = self.spin;
        }
    }

    /// Learns from a reading of the clock, after a few failed polls. The time is measured from any start, and
    /// never decreases.
    pub fn learn_time(&mut self, failed_polls: &mut FailedPolls, now: Duration) {
        let since = failed_polls.clock_read.replace(now);
        let forced = since.is_some_and(|since| now.saturating_sub(since) >= FORCED);
        if forced && !self.fixed {
            self.spin = (self.spin / 2).max(SPIN_APART.min(self.longest_spin));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT_ONCE: Duration = Duration::from_nanos(200);
    const HANDED_OVER: Duration = Duration::from_micros(2);
    const LONG: Duration = Duration::from_millis(20);

    fn spin_policy(load: Oversubscription) -> SpinPolicy {
        SpinPolicy::new(load, None, AT_ONCE)
    }

    /// Returns the number of failed polls before a sleep if every yield takes this time.
    fn polls_before_sleep(spin_policy: &mut SpinPolicy, yields: Duration) -> u32 {
        let (mut failed_polls, mut polls) = (FailedPolls::NONE, 0);
        loop {
            polls += spin_policy.polls();
            match spin_policy.rest(&mut failed_polls, spin_policy.polls()) {
                SpinAction::Sleep => return polls,
                SpinAction::Yield => spin_policy.learn_yield(&mut failed_polls, yields),
                SpinAction::Poll => {}
            }
        }
    }

    #[test]
    fn a_fixed_spin_is_neither_interrupted_nor_learned() {
        let (mut spin_policy, mut failed_polls) =
            (SpinPolicy::new(Oversubscription::Apart, Some(500), AT_ONCE), FailedPolls::NONE);
        assert_eq!(spin_policy.polls(), 500);
        assert_eq!(spin_policy.rest(&mut failed_polls, 500), SpinAction::Sleep);
        spin_policy.learn_sleep(&mut failed_polls, LONG, false);
        spin_policy.learn_time(&mut failed_polls, LONG);
        assert_eq!((spin_policy.polls(), spin_policy.rest(&mut failed_polls, 500)), (500, SpinAction::Sleep));
        assert_eq!(
            SpinPolicy::new(Oversubscription::Room, Some(0), AT_ONCE).rest(&mut failed_polls, 1),
            SpinAction::Sleep
        );
    }

    #[test]
    fn the_spin_adapts_to_peers_that_come_and_go() {
        let mut policy = spin_policy(Oversubscription::Room);
        policy.set_load(Oversubscription::Apart);
        assert!(policy.yields_between_calls());
        assert!(polls_before_sleep(&mut policy, AT_ONCE) <= 2 * SPIN_APART);
        policy.set_load(Oversubscription::Room);
        assert!(!policy.yields_between_calls());
        assert!(polls_before_sleep(&mut policy, AT_ONCE) >= LONGEST_SPIN);
        let mut fixed = SpinPolicy::new(Oversubscription::Room, Some(500), AT_ONCE);
        fixed.set_load(Oversubscription::Apart);
        let mut failed_polls = FailedPolls::NONE;
        assert_eq!((fixed.polls(), fixed.rest(&mut failed_polls, 500)), (500, SpinAction::Sleep));
    }

    #[test]
    fn a_process_that_never_spins_still_polls_once() {
        assert!(SpinPolicy::new(Oversubscription::Room, Some(0), AT_ONCE).polls() > 0);
    }

    #[test]
    fn oversubscribed_processes_sleep_soon_unless_yields_hand_the_core_over() {
        assert!(polls_before_sleep(&mut spin_policy(Oversubscription::Apart), AT_ONCE) <= 2 * SPIN_APART);
        assert!(
            polls_before_sleep(&mut spin_policy(Oversubscription::Together), AT_ONCE) <= 2 * SPIN_TOGETHER
        );
        for load in [Oversubscription::Apart, Oversubscription::Together] {
            assert!(polls_before_sleep(&mut spin_policy(load), HANDED_OVER) >= MOST_YIELDS);
        }
        assert!(polls_before_sleep(&mut spin_policy(Oversubscription::Room), AT_ONCE) >= LONGEST_SPIN);
    }

    #[test]
    fn a_peer_that_waits_for_this_core_gets_it_soon_even_without_known_oversubscription() {
        let (mut spin_policy, mut failed_polls) = (spin_policy(Oversubscription::Room), FailedPolls::NONE);
        assert_eq!(spin_policy.polls(), MOST_POLLS);
        spin_policy.learn_yield(&mut failed_polls, HANDED_OVER);
        assert_eq!(spin_policy.polls(), FEWEST_POLLS);
        for _ in 0..20 {
            spin_policy.learn_yield(&mut failed_polls, AT_ONCE);
        }
        assert_eq!(spin_policy.polls(), MOST_POLLS);
    }

    /// The earlier yields may have returned at once, but by now a peer may want this core.
    #[test]
    fn peers_that_yields_reach_get_the_core_in_every_spin() {
        let mut spin_policy = spin_policy(Oversubscription::Together);
        for _ in 0..100 {
            let mut failed_polls = FailedPolls::NONE;
            polls_before_sleep(&mut spin_policy, AT_ONCE);
            spin_policy.learn_sleep(&mut failed_polls, HANDED_OVER, true);
            assert_eq!(spin_policy.rest(&mut failed_polls, spin_policy.polls()), SpinAction::Yield);
            assert!(spin_policy.polls() <= MOST_POLLS_TOGETHER);
        }
    }

    #[test]
    fn yields_without_effect_are_tried_again() {
        let (mut spin_policy, mut failed_polls) = (spin_policy(Oversubscription::Apart), FailedPolls::NONE);
        polls_before_sleep(&mut spin_policy, AT_ONCE);
        assert_eq!(spin_policy.rest(&mut failed_polls, spin_policy.polls()), SpinAction::Sleep);
        for _ in 0..RETRY {
            spin_policy.learn_sleep(&mut failed_polls, HANDED_OVER, true);
        }
        assert_eq!(spin_policy.rest(&mut failed_polls, spin_policy.polls()), SpinAction::Yield);
    }

    #[test]
    fn a_process_beside_threads_that_compute_sleeps_instead_of_yielding() {
        for load in [Oversubscription::Apart, Oversubscription::Together, Oversubscription::Room] {
            let mut spin_policy = spin_policy(load);
            assert!(polls_before_sleep(&mut spin_policy, LONG) <= MOST_POLLS + 2 * SPIN_APART, "one yield");
            for _ in 1..RETRY {
                let mut failed_polls = FailedPolls::NONE;
                let mut polls = 0;
                let action = loop {
                    polls += spin_policy.polls();
                    match spin_policy.rest(&mut failed_polls, spin_policy.polls()) {
                        SpinAction::Poll => {}
                        action => break action,
                    }
                };
                assert!(action == SpinAction::Sleep && polls <= 2 * SPIN_APART, "{action:?} after {polls}");
                spin_policy.learn_sleep(&mut failed_polls, HANDED_OVER, true);
            }
            // The threads may have ended by now.
            let mut failed_polls = FailedPolls::NONE;
            spin_policy.learn_sleep(&mut failed_polls, HANDED_OVER, true);
            let polls = spin_policy.polls();
            assert_eq!(spin_policy.rest(&mut failed_polls, polls), SpinAction::Yield, "{load:?}");
            spin_policy.learn_yield(&mut failed_polls, HANDED_OVER);
            assert_eq!(spin_policy.rest(&mut failed_polls, polls), SpinAction::Yield, "{load:?}");
        }
    }

    #[test]
    fn long_sleeps_shorten_the_spin_and_short_ones_lengthen_it() {
        let (mut spin_policy, mut failed_polls) = (spin_policy(Oversubscription::Room), FailedPolls::NONE);
        for _ in 0..20 {
            spin_policy.learn_sleep(&mut failed_polls, LONG, true);
        }
        assert_eq!(spin_policy.spin, SHORTEST_SPIN);
        for _ in 0..20 {
            spin_policy.learn_sleep(&mut failed_polls, HANDED_OVER, true);
        }
        assert_eq!(spin_policy.spin, LONGEST_SPIN);
    }

    #[test]
    fn a_sleep_without_a_wake_up_is_followed_by_one_poll_and_the_next_sleep() {
        let (mut spin_policy, mut failed_polls) = (spin_policy(Oversubscription::Room), FailedPolls::NONE);
        spin_policy.learn_sleep(&mut failed_polls, LONG, false);
        assert_eq!(spin_policy.rest(&mut failed_polls, 1), SpinAction::Sleep);
    }

    #[test]
    fn preemption_shortens_the_spin() {
        let (mut spin_policy, mut failed_polls, now) =
            (spin_policy(Oversubscription::Room), FailedPolls::NONE, AT_ONCE);
        spin_policy.learn_time(&mut failed_polls, now);
        spin_policy.learn_time(&mut failed_polls, now + AT_ONCE);
        assert_eq!(spin_policy.spin, LONGEST_SPIN);
        spin_policy.learn_time(&mut failed_polls, now + LONG);
        assert_eq!(spin_policy.spin, LONGEST_SPIN / 2);
    }
}
