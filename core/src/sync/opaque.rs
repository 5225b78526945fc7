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
//! The speed is that of `memcpy`: an ordinary copy of unknown length is a call of the same function. There are two
//! exceptions, for long copies on x86-64.
//!
//! From some KiB on one repeating instruction (`rep movsb`) writes whole lines. On processors on which it is fast it
//! does not first read the lines that it overwrites, which another core may hold: on a Zen 5 it was 1.5 to 2.4 times as
//! fast between near cores, and 1.7 to 3.3 times between distant ones. C libraries choose it or not by their versions
//! and settings; here it is chosen by what the processor says of itself.
//!
//! That instruction is up to twenty times as slow where the destination begins 1 to 63 bytes behind the source within
//! their pages: the processor takes each load for one of the bytes just stored. On a Zen 3, 4 KiB took 1.36 us instead
//! of 0.05. Such bytes are copied from the end to the beginning, where no load follows a store that it could be taken
//! for. `malloc` places large buffers 16 bytes behind the beginning of a page, so cells begin elsewhere
//! ([`CELL_OFFSET`](crate::shared::layout::CELL_OFFSET)).

use core::ffi::c_void;

type Copy = unsafe extern "C" fn(*mut c_void, *const c_void, usize) -> *mut c_void;

unsafe extern "C" {
    /// Every platform has it: the compiler itself emits calls of it.
    fn memcpy(to: *mut c_void, from: *const c_void, len: usize) -> *mut c_void;
}

/// The bytes from which on C libraries use the repeating instruction, or more.
const LONG: usize = 2048;
/// The bytes from which on the repeating instruction writes whole lines without reading them: 2 KiB are still read.
pub(super) const WHOLE: usize = 4096;
/// The lowest bits of an address, by which a processor compares loads with earlier stores at first.
const COMPARED: usize = 4095;
/// So many bytes behind the source, and fewer, loads are taken for what was just stored.
const JUST_BEHIND: usize = 63;
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
    if cfg!(target_arch = "x86_64") && len >= LONG {
        // SAFETY: the same contract.
        return unsafe { long(from, to, len) };
    }
    // SAFETY: the same contract.
    unsafe { by_platform(from, to, len) };
}

/// Copies by the platform's `memcpy`.
///
/// # Safety
/// As for [`copy`].
#[inline(always)]
unsafe fn by_platform(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: the static is initialised and never written. The function is `memcpy`, whose conditions the
    // caller guarantees.
    unsafe { (&raw const COPY).read_volatile()(to.cast(), from.cast(), len) };
}

/// Copies many bytes by the fastest instruction for these addresses.
///
/// # Safety
/// As for [`copy`].
#[inline(never)]
unsafe fn long(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: the same contract, for each.
    unsafe {
        if is_just_behind(from, to) {
            descending(from, to, len);
        } else if len >= WHOLE && writes_whole_lines() {
            repeating(from, to, len);
        } else {
            by_platform(from, to, len);
        }
    }
}

/// Returns whether a [`copy`] of at least [`WHOLE`] bytes writes whole lines without reading them first, wherever
/// the bytes lie that it does not copy [descending].
#[cfg(target_arch = "x86_64")]
#[inline]
pub(super) fn writes_whole_lines() -> bool {
    use core::sync::atomic::{AtomicU8, Ordering};
    /// 0 until the processor was asked, then 1, or 2 if it does. All threads find the same.
    static KNOWN: AtomicU8 = AtomicU8::new(0);

    #[cold]
    fn ask() -> u8 {
        /// "Enhanced REP MOVSB", in EBX of leaf 7 (Intel SDM, volume 2, CPUID; AMD APM, volume 3, appendix E).
        const ENHANCED: u32 = 1 << 9;
        const LEAF: u32 = 7;
        let has_leaf = core::arch::x86_64::__cpuid(0).eax >= LEAF;
        1 + u8::from(has_leaf && core::arch::x86_64::__cpuid_count(LEAF, 0).ebx & ENHANCED != 0)
    }

    let known = match KNOWN.load(Ordering::Relaxed) {
        0 => ask(),
        known => return known == 2,
    };
    KNOWN.store(known, Ordering::Relaxed);
    known == 2
}

/// This library knows no such instruction of this processor.
#[cfg(not(target_arch = "x86_64"))]
pub(super) const fn writes_whole_lines() -> bool {
    false
}

/// Copies by one instruction. In assembly, for the same reason as [`copy`] calls an unknown function.
///
/// Later stores of this thread are ordered behind its stores, as behind those of `memcpy` (Intel SDM, volume 3, section
/// 9.2.4.1), so a Release publishes them.
///
/// # Safety
/// As for [`copy`].
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn repeating(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: the instruction reads and writes the ranges that the caller guarantees. The direction flag is clear
    // wherever Rust code runs.
    unsafe {
        core::arch::asm!(
            "rep movsb",
            inout("rcx") len => _,
            inout("rsi") from => _,
            inout("rdi") to => _,
            options(nostack, preserves_flags),
        );
    }
}

/// Never called: [`long`] asks for the processor.
///
/// # Safety
/// As for [`copy`].
#[cfg(not(target_arch = "x86_64"))]
unsafe fn repeating(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: the same contract.
    unsafe { by_platform(from, to, len) };
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
    unsafe { by_platform(from, to, len) };
}

#[cfg(test)]
mod tests {
    use std::vec;
    use std::vec::Vec;

    use super::{LONG, WHOLE, copy, is_just_behind};

    #[test]
    fn long_copies_are_right_wherever_both_begin_within_their_pages() {
        let source: Vec<u8> = (0..20_000).map(|at| (at * 7 + at / 251) as u8).collect();
        let mut found = 0;
        for (from, to) in (0..70).flat_map(|from| [0, 1, 16, 32, 63, 64].map(|to| (from, to))) {
            for len in [LONG - 1, LONG, LONG + 1, LONG + 63, WHOLE - 1, WHOLE, WHOLE + LONG + 17] {
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
        assert_eq!(found, 70 * 4 * 7);
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
