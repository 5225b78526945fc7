//! A learned choice costs at most 1.15 times the best fixed one over 1,000 messages.
//!
//! The cost model: a protocol moves a message of `b` bytes in `fixed + b * per_byte` ticks, and the messages of a
//! window one after the other. The factors may change in the course of the messages. Each scenario gives the cost of
//! each protocol, and the test compares the sum with that of each protocol used for all messages.
//!
//! What no selection can do is not required. In the first window nothing is known, so a protocol that is ten times as
//! slow as another must not be the one with which the selector starts, if messages overlap.

use std::string::String;
use std::vec::Vec;
use std::{format, vec};

use proptest::prelude::ProptestConfig;
use proptest::test_runner::RngSeed;

use super::*;
use crate::shared::tests::{Rng, cases};

const MESSAGES: usize = 1000;
/// The limit, in hundredths.
const LIMIT: u64 = 115;

/// The cost of a message by each protocol.
type CostModel<'a> = &'a dyn Fn(usize, MessageForm) -> [u64; PROTOCOLS];

/// Some messages that are under way at once, after a pause.
struct Group {
    pause: u64,
    messages: Vec<MessageForm>,
}

/// Returns the cost of all messages by the learned choice, and by each protocol alone.
fn costs(groups: &[Group], model: CostModel<'_>) -> (u64, [u64; PROTOCOLS]) {
    let (mut selection, mut now, mut at) = (ProtocolSelection::default(), 1_000_000, 0);
    let (mut learned, mut fixed) = (0, [0; PROTOCOLS]);
    for group in groups {
        now += group.pause;
        let chosen: Vec<_> = group.messages.iter().map(|&message| selection.begin(message, now, 0)).collect();
        for (&message, protocol) in group.messages.iter().zip(chosen) {
            let cost = model(at, message);
            for (sum, cost) in fixed.iter_mut().zip(cost) {
                *sum += cost;
            }
            let taken = cost[usize::from(protocol.number())];
            (learned, now, at) = (learned + taken, now + taken, at + 1);
            selection.end(message.bytes, protocol, now);
        }
    }
    (learned, fixed)
}

/// Returns the cost of the learned choice in hundredths of the best fixed one.
fn ratio(groups: &[Group], model: CostModel<'_>) -> u64 {
    let (learned, fixed) = costs(groups, model);
    let best = fixed.into_iter().min().unwrap_or(1);
    (100 * learned).div_ceil(best.max(1))
}

/// The scenarios in which the learned choice cost too much.
#[derive(Default)]
struct Excesses(Vec<String>);

impl Excesses {
    fn check(&mut self, what: &str, groups: &[Group], model: CostModel<'_>) {
        let ratio = ratio(groups, model);
        if ratio > LIMIT {
            self.0.push(format!("{what}: {ratio} % of the best fixed protocol"));
        }
    }
}

impl Drop for Excesses {
    fn drop(&mut self) {
        assert!(self.0.is_empty(), "{:#?}", self.0);
    }
}

/// Returns groups of `width` messages each, of the sizes that `size` returns.
fn groups(width: usize, pause: u64, mut size: impl FnMut(usize) -> MessageForm) -> Vec<Group> {
    (0..MESSAGES / width)
        .map(|group| {
            // Messages of one window have one size.
            let form = size(group);
            Group { pause, messages: vec![form; width] }
        })
        .collect()
}

