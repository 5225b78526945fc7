//! Calls that poll and never wait. If there are more processes than cores, a caller that only polls would keep its
//! core from the peers whose messages it needs. Such a caller then yields the core after as many failed polls as a
//! wait does, and learns from each yield ([`SpinPolicy`](nemesia_core::spin::SpinPolicy)). It never sleeps.

use std::time::Duration;

use nemesia_core::spin::FailedPolls;

use super::park::give_way;
use crate::endpoint::Endpoint;

impl Endpoint {
    /// Counts a poll of a call that never waits. It found so many packets.
    #[inline(always)]
    pub(in crate::endpoint) fn count_call(&mut self, packets: usize) {
        if packets > 0 {
            return self.call_succeeded();
        }
        self.waiter.failed_calls.polls += 1;
        if self.waiter.failed_calls.polls >= self.waiter.spin_policy.polls() {
            self.rest_between_calls();
        }
    }

    /// Records that a call that never waits has found what it looked for.
    #[inline(always)]
    pub(in crate::endpoint) const fn call_succeeded(&mut self) {
        self.waiter.failed_calls.polls = 0;
    }

    /// Yields the core, or has it yielded when the lock is free, if a wait would yield it now.
    #[cold]
    #[inline(never)]
    fn rest_between_calls(&mut self) {
        let waiter = &mut self.waiter;
        waiter.failed_calls.polls = 0;
        if !waiter.spin_policy.yields_between_calls() {
            return;
        }
        // A thread that polls again without giving up the lock cannot wait for that.
        if waiter.failed_calls.shared && !std::mem::replace(&mut waiter.failed_calls.due, true) {
            return;
        }
        waiter.failed_calls.due = false;
        self.learn_call_yield(give_way());
    }

    /// Returns whether the caller has to yield the core as soon as it has released the lock.
    #[inline(always)]
    pub(in crate::endpoint) const fn is_yield_due(&mut self) -> bool {
        std::mem::replace(&mut self.waiter.failed_calls.due, false)
    }

    /// Records a yield of this length between two calls.
    pub(in crate::endpoint) fn learn_call_yield(&mut self, took: Duration) {
        self.waiter.counters.yields += 1;
        // The count of yields ends a spin, and these calls have no spin to end.
        let mut uncounted = FailedPolls::NONE;
        self.waiter.spin_policy.learn_yield(&mut uncounted, took);
    }

    /// Has later yields between calls wait for the release of the lock.
    pub(in crate::endpoint) const fn share_calls(&mut self) {
        self.waiter.failed_calls.shared = true;
    }
}

#[cfg(test)]
mod tests;
