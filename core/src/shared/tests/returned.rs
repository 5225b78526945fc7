//! Cells that are returned with the answer, and the copy policies for cells.

use crate::port::ShortPath as _;
use std::vec;
use std::vec::Vec;

use super::fabric::{Fabric, TestPort, tiny};
use super::port::{collected, send, take};
use super::{Rng, contents};
use crate::port::{PacketPort, PeerId, Stores};
use crate::shared::fastbox::FastboxSender;
use crate::shared::port::PacketPlace;
use crate::shared::tests::fabric::WorldShape;
use crate::wire::{Envelope, Kind};

/// Sends a message by the critical path, if that path accepts it. Returns whether it did.
pub(super) fn send_copy(port: &mut TestPort<'_>, to: PeerId, tag: u64, len: usize) -> bool {
    port.send_copy(to, 5, tag, &contents(tag, len)).is_some()
}

/// Takes the next message and returns its cell.
fn take_from_cell(port: &mut TestPort<'_>) -> u32 {
    let crate::port::Polled::Packet(arrival) = port.poll() else { panic!("no packet has arrived") };
    let PacketPlace::Announced(cell) = arrival.token else { panic!("{arrival:?}") };
    let mut bytes = vec![0; arrival.len];
    assert!(port.read(&arrival, 0, &mut bytes));
    assert_eq!(bytes, contents(arrival.envelope.tag, arrival.len));
    port.release(arrival);
    cell
}

#[test]
fn a_ping_pong_uses_one_cell_each() {
    let fabric = Fabric::new(WorldShape { cells: 16, cell_bytes: 512, fastbox_slots: 64, ..tiny(2) });
    let (mut zero, mut one) = (fabric.port(0), fabric.port(1));
    let mut used = [[0; 16]; 2];
    for turn in 0..1000 {
        // At the end of a lap of the fastbox the critical path refuses the message.
        assert!(send_copy(&mut zero, 1, turn, 450) || send(&mut zero, 1, turn, 450));
        used[0][take_from_cell(&mut one) as usize] += 1;
        assert!(send_copy(&mut one, 0, turn, 400) || send(&mut one, 0, turn, 400));
        used[1][take_from_cell(&mut zero) as usize] += 1;
    }
    for used in &mut used {
        used.sort_unstable();
        assert!(used[15] > 100 && used[..8].iter().sum::<u32>() == 0, "{used:?}");
    }
    for port in [&mut zero, &mut one] {
        assert_eq!(take(port, 1), None);
    }
    collected(&mut zero);
    collected(&mut one);
    assert_eq!((zero.free_cells(), one.free_cells()), (16, 16));
}

#[test]
fn a_ping_pong_with_write_prefetch_uses_two_cells_each() {
    let geometry = WorldShape { cells: 16, cell_bytes: 4096, fastbox_slots: 64, ..tiny(2) };
    let fabric = Fabric::storing(geometry, Some(Stores::Prefetched));
    let (mut zero, mut one) = (fabric.port(0), fabric.port(1));
    let mut used = vec![];
    for turn in 0..1000 {
        assert!(send_copy(&mut zero, 1, turn, 4000) || send(&mut zero, 1, turn, 4000));
        (0..10).for_each(|_| zero.pause());
        used.push(take_from_cell(&mut one));
        assert!(send_copy(&mut one, 0, turn, 3000) || send(&mut one, 0, turn, 3000));
        one.pause();
        take_from_cell(&mut zero);
    }
    // At the end of a lap of the fastbox a cell takes another path.
    let again = used.windows(3).filter(|three| three[0] == three[2] && three[0] != three[1]).count();
    assert!(again > 900, "{again} of {used:?}");
}

/// Returns the bytes of a cell of rank 0 that start its lines.
fn line_starts(fabric: &Fabric, cell: usize) -> Vec<u8> {
    let geometry = fabric.geometry;
    let at = geometry.own().payload + cell * geometry.cell_bytes as usize;
    let bytes = fabric.own(0).payload(at, geometry.cell_bytes as usize).as_read();
    let start = |line: usize| {
        let mut byte = [0];
        assert!(bytes.read(64 * line, &mut byte));
        byte[0]
    };
    (0..geometry.cell_bytes as usize / 64).map(start).collect()
}

