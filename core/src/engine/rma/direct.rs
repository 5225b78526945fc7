//! Puts and gets by remote memory access: work requests on the memory port, without packets (paper 3, section 4.2,
//! which sends small puts as packets too).
//!
//! **Regions.** The first put or get of at least [`Tuning::direct_bytes`](crate::engine::Tuning::direct_bytes) asks the
//! owner for the description of the region, and itself travels in packets. The answer is kept for later operations.
//! The bounds and the rights that count are those of the answer, not those of the remote key, which may be forged. An
//! operation that they do not permit travels in packets, so that its target refuses it by name.
//!
//! **Order.** A target executes packets when it makes progress, but an access takes effect at once. So an operation is
//! direct only if no earlier put or atomic operation in packets is unconfirmed. In the other direction no rule is
//! needed: on one connection, a packet arrives after the bytes of all writes before it.
//!
//! **End.** A put is complete when its accesses have ended. If its target must count a notification, or answer, or if
//! the end of a write does not prove its arrival (iWARP, TCP), a put of no bytes follows as a packet. A flush then
//! waits for the answer to a packet, as it does for other puts.
//!
//! **Atomic operations** always travel in packets, and the processor of the target executes them. Those of a device
//! exclude those of the processor on few devices only, and one region must not have both.
//!
//! **Withdrawal.** If an owner unexposes a region that it has described, it announces the withdrawal to the peers that
//! have asked for descriptions. Each begins no further access by the description, and answers when its accesses have
//! ended. The memory is then deregistered ([`Engine::withdraw`]). An access after that ends the peer's connection.
#![forbid(unsafe_code)]

use core::borrow::Borrow as _;

use super::origin::SentOperation;
use crate::engine::request::{CompletionError, State};
use crate::engine::state::{Body, RegionId, RemoteOperation};
use crate::engine::unload::read;
use crate::engine::{Engine, Failure, Peer, Status, Storage};
#[cfg(nemesia_injected_fault)]
use crate::injected_fault::{InjectedFault, injected};
use crate::port::{AccessError, Accessed, Arrival, PacketPieces, PeerFault, PeerId, Port, PortFault};
use crate::wire::direct::{DESCRIPTION_BYTES, DirectRegion};
use crate::wire::rendezvous::Descriptor;
use crate::wire::rma::{Access, Confirm, DESCRIBED, Refusal, RmaOperation, Verb, WINDOW, WITHDRAWN};
use crate::wire::{Envelope, Kind};

/// The most regions of peers whose descriptions are kept.
const REGIONS: usize = 32;
/// The most direct operations under way.
const OPERATIONS: usize = 64;
/// After so many withdrawals no further region is described, so that their number fits 32 bits.
const MOST_WITHDRAWALS: u32 = 1 << 31;

/// What is known of a region of a peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Knowledge {
    #[default]
    Nothing,
    /// The description was requested.
    Asked,
    /// It is used in packets.
    Denied,
    Described(DirectRegion),
}

/// A region of a peer.
#[derive(Clone, Copy, Debug, Default)]
struct KnownRegion {
    peer: PeerId,
    key: u64,
    knowledge: Knowledge,
    /// The owner withdraws the description.
    withdrawn: bool,
    /// Operations that use the description.
    users: u32,
}

/// A direct operation under way.
#[derive(Clone, Copy, Debug, Default)]
struct DirectOperation {
    in_use: bool,
    region: u8,
    /// The position in the registered bytes.
    at: u64,
    /// The number of bytes whose access has begun.
    begun: usize,
    under_way: u32,
    failed: bool,
    /// Nothing is left to begin or to send.
    is_sent: bool,
    /// Whether the target must answer, and its answer.
    is_unanswered: bool,
    refusal: Option<Refusal>,
    /// The peer has departed before everything was sent.
    is_abandoned: bool,
}

/// The regions of peers, and the direct operations.
#[derive(Debug)]
pub(in crate::engine) struct DirectTable {
    regions: [KnownRegion; REGIONS],
    operations: [DirectOperation; OPERATIONS],
    /// The region that is forgotten next.
    next: usize,
    /// The number of withdrawals of this process's regions.
    withdrawals: u32,
}

