//! Ranks that were started again: finding them, readmitting them, and being readmitted.
//!
//! The launcher's list of members decides which claims are genuine. The core resets the state of a rank
//! ([`nemesia_core::engine::Engine::reconnect`]).

use std::time::{Duration, Instant};

use nemesia_core::link::machine::terms::RankClaim;
use nemesia_core::port::Route;

use crate::Failure;
use crate::bootstrap::{BootstrapError, Exchange, Member};
use crate::endpoint::Endpoint;
use crate::endpoint::wait::{Awaited, Wait};
use crate::error::Error;
use crate::os::Departure;
use crate::shm::JoiningProcess;
use crate::transport::hosts::MemberAddress;
use crate::transport::net::{NetAnswer, NetPort};

/// # Restart
///
/// If the launcher starts a rank again (`nemesia run --restart`), each survivor readmits it. Operations with the rank
/// then reach the new process.
///
/// ```no_run
/// # fn go(mut endpoint: nemesia::Endpoint) -> Result<(), nemesia::Error> {
/// if endpoint.incarnation() == 0 {
///     for rank in endpoint.wait_restarted(None)? {
///         endpoint.readmit(rank)?;
///         endpoint.send(rank, 1, b"go on from step 12")?;
///     }
/// }
/// # Ok(()) }
/// ```
impl Endpoint {
    /// Returns how often the rank of this process was started before: 0 for a process that was started with its world.
    ///
    /// A process that was started again ([`Launcher::restart`](crate::bootstrap::Launcher::restart)) has no state of
    /// its predecessor. It is connected with a survivor once that survivor has readmitted it ([`Endpoint::readmit`]).
    /// Until then, operations with the survivor wait, and so do agreements. Ranks that are gone when the process starts
    /// have failed.
    pub fn incarnation(&self) -> u64 {
        self.here.incarnation()
    }

    /// Returns the incarnation of a rank: that of the process with which this process is or was last connected.
    pub fn incarnation_of(&self, rank: usize) -> Option<u64> {
        self.incarnations.get(rank).copied()
    }

    /// Returns whether this process waits until a survivor readmits it.
    pub fn is_awaiting(&self, rank: usize) -> bool {
        self.peers.as_ref().is_some_and(|peers| self.incarnation() > 0 && peers.awaits(rank as u32))
            || self.net().is_some_and(|net| net.awaits(rank as u32))
    }

    /// Returns the ranks that have failed, were started again, and wait to be readmitted, in rising order.
    ///
    /// This function asks the kernel for new processes, and the launcher whether they are genuine. It does not wait for
    /// ranks that have not come yet.
    ///
    /// # Errors
    /// [`BootstrapError::NoRestart`] if the launcher of this world starts no rank again, [`BootstrapError::Finalized`],
    /// or an error of the launcher.
    pub fn restarted(&mut self) -> Result<Vec<usize>, Error> {
        self.check_origin()?;
        self.check_liveness();
        let mut ranks: Vec<usize> = self.claims()?.iter().map(|claim| claim.rank as usize).collect();
        ranks.extend(self.restarted_remote()?);
        ranks.retain(|rank| self.failure(*rank).is_some());
        ranks.sort_unstable();
        Ok(ranks)
    }

    /// Returns the processes of this machine that wait for readmission and that the launcher confirms. Others are
    /// refused.
    fn claims(&mut self) -> Result<Vec<RankClaim>, Error> {
        self.with_peers(|peers, endpoint| {
            let exchange = may_restart(endpoint.exchange.as_deref_mut())?;
            let is_genuine = |claim: &RankClaim| {
                let member = exchange.member(claim.rank as usize)?;
                Ok(member.is_some_and(|member| {
                    let address = MemberAddress::decode(&member.address);
                    member.incarnation == claim.incarnation
                        && address.is_ok_and(|known| known.address == claim.peer)
                }))
            };
            peers.claims(is_genuine, &endpoint.waiter.watch)
        })
    }

    /// Returns the ranks whose new processes wait for readmission over the network and that the launcher confirms.
    /// Other callers are refused.
    fn restarted_remote(&mut self) -> Result<Vec<usize>, Error> {
        let callers = self.net().map(NetPort::callers).unwrap_or_default();
        let mut ranks = Vec::with_capacity(callers.len());
        for (peer, incarnation, confirmed) in callers {
            let rank = peer as usize;
            let is_genuine = confirmed || {
                let member = may_restart(self.exchange.as_deref_mut())?.member(rank)?;
                member.is_some_and(|member| member.incarnation == incarnation)
            };
            let Some(net) = self.net_mut() else { break };
            if is_genuine {
                net.confirm(peer, incarnation);
                ranks.push(rank);
            } else {
                net.dismiss(peer);
            }
        }
        Ok(ranks)
    }

