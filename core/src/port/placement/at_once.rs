//! Messages that leave within the call that posts them, from where their bytes are: the stream takes them as it would
//! take a copy.
#![forbid(unsafe_code)]

use super::link::{OutgoingBody, PlacementKind, PlacementLink, PlacementWork, WorkBytes};
use super::regions::PlacementParts;
use super::send::COPIED;
use super::{ByteStream, PlacementPort, PlacementStorage, StreamResult, StreamTransport};
#[cfg(nemesia_injected_fault)]
use crate::injected_fault::{InjectedFault, injected};
use crate::payload::GatherList;
use crate::port::memory::{PostError, Slice, Work};
use crate::wire::placement::{Frame, MOST_FRAME_BYTES};

impl<S: ByteStream, P: PlacementStorage> PlacementLink<S, P> {
    /// Posts a message. Writes what the stream takes of a large one now. A small one is copied, and leaves with the
    /// next write: small ones leave together. Returns how many bytes are taken. `None`, with nothing posted, if
    /// something must leave before, or if the peer or this end has no room.
    fn send_at_once(&mut self, work: PlacementWork, from: &GatherList<'_>) -> Option<usize> {
        let PlacementKind::Send { immediate } = work.kind else { return None };
        let (len, number) = (work.len as usize, self.sent);
        let is_next = self.sent == self.posted && self.body.is_none() && self.replies.is_empty();
        let may_go = self.messages < self.room && !(work.fence && self.unanswered > 0);
        if !(is_next && may_go) || self.lends(work.len) {
            return None;
        }
        let large = match work.local {
            WorkBytes::Parts(parts) if len > COPIED => Some(parts),
            _ => None,
        };
        let copied = if large.is_some() { 0 } else { len };
        while self.has_stage_room(2 * MOST_FRAME_BYTES + copied) && self.fill_report() {}
        if !self.has_stage_room(MOST_FRAME_BYTES + copied) {
            return None;
        }
        self.stage_frame(&Frame::Send { len: work.len, immediate });
        self.post(work);
        (self.sent, self.messages) = (self.posted, self.messages + 1);
        if let Some(parts) = large {
            self.body = Some(OutgoingBody { parts, len: work.len.into(), done: 0, work: Some(number) });
            return Some(self.write_now(from));
        }
        let to = self.stage.grow(len);
        let has_room = to.is_some_and(|to| from.copy_to(to) == len);
        debug_assert!(has_room, "the room for the payload was checked");
        Some(len)
    }

    /// Writes what is staged, and then the beginning of the body, which is that of `from`.
    fn write_now(&mut self, from: &GatherList<'_>) -> usize {
        let (mut list, rest) = (GatherList::new(), self.stage.rest());
        let staged = rest.len();
        list.push(rest);
        list.append(from);
        // If the stream is lost, the next poll finds it.
        if let Some(stream) = &mut self.stream
            && let StreamResult::Bytes(count) = stream.write(&list)
        {
            self.gone_out(count, staged);
        }
        #[cfg(nemesia_injected_fault)]
        if injected(InjectedFault::ForgetUntaken) {
            return from.bytes();
        }
        self.body.map_or(from.bytes(), |body| body.done as usize)
    }
}

impl<T: StreamTransport, P: PlacementStorage> PlacementPort<T, P> {
    /// See [`MemoryPort::send_at_once`](crate::port::memory::MemoryPort::send_at_once).
    pub(super) fn post_at_once(
        &mut self,
        work: Work,
        from: &GatherList<'_>,
        room: Slice,
    ) -> Result<Option<usize>, PostError> {
        let len = self.check(&[room], false)?;
        if len as usize != from.bytes() {
            return Err(PostError::Bounds { part: 0 });
        }
        let local = WorkBytes::Parts(PlacementParts::new(&[room]));
        self.try_at_once(work, PlacementKind::Send { immediate: None }, (local, len), from)
    }

    /// Posts a message of the bytes of `from`, if it can leave at once. Returns how many bytes are taken.
    pub(super) fn try_at_once(
        &mut self,
        Work { connection, id, quiet, fence }: Work,
        kind: PlacementKind,
        (local, len): (WorkBytes, u32),
        from: &GatherList<'_>,
    ) -> Result<Option<usize>, PostError> {
        let link = self.link_for_work(connection)?;
        let work = PlacementWork { id, quiet, fence, kind, local, len, answered: false, lent: false };
        let taken = link.send_at_once(work, from);
        if taken.is_some() && (link.body.is_some() || !link.stage.rest().is_empty()) {
            self.list(connection.index);
        }
        Ok(taken)
    }
}
