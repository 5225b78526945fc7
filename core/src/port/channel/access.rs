//! Access to the memory of peers by work requests: the large messages of a channel move without copies (paper 1,
//! section 5; paper 2, the CH3 device).
//!
//! **Get.** The sender registers the message so that peers may read it, and describes it ([`RegionBytes`]). The
//! receiver reads it into its registered buffer. The completion of a read proves that its bytes have arrived.
//!
//! **Put.** The receiver registers its buffer so that peers may write it, and describes it. The sender writes, and
//! reports the end. A packet on the same connection arrives after the bytes of all writes before it. On a fabric with
//! immediates the last write itself reports the end: it consumes a receive of the peer, which the channel delivers as
//! the packet that the sender would have sent. The immediate names the exposure. Anything else in it is a violation.
//!
//! **Rails.** All work requests for one message take the same connection, which its request number selects. Messages
//! thus alternate between the connections.
//!
//! **Places.** At most half of a connection's send queue, and at most [`MOST_ACCESSES`] places, hold accesses, so that
//! packets can always be sent.
//!
//! **Revocation.** A buffer that a peer may write is registered byte by byte and for this exposure only, and
//! deregistered before the buffer is used again: the fabric then refuses the peer's writes. The same holds for the
//! destination of a read if the fabric places its bytes like those of a write
//! ([`Facts::read_needs_remote_write`](crate::port::memory::Facts::read_needs_remote_write)). Buffers that peers only
//! read are registered by [`Registrations`], whole pages at a time, and may stay registered: a late read is harmless.
//! The memory of a region, which peers access by one-sided operations, is registered byte by byte for all peers, from
//! the first request for its description until the region is withdrawn.
//! When a peer is closed, its connections are closed first, which ends all work of this process's, then its exposures.
#![allow(unsafe_code, reason = "the memory of messages is lent to the memory port")]

mod table;

use core::borrow::BorrowMut as _;

pub use table::AccessSlot;
pub(super) use table::{AccessId, AccessTable, AccessUse, is_access};

use super::registered::{RegisteredRange, Registrations, deregister_exactly, register_exactly};
use super::{Channel, ChannelStorage};
#[cfg(nemesia_injected_fault)]
use crate::injected_fault::{InjectedFault, injected};
use crate::payload::{Exposed, LentMemory, ReceiveRange, SendRange};
use crate::port::memory::{
    Completion, CompletionSource, MemoryKey, MemoryPort, PostError, RegionAccess, RemoteRange, Slice, Work,
    WorkOutcome,
};
use crate::port::{
    AccessError, AccessShape, Accessed, CompletedAccess, DirectAccess, Exposure, PeerId, RemoteAccess,
    Rendezvous,
};
use crate::wire::region::RegionBytes;
use crate::wire::rendezvous::Descriptor;
use crate::wire::rma::Access;

/// Most accesses of one connection that are under way.
const MOST_ACCESSES: u32 = 16;
/// The alignment of the ends of accesses where registrations are kept: two registrations then share no page.
const PAGE: u64 = 4096;

/// The protocols that a channel uses for large messages. Both ends of a connection may choose differently: the
/// receiver's choice counts, as far as the sender supports it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RendezvousChoice {
    /// All that the fabric supports; the engine learns which is the fastest.
    #[default]
    Auto,
    /// The receiver reads.
    Read,
    /// The sender writes, and reports the end by a packet.
    Write,
    /// The sender writes, and the last write reports the end; on fabrics without immediates as [`Self::Write`].
    WriteNotify,
    /// Packets.
    Stream,
}

/// What a work request does.
#[derive(Clone, Copy, Debug)]
enum AccessKind {
    Get,
    Put {
        /// The immediate with which the write reports the end of the message.
        notice: Option<u32>,
    },
}

/// An access to begin.
#[derive(Clone, Copy, Debug)]
struct AccessOrder {
    peer: PeerId,
    kind: AccessKind,
    at: RemoteRange,
    operation: u64,
}

