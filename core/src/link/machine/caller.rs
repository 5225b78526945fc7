//! The side of a link that calls.
#![forbid(unsafe_code)]

use core::time::Duration;

use super::slots::LinkStorage;
use super::table::{Links, Spoken, refused};
use super::terms::{
    CarrierKind, CarrierRef, DialFault, LinkEnding, LinkError, LinkEvent, LinkOwner, LinkRef, LinkRefusal,
    LinkStage, PathResult,
};
use crate::link::address::LinkAddress;
use crate::link::offers::OfferList;
use crate::link::proof::NO_CHALLENGE;
use crate::link::wire::{
    LinkAnswer, LinkBody, LinkCall, LinkConfirm, LinkRefuse, LinkService, LinkText, MOST_CONFIRM_TEXT,
    MaskedAddress, RefusalCode,
};
use crate::peers::PeerAddress;
use crate::slab::NONE;
use crate::wire::hello::{Challenge, Proof};

impl<S: LinkStorage> Links<S> {
    /// Packets wait for this peer: returns its link, which is called if it is idle, or if it has ended and was freed.
    /// `rank` is its rank in the world of both.
    ///
    /// # Errors
    /// See [`LinkError`].
    pub fn speak<O: LinkOwner>(
        &mut self,
        peer: &PeerAddress,
        rank: Option<u32>,
        (service, instance): (LinkService, u32),
        now: Duration,
        owner: &mut O,
    ) -> Spoken {
        if *peer == self.own {
            return Err(LinkError::Itself);
        }
        if self.closing.is_some() {
            return Err(LinkError::Closing);
        }
        let decoded = LinkAddress::decode(peer).map_err(LinkError::Address)?;
        self.route_to(&decoded, None).ok_or(LinkError::NoCarrier)?;
        let rank = rank.unwrap_or(NONE);
        let index = match self.place(peer, service, instance) {
            Some(index) => index,
            None => self
                .insert(peer, (service, instance), rank)
                .ok_or_else(|| LinkError::Links(self.links.capacity()))?,
        };
        let slot = self.links.get_mut(index);
        match slot.stage {
            LinkStage::Ended if slot.rank != NONE => return Err(LinkError::Ended(slot.end)),
            LinkStage::Open => {}
            LinkStage::Idle => {
                slot.is_wanted = true;
                self.begin(index, now, owner);
            }
            _ => slot.is_wanted = true,
        }
        Ok(self.reference(index))
    }

    /// Calls a peer whose link is idle.
    pub(super) fn begin<O: LinkOwner>(&mut self, index: u32, now: Duration, owner: &mut O) {
        let first = self.next_route(index, None);
        let slot = self.links.get_mut(index);
        (slot.route, slot.pause) = (first.unwrap_or_default(), self.limits.pause[0]);
        (slot.refused, slot.is_short, slot.holds) = (None, false, 0);
        self.enter(index, LinkStage::Calling, (now, now + self.limits.patience));
        self.attempt(index, now, owner);
    }

    /// Returns the first kind of carrier that reaches the peer of a link, of those after `failed`.
    fn next_route(&self, index: u32, failed: Option<CarrierKind>) -> Option<CarrierKind> {
        let decoded = LinkAddress::decode(&self.links.get(index).peer).ok()?;
        self.route_to(&decoded, failed)
    }

    /// Makes one attempt over the present carrier.
    pub(super) fn attempt<O: LinkOwner>(&mut self, index: u32, now: Duration, owner: &mut O) {
        let (kind, peer) = (self.links.get(index).route, self.links.get(index).peer);
        let Some(carrier) = self.take_carrier(kind, index, now) else {
            self.links.get_mut(index).is_short = true;
            return self.again_later(index, now);
        };
        self.calls += u64::from(!fault!(RepeatLinkCall));
        self.draw(index, owner);
        let call = self.calls;
        let slot = self.links.get_mut(index);
        (slot.carrier, slot.theirs, slot.is_joined, slot.call) = (carrier, 0, false, call);
        slot.next = Duration::MAX;
        owner.dial(self.carrier(carrier), kind, &peer);
        if kind == CarrierKind::Datagram {
            let ask = self.encode(index, LinkBody::Ask);
            self.send(index, &ask, owner);
            self.repeat(index, &ask, now);
        }
    }

    /// The process of a rank lives: its limit begins anew.
    pub(super) fn renew_rank(&mut self, index: u32, now: Duration) {
        let limit = now + self.limits.patience;
        let slot = self.links.get_mut(index);
        if slot.rank != NONE {
            slot.limit = limit;
        }
    }

