//! Calls: how processes connect with each other, inside a machine and between machines.
//!
//! The machine of links ([`nemesia_core::link::machine`]) decides. This module carries its messages and descriptors
//! over hand-off sockets and TCP, reports what is lost, and makes what both ends offer each other: segments, or the
//! connection of the call as a stream. It never waits.
//!
//! | file | contents |
//! |---|---|
//! | `calls.rs` | what the endpoint asks: calls, outcomes, restarts, departures |
//! | `calls/look.rs` | connections of others, messages, losses and time |
//! | `calls/desk.rs` | what this process has for its calls |
//! | `calls/owner.rs` | what the machine asks for: segments, streams, and where a caller is |
//!
//! A stranger is any process that connects. It costs one place until its call has come, for a limited time. Inside a
//! machine, the kernel's word about its user and process is compared with the address that it claims. Between machines,
//! it proves that it was given this process's address, and knows the key of the job if there is one, and calls from the
//! IP address that it claims.
//!
//! A caller that has our answer may be stopped before it confirms, for any time. While it lives, its place is kept as
//! long as no other process needs it.

mod desk;
mod look;
mod owner;

use std::net::SocketAddr;
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nemesia_core::job_key::{JobKey, KEY_BYTES};
use nemesia_core::link::address::{AddressKinds, LinkAddress};
use nemesia_core::link::machine::slots::{CarrierSlot, LinkSlot, LinkStorage, RankSlot};
use nemesia_core::link::machine::table::{LinkProcess, Links};
use nemesia_core::link::machine::terms::{
    CarrierKind, LinkEnding, LinkError, LinkLimits, LinkRef, LinkStage, RankClaim,
};
use nemesia_core::link::proof::TokenMask;
use nemesia_core::link::wire::{LeaveManner, LinkService};
use nemesia_core::peers::PeerAddress;
use nemesia_core::port::channel::Acquaintance;
use nemesia_core::port::memory::Address;
use nemesia_core::slab::{List, Slot};

use super::address;
use super::joining::JoiningProcess;
use super::peer::ShmWorld;
use super::segments::OwnSegments;
use crate::error::Error;
use crate::os::shortage::Shortage;
use crate::os::{HandoffConnection, HandoffListener, ShmError, Watch, random};
use crate::transport::net::{EnteredStream, StreamDoor};
use desk::{CallDesk, CallParts};
use owner::RefuseAll;

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

    /// Returns the credit that the peer which this process knows by `number` has from the start.
    fn granted(&self, number: u32) -> u64;

    /// A process with this address has sent a message over a new connection: a former one may have ended.
    fn hear_from(&mut self, peer: &PeerAddress);

    /// Returns the address at which this process takes further streams of peers on other machines. The port to them is
    /// opened if it is not open yet.
    ///
    /// # Errors
    /// What this process lacks.
    fn open_port(&mut self) -> Result<Address, ShmError>;

    /// Makes place for the stream of the peer that this process knows by `number`.
    ///
    /// # Errors
    /// One line.
    fn expect_stream(&mut self, number: u32) -> Result<(), String>;
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
    /// Packets may pass, in shared memory.
    Opened(Box<JoiningProcess>),
    /// Packets may pass, over the connection of the call.
    Streamed(LinkRef, Box<EnteredStream>),
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
    /// The time stands still here.
    #[cfg(test)]
    frozen: Option<Duration>,
}

impl Calls {
    /// Listens for calls of this machine. `door` is the place for those of other ones, or why there is none. The ranks
    /// of the world have these addresses, and were started so often before; a process that opens alone has none.
    pub(super) fn listen(
        (world, ours): (Arc<ShmWorld>, Arc<OwnSegments>),
        (listener, door): (HandoffListener, Result<StreamDoor, String>),
        ranks: &[(PeerAddress, u64)],
        watch: &mut Watch,
    ) -> Result<Self, Error> {
        watch.attend(listener.as_fd())?;
        let place = place_of(&world, &listener, door.as_ref().ok());
        let (mut door, closed) = match door {
            Ok(door) => (Some(Box::new(door)), String::new()),
            Err(why) => (None, why),
        };
        if let Some(door) = &mut door {
            door.expect(u64::from(world.size - 1));
        }
        // A call wakes a process that sleeps.
        watch.expect_sleep()?;
        let rank = (!ranks.is_empty()).then_some(world.rank);
        let incarnation = world.incarnation;
        let job = door.as_ref().and_then(|door| door.key());
        let process = LinkProcess { job, rank, incarnation, ..LinkProcess::alone(place) };
        let ranks = ranks.iter().map(|(address, started)| RankSlot::new(*address, *started)).collect();
        let lent = (Vec::new(), vec![List::new(); BUCKETS], Vec::new(), ranks);
        let limit = Duration::from_secs(world.config.timeout_seconds.into());
        let links = Links::new(process, LinkLimits::new(limit), lent, [random()?, random()?]);
        let shortage = Shortage::among(u64::from(world.size - 1));
        let desk = CallDesk::new((world, ours), (place, door, closed), shortage);
        let (freed, start) = (Vec::new(), Instant::now());
        Ok(Self {
            links,
            desk,
            listener,
            start,
            freed,
            more: false,
            #[cfg(test)]
            frozen: None,
        })
    }

