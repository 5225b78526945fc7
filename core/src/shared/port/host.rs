//! What the port is told, and what it needs that only an operating system has.
#![forbid(unsafe_code)]

use crate::port::{PeerId, Pulled, Stores};
use crate::shared::share::Pieces;
use crate::shared::sleep::{Sleep, SleepWord};
use crate::sync::FenceMode;

/// What the port cannot do without an operating system.
pub trait Host {
    /// Wakes `peer`, whose word is `word`, in the way that it has asked for.
    fn wake(&mut self, peer: PeerId, word: &SleepWord, how: Sleep);

    /// Ticks of a steady clock that is cheap to read, by which the port learns how cells are best filled, and the engine more
    /// ([`PortConfig::clocked`]).
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

/// What the port is told at start.
#[derive(Clone, Copy, Debug)]
pub struct PortConfig {
    /// Our rank.
    pub rank: PeerId,
    /// Largest payload that goes through a fastbox, in bytes; limited by the fastbox.
    pub fastbox_limit: usize,
    /// How a sleeper and its wakers agree.
    pub fences: FenceMode,
    /// Whether a filled cell is announced in the fastbox, where there is room, and not in the receive queue. That saves
    /// the queue's entry and tail and the cell's header, three lines that change hands. Among more peers than [`HOT`](super::HOT) the
    /// queue is found sooner.
    pub announce: bool,
    /// What we copy at once of messages that both sides copy.
    pub pieces: Pieces,
    /// How cells are filled.
    pub stores: Stores,
    /// Whether the engine has the host's clock ([`MessagePort::ticks`](crate::port::MessagePort::ticks)).
    pub clocked: bool,
}
