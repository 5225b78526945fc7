//! Observation: counters, the routes to all ranks, and the cost of matching.

use nemesia_core::counters::Field;
pub use nemesia_core::counters::{EngineCounters, PeerCounters};

use nemesia_core::port::RemoteAccess as _;

use crate::endpoint::{Endpoint, Source, Tag, pattern};
use crate::explain::Verdict;
use crate::route::Explanation;
use crate::transport::net::{NetPort, NetUsage};

nemesia_core::counters! {
    /// The waits of an endpoint since it was opened.
    WaitCounters {
        /// The number of yields of the core.
        yields: "times",
        /// The number of sleeps.
        sleeps: "times",
        /// The number of sleeps that a peer ended. The others ended by their time limit.
        sleeps_woken: "times",
        /// The time slept.
        slept_ns: "ns",
        /// The number of times that the descriptor for event loops was armed.
        armed: "times",
        /// The number of liveness checks, which ask the kernel whether the peers are alive.
        liveness_checks: "times",
        /// The number of connections of other processes that could not be accepted for lack of descriptors or memory.
        /// They wait.
        failed_accepts: "times",
    }
}

nemesia_core::counters! {
    /// The registrations of large messages with the fabric between machines since the endpoint was opened. On a fabric
    /// in software each message is registered.
    RegistrationCounters {
        /// Uses of memory that was registered before.
        registration_hits: "times",
        /// Uses of memory that was not registered.
        registration_misses: "times",
        /// Unused registrations that were given up for others.
        registration_evicted: "times",
    }
}

/// The activity of an endpoint since it was opened. All numbers except `engine.unexpected_now` only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// The sum over all peers and this process itself.
    pub all: PeerCounters,
    /// The numbers that do not belong to one peer.
    pub engine: EngineCounters,
    /// The waits.
    pub waits: WaitCounters,
    /// The registrations of large messages.
    pub registrations: RegistrationCounters,
}

impl Counters {
    /// Visits the name, the unit and the value of each counter.
    pub fn each(&self, mut visit: impl FnMut(&'static Field, u64)) {
        self.all.each(&mut visit);
        self.engine.each(&mut visit);
        self.waits.each(&mut visit);
        self.registrations.each(&mut visit);
    }
}

/// # Observation
///
/// Counters show what an endpoint has done, and `explain` shows how each rank is reached and why other routes
/// are not used. Counting costs almost nothing.
///
/// ```
/// # nemesia::testing::world(2, |mut endpoint| {
/// println!("{}", endpoint.explain());
/// endpoint.counters().each(|field, value| println!("{} {value} {}", field.name, field.unit));
/// # endpoint.barrier()?;
/// # endpoint.close()
/// # })?.into_iter().collect::<Result<(), nemesia::Error>>()?;
/// # Ok::<(), nemesia::Error>(())
/// ```
impl Endpoint {
    /// Returns all counters. The call takes some work for each peer; the counting itself costs almost nothing.
    pub fn counters(&self) -> Counters {
        Counters {
            all: self.engine.counters(),
            engine: self.engine.engine_counters(),
            waits: WaitCounters { failed_accepts: self.failed_accepts(), ..self.waiter.counters },
            registrations: self.registration_counters(),
        }
    }

    fn failed_accepts(&self) -> u64 {
        let calls = self.peers.as_ref().map_or(0, |peers| peers.failed_accepts());
        calls + self.net().map_or(0, NetPort::failed_accepts)
    }

    fn registration_counters(&self) -> RegistrationCounters {
        let counts = self.net().map(NetPort::registrations).unwrap_or_default();
        RegistrationCounters {
            registration_hits: counts.hits,
            registration_misses: counts.misses,
            registration_evicted: counts.evicted,
        }
    }

    /// Returns the counters of one rank, even if it is gone. `None` if there is no such rank.
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

    /// Returns how each rank is reached, the mechanisms in use, and the reason for each that is not used. In a world,
    /// the further peers that are connected follow the ranks.
    pub fn explain(&self) -> Explanation {
        let route = |rank| {
            let pulls = self.engine.port().can_get(rank as u32);
            let net = self.net().map(|net| net.explain(&self.config, rank as u32)).unwrap_or_default();
            let net = net.into_iter().map(|(name, usable, why)| Verdict::new(name, usable, why)).collect();
            self.facts.route(&self.config, (self.rank(), rank), (pulls, net), self.failure(rank))
        };
        Explanation {
            rank: self.rank(),
            size: self.size(),
            routes: (0..self.size()).chain(self.further_peers()).map(route).collect(),
            warnings: self.warnings.clone(),
        }
    }

    /// Returns the connections, memory and queues with which this endpoint reaches other machines; `None` if it has no
    /// port to them. [`NetBill`] has what they may become.
    ///
    /// [`NetBill`]: crate::NetBill
    pub fn net_usage(&self) -> Option<NetUsage> {
        self.net().map(NetPort::usage)
    }

    /// Returns the numbers of the further peers of a world.
    fn further_peers(&self) -> impl Iterator<Item = usize> {
        (self.size()..self.numbers()).filter(|number| self.failure(*number).is_none())
    }

    /// Returns the present cost of a receive in context 0: the number of unexpected messages that it would
    /// compare before it finds its own or knows that there is none. For measurements.
    pub fn receive_steps(&self, from: Source, tag: Tag) -> usize {
        pattern(from, 0, tag).map_or(0, |pattern| self.engine.receive_steps(&pattern))
    }

    /// Returns the present cost of a delivery in context 0: the number of posted receives that the engine would
    /// compare before it finds the message's own or knows that there is none. For measurements.
    pub fn arrival_steps(&self, from: usize, tag: u64) -> usize {
        self.engine.arrival_steps(u32::try_from(from).unwrap_or(u32::MAX), 0, tag)
    }
}
