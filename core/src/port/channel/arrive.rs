//! Completions: received packets, sent packets, and the further use of their buffers.
#![forbid(unsafe_code)]

use core::borrow::{Borrow as _, BorrowMut as _};

use super::access::is_access;
use super::buffers::{ChannelBuffer, Use};
use super::peer::ChannelStage;
use super::{Channel, ChannelStorage, LOOKS, OWN, SENDS, transmit};
use crate::flow::posted::{LEAST, Next};
use crate::order::Placed;
use crate::port::memory::{Completion, Connection, MemoryPort, PostError, ReceiveQueue, WorkOutcome};
use crate::port::{PeerId, PortFault};
use crate::wire::channel::{HEADER_BYTES, Header, Numbered, PacketKind, RingNotice};
use crate::wire::ring::OFFER_BYTES;
use crate::wire::{Envelope, Kind};

impl<M: MemoryPort, S: ChannelStorage> Channel<M, S> {
    /// Processes a completed work request.
    pub(super) fn complete(&mut self, completion: &Completion) {
        let Completion { id, connection, outcome } = *completion;
        if is_access(id) {
            return self.access_ended(completion);
        }
        if let Some((peer, rail)) = transmit::inline(id) {
            return self.was_sent(peer, rail, connection, outcome);
        }
        let Some(&ChannelBuffer { used, peer, rail, .. }) = self.buffers.get(id as u32) else { return };
        match used {
            Use::Sending => {
                let own = self.peer(peer).and_then(|it| it.rail(rail)).is_some_and(|it| {
                    it.sending = it.sending.saturating_sub(1);
                    it.sending < SENDS
                });
                self.buffers.put(id as u32, own);
                self.was_sent(peer, rail, connection, outcome);
            }
            Use::Posted => self.was_received(id as u32, (peer, rail), outcome),
            // No such work request was posted.
            Use::Free | Use::Held => {}
        }
    }

    pub(super) fn was_sent(&mut self, peer: PeerId, rail: u32, connection: Connection, outcome: WorkOutcome) {
        let Some(it) = self.peer(peer).and_then(|it| it.rail(rail)) else { return };
        if it.connection != connection || it.stage.is_closing() {
            return;
        }
        it.outstanding = it.outstanding.saturating_sub(1);
        match outcome {
            WorkOutcome::Failed(error) => {
                it.stage = ChannelStage::Lost;
                self.fail(peer, PortFault::Work(error));
            }
            _ => self.settle(peer, rail),
        }
    }

    fn was_received(&mut self, buffer: u32, (peer, rail): (PeerId, u32), outcome: WorkOutcome) {
        if let Some(record) = self.buffers.get_mut(buffer) {
            record.used = Use::Held;
        }
        let Some(it) = self.peer(peer).and_then(|it| it.rail(rail)) else { return };
        it.receiving = it.receiving.saturating_sub(1);
        match outcome {
            WorkOutcome::Received { len, immediate, written } if it.stage == ChannelStage::Opening => {
                // The identity of the peer is not known yet, nor whether the connection will become ready.
                if let Some(it) = self.peers.borrow_mut().get_mut(peer as usize).and_then(|it| it.rail(rail))
                {
                    self.buffers.push(&mut it.early, buffer);
                }
                if let Some(record) = self.buffers.get_mut(buffer) {
                    // A write without an immediate is not valid. A packet without bytes is not either.
                    (record.len, record.notice) = if written { (0, immediate) } else { (len, None) };
                }
            }
            WorkOutcome::Received { immediate, written: true, .. } if !it.stage.is_closing() => {
                self.accept_notice(buffer, (peer, rail), immediate);
            }
            WorkOutcome::Received { len, .. } if !it.stage.is_closing() => {
                self.accept_packet(buffer, (peer, rail), len);
            }
            WorkOutcome::Failed(error) if matches!(it.stage, ChannelStage::Ready | ChannelStage::Lost) => {
                it.stage = ChannelStage::Lost;
                self.fail(peer, PortFault::Work(error));
                self.go_home(buffer, peer, rail);
            }
            // The connection was not made, or this process has closed it.
            _ => self.go_home(buffer, peer, rail),
        }
    }

