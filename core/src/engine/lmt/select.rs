//! The adaptive selector of the protocol for large messages. It learns from measured times, for each peer and
//! size.
//!
//! No protocol is the fastest everywhere. A copy by the kernel costs a system call and a lookup of each page,
//! and on some machines runs at half the speed of a user-space copy; but it needs no CPU time of the sender. In
//! a stream both sides copy at the same time; its speed depends on the cost of moving a cache line between the
//! two cores, and on a sender that polls. On one test machine 64 KiB took 9 us by the kernel and 6 us as a
//! stream between neighbouring cores, but 23 us and 34 us between distant cores. (By which stores the cells are
//! filled is learned below, in `shared/port/pace.rs`.) A sender that helped to copy 1 MiB saved a third of the
//! time on another machine, but doubled it where both buffers began a few bytes apart within their pages. No
//! fixed threshold fits all machines, so the receiver measures. The cost is two clock readings a message, and
//! occasionally a few messages by another protocol.
//!
//! The unit of measurement is a [*run*](crate::selector::run): messages of one size class that overlap, or
//! that arrive one at a time. The result is the time of the run divided by its bytes; idle
//! times are excluded. A run in which messages of several sizes overlap is discarded. Single and overlapping
//! messages are learned separately, because the protocol with the lowest latency need not have the highest
//! throughput. A pull keeps the receiver from the next message of a window. So messages that follow each other at once
//! count as overlapping, too: otherwise the type would depend on the protocol. For the same reason a pause is compared
//! with the shortest time of such a message, whatever its protocol. The selector predicts that a run is of the same
//! type as the preceding run. Lists are learned separately from contiguous messages, because each run of a list costs
//! the kernel additional time.
//!
//! Messages of a window are announced at once. Only as many of them as a trial needs move by the protocol on
//! trial; the others move by the preferred one.
//!
//! The messages of a window begin before any has ended, so all of them move by the protocol with which the selector
//! starts. For a peer that can put, that is the put: devices have many writes of a connection under way, and few reads.
//! Inside a machine all messages but the largest start with the stream, whose two copies are usually faster than the
//! kernel's one.
//!
//! The first message of a size takes over what is known of the nearest size, so that a protocol that is slow
//! for all sizes is not tested with each. All of a peer's trials share one [`TrialBudget`].
#![forbid(unsafe_code)]

use core::borrow::BorrowMut;

use super::ask::AskSelection;
use crate::engine::state::Protocol;
use crate::port::{PeerId, Rendezvous};
use crate::selector::run::Run;
use crate::selector::{AdaptiveSelector, RunAmount, TrialBudget};
use crate::wire::rendezvous::MOST_PROTOCOLS;

/// Number of protocols to select from.
const PROTOCOLS: usize = MOST_PROTOCOLS as usize;

/// Number of size classes. Each is a power of two, from 8 KiB (which includes smaller sizes) to below 4 MiB. The last
/// one has all larger messages.
const CLASSES: usize = 10;
const LARGE: usize = CLASSES - 1;
const SMALLEST: u32 = 13;
/// Most runs until another protocol is tried.
const LONGEST_WAIT: u16 = 1024;
/// Bytes of a run of single messages. A run must be long enough that cells are reused: the first cells filled
/// by another method cost more than later ones.
const ALONE_BYTES: u64 = 256 << 10;
/// Bytes of a run of overlapping messages.
const RUN_BYTES: u64 = 1 << 20;
/// Most messages of a run. The shorter the runs, the sooner a change is noticed.
const RUN_MESSAGES: u64 = 16;
/// A message that begins within this part of the shortest time of such messages follows the one before, as in a window.
/// Between messages that travel alone the peer or this process has something else to do.
const CLOSE: u32 = 4;
/// The shortest time grows by this part with each message, so that it follows a machine that became slower.
const FORGET: u32 = 64;
/// A small message may cost this power of two more for each byte than a message of the next size.
const OVERHEAD: u8 = 1;

/// The option of the pull in [`Protocol::ALL`].
const PULL: u8 = 1;
const _: () = assert!(matches!(Protocol::ALL[PULL as usize], Protocol::Pull));

type ProtocolSelector = AdaptiveSelector<PROTOCOLS, LONGEST_WAIT>;
/// The run of a size class and form. Costs are in ticks for 4096 bytes.
type ProtocolRun = Run<MessageClass, 4096>;

