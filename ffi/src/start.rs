//! Any operation, by one structure: started, or run to its end.

use std::ptr::slice_from_raw_parts;

use nemesia::{Comparison, CompleteAt, Endpoint as Inner, Region, Request, Tag, WithCompletion};

use crate::boundary::{Out, check_buffer, read_versioned};
use crate::endpoint::{Endpoint, blocking_on, on};
use crate::fetch::comparison_of;
use crate::lent::Lent;
use crate::multi::{ManyMessages, NEMESIA_OPERATION_MULTI_RECEIVE};
use crate::operation::{
    NEMESIA_OPERATION_ACCUMULATE, NEMESIA_OPERATION_ACTIVE, NEMESIA_OPERATION_COMPARE_SWAP,
    NEMESIA_OPERATION_COMPLETION, NEMESIA_OPERATION_DELIVERED, NEMESIA_OPERATION_FLUSH,
    NEMESIA_OPERATION_GET, NEMESIA_OPERATION_MATCHED_RECEIVE, NEMESIA_OPERATION_NOTIFIED,
    NEMESIA_OPERATION_NOTIFY, NEMESIA_OPERATION_PUT, NEMESIA_OPERATION_RECEIVE, NEMESIA_OPERATION_SEND,
    Operation,
};
use crate::rank::rank_in;
use crate::request::number;
use crate::rma::{datatype_of, key_of, reduction_of};
use crate::status::{Fault, NEMESIA_OK};
use crate::transfer::{Status, deliver};

/// Starts any operation. The plain functions, such as `nemesia_endpoint_isend`, do the same for the plain cases.
///
/// - `endpoint`: an open endpoint.
/// - `operation`: the operation; see `nemesia_operation`.
/// - `out_request`: the request, written on success; NEMESIA_REQUEST_NONE if the operation is complete already. With
///   NEMESIA_OPERATION_COMPLETION the request serves `nemesia_endpoint_cancel` only, and `out_request` may be NULL:
///   tests and waits return NEMESIA_ERR_STALE for it. An operation that is complete when it starts makes an entry in
///   the completion queue, too.
///
/// Returns: as the plain function of the operation; NEMESIA_ERR_ARGUMENT also for an unknown kind or flag, a field
/// that is invalid, a run at NULL, and runs with more bytes than memory can hold. After an error nothing was started,
/// and nothing enters the queue.
/// Ownership: the operation holds its buffers and its list until it is complete; with
/// NEMESIA_OPERATION_COMPLETION, until its completion was taken. The structure itself is copied. A matched receive
/// takes its message, unless the call returns NEMESIA_ERR_ARGUMENT.
/// Threads: one at a time, or any number with NEMESIA_THREADS_MULTIPLE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nemesia_endpoint_start(
    endpoint: *mut Endpoint,
    operation: *const Operation,
    out_request: *mut u64,
) -> i32 {
    let work = |endpoint: &mut Inner| {
        // SAFETY: the caller's pointer, null or valid.
        let operation = unsafe { read_versioned(operation) }?;
        let is_queued = operation.has(NEMESIA_OPERATION_COMPLETION);
        // SAFETY: the caller's pointer, null or valid.
        let out = unsafe {
            if is_queued { Out::optional(out_request) } else { Out::required(out_request, "out_request")? }
        };
        operation.check_flags()?;
        let context = is_queued.then_some(operation.user_context);
        // SAFETY: the caller's promise: the buffers stay valid until the operation is complete.
        out.write(number(unsafe { start(endpoint, &operation, context) }?));
        Ok(NEMESIA_OK)
    };
    // SAFETY: the caller's endpoint, or null.
    unsafe { on(endpoint, work) }
}

/// Runs any operation to its end: starts it and waits. The plain functions, such as `nemesia_endpoint_send`, do the
/// same for the plain cases.
///
/// - `endpoint`: an open endpoint.
/// - `operation`: the operation; see `nemesia_operation`. NEMESIA_OPERATION_COMPLETION is refused.
/// - `out_status`: for a receive, written on success and with NEMESIA_ERR_TRUNCATED; otherwise not written. May be
///   NULL.
///
/// Returns: as the plain function of the operation, and as a wait for it; NEMESIA_ERR_ARGUMENT as for
/// `nemesia_endpoint_start`. After an error the contents of a buffer that receives are unspecified.
/// Ownership: the caller may reuse the buffers, the list and the structure after the return. A matched receive takes
/// its message, unless the call returns NEMESIA_ERR_ARGUMENT.
/// Threads: one at a time, or any number with NEMESIA_THREADS_MULTIPLE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nemesia_endpoint_run(
    endpoint: *mut Endpoint,
    operation: *const Operation,
    out_status: *mut Status,
) -> i32 {
    let work = |mut endpoint: Lent<'_>| {
        // SAFETY: the caller's pointer, null or valid.
        let out = unsafe { Out::optional(out_status) };
        // SAFETY: the caller's pointer, null or valid.
        let operation = unsafe { read_versioned(operation) }?;
        operation.check_flags()?;
        if operation.has(NEMESIA_OPERATION_COMPLETION) {
            return Err(Fault::argument(
                "flags have NEMESIA_OPERATION_COMPLETION: a call that waits has no entry",
            ));
        }
        match operation.kind {
            NEMESIA_OPERATION_SEND => {
                // SAFETY: the caller's bytes and list, which do not change before this function returns.
                let op = endpoint.with(|endpoint| unsafe { operation.send(endpoint) })?;
                endpoint.send_op(op)?;
            }
            NEMESIA_OPERATION_RECEIVE | NEMESIA_OPERATION_MATCHED_RECEIVE => {
                // SAFETY: the caller's buffers and list, which no other code uses before this function returns.
                let op = endpoint.with(|endpoint| unsafe { operation.recv(endpoint) })?;
                return deliver(endpoint.recv_op(op), out);
            }
            // SAFETY: the caller's buffers, which are the operation's until this function returns.
            _ => endpoint.run(|endpoint| unsafe { start(endpoint, &operation, None) })?,
        }
        Ok(NEMESIA_OK)
    };
    // SAFETY: the caller's endpoint, or null.
    unsafe { blocking_on(endpoint, work) }
}

