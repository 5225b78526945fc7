//! Memory that the caller takes away.

use std::ffi::c_void;

/// Tells that addresses are about to get other pages: that they are going to be unmapped, mapped anew, moved,
/// discarded, or given back by an allocator. For programs and runtimes that see these calls anyway. Call it before the
/// change; and once more after it, if other threads may use the addresses meanwhile, as they may while pages are
/// discarded. Registrations that this library keeps on the caller's word are not used for these addresses again; those
/// that the kernel tells of need no call.
///
/// - `address`, `bytes`: the range. With NULL and SIZE_MAX it is every address.
///
/// Threads: any, in any state: in a signal handler, in an allocator, while another function of this library runs. It
/// takes no lock, allocates nothing, and leaves errno and the last error alone.
#[unsafe(no_mangle)]
pub extern "C" fn nemesia_memory_released(address: *const c_void, bytes: usize) {
    nemesia::regcache::memory_released(address.addr() as u64, bytes as u64);
}
