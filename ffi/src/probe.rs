//! Looking at messages before they are received.

use std::ffi::c_void;

use nemesia::{Endpoint as Inner, Error, Message, Source, Tag};

use crate::boundary::{Out, check_buffer, room};
use crate::endpoint::{Endpoint, blocking_on, on};
use crate::lent::Lent;
use crate::status::{Fault, NEMESIA_OK, NEMESIA_PENDING};
use crate::transfer::{Status, deliver, named, number, source, time_left};

/// Looks for the first message that a receive with these arguments would take, and leaves it where it is (MPI_Iprobe).
/// Makes progress if there is none; never blocks.
///
/// - `endpoint`: an open endpoint.
/// - `context`: the matching context; 0 is that of the functions that take none.
/// - `rank`: the sender, or NEMESIA_ANY_SOURCE.
/// - `tag`, `ignore`: the message's tag must agree with `tag` in every bit that `ignore` does not set.
/// - `out_status`: sender, tag, and the bytes that the message has in all, written on success (not with
///   NEMESIA_PENDING); may be NULL.
///
/// Returns: NEMESIA_OK if there is one; NEMESIA_PENDING if not; NEMESIA_ERR_ARGUMENT, _RANK, _PEER_FAILED (the sender
/// is gone and has left none) or _PANIC.
/// Threads: one at a time, or any number with NEMESIA_THREADS_MULTIPLE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nemesia_endpoint_iprobe(
    endpoint: *mut Endpoint,
    context: u16,
    rank: i32,
    tag: u64,
    ignore: u64,
    out_status: *mut Status,
) -> i32 {
    let work = |endpoint: &mut Inner| {
        // SAFETY: the caller's pointer, null or good.
        let out = unsafe { Out::optional(out_status) };
        let from = source(endpoint, rank)?;
        match endpoint.in_context(context).iprobe(from, Tag::Masked { value: tag, ignore })? {
            None => Ok(NEMESIA_PENDING),
            Some(status) => deliver(Ok(status), out),
        }
    };
    // SAFETY: the caller's endpoint, or null.
    unsafe { on(endpoint, work) }
}

/// As `nemesia_endpoint_iprobe`, and waits for the message: spins, then sleeps (MPI_Probe).
///
/// - `endpoint`: an open endpoint.
/// - `context`: the matching context; 0 is that of the functions that take none.
/// - `rank`: the sender, or NEMESIA_ANY_SOURCE.
/// - `tag`, `ignore`: the message's tag must agree with `tag` in every bit that `ignore` does not set.
/// - `timeout_ns`: how long at most, in nanoseconds; negative: for ever; 0: one look.
/// - `out_status`: sender, tag, and the bytes that the message has in all, written on success; may be NULL.
///
/// Returns: NEMESIA_OK; NEMESIA_ERR_TIMEOUT; NEMESIA_ERR_UNEXPECTED_FULL (there is no room for it: receive others
/// first), _ARGUMENT, _RANK, _PEER_FAILED or _PANIC.
/// Threads: one at a time, or any number with NEMESIA_THREADS_MULTIPLE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nemesia_endpoint_probe(
    endpoint: *mut Endpoint,
    context: u16,
    rank: i32,
    tag: u64,
    ignore: u64,
    timeout_ns: i64,
    out_status: *mut Status,
) -> i32 {
    let work = |mut endpoint: Lent<'_>| {
        // SAFETY: the caller's pointer, null or good.
        let out = unsafe { Out::optional(out_status) };
        let from = endpoint.with(|endpoint| source(endpoint, rank))?;
        let tag = Tag::Masked { value: tag, ignore };
        deliver(endpoint.probe(context, from, tag, time_left(timeout_ns)), out)
    };
    // SAFETY: the caller's endpoint, or null.
    unsafe { blocking_on(endpoint, work) }
}

