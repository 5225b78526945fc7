//! A start at which all ranks of this machine connect: each is called, and waited for.

use std::time::{Duration, Instant};

use nemesia_core::engine::Failure;

use super::table::PeerTable;
use crate::config::SingleCopy;
use crate::endpoint::Endpoint;
use crate::endpoint::wait::{Awaited, Wait};
use crate::error::Error;
use crate::opening::OpeningReport;

/// The ranks that this process calls at once.
const AT_ONCE: usize = 16;
/// The time after which this process also calls the ranks whose calls it awaits: that shows whether they live.
const LATE: Duration = Duration::from_millis(200);
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
        let begun = Instant::now();
        let mut report = OpeningReport::new(self.config.explain, (own, size));
        let mut wait = Wait::new(Some(self.patience()));
        let mut missing: Vec<usize> = (0..size).filter(|rank| self.is_awaited(*rank)).collect();
        while !missing.is_empty() {
            let called = if begun.elapsed() < LATE { own } else { size };
            self.with_peers(|peers, endpoint| Ok(peers.call_ranks((&missing, own, called), endpoint)))?;
            let packets = self.engine.progress().packets;
            self.attend_calls();
            missing.retain(|rank| self.is_awaited(*rank));
            if let Some(rank) = missing.iter().find(|rank| self.failure(**rank).is_some()) {
                return Err(self.start_failed(*rank));
            }
            report.look(|| missing.clone());
            match self.pause(&mut wait, packets, Awaited::Other) {
                Err(Error::Timeout(_)) if !missing.is_empty() => return Err(late(&missing)),
                paused => paused?,
            }
        }
        self.warn_of_unreadable();
        Ok(())
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
