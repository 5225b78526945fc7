//! Sends and receives, and the requests that stand for them.

use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::time::{Duration, Instant};

use nemesia::{Endpoint as Inner, Error, Request, Source, Tag};

use crate::boundary::{Out, bytes, check_buffer, lent, room};
use crate::endpoint::{Endpoint, blocking_on, on, rank_in, rank_of};
use crate::lent::Lent;
use crate::now::{irecv_now, recv_now, send_now, send_word_now};
use crate::status::{
    Fault, NEMESIA_ERR_TIMEOUT, NEMESIA_ERR_TRUNCATED, NEMESIA_ERR_UNEXPECTED_FULL, NEMESIA_OK,
    NEMESIA_PENDING,
};

/// A receive from every rank, this process's own included.
pub const NEMESIA_ANY_SOURCE: i32 = -1;
/// The ignore mask of a receive that takes every tag; 0 is that of one that takes exactly its own.
pub const NEMESIA_ANY_TAG: u64 = 0xffff_ffff_ffff_ffff;
/// A request that was complete when it started, as most sends are. It can be tested and waited for any number of
/// times, always with success; a variable that holds no request may be set to it.
pub const NEMESIA_REQUEST_NONE: u64 = 0;
/// What `nemesia_endpoint_wait_all` leaves in place of a request that it has completed, and passes over when it is
/// called again.
pub const NEMESIA_REQUEST_DONE: u64 = 0xffff_ffff_ffff_ffff;

/// Requests are numbered so that the request that was complete when it started is 0.
const FIRST: u64 = 1 << 32;

/// What came of a message.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// NEMESIA_OK or NEMESIA_ERR_TRUNCATED; from `nemesia_endpoint_wait_all` any code, NEMESIA_PENDING included.
    pub code: i32,
    /// Receive: who sent it. Send: unspecified.
    pub rank: i32,
    /// Receive: the message's tag. Send: unspecified.
    pub tag: u64,
    /// Receive: bytes received. Send: unspecified.
    pub len: u64,
    /// Receive: bytes of the message, more than `len` if it was truncated. Send: unspecified.
    pub total: u64,
}

/// Sends a message and waits until its bytes have left the buffer. The receiver need not be ready. The same as
/// `nemesia_endpoint_isend` and `nemesia_endpoint_wait`.
///
/// - `endpoint`: an open endpoint.
/// - `rank`: the receiver; it may be this process itself.
/// - `tag`: what the receiver matches it by.
/// - `buffer`, `len`: the message; `buffer` may be NULL if `len` is 0.
///
/// Returns: NEMESIA_OK; NEMESIA_ERR_ARGUMENT, _RANK, _PEER_FAILED, _REQUESTS, _UNEXPECTED_FULL (a message to this
/// process itself, for which there is no room; with NEMESIA_THREADS_MULTIPLE it waits for another thread) or _PANIC.
/// After an error nothing was sent.
/// Ownership: the buffer is the caller's again when this returns.
/// Threads: one at a time, or any number with NEMESIA_THREADS_MULTIPLE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nemesia_endpoint_send(
    endpoint: *mut Endpoint,
    rank: i32,
    tag: u64,
    buffer: *const c_void,
    len: usize,
) -> i32 {
    // SAFETY: the caller's endpoint, or null, and buffer, which stays as it is until this returns.
    if unsafe { send_word_now(endpoint, rank, tag, buffer, len) } {
        return NEMESIA_OK;
    }
    // SAFETY: the caller's promise.
    unsafe { send_any(endpoint, rank, tag, buffer, len) }
}

