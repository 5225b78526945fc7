//! Sends and receives in a matching context, and send modes.

use std::ffi::c_void;

use nemesia::{Endpoint as Inner, Request, Tag};

use crate::boundary::{Out, bytes, check_buffer, room};
use crate::endpoint::{Endpoint, blocking_on, on};
use crate::lent::Lent;
use crate::rank::rank_in;
use crate::request::number;
use crate::status::{Fault, NEMESIA_OK};
use crate::transfer::{Status, deliver, source};

/// A send mode: complete when the caller may reuse the buffer. The mode of `nemesia_endpoint_send`.
pub const NEMESIA_SEND_STANDARD: u32 = 0;
/// A send mode: complete when, in addition, a receive has matched the message (MPI_Ssend).
pub const NEMESIA_SEND_SYNCHRONOUS: u32 = 1;
/// A send mode: the caller guarantees that a receive is posted (MPI_Rsend). Treated as NEMESIA_SEND_STANDARD.
pub const NEMESIA_SEND_READY: u32 = 2;

/// Sends a message in a matching context and a send mode, otherwise as `nemesia_endpoint_send`. A message is
/// received and probed only in its own context, whatever its tag, as with the context id of a communicator.
/// Functions without a context use context 0.
///
/// - `endpoint`: an open endpoint.
/// - `context`: the context.
/// - `mode`: NEMESIA_SEND_STANDARD, _SYNCHRONOUS or _READY.
/// - `rank`: the receiver; it may be this process itself.
/// - `tag`: the value that the receiver matches.
/// - `buffer`, `len`: the message; `buffer` may be NULL if `len` is 0.
///
/// Returns: as `nemesia_endpoint_send`.
/// Ownership: the caller may reuse the buffer after the return.
/// Threads: one at a time, or any number with NEMESIA_THREADS_MULTIPLE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nemesia_endpoint_send_in(
    endpoint: *mut Endpoint,
    context: u16,
    mode: u32,
    rank: i32,
    tag: u64,
    buffer: *const c_void,
    len: usize,
) -> i32 {
    let work = |mut endpoint: Lent<'_>| {
        // SAFETY: the caller's buffer, which does not change before this function returns.
        let bytes = unsafe { bytes(buffer, len, "buffer") }?;
        let to = endpoint.rank_in(rank)?;
        let synchronous = match mode {
            NEMESIA_SEND_STANDARD | NEMESIA_SEND_READY => false,
            NEMESIA_SEND_SYNCHRONOUS => true,
            mode => return Err(no_such_mode(mode)),
        };
        endpoint.send_in((context, synchronous), to, tag, bytes)?;
        Ok(NEMESIA_OK)
    };
    // SAFETY: the caller's endpoint, or null.
    unsafe { blocking_on(endpoint, work) }
}

/// Receives a message in a matching context, otherwise as `nemesia_endpoint_recv`.
///
/// - `endpoint`: an open endpoint.
/// - `context`: the context.
/// - `rank`: the sender, or NEMESIA_ANY_SOURCE.
/// - `tag`, `ignore`: the message's tag must equal `tag` in every bit that is 0 in `ignore`.
/// - `capacity`: the size of `out_buffer` in bytes.
/// - `out_buffer`: receives the message; may be NULL if `capacity` is 0. After an error its contents are
///   unspecified.
/// - `out_status`: written on success and with NEMESIA_ERR_TRUNCATED; may be NULL.
///
/// Returns: as `nemesia_endpoint_recv`.
/// Ownership: the caller may reuse the buffer after the return.
/// Threads: one at a time, or any number with NEMESIA_THREADS_MULTIPLE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nemesia_endpoint_recv_in(
    endpoint: *mut Endpoint,
    context: u16,
    rank: i32,
    tag: u64,
    ignore: u64,
    capacity: usize,
    out_buffer: *mut c_void,
    out_status: *mut Status,
) -> i32 {
    let work = |mut endpoint: Lent<'_>| {
        // SAFETY: the caller's pointer, null or valid.
        let out = unsafe { Out::optional(out_status) };
        // SAFETY: the caller's buffer, which no other code uses before this function returns.
        let buf = unsafe { room(out_buffer, capacity, "out_buffer") }?;
        let from = endpoint.with(|endpoint| source(endpoint, rank))?;
        deliver(endpoint.recv_in(context, from, Tag::Masked { value: tag, ignore }, buf), out)
    };
    // SAFETY: the caller's endpoint, or null.
    unsafe { blocking_on(endpoint, work) }
}

