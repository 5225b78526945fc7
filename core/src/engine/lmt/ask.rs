//! Whether a message that may leave unasked does so, or is announced: learned by its sender from measured times, for
//! each peer and size.
//!
//! Unasked bytes are copied twice, without a question. A receiver that is asked may pull them by one copy. Which of the
//! two is faster depends on the machine as much as the choice of the [protocol](super::select) does. On a Zen 3, 64 KiB
//! took 3.7 us unasked and 6.3 us with a question; on a Sapphire Rapids 6.7 us unasked and 3.9 us pulled. The receiver
//! cannot measure that: when it hears of a message, the sender has filled a cell.
//!
//! The sender measures *turns*. A turn is the time from one message until the first that follows a message from the
//! peer: a round trip, or a window and its acknowledgement. Nothing else shows the sender how long its messages took,
//! because an unasked one is complete before the peer has read it. The cost of a turn is its time divided by the bytes
//! sent in it. All messages of a turn leave in the same way; those for which there is no credit are announced in
//! either. Turns of one message and windows are learned separately, as overlapping messages are by the receiver. A turn
//! with messages of several sizes is not measured. Without messages in the other direction nothing is learned.
//! (The idea is in none of the papers.)
#![forbid(unsafe_code)]

use crate::selector::run::Run;
use crate::selector::{AdaptiveSelector, RunAmount, TrialBudget};

/// The smallest message, in bytes, that may be announced for its speed: the copies of a smaller one take less time than
/// a question.
pub(in crate::engine) const LEAST_ASKED: usize = 1 << SMALLEST;
/// The size classes of messages: powers of two from 16 KiB to below 512 KiB.
const CLASSES: usize = 5;
const SMALLEST: u32 = 14;
/// The second alternative; the first is to send unasked.
const ASKED: u8 = 1;
/// Most runs until the other alternative is tried.
const LONGEST_WAIT: u16 = 256;
/// Messages of a usual run, and of a short one. After so many questions the receiver has learned how it moves the
/// bytes, so that the second run of asked messages shows what a question is worth.
const FULL: u64 = 16;
const SHORT: u64 = 8;

/// The size class of the messages of a turn, and whether it has several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct TurnClass {
    size: usize,
    is_window: bool,
}

/// The messages that this process has sent since the peer has sent one.
#[derive(Clone, Copy, Debug)]
struct Turn {
    size: usize,
    /// The messages that had come from the peer when it began.
    heard: u64,
    bytes: u64,
    messages: u64,
    is_uniform: bool,
}

/// The sender's measurements of one peer.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::engine) struct AskSelection {
    /// For turns of one message, and for windows.
    selectors: [[AdaptiveSelector<2, LONGEST_WAIT>; CLASSES]; 2],
    budget: TrialBudget,
    turn: Option<Turn>,
    /// Whether the last turn was a window.
    is_window: bool,
    /// Costs are in ticks for 4096 bytes.
    run: Option<Run<TurnClass, 4096>>,
}

const fn size_of(bytes: u64) -> usize {
    let class = (bytes | 1).ilog2().saturating_sub(SMALLEST) as usize;
    if class < CLASSES { class } else { CLASSES - 1 }
}

impl AskSelection {
    /// Returns whether a message that may leave unasked is to be announced instead. `heard` is the number of messages
    /// that have come from the peer. The clock is read once a turn; without one nothing is announced.
    pub(in crate::engine) fn asks(
        &mut self,
        bytes: u64,
        heard: u64,
        ticks: impl FnOnce() -> Option<u64>,
    ) -> bool {
        if self.turn.is_none_or(|turn| turn.heard != heard) {
            let Some(now) = ticks() else { return false };
            self.end_turn(now);
            let size = size_of(bytes);
            self.begin_run(TurnClass { size, is_window: self.is_window }, bytes, now);
            self.turn = Some(Turn { size, heard, bytes: 0, messages: 0, is_uniform: true });
        }
        self.run.is_some_and(|run| run.option() == ASKED)
    }

    /// Records that a message has left, in either way.
    pub(in crate::engine) fn left(&mut self, bytes: u64) {
        if let Some(turn) = &mut self.turn {
            turn.bytes = turn.bytes.saturating_add(bytes);
            turn.messages += 1;
            turn.is_uniform &= size_of(bytes) == turn.size;
        }
    }

