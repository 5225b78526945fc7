//! How long to spin, and when to give the core away: learned from what came of it.
//!
//! Somebody who waits polls, and after [`SpinPolicy::polls`] polls in vain lets others have the core (`sched_yield`);
//! after a while without effect it sleeps. Nothing says for sure whether a peer waits for our core, but two things
//! tell:
//!
//! - a yield that takes longer than the call itself has handed the core to somebody. With peers on our core this is
//!   the quickest way to hear from them, so we yield after almost every poll from then on. A yield that comes back at
//!   once doubles the polls before the next;
//! - a sleep that soon ends was hardly worth its price, and one that lasts was: the spin before the next one doubles,
//!   or is halved. A spin during which somebody took the core from us by force is halved as well.
//!
//! Yielding needs no call of the sender's and no fence, but it does not reach everybody: to the kernel the processes of
//! another session, such as each of those that Hydra starts, are another group, which gets its share and not our turn.
//! There, and when all others sleep, yields come back at once, and in a crowd we soon sleep.

use std::time::{Duration, Instant};

use nemesia_core::sync::FutexWord;

use crate::os::futex_wake;
use crate::shm::Oversubscription;

/// Polls between two yields while yields hand the core over.
const FEWEST_POLLS: u32 = 2;
/// The same while they do not, when each process can have a core.
const MOST_POLLS: u32 = 1024;
/// Polls in vain before a sleep when each process can have a core: the peer is at work on another one.
const LONGEST_SPIN: u32 = 20_000;
/// The least that is learned.
const SHORTEST_SPIN: u32 = 256;
/// Polls in vain before a sleep when there are more processes than cores, unless yields hand the core over: about as
/// long as it takes to be woken when yields reach the others, and hardly any when not.
const SPIN_TOGETHER: u32 = 256;
const SPIN_APART: u32 = 32;
/// Polls between two yields when yields reach the others: none of them is kept waiting.
const MOST_POLLS_TOGETHER: u32 = 8;
/// Sleeps after which yields are tried again.
const RETRY: u32 = 64;
/// Yields in vain before a sleep. They cost about what falling asleep and being woken costs.
const MOST_YIELDS: u32 = 64;
/// A sleep shorter than this would have cost less as a spin.
pub(super) const SHORT_SLEEP: Duration = Duration::from_millis(1);
/// Polls do not take so long, unless somebody takes the core from us.
const FORCED: Duration = Duration::from_micros(500);

/// What is known of spinning here.
#[derive(Debug)]
pub(super) struct SpinPolicy {
    /// Polls before something else is done.
    polls: u32,
    /// What they may grow to.
    most_polls: u32,
    /// Polls before a sleep.
    spin: u32,
    /// What they may grow to.
    longest_spin: u32,
    /// The caller has fixed the polls before a sleep.
    fixed: bool,
    /// Sleeps since yields were last tried.
    untried: u32,
    /// What a yield takes that hands nothing over.
    call: Duration,
}

/// What one wait has tried since something came.
#[derive(Debug)]
pub(super) struct FailedPolls {
    /// Polls, since the core was last handed over.
    spun: u32,
    /// Yields that handed the core over.
    yields: u32,
    /// When the clock was last looked at, since the core was last given away.
    liveness_checked: Option<Instant>,
}

impl FailedPolls {
    pub(super) const NONE: Self = Self { spun: 0, yields: 0, liveness_checked: None };
}

/// What to do after polls in vain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    Poll,
    /// [`give_way`], then [`SpinPolicy::learn_yield`].
    Yield,
    Sleep,
}