/// What [`nemesia_endpoint_send`] does when it is not over after some instructions. Apart, so that the critical path
/// saves no registers.
///
/// # Safety
/// As there.
#[inline(never)]
unsafe fn send_any(endpoint: *mut Endpoint, rank: i32, tag: u64, buffer: *const c_void, len: usize) -> i32 {
    // SAFETY: the caller's endpoint, or null, and buffer, which stays as it is until this returns.
    let left = unsafe { send_now(endpoint, rank, tag, buffer, len) };
    if left == Some(true) {
        return NEMESIA_OK;
    }
    let work = |mut endpoint: Lent<'_>| {
        // SAFETY: the caller's buffer, which stays as it is until this returns.
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
/// - `tag`, `ignore`: the message's tag must agree with `tag` in every bit that `ignore` does not set.
/// - `capacity`: bytes of room at `out_buffer`.
/// - `out_buffer`: where the message goes; may be NULL if `capacity` is 0. After an error its contents are unspecified.
/// - `out_status`: written on success and with NEMESIA_ERR_TRUNCATED; may be NULL.
///
/// Returns: NEMESIA_OK; NEMESIA_ERR_TRUNCATED if the message was longer, and what fits was received;
/// NEMESIA_ERR_ARGUMENT, _RANK, _PEER_FAILED, _REQUESTS, _UNEXPECTED_FULL or _PANIC.
/// Ownership: the buffer is the caller's again when this returns.
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
    // SAFETY: the caller's endpoint, or null, and buffer, which is nobody else's until this returns.
    if let Some(status) = unsafe { recv_now(endpoint, rank, (tag, ignore), out_buffer, capacity) } {
        // SAFETY: the caller's pointer, null or good.
        unsafe { Out::optional(out_status) }.write(received(status));
        return NEMESIA_OK;
    }
    // SAFETY: the caller's promise.
    unsafe { recv_any(endpoint, rank, tag, ignore, capacity, out_buffer, out_status) }
}

/// What [`nemesia_endpoint_recv`] does when it is not over after some instructions. Apart, so that the critical path
/// saves no registers.
///
/// # Safety
/// As there.
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
        // SAFETY: the caller's pointer, null or good.
        let out = unsafe { Out::optional(out_status) };
        // SAFETY: the caller's buffer, which is nobody else's until this returns.
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
/// - `tag`: what the receiver matches it by.
/// - `buffer`, `len`: the message; `buffer` may be NULL if `len` is 0.
/// - `out_request`: written on success; NEMESIA_REQUEST_NONE if the message has left already.
///
/// Returns: NEMESIA_OK; NEMESIA_ERR_ARGUMENT, _RANK, _PEER_FAILED, _REQUESTS or _PANIC. After an error nothing was
/// sent. Ownership: the request holds the buffer, which must stay as it is until the request is complete or the
/// endpoint is closed. The request belongs to this endpoint.
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
    // SAFETY: the caller's endpoint, or null, and buffer, which stays as it is.
    if !out_request.is_null() && unsafe { send_word_now(endpoint, rank, tag, buffer, len) } {
        // SAFETY: the caller's pointer, which is not null.
        unsafe { out_request.write(NEMESIA_REQUEST_NONE) };
        return NEMESIA_OK;
    }
    // SAFETY: the caller's promise.
    unsafe { isend_any(endpoint, rank, tag, buffer, len, out_request) }
}

