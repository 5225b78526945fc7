//! Some ways of doing the same, of which the fastest is learned by trying.
//!
//! Whoever has the work measures it in *runs* and says what each has cost. The preferred way is taken; now and then, rarer as long as
//! nothing changes, a few runs go another way, one of them in turn, which is preferred from then on if it was clearly faster. What
//! counts is the run in the middle of three: one in which the process lost its core says nothing.
#![forbid(unsafe_code)]

/// Runs that are remembered of each way, of which the one in the middle counts.
const SAMPLES: usize = 3;
/// Runs of a trial: the first one is not remembered, as what the way before has left in the caches makes it dearer.
const TRIAL: u8 = SAMPLES as u8 + 1;
/// Runs before a way is tried again. The wait doubles as long as nothing changes, up to a longest one.
const FIRST_WAIT: u16 = 8;
/// Part of the wait after which what somebody suggests is tried.
const SOON: u16 = 8;
/// Runs in a row that cost twice what they did, after which another way is tried soon. A trial of the peer's, which may cost us as
/// much, is shorter.
const CHANGED: u8 = 8;
/// Sixteenths of the present way's cost that another one's has to stay below. Half of a ping-pong is the other side's, and so half of
/// what is gained is not seen.
const BETTER: u64 = 15;
/// How many times more than the present one's a single run of another way may cost for it to be tried again at once.
const HOPELESS: u64 = 4;

/// What the last runs have cost; 0 is none.
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

/// What is known of `N` ways, which are numbers from 0 on. One of the others is tried after `LONGEST` runs at the latest.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ways<const N: usize, const LONGEST: u16> {
    preferred: u8,
    /// The one that is on trial, or will be next.
    other: u8,
    /// Runs of it that are still to be made.
    trial: u8,
    /// Runs in a row of the preferred way that cost much more than they did.
    changed: u8,
    /// Runs until it is tried, and how many there were to be the last time.
    wait: u16,
    waited: u16,
    /// What the preferred one cost when it was preferred.
    settled: u32,
    costs: [Costs; N],
}

impl<const N: usize, const LONGEST: u16> Ways<N, LONGEST> {
    /// Nothing is known; this one is taken at first.
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

    /// The fastest one, as far as is known.
    pub(crate) const fn preferred(&self) -> u8 {
        self.preferred
    }

    /// The one to take in the next run.
    pub(crate) const fn next(&self) -> u8 {
        if self.trial > 0 { self.other } else { self.preferred }
    }

    /// Whether the cost of a way is known.
    #[cfg(test)]
    pub(crate) fn is_known(&self, way: u8) -> bool {
        self.costs[usize::from(way)].is_known()
    }

    /// A run of this way is over. Costs are comparable numbers, at least 1.
    pub(crate) fn record(&mut self, way: u8, cost: u32) {
        if way == self.preferred {
            self.costs[usize::from(way)].push(cost);
            self.go_on();
        } else if way == self.other && self.trial > 0 {
            self.tried(cost);
        }
    }

    /// After a run of the preferred way.
    fn go_on(&mut self) {
        let costs = &self.costs[usize::from(self.preferred)];
        if !costs.is_known() {
            return;
        }
        self.wait = self.wait.saturating_sub(1);
        let is_dearer = self.settled != 0 && costs.median() > 2 * u64::from(self.settled);
        self.changed = if is_dearer { self.changed + 1 } else { 0 };
        if self.changed >= CHANGED {
            // A peer computes, or one of us has moved to another core.
            (self.wait, self.waited, self.changed) = (0, 0, 0);
        }
        if self.wait == 0 && self.trial == 0 {
            self.trial = TRIAL;
        }
    }

    /// Somebody whose work has to do with ours tries this way: so do we, if we don't try another one, and an eighth of the wait
    /// since our last trial is over. Two that prefer different ways, and hear of each other's trials, would else try for ever.
    pub(crate) fn suggest(&mut self, way: u8) {
        if self.trial == 0
            && self.waited.saturating_sub(self.wait) >= self.waited / SOON
            && way != self.preferred
            && usize::from(way) < N
            && self.costs[usize::from(self.preferred)].is_known()
        {
            (self.other, self.trial) = (way, TRIAL);
        }
    }

    /// A run was not what it was expected to be: a trial goes on without it, and comes to nothing if it was the last. The next one
    /// is as far ahead as after any other: perhaps no run of it is ever what it was expected to be.
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

    /// After a run of the other one, on trial.
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
            // Never tried: at once.
            self.trial = TRIAL;
            return;
        }
        self.wait_longer();
    }

    /// The way after the one that was tried, in turn, but for the preferred one.
    fn following(&self) -> u8 {
        let next = |way: u8| if usize::from(way) + 1 < N { way + 1 } else { 0 };
        let way = next(self.other);
        if way == self.preferred { next(way) } else { way }
    }
}

impl<const N: usize, const LONGEST: u16> Default for Ways<N, LONGEST> {
    fn default() -> Self {
        Self::preferring(0)
    }
}

#[cfg(test)]
mod tests;
