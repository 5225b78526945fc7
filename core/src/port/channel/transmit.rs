//! Sending: packets with content, and updates, which carry only credits.
#![forbid(unsafe_code)]

use core::borrow::{Borrow as _, BorrowMut};

use super::buffers::{Buffers, Use};
use super::fast::SMALL_RAIL;
use super::peer::{ChannelPeer, ChannelStage, MOST_RAILS, Rail};
use super::{Channel, ChannelStorage, INLINE, SENDS};
use crate::payload::GatherList;
use crate::port::memory::{CompletionSource, MemoryPort, PostError, RemoteRange, Work};
use crate::port::{PacketPieces, PeerFault, PeerId, PortFault};
use crate::wire::Envelope;
use crate::wire::channel::{CloseReason, Header, Numbered, PacketKind};
use crate::wire::ring::{ArrivedSlot, RingOffer, SLOT_PAYLOAD, SlotHeader, TRAILER_BYTES};

/// Flag in the numbers of work requests without a buffer.
const NO_BUFFER: u64 = 1 << 63;

/// Returns the number of an inline work request.
const fn inline_id(peer: PeerId, rail: u32) -> u64 {
    NO_BUFFER | (peer as u64) << 8 | rail as u64
}

/// Returns peer and rail of an inline work request; `None` if the number belongs to a buffer.
pub(super) const fn inline(id: u64) -> Option<(PeerId, u32)> {
    if id & NO_BUFFER == 0 { None } else { Some(((id >> 8) as PeerId, id as u32 & 0xff)) }
}

/// The slot of a ring into which a packet is written.
#[derive(Clone, Copy, Debug)]
struct SlotWrite {
    offer: RingOffer,
    number: u32,
    /// The header of the packet before in the ring.
    before: Option<Header>,
}

impl SlotWrite {
    /// Returns where a packet with this header and `len` bytes of payload begins, and its trailer.
    fn place(&self, header: &SlotHeader, len: usize) -> (RemoteRange, [u8; TRAILER_BYTES]) {
        let Self { offer, number, .. } = self;
        let total = header.bytes().len() + len + TRAILER_BYTES;
        let address = (offer.shape.end(*number) - total as u64).wrapping_add(offer.address);
        let said = ArrivedSlot { len, is_cached: matches!(header, SlotHeader::Cached(_)) };
        let to = RemoteRange { address, key: offer.key };
        (to, offer.shape.trailer(*number, said).to_le_bytes())
    }
}

/// A packet that was posted.
#[derive(Clone, Copy, Debug)]
struct PostedPacket {
    /// The totals of this process that it carries.
    units: u64,
    slots: u32,
    /// Its length if it uses a buffer.
    buffered: Option<usize>,
    /// If it is in a slot: the bytes of its payload, its header, and whether that is cached.
    in_slot: Option<(usize, Header, bool)>,
    is_quiet: bool,
}

/// The memory in which a packet is assembled.
struct SendRoom<'a, S: ChannelStorage> {
    at: usize,
    /// The bytes at the beginning that the port has taken already.
    taken: usize,
    place: SendPlace<'a, S>,
}

enum SendPlace<'a, S: ChannelStorage> {
    Stack(&'a mut [u8; INLINE]),
    Buffer(&'a Buffers<S::Buffers, S::Slabs>, u32),
}

impl<S: ChannelStorage> SendRoom<'_, S> {
    /// Appends bytes. They fit, because the length was checked before.
    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        let skipped = self.taken.saturating_sub(self.at).min(bytes.len());
        self.at += skipped;
        let bytes = bytes.get(skipped..).unwrap_or(&[]);
        let fits = match &mut self.place {
            SendPlace::Stack(stack) => {
                let to = stack.get_mut(self.at..self.at + bytes.len());
                to.map(|to| to.copy_from_slice(bytes)).is_some()
            }
            SendPlace::Buffer(buffers, index) => buffers.write(*index, self.at, bytes),
        };
        debug_assert!(fits);
        self.at += bytes.len();
    }

    #[inline]
    fn put_all(&mut self, header: &[u8], content: &mut PacketPieces<'_>, trailer: &[u8]) {
        self.put(header);
        content.each(|piece| self.put(piece));
        self.put(trailer);
    }
}