/// The size class and form of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct MessageClass {
    size: usize,
    is_list: bool,
}

/// A message that begins: its bytes, whether a buffer at either side is a list, and what the port to the peer offers.
#[derive(Clone, Copy, Debug)]
pub(in crate::engine) struct MessageForm {
    pub(in crate::engine) bytes: u64,
    pub(in crate::engine) is_list: bool,
    pub(in crate::engine) offered: Rendezvous,
}

/// The receiver's measurements of one peer.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::engine) struct ProtocolSelection {
    /// The selectors of single and of overlapping messages, each for contiguous messages and for lists.
    selectors: [[[ProtocolSelector; CLASSES]; 2]; 2],
    budget: TrialBudget,
    /// What the port to the peer offers.
    offered: Rendezvous,
    /// The protocol that the peer last reported for messages from this process that travel alone, plus one.
    heard: [u8; CLASSES],
    /// Whether the last message of each size was a list. The report to the peer is about messages of that form.
    lists: [bool; CLASSES],
    /// Whether messages overlapped in the last run.
    overlap: bool,
    /// Messages in progress, and the number of them that began before the run, perhaps by another protocol.
    under_way: u32,
    stale: u32,
    /// End time of the last transfer.
    ended: u64,
    /// When the message began that is under way alone; `None` if another was under way beside it.
    alone_since: Option<u64>,
    /// The shortest time of a message of each size that was under way alone; 0 if there was none.
    shortest: [u32; CLASSES],
    run: Option<ProtocolRun>,
    /// Whether messages of the run overlap.
    overlaps: bool,
}

const fn class_of(bytes: u64) -> usize {
    let bytes = if bytes == 0 { 1 } else { bytes };
    let class = bytes.ilog2().saturating_sub(SMALLEST) as usize;
    if class < LARGE { class } else { LARGE }
}

impl ProtocolSelection {
    /// Returns the protocol for a message that begins at `now`.
    fn begin(&mut self, message: MessageForm, now: u64, protocol_number: u8) -> Protocol {
        let MessageForm { bytes, is_list, offered } = message;
        self.offered = offered;
        let class = MessageClass { size: class_of(bytes), is_list };
        self.hear(class, protocol_number);
        self.alone_since = None;
        if self.under_way == 0 {
            self.begin_group(class, bytes, now);
            self.alone_since = Some(now);
        }
        self.under_way = self.under_way.saturating_add(1);
        let preferred = self.known(self.overlap, class).preferred();
        let Some(run) = &mut self.run else { return Protocol::of(preferred) };
        self.overlaps |= self.under_way > 1;
        if run.class == class {
            let planned = run.begin(bytes);
            let is_unforeseen = offered.get && offered.put && self.under_way > 1 && !self.overlap;
            return Protocol::of(if is_unforeseen { self.overlapping(class) } else { planned });
        }
        run.spoil();
        Protocol::of(preferred)
    }

    /// Returns the protocol for messages of this class that overlap although they were not expected to.
    fn overlapping(&mut self, class: MessageClass) -> u8 {
        self.inherit(true, class);
        self.known(true, class).preferred()
    }

    /// Continues the run with a message that begins while no other is in progress, or starts a run.
    fn begin_group(&mut self, class: MessageClass, bytes: u64, now: u64) {
        let (end, idle) = (self.ended, now.saturating_sub(self.ended));
        // A pull keeps this process from the next message, which may have been there for long.
        let follows = idle < u64::from(self.shortest[class.size] / CLOSE);
        self.overlaps |= follows;
        match &mut self.run {
            Some(run) if run.class == class && !run.is_over(end) => {
                if !follows {
                    run.pause(idle);
                }
            }
            _ => {
                self.close(end);
                self.start(class, bytes, now);
                self.overlaps = follows;
            }
        }
    }

    /// Returns the protocol that this process uses for single messages of `bytes` bytes, in the form of the last one,
    /// plus one; 0 if nothing is learned for that size.
    fn protocol_number(&self, bytes: u64) -> u8 {
        let size = class_of(bytes);
        let form = usize::from(self.lists.get(size).is_some_and(|is_list| *is_list));
        self.selectors[0][form].get(size).map_or(0, |known| known.current() + 1)
    }