impl DirectTable {
    pub(in crate::engine) fn new() -> Self {
        Self {
            regions: [KnownRegion::default(); REGIONS],
            operations: [DirectOperation::default(); OPERATIONS],
            next: 0,
            withdrawals: 0,
        }
    }

    fn find(&mut self, peer: PeerId, key: u64) -> Option<(usize, &mut KnownRegion)> {
        let is_it = |it: &KnownRegion| it.peer == peer && it.key == key && it.knowledge != Knowledge::Nothing;
        self.regions.iter_mut().enumerate().find(|(_, it)| is_it(it))
    }

    /// Returns a place for one more region. If all are in use, a description that no operation uses is forgotten.
    fn vacancy(&mut self) -> Option<&mut KnownRegion> {
        let free = |it: &KnownRegion| it.knowledge == Knowledge::Nothing;
        let unused = |it: &KnownRegion| it.users == 0 && !it.withdrawn && it.knowledge != Knowledge::Asked;
        let order = (self.next..REGIONS).chain(0..self.next);
        let at = self.regions.iter().position(free);
        let at = at.or_else(|| order.into_iter().find(|at| self.regions.get(*at).is_some_and(unused)))?;
        self.next = (at + 1) % REGIONS;
        let place = self.regions.get_mut(at)?;
        *place = KnownRegion::default();
        Some(place)
    }

    /// Takes a place for an operation on a known region.
    fn begin(&mut self, region: usize, at: u64) -> Option<u8> {
        let slot = self.operations.iter().position(|it| !it.in_use)?;
        self.regions.get_mut(region)?.users += 1;
        let operation =
            DirectOperation { in_use: true, region: region as u8, at, ..DirectOperation::default() };
        *self.operations.get_mut(slot)? = operation;
        Some(slot as u8)
    }

    fn operation(&mut self, slot: u8) -> Option<&mut DirectOperation> {
        self.operations.get_mut(usize::from(slot))
    }

    /// Frees the place of an operation.
    fn end(&mut self, slot: u8) {
        let Some(operation) = self.operation(slot) else { return };
        let region = core::mem::take(operation).region;
        if let Some(region) = self.regions.get_mut(usize::from(region)) {
            region.users = region.users.saturating_sub(1);
        }
    }

    /// Forgets what is withdrawn, if no operation uses it. Returns whether that was all of this peer's.
    fn forget_withdrawn(&mut self, peer: PeerId) -> bool {
        let withdrawn = |it: &&mut KnownRegion| it.peer == peer && it.withdrawn;
        if self.regions.iter_mut().filter(withdrawn).any(|it| it.users > 0) {
            return false;
        }
        // The answer to a request is still to come; it is discarded.
        let known = |it: &&mut KnownRegion| withdrawn(it) && it.knowledge != Knowledge::Asked;
        self.regions.iter_mut().filter(known).for_each(|it| *it = KnownRegion::default());
        true
    }

    /// Forgets a peer. The port has ended all accesses to its memory.
    pub(in crate::engine) fn forget(&mut self, peer: PeerId) {
        for (at, region) in self.regions.iter_mut().enumerate() {
            if region.knowledge == Knowledge::Nothing || region.peer != peer {
                continue;
            }
            let of_region = |it: &&mut DirectOperation| it.in_use && usize::from(it.region) == at;
            self.operations.iter_mut().filter(of_region).for_each(|it| *it = DirectOperation::default());
            *region = KnownRegion::default();
        }
    }
}

impl<P: Port, S: Storage> Engine<P, S> {
    /// Origin: continues an operation by remote memory access, or begins it in that way. `None` if it travels in
    /// packets. `Some(false)` if there is nothing to do now.
    pub(super) fn leave_direct(&mut self, to: PeerId, index: u32) -> Result<Option<bool>, PeerFault> {
        let Some(slot) = self.direct_slot(to, index)? else { return Ok(None) };
        let moved = self.begin_accesses(to, index, slot);
        let len = self.remote(index).map_or(0, |remote| remote.body.direct_bytes());
        let Some(&mut DirectOperation { begun, under_way, failed, .. }) = self.direct.operation(slot) else {
            return Ok(None);
        };
        if failed && under_way == 0 {
            // The bytes travel in packets, from the first one on.
            self.direct.end(slot);
            if let Some(remote) = self.remote(index) {
                (remote.direct, remote.in_packets) = (None, true);
            }
            return Ok(None);
        }
        if failed || begun < len {
            return Ok(Some(moved));
        }
        self.end_leaving(to, index, slot).map(Some)
    }

