//! Messages, and the door: the connections of processes that have not proved themselves.
#![forbid(unsafe_code)]

use core::time::Duration;

use super::slots::{CarrierRole, CarrierSlot, LinkStorage};
use super::table::{Links, refused};
use super::terms::{CarrierKind, CarrierRef, LinkEnding, LinkOwner, LinkRefusal, LinkStage};
use crate::link::wire::{
    LeaveManner, LinkBody, LinkDeparture, LinkFault, LinkHeader, LinkMessage, LinkService, RefusalCode,
};
use crate::peers::PeerAddress;

impl<S: LinkStorage> Links<S> {
    /// A process has connected to this one. The owner has read all connections before, and has sent those away that
    /// belong to other users. Returns the carrier; `None` if there is no room: the owner closes the connection.
    pub fn accepted<O: LinkOwner>(
        &mut self,
        kind: CarrierKind,
        now: Duration,
        owner: &mut O,
    ) -> Option<CarrierRef> {
        let door = door_of(kind);
        if self.closing.is_some() || kind == CarrierKind::Datagram {
            return None;
        }
        self.make_room(kind, now, owner).then_some(())?;
        let challenge = self.challenges.issue(now);
        let slot = CarrierSlot { kind, since: now, challenge, is_reached: true, ..CarrierSlot::default() };
        let mut list = self.doors[door][0];
        let index = self.carriers.insert(slot).ok()?;
        self.carriers.push_back(&mut list, index);
        self.doors[door][0] = list;
        self.unproved[door] += 1;
        self.arm(now + self.limits.unproved);
        Some(self.carrier(index))
    }

    /// Returns whether there is room for one more connection of this kind without proof. If there was none, the oldest
    /// one that has had its time is closed.
    pub fn make_room<O: LinkOwner>(&mut self, kind: CarrierKind, now: Duration, owner: &mut O) -> bool {
        let door = door_of(kind);
        self.unproved[door] < self.limits.most_unproved || fault!(AdmitAll) || self.evict(door, now, owner)
    }

    /// Sends the challenge over a connection that was accepted: its owner can route messages now.
    pub fn challenge<O: LinkOwner>(&mut self, carrier: CarrierRef, owner: &mut O) {
        let Some(slot) = self.carriers.live_mut(carrier.index, carrier.generation) else { return };
        if slot.kind == CarrierKind::Stream && slot.role == CarrierRole::Silent {
            let header =
                LinkHeader { version: self.process.version, service: LinkService::Engine, to: 0, from: 0 };
            let message = LinkMessage { header, body: LinkBody::Challenge(slot.challenge) }.encode();
            owner.send(carrier, message.get());
        }
    }

    /// Some bytes of the first message have come.
    pub fn partial(&mut self, carrier: CarrierRef) {
        let Some(slot) = self.carriers.live_mut(carrier.index, carrier.generation) else { return };
        if slot.role == CarrierRole::Silent {
            slot.role = CarrierRole::Partial;
            let door = door_of(slot.kind);
            let [mut silent, mut partial] = self.doors[door];
            self.carriers.unlink(&mut silent, carrier.index);
            self.carriers.push_back(&mut partial, carrier.index);
            self.doors[door] = [silent, partial];
        }
    }

    /// Sends the oldest connection away that has had its time while all places are in use, one without bytes first.
    fn evict<O: LinkOwner>(&mut self, door: usize, now: Duration, owner: &mut O) -> bool {
        for list in self.doors[door] {
            if let Some(index) = list.first()
                && now >= self.carriers.get(index).since + self.limits.unproved_full
            {
                self.leave_door(index);
                self.close_carrier(index, owner);
                return true;
            }
        }
        false
    }

