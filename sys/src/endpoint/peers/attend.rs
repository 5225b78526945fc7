//! Progress of calls: ours, and those of others.

use nemesia_core::engine::Failure;
use nemesia_core::peers::{PeerEnd, PeerRef, PeerStage, Speaking};

use super::end_of;
use super::table::PeerTable;
use crate::endpoint::Endpoint;
use crate::error::Error;
use crate::shm::{Calls, JoiningProcess};
use crate::transport::net::NetPort;

/// The warnings that are kept: a hostile caller could cause any number.
const MOST_WARNINGS: usize = 256;

impl Endpoint {
    /// Returns whether calls are under way, which need more attention than others.
    #[inline(always)]
    pub(in crate::endpoint) fn is_calling(&self) -> bool {
        self.peers.as_ref().is_some_and(|peers| {
            peers.calls().is_some_and(Calls::is_busy)
                || self.engine.has_wanted()
                || !peers.parting.is_empty()
                || self.net().is_some_and(NetPort::is_entering)
        })
    }

    /// Makes progress on calls, and frees what ended connections had. Returns whether anything has changed.
    #[cold]
    pub(in crate::endpoint) fn attend_calls(&mut self) -> bool {
        self.with_peers(|peers, endpoint| Ok(peers.attend(endpoint))).unwrap_or(false)
    }
}

impl Endpoint {
    /// Keeps a warning about a peer, unless there are many.
    pub(super) fn warn(&mut self, warning: String) {
        if self.warnings.len() < MOST_WARNINGS {
            self.warnings.push(warning);
        }
    }

    /// Keeps the next report of a shortage as a warning.
    pub(in crate::endpoint) fn warn_of_shortage(&mut self, next: impl FnOnce(&mut Self) -> Option<String>) {
        if let Some(shortage) = next(self) {
            self.warn(format!("connections wait: {shortage}"));
        }
    }

    /// Keeps the reason why a rank cannot be connected with: as a warning, and for the errors of its operations.
    fn blame(&mut self, rank: u32, name: &str, problem: &str) {
        self.warn(format!("{name} cannot be connected with: {problem}"));
        self.unreached.insert(rank as usize, problem.into());
    }
}

impl PeerTable {
    /// Returns the number of callers that could not be accepted.
    pub(in crate::endpoint) fn failed_accepts(&self) -> u64 {
        self.calls().map_or(0, Calls::failed_accepts)
    }

    fn attend(&mut self, endpoint: &mut Endpoint) -> bool {
        self.note_failures(endpoint);
        self.free_numbers(endpoint);
        let mut changed = self.part_later(endpoint);
        changed |= self.call_wanted(endpoint);
        changed | self.attend_all(endpoint)
    }

    /// As [`Endpoint::blame`], for a peer whose connection is under way.
    pub(super) fn blame(&self, peer: PeerRef, problem: &str, endpoint: &mut Endpoint) {
        let Some(rank) = self.number_of(peer) else { return endpoint.warn(problem.to_owned()) };
        let name = if self.is_rank(peer) { format!("rank {rank}") } else { "a peer".to_owned() };
        endpoint.blame(rank as u32, &name, problem);
    }

    /// Calls the ranks that operations have named for the first time.
    fn call_wanted(&mut self, endpoint: &mut Endpoint) -> bool {
        let mut changed = false;
        while let Some(rank) = endpoint.engine.next_wanted() {
            changed = true;
            self.call_rank(rank, endpoint);
        }
        changed
    }

    /// Calls a rank of the world, unless a call is under way.
    pub(super) fn call_rank(&mut self, rank: u32, endpoint: &mut Endpoint) {
        let begun = match self.peer_of_rank(rank).map(|peer| (peer, self.speak(peer))) {
            Some((peer, Ok(Speaking::Call(rank)))) => self.call(peer, rank, endpoint),
            Some((_, Ok(_))) => Ok(()),
            Some((_, Err(error))) => Err(error),
            None => Err(Error::NoWorld),
        };
        if let Err(error) = begun {
            endpoint.blame(rank, &format!("rank {rank}"), &error.to_string());
            endpoint.engine.fail(rank, Failure::Unreachable);
        }
    }

    /// Ends a call of another process that was answered and not confirmed. If that process has not announced that it
    /// leaves, and is a rank of the world, this process calls it: that shows what has become of it.
    pub(super) fn lose_call(&mut self, peer: PeerRef, failure: Failure, endpoint: &mut Endpoint) {
        if !self.is_rank(peer) || matches!(failure, Failure::Finished | Failure::Dropped) {
            return self.end(peer, PeerEnd::Lost, failure, endpoint);
        }
        self.abandon(peer, endpoint);
        if let Some(number) = self.table.ended(peer, PeerEnd::Lost) {
            self.call_rank(self.rank(number), endpoint);
        }
    }

    /// Records the end of a peer's connection, if the engine has reported it as failed, and the peer writes no more.
    pub(super) fn note_failure(&mut self, peer: PeerRef, endpoint: &mut Endpoint) {
        if let Ok(PeerStage::Connected(number)) = self.table.stage(peer)
            && let Some(failure) = endpoint.engine.failure(self.rank(number))
            && !endpoint.engine.writes_late(self.rank(number))
        {
            self.end(peer, end_of(failure), failure, endpoint);
        }
    }

    /// Records the connections that the engine has reported as failed.
    fn note_failures(&mut self, endpoint: &mut Endpoint) {
        while let Some(rank) = endpoint.engine.next_ended() {
            let number = self.number(rank);
            if let Some(Some(it)) = number.and_then(|at| self.numbered.get(at as usize)).copied()
                && !it.ended
                && let Some(failure) = endpoint.engine.failure(rank)
            {
                self.end(it.peer, end_of(failure), failure, endpoint);
            }
        }
    }

    fn number_of(&self, peer: PeerRef) -> Option<usize> {
        Some(self.rank(self.table.stage(peer).ok()?.number()?) as usize)
    }

    /// Gives up what is left to former peers, or else a call of a process that has been stopped for long before it
    /// confirmed the answer, so that another process can have its place. Returns whether there was one.
    pub(super) fn give_up_one(&mut self, endpoint: &mut Endpoint) -> bool {
        if self.take_back_left(endpoint) {
            return true;
        }
        let given_up = self.with_calls(|_, calls| calls.give_up_one(&endpoint.waiter.watch));
        self.conclude_all(endpoint);
        self.free_numbers(endpoint);
        given_up == Some(true)
    }

    /// Opens the connection with a peer, and continues what waits for it.
    pub(super) fn enter(&mut self, peer: PeerRef, joining: JoiningProcess, endpoint: &mut Endpoint) {
        let rank = joining.number;
        match endpoint.connect_process(joining) {
            Ok(_) => endpoint.engine.connected(rank as u32),
            Err(error) => {
                self.blame(peer, &error.to_string(), endpoint);
                self.end(peer, PeerEnd::Refused, Failure::Unreachable, endpoint);
            }
        }
    }
}