    fn remote(&mut self, index: u32) -> Option<&mut RemoteOperation> {
        match &mut self.requests.get_mut(index).0 {
            State::Remote(remote) => Some(remote),
            _ => None,
        }
    }

    /// Returns the place of an operation, which may begin now.
    fn direct_slot(&mut self, to: PeerId, index: u32) -> Result<Option<u8>, PeerFault> {
        let least = self.tuning.direct_bytes;
        let Some(remote) = self.remote(index) else { return Ok(None) };
        if remote.direct.is_some() {
            return Ok(remote.direct);
        }
        let wanted = match remote.verb.operation {
            RmaOperation::Put => Access::Write,
            RmaOperation::Get => Access::Read,
            _ => return Ok(None),
        };
        let (len, key, offset) = (remote.body.direct_bytes(), remote.key, remote.offset);
        if remote.in_packets || remote.body.has_begun() || len == 0 || (len as u64) < least {
            return Ok(None);
        }
        if self.port.direct_access(to).is_none() {
            return Ok(None);
        }
        let Some((at, known)) = self.direct.find(to, key) else {
            self.ask(to, key)?;
            return Ok(None);
        };
        let Knowledge::Described(region) = known.knowledge else { return Ok(None) };
        let Some(place) = region.place(offset, len as u64, wanted).filter(|_| !known.withdrawn) else {
            return Ok(None);
        };
        if self.rma_state(to).in_flight >= WINDOW || !self.packets_are_done(to) {
            return Ok(None);
        }
        let slot = self.direct.begin(at, place);
        if slot.is_some() {
            self.peer(to).tally.direct.add(len);
            if let Some(remote) = self.remote(index) {
                remote.direct = slot;
            }
        }
        Ok(slot)
    }

    /// Returns whether all operations that change memory and were sent in packets are known to be done.
    fn packets_are_done(&self, to: PeerId) -> bool {
        #[cfg(nemesia_injected_fault)]
        if injected(InjectedFault::OvertakePackets) {
            return true;
        }
        let peers: &[Peer] = self.peers.borrow();
        let Some(Peer { rma_state, .. }) = peers.get(to as usize) else { return false };
        if rma_state.flushed < rma_state.issued_with_bytes {
            return false;
        }
        let mut at = rma_state.awaited.first();
        // The list has at most as many entries as the window.
        while let Some(index) = at {
            at = self.requests.next(index);
            if let State::Remote(remote) = &self.requests.get(index).0
                && remote.direct.is_none()
                && !matches!(remote.verb.operation, RmaOperation::Get | RmaOperation::Flush)
            {
                return false;
            }
        }
        true
    }

    /// Asks for the description of a region, if there is a place for it.
    fn ask(&mut self, to: PeerId, key: u64) -> Result<(), PeerFault> {
        if self.rma_state(to).in_flight >= WINDOW {
            return Ok(());
        }
        let Some(place) = self.direct.vacancy() else { return Ok(()) };
        let verb = Verb::plain(RmaOperation::Describe);
        let head = key.to_le_bytes();
        let envelope =
            Envelope { kind: Kind::Rma, context: verb.encode(), tag: key, total: head.len() as u64 };
        if !self.port.send(to, &envelope, PacketPieces::Whole(&head))? {
            return Ok(());
        }
        *place = KnownRegion { peer: to, key, knowledge: Knowledge::Asked, ..KnownRegion::default() };
        self.peer(to).tally.sent(Kind::Rma, head.len());
        self.rma_state(to).in_flight += 1;
        self.port.prioritize(to);
        Ok(())
    }

