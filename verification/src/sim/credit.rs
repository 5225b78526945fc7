//! Credit and memory: no rank promises memory that is not there, no rank sends more than it was granted, and no
//! credit is lost.

use nemesia_verification::oracle::Name;

use crate::simulation::{Arrival, CreditView, Rank, Report, Simulation};
use crate::violation::{Check, ensure};
use crate::world::{Outgoing, Pattern, Source, WorldPort, cost, limits};

/// The size, in units, of the largest store that is filled unit by unit.
const MEASURED: u64 = 1000;

impl<P: WorldPort> Simulation<P> {
    /// Returns the units that a peer may still send, as far as the rank has granted them. That memory must be
    /// there.
    fn promised(&self, rank: u32, peer: u32) -> u64 {
        let Rank { reported, charged, .. } = &self.ranks[rank as usize];
        if peer == rank || matches!(reported[peer as usize], Report::Failed(_)) {
            return 0;
        }
        self.world.fabric().granted_in_all(rank, peer).saturating_sub(charged[peer as usize])
    }

    /// Returns the least number of units that the messages stored at a rank take.
    fn stored_units(&mut self, rank: u32) -> u64 {
        let Rank { oracle, .. } = &self.ranks[rank as usize];
        let waiting = oracle.waiting().iter().map(|waiting| waiting.name);
        let names: Vec<Name> = waiting.chain(self.claims_kept(rank)).collect();
        names.into_iter().map(|name| u64::from(self.message(rank, name).units)).sum()
    }

    /// Checks the memory contract: stored and promised units together stay under the ceiling.
    pub(crate) fn check_ceiling(&mut self, rank: u32) -> Check {
        let ranks = self.shape.conditions.ranks;
        for peer in 0..ranks {
            let granted = self.world.fabric().granted_in_all(rank, peer);
            let Rank { charged, looks, .. } = self.rank(rank);
            looks[peer as usize].see(granted, charged[peer as usize]);
        }
        let promised: u64 = (0..ranks).map(|peer| self.promised(rank, peer)).sum();
        let stored = self.stored_units(rank);
        let ceiling = self.shape.terms.units as u64;
        ensure!(
            stored + promised <= ceiling,
            "rank {rank} stores {stored} units and promises {promised} more, but has {ceiling}"
        );
        Ok(())
    }

    /// Checks that a peer of which nothing is stored may send half of its reserve and one largest packet.
    pub(crate) fn check_reserves(&mut self, rank: u32) -> Check {
        let Rank { oracle, claims, .. } = &self.ranks[rank as usize];
        if !oracle.waiting().is_empty() || !claims.is_empty() {
            return Ok(());
        }
        let limits = limits(&self.shape);
        for peer in self.accounts(rank) {
            let units = self.promised(rank, peer);
            ensure!(
                units >= limits.packet && 2 * units + 1 >= limits.reserve,
                "rank {rank} stores nothing, but rank {peer} may send only {units} units: {limits:?}"
            );
        }
        Ok(())
    }

    /// Returns the peers to which a rank promises units.
    fn accounts(&self, rank: u32) -> Vec<u32> {
        let Rank { reported, .. } = &self.ranks[rank as usize];
        // A rank gets its account when it is met.
        let is_unmet = |peer| self.shape.terms.unmet && self.world.fabric().is_parted(rank, peer);
        let open = |&peer: &u32| {
            peer != rank && !matches!(reported[peer as usize], Report::Failed(_)) && !is_unmet(peer)
        };
        (0..self.shape.conditions.ranks).filter(open).collect()
    }

    /// Lets a rank that stores nothing send empty messages to itself until there is no room: memory that is
    /// not promised to others must be usable. Then the rank receives them.
    pub(crate) fn measure_pool(&mut self, rank: u32) -> Check {
        let ceiling = self.shape.terms.units as u64;
        if ceiling > MEASURED {
            return Ok(());
        }
        // The rank may not have noticed yet what a peer has used since a grant.
        let limits = limits(&self.shape);
        let reserve = limits.reserve;
        let accounts = self.accounts(rank);
        // The reserves without an account are kept for ranks that come, or come back.
        let kept = reserve * (limits.reserves as usize - accounts.len()) as u64;
        let promised = |peer: u32| {
            let CreditView { granted, then, .. } = self.ranks[rank as usize].looks[peer as usize];
            reserve.max(granted - then)
        };
        let least = ceiling.saturating_sub(kept + accounts.into_iter().map(promised).sum::<u64>());
        let mut stored = 0;
        while !self.awaits_itself(rank) {
            let message = Outgoing {
                to: rank,
                context: 0,
                tag: 0,
                key: 0,
                len: 0,
                immediate: None,
                synchronous: false,
            };
            self.send_message(rank, message)?;
            self.settle_call(rank, true)?;
            stored += 1;
            ensure!(stored <= ceiling + 1, "rank {rank} stores more than {ceiling} messages");
        }
        // The last message found no room.
        ensure!(
            stored > least,
            "{least} units of rank {rank} belong to no message, but only {} are free",
            stored - 1
        );
        let pattern = Pattern { source: Source::Rank(rank), context: 0, tag: 0, ignore: 0 };
        for _ in 0..stored {
            self.receive(rank, pattern, 0)?;
            self.settle_call(rank, true)?;
            self.progress(rank)?;
            self.settle_call(rank, true)?;
        }
        Ok(())
    }

    /// Charges the credit of an arrived message.
    pub(crate) fn charge(&mut self, rank: u32, name: Name, arrival: Arrival, len: usize) {
        let units = if arrival == Arrival::Own { 1 } else { cost(len) };
        self.message(rank, name).units = units;
        if arrival != Arrival::Own {
            self.rank(rank).charged[name.source as usize] += u64::from(units);
        }
    }
}
