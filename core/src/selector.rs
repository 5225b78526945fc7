//! The adaptive selector: it selects the fastest of several alternatives for the same work, by trial.
//!
//! The caller measures the work in [runs](run) and reports the cost of each. First the alternative with which it starts
//! does three short runs, because the first runs of any work may be slow (new pages, cold caches). Each other
//! alternative does two, or one if it is clearly slower than another. The first one is the
//! *preferred* one until a trial shows another to be faster: short runs are too few to leave it. Then runs of
//! the preferred alternative go on until another is *tried*:
//!
//! - at once if it is known to be faster than the preferred one has become;
//! - else after an interval, each in rotation. The interval doubles while nothing changes.
//!
//! The first alternative that is left, after a few runs, is tried at once again, and longer: everything was new to it.
//! On one test machine a stream's first messages cost five times as much as later ones, and it was never tried again
//! for long enough.
//!
//! A trial consists of a few runs, of which the second cheapest counts, because a run in which the process lost its
//! core is not representative. If the other alternative was clearly faster, it becomes the preferred one.
//!
//! Trials cost time if the other alternative is slower. This loss is limited: a [`TrialBudget`] earns a small part of
//! all measured time, and each trial is as short as the budget requires, or waits. An alternative that is known to be
//! much slower is tried for one short run only.
#![forbid(unsafe_code)]

pub(crate) mod run;
pub(crate) mod turns;

/// Number of runs that are recorded for each alternative. The second lowest cost counts: only noise makes a run more
/// expensive, and on a busy machine it hits several runs in a row.
const SAMPLES: usize = 5;
/// Number of runs in which the alternative with which the selector starts is tested.
const TESTS: usize = 3;
/// Runs of a trial. The first run is not recorded, because the cache contents left by the other alternative make it
/// more expensive.
const TRIAL: u8 = 4;
/// Runs of a trial of an alternative that is known to be faster.
const CONFIRMS: u8 = 2;
/// Runs of the trial of the alternative that is left first: in the first half it may still be slowed down as in its
/// first runs.
const DOUBTS: u8 = 2 * TRIAL;
/// If it costs more than this many thirds of the preferred alternative's cost after the first half, its trial ends. And
/// if it has cost more than this many times as much before, it is not tried again.
const DOUBTFUL: u64 = 4;
const HARDLY: u64 = 8;
/// Runs between two trials at first. The interval doubles while nothing changes, up to a limit.
const FIRST_WAIT: u16 = 8;
/// Fraction of the interval after which a suggested alternative may be tried.
const SOON: u16 = 8;
/// Number of runs in a row at twice the earlier cost after which another alternative is tried soon. A trial of the
/// peer, which may cost this process as much, is shorter.
const CHANGED: u8 = 8;
/// The cost of another alternative must stay below this many sixteenths of the preferred alternative's cost. Half of a
/// ping-pong's time belongs to the other side, so half of the gain is invisible.
const BETTER: u64 = 15;
/// If a run of another alternative costs more than this many times the preferred alternative's cost, its trial ends at
/// once, and later trials consist of one short run.
const HOPELESS: u64 = 2;
/// A run that costs more than this many times the usual cost counts as if it cost as much: the rest is noise.
const WORST: u64 = 16;
/// Runs without a result after which an alternative counts as hopeless.
const MISSES: u8 = 3;
/// The budget earns this fraction of all measured time.
const EARNS: u64 = 24;

/// The costs of the last runs; 0 if there is none.
#[derive(Clone, Copy, Debug, Default)]
struct Costs([u32; SAMPLES]);

impl Costs {
    const NONE: Self = Self([0; SAMPLES]);

    /// Returns the costs of an alternative of which only this one counts.
    const fn only(cost: u32) -> Self {
        Self([cost; SAMPLES])
    }

    fn push(&mut self, cost: u32) {
        self.0.rotate_right(1);
        self.0[0] = cost;
    }

    const fn is_known(&self) -> bool {
        self.0[0] != 0
    }

