//! The completion queue, and many requests at once.

use std::time::Duration;

use nemesia::{Completion as InnerCompletion, CompletionKind, Error, Request, RequestPlace};

use crate::boundary::{Out, check_buffer, lent};
use crate::endpoint::{Endpoint, blocking_on, on};
use crate::lent::Lent;
use crate::rank::rank_of;
use crate::request::named;
use crate::status::{Fault, NEMESIA_ERR_TRUNCATED, NEMESIA_OK, NEMESIA_PENDING, timed_out};
use crate::transfer::{NEMESIA_REQUEST_DONE, Status, deliver, time_left};

/// The kind of a completion: a send.
pub const NEMESIA_COMPLETION_SEND: u32 = 1;
/// The kind of a completion: a receive.
pub const NEMESIA_COMPLETION_RECEIVE: u32 = 2;
/// The kind of a completion: a send of an active message.
pub const NEMESIA_COMPLETION_ACTIVE: u32 = 3;
/// The kind of a completion: a put.
pub const NEMESIA_COMPLETION_PUT: u32 = 4;
/// The kind of a completion: a get.
pub const NEMESIA_COMPLETION_GET: u32 = 5;
/// The kind of a completion: an atomic operation.
pub const NEMESIA_COMPLETION_ATOMIC: u32 = 6;
/// The kind of a completion: a flush.
pub const NEMESIA_COMPLETION_FLUSH: u32 = 7;
/// The kind of a completion: a wait for notifications.
pub const NEMESIA_COMPLETION_NOTIFICATION: u32 = 8;

/// A flag of a completion: `immediate` holds the immediate data of the message.
pub const NEMESIA_COMPLETION_HAS_IMMEDIATE: u32 = 1;

/// The number of completions that one call converts at a time.
const BATCH: usize = 32;

/// One entry of the completion queue: an operation that is complete.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Completion {
    /// The number that the operation carried (`nemesia_operation`).
    pub user_context: u64,
    /// NEMESIA_COMPLETION_SEND, _RECEIVE, and so on.
    pub kind: u32,
    /// NEMESIA_OK, or the code of the error as `nemesia_endpoint_wait` would return it.
    pub code: i32,
    /// Receive: the sender. Send: the receiver. One-sided operation: the target. After an error other than
    /// NEMESIA_ERR_TRUNCATED the rank that the error is about, or -1.
    pub rank: i32,
    /// NEMESIA_COMPLETION_HAS_IMMEDIATE, or 0.
    pub flags: u32,
    /// The message's tag. 0 for other operations, and after an error other than NEMESIA_ERR_TRUNCATED.
    pub tag: u64,
    /// The number of bytes moved; of an active message, those of its payload.
    pub len: u64,
    /// Receive: the length of the message, larger than `len` if it was truncated. Otherwise `len`.
    pub total: u64,
    /// The immediate data of a received message; 0 if it had none.
    pub immediate: u64,
    /// 0.
    pub reserved: u64,
}

const _: () = assert!(size_of::<Completion>() == 64);

/// Takes completions out of the queue, the oldest first. If the queue is empty, it makes progress once, as
/// `nemesia_endpoint_progress` does. Never blocks.
///
/// An operation enters the queue if it was started by `nemesia_endpoint_start` with
/// NEMESIA_OPERATION_COMPLETION. The queue takes no memory and cannot overflow: its entries are the requests
/// themselves, which count against NEMESIA_REQUESTS until their completions are taken.
///
/// - `endpoint`: an open endpoint.
/// - `capacity`: the number of elements of `out_completions`.
/// - `out_completions`: its first elements are written; may be NULL if `capacity` is 0.
/// - `out_count`: the number of completions, 0 if there are none; written on success.
///
/// Returns: NEMESIA_OK; NEMESIA_ERR_ARGUMENT or _PANIC. The errors of operations are in their completions.
/// Ownership: the caller may reuse the buffers of the operations.
/// Threads: one at a time, or any number with NEMESIA_THREADS_MULTIPLE; each completion goes to one thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nemesia_endpoint_completions(
    endpoint: *mut Endpoint,
    capacity: usize,
    out_completions: *mut Completion,
    out_count: *mut usize,
) -> i32 {
    let work = |endpoint: &mut nemesia::Endpoint| -> Result<i32, Fault> {
        // SAFETY: the caller's pointer, null or valid.
        let out = unsafe { Out::required(out_count, "out_count") }?;
        check_buffer(out_completions, capacity, "out_completions")?;
        // SAFETY: the caller's array, not null and not longer than memory; `check_buffer` initialised it.
        let places = unsafe { lent(out_completions, capacity) };
        out.write(fill(places, |some| Ok::<_, Fault>(endpoint.completions(some)))?);
        Ok(NEMESIA_OK)
    };
    // SAFETY: the caller's endpoint, or null.
    unsafe { on(endpoint, work) }
}

