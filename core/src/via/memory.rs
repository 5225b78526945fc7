//! Registered memory (paper 2, sections 1.3.1, 1.4.2 and 1.4.5): regions by handle, their protection tags and rights,
//! and the translation of a virtual address into a region and an offset.
#![forbid(unsafe_code)]

use core::borrow::BorrowMut;

use super::attributes::ViaMemAttributes;
use super::descriptor::ViaSegment;

/// Bits of a handle that hold the index of the region; the others hold its generation.
const INDEX_BITS: u32 = 16;
/// Most regions of a table.
pub const MOST_REGIONS: usize = 1 << INDEX_BITS;

/// A region of registered memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ViaRegion {
    /// The virtual address of its first byte.
    pub base: u64,
    /// Bytes.
    pub len: u64,
    /// The protection tag and the rights of the other side.
    pub attributes: ViaMemAttributes,
}

impl ViaRegion {
    /// Returns the offset of a range; `None` unless all of it lies in the region.
    #[inline(always)]
    pub fn offset(&self, address: u64, len: u64) -> Option<u64> {
        let offset = address.checked_sub(self.base)?;
        (offset.checked_add(len)? <= self.len).then_some(offset)
    }
}

/// A place for a region.
#[derive(Clone, Copy, Debug, Default)]
pub struct RegionSlot {
    region: Option<ViaRegion>,
    /// The number of regions that had this place before. It is part of the handle, so a stale handle finds nothing.
    generation: u16,
}

/// The regions of a process, over lent storage.
#[derive(Debug)]
pub struct RegionTable<B: BorrowMut<[RegionSlot]>> {
    slots: B,
    used: usize,
    next: usize,
}

impl<B: BorrowMut<[RegionSlot]>> RegionTable<B> {
    /// Returns a table without regions.
    pub const fn new(slots: B) -> Self {
        Self { slots, used: 0, next: 0 }
    }

    /// Returns the number of regions.
    pub const fn len(&self) -> usize {
        self.used
    }

    /// Returns whether there is no region.
    pub const fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// Returns the number of places.
    pub fn capacity(&self) -> usize {
        self.slots.borrow().len().min(MOST_REGIONS)
    }

    /// Returns the storage, to be extended: new places are empty.
    pub fn slots_mut(&mut self) -> &mut B {
        &mut self.slots
    }

    /// Adds a region and returns its handle, which is never 0. `None` if every place is in use.
    pub fn insert(&mut self, region: ViaRegion) -> Option<u32> {
        let capacity = self.capacity();
        let start = self.next;
        let free = (0..capacity).map(|step| (start + step) % capacity);
        let slots = self.slots.borrow_mut();
        let index = free.into_iter().find(|index| slots[*index].region.is_none())?;
        let slot = &mut slots[index];
        slot.generation = slot.generation.wrapping_add(1).max(1);
        slot.region = Some(region);
        self.used += 1;
        self.next = index + 1;
        Some(u32::from(slot.generation) << INDEX_BITS | index as u32)
    }

    fn slot_mut(&mut self, handle: u32) -> Option<&mut RegionSlot> {
        let slot = self.slots.borrow_mut().get_mut(index_of(handle))?;
        (slot.region.is_some() && u32::from(slot.generation) == handle >> INDEX_BITS).then_some(slot)
    }

    /// Returns the region of a handle.
    #[inline(always)]
    pub fn get(&self, handle: u32) -> Option<&ViaRegion> {
        let slot = self.slots.borrow().get(index_of(handle))?;
        slot.region.as_ref().filter(|_| u32::from(slot.generation) == handle >> INDEX_BITS)
    }

    /// Changes the attributes of a region. Returns whether the handle is valid.
    pub fn set_attributes(&mut self, handle: u32, attributes: ViaMemAttributes) -> bool {
        match self.slot_mut(handle).and_then(|slot| slot.region.as_mut()) {
            Some(region) => {
                region.attributes = attributes;
                true
            }
            None => false,
        }
    }

    /// Removes a region and returns it.
    pub fn remove(&mut self, handle: u32) -> Option<ViaRegion> {
        let region = self.slot_mut(handle)?.region.take();
        self.used -= 1;
        region
    }