impl<M: MemoryPort, S: ChannelStorage> Channel<M, S> {
    /// Sends a packet on the next rail that accepts one. Returns `false` if none does.
    pub(super) fn transmit(
        &mut self,
        peer: PeerId,
        envelope: &Envelope,
        content: &mut PacketPieces<'_>,
    ) -> Result<bool, PeerFault> {
        let Envelope { kind, context, tag, .. } = *envelope;
        let sent = self.transmit_on_any(peer, (PacketKind::Engine(kind), context, tag), content)?;
        if let Some(it) = self.peer(peer) {
            let held = !sent && !it.has_failed();
            it.sent += u64::from(sent);
            it.holds += u64::from(held && !it.held);
            it.held = held;
        }
        Ok(sent)
    }

    /// Sends the last packet to a peer, which tells it how this process leaves. Returns whether nothing is left to
    /// do: `false` means that there is no space now. Nothing may be sent to the peer afterwards.
    ///
    /// # Errors
    /// The memory port refuses the packet.
    pub fn send_close(&mut self, peer: PeerId, reason: CloseReason) -> Result<bool, PeerFault> {
        let is_ready = |it: &Rail| matches!(it.stage, ChannelStage::Ready);
        let open =
            |it: &mut ChannelPeer<S::Window>| !it.has_failed() && it.rails.iter().flatten().any(is_ready);
        if !self.peer(peer).is_some_and(open) {
            return Ok(true);
        }
        #[cfg(nemesia_injected_fault)]
        if crate::injected_fault::injected(crate::injected_fault::InjectedFault::ForgetClose) {
            return Ok(true);
        }
        let sent =
            self.transmit_on_any(peer, (PacketKind::Close(reason), 0, 0), &mut PacketPieces::Whole(&[]))?;
        if let Some(it) = self.peer(peer) {
            it.fast.has_left |= sent;
        }
        Ok(sent)
    }

    /// Returns whether a posted packet to this peer has not completed. Small packets that complete only if they fail do
    /// not count. They precede a later packet that counts, for instance that of [`Channel::send_close`].
    pub fn is_sending(&self, peer: PeerId) -> bool {
        let peers = self.peers.borrow();
        let is_open = |it: &&Rail| matches!(it.stage, ChannelStage::Ready);
        let rails = peers.get(peer as usize).map(|it| it.rails.iter().flatten().filter(is_open));
        rails.is_some_and(|mut rails| rails.any(|it| it.outstanding > 0))
    }

    pub(super) fn transmit_on_any(
        &mut self,
        peer: PeerId,
        (kind, context, tag): (PacketKind, u16, u64),
        content: &mut PacketPieces<'_>,
    ) -> Result<bool, PeerFault> {
        let (limit, len) = (self.config.packet_bytes, content.len());
        if len > limit as usize {
            return Err(PeerFault { peer, fault: PortFault::Post(PostError::Length { limit }) });
        }
        let (rails, first) = (self.config.rails as usize, self.facts().active_speaks_first);
        let Some(it) = self.peer(peer).filter(|it| !it.has_failed()) else { return Ok(false) };
        let packet = Numbered { kind, context, tag, sequence: it.next };
        if matches!(kind, PacketKind::Engine(_)) && len <= SLOT_PAYLOAD {
            match self.write_to_ring(peer, packet, content) {
                Ok(true) => return Ok(true),
                Ok(false) => {}
                Err(error) => return Err(PeerFault { peer, fault: PortFault::Post(error) }),
            }
        }
        let Some(it) = self.peer(peer) else { return Ok(false) };
        // After a close no update follows, so the close may use the credit that is reserved for updates.
        let is_last = matches!(kind, PacketKind::Close(_));
        let is_small = len <= SLOT_PAYLOAD;
        let (mut at, mut is_starved) = (if is_small { SMALL_RAIL as usize } else { it.turn }, false);
        // A close proves the arrival of what was sent on its connection, so it takes that of the small packets.
        let rails_tried = if is_last { 1 } else { rails.min(MOST_RAILS) };
        for _ in 0..rails_tried {
            let rail = at as u32;
            at = if at + 1 < rails { at + 1 } else { 0 };
            let Some(it) = self.peer(peer).and_then(|it| it.rail(rail)).filter(|it| it.may_speak(first))
            else {
                continue;
            };
            if !(it.credits.can_send() || is_last && it.credits.left() > 0) {
                is_starved = true;
                continue;
            }
            match self.post_packet((peer, rail), Some(packet), content, None) {
                Ok(true) => {
                    if let Some(it) = self.peer(peer) {
                        it.is_starved = false;
                        it.turn = if is_small { it.turn } else { at };
                        it.next = it.next.wrapping_add(1);
                    }
                    return Ok(true);
                }
                Ok(false) => {}
                Err(error) => return Err(PeerFault { peer, fault: PortFault::Post(error) }),
            }
        }
        if let Some(it) = self.peer(peer) {
            it.is_starved |= is_starved;
        }
        Ok(false)
    }

