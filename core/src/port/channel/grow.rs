//! Peers that are added one by one, by processes that opened alone.
#![forbid(unsafe_code)]

use core::borrow::Borrow as _;

use super::call::Acquaintance;
use super::{BufferSlab, Channel, ChannelBuffer, ChannelPeer, ChannelStorage};
use crate::port::PeerId;
use crate::port::memory::MemoryPort;

impl<M: MemoryPort, S: ChannelStorage> Channel<M, S> {
    /// From now on, connects only with peers that the caller has introduced ([`Channel::expect`]).
    pub const fn grow_with_peers(&mut self) {
        self.grows = true;
    }

    /// Makes place for so many more buffers, in so many more pieces of memory ([`Channel::lend`]).
    pub fn grow_buffers(&mut self, buffers: usize, slabs: usize)
    where
        S::Buffers: Extend<ChannelBuffer>,
        S::Slabs: Extend<Option<BufferSlab>>,
    {
        self.buffers.grow(buffers, slabs);
    }

    /// Returns the number of places for peers, with or without one.
    pub fn places(&self) -> usize {
        self.peers.borrow().len()
    }

    /// Makes a place for one more peer, with the next number. `peer` has the same window as all others.
    pub fn add_place(&mut self, peer: ChannelPeer<S::Window>)
    where
        S::Peers: Extend<ChannelPeer<S::Window>>,
    {
        debug_assert!(self.peers.borrow().iter().all(|it| it.window_size() <= peer.window_size()));
        self.peers.extend(core::iter::once(peer));
    }

    /// Introduces the peer with this number, which may connect from now on, or be connected with. `None`: no process
    /// may connect as this peer any more. Returns `false` without effect if the number has no place, or if a connection
    /// of its former peer is not completely closed ([`Channel::is_vacant`]).
    pub fn expect(&mut self, peer: PeerId, known: Option<Acquaintance>) -> bool {
        let Some(it) = self.peer(peer) else { return false };
        if known.is_some() && !it.is_blank() {
            return false;
        }
        it.expected = known;
        if let Some(known) = known {
            it.token = known.token;
        }
        true
    }

    /// Returns whether the number can be given to another peer: no connection is left, not even a partly closed one.
    pub fn is_vacant(&self, peer: PeerId) -> bool {
        self.peers.borrow().get(peer as usize).is_none_or(ChannelPeer::is_blank)
    }
}
