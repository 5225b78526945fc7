//! Ends of links, and time.
#![forbid(unsafe_code)]

use core::borrow::Borrow;
use core::time::Duration;

use super::slots::{CarrierRole, LinkStorage};
use super::table::Links;
use super::terms::{CarrierKind, CarrierRef, LinkEnding, LinkOwner, LinkRef, LinkStage};
use crate::link::bytes::LinkBytes;
use crate::link::wire::{
    LeaveManner, LinkBody, LinkDeparture, LinkHeader, LinkMessage, LinkService, MaskedAddress,
};
use crate::peers::PeerAddress;
use crate::slab::NONE;
use crate::wire::hello::Proof;

impl<S: LinkStorage> Links<S> {
    /// A carrier has ended, after everything that it brought.
    pub fn lost<O: LinkOwner>(&mut self, carrier: CarrierRef, now: Duration, owner: &mut O) {
        let Some(slot) = self.carriers.live_mut(carrier.index, carrier.generation) else { return };
        let (role, index) = (slot.role, slot.link);
        match role {
            CarrierRole::Silent | CarrierRole::Partial => {
                self.leave_door(carrier.index);
                self.close_carrier(carrier.index, owner);
            }
            CarrierRole::Waiting => self.drop_waiting(index, owner),
            CarrierRole::Bound => self.lose(index, now, owner),
        }
    }

    fn lose<O: LinkOwner>(&mut self, index: u32, now: Duration, owner: &mut O) {
        match self.links.get(index).stage {
            LinkStage::Calling | LinkStage::Proving => self.retry(index, now, owner),
            // Nothing was sent: call again.
            LinkStage::Confirmed if !fault!(EndConfirmed) => self.retry(index, now, owner),
            LinkStage::Confirmed | LinkStage::Open => self.end(index, (LinkEnding::Lost, ""), now, owner),
            LinkStage::Held => {
                self.drop_carrier(index, owner);
                self.forget_held(index, now);
            }
            LinkStage::Answered => self.fall_back(index, now, owner),
            LinkStage::Leaving => self.end(index, (LinkEnding::Disconnected, ""), now, owner),
            LinkStage::Idle | LinkStage::Ended => {}
        }
    }

    /// The path of an open link is lost.
    pub fn path_lost<O: LinkOwner>(&mut self, link: LinkRef, now: Duration, owner: &mut O) {
        if matches!(self.stage(link), LinkStage::Open | LinkStage::Leaving) {
            self.lose(link.index, now, owner);
        }
    }

    /// The process of a peer has ended, as the kernel says. The owner has passed on what came from it before.
    pub fn process_ended<O: LinkOwner>(&mut self, link: LinkRef, now: Duration, owner: &mut O) {
        let is_live = self.links.is_live(link.index, link.generation);
        if !is_live {
            return;
        }
        let index = link.index;
        let slot = self.links.get(index);
        match slot.stage {
            LinkStage::Idle | LinkStage::Ended => {}
            LinkStage::Held => self.end_held(index, LinkEnding::Died, now, owner),
            LinkStage::Leaving => self.end(index, (LinkEnding::Disconnected, ""), now, owner),
            LinkStage::Answered if !slot.is_needed() => self.fall_back(index, now, owner),
            _ => {
                self.drop_waiting(index, owner);
                self.end(index, (LinkEnding::Died, ""), now, owner);
            }
        }
    }

    /// The carrier of a restarted rank is closed. If the launcher has confirmed the process, its link stays held: it is
    /// called when it is readmitted.
    pub(super) fn forget_held(&mut self, index: u32, now: Duration) {
        let rank = self.links.get(index).rank;
        let Some(slot) = self.rank_mut(rank).filter(|slot| slot.next == index) else { return };
        if !slot.is_sure {
            slot.next = NONE;
            self.enter(index, LinkStage::Idle, (now, Duration::MAX));
            self.remove(index);
        }
    }

    /// The process of a restarted rank has ended or left while it was held.
    pub(super) fn end_held<O: LinkOwner>(
        &mut self,
        index: u32,
        end: LinkEnding,
        now: Duration,
        owner: &mut O,
    ) {
        self.drop_carrier(index, owner);
        self.forget_held(index, now);
        let rank = self.links.get(index).rank;
        if let Some(slot) = self.rank_mut(rank).filter(|slot| slot.next == index) {
            (slot.next, slot.is_sure) = (NONE, false);
            self.end(index, (end, ""), now, owner);
        }
    }

