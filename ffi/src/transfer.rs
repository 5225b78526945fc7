//! Sends and receives, and their requests.

use std::ffi::c_void;
use std::time::{Duration, Instant};

use nemesia::{Endpoint as Inner, Error, Request, Source, Tag, Truncation};

use crate::boundary::{Out, bytes, check_buffer, room};
use crate::endpoint::{Endpoint, blocking_on, on};
use crate::lent::Lent;
use crate::now::{gathers, irecv_now, recv_now, send_now, send_short_now};
use crate::rank::{rank_in, rank_of};
use crate::request::{named, number};
use crate::status::{Fault, NEMESIA_ERR_TRUNCATED, NEMESIA_OK, NEMESIA_PENDING, timed_out};

/// In place of a sender's rank: a receive from every rank, including this process.
pub const NEMESIA_ANY_SOURCE: i32 = -1;
/// The ignore mask of a receive that matches every tag; with 0 a receive matches its own tag only.
pub const NEMESIA_ANY_TAG: u64 = 0xffff_ffff_ffff_ffff;
/// A request that was complete when it started, as most sends are. It can be tested and waited for any number
/// of times, always with success. A variable that holds no request may be set to this value.
pub const NEMESIA_REQUEST_NONE: u64 = 0;
/// The value that `nemesia_endpoint_wait_all` writes in place of a completed request. A later call skips it.
pub const NEMESIA_REQUEST_DONE: u64 = 0xffff_ffff_ffff_ffff;

const _: () = assert!(NEMESIA_REQUEST_DONE == crate::request::DONE);

/// The result of a message.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// NEMESIA_OK or NEMESIA_ERR_TRUNCATED; from `nemesia_endpoint_wait_all` any code, NEMESIA_PENDING included.
    pub code: i32,
    /// Receive: the sender. Send: unspecified.
    pub rank: i32,
    /// Receive: the message's tag. Send: unspecified.
    pub tag: u64,
    /// Receive: the number of bytes received. Send: unspecified.
    pub len: u64,
    /// Receive: the length of the message, larger than `len` if it was truncated. Send: unspecified.
    pub total: u64,
    /// Receive, probe: the immediate data (`nemesia_operation`); 0 if there are none. Send: unspecified.
    pub immediate: u64,
    /// Receive, probe: 1 if the message has immediate data, else 0. Send: unspecified.
    pub has_immediate: u64,
}

/// Sends a message and waits until the caller may reuse the buffer. The receiver need not be ready.
/// Equivalent to `nemesia_endpoint_isend` and `nemesia_endpoint_wait`.
///
/// - `endpoint`: an open endpoint.
/// - `rank`: the receiver; it may be this process itself.
/// - `tag`: the value that the receiver matches.
/// - `buffer`, `len`: the message; `buffer` may be NULL if `len` is 0.
///
/// Returns: NEMESIA_OK; NEMESIA_ERR_ARGUMENT, _RANK, _PEER_FAILED, _REQUESTS, _UNEXPECTED_FULL (a message to
/// this process itself, for which there is no memory; with NEMESIA_THREADS_MULTIPLE the call waits for
/// another thread) or _PANIC. After an error no message was sent.
/// Ownership: the caller may reuse the buffer after the return.
/// Threads: one at a time, or any number with NEMESIA_THREADS_MULTIPLE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nemesia_endpoint_send(
    endpoint: *mut Endpoint,
    rank: i32,
    tag: u64,
    buffer: *const c_void,
    len: usize,
) -> i32 {
    // SAFETY: the caller's endpoint, or null, and a buffer that does not change before this function returns.
    if unsafe { send_short_now(endpoint, rank, tag, buffer, len) } {
        return NEMESIA_OK;
    }
    // SAFETY: the caller's promise.
    unsafe { send_any(endpoint, rank, tag, buffer, len) }
}