/// As `nemesia_endpoint_iprobe`, and takes the message out of the queue: no other receive or probe finds it any more
/// (MPI_Improbe).
///
/// - `endpoint`: an open endpoint.
/// - `context`: the matching context; 0 is that of the functions that take none.
/// - `rank`: the sender, or NEMESIA_ANY_SOURCE.
/// - `tag`, `ignore`: the message's tag must agree with `tag` in every bit that `ignore` does not set.
/// - `out_message`: for `nemesia_endpoint_mrecv` or `nemesia_endpoint_imrecv`, once; written on success (not with
///   NEMESIA_PENDING).
/// - `out_status`: sender, tag, and the bytes that the message has in all, written as `out_message` is; may be NULL.
///
/// Returns: NEMESIA_OK if there is one; NEMESIA_PENDING if not; NEMESIA_ERR_ARGUMENT, _RANK, _PEER_FAILED, _REQUESTS
/// (each message taken out is one) or _PANIC.
/// Ownership: the message has to be received, with a capacity of 0 if nobody wants it: until then it takes the room of
/// an unexpected message and of a request.
/// Threads: one at a time, or any number with NEMESIA_THREADS_MULTIPLE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nemesia_endpoint_improbe(
    endpoint: *mut Endpoint,
    context: u16,
    rank: i32,
    tag: u64,
    ignore: u64,
    out_message: *mut u64,
    out_status: *mut Status,
) -> i32 {
    let probe = |endpoint: &mut Lent<'_>, from, tag| {
        endpoint.with(|endpoint| endpoint.in_context(context).improbe(from, tag))
    };
    // SAFETY: the caller's arguments.
    unsafe { take(endpoint, (rank, tag, ignore), (out_message, out_status), probe) }
}

/// As `nemesia_endpoint_improbe`, and waits for the message: spins, then sleeps (MPI_Mprobe).
///
/// - `endpoint`: an open endpoint.
/// - `context`: the matching context; 0 is that of the functions that take none.
/// - `rank`: the sender, or NEMESIA_ANY_SOURCE.
/// - `tag`, `ignore`: the message's tag must agree with `tag` in every bit that `ignore` does not set.
/// - `timeout_ns`: how long at most, in nanoseconds; negative: for ever; 0: one look.
/// - `out_message`: for `nemesia_endpoint_mrecv` or `nemesia_endpoint_imrecv`, once; written on success.
/// - `out_status`: sender, tag, and the bytes that the message has in all, written on success; may be NULL.
///
/// Returns: NEMESIA_OK; NEMESIA_ERR_TIMEOUT; NEMESIA_ERR_UNEXPECTED_FULL (there is no room for it: receive others
/// first), _ARGUMENT, _RANK, _PEER_FAILED, _REQUESTS or _PANIC.
/// Ownership: as for `nemesia_endpoint_improbe`.
/// Threads: one at a time, or any number with NEMESIA_THREADS_MULTIPLE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nemesia_endpoint_mprobe(
    endpoint: *mut Endpoint,
    context: u16,
    rank: i32,
    tag: u64,
    ignore: u64,
    timeout_ns: i64,
    out_message: *mut u64,
    out_status: *mut Status,
) -> i32 {
    let probe = |endpoint: &mut Lent<'_>, from, tag| {
        endpoint.mprobe(context, from, tag, time_left(timeout_ns)).map(Some)
    };
    // SAFETY: the caller's arguments.
    unsafe { take(endpoint, (rank, tag, ignore), (out_message, out_status), probe) }
}

