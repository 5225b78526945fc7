//! One progress step: its limit, its result, and the lists of peers with pending work, and of those that have failed.
#![forbid(unsafe_code)]

use crate::port::PeerId;

/// Most packets that one call of [`Engine::progress`](crate::engine::Engine::progress) delivers.
pub const PACKETS_A_TURN: usize = 64;

/// The result of a call of [`Engine::progress`](crate::engine::Engine::progress).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Number of packets delivered and sent, and of pieces copied. 0 if there was nothing to do.
    pub packets: usize,
    /// A peer that failed since the last call. Its requests are complete.
    pub failed: Option<PeerId>,
}

/// The place of a peer in a list of peers, in four bytes: 0 outside of the list, 1 at its end, else the
/// next peer plus two.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::engine) struct WorkLink(u32);

impl WorkLink {
    fn before(next: Option<PeerId>) -> Self {
        Self(next.map_or(1, |next| next + 2))
    }

    const fn is_listed(self) -> bool {
        self.0 != 0
    }

    pub(in crate::engine) const fn next(self) -> Option<PeerId> {
        self.0.checked_sub(2)
    }
}

/// A list of peers: those with pending work, or those that have failed. Each peer holds its link.
#[derive(Debug, Default)]
pub(in crate::engine) struct WorkList {
    first: Option<PeerId>,
}

impl WorkList {
    #[inline(always)]
    pub(in crate::engine) const fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    /// Adds a peer, given by its link, unless it is in the list.
    pub(in crate::engine) fn add(&mut self, peer: PeerId, link: &mut WorkLink) {
        if !link.is_listed() {
            *link = WorkLink::before(self.first);
            self.first = Some(peer);
        }
    }

    /// Returns the first peer.
    pub(in crate::engine) const fn first(&self) -> Option<PeerId> {
        self.first
    }

    /// Removes the first peer, given by its link.
    pub(in crate::engine) fn remove_first(&mut self, link: &mut WorkLink) {
        self.first = core::mem::take(link).next();
    }

    /// Empties the list. Returns its first peer, whose link names the next one.
    pub(in crate::engine) const fn take(&mut self) -> Option<PeerId> {
        self.first.take()
    }
}
