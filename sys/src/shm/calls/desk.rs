//! What this process has for its calls: connections, segments, and what peers have offered.

use std::collections::{BTreeMap, VecDeque};
#[cfg(test)]
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use nemesia_core::job_key::{JobKey, KEY_BYTES};
use nemesia_core::link::address::LinkAddress;
use nemesia_core::link::machine::terms::{
    CarrierKind, CarrierRef, LinkEnding, LinkIntroduction, LinkRef, LinkRefusal,
};
use nemesia_core::link::offers::{LinkOffer, LinkOffers, OfferList, SegmentsOffer};
use nemesia_core::link::proof::TokenMask;
use nemesia_core::link::refusal::{RefusalCode, RefusalWords};
use nemesia_core::peers::PeerAddress;
use nemesia_core::port::channel::Acquaintance;
use nemesia_core::port::memory::Address;
use nemesia_core::shared::layout::Geometry;

use super::CallOutcome;
use crate::os::shortage::Shortage;
use crate::os::{ForeignFd, HandoffConnection, ShmError};
use crate::shm::address;
use crate::shm::joining::JoiningProcess;
use crate::shm::peer::{SaidProcess, ShmWorld, map};
use crate::shm::segments::{OwnLink, OwnSegments, Unjoined};
use crate::transport::net::{
    CHECK_NETWORK, EnteredStream, OTHER_DIRECTION, StreamDoor, StreamLine, StreamPeer,
};

/// The remedy if a process on another machine does not believe the proof of this one.
const CHECK_KEY: &str = ": check NEMESIA_JOB_KEY_FILE in both processes, and that NEMESIA_NET_ADDRESS of each is the \
                         address from which it connects";
/// The flag of a process that is registered for `membarrier`.
const EXPEDITED: u32 = 1;

/// A connection.
#[derive(Debug)]
pub(super) enum CarrierLine {
    HandOff(HandOffLine),
    Stream(Box<StreamLine>),
}

/// A connection inside the machine.
#[derive(Debug)]
pub(super) struct HandOffLine {
    pub(super) connection: Arc<HandoffConnection>,
    pub(super) pidfd: Option<OwnedFd>,
    /// Those of its last message.
    pub(super) descriptors: Vec<ForeignFd>,
}

impl CarrierLine {
    pub(super) fn hand_off(connection: HandoffConnection) -> Self {
        let pidfd = connection.pidfd();
        Self::HandOff(HandOffLine { connection: Arc::new(connection), pidfd, descriptors: Vec::new() })
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        match self {
            Self::HandOff(line) => line.connection.as_fd(),
            Self::Stream(line) => line.descriptor(),
        }
    }
}

/// What carries the messages of a link: a connection, or one that is to be made.
#[derive(Debug)]
pub(super) struct LinkCarrier {
    pub(super) kind: CarrierKind,
    /// The process that is called.
    pub(super) peer: PeerAddress,
    /// `None` until it is made.
    pub(super) line: Option<CarrierLine>,
    /// Whether the other end, or its kernel, has taken it.
    pub(super) is_reached: bool,
    /// The link for which something was made.
    pub(super) link: Option<LinkRef>,
    /// Another process has made it.
    is_accepted: bool,
}

impl LinkCarrier {
    /// Returns the connection of a process that has connected to this one.
    pub(super) const fn accepted(kind: CarrierKind, line: CarrierLine) -> Self {
        let peer = PeerAddress::from_bytes([0; 64]);
        Self { kind, peer, line: Some(line), is_reached: true, link: None, is_accepted: true }
    }

    /// Returns a connection to a process that is to be made.
    pub(super) const fn to(kind: CarrierKind, peer: PeerAddress) -> Self {
        Self { kind, peer, line: None, is_reached: false, link: None, is_accepted: false }
    }

    /// Returns whether it is that of another process whose call has not come.
    pub(super) const fn is_silent(&self) -> bool {
        self.is_accepted && self.link.is_none()
    }

    pub(super) fn hand_off(&self) -> Option<&HandOffLine> {
        match &self.line {
            Some(CarrierLine::HandOff(line)) => Some(line),
            _ => None,
        }
    }
}

