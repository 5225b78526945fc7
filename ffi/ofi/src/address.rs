//! Address vectors: the addresses that an application has inserted, by number.
//!
//! An `fi_addr_t` is an index, for both types of vectors. An address that is inserted again has its first index. The
//! place of a service (`service.rs`) is exchanged for the address of its endpoint when it is inserted.

use std::ffi::{c_char, c_int, c_void};
use std::sync::Arc;

use nemesia::{ADDRESS_BYTES, PeerAddress};

use crate::bindings::{
    self as fi, fi_av_attr, fi_av_set_attr, fi_ops_av, fid, fid_av, fid_av_set, fid_domain,
};
use crate::info::write_address;
use crate::object::{Constant, Errno, FidOps, call, call_int, fid_of, lend, object, reclaim};
use crate::service::{ServicePlace, endpoint_at};
use crate::state::{Domain, domain_of};
use crate::vector::AddressVector;

#[repr(C)]
pub(crate) struct VectorObject {
    vector: fid_av,
    pub(crate) domain: Arc<Domain>,
    pub(crate) number: usize,
}

static FID: FidOps = FidOps::new(close, bind, crate::object::no_control);
static OPS: Constant<fi_ops_av> = Constant(fi_ops_av {
    size: size_of::<fi_ops_av>(),
    insert: Some(insert),
    insertsvc: Some(insert_by_service),
    insertsym: Some(no_insert_by_name),
    remove: Some(remove),
    lookup: Some(lookup),
    straddr: Some(text),
    av_set: Some(no_set),
});

pub(crate) unsafe extern "C" fn open(
    domain: *mut fid_domain,
    attr: *mut fi_av_attr,
    out: *mut *mut fid_av,
    context: *mut c_void,
) -> c_int {
    call_int(|| {
        // SAFETY: the application's domain.
        let domain = unsafe { domain_of(domain) }?;
        // SAFETY: the application's structure, null or valid.
        if let Some(attr) = unsafe { attr.as_mut() } {
            // Neither a vector that several processes share by its name, nor calls that return before they are done.
            if !attr.name.is_null() || attr.flags & !fi::FI_SYMMETRIC != 0 || attr.rx_ctx_bits != 0 {
                return Err(Errno::NO_SYSTEM);
            }
            if attr.type_ == fi::FI_AV_UNSPEC {
                attr.type_ = fi::FI_AV_TABLE;
            }
        }
        let number = domain.with(|state| state.vectors.insert(AddressVector::default()));
        domain.opened();
        let fid = fid_of(fi::FI_CLASS_AV, context, &FID);
        lend(VectorObject { vector: fid_av { fid, ops: OPS.get() }, domain, number }, out)
    })
}

unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    call_int(|| {
        // SAFETY: the application's vector.
        let it: &VectorObject = unsafe { object(fid) }?;
        let number = Some(it.number);
        let removed = it.domain.with(|state| {
            let is_used = state.ports.iter_mut().any(|port| port.vector == number);
            if is_used { Err(Errno::BUSY) } else { Ok(state.vectors.remove(it.number)) }
        });
        removed?;
        it.domain.closed();
        // SAFETY: the application closes it once.
        drop(unsafe { reclaim::<VectorObject, _>(fid) });
        Ok(())
    })
}

/// An event queue would report insertions that are done later. All are done at once.
unsafe extern "C" fn bind(_: *mut fid, other: *mut fid, _flags: u64) -> c_int {
    // SAFETY: the application's object, null or valid.
    match unsafe { other.as_ref() } {
        Some(other) if other.fclass == fi::FI_CLASS_EQ as usize => 0,
        _ => -(fi::FI_EINVAL as c_int),
    }
}

unsafe extern "C" fn insert(
    vector: *mut fid_av,
    addresses: *const c_void,
    count: usize,
    out: *mut u64,
    _flags: u64,
    _context: *mut c_void,
) -> c_int {
    call(|| {
        // SAFETY: the application's vector.
        let it: &VectorObject = unsafe { object(vector) }?;
        if count > 0 && addresses.is_null() {
            return Err(Errno::INVALID);
        }
        let found = (0..count).map(|at| {
            // SAFETY: the application's array of so many addresses.
            endpoint_at(unsafe { addresses.cast::<[u8; ADDRESS_BYTES]>().add(at).read_unaligned() })
        });
        // SAFETY: the application's array of as many numbers.
        unsafe { it.insert(&found.collect::<Vec<_>>(), out) }
    }) as c_int
}

