//! Packets that travel in a cell: which cells a peer may hold, and how they are returned.

use core::borrow::BorrowMut;

use super::copy_policy::CopyPolicies;
use super::pace::{self, CELL_MASK, CellPaces, MeasuredFill};
use super::wake::wake_reason;
use super::{Host, Link, PacketPlace, ShmPort, Stores, poll};
use crate::flow::shares::is_below_threshold;
#[cfg(nemesia_injected_fault)]
use crate::injected_fault::{InjectedFault, injected};
use crate::payload::BorrowedRecv;
use crate::port::{Arrival, PacketPort, PeerFault, PeerId};
use crate::shared::fastbox::FastboxPacket;
use crate::shared::pool::{CellPool, CellRecord, PeerPool, ReuseOrder};
use crate::shared::sleep::WakeReason;
use crate::wire::prefix::{IMMEDIATE_BYTES, MOST_PREFIX_BYTES, PrefixWords};
use crate::wire::{Envelope, Kind};

/// Bytes from which on cells are used in turn, however they come back: together they fill the first-level cache anyway,
/// and the lines of a cell that was used long ago are held by no other core. On a Zen 3, two copies through cells in
/// turn moved 29 GB/s between near cores, and through the cells that were read last 14.
const MUCH: usize = 4096;

/// Of so many cells, one is kept for peers that hold none.
const KEEP_ONE_OF: u32 = 8;

/// How a pool is shared: by dynamic threshold, and with cells that only peers take which hold none. A peer that takes
/// nothing, and has been the only one, therefore leaves cells for peers that connect later. With 64 cells any 13 peers
/// may take nothing, and the next one finds a cell.
#[derive(Clone, Copy, Debug)]
pub(super) struct CellShares {
    /// The cells that are kept for peers that hold none.
    kept: u32,
    /// Whether there are several peers, or places for several. The cells that a peer holds then count against it.
    among_several: bool,
}

impl CellShares {
    pub(super) const fn new(cells: u32) -> Self {
        Self { kept: cells / KEEP_ONE_OF, among_several: false }
    }

    /// Sets what depends on the number of links and of places for links, that of this process included.
    pub(super) const fn follow(&mut self, linked: usize, places: usize) {
        self.among_several = linked > 1 || places > 2;
    }

    /// Returns whether a peer that holds `lent` cells may take another, of which `free` are free.
    #[inline(always)]
    pub(super) fn may_take(self, lent: u16, free: usize) -> bool {
        let (held, free) = (if self.among_several { lent.into() } else { 0 }, free as u32);
        #[cfg(nemesia_injected_fault)]
        if injected(InjectedFault::KeepNoCells) {
            return is_below_threshold(held, free);
        }
        is_below_threshold(held, free.saturating_sub(self.kept)) || lent == 0 && free > 0
    }
}

/// Returns the reuse order of a cell that was filled by this policy with `len` bytes.
#[inline(always)]
fn reuse_order(how: Stores, len: usize) -> ReuseOrder {
    match how {
        Stores::NonTemporal => ReuseOrder::Last,
        _ if len >= MUCH => ReuseOrder::Last,
        Stores::Prefetched => ReuseOrder::Second,
        Stores::Cached => ReuseOrder::First,
    }
}

