//! Memory of the pipes that peers write, and memory of the caller that the port reads and writes.

use std::alloc::{Layout, alloc_zeroed, dealloc};

use nemesia_core::payload::LentMemory;
use nemesia_core::port::memory::{MemoryPort, PortRegion, RegionAccess, RegisterError};

use crate::regcache::{Range, Registrar};

/// The alignment that suits the strictest fabric.
const PAGE: usize = 4096;

/// A piece of zeroed memory for the inbox or the outbox of a pipe. Its owner frees it after the port to which it is
/// lent. No reference to its bytes is made.
#[derive(Debug)]
pub(super) struct PipeStorage {
    base: *mut u8,
    layout: Layout,
}

// SAFETY: the storage is an allocation without ties to a thread; only its owner frees it.
unsafe impl Send for PipeStorage {}

impl PipeStorage {
    /// Allocates; `None` if there is no memory.
    pub(super) fn new(len: usize) -> Option<Self> {
        let layout = Layout::from_size_align(len.max(1), PAGE).ok()?;
        // SAFETY: the size is not 0.
        let base = unsafe { alloc_zeroed(layout) };
        (!base.is_null()).then_some(Self { base, layout })
    }

    /// Describes the memory twice: for the port that registers it, and for the pipe.
    ///
    /// # Safety
    /// The storage is dropped after the port and the pipe.
    pub(super) unsafe fn lent(&self) -> [LentMemory; 2] {
        // SAFETY: allocated with this length and zeroed. No reference to the bytes exists, and the caller keeps the
        // storage until their users are gone.
        [(), ()].map(|()| unsafe { LentMemory::from_raw(self.base, self.layout.size()) })
    }
}

impl Drop for PipeStorage {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout by `new`, and freed only here.
        unsafe { dealloc(self.base, self.layout) };
    }
}

/// Peers may read the bytes: the buffer of a put.
pub(super) const READ: u32 = 1;
/// The port may write the bytes: the buffer of a get.
pub(super) const WRITE: u32 = 2;
/// The port and peers may write the bytes: a buffer to which a peer is admitted.
pub(super) const ADMIT: u32 = WRITE | 4;

/// A port that registers the caller's buffers, for the registration cache or without it.
#[derive(Debug)]
pub(super) struct PortRegistrar<P> {
    pub(super) port: P,
    /// Regions whose deregistration the port has put off.
    retired: Vec<PortRegion>,
}

impl<P: MemoryPort> PortRegistrar<P> {
    pub(super) const fn new(port: P) -> Self {
        Self { port, retired: Vec::new() }
    }

    /// Returns whether peers can write to a region with these rights, if they know its key.
    pub(super) fn opens_to_writes(&self, rights: u32) -> bool {
        rights & ADMIT == ADMIT || rights & WRITE != 0 && self.port.facts().read_needs_remote_write
    }

    /// Registers a range of the caller's memory with these rights.
    ///
    /// The caller of [`put_raw`](super::ChannelGroup::put_raw) or [`get_raw`](super::ChannelGroup::get_raw) has
    /// promised that its buffer stays valid until it is counted, and that it reports or ends other uses of the pages;
    /// both functions are `unsafe` for this reason.
    pub(super) fn lend(&mut self, range: Range, rights: u32) -> Result<PortRegion, RegisterError> {
        let (address, len) = (range.start as usize, (range.end - range.start) as usize);
        let base = std::ptr::with_exposed_provenance_mut::<u8>(address);
        let writes = rights & WRITE != 0;
        let access = RegionAccess {
            local_write: writes,
            remote_read: rights & READ != 0,
            remote_write: self.opens_to_writes(rights),
            remote_atomic: false,
        };
        let memory = if writes {
            // SAFETY: the promise of the caller of `put_raw` or `get_raw`, see above. The port accesses the parts of
            // the range that work requests and keys name: the caller's buffers.
            unsafe { LentMemory::from_raw(base, len) }
        } else {
            // SAFETY: as above; nothing is written.
            unsafe { LentMemory::from_readable(base, len) }
        };
        self.port.register(memory, access)
    }

    /// Tries again to deregister what the port has put off.
    pub(super) fn retry(&mut self) {
        let Self { port, retired } = self;
        retired.retain(|region| port.deregister(*region) == Err(RegisterError::Busy));
    }
}

impl<P: MemoryPort> Registrar for PortRegistrar<P> {
    type Handle = PortRegion;
    type Error = RegisterError;

    fn register(&mut self, range: Range, rights: u32) -> Result<PortRegion, RegisterError> {
        self.lend(range, rights)
    }

    fn deregister(&mut self, _: Range, handle: PortRegion) {
        if self.port.deregister(handle) == Err(RegisterError::Busy) {
            self.retired.push(handle);
        }
    }
}
