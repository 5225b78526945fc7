//! Registered memory, and the checks of peers' accesses.
#![forbid(unsafe_code)]

use core::borrow::{Borrow as _, BorrowMut as _};

use super::PlacementStorage;
use crate::payload::{GatherList, LentMemory, MOST_PIECES, ScatterList};
use crate::port::memory::{
    MemoryKey, PortRegion, PostError, RegionAccess, RegisterError, RemoteRange, Slice,
};
use crate::slab::NONE;

/// The address of the first byte of every region in keys: not its address in this process, and not 0.
const BASE: u64 = 1 << 32;
/// The bits of a key that index the region; the others are random.
const INDEX_BITS: u32 = 16;
/// The number of region indices.
pub(super) const MOST_REGIONS: u32 = 1 << INDEX_BITS;

/// The largest number of parts in a work request.
pub(super) const MOST_PARTS: usize = 8;

// Two more pieces than parts: a stage, or an input buffer.
static_assertions::const_assert!(MOST_PARTS + 2 <= MOST_PIECES);

/// A part of no bytes.
pub(super) const NOWHERE: Slice =
    Slice { region: PortRegion { index: u32::MAX, generation: 0 }, offset: 0, len: 0 };

/// A list of parts, stored in place.
#[derive(Clone, Copy, Debug)]
pub(super) struct PlacementParts {
    parts: [Slice; MOST_PARTS],
    count: usize,
}

impl PlacementParts {
    /// Copies the parts; longer lists were refused before.
    pub(super) fn new(from: &[Slice]) -> Self {
        let mut all = Self { parts: [NOWHERE; MOST_PARTS], count: from.len().min(MOST_PARTS) };
        all.parts[..all.count].copy_from_slice(&from[..all.count]);
        all
    }

    /// Returns whether one part is of this region.
    pub(super) fn contain(&self, region: PortRegion) -> bool {
        self.get().iter().any(|part| part.region == region)
    }

    /// Returns the only part, if there is one.
    pub(super) fn single(&self) -> Option<Slice> {
        if let [part] = self.get() { Some(*part) } else { None }
    }

    fn get(&self) -> &[Slice] {
        &self.parts[..self.count]
    }

    /// Returns the total number of bytes.
    pub(super) fn len(&self) -> u64 {
        self.get().iter().map(|part| u64::from(part.len)).sum()
    }
}

/// The access that a peer wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    Read,
    Write,
    Atomic,
}

#[derive(Debug)]
struct HeldRegion {
    lent: LentMemory,
    access: RegionAccess,
    key: u64,
    /// Whether it is being deregistered: no new access begins.
    revoked: bool,
}

/// A place for a region.
#[derive(Debug)]
struct PlacementRegionPlace {
    generation: u32,
    held: Option<HeldRegion>,
    /// The next free place.
    next: u32,
}

/// The regions of a port.
pub(super) struct PlacementRegions<P: PlacementStorage> {
    places: P::Table<PlacementRegionPlace>,
    /// The first free place.
    free: u32,
    limit: u32,
}

impl<P: PlacementStorage> PlacementRegions<P> {
    pub(super) fn new(limit: u32) -> Self {
        Self { places: P::Table::default(), free: NONE, limit }
    }

    /// Registers memory. `random` makes the key unpredictable.
    pub(super) fn register(
        &mut self,
        lent: LentMemory,
        access: RegionAccess,
        random: u64,
    ) -> Result<PortRegion, RegisterError> {
        if !access.fits(&lent) {
            return Err(RegisterError::Rights);
        }
        let have = self.places.borrow().len() as u32;
        if self.free == NONE && have < self.limit {
            let place = PlacementRegionPlace { generation: 0, held: None, next: NONE };
            self.places.extend(core::iter::once(place));
            if self.places.borrow().len() as u32 > have {
                self.free = have;
            }
        }
        let index = self.free;
        let full = RegisterError::Full { limit: self.limit };
        let place = self.places.borrow_mut().get_mut(index as usize).ok_or(full)?;
        self.free = place.next;
        let key = random << INDEX_BITS | u64::from(index);
        place.generation = place.generation.wrapping_add(1);
        place.held = Some(HeldRegion { lent, access, key, revoked: false });
        Ok(PortRegion { index, generation: place.generation })
    }

    pub(super) fn deregister(&mut self, region: PortRegion) -> Result<(), RegisterError> {
        let next = self.free;
        let place = self.place(region).ok_or(RegisterError::Unknown)?;
        (place.held, place.next) = (None, next);
        self.free = region.index;
        Ok(())
    }

    fn place(&mut self, region: PortRegion) -> Option<&mut PlacementRegionPlace> {
        let place = self.places.borrow_mut().get_mut(region.index as usize)?;
        (place.generation == region.generation && place.held.is_some()).then_some(place)
    }

    /// Forbids new accesses.
    pub(super) fn revoke(&mut self, region: PortRegion) -> Result<(), RegisterError> {
        let place = self.place(region).ok_or(RegisterError::Unknown)?;
        if let Some(held) = &mut place.held {
            held.revoked = true;
        }
        Ok(())
    }

    /// Returns the address of a part in this process, for a peer that reads it.
    pub(super) fn address(&self, part: Slice) -> Option<u64> {
        let base = self.held(part.region)?.lent.part(part.offset, part.len.into())?;
        Some(base.as_ptr().expose_provenance() as u64)
    }

