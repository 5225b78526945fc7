//! Outgoing bytes of a connection.
#![forbid(unsafe_code)]

use super::link::{
    AwaitedReport, LinkEnd, OutgoingBody, PlacementKind, PlacementLink, PlacementReply, PlacementWork,
    WorkBytes,
};
use super::regions::{PlacementParts, PlacementRegions};
use super::{ByteStream, PlacementStorage, StreamResult};
#[cfg(nemesia_injected_fault)]
use crate::injected_fault::{InjectedFault, injected};
use crate::payload::GatherList;
use crate::port::memory::{ConnectionState, LostError, Slice, WorkError};
use crate::wire::placement::{FRAME_BYTES, Frame, MOST_ASKED, MOST_FRAME_BYTES, MOST_REPLIES, Reason};

/// Payloads up to this length are copied, and go out with their frame and with others.
pub(super) const COPIED: usize = 2048;
/// Payloads from this length on are read by the peer from their place, if the peer can do that.
const LENT: u32 = 32 << 10;
/// The system calls of one connection in one poll.
const CALLS: usize = 8;

/// The polls for which a report to the peer waits for something to go with: a reply of the application leaves in the
/// same system call.
const HOLD_POLLS: u8 = 4;
/// From so many unreported operations or receives on, the report does not wait.
const HOLD_MOST: u64 = 8;

/// The receives that a peer learns of in spite of the injected fault.
#[cfg(nemesia_injected_fault)]
const INITIAL_ROOM: u64 = 8;

/// What a peer is told beside replies and requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DueReport {
    /// What was executed, and the receives that there are.
    Progress,
    /// The replies that were read from the peer's memory.
    Pulled,
    /// That this process can read the peer's memory.
    CanPull,
}

/// Whether more can be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flow {
    /// Everything has gone out.
    Idle,
    /// The stream takes no more now.
    Blocked,
    /// It may take more, but it is another connection's turn.
    More,
}

impl<S: ByteStream, P: PlacementStorage> PlacementLink<S, P> {
    /// Returns whether there is nothing to send but a report that can wait for the next poll.
    pub(super) fn holds_report(&mut self) -> bool {
        let (executed, granted) =
            (self.executed - self.executed_reported, self.granted - self.granted_reported);
        let is_all = self.sent == self.posted
            && self.replies.is_empty()
            && self.body.is_none()
            && self.stage.rest().is_empty()
            && self.pulled == self.pulled_reported;
        let is_urgent = executed >= HOLD_MOST
            || granted >= HOLD_MOST
            || self.wanted > self.granted_reported
            || self.awaited == AwaitedReport::KnownWrite;
        let holds = executed + granted > 0 && is_all && !is_urgent && self.held < HOLD_POLLS;
        #[cfg(nemesia_injected_fault)]
        if holds && injected(InjectedFault::ForgetHeld) {
            (self.executed_reported, self.granted_reported) = (self.executed, self.granted);
        }
        self.held = if holds { self.held + 1 } else { 0 };
        holds
    }

    /// Writes outgoing bytes as long as the stream takes them.
    pub(super) fn send_out(&mut self, regions: &PlacementRegions<P>) -> Result<Flow, LinkEnd> {
        if !self.has_output() {
            return Ok(Flow::Idle);
        }
        for _ in 0..CALLS {
            self.fill(regions)?;
            let mut list = GatherList::new();
            let rest = self.stage.rest();
            let staged = rest.len();
            list.push(rest);
            if let Some(body) = self.body
                && !regions.sources(&body.parts, body.done, body.len - body.done, &mut list)
            {
                // It was deregistered in the middle of its frame.
                let end = body.work.map(|number| LinkEnd::work(number, WorkError::Local));
                return Err(end.unwrap_or(LinkEnd::new(LostError::Access)));
            }
            if list.is_empty() {
                return Ok(Flow::Idle);
            }
            let Some(stream) = &mut self.stream else { return Err(LinkEnd::new(LostError::Unreachable)) };
            match stream.write(&list) {
                StreamResult::Bytes(count) => self.gone_out(count, staged),
                StreamResult::Blocked => return Ok(Flow::Blocked),
                StreamResult::Ended => return Err(LinkEnd::new(LostError::Closed)),
                StreamResult::Failed(error) => return Err(LinkEnd::new(error)),
            }
        }
        Ok(Flow::More)
    }