    /// Writes a packet into the ring of its peer. Returns `false` if that is not possible now: the packet is then sent.
    fn write_to_ring(
        &mut self,
        peer: PeerId,
        packet: Numbered,
        content: &mut PacketPieces<'_>,
    ) -> Result<bool, PostError> {
        let facts = self.facts();
        let (first, is_on) = (facts.active_speaks_first, self.config.fast.is_on());
        // A packet may report the end of writes to the peer's memory, and must not be seen before them.
        let (is_ordered, proves) = (facts.ordered_among_writes, facts.write_proves_placement);
        let is_behind = |it: &Rail| is_ordered || proves && it.accesses == 0;
        let Some(it) = self.peer(peer).filter(|_| is_on) else { return Ok(false) };
        if !it.fast.writes() || !it.rail(SMALL_RAIL).is_some_and(|it| it.may_speak(first) && is_behind(it)) {
            return Ok(false);
        }
        let Some((offer, number, before)) = it.fast.next_slot() else { return Ok(false) };
        let slot = SlotWrite { offer, number, before };
        let written = self.post_packet((peer, SMALL_RAIL), Some(packet), content, Some(slot))?;
        if written && let Some(it) = self.peer(peer) {
            it.next = it.next.wrapping_add(1);
        }
        Ok(written)
    }

    /// Sends one packet on this rail, which must have a credit for it, or writes it into a slot. Returns `false` if the
    /// queue of the rail is full, if no buffer is free, or if the rail was just lost.
    fn post_packet(
        &mut self,
        (peer, rail): (PeerId, u32),
        packet: Option<Numbered>,
        content: &mut PacketPieces<'_>,
        slot: Option<SlotWrite>,
    ) -> Result<bool, PostError> {
        let len = content.len();
        let facts = self.facts();
        let (inline_bytes, depth) = (INLINE.min(facts.inline_bytes as usize), facts.send_depth);
        let Some(it) = self.peers.borrow_mut().get_mut(peer as usize) else { return Ok(false) };
        let ((units, _), is_starved, slots) = (it.promise(), it.is_starved, it.fast.taken());
        let Some(it) = it.rail(rail) else { return Ok(false) };
        let waited = is_starved && packet.is_some() && slot.is_none();
        let plain = Header { packet, stamp: it.credits.stamp(), units, waited, slots };
        let header = SlotHeader::new(&plain, slot.as_ref().and_then(|slot| slot.before.as_ref()));
        let place = slot.map(|slot| slot.place(&header, len));
        let trailer = place.as_ref().map_or(&[][..], |(_, trailer)| trailer);
        let (head, to) = (header.bytes(), place.map(|(to, _)| to));
        let (connection, own) = (it.connection, it.sending < SENDS);
        let total = head.len() + len + trailer.len();
        // A packet from a buffer must complete before the buffer is free. The completion of a close shows that all
        // packets before it on its connection have arrived.
        let is_plain = packet.is_none_or(|packet| matches!(packet.kind, PacketKind::Engine(_)));
        #[cfg(nemesia_injected_fault)]
        let is_plain =
            is_plain || crate::injected_fault::injected(crate::injected_fault::InjectedFault::QuietClose);
        let is_quiet = total <= inline_bytes && is_plain && rail == SMALL_RAIL && it.may_be_quiet(depth);
        let mut stack = [0; INLINE];
        let (posted, buffered) = if total <= inline_bytes {
            let mut room = SendRoom::<S> { at: 0, taken: 0, place: SendPlace::Stack(&mut stack) };
            room.put_all(head, content, trailer);
            let bytes = CompletionSource::Inline(stack.get(..total).unwrap_or(&[]));
            let work = Work { quiet: is_quiet, ..Work::new(connection, inline_id(peer, rail)) };
            (self.post_bytes(work, bytes, to), None)
        } else {
            let Some(index) = self.buffers.take(own, Use::Sending, peer, rail) else { return Ok(false) };
            let work = Work::new(connection, index.into());
            let posted = self.post_buffered(work, index, (head, content, trailer), to);
            if posted.is_err() {
                self.buffers.put(index, own);
            }
            (posted, Some(len))
        };
        let in_slot = slot.map(|_| (len, plain, matches!(header, SlotHeader::Cached(_))));
        let packet = PostedPacket { units, slots, buffered, in_slot, is_quiet };
        match posted {
            Ok(()) => self.was_posted((peer, rail), packet),
            Err(PostError::QueueFull | PostError::NotReady) => return Ok(false),
            Err(error) => return Err(error),
        }
        Ok(true)
    }

