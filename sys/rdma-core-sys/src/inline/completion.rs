//! Completions by the extended interface: [`ibv_start_poll`], reading and [`ibv_next_poll`], then [`ibv_end_poll`].

use core::ffi::{c_int, c_uint};

use libc::EOPNOTSUPP;

use crate::bindings::*;

/// Returns the same queue for the verbs that are not extended.
#[must_use]
pub const fn ibv_cq_ex_to_cq(cq: *mut ibv_cq_ex) -> *mut ibv_cq {
    cq.cast()
}

/// Reads the first completion. Returns zero, `ENOENT` if there is none, or an error number.
///
/// # Safety
/// `cq` is in use, no poll of it is in progress, and `attr` may be read.
#[inline]
pub unsafe fn ibv_start_poll(cq: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { (*cq).start_poll.map_or(EOPNOTSUPP, |operation| operation(cq, attr)) }
}

/// Reads the next completion. Returns zero, `ENOENT` if there is none, or an error number.
///
/// # Safety
/// `cq` is in use, and [`ibv_start_poll`] has returned zero.
#[inline]
pub unsafe fn ibv_next_poll(cq: *mut ibv_cq_ex) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { (*cq).next_poll.map_or(EOPNOTSUPP, |operation| operation(cq)) }
}

/// Ends a poll.
///
/// # Safety
/// `cq` is in use, and [`ibv_start_poll`] has returned zero.
#[inline]
pub unsafe fn ibv_end_poll(cq: *mut ibv_cq_ex) {
    // SAFETY: the caller's promise.
    unsafe {
        if let Some(operation) = (*cq).end_poll {
            operation(cq);
        }
    }
}

/// Functions that read a value of the current completion. A queue supports those requested at its creation; the
/// others return zero.
macro_rules! readers {
    ($($(#[$attribute:meta])* fn $name:ident = $operation:ident -> $type:ty;)*) => {$(
        $(#[$attribute])*
        ///
        /// # Safety
        /// `cq` is in use, a poll of it is in progress, and has found a completion.
        #[inline]
        pub unsafe fn $name(cq: *mut ibv_cq_ex) -> $type {
            // SAFETY: the caller's promise.
            unsafe { (*cq).$operation.map_or(0, |operation| operation(cq)) }
        }
    )*};
}

readers! {
    /// Returns the opcode of the completed request.
    fn ibv_wc_read_opcode = read_opcode -> ibv_wc_opcode;
    /// Returns the vendor's error code.
    fn ibv_wc_read_vendor_err = read_vendor_err -> u32;
    /// Returns the number of bytes received.
    fn ibv_wc_read_byte_len = read_byte_len -> u32;
    /// Returns the immediate, big-endian.
    fn ibv_wc_read_imm_data = read_imm_data -> __be32;
    /// Returns the key that was invalidated.
    fn ibv_wc_read_invalidated_rkey = read_imm_data -> u32;
    /// Returns the queue pair of this side.
    fn ibv_wc_read_qp_num = read_qp_num -> u32;
    /// Returns the queue pair of the other side, for datagrams.
    fn ibv_wc_read_src_qp = read_src_qp -> u32;
    /// Returns the flags.
    fn ibv_wc_read_wc_flags = read_wc_flags -> c_uint;
    /// Returns the LID of the other side, for datagrams.
    fn ibv_wc_read_slid = read_slid -> u32;
    /// Returns the service level.
    fn ibv_wc_read_sl = read_sl -> u8;
    /// Returns the low bits of the LID of this side.
    fn ibv_wc_read_dlid_path_bits = read_dlid_path_bits -> u8;
    /// Returns the time of the completion, on the device's clock.
    fn ibv_wc_read_completion_ts = read_completion_ts -> u64;
    /// Returns the time of the completion, in nanoseconds of wall-clock time.
    fn ibv_wc_read_completion_wallclock_ns = read_completion_wallclock_ns -> u64;
    /// Returns the VLAN.
    fn ibv_wc_read_cvlan = read_cvlan -> u16;
    /// Returns the flow's tag.
    fn ibv_wc_read_flow_tag = read_flow_tag -> u32;
}

/// Reads the tag matching header of the current completion. If there is none, `tm_info` is unchanged.
///
/// # Safety
/// Those of the other readers; `tm_info` may be written.
#[inline]
pub unsafe fn ibv_wc_read_tm_info(cq: *mut ibv_cq_ex, tm_info: *mut ibv_wc_tm_info) {
    // SAFETY: the caller's promise.
    unsafe {
        if let Some(operation) = (*cq).read_tm_info {
            operation(cq, tm_info);
        }
    }
}
