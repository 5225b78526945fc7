//! Calls: how processes connect with each other inside a machine, if they opened alone, if their world connects on
//! demand, or if one is not of the other's world.
//!
//! The machine of links ([`nemesia_core::link::machine`]) decides. This module carries its messages and descriptors
//! over hand-off sockets, reports what is lost, and makes the segments that both ends offer each other. It never waits.
//!
//! | file | contents |
//! |---|---|
//! | `calls.rs` | connections of others, messages, losses and time |
//! | `calls/owner.rs` | what the machine asks for: segments, and the kernel's word about a caller |
//!
//! A stranger is any process of the machine. It costs one place until its call has come, for a limited time. The
//! kernel's word about its user and process is compared with the address that it claims.
//!
//! A caller that has our answer may be stopped before it confirms, for any time. While it lives, its place is kept as
//! long as no other process needs it.

mod owner;

use std::net::SocketAddr;
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nemesia_core::engine::Failure;
use nemesia_core::link::address::LinkAddress;
use nemesia_core::link::bytes::MOST_LINK_BYTES;
use nemesia_core::link::machine::slots::{CarrierSlot, LinkSlot, LinkStorage, RankSlot};
use nemesia_core::link::machine::table::{LinkProcess, Links};
use nemesia_core::link::machine::terms::{
    CarrierKind, CarrierRef, DialFault, LinkEnding, LinkError, LinkLimits, LinkRef, LinkStage, RankClaim,
};
use nemesia_core::link::wire::{LeaveManner, LinkService};
use nemesia_core::peers::PeerAddress;
use nemesia_core::slab::{List, Slot};

use super::address;
use super::joining::JoiningProcess;
use super::peer::ShmWorld;
use super::segments::{MOST_DESCRIPTORS, OwnSegments};
use crate::error::Error;
use crate::os::shortage::{Shortage, arrived, listening};
use crate::os::{Departure, HandoffConnection, HandoffListener, ShmError, Watch, closer, random};
use owner::{CallDesk, CallOwner, CallParts, HandOffCarrier, RefuseAll};

/// The connections of this user that are accepted before the present ones are read.
const AT_ONCE: usize = 64;
/// The connections of all users that are accepted before the present ones are read: as many as the kernel queues.
const MOST_AT_ONCE: usize = 4096;
/// The links whose time is looked at in one look.
const BUDGET: usize = 16;
/// The lists by which the links of addresses are found.
const BUCKETS: usize = 256;
/// All links of this module.
const ENGINE: (LinkService, u32) = (LinkService::Engine, 0);

/// Storage of vectors, which grow.
#[derive(Debug)]
struct GrowingLinks;

impl LinkStorage for GrowingLinks {
    type Links = Vec<Slot<LinkSlot>>;
    type Buckets = Vec<List>;
    type Carriers = Vec<Slot<CarrierSlot>>;
    type Ranks = Vec<RankSlot>;
}

/// What the owner of the calls decides about their authors.
pub(crate) trait CallTerms {
    /// Returns the descriptors that end a sleep of this process.
    fn watch(&self) -> &Watch;

    /// Decides about a call of this process, as far as the kernel can tell.
    ///
    /// # Errors
    /// The reason why it is refused, and whether the same call can succeed later.
    fn decide(&mut self, caller: &PeerAddress) -> Result<CallGrant, (String, bool)>;

    /// A process with this address has sent a message over a new connection: a former one may have ended.
    fn hear_from(&mut self, peer: &PeerAddress);
}

/// What a caller is granted.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CallGrant {
    /// The number by which this process knows the caller from now on.
    pub(crate) number: u32,
    /// The credit that the caller has from the start.
    pub(crate) units: u64,
    /// For a restarted rank, the number of agreements so far.
    pub(crate) word: u64,
}

/// What has become of a call.
#[derive(Debug)]
pub(crate) enum CallOutcome {
    /// Packets may pass.
    Opened(Box<JoiningProcess>),
    /// The call has ended; with words about it if there are some.
    Ended(LinkEnding, String),
    /// A call of the peer that was answered, or is refused with these words, is over. Nothing has happened.
    Undone(String),
}

/// The calls of one process.
#[derive(Debug)]
pub(crate) struct Calls {
    links: Links<GrowingLinks>,
    desk: CallDesk,
    listener: HandoffListener,
    /// The time of the machine is counted from here.
    start: Instant,
    /// The links that have ended, and of which nothing is left: they are freed by the next look.
    freed: Vec<LinkRef>,
    /// More connections may be pending.
    more: bool,
}

