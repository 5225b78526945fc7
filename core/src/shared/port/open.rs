//! Peers that come late: those that were started again, and those that a process that was started again finds.

use core::borrow::BorrowMut;

use super::{Ends, Host, Link, ShmPort};
use crate::port::PeerId;
use crate::shared::pool::CellRecord;
use crate::sync::FenceMode;

impl Ends<'_> {
    /// Empties what our segment holds for the peer, as at start. Nobody reads it now; whoever does next has heard from us,
    /// by a system call, after this.
    fn clear(&self) {
        self.outbound.clear();
        self.inbound.clear();
        self.give_back.clear();
        self.grant.store_relaxed(0);
        self.share.clear();
    }
}

impl<'a, H, L, R> ShmPort<'a, H, L, R>
where
    H: Host,
    L: BorrowMut<[Option<Link<'a>>]>,
    R: BorrowMut<[CellRecord]>,
{
    /// Connects a peer that has no link: one that is there again as a new process, or one that was not there at start.
    /// What our segment held for the one before is emptied; the peer must not look at it before this returns, and the
    /// caller must then tell it. False when there is a link already.
    #[cold]
    pub fn open(&mut self, peer: PeerId, ends: Ends<'a>) -> bool {
        let Some(link @ None) = self.links.borrow_mut().get_mut(peer as usize) else { return false };
        ends.clear();
        self.pool.forget(peer);
        *link = Some(Link::new(ends));
        self.heat(peer);
        true
    }

    /// From now on every waker pays for its fence: a peer has come that can't sleep with the others' help.
    pub fn fence_always(&mut self) {
        self.config.fences = FenceMode::Symmetric;
    }

    #[cfg(test)]
    pub(crate) fn ranks(&self) -> usize {
        self.links.borrow().len()
    }
}
