//! The shared-memory message port, built from fastbox, cell queue and pool (paper 4, section 2).
//!
//! A packet goes into the fastbox if it is small and there is space, else into a cell. The fastbox also announces the
//! cell; if there are many peers or the fastbox is full, the receive queue does. Both paths share one sequence number
//! per pair, and the receiver takes packets in that order. A packet that is visible too early on one path waits for
//! the packets on the other.
//!
//! A poll checks the fastboxes of a few *hot* peers (those that sent lately or for which a receive waits), the queue,
//! and one other peer in rotation. Idle peers therefore cost almost nothing. Occasionally, and whenever the queue is
//! inconsistent, the port scans a peer's cells for the next packet: the queue is only a hint, and the cells are
//! authoritative.

mod cells;
mod copy_policy;
mod host;
mod link;
mod open;
mod poll;
mod prefetch;
mod wake;

use core::borrow::BorrowMut;

use copy_policy::CopyPolicies;
pub use host::{Host, PortConfig};
pub use link::{Ends, Link};
use prefetch::WritePrefetch;

use super::fastbox::Word;
use super::pool::{CellPool, CellRecord};
use super::queue::Consumer;
use super::sleep::WakeReason;
use crate::counters::TrafficCounters;
use crate::payload::{BorrowedGather, BorrowedRecv, Bounce, Exposed};
pub use crate::port::Stores;
use crate::port::{Arrival, AssistedCopy, MessagePort, NextChunk, Part, PeerFault, PeerId, Polled, Pulled};
use crate::sync::spin_hint;
use crate::wire::Envelope;
use wake::wake_reason;

/// Most peers whose fastboxes every poll checks.
pub const HOT: usize = 8;
/// Packets of one peer in a row until the other fastboxes, the queue and the other peers are polled, if no other peer
/// was ready when the burst began.
const BURST: u32 = 128;
/// As `BURST`, if another peer was ready.
const SHARED_BURST: u32 = 16;
/// Most queue entries that one poll checks.
const ENTRIES_A_POLL: usize = 64;
/// Packets found only by scanning after which the inbox counts as corrupt; every idle poll then scans.
const LOST: u32 = 64;
/// Polls without a packet after which the cells of one peer are scanned.
const IDLE_SWEEP: u32 = 1024;

/// Cells per process of the world that a pool must have for its port to defer releases.
const DEFER_FROM: usize = 2;

/// Largest payload in two pieces, or of a list, that goes through a fastbox. It is assembled on the stack.
const SMALL: usize = 1024;

/// The location of a received packet.
#[derive(Clone, Copy, Debug)]
pub enum PacketPlace {
    /// At the head of its sender's fastbox.
    Fastbox,
    /// In this cell of its sender.
    Cell(u32),
    /// In this cell of its sender, which the head of the fastbox announces.
    Announced(u32),
}