/// Continues [`nemesia_endpoint_send`]. A separate function: thus the critical path saves no registers.
///
/// # Safety
/// As [`nemesia_endpoint_send`].
#[inline(never)]
unsafe fn send_any(endpoint: *mut Endpoint, rank: i32, tag: u64, buffer: *const c_void, len: usize) -> i32 {
    // SAFETY: the caller's endpoint, or null, and a buffer that does not change before this function returns.
    let left = unsafe { send_now(endpoint, rank, tag, buffer, len) };
    if left == Some(true) {
        return NEMESIA_OK;
    }
    let work = |mut endpoint: Lent<'_>| {
        // SAFETY: the caller's buffer, which does not change before this function returns.
        let bytes = unsafe { bytes(buffer, len, "buffer") }?;
        let to = endpoint.rank_in(rank)?;
        endpoint.send(to, tag, bytes, left.is_some())?;
        Ok(NEMESIA_OK)
    };
    // SAFETY: the caller's endpoint, or null.
    unsafe { blocking_on(endpoint, work) }
}

/// Receives the first message that matches, and waits for it.
///
/// - `endpoint`: an open endpoint.
/// - `rank`: the sender, or NEMESIA_ANY_SOURCE.
/// - `tag`, `ignore`: the message's tag must equal `tag` in every bit that is 0 in `ignore`.
/// - `capacity`: the size of `out_buffer` in bytes.
/// - `out_buffer`: receives the message; may be NULL if `capacity` is 0. After an error its contents are
///   unspecified.
/// - `out_status`: written on success and with NEMESIA_ERR_TRUNCATED; may be NULL.
///
/// Returns: NEMESIA_OK; NEMESIA_ERR_TRUNCATED if the message is longer, and the part that fits was received;
/// NEMESIA_ERR_ARGUMENT, _RANK, _PEER_FAILED, _REQUESTS, _UNEXPECTED_FULL or _PANIC.
/// Ownership: the caller may reuse the buffer after the return.
/// Threads: one at a time, or any number with NEMESIA_THREADS_MULTIPLE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nemesia_endpoint_recv(
    endpoint: *mut Endpoint,
    rank: i32,
    tag: u64,
    ignore: u64,
    capacity: usize,
    out_buffer: *mut c_void,
    out_status: *mut Status,
) -> i32 {
    // SAFETY: the caller's endpoint, or null, and a buffer that no other code uses before this function
    // returns.
    if let Some(status) = unsafe { recv_now(endpoint, source_now(rank), (tag, ignore), out_buffer, capacity) }
    {
        // SAFETY: the caller's pointer, null or valid.
        unsafe { Out::optional(out_status) }.write(received(status));
        return NEMESIA_OK;
    }
    // SAFETY: the caller's promise.
    unsafe { recv_any(endpoint, rank, tag, ignore, capacity, out_buffer, out_status) }
}

/// Continues [`nemesia_endpoint_recv`]. A separate function: thus the critical path saves no registers.
///
/// # Safety
/// As [`nemesia_endpoint_recv`].
#[inline(never)]
unsafe fn recv_any(
    endpoint: *mut Endpoint,
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
        deliver(endpoint.recv(from, Tag::Masked { value: tag, ignore }, buf), out)
    };
    // SAFETY: the caller's endpoint, or null.
    unsafe { blocking_on(endpoint, work) }
}

