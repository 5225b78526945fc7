//! Peers: which processes this one knows, and the state of its connection with each.
//!
//! A *peer* is a slot with a generation. It is found by the [`PeerAddress`] of its process, costs one [`PeerSlot`]
//! until it is spoken to, and has no rank. A connection is made at the first need by [`Peers::speak`], or when the peer
//! calls ([`Peers::admit`]). The machine of links decides what becomes of calls
//! ([`link::machine`](crate::link::machine)); this table says who may call, and gives each connection a number.
//!
//! # Slots
//! A connection ends when either process disconnects or leaves, or the peer dies or violates the protocol. The slot
//! remains, and reports the end, until the caller connects again or releases the slot. A released slot is used again
//! with the next generation, so an identifier names one process for ever.
//!
//! All calls take a time that does not depend on the number of peers. The simulator runs this table.
#![forbid(unsafe_code)]

mod address;
mod answer;
mod places;
mod slot;

use core::borrow::BorrowMut;

pub use address::{ADDRESS_BYTES, PeerAddress};
pub use answer::{CallRefusal, PeerError, PeerLimits, Speaking};
pub use slot::{PeerEnd, PeerSlot, PeerStage};

#[cfg(nemesia_injected_fault)]
use crate::injected_fault::{InjectedFault, injected};
use crate::slab::{List, NONE, Slab, Slot};
use crate::wire::PeerId;

/// The identifier of a peer in one process. It can be copied; stale identifiers are recognised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PeerRef {
    index: u32,
    generation: u32,
}

impl PeerRef {
    /// Returns the identifier as one number, for C.
    pub const fn to_bits(self) -> u64 {
        (self.index as u64) << 32 | self.generation as u64
    }

    /// Returns the identifier that [`PeerRef::to_bits`] encoded. Any number is safe.
    pub const fn from_bits(bits: u64) -> Self {
        Self { index: (bits >> 32) as u32, generation: bits as u32 }
    }

    /// Returns the number of its slot, from 0.
    pub const fn index(self) -> u32 {
        self.index
    }

    /// Returns how often the slot was used before, modulo 2^32.
    pub const fn generation(self) -> u32 {
        self.generation
    }
}

/// The peers of one process. `S` lends the slots, `B` the hash buckets that find them by address, `N` the numbers of
/// connections: as many as [`PeerLimits::connections`], after one for each pinned peer ([`Peers::grow_numbers`]).
#[derive(Debug)]
pub struct Peers<S, B, N>
where
    S: BorrowMut<[Slot<PeerSlot>]>,
    B: BorrowMut<[List]>,
    N: BorrowMut<[u32]>,
{
    own: PeerAddress,
    limits: PeerLimits,
    slots: Slab<PeerSlot, S>,
    buckets: B,
    /// For each number in use, the slot; for each free one, the next free number.
    numbers: N,
    /// The first free number, and the numbers that were ever used.
    free: u32,
    fresh: u32,
    used: u32,
    /// Mixed into hashes, so that nobody can choose addresses that share a bucket.
    seed: u64,
}

