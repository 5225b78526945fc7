//! What a connection knows of the regions that its two processes lend to each other.

use std::collections::HashMap;

use nemesia_core::port::memory::{MemoryKey, MemoryPort, PortRegion, RemoteRange};
use nemesia_core::via::ViaSegment;
use nemesia_core::via::memory::ViaRegion;
use nemesia_core::via::record::RegionRights;

/// Whether this process knows all regions of the other one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::via) enum RegionSync {
    /// It has not asked.
    Idle,
    /// It waits for the answer.
    Asked,
    /// It waits for an answer that nothing needs any more.
    Unneeded,
    /// It has the answer, which is good for the oldest descriptor.
    Answered,
}

/// A region of the other process.
#[derive(Debug)]
pub(in crate::via) struct NetworkImport {
    pub(super) handle: u32,
    pub(super) region: ViaRegion,
    pub(super) write: MemoryKey,
    pub(super) read: MemoryKey,
}

impl NetworkImport {
    fn offset(&self, segment: ViaSegment) -> Option<u64> {
        self.region.offset(segment.address, segment.length.into())
    }

    /// Returns whether a segment lies in the region.
    pub(in crate::via) fn holds(&self, segment: ViaSegment) -> bool {
        self.offset(segment).is_some()
    }

    /// Returns the range of the port to write to; `None` if the segment does not lie in the region.
    pub(in crate::via) fn write_range(&self, segment: ViaSegment) -> Option<RemoteRange> {
        self.offset(segment).map(|offset| self.write.at(offset))
    }

    /// Returns the range of the port to read from; `None` if the segment does not lie in the region.
    pub(in crate::via) fn read_range(&self, segment: ViaSegment) -> Option<RemoteRange> {
        self.offset(segment).map(|offset| self.read.at(offset))
    }

    pub(in crate::via) const fn rights(&self) -> RegionRights {
        RegionRights { write: self.region.attributes.rdma_write, read: self.region.attributes.rdma_read }
    }
}

/// A region of this process that the other one has.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LentEntry {
    pub(super) rights: RegionRights,
    /// Whether it is lent for messages, too.
    pub(super) for_receives: bool,
    /// The region of the port for messages and RDMA writes, and for RDMA reads.
    pub(super) write: Option<PortRegion>,
    pub(super) read: Option<PortRegion>,
    /// Whether the other process has been told.
    pub(super) is_told: bool,
}

/// The regions of both processes.
#[derive(Debug, Default)]
pub(super) struct Lending {
    pub(super) imports: Vec<Option<NetworkImport>>,
    pub(super) lent: HashMap<u32, LentEntry>,
}

impl Lending {
    /// Withdraws all regions from the other process.
    pub(super) fn release(&mut self, port: &mut dyn MemoryPort) {
        for entry in self.lent.drain().map(|(_, entry)| entry) {
            withdraw(port, [entry.write, entry.read]);
        }
    }
}

/// Deregisters regions of the port. The device uses those that only peers access no longer than this.
pub(super) fn withdraw(port: &mut dyn MemoryPort, regions: [Option<PortRegion>; 2]) {
    regions.into_iter().flatten().for_each(|region| _ = port.deregister(region));
}