    /// Takes a carrier out of the door.
    pub(super) fn leave_door(&mut self, index: u32) {
        let slot = self.carriers.get(index);
        let door = door_of(slot.kind);
        let which = match slot.role {
            CarrierRole::Silent => 0,
            CarrierRole::Partial => 1,
            CarrierRole::Bound | CarrierRole::Waiting => return,
        };
        let mut list = self.doors[door][which];
        self.carriers.unlink(&mut list, index);
        self.doors[door][which] = list;
        self.unproved[door] -= 1;
        self.carriers.get_mut(index).role = CarrierRole::Bound;
    }

    /// Sends connections away that have had their time. Returns when the next one has.
    pub(super) fn expire_door<O: LinkOwner>(&mut self, now: Duration, owner: &mut O) -> Duration {
        let mut next = Duration::MAX;
        for door in 0..2 {
            for which in 0..2 {
                while let Some(index) = self.doors[door][which].first() {
                    let until = self.carriers.get(index).since + self.limits.unproved;
                    if now < until || fault!(KeepDoor) {
                        next = next.min(until);
                        break;
                    }
                    self.leave_door(index);
                    self.close_carrier(index, owner);
                }
            }
        }
        if fault!(KeepDoor) { Duration::MAX } else { next }
    }

    /// A whole message has come over a carrier.
    pub fn received<O: LinkOwner>(
        &mut self,
        carrier: CarrierRef,
        bytes: &[u8],
        now: Duration,
        owner: &mut O,
    ) {
        let Some(slot) = self.carriers.live_mut(carrier.index, carrier.generation) else { return };
        let (role, link) = (slot.role, slot.link);
        let decoded = LinkMessage::decode(bytes, self.process.version);
        match (role, decoded) {
            (CarrierRole::Silent | CarrierRole::Partial, decoded) => {
                self.leave_door(carrier.index);
                self.hear_stranger(carrier.index, decoded, bytes, now, owner);
            }
            (CarrierRole::Waiting, _) => {
                // It says that it leaves, or violates the protocol: in both cases its call has no meaning any more.
                self.lost(carrier, now, owner);
            }
            (CarrierRole::Bound, Ok(message)) => self.hear(link, &message, bytes, now, owner),
            (CarrierRole::Bound, Err(fault)) => self.hear_nonsense(link, fault, now, owner),
        }
    }

    fn hear_stranger<O: LinkOwner>(
        &mut self,
        carrier: u32,
        decoded: Result<LinkMessage<'_>, LinkFault>,
        bytes: &[u8],
        now: Duration,
        owner: &mut O,
    ) {
        match decoded {
            Ok(LinkMessage { header, body: LinkBody::Call(call) }) => {
                self.hear_call(Some(carrier), (header, call), bytes, now, owner);
            }
            Ok(LinkMessage { body: LinkBody::Departure(departure), .. }) => {
                self.hear_departure(Some(carrier), &departure, bytes, now, owner);
                self.close_carrier(carrier, owner);
            }
            Ok(LinkMessage { header, .. }) => {
                let refusal = refused(RefusalCode::Message, false, "a link does not begin with this message");
                self.refuse_stranger(Some(carrier), &header, &refusal, owner);
            }
            Err(fault) => {
                let (header, refusal) = self.words_of(fault);
                self.refuse_stranger(Some(carrier), &header, &refusal, owner);
            }
        }
    }

    /// Returns the refusal of a message that was not decoded.
    const fn words_of(&self, fault: LinkFault) -> (LinkHeader, LinkRefusal) {
        let ours = self.process.version;
        let (from, refusal) = match fault {
            LinkFault::Version { theirs, from, .. } => {
                let values = [ours as u64, theirs as u64];
                let words = "the versions of links differ: use the same nemesia in both processes";
                (from, LinkRefusal { values, ..refused(RefusalCode::Version, false, words) })
            }
            _ => (0, refused(RefusalCode::Message, false, "the message is malformed")),
        };
        (LinkHeader { version: ours, service: LinkService::Engine, to: 0, from }, refusal)
    }

