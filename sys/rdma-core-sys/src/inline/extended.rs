//! Work requests by the extended interface: between [`ibv_wr_start`] and [`ibv_wr_complete`] or
//! [`ibv_wr_abort`], the program makes one call for each request and one for its buffers.

use core::ffi::{c_int, c_void};

use libc::EOPNOTSUPP;

use crate::bindings::*;

/// Functions that call an operation of an extended queue pair. A queue pair supports the operations requested
/// at its creation.
macro_rules! operations {
    ($($(#[$attribute:meta])* fn $name:ident = $operation:ident($($argument:ident: $type:ty),*);)*) => {$(
        $(#[$attribute])*
        ///
        /// # Safety
        /// `qp` is in use and was created with this operation among its `send_ops_flags`. This thread has
        /// started a batch. Pointers were returned by libibverbs, or may be read as the operation says.
        #[inline]
        pub unsafe fn $name(qp: *mut ibv_qp_ex, $($argument: $type),*) {
            // SAFETY: the caller's promise.
            unsafe {
                if let Some(operation) = (*qp).$operation {
                    operation(qp, $($argument),*);
                }
            }
        }
    )*};
}

operations! {
    /// Begins a batch.
    fn ibv_wr_start = wr_start();
    /// Discards a batch.
    fn ibv_wr_abort = wr_abort();
    /// Compares and swaps 8 bytes of remote memory.
    fn ibv_wr_atomic_cmp_swp = wr_atomic_cmp_swp(rkey: u32, remote_addr: u64, compare: u64, swap: u64);
    /// Adds to 8 bytes of remote memory.
    fn ibv_wr_atomic_fetch_add = wr_atomic_fetch_add(rkey: u32, remote_addr: u64, add: u64);
    /// Writes 8 bytes of remote memory atomically.
    fn ibv_wr_atomic_write = wr_atomic_write(rkey: u32, remote_addr: u64, atomic_wr: *const c_void);
    /// Binds a memory window of type 2.
    fn ibv_wr_bind_mw = wr_bind_mw(mw: *mut ibv_mw, rkey: u32, bind_info: *const ibv_mw_bind_info);
    /// Invalidates a key of this side.
    fn ibv_wr_local_inv = wr_local_inv(invalidate_rkey: u32);
    /// Reads remote memory.
    fn ibv_wr_rdma_read = wr_rdma_read(rkey: u32, remote_addr: u64);
    /// Writes remote memory.
    fn ibv_wr_rdma_write = wr_rdma_write(rkey: u32, remote_addr: u64);
    /// Writes remote memory and completes a receive there. The immediate is big-endian.
    fn ibv_wr_rdma_write_imm = wr_rdma_write_imm(rkey: u32, remote_addr: u64, imm_data: __be32);
    /// Sends.
    fn ibv_wr_send = wr_send();
    /// Sends with an immediate, which is big-endian.
    fn ibv_wr_send_imm = wr_send_imm(imm_data: __be32);
    /// Sends, and invalidates a key of the other side.
    fn ibv_wr_send_inv = wr_send_inv(invalidate_rkey: u32);
    /// Sends in TCP segments.
    fn ibv_wr_send_tso = wr_send_tso(hdr: *mut c_void, hdr_sz: u16, mss: u16);
    /// Sets the destination of a datagram.
    fn ibv_wr_set_ud_addr = wr_set_ud_addr(ah: *mut ibv_ah, remote_qpn: u32, remote_qkey: u32);
    /// Sets the shared receive queue of an XRC request.
    fn ibv_wr_set_xrc_srqn = wr_set_xrc_srqn(remote_srqn: u32);
    /// Sets the payload, which is copied at once.
    fn ibv_wr_set_inline_data = wr_set_inline_data(addr: *mut c_void, length: usize);
    /// Sets the payload from several buffers, which are copied at once.
    fn ibv_wr_set_inline_data_list = wr_set_inline_data_list(num_buf: usize, buf_list: *const ibv_data_buf);
    /// Sets the buffer.
    fn ibv_wr_set_sge = wr_set_sge(lkey: u32, addr: u64, length: u32);
    /// Sets the buffers.
    fn ibv_wr_set_sge_list = wr_set_sge_list(num_sge: usize, sg_list: *const ibv_sge);
}

/// Posts a batch. Returns zero, or an error number; no request was then posted.
///
/// # Safety
/// `qp` is in use, and this thread has started a batch. The batch's buffers are as for
/// [`ibv_post_send`](super::ibv_post_send).
#[inline]
pub unsafe fn ibv_wr_complete(qp: *mut ibv_qp_ex) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { (*qp).wr_complete.map_or(EOPNOTSUPP, |operation| operation(qp)) }
}