impl<M: MemoryPort, S: ChannelStorage> Channel<M, S> {
    /// Returns whether the sender may write the memory of this process.
    const fn has_puts(&self) -> bool {
        use RendezvousChoice::{Auto, Write, WriteNotify};
        matches!(self.config.rendezvous, Auto | Write | WriteNotify)
    }

    /// Returns whether the last write to a buffer reports the end.
    fn has_notices(&self) -> bool {
        use RendezvousChoice::{Auto, WriteNotify};
        self.facts().immediates && matches!(self.config.rendezvous, Auto | WriteNotify)
    }

    /// Returns the connection for the work requests of an operation, if it accepts another one. All work requests of an
    /// operation take the same one, because the last may report the end of the others. When more connections have been
    /// made, they take part once all accesses before have completed.
    fn access_rail(&mut self, peer: PeerId, operation: u64) -> Option<u32> {
        let facts = self.facts();
        let (first, most) = (facts.active_speaks_first, (facts.send_depth / 2).clamp(1, MOST_ACCESSES));
        let it = self.peer(peer).filter(|it| !it.has_failed())?;
        let can = |rail: &&Option<super::peer::Rail>| rail.as_ref().is_some_and(|rail| rail.may_speak(first));
        let ready = it.rails.iter().take_while(can).count() as u32;
        if ready != it.access_rails {
            if it.rails.iter().flatten().any(|rail| rail.accesses > 0) {
                return None;
            }
            it.access_rails = ready;
        }
        let rail = (operation as u32).checked_rem(ready)?;
        (it.rail(rail)?.accesses < most).then_some(rail)
    }

    fn register(&mut self, memory: LentMemory, access: RegionAccess) -> Option<RegisteredRange> {
        if access.remote_write {
            return register_exactly(&mut self.port, memory, access).ok();
        }
        self.registrations.acquire(&mut self.port, memory, access).ok()
    }

    /// Ends a use of registered memory. The port may use it a little longer.
    fn release(&mut self, registered: RegisteredRange) {
        let released = if registered.held.is_some() {
            self.registrations.release(&mut self.port, registered)
        } else {
            deregister_exactly(&mut self.port, registered)
        };
        if let Err(registered) = released {
            self.accesses.keep(registered);
        }
    }

    /// Begins an access.
    fn access(&mut self, order: AccessOrder, memory: LentMemory, access: RegionAccess) -> Accessed {
        let AccessOrder { peer, kind, operation, .. } = order;
        let Ok(len) = u32::try_from(memory.len()) else { return Accessed::Failed(AccessError::Range) };
        let Some(rail) = self.access_rail(peer, operation) else { return Accessed::Busy };
        let notifies = matches!(kind, AccessKind::Put { notice: Some(_) });
        let may_notify =
            |it: &mut super::ChannelPeer<S::Window>| it.rail(rail).is_some_and(|it| it.credits.can_send());
        if notifies && !self.peer(peer).is_some_and(may_notify) {
            return Accessed::Busy;
        }
        let Some(id) = self.accesses.next() else { return Accessed::Busy };
        // Memory that cannot be registered is streamed.
        let Some(registered) = self.register(memory, access) else {
            return Accessed::Failed(AccessError::Range);
        };
        let slice = Slice { region: registered.region, offset: registered.offset, len };
        match self.post_access(&order, rail, id, slice) {
            Ok(()) => {
                self.accesses.fill(id, AccessUse::Working { peer, rail, operation, registered });
                self.access_was_posted(peer, rail, notifies);
                #[cfg(nemesia_injected_fault)]
                if injected(InjectedFault::EndAccessEarly) {
                    return Accessed::Done;
                }
                Accessed::Later
            }
            Err(error) => {
                self.release(registered);
                match error {
                    PostError::QueueFull | PostError::NotReady => Accessed::Busy,
                    _ => Accessed::Failed(AccessError::Range),
                }
            }
        }
    }

