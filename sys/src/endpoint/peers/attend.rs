//! Progress of calls: ours, and those of others.

use nemesia_core::engine::Failure;
use nemesia_core::peers::{CallAnswer, CallRefusal, PeerAddress, PeerEnd, PeerRef, PeerStage, Speaking};

use super::end_of;
use super::table::PeerTable;
use crate::endpoint::Endpoint;
use crate::error::Error;
use crate::shm::{CallOutcome, HeardCall, JoiningProcess, failure_of};

/// The warnings that are kept: a hostile caller could cause any number.
const MOST_WARNINGS: usize = 256;

impl Endpoint {
    /// Returns whether calls are under way, which need more attention than others.
    #[inline(always)]
    pub(in crate::endpoint) fn is_calling(&self) -> bool {
        self.peers.as_ref().is_some_and(|peers| {
            let is_busy_across = || peers.across.as_ref().is_some_and(|across| across.is_busy());
            peers.calls.is_busy() || self.engine.has_wanted() || !peers.parting.is_empty() || is_busy_across()
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
        self.calls.failed_accepts() + self.across.as_ref().map_or(0, |across| across.failed_accepts())
    }

    fn attend(&mut self, endpoint: &mut Endpoint) -> bool {
        self.note_failures(endpoint);
        self.free_numbers(endpoint);
        let mut changed = self.part_later(endpoint);
        changed |= self.calls.is_full() && self.give_up_one(endpoint);
        changed |= self.call_wanted(endpoint);
        changed |= self.hear(endpoint);
        // Each call once, as some are postponed.
        for _ in 0..self.calls.heard() {
            let Some(call) = self.calls.next_call() else { break };
            changed |= self.decide(call, endpoint);
        }
        while let Some((peer, outcome)) = self.calls.next_outcome(&endpoint.waiter.watch) {
            changed = true;
            self.conclude(peer, outcome, endpoint);
        }
        while let Some((peer, joining)) = self.calls.next_confirmed(&endpoint.waiter.watch) {
            changed = true;
            match joining {
                Ok(joining) => {
                    if self.table.confirmed(peer).is_some() {
                        self.enter(peer, joining, endpoint);
                    }
                }
                // The caller has given up before it confirmed.
                Err(failure) => self.lose_call(peer, failure, endpoint),
            }
        }
        changed | self.attend_across(endpoint)
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
    fn call_rank(&mut self, rank: u32, endpoint: &mut Endpoint) {
        let begun = match self.peer_of_rank(rank).map(|peer| (peer, self.speak(peer))) {
            Some((peer, Ok(Speaking::Call(rank, call)))) => self.call(peer, (rank, call), endpoint),
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

    /// Reads what callers have sent. Returns whether a process has left.
    fn hear(&mut self, endpoint: &mut Endpoint) -> bool {
        self.calls.hear(&endpoint.waiter.watch);
        endpoint.warn_of_shortage(|_| self.calls.next_shortage());
        let mut changed = false;
        while let Some((address, departure)) = self.calls.next_leaver() {
            changed |= self.note_leave(&address, failure_of(departure), endpoint);
        }
        changed
    }

    /// Records that a rank has left with which there was no connection.
    pub(super) fn note_leave(
        &mut self,
        address: &PeerAddress,
        failure: Failure,
        endpoint: &mut Endpoint,
    ) -> bool {
        // Others announce nothing.
        let is_rank = |peer: &PeerRef| self.is_rank(*peer);
        let Some(peer) = self.table.peer_by(address).filter(is_rank) else { return false };
        match self.table.stage(peer) {
            Ok(PeerStage::Apart) => endpoint.engine.fail(self.rank(peer.index()), failure),
            Ok(PeerStage::Calling(_) | PeerStage::Answering(_)) => {
                self.end(peer, end_of(failure), failure, endpoint);
            }
            // The end of a connection is seen as any other is: its last messages come first.
            _ => return false,
        }
        true
    }

    /// Reads the announcements of all ranks that have left so far.
    fn hear_leavers(&mut self, endpoint: &mut Endpoint) {
        for _ in 1..self.ranks {
            self.hear(endpoint);
            if !self.calls.has_more() {
                break;
            }
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

    /// Decides a call of another process. Returns whether anything has changed.
    fn decide(&mut self, call: HeardCall, endpoint: &mut Endpoint) -> bool {
        // Another call of this process to the same peer may be under way, which is not concerned.
        if call.is_abandoned() {
            return false;
        }
        if let Some(problem) = self.refusal_of(&call.address, false) {
            self.calls.refuse(&call, problem);
            return false;
        }
        self.make_place();
        let places = self.table.len();
        match self.table.called(&call.address, call.number) {
            CallAnswer::Answer { peer, number, calls } => {
                if self.table.len() > places {
                    self.strangers.push(peer);
                }
                self.answer((peer, self.rank(number), calls), call, endpoint);
                true
            }
            CallAnswer::Park(peer) => {
                self.calls.park(peer, call);
                false
            }
            CallAnswer::Ended(peer) => {
                // The end of the former connection is seen as any other is: its last messages come first.
                if let Some(rank) = self.number_of(peer)
                    && let Some(departure) = endpoint.waiter.watch.look_at(rank)
                {
                    endpoint.leaving.push((rank, departure, 0));
                }
                self.calls.postpone(call);
                false
            }
            CallAnswer::Outdated => false,
            CallAnswer::Refuse(CallRefusal::Full) if self.give_up_one(endpoint) => {
                self.calls.postpone(call);
                true
            }
            CallAnswer::Refuse(refusal) => {
                self.calls.refuse(&call, &refusal.to_string());
                false
            }
        }
    }

    fn number_of(&self, peer: PeerRef) -> Option<usize> {
        Some(self.rank(self.table.stage(peer).ok()?.number()?) as usize)
    }

    /// Answers a call that counts. A call of ours to the same peer is abandoned.
    fn answer(&mut self, (peer, rank, calls): (PeerRef, u32, u64), call: HeardCall, endpoint: &mut Endpoint) {
        self.abandon(peer, endpoint);
        if let Err(error) = self.begin(peer, rank, endpoint) {
            self.calls.refuse(&call, &error.to_string());
            self.blame(peer, &format!("its call was refused: {error}"), endpoint);
            return self.end(peer, PeerEnd::Lost, Failure::Unreachable, endpoint);
        }
        let granted = endpoint.engine.granted(rank);
        match self.calls.answer(peer, call, (rank, calls, granted), &endpoint.waiter.watch) {
            Ok(true) => {}
            Ok(false) if self.is_rank(peer) => self.lose_call(peer, Failure::Died, endpoint),
            Ok(false) => self.end(peer, PeerEnd::Lost, Failure::Finished, endpoint),
            Err(problem) => {
                self.blame(peer, &format!("its call was refused: {problem}"), endpoint);
                self.end(peer, PeerEnd::Lost, Failure::Unreachable, endpoint);
            }
        }
    }

    /// Processes what has become of a call of ours.
    fn conclude(&mut self, peer: PeerRef, outcome: CallOutcome, endpoint: &mut Endpoint) {
        match outcome {
            CallOutcome::Answered(answer) => {
                // Without the call in the table, the answer is to one that was abandoned.
                if !matches!(self.table.stage(peer), Ok(PeerStage::Calling(_))) {
                    return;
                }
                // First of all: what is sent over the connection may send packets to wake the peer.
                if let Err(outcome) = answer.confirm() {
                    return self.conclude(peer, outcome, endpoint);
                }
                if self.table.answered(peer, answer.calls).is_some() {
                    self.enter(peer, answer.joining, endpoint);
                }
            }
            CallOutcome::Again(attempts) => self.call_again(peer, attempts, endpoint),
            CallOutcome::Gone => {
                // If it has left in order, it has announced that before.
                self.hear_leavers(endpoint);
                self.end(peer, PeerEnd::Lost, Failure::Died, endpoint);
            }
            CallOutcome::Left(departure) => {
                let failure = failure_of(departure);
                self.end(peer, end_of(failure), failure, endpoint);
            }
            CallOutcome::Refused(problem) => {
                self.blame(peer, &problem, endpoint);
                self.end(peer, PeerEnd::Refused, Failure::Unreachable, endpoint);
            }
        }
    }

    /// Calls a peer once more that has given up the last call.
    fn call_again(&mut self, peer: PeerRef, attempts: u32, endpoint: &mut Endpoint) {
        let Some((number, call)) = self.table.call_again(peer) else { return };
        let Ok(address) = self.table.address_of(peer).copied() else { return };
        if let Err(error) = self.calls.call(peer, &address, (self.rank(number), call), attempts) {
            self.blame(peer, &error.to_string(), endpoint);
            self.end(peer, PeerEnd::Lost, Failure::Unreachable, endpoint);
        }
    }

    /// Gives up what is left to former peers, or else a call of a process that has been stopped for long before it
    /// confirmed the answer, so that another process can have its place. Returns whether there was one.
    pub(super) fn give_up_one(&mut self, endpoint: &mut Endpoint) -> bool {
        if self.take_back_left(endpoint) {
            return true;
        }
        let Some(peer) = self.calls.give_up_one(&endpoint.waiter.watch) else { return false };
        self.lose_call(peer, Failure::Unreachable, endpoint);
        self.free_numbers(endpoint);
        true
    }

    /// Opens the connection with a peer, and continues what waits for it.
    fn enter(&mut self, peer: PeerRef, joining: JoiningProcess, endpoint: &mut Endpoint) {
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
