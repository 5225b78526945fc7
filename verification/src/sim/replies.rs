//! Handlers that answer every active message, and peers that take no replies: each peer has its share of the
//! reply slots.

use nemesia_core::flow::replies::ReplyAccount;

use crate::desk::{POOL, SHARE};
use crate::simulation::Simulation;
use crate::violation::{Check, ensure};
use crate::world::WorldPort;

/// A peer takes a reply in one of this many calls.
const TAKEN: usize = 3;

impl<P: WorldPort> Simulation<P> {
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
