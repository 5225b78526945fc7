//! Incoming bytes of a connection. All of them are untrusted.
#![forbid(unsafe_code)]

use super::expected::DIRECT;
use super::link::{
    AwaitedReport, IncomingFrame, IncomingKind, LinkEnd, PendingReports, PlacementKind, PlacementLink,
    PlacementReply, PlacementWork, WorkBytes,
};
use super::regions::{NOWHERE, PlacementParts, PlacementRegions, Reach};
use super::{ByteStream, PlacementStorage, PullResult, STAGE_BYTES, StreamResult};
#[cfg(nemesia_injected_fault)]
use crate::injected_fault::{InjectedFault, injected};
use crate::payload::ScatterList;
use crate::port::memory::{LostError, RemoteRange, Slice, WorkError, WorkOutcome};
use crate::sync::in_order::LAST;
use crate::wire::placement::{Frame, MOST_ASKED, Parsed, Reason};

/// The system calls of one connection in one poll.
const CALLS: usize = 8;
/// The bytes copied at once from the peer's memory.
const PULLED: u64 = 1 << 20;

impl<S: ByteStream, P: PlacementStorage> PlacementLink<S, P> {
    /// Reads available bytes, and executes them. A short read ends this if the stream is reported again when more is
    /// there, unless it has ended (`is_last`).
    pub(super) fn take_in(
        &mut self,
        regions: &PlacementRegions<P>,
        reports: &mut PendingReports<P>,
        is_last: bool,
    ) -> Result<(), LinkEnd> {
        self.more_input = false;
        for _ in 0..CALLS {
            if self.incoming.is_some_and(|it| it.source.is_some()) {
                if self.pull(regions, reports)? {
                    continue;
                }
                break;
            }
            let (ahead, is_between) = (self.expected(), self.is_between_frames());
            let direct = self.incoming.filter(|it| self.input.is_empty() && it.len - it.done >= DIRECT);
            let mut list = ScatterList::new();
            let mut wanted = 0;
            if let (Some(expected), Some(receive)) = (ahead, self.receives.front()) {
                if !expected.list(&receive.parts, &mut self.input, regions, &mut list) {
                    self.ahead.forget();
                    continue;
                }
            } else {
                if let Some(incoming) = direct {
                    wanted = incoming.len - incoming.done - incoming.held();
                    if !regions.destinations(&incoming.parts, incoming.done, wanted, &mut list) {
                        return Err(gone(incoming.what, self.next_reply));
                    }
                }
                self.input.compact();
                list.push(self.input.room(STAGE_BYTES));
            }
            let most = list.bytes();
            let Some(stream) = &mut self.stream else { return Ok(()) };
            let count = match stream.read(&mut list) {
                StreamResult::Bytes(count) => count,
                StreamResult::Blocked => return Ok(()),
                StreamResult::Ended => return Err(LinkEnd::new(LostError::Closed)),
                StreamResult::Failed(error) => return Err(LinkEnd::new(error)),
            };
            self.ahead.begin(is_between);
            if let Some(expected) = ahead {
                self.take_ahead(expected, count, regions, reports)?;
            } else {
                let placed = wanted.min(count as u64);
                self.input.add(count - placed as usize);
                if let Some(incoming) = &mut self.incoming {
                    incoming.done += placed;
                }
            }
            self.digest(regions, reports)?;
            let is_short = S::REPORTS_REST && !is_last && count < most;
            if is_short && self.incoming.is_none_or(|it| it.source.is_none()) {
                return Ok(());
            }
        }
        self.more_input = true;
        Ok(())
    }

