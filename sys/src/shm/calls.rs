//! Calls: how processes connect with each other inside a machine, if they opened alone, if their world connects on
//! demand, or if one is not of the other's world.
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
//!
//! A caller that has our answer may be stopped before it confirms, for any time. While it lives, its place is kept as
//! long as no other process needs it; then the oldest such calls are *given up* after [`PATIENCE`]. A caller whose call
//! was given up, or was closed without an answer, calls once more. It never takes this for the end of this process.

mod outgoing;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nemesia_core::engine::Failure;
use nemesia_core::peers::{PeerAddress, PeerRef};

use super::address::ProcessAddress;
use super::handshake::{self, CONFIRMED, CallPacket, CallerPacket, LeavePacket, ShmHandshake};
use super::joining::JoiningProcess;
use super::peer::{ShmWorld, Unheard, hear_packet, map, send_away};
use super::segments::{OwnSegments, Unjoined};
use crate::error::Error;
use crate::os::shortage::{Shortage, arrived, listening};
use crate::os::{Departure, ForeignFd, HandoffConnection, HandoffListener, ShmError, Watch, closer, random};

pub(crate) use outgoing::CallOutcome;
use outgoing::OutgoingCall;

/// The most connections of others whose calls are not decided.
const MOST_CALLERS: usize = 256;
/// The connections of this user that are accepted before the present ones are read.
const AT_ONCE: usize = 64;
/// The connections of all users that are accepted before the present ones are read: as many as the kernel queues.
const MOST_AT_ONCE: usize = 4096;
/// The time within which a call must arrive, and a confirmation if there are too many callers.
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
    /// Some of them were answered less than [`PATIENCE`] ago. The others are looked at less often.
    expects_soon: bool,
    outgoing: Vec<OutgoingCall>,
    /// Calls of peers that we call as well, where our call counts. They stay open until ours is answered: a closed
    /// connection would look like the end of the caller's peer.
    parked: Vec<(PeerRef, HandoffConnection)>,
    /// More connections may be pending.
    more: bool,
    /// Processes that leave, and have announced it. Only in a world.
    leavers: Vec<LeavePacket>,
    shortage: Shortage,
}

impl AnsweredCall {
    /// Returns whether the caller has confirmed, or why it never will; `None` as long as neither is known.
    fn hear_confirmation(&self, now: Instant) -> Option<Result<(), Failure>> {
        // Checked before the packet is read: a dead process sends no further packets.
        let ended = self.joining.has_ended();
        let mut buffer = [0; handshake::MOST_BYTES];
        match self.joining.connection.recv(&mut buffer, 0, now) {
            Ok((len, _)) if &buffer[..len] == CONFIRMED => Some(Ok(())),
            Ok((len, _)) => {
                let announced = HandoffConnection::departure_in(&buffer[..len]);
                Some(Err(announced.map_or(Failure::Unreachable, failure_of)))
            }
            Err(ShmError::TimedOut { .. }) if !ended => None,
            Err(ShmError::TimedOut { .. } | ShmError::PeerGone { .. }) => Some(Err(Failure::Died)),
            Err(_) => Some(Err(Failure::Unreachable)),
        }
    }

