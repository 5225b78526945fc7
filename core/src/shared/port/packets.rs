//! The port as a [`PacketPort`].

use core::borrow::BorrowMut;

use super::poll;
use super::wake::wake_reason;
use super::{HOT, Host, Link, PacketPlace, PortConfig, SMALL, ShmPort};
use crate::counters::TrafficCounters;
use crate::payload::{BorrowedGather, Bounce, Exposed};
use crate::port::{Arrival, PacketPieces, PacketPort, PeerFault, PeerId, Polled};
use crate::shared::pool::CellRecord;
use crate::shared::sleep::WakeReason;
use crate::wire::Envelope;

/// Copies both pieces, which must fit, into one buffer.
#[inline]
fn joined<'a>(whole: &'a mut [u8], head: &[u8], body: &[u8]) -> &'a [u8] {
    let len = head.len() + body.len();
    whole[..head.len()].copy_from_slice(head);
    whole[head.len()..len].copy_from_slice(body);
    &whole[..len]
}

impl<'a, H, L, R> ShmPort<'a, H, L, R>
where
    H: Host,
    L: BorrowMut<[Option<Link<'a>>]>,
    R: BorrowMut<[CellRecord]>,
{
    #[inline(always)]
    fn send_whole(&mut self, peer: PeerId, envelope: &Envelope, payload: &[u8]) -> Result<bool, PeerFault> {
        let PortConfig { fastbox_limit, fences, .. } = self.config;
        let Some(Some(link)) = self.links.borrow_mut().get_mut(peer as usize) else { return Ok(false) };
        if payload.len() <= fastbox_limit && envelope.total == payload.len() as u64 {
            let pushed = link.ends.outbound.push(link.traffic.next, envelope, payload);
            if pushed.map_err(|fault| PeerFault { peer, fault: fault.into() })? {
                link.traffic.next += 1;
                if link.ends.sleep.is_asleep(fences) {
                    self.wake(peer, wake_reason(envelope));
                }
                return Ok(true);
            }
            return self.send_over(peer, envelope, payload);
        }
        self.send_pieces(peer, envelope, [payload, &[]])
    }

    fn send_parts(
        &mut self,
        peer: PeerId,
        envelope: &Envelope,
        head: &[u8],
        body: &[u8],
    ) -> Result<bool, PeerFault> {
        // A fastbox needs the payload in one piece.
        match head.len() + body.len() {
            0..=64 => self.send_whole(peer, envelope, joined(&mut [0; 64], head, body)),
            len if len <= SMALL.min(self.config.fastbox_limit) => {
                self.send_whole(peer, envelope, joined(&mut [0; SMALL], head, body))
            }
            _ => self.send_pieces(peer, envelope, [head, body]),
        }
    }

    #[cold]
    #[inline(never)]
    fn send_list(
        &mut self,
        peer: PeerId,
        envelope: &Envelope,
        mut from: BorrowedGather<'_>,
        at: usize,
    ) -> Result<bool, PeerFault> {
        let len = envelope.total as usize;
        let mut gathered = [0; SMALL];
        if len <= self.config.fastbox_limit
            && let Some(bytes) = gathered.get_mut(..len)
        {
            from.read(at, bytes);
            return self.send_whole(peer, envelope, bytes);
        }
        self.send_cell(peer, envelope, |pool, cell, how| pool.fill_list(cell, &mut from, at, len, how))
    }

    fn send_exposed(
        &mut self,
        peer: PeerId,
        envelope: &Envelope,
        from: &Exposed,
        at: usize,
    ) -> Result<bool, PeerFault> {
        let len = envelope.total as usize;
        if len <= self.config.fastbox_limit {
            return self.send_whole(peer, envelope, from.view(at, len, &mut Bounce::new()));
        }
        self.send_cell(peer, envelope, |pool, cell, how| pool.fill_exposed(cell, from, (at, len), how))
    }
}

impl<'a, H, L, R> PacketPort for ShmPort<'a, H, L, R>
where
    H: Host,
    L: BorrowMut<[Option<Link<'a>>]>,
    R: BorrowMut<[CellRecord]>,
{
    type Token = PacketPlace;

    #[inline(always)]
    fn send(
        &mut self,
        peer: PeerId,
        envelope: &Envelope,
        pieces: PacketPieces<'_>,
    ) -> Result<bool, PeerFault> {
        match pieces {
            PacketPieces::Whole(bytes) => self.send_whole(peer, envelope, bytes),
            PacketPieces::Parts(head, body) => self.send_parts(peer, envelope, head, body),
            PacketPieces::List(from, at, _) => self.send_list(peer, envelope, from, at),
            PacketPieces::Exposed(from, at, _) => self.send_exposed(peer, envelope, from, at),
        }
    }

    fn packet_bytes(&self) -> usize {
        self.pool.cell_bytes()
    }

    #[inline]
    fn eager_bytes(&self, _: PeerId) -> usize {
        self.config.eager_bytes.min(self.pool.cell_bytes())
    }

    fn unasked_bytes(&self, _: PeerId) -> usize {
        self.config.eager_bytes
    }

    #[inline(always)]
    fn poll(&mut self) -> Polled<PacketPlace> {
        // The critical path: the next small packet of the peer that sent the last one.
        let peer = self.hot[self.turn % HOT];
        if self.burst > 0
            && let Some(Some(link)) = self.links.borrow().get(peer as usize)
            && let (inbound, expected) = (&link.ends.inbound, link.traffic.expected)
            && let Some(packet) = inbound.due(expected).or_else(|| inbound.due_of_any_kind(expected))
        {
            self.burst -= 1;
            return Polled::Packet(poll::small(peer, packet));
        }
        self.poll_all()
    }

    fn poll_peer(&mut self, peer: PeerId) -> Polled<PacketPlace> {
        self.poll_fastbox(peer).or_else(|| self.sweep(peer)).unwrap_or(Polled::Idle)
    }

    #[inline(always)]
    fn read(&self, arrival: &Arrival<PacketPlace>, at: usize, to: &mut [u8]) -> bool {
        let Some(link) = self.links.borrow().get(arrival.peer as usize).and_then(Option::as_ref) else {
            return false;
        };
        match &arrival.token {
            PacketPlace::Fastbox => {
                link.ends.inbound.read(arrival.len, at, to);
                true
            }
            PacketPlace::Cell(cell) | PacketPlace::Announced(cell) => {
                self.read_cell((arrival.peer, &link.ends.cells), *cell, at, to)
            }
        }
    }

    #[inline(always)]
    fn release(&mut self, arrival: Arrival<PacketPlace>) {
        let entry =
            if let PacketPlace::Cell(cell) = arrival.token { self.entry_of(arrival.peer, cell) } else { 0 };
        let Some(link) = self.link(arrival.peer) else { return };
        link.traffic.expected += 1;
        let tell = match arrival.token {
            PacketPlace::Fastbox => link.ends.inbound.advance(arrival.len),
            PacketPlace::Cell(_) => {
                link.traffic.cells_received.add(arrival.len);
                link.ends.give_back.push(entry);
                true
            }
            PacketPlace::Announced(cell) => {
                link.traffic.cells_received.add(arrival.len);
                let back = link.ends.inbound.back();
                let tell = link.ends.inbound.advance(0);
                self.defer_release(arrival.peer, cell, back);
                tell
            }
        };
        // The sender may sleep until there is space.
        if tell {
            self.wake(arrival.peer, WakeReason::Other);
        }
    }

    fn grant(&mut self, peer: PeerId, units: u64) {
        let Some(link) = self.link(peer) else { return };
        // No other data depends on this number, so it needs no ordering.
        link.ends.grant.credit.store_relaxed(units);
        self.wake(peer, WakeReason::Other);
    }

    fn granted(&self, peer: PeerId) -> u64 {
        let link = self.links.borrow().get(peer as usize).and_then(Option::as_ref);
        link.map_or(0, |link| link.ends.granted.credit.load_relaxed())
    }

    fn ticks(&self) -> Option<u64> {
        self.config.clocked.then(|| self.host.ticks())?
    }

    fn traffic(&self, peer: PeerId) -> TrafficCounters {
        let link = self.links.borrow().get(peer as usize).and_then(Option::as_ref);
        link.map_or_else(TrafficCounters::default, |link| link.traffic.reported())
    }

    fn close(&mut self, peer: PeerId) {
        // A peer that lives may wait for the cell.
        if self.deferred.is_some_and(|(owner, _)| owner == peer) {
            self.release_deferred();
        }
        if let Some(link) = self.links.borrow_mut().get_mut(peer as usize).and_then(Option::take) {
            self.linked -= 1;
            self.follow_links();
            self.end_link(peer, link);
        } else if let Some(place) = self.kept_place(peer) {
            *place = None;
        }
        self.runs.forget(peer);
        if let Some(at) = self.hot[..self.hot_count].iter().position(|&hot| hot == peer) {
            self.hot_count -= 1;
            self.hot.swap(at, self.hot_count);
        }
    }
}
