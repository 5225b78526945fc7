//! Contiguous and scattered buffers.

use std::vec;
use std::vec::Vec;

use std::cell::Cell;
use std::thread_local;

use super::{Bounce, Exposed, Gather, RecvBuf, Scatter, Segment, SendBuf};
use crate::shared::tests::Rng;

thread_local! {
    /// Number of segments that this test visited.
    static STEPS: Cell<usize> = const { Cell::new(0) };
}

pub(super) fn count_step() {
    STEPS.set(STEPS.get() + 1);
}

/// Returns the number of steps since the last call.
pub(crate) fn steps() -> usize {
    STEPS.replace(0)
}

/// Returns segments of these lengths that cover the bytes.
fn segments(bytes: &mut [u8], lens: &[usize]) -> Vec<Segment> {
    let mut base = bytes.as_mut_ptr();
    let mut list = Vec::new();
    for len in lens {
        list.push(Segment { base, len: *len });
        base = base.wrapping_add(*len);
    }
    list
}

#[test]
fn every_range_of_a_list_equals_that_of_contiguous_bytes() {
    let mut bytes: Vec<u8> = (0..24).collect();
    let whole = bytes.clone();
    let list = segments(&mut bytes, &[0, 1, 7, 0, 0, 3, 12, 1, 0]);
    // SAFETY: list and bytes outlive the buffer.
    let from = unsafe { SendBuf::from_list(list.as_ptr(), list.len()) }.unwrap();
    assert_eq!((from.len(), from.address(), from.is_empty()), (24, 0, false));
    assert!(from.whole(0, 24).is_none());
    for at in 0..30 {
        for len in 0..30 {
            let wanted = &whole[at.min(24)..(at + len).min(24).max(at.min(24))];
            let mut got = Vec::new();
            from.each(at, len, |done, part| {
                assert!(done == got.len() && !part.is_empty());
                got.extend_from_slice(part);
            });
            assert_eq!(got, wanted, "{len} bytes from {at}");
            let part = from.part(at, len);
            assert!(
                wanted.starts_with(part) && (part.is_empty() == wanted.is_empty()),
                "{len} bytes from {at}"
            );
            let mut room = [0xee; 24];
            // SAFETY: as above; the runs lie in `room`, in another order than in memory.
            let (low, high) = room.split_at_mut(9);
            let list = [segments(high, &[4, 11]), segments(low, &[2, 0, 7])].concat();
            // SAFETY: list and room outlive the buffer, and are not accessed otherwise while it is in use.
            let mut to = unsafe { RecvBuf::from_list(list.as_ptr(), list.len()) }.unwrap();
            assert!(to.whole(0, 1).is_none() && to.address() == 0 && to.len() == 24);
            let part = to.part(at, len).len();
            assert!(part <= wanted.len() && (part == 0) == wanted.is_empty());
            to.each(at, len, |done, part| part.copy_from_slice(&wanted[done..done + part.len()]));
            let mut there = [0xee; 24];
            there[at.min(24)..][..wanted.len()].copy_from_slice(wanted);
            there.rotate_left(15);
            assert_eq!(room, there, "{len} bytes to {at}");
        }
    }
}

/// Whatever the requests and their order, the parts are those of the list.
#[test]
fn parts_are_the_same_wherever_the_last_one_ended() {
    let mut rng = Rng::new(5);
    let mut bytes: Vec<u8> = (0..200).collect();
    let whole = bytes.clone();
    let list = segments(&mut bytes, &[0, 1, 7, 0, 0, 3, 12, 1, 0, 100, 0, 70, 6]);
    // SAFETY: list and bytes outlive the buffers.
    let mut gather = Gather::new(unsafe { SendBuf::from_list(list.as_ptr(), list.len()) }.unwrap());
    let mut room = [0; 200];
    let into = segments(&mut room, &[5, 0, 1, 1, 93, 50, 50, 0]);
    // SAFETY: as above; the memory that the segments name is read only at the end.
    let mut scatter = Scatter::new(unsafe { RecvBuf::from_list(into.as_ptr(), into.len()) }.unwrap());
    assert_eq!((scatter.len(), scatter.address(), gather.buf().len()), (200, 0, 200));
    let mut there = [0; 200];
    for _ in 0..1000 {
        let (at, len) = (rng.below(210), rng.below(60));
        let wanted = &whole[at.min(200)..(at + len).min(200)];
        let mut got = vec![0xee; wanted.len()];
        gather.each(at, len, |done, part| got[done..done + part.len()].copy_from_slice(part));
        assert_eq!(got, wanted, "{len} bytes from {at}");
        let other = at ^ 0x55;
        let count = got.len().min(200_usize.saturating_sub(other));
        scatter.each(other, count, |done, part| part.copy_from_slice(&got[done..done + part.len()]));
        there[other.min(200)..][..count].copy_from_slice(&got[..count]);
    }
    assert_eq!(room, there);
}

