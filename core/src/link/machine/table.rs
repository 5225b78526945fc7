//! The links and carriers of one process.
#![forbid(unsafe_code)]

use core::borrow::{Borrow, BorrowMut};
use core::time::Duration;

use super::slots::{CarrierRole, CarrierSlot, LinkSlot, LinkStorage, RankSlot};
use super::terms::{
    CarrierKind, CarrierRef, LinkEnding, LinkError, LinkEvent, LinkLimits, LinkOwner, LinkRef, LinkRefusal,
    LinkStage, RankClaim,
};
use crate::job_key::{Challenges, JobKey, KEY_BYTES, Nonces};
use crate::link::address::{AddressKinds, LinkAddress};
use crate::link::bytes::LinkBytes;
use crate::link::proof::LinkKey;
use crate::link::refusal::RefusalWords;
use crate::link::wire::{
    LINK_VERSION, LeaveManner, LinkBody, LinkHeader, LinkMessage, LinkRefuse, LinkService, LinkText,
    MOST_REFUSAL_TEXT, RefusalCode,
};
use crate::peers::PeerAddress;
use crate::slab::{List, NONE, Slab, Slot};

/// Bits of the place of a link in its number. The others are random.
const PLACE_BITS: u32 = 24;

/// What a process is.
#[derive(Clone, Copy, Debug)]
pub struct LinkProcess {
    /// Its address.
    pub address: LinkAddress,
    /// The key of its job, if it has one. It counts between machines.
    pub job: Option<JobKey>,
    /// Its rank in the world, if it has one.
    pub rank: Option<u32>,
    /// How often this rank was started before.
    pub incarnation: u64,
    /// The version of its messages: [`LINK_VERSION`].
    pub version: u8,
}

impl LinkProcess {
    /// Returns a process without a world and without a key.
    pub const fn alone(address: LinkAddress) -> Self {
        Self { address, job: None, rank: None, incarnation: 0, version: LINK_VERSION }
    }
}

/// All links of one process: see [`machine`](super).
#[derive(Debug)]
pub struct Links<S: LinkStorage> {
    pub(super) process: LinkProcess,
    pub(super) own: PeerAddress,
    /// The own key inside a machine, where the kernel's word is the proof, and between machines.
    keys: [LinkKey; 2],
    pub(super) limits: LinkLimits,
    pub(super) links: Slab<LinkSlot, S::Links>,
    buckets: S::Buckets,
    pub(super) carriers: Slab<CarrierSlot, S::Carriers>,
    pub(super) ranks: S::Ranks,
    /// For hand-off and streams, the connections that have sent nothing, and those that have sent a part.
    pub(super) doors: [[List; 2]; 2],
    pub(super) unproved: [u32; 2],
    /// The calls that are parked, held or answered.
    pub(super) undecided: u32,
    pub(super) challenges: Challenges,
    pub(super) nonces: Nonces,
    /// The number of calls of this process.
    pub(super) calls: u64,
    seed: u64,
    /// How this endpoint ends, once it does.
    pub(super) closing: Option<LeaveManner>,
    /// The place where the next search for an old answer begins.
    pub(super) oldest: u32,
    /// Nothing is due before; the place of the next link that is examined; and the first time that is due among those
    /// examined in this round.
    pub(super) soonest: Duration,
    pub(super) cursor: u32,
    pub(super) round: Duration,
}

impl<S: LinkStorage> Links<S> {
    /// Returns the machine of a process that has no link. The seeds are random, and no other process knows them.
    pub fn new(
        process: LinkProcess,
        limits: LinkLimits,
        (links, buckets, carriers, ranks): (S::Links, S::Buckets, S::Carriers, S::Ranks),
        seeds: [[u8; KEY_BYTES]; 2],
    ) -> Self {
        let [first, second] = seeds;
        let seed = first.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        Self {
            own: process.address.encode(),
            keys: [None, process.job.as_ref()].map(|job| LinkKey::new(&process.address.token, job)),
            process,
            limits,
            links: Slab::new(links),
            buckets,
            carriers: Slab::new(carriers),
            ranks,
            doors: [[List::new(); 2]; 2],
            unproved: [0; 2],
            undecided: 0,
            challenges: Challenges::new(first),
            nonces: Nonces::new(second),
            calls: 0,
            seed,
            closing: None,
            oldest: 0,
            soonest: Duration::MAX,
            cursor: 0,
            round: Duration::MAX,
        }
    }

