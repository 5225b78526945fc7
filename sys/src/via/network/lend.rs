//! Lending the regions of a process to the other one of a connection, and taking those of the other one.

use nemesia_core::port::memory::{KEY_BYTES, MemoryKey, MemoryPort, PortRegion, RegionAccess};
use nemesia_core::via::ViaMemAttributes;
use nemesia_core::via::memory::{ViaRegion, index_of};
use nemesia_core::via::record::{RegionRights, ViaRecord};
use nemesia_core::wire::vipl::{LentRegion, ViplMessage};

use super::lending::{LentEntry, NetworkImport, RegionSync, withdraw};
use super::{Network, NetworkLink};
use crate::via::region::RegionMemory;

/// Regions that one process may lend to a VI.
const MOST_IMPORTS: usize = 1 << 14;
/// The access to memory that messages and RDMA writes reach, and that RDMA reads reach. Each has a region of the port
/// of its own, so that a right is withdrawn without an effect on the rest.
const FOR_WRITES: RegionAccess = RegionAccess { remote_write: true, ..RegionAccess::LOCAL };
const FOR_READS: RegionAccess = RegionAccess { remote_read: true, ..RegionAccess::LOCAL };

/// Returns the bytes of the key of a region, zeros without a region; `None` if the port has no key.
fn key_bytes(port: &dyn MemoryPort, region: Option<PortRegion>) -> Option<[u8; KEY_BYTES]> {
    region.map_or(Some([0; KEY_BYTES]), |region| port.key(region).map(|key| key.to_bytes()))
}

impl NetworkLink {
    /// Takes a region that the other process lends; `None` if it has too many.
    pub(in crate::via) fn import(&mut self, lent: &LentRegion) -> Option<()> {
        let rights = RegionRights::from_bits(lent.rights)?;
        let attributes = ViaMemAttributes { ptag: 0, rdma_write: rights.write, rdma_read: rights.read };
        let region = ViaRegion { base: lent.base, len: lent.len, attributes };
        let (index, imports) = (index_of(lent.handle), &mut self.lending.imports);
        if index >= MOST_IMPORTS {
            return None;
        }
        if index >= imports.len() {
            imports.resize_with(index + 1, || None);
        }
        let [write, read] = [&lent.write_key, &lent.read_key].map(MemoryKey::from_bytes);
        imports[index] = Some(NetworkImport { handle: lent.handle, region, write, read });
        Some(())
    }

    pub(in crate::via) fn import_of(&self, handle: u32) -> Option<&NetworkImport> {
        self.lending.imports.get(index_of(handle))?.as_ref().filter(|import| import.handle == handle)
    }

    /// Changes the rights of a region of the other process, or removes it.
    pub(in crate::via) fn change_import(&mut self, handle: u32, rights: Option<RegionRights>) {
        let Some(place) = self.lending.imports.get_mut(index_of(handle)) else { return };
        let Some(import) = place.as_mut().filter(|import| import.handle == handle) else { return };
        match rights {
            Some(rights) => {
                import.region.attributes.rdma_write = rights.write;
                import.region.attributes.rdma_read = rights.read;
            }
            None => *place = None,
        }
    }

    /// Lends a region to the other process with these rights, and to be written by messages if it is `for_receives`.
    /// Does nothing if the other process has it so. False if that is not possible now.
    pub(in crate::via) fn lend(
        &mut self,
        network: &mut Network,
        (handle, region): (u32, &ViaRegion),
        memory: &RegionMemory,
        (rights, for_receives): (RegionRights, bool),
    ) -> bool {
        let had = self.lending.lent.get(&handle);
        let for_receives = for_receives || had.is_some_and(|had| had.for_receives);
        let (writes, reads) = (rights.write || for_receives, rights.read);
        if !writes && !reads {
            // There is nothing to lend; what was lent is only read until now.
            return self.forget(network, handle);
        }
        if let Some(had) = self.lending.lent.get_mut(&handle) {
            had.for_receives = for_receives;
            let is_lent = (had.write.is_some(), had.read.is_some()) == (writes, reads);
            if had.is_told && had.rights == rights && is_lent {
                return true;
            }
            // A right is withdrawn at once, and the other process is told when there is room: accesses that are under
            // way fail.
            let gone = [had.write.take_if(|_| !writes), had.read.take_if(|_| !reads)];
            had.is_told = false;
            withdraw(&mut *network.port, gone);
        }
        if !self.has_room() {
            return false;
        }
        let had = self.lending.lent.get(&handle).copied().unwrap_or_default();
        let mut new = [None, None];
        for (place, (had, is_wanted, access)) in
            new.iter_mut().zip([(had.write, writes, FOR_WRITES), (had.read, reads, FOR_READS)])
        {
            if is_wanted && had.is_none() {
                *place = network.register(memory, access);
                if place.is_none() {
                    withdraw(&mut *network.port, new);
                    return false;
                }
            }
        }
        let (write, read) = (had.write.or(new[0]), had.read.or(new[1]));
        let keys = [write, read].map(|region| key_bytes(&*network.port, region));
        let is_told = if let [Some(write_key), Some(read_key)] = keys {
            let (rights, base, len) = (rights.bits(), region.base, region.len);
            self.message(&ViplMessage::Region(LentRegion { handle, rights, base, len, write_key, read_key }))
        } else {
            false
        };
        self.lending.lent.insert(handle, LentEntry { rights, for_receives, write, read, is_told });
        is_told
    }

    /// Returns whether the other process has this region.
    pub(in crate::via) fn has_lent(&self, handle: u32) -> bool {
        self.lending.lent.contains_key(&handle)
    }

    /// Withdraws a region from the other process.
    pub(in crate::via) fn forget(&mut self, network: &mut Network, handle: u32) -> bool {
        let Some(entry) = self.lending.lent.remove(&handle) else { return true };
        withdraw(&mut *network.port, [entry.write, entry.read]);
        if !self.push(&ViaRecord::RegionGone { handle }) {
            self.is_cut = true;
        }
        true
    }

    /// Asks the other process whether all its regions have arrived.
    pub(in crate::via) fn ask(&mut self) {
        if self.message(&ViplMessage::Sync) {
            self.sync = RegionSync::Asked;
        }
    }
}
