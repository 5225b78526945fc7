//! What a VI asks of its connection: copies between the program's memory and the regions of the other process, and
//! records. A virtual address becomes a segment and an offset here (paper 2, section 1.4.5).

use std::ptr::NonNull;

use nemesia_core::sync::{Payload, PayloadMut};
use nemesia_core::via::ViaSegment;
use nemesia_core::via::memory::{RegionSlot, RegionTable, ViaRegion, index_of};
use nemesia_core::via::record::{RegionRights, ViaRecord};
use nemesia_core::via::vi::{LendResult, RemoteMemoryKind, RemoteUse, ViaCarrier};

use super::link::Link;
use super::region::RegionMemory;

/// The registered memory of this process.
#[derive(Debug)]
pub(super) struct Memory {
    pub(super) table: RegionTable<Vec<RegionSlot>>,
    /// The memory of each region, by the index of its handle.
    regions: Vec<Option<RegionMemory>>,
    /// Bytes from which copies use non-temporal stores.
    pub(super) non_temporal_from: u64,
}

impl Memory {
    pub(super) fn new(non_temporal_from: u64) -> Self {
        Self { table: RegionTable::new(Vec::new()), regions: Vec::new(), non_temporal_from }
    }

    /// Adds a region. `None` if there are too many.
    pub(super) fn insert(&mut self, region: ViaRegion, memory: RegionMemory) -> Option<u32> {
        if self.table.len() == self.table.capacity() {
            let more = self.table.slots_mut();
            let count = (more.len() * 2).clamp(64, nemesia_core::via::memory::MOST_REGIONS);
            more.resize(count, RegionSlot::default());
            self.regions.resize_with(count, || None);
        }
        let handle = self.table.insert(region)?;
        self.regions[index_of(handle)] = Some(memory);
        Some(handle)
    }

    /// Returns the memory of a region.
    pub(super) fn get(&self, handle: u32) -> Option<&RegionMemory> {
        self.table.get(handle)?;
        self.regions.get(index_of(handle))?.as_ref()
    }

    pub(super) fn get_mut(&mut self, handle: u32) -> Option<&mut RegionMemory> {
        self.table.get(handle)?;
        self.regions.get_mut(index_of(handle))?.as_mut()
    }

    pub(super) fn remove(&mut self, handle: u32) -> Option<(ViaRegion, RegionMemory)> {
        let region = self.table.remove(handle)?;
        Some((region, self.regions.get_mut(index_of(handle))?.take()?))
    }

    /// Returns the address of a segment in the program's memory, if all of it is registered under this protection tag.
    #[inline(always)]
    pub(super) fn place(&self, segment: ViaSegment, ptag: u64) -> Option<NonNull<u8>> {
        let offset = self.table.check(segment, ptag)?;
        self.regions.get(index_of(segment.handle))?.as_ref()?.program(offset, segment.length)
    }

    /// Returns whether the first byte of a segment is registered under this protection tag.
    pub(super) fn begins(&self, segment: ViaSegment, ptag: u64) -> bool {
        self.table.check(ViaSegment { length: 1, ..segment }, ptag).is_some()
    }

    /// Returns the memory of a segment and its offset there, if all of it is registered.
    fn region_of(&self, segment: ViaSegment) -> Option<(&RegionMemory, u64)> {
        let offset = self.table.get(segment.handle)?.offset(segment.address, segment.length.into())?;
        Some((self.regions.get(index_of(segment.handle))?.as_ref()?, offset))
    }

    /// As [`Memory::place`], for a segment whose protection tag was checked before.
    fn checked_place(&self, segment: ViaSegment) -> Option<NonNull<u8>> {
        let (memory, offset) = self.region_of(segment)?;
        memory.program(offset, segment.length)
    }
}

/// Returns the rights of the other side in a region, through a VI with these attributes.
pub(super) fn rights(region: &ViaRegion, vi: &nemesia_core::via::ViAttributes) -> RegionRights {
    let is_open = region.attributes.is_open_to(vi.ptag);
    RegionRights {
        write: is_open && region.attributes.rdma_write && vi.rdma_write,
        read: is_open && region.attributes.rdma_read && vi.rdma_read,
    }
}

/// A VI's connection and the memory of the process.
#[derive(Debug)]
pub(super) struct Conduit<'a> {
    pub(super) link: &'a mut Link,
    pub(super) memory: &'a Memory,
    pub(super) attributes: nemesia_core::via::ViAttributes,
    /// User memory of the other process that was just found to be there.
    present: Option<ViaSegment>,
}

impl<'a> Conduit<'a> {
    pub(super) const fn new(
        link: &'a mut Link,
        memory: &'a Memory,
        attributes: nemesia_core::via::ViAttributes,
    ) -> Self {
        Self { link, memory, attributes, present: None }
    }

    /// Returns whether user memory of the other process can be read through the kernel now. The kernel would wait for
    /// pages that are not there, so the other process copies those.
    #[inline(never)]
    fn finds_present(&mut self, segment: ViaSegment) -> bool {
        let Some(memory) = &mut self.link.memory else { return false };
        let is_present = memory.is_present(segment.address, segment.length as usize).is_ok();
        self.present = is_present.then_some(segment);
        is_present
    }