impl Calls {
    /// Listens for calls. `remote` is where this process takes calls from other machines.
    pub(super) fn listen(
        world: Arc<ShmWorld>,
        ours: Arc<OwnSegments>,
        (listener, remote): (HandoffListener, Option<SocketAddr>),
        watch: &mut Watch,
    ) -> Result<Self, Error> {
        let place = world.address(&listener);
        let place = remote.map_or(place, |remote| address::with_remote(place, remote));
        Self::listen_as(world, ours, (listener, place), &[], watch)
    }

    /// As [`Calls::listen`], for a process that has its address. The ranks of its world have these addresses, and were
    /// started so often before.
    pub(super) fn listen_as(
        world: Arc<ShmWorld>,
        ours: Arc<OwnSegments>,
        (listener, place): (HandoffListener, LinkAddress),
        ranks: &[(PeerAddress, u64)],
        watch: &mut Watch,
    ) -> Result<Self, Error> {
        watch.attend(listener.as_fd())?;
        // A call wakes a process that sleeps.
        watch.expect_sleep()?;
        let rank = (!ranks.is_empty()).then_some(world.rank);
        let incarnation = world.incarnation;
        let process = LinkProcess { rank, incarnation, ..LinkProcess::alone(place) };
        let ranks = ranks.iter().map(|(address, started)| RankSlot::new(*address, *started)).collect();
        let lent = (Vec::new(), vec![List::new(); BUCKETS], Vec::new(), ranks);
        let limit = Duration::from_secs(world.config.timeout_seconds.into());
        let links = Links::new(process, LinkLimits::new(limit), lent, [random()?, random()?]);
        let shortage = Shortage::among(u64::from(world.size - 1));
        let desk = CallDesk::new((world, ours), place, shortage);
        let (freed, start) = (Vec::new(), Instant::now());
        Ok(Self { links, desk, listener, start, freed, more: false })
    }

    /// Returns the address of this process.
    pub(crate) const fn own(&self) -> &PeerAddress {
        &self.desk.own
    }

    /// Makes a connection to a process of this machine, as a caller does.
    #[cfg(test)]
    pub(crate) fn dial(address: &PeerAddress) -> Result<HandoffConnection, String> {
        let place = address::decode(address)?;
        let until = Instant::now() + Duration::from_secs(50);
        HandoffConnection::connect(&address::socket(&place.token), until).map_err(|error| error.to_string())
    }

    /// Returns where a process takes calls from other machines.
    pub(crate) fn remote_of(peer: &PeerAddress) -> Option<SocketAddr> {
        address::remote(&LinkAddress::decode(peer).ok()?)
    }

    /// Returns the number of connections of others whose calls have not come, and its limit.
    #[cfg(test)]
    pub(crate) fn callers(&self) -> (usize, usize) {
        (self.links.unproved()[0] as usize, self.links.limits().most_unproved as usize)
    }

