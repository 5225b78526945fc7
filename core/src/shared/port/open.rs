//! Peers that connect late: restarted processes, and the peers that a restarted process finds.

use core::borrow::BorrowMut;

use super::{Ends, Host, Link, ShmPort};
use crate::port::PeerId;
use crate::shared::pool::CellRecord;
use crate::sync::FenceMode;

impl Ends<'_> {
    /// Resets this process's segment for the peer to its initial state. No process reads it now: the peer's
    /// next process reads it only after a system call of this process that follows this reset.
    fn clear(&self) {
        self.outbound.clear();
        self.inbound.clear();
        self.give_back.clear();
        self.grant.credit.store_relaxed(0);
        self.grant.buffer.iter().for_each(|word| word.store_relaxed(0));
        self.assist.clear();
    }
}

impl<'a, H, L, R> ShmPort<'a, H, L, R>
where
    H: Host,
    L: BorrowMut<[Option<Link<'a>>]>,
    R: BorrowMut<[CellRecord]>,
{
    /// Connects a peer that has no link: a restarted process, or one that joins late. The state for the
    /// former process is reset. The peer must not access the segment before this call returns, and the caller
    /// must then inform the peer. Returns `false` if a link already exists.
    #[cold]
    pub fn open(&mut self, peer: PeerId, ends: Ends<'a>) -> bool {
        let Some(link @ None) = self.links.borrow_mut().get_mut(peer as usize) else { return false };
        ends.clear();
        self.pool.forget(peer);
        *link = Some(Link::new(ends));
        self.heat(peer);
        true
    }

    /// Makes every waker execute its own fence from now on, because a peer has connected that cannot use
    /// asymmetric fences.
    pub fn fence_always(&mut self) {
        self.config.fences = FenceMode::Symmetric;
    }

    #[cfg(test)]
    pub(crate) fn ranks(&self) -> usize {
        self.links.borrow().len()
    }
}
