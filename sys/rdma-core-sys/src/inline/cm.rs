//! The inline functions of `rdma/rdma_cma.h` and `rdma/rdma_verbs.h`. All but the two for addresses return
//! zero, or minus one with the error in `errno`.

use core::ffi::{c_int, c_void};
use core::mem::zeroed;
use core::ptr;

use libc::sockaddr;

use super::{ibv_poll_cq, ibv_post_recv, ibv_post_send, ibv_post_srq_recv, ibv_req_notify_cq, or_errno};
use crate::bindings::*;
use crate::functions::Verbs;

/// Returns the address of this side.
///
/// # Safety
/// `id` is in use.
#[must_use]
pub unsafe fn rdma_get_local_addr(id: *mut rdma_cm_id) -> *mut sockaddr {
    // SAFETY: the caller's promise; any member of the union begins with an address.
    unsafe { (&raw mut (*id).route.addr.__bindgen_anon_1).cast() }
}

/// Returns the address of the other side.
///
/// # Safety
/// `id` is in use.
#[must_use]
pub unsafe fn rdma_get_peer_addr(id: *mut rdma_cm_id) -> *mut sockaddr {
    // SAFETY: the caller's promise; any member of the union begins with an address.
    unsafe { (&raw mut (*id).route.addr.__bindgen_anon_2).cast() }
}

/// Posts a receive into several buffers.
///
/// # Safety
/// `id` is in use and has a queue pair; the rest is as for [`ibv_post_recv`].
pub unsafe fn rdma_post_recvv(
    id: *mut rdma_cm_id,
    context: *mut c_void,
    sgl: *mut ibv_sge,
    nsge: c_int,
) -> c_int {
    let mut wr =
        ibv_recv_wr { wr_id: context.addr() as u64, next: ptr::null_mut(), sg_list: sgl, num_sge: nsge };
    let mut bad = ptr::null_mut();
    // SAFETY: the caller's promise.
    unsafe {
        if (*id).srq.is_null() {
            or_errno(ibv_post_recv((*id).qp, &raw mut wr, &raw mut bad))
        } else {
            or_errno(ibv_post_srq_recv((*id).srq, &raw mut wr, &raw mut bad))
        }
    }
}

/// Returns a work request with all other fields zero.
fn request(
    context: *mut c_void,
    sgl: *mut ibv_sge,
    nsge: c_int,
    opcode: ibv_wr_opcode,
    flags: c_int,
) -> ibv_send_wr {
    // SAFETY: zeros are a valid value of every member.
    let mut wr: ibv_send_wr = unsafe { zeroed() };
    wr.wr_id = context.addr() as u64;
    wr.sg_list = sgl;
    wr.num_sge = nsge;
    wr.opcode = opcode;
    wr.send_flags = flags.cast_unsigned();
    wr
}

/// # Safety
/// `id` is in use and has a queue pair; the rest is as for [`ibv_post_send`].
unsafe fn post(id: *mut rdma_cm_id, mut wr: ibv_send_wr) -> c_int {
    let mut bad = ptr::null_mut();
    // SAFETY: the caller's promise.
    unsafe { or_errno(ibv_post_send((*id).qp, &raw mut wr, &raw mut bad)) }
}

/// Posts a send from several buffers.
///
/// # Safety
/// `id` is in use and has a queue pair; the rest is as for [`ibv_post_send`].
pub unsafe fn rdma_post_sendv(
    id: *mut rdma_cm_id,
    context: *mut c_void,
    sgl: *mut ibv_sge,
    nsge: c_int,
    flags: c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { post(id, request(context, sgl, nsge, IBV_WR_SEND, flags)) }
}

/// Posts a read into several buffers.
///
/// # Safety
/// `id` is in use and has a queue pair; the rest is as for [`ibv_post_send`].
pub unsafe fn rdma_post_readv(
    id: *mut rdma_cm_id,
    context: *mut c_void,
    sgl: *mut ibv_sge,
    nsge: c_int,
    flags: c_int,
    remote_addr: u64,
    rkey: u32,
) -> c_int {
    let wr = request(context, sgl, nsge, IBV_WR_RDMA_READ, flags);
    // SAFETY: the caller's promise.
    unsafe { post_rdma(id, wr, remote_addr, rkey) }
}

