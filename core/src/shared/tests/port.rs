//! Shared-memory ports of ranks that all run in this thread.

use crate::port::PacketPieces;
use crate::port::ShortPath as _;
use std::collections::VecDeque;
use std::vec;
use std::vec::Vec;

use super::fabric::{Fabric, FabricRegion, Reading, TestPort, tiny};
use super::{Rng, contents, portion};
use crate::payload::{BOUNCE, RecvBuf, Scatter};
use crate::port::{
    AccessError, Accessed, Arrival, PacketPort, PeerFault, PeerId, Polled, PortFault, RemoteAccess,
};
use crate::shared::fastbox::max_payload;
use crate::shared::port::PacketPlace;
use crate::shared::sleep::{Payer, Sleep};
use crate::shared::tests::fabric::WorldShape;
use crate::wire::mappable::MappableBytes;
use crate::wire::rendezvous::Descriptor;
use crate::wire::{Envelope, Kind};

pub(super) fn eager(tag: u64, len: usize) -> Envelope {
    Envelope { kind: Kind::Eager, context: 5, tag, total: len as u64 }
}

/// Sends a whole message whose content depends on its tag. Returns `false` if there is no space.
pub(super) fn send(port: &mut TestPort<'_>, to: PeerId, tag: u64, len: usize) -> bool {
    port.send(to, &eager(tag, len), PacketPieces::Whole(&contents(tag, len))).unwrap()
}

/// Polls until a packet arrives; `None` after `polls` polls.
fn next(port: &mut TestPort<'_>, polls: usize) -> Option<Arrival<PacketPlace>> {
    (0..polls).find_map(|_| match port.poll() {
        Polled::Packet(arrival) => Some(arrival),
        Polled::Idle => None,
        Polled::Fault(fault) => panic!("{fault}"),
    })
}

/// Takes the next packet, checks its content, and returns its sender and tag.
pub(super) fn take(port: &mut TestPort<'_>, polls: usize) -> Option<(PeerId, u64)> {
    let arrival = next(port, polls)?;
    let mut bytes = vec![0xee; arrival.len];
    assert!(port.read(&arrival, 0, &mut bytes));
    assert_eq!(bytes, contents(arrival.envelope.tag, arrival.len));
    let (peer, tag) = (arrival.peer, arrival.envelope.tag);
    port.release(arrival);
    Some((peer, tag))
}

/// Collects the cells that the peers of a port have returned, so that its free cells can be counted.
pub(crate) fn collected(port: &mut TestPort<'_>) {
    port.collect_all().unwrap();
}

fn first_fault(port: &mut TestPort<'_>) -> PeerFault {
    let fault = (0..20_000).find_map(|_| match port.poll() {
        Polled::Fault(fault) => Some(fault),
        Polled::Packet(arrival) => panic!("{arrival:?}"),
        Polled::Idle => None,
    });
    fault.unwrap()
}

#[test]
fn packets_of_both_paths_arrive_in_the_order_sent() {
    let geometry = WorldShape { peers: 2, cells: 16, cell_bytes: 256, fastbox_slots: 8 };
    for fabric in [Fabric::new(geometry), Fabric::queueing(geometry)] {
        let (mut zero, mut one) = (fabric.port(0), fabric.port(1));
        let sizes = [8, 200, 0, 256, 104, 105, 48, 49, 1];
        for (tag, len) in (0..).zip(sizes) {
            assert!(send(&mut zero, 1, tag, len), "{len} bytes");
        }
        for tag in 0..sizes.len() as u64 {
            assert_eq!(take(&mut one, 1), Some((0, tag)));
        }
        assert_eq!(take(&mut one, 5000), None);
    }
}