    /// Takes calls of other machines from now on, if this process has a place for them.
    ///
    /// # Errors
    /// The kernel refuses to listen.
    pub(crate) fn open_door(&self, watch: &Watch) -> Result<(), Error> {
        self.desk.door.as_ref().map_or(Ok(()), |door| Ok(door.open(watch)?))
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

    /// Returns the numbers of connections of others whose calls have not come, inside the machine and of other ones,
    /// and the limit of each.
    #[cfg(test)]
    pub(crate) fn callers(&self) -> ([usize; 2], usize) {
        (self.links.unproved().map(|count| count as usize), self.links.limits().most_unproved as usize)
    }

    /// Checks an address that another process has given. Returns where to call the process, if it runs on another
    /// machine.
    pub(crate) fn check(&self, peer: &PeerAddress) -> Result<Option<SocketAddr>, String> {
        let place = address::decode(peer)?;
        if place.shares_machine(&self.desk.place) {
            return Ok(None);
        }
        let lacks = match (&self.desk.door, address::remote(&place)) {
            (Some(_), Some(remote)) if remote.ip().is_loopback() && !self.may_be_here(&place) => {
                "that endpoint has an address that does not leave its machine: set NEMESIA_NET_ADDRESS there"
                    .into()
            }
            (Some(_), Some(remote)) => return Ok(Some(remote)),
            (None, _) => format!("this endpoint reaches none: {}", self.desk.closed),
            (Some(_), None) => {
                "that endpoint takes no calls of others: set NEMESIA_NET to auto or tcp there; ranks \
                                that connect at the start or may be started again take none"
                    .to_owned()
            }
        };
        Err(format!("it is the address of another machine or network namespace, and {lacks}"))
    }

    /// Returns whether a process shares no memory by its settings, so that it may run on this machine.
    fn may_be_here(&self, place: &LinkAddress) -> bool {
        place.has(AddressKinds::APART) || self.desk.place.has(AddressKinds::APART)
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
        #[cfg(test)]
        if let Some(now) = self.frozen {
            return now;
        }
        self.start.elapsed()
    }

    /// Lets the time stand still, however long a slow machine takes.
    #[cfg(test)]
    pub(crate) fn freeze(&mut self) {
        self.frozen = Some(self.now());
    }

    /// Directs our calls to another place of the network.
    #[cfg(test)]
    pub(crate) fn redirect(&mut self, at: SocketAddr) {
        self.desk.redirected = Some(at);
    }

    /// Lets the time pass that an answered call has for its confirmation.
    #[cfg(test)]
    pub(crate) fn expire(&mut self) {
        self.start = self.start.checked_sub(Duration::from_secs(5)).unwrap();
        self.frozen = self.frozen.map(|now| now + Duration::from_secs(5));
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

    /// Returns the next call whose state has changed, with its peer.
    pub(crate) fn next_outcome(&mut self) -> Option<(PeerAddress, CallOutcome)> {
        let (peer, mut outcome) = self.desk.outcomes.pop_front()?;
        if let CallOutcome::Streamed(link, entered) = &mut outcome {
            let tickets = [0, 1, 2, 3].map(|number| self.links.ticket(*link, number));
            let [Some(tokens), Some(key), Some(rest), Some(mask)] = tickets else {
                return Some((peer, CallOutcome::Undone(String::new())));
            };
            let half = |at: usize| tokens[at..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
            let (caller, called) = (half(0), half(8));
            let (token, expected) = if entered.is_caller { (caller, called) } else { (called, caller) };
            let mut bytes = [0; KEY_BYTES];
            bytes.iter_mut().zip(key.into_iter().chain(rest)).for_each(|(to, from)| *to = from);
            let key = JobKey::from_bytes(bytes);
            entered.known = Acquaintance { token, expected, key, ..entered.known };
            entered.mask = TokenMask::new(&mask);
        }
        Some((peer, outcome))
    }

    /// Returns the next report of a shortage of this process, which keeps it from connecting for now.
    pub(crate) fn next_shortage(&mut self) -> Option<String> {
        let CallDesk { shortage, door, .. } = &mut self.desk;
        shortage.next_report().or_else(|| door.as_mut()?.shortage_mut().next_report())
    }

    /// Returns the number of connections of others that could not be accepted.
    pub(crate) fn failed_accepts(&self) -> u64 {
        let CallDesk { shortage, door, .. } = &self.desk;
        shortage.failed() + door.as_ref().map_or(0, |door| door.shortage().failed())
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
            let departure = self.links.departure(peer, CarrierKind::HandOff);
            let _ = connection.send(departure.get(), &[], deadline);
        }
    }

    /// As [`Calls::announce_leave`], to processes on other machines, which take calls at these places: until their
    /// kernels have the messages, at the latest until the deadline.
    pub(crate) fn announce_leave_across(
        &mut self,
        peers: impl Iterator<Item = (PeerAddress, SocketAddr)>,
        deadline: Instant,
    ) {
        let Self { links, desk, .. } = self;
        if let Some(door) = &desk.door {
            let departures = peers.map(|(peer, at)| (at, links.departure(&peer, CarrierKind::Stream)));
            door.depart(departures, deadline);
        }
    }
}

/// Returns the address of this process, which listens here, and has this place for calls of other machines.
pub(super) fn place_of(
    world: &ShmWorld,
    listener: &HandoffListener,
    door: Option<&StreamDoor>,
) -> LinkAddress {
    let place = world.address(listener);
    door.map_or(place, |door| address::with_remote(place, door.place()))
}

#[cfg(test)]
mod tests;
