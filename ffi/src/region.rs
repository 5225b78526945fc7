//! Regions: memory that peers may use.

use std::ffi::c_void;

use nemesia::{Access, Addressing, Endpoint as Inner, ExposeOptions, Region};

use crate::boundary::{Out, check_buffer};
use crate::endpoint::{Endpoint, on};
use crate::status::{Fault, NEMESIA_OK};

/// Peers may only get from the region.
pub const NEMESIA_ACCESS_READ: u32 = 1;
/// Peers may only put into the region.
pub const NEMESIA_ACCESS_WRITE: u32 = 2;
/// Peers may use all operations; atomic operations require this.
pub const NEMESIA_ACCESS_READ_WRITE: u32 = 3;

/// In `flags` of `nemesia_endpoint_expose_as`: the caller chooses the key.
pub const NEMESIA_EXPOSE_KEY: u32 = 1;
/// In `flags` of `nemesia_endpoint_expose_as`: peers name the bytes of the region by their address in this process.
pub const NEMESIA_EXPOSE_BY_ADDRESS: u32 = 2;

/// Exposes memory to peers, until `nemesia_endpoint_unexpose` or until the endpoint is closed.
///
/// - `endpoint`: an open endpoint.
/// - `base`, `len`: the memory; `base` may be NULL if `len` is 0. It must be initialised, and writable if
///   `access` allows peers to write.
/// - `access`: NEMESIA_ACCESS_READ, _WRITE or _READ_WRITE.
/// - `out_region`: the number of the region, written on success.
///
/// Returns: NEMESIA_OK; NEMESIA_ERR_ARGUMENT, _REGION (the limit on regions is reached), _SYSTEM or _PANIC.
/// Ownership: the caller owns the memory. Meanwhile other threads access it only by atomic operations.
/// Threads: one at a time, or any number with NEMESIA_THREADS_MULTIPLE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nemesia_endpoint_expose(
    endpoint: *mut Endpoint,
    base: *mut c_void,
    len: usize,
    access: u32,
    out_region: *mut u64,
) -> i32 {
    let work = |endpoint: &mut Inner| {
        // SAFETY: the caller's pointer, null or valid.
        let out = unsafe { Out::required(out_region, "out_region") }?;
        check_buffer(base.cast::<u8>(), len, "base")?;
        // SAFETY: checked above; the caller's promise: the memory stays valid until the region is unexposed.
        let region = unsafe { endpoint.expose(base.cast(), len, access_of(access)?) }?;
        out.write(region.to_bits());
        Ok(NEMESIA_OK)
    };
    // SAFETY: the caller's endpoint, or null.
    unsafe { on(endpoint, work) }
}

/// Exposes memory as `nemesia_endpoint_expose` does, with a key that the caller chooses, or by address.
///
/// A chosen key names the region that is exposed with it now: once the region is unexposed and another one is
/// exposed with the same key, operations of peers go to the other one. Other keys are random and new for each
/// region, so they never name a later one, and peers that were not given them cannot guess them.
///
/// - `endpoint`, `base`, `len`, `access`: as for `nemesia_endpoint_expose`.
/// - `flags`: NEMESIA_EXPOSE_KEY, NEMESIA_EXPOSE_BY_ADDRESS, both, or 0. By address, the `offset` of operations on
///   the region is the address of the byte in this process.
/// - `key`: with NEMESIA_EXPOSE_KEY, any number that no other region of this process has now; else 0.
/// - `out_region`: the number of the region, written on success.
///
/// Returns: as `nemesia_endpoint_expose`; NEMESIA_ERR_KEY_IN_USE if another region has the key.
/// Ownership: as for `nemesia_endpoint_expose`.
/// Threads: one at a time, or any number with NEMESIA_THREADS_MULTIPLE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nemesia_endpoint_expose_as(
    endpoint: *mut Endpoint,
    base: *mut c_void,
    len: usize,
    access: u32,
    flags: u32,
    key: u64,
    out_region: *mut u64,
) -> i32 {
    let work = |endpoint: &mut Inner| {
        // SAFETY: the caller's pointer, null or valid.
        let out = unsafe { Out::required(out_region, "out_region") }?;
        check_buffer(base.cast::<u8>(), len, "base")?;
        let options = options_of(flags, key)?;
        // SAFETY: checked above; the caller's promise: the memory stays valid until the region is unexposed.
        let region = unsafe { endpoint.expose_as(base.cast(), len, access_of(access)?, options) }?;
        out.write(region.to_bits());
        Ok(NEMESIA_OK)
    };
    // SAFETY: the caller's endpoint, or null.
    unsafe { on(endpoint, work) }
}

