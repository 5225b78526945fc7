//! Messages whose bytes lie in several runs.

use std::ffi::c_void;

use nemesia::{Endpoint as Inner, Segment, Tag};

use crate::boundary::{Out, check_buffer};
use crate::context::{NEMESIA_SEND_READY, NEMESIA_SEND_STANDARD, NEMESIA_SEND_SYNCHRONOUS, no_such_mode};
use crate::endpoint::{Endpoint, on};
use crate::rank::rank_in;
use crate::request::number;
use crate::status::{Fault, NEMESIA_OK};
use crate::transfer::source;

/// A run of bytes, with the layout of POSIX's `struct iovec`: an array of one may be cast to the other.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Iovec {
    /// The first byte; may be NULL if `len` is 0.
    pub base: *mut c_void,
    /// The number of bytes.
    pub len: usize,
}

const _: () = assert!(
    size_of::<Iovec>() == size_of::<Segment>()
        && std::mem::offset_of!(Iovec, base) == std::mem::offset_of!(Segment, base)
        && std::mem::offset_of!(Iovec, len) == std::mem::offset_of!(Segment, len)
);

/// Starts a send of the concatenation of several runs, otherwise as `nemesia_endpoint_isend_in`. Allocates no
/// memory. A large message is streamed, which takes two copies; a message in one run takes one copy.
///
/// - `endpoint`: an open endpoint.
/// - `context`: the matching context; functions without a context use 0.
/// - `mode`: NEMESIA_SEND_STANDARD, _SYNCHRONOUS or _READY.
/// - `rank`: the receiver; it may be this process itself.
/// - `tag`: the value that the receiver matches.
/// - `count`, `list`: the runs, any number; `list` may be NULL if `count` is 0.
/// - `out_request`: written on success; NEMESIA_REQUEST_NONE if the send is complete already.
///
/// Returns: as `nemesia_endpoint_isend`; also NEMESIA_ERR_ARGUMENT if a run is at NULL or the runs have more
/// bytes than memory can hold. After an error no message was sent.
/// Ownership: the request holds the list and its bytes. They must not change until the request is complete or
/// the endpoint is closed. The request belongs to this endpoint.
/// Threads: one at a time, or any number with NEMESIA_THREADS_MULTIPLE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nemesia_endpoint_isendv(
    endpoint: *mut Endpoint,
    context: u16,
    mode: u32,
    rank: i32,
    tag: u64,
    count: usize,
    list: *const Iovec,
    out_request: *mut u64,
) -> i32 {
    let work = |endpoint: &mut Inner| -> Result<i32, Fault> {
        // SAFETY: the caller's pointer, null or valid.
        let out = unsafe { Out::required(out_request, "out_request") }?;
        check_buffer(list, count, "list")?;
        let to = rank_in(endpoint, rank)?;
        let context = endpoint.in_context(context);
        let list = list.cast::<Segment>();
        // SAFETY: the caller's promise: list and bytes do not change until the request is complete.
        let request = unsafe {
            match mode {
                NEMESIA_SEND_STANDARD | NEMESIA_SEND_READY => context.isendv(to, tag, list, count),
                NEMESIA_SEND_SYNCHRONOUS => context.issendv(to, tag, list, count),
                mode => return Err(no_such_mode(mode)),
            }
        };
        out.write(number(request?));
        Ok(NEMESIA_OK)
    };
    // SAFETY: the caller's endpoint, or null.
    unsafe { on(endpoint, work) }
}

/// Starts a receive into several runs, one after the other, otherwise as `nemesia_endpoint_irecv_in`.
/// Allocates no memory. A large message takes one copy if the runs have at least 4 KiB on average and its
/// sender sent it from one run. Otherwise it is streamed.
///
/// - `endpoint`: an open endpoint.
/// - `context`: the matching context; functions without a context use 0.
/// - `rank`: the sender, or NEMESIA_ANY_SOURCE.
/// - `tag`, `ignore`: the message's tag must equal `tag` in every bit that is 0 in `ignore`.
/// - `count`, `list`: the runs that receive the message, any number, without overlap; `list` may be NULL if
///   `count` is 0.
/// - `out_request`: written on success.
///
/// Returns: as `nemesia_endpoint_irecv`; also NEMESIA_ERR_ARGUMENT if a run is at NULL or the runs have more
/// bytes than memory can hold. After an error no receive was posted.
/// Ownership: the request holds the list and its bytes. They must stay valid, and the bytes unused, until the
/// request is complete or cancelled, or the endpoint is closed. The request belongs to this endpoint.
/// Threads: one at a time, or any number with NEMESIA_THREADS_MULTIPLE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nemesia_endpoint_irecvv(
    endpoint: *mut Endpoint,
    context: u16,
    rank: i32,
    tag: u64,
    ignore: u64,
    count: usize,
    list: *const Iovec,
    out_request: *mut u64,
) -> i32 {
    let work = |endpoint: &mut Inner| {
        // SAFETY: the caller's pointer, null or valid.
        let out = unsafe { Out::required(out_request, "out_request") }?;
        check_buffer(list, count, "list")?;
        let (from, tag) = (source(endpoint, rank)?, Tag::Masked { value: tag, ignore });
        let context = endpoint.in_context(context);
        // SAFETY: the caller's promise: list and bytes stay valid until the request is complete.
        out.write(number(unsafe { context.irecvv(from, tag, list.cast::<Segment>(), count) }?));
        Ok(NEMESIA_OK)
    };
    // SAFETY: the caller's endpoint, or null.
    unsafe { on(endpoint, work) }
}
