//! The RDMA fast path: small packets are written into a ring in the peer's memory, and the receiver polls their last
//! bytes (paper 3, sections 2.2 and 3.3; paper 5, section 3.3). A packet consumes no receive, and no completion at the
//! receiver.
//!
//! **Where.** Only if the fabric promises order within a write ([`Facts::ordered_within_write`]). Order among writes is
//! not needed: every slot is polled for itself, in turn, and a slot is written again only after its packet was taken.
//!
//! **Rings.** The caller lends memory for a bounded number of rings ([`Channel::lend_rings`]). A peer gets one when it
//! has sent [`OFFER_AFTER`] small packets, and keeps it until it is closed. The other peers use sends. All rails share
//! the ring, and all writes take rail 0. Each ring is a region of its own, registered for one peer and zeroed before
//! that, so that no peer can write into another's ring, and no former peer into a later one's.
//!
//! **Large messages.** A packet may report the end of writes into the peer's memory. While such writes are under way,
//! packets are sent, unless the fabric promises order among writes too.
//!
//! **Overflow.** A packet for which the ring has no free slot is sent (paper 5, section 3.3). All packets to a peer
//! share one sequence number. A packet stays in its slot until its number is due, so that packets of rings take no
//! place of the reorder window. The window has a place for each packet in a receive that may be ahead of them.
//!
//! **Credits.** Every packet, by either path, carries the total of slots that were taken. If half of a ring's slots are
//! not reported and there is nothing to send, an update reports them.
//!
//! **Sleep.** A write into a ring does not wake a process that sleeps. Before a process sleeps
//! ([`Channel::quiet_rings`]), it asks its peers to write no more. Each peer stops, and then answers by a packet. The
//! sequence number of the answer is higher than those of all packets in the ring. After more small packets from the
//! peer, the process opens the ring again. If few packets came through the ring before, it waits for more of them.
//!
//! **Cached headers.** A packet with kind, context and tag of the one before in its ring, and the next sequence number,
//! carries eight bytes instead of its header ([`ring`](crate::wire::ring)), so that the device has to fetch and to
//! transport less. Both sides keep the last header of a ring. The first packet after one that was sent needs a whole
//! header, because a number is left out.
//!
//! **Trust.** A packet is copied out of the ring once. Its length is checked before, its header as that of any packet,
//! and only the copy is used. A peer that writes nonsense fails, and no other peer.
//!
//! [`Facts::ordered_within_write`]: crate::port::memory::Facts::ordered_within_write
#![deny(unsafe_code)]

mod peer;
mod ring;

use core::borrow::BorrowMut as _;

pub(super) use peer::{FastPeer, RingStage};
pub use ring::MOST_RINGS;
pub(super) use ring::Rings;

use super::{Channel, ChannelStorage, LendError, RING_PACKET, Token};
use crate::order::Placed;
use crate::payload::LentMemory;
use crate::port::memory::MemoryPort;
use crate::port::{Arrival, PacketPieces, PeerId, PortFault};
use crate::wire::Envelope;
use crate::wire::channel::{HEADER_BYTES, Header, Numbered, PacketKind, RingNotice};
use crate::wire::ring::{ArrivedSlot, OFFER_BYTES, RingOffer, RingShape, SLOT_PAYLOAD};

/// The number of small packets after which a peer gets a ring.
pub const OFFER_AFTER: u32 = 4;
/// The rail that carries small packets, and all writes into rings (paper 5, section 4.2).
pub(super) const SMALL_RAIL: u32 = 0;

/// How many peers may use the fast path to this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FastPath {
    /// Number of rings, at most [`MOST_RINGS`]. With 0 this process does not use the fast path in either direction.
    pub rings: u32,
    /// Slots of a ring: a power of two, 2 to [`MOST_SLOTS`](crate::wire::ring::MOST_SLOTS).
    pub slots: u32,
}

impl FastPath {
    /// No fast path.
    pub const OFF: Self = Self { rings: 0, slots: 2 };

    /// Returns whether the fast path is used.
    pub const fn is_on(self) -> bool {
        self.rings > 0
    }

    /// Returns the bytes of all rings; 0 without a fast path or if the number of slots is invalid.
    pub fn bytes(self) -> u64 {
        u64::from(self.rings) * RingShape::new(self.slots).map_or(0, RingShape::bytes)
    }

