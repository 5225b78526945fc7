//! What the machine of links asks of this process: connections, segments, and the kernel's word about a caller.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nemesia_core::link::address::LinkAddress;
use nemesia_core::link::machine::terms::{
    CarrierKind, CarrierRef, LinkEnding, LinkEvent, LinkIntroduction, LinkOwner, LinkRef, LinkRefusal,
    PathResult,
};
use nemesia_core::link::offers::{LinkOffer, LinkOffers, OfferList, SegmentsOffer};
use nemesia_core::link::refusal::{RefusalCode, RefusalWords};
use nemesia_core::link::wire::{
    LINK_VERSION, LeaveManner, LinkAnswer, LinkBody, LinkCall, LinkMessage, LinkService,
};
use nemesia_core::peers::PeerAddress;
use nemesia_core::shared::layout::Geometry;

use super::{CallGrant, CallOutcome, CallTerms};
use crate::error::Error;
use crate::os::shortage::Shortage;
use crate::os::{ForeignFd, HandoffConnection, Watch, random};
use crate::shm::address;
use crate::shm::joining::JoiningProcess;
use crate::shm::peer::{SaidProcess, ShmWorld, map};
use crate::shm::segments::{OwnLink, OwnSegments, Unjoined};

/// The code of the only offer.
const SEGMENTS: u8 = 1;
/// The flag of a process that is registered for `membarrier`.
const EXPEDITED: u32 = 1;

/// A connection, or one that is to be made.
#[derive(Debug)]
pub(super) struct HandOffCarrier {
    pub(super) kind: CarrierKind,
    /// The process that is called.
    pub(super) peer: PeerAddress,
    /// `None` until it is made.
    pub(super) connection: Option<Arc<HandoffConnection>>,
    pub(super) pidfd: Option<OwnedFd>,
    /// Those of its last message.
    pub(super) descriptors: Vec<ForeignFd>,
    /// The link for which segments were made.
    pub(super) link: Option<LinkRef>,
}

impl HandOffCarrier {
    /// Returns the connection of a process that has connected to this one.
    pub(super) fn accepted(connection: HandoffConnection) -> Self {
        let mut this = Self::to(CarrierKind::HandOff, PeerAddress::from_bytes([0; 64]));
        this.connect(connection);
        this
    }

    /// Returns a connection to a process that is to be made.
    const fn to(kind: CarrierKind, peer: PeerAddress) -> Self {
        Self { kind, peer, connection: None, pidfd: None, descriptors: Vec::new(), link: None }
    }

    pub(super) fn connect(&mut self, connection: HandoffConnection) {
        self.pidfd = connection.pidfd();
        self.connection = Some(Arc::new(connection));
    }
}

/// What this process has for a link that is not open.
#[derive(Debug)]
pub(super) struct CallParts {
    pub(super) peer: PeerAddress,
    /// The number by which this process knows the peer.
    pub(super) number: u32,
    carrier: Option<CarrierRef>,
    /// Our segment for it, for our call.
    own: Option<OwnLink>,
    /// The peer, whose segments are mapped.
    joining: Option<JoiningProcess>,
    /// When it was answered.
    pub(super) since: Duration,
    /// Something has lacked in this process since it was last connected.
    pub(super) is_short: bool,
    /// Why this process ends it.
    pub(super) problem: Option<String>,
}

impl CallParts {
    pub(super) const fn new(peer: PeerAddress, number: u32) -> Self {
        Self {
            peer,
            number,
            carrier: None,
            own: None,
            joining: None,
            since: Duration::ZERO,
            is_short: false,
            problem: None,
        }
    }
}

