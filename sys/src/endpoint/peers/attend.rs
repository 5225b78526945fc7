//! Progress of calls: ours, and those of others.

use nemesia_core::engine::Failure;
use nemesia_core::peers::{CallAnswer, CallRefusal, PeerEnd, PeerRef, PeerStage};

use super::end_of;
use super::table::{OWN, PeerTable};
use crate::endpoint::Endpoint;
use crate::shm::{CallOutcome, HeardCall, JoiningProcess, failure_of};

/// The warnings that are kept: a hostile caller could cause any number.
const MOST_WARNINGS: usize = 256;

impl Endpoint {
    /// Returns whether calls are under way, which need more attention than others.
    #[inline(always)]
    pub(in crate::endpoint) fn is_calling(&self) -> bool {
        self.peers.as_ref().is_some_and(|peers| peers.calls.is_busy())
    }

    /// Makes progress on calls, and frees what ended connections had. Returns whether anything has changed.
    #[cold]
    pub(in crate::endpoint) fn attend_calls(&mut self) -> bool {
        self.with_peers(|peers, endpoint| Ok(peers.attend(endpoint))).unwrap_or(false)
    }
}

impl Endpoint {
    /// Keeps a warning about a peer, unless there are many.
    fn warn(&mut self, warning: String) {
        if self.warnings.len() < MOST_WARNINGS {
            self.warnings.push(warning);
        }
    }
}

impl PeerTable {
    fn attend(&mut self, endpoint: &mut Endpoint) -> bool {
        self.note_failures(endpoint);
        self.free_numbers(endpoint);
        let mut changed = self.calls.is_full() && self.give_up_one(endpoint);
        self.calls.hear(&endpoint.waiter.watch);
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
                Err(failure) => self.end(peer, PeerEnd::Lost, failure, endpoint),
            }
        }
        changed
    }

    /// Records the end of a peer's connection, if the engine has reported it as failed.
    pub(super) fn note_failure(&mut self, peer: PeerRef, endpoint: &mut Endpoint) {
        if let Ok(PeerStage::Connected(number)) = self.table.stage(peer)
            && let Some(failure) = endpoint.engine.failure(number + OWN)
        {
            self.end(peer, end_of(failure), failure, endpoint);
        }
    }

    /// Records the connections that the engine has reported as failed.
    fn note_failures(&mut self, endpoint: &mut Endpoint) {
        while let Some(rank) = endpoint.engine.next_ended() {
            if let Some(Some(it)) =
                rank.checked_sub(OWN).and_then(|at| self.numbered.get(at as usize)).copied()
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
        self.make_place();
        let places = self.table.len();
        match self.table.called(&call.address, call.number) {
            CallAnswer::Answer { peer, number, calls } => {
                if self.table.len() > places {
                    self.strangers.push(peer);
                }
                self.answer((peer, number + OWN, calls), call, endpoint);
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
        Some((self.table.stage(peer).ok()?.number()? + OWN) as usize)
    }

    /// Answers a call that counts. A call of ours to the same peer is abandoned.
    fn answer(&mut self, (peer, rank, calls): (PeerRef, u32, u64), call: HeardCall, endpoint: &mut Endpoint) {
        self.calls.abandon(peer, &endpoint.waiter.watch);
        if let Err(error) = self.begin(peer, rank, endpoint) {
            self.calls.refuse(&call, &error.to_string());
            endpoint.warn(format!("a call was refused: {error}"));
            return self.end(peer, PeerEnd::Lost, Failure::Unreachable, endpoint);
        }
        let granted = endpoint.engine.granted(rank);
        match self.calls.answer(peer, call, (rank, calls, granted), &endpoint.waiter.watch) {
            Ok(true) => {}
            Ok(false) => self.end(peer, PeerEnd::Lost, Failure::Finished, endpoint),
            Err(problem) => {
                endpoint.warn(format!("a call was refused: {problem}"));
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
            CallOutcome::Gone => self.end(peer, PeerEnd::Lost, Failure::Died, endpoint),
            CallOutcome::Left(departure) => {
                let failure = failure_of(departure);
                self.end(peer, end_of(failure), failure, endpoint);
            }
            CallOutcome::Refused(problem) => {
                endpoint.warn(format!("a peer cannot be connected with: {problem}"));
                self.end(peer, PeerEnd::Refused, Failure::Unreachable, endpoint);
            }
        }
    }

    /// Calls a peer once more that has given up the last call.
    fn call_again(&mut self, peer: PeerRef, attempts: u32, endpoint: &mut Endpoint) {
        let Some((number, call)) = self.table.call_again(peer) else { return };
        let Ok(address) = self.table.address_of(peer).copied() else { return };
        if let Err(error) = self.calls.call(peer, &address, (number + OWN, call), attempts) {
            endpoint.warn(format!("a peer cannot be called: {error}"));
            self.end(peer, PeerEnd::Lost, Failure::Unreachable, endpoint);
        }
    }

    /// Gives up a call of a process that has been stopped for long before it confirmed the answer, so that another
    /// process can have its place. Returns whether there was one.
    pub(super) fn give_up_one(&mut self, endpoint: &mut Endpoint) -> bool {
        let Some(peer) = self.calls.give_up_one(&endpoint.waiter.watch) else { return false };
        self.end(peer, PeerEnd::Lost, Failure::Unreachable, endpoint);
        self.free_numbers(endpoint);
        true
    }

    /// Opens the connection with a peer, and continues what waits for it.
    fn enter(&mut self, peer: PeerRef, joining: JoiningProcess, endpoint: &mut Endpoint) {
        let rank = joining.number;
        match endpoint.connect_process(joining) {
            Ok(_) => endpoint.engine.connected(rank as u32),
            Err(error) => {
                endpoint.warn(format!("a peer cannot be connected with: {error}"));
                self.end(peer, PeerEnd::Refused, Failure::Unreachable, endpoint);
            }
        }
    }
}
