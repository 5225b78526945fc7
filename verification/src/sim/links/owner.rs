//! A process of the simulation: the machine of links that ships, and its owner.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use nemesia_core::link::address::LinkAddress;
use nemesia_core::link::machine::slots::{CarrierSlot, LinkSlot, LinkStorage, RankSlot};
use nemesia_core::link::machine::table::Links;
use nemesia_core::link::machine::terms::{
    CarrierKind, CarrierRef, LinkEnding, LinkEvent, LinkIntroduction, LinkOwner, LinkRef, LinkRefusal,
    PathResult,
};
use nemesia_core::link::offers::{LinkOffer, OfferList, PipeOffer, SegmentsOffer, StreamOffer};
use nemesia_core::link::refusal::RefusalWords;
use nemesia_core::link::wire::{LinkAnswer, LinkCall, LinkService, RefusalCode};
use nemesia_core::peers::PeerAddress;
use nemesia_core::slab::{List, Slot};

use super::network::{CarrierUse, Happening, LinkNetwork};

/// Storage of vectors.
#[derive(Debug)]
pub(super) struct VecLinks;

impl LinkStorage for VecLinks {
    type Links = Vec<Slot<LinkSlot>>;
    type Buckets = Vec<List>;
    type Carriers = Vec<Slot<CarrierSlot>>;
    type Ranks = Vec<RankSlot>;
}

/// What is true, and known to no process.
#[derive(Debug, Default)]
pub(super) struct Truth {
    /// Each process, by its address, its port and its process id.
    pub(super) processes: BTreeMap<[u8; 64], usize>,
    pub(super) ports: BTreeMap<u16, usize>,
    pub(super) alive: BTreeSet<usize>,
    pub(super) hosts: Vec<u8>,
    pub(super) pids: Vec<u32>,
    pub(super) shapes: Vec<u32>,
    /// Hosts between which connections are not possible in this direction.
    pub(super) blocked: BTreeSet<(u8, u8)>,
    /// For each number that a process has given a peer: both. The numbers of calls that were granted.
    pub(super) numbers: BTreeMap<u32, (usize, usize)>,
    granted: BTreeSet<u32>,
    /// The pairs whose carriers were cut, or whose paths have failed.
    pub(super) cut: BTreeSet<[usize; 2]>,
    pub(super) pathless: BTreeSet<[usize; 2]>,
    /// The pairs of which the first has left the second.
    pub(super) left: BTreeSet<(usize, usize)>,
    /// The processes that have ended without having closed their endpoints, and could say so.
    pub(super) dropped: BTreeSet<usize>,
    pub(super) given_up: BTreeSet<(usize, usize)>,
    pub(super) incarnations: BTreeMap<usize, u64>,
    /// The calls of a process that was recorded, with the called process.
    /// Pairs between which something has happened that may delay a connection.
    pub(super) disturbed: BTreeSet<[usize; 2]>,
    /// The last call that each link has heard, or that the peer has abandoned.
    heard: BTreeMap<(usize, LinkRef), u64>,
    /// How often something was made for a link of a pair.
    pub(super) tries: BTreeMap<[usize; 2], u32>,
    /// The numbers of the ends that were ever open.
    pub(super) opened: BTreeSet<u32>,
    /// Whether a loss is being reported.
    pub(super) is_losing: bool,
    /// The departures that have come: of the first process to the second.
    pub(super) departed: BTreeSet<(usize, usize)>,
    pub(super) recorded: Vec<(usize, Vec<u8>)>,
    pub(super) violation: Option<String>,
}

impl Truth {
    pub(super) fn violate(&mut self, what: String) {
        self.violation.get_or_insert(what);
    }

    pub(super) fn is_cut(&self, one: usize, two: usize) -> bool {
        self.cut.contains(&[one.min(two), one.max(two)])
    }

    /// Something has happened between two processes.
    pub(super) fn disturb(&mut self, one: usize, two: usize) {
        self.disturbed.insert([one.min(two), one.max(two)]);
    }

    pub(super) fn find(&self, peer: &PeerAddress) -> Option<usize> {
        self.processes.get(peer.bytes()).copied()
    }
}

/// A link that its owner has made something for.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Made {
    pub(super) own: u32,
    pub(super) peers: u32,
    pub(super) is_open: bool,
    /// Whether this process has called.
    pub(super) is_caller: bool,
    pub(super) kind: CarrierKind,
}

