//! Waiting in an event loop of the caller's.

use std::os::fd::AsRawFd;

use nemesia::Arm;

use crate::boundary::Out;
use crate::endpoint::{Endpoint, on};
use crate::status::{NEMESIA_BUSY, NEMESIA_OK};

/// A descriptor for poll, epoll or an event library. When the endpoint is armed (`nemesia_endpoint_arm`), it becomes
/// readable when a message has come, when there is room for a send that waits, or when a peer is gone; and about every
/// 50 milliseconds. It stays readable until the endpoint is armed again; edge-triggered loops are told of everything
/// that happens after arming.
///
/// - `endpoint`: an open endpoint.
/// - `out_fd`: the descriptor, always the same one, written on success.
///
/// Returns: NEMESIA_OK; NEMESIA_ERR_ARGUMENT, _SYSTEM (no descriptor is left) or _PANIC.
/// Ownership: the descriptor is the endpoint's, until it is closed. It is to be waited for only: not read, not closed.
/// Threads: one at a time, or any number with NEMESIA_THREADS_MULTIPLE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nemesia_endpoint_event_fd(endpoint: *mut Endpoint, out_fd: *mut i32) -> i32 {
    let work = |endpoint: &mut nemesia::Endpoint| {
        // SAFETY: the caller's pointer, null or good.
        let out = unsafe { Out::required(out_fd, "out_fd") }?;
        out.write(endpoint.event_fd()?.as_raw_fd());
        Ok(NEMESIA_OK)
    };
    // SAFETY: the caller's endpoint, or null.
    unsafe { on(endpoint, work) }
}

/// Prepares for waiting for the descriptor of `nemesia_endpoint_event_fd`, once: test the requests, then arm, and wait
/// if this returns NEMESIA_OK; if it returns NEMESIA_BUSY begin again. Makes progress. A call that blocks disarms.
///
/// - `endpoint`: an open endpoint.
///
/// Returns: NEMESIA_OK; NEMESIA_BUSY if something was done just now, and nothing is armed; NEMESIA_ERR_ARGUMENT or
/// _PANIC. Threads: one at a time, or any number with NEMESIA_THREADS_MULTIPLE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nemesia_endpoint_arm(endpoint: *mut Endpoint) -> i32 {
    let work = |endpoint: &mut nemesia::Endpoint| match endpoint.arm() {
        Arm::Armed => Ok(NEMESIA_OK),
        Arm::Busy => Ok(NEMESIA_BUSY),
    };
    // SAFETY: the caller's endpoint, or null.
    unsafe { on(endpoint, work) }
}

/// Takes back `nemesia_endpoint_arm`, for a caller that goes on without waiting. Not needed, but it saves the next
/// sender a system call.
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
