//! Probes: examining messages before they are received.

use std::ffi::c_void;

use nemesia::{Endpoint as Inner, Error, Message, Source, Tag};

use crate::boundary::{Out, check_buffer, room};
use crate::endpoint::{Endpoint, blocking_on, on};
use crate::lent::Lent;
use crate::request::{named, number};
use crate::status::{Fault, NEMESIA_OK, NEMESIA_PENDING};
use crate::transfer::{Status, deliver, source, time_left};

/// Probes for the first message that a receive with these arguments would match, and leaves it in the queue
/// (MPI_Iprobe). Makes progress if there is none; never blocks.
///
/// - `endpoint`: an open endpoint.
/// - `context`: the matching context; functions without a context use 0.
/// - `rank`: the sender, or NEMESIA_ANY_SOURCE.
/// - `tag`, `ignore`: the message's tag must equal `tag` in every bit that is 0 in `ignore`.
/// - `out_status`: sender, tag and total length of the message, written on success (not with
///   NEMESIA_PENDING); may be NULL.
///
/// Returns: NEMESIA_OK if there is a message; NEMESIA_PENDING if not; NEMESIA_ERR_ARGUMENT, _RANK,
/// _PEER_FAILED (the sender has failed and has left no such message) or _PANIC.
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
        // SAFETY: the caller's pointer, null or valid.
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

/// Probes as `nemesia_endpoint_iprobe` does, and waits for the message: spins, then sleeps (MPI_Probe).
///
/// - `endpoint`: an open endpoint.
/// - `context`: the matching context; functions without a context use 0.
/// - `rank`: the sender, or NEMESIA_ANY_SOURCE.
/// - `tag`, `ignore`: the message's tag must equal `tag` in every bit that is 0 in `ignore`.
/// - `timeout_ns`: the time limit in nanoseconds; negative: no limit; 0: one attempt.
/// - `out_status`: sender, tag and total length of the message, written on success; may be NULL.
///
/// Returns: NEMESIA_OK; NEMESIA_ERR_TIMEOUT; NEMESIA_ERR_UNEXPECTED_FULL (there is no memory for it: receive
/// other messages first), _ARGUMENT, _RANK, _PEER_FAILED or _PANIC.
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
        // SAFETY: the caller's pointer, null or valid.
        let out = unsafe { Out::optional(out_status) };
        let from = endpoint.with(|endpoint| source(endpoint, rank))?;
        let tag = Tag::Masked { value: tag, ignore };
        deliver(endpoint.probe(context, from, tag, time_left(timeout_ns)), out)
    };
    // SAFETY: the caller's endpoint, or null.
    unsafe { blocking_on(endpoint, work) }
}

/// Probes as `nemesia_endpoint_iprobe` does, and removes the message from the queue: no other receive or
/// probe finds it (MPI_Improbe).
///
/// - `endpoint`: an open endpoint.
/// - `context`: the matching context; functions without a context use 0.
/// - `rank`: the sender, or NEMESIA_ANY_SOURCE.
/// - `tag`, `ignore`: the message's tag must equal `tag` in every bit that is 0 in `ignore`.
/// - `out_message`: the message, for one `nemesia_endpoint_mrecv` or `nemesia_endpoint_imrecv`; written on
///   success (not with NEMESIA_PENDING).
/// - `out_status`: sender, tag and total length of the message, written together with `out_message`; may be
///   NULL.
///
/// Returns: NEMESIA_OK if there is a message; NEMESIA_PENDING if not; NEMESIA_ERR_ARGUMENT, _RANK,
/// _PEER_FAILED, _REQUESTS (each removed message counts as one) or _PANIC.
/// Ownership: the caller must receive the message, with a capacity of 0 if it is not wanted. Until then the
/// message takes the memory of an unexpected message and of a request.
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