    /// Accepts the packet in this buffer. If the packet violates the protocol, its peer fails, and later
    /// packets of the peer are ignored.
    pub(super) fn accept_packet(&mut self, buffer: u32, (peer, rail): (PeerId, u32), len: u32) {
        if self.peer(peer).is_some_and(|it| it.is_ignored()) {
            return self.go_home(buffer, peer, rail);
        }
        if let Err(fault) = self.take_packet(buffer, (peer, rail), len) {
            self.fail(peer, fault);
            self.go_home(buffer, peer, rail);
        }
    }

    /// Accepts the report that all bytes of a message have been written, for which the peer has used the receive of
    /// this buffer.
    pub(super) fn accept_notice(&mut self, buffer: u32, (peer, rail): (PeerId, u32), immediate: Option<u32>) {
        if self.peer(peer).is_some_and(|it| it.is_ignored()) {
            return self.go_home(buffer, peer, rail);
        }
        if let Err(fault) = self.take_notice(buffer, (peer, rail), immediate) {
            self.fail(peer, fault);
            self.go_home(buffer, peer, rail);
        }
    }

    fn take_notice(
        &mut self,
        buffer: u32,
        (peer, rail): (PeerId, u32),
        immediate: Option<u32>,
    ) -> Result<(), PortFault> {
        let receiver = immediate.and_then(|immediate| self.accesses.notified(peer, immediate));
        let tag = receiver.ok_or(PortFault::Header)?;
        let Some(it) = self.peer(peer).and_then(|it| it.rail(rail)) else { return Ok(()) };
        (it.heard, it.used) = (true, true);
        it.credits.arrive().map_err(|_| PortFault::Overdrawn)?;
        let is_dry = it.credits.is_dry();
        if let Some(record) = self.buffers.get_mut(buffer) {
            record.envelope = Envelope { kind: Kind::Data, context: 0, tag, total: 0 };
            (record.len, record.close, record.ring) = (0, None, None);
        }
        self.hand_on(peer, buffer);
        if is_dry {
            self.grow(peer, rail);
        }
        self.settle(peer, rail);
        Ok(())
    }

    /// Accepts the packet in this buffer. If it violates the protocol, the caller keeps the buffer.
    fn take_packet(&mut self, buffer: u32, (peer, rail): (PeerId, u32), len: u32) -> Result<(), PortFault> {
        let mut bytes = [0; HEADER_BYTES];
        let payload = len.checked_sub(HEADER_BYTES as u32).ok_or(PortFault::Header)?;
        let read = payload <= self.config.packet_bytes && self.buffers.read(buffer, 0, &mut bytes);
        let header = if read { Header::decode(&bytes) } else { None };
        let Header { packet, stamp, units, waited, slots } = header.ok_or(PortFault::Header)?;
        let Some(it) = self.peer(peer) else { return Ok(()) };
        it.granted = it.granted.max(units);
        it.fast.heard(slots).map_err(|()| PortFault::Header)?;
        let has_ring = it.fast.place().is_some();
        let Some(it) = it.rail(rail) else { return Ok(()) };
        (it.heard, it.used) = (true, true);
        it.credits.arrive().map_err(|_| PortFault::Overdrawn)?;
        // Only a packet in a ring may have brought a later report before.
        let heard = if has_ring { it.credits.hear_late(stamp) } else { it.credits.hear(stamp) };
        heard.map_err(|_| PortFault::Header)?;
        // The peer may have waited for a report that was on its way.
        let dry = it.credits.is_dry() || waited;
        match packet {
            Some(packet) => {
                self.order(buffer, peer, packet, payload)?;
                if matches!(packet.kind, PacketKind::Engine(_)) {
                    self.count_small(peer, payload);
                }
            }
            None if payload > 0 => return Err(PortFault::Header),
            None => self.drop_update(buffer),
        }
        if dry {
            self.grow(peer, rail);
        }
        self.settle(peer, rail);
        Ok(())
    }

    fn drop_update(&mut self, buffer: u32) {
        #[cfg(nemesia_injected_fault)]
        if crate::injected_fault::injected(crate::injected_fault::InjectedFault::LeakBuffer) {
            return;
        }
        self.recycle(buffer);
    }

