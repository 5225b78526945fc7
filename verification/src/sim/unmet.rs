//! Worlds whose ranks connect when an operation of one first names the other.
//!
//! No rank is connected with another at first. What an engine wants is done a while later, as the layer above does it:
//! the two are connected, and the other rank learns of it as of a call. A rank that has died is not called; its death
//! is reported as any other.

use crate::simulation::Simulation;
use crate::tally::Event;
use crate::violation::Check;
use crate::world::WorldPort;

impl<P: WorldPort> Simulation<P> {
    /// Connects one rank with those that it wants.
    pub(crate) fn one_calls(&mut self) -> Check {
        let alive = self.alive();
        if !alive.is_empty() {
            let rank = self.rng.pick(&alive);
            self.connect_wanted(rank)?;
        }
        Ok(())
    }

    /// Connects a rank with those that it wants.
    pub(crate) fn connect_wanted(&mut self, rank: u32) -> Check {
        if !self.shape.terms.unmet {
            return Ok(());
        }
        while let Some(peer) = self.world.next_wanted(rank) {
            if self.rank(peer).gone.is_some() {
                continue;
            }
            self.note(|| format!("rank {rank} connects with rank {peer}"));
            if self.world.meet(rank, peer)? {
                self.count(Event::Met);
                self.rank(rank).asleep = false;
                self.rank(peer).asleep = false;
            }
        }
        Ok(())
    }
}
