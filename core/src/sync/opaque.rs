//! Copies of memory that others may use meanwhile: other processes, or threads by atomic operations.
//!
//! An ordinary copy is a promise to the compiler that nothing else writes to the source. From that it may conclude that
//! the source still holds what was copied, and read the source again where the program reads the copy. A peer that
//! writes in between would then pass a check with one value and be used with another. [`copy`] gives no such promise:
//! it calls the platform's `memcpy` by an address that is itself read with a volatile load. So the compiler doesn't
//! know which function runs. It has to assume that the function writes anything to the destination, therefore it can
//! neither replace a later read of the destination by a read of the source, nor repeat the copy, nor leave it out.
//! Within `memcpy`, which is machine code that is already compiled, each byte of the destination gets a value that its
//! byte of the source had at some time during the call. Some implementations read a byte twice, where vectors overlap.
//! That is harmless, because only the destination is looked at afterwards.
//!
//! The speed is that of `memcpy`: an ordinary copy of unknown length is a call of the same function.

use core::ffi::c_void;

type Copy = unsafe extern "C" fn(*mut c_void, *const c_void, usize) -> *mut c_void;

unsafe extern "C" {
    /// Every platform has it: the compiler itself calls it.
    fn memcpy(to: *mut c_void, from: *const c_void, len: usize) -> *mut c_void;
}

/// The function that copies. It is read with volatile loads only, so that the compiler can't know it.
static COPY: Copy = memcpy;

/// Copies `len` bytes. What others do to the bytes meanwhile changes which bytes are copied, and nothing else.
///
/// # Safety
/// `len` bytes at `from` are mapped readable and initialised, `len` bytes at `to` are mapped writable, and they do not
/// overlap.
#[inline(always)]
pub unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: the static is initialised and never written. The function is `memcpy`, whose conditions are the caller's
    // promise.
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
            // SAFETY: both arrays have `len` bytes, and they are two.
            unsafe { copy(source.as_ptr(), to.as_mut_ptr(), len) };
            assert_eq!(to[..len], source[..len]);
            assert!(to[len..].iter().all(|byte| *byte == 0xee));
        }
    }
}
