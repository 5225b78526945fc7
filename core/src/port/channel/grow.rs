//! Peers that are added one by one, by processes that opened alone.
#![forbid(unsafe_code)]

use core::borrow::Borrow as _;

use super::call::Acquaintance;
use super::connect::JoinError;
use super::peer::Rail;
use super::{BufferSlab, Channel, ChannelBuffer, ChannelPeer, ChannelStorage};
use crate::flow::posted::LEAST;
use crate::port::PeerId;
use crate::port::memory::{ConnectError, Connection, MemoryPort};

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

    /// Makes the first connection with an introduced peer of one that both ends have agreed upon by other means, which
    /// `connect` gives to the port, and which is ready at once. `receives` is the number of receives that the peer has
    /// posted or posts before it reads, at least [`LEAST`]; this process posts [`LEAST`]. `is_caller`: this process
    /// requests further connections with the peer, not the peer.
    ///
    /// # Errors
    /// See [`JoinError`]; nothing is changed. Without buffers, the same may succeed later.
    pub fn adopt(
        &mut self,
        peer: PeerId,
        (receives, is_caller): (u32, bool),
        connect: impl FnOnce(&mut M) -> Result<Connection, ConnectError>,
    ) -> Result<(), JoinError> {
        let expected = self.peer(peer).and_then(|it| it.expected).map(|known| known.expected);
        self.admit(peer, 0)?;
        let connection = connect(&mut self.port);
        let connection = self.admitted(connection)?;
        let mut new = Rail::new(connection, LEAST, None);
        new.active = is_caller;
        // The offer of the peer was checked.
        let _ = new.credits.open(receives);
        if let Some(it) = self.peer(peer) {
            it.show_token(expected);
        }
        self.install(peer, 0, new)?;
        self.make_ready(peer, 0);
        Ok(())
    }

    /// Returns whether the number can be given to another peer: no connection is left, not even a partly closed one.
    pub fn is_vacant(&self, peer: PeerId) -> bool {
        self.peers.borrow().get(peer as usize).is_none_or(ChannelPeer::is_blank)
    }
}
