//! The window against a map of all arrivals.

use std::collections::BTreeMap;
use std::vec;
use std::vec::Vec;

use proptest::prelude::*;

use super::{Placed, ReorderWindow};
use crate::shared::tests::{Rng, cases};

type TestWindow = ReorderWindow<u64, Vec<Option<u64>>>;

fn window(size: usize, bits: u32, first: u64) -> TestWindow {
    ReorderWindow::new(vec![Some(99); size], bits, first).unwrap()
}

/// Returns everything that one arrival delivers.
fn arrive(window: &mut TestWindow, number: u64, out: &mut Vec<u64>) -> Placed<u64> {
    let arrived = window.arrive(number, number);
    if let Placed::Due(value) = arrived {
        out.push(value);
        out.extend(core::iter::from_fn(|| window.next_due()));
    }
    arrived
}

/// Every order in which the packets of a window can arrive, at every position of the smallest number range.
#[test]
fn every_order_of_a_window_is_delivered_in_order() {
    fn orders(left: &[u64], done: &mut Vec<u64>, check: &mut dyn FnMut(&[u64])) {
        if left.is_empty() {
            return check(done);
        }
        for at in 0..left.len() {
            let mut rest = left.to_vec();
            done.push(rest.remove(at));
            orders(&rest, done, check);
            done.pop();
        }
    }
    for first in 0..16 {
        orders(&[0, 1, 2, 3, 4, 5, 6, 7], &mut vec![], &mut |order| {
            let (mut window, mut out) = (window(8, 4, first), vec![]);
            for &number in order {
                let arrived = arrive(&mut window, first + number, &mut out);
                assert!(matches!(arrived, Placed::Due(_) | Placed::Waits), "{order:?}: {arrived:?}");
            }
            assert!(out.iter().copied().eq(first..first + 8), "{order:?} came out as {out:?}");
            assert_eq!((window.waiting(), window.due()), (0, (first + 8) % 16));
        });
    }
}

/// Every sequence of numbers, valid or not, of the smallest window: no packet is delivered twice, out of
/// order, or lost.
#[test]
fn every_sequence_of_numbers_is_distinguished() {
    for code in 0..4u64.pow(8) {
        let (mut window, mut out) = (window(2, 2, 3), vec![]);
        let (mut due, mut waits) = (3, vec![]);
        for number in (0..8).map(|at| code >> (2 * at) & 3) {
            let arrived = arrive(&mut window, number, &mut out);
            let expected = match (number + 16 - due % 4) % 4 {
                0 => {
                    due += 1;
                    while let Some(at) = waits.iter().position(|it| *it == due) {
                        waits.remove(at);
                        due += 1;
                    }
                    Placed::Due(number)
                }
                1 if waits.contains(&(due + 1)) => Placed::Twice(number),
                1 => {
                    waits.push(due + 1);
                    Placed::Waits
                }
                _ => Placed::Twice(number),
            };
            assert_eq!((arrived, window.waiting()), (expected, waits.len()), "{code:#x}");
        }
        assert!(out.iter().copied().eq((3..due).map(|number| number % 4)), "{code:#x}: {out:?}");
    }
}

/// A sender that stays within the window, over paths that reorder its packets; and, if `forged`, sometimes
/// does not.
fn shuffled(seed: u64, bits: u32, size: usize, first: u64, forged: bool) {
    let (mut rng, mut window) = (Rng::new(seed), window(size, bits, first));
    let mask = u64::MAX >> (64 - bits);
    let (mut sent, mut out, mut on_its_way) = (first, vec![], BTreeMap::new());
    let wire = |number: u64| number & mask;
    for _ in 0..2000 {
        let handed = first.wrapping_add(out.len() as u64);
        let room = sent.wrapping_sub(handed) < size as u64;
        if forged && rng.one_in(10) {
            // A number of the past, or one beyond the window.
            let beyond = size as u64 + rng.below(size) as u64;
            if beyond <= mask / 2 {
                assert_eq!(window.arrive(wire(handed.wrapping_add(beyond)), 7), Placed::Beyond(7));
            }
            let past = wire(handed.wrapping_sub(1 + rng.below(size) as u64));
            assert_eq!(window.arrive(past, 7), Placed::Twice(7));
        } else if room && rng.one_in(2) {
            on_its_way.insert(rng.next(), sent);
            sent = sent.wrapping_add(1);
        } else if let Some((_, number)) = on_its_way.pop_first() {
            let arrived = window.arrive(wire(number), number);
            if let Placed::Due(value) = arrived {
                out.push(value);
                out.extend(core::iter::from_fn(|| window.next_due()));
            } else {
                assert_eq!(arrived, Placed::Waits);
            }
        }
        let handed = first.wrapping_add(out.len() as u64);
        assert_eq!(window.due(), wire(handed));
        assert_eq!(window.waiting() + on_its_way.len(), sent.wrapping_sub(handed) as usize);
    }
    assert!(out.iter().enumerate().all(|(at, it)| *it == first.wrapping_add(at as u64)));
}

proptest! {
    #![proptest_config(cases(150))]

    #[test]
    fn packets_that_overtake_each_other_are_delivered_in_order(
        seed: u64,
        bits in 1u32..=64,
        bits_wanted in 0u32..=7,
        back in 0u64..3000,
        forged: bool,
    ) {
        let size = 1 << bits_wanted.min(bits - 1);
        // Often just before the wrap of the numbers on the wire, or of the internal ones.
        let first = (u64::MAX >> (64 - bits)).wrapping_sub(back);
        shuffled(seed, bits, size, first & (u64::MAX >> (64 - bits)), forged && size > 1);
    }
}

#[test]
fn packets_that_wait_for_a_dead_peer_are_drained_with_gaps() {
    let mut window = window(8, 8, 254);
    for number in [1, 255, 3] {
        assert_eq!(window.arrive(number, number), Placed::Waits);
    }
    assert_eq!(window.next_due(), None);
    let left: Vec<_> = core::iter::from_fn(|| window.drain()).collect();
    assert_eq!((left, window.waiting()), (vec![255, 1, 3], 0));
    assert_eq!(window.due(), 4);
}

#[test]
fn window_of_more_than_half_the_numbers_is_refused() {
    for (size, bits) in [(0, 8), (3, 8), (256, 8), (2, 1), (1, 0), (1, 65), (4, 2)] {
        assert!(ReorderWindow::new(vec![None::<u64>; size], bits, 0).is_none(), "{size} of {bits} bits");
    }
    for (size, bits) in [(128, 8), (1, 1), (2, 2), (64, 64)] {
        assert!(ReorderWindow::new(vec![None::<u64>; size], bits, 0).is_some(), "{size} of {bits} bits");
    }
}

#[test]
fn a_window_that_restarts_begins_with_the_given_number() {
    let mut window = window(8, 8, 254);
    assert_eq!(window.arrive(255, 255), Placed::Waits);
    assert_eq!((window.drain(), window.drain()), (Some(255), None));
    // Of the number only the bits on the wire count.
    window.restart(0x103);
    assert_eq!((window.due(), window.waiting(), window.size()), (3, 0, 8));
    let mut out = vec![];
    let arrived = [4, 10, 3].map(|number| arrive(&mut window, number, &mut out));
    assert_eq!(arrived, [Placed::Waits, Placed::Waits, Placed::Due(3)]);
    assert_eq!((out, window.due(), window.waiting()), (vec![3, 4], 5, 1));
    assert_eq!((window.arrive(2, 2), window.arrive(13, 13)), (Placed::Twice(2), Placed::Beyond(13)));
}
