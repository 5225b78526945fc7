//! Regions: memory that peers may access without the participation of this process.
#![forbid(unsafe_code)]

use core::borrow::BorrowMut;

use crate::engine::state::RegionId;
use crate::payload::Exposed;
use crate::slab::{List, Slab, Slot};
use crate::wire::rma::{Access, Datatype, Refusal};

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
