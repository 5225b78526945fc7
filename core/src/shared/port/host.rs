//! The port's configuration, and the operating system functions that it needs.
#![forbid(unsafe_code)]

use crate::payload::ReceiveList;
use crate::port::{AccessError, PeerId, RemoteRun, Stores};
use crate::shared::assist::Pieces;
use crate::shared::sleep::{Sleep, SleepWord};
use crate::sync::FenceMode;
use crate::wire::mappable::MappableBytes;

/// The operating system functions that the port needs.
pub trait Host {
    /// Wakes `peer`, whose sleep word is `word`, in the way that the peer has requested.
    fn wake(&mut self, peer: PeerId, word: &SleepWord, how: Sleep);

    /// Returns the ticks of a monotonic clock that is cheap to read. The port uses it to learn the copy
    /// policy; the engine uses it too ([`PortConfig::clocked`]).
    fn ticks(&self) -> Option<u64> {
        None
    }

    /// Returns whether [`Host::pull`] may be tried.
    fn can_pull(&self, peer: PeerId) -> bool {
        let _ = peer;
        false
    }

    /// Fills `to` from `address` in the peer's memory, in one copy.
    ///
    /// # Errors
    /// See [`AccessError`]; the content of `to` is then unspecified.
    fn pull(&mut self, peer: PeerId, address: u64, to: &mut [u8]) -> Result<(), AccessError> {
        let _ = (peer, address, to);
        Err(AccessError::Refused)
    }

    /// As [`Host::pull`], from several runs of the peer's memory to several ranges, with as few calls of the operating
    /// system as possible. Both have the same number of bytes.
    ///
    /// # Errors
    /// See [`AccessError`]; the content of `to` is then unspecified.
    fn pull_runs(
        &mut self,
        peer: PeerId,
        from: impl Iterator<Item = RemoteRun>,
        to: &mut ReceiveList<'_>,
    ) -> Result<(), AccessError> {
        let _ = (peer, from, to);
        Err(AccessError::Refused)
    }

    /// Returns the description of `len` bytes of this process at `address`, if they all lie in memory that peers
    /// can map.
    fn mappable(&self, address: u64, len: usize) -> Option<MappableBytes> {
        let _ = (address, len);
        None
    }

    /// Returns whether [`Host::get_mapped`] may be tried with this memory of the peer.
    fn can_map(&self, peer: PeerId, bytes: &MappableBytes) -> bool {
        let _ = (peer, bytes);
        false
    }

    /// Fills `to` from the position `at` of the described bytes on, in memory of the peer that is mapped in this
    /// process, or is mapped now. Never waits. Returns `false`, with `to` unspecified, if it is impossible. The
    /// description is the peer's and unchecked.
    fn get_mapped(&mut self, peer: PeerId, from: &MappableBytes, at: u64, to: &mut [u8]) -> bool {
        let _ = (peer, from, at, to);
        false
    }

    /// Copies `from` to the position `at` of the described bytes, as [`Host::get_mapped`] does. Returns `false`, with
    /// nothing written, if it is impossible.
    fn put_mapped(&mut self, peer: PeerId, to: &MappableBytes, at: u64, from: &[u8]) -> bool {
        let _ = (peer, to, at, from);
        false
    }

    /// See [`SharedCopy::push`](crate::port::SharedCopy::push).
    fn push(&mut self, peer: PeerId, address: u64, from: &[u8]) -> bool {
        let _ = (peer, address, from);
        false
    }
}

/// The configuration of the port.
#[derive(Clone, Copy, Debug)]
pub struct PortConfig {
    /// Largest payload that goes through a fastbox, in bytes; limited by the fastbox.
    pub fastbox_limit: usize,
    /// Largest message that is sent at once rather than announced, in bytes, if there is credit for the whole; in
    /// several cells if it does not fit one. 0: the engine's own limit counts.
    pub eager_bytes: usize,
    /// The kind of fence between a sleeper and its wakers.
    pub fences: FenceMode,
    /// Whether the fastbox announces a filled cell where a slot is free, instead of the receive queue. This
    /// saves three cache-line transfers: the queue's entry, the queue's tail and the cell's header. While the
    /// process has more peers than [`HOT`](super::HOT), the queue does: the receiver finds its entry sooner.
    pub announce: bool,
    /// The size of the pieces that this process copies in sender-assisted copies.
    pub pieces: Pieces,
    /// The copy policy for cells.
    pub stores: Option<Stores>,
    /// Whether the engine may use the host's clock ([`PacketPort::ticks`](crate::port::PacketPort::ticks)).
    pub clocked: bool,
}