#[test]
fn only_lines_of_the_next_cell_are_prefetched_a_few_at_a_time() {
    let geometry = WorldShape { cells: 8, cell_bytes: 4096, fastbox_slots: 64, ..tiny(2) };
    let fabric = Fabric::storing(geometry, Some(Stores::Prefetched));
    let payload = fabric.own(0).payload(geometry.own().payload, 8 * 4096);
    assert!(payload.write(0, &[7; 8 * 4096]));
    let mut zero = fabric.port(0);
    let all = |cell, taken: usize| {
        assert_eq!(line_starts(&fabric, cell), [vec![0; taken], vec![7; 64 - taken]].concat(), "cell {cell}");
    };
    assert!(zero.send_copy(1, 5, 9, &[7; 3000]).is_some());
    all(1, 32);
    assert_eq!(take(&mut zero, 1), None);
    all(1, 47);
    (0..10).for_each(|_| zero.pause());
    for (cell, taken) in [(0, 0), (1, 47), (2, 0), (3, 0)] {
        all(cell, taken);
    }
    // Bytes that were sent since are not changed.
    assert!(zero.send_copy(1, 5, 9, &[7; 2000]).is_some());
    assert!(zero.send_copy(1, 5, 9, &[7; 600]).is_some());
    (0..10).for_each(|_| zero.pause());
    for (cell, taken) in [(0, 0), (3, 10)] {
        all(cell, taken);
    }
    assert_eq!(line_starts(&fabric, 1)[..31], [7; 31]);
}

#[test]
fn only_the_last_cell_waits_for_an_answer_and_only_until_a_poll_finds_nothing() {
    let fabric = Fabric::new(WorldShape { cells: 16, fastbox_slots: 16, ..tiny(3) });
    let (mut zero, mut one, mut two) = (fabric.port(0), fabric.port(1), fabric.port(2));
    for turn in 0..3 {
        assert!(send_copy(&mut zero, 1, turn, 200) && send_copy(&mut two, 1, turn, 200));
    }
    for _ in 0..6 {
        take_from_cell(&mut one);
    }
    collected(&mut zero);
    collected(&mut two);
    assert_eq!(zero.free_cells() + two.free_cells(), 31, "the release of the last cell is deferred");
    assert_eq!(take(&mut one, 1), None);
    collected(&mut zero);
    collected(&mut two);
    assert_eq!((zero.free_cells(), two.free_cells()), (16, 16));
}

#[test]
fn with_few_cells_no_release_is_deferred() {
    let fabric = Fabric::new(tiny(3));
    let (mut zero, mut one) = (fabric.port(0), fabric.port(1));
    assert!(send_copy(&mut zero, 1, 1, 200));
    take_from_cell(&mut one);
    collected(&mut zero);
    assert_eq!(zero.free_cells(), 4);
}

#[test]
fn a_deferred_release_to_a_failed_peer_is_dropped() {
    let fabric = Fabric::new(tiny(2));
    let (mut zero, mut one) = (fabric.port(0), fabric.port(1));
    assert!(send_copy(&mut zero, 1, 1, 200));
    take_from_cell(&mut one);
    one.close(0);
    fabric.wipe(0);
    assert!(one.open(0, fabric.link(1, 0)));
    let mut zero = fabric.port(0);
    assert!(send_copy(&mut one, 0, 2, 200), "the announcement returns no cell");
    take_from_cell(&mut zero);
    assert_eq!(zero.free_cells(), 4);
    assert!(send_copy(&mut zero, 1, 3, 200));
    take_from_cell(&mut one);
}

/// A peer that returns a cell twice, or one that it does not hold, or that does not exist, has no effect.
#[test]
fn cells_that_the_peer_does_not_hold_are_not_returned() {
    for back in [0, 1, 3, 4, 0x1_0000, u32::MAX - 1, u32::MAX] {
        let fabric = Fabric::new(tiny(2));
        let mut one = fabric.port(1);
        let mut announcer = FastboxSender::new(fabric.fastbox(0, 1), fabric.ack(1, 0));
        let envelope = Envelope { kind: Kind::Eager, context: 5, tag: 1, total: 9 };
        for turn in 1..1000 {
            assert_eq!(announcer.announce(turn, &envelope, 2, Some(back)), Ok(true));
            let crate::port::Polled::Packet(arrival) = one.poll() else { panic!("no packet has arrived") };
            one.release(arrival);
            assert_eq!(one.free_cells(), 4, "{back} was free");
        }
        // A cell that the peer holds is returned once.
        assert!(send_copy(&mut one, 0, 2, 100));
        let held = (0..4).map(|cell| {
            let turn = 1000 + u64::from(cell);
            assert_eq!(announcer.announce(turn, &envelope, 2, Some(cell)), Ok(true));
            let crate::port::Polled::Packet(arrival) = one.poll() else { panic!("no packet has arrived") };
            one.release(arrival);
            one.free_cells()
        });
        assert_eq!(held.last(), Some(4));
        assert_eq!(one.traffic(0).cells_sent.count, 1);
    }
}