    /// Returns whether as many runs were recorded as a test needs.
    const fn is_tested(&self) -> bool {
        self.0[TESTS - 1] != 0
    }

    /// Returns whether two runs were recorded.
    const fn is_confirmed(&self) -> bool {
        self.0[1] != 0
    }

    /// Returns the second lowest cost; the lower one of two; 0 if there is none.
    fn typical(&self) -> u64 {
        let mut sorted = self.0;
        sorted.sort_unstable();
        let missing = sorted.iter().filter(|cost| **cost == 0).count();
        let at = if missing + TESTS <= SAMPLES { missing + 1 } else { missing.min(SAMPLES - 1) };
        u64::from(sorted[at])
    }
}

/// The measured time that was not yet used up by trials, in units of cost times amount. A trial uses up [`EARNS`] times
/// what it loses. Several selectors share it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TrialBudget(u64);

impl TrialBudget {
    fn earn(&mut self, spent: u64) {
        self.0 = self.0.saturating_add(spent);
    }

    fn lose(&mut self, loss: u64) {
        self.0 = self.0.saturating_sub(loss.saturating_mul(EARNS));
    }

    const fn covers(self, loss: u64) -> bool {
        loss.saturating_mul(EARNS) <= self.0
    }

    /// Returns how often this loss is covered; `None` if there is no loss.
    const fn times(self, loss: u64) -> Option<u64> {
        (self.0 / EARNS).checked_div(loss)
    }
}

/// Amounts of work in a run, in rising order.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RunAmount {
    /// The amount of a first run, by which alternatives of which nothing is known are tested.
    pub(crate) first: u64,
    /// The least amount of a run of a trial.
    pub(crate) least: u64,
    /// The amount of a usual run, at least as much.
    pub(crate) full: u64,
}

/// The next run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    /// The alternative.
    pub(crate) option: u8,
    /// The amount of work after which the run is over.
    pub(crate) amount: u64,
    /// The cost times amount after which the run is over as well: that of the preferred alternative.
    pub(crate) worth: u64,
    /// The alternative for work that is started when the whole amount was started, but is not done.
    pub(crate) beside: u8,
}

/// The selector among `N` alternatives, numbered from 0. Another alternative is tried after at most `LONGEST` runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AdaptiveSelector<const N: usize, const LONGEST: u16> {
    preferred: u8,
    /// The alternative that is on trial, or will be next.
    other: u8,
    /// Remaining runs of the trial.
    trial: u8,
    /// Whether no run of the trial was recorded yet, so the next one replaces the older costs.
    is_fresh: bool,
    /// If the costs are inherited: the factor, as a power of two, by which a run may cost more, plus one.
    inherited: u8,
    /// First runs of an alternative that had no result.
    missed: u8,
    /// Runs in a row of the preferred alternative that cost much more than before.
    changed: u8,
    /// Whether an alternative was left before.
    has_left: bool,
    /// Runs until the next trial, and the length of the interval.
    wait: u16,
    waited: u16,
    /// The cost of the preferred alternative when it became preferred.
    settled: u32,
    costs: [Costs; N],
}

impl<const N: usize, const LONGEST: u16> AdaptiveSelector<N, LONGEST> {
    /// Returns a selector without measurements, which starts with alternative `preferred`.
    pub(crate) const fn preferring(preferred: u8) -> Self {
        let other = if preferred == 0 { 1 } else { 0 };
        Self {
            preferred,
            other,
            trial: 0,
            is_fresh: false,
            inherited: 0,
            missed: 0,
            changed: 0,
            has_left: false,
            wait: 0,
            waited: 0,
            settled: 0,
            costs: [Costs::NONE; N],
        }
    }

    /// Returns the fastest alternative, as far as is known.
    pub(crate) const fn preferred(&self) -> u8 {
        self.preferred
    }

    /// Returns the alternative that is tried, or else the preferred one.
    pub(crate) const fn current(&self) -> u8 {
        if self.trial > 0 { self.other } else { self.preferred }
    }