    /// Begins accesses to the next bytes. Returns whether one has begun.
    fn begin_accesses(&mut self, to: PeerId, index: u32, slot: u8) -> bool {
        let id = self.id(index).to_bits();
        let Self { requests, port, tuning, direct, .. } = self;
        let State::Remote(remote) = &mut requests.get_mut(index).0 else { return false };
        let DirectTable { regions, operations, .. } = direct;
        let Some(operation) = operations.get_mut(usize::from(slot)) else { return false };
        let Some(KnownRegion { knowledge: Knowledge::Described(region), .. }) =
            regions.get(usize::from(operation.region))
        else {
            return false;
        };
        let (descriptor, len, before) =
            (Descriptor::of_region(&region.bytes), remote.body.direct_bytes(), operation.under_way);
        let (start, shape) = (operation.begun, port.access_shape(to));
        // The loop is bounded by the places of the port.
        while operation.begun < len && !operation.failed {
            let (begun, address) = (operation.begun as u64, remote.body.direct_address());
            let end = shape.end_of((begun, len as u64), tuning.pull_bytes, address.wrapping_add(begun));
            let (at, part) = (operation.at + begun, (end - begun) as usize);
            let accessed = match &mut remote.body {
                Body::Out { buf, .. } => {
                    buf.range_of(operation.begun, part).map(|range| port.put(to, &descriptor, at, range, id))
                }
                Body::In { buf, .. } => {
                    buf.range_of(operation.begun, part).map(|range| port.get(to, &descriptor, at, range, id))
                }
                _ => None,
            };
            match accessed {
                Some(Accessed::Busy) => break,
                Some(Accessed::Failed(_)) | None => operation.failed = true,
                Some(accessed) => {
                    operation.under_way += u32::from(accessed == Accessed::Later);
                    operation.begun = end as usize;
                }
            }
        }
        let (started, moved) = (operation.under_way - before, operation.begun > start);
        self.peer(to).accesses += started;
        self.list_work(to);
        moved
    }

    /// Sends the packet behind the bytes, if one is needed, and lets the operation wait for its end. Returns `false` if
    /// there is no space.
    fn end_leaving(&mut self, to: PeerId, index: u32, slot: u8) -> Result<bool, PeerFault> {
        let proves = self.port.direct_access(to).is_some_and(|access| access.put_proves_arrival);
        #[cfg(nemesia_injected_fault)]
        let proves = proves || injected(InjectedFault::TrustWrites);
        let bits = self.id(index).to_bits();
        let Some(remote) = self.remote(index) else { return Ok(false) };
        let Verb { operation, notify, confirm, .. } = remote.verb;
        let mut is_unanswered = false;
        if operation == RmaOperation::Put && (notify || confirm != Confirm::No || !proves) {
            let empty = RemoteOperation { body: Body::Nothing { awaited: false, issued: 0 }, ..*remote };
            let mut whole = core::mem::replace(remote, empty);
            if let Body::Out { buf, sent, .. } = &mut whole.body {
                *sent = buf.len();
            }
            let sent = self.send_remote(&mut whole, bits);
            self.requests.get_mut(index).0 = State::Remote(whole);
            match sent? {
                SentOperation::Nothing => return Ok(false),
                SentOperation::Awaited => is_unanswered = true,
                SentOperation::All | SentOperation::Some => {}
            }
        }
        self.left(to, index);
        self.rma_state(to).in_flight += u32::from(!is_unanswered);
        self.await_answer(to, index);
        if let Some(operation) = self.direct.operation(slot) {
            (operation.is_sent, operation.is_unanswered) = (true, is_unanswered);
        }
        self.finish_direct(to, index, slot);
        Ok(true)
    }

    /// Completes an operation if its accesses have ended and the target has answered.
    fn finish_direct(&mut self, peer: PeerId, index: u32, slot: u8) {
        let Some(&mut it) = self.direct.operation(slot) else { return };
        if !it.is_sent || it.under_way > 0 || it.is_unanswered {
            return;
        }
        if it.failed && !it.is_abandoned {
            // The connection is lost, which ends the request.
            return;
        }
        let Some(remote) = self.remote(index) else { return };
        remote.direct = None;
        let len = remote.body.direct_bytes();
        self.direct.end(slot);
        self.answered(peer, index);
        let outcome = match it.refusal {
            _ if it.is_abandoned => {
                self.rma_state(peer).lost = true;
                let failure = self.peer(peer).departed.unwrap_or(Failure::Finished);
                Err(CompletionError::PeerFailed { peer, failure })
            }
            Some(refusal) => Err(CompletionError::Refused { peer, refusal, count: 1 }),
            None => Ok(Status { peer, tag: 0, len, immediate: None }),
        };
        self.complete(index, outcome);
        self.list_work(peer);
    }