    /// Records the protocol that the peer reports for such messages. If the report has changed, this process
    /// tries that protocol too. One buffer may travel back and forth between the two processes, and the speed
    /// here then depends on how the peer copies: a cache line that another core has just read is slow to
    /// write.
    fn hear(&mut self, MessageClass { size, is_list }: MessageClass, protocol_number: u8) {
        self.lists[size] = is_list;
        if core::mem::replace(&mut self.heard[size], protocol_number) != protocol_number
            && let Some(protocol_number) = protocol_number.checked_sub(1)
        {
            self.selectors[0][usize::from(is_list)][size].suggest(protocol_number);
        }
    }

    /// Starts a run with a message of this class.
    fn start(&mut self, class: MessageClass, bytes: u64, now: u64) {
        let full = if self.overlap { RUN_BYTES } else { ALONE_BYTES }.min(bytes.saturating_mul(RUN_MESSAGES));
        self.inherit(self.overlap, class);
        let full = full.max(bytes);
        // One message of a window shows how long it takes itself, and not how many bytes move meanwhile.
        let least = if self.overlap { full.div_ceil(2).max(bytes) } else { bytes };
        let amount = RunAmount { first: bytes, least, full };
        let selector = &mut self.selectors[usize::from(self.overlap)][usize::from(class.is_list)][class.size];
        let plan = selector.plan(amount, &self.budget);
        (self.stale, self.overlaps) = (self.under_way, false);
        self.run = Some(Run::start(class, plan, now));
    }

    /// Returns the option with which messages of this size start, if nothing is known of any.
    const fn first(&self, overlap: bool, size: usize) -> u8 {
        match self.offered {
            Rendezvous { get: true, put: true, .. } => overlap as u8,
            Rendezvous { put: false, .. } if size == LARGE => PULL,
            _ => 0,
        }
    }

    /// If nothing is known of a class, it takes over what is known of the nearest one in which the options stand for
    /// the same protocols.
    fn inherit(&mut self, overlap: bool, class: MessageClass) {
        if !self.known(overlap, class).is_new() {
            return;
        }
        let forms = [class.is_list, !class.is_list];
        let classes = forms
            .into_iter()
            .flat_map(|is_list| (0..CLASSES).map(move |size| MessageClass { size, is_list }))
            .filter(|other| (other.size == LARGE) == (class.size == LARGE));
        let complete = classes.filter(|other| self.known(overlap, *other).is_complete());
        let nearest =
            complete.min_by_key(|other| (other.size.abs_diff(class.size), other.is_list != class.is_list));
        let from = nearest.map(|nearest| (nearest.size, *self.known(overlap, nearest)));
        let first = self.first(overlap, class.size);
        let selector = &mut self.selectors[usize::from(overlap)][usize::from(class.is_list)][class.size];
        match from {
            Some((size, from)) => {
                selector.inherit(&from, OVERHEAD.max(size.saturating_sub(class.size) as u8));
            }
            None => *selector = ProtocolSelector::preferring(first),
        }
    }

    /// Excludes the current run from the measurement: a message did not move by the selected protocol, or an
    /// unmeasured message moves at the same time.
    pub(in crate::engine) fn spoil(&mut self) {
        if let Some(run) = &mut self.run {
            run.spoil();
        }
    }

    /// Records the end of a message that began with [`ProtocolSelection::begin`], and moved by `protocol`.
    pub(in crate::engine) fn end(&mut self, bytes: u64, protocol: Protocol, now: u64) {
        self.under_way = self.under_way.saturating_sub(1);
        self.ended = now;
        if let Some(begun) = self.alone_since.take() {
            self.shorten(class_of(bytes), now.saturating_sub(begun));
        }
        let Some(run) = &mut self.run else { return };
        if self.stale > 0 {
            self.stale -= 1;
            return run.restart(now);
        }
        if protocol.number() == run.option() {
            run.end(bytes);
        } else {
            run.end_beside(bytes);
        }
        if !run.is_over(now) || self.under_way == 0 {
            return;
        }
        let (last, overlaps) = (*run, self.overlaps);
        self.close(now);
        self.start(last.class, bytes, now);
        self.overlaps = overlaps;
        let is_same = self.run.is_some_and(|next| next.option() == last.option());
        if is_same && last.is_uniform() && !last.is_spoiled() {
            // All messages in progress belong to the new run as well.
            self.stale = 0;
        }
    }