    /// Waits until a rank waits to be readmitted, or for at most `limit`. Returns what [`Endpoint::restarted`] returns.
    ///
    /// # Errors
    /// As for [`Endpoint::restarted`], and [`Error::Timeout`].
    pub fn wait_restarted(&mut self, limit: Option<Duration>) -> Result<Vec<usize>, Error> {
        let mut wait = Wait::new(limit);
        loop {
            let ranks = self.restarted()?;
            if !ranks.is_empty() {
                return Ok(ranks);
            }
            // Connection requests do not end a pause, so this loop runs until the next liveness check is due.
            let next = Instant::now() + crate::endpoint::wait::LIVENESS_EVERY;
            while Instant::now() < next {
                let packets = self.engine.progress().packets;
                self.pause(&mut wait, packets, Awaited::Other)?;
            }
        }
    }

    /// Readmits a rank that had failed and was started again.
    ///
    /// From now on, operations are with the new process, with which all state begins anew. Until now they ended with
    /// [`Error::PeerFailed`].
    ///
    /// - Operations that were under way with the earlier process have failed.
    /// - Messages that the earlier process had sent completely could be received until now. The others are
    ///   dropped. A message that a matched probe took out can still be received, unless it was a synchronous
    ///   send.
    /// - Posted receives from any source stay posted. The failure of this rank counts as acknowledged
    ///   ([`Endpoint::acknowledge_failures`]).
    /// - The counters of the rank ([`Endpoint::peer_counters`]) begin at zero.
    /// - Keys of the earlier process's regions are invalid. The regions of this process stay as they are.
    /// - The rank is connected a little later. Operations with it wait until then. If it dies before, has other
    ///   settings, or lacks something, they end with [`Error::PeerFailed`]. While this process lacks descriptors or
    ///   memory, the new process waits.
    /// - The rank takes part in [`Endpoint::agree`] and [`Endpoint::shrink`] again. All survivors readmit it
    ///   between the same two agreements, and it learns their number. If several ranks come back at once, a
    ///   survivor sends each of them the ranks that are gone, and each readmits these before it takes part. If
    ///   this process had readmitted a rank already when the others agreed that it was gone, this call only
    ///   lets it take part again. Ranks that take part in different agreements disconnect from each other, and
    ///   both see a fault that names the other.
    ///
    /// # Errors
    /// [`Error::NotRestarted`] if [`Endpoint::restarted`] does not name the rank. [`Error::AgreementUnderWay`].
    /// The errors of [`Endpoint::restarted`].
    pub fn readmit(&mut self, rank: usize) -> Result<(), Error> {
        self.check_origin()?;
        if rank >= self.size() {
            return Err(Error::Rank { rank, last: self.size() - 1 });
        }
        if self.agreements.is_under_way() {
            return Err(Error::AgreementUnderWay);
        }
        if self.failure(rank).is_none() && self.agreements.readmit(rank) {
            return Ok(());
        }
        if !self.restarted()?.contains(&rank) {
            return Err(Error::NotRestarted { rank });
        }
        if self.engine.port().route(rank as u32) == Route::Remote {
            return self.readmit_remote(rank);
        }
        let claim = self.claims()?.into_iter().find(|claim| claim.rank as usize == rank);
        let claim = claim.ok_or(Error::NotRestarted { rank })?;
        let agreements = self.agreements.number();
        self.forget_process(rank);
        self.with_peers(|peers, endpoint| peers.readmit(&claim, agreements, endpoint))?;
        self.incarnations[rank] = claim.incarnation;
        self.agreements.readmit(rank);
        Ok(())
    }

    /// Readmits a rank that is reached over the network. Its connection becomes ready later; until then operations with
    /// it wait.
    fn readmit_remote(&mut self, rank: usize) -> Result<(), Error> {
        let agreements = self.agreements.number();
        let admitted = self.net_mut().and_then(|net| net.admit(rank as u32, agreements));
        self.incarnations[rank] = admitted.ok_or(Error::NotRestarted { rank })?;
        self.forget_process(rank);
        self.engine.reconnect(rank as u32);
        self.agreements.readmit(rank);
        Ok(())
    }