    /// Returns whether anything is to be sent, now or when the peer has room for it.
    fn has_output(&mut self) -> bool {
        self.sent < self.posted
            || self.body.is_some()
            || !self.replies.is_empty()
            || !self.stage.rest().is_empty()
            || self.due_report().is_some()
    }

    /// Returns the next report that the peer must get.
    fn due_report(&mut self) -> Option<DueReport> {
        if self.executed > self.executed_reported || self.granted > self.granted_reported {
            Some(DueReport::Progress)
        } else if self.pulled > self.pulled_reported {
            Some(DueReport::Pulled)
        } else if !self.reported_pulls && self.stream.as_mut().is_some_and(ByteStream::can_pull) {
            Some(DueReport::CanPull)
        } else {
            None
        }
    }

    pub(super) fn gone_out(&mut self, count: usize, staged: usize) {
        let first = count.min(staged);
        self.stage.advance(first);
        if let Some(body) = &mut self.body {
            body.done += (count - first) as u64;
            #[cfg(nemesia_injected_fault)]
            if count > first && injected(InjectedFault::DropRest) {
                body.done = body.len;
            }
            if body.done == body.len {
                self.body = None;
            }
        }
    }

    /// Adds frames to the stage as long as they fit and no body must follow directly from memory.
    fn fill(&mut self, regions: &PlacementRegions<P>) -> Result<(), LinkEnd> {
        while self.state == ConnectionState::Ready
            && self.body.is_none()
            && self.has_stage_room(MOST_FRAME_BYTES + COPIED)
        {
            if self.fill_report() {
                continue;
            }
            self.turn = !self.turn;
            let did = self.turn && self.fill_reply(regions)?
                || self.fill_request(regions)?
                || !self.turn && self.fill_reply(regions)?;
            if !did {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Adds a report to the peer, for which there is room. Returns false if none is due.
    pub(super) fn fill_report(&mut self) -> bool {
        match self.due_report() {
            Some(DueReport::Progress) => {
                (self.executed_reported, self.granted_reported) = (self.executed, self.granted);
                self.awaited = AwaitedReport::Nothing;
                let room = self.granted;
                // Of the receives that were posted later, the peer never learns.
                #[cfg(nemesia_injected_fault)]
                let room = if injected(InjectedFault::ForgetRoom) { room.min(INITIAL_ROOM) } else { room };
                self.stage_frame(&Frame::Ack { executed: self.executed, room });
                self.held = 0;
            }
            Some(DueReport::Pulled) => {
                self.pulled_reported = self.pulled;
                self.stage_frame(&Frame::Pulled { count: self.pulled });
            }
            Some(DueReport::CanPull) => {
                self.reported_pulls = true;
                self.stage_frame(&Frame::CanPull);
            }
            None => return false,
        }
        true
    }

    /// Adds the next reply. Returns false if there is none.
    fn fill_reply(&mut self, regions: &PlacementRegions<P>) -> Result<bool, LinkEnd> {
        match self.replies.pop_front() {
            None => return Ok(false),
            Some(PlacementReply::Value { old }) => self.stage_frame(&Frame::ValueReply { old }),
            Some(PlacementReply::Bytes { from, operation }) => {
                if self.lent.len() < MOST_REPLIES
                    && let Some(source) = self.lent_source(regions, from, from.len)
                {
                    self.stage_frame(&Frame::ReadFrom { len: from.len, source });
                    let _ = self.lent.push_back(from.region);
                    return Ok(true);
                }
                self.stage_frame(&Frame::ReadReply { len: from.len });
                if !self.fill_bytes(regions, PlacementParts::new(&[from]), from.len, None) {
                    // It was deregistered after the request. Nothing of this frame has gone out.
                    self.stage.truncate(self.stage.len() - FRAME_BYTES);
                    self.executed = operation;
                    return Err(LinkEnd::refuse(Reason::Access));
                }
            }
        }
        Ok(true)
    }

    /// Adds the bytes behind a frame: copied, or to follow from their place. Returns false if they were
    /// deregistered.
    fn fill_bytes(
        &mut self,
        regions: &PlacementRegions<P>,
        parts: PlacementParts,
        len: u32,
        work: Option<u64>,
    ) -> bool {
        if len as usize > COPIED {
            self.body = Some(OutgoingBody { parts, len: len.into(), done: 0, work });
            // Checked now, not in the middle of the frame.
            return regions.hold(&parts);
        }
        let start = self.stage.len();
        let to = self.stage.grow(len as usize);
        if to.is_some_and(|to| regions.gather(&parts, 0, to)) {
            return true;
        }
        self.stage.truncate(start);
        false
    }

    /// Adds the next work request. Returns false if none may go.
    fn fill_request(&mut self, regions: &PlacementRegions<P>) -> Result<bool, LinkEnd> {
        let number = self.sent;
        if number == self.posted {
            return Ok(false);
        }
        let Some(posted) = self.at(number).copied() else { return Ok(false) };
        if !self.may_go(&posted) {
            return Ok(false);
        }
        let source = match posted.local {
            WorkBytes::Parts(parts) => {
                parts.single().and_then(|it| self.lent_source(regions, it, posted.len))
            }
            _ => None,
        };
        let lent = source.is_some() && matches!(posted.kind, PlacementKind::Write { .. });
        let frame = match posted.kind {
            PlacementKind::Write { to, immediate } => match source {
                Some(source) => Frame::WriteFrom { len: posted.len, to, immediate, source },
                None => Frame::Write { len: posted.len, to, immediate },
            },
            PlacementKind::Read { from } => Frame::Read { len: posted.len, from },
            PlacementKind::Send { immediate } => Frame::Send { len: posted.len, immediate },
            PlacementKind::Add { at, add } => Frame::Add { at, add },
            PlacementKind::Swap { at, expected, new } => Frame::Swap { at, new, expected },
        };
        let before = self.stage.len();
        self.stage_frame(&frame);
        match posted.local {
            _ if posted.kind.is_answered() => self.unanswered += 1,
            _ if lent => {
                if let Some(posted) = self.at_mut(number) {
                    posted.lent = true;
                }
            }
            WorkBytes::Inline(bytes) => {
                let has_room = bytes.get(..posted.len as usize).is_some_and(|bytes| self.stage.push(bytes));
                debug_assert!(has_room, "`fill` has checked that a payload fits");
            }
            WorkBytes::Parts(parts) => {
                if !self.fill_bytes(regions, parts, posted.len, Some(number)) {
                    self.body = None;
                    self.stage.truncate(before);
                    return Err(LinkEnd::work(number, WorkError::Local));
                }
            }
        }
        self.messages += u64::from(posted.kind.is_message());
        self.sent += 1;
        Ok(true)
    }

    /// Returns whether the peer should read a payload of this length from its place.
    pub(super) const fn lends(&self, len: u32) -> bool {
        self.peer_pulls && len >= LENT
    }

    /// Returns the address from which the peer should read a payload; `None` if the payload goes into the stream.
    fn lent_source(&mut self, regions: &PlacementRegions<P>, from: Slice, len: u32) -> Option<u64> {
        let source = if self.lends(len) { regions.address(from)? } else { return None };
        self.stream.as_mut()?.may_lend(source, len).then_some(source)
    }

    /// Returns whether a work request may go out now. Requests room if that is missing.
    fn may_go(&mut self, posted: &PlacementWork) -> bool {
        if posted.fence && self.unanswered > 0 {
            return false;
        }
        if posted.kind.is_answered() && self.unanswered as usize >= MOST_REPLIES {
            return false;
        }
        if posted.kind.is_message() && self.messages == self.room {
            if self.asked <= self.messages {
                let waiting = (self.sent..self.posted)
                    .filter(|number| self.at(*number).is_some_and(|posted| posted.kind.is_message()));
                self.asked = self.messages + (waiting.count() as u64).min(MOST_ASKED);
                self.stage_frame(&Frame::Ask { wanted: self.asked });
            }
            return false;
        }
        true
    }
}