    fn post_access(
        &mut self,
        order: &AccessOrder,
        rail: u32,
        id: AccessId,
        slice: Slice,
    ) -> Result<(), PostError> {
        let it = self.peers.borrow_mut().get_mut(order.peer as usize).and_then(|it| it.rail(rail));
        let work = Work::new(it.ok_or(PostError::NotReady)?.connection, id.work());
        match order.kind {
            AccessKind::Get => self.port.read(work, &[slice], order.at),
            AccessKind::Put { notice } => {
                self.port.write(work, CompletionSource::Gather(&[slice]), order.at, notice)
            }
        }
    }

    fn access_was_posted(&mut self, peer: PeerId, rail: u32, notifies: bool) {
        let Some(it) = self.peer(peer) else { return };
        it.sent += u64::from(notifies);
        if let Some(it) = it.rail(rail) {
            it.accesses += 1;
            it.outstanding += 1;
            if notifies {
                it.credits.sent_unreported();
            }
        }
    }

    /// Processes the completion of an access.
    pub(super) fn access_ended(&mut self, completion: &Completion) {
        let Completion { id, connection, outcome } = *completion;
        let result = if let WorkOutcome::Failed(_) = outcome { Err(AccessError::Refused) } else { Ok(()) };
        let Some((peer, rail, registered)) = self.accesses.end(id, result) else { return };
        self.release(registered);
        if let Some(it) =
            self.peer(peer).and_then(|it| it.rail(rail)).filter(|it| it.connection == connection)
        {
            it.accesses = it.accesses.saturating_sub(1);
        }
        self.was_sent(peer, rail, connection, outcome);
    }

    /// Ends all accesses to a closed peer's memory, and all exposures to it.
    pub(super) fn forget_accesses(&mut self, peer: PeerId) {
        let mut from = 0;
        // The loop is bounded by the slots of the table.
        while let Some((index, registered)) = self.accesses.forget_next(peer, from) {
            from = index + 1;
            if let Some(registered) = registered {
                self.release(registered);
            }
        }
    }

    /// Ends all exposures to a peer whose connections remain. Returns whether the peer must be closed at once, because
    /// this process accesses memory.
    pub fn end_exposures(&mut self, peer: PeerId) -> bool {
        if self.accesses.is_working(peer) {
            return true;
        }
        self.forget_accesses(peer);
        false
    }

    /// Deregisters memory that the port has used longer than its owner.
    pub(super) fn release_left(&mut self) {
        self.rings.retry_leaving(&mut self.port);
        if self.accesses.leaving > 0 {
            let Self { accesses, port, .. } = self;
            accesses.retry_leaving(|registered| deregister_exactly(port, registered));
        }
    }

    /// Returns the registrations of messages.
    pub const fn registrations(&self) -> &S::Registrations {
        &self.registrations
    }

    fn put_bytes(&mut self, order: AccessOrder, from: &SendRange) -> Accessed {
        // SAFETY: the memory is deregistered, or its registration released, when the access has ended or the peer is
        // closed.
        let memory = unsafe { from.lend() };
        self.access(order, memory, RegionAccess::NONE)
    }
}

// SAFETY: a range is used only by the work request that `access` posts, and by peers that have a key. The port has
// finished with a work request when it reports the completion, or when its connection is closed (`MemoryPort::close`).
// Memory that a peer may write is deregistered when the exposure is revoked or the peer is closed. Other memory is
// released then. Cached registrations of it only permit reads, and are withdrawn before the pages change
// (`Registrations`). All regions end with the port.
unsafe impl<M: MemoryPort, S: ChannelStorage> RemoteAccess for Channel<M, S> {
    fn can_get(&self, _: PeerId) -> bool {
        matches!(self.config.rendezvous, RendezvousChoice::Auto | RendezvousChoice::Read)
    }