/// Starts a send. `nemesia_endpoint_test` or `nemesia_endpoint_wait` completes it.
///
/// - `endpoint`: an open endpoint.
/// - `rank`: the receiver; it may be this process itself.
/// - `tag`: the value that the receiver matches.
/// - `buffer`, `len`: the message; `buffer` may be NULL if `len` is 0.
/// - `out_request`: written on success; NEMESIA_REQUEST_NONE if the send is complete already.
///
/// Returns: NEMESIA_OK; NEMESIA_ERR_ARGUMENT, _RANK, _PEER_FAILED, _REQUESTS or _PANIC. After an error no
/// message was sent.
/// Ownership: the request holds the buffer. It must not change until the request is complete or the endpoint
/// is closed. The request belongs to this endpoint.
/// Threads: one at a time, or any number with NEMESIA_THREADS_MULTIPLE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nemesia_endpoint_isend(
    endpoint: *mut Endpoint,
    rank: i32,
    tag: u64,
    buffer: *const c_void,
    len: usize,
    out_request: *mut u64,
) -> i32 {
    // SAFETY: the caller's endpoint, or null, and a buffer that does not change.
    if !out_request.is_null() && unsafe { send_short_now(endpoint, rank, tag, buffer, len) } {
        // SAFETY: the caller's pointer, which is not null.
        unsafe { out_request.write(NEMESIA_REQUEST_NONE) };
        return NEMESIA_OK;
    }
    // SAFETY: the caller's promise.
    unsafe { isend_any(endpoint, rank, tag, buffer, len, out_request) }
}

/// Continues [`nemesia_endpoint_isend`]. A separate function: thus the critical path saves no registers.
///
/// # Safety
/// As [`nemesia_endpoint_isend`].
#[inline(never)]
unsafe fn isend_any(
    endpoint: *mut Endpoint,
    rank: i32,
    tag: u64,
    buffer: *const c_void,
    len: usize,
    out_request: *mut u64,
) -> i32 {
    // SAFETY: the caller's endpoint, or null.
    let waits = out_request.is_null() || unsafe { gathers(endpoint, rank, len) };
    let left = match waits {
        true => None,
        // SAFETY: the caller's endpoint, or null, and a buffer that does not change.
        false => unsafe { send_now(endpoint, rank, tag, buffer, len) },
    };
    if left == Some(true) {
        // SAFETY: the caller's pointer, which is not null.
        unsafe { out_request.write(NEMESIA_REQUEST_NONE) };
        return NEMESIA_OK;
    }
    let work = |endpoint: &mut Inner| {
        // SAFETY: the caller's pointer, null or valid.
        let out = unsafe { Out::required(out_request, "out_request") }?;
        // SAFETY: the caller's promise: the buffer does not change until the request is complete.
        out.write(number(unsafe { isend(endpoint, rank, tag, buffer, len, left.is_some()) }?));
        Ok(NEMESIA_OK)
    };
    // SAFETY: the caller's endpoint, or null.
    unsafe { on(endpoint, work) }
}

/// Posts a receive. `nemesia_endpoint_test` or `nemesia_endpoint_wait` completes it.
///
/// - `endpoint`: an open endpoint.
/// - `rank`: the sender, or NEMESIA_ANY_SOURCE.
/// - `tag`, `ignore`: the message's tag must equal `tag` in every bit that is 0 in `ignore`.
/// - `capacity`: the size of `out_buffer` in bytes.
/// - `out_buffer`: receives the message; may be NULL if `capacity` is 0.
/// - `out_request`: written on success.
///
/// Returns: NEMESIA_OK; NEMESIA_ERR_ARGUMENT, _RANK, _PEER_FAILED, _REQUESTS or _PANIC. After an error no
/// receive was posted.
/// Ownership: the request holds the buffer. It must stay valid and unused until the request is complete or
/// cancelled, or the endpoint is closed. The request belongs to this endpoint.
/// Threads: one at a time, or any number with NEMESIA_THREADS_MULTIPLE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nemesia_endpoint_irecv(
    endpoint: *mut Endpoint,
    rank: i32,
    tag: u64,
    ignore: u64,
    capacity: usize,
    out_buffer: *mut c_void,
    out_request: *mut u64,
) -> i32 {
    if !out_request.is_null()
        // SAFETY: the caller's endpoint, or null, and a buffer that stays valid until the request is
        // complete.
        && let Some(request) = unsafe { irecv_now(endpoint, source_now(rank), (tag, ignore), out_buffer, capacity) }
    {
        // SAFETY: the caller's pointer, which is not null.
        unsafe { out_request.write(number(request)) };
        return NEMESIA_OK;
    }
    // SAFETY: the caller's promise.
    unsafe { irecv_any(endpoint, rank, tag, ignore, capacity, out_buffer, out_request) }
}

