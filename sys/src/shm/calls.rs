//! Calls: how processes that opened alone connect with each other inside a machine.
//!
//! The caller connects to the socket in the callee's address and sends a *call*: its handshake, its address and the
//! number of the call. The callee maps the caller's segments and *answers* in the same form; the caller maps the
//! callee's, and *confirms*. Only then either uses the connection: until the confirmation the caller may have abandoned
//! its call, because the callee called as well. The table of peers ([`nemesia_core::peers`]) decides what becomes of
//! each packet; this module carries the packets, and never waits for one.
//!
//! | file | contents |
//! |---|---|
//! | `calls.rs` | calls of others: read, refused, answered, confirmed |
//! | `calls/outgoing.rs` | our own calls |
//!
//! A stranger is any process of the machine. It costs one place of [`MOST_CALLERS`] until its call has come, for a
//! limited time. The kernel's word about its user and process is compared with the address that it claims.

mod outgoing;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nemesia_core::engine::Failure;
use nemesia_core::peers::{PeerAddress, PeerRef};

use super::address::ProcessAddress;
use super::handshake::{self, CONFIRMED, CallPacket, ShmHandshake};
use super::joining::JoiningProcess;
use super::peer::{ShmWorld, Unheard, hear_packet, send_away};
use super::segments::OwnSegments;
use crate::error::Error;
use crate::os::{Departure, ForeignFd, HandoffConnection, HandoffListener, ShmError, Watch, closer, random};

pub(crate) use outgoing::CallOutcome;
use outgoing::OutgoingCall;

/// The most connections of others whose calls are not decided.
const MOST_CALLERS: usize = 256;
/// The connections that are accepted before the present ones are read.
const AT_ONCE: usize = 64;
/// The time within which a call, and its confirmation, must arrive.
const PATIENCE: Duration = Duration::from_secs(5);
/// The same for calls while there is no room for more connections.
const SHORT_PATIENCE: Duration = Duration::from_millis(200);

/// A connection that has not sent its call.
#[derive(Debug)]
struct SilentCaller {
    connection: HandoffConnection,
    since: Instant,
}

/// A call of another process, whose address is the caller's as far as the kernel can tell.
#[derive(Debug)]
pub(crate) struct HeardCall {
    pub(crate) address: PeerAddress,
    /// The number of the call.
    pub(crate) number: u64,
    handshake: ShmHandshake,
    descriptors: Vec<ForeignFd>,
    connection: HandoffConnection,
    since: Instant,
}

/// A process that has our answer, and has not confirmed it.
#[derive(Debug)]
struct AnsweredCall {
    peer: PeerRef,
    joining: JoiningProcess,
    since: Instant,
}

/// The calls of one process.
#[derive(Debug)]
pub(crate) struct Calls {
    own: PeerAddress,
    place: ProcessAddress,
    world: Arc<ShmWorld>,
    ours: Arc<OwnSegments>,
    listener: HandoffListener,
    /// In the order of their arrival.
    silent: Vec<SilentCaller>,
    heard: VecDeque<HeardCall>,
    answered: Vec<AnsweredCall>,
    outgoing: Vec<OutgoingCall>,
    /// Calls of peers that we call as well, where our call counts. They stay open until ours is answered: a closed
    /// connection would look like the end of the caller's peer.
    parked: Vec<(PeerRef, HandoffConnection)>,
    /// More connections may be pending.
    more: bool,
}

impl HeardCall {
    /// Returns whether the caller has abandoned it.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.connection.has_disconnected()
    }
}

impl Calls {
    /// Listens for calls. `remote` is where this process takes calls from other machines.
    pub(super) fn listen(
        world: Arc<ShmWorld>,
        ours: Arc<OwnSegments>,
        watch: &mut Watch,
        remote: Option<SocketAddr>,
    ) -> Result<Self, Error> {
        let listener = HandoffListener::bind()?;
        watch.attend(listener.as_fd())?;
        // A call wakes a process that sleeps.
        watch.expect_sleep()?;
        let apart = if world.config.local { None } else { Some(u64::from_le_bytes(random()?)) };
        let place = ProcessAddress::here(&listener, world.epoch, remote, apart);
        Ok(Self {
            own: place.encode(),
            place,
            world,
            ours,
            listener,
            silent: Vec::new(),
            heard: VecDeque::new(),
            answered: Vec::new(),
            outgoing: Vec::new(),
            parked: Vec::new(),
            more: false,
        })
    }

    /// Returns the address of this process.
    pub(crate) const fn own(&self) -> &PeerAddress {
        &self.own
    }