    /// Inserts a packet into the order of its peer's packets.
    fn order(&mut self, buffer: u32, peer: PeerId, packet: Numbered, payload: u32) -> Result<(), PortFault> {
        let Numbered { kind, context, tag, sequence } = packet;
        let is_possible = match kind {
            PacketKind::Engine(_) => true,
            PacketKind::Ring(RingNotice::Open) => payload as usize == OFFER_BYTES,
            PacketKind::Ring(_) | PacketKind::Close(_) => payload == 0,
        };
        if !is_possible {
            return Err(PortFault::Header);
        }
        if let Some(record) = self.buffers.get_mut(buffer) {
            (record.close, record.ring) = (None, None);
            match kind {
                PacketKind::Engine(kind) => {
                    record.envelope = Envelope { kind, context, tag, total: payload.into() };
                }
                PacketKind::Close(reason) => record.close = Some(reason),
                PacketKind::Ring(notice) => record.ring = Some(notice),
            }
            record.len = payload;
        }
        let Some(it) = self.peer(peer) else { return Ok(()) };
        #[cfg(nemesia_injected_fault)]
        if crate::injected_fault::injected(crate::injected_fault::InjectedFault::SkipWindow) {
            self.hand_on(peer, buffer);
            return Ok(());
        }
        #[cfg(nemesia_injected_fault)]
        if matches!(kind, PacketKind::Close(_))
            && crate::injected_fault::injected(crate::injected_fault::InjectedFault::CloseEarly)
        {
            self.hand_on(peer, buffer);
            return Ok(());
        }
        match it.window.arrive(sequence.into(), buffer) {
            Placed::Waits => {}
            Placed::Twice(_) | Placed::Beyond(_) => return Err(PortFault::Sequence { sequence }),
            Placed::Due(buffer) => {
                self.hand_on(peer, buffer);
                self.hand_on_waiting(peer);
            }
        }
        Ok(())
    }

    /// Hands on the packets whose numbers have become due.
    pub(super) fn hand_on_waiting(&mut self, peer: PeerId) {
        // The loop is bounded by the places of the window.
        while let Some(next) = self.peer(peer).and_then(|it| it.window.next_due()) {
            self.hand_on(peer, next);
        }
    }

    fn hand_on(&mut self, peer: PeerId, buffer: u32) {
        if let Some(reason) = self.buffers.get(buffer).and_then(|record| record.close) {
            // All packets before this one have been handed on, and the engine receives them before the fault.
            self.fail(peer, PortFault::Left(reason));
            self.recycle(buffer);
            return;
        }
        if let Some(notice) = self.buffers.get(buffer).and_then(|record| record.ring) {
            if let Err(fault) = self.take_ring_notice(peer, buffer, notice) {
                self.fail(peer, fault);
            }
            self.recycle(buffer);
            return;
        }
        if let Some(it) = self.peers.borrow_mut().get_mut(peer as usize) {
            self.buffers.push(it.ready_mut(), buffer);
            self.ready.join(self.peers.borrow_mut(), peer);
        }
    }

    /// Reposts or frees the buffer of a packet that was processed. Returns its peer and rail.
    pub(super) fn recycle(&mut self, buffer: u32) -> Option<(PeerId, u32)> {
        let &ChannelBuffer { used, peer, rail, .. } = self.buffers.get(buffer)?;
        if used != Use::Held {
            return None;
        }
        let it = self.peer(peer)?;
        let failed = it.has_failed();
        let Some(it) = it.rail(rail) else {
            self.buffers.put(buffer, false);
            return None;
        };
        if failed || !matches!(it.stage, ChannelStage::Opening | ChannelStage::Ready) {
            self.go_home(buffer, peer, rail);
            return None;
        }
        match it.credits.release() {
            Next::Retire => self.buffers.put(buffer, false),
            Next::Post => match self.post(buffer, peer, rail) {
                Ok(()) => {
                    if let Some(it) = self.peer(peer).and_then(|it| it.rail(rail)) {
                        it.credits.posted();
                    }
                }
                Err(error) => {
                    self.go_home(buffer, peer, rail);
                    self.cannot_post(peer, error);
                }
            },
        }
        Some((peer, rail))
    }

    /// Posts a buffer as a receive.
    pub(super) fn post(&mut self, buffer: u32, peer: PeerId, rail: u32) -> Result<(), PostError> {
        let len = self.config.packet_bytes + HEADER_BYTES as u32;
        let slice = self.buffers.slice(buffer, len).ok_or(PostError::NotReady)?;
        let it = self.peers.borrow_mut().get_mut(peer as usize).and_then(|it| it.rail(rail));
        let it = it.ok_or(PostError::NotReady)?;
        self.port.receive(ReceiveQueue::Of(it.connection), buffer.into(), &[slice])?;
        it.receiving += 1;
        if let Some(record) = self.buffers.get_mut(buffer) {
            record.used = Use::Posted;
        }
        Ok(())
    }

