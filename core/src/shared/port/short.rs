//! The port's critical path: whole small messages.

use core::borrow::BorrowMut;

use super::poll;
use super::{HOT, Host, Link, PacketPlace, ShmPort};
use crate::payload::BorrowedRecv;
use crate::port::SHORT_BYTES;
use crate::port::{Arrival, PacketPort as _, PeerId, ShortPath};
use crate::shared::pool::CellRecord;
use crate::shared::sleep::WakeReason;
use crate::sync::spin_hint;
use crate::wire::prefix::{IMMEDIATE_BYTES, PrefixWords};
use crate::wire::{Envelope, Kind};

impl<'a, H, L, R> ShortPath for ShmPort<'a, H, L, R>
where
    H: Host,
    L: BorrowMut<[Option<Link<'a>>]>,
    R: BorrowMut<[CellRecord]>,
{
    fn short_bytes(&self) -> usize {
        SHORT_BYTES.min(self.config.fastbox_limit)
    }

    #[inline(always)]
    fn send_short(&mut self, peer: PeerId, context: u16, tag: u64, bytes: &[u8]) -> Option<bool> {
        let Some(Some(link)) = self.links.borrow_mut().get_mut(peer as usize) else { return None };
        if !link.ends.outbound.push_short(link.traffic.next, context, tag, bytes) {
            return None;
        }
        link.traffic.next += 1;
        Some(link.ends.sleep.is_asleep(self.config.fences))
    }

    #[inline(always)]
    fn send_immediate(&mut self, peer: PeerId, context: u16, words: [u64; 2], bytes: &[u8]) -> Option<bool> {
        let Some(Some(link)) = self.links.borrow_mut().get_mut(peer as usize) else { return None };
        if !link.ends.outbound.push_immediate(link.traffic.next, context, words, bytes) {
            return None;
        }
        link.traffic.next += 1;
        Some(link.ends.sleep.is_asleep(self.config.fences))
    }

    #[inline(always)]
    fn send_copy(&mut self, peer: PeerId, context: u16, tag: u64, bytes: &[u8]) -> Option<bool> {
        if bytes.len() > self.config.fastbox_limit {
            let envelope = Envelope { kind: Kind::Eager, context, tag, total: bytes.len() as u64 };
            return self.send_cell_now(peer, &envelope, [bytes, &[]]);
        }
        let Some(Some(link)) = self.links.borrow_mut().get_mut(peer as usize) else { return None };
        if !link.ends.outbound.push_now(link.traffic.next, context, tag, bytes) {
            return None;
        }
        link.traffic.next += 1;
        Some(link.ends.sleep.is_asleep(self.config.fences))
    }

    #[inline(always)]
    fn send_prefixed(&mut self, peer: PeerId, envelope: &Envelope, words: PrefixWords, body: &[u8]) -> bool {
        let Some(Some(link)) = self.links.borrow_mut().get_mut(peer as usize) else { return false };
        let is_asleep = if envelope.total > self.config.fastbox_limit as u64 {
            self.send_cell_now(peer, envelope, [&words.encode()[..words.bytes()], body])
        } else if link.ends.outbound.push_prefixed(link.traffic.next, envelope, words, body) {
            link.traffic.next += 1;
            Some(link.ends.sleep.is_asleep(self.config.fences))
        } else {
            None
        };
        if is_asleep == Some(true) {
            self.wake_for(peer, envelope);
        }
        is_asleep.is_some()
    }

    #[cold]
    #[inline(never)]
    fn settle_send(&mut self, peer: PeerId) {
        self.wake(peer, WakeReason::Message);
    }

    #[inline(always)]
    fn take(
        &mut self,
        wanted: impl FnOnce(PeerId, &Envelope) -> bool,
        to: &mut BorrowedRecv<'_>,
    ) -> Option<(PeerId, Envelope)> {
        let peer = self.hot[self.turn % HOT];
        let link = self.links.borrow_mut().get_mut(peer as usize)?.as_mut()?;
        let burst = self.burst.checked_sub(1)?;
        let Some(packet) = link.ends.inbound.due(link.traffic.expected) else {
            return self.take_announced(peer, wanted, to);
        };
        if !wanted(peer, &packet.envelope) {
            return None;
        }
        match to.whole(0, packet.len) {
            Some(to) => link.ends.inbound.read(packet.len, 0, to),
            None => poll::scatter(&link.ends.inbound, packet.len, to),
        }
        self.burst = burst;
        link.traffic.expected += 1;
        // The sender may sleep until there is space.
        if link.ends.inbound.advance(packet.len) {
            self.wake(peer, WakeReason::Other);
        }
        Some((peer, packet.envelope))
    }

    #[inline(always)]
    fn has_next(&self) -> bool {
        let peer = self.hot[self.turn % HOT];
        let link = self.links.borrow().get(peer as usize).and_then(Option::as_ref);
        link.is_some_and(|link| link.ends.inbound.has_next())
    }

    #[inline(always)]
    fn expects_next(&self) -> bool {
        true
    }

    #[inline(always)]
    fn pause(&mut self) {
        if self.write_prefetch.is_on() { self.prefetch() } else { spin_hint() }
    }

    #[inline(always)]
    fn take_prefixed(
        &mut self,
        wanted: impl FnOnce(PeerId, &Envelope, PrefixWords) -> bool,
        to: &mut BorrowedRecv<'_>,
    ) -> Option<(PeerId, Envelope, PrefixWords)> {
        let peer = self.hot[self.turn % HOT];
        let link = self.links.borrow_mut().get_mut(peer as usize)?.as_mut()?;
        let burst = self.burst.checked_sub(1)?;
        // A fault is left to a poll.
        let packet = link.ends.inbound.peek().ok()??;
        let (kind, skip) = (packet.envelope.kind, PrefixWords::bytes_of(packet.envelope.kind));
        if skip == 0 || packet.sequence != link.traffic.expected as u16 {
            return None;
        }
        if packet.cell.is_some() {
            let taken = self.take_announced_prefixed(peer, packet, wanted, to)?;
            self.burst = burst;
            return Some(taken);
        }
        let len = packet.len.checked_sub(skip)?;
        let words = PrefixWords::of(kind, link.ends.inbound.words())?;
        let to = to.whole(0, len).filter(|to| to.len() == len)?;
        if !wanted(peer, &packet.envelope, words) {
            return None;
        }
        link.ends.inbound.read_behind(packet.len, skip, to);
        self.burst = burst;
        link.traffic.expected += 1;
        // The sender may sleep until there is space.
        if link.ends.inbound.advance(packet.len) {
            self.wake(peer, WakeReason::Other);
        }
        Some((peer, packet.envelope, words))
    }

    #[inline(always)]
    fn take_short(
        &mut self,
        from: Option<usize>,
        context: u16,
        wanted: impl FnOnce(u64) -> bool,
        to: &mut [u8],
    ) -> Option<(PeerId, u64, usize, bool)> {
        let peer = from.unwrap_or(self.hot[self.turn % HOT] as usize);
        let Some(Some(link)) = self.links.borrow_mut().get_mut(peer) else { return None };
        if self.burst == 0 {
            return None;
        }
        let expected = link.traffic.expected;
        let (packet, ended) = link.ends.inbound.take_short(expected, context, to.len(), wanted)?;
        link.traffic.expected += 1;
        packet.read(to);
        Some((peer as PeerId, packet.tag, packet.len, ended))
    }

    #[inline(always)]
    fn take_into<'b>(
        &mut self,
        place: impl FnOnce(PeerId, &Envelope) -> Option<&'b mut [u8]>,
    ) -> Option<(PeerId, Envelope, Option<u64>)> {
        let peer = self.hot[self.turn % HOT];
        let link = self.links.borrow_mut().get_mut(peer as usize)?.as_mut()?;
        let burst = self.burst.checked_sub(1)?;
        let inbound = &mut link.ends.inbound;
        let Some(packet) = inbound.due_of_any_kind(link.traffic.expected) else {
            return self.take_announced_into(peer, place);
        };
        let skip = match packet.envelope.kind {
            Kind::Eager => 0,
            Kind::EagerImmediate => IMMEDIATE_BYTES,
            _ => return None,
        };
        let len = packet.len.checked_sub(skip)?;
        let to = place(peer, &packet.envelope)?.get_mut(..len)?;
        let immediate = match skip {
            0 => {
                inbound.read(packet.len, 0, to);
                None
            }
            _ => {
                let [immediate, _] = inbound.words();
                inbound.read_behind(packet.len, skip, to);
                Some(immediate)
            }
        };
        self.burst = burst;
        link.traffic.expected += 1;
        // The sender may sleep until there is space.
        if inbound.advance(packet.len) {
            self.wake(peer, WakeReason::Other);
        }
        Some((peer, packet.envelope, immediate))
    }

    #[inline(always)]
    fn is_quiet(&mut self) -> bool {
        if self.deferred.is_some() || self.write_prefetch.is_on() {
            return false;
        }
        let links = self.links.borrow();
        for peer in self.hot.get(..self.hot_count).unwrap_or_default() {
            let link = links.get(*peer as usize).and_then(Option::as_ref);
            if link.is_some_and(|link| link.ends.inbound.has_next()) {
                return false;
            }
        }
        self.queues.peek().is_none()
    }

    #[cold]
    #[inline(never)]
    fn settle_take(&mut self, peer: PeerId) {
        let Some(link) = self.link(peer) else { return };
        let (count, reported) = link.ends.inbound.end_run();
        self.burst = self.burst.saturating_sub(count as u32);
        // The sender may sleep until there is space.
        if reported {
            self.wake(peer, WakeReason::Other);
        }
    }

    #[inline(always)]
    fn prioritize(&mut self, peer: PeerId) {
        if self.hot_count < self.peers() as usize - 1 {
            self.heat(peer);
        }
    }

    #[inline(never)]
    fn read_non_temporal(&self, arrival: &Arrival<PacketPlace>, at: usize, to: &mut [u8]) -> bool {
        let Some(link) = self.links.borrow().get(arrival.peer as usize).and_then(Option::as_ref) else {
            return false;
        };
        match &arrival.token {
            PacketPlace::Cell(cell) | PacketPlace::Announced(cell) => {
                link.ends.cells.read_non_temporal(*cell, at, to)
            }
            PacketPlace::Fastbox => self.read(arrival, at, to),
        }
    }
}
