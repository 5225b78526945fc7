//! Calls: what the table of peers decides about them, and what becomes of them.

use std::io;

use nemesia_core::engine::Failure;
use nemesia_core::link::machine::terms::{LinkEnding, RankClaim};
use nemesia_core::peers::{CallRefusal, PeerAddress, PeerEnd, PeerRef, PeerStage};
use nemesia_core::port::Route;
use nemesia_core::port::memory::Address;

use super::end_of;
use super::table::PeerTable;
use crate::endpoint::Endpoint;
use crate::error::Error;
use crate::os::{ShmError, Watch};
use crate::shm::{CallGrant, CallOutcome, CallTerms, Calls, make_places};
use crate::transport::net::NetPort;

impl Endpoint {
    /// Sends packets for this number to another machine from now on.
    pub(super) fn route_across(&mut self, rank: u32) {
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
    /// Calls `work` with the calls, and the table without them.
    pub(super) fn with_calls<R>(&mut self, work: impl FnOnce(&mut Self, &mut Calls) -> R) -> Option<R> {
        let mut calls = self.calls.take()?;
        let done = work(self, &mut calls);
        self.calls = Some(calls);
        Some(done)
    }

    /// Returns the calls, unless they make progress.
    pub(in crate::endpoint) fn calls(&self) -> Option<&Calls> {
        self.calls.as_deref()
    }

    /// As [`PeerTable::calls`], to be changed.
    #[cfg(test)]
    pub(super) fn calls_mut(&mut self) -> Option<&mut Calls> {
        self.calls.as_deref_mut()
    }

    /// Packets wait for a peer: it is called, unless a call is under way.
    pub(super) fn want(&mut self, peer: PeerRef, rank: u32, endpoint: &Endpoint) -> Result<(), Error> {
        let of_world = self.is_rank(peer).then_some(rank);
        let address = self.table.address_of(peer)?;
        let Some(calls) = &mut self.calls else { return Ok(()) };
        let spoken = calls.speak(address, of_world, rank, &endpoint.waiter.watch);
        spoken.map_err(|error| Error::Address { problem: error.to_string() })
    }

    /// Makes progress on calls. Returns whether anything has changed.
    pub(super) fn attend_all(&mut self, endpoint: &mut Endpoint) -> bool {
        self.with_calls(|peers, calls| {
            let is_late = calls.has_late_answer();
            let mut terms = PeerTerms { peers, endpoint, is_late, is_full: false };
            calls.attend(&mut terms);
            if terms.is_full {
                calls.give_up_one(&endpoint.waiter.watch);
            }
            endpoint.warn_of_shortage(|_| calls.next_shortage());
        });
        self.conclude_all(endpoint) | self.enter_streams(endpoint)
    }

    /// Lets packets pass over the streams that are ready. Returns whether there was one.
    fn enter_streams(&mut self, endpoint: &mut Endpoint) -> bool {
        let mut changed = false;
        while let Some(rank) = endpoint.net_mut().and_then(NetPort::next_ready) {
            changed = true;
            endpoint.engine.connected(rank);
        }
        while let Some((rank, problem)) = endpoint.net_mut().and_then(NetPort::next_failed) {
            changed = true;
            if let Some(peer) = self.peer_of(rank as usize) {
                self.blame(peer, &problem, endpoint);
                self.end(peer, PeerEnd::Refused, Failure::Unreachable, endpoint);
            }
        }
        changed
    }

    /// Processes what has become of calls. Returns whether there was one.
    pub(super) fn conclude_all(&mut self, endpoint: &mut Endpoint) -> bool {
        let mut changed = false;
        while let Some((address, outcome)) = self.calls.as_mut().and_then(|calls| calls.next_outcome()) {
            changed = true;
            match self.table.peer_by(&address) {
                Some(peer) => self.conclude(peer, outcome, endpoint),
                // It was released meanwhile.
                None => _ = self.with_calls(|_, calls| calls.end(&address, &endpoint.waiter.watch)),
            }
        }
        changed
    }

    /// Processes what has become of a call.
    fn conclude(&mut self, peer: PeerRef, outcome: CallOutcome, endpoint: &mut Endpoint) {
        match outcome {
            CallOutcome::Opened(joining) => {
                let was_called = matches!(self.table.stage(peer), Ok(PeerStage::Calling(_)));
                if self.table.opened(peer).is_some() {
                    if was_called && self.is_rank(peer) && endpoint.incarnation() > 0 {
                        endpoint.agreements.hear(joining.number, joining.agreements);
                    }
                    self.enter(peer, *joining, endpoint);
                }
            }
            CallOutcome::Streamed(_, entered) => {
                if self.table.opened(peer).is_some()
                    && let Some(net) = endpoint.net_mut()
                {
                    self.mask_by(entered.number, entered.mask);
                    net.enter_stream(*entered);
                }
            }
            // The peer calls again, if it lives.
            CallOutcome::Undone(problem) if problem.is_empty() => {
                self.lose_call(peer, Failure::Unreachable, endpoint);
            }
            CallOutcome::Undone(problem) => {
                self.blame(peer, &problem, endpoint);
                self.end(peer, PeerEnd::Lost, Failure::Unreachable, endpoint);
            }
            CallOutcome::Ended(ending, problem) => {
                if !problem.is_empty() {
                    self.blame(peer, &problem, endpoint);
                }
                let failure = failure_by(ending);
                if self.table.stage(peer) == Ok(PeerStage::Apart) {
                    // A rank that was never met. Others announce nothing.
                    if self.is_rank(peer) {
                        endpoint.engine.fail(self.rank(peer.index()), failure);
                    }
                    return;
                }
                self.end(peer, end_of(failure), failure, endpoint);
            }
        }
    }
}

/// # Restart
impl PeerTable {
    /// Returns whether a rank of this machine is called, and has not answered.
    pub(in crate::endpoint) fn awaits(&self, rank: u32) -> bool {
        let peer = self.peer_of_rank(rank).filter(|peer| !self.is_remote_rank(*peer));
        peer.is_some_and(|peer| matches!(self.table.stage(peer), Ok(PeerStage::Calling(_))))
    }

