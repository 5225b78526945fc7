//! The adaptive selector of the protocol for large messages. It learns from measured times, for each peer and
//! size.
//!
//! No protocol is the fastest everywhere. A copy by the kernel costs a system call and a lookup of each page,
//! and on some machines runs at half the speed of a user-space copy; but it needs no CPU time of the sender.
//! In a stream both sides copy at the same time; its speed depends on the cost of moving a cache line between
//! the two cores, and on a sender that polls. On one test machine 64 KiB took 9 us by the kernel and 6 us as
//! a stream between neighbouring cores, but 23 us and 34 us between distant cores. A stream through cells
//! filled with non-temporal stores (`shared/port/copy_policy.rs` explains when that is faster) took 9 us
//! between either. No fixed threshold fits all machines, so the receiver measures. The cost is two clock
//! readings a message, and occasionally a few messages by another protocol.
//!
//! The unit of measurement is a *run*. A run consists of messages that overlap or follow each other at once,
//! up to a few megabytes; or of messages that arrive one at a time, up to 256 KiB. The result is the time of
//! the run divided by its bytes; idle times are excluded. A run with messages of several sizes is discarded.
//! Single and overlapping messages are learned separately, because the protocol with the lowest latency need
//! not have the highest throughput. The selector predicts that a run is of the same type as the preceding
//! run. The cost of a run goes to [`AdaptiveSelector`].
#![forbid(unsafe_code)]

use crate::port::{PeerId, Stores};
use crate::selector::AdaptiveSelector;
use crate::wire::rendezvous::MOST_PROTOCOLS;

/// The protocol that moves the data of a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::engine) enum Protocol {
    /// The receiver reads the sender's memory; see [`super::Pull`].
    #[default]
    Pull,
    /// The data is streamed through cells that the sender fills with non-temporal stores; see
    /// [`super::Stream`].
    StreamNonTemporal,
    /// The data is streamed through cells that the sender fills with plain stores. This protocol is tried
    /// last, because it can be much slower than the others.
    Stream,
}

impl Protocol {
    const ALL: [Self; PROTOCOLS] = [Self::Pull, Self::StreamNonTemporal, Self::Stream];

    fn of(protocol_number: u8) -> Self {
        Self::ALL.get(usize::from(protocol_number)).copied().unwrap_or_default()
    }

    /// Returns the copy policy by which a streaming sender fills its cells.
    pub(in crate::engine) const fn stores(self) -> Stores {
        match self {
            Self::StreamNonTemporal => Stores::NonTemporal,
            Self::Pull | Self::Stream => Stores::Cached,
        }
    }
}

/// Number of protocols to select from.
const PROTOCOLS: usize = MOST_PROTOCOLS as usize;

/// Number of size classes. Each is a power of two, from 8 KiB (which includes smaller sizes) to below 4 MiB.
const CLASSES: usize = 9;
const SMALLEST: u32 = 13;
/// Number of size classes, up to below 128 KiB, for which overlapping messages are learned. Messages beyond
/// the learned classes are pulled: there a pull with sender-assisted copy is always close to the best
/// protocol, and a trial would cost too much. (A window of messages is announced at once, and all of it moves
/// by the protocol on trial.)
const OVERLAPPING: usize = 4;
/// Most runs until another protocol is tried.
const LONGEST_WAIT: u16 = 1024;
/// If a message begins within this fraction of the duration of the preceding transfers, it counts as
/// following at once and belongs to their run.
const PAUSE: u64 = 4;
/// Bytes of a run of single messages. A run must be long enough that cells are reused: the first cells filled
/// by another method cost more than later ones.
const ALONE_BYTES: u64 = 256 << 10;
/// Bytes after which a run ends even if more messages are in progress.
const RUN_BYTES: u64 = 4 << 20;

/// The receiver's measurements of one peer.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::engine) struct ProtocolSelection {
    alone: [AdaptiveSelector<PROTOCOLS, LONGEST_WAIT>; CLASSES],
    /// The protocol that the peer last reported for messages from this process that travel alone, plus one.
    heard: [u8; CLASSES],
    overlapping: [AdaptiveSelector<PROTOCOLS, LONGEST_WAIT>; OVERLAPPING],
    /// Whether messages overlapped in the last run.
    overlap: bool,
    /// Messages in progress, and the number of them that began before the run, perhaps by another protocol.
    under_way: u32,
    stale: u32,
    /// Start time of the most recent group of transfers, and the end time of the last transfer.
    began: u64,
    ended: u64,
    run: Option<ProtocolRun>,
}

#[derive(Clone, Copy, Debug)]
struct ProtocolRun {
    class: usize,
    protocol_number: u8,
    since: u64,
    bytes: u64,
    /// Whether the run has messages of other sizes.
    mixed: bool,
    /// Whether messages overlap or follow each other at once.
    overlaps: bool,
}

fn class_of(bytes: u64) -> usize {
    bytes.max(1).ilog2().saturating_sub(SMALLEST) as usize
}