    /// The carrier of a link has a message that is none.
    fn hear_nonsense<O: LinkOwner>(&mut self, index: u32, fault: LinkFault, now: Duration, owner: &mut O) {
        let (header, refusal) = self.words_of(fault);
        let header = LinkHeader { to: header.from, from: self.links.get(index).ours, ..header };
        let message = Self::refusal(header, &refusal);
        self.send(index, &message, owner);
        match self.links.get(index).stage {
            LinkStage::Held => {
                self.drop_carrier(index, owner);
                self.forget_held(index, now);
            }
            LinkStage::Answered => self.fall_back(index, now, owner),
            LinkStage::Leaving => self.end(index, (LinkEnding::Disconnected, ""), now, owner),
            LinkStage::Idle | LinkStage::Ended => {}
            _ => self.end(index, (LinkEnding::Refused(refusal.code), refusal.words.get()), now, owner),
        }
    }

    /// A datagram has come. While this call lasts, [`LinkOwner::respond`] answers its author.
    pub fn datagram<O: LinkOwner>(&mut self, bytes: &[u8], now: Duration, owner: &mut O) {
        let message = match LinkMessage::decode(bytes, self.process.version) {
            Ok(message) => message,
            Err(fault @ LinkFault::Version { .. }) => {
                let (header, refusal) = self.words_of(fault);
                return self.refuse_stranger(None, &header, &refusal, owner);
            }
            Err(_) => return,
        };
        let LinkMessage { header, body } = message;
        if let Some(index) = self.numbered(header.to)
            && self.has_datagrams(index)
        {
            let theirs = self.links.get(index).theirs;
            if theirs == 0 || theirs == header.from {
                self.hear(index, &message, bytes, now, owner);
            }
            return;
        }
        match body {
            LinkBody::Ask if self.closing.is_none() => {
                // It takes no memory.
                let body = LinkBody::Challenge(self.challenges.issue(now));
                let header = LinkHeader { to: header.from, from: 0, ..header };
                owner.respond(LinkMessage { header, body }.encode().get());
            }
            LinkBody::Call(call) => self.hear_call(None, (header, call), bytes, now, owner),
            LinkBody::Departure(departure) => {
                self.hear_departure(None, &departure, bytes, now, owner);
                self.say_done(&header, owner);
            }
            LinkBody::Leave(_) => self.say_done(&header, owner),
            LinkBody::Answer(_) | LinkBody::Confirm(_) => {
                let refusal = refused(RefusalCode::Challenge, true, "the call or the answer is over");
                self.refuse_stranger(None, &header, &refusal, owner);
            }
            _ => {}
        }
    }

    fn say_done<O: LinkOwner>(&mut self, header: &LinkHeader, owner: &mut O) {
        let header = LinkHeader { to: header.from, from: header.to, ..*header };
        owner.respond(LinkMessage { header, body: LinkBody::Done }.encode().get());
    }

    /// A message has come for a link.
    fn hear<O: LinkOwner>(
        &mut self,
        index: u32,
        message: &LinkMessage<'_>,
        bytes: &[u8],
        now: Duration,
        owner: &mut O,
    ) {
        let stage = self.links.get(index).stage;
        let is_ours = message.header.to == self.links.get(index).ours;
        if !is_ours && (message.header.to != 0 || stage != LinkStage::Calling) {
            return;
        }
        match (stage, &message.body) {
            (LinkStage::Calling, LinkBody::Challenge(challenge)) => {
                self.renew_rank(index, now);
                self.prove(index, challenge, now, owner);
            }
            (LinkStage::Proving, LinkBody::Hold) => self.hear_hold(index, now),
            (LinkStage::Proving, LinkBody::Answer(answer)) => {
                self.hear_answer(index, answer, (message.header.from, bytes), now, owner);
            }
            (LinkStage::Confirmed, LinkBody::Welcome) if self.links.get(index).is_joined => {
                self.open(index, now, owner);
            }
            (LinkStage::Calling | LinkStage::Proving | LinkStage::Confirmed, LinkBody::Refuse(refuse)) => {
                self.hear_refusal(index, refuse, now, owner);
            }
            (LinkStage::Answered | LinkStage::Open, LinkBody::Confirm(confirm)) => {
                self.hear_confirm(index, confirm, bytes, now, owner);
            }
            (LinkStage::Answered, LinkBody::Refuse(refuse)) => {
                if refuse.is_passing || !self.links.get(index).is_needed() {
                    return self.fall_back(index, now, owner);
                }
                let end = LinkEnding::Refused(refuse.code);
                self.end(index, (end, refuse.text.get()), now, owner);
            }
            (LinkStage::Idle | LinkStage::Ended, _) => {}
            (_, LinkBody::Leave(manner)) => {
                self.hear_leave(index, (&message.header, *manner), now, owner);
            }
            (LinkStage::Leaving, LinkBody::Done) => {
                self.end(index, (LinkEnding::Disconnected, ""), now, owner);
            }
            _ => {}
        }
    }