impl SpinPolicy {
    /// By what is known at start: how crowded the processors are, and whether the caller has fixed the spin.
    pub(super) fn new(load: Oversubscription, fixed: Option<u32>) -> Self {
        let (polls, most_polls, spin) = match (fixed, load) {
            // A poll that found something is followed by a look at what came of it, not by a sleep.
            (Some(polls), _) => (polls.max(1), MOST_POLLS, polls),
            (None, Oversubscription::Room) => (MOST_POLLS, MOST_POLLS, LONGEST_SPIN),
            (None, Oversubscription::Together) => (FEWEST_POLLS, MOST_POLLS_TOGETHER, SPIN_TOGETHER),
            (None, Oversubscription::Apart) => (FEWEST_POLLS, MOST_POLLS, SPIN_APART),
        };
        let most_polls = most_polls.min(spin).max(1);
        let (fixed, call) = (fixed.is_some(), empty_call());
        Self { polls, most_polls, spin, longest_spin: spin, fixed, untried: 0, call }
    }

    /// Polls in vain before [`SpinPolicy::rest`].
    #[inline(always)]
    pub(super) fn polls(&self) -> u32 {
        self.polls
    }

    /// After so many polls in vain.
    pub(super) fn rest(&mut self, failed_polls: &mut FailedPolls, polls: u32) -> Next {
        failed_polls.spun = failed_polls.spun.saturating_add(polls);
        let over = self.fixed || failed_polls.spun >= self.spin || failed_polls.yields >= MOST_YIELDS;
        if over { Next::Sleep } else { Next::Yield }
    }

    /// After a yield that took so long.
    pub(super) fn learn_yield(&mut self, failed_polls: &mut FailedPolls, took: Duration) {
        failed_polls.liveness_checked = None;
        self.call = self.call.min(took);
        if took > 2 * self.call {
            self.polls = FEWEST_POLLS;
            failed_polls.spun = 0;
            failed_polls.yields += 1;
        } else {
            self.polls = (2 * self.polls).min(self.most_polls);
        }
    }

    /// After a sleep of this length, that somebody ended or nobody.
    pub(super) fn learn_sleep(&mut self, failed_polls: &mut FailedPolls, slept: Duration, woken: bool) {
        *failed_polls = FailedPolls::NONE;
        if self.fixed {
            return;
        }
        self.untried += 1;
        if self.untried >= RETRY {
            (self.untried, self.polls) = (0, FEWEST_POLLS);
        }
        let shortest = SHORTEST_SPIN.min(self.longest_spin);
        let longer = woken && slept < SHORT_SLEEP;
        let spin = if longer { 2 * self.spin } else { self.spin / 2 };
        self.spin = spin.clamp(shortest, self.longest_spin);
        if !woken {
            // Nothing has changed: one look, and on with the sleep.
            failed_polls.spun = self.spin;
        }
    }

    /// At a look at the clock, after a few polls in vain.
    pub(super) fn learn_time(&mut self, failed_polls: &mut FailedPolls, now: Instant) {
        let since = failed_polls.liveness_checked.replace(now);
        let forced = since.is_some_and(|since| now.duration_since(since) >= FORCED);
        if forced && !self.fixed {
            self.spin = (self.spin / 2).max(SPIN_APART.min(self.longest_spin));
        }
    }
}

/// Lets others have the core, and tells how long they had it.
pub(in crate::endpoint) fn give_way() -> Duration {
    let begun = Instant::now();
    std::thread::yield_now();
    begun.elapsed()
}

