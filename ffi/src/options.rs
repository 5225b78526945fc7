//! Sends with options: immediate data, send mode and context in one structure.

use std::ffi::c_void;

use nemesia::{Endpoint as Inner, Segment, SendOptions};

use crate::boundary::{Out, Versioned, bytes, check_buffer, read_versioned};
use crate::context::{NEMESIA_SEND_READY, NEMESIA_SEND_STANDARD, NEMESIA_SEND_SYNCHRONOUS, no_such_mode};
use crate::endpoint::{Endpoint, blocking_on, on};
use crate::lent::Lent;
use crate::list::Iovec;
use crate::rank::rank_in;
use crate::request::number;
use crate::status::{Fault, NEMESIA_OK};

/// The options of a send. A structure of zeros, except `struct_size`, is a standard send in context 0 without
/// immediate data.
///
/// Immediate data are 64 bits that travel with the message, beside its tag. They are not matched. Receives and
/// probes write them into `nemesia_status`. A message without them costs nothing more.
///
/// A send in the mode NEMESIA_SEND_SYNCHRONOUS is complete when the receiver has put the message into the buffer of
/// a receive. Up to NEMESIA_EAGER_BYTES, its message travels at once, and a small packet comes back.
///
/// Lifetime: the structure is copied.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SendOptionsOfC {
    /// sizeof(nemesia_send_options); later versions have more fields at the end.
    pub struct_size: u64,
    /// The immediate data, if `has_immediate` is 1; else it is ignored.
    pub immediate: u64,
    /// 1 if the message has immediate data, else 0.
    pub has_immediate: u32,
    /// NEMESIA_SEND_STANDARD, _SYNCHRONOUS or _READY.
    pub mode: u32,
    /// The matching context.
    pub context: u32,
    /// 0.
    pub reserved: u32,
}

// SAFETY: numbers without padding.
unsafe impl Versioned for SendOptionsOfC {
    const NAME: &'static str = "nemesia_send_options";
    const FIRST: usize = size_of::<Self>();
    const UNSET: u8 = 0;
}

impl SendOptionsOfC {
    /// Returns the context and the options, checked.
    fn checked(&self) -> Result<(u16, SendOptions), Fault> {
        let Self { immediate, has_immediate, mode, context, reserved, .. } = *self;
        let synchronous = match mode {
            NEMESIA_SEND_STANDARD | NEMESIA_SEND_READY => false,
            NEMESIA_SEND_SYNCHRONOUS => true,
            mode => return Err(no_such_mode(mode)),
        };
        let context = u16::try_from(context)
            .map_err(|_| Fault::argument(format!("context is {context}: it must be at most 65535")))?;
        if has_immediate > 1 || reserved != 0 {
            let text =
                format!("has_immediate is {has_immediate}, reserved {reserved}: at most 1 and 0 are valid");
            return Err(Fault::argument(text));
        }
        Ok((context, SendOptions { immediate: (has_immediate == 1).then_some(immediate), synchronous }))
    }
}

/// Sends a message with options, otherwise as `nemesia_endpoint_send`.
///
/// - `endpoint`: an open endpoint.
/// - `options`: context, mode and immediate data.
/// - `rank`: the receiver; it may be this process itself.
/// - `tag`: the value that the receiver matches.
/// - `buffer`, `len`: the message; `buffer` may be NULL if `len` is 0.
///
/// Returns: as `nemesia_endpoint_send`; NEMESIA_ERR_ARGUMENT also if an option is invalid.
/// Ownership: the caller may reuse the buffer and the options after the return.
/// Threads: one at a time, or any number with NEMESIA_THREADS_MULTIPLE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nemesia_endpoint_send_with(
    endpoint: *mut Endpoint,
    options: *const SendOptionsOfC,
    rank: i32,
    tag: u64,
    buffer: *const c_void,
    len: usize,
) -> i32 {
    let work = |mut endpoint: Lent<'_>| {
        // SAFETY: the caller's structure, null or as long as it states.
        let (context, options) = unsafe { read_versioned(options) }?.checked()?;
        // SAFETY: the caller's buffer, which does not change before this function returns.
        let bytes = unsafe { bytes(buffer, len, "buffer") }?;
        let to = endpoint.rank_in(rank)?;
        endpoint.send_with(context, to, tag, bytes, options)?;
        Ok(NEMESIA_OK)
    };
    // SAFETY: the caller's endpoint, or null.
    unsafe { blocking_on(endpoint, work) }
}

/// Starts a send of the concatenation of several runs with options, otherwise as `nemesia_endpoint_isendv`. A message
/// in one run is treated as by `nemesia_endpoint_isend`.
///
/// - `endpoint`: an open endpoint.
/// - `options`: context, mode and immediate data.
/// - `rank`: the receiver; it may be this process itself.
/// - `tag`: the value that the receiver matches.
/// - `count`, `list`: the runs, any number; `list` may be NULL if `count` is 0.
/// - `out_request`: written on success; NEMESIA_REQUEST_NONE if the send is complete already.
///
/// Returns: as `nemesia_endpoint_isendv`; NEMESIA_ERR_ARGUMENT also if an option is invalid. After an error no message
/// was sent.
/// Ownership: the caller may reuse the options after the return. The request holds the bytes, and, unless `count` is 1,
/// the list. They must not change until the request is complete or the endpoint is closed. The request belongs to this
/// endpoint.
/// Threads: one at a time, or any number with NEMESIA_THREADS_MULTIPLE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nemesia_endpoint_isend_with(
    endpoint: *mut Endpoint,
    options: *const SendOptionsOfC,
    rank: i32,
    tag: u64,
    count: usize,
    list: *const Iovec,
    out_request: *mut u64,
) -> i32 {
    let work = |endpoint: &mut Inner| {
        // SAFETY: the caller's pointer, null or valid.
        let out = unsafe { Out::required(out_request, "out_request") }?;
        // SAFETY: the caller's structure, null or as long as it states.
        let (context, options) = unsafe { read_versioned(options) }?.checked()?;
        check_buffer(list, count, "list")?;
        let to = rank_in(endpoint, rank)?;
        let context = endpoint.in_context(context);
        if count == 1 {
            // SAFETY: the caller's list has one run.
            let Iovec { base, len } = unsafe { list.read() };
            check_buffer(base.cast::<u8>(), len, "base")?;
            // SAFETY: the caller's promise: the bytes do not change until the request is complete.
            out.write(number(unsafe { context.isend_with(to, tag, base.cast(), len, options) }?));
            return Ok(NEMESIA_OK);
        }
        let list = list.cast::<Segment>();
        // SAFETY: the caller's promise: list and bytes do not change until the request is complete.
        out.write(number(unsafe { context.isendv_with(to, tag, list, count, options) }?));
        Ok(NEMESIA_OK)
    };
    // SAFETY: the caller's endpoint, or null.
    unsafe { on(endpoint, work) }
}
