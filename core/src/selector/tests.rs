use proptest::prelude::*;

use super::*;
use crate::shared::tests::cases;

const LONGEST: u16 = 1024;
const AMOUNT: RunAmount = RunAmount { first: 1, least: 1, full: 4 };

/// A selector and the budget of its trials.
#[derive(Default)]
struct Bench<const N: usize> {
    selector: AdaptiveSelector<N, LONGEST>,
    budget: TrialBudget,
}

impl<const N: usize> Bench<N> {
    fn preferring(option: u8) -> Self {
        Self { selector: AdaptiveSelector::preferring(option), ..Self::default() }
    }

    /// Executes runs, each by the selected alternative. Returns the number of runs of each alternative.
    fn run(&mut self, count: usize, cost: [u32; N]) -> [usize; N] {
        let mut went = [0; N];
        for _ in 0..count {
            let plan = self.selector.plan(AMOUNT, &self.budget);
            let option = usize::from(plan.option);
            went[option] += 1;
            self.selector.record(plan.option, cost[option], plan.amount, &mut self.budget);
        }
        went
    }
}

#[test]
fn all_are_tried_and_the_cheapest_is_kept() {
    for (cost, cheapest) in [([5, 9, 9], 0), ([9, 5, 9], 1), ([9, 9, 5], 2), ([9, 7, 5], 2), ([9, 5, 7], 1)] {
        for first in 0..3 {
            let mut bench = Bench::<3>::preferring(first);
            let went = bench.run(1000, cost);
            assert_eq!(bench.selector.preferred(), cheapest, "{cost:?} from {first}");
            assert!(went[usize::from(cheapest)] > 920, "{went:?}");
            assert!(went.iter().all(|&count| count >= 2), "{went:?}");
        }
    }
}

/// The first runs of the alternative with which the selector starts are three times as slow as another one, because all
/// memory is new. Later it is the fastest.
#[test]
fn an_alternative_whose_first_runs_were_slow_is_tried_again_at_once() {
    let mut bench = Bench::<3>::default();
    let first = bench.run(9, [60, 20, 30]);
    assert_eq!(bench.selector.preferred(), 1, "{first:?}");
    // As each run makes more memory known, it becomes faster.
    for cost in [29, 27, 24, 22, 19] {
        bench.run(1, [cost, 20, 30]);
    }
    let went = bench.run(200, [10, 20, 30]);
    assert!(went[0] > 170, "{went:?}");
}

/// That costs a few runs if it is slow indeed, and none if it was so slow that no new memory explains it.
#[test]
fn an_alternative_that_was_left_is_not_tried_for_long() {
    for (slow, most) in [(29, 30), (32, 15), (60, 15), (200, 8)] {
        let mut bench = Bench::<3>::default();
        let went = bench.run(200, [slow, 20, 30]);
        assert!(went[0] <= most, "{went:?}");
    }
}

#[test]
fn trials_become_rare() {
    let mut bench = Bench::<2>::default();
    bench.run(10_000, [5, 9]);
    assert!(bench.run(10_000, [5, 9])[1] < 80);
}

#[test]
fn a_much_slower_alternative_is_tried_for_one_short_run_at_a_time() {
    let mut bench = Bench::<2>::default();
    assert!(bench.run(1000, [5, 50])[1] <= 8);
    let plan = loop {
        let plan = bench.selector.plan(AMOUNT, &bench.budget);
        bench.selector.record(plan.option, [5, 50][usize::from(plan.option)], plan.amount, &mut bench.budget);
        if plan.option == 1 {
            break plan;
        }
    };
    assert_eq!(plan.amount, AMOUNT.least);
    assert_eq!(bench.selector.current(), 0, "the trial is over");
}

#[test]
fn a_trial_waits_until_the_budget_covers_its_loss() {
    let mut bench = Bench::<2>::default();
    bench.run(3, [5, 50]);
    let went = bench.run(190, [5, 50]);
    assert!(went[1] <= 4, "{went:?}");
    assert!(!bench.budget.covers(bench.budget.0 + 1));
}

#[test]
fn a_trial_of_too_few_runs_decides_nothing() {
    let mut bench = Bench::<2>::default();
    bench.run(8, [9, 9]);
    for _ in 0..1000 {
        bench.run(20, [9, 9]);
        // A much better alternative was recorded only once, as the first run of its trial.
        if bench.selector.plan(AMOUNT, &bench.budget).option == 1 && bench.selector.trial == TRIAL {
            bench.selector.record(1, 1, 1, &mut bench.budget);
            assert_eq!(bench.selector.preferred(), 0);
            while bench.selector.trial > 0 {
                bench.selector.miss(1);
            }
        }
    }
    assert_eq!(bench.selector.preferred(), 0);
}

