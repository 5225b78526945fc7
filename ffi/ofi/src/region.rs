//! Memory regions: memory of the application that its peers may read and write.
//!
//! The application chooses the keys, and peers name a byte by its offset in the region. Memory of messages, and the own
//! memory of one-sided operations, needs no registration; a region for these only is not exposed.
//!
//! A region from the null pointer to the end is the whole memory of the process, and peers name its bytes by their
//! addresses: MPIs register it for windows to which memory is attached later. The application has exposed all that it
//! has, so an operation on an address without memory ends the process, as it does over other providers.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use libc::iovec;
use nemesia::Access;

use crate::bindings::{self as fi, fi_mr_attr, fi_ops_mr, fid, fid_domain, fid_mr};
use crate::memory::DomainRegion;
use crate::object::{Constant, Errno, FidOps, call_int, fid_of, lend, object, reclaim};
use crate::port::ExposedMemory;
use crate::state::{Domain, DomainState, domain_of};

const REMOTE_READ: u64 = fi::FI_REMOTE_READ as u64;
const REMOTE_WRITE: u64 = fi::FI_REMOTE_WRITE as u64;

#[repr(C)]
struct RegionObject {
    region: fid_mr,
    domain: Arc<Domain>,
    /// `None` if peers may not use it.
    number: Option<usize>,
}

static FID: FidOps = FidOps::new(close, bind, control);
pub(crate) static OPS: Constant<fi_ops_mr> = Constant(fi_ops_mr {
    size: size_of::<fi_ops_mr>(),
    reg: Some(register),
    regv: Some(register_list),
    regattr: Some(register_by),
});

/// Makes a region of the memory of this process.
///
/// # Safety
/// The domain is one of this provider. The memory is valid until the region is closed.
unsafe fn register_run(
    domain: *mut fid_domain,
    (base, len): (*const c_void, usize),
    (access, key): (u64, u64),
    out: *mut *mut fid_mr,
    context: *mut c_void,
) -> Result<(), Errno> {
    let memory = ExposedMemory::of(base as usize, len).filter(|_| !out.is_null()).ok_or(Errno::INVALID)?;
    // SAFETY: the caller's promise.
    let domain = unsafe { domain_of(domain) }?;
    let access = match (access & REMOTE_READ != 0, access & REMOTE_WRITE != 0) {
        (false, false) => None,
        (true, false) => Some(Access::Read),
        (false, true) => Some(Access::Write),
        (true, true) => Some(Access::ReadWrite),
    };
    let number = match access {
        None => None,
        Some(access) => Some(domain.with(|state| {
            let DomainState { ports, regions, .. } = state;
            let mut region = DomainRegion { memory, access, key, exposed: Vec::new() };
            for number in 0..ports.places() {
                let Some(port) = ports.get(number) else { continue };
                // SAFETY: the caller's promise.
                if let Err(error) = unsafe { region.expose(number, port) } {
                    region.hide(ports);
                    return Err(error);
                }
            }
            Ok(regions.insert(region))
        })?),
    };
    domain.opened();
    let fid = fid_of(fi::FI_CLASS_MR, context, &FID);
    lend(RegionObject { region: fid_mr { fid, mem_desc: std::ptr::null_mut(), key }, domain, number }, out)
}

unsafe extern "C" fn register(
    domain: *mut fid,
    base: *const c_void,
    len: usize,
    access: u64,
    offset: u64,
    key: u64,
    flags: u64,
    out: *mut *mut fid_mr,
    context: *mut c_void,
) -> c_int {
    call_int(|| {
        if flags != 0 || offset != 0 {
            return Err(Errno::BAD_FLAGS);
        }
        // SAFETY: the application's domain, whose first part this is, and its memory.
        unsafe { register_run(domain.cast(), (base, len), (access, key), out, context) }
    })
}

unsafe extern "C" fn register_list(
    domain: *mut fid,
    list: *const iovec,
    count: usize,
    access: u64,
    offset: u64,
    key: u64,
    flags: u64,
    out: *mut *mut fid_mr,
    context: *mut c_void,
) -> c_int {
    call_int(|| {
        // SAFETY: the application's list of so many runs, null or valid.
        let run = unsafe { list.as_ref() }.filter(|_| count == 1).ok_or(Errno::INVALID)?;
        if flags != 0 || offset != 0 {
            return Err(Errno::BAD_FLAGS);
        }
        // SAFETY: as in `register`.
        unsafe { register_run(domain.cast(), (run.iov_base, run.iov_len), (access, key), out, context) }
    })
}

unsafe extern "C" fn register_by(
    domain: *mut fid,
    attr: *const fi_mr_attr,
    flags: u64,
    out: *mut *mut fid_mr,
) -> c_int {
    call_int(|| {
        // SAFETY: the application's structure, null or valid.
        let attr = unsafe { attr.as_ref() }.ok_or(Errno::INVALID)?;
        // SAFETY: the list in it, null or valid.
        let run = unsafe { attr.mr_iov.as_ref() }.filter(|_| attr.iov_count == 1).ok_or(Errno::INVALID)?;
        if flags != 0 || attr.offset != 0 {
            return Err(Errno::BAD_FLAGS);
        }
        let (memory, rights) = ((run.iov_base.cast_const(), run.iov_len), (attr.access, attr.requested_key));
        // SAFETY: as in `register`.
        unsafe { register_run(domain.cast(), memory, rights, out, attr.context) }
    })
}

unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    call_int(|| {
        // SAFETY: the application's region.
        let it: &RegionObject = unsafe { object(fid) }?;
        if let Some(number) = it.number {
            it.domain.with(|state| {
                if let Some(region) = state.regions.remove(number) {
                    region.hide(&mut state.ports);
                }
            });
        }
        it.domain.closed();
        // SAFETY: the application closes it once.
        drop(unsafe { reclaim::<RegionObject, _>(fid) });
        Ok(())
    })
}

/// All endpoints of the domain expose a region: there is nothing to bind it to.
unsafe extern "C" fn bind(_: *mut fid, other: *mut fid, _flags: u64) -> c_int {
    // SAFETY: the application's object, null or valid.
    match unsafe { other.as_ref() } {
        Some(other) if other.fclass == fi::FI_CLASS_EP as usize => 0,
        _ => -(fi::FI_ENOSYS as c_int),
    }
}

/// A region is enabled from the start.
unsafe extern "C" fn control(_: *mut fid, command: c_int, _: *mut c_void) -> c_int {
    if command == fi::FI_ENABLE as c_int { 0 } else { -(fi::FI_ENOSYS as c_int) }
}
