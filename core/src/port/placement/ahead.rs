//! Taking over what was read ahead: see [`expected`](super::expected).
#![forbid(unsafe_code)]

use super::expected::ExpectedMessage;
use super::link::{IncomingKind, LinkEnd, PendingReports, PlacementLink};
use super::regions::PlacementRegions;
use super::{ByteStream, PlacementStorage};
#[cfg(nemesia_injected_fault)]
use crate::injected_fault::{InjectedFault, injected};

impl<S: ByteStream, P: PlacementStorage> PlacementLink<S, P> {
    /// Returns whether the next byte of the stream begins a frame.
    pub(super) fn is_between_frames(&self) -> bool {
        self.incoming.is_none() && self.input.is_empty()
    }

    /// Returns the message that is expected, if there is a receive for it, nothing of another one was read, and the
    /// input buffer has room for it or gets that.
    pub(super) fn expected(&mut self) -> Option<ExpectedMessage> {
        let expected = self.ahead.expected().filter(|_| self.is_between_frames())?;
        let receive = self.receives.front()?;
        let has_room = receive.parts.len() >= expected.len as u64 && self.input.reserve(expected.room());
        has_room.then_some(expected)
    }

    /// Takes over `count` bytes that were read to these places.
    pub(super) fn take_ahead(
        &mut self,
        expected: ExpectedMessage,
        count: usize,
        regions: &PlacementRegions<P>,
        reports: &mut PendingReports<P>,
    ) -> Result<(), LinkEnd> {
        let ExpectedMessage { before, len } = expected;
        let placed = count.saturating_sub(before).min(len);
        self.input.add(count.min(before));
        if count < before || !expected.is_announced_by(self.input.get()) {
            let room = self.input.room(before + placed);
            let receive = self.receives.front();
            let to = room.get_mut(..placed).unwrap_or(&mut []);
            let is_back = receive.is_some_and(|it| regions.gather(&it.parts, 0, to));
            debug_assert!(is_back, "the memory was there when it was written");
            #[cfg(nemesia_injected_fault)]
            let count = if injected(InjectedFault::ForgetAhead) { count.min(before) } else { count };
            self.input.add(count.saturating_sub(before));
            return Ok(());
        }
        self.digest(regions, reports)?;
        let Some(mut incoming) = self.incoming.filter(|it| matches!(it.what, IncomingKind::Send { .. }))
        else {
            return Err(LinkEnd::PROTOCOL);
        };
        incoming.done = placed as u64;
        self.incoming = (placed < len).then_some(incoming);
        if placed == len {
            self.arrived(incoming, reports);
            self.input.skip_to(before + len, count.saturating_sub(before + len));
        }
        Ok(())
    }
}