    /// Returns whether the cost of an alternative is known.
    #[cfg(test)]
    pub(crate) fn is_known(&self, option: u8) -> bool {
        self.costs[usize::from(option)].is_known()
    }

    /// Returns whether nothing is known.
    pub(crate) fn is_new(&self) -> bool {
        self.costs.iter().all(|costs| !costs.is_known())
    }

    /// Returns whether the cost of every alternative is known, by its own runs.
    pub(crate) fn is_complete(&self) -> bool {
        self.inherited == 0 && self.untested().is_none()
    }

    /// Takes over what is known about similar work, until the first run shows by which factor it costs more or less. If
    /// the factor exceeds 2 to the power `exponent`, nothing is taken over.
    pub(crate) fn inherit(&mut self, from: &Self, exponent: u8) {
        *self = Self::preferring(from.preferred);
        self.other = from.other;
        self.costs = from.costs.map(|costs| Costs::only(costs.typical() as u32));
        self.inherited = exponent.saturating_add(1);
        self.settle();
    }

    fn typical(&self, option: u8) -> u64 {
        self.costs[usize::from(option)].typical()
    }

    /// Returns by how much a cost exceeds that of the preferred alternative. If that has risen, the lower cost counts,
    /// because perhaps it has risen only for some runs.
    fn excess(&self, cost: u64) -> u64 {
        let usual = self.typical(self.preferred).min(self.settled.into());
        cost.min(usual.saturating_mul(WORST)).saturating_sub(usual)
    }

    /// Returns the alternative that must still be tested before any is preferred. The preferred one is first.
    fn untested(&self) -> Option<u8> {
        let best = self.costs.iter().map(Costs::typical).filter(|cost| *cost > 0).min();
        let is_untested = |option: &u8| {
            let costs = &self.costs[usize::from(*option)];
            let is_hopeless = || best.is_some_and(|best| costs.typical() > HOPELESS * best);
            match *option == self.preferred {
                true => !costs.is_tested(),
                false => !costs.is_known() || !costs.is_confirmed() && !is_hopeless(),
            }
        };
        [self.preferred].into_iter().chain(0..N as u8).find(is_untested)
    }

    /// Returns the cheapest alternative that has run, or the preferred one if that costs hardly more. For work beside
    /// the first tests only: their runs are too few to leave the preferred one.
    fn cheapest_so_far(&self) -> u8 {
        let known = (0..N as u8).filter(|option| self.typical(*option) > 0);
        let cheapest = known.min_by_key(|option| self.typical(*option)).unwrap_or(self.preferred);
        let is_better = 16 * self.typical(cheapest) < BETTER * self.typical(self.preferred);
        if is_better { cheapest } else { self.preferred }
    }

    /// Returns the next run.
    pub(crate) fn plan(&mut self, amount: RunAmount, budget: &TrialBudget) -> Plan {
        let RunAmount { first, least, full } = amount;
        let usual = self.typical(self.preferred);
        if let Some(option) = self.untested() {
            return Plan { option, amount: first, worth: u64::MAX, beside: self.cheapest_so_far() };
        }
        if self.trial == 0 {
            self.start_trial(least, budget);
        }
        let mut plan = Plan { option: self.preferred, amount: full, worth: 0, beside: self.preferred };
        if self.trial > 0 {
            let cost = self.typical(self.other);
            let excess = self.excess(cost);
            if self.trial > TRIAL {
                plan = Plan { option: self.other, amount: least.max(full / 2), worth: 0, beside: self.other };
            } else if cost < usual {
                (plan.option, plan.beside) = (self.other, self.other);
            } else if budget.covers(excess.saturating_mul(least)) {
                let affordable = budget.times(excess).unwrap_or(full);
                plan.option = self.other;
                plan.amount =
                    if cost > HOPELESS * usual { least } else { affordable.clamp(least, full.max(least)) };
            } else {
                self.trial = 0;
                self.wait_longer();
            }
        }
        plan.worth = usual.saturating_mul(plan.amount);
        plan
    }

