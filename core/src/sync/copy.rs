//! Copies to lines that another core has, and copies past the caches.
//!
//! A core has only so many stores under way, which wait for their lines one behind the other, and those of a copy are parts of a
//! line. So before some lines are copied to, one byte of each is written: then as many lines are on their way as the core has
//! stores. On one machine here (Zen 4, 64 stores of at most 32 bytes) 8 KiB of a stream between near cores took 0.64 us instead
//! of 0.90, and 256 KiB 14 us instead of 20. A prefetch for writing does not do it: that leaves a line shared which this core has,
//! too.
//!
//! Copies past the caches are for what is larger than they are: stores that go to memory by way of write-combining buffers neither
//! read the lines that they overwrite nor push others out (paper 4, section 3.2).
//!
//! Such stores are not ordered by what publishes them: a Release orders plain stores only. Each copy here therefore ends with a
//! store fence, before it returns, so that whatever is published afterwards by any [`Edge`](super::Edge) finds them done. The
//! blunder `Undrained` of the models leaves that out.

use super::opaque;

/// Bytes that are moved in one step, and that change hands: a line.
const LINE: usize = 64;
/// Bytes whose lines are taken before they are copied to: they have to stay in the first-level cache.
const TAKEN: usize = 4096;

/// Writes to one byte in each line's length from `to` on.
///
/// # Safety
/// As for a write of `len` bytes to `to`.
#[inline]
pub(super) unsafe fn take(to: *mut u8, len: usize) {
    for at in (0..len).step_by(LINE) {
        // SAFETY: one of the bytes.
        unsafe { to.add(at).write_volatile(0) };
    }
}

/// Copies `len` bytes to lines that another core is likely to have.
///
/// # Safety
/// As for [`opaque::copy`].
pub(super) unsafe fn taking(from: *const u8, to: *mut u8, len: usize) {
    for done in (0..len).step_by(TAKEN) {
        let part = TAKEN.min(len - done);
        // SAFETY: a part of both ranges.
        unsafe {
            take(to.add(done), part);
            opaque::copy(from.add(done), to.add(done), part);
        }
    }
}

/// Copies `len` bytes past the caches, where the processor can; elsewhere as any copy. For what is not read again soon.
///
/// # Safety
/// As for [`opaque::copy`].
#[cfg(target_arch = "x86_64")]
pub(super) unsafe fn past_caches(from: *const u8, to: *mut u8, len: usize) {
    let head = to.align_offset(LINE).min(len);
    let lines = (len - head) / LINE;
    let done = head + lines * LINE;
    // SAFETY: the first bytes of both ranges.
    unsafe { opaque::copy(from, to, head) };
    // SAFETY: whole lines that follow in both ranges; there `to` is at a multiple of the line.
    unsafe { stream(from.add(head), to.add(head), lines) };
    // SAFETY: what is left of both ranges.
    unsafe { opaque::copy(from.add(done), to.add(done), len - done) };
    // SAFETY: every processor of this kind has the instruction. The stores of this thread before are done before those after.
    unsafe { core::arch::x86_64::_mm_sfence() };
}

/// In assembly, so that the compiler knows nothing of the loads: see [`opaque`](mod@opaque).
///
/// # Safety
/// So many lines can be read at `from`, and written at `to`, which is at a multiple of the line; they do not overlap.
#[cfg(target_arch = "x86_64")]
unsafe fn stream(from: *const u8, to: *mut u8, lines: usize) {
    for at in (0..lines).map(|line| line * LINE) {
        // SAFETY: in the line at both, and aligned at `to`; every processor of this kind has the instructions.
        unsafe {
            core::arch::asm!(
                "movdqu {a}, [{from}]",
                "movdqu {b}, [{from} + 16]",
                "movdqu {c}, [{from} + 32]",
                "movdqu {d}, [{from} + 48]",
                "movntdq [{to}], {a}",
                "movntdq [{to} + 16], {b}",
                "movntdq [{to} + 32], {c}",
                "movntdq [{to} + 48], {d}",
                from = in(reg) from.add(at),
                to = in(reg) to.add(at),
                a = out(xmm_reg) _,
                b = out(xmm_reg) _,
                c = out(xmm_reg) _,
                d = out(xmm_reg) _,
                options(nostack, preserves_flags),
            );
        }
    }
}

/// As any copy: nothing better is known here.
///
/// # Safety
/// As for [`opaque::copy`].
#[cfg(not(target_arch = "x86_64"))]
pub(super) unsafe fn past_caches(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: the caller's promise.
    unsafe { opaque::copy(from, to, len) };
}

#[cfg(test)]
mod tests {
    use std::vec;
    use std::vec::Vec;

    use super::{TAKEN, past_caches, taking};

    #[test]
    fn every_length_at_every_alignment_is_copied_and_nothing_else() {
        let source: Vec<u8> = (0..400).map(|at| (at * 7 + 3) as u8).collect();
        for from in [0, 1, 7, 16, 63] {
            for to in 0..65 {
                for len in [0, 1, 15, 16, 63, 64, 65, 127, 128, 191, 200, 257] {
                    let mut there = vec![0xee; 400];
                    // SAFETY: both ranges are in their vectors, which are two.
                    unsafe { past_caches(source.as_ptr().add(from), there.as_mut_ptr().add(to), len) };
                    assert_eq!(there[to..to + len], source[from..from + len], "{len} from {from} to {to}");
                    assert!(there[..to].iter().chain(&there[to + len..]).all(|byte| *byte == 0xee));
                    let mut there = vec![0xee; 400];
                    // SAFETY: as before.
                    unsafe { taking(source.as_ptr().add(from), there.as_mut_ptr().add(to), len) };
                    assert_eq!(there[to..to + len], source[from..from + len], "{len} from {from} to {to}");
                    assert!(there[..to].iter().chain(&there[to + len..]).all(|byte| *byte == 0xee));
                }
            }
        }
    }

    #[test]
    fn more_than_is_taken_at_once_is_copied_too() {
        let source: Vec<u8> = (0..20_000).map(|at| (at * 7 + 3) as u8).collect();
        for to in [0, 1, 63] {
            for len in [TAKEN - 1, TAKEN, TAKEN + 1, 2 * TAKEN, 2 * TAKEN + 65, 4 * TAKEN] {
                let mut there = vec![0xee; 20_000];
                // SAFETY: both ranges are in their vectors, which are two.
                unsafe { taking(source.as_ptr().add(5), there.as_mut_ptr().add(to), len) };
                assert_eq!(there[to..to + len], source[5..5 + len], "{len} to {to}");
                assert!(there[..to].iter().chain(&there[to + len..]).all(|byte| *byte == 0xee));
            }
        }
    }
}