    /// Returns the processes that wait to be readmitted and that the launcher confirms. `is_genuine` asks it. Others
    /// are refused.
    pub(in crate::endpoint) fn claims(
        &mut self,
        mut is_genuine: impl FnMut(&RankClaim) -> Result<bool, Error>,
        watch: &Watch,
    ) -> Result<Vec<RankClaim>, Error> {
        let Some(calls) = &mut self.calls else { return Ok(Vec::new()) };
        for claim in calls.claims().iter().filter(|claim| !claim.is_sure) {
            calls.judge(claim, is_genuine(claim)?, watch);
        }
        Ok(calls.claims())
    }

    /// Readmits the process that waits to be the one of this rank: it is answered with this number of agreements.
    pub(in crate::endpoint) fn readmit(
        &mut self,
        claim: &RankClaim,
        agreements: u64,
        endpoint: &mut Endpoint,
    ) -> Result<(), Error> {
        let rank = claim.rank;
        let Some(peer) = self.peer_of_rank(rank) else { return Ok(()) };
        self.end(peer, PeerEnd::Lost, Failure::Died, endpoint);
        self.table.renew(peer, &claim.peer)?;
        endpoint.engine.reconnect(rank);
        self.readmitted.insert(rank, agreements);
        // The call of the process counts. If it has come to nothing, this process calls.
        let _call = self.speak(peer)?;
        self.begin(peer, rank, endpoint)?;
        self.with_calls(|peers, calls| {
            calls.readmit(claim, rank, &mut PeerTerms { peers, endpoint, is_late: false, is_full: false });
        });
        self.conclude_all(endpoint);
        Ok(())
    }
}

/// What this process decides about the authors of calls.
struct PeerTerms<'a> {
    peers: &'a mut PeerTable,
    endpoint: &'a mut Endpoint,
    /// Calls that were answered long ago can be given up.
    is_late: bool,
    /// A caller was refused for now, because there is no number for it.
    is_full: bool,
}

impl CallTerms for PeerTerms<'_> {
    fn watch(&self) -> &Watch {
        &self.endpoint.waiter.watch
    }

    fn decide(&mut self, caller: &PeerAddress) -> Result<CallGrant, (String, bool)> {
        let Self { peers, endpoint, is_late, .. } = self;
        if let Some(problem) = peers.refusal_of(caller) {
            return Err((problem.into(), false));
        }
        peers.make_place();
        let places = peers.table.len();
        let admitted = match peers.table.admit(caller) {
            Err(CallRefusal::Full) if peers.take_back_left(endpoint) => peers.table.admit(caller),
            admitted => admitted,
        };
        let (peer, number) = admitted.map_err(|refusal| {
            let is_full = *is_late && refusal == CallRefusal::Full;
            self.is_full |= is_full;
            (refusal.to_string(), is_full || refusal == CallRefusal::Connected)
        })?;
        if peers.table.len() > places {
            peers.strangers.push(peer);
        }
        let rank = peers.rank(number);
        if let Err(error) = peers.begin(peer, rank, endpoint) {
            let problem = error.to_string();
            peers.blame(peer, &format!("its call was refused: {problem}"), endpoint);
            peers.end(peer, PeerEnd::Lost, Failure::Unreachable, endpoint);
            return Err((problem, false));
        }
        let word = peers.readmitted.get(&rank).copied().unwrap_or(0);
        Ok(CallGrant { number: rank, units: endpoint.engine.granted(rank), word })
    }

    fn open_port(&mut self) -> Result<Address, ShmError> {
        self.endpoint.open_port().map_err(|error| match error {
            Error::Shm(error) => error,
            other => {
                ShmError::system("opening the port to other machines", io::Error::other(other.to_string()))
            }
        })
    }

    fn expect_stream(&mut self, number: u32) -> Result<(), String> {
        self.endpoint.route_across(number);
        self.endpoint
            .net_mut()
            .map_or_else(|| Err("the network is off".into()), |net| net.expect_stream(number))
    }

    fn granted(&self, number: u32) -> u64 {
        self.endpoint.engine.granted(number)
    }

    fn hear_from(&mut self, peer: &PeerAddress) {
        // The end of the former connection is seen as any other is: its last messages come first.
        if let Some(peer) = self.peers.table.peer_by(peer)
            && let Ok(PeerStage::Connected(number)) = self.peers.table.stage(peer)
        {
            let rank = self.peers.rank(number) as usize;
            if let Some(departure) = self.endpoint.waiter.watch.look_at(rank) {
                self.endpoint.leaving.push((rank, departure, 0));
            }
        }
    }
}

/// Returns the failure of the operations with a peer whose call has ended so.
const fn failure_by(ending: LinkEnding) -> Failure {
    match ending {
        LinkEnding::Died | LinkEnding::Lost => Failure::Died,
        LinkEnding::Left | LinkEnding::Disconnected => Failure::Finished,
        LinkEnding::Dropped => Failure::Dropped,
        LinkEnding::Refused(_) | LinkEnding::Unreachable => Failure::Unreachable,
    }
}