impl ProtocolSelection {
    /// Returns the protocol for a message of `bytes` bytes that begins at `now`.
    fn begin(&mut self, bytes: u64, now: u64, protocol_number: u8) -> Protocol {
        let class = class_of(bytes).min(CLASSES - 1);
        self.hear(class, protocol_number);
        if self.under_way == 0 {
            let pause = now.saturating_sub(self.ended);
            let at_once = pause < self.ended.saturating_sub(self.began) / PAUSE;
            match &mut self.run {
                Some(run) if at_once => run.overlaps = true,
                Some(run) if !run.overlaps && run.class == class && run.bytes < ALONE_BYTES => {
                    // Idle times are excluded.
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
                return Protocol::of(run.protocol_number);
            }
            run.mixed = true;
        }
        self.known(self.overlap, class).map_or(Protocol::Pull, |known| Protocol::of(known.preferred()))
    }

    /// Returns the protocol that this process uses for single messages of `bytes` bytes, plus one; 0 if
    /// nothing is learned for that size.
    fn protocol_number(&self, bytes: u64) -> u8 {
        self.alone.get(class_of(bytes)).map_or(0, |known| known.next() + 1)
    }

    /// Records the protocol that the peer reports for such messages. If the report has changed, this process
    /// tries that protocol too. One buffer may travel back and forth between the two processes, and the speed
    /// here then depends on how the peer copies: a cache line that another core has just read is slow to
    /// write.
    fn hear(&mut self, class: usize, protocol_number: u8) {
        if core::mem::replace(&mut self.heard[class], protocol_number) != protocol_number
            && let Some(protocol_number) = protocol_number.checked_sub(1)
        {
            self.alone[class].suggest(protocol_number);
        }
    }

    fn start(&mut self, class: usize, now: u64) {
        let protocol_number =
            self.known(self.overlap, class).map_or(Protocol::Pull as u8, |known| known.next());
        let overlaps = self.under_way > 1;
        self.stale = self.under_way;
        self.run = Some(ProtocolRun { class, protocol_number, since: now, bytes: 0, mixed: false, overlaps });
    }

    /// Excludes the current run from the measurement: a message did not move by the selected protocol, or an
    /// unmeasured message moves at the same time.
    pub(in crate::engine) fn spoil(&mut self) {
        if let Some(run) = &mut self.run {
            run.mixed = true;
        }
    }

    /// Records the end of a message that began with [`ProtocolSelection::begin`].
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
        let ProtocolRun { class, protocol_number, mixed, .. } = *run;
        self.close(now);
        self.start(class, now);
        if !mixed && self.run.is_some_and(|next| next.protocol_number == protocol_number) {
            // All messages in progress belong to the new run as well.
            self.stale = 0;
        }
    }

    /// Ends the run at time `end` and records its cost.
    fn close(&mut self, end: u64) {
        let Some(run) = self.run.take().filter(|run| run.bytes > 0) else { return };
        let expected = core::mem::replace(&mut self.overlap, run.overlaps);
        if !run.mixed
            && let Some(known) = self.known(run.overlaps, run.class)
        {
            let cost = end.saturating_sub(run.since).saturating_mul(4096) / run.bytes;
            known.record(run.protocol_number, cost.clamp(1, u32::MAX.into()) as u32);
        }
        if (run.mixed || expected != run.overlaps)
            && let Some(known) = self.known(expected, run.class)
        {
            known.miss();
        }
    }

    /// Returns the selector for a size class; `None` if nothing is learned for it.
    fn known(
        &mut self,
        overlap: bool,
        class: usize,
    ) -> Option<&mut AdaptiveSelector<PROTOCOLS, LONGEST_WAIT>> {
        if overlap { self.overlapping.get_mut(class) } else { self.alone.get_mut(class) }
    }
}

/// Number of peers that are learned at a time. Peers that share an entry replace each other; messages of a
/// peer without an entry are pulled.
const PEERS: usize = 16;

/// The receiver's measurements of its peers. The memory does not depend on the size of the world.
#[derive(Debug, Default)]
pub(in crate::engine) struct ProtocolSelections([(PeerId, ProtocolSelection); PEERS]);

impl ProtocolSelections {
    /// Returns the protocol for a message that begins. `None` if the message is not measured: it is then
    /// pulled and its end is not recorded. `protocol_number` is the protocol that the peer reports.
    pub(in crate::engine) fn begin(
        &mut self,
        from: PeerId,
        bytes: u64,
        now: u64,
        protocol_number: u8,
    ) -> Option<Protocol> {
        let (known, selection) = &mut self.0[from as usize % PEERS];
        if *known != from {
            if selection.under_way > 0 {
                return None;
            }
            (*known, *selection) = (from, ProtocolSelection::default());
        }
        if class_of(bytes) >= CLASSES {
            selection.spoil();
            return None;
        }
        Some(selection.begin(bytes, now, protocol_number))
    }

    /// Returns [`ProtocolSelection::protocol_number`] for a peer.
    pub(in crate::engine) fn protocol_number(&self, from: PeerId, bytes: u64) -> u8 {
        let (known, selection) = &self.0[from as usize % PEERS];
        if *known != from {
            return 0;
        }
        selection.protocol_number(bytes)
    }

    /// Returns the measurements of a peer that has messages in progress.
    pub(in crate::engine) fn of(&mut self, from: PeerId) -> Option<&mut ProtocolSelection> {
        let (known, selection) = &mut self.0[from as usize % PEERS];
        (*known == from).then_some(selection)
    }
}

#[cfg(test)]
mod tests;