    /// Returns the rank of the process with this address, among those of the world. It looks at all of them.
    pub(super) fn rank_of(&self, peer: &PeerAddress) -> Option<u32> {
        self.ranks.borrow().iter().position(|slot| slot.address == *peer).map(|at| at as u32)
    }

    /// This process disconnects from a peer. If the link is open, the owner calls `drained` when everything has left
    /// that was sent before.
    pub fn disconnect<O: LinkOwner>(&mut self, link: LinkRef, now: Duration, owner: &mut O) {
        let index = link.index;
        match self.stage(link) {
            LinkStage::Idle | LinkStage::Ended | LinkStage::Leaving => {}
            LinkStage::Open => {
                self.enter(index, LinkStage::Leaving, (now, now + self.limits.leaving));
            }
            LinkStage::Held => {}
            _ => self.leave(index, LeaveManner::Disconnected, now, owner),
        }
    }

    /// Everything has left that was sent before this process disconnected.
    pub fn drained<O: LinkOwner>(&mut self, link: LinkRef, now: Duration, owner: &mut O) {
        if self.stage(link) == LinkStage::Leaving && self.links.get(link.index).next == Duration::MAX {
            self.leave(link.index, LeaveManner::Disconnected, now, owner);
        }
    }

    /// Sends the goodbye. On datagrams it is repeated until it is answered.
    fn leave<O: LinkOwner>(&mut self, index: u32, manner: LeaveManner, now: Duration, owner: &mut O) {
        let message = self.encode(index, LinkBody::Leave(manner));
        let slot = self.links.get(index);
        let is_known = slot.theirs != 0 || slot.stage == LinkStage::Proving;
        if is_known && !fault!(LeaveSilently) {
            self.send(index, &message, owner);
        }
        if self.has_datagrams(index) && self.links.get(index).theirs != 0 && !fault!(LeaveSilently) {
            let limit = now + self.limits.leaving;
            self.enter(index, LinkStage::Leaving, (now, limit));
            self.repeat(index, &message, now);
        } else {
            self.end(index, (LinkEnding::Disconnected, ""), now, owner);
        }
    }

    /// Nothing is left of a link that has ended: its number and its resources are free. It can be called again, unless
    /// it is that of a rank.
    pub fn free<O: LinkOwner>(&mut self, link: LinkRef, now: Duration, owner: &mut O) {
        if self.stage(link) != LinkStage::Ended {
            return;
        }
        self.unmake(link.index, owner);
        if self.links.get(link.index).rank != NONE {
            self.drop_waiting(link.index, owner);
        } else {
            self.settle_idle(link.index, now, owner);
        }
    }

    /// This endpoint ends: it accepts no more calls. The owner then calls `close_next` until nothing is left.
    pub const fn close(&mut self, manner: LeaveManner) {
        self.closing = Some(manner);
    }

    /// Says goodbye over one more link that has a carrier. Returns false if there is none.
    pub fn close_next<O: LinkOwner>(&mut self, now: Duration, owner: &mut O) -> bool {
        let touched = self.links.touched() as u32;
        let is_left = |index: &u32| {
            let slot = self.links.get(*index);
            let is_live = self.links.is_live(*index, self.links.generation(*index));
            is_live
                && !matches!(slot.stage, LinkStage::Idle | LinkStage::Ended)
                && !(slot.stage == LinkStage::Leaving && slot.next != Duration::MAX)
        };
        let Some(index) = (0..touched).find(is_left) else { return false };
        self.drop_waiting(index, owner);
        if self.links.get(index).stage == LinkStage::Held {
            self.send_body(index, LinkBody::Leave(self.closing.unwrap_or(LeaveManner::Closed)), owner);
            self.drop_carrier(index, owner);
            let rank = self.links.get(index).rank;
            if let Some(slot) = self.rank_mut(rank) {
                slot.is_sure = false;
            }
            self.forget_held(index, now);
        } else {
            self.leave(index, self.closing.unwrap_or(LeaveManner::Closed), now, owner);
        }
        true
    }

    /// Returns the departure of this process for a process that it has never met, to be sent over a new carrier of this
    /// kind.
    pub fn departure(&mut self, peer: &PeerAddress, kind: CarrierKind) -> LinkBytes {
        let key = self.key_of(peer, kind);
        let nonce = self.nonces.draw();
        let address = MaskedAddress(key.mask(None, nonce, self.own.bytes()));
        let header =
            LinkHeader { version: self.process.version, service: LinkService::Engine, to: 0, from: nonce };
        let manner = self.closing.unwrap_or(LeaveManner::Closed);
        let body = LinkDeparture { manner, address, nonce, proof: Proof::default() };
        let mut message = LinkMessage { header, body: LinkBody::Departure(body) }.encode();
        let proof = key.departure_proof(nonce, message.get());
        message.seal(&proof);
        message
    }

