//! Calls between machines: the table of peers decides them as it does those inside a machine.

use std::net::SocketAddr;

use nemesia_core::engine::Failure;
use nemesia_core::peers::{CallAnswer, PeerAddress, PeerEnd, PeerRef, PeerStage};
use nemesia_core::port::Route;

use super::end_of;
use super::table::PeerTable;
use crate::endpoint::Endpoint;
use crate::error::Error;
use crate::os::{Departure, random};
use crate::shm::{failure_of, make_places};
use crate::transport::net::{
    CHECK_NETWORK, HeardNetCall, LinkStage, NetCallOutcome, NetCalls, UnansweredCall,
};

impl Endpoint {
    /// Sends packets for this number to another machine from now on.
    fn route_across(&mut self, rank: u32) {
        let count = rank as usize + 1;
        let name = self.net().map(|net| net.transport().name());
        let port = self.engine.port_mut();
        make_places(port.local_mut(), count);
        port.set_route(rank, Route::Remote);
        if self.facts.remote.len() < count {
            self.facts.remote.resize(count, None);
        }
        if self.incarnations.len() < count {
            self.incarnations.resize(count, 0);
        }
        self.facts.remote[rank as usize] = name;
    }
}

impl PeerTable {
    /// Calls a peer on another machine.
    pub(super) fn call_across(
        &mut self,
        (peer, address, at): (PeerRef, PeerAddress, SocketAddr),
        (rank, call): (u32, u64),
        endpoint: &mut Endpoint,
    ) -> Result<(), Error> {
        endpoint.route_across(rank);
        let token = u64::from_le_bytes(random()?);
        if let Some(across) = &mut self.across {
            across.call((peer, address, at), (rank, call, token));
        }
        Ok(())
    }

    /// Makes progress on calls between machines. Returns whether anything has changed.
    pub(super) fn attend_across(&mut self, endpoint: &mut Endpoint) -> bool {
        let mut changed = self.hear_across(endpoint);
        // Each call once, as some are postponed.
        for _ in 0..self.across.as_ref().map_or(0, |across| across.heard()) {
            let Some(call) = self.across.as_mut().and_then(|across| across.next_call()) else { break };
            changed |= self.decide_across(call, endpoint);
        }
        while let Some((peer, outcome)) =
            self.across.as_mut().and_then(|across| across.next_outcome(&endpoint.waiter.watch))
        {
            changed = true;
            self.conclude_across(peer, outcome, endpoint);
        }
        while let Some((peer, confirmed)) =
            self.across.as_mut().and_then(|across| across.next_confirmed(&endpoint.waiter.watch))
        {
            changed = true;
            match confirmed {
                Ok(()) if self.table.confirmed(peer).is_some() => {}
                Ok(()) => self.abandon(peer, endpoint),
                // The caller has given up before it confirmed.
                Err(failure) => self.lose_call(peer, failure, endpoint),
            }
        }
        changed | self.attend_openings(endpoint)
    }

    /// Reads what callers have sent. Returns whether a process has left.
    fn hear_across(&mut self, endpoint: &mut Endpoint) -> bool {
        let Some(across) = &mut self.across else { return false };
        across.hear(&endpoint.waiter.watch);
        endpoint.warn_of_shortage(|_| across.next_shortage());
        let mut changed = false;
        while let Some((address, finished)) = self.across.as_mut().and_then(|across| across.next_leaver()) {
            changed |= self.note_leave(&address, departure_of(finished), endpoint);
        }
        changed
    }

    /// Reads the announcements of all ranks that have left so far.
    fn hear_leavers_across(&mut self, endpoint: &mut Endpoint) {
        for _ in 1..self.ranks {
            self.hear_across(endpoint);
            if !self.across.as_ref().is_some_and(|across| across.has_more()) {
                break;
            }
        }
    }

    /// Decides a call of a process that knows the key of the job.
    fn decide_across(&mut self, mut call: HeardNetCall, endpoint: &mut Endpoint) -> bool {
        if call.is_abandoned() {
            return false;
        }
        if let Some(problem) = self.refusal_of(&call.address, true) {
            NetCalls::refuse(call, problem);
            return false;
        }
        self.make_place();
        let places = self.table.len();
        let mut decision = self.table.called(&call.address, call.calls());
        // The network lets connections through in the direction of this process only.
        if let CallAnswer::Park(peer) = decision
            && self.across.as_ref().is_some_and(|across| across.is_unheard(peer))
        {
            decision = self.table.called_alone(peer);
        }
        match decision {
            CallAnswer::Answer { peer, number, calls } => {
                if self.table.len() > places {
                    self.strangers.push(peer);
                }
                self.answer_across((peer, self.rank(number), calls), call, endpoint);
                return true;
            }
            CallAnswer::Park(peer) => {
                if let Some(across) = &mut self.across {
                    across.park(peer, call);
                }
            }
            // The end of the former connection follows its last packets.
            CallAnswer::Ended(_) => {
                if let Some(across) = &mut self.across {
                    across.postpone(call);
                }
            }
            CallAnswer::Outdated => {}
            CallAnswer::Refuse(refusal) => NetCalls::refuse(call, &refusal.to_string()),
        }
        false
    }