/// Starts an operation with a request, or with an entry of the completion queue for `context`.
///
/// # Safety
/// The buffers of the operation are the caller's, and stay valid until it is complete.
unsafe fn start(endpoint: &mut Inner, operation: &Operation, context: Option<u64>) -> Result<Request, Fault> {
    let Operation { kind, rank, buffer, len, .. } = *operation;
    let started = match kind {
        NEMESIA_OPERATION_SEND => {
            // SAFETY: the caller's promise.
            let op = unsafe { operation.send(endpoint) }?;
            // SAFETY: the same.
            unsafe { endpoint.with_completion_or_request(context).isend_op(op) }?
        }
        NEMESIA_OPERATION_RECEIVE | NEMESIA_OPERATION_MATCHED_RECEIVE => {
            // SAFETY: the caller's promise.
            let op = unsafe { operation.recv(endpoint) }?;
            // SAFETY: the same.
            unsafe { endpoint.with_completion_or_request(context).irecv_op(op) }?
        }
        _ if !operation.list.is_null() => {
            return Err(Fault::argument("list is not NULL: only tagged messages take several runs"));
        }
        NEMESIA_OPERATION_ACTIVE => {
            check_buffer(buffer.cast::<u8>(), len, "buffer")?;
            check_buffer(operation.header.cast::<u8>(), operation.header_len, "header")?;
            let to = rank_in(endpoint, rank)?;
            let header = slice_from_raw_parts(operation.header.cast(), operation.header_len);
            let payload = slice_from_raw_parts(buffer.cast_const().cast(), len);
            let endpoint = endpoint.with_completion_or_request(context);
            // SAFETY: the caller's promise.
            unsafe { endpoint.isend_active(to, operation.handler, header, payload) }?
        }
        NEMESIA_OPERATION_MULTI_RECEIVE => {
            let Operation { tag, ignore, offset: align, operand: least, .. } = *operation;
            let (tag, buffer) = (Tag::Masked { value: tag, ignore }, (buffer.cast(), len));
            let many = ManyMessages { context: operation.context, rank, tag, buffer, align, least };
            // SAFETY: the caller's promise.
            return unsafe { many.start(endpoint, context) };
        }
        NEMESIA_OPERATION_FLUSH => {
            let rank = rank_in(endpoint, rank)?;
            endpoint.with_completion_or_request(context).iflush(rank)?
        }
        NEMESIA_OPERATION_NOTIFIED => {
            let region = Region::from_bits(operation.region);
            endpoint.with_completion_or_request(context).inotified(region, operation.operand)?
        }
        // SAFETY: the caller's promise.
        _ => return unsafe { start_remote(endpoint.with_completion_or_request(context), operation) },
    };
    Ok(started.request())
}

/// Starts a one-sided operation on a region.
///
/// # Safety
/// As [`start`].
unsafe fn start_remote(endpoint: WithCompletion<'_>, operation: &Operation) -> Result<Request, Fault> {
    let Operation { kind, offset, buffer, len, operand, .. } = *operation;
    let remote = NEMESIA_OPERATION_PUT..=NEMESIA_OPERATION_COMPARE_SWAP;
    if !remote.contains(&kind) {
        return Err(Fault::argument(format!("kind is {kind}: it must be one of NEMESIA_OPERATION_...")));
    }
    // SAFETY: the caller's pointer, null or valid.
    let key = unsafe { key_of(operation.key) }?;
    let base = buffer.cast::<u8>();
    check_buffer(base, len, "buffer")?;
    let complete =
        if operation.has(NEMESIA_OPERATION_DELIVERED) { CompleteAt::Target } else { CompleteAt::Origin };
    if matches!(kind, NEMESIA_OPERATION_PUT | NEMESIA_OPERATION_GET) {
        // SAFETY: the caller's promise.
        let started = unsafe {
            match kind {
                NEMESIA_OPERATION_PUT => {
                    let notify = operation.has(NEMESIA_OPERATION_NOTIFY);
                    endpoint.iput(&key, offset, base, len, notify, complete)
                }
                _ => endpoint.iget(&key, offset, base, len),
            }
        }?;
        return Ok(started.request());
    }
    let datatype = datatype_of(operation.datatype)?;
    if kind == NEMESIA_OPERATION_COMPARE_SWAP {
        check_buffer(base, datatype.bytes(), "buffer")?;
        let comparison = if operation.op == 0 { Comparison::Equal } else { comparison_of(operation.op)? };
        let what = (datatype, comparison);
        // SAFETY: the caller's promise.
        let started =
            unsafe { endpoint.icompare_swap(&key, offset, what, [operation.expected, operand], base) }?;
        return Ok(started.request());
    }
    let what = (datatype, reduction_of(operation.op)?);
    if kind == NEMESIA_OPERATION_ACCUMULATE {
        // SAFETY: the caller's promise.
        let started = unsafe { endpoint.iaccumulate(&key, offset, what, base, len, complete) }?;
        return Ok(started.request());
    }
    check_buffer(base, datatype.bytes(), "buffer")?;
    // SAFETY: the caller's promise.
    Ok(unsafe { endpoint.ifetch(&key, offset, what, operand, base) }?.request())
}