/// The port. `L` lends one link per rank (that of this process stays `None`), `R` the records of the pool.
#[derive(Debug)]
pub struct ShmPort<'a, H, L, R>
where
    H: Host,
    L: BorrowMut<[Option<Link<'a>>]>,
    R: BorrowMut<[CellRecord]>,
{
    config: PortConfig,
    links: L,
    pool: CellPool<'a, R>,
    copy_policies: CopyPolicies,
    write_prefetch: WritePrefetch,
    /// Number of cells in every peer's pool, as the world agreed.
    cells: u32,
    /// Whether there are several peers, so that a slow peer must leave cells for the others.
    shared: bool,
    inbox: Consumer<'a>,
    inbox_damaged: bool,
    /// Whether some peer probably sleeps although messages were sent to it.
    counted: bool,
    lost: u32,
    host: H,
    hot: [PeerId; HOT],
    hot_count: usize,
    turn: usize,
    burst: u32,
    /// Whether another peer was ready when the burst began; the burst is then short.
    oversubscribed: bool,
    /// Whether the cold peers come first after the next burst, before the queue.
    cold_first: bool,
    cold: PeerId,
    idle: u32,
    swept: PeerId,
    /// A cell that was read and whose release is deferred: the next announcement to its owner returns it, if that
    /// announcement is the next event. In a ping-pong both sides then use one cell each, which stays in their caches,
    /// and touch no other line.
    deferred: Option<(PeerId, u32)>,
    /// Whether the pools are large enough for deferred releases.
    defers: bool,
}

impl<'a, H, L, R> ShmPort<'a, H, L, R>
where
    H: Host,
    L: BorrowMut<[Option<Link<'a>>]>,
    R: BorrowMut<[CellRecord]>,
{
    /// Returns a port with these links. `cells` is the number of cells in each process's pool, a power of two.
    pub fn new(
        config: PortConfig,
        links: L,
        pool: CellPool<'a, R>,
        cells: u32,
        inbox: Consumer<'a>,
        host: H,
    ) -> Self {
        let ranks = links.borrow().len();
        let mut port = Self {
            config,
            links,
            pool,
            copy_policies: CopyPolicies::new(),
            write_prefetch: WritePrefetch::default(),
            cells,
            shared: ranks > 2,
            inbox,
            inbox_damaged: false,
            counted: false,
            lost: 0,
            host,
            hot: [0; HOT],
            hot_count: 0,
            turn: 0,
            burst: BURST,
            oversubscribed: false,
            cold_first: false,
            cold: 0,
            idle: 0,
            swept: 0,
            deferred: None,
            defers: cells as usize >= DEFER_FROM * ranks,
        };
        for peer in (0..port.peers()).take(HOT) {
            port.heat(peer);
        }
        port
    }

    /// Returns the operating system interface for its owner.
    pub fn host_mut(&mut self) -> &mut H {
        &mut self.host
    }

    /// Returns whether the inbox held values that violate the protocol. Messages then still arrive, found by
    /// scanning.
    pub fn inbox_damaged(&self) -> bool {
        self.inbox_damaged
    }

    /// Returns the number of cells that can be filled now, without collecting those that peers have returned.
    pub fn free_cells(&self) -> usize {
        self.pool.free()
    }

    /// Makes the coming polls scan every peer's cells: after a sleep that no waker ended.
    pub fn sweep_all(&mut self) {
        for link in self.links.borrow_mut().iter_mut().flatten() {
            link.traffic.sweep = true;
        }
    }

    fn peers(&self) -> PeerId {
        self.links.borrow().len() as PeerId
    }

    #[inline(always)]
    fn link(&mut self, peer: PeerId) -> Option<&mut Link<'a>> {
        self.links.borrow_mut().get_mut(peer as usize)?.as_mut()
    }

    /// Makes the peer hot: every poll checks it from now on.
    fn heat(&mut self, peer: PeerId) {
        if self.link(peer).is_none() || self.hot[..self.hot_count].contains(&peer) {
            return;
        }
        if self.hot_count < HOT {
            self.hot[self.hot_count] = peer;
            self.hot_count += 1;
        } else {
            // The peer after the current one was polled longest ago.
            let victim = (self.turn + 1) % HOT;
            self.hot[victim] = peer;
        }
        self.limit_run(peer);
    }

    /// Limits the run of a peer to a burst. Words are counted only when their run ends.
    fn limit_run(&mut self, peer: PeerId) {
        let most = if self.oversubscribed { SHARED_BURST } else { BURST };
        if let Some(link) = self.link(peer) {
            link.ends.inbound.limit_run(most as usize);
        }
    }
}

/// Copies both pieces, which must fit, into one buffer.
#[inline]
fn joined<'a>(whole: &'a mut [u8], head: &[u8], body: &[u8]) -> &'a [u8] {
    let len = head.len() + body.len();
    whole[..head.len()].copy_from_slice(head);
    whole[head.len()..len].copy_from_slice(body);
    &whole[..len]
}