/// Messages of one size: alone with a pause, one after the other at once, and in windows.
fn each_kind(form: MessageForm) -> [(&'static str, Vec<Group>); 4] {
    [
        ("alone", groups(1, 7_777_777, |_| form)),
        ("at once", groups(1, 0, |_| form)),
        ("windows of 4", groups(4, 99_999, |_| form)),
        ("windows of 16", groups(16, 99_999, |_| form)),
    ]
}

/// Returns a model in which a protocol costs its factor, in hundredths, for each KiB.
fn linear(message: MessageForm, factors: [u64; PROTOCOLS]) -> [u64; PROTOCOLS] {
    factors.map(|factor| factor * (message.bytes + 4096) / 1024)
}

const SIZES: [u64; 4] = [9_000, 16 << 10, 100_000, 3 << 20];

/// Factors of the protocols. The first is the one with which the selector starts, and the last one is nearly as fast.
const FACTORS: [[u64; PROTOCOLS]; 14] = [
    [100, 100, 100],
    [100, 120, 150],
    [100, 94, 100],
    [107, 100, 107],
    [150, 100, 130],
    [120, 150, 100],
    [115, 170, 100],
    [125, 115, 100],
    [100, 1000, 150],
    [100, 1000, 1000],
    [100, 110, 1000],
    [110, 100, 1000],
    [100, 195, 180],
    [100, 205, 390],
];

#[test]
fn a_learned_choice_costs_at_most_115_percent_of_the_best_fixed_one() {
    let mut excesses = Excesses::default();
    for factors in FACTORS {
        for (bytes, is_list) in SIZES.into_iter().flat_map(|bytes| [(bytes, false), (bytes, true)]) {
            for (kind, groups) in each_kind(MessageForm { bytes, is_list, offered: IN_MEMORY }) {
                let what = format!("{kind}, {bytes} bytes, list {is_list}, {factors:?}");
                excesses.check(&what, &groups, &|_, message| linear(message, factors));
            }
        }
    }
}

#[test]
fn a_terrible_first_choice_is_left_at_once() {
    let mut excesses = Excesses::default();
    for factors in [[1000, 100, 100], [1000, 1000, 100], [1000, 100, 1000], [1000, 800, 100]] {
        for bytes in SIZES {
            for (kind, groups) in &each_kind(plain(bytes))[..2] {
                let what = format!("{kind}, {bytes} bytes, {factors:?}");
                excesses.check(&what, groups, &|_, message| linear(message, factors));
            }
        }
    }
}

#[test]
fn a_drifting_cost_is_followed() {
    let mut excesses = Excesses::default();
    for bytes in SIZES {
        for (kind, groups) in each_kind(plain(bytes)) {
            for pair in [[0, 1], [1, 0], [0, 2], [2, 1], [2, 0]] {
                for rise in [130, 200, 300] {
                    // One protocol becomes slower: in one step, and gradually.
                    let step = |at: usize, message| {
                        let mut factors = [150; PROTOCOLS];
                        factors[pair[0]] = if at < MESSAGES / 2 { 100 } else { rise };
                        factors[pair[1]] = 110;
                        linear(message, factors)
                    };
                    let slope = |at: usize, message| {
                        let mut factors = [150; PROTOCOLS];
                        factors[pair[0]] = 100 + (rise - 100) * at as u64 / MESSAGES as u64;
                        factors[pair[1]] = 110;
                        linear(message, factors)
                    };
                    let what = format!("{kind}, {bytes} bytes, {pair:?} to {rise}");
                    excesses.check(&what, &groups, &step);
                    excesses.check(&what, &groups, &slope);
                }
            }
        }
    }
}

#[test]
fn mixed_sizes_and_forms_are_learned() {
    let mut rng = Rng::new(77);
    let mut excesses = Excesses::default();
    // Each size must test each protocol before it can take over what is known of another, so a protocol that is ten
    // times as slow is left out.
    for factors in FACTORS.into_iter().filter(|factors| factors.iter().all(|factor| *factor < 1000)) {
        for (width, pause) in [(1, 7_777_777), (1, 0), (4, 99_999)] {
            let mixed = groups(width, pause, |_| MessageForm {
                bytes: 8 << rng.below(7) << 10,
                is_list: rng.below(2) == 0,
                offered: IN_MEMORY,
            });
            let what = format!("mixed, {width} at once, pause {pause}, {factors:?}");
            excesses.check(&what, &mixed, &|_, message| linear(message, factors));
        }
    }
}

/// A list costs the receiver more by one protocol, a contiguous message by the other.
#[test]
fn lists_do_not_spoil_what_is_known_of_contiguous_messages() {
    let both =
        groups(1, 7_777_777, |at| MessageForm { bytes: 64 << 10, is_list: at % 2 == 0, offered: IN_MEMORY });
    let (learned, fixed) = costs(&both, &|_, message| {
        linear(message, if message.is_list { [300, 100, 100] } else { [100, 300, 300] })
    });
    assert!(100 * learned <= 60 * fixed[0], "{learned} of {fixed:?}");
}

proptest! {
    // The limit is one of statistics, so that one case of many thousands exceeds it: always the same cases.
    #![proptest_config(ProptestConfig { rng_seed: RngSeed::Fixed(1), ..cases(96) })]

    /// Constant random factors up to ten, random sizes and windows. The limit is higher than that of the scenarios
    /// above: of 4,000 random cases two exceeded it, with 116 and 117 %, in windows of two sizes.
    ///
    /// No selection costs 100 %. If it tries each of two protocols once, and both cost ten times as much as the best
    /// one, it loses 18 messages of 1,000, and 36 of them if only half of the messages are large. A first window of 16
    /// messages by a choice of 150 % costs 8 more, or 16. So the least is about 105 %, and the rest is the price of
    /// several runs for each test, which noise requires.
    #[test]
    fn random_costs_are_learned(
        seed in any::<u64>(),
        factors in prop::array::uniform2(100_u64..=1000),
        alone in 50_u64..=200,
        fixed in 0_u64..50,
        width in 1_usize..=16,
        sizes in prop::collection::vec(13..22_u32, 1..3),
        gap in prop::sample::select(vec![0_u64, 10_000, 7_777_777]),
    ) {
        let mut rng = Rng::new(seed);
        // In a window the first choice is not far from the best one: nothing is known there.
        let best = factors.into_iter().min().unwrap_or(100);
        let [mut first, second] = factors;
        if width > 2 {
            first = first.min(best * 3 / 2);
        }
        let factors = [first, second, first * alone / 100];
        let all = groups(width, gap, |_| plain((1 << rng.pick(&sizes)) + rng.below(1000) as u64));
        let ratio = ratio(&all, &|_, message| {
            core::array::from_fn(|at| (fixed + message.bytes / 1024) * factors[at])
        });
        prop_assert!(ratio <= LIMIT + 10, "{ratio} %");
    }
}

/// Windows, and messages of each.
const WINDOWS: usize = 150;
const WINDOW: usize = 64;

/// Two processes with a core each. A pulled message costs the receiver its time at once, before it looks for the next
/// announcement. A streamed one is copied by the sender first, beside what the receiver does, and then by the receiver.
struct TwoCores {
    rng: Rng,
    pull: u64,
    fill: u64,
    empty: u64,
}

impl TwoCores {
    /// Returns a time with noise: others use the machine, too.
    fn noisy(&mut self, ticks: u64) -> u64 {
        match self.rng.below(100) {
            0..75 => ticks + self.rng.below(1 + ticks as usize / 10) as u64,
            75..97 => ticks + self.rng.below(1 + ticks as usize / 2) as u64,
            _ => 3 * ticks,
        }
    }

    /// Moves windows of messages, all by one protocol if `fixed` says whether they are streamed. Returns the time, and
    /// how many were streamed.
    fn windows(&mut self, message: MessageForm, fixed: Option<bool>) -> (u64, u64) {
        let (mut selection, mut now, begun) = (ProtocolSelection::default(), 1_000_000, 1_000_000);
        let mut streamed = 0;
        for _ in 0..WINDOWS {
            now += self.noisy(1000);
            let mut filled = now;
            let mut streams: std::collections::VecDeque<(Protocol, u64)> = std::collections::VecDeque::new();
            for _ in 0..WINDOW {
                // What has arrived of streams comes before the next announcement.
                while let Some((protocol, ready)) =
                    streams.front().copied().filter(|(_, ready)| *ready <= now)
                {
                    now = now.max(ready) + self.noisy(self.empty);
                    selection.end(message.bytes, protocol, now);
                    streams.pop_front();
                }
                let protocol = selection.begin(message, now, 0);
                if fixed.unwrap_or(is_stream(protocol)) {
                    filled = filled.max(now) + self.noisy(self.fill);
                    streams.push_back((protocol, filled));
                    streamed += 1;
                    now += 100;
                } else {
                    now += self.noisy(self.pull);
                    selection.end(message.bytes, protocol, now);
                }
            }
            for (protocol, ready) in streams {
                now = now.max(ready) + self.noisy(self.empty);
                selection.end(message.bytes, protocol, now);
            }
        }
        (now - begun, streamed)
    }
}

/// In windows, a protocol that keeps both cores busy is found, although pulled messages never overlap.
#[test]
fn windows_are_streamed_where_two_cores_are_faster_than_one() {
    let mut excesses = Excesses::default();
    for (bytes, pull) in [(16_u64 << 10, 5000_u64), (64 << 10, 8000)] {
        for (fill, empty) in [(30, 30), (60, 60), (70, 50), (50, 70), (80, 80), (120, 120)] {
            for seed in 0..4 {
                let (fill, empty) = (pull * fill / 100, pull * empty / 100);
                let mut machine = TwoCores { rng: Rng::new(seed), pull, fill, empty };
                let (learned, streamed) = machine.windows(plain(bytes), None);
                let fixed = [true, false].map(|way| machine.windows(plain(bytes), Some(way)).0);
                if 100 * learned > LIMIT * fixed[0].min(fixed[1]) {
                    let what = format!("{bytes} bytes, {fill} and {empty} instead of {pull}, seed {seed}");
                    excesses.0.push(format!("{what}: {learned} of {fixed:?}, {streamed} streamed"));
                }
            }
        }
    }
}
