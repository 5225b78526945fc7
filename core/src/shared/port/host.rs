//! The port's configuration, and the operating system functions that it needs.
#![forbid(unsafe_code)]

use crate::port::{PeerId, Pulled, Stores};
use crate::shared::assist::Pieces;
use crate::shared::sleep::{Sleep, SleepWord};
use crate::sync::FenceMode;

/// The operating system functions that the port needs.
pub trait Host {
    /// Wakes `peer`, whose sleep word is `word`, in the way that the peer has requested.
    fn wake(&mut self, peer: PeerId, word: &SleepWord, how: Sleep);

    /// Returns the ticks of a monotonic clock that is cheap to read. The port uses it to learn the copy
    /// policy; the engine uses it too ([`PortConfig::clocked`]).
    fn ticks(&self) -> Option<u64> {
        None
    }

    /// See [`MessagePort::can_pull`](crate::port::MessagePort::can_pull).
    fn can_pull(&self, peer: PeerId) -> bool {
        let _ = peer;
        false
    }

    /// See [`MessagePort::pull`](crate::port::MessagePort::pull).
    fn pull(&mut self, peer: PeerId, address: u64, to: &mut [u8]) -> Pulled {
        let _ = (peer, address, to);
        Pulled::Refused
    }

    /// See [`MessagePort::push`](crate::port::MessagePort::push).
    fn push(&mut self, peer: PeerId, address: u64, from: &[u8]) -> bool {
        let _ = (peer, address, from);
        false
    }
}

/// The configuration of the port.
#[derive(Clone, Copy, Debug)]
pub struct PortConfig {
    /// Rank of this process.
    pub rank: PeerId,
    /// Largest payload that goes through a fastbox, in bytes; limited by the fastbox.
    pub fastbox_limit: usize,
    /// The kind of fence between a sleeper and its wakers.
    pub fences: FenceMode,
    /// Whether the fastbox announces a filled cell where a slot is free, instead of the receive queue. This
    /// saves three cache-line transfers: the queue's entry, the queue's tail and the cell's header. With more
    /// peers than [`HOT`](super::HOT) the receiver finds a queue entry sooner.
    pub announce: bool,
    /// The size of the pieces that this process copies in sender-assisted copies.
    pub pieces: Pieces,
    /// The copy policy for cells.
    pub stores: Stores,
    /// Whether the engine may use the host's clock ([`MessagePort::ticks`](crate::port::MessagePort::ticks)).
    pub clocked: bool,
}
