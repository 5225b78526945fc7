//! Posting work requests: the critical path.

use core::ffi::c_int;

use libc::EOPNOTSUPP;

use crate::bindings::*;

/// Posts a list of work requests to a send queue. Returns zero, or an error number, which some providers return
/// negative; `bad_wr` is then the first request that was not posted.
///
/// # Safety
/// `qp` is in use. The list and its scatter/gather elements may be read; `bad_wr` may be written. The buffers stay
/// registered, and unchanged, until the completion, unless `IBV_SEND_INLINE` is set.
#[inline]
pub unsafe fn ibv_post_send(qp: *mut ibv_qp, wr: *mut ibv_send_wr, bad_wr: *mut *mut ibv_send_wr) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        match (*(*qp).context).ops.post_send {
            Some(operation) => operation(qp, wr, bad_wr),
            None => EOPNOTSUPP,
        }
    }
}

/// Posts a list of work requests to a receive queue. The result is that of [`ibv_post_send`].
///
/// # Safety
/// `qp` is in use. The list and its scatter/gather elements may be read; `bad_wr` may be written. The buffers stay
/// registered, and are not accessed, until the completion.
#[inline]
pub unsafe fn ibv_post_recv(qp: *mut ibv_qp, wr: *mut ibv_recv_wr, bad_wr: *mut *mut ibv_recv_wr) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        match (*(*qp).context).ops.post_recv {
            Some(operation) => operation(qp, wr, bad_wr),
            None => EOPNOTSUPP,
        }
    }
}

/// Posts a list of work requests to a shared receive queue. The result is that of [`ibv_post_send`].
///
/// # Safety
/// As for [`ibv_post_recv`], with `srq` in use.
#[inline]
pub unsafe fn ibv_post_srq_recv(
    srq: *mut ibv_srq,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        match (*(*srq).context).ops.post_srq_recv {
            Some(operation) => operation(srq, wr, bad_wr),
            None => EOPNOTSUPP,
        }
    }
}

/// Posts a list of work requests to a work queue. The result is that of [`ibv_post_send`].
///
/// # Safety
/// As for [`ibv_post_recv`], with `wq` in use.
#[inline]
pub unsafe fn ibv_post_wq_recv(
    wq: *mut ibv_wq,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        match (*wq).post_recv {
            Some(operation) => operation(wq, wr, bad_wr),
            None => EOPNOTSUPP,
        }
    }
}

/// Polls up to `num_entries` completions. Returns their number, or a negative number if the queue has failed.
///
/// # Safety
/// `cq` is in use, and `wc` may be written for `num_entries` completions.
#[inline]
pub unsafe fn ibv_poll_cq(cq: *mut ibv_cq, num_entries: c_int, wc: *mut ibv_wc) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        match (*(*cq).context).ops.poll_cq {
            Some(operation) => operation(cq, num_entries, wc),
            None => -EOPNOTSUPP,
        }
    }
}

/// Requests an event in the queue's completion channel for the next completion.
///
/// # Safety
/// `cq` is in use.
#[inline]
pub unsafe fn ibv_req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        match (*(*cq).context).ops.req_notify_cq {
            Some(operation) => operation(cq, solicited_only),
            None => EOPNOTSUPP,
        }
    }
}