    fn again_later(&mut self, index: u32, now: Duration) {
        let longest = self.limits.pause[1];
        let slot = self.links.get_mut(index);
        slot.next = now + slot.pause;
        slot.pause = (2 * slot.pause).min(longest);
        let next = slot.next;
        self.arm(next);
    }

    /// The attempt has failed, and the peer may live: the call that waits is decided, or the next attempt follows.
    pub(super) fn retry<O: LinkOwner>(&mut self, index: u32, now: Duration, owner: &mut O) {
        self.drop_carrier(index, owner);
        if matches!(self.links.get(index).stage, LinkStage::Proving | LinkStage::Confirmed) {
            self.unmake(index, owner);
        }
        if !fault!(ForgetParked)
            && let Some(carrier) = self.take_waiting(index)
        {
            return self.decide(index, carrier, now, owner);
        }
        let limit = self.links.get(index).limit;
        self.enter(index, LinkStage::Calling, (now, limit));
        self.again_later(index, now);
    }

    /// The dialled carrier reaches its other end. Over hand-off, the owner has compared the kernel's user and process
    /// with the address.
    pub fn reached<O: LinkOwner>(&mut self, carrier: CarrierRef, now: Duration, owner: &mut O) {
        let Some(slot) = self.carriers.live_mut(carrier.index, carrier.generation) else { return };
        slot.is_reached = true;
        let (index, kind) = (slot.link, slot.kind);
        if kind == CarrierKind::HandOff && self.links.get(index).stage == LinkStage::Calling {
            self.prove(index, &NO_CHALLENGE, now, owner);
        }
    }

    /// The dialled carrier could not be reached. If nothing listens, the owner has passed on departures that waited.
    pub fn failed<O: LinkOwner>(
        &mut self,
        carrier: CarrierRef,
        fault: DialFault,
        now: Duration,
        owner: &mut O,
    ) {
        let Some(slot) = self.carriers.live_mut(carrier.index, carrier.generation) else { return };
        let index = slot.link;
        if fault != DialFault::Nothing || self.links.get(index).stage != LinkStage::Calling {
            if fault == DialFault::Full {
                self.renew_rank(index, now);
            }
            return self.retry(index, now, owner);
        }
        let next = self.next_route(index, Some(self.links.get(index).route)).filter(|_| !fault!(KeepCarrier));
        self.drop_carrier(index, owner);
        if let Some(kind) = next {
            self.links.get_mut(index).route = kind;
            return self.attempt(index, now, owner);
        }
        self.end(index, (LinkEnding::Died, ""), now, owner);
    }

    /// Sends the call.
    pub(super) fn prove<O: LinkOwner>(
        &mut self,
        index: u32,
        challenge: &Challenge,
        now: Duration,
        owner: &mut O,
    ) {
        let kind = self.links.get(index).route;
        let mut offers = OfferList::EMPTY;
        let carrier = (self.carrier(self.links.get(index).carrier), kind);
        let Some(introduction) = owner.make(self.reference(index), carrier, &mut offers) else {
            self.links.get_mut(index).is_short = true;
            return self.retry(index, now, owner);
        };
        let (service, instance, peer) = {
            let slot = self.links.get(index);
            (slot.service, slot.instance, slot.peer)
        };
        let key = self.key_of(&peer, kind);
        let nonce = self.nonces.draw();
        // A process of another world has another process of this rank.
        let is_rank = self.links.get(index).rank != NONE || fault!(ClaimEverywhere);
        let claim = match (service, self.process.rank) {
            (LinkService::Engine, Some(rank)) if is_rank => rank + 1,
            _ => instance,
        };
        let call = LinkCall {
            call: self.links.get(index).call,
            incarnation: self.process.incarnation,
            number: introduction.number,
            packet_bytes: introduction.packet_bytes,
            challenge: challenge.number,
            instance: claim,
            nonce,
            address: MaskedAddress(key.mask(Some(challenge), nonce, self.own.bytes())),
            offers: offers.get(true),
            proof: Proof::default(),
        };
        let mut message = self.encode(index, LinkBody::Call(call));
        let proof = key.call_proof(challenge, &peer, message.get());
        message.seal(&proof);
        let slot = self.links.get_mut(index);
        (slot.proof, slot.is_short) = (proof, false);
        let limit = self.links.get(index).limit;
        self.enter(index, LinkStage::Proving, (now, limit));
        if self.send(index, &message, owner) {
            self.repeat(index, &message, now);
        } else {
            self.retry(index, now, owner);
        }
    }

    /// The peer keeps the call.
    pub(super) fn hear_hold(&mut self, index: u32, now: Duration) {
        let (again, patience, most) = (self.limits.repeat_held, self.limits.patience, self.limits.most_holds);
        let slot = self.links.get_mut(index);
        if slot.next != Duration::MAX {
            (slot.repeat, slot.next) = (again, now + again);
        }
        if slot.rank != NONE || slot.holds < most {
            if slot.rank == NONE {
                slot.holds += 1;
            }
            if !fault!(ForgetHold) {
                slot.limit = now + patience;
            }
        }
        let due = slot.next.min(slot.limit);
        self.arm(due);
    }

