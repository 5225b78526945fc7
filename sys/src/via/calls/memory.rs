//! Registered memory.

use std::ptr::NonNull;

use nemesia_core::via::memory::ViaRegion;
use nemesia_core::via::{ViaError, ViaMemAttributes};

use super::Provider;
use super::vis::{MOST_REGION_BYTES, require_ptag};
use crate::via::conduit::Memory;
use crate::via::region::{MemoryKind, RegionMemory};

impl Provider {
    /// Registers memory of the program, and makes its shadow.
    ///
    /// # Errors
    /// [`ViaError::InvalidParameter`], [`ViaError::InvalidPtag`], [`ViaError::ErrorResource`].
    ///
    /// # Safety
    /// The memory stays mapped, readable and writable until it is deregistered. The program accesses it as memory that
    /// a device changes.
    pub unsafe fn register(
        &self,
        nic: u64,
        address: *mut u8,
        len: u64,
        attributes: ViaMemAttributes,
    ) -> Result<u32, ViaError> {
        let address = NonNull::new(address).ok_or(ViaError::InvalidParameter)?;
        let size = self.size(nic, len, attributes)?;
        (address.as_ptr() as usize).checked_add(size).ok_or(ViaError::InvalidParameter)?;
        // SAFETY: the caller's promise.
        let memory = unsafe { RegionMemory::shadow(nic, address, size) };
        self.insert(memory.map_err(|_| ViaError::ErrorResource)?, len, attributes)
    }

    /// Allocates and registers memory. Returns its address and its handle.
    ///
    /// # Errors
    /// As [`Provider::register`].
    pub fn allocate(
        &self,
        nic: u64,
        len: u64,
        attributes: ViaMemAttributes,
    ) -> Result<(*mut u8, u32), ViaError> {
        let size = self.size(nic, len, attributes)?;
        let memory = RegionMemory::allocate(nic, size).map_err(|_| ViaError::ErrorResource)?;
        let address = memory.address().as_ptr();
        Ok((address, self.insert(memory, len, attributes)?))
    }

    fn size(&self, nic: u64, len: u64, attributes: ViaMemAttributes) -> Result<usize, ViaError> {
        let state = self.lock();
        state.nics.get(nic).ok_or(ViaError::InvalidParameter)?;
        require_ptag(&state, nic, attributes.ptag)?;
        if len == 0 || len > MOST_REGION_BYTES {
            return Err(ViaError::InvalidParameter);
        }
        usize::try_from(len).map_err(|_| ViaError::InvalidParameter)
    }

    fn insert(&self, memory: RegionMemory, len: u64, attributes: ViaMemAttributes) -> Result<u32, ViaError> {
        let mut state = self.lock();
        let base = memory.address().as_ptr() as u64;
        let region = ViaRegion { base, len, attributes };
        let handle = state.memory.insert(region, memory).ok_or(ViaError::ErrorResource)?;
        state.publish_region(handle, false);
        Ok(handle)
    }

    /// Deregisters memory; what the library allocated is released if `is_allocated`, which must be the kind of the
    /// memory.
    ///
    /// # Errors
    /// [`ViaError::InvalidParameter`].
    pub fn deregister(
        &self,
        nic: u64,
        address: *const u8,
        handle: u32,
        is_allocated: bool,
    ) -> Result<(), ViaError> {
        let mut state = self.lock();
        require(&state.memory, nic, address, handle)?;
        let kind = state.memory.get(handle).map(RegionMemory::kind);
        if (kind == Some(MemoryKind::Allocated)) != is_allocated {
            return Err(ViaError::InvalidParameter);
        }
        state.remove_region(handle);
        Ok(())
    }

    /// Returns the attributes of registered memory.
    ///
    /// # Errors
    /// [`ViaError::InvalidParameter`].
    pub fn query_memory(
        &self,
        nic: u64,
        address: *const u8,
        handle: u32,
    ) -> Result<ViaMemAttributes, ViaError> {
        let state = self.lock();
        require(&state.memory, nic, address, handle).map(|region| region.attributes)
    }

    /// Changes the attributes of registered memory.
    ///
    /// # Errors
    /// [`ViaError::InvalidParameter`], [`ViaError::InvalidPtag`].
    pub fn set_memory(
        &self,
        nic: u64,
        address: *const u8,
        handle: u32,
        attributes: ViaMemAttributes,
    ) -> Result<(), ViaError> {
        let mut state = self.lock();
        require(&state.memory, nic, address, handle)?;
        require_ptag(&state, nic, attributes.ptag)?;
        state.memory.table.set_attributes(handle, attributes);
        state.publish_region(handle, false);
        Ok(())
    }

    /// Returns the kind of registered memory.
    ///
    /// # Errors
    /// [`ViaError::InvalidParameter`].
    pub fn memory_kind(&self, nic: u64, address: *const u8, handle: u32) -> Result<MemoryKind, ViaError> {
        let state = self.lock();
        require(&state.memory, nic, address, handle)?;
        state.memory.get(handle).map(RegionMemory::kind).ok_or(ViaError::InvalidParameter)
    }

    /// Permits or forbids that VIs which connect from now on read user memory through the kernel.
    ///
    /// # Errors
    /// [`ViaError::InvalidParameter`], also for memory that the library allocated.
    pub fn set_readable(
        &self,
        nic: u64,
        address: *const u8,
        handle: u32,
        is_readable: bool,
    ) -> Result<(), ViaError> {
        let mut state = self.lock();
        require(&state.memory, nic, address, handle)?;
        let memory = state.memory.get_mut(handle).filter(|memory| memory.is_shadow());
        memory.ok_or(ViaError::InvalidParameter)?.is_readable = is_readable;
        Ok(())
    }
}

/// Returns the region of a handle, if it was registered with this NIC and begins at this address.
fn require(memory: &Memory, nic: u64, address: *const u8, handle: u32) -> Result<ViaRegion, ViaError> {
    let region = memory.table.get(handle).filter(|region| region.base == address as u64);
    let is_own = memory.get(handle).is_some_and(|memory| memory.nic == nic);
    region.filter(|_| is_own).copied().ok_or(ViaError::InvalidParameter)
}
