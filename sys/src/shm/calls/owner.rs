//! What the machine of links asks of this process: connections, segments, streams, and where a caller is.

use std::io::ErrorKind;
use std::time::{Duration, Instant};

use nemesia_core::link::machine::terms::{
    CarrierKind, CarrierRef, LinkEvent, LinkIntroduction, LinkOwner, LinkRef, LinkRefusal, PathResult,
};
use nemesia_core::link::offers::{LinkOffers, OfferList};
use nemesia_core::link::refusal::RefusalCode;
use nemesia_core::link::wire::{
    LINK_VERSION, LeaveManner, LinkAnswer, LinkBody, LinkCall, LinkMessage, LinkService,
};
use nemesia_core::peers::PeerAddress;
use nemesia_core::port::memory::Address;

use super::desk::{CallDesk, CallParts, CarrierLine, HandOffLine, LinkCarrier, refusal};
use super::{CallGrant, CallOutcome, CallTerms};
use crate::error::Error;
use crate::os::{ShmError, Watch, random};
use crate::shm::address;
use crate::shm::joining::JoiningProcess;
use crate::shm::segments::Unjoined;
use crate::transport::net::{STREAM, StreamPeer};

/// The code of the offer of segments.
const SEGMENTS: u8 = 1;
/// What precedes the reason for which this process has refused a call of the peer.
const REFUSED: &str = "its call was refused: ";

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

    fn granted(&self, _: u32) -> u64 {
        0
    }

    fn hear_from(&mut self, _: &PeerAddress) {}

    fn open_port(&mut self) -> Result<Address, ShmError> {
        Err(ShmError::system("opening the port to other machines", ErrorKind::ResourceBusy.into()))
    }

    fn expect_stream(&mut self, _: u32) -> Result<(), String> {
        Err("this process is busy".into())
    }
}

impl CallDesk {
    /// Returns the owner of the links while they act.
    pub(super) const fn owner<'a, T>(&'a mut self, now: Duration, terms: &'a mut T) -> CallOwner<'a, T> {
        self.author = None;
        CallOwner { desk: self, now, terms }
    }
}

