//! Active messages.

use std::cell::Cell;
use std::ffi::c_void;
use std::ptr::{self, slice_from_raw_parts};
use std::sync::atomic::{AtomicU64, Ordering};

use nemesia::{Endpoint as Inner, Incoming as InnerIncoming};

use crate::boundary::{Out, bytes, check_buffer, guard};
use crate::endpoint::{Endpoint, IN_HANDLER, blocking_on, on, rank_in, rank_of};
use crate::handle::{FREE_BITS, Kind, marked, wrong_kind};
use crate::lent::Lent;
use crate::status::{Fault, NEMESIA_ERR_HANDLE, NEMESIA_OK};
use crate::transfer::number;

/// An active message in the hands of its handler, for `nemesia_incoming_reply`. Gone when the handler returns: after
/// that, and in other threads, its use is NEMESIA_ERR_HANDLE.
#[derive(Debug)]
pub struct Incoming(());

/// What is called for an active message.
///
/// - `context`: as given to `nemesia_endpoint_set_handler`.
/// - `rank`: who sent it.
/// - `header`, `header_len`, `payload`, `len`: its two parts; the bytes are Nemesia's, and gone when the handler
///   returns. Neither pointer is NULL; they may be aligned to nothing.
/// - `message`: for `nemesia_incoming_reply`.
///
/// It must not throw and must not jump out (longjmp). It can't use the endpoint: calls return NEMESIA_ERR_ARGUMENT.
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

/// A message whose handler runs in this thread. Handlers nest where one of them uses another endpoint.
struct Running {
    /// What the handler has for it.
    handle: u64,
    /// The endpoint whose handler it is.
    endpoint: usize,
    message: *mut c_void,
    outer: *const Running,
}

thread_local! {
    /// The innermost.
    static RUNNING: Cell<*const Running> = const { Cell::new(ptr::null()) };
    /// The number of this thread's next message.
    static NEXT: Cell<u64> = const { Cell::new(0) };
}

/// Numbers that a thread takes at a time.
const BLOCK: u64 = 1 << 20;
/// Blocks that were taken.
static BLOCKS: AtomicU64 = AtomicU64::new(0);

/// A handle that no other message has, of any thread, until 2^44 messages have been handled.
fn next_handle() -> u64 {
    let mut next = NEXT.get();
    if next.is_multiple_of(BLOCK) {
        next = BLOCKS.fetch_add(1, Ordering::Relaxed) * BLOCK;
    }
    NEXT.set(next + 1);
    marked(next & ((1 << FREE_BITS) - 1), Kind::Incoming)
}

/// Lets `nemesia_incoming_reply` find a message by its handle while `handler` runs.
fn while_handled(endpoint: usize, message: *mut c_void, handler: impl FnOnce(*mut Incoming)) {
    struct Leave(*const Running);
    impl Drop for Leave {
        fn drop(&mut self) {
            RUNNING.set(self.0);
        }
    }
    let running = Running { handle: next_handle(), endpoint, message, outer: RUNNING.get() };
    let _leave = Leave(RUNNING.replace(&raw const running));
    handler(ptr::without_provenance_mut(running.handle as usize));
}

/// Whether this thread is in a handler of an endpoint, perhaps further out: handlers nest.
#[cold]
pub(crate) fn runs_handler_of(endpoint: usize) -> bool {
    let mut at = RUNNING.get();
    // SAFETY: as in `message_of`.
    while let Some(running) = unsafe { at.as_ref() } {
        if running.endpoint == endpoint {
            return true;
        }
        at = running.outer;
    }
    false
}

/// The message of a handle, whose handler runs in this thread.
fn message_of(handle: *const Incoming) -> Result<*mut c_void, Fault> {
    let bits = handle.addr() as u64;
    let mut at = RUNNING.get();
    // SAFETY: what is in the list lies in frames of this thread that have not returned: `while_handled` takes it out.
    while let Some(running) = unsafe { at.as_ref() } {
        if running.handle == bits {
            return Ok(running.message);
        }
        at = running.outer;
    }
    if Kind::of(bits) == Some(Kind::Incoming) {
        let text = "the message is gone: reply within its handler, and in the handler's thread";
        return Err(Fault::new(NEMESIA_ERR_HANDLE, text));
    }
    Err(wrong_kind(bits, Kind::Incoming, "message"))
}

/// The caller's context, which goes where the endpoint goes.
struct Context(*mut c_void);

// SAFETY: the contract of `nemesia_endpoint_set_handler`: it may be used by whichever thread uses the endpoint.
unsafe impl Send for Context {}

impl Context {
    const fn get(&self) -> *mut c_void {
        self.0
    }
}

/// Has a handler called for each active message with this number, from now on and in the place of any before. It is
/// called within whatever call makes progress on this endpoint, in the order in which one sender's messages were sent.
/// Messages for a number without handler are dropped and counted.
///
/// - `endpoint`: an open endpoint.
/// - `number`: 0 to 65535.
/// - `handler`: see `nemesia_handler`; NULL takes the handler away.
/// - `context`: its first argument; may be NULL.
///
/// Returns: NEMESIA_OK; NEMESIA_ERR_ARGUMENT or _PANIC.
/// Ownership: what `context` points to stays the caller's, and is used until the handler is replaced or taken away, or
/// the endpoint is closed.
/// Threads: one at a time, or any number with NEMESIA_THREADS_MULTIPLE; the handler is called by whichever thread makes
/// progress, by one at a time.
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
            let before = IN_HANDLER.replace(handle);
            while_handled(handle, (&raw mut *message).cast(), |incoming| {
                // SAFETY: the caller's function; all pointers are good until it returns.
                unsafe { handler(context.get(), rank, header, header_len, payload, len, incoming) };
            });
            IN_HANDLER.set(before);
        });
        Ok(NEMESIA_OK)
    };
    // SAFETY: the caller's endpoint, or null.
    unsafe { on(endpoint, work) }
}

