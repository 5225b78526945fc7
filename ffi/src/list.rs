//! Messages whose bytes are not in one place.

use std::ffi::c_void;

use nemesia::{Endpoint as Inner, Segment, Tag};

use crate::boundary::{Out, check_buffer};
use crate::context::{NEMESIA_SEND_READY, NEMESIA_SEND_STANDARD, NEMESIA_SEND_SYNCHRONOUS, no_such_mode};
use crate::endpoint::{Endpoint, on, rank_in};
use crate::status::{Fault, NEMESIA_OK};
use crate::transfer::{number, source};

/// One run of bytes. Laid out as POSIX's `struct iovec`: arrays of one may be cast to the other.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Iovec {
    /// The first byte; may be NULL if `len` is 0.
    pub base: *mut c_void,
    /// How many bytes.
    pub len: usize,
}

const _: () = assert!(
    size_of::<Iovec>() == size_of::<Segment>()
        && std::mem::offset_of!(Iovec, base) == std::mem::offset_of!(Segment, base)
        && std::mem::offset_of!(Iovec, len) == std::mem::offset_of!(Segment, len)
);

/// As `nemesia_endpoint_isend_in`, of the bytes of several runs, one after the other. Nothing is allocated. A large
/// message is streamed, in two copies, where one that is in one place takes one.
///
/// - `endpoint`: an open endpoint.
/// - `context`: the matching context; 0 is that of the functions that take none.
/// - `mode`: NEMESIA_SEND_STANDARD, _SYNCHRONOUS or _READY.
/// - `rank`: the receiver; it may be this process itself.
/// - `tag`: what the receiver matches it by.
/// - `count`, `list`: the runs, any number; `list` may be NULL if `count` is 0.
/// - `out_request`: written on success; NEMESIA_REQUEST_NONE if the send is complete already.
///
/// Returns: as `nemesia_endpoint_isend`; NEMESIA_ERR_ARGUMENT, too, if a run is at NULL or they are more bytes than any
/// memory has. After an error nothing was sent.
/// Ownership: the request holds the list and its bytes, which must stay as they are until the request is complete or
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
        // SAFETY: the caller's pointer, null or good.
        let out = unsafe { Out::required(out_request, "out_request") }?;
        check_buffer(list, count, "list")?;
        let to = rank_in(endpoint, rank)?;
        let context = endpoint.in_context(context);
        let list = list.cast::<Segment>();
        // SAFETY: the caller's promise: list and bytes stay until the request is complete.
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

/// As `nemesia_endpoint_irecv_in`, into several runs, one after the other. Nothing is allocated. A large message takes
/// one copy if the runs have 4 KiB and more on average, and it was sent from one place; else it is streamed.
///
/// - `endpoint`: an open endpoint.
/// - `context`: the matching context; 0 is that of the functions that take none.
/// - `rank`: the sender, or NEMESIA_ANY_SOURCE.
/// - `tag`, `ignore`: the message's tag must agree with `tag` in every bit that `ignore` does not set.
/// - `count`, `list`: where the message goes: runs, any number, which do not overlap; `list` may be NULL if `count` is 0.
/// - `out_request`: written on success.
///
/// Returns: as `nemesia_endpoint_irecv`; NEMESIA_ERR_ARGUMENT, too, if a run is at NULL or they are more bytes than any
/// memory has. After an error nothing was posted.
/// Ownership: the request holds the list and its bytes; they must stay, and nobody else uses the bytes, until the
/// request is complete or withdrawn, or the endpoint is closed. The request belongs to this endpoint.
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
        // SAFETY: the caller's pointer, null or good.
        let out = unsafe { Out::required(out_request, "out_request") }?;
        check_buffer(list, count, "list")?;
        let (from, tag) = (source(endpoint, rank)?, Tag::Masked { value: tag, ignore });
        let context = endpoint.in_context(context);
        // SAFETY: the caller's promise: list and bytes stay until the request is complete.
        out.write(number(unsafe { context.irecvv(from, tag, list.cast::<Segment>(), count) }?));
        Ok(NEMESIA_OK)
    };
    // SAFETY: the caller's endpoint, or null.
    unsafe { on(endpoint, work) }
}
