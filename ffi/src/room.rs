//! The room for unexpected messages.

use crate::endpoint::{Endpoint, on};
use crate::request::named;
use crate::status::NEMESIA_OK;

/// Checks that no lack of room for unexpected messages keeps a request from completing. For callers that only
/// test requests: a wait for the request would return the same status, once it has lasted for some 50 ms.
///
/// - `endpoint`: an open endpoint.
/// - `request`: a request in progress.
///
/// Returns: NEMESIA_OK; NEMESIA_ERR_UNEXPECTED_FULL if the message of this receive cannot come, or this message
/// to the own rank cannot be stored, before other messages are received: the text of the error names the limit
/// and the settings. The request stays as it is; NEMESIA_ERR_ARGUMENT, _HANDLE, _FORKED or _PANIC.
/// Threads: one at a time for an endpoint, or any number with NEMESIA_THREADS_MULTIPLE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nemesia_endpoint_check_room(endpoint: *mut Endpoint, request: u64) -> i32 {
    let work = |endpoint: &mut nemesia::Endpoint| {
        endpoint.check_room(named(request))?;
        Ok(NEMESIA_OK)
    };
    // SAFETY: the caller's endpoint, or null.
    unsafe { on(endpoint, work) }
}
