//! A packet that is copied into a cell before it may be sent: the first part of a message, while its receiver answers
//! the RTS. The copy then costs no time after the answer. The cell belongs to no peer until it is sent, so none can
//! return it.
#![forbid(unsafe_code)]

use core::borrow::BorrowMut;

use super::{Host, Link, ShmPort};
use crate::port::{PeerFault, PeerId, Stores};
use crate::shared::pool::{CellRecord, ReuseOrder};
use crate::wire::Envelope;

/// The holder of a cell that is in no peer's hands; no peer has this number.
const NOBODY: u32 = u32::MAX - 1;

/// The packet.
#[derive(Clone, Copy, Debug)]
pub(super) struct PreparedPacket {
    peer: PeerId,
    cell: u32,
    len: usize,
    how: Stores,
}

impl<'a, H, L, R> ShmPort<'a, H, L, R>
where
    H: Host,
    L: BorrowMut<[Option<Link<'a>>]>,
    R: BorrowMut<[CellRecord]>,
{
    /// See [`ShortPath::prepare`](crate::port::ShortPath::prepare). Cells that are rare are left for packets that can
    /// be sent now.
    pub(super) fn prepare_packet(&mut self, peer: PeerId, bytes: &[u8]) -> bool {
        let is_rare = self.pool.free() * 2 <= self.cells as usize;
        if is_rare || self.prepared.is_some() || bytes.len() > self.pool.cell_bytes() {
            return false;
        }
        let Some(link) = self.links.borrow_mut().get_mut(peer as usize).and_then(Option::as_mut) else {
            return false;
        };
        let (len, received) = (bytes.len(), link.traffic.expected);
        let stores = self.config.stores.or(link.traffic.data_stores);
        let Some(cell) = self.pool.take(NOBODY) else { return false };
        let stores = self.pool.stores(cell, len, stores);
        let how = self.copy_policies.fill(peer, stores, len, received, || self.host.ticks());
        let filled = self.pool.fill(cell, [bytes, &[]], self.write_prefetch.writing(how, cell, len));
        debug_assert!(filled, "the size was checked");
        self.prepared = Some(PreparedPacket { peer, cell, len, how });
        true
    }

    /// See [`ShortPath::send_prepared`](crate::port::ShortPath::send_prepared).
    pub(super) fn send_prepared_packet(
        &mut self,
        peer: PeerId,
        envelope: &Envelope,
    ) -> Result<bool, PeerFault> {
        let is_it = |it: &mut PreparedPacket| it.peer == peer && it.len as u64 == envelope.total;
        let Some(PreparedPacket { cell, how, .. }) = self.prepared.take_if(is_it) else { return Ok(false) };
        if !self.pool.hand_over(cell, NOBODY, peer) {
            return Ok(false);
        }
        self.send_filled(peer, envelope, cell, how)
    }

    /// Frees the cell of the prepared packet, if there is one.
    #[cold]
    pub(super) fn discard_prepared_packet(&mut self) {
        if let Some(PreparedPacket { cell, .. }) = self.prepared.take() {
            let freed = self.pool.give_back(cell, NOBODY, ReuseOrder::First);
            debug_assert!(freed.is_ok(), "no peer holds the cell");
        }
    }

    /// As [`Self::discard_prepared_packet`], if the packet is for this peer.
    pub(super) fn discard_prepared_for(&mut self, peer: PeerId) {
        if self.prepared.is_some_and(|it| it.peer == peer) {
            self.discard_prepared_packet();
        }
    }
}
