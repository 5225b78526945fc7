//! Active messages.

use std::ffi::c_void;
use std::ptr::slice_from_raw_parts;

use nemesia::{Endpoint as Inner, Incoming as InnerIncoming};

use crate::boundary::{Out, bytes, check_buffer, guard};
use crate::endpoint::{Endpoint, blocking_on, on};
use crate::lent::Lent;
use crate::rank::{rank_in, rank_of};
use crate::request::number;
use crate::running::{message_of, while_handled};
use crate::status::NEMESIA_OK;

/// An active message in its handler, for `nemesia_incoming_reply`. It ends when the handler returns. Its use
/// after that, or in another thread, returns NEMESIA_ERR_HANDLE.
#[derive(Debug)]
pub struct Incoming(());

/// The function that handles an active message.
///
/// - `context`: the value given to `nemesia_endpoint_set_handler`.
/// - `rank`: the sender.
/// - `header`, `header_len`, `payload`, `len`: the two parts of the message. The bytes belong to the library
///   and are valid until the handler returns. Neither pointer is NULL; they may have any alignment.
/// - `message`: for `nemesia_incoming_reply`.
///
/// The function must not throw and must not jump out (longjmp). Calls on the endpoint from within it return
/// NEMESIA_ERR_ARGUMENT.
pub type Handler = Option<
    unsafe extern "C" fn(
        context: *mut c_void,
        rank: i32,
        header: *const c_void,
        header_len: usize,
        payload: *const c_void,
        len: usize,
        message: *mut Incoming,
    ),
>;

/// The caller's context, which moves with the endpoint between threads.
struct Context(*mut c_void);

// SAFETY: the contract of `nemesia_endpoint_set_handler`: any thread that uses the endpoint may use it.
unsafe impl Send for Context {}

impl Context {
    const fn get(&self) -> *mut c_void {
        self.0
    }
}

/// Sets the handler of the active messages with a number, and replaces an earlier one. The library calls it
/// during the calls that make progress on this endpoint. The messages of one sender are handled in the order
/// in which they were sent. A message without a handler is dropped and counted.
///
/// - `endpoint`: an open endpoint.
/// - `number`: 0 to 65535.
/// - `handler`: see `nemesia_handler`; NULL removes the handler.
/// - `context`: the first argument of the handler; may be NULL.
///
/// Returns: NEMESIA_OK; NEMESIA_ERR_ARGUMENT or _PANIC.
/// Ownership: the caller owns the target of `context`. The library uses it until the handler is replaced or
/// removed, or the endpoint is closed.
/// Threads: one at a time, or any number with NEMESIA_THREADS_MULTIPLE. Any thread that makes progress calls
/// the handler, one thread at a time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nemesia_endpoint_set_handler(
    endpoint: *mut Endpoint,
    number: u16,
    handler: Handler,
    context: *mut c_void,
) -> i32 {
    let handle = endpoint.addr();
    let context = Context(context);
    let work = |endpoint: &mut Inner| {
        let Some(handler) = handler else {
            endpoint.remove_handler(number);
            return Ok(NEMESIA_OK);
        };
        endpoint.set_handler(number, move |message| {
            let (header, payload) = (message.header(), message.payload());
            let (header, header_len) = (header.as_ptr().cast(), header.len());
            let (payload, len) = (payload.as_ptr().cast(), payload.len());
            let rank = rank_of(message.from());
            while_handled(handle, (&raw mut *message).cast(), |incoming| {
                // SAFETY: the caller's function; all pointers are valid until it returns.
                unsafe { handler(context.get(), rank, header, header_len, payload, len, incoming) };
            });
        });
        Ok(NEMESIA_OK)
    };
    // SAFETY: the caller's endpoint, or null.
    unsafe { on(endpoint, work) }
}

/// Sends an active message to the sender of one, from within its handler. It leaves after the handler has
/// returned. Replies leave in order, and before messages that are sent later outside of handlers.
///
/// - `message`: the handler's argument.
/// - `number`: the number of the handler at the sender.
/// - `header`, `header_len`, `payload`, `len`: both parts; a pointer may be NULL if its length is 0.
///
/// Returns: NEMESIA_OK; NEMESIA_ERR_REPLIES if the limit on waiting replies is reached: send the message
/// later, outside of handlers; NEMESIA_ERR_TOO_LONG, _ARGUMENT or _PANIC; NEMESIA_ERR_HANDLE if the handler
/// has returned or runs in another thread.
/// Ownership: both parts are copied.
/// Threads: only the handler's thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nemesia_incoming_reply(
    message: *mut Incoming,
    number: u16,
    header: *const c_void,
    header_len: usize,
    payload: *const c_void,
    len: usize,
) -> i32 {
    let work = || {
        let inner = message_of(message)?.cast::<InnerIncoming<'_>>();
        // SAFETY: checked in `bytes`: the caller's buffers, valid during this call.
        let (header, payload) =
            unsafe { (bytes(header, header_len, "header")?, bytes(payload, len, "payload")?) };
        // SAFETY: the message that `nemesia_endpoint_set_handler` lends while the handler runs. It runs in
        // this thread, because `message_of` has found the message. The closure accesses it in no other way
        // meanwhile.
        unsafe { &mut *inner }.reply(number, header, payload)?;
        Ok(NEMESIA_OK)
    };
    guard(work, || ())
}

