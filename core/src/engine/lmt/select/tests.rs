use std::vec::Vec;

use proptest::prelude::*;

use super::*;

mod cost;

/// The number of slots of the measurements.
const PEERS: usize = 16;

/// Returns the ticks of each protocol: the receiver's reads take as long with the sender's help as without.
const fn ticks(pull: u64, stream: u64) -> [u64; PROTOCOLS] {
    [stream, pull, pull]
}

/// What the port for shared memory offers.
const IN_MEMORY: Rendezvous = Rendezvous { get: true, put: false, stream: true };

const fn is_stream(protocol: Protocol) -> bool {
    matches!(protocol, Protocol::Stream)
}

fn plain(bytes: u64) -> MessageForm {
    MessageForm { bytes, is_list: false, offered: IN_MEMORY }
}

/// A machine on which each protocol has a cost per message, in ticks, and each message is preceded by a gap.
struct ProtocolMachine {
    selection: ProtocolSelection,
    now: u64,
    ticks: [u64; PROTOCOLS],
}

impl ProtocolMachine {
    fn new(pull: u64, stream: u64) -> Self {
        Self { selection: ProtocolSelection::default(), now: 1_000_000, ticks: ticks(pull, stream) }
    }

    /// Receives messages one after the other. Returns how many were streamed.
    fn one_by_one(&mut self, count: usize, bytes: u64) -> usize {
        (0..count)
            .filter(|_| {
                self.now += 7_777_777;
                let protocol = self.selection.begin(plain(bytes), self.now, 0);
                self.now += self.ticks[usize::from(protocol.number())];
                self.selection.end(bytes, protocol, self.now);
                is_stream(protocol)
            })
            .count()
    }

    /// Receives windows of messages that are in progress at the same time. Returns how many were streamed.
    fn windows(&mut self, count: usize, messages: usize, bytes: u64) -> usize {
        (0..count)
            .map(|_| {
                self.now += 555_555;
                let window: Vec<_> =
                    (0..messages).map(|_| self.selection.begin(plain(bytes), self.now, 0)).collect();
                for &protocol in &window {
                    self.now += self.ticks[usize::from(protocol.number())];
                    self.selection.end(bytes, protocol, self.now);
                }
                window.iter().filter(|&&protocol| is_stream(protocol)).count()
            })
            .sum()
    }
}

/// All messages of a window begin before one has ended.
#[test]
fn overlapping_messages_of_a_sender_that_can_put_are_put_until_another_protocol_is_faster() {
    let message = MessageForm { offered: Rendezvous { put: true, ..IN_MEMORY }, ..plain(1 << 20) };
    let put = |pull: u64, put: u64, windows: usize| {
        let (mut selection, mut now, mut count) = (ProtocolSelection::default(), 1_000_000, 0);
        for _ in 0..windows {
            let window: Vec<_> = (0..64).map(|_| selection.begin(message, now, 0)).collect();
            for protocol in window {
                let is_put = protocol.number() == 1;
                count += usize::from(is_put);
                now += if is_put { put } else { pull };
                selection.end(message.bytes, protocol, now);
            }
            now += 555_555;
        }
        count
    };
    assert!(put(9000, 6000, 1) >= 62, "{}", put(9000, 6000, 1));
    assert!(put(9000, 6000, 40) >= 40 * 60, "{}", put(9000, 6000, 40));
    assert!(put(3000, 9000, 400) < 400 * 32, "{}", put(3000, 9000, 400));
}

#[test]
fn the_faster_protocol_is_found_whichever_it_is() {
    let streamed = ProtocolMachine::new(6000, 9000).one_by_one(1000, 64 << 10);
    assert!(streamed < 50, "{streamed}");
    let streamed = ProtocolMachine::new(9000, 6000).one_by_one(1000, 64 << 10);
    assert!((880..998).contains(&streamed), "{streamed}");
}

#[test]
fn a_much_slower_protocol_is_rarely_tried() {
    let streamed = ProtocolMachine::new(1000, 9000).one_by_one(1000, 64 << 10);
    assert!((1..40).contains(&streamed), "{streamed}");
}

#[test]
fn nearly_as_fast_is_no_reason_to_change() {
    let streamed = ProtocolMachine::new(960, 1000).one_by_one(1000, 64 << 10);
    assert!(streamed > 880, "{streamed}");
}

#[test]
fn a_change_is_noticed_soon_after_thousands_of_messages() {
    let mut machine = ProtocolMachine::new(9000, 6000);
    machine.one_by_one(20_000, 64 << 10);
    machine.ticks = ticks(9000, 30_000);
    let streamed = machine.one_by_one(200, 64 << 10);
    assert!(streamed < 80, "{streamed}");
    machine.ticks = ticks(60_000, 30_000);
    let streamed = machine.one_by_one(200, 64 << 10);
    assert!(streamed > 40, "{streamed}");
}