/// What [`nemesia_endpoint_isend`] does when it is not over after some instructions. Apart, so that the critical path
/// saves no registers.
///
/// # Safety
/// As there.
#[inline(never)]
unsafe fn isend_any(
    endpoint: *mut Endpoint,
    rank: i32,
    tag: u64,
    buffer: *const c_void,
    len: usize,
    out_request: *mut u64,
) -> i32 {
    let left = match out_request.is_null() {
        true => None,
        // SAFETY: the caller's endpoint, or null, and buffer, which stays as it is.
        false => unsafe { send_now(endpoint, rank, tag, buffer, len) },
    };
    if left == Some(true) {
        // SAFETY: the caller's pointer, which is not null.
        unsafe { out_request.write(NEMESIA_REQUEST_NONE) };
        return NEMESIA_OK;
    }
    let work = |endpoint: &mut Inner| {
        // SAFETY: the caller's pointer, null or good.
        let out = unsafe { Out::required(out_request, "out_request") }?;
        // SAFETY: the caller's promise: the buffer stays until the request is complete.
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
/// - `tag`, `ignore`: the message's tag must agree with `tag` in every bit that `ignore` does not set.
/// - `capacity`: bytes of room at `out_buffer`.
/// - `out_buffer`: where the message goes; may be NULL if `capacity` is 0.
/// - `out_request`: written on success.
///
/// Returns: NEMESIA_OK; NEMESIA_ERR_ARGUMENT, _RANK, _PEER_FAILED, _REQUESTS or _PANIC. After an error nothing was
/// posted.
/// Ownership: the request holds the buffer, which must stay, and which nobody else uses, until the request is complete
/// or withdrawn, or the endpoint is closed. The request belongs to this endpoint.
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
        // SAFETY: the caller's endpoint, or null, and buffer, which stays until the request is complete.
        && let Some(request) = unsafe { irecv_now(endpoint, rank, (tag, ignore), out_buffer, capacity) }
    {
        // SAFETY: the caller's pointer, which is not null.
        unsafe { out_request.write(number(request)) };
        return NEMESIA_OK;
    }
    // SAFETY: the caller's promise.
    unsafe { irecv_any(endpoint, rank, tag, ignore, capacity, out_buffer, out_request) }
}

/// What [`nemesia_endpoint_irecv`] does when it is not over after some instructions. Apart, so that the critical path
/// saves no registers.
///
/// # Safety
/// As there.
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
        // SAFETY: the caller's pointer, null or good.
        let out = unsafe { Out::required(out_request, "out_request") }?;
        // SAFETY: the caller's promise: the buffer stays until the request is complete.
        out.write(number(unsafe { irecv(endpoint, rank, (tag, ignore), out_buffer, capacity) }?));
        Ok(NEMESIA_OK)
    };
    // SAFETY: the caller's endpoint, or null.
    unsafe { on(endpoint, work) }
}

/// Makes progress once, and tells whether a request is complete. Never blocks.
///
/// - `endpoint`: the endpoint that the request was started on.
/// - `request`: from a function that starts something: its name begins with `nemesia_endpoint_i`.
/// - `out_status`: written on success (not with NEMESIA_PENDING) and with NEMESIA_ERR_TRUNCATED; may be NULL.
///
/// Returns: NEMESIA_OK if it is complete; NEMESIA_PENDING if not; NEMESIA_ERR_TRUNCATED if the message was longer, and
/// what fits was received; NEMESIA_ERR_PEER_FAILED or _CANCELLED if nothing can come of it; NEMESIA_ERR_KEY, _BOUNDS,
/// _ACCESS, _ALIGNMENT or _UNDEFINED for a one-sided operation; NEMESIA_ERR_STALE, _ARGUMENT or _PANIC.
/// Ownership: the request is gone, and its buffer the caller's again, unless NEMESIA_PENDING is returned.
/// Threads: one at a time, or any number with NEMESIA_THREADS_MULTIPLE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nemesia_endpoint_test(
    endpoint: *mut Endpoint,
    request: u64,
    out_status: *mut Status,
) -> i32 {
    let work = |endpoint: &mut Inner| {
        // SAFETY: the caller's pointer, null or good.
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
/// - `request`: from a function that starts something: its name begins with `nemesia_endpoint_i`.
/// - `timeout_ns`: how long at most, in nanoseconds; negative: for ever; 0: one look, as `nemesia_endpoint_test`.
/// - `out_status`: written on success and with NEMESIA_ERR_TRUNCATED; may be NULL.
///
/// Returns: NEMESIA_OK if it is complete; NEMESIA_ERR_TRUNCATED if the message was longer, and what fits was received;
/// NEMESIA_ERR_PEER_FAILED or _CANCELLED if nothing can come of it; NEMESIA_ERR_KEY, _BOUNDS, _ACCESS, _ALIGNMENT or
/// _UNDEFINED for a one-sided operation; NEMESIA_ERR_TIMEOUT, or _UNEXPECTED_FULL if other
/// messages have to be received first: the request is then still under way; NEMESIA_ERR_STALE, _ARGUMENT or _PANIC.
/// Ownership: the request is gone, and its buffer the caller's again, unless it is still under way.
/// Threads: one at a time, or any number with NEMESIA_THREADS_MULTIPLE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nemesia_endpoint_wait(
    endpoint: *mut Endpoint,
    request: u64,
    timeout_ns: i64,
    out_status: *mut Status,
) -> i32 {
    let work = |mut endpoint: Lent<'_>| {
        // SAFETY: the caller's pointer, null or good.
        let out = unsafe { Out::optional(out_status) };
        deliver(wait(&mut endpoint, named(request), &|_| None, limit(timeout_ns)), out)
    };
    // SAFETY: the caller's endpoint, or null.
    unsafe { blocking_on(endpoint, work) }
}