#[test]
fn exposed_memory_fills_a_whole_cell() {
    let fabric =
        Fabric::new(WorldShape { peers: 2, cells: 4, cell_bytes: 4 * BOUNCE as u32, fastbox_slots: 4 });
    let (mut zero, mut one) = (fabric.port(0), fabric.port(1));
    assert_eq!(zero.packet_bytes(), 4 * BOUNCE);
    for (tag, len) in [3, 200, BOUNCE, BOUNCE + 1, 4 * BOUNCE].into_iter().enumerate() {
        let region = FabricRegion::new(5 * BOUNCE);
        let (tag, at) = (tag as u64, 64);
        let mut memory = region.exposed();
        assert!(memory.write(at, &contents(tag, len)));
        assert!(
            zero.send(1, &eager(tag, len), PacketPieces::Exposed(&memory, at, len)).unwrap(),
            "{len} bytes"
        );
        assert_eq!(take(&mut one, 1), Some((0, tag)));
    }
}

#[test]
fn announced_cells_leave_the_queue_alone_until_the_fastbox_is_full() {
    let fabric = Fabric::new(tiny(2));
    let (mut zero, mut one) = (fabric.port(0), fabric.port(1));
    let queued = || fabric.queue(1).0.iter().filter(|entry| entry.load_relaxed() != 0).count();
    for tag in 0..2 {
        assert!(send(&mut zero, 1, tag, 100));
    }
    assert_eq!(queued(), 0);
    for tag in 2..4 {
        assert!(send(&mut zero, 1, tag, 8));
    }
    assert!(send(&mut zero, 1, 4, 100));
    assert_eq!(queued(), 1, "the fastbox has four slots");
    for tag in 0..5 {
        assert_eq!(take(&mut one, 1), Some((0, tag)));
    }
    assert!(send(&mut zero, 1, 5, 100));
    assert_eq!((queued(), take(&mut one, 1)), (1, Some((0, 5))));
    assert_eq!(take(&mut one, 1), None);
    collected(&mut zero);
    assert_eq!(zero.free_cells(), 4);
}

#[test]
fn announcement_of_a_packet_that_no_cell_holds_is_a_fault() {
    for (cell, len) in [(4u64, 8u64), (u64::from(u32::MAX), 0), (0, 257), (3, u64::from(u32::MAX))] {
        let fabric = Fabric::new(tiny(2));
        let (mut zero, mut one) = (fabric.port(0), fabric.port(1));
        assert!(send(&mut zero, 1, 7, 100));
        // Words 1 and 2 of the slot are the tag, and the cell with its length.
        fabric.fastbox_words(0, 1)[2].store_relaxed(cell | len << 32);
        let fault = first_fault(&mut one);
        assert_eq!(fault, PeerFault { peer: 0, fault: PortFault::Malformed { cell: cell as u32 } });
    }
}

/// Random traffic between all pairs, checked against a list for each pair.
fn traffic(seed: u64) {
    let mut rng = Rng::new(seed);
    let peers = rng.pick(&[2, 3, 4, 11]);
    let (cells, fastbox_slots) = (rng.pick(&[4, 16]), rng.pick(&[4, 16]));
    let geometry = WorldShape { peers, cells, cell_bytes: 256, fastbox_slots };
    let fabric = if rng.one_in(2) { Fabric::new(geometry) } else { Fabric::queueing(geometry) };
    let mut ports: Vec<_> = (0..peers).map(|rank| fabric.port(rank)).collect();
    let mut between = vec![vec![VecDeque::new(); peers as usize]; peers as usize];
    let mut tag = 0;
    for step in 0..4000 {
        let (from, to) = (rng.below(peers as usize), rng.below(peers as usize));
        let draining = step > 3000;
        match rng.below(8) {
            0..=2 if from != to && !draining => {
                tag += 1;
                let len = if rng.one_in(2) { rng.below(49) } else { rng.below(257) };
                if send(&mut ports[from], to as PeerId, tag, len) {
                    between[from][to].push_back(tag);
                }
            }
            3 if from != to => ports[to].prioritize(from as PeerId),
            _ => {
                let Some((from, tag)) = take(&mut ports[to], 1) else { continue };
                assert_eq!(between[from as usize][to].pop_front(), Some(tag), "seed {seed}");
            }
        }
    }
    for (to, port) in ports.iter_mut().enumerate() {
        while let Some((from, tag)) = take(port, 2000 * peers as usize) {
            assert_eq!(between[from as usize][to].pop_front(), Some(tag), "seed {seed}");
        }
        assert!(!port.inbox_damaged(), "seed {seed}");
    }
    assert!(between.iter().flatten().all(VecDeque::is_empty), "seed {seed}: lost packets");
    for port in &mut ports {
        collected(port);
        assert_eq!(port.free_cells(), cells as usize, "seed {seed}: lost cells");
    }
}

