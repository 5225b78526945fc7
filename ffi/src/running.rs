//! The active messages whose handlers run in this thread.

use std::cell::Cell;
use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::handle::{FREE_BITS, Kind, marked, wrong_kind};
use crate::status::{Fault, NEMESIA_ERR_HANDLE};

/// A message whose handler runs in this thread. Handlers nest if one of them uses another endpoint.
struct Running {
    /// The handle that the handler got.
    handle: u64,
    /// The endpoint whose handler it is.
    endpoint: usize,
    message: *mut c_void,
    outer: *const Running,
}

thread_local! {
    /// The innermost running message of this thread.
    static RUNNING: Cell<*const Running> = const { Cell::new(ptr::null()) };
    /// The number of this thread's next message.
    static NEXT: Cell<u64> = const { Cell::new(0) };
}

/// The count of numbers that a thread takes at a time.
const BLOCK: u64 = 1 << 20;
/// The count of blocks that were taken.
static BLOCKS: AtomicU64 = AtomicU64::new(0);

/// Returns a handle that no other message of any thread has, until 2^44 messages have been handled.
fn next_handle() -> u64 {
    let mut next = NEXT.get();
    if next.is_multiple_of(BLOCK) {
        next = BLOCKS.fetch_add(1, Ordering::Relaxed) * BLOCK;
    }
    NEXT.set(next + 1);
    marked(next & ((1 << FREE_BITS) - 1), Kind::Incoming)
}

/// Runs `handler` with the handle of the message. Meanwhile [`message_of`] finds the message by its handle.
pub(crate) fn while_handled<T>(endpoint: usize, message: *mut c_void, handler: impl FnOnce(*mut T)) {
    struct Leave(*const Running);
    impl Drop for Leave {
        fn drop(&mut self) {
            RUNNING.set(self.0);
        }
    }
    let running = Running { handle: next_handle(), endpoint, message, outer: RUNNING.get() };
    let _leave = Leave(RUNNING.replace(&raw const running));
    handler(ptr::without_provenance_mut(running.handle as usize));
}

/// Returns whether this thread is in a handler of an endpoint. Handlers nest: it may be an outer one.
#[inline]
pub(crate) fn is_in_handler<T>(endpoint: *mut T) -> bool {
    !RUNNING.get().is_null() && runs_handler_of(endpoint.addr())
}

#[cold]
fn runs_handler_of(endpoint: usize) -> bool {
    let mut at = RUNNING.get();
    // SAFETY: as in `message_of`.
    while let Some(running) = unsafe { at.as_ref() } {
        if running.endpoint == endpoint {
            return true;
        }
        at = running.outer;
    }
    false
}

/// Returns the message of a handle, whose handler runs in this thread.
pub(crate) fn message_of<T>(handle: *const T) -> Result<*mut c_void, Fault> {
    let bits = handle.addr() as u64;
    let mut at = RUNNING.get();
    // SAFETY: the entries of the list lie in frames of this thread that have not returned: `while_handled`
    // removes them.
    while let Some(running) = unsafe { at.as_ref() } {
        if running.handle == bits {
            return Ok(running.message);
        }
        at = running.outer;
    }
    if Kind::of(bits) == Some(Kind::Incoming) {
        let text = "the handler of this message does not run in this thread: reply before it returns";
        return Err(Fault::new(NEMESIA_ERR_HANDLE, text));
    }
    Err(wrong_kind(bits, Kind::Incoming, "message"))
}
