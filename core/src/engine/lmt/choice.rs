//! Which protocol moves a large message, learned for each peer and size from how fast they were.
//!
//! Neither protocol is the faster one everywhere. A copy by the kernel pays for its system call and for finding each page, and
//! copies at half the speed of user space on some machines, but needs nothing of the sender; a stream has both sides copy,
//! at the same time, and is at the mercy of what it costs two cores to hand over a line, and of a sender that computes. On one
//! machine here 64 KiB took 9 us by the kernel and 6 us as a stream between neighbouring cores, 23 us and 34 us between
//! distant ones. No switch point is right for both, so the receiver measures: what it costs is two readings of the clock
//! a message, and a few messages now and then by the other way.
//!
//! What is measured is a *run*: the time from the first message under way to the end of the last one, or a few megabytes,
//! over the bytes moved in it. So messages that overlap count once, and idle times don't count. A run of messages of several
//! sizes says nothing and is forgotten. Messages that come one at a time and those that overlap are learned separately: what
//! is first to bring one message is not what is first to bring many. A run is taken to become what the one before it was.
#![forbid(unsafe_code)]

/// How the bytes of a message move.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::engine) enum Protocol {
    /// See [`super::Pull`].
    #[default]
    Pull,
    /// See [`super::Stream`].
    Stream,
}

impl Protocol {
    const fn other(self) -> Self {
        match self {
            Protocol::Pull => Protocol::Stream,
            Protocol::Stream => Protocol::Pull,
        }
    }
}

/// Powers of two that are told apart, from messages of [`SMALLEST`] bytes on; larger ones are as the last.
const CLASSES: usize = 10;
const SMALLEST: u32 = 13;
/// Runs that are remembered of each protocol, of which the one in the middle counts: one run in which the process lost its
/// core says nothing.
const SAMPLES: usize = 3;
/// Runs before the other protocol is tried for the second time. The wait doubles as long as nothing changes.
const FIRST_WAIT: u16 = 8;
const LONGEST_WAIT: u16 = 1024;
/// Bytes after which a run ends although more is under way.
const RUN_BYTES: u64 = 4 << 20;
/// Sixteenths of the present protocol's cost that the other one's has to stay below.
const BETTER: u64 = 14;
/// How many times more than the present one's a single run of the other protocol may cost for it to be tried again at once.
const HOPELESS: u64 = 4;

/// Ticks for each 4 KiB, of the last runs; 0 is none.
#[derive(Clone, Copy, Debug, Default)]
struct Costs([u32; SAMPLES]);

impl Costs {
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

/// What is known of one size, of messages that come alone or of such that overlap.
#[derive(Clone, Copy, Debug, Default)]
struct Class {
    preferred: Protocol,
    costs: [Costs; 2],
    /// Runs of the other protocol that are still to be made.
    trial: u8,
    /// Runs until it is tried, and how many there were to be the last time.
    wait: u16,
    waited: u16,
    /// What the preferred one cost when it was preferred.
    settled: u32,
}

impl Class {
    const fn next(&self) -> Protocol {
        if self.trial > 0 { self.preferred.other() } else { self.preferred }
    }

    fn record(&mut self, protocol: Protocol, cost: u32) {
        self.costs[protocol as usize].push(cost);
        if protocol == self.preferred { self.go_on() } else { self.tried(u64::from(cost)) }
    }

    /// After a run of the preferred protocol.
    fn go_on(&mut self) {
        let costs = &self.costs[self.preferred as usize];
        if !costs.is_known() {
            return;
        }
        self.wait = self.wait.saturating_sub(1);
        if self.settled != 0 && costs.median() > 2 * u64::from(self.settled) {
            // Something has changed: the sender computes, or one of us has moved to another core.
            (self.wait, self.waited) = (0, 0);
        }
        if self.wait == 0 {
            self.trial = SAMPLES as u8;
        }
    }