    /// Reads the next part of a payload from the peer's memory. Returns whether the bytes were there.
    fn pull(
        &mut self,
        regions: &PlacementRegions<P>,
        reports: &mut PendingReports<P>,
    ) -> Result<bool, LinkEnd> {
        let (Some(mut incoming), Some(stream)) = (self.incoming, self.stream.as_mut()) else {
            return Ok(false);
        };
        let Some(source) = incoming.source else { return Ok(false) };
        let count = (incoming.len - incoming.done).min(PULLED);
        let (mut list, mut last) = (ScatterList::new(), [0; LAST]);
        let held = if incoming.done + count == incoming.len { incoming.held() } else { 0 };
        if !regions.destinations(&incoming.parts, incoming.done, count - held, &mut list) {
            return Err(gone(incoming.what, self.next_reply));
        }
        let last = &mut last[..held as usize];
        list.push(last);
        match (stream.pull(source.wrapping_add(incoming.done), &mut list), incoming.what) {
            (PullResult::Done, _) => {}
            (PullResult::Later, _) => return Ok(false),
            (PullResult::Failed, IncomingKind::Reply) => {
                return Err(LinkEnd::work(self.next_reply, WorkError::RemoteOperation));
            }
            (PullResult::Failed, _) => return Err(LinkEnd::refuse(Reason::Failed)),
        }
        incoming.done += count;
        if !regions.scatter(&incoming.parts, incoming.done - held, last) {
            return Err(gone(incoming.what, self.next_reply));
        }
        self.incoming = Some(incoming);
        if incoming.done == incoming.len {
            self.incoming = None;
            self.pulled += u64::from(incoming.what == IncomingKind::Reply);
            self.arrived(incoming, reports);
            self.digest(regions, reports)?;
        }
        Ok(true)
    }

    /// Executes the bytes that were read.
    pub(super) fn digest(
        &mut self,
        regions: &PlacementRegions<P>,
        reports: &mut PendingReports<P>,
    ) -> Result<(), LinkEnd> {
        loop {
            if let Some(mut incoming) = self.incoming {
                if incoming.source.is_some() {
                    return Ok(());
                }
                let here = self.input.get();
                let left = incoming.len - incoming.done;
                let whole = if here.len() as u64 >= left { left } else { left - incoming.held() };
                let count = (here.len() as u64).min(whole) as usize;
                let bytes = here.get(..count).unwrap_or(here);
                if !regions.scatter(&incoming.parts, incoming.done, bytes) {
                    return Err(gone(incoming.what, self.next_reply));
                }
                self.input.remove(count);
                incoming.done += count as u64;
                self.incoming = Some(incoming);
                if incoming.done < incoming.len {
                    return Ok(());
                }
                self.incoming = None;
                self.arrived(incoming, reports);
                continue;
            }
            match Frame::parse(self.input.get()) {
                Parsed::Short => return Ok(()),
                Parsed::Malformed => return Err(LinkEnd::PROTOCOL),
                Parsed::Frame(frame, count) => {
                    self.input.remove(count);
                    self.ahead.see(&frame, count);
                    self.begin(frame, regions, reports)?;
                }
            }
        }
    }

    /// Handles the beginning of a frame.
    fn begin(
        &mut self,
        frame: Frame,
        regions: &PlacementRegions<P>,
        reports: &mut PendingReports<P>,
    ) -> Result<(), LinkEnd> {
        match frame {
            Frame::Write { len, to, immediate } => self.begin_write(regions, (to, len), immediate, None)?,
            Frame::WriteFrom { len, to, immediate, source } => {
                self.begin_write(regions, (to, len), immediate, Some(source))?;
            }
            Frame::Send { len, immediate } => self.begin_send(len, immediate)?,
            Frame::Read { len, from } => {
                let from = locate(regions, from, len, Reach::Read)?;
                self.answer(PlacementReply::Bytes { from, operation: self.executed })?;
            }
            Frame::Add { at, add } => {
                let old = change(regions, at, |old| old.wrapping_add(add))?;
                self.answer(PlacementReply::Value { old })?;
            }
            Frame::Swap { at, new, expected } => {
                let old = change(regions, at, |old| if old == expected { new } else { old })?;
                self.answer(PlacementReply::Value { old })?;
            }
            Frame::ReadReply { len } => self.begin_reply(len, None)?,
            Frame::ReadFrom { len, source } => self.begin_reply(len, Some(source))?,
            Frame::ValueReply { old } => self.take_value(old, regions, reports)?,
            Frame::Ack { executed, room } => self.acknowledge(executed, room, reports)?,
            Frame::Refuse { operation, reason } => return Err(self.refused(operation, reason)),
            Frame::Ask { wanted } => {
                if wanted > self.begun + MOST_ASKED || wanted < self.wanted {
                    return Err(LinkEnd::PROTOCOL);
                }
                self.wanted = wanted;
            }
            Frame::Pulled { count } => {
                if count < self.lent_done || count - self.lent_done > self.lent.len() as u64 {
                    return Err(LinkEnd::PROTOCOL);
                }
                while self.lent_done < count {
                    let _ = self.lent.pop_front();
                    self.lent_done += 1;
                }
            }
            Frame::CanPull => self.peer_pulls = true,
        }
        Ok(())
    }