/// What a process reports.
#[derive(Clone, Debug)]
pub(super) enum Told {
    Opened(LinkRef),
    Ended(LinkRef, LinkEnding),
    Restarted(u32, u64),
}

/// What the owner of a process has.
#[derive(Debug)]
pub(super) struct LinkDesk {
    pub(super) at: usize,
    pub(super) most_numbers: usize,
    pub(super) made: BTreeMap<LinkRef, Made>,
    pub(super) told: Vec<Told>,
    /// The peer of each link that was reported, spoken to or granted.
    pub(super) peers: BTreeMap<LinkRef, usize>,
    pub(super) admits: bool,
    /// When it last had no place for a connection.
    pub(super) last_full: Duration,
    /// Whether it has few places.
    pub(super) is_short: bool,
}

/// A process.
#[derive(Debug)]
pub(super) struct SimProcess {
    pub(super) links: Links<VecLinks>,
    pub(super) desk: LinkDesk,
    pub(super) address: PeerAddress,
    pub(super) rank: Option<u32>,
    pub(super) is_closing: bool,
    /// Until when it is stopped, when it was last, and what has happened to it meanwhile.
    pub(super) stopped: Option<Duration>,
    pub(super) last_stop: Duration,
    pub(super) inbox: Vec<Happening>,
    pub(super) timer: Duration,
    /// Since when it calls each peer.
    pub(super) since: BTreeMap<usize, Duration>,
}

/// The hands of a process: what its machine may ask for.
pub(super) struct Hands<'a> {
    pub(super) desk: &'a mut LinkDesk,
    pub(super) network: &'a mut LinkNetwork,
    pub(super) truth: &'a mut Truth,
    /// The author of the datagram that is being handled.
    pub(super) author: Option<usize>,
}

const FULL: LinkRefusal = LinkRefusal {
    code: RefusalCode::Full,
    is_passing: true,
    values: [0; 2],
    words: RefusalWords::new("no number is free"),
};

impl Hands<'_> {
    /// Takes a number for a link.
    fn take(&mut self, link: LinkRef, peer: usize) -> Option<u32> {
        if self.desk.made.contains_key(&link) {
            let at = self.desk.at;
            self.truth.violate(format!("process {at} makes resources twice for {link:?}"));
        }
        if self.desk.made.len() >= self.desk.most_numbers {
            self.desk.last_full = self.network.now;
            return None;
        }
        let number = self.truth.numbers.len() as u32 + 1;
        self.truth.numbers.insert(number, (self.desk.at, peer));
        let pair = [self.desk.at.min(peer), self.desk.at.max(peer)];
        *self.truth.tries.entry(pair).or_default() += 1;
        self.desk.made.insert(link, Made { own: number, ..Made::default() });
        self.desk.peers.insert(link, peer);
        Some(number)
    }

    /// Notes that this process refuses a call for want of a place.
    fn note_full(&mut self, message: &[u8]) {
        if message[3] == 7 && message[24..27] == [1, 0, 1] {
            self.desk.last_full = self.network.now;
        }
    }

    fn introduction(&self, number: u32, chosen: u8) -> LinkIntroduction {
        let packet_bytes = self.truth.shapes[self.desk.at];
        LinkIntroduction { number, packet_bytes, word: u64::from(number), chosen }
    }
}

/// Returns the offers for a carrier: the call of a pipe is longer.
fn offer(kind: CarrierKind, offers: &mut OfferList) -> u8 {
    let offer = match kind {
        CarrierKind::HandOff => LinkOffer::Segments(SegmentsOffer {
            geometry: [1, 2, 3],
            flags: 4,
            stamp: 5,
            processors: [6; 8],
            credit: 7,
        }),
        CarrierKind::Stream => {
            LinkOffer::Stream(StreamOffer { version: 1, streams: 1, receives: 2, port: 0, token: 0 })
        }
        CarrierKind::Datagram => {
            LinkOffer::Pipe(PipeOffer { design: 1, ring_bytes: 0, shape: 2, key: [3; 24] })
        }
    };
    offers.add(&offer);
    offer.code()
}

