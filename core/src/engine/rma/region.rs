//! Regions: memory that peers may access without the participation of this process.
#![forbid(unsafe_code)]

use core::borrow::BorrowMut;

use crate::engine::request::{CompletionError, State};
use crate::engine::state::RegionId;
use crate::engine::{Engine, RequestId, StartError, Status, Storage};
use crate::payload::Exposed;
use crate::port::Port;
use crate::slab::{List, Slab, Slot};
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
}

impl Default for ExposedRegion {
    fn default() -> Self {
        Self { memory: Exposed::empty(), key: 0, access: Access::Read, notified: 0, waiting: List::new() }
    }
}

/// The range that a request names.
#[derive(Clone, Copy, Debug)]
pub(super) struct RegionPlace {
    pub(super) region: u32,
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
    }

    pub(super) fn capacity(&self) -> usize {
        self.0.capacity()
    }

    pub(super) fn used(&self) -> usize {
        self.0.used()
    }

    pub(super) fn insert(&mut self, region: ExposedRegion) -> Option<RegionId> {
        let index = self.0.insert(region).ok()?;
        Some(RegionId { index, generation: self.0.generation(index) })
    }

    pub(super) fn find(&mut self, id: RegionId) -> Option<&mut ExposedRegion> {
        self.0.is_live(id.index, id.generation).then(|| self.0.get_mut(id.index))
    }

    pub(super) fn remove(&mut self, id: RegionId) -> Option<ExposedRegion> {
        let region = core::mem::take(self.find(id)?);
        self.0.remove(id.index);
        Some(region)
    }

    /// Returns the region with this number, which must exist.
    pub(super) fn at(&mut self, number: u32) -> Option<&mut ExposedRegion> {
        ((number as usize) < self.0.capacity()).then(|| self.0.get_mut(number))
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
        let exists = (place.region as usize) < self.0.capacity();
        if !exists || !self.0.is_live(place.region, self.0.generation(place.region)) {
            return Err(Refusal::Key);
        }
        let region = self.0.get_mut(place.region);
        if region.key != place.key {
            return Err(Refusal::Key);
        }
        let end = place.offset.checked_add(place.len).ok_or(Refusal::Bounds)?;
        if end > region.memory.len() as u64 {
            return Err(Refusal::Bounds);
        }
        if !region.access.allows(wanted) {
            return Err(Refusal::Access);
        }
        Ok((region, place.offset as usize))
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
    /// Exposes memory to peers until [`Engine::unexpose`]. `key` is the secret that grants access: it must be
    /// random and new for each call. `None` if every region is in use.
    pub fn expose(&mut self, memory: Exposed, access: Access, key: u64) -> Option<RegionId> {
        self.regions.insert(ExposedRegion { memory, key, access, ..ExposedRegion::default() })
    }

    /// Unexposes the memory. Requests for it are refused from now on, and requests that wait for its
    /// notifications are cancelled. Returns `false` if there is no such region.
    pub fn unexpose(&mut self, id: RegionId) -> bool {
        let Some(mut region) = self.regions.remove(id) else { return false };
        while let Some(index) = self.requests.pop_front(&mut region.waiting) {
            self.complete(index, Err(CompletionError::Cancelled));
        }
        true
    }

    /// Returns the key that peers need to access a region.
    pub fn remote_key(&mut self, id: RegionId) -> Option<RemoteKey> {
        let rank = self.rank;
        let region = self.regions.find(id)?;
        let len = region.memory.len() as u64;
        Some(RemoteKey { rank, region: id.number(), key: region.key, len, access: region.access, share: 0 })
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
        if !done && let Some((peer, failure)) = self.failures.any_source {
            return Err(StartError::PeerFailed { peer, failure });
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
