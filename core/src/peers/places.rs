//! The places of peers: taken, given to another process, and released.
#![forbid(unsafe_code)]

use core::borrow::BorrowMut;

use super::{PeerAddress, PeerError, PeerRef, PeerSlot, Peers};
use crate::slab::{List, Slot};

impl<S, B, N> Peers<S, B, N>
where
    S: BorrowMut<[Slot<PeerSlot>]>,
    B: BorrowMut<[List]>,
    N: BorrowMut<[u32]>,
{
    /// Gives a pinned peer that is not connected the address of another process, which takes the place of its former
    /// one. The peer is then as one that was never met.
    ///
    /// # Errors
    /// [`PeerError::Stale`]; [`PeerError::InUse`] if the peer is connected, or another one has this address.
    pub fn renew(&mut self, peer: PeerRef, address: &PeerAddress) -> Result<(), PeerError> {
        let stage = self.slot(peer)?.stage;
        let is_taken = *address == self.own || self.find(address).is_some_and(|other| other != peer.index);
        if is_taken || stage.number().is_some() {
            return Err(PeerError::InUse);
        }
        self.unlink(peer.index);
        *self.slots.get_mut(peer.index) = PeerSlot { address: *address, ..PeerSlot::default() };
        self.link(peer.index);
        Ok(())
    }

    /// Releases a peer that is not connected. Its identifier is stale afterwards, and its slot is used again.
    ///
    /// # Errors
    /// [`PeerError::Stale`], [`PeerError::InUse`]; [`PeerError::Pinned`].
    pub fn release(&mut self, peer: PeerRef) -> Result<(), PeerError> {
        let slot = self.slot(peer)?;
        if self.is_pinned(peer) {
            return Err(PeerError::Pinned);
        }
        if slot.stage.number().is_some() {
            return Err(PeerError::InUse);
        }
        self.unlink(peer.index);
        self.slots.remove(peer.index);
        Ok(())
    }

    pub(super) fn insert(&mut self, address: &PeerAddress) -> Option<PeerRef> {
        let index = self.slots.insert(PeerSlot { address: *address, ..PeerSlot::default() }).ok()?;
        self.link(index);
        Some(self.reference(index))
    }

    /// Puts a slot into the list of its address.
    fn link(&mut self, index: u32) {
        let bucket = self.bucket(&self.slots.get(index).address);
        let mut list = self.buckets.borrow()[bucket];
        self.slots.push_back(&mut list, index);
        self.buckets.borrow_mut()[bucket] = list;
    }

    /// Takes a slot out of the list of its address.
    fn unlink(&mut self, index: u32) {
        let bucket = self.bucket(&self.slots.get(index).address);
        let mut list = self.buckets.borrow()[bucket];
        self.slots.unlink(&mut list, index);
        self.buckets.borrow_mut()[bucket] = list;
    }
}
