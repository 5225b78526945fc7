//! Ranks that are started again: a new process shares no state with the others until they readmit it.
//!
//! The messages between two ranks are numbered through all processes of a rank. The oracle tells the
//! processes apart by the number of each process's first message. When a process is readmitted, nothing of
//! the former one may be left.

use nemesia_verification::oracle::Name;

use crate::simulation::{Rank, Report, Simulation};
use crate::tally::Event;
use crate::violation::{Check, ensure};
use crate::world::{Failure, WorldPort};

impl<P: WorldPort> Simulation<P> {
    /// Starts one dead rank again, if there is one. The others have learned of its end before, because a rank
    /// that has not learned of it cannot readmit it.
    pub(crate) fn one_restarts(&mut self) -> Check {
        let ranks = self.shape.conditions.ranks;
        let gone: Vec<u32> = (0..ranks).filter(|&rank| self.ranks[rank as usize].gone.is_some()).collect();
        if gone.is_empty() || !self.world.has_process() {
            return Ok(());
        }
        let rank = self.rng.pick(&gone);
        for survivor in self.alive() {
            while self.rank(survivor).gone.is_none()
                && !matches!(self.rank(survivor).reported[rank as usize], Report::Failed(_))
            {
                let hasty = self.rng.one_in(6);
                self.learn(survivor, rank, hasty)?;
            }
        }
        self.note(|| format!("rank {rank} is started again"));
        self.count(Event::Restart);
        self.world.restart(rank)?;
        self.remotes.restart(rank);
        let mut fresh = Rank::started(&self.shape, rank);
        let grows = self.shape.terms.most_peers.is_some();
        for peer in 0..ranks {
            // Messages to the former process do not count for this one, nor do the messages that the former
            // process sent.
            fresh.arrived[peer as usize] = self.sent[peer as usize][rank as usize].len();
            fresh.born[peer as usize] = self.sent[rank as usize][peer as usize].len();
            if grows {
                // No rank waits any more for messages of the former process. They may never meet again.
                self.rank(peer).arrived[rank as usize] = self.sent[rank as usize][peer as usize].len();
            } else if let Some(failure) = self.rank(peer).gone.filter(|_| peer != rank) {
                self.world.fail(rank, peer, failure);
                fresh.reported[peer as usize] = Report::Failed(failure);
            }
        }
        fresh.first[rank as usize] = fresh.arrived[rank as usize];
        self.world.acknowledge(rank);
        *self.rank(rank) = fresh;
        Ok(())
    }

    /// Lets one survivor readmit one rank, if it can.
    pub(crate) fn one_readmits(&mut self) -> Check {
        let alive = self.alive();
        if alive.is_empty() {
            return Ok(());
        }
        let survivor = self.rng.pick(&alive);
        let rank = self.rng.pick(&alive);
        self.readmit(survivor, rank)
    }

    /// Lets every rank readmit every other.
    pub(crate) fn all_readmit(&mut self) -> Check {
        for survivor in self.alive() {
            for rank in self.alive() {
                self.readmit(survivor, rank)?;
            }
        }
        Ok(())
    }

    /// Returns whether a restarted rank waits for this one, which has disconnected from the former process.
    pub(crate) fn can_readmit(&self, survivor: u32, rank: u32) -> bool {
        let (one, other) = (&self.ranks[survivor as usize], &self.ranks[rank as usize]);
        let lives = one.gone.is_none() && other.gone.is_none();
        lives
            && matches!(one.reported[rank as usize], Report::Failed(_))
            && other.reported[survivor as usize] == Report::Nothing
    }

    pub(crate) fn readmit(&mut self, survivor: u32, rank: u32) -> Check {
        if !self.can_readmit(survivor, rank) {
            return Ok(());
        }
        // Everything about the former process has been reported by now.
        self.settle_call(survivor, true)?;
        self.settle_call(rank, false)?;
        if !self.can_readmit(survivor, rank) {
            return Ok(());
        }
        self.note(|| format!("rank {survivor} readmits rank {rank}"));
        self.count(Event::Readmission);
        if self.shape.terms.most_peers.is_some() {
            if !self.adds(survivor, rank)? {
                return self.turn_away(rank, survivor);
            }
        } else {
            ensure!(self.world.readmit(survivor, rank), "rank {survivor} does not readmit rank {rank}");
        }
        if self.bury_if_dead(survivor) {
            self.bury_if_dead(rank);
            return Ok(());
        }
        let first = self.ranks[rank as usize].born[survivor as usize];
        let sent_before = self.sent[survivor as usize][rank as usize].len();
        self.rank(rank).arrived[survivor as usize] = sent_before;
        self.rank(rank).first[survivor as usize] = sent_before;
        self.rank(rank).asleep = false;
        self.begin_with(survivor, rank);
        let it = self.rank(survivor);
        it.arrived[rank as usize] = first;
        it.first[rank as usize] = first;
        let waiting = it.oracle.waiting().to_vec();
        for name in waiting.iter().map(|waiting| waiting.name).filter(|name| name.source == rank) {
            self.rank(survivor).oracle.forget(name);
        }
        self.settle_call(survivor, true)?;
        self.settle_call(rank, true)
    }

    /// Returns whether a message is from a dead process of its rank, as far as `rank` knows.
    pub(crate) fn is_past(&self, rank: u32, name: Name) -> bool {
        let reported = &self.ranks[rank as usize].reported;
        matches!(reported[name.source as usize], Report::Failed(_)) || self.is_of_another(rank, name)
    }

    /// Returns whether a message is from an earlier process of its rank than the one that `rank` has
    /// readmitted.
    pub(crate) fn is_of_another(&self, rank: u32, name: Name) -> bool {
        name.number < self.ranks[rank as usize].first[name.source as usize]
    }

    /// Returns the claimed messages that a rank still stores. A message that was only announced is lost with
    /// its sender.
    pub(crate) fn claims_kept(&self, rank: u32) -> impl Iterator<Item = Name> + use<'_, P> {
        let Rank { claims, first, .. } = &self.ranks[rank as usize];
        claims.iter().map(|(_, name)| *name).filter(move |name| {
            let message = &self.sent[name.source as usize][rank as usize][name.number];
            name.number >= first[name.source as usize] || !message.arrival.is_announced()
        })
    }

    /// Returns whether a rank knows that another failed in this way, this time or before.
    pub(crate) fn knows_failure(&self, rank: u32, peer: u32, failure: Failure) -> bool {
        let Rank { reported, past, .. } = &self.ranks[rank as usize];
        reported[peer as usize].failure() == Some(failure) || past[peer as usize].contains(&failure)
    }
}
