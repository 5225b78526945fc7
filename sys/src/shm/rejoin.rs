//! Reconnection of a restarted process with the processes that live.
//!
//! If the launcher restarts ranks, every process keeps its listener. A restarted process connects to all ranks that
//! joined the world before it, sends each its handshake, and goes on. Each of them answers when it readmits the
//! restarted process; only then the two share memory. Until then the surviving process keeps a
//! *caller* here, and the restarted process an *awaited* answer.
//!
//! A caller is accepted if the process of its rank that was known here is gone, and if the launcher confirms that it
//! has started the caller instead. Packets of callers are read without waiting.

use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nemesia_core::port::memory::Address;

use super::Port;
use super::calls::Calls;
use super::handshake::{self, ShmHandshake};
use super::joining::JoiningProcess;
use super::peer::{MappedPeer, ShmWorld, Unheard, hear_answer, map, patiently, send_away, shake_hands};
use super::segments::{OwnLink, OwnSegments, Unjoined};
use crate::bootstrap::{Exchange, Member};
use crate::error::Error;
use crate::os::shortage::{Shortage, arrived, listening};
use crate::os::{Departure, ForeignFd, HandoffConnection, HandoffListener, ShmError, Watch, closer};
use crate::transport::hosts::{HostAddress, MemberAddress, RemoteRanks};

/// The time within which a caller's handshake must arrive.
const HANDSHAKE_TIME: Duration = Duration::from_secs(5);
/// The number of callers beyond one for each rank. If there are more, the oldest caller without a handshake is
/// disconnected, or else the new one. Also the number of connections that are accepted at once.
const SPARE_CALLERS: usize = 16;

/// A connection request.
#[derive(Debug)]
struct Caller {
    connection: HandoffConnection,
    since: Instant,
    /// Its handshake, and the descriptors of its segments.
    said: Option<(ShmHandshake, Vec<ForeignFd>)>,
    /// The launcher has confirmed it.
    genuine: bool,
}

/// A rank to which we have connected.
#[derive(Debug)]
struct AwaitedProcess {
    rank: usize,
    incarnation: u64,
    /// Our segment for it.
    link: OwnLink,
    connection: HandoffConnection,
    pidfd: Option<OwnedFd>,
    /// Its answer, whose segments this process could not map for a shortage.
    said: Option<(ShmHandshake, Vec<ForeignFd>)>,
}

/// The result of one of our connection requests.
#[derive(Debug)]
pub(crate) enum RejoinAnswer {
    /// The rank has readmitted us.
    Met(Box<JoiningProcess>),
    /// The rank is gone or refuses; the text has the reason for a refusal.
    Gone(Departure, Option<String>),
}

/// The restart state of this process; see the module.
#[derive(Debug)]
pub(crate) struct RejoinListener {
    world: Arc<ShmWorld>,
    ours: Arc<OwnSegments>,
    /// `None` if the launcher never restarts ranks.
    listener: Option<HandoffListener>,
    /// The ranks that are reached over the network, whose processes are not accepted here.
    remote: Vec<usize>,
    /// In the order of their arrival.
    callers: Vec<Caller>,
    /// More connections may be pending.
    more: bool,
    awaited: Vec<AwaitedProcess>,
    shortage: Shortage,
}

impl RejoinListener {
    pub(super) fn new(
        world: Arc<ShmWorld>,
        ours: Arc<OwnSegments>,
        listener: Option<HandoffListener>,
        remote: &RemoteRanks,
    ) -> Self {
        let remote = (0..world.size as usize).filter(|rank| remote.contains(*rank)).collect();
        let (callers, awaited) = (Vec::new(), Vec::new());
        let shortage = Shortage::among(u64::from(world.size - 1));
        Self { world, ours, listener, remote, callers, more: false, awaited, shortage }
    }

    /// Begins to listen for calls of processes that opened alone, as this one. `remote` is where this process takes
    /// calls from other machines.
    pub(crate) fn listen_for_calls(
        &self,
        watch: &mut Watch,
        remote: Option<SocketAddr>,
    ) -> Result<Calls, Error> {
        let place = (self.world.bind()?, remote);
        Calls::listen(Arc::clone(&self.world), Arc::clone(&self.ours), place, watch)
    }

    /// Joins the world, if its ranks may be started again and this process was started with it. Call it when this
    /// process is connected with all others: the world is complete when all have joined.
    pub(crate) fn join(&self, exchange: &mut dyn Exchange, net: Option<Address>) -> Result<(), Error> {
        if let Some(listener) = self.listener.as_ref().filter(|_| self.world.incarnation == 0) {
            let host = HostAddress::of(listener.name(), &self.world.config);
            exchange.join(&MemberAddress { host, net }.encode())?;
        }
        Ok(())
    }

