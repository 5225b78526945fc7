//! Regions: memory that peers may access without the participation of this process.
//!
//! A peer names a region by its key alone, so the regions are a hash table: the slot with the number of a hash holds
//! the first region with that hash, and each region the next one. The table needs no storage but the slots.
#![forbid(unsafe_code)]

use core::borrow::BorrowMut;

use crate::engine::request::{CompletionError, State};
use crate::engine::state::RegionId;
use crate::engine::{Engine, RequestId, StartError, Status, Storage};
use crate::matching::Source;
use crate::payload::Exposed;
use crate::port::{Exposure, Port};
use crate::slab::{List, NONE, Slab, Slot};
use crate::wire::direct::DirectRegion;
use crate::wire::region::RegionBytes;
use crate::wire::rma::{Access, Datatype, Refusal, RemoteKey};

/// A region. Private to the engine; public only so that the caller can lend its storage.
#[derive(Debug)]
pub struct ExposedRegion {
    pub(super) memory: Exposed,
    pub(super) key: u64,
    pub(super) access: Access,
    /// Number of completed puts with notification.
    pub(super) notified: u64,
    /// Requests that wait for notifications.
    pub(super) waiting: List,
    /// The offset of the first byte.
    pub(super) base: u64,
    /// The registered memory, and its exposure to the peers that have asked for it.
    pub(super) direct: Option<(RegionBytes, Exposure)>,
    /// The number of the withdrawal of an unexposed region that peers may still access; else 0.
    pub(super) withdrawal: u32,
    /// The next region whose key has the same hash.
    pub(super) next: u32,
    /// The first region whose key has the number of this slot as its hash. It belongs to the slot and not to the
    /// region.
    pub(super) first: u32,
}

impl Default for ExposedRegion {
    fn default() -> Self {
        Self {
            memory: Exposed::empty(),
            key: 0,
            access: Access::Read,
            notified: 0,
            waiting: List::new(),
            base: 0,
            direct: None,
            withdrawal: 0,
            next: NONE,
            first: NONE,
        }
    }
}

impl ExposedRegion {
    /// Returns the description of the region for direct access.
    pub(super) fn described(&self) -> Result<DirectRegion, Refusal> {
        let (bytes, _) = self.direct.ok_or(Refusal::Undefined)?;
        Ok(DirectRegion { bytes, base: self.base, access: self.access })
    }
}

/// How peers name the bytes of a region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Addressing {
    /// By their offset from the first byte.
    #[default]
    Offset,
    /// By their address in the memory of the region's owner.
    Address,
}

/// The reason why memory was not exposed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExposeError {
    /// Every slot for regions is in use.
    #[error("all {capacity} regions are in use; unexpose one first")]
    Full {
        /// The number of slots.
        capacity: usize,
    },
    /// Another region has this key.
    #[error("another region is exposed with the key {key:#x}; unexpose it first, or choose another key")]
    Key {
        /// The key.
        key: u64,
    },
}

/// The range that a request names.
#[derive(Clone, Copy, Debug)]
pub(super) struct RegionPlace {
    pub(super) key: u64,
    pub(super) offset: u64,
    pub(super) len: u64,
}

/// All exposed regions of this process.
#[derive(Debug)]
pub(crate) struct Regions<B: BorrowMut<[Slot<ExposedRegion>]>>(Slab<ExposedRegion, B>);

impl<B: BorrowMut<[Slot<ExposedRegion>]>> Regions<B> {
    pub(crate) const fn new(slots: B) -> Self {
        Self(Slab::new(slots))
    }

    pub(super) fn grow(&mut self, count: usize)
    where
        B: Extend<Slot<ExposedRegion>>,
    {
        self.0.grow(count);
        // Another capacity means other hashes.
        for index in 0..self.0.capacity() as u32 {
            self.0.get_mut(index).first = NONE;
        }
        for index in 0..self.0.capacity() as u32 {
            if self.0.is_live(index, self.0.generation(index)) {
                self.link(index);
            }
        }
    }

    pub(super) fn capacity(&self) -> usize {
        self.0.capacity()
    }

    pub(super) fn used(&self) -> usize {
        self.0.used()
    }

    pub(super) fn insert(&mut self, region: ExposedRegion) -> Result<RegionId, ExposeError> {
        if self.linked(region.key).is_some() {
            return Err(ExposeError::Key { key: region.key });
        }
        let capacity = self.0.capacity();
        let Some((index, place)) = self.0.reserve_back(&mut List::new()) else {
            return Err(ExposeError::Full { capacity });
        };
        *place = ExposedRegion { first: place.first, ..region };
        self.link(index);
        Ok(RegionId { index, generation: self.0.generation(index) })
    }

    /// Returns the slot that holds the first region with the hash of a key. There must be a slot.
    fn slot_of(&self, key: u64) -> u32 {
        let hash = key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        ((hash * self.0.capacity() as u64) >> 32) as u32
    }

