//! Many requests at once.

use std::mem::MaybeUninit;

use nemesia::{Error, RequestPlace as _};

use crate::boundary::{Out, check_buffer, lent};
use crate::endpoint::{Endpoint, blocking_on, on};
use crate::lent::Lent;
use crate::rank::rank_of;
use crate::request::{RequestNumber, named};
use crate::status::{
    Fault, NEMESIA_ERR_TIMEOUT, NEMESIA_ERR_TRUNCATED, NEMESIA_ERR_UNEXPECTED_FULL, NEMESIA_OK,
    NEMESIA_PENDING, timed_out,
};
use crate::transfer::{Limit, NEMESIA_REQUEST_DONE, Status, deliver, limit, received, time_left, wait};

/// Waits until all of several requests are complete. The failure of one request does not end the wait for the
/// others.
///
/// - `endpoint`: the endpoint that the requests were started on.
/// - `count`: the number of requests.
/// - `requests`: the call replaces each request that ends, with success or failure, by NEMESIA_REQUEST_DONE,
///   and skips entries that hold this value. After NEMESIA_ERR_TIMEOUT, call it again with the same arrays.
///   May be NULL if `count` is 0.
/// - `timeout_ns`: the common time limit in nanoseconds; negative: no limit; 0: one attempt.
/// - `out_statuses`: `count` elements, or NULL. Written for each request that is not skipped, unless the call
///   returns NEMESIA_ERR_ARGUMENT or _PANIC. `code` is the result that `nemesia_endpoint_wait` would return,
///   or NEMESIA_PENDING. The other fields are 0 unless the message was received or truncated.
///
/// Returns: NEMESIA_ERR_TIMEOUT or _UNEXPECTED_FULL if some requests are still in progress; else the code of
/// the first request in the array that failed; else NEMESIA_OK. Also NEMESIA_ERR_ARGUMENT or _PANIC.
/// Ownership: the caller may reuse the buffers of completed requests.
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
        // SAFETY: the caller's array, not null and not longer than memory, which holds numbers.
        let requests = unsafe { lent(requests, count) };
        // SAFETY: the caller's array, as long as `requests` or null; it may be uninitialised.
        let statuses = unsafe { lent(out_statuses.cast::<MaybeUninit<Status>>(), room) };
        match timeout_ns {
            0 => test_all(&mut endpoint, requests, statuses, (None, None)),
            _ => wait_all(&mut endpoint, requests, statuses, limit(timeout_ns)),
        }
    };
    // SAFETY: the caller's endpoint, or null.
    unsafe { blocking_on(endpoint, work) }
}

/// Tests several requests. If none is complete, it makes progress once and tests them again. Never blocks.
///
/// - `endpoint`: the endpoint that the requests were started on.
/// - `count`: the number of requests.
/// - `requests`: the call replaces each request that ends, with success or failure, by NEMESIA_REQUEST_DONE,
///   and skips entries that hold this value. May be NULL if `count` is 0.
/// - `out_count`: the number of requests that ended, written on success.
/// - `out_indices`: `count` elements; the first `out_count` are written: the indices of these requests, in
///   increasing order. May be NULL if `count` is 0.
/// - `out_statuses`: `count` elements, or NULL; the first `out_count` are written, as
///   `nemesia_endpoint_wait_all` does.
///
/// Returns: NEMESIA_OK; NEMESIA_ERR_ARGUMENT or _PANIC. The errors of requests are in their statuses; without
/// statuses they are lost.
/// Ownership: the caller may reuse the buffers of completed requests.
/// Threads: one at a time, or any number with NEMESIA_THREADS_MULTIPLE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nemesia_endpoint_test_some(
    endpoint: *mut Endpoint,
    count: usize,
    requests: *mut u64,
    out_count: *mut usize,
    out_indices: *mut usize,
    out_statuses: *mut Status,
) -> i32 {
    let work = |endpoint: &mut nemesia::Endpoint| -> Result<i32, Fault> {
        // SAFETY: the caller's pointer, null or valid.
        let out = unsafe { Out::required(out_count, "out_count") }?;
        // SAFETY: the caller's array of numbers.
        let requests = unsafe { places(requests, count) }?;
        let room = if out_statuses.is_null() { 0 } else { count };
        check_buffer(out_indices, count, "out_indices")?;
        check_buffer(out_statuses, room, "out_statuses")?;
        // SAFETY: the caller's arrays, not null and not longer than memory; `check_buffer` initialised them.
        let (indices, statuses) = unsafe { (lent(out_indices, count), lent(out_statuses, room)) };
        let mut done = 0;
        endpoint.test_some(requests, |at, outcome| {
            if let Some(index) = indices.get_mut(done) {
                *index = at;
            }
            if let Some(status) = statuses.get_mut(done) {
                *status = status_of(outcome);
            }
            done += 1;
        });
        out.write(done);
        Ok(NEMESIA_OK)
    };
    // SAFETY: the caller's endpoint, or null.
    unsafe { on(endpoint, work) }
}

