//! Verbs by the operations table of the context, and by the extended table before it.

use core::ffi::{c_int, c_uint, c_void};
use core::mem::offset_of;
use core::ptr;

use libc::{EINVAL, ENOSYS, EOPNOTSUPP, EPERM, ssize_t};

use super::set_errno;
use crate::bindings::*;
use crate::functions::Verbs;

/// The value of `ibv_context::abi_compat` if a `verbs_context` surrounds the context.
const EXTENDED: *mut c_void = ptr::without_provenance_mut(usize::MAX);

/// In `ibv_parent_domain_init_attr`: the value by which an allocator leaves the allocation to the provider.
pub const IBV_ALLOCATOR_USE_DEFAULT: *mut c_void = ptr::without_provenance_mut(usize::MAX);

/// Returns the extended context that surrounds a context, or null if its provider predates extended contexts.
///
/// # Safety
/// `context` is open.
#[must_use]
pub unsafe fn verbs_get_ctx(context: *mut ibv_context) -> *mut verbs_context {
    // SAFETY: the context is open. If its `abi_compat` has that value, it lies within a `verbs_context`.
    unsafe {
        if (*context).abi_compat != EXTENDED {
            return ptr::null_mut();
        }
        context.byte_sub(offset_of!(verbs_context, context)).cast()
    }
}

/// Returns the extended context if it includes the operation at `offset`: the structure grows at its front.
///
/// # Safety
/// `context` is open.
unsafe fn reaching(context: *mut ibv_context, offset: usize) -> *mut verbs_context {
    // SAFETY: the caller's promise; `sz` is at the end of the structure, which always exists.
    unsafe {
        let extended = verbs_get_ctx(context);
        if extended.is_null() || (*extended).sz < size_of::<verbs_context>() - offset {
            return ptr::null_mut();
        }
        extended
    }
}

/// The value that a function returns if a device has no such operation.
trait Unsupported {
    fn unsupported() -> Self;
}

impl Unsupported for c_int {
    fn unsupported() -> Self {
        EOPNOTSUPP
    }
}

impl<T> Unsupported for *mut T {
    fn unsupported() -> Self {
        set_errno(EOPNOTSUPP);
        ptr::null_mut()
    }
}

/// Returns the operation of an extended context, or `None` if the provider has none.
macro_rules! operation {
    ($context:expr, $operation:ident) => {{
        let extended = reaching($context, offset_of!(verbs_context, $operation));
        if extended.is_null() { None } else { (*extended).$operation }
    }};
}

