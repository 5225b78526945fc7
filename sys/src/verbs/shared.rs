//! Shared receive queues: one pool of receives for many connections.

use std::fmt;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use rdma_core_sys as raw;
use rdma_core_sys::inline::ibv_post_srq_recv;

use super::device::Device;
use super::domain::Domain;
use crate::rdma::{VerbsError, verbs};

/// A shared receive queue.
pub struct SharedReceives {
    domain: Arc<Domain>,
    srq: NonNull<raw::ibv_srq>,
    depth: u32,
}

// SAFETY: libibverbs locks its queues; the pointer is this value's own.
unsafe impl Send for SharedReceives {}
// SAFETY: as above; nothing is written here.
unsafe impl Sync for SharedReceives {}

impl fmt::Debug for SharedReceives {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedReceives").field("depth", &self.depth).finish_non_exhaustive()
    }
}

impl SharedReceives {
    /// Makes a queue for at least `depth` receives of at least `parts` parts each.
    ///
    /// # Errors
    /// The device has no such queue.
    pub fn new(domain: &Arc<Domain>, depth: u32, parts: u32) -> Result<Arc<Self>, VerbsError> {
        let attr = raw::ibv_srq_attr { max_wr: depth, max_sge: parts, srq_limit: 0 };
        let mut init = raw::ibv_srq_init_attr { srq_context: ptr::null_mut(), attr };
        // SAFETY: the domain is in use, and the attributes may be read and written.
        let srq = unsafe { (verbs()?.ibv_create_srq)(domain.raw(), &raw mut init) };
        let srq = NonNull::new(srq).ok_or_else(|| domain.device().last_error("a shared receive queue"))?;
        Ok(Arc::new(Self { domain: Arc::clone(domain), srq, depth }))
    }

    /// Returns its device.
    pub(crate) fn device(&self) -> &Arc<Device> {
        self.domain.device()
    }

    /// Returns the number of receives that fit.
    pub fn depth(&self) -> u32 {
        self.depth
    }

    pub(crate) fn raw(&self) -> *mut raw::ibv_srq {
        self.srq.as_ptr()
    }

    /// Posts a receive. The error is a positive error number.
    ///
    /// # Safety
    /// The parts lie in memory registered with local write access, and no references to them exist until the
    /// receive has completed or the queue is dropped.
    pub(crate) unsafe fn post(&self, id: u64, parts: &mut [raw::ibv_sge]) -> Result<(), i32> {
        let (sg_list, num_sge) = (parts.as_mut_ptr(), parts.len() as i32);
        let mut wr = raw::ibv_recv_wr { wr_id: id, next: ptr::null_mut(), sg_list, num_sge };
        let mut bad = ptr::null_mut();
        // SAFETY: the queue is in use, the list can be read, and the caller guarantees the memory.
        match unsafe { ibv_post_srq_recv(self.raw(), &raw mut wr, &raw mut bad) } {
            0 => Ok(()),
            code => Err(code.saturating_abs()),
        }
    }
}

impl Drop for SharedReceives {
    fn drop(&mut self) {
        if let Ok(verbs) = verbs() {
            // SAFETY: every user of the queue holds this value, so there is no user left.
            unsafe { (verbs.ibv_destroy_srq)(self.raw()) };
        }
        // Dropped after its queue.
        let _ = &self.domain;
    }
}
