//! The name service: the names of hosts, as the system resolves them.

use std::ffi::{CStr, c_char, c_ulong, c_void};
use std::net::{IpAddr, Ipv4Addr, ToSocketAddrs};

use nemesia::internals::via::Provider;
use nemesia_core::via::ViaError;
use nemesia_core::via::setup::ViaAddress;

use crate::boundary::{address, call, give_address, number};
use crate::types::{CNetAddress, Handle};

/// Switches the name service of a NIC on. The information for the service is not used.
#[unsafe(no_mangle)]
pub extern "C" fn VipNSInit(nic: Handle, _service: *mut c_void) -> i32 {
    call(|provider| provider.set_names(number(nic), true))
}

/// Switches the name service of a NIC off.
#[unsafe(no_mangle)]
pub extern "C" fn VipNSShutdown(nic: Handle) -> i32 {
    call(|provider| {
        require_names(provider, nic)?;
        provider.set_names(number(nic), false)
    })
}

fn require_names(provider: &Provider, nic: Handle) -> Result<(), ViaError> {
    if provider.has_names(number(nic))? { Ok(()) } else { Err(ViaError::ErrorNameservice) }
}

/// Returns an address of a host. The index counts the addresses of the name: beyond the last one is `VIP_NO_MATCH`.
///
/// # Safety
/// The name is a string, and the pointers are null or valid; the address has room for a host.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn VipNSGetHostByName(
    nic: Handle,
    name: *const c_char,
    place: *mut CNetAddress,
    index: c_ulong,
) -> i32 {
    call(|provider| {
        require_names(provider, nic)?;
        if name.is_null() || place.is_null() {
            return Err(ViaError::InvalidParameter);
        }
        // SAFETY: the caller's promise: a string.
        let name = unsafe { CStr::from_ptr(name) }.to_str().map_err(|_| ViaError::ErrorNameservice)?;
        let mut found: Vec<Ipv4Addr> = Vec::new();
        for address in (name, 0).to_socket_addrs().map_err(|_| ViaError::ErrorNameservice)? {
            if let IpAddr::V4(address) = address.ip()
                && !found.contains(&address)
            {
                found.push(address);
            }
        }
        if found.is_empty() {
            return Err(ViaError::ErrorNameservice);
        }
        let index = usize::try_from(index).unwrap_or(usize::MAX);
        let host = found.get(index).ok_or(ViaError::NoMatch)?.octets();
        let host = ViaAddress::new(host, &[]).ok_or(ViaError::ErrorResource)?;
        // SAFETY: the caller's promise.
        unsafe { give_address(place, &host) };
        Ok(())
    })
}

/// Returns the name of a host. The length is the room, and then the bytes of the name with its final zero.
///
/// # Safety
/// The pointers are null or valid, and the name has the given room.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn VipNSGetHostByAddr(
    nic: Handle,
    place: *const CNetAddress,
    name: *mut c_char,
    len: *mut c_ulong,
) -> i32 {
    call(|provider| {
        require_names(provider, nic)?;
        // SAFETY: the caller's promise.
        let host = unsafe { address(place, provider.address()) }?.host;
        // SAFETY: the caller's promise.
        let room = unsafe { crate::boundary::take(len.cast_const()) }?;
        if name.is_null() {
            return Err(ViaError::InvalidParameter);
        }
        let found =
            nemesia::internals::via::name_of_host(Ipv4Addr::from(host)).ok_or(ViaError::ErrorNameservice)?;
        let bytes = found.as_bytes();
        // SAFETY: the caller's promise.
        unsafe { crate::boundary::give(len, bytes.len() as c_ulong + 1) }?;
        if room <= bytes.len() as c_ulong {
            return Err(ViaError::ErrorResource);
        }
        // SAFETY: the caller's promise: the name has room for these bytes and a zero.
        unsafe { name.cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        // SAFETY: as above.
        unsafe { name.add(bytes.len()).write(0) };
        Ok(())
    })
}