/// Posts a write from several buffers.
///
/// # Safety
/// `id` is in use and has a queue pair; the rest is as for [`ibv_post_send`].
pub unsafe fn rdma_post_writev(
    id: *mut rdma_cm_id,
    context: *mut c_void,
    sgl: *mut ibv_sge,
    nsge: c_int,
    flags: c_int,
    remote_addr: u64,
    rkey: u32,
) -> c_int {
    let wr = request(context, sgl, nsge, IBV_WR_RDMA_WRITE, flags);
    // SAFETY: the caller's promise.
    unsafe { post_rdma(id, wr, remote_addr, rkey) }
}

/// # Safety
/// `id` is in use and has a queue pair; the rest is as for [`ibv_post_send`].
unsafe fn post_rdma(id: *mut rdma_cm_id, mut wr: ibv_send_wr, remote_addr: u64, rkey: u32) -> c_int {
    wr.wr.rdma.remote_addr = remote_addr;
    wr.wr.rdma.rkey = rkey;
    // SAFETY: the caller's promise.
    unsafe { post(id, wr) }
}

/// Returns the scatter/gather element of one buffer. Without a memory region the payload must be inline.
///
/// # Safety
/// `mr` is null or in use.
unsafe fn element(addr: *mut c_void, length: usize, mr: *mut ibv_mr) -> ibv_sge {
    // SAFETY: the caller's promise.
    let lkey = unsafe { mr.as_ref() }.map_or(0, |mr| mr.lkey);
    ibv_sge { addr: addr.addr() as u64, length: length as u32, lkey }
}

/// Posts a receive.
///
/// # Safety
/// `id` and `mr` are in use, the buffer lies within `mr`, and the rest is as for [`ibv_post_recv`].
pub unsafe fn rdma_post_recv(
    id: *mut rdma_cm_id,
    context: *mut c_void,
    addr: *mut c_void,
    length: usize,
    mr: *mut ibv_mr,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { rdma_post_recvv(id, context, &mut element(addr, length, mr), 1) }
}

/// Posts a send.
///
/// # Safety
/// `id` is in use, `mr` is null or in use, and the rest is as for [`ibv_post_send`].
pub unsafe fn rdma_post_send(
    id: *mut rdma_cm_id,
    context: *mut c_void,
    addr: *mut c_void,
    length: usize,
    mr: *mut ibv_mr,
    flags: c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { rdma_post_sendv(id, context, &mut element(addr, length, mr), 1, flags) }
}

/// Posts a read.
///
/// # Safety
/// `id` and `mr` are in use, and the rest is as for [`ibv_post_send`].
#[allow(clippy::too_many_arguments, reason = "as in C")]
pub unsafe fn rdma_post_read(
    id: *mut rdma_cm_id,
    context: *mut c_void,
    addr: *mut c_void,
    length: usize,
    mr: *mut ibv_mr,
    flags: c_int,
    remote_addr: u64,
    rkey: u32,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { rdma_post_readv(id, context, &mut element(addr, length, mr), 1, flags, remote_addr, rkey) }
}

/// Posts a write.
///
/// # Safety
/// `id` is in use, `mr` is null or in use, and the rest is as for [`ibv_post_send`].
#[allow(clippy::too_many_arguments, reason = "as in C")]
pub unsafe fn rdma_post_write(
    id: *mut rdma_cm_id,
    context: *mut c_void,
    addr: *mut c_void,
    length: usize,
    mr: *mut ibv_mr,
    flags: c_int,
    remote_addr: u64,
    rkey: u32,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { rdma_post_writev(id, context, &mut element(addr, length, mr), 1, flags, remote_addr, rkey) }
}

