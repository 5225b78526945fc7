//! The memory of a process: areas of slots.

use nemesia_core::via::ViaSegment;

/// The handle of the memory, and the virtual address of its first byte.
pub(super) const HANDLE: u32 = 1;
const BASE: u64 = 0x1_0000;
/// Bytes of a slot, and slots of each area.
pub(super) const SLOT_BYTES: usize = 300;
pub(super) const SLOTS: usize = 16;
pub(super) const AREAS: usize = 5;
pub(super) const BYTES: usize = AREAS * SLOTS * SLOT_BYTES;

/// A part of the memory of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Area {
    /// Bytes that never change: RDMA reads.
    Constant,
    /// Bytes to be sent.
    Source,
    /// Receive descriptors.
    Receive,
    /// Targets of RDMA writes.
    Target,
    /// Destinations of RDMA reads.
    Sink,
}

/// Returns a part of a slot as a segment.
pub(super) fn segment(area: Area, slot: usize, offset: usize, len: usize) -> ViaSegment {
    let at = (area as usize * SLOTS + slot) * SLOT_BYTES + offset;
    ViaSegment { address: BASE + at as u64, handle: HANDLE, length: len as u32 }
}

/// Returns the offset of a segment in the memory; `None` if it does not lie there.
pub(super) fn offset_of(segment: ViaSegment) -> Option<u64> {
    let offset = segment.address.checked_sub(BASE)?;
    let end = offset.checked_add(segment.length.into())?;
    (segment.handle == HANDLE && end <= BYTES as u64).then_some(offset)
}