/// What this process has for its calls.
#[derive(Debug)]
pub(super) struct CallDesk {
    pub(super) world: Arc<ShmWorld>,
    ours: Arc<OwnSegments>,
    pub(super) place: LinkAddress,
    pub(super) own: PeerAddress,
    pub(super) carriers: BTreeMap<CarrierRef, HandOffCarrier>,
    pub(super) parts: BTreeMap<LinkRef, CallParts>,
    pub(super) outcomes: VecDeque<(PeerAddress, CallOutcome)>,
    /// The author of the message that is being handled, as far as the kernel can tell.
    author: Option<PeerAddress>,
    /// Links whose answers may be over.
    pub(super) touched: Vec<LinkRef>,
    /// Ranks that unknown processes claim to be, if no rank is started again.
    pub(super) claimed: Vec<u32>,
    pub(super) shortage: Shortage,
}

impl CallDesk {
    pub(super) fn new(
        (world, ours): (Arc<ShmWorld>, Arc<OwnSegments>),
        place: LinkAddress,
        shortage: Shortage,
    ) -> Self {
        Self {
            world,
            ours,
            own: place.encode(),
            place,
            carriers: BTreeMap::new(),
            parts: BTreeMap::new(),
            outcomes: VecDeque::new(),
            author: None,
            touched: Vec::new(),
            claimed: Vec::new(),
            shortage,
        }
    }

    /// Returns the owner of the links while they act.
    pub(super) const fn owner<'a, T>(&'a mut self, now: Duration, terms: &'a mut T) -> CallOwner<'a, T> {
        self.author = None;
        CallOwner { desk: self, now, terms }
    }

    /// Something lacks in this process for a link.
    pub(super) fn lack_for(&mut self, link: Option<LinkRef>) {
        if let Some(parts) = link.and_then(|link| self.parts.get_mut(&link)) {
            parts.is_short = true;
        }
    }

    /// Returns what lacks in this process, with the remedy, if no connection was made for long.
    pub(super) fn lasting(&self) -> Option<String> {
        let limit = Duration::from_secs(self.world.config.timeout_seconds.into());
        self.shortage.lasting(limit).map(str::to_owned)
    }

    /// Offers the segments of this process to a peer that it knows by `number`, with so much credit from the start.
    fn introduce(&self, number: u32, credit: u64, offers: &mut OfferList) -> LinkIntroduction {
        let ShmWorld { geometry, expedited, cpus, stamp, .. } = *self.world;
        let Geometry { cells, cell_bytes, fastbox_slots } = geometry;
        offers.add(&LinkOffer::Segments(SegmentsOffer {
            geometry: [cells, cell_bytes, fastbox_slots],
            flags: if expedited { EXPEDITED } else { 0 },
            stamp,
            processors: cpus,
            credit,
        }));
        LinkIntroduction { number, packet_bytes: cell_bytes, word: 0, chosen: 0 }
    }

    /// Maps the segments that a peer offers, whose number for this process is in the same message, with its incarnation
    /// and the number of its agreements.
    fn meet(
        &self,
        own: OwnLink,
        carrier: CarrierRef,
        (peer, offers): (&PeerAddress, LinkOffers<'_>),
        (number, incarnation, agreements): (u32, u64, u64),
    ) -> Result<JoiningProcess, Unjoined> {
        let epoch = address::decode(peer)?.token.epoch();
        let offer = offers.iter().find_map(|offer| match offer {
            LinkOffer::Segments(offer) => Some(offer),
            _ => None,
        });
        let offer = offer.ok_or_else(|| Unjoined::from("it offers no segments".to_owned()))?;
        let [cells, cell_bytes, fastbox_slots] = offer.geometry;
        let said = SaidProcess {
            epoch,
            number,
            geometry: Geometry { cells, cell_bytes, fastbox_slots },
            expedited: offer.flags & EXPEDITED != 0,
            stamp: offer.stamp,
            incarnation,
            agreements,
        };
        said.check_number()?;
        let it = self.carriers.get(&carrier);
        let (connection, descriptors) = it
            .and_then(|it| Some((it.connection.as_ref()?, &it.descriptors)))
            .ok_or_else(|| Unjoined::from("its connection has ended".to_owned()))?;
        let mapped = map(&self.world, connection, &said, descriptors)?;
        JoiningProcess::new((&self.world.config, &self.ours), own, (&said, mapped), Arc::clone(connection))
    }

    /// Records that something failed for a link, and returns the refusal. If the same cannot succeed later, its words
    /// behind `before` are the problem of the link.
    fn judge(&mut self, link: LinkRef, unjoined: Unjoined, before: &str) -> LinkRefusal {
        let (words, is_passing) = match unjoined {
            Unjoined::Problem(problem) => (problem, false),
            Unjoined::Shortage(error) => {
                self.shortage.record(&error);
                self.lack_for(Some(link));
                let lasting = self.lasting();
                let is_passing = lasting.is_none();
                (lasting.unwrap_or_else(|| error.to_string()), is_passing)
            }
        };
        if let Some(parts) = self.parts.get_mut(&link).filter(|_| !is_passing) {
            parts.problem = Some(format!("{before}{words}"));
        }
        refusal(if is_passing { RefusalCode::Full } else { RefusalCode::Shape }, &words, is_passing)
    }
}

/// The owner of the links while they act.
pub(super) struct CallOwner<'a, T> {
    pub(super) desk: &'a mut CallDesk,
    now: Duration,
    terms: &'a mut T,
}

