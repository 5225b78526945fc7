//! Incoming bytes of a connection. All of them are untrusted.

use std::io;

use nemesia_core::port::memory::{LostError, RemoteRange, Slice, WorkError, WorkOutcome};
use nemesia_core::wire::placement::{Frame, MOST_ASKED, MOST_REPLIES, Parsed, Reason};

use super::Stream;
use super::link::{
    End, IncomingFrame, Local, PendingReports, PlacementKind, PlacementLink, PlacementReply, PostedReceives,
    What,
};
use super::regions::{NOWHERE, PlacementParts, PlacementRegions, Reach, Vectors};
use super::send::lost;

/// The system calls of one connection in one poll.
const CALLS: usize = 8;
/// The bytes copied at once from the peer's memory.
const PULLED: u64 = 1 << 20;
/// From this length on, payloads are read directly to their destination.
const DIRECT: u64 = 4096;

impl<S: Stream> PlacementLink<S> {
    /// Reads the available bytes, and executes them.
    pub(super) fn take_in(
        &mut self,
        regions: &PlacementRegions,
        reports: &mut PendingReports,
    ) -> Result<(), End> {
        self.more_input = false;
        for _ in 0..CALLS {
            if self.incoming.is_some_and(|it| it.source.is_some()) {
                self.pull(regions, reports)?;
                continue;
            }
            let direct =
                self.incoming.filter(|it| self.input_start == self.input_end && it.len - it.done >= DIRECT);
            let mut vectors = Vectors::new();
            let mut wanted = 0;
            if let Some(incoming) = direct {
                wanted = incoming.len - incoming.done;
                if !regions.spans(&incoming.parts, incoming.done, wanted, &mut vectors) {
                    return Err(gone(incoming.what, self.next_reply));
                }
            }
            self.compact();
            let room = &mut self.input[self.input_end..];
            vectors.push(room.as_mut_ptr(), room.len());
            let Some(stream) = &mut self.stream else { return Ok(()) };
            // SAFETY: the input buffer is ours; the spans are of registered regions that were found writable,
            // by the peer or by ourselves, when the frame began.
            match unsafe { stream.read(vectors.get()) } {
                Ok(0) => return Err(End::new(LostError::Closed)),
                Ok(count) => {
                    let placed = wanted.min(count as u64);
                    self.input_end += count - placed as usize;
                    if let Some(incoming) = &mut self.incoming {
                        incoming.done += placed;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(End::new(lost(&error))),
            }
            self.digest(regions, reports)?;
        }
        self.more_input = true;
        Ok(())
    }

    /// Reads the next part of a payload from the peer's memory.
    fn pull(&mut self, regions: &PlacementRegions, reports: &mut PendingReports) -> Result<(), End> {
        let (Some(mut incoming), Some(stream)) = (self.incoming, self.stream.as_mut()) else { return Ok(()) };
        let Some(source) = incoming.source else { return Ok(()) };
        let count = (incoming.len - incoming.done).min(PULLED);
        let mut vectors = Vectors::new();
        if !regions.spans(&incoming.parts, incoming.done, count, &mut vectors) {
            return Err(gone(incoming.what, self.next_reply));
        }
        // SAFETY: registered regions that were found writable when the frame began.
        if !unsafe { stream.pull(source.wrapping_add(incoming.done), vectors.get()) } {
            return Err(match incoming.what {
                What::Reply => End::work(self.next_reply, WorkError::RemoteOperation),
                _ => End::refuse(Reason::Failed),
            });
        }
        incoming.done += count;
        self.incoming = Some(incoming);
        if incoming.done == incoming.len {
            self.incoming = None;
            self.pulled += u64::from(incoming.what == What::Reply);
            self.arrived(incoming, reports);
            self.digest(regions, reports)?;
        }
        Ok(())
    }

    fn compact(&mut self) {
        if self.input_start == self.input_end {
            (self.input_start, self.input_end) = (0, 0);
        } else if self.input_start > 0 {
            self.input.copy_within(self.input_start..self.input_end, 0);
            (self.input_start, self.input_end) = (0, self.input_end - self.input_start);
        }
    }

    /// Executes the bytes that were read.
    pub(super) fn digest(
        &mut self,
        regions: &PlacementRegions,
        reports: &mut PendingReports,
    ) -> Result<(), End> {
        loop {
            if let Some(mut incoming) = self.incoming {
                if incoming.source.is_some() {
                    return Ok(());
                }
                let here = (self.input_end - self.input_start) as u64;
                let count = here.min(incoming.len - incoming.done) as usize;
                let bytes = &self.input[self.input_start..self.input_start + count];
                if !regions.scatter(&incoming.parts, incoming.done, bytes) {
                    return Err(gone(incoming.what, self.next_reply));
                }
                self.input_start += count;
                incoming.done += count as u64;
                self.incoming = Some(incoming);
                if incoming.done < incoming.len {
                    return Ok(());
                }
                self.incoming = None;
                self.arrived(incoming, reports);
                continue;
            }
            match Frame::parse(&self.input[self.input_start..self.input_end]) {
                Parsed::Short => return Ok(()),
                Parsed::Malformed => return Err(End::PROTOCOL),
                Parsed::Frame(frame, count) => {
                    self.input_start += count;
                    self.begin(frame, regions, reports)?;
                }
            }
        }
    }

    /// Handles the beginning of a frame.
    fn begin(
        &mut self,
        frame: Frame,
        regions: &PlacementRegions,
        reports: &mut PendingReports,
    ) -> Result<(), End> {
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
                    return Err(End::PROTOCOL);
                }
                self.wanted = wanted;
            }
            Frame::Pulled { count } => {
                if count < self.lent_done || count - self.lent_done > self.lent.len() as u64 {
                    return Err(End::PROTOCOL);
                }
                self.lent.drain(..(count - self.lent_done) as usize);
                self.lent_done = count;
            }
            Frame::CanPull => self.peer_pulls = true,
        }
        Ok(())
    }

    fn begin_write(
        &mut self,
        regions: &PlacementRegions,
        (to, len): (RemoteRange, u32),
        immediate: Option<u32>,
        source: Option<u64>,
    ) -> Result<(), End> {
        let parts = PlacementParts::new(&[locate(regions, to, len, Reach::Write)?]);
        if immediate.is_some() {
            self.begin_message()?;
        }
        self.expect(parts, len, What::Write { immediate }, source)
    }

    fn begin_send(&mut self, len: u32, immediate: Option<u32>) -> Result<(), End> {
        self.begin_message()?;
        let Some(receive) = self.receives.front().copied() else { return Err(End::PROTOCOL) };
        if receive.parts.len() < u64::from(len) {
            let (lost, receive) = (LostError::Work, Some(WorkError::Length));
            return Err(End { lost, receive, ..End::refuse(Reason::Invalid) });
        }
        self.expect(receive.parts, len, What::Send { immediate }, None)
    }

    fn begin_reply(&mut self, len: u32, source: Option<u64>) -> Result<(), End> {
        match self.replied() {
            Some((PlacementKind::Read { .. }, wanted, parts)) if wanted == len => {
                self.expect(parts, len, What::Reply, source)
            }
            _ => Err(End::PROTOCOL),
        }
    }

    fn take_value(
        &mut self,
        old: u64,
        regions: &PlacementRegions,
        reports: &mut PendingReports,
    ) -> Result<(), End> {
        let Some((PlacementKind::Add { .. } | PlacementKind::Swap { .. }, _, parts)) = self.replied() else {
            return Err(End::PROTOCOL);
        };
        if !regions.scatter(&parts, 0, &old.to_ne_bytes()) {
            return Err(End::work(self.next_reply, WorkError::Local));
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
        what: What,
        source: Option<u64>,
    ) -> Result<(), End> {
        if source.is_some() && !self.reported_pulls {
            return Err(End::PROTOCOL);
        }
        self.incoming = Some(IncomingFrame { parts, len: len.into(), done: 0, what, source });
        Ok(())
    }

    /// Begins a message, for which there must be a receive.
    fn begin_message(&mut self) -> Result<(), End> {
        if self.begun >= self.granted || self.receives.is_empty() {
            return Err(End::PROTOCOL);
        }
        self.begun += 1;
        Ok(())
    }

    fn answer(&mut self, reply: PlacementReply) -> Result<(), End> {
        if self.replies.len() >= MOST_REPLIES {
            return Err(End::PROTOCOL);
        }
        self.replies.push_back(reply);
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
                let Local::Parts(parts) = posted.local else { return None };
                return Some((posted.kind, posted.len, parts));
            }
            self.next_reply += 1;
        }
        None
    }

    fn have_reply(&mut self, reports: &mut PendingReports) {
        if let Some(posted) = self.at_mut(self.next_reply) {
            posted.answered = true;
        }
        self.next_reply += 1;
        self.unanswered = self.unanswered.saturating_sub(1);
        self.complete(reports);
    }

    /// Handles a payload whose bytes are all placed.
    fn arrived(&mut self, incoming: IncomingFrame, reports: &mut PendingReports) {
        let len = incoming.len as u32;
        match incoming.what {
            What::Reply => return self.have_reply(reports),
            What::Send { immediate } => {
                self.finish_receive(reports, WorkOutcome::Received { len, immediate, written: false });
            }
            What::Write { immediate: Some(immediate) } => {
                let immediate = Some(immediate);
                self.finish_receive(reports, WorkOutcome::Received { len, immediate, written: true });
            }
            What::Write { immediate: None } => {}
        }
        self.executed += 1;
    }

    fn acknowledge(&mut self, executed: u64, room: u64, reports: &mut PendingReports) -> Result<(), End> {
        // A request that has not gone out completely cannot have been executed.
        let unfinished = self.body.is_some_and(|body| body.work.is_some());
        let most = self.sent - u64::from(unfinished);
        if executed < self.acked || executed > most || room < self.room {
            return Err(End::PROTOCOL);
        }
        (self.acked, self.room) = (executed, room);
        self.complete(reports);
        Ok(())
    }

    /// Handles the peer's refusal of an operation. The operations before it were executed.
    fn refused(&mut self, operation: u64, reason: Reason) -> End {
        let pending = operation >= self.completed && operation < self.sent;
        let waits = |posted: &PostedReceives| {
            !posted.answered && (posted.kind.is_answered() || operation >= self.acked)
        };
        if !pending || !self.at(operation).is_some_and(waits) {
            return End::PROTOCOL;
        }
        self.acked = self.acked.max(operation);
        let error = match reason {
            Reason::Access => WorkError::Refused,
            Reason::Invalid => WorkError::Invalid,
            Reason::Failed => WorkError::RemoteOperation,
        };
        End::work(operation, error)
    }
}

/// Returns the destination of a peer's access.
fn locate(regions: &PlacementRegions, at: RemoteRange, len: u32, reach: Reach) -> Result<Slice, End> {
    if len == 0 {
        return Ok(NOWHERE);
    }
    let (region, offset) = regions.reach(at, len, reach).ok_or(End::refuse(Reason::Access))?;
    Ok(Slice { region, offset, len })
}

fn change(regions: &PlacementRegions, at: RemoteRange, change: impl Fn(u64) -> u64) -> Result<u64, End> {
    let (region, offset) = regions.reach(at, 8, Reach::Atomic).ok_or(End::refuse(Reason::Access))?;
    regions.update(region, offset, change).ok_or(End::refuse(Reason::Invalid))
}

/// Returns the end of a connection whose destination memory was deregistered.
fn gone(what: What, next_reply: u64) -> End {
    match what {
        What::Write { .. } => End::refuse(Reason::Access),
        What::Send { .. } => End { receive: Some(WorkError::Local), ..End::refuse(Reason::Failed) },
        What::Reply => End::work(next_reply, WorkError::Local),
    }
}