/// Waits until a completion is in the queue, and takes completions as `nemesia_endpoint_completions` does. It
/// spins, then sleeps.
///
/// - `endpoint`: an open endpoint.
/// - `timeout_ns`: the time limit in nanoseconds; negative: no limit; 0: one attempt.
/// - `capacity`: the number of elements of `out_completions`.
/// - `out_completions`: its first elements are written; may be NULL if `capacity` is 0.
/// - `out_count`: the number of completions; 0 if the time limit has passed or `capacity` is 0. Written on
///   success.
///
/// Returns: NEMESIA_OK, also if the time limit has passed; NEMESIA_ERR_UNEXPECTED_FULL if no operation can
/// complete before other messages are received; NEMESIA_ERR_ARGUMENT or _PANIC.
/// Ownership: as for `nemesia_endpoint_completions`.
/// Threads: one at a time, or any number with NEMESIA_THREADS_MULTIPLE; each completion goes to one thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nemesia_endpoint_wait_completions(
    endpoint: *mut Endpoint,
    timeout_ns: i64,
    capacity: usize,
    out_completions: *mut Completion,
    out_count: *mut usize,
) -> i32 {
    let work = |mut endpoint: Lent<'_>| -> Result<i32, Fault> {
        // SAFETY: the caller's pointer, null or valid.
        let out = unsafe { Out::required(out_count, "out_count") }?;
        check_buffer(out_completions, capacity, "out_completions")?;
        // SAFETY: the caller's array, not null and not longer than memory; `check_buffer` initialised it.
        let places = unsafe { lent(out_completions, capacity) };
        let mut limit = time_left(timeout_ns);
        let wait = |some: &mut [InnerCompletion]| {
            // Only the first completion is waited for.
            endpoint.wait_completions(some, limit.replace(Duration::ZERO))
        };
        out.write(fill(places, wait)?);
        Ok(NEMESIA_OK)
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

/// Waits until anything happens: a packet has arrived, pending work has progressed, a completion is in the
/// queue, or a peer has failed. It spins, then sleeps. Then test the requests, or take the completions. The
/// call may return early.
///
/// - `endpoint`: an open endpoint.
/// - `timeout_ns`: the time limit in nanoseconds; negative: no limit; 0: one attempt.
///
/// Returns: NEMESIA_OK if something happened; NEMESIA_PENDING if the time limit has passed;
/// NEMESIA_ERR_ARGUMENT or _PANIC.
/// Threads: one at a time, or any number with NEMESIA_THREADS_MULTIPLE; a call of another thread counts as an
/// event.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nemesia_endpoint_wait_progress(endpoint: *mut Endpoint, timeout_ns: i64) -> i32 {
    let work = |mut endpoint: Lent<'_>| match endpoint.wait_progress(time_left(timeout_ns))? {
        true => Ok(NEMESIA_OK),
        false => Ok(NEMESIA_PENDING),
    };
    // SAFETY: the caller's endpoint, or null.
    unsafe { blocking_on(endpoint, work) }
}

/// The number of a request in an array of the caller's.
#[repr(transparent)]
#[derive(Debug)]
pub(crate) struct RequestNumber(u64);

impl RequestNumber {
    /// Returns the numbers of an array as places of requests.
    pub(crate) fn all(numbers: &mut [u64]) -> &mut [Self] {
        // SAFETY: the type is a number in memory, and the array is borrowed as long as the result.
        unsafe { std::slice::from_raw_parts_mut(numbers.as_mut_ptr().cast(), numbers.len()) }
    }
}

