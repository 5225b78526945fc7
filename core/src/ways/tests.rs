use proptest::prelude::*;

use super::*;

const LONGEST: u16 = 1024;

/// Executes runs, each by the selected way. Returns how many runs each way got.
fn run<const N: usize>(ways: &mut Ways<N, LONGEST>, count: usize, cost: [u32; N]) -> [usize; N] {
    let mut went = [0; N];
    for _ in 0..count {
        let way = ways.next();
        went[usize::from(way)] += 1;
        ways.record(way, cost[usize::from(way)]);
    }
    went
}

#[test]
fn all_are_tried_and_the_cheapest_is_kept() {
    for (cost, cheapest) in [([5, 9, 9], 0), ([9, 5, 9], 1), ([9, 9, 5], 2), ([9, 7, 5], 2), ([9, 5, 7], 1)] {
        for first in 0..3 {
            let mut ways = Ways::<3, LONGEST>::preferring(first);
            let went = run(&mut ways, 1000, cost);
            assert_eq!(ways.preferred(), cheapest, "{cost:?} from {first}");
            assert!(went[usize::from(cheapest)] > 920, "{went:?}");
            assert!(went.iter().all(|&count| count >= usize::from(TRIAL)), "{went:?}");
        }
    }
}

#[test]
fn trials_become_rare() {
    let mut ways = Ways::<2, LONGEST>::default();
    run(&mut ways, 10_000, [5, 9]);
    assert!(run(&mut ways, 10_000, [5, 9])[1] < 80);
}

#[test]
fn a_much_slower_alternative_is_tried_once_at_a_time() {
    let mut ways = Ways::<2, LONGEST>::default();
    assert!(run(&mut ways, 200, [5, 21])[1] <= 5);
}

#[test]
fn a_trial_of_too_few_runs_decides_nothing() {
    let mut ways = Ways::<2, LONGEST>::default();
    for _ in 0..1000 {
        run(&mut ways, 20, [9, 9]);
        // A much better way was tried only once.
        while ways.trial > 1 {
            ways.miss();
        }
        ways.record(1, 1);
        assert!(ways.trial > 0 || ways.preferred() == 0 || ways.is_known(1));
    }
}

#[test]
fn a_short_rise_is_ignored_and_a_lasting_one_is_not() {
    let mut ways = Ways::<2, LONGEST>::default();
    run(&mut ways, 5000, [5, 9]);
    let short = run(&mut ways, usize::from(CHANGED) - 2, [11, 9]);
    assert_eq!(short[1], 0);
    run(&mut ways, 10, [5, 9]);
    run(&mut ways, 30, [11, 9]);
    assert_eq!(ways.preferred(), 1);
}

#[test]
fn a_suggestion_is_tried_next_but_not_during_a_trial() {
    let mut ways = Ways::<3, LONGEST>::default();
    ways.suggest(2);
    assert_eq!(ways.next(), 0, "the cost of the preferred way is unknown");
    run(&mut ways, 2000, [5, 9, 9]);
    for way in [1, 2] {
        while ways.trial > 0 || ways.wait > ways.waited - ways.waited / SOON {
            run(&mut ways, 1, [5, 9, 9]);
        }
        ways.suggest(way);
        assert_eq!(ways.next(), way);
        ways.suggest(3 - way);
        assert_eq!(ways.next(), way);
    }
    for way in [0, 3, 255] {
        let mut ways = Ways::<3, LONGEST>::default();
        run(&mut ways, 11, [5, 9, 9]);
        assert_eq!(ways.trial, 0);
        ways.suggest(way);
        assert_eq!(ways.next(), 0);
    }
}

#[test]
fn trials_of_which_no_run_counts_become_rare() {
    let mut ways = Ways::<3, LONGEST>::default();
    let mut missed = 0;
    for _ in 0..10_000 {
        if ways.next() == ways.preferred() {
            ways.record(0, 5);
        } else {
            ways.miss();
            missed += 1;
        }
    }
    assert!((1..200).contains(&missed), "{missed}");
}

#[test]
fn repeated_suggestions_are_tried_rarely() {
    let mut ways = Ways::<3, LONGEST>::default();
    let mut went = [0; 3];
    for at in 0..10_000_u16 {
        ways.suggest((at % 3) as u8);
        let way = ways.next();
        went[usize::from(way)] += 1;
        ways.record(way, [5, 9, 9][usize::from(way)]);
    }
    assert!(went[0] > 9500, "{went:?}");
}

proptest! {
    /// For any sequence of calls, the selected way is valid.
    #[test]
    fn any_history_leaves_valid_state(
        first in 0_u8..3,
        steps in prop::collection::vec((0_u8..8, any::<u8>(), 1_u32..), 0..400),
    ) {
        let mut ways = Ways::<3, LONGEST>::preferring(first);
        for (what, way, cost) in steps {
            match what {
                0 => ways.suggest(way),
                1 => ways.miss(),
                _ => ways.record(if what < 4 { way % 3 } else { ways.next() }, cost),
            }
            prop_assert!(ways.next() < 3 && ways.preferred() < 3 && ways.other < 3);
            prop_assert!(ways.other != ways.preferred());
        }
    }
}
