//! The completion queue, and waits until anything happens.

use std::time::Duration;

use nemesia::{Completion as InnerCompletion, CompletionKind};

use crate::boundary::{Out, check_buffer, lent};
use crate::endpoint::{Endpoint, blocking_on, on};
use crate::lent::Lent;
use crate::many::status_of;
use crate::status::{Fault, NEMESIA_OK, NEMESIA_PENDING};
use crate::transfer::{Status, time_left};

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

/// The kind of a completion: a message in a buffer of NEMESIA_OPERATION_MULTI_RECEIVE.
pub const NEMESIA_COMPLETION_MULTI_RECEIVE: u32 = 9;
/// The kind of a completion: the end of such a buffer, after all its messages; it is free. `len` is the end of its last
/// message. NEMESIA_ERR_CANCELLED if it was withdrawn.
pub const NEMESIA_COMPLETION_MULTI_RECEIVE_END: u32 = 10;

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
    /// The offset of a message in its buffer, for NEMESIA_COMPLETION_MULTI_RECEIVE; otherwise 0.
    pub offset: u64,
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
        CompletionKind::MultiReceive => NEMESIA_COMPLETION_MULTI_RECEIVE,
        CompletionKind::MultiReceiveEnd => NEMESIA_COMPLETION_MULTI_RECEIVE_END,
        // A kind that this version of the header does not have.
        _ => 0,
    };
    let Status { code, rank, tag, len, total, immediate, has_immediate } = status_of(completion.result());
    let flags = if has_immediate == 1 { NEMESIA_COMPLETION_HAS_IMMEDIATE } else { 0 };
    let (user_context, offset) = (completion.context, completion.offset() as u64);
    Completion { user_context, kind, code, rank, flags, tag, len, total, immediate, offset }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::{NEMESIA_ERR_TIMEOUT, timed_out};
    use nemesia::Error;

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
