//! The inline functions: the operation that each calls, and its result if there is none. No device is involved.

use std::ptr;

use rdma_core_sys::inline::{
    ibv_alloc_dm, ibv_alloc_mw, ibv_destroy_wq, ibv_flow_label_to_udp_sport, ibv_inc_rkey,
    ibv_is_qpt_supported, ibv_poll_cq, ibv_post_recv, ibv_post_send, ibv_req_notify_cq, verbs_get_ctx,
};
use rdma_core_sys::*;

/// Returns zeros: no operation, no provider.
fn zeroed<T>() -> Box<T> {
    // SAFETY: the types used here are plain data of C, for which zeros are a valid value.
    Box::new(unsafe { std::mem::zeroed() })
}

fn extended() -> Box<verbs_context> {
    let mut extended = zeroed::<verbs_context>();
    extended.sz = size_of::<verbs_context>();
    extended.context.abi_compat = ptr::without_provenance_mut(usize::MAX);
    extended
}

#[test]
fn an_operation_that_a_device_lacks_is_not_supported_and_no_crash() {
    let (mut context, mut qp, mut cq, mut pd) =
        (zeroed::<ibv_context>(), zeroed::<ibv_qp>(), zeroed::<ibv_cq>(), zeroed::<ibv_pd>());
    (qp.context, cq.context, pd.context) = (&raw mut *context, &raw mut *context, &raw mut *context);
    let mut bad_send = ptr::null_mut();
    let mut bad_recv = ptr::null_mut();
    // SAFETY: the structures exist, and none has an operation that could be called.
    unsafe {
        assert_eq!(ibv_post_send(&raw mut *qp, ptr::null_mut(), &raw mut bad_send), libc::EOPNOTSUPP);
        assert_eq!(ibv_post_recv(&raw mut *qp, ptr::null_mut(), &raw mut bad_recv), libc::EOPNOTSUPP);
        assert_eq!(ibv_poll_cq(&raw mut *cq, 0, ptr::null_mut()), -libc::EOPNOTSUPP);
        assert_eq!(ibv_req_notify_cq(&raw mut *cq, 0), libc::EOPNOTSUPP);
        *libc::__errno_location() = 0;
        assert!(ibv_alloc_mw(&raw mut *pd, IBV_MW_TYPE_1).is_null());
        assert_eq!(*libc::__errno_location(), libc::EOPNOTSUPP);
        assert!(ibv_alloc_dm(&raw mut *context, ptr::null_mut()).is_null());
    }
}

#[test]
fn a_work_request_reaches_the_operation_of_its_context_unchanged() {
    unsafe extern "C" fn post(qp: *mut ibv_qp, wr: *mut ibv_send_wr, bad: *mut *mut ibv_send_wr) -> i32 {
        // SAFETY: the caller below passes valid pointers for all three.
        unsafe {
            assert_eq!(((*qp).qp_num, (*wr).wr_id, (*wr).wr.rdma.rkey), (7, 8, 9));
            *bad = wr;
        }
        -22
    }
    let (mut context, mut qp, mut wr) =
        (zeroed::<ibv_context>(), zeroed::<ibv_qp>(), zeroed::<ibv_send_wr>());
    context.ops.post_send = Some(post);
    (qp.context, qp.qp_num) = (&raw mut *context, 7);
    wr.wr_id = 8;
    wr.wr.rdma.rkey = 9;
    let mut bad = ptr::null_mut();
    // SAFETY: all structures exist.
    let code = unsafe { ibv_post_send(&raw mut *qp, &raw mut *wr, &raw mut bad) };
    assert_eq!((code, bad), (-22, &raw mut *wr), "a negative error number stays one");
}

#[test]
fn an_extended_context_is_used_as_far_as_it_reaches() {
    unsafe extern "C" fn destroy(_: *mut ibv_wq) -> i32 {
        5
    }
    let mut extended = extended();
    extended.destroy_wq = Some(destroy);
    let base = &raw mut *extended;
    let mut wq = zeroed::<ibv_wq>();
    // SAFETY: the context lies in the extended one; all structures exist.
    unsafe {
        wq.context = &raw mut (*base).context;
        assert_eq!(verbs_get_ctx(wq.context), base);
        assert_eq!(ibv_destroy_wq(&raw mut *wq), 5);
        // A context that is too short for the operation, as an old provider's is.
        (*base).sz = size_of::<verbs_context>() - std::mem::offset_of!(verbs_context, destroy_wq) - 1;
        assert_eq!(ibv_destroy_wq(&raw mut *wq), libc::EOPNOTSUPP);
        (*base).sz += 1;
        assert_eq!(ibv_destroy_wq(&raw mut *wq), 5);
        // A context from before extended contexts.
        (*base).context.abi_compat = ptr::null_mut();
        assert!(verbs_get_ctx(wq.context).is_null());
        assert_eq!(ibv_destroy_wq(&raw mut *wq), libc::EOPNOTSUPP);
    }
}

#[test]
fn what_is_computed_is_what_the_headers_compute() {
    assert_eq!(ibv_inc_rkey(0x1234_56ff), 0x1234_5600);
    assert_eq!(ibv_inc_rkey(0x1234_5601), 0x1234_5602);
    assert!(ibv_is_qpt_supported(1 << IBV_QPT_RC, IBV_QPT_RC));
    assert!(!ibv_is_qpt_supported(u32::MAX, 255), "IBV_QPT_DRIVER has no bit");
    assert_eq!(ibv_flow_label_to_udp_sport(0), 0xc000);
    assert_eq!(ibv_flow_label_to_udp_sport(0xf_ffff), 0xc000 | (0x3fff ^ 0x3f));
}

#[test]
fn the_libraries_open_or_the_error_names_the_package() {
    match Verbs::open() {
        Ok(verbs) => {
            let mut count = -1;
            // SAFETY: `count` may be written; the list is freed once.
            unsafe {
                let list = (verbs.ibv_get_device_list)(&raw mut count);
                if !list.is_null() {
                    assert!(count >= 0);
                    (verbs.ibv_free_device_list)(list);
                }
                let name = std::ffi::CStr::from_ptr((verbs.ibv_wc_status_str)(IBV_WC_WR_FLUSH_ERR));
                assert!(!name.is_empty());
            }
        }
        Err(error) => assert!(error.to_string().contains("libibverbs1"), "{error}"),
    }
    if let Err(error) = Cm::open() {
        assert!(error.to_string().contains("librdmacm1"), "{error}");
    }
}
