//! Messages that leave now or not at all.

use std::ffi::c_void;

use nemesia::Endpoint as Inner;

use crate::boundary::{Out, bytes};
use crate::endpoint::{Endpoint, on};
use crate::rank::rank_in;
use crate::status::{NEMESIA_BUSY, NEMESIA_OK};

/// Writes the most bytes of a message that `nemesia_endpoint_inject` takes: NEMESIA_EAGER_BYTES, or less if a cell
/// or the memory for unexpected messages is smaller.
///
/// - `endpoint`: an open endpoint.
/// - `out_bytes`: written on success.
///
/// Returns: NEMESIA_OK; NEMESIA_ERR_ARGUMENT or _PANIC.
/// Threads: one at a time, or any number with NEMESIA_THREADS_MULTIPLE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nemesia_endpoint_inject_bytes(
    endpoint: *mut Endpoint,
    out_bytes: *mut usize,
) -> i32 {
    let work = |endpoint: &mut Inner| {
        // SAFETY: the caller's pointer, null or valid.
        unsafe { Out::required(out_bytes, "out_bytes") }?.write(endpoint.inject_bytes());
        Ok(NEMESIA_OK)
    };
    // SAFETY: the caller's endpoint, or null.
    unsafe { on(endpoint, work) }
}

/// Sends a message now, or not at all. There is no request, and nothing is queued.
///
/// - `endpoint`: an open endpoint.
/// - `context`: the matching context; functions without a context use 0.
/// - `rank`: the receiver; it may be this process itself.
/// - `tag`: the value that the receiver matches.
/// - `buffer`, `len`: the message; `buffer` may be NULL if `len` is 0.
///
/// Returns: NEMESIA_OK if the message was sent; NEMESIA_BUSY if there is no room for it now, or messages to this
/// rank are queued: make progress (`nemesia_endpoint_progress`), then try again; NEMESIA_ERR_TOO_LONG if it is
/// longer than `nemesia_endpoint_inject_bytes`; NEMESIA_ERR_ARGUMENT, _RANK, _PEER_FAILED or _PANIC. Unless
/// NEMESIA_OK is returned, no message was sent.
/// Ownership: the caller may reuse the buffer after the return, whatever the result.
/// Threads: one at a time, or any number with NEMESIA_THREADS_MULTIPLE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nemesia_endpoint_inject(
    endpoint: *mut Endpoint,
    context: u16,
    rank: i32,
    tag: u64,
    buffer: *const c_void,
    len: usize,
) -> i32 {
    let work = |endpoint: &mut Inner| {
        // SAFETY: the caller's buffer, which does not change before this function returns.
        let bytes = unsafe { bytes(buffer, len, "buffer") }?;
        let to = rank_in(endpoint, rank)?;
        Ok(if endpoint.in_context(context).inject(to, tag, bytes)? { NEMESIA_OK } else { NEMESIA_BUSY })
    };
    // SAFETY: the caller's endpoint, or null.
    unsafe { on(endpoint, work) }
}
