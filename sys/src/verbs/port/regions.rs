//! A port's registered memory.

use std::cell::Cell;
use std::sync::Arc;

use nemesia_core::payload::LentMemory;
use nemesia_core::port::memory::{MemoryKey, PortRegion, PostError, RegionAccess, RegisterError, Slice};
use rdma_core_sys as raw;

use crate::rdma::VerbsError;
use crate::verbs::domain::{Domain, MemoryRegion};

/// The largest number of parts in a work request.
pub(super) const MOST_PARTS: usize = 16;

/// The parts of a work request in the device's format.
pub(super) struct VerbsParts {
    pub(super) list: [raw::ibv_sge; MOST_PARTS],
    pub(super) count: usize,
    /// The total number of bytes.
    pub(super) len: u64,
}

impl VerbsParts {
    pub(super) const NONE: Self =
        Self { list: [raw::ibv_sge { addr: 0, length: 0, lkey: 0 }; MOST_PARTS], count: 0, len: 0 };

    pub(super) fn get(&mut self) -> &mut [raw::ibv_sge] {
        &mut self.list[..self.count]
    }

    /// Returns the same bytes in the same order, at most `most` at a time.
    pub(super) fn shares(&self, most: u32) -> impl Iterator<Item = Self> + '_ {
        let (mut at, mut from) = (0, 0);
        std::iter::from_fn(move || {
            let mut share = Self::NONE;
            let mut room = most;
            while let (Some(part), 1..) = (self.list[..self.count].get(at), room) {
                let length = room.min(part.length - from);
                let addr = part.addr.wrapping_add(from.into());
                share.list[share.count] = raw::ibv_sge { addr, length, lkey: part.lkey };
                share.count += 1;
                share.len += u64::from(length);
                room -= length;
                (at, from) = if from + length < part.length { (at, from + length) } else { (at + 1, 0) };
            }
            (share.count > 0).then_some(share)
        })
    }

    /// Adds a part of no bytes if there is no part.
    ///
    /// On iWARP receives and reads need a part. libsiw refuses a receive without one. For a read without a part,
    /// libsiw leaves the part of an earlier work request in its queue, and the kernel uses this part: the answer
    /// overwrites that request's memory.
    pub(super) fn ensure_one(&mut self) {
        self.count = self.count.max(1);
    }
}

struct Entry {
    lent: LentMemory,
    access: RegionAccess,
    /// `None` for an empty region: a device can reach nothing there.
    region: Option<MemoryRegion>,
    /// Whether a deregistration was requested while the device still used it.
    leaving: bool,
    /// The number of the last operation of a send queue that may use it.
    last_use: Cell<u64>,
}

struct VerbsRegionPlace {
    generation: u32,
    entry: Option<Entry>,
}

/// All regions.
pub(super) struct VerbsRegions {
    places: Vec<VerbsRegionPlace>,
    free: Vec<u32>,
    limit: u32,
    /// The number of operations posted to send queues.
    posted: u64,
}

impl VerbsRegions {
    pub(super) fn new(limit: u32) -> Self {
        Self { places: Vec::new(), free: Vec::new(), limit, posted: 0 }
    }

    /// Returns the number of the operation that is being posted.
    #[inline]
    pub(super) fn next(&self) -> u64 {
        self.posted + 1
    }

    /// Counts a posted operation.
    #[inline]
    pub(super) fn count(&mut self) {
        self.posted += 1;
    }

    pub(super) fn register(
        &mut self,
        domain: &Arc<Domain>,
        lent: LentMemory,
        access: RegionAccess,
    ) -> Result<PortRegion, RegisterError> {
        if !access.fits(&lent) {
            return Err(RegisterError::Rights);
        }
        if self.free.is_empty() && self.places.len() as u64 >= u64::from(self.limit) {
            return Err(RegisterError::Full { limit: self.limit });
        }
        let region = match lent.part(0, lent.len() as u64) {
            // SAFETY: the lender has promised the memory until it is deregistered, or until the port is
            // dropped, which drops the region.
            Some(base) if !lent.is_empty() => Some(
                unsafe { domain.register(base.as_ptr(), lent.len(), access) }
                    .map_err(|error| refused(&error))?,
            ),
            _ => None,
        };
        let index = self.free.pop().unwrap_or_else(|| {
            self.places.push(VerbsRegionPlace { generation: 0, entry: None });
            self.places.len() as u32 - 1
        });
        let place = &mut self.places[index as usize];
        place.entry = Some(Entry { lent, access, region, leaving: false, last_use: Cell::new(0) });
        Ok(PortRegion { index, generation: place.generation })
    }