impl RequestPlace for RequestNumber {
    #[inline]
    fn request(&self) -> Option<Request> {
        (self.0 != NEMESIA_REQUEST_DONE).then(|| named(self.0))
    }

    #[inline]
    fn clear(&mut self) {
        self.0 = NEMESIA_REQUEST_DONE;
    }
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

/// Takes completions with `take`, several at a time, until the array is full or there are no more. Returns their
/// number. After an error it returns those taken before, if there are any.
fn fill<E: Into<Fault>>(
    places: &mut [Completion],
    mut take: impl FnMut(&mut [InnerCompletion]) -> Result<usize, E>,
) -> Result<usize, Fault> {
    let mut batch = [InnerCompletion::default(); BATCH];
    let mut count = 0;
    loop {
        let most = BATCH.min(places.len() - count);
        let taken = match take(&mut batch[..most]) {
            Ok(taken) => taken,
            Err(_) if count > 0 => return Ok(count),
            Err(error) => return Err(error.into()),
        };
        for (place, completion) in places[count..].iter_mut().zip(&batch[..taken]) {
            *place = completion_of(completion);
        }
        count += taken;
        if taken < most || count == places.len() {
            return Ok(count);
        }
    }
}

fn completion_of(completion: &InnerCompletion) -> Completion {
    let kind = match completion.kind {
        CompletionKind::Send => NEMESIA_COMPLETION_SEND,
        CompletionKind::Receive => NEMESIA_COMPLETION_RECEIVE,
        CompletionKind::Active => NEMESIA_COMPLETION_ACTIVE,
        CompletionKind::Put => NEMESIA_COMPLETION_PUT,
        CompletionKind::Get => NEMESIA_COMPLETION_GET,
        CompletionKind::Atomic => NEMESIA_COMPLETION_ATOMIC,
        CompletionKind::Flush => NEMESIA_COMPLETION_FLUSH,
        CompletionKind::Notification => NEMESIA_COMPLETION_NOTIFICATION,
        // A kind that this version of the header does not have.
        _ => 0,
    };
    let Status { code, rank, tag, len, total } = status_of(completion.result());
    let immediate = completion.immediate.unwrap_or(0);
    let flags = if completion.immediate.is_some() { NEMESIA_COMPLETION_HAS_IMMEDIATE } else { 0 };
    let user_context = completion.context;
    Completion { user_context, kind, code, rank, flags, tag, len, total, immediate, reserved: 0 }
}

/// Returns the status of a request that has ended, with its code.
fn status_of(outcome: Result<nemesia::Status, Error>) -> Status {
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
    use crate::status::NEMESIA_ERR_TIMEOUT;

    #[test]
    fn array_longer_than_a_batch_is_filled_in_several_steps() {
        let mut left = 70;
        let mut places = [Completion::default(); 100];
        let taken = fill(&mut places, |some| {
            let taken = some.len().min(left);
            left -= taken;
            for place in &mut some[..taken] {
                place.context = 9;
            }
            Ok::<_, Fault>(taken)
        });
        assert_eq!((taken, left), (Ok(70), 0));
        assert_eq!(places.iter().filter(|place| place.user_context == 9).count(), 70);
        assert_eq!(fill(&mut places[..0], |some| Ok::<_, Fault>(some.len())), Ok(0));
    }

    #[test]
    fn error_after_the_first_completions_does_not_lose_them() {
        let mut calls = 0;
        let mut places = [Completion::default(); 40];
        let mut take = |some: &mut [InnerCompletion]| {
            calls += 1;
            if calls > 1 { Err(Error::Stale) } else { Ok(some.len()) }
        };
        assert_eq!(fill(&mut places, &mut take), Ok(BATCH));
        assert_eq!(
            fill(&mut places, take).map_err(|fault| fault.code()),
            Err(crate::status::NEMESIA_ERR_STALE)
        );
    }

    #[test]
    fn waiting_with_a_limit_of_zero_keeps_the_text_of_its_error() {
        assert_eq!(timed_out(), NEMESIA_ERR_TIMEOUT);
        // SAFETY: the text is terminated and stays valid in this thread.
        let text = unsafe { std::ffi::CStr::from_ptr(crate::status::nemesia_last_error_message()) };
        assert_eq!(text.to_string_lossy(), Error::Timeout(Duration::ZERO).to_string());
    }
}