    /// Makes sure that there are free places for so many links and carriers.
    pub fn reserve(&mut self, links: usize, carriers: usize)
    where
        S::Links: Extend<Slot<LinkSlot>>,
        S::Carriers: Extend<Slot<CarrierSlot>>,
    {
        self.links.make_free(links);
        self.carriers.make_free(carriers);
    }

    /// Returns the own key for messages over this kind of carrier.
    pub(super) const fn own_key(&self, kind: CarrierKind) -> &LinkKey {
        &self.keys[!matches!(kind, CarrierKind::HandOff) as usize]
    }

    /// Returns the key of another process for messages over this kind of carrier. The key of the job is in it only
    /// between machines: two processes of one machine need not have the same.
    pub(super) fn key_of(&self, peer: &PeerAddress, kind: CarrierKind) -> LinkKey {
        let is_inside = kind == CarrierKind::HandOff;
        LinkKey::of(peer, self.process.job.as_ref().filter(|_| !is_inside))
    }

    /// Returns the limits of time and number.
    pub const fn limits(&self) -> &LinkLimits {
        &self.limits
    }

    /// Returns the number of links, those that have ended and were not freed included.
    pub const fn links(&self) -> usize {
        self.links.used()
    }

    /// Returns the number of carriers.
    pub const fn carriers(&self) -> usize {
        self.carriers.used()
    }

    /// Returns the number of calls that are parked, held or answered.
    pub const fn undecided(&self) -> u32 {
        self.undecided
    }

    /// Returns the number of connections without proof, over hand-off and over TCP.
    pub const fn unproved(&self) -> [u32; 2] {
        self.unproved
    }

    /// Returns the link with this peer, service and instance.
    pub fn find(&self, peer: &PeerAddress, service: LinkService, instance: u32) -> Option<LinkRef> {
        self.place(peer, service, instance).map(|index| self.reference(index))
    }

    /// Returns the stage of a link; [`LinkStage::Idle`] if there is none.
    pub fn stage(&self, link: LinkRef) -> LinkStage {
        let is_live = self.links.is_live(link.index, link.generation);
        if is_live { self.links.get(link.index).stage } else { LinkStage::Idle }
    }

    /// Returns the address of the peer of a link, and its rank if it has one.
    pub fn peer(&self, link: LinkRef) -> Option<(&PeerAddress, Option<u32>)> {
        let is_live = self.links.is_live(link.index, link.generation);
        let slot = is_live.then(|| self.links.get(link.index))?;
        Some((&slot.peer, (slot.rank != NONE).then_some(slot.rank)))
    }

    /// Returns a ticket of an open link, by which a further stream or queue pair is recognised.
    pub fn ticket(&self, link: LinkRef, number: u32) -> Option<[u8; 16]> {
        let is_open = self.stage(link) == LinkStage::Open;
        is_open.then(|| self.links.get(link.index).session.ticket(number))
    }

    /// Returns what is known of the process of a rank: its address and its incarnation.
    pub fn rank(&self, rank: u32) -> Option<(PeerAddress, u64)> {
        self.ranks.borrow().get(rank as usize).map(|slot| (slot.address, slot.incarnation))
    }

    /// Returns the process that waits to be readmitted as that of this rank, if there is one.
    pub fn claim(&self, rank: u32) -> Option<RankClaim> {
        let RankSlot { next, is_sure, .. } = *self.ranks.borrow().get(rank as usize)?;
        let slot = (next != NONE).then(|| self.links.get(next))?;
        let (link, incarnation, peer) = (self.reference(next), slot.incarnation, slot.peer);
        Some(RankClaim { link, rank, incarnation, peer, is_sure })
    }

    pub(super) fn rank_mut(&mut self, rank: u32) -> Option<&mut RankSlot> {
        self.ranks.borrow_mut().get_mut(rank as usize)
    }

    pub(super) fn reference(&self, index: u32) -> LinkRef {
        LinkRef { index, generation: self.links.generation(index) }
    }

    pub(super) fn carrier(&self, index: u32) -> CarrierRef {
        CarrierRef { index, generation: self.carriers.generation(index) }
    }

    fn bucket(&self, peer: &PeerAddress, service: LinkService, instance: u32) -> usize {
        let seed = self.seed ^ (u64::from(instance) << 8 | service as u64);
        peer.hash(seed) as usize % self.buckets.borrow().len()
    }