/// Waits until all of several requests are complete. What one of them meets with does not keep the others waiting.
///
/// - `endpoint`: the endpoint that the requests were started on.
/// - `count`: how many there are.
/// - `requests`: each that is completed, in whatever way, is replaced by NEMESIA_REQUEST_DONE; entries that hold it are
///   passed over. After NEMESIA_ERR_TIMEOUT call again with the same arrays. May be NULL if `count` is 0.
/// - `timeout_ns`: how long at most for all together, in nanoseconds; negative: for ever; 0: one look.
/// - `out_statuses`: as many as `requests`, or NULL. Written for each request that is not passed over, whatever this
///   returns but NEMESIA_ERR_ARGUMENT and _PANIC: `code` is what `nemesia_endpoint_wait` would have returned, or
///   NEMESIA_PENDING; the rest is 0 unless the message was received or truncated.
///
/// Returns: NEMESIA_ERR_TIMEOUT or _UNEXPECTED_FULL if some are still under way; else the code of the first in the
/// array that failed; else NEMESIA_OK. NEMESIA_ERR_ARGUMENT or _PANIC.
/// Ownership: buffers of completed requests are the caller's again.
/// Threads: one at a time, or any number with NEMESIA_THREADS_MULTIPLE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nemesia_endpoint_wait_all(
    endpoint: *mut Endpoint,
    count: usize,
    requests: *mut u64,
    timeout_ns: i64,
    out_statuses: *mut Status,
) -> i32 {
    let work = |mut endpoint: Lent<'_>| {
        let room = if out_statuses.is_null() { 0 } else { count };
        check_buffer(requests, count, "requests")?;
        check_buffer(out_statuses, room, "out_statuses")?;
        // SAFETY: the caller's array, there and no longer than memory, which holds numbers.
        let requests = unsafe { lent(requests, count) };
        // SAFETY: the caller's array, as long as `requests` or not there; it need not hold anything yet.
        let statuses = unsafe { lent(out_statuses.cast::<MaybeUninit<Status>>(), room) };
        wait_all(&mut endpoint, requests, statuses, limit(timeout_ns))
    };
    // SAFETY: the caller's endpoint, or null.
    unsafe { blocking_on(endpoint, work) }
}

/// Withdraws a posted receive that no message has matched yet.
///
/// - `endpoint`: the endpoint that the request was started on.
/// - `request`: from `nemesia_endpoint_irecv` or `nemesia_endpoint_inotified`; others can't be withdrawn.
/// - `out_cancelled`: whether it was withdrawn, written on success. If so, the request remains and completes with
///   NEMESIA_ERR_CANCELLED. If not, it is under way, complete, or a send: test it or wait for it.
///
/// Returns: NEMESIA_OK; NEMESIA_ERR_ARGUMENT or _PANIC.
/// Ownership: the buffer of a withdrawn receive is the caller's again at once.
/// Threads: one at a time, or any number with NEMESIA_THREADS_MULTIPLE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nemesia_endpoint_cancel(
    endpoint: *mut Endpoint,
    request: u64,
    out_cancelled: *mut bool,
) -> i32 {
    let work = |endpoint: &mut Inner| {
        // SAFETY: the caller's pointer, null or good.
        let out = unsafe { Out::required(out_cancelled, "out_cancelled") }?;
        out.write(endpoint.cancel(named(request)));
        Ok(NEMESIA_OK)
    };
    // SAFETY: the caller's endpoint, or null.
    unsafe { on(endpoint, work) }
}

