//! Any operation, described by one structure.

use std::ffi::c_void;
use std::ptr::slice_from_raw_parts;

use nemesia::{Comparison, CompleteAt, Endpoint as Inner, Region, Request, Segment, Tag, WithCompletion};

use crate::boundary::{Out, Versioned, check_buffer, read_versioned};
use crate::context::{NEMESIA_SEND_READY, NEMESIA_SEND_STANDARD, NEMESIA_SEND_SYNCHRONOUS, no_such_mode};
use crate::endpoint::{Endpoint, on};
use crate::fetch::comparison_of;
use crate::list::Iovec;
use crate::multi::{ManyMessages, NEMESIA_OPERATION_MULTI_RECEIVE};
use crate::probe::{check_list, named_message};
use crate::rank::rank_in;
use crate::request::number;
use crate::rma::{RemoteKey, datatype_of, key_of, reduction_of};
use crate::status::{Fault, NEMESIA_OK};
use crate::transfer::source;

/// A send of a tagged message: `mode`, `context`, `rank`, `tag`, and the bytes.
pub const NEMESIA_OPERATION_SEND: u32 = 1;
/// A receive of a tagged message: `context`, `rank`, `tag`, `ignore`, and the bytes.
pub const NEMESIA_OPERATION_RECEIVE: u32 = 2;
/// A receive of a message that a probe removed: `message`, and the bytes.
pub const NEMESIA_OPERATION_MATCHED_RECEIVE: u32 = 3;
/// An active message: `rank`, `handler`, `header`, `header_len`, and the payload in `buffer` and `len`.
pub const NEMESIA_OPERATION_ACTIVE: u32 = 4;
/// A put: `key`, `offset`, `buffer`, `len`, and NEMESIA_OPERATION_NOTIFY in `flags` where wanted.
pub const NEMESIA_OPERATION_PUT: u32 = 5;
/// A get: `key`, `offset`, `buffer`, `len`.
pub const NEMESIA_OPERATION_GET: u32 = 6;
/// An accumulate: `key`, `offset`, `datatype`, `op`, and the operands in `buffer` and `len`.
pub const NEMESIA_OPERATION_ACCUMULATE: u32 = 7;
/// A fetch of one value: `key`, `offset`, `datatype`, `op`, `operand`; the old value goes to `buffer`.
pub const NEMESIA_OPERATION_FETCH: u32 = 8;
/// A compare and swap: `key`, `offset`, `datatype`, `op` (NEMESIA_COMPARE_..., or 0 for NEMESIA_COMPARE_EQUAL),
/// `expected`, `operand`; the old value goes to `buffer`.
pub const NEMESIA_OPERATION_COMPARE_SWAP: u32 = 9;
/// A flush: `rank`.
pub const NEMESIA_OPERATION_FLUSH: u32 = 10;
/// A wait for notifications: `region`, and their number in `operand`.
pub const NEMESIA_OPERATION_NOTIFIED: u32 = 11;

/// A flag of an operation: its completion enters the completion queue, with `user_context`.
pub const NEMESIA_OPERATION_COMPLETION: u32 = 1;
/// A flag of a put: the count of notifications of the region grows by one when the bytes are there.
pub const NEMESIA_OPERATION_NOTIFY: u32 = 2;
/// A flag of a put or an accumulate: the operation is complete when its target has executed it.
pub const NEMESIA_OPERATION_DELIVERED: u32 = 4;