    fn is_late(&self, now: Instant) -> bool {
        now.duration_since(self.since) >= PATIENCE
    }
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
        (listener, remote): (HandoffListener, Option<SocketAddr>),
        watch: &mut Watch,
    ) -> Result<Self, Error> {
        let place = Self::place(&world, &listener)?;
        let place = remote.map_or(place, |remote| place.with_remote(remote));
        Self::listen_as(world, ours, (listener, place), watch)
    }

    /// Returns the address of this process if it listens here, and takes no calls from other machines. Each call
    /// returns another one if this process shares memory with no other.
    pub(super) fn place(world: &ShmWorld, listener: &HandoffListener) -> Result<ProcessAddress, Error> {
        let apart = if world.config.local { None } else { Some(u64::from_le_bytes(random()?)) };
        Ok(ProcessAddress::here(listener, world.epoch, None, apart))
    }

    /// As [`Calls::listen`], for a process that has its address.
    pub(super) fn listen_as(
        world: Arc<ShmWorld>,
        ours: Arc<OwnSegments>,
        (listener, place): (HandoffListener, ProcessAddress),
        watch: &mut Watch,
    ) -> Result<Self, Error> {
        watch.attend(listener.as_fd())?;
        // A call wakes a process that sleeps.
        watch.expect_sleep()?;
        let shortage = Shortage::among(u64::from(world.size - 1));
        Ok(Self {
            own: place.encode(),
            place,
            world,
            ours,
            listener,
            silent: Vec::new(),
            heard: VecDeque::new(),
            answered: Vec::new(),
            expects_soon: false,
            outgoing: Vec::new(),
            parked: Vec::new(),
            more: false,
            leavers: Vec::new(),
            shortage,
        })
    }

    /// Returns the address of this process.
    pub(crate) const fn own(&self) -> &PeerAddress {
        &self.own
    }

    /// Makes a connection to a process of this machine, as a caller does.
    #[cfg(test)]
    pub(crate) fn dial(address: &PeerAddress) -> Result<HandoffConnection, String> {
        let place = ProcessAddress::decode(address)?;
        let connection = HandoffConnection::connect(&place.socket(), Instant::now() + 10 * PATIENCE);
        connection.map_err(|error| error.to_string())
    }

    /// Returns where a process takes calls from other machines.
    pub(crate) fn remote_of(address: &PeerAddress) -> Option<SocketAddr> {
        ProcessAddress::decode(address).ok()?.remote()
    }

    /// Returns the number of connections of others whose calls are not confirmed, and its limit.
    #[cfg(test)]
    pub(crate) fn callers(&self) -> (usize, usize) {
        (self.silent.len() + self.heard.len() + self.answered.len(), MOST_CALLERS)
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
        let waiting = [self.silent.len(), self.heard.len(), self.outgoing.len()];
        self.more || self.expects_soon || waiting.into_iter().any(|count| count > 0)
    }

    fn has_place(&self) -> bool {
        self.silent.len() + self.heard.len() + self.answered.len() < MOST_CALLERS
    }

    /// Accepts pending connections, and reads the calls that have come.
    pub(crate) fn hear(&mut self, watch: &Watch) {
        let now = Instant::now();
        self.accept(now, watch);
        let (limit, patience) = (self.limit(), if self.more { SHORT_PATIENCE } else { PATIENCE });
        let mut at = 0;
        while let Some(SilentCaller { connection, since }) = self.silent.get(at) {
            let heard = match hear_packet(connection, now, CallerPacket::decode) {
                Ok(None) if now.duration_since(*since) < patience => {
                    at += 1;
                    continue;
                }
                Ok(heard) => heard,
                Err(Unheard::Problem(problem)) => {
                    send_away(connection, &problem);
                    None
                }
                Err(Unheard::Shortage(error)) => {
                    self.shortage.record_packet(&error, watch, connection.as_fd());
                    if let Some(text) = self.shortage.lasting(limit) {
                        send_away(connection, text);
                    } else if now.duration_since(*since) < patience {
                        at += 1;
                        continue;
                    }
                    // Unless it was sent away, it calls once more.
                    None
                }
                Err(Unheard::Leaving(_) | Unheard::Gone) => None,
            };
            let SilentCaller { connection, since } = self.silent.remove(at);
            watch.unattend(connection.as_fd());
            let (packet, descriptors) = match heard {
                Some((CallerPacket::Call(packet), descriptors)) => (packet, descriptors),
                Some((CallerPacket::Leave(leave), _)) => {
                    self.hear_leave(leave, &connection);
                    continue;
                }
                None => continue,
            };
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

    /// Records that a process leaves, if the announcement is its own.
    fn hear_leave(&mut self, leave: LeavePacket, connection: &HandoffConnection) {
        let claimed = ProcessAddress::decode(&leave.address);
        let is_genuine = claimed.is_ok_and(|claimed| claimed.check(&self.place, connection).is_ok());
        if is_genuine && self.leavers.len() < MOST_CALLERS {
            self.leavers.push(leave);
        }
    }

    /// Returns the next process that has announced that it leaves, without ever having been connected.
    pub(crate) fn next_leaver(&mut self) -> Option<(PeerAddress, Departure)> {
        self.leavers.pop().map(|LeavePacket { address, departure }| (address, departure))
    }

    /// Returns the next report of a shortage of this process, which keeps it from connecting for now.
    pub(crate) const fn next_shortage(&mut self) -> Option<String> {
        self.shortage.next_report()
    }

    /// Returns the number of connections of others that could not be accepted.
    pub(crate) const fn failed_accepts(&self) -> u64 {
        self.shortage.failed()
    }

    /// Returns whether connections of others may be pending that were not accepted.
    pub(crate) const fn has_more(&self) -> bool {
        self.more
    }

    /// Announces to a process, with which there is no connection, that this one leaves. Does not wait for the process;
    /// but if its queue of connections is full, until the deadline for room there.
    pub(crate) fn announce_leave(&self, address: &PeerAddress, departure: Departure, deadline: Instant) {
        let Ok(place) = ProcessAddress::decode(address) else { return };
        // If nothing listens there, the process has ended.
        let Ok(connection) = HandoffConnection::connect(&place.socket(), deadline) else { return };
        if connection.require_same_user().is_ok() {
            let leave = LeavePacket { address: self.own, departure };
            let _ = connection.send(&leave.encode(), &[], deadline);
        }
    }

    fn accept(&mut self, now: Instant, watch: &Watch) {
        let mut ours = 0;
        for _ in 0..MOST_AT_ONCE {
            if ours == AT_ONCE || !self.has_place() || !closer::has_room() {
                break;
            }
            let Self { listener, shortage, .. } = self;
            let listen = listening(watch, listener.as_fd());
            let Some(connection) = shortage.next_connection(now, listen, || arrived(listener.accept(now)))
            else {
                self.more = false;
                return;
            };
            // A process of another user is not heard. Without room in the set, the time limit ends the caller.
            if connection.require_same_user().is_ok() {
                ours += 1;
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
        handshake::compare_sizes(&self.world.geometry, &packet.handshake)
    }

    /// Returns the number of calls to decide.
    pub(crate) fn heard(&self) -> usize {
        self.heard.len()
    }

    /// Returns the next call to decide.
    pub(crate) fn next_call(&mut self) -> Option<HeardCall> {
        self.heard.pop_front()
    }

    /// Keeps a call to be decided later, for a limited time. Then its connection is closed: the caller calls once more.
    pub(crate) fn postpone(&mut self, call: HeardCall) {
        if call.since.elapsed() < PATIENCE && !call.is_abandoned() {
            self.heard.push_back(call);
        }
    }

    /// Keeps the connection of a call that does not count, until ours is answered or has failed. A peer that calls once
    /// more has given up its call before.
    pub(crate) fn park(&mut self, peer: PeerRef, call: HeardCall) {
        self.unpark(peer);
        self.parked.push((peer, call.connection));
    }

    /// Refuses a call.
    pub(crate) fn refuse(&self, call: &HeardCall, problem: &str) {
        send_away(&call.connection, problem);
    }

    /// Answers a call. `number` is the number by which this process knows the peer, `calls` the number of calls that it
    /// has made, and `granted` the units of credit that the caller has from the start: it may send as soon as it has
    /// confirmed.
    ///
    /// # Errors
    /// What is wrong with the caller's segments, or that descriptors have lacked here for too long; it is refused.
    /// `Ok(false)` if it has abandoned the call, or calls once more because descriptors lack here.
    pub(crate) fn answer(
        &mut self,
        peer: PeerRef,
        call: HeardCall,
        (number, calls, granted): (u32, u64, u64),
        watch: &Watch,
    ) -> Result<bool, String> {
        let HeardCall { handshake, descriptors, connection, .. } = call;
        let connection = Arc::new(connection);
        let answered = self.ours.link(number).map_err(Unjoined::from).and_then(|link| {
            let mapped = map(&self.world, &connection, &handshake, &descriptors)?;
            let (ours, said) = ((&self.world.config, &self.ours), (&handshake, mapped));
            let mut joining = JoiningProcess::new(ours, link, said, Arc::clone(&connection))?;
            joining.grant(granted);
            let packet = CallPacket { handshake: self.world.handshake(number, 0), address: self.own, calls };
            let descriptors = self.ours.descriptors(joining.own_link());
            let sent = connection.send(&packet.encode(), &descriptors, Instant::now());
            // The caller has its copy, and no other process needs one.
            joining.close_descriptor();
            sent.map(|()| joining).map_err(Unjoined::from)
        });
        match answered {
            Ok(joining) => {
                let _ = watch.attend(connection.as_fd());
                self.answered.push(AnsweredCall { peer, joining, since: Instant::now() });
                self.expects_soon = true;
                Ok(true)
            }
            Err(_) if connection.has_disconnected() => Ok(false),
            Err(unjoined) => {
                let problem = match unjoined {
                    Unjoined::Shortage(error) => self.lack(&error),
                    Unjoined::Problem(problem) => Some(problem),
                };
                let Some(problem) = problem else { return Ok(false) };
                send_away(&connection, &problem);
                Err(problem)
            }
        }
    }

    /// Returns the time after which a connection that is not made is given up.
    fn limit(&self) -> Duration {
        Duration::from_secs(self.world.config.timeout_seconds.into())
    }

    /// Records a shortage of this process. Returns what lacks, with the remedy, if the connection is to be given up:
    /// both processes may lack something, so that no single call lasts for long.
    fn lack(&mut self, error: &ShmError) -> Option<String> {
        self.shortage.record(error);
        self.shortage.lasting(self.limit()).map(str::to_owned)
    }

    /// Returns the next caller that has confirmed our answer, with its connection, or the reason why it never will.
    pub(crate) fn next_confirmed(
        &mut self,
        watch: &Watch,
    ) -> Option<(PeerRef, Result<JoiningProcess, Failure>)> {
        let now = Instant::now();
        let mut answered = self.answered.iter().enumerate();
        let decided = answered.find_map(|(at, it)| Some((at, it.hear_confirmation(now)?)));
        // The last one is the youngest.
        self.expects_soon = self.answered.last().is_some_and(|it| !it.is_late(now));
        let (at, confirmed) = decided?;
        let AnsweredCall { peer, joining, .. } = self.answered.remove(at);
        watch.unattend(joining.connection.as_fd());
        if confirmed.is_ok() {
            self.shortage.end();
        }
        Some((peer, confirmed.map(|()| joining)))
    }

    /// Gives up the oldest call whose caller lives and has not confirmed our answer within [`PATIENCE`], so that
    /// another process can have its place. Returns the peer; `None` if there is no such call.
    pub(crate) fn give_up_one(&mut self, watch: &Watch) -> Option<PeerRef> {
        let now = Instant::now();
        let at =
            self.answered.iter().position(|it| it.is_late(now) && it.hear_confirmation(now).is_none())?;
        let AnsweredCall { peer, joining, .. } = self.answered.remove(at);
        watch.unattend(joining.connection.as_fd());
        joining.connection.refuse_packets();
        let mut buffer = [0; handshake::MOST_BYTES];
        if joining.connection.recv(&mut buffer, 0, now).is_ok_and(|(len, _)| &buffer[..len] == CONFIRMED) {
            // It confirmed between the last look and this one, and sees that the connection has ended. Any later
            // confirmation fails at the caller, which then calls once more.
            let _ = joining.connection.send_dropped();
        }
        Some(peer)
    }

    /// Returns whether callers wait for the place of a call that can be given up.
    pub(crate) fn is_full(&self) -> bool {
        !self.answered.is_empty() && !self.has_place()
    }

    /// Lets the time pass that an answered call has for its confirmation.
    #[cfg(test)]
    pub(crate) fn expire(&mut self) {
        self.answered.iter_mut().for_each(|it| it.since = it.since.checked_sub(PATIENCE).unwrap());
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