/// Sends an active message and waits until both buffers can be reused.
///
/// - `endpoint`: an open endpoint.
/// - `rank`: the receiver. The next progress handles a message to this process itself.
/// - `number`: the number of the handler there.
/// - `header`, `header_len`, `payload`, `len`: both parts, together at most the bytes that
///   `nemesia_endpoint_active_bytes` returns; a pointer may be NULL if its length is 0.
///
/// Returns: NEMESIA_OK; NEMESIA_ERR_TOO_LONG, _ARGUMENT, _RANK, _PEER_FAILED, _REQUESTS or _PANIC.
/// Ownership: the caller may reuse the buffers after the return.
/// Threads: one at a time, or any number with NEMESIA_THREADS_MULTIPLE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nemesia_endpoint_send_active(
    endpoint: *mut Endpoint,
    rank: i32,
    number: u16,
    header: *const c_void,
    header_len: usize,
    payload: *const c_void,
    len: usize,
) -> i32 {
    let work = |mut endpoint: Lent<'_>| {
        let rank = endpoint.rank_in(rank)?;
        // SAFETY: checked in `bytes`: the caller's buffers, valid during this call.
        let (header, payload) =
            unsafe { (bytes(header, header_len, "header")?, bytes(payload, len, "payload")?) };
        endpoint.send_active(rank, number, header, payload)?;
        Ok(NEMESIA_OK)
    };
    // SAFETY: the caller's endpoint, or null.
    unsafe { blocking_on(endpoint, work) }
}

/// Starts an active message. `nemesia_endpoint_test` or `nemesia_endpoint_wait` completes it, when both
/// buffers can be reused.
///
/// - `endpoint`, `rank`, `number`, `header`, `header_len`, `payload`, `len`: as for `nemesia_endpoint_send_active`.
/// - `out_request`: written on success; NEMESIA_REQUEST_NONE if the message has left already.
///
/// Returns: NEMESIA_OK; NEMESIA_ERR_TOO_LONG, _ARGUMENT, _RANK, _PEER_FAILED, _REQUESTS or _PANIC. After an
/// error no message was sent.
/// Ownership: the request holds both buffers. They must not change until the request is complete or the
/// endpoint is closed.
/// Threads: one at a time, or any number with NEMESIA_THREADS_MULTIPLE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nemesia_endpoint_isend_active(
    endpoint: *mut Endpoint,
    rank: i32,
    number: u16,
    header: *const c_void,
    header_len: usize,
    payload: *const c_void,
    len: usize,
    out_request: *mut u64,
) -> i32 {
    let work = |endpoint: &mut Inner| {
        // SAFETY: the caller's pointer, null or valid.
        let out = unsafe { Out::required(out_request, "out_request") }?;
        let rank = rank_in(endpoint, rank)?;
        check_buffer(header.cast::<u8>(), header_len, "header")?;
        check_buffer(payload.cast::<u8>(), len, "payload")?;
        let header = slice_from_raw_parts(header.cast(), header_len);
        let payload = slice_from_raw_parts(payload.cast(), len);
        // SAFETY: the caller's promise: the buffers do not change until the request is complete.
        out.write(self::number(unsafe { endpoint.isend_active(rank, number, header, payload) }?));
        Ok(NEMESIA_OK)
    };
    // SAFETY: the caller's endpoint, or null.
    unsafe { on(endpoint, work) }
}

/// Writes the maximum length of an active message, header and payload together: 1 MiB, or a cell if that is
/// larger. A message that does not fit into a cell is streamed. It is handled when it is complete, in its
/// order. A reply must fit into a cell.
///
/// - `endpoint`: an open endpoint.
/// - `out_bytes`: written on success.
///
/// Returns: NEMESIA_OK; NEMESIA_ERR_ARGUMENT or _PANIC.
/// Threads: one at a time, or any number with NEMESIA_THREADS_MULTIPLE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nemesia_endpoint_active_bytes(
    endpoint: *mut Endpoint,
    out_bytes: *mut usize,
) -> i32 {
    let work = |endpoint: &mut Inner| {
        // SAFETY: the caller's pointer, null or valid.
        unsafe { Out::required(out_bytes, "out_bytes") }?.write(endpoint.active_bytes());
        Ok(NEMESIA_OK)
    };
    // SAFETY: the caller's endpoint, or null.
    unsafe { on(endpoint, work) }
}

/// Writes the number of active messages that were dropped because their number had no handler.
///
/// - `endpoint`: an open endpoint.
/// - `out_count`: written on success.
///
/// Returns: NEMESIA_OK; NEMESIA_ERR_ARGUMENT or _PANIC.
/// Threads: one at a time, or any number with NEMESIA_THREADS_MULTIPLE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nemesia_endpoint_unhandled(endpoint: *mut Endpoint, out_count: *mut u64) -> i32 {
    let work = |endpoint: &mut Inner| {
        // SAFETY: the caller's pointer, null or valid.
        unsafe { Out::required(out_count, "out_count") }?.write(endpoint.unhandled_messages());
        Ok(NEMESIA_OK)
    };
    // SAFETY: the caller's endpoint, or null.
    unsafe { on(endpoint, work) }
}