/// Continues [`nemesia_endpoint_irecv`]. A separate function: thus the critical path saves no registers.
///
/// # Safety
/// As [`nemesia_endpoint_irecv`].
#[inline(never)]
unsafe fn irecv_any(
    endpoint: *mut Endpoint,
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
        // SAFETY: the caller's promise: the buffer stays valid until the request is complete.
        out.write(number(unsafe { irecv(endpoint, rank, (tag, ignore), out_buffer, capacity) }?));
        Ok(NEMESIA_OK)
    };
    // SAFETY: the caller's endpoint, or null.
    unsafe { on(endpoint, work) }
}

/// Makes progress once, and returns whether a request is complete. Never blocks, but may yield the core as
/// `nemesia_endpoint_progress` does.
///
/// - `endpoint`: the endpoint that the request was started on.
/// - `request`: from a function that starts an operation; its name begins with `nemesia_endpoint_i`.
/// - `out_status`: written on success (not with NEMESIA_PENDING) and with NEMESIA_ERR_TRUNCATED; may be NULL.
///
/// Returns: NEMESIA_OK if it is complete; NEMESIA_PENDING if not; NEMESIA_ERR_TRUNCATED if the message is
/// longer, and the part that fits was received; NEMESIA_ERR_PEER_FAILED or _CANCELLED if it cannot succeed;
/// NEMESIA_ERR_KEY, _BOUNDS, _ACCESS, _ALIGNMENT or _UNDEFINED for a one-sided operation; NEMESIA_ERR_STALE,
/// _ARGUMENT or _PANIC.
/// Ownership: the request ends, and the caller may reuse its buffer, unless NEMESIA_PENDING is returned.
/// Threads: one at a time, or any number with NEMESIA_THREADS_MULTIPLE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nemesia_endpoint_test(
    endpoint: *mut Endpoint,
    request: u64,
    out_status: *mut Status,
) -> i32 {
    let work = |endpoint: &mut Inner| {
        // SAFETY: the caller's pointer, null or valid.
        let out = unsafe { Out::optional(out_status) };
        match endpoint.test(named(request)).transpose() {
            None => Ok(NEMESIA_PENDING),
            Some(outcome) => deliver(outcome, out),
        }
    };
    // SAFETY: the caller's endpoint, or null.
    unsafe { on(endpoint, work) }
}

/// Waits until a request is complete: spins, then sleeps.
///
/// - `endpoint`: the endpoint that the request was started on.
/// - `request`: from a function that starts an operation; its name begins with `nemesia_endpoint_i`.
/// - `timeout_ns`: the time limit in nanoseconds; negative: no limit; 0: one attempt.
/// - `out_status`: written on success and with NEMESIA_ERR_TRUNCATED; may be NULL.
///
/// Returns: NEMESIA_OK if it is complete; NEMESIA_ERR_TIMEOUT, or _UNEXPECTED_FULL if other messages must be
/// received first: the request is still in progress; NEMESIA_ERR_TRUNCATED, _PEER_FAILED, _CANCELLED, _KEY,
/// _BOUNDS, _ACCESS, _ALIGNMENT, _UNDEFINED, _STALE, _ARGUMENT or _PANIC, as `nemesia_endpoint_test`.
/// Ownership: the request ends, and the caller may reuse its buffer, unless it is still in progress.
/// Threads: one at a time, or any number with NEMESIA_THREADS_MULTIPLE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nemesia_endpoint_wait(
    endpoint: *mut Endpoint,
    request: u64,
    timeout_ns: i64,
    out_status: *mut Status,
) -> i32 {
    let work = |mut endpoint: Lent<'_>| {
        // SAFETY: the caller's pointer, null or valid.
        let out = unsafe { Out::optional(out_status) };
        if timeout_ns == 0 {
            let outcome = endpoint.test(named(request)).transpose();
            return outcome.map_or_else(|| Ok(timed_out()), |outcome| deliver(outcome, out));
        }
        deliver(wait(&mut endpoint, named(request), &|_| None, limit(timeout_ns)), out)
    };
    // SAFETY: the caller's endpoint, or null.
    unsafe { blocking_on(endpoint, work) }
}