    /// Returns the places that a reorder window needs beside those for packets in receives: such packets may be ahead
    /// of all that are in a ring.
    pub const fn window_places(self) -> u32 {
        if self.is_on() { self.slots } else { 0 }
    }

    /// Returns the most receives of a connection for which a reorder window with so many places suffices.
    pub(super) const fn receives(self, window: usize, rails: u32) -> u32 {
        (window as u32).saturating_sub(self.window_places()) / rails
    }
}

impl<M: MemoryPort, S: ChannelStorage> Channel<M, S> {
    /// Lends memory for the rings of [`Config::fast`](super::Config::fast). The channel registers a part of it for each
    /// peer that gets a ring, until the channel is dropped. Without this memory the peers use sends. Returns the
    /// number of rings.
    ///
    /// # Errors
    /// [`LendError::Short`] if the memory is too small for one ring, and [`LendError::Full`] if rings were lent before.
    pub fn lend_rings(&mut self, memory: LentMemory) -> Result<u32, LendError> {
        self.rings.lend(memory, self.config.fast)
    }

    /// Returns whether peers may get rings: the setting and the fabric permit it, and there is memory.
    pub fn has_rings(&self) -> bool {
        let is_ordered = self.facts().ordered_within_write;
        #[cfg(nemesia_injected_fault)]
        let is_ordered = is_ordered
            || crate::injected_fault::injected(crate::injected_fault::InjectedFault::TrustDisorder);
        self.config.fast.is_on() && is_ordered && self.rings.has_memory()
    }

    /// Prepares for a sleep: asks the peers to write into rings no more. Returns whether they have stopped. The caller
    /// then arms the port, and sleeps. Otherwise it polls, and calls this again.
    pub fn quiet_rings(&mut self) -> bool {
        let mut is_quiet = true;
        for place in 0..self.rings.places() {
            let Some(peer) = self.rings.peer(place) else { continue };
            let Some(it) = self.peer(peer).filter(|it| !it.has_failed()) else { continue };
            it.fast.stop();
            let is_stopped = it.fast.stage() == RingStage::Stopped;
            #[cfg(nemesia_injected_fault)]
            if crate::injected_fault::injected(crate::injected_fault::InjectedFault::SleepUnheard) {
                continue;
            }
            is_quiet &= is_stopped;
            if !is_stopped {
                self.settle(peer, SMALL_RAIL);
            }
        }
        is_quiet
    }

    /// Counts a small packet that a peer has sent, and gives the peer a ring if it has sent enough.
    pub(super) fn count_small(&mut self, peer: PeerId, payload: u32) {
        if payload as usize > SLOT_PAYLOAD || !self.has_rings() {
            return;
        }
        let Some(it) = self.peers.borrow_mut().get_mut(peer as usize) else { return };
        if !it.fast.wants_ring() {
            return;
        }
        if it.fast.place().is_none() {
            // Without a free ring, or without a registration, the peer goes on sending.
            let Some(place) = self.rings.assign(&mut self.port, peer) else { return };
            it.fast.assign(place);
        }
        it.fast.offer();
    }

    /// Sends what is due about rings. Returns `false` if there is no space now.
    pub(super) fn send_ring_notices(&mut self, peer: PeerId) -> bool {
        while let Some(notice) = self.peer(peer).and_then(|it| it.fast.due()) {
            let offer = match notice {
                RingNotice::Open => self.peer(peer).and_then(|it| it.fast.place()),
                RingNotice::Stop | RingNotice::Stopped => None,
            };
            let offer = offer.and_then(|place| self.rings.offer(&self.port, place)).map(|it| it.encode());
            let bytes = offer.as_ref().map_or(&[][..], |bytes| bytes);
            let kind = PacketKind::Ring(notice);
            match self.transmit_on_any(peer, (kind, 0, 0), &mut PacketPieces::Whole(bytes)) {
                Ok(true) => {}
                Ok(false) => return false,
                Err(error) => {
                    self.fail(peer, error.fault);
                    return false;
                }
            }
            let Some(it) = self.peers.borrow_mut().get_mut(peer as usize) else { return false };
            it.fast.said(notice);
            if notice == RingNotice::Open
                && let Some(place) = it.fast.place()
            {
                self.rings.open(place);
            }
        }
        true
    }