/// Posts a datagram.
///
/// # Safety
/// `id` and `ah` are in use, `mr` is null or in use, and the rest is as for [`ibv_post_send`].
#[allow(clippy::too_many_arguments, reason = "as in C")]
pub unsafe fn rdma_post_ud_send(
    id: *mut rdma_cm_id,
    context: *mut c_void,
    addr: *mut c_void,
    length: usize,
    mr: *mut ibv_mr,
    flags: c_int,
    ah: *mut ibv_ah,
    remote_qpn: u32,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        let mut sge = element(addr, length, mr);
        let mut wr = request(context, &raw mut sge, 1, IBV_WR_SEND, flags);
        wr.wr.ud = ibv_send_wr__bindgen_ty_2__bindgen_ty_3 { ah, remote_qpn, remote_qkey: RDMA_UDP_QKEY };
        post(id, wr)
    }
}

impl Verbs {
    /// Registers memory for messages.
    ///
    /// # Safety
    /// `id` is in use and has a protection domain. The memory stays mapped until it is deregistered.
    pub unsafe fn rdma_reg_msgs(&self, id: *mut rdma_cm_id, addr: *mut c_void, length: usize) -> *mut ibv_mr {
        // SAFETY: the caller's promise.
        unsafe { self.ibv_reg_mr((*id).pd, addr, length, IBV_ACCESS_LOCAL_WRITE) }
    }

    /// Registers memory that the other side reads.
    ///
    /// # Safety
    /// As for [`Self::rdma_reg_msgs`].
    pub unsafe fn rdma_reg_read(&self, id: *mut rdma_cm_id, addr: *mut c_void, length: usize) -> *mut ibv_mr {
        // SAFETY: the caller's promise.
        unsafe { self.ibv_reg_mr((*id).pd, addr, length, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ) }
    }

    /// Registers memory that the other side writes.
    ///
    /// # Safety
    /// As for [`Self::rdma_reg_msgs`].
    pub unsafe fn rdma_reg_write(
        &self,
        id: *mut rdma_cm_id,
        addr: *mut c_void,
        length: usize,
    ) -> *mut ibv_mr {
        // SAFETY: the caller's promise.
        unsafe { self.ibv_reg_mr((*id).pd, addr, length, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE) }
    }

    /// Deregisters memory.
    ///
    /// # Safety
    /// `mr` is in use, and not afterwards.
    pub unsafe fn rdma_dereg_mr(&self, mr: *mut ibv_mr) -> c_int {
        // SAFETY: the caller's promise.
        or_errno(unsafe { (self.ibv_dereg_mr)(mr) })
    }

    /// Waits for a completion of the send queue. Returns one, or a negative number.
    ///
    /// # Safety
    /// `id` is in use, was created for synchronous use, and `wc` may be written.
    pub unsafe fn rdma_get_send_comp(&self, id: *mut rdma_cm_id, wc: *mut ibv_wc) -> c_int {
        // SAFETY: the caller's promise.
        unsafe { self.wait((*id).send_cq, (*id).send_cq_channel, wc) }
    }

    /// Waits for a completion of the receive queue. Returns one, or a negative number.
    ///
    /// # Safety
    /// `id` is in use, was created for synchronous use, and `wc` may be written.
    pub unsafe fn rdma_get_recv_comp(&self, id: *mut rdma_cm_id, wc: *mut ibv_wc) -> c_int {
        // SAFETY: the caller's promise.
        unsafe { self.wait((*id).recv_cq, (*id).recv_cq_channel, wc) }
    }

    /// # Safety
    /// The queue is the only one of the channel, and `wc` may be written.
    unsafe fn wait(&self, cq: *mut ibv_cq, channel: *mut ibv_comp_channel, wc: *mut ibv_wc) -> c_int {
        // SAFETY: the caller's promise.
        unsafe {
            loop {
                let mut count = ibv_poll_cq(cq, 1, wc);
                if count == 0 {
                    let code = ibv_req_notify_cq(cq, 0);
                    if code != 0 {
                        return or_errno(code);
                    }
                    // Completions before the queue was armed cause no event.
                    count = ibv_poll_cq(cq, 1, wc);
                }
                if count != 0 {
                    return if count < 0 { or_errno(count) } else { count };
                }
                let (mut which, mut context) = (ptr::null_mut(), ptr::null_mut());
                let code = (self.ibv_get_cq_event)(channel, &raw mut which, &raw mut context);
                if code != 0 {
                    return code;
                }
                (self.ibv_ack_cq_events)(which, 1);
            }
        }
    }
}
