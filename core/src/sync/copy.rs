//! Copies with write prefetch, and copies with non-temporal stores.
//!
//! A core can have only a limited number of stores in progress, which wait for their lines one after the
//! other, and each store of a copy covers only part of a line. Therefore one byte of each line is written
//! before some lines are copied (write prefetch): the core then has as many line transfers in progress as it
//! has stores. On one test machine (Zen 4, 64 stores of at most 32 bytes) 8 KiB of a stream between near
//! cores took 0.64 us instead of 0.90, and 256 KiB 14 us instead of 20. A prefetch instruction for writing is
//! not enough: it leaves a line shared that this core also holds.
//!
//! Non-temporal stores are for data that exceeds the caches. They go to memory through write-combining
//! buffers, so they neither read the overwritten lines nor evict others (paper 4, section 3.2).
//!
//! Non-temporal stores are not ordered by the store that publishes them: a Release orders only plain stores.
//! Each such copy therefore ends with a store fence before it returns, so that they are complete before
//! anything is published by any [`Edge`](super::Edge). The injected fault `Undrained` of the models omits the
//! fence.

use super::opaque;

/// Bytes of a cache line, which is the unit of a copy step and of transfer between cores.
const LINE: usize = 64;
/// Bytes whose lines are prefetched before they are copied. They must stay in the first-level cache.
const TAKEN: usize = 4096;

/// Writes one byte of each line of `len` bytes from `to` on.
///
/// # Safety
/// As for a write of `len` bytes to `to`.
#[inline]
pub(super) unsafe fn take(to: *mut u8, len: usize) {
    for at in (0..len).step_by(LINE) {
        // SAFETY: the byte lies in the range that the caller guarantees.
        unsafe { to.add(at).write_volatile(0) };
    }
}

/// Copies `len` bytes, with write prefetch, to lines that another core probably holds.
///
/// # Safety
/// As for [`opaque::copy`].
pub(super) unsafe fn taking(from: *const u8, to: *mut u8, len: usize) {
    for done in (0..len).step_by(TAKEN) {
        let part = TAKEN.min(len - done);
        // SAFETY: the part lies in both ranges, which the caller guarantees.
        unsafe {
            take(to.add(done), part);
            opaque::copy(from.add(done), to.add(done), part);
        }
    }
}

/// Copies `len` bytes with non-temporal stores if the processor has them, else as any copy. For data that is
/// not read again soon.
///
/// # Safety
/// As for [`opaque::copy`].
#[cfg(target_arch = "x86_64")]
pub(super) unsafe fn non_temporal(from: *const u8, to: *mut u8, len: usize) {
    let head = to.align_offset(LINE).min(len);
    let lines = (len - head) / LINE;
    let done = head + lines * LINE;
    // SAFETY: the first bytes of both ranges, which the caller guarantees.
    unsafe { opaque::copy(from, to, head) };
    // SAFETY: the next whole lines of both ranges; `to` is then aligned to a line.
    unsafe { stream(from.add(head), to.add(head), lines) };
    // SAFETY: the rest of both ranges.
    unsafe { opaque::copy(from.add(done), to.add(done), len - done) };
    // SAFETY: every x86-64 processor has the instruction. It completes earlier stores of this thread before
    // later ones.
    unsafe { core::arch::x86_64::_mm_sfence() };
}

/// Copies whole lines past the caches.
///
/// # Safety
/// `lines` lines are readable at `from` and writable at `to`, which is aligned to a line; the ranges do not
/// overlap.
#[cfg(target_arch = "x86_64")]
unsafe fn stream(from: *const u8, to: *mut u8, lines: usize) {
    for at in (0..lines).map(|line| line * LINE) {
        // SAFETY: both addresses lie in the current line, and `to` is aligned.
        unsafe { opaque::move_line!("movntdq", from.add(at), to.add(at)) };
    }
}

/// Copies with ordinary stores: this library has no non-temporal copy for this processor.
///
/// # Safety
/// As for [`opaque::copy`].
#[cfg(not(target_arch = "x86_64"))]
pub(super) unsafe fn non_temporal(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: the caller guarantees both ranges.
    unsafe { opaque::copy(from, to, len) };
}

#[cfg(test)]
mod tests {
    use std::vec;
    use std::vec::Vec;

    use super::{TAKEN, non_temporal, taking};

    #[test]
    fn every_length_at_every_alignment_is_copied_and_nothing_else() {
        let source: Vec<u8> = (0..400).map(|at| (at * 7 + 3) as u8).collect();
        for from in [0, 1, 7, 16, 63] {
            for to in 0..65 {
                for len in [0, 1, 15, 16, 63, 64, 65, 127, 128, 191, 200, 257] {
                    let mut there = vec![0xee; 400];
                    // SAFETY: both ranges lie in their vectors, which are distinct.
                    unsafe { non_temporal(source.as_ptr().add(from), there.as_mut_ptr().add(to), len) };
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
    fn more_than_is_prefetched_at_once_is_copied_too() {
        let source: Vec<u8> = (0..20_000).map(|at| (at * 7 + 3) as u8).collect();
        for to in [0, 1, 63] {
            for len in [TAKEN - 1, TAKEN, TAKEN + 1, 2 * TAKEN, 2 * TAKEN + 65, 4 * TAKEN] {
                let mut there = vec![0xee; 20_000];
                // SAFETY: both ranges lie in their vectors, which are distinct.
                unsafe { taking(source.as_ptr().add(5), there.as_mut_ptr().add(to), len) };
                assert_eq!(there[to..to + len], source[5..5 + len], "{len} to {to}");
                assert!(there[..to].iter().chain(&there[to + len..]).all(|byte| *byte == 0xee));
            }
        }
    }
}