/// Functions that only call an operation of the extended context.
macro_rules! extended {
    ($(
        $(#[$attribute:meta])*
        fn $name:ident($($argument:ident: $type:ty),*) -> $result:ty = $context:expr, $operation:ident;
    )*) => {$(
        $(#[$attribute])*
        ///
        /// # Safety
        /// As for the function of this name in `infiniband/verbs.h`: every pointer was returned by libibverbs
        /// and has not been released since, or points to a structure that may be read and written.
        pub unsafe fn $name($($argument: $type),*) -> $result {
            // SAFETY: the caller's promise; the operation is looked up in the context of the object.
            unsafe {
                match operation!($context, $operation) {
                    Some(operation) => operation($($argument),*),
                    None => Unsupported::unsupported(),
                }
            }
        }
    )*};
}

extended! {
    /// Creates a flow steering rule.
    fn ibv_create_flow(qp: *mut ibv_qp, flow: *mut ibv_flow_attr) -> *mut ibv_flow = (*qp).context, ibv_create_flow;
    /// Destroys a flow steering rule.
    fn ibv_destroy_flow(flow: *mut ibv_flow) -> c_int = (*flow).context, ibv_destroy_flow;
    /// Creates an IPsec action.
    fn ibv_create_flow_action_esp(context: *mut ibv_context, esp: *mut ibv_flow_action_esp_attr)
        -> *mut ibv_flow_action = context, create_flow_action_esp;
    /// Changes an IPsec action.
    fn ibv_modify_flow_action_esp(action: *mut ibv_flow_action, esp: *mut ibv_flow_action_esp_attr)
        -> c_int = (*action).context, modify_flow_action_esp;
    /// Destroys a flow action.
    fn ibv_destroy_flow_action(action: *mut ibv_flow_action) -> c_int = (*action).context, destroy_flow_action;
    /// Opens an XRC domain.
    fn ibv_open_xrcd(context: *mut ibv_context, attr: *mut ibv_xrcd_init_attr) -> *mut ibv_xrcd = context, open_xrcd;
    /// Closes an XRC domain.
    fn ibv_close_xrcd(xrcd: *mut ibv_xrcd) -> c_int = (*xrcd).context, close_xrcd;
    /// Advises on how a range of registered memory will be used.
    fn ibv_advise_mr(pd: *mut ibv_pd, advice: ibv_advise_mr_advice, flags: u32, sg_list: *mut ibv_sge, num_sge: u32)
        -> c_int = (*pd).context, advise_mr;
    /// Allocates memory of the device.
    fn ibv_alloc_dm(context: *mut ibv_context, attr: *mut ibv_alloc_dm_attr) -> *mut ibv_dm = context, alloc_dm;
    /// Frees memory of the device.
    fn ibv_free_dm(dm: *mut ibv_dm) -> c_int = (*dm).context, free_dm;
    /// Makes a memory region that discards writes and reads as zeros.
    fn ibv_alloc_null_mr(pd: *mut ibv_pd) -> *mut ibv_mr = (*pd).context, alloc_null_mr;
    /// Registers memory of the device.
    fn ibv_reg_dm_mr(pd: *mut ibv_pd, dm: *mut ibv_dm, dm_offset: u64, length: usize, access: c_uint)
        -> *mut ibv_mr = (*pd).context, reg_dm_mr;
    /// Creates a completion queue with the extended polling interface.
    fn ibv_create_cq_ex(context: *mut ibv_context, attr: *mut ibv_cq_init_attr_ex)
        -> *mut ibv_cq_ex = context, create_cq_ex;
    /// Changes a completion queue's moderation.
    fn ibv_modify_cq(cq: *mut ibv_cq, attr: *mut ibv_modify_cq_attr) -> c_int = (*cq).context, modify_cq;
    /// Reads the number of a shared receive queue.
    fn ibv_get_srq_num(srq: *mut ibv_srq, srq_num: *mut u32) -> c_int = (*srq).context, get_srq_num;
    /// Allocates a thread domain.
    fn ibv_alloc_td(context: *mut ibv_context, attr: *mut ibv_td_init_attr) -> *mut ibv_td = context, alloc_td;
    /// Frees a thread domain.
    fn ibv_dealloc_td(td: *mut ibv_td) -> c_int = (*td).context, dealloc_td;
    /// Allocates a parent domain.
    fn ibv_alloc_parent_domain(context: *mut ibv_context, attr: *mut ibv_parent_domain_init_attr)
        -> *mut ibv_pd = context, alloc_parent_domain;
    /// Reads a device's clock.
    fn ibv_query_rt_values_ex(context: *mut ibv_context, values: *mut ibv_values_ex)
        -> c_int = context, query_rt_values;
    /// Opens a shareable queue pair.
    fn ibv_open_qp(context: *mut ibv_context, attr: *mut ibv_qp_open_attr) -> *mut ibv_qp = context, open_qp;
    /// Changes a queue pair's rate limit.
    fn ibv_modify_qp_rate_limit(qp: *mut ibv_qp, attr: *mut ibv_qp_rate_limit_attr)
        -> c_int = (*qp).context, modify_qp_rate_limit;
    /// Changes a work queue.
    fn ibv_modify_wq(wq: *mut ibv_wq, attr: *mut ibv_wq_attr) -> c_int = (*wq).context, modify_wq;
    /// Destroys a work queue.
    fn ibv_destroy_wq(wq: *mut ibv_wq) -> c_int = (*wq).context, destroy_wq;
    /// Creates an indirection table of receive work queues.
    fn ibv_create_rwq_ind_table(context: *mut ibv_context, attr: *mut ibv_rwq_ind_table_init_attr)
        -> *mut ibv_rwq_ind_table = context, create_rwq_ind_table;
    /// Destroys an indirection table.
    fn ibv_destroy_rwq_ind_table(table: *mut ibv_rwq_ind_table) -> c_int = (*table).context, destroy_rwq_ind_table;
    /// Creates a set of counters.
    fn ibv_create_counters(context: *mut ibv_context, attr: *mut ibv_counters_init_attr)
        -> *mut ibv_counters = context, create_counters;
    /// Destroys a set of counters.
    fn ibv_destroy_counters(counters: *mut ibv_counters) -> c_int = (*counters).context, destroy_counters;
    /// Attaches a set of counters to a flow.
    fn ibv_attach_counters_point_flow(
        counters: *mut ibv_counters, attr: *mut ibv_counter_attach_attr, flow: *mut ibv_flow)
        -> c_int = (*counters).context, attach_counters_point_flow;
    /// Reads a set of counters.
    fn ibv_read_counters(counters: *mut ibv_counters, values: *mut u64, count: u32, flags: u32)
        -> c_int = (*counters).context, read_counters;
}

/// Posts tag matching operations to a shared receive queue.
///
/// # Safety
/// As for [`ibv_post_srq_recv`](super::ibv_post_srq_recv).
pub unsafe fn ibv_post_srq_ops(
    srq: *mut ibv_srq,
    op: *mut ibv_ops_wr,
    bad_op: *mut *mut ibv_ops_wr,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        match operation!((*srq).context, post_srq_ops) {
            Some(operation) => operation(srq, op, bad_op),
            None => {
                *bad_op = op;
                EOPNOTSUPP
            }
        }
    }
}

/// Creates a work queue.
///
/// # Safety
/// `context` is open, and `attr` may be read and written.
pub unsafe fn ibv_create_wq(context: *mut ibv_context, attr: *mut ibv_wq_init_attr) -> *mut ibv_wq {
    // SAFETY: the caller's promise; only this function has the new queue so far.
    unsafe {
        let Some(operation) = operation!(context, create_wq) else { return Unsupported::unsupported() };
        let wq = operation(context, attr);
        if !wq.is_null() {
            (*wq).wq_context = (*attr).wq_context;
            (*wq).events_completed = 0;
            libc::pthread_mutex_init(&raw mut (*wq).mutex, ptr::null());
            libc::pthread_cond_init(&raw mut (*wq).cond, ptr::null());
        }
        wq
    }
}

/// Allocates a memory window.
///
/// # Safety
/// `pd` is a protection domain that is in use.
pub unsafe fn ibv_alloc_mw(pd: *mut ibv_pd, ty: ibv_mw_type) -> *mut ibv_mw {
    // SAFETY: the caller's promise.
    unsafe {
        match (*(*pd).context).ops.alloc_mw {
            Some(operation) => operation(pd, ty),
            None => Unsupported::unsupported(),
        }
    }
}

/// Frees a memory window.
///
/// # Safety
/// `mw` is a memory window that is not used afterwards.
pub unsafe fn ibv_dealloc_mw(mw: *mut ibv_mw) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { (*(*mw).context).ops.dealloc_mw.map_or(EOPNOTSUPP, |operation| operation(mw)) }
}

