//! The connection manager's events.

use std::ptr;
use std::sync::Arc;

use nemesia_core::port::memory::{MOST_PRIVATE_BYTES, Private};
use rdma_core_sys as raw;

use super::channel::Channel;
use super::id::Id;
use crate::rdma::manager;

/// An event of a connection. All of it comes from the kernel or the peer; the private bytes are untrusted.
#[derive(Debug)]
pub struct CmEvent {
    /// The number of the identifier; for a request, that of the listener.
    pub token: usize,
    /// The kind of event: `RDMA_CM_EVENT_...`.
    pub kind: u32,
    /// 0, a reason, or a negative error number.
    pub status: i32,
    /// The new connection of a request.
    pub request: Option<Id>,
    /// The peer's private bytes, truncated to what a memory port carries.
    pub private: Private,
    /// Of a request: the reads of ours that the peer serves at once.
    pub reads: u8,
    /// Of a request: the reads that the peer has under way at once.
    pub depth: u8,
}

impl Channel {
    /// Returns the next event, if there is one.
    pub fn next(self: &Arc<Self>) -> Option<CmEvent> {
        let manager = manager().ok()?;
        let mut event = ptr::null_mut();
        // SAFETY: the channel exists and does not block, and `event` may be written.
        if unsafe { (manager.rdma_get_cm_event)(self.raw(), &raw mut event) } != 0 {
            return None;
        }
        // SAFETY: the library has returned an event, which stays until it is acknowledged below. Its identifier
        // is one that we made and have not destroyed, or, for a request, a new one.
        let found = unsafe {
            let is_request = (*event).event == raw::RDMA_CM_EVENT_CONNECT_REQUEST;
            let owner = if is_request { (*event).listen_id } else { (*event).id };
            let conn = &(*event).param.conn;
            CmEvent {
                token: owner.as_ref().map_or(usize::MAX, |id| id.context.addr()),
                kind: (*event).event,
                status: (*event).status,
                request: if is_request { Id::adopt(self, (*event).id) } else { None },
                private: private(conn),
                reads: conn.responder_resources,
                depth: conn.initiator_depth,
            }
        };
        // SAFETY: the event came from the library, and is acknowledged once; nothing points to it any more.
        unsafe { (manager.rdma_ack_cm_event)(event) };
        Some(found)
    }
}

/// # Safety
/// The private data of `conn` are null, or can be read for the stated number of bytes.
unsafe fn private(conn: &raw::rdma_conn_param) -> Private {
    let len = usize::from(conn.private_data_len).min(MOST_PRIVATE_BYTES);
    if conn.private_data.is_null() || len == 0 {
        return Private::EMPTY;
    }
    // SAFETY: the caller's promise.
    let bytes = unsafe { std::slice::from_raw_parts(conn.private_data.cast::<u8>(), len) };
    Private::new(bytes).unwrap_or(Private::EMPTY)
}
