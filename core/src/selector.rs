//! The adaptive selector: it selects the fastest of several alternatives for the same work, by trial.
//!
//! The caller measures the work in *runs* and reports the cost of each. The selector uses the preferred
//! alternative. Occasionally, and less often while nothing changes, a few runs try another alternative, each
//! in rotation. If that alternative was clearly faster, it becomes the preferred one. The median of three
//! runs counts, because a run in which the process lost its core is not representative.
#![forbid(unsafe_code)]

/// Number of runs that are recorded for each alternative; their median counts.
const SAMPLES: usize = 3;
/// Runs of a trial. The first run is not recorded, because the cache contents left by the other alternative
/// make it more expensive.
const TRIAL: u8 = SAMPLES as u8 + 1;
/// Runs between two trials at first. The interval doubles while nothing changes, up to a limit.
const FIRST_WAIT: u16 = 8;
/// Fraction of the interval after which a suggested alternative may be tried.
const SOON: u16 = 8;
/// Number of runs in a row at twice the earlier cost after which another alternative is tried soon. A trial
/// of the peer, which may cost this process as much, is shorter.
const CHANGED: u8 = 8;
/// The cost of another alternative must stay below this many sixteenths of the preferred alternative's cost.
/// Half of a ping-pong's time belongs to the other side, so half of the gain is invisible.
const BETTER: u64 = 15;
/// If a run of another alternative costs more than this many times the preferred alternative's cost, its
/// trial ends at once.
const HOPELESS: u64 = 4;

/// The costs of the last runs; 0 if there is none.
#[derive(Clone, Copy, Debug, Default)]
struct Costs([u32; SAMPLES]);

impl Costs {
    const NONE: Self = Self([0; SAMPLES]);

    fn push(&mut self, cost: u32) {
        self.0.rotate_right(1);
        self.0[0] = cost;
    }

    fn is_known(&self) -> bool {
        self.0.iter().all(|&cost| cost != 0)
    }

    fn median(&self) -> u64 {
        let mut sorted = self.0;
        sorted.sort_unstable();
        u64::from(sorted[SAMPLES / 2])
    }
}

/// The selector among `N` alternatives, numbered from 0. Another alternative is tried after at most `LONGEST`
/// runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AdaptiveSelector<const N: usize, const LONGEST: u16> {
    preferred: u8,
    /// The alternative that is on trial, or will be next.
    other: u8,
    /// Remaining runs of the trial.
    trial: u8,
    /// Runs in a row of the preferred alternative that cost much more than before.
    changed: u8,
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
            changed: 0,
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

    /// Returns the alternative for the next run.
    pub(crate) const fn next(&self) -> u8 {
        if self.trial > 0 { self.other } else { self.preferred }
    }

    /// Returns whether the cost of an alternative is known.
    #[cfg(test)]
    pub(crate) fn is_known(&self, option: u8) -> bool {
        self.costs[usize::from(option)].is_known()
    }

    /// Records the cost of a run, at least 1. Costs must be comparable.
    pub(crate) fn record(&mut self, option: u8, cost: u32) {
        if option == self.preferred {
            self.costs[usize::from(option)].push(cost);
            self.go_on();
        } else if option == self.other && self.trial > 0 {
            self.tried(cost);
        }
    }

    /// Counts a run of the preferred alternative.
    fn go_on(&mut self) {
        let costs = &self.costs[usize::from(self.preferred)];
        if !costs.is_known() {
            return;
        }
        self.wait = self.wait.saturating_sub(1);
        let is_dearer = self.settled != 0 && costs.median() > 2 * u64::from(self.settled);
        self.changed = if is_dearer { self.changed + 1 } else { 0 };
        if self.changed >= CHANGED {
            // A peer is computing, or one of the two processes has moved to another core.
            (self.wait, self.waited, self.changed) = (0, 0, 0);
        }
        if self.wait == 0 && self.trial == 0 {
            self.trial = TRIAL;
        }
    }

    /// Tries an alternative that the peer tries, unless another trial is in progress, or less than an eighth
    /// of the interval has passed since the last trial. Without that limit, two peers with different
    /// preferences would react to each other's trials forever.
    pub(crate) fn suggest(&mut self, option: u8) {
        if self.trial == 0
            && self.waited.saturating_sub(self.wait) >= self.waited / SOON
            && option != self.preferred
            && usize::from(option) < N
            && self.costs[usize::from(self.preferred)].is_known()
        {
            (self.other, self.trial) = (option, TRIAL);
        }
    }

    /// Records a run that was not measured as expected. A trial continues without the run, and ends without a
    /// result if it was the last. The next trial is as far ahead as after any other, because perhaps no run
    /// of this alternative can ever be measured.
    pub(crate) fn miss(&mut self) {
        self.trial = match self.trial {
            0 => return,
            1 => {
                self.wait_longer();
                0
            }
            more => more - 1,
        };
    }

    fn wait_longer(&mut self) {
        self.waited = (2 * self.waited).clamp(FIRST_WAIT, LONGEST);
        self.wait = self.waited;
    }

    /// Records the cost of a run on trial.
    fn tried(&mut self, cost: u32) {
        let usual = self.costs[usize::from(self.preferred)].median();
        let other = usize::from(self.other);
        let is_hopeless = u64::from(cost) > HOPELESS * usual;
        if self.trial < TRIAL || is_hopeless {
            self.costs[other].push(cost);
        }
        self.trial -= 1;
        if is_hopeless {
            self.trial = 0;
        } else if self.trial > 0 {
            return;
        } else if self.costs[other].is_known() && 16 * self.costs[other].median() < BETTER * usual {
            self.preferred = self.other;
            self.waited = 0;
        }
        self.settled = self.costs[usize::from(self.preferred)].median() as u32;
        self.other = self.following();
        if self.costs[usize::from(self.other)].0[0] == 0 {
            // The following alternative was never tried, so its trial starts at once.
            self.trial = TRIAL;
            return;
        }
        self.wait_longer();
    }

    /// Returns the alternative after the one that was tried, in rotation, except the preferred one.
    fn following(&self) -> u8 {
        let next = |option: u8| if usize::from(option) + 1 < N { option + 1 } else { 0 };
        let option = next(self.other);
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