    /// Checks an address that another process has given. Returns where to call the process, if it runs on another
    /// machine.
    pub(crate) fn check(&self, peer: &PeerAddress) -> Result<Option<SocketAddr>, String> {
        let place = address::decode(peer)?;
        if place.shares_machine(&self.desk.place) {
            return Ok(None);
        }
        let lacks = match (address::remote(&self.desk.place), address::remote(&place)) {
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
        self.more
            || !self.freed.is_empty()
            || self.desk.carriers.values().any(|it| it.link.is_none())
            || self.desk.parts.iter().any(|(link, parts)| self.expects_soon(*link, parts))
    }

    /// Returns whether something of a link under way is expected soon: those that were answered long ago are looked at
    /// less often.
    fn expects_soon(&self, link: LinkRef, parts: &CallParts) -> bool {
        match self.links.stage(link) {
            LinkStage::Calling | LinkStage::Proving | LinkStage::Confirmed => true,
            LinkStage::Answered => self.now() < parts.since + self.links.limits().held,
            _ => false,
        }
    }

    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    /// Lets the time pass that an answered call has for its confirmation.
    #[cfg(test)]
    pub(crate) fn expire(&mut self) {
        self.start = self.start.checked_sub(Duration::from_secs(5)).unwrap();
    }

    /// Calls a peer, which this process knows by `number`. `rank` is its rank, if it is one of this world.
    /// [`Calls::next_outcome`] returns what becomes of it. If a call is under way, it goes on for this process.
    ///
    /// # Errors
    /// See [`LinkError`].
    pub(crate) fn speak(
        &mut self,
        peer: &PeerAddress,
        rank: Option<u32>,
        number: u32,
        watch: &Watch,
    ) -> Result<(), LinkError> {
        self.links.reserve(2, 2);
        let now = self.now();
        let link =
            self.links.speak(peer, rank, ENGINE, now, &mut self.desk.owner(now, &mut RefuseAll(watch)))?;
        if self.links.stage(link) != LinkStage::Open {
            self.desk.parts.entry(link).or_insert_with(|| CallParts::new(*peer, number)).number = number;
        }
        Ok(())
    }

    /// Makes progress on all calls.
    pub(crate) fn attend<T: CallTerms>(&mut self, terms: &mut T) {
        for link in std::mem::take(&mut self.freed) {
            self.act(terms, |links, now, owner| links.free(link, now, owner));
        }
        // The confirmation of a call precedes the next call of its author, which may be among those accepted now.
        self.accept(terms);
        for carrier in self.carriers(|it| it.link.is_some() || it.connection.is_none()) {
            self.look_at(carrier, terms);
        }
        self.read_callers(terms);
        self.act(terms, |links, now, owner| links.attend(BUDGET, now, owner));
        for carrier in self.carriers(|it| it.connection.is_none()) {
            self.look_at(carrier, terms);
        }
        self.end_of_shortage(terms);
    }

    /// Accepts pending connections, and reads what those have sent whose calls have not come.
    fn hear<T: CallTerms>(&mut self, terms: &mut T) {
        self.accept(terms);
        self.read_callers(terms);
    }

    fn read_callers<T: CallTerms>(&mut self, terms: &mut T) {
        for carrier in self.carriers(|it| it.link.is_none() && it.connection.is_some()) {
            self.look_at(carrier, terms);
        }
    }

    /// Reads all that has come so far: the announcements of processes that have left are among it.
    fn hear_all<T: CallTerms>(&mut self, terms: &mut T) {
        for _ in 1..self.desk.world.size.max(2) {
            self.hear(terms);
            if !self.more {
                break;
            }
        }
    }

    fn carriers(&self, is_meant: impl Fn(&HandOffCarrier) -> bool) -> Vec<CarrierRef> {
        self.desk.carriers.iter().filter(|(_, it)| is_meant(it)).map(|(carrier, _)| *carrier).collect()
    }

    /// Lets the machine act, and sees what is left of answers that are over.
    fn act<T: CallTerms, R>(
        &mut self,
        terms: &mut T,
        run: impl FnOnce(&mut Links<GrowingLinks>, Duration, &mut CallOwner<'_, T>) -> R,
    ) -> R {
        self.links.reserve(2, BUDGET + 2);
        let now = self.now();
        let mut owner = self.desk.owner(now, terms);
        let result = run(&mut self.links, now, &mut owner);
        while let Some(rank) = owner.desk.claimed.pop() {
            self.links.restarted(rank, false, now, &mut owner);
        }
        for link in std::mem::take(&mut self.desk.touched) {
            let is_over = self.links.stage(link) == LinkStage::Idle;
            if let Some(parts) = self.desk.parts.remove(&link) {
                if is_over {
                    let problem = parts.problem.unwrap_or_default();
                    self.desk.outcomes.push_back((parts.peer, CallOutcome::Undone(problem)));
                } else {
                    self.desk.parts.insert(link, parts);
                }
            }
        }
        result
    }

    fn accept<T: CallTerms>(&mut self, terms: &mut T) {
        let mut ours = 0;
        for _ in 0..MOST_AT_ONCE {
            let mut has_room = |calls: &mut Self| {
                calls.act(terms, |links, now, owner| links.make_room(CarrierKind::HandOff, now, owner))
            };
            if ours == AT_ONCE || !closer::has_room() || !has_room(self) {
                break;
            }
            let Self { listener, desk: CallDesk { shortage, .. }, .. } = self;
            let (listen, now) = (listening(terms.watch(), listener.as_fd()), Instant::now());
            let Some(connection) = shortage.next_connection(now, listen, || arrived(listener.accept(now)))
            else {
                self.more = false;
                return;
            };
            // A process of another user is not heard. Without room in the set, the time limit ends the caller.
            if connection.require_same_user().is_ok() {
                ours += 1;
                let accepted =
                    self.act(terms, |links, now, owner| links.accepted(CarrierKind::HandOff, now, owner));
                let Some(carrier) = accepted else { continue };
                let _ = terms.watch().attend(connection.as_fd());
                self.desk.carriers.insert(carrier, HandOffCarrier::accepted(connection));
            }
        }
        self.more = true;
    }

    /// Reads the next message of a connection, or sees that it has ended; or makes it.
    fn look_at<T: CallTerms>(&mut self, carrier: CarrierRef, terms: &mut T) {
        let Some(it) = self.desk.carriers.get_mut(&carrier) else { return };
        let Some(connection) = it.connection.clone() else { return self.reach(carrier, terms) };
        // Checked before the packets are read: a dead process sends no further packets.
        let ended = it.pidfd.as_ref().is_some_and(|fd| Watch::has_ended(fd.as_fd()));
        let mut bytes = [0; MOST_LINK_BYTES];
        let len = match connection.recv(&mut bytes, MOST_DESCRIPTORS, Instant::now()) {
            Ok((len, _)) if HandoffConnection::is_wake(&bytes[..len]) => return,
            Ok((len, descriptors)) => {
                it.descriptors = descriptors;
                len
            }
            Err(ShmError::TimedOut { .. }) if !ended => return,
            Err(ShmError::TimedOut { .. } | ShmError::PeerGone { .. }) => {
                return self.lose((carrier, ended), terms);
            }
            Err(error) if error.is_shortage() => {
                let link = it.link;
                self.desk.shortage.record_packet(&error, terms.watch(), connection.as_fd());
                return self.desk.lack_for(link);
            }
            // The kernel refuses it to this process, which is no fault of the peer.
            Err(error @ ShmError::System { .. }) if it.link.is_some() => {
                let link = it.link;
                return self.abandon(link, error.to_string(), terms);
            }
            // It is refused like any other packet that is no message.
            Err(_) => 0,
        };
        self.act(terms, |links, now, owner| links.received(carrier, &bytes[..len], now, owner));
    }

    /// The connection has ended, or its process has.
    fn lose<T: CallTerms>(&mut self, (carrier, ended): (CarrierRef, bool), terms: &mut T) {
        let link = self.desk.carriers.get(&carrier).and_then(|it| it.link);
        match link.filter(|_| ended) {
            Some(link) => {
                // If it has left in order, it has announced that before.
                self.hear_all(terms);
                self.act(terms, |links, now, owner| links.process_ended(link, now, owner));
            }
            None => self.act(terms, |links, now, owner| links.lost(carrier, now, owner)),
        }
    }

    /// Connects to the socket of a process.
    fn reach<T: CallTerms>(&mut self, carrier: CarrierRef, terms: &mut T) {
        let Some(it) = self.desk.carriers.get_mut(&carrier) else { return };
        let peer = it.peer;
        let link = self.links.find(&peer, ENGINE.0, ENGINE.1);
        let place = match address::decode(&peer) {
            Ok(place) if it.kind == CarrierKind::HandOff => place,
            // Other carriers are not reached from here.
            _ => return self.fail(carrier, DialFault::Nothing, terms),
        };
        match HandoffConnection::connect(&address::socket(&place.token), Instant::now()) {
            Ok(connection) => {
                if let Err(problem) = address::check(&place, &self.desk.place, &connection) {
                    return self.abandon(link, problem, terms);
                }
                // Without room in the set, the answer is found by the next look.
                let _ = terms.watch().attend(connection.as_fd());
                it.connect(connection);
                self.act(terms, |links, now, owner| links.reached(carrier, now, owner));
            }
            Err(ShmError::TimedOut { .. }) => self.fail(carrier, DialFault::Full, terms),
            Err(ShmError::NotListening { .. }) => {
                // If it has left in order, it has announced that before.
                self.hear_all(terms);
                self.fail(carrier, DialFault::Nothing, terms);
            }
            Err(error) if error.is_shortage() => {
                self.desk.shortage.record(&error);
                self.desk.lack_for(link);
                self.fail(carrier, DialFault::Busy, terms);
            }
            Err(error) => self.abandon(link, error.to_string(), terms),
        }
    }

    fn fail<T: CallTerms>(&mut self, carrier: CarrierRef, fault: DialFault, terms: &mut T) {
        self.act(terms, |links, now, owner| links.failed(carrier, fault, now, owner));
    }

    /// Ends a call of this process for a reason that only this process knows.
    fn abandon<T: CallTerms>(&mut self, link: Option<LinkRef>, problem: String, terms: &mut T) {
        let Some(link) = link else { return };
        if let Some(parts) = self.desk.parts.get_mut(&link) {
            parts.problem = Some(problem);
        }
        self.act(terms, |links, now, owner| links.disconnect(link, now, owner));
    }

    /// Ends the calls of this process that lack something here, if no connection was made for long. Both processes may
    /// lack something, so that no single call lasts for long.
    fn end_of_shortage<T: CallTerms>(&mut self, terms: &mut T) {
        let Some(text) = self.desk.lasting() else { return };
        let short: Vec<_> =
            self.desk.parts.iter().filter(|(_, parts)| parts.is_short).map(|it| *it.0).collect();
        short.into_iter().for_each(|link| self.abandon(Some(link), text.clone(), terms));
    }

    /// Returns the next call whose state has changed, with its peer.
    pub(crate) fn next_outcome(&mut self) -> Option<(PeerAddress, CallOutcome)> {
        self.desk.outcomes.pop_front()
    }

    /// Returns the next report of a shortage of this process, which keeps it from connecting for now.
    pub(crate) const fn next_shortage(&mut self) -> Option<String> {
        self.desk.shortage.next_report()
    }

    /// Returns the number of connections of others that could not be accepted.
    pub(crate) const fn failed_accepts(&self) -> u64 {
        self.desk.shortage.failed()
    }

    /// Returns whether there is a call that [`Calls::give_up_one`] would give up.
    pub(crate) fn has_late_answer(&self) -> bool {
        let is_late = |(link, parts): (&LinkRef, &CallParts)| {
            self.links.stage(*link) == LinkStage::Answered && !self.expects_soon(*link, parts)
        };
        self.desk.parts.iter().any(is_late)
    }

    /// Gives up the call of a process that was answered long ago and has not confirmed, so that another process can
    /// have its place. Returns whether there was one.
    pub(crate) fn give_up_one(&mut self, watch: &Watch) -> bool {
        self.act(&mut RefuseAll(watch), |links, now, owner| links.evict_answered(now, owner))
    }

    /// Ends whatever there is with a peer. The caller knows it, so that no outcome follows. An open connection is
    /// closed by the caller.
    pub(crate) fn end(&mut self, peer: &PeerAddress, watch: &Watch) {
        let Some(link) = self.links.find(peer, ENGINE.0, ENGINE.1) else { return };
        self.act(&mut RefuseAll(watch), |links, now, owner| match links.stage(link) {
            LinkStage::Open | LinkStage::Leaving => links.path_lost(link, now, owner),
            _ => links.disconnect(link, now, owner),
        });
        self.desk.outcomes.retain(|(of, _)| of != peer);
        if self.links.stage(link) == LinkStage::Ended {
            self.desk.parts.remove(&link);
            self.freed.push(link);
        }
    }

    /// Returns the processes that wait to be readmitted, with their ranks: at most one for each.
    pub(crate) fn claims(&self) -> Vec<RankClaim> {
        (0..self.desk.world.size).filter_map(|rank| self.links.claim(rank)).collect()
    }

    /// The launcher says whether such a process is that of its rank. If it is, the former one has ended.
    pub(crate) fn judge(&mut self, claim: &RankClaim, is_sure: bool, watch: &Watch) {
        let former =
            self.links.rank(claim.rank).and_then(|(peer, _)| self.links.find(&peer, ENGINE.0, ENGINE.1));
        let rank = claim.rank;
        self.act(&mut RefuseAll(watch), |links, now, owner| links.restarted(rank, is_sure, now, owner));
        // The place of the former link is free when nothing is left of it.
        self.freed.extend(former.filter(|_| is_sure));
    }

    /// Answers a process that the launcher has confirmed, of whose predecessor nothing is left: this one knows it by
    /// `number`. If it does not wait any more, it is called.
    pub(crate) fn readmit<T: CallTerms>(&mut self, claim: &RankClaim, number: u32, terms: &mut T) {
        self.desk.parts.insert(claim.link, CallParts::new(claim.peer, number));
        self.act(terms, |links, now, owner| links.readmit(claim.rank, now, owner));
    }

    /// Announces to all with whom a connection is under way that this process leaves.
    pub(crate) fn send_goodbyes(&mut self, finished: bool, watch: &Watch) {
        let manner = if finished { LeaveManner::Closed } else { LeaveManner::Dropped };
        self.links.close(manner);
        while self.act(&mut RefuseAll(watch), |links, now, owner| links.close_next(now, owner)) {}
    }

    /// Announces to a process, with which there is no connection, that this one leaves, after
    /// [`Calls::send_goodbyes`]. Does not wait for the process; but if its queue of connections is full, until the
    /// deadline for room there.
    pub(crate) fn announce_leave(&mut self, peer: &PeerAddress, deadline: Instant) {
        let Ok(place) = LinkAddress::decode(peer) else { return };
        // If nothing listens there, the process has ended.
        let connected = HandoffConnection::connect(&address::socket(&place.token), deadline);
        let Ok(connection) = connected else { return };
        if connection.require_same_user().is_ok() {
            let departure = self.links.departure(peer);
            let _ = connection.send(departure.get(), &[], deadline);
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