/// What this process has for a link that is not open.
#[derive(Debug)]
pub(super) struct CallParts {
    pub(super) peer: PeerAddress,
    /// The number by which this process knows the peer.
    pub(super) number: u32,
    pub(super) carrier: Option<CarrierRef>,
    /// Our segment for it, for our call.
    pub(super) own: Option<OwnLink>,
    /// The peer, whose segments are mapped.
    pub(super) joining: Option<Box<JoiningProcess>>,
    /// What the peer offers between machines, and the number by which it knows this process.
    pub(super) stream: Option<(StreamPeer, u32)>,
    /// Whether this process calls.
    pub(super) is_caller: bool,
    /// When it was answered.
    pub(super) since: Duration,
    /// Something has lacked in this process since it was last connected.
    pub(super) is_short: bool,
    /// Why this process ends it.
    pub(super) problem: Option<String>,
    /// Why the last attempt has failed, and whether the peer's machine was reached.
    pub(super) attempt: Option<(String, bool)>,
}

impl CallParts {
    pub(super) const fn new(peer: PeerAddress, number: u32) -> Self {
        Self {
            peer,
            number,
            carrier: None,
            own: None,
            joining: None,
            stream: None,
            is_caller: false,
            since: Duration::ZERO,
            is_short: false,
            problem: None,
            attempt: None,
        }
    }

    /// Returns what the peer and this process have agreed upon, with the connection that carries its packets now.
    pub(super) fn opened_stream(&self, link: LinkRef, line: StreamLine) -> Option<CallOutcome> {
        let (StreamPeer { receives, further }, number) = self.stream?;
        // Tickets of the link replace the numbers and the keys.
        let known = Acquaintance { token: 0, expected: 0, number, key: JobKey::from_bytes([0; KEY_BYTES]) };
        let (socket, is_caller) = (line.into_socket(), self.is_caller);
        let mask = TokenMask::new(&[0; 16]);
        let entered =
            EnteredStream { number: self.number, socket, receives, known, further, is_caller, mask };
        Some(CallOutcome::Streamed(link, Box::new(entered)))
    }
}

/// What this process has for its calls.
#[derive(Debug)]
pub(super) struct CallDesk {
    pub(super) world: Arc<ShmWorld>,
    pub(super) ours: Arc<OwnSegments>,
    pub(super) place: LinkAddress,
    pub(super) own: PeerAddress,
    pub(super) carriers: BTreeMap<CarrierRef, LinkCarrier>,
    pub(super) parts: BTreeMap<LinkRef, CallParts>,
    pub(super) outcomes: VecDeque<(PeerAddress, CallOutcome)>,
    /// The author of the message that is being handled, as far as the kernel can tell.
    pub(super) author: Option<PeerAddress>,
    /// Links whose answers may be over.
    pub(super) touched: Vec<LinkRef>,
    /// Ranks that unknown processes claim to be, if no rank is started again.
    pub(super) claimed: Vec<u32>,
    pub(super) shortage: Shortage,
    /// Where this process takes calls from other machines, if it does.
    pub(super) door: Option<Box<StreamDoor>>,
    /// Why it does not.
    pub(super) closed: String,
    /// Our calls go to this place of the network.
    #[cfg(test)]
    pub(super) redirected: Option<SocketAddr>,
}