/// An operation. Set `struct_size` to its size, all fields that the operation does not use to 0, and start it by
/// `nemesia_endpoint_start`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Operation {
    /// The size of this structure in bytes: `sizeof(nemesia_operation)`.
    pub struct_size: u64,
    /// With NEMESIA_OPERATION_COMPLETION: any number, which comes back in the completion. For instance the
    /// address of the caller's own request.
    pub user_context: u64,
    /// NEMESIA_OPERATION_SEND, _RECEIVE, and so on.
    pub kind: u32,
    /// NEMESIA_OPERATION_COMPLETION, NEMESIA_OPERATION_NOTIFY, NEMESIA_OPERATION_DELIVERED, or 0.
    pub flags: u32,
    /// A send: NEMESIA_SEND_STANDARD, _SYNCHRONOUS or _READY.
    pub mode: u32,
    /// The receiver; the sender or NEMESIA_ANY_SOURCE; or the rank of a flush.
    pub rank: i32,
    /// The matching context.
    pub context: u16,
    /// The number of the handler of an active message.
    pub handler: u16,
    /// The type of the values of an atomic operation.
    pub datatype: u32,
    /// The operation of an accumulate or a fetch, or the comparison of a compare and swap.
    pub op: u32,
    /// 0.
    pub reserved: u32,
    /// The tag of the message.
    pub tag: u64,
    /// A receive: the bits of the tag that are not compared.
    pub ignore: u64,
    /// The bytes to send, or the buffer that receives; may be NULL if `len` is 0. A send does not change them.
    pub buffer: *mut c_void,
    /// The number of bytes.
    pub len: usize,
    /// The bytes in several runs instead; NULL if they are in `buffer`. For tagged messages.
    pub list: *const Iovec,
    /// The number of runs.
    pub count: usize,
    /// The header of an active message.
    pub header: *const c_void,
    /// Its number of bytes.
    pub header_len: usize,
    /// The message of a matched receive, from `nemesia_endpoint_improbe` or `nemesia_endpoint_mprobe`.
    pub message: u64,
    /// The key of a one-sided operation. It is copied.
    pub key: *const RemoteKey,
    /// The offset of the first byte in the region.
    pub offset: u64,
    /// The operand or the new value, as bits; types of four bytes use the low half. Or the number of
    /// notifications.
    pub operand: u64,
    /// The expected value of a compare and swap, as bits.
    pub expected: u64,
    /// The region of a wait for notifications.
    pub region: u64,
}

// SAFETY: `repr(C)`, numbers and pointers only; the fields of less than eight bytes fill whole words, as the sum of
// the sizes shows; and it begins with its size.
unsafe impl Versioned for Operation {
    const NAME: &'static str = "nemesia_operation";
    const FIRST: usize = size_of::<Self>();
    const UNSET: u8 = 0;
}

const _: () = assert!(
    size_of::<Operation>() == 20 * size_of::<u64>()
        && std::mem::offset_of!(Operation, tag) == 6 * size_of::<u64>()
);

/// Starts any operation. The plain functions, such as `nemesia_endpoint_isend`, do the same for the plain cases.
///
/// - `endpoint`: an open endpoint.
/// - `operation`: the operation; see `nemesia_operation`.
/// - `out_request`: the request, written on success. With NEMESIA_OPERATION_COMPLETION it serves
///   `nemesia_endpoint_cancel` only, and may be NULL: tests and waits return NEMESIA_ERR_STALE for it. An
///   operation that is complete when it starts makes an entry in the completion queue, too.
///
/// Returns: as the plain function of the operation; NEMESIA_ERR_ARGUMENT also for an unknown kind or flag. After
/// an error nothing was started, and nothing enters the queue.
/// Ownership: the operation holds its buffers and its list until it is complete; with
/// NEMESIA_OPERATION_COMPLETION, until its completion was taken. The structure itself is copied.
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
        let is_queued = operation.flags & NEMESIA_OPERATION_COMPLETION != 0;
        // SAFETY: the caller's pointer, null or valid.
        let out = unsafe {
            if is_queued { Out::optional(out_request) } else { Out::required(out_request, "out_request")? }
        };
        let known = NEMESIA_OPERATION_COMPLETION
            | match operation.kind {
                NEMESIA_OPERATION_PUT => NEMESIA_OPERATION_NOTIFY | NEMESIA_OPERATION_DELIVERED,
                NEMESIA_OPERATION_ACCUMULATE => NEMESIA_OPERATION_DELIVERED,
                _ => 0,
            };
        if operation.flags & !known != 0 {
            let flags = operation.flags;
            return Err(Fault::argument(format!("flags are {flags:#x}: the operation has no such flag")));
        }
        // SAFETY: the caller's promise: the buffers stay valid until the operation is complete.
        out.write(number(unsafe { start(endpoint, &operation, is_queued) }?));
        Ok(NEMESIA_OK)
    };
    // SAFETY: the caller's endpoint, or null.
    unsafe { on(endpoint, work) }
}