/// Allocates zeroed memory and exposes it to peers, until `nemesia_endpoint_unexpose` or until the endpoint
/// is closed.
///
/// The memory may also hold the buffers of messages, in all functions that send or receive. Large messages from
/// it are copied once, in user space, by a receiver on this machine that maps it. If `access` is
/// NEMESIA_ACCESS_READ_WRITE, a sender that waits copies part of a large message that is received into it. All
/// this needs no other call. For instance, for two ranks:
///
/// ```c
/// void *memory;
/// uint64_t region;
/// nemesia_endpoint_allocate(endpoint, 1 << 20, NEMESIA_ACCESS_READ_WRITE, &memory, &region);
/// if (rank == 0)
///     nemesia_endpoint_send(endpoint, 1, tag, memory, 1 << 20);
/// else
///     nemesia_endpoint_recv(endpoint, 0, tag, 0, 1 << 20, memory, NULL);
/// nemesia_endpoint_unexpose(endpoint, region);
/// ```
///
/// - `endpoint`: an open endpoint.
/// - `len`: the size in bytes.
/// - `access`: as for `nemesia_endpoint_expose`.
/// - `out_base`: the address of the memory, aligned to a page; written on success.
/// - `out_region`: the number of the region, written on success.
///
/// Returns: NEMESIA_OK; NEMESIA_ERR_ARGUMENT, _REGION (the limit on regions is reached), _SYSTEM or _PANIC.
/// Ownership: the endpoint owns the memory; `nemesia_endpoint_unexpose` or `nemesia_endpoint_close` frees it. The
/// caller does not use it after that.
/// Threads: one at a time, or any number with NEMESIA_THREADS_MULTIPLE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nemesia_endpoint_allocate(
    endpoint: *mut Endpoint,
    len: usize,
    access: u32,
    out_base: *mut *mut c_void,
    out_region: *mut u64,
) -> i32 {
    let work = |endpoint: &mut Inner| {
        // SAFETY: the caller's pointers, null or valid.
        let (base, out) =
            unsafe { (Out::required(out_base, "out_base")?, Out::required(out_region, "out_region")?) };
        if isize::try_from(len).is_err() {
            return Err(Fault::argument(format!("len is {len}, which is more than memory can hold")));
        }
        let region = endpoint.allocate(len, access_of(access)?)?;
        let memory = endpoint.region_memory(region).map_or(std::ptr::null_mut(), |(base, _)| base);
        base.write(memory.cast());
        out.write(region.to_bits());
        Ok(NEMESIA_OK)
    };
    // SAFETY: the caller's endpoint, or null.
    unsafe { on(endpoint, work) }
}

/// Ends the exposure of a region. Operations on it are refused from now on, and requests that wait for its
/// notifications are cancelled. Allocated memory is freed: at once, or when the messages under way that use it
/// are complete.
///
/// - `endpoint`: an open endpoint.
/// - `region`: from `nemesia_endpoint_expose` or `nemesia_endpoint_allocate`.
///
/// Returns: NEMESIA_OK; NEMESIA_ERR_REGION, _ARGUMENT or _PANIC.
/// Ownership: peers no longer access memory that was exposed.
/// Threads: one at a time, or any number with NEMESIA_THREADS_MULTIPLE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nemesia_endpoint_unexpose(endpoint: *mut Endpoint, region: u64) -> i32 {
    let work = |endpoint: &mut Inner| {
        endpoint.unexpose(Region::from_bits(region))?;
        Ok(NEMESIA_OK)
    };
    // SAFETY: the caller's endpoint, or null.
    unsafe { on(endpoint, work) }
}

fn options_of(flags: u32, key: u64) -> Result<ExposeOptions, Fault> {
    if flags & !(NEMESIA_EXPOSE_KEY | NEMESIA_EXPOSE_BY_ADDRESS) != 0 {
        return Err(Fault::argument(format!(
            "flags is {flags:#x}: it may have NEMESIA_EXPOSE_KEY and _BY_ADDRESS"
        )));
    }
    let chosen = flags & NEMESIA_EXPOSE_KEY != 0;
    if !chosen && key != 0 {
        return Err(Fault::argument("key is not 0, but flags has no NEMESIA_EXPOSE_KEY"));
    }
    let by_address = flags & NEMESIA_EXPOSE_BY_ADDRESS != 0;
    let addressing = if by_address { Addressing::Address } else { Addressing::Offset };
    Ok(ExposeOptions { key: chosen.then_some(key), addressing })
}

fn access_of(access: u32) -> Result<Access, Fault> {
    match access {
        NEMESIA_ACCESS_READ => Ok(Access::Read),
        NEMESIA_ACCESS_WRITE => Ok(Access::Write),
        NEMESIA_ACCESS_READ_WRITE => Ok(Access::ReadWrite),
        other => Err(Fault::argument(format!(
            "access is {other}: it must be NEMESIA_ACCESS_READ, _WRITE or _READ_WRITE"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_the_header_are_checked() {
        assert!(access_of(0).is_err() && access_of(4).is_err());
        assert_eq!(access_of(NEMESIA_ACCESS_READ_WRITE), Ok(Access::ReadWrite));
        assert!(options_of(4, 0).is_err() && options_of(0, 7).is_err());
        let both = ExposeOptions { key: Some(0), addressing: Addressing::Address };
        assert_eq!(options_of(NEMESIA_EXPOSE_KEY | NEMESIA_EXPOSE_BY_ADDRESS, 0), Ok(both));
        assert_eq!(options_of(0, 0), Ok(ExposeOptions::default()));
    }
}