impl LinkOwner for Hands<'_> {
    fn random(&mut self) -> u64 {
        self.network.rng.next()
    }

    fn dial(&mut self, carrier: CarrierRef, kind: CarrierKind, peer: &PeerAddress) {
        let at = self.desk.at;
        let Ok(decoded) = LinkAddress::decode(peer) else { return };
        let same_host = |to: &usize| self.truth.hosts[*to] == self.truth.hosts[at];
        let to = match kind {
            CarrierKind::HandOff => self.truth.find(peer).filter(same_host),
            CarrierKind::Stream => self.truth.ports.get(&decoded.port).copied(),
            CarrierKind::Datagram => self.truth.find(peer),
        };
        match (kind, to) {
            (CarrierKind::Datagram, to) => {
                self.network.uses.insert((at, carrier), CarrierUse::Place(to.unwrap_or(usize::MAX)));
            }
            (_, Some(to)) => {
                self.network.connect(kind, (at, Some(carrier)), to, None);
            }
            // Nothing has this name on this host.
            (_, None) => {
                let id = self.network.connect(kind, (at, Some(carrier)), usize::MAX, None);
                let when = self.network.later(100);
                let failed = Happening::Failed(id, nemesia_core::link::machine::terms::DialFault::Nothing);
                self.network.schedule(when, at, failed);
            }
        }
    }

    fn send(&mut self, carrier: CarrierRef, message: &[u8]) -> bool {
        self.note_full(message);
        let at = self.desk.at;
        let Some(used) = self.network.uses.get(&(at, carrier)).copied() else { return true };
        match used {
            CarrierUse::Connection(id, side) => {
                let Some(connection) = self.network.connections.get(&id) else { return true };
                let other = connection.sides[1 - side].process;
                if message[3] == 3 && self.truth.recorded.len() < 64 {
                    self.truth.recorded.push((other, message.to_vec()));
                }
                let is_alive = self.truth.alive.contains(&other);
                self.network.send(id, side, message, is_alive)
            }
            CarrierUse::Place(to) => {
                if message.len() > nemesia_core::link::wire::MOST_DATAGRAM_BYTES {
                    self.truth.violate(format!("a datagram has {} bytes", message.len()));
                }
                self.network.datagram(at, to, message);
                true
            }
        }
    }

    fn respond(&mut self, message: &[u8]) {
        self.note_full(message);
        if let Some(author) = self.author {
            self.network.datagram(self.desk.at, author, message);
        }
    }

    fn close(&mut self, carrier: CarrierRef) {
        match self.network.uses.remove(&(self.desk.at, carrier)) {
            Some(CarrierUse::Connection(id, side)) => self.network.close(id, side),
            Some(CarrierUse::Place(_)) => {}
            None => {}
        }
    }

    fn withdraw(&mut self, carrier: CarrierRef) -> bool {
        match self.network.uses.get(&(self.desk.at, carrier)).copied() {
            Some(CarrierUse::Connection(id, side)) => self.network.withdraw(id, side),
            _ => false,
        }
    }

    fn is_from(&mut self, carrier: Option<CarrierRef>, peer: &PeerAddress) -> bool {
        let Ok(decoded) = LinkAddress::decode(peer) else { return false };
        let host = decoded.place[1];
        let Some(carrier) = carrier else {
            return self.author.is_some_and(|author| self.truth.hosts[author] == host);
        };
        let Some(CarrierUse::Connection(id, side)) = self.network.uses.get(&(self.desk.at, carrier)).copied()
        else {
            return false;
        };
        let Some(connection) = self.network.connections.get(&id) else { return false };
        let other = connection.sides[1 - side].process;
        match connection.kind {
            CarrierKind::HandOff => self.truth.pids[other] == decoded.pid && connection.stranger.is_none(),
            _ => self.truth.hosts[other] == host,
        }
    }

    fn admit(&mut self, _: &PeerAddress, _: LinkService) -> Result<(), LinkRefusal> {
        let words = RefusalWords::new("this process admits no unknown peers");
        let refusal = LinkRefusal { code: RefusalCode::Unknown, is_passing: false, values: [0; 2], words };
        if self.desk.admits { Ok(()) } else { Err(refusal) }
    }

    fn make(
        &mut self,
        link: LinkRef,
        (_, kind): (CarrierRef, CarrierKind),
        offers: &mut OfferList,
    ) -> Option<LinkIntroduction> {
        let peer = self.desk.peers.get(&link).copied().unwrap_or(usize::MAX);
        let number = self.take(link, peer)?;
        if let Some(made) = self.desk.made.get_mut(&link) {
            made.kind = kind;
        }
        let chosen = offer(kind, offers);
        Some(self.introduction(number, chosen))
    }

    fn grant(
        &mut self,
        link: LinkRef,
        _: CarrierRef,
        peer: &PeerAddress,
        call: &LinkCall<'_>,
        offers: &mut OfferList,
    ) -> Result<LinkIntroduction, LinkRefusal> {
        let (at, author) = (self.desk.at, self.truth.find(peer));
        let made = self.truth.numbers.get(&call.number).copied();
        if made.is_none() || made != author.map(|author| (author, at)) {
            self.truth.violate(format!("process {at} takes a stranger for process {author:?}"));
        }
        let author = author.unwrap_or(usize::MAX);
        self.desk.peers.insert(link, author);
        let heard = self.truth.heard.insert((at, link), call.call).unwrap_or(0);
        if call.call <= heard {
            let number = call.call;
            self.truth.violate(format!("{at} hears call {number} of {author}, which is over: {heard}"));
        }
        let (ours, theirs) = (self.truth.shapes[at], call.packet_bytes);
        if ours != theirs {
            let values = [u64::from(ours), u64::from(theirs)];
            let words = RefusalWords::new("the sizes of packets differ");
            return Err(LinkRefusal { code: RefusalCode::Shape, is_passing: false, values, words });
        }
        let number = self.take(link, author).ok_or(FULL)?;
        if !self.truth.granted.insert(call.number) {
            self.truth.violate(format!("process {at} answers a call of process {author} twice"));
        }
        if let Some(made) = self.desk.made.get_mut(&link) {
            made.peers = call.number;
        }
        let code = call.offers.iter().next().map_or(0, |offer| offer.code());
        let kind = match code {
            1 => CarrierKind::HandOff,
            2 => CarrierKind::Stream,
            _ => CarrierKind::Datagram,
        };
        let chosen = offer(kind, offers);
        Ok(self.introduction(number, chosen))
    }

    fn join(&mut self, link: LinkRef, answer: &LinkAnswer<'_>) -> PathResult {
        let at = self.desk.at;
        let peer = self.desk.peers.get(&link).copied().unwrap_or(usize::MAX);
        if self.truth.numbers.get(&answer.number) != Some(&(peer, at)) {
            self.truth.violate(format!("process {at} takes the answer of a stranger for process {peer}"));
        }
        let Some(made) = self.desk.made.get_mut(&link) else {
            self.truth.violate(format!("process {at} has an answer and made nothing for {link:?}"));
            return PathResult::Up(answer.chosen, "");
        };
        (made.peers, made.is_caller) = (answer.number, true);
        let own = made.own;
        let heard = self.truth.heard.entry((at, link)).or_default();
        *heard = answer.calls.max(*heard);
        match self.network.rng.below(40) {
            0..10 => {
                let when = self.network.later(100_000);
                let is_up = !self.network.rng.one_in(20);
                self.network.schedule(when, at, Happening::Path(peer, own, is_up));
                PathResult::Pending
            }
            10 => PathResult::Failed(self.no_path(peer)),
            _ => PathResult::Up(answer.chosen, ""),
        }
    }

    fn settle(&mut self, link: LinkRef, _: u8) {
        if !self.desk.made.contains_key(&link) {
            self.truth.violate(format!("a link is settled that has nothing: {link:?}"));
        }
    }

    fn unmake(&mut self, link: LinkRef) {
        self.desk.made.remove(&link);
    }

    fn report(&mut self, link: LinkRef, event: LinkEvent<'_>) {
        self.desk.told.push(match event {
            LinkEvent::Opened => Told::Opened(link),
            LinkEvent::Ended(end, _) => Told::Ended(link, end),
            LinkEvent::Restarted(rank, incarnation) => Told::Restarted(rank, incarnation),
        });
    }
}

impl Hands<'_> {
    /// Returns the refusal of an answer whose path cannot be made.
    pub(super) fn no_path(&mut self, peer: usize) -> LinkRefusal {
        let at = self.desk.at;
        let is_passing = self.network.rng.one_in(2);
        if is_passing {
            // This process lacks something for now.
            self.truth.disturb(at, peer);
            self.desk.last_full = self.network.now;
        } else {
            self.truth.pathless.insert([at.min(peer), at.max(peer)]);
        }
        let code = if is_passing { RefusalCode::Full } else { RefusalCode::Path };
        LinkRefusal { code, is_passing, values: [0; 2], words: RefusalWords::new("no path") }
    }
}