/// Waits until one of several requests is complete: spins, then sleeps.
///
/// - `endpoint`: the endpoint that the requests were started on.
/// - `count`: the number of requests.
/// - `requests`: the call replaces the request that ends by NEMESIA_REQUEST_DONE, and skips entries that hold
///   this value. May be NULL if `count` is 0.
/// - `timeout_ns`: the time limit in nanoseconds; negative: no limit; 0: one attempt.
/// - `out_index`: the index of the request that ended, or `count` if there is no request; written unless the
///   call returns NEMESIA_ERR_TIMEOUT, _UNEXPECTED_FULL, _ARGUMENT or _PANIC.
/// - `out_status`: written on success and with NEMESIA_ERR_TRUNCATED; may be NULL.
///
/// Returns: NEMESIA_OK if a request has succeeded or there is none; NEMESIA_ERR_TIMEOUT, or _UNEXPECTED_FULL if
/// other messages must be received first: all requests are still in progress; the code of the request that has
/// failed, as `nemesia_endpoint_wait`; NEMESIA_ERR_ARGUMENT or _PANIC.
/// Ownership: the caller may reuse the buffer of the request that ended.
/// Threads: one at a time, or any number with NEMESIA_THREADS_MULTIPLE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nemesia_endpoint_wait_any(
    endpoint: *mut Endpoint,
    count: usize,
    requests: *mut u64,
    timeout_ns: i64,
    out_index: *mut usize,
    out_status: *mut Status,
) -> i32 {
    let work = |mut endpoint: Lent<'_>| {
        // SAFETY: the caller's pointers, null or valid.
        let (index, status) = unsafe { (Out::required(out_index, "out_index")?, Out::optional(out_status)) };
        // SAFETY: the caller's array of numbers.
        let requests = unsafe { places(requests, count) }?;
        match endpoint.wait_any(requests, time_left(timeout_ns)) {
            Ok(None) => {
                index.write(count);
                Ok(NEMESIA_OK)
            }
            Ok(Some((at, outcome))) => {
                index.write(at);
                deliver(outcome, status)
            }
            Err(Error::Timeout(limit)) if limit.is_zero() => Ok(timed_out()),
            Err(error) => Err(error.into()),
        }
    };
    // SAFETY: the caller's endpoint, or null.
    unsafe { blocking_on(endpoint, work) }
}

fn wait_all(
    endpoint: &mut Lent<'_>,
    requests: &mut [u64],
    statuses: &mut [MaybeUninit<Status>],
    limit: Limit,
) -> Result<i32, Fault> {
    let mut failed = None;
    for at in 0..requests.len() {
        let [number, rest @ ..] = &mut requests[at..] else { break };
        if *number == NEMESIA_REQUEST_DONE {
            continue;
        }
        // Most requests of a stream are complete, or their messages have arrived.
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
                // Each remaining request gets one attempt, because it may be complete.
                let statuses = statuses.get_mut(at..).unwrap_or_default();
                return test_all(endpoint, &mut requests[at..], statuses, (failed, Some(fault)));
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
    failed.map_or(Ok(NEMESIA_OK), Err)
}

/// Ends the requests that are complete, with progress once. `first` is the failure of a request before these, and
/// `why` the reason for which a wait has ended.
fn test_all(
    endpoint: &mut Lent<'_>,
    requests: &mut [u64],
    statuses: &mut [MaybeUninit<Status>],
    (first, why): (Option<Fault>, Option<Fault>),
) -> Result<i32, Fault> {
    for (number, status) in requests.iter().zip(&mut *statuses) {
        if *number != NEMESIA_REQUEST_DONE {
            status.write(Status { code: NEMESIA_PENDING, ..Status::default() });
        }
    }
    let mut failed: Option<(usize, Fault)> = None;
    let mut ended = |at: usize, outcome| {
        let mut status = Status::default();
        if let Err(fault) = deliver(outcome, Out::to(&mut status)) {
            status.code = fault.code();
            if failed.as_ref().is_none_or(|(first, _)| at < *first) {
                failed = Some((at, fault));
            }
        }
        if let Some(out) = statuses.get_mut(at) {
            out.write(status);
        }
    };
    let places = RequestNumber::all(requests);
    endpoint.with(|endpoint| {
        // If the first attempt finds any, it makes no progress; the second one does, or finds all the others.
        if endpoint.test_some(places, &mut ended) > 0 {
            endpoint.test_some(places, &mut ended);
        }
        Ok::<_, Error>(())
    })?;
    if places.iter().any(|place| place.request().is_some()) {
        return why.map_or_else(|| Ok(timed_out()), Err);
    }
    first.or(failed.map(|(_, fault)| fault)).map_or(Ok(NEMESIA_OK), Err)
}

/// Returns the caller's array of requests.
///
/// # Safety
/// If `count` is not 0, `requests` is null or there are `count` numbers, which no other code uses while the result
/// is used.
pub(crate) unsafe fn places<'a>(requests: *mut u64, count: usize) -> Result<&'a mut [RequestNumber], Fault> {
    check_buffer(requests, count, "requests")?;
    // SAFETY: the caller's array, not null and not longer than memory. The type is a number.
    Ok(unsafe { lent(requests.cast::<RequestNumber>(), count) })
}

/// Returns the status of a request that has ended, with its code.
pub(crate) fn status_of(outcome: Result<nemesia::Status, Error>) -> Status {
    let error = match outcome {
        Ok(nemesia::Status { rank, tag, len }) => {
            return Status { code: NEMESIA_OK, rank: rank_of(rank), tag, len: len as u64, total: len as u64 };
        }
        Err(error) => error,
    };
    if let Error::Truncated(truncation) = &error {
        let status = truncation.status;
        let (rank, len) = (rank_of(status.peer as usize), status.len as u64);
        return Status { code: NEMESIA_ERR_TRUNCATED, rank, tag: status.tag, len, total: truncation.message };
    }
    let fault = Fault::from(error);
    Status { code: fault.code(), rank: fault.rank(), ..Status::default() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::number;
    use crate::transfer::tests::alone;
    use crate::transfer::{NEMESIA_REQUEST_NONE, irecv};
    use std::ffi::c_void;

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
        let fault = test_all(&mut Lent::One(&mut endpoint), &mut requests, &mut statuses, (None, None));
        assert_eq!(fault, Ok(NEMESIA_ERR_TIMEOUT));
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
}