#[test]
fn a_slow_message_now_and_then_changes_nothing() {
    let mut machine = ProtocolMachine::new(9000, 6000);
    machine.one_by_one(1000, 64 << 10);
    let mut streamed = 0;
    for _ in 0..50 {
        machine.ticks[0] = 6_000_000;
        streamed += machine.one_by_one(1, 64 << 10);
        machine.ticks[0] = 6000;
        streamed += machine.one_by_one(19, 64 << 10);
    }
    assert!(streamed > 900, "{streamed}");
}

#[test]
fn a_trial_of_too_few_runs_decides_nothing() {
    let (mut selection, mut now, mut pulled) = (ProtocolSelection::default(), 1_000_000, 0);
    for _ in 0..500 {
        now += 7_777_777;
        let protocol = selection.begin(plain(64 << 10), now, 0);
        pulled += u32::from(!is_stream(protocol));
        // The first runs of a trial are not recorded.
        if !is_stream(protocol) && pulled < 4 {
            selection.spoil();
        }
        now += ticks(9000, 3000)[usize::from(protocol.number())];
        selection.end(64 << 10, protocol, now);
        let class = class_of(64 << 10);
        assert_eq!(
            selection.selectors[0][0][class].preferred(),
            Protocol::ALL[0].number(),
            "three times as slow"
        );
    }
    assert!(pulled > 4, "{pulled}");
}

#[test]
fn sizes_are_learned_one_by_one() {
    let mut machine = ProtocolMachine::new(9000, 6000);
    machine.one_by_one(1000, 64 << 10);
    machine.ticks = ticks(6000, 9000);
    assert!(machine.one_by_one(1000, 1 << 20) < 45);
    machine.ticks = ticks(9000, 6000);
    assert!(machine.one_by_one(1000, 64 << 10) > 970);
}

#[test]
fn single_and_overlapping_messages_are_learned_separately() {
    let mut machine = ProtocolMachine::new(9000, 6000);
    machine.one_by_one(1000, 64 << 10);
    machine.ticks = ticks(6000, 9000);
    let streamed = machine.windows(100, 16, 64 << 10);
    assert!(streamed < 28 * 16, "{streamed}");
    machine.ticks = ticks(14_000, 6000);
    let streamed = machine.windows(100, 16, 64 << 10);
    assert!(streamed > 80 * 16, "{streamed}");
    machine.ticks = ticks(9000, 6000);
    let streamed = machine.one_by_one(100, 64 << 10);
    assert!(streamed > 80, "{streamed}");
}

#[test]
fn only_the_first_messages_of_a_window_are_on_trial() {
    let mut machine = ProtocolMachine::new(9000, 1000);
    for window in 0..1000 {
        let pulled = 16 - machine.windows(1, 16, 1 << 20);
        assert!(pulled <= 1, "{pulled} in window {window}");
    }
}

#[test]
fn messages_without_a_pause_are_measured_too() {
    // Four messages are always in progress, first in, first out.
    let (mut selection, mut now, mut streamed) = (ProtocolSelection::default(), 1, 0);
    let bytes = 64 << 10;
    let mut queue: std::collections::VecDeque<_> =
        (0..4).map(|_| selection.begin(plain(bytes), now, 0)).collect();
    for _ in 0..10_000 {
        let protocol = queue.pop_front().unwrap();
        streamed += usize::from(is_stream(protocol));
        now += ticks(20_000, 10_000)[usize::from(protocol.number())];
        selection.end(bytes, protocol, now);
        queue.push_back(selection.begin(plain(bytes), now, 0));
    }
    assert!(streamed > 9000, "{streamed}");
}

#[test]
fn a_run_of_several_sizes_is_discarded() {
    let mut selection = ProtocolSelection::default();
    for at in 0..1000 {
        selection.begin(plain(64 << 10), 100 * at, 0);
        selection.begin(plain(1 << 20), 100 * at + 10, 0);
        selection.end(64 << 10, Protocol::Pull, 100 * at + 20);
        selection.end(1 << 20, Protocol::Pull, 100 * at + 30);
    }
    let known = selection.selectors.iter().flatten().flatten();
    assert!(known.into_iter().all(|class| !class.is_known(Protocol::Pull.number())));
}

#[test]
fn each_of_them_is_found() {
    for fastest in Protocol::ALL {
        let mut machine = ProtocolMachine::new(9000, 9000);
        machine.ticks[usize::from(fastest.number())] = 6000;
        let mut found = 0;
        for _ in 0..1000 {
            machine.one_by_one(1, 64 << 10);
            found += usize::from(machine.selection.protocol_number(64 << 10) == fastest.number() + 1);
        }
        assert!(found > 900, "{fastest:?}: {found}");
    }
}