    /// Starts a trial if one is due and affordable.
    fn start_trial(&mut self, least: u64, budget: &TrialBudget) {
        let usual = self.typical(self.preferred);
        let others = (0..N as u8).filter(|option| *option != self.preferred);
        let is_affordable = |option: u8| {
            let excess = self.excess(self.typical(option));
            budget.covers(excess.saturating_mul(least))
        };
        let cheapest = others.min_by_key(|option| self.typical(*option));
        if let Some(cheapest) = cheapest.filter(|option| 16 * self.typical(*option) < BETTER * usual) {
            if is_affordable(cheapest) {
                self.try_other(cheapest);
            }
        } else if self.wait == 0 {
            let next = core::iter::successors(Some(self.other), |option| Some(self.after(*option)));
            if let Some(option) = next.take(N - 1).find(|option| is_affordable(*option)) {
                self.try_other(option);
            }
        }
    }

    fn try_other(&mut self, option: u8) {
        let (cost, usual) = (self.typical(option), self.typical(self.preferred));
        (self.other, self.is_fresh) = (option, true);
        self.trial = match cost {
            _ if cost > HOPELESS * usual => 1,
            _ if 16 * cost < BETTER * usual => CONFIRMS,
            _ => TRIAL,
        };
    }

    /// Records a run: its cost for each unit of work, at least 1, and its amount of work. Costs must be comparable.
    pub(crate) fn record(&mut self, option: u8, cost: u32, amount: u64, budget: &mut TrialBudget) {
        let at = usize::from(option);
        if at >= N {
            return;
        }
        if self.untested().is_some() {
            self.costs[at].push(cost);
            self.missed = 0;
            if self.untested().is_none() {
                self.settle();
            }
        } else if option == self.preferred {
            if !self.has_inherited(cost) {
                return;
            }
            budget.earn(u64::from(cost).saturating_mul(amount));
            self.costs[at].push(cost);
            self.go_on();
        } else if option == self.other && self.trial > 0 {
            budget.lose(self.excess(cost.into()).saturating_mul(amount));
            self.tried(cost);
        }
    }

    fn settle(&mut self) {
        self.settled = self.typical(self.preferred) as u32;
        (self.wait, self.waited) = (FIRST_WAIT, FIRST_WAIT);
    }

    /// Adapts inherited costs to the first run of this selector's own. Returns `false` if they don't fit, so that all
    /// alternatives are tested.
    fn has_inherited(&mut self, cost: u32) -> bool {
        let Some(exponent) = core::mem::take(&mut self.inherited).checked_sub(1) else { return true };
        let there = self.typical(self.preferred).max(1);
        if u64::from(cost) > there << exponent.min(16) {
            *self = Self::preferring(self.preferred);
            self.costs[usize::from(self.preferred)].push(cost);
            return false;
        }
        for costs in &mut self.costs {
            let scaled = costs.typical().saturating_mul(cost.into()) / there;
            *costs = Costs::only(scaled.clamp(1, u32::MAX.into()) as u32);
        }
        self.settled = cost;
        true
    }

    /// Counts a run of the preferred alternative.
    fn go_on(&mut self) {
        self.wait = self.wait.saturating_sub(1);
        let is_dearer = self.settled != 0 && self.typical(self.preferred) > 2 * u64::from(self.settled);
        self.changed = if is_dearer { self.changed + 1 } else { 0 };
        if self.changed >= CHANGED {
            // A peer is computing, or one of the two processes has moved to another core.
            (self.wait, self.waited, self.changed) = (0, 0, 0);
        }
    }

    /// Tries an alternative that the peer tries, unless another trial is in progress, or less than an eighth of the
    /// interval has passed since the last trial. Without that limit, two peers with different preferences would react
    /// to each other's trials forever.
    pub(crate) fn suggest(&mut self, option: u8) {
        if self.trial == 0
            && self.waited.saturating_sub(self.wait) >= self.waited / SOON
            && option != self.preferred
            && usize::from(option) < N
            && self.is_complete()
        {
            self.try_other(option);
        }
    }