    /// Deregisters a region, unless a work request still uses it. `oldest` is the number of the oldest request
    /// in progress, if the device continues to read for such requests after a region is deregistered, as siw
    /// does.
    pub(super) fn deregister(
        &mut self,
        region: PortRegion,
        oldest: Option<u64>,
    ) -> Result<(), RegisterError> {
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
    fn get(&self, region: PortRegion) -> Option<&Entry> {
        let place = self.places.get(region.index as usize)?;
        let entry = place.entry.as_ref().filter(|_| place.generation == region.generation)?;
        (!entry.leaving).then_some(entry)
    }

    pub(super) fn key(&self, region: PortRegion) -> Option<MemoryKey> {
        let entry = self.get(region).filter(|entry| entry.access.is_remote())?;
        let key = entry.region.as_ref().map_or(0, MemoryRegion::remote_key);
        Some(MemoryKey { address: entry.lent.address(), len: entry.lent.len() as u64, key: key.into() })
    }

    /// Checks the parts of a work request: they are registered, lie in their regions, and have the rights that
    /// `allows` requires.
    #[inline]
    pub(super) fn parts(
        &self,
        slices: &[Slice],
        limit: u32,
        allows: impl Fn(RegionAccess) -> bool,
    ) -> Result<VerbsParts, PostError> {
        if slices.len() > limit as usize || slices.len() > MOST_PARTS {
            return Err(PostError::Slices { limit });
        }
        let mut parts = VerbsParts::NONE;
        for (slice, part) in slices.iter().zip(0..) {
            let entry = self.get(slice.region).ok_or(PostError::Region { part })?;
            let base = entry.lent.part(slice.offset, slice.len.into()).ok_or(PostError::Bounds { part })?;
            if !allows(entry.access) {
                return Err(PostError::Access { part });
            }
            // An empty part is omitted: some devices take it for 2^31 bytes.
            if slice.len > 0 {
                let lkey = entry.region.as_ref().map_or(0, MemoryRegion::local_key);
                entry.last_use.set(self.next());
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

#[cfg(test)]
mod tests {
    use super::*;

    fn part(addr: u64, length: u32, lkey: u32) -> raw::ibv_sge {
        raw::ibv_sge { addr, length, lkey }
    }

    fn parts(list: &[raw::ibv_sge]) -> VerbsParts {
        let mut parts = VerbsParts { count: list.len(), ..VerbsParts::NONE };
        parts.list[..list.len()].copy_from_slice(list);
        parts.len = list.iter().map(|part| u64::from(part.length)).sum();
        parts
    }

    fn shares(parts: &VerbsParts, most: u32) -> Vec<Vec<(u64, u32, u32)>> {
        let shares = parts.shares(most);
        let list = |share: VerbsParts| {
            let found: Vec<_> =
                share.list[..share.count].iter().map(|part| (part.addr, part.length, part.lkey)).collect();
            assert_eq!(share.len, found.iter().map(|part| u64::from(part.1)).sum::<u64>());
            found
        };
        shares.map(list).collect()
    }

    #[test]
    fn shares_are_full_but_for_the_last() {
        let three = parts(&[part(100, 5, 1), part(200, 1, 2), part(300, 4, 3)]);
        let wanted = vec![vec![(100, 4, 1)], vec![(104, 1, 1), (200, 1, 2), (300, 2, 3)], vec![(302, 2, 3)]];
        assert_eq!(shares(&three, 4), wanted);
        assert_eq!(shares(&three, 10), [[(100, 5, 1), (200, 1, 2), (300, 4, 3)]]);
        assert_eq!(shares(&three, 5), [vec![(100, 5, 1)], vec![(200, 1, 2), (300, 4, 3)]]);
        assert_eq!(shares(&three, 1).len(), 10);
        assert!(shares(&VerbsParts::NONE, 4).is_empty());
    }

    #[test]
    fn shares_have_every_byte_once_and_in_order() {
        let all = [part(0, 7, 0), part(1000, 1, 0), part(2000, 64, 0), part(3000, 13, 0)];
        let bytes = |list: &[(u64, u32, u32)]| -> Vec<u64> {
            list.iter().flat_map(|(addr, length, _)| *addr..addr + u64::from(*length)).collect()
        };
        let whole = parts(&all);
        for most in 1..90 {
            let found: Vec<u64> = shares(&whole, most).iter().flat_map(|share| bytes(share)).collect();
            assert_eq!(found, bytes(&all.map(|part| (part.addr, part.length, 0))), "{most}");
            assert_eq!(shares(&whole, most).len() as u64, whole.len.div_ceil(most.into()), "{most}");
        }
    }
}