/// One buffer travels back and forth between two processes. The transfer is fast only if both receive by the
/// same protocol, and fastest if both pull. A process that tries that alone gains nothing.
#[test]
fn two_processes_that_pass_on_a_buffer_find_the_protocol_that_needs_both() {
    let bytes = 64 << 10;
    let (mut selections, mut now, mut fast) =
        ([ProtocolSelection::default(), ProtocolSelection::default()], 1, 0);
    // The two processes begin out of step.
    for _ in 0..101 {
        let protocol = selections[0].begin(plain(bytes), now, 0);
        now += if protocol == Protocol::Stream { 24_000 } else { 25_000 };
        selections[0].end(bytes, protocol, now);
        now += 50_000;
    }
    let mut last = Protocol::Stream;
    for at in 0..4000 {
        let protocol_number = selections[1 - at % 2].protocol_number(bytes);
        let protocol = selections[at % 2].begin(plain(bytes), now, protocol_number);
        let both = protocol == Protocol::Pull && last == protocol;
        now += if both { 9000 } else { 24_000 + 500 * u64::from(protocol.number()) };
        selections[at % 2].end(bytes, protocol, now);
        fast += usize::from(both);
        last = protocol;
    }
    assert!(fast > 2800, "{fast}");
}

/// Each side has another fastest protocol. The trials of one side must not cause endless trials of the other.
#[test]
fn two_processes_with_different_preferences_do_not_try_forever() {
    let bytes = 256 << 10;
    let (mut selections, mut now, mut late) =
        ([ProtocolSelection::default(), ProtocolSelection::default()], 1, 0);
    for at in 0..20_000 {
        let (me, peer) = (at % 2, 1 - at % 2);
        let protocol_number = selections[peer].protocol_number(bytes);
        let protocol = selections[me].begin(plain(bytes), now, protocol_number);
        let fast = [Protocol::Pull, Protocol::Stream][me];
        now += if protocol == fast { 24_000 } else { 36_000 };
        selections[me].end(bytes, protocol, now);
        now += 50_000;
        late += usize::from(at >= 10_000 && protocol != fast);
    }
    assert!(late < 500, "{late} of 10,000");
}

proptest! {
    /// Any sequence of calls, with a clock that may step back, leaves the counts correct.
    #[test]
    fn any_history_leaves_valid_state(
        steps in prop::collection::vec(
            (any::<bool>(), any::<u64>(), any::<u64>(), any::<u8>(), 0..=MOST_PROTOCOLS),
            0..400,
        ),
    ) {
        let mut selection = ProtocolSelection::default();
        let mut under_way = 0_u32;
        for (begins, bytes, now, odd, protocol_number) in steps {
            if begins {
                selection.begin(plain(bytes), now, protocol_number);
                under_way += 1;
            } else if under_way > 0 {
                selection.end(bytes, Protocol::of(odd % 5), now);
                under_way -= 1;
            }
            if odd == 0 {
                selection.spoil();
            }
            prop_assert_eq!(selection.under_way, under_way);
            prop_assert!(selection.stale <= under_way);
        }
    }
}

#[test]
fn messages_of_a_peer_without_an_entry_are_not_measured() {
    let mut selections = ProtocolSelections::new([PeerSelection::default(); PEERS]);
    let other = 3 + PEERS as PeerId;
    assert_eq!(selections.begin(3, plain(64 << 10), 0, 0), Some(Protocol::ALL[0]));
    assert_eq!(selections.begin(other, plain(64 << 10), 0, 0), None);
    assert!(selections.of(other).is_none());
    selections.of(3).unwrap().end(64 << 10, Protocol::ALL[0], 10);
    assert_eq!(selections.begin(other, plain(64 << 10), 20, 0), Some(Protocol::ALL[0]));
    assert!(selections.of(3).is_none());
}

/// Whether the sender's help pays off for larger messages is learned; what is known of streams does not count there.
#[test]
fn large_messages_learn_whether_the_sender_should_help() {
    for [helped, alone] in [[120_000_000, 60_000_000], [60_000_000, 120_000_000]] {
        let mut machine = ProtocolMachine::new(9000, 3000);
        machine.one_by_one(100, 2 << 20);
        machine.ticks = [helped, helped, alone];
        let before = machine.now;
        machine.one_by_one(1000, 1 << 30);
        let taken = machine.now - before - 1000 * 7_777_777;
        assert!(taken < 63_000_000 * 1000, "{taken} ticks");
    }
}