    /// Forgets what is kept of the former process of a rank outside of the engine.
    pub(in crate::endpoint) fn forget_process(&mut self, rank: usize) {
        self.leaving.retain(|(leaver, ..)| *leaver != rank);
        self.engine.handlers_mut().forget(rank);
        self.engine.port_mut().local_mut().host_mut().regions.forget(rank as u32);
    }

    /// Connects the port with a process with which it is not connected.
    pub(in crate::endpoint) fn connect_process(&mut self, joining: JoiningProcess) -> Result<(), Error> {
        let (rank, incarnation) = (joining.number, joining.incarnation);
        let (port, watch) = (self.engine.port_mut().local_mut(), &mut self.waiter.watch);
        let met = joining.enter(port, watch)?;
        self.facts.expedited &= met.expedited;
        if rank >= self.facts.met.len() {
            self.facts.met.resize_with(rank + 1, || None);
            self.incarnations.resize(rank + 1, 0);
        }
        self.facts.met[rank] = Some(met);
        self.incarnations[rank] = incarnation;
        Ok(())
    }

    /// Applies the setting for failures, and marks the ranks as failed that were gone before this process started.
    /// These failures count as acknowledged.
    pub(in crate::endpoint) fn begin_without(&mut self, gone: &[usize]) {
        self.engine.outlive_failures(self.config.any_source_outlives);
        for rank in gone {
            self.engine.fail(*rank as u32, Failure::Died);
        }
        self.engine.acknowledge();
    }

    /// Processes what has become of connections with restarted processes over the network. Returns whether anything has
    /// changed.
    pub(in crate::endpoint) fn attend_net_rejoin(&mut self) -> bool {
        let mut changed = false;
        while let Some((peer, answer)) = self.net_mut().and_then(NetPort::next_answer) {
            let rank = peer as usize;
            changed = true;
            match answer {
                NetAnswer::Met { incarnation, agreements } => {
                    self.incarnations[rank] = incarnation;
                    self.agreements.hear(rank, agreements);
                    self.engine.connected(peer);
                }
                NetAnswer::Unsure { incarnation } => {
                    let member = may_restart(self.exchange.as_deref_mut()).and_then(|it| it.member(rank));
                    // Without an answer of the launcher, the request is repeated.
                    let lives =
                        |member: Option<Member>| member.is_some_and(|it| it.incarnation == incarnation);
                    if member.is_ok_and(|member| !lives(member)) {
                        if let Some(net) = self.net_mut() {
                            net.stop_calling(peer);
                        }
                        self.lose(rank, Departure::Died, None);
                    }
                }
                NetAnswer::Gone(departure, problem) => self.lose(rank, departure, problem),
            }
        }
        changed
    }

    fn lose(&mut self, rank: usize, departure: Departure, problem: Option<String>) {
        self.warnings.extend(problem.map(|problem| format!("rank {rank}: not readmitted: {problem}")));
        self.leaving.push((rank, departure, 0));
    }

    /// Waits until these ranks have readmitted this process or are gone.
    pub(super) fn await_answers_of(&mut self, members: &[usize]) -> Result<(), Error> {
        let mut wait = Wait::new(None);
        self.attend_net_rejoin();
        while members.iter().any(|rank| self.is_awaiting(*rank)) {
            let packets = self.engine.progress().packets;
            self.pause(&mut wait, packets, Awaited::Other)?;
        }
        Ok(())
    }

    /// Waits until every survivor has readmitted this process or is gone.
    pub(in crate::endpoint) fn await_answers(&mut self) -> Result<(), Error> {
        let mut wait = Wait::new(None);
        // The answers may have come with the last packets.
        self.attend_net_rejoin();
        let is_awaiting = |it: &Self| (0..it.size()).any(|rank| it.is_awaiting(rank));
        while is_awaiting(self) || self.net().is_some_and(NetPort::awaits_answers) {
            let packets = self.engine.progress().packets;
            self.pause(&mut wait, packets, Awaited::Other)?;
        }
        Ok(())
    }
}

/// Returns the exchange if its launcher starts ranks again.
fn may_restart<'a>(
    exchange: Option<&'a mut (dyn Exchange + Send + 'static)>,
) -> Result<&'a mut dyn Exchange, BootstrapError> {
    match exchange {
        Some(exchange) if exchange.restarts() => Ok(exchange),
        Some(_) => Err(BootstrapError::NoRestart),
        None => Err(BootstrapError::Finalized { during: "readmission" }),
    }
}
