//! Counters: those of the engine, and those of waiting.

use nemesia_core::counters::Field;
pub use nemesia_core::counters::{EngineCounters, PeerCounters};

use super::Endpoint;

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
}
