//! Cells of a sender that has closed its link.

use std::vec;

use super::fabric::{Fabric, TestPort, WorldShape, tiny};
use super::port::{send, take};
use crate::port::{PacketPort as _, PeerId, Polled};
use crate::shared::pool::ReturnSender;
use crate::shared::queue::{CellQueue, Producer};

const CELLS: usize = 16;
const LEN: usize = 500;

fn fabric() -> Fabric {
    Fabric::new(WorldShape { cells: CELLS as u32, cell_bytes: 512, fastbox_slots: 64, ..tiny(3) })
}

/// Sends three messages in cells, then closes the link, which leaves the peer its cells.
fn leave_three(port: &mut TestPort<'_>, to: PeerId) {
    let before = port.free_cells();
    for tag in 1..=3 {
        assert!(send(port, to, tag, LEN));
    }
    port.leave_cells(to);
    port.close(to);
    assert!(port.has_left_cells(to) && port.is_open(to), "its segments are in use");
    assert_eq!(port.free_cells(), before - 3);
}

#[test]
fn cells_that_were_left_are_read_and_come_back() {
    let fabric = fabric();
    let (mut zero, mut one) = (fabric.port(0), fabric.port(1));
    leave_three(&mut zero, 1);
    assert!(!zero.open(1, fabric.link(0, 1)), "the number is in use");
    for tag in 1..=3 {
        assert_eq!(take(&mut one, 4), Some((0, tag)));
    }
    // The release of the last one is deferred until a poll finds nothing.
    assert!(matches!(one.poll(), Polled::Idle));
    zero.collect_left_cells();
    assert_eq!((zero.free_cells(), zero.has_left_cells(1), zero.is_open(1)), (CELLS, false, false));
}

#[test]
fn cells_that_are_needed_are_taken_back_and_not_read() {
    let fabric = fabric();
    let (mut zero, mut one, mut two) = (fabric.port(0), fabric.port(1), fabric.port(2));
    assert!(send(&mut zero, 1, 9, LEN));
    let Polled::Packet(early) = one.poll() else { panic!("no packet has arrived") };
    leave_three(&mut zero, 1);
    let mut sent = 0;
    while send(&mut zero, 2, 100 + sent, LEN) {
        sent += 1;
    }
    assert!(!zero.has_left_cells(1), "{sent} messages took all cells");
    // It was found before, and is read too late.
    assert!(!one.read(&early, 0, &mut vec![0; early.len]));
    one.release(early);
    assert!(matches!(one.poll(), Polled::Idle), "the others are gone");
    for tag in 0..sent {
        assert_eq!(take(&mut two, 4), Some((0, 100 + tag)));
    }
}

#[test]
fn a_peer_that_closes_its_link_or_returns_other_cells_has_none_left() {
    let fabric = fabric();
    let (mut zero, mut one) = (fabric.port(0), fabric.port(1));
    leave_three(&mut zero, 1);
    zero.collect_left_cells();
    assert!(zero.has_left_cells(1));
    one.close(0);
    zero.collect_left_cells();
    assert_eq!((zero.free_cells(), zero.has_left_cells(1)), (CELLS, false));
    leave_three(&mut zero, 2);
    let mut returns = ReturnSender::new(fabric.returns(2, 0));
    (0..CELLS as u32).rev().for_each(|cell| returns.push(cell));
    zero.collect_left_cells();
    assert_eq!((zero.free_cells(), zero.has_left_cells(2)), (CELLS, false));
}

#[test]
fn inbox_that_was_overrun_by_outdated_entries_is_not_damaged() {
    for stale in [1, 3, 4, 5, 40] {
        let fabric = Fabric::queueing(tiny(3));
        let (mut zero, mut one) = (fabric.port(0), fabric.port(1));
        assert!(send(&mut zero, 1, 0, 100));
        let (entries, tail) = fabric.queue(1);
        // The cells are of a process that has taken them back.
        let mut gone = Producer::new(CellQueue::new(entries, tail));
        for _ in 0..stale * entries.len() / 4 {
            gone.push(2 * fabric.geometry.cells + 1).unwrap();
        }
        assert!(send(&mut zero, 1, 1, 100));
        for tag in 0..2 {
            assert_eq!(take(&mut one, 200), Some((0, tag)), "{stale} quarters of a lap");
        }
        // Entries lead to packets again: without a scan, each is found by the first polls.
        for tag in 2..20 {
            assert!(send(&mut zero, 1, tag, 100));
            assert_eq!(take(&mut one, 10), Some((0, tag)));
        }
        assert!(!one.inbox_damaged());
    }
}