/// # Safety
/// The buffers of the operation are the caller's, and stay valid until it is complete.
unsafe fn start(endpoint: &mut Inner, operation: &Operation, is_queued: bool) -> Result<Request, Fault> {
    let Operation { kind, rank, buffer, len, list, count, .. } = *operation;
    let tagged = matches!(
        kind,
        NEMESIA_OPERATION_SEND | NEMESIA_OPERATION_RECEIVE | NEMESIA_OPERATION_MATCHED_RECEIVE
    );
    if !list.is_null() {
        if !tagged {
            return Err(Fault::argument("list is not NULL: only tagged messages take several runs"));
        }
        check_buffer(list, count, "list")?;
    }
    check_buffer(buffer.cast::<u8>(), if list.is_null() { len } else { 0 }, "buffer")?;
    let context = is_queued.then_some(operation.user_context);
    let started = match kind {
        // SAFETY: the caller's promise.
        _ if tagged => return unsafe { start_tagged(endpoint, operation, context) },
        NEMESIA_OPERATION_ACTIVE => {
            let to = rank_in(endpoint, rank)?;
            check_buffer(operation.header.cast::<u8>(), operation.header_len, "header")?;
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

/// Starts a send or a receive of a tagged message.
///
/// # Safety
/// As [`start`]; `buffer` and `list` are checked.
unsafe fn start_tagged(
    endpoint: &mut Inner,
    operation: &Operation,
    context: Option<u64>,
) -> Result<Request, Fault> {
    let Operation { kind, mode, rank, tag, ignore, buffer, len, list, count, .. } = *operation;
    let runs = (!list.is_null()).then_some(list.cast::<Segment>());
    if kind == NEMESIA_OPERATION_MATCHED_RECEIVE {
        if runs.is_some() {
            // SAFETY: the caller's list.
            unsafe { check_list(list, count) }?;
        }
        let message = named_message(endpoint, operation.message);
        let endpoint = endpoint.with_completion_or_request(context);
        // SAFETY: the caller's promise.
        let started = unsafe {
            match runs {
                Some(runs) => endpoint.imrecvv(message, runs, count),
                None => endpoint.imrecv(message, buffer.cast(), len),
            }
        }?;
        return Ok(started.request());
    }
    if kind == NEMESIA_OPERATION_RECEIVE {
        let (from, tag) = (source(endpoint, rank)?, Tag::Masked { value: tag, ignore });
        let endpoint = endpoint.with_completion_or_request(context).in_context(operation.context);
        // SAFETY: the caller's promise.
        let started = unsafe {
            match runs {
                Some(runs) => endpoint.irecvv(from, tag, runs, count),
                None => endpoint.irecv(from, tag, buffer.cast(), len),
            }
        }?;
        return Ok(started.request());
    }
    let to = rank_in(endpoint, rank)?;
    let endpoint = endpoint.with_completion_or_request(context).in_context(operation.context);
    // SAFETY: the caller's promise.
    let started = unsafe {
        match (mode, runs) {
            (NEMESIA_SEND_STANDARD | NEMESIA_SEND_READY, None) => endpoint.isend(to, tag, buffer.cast(), len),
            (NEMESIA_SEND_STANDARD | NEMESIA_SEND_READY, Some(runs)) => endpoint.isendv(to, tag, runs, count),
            (NEMESIA_SEND_SYNCHRONOUS, None) => endpoint.issend(to, tag, buffer.cast(), len),
            (NEMESIA_SEND_SYNCHRONOUS, Some(runs)) => endpoint.issendv(to, tag, runs, count),
            (mode, _) => return Err(no_such_mode(mode)),
        }
    };
    Ok(started?.request())
}

/// Starts a one-sided operation on a region.
///
/// # Safety
/// As [`start`]; `buffer` is checked for `len` bytes.
unsafe fn start_remote(endpoint: WithCompletion<'_>, operation: &Operation) -> Result<Request, Fault> {
    let Operation { kind, flags, offset, buffer, len, operand, .. } = *operation;
    let remote = NEMESIA_OPERATION_PUT..=NEMESIA_OPERATION_COMPARE_SWAP;
    if !remote.contains(&kind) {
        return Err(Fault::argument(format!("kind is {kind}: it must be one of NEMESIA_OPERATION_...")));
    }
    // SAFETY: the caller's pointer, null or valid.
    let key = unsafe { key_of(operation.key) }?;
    let base = buffer.cast::<u8>();
    let is_delivered = flags & NEMESIA_OPERATION_DELIVERED != 0;
    let complete = if is_delivered { CompleteAt::Target } else { CompleteAt::Origin };
    if matches!(kind, NEMESIA_OPERATION_PUT | NEMESIA_OPERATION_GET) {
        // SAFETY: the caller's promise.
        let started = unsafe {
            match kind {
                NEMESIA_OPERATION_PUT => {
                    let notify = flags & NEMESIA_OPERATION_NOTIFY != 0;
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
