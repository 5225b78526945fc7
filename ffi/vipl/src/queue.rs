//! Completion queues.

use std::ffi::{c_int, c_ulong, c_void};

use nemesia::internals::via::Callback;
use nemesia_core::via::ViaError;
use nemesia_core::via::completion::CompletionEntry;

use crate::boundary::{call, give, handle, number, require};
use crate::types::Handle;

/// The callback of `VipCQNotify`.
type CompletionCallback = extern "C" fn(*mut c_void, Handle, Handle, c_int);

/// Creates a completion queue.
///
/// # Safety
/// The pointer is null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn VipCreateCQ(nic: Handle, entries: c_ulong, queue: *mut Handle) -> i32 {
    call(|provider| {
        require(queue)?;
        let created = provider.create_queue(number(nic), entries)?;
        // SAFETY: the caller's promise.
        unsafe { give(queue, handle(created)) }
    })
}

/// Destroys a completion queue that no VI uses.
#[unsafe(no_mangle)]
pub extern "C" fn VipDestroyCQ(queue: Handle) -> i32 {
    call(|provider| provider.destroy_queue(number(queue)))
}

/// Changes the room of a completion queue, which may be in use.
#[unsafe(no_mangle)]
pub extern "C" fn VipResizeCQ(queue: Handle, entries: c_ulong) -> i32 {
    call(|provider| provider.resize_queue(number(queue), entries))
}

/// Passes an entry to the program.
///
/// # Safety
/// The pointers are valid.
unsafe fn finish(vi: *mut Handle, is_receive: *mut c_int, entry: CompletionEntry) -> Result<(), ViaError> {
    // SAFETY: the caller's promise.
    unsafe { give(vi, handle(entry.vi)) }?;
    // SAFETY: the caller's promise.
    unsafe { give(is_receive, entry.is_receive.into()) }
}

/// Takes the oldest entry: a VI, and whether its receive queue has a finished descriptor.
///
/// # Safety
/// The pointers are null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn VipCQDone(queue: Handle, vi: *mut Handle, is_receive: *mut c_int) -> i32 {
    call(|provider| {
        require(vi)?;
        require(is_receive)?;
        let entry = provider.queue_done(number(queue))?;
        // SAFETY: not null, so valid.
        unsafe { finish(vi, is_receive, entry) }
    })
}

/// Waits for an entry, and takes it.
///
/// # Safety
/// The pointers are null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn VipCQWait(
    queue: Handle,
    limit: c_ulong,
    vi: *mut Handle,
    is_receive: *mut c_int,
) -> i32 {
    call(|provider| {
        require(vi)?;
        require(is_receive)?;
        let entry = provider.queue_wait(number(queue), limit)?;
        // SAFETY: not null, so valid.
        unsafe { finish(vi, is_receive, entry) }
    })
}

/// Registers a callback for the next entry.
#[unsafe(no_mangle)]
pub extern "C" fn VipCQNotify(
    queue: Handle,
    context: *mut c_void,
    callback: Option<CompletionCallback>,
) -> i32 {
    call(|provider| {
        let callback = callback.ok_or(ViaError::InvalidParameter)?;
        provider.notify_completion(number(queue), context, Callback::Completion(callback))
    })
}
