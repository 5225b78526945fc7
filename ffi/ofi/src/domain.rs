//! Fabrics and domains. All objects of a domain live in one structure, behind one lock.
//!
//! An application that has asked for FI_THREAD_DOMAIN calls one function of a domain at a time. For all others the lock
//! is taken in each call.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::bindings::{
    self as fi, fi_atomic_attr, fi_collective_attr, fi_collective_op, fi_datatype, fi_fabric_attr, fi_info,
    fi_op, fi_ops_domain, fi_ops_fabric, fi_poll_attr, fi_rx_attr, fi_tx_attr, fi_wait_attr, fid, fid_domain,
    fid_ep, fid_fabric, fid_pep, fid_poll, fid_stx, fid_wait,
};
use crate::object::{Constant, Errno, FidOps, call_int, fid_of, lend, object, reclaim};
use crate::port::Port;
use crate::queue::Queue;
use crate::region::{self, DomainRegion};
use crate::{address, counter, endpoint, event, queue};

/// Objects of one kind, by number.
pub(crate) struct Table<T>(Vec<Option<T>>);

impl<T> Table<T> {
    const fn new() -> Self {
        Self(Vec::new())
    }

    pub(crate) fn insert(&mut self, value: T) -> usize {
        let free = self.0.iter().position(Option::is_none);
        let at = free.unwrap_or(self.0.len());
        if at == self.0.len() {
            self.0.push(None);
        }
        self.0[at] = Some(value);
        at
    }

    #[inline]
    pub(crate) fn get(&mut self, at: usize) -> Option<&mut T> {
        self.0.get_mut(at)?.as_mut()
    }

    pub(crate) fn remove(&mut self, at: usize) -> Option<T> {
        self.0.get_mut(at)?.take()
    }

    /// Returns a number that is larger than that of each object.
    pub(crate) const fn places(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.0.iter_mut().flatten()
    }
}

/// All objects of a domain.
pub(crate) struct DomainState {
    pub(crate) ports: Table<Port>,
    pub(crate) queues: Table<Queue>,
    pub(crate) vectors: Table<address::AddressVector>,
    pub(crate) regions: Table<DomainRegion>,
}

/// A domain.
pub(crate) struct Domain {
    state: UnsafeCell<DomainState>,
    lock: Mutex<()>,
    /// Several threads may call functions of the domain at the same time.
    is_shared: bool,
    /// The objects of the domain that are open.
    open: AtomicUsize,
}

const fn needs_send<T: Send>() {}
const _: () = needs_send::<DomainState>();

// SAFETY: the state may move between threads, as is checked above. One thread at a time uses it: by the lock, or by the
// promise of an application that has asked for FI_THREAD_DOMAIN.
unsafe impl Sync for Domain {}
// SAFETY: as above.
unsafe impl Send for Domain {}

impl Domain {
    /// Calls `work` with all objects. `work` calls no function of the application.
    #[inline]
    pub(crate) fn with<T>(&self, work: impl FnOnce(&mut DomainState) -> T) -> T {
        let _guard = self.is_shared.then(|| self.lock.lock().unwrap_or_else(PoisonError::into_inner));
        // SAFETY: see above; and `work` does not come here again.
        work(unsafe { &mut *self.state.get() })
    }

    /// Counts an object that is open.
    pub(crate) fn opened(&self) {
        self.open.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts an object that was closed.
    pub(crate) fn closed(&self) {
        self.open.fetch_sub(1, Ordering::Relaxed);
    }
}

#[repr(C)]
struct Fabric {
    fabric: fid_fabric,
}

#[repr(C)]
struct DomainObject {
    domain: fid_domain,
    shared: Arc<Domain>,
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
    query_atomic: Some(no_atomics),
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
        let state = DomainState {
            ports: Table::new(),
            queues: Table::new(),
            vectors: Table::new(),
            regions: Table::new(),
        };
        let (state, lock, open) = (UnsafeCell::new(state), Mutex::new(()), AtomicUsize::new(0));
        let shared = Arc::new(Domain { state, lock, is_shared, open });
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
        if it.shared.open.load(Ordering::Relaxed) > 0 {
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

/// Returns the domain behind its object.
///
/// # Safety
/// The pointer is null, or an open domain of this provider.
pub(crate) unsafe fn domain_of(domain: *mut fid_domain) -> Result<Arc<Domain>, Errno> {
    // SAFETY: the caller's promise.
    let it: &DomainObject = unsafe { object(domain) }?;
    Ok(Arc::clone(&it.shared))
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
    no_atomics(*mut fid_domain, fi_datatype, fi_op, *mut fi_atomic_attr, u64) = FI_EOPNOTSUPP;
    no_collectives(*mut fid_domain, fi_collective_op, *mut fi_collective_attr, u64) = FI_EOPNOTSUPP;
}