impl<S, B, N> Peers<S, B, N>
where
    S: BorrowMut<[Slot<PeerSlot>]>,
    B: BorrowMut<[List]>,
    N: BorrowMut<[u32]>,
{
    /// Returns an empty table for the process with this address. `seed` is random.
    pub fn new(own: PeerAddress, limits: PeerLimits, lent: (S, B, N), seed: u64) -> Self {
        let (slots, buckets, numbers) = lent;
        Self {
            own,
            limits,
            slots: Slab::new(slots),
            buckets,
            numbers,
            free: NONE,
            fresh: limits.pinned,
            used: 0,
            seed,
        }
    }

    /// Returns the address of this process.
    pub const fn own(&self) -> &PeerAddress {
        &self.own
    }

    /// Makes place for `count` more peers.
    pub fn grow(&mut self, count: usize)
    where
        S: Extend<Slot<PeerSlot>>,
    {
        self.slots.grow(count);
    }

    /// Makes place for all numbers that the limits allow.
    pub fn grow_numbers(&mut self)
    where
        N: Extend<u32>,
    {
        let most = (self.limits.pinned + self.limits.connections) as usize;
        let missing = most.saturating_sub(self.numbers.borrow().len());
        if missing > 0 {
            self.numbers.extend(core::iter::repeat_n(0, missing));
        }
    }

    /// Returns whether this peer is pinned.
    pub const fn is_pinned(&self, peer: PeerRef) -> bool {
        peer.index < self.limits.pinned
    }

    /// Returns the number of places for peers, used or free.
    pub fn capacity(&self) -> usize {
        self.slots.capacity()
    }

    /// Returns the number of peers.
    pub const fn len(&self) -> usize {
        self.slots.used()
    }

    /// Returns whether no peer is known.
    pub const fn is_empty(&self) -> bool {
        self.slots.used() == 0
    }

    /// Returns the number of connections, calls under way included, without those of pinned peers.
    pub const fn connections(&self) -> u32 {
        self.used
    }

    /// Returns the peer with this address. A peer whose connection has ended may be called again from now on, unless it
    /// is pinned.
    /// Idempotent; no connection is made.
    ///
    /// # Errors
    /// [`PeerError::Slots`], [`PeerError::Itself`].
    pub fn connect(&mut self, address: &PeerAddress) -> Result<PeerRef, PeerError> {
        if *address == self.own {
            return Err(PeerError::Itself);
        }
        if let Some(index) = self.find(address) {
            let is_pinned = index < self.limits.pinned;
            let slot = self.slots.get_mut(index);
            if let PeerStage::Ended(_) = slot.stage
                && !is_pinned
            {
                slot.stage = PeerStage::Apart;
            }
            return Ok(self.reference(index));
        }
        self.insert(address).ok_or_else(|| PeerError::Slots { slots: self.slots.capacity() })
    }

    /// Returns the peer with this address, if it is known.
    pub fn peer_by(&self, address: &PeerAddress) -> Option<PeerRef> {
        self.find(address).map(|index| self.reference(index))
    }

    /// Returns the address of a peer.
    ///
    /// # Errors
    /// [`PeerError::Stale`].
    pub fn address_of(&self, peer: PeerRef) -> Result<&PeerAddress, PeerError> {
        Ok(&self.slot(peer)?.address)
    }

    /// Returns the peer that now has the slot with this number.
    pub fn peer_at(&self, index: u32) -> Option<PeerRef> {
        let is_used = (index as usize) < self.slots.touched() && self.is_used(index);
        is_used.then(|| self.reference(index))
    }

    /// Returns the state of the connection with a peer.
    ///
    /// # Errors
    /// [`PeerError::Stale`].
    pub fn stage(&self, peer: PeerRef) -> Result<PeerStage, PeerError> {
        Ok(self.slot(peer)?.stage)
    }

    /// Returns the peer that has this number now.
    pub fn peer_with(&self, number: PeerId) -> Option<PeerRef> {
        // The place of a free number holds another number.
        let index = *self.numbers.borrow().get(number as usize)?;
        let is_slot = (index as usize) < self.slots.touched() && self.is_used(index);
        let is_its = is_slot && self.slots.get(index).stage.number() == Some(number);
        is_its.then(|| self.reference(index))
    }

    /// Finds out how a packet for the peer can be sent.
    ///
    /// # Errors
    /// [`PeerError::Stale`], [`PeerError::Ended`], [`PeerError::Connections`].
    pub fn speak(&mut self, peer: PeerRef) -> Result<Speaking, PeerError> {
        match self.slot(peer)?.stage {
            PeerStage::Connected(number) => Ok(Speaking::Ready(number)),
            PeerStage::Calling(number) | PeerStage::Answering(number) => Ok(Speaking::Wait(number)),
            PeerStage::Ended(end) => Err(PeerError::Ended(end)),
            PeerStage::Apart => {
                let number = self.take_number(peer.index)?;
                self.slots.get_mut(peer.index).stage = PeerStage::Calling(number);
                Ok(Speaking::Call(number))
            }
        }
    }

    /// Takes a number for a caller whose call counts, as the machine of links has decided. It has checked that the
    /// caller is what the address says.
    ///
    /// # Errors
    /// See [`CallRefusal`].
    pub fn admit(&mut self, caller: &PeerAddress) -> Result<(PeerRef, PeerId), CallRefusal> {
        let peer = self.caller(caller)?;
        let stage = self.slots.get(peer.index).stage;
        let number = match stage {
            PeerStage::Connected(_) if !answers_connected() => return Err(CallRefusal::Connected),
            PeerStage::Ended(_) if self.is_pinned(peer) && !readmits_ranks() => {
                return Err(CallRefusal::Unknown);
            }
            PeerStage::Calling(number) | PeerStage::Answering(number) | PeerStage::Connected(number) => {
                number
            }
            PeerStage::Apart | PeerStage::Ended(_) => {
                self.take_number(peer.index).map_err(|_| CallRefusal::Full)?
            }
        };
        self.slots.get_mut(peer.index).stage = PeerStage::Answering(number);
        Ok((peer, number))
    }

    /// Records that the link with a peer is open. Returns the number of the connection; `None` if no call is under way.
    pub fn opened(&mut self, peer: PeerRef) -> Option<PeerId> {
        let slot = self.slots.live_mut(peer.index, peer.generation)?;
        let (PeerStage::Calling(number) | PeerStage::Answering(number)) = slot.stage else { return None };
        slot.stage = PeerStage::Connected(number);
        Some(number)
    }

    /// Returns the peer with the address of a caller, which becomes known if there is a place for it.
    fn caller(&mut self, caller: &PeerAddress) -> Result<PeerRef, CallRefusal> {
        if *caller == self.own {
            return Err(CallRefusal::Itself);
        }
        match self.find(caller) {
            Some(index) => Ok(self.reference(index)),
            None if !self.admits_strangers() => Err(CallRefusal::Unknown),
            // Nothing is kept of a caller for which there is no connection.
            None if self.used >= self.limits.connections => Err(CallRefusal::Full),
            None => self.insert(caller).ok_or(CallRefusal::Full),
        }
    }

    fn admits_strangers(&self) -> bool {
        #[cfg(nemesia_injected_fault)]
        if injected(InjectedFault::AdmitUnknown) {
            return true;
        }
        self.limits.strangers
    }

    /// Records that the connection, or a call, has ended. Returns the number that is free again once
    /// [`Peers::free_number`] is called; `None` if there was no connection. If a call is lost that this process has
    /// answered, and that the caller has not confirmed, the caller has abandoned it. The peer can then be called, and
    /// should be if packets wait for it.
    pub fn ended(&mut self, peer: PeerRef, end: PeerEnd) -> Option<PeerId> {
        let slot = self.slots.live_mut(peer.index, peer.generation)?;
        let number = slot.stage.number()?;
        #[cfg(nemesia_injected_fault)]
        if let (PeerStage::Answering(_), PeerEnd::Lost) = (slot.stage, end) {
            if injected(InjectedFault::KeepUnconfirmed) {
                return Some(number);
            }
            if injected(InjectedFault::EndUnconfirmed) {
                slot.stage = PeerStage::Ended(end);
                return Some(number);
            }
        }
        slot.stage = match (slot.stage, end) {
            (PeerStage::Answering(_), PeerEnd::Lost) => PeerStage::Apart,
            _ => PeerStage::Ended(end),
        };
        Some(number)
    }

    /// Frees the number of a connection that has ended. The layer above calls it when nothing of the connection is
    /// left: no request, no stored message, no shared memory.
    pub fn free_number(&mut self, number: PeerId) {
        if number < self.limits.pinned {
            return;
        }
        if let Some(place) = self.numbers.borrow_mut().get_mut(number as usize) {
            *place = self.free;
            self.free = number;
            self.used -= 1;
        }
    }

    fn slot(&self, peer: PeerRef) -> Result<&PeerSlot, PeerError> {
        #[cfg(nemesia_injected_fault)]
        let peer =
            if injected(InjectedFault::ForgetGeneration) && (peer.index as usize) < self.slots.touched() {
                self.reference(peer.index)
            } else {
                peer
            };
        if self.slots.is_live(peer.index, peer.generation) {
            Ok(self.slots.get(peer.index))
        } else {
            Err(PeerError::Stale)
        }
    }

    fn reference(&self, index: u32) -> PeerRef {
        PeerRef { index, generation: self.slots.generation(index) }
    }

    fn is_used(&self, index: u32) -> bool {
        self.slots.is_live(index, self.slots.generation(index))
    }

    fn bucket(&self, address: &PeerAddress) -> usize {
        address.hash(self.seed) as usize % self.buckets.borrow().len()
    }

    fn find(&self, address: &PeerAddress) -> Option<u32> {
        let list = self.buckets.borrow()[self.bucket(address)];
        self.slots.find(&list, |slot| slot.address == *address)
    }

    fn take_number(&mut self, index: u32) -> Result<PeerId, PeerError> {
        if index < self.limits.pinned {
            let most = self.limits.pinned;
            let place = self.numbers.borrow_mut().get_mut(index as usize);
            *place.ok_or(PeerError::Connections { most })? = index;
            return Ok(index);
        }
        let numbers = (self.numbers.borrow().len() as u32).saturating_sub(self.limits.pinned);
        let most = self.limits.connections.min(numbers);
        #[cfg(nemesia_injected_fault)]
        let most = if injected(InjectedFault::ForgetLimit) { most + 1 } else { most };
        if self.used >= most {
            return Err(PeerError::Connections { most });
        }
        let again = self.free != NONE;
        let number = if again { self.free } else { self.fresh };
        let numbers = self.numbers.borrow_mut();
        let Some(place) = numbers.get_mut(number as usize) else {
            return Err(PeerError::Connections { most });
        };
        if again {
            self.free = *place;
        } else {
            self.fresh += 1;
        }
        *place = index;
        self.used += 1;
        Ok(number)
    }
}

/// Returns whether a rank whose connection has ended is answered again: an injected fault.
fn readmits_ranks() -> bool {
    #[cfg(nemesia_injected_fault)]
    return injected(InjectedFault::ReadmitRank);
    #[cfg(not(nemesia_injected_fault))]
    false
}

/// Returns whether a call is answered although the connection with the caller has not ended: an injected fault.
fn answers_connected() -> bool {
    #[cfg(nemesia_injected_fault)]
    return injected(InjectedFault::AnswerConnected);
    #[cfg(not(nemesia_injected_fault))]
    false
}

#[cfg(test)]
mod tests;