impl CallDesk {
    pub(super) fn new(
        (world, ours): (Arc<ShmWorld>, Arc<OwnSegments>),
        (place, door, closed): (LinkAddress, Option<Box<StreamDoor>>, String),
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
            door,
            closed,
            #[cfg(test)]
            redirected: None,
        }
    }

    /// Records why an attempt for a link has failed, and whether the peer's machine was reached.
    pub(super) fn note_attempt(&mut self, link: Option<LinkRef>, why: Option<String>, is_reached: bool) {
        if let Some(parts) = link.and_then(|link| self.parts.get_mut(&link)) {
            let (last, was_reached) = parts.attempt.get_or_insert_default();
            *was_reached = is_reached;
            if let Some(why) = why {
                *last = why;
            }
        }
    }

    /// Something lacks in this process for a link.
    pub(super) fn lack_for(&mut self, link: Option<LinkRef>) {
        if let Some(parts) = link.and_then(|link| self.parts.get_mut(&link)) {
            parts.is_short = true;
        }
    }

    /// As [`CallDesk::lack_for`], because this has failed.
    pub(super) fn lack(&mut self, error: &ShmError, link: Option<LinkRef>) {
        self.shortage.record(error);
        self.lack_for(link);
    }

    /// Returns what lacks in this process, with the remedy, if no connection was made for long.
    pub(super) fn lasting(&self) -> Option<String> {
        let limit = Duration::from_secs(self.world.config.timeout_seconds.into());
        self.shortage.lasting(limit).map(str::to_owned)
    }

    /// Offers the segments of this process to a peer that it knows by `number`, with so much credit from the start.
    pub(super) fn introduce(&self, number: u32, credit: u64, offers: &mut OfferList) -> LinkIntroduction {
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
    pub(super) fn meet(
        &self,
        own: OwnLink,
        carrier: CarrierRef,
        (peer, offers): (&PeerAddress, LinkOffers<'_>),
        (number, incarnation, agreements): (u32, u64, u64),
    ) -> Result<Box<JoiningProcess>, Unjoined> {
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
        let HandOffLine { connection, descriptors, .. } = self
            .carriers
            .get(&carrier)
            .and_then(LinkCarrier::hand_off)
            .ok_or_else(|| Unjoined::from("its connection has ended".to_owned()))?;
        let mapped = map(&self.world, connection, &said, descriptors)?;
        let lent = (&self.world.config, &self.ours);
        JoiningProcess::new(lent, own, (&said, mapped), Arc::clone(connection)).map(Box::new)
    }

    /// Offers the connection of a call as the stream to a peer that this process knows by `number`, and further ones at
    /// this address. The error is one line.
    pub(super) fn offer_stream(
        &self,
        (number, further): (u32, &Address),
        offers: &mut OfferList,
    ) -> Result<LinkIntroduction, String> {
        let door = self.door.as_ref().ok_or("the network is off")?;
        let (offer, packet_bytes) = door.offer(further)?;
        offers.add(&offer);
        Ok(LinkIntroduction { number, packet_bytes, word: 0, chosen: 0 })
    }

    pub(super) fn is_stream(&self, carrier: CarrierRef) -> bool {
        self.carriers.get(&carrier).is_some_and(|it| it.kind == CarrierKind::Stream)
    }

    /// Returns the outcome of a call that has ended, in these words of the machine.
    pub(super) fn outcome_of(&self, end: LinkEnding, words: &str, parts: Option<CallParts>) -> CallOutcome {
        let (problem, attempt) = parts.map_or((None, None), |parts| (parts.problem, parts.attempt));
        if let Some(problem) = problem {
            return CallOutcome::Ended(LinkEnding::Refused(RefusalCode::Path), problem);
        }
        let text = match end {
            LinkEnding::Refused(_) if words.is_empty() => "it refused the connection".into(),
            LinkEnding::Refused(RefusalCode::Proof) if attempt.is_some() => {
                format!("it refused the connection: {words}{CHECK_KEY}")
            }
            LinkEnding::Refused(_) => format!("it refused the connection: {words}"),
            LinkEnding::Unreachable => match (self.shortage.present(), attempt) {
                (Some(present), _) => present.to_owned(),
                (None, Some((last, is_reached))) => {
                    let limit = Duration::from_secs(self.world.config.timeout_seconds.into());
                    let (remedy, direction) = if is_reached {
                        (": does it progress?", "")
                    } else {
                        (CHECK_NETWORK, OTHER_DIRECTION)
                    };
                    let last = if last.is_empty() { last } else { format!(": {last}") };
                    format!("it has not answered within {limit:?}{last}{remedy}{direction}")
                }
                (None, None) => "it has not answered in time: does it progress, or is it overloaded?".into(),
            },
            _ => String::new(),
        };
        CallOutcome::Ended(end, text)
    }

    /// Records that something failed for a link, and returns the refusal. If the same cannot succeed later, its words
    /// behind `before` are the problem of the link.
    pub(super) fn judge(&mut self, link: LinkRef, unjoined: Unjoined, before: &str) -> LinkRefusal {
        let (words, is_passing) = match unjoined {
            Unjoined::Problem(problem) => (problem, false),
            Unjoined::Shortage(error) => {
                self.lack(&error, Some(link));
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

/// Returns a refusal of this process.
pub(super) fn refusal(code: RefusalCode, words: &str, is_passing: bool) -> LinkRefusal {
    LinkRefusal { code, is_passing, values: [0; 2], words: RefusalWords::new(words) }
}