    /// Connects to a rank, which answers when it readmits us. False if it is gone.
    pub(super) fn call(
        &mut self,
        rank: usize,
        member: &Member,
        watch: &Watch,
        deadline: Instant,
    ) -> Result<bool, Error> {
        let problem = |problem: String| Error::Peer { rank, problem };
        let MemberAddress { host, .. } = MemberAddress::decode(&member.address).map_err(problem)?;
        if !HostAddress::of(String::new(), &self.world.config).may_share(&host) {
            return Ok(false);
        }
        let connect = || Ok(HandoffConnection::connect(&host.name, deadline)?);
        let connection = match patiently(deadline, connect) {
            Ok(connection) => connection,
            Err(Error::Shm(ShmError::NotListening { .. })) => return Ok(false),
            Err(error) => return Err(problem(error.to_string())),
        };
        connection.require_same_user().map_err(|error| problem(error.to_string()))?;
        let link = patiently(deadline, || self.ours.link(rank as u32))?;
        match shake_hands(&self.world, (&self.ours, &link), &connection, 0, deadline) {
            Ok(()) => {}
            Err(ShmError::PeerGone { .. }) => return Ok(false),
            Err(error) => return Err(problem(error.to_string())),
        }
        watch.attend(connection.as_fd())?;
        let pidfd = connection.pidfd();
        let incarnation = member.incarnation;
        self.awaited.push(AwaitedProcess { rank, incarnation, link, connection, pidfd, said: None });
        Ok(true)
    }

    /// Returns the next report of a shortage of this process, which keeps it from connecting for now.
    pub(crate) const fn next_shortage(&mut self) -> Option<String> {
        self.shortage.next_report()
    }

    /// Returns the number of connections of others that could not be accepted.
    pub(crate) const fn failed_accepts(&self) -> u64 {
        self.shortage.failed()
    }

    /// Returns the number of previous starts of our rank.
    pub(crate) fn incarnation(&self) -> u64 {
        self.world.incarnation
    }

    /// Returns whether any answer is awaited.
    pub(crate) fn awaits_answers(&self) -> bool {
        !self.awaited.is_empty()
    }

    /// Returns whether the answer of this rank is awaited.
    pub(crate) fn awaits(&self, rank: usize) -> bool {
        self.awaited.iter().any(|awaited| awaited.rank == rank)
    }

    /// Returns whether there are connections to check even if no new one is pending.
    pub(crate) fn is_busy(&self) -> bool {
        self.more || !self.callers.is_empty() || !self.awaited.is_empty()
    }

    /// Accepts pending connections. Call it before the peers' departures are checked ([`RejoinListener::hear`]): a
    /// restarted process connects after the end of its predecessor.
    pub(crate) fn open(&mut self, watch: &Watch) {
        let Self { listener: Some(listener), shortage, .. } = self else { return };
        let most = self.world.size as usize + SPARE_CALLERS;
        let now = Instant::now();
        // Bounded, whatever the number of pending connections: the accepted ones are read next.
        for _ in 0..SPARE_CALLERS {
            if !closer::has_room() {
                break;
            }
            let listen = listening(watch, listener.as_fd());
            let Some(connection) = shortage.next_connection(now, listen, || arrived(listener.accept(now)))
            else {
                self.more = false;
                return;
            };
            if connection.require_same_user().is_err() {
                continue;
            }
            let mut caller = Caller { connection, since: now, said: None, genuine: false };
            if self.callers.len() >= most {
                // A restarted process sends its handshake at once.
                let silent = self.callers.iter().position(|caller| caller.said.is_none());
                if let Some(at) = silent {
                    std::mem::swap(&mut caller, &mut self.callers[at]);
                    self.callers[at..].rotate_left(1);
                }
                send_away(&caller.connection, "too many processes wait to be readmitted");
            } else {
                self.callers.push(caller);
            }
        }
        self.more = true;
    }

    /// Reads the callers' handshakes, and disconnects callers that are not valid. `lives` returns whether the known
    /// process of a rank lives.
    pub(crate) fn hear(&mut self, mut lives: impl FnMut(usize) -> bool) {
        let now = Instant::now();
        let (world, remote, shortage) = (&self.world, &self.remote, &mut self.shortage);
        self.callers.retain_mut(|caller| {
            if caller.said.is_some() {
                return !caller.connection.has_disconnected();
            }
            match hear_answer(&caller.connection, now) {
                Ok(Some((handshake, fds))) => match check(world, remote, &handshake, &mut lives) {
                    Ok(()) => {
                        caller.said = Some((handshake, fds));
                        true
                    }
                    Err(problem) => {
                        send_away(&caller.connection, &problem);
                        false
                    }
                },
                Ok(None) => now.duration_since(caller.since) < HANDSHAKE_TIME,
                // A refusal would end the caller's world.
                Err(Unheard::Shortage(error)) => {
                    shortage.record(&error);
                    !caller.connection.has_disconnected()
                }
                Err(problem) => {
                    send_away(&caller.connection, &problem.to_string());
                    false
                }
            }
        });
    }

