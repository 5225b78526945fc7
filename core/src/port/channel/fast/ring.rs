//! The memory of the rings that peers write.
#![allow(unsafe_code, reason = "a part of the lent memory is registered for each peer")]

use super::FastPath;
use crate::payload::LentMemory;
use crate::port::PeerId;
use crate::port::channel::LendError;
use crate::port::memory::{MemoryPort, PortRegion, RegionAccess, RegisterError};
use crate::wire::channel::{HEADER_BYTES, Header};
use crate::wire::ring::{
    ArrivedSlot, CACHED_BYTES, RingOffer, RingShape, SLOT_BYTES, SLOT_PAYLOAD, SlotHeader, TRAILER_BYTES,
};

/// Most rings of a channel. Every poll reads a word of each ring that is in use.
pub const MOST_RINGS: u32 = 32;
/// The number of packets in a row after which completions are looked for first.
const STREAK: u32 = 16;

/// The state of a ring's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PlaceStage {
    Free,
    /// Registered for a peer, which may not write now.
    Closed,
    /// The peer may write.
    Open,
    /// The peer is closed, and the port may still use the memory.
    Leaving,
    /// The port has not confirmed that it does not use the memory any more: it is not used again.
    Lost,
}

#[derive(Clone, Copy, Debug)]
struct RingPlace {
    stage: PlaceStage,
    peer: PeerId,
    region: Option<PortRegion>,
    /// The number of the next packet.
    next: u32,
}

impl RingPlace {
    const FREE: Self = Self { stage: PlaceStage::Free, peer: 0, region: None, next: 0 };
}

/// The rings of a channel.
#[derive(Debug)]
pub(in crate::port::channel) struct Rings {
    memory: Option<LentMemory>,
    shape: RingShape,
    places: [RingPlace; MOST_RINGS as usize],
    /// The header of the packet that was taken last from each place: that of the next one may be cached.
    headers: [Option<Header>; MOST_RINGS as usize],
    /// The number of places that have memory, and of those whose memory the port still uses.
    count: u32,
    leaving: u32,
    /// The number of the first places among which are all that a peer may write.
    used: u32,
    /// The place that is polled next.
    cursor: u32,
    streak: u32,
    /// The copy of the packet that was taken last, with its header, and its peer.
    packet: [u8; HEADER_BYTES + SLOT_PAYLOAD],
    pub(in crate::port::channel) from: PeerId,
}

impl Rings {
    pub(in crate::port::channel) const fn new(shape: RingShape) -> Self {
        Self {
            memory: None,
            shape,
            places: [RingPlace::FREE; MOST_RINGS as usize],
            headers: [None; MOST_RINGS as usize],
            count: 0,
            leaving: 0,
            used: 0,
            cursor: 0,
            streak: 0,
            packet: [0; HEADER_BYTES + SLOT_PAYLOAD],
            from: 0,
        }
    }

    pub(super) fn lend(&mut self, memory: LentMemory, fast: FastPath) -> Result<u32, LendError> {
        let (len, needed) = (memory.len() as u64, self.shape.bytes());
        if self.memory.is_some() {
            return Err(LendError::Full);
        }
        let rings = (len / needed).min(fast.rings.into()).min(MOST_RINGS.into()) as u32;
        if rings == 0 {
            return Err(LendError::Short { len, needed });
        }
        (self.memory, self.count) = (Some(memory), rings);
        Ok(rings)
    }

    pub(super) const fn has_memory(&self) -> bool {
        self.count > 0
    }

    pub(super) const fn places(&self) -> u32 {
        self.count
    }

    /// Returns the number of places that have to be polled; 0 if no peer may write.
    #[inline]
    pub(super) const fn used(&self) -> u32 {
        self.used
    }

    pub(in crate::port::channel) const fn slots(&self) -> u32 {
        self.shape.slots()
    }

    fn place(&mut self, place: u32) -> Option<&mut RingPlace> {
        self.places.get_mut(place as usize)
    }

    /// Returns the peer that has this ring.
    pub(super) fn peer(&self, place: u32) -> Option<PeerId> {
        let it = self.places.get(place as usize)?;
        matches!(it.stage, PlaceStage::Closed | PlaceStage::Open).then_some(it.peer)
    }

    fn base(&self, place: u32) -> u64 {
        u64::from(place) * self.shape.bytes()
    }

    /// Registers a free ring for a peer. `None` if none is free, or if it cannot be registered now.
    pub(super) fn assign<M: MemoryPort>(&mut self, port: &mut M, peer: PeerId) -> Option<u32> {
        let lent = self.places.get(..self.count as usize)?;
        let place = lent.iter().position(|it| it.stage == PlaceStage::Free)? as u32;
        let (memory, base) = (self.memory.as_ref()?, self.base(place));
        for slot in 0..self.shape.slots() {
            if !memory.write(base + u64::from(slot) * u64::from(SLOT_BYTES), &[0; SLOT_BYTES as usize]) {
                return None;
            }
        }
        // SAFETY: the lender has promised that the memory is usable until the port is dropped, which ends the
        // registration at the latest. This process reads the ring through `LentMemory` only, and writes it only while
        // it is not registered.
        let part = unsafe { memory.part_again(base, self.shape.bytes()) }?;
        let access = RegionAccess { remote_write: true, ..RegionAccess::LOCAL };
        let region = port.register(part, access).ok()?;
        let stage = PlaceStage::Closed;
        *self.place(place)? = RingPlace { stage, peer, region: Some(region), next: 0 };
        *self.headers.get_mut(place as usize)? = None;
        Some(place)
    }

