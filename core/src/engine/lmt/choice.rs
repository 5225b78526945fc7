//! Which protocol moves a large message, learned for each peer and size from how fast they were.
//!
//! Neither protocol is the faster one everywhere. A copy by the kernel pays for its system call and for finding each page, and
//! copies at half the speed of user space on some machines, but needs nothing of the sender; a stream has both sides copy,
//! at the same time, and is at the mercy of what it costs two cores to hand over a line, and of a sender that computes. On one
//! machine here 64 KiB took 9 us by the kernel and 6 us as a stream between neighbouring cores, 23 us and 34 us between
//! distant ones. No switch point is right for both, so the receiver measures: what it costs is two readings of the clock
//! a message, and a few messages now and then by the other way.
//!
//! What is measured is a *run*: messages that overlap, or follow each other at once, up to a few megabytes. Its time over its
//! bytes is what counts; idle times don't. A run of messages of several sizes says nothing and is forgotten. Messages that come
//! one at a time and those that overlap are learned separately: what is first to bring one message is not what is first to
//! bring many. A run is taken to become what the one before it was.
#![forbid(unsafe_code)]

use crate::port::PeerId;

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

/// Powers of two that are told apart: from 8 KiB (smaller ones are as these) to below 4 MiB.
const CLASSES: usize = 9;
const SMALLEST: u32 = 13;
/// Of these so many, to below 128 KiB, are learned of messages that overlap. Beyond either, messages are pulled: a copy in which
/// both sides share is never far from the best there, and a trial would cost too much. (A window of messages is
/// announced at once, and all of it moves by the protocol that is on trial then.)
const OVERLAPPING: usize = 4;
/// Runs that are remembered of each protocol, of which the one in the middle counts: one run in which the process lost its
/// core says nothing.
const SAMPLES: usize = 3;
/// Runs before the other protocol is tried for the second time. The wait doubles as long as nothing changes.
const FIRST_WAIT: u16 = 8;
const LONGEST_WAIT: u16 = 1024;
/// A message that begins within this part of what the last one took follows it at once, and belongs to its run.
const PAUSE: u64 = 4;
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
        let (usual, tried) = (self.costs[self.preferred as usize].median(), &self.costs[other as usize]);
        self.trial -= 1;
        if cost > HOPELESS * usual {
            self.trial = 0;
        } else if self.trial > 0 {
            return;
        } else if tried.is_known() && 16 * tried.median() < BETTER * usual {
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
    alone: [Class; CLASSES],
    overlapping: [Class; OVERLAPPING],
    /// Whether messages overlap, or did before.
    overlap: bool,
    /// Messages under way, and of these the ones that began before the run, by another protocol perhaps.
    under_way: u32,
    stale: u32,
    /// When the first of those began that were under way last, and when the last of them ended.
    began: u64,
    ended: u64,
    run: Option<Run>,
}

#[derive(Clone, Copy, Debug)]
struct Run {
    class: usize,
    protocol: Protocol,
    since: u64,
    bytes: u64,
    /// There are messages of other sizes in it.
    mixed: bool,
    /// Messages overlap, or follow each other at once.
    overlaps: bool,
}

fn class_of(bytes: u64) -> usize {
    bytes.max(1).ilog2().saturating_sub(SMALLEST) as usize
}

impl Choice {
    /// A message of so many bytes begins to move: how?
    fn begin(&mut self, bytes: u64, now: u64) -> Protocol {
        let class = class_of(bytes).min(CLASSES - 1);
        if self.under_way == 0 {
            let pause = now.saturating_sub(self.ended);
            let at_once = pause < self.ended.saturating_sub(self.began) / PAUSE;
            match &mut self.run {
                Some(run) if at_once => run.overlaps = true,
                _ => {
                    self.close(self.ended);
                    self.start(class, now);
                }
            }
            self.began = now;
        }
        self.under_way = self.under_way.saturating_add(1);
        let several = self.under_way > 1;
        if let Some(run) = &mut self.run {
            run.overlaps |= several;
            if run.class == class {
                return run.protocol;
            }
            run.mixed = true;
        }
        self.known(self.overlap, class).map_or(Protocol::Pull, |known| known.preferred)
    }

    fn start(&mut self, class: usize, now: u64) {
        let protocol = self.known(self.overlap, class).map_or(Protocol::Pull, |known| known.next());
        let overlaps = self.under_way > 1;
        self.stale = self.under_way;
        self.run = Some(Run { class, protocol, since: now, bytes: 0, mixed: false, overlaps });
    }

    /// A message has moved, but not as it should have, or moves beside those that are measured.
    pub(in crate::engine) fn spoil(&mut self) {
        if let Some(run) = &mut self.run {
            run.mixed = true;
        }
    }

    /// A message that began is here.
    pub(in crate::engine) fn end(&mut self, bytes: u64, now: u64) {
        self.under_way = self.under_way.saturating_sub(1);
        self.ended = now;
        let Some(run) = &mut self.run else { return };
        if self.stale > 0 {
            self.stale -= 1;
            (run.since, run.bytes) = (now, 0);
            return;
        }
        run.bytes = run.bytes.saturating_add(bytes);
        if run.bytes < RUN_BYTES {
            return;
        }
        let Run { class, protocol, mixed, .. } = *run;
        self.close(now);
        self.start(class, now);
        if !mixed && self.run.is_some_and(|next| next.protocol == protocol) {
            // All that is under way belongs to the new run as well.
            self.stale = 0;
        }
    }

    /// The run is over, since then.
    fn close(&mut self, end: u64) {
        let Some(run) = self.run.take().filter(|run| run.bytes > 0) else { return };
        let expected = core::mem::replace(&mut self.overlap, run.overlaps);
        if !run.mixed
            && let Some(known) = self.known(run.overlaps, run.class)
        {
            let cost = end.saturating_sub(run.since).saturating_mul(4096) / run.bytes;
            known.record(run.protocol, cost.clamp(1, u32::MAX.into()) as u32);
        }
        if (run.mixed || expected != run.overlaps)
            && let Some(known) = self.known(expected, run.class)
        {
            known.miss();
        }
    }

    /// What is known of a size, if anything can be.
    fn known(&mut self, overlap: bool, class: usize) -> Option<&mut Class> {
        if overlap { self.overlapping.get_mut(class) } else { self.alone.get_mut(class) }
    }
}

/// Peers that are known at a time; more of them take turns, and what comes of peers that had none is pulled.
const PEERS: usize = 16;

/// What the receiver knows of its peers: as much memory whether the world is large or small.
#[derive(Debug, Default)]
pub(in crate::engine) struct Choices([(PeerId, Choice); PEERS]);

impl Choices {
    /// A message of a peer begins to move: how? `None` if nothing can be learned of it; it is pulled then, and does not end here.
    pub(in crate::engine) fn begin(&mut self, from: PeerId, bytes: u64, now: u64) -> Option<Protocol> {
        let (known, choice) = &mut self.0[from as usize % PEERS];
        if *known != from {
            if choice.under_way > 0 {
                return None;
            }
            (*known, *choice) = (from, Choice::default());
        }
        if class_of(bytes) >= CLASSES {
            choice.spoil();
            return None;
        }
        Some(choice.begin(bytes, now))
    }

    /// What is known of a peer of which messages are under way.
    pub(in crate::engine) fn of(&mut self, from: PeerId) -> Option<&mut Choice> {
        let (known, choice) = &mut self.0[from as usize % PEERS];
        (*known == from).then_some(choice)
    }
}

#[cfg(test)]
mod tests;