/// Probes as `nemesia_endpoint_improbe` does, and waits for the message: spins, then sleeps (MPI_Mprobe).
///
/// - `endpoint`: an open endpoint.
/// - `context`: the matching context; functions without a context use 0.
/// - `rank`: the sender, or NEMESIA_ANY_SOURCE.
/// - `tag`, `ignore`: the message's tag must equal `tag` in every bit that is 0 in `ignore`.
/// - `timeout_ns`: the time limit in nanoseconds; negative: no limit; 0: one attempt.
/// - `out_message`: the message, for one `nemesia_endpoint_mrecv` or `nemesia_endpoint_imrecv`; written on
///   success.
/// - `out_status`: sender, tag and total length of the message, written on success; may be NULL.
///
/// Returns: NEMESIA_OK; NEMESIA_ERR_TIMEOUT; NEMESIA_ERR_UNEXPECTED_FULL (there is no memory for it: receive
/// other messages first), _ARGUMENT, _RANK, _PEER_FAILED, _REQUESTS or _PANIC.
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

/// Receives a message that a probe removed, and waits for its bytes (MPI_Mrecv).
///
/// - `endpoint`: the endpoint of the probe.
/// - `message`: from `nemesia_endpoint_improbe` or `nemesia_endpoint_mprobe`.
/// - `capacity`: the size of `out_buffer` in bytes.
/// - `out_buffer`: receives the message; may be NULL if `capacity` is 0. After an error its contents are
///   unspecified.
/// - `out_status`: written on success and with NEMESIA_ERR_TRUNCATED; may be NULL.
///
/// Returns: NEMESIA_OK; NEMESIA_ERR_TRUNCATED if the message is longer, and the part that fits was received;
/// NEMESIA_ERR_STALE (no such message, or it was received before), _ARGUMENT, _PEER_FAILED or _PANIC.
/// Ownership: the call takes the message, unless it returns NEMESIA_ERR_ARGUMENT. The caller may reuse the
/// buffer.
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
        // SAFETY: the caller's pointer, null or valid.
        let out = unsafe { Out::optional(out_status) };
        // SAFETY: the caller's buffer, which no other code uses before this function returns.
        let buf = unsafe { room(out_buffer, capacity, "out_buffer") }?;
        let message = endpoint.with(|endpoint| Ok::<_, Fault>(named_message(endpoint, message)))?;
        deliver(endpoint.mrecv(message, buf), out)
    };
    // SAFETY: the caller's endpoint, or null.
    unsafe { blocking_on(endpoint, work) }
}

/// Starts to receive a message that a probe removed. `nemesia_endpoint_test` or `nemesia_endpoint_wait`
/// completes it (MPI_Imrecv).
///
/// - `endpoint`: the endpoint of the probe.
/// - `message`: from `nemesia_endpoint_improbe` or `nemesia_endpoint_mprobe`.
/// - `capacity`: the size of `out_buffer` in bytes.
/// - `out_buffer`: receives the message; may be NULL if `capacity` is 0.
/// - `out_request`: written on success.
///
/// Returns: NEMESIA_OK; NEMESIA_ERR_STALE (no such message, or it was received before), _ARGUMENT or _PANIC.
/// Ownership: the call takes the message, unless it returns NEMESIA_ERR_ARGUMENT. The request holds the
/// buffer. It must stay valid and unused until the request is complete or the endpoint is closed.
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
        // SAFETY: the caller's pointer, null or valid.
        let out = unsafe { Out::required(out_request, "out_request") }?;
        check_buffer(out_buffer.cast::<u8>(), capacity, "out_buffer")?;
        let message = named_message(endpoint, message);
        // SAFETY: the caller's promise: the buffer stays valid until the request is complete.
        out.write(number(unsafe { endpoint.imrecv(message, out_buffer.cast(), capacity) }?));
        Ok(NEMESIA_OK)
    };
    // SAFETY: the caller's endpoint, or null.
    unsafe { on(endpoint, work) }
}

/// Implements both matched probes.
///
/// # Safety
/// The endpoint is null, or open and not used by other code until this returns; the outputs are null or
/// valid.
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

/// Returns the message of a number: messages are numbered as requests are.
pub(crate) fn named_message(endpoint: &Inner, message: u64) -> Message {
    endpoint.message(named(message).to_bits())
}
