//! Sends and receives in a matching context, and the modes of sending.

use std::ffi::c_void;

use nemesia::{Endpoint as Inner, Request, Tag};

use crate::boundary::{Out, bytes, check_buffer, room};
use crate::endpoint::{Endpoint, blocking_on, on, rank_in};
use crate::lent::Lent;
use crate::status::{Fault, NEMESIA_OK};
use crate::transfer::{Status, deliver, number, source};

/// A send mode: complete when the buffer is the caller's again. That of `nemesia_endpoint_send`.
pub const NEMESIA_SEND_STANDARD: u32 = 0;
/// A send mode: complete when a receive has matched the message, too (MPI_Ssend).
pub const NEMESIA_SEND_SYNCHRONOUS: u32 = 1;
/// A send mode: the caller knows that a receive is posted (MPI_Rsend). Treated as NEMESIA_SEND_STANDARD.
pub const NEMESIA_SEND_READY: u32 = 2;

/// As `nemesia_endpoint_send`, in a matching context and in a mode. What is sent in a context is received and probed in
/// it only, whatever the tag, as with the context id of a communicator; functions that take none use context 0.
///
/// - `endpoint`: an open endpoint.
/// - `context`: the context.
/// - `mode`: NEMESIA_SEND_STANDARD, _SYNCHRONOUS or _READY.
/// - `rank`: the receiver; it may be this process itself.
/// - `tag`: what the receiver matches it by.
/// - `buffer`, `len`: the message; `buffer` may be NULL if `len` is 0.
///
/// Returns: as `nemesia_endpoint_send`.
/// Ownership: the buffer is the caller's again when this returns.
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
        // SAFETY: the caller's buffer, which stays as it is until this returns.
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

/// As `nemesia_endpoint_recv`, in a matching context.
///
/// - `endpoint`: an open endpoint.
/// - `context`: the context.
/// - `rank`: the sender, or NEMESIA_ANY_SOURCE.
/// - `tag`, `ignore`: the message's tag must agree with `tag` in every bit that `ignore` does not set.
/// - `capacity`: bytes of room at `out_buffer`.
/// - `out_buffer`: where the message goes; may be NULL if `capacity` is 0. After an error its contents are unspecified.
/// - `out_status`: written on success and with NEMESIA_ERR_TRUNCATED; may be NULL.
///
/// Returns: as `nemesia_endpoint_recv`.
/// Ownership: the buffer is the caller's again when this returns.
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
        // SAFETY: the caller's pointer, null or good.
        let out = unsafe { Out::optional(out_status) };
        // SAFETY: the caller's buffer, which is nobody else's until this returns.
        let buf = unsafe { room(out_buffer, capacity, "out_buffer") }?;
        let from = endpoint.with(|endpoint| source(endpoint, rank))?;
        deliver(endpoint.recv_in(context, from, Tag::Masked { value: tag, ignore }, buf), out)
    };
    // SAFETY: the caller's endpoint, or null.
    unsafe { blocking_on(endpoint, work) }
}

/// As `nemesia_endpoint_isend`, in a matching context and in a mode.
///
/// - `endpoint`: an open endpoint.
/// - `context`: the context.
/// - `mode`: NEMESIA_SEND_STANDARD, _SYNCHRONOUS or _READY.
/// - `rank`: the receiver; it may be this process itself.
/// - `tag`: what the receiver matches it by.
/// - `buffer`, `len`: the message; `buffer` may be NULL if `len` is 0.
/// - `out_request`: written on success; NEMESIA_REQUEST_NONE if the send is complete already.
///
/// Returns: as `nemesia_endpoint_isend`. After an error nothing was sent.
/// Ownership: the request holds the buffer, which must stay as it is until the request is complete or the endpoint is
/// closed. The request belongs to this endpoint.
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
        // SAFETY: the caller's pointer, null or good.
        let out = unsafe { Out::required(out_request, "out_request") }?;
        // SAFETY: the caller's promise: the buffer stays until the request is complete.
        out.write(number(unsafe { isend(endpoint, context, mode, (rank, tag), buffer, len) }?));
        Ok(NEMESIA_OK)
    };
    // SAFETY: the caller's endpoint, or null.
    unsafe { on(endpoint, work) }
}

/// As `nemesia_endpoint_irecv`, in a matching context.
///
/// - `endpoint`: an open endpoint.
/// - `context`: the context.
/// - `rank`: the sender, or NEMESIA_ANY_SOURCE.
/// - `tag`, `ignore`: the message's tag must agree with `tag` in every bit that `ignore` does not set.
/// - `capacity`: bytes of room at `out_buffer`.
/// - `out_buffer`: where the message goes; may be NULL if `capacity` is 0.
/// - `out_request`: written on success.
///
/// Returns: as `nemesia_endpoint_irecv`. After an error nothing was posted.
/// Ownership: the request holds the buffer, which must stay, and which nobody else uses, until the request is complete
/// or withdrawn, or the endpoint is closed. The request belongs to this endpoint.
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
        // SAFETY: the caller's pointer, null or good.
        let out = unsafe { Out::required(out_request, "out_request") }?;
        check_buffer(out_buffer.cast::<u8>(), capacity, "out_buffer")?;
        let (from, tag) = (source(endpoint, rank)?, Tag::Masked { value: tag, ignore });
        let context = endpoint.in_context(context);
        // SAFETY: the caller's promise: the buffer stays until the request is complete.
        out.write(number(unsafe { context.irecv(from, tag, out_buffer.cast(), capacity) }?));
        Ok(NEMESIA_OK)
    };
    // SAFETY: the caller's endpoint, or null.
    unsafe { on(endpoint, work) }
}

/// # Safety
/// The buffer is the caller's, and stays as it is until the request is complete.
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
    Fault::argument(format!("{mode} is no send mode: NEMESIA_SEND_STANDARD, _SYNCHRONOUS or _READY"))
}
