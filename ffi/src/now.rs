//! Sends, receives and requests that end after a few instructions. They run without a guard against panics,
//! because a guard passes all values through memory. The guarded functions handle every exceptional case, and
//! report it. Over TCP they call the operating system, so the thread cannot be cancelled meanwhile.

use std::ffi::c_void;
use std::slice;

use nemesia::internals::os::CancellationOff;
use nemesia::{Request, Source, Tag};

use crate::boundary::settle;
use crate::endpoint::{Endpoint, at_hand};

/// Returns whether a message has left, using only code that does not panic and reports nothing. `None` if the
/// send was not attempted.
///
/// # Safety
/// As [`at_hand`], and `boundary::bytes`.
#[inline(always)]
pub(crate) unsafe fn send_now(
    endpoint: *mut Endpoint,
    rank: i32,
    tag: u64,
    buffer: *const c_void,
    len: usize,
) -> Option<bool> {
    if buffer.is_null() || len > isize::MAX as usize {
        return None;
    }
    // SAFETY: the caller's promise.
    let endpoint = unsafe { at_hand(endpoint) }?;
    let _held = endpoint.has_network().then(CancellationOff::hold);
    // SAFETY: the caller's buffer, not null and not longer than memory.
    let bytes = unsafe { slice::from_raw_parts(buffer.cast::<u8>(), len) };
    // A negative rank becomes one that does not exist.
    Some(endpoint.send_now(rank as u32 as usize, tag, bytes))
}

/// Returns whether a message that is started now leaves together with others.
///
/// # Safety
/// As [`at_hand`].
#[inline(always)]
pub(crate) unsafe fn gathers(endpoint: *mut Endpoint, rank: i32, len: usize) -> bool {
    // SAFETY: the caller's promise.
    unsafe { at_hand(endpoint) }.is_some_and(|endpoint| endpoint.gathers(rank as u32 as usize, len))
}

/// Returns whether a short message has left, as [`send_now`] does. Also returns `false` if the message is longer.
///
/// # Safety
/// As [`send_now`].
#[inline(always)]
pub(crate) unsafe fn send_short_now(
    endpoint: *mut Endpoint,
    rank: i32,
    tag: u64,
    buffer: *const c_void,
    len: usize,
) -> bool {
    // SAFETY: the caller's promise.
    let Some(endpoint) = (unsafe { at_hand(endpoint) }) else { return false };
    let _held = endpoint.has_network().then(CancellationOff::hold);
    let bytes = if buffer.is_null() || len > nemesia::Endpoint::SHORT_BYTES {
        // Only an empty message may have no buffer.
        if len > 0 {
            return false;
        }
        &[]
    } else {
        // SAFETY: the caller's buffer, not null and not longer than memory.
        unsafe { slice::from_raw_parts(buffer.cast::<u8>(), len) }
    };
    endpoint.send_short_now(rank as u32 as usize, tag, bytes)
}

/// Receives a message that is present or arrives within a few attempts, using only code that does not panic
/// and reports nothing.
///
/// # Safety
/// As [`at_hand`], and `boundary::room`.
#[inline(always)]
pub(crate) unsafe fn recv_now(
    endpoint: *mut Endpoint,
    source: Source,
    (value, ignore): (u64, u64),
    buffer: *mut c_void,
    capacity: usize,
) -> Option<nemesia::Status> {
    if buffer.is_null() || capacity > isize::MAX as usize {
        return None;
    }
    // SAFETY: the caller's promise.
    let endpoint = unsafe { at_hand(endpoint) }?;
    let _held = endpoint.has_network().then(CancellationOff::hold);
    settle(buffer);
    // SAFETY: the caller's buffer, not null and not longer than memory; `settle` initialised it.
    let buf = unsafe { slice::from_raw_parts_mut(buffer.cast::<u8>(), capacity) };
    endpoint.recv_soon(source, Tag::Masked { value, ignore }, buf)
}

/// Posts a receive, using only code that does not panic and reports nothing.
///
/// # Safety
/// As [`at_hand`]. The buffer is the caller's, initialised or not, and stays valid until the request is
/// complete.
#[inline(always)]
pub(crate) unsafe fn irecv_now(
    endpoint: *mut Endpoint,
    source: Source,
    (value, ignore): (u64, u64),
    buffer: *mut c_void,
    capacity: usize,
) -> Option<Request> {
    if buffer.is_null() || capacity > isize::MAX as usize {
        return None;
    }
    // SAFETY: the caller's promise.
    let endpoint = unsafe { at_hand(endpoint) }?;
    let _held = endpoint.has_network().then(CancellationOff::hold);
    let tag = Tag::Masked { value, ignore };
    settle(buffer);
    // SAFETY: the caller's promise; `settle` initialised the buffer.
    unsafe { endpoint.irecv_now(source, tag, buffer.cast(), capacity) }
}