/// Returns the key that a memory window of type 2 gets at its next binding.
#[must_use]
pub const fn ibv_inc_rkey(rkey: u32) -> u32 {
    (rkey & !0xff) | (rkey.wrapping_add(1) & 0xff)
}

/// Binds a memory window of type 1.
///
/// # Safety
/// Queue pair and memory window are in use, and `mw_bind` may be read and written.
pub unsafe fn ibv_bind_mw(qp: *mut ibv_qp, mw: *mut ibv_mw, mw_bind: *mut ibv_mw_bind) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        let bind = &(*mw_bind).bind_info;
        if (*mw).type_ != IBV_MW_TYPE_1 || (bind.mr.is_null() && (bind.addr != 0 || bind.length != 0)) {
            return EINVAL;
        }
        if !bind.mr.is_null() && (*mw).pd != (*bind.mr).pd {
            return EPERM;
        }
        (*(*mw).context).ops.bind_mw.map_or(EOPNOTSUPP, |operation| operation(qp, mw, mw_bind))
    }
}

/// Copies to memory of the device.
///
/// # Safety
/// `dm` is in use and holds the range; `host_addr` may be read for `length` bytes.
pub unsafe fn ibv_memcpy_to_dm(
    dm: *mut ibv_dm,
    dm_offset: u64,
    host_addr: *const c_void,
    length: usize,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { (*dm).memcpy_to_dm.map_or(EOPNOTSUPP, |operation| operation(dm, dm_offset, host_addr, length)) }
}

