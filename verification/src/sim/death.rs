//! Processes that die at any packet, and how the others are notified.

use nemesia_verification::oracle::Name;

use crate::simulation::{Report, Simulation};
use crate::tally::Event;
use crate::violation::{Check, ensure};
use crate::world::{Failure, WorldPort};

impl<P: WorldPort> Simulation<P> {
    /// Lets one rank die, now or at one of its next packets; or lets it finish, if it has nothing left to send.
    pub(crate) fn one_dies(&mut self) -> Check {
        let alive = self.alive();
        if alive.len() < 2 {
            return Ok(());
        }
        let rank = self.rng.pick(&alive);
        match self.rng.below(3) {
            0 => {
                let effects = self.rng.below(12) as u32;
                self.world.fabric().doom(rank, effects);
            }
            1 => return self.some_finish(rank),
            _ => self.bury(rank, Failure::Died),
        }
        Ok(())
    }

    /// Makes a rank finish that has nothing left to send: if possible one with unanswered requests of others,
    /// else `or`. If `or` still has something to send, it dies.
    fn some_finish(&mut self, or: u32) -> Check {
        let alive = self.alive();
        let mut silent = Vec::new();
        for rank in alive {
            if self.rank(rank).sends.is_empty() && !self.world.sends_pending(rank) {
                silent.push(rank);
            }
        }
        let asked = silent.iter().copied().find(|rank| self.remotes.is_asked(*rank));
        match asked {
            Some(rank) => self.one_finishes(rank),
            None if silent.contains(&or) => self.one_finishes(or),
            None => {
                self.bury(or, Failure::Died);
                Ok(())
            }
        }
    }

    /// Lets a rank with nothing left to send report what it has executed for the others, and finish; or it dies
    /// meanwhile.
    pub(crate) fn one_finishes(&mut self, rank: u32) -> Check {
        self.world.settle_accounts(rank);
        if !self.bury_if_dead(rank) && !self.world.sends_pending(rank) {
            self.bury(rank, Failure::Finished);
        }
        Ok(())
    }

    /// Removes a rank that died in its last call, whose results are lost. Returns whether it died.
    pub(crate) fn bury_if_dead(&mut self, rank: u32) -> bool {
        let died = self.rank(rank).gone.is_none() && self.world.fabric().is_dead(rank);
        if died {
            self.bury(rank, Failure::Died);
        }
        self.rank(rank).gone.is_some()
    }

    pub(crate) fn bury(&mut self, rank: u32, failure: Failure) {
        self.note(|| format!("rank {rank} is gone: {failure}"));
        let loses = failure == Failure::Died && self.rng.one_in(2);
        self.count(Event::Death);
        self.world.bury(rank, loses);
        self.remotes.forget(rank, failure == Failure::Finished);
        let it = self.rank(rank);
        it.gone = Some(failure);
        it.sends.clear();
        it.receives.clear();
        it.claims.clear();
    }

    /// Gives one rank more information about the end of another.
    pub(crate) fn one_learns(&mut self) -> Check {
        let alive = self.alive();
        if alive.is_empty() {
            return Ok(());
        }
        let rank = self.rng.pick(&alive);
        let peer = self.rng.below(self.shape.conditions.ranks as usize) as u32;
        let hasty = self.rng.one_in(6);
        self.learn(rank, peer, hasty)
    }

    /// Reports a death to a rank, delivers the remaining messages of the dead rank, or disconnects it: one of
    /// these steps, or all at once if `hasty`.
    pub(crate) fn learn(&mut self, rank: u32, peer: u32, hasty: bool) -> Check {
        let Some(failure) = self.rank(peer).gone else { return Ok(()) };
        self.rank(rank).asleep = false;
        match self.rank(rank).reported[peer as usize] {
            Report::Failed(_) => Ok(()),
            _ if hasty => {
                self.rank(rank).hasty[peer as usize] = true;
                self.release(rank, peer, failure)
            }
            Report::Nothing => {
                self.note(|| format!("rank {rank} learns that rank {peer} is gone"));
                self.rank(rank).reported[peer as usize] = Report::Departed(failure);
                self.world.depart(rank, peer, failure);
                self.settle_call(rank, true)
            }
            Report::Departed(_) => {
                let drained = self.world.drain(rank, peer);
                if self.bury_if_dead(rank) {
                    return Ok(());
                }
                self.note(|| format!("rank {rank} drains rank {peer}: {drained}"));
                self.settle_call(rank, false)?;
                let failed = self.world.failure(rank, peer);
                ensure!(failed.is_none(), "rank {rank} finds fault with rank {peer}, which died: {failed:?}");
                if !drained {
                    return Ok(());
                }
                let left = self.world.fabric().under_way(peer, rank);
                ensure!(left == 0, "rank {rank} leaves {left} packets of rank {peer}, which is gone");
                self.release(rank, peer, failure)
            }
        }
    }

    pub(crate) fn release(&mut self, rank: u32, peer: u32, failure: Failure) -> Check {
        self.note(|| format!("rank {rank} lets go of rank {peer}"));
        let late = self.post_late(rank, peer);
        self.world.fail(rank, peer, failure);
        if self.bury_if_dead(rank) {
            return Ok(());
        }
        self.take_late(late, peer, failure)?;
        self.rank(rank).reported[peer as usize] = Report::Failed(failure);
        let ranks = self.shape.conditions.ranks;
        let is_gone = |it: u32| matches!(self.ranks[rank as usize].reported[it as usize], Report::Failed(_));
        let alone = (0..ranks).all(|it| it == rank || is_gone(it));
        let concerns_any = failure != Failure::Finished || alone;
        self.rank(rank).any_failed |= concerns_any;
        self.rank(rank).blamed[peer as usize] |= concerns_any;
        self.rank(rank).oracle.fail(peer, concerns_any);
        if concerns_any {
            self.fail_awaits(rank, peer, failure)?;
        }
        if failure == Failure::Finished {
            self.flush_gone(rank, peer)?;
        }
        self.rank(rank).unasked[peer as usize] = None;
        // A message that was only announced is lost with its sender. A message whose bytes came with its
        // announcement is kept.
        let waiting = self.rank(rank).oracle.waiting().to_vec();
        for name in waiting.iter().map(|waiting| waiting.name).filter(|name| name.source == peer) {
            let message = self.message(rank, name);
            if message.arrival.is_announced() && !message.along {
                self.rank(rank).oracle.forget(name);
            }
        }
        self.settle_call(rank, true)
    }

    /// Reports every death to every living rank.
    pub(crate) fn all_learn(&mut self) -> Check {
        for rank in self.alive() {
            for peer in 0..self.shape.conditions.ranks {
                while self.rank(peer).gone.is_some()
                    && self.rank(rank).gone.is_none()
                    && !matches!(self.rank(rank).reported[peer as usize], Report::Failed(_))
                {
                    self.learn(rank, peer, false)?;
                }
            }
        }
        Ok(())
    }

    /// Returns the messages from one rank to another that have not arrived, in order.
    pub(crate) fn outstanding(&self, from: u32, to: u32) -> impl Iterator<Item = Name> + use<P> {
        let known = self.sent[from as usize][to as usize].len();
        (self.ranks[to as usize].arrived[from as usize]..known)
            .map(move |number| Name { source: from, number })
    }
}
