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
//! The speed is that of `memcpy`: an ordinary copy of unknown length is a call of the same function. There is one
//! exception. Many C libraries copy some KiB by one repeating instruction. It is up to twenty times as slow where the
//! destination begins 1 to 31 bytes behind the source within their pages: the processor takes each load for one of the
//! bytes just stored. On a Zen 3, 4 KiB took 1.36 us instead of 0.05. This is the usual case, and no accident: cells
//! begin with pages, and `malloc` places large buffers 16 bytes behind the beginning of a page. Such bytes are copied
//! from the end to the beginning, where no load follows a store that it could be taken for.

use core::ffi::c_void;

type Copy = unsafe extern "C" fn(*mut c_void, *const c_void, usize) -> *mut c_void;

unsafe extern "C" {
    /// Every platform has it: the compiler itself emits calls of it.
    fn memcpy(to: *mut c_void, from: *const c_void, len: usize) -> *mut c_void;
}

/// The bytes from which on C libraries use the repeating instruction, or more.
const LONG: usize = 2048;
/// The lowest bits of an address, by which a processor compares loads with earlier stores at first.
const COMPARED: usize = 4095;
/// So many bytes behind the source, and fewer, loads are taken for what was just stored.
const JUST_BEHIND: usize = 31;
/// Bytes of a step of [`descending`].
#[cfg(target_arch = "x86_64")]
const STEP: usize = 64;

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
    if cfg!(target_arch = "x86_64") && len >= LONG && is_just_behind(from, to) {
        // SAFETY: the same contract.
        return unsafe { descending(from, to, len) };
    }
    // SAFETY: the static is initialised and never written. The function is `memcpy`, whose conditions the
    // caller guarantees.
    unsafe { (&raw const COPY).read_volatile()(to.cast(), from.cast(), len) };
}

/// Returns whether the destination begins a few bytes behind the source, as far as the processor compares.
#[inline(always)]
fn is_just_behind(from: *const u8, to: *mut u8) -> bool {
    (to.addr().wrapping_sub(from.addr()) & COMPARED).wrapping_sub(1) < JUST_BEHIND
}

/// Copies 64 bytes by this instruction for the stores. All loads come before the stores. In assembly, for the same
/// reason as [`copy`] calls an unknown function; every x86-64 processor has the instructions.
#[cfg(target_arch = "x86_64")]
macro_rules! move_line {
    ($store:literal, $from:expr, $to:expr) => {
        core::arch::asm!(
            "movdqu {a}, [{from}]",
            "movdqu {b}, [{from} + 16]",
            "movdqu {c}, [{from} + 32]",
            "movdqu {d}, [{from} + 48]",
            concat!($store, " [{to}], {a}"),
            concat!($store, " [{to} + 16], {b}"),
            concat!($store, " [{to} + 32], {c}"),
            concat!($store, " [{to} + 48], {d}"),
            from = in(reg) $from,
            to = in(reg) $to,
            a = out(xmm_reg) _,
            b = out(xmm_reg) _,
            c = out(xmm_reg) _,
            d = out(xmm_reg) _,
            options(nostack, preserves_flags),
        )
    };
}
#[cfg(all(target_arch = "x86_64", not(nemesia_loom)))]
pub(super) use move_line;

/// Copies from the end to the beginning.
///
/// # Safety
/// As for [`copy`].
#[cfg(target_arch = "x86_64")]
#[inline(never)]
unsafe fn descending(from: *const u8, to: *mut u8, len: usize) {
    let whole = len - len % STEP;
    // SAFETY: the last bytes of both ranges. They are few, so this does not come here again.
    unsafe { copy(from.add(whole), to.add(whole), len - whole) };
    for at in (0..whole).step_by(STEP).rev() {
        // SAFETY: both addresses begin 64 bytes of the ranges that the caller guarantees.
        unsafe { move_line!("movdqu", from.add(at), to.add(at)) };
    }
}

/// Never called: [`copy`] asks for the processor.
///
/// # Safety
/// As for [`copy`].
#[cfg(not(target_arch = "x86_64"))]
unsafe fn descending(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: the same contract.
    unsafe { (&raw const COPY).read_volatile()(to.cast(), from.cast(), len) };
}

#[cfg(test)]
mod tests {
    use std::vec;
    use std::vec::Vec;

    use super::{LONG, copy, is_just_behind};

    #[test]
    fn long_copies_are_right_wherever_both_begin_within_their_pages() {
        let source: Vec<u8> = (0..20_000).map(|at| (at * 7 + at / 251) as u8).collect();
        let mut found = 0;
        for (from, to) in (0..70).flat_map(|from| [0, 1, 16, 31, 32, 63].map(|to| (from, to))) {
            for len in [LONG - 1, LONG, LONG + 1, LONG + 63, LONG + 65, 2 * LONG, 3 * LONG + 17] {
                let mut there = vec![0xee; 12_000];
                // The distance within pages is chosen, wherever the vectors are.
                let at = (source.as_ptr().addr() + from).wrapping_sub(there.as_ptr().addr()) % 4096 + to;
                // SAFETY: both ranges lie in their vectors, which are distinct.
                unsafe {
                    let (from, to) = (source.as_ptr().add(from), there.as_mut_ptr().add(at));
                    found += usize::from(is_just_behind(from, to));
                    copy(from, to, len);
                }
                assert_eq!(there[at..at + len], source[from..from + len], "{len} from {from} to {to}");
                assert!(there[..at].iter().chain(&there[at + len..]).all(|byte| *byte == 0xee));
            }
        }
        assert_eq!(found, 70 * 3 * 7);
    }

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
