//! Outgoing bytes of a connection.

use std::io;

use nemesia_core::port::memory::{ConnectionState, LostError, WorkError};
use nemesia_core::wire::placement::{Frame, MOST_ASKED, MOST_FRAME_BYTES, MOST_REPLIES, Reason};

use super::Stream;
use super::link::{Body, End, Local, PlacementKind, PlacementLink, PlacementReply, PostedReceives};
use super::regions::{PlacementParts, PlacementRegions, Vectors};

/// Payloads up to this length are copied, and go out with their frame and with others.
const COPIED: usize = 2048;
/// Payloads from this length on are read by the peer from their place, if the peer can do that.
const LENT: u32 = 32 << 10;
/// The system calls of one connection in one poll.
const CALLS: usize = 8;

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

impl<S: Stream> PlacementLink<S> {
    /// Writes outgoing bytes as long as the stream takes them.
    pub(super) fn send_out(&mut self, regions: &PlacementRegions) -> Result<Flow, End> {
        for _ in 0..CALLS {
            self.fill(regions)?;
            let mut vectors = Vectors::new();
            let rest = self.stage.get_mut(self.staged..).unwrap_or(&mut []);
            let staged = rest.len();
            vectors.push(rest.as_mut_ptr(), staged);
            if let Some(body) = self.body
                && !regions.spans(&body.parts, body.done, body.len - body.done, &mut vectors)
            {
                // It was deregistered in the middle of its frame.
                let end = body.work.map(|number| End::work(number, WorkError::Local));
                return Err(end.unwrap_or(End::new(LostError::Access)));
            }
            if vectors.get().is_empty() {
                return Ok(Flow::Idle);
            }
            let Some(stream) = &mut self.stream else { return Err(End::new(LostError::Unreachable)) };
            // SAFETY: the stage is ours; the spans are of registered, hence readable, regions.
            match unsafe { stream.write(vectors.get()) } {
                Ok(count) => self.gone_out(count, staged),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Flow::Blocked),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(End::new(lost(&error))),
            }
        }
        Ok(Flow::More)
    }

    fn gone_out(&mut self, count: usize, staged: usize) {
        let first = count.min(staged);
        self.staged += first;
        if let Some(body) = &mut self.body {
            body.done += (count - first) as u64;
            if body.done == body.len {
                self.body = None;
            }
        }
        if self.staged == self.stage.len() {
            self.stage.clear();
            self.staged = 0;
        }
    }

    /// Adds frames to the stage as long as they fit and no body must follow directly from memory.
    fn fill(&mut self, regions: &PlacementRegions) -> Result<(), End> {
        while self.state == ConnectionState::Ready
            && self.body.is_none()
            && self.has_stage_room(MOST_FRAME_BYTES + COPIED)
        {
            if self.executed > self.executed_reported || self.granted > self.granted_reported {
                (self.executed_reported, self.granted_reported) = (self.executed, self.granted);
                self.stage_frame(&Frame::Ack { executed: self.executed, room: self.granted });
                continue;
            }
            if self.pulled > self.pulled_reported {
                self.pulled_reported = self.pulled;
                self.stage_frame(&Frame::Pulled { count: self.pulled });
                continue;
            }
            if !self.reported_pulls && self.stream.as_mut().is_some_and(Stream::can_pull) {
                self.reported_pulls = true;
                self.stage_frame(&Frame::CanPull);
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

    /// Adds the next reply. Returns false if there is none.
    fn fill_reply(&mut self, regions: &PlacementRegions) -> Result<bool, End> {
        match self.replies.pop_front() {
            None => return Ok(false),
            Some(PlacementReply::Value { old }) => self.stage_frame(&Frame::ValueReply { old }),
            Some(PlacementReply::Bytes { from, .. })
                if self.lends(from.len) && self.lent.len() < MOST_REPLIES =>
            {
                let Some(source) = regions.address(from) else { return Err(End::refuse(Reason::Access)) };
                self.stage_frame(&Frame::ReadFrom { len: from.len, source });
                self.lent.push_back(from.region);
            }
            Some(PlacementReply::Bytes { from, operation }) => {
                self.stage_frame(&Frame::ReadReply { len: from.len });
                if !self.fill_bytes(regions, PlacementParts::new(&[from]), from.len, None) {
                    // It was deregistered after the request. Nothing of this frame has gone out.
                    self.stage.truncate(self.stage.len() - nemesia_core::wire::placement::FRAME_BYTES);
                    self.executed = operation;
                    return Err(End::refuse(Reason::Access));
                }
            }
        }
        Ok(true)
    }

    /// Adds the bytes behind a frame: copied, or to follow from their place. Returns false if they were
    /// deregistered.
    fn fill_bytes(
        &mut self,
        regions: &PlacementRegions,
        parts: PlacementParts,
        len: u32,
        work: Option<u64>,
    ) -> bool {
        if len as usize > COPIED {
            self.body = Some(Body { parts, len: len.into(), done: 0, work });
            // Checked now, not in the middle of the frame.
            return regions.spans(&parts, 0, len.into(), &mut Vectors::new());
        }
        let start = self.stage.len();
        self.stage.resize(start + len as usize, 0);
        if regions.gather(&parts, 0, &mut self.stage[start..]) {
            return true;
        }
        self.stage.truncate(start);
        false
    }

    /// Adds the next work request. Returns false if none may go.
    fn fill_request(&mut self, regions: &PlacementRegions) -> Result<bool, End> {
        let number = self.sent;
        if number == self.posted {
            return Ok(false);
        }
        let Some(posted) = self.at(number).copied() else { return Ok(false) };
        if !self.may_go(&posted) {
            return Ok(false);
        }
        let source = match posted.local {
            Local::Parts(parts) if self.lends(posted.len) => {
                parts.single().and_then(|it| regions.address(it))
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
            Local::Inline(bytes) => self.stage.extend_from_slice(&bytes[..posted.len as usize]),
            Local::Parts(parts) => {
                if !self.fill_bytes(regions, parts, posted.len, Some(number)) {
                    self.body = None;
                    self.stage.truncate(before);
                    return Err(End::work(number, WorkError::Local));
                }
            }
        }
        self.messages += u64::from(posted.kind.is_message());
        self.sent += 1;
        Ok(true)
    }

    /// Returns whether the peer should read a payload of this length from its place.
    const fn lends(&self, len: u32) -> bool {
        self.peer_pulls && len >= LENT
    }

    /// Returns whether a work request may go out now. Requests room if that is missing.
    fn may_go(&mut self, posted: &PostedReceives) -> bool {
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

/// Returns why a stream has ended.
pub(super) fn lost(error: &io::Error) -> LostError {
    match error.raw_os_error() {
        Some(libc::ECONNRESET | libc::EPIPE | libc::ECONNABORTED) => LostError::Closed,
        Some(libc::ETIMEDOUT | libc::EHOSTUNREACH | libc::ENETUNREACH | libc::ENETDOWN) => {
            LostError::Unreachable
        }
        Some(code) => LostError::Unknown(code.unsigned_abs()),
        None => LostError::Closed,
    }
}
