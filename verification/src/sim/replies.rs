//! Handlers that answer every active message, and peers that take no replies: each peer has its share of the
//! reply slots.

use std::collections::BTreeMap;

use nemesia_core::flow::replies::{ReplyAccount, ReplyPool};

use crate::simulation::Simulation;
use crate::violation::{Check, ensure};

/// Few, so that all of them are soon taken.
const SHARE: u32 = 2;
const POOL: u32 = 3;
/// A peer takes a reply in one of this many calls.
const TAKEN: usize = 3;

/// The replies of one rank that have not left.
#[derive(Debug)]
pub(crate) struct ReplyDesk {
    pool: ReplyPool,
    accounts: BTreeMap<u32, ReplyAccount>,
    /// The peers that were refused a slot, and the number of slots that each held.
    refused: Vec<(u32, u32)>,
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
    fn leave(&mut self, peer: u32) -> bool {
        let Some(account) = self.accounts.get_mut(&peer).filter(|account| account.held() > 0) else {
            return false;
        };
        self.pool.give_back(account);
        true
    }
}

impl Simulation {
    /// Checks that no peer was refused its own share of slots, and that no more replies are kept than there are
    /// slots. Some peers take a reply. The peers of the next rank but one take none until the world comes to
    /// rest.
    pub(crate) fn check_replies(&mut self, rank: u32) -> Check {
        let ranks = self.shape.conditions.ranks;
        let desk = self.world.replies(rank);
        let refused = std::mem::take(&mut desk.refused);
        let kept: u32 = desk.accounts.values().map(ReplyAccount::held).sum();
        ensure!(kept <= POOL + ranks * SHARE, "rank {rank} keeps {kept} replies");
        for (peer, held) in refused {
            ensure!(
                held >= SHARE,
                "rank {rank} can't answer rank {peer}, which holds {held} places of its {SHARE}"
            );
        }
        if kept > 0 && self.rng.one_in(TAKEN) {
            let peer = self.rng.below(ranks as usize) as u32;
            if peer != (rank + 2) % ranks {
                self.world.replies(rank).leave(peer);
            }
        }
        Ok(())
    }

    /// Checks that all slots are free when all peers have taken their replies.
    pub(crate) fn check_all_replies_leave(&mut self, rank: u32) -> Check {
        let desk = self.world.replies(rank);
        for peer in desk.accounts.keys().copied().collect::<Vec<_>>() {
            while desk.leave(peer) {}
        }
        let left = desk.pool.left();
        ensure!(left == POOL, "of the {POOL} places of rank {rank}, {left} came back");
        Ok(())
    }
}