#[test]
fn random_traffic_arrives_complete_and_in_order() {
    for seed in 0..portion(60) {
        traffic(seed);
    }
}

#[test]
fn packet_whose_entry_was_lost_is_found_by_a_scan() {
    let fabric = Fabric::queueing(tiny(3));
    let (mut zero, mut one) = (fabric.port(0), fabric.port(1));
    for tag in 0..2 {
        assert!(send(&mut zero, 1, tag, 100));
    }
    for entry in fabric.queue(1).0 {
        entry.store_relaxed(0);
    }
    assert_eq!(take(&mut one, 100), None);
    one.sweep_all();
    for tag in 0..2 {
        assert_eq!(take(&mut one, 10), Some((0, tag)));
    }
}

#[test]
fn packet_whose_entry_was_lost_is_found_without_a_request() {
    let fabric = Fabric::queueing(tiny(3));
    let (mut zero, mut one) = (fabric.port(0), fabric.port(1));
    assert!(send(&mut zero, 1, 1, 100));
    fabric.queue(1).0[0].store_relaxed(0);
    assert_eq!(take(&mut one, 4 * 1024), Some((0, 1)));
}

#[test]
fn damaged_inbox_still_delivers_everything_in_order() {
    let fabric = Fabric::queueing(tiny(2));
    let (mut zero, mut one) = (fabric.port(0), fabric.port(1));
    fabric.queue(1).0[0].store_relaxed(9 << 32);
    for tag in 0..500 {
        assert!(send(&mut zero, 1, tag, if tag % 3 == 0 { 8 } else { 100 }));
        assert_eq!(take(&mut one, 10), Some((0, tag)));
    }
    assert!(one.inbox_damaged());
}

#[test]
fn forged_entries_do_no_harm() {
    for forged in [0, 1, 3, 4, 7, 8, 11, 12, 13, 1000, u32::MAX - 1, u32::MAX] {
        let fabric = Fabric::queueing(tiny(3));
        let (mut zero, mut one) = (fabric.port(0), fabric.port(1));
        assert!(send(&mut zero, 2, 99, 100), "a cell for another rank than 1");
        for tag in 0..3 {
            assert!(send(&mut zero, 1, tag, if tag == 1 { 8 } else { 100 }));
        }
        // Before everything else, in place of the valid entry.
        fabric.queue(1).0[0].store_relaxed(1 << 32 | u64::from(forged));
        for tag in 0..3 {
            assert_eq!(take(&mut one, 4 * 1024), Some((0, tag)), "forged entry {forged}");
        }
    }
}

#[test]
fn slow_peers_leave_cells_for_the_others() {
    let fabric = Fabric::new(tiny(4));
    let (mut zero, mut three) = (fabric.port(0), fabric.port(3));
    let mut taken = |slow| (0..10).filter(|&tag| send(&mut zero, slow, tag, 100)).count();
    assert_eq!((taken(1), taken(2)), (2, 1));
    for tag in 0..10 {
        assert!(send(&mut zero, 3, tag, 100));
        assert_eq!(take(&mut three, 1), Some((0, tag)));
    }
}