    /// Records the end of an access. Returns the peer; `None` if the request is no direct operation.
    pub(in crate::engine) fn settle_direct(
        &mut self,
        index: u32,
        result: Result<(), AccessError>,
    ) -> Option<PeerId> {
        let remote = self.remote(index)?;
        let (peer, slot) = (remote.to, remote.direct?);
        let operation = self.direct.operation(slot)?;
        operation.under_way = operation.under_way.saturating_sub(1);
        operation.failed |= result.is_err();
        self.finish_direct(peer, index, slot);
        self.list_work(peer);
        Some(peer)
    }

    /// Records the answer to the packet behind the bytes.
    pub(super) fn answer_direct(
        &mut self,
        peer: PeerId,
        index: u32,
        slot: u8,
        refusal: Option<Refusal>,
    ) -> Result<(), PortFault> {
        let operation = self.direct.operation(slot).filter(|operation| operation.is_unanswered);
        let operation = operation.ok_or(PortFault::Protocol { kind: Kind::RmaReply })?;
        (operation.is_unanswered, operation.refusal) = (false, refusal);
        self.finish_direct(peer, index, slot);
        Ok(())
    }

    /// Ends an operation that has not left when its peer departs. The port may still use its buffer.
    pub(super) fn abandon_direct(&mut self, peer: PeerId, index: u32, slot: u8) {
        if let Some(operation) = self.direct.operation(slot) {
            (operation.is_sent, operation.is_abandoned) = (true, true);
        }
        self.rma_state(peer).in_flight += 1;
        self.await_answer(peer, index);
        self.finish_direct(peer, index, slot);
    }

    /// Origin: handles the description of a region.
    pub(super) fn deliver_description(&mut self, arrival: &Arrival<P::Token>) -> Result<(), PortFault> {
        let fault = PortFault::Protocol { kind: Kind::RmaReply };
        let refusal = Refusal::from_code(arrival.envelope.context & !DESCRIBED).ok_or(fault)?;
        let Self { direct, port, .. } = self;
        let (_, known) = direct.find(arrival.peer, arrival.envelope.tag).ok_or(fault)?;
        if known.knowledge != Knowledge::Asked {
            return Err(fault);
        }
        let knowledge = match refusal {
            None if arrival.len == DESCRIPTION_BYTES => {
                let mut bytes = [0; DESCRIPTION_BYTES];
                read(port, arrival, 0, &mut bytes)?;
                Knowledge::Described(DirectRegion::decode(&bytes).ok_or(fault)?)
            }
            Some(Refusal::Undefined) if arrival.len == 0 => Knowledge::Denied,
            Some(_) if arrival.len == 0 => Knowledge::Nothing,
            _ => return Err(fault),
        };
        known.knowledge = if known.withdrawn { Knowledge::Nothing } else { knowledge };
        if known.knowledge == Knowledge::Nothing {
            *known = KnownRegion::default();
        }
        let rma_state = self.rma_state(arrival.peer);
        rma_state.in_flight = rma_state.in_flight.saturating_sub(1);
        self.list_leaving(arrival.peer);
        Ok(())
    }

    /// Origin: stops the use of a description.
    pub(super) fn heed_withdrawal(&mut self, peer: PeerId, key: u64, number: u64) -> Result<(), PortFault> {
        let rma_state = self.rma_state(peer);
        let number = u32::try_from(number).ok().filter(|number| *number > rma_state.withdrawals_heard);
        let number = number.ok_or(PortFault::Protocol { kind: Kind::Rma })?;
        (rma_state.withdrawals_heard, rma_state.withdrawal_is_unanswered) = (number, true);
        #[cfg(nemesia_injected_fault)]
        if injected(InjectedFault::IgnoreWithdrawal) {
            self.list_work(peer);
            return Ok(());
        }
        if let Some((_, known)) = self.direct.find(peer, key) {
            known.withdrawn = true;
        }
        self.list_work(peer);
        Ok(())
    }

