//! The replies of handlers that have not left their rank.

use std::collections::BTreeMap;

use nemesia_core::flow::replies::{ReplyAccount, ReplyPool};

/// Few, so that all of them are soon taken.
pub(crate) const SHARE: u32 = 2;
pub(crate) const POOL: u32 = 3;

/// The replies of one rank that have not left.
#[derive(Debug)]
pub(crate) struct ReplyDesk {
    pub(crate) pool: ReplyPool,
    pub(crate) accounts: BTreeMap<u32, ReplyAccount>,
    /// The peers that were refused a slot, and the number of slots that each held.
    pub(crate) refused: Vec<(u32, u32)>,
}

impl Default for ReplyDesk {
    fn default() -> Self {
        Self { pool: ReplyPool::new(SHARE, POOL), accounts: BTreeMap::new(), refused: Vec::new() }
    }
}

impl ReplyDesk {
    /// Records that a handler answers a peer.
    pub(crate) fn answer(&mut self, peer: u32) {
        let account = self.accounts.entry(peer).or_default();
        if !self.pool.take(account) {
            self.refused.push((peer, account.held()));
        }
    }

    /// Lets a reply to a peer leave. Returns `false` if there is none.
    pub(crate) fn leave(&mut self, peer: u32) -> bool {
        let Some(account) = self.accounts.get_mut(&peer).filter(|account| account.held() > 0) else {
            return false;
        };
        self.pool.give_back(account);
        true
    }
}