    /// Takes note of the time of a message that was under way alone.
    fn shorten(&mut self, size: usize, took: u64) {
        let took = u32::try_from(took).unwrap_or(u32::MAX);
        let shortest = &mut self.shortest[size];
        *shortest = match *shortest {
            0 => took,
            known => took.min(known.saturating_add(known / FORGET)),
        };
    }

    /// Ends the run at time `end` and records its cost.
    fn close(&mut self, end: u64) {
        let Some(mut run) = self.run.take().filter(|run| run.has_work() || run.is_spoiled()) else { return };
        let (overlaps, class) = (self.overlaps, run.class);
        let expected = core::mem::replace(&mut self.overlap, overlaps);
        if expected != overlaps && !run.is_spoiled() {
            self.inherit(overlaps, class);
            let selector = &mut self.selectors[usize::from(overlaps)][usize::from(class.is_list)][class.size];
            run.close(end, selector, &mut self.budget);
            run.spoil();
        }
        let selector = &mut self.selectors[usize::from(expected)][usize::from(class.is_list)][class.size];
        run.close(end, selector, &mut self.budget);
    }

    /// Returns the selector of a class.
    const fn known(&self, overlap: bool, class: MessageClass) -> &ProtocolSelector {
        &self.selectors[overlap as usize][class.is_list as usize][class.size]
    }
}

/// The measurements of one peer, or of several that share the slot. Private to the engine; public only so that the
/// caller can lend its storage.
#[derive(Clone, Copy, Debug, Default)]
pub struct PeerSelection {
    peer: PeerId,
    selection: ProtocolSelection,
    asking: AskSelection,
}

/// The measurements of the peers, in lent storage. Peers that share a slot replace each other; messages of a peer
/// without a slot are pulled.
#[derive(Debug)]
pub(in crate::engine) struct ProtocolSelections<T>(T);

impl<T: BorrowMut<[PeerSelection]>> ProtocolSelections<T> {
    /// Returns measurements in this storage, of which nothing is known yet.
    pub(in crate::engine) const fn new(storage: T) -> Self {
        Self(storage)
    }

    fn slot(&mut self, from: PeerId) -> Option<&mut PeerSelection> {
        let slots = self.0.borrow_mut();
        let at = (from as usize).checked_rem(slots.len())?;
        slots.get_mut(at)
    }

    /// Returns the protocol for a message that begins. `None` if the message is not measured: it is then
    /// pulled and its end is not recorded. `protocol_number` is the protocol that the peer reports.
    pub(in crate::engine) fn begin(
        &mut self,
        from: PeerId,
        message: MessageForm,
        now: u64,
        protocol_number: u8,
    ) -> Option<Protocol> {
        self.claim(from).map(|slot| slot.selection.begin(message, now, protocol_number))
    }

    /// Returns the slot that a peer has.
    fn kept(&mut self, peer: PeerId) -> Option<&mut PeerSelection> {
        self.slot(peer).filter(|slot| slot.peer == peer)
    }

    /// Returns the slot of a peer, which may have been another's. `None` if that one has messages in progress.
    fn claim(&mut self, peer: PeerId) -> Option<&mut PeerSelection> {
        let slot = self.slot(peer)?;
        if slot.peer != peer {
            if slot.selection.under_way > 0 {
                return None;
            }
            *slot = PeerSelection { peer, ..PeerSelection::default() };
        }
        Some(slot)
    }

    /// Returns the sender's measurements of a peer. `None` if its messages are not measured.
    pub(in crate::engine) fn asking(&mut self, to: PeerId) -> Option<&mut AskSelection> {
        self.claim(to).map(|slot| &mut slot.asking)
    }

    /// Forgets what was measured of a peer.
    pub(in crate::engine) fn forget(&mut self, peer: PeerId) {
        if let Some(slot) = self.kept(peer) {
            *slot = PeerSelection { peer, ..PeerSelection::default() };
        }
    }

    /// Returns [`ProtocolSelection::protocol_number`] for a peer.
    pub(in crate::engine) fn protocol_number(&mut self, from: PeerId, bytes: u64) -> u8 {
        self.of(from).map_or(0, |selection| selection.protocol_number(bytes))
    }

    /// Returns the measurements of a peer that has messages in progress.
    pub(in crate::engine) fn of(&mut self, from: PeerId) -> Option<&mut ProtocolSelection> {
        self.kept(from).map(|slot| &mut slot.selection)
    }
}

#[cfg(test)]
mod tests;