    /// Checks an address that another process has given. Returns where to call the process, if it runs on another
    /// machine.
    pub(crate) fn check(&self, address: &PeerAddress) -> Result<Option<SocketAddr>, String> {
        let place = ProcessAddress::decode(address)?;
        if place.shares_machine(&self.place) {
            return Ok(None);
        }
        let lacks = match (self.place.remote(), place.remote()) {
            (Some(_), Some(remote)) => return Ok(Some(remote)),
            (None, _) => "this endpoint takes no part in the network",
            (Some(_), None) => "that endpoint takes no part in the network",
        };
        Err(format!(
            "it is the address of another machine or network namespace, and {lacks}: set NEMESIA_JOB_KEY_FILE in \
             both processes, and NEMESIA_NET to auto or tcp"
        ))
    }

    /// Returns whether there are connections to look at, even if no descriptor is readable.
    pub(crate) fn is_busy(&self) -> bool {
        let waiting = [self.silent.len(), self.heard.len(), self.answered.len(), self.outgoing.len()];
        self.more || waiting.into_iter().any(|count| count > 0)
    }

    /// Accepts pending connections, and reads the calls that have come.
    pub(crate) fn hear(&mut self, watch: &Watch) {
        let now = Instant::now();
        self.accept(now, watch);
        let patience = if self.more { SHORT_PATIENCE } else { PATIENCE };
        let mut at = 0;
        while let Some(SilentCaller { connection, since }) = self.silent.get(at) {
            let heard = match hear_packet(connection, now, CallPacket::decode) {
                Ok(None) if now.duration_since(*since) < patience => {
                    at += 1;
                    continue;
                }
                Ok(heard) => heard,
                Err(Unheard::Problem(problem)) => {
                    send_away(connection, &problem);
                    None
                }
                Err(Unheard::Leaving(_) | Unheard::Gone) => None,
            };
            let SilentCaller { connection, since } = self.silent.remove(at);
            watch.unattend(connection.as_fd());
            let Some((packet, descriptors)) = heard else { continue };
            let CallPacket { handshake, address, calls: number } = packet;
            match self.verify(&packet, &connection) {
                Ok(()) => {
                    let call = HeardCall { address, number, handshake, descriptors, connection, since };
                    self.heard.push_back(call);
                }
                Err(problem) => send_away(&connection, &problem),
            }
        }
    }

    fn accept(&mut self, now: Instant, watch: &Watch) {
        for _ in 0..AT_ONCE {
            if self.silent.len() + self.heard.len() + self.answered.len() >= MOST_CALLERS
                || !closer::has_room()
            {
                self.more = true;
                return;
            }
            let Ok(connection) = self.listener.accept(now) else {
                self.more = false;
                return;
            };
            // A process of another user is not heard. Without room in the set, the time limit ends the caller.
            if connection.require_same_user().is_ok() {
                let _ = watch.attend(connection.as_fd());
                self.silent.push(SilentCaller { connection, since: now });
            }
        }
        self.more = true;
    }

    /// Checks that the sender of a packet is the process whose address it claims.
    fn verify(&self, packet: &CallPacket, connection: &HandoffConnection) -> Result<(), String> {
        let claimed = ProcessAddress::decode(&packet.address)?;
        claimed.check(&self.place, connection)?;
        if claimed.epoch != packet.handshake.epoch {
            return Err("its address is that of an earlier process".into());
        }
        handshake::compare((self.world.size, &self.world.geometry), &packet.handshake)
    }

    /// Returns the number of calls to decide.
    pub(crate) fn heard(&self) -> usize {
        self.heard.len()
    }

    /// Returns the next call to decide.
    pub(crate) fn next_call(&mut self) -> Option<HeardCall> {
        self.heard.pop_front()
    }

    /// Keeps a call to be decided later, for a limited time.
    pub(crate) fn postpone(&mut self, call: HeardCall) {
        if call.since.elapsed() < PATIENCE && !call.is_abandoned() {
            self.heard.push_back(call);
        }
    }

    /// Keeps the connection of a call that does not count, until ours is answered or has failed.
    /// A peer that calls once more has given up its call before.
    pub(crate) fn park(&mut self, peer: PeerRef, call: HeardCall) {
        self.unpark(peer);
        self.parked.push((peer, call.connection));
    }

    /// Refuses a call.
    pub(crate) fn refuse(&self, call: &HeardCall, problem: &str) {
        send_away(&call.connection, problem);
    }

