//! Memory that the caller unmaps or remaps.

use std::ffi::c_void;

/// Reports that a range of addresses is about to get other pages: the caller will unmap, remap, move or
/// discard the range, or its allocator will return it.
///
/// Programs and runtimes that observe these calls anyway use this function. Call it before the change. Call
/// it again after the change if other threads may use the addresses meanwhile, which is possible while pages
/// are discarded. Afterwards the library does not use registrations for these addresses that depend on such
/// reports. Registrations that the kernel monitors need no call.
///
/// - `address`, `bytes`: the range. NULL and SIZE_MAX mean every address.
///
/// Threads: any, in any state: in a signal handler, in an allocator, while another function of this library
/// runs. The function takes no lock, allocates no memory, and does not change errno or the last error.
#[unsafe(no_mangle)]
pub extern "C" fn nemesia_memory_released(address: *const c_void, bytes: usize) {
    nemesia::regcache::memory_released(address.addr() as u64, bytes as u64);
}