#[test]
fn a_short_rise_is_ignored_and_a_lasting_one_is_not() {
    let mut bench = Bench::<2>::default();
    bench.run(5000, [5, 9]);
    assert_eq!(bench.run(1, [11, 9])[1], 0);
    assert_eq!(bench.run(10, [5, 9])[1], 0);
    bench.run(10, [11, 9]);
    assert_eq!(bench.selector.preferred(), 1);
}

#[test]
fn a_suggestion_is_tried_next_but_not_during_a_trial() {
    let mut bench = Bench::<3>::default();
    bench.selector.suggest(2);
    assert_eq!(bench.selector.current(), 0, "not all costs are known");
    bench.run(2000, [5, 9, 9]);
    for option in [1, 2] {
        while bench.selector.trial > 0
            || bench.selector.wait > bench.selector.waited - bench.selector.waited / SOON
        {
            bench.run(1, [5, 9, 9]);
        }
        bench.selector.suggest(option);
        assert_eq!(bench.selector.current(), option);
        bench.selector.suggest(3 - option);
        assert_eq!(bench.selector.current(), option);
    }
    for option in [0, 3, 255] {
        let mut bench = Bench::<3>::default();
        bench.run(7, [5, 9, 9]);
        assert_eq!(bench.selector.trial, 0);
        bench.selector.suggest(option);
        assert_eq!(bench.selector.current(), 0);
    }
}

#[test]
fn trials_of_which_no_run_counts_become_rare() {
    let mut bench = Bench::<3>::default();
    let mut missed = 0;
    for _ in 0..10_000 {
        let plan = bench.selector.plan(AMOUNT, &bench.budget);
        if plan.option == bench.selector.preferred() {
            bench.selector.record(0, 5, plan.amount, &mut bench.budget);
        } else {
            bench.selector.miss(plan.option);
            missed += 1;
        }
    }
    assert!((1..200).contains(&missed), "{missed}");
}

#[test]
fn repeated_suggestions_are_tried_rarely() {
    let mut bench = Bench::<3>::default();
    let mut went = [0; 3];
    for at in 0..10_000_u16 {
        bench.selector.suggest((at % 3) as u8);
        for (sum, count) in went.iter_mut().zip(bench.run(1, [5, 9, 9])) {
            *sum += count;
        }
    }
    assert!(went[0] > 9500, "{went:?}");
}

#[test]
fn costs_of_similar_work_are_taken_over_unless_they_do_not_fit() {
    let mut bench = Bench::<3>::default();
    bench.run(1000, [50, 5, 60]);
    let mut heir = Bench::<3>::default();
    heir.selector.inherit(&bench.selector, 1);
    assert!(!heir.selector.is_complete() && !heir.selector.is_new());
    assert!(heir.run(100, [100, 10, 120])[1] >= 98, "it costs at most twice as much");
    let mut stranger = Bench::<3>::default();
    stranger.selector.inherit(&bench.selector, 1);
    assert!(stranger.run(100, [5, 50, 60])[0] > 80);
}

proptest! {
    #![proptest_config(cases(256))]

    /// For any sequence of calls, the selected alternative is valid.
    #[test]
    fn any_history_leaves_valid_state(
        first in 0_u8..3,
        steps in prop::collection::vec((0_u8..9, any::<u8>(), 1_u32.., any::<u64>()), 0..400),
    ) {
        let mut bench = Bench::<3>::preferring(first);
        for (what, option, cost, amount) in steps {
            let plan = bench.selector.plan(RunAmount { first: 1, least: 1, full: amount.max(1) }, &bench.budget);
            prop_assert!(plan.option < 3 && plan.amount > 0);
            match what {
                0 => bench.selector.suggest(option),
                1 => bench.selector.miss(plan.option),
                2 => bench.selector.miss(option % 3),
                3 => bench.selector.record(option % 4, cost, amount, &mut bench.budget),
                4 if bench.selector.is_complete() => {
                    let from = bench.selector;
                    bench.selector.inherit(&from, option);
                }
                _ => bench.selector.record(plan.option, cost, amount, &mut bench.budget),
            }
            let selector = &bench.selector;
            prop_assert!(selector.current() < 3 && selector.preferred() < 3 && selector.other < 3);
            prop_assert!(selector.other != selector.preferred());
        }
    }
}