    /// Returns the callers' ranks that the launcher confirms, in rising order. Other callers are disconnected.
    pub(crate) fn ranks(&mut self, exchange: &mut dyn Exchange) -> Result<Vec<usize>, Error> {
        let mut error = None;
        self.callers.retain_mut(|caller| {
            let Some((handshake, _)) = &caller.said else { return true };
            if caller.genuine || error.is_some() {
                return true;
            }
            match exchange.member(handshake.rank as usize) {
                Ok(member) => {
                    caller.genuine = member.is_some_and(|member| {
                        member.incarnation == handshake.incarnation
                            && MemberAddress::decode(&member.address)
                                .is_ok_and(|address| address.host.is_genuine(&caller.connection))
                    });
                    if !caller.genuine {
                        send_away(&caller.connection, "the launcher reports no such restart");
                    }
                    caller.genuine
                }
                Err(failed) => {
                    error = Some(failed);
                    true
                }
            }
        });
        if let Some(error) = error {
            return Err(error.into());
        }
        let genuine = self.callers.iter().filter(|caller| caller.genuine);
        let mut ranks: Vec<usize> =
            genuine.filter_map(|caller| Some(caller.said.as_ref()?.0.rank as usize)).collect();
        ranks.sort_unstable();
        ranks.dedup();
        Ok(ranks)
    }

    /// Returns the caller of this rank that the launcher has confirmed, mapped and validated, for
    /// [`JoiningProcess::enter`]. `None` if there is none. If there are several, returns the last: the launcher starts
    /// the next one after the end of the one before. While descriptors or memory lack, the caller waits.
    pub(crate) fn admit(&mut self, rank: usize) -> Option<Result<JoiningProcess, Unjoined>> {
        let is_it = |caller: &Caller| {
            caller.genuine
                && caller.said.as_ref().is_some_and(|(handshake, _)| handshake.rank as usize == rank)
        };
        let last = self.callers.iter().rposition(is_it)?;
        let Caller { connection, said, .. } = &self.callers[last];
        let link = self.ours.link(rank as u32).map_err(Unjoined::from);
        let mapped = link.and_then(|link| Ok((link, self.map(connection, said.as_ref())?)));
        if let Err(Unjoined::Shortage(error)) = mapped {
            return Some(Err(Unjoined::Shortage(error)));
        }
        let caller = self.callers.remove(last);
        self.callers.retain(|caller| !is_it(caller));
        let (handshake, _) = caller.said?;
        let connection = Arc::new(caller.connection);
        let joining = mapped
            .and_then(|(link, mapped)| self.joining(link, (&handshake, mapped), Arc::clone(&connection)));
        Some(joining.inspect_err(|problem| send_away(&connection, &problem.to_string())))
    }

    /// Maps the segments of a process that has said this.
    fn map(
        &self,
        connection: &HandoffConnection,
        said: Option<&(ShmHandshake, Vec<ForeignFd>)>,
    ) -> Result<MappedPeer, Unjoined> {
        let (handshake, fds) = said.ok_or_else(|| "it has not sent its segments".to_owned())?;
        handshake::compare((self.world.size, &self.world.geometry), handshake)?;
        map(&self.world, connection, handshake, fds)
    }

    fn joining(
        &self,
        link: OwnLink,
        said: (&ShmHandshake, MappedPeer),
        connection: Arc<HandoffConnection>,
    ) -> Result<JoiningProcess, Unjoined> {
        JoiningProcess::new((&self.world.config, &self.ours), link, said, connection)
    }

    /// Sends a caller the answer that it is readmitted, with the number of agreements so far. The caller then maps our
    /// segments.
    pub(crate) fn answer(
        &self,
        port: &mut Port,
        rank: usize,
        connection: &HandoffConnection,
        agreements: u64,
    ) {
        let Some(link) = port.host_mut().mappings.own_link(rank as u32) else { return };
        // If the packet cannot be sent, the caller is gone, which the watch detects.
        let _ = shake_hands(&self.world, (&self.ours, link), connection, agreements, Instant::now());
        link.close_descriptor();
    }