    pub(super) fn place(&self, peer: &PeerAddress, service: LinkService, instance: u32) -> Option<u32> {
        let list = self.buckets.borrow()[self.bucket(peer, service, instance)];
        self.links
            .find(&list, |slot| slot.peer == *peer && slot.service == service && slot.instance == instance)
    }

    pub(super) fn insert(
        &mut self,
        peer: &PeerAddress,
        (service, instance): (LinkService, u32),
        rank: u32,
    ) -> Option<u32> {
        // The place of a link is a part of its number.
        if self.links.used() >> PLACE_BITS != 0 {
            return None;
        }
        let slot = LinkSlot { peer: *peer, service, instance, rank, ..LinkSlot::default() };
        let index = self.links.insert(slot).ok()?;
        let bucket = self.bucket(peer, service, instance);
        let mut list = self.buckets.borrow()[bucket];
        self.links.push_back(&mut list, index);
        self.buckets.borrow_mut()[bucket] = list;
        Some(index)
    }

    /// Forgets a link that has nothing any more.
    pub(super) fn remove(&mut self, index: u32) {
        let LinkSlot { peer, service, instance, .. } = *self.links.get(index);
        let bucket = self.bucket(&peer, service, instance);
        let mut list = self.buckets.borrow()[bucket];
        self.links.unlink(&mut list, index);
        self.buckets.borrow_mut()[bucket] = list;
        self.links.remove(index);
    }

    /// Returns the link that has this number now.
    pub(super) fn numbered(&self, number: u64) -> Option<u32> {
        let index = (number & ((1 << PLACE_BITS) - 1)) as u32;
        let is_touched = (index as usize) < self.links.touched();
        let is_live = is_touched && self.links.is_live(index, self.links.generation(index));
        (is_live && number != 0 && self.links.get(index).ours == number).then_some(index)
    }

    /// Draws the next number of a link: its place, and random bits that a process which does not see its messages
    /// cannot guess.
    pub(super) fn draw<O: LinkOwner>(&mut self, index: u32, owner: &mut O) -> u64 {
        let number = (owner.random() << PLACE_BITS | u64::from(index)).max(1);
        self.links.get_mut(index).ours = number;
        number
    }

    pub(super) fn header(&self, index: u32) -> LinkHeader {
        let LinkSlot { service, theirs, ours, .. } = *self.links.get(index);
        LinkHeader { version: self.process.version, service, to: theirs, from: ours }
    }

    pub(super) fn encode(&self, index: u32, body: LinkBody<'_>) -> LinkBytes {
        LinkMessage { header: self.header(index), body }.encode()
    }

    /// Sends a message over the carrier of a link. Returns whether the other end still reads.
    pub(super) fn send<O: LinkOwner>(&mut self, index: u32, message: &LinkBytes, owner: &mut O) -> bool {
        let carrier = self.links.get(index).carrier;
        carrier == NONE || owner.send(self.carrier(carrier), message.get())
    }

    pub(super) fn send_body<O: LinkOwner>(&mut self, index: u32, body: LinkBody<'_>, owner: &mut O) -> bool {
        let message = self.encode(index, body);
        self.send(index, &message, owner)
    }

    /// Returns the first kind of carrier that reaches a peer, of those after `failed`.
    pub(super) fn route_to(&self, peer: &LinkAddress, failed: Option<CarrierKind>) -> Option<CarrierKind> {
        let own = &self.process.address;
        let reaches = |kind: &CarrierKind| match kind {
            CarrierKind::HandOff => own.shares_machine(peer),
            // Copies of a machine have other places. At the own one, what hand-off shows is true.
            CarrierKind::Stream => {
                peer.has(AddressKinds::IP) && !(own.shares_machine(peer) && own.place == peer.place)
            }
            CarrierKind::Datagram => own.has(AddressKinds::DATAGRAMS) && peer.has(AddressKinds::DATAGRAMS),
        };
        CarrierKind::ALL.into_iter().filter(|kind| failed.is_none_or(|failed| *kind > failed)).find(reaches)
    }

    /// Returns whether datagrams carry a link.
    pub(super) fn has_datagrams(&self, index: u32) -> bool {
        let carrier = self.links.get(index).carrier;
        carrier != NONE && self.carriers.get(carrier).kind == CarrierKind::Datagram
    }