impl<T: CallTerms> CallOwner<'_, T> {
    /// Takes a connection out of the set.
    fn unattend(&self, it: &LinkCarrier) {
        if let Some(line) = &it.line {
            self.terms.watch().unattend(line.descriptor());
        }
    }

    /// Sends a message over hand-off, with the descriptors of a call or an answer.
    fn hand_off(&mut self, carrier: CarrierRef, message: &[u8]) -> bool {
        let CallDesk { carriers, parts, ours, shortage, .. } = &mut *self.desk;
        let Some(it) = carriers.get(&carrier) else { return true };
        let Some(HandOffLine { connection, .. }) = it.hand_off() else { return true };
        let mut parts = it.link.and_then(|link| parts.get_mut(&link));
        let own = parts.as_ref().and_then(|it| {
            let joining = it.joining.as_ref().map(|joining| joining.own_link());
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

    /// Checks what a peer on another machine offers, whose packets have this size. The error is one line.
    fn check_stream(
        &self,
        peer: &PeerAddress,
        offers: LinkOffers<'_>,
        packet_bytes: u32,
    ) -> Result<StreamPeer, String> {
        let at = address::decode(peer).ok().and_then(|place| address::remote(&place));
        let door = self.desk.door.as_ref().ok_or("the network is off")?;
        door.check(offers, packet_bytes, at)
    }

    /// Makes place for the stream of a peer that knows this process by `theirs`. The error is one line.
    fn expect_stream(&mut self, link: LinkRef, offered: StreamPeer, theirs: u32) -> Result<(), String> {
        let Some(parts) = self.desk.parts.get_mut(&link) else { return Ok(()) };
        parts.stream = Some((offered, theirs));
        self.terms.expect_stream(parts.number)
    }

    fn bind(&mut self, link: LinkRef, carrier: CarrierRef) {
        if let Some(it) = self.desk.carriers.get_mut(&carrier) {
            it.link = Some(link);
        }
        if let Some(parts) = self.desk.parts.get_mut(&link) {
            parts.carrier = Some(carrier);
        }
    }

    /// Answers a call over the connection of the call, by a peer that knows this process by `theirs`.
    fn grant_across(
        &mut self,
        link: LinkRef,
        offered: StreamPeer,
        (theirs, number): (u32, u32),
        offers: &mut OfferList,
    ) -> Result<LinkIntroduction, LinkRefusal> {
        let offered = self.terms.open_port().map_err(Unjoined::Shortage).and_then(|further| {
            self.expect_stream(link, offered, theirs)?;
            Ok(self.desk.offer_stream((number, &further), offers)?)
        });
        let introduction = offered.map_err(|unjoined| self.desk.judge(link, unjoined, REFUSED))?;
        Ok(LinkIntroduction { chosen: STREAM, ..introduction })
    }

    /// Answers a call with segments, and with so much credit.
    fn grant_here(
        &mut self,
        link: LinkRef,
        carrier: CarrierRef,
        (peer, call): (&PeerAddress, &LinkCall<'_>),
        (number, units): (u32, u64),
        offers: &mut OfferList,
    ) -> Result<LinkIntroduction, LinkRefusal> {
        let joining = self.answer(link, carrier, (peer, call, number))?;
        // The caller may send as soon as it has confirmed.
        joining.grant(units);
        if let Some(parts) = self.desk.parts.get_mut(&link) {
            parts.joining = Some(joining);
        }
        Ok(LinkIntroduction { chosen: SEGMENTS, ..self.desk.introduce(number, units, offers) })
    }

    /// Makes our segment for a peer that calls, and maps its own.
    fn answer(
        &mut self,
        link: LinkRef,
        carrier: CarrierRef,
        (peer, call, number): (&PeerAddress, &LinkCall<'_>, u32),
    ) -> Result<Box<JoiningProcess>, LinkRefusal> {
        let own = self.desk.ours.link(number).map_err(Unjoined::from);
        let said = (call.number, call.incarnation, 0);
        let met = own.and_then(|own| self.desk.meet(own, carrier, (peer, call.offers), said));
        met.map_err(|unjoined| self.desk.judge(link, unjoined, REFUSED))
    }
}

impl<T: CallTerms> LinkOwner for CallOwner<'_, T> {
    fn random(&mut self) -> u64 {
        // The kernel shows the messages of a connection to its two ends only: no number has to be secret.
        random().map_or(0, u64::from_le_bytes)
    }

    fn dial(&mut self, carrier: CarrierRef, kind: CarrierKind, peer: &PeerAddress) {
        // The connection is made by the next look.
        self.desk.carriers.insert(carrier, LinkCarrier::to(kind, *peer));
    }

    fn send(&mut self, carrier: CarrierRef, message: &[u8]) -> bool {
        // The connection of an open link belongs to the watch or the port, which says the goodbye.
        match self.desk.carriers.get_mut(&carrier).and_then(|it| it.line.as_mut()) {
            None => true,
            Some(CarrierLine::Stream(line)) => line.send(message),
            Some(CarrierLine::HandOff(_)) => self.hand_off(carrier, message),
        }
    }

    fn respond(&mut self, _: &[u8]) {}

    fn close(&mut self, carrier: CarrierRef) {
        if let Some(it) = self.desk.carriers.remove(&carrier) {
            self.unattend(&it);
            if let Some(CarrierLine::Stream(line)) = &it.line {
                line.finish();
            }
        }
    }

    fn withdraw(&mut self, carrier: CarrierRef) -> bool {
        let line = self.desk.carriers.get(&carrier).and_then(LinkCarrier::hand_off);
        if let Some(HandOffLine { connection, .. }) = line {
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
        let line = carrier.and_then(|carrier| self.desk.carriers.get(&carrier)?.line.as_ref());
        let (Some(line), Ok(claimed)) = (line, address::decode(peer)) else { return false };
        let place = &self.desk.place;
        let is_its = match line {
            CarrierLine::HandOff(HandOffLine { connection, .. }) => {
                claimed.shares_machine(place) && address::check(&claimed, place, connection).is_ok()
            }
            CarrierLine::Stream(line) => address::remote(&claimed).is_some_and(|at| at.ip() == line.from),
        };
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
        (carrier, kind): (CarrierRef, CarrierKind),
        offers: &mut OfferList,
    ) -> Option<LinkIntroduction> {
        let parts = self.desk.parts.get_mut(&link)?;
        parts.is_caller = true;
        let number = parts.number;
        if kind == CarrierKind::Stream {
            self.bind(link, carrier);
            return match self.terms.open_port() {
                Ok(further) => self.desk.offer_stream((number, &further), offers).ok(),
                Err(error) => {
                    self.desk.lack(&error, Some(link));
                    None
                }
            };
        }
        let own = match self.desk.ours.link(number) {
            Ok(own) => own,
            Err(Error::Shm(error)) => {
                self.desk.lack(&error, Some(link));
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
        let stream = match self.desk.is_stream(carrier) {
            true => {
                let checked = self.check_stream(peer, call.offers, call.packet_bytes);
                Some(checked.map_err(|problem| refusal(RefusalCode::Shape, &problem, false))?)
            }
            false => None,
        };
        let CallGrant { number, units, word } = self.terms.decide(peer).map_err(|(words, is_passing)| {
            let code = if is_passing { RefusalCode::Full } else { RefusalCode::Unknown };
            refusal(code, &words, is_passing)
        })?;
        self.desk.touched.push(link);
        let parts = self.desk.parts.entry(link).or_insert_with(|| CallParts::new(*peer, number));
        (parts.number, parts.own, parts.since, parts.is_caller) = (number, None, self.now, false);
        self.bind(link, carrier);
        let introduction = match stream {
            Some(offered) => self.grant_across(link, offered, (call.number, number), offers)?,
            None => self.grant_here(link, carrier, (peer, call), (number, units), offers)?,
        };
        Ok(LinkIntroduction { word, ..introduction })
    }

    fn join(&mut self, link: LinkRef, answer: &LinkAnswer<'_>) -> PathResult {
        let Some(parts) = self.desk.parts.get_mut(&link) else {
            return PathResult::Failed(refusal(RefusalCode::Path, "the call is over", true));
        };
        let (peer, number, own, carrier) = (parts.peer, parts.number, parts.own.take(), parts.carrier);
        if carrier.is_some_and(|carrier| self.desk.is_stream(carrier)) {
            let checked = self.check_stream(&peer, answer.offers, answer.packet_bytes);
            return match checked.and_then(|offered| self.expect_stream(link, offered, answer.number)) {
                Ok(()) => PathResult::Up(STREAM, ""),
                Err(problem) => PathResult::Failed(self.desk.judge(link, problem.into(), "")),
            };
        }
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
                // The peer may send as soon as it has the confirmation, and may make no progress after that.
                joining.grant(self.terms.granted(number));
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
            (parts.carrier, parts.own, parts.joining, parts.stream) = (None, None, None, None);
            self.desk.touched.push(link);
        }
    }

    fn report(&mut self, link: LinkRef, event: LinkEvent<'_>) {
        match event {
            // It waits until it is asked for.
            LinkEvent::Restarted(..) if self.desk.world.restarts => {}
            LinkEvent::Restarted(rank, _) => self.desk.claimed.push(rank),
            LinkEvent::Opened => {
                let Some(mut parts) = self.desk.parts.remove(&link) else { return };
                let it = parts.carrier.and_then(|carrier| self.desk.carriers.remove(&carrier));
                if let Some(it) = &it {
                    self.unattend(it);
                }
                self.desk.shortage.end();
                let opened = match it.and_then(|it| it.line) {
                    Some(CarrierLine::Stream(line)) => parts.opened_stream(link, *line),
                    _ => parts.joining.take().map(CallOutcome::Opened),
                };
                self.desk.outcomes.extend(opened.map(|opened| (parts.peer, opened)));
            }
            LinkEvent::Ended(end, words) => {
                let parts = self.desk.parts.remove(&link);
                // A rank that was never met has departed, if there is no more of it than its word.
                let peer = parts.as_ref().map(|parts| parts.peer).or(self.desk.author);
                if let Some(peer) = peer {
                    let ended = self.desk.outcome_of(end, words, parts);
                    self.desk.outcomes.push_back((peer, ended));
                }
            }
        }
    }
}
