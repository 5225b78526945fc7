use super::*;

/// Two cores between which a message takes a fixed number of ticks for each copy policy.
struct FillMachine {
    copy_policies: CopyPolicies,
    now: u64,
    received: u64,
    ticks: [u64; Stores::ALL.len()],
}

impl FillMachine {
    fn new(ticks: [u64; Stores::ALL.len()]) -> Self {
        Self { copy_policies: CopyPolicies::new(), now: 1_000_000, received: 0, ticks }
    }

    /// Sends messages of one size, each after an answer if `turns`. Returns how many were filled by each
    /// policy.
    fn send(&mut self, count: usize, len: usize, turns: bool) -> [usize; Stores::ALL.len()] {
        let mut filled = [0; Stores::ALL.len()];
        for _ in 0..count {
            self.received += u64::from(turns);
            let now = self.now;
            let fill = self.copy_policies.fill(3, None, len, self.received, || Some(now));
            self.now += self.ticks[fill as usize - 1];
            filled[fill as usize - 1] += 1;
        }
        filled
    }

    fn send_non_temporal(&mut self, count: usize, len: usize, turns: bool) -> usize {
        self.send(count, len, turns)[Stores::NonTemporal as usize - 1]
    }
}

#[test]
fn the_fastest_method_is_found_whichever_it_is() {
    for turns in [false, true] {
        for len in [256, 512, 1000, 2048, 4095] {
            for fastest in Stores::ALL {
                let mut ticks = [900, 1000, 1100];
                ticks[fastest as usize - 1] = 600;
                let filled = FillMachine::new(ticks).send(100_000, len, turns);
                assert!(filled[fastest as usize - 1] > 90_000, "{filled:?} of {len} bytes, {fastest:?}");
                assert!(
                    filled.iter().all(|&count| count > 0),
                    "{filled:?} of {len} bytes: not all were tried"
                );
            }
        }
    }
}

#[test]
fn cells_with_little_are_filled_with_plain_stores() {
    assert_eq!(FillMachine::new([2200, 2200, 900]).send(100_000, 255, false), [100_000, 0, 0]);
    assert_eq!(FillMachine::new([2200, 2200, 900]).send(100_000, 0, true), [100_000, 0, 0]);
}

#[test]
fn answers_and_streams_are_learned_separately() {
    let mut machine = FillMachine::new([700, 500, 800]);
    machine.send(100_000, 2048, true);
    machine.ticks = [600, 600, 400];
    let past = machine.send_non_temporal(10_000, 2048, false);
    assert!(past > 7500, "{past}");
    machine.ticks = [700, 500, 800];
    let past = machine.send_non_temporal(1000, 2048, true);
    assert!(past < 100, "{past}");
}

#[test]
fn a_window_that_is_acknowledged_is_a_stream() {
    let mut machine = FillMachine::new([600, 600, 400]);
    let past: usize = (0..1000)
        .map(|_| machine.send_non_temporal(1, 2048, true) + machine.send_non_temporal(63, 2048, false))
        .sum();
    assert!(past > 58_000, "{past}");
}

#[test]
fn a_move_to_another_core_is_noticed() {
    for turns in [false, true] {
        let mut machine = FillMachine::new([700, 600, 1000]);
        machine.send(1_000_000, 2048, turns);
        machine.ticks = [2200, 2100, 1000];
        let past = machine.send_non_temporal(10_000, 2048, turns);
        assert!(past > 7000, "{past}");
    }
}

#[test]
fn alternating_sizes_are_not_learned() {
    let mut machine = FillMachine::new([700, 700, 100]);
    for _ in 0..10_000 {
        // The default for each size, also later.
        assert_eq!(machine.send(1, 2048, false), [0, 1, 0]);
        assert_eq!(machine.send(1, 1024, false), [0, 1, 0]);
    }
}

#[test]
fn without_a_clock_or_with_a_preference_nothing_is_learned() {
    let mut copy_policy = CopyPolicies::new();
    let asked = || panic!("the clock must not be read");
    for received in 0..10_000 {
        assert_eq!(copy_policy.fill(3, None, 2048, received, || None), Stores::Cached);
        assert_eq!(copy_policy.fill(3, Some(Stores::Cached), 2048, received, asked), Stores::Cached);
        assert_eq!(copy_policy.fill(3, Some(Stores::Prefetched), 2048, received, asked), Stores::Prefetched);
        assert_eq!(copy_policy.fill(3, Some(Stores::Prefetched), 100, received, asked), Stores::Prefetched);
        assert_eq!(
            copy_policy.fill(3, Some(Stores::NonTemporal), 2048, received, asked),
            Stores::NonTemporal
        );
        assert_eq!(copy_policy.fill(3, Some(Stores::NonTemporal), 100, received, asked), Stores::Cached);
    }
}

#[test]
fn a_peer_without_an_entry_waits_until_the_other_is_idle() {
    let mut copy_policies = CopyPolicies::new();
    let other = 3 + HOT as PeerId;
    for _ in 0..10_000 {
        assert!(copy_policies.of(3).is_some());
        assert!((1..usize::from(TAKE_OVER)).all(|_| copy_policies.of(other).is_none()));
    }
    assert!((1..=TAKE_OVER).any(|_| copy_policies.of(other).is_some()));
    assert!(copy_policies.of(3).is_none());
}

/// A learned choice costs at most 1.15 times the best fixed one over 1,000 messages.
#[test]
fn a_learned_copy_policy_costs_at_most_115_percent_of_the_best_fixed_one() {
    let constant = [
        [100, 100, 100],
        [100, 120, 150],
        [130, 100, 94],
        [1000, 100, 110],
        [110, 100, 1000],
        [195, 100, 195],
    ];
    for ticks in constant {
        for (len, turns) in [(300, true), (300, false), (2048, true), (2048, false), (4095, false)] {
            let mut machine = FillMachine::new(ticks.map(|ticks| 10 * ticks));
            let filled = machine.send(1000, len, turns);
            let learned: u64 = filled.iter().zip(ticks).map(|(count, ticks)| *count as u64 * ticks).sum();
            let best = 1000 * ticks.into_iter().min().unwrap();
            assert!(100 * learned <= 115 * best, "{filled:?} of {len} bytes, {turns}, {ticks:?}");
        }
    }
}

#[test]
fn a_copy_policy_that_becomes_slower_is_left() {
    for turns in [false, true] {
        for slower in 0..3 {
            let mut ticks = [1100; 3];
            ticks[slower] = 1000;
            let mut machine = FillMachine::new(ticks);
            let start = machine.now;
            machine.send(500, 2048, turns);
            machine.ticks[slower] = 3000;
            machine.send(500, 2048, turns);
            let cost = machine.now - start;
            assert!(100 * cost <= 115 * 1_100_000, "{cost} if {slower} becomes slower, {turns}");
        }
    }
}
