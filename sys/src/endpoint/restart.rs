//! Ranks that were started again: who is there, taking them back, and being taken back. Who is believed is decided at
//! the door ([`crate::shm::RejoinListener`]); what begins anew, in the core
//! ([`nemesia_core::engine::Engine::reconnect`]).

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Endpoint;
use super::wait::{Awaited, Wait};
use crate::Failure;
use crate::bootstrap::{BootstrapError, Exchange};
use crate::error::Error;
use crate::os::Departure;
use crate::shm::{JoiningProcess, RejoinAnswer};

impl Endpoint {
    /// How often the rank of this process had been started before: 0 for a process that was started with its world.
    ///
    /// A process that was started again ([`Launcher::restart`](crate::bootstrap::Launcher::restart)) knows nothing of
    /// what its predecessor did. It is connected with each survivor from when that readmits it ([`Endpoint::readmit`]);
    /// until then what is started with the survivor waits, and so do agreements. Ranks that are gone when it comes have
    /// failed.
    pub fn incarnation(&self) -> u64 {
        self.rejoin.incarnation()
    }

    /// The incarnation of a rank, as far as this process knows it: that of the process that it is connected with, or
    /// was last.
    pub fn incarnation_of(&self, rank: usize) -> Option<u64> {
        self.incarnations.get(rank).copied()
    }

    /// Whether this process waits for a survivor to readmit it.
    pub fn is_awaiting(&self, rank: usize) -> bool {
        self.rejoin.awaits(rank)
    }

    /// The ranks that have failed, were started again, and wait to be readmitted, in rising order. Asks the kernel who
    /// is there, and the launcher whether it is who it says it is; does not wait for ranks that are not there yet.
    ///
    /// # Errors
    /// [`BootstrapError::NoRestart`] when the launcher of this world starts no rank again,
    /// [`BootstrapError::Finalized`], or the launcher's failure.
    pub fn restarted(&mut self) -> Result<Vec<usize>, Error> {
        self.check_origin()?;
        self.check_liveness();
        let mut ranks = self.rejoin.ranks(may_restart(self.exchange.as_deref_mut())?)?;
        ranks.retain(|rank| self.failure(*rank).is_some());
        Ok(ranks)
    }

