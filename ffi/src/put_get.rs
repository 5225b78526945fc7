//! Puts and gets that wait.

use std::ffi::c_void;

use crate::boundary::{bytes, room};
use crate::endpoint::{Endpoint, blocking_on};
use crate::lent::Lent;
use crate::rma::{NEMESIA_RMA_DELIVERED, NEMESIA_RMA_NOTIFY, RemoteKey, how_of, key_of};
use crate::status::NEMESIA_OK;

/// Writes bytes into a region of another process, and waits until the caller may reuse the buffer; with
/// NEMESIA_RMA_DELIVERED, until the bytes are in the region.
///
/// - `endpoint`, `key`, `offset`, `buffer`, `len`, `flags`: as for `nemesia_endpoint_iput`.
///
/// Returns: as `nemesia_endpoint_iput`. With NEMESIA_RMA_DELIVERED, also a refusal of the owner: NEMESIA_ERR_KEY,
/// _BOUNDS or _ACCESS. Without it, a flush reports that refusal.
/// Ownership: the caller may reuse the buffer after the return.
/// Threads: one at a time, or any number with NEMESIA_THREADS_MULTIPLE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nemesia_endpoint_put(
    endpoint: *mut Endpoint,
    key: *const RemoteKey,
    offset: u64,
    buffer: *const c_void,
    len: usize,
    flags: u32,
) -> i32 {
    let work = |mut endpoint: Lent<'_>| {
        // SAFETY: the caller's pointer, null or valid.
        let key = unsafe { key_of(key) }?;
        let (notify, complete) = how_of(flags, NEMESIA_RMA_NOTIFY | NEMESIA_RMA_DELIVERED)?;
        // SAFETY: checked in `bytes`: the caller's buffer, valid during this call.
        let buffer = unsafe { bytes(buffer, len, "buffer") }?;
        endpoint.put(&key, offset, buffer, (notify, complete))?;
        Ok(NEMESIA_OK)
    };
    // SAFETY: the caller's endpoint, or null.
    unsafe { blocking_on(endpoint, work) }
}

/// Reads bytes from a region of another process, and waits until they are there.
///
/// - `endpoint`, `key`, `offset`, `len`, `out_buffer`: as for `nemesia_endpoint_iget`.
///
/// Returns: as `nemesia_endpoint_iget`; also a refusal of the owner: NEMESIA_ERR_KEY, _BOUNDS or _ACCESS.
/// Ownership: the caller owns the buffer, and no other code uses it before the return.
/// Threads: one at a time, or any number with NEMESIA_THREADS_MULTIPLE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nemesia_endpoint_get(
    endpoint: *mut Endpoint,
    key: *const RemoteKey,
    offset: u64,
    len: usize,
    out_buffer: *mut c_void,
) -> i32 {
    let work = |mut endpoint: Lent<'_>| {
        // SAFETY: the caller's pointer, null or valid.
        let key = unsafe { key_of(key) }?;
        // SAFETY: the caller's buffer, which no other code uses before this function returns.
        let buffer = unsafe { room(out_buffer, len, "out_buffer") }?;
        endpoint.get(&key, offset, buffer)?;
        Ok(NEMESIA_OK)
    };
    // SAFETY: the caller's endpoint, or null.
    unsafe { blocking_on(endpoint, work) }
}
