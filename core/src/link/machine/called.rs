//! The side of a link that is called.
#![forbid(unsafe_code)]

use core::borrow::Borrow;
use core::time::Duration;

use super::slots::{CarrierRole, LinkStorage};
use super::table::{Links, refused};
use super::terms::{CarrierKind, LinkEnding, LinkEvent, LinkOwner, LinkRef, LinkRefusal, LinkStage};
use crate::link::bytes::LinkBytes;
use crate::link::offers::OfferList;
use crate::link::proof::NO_CHALLENGE;
use crate::link::wire::{
    LinkAnswer, LinkBody, LinkCall, LinkConfirm, LinkHeader, LinkMessage, LinkService, RefusalCode,
};
use crate::peers::PeerAddress;
use crate::slab::NONE;
use crate::wire::hello::{Challenge, Proof};

/// A call that has proved itself, and its author.
#[derive(Clone, Copy, Debug)]
struct ProvedCall<'a> {
    peer: PeerAddress,
    header: LinkHeader,
    call: LinkCall<'a>,
    message: &'a [u8],
    /// The carrier; `None` for a datagram.
    carrier: Option<u32>,
}

impl<S: LinkStorage> Links<S> {
    /// Refuses the message of a process with which there is no link, and closes its carrier.
    pub(super) fn refuse_stranger<O: LinkOwner>(
        &mut self,
        carrier: Option<u32>,
        header: &LinkHeader,
        refusal: &LinkRefusal,
        owner: &mut O,
    ) {
        let header = LinkHeader { version: self.process.version, to: header.from, from: 0, ..*header };
        let message = Self::refusal(header, refusal);
        match carrier {
            None => owner.respond(message.get()),
            Some(carrier) => {
                owner.send(self.carrier(carrier), message.get());
                self.close_carrier(carrier, owner);
            }
        }
    }