/// Delivers what has come and sends what is pending; bounded work, never blocks.
///
/// - `endpoint`: an open endpoint.
/// - `out_packets`: packets that were moved; 0 means that there was nothing to do. Written on success; may be NULL.
///
/// Returns: NEMESIA_OK; NEMESIA_ERR_ARGUMENT or _PANIC.
/// Threads: one at a time, or any number with NEMESIA_THREADS_MULTIPLE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nemesia_endpoint_progress(endpoint: *mut Endpoint, out_packets: *mut usize) -> i32 {
    let work = |endpoint: &mut Inner| {
        // SAFETY: the caller's pointer, null or good.
        let out = unsafe { Out::optional(out_packets) };
        out.write(endpoint.progress());
        Ok(NEMESIA_OK)
    };
    // SAFETY: the caller's endpoint, or null.
    unsafe { on(endpoint, work) }
}

/// Starts a send, which [`send_now`] has refused if it was `tried`.
///
/// # Safety
/// The buffer is the caller's, and stays as it is until the request is complete.
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
/// The buffer is the caller's, holds something (as all memory of C does), and stays until the request is complete.
#[inline]
unsafe fn irecv(
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

/// Whom a receive listens to.
pub(crate) fn source(endpoint: &Inner, rank: i32) -> Result<Source, Fault> {
    match rank {
        NEMESIA_ANY_SOURCE => Ok(Source::Any),
        rank => Ok(Source::Rank(rank_in(endpoint, rank)?)),
    }
}

/// A request's number in C. The engine has fewer than 2^24 requests, so none of them is NEMESIA_REQUEST_DONE.
#[inline]
pub(crate) fn number(request: Request) -> u64 {
    request.to_bits().wrapping_add(FIRST)
}

/// The request of a number.
#[inline]
pub(crate) fn named(number: u64) -> Request {
    Request::from_bits(number.wrapping_sub(FIRST))
}

/// How long to wait.
#[derive(Clone, Copy)]
enum Limit {
    Never,
    Until(Instant),
}

fn limit(timeout_ns: i64) -> Limit {
    match time_left(timeout_ns) {
        None => Limit::Never,
        Some(timeout) => Limit::Until(Instant::now() + timeout),
    }
}

/// The time that the caller gives; `None` is for ever.
pub(crate) fn time_left(timeout_ns: i64) -> Option<Duration> {
    u64::try_from(timeout_ns).ok().map(Duration::from_nanos)
}

/// Waits for a request, before others.
#[inline]
fn wait(
    endpoint: &mut Lent<'_>,
    request: Request,
    others: &dyn Fn(usize) -> Option<Request>,
    limit: Limit,
) -> Result<nemesia::Status, Error> {
    let Limit::Until(deadline) = limit else { return endpoint.wait(request, others, None) };
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return endpoint.test(request)?.ok_or(Error::Timeout(left));
    }
    endpoint.wait(request, others, Some(left))
}

/// The status of a success.
#[inline]
pub(crate) fn received(nemesia::Status { rank, tag, len }: nemesia::Status) -> Status {
    Status { code: NEMESIA_OK, rank: rank_of(rank), tag, len: len as u64, total: len as u64 }
}

/// Hands an outcome to the caller: the status of a message that was received, whole or in part, and the code.
#[inline]
pub(crate) fn deliver(outcome: Result<nemesia::Status, Error>, out: Out<Status>) -> Result<i32, Fault> {
    let error = match outcome {
        Ok(status) => {
            out.write(received(status));
            return Ok(NEMESIA_OK);
        }
        Err(error) => error,
    };
    if let Error::Truncated(truncation) = &error {
        let status = truncation.status;
        let (rank, len) = (rank_of(status.peer as usize), status.len as u64);
        let (code, total) = (NEMESIA_ERR_TRUNCATED, truncation.message);
        out.write(Status { code, rank, tag: status.tag, len, total });
    }
    Err(error.into())
}

