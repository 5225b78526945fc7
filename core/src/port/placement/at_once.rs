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
    /// Posts a message and writes what the stream takes of it now; returns how many bytes that were. `None`, with
    /// nothing posted, if something must leave before, if the peer has no room, or if the message is small: small ones
    /// leave together.
    fn send_at_once(&mut self, work: PlacementWork, from: &GatherList<'_>) -> Option<usize> {
        let WorkBytes::Parts(parts) = work.local else { return None };
        let is_next = self.sent == self.posted && self.body.is_none() && self.replies.is_empty();
        let may_go = self.messages < self.room && !(work.fence && self.unanswered > 0);
        let is_large = work.len as usize > COPIED && !self.lends(work.len);
        if !(is_next && may_go && is_large) {
            return None;
        }
        while self.has_stage_room(2 * MOST_FRAME_BYTES) && self.fill_report() {}
        if !self.has_stage_room(MOST_FRAME_BYTES) {
            return None;
        }
        let PlacementKind::Send { immediate } = work.kind else { return None };
        let number = self.sent;
        self.stage_frame(&Frame::Send { len: work.len, immediate });
        self.post(work);
        (self.sent, self.messages) = (self.posted, self.messages + 1);
        self.body = Some(OutgoingBody { parts, len: work.len.into(), done: 0, work: Some(number) });
        Some(self.write_now(from))
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
        Work { connection, id, quiet, fence }: Work,
        from: &GatherList<'_>,
        room: Slice,
    ) -> Result<Option<usize>, PostError> {
        let len = self.check(&[room], false)?;
        if len as usize != from.bytes() {
            return Err(PostError::Bounds { part: 0 });
        }
        let link = self.link_for_work(connection)?;
        let (kind, local) =
            (PlacementKind::Send { immediate: None }, WorkBytes::Parts(PlacementParts::new(&[room])));
        let work = PlacementWork { id, quiet, fence, kind, local, len, answered: false, lent: false };
        let taken = link.send_at_once(work, from);
        if link.body.is_some() {
            self.list(connection.index);
        }
        Ok(taken)
    }
}
