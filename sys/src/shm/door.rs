//! The door through which a process comes back: who was started again meets those that live.
//!
//! In a world whose launcher starts ranks again every process keeps its listener. A process that was started again calls
//! all that joined the world before it, greets, and goes on; whom it has called answers when it readmits it, and only
//! then the two share memory. Until then a *caller* waits at the door here, and there the answer is *awaited*.
//!
//! A caller is believed when the process of its rank that was known here is gone, and the launcher says that the caller is
//! the one that it has started instead. What a caller says is looked at without waiting for it.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::connect::{self, World};
use super::greeting::{self, Greeting};
use super::views::NewLink;
use super::{Met, Pair, Port, readable_one};
use crate::bootstrap::{Exchange, Member};
use crate::error::Error;
use crate::os::{Connection, Departure, ForeignFd, Listener, RemoteMemory, ShmError, Watch, closer};

/// How long a caller may take to greet.
const GREETING_TIME: Duration = Duration::from_secs(5);
/// Callers at the door, beyond one for each rank; for more, those go that have said nothing for longest, or they are sent
/// away. So many are let in at once.
const SPARE_CALLERS: usize = 16;

/// Somebody who has called.
#[derive(Debug)]
struct Caller {
    connection: Connection,
    since: Instant,
    /// What it has said, and the descriptors of its segments.
    said: Option<(Greeting, Vec<ForeignFd>)>,
    /// The launcher vouches for it.
    genuine: bool,
}

/// Somebody whom we have called.
#[derive(Debug)]
struct Awaited {
    rank: usize,
    incarnation: u64,
    connection: Connection,
    pidfd: Option<OwnedFd>,
}

/// What came of a call of ours.
#[derive(Debug)]
pub(crate) enum Answer {
    /// We are readmitted.
    Met(Box<Newcomer>),
    /// It is gone, or does not want us; then this says why.
    Gone(Departure, Option<String>),
}

/// A process that we have no link with yet, with everything that makes one.
#[derive(Debug)]
pub(crate) struct Newcomer {
    pub(crate) rank: usize,
    pub(crate) incarnation: u64,
    /// Agreements that there were before.
    pub(crate) agreements: u64,
    pub(crate) met: Met,
    link: NewLink,
    memory: Option<RemoteMemory>,
    connection: Arc<Connection>,
    pidfd: Option<OwnedFd>,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Door {
    world: World,
    ours: Arc<Pair>,
    /// None when nobody is ever started again.
    listener: Option<Listener>,
    /// In the order in which they came.
    callers: Vec<Caller>,
    /// Others may be waiting to be let in.
    more: bool,
    awaited: Vec<Awaited>,
}

impl Door {
    pub(super) fn new(world: World, ours: Arc<Pair>, listener: Option<Listener>) -> Self {
        Self { world, ours, listener, callers: Vec::new(), more: false, awaited: Vec::new() }
    }

    /// Calls a member, for it to answer when it likes. False when it is gone.
    pub(super) fn call(
        &mut self,
        rank: usize,
        member: &Member,
        watch: &Watch,
        deadline: Instant,
    ) -> Result<bool, Error> {
        let problem = |problem: String| Error::Peer { rank, problem };
        let name = connect::name_in(&member.address).map_err(problem)?;
        let connection = match Connection::connect(name, deadline) {
            Ok(connection) => connection,
            Err(ShmError::NotListening { .. }) => return Ok(false),
            Err(error) => return Err(problem(error.to_string())),
        };
        connection.require_same_user().map_err(|error| problem(error.to_string()))?;
        match connect::greet(&self.world, &self.ours, &connection, 0, deadline) {
            Ok(()) => {}
            Err(ShmError::PeerGone { .. }) => return Ok(false),
            Err(error) => return Err(problem(error.to_string())),
        }
        watch.attend(connection.as_fd())?;
        let pidfd = connection.pidfd();
        self.awaited.push(Awaited { rank, incarnation: member.incarnation, connection, pidfd });
        Ok(true)
    }

    /// How often our rank had been started before.
    pub(crate) fn incarnation(&self) -> u64 {
        self.world.incarnation
    }

    /// Whether we wait for answers.
    pub(crate) fn awaits_answers(&self) -> bool {
        !self.awaited.is_empty()
    }

    /// Whether we wait for the answer of this rank.
    pub(crate) fn awaits(&self, rank: usize) -> bool {
        self.awaited.iter().any(|awaited| awaited.rank == rank)
    }

    /// Whether there is somebody to be looked at even if nobody has called.
    pub(crate) fn is_busy(&self) -> bool {
        self.more || !self.callers.is_empty() || !self.awaited.is_empty()
    }