/// Copies from memory of the device.
///
/// # Safety
/// `dm` is in use and holds the range; `host_addr` may be written for `length` bytes.
pub unsafe fn ibv_memcpy_from_dm(
    host_addr: *mut c_void,
    dm: *mut ibv_dm,
    dm_offset: u64,
    length: usize,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        (*dm).memcpy_from_dm.map_or(EOPNOTSUPP, |operation| operation(host_addr, dm, dm_offset, length))
    }
}

/// Returns whether a capability mask has the bit of a queue pair type.
#[must_use]
pub const fn ibv_is_qpt_supported(caps: u32, qpt: ibv_qp_type) -> bool {
    qpt < u32::BITS && caps & (1 << qpt) != 0
}

/// Returns the UDP source port that `RoCE` v2 derives from a flow label.
#[must_use]
pub const fn ibv_flow_label_to_udp_sport(label: u32) -> u16 {
    let low = (label & 0x0_3fff) ^ ((label & 0xf_c000) >> 14);
    (low | IB_ROCE_UDP_ENCAP_VALID_PORT_MIN) as u16
}

impl Verbs {
    /// Reads a port's attributes, all that the library supports; the others are zero.
    ///
    /// # Safety
    /// `context` is open, and `attr` may be written.
    pub unsafe fn ibv_query_port(
        &self,
        context: *mut ibv_context,
        port: u8,
        attr: *mut ibv_port_attr,
    ) -> c_int {
        // SAFETY: the caller's promise; the old structure is the beginning of the new one.
        unsafe {
            match operation!(context, query_port) {
                Some(operation) => operation(context, port, attr, size_of::<ibv_port_attr>()),
                None => {
                    attr.write_bytes(0, 1);
                    (self.ibv_query_port)(context, port, attr.cast())
                }
            }
        }
    }

    /// Reads a device's attributes, the extended ones included; those that the device does not support are
    /// zero.
    ///
    /// # Safety
    /// `context` is open, `input` is null or may be read, and `attr` may be written.
    pub unsafe fn ibv_query_device_ex(
        &self,
        context: *mut ibv_context,
        input: *const ibv_query_device_ex_input,
        attr: *mut ibv_device_attr_ex,
    ) -> c_int {
        // SAFETY: the caller's promise.
        unsafe {
            if !input.is_null() && (*input).comp_mask != 0 {
                return EINVAL;
            }
            if let Some(operation) = operation!(context, query_device_ex) {
                let code = operation(context, input, attr, size_of::<ibv_device_attr_ex>());
                if code != EOPNOTSUPP && code != ENOSYS {
                    return code;
                }
            }
            attr.write_bytes(0, 1);
            (self.ibv_query_device)(context, &raw mut (*attr).orig_attr)
        }
    }

    /// Creates a shared receive queue of any type.
    ///
    /// # Safety
    /// `context` is open, and `attr` may be read and written.
    pub unsafe fn ibv_create_srq_ex(
        &self,
        context: *mut ibv_context,
        attr: *mut ibv_srq_init_attr_ex,
    ) -> *mut ibv_srq {
        // SAFETY: the caller's promise; the old structure is the beginning of the new one.
        unsafe {
            let mask = (*attr).comp_mask;
            let is_basic = mask & IBV_SRQ_INIT_ATTR_TYPE == 0 || (*attr).srq_type == IBV_SRQT_BASIC;
            let is_old = mask & !(IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_TYPE) == 0;
            if is_old && is_basic && mask & IBV_SRQ_INIT_ATTR_PD != 0 {
                return (self.ibv_create_srq)((*attr).pd, attr.cast());
            }
            match operation!(context, create_srq_ex) {
                Some(operation) => operation(context, attr),
                None => Unsupported::unsupported(),
            }
        }
    }