/// Starts a send in a matching context and a send mode, otherwise as `nemesia_endpoint_isend`.
///
/// - `endpoint`: an open endpoint.
/// - `context`: the context.
/// - `mode`: NEMESIA_SEND_STANDARD, _SYNCHRONOUS or _READY.
/// - `rank`: the receiver; it may be this process itself.
/// - `tag`: the value that the receiver matches.
/// - `buffer`, `len`: the message; `buffer` may be NULL if `len` is 0.
/// - `out_request`: written on success; NEMESIA_REQUEST_NONE if the send is complete already.
///
/// Returns: as `nemesia_endpoint_isend`. After an error no message was sent.
/// Ownership: the request holds the buffer. It must not change until the request is complete or the endpoint
/// is closed. The request belongs to this endpoint.
/// Threads: one at a time, or any number with NEMESIA_THREADS_MULTIPLE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nemesia_endpoint_isend_in(
    endpoint: *mut Endpoint,
    context: u16,
    mode: u32,
    rank: i32,
    tag: u64,
    buffer: *const c_void,
    len: usize,
    out_request: *mut u64,
) -> i32 {
    let work = |endpoint: &mut Inner| {
        // SAFETY: the caller's pointer, null or valid.
        let out = unsafe { Out::required(out_request, "out_request") }?;
        // SAFETY: the caller's promise: the buffer does not change until the request is complete.
        out.write(number(unsafe { isend(endpoint, context, mode, (rank, tag), buffer, len) }?));
        Ok(NEMESIA_OK)
    };
    // SAFETY: the caller's endpoint, or null.
    unsafe { on(endpoint, work) }
}

/// Starts a receive in a matching context, otherwise as `nemesia_endpoint_irecv`.
///
/// - `endpoint`: an open endpoint.
/// - `context`: the context.
/// - `rank`: the sender, or NEMESIA_ANY_SOURCE.
/// - `tag`, `ignore`: the message's tag must equal `tag` in every bit that is 0 in `ignore`.
/// - `capacity`: the size of `out_buffer` in bytes.
/// - `out_buffer`: receives the message; may be NULL if `capacity` is 0.
/// - `out_request`: written on success.
///
/// Returns: as `nemesia_endpoint_irecv`. After an error no receive was posted.
/// Ownership: the request holds the buffer. It must stay valid and unused until the request is complete or
/// cancelled, or the endpoint is closed. The request belongs to this endpoint.
/// Threads: one at a time, or any number with NEMESIA_THREADS_MULTIPLE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nemesia_endpoint_irecv_in(
    endpoint: *mut Endpoint,
    context: u16,
    rank: i32,
    tag: u64,
    ignore: u64,
    capacity: usize,
    out_buffer: *mut c_void,
    out_request: *mut u64,
) -> i32 {
    let work = |endpoint: &mut Inner| {
        // SAFETY: the caller's pointer, null or valid.
        let out = unsafe { Out::required(out_request, "out_request") }?;
        check_buffer(out_buffer.cast::<u8>(), capacity, "out_buffer")?;
        let (from, tag) = (source(endpoint, rank)?, Tag::Masked { value: tag, ignore });
        let context = endpoint.in_context(context);
        // SAFETY: the caller's promise: the buffer stays valid until the request is complete.
        out.write(number(unsafe { context.irecv(from, tag, out_buffer.cast(), capacity) }?));
        Ok(NEMESIA_OK)
    };
    // SAFETY: the caller's endpoint, or null.
    unsafe { on(endpoint, work) }
}

/// # Safety
/// The buffer is the caller's, and does not change until the request is complete.
#[inline]
unsafe fn isend(
    endpoint: &mut Inner,
    context: u16,
    mode: u32,
    (rank, tag): (i32, u64),
    buffer: *const c_void,
    len: usize,
) -> Result<Request, Fault> {
    check_buffer(buffer.cast::<u8>(), len, "buffer")?;
    let to = rank_in(endpoint, rank)?;
    let context = endpoint.in_context(context);
    // SAFETY: the caller's promise, in each mode.
    let request = unsafe {
        match mode {
            NEMESIA_SEND_STANDARD => context.isend(to, tag, buffer.cast(), len),
            NEMESIA_SEND_SYNCHRONOUS => context.issend(to, tag, buffer.cast(), len),
            NEMESIA_SEND_READY => context.irsend(to, tag, buffer.cast(), len),
            mode => return Err(no_such_mode(mode)),
        }
    };
    Ok(request?)
}

#[cold]
pub(crate) fn no_such_mode(mode: u32) -> Fault {
    Fault::argument(format!("mode is {mode}: it must be NEMESIA_SEND_STANDARD, _SYNCHRONOUS or _READY"))
}