    /// Puts a link into a stage from which `limit` takes it.
    pub(super) fn enter(&mut self, index: u32, stage: LinkStage, (now, limit): (Duration, Duration)) {
        let slot = self.links.get_mut(index);
        let (was, is) = (is_undecided(slot.stage), is_undecided(stage));
        (slot.stage, slot.since, slot.limit, slot.next) = (stage, now, limit, Duration::MAX);
        self.undecided = self.undecided + u32::from(is) - u32::from(was);
        self.arm(limit);
    }

    /// Something is due then.
    pub(super) fn arm(&mut self, when: Duration) {
        self.soonest = self.soonest.min(when);
    }

    /// Begins the repetition of the message that was just sent, on datagrams.
    pub(super) fn repeat(&mut self, index: u32, message: &LinkBytes, now: Duration) {
        let (first, has_datagrams) = (self.limits.repeat[0], self.has_datagrams(index));
        let slot = self.links.get_mut(index);
        slot.sent = *message;
        if has_datagrams {
            (slot.repeat, slot.next) = (first, now + first);
            self.arm(now + first);
        }
    }

    /// Takes a free carrier for a link.
    pub(super) fn take_carrier(&mut self, kind: CarrierKind, link: u32, now: Duration) -> Option<u32> {
        let role = CarrierRole::Bound;
        self.carriers.insert(CarrierSlot { kind, role, link, since: now, ..CarrierSlot::default() }).ok()
    }

    /// Closes a carrier that is in no list, and frees its place.
    pub(super) fn close_carrier<O: LinkOwner>(&mut self, carrier: u32, owner: &mut O) {
        if carrier == NONE {
            return;
        }
        owner.close(self.carrier(carrier));
        self.carriers.remove(carrier);
    }

    /// Closes the carrier of a link.
    pub(super) fn drop_carrier<O: LinkOwner>(&mut self, index: u32, owner: &mut O) {
        let carrier = core::mem::replace(&mut self.links.get_mut(index).carrier, NONE);
        self.close_carrier(carrier, owner);
    }

    /// Takes the call that waits at a link, if there is one.
    pub(super) fn take_waiting(&mut self, index: u32) -> Option<u32> {
        let carrier = core::mem::replace(&mut self.links.get_mut(index).waiting, NONE);
        if carrier == NONE {
            return None;
        }
        self.undecided -= 1;
        Some(carrier)
    }

    /// Forgets the call that waits at a link.
    pub(super) fn drop_waiting<O: LinkOwner>(&mut self, index: u32, owner: &mut O) {
        if let Some(carrier) = self.take_waiting(index) {
            self.close_carrier(carrier, owner);
        }
    }

    /// Returns a refusal with both values and words.
    pub(super) fn refusal(header: LinkHeader, refusal: &LinkRefusal) -> LinkBytes {
        let LinkRefusal { code, is_passing, values, words } = *refusal;
        let text = LinkText::new(words.get(), MOST_REFUSAL_TEXT);
        let body = LinkBody::Refuse(LinkRefuse { code, is_passing, values, text });
        LinkMessage { header, body }.encode()
    }

    /// Ends a link, and tells the owner. A call that waits stays.
    pub(super) fn end<O: LinkOwner>(
        &mut self,
        index: u32,
        (end, words): (LinkEnding, &str),
        now: Duration,
        owner: &mut O,
    ) {
        self.drop_carrier(index, owner);
        self.enter(index, LinkStage::Ended, (now, Duration::MAX));
        let slot = self.links.get_mut(index);
        (slot.end, slot.is_wanted) = (end, false);
        if slot.waiting != NONE {
            // The call had no limit while it was parked.
            let limit = now + self.limits.held;
            self.carriers.get_mut(slot.waiting).since = now;
            self.arm(limit);
        }
        owner.report(self.reference(index), LinkEvent::Ended(end, words));
    }
}

/// Returns whether a link of this stage is one of those that are proved and undecided. Restarted ranks that are held
/// have a place of their own: at most one a rank.
const fn is_undecided(stage: LinkStage) -> bool {
    matches!(stage, LinkStage::Answered)
}

/// Returns a refusal without values.
pub(super) const fn refused(code: RefusalCode, is_passing: bool, words: &'static str) -> LinkRefusal {
    LinkRefusal { code, is_passing, values: [0; 2], words: RefusalWords::new(words) }
}

/// The result of speaking to a peer.
pub type Spoken = Result<LinkRef, LinkError>;
