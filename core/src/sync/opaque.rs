//! Copies of memory that other processes may use concurrently, or threads by atomic operations.
//!
//! With an ordinary copy the compiler may assume that nothing else writes to the source. It may conclude that
//! the source still holds the copied bytes, and read the source again where the program reads the copy. If a
//! peer wrote in between, one value would pass a check and another would be used. [`copy`] permits no such
//! conclusion: it calls the platform's `memcpy` by an address that is itself read with a volatile load. So the
//! compiler cannot identify the function. It has to assume that the function writes any bytes to the
//! destination. It can therefore neither replace a later read of the destination by a read of the source, nor
//! repeat the copy, nor omit it. Within `memcpy`, which is compiled machine code, each byte of the destination
//! gets a value that its byte of the source had at some time during the call. Some implementations read a byte
//! twice, where vectors overlap. That is harmless, because only the destination is read afterwards.
//!
//! The speed is that of `memcpy`: an ordinary copy of unknown length is a call of the same function.

use core::ffi::c_void;

type Copy = unsafe extern "C" fn(*mut c_void, *const c_void, usize) -> *mut c_void;

unsafe extern "C" {
    /// Every platform has it: the compiler itself emits calls of it.
    fn memcpy(to: *mut c_void, from: *const c_void, len: usize) -> *mut c_void;
}

/// The function that copies. It is read with volatile loads only, so that the compiler cannot know its value.
static COPY: Copy = memcpy;

/// Copies `len` bytes. If other threads or processes write to the source meanwhile, only the copied bytes
/// change.
///
/// # Safety
/// `len` bytes at `from` are mapped readable and initialised, `len` bytes at `to` are mapped writable, and they do not
/// overlap.
#[inline(always)]
pub unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: the static is initialised and never written. The function is `memcpy`, whose conditions the
    // caller guarantees.
    unsafe { (&raw const COPY).read_volatile()(to.cast(), from.cast(), len) };
}

#[cfg(test)]
mod tests {
    use super::copy;

    #[test]
    fn every_length_is_copied_and_nothing_else() {
        let source: [u8; 300] = core::array::from_fn(|at| (at * 7 + 3) as u8);
        for len in 0..300 {
            let mut to = [0xee; 301];
            // SAFETY: both arrays have `len` bytes, and they are distinct.
            unsafe { copy(source.as_ptr(), to.as_mut_ptr(), len) };
            assert_eq!(to[..len], source[..len]);
            assert!(to[len..].iter().all(|byte| *byte == 0xee));
        }
    }
}