    fn rendezvous(&self, peer: PeerId) -> Rendezvous {
        let stream = matches!(self.config.rendezvous, RendezvousChoice::Auto | RendezvousChoice::Stream);
        // With several rails, the packet that reports the end may overtake bytes that are not placed.
        let is_ordered = self.config.rails == 1 || self.facts().write_proves_placement;
        Rendezvous { get: self.can_get(peer), put: self.has_puts() && is_ordered, stream }
    }

    fn access_shape(&self, _: PeerId) -> AccessShape {
        let facts = self.facts();
        let alignment = if facts.registration_pins { PAGE } else { 1 };
        let most_bytes = facts.message_bytes.min(facts.transfer_bytes).into();
        AccessShape { most_bytes, whole_bytes: 0, alignment }
    }

    fn is_accessible(&self, _: PeerId, descriptor: &Descriptor) -> bool {
        descriptor.region().is_some()
    }

    fn expose(&mut self, peer: PeerId, range: SendRange) -> (Descriptor, Option<Exposure>) {
        if !self.can_get(peer) {
            return (Descriptor::NONE, None);
        }
        // SAFETY: the memory is deregistered, or its registration released, when the exposure is revoked or the peer is
        // closed.
        let memory = unsafe { range.lend() };
        let access = RegionAccess { remote_read: true, ..RegionAccess::NONE };
        self.expose_memory(peer, memory, access, None)
    }

    fn expose_for_put(
        &mut self,
        peer: PeerId,
        range: ReceiveRange,
        receiver: u64,
    ) -> (Descriptor, Option<Exposure>) {
        if !self.rendezvous(peer).put {
            return (Descriptor::NONE, None);
        }
        // SAFETY: as in `expose`.
        let memory = unsafe { range.lend() };
        let access = RegionAccess { remote_write: true, ..RegionAccess::LOCAL };
        self.expose_memory(peer, memory, access, Some(receiver))
    }

    fn prepare_put(&mut self, peer: PeerId, range: SendRange) -> Option<Exposure> {
        if self.can_get(peer) || !self.has_puts() || !self.registrations.keeps() {
            return None;
        }
        let id = self.accesses.next()?;
        // SAFETY: as in `expose`.
        let memory = unsafe { range.lend() };
        let registered = self.register(memory, RegionAccess::NONE)?;
        self.accesses.fill(id, AccessUse::Exposed { peer, registered, receiver: None });
        Some(Exposure(id.exposure()))
    }

    fn revoke(&mut self, _: PeerId, exposure: Exposure) {
        #[cfg(nemesia_injected_fault)]
        if injected(InjectedFault::KeepRegion) {
            return;
        }
        // A peer that is still writing has reported the end too early: the port ends its connection.
        if let Some(registered) = self.accesses.revoke(AccessId::of_exposure(exposure.0)) {
            self.release(registered);
        }
    }

    fn get(
        &mut self,
        peer: PeerId,
        from: &Descriptor,
        at: u64,
        to: ReceiveRange,
        operation: u64,
    ) -> Accessed {
        let Some(at) = from.region().and_then(|region| region.part(at, to.len() as u64)) else {
            return Accessed::Failed(AccessError::Range);
        };
        let remote_write = self.facts().read_needs_remote_write;
        // SAFETY: as in `put_bytes`.
        let memory = unsafe { to.lend() };
        let order = AccessOrder { peer, kind: AccessKind::Get, at, operation };
        self.access(order, memory, RegionAccess { remote_write, ..RegionAccess::LOCAL })
    }

    fn put(&mut self, peer: PeerId, to: &Descriptor, at: u64, from: SendRange, operation: u64) -> Accessed {
        let Some(at) = to.region().and_then(|region| region.part(at, from.len() as u64)) else {
            return Accessed::Failed(AccessError::Range);
        };
        let kind = AccessKind::Put { notice: None };
        self.put_bytes(AccessOrder { peer, kind, at, operation }, &from)
    }

