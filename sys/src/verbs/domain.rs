//! Protection domains, and memory that is registered in them.

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use nemesia_core::port::memory::RegionAccess;
use rdma_core_sys as raw;

use super::device::Device;
use crate::rdma::{VerbsError, last_errno, verbs};

/// A protection domain: queue pairs reach only memory of their own domain.
pub struct Domain {
    device: Arc<Device>,
    pd: NonNull<raw::ibv_pd>,
}

// SAFETY: libibverbs may be called from any thread, and the domain is this value's own.
unsafe impl Send for Domain {}
// SAFETY: as above; nothing is written here.
unsafe impl Sync for Domain {}

impl fmt::Debug for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Domain").field("device", &self.device).finish_non_exhaustive()
    }
}

impl Domain {
    /// Makes a domain.
    ///
    /// # Errors
    /// The device has no more.
    pub fn new(device: &Arc<Device>) -> Result<Arc<Self>, VerbsError> {
        // SAFETY: the context is open.
        let pd = unsafe { (verbs()?.ibv_alloc_pd)(device.context()) };
        let pd = NonNull::new(pd).ok_or_else(|| device.last_error("a protection domain"))?;
        Ok(Arc::new(Self { device: Arc::clone(device), pd }))
    }

    /// Returns its device.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    pub(crate) fn raw(&self) -> *mut raw::ibv_pd {
        self.pd.as_ptr()
    }

    /// Pins memory and lets the device use it.
    ///
    /// # Errors
    /// The memory cannot be pinned, or the device does not grant these rights.
    ///
    /// # Safety
    /// Until the region is dropped, the memory stays mapped, and no references exist that exclude what the
    /// device, or a peer with the key, does.
    pub unsafe fn register(
        self: &Arc<Self>,
        base: *mut u8,
        len: usize,
        access: RegionAccess,
    ) -> Result<MemoryRegion, VerbsError> {
        let flags = [
            (access.local_write, raw::IBV_ACCESS_LOCAL_WRITE),
            (access.remote_write, raw::IBV_ACCESS_REMOTE_WRITE),
            (access.remote_read, raw::IBV_ACCESS_REMOTE_READ),
            (access.remote_atomic, raw::IBV_ACCESS_REMOTE_ATOMIC),
        ];
        let flags = flags.into_iter().filter(|(wanted, _)| *wanted).fold(0, |all, (_, flag)| all | flag);
        // SAFETY: the domain is in use, and the caller keeps the memory.
        let mr = NonNull::new(unsafe { verbs()?.ibv_reg_mr(self.raw(), base.cast(), len, flags) });
        match mr {
            Some(mr) => Ok(MemoryRegion { domain: Arc::clone(self), mr: Some(mr) }),
            None if matches!(last_errno(), libc::ENOMEM | libc::EAGAIN) => {
                Err(VerbsError::Pinned { device: self.device.name().into(), bytes: len })
            }
            None => Err(self.device.last_error("registering memory")),
        }
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        if let Ok(verbs) = verbs() {
            // SAFETY: every user of the domain holds this value, so there is no user left.
            unsafe { (verbs.ibv_dealloc_pd)(self.raw()) };
        }
    }
}

/// Registered memory. Dropping it deregisters.
pub struct MemoryRegion {
    domain: Arc<Domain>,
    mr: Option<NonNull<raw::ibv_mr>>,
}

// SAFETY: libibverbs may be called from any thread, and the region is this value's own.
unsafe impl Send for MemoryRegion {}

impl fmt::Debug for MemoryRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryRegion").field("remote_key", &self.remote_key()).finish_non_exhaustive()
    }
}

impl MemoryRegion {
    /// Returns the key for work requests of this side.
    pub fn local_key(&self) -> u32 {
        // SAFETY: the region is registered for as long as this value has it.
        self.mr.map_or(0, |mr| unsafe { (*mr.as_ptr()).lkey })
    }

    /// Returns the key for peers.
    pub fn remote_key(&self) -> u32 {
        // SAFETY: as above.
        self.mr.map_or(0, |mr| unsafe { (*mr.as_ptr()).rkey })
    }

    /// Deregisters. Afterwards nothing reaches the memory.
    ///
    /// # Errors
    /// The device still uses the memory; the region stays, and the call may be repeated.
    pub fn deregister(&mut self) -> Result<(), VerbsError> {
        let Some(mr) = self.mr else { return Ok(()) };
        // SAFETY: the region is registered, and is deregistered once: it is forgotten below.
        let code = unsafe { (verbs()?.ibv_dereg_mr)(mr.as_ptr()) };
        // A device that was pulled out has forgotten it.
        if code == 0 || code.abs() == libc::EIO || code.abs() == libc::ENODEV {
            self.mr = None;
            return Ok(());
        }
        Err(self.domain.device.error("deregistering memory", code))
    }
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        // An error cannot be reported here; the kernel frees the region with the process.
        let _ = self.deregister();
    }
}