#[test]
fn closed_peer_returns_its_cells_and_is_not_polled_any_more() {
    let fabric = Fabric::new(tiny(3));
    let (mut zero, mut one) = (fabric.port(0), fabric.port(1));
    for tag in 0..4 {
        send(&mut zero, 1, tag, 100);
        send(&mut one, 0, tag, if tag % 2 == 0 { 8 } else { 100 });
    }
    assert!(zero.free_cells() < 4);
    zero.close(1);
    zero.close(1);
    assert_eq!(zero.free_cells(), 4);
    assert!(take(&mut zero, 5000).is_none());
    assert!(!send(&mut zero, 1, 1, 8) && !send(&mut zero, 1, 1, 100));
    assert!(
        !send(&mut zero, 0, 1, 8) && !send(&mut zero, 7, 1, 8),
        "to this rank itself, and to a rank that does not exist"
    );
}

#[test]
fn limit_beyond_the_fastbox_is_no_fault_of_an_honest_sender() {
    let fabric = Fabric::new(WorldShape { peers: 2, cells: 4, cell_bytes: 1024, fastbox_slots: 16 });
    let (mut zero, mut one) = (fabric.port_with_limit(0, 4096), fabric.port(1));
    for (tag, len) in (0..).zip([max_payload(16), max_payload(16) + 1, 300, 500, 1000, 8]) {
        assert!(send(&mut zero, 1, tag, len));
        assert_eq!(take(&mut one, 1), Some((0, tag)), "{len} bytes");
    }
}

#[test]
fn cold_peer_is_polled_while_the_hot_ones_never_pause() {
    let fabric = Fabric::new(tiny(11));
    let mut ports: Vec<_> = (0..11).map(|rank| fabric.port(rank)).collect();
    for (cold, len) in [(10, 8), (9, 8)] {
        let (receiver, senders) = ports.split_first_mut().unwrap();
        assert!(send(&mut senders[cold - 1], 0, 77, len));
        let heard = (0..20_000).any(|turn| {
            // The eight peers that are hot at the start, and the queue, always have packets.
            let len = if turn % 2 == 0 { 8 } else { 100 };
            for sender in &mut senders[..8] {
                send(sender, 0, 5, len);
            }
            take(receiver, 1) == Some((cold as PeerId, 77))
        });
        assert!(heard, "rank {cold} starves");
    }
}

#[test]
fn queue_is_polled_while_a_fastbox_never_pauses_and_vice_versa() {
    for (busy, rare) in [(8, 100), (100, 8)] {
        let fabric = Fabric::new(tiny(3));
        let (mut zero, mut one, mut two) = (fabric.port(0), fabric.port(1), fabric.port(2));
        while send(&mut one, 0, 5, busy) {}
        assert!(send(&mut two, 0, 77, rare));
        let heard = (0..1000).any(|_| {
            while send(&mut one, 0, 5, busy) {}
            take(&mut zero, 1) == Some((2, 77))
        });
        assert!(heard, "a message of {rare} bytes starves");
    }
}