#[test]
fn a_cell_arrives_whole_whatever_the_copy_policy() {
    let geometry = WorldShape { peers: 2, cells: 8, cell_bytes: 4096, fastbox_slots: 8 };
    let mut rng = Rng::new(7);
    for stores in [None, Some(Stores::Cached), Some(Stores::Prefetched), Some(Stores::NonTemporal)] {
        let fabric = Fabric::storing(geometry, stores);
        let (mut zero, mut one) = (fabric.port(0), fabric.port(1));
        for turn in 0..500 {
            let len = 257 + rng.below(4096 - 256);
            let sent = send_copy(&mut zero, 1, turn, len) || send(&mut zero, 1, turn, len);
            assert!(sent);
            zero.pause();
            assert_eq!(take(&mut one, 1), Some((0, turn)));
        }
        let wanted = if stores == Some(Stores::NonTemporal) { 500 } else { 0 };
        assert_eq!(zero.traffic(1).non_temporal, wanted, "{stores:?}");
    }
}

/// Between distant cores, and near ones of some processors, a cell that its receiver has just read is filled at half
/// the speed.
#[test]
fn large_cells_are_used_in_turn_however_they_are_returned() {
    let fabric = Fabric::new(WorldShape { cells: 16, cell_bytes: 8192, ..tiny(2) });
    let (mut zero, mut one) = (fabric.port(0), fabric.port(1));
    let mut used = vec![];
    for turn in 0..64 {
        assert!(send_copy(&mut zero, 1, turn, 8000) || send(&mut zero, 1, turn, 8000));
        used.push(take_from_cell(&mut one));
    }
    for (at, cell) in used.iter().enumerate().skip(16) {
        assert!(!used[at - 12..at].contains(cell), "{cell} again at {at}: {used:?}");
    }
}

#[test]
fn pages_that_were_never_used_are_filled_by_plain_stores() {
    let fabric =
        Fabric::storing(WorldShape { cells: 8, cell_bytes: 16384, ..tiny(2) }, Some(Stores::NonTemporal));
    let (mut zero, mut one) = (fabric.port(0), fabric.port(1));
    // Cells are used in turn. Each line: the bytes of the messages of a lap, and how many are past the caches.
    for (lap, (len, past)) in
        [(4096, 0), (4000, 8), (4096, 8), (9000, 0), (12_000, 8), (12_289, 0)].into_iter().enumerate()
    {
        let before = zero.traffic(1).non_temporal;
        for turn in 0..8 {
            let tag = (8 * lap + turn) as u64;
            assert!(send_copy(&mut zero, 1, tag, len) || send(&mut zero, 1, tag, len));
            assert_eq!(take(&mut one, 1), Some((0, tag)));
        }
        assert_eq!(zero.traffic(1).non_temporal - before, past, "lap {lap}");
    }
}

/// Two peers fill cells with the same number. The pace of the copy out of one is not reported of the other.
#[test]
fn the_pace_of_a_copy_is_returned_to_the_peer_whose_cell_was_read() {
    let fabric = Fabric::new(WorldShape { cells: 16, cell_bytes: 8192, ..tiny(3) });
    fabric.with_memory(|memory| memory.clock = Some(1));
    let (mut zero, mut one, mut two) = (fabric.port(0), fabric.port(1), fabric.port(2));
    assert!(send_copy(&mut zero, 2, 1, 8000) && send_copy(&mut one, 2, 2, 8000));
    let mut packets = vec![];
    while packets.len() < 2 {
        if let crate::port::Polled::Packet(arrival) = two.poll() {
            let PacketPlace::Announced(cell) = arrival.token else { panic!("{arrival:?}") };
            assert!(two.read(&arrival, 0, &mut [0; 8000]));
            let [other, own] = [1 - arrival.peer, arrival.peer].map(|peer| two.entry_of(peer, cell));
            assert_eq!(other, cell);
            assert!(own > cell, "the cell is among those that are measured");
            packets.push(arrival.peer);
            two.release(arrival);
        }
    }
}