/// Receives a message that a probe took out, and waits for its bytes (MPI_Mrecv).
///
/// - `endpoint`: the endpoint that it was probed on.
/// - `message`: from `nemesia_endpoint_improbe` or `nemesia_endpoint_mprobe`.
/// - `capacity`: bytes of room at `out_buffer`.
/// - `out_buffer`: where the message goes; may be NULL if `capacity` is 0. After an error its contents are unspecified.
/// - `out_status`: written on success and with NEMESIA_ERR_TRUNCATED; may be NULL.
///
/// Returns: NEMESIA_OK; NEMESIA_ERR_TRUNCATED if the message was longer, and what fits was received; NEMESIA_ERR_STALE
/// (no such message, or it was received), _ARGUMENT, _PEER_FAILED or _PANIC.
/// Ownership: the message is gone, unless NEMESIA_ERR_ARGUMENT is returned; the buffer is the caller's again.
/// Threads: one at a time, or any number with NEMESIA_THREADS_MULTIPLE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nemesia_endpoint_mrecv(
    endpoint: *mut Endpoint,
    message: u64,
    capacity: usize,
    out_buffer: *mut c_void,
    out_status: *mut Status,
) -> i32 {
    let work = |mut endpoint: Lent<'_>| {
        // SAFETY: the caller's pointer, null or good.
        let out = unsafe { Out::optional(out_status) };
        // SAFETY: the caller's buffer, which is nobody else's until this returns.
        let buf = unsafe { room(out_buffer, capacity, "out_buffer") }?;
        let message = endpoint.with(|endpoint| Ok::<_, Fault>(named_message(endpoint, message)))?;
        deliver(endpoint.mrecv(message, buf), out)
    };
    // SAFETY: the caller's endpoint, or null.
    unsafe { blocking_on(endpoint, work) }
}

/// Starts receiving a message that a probe took out. `nemesia_endpoint_test` or `nemesia_endpoint_wait` completes it
/// (MPI_Imrecv).
///
/// - `endpoint`: the endpoint that it was probed on.
/// - `message`: from `nemesia_endpoint_improbe` or `nemesia_endpoint_mprobe`.
/// - `capacity`: bytes of room at `out_buffer`.
/// - `out_buffer`: where the message goes; may be NULL if `capacity` is 0.
/// - `out_request`: written on success.
///
/// Returns: NEMESIA_OK; NEMESIA_ERR_STALE (no such message, or it was received), _ARGUMENT or _PANIC.
/// Ownership: the message is gone, unless NEMESIA_ERR_ARGUMENT is returned. The request holds the buffer, which must
/// stay, and which nobody else uses, until the request is complete or the endpoint is closed.
/// Threads: one at a time, or any number with NEMESIA_THREADS_MULTIPLE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nemesia_endpoint_imrecv(
    endpoint: *mut Endpoint,
    message: u64,
    capacity: usize,
    out_buffer: *mut c_void,
    out_request: *mut u64,
) -> i32 {
    let work = |endpoint: &mut Inner| {
        // SAFETY: the caller's pointer, null or good.
        let out = unsafe { Out::required(out_request, "out_request") }?;
        check_buffer(out_buffer.cast::<u8>(), capacity, "out_buffer")?;
        let message = named_message(endpoint, message);
        // SAFETY: the caller's promise: the buffer stays until the request is complete.
        out.write(number(unsafe { endpoint.imrecv(message, out_buffer.cast(), capacity) }?));
        Ok(NEMESIA_OK)
    };
    // SAFETY: the caller's endpoint, or null.
    unsafe { on(endpoint, work) }
}

/// What both matched probes do.
///
/// # Safety
/// The endpoint is null, or open and not used by anybody else until this returns; the outputs are null or good.
unsafe fn take(
    endpoint: *mut Endpoint,
    (rank, value, ignore): (i32, u64, u64),
    (out_message, out_status): (*mut u64, *mut Status),
    probe: impl FnOnce(&mut Lent<'_>, Source, Tag) -> Result<Option<Message>, Error>,
) -> i32 {
    let work = |mut endpoint: Lent<'_>| -> Result<i32, Fault> {
        // SAFETY: the caller's promise.
        let (message, status) =
            unsafe { (Out::required(out_message, "out_message")?, Out::optional(out_status)) };
        let from = endpoint.with(|endpoint| source(endpoint, rank))?;
        let found = probe(&mut endpoint, from, Tag::Masked { value, ignore })?;
        let Some(found) = found else { return Ok(NEMESIA_PENDING) };
        let code = deliver(Ok(found.status()), status)?;
        message.write(number(nemesia::Request::from_bits(found.into_bits())));
        Ok(code)
    };
    // SAFETY: the caller's promise.
    unsafe { blocking_on(endpoint, work) }
}

/// The message of a number: messages are numbered as requests are.
fn named_message(endpoint: &Inner, message: u64) -> Message {
    endpoint.message(named(message).to_bits())
}