    /// Lets in who has called. To be called before the peers' ends are looked at ([`Door::hear`]): who was started again
    /// calls after its predecessor's end.
    pub(crate) fn open(&mut self) {
        let Some(listener) = &self.listener else { return };
        let most = self.world.geometry.peers as usize + SPARE_CALLERS;
        let now = Instant::now();
        // However many call, and whoever they are: those that have been let in are heard next.
        for _ in 0..SPARE_CALLERS {
            if !closer::has_room() {
                break;
            }
            let Ok(connection) = listener.accept(now) else {
                self.more = false;
                return;
            };
            if connection.require_same_user().is_err() {
                continue;
            }
            let mut caller = Caller { connection, since: now, said: None, genuine: false };
            if self.callers.len() >= most {
                // Who was started again greets at once.
                let silent = self.callers.iter().position(|caller| caller.said.is_none());
                if let Some(at) = silent {
                    std::mem::swap(&mut caller, &mut self.callers[at]);
                    self.callers[at..].rotate_left(1);
                }
                send_away(&caller.connection, "too many are at the door");
            } else {
                self.callers.push(caller);
            }
        }
        self.more = true;
    }

    /// Hears what the callers have to say, and sends away those who have no business here. `lives` tells whether the process
    /// of that rank that is known here lives.
    pub(crate) fn hear(&mut self, mut lives: impl FnMut(usize) -> bool) {
        let now = Instant::now();
        let world = &self.world;
        self.callers.retain_mut(|caller| {
            if caller.said.is_some() {
                return !caller.connection.has_hung_up();
            }
            match connect::hear(&caller.connection, now) {
                Ok(Some((greeting, fds))) => match check(world, &greeting, &mut lives) {
                    Ok(()) => {
                        caller.said = Some((greeting, fds));
                        true
                    }
                    Err(problem) => {
                        send_away(&caller.connection, &problem);
                        false
                    }
                },
                Ok(None) => now.duration_since(caller.since) < GREETING_TIME,
                Err(problem) => {
                    send_away(&caller.connection, &problem);
                    false
                }
            }
        });
    }