    /// Returns the description of a ring for its peer.
    pub(super) fn offer<M: MemoryPort>(&self, port: &M, place: u32) -> Option<RingOffer> {
        let key = port.key(self.places.get(place as usize)?.region?)?;
        Some(RingOffer { address: key.address, key: key.key, shape: self.shape })
    }

    pub(super) fn open(&mut self, place: u32) {
        if let Some(it) = self.place(place)
            && core::mem::replace(&mut it.stage, PlaceStage::Open) == PlaceStage::Closed
        {
            self.follow_open();
        }
    }

    pub(super) fn close(&mut self, place: u32) {
        if let Some(it) = self.place(place).filter(|it| it.stage == PlaceStage::Open) {
            it.stage = PlaceStage::Closed;
            self.follow_open();
        }
    }

    /// Sets what depends on the places that peers may write.
    fn follow_open(&mut self) {
        let last = self.places.iter().rposition(|it| it.stage == PlaceStage::Open);
        self.used = last.map_or(0, |last| last as u32 + 1);
    }

    /// Takes a ring from its peer, whose connections are closed.
    pub(super) fn withdraw<M: MemoryPort>(&mut self, port: &mut M, place: u32) {
        self.close(place);
        if let Some(it) = self.place(place).filter(|it| it.stage == PlaceStage::Closed) {
            it.stage = PlaceStage::Leaving;
            self.leaving += 1;
        }
        self.retry_leaving(port);
    }

    /// Frees the rings that the port does not use any more.
    pub(in crate::port::channel) fn retry_leaving<M: MemoryPort>(&mut self, port: &mut M) {
        if self.leaving == 0 {
            return;
        }
        for it in self.places.iter_mut().filter(|it| it.stage == PlaceStage::Leaving) {
            *it = match it.region.map_or(Ok(()), |region| port.deregister(region)) {
                Ok(()) => RingPlace::FREE,
                Err(RegisterError::Busy) => continue,
                Err(_) => RingPlace { stage: PlaceStage::Lost, ..*it },
            };
            self.leaving -= 1;
        }
    }

    /// Returns the place whose turn it is to be polled.
    #[inline]
    pub(super) const fn turn(&mut self) -> u32 {
        let place = if self.cursor < self.used { self.cursor } else { 0 };
        self.cursor = place + 1;
        place
    }

    /// Returns the peer of a ring whose next packet has arrived, and what its trailer says, which is unchecked.
    #[inline]
    pub(super) fn arrived(&self, place: u32) -> Option<(PeerId, ArrivedSlot)> {
        let it = self.places.get(place as usize).filter(|it| it.stage == PlaceStage::Open)?;
        let end = self.base(place) + self.shape.end(it.next);
        let trailer = self.memory.as_ref()?.load(end - TRAILER_BYTES as u64)?;
        let trailer = u64::from_le(trailer);
        #[cfg(nemesia_injected_fault)]
        if trailer != 0 && crate::injected_fault::injected(crate::injected_fault::InjectedFault::ForgetLap) {
            return Some((it.peer, ArrivedSlot { len: (trailer & 0xffff) as usize, is_cached: false }));
        }
        Some((it.peer, self.shape.arrived(trailer, it.next)?))
    }

    /// Copies the next packet of a ring, and returns its header. `None` if the packet is too long, or violates the
    /// protocol.
    pub(super) fn copy(&mut self, place: u32, slot: ArrivedSlot) -> Option<Header> {
        let it = *self.places.get(place as usize)?;
        let header_bytes = if slot.is_cached { CACHED_BYTES } else { HEADER_BYTES };
        // The payload is always at the same place.
        let total = header_bytes + slot.len;
        let end = self.base(place) + self.shape.end(it.next) - TRAILER_BYTES as u64;
        let to = self.packet.get_mut(HEADER_BYTES - header_bytes..)?.get_mut(..total)?;
        if !self.memory.as_ref()?.read(end - total as u64, to) {
            return None;
        }
        let header = match slot.is_cached {
            true => SlotHeader::Cached(*to.first_chunk()?),
            false => SlotHeader::Whole(*to.first_chunk()?),
        };
        self.from = it.peer;
        header.decode(self.headers.get(place as usize)?.as_ref())
    }

    /// Records that the next packet, with this header, was taken.
    pub(super) fn took(&mut self, place: u32, header: Header) {
        self.streak += 1;
        if let Some(it) = self.place(place) {
            it.next = it.next.wrapping_add(1);
        }
        if let Some(last) = self.headers.get_mut(place as usize) {
            #[cfg(nemesia_injected_fault)]
            if last.is_some()
                && crate::injected_fault::injected(crate::injected_fault::InjectedFault::StaleHeader)
            {
                return;
            }
            *last = Some(header);
        }
    }

    /// Returns whether completions must be looked for first, because many packets were taken in a row.
    #[inline]
    pub(in crate::port::channel) const fn is_to_pause(&mut self) -> bool {
        let is_long = self.streak >= STREAK;
        if is_long {
            self.streak = 0;
        }
        is_long
    }

    /// Reads payload of the packet that was taken last.
    #[inline]
    pub(in crate::port::channel) fn read(&self, at: usize, to: &mut [u8]) -> bool {
        let from = self.packet.get(HEADER_BYTES..).and_then(|payload| payload.get(at..)?.get(..to.len()));
        from.map(|from| to.copy_from_slice(from)).is_some()
    }
}