    /// Origin: answers withdrawals when no operation uses the descriptions.
    pub(super) fn answer_withdrawals(&mut self, peer: PeerId) -> Result<bool, PeerFault> {
        if !self.direct.forget_withdrawn(peer) {
            return Ok(false);
        }
        let number = self.rma_state(peer).withdrawals_heard;
        let envelope = Envelope { kind: Kind::RmaReply, context: WITHDRAWN, tag: number.into(), total: 0 };
        if !self.port.send(peer, &envelope, PacketPieces::Whole(&[]))? {
            return Ok(false);
        }
        self.peer(peer).tally.sent(Kind::RmaReply, 0);
        self.rma_state(peer).withdrawal_is_unanswered = false;
        Ok(true)
    }

    /// Target: registers a region that a peer asks for.
    pub(super) fn describe(&mut self, peer: PeerId, key: u64) {
        if self.tuning.direct_bytes == u64::MAX || self.direct.withdrawals >= MOST_WITHDRAWALS {
            return;
        }
        let withdrawals = self.direct.withdrawals;
        let rma_state = self.rma_state(peer);
        if !rma_state.was_described {
            rma_state.was_described = true;
            (rma_state.withdrawals_sent, rma_state.withdrawals_answered) = (withdrawals, withdrawals);
        }
        let Self { regions, port, .. } = self;
        if let Some(region) = regions.named(key)
            && region.direct.is_none()
            && !region.memory.is_empty()
        {
            region.direct = port.expose_region(peer, &region.memory, region.access);
        }
    }

    /// Target: handles the answer to withdrawals.
    pub(super) fn withdrawals_answered(&mut self, peer: PeerId, number: u64) -> Result<(), PortFault> {
        let rma_state = self.rma_state(peer);
        let awaited = rma_state.withdrawals_answered + 1..=rma_state.withdrawals_sent;
        let number = u32::try_from(number).ok().filter(|number| awaited.contains(number));
        let number = number.ok_or(PortFault::Protocol { kind: Kind::RmaReply })?;
        rma_state.withdrawals_answered = number;
        Ok(())
    }

    /// Target: begins the withdrawal of an unexposed region. Returns its number.
    pub(super) const fn begin_withdrawal(&mut self) -> u32 {
        self.direct.withdrawals = self.direct.withdrawals.saturating_add(1);
        self.direct.withdrawals
    }

    /// Continues to end the access of peers to the memory of a region after [`Engine::unexpose`], and returns whether
    /// it has ended: call it, and [`Engine::progress`], until it has, before the memory is used for something else.
    /// Until then no region can be exposed with the same key. `force`: peers that have not confirmed that they have
    /// stopped are not waited for. The fabric then refuses their accesses, which ends their connections.
    pub fn withdraw(&mut self, id: RegionId, force: bool) -> bool {
        let Some((number, exposure)) = self.regions.withdrawn(id) else { return true };
        let mut waits = None;
        for peer in 0..self.size() {
            let is_there = peer != self.rank && self.check_destination(peer).is_ok();
            let rma_state = self.rma_state(peer);
            if is_there && rma_state.was_described && rma_state.withdrawals_answered < number {
                waits = Some(peer);
                self.announce_withdrawals(peer, number);
            }
        }
        if waits.is_some() && !force {
            return false;
        }
        if self.port.withdraw_region(exposure) {
            self.regions.forget(id);
            return true;
        }
        if let Some(peer) = waits {
            // The port waits for this peer in the middle of an access.
            self.fault(PeerFault { peer, fault: PortFault::Window });
        }
        false
    }

    fn announce_withdrawals(&mut self, peer: PeerId, number: u32) {
        while self.rma_state(peer).withdrawals_sent < number {
            let next = self.rma_state(peer).withdrawals_sent + 1;
            let head = self.regions.withdrawn_key(next).unwrap_or(0).to_le_bytes();
            let context = Verb::plain(RmaOperation::Withdraw).encode();
            let envelope = Envelope { kind: Kind::Rma, context, tag: next.into(), total: head.len() as u64 };
            match self.port.send(peer, &envelope, PacketPieces::Whole(&head)) {
                Ok(true) => {}
                Ok(false) => return,
                Err(fault) => return self.fault(fault),
            }
            self.peer(peer).tally.sent(Kind::Rma, head.len());
            self.rma_state(peer).withdrawals_sent = next;
            self.port.prioritize(peer);
        }
    }
}