impl<'a, H, L, R> ShmPort<'a, H, L, R>
where
    H: Host,
    L: BorrowMut<[Option<Link<'a>>]>,
    R: BorrowMut<[CellRecord]>,
{
    /// Sends a packet of `envelope.total` bytes through a cell. `fill` copies the payload into the cell with
    /// the given stores.
    #[inline(always)]
    pub(super) fn send_cell(
        &mut self,
        peer: PeerId,
        envelope: &Envelope,
        fill: impl FnOnce(&CellPool<'a, R>, u32, Stores) -> bool,
    ) -> Result<bool, PeerFault> {
        let Some(cell) = self.reserve(peer, envelope.total)? else { return Ok(false) };
        let Some(link) = self.links.borrow_mut().get_mut(peer as usize).and_then(Option::as_mut) else {
            return Ok(false);
        };
        let (len, received) = (envelope.total as usize, link.traffic.expected);
        let how = self.fill_cell(peer, cell, (len, received), fill);
        let Some(link) = self.links.borrow_mut().get_mut(peer as usize).and_then(Option::as_mut) else {
            return Ok(false);
        };
        let sequence = link.traffic.next;
        let announced = self.announces && {
            let pushed = link.ends.outbound.announce(sequence, envelope, cell, None);
            pushed.map_err(|fault| PeerFault { peer, fault: fault.into() })?
        };
        if !announced {
            self.pool.publish(cell, peer as u16, sequence, envelope);
            // An error means that the peer's inbox is corrupt. Its scan of the cells will find the packet.
            let _ = link.ends.queue.push(u32::from(link.traffic.number) * self.cells + cell);
        }
        link.traffic.sent_cell(len, how, reuse_order(how, len));
        self.wake(peer, wake_reason(envelope));
        self.prefetch_next(how, len);
        Ok(true)
    }

    /// The critical path of [`Self::send_cell`], to which it leaves all uncommon cases: a whole message, in a
    /// free cell, announced in the fastbox where a slot is free. Stores to lines that another core holds
    /// stall only when the core's store buffer is full, so every additional store costs time. This function
    /// therefore keeps as much as possible in registers.
    #[inline(always)]
    pub(super) fn send_cell_now(
        &mut self,
        peer: PeerId,
        envelope: &Envelope,
        pieces: [&[u8]; 2],
    ) -> Option<bool> {
        let len = envelope.total as usize;
        let Some(Some(link)) = self.links.borrow_mut().get_mut(peer as usize) else { return None };
        let free = self.pool.free();
        let is_collecting = free * 2 <= self.cells as usize;
        let is_greedy = !self.shares.may_take(link.traffic.lent, free);
        let has_room = link.ends.outbound.has_run() && len <= self.pool.cell_bytes();
        if is_collecting || is_greedy || !has_room || !self.announces {
            return None;
        }
        let cell = self.pool.take(peer)?;
        let received = link.traffic.expected;
        let how = self.fill_cell(peer, cell, (len, received), |pool, cell, how| pool.fill(cell, pieces, how));
        let Some(Some(link)) = self.links.borrow_mut().get_mut(peer as usize) else { return None };
        let back = self.deferred.take_if(|(owner, _)| *owner == peer).map(|(_, cell)| cell);
        let announced = link.ends.outbound.announce_now(link.traffic.next, envelope, cell, back);
        debug_assert!(announced, "the run has a free slot");
        link.traffic.sent_cell(len, how, reuse_order(how, len));
        let is_asleep = link.ends.sleep.is_asleep(self.config.fences);
        self.prefetch_next(how, len);
        if is_asleep && back.is_some() {
            self.report_room(peer);
            return Some(false);
        }
        Some(is_asleep)
    }

    /// Fills a cell, which belongs to the pool and is large enough, with `len` bytes by the stores that are set, or
    /// that were learned. Returns these stores.
    #[inline(always)]
    fn fill_cell(
        &mut self,
        peer: PeerId,
        cell: u32,
        (len, received): (usize, u64),
        fill: impl FnOnce(&CellPool<'a, R>, u32, Stores) -> bool,
    ) -> Stores {
        let wanted = self.pool.stores(cell, len, self.config.stores);
        let is_measured = len >= pace::LEAST && pace::is_measured(cell);
        let begun = if is_measured && wanted.is_none() { self.host.ticks() } else { None };
        let (how, mark) = match wanted {
            _ if len < pace::LEAST => {
                let how = self.copy_policies.fill(peer, wanted, len, received, || self.host.ticks());
                (how, MeasuredFill::NONE)
            }
            Some(how) => (how, MeasuredFill::NONE),
            None => {
                let learned = self.copy_policies.paces(peer).map(|paces| paces.stores(len, begun.is_some()));
                learned.unwrap_or((CellPaces::plain(), MeasuredFill::NONE))
            }
        };
        let filled = fill(&self.pool, cell, self.write_prefetch.writing(how, cell, len));
        debug_assert!(filled, "the size was checked");
        if is_measured {
            self.mark_fill(peer, cell, (mark, begun), len);
        }
        how
    }

    /// Records how a cell was filled, and how long it took if that was measured. Without a mark, what the receiver
    /// reports of the cell does not count.
    #[inline(never)]
    fn mark_fill(&mut self, peer: PeerId, cell: u32, (mark, begun): (MeasuredFill, Option<u64>), len: usize) {
        self.pool.set_measured(cell, mark.to_bits());
        if let Some(begun) = begun
            && let Some(now) = self.host.ticks()
            && let Some(paces) = self.copy_policies.paces(peer)
        {
            paces.filled(mark, pace::pace(now.saturating_sub(begun), len));
        }
    }

    /// Reads bytes of a peer's cell, and measures that if the cell is one of those that are measured.
    #[inline(always)]
    pub(super) fn read_cell(
        &self,
        (peer, cells): (PeerId, &PeerPool<'_>),
        cell: u32,
        at: usize,
        to: &mut [u8],
    ) -> bool {
        if to.len() < pace::LEAST || !pace::is_measured(cell) {
            return cells.read(cell, at, to);
        }
        let begun = self.host.ticks();
        let whole = cells.read(cell, at, to);
        if let (Some(begun), Some(now)) = (begun, self.host.ticks()) {
            let pace = pace::pace(now.saturating_sub(begun), to.len());
            self.read_pace.set((pace::measured_cell(peer, cell), pace::code(pace)));
        }
        whole
    }

    /// Returns the entry of a peer's cell that was read: its number, and above it the code of its pace.
    #[inline(always)]
    pub(in crate::shared) fn entry_of(&self, peer: PeerId, cell: u32) -> u32 {
        match self.read_pace.get() {
            (measured, code) if measured == pace::measured_cell(peer, cell) => {
                self.read_pace.set(pace::NOT_MEASURED);
                cell | code << pace::PACE_AT
            }
            _ => cell,
        }
    }

    /// Wakes the peer: a packet that returns a cell counts as more than a message, because a sleeping peer
    /// may also need the cell.
    #[cold]
    #[inline(never)]
    fn report_room(&mut self, peer: PeerId) {
        self.wake(peer, WakeReason::Other);
    }

    /// Returns a cell for this peer if the peer may have one and `len` bytes fit.
    #[inline(always)]
    fn reserve(&mut self, peer: PeerId, len: u64) -> Result<Option<u32>, PeerFault> {
        // Not done for every cell: the receiver has just written the line of the next ring entry.
        if self.pool.free() * 2 <= self.cells as usize || !self.may_take(peer) {
            self.collect(peer)?;
        }
        if len > self.pool.cell_bytes() as u64 {
            return Ok(None);
        }
        if !self.may_take(peer) {
            self.collect_all()?;
            // Living peers come before those that this process has left.
            let finds_room = self.may_take(peer) || self.take_back_left() && self.may_take(peer);
            if !finds_room {
                return Ok(self.wait_for_cell(peer));
            }
        }
        Ok(self.pool.take(peer))
    }

    /// Returns whether the peer has a link, and may take another cell.
    #[inline(always)]
    fn may_take(&self, peer: PeerId) -> bool {
        let link = self.links.borrow().get(peer as usize).and_then(Option::as_ref);
        link.is_some_and(|link| self.shares.may_take(link.traffic.lent, self.pool.free()))
    }

    /// Records that no cell was free, so that nothing was sent.
    #[cold]
    fn wait_for_cell(&mut self, peer: PeerId) -> Option<u32> {
        if let Some(link) = self.link(peer) {
            link.traffic.wait();
        }
        None
    }

    #[inline(never)]
    pub(super) fn send_pieces(
        &mut self,
        peer: PeerId,
        envelope: &Envelope,
        pieces: [&[u8]; 2],
    ) -> Result<bool, PeerFault> {
        debug_assert_eq!(
            envelope.total,
            (pieces[0].len() + pieces[1].len()) as u64,
            "the pieces make a whole packet"
        );
        self.send_cell(peer, envelope, |pool, cell, how| pool.fill(cell, pieces, how))
    }

    /// Sends through a cell a packet for which the fastbox has no space. The packet is counted when it has
    /// left, because it may be tried many times.
    #[inline(never)]
    pub(super) fn send_over(
        &mut self,
        peer: PeerId,
        envelope: &Envelope,
        payload: &[u8],
    ) -> Result<bool, PeerFault> {
        let sent = self.send_pieces(peer, envelope, [payload, &[]])?;
        if let Some(link) = self.link(peer) {
            link.traffic.fastbox_full += u64::from(sent);
        }
        Ok(sent)
    }

    /// As `take`, for a message that lies in a cell. Anything invalid is left to a poll.
    #[inline(never)]
    pub(super) fn take_announced(
        &mut self,
        peer: PeerId,
        wanted: impl FnOnce(PeerId, &Envelope) -> bool,
        to: &mut BorrowedRecv<'_>,
    ) -> Option<(PeerId, Envelope)> {
        let burst = self.burst.checked_sub(1)?;
        let link = self.links.borrow_mut().get_mut(peer as usize)?.as_mut()?;
        let packet = link.ends.inbound.due_in_cell(link.traffic.expected)?;
        let cell = packet.cell?;
        if !link.ends.cells.holds(cell, packet.len) || !wanted(peer, &packet.envelope) {
            return None;
        }
        let cells = link.ends.cells;
        if !self.read_cell((peer, &cells), cell, 0, to.whole(0, packet.len)?) {
            return None;
        }
        self.burst = burst;
        self.release(Arrival { token: PacketPlace::Announced(cell), ..poll::small(peer, packet) });
        Some((peer, packet.envelope))
    }

    /// As [`Self::take_announced`], for a packet that begins with words.
    #[inline(always)]
    pub(super) fn take_announced_prefixed(
        &mut self,
        peer: PeerId,
        packet: FastboxPacket,
        wanted: impl FnOnce(PeerId, &Envelope, PrefixWords) -> bool,
        to: &mut BorrowedRecv<'_>,
    ) -> Option<(PeerId, Envelope, PrefixWords)> {
        let link = self.links.borrow_mut().get_mut(peer as usize)?.as_mut()?;
        let (cell, mut head) = (packet.cell?, [0; MOST_PREFIX_BYTES]);
        let skip = PrefixWords::bytes_of(packet.envelope.kind);
        let len = packet.len.checked_sub(skip)?;
        if !link.ends.cells.holds(cell, packet.len) || !link.ends.cells.read(cell, 0, head.get_mut(..skip)?) {
            return None;
        }
        let head = u128::from_le_bytes(head);
        let words = PrefixWords::of(packet.envelope.kind, [head as u64, (head >> 64) as u64])?;
        let to = to.whole(0, len).filter(|to| to.len() == len)?;
        let cells = link.ends.cells;
        if !wanted(peer, &packet.envelope, words) || !self.read_cell((peer, &cells), cell, skip, to) {
            return None;
        }
        self.release(Arrival { token: PacketPlace::Announced(cell), ..poll::small(peer, packet) });
        Some((peer, packet.envelope, words))
    }

    /// As [`ShortPath::take_into`](crate::port::ShortPath::take_into), for a packet whose payload lies in a cell.
    #[inline(never)]
    pub(super) fn take_announced_into<'b>(
        &mut self,
        peer: PeerId,
        place: impl FnOnce(PeerId, &Envelope) -> Option<&'b mut [u8]>,
    ) -> Option<(PeerId, Envelope, Option<u64>)> {
        let burst = self.burst.checked_sub(1)?;
        let link = self.links.borrow_mut().get_mut(peer as usize)?.as_mut()?;
        if !link.ends.inbound.has_next() {
            return None;
        }
        // A fault is left to a poll.
        let packet = link.ends.inbound.peek().ok()??;
        let cell = packet.cell?;
        let skip = match packet.envelope.kind {
            Kind::Eager => 0,
            Kind::EagerImmediate => IMMEDIATE_BYTES,
            _ => return None,
        };
        let len = packet.len.checked_sub(skip)?;
        if packet.sequence != link.traffic.expected as u16 || !link.ends.cells.holds(cell, packet.len) {
            return None;
        }
        let mut immediate = [0; IMMEDIATE_BYTES];
        let to = place(peer, &packet.envelope)?.get_mut(..len)?;
        let cells = link.ends.cells;
        if !cells.read(cell, 0, immediate.get_mut(..skip)?) || !self.read_cell((peer, &cells), cell, skip, to)
        {
            return None;
        }
        self.burst = burst;
        self.release(Arrival { token: PacketPlace::Announced(cell), ..poll::small(peer, packet) });
        Some((peer, packet.envelope, (skip > 0).then(|| u64::from_le_bytes(immediate))))
    }

    /// Defers the release of a peer's cell that was read. `back` is the entry of a cell of this process that came back
    /// with the packet.
    #[inline(always)]
    pub(super) fn defer_release(&mut self, peer: PeerId, cell: u32, back: Option<u32>) {
        if let Some(back) = back {
            self.came_back(peer, back);
        }
        let entry = self.entry_of(peer, cell);
        let due = if self.defers { self.deferred.replace((peer, entry)) } else { Some((peer, entry)) };
        if let Some((peer, entry)) = due {
            self.release_cell(peer, entry);
        }
    }

    /// Takes note of the pace with which a peer returns a measured cell that it holds. Returns the cell's number.
    #[inline(always)]
    fn note_pace(
        (pool, copy_policies): (&mut CellPool<'a, R>, &mut CopyPolicies),
        peer: PeerId,
        entry: u32,
    ) -> u32 {
        let (cell, code) = (entry & CELL_MASK, entry >> pace::PACE_AT);
        if code != 0
            && let Some(measured) = pool.measured(cell, peer)
            && let Some(paces) = copy_policies.paces(peer)
        {
            paces.read(MeasuredFill::from_bits(measured), code);
        }
        cell
    }

    /// Records that a peer has released a cell of this process. If the peer never held the cell, nothing is
    /// done: the peer harms only itself.
    #[inline(always)]
    fn came_back(&mut self, peer: PeerId, entry: u32) {
        let cell = Self::note_pace((&mut self.pool, &mut self.copy_policies), peer, entry);
        let Some(link) = self.links.borrow_mut().get_mut(peer as usize).and_then(Option::as_mut) else {
            return;
        };
        let taken = self.pool.give_back(cell, peer, link.traffic.reuse_order);
        link.traffic.lent -= u16::from(taken.is_ok());
    }

    /// Returns a peer's cell through the ring.
    #[inline(never)]
    fn release_cell(&mut self, peer: PeerId, entry: u32) {
        let Some(link) = self.link(peer) else { return };
        link.ends.give_back.push(entry);
        // The sender may sleep until there is space.
        self.wake(peer, WakeReason::Other);
    }

    /// Performs a deferred release when no packet arrives, because no packet may be sent for a long time.
    #[inline(always)]
    pub(super) fn release_deferred(&mut self) {
        if let Some((peer, cell)) = self.deferred.take() {
            self.release_cell(peer, cell);
        }
    }

    /// Collects the cells that this peer has returned.
    fn collect(&mut self, peer: PeerId) -> Result<(), PeerFault> {
        let Some(link) = self.links.borrow_mut().get_mut(peer as usize).and_then(Option::as_mut) else {
            return Ok(());
        };
        while link.traffic.lent > 0
            && let Some(entry) = link.ends.given_back.pop()
        {
            let cell = Self::note_pace((&mut self.pool, &mut self.copy_policies), peer, entry);
            let taken = self.pool.give_back(cell, peer, link.traffic.reuse_order);
            taken.map_err(|fault| PeerFault { peer, fault: fault.into() })?;
            link.traffic.lent -= 1;
        }
        Ok(())
    }

    /// Collects the cells that all peers have returned.
    ///
    /// # Errors
    /// A peer has returned a cell that it did not hold.
    #[cold]
    pub fn collect_all(&mut self) -> Result<(), PeerFault> {
        (0..self.peers()).try_for_each(|peer| self.collect(peer))
    }
}