    /// Returns when [`Self::attend`] has something to do.
    pub const fn next(&self) -> Duration {
        self.soonest
    }

    /// Does what is due, for at most so many links.
    pub fn attend<O: LinkOwner>(&mut self, budget: usize, now: Duration, owner: &mut O) {
        if now < self.soonest {
            return;
        }
        let door = self.expire_door(now, owner);
        for _ in 0..budget {
            if self.cursor as usize >= self.links.touched() {
                // All links were examined.
                self.soonest = core::mem::replace(&mut self.round, Duration::MAX).min(door);
                self.cursor = 0;
                return;
            }
            let index = self.cursor;
            self.cursor += 1;
            if self.links.is_live(index, self.links.generation(index)) {
                self.attend_link(index, now, owner);
            }
            let is_left = self.links.is_live(index, self.links.generation(index));
            let due = if is_left { self.due(index) } else { Duration::MAX };
            self.round = self.round.min(due);
        }
        self.soonest = now;
    }

    /// Returns when something is due for a link.
    fn due(&self, index: u32) -> Duration {
        let slot = self.links.get(index);
        slot.next.min(slot.limit).min(self.held_until(index))
    }

    /// Returns when the call that is held at a link is dropped; never if there is none.
    fn held_until(&self, index: u32) -> Duration {
        let slot = self.links.get(index);
        let is_held = slot.waiting != NONE
            && matches!(slot.stage, LinkStage::Open | LinkStage::Leaving | LinkStage::Ended);
        if is_held { self.carriers.get(slot.waiting).since + self.limits.held } else { Duration::MAX }
    }

    fn attend_link<O: LinkOwner>(&mut self, index: u32, now: Duration, owner: &mut O) {
        if now >= self.held_until(index) {
            self.drop_waiting(index, owner);
        }
        let slot = self.links.get(index);
        if now >= slot.limit {
            self.expire(index, now, owner);
        } else if now >= slot.next {
            if slot.stage == LinkStage::Calling && slot.carrier == NONE {
                self.attempt(index, now, owner);
            } else {
                self.send_again(index, now, owner);
            }
        }
    }

    fn send_again<O: LinkOwner>(&mut self, index: u32, now: Duration, owner: &mut O) {
        let sent = self.links.get(index).sent;
        self.send(index, &sent, owner);
        let longest = self.limits.repeat[1];
        let slot = self.links.get_mut(index);
        slot.repeat = if slot.repeat >= longest { slot.repeat } else { (2 * slot.repeat).min(longest) };
        slot.next = if fault!(RepeatOnce) { Duration::MAX } else { now + slot.repeat };
    }

    /// The limit of a stage has passed.
    fn expire<O: LinkOwner>(&mut self, index: u32, now: Duration, owner: &mut O) {
        let slot = self.links.get(index);
        let patience = self.limits.patience;
        match slot.stage {
            LinkStage::Calling | LinkStage::Proving | LinkStage::Confirmed => {
                let is_reached = slot.carrier != NONE
                    && slot.route != CarrierKind::Datagram
                    && self.carriers.get(slot.carrier).is_reached;
                if slot.waiting != NONE {
                    return self.retry(index, now, owner);
                }
                // A local shortage ends no peer, and no rank ends whose kernel has taken the connection.
                if fault!(WaitForEver) || slot.is_short || slot.rank != NONE && is_reached {
                    self.links.get_mut(index).limit = now + patience;
                    return;
                }
                let end = slot.refused.map_or(LinkEnding::Unreachable, LinkEnding::Refused);
                if slot.theirs != 0 {
                    self.send_body(index, LinkBody::Leave(LeaveManner::Disconnected), owner);
                }
                self.end(index, (end, ""), now, owner);
            }
            LinkStage::Leaving => {
                if slot.next == Duration::MAX {
                    self.leave(index, LeaveManner::Disconnected, now, owner);
                } else {
                    self.end(index, (LinkEnding::Disconnected, ""), now, owner);
                }
            }
            LinkStage::Answered => self.fall_back(index, now, owner),
            LinkStage::Idle | LinkStage::Held | LinkStage::Open | LinkStage::Ended => {
                self.links.get_mut(index).limit = Duration::MAX;
            }
        }
    }
}
