//! Which protocol moves a large message, learned for each peer and size from how fast they were.
//!
//! No protocol is the fastest one everywhere. A copy by the kernel pays for its system call and for finding each page, and
//! copies at half the speed of user space on some machines, but needs nothing of the sender; a stream has both sides copy,
//! at the same time, and is at the mercy of what it costs two cores to hand over a line, and of a sender that computes. On one
//! machine here 64 KiB took 9 us by the kernel and 6 us as a stream between neighbouring cores, 23 us and 34 us between
//! distant ones; and a stream through cells that are filled past the caches (`shared/port/filling.rs` says when that is faster) 9 us
//! between either. No switch point is right for all, so the receiver measures: what it costs is two readings of the clock
//! a message, and a few messages now and then by another way.
//!
//! What is measured is a *run*: messages that overlap, or follow each other at once, up to a few megabytes; or such that come one
//! at a time, up to 256 KiB. Its time over its bytes is what counts; idle times don't. A run of messages of several sizes says
//! nothing and is forgotten. Messages that come one at a time and those that overlap are learned separately: what is first
//! to bring one message is not what is first to bring many. A run is taken to become what the one before it was. What a run
//! costs goes to [`Ways`].
#![forbid(unsafe_code)]

use crate::port::{PeerId, Stores};
use crate::ways::Ways;
use crate::wire::rendezvous::MOST_WAYS;

/// How the bytes of a message move.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::engine) enum Protocol {
    /// See [`super::Pull`].
    #[default]
    Pull,
    /// See [`super::Stream`], through cells that the sender fills past the caches.
    StreamPastCaches,
    /// The same, with plain stores: tried last, as it can be slower than the others by far.
    Stream,
}

impl Protocol {
    const ALL: [Self; WAYS] = [Self::Pull, Self::StreamPastCaches, Self::Stream];

    fn of(way: u8) -> Self {
        Self::ALL.get(usize::from(way)).copied().unwrap_or_default()
    }

    /// How a sender that streams is to fill its cells.
    pub(in crate::engine) const fn stores(self) -> Stores {
        match self {
            Self::StreamPastCaches => Stores::PastCaches,
            Self::Pull | Self::Stream => Stores::Cached,
        }
    }
}

/// Protocols to choose from.
const WAYS: usize = MOST_WAYS as usize;

/// Powers of two that are told apart: from 8 KiB (smaller ones are as these) to below 4 MiB.
const CLASSES: usize = 9;
const SMALLEST: u32 = 13;
/// Of these so many, to below 128 KiB, are learned of messages that overlap. Beyond either, messages are pulled: a copy in which
/// both sides share is never far from the best there, and a trial would cost too much. (A window of messages is
/// announced at once, and all of it moves by the protocol that is on trial then.)
const OVERLAPPING: usize = 4;
/// Runs after which another protocol is tried at the latest.
const LONGEST_WAIT: u16 = 1024;
/// A message that begins within this part of what the last one took follows it at once, and belongs to its run.
const PAUSE: u64 = 4;
/// Bytes of messages that come one at a time until their run ends: enough for cells to be used again, as the first to be filled
/// in a new way costs more than the next.
const ALONE_BYTES: u64 = 256 << 10;
/// Bytes after which a run ends although more is under way.
const RUN_BYTES: u64 = 4 << 20;

/// What the receiver knows of one peer.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::engine) struct Choice {
    alone: [Ways<WAYS, LONGEST_WAIT>; CLASSES],
    /// How the peer received our messages alone, when that was told last: the number of a way, plus one.
    heard: [u8; CLASSES],
    overlapping: [Ways<WAYS, LONGEST_WAIT>; OVERLAPPING],
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
    way: u8,
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
    fn begin(&mut self, bytes: u64, now: u64, way: u8) -> Protocol {
        let class = class_of(bytes).min(CLASSES - 1);
        self.hear(class, way);
        if self.under_way == 0 {
            let pause = now.saturating_sub(self.ended);
            let at_once = pause < self.ended.saturating_sub(self.began) / PAUSE;
            match &mut self.run {
                Some(run) if at_once => run.overlaps = true,
                Some(run) if !run.overlaps && run.class == class && run.bytes < ALONE_BYTES => {
                    // Idle times don't count.
                    run.since = run.since.saturating_add(pause);
                }
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
                return Protocol::of(run.way);
            }
            run.mixed = true;
        }
        self.known(self.overlap, class).map_or(Protocol::Pull, |known| Protocol::of(known.preferred()))
    }

    /// How messages alone of so many bytes are received just now: the number of a way, plus one; 0 if nothing is learned of them.
    fn way(&self, bytes: u64) -> u8 {
        self.alone.get(class_of(bytes)).map_or(0, |known| known.next() + 1)
    }

    /// The peer says how it receives such messages. When that has changed, it is tried here too: one buffer may go to and fro
    /// between the two, and whether it is faster here then depends on what they do there, as whoever reads a line that is
    /// to be written next makes that slow.
    fn hear(&mut self, class: usize, way: u8) {
        if core::mem::replace(&mut self.heard[class], way) != way
            && let Some(way) = way.checked_sub(1)
        {
            self.alone[class].suggest(way);
        }
    }

    fn start(&mut self, class: usize, now: u64) {
        let way = self.known(self.overlap, class).map_or(Protocol::Pull as u8, |known| known.next());
        let overlaps = self.under_way > 1;
        self.stale = self.under_way;
        self.run = Some(Run { class, way, since: now, bytes: 0, mixed: false, overlaps });
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
        let Run { class, way, mixed, .. } = *run;
        self.close(now);
        self.start(class, now);
        if !mixed && self.run.is_some_and(|next| next.way == way) {
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
            known.record(run.way, cost.clamp(1, u32::MAX.into()) as u32);
        }
        if (run.mixed || expected != run.overlaps)
            && let Some(known) = self.known(expected, run.class)
        {
            known.miss();
        }
    }

    /// What is known of a size, if anything can be.
    fn known(&mut self, overlap: bool, class: usize) -> Option<&mut Ways<WAYS, LONGEST_WAIT>> {
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
    /// `way` is what the peer says of itself.
    pub(in crate::engine) fn begin(
        &mut self,
        from: PeerId,
        bytes: u64,
        now: u64,
        way: u8,
    ) -> Option<Protocol> {
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
        Some(choice.begin(bytes, now, way))
    }

    /// As [`Choice::way`], of a peer.
    pub(in crate::engine) fn way(&self, from: PeerId, bytes: u64) -> u8 {
        let (known, choice) = &self.0[from as usize % PEERS];
        if *known != from {
            return 0;
        }
        choice.way(bytes)
    }

    /// What is known of a peer of which messages are under way.
    pub(in crate::engine) fn of(&mut self, from: PeerId) -> Option<&mut Choice> {
        let (known, choice) = &mut self.0[from as usize % PEERS];
        (*known == from).then_some(choice)
    }
}

#[cfg(test)]
mod tests;
