//! Places for the replies of active-message handlers, shared out among peers.
//!
//! A reply is kept until its receiver has room for it, so a peer that takes no replies makes this process keep them.
//! Each peer has [`SHARE`] places to itself, which no other peer can take. All else is one pool of [`POOL`] places: a
//! peer may have more of the pool only while it holds less of it than is left. So one peer that takes nothing ends with
//! half of the pool, two of them with a third each, and there is always some left for the next one.
//!
//! With `n` peers at most `POOL + n * SHARE` replies are kept.
#![forbid(unsafe_code)]

#[cfg(nemesia_injected_fault)]
use crate::injected_fault::{InjectedFault, injected};

/// Places that each peer has to itself.
pub const SHARE: u32 = 32;
/// Places of all peers together, besides.
pub const POOL: u32 = 1024;

/// The places that belong to no peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplyPool {
    share: u32,
    left: u32,
}

/// What one peer holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReplyAccount {
    /// Of its share.
    own: u32,
    /// Of the pool.
    pooled: u32,
}

impl Default for ReplyPool {
    fn default() -> Self {
        Self::new(SHARE, POOL)
    }
}

impl ReplyPool {
    /// A pool of so many places, beside so many that each peer has to itself.
    pub const fn new(share: u32, pool: u32) -> Self {
        Self { share, left: pool }
    }

    /// Takes a place for a reply to a peer. False when it may hold no more for now.
    #[must_use]
    pub fn take(&mut self, account: &mut ReplyAccount) -> bool {
        #[cfg(nemesia_injected_fault)]
        if injected(InjectedFault::ForgetShare) {
            let any = self.left > 0;
            self.left -= u32::from(any);
            account.pooled += u32::from(any);
            return any;
        }
        if account.own < self.share {
            account.own += 1;
        } else if account.pooled < self.left {
            account.pooled += 1;
            self.left -= 1;
        } else {
            return false;
        }
        true
    }

    /// A reply to a peer has left, or is dropped.
    pub fn give_back(&mut self, account: &mut ReplyAccount) {
        if account.pooled > 0 {
            account.pooled -= 1;
            self.left += 1;
        } else {
            account.own = account.own.saturating_sub(1);
        }
    }

    /// Places that belong to no peer.
    pub const fn left(&self) -> u32 {
        self.left
    }
}

impl ReplyAccount {
    /// Places that the peer holds.
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