    /// The ranks that are at the door, in rising order, as far as the launcher vouches for them. Others are sent away.
    pub(crate) fn ranks(&mut self, exchange: &mut dyn Exchange) -> Result<Vec<usize>, Error> {
        let mut error = None;
        self.callers.retain_mut(|caller| {
            let Some((greeting, _)) = &caller.said else { return true };
            if caller.genuine || error.is_some() {
                return true;
            }
            match exchange.member(greeting.rank as usize) {
                Ok(member) => {
                    caller.genuine = member.is_some_and(|member| {
                        member.incarnation == greeting.incarnation
                            && connect::is_genuine(&caller.connection, &member.address)
                    });
                    if !caller.genuine {
                        send_away(&caller.connection, "the launcher knows of no such restart");
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

    /// The caller of this rank, if one is there for whom the launcher vouches: mapped and checked, for [`Newcomer::enter`].
    /// Of several the last one; the launcher starts the next when the one before is gone.
    pub(crate) fn admit(&mut self, rank: usize) -> Option<Result<Newcomer, String>> {
        let is_it = |caller: &Caller| {
            caller.genuine && caller.said.as_ref().is_some_and(|(greeting, _)| greeting.rank as usize == rank)
        };
        let last = self.callers.iter().rposition(is_it)?;
        let caller = self.callers.remove(last);
        self.callers.retain(|caller| !is_it(caller));
        let (greeting, fds) = caller.said?;
        let connection = Arc::new(caller.connection);
        let newcomer = self.newcomer(&greeting, fds, Arc::clone(&connection));
        Some(newcomer.inspect_err(|problem| send_away(&connection, problem)))
    }

    fn newcomer(
        &self,
        greeting: &Greeting,
        fds: Vec<ForeignFd>,
        connection: Arc<Connection>,
    ) -> Result<Newcomer, String> {
        let World { geometry, rank: me, config, .. } = &self.world;
        let mut peer = connect::admit(&self.world, &connection, greeting, fds)?;
        let memory = readable_one(config, &mut peer);
        if let (Err(problem), crate::config::SingleCopy::Require) = (&memory, config.single_copy) {
            return Err(format!("no single copy through the kernel: {problem}"));
        }
        let met = Met::new(&peer, memory.as_ref().err().cloned());
        let link = NewLink::new((*me, greeting.rank), geometry, &self.ours, peer.pair);
        Ok(Newcomer {
            rank: greeting.rank as usize,
            incarnation: greeting.incarnation,
            agreements: greeting.agreements,
            met,
            link: link.map_err(|error| error.to_string())?,
            memory: memory.ok(),
            pidfd: connection.pidfd(),
            connection,
        })
    }

    /// Tells a caller that it is readmitted, after so many agreements. It then looks at our segments.
    pub(crate) fn answer(&self, connection: &Connection, agreements: u64) {
        // Who can't be told is gone, which the watch will find.
        let _ = connect::greet(&self.world, &self.ours, connection, agreements, Instant::now());
    }

    /// The next of those we have called who has answered, or is gone.
    pub(crate) fn next_answer(&mut self, watch: &Watch) -> Option<(usize, Answer)> {
        let now = Instant::now();
        for at in 0..self.awaited.len() {
            let Awaited { rank, incarnation, connection, pidfd } = &self.awaited[at];
            // Asked before the packets are read: what a dead process has sent is all there.
            let ended = pidfd.as_ref().is_some_and(|fd| Watch::has_ended(fd.as_fd()));
            let answer = match connect::hear_answer(connection, now) {
                Ok(None) if ended => Answer::Gone(Departure::Died, None),
                Ok(None) => continue,
                Ok(Some((greeting, fds)))
                    if (greeting.rank as usize, greeting.incarnation) == (*rank, *incarnation) =>
                {
                    let rank = *rank;
                    let Awaited { connection, .. } = self.stop_awaiting(at, watch);
                    let newcomer = self.newcomer(&greeting, fds, Arc::new(connection));
                    let answer = match newcomer {
                        Ok(newcomer) => Answer::Met(Box::new(newcomer)),
                        Err(problem) => Answer::Gone(Departure::Died, Some(problem)),
                    };
                    return Some((rank, answer));
                }
                Ok(Some(_)) => Answer::Gone(Departure::Died, Some("it says that it is another rank".into())),
                Err(connect::Unheard::Leaving(departure)) => Answer::Gone(departure, None),
                Err(connect::Unheard::Gone) => Answer::Gone(Departure::Died, None),
                Err(connect::Unheard::Problem(problem)) => Answer::Gone(Departure::Died, Some(problem)),
            };
            let rank = self.stop_awaiting(at, watch).rank;
            return Some((rank, answer));
        }
        None
    }

    fn stop_awaiting(&mut self, at: usize, watch: &Watch) -> Awaited {
        let awaited = self.awaited.remove(at);
        watch.unattend(awaited.connection.as_fd());
        awaited
    }

    /// Tells all at the door, and all who have not answered, that we leave: as the peers are told, finished or not.
    pub(crate) fn send_goodbyes(&self, finished: bool) {
        let callers = self.callers.iter().map(|caller| &caller.connection);
        for connection in callers.chain(self.awaited.iter().map(|awaited| &awaited.connection)) {
            // Who can't be told sees a death.
            let _ = if finished { connection.send_goodbye() } else { connection.send_dropped() };
        }
    }
}

impl Newcomer {
    /// Links the port with it; the mappings of its predecessor are unmapped. The connection, to be answered.
    ///
    /// # Errors
    /// It can't be watched; nothing is done.
    pub(crate) fn enter(self, port: &mut Port, watch: &mut Watch) -> Result<(Arc<Connection>, Met), Error> {
        let Self { rank, met, link, memory, connection, pidfd, .. } = self;
        drop(watch.remove(rank));
        watch.add(rank, Arc::clone(&connection), pidfd)?;
        let host = port.host_mut();
        host.memories[rank] = memory;
        host.connections[rank] = Arc::downgrade(&connection);
        if !met.expedited {
            port.fence_always();
        }
        link.open(port, rank as u32);
        Ok((connection, met))
    }
}

/// Whether somebody who greets like this can be a rank that was started again.
fn check(world: &World, greeting: &Greeting, lives: &mut impl FnMut(usize) -> bool) -> Result<(), String> {
    let rank = greeting.rank as usize;
    if greeting.incarnation == 0 || rank >= world.geometry.peers as usize || greeting.rank == world.rank {
        return Err("no such rank is awaited here".into());
    }
    greeting::compare(&world.geometry, &greeting.geometry)?;
    if lives(rank) {
        return Err(format!("rank {rank} lives, and has not been started again"));
    }
    Ok(())
}

fn send_away(connection: &Connection, problem: &str) {
    // A nicety: the stranger may be gone.
    let _ = connection.send(&greeting::refusal(problem), &[], Instant::now());
}

#[cfg(test)]
mod tests;
