//! The run: the unit in which the [adaptive selector](super::AdaptiveSelector) measures.
//!
//! A run consists of items (messages, packets) of one class that follow each other and are processed by one
//! alternative. Its cost is its time, without idle times, for each unit of work. It is over when its planned
//! amount is done, or when it has taken as much time as that amount takes by the preferred alternative: so a
//! slow alternative gets no more time than a fast one. A run is *spoiled* if it contains other work: it then
//! counts as a miss. The caller decides what follows each other, and at which moments it reads the clock.
#![forbid(unsafe_code)]

use super::{AdaptiveSelector, Plan, TrialBudget};

/// A run of items of a class `C`. Costs are in 1/`SCALE` ticks for each unit of work.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run<C, const SCALE: u64> {
    pub(crate) class: C,
    plan: Plan,
    since: u64,
    /// The work of the run's items that were started, and of those that are done.
    begun: u64,
    done: u64,
    /// The work of another alternative that was done meanwhile.
    beside: u64,
    spoiled: bool,
}

impl<C: Copy, const SCALE: u64> Run<C, SCALE> {
    /// Returns a run that starts now.
    pub(crate) const fn start(class: C, plan: Plan, now: u64) -> Self {
        Self { class, plan, since: now, begun: 0, done: 0, beside: 0, spoiled: false }
    }

    /// Returns the run's alternative.
    pub(crate) const fn option(&self) -> u8 {
        self.plan.option
    }

    /// Starts an item, and returns its alternative. It belongs to the run unless the whole planned amount was
    /// started before.
    pub(crate) const fn begin(&mut self, amount: u64) -> u8 {
        if self.begun >= self.plan.amount {
            return self.plan.beside;
        }
        self.begun = self.begun.saturating_add(amount);
        self.plan.option
    }

    /// Returns whether all items that were started move by the run's alternative.
    pub(crate) const fn is_uniform(&self) -> bool {
        self.plan.option == self.plan.beside
    }

    /// Returns whether the run is over.
    pub(crate) const fn is_over(&self, now: u64) -> bool {
        self.done >= self.plan.amount
            || self.done > 0 && now.saturating_sub(self.since) >= self.plan.worth / SCALE
    }

    /// Returns the planned work that is not done.
    pub(crate) const fn left(&self) -> u64 {
        self.plan.amount.saturating_sub(self.done)
    }

    /// Returns whether work of the run is done.
    pub(crate) const fn has_work(&self) -> bool {
        self.done > 0
    }

    /// Records that an item is done.
    pub(crate) const fn end(&mut self, amount: u64) {
        self.done = self.done.saturating_add(amount);
    }

    /// Records that an item of another alternative is done, which does not belong to the run.
    pub(crate) const fn end_beside(&mut self, amount: u64) {
        self.beside = self.beside.saturating_add(amount);
    }

    /// Excludes idle time.
    pub(crate) const fn pause(&mut self, time: u64) {
        self.since = self.since.saturating_add(time);
    }

    /// Starts the measurement anew: what was done so far does not belong to the run.
    pub(crate) const fn restart(&mut self, now: u64) {
        (self.since, self.done, self.beside) = (now, 0, 0);
    }

    /// Excludes the run from the measurement.
    pub(crate) const fn spoil(&mut self) {
        self.spoiled = true;
    }

    /// Returns whether the run is excluded.
    pub(crate) const fn is_spoiled(&self) -> bool {
        self.spoiled
    }

    /// Ends the run at time `end`. Records its cost, or that it has none.
    pub(crate) fn close<const N: usize, const LONGEST: u16>(
        self,
        end: u64,
        selector: &mut AdaptiveSelector<N, LONGEST>,
        budget: &mut TrialBudget,
    ) {
        if self.spoiled || self.done == 0 {
            return selector.miss(self.plan.option);
        }
        let time = end.saturating_sub(self.since).saturating_mul(SCALE);
        let beside = selector.typical(self.plan.beside).saturating_mul(self.beside);
        // Work of two alternatives may overlap in time. The cost is then at least the average.
        let average = time / self.done.saturating_add(self.beside);
        let cost = (time.saturating_sub(beside) / self.done).max(average);
        selector.record(self.plan.option, cost.clamp(1, u32::MAX.into()) as u32, self.done, budget);
    }
}