    /// Answers a call. `number` is the number by which this process knows the peer, and `calls` the number of calls
    /// that it has made.
    ///
    /// # Errors
    /// What is wrong with the caller's segments; it is refused. `Ok(false)` if it has abandoned the call.
    pub(crate) fn answer(
        &mut self,
        peer: PeerRef,
        call: HeardCall,
        (number, calls): (u32, u64),
        watch: &Watch,
    ) -> Result<bool, String> {
        let HeardCall { handshake, descriptors, connection, .. } = call;
        let connection = Arc::new(connection);
        let answered = self.ours.link(number).map_err(|error| error.to_string()).and_then(|link| {
            let (ours, said) = ((&*self.world, &self.ours), (&handshake, descriptors));
            let mut joining = JoiningProcess::new(ours, link, said, Arc::clone(&connection))?;
            let packet = CallPacket { handshake: self.world.handshake(number, 0), address: self.own, calls };
            let descriptors = self.ours.descriptors(joining.own_link());
            let sent = connection.send(&packet.encode(), &descriptors, Instant::now());
            // The caller has its copy, and no other process needs one.
            joining.close_descriptor();
            sent.map(|()| joining).map_err(|error| error.to_string())
        });
        match answered {
            Ok(joining) => {
                let _ = watch.attend(connection.as_fd());
                self.answered.push(AnsweredCall { peer, joining, since: Instant::now() });
                Ok(true)
            }
            Err(_) if connection.has_disconnected() => Ok(false),
            Err(problem) => {
                send_away(&connection, &problem);
                Err(problem)
            }
        }
    }

    /// Returns the next caller that has confirmed our answer, with its connection, or the reason why it never will.
    pub(crate) fn next_confirmed(
        &mut self,
        watch: &Watch,
    ) -> Option<(PeerRef, Result<JoiningProcess, Failure>)> {
        let now = Instant::now();
        let heard = |it: &AnsweredCall| {
            let mut buffer = [0; handshake::MOST_BYTES];
            match it.joining.connection.recv(&mut buffer, 0, now) {
                Ok((len, _)) if &buffer[..len] == CONFIRMED => Some(Ok(())),
                Ok((len, _)) => {
                    let announced = HandoffConnection::departure_in(&buffer[..len]);
                    Some(Err(announced.map_or(Failure::Unreachable, failure_of)))
                }
                Err(ShmError::TimedOut { .. }) if now.duration_since(it.since) < PATIENCE => None,
                Err(ShmError::PeerGone { .. }) => Some(Err(Failure::Died)),
                Err(_) => Some(Err(Failure::Unreachable)),
            }
        };
        let mut answered = self.answered.iter().enumerate();
        let (at, confirmed) = answered.find_map(|(at, it)| Some((at, heard(it)?)))?;
        let AnsweredCall { peer, joining, .. } = self.answered.remove(at);
        watch.unattend(joining.connection.as_fd());
        Some((peer, confirmed.map(|()| joining)))
    }

    /// Announces to a peer with which a connection is under way that this process does not want it any more.
    pub(crate) fn send_goodbye_to(&self, peer: PeerRef) {
        let answered = self.answered.iter().filter(|it| it.peer == peer).map(|it| &*it.joining.connection);
        let outgoing = self.outgoing.iter().filter(|it| it.peer == peer).filter_map(OutgoingCall::connection);
        let parked =
            self.parked.iter().filter(|(parked, _)| *parked == peer).map(|(_, connection)| connection);
        // A process that the packet does not reach sees a death.
        answered.chain(outgoing).chain(parked).for_each(|connection| _ = connection.send_goodbye());
    }

    /// Ends whatever is under way with a peer. Its connection, if there is one, is not concerned.
    pub(crate) fn abandon(&mut self, peer: PeerRef, watch: &Watch) {
        self.outgoing.retain(|call| {
            if call.peer == peer {
                call.stop(watch);
            }
            call.peer != peer
        });
        self.answered.retain(|it| {
            if it.peer == peer {
                watch.unattend(it.joining.connection.as_fd());
            }
            it.peer != peer
        });
        self.unpark(peer);
    }

    fn unpark(&mut self, peer: PeerRef) {
        self.parked.retain(|(parked, _)| *parked != peer);
    }

    /// Announces to all with whom a connection is under way that this process leaves.
    pub(crate) fn send_goodbyes(&self, finished: bool) {
        let answered = self.answered.iter().map(|it| &*it.joining.connection);
        let outgoing = self.outgoing.iter().filter_map(OutgoingCall::connection);
        let parked = self.parked.iter().map(|(_, connection)| connection);
        for connection in answered.chain(outgoing).chain(parked) {
            // A process that the packet does not reach sees a death.
            let _ = if finished { connection.send_goodbye() } else { connection.send_dropped() };
        }
    }
}

/// Returns the failure of the operations with a peer that has announced its departure.
pub(crate) const fn failure_of(departure: Departure) -> Failure {
    match departure {
        Departure::Died => Failure::Died,
        Departure::Finished => Failure::Finished,
        Departure::Dropped => Failure::Dropped,
    }
}

#[cfg(test)]
mod tests;