/// Walking part by part from first to last visits each segment once, or twice if a part ends in it.
#[test]
fn walking_a_list_visits_each_segment_once() {
    const COUNT: usize = 20_000;
    let mut bytes = vec![7; COUNT];
    let list = segments(&mut bytes, &vec![1; COUNT]);
    // SAFETY: list and bytes outlive the buffers, which do not write.
    let (from, to) =
        unsafe { (SendBuf::from_list(list.as_ptr(), COUNT), RecvBuf::from_list(list.as_ptr(), COUNT)) };
    let (mut gather, mut scatter) = (Gather::new(from.unwrap()), Scatter::new(to.unwrap()));
    for part in [1, 10, 256] {
        steps();
        for at in (0..COUNT).step_by(part) {
            gather.each(at, part, |_, _| {});
            scatter.each(at, part, |_, _| {});
        }
        let steps = steps();
        assert!(steps <= 2 * (2 * COUNT + 2 * COUNT / part), "{steps} visits for parts of {part}");
    }
}

#[test]
fn a_list_of_one_run_or_none_is_a_buffer_in_one_place() {
    let mut bytes = [1, 2, 3];
    let empty = Segment { base: core::ptr::null_mut(), len: 0 };
    let one = [empty, Segment { base: bytes.as_mut_ptr(), len: 3 }, empty];
    // SAFETY: list and bytes outlive the buffers.
    unsafe {
        let from = SendBuf::from_list(one.as_ptr(), 3).unwrap();
        assert_eq!(from.whole(0, 9), Some(&[1, 2, 3][..]));
        assert_eq!(from.address(), bytes.as_ptr() as u64);
        let mut to = RecvBuf::from_list(one.as_ptr(), 3).unwrap();
        assert_eq!((to.runs(0, 3), to.whole(1, 9)), (1, Some(&mut [2, 3][..])));
        for none in [SendBuf::from_list(one.as_ptr(), 1), SendBuf::from_list(core::ptr::null(), 0)] {
            assert!(none.unwrap().is_empty());
        }
        assert!(RecvBuf::from_list(core::ptr::null(), 0).unwrap().is_empty());
    }
}

#[test]
fn lists_longer_than_any_memory_are_refused() {
    let half = Segment { base: core::ptr::dangling_mut(), len: 1 << (usize::BITS - 2) };
    let nowhere = Segment { base: core::ptr::null_mut(), len: 1 };
    // SAFETY: the lists exist; the memory that they name is not accessed.
    unsafe {
        assert!(SendBuf::from_list([half].as_ptr(), 1).is_some());
        assert!(SendBuf::from_list([half, half].as_ptr(), 2).is_none());
        assert!(RecvBuf::from_list([half, half, half, half].as_ptr(), 4).is_none());
        assert!(RecvBuf::from_list([nowhere].as_ptr(), 1).is_none());
    }
}

/// Threads may use exposed memory at any time. So `fill` and `view` use a buffer of their own.
#[test]
fn exposed_memory_is_only_copied() {
    let mut bytes: [u8; 3000] = core::array::from_fn(|at| at as u8);
    let range = bytes.as_mut_ptr_range();
    // SAFETY: the array outlives the descriptor, and no reference to it is used meanwhile.
    let mut memory = unsafe { Exposed::from_raw(range.start, 3000) };
    let is_within = |part: &[u8]| range.contains(&part.as_ptr().cast_mut());
    let mut bounce = Bounce::new();
    let view = memory.view(10, 2500, &mut bounce);
    assert!(!is_within(view) && view.len() == 2500 && view[..3] == [10, 11, 12]);
    for (at, len) in [(1, 8), (0, 64), (3, 65), (0, 3000)] {
        let mut filled = 0;
        assert!(memory.fill(at, len, |from, part| {
            assert!(from == filled && !is_within(part));
            part.iter_mut().zip(from..).for_each(|(byte, at)| *byte = !(at as u8));
            filled += part.len();
        }));
        let mut to = std::vec![0; len];
        assert!(filled == len && memory.read(at, &mut to));
        assert!(to.iter().zip(0..).all(|(byte, at)| *byte == !(at as u8)));
    }
    assert!(
        !memory.fill(2999, 2, |_, _| unreachable!()) && !memory.fill(usize::MAX, 2, |_, _| unreachable!())
    );
    assert_eq!(memory.view(2990, 100, &mut bounce).len(), 10);
}
