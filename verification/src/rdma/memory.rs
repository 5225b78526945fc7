//! Regions of a simulated port, and copies between regions.

use nemesia_core::payload::LentMemory;
use nemesia_core::port::memory::{
    MemoryKey, PortRegion, PostError, RegionAccess, RegisterError, RemoteRange, Slice,
};

/// The registered memory of one port.
#[derive(Debug, Default)]
pub(super) struct Memory {
    places: Vec<MemoryPlace>,
}

#[derive(Debug, Default)]
struct MemoryPlace {
    generation: u32,
    held: Option<Held>,
}

#[derive(Debug)]
struct Held {
    lent: LentMemory,
    access: RegionAccess,
    key: MemoryKey,
    /// Whether the region is being deregistered: operations under way may go on, new ones may not begin.
    revoked: bool,
}

/// What an operation does at its target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    Read,
    Write,
    Atomic,
}

impl Memory {
    /// Registers memory under a new random key.
    pub(super) fn register(
        &mut self,
        lent: LentMemory,
        access: RegionAccess,
        limit: u32,
        key: u64,
    ) -> Result<PortRegion, RegisterError> {
        let free = self.places.iter().position(|place| place.held.is_none());
        let at = match free {
            Some(at) => at,
            None if self.places.len() < limit as usize => {
                self.places.push(MemoryPlace::default());
                self.places.len() - 1
            }
            None => return Err(RegisterError::Full { limit }),
        };
        let place = &mut self.places[at];
        place.generation += 1;
        // The key's address is not the address in this process, so that code which confuses the two fails.
        let key =
            MemoryKey { address: key.rotate_left(17) & 0x0fff_ffff_ffff_f000, len: lent.len() as u64, key };
        place.held = Some(Held { lent, access, key, revoked: false });
        Ok(PortRegion { index: at as u32, generation: place.generation })
    }

    fn held(&self, region: PortRegion) -> Option<&Held> {
        let place = self.places.get(region.index as usize)?;
        place.held.as_ref().filter(|_| place.generation == region.generation)
    }

    /// Forbids new accesses to a region. Returns its key.
    pub(super) fn revoke(&mut self, region: PortRegion) -> Result<u64, RegisterError> {
        let place = self.places.get_mut(region.index as usize).ok_or(RegisterError::Unknown)?;
        let generation = place.generation;
        let held = place.held.as_mut().filter(|_| generation == region.generation);
        let held = held.ok_or(RegisterError::Unknown)?;
        held.revoked = true;
        Ok(held.key.key)
    }

    pub(super) fn forget(&mut self, region: PortRegion) {
        self.places[region.index as usize].held = None;
    }

    /// Returns the key for peers; `None` if peers have no access.
    pub(super) fn key(&self, region: PortRegion) -> Option<MemoryKey> {
        let held = self.held(region).filter(|held| !held.revoked && held.access.is_remote())?;
        Some(held.key)
    }

    /// Checks the parts of a work request. Returns their total length in bytes.
    pub(super) fn check(
        &self,
        slices: &[Slice],
        allowed: impl Fn(RegionAccess) -> bool,
    ) -> Result<u64, PostError> {
        let mut total = 0;
        for (part, slice) in (0..).zip(slices) {
            let held = self.held(slice.region).filter(|held| !held.revoked);
            let held = held.ok_or(PostError::Region { part })?;
            held.lent.part(slice.offset, slice.len.into()).ok_or(PostError::Bounds { part })?;
            if !allowed(held.access) {
                return Err(PostError::Access { part });
            }
            total += u64::from(slice.len);
        }
        Ok(total)
    }

    /// Checks an access by a peer. Returns its place.
    pub(super) fn reach(
        &self,
        at: RemoteRange,
        len: u64,
        reach: Reach,
        judge: impl Fn(bool) -> bool,
    ) -> Option<(PortRegion, u64)> {
        let mut held = (0..).zip(&self.places).filter_map(|(index, place)| {
            Some((PortRegion { index, generation: place.generation }, place.held.as_ref()?))
        });
        let (region, held) = held.find(|(_, held)| held.key.key == at.key && !held.revoked)?;
        let allowed = match reach {
            Reach::Read => held.access.remote_read,
            Reach::Write => held.access.remote_write,
            Reach::Atomic => held.access.remote_atomic,
        };
        let offset = at.address.checked_sub(held.key.address).filter(|_| judge(allowed))?;
        held.lent.part(offset, len)?;
        Some((region, offset))
    }

    /// Copies out of a region. Returns false if the region is gone.
    pub(super) fn read(&self, region: PortRegion, at: u64, to: &mut [u8]) -> bool {
        self.held(region).is_some_and(|held| held.lent.read(at, to))
    }

    /// Copies into a region. Returns false if the region is gone.
    pub(super) fn write(&self, region: PortRegion, at: u64, from: &[u8]) -> bool {
        self.held(region).is_some_and(|held| held.lent.write(at, from))
    }

    /// Changes eight bytes of a region.
    pub(super) fn update(&self, region: PortRegion, at: u64, change: impl Fn(u64) -> u64) -> Option<u64> {
        self.held(region)?.lent.update(at, change)
    }

    /// Copies from a list of parts, beginning `at` bytes into it.
    pub(super) fn gather(&self, slices: &[Slice], at: u64, to: &mut [u8]) -> bool {
        walk(slices, at, to.len(), |slice, offset, range| self.read(slice.region, offset, &mut to[range]))
    }

    /// Copies to a list of parts, beginning `at` bytes into it.
    pub(super) fn scatter(&self, slices: &[Slice], at: u64, from: &[u8]) -> bool {
        walk(slices, at, from.len(), |slice, offset, range| self.write(slice.region, offset, &from[range]))
    }
}

/// Calls `each` with the parts that make up `len` bytes from `at` on. Returns false as soon as `each` does,
/// or if the list ends early.
fn walk(
    slices: &[Slice],
    mut at: u64,
    len: usize,
    mut each: impl FnMut(&Slice, u64, std::ops::Range<usize>) -> bool,
) -> bool {
    let mut done = 0;
    for slice in slices {
        let size = u64::from(slice.len);
        if at >= size {
            at -= size;
            continue;
        }
        let count = ((size - at) as usize).min(len - done);
        if count > 0 && !each(slice, slice.offset + at, done..done + count) {
            return false;
        }
        (done, at) = (done + count, 0);
    }
    done == len
}
