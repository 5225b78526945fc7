//! NICs, protection tags, asynchronous errors, and management.

use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_ulong, c_void};
use std::sync::{Mutex, PoisonError};

use nemesia::internals::via::ErrorHandler;
use nemesia_core::via::ViaError;
use nemesia_core::via::codes::Reliability;

use crate::boundary::{call, give, handle, number, require, take};
use crate::types::{CAutodiscovery, CNicAttributes, Handle};

/// `VIP_SMI_AUTODISCOVERY`.
const AUTODISCOVERY: c_ulong = 1;
/// Bytes of the name in `VIP_NIC_ATTRIBUTES`, with the final zero.
const NAME_BYTES: usize = 64;

/// Returns the address of a NIC as bytes that stay where they are: `VIP_NIC_ATTRIBUTES` has a pointer to them.
fn stable(address: [u8; 4]) -> *const u8 {
    static ADDRESSES: Mutex<Option<HashMap<[u8; 4], &'static [u8; 4]>>> = Mutex::new(None);
    let mut addresses = ADDRESSES.lock().unwrap_or_else(PoisonError::into_inner);
    let place =
        addresses.get_or_insert_default().entry(address).or_insert_with(|| Box::leak(Box::new(address)));
    place.as_ptr()
}

/// Opens a NIC. There is one, under every name that does not end in a number other than 0.
///
/// # Safety
/// As `vipl.h` demands: the name is a string, and the pointers are null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn VipOpenNic(name: *const c_char, nic: *mut Handle) -> i32 {
    call(|provider| {
        require(nic)?;
        if name.is_null() {
            return Err(ViaError::InvalidParameter);
        }
        // SAFETY: the caller's promise: a string.
        let name = unsafe { CStr::from_ptr(name) }.to_bytes();
        let opened = provider.open_nic(name)?;
        // SAFETY: the caller's promise.
        unsafe { give(nic, handle(opened)) }
    })
}

/// Closes a NIC and everything that was made with it.
#[unsafe(no_mangle)]
pub extern "C" fn VipCloseNic(nic: Handle) -> i32 {
    call(|provider| provider.close_nic(number(nic)))
}

/// Returns the limits of a NIC.
///
/// # Safety
/// The pointer is null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn VipQueryNic(nic: Handle, attributes: *mut CNicAttributes) -> i32 {
    call(|provider| {
        let facts = provider.query_nic(number(nic))?;
        let mut name = [0; NAME_BYTES];
        for (place, byte) in name.iter_mut().take(NAME_BYTES - 1).zip(&facts.name) {
            *place = *byte as c_char;
        }
        let value = CNicAttributes {
            name,
            hardware_version: 1,
            provider_version: 1,
            address_len: facts.address.len() as u16,
            address: stable(facts.address),
            thread_safe: 1,
            max_discriminator_len: facts.discriminator_bytes as u16,
            max_register_bytes: facts.region_bytes,
            max_register_regions: facts.regions as c_ulong,
            max_register_block_bytes: facts.region_bytes,
            max_vi: facts.vis as c_ulong,
            max_descriptors_per_queue: facts.descriptors as c_ulong,
            max_segments_per_desc: facts.segments as c_ulong,
            max_cq: facts.queues as c_ulong,
            max_cq_entries: facts.entries as c_ulong,
            max_transfer_size: facts.transfer_bytes,
            native_mtu: facts.transfer_bytes,
            max_ptags: facts.ptags as c_ulong,
            reliability_levels: Reliability::ALL_BITS,
            rdma_read_levels: Reliability::READ_BITS,
        };
        // SAFETY: the caller's promise.
        unsafe { give(attributes, value) }
    })
}

/// Creates a protection tag.
///
/// # Safety
/// The pointer is null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn VipCreatePtag(nic: Handle, ptag: *mut Handle) -> i32 {
    call(|provider| {
        require(ptag)?;
        let created = provider.create_ptag(number(nic))?;
        // SAFETY: the caller's promise.
        unsafe { give(ptag, handle(created)) }
    })
}

/// Destroys a protection tag that is not in use.
#[unsafe(no_mangle)]
pub extern "C" fn VipDestroyPtag(nic: Handle, ptag: Handle) -> i32 {
    call(|provider| provider.destroy_ptag(number(nic), number(ptag)))
}

/// Sets the handler of errors that no descriptor reports; null restores the default, which logs them.
#[unsafe(no_mangle)]
pub extern "C" fn VipErrorCallback(nic: Handle, context: *mut c_void, handler: Option<ErrorHandler>) -> i32 {
    call(|provider| provider.set_error_handler(number(nic), context, handler))
}

/// Returns what is known of the network: every address is one hop away, and the own one is the only one known.
///
/// # Safety
/// The pointer is null, or points to a list whose array has room for the given number of addresses.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn VipQuerySystemManagementInfo(nic: Handle, kind: c_ulong, place: *mut c_void) -> i32 {
    call(|provider| {
        let facts = provider.query_nic(number(nic))?;
        if kind != AUTODISCOVERY {
            return Err(ViaError::InvalidParameter);
        }
        let list = place.cast::<CAutodiscovery>();
        // SAFETY: the caller's promise.
        let CAutodiscovery { addresses, count, .. } = unsafe { take(list.cast_const()) }?;
        let found = c_ulong::from(count > 0 && !addresses.is_null());
        if found > 0 {
            let address = nemesia_core::via::setup::ViaAddress::new(facts.address, &[]);
            let address = address.ok_or(ViaError::ErrorResource)?;
            // SAFETY: the caller's promise: the array has room.
            unsafe { crate::boundary::give_address(addresses, &address) };
        }
        // SAFETY: the caller's promise.
        unsafe { give(list, CAutodiscovery { hops: 1, addresses, count: found }) }
    })
}