fn wait_all(
    endpoint: &mut Lent<'_>,
    requests: &mut [u64],
    statuses: &mut [MaybeUninit<Status>],
    mut limit: Limit,
) -> Result<i32, Fault> {
    let (mut failed, mut unfinished) = (None, None);
    for at in 0..requests.len() {
        let [number, rest @ ..] = &mut requests[at..] else { break };
        if *number == NEMESIA_REQUEST_DONE {
            continue;
        }
        // Most of a stream are complete, or their messages are there.
        if let Some(status) = endpoint.finish_now(named(*number)) {
            *number = NEMESIA_REQUEST_DONE;
            if let Some(out) = statuses.get_mut(at) {
                out.write(received(status));
            }
            continue;
        }
        let mut status = Status::default();
        let others = |at: usize| rest.get(at).map(|number| named(*number));
        let outcome = deliver(wait(endpoint, named(*number), &others, limit), Out::to(&mut status));
        match outcome {
            Ok(_) => *number = NEMESIA_REQUEST_DONE,
            Err(fault) if matches!(fault.code(), NEMESIA_ERR_TIMEOUT | NEMESIA_ERR_UNEXPECTED_FULL) => {
                status.code = NEMESIA_PENDING;
                unfinished.get_or_insert(fault);
                // The others get one look: they may be complete.
                limit = Limit::Until(Instant::now());
            }
            Err(fault) => {
                status.code = fault.code();
                *number = NEMESIA_REQUEST_DONE;
                failed.get_or_insert(fault);
            }
        }
        if let Some(out) = statuses.get_mut(at) {
            out.write(status);
        }
    }
    unfinished.or(failed).map_or(Ok(NEMESIA_OK), Err)
}

#[cfg(test)]
mod tests {
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

    #[test]
    fn waiting_for_all_goes_on_after_a_failure_and_after_a_timeout() {
        let mut endpoint = alone();
        let mut buf = [0_u8; 4];
        let base = buf.as_mut_ptr().cast::<c_void>();
        // SAFETY: the buffer outlives the endpoint's use of it.
        let mut post = |tag| number(unsafe { irecv(&mut endpoint, 0, (tag, 0), base, 4) }.unwrap());
        let mut requests = [post(1), 5, post(2), NEMESIA_REQUEST_NONE, NEMESIA_REQUEST_DONE];
        endpoint.send(0, 2, b"four").unwrap();
        let mut statuses = [MaybeUninit::new(Status { code: 9, ..Status::default() }); 5];
        let fault =
            wait_all(&mut Lent::One(&mut endpoint), &mut requests, &mut statuses, limit(0)).unwrap_err();
        assert_eq!(fault.code(), NEMESIA_ERR_TIMEOUT);
        // SAFETY: all of them were initialised above.
        let codes = statuses.map(|status| unsafe { status.assume_init() }.code);
        assert_eq!(codes, [NEMESIA_PENDING, crate::status::NEMESIA_ERR_STALE, NEMESIA_OK, NEMESIA_OK, 9]);
        assert_eq!(requests[1..], [NEMESIA_REQUEST_DONE; 4]);
        endpoint.send(0, 1, b"four").unwrap();
        assert_eq!(
            wait_all(&mut Lent::One(&mut endpoint), &mut requests, &mut [], limit(-1)),
            Ok(NEMESIA_OK)
        );
        assert_eq!((requests, &buf), ([NEMESIA_REQUEST_DONE; 5], b"four"));
    }

    fn alone() -> Inner {
        let exchange = nemesia::bootstrap::Singleton::new();
        Inner::open_with(&nemesia::Config::default(), Box::new(exchange)).unwrap()
    }
}
