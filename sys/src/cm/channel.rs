//! The channel from which the connection manager's events are read.

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use rdma_core_sys as raw;

use crate::os::descriptor::occupy_standard;
use crate::rdma::{VerbsError, manager, set_nonblocking};

/// A non-blocking channel of events.
pub struct Channel {
    channel: NonNull<raw::rdma_event_channel>,
}

// SAFETY: librdmacm may be called from any thread; the channel is this value's own.
unsafe impl Send for Channel {}
// SAFETY: as above; nothing is written here.
unsafe impl Sync for Channel {}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Channel").field("descriptor", &self.descriptor()).finish()
    }
}

impl Channel {
    /// Makes a channel.
    ///
    /// # Errors
    /// The library or the kernel's `rdma_ucm` is absent.
    pub fn new() -> Result<Arc<Self>, VerbsError> {
        let _occupied = occupy_standard();
        // SAFETY: no requirements.
        let channel = NonNull::new(unsafe { (manager()?.rdma_create_event_channel)() });
        let channel = channel
            .ok_or_else(|| VerbsError::manager("a channel of events, which needs the module rdma_ucm"))?;
        let channel = Self { channel };
        set_nonblocking(channel.descriptor())
            .map_err(|code| VerbsError::Manager { what: "the descriptor of its channel", code })?;
        Ok(Arc::new(channel))
    }

    pub(super) fn raw(&self) -> *mut raw::rdma_event_channel {
        self.channel.as_ptr()
    }

    /// Returns a descriptor that is readable when there is an event.
    pub fn descriptor(&self) -> i32 {
        // SAFETY: the channel exists.
        unsafe { (*self.raw()).fd }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        if let Ok(manager) = manager() {
            // SAFETY: identifiers hold the channel, so none is left.
            unsafe { (manager.rdma_destroy_event_channel)(self.raw()) };
        }
    }
}