    /// The answer has come.
    pub(super) fn hear_answer<O: LinkOwner>(
        &mut self,
        index: u32,
        answer: &LinkAnswer<'_>,
        (from, message): (u64, &[u8]),
        now: Duration,
        owner: &mut O,
    ) {
        let (peer, proof) = (self.links.get(index).peer, self.links.get(index).proof);
        let key = self.key_of(&peer, self.links.get(index).route);
        if !key.accepts_answer(&proof, message, &answer.proof) {
            let words = "the answer is not by the process with the address that was called";
            return self.refuse_answer(index, &refused(RefusalCode::Proof, false, words), now, owner);
        }
        let calls = if fault!(HearVoided) { 0 } else { answer.calls };
        let slot = self.links.get_mut(index);
        slot.theirs = from;
        slot.session = key.session(&proof, &answer.proof);
        // The peer has abandoned the calls that it has made so far.
        slot.heard = slot.heard.max(calls);
        if slot.waiting != NONE && self.carriers.get(slot.waiting).call <= calls {
            self.drop_waiting(index, owner);
        }
        self.enter(index, LinkStage::Confirmed, (now, now + self.limits.patience));
        match owner.join(self.reference(index), answer) {
            PathResult::Pending => {}
            result => self.confirm(index, result, now, owner),
        }
    }

    /// The path that [`LinkOwner::join`] makes is up, or has failed.
    pub fn path<O: LinkOwner>(&mut self, link: LinkRef, result: PathResult, now: Duration, owner: &mut O) {
        let is_live = self.links.is_live(link.index, link.generation);
        if is_live && self.stage(link) == LinkStage::Confirmed && !self.links.get(link.index).is_joined {
            self.confirm(link.index, result, now, owner);
        }
    }

    fn confirm<O: LinkOwner>(&mut self, index: u32, result: PathResult, now: Duration, owner: &mut O) {
        let (chosen, reason) = match result {
            PathResult::Up(chosen, reason) => (chosen, reason),
            PathResult::Failed(refusal) => return self.refuse_answer(index, &refusal, now, owner),
            PathResult::Pending => return,
        };
        let reason = LinkText::new(reason, MOST_CONFIRM_TEXT);
        let body = LinkBody::Confirm(LinkConfirm { chosen, reason, proof: Proof::default() });
        let mut message = self.encode(index, body);
        message.seal(&self.links.get(index).session.confirm_proof(message.get()));
        self.links.get_mut(index).is_joined = true;
        if !self.send(index, &message, owner) {
            return self.retry(index, now, owner);
        }
        if self.links.get(index).route == CarrierKind::HandOff || fault!(OpenUnwelcomed) {
            // The called process can withdraw its answer only before this message.
            return self.open(index, now, owner);
        }
        self.repeat(index, &message, now);
    }

    /// Packets may pass.
    pub(super) fn open<O: LinkOwner>(&mut self, index: u32, now: Duration, owner: &mut O) {
        self.enter(index, LinkStage::Open, (now, Duration::MAX));
        self.links.get_mut(index).is_wanted = false;
        self.hold_waiting(index, now, owner);
        owner.report(self.reference(index), LinkEvent::Opened);
    }

    /// Refuses an answer, so that the peer frees what it has made, too. After a passing refusal, for want of something
    /// in this process, the peer is called again.
    fn refuse_answer<O: LinkOwner>(
        &mut self,
        index: u32,
        refusal: &LinkRefusal,
        now: Duration,
        owner: &mut O,
    ) {
        let message = Self::refusal(self.header(index), refusal);
        self.send(index, &message, owner);
        if refusal.is_passing {
            self.links.get_mut(index).is_short = true;
            return self.retry(index, now, owner);
        }
        self.end(index, (LinkEnding::Refused(refusal.code), refusal.words.get()), now, owner);
    }

    /// The peer refuses the call.
    pub(super) fn hear_refusal<O: LinkOwner>(
        &mut self,
        index: u32,
        refuse: &LinkRefuse<'_>,
        now: Duration,
        owner: &mut O,
    ) {
        if refuse.is_passing && !fault!(EndAtPassing) {
            self.links.get_mut(index).refused = Some(refuse.code);
            self.renew_rank(index, now);
            return self.retry(index, now, owner);
        }
        let end = LinkEnding::Refused(refuse.code);
        self.end(index, (end, refuse.text.get()), now, owner);
    }
}