    /// Returns the offset of a segment in its region, if the region exists, contains all of the segment, and is open to
    /// a VI of this protection tag.
    #[inline(always)]
    pub fn check(&self, segment: ViaSegment, ptag: u64) -> Option<u64> {
        let region = self.get(segment.handle).filter(|region| region.attributes.is_open_to(ptag))?;
        region.offset(segment.address, segment.length.into())
    }

    /// Returns whether any region has this protection tag.
    pub fn uses(&self, ptag: u64) -> bool {
        self.iter().any(|(_, region)| region.attributes.ptag == ptag)
    }

    /// Returns all regions with their handles.
    pub fn iter(&self) -> impl Iterator<Item = (u32, ViaRegion)> + '_ {
        (0_u32..).zip(self.slots.borrow()).filter_map(|(index, slot)| {
            slot.region.map(|region| (u32::from(slot.generation) << INDEX_BITS | index, region))
        })
    }
}

/// Returns the index of the place that a handle names.
pub const fn index_of(handle: u32) -> usize {
    (handle & (MOST_REGIONS as u32 - 1)) as usize
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::vec;
    use std::vec::Vec;

    use proptest::prelude::*;

    use super::*;
    use crate::via::attributes::NO_PTAG;

    const REGION: ViaRegion = ViaRegion {
        base: 1000,
        len: 100,
        attributes: ViaMemAttributes { ptag: 3, rdma_write: false, rdma_read: false },
    };

    #[test]
    fn a_segment_must_lie_in_a_region_of_the_same_tag() {
        let mut table = RegionTable::new(vec![RegionSlot::default(); 4]);
        let handle = table.insert(REGION).unwrap();
        let check = |address, length, ptag| table.check(ViaSegment { address, handle, length }, ptag);
        assert_eq!(
            (check(1000, 100, 3), check(1099, 1, 3), check(1100, 0, 3)),
            (Some(0), Some(99), Some(100))
        );
        for (address, length) in [(999, 1), (1000, 101), (1100, 1), (u64::MAX, 2), (0, 0)] {
            assert_eq!(check(address, length, 3), None, "{length} bytes at {address}");
        }
        assert_eq!(check(1000, 1, 4), None, "another tag");
        assert_eq!((check(1000, 1, NO_PTAG), check(1100, 1, NO_PTAG)), (Some(0), None));
    }

    #[test]
    fn a_stale_handle_finds_nothing() {
        let mut table = RegionTable::new(vec![RegionSlot::default(); 1]);
        let stale = table.insert(REGION).unwrap();
        assert_eq!(table.insert(REGION), None, "full");
        assert_eq!(table.remove(stale), Some(REGION));
        let handle = table.insert(REGION).unwrap();
        assert_ne!(handle, stale);
        assert!(table.get(stale).is_none() && table.remove(stale).is_none());
        assert!(!table.set_attributes(stale, REGION.attributes) && table.get(handle).is_some());
    }

    proptest! {
        #[test]
        fn the_table_is_like_its_twin(steps in prop::collection::vec((any::<bool>(), any::<u32>()), 0..200)) {
            let mut table = RegionTable::new(vec![RegionSlot::default(); 5]);
            let mut twin: BTreeMap<u32, ViaRegion> = BTreeMap::new();
            for (insert, number) in steps {
                if insert {
                    let region = ViaRegion { base: number.into(), ..REGION };
                    match table.insert(region) {
                        Some(handle) => prop_assert!(handle != 0 && twin.insert(handle, region).is_none()),
                        None => prop_assert_eq!(twin.len(), 5),
                    }
                } else {
                    let handles: Vec<u32> = twin.keys().copied().collect();
                    let handle = handles.get(number as usize % 6).copied().unwrap_or(number);
                    prop_assert_eq!(table.remove(handle), twin.remove(&handle));
                }
                let all: BTreeMap<u32, ViaRegion> = table.iter().collect();
                prop_assert_eq!(&all, &twin);
                prop_assert_eq!((table.len(), table.uses(3)), (twin.len(), !twin.is_empty()));
            }
        }
    }
}