    /// Returns whether these bytes lie in memory that [`Conduit::finds_present`] has found.
    fn is_present(&self, from: ViaSegment) -> bool {
        self.present.is_some_and(|present| {
            let at = from.address.checked_sub(present.address);
            let end = at.and_then(|at| at.checked_add(from.length.into()));
            present.handle == from.handle && end.is_some_and(|end| end <= present.length.into())
        })
    }

    /// Reads user memory of the other process through the kernel.
    fn read_through_kernel(&mut self, from: ViaSegment, to: NonNull<u8>) -> bool {
        let Some(memory) = &mut self.link.memory else { return false };
        // SAFETY: the range is registered memory of the program, which keeps it mapped and permits to write it.
        unsafe { memory.read_into(from.address, to.as_ptr(), from.length as usize) }.is_ok()
    }
}

impl ViaCarrier for Conduit<'_> {
    #[inline(always)]
    fn is_local(&mut self, segment: ViaSegment, ptag: u64) -> bool {
        segment.length == 0 || self.memory.table.check(segment, ptag).is_some()
    }

    #[inline(always)]
    fn remote(&mut self, segment: ViaSegment, purpose: RemoteUse) -> RemoteMemoryKind {
        let Some(import) = self.link.import_of(segment.handle) else {
            // What a shortage of this process keeps out comes later.
            return if self.link.is_short { RemoteMemoryKind::Unknown } else { RemoteMemoryKind::Refused };
        };
        let is_permitted = match purpose {
            RemoteUse::Receive => true,
            RemoteUse::Write => import.rights().write,
            RemoteUse::Read => import.rights().read,
        };
        if !is_permitted || import.offset(segment).is_none() {
            return RemoteMemoryKind::Refused;
        }
        let is_readable = purpose == RemoteUse::Read && import.is_readable;
        if import.is_shadow && !(is_readable && self.finds_present(segment)) {
            RemoteMemoryKind::Shadow
        } else {
            RemoteMemoryKind::Direct
        }
    }

    #[inline(always)]
    fn write(&mut self, from: ViaSegment, to: ViaSegment) -> bool {
        let Some(source) = self.memory.checked_place(from) else { return false };
        let Some(import) = self.link.import_of(to.handle) else { return false };
        let Some(offset) = import.offset(to) else { return false };
        let len = from.length as usize;
        // SAFETY: the segment is mapped writable, and no reference to its bytes exists.
        let target = unsafe { PayloadMut::from_raw(import.segment.as_ptr(), import.segment.len()) };
        let is_long = u64::from(from.length) >= self.memory.non_temporal_from;
        // SAFETY: registered memory of the program, which keeps it mapped and readable.
        unsafe { target.write_in_order_from(offset, source, len, is_long) }
    }

    fn read(&mut self, from: ViaSegment, to: ViaSegment) -> bool {
        let Some(target) = self.memory.checked_place(to) else { return false };
        let is_present = self.is_present(from);
        let Some(import) = self.link.import_of(from.handle) else { return false };
        let Some(offset) = import.offset(from) else { return false };
        if import.is_shadow && is_present {
            return self.read_through_kernel(from, target);
        }
        // SAFETY: the segment is mapped, and no reference to its bytes exists.
        let source = unsafe { Payload::from_raw(import.segment.as_ptr(), import.segment.len()) };
        // SAFETY: registered memory of the program, which keeps it mapped and permits to write it.
        unsafe { source.read_into(offset, target.as_ptr(), from.length as usize) }
    }

    fn lend(&mut self, segment: ViaSegment, ptag: u64) -> LendResult {
        if !self.memory.begins(segment, ptag) {
            return LendResult::Refused;
        }
        if self.link.has_lent(segment.handle) {
            return LendResult::Done;
        }
        let region = self.memory.table.get(segment.handle);
        let Some((region, memory)) = region.zip(self.memory.get(segment.handle)) else {
            return LendResult::Refused;
        };
        if self.link.lend(segment.handle, region, memory, rights(region, &self.attributes)) {
            LendResult::Done
        } else {
            LendResult::Later
        }
    }

    fn is_granted(&mut self, segment: ViaSegment, ptag: u64, purpose: RemoteUse) -> bool {
        self.memory.table.check(segment, ptag).is_some()
            && self.memory.table.get(segment.handle).is_some_and(|region| match purpose {
                RemoteUse::Receive => true,
                RemoteUse::Write => region.attributes.rdma_write,
                RemoteUse::Read => region.attributes.rdma_read,
            })
    }

    #[inline(always)]
    fn settle(&mut self, segment: ViaSegment) -> bool {
        self.memory.region_of(segment).is_some_and(|(memory, offset)| memory.settle(offset, segment.length))
    }

    fn refresh(&mut self, segment: ViaSegment) -> bool {
        self.memory.region_of(segment).is_some_and(|(memory, offset)| memory.refresh(offset, segment.length))
    }

    #[inline(always)]
    fn push(&mut self, record: &ViaRecord<'_>) -> bool {
        self.link.push(record)
    }

    fn change_region(&mut self, handle: u32, rights: Option<RegionRights>) {
        self.link.change_import(handle, rights);
    }

    fn cut(&mut self) {
        self.link.is_cut = true;
    }
}