/// The function by which the receiver takes packets.
type TakeCall = fn(&mut TestPort<'_>) -> Option<PeerId>;

fn by_polling(port: &mut TestPort<'_>) -> Option<PeerId> {
    take(port, 1).map(|(peer, _)| peer)
}

/// Takes packets as the engine does for a receive from any source: first short messages, then other packets by polling.
fn by_short_messages(port: &mut TestPort<'_>) -> Option<PeerId> {
    let Some((peer, _, _, ended)) = port.take_short(None, 5, |_| true, &mut [0; 16]) else {
        return by_polling(port);
    };
    if ended {
        port.settle_take(peer);
    }
    Some(peer)
}

/// Returns the senders of 4000 packets of eight bytes that rank 0 takes. Each of `senders` ranks has a hundred
/// packets in flight, which fit.
fn order_of(senders: u32, way: TakeCall) -> Vec<PeerId> {
    let fabric = Fabric::new(WorldShape { peers: 5, cells: 8, cell_bytes: 256, fastbox_slots: 256 });
    let mut ports: Vec<_> = (0..5).map(|rank| fabric.port(rank)).collect();
    let (receiver, others) = ports.split_first_mut().unwrap();
    let others = &mut others[..senders as usize];
    others.iter_mut().for_each(|sender| assert!((0..100).all(|_| send(sender, 0, 3, 8))));
    let mut order = vec![];
    while order.len() < 4000 {
        if let Some(peer) = way(receiver) {
            assert!(send(&mut others[peer as usize - 1], 0, 3, 8));
            order.push(peer);
        }
    }
    order
}

#[test]
fn peers_that_are_ready_together_get_short_bursts() {
    for way in [by_polling as TakeCall, by_short_messages] {
        for senders in 2..=4 {
            let order = order_of(senders, way);
            // No other peer was known to have packets when the first burst began.
            let runs: Vec<_> = order.chunk_by(|a, b| a == b).map(<[_]>::len).skip(1).collect();
            assert!(runs.iter().all(|&run| run <= 32), "{senders} senders: {runs:?}");
            for peer in 1..=senders {
                let share = order.iter().filter(|&&it| it == peer).count();
                let fair = order.len() / senders as usize;
                assert!(share > fair / 2, "{senders} senders: {share} of {} from {peer}", order.len());
            }
        }
    }
}

#[test]
fn a_peer_that_becomes_ready_waits_for_one_long_burst_and_then_for_short_ones() {
    for way in [by_polling as TakeCall, by_short_messages] {
        let fabric = Fabric::new(WorldShape { peers: 3, cells: 8, cell_bytes: 256, fastbox_slots: 1024 });
        let (mut zero, mut one, mut two) = (fabric.port(0), fabric.port(1), fabric.port(2));
        // The first peer is alone for long, and then at any position in its burst.
        for alone in [0, 1, 100, 1000, 1001] {
            for _ in 0..alone {
                while send(&mut one, 0, 3, 8) {}
                assert_eq!(way(&mut zero), Some(1));
            }
            let mut waited = vec![];
            for tag in 0..4 {
                assert!(send(&mut two, 0, tag, 8));
                let before = (0..1000).position(|_| {
                    while send(&mut one, 0, 3, 8) {}
                    (0..2).find_map(|_| way(&mut zero)) == Some(2)
                });
                waited.push(before.unwrap());
            }
            assert!(waited[0] <= 2 * 128 && waited[1..].iter().all(|&it| it <= 32), "{alone}: {waited:?}");
            // The peer is idle long enough to become cold.
            for _ in 0..300 {
                while send(&mut one, 0, 3, 8) {}
                way(&mut zero);
            }
        }
    }
}

#[test]
fn sender_wakes_a_sleeper_and_only_a_sleeper() {
    let fabric = Fabric::new(tiny(2));
    let (mut zero, mut one) = (fabric.port(0), fabric.port(1));
    for len in [8, 100] {
        assert!(send(&mut zero, 1, 1, len));
        assert!(zero.host_mut().rung.is_empty());
        take(&mut one, 1).unwrap();
        fabric.sleep(1).announce(Sleep::Futex);
        assert!(send(&mut zero, 1, 2, len) && send(&mut zero, 1, 3, len));
        assert_eq!(core::mem::take(&mut zero.host_mut().rung), [1], "{len} bytes");
        take(&mut one, 1).unwrap();
        take(&mut one, 1).unwrap();
        collected(&mut zero);
    }
}

#[test]
fn sleeper_that_needs_two_messages_is_woken_by_the_second_unless_its_sender_is_stuck() {
    let fabric = Fabric::new(tiny(2));
    let (mut zero, mut one) = (fabric.port(0), fabric.port(1));
    for len in [8, 100] {
        fabric.sleep(1).announce_for(Sleep::Futex, 2, Payer::Sleeper);
        assert!(send(&mut zero, 1, 1, len));
        assert!(core::mem::take(&mut zero.host_mut().rung).is_empty(), "{len} bytes");
        assert!(send(&mut zero, 1, 2, len));
        assert_eq!(core::mem::take(&mut zero.host_mut().rung), [1]);
        zero.wake_counted();
        assert!(core::mem::take(&mut zero.host_mut().rung).is_empty(), "the peer does not sleep");
        fabric.sleep(1).announce_for(Sleep::Futex, 2, Payer::Sleeper);
        zero.wake_counted();
        assert!(core::mem::take(&mut zero.host_mut().rung).is_empty(), "nothing was sent to the peer");
        assert!(send(&mut zero, 1, 3, len));
        zero.wake_counted();
        assert_eq!(core::mem::take(&mut zero.host_mut().rung), [1]);
        for _ in 0..3 {
            take(&mut one, 1).unwrap();
        }
        collected(&mut zero);
    }
}

#[test]
fn sender_that_sleeps_for_room_is_woken_when_there_is_room() {
    for len in [8, 100] {
        let fabric = Fabric::new(tiny(2));
        let (mut zero, mut one) = (fabric.port(0), fabric.port(1));
        while send(&mut zero, 1, 1, len) {}
        fabric.sleep(0).announce(Sleep::Futex);
        // Half of the fastbox.
        for _ in 0..2 {
            take(&mut one, 1).unwrap();
        }
        assert_eq!(one.host_mut().rung, [0]);
        assert!(send(&mut zero, 1, 1, len));
    }
}

/// The smallest number of cells with which the port defers releases.
const DEFERRING: WorldShape = WorldShape { peers: 2, cells: 8, cell_bytes: 256, fastbox_slots: 8 };

#[test]
fn sleeper_that_needs_messages_is_woken_by_an_answer_that_returns_a_cell() {
    let fabric = Fabric::new(DEFERRING);
    let (mut zero, mut one) = (fabric.port(0), fabric.port(1));
    for with_cell in [false, true] {
        if with_cell {
            assert!(send(&mut zero, 1, 1, 100));
            assert_eq!(take(&mut one, 1), Some((0, 1)));
        }
        // The sleeper may have more to send than there are cells, and may need all answers before it continues.
        fabric.sleep(0).announce_for(Sleep::Futex, 2, Payer::Sleeper);
        let unsettled = one.send_copy(0, 5, 2, &contents(2, 100)).unwrap();
        if unsettled {
            one.settle_send(0);
        }
        assert_eq!(one.host_mut().rung.len(), usize::from(with_cell));
        assert_eq!(take(&mut zero, 1), Some((1, 2)));
    }
    assert_eq!(zero.free_cells(), 8, "the cell was returned with the answer");
}

#[test]
fn sender_that_sleeps_for_room_in_the_fastbox_is_woken_when_a_cell_is_read_and_kept_for_an_answer() {
    let fabric = Fabric::new(DEFERRING);
    let (mut zero, mut one) = (fabric.port(0), fabric.port(1));
    // The position is reported with the last of these packets.
    for len in [8, 8, 8, 100] {
        assert!(send(&mut zero, 1, 1, len));
    }
    fabric.sleep(0).announce(Sleep::Futex);
    for _ in 0..4 {
        assert!(one.host_mut().rung.is_empty());
        take(&mut one, 1).unwrap();
    }
    assert_eq!(one.host_mut().rung, [0]);
}

/// A process that always has packets to receive never has an idle poll.
#[test]
fn a_cell_that_was_read_is_returned_although_messages_keep_arriving() {
    let fabric = Fabric::new(WorldShape { peers: 3, cells: 16, cell_bytes: 256, fastbox_slots: 8 });
    let (mut zero, mut one, mut two) = (fabric.port(0), fabric.port(1), fabric.port(2));
    assert!(send(&mut zero, 1, 0, 100));
    assert_eq!(take(&mut one, 100), Some((0, 0)));
    for tag in 0..1000 {
        assert!(send(&mut two, 1, tag, 8));
        assert_eq!(take(&mut one, 1), Some((2, tag)));
    }
    collected(&mut zero);
    assert_eq!(zero.free_cells(), 16);
}

#[test]
fn grant_is_seen_by_its_peer_alone_and_wakes_it() {
    let fabric = Fabric::new(tiny(3));
    let (mut zero, one, mut two) = (fabric.port(0), fabric.port(1), fabric.port(2));
    assert_eq!((one.granted(0), two.granted(0)), (0, 0));
    zero.grant(1, 77);
    assert!(zero.host_mut().rung.is_empty());
    assert_eq!((one.granted(0), two.granted(0), zero.granted(1)), (77, 0, 0));
    fabric.sleep(2).announce(Sleep::Futex);
    zero.grant(2, u64::MAX);
    assert_eq!(zero.host_mut().rung, [2]);
    assert_eq!((one.granted(0), two.granted(0)), (77, u64::MAX));
    assert!(send(&mut two, 0, 1, 8));
    assert_eq!(take(&mut zero, 100), Some((2, 1)));
    assert_eq!(two.granted(0), u64::MAX, "the position in the same line has moved");
    zero.close(1);
    zero.grant(1, 78);
    zero.grant(0, 1);
    zero.grant(7, 1);
    assert_eq!((one.granted(0), zero.granted(1), zero.granted(0), zero.granted(7)), (77, 0, 0, 0));
}

#[test]
fn fault_names_the_violation_of_the_peer() {
    let gap = PeerFault { peer: 1, fault: PortFault::Gap { expected: 1 } };
    let malformed = PeerFault { peer: 1, fault: PortFault::Malformed { cell: 2 } };
    for (sequence, shape, expected) in
        [(2u64, 8 | 1 << 32, gap), (1, 257 | 1 << 32, malformed), (1, 8 | 12 << 32, malformed)]
    {
        let fabric = Fabric::new(tiny(3));
        let mut zero = fabric.port(0);
        let words = fabric.cell_words(1, 2);
        words[1].store_relaxed(shape);
        words[0].store_relaxed(sequence << 16);
        fabric.queue(0).0[0].store_relaxed(1 << 32 | (4 + 2));
        assert_eq!(first_fault(&mut zero), expected);
    }
}

#[test]
fn packet_of_the_past_in_a_fastbox_is_a_fault() {
    let fabric = Fabric::new(tiny(2));
    let mut zero = fabric.port(0);
    let slot = fabric.link_segment(1, 0).word(fabric.geometry.link().fastbox);
    slot.store_relaxed(1 << 32 | 1 << 40 | 0xfff0 << 48);
    assert_eq!(first_fault(&mut zero), PeerFault { peer: 1, fault: PortFault::Gap { expected: 1 } });
}

#[test]
fn cell_given_back_that_was_never_lent_is_a_fault_of_the_giver() {
    let fabric = Fabric::new(tiny(3));
    let mut zero = fabric.port(0);
    assert!(send(&mut zero, 1, 1, 100) && send(&mut zero, 2, 1, 100));
    // Rank 2 returns the cell that rank 1 holds.
    let at = fabric.geometry.link().returns;
    fabric.link_segment(2, 0).word(at).store_relaxed(1 << 16);
    let fault = zero.send(2, &eager(2, 100), PacketPieces::Whole(&contents(2, 100))).unwrap_err();
    assert_eq!(fault.peer, 2);
    assert!(matches!(fault.fault, PortFault::Return(it) if it.cell == 0), "{fault}");
}

#[test]
fn forged_descriptions_of_mappable_bytes_give_no_bytes() {
    let fabric = Fabric::reading(tiny(2), Reading::Always, 1);
    fabric.with_memory(|memory| memory.mapping = Some(usize::MAX));
    let mut port = fabric.port(1);
    let forged = MappableBytes { address: 8, key: 1, offset: 1, len: 2, share: 3, writable: true };
    let mut random = Rng::new(7);
    for _ in 0..200 {
        let bytes = MappableBytes { address: random.next(), key: random.next(), ..forged };
        let descriptor = Descriptor::of_mappable(&bytes).unwrap();
        let mut to = [0; 64];
        // SAFETY: the array lives until the end of the loop, and nothing else uses it.
        let mut buf = Scatter::new(unsafe { RecvBuf::from_raw(to.as_mut_ptr(), to.len()) });
        buf.each_range(0, 64, |_, range| {
            let got = port.get(0, &descriptor, random.next(), range, 1);
            assert_eq!(got, Accessed::Failed(AccessError::Range));
        });
    }
}
