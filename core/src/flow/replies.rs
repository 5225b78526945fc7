//! Places for the replies of active-message handlers, shared by all peers.
//!
//! A reply is stored until its receiver has space for it, so a peer that receives no replies occupies memory of
//! this process. Each peer has [`SHARE`] places of its own, which no other peer can take. All other places are
//! one [`SharedPool`] of [`POOL`] places.
//!
//! With `n` peers at most `POOL + n * SHARE` replies are stored.
#![forbid(unsafe_code)]

use super::shares::SharedPool;
#[cfg(nemesia_injected_fault)]
use crate::injected_fault::{InjectedFault, injected};

/// The number of places of each peer's own.
pub const SHARE: u32 = 32;
/// The number of places that all peers share, in addition.
pub const POOL: u32 = 1024;

/// The places of the pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplyPool {
    share: u32,
    all: u32,
    places: SharedPool,
}

/// The places that one peer holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReplyAccount {
    /// The number of its own places.
    own: u32,
    /// The number of its pool places.
    pooled: u32,
}

impl Default for ReplyPool {
    fn default() -> Self {
        Self::new(SHARE, POOL)
    }
}

impl ReplyPool {
    /// Returns a pool of `pool` places, in addition to `share` places of each peer's own.
    pub const fn new(share: u32, pool: u32) -> Self {
        let mut places = SharedPool::new();
        places.add(pool);
        Self { share, all: pool, places }
    }

    /// Takes a place for a reply to a peer. Returns `false` if the peer may hold no more for now.
    #[must_use]
    pub fn take(&mut self, account: &mut ReplyAccount) -> bool {
        #[cfg(nemesia_injected_fault)]
        if injected(InjectedFault::ForgetShare) {
            let any = self.places.take(false);
            account.pooled += u32::from(any);
            return any;
        }
        if account.own < self.share {
            account.own += 1;
        } else if self.places.may_grow(account.pooled, 0, self.all) && self.places.take(false) {
            account.pooled += 1;
        } else {
            return false;
        }
        true
    }

    /// Releases the place of a reply that has left, or was dropped.
    pub fn give_back(&mut self, account: &mut ReplyAccount) {
        if account.pooled > 0 {
            account.pooled -= 1;
            self.places.put(false);
        } else {
            account.own = account.own.saturating_sub(1);
        }
    }

    /// Returns the number of free pool places.
    pub const fn left(&self) -> u32 {
        self.places.free()
    }
}

impl ReplyAccount {
    /// Returns the number of places that the peer holds.
    pub const fn held(&self) -> u32 {
        self.own + self.pooled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(pool: &mut ReplyPool, account: &mut ReplyAccount) -> u32 {
        (0..).take_while(|_| pool.take(account)).count() as u32
    }

    #[test]
    fn a_peer_that_takes_no_replies_leaves_half_of_the_pool_and_all_shares() {
        let (mut pool, mut slow, mut other) =
            (ReplyPool::default(), ReplyAccount::default(), ReplyAccount::default());
        assert_eq!(fill(&mut pool, &mut slow), SHARE + POOL / 2);
        assert_eq!(fill(&mut pool, &mut other), SHARE + POOL / 4);
    }

    #[test]
    fn however_many_peers_take_no_replies_the_next_one_has_its_share() {
        let mut pool = ReplyPool::default();
        for peer in 0..100 {
            let held = fill(&mut pool, &mut ReplyAccount::default());
            assert!(held >= SHARE, "peer {peer} got {held} places");
        }
        assert!(pool.left() <= 1);
    }

    #[test]
    fn places_that_are_given_back_are_there_again() {
        let (mut pool, mut account) = (ReplyPool::default(), ReplyAccount::default());
        let held = fill(&mut pool, &mut account);
        assert_eq!(account.held(), held);
        (0..held).for_each(|_| pool.give_back(&mut account));
        assert_eq!((pool.left(), account), (POOL, ReplyAccount::default()));
        assert_eq!(fill(&mut pool, &mut ReplyAccount::default()), held);
    }
}