/// The owner of links that may not be answered now.
pub(super) struct RefuseAll<'a>(pub(super) &'a Watch);

impl CallTerms for RefuseAll<'_> {
    fn watch(&self) -> &Watch {
        self.0
    }

    fn decide(&mut self, _: &PeerAddress) -> Result<CallGrant, (String, bool)> {
        Err(("this process is busy".into(), true))
    }

    fn hear_from(&mut self, _: &PeerAddress) {}
}

fn refusal(code: RefusalCode, words: &str, is_passing: bool) -> LinkRefusal {
    LinkRefusal { code, is_passing, values: [0; 2], words: RefusalWords::new(words) }
}

impl<T: CallTerms> CallOwner<'_, T> {
    /// Takes a connection out of the set.
    fn unattend(&self, it: &HandOffCarrier) {
        if let Some(connection) = &it.connection {
            self.terms.watch().unattend(connection.as_fd());
        }
    }

    fn bind(&mut self, link: LinkRef, carrier: CarrierRef) {
        if let Some(it) = self.desk.carriers.get_mut(&carrier) {
            it.link = Some(link);
        }
        if let Some(parts) = self.desk.parts.get_mut(&link) {
            parts.carrier = Some(carrier);
        }
    }

    /// Makes our segment for a peer that calls, and maps its own.
    fn answer(
        &mut self,
        link: LinkRef,
        carrier: CarrierRef,
        (peer, call, number): (&PeerAddress, &LinkCall<'_>, u32),
    ) -> Result<JoiningProcess, LinkRefusal> {
        let own = self.desk.ours.link(number).map_err(Unjoined::from);
        let said = (call.number, call.incarnation, 0);
        let met = own.and_then(|own| self.desk.meet(own, carrier, (peer, call.offers), said));
        met.map_err(|unjoined| self.desk.judge(link, unjoined, "its call was refused: "))
    }
}