/// What a system call takes that does nothing.
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
    use super::*;

    const AT_ONCE: Duration = Duration::from_nanos(200);
    const HANDED_OVER: Duration = Duration::from_micros(2);
    const LONG: Duration = Duration::from_millis(20);

    fn spin_policy(load: Oversubscription) -> SpinPolicy {
        SpinPolicy { call: AT_ONCE, ..SpinPolicy::new(load, None) }
    }

    /// Polls in vain until it is time to sleep, when every yield takes so long.
    fn polls_before_sleep(spin_policy: &mut SpinPolicy, yields: Duration) -> u32 {
        let (mut failed_polls, mut polls) = (FailedPolls::NONE, 0);
        loop {
            polls += spin_policy.polls();
            if spin_policy.rest(&mut failed_polls, spin_policy.polls()) == Next::Sleep {
                return polls;
            }
            spin_policy.learn_yield(&mut failed_polls, yields);
        }
    }

    #[test]
    fn a_fixed_spin_is_neither_interrupted_nor_learned() {
        let (mut spin_policy, mut failed_polls) =
            (SpinPolicy::new(Oversubscription::Apart, Some(500)), FailedPolls::NONE);
        assert_eq!(spin_policy.polls(), 500);
        assert_eq!(spin_policy.rest(&mut failed_polls, 500), Next::Sleep);
        spin_policy.learn_sleep(&mut failed_polls, LONG, false);
        spin_policy.learn_time(&mut failed_polls, Instant::now() + LONG);
        assert_eq!((spin_policy.polls(), spin_policy.rest(&mut failed_polls, 500)), (500, Next::Sleep));
        assert_eq!(SpinPolicy::new(Oversubscription::Room, Some(0)).rest(&mut failed_polls, 1), Next::Sleep);
    }

    #[test]
    fn a_process_that_never_spins_still_polls_once() {
        assert!(SpinPolicy::new(Oversubscription::Room, Some(0)).polls() > 0);
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
    fn whoever_waits_for_our_core_gets_it_soon_even_if_nobody_was_expected() {
        let (mut spin_policy, mut failed_polls) = (spin_policy(Oversubscription::Room), FailedPolls::NONE);
        assert_eq!(spin_policy.polls(), MOST_POLLS);
        spin_policy.learn_yield(&mut failed_polls, HANDED_OVER);
        assert_eq!(spin_policy.polls(), FEWEST_POLLS);
        for _ in 0..20 {
            spin_policy.learn_yield(&mut failed_polls, AT_ONCE);
        }
        assert_eq!(spin_policy.polls(), MOST_POLLS);
    }

    /// However many yields have come back at once: a peer may want our core by now.
    #[test]
    fn whom_yields_reach_offers_them_the_core_in_every_spin() {
        let mut spin_policy = spin_policy(Oversubscription::Together);
        for _ in 0..100 {
            let mut failed_polls = FailedPolls::NONE;
            polls_before_sleep(&mut spin_policy, AT_ONCE);
            spin_policy.learn_sleep(&mut failed_polls, HANDED_OVER, true);
            assert_eq!(spin_policy.rest(&mut failed_polls, spin_policy.polls()), Next::Yield);
            assert!(spin_policy.polls() <= MOST_POLLS_TOGETHER);
        }
    }

    #[test]
    fn yields_that_were_of_no_use_are_tried_again() {
        let (mut spin_policy, mut failed_polls) = (spin_policy(Oversubscription::Apart), FailedPolls::NONE);
        polls_before_sleep(&mut spin_policy, AT_ONCE);
        assert_eq!(spin_policy.rest(&mut failed_polls, spin_policy.polls()), Next::Sleep);
        for _ in 0..RETRY {
            spin_policy.learn_sleep(&mut failed_polls, HANDED_OVER, true);
        }
        assert_eq!(spin_policy.rest(&mut failed_polls, spin_policy.polls()), Next::Yield);
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
    fn a_wakeup_without_work_is_followed_by_one_poll_and_the_next_sleep() {
        let (mut spin_policy, mut failed_polls) = (spin_policy(Oversubscription::Room), FailedPolls::NONE);
        spin_policy.learn_sleep(&mut failed_polls, LONG, false);
        assert_eq!(spin_policy.rest(&mut failed_polls, 1), Next::Sleep);
    }

    #[test]
    fn a_core_that_is_taken_by_force_shortens_the_spin() {
        let (mut spin_policy, mut failed_polls, now) =
            (spin_policy(Oversubscription::Room), FailedPolls::NONE, Instant::now());
        spin_policy.learn_time(&mut failed_polls, now);
        spin_policy.learn_time(&mut failed_polls, now + AT_ONCE);
        assert_eq!(spin_policy.spin, LONGEST_SPIN);
        spin_policy.learn_time(&mut failed_polls, now + LONG);
        assert_eq!(spin_policy.spin, LONGEST_SPIN / 2);
    }
}