    fn begin_write(
        &mut self,
        regions: &PlacementRegions<P>,
        (to, len): (RemoteRange, u32),
        immediate: Option<u32>,
        source: Option<u64>,
    ) -> Result<(), LinkEnd> {
        let parts = PlacementParts::new(&[locate(regions, to, len, Reach::Write)?]);
        if immediate.is_some() {
            self.begin_message()?;
        }
        self.expect(parts, len, IncomingKind::Write { immediate }, source)
    }

    fn begin_send(&mut self, len: u32, immediate: Option<u32>) -> Result<(), LinkEnd> {
        self.begin_message()?;
        let Some(receive) = self.receives.front().copied() else { return Err(LinkEnd::PROTOCOL) };
        if receive.parts.len() < u64::from(len) {
            let (lost, receive) = (LostError::Work, Some(WorkError::Length));
            return Err(LinkEnd { lost, receive, ..LinkEnd::refuse(Reason::Invalid) });
        }
        self.expect(receive.parts, len, IncomingKind::Send { immediate }, None)
    }

    fn begin_reply(&mut self, len: u32, source: Option<u64>) -> Result<(), LinkEnd> {
        match self.replied() {
            Some((PlacementKind::Read { .. }, wanted, parts)) if wanted == len => {
                self.expect(parts, len, IncomingKind::Reply, source)
            }
            _ => Err(LinkEnd::PROTOCOL),
        }
    }

    fn take_value(
        &mut self,
        old: u64,
        regions: &PlacementRegions<P>,
        reports: &mut PendingReports<P>,
    ) -> Result<(), LinkEnd> {
        let Some((PlacementKind::Add { .. } | PlacementKind::Swap { .. }, _, parts)) = self.replied() else {
            return Err(LinkEnd::PROTOCOL);
        };
        if !regions.scatter(&parts, 0, &old.to_ne_bytes()) {
            return Err(LinkEnd::work(self.next_reply, WorkError::Local));
        }
        self.have_reply(reports);
        Ok(())
    }

    /// Expects a payload, which follows or lies in the peer's memory. Only a peer that reported that ability
    /// may use the latter.
    fn expect(
        &mut self,
        parts: PlacementParts,
        len: u32,
        what: IncomingKind,
        source: Option<u64>,
    ) -> Result<(), LinkEnd> {
        if source.is_some() && !self.reported_pulls {
            return Err(LinkEnd::PROTOCOL);
        }
        self.incoming = Some(IncomingFrame { parts, len: len.into(), done: 0, what, source });
        #[cfg(nemesia_injected_fault)]
        if injected(InjectedFault::AckEarly) && what != IncomingKind::Reply {
            self.executed += 1;
        }
        Ok(())
    }

    /// Begins a message, for which there must be a receive.
    fn begin_message(&mut self) -> Result<(), LinkEnd> {
        if self.begun >= self.granted || self.receives.is_empty() {
            return Err(LinkEnd::PROTOCOL);
        }
        self.begun += 1;
        Ok(())
    }

    fn answer(&mut self, reply: PlacementReply) -> Result<(), LinkEnd> {
        if !self.replies.push_back(reply) {
            return Err(LinkEnd::PROTOCOL);
        }
        self.executed += 1;
        Ok(())
    }

    /// Returns the work request of the next reply: its kind, its length, and its destination.
    fn replied(&mut self) -> Option<(PlacementKind, u32, PlacementParts)> {
        // The places of completed requests may be in use again.
        self.next_reply = self.next_reply.max(self.completed);
        while self.next_reply < self.sent {
            let posted = self.at(self.next_reply)?;
            if posted.kind.is_answered() && !posted.answered {
                let WorkBytes::Parts(parts) = posted.local else { return None };
                return Some((posted.kind, posted.len, parts));
            }
            self.next_reply += 1;
        }
        None
    }