impl<T: CallTerms> LinkOwner for CallOwner<'_, T> {
    fn random(&mut self) -> u64 {
        // The kernel shows the messages of a hand-off socket to its two ends only: no number has to be secret.
        random().map_or(0, u64::from_le_bytes)
    }

    fn dial(&mut self, carrier: CarrierRef, kind: CarrierKind, peer: &PeerAddress) {
        // The connection is made by the next look.
        self.desk.carriers.insert(carrier, HandOffCarrier::to(kind, *peer));
    }

    fn send(&mut self, carrier: CarrierRef, message: &[u8]) -> bool {
        let CallDesk { carriers, parts, ours, shortage, .. } = &mut *self.desk;
        // The connection of an open link belongs to the watch, which says the goodbye.
        let Some(it) = carriers.get(&carrier) else { return true };
        let Some(connection) = &it.connection else { return true };
        let mut parts = it.link.and_then(|link| parts.get_mut(&link));
        let own = parts.as_ref().and_then(|it| {
            let joining = it.joining.as_ref().map(JoiningProcess::own_link);
            joining.or(it.own.as_ref())
        });
        let body = LinkMessage::decode(message, LINK_VERSION).map(|message| message.body);
        let is_offer = matches!(body, Ok(LinkBody::Call(_) | LinkBody::Answer(_)));
        let descriptors = own.filter(|_| is_offer).map_or_else(Vec::new, |own| ours.descriptors(own));
        let sent = connection.send(message, &descriptors, Instant::now());
        if let Some(joining) = parts.as_mut().and_then(|parts| parts.joining.as_mut()) {
            // The caller has its copy, and no other process needs one.
            joining.close_descriptor();
        }
        if let Ok(LinkBody::Leave(manner)) = body {
            // If the peer is open already, its watch reads this packet.
            let _ = match manner {
                LeaveManner::Dropped => connection.send_dropped(),
                _ => connection.send_goodbye(),
            };
        }
        match sent {
            Ok(()) => true,
            Err(error) => {
                if error.is_shortage() {
                    shortage.record(&error);
                    if let Some(parts) = parts {
                        parts.is_short = true;
                    }
                }
                false
            }
        }
    }

    fn respond(&mut self, _: &[u8]) {}

    fn close(&mut self, carrier: CarrierRef) {
        if let Some(it) = self.desk.carriers.remove(&carrier) {
            self.unattend(&it);
        }
    }

    fn withdraw(&mut self, carrier: CarrierRef) -> bool {
        let it = self.desk.carriers.get(&carrier).and_then(|it| it.connection.as_ref());
        if let Some(connection) = it {
            connection.refuse_packets();
            if connection.recv(&mut [0; 1], 0, Instant::now()).is_ok() {
                // It confirmed between the last look and this one, and sees that the connection has ended. Any later
                // confirmation fails at the caller, which then calls once more.
                let _ = connection.send_dropped();
            }
        }
        false
    }

    fn is_from(&mut self, carrier: Option<CarrierRef>, peer: &PeerAddress) -> bool {
        let connection = carrier.and_then(|carrier| self.desk.carriers.get(&carrier)?.connection.as_ref());
        let (Some(connection), Ok(claimed)) = (connection, address::decode(peer)) else { return false };
        let place = &self.desk.place;
        let is_its = claimed.shares_machine(place) && address::check(&claimed, place, connection).is_ok();
        if is_its {
            self.desk.author = Some(*peer);
            self.terms.hear_from(peer);
        }
        is_its
    }

    fn admit(&mut self, _: &PeerAddress, _: LinkService) -> Result<(), LinkRefusal> {
        // The terms decide about each call.
        Ok(())
    }

    fn make(
        &mut self,
        link: LinkRef,
        (carrier, _): (CarrierRef, CarrierKind),
        offers: &mut OfferList,
    ) -> Option<LinkIntroduction> {
        let number = self.desk.parts.get(&link)?.number;
        let own = match self.desk.ours.link(number) {
            Ok(own) => own,
            Err(Error::Shm(error)) => {
                self.desk.shortage.record(&error);
                self.desk.lack_for(Some(link));
                return None;
            }
            Err(_) => return None,
        };
        self.bind(link, carrier);
        self.desk.parts.get_mut(&link)?.own = Some(own);
        Some(self.desk.introduce(number, 0, offers))
    }

    fn grant(
        &mut self,
        link: LinkRef,
        carrier: CarrierRef,
        peer: &PeerAddress,
        call: &LinkCall<'_>,
        offers: &mut OfferList,
    ) -> Result<LinkIntroduction, LinkRefusal> {
        let CallGrant { number, units, word } = self.terms.decide(peer).map_err(|(words, is_passing)| {
            let code = if is_passing { RefusalCode::Full } else { RefusalCode::Unknown };
            refusal(code, &words, is_passing)
        })?;
        self.desk.touched.push(link);
        let parts = self.desk.parts.entry(link).or_insert_with(|| CallParts::new(*peer, number));
        (parts.number, parts.own, parts.since) = (number, None, self.now);
        self.bind(link, carrier);
        let joining = self.answer(link, carrier, (peer, call, number))?;
        // The caller may send as soon as it has confirmed.
        joining.grant(units);
        if let Some(parts) = self.desk.parts.get_mut(&link) {
            parts.joining = Some(joining);
        }
        Ok(LinkIntroduction { word, chosen: SEGMENTS, ..self.desk.introduce(number, units, offers) })
    }

    fn join(&mut self, link: LinkRef, answer: &LinkAnswer<'_>) -> PathResult {
        let Some(parts) = self.desk.parts.get_mut(&link) else {
            return PathResult::Failed(refusal(RefusalCode::Path, "the call is over", true));
        };
        let (peer, own, carrier) = (parts.peer, parts.own.take(), parts.carrier);
        let met = match own.zip(carrier) {
            Some((mut own, carrier)) => {
                // The peer has got it with the call.
                own.close_descriptor();
                let said = (answer.number, answer.incarnation, answer.word);
                self.desk.meet(own, carrier, (&peer, answer.offers), said)
            }
            None => Err(Unjoined::from("the call is over".to_owned())),
        };
        match met {
            Ok(joining) => {
                if let Some(parts) = self.desk.parts.get_mut(&link) {
                    parts.joining = Some(joining);
                }
                PathResult::Up(SEGMENTS, "")
            }
            Err(unjoined) => PathResult::Failed(self.desk.judge(link, unjoined, "")),
        }
    }

    fn settle(&mut self, _: LinkRef, _: u8) {}

    fn unmake(&mut self, link: LinkRef) {
        if let Some(parts) = self.desk.parts.get_mut(&link) {
            (parts.carrier, parts.own, parts.joining) = (None, None, None);
            self.desk.touched.push(link);
        }
    }

    fn report(&mut self, link: LinkRef, event: LinkEvent<'_>) {
        match event {
            // It waits until it is asked for.
            LinkEvent::Restarted(..) if self.desk.world.restarts => {}
            LinkEvent::Restarted(rank, _) => self.desk.claimed.push(rank),
            LinkEvent::Opened => {
                let Some(parts) = self.desk.parts.remove(&link) else { return };
                if let Some(it) = parts.carrier.and_then(|carrier| self.desk.carriers.remove(&carrier)) {
                    self.unattend(&it);
                }
                self.desk.shortage.end();
                if let Some(joining) = parts.joining {
                    self.desk.outcomes.push_back((parts.peer, CallOutcome::Opened(Box::new(joining))));
                }
            }
            LinkEvent::Ended(end, words) => {
                let parts = self.desk.parts.remove(&link);
                // A rank that was never met has departed, if there is no more of it than its word.
                let peer = parts.as_ref().map(|parts| parts.peer).or(self.desk.author);
                let problem = parts.and_then(|parts| parts.problem);
                if let Some(peer) = peer {
                    let ended = outcome_of(end, words, problem, &self.desk.shortage);
                    self.desk.outcomes.push_back((peer, ended));
                }
            }
        }
    }
}

/// Returns the outcome of a call that has ended.
fn outcome_of(end: LinkEnding, words: &str, problem: Option<String>, shortage: &Shortage) -> CallOutcome {
    if let Some(problem) = problem {
        return CallOutcome::Ended(LinkEnding::Refused(RefusalCode::Path), problem);
    }
    let text = match end {
        LinkEnding::Refused(_) if words.is_empty() => "it refused the connection".into(),
        LinkEnding::Refused(_) => format!("it refused the connection: {words}"),
        LinkEnding::Unreachable => shortage.present().map_or_else(
            || "it has not answered in time: does it progress, or is it overloaded?".into(),
            str::to_owned,
        ),
        _ => String::new(),
    };
    CallOutcome::Ended(end, text)
}
