//! A start at which all ranks of this machine connect: each is called, and waited for.

use std::time::{Duration, Instant};

use nemesia_core::engine::Failure;

use super::table::PeerTable;
use crate::config::SingleCopy;
use crate::endpoint::wait::{Awaited, Wait};
use crate::endpoint::{Endpoint, WaitCounters};
use crate::error::Error;
use crate::opening::OpeningReport;

/// The ranks that this process calls at once.
const AT_ONCE: usize = 16;
/// The time without a new connection after which this process also calls the ranks whose calls it awaits: that shows
/// whether they live.
const LATE: Duration = Duration::from_millis(500);
/// What a rank has done that cannot be called.
const UNREACHED: &str = "nothing listens at its socket: it has ended, or runs in a copy of this machine; for copies \
                         set NEMESIA_LOCAL=off";

impl Endpoint {
    /// Connects with all ranks of this machine, within NEMESIA_TIMEOUT. Each process calls the lower ranks, so that
    /// calls seldom cross.
    ///
    /// # Errors
    /// [`Error::Peer`] names a rank that has failed, refuses, is refused, or has not connected in time. The errors of a
    /// wait.
    pub(in crate::endpoint) fn connect_ranks(&mut self) -> Result<(), Error> {
        let (own, size) = (self.rank(), self.size());
        let mut report = OpeningReport::new(self.config.explain, (own, size));
        let mut wait = Wait::new(Some(self.patience()));
        let mut missing: Vec<usize> = (0..size).collect();
        let (mut since, mut before) = (Instant::now(), usize::MAX);
        loop {
            missing.retain(|rank| self.is_awaited(*rank));
            if missing.is_empty() {
                break;
            }
            if let Some(rank) = missing.iter().find(|rank| self.failure(**rank).is_some()) {
                return Err(self.start_failed(*rank));
            }
            report.look(|| missing.clone());
            let is_late = since.elapsed() >= LATE;
            if is_late || missing.len() < before {
                (since, before) = (Instant::now(), missing.len());
                self.with_peers(|peers, endpoint| {
                    peers.call_ranks((&missing, own, if is_late { size } else { own }), endpoint);
                    Ok(())
                })?;
            }
            let packets = self.engine.progress().packets;
            if !self.attend_calls() {
                self.pause(&mut wait, packets, Awaited::Other).map_err(|error| match error {
                    Error::Timeout(_) => late(&missing),
                    error => error,
                })?;
            }
        }
        // The waits of the opening are not those of the program.
        self.waiter.counters = WaitCounters::default();
        self.warn_of_unreadable();
        Ok(())
    }

    /// Calls all ranks of this machine that have not failed, as a process that was restarted. They answer when they
    /// readmit it.
    pub(in crate::endpoint) fn call_missing(&mut self) -> Result<(), Error> {
        let mut missing: Vec<usize> = (0..self.size()).filter(|rank| self.is_awaited(*rank)).collect();
        missing.retain(|rank| self.failure(*rank).is_none());
        self.with_peers(|peers, endpoint| {
            missing.iter().for_each(|rank| peers.call_rank(*rank as u32, endpoint));
            Ok(())
        })
    }

    /// Returns whether this rank of this machine is not connected.
    fn is_awaited(&self, rank: usize) -> bool {
        let is_remote = self.facts.remote.get(rank).is_some_and(Option::is_some);
        rank != self.rank() && !is_remote && self.facts.met[rank].is_none()
    }

    fn start_failed(&self, rank: usize) -> Error {
        let ended = || match self.failure(rank) {
            Some(Failure::Died) | None => UNREACHED.to_owned(),
            Some(failure) => failure.to_string(),
        };
        let problem = self.unreached.get(&rank).map_or_else(ended, ToString::to_string);
        Error::Peer { rank, problem }
    }

    /// Warns of the ranks whose memory cannot be read, although the settings permit it.
    fn warn_of_unreadable(&mut self) {
        if self.config.single_copy == SingleCopy::Off {
            return;
        }
        for (rank, met) in self.facts.met.iter().enumerate() {
            let unreadable = met.as_ref().and_then(|met| met.unreadable.as_ref());
            self.warnings.extend(
                unreadable.map(|why| format!("rank {rank}: no single copy through the kernel: {why}")),
            );
        }
    }
}

impl PeerTable {
    /// Records that a rank on another machine was connected before the engine was started.
    pub(in crate::endpoint) fn begin_connected(
        &mut self,
        rank: u32,
        endpoint: &mut Endpoint,
    ) -> Result<(), Error> {
        let Some(peer) = self.peer_of_rank(rank) else { return Ok(()) };
        let _number = self.speak(peer)?;
        self.begin(peer, rank, endpoint)?;
        self.table.opened(peer);
        Ok(())
    }

    /// Calls some of the missing ranks below `called`, those below `own` first.
    fn call_ranks(&mut self, (missing, own, called): (&[usize], usize, usize), endpoint: &mut Endpoint) {
        let (below, above) = missing.split_at(missing.partition_point(|rank| *rank < own));
        let above = above.iter().filter(|rank| **rank < called);
        for rank in below.iter().rev().take(AT_ONCE).chain(above.take(AT_ONCE)) {
            self.call_rank(*rank as u32, endpoint);
        }
    }
}

/// Names the ranks that have not connected in time.
fn late(missing: &[usize]) -> Error {
    let (rank, count) = (missing[0], missing.len());
    let problem = format!("it never connected ({count} ranks are missing): did it fail at start?");
    Error::Peer { rank, problem }
}
