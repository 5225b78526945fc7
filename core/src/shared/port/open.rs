//! Peers that connect while the port is in use.

use core::borrow::BorrowMut;

use super::{Condition, Host, Link, ShmPort};
use crate::port::PeerId;
use crate::shared::pool::CellRecord;
use crate::shared::queue::Consumer;
use crate::sync::FenceMode;

impl<'a, H, L, R> ShmPort<'a, H, L, R>
where
    H: Host,
    L: BorrowMut<[Option<Link<'a>>]>,
    R: BorrowMut<[CellRecord]>,
{
    /// Connects a peer that has no link. The link segments of both sides are new. The peer may have opened its link
    /// already, and may have sent packets. Returns `false` if a link already exists, if a former one has left cells to
    /// its peer or keeps a share, or if there is no place for it.
    #[cold]
    pub fn open(&mut self, peer: PeerId, mut link: Link<'a>) -> bool {
        if self.is_open(peer) {
            return false;
        }
        let Some(place @ None) = self.links.borrow_mut().get_mut(peer as usize) else { return false };
        // The entries of packets that came before are skipped, as those of a peer without a link are.
        link.traffic.conditions.set(Condition::Sweep, true);
        *place = Some(link);
        self.linked += 1;
        self.follow_links();
        self.heat(peer);
        true
    }

    /// Returns whether the port has views of the peer's segments: it has a link with this peer, or a closed one has
    /// left the peer cells, or keeps a share.
    pub fn is_open(&self, peer: PeerId) -> bool {
        self.links.borrow().get(peer as usize).is_some_and(Option::is_some)
            || self.has_left_cells(peer)
            || self.kept.iter().flatten().any(|(writer, _)| *writer == peer)
    }

    /// Lets `grow` make places for the links of more peers. Places are never taken away.
    pub fn grow_links(&mut self, grow: impl FnOnce(&mut L)) {
        grow(&mut self.links);
    }

    /// Adds a receive queue, for peers of higher numbers. Returns `false` if there can be no further one.
    pub fn add_queue(&mut self, queue: Consumer<'a>) -> bool {
        self.queues.add(queue)
    }

    /// Makes every waker execute its own fence from now on, because a peer has connected that cannot use asymmetric
    /// fences.
    pub fn fence_always(&mut self) {
        self.config.fences = FenceMode::Symmetric;
    }

    #[cfg(test)]
    pub(crate) fn ranks(&self) -> usize {
        self.links.borrow().len()
    }
}