/// Cancels an operation that has not begun: a receive that no message has matched yet, a wait for
/// notifications, or a send of which nothing has left this process. Later sends to the same rank keep their
/// order.
///
/// - `endpoint`: the endpoint that the request was started on.
/// - `request`: any request, also one whose completion enters the completion queue.
/// - `out_cancelled`: whether the request was cancelled, written on success. If so, the request still exists
///   and completes with NEMESIA_ERR_CANCELLED. If not, it has begun or is complete: test it or wait for it.
///
/// Returns: NEMESIA_OK; NEMESIA_ERR_ARGUMENT or _PANIC.
/// Ownership: the caller may reuse the buffer of a cancelled operation at once.
/// Threads: one at a time, or any number with NEMESIA_THREADS_MULTIPLE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nemesia_endpoint_cancel(
    endpoint: *mut Endpoint,
    request: u64,
    out_cancelled: *mut bool,
) -> i32 {
    let work = |endpoint: &mut Inner| {
        // SAFETY: the caller's pointer, null or valid.
        let out = unsafe { Out::required(out_cancelled, "out_cancelled") }?;
        out.write(endpoint.cancel(named(request)));
        Ok(NEMESIA_OK)
    };
    // SAFETY: the caller's endpoint, or null.
    unsafe { on(endpoint, work) }
}

/// Delivers messages that have arrived and sends pending ones. Does bounded work and never blocks.
/// If there are more processes than cores, this function, `nemesia_endpoint_test` and the probes yield the core after
/// a few calls in a row that find nothing, unless NEMESIA_SPIN is set. They never sleep.
///
/// - `endpoint`: an open endpoint.
/// - `out_packets`: the number of packets moved; 0 if there was no work. Written on success; may be NULL.
///
/// Returns: NEMESIA_OK; NEMESIA_ERR_ARGUMENT or _PANIC.
/// Threads: one at a time, or any number with NEMESIA_THREADS_MULTIPLE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nemesia_endpoint_progress(endpoint: *mut Endpoint, out_packets: *mut usize) -> i32 {
    let work = |endpoint: &mut Inner| {
        // SAFETY: the caller's pointer, null or valid.
        let out = unsafe { Out::optional(out_packets) };
        out.write(endpoint.progress());
        Ok(NEMESIA_OK)
    };
    // SAFETY: the caller's endpoint, or null.
    unsafe { on(endpoint, work) }
}

/// Starts a send. `tried` states that [`send_now`] has refused it.
///
/// # Safety
/// The buffer is the caller's, and does not change until the request is complete.
#[inline]
unsafe fn isend(
    endpoint: &mut Inner,
    rank: i32,
    tag: u64,
    buffer: *const c_void,
    len: usize,
    tried: bool,
) -> Result<Request, Fault> {
    check_buffer(buffer.cast::<u8>(), len, "buffer")?;
    let to = rank_in(endpoint, rank)?;
    if tried {
        // SAFETY: the caller's promise.
        return Ok(unsafe { endpoint.isend_queued(to, tag, buffer.cast(), len) }?);
    }
    // SAFETY: the caller's promise.
    Ok(unsafe { endpoint.isend(to, tag, buffer.cast(), len) }?)
}

/// # Safety
/// The buffer is the caller's, counts as initialised (as all memory of C does), and stays valid until the
/// request is complete.
#[inline]
pub(crate) unsafe fn irecv(
    endpoint: &mut Inner,
    rank: i32,
    (value, ignore): (u64, u64),
    buffer: *mut c_void,
    capacity: usize,
) -> Result<Request, Fault> {
    check_buffer(buffer.cast::<u8>(), capacity, "out_buffer")?;
    let from = source(endpoint, rank)?;
    // SAFETY: the caller's promise.
    Ok(unsafe { endpoint.irecv(from, Tag::Masked { value, ignore }, buffer.cast(), capacity) }?)
}

