//! Counters: those of the engine, and those of waiting.

use nemesia_core::counters::Field;
pub use nemesia_core::counters::{EngineCounters, PeerCounters};

use nemesia_core::port::MessagePort as _;

use super::{Endpoint, Source, Tag, pattern};
use crate::route::Explanation;

nemesia_core::counters! {
    /// How an endpoint has waited, since it was opened.
    WaitCounters {
        /// Times that the core was offered to others.
        yields: "times",
        /// Times that the thread slept.
        sleeps: "times",
        /// Sleeps that a peer ended; the others ended by themselves.
        sleeps_woken: "times",
        /// Time slept.
        slept_ns: "ns",
        /// Times that the descriptor for event loops was armed.
        armed: "times",
        /// Times that the kernel was asked whether the peers live.
        liveness_checks: "times",
    }
}

/// What an endpoint has done since it was opened, and what it met with. All numbers only grow, but for
/// `engine.unexpected_now`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// The sum over all peers, and this process itself.
    pub all: PeerCounters,
    /// What is not about one peer.
    pub engine: EngineCounters,
    /// How it has waited.
    pub waits: WaitCounters,
}

impl Counters {
    /// Name, unit and value of each.
    pub fn each(&self, mut visit: impl FnMut(&'static Field, u64)) {
        self.all.each(&mut visit);
        self.engine.each(&mut visit);
        self.waits.each(&mut visit);
    }
}

impl Endpoint {
    /// What was done so far. Costs some work for each peer; counting itself costs next to nothing.
    pub fn counters(&self) -> Counters {
        Counters {
            all: self.engine.counters(),
            engine: self.engine.engine_counters(),
            waits: self.waiter.counters,
        }
    }

    /// What was done so far with one rank; also if it is gone. `None` if there is no such rank.
    ///
    /// ```
    /// # let mut endpoint = nemesia::Endpoint::open_with(
    /// #     &nemesia::Config::default(),
    /// #     Box::new(nemesia::bootstrap::Singleton::new()),
    /// # )?;
    /// let me = endpoint.rank();
    /// endpoint.send(me, 1, b"nemesia!")?;
    /// let counters = endpoint.peer_counters(me).ok_or("no such rank")?;
    /// assert_eq!((counters.eager_sent, counters.eager_sent_bytes), (1, 8));
    /// assert_eq!((counters.unexpected, endpoint.counters().engine.unexpected_now), (1, 1));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn peer_counters(&self, rank: usize) -> Option<PeerCounters> {
        self.engine.peer_counters(u32::try_from(rank).ok()?)
    }

    /// How each rank is reached, what is used with it, and why what is not used was refused.
    pub fn explain(&self) -> Explanation {
        let route = |rank| {
            let pulls = self.engine.port().can_pull(rank as u32);
            self.facts.route(&self.config, (self.rank(), rank), pulls, self.failure(rank))
        };
        Explanation {
            rank: self.rank(),
            routes: (0..self.size()).map(route).collect(),
            warnings: self.warnings.clone(),
        }
    }

    /// What receiving costs just now, in messages that nobody has asked for: so many of them a receive in context 0
    /// would look at before it has its own, or knows that there is none. For measurements.
    pub fn receive_steps(&self, from: Source, tag: Tag) -> usize {
        pattern(from, 0, tag).map_or(0, |pattern| self.engine.receive_steps(&pattern))
    }

    /// What delivering costs just now, in posted receives: so many of them would be looked at for a message in context
    /// 0 before it has its own, or is known to have none. For measurements.
    pub fn arrival_steps(&self, from: usize, tag: u64) -> usize {
        self.engine.arrival_steps(u32::try_from(from).unwrap_or(u32::MAX), 0, tag)
    }
}
