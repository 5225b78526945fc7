//! What a VI asks of its connection to another machine. Both processes check protection tags and rights: the one that
//! sends before it posts a transfer, the other one when the record arrives, and the port at each access.

use nemesia_core::port::memory::Slice;
use nemesia_core::via::record::{RegionRights, ViaRecord};
use nemesia_core::via::vi::{LendResult, RemoteMemoryKind, RemoteUse, ViaCarrier};
use nemesia_core::via::{ViAttributes, ViaSegment};

use super::{Network, NetworkLink, RegionSync};
use crate::via::conduit::{Memory, rights};

/// A VI's connection to another machine and the memory of the process.
#[derive(Debug)]
pub(in crate::via) struct NetworkConduit<'a> {
    pub(in crate::via) link: &'a mut NetworkLink,
    pub(in crate::via) network: &'a mut Network,
    pub(in crate::via) memory: &'a Memory,
    pub(in crate::via) attributes: ViAttributes,
}

impl NetworkConduit<'_> {
    /// Returns a local segment as a part of a region of the port.
    fn local(&mut self, segment: ViaSegment, is_sink: bool) -> Option<Slice> {
        let region = self.memory.table.get(segment.handle)?;
        let offset = region.offset(segment.address, segment.length.into())?;
        let region = self.network.local(segment.handle, self.memory.get(segment.handle)?, is_sink)?;
        Some(Slice { region, offset, len: segment.length })
    }

    fn is_registered(&self, segment: ViaSegment) -> bool {
        let region = self.memory.table.get(segment.handle);
        region.is_some_and(|it| it.offset(segment.address, segment.length.into()).is_some())
    }
}

impl ViaCarrier for NetworkConduit<'_> {
    fn is_local(&mut self, segment: ViaSegment, ptag: u64) -> bool {
        segment.length == 0 || self.memory.table.check(segment, ptag).is_some()
    }

    fn remote(&mut self, segment: ViaSegment, purpose: RemoteUse) -> RemoteMemoryKind {
        let is_permitted = self.link.import_of(segment.handle).is_some_and(|import| {
            import.holds(segment)
                && match purpose {
                    RemoteUse::Receive => true,
                    RemoteUse::Write => import.rights().write,
                    RemoteUse::Read => import.rights().read,
                }
        });
        match (is_permitted, purpose, self.link.sync) {
            // The memory of a receive descriptor arrives before the descriptor.
            (true, RemoteUse::Receive, _) => RemoteMemoryKind::Direct,
            (false, RemoteUse::Receive, _) => RemoteMemoryKind::Refused,
            (true, purpose, sync) => {
                self.link.sync = match sync {
                    RegionSync::Answered => RegionSync::Idle,
                    RegionSync::Asked => RegionSync::Unneeded,
                    other => other,
                };
                // The owner checks the record of each write.
                let is_write = purpose == RemoteUse::Write;
                if is_write { RemoteMemoryKind::Shadow } else { RemoteMemoryKind::Direct }
            }
            // The region, or its rights, may be under way.
            (false, _, RegionSync::Idle) => {
                self.link.ask();
                RemoteMemoryKind::Unknown
            }
            (false, _, RegionSync::Asked | RegionSync::Unneeded) => RemoteMemoryKind::Unknown,
            (false, _, RegionSync::Answered) => {
                self.link.sync = RegionSync::Idle;
                RemoteMemoryKind::Refused
            }
        }
    }

    fn has_room(&mut self) -> bool {
        self.link.has_room()
    }

    fn pending(&mut self) -> Option<u64> {
        self.link.pending()
    }

    fn write(&mut self, from: ViaSegment, to: ViaSegment) -> bool {
        let range = self.link.import_of(to.handle).and_then(|import| import.write_range(to));
        match (self.local(from, false), range) {
            (Some(from), Some(to)) => self.link.write(from, to),
            _ => false,
        }
    }

    fn read(&mut self, from: ViaSegment, to: ViaSegment) -> bool {
        let range = self.link.import_of(from.handle).and_then(|import| import.read_range(from));
        match (self.local(to, true), range) {
            (Some(to), Some(from)) => self.link.read(to, from),
            _ => false,
        }
    }

    fn lend(&mut self, segment: ViaSegment, ptag: u64) -> LendResult {
        let region = self.memory.table.get(segment.handle);
        let Some((region, memory)) = region.zip(self.memory.get(segment.handle)) else {
            return LendResult::Refused;
        };
        if !self.memory.begins(segment, ptag) {
            return LendResult::Refused;
        }
        let how = (rights(region, &self.attributes), true);
        if self.link.lend(self.network, (segment.handle, region), memory, how) {
            LendResult::Done
        } else {
            // With room for the record, the port has no more regions: the descriptor would wait without limit.
            self.link.is_cut |= self.link.has_room();
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

    /// The bytes are in the memory of the program already.
    fn settle(&mut self, segment: ViaSegment) -> bool {
        self.is_registered(segment)
    }

    fn refresh(&mut self, segment: ViaSegment) -> bool {
        self.is_registered(segment)
    }

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
