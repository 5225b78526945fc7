//! Copies whose last bytes become visible last.
//!
//! A program may poll the last word of a write, and then read the rest. Neither `memcpy` nor the kernel copies in a
//! promised order: both may store the last bytes before others. So the last bytes are copied in a step of their own:
//! each word of them is a Release of [`Edge::Region`], in rising order. The polling program is the Acquire.
//!
//! The last bytes of the source are read first. So a source that is being written in this order is copied in this
//! order.

use super::{Edge, Word8, Word16, Word32, Word64, opaque};
use core::ptr::NonNull;

/// Bytes at the end of a copy that become visible after the others: the longest word that a processor stores at once.
pub const LAST: usize = 8;

/// Copies `len` bytes so that the last [`LAST`] become visible after the others, in rising order, and each aligned word
/// of them at once. `copy` copies the others.
///
/// # Safety
/// As for [`opaque::copy`].
#[inline]
pub unsafe fn copy_with(
    from: NonNull<u8>,
    to: NonNull<u8>,
    len: usize,
    copy: impl FnOnce(*const u8, *mut u8, usize),
) {
    let count = len.min(LAST);
    let rest = len - count;
    let mut last = [0; LAST];
    let mut end = count;
    while end > 0 {
        // SAFETY: at most one byte behind the bytes of the source, which the caller guarantees.
        let behind = unsafe { from.add(rest + end) };
        let size = word_size(behind, end);
        end -= size;
        // SAFETY: `size` bytes of the source, at a multiple of `size`.
        unsafe { load(behind.sub(size), &mut last[end..end + size]) };
    }
    if rest > 0 {
        copy(from.as_ptr(), to.as_ptr(), rest);
    }
    let mut at = 0;
    while at < count {
        // SAFETY: within the bytes of the destination, which the caller guarantees.
        let place = unsafe { to.add(rest + at) };
        let size = word_size(place, count - at);
        // SAFETY: `size` bytes of the destination, at a multiple of `size`.
        unsafe { store(place, &last[at..at + size]) };
        at += size;
    }
}

/// As [`copy_with`], with a plain copy of the other bytes.
///
/// # Safety
/// As for [`opaque::copy`].
#[inline]
pub unsafe fn copy(from: NonNull<u8>, to: NonNull<u8>, len: usize) {
    // SAFETY: the caller guarantees both ranges, of which the copied ones are the beginning.
    unsafe { copy_with(from, to, len, |from, to, len| opaque::copy(from, to, len)) };
}

/// Returns the bytes of the longest word that begins, or ends, at an address and has at most `most` bytes (1 to 8).
#[inline]
fn word_size(at: NonNull<u8>, most: usize) -> usize {
    1 << at.addr().trailing_zeros().min(most.ilog2())
}

/// Reads a word.
///
/// # Safety
/// The bytes are mapped readable and initialised, and as many as the address is a multiple of: 1, 2, 4 or 8.
#[inline]
unsafe fn load(from: NonNull<u8>, to: &mut [u8]) {
    match to.len() {
        // SAFETY: the caller guarantees a word of this size; others write it by copies or atomic operations.
        8 => to.copy_from_slice(&unsafe { Word64::load_acquire_at(from.cast(), Edge::Region) }.to_ne_bytes()),
        // SAFETY: as above.
        4 => to.copy_from_slice(&unsafe { Word32::load_acquire_at(from.cast(), Edge::Region) }.to_ne_bytes()),
        // SAFETY: as above.
        2 => to.copy_from_slice(&unsafe { Word16::load_acquire_at(from.cast(), Edge::Region) }.to_ne_bytes()),
        // SAFETY: as above.
        _ => to.copy_from_slice(&unsafe { Word8::load_acquire_at(from, Edge::Region) }.to_ne_bytes()),
    }
}

/// Writes a word.
///
/// # Safety
/// The bytes are mapped writable, and as many as the address is a multiple of: 1, 2, 4 or 8.
#[inline]
unsafe fn store(to: NonNull<u8>, from: &[u8]) {
    let mut bytes = [0; LAST];
    bytes[..from.len()].copy_from_slice(from);
    let [a, b, c, d, ..] = bytes;
    match from.len() {
        // SAFETY: the caller guarantees a word of this size; others use it by copies or atomic operations.
        8 => unsafe { Word64::store_release_at(to.cast(), u64::from_ne_bytes(bytes), Edge::Region) },
        // SAFETY: as above.
        4 => unsafe { Word32::store_release_at(to.cast(), u32::from_ne_bytes([a, b, c, d]), Edge::Region) },
        // SAFETY: as above.
        2 => unsafe { Word16::store_release_at(to.cast(), u16::from_ne_bytes([a, b]), Edge::Region) },
        // SAFETY: as above.
        _ => unsafe { Word8::store_release_at(to, a, Edge::Region) },
    }
}

#[cfg(test)]
mod tests {
    use core::cell::Cell;
    use std::vec;
    use std::vec::Vec;

    use super::*;

    #[test]
    fn every_length_at_every_alignment_is_copied_and_nothing_else() {
        let source: Vec<u8> = (0..400).map(|at| (at * 7 + 3) as u8).collect();
        for from in 0..9 {
            for to in 0..9 {
                for len in (0..40).chain([63, 64, 65, 300]) {
                    let mut there = vec![0xee_u8; 400];
                    let source = NonNull::from(&source[from]);
                    let place = NonNull::from(&mut there[to]);
                    // SAFETY: both ranges lie in their vectors, which are distinct.
                    unsafe { copy(source, place, len) };
                    for (at, byte) in there.iter().enumerate() {
                        let expected = if (to..to + len).contains(&at) {
                            ((at - to + from) * 7 + 3) as u8
                        } else {
                            0xee
                        };
                        assert_eq!(*byte, expected, "byte {at} of {len} from {from} to {to}");
                    }
                }
            }
        }
    }

    #[test]
    fn the_last_bytes_are_read_before_the_others_and_written_after_them() {
        for (from, to) in (0..8).flat_map(|from| (0..8).map(move |to| (from, to))) {
            for len in [1, 7, 8, 9, 100] {
                let (mut source, mut there) = (vec![1_u8; 128], vec![0_u8; 128]);
                let (source, place) = (NonNull::from(&mut source[from]), NonNull::from(&mut there[to]));
                let is_called = Cell::new(false);
                let rest = |from: *const u8, to: *mut u8, count: usize| {
                    is_called.set(true);
                    assert_eq!(count, len - LAST);
                    for at in count..len {
                        // SAFETY: within the vectors.
                        let (theirs, ours) = unsafe { (from.cast_mut().add(at), to.add(at)) };
                        // SAFETY: as above.
                        assert_eq!(unsafe { ours.read() }, 0, "written before the others");
                        // SAFETY: as above. What the source becomes now is not copied any more.
                        unsafe { theirs.write(2) };
                    }
                    // SAFETY: as for the whole.
                    unsafe { opaque::copy(from, to, count) };
                };
                // SAFETY: both ranges lie in their vectors, which are distinct.
                unsafe { copy_with(source, place, len, rest) };
                assert_eq!(is_called.get(), len > LAST);
                assert!(there[to..to + len].iter().all(|byte| *byte == 1), "{len} from {from} to {to}");
            }
        }
    }
}