    fn notifies(&self, _: PeerId, to: &Descriptor) -> bool {
        self.facts().immediates && to.region().is_some_and(|region| region.notice.is_some())
    }

    fn put_last(
        &mut self,
        peer: PeerId,
        to: &Descriptor,
        at: u64,
        from: SendRange,
        operation: u64,
    ) -> Accessed {
        let region = to.region().filter(|region| region.notice.is_some());
        let part = region.and_then(|region| Some((region.part(at, from.len() as u64)?, region.notice)));
        let Some((at, notice)) = part else { return Accessed::Failed(AccessError::Range) };
        let kind = AccessKind::Put { notice };
        self.put_bytes(AccessOrder { peer, kind, at, operation }, &from)
    }

    fn orders_puts(&self, _: PeerId) -> bool {
        self.config.rails == 1
    }

    fn expose_region(
        &mut self,
        peer: PeerId,
        memory: &Exposed,
        access: Access,
    ) -> Option<(RegionBytes, Exposure)> {
        let _ = self.direct_access(peer)?;
        let id = self.accesses.next()?;
        let writable = access.allows(Access::Write);
        // SAFETY: the memory is deregistered when the exposure is withdrawn. The maker of `memory` guarantees it until
        // then, and that no reference to it is alive while peers may access it.
        let lent = unsafe { memory.lend(writable) };
        let len = memory.len() as u64;
        let rights = RegionAccess {
            local_write: writable,
            remote_read: access.allows(Access::Read),
            remote_write: writable,
            remote_atomic: false,
        };
        let registered = register_exactly(&mut self.port, lent, rights).ok()?;
        let Some(MemoryKey { address, key, .. }) = self.port.key(registered.region) else {
            self.release(registered);
            return None;
        };
        self.accesses.fill(id, AccessUse::Region(registered));
        Some((RegionBytes { address, len, key, notice: None }, Exposure(id.exposure())))
    }

    fn withdraw_region(&mut self, exposure: Exposure) -> bool {
        #[cfg(nemesia_injected_fault)]
        if injected(InjectedFault::KeepRegion) {
            return true;
        }
        let Self { accesses, port, .. } = self;
        accesses.withdraw(AccessId::of_exposure(exposure.0), |region| deregister_exactly(port, region))
    }

    fn direct_access(&self, _: PeerId) -> Option<DirectAccess> {
        let facts = self.facts();
        // Without one order of writes and packets, no packet could report the end of a put.
        (self.config.rails == 1).then_some(DirectAccess { put_proves_arrival: facts.write_proves_placement })
    }

    fn poll_access(&mut self) -> Option<CompletedAccess> {
        self.accesses.next_ended()
    }
}

impl<M: MemoryPort, S: ChannelStorage> Channel<M, S> {
    /// Registers memory that a peer may access, and describes it. `receiver`: the peer may write it, and reports the
    /// end to this request.
    fn expose_memory(
        &mut self,
        peer: PeerId,
        memory: LentMemory,
        access: RegionAccess,
        receiver: Option<u64>,
    ) -> (Descriptor, Option<Exposure>) {
        let nothing = (Descriptor::NONE, None);
        let (len, has_notices) = (memory.len() as u64, receiver.is_some() && self.has_notices());
        if self.peer(peer).is_none_or(|it| it.has_failed()) {
            return nothing;
        }
        let Some(id) = self.accesses.next() else { return nothing };
        let Some(registered) = self.register(memory, access) else { return nothing };
        let Some(key) = self.port.key(registered.region) else {
            self.release(registered);
            return nothing;
        };
        let at = key.at(registered.offset);
        let notice = has_notices.then(|| id.notice());
        let described = RegionBytes { address: at.address, len, key: at.key, notice };
        self.accesses.fill(id, AccessUse::Exposed { peer, registered, receiver });
        (Descriptor::of_region(&described), Some(Exposure(id.exposure())))
    }
}