    fn link(&mut self, index: u32) {
        let slot = self.slot_of(self.0.get(index).key);
        let next = core::mem::replace(&mut self.0.get_mut(slot).first, index);
        self.0.get_mut(index).next = next;
    }

    fn unlink(&mut self, index: u32) {
        let (slot, next) = (self.slot_of(self.0.get(index).key), self.0.get(index).next);
        if self.0.get(slot).first == index {
            self.0.get_mut(slot).first = next;
            return;
        }
        let mut at = self.0.get(slot).first;
        while at != NONE {
            let region = self.0.get_mut(at);
            if region.next == index {
                region.next = next;
                return;
            }
            at = region.next;
        }
    }

    /// Returns the region that is exposed with a key.
    pub(super) fn named(&mut self, key: u64) -> Option<&mut ExposedRegion> {
        self.linked(key).filter(|region| region.withdrawal == 0)
    }

    /// Returns the number of the withdrawal of an unexposed region, and its exposure.
    pub(super) fn withdrawn(&mut self, id: RegionId) -> Option<(u32, Exposure)> {
        let region = self.0.is_live(id.index, id.generation).then(|| self.0.get_mut(id.index))?;
        let (_, exposure) = region.direct.filter(|_| region.withdrawal > 0)?;
        Some((region.withdrawal, exposure))
    }

    /// Returns the key of the region with a withdrawal.
    pub(super) fn withdrawn_key(&self, number: u32) -> Option<u64> {
        let mut slots = 0..self.0.capacity() as u32;
        slots.find_map(|index| {
            let region = self.0.get(index);
            (self.0.is_live(index, self.0.generation(index)) && region.withdrawal == number)
                .then_some(region.key)
        })
    }

    /// Removes a region whose withdrawal is over.
    pub(super) fn forget(&mut self, id: RegionId) {
        if self.withdrawn(id).is_some() {
            self.take(id);
        }
    }

    /// Returns the region with a key, which may be withdrawn.
    fn linked(&mut self, key: u64) -> Option<&mut ExposedRegion> {
        if self.0.used() == 0 {
            return None;
        }
        let mut at = self.0.get(self.slot_of(key)).first;
        while at != NONE {
            let region = self.0.get(at);
            if region.key == key {
                return Some(self.0.get_mut(at));
            }
            at = region.next;
        }
        None
    }

    pub(super) fn find(&mut self, id: RegionId) -> Option<&mut ExposedRegion> {
        let region = self.0.is_live(id.index, id.generation).then(|| self.0.get_mut(id.index));
        region.filter(|region| region.withdrawal == 0)
    }

    pub(super) fn remove(&mut self, id: RegionId) -> Option<ExposedRegion> {
        self.find(id)?;
        Some(self.take(id))
    }

    fn take(&mut self, id: RegionId) -> ExposedRegion {
        self.unlink(id.index);
        let place = self.0.get_mut(id.index);
        let empty = ExposedRegion { first: place.first, ..ExposedRegion::default() };
        let region = core::mem::replace(place, empty);
        self.0.remove(id.index);
        region
    }

    /// Calls `with` for every exposed region.
    pub(super) fn each(&mut self, mut with: impl FnMut(&mut ExposedRegion)) {
        for index in 0..self.0.capacity() as u32 {
            if self.0.is_live(index, self.0.generation(index)) {
                with(self.0.get_mut(index));
            }
        }
    }

    /// Returns the region that a peer names and the offset in it, if the peer has access. Every number comes
    /// from the peer; this function is the only check.
    pub(super) fn open(
        &mut self,
        place: &RegionPlace,
        wanted: Access,
    ) -> Result<(&mut ExposedRegion, usize), Refusal> {
        let region = self.named(place.key).ok_or(Refusal::Key)?;
        let at = place.offset.checked_sub(region.base).ok_or(Refusal::Bounds)?;
        let end = at.checked_add(place.len).ok_or(Refusal::Bounds)?;
        if end > region.memory.len() as u64 {
            return Err(Refusal::Bounds);
        }
        if !region.access.allows(wanted) {
            return Err(Refusal::Access);
        }
        Ok((region, at as usize))
    }

    /// As [`Regions::open`], for values that are read and written.
    pub(super) fn open_values(
        &mut self,
        place: &RegionPlace,
        datatype: Datatype,
    ) -> Result<(&mut ExposedRegion, usize), Refusal> {
        let (region, at) = self.open(place, Access::ReadWrite)?;
        if !region.memory.is_aligned(at, datatype.bytes()) {
            return Err(Refusal::Alignment);
        }
        Ok((region, at))
    }
}

/// Memory of a region, for its owner, while the engine is borrowed. The description itself is not handed out: a caller
/// could exchange it, keep it until the region is unexposed, and use memory that is freed by then.
#[derive(Debug)]
pub struct RegionMemory<'a>(&'a mut Exposed);

