//! A port's registered memory.

use std::cell::Cell;
use std::sync::Arc;

use nemesia_core::payload::Lent;
use nemesia_core::port::memory::{Access, Key, PostError, Region, RegisterError, Slice};
use rdma_core_sys as raw;

use crate::verbs::domain::{Domain, MemoryRegion};
use crate::verbs::error::VerbsError;

/// The most parts of a work request.
pub(super) const MOST_PARTS: usize = 16;

/// The parts of a work request as the device takes them.
pub(super) struct Parts {
    pub(super) list: [raw::ibv_sge; MOST_PARTS],
    pub(super) count: usize,
    /// Bytes in all.
    pub(super) len: u64,
}

impl Parts {
    pub(super) const NONE: Self =
        Self { list: [raw::ibv_sge { addr: 0, length: 0, lkey: 0 }; MOST_PARTS], count: 0, len: 0 };

    pub(super) fn get(&mut self) -> &mut [raw::ibv_sge] {
        &mut self.list[..self.count]
    }

    /// For a receive: libsiw takes none without a part, but one of no bytes.
    pub(super) fn at_least_one(&mut self) -> &mut [raw::ibv_sge] {
        &mut self.list[..self.count.max(1)]
    }
}

struct Entry {
    lent: Lent,
    access: Access,
    /// None for no bytes: there is nothing that a device could reach.
    region: Option<MemoryRegion>,
    /// It was to be deregistered, and the device still used it.
    leaving: bool,
    /// The number of the last work request of a send queue that may use it.
    last_use: Cell<u64>,
}

struct Place {
    generation: u32,
    entry: Option<Entry>,
}

/// All regions.
pub(super) struct Regions {
    places: Vec<Place>,
    free: Vec<u32>,
    limit: u32,
    /// How many work requests were posted to send queues.
    posted: u64,
}

impl Regions {
    pub(super) fn new(limit: u32) -> Self {
        Self { places: Vec::new(), free: Vec::new(), limit, posted: 0 }
    }

    /// The number of a work request that is being posted.
    #[inline]
    pub(super) fn count(&mut self) -> u64 {
        self.posted += 1;
        self.posted
    }

    pub(super) fn register(
        &mut self,
        domain: &Arc<Domain>,
        lent: Lent,
        access: Access,
    ) -> Result<Region, RegisterError> {
        if !access.is_consistent() {
            return Err(RegisterError::Rights);
        }
        if self.free.is_empty() && self.places.len() as u64 >= u64::from(self.limit) {
            return Err(RegisterError::Full { limit: self.limit });
        }
        let region = match lent.part(0, lent.len() as u64) {
            // SAFETY: who lent the memory has promised it until it is deregistered, or the port dropped, which drops the
            // region.
            Some(base) if !lent.is_empty() => Some(
                unsafe { domain.register(base.as_ptr(), lent.len(), access) }
                    .map_err(|error| refused(&error))?,
            ),
            _ => None,
        };
        let index = self.free.pop().unwrap_or_else(|| {
            self.places.push(Place { generation: 0, entry: None });
            self.places.len() as u32 - 1
        });
        let place = &mut self.places[index as usize];
        place.entry = Some(Entry { lent, access, region, leaving: false, last_use: Cell::new(0) });
        Ok(Region { index, generation: place.generation })
    }

    /// Deregisters, unless a work request still uses the memory: `oldest` is the number of the oldest that is under way, where
    /// the device goes on reading for those after a region is deregistered. siw does.
    pub(super) fn deregister(&mut self, region: Region, oldest: Option<u64>) -> Result<(), RegisterError> {
        let place = self.places.get_mut(region.index as usize).ok_or(RegisterError::Unknown)?;
        if place.generation != region.generation {
            return Err(RegisterError::Unknown);
        }
        let entry = place.entry.as_mut().ok_or(RegisterError::Unknown)?;
        entry.leaving = true;
        if let Some(Err(error)) = entry.region.as_mut().map(MemoryRegion::deregister) {
            let busy = error.code() == libc::EBUSY;
            return Err(if busy { RegisterError::Busy } else { RegisterError::System(error.code()) });
        }
        if oldest.is_some_and(|oldest| entry.last_use.get() >= oldest) {
            return Err(RegisterError::Busy);
        }
        place.entry = None;
        if let Some(generation) = place.generation.checked_add(1) {
            place.generation = generation;
            self.free.push(region.index);
        }
        Ok(())
    }

    #[inline]
    fn get(&self, region: Region) -> Option<&Entry> {
        let place = self.places.get(region.index as usize)?;
        let entry = place.entry.as_ref().filter(|_| place.generation == region.generation)?;
        (!entry.leaving).then_some(entry)
    }

    pub(super) fn key(&self, region: Region) -> Option<Key> {
        let entry = self.get(region).filter(|entry| entry.access.is_remote())?;
        let key = entry.region.as_ref().map_or(0, MemoryRegion::remote_key);
        Some(Key { address: entry.lent.address(), len: entry.lent.len() as u64, key: key.into() })
    }

    /// The parts of a work request, checked: they are registered, lie in their regions, and allow what `allows` asks.
    #[inline]
    pub(super) fn parts(
        &self,
        slices: &[Slice],
        limit: u32,
        allows: impl Fn(Access) -> bool,
    ) -> Result<Parts, PostError> {
        if slices.len() > limit as usize || slices.len() > MOST_PARTS {
            return Err(PostError::Slices { limit });
        }
        let mut parts = Parts::NONE;
        for (slice, part) in slices.iter().zip(0..) {
            let entry = self.get(slice.region).ok_or(PostError::Region { part })?;
            let base = entry.lent.part(slice.offset, slice.len.into()).ok_or(PostError::Bounds { part })?;
            if !allows(entry.access) {
                return Err(PostError::Access { part });
            }
            // A part of no bytes is left out: to some devices it means 2^31.
            if slice.len > 0 {
                let lkey = entry.region.as_ref().map_or(0, MemoryRegion::local_key);
                entry.last_use.set(self.posted + 1);
                parts.list[parts.count] =
                    raw::ibv_sge { addr: base.as_ptr().addr() as u64, length: slice.len, lkey };
                parts.count += 1;
                parts.len += u64::from(slice.len);
            }
        }
        Ok(parts)
    }
}

fn refused(error: &VerbsError) -> RegisterError {
    match error {
        VerbsError::Pinned { bytes, .. } => RegisterError::Pinned { bytes: *bytes as u64 },
        other => RegisterError::System(other.code()),
    }
}