impl<'a, H, L, R> MessagePort for ShmPort<'a, H, L, R>
where
    H: Host,
    L: BorrowMut<[Option<Link<'a>>]>,
    R: BorrowMut<[CellRecord]>,
{
    type Token = PacketPlace;

    fn packet_bytes(&self) -> usize {
        self.pool.cell_bytes()
    }

    #[inline(always)]
    fn send(&mut self, peer: PeerId, envelope: &Envelope, payload: &[u8]) -> Result<bool, PeerFault> {
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

    fn sends_words(&self) -> bool {
        size_of::<Word>() <= self.config.fastbox_limit
    }

    #[inline(always)]
    fn send_word(&mut self, peer: PeerId, context: u16, tag: u64, word: Word) -> Option<bool> {
        let Some(Some(link)) = self.links.borrow_mut().get_mut(peer as usize) else { return None };
        let next = link.traffic.next;
        if !link.ends.outbound.push_word(next, context, tag, word) {
            return None;
        }
        link.traffic.next = next + 1;
        Some(link.ends.sleep.is_asleep(self.config.fences))
    }

    #[inline(always)]
    fn send_copy(&mut self, peer: PeerId, context: u16, tag: u64, bytes: &[u8]) -> Option<bool> {
        (bytes.len() > self.config.fastbox_limit).then(|| self.send_cell_now(peer, context, tag, bytes))?
    }

    #[cold]
    #[inline(never)]
    fn settle_send(&mut self, peer: PeerId) {
        self.wake(peer, WakeReason::Message);
    }

    fn send_parts(
        &mut self,
        peer: PeerId,
        envelope: &Envelope,
        head: &[u8],
        body: &[u8],
    ) -> Result<bool, PeerFault> {
        // A fastbox needs the payload in whole words.
        match head.len() + body.len() {
            0..=64 => self.send(peer, envelope, joined(&mut [0; 64], head, body)),
            len if len <= SMALL.min(self.config.fastbox_limit) => {
                self.send(peer, envelope, joined(&mut [0; SMALL], head, body))
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
        from: &mut BorrowedGather<'_>,
        at: usize,
    ) -> Result<bool, PeerFault> {
        let len = envelope.total as usize;
        let mut gathered = [0; SMALL];
        if len <= self.config.fastbox_limit
            && let Some(bytes) = gathered.get_mut(..len)
        {
            from.read(at, bytes);
            return self.send(peer, envelope, bytes);
        }
        self.send_cell(peer, envelope, |pool, cell, how| pool.fill_list(cell, from, at, len, how))
    }

    fn exposed_bytes(&self) -> usize {
        self.packet_bytes()
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
            return self.send(peer, envelope, from.view(at, len, &mut Bounce::new()));
        }
        self.send_cell(peer, envelope, |pool, cell, how| pool.fill_exposed(cell, from, (at, len), how))
    }

    #[inline]
    fn set_data_stores(&mut self, peer: PeerId, stores: Stores) {
        if let Some(link) = self.link(peer) {
            link.traffic.data_stores = stores;
        }
    }

    #[inline(always)]
    fn poll(&mut self) -> Polled<PacketPlace> {
        // The critical path: the next small packet of the peer that sent the last one.
        let peer = self.hot[self.turn % HOT];
        if self.burst > 0
            && let Some(Some(link)) = self.links.borrow().get(peer as usize)
            && let Some(packet) = link.ends.inbound.due(link.traffic.expected)
        {
            self.burst -= 1;
            return Polled::Packet(poll::small(peer, packet));
        }
        self.poll_all()
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
            Some(to) => link.ends.inbound.read(0, to),
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
    fn pause(&mut self) {
        if self.write_prefetch.is_on() { self.prefetch() } else { spin_hint() }
    }

    #[inline(always)]
    fn take_word(
        &mut self,
        from: Option<PeerId>,
        context: u16,
        wanted: impl FnOnce(u64) -> bool,
    ) -> Option<(PeerId, u64, Word, bool)> {
        let peer = from.unwrap_or(self.hot[self.turn % HOT]);
        let Some(Some(link)) = self.links.borrow_mut().get_mut(peer as usize) else { return None };
        if self.burst == 0 {
            return None;
        }
        let expected = link.traffic.expected;
        let (tag, word, ended) = link.ends.inbound.take_word(expected, context, wanted)?;
        link.traffic.expected = expected + 1;
        Some((peer, tag, word, ended))
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

    fn poll_peer(&mut self, peer: PeerId) -> Polled<PacketPlace> {
        self.poll_fastbox(peer).or_else(|| self.sweep(peer)).unwrap_or(Polled::Idle)
    }

    #[inline(always)]
    fn read(&self, arrival: &Arrival<PacketPlace>, at: usize, to: &mut [u8]) {
        let Some(link) = self.links.borrow().get(arrival.peer as usize).and_then(Option::as_ref) else {
            return;
        };
        match &arrival.token {
            PacketPlace::Fastbox => link.ends.inbound.read(at, to),
            PacketPlace::Cell(cell) | PacketPlace::Announced(cell) => {
                let inside = link.ends.cells.read(*cell, at, to);
                debug_assert!(inside, "the poll checked the packet's size");
            }
        }
    }

    #[inline(never)]
    fn read_non_temporal(&self, arrival: &Arrival<PacketPlace>, at: usize, to: &mut [u8]) {
        let Some(link) = self.links.borrow().get(arrival.peer as usize).and_then(Option::as_ref) else {
            return;
        };
        match &arrival.token {
            PacketPlace::Fastbox => link.ends.inbound.read(at, to),
            PacketPlace::Cell(cell) | PacketPlace::Announced(cell) => {
                let inside = link.ends.cells.read_non_temporal(*cell, at, to);
                debug_assert!(inside, "the poll checked the packet's size");
            }
        }
    }

    #[inline(always)]
    fn release(&mut self, arrival: Arrival<PacketPlace>) {
        let Some(link) = self.link(arrival.peer) else { return };
        link.traffic.expected += 1;
        let tell = match arrival.token {
            PacketPlace::Fastbox => link.ends.inbound.advance(arrival.len),
            PacketPlace::Cell(cell) => {
                link.traffic.cells_received.add(arrival.len);
                link.ends.give_back.push(cell);
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

    #[inline(always)]
    fn prioritize(&mut self, peer: PeerId) {
        if self.hot_count < self.peers() as usize - 1 {
            self.heat(peer);
        }
    }

    fn grant(&mut self, peer: PeerId, units: u64) {
        let Some(link) = self.link(peer) else { return };
        // No other data depends on this number, so it needs no ordering.
        link.ends.grant.store_relaxed(units);
        self.wake(peer, WakeReason::Other);
    }

    fn granted(&self, peer: PeerId) -> u64 {
        let link = self.links.borrow().get(peer as usize).and_then(Option::as_ref);
        link.map_or(0, |link| link.ends.granted.load_relaxed())
    }

    fn ticks(&self) -> Option<u64> {
        self.config.clocked.then(|| self.host.ticks())?
    }

    fn can_pull(&self, peer: PeerId) -> bool {
        self.host.can_pull(peer)
    }

    fn pull(&mut self, peer: PeerId, address: u64, to: &mut [u8]) -> Pulled {
        self.host.pull(peer, address, to)
    }

    fn open_assist(&mut self, peer: PeerId, assist: &AssistedCopy) -> bool {
        let pieces = self.config.pieces;
        self.link(peer).is_some_and(|link| {
            link.ends.assist.open(assist, pieces);
            true
        })
    }

    fn next_chunk(&mut self, peer: PeerId) -> NextChunk {
        self.link(peer).map_or(NextChunk::Wait, |link| link.ends.assist.next_chunk())
    }

    fn close_assist(&mut self, peer: PeerId) {
        if let Some(link) = self.link(peer) {
            link.ends.assist.close();
        }
    }

    fn find_assist(&mut self, peer: PeerId) -> Option<AssistedCopy> {
        self.link(peer)?.ends.assist_sender.find()
    }

    fn join_assist(&mut self, peer: PeerId, end: u64) -> Option<Part> {
        let pieces = self.config.pieces;
        self.link(peer)?.ends.assist_sender.join(end, pieces)
    }

    fn next_part(&mut self, peer: PeerId) -> Option<Part> {
        self.link(peer)?.ends.assist_sender.claim()
    }

    fn end_part(&mut self, peer: PeerId, part: Part, written: bool) {
        if let Some(link) = self.link(peer) {
            link.ends.assist_sender.finish(part, written);
            // The receiver may sleep until this process has left the share.
            self.wake(peer, WakeReason::Other);
        }
    }

    fn push(&mut self, peer: PeerId, address: u64, from: &[u8]) -> bool {
        self.host.push(peer, address, from)
    }

    fn traffic(&self, peer: PeerId) -> TrafficCounters {
        let link = self.links.borrow().get(peer as usize).and_then(Option::as_ref);
        link.map_or_else(TrafficCounters::default, |link| link.traffic.reported())
    }

    fn close(&mut self, peer: PeerId) {
        if let Some(link) = self.links.borrow_mut().get_mut(peer as usize) {
            *link = None;
        }
        self.pool.reclaim(peer);
        self.deferred = self.deferred.filter(|(owner, _)| *owner != peer);
        if let Some(at) = self.hot[..self.hot_count].iter().position(|&hot| hot == peer) {
            self.hot_count -= 1;
            self.hot.swap(at, self.hot_count);
        }
    }
}