    /// Answers a call that counts. A call of ours to the same peer is abandoned.
    fn answer_across(
        &mut self,
        (peer, rank, calls): (PeerRef, u32, u64),
        call: HeardNetCall,
        endpoint: &mut Endpoint,
    ) {
        self.abandon(peer, endpoint);
        let begun = self.begin(peer, rank, endpoint).map_err(|error| error.to_string());
        let token = begun.and_then(|()| {
            endpoint.route_across(rank);
            let token = u64::from_le_bytes(random().map_err(|error| error.to_string())?);
            let net = endpoint.net_mut().ok_or("the network is off")?;
            net.introduce(rank, NetCalls::acquaintance(&call, token)).map(|()| token)
        });
        let token = match token {
            Ok(token) => token,
            Err(problem) => {
                NetCalls::refuse(call, &problem);
                self.blame(peer, &format!("its call was refused: {problem}"), endpoint);
                return self.end(peer, PeerEnd::Lost, Failure::Unreachable, endpoint);
            }
        };
        let Some(across) = &mut self.across else { return };
        if !across.answer(peer, call, (rank, calls, token), &endpoint.waiter.watch) {
            let is_rank = self.is_rank(peer);
            let failure = if is_rank { Failure::Died } else { Failure::Finished };
            self.lose_call(peer, failure, endpoint);
        }
    }

    /// Processes what has become of a call of ours.
    fn conclude_across(&mut self, peer: PeerRef, outcome: NetCallOutcome, endpoint: &mut Endpoint) {
        match outcome {
            NetCallOutcome::Answered(answered) => {
                // Without the call in the table, the answer is to one that was abandoned.
                if self.table.answered(peer, answered.calls).is_none() {
                    return;
                }
                let (limit, rank, is_rank) = (endpoint.patience(), answered.number, self.is_rank(peer));
                let introduced = endpoint.net_mut().map(|net| {
                    net.introduce(rank, answered.known)?;
                    net.dial(rank, &answered.channel, limit, is_rank);
                    Ok::<(), String>(())
                });
                if let Some(Err(problem)) = introduced {
                    self.blame(peer, &problem, endpoint);
                    return self.end(peer, PeerEnd::Refused, Failure::Unreachable, endpoint);
                }
                if let Some(across) = &mut self.across {
                    across.confirm(peer, answered, &endpoint.waiter.watch);
                }
            }
            NetCallOutcome::Unanswered(call) => {
                if let Err(error) = self.repeat_across(peer, call) {
                    self.blame(peer, &error.to_string(), endpoint);
                    self.end(peer, PeerEnd::Lost, Failure::Unreachable, endpoint);
                }
            }
            NetCallOutcome::Gone(problem) => {
                // If it has left in order, it has announced that before.
                self.hear_leavers_across(endpoint);
                if matches!(self.table.stage(peer), Ok(PeerStage::Calling(_))) {
                    self.blame(peer, &problem, endpoint);
                    self.end(peer, PeerEnd::Refused, Failure::Unreachable, endpoint);
                }
            }
            NetCallOutcome::Left(finished) => {
                let failure = departure_of(finished);
                self.end(peer, end_of(failure), failure, endpoint);
            }
            NetCallOutcome::Refused(problem) => {
                self.blame(peer, &problem, endpoint);
                self.end(peer, PeerEnd::Refused, Failure::Unreachable, endpoint);
            }
        }
    }

    /// Calls a peer once more whose connection has ended before an answer.
    fn repeat_across(&mut self, peer: PeerRef, unanswered: UnansweredCall) -> Result<(), Error> {
        let address = *self.address_of(peer)?;
        let token = u64::from_le_bytes(random()?);
        // `None`: the peer has called meanwhile, or was disconnected.
        let again = self.table.call_again(peer).map(|(number, call)| (self.rank(number), call));
        if let (Some((rank, call)), Some(across)) = (again, &mut self.across) {
            across.call_again((peer, address), (rank, call, token), unanswered);
        }
        Ok(())
    }

    /// Looks after the connections of confirmed calls. Returns whether anything has changed.
    fn attend_openings(&mut self, endpoint: &mut Endpoint) -> bool {
        let (mut at, mut changed) = (0, false);
        while let Some((peer, rank)) = self.across.as_ref().and_then(|across| across.opening(at)) {
            let Some(across) = &mut self.across else { break };
            let stage = endpoint.net().map_or(LinkStage::Nothing, |net| net.link_stage(rank));
            if stage == LinkStage::Ready {
                across.opened(at, &endpoint.waiter.watch);
                endpoint.engine.connected(rank);
                changed = true;
                continue;
            }
            let failure = across.lost(at, &stage);
            if failure == Some(Failure::Unreachable) {
                let problem = match &stage {
                    LinkStage::Failed { problem, .. } => problem,
                    _ => "the connection was not made in time",
                };
                self.blame(peer, &format!("{problem}{CHECK_NETWORK}"), endpoint);
            }
            let Some(across) = &mut self.across else { break };
            match failure {
                Some(failure) => {
                    across.opened(at, &endpoint.waiter.watch);
                    self.end(peer, end_of(failure), failure, endpoint);
                    changed = true;
                }
                None => at += 1,
            }
        }
        changed
    }
}

/// Returns the failure of the operations with a process that has left.
const fn departure_of(finished: bool) -> Failure {
    failure_of(if finished { Departure::Finished } else { Departure::Dropped })
}