/// Inserts the address of the endpoint that was opened for a service.
unsafe extern "C" fn insert_by_service(
    vector: *mut fid_av,
    node: *const c_char,
    service: *const c_char,
    out: *mut u64,
    _flags: u64,
    _context: *mut c_void,
) -> c_int {
    call(|| {
        // SAFETY: the application's vector.
        let it: &VectorObject = unsafe { object(vector) }?;
        // SAFETY: the application's strings, null or valid.
        let place = unsafe { ServicePlace::named(node, service, false) }?.ok_or(Errno::INVALID)?;
        // SAFETY: the application's place for the number, null or valid.
        unsafe { it.insert(&[place.find()], out) }
    }) as c_int
}

impl VectorObject {
    /// Inserts the addresses that were found. Returns their number.
    ///
    /// # Safety
    /// `out` is null or has room for as many numbers.
    unsafe fn insert(&self, found: &[Result<PeerAddress, Errno>], out: *mut u64) -> Result<isize, Errno> {
        self.domain.with(|state| {
            let vector = state.vectors.get(self.number).ok_or(Errno::INVALID)?;
            for (at, address) in found.iter().enumerate() {
                let number = address.map_or(u64::MAX, |address| vector.insert(address) as u64);
                if !out.is_null() {
                    // SAFETY: the caller's promise.
                    unsafe { out.add(at).write(number) };
                }
            }
            Ok(found.iter().flatten().count() as isize)
        })
    }
}

unsafe extern "C" fn remove(vector: *mut fid_av, numbers: *mut u64, count: usize, _flags: u64) -> c_int {
    call_int(|| {
        // SAFETY: the application's vector.
        let it: &VectorObject = unsafe { object(vector) }?;
        if count > 0 && numbers.is_null() {
            return Err(Errno::INVALID);
        }
        it.domain.with(|state| {
            for at in 0..count {
                // SAFETY: the application's array.
                let number = unsafe { numbers.add(at).read() };
                state.vectors.get(it.number).ok_or(Errno::INVALID)?.remove(number)?;
                for port in state.ports.iter_mut().filter(|port| port.vector == Some(it.number)) {
                    port.forget(number);
                }
            }
            Ok(())
        })
    })
}

unsafe extern "C" fn lookup(vector: *mut fid_av, number: u64, out: *mut c_void, length: *mut usize) -> c_int {
    call_int(|| {
        // SAFETY: the application's vector.
        let it: &VectorObject = unsafe { object(vector) }?;
        let address =
            it.domain.with(|state| state.vectors.get(it.number).and_then(|it| it.get(number).copied()));
        let address = address.ok_or(Errno::INVALID)?;
        // A shorter place gets the first bytes, and no error.
        // SAFETY: the application's place.
        match unsafe { write_address(address.bytes(), out, length) } {
            Err(Errno::TOO_SMALL) if !out.is_null() => Ok(()),
            written => written,
        }
    })
}

/// Writes an address as hexadecimal digits, without its token: whoever has that may call the process.
unsafe extern "C" fn text(
    _vector: *mut fid_av,
    address: *const c_void,
    out: *mut c_char,
    length: *mut usize,
) -> *const c_char {
    // SAFETY: the application's number, null or valid.
    let Some(length) = (unsafe { length.as_mut() }) else { return out };
    if address.is_null() || out.is_null() {
        return out;
    }
    // SAFETY: the application's address.
    let bytes = unsafe { address.cast::<[u8; ADDRESS_BYTES]>().read_unaligned() };
    let text = format!("nemesia://{}", PeerAddress::from_bytes(bytes));
    let count = text.len().min(length.saturating_sub(1));
    if *length > 0 {
        // SAFETY: the application's place has so many bytes.
        unsafe {
            out.cast::<u8>().copy_from_nonoverlapping(text.as_ptr(), count);
            out.add(count).write(0);
        }
    }
    *length = text.len() + 1;
    out
}

unsafe extern "C" fn no_insert_by_name(
    _: *mut fid_av,
    _: *const c_char,
    _: usize,
    _: *const c_char,
    _: usize,
    _: *mut u64,
    _: u64,
    _: *mut c_void,
) -> c_int {
    -(fi::FI_ENOSYS as c_int)
}

unsafe extern "C" fn no_set(
    _: *mut fid_av,
    _: *mut fi_av_set_attr,
    _: *mut *mut fid_av_set,
    _: *mut c_void,
) -> c_int {
    -(fi::FI_ENOSYS as c_int)
}