    /// Records a run of `option` that was not measured as expected. A trial continues without the run, and ends without
    /// a result if it was the last. The next trial is as far ahead as after any other, because perhaps no run of this
    /// alternative can ever be measured.
    pub(crate) fn miss(&mut self, option: u8) {
        if self.untested() == Some(option) && option != self.preferred {
            self.missed += 1;
            if self.missed >= MISSES {
                self.missed = 0;
                self.give_up(option);
                if self.untested().is_none() {
                    self.settle();
                }
            }
        } else if self.trial > 0 && option == self.other {
            self.trial -= 1;
            if self.trial == 0 {
                if self.is_fresh && self.typical(option) < self.typical(self.preferred) {
                    self.costs[usize::from(option)] = self.costs[usize::from(self.preferred)];
                }
                self.other = self.after(option);
                self.wait_longer();
            }
        }
    }

    /// Records that an alternative can't be measured, as if it were hopeless.
    fn give_up(&mut self, option: u8) {
        let cost = self.typical(self.preferred).max(1).saturating_mul(HOPELESS + 1);
        self.costs[usize::from(option)] = Costs::only(cost.min(u32::MAX.into()) as u32);
    }

    fn wait_longer(&mut self) {
        self.waited = (2 * self.waited).clamp(FIRST_WAIT, LONGEST);
        self.wait = self.waited;
    }

    /// Records the cost of a run on trial.
    fn tried(&mut self, cost: u32) {
        let usual = self.typical(self.preferred);
        let other = usize::from(self.other);
        let is_hopeless = self.trial <= TRIAL && u64::from(cost) > HOPELESS * usual;
        if is_hopeless || core::mem::take(&mut self.is_fresh) && self.trial != TRIAL {
            self.costs[other] = Costs::only(cost);
        } else if self.trial == TRIAL {
            self.is_fresh = true;
        } else {
            self.costs[other].push(cost);
        }
        let is_doubtful = self.trial == DOUBTS - TRIAL + 1 && 3 * self.typical(self.other) > DOUBTFUL * usual;
        self.trial = if is_hopeless || is_doubtful { 0 } else { self.trial - 1 };
        if self.trial == 0 {
            self.conclude(usual);
        }
    }

    /// Ends a trial: prefers the other alternative if it was faster than the preferred one usually is.
    fn conclude(&mut self, usual: u64) {
        if 16 * self.typical(self.other) < BETTER * usual {
            (self.preferred, self.other) = (self.other, self.preferred);
            let is_early = self.wait > 0 && self.waited == FIRST_WAIT;
            self.waited = 0;
            if !core::mem::replace(&mut self.has_left, true) && is_early && self.doubt() {
                return;
            }
        }
        self.settled = self.typical(self.preferred) as u32;
        self.other = self.after(self.other);
        self.wait_longer();
    }

    /// Tries the alternative that was left after a few runs at once again, as if it cost the same. Its first runs may
    /// have cost much more than later ones will, by new pages, by cold caches, and by what else had to be learned.
    /// Short trials never show that. Returns `false` if nothing of that explains what it has cost.
    fn doubt(&mut self) -> bool {
        let usual = self.typical(self.preferred);
        if self.typical(self.other) > HARDLY * usual {
            return false;
        }
        self.settle();
        self.costs[usize::from(self.other)] = Costs::only(self.settled);
        self.try_other(self.other);
        self.trial = DOUBTS;
        true
    }

    /// Returns the alternative after this one, in rotation, except the preferred one.
    fn after(&self, option: u8) -> u8 {
        let next = |option: u8| if usize::from(option) + 1 < N { option + 1 } else { 0 };
        let option = next(option);
        if option == self.preferred { next(option) } else { option }
    }
}

impl<const N: usize, const LONGEST: u16> Default for AdaptiveSelector<N, LONGEST> {
    fn default() -> Self {
        Self::preferring(0)
    }
}

#[cfg(test)]
mod tests;