    /// Creates a queue pair with extended attributes.
    ///
    /// # Safety
    /// `context` is open, and `attr` may be read and written.
    pub unsafe fn ibv_create_qp_ex(
        &self,
        context: *mut ibv_context,
        attr: *mut ibv_qp_init_attr_ex,
    ) -> *mut ibv_qp {
        // SAFETY: the caller's promise; the old structure is the beginning of the new one.
        unsafe {
            if (*attr).comp_mask == IBV_QP_INIT_ATTR_PD {
                return (self.ibv_create_qp)((*attr).pd, attr.cast());
            }
            match operation!(context, create_qp_ex) {
                Some(operation) => operation(context, attr),
                None => Unsupported::unsupported(),
            }
        }
    }

    /// Registers memory. Flags that a device may ignore need a library that supports them.
    ///
    /// # Safety
    /// `pd` is in use. The memory stays mapped until it is deregistered.
    pub unsafe fn ibv_reg_mr(
        &self,
        pd: *mut ibv_pd,
        addr: *mut c_void,
        length: usize,
        access: c_uint,
    ) -> *mut ibv_mr {
        // SAFETY: the caller's promise.
        unsafe { self.ibv_reg_mr_iova(pd, addr, length, addr.addr() as u64, access) }
    }

    /// Registers memory under another address.
    ///
    /// # Safety
    /// `pd` is in use. The memory stays mapped until it is deregistered.
    pub unsafe fn ibv_reg_mr_iova(
        &self,
        pd: *mut ibv_pd,
        addr: *mut c_void,
        length: usize,
        iova: u64,
        access: c_uint,
    ) -> *mut ibv_mr {
        let is_optional = access & IBV_ACCESS_OPTIONAL_RANGE != 0;
        // SAFETY: the caller's promise.
        unsafe {
            match (is_optional, self.ibv_reg_mr_iova2, self.ibv_reg_mr_iova) {
                (true, Some(newest), _) => newest(pd, addr, length, iova, access),
                (true, None, _) => Unsupported::unsupported(),
                (false, _, _) if iova == addr.addr() as u64 => {
                    (self.ibv_reg_mr)(pd, addr, length, access.cast_signed())
                }
                (false, _, Some(newer)) => newer(pd, addr, length, iova, access.cast_signed()),
                (false, _, None) => Unsupported::unsupported(),
            }
        }
    }

    /// Reads an entry of a port's GID table, with its type and network interface.
    ///
    /// # Safety
    /// `context` is open, and `entry` may be written.
    pub unsafe fn ibv_query_gid_ex(
        &self,
        context: *mut ibv_context,
        port: u32,
        index: u32,
        entry: *mut ibv_gid_entry,
        flags: u32,
    ) -> c_int {
        // SAFETY: the caller's promise.
        self._ibv_query_gid_ex.map_or(EOPNOTSUPP, |query| unsafe {
            query(context, port, index, entry, flags, size_of::<ibv_gid_entry>())
        })
    }

    /// Reads the GID tables of all ports. Returns the number of valid entries, or a negative error number.
    ///
    /// # Safety
    /// `context` is open, and `entries` may be written for `max` entries.
    pub unsafe fn ibv_query_gid_table(
        &self,
        context: *mut ibv_context,
        entries: *mut ibv_gid_entry,
        max: usize,
        flags: u32,
    ) -> ssize_t {
        // SAFETY: the caller's promise.
        self._ibv_query_gid_table.map_or(-(EOPNOTSUPP as ssize_t), |query| unsafe {
            query(context, entries, max, flags, size_of::<ibv_gid_entry>())
        })
    }
}
