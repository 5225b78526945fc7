//! Registered memory (paper 2, section 1.4.2): user memory with a shadow segment, or memory that the library allocated.
//!
//! The shadow of user memory is made when the memory is registered: its pages are reserved before they are promised.
//! Other processes write only to segments, never to user memory. They may read user memory through the kernel, if the
//! program permits it and the kernel agrees.

use std::ptr::NonNull;

use nemesia_core::sync::{Payload, PayloadMut};

use crate::os::{Segment, SegmentOptions, ShmError};

/// The kind of a registered region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryKind {
    /// The library allocated it in shared memory: no copy beside that of the sender.
    Allocated,
    /// User memory with a shadow segment: the owner copies what arrives.
    Shadow,
    /// The same, and other processes read it directly, through the kernel.
    ShadowReadThroughKernel,
}

/// The memory of a region.
#[derive(Debug)]
pub(super) struct RegionMemory {
    segment: Segment,
    /// The user memory; `None` if the segment itself is used.
    user: Option<NonNull<u8>>,
    len: usize,
    pub(super) nic: u64,
    /// Whether other processes may read user memory through the kernel.
    pub(super) is_readable: bool,
}

// SAFETY: the pointer is an address in memory of the program, which is only used in copies, under the lock of all
// objects; the program promised that the memory stays mapped while it is registered.
unsafe impl Send for RegionMemory {}

impl RegionMemory {
    /// Allocates memory in a segment.
    pub(super) fn allocate(nic: u64, len: usize) -> Result<Self, ShmError> {
        let segment = Segment::create("via-memory", len, &SegmentOptions::default())?;
        segment.seal_seals()?;
        Ok(Self { segment, user: None, len, nic, is_readable: false })
    }

    /// Makes the shadow of user memory.
    ///
    /// # Safety
    /// The memory stays mapped, readable and writable until the value is dropped.
    pub(super) unsafe fn shadow(nic: u64, user: NonNull<u8>, len: usize) -> Result<Self, ShmError> {
        let segment = Segment::create("via-shadow", len, &SegmentOptions::default())?;
        segment.seal_seals()?;
        Ok(Self { segment, user: Some(user), len, nic, is_readable: true })
    }

    /// Returns the address that the program uses.
    pub(super) fn address(&self) -> NonNull<u8> {
        self.user.unwrap_or(self.segment.as_ptr())
    }

    /// Returns the number of bytes.
    pub(super) const fn len(&self) -> usize {
        self.len
    }

    pub(super) fn is_shadow(&self) -> bool {
        self.user.is_some()
    }

    pub(super) fn kind(&self) -> MemoryKind {
        match (self.user, self.is_readable) {
            (None, _) => MemoryKind::Allocated,
            (Some(_), false) => MemoryKind::Shadow,
            (Some(_), true) => MemoryKind::ShadowReadThroughKernel,
        }
    }

    pub(super) fn segment(&self) -> &Segment {
        &self.segment
    }

    /// Returns the address of a range of the program's memory; `None` if it does not lie in the region.
    #[inline(always)]
    pub(super) fn program(&self, offset: u64, len: u32) -> Option<NonNull<u8>> {
        let offset = usize::try_from(offset).ok()?;
        let end = offset.checked_add(len as usize)?;
        // SAFETY: the offset lies in the memory, which has `len` bytes.
        (end <= self.len).then(|| unsafe { self.address().add(offset) })
    }

    /// Copies a range from the shadow to the user memory, if there is a shadow, so that its last bytes become visible
    /// last: the program may poll them.
    pub(super) fn settle(&self, offset: u64, len: u32) -> bool {
        let Some(program) = self.program(offset, len) else { return false };
        if self.user.is_none() {
            return true;
        }
        // SAFETY: the segment is mapped, and no reference to its bytes exists.
        let shadow = unsafe { Payload::from_raw(self.segment.as_ptr(), self.len) };
        // SAFETY: the range lies in user memory, which the program keeps mapped and writable; it is not the segment.
        unsafe { shadow.read_in_order_into(offset as usize, program, len as usize) }
    }

    /// Copies a range from the user memory to the shadow, if there is a shadow.
    pub(super) fn refresh(&self, offset: u64, len: u32) -> bool {
        let Some(program) = self.program(offset, len) else { return false };
        if self.user.is_none() {
            return true;
        }
        // SAFETY: the segment is mapped writable, and no reference to its bytes exists.
        let shadow = unsafe { PayloadMut::from_raw(self.segment.as_ptr(), self.len) };
        // SAFETY: the range lies in user memory, which the program keeps mapped and readable; it is not the segment.
        unsafe { shadow.write_from(offset as usize, program.as_ptr(), len as usize) }
    }
}