    /// Returns the next awaited rank that has answered, or is gone.
    pub(crate) fn next_answer(&mut self, watch: &Watch) -> Option<(usize, RejoinAnswer)> {
        let now = Instant::now();
        for at in 0..self.awaited.len() {
            let mapped = match self.mapped_answer(at, now, watch) {
                Ok(None) => continue,
                Ok(Some(mapped)) => Ok(mapped),
                Err(gone) => Err(gone),
            };
            let AwaitedProcess { rank, mut link, connection, said, .. } = self.stop_awaiting(at, watch);
            let answer = match (mapped, said) {
                (Ok(mapped), Some((handshake, _))) => {
                    link.close_descriptor();
                    match self.joining(link, (&handshake, mapped), Arc::new(connection)) {
                        Ok(joining) => RejoinAnswer::Met(Box::new(joining)),
                        Err(problem) => RejoinAnswer::Gone(Departure::Died, Some(problem.to_string())),
                    }
                }
                (Err((departure, problem)), _) => RejoinAnswer::Gone(departure, problem),
                (Ok(_), None) => RejoinAnswer::Gone(Departure::Died, None),
            };
            return Some((rank, answer));
        }
        None
    }

    /// Returns the mapped segments of an awaited rank. `None` if it has not answered, or if descriptors or memory lack
    /// here: the answer is kept then.
    ///
    /// # Errors
    /// The rank is gone or refuses; the text has the reason for a refusal.
    fn mapped_answer(
        &mut self,
        at: usize,
        now: Instant,
        watch: &Watch,
    ) -> Result<Option<MappedPeer>, (Departure, Option<String>)> {
        let gone = |problem| Err((Departure::Died, problem));
        let Some(AwaitedProcess { rank, incarnation, connection, pidfd, said, .. }) =
            self.awaited.get_mut(at)
        else {
            return Ok(None);
        };
        if said.is_none() {
            // Checked before the packets are read: a dead process sends no further packets.
            let ended = pidfd.as_ref().is_some_and(|fd| Watch::has_ended(fd.as_fd()));
            match hear_answer(connection, now) {
                Ok(None) if ended => return gone(None),
                Ok(None) => return Ok(None),
                Ok(Some(answer))
                    if (answer.0.rank as usize, answer.0.incarnation) == (*rank, *incarnation) =>
                {
                    *said = Some(answer);
                }
                Ok(Some(_)) => return gone(Some("it claims to be another rank".into())),
                Err(Unheard::Leaving(departure)) => return Err((departure, None)),
                Err(Unheard::Gone) => return gone(None),
                Err(Unheard::Shortage(error)) => {
                    self.shortage.record_packet(&error, watch, connection.as_fd());
                    return Ok(None);
                }
                Err(Unheard::Problem(problem)) => return gone(Some(problem)),
            }
        }
        let AwaitedProcess { connection, said, .. } = &self.awaited[at];
        match self.map(connection, said.as_ref()) {
            Ok(mapped) => Ok(Some(mapped)),
            Err(Unjoined::Shortage(error)) => {
                self.shortage.record(&error);
                Ok(None)
            }
            Err(Unjoined::Problem(problem)) => gone(Some(problem)),
        }
    }

    fn stop_awaiting(&mut self, at: usize, watch: &Watch) -> AwaitedProcess {
        let awaited = self.awaited.remove(at);
        watch.unattend(awaited.connection.as_fd());
        awaited
    }

    /// Announces to all callers, and to all awaited ranks, that we leave: finished or not, as to the peers.
    pub(crate) fn send_goodbyes(&self, finished: bool) {
        let callers = self.callers.iter().map(|caller| &caller.connection);
        for connection in callers.chain(self.awaited.iter().map(|awaited| &awaited.connection)) {
            // A process that the packet does not reach sees a death.
            let _ = if finished { connection.send_goodbye() } else { connection.send_dropped() };
        }
    }
}

/// Checks that a process with this handshake can be a restarted rank.
fn check(
    world: &ShmWorld,
    remote: &[usize],
    handshake: &ShmHandshake,
    lives: &mut impl FnMut(usize) -> bool,
) -> Result<(), String> {
    let rank = handshake.rank as usize;
    if handshake.incarnation == 0 || rank >= world.size as usize || handshake.rank == world.rank {
        return Err("this rank is not awaited here".into());
    }
    handshake::compare((world.size, &world.geometry), handshake)?;
    if remote.contains(&rank) {
        return Err("this rank is reached over the network here, as its first process".into());
    }
    if lives(rank) {
        return Err(format!("rank {rank} lives, and was not restarted"));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
