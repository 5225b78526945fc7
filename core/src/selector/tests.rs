use proptest::prelude::*;

use super::*;

const LONGEST: u16 = 1024;

/// Executes runs, each by the selected alternative. Returns the number of runs of each alternative.
fn run<const N: usize>(
    selector: &mut AdaptiveSelector<N, LONGEST>,
    count: usize,
    cost: [u32; N],
) -> [usize; N] {
    let mut went = [0; N];
    for _ in 0..count {
        let option = selector.next();
        went[usize::from(option)] += 1;
        selector.record(option, cost[usize::from(option)]);
    }
    went
}

#[test]
fn all_are_tried_and_the_cheapest_is_kept() {
    for (cost, cheapest) in [([5, 9, 9], 0), ([9, 5, 9], 1), ([9, 9, 5], 2), ([9, 7, 5], 2), ([9, 5, 7], 1)] {
        for first in 0..3 {
            let mut selector = AdaptiveSelector::<3, LONGEST>::preferring(first);
            let went = run(&mut selector, 1000, cost);
            assert_eq!(selector.preferred(), cheapest, "{cost:?} from {first}");
            assert!(went[usize::from(cheapest)] > 920, "{went:?}");
            assert!(went.iter().all(|&count| count >= usize::from(TRIAL)), "{went:?}");
        }
    }
}

#[test]
fn trials_become_rare() {
    let mut selector = AdaptiveSelector::<2, LONGEST>::default();
    run(&mut selector, 10_000, [5, 9]);
    assert!(run(&mut selector, 10_000, [5, 9])[1] < 80);
}

#[test]
fn a_much_slower_alternative_is_tried_once_at_a_time() {
    let mut selector = AdaptiveSelector::<2, LONGEST>::default();
    assert!(run(&mut selector, 200, [5, 21])[1] <= 5);
}

#[test]
fn a_trial_of_too_few_runs_decides_nothing() {
    let mut selector = AdaptiveSelector::<2, LONGEST>::default();
    for _ in 0..1000 {
        run(&mut selector, 20, [9, 9]);
        // A much better alternative was tried only once.
        while selector.trial > 1 {
            selector.miss();
        }
        selector.record(1, 1);
        assert!(selector.trial > 0 || selector.preferred() == 0 || selector.is_known(1));
    }
}

#[test]
fn a_short_rise_is_ignored_and_a_lasting_one_is_not() {
    let mut selector = AdaptiveSelector::<2, LONGEST>::default();
    run(&mut selector, 5000, [5, 9]);
    let short = run(&mut selector, usize::from(CHANGED) - 2, [11, 9]);
    assert_eq!(short[1], 0);
    run(&mut selector, 10, [5, 9]);
    run(&mut selector, 30, [11, 9]);
    assert_eq!(selector.preferred(), 1);
}

#[test]
fn a_suggestion_is_tried_next_but_not_during_a_trial() {
    let mut selector = AdaptiveSelector::<3, LONGEST>::default();
    selector.suggest(2);
    assert_eq!(selector.next(), 0, "the cost of the preferred way is unknown");
    run(&mut selector, 2000, [5, 9, 9]);
    for option in [1, 2] {
        while selector.trial > 0 || selector.wait > selector.waited - selector.waited / SOON {
            run(&mut selector, 1, [5, 9, 9]);
        }
        selector.suggest(option);
        assert_eq!(selector.next(), option);
        selector.suggest(3 - option);
        assert_eq!(selector.next(), option);
    }
    for option in [0, 3, 255] {
        let mut selector = AdaptiveSelector::<3, LONGEST>::default();
        run(&mut selector, 11, [5, 9, 9]);
        assert_eq!(selector.trial, 0);
        selector.suggest(option);
        assert_eq!(selector.next(), 0);
    }
}

#[test]
fn trials_of_which_no_run_counts_become_rare() {
    let mut selector = AdaptiveSelector::<3, LONGEST>::default();
    let mut missed = 0;
    for _ in 0..10_000 {
        if selector.next() == selector.preferred() {
            selector.record(0, 5);
        } else {
            selector.miss();
            missed += 1;
        }
    }
    assert!((1..200).contains(&missed), "{missed}");
}

#[test]
fn repeated_suggestions_are_tried_rarely() {
    let mut selector = AdaptiveSelector::<3, LONGEST>::default();
    let mut went = [0; 3];
    for at in 0..10_000_u16 {
        selector.suggest((at % 3) as u8);
        let option = selector.next();
        went[usize::from(option)] += 1;
        selector.record(option, [5, 9, 9][usize::from(option)]);
    }
    assert!(went[0] > 9500, "{went:?}");
}

proptest! {
    /// For any sequence of calls, the selected alternative is valid.
    #[test]
    fn any_history_leaves_valid_state(
        first in 0_u8..3,
        steps in prop::collection::vec((0_u8..8, any::<u8>(), 1_u32..), 0..400),
    ) {
        let mut selector = AdaptiveSelector::<3, LONGEST>::preferring(first);
        for (what, option, cost) in steps {
            match what {
                0 => selector.suggest(option),
                1 => selector.miss(),
                _ => selector.record(if what < 4 { option % 3 } else { selector.next() }, cost),
            }
            prop_assert!(selector.next() < 3 && selector.preferred() < 3 && selector.other < 3);
            prop_assert!(selector.other != selector.preferred());
        }
    }
}