    fn end_turn(&mut self, now: u64) {
        let Some(turn) = self.turn.take() else { return };
        self.is_window = turn.messages > 1;
        let Some(run) = &mut self.run else { return };
        if turn.is_uniform && run.class == (TurnClass { size: turn.size, is_window: self.is_window }) {
            run.end(turn.bytes);
        } else {
            run.spoil();
        }
        if run.is_spoiled() || run.is_over(now) {
            self.close(now);
        }
    }

    /// Goes on with the run, or starts another one.
    fn begin_run(&mut self, class: TurnClass, bytes: u64, now: u64) {
        if let Some(run) = &mut self.run {
            if run.class == class {
                return;
            }
            run.spoil();
            self.close(now);
        }
        let [short, full] = [SHORT, FULL].map(|messages| messages.saturating_mul(bytes.max(1)));
        let amount = RunAmount { first: short, least: short, full };
        let plan = self.selectors[usize::from(class.is_window)][class.size].plan(amount, &self.budget);
        self.run = Some(Run::start(class, plan, now));
    }

    fn close(&mut self, now: u64) {
        if let Some(run) = self.run.take() {
            let selector = &mut self.selectors[usize::from(run.class.is_window)][run.class.size];
            run.close(now, selector, &mut self.budget);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEN: u64 = 64 << 10;

    /// Sends windows of messages, of which each costs so many ticks in each way: unasked, asked. Returns how many of
    /// the last hundred windows were asked.
    fn asked(selection: &mut AskSelection, windows: u64, messages: u64, costs: [u64; 2]) -> u64 {
        let (mut now, mut heard, mut asked) = (1000, 0, 0);
        for window in 0..windows {
            let mut is_asked = false;
            for _ in 0..messages {
                is_asked = selection.asks(LEN, heard, || Some(now));
                selection.left(LEN);
                now += costs[usize::from(is_asked)];
            }
            heard += 1;
            asked += u64::from(is_asked && window + 100 >= windows);
        }
        asked
    }

    #[test]
    fn the_faster_way_is_learned_for_single_messages_and_for_windows() {
        for messages in [1, 64] {
            assert!(asked(&mut AskSelection::default(), 300, messages, [1700, 1000]) > 90);
            assert!(asked(&mut AskSelection::default(), 300, messages, [1000, 1700]) < 10);
        }
    }

    #[test]
    fn a_thousand_messages_cost_hardly_more_than_by_the_faster_way() {
        for costs in [[1000, 1700], [1700, 1000], [1000, 1050], [1050, 1000]] {
            let mut selection = AskSelection::default();
            let (mut now, best) = (0, costs[0].min(costs[1]));
            for heard in 0..1000 {
                let is_asked = selection.asks(LEN, heard, || Some(now));
                selection.left(LEN);
                now += costs[usize::from(is_asked)];
            }
            assert!(now * 100 <= 1000 * best * 115, "{costs:?}: {now}");
        }
    }

    #[test]
    fn a_machine_that_changes_is_noticed() {
        let mut selection = AskSelection::default();
        assert!(asked(&mut selection, 300, 1, [1000, 1700]) < 10);
        assert!(asked(&mut selection, 3000, 1, [3000, 1700]) > 90);
    }

    #[test]
    fn windows_do_not_count_as_single_messages() {
        let mut selection = AskSelection::default();
        assert!(asked(&mut selection, 300, 64, [1700, 1000]) > 90);
        assert!(asked(&mut selection, 300, 1, [1000, 1700]) < 10);
        assert!(asked(&mut selection, 300, 64, [1700, 1000]) > 90);
    }

    #[test]
    fn without_messages_from_the_peer_nothing_is_learned() {
        let mut selection = AskSelection::default();
        for now in 0..10_000 {
            assert!(!selection.asks(LEN, 7, || Some(now)));
            selection.left(LEN);
        }
    }

    #[test]
    fn turns_of_several_sizes_are_not_measured() {
        let mut selection = AskSelection::default();
        for heard in 0..1000 {
            for (at, bytes) in [LEN, 4 * LEN].into_iter().enumerate() {
                assert!(!selection.asks(bytes, heard, || Some(10 * heard + at as u64)));
                selection.left(bytes);
            }
        }
    }
}