    /// Handles a refused receive, for which there should be space. The port reports a lost connection by
    /// itself.
    fn cannot_post(&mut self, peer: PeerId, error: PostError) {
        if error != PostError::NotReady {
            self.fail(peer, PortFault::Post(error));
        }
    }

    /// Returns a buffer from its connection to the pool.
    pub(super) fn go_home(&mut self, buffer: u32, peer: PeerId, rail: u32) {
        let own = self.peer(peer).and_then(|it| it.rail(rail)).is_some_and(|it| {
            it.credits.lost();
            it.credits.size() < LEAST
        });
        self.buffers.put(buffer, own);
    }

    /// Refills a receive-starved peer: doubles its receives as far as unreserved buffers are free.
    fn grow(&mut self, peer: PeerId, rail: u32) {
        let most = self.most;
        let Some(it) = self.peer(peer).and_then(|it| it.rail(rail)) else { return };
        if !matches!(it.stage, ChannelStage::Opening | ChannelStage::Ready) {
            return;
        }
        let (wanted, mut extra) = (it.credits.wanted(most), it.credits.extra());
        let absent = self.absent();
        let may = |it: &Self, extra| it.buffers.pool().may_grow(extra, absent, it.buffers.count());
        if may(self, extra)
            && let Some(it) = self.peer(peer).and_then(|it| it.rail(rail))
        {
            it.credits.keep();
        }
        let mut grown = 0;
        while grown < wanted && may(self, extra) {
            let Some(buffer) = self.buffers.take(false, Use::Held, peer, rail) else { break };
            if let Err(error) = self.post(buffer, peer, rail) {
                self.buffers.put(buffer, false);
                self.cannot_post(peer, error);
                break;
            }
            if let Some(it) = self.peer(peer).and_then(|it| it.rail(rail)) {
                it.credits.grown();
            }
            (grown, extra) = (grown + 1, extra + 1);
            // It has no more shared buffers than it leaves to all others. The simulation relies on this check.
            debug_assert!(extra <= self.buffers.pool().spare() + 1, "a connection has grown by {extra}");
        }
        if let Some(it) = self.peer(peer).filter(|_| grown > 0) {
            it.grown += 1;
        }
        if grown < wanted {
            self.wants = true;
            self.recall(peer, rail, LEAST + extra);
        }
    }

    /// Returns the number of initial buffers of connections that do not exist yet.
    fn absent(&self) -> u32 {
        if self.grows {
            // The buffers of a connection come with its peer.
            return 0;
        }
        let peers = (self.peers.borrow().len() as u32).saturating_sub(1);
        let most = peers.saturating_mul(self.config.rails);
        most.saturating_sub(self.connections).saturating_mul(OWN)
    }

    /// Recalls receives: from the next connection that does not use them, else from the largest one checked,
    /// if it has more than twice as many as the receive-starved connection.
    pub(super) fn recall(&mut self, besides: PeerId, rail: u32, size: u32) {
        let rails = self.config.rails as usize;
        let places = self.peers.borrow().len() * rails;
        let mut largest = (2 * size, None);
        for _ in 0..places.min(LOOKS) {
            self.cursor = if self.cursor + 1 < places { self.cursor + 1 } else { 0 };
            let (peer, at) = ((self.cursor / rails) as PeerId, (self.cursor % rails) as u32);
            let Some(it) = self.peer(peer).filter(|it| !it.has_failed() && (peer, at) != (besides, rail))
            else {
                continue;
            };
            let Some(rail) = it.rail(at).filter(|rail| rail.stage == ChannelStage::Ready) else { continue };
            if !core::mem::replace(&mut rail.used, false) && rail.credits.shrink() {
                it.shrunk += 1;
                return self.settle(peer, at);
            }
            // A connection whose receives were already recalled counts without them.
            let kept = rail.credits.size().min(rail.credits.stamp().target);
            if kept > largest.0 {
                largest = (kept, Some((peer, at)));
            }
        }
        if let (_, Some((peer, at))) = largest
            && let Some(it) = self.peer(peer)
            && it.rail(at).is_some_and(|rail| rail.credits.shrink())
        {
            it.shrunk += 1;
            self.settle(peer, at);
        }
    }
}