/// Returns the source of a receive.
pub(crate) fn source(endpoint: &Inner, rank: i32) -> Result<Source, Fault> {
    match rank {
        NEMESIA_ANY_SOURCE => Ok(Source::Any),
        rank => Ok(Source::Rank(rank_in(endpoint, rank)?)),
    }
}

/// Returns the source of a receive; a negative rank becomes one that does not exist.
#[inline(always)]
const fn source_now(rank: i32) -> Source {
    match rank {
        NEMESIA_ANY_SOURCE => Source::Any,
        rank => Source::Rank(rank as u32 as usize),
    }
}

/// The time limit of a wait.
#[derive(Clone, Copy)]
pub(crate) enum Limit {
    Never,
    Until(Instant),
}

pub(crate) fn limit(timeout_ns: i64) -> Limit {
    match time_left(timeout_ns) {
        None => Limit::Never,
        Some(timeout) => Limit::Until(Instant::now() + timeout),
    }
}

/// Returns the time limit that the caller gives; `None` if there is none.
pub(crate) fn time_left(timeout_ns: i64) -> Option<Duration> {
    u64::try_from(timeout_ns).ok().map(Duration::from_nanos)
}

/// Waits for a request, before other requests.
#[inline]
pub(crate) fn wait(
    endpoint: &mut Lent<'_>,
    request: Request,
    others: &dyn Fn(usize) -> Option<Request>,
    limit: Limit,
) -> Result<nemesia::Status, Error> {
    let Limit::Until(deadline) = limit else { return endpoint.wait(request, others, None) };
    let left = deadline.saturating_duration_since(Instant::now());
    endpoint.wait(request, others, Some(left))
}

/// Returns the status of a success.
#[inline]
pub(crate) fn received(nemesia::Status { rank, tag, len, immediate }: nemesia::Status) -> Status {
    let (rank, len, has_immediate) = (rank_of(rank), len as u64, immediate.is_some().into());
    Status { code: NEMESIA_OK, rank, tag, len, total: len, immediate: immediate.unwrap_or(0), has_immediate }
}

/// Returns the status of a message that was received in part.
pub(crate) fn truncated(truncation: &Truncation) -> Status {
    let (part, total) = (truncation.status, truncation.message);
    let rank = part.peer as usize;
    let part = nemesia::Status { rank, tag: part.tag, len: part.len, immediate: part.immediate };
    Status { code: NEMESIA_ERR_TRUNCATED, total, ..received(part) }
}

/// Writes the status of a message that was received, completely or in part, and returns the code.
pub(crate) fn deliver(outcome: Result<nemesia::Status, Error>, out: Out<Status>) -> Result<i32, Fault> {
    let error = match outcome {
        Err(error) => error,
        Ok(status) => {
            out.write(received(status));
            return Ok(NEMESIA_OK);
        }
    };
    if let Error::Truncated(truncation) = &error {
        out.write(truncated(truncation));
    }
    Err(error.into())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    #[test]
    fn the_request_that_was_complete_when_it_started_is_none() {
        let mut endpoint = alone();
        // SAFETY: an empty message needs no buffer.
        let request = unsafe { isend(&mut endpoint, 0, 1, std::ptr::null(), 0, false) }.unwrap();
        assert_eq!(number(request), NEMESIA_REQUEST_NONE);
        assert_eq!(number(named(77)), 77);
        assert!(matches!(endpoint.test(named(NEMESIA_REQUEST_DONE)), Err(Error::Stale)));
    }

    pub(crate) fn alone() -> Inner {
        let exchange = nemesia::bootstrap::Singleton::new();
        Inner::open_with(&nemesia::Config::default(), Box::new(exchange)).unwrap()
    }
}
