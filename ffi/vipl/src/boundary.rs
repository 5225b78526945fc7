//! Return codes, checked pointers, and the end of every panic.

use std::panic::{AssertUnwindSafe, catch_unwind};

use nemesia::internals::os::CancellationOff;
use nemesia::internals::via::Provider;
use nemesia_core::via::codes::Reliability;
use nemesia_core::via::setup::{HOST_BYTES, MOST_DISCRIMINATOR_BYTES, ViaAddress};
use nemesia_core::via::{ViAttributes, ViaError, ViaMemAttributes};

use crate::types::{CMemAttributes, CNetAddress, CViAttributes, Handle};

/// The code of success.
const SUCCESS: i32 = 0;

/// Runs a call and returns its return code. A panic, which would be a bug, becomes `VIP_ERROR_RESOURCE`. The calling
/// thread cannot be cancelled meanwhile.
pub(crate) fn call(run: impl FnOnce(&Provider) -> Result<(), ViaError>) -> i32 {
    let _held = CancellationOff::hold();
    let run = || Provider::get().and_then(|provider| run(&provider));
    let result = catch_unwind(AssertUnwindSafe(run)).unwrap_or(Err(ViaError::ErrorResource));
    result.map_or_else(ViaError::code, |()| SUCCESS)
}

/// Returns the number in a handle.
pub(crate) fn number(handle: Handle) -> u64 {
    handle as usize as u64
}

/// Returns a number as a handle.
pub(crate) fn handle(number: u64) -> Handle {
    std::ptr::without_provenance_mut(number as usize)
}

/// Writes a result to the place that the program named.
///
/// # Errors
/// [`ViaError::InvalidParameter`] for a null pointer.
///
/// # Safety
/// The pointer is null or points to a writable value.
pub(crate) unsafe fn give<T>(place: *mut T, value: T) -> Result<(), ViaError> {
    if place.is_null() {
        return Err(ViaError::InvalidParameter);
    }
    // SAFETY: not null, so the caller's promise holds.
    unsafe { place.write(value) };
    Ok(())
}

/// Reads a value of the program.
///
/// # Errors
/// [`ViaError::InvalidParameter`] for a null pointer.
///
/// # Safety
/// The pointer is null or points to a readable value.
pub(crate) unsafe fn take<T: Copy>(place: *const T) -> Result<T, ViaError> {
    if place.is_null() {
        return Err(ViaError::InvalidParameter);
    }
    // SAFETY: not null, so the caller's promise holds.
    Ok(unsafe { place.read() })
}

/// Checks that a result can be given.
pub(crate) fn require<T>(place: *mut T) -> Result<(), ViaError> {
    if place.is_null() { Err(ViaError::InvalidParameter) } else { Ok(()) }
}

/// Returns the attributes of a VI.
///
/// # Errors
/// [`ViaError::InvalidReliabilityLevel`] unless the level is exactly one of the three.
pub(crate) fn vi_attributes(of: &CViAttributes) -> Result<ViAttributes, ViaError> {
    Ok(ViAttributes {
        reliability: Reliability::from_bits(of.reliability).ok_or(ViaError::InvalidReliabilityLevel)?,
        max_transfer: of.max_transfer,
        qos: number(of.qos),
        ptag: number(of.ptag),
        rdma_write: of.rdma_write != 0,
        rdma_read: of.rdma_read != 0,
    })
}

/// Returns the attributes of a VI in the form of the header.
pub(crate) fn c_attributes(of: &ViAttributes) -> CViAttributes {
    CViAttributes {
        reliability: of.reliability as u16,
        max_transfer: of.max_transfer,
        qos: handle(of.qos),
        ptag: handle(of.ptag),
        rdma_write: of.rdma_write.into(),
        rdma_read: of.rdma_read.into(),
    }
}

/// Returns the attributes of memory.
pub(crate) fn mem_attributes(of: &CMemAttributes) -> ViaMemAttributes {
    ViaMemAttributes { ptag: number(of.ptag), rdma_write: of.rdma_write != 0, rdma_read: of.rdma_read != 0 }
}

/// Returns an address of the program. One without a host means this host.
///
/// # Errors
/// [`ViaError::InvalidParameter`] for a null pointer or lengths beyond the limits of the NIC.
///
/// # Safety
/// The pointer is null or points to an address whose bytes follow.
pub(crate) unsafe fn address(
    place: *const CNetAddress,
    own: [u8; HOST_BYTES],
) -> Result<ViaAddress, ViaError> {
    // SAFETY: the caller's promise.
    let CNetAddress { host_len, discriminator_len, .. } = unsafe { take(place) }?;
    let (host_len, len) = (usize::from(host_len), usize::from(discriminator_len));
    if ![0, HOST_BYTES].contains(&host_len) || len > MOST_DISCRIMINATOR_BYTES {
        return Err(ViaError::InvalidParameter);
    }
    let mut bytes = [0; HOST_BYTES + MOST_DISCRIMINATOR_BYTES];
    // SAFETY: the caller's promise: these bytes follow the lengths.
    unsafe { bytes.as_mut_ptr().copy_from_nonoverlapping(place.cast::<u8>().add(4), host_len + len) };
    let host = if host_len == 0 { own } else { *bytes.first_chunk().ok_or(ViaError::InvalidParameter)? };
    ViaAddress::new(host, &bytes[host_len..host_len + len]).ok_or(ViaError::InvalidParameter)
}

/// Writes an address to the place that the program named, which has room for the longest one, or for the lengths that
/// it already contains.
///
/// # Safety
/// The pointer is null, or points to an address with room for a host and a discriminator as the NIC permits them.
pub(crate) unsafe fn give_address(place: *mut CNetAddress, address: &ViaAddress) {
    if place.is_null() {
        return;
    }
    let discriminator = address.discriminator();
    let head =
        CNetAddress { host_len: HOST_BYTES as u16, discriminator_len: discriminator.len() as u16, bytes: [] };
    // SAFETY: the caller's promise.
    unsafe { place.write(head) };
    // SAFETY: the caller's promise: the host's bytes follow the lengths.
    unsafe { place.cast::<u8>().add(4).copy_from_nonoverlapping(address.host.as_ptr(), HOST_BYTES) };
    // SAFETY: the caller's promise: the discriminator follows the host.
    let to = unsafe { place.cast::<u8>().add(4 + HOST_BYTES) };
    // SAFETY: as above.
    unsafe { to.copy_from_nonoverlapping(discriminator.as_ptr(), discriminator.len()) };
}
