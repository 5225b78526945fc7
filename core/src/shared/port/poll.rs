//! Polling: the order in which the port checks fastboxes, queues and peers; and the scan of cells whose queue
//! entries are lost.

use core::borrow::BorrowMut;

use super::{
    BURST, Condition, ENTRIES_A_POLL, HOT, Host, IDLE_SWEEP, LOST, Link, PacketPlace, SHARED_BURST, ShmPort,
};
use crate::payload::BorrowedRecv;
use crate::port::{Arrival, PeerFault, PeerId, Polled, PortFault};
use crate::shared::fastbox;
use crate::shared::pool::{CellRecord, CellState};
use crate::wire::Envelope;

impl<'a, H, L, R> ShmPort<'a, H, L, R>
where
    H: Host,
    L: BorrowMut<[Option<Link<'a>>]>,
    R: BorrowMut<[CellRecord]>,
{
    /// Returns the packet at the head of a peer's fastbox, if it is the next in order.
    #[inline(always)]
    pub(super) fn poll_fastbox(&mut self, peer: PeerId) -> Option<Polled<PacketPlace>> {
        let link = self.links.borrow_mut().get_mut(peer as usize)?.as_mut()?;
        let packet = match link.ends.inbound.peek() {
            Ok(None) => return None,
            Ok(Some(packet)) => packet,
            Err(fault) => return Some(Polled::Fault(PeerFault { peer, fault: fault.into() })),
        };
        let expected = link.traffic.expected;
        match packet.sequence.wrapping_sub(expected as u16) {
            0 => {}
            // Earlier packets are in cells.
            1..0x8000 => return None,
            _ => return Some(Polled::Fault(PeerFault { peer, fault: PortFault::Gap { expected } })),
        }
        let mut arrival = small(peer, packet);
        if let Some(cell) = packet.cell {
            if link.ends.cells.is_withdrawn() {
                return None;
            }
            if !link.ends.cells.holds(cell, packet.len) {
                return Some(malformed(peer, cell));
            }
            arrival.token = PacketPlace::Announced(cell);
        }
        Some(Polled::Packet(arrival))
    }

    /// Polls all sources in rotation.
    #[inline(never)]
    pub(super) fn poll_all(&mut self) -> Polled<PacketPlace> {
        if self.linked == 0 {
            return Polled::Idle;
        }
        if self.burst == 0 {
            let last = self.hot[self.turn % HOT];
            self.burst = BURST;
            // Packets may arrive without pause, so the release must not be deferred further.
            self.release_deferred();
            self.turn = if self.turn + 1 < self.hot_count { self.turn + 1 } else { 0 };
            if self.hot_count > 1 {
                self.share(last);
            }
            if let Some(polled) = self.poll_others() {
                return polled;
            }
        }
        let polled = self.poll_hot().or_else(|| self.poll_queue()).or_else(|| self.poll_cold());
        polled.unwrap_or_else(|| {
            self.release_deferred();
            if self.write_prefetch.is_on() {
                self.prefetch();
            }
            Polled::Idle
        })
    }

    /// Shortens the next burst if another peer is ready when a burst ends.
    #[cold]
    #[inline(never)]
    fn share(&mut self, last: PeerId) {
        let (hot, count) = (self.hot, self.hot_count);
        let hot = hot.into_iter().take(count);
        let queued = self.queues.peek().is_some_and(|number| number >> self.cells.trailing_zeros() != last);
        let oversubscribed =
            queued || hot.clone().any(|peer| peer != last && self.poll_fastbox(peer).is_some());
        if oversubscribed != self.oversubscribed {
            self.oversubscribed = oversubscribed;
            hot.for_each(|peer| self.limit_run(peer));
        }
        if oversubscribed {
            self.burst = SHARED_BURST;
        }
    }

    #[inline(always)]
    fn poll_hot(&mut self) -> Option<Polled<PacketPlace>> {
        let mut at = self.turn;
        for _ in 0..self.hot_count {
            if at >= self.hot_count {
                at = 0;
            }
            if let Some(polled) = self.poll_fastbox(self.hot[at]) {
                self.burst -= 1;
                self.turn = at;
                return Some(polled);
            }
            at += 1;
        }
        None
    }

    /// Returns the next packet that the receive queue names. Forged and outdated entries are skipped.
    #[inline]
    fn poll_queue(&mut self) -> Option<Polled<PacketPlace>> {
        for _ in 0..ENTRIES_A_POLL {
            let number = self.queues.peek()?;
            // The geometry is local, but any process may have written the number. A peer or cell that does
            // not exist is ignored.
            let (peer, cell) = (number >> self.cells.trailing_zeros(), number & (self.cells - 1));
            let polled = self.poll_cell(peer, cell);
            if let Some(Polled::Packet(Arrival {
                token: PacketPlace::Fastbox | PacketPlace::Announced(_),
                ..
            })) = polled
            {
                // This is an earlier packet of the same peer, so the entry stays in the queue.
                return polled;
            }
            // Without links, as in a forked child, no packet belongs to this process.
            if polled.is_none() && self.peers() == 0 {
                return None;
            }
            self.queues.advance();
            if matches!(polled, Some(Polled::Packet(_))) {
                // The queue works, so the count of lost entries restarts.
                self.lost = 0;
            }
            if polled.is_some() {
                self.burst = self.burst.saturating_sub(1);
                return polled;
            }
        }
        None
    }

    fn poll_cell(&mut self, peer: PeerId, cell: u32) -> Option<Polled<PacketPlace>> {
        let link = self.link(peer)?;
        let me = link.traffic.number;
        let expected = link.traffic.expected;
        match link.ends.cells.inspect(cell, me, expected) {
            CellState::Other => None,
            _ if link.ends.cells.is_withdrawn() => None,
            CellState::Due { envelope, len } => Some(packet(peer, cell, envelope, len)),
            CellState::Malformed => Some(malformed(peer, cell)),
            CellState::Early => {
                // All packets sent before this one are visible by now: in the fastbox, or in another cell.
                self.heat(peer);
                let earlier = self.poll_fastbox(peer).or_else(|| self.sweep(peer));
                if let Some(link) = self.link(peer) {
                    link.traffic.conditions.set(Condition::Sweep, true);
                }
                let fault = PortFault::Gap { expected };
                Some(earlier.unwrap_or(Polled::Fault(PeerFault { peer, fault })))
            }
        }
    }

    /// Scans a peer's cells for the next packet in order.
    #[cold]
    pub(super) fn sweep(&mut self, peer: PeerId) -> Option<Polled<PacketPlace>> {
        let link = self.link(peer)?;
        let me = link.traffic.number;
        let expected = link.traffic.expected;
        let Some(cell) = link.ends.cells.find(me, expected) else {
            link.traffic.conditions.set(Condition::Sweep, false);
            return None;
        };
        link.traffic.conditions.set(Condition::Sweep, true);
        match link.ends.cells.inspect(cell, me, expected) {
            _ if link.ends.cells.is_withdrawn() => None,
            CellState::Due { envelope, len } => Some(packet(peer, cell, envelope, len)),
            _ => Some(malformed(peer, cell)),
        }
    }

    /// Polls the other sources after a burst. The order alternates, so that neither a busy fastbox nor a busy
    /// queue starves the rest.
    fn poll_others(&mut self) -> Option<Polled<PacketPlace>> {
        self.cold_first = !self.cold_first;
        if self.cold_first {
            self.poll_cold().or_else(|| self.poll_queue())
        } else {
            self.poll_queue().or_else(|| self.poll_cold())
        }
    }

    /// Polls one peer that is not hot, and occasionally scans the cells of one peer, in rotation.
    fn poll_cold(&mut self) -> Option<Polled<PacketPlace>> {
        self.cold = if self.cold + 1 < self.peers() { self.cold + 1 } else { 0 };
        let peer = self.cold;
        let wanted = self.link(peer).is_some_and(|link| link.traffic.conditions.has(Condition::Sweep));
        if let Some(polled) = self.poll_fastbox(peer) {
            self.heat(peer);
            return Some(polled);
        }
        if wanted && let Some(polled) = self.sweep(peer) {
            return Some(polled);
        }
        self.idle = self.idle.wrapping_add(1);
        if self.queues.take_overrun() {
            self.sweep_all();
        }
        if self.queues.is_damaged() || self.idle.is_multiple_of(IDLE_SWEEP) {
            self.swept = if self.swept + 1 < self.peers() { self.swept + 1 } else { 0 };
            let found = self.sweep(self.swept);
            // A scan may find a packet before its queue entry does. If this happens repeatedly, entries are
            // being lost.
            self.lost = self.lost.saturating_add(found.is_some().into());
            if self.lost >= LOST {
                self.queues.distrust();
            }
            return found;
        }
        None
    }
}

#[inline(always)]
pub(super) fn small(peer: PeerId, packet: fastbox::FastboxPacket) -> Arrival<PacketPlace> {
    Arrival { peer, envelope: packet.envelope, len: packet.len, token: PacketPlace::Fastbox }
}

fn packet(peer: PeerId, cell: u32, envelope: Envelope, len: usize) -> Polled<PacketPlace> {
    Polled::Packet(Arrival { peer, envelope, len, token: PacketPlace::Cell(cell) })
}

fn malformed(peer: PeerId, cell: u32) -> Polled<PacketPlace> {
    Polled::Fault(PeerFault { peer, fault: PortFault::Malformed { cell } })
}

/// Copies a packet into a list.
#[cold]
#[inline(never)]
pub(super) fn scatter(inbound: &fastbox::FastboxReceiver<'_>, len: usize, to: &mut BorrowedRecv<'_>) {
    to.each(0, len, |done, to| inbound.read(len, done, to));
}