    /// Waits until some rank waits to be readmitted, or for at most so long: [`Endpoint::restarted`] then is not empty.
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
            // A caller makes no difference to what is polled: from one look to the next.
            let next = Instant::now() + super::wait::LIVENESS_EVERY;
            while Instant::now() < next {
                let packets = self.engine.progress().packets;
                self.pause(&mut wait, packets, Awaited::Other)?;
            }
        }
    }

    /// Takes a rank back that had failed and was started again. From now on operations are with the new process, with
    /// which everything begins anew; until now they end with [`Error::PeerFailed`].
    ///
    /// - What was under way with the process before has failed, and stays so.
    /// - Messages that the process before had sent whole could be received until now. Those that were not are dropped;
    ///   one that a matched probe has taken out can still be received, unless its sender waited for that (a synchronous
    ///   send).
    /// - Receives from any source that are posted go on. The failure of this rank counts as acknowledged
    ///   ([`Endpoint::acknowledge_failures`]).
    /// - What is counted of the rank ([`Endpoint::peer_counters`]) is counted from the beginning.
    /// - Keys of regions of the process before are void. Our own regions stay as they are.
    /// - In [`Endpoint::agree`] and [`Endpoint::shrink`] it takes part again: all survivors readmit it between the same
    ///   two agreements. If several ranks come back at once, each of them readmits those that it finds gone, too,
    ///   before it takes part: a survivor tells it which those are. Readmitting a rank that the others had agreed to be
    ///   gone when this process had readmitted it already only lets it take part again. It is told how many agreements
    ///   there were; who then takes part in different ones breaks off with each other, and both see a fault that names
    ///   the other.
    ///
    /// # Errors
    /// [`Error::NotRestarted`], as long as [`Endpoint::restarted`] does not name the rank.
    /// [`Error::AgreementUnderWay`]. A process with other settings is sent away: [`Error::Peer`]. As for
    /// [`Endpoint::restarted`].
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
        let joining = self.rejoin.admit(rank).ok_or(Error::NotRestarted { rank })?;
        let joining = joining.map_err(|problem| Error::Peer { rank, problem })?;
        self.leaving.retain(|(leaver, ..)| *leaver != rank);
        self.engine.handlers_mut().forget(rank);
        self.direct.forget(rank as u32);
        let connection = self.connect(joining)?;
        self.engine.reconnect(rank as u32);
        self.agreements.readmit(rank);
        // What the joining process may look at is empty now.
        self.rejoin.answer(&connection, self.agreements.number());
        Ok(())
    }

    /// Links the port with a process that it has no link with. Returns the connection to that.
    fn connect(&mut self, joining: JoiningProcess) -> Result<Arc<crate::os::HandoffConnection>, Error> {
        let (rank, incarnation) = (joining.rank, joining.incarnation);
        let (port, watch) = (self.engine.port_mut(), &mut self.waiter.watch);
        let (connection, met) = joining.enter(port, watch)?;
        self.facts.expedited &= met.expedited;
        self.facts.met[rank] = Some(met);
        self.incarnations[rank] = incarnation;
        Ok(connection)
    }

    /// The ranks that were gone before this process was there have failed, which is no news to it.
    pub(super) fn begin_without(&mut self, gone: &[usize]) {
        for rank in gone {
            self.engine.fail(*rank as u32, Failure::Died);
        }
        self.engine.acknowledge();
    }

    /// Lets in who knocks, and hears what those say who were called. Whether that may have changed anything.
    pub(super) fn attend_rejoin(&mut self) -> bool {
        self.rejoin.open();
        let Self { rejoin, engine, waiter, leaving, .. } = self;
        rejoin.hear(|rank| {
            if engine.failure(rank as u32).is_some() || !waiter.watch.is_watched(rank) {
                return false;
            }
            // A process that was started again calls when the one before is gone: that can be seen by now.
            match waiter.watch.look_at(rank) {
                Some(departure) => {
                    leaving.push((rank, departure, 0));
                    false
                }
                None => true,
            }
        });
        let mut changed = false;
        while let Some((rank, answer)) = self.rejoin.next_answer(&self.waiter.watch) {
            changed = true;
            match answer {
                RejoinAnswer::Met(joining) => {
                    let agreements = joining.agreements;
                    match self.connect(*joining) {
                        Ok(_) => {
                            self.agreements.hear(rank, agreements);
                            self.engine.connected(rank as u32);
                        }
                        Err(error) => self.lose(rank, Departure::Died, Some(error.to_string())),
                    }
                }
                RejoinAnswer::Gone(departure, problem) => self.lose(rank, departure, problem),
            }
        }
        changed
    }

    fn lose(&mut self, rank: usize, departure: Departure, problem: Option<String>) {
        self.warnings.extend(problem.map(|problem| format!("rank {rank}: not readmitted: {problem}")));
        self.leaving.push((rank, departure, 0));
    }

    /// Waits until every survivor has readmitted this process, or is gone.
    pub(super) fn await_answers(&mut self) -> Result<(), Error> {
        let mut wait = Wait::new(None);
        while self.rejoin.awaits_answers() {
            let packets = self.engine.progress().packets;
            self.pause(&mut wait, packets, Awaited::Other)?;
        }
        Ok(())
    }
}

/// The exchange, if its launcher starts ranks again.
fn may_restart<'a>(
    exchange: Option<&'a mut (dyn Exchange + Send + 'static)>,
) -> Result<&'a mut dyn Exchange, BootstrapError> {
    match exchange {
        Some(exchange) if exchange.restarts() => Ok(exchange),
        Some(_) => Err(BootstrapError::NoRestart),
        None => Err(BootstrapError::Finalized { during: "readmission" }),
    }
}