    /// Posts a packet of these bytes from a buffer, in which lie those that the port does not take at once.
    fn post_buffered(
        &mut self,
        work: Work,
        index: u32,
        (header, content, trailer): (&[u8], &mut PacketPieces<'_>, &[u8]),
        to: Option<RemoteRange>,
    ) -> Result<(), PostError> {
        let total = header.len() + content.len() + trailer.len();
        let slice = self.buffers.slice(index, total as u32).ok_or(PostError::NotReady)?;
        let taken = if self.port.sends_at_once() && to.is_none() {
            let mut list = GatherList::new();
            list.push(header);
            if content.gather(&mut list) { self.port.send_at_once(work, &list, slice)? } else { None }
        } else {
            None
        };
        if taken != Some(total) {
            let place = SendPlace::Buffer(&self.buffers, index);
            let mut room = SendRoom::<S> { at: 0, taken: taken.unwrap_or(0), place };
            room.put_all(header, content, trailer);
        }
        match taken {
            Some(_) => Ok(()),
            None => self.post_bytes(work, CompletionSource::Gather(&[slice]), to),
        }
    }

    /// Posts the bytes of a packet, which is written to this place, or sent.
    fn post_bytes(
        &mut self,
        work: Work,
        bytes: CompletionSource<'_>,
        to: Option<RemoteRange>,
    ) -> Result<(), PostError> {
        match to {
            None => self.port.send(work, bytes, None),
            Some(to) => self.port.write(work, bytes, to, None),
        }
    }

    fn was_posted(&mut self, (peer, rail): (PeerId, u32), packet: PostedPacket) {
        let PostedPacket { units, slots, buffered, in_slot, is_quiet } = packet;
        let Some(it) = self.peer(peer) else { return };
        it.reported_units(units);
        it.fast.reported(slots);
        if let Some((len, header, is_cached)) = in_slot {
            it.fast.wrote(len, header, is_cached);
        }
        if let Some(len) = buffered.filter(|_| in_slot.is_none()) {
            it.buffered.add(len);
        }
        if let Some(it) = it.rail(rail) {
            it.sending += u32::from(buffered.is_some());
            it.was_posted(is_quiet);
            it.hello = false;
            if in_slot.is_some() {
                it.credits.reported_beside();
            } else {
                it.credits.sent();
            }
        }
    }

    /// Sends an update if one is due on this rail and can be sent. Otherwise the check is repeated when a
    /// packet arrives or completes on the rail.
    pub(super) fn settle(&mut self, peer: PeerId, rail: u32) {
        let first = self.facts().active_speaks_first;
        let slots = self.rings.slots();
        let Some(it) = self.peer(peer).filter(|it| !it.has_failed()) else { return };
        let (_, wake_reason) = it.promise();
        let (notices, report) = (it.fast.due().is_some(), it.fast.must_report(slots));
        #[cfg(nemesia_injected_fault)]
        let report =
            report && !crate::injected_fault::injected(crate::injected_fault::InjectedFault::ForgetSlots);
        if !it.rail(rail).is_some_and(|it| it.may_speak(first)) {
            return;
        }
        if notices && rail == SMALL_RAIL && self.send_ring_notices(peer) {
            // The notices have carried everything else.
            return self.settle(peer, rail);
        }
        let Some(it) = self.peer(peer).and_then(|it| it.rail(rail)) else { return };
        let credits = &it.credits;
        let due = it.hello || wake_reason || report || credits.is_recalling() || credits.has_surplus();
        let update = credits.can_update();
        #[cfg(nemesia_injected_fault)]
        let update =
            update && !crate::injected_fault::injected(crate::injected_fault::InjectedFault::ForgetUpdate);
        if !(update || due && credits.can_send()) {
            return;
        }
        match self.post_packet((peer, rail), None, &mut PacketPieces::Whole(&[]), None) {
            Ok(sent) => {
                if let Some(it) = self.peer(peer) {
                    it.updates += u64::from(sent);
                }
            }
            Err(error) => self.fail(peer, PortFault::Post(error)),
        }
    }

    /// Calls [`Self::settle`] for every rail of a peer.
    pub(super) fn settle_all(&mut self, peer: PeerId) {
        (0..self.config.rails).for_each(|rail| self.settle(peer, rail));
    }
}
