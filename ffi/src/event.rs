//! Waiting in an event loop of the caller's.

use std::os::fd::AsRawFd;

use nemesia::Arm;

use crate::boundary::Out;
use crate::endpoint::{Endpoint, on};
use crate::status::{NEMESIA_BUSY, NEMESIA_OK};

/// Writes a descriptor for poll, epoll or an event library.
///
/// After `nemesia_endpoint_arm`, the descriptor becomes readable if a message has arrived, a pending send has
/// room, or a peer has failed; and about every 50 milliseconds. It stays readable until the endpoint is armed
/// again. Edge-triggered loops see every event after arming.
///
/// - `endpoint`: an open endpoint.
/// - `out_fd`: the descriptor, the same in each call, written on success.
///
/// Returns: NEMESIA_OK; NEMESIA_ERR_ARGUMENT, _SYSTEM (the process has no free descriptor) or _PANIC.
/// Ownership: the endpoint owns the descriptor and closes it. The caller only waits for it and does not read
/// from it.
/// Threads: one at a time, or any number with NEMESIA_THREADS_MULTIPLE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nemesia_endpoint_event_fd(endpoint: *mut Endpoint, out_fd: *mut i32) -> i32 {
    let work = |endpoint: &mut nemesia::Endpoint| {
        // SAFETY: the caller's pointer, null or valid.
        let out = unsafe { Out::required(out_fd, "out_fd") }?;
        out.write(endpoint.event_fd()?.as_raw_fd());
        Ok(NEMESIA_OK)
    };
    // SAFETY: the caller's endpoint, or null.
    unsafe { on(endpoint, work) }
}

/// Prepares one wait for the descriptor of `nemesia_endpoint_event_fd`. Makes progress. First test the
/// requests, or take the completions, then arm, and wait if this function returns NEMESIA_OK. If it returns
/// NEMESIA_BUSY, start again.
/// It does not arm while a completion is in the queue. A blocking call disarms the endpoint.
///
/// - `endpoint`: an open endpoint.
///
/// Returns: NEMESIA_OK; NEMESIA_BUSY if the call itself made progress, and did not arm; NEMESIA_ERR_ARGUMENT
/// or _PANIC.
/// Threads: one at a time, or any number with NEMESIA_THREADS_MULTIPLE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nemesia_endpoint_arm(endpoint: *mut Endpoint) -> i32 {
    let work = |endpoint: &mut nemesia::Endpoint| match endpoint.arm() {
        Arm::Armed => Ok(NEMESIA_OK),
        Arm::Busy => Ok(NEMESIA_BUSY),
    };
    // SAFETY: the caller's endpoint, or null.
    unsafe { on(endpoint, work) }
}

/// Cancels `nemesia_endpoint_arm`, for a caller that continues without waiting. The call is optional, and
/// saves the next sender a system call.
///
/// - `endpoint`: an open endpoint.
///
/// Returns: NEMESIA_OK; NEMESIA_ERR_ARGUMENT or _PANIC.
/// Threads: one at a time, or any number with NEMESIA_THREADS_MULTIPLE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nemesia_endpoint_disarm(endpoint: *mut Endpoint) -> i32 {
    let work = |endpoint: &mut nemesia::Endpoint| {
        endpoint.disarm();
        Ok(NEMESIA_OK)
    };
    // SAFETY: the caller's endpoint, or null.
    unsafe { on(endpoint, work) }
}
