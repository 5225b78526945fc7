//! Fabrics and domains.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use crate::bindings::{
    self as fi, fi_collective_attr, fi_collective_op, fi_fabric_attr, fi_info, fi_ops_domain, fi_ops_fabric,
    fi_poll_attr, fi_rx_attr, fi_tx_attr, fi_wait_attr, fid, fid_domain, fid_ep, fid_fabric, fid_pep,
    fid_poll, fid_stx, fid_wait,
};
use crate::object::{Constant, Errno, FidOps, call_int, fid_of, lend, object, reclaim};
use crate::state::{Domain, DomainObject};
use crate::{address, atomic, counter, endpoint, event, queue, region};

#[repr(C)]
struct Fabric {
    fabric: fid_fabric,
}

static FABRIC_FID: FidOps = FidOps::closed_by(close_fabric);
static FABRIC: Constant<fi_ops_fabric> = Constant(fi_ops_fabric {
    size: size_of::<fi_ops_fabric>(),
    domain: Some(open_domain),
    passive_ep: Some(no_passive_endpoint),
    eq_open: Some(event::open),
    wait_open: Some(no_wait_open),
    trywait: Some(queue::try_wait),
    domain2: Some(open_domain_with),
});
static DOMAIN_FID: FidOps = FidOps::new(close_domain, bind_domain, crate::object::no_control);
static DOMAIN: Constant<fi_ops_domain> = Constant(fi_ops_domain {
    size: size_of::<fi_ops_domain>(),
    av_open: Some(address::open),
    cq_open: Some(queue::open),
    endpoint: Some(endpoint::open),
    scalable_ep: Some(no_scalable_endpoint),
    cntr_open: Some(counter::open),
    poll_open: Some(no_poll_open),
    stx_ctx: Some(no_shared_sends),
    srx_ctx: Some(no_shared_receives),
    query_atomic: Some(atomic::query),
    query_collective: Some(no_collectives),
    endpoint2: Some(open_endpoint_with),
});

pub(crate) unsafe extern "C" fn open_fabric(
    attr: *mut fi_fabric_attr,
    out: *mut *mut fid_fabric,
    context: *mut c_void,
) -> c_int {
    call_int(|| {
        // SAFETY: the structure of libfabric, null or valid.
        let version = unsafe { attr.as_ref() }.map_or(0, |attr| attr.api_version);
        let fid = fid_of(fi::FI_CLASS_FABRIC, context, &FABRIC_FID);
        lend(Fabric { fabric: fid_fabric { fid, ops: FABRIC.get(), api_version: version } }, out)
    })
}

unsafe extern "C" fn close_fabric(fid: *mut fid) -> c_int {
    // SAFETY: the application closes what `open_fabric` returned, once.
    drop(unsafe { reclaim::<Fabric, _>(fid) });
    0
}

unsafe extern "C" fn open_domain(
    _fabric: *mut fid_fabric,
    info: *mut fi_info,
    out: *mut *mut fid_domain,
    context: *mut c_void,
) -> c_int {
    call_int(|| {
        // SAFETY: the application's structures, null or valid.
        let attr = unsafe { info.as_ref().and_then(|info| info.domain_attr.as_ref()) };
        let is_shared = attr.is_none_or(|attr| attr.threading != fi::FI_THREAD_DOMAIN);
        let shared = Arc::new(Domain::new(is_shared));
        let fid = fid_of(fi::FI_CLASS_DOMAIN, context, &DOMAIN_FID);
        let domain = fid_domain { fid, ops: DOMAIN.get(), mr: region::OPS.get() };
        lend(DomainObject { domain, shared }, out)
    })
}

unsafe extern "C" fn open_domain_with(
    fabric: *mut fid_fabric,
    info: *mut fi_info,
    out: *mut *mut fid_domain,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    if flags != 0 {
        return -(fi::FI_EBADFLAGS as c_int);
    }
    // SAFETY: the same contract.
    unsafe { open_domain(fabric, info, out, context) }
}

unsafe extern "C" fn close_domain(fid: *mut fid) -> c_int {
    call_int(|| {
        // SAFETY: the application's domain.
        let it: &DomainObject = unsafe { object(fid) }?;
        if it.shared.is_in_use() {
            return Err(Errno::BUSY);
        }
        // SAFETY: the application closes it once.
        drop(unsafe { reclaim::<DomainObject, _>(fid) });
        Ok(())
    })
}

/// Only event queues can be bound: they report nothing, as nothing happens later than its call.
unsafe extern "C" fn bind_domain(_: *mut fid, other: *mut fid, _flags: u64) -> c_int {
    // SAFETY: the application's object, null or valid.
    match unsafe { other.as_ref() } {
        Some(other) if other.fclass == fi::FI_CLASS_EQ as usize => 0,
        _ => -(fi::FI_EINVAL as c_int),
    }
}

unsafe extern "C" fn open_endpoint_with(
    domain: *mut fid_domain,
    info: *mut fi_info,
    out: *mut *mut fid_ep,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    if flags != 0 {
        return -(fi::FI_EBADFLAGS as c_int);
    }
    // SAFETY: the same contract.
    unsafe { endpoint::open(domain, info, out, context) }
}

/// Defines functions that the provider does not have.
macro_rules! lacking {
    ($($name:ident($($argument:ty),*) = $error:ident;)*) => {
        $(unsafe extern "C" fn $name($(_: $argument),*) -> c_int {
            -(fi::$error as c_int)
        })*
    };
}

lacking! {
    no_passive_endpoint(*mut fid_fabric, *mut fi_info, *mut *mut fid_pep, *mut c_void) = FI_ENOSYS;
    no_wait_open(*mut fid_fabric, *mut fi_wait_attr, *mut *mut fid_wait) = FI_ENOSYS;
    no_scalable_endpoint(*mut fid_domain, *mut fi_info, *mut *mut fid_ep, *mut c_void) = FI_ENOSYS;
    no_poll_open(*mut fid_domain, *mut fi_poll_attr, *mut *mut fid_poll) = FI_ENOSYS;
    no_shared_sends(*mut fid_domain, *mut fi_tx_attr, *mut *mut fid_stx, *mut c_void) = FI_ENOSYS;
    no_shared_receives(*mut fid_domain, *mut fi_rx_attr, *mut *mut fid_ep, *mut c_void) = FI_ENOSYS;
    no_collectives(*mut fid_domain, fi_collective_op, *mut fi_collective_attr, u64) = FI_EOPNOTSUPP;
}