    /// Processes a packet about a ring.
    pub(super) fn take_ring_notice(
        &mut self,
        peer: PeerId,
        buffer: u32,
        notice: RingNotice,
    ) -> Result<(), PortFault> {
        let mut bytes = [0; OFFER_BYTES];
        let offer = match notice {
            RingNotice::Open if self.buffers.read(buffer, HEADER_BYTES, &mut bytes) => {
                RingOffer::decode(&bytes)
            }
            _ => None,
        };
        let Some(it) = self.peers.borrow_mut().get_mut(peer as usize) else { return Ok(()) };
        let valid = match notice {
            RingNotice::Open => offer.is_some_and(|offer| it.fast.opened(offer)),
            RingNotice::Stop => it.fast.asked_to_stop(),
            RingNotice::Stopped => it.fast.stopped(),
        };
        if notice == RingNotice::Stopped
            && let Some(place) = it.fast.place()
        {
            self.rings.close(place);
        }
        valid.then_some(()).ok_or(PortFault::Header)
    }

    /// Returns the next packet of the rings that is due, of peer `only` or of any.
    #[inline]
    pub(super) fn next_from_rings(&mut self, only: Option<PeerId>) -> Option<Arrival<Token>> {
        for _ in 0..self.rings.used() {
            let place = self.rings.turn();
            let Some((peer, slot)) = self.rings.arrived(place) else { continue };
            if only.is_some_and(|only| only != peer) {
                continue;
            }
            match self.take_from_ring(place, peer, slot) {
                Ok(None) => {}
                Ok(Some(arrival)) => return Some(arrival),
                Err(fault) => self.fail(peer, fault),
            }
        }
        None
    }

    /// Takes the next packet out of a ring, if it is due.
    fn take_from_ring(
        &mut self,
        place: u32,
        peer: PeerId,
        slot: ArrivedSlot,
    ) -> Result<Option<Arrival<Token>>, PortFault> {
        if self.peer(peer).is_none_or(|it| it.is_ignored()) {
            return Ok(None);
        }
        let len = slot.len;
        let fits = len <= SLOT_PAYLOAD && len <= self.config.packet_bytes as usize;
        let header = fits.then(|| self.rings.copy(place, slot)).flatten().ok_or(PortFault::Header)?;
        let Header { packet, stamp, units, waited: _, slots } = header;
        let Some(Numbered { kind: PacketKind::Engine(kind), context, tag, sequence }) = packet else {
            return Err(PortFault::Header);
        };
        let Some(it) = self.peers.borrow_mut().get_mut(peer as usize) else { return Ok(None) };
        let ahead = sequence.wrapping_sub(it.window.due() as u32);
        if ahead != 0 {
            // An earlier packet, which was sent, has not been processed yet.
            let is_possible = (ahead as usize) < it.window.size();
            return if is_possible { Ok(None) } else { Err(PortFault::Sequence { sequence }) };
        }
        let Placed::Due(_) = it.window.arrive(sequence.into(), RING_PACKET) else {
            return Err(PortFault::Sequence { sequence });
        };
        it.granted = it.granted.max(units);
        it.fast.heard(slots).map_err(|()| PortFault::Header)?;
        it.fast.took(len);
        it.received += 1;
        if let Some(rail) = it.rail(SMALL_RAIL) {
            (rail.heard, rail.used) = (true, true);
            rail.credits.hear_beside(stamp).map_err(|_| PortFault::Header)?;
        }
        self.rings.took(place, header);
        self.hand_on_waiting(peer);
        self.out = Some(RING_PACKET);
        let envelope = Envelope { kind, context, tag, total: len as u64 };
        Ok(Some(Arrival { peer, envelope, len, token: Token(RING_PACKET) }))
    }

    /// Takes the ring of a peer whose connections are closed.
    pub(super) fn withdraw_ring(&mut self, peer: PeerId) {
        let Some(it) = self.peers.borrow_mut().get_mut(peer as usize) else { return };
        if let Some(place) = it.fast.place() {
            self.rings.withdraw(&mut self.port, place);
        }
        it.fast.reset();
    }
}