    fn have_reply(&mut self, reports: &mut PendingReports<P>) {
        if let Some(posted) = self.at_mut(self.next_reply) {
            posted.answered = true;
        }
        self.next_reply += 1;
        self.unanswered = self.unanswered.saturating_sub(1);
        self.complete(reports);
    }

    /// Handles a payload whose bytes are all placed.
    pub(super) fn arrived(&mut self, incoming: IncomingFrame, reports: &mut PendingReports<P>) {
        let len = incoming.len as u32;
        match incoming.what {
            IncomingKind::Reply => return self.have_reply(reports),
            IncomingKind::Send { immediate } => {
                if self.awaited == AwaitedReport::Write {
                    self.awaited = AwaitedReport::KnownWrite;
                }
                self.finish_receive(reports, WorkOutcome::Received { len, immediate, written: false });
            }
            IncomingKind::Write { immediate: Some(immediate) } => {
                let immediate = Some(immediate);
                self.awaited = AwaitedReport::KnownWrite;
                self.finish_receive(reports, WorkOutcome::Received { len, immediate, written: true });
            }
            IncomingKind::Write { immediate: None } => {
                if self.awaited == AwaitedReport::Nothing {
                    self.awaited = AwaitedReport::Write;
                }
            }
        }
        #[cfg(nemesia_injected_fault)]
        if injected(InjectedFault::AckEarly) {
            return;
        }
        self.executed += 1;
    }

    fn acknowledge(
        &mut self,
        executed: u64,
        room: u64,
        reports: &mut PendingReports<P>,
    ) -> Result<(), LinkEnd> {
        // A request that has not gone out completely cannot have been executed.
        let unfinished = self.body.is_some_and(|body| body.work.is_some());
        let most = self.sent - u64::from(unfinished);
        if executed < self.acked || executed > most || room < self.room {
            return Err(LinkEnd::PROTOCOL);
        }
        (self.acked, self.room) = (executed, room);
        self.complete(reports);
        Ok(())
    }

    /// Handles the peer's refusal of an operation. The operations before it were executed.
    fn refused(&mut self, operation: u64, reason: Reason) -> LinkEnd {
        let pending = operation >= self.completed && operation < self.sent;
        let waits = |posted: &PlacementWork| {
            !posted.answered && (posted.kind.is_answered() || operation >= self.acked)
        };
        if !pending || !self.at(operation).is_some_and(waits) {
            return LinkEnd::PROTOCOL;
        }
        self.acked = self.acked.max(operation);
        let error = match reason {
            Reason::Access => WorkError::Refused,
            Reason::Invalid => WorkError::Invalid,
            Reason::Failed => WorkError::RemoteOperation,
        };
        LinkEnd::work(operation, error)
    }
}

/// Returns the destination of a peer's access.
fn locate<P: PlacementStorage>(
    regions: &PlacementRegions<P>,
    at: RemoteRange,
    len: u32,
    reach: Reach,
) -> Result<Slice, LinkEnd> {
    if len == 0 {
        return Ok(NOWHERE);
    }
    let (region, offset) = regions.reach(at, len, reach).ok_or(LinkEnd::refuse(Reason::Access))?;
    Ok(Slice { region, offset, len })
}

fn change<P: PlacementStorage>(
    regions: &PlacementRegions<P>,
    at: RemoteRange,
    change: impl Fn(u64) -> u64,
) -> Result<u64, LinkEnd> {
    let (region, offset) = regions.reach(at, 8, Reach::Atomic).ok_or(LinkEnd::refuse(Reason::Access))?;
    regions.update(region, offset, change).ok_or(LinkEnd::refuse(Reason::Invalid))
}

/// Returns the end of a connection whose destination memory was deregistered.
fn gone(what: IncomingKind, next_reply: u64) -> LinkEnd {
    match what {
        IncomingKind::Write { .. } => LinkEnd::refuse(Reason::Access),
        IncomingKind::Send { .. } => {
            LinkEnd { receive: Some(WorkError::Local), ..LinkEnd::refuse(Reason::Failed) }
        }
        IncomingKind::Reply => LinkEnd::work(next_reply, WorkError::Local),
    }
}