impl RegionMemory<'_> {
    /// As [`Exposed::read`].
    pub fn read(&self, at: usize, to: &mut [u8]) -> bool {
        self.0.read(at, to)
    }

    /// As [`Exposed::write`]. Only for memory that may be written.
    pub fn write(&mut self, at: usize, from: &[u8]) -> bool {
        self.0.write(at, from)
    }
}

impl<P: Port, S: Storage> Engine<P, S> {
    /// Exposes memory to peers until [`Engine::unexpose`].
    ///
    /// A peer that has `key` can use the memory, within `access`. If the application chooses its keys, a key names
    /// the region that is exposed with it now, also for a peer that got the key when it named another region. If
    /// the layer above chooses them, a random key that is new for each call is also a secret, and never names a
    /// later region.
    ///
    /// # Errors
    /// See [`ExposeError`]; nothing is exposed.
    pub fn expose(
        &mut self,
        memory: Exposed,
        access: Access,
        key: u64,
        addressing: Addressing,
    ) -> Result<RegionId, ExposeError> {
        let base = match addressing {
            Addressing::Offset => 0,
            Addressing::Address => memory.address(),
        };
        self.regions.insert(ExposedRegion { memory, key, access, base, ..ExposedRegion::default() })
    }

    /// Returns whether a region is exposed with a key.
    pub fn is_exposed(&mut self, key: u64) -> bool {
        self.regions.named(key).is_some()
    }

    /// Unexposes the memory. Requests for it are refused from now on, and requests that wait for its
    /// notifications are cancelled. Returns `false` if there is no such region.
    ///
    /// If [`Tuning::direct_bytes`](crate::engine::Tuning::direct_bytes) lets peers access the memory directly, call
    /// [`Engine::withdraw`] before the memory is used for something else.
    pub fn unexpose(&mut self, id: RegionId) -> bool {
        let Some(region) = self.regions.find(id) else { return false };
        let (mut waiting, is_direct) = (core::mem::take(&mut region.waiting), region.direct.is_some());
        while let Some(index) = self.requests.pop_front(&mut waiting) {
            self.complete(index, Err(CompletionError::Cancelled));
        }
        if !is_direct {
            return self.regions.remove(id).is_some();
        }
        let number = self.begin_withdrawal();
        if let Some(region) = self.regions.find(id) {
            region.withdrawal = number;
            region.memory = Exposed::empty();
        }
        true
    }

    /// Returns the key that peers need to access a region.
    pub fn remote_key(&mut self, id: RegionId) -> Option<RemoteKey> {
        let rank = self.rank;
        let region = self.regions.find(id)?;
        let len = region.memory.len() as u64;
        Some(RemoteKey { rank, key: region.key, len, access: region.access, base: region.base, share: 0 })
    }

    /// Returns the memory of a region for its owner.
    pub fn region_memory(&mut self, id: RegionId) -> Option<RegionMemory<'_>> {
        self.regions.find(id).map(|region| RegionMemory(&mut region.memory))
    }

    /// Makes place for `count` more regions.
    pub fn grow_regions(&mut self, count: usize)
    where
        S::Regions: Extend<Slot<ExposedRegion>>,
    {
        self.regions.grow(count);
    }

    /// Returns the capacity for regions and the number of regions in use.
    pub fn region_count(&self) -> (usize, usize) {
        (self.regions.capacity(), self.regions.used())
    }

    /// Returns the number of completed puts with notification in a region since it was exposed.
    pub fn notifications(&mut self, id: RegionId) -> Option<u64> {
        self.regions.find(id).map(|region| region.notified)
    }

    /// Starts a request that completes when a region has had `count` notifications since it was exposed. If a
    /// peer fails, the request fails under the same conditions as a receive from any source.
    ///
    /// # Errors
    /// See [`StartError`]; [`StartError::Region`] if there is no such region.
    pub fn await_notifications(&mut self, id: RegionId, count: u64) -> Result<RequestId, StartError> {
        let region = self.regions.find(id).ok_or(StartError::Region)?;
        let done = region.notified >= count;
        if !done {
            self.reach_source(Source::Any)?;
        }
        let index = self.start(State::Notified { region: id, count })?;
        if done {
            self.complete_notified(index);
        } else if let Some(region) = self.regions.find(id) {
            self.requests.push_back(&mut region.waiting, index);
        }
        Ok(self.id(index))
    }

    pub(super) fn complete_notified(&mut self, index: u32) {
        self.complete(index, Ok(Status { peer: self.rank, tag: 0, len: 0, immediate: None }));
    }

    /// Cancels a request that waits for notifications.
    pub(in crate::engine) fn cancel_notified(&mut self, index: u32, region: RegionId) {
        if let Some(region) = self.regions.find(region) {
            self.requests.unlink(&mut region.waiting, index);
        }
        self.complete(index, Err(CompletionError::Cancelled));
    }
}