    /// A run was not what it was expected to be: a trial goes on without it, and comes to nothing if it was the last.
    fn miss(&mut self) {
        self.trial = self.trial.saturating_sub(1);
    }

    /// After a run of the other one, on trial or by chance.
    fn tried(&mut self, cost: u64) {
        if self.trial == 0 {
            return;
        }
        let other = self.preferred.other();
        let usual = self.costs[self.preferred as usize].median();
        self.trial -= 1;
        if cost > HOPELESS * usual {
            self.trial = 0;
        } else if self.trial > 0 {
            return;
        } else if 16 * self.costs[other as usize].median() < BETTER * usual {
            self.preferred = other;
            self.waited = 0;
        }
        self.waited = (2 * self.waited).clamp(FIRST_WAIT, LONGEST_WAIT);
        self.wait = self.waited;
        self.settled = self.costs[self.preferred as usize].median() as u32;
    }
}

/// What the receiver knows of one peer.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::engine) struct Choice {
    classes: [[Class; 2]; CLASSES],
    /// Messages under way, and whether they overlap, or did before.
    under_way: u32,
    overlap: bool,
    /// Of which so many began before the run, by another protocol perhaps.
    stale: u32,
    /// The run: its size and protocol, since when, and its bytes.
    class: u8,
    protocol: Protocol,
    since: u64,
    bytes: u64,
    /// There were others in it.
    mixed: bool,
    /// There was more than one under way.
    overlapped: bool,
}

fn class_of(bytes: u64) -> usize {
    (bytes.max(1).ilog2().saturating_sub(SMALLEST) as usize).min(CLASSES - 1)
}

impl Choice {
    /// A message of so many bytes begins to move: how?
    pub(in crate::engine) fn begin(&mut self, bytes: u64, now: u64) -> Protocol {
        let class = class_of(bytes);
        if self.under_way == 0 {
            self.start(class, now);
        }
        self.under_way = self.under_way.saturating_add(1);
        self.overlapped |= self.under_way > 1;
        if class == usize::from(self.class) {
            return self.protocol;
        }
        self.mixed = true;
        self.classes[class][usize::from(self.overlap)].preferred
    }

    fn start(&mut self, class: usize, now: u64) {
        self.class = class as u8;
        self.protocol = self.classes[class][usize::from(self.overlap)].next();
        self.since = now;
        self.bytes = 0;
        self.mixed = false;
        self.stale = self.under_way;
        self.overlapped = self.under_way > 1;
    }

    /// A message has moved, but not as it should have.
    pub(in crate::engine) fn spoil(&mut self) {
        self.mixed = true;
    }

    /// A message that began is here.
    pub(in crate::engine) fn end(&mut self, bytes: u64, now: u64) {
        self.under_way = self.under_way.saturating_sub(1);
        if self.stale > 0 {
            self.stale -= 1;
            if self.stale == 0 && self.under_way > 0 {
                (self.since, self.bytes) = (now, 0);
            }
            return;
        }
        self.bytes = self.bytes.saturating_add(bytes);
        if self.under_way > 0 && self.bytes < RUN_BYTES {
            return;
        }
        let class = usize::from(self.class);
        let expected = core::mem::replace(&mut self.overlap, self.overlapped);
        let of_size = &mut self.classes[class];
        if !self.mixed {
            let cost = now.saturating_sub(self.since).saturating_mul(4096) / self.bytes.max(1);
            of_size[usize::from(self.overlapped)]
                .record(self.protocol, cost.clamp(1, u32::MAX.into()) as u32);
        }
        if self.mixed || expected != self.overlapped {
            of_size[usize::from(expected)].miss();
        }
        if self.under_way > 0 {
            let (protocol, mixed) = (self.protocol, self.mixed);
            self.start(class, now);
            if protocol == self.protocol && !mixed {
                // All that is under way belongs to the new run as well.
                self.stale = 0;
            }
        }
    }
}

#[cfg(test)]
mod tests;