/// Sends an active message back to the sender of one, from within its handler. It leaves after the handler has
/// returned, in the order of the replies, before what is sent later from outside.
///
/// - `message`: as given to the handler.
/// - `number`: the handler at the sender.
/// - `header`, `header_len`, `payload`, `len`: both parts; NULL is allowed where the length is 0.
///
/// Returns: NEMESIA_OK; NEMESIA_ERR_REPLIES when too many wait to leave: send it later, from outside a handler;
/// NEMESIA_ERR_TOO_LONG, _ARGUMENT or _PANIC; NEMESIA_ERR_HANDLE when the handler has returned, or runs in another
/// thread. Ownership: both parts are copied.
/// Threads: the handler's.
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
        // SAFETY: checked in `bytes`: the caller's buffers, there for as long as this call.
        let (header, payload) =
            unsafe { (bytes(header, header_len, "header")?, bytes(payload, len, "payload")?) };
        // SAFETY: the message that `nemesia_endpoint_set_handler` lends for as long as the handler runs, which it does
        // in this thread: `message_of` has found it. The closure uses it by nothing else meanwhile.
        unsafe { &mut *inner }.reply(number, header, payload)?;
        Ok(NEMESIA_OK)
    };
    guard(work, || ())
}

/// Sends an active message and waits until it has left both buffers.
///
/// - `endpoint`: an open endpoint.
/// - `rank`: the receiver; a message to this process itself is handled by the next progress.
/// - `number`: its handler there.
/// - `header`, `header_len`, `payload`, `len`: both parts, together at most what `nemesia_endpoint_active_bytes` says;
///   NULL is allowed where the length is 0.
///
/// Returns: NEMESIA_OK; NEMESIA_ERR_TOO_LONG, _ARGUMENT, _RANK, _PEER_FAILED, _REQUESTS or _PANIC.
/// Ownership: the buffers are the caller's again when this returns.
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
        // SAFETY: checked in `bytes`: the caller's buffers, there for as long as this call.
        let (header, payload) =
            unsafe { (bytes(header, header_len, "header")?, bytes(payload, len, "payload")?) };
        endpoint.send_active(rank, number, header, payload)?;
        Ok(NEMESIA_OK)
    };
    // SAFETY: the caller's endpoint, or null.
    unsafe { blocking_on(endpoint, work) }
}

/// Starts an active message. `nemesia_endpoint_test` or `nemesia_endpoint_wait` completes it, when it has left both
/// buffers.
///
/// - `endpoint`, `rank`, `number`, `header`, `header_len`, `payload`, `len`: as for `nemesia_endpoint_send_active`.
/// - `out_request`: written on success; NEMESIA_REQUEST_NONE if the message has left already.
///
/// Returns: NEMESIA_OK; NEMESIA_ERR_TOO_LONG, _ARGUMENT, _RANK, _PEER_FAILED, _REQUESTS or _PANIC. After an error
/// nothing was sent.
/// Ownership: the request holds both buffers, which must stay as they are until it is complete or the endpoint is
/// closed. Threads: one at a time, or any number with NEMESIA_THREADS_MULTIPLE.
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
        // SAFETY: the caller's pointer, null or good.
        let out = unsafe { Out::required(out_request, "out_request") }?;
        let rank = rank_in(endpoint, rank)?;
        check_buffer(header.cast::<u8>(), header_len, "header")?;
        check_buffer(payload.cast::<u8>(), len, "payload")?;
        let header = slice_from_raw_parts(header.cast(), header_len);
        let payload = slice_from_raw_parts(payload.cast(), len);
        // SAFETY: the caller's promise: the buffers stay until the request is complete.
        out.write(self::number(unsafe { endpoint.isend_active(rank, number, header, payload) }?));
        Ok(NEMESIA_OK)
    };
    // SAFETY: the caller's endpoint, or null.
    unsafe { on(endpoint, work) }
}

/// The most bytes of an active message, header and payload together: 1 MiB, or a cell if that is more. What does not
/// fit into a cell is streamed, and handled when it is whole, in its order. A reply has to fit into a cell.
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
        // SAFETY: the caller's pointer, null or good.
        unsafe { Out::required(out_bytes, "out_bytes") }?.write(endpoint.active_bytes());
        Ok(NEMESIA_OK)
    };
    // SAFETY: the caller's endpoint, or null.
    unsafe { on(endpoint, work) }
}

/// Active messages that were dropped, as no handler had their number.
///
/// - `endpoint`: an open endpoint.
/// - `out_count`: written on success.
///
/// Returns: NEMESIA_OK; NEMESIA_ERR_ARGUMENT or _PANIC.
/// Threads: one at a time, or any number with NEMESIA_THREADS_MULTIPLE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nemesia_endpoint_unhandled(endpoint: *mut Endpoint, out_count: *mut u64) -> i32 {
    let work = |endpoint: &mut Inner| {
        // SAFETY: the caller's pointer, null or good.
        unsafe { Out::required(out_count, "out_count") }?.write(endpoint.unhandled_messages());
        Ok(NEMESIA_OK)
    };
    // SAFETY: the caller's endpoint, or null.
    unsafe { on(endpoint, work) }
}