    /// Returns a region that may be used for a new access.
    fn open(&self, region: PortRegion) -> Option<&HeldRegion> {
        self.held(region).filter(|held| !held.revoked)
    }

    fn held(&self, region: PortRegion) -> Option<&HeldRegion> {
        let place = self.places.borrow().get(region.index as usize)?;
        place.held.as_ref().filter(|_| place.generation == region.generation)
    }

    pub(super) fn key(&self, region: PortRegion) -> Option<MemoryKey> {
        let held = self.open(region).filter(|held| held.access.is_remote())?;
        Some(MemoryKey { address: BASE, len: held.lent.len() as u64, key: held.key })
    }

    /// Checks the parts of a work request. Returns their total length in bytes.
    pub(super) fn check(
        &self,
        parts: &[Slice],
        (most_parts, most_bytes): (u32, u32),
        to_write: bool,
    ) -> Result<u32, PostError> {
        if parts.len() > most_parts as usize {
            return Err(PostError::Slices { limit: most_parts });
        }
        let mut total = 0;
        for (part, slice) in (0..).zip(parts) {
            let held = self.open(slice.region).ok_or(PostError::Region { part })?;
            held.lent.part(slice.offset, slice.len.into()).ok_or(PostError::Bounds { part })?;
            if to_write && !held.access.local_write {
                return Err(PostError::Access { part });
            }
            total += u64::from(slice.len);
        }
        match u32::try_from(total) {
            Ok(total) if total <= most_bytes => Ok(total),
            _ => Err(PostError::Length { limit: most_bytes }),
        }
    }

    /// Returns the place of a peer's access, if it is allowed.
    pub(super) fn reach(&self, at: RemoteRange, len: u32, reach: Reach) -> Option<(PortRegion, u64)> {
        let index = at.key as u32 & (MOST_REGIONS - 1);
        let place = self.places.borrow().get(index as usize)?;
        let held = place.held.as_ref().filter(|held| held.key == at.key && !held.revoked)?;
        let allowed = match reach {
            Reach::Read => held.access.remote_read,
            Reach::Write => held.access.remote_write,
            Reach::Atomic => held.access.remote_atomic,
        };
        let offset = at.address.checked_sub(BASE).filter(|_| allowed)?;
        held.lent.part(offset, len.into())?;
        Some((PortRegion { index, generation: place.generation }, offset))
    }

    /// Adds the memory of `len` bytes from `at` on. Returns false if some of it was deregistered.
    pub(super) fn sources<'a>(
        &'a self,
        parts: &PlacementParts,
        at: u64,
        len: u64,
        list: &mut GatherList<'a>,
    ) -> bool {
        self.walk(parts, at, len, |lent, offset, _, len| list.push_lent(lent, offset, len as u64))
    }

    /// Adds the memory of `len` bytes from `at` on, to be written. Returns false if some of it was
    /// deregistered.
    pub(super) fn destinations<'a>(
        &'a self,
        parts: &PlacementParts,
        at: u64,
        len: u64,
        list: &mut ScatterList<'a>,
    ) -> bool {
        self.walk(parts, at, len, |lent, offset, _, len| list.push_lent(lent, offset, len as u64))
    }

    /// Returns whether no part was deregistered.
    pub(super) fn hold(&self, parts: &PlacementParts) -> bool {
        self.walk(parts, 0, parts.len(), |lent, offset, _, len| lent.part(offset, len as u64).is_some())
    }

    /// Copies bytes out of the parts, from `at` on. Returns false if some of it was deregistered.
    pub(super) fn gather(&self, parts: &PlacementParts, at: u64, to: &mut [u8]) -> bool {
        self.walk(parts, at, to.len() as u64, |lent, offset, done, len| {
            lent.read(offset, &mut to[done..done + len])
        })
    }

    /// Copies bytes into the parts, from `at` on. Returns false if some of it was deregistered.
    pub(super) fn scatter(&self, parts: &PlacementParts, at: u64, from: &[u8]) -> bool {
        self.walk(parts, at, from.len() as u64, |lent, offset, done, len| {
            lent.write(offset, &from[done..done + len])
        })
    }

    /// Changes eight bytes; `None` if they are not aligned, or gone.
    pub(super) fn update(&self, region: PortRegion, at: u64, change: impl Fn(u64) -> u64) -> Option<u64> {
        self.held(region)?.lent.update(at, change)
    }

    /// Calls `each` with the memory of `len` bytes from `at` on: offset, bytes before, bytes.
    fn walk<'a>(
        &'a self,
        parts: &PlacementParts,
        mut at: u64,
        len: u64,
        mut each: impl FnMut(&'a LentMemory, u64, usize, usize) -> bool,
    ) -> bool {
        let mut done = 0;
        for part in parts.get() {
            let size = u64::from(part.len);
            if at >= size {
                at -= size;
                continue;
            }
            let count = (size - at).min(len - done);
            if count > 0 {
                let Some(held) = self.held(part.region) else { return false };
                if !each(&held.lent, part.offset + at, done as usize, count as usize) {
                    return false;
                }
            }
            (done, at) = (done + count, 0);
        }
        done == len
    }
}