    /// A call has come over a carrier that has no link, or as a datagram.
    pub(super) fn hear_call<O: LinkOwner>(
        &mut self,
        carrier: Option<u32>,
        (header, call): (LinkHeader, LinkCall<'_>),
        message: &[u8],
        now: Duration,
        owner: &mut O,
    ) {
        let Some((challenge, is_used)) = self.challenge_of(carrier, &call, now) else {
            let refusal = refused(RefusalCode::Challenge, true, "the challenge is too old");
            return self.refuse_stranger(carrier, &header, &refusal, owner);
        };
        let key = self.own_key(self.kind_of(carrier));
        let peer = PeerAddress::from_bytes(key.mask(Some(&challenge), call.nonce, &call.address.0));
        let from = carrier.map(|carrier| self.carrier(carrier));
        let is_proved = key.accepts_call(&challenge, &self.own, message, &call.proof);
        if !is_proved || !(owner.is_from(from, &peer) || fault!(TrustClaim)) || peer == self.own {
            let words = "the call does not prove the address that it claims, or comes from elsewhere";
            return self.refuse_stranger(carrier, &header, &refused(RefusalCode::Proof, false, words), owner);
        }
        let proved = ProvedCall { peer, header, call, message, carrier };
        if is_used {
            return self.hear_again(&proved, owner);
        }
        if carrier.is_none() {
            self.challenges.redeem(call.challenge);
        }
        match self.link_of(&proved, now, owner) {
            Ok(index) => self.hear_proved(index, &proved, now, owner),
            Err(refusal) => self.refuse_stranger(carrier, &header, &refusal, owner),
        }
    }

    /// Returns the challenge of a call, and whether it was used up by an earlier copy of the call.
    fn challenge_of(
        &mut self,
        carrier: Option<u32>,
        call: &LinkCall<'_>,
        now: Duration,
    ) -> Option<(Challenge, bool)> {
        let Some(carrier) = carrier else { return self.challenges.issued(call.challenge, now) };
        let slot = self.carriers.get(carrier);
        let challenge = if slot.kind == CarrierKind::HandOff { NO_CHALLENGE } else { slot.challenge };
        (challenge.number == call.challenge).then_some((challenge, false))
    }

    /// A copy of a call that was heard before: its answer is sent again.
    fn hear_again<O: LinkOwner>(&mut self, proved: &ProvedCall<'_>, owner: &mut O) {
        let instance = instance_of(&proved.header, &proved.call);
        let index = self.place(&proved.peer, proved.header.service, instance);
        let Some(index) = index else { return self.refuse_copy(proved, owner) };
        let slot = self.links.get(index);
        let waiting = slot.waiting;
        if waiting != NONE && self.carriers.get(waiting).message.get() == proved.message {
            if !matches!(slot.stage, LinkStage::Calling | LinkStage::Proving) {
                self.say_hold(index, waiting, owner);
            }
            return;
        }
        let is_same = slot.proof == proved.call.proof && slot.carrier != NONE;
        match slot.stage {
            LinkStage::Answered if is_same => {
                let sent = slot.sent;
                self.send(index, &sent, owner);
            }
            LinkStage::Held if is_same => {
                let carrier = slot.carrier;
                self.say_hold(index, carrier, owner);
            }
            // A late copy: the confirmation has come since.
            LinkStage::Open if is_same => {}
            _ => self.refuse_copy(proved, owner),
        }
    }

    fn refuse_copy<O: LinkOwner>(&mut self, proved: &ProvedCall<'_>, owner: &mut O) {
        let refusal = refused(RefusalCode::Challenge, true, "the call was decided, and is over");
        self.refuse_stranger(None, &proved.header, &refusal, owner);
    }

    /// Returns the link for a proved call. A new one is idle.
    fn link_of<O: LinkOwner>(
        &mut self,
        proved: &ProvedCall<'_>,
        now: Duration,
        owner: &mut O,
    ) -> Result<u32, LinkRefusal> {
        let (service, peer) = (proved.header.service, &proved.peer);
        let instance = instance_of(&proved.header, &proved.call);
        let mut rank = NONE;
        let mut is_restart = false;
        if service == LinkService::Engine && proved.call.instance > 0 && !self.ranks.borrow().is_empty() {
            rank = proved.call.instance - 1;
            is_restart = self.check_rank(rank, proved)?;
        }
        if let Some(index) = self.place(peer, service, instance) {
            if is_restart && self.links.get(index).rank == NONE {
                let words = "this process has called it as one that is no rank";
                return Err(refused(RefusalCode::Unknown, false, words));
            }
            return Ok(index);
        }
        if self.closing.is_some() {
            return Err(refused(RefusalCode::Unknown, false, "this endpoint closes"));
        }
        if rank == NONE {
            owner.admit(peer, service)?;
        }
        let full = refused(RefusalCode::Full, true, "all places for links are in use");
        let index = self.insert(peer, (service, instance), rank).ok_or(full)?;
        if is_restart {
            self.begin_restart(rank, index, proved.call.incarnation, now, owner);
        }
        Ok(index)
    }

    /// Checks what a call says about its rank. Returns whether the process says that it is the restarted one.
    fn check_rank(&self, rank: u32, proved: &ProvedCall<'_>) -> Result<bool, LinkRefusal> {
        let unknown = refused(RefusalCode::Unknown, false, "this world has no such rank");
        let is_own = self.process.rank == Some(rank);
        let known = self.ranks.borrow().get(rank as usize).filter(|_| !is_own).ok_or(unknown)?;
        let incarnation = proved.call.incarnation;
        if proved.peer == known.address {
            return Ok(false);
        }
        let is_next = known.next != NONE && self.links.get(known.next).peer == proved.peer;
        if is_next {
            return Ok(true);
        }
        let latest =
            if known.next == NONE { known.incarnation } else { self.links.get(known.next).incarnation };
        if incarnation > latest || fault!(AdmitFormer) {
            return Ok(true);
        }
        // As long as the launcher has not confirmed the later one, it may have claimed too much.
        let may_change = known.next != NONE && !known.is_sure;
        Err(refused(RefusalCode::Ended, may_change, "a later process of this rank has called"))
    }

    /// Keeps the call of a process that says that it is the restarted process of a rank.
    fn begin_restart<O: LinkOwner>(
        &mut self,
        rank: u32,
        index: u32,
        incarnation: u64,
        now: Duration,
        owner: &mut O,
    ) {
        let Some(slot) = self.rank_mut(rank) else { return };
        let former = core::mem::replace(&mut slot.next, index);
        slot.is_sure = false;
        if former != NONE {
            self.drop_carrier(former, owner);
            self.enter(former, LinkStage::Idle, (now, Duration::MAX));
            self.remove(former);
        }
        self.links.get_mut(index).incarnation = incarnation;
        self.enter(index, LinkStage::Held, (now, Duration::MAX));
        owner.report(self.reference(index), LinkEvent::Restarted(rank, incarnation));
    }

    /// The launcher says whether the process that was reported as restarted is that of the rank. If it is, the former
    /// process has ended, also if there was no link with it. Returns whether a process waits.
    pub fn restarted<O: LinkOwner>(
        &mut self,
        rank: u32,
        is_true: bool,
        now: Duration,
        owner: &mut O,
    ) -> bool {
        let Some(slot) = self.ranks.borrow().get(rank as usize).copied() else { return false };
        if slot.next == NONE || slot.is_sure {
            return false;
        }
        if !is_true {
            // The refusal goes to the number that the caller has given the link.
            let own = self.header(slot.next);
            let header = LinkHeader { from: own.to, ..own };
            let carrier = core::mem::replace(&mut self.links.get_mut(slot.next).carrier, NONE);
            let refusal = refused(RefusalCode::Unknown, false, "the launcher does not know this process");
            if carrier != NONE {
                self.refuse_stranger(Some(carrier), &header, &refusal, owner);
            }
            self.forget_held(slot.next, now);
            return false;
        }
        if let Some(former) = self.place(&slot.address, LinkService::Engine, 0) {
            if self.links.get(former).stage != LinkStage::Ended {
                self.drop_waiting(former, owner);
                self.end(former, (LinkEnding::Died, ""), now, owner);
            }
            // Its place is free as soon as the owner frees it.
            self.links.get_mut(former).rank = NONE;
        }
        let next = self.links.get(slot.next);
        let (address, incarnation) = (next.peer, next.incarnation);
        if let Some(place) = self.rank_mut(rank) {
            (place.address, place.incarnation, place.is_sure) = (address, incarnation, true);
        }
        true
    }

    /// Readmits a rank: nothing is left of its former process. Returns its link, which is answered now.
    pub fn readmit<O: LinkOwner>(&mut self, rank: u32, now: Duration, owner: &mut O) -> Option<LinkRef> {
        let slot = self.ranks.borrow().get(rank as usize).copied().filter(|slot| slot.is_sure)?;
        let index = slot.next;
        if let Some(place) = self.rank_mut(rank) {
            (place.next, place.is_sure) = (NONE, false);
        }
        let carrier = core::mem::replace(&mut self.links.get_mut(index).carrier, NONE);
        if carrier == NONE {
            self.enter(index, LinkStage::Idle, (now, Duration::MAX));
            self.begin(index, now, owner);
        } else {
            self.decide(index, carrier, now, owner);
        }
        Some(self.reference(index))
    }

    /// A proved call has come for a link.
    fn hear_proved<O: LinkOwner>(
        &mut self,
        index: u32,
        proved: &ProvedCall<'_>,
        now: Duration,
        owner: &mut O,
    ) {
        let slot = self.links.get(index);
        let (stage, rank, waiting, call) = (slot.stage, slot.rank, slot.waiting, proved.call.call);
        let is_later = waiting == NONE || self.carriers.get(waiting).call < call;
        if (call <= slot.heard && !fault!(HearAbandoned)) || !is_later {
            // The caller has abandoned it.
            return self.drop_source(proved.carrier, owner);
        }
        if stage == LinkStage::Ended && rank != NONE {
            let refusal = refused(RefusalCode::Ended, false, "the connection with this rank has ended");
            return self.refuse_stranger(proved.carrier, &proved.header, &refusal, owner);
        }
        self.drop_waiting(index, owner);
        // These two have a place already: a restarted process has that of its rank.
        let has_place = matches!(stage, LinkStage::Answered | LinkStage::Held);
        if !has_place && self.undecided >= self.limits.most_undecided && !self.evict_answered(now, owner) {
            let refusal = refused(RefusalCode::Full, true, "too many calls wait for their decision");
            self.refuse_stranger(proved.carrier, &proved.header, &refusal, owner);
            return self.drop_if_idle(index);
        }
        let Some(carrier) = self.keep(index, proved, now, owner) else {
            let refusal = refused(RefusalCode::Full, true, "all places for calls are in use");
            self.refuse_stranger(None, &proved.header, &refusal, owner);
            return self.drop_if_idle(index);
        };
        match stage {
            LinkStage::Idle => self.decide(index, carrier, now, owner),
            // The peer has not heard the own call, and perhaps never will: only one direction may be open.
            LinkStage::Calling => {
                self.drop_carrier(index, owner);
                self.decide(index, carrier, now, owner);
            }
            LinkStage::Proving if !self.own_counts(index) => {
                self.drop_carrier(index, owner);
                self.unmake(index, owner);
                self.decide(index, carrier, now, owner);
            }
            LinkStage::Proving | LinkStage::Confirmed => self.wait(index, carrier),
            LinkStage::Held => {
                self.drop_carrier(index, owner);
                let slot = self.links.get_mut(index);
                (slot.carrier, slot.theirs, slot.proof) = (carrier, proved.header.from, proved.call.proof);
                self.carriers.get_mut(carrier).role = CarrierRole::Bound;
                if fault!(ReadmitUnasked) {
                    self.links.get_mut(index).carrier = NONE;
                    return self.decide(index, carrier, now, owner);
                }
                self.say_hold(index, carrier, owner);
            }
            LinkStage::Answered => {
                self.drop_carrier(index, owner);
                self.unmake(index, owner);
                self.decide(index, carrier, now, owner);
            }
            LinkStage::Open if fault!(TrustCall) => {
                self.wait(index, carrier);
                self.end(index, (LinkEnding::Lost, ""), now, owner);
            }
            LinkStage::Open | LinkStage::Leaving | LinkStage::Ended => {
                self.wait(index, carrier);
                self.hold_waiting(index, now, owner);
            }
        }
    }

    /// Returns whether the own call counts, of two that cross: that of the higher rank, else that of the smaller
    /// address.
    fn own_counts(&self, index: u32) -> bool {
        if fault!(CountNoLinkCall) {
            return true;
        }
        if fault!(CountBothLinkCalls) {
            return false;
        }
        let slot = self.links.get(index);
        match self.process.rank {
            Some(rank) if slot.rank != NONE => rank > slot.rank,
            _ => self.own < slot.peer,
        }
    }

    /// Keeps the carrier of a call, and the call.
    fn keep<O: LinkOwner>(
        &mut self,
        index: u32,
        proved: &ProvedCall<'_>,
        now: Duration,
        owner: &mut O,
    ) -> Option<u32> {
        let carrier = match proved.carrier {
            Some(carrier) => carrier,
            None => {
                let carrier = self.take_carrier(CarrierKind::Datagram, index, now)?;
                owner.dial(self.carrier(carrier), CarrierKind::Datagram, &proved.peer);
                carrier
            }
        };
        let slot = self.carriers.get_mut(carrier);
        (slot.role, slot.link, slot.since) = (CarrierRole::Waiting, index, now);
        (slot.message, slot.call) = (LinkBytes::copied(proved.message), proved.call.call);
        Some(carrier)
    }

    fn wait(&mut self, index: u32, carrier: u32) {
        self.links.get_mut(index).waiting = carrier;
        self.undecided += 1;
    }

    /// The call that waits is held from now on, as a link is or was open.
    pub(super) fn hold_waiting<O: LinkOwner>(&mut self, index: u32, now: Duration, owner: &mut O) {
        let waiting = self.links.get(index).waiting;
        if waiting != NONE {
            self.carriers.get_mut(waiting).since = now;
            self.arm(now + self.limits.held);
            self.say_hold(index, waiting, owner);
        }
    }

    fn say_hold<O: LinkOwner>(&mut self, index: u32, carrier: u32, owner: &mut O) {
        let message = self.carriers.get(carrier).message;
        let Ok(call) = LinkMessage::decode(message.get(), self.process.version) else { return };
        let header = LinkHeader { to: call.header.from, ..self.header(index) };
        let hold = LinkMessage { header, body: LinkBody::Hold }.encode();
        owner.send(self.carrier(carrier), hold.get());
    }

    /// Returns the kind of a carrier; `None` is that of the datagram which is handled.
    pub(super) fn kind_of(&self, carrier: Option<u32>) -> CarrierKind {
        carrier.map_or(CarrierKind::Datagram, |carrier| self.carriers.get(carrier).kind)
    }

    fn drop_source<O: LinkOwner>(&mut self, carrier: Option<u32>, owner: &mut O) {
        if let Some(carrier) = carrier {
            self.close_carrier(carrier, owner);
        }
    }

    pub(super) fn drop_if_idle(&mut self, index: u32) {
        let slot = self.links.get(index);
        if slot.stage == LinkStage::Idle && slot.rank == NONE {
            self.remove(index);
        }
    }

    /// Answers the call of this carrier, or refuses it. The link has no other carrier.
    pub(super) fn decide<O: LinkOwner>(&mut self, index: u32, carrier: u32, now: Duration, owner: &mut O) {
        let kept = self.carriers.get(carrier).message;
        let Ok(LinkMessage { header, body: LinkBody::Call(call) }) =
            LinkMessage::decode(kept.get(), self.process.version)
        else {
            return self.close_carrier(carrier, owner);
        };
        self.draw(index, owner);
        self.carriers.get_mut(carrier).role = CarrierRole::Bound;
        let slot = self.links.get_mut(index);
        (slot.carrier, slot.theirs, slot.proof) = (carrier, header.from, call.proof);
        slot.heard = slot.heard.max(call.call);
        let peer = slot.peer;
        let mut offers = OfferList::EMPTY;
        let granted = owner.grant(self.reference(index), self.carrier(carrier), &peer, &call, &mut offers);
        let introduction = match granted {
            Ok(introduction) => introduction,
            Err(refusal) => {
                let message = Self::refusal(self.header(index), &refusal);
                self.send(index, &message, owner);
                return self.call_is_over(index, &refusal, now, owner);
            }
        };
        let answer = LinkAnswer {
            calls: self.calls,
            incarnation: self.process.incarnation,
            number: introduction.number,
            packet_bytes: introduction.packet_bytes,
            word: introduction.word,
            chosen: introduction.chosen,
            offers: offers.get(false),
            proof: Proof::default(),
        };
        let mut message = self.encode(index, LinkBody::Answer(answer));
        let key = *self.own_key(self.carriers.get(carrier).kind);
        let proof = key.answer_proof(&call.proof, message.get());
        message.seal(&proof);
        let limit = if self.has_datagrams(index) { now + self.limits.patience } else { Duration::MAX };
        self.enter(index, LinkStage::Answered, (now, limit));
        let slot = self.links.get_mut(index);
        (slot.sent, slot.session) = (message, key.session(&call.proof, &proof));
        if !self.send(index, &message, owner) {
            self.fall_back(index, now, owner);
        }
    }

    /// A call of the peer was refused by this process.
    fn call_is_over<O: LinkOwner>(
        &mut self,
        index: u32,
        refusal: &LinkRefusal,
        now: Duration,
        owner: &mut O,
    ) {
        if !refusal.is_passing && self.links.get(index).is_needed() {
            return self.end(index, (LinkEnding::Refused(refusal.code), refusal.words.get()), now, owner);
        }
        self.drop_carrier(index, owner);
        self.settle_idle(index, now, owner);
    }

    /// A call that was answered is over without a confirmation. A rank is called, which shows what has become of it.
    pub(super) fn fall_back<O: LinkOwner>(&mut self, index: u32, now: Duration, owner: &mut O) {
        if fault!(KeepAnswered) {
            return;
        }
        self.drop_carrier(index, owner);
        self.unmake(index, owner);
        let slot = self.links.get_mut(index);
        slot.is_wanted |= slot.rank != NONE;
        self.settle_idle(index, now, owner);
    }

    /// A link has neither carrier nor resources. It is called if packets wait for it.
    pub(super) fn settle_idle<O: LinkOwner>(&mut self, index: u32, now: Duration, owner: &mut O) {
        self.enter(index, LinkStage::Idle, (now, Duration::MAX));
        if let Some(carrier) = self.take_waiting(index) {
            return self.decide(index, carrier, now, owner);
        }
        if self.links.get(index).is_wanted {
            return self.begin(index, now, owner);
        }
        self.drop_if_idle(index);
    }

    /// The caller confirms.
    pub(super) fn hear_confirm<O: LinkOwner>(
        &mut self,
        index: u32,
        confirm: &LinkConfirm<'_>,
        message: &[u8],
        now: Duration,
        owner: &mut O,
    ) {
        if !self.links.get(index).session.accepts_confirm(message, &confirm.proof) {
            return;
        }
        if self.links.get(index).stage == LinkStage::Answered {
            owner.settle(self.reference(index), confirm.chosen);
            let carrier = self.links.get(index).carrier;
            // Over hand-off the caller does not wait for it.
            if self.carriers.get(carrier).kind != CarrierKind::HandOff {
                self.send_body(index, LinkBody::Welcome, owner);
            }
            self.open(index, now, owner);
        } else if !fault!(WelcomeOnce) {
            self.send_body(index, LinkBody::Welcome, owner);
        }
    }

    /// Frees the place of an answer that is old and was not confirmed. Returns whether there was one, among a bounded
    /// number of links.
    pub fn evict_answered<O: LinkOwner>(&mut self, now: Duration, owner: &mut O) -> bool {
        const EXAMINED: u32 = 512;
        let (held, touched) = (self.limits.held, self.links.touched() as u32);
        // The callers that are refused meanwhile call again, so that each link has its turn.
        for _ in 0..touched.min(EXAMINED) {
            let index = if self.oldest < touched { self.oldest } else { 0 };
            self.oldest = index + 1;
            let slot = self.links.get(index);
            if slot.stage == LinkStage::Answered && now >= slot.since + held {
                return self.give_up(index, now, owner);
            }
        }
        false
    }

    /// Gives up an answer that was not confirmed. Returns false if the confirmation has come.
    fn give_up<O: LinkOwner>(&mut self, index: u32, now: Duration, owner: &mut O) -> bool {
        let carrier = self.links.get(index).carrier;
        if carrier != NONE && self.carriers.get(carrier).kind == CarrierKind::HandOff {
            if owner.withdraw(self.carrier(carrier)) {
                return false;
            }
        } else {
            // Without *welcome*, the caller has sent nothing.
            let refusal = refused(RefusalCode::Full, true, "the answer was not confirmed in time");
            let message = Self::refusal(self.header(index), &refusal);
            self.send(index, &message, owner);
        }
        self.fall_back(index, now, owner);
        true
    }

    pub(super) fn unmake<O: LinkOwner>(&mut self, index: u32, owner: &mut O) {
        if fault!(ForgetUnmake) {
            return;
        }
        owner.unmake(self.reference(index));
    }
}

/// Returns the instance of a call: a call of the engine has a rank there.
fn instance_of(header: &LinkHeader, call: &LinkCall<'_>) -> u32 {
    if header.service == LinkService::Engine { 0 } else { call.instance }
}