    /// The peer leaves.
    fn hear_leave<O: LinkOwner>(
        &mut self,
        index: u32,
        (header, manner): (&LinkHeader, LeaveManner),
        now: Duration,
        owner: &mut O,
    ) {
        if self.has_datagrams(index) {
            self.say_done(header, owner);
        }
        let slot = self.links.get(index);
        match slot.stage {
            LinkStage::Leaving => self.end(index, (LinkEnding::Disconnected, ""), now, owner),
            LinkStage::Held => self.end_held(index, ending_of(manner), now, owner),
            LinkStage::Answered if !slot.is_needed() => self.fall_back(index, now, owner),
            _ => self.end(index, (ending_of(manner), ""), now, owner),
        }
    }

    /// A process leaves with which there may be no link. Its word counts only from the place that its address names.
    fn hear_departure<O: LinkOwner>(
        &mut self,
        carrier: Option<u32>,
        departure: &LinkDeparture,
        bytes: &[u8],
        now: Duration,
        owner: &mut O,
    ) {
        let key = self.own_key(self.kind_of(carrier));
        let peer = PeerAddress::from_bytes(key.mask(None, departure.nonce, &departure.address.0));
        let from = carrier.map(|carrier| self.carrier(carrier));
        let is_proved = key.accepts_departure(departure.nonce, bytes, &departure.proof);
        if !is_proved || !owner.is_from(from, &peer) || fault!(ForgetDeparture) {
            return;
        }
        let Some(index) = self.place(&peer, LinkService::Engine, 0) else {
            return self.note_departure(&peer, departure.manner, now, owner);
        };
        match self.links.get(index).stage {
            // What an open link says of its end comes over its own carrier.
            LinkStage::Open | LinkStage::Leaving | LinkStage::Ended => {}
            LinkStage::Held => self.end_held(index, ending_of(departure.manner), now, owner),
            _ => {
                self.drop_waiting(index, owner);
                self.end(index, (ending_of(departure.manner), ""), now, owner);
            }
        }
    }

    /// A rank leaves that was never met.
    fn note_departure<O: LinkOwner>(
        &mut self,
        peer: &PeerAddress,
        manner: LeaveManner,
        now: Duration,
        owner: &mut O,
    ) {
        let Some(rank) = self.rank_of(peer) else { return };
        if let Some(index) = self.insert(peer, (LinkService::Engine, 0), rank) {
            self.end(index, (ending_of(manner), ""), now, owner);
        }
    }
}

/// Returns how a link ends whose peer leaves.
fn ending_of(manner: LeaveManner) -> LinkEnding {
    match manner {
        LeaveManner::Dropped if !fault!(ForgetDropped) => LinkEnding::Dropped,
        _ => LinkEnding::Left,
    }
}

/// Returns which door the connections of these carriers have: datagrams have none.
const fn door_of(kind: CarrierKind) -> usize {
    matches!(kind, CarrierKind::Stream) as usize
}
