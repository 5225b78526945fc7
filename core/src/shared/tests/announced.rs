//! A peer that announces cells in violation of the protocol harms only itself.

use std::vec;
use std::vec::Vec;

use super::fabric::{Fabric, TestPort, tiny};
use super::port::{collected, send};
use crate::port::{PacketPort, PeerId, Polled};
use crate::shared::fastbox::FastboxSender;
use crate::shared::pool::{CellPool, CellRecord};
use crate::shared::queue::{CellQueue, Producer};
use crate::wire::{Envelope, Kind};

/// Bytes of each forged packet.
const LEN: usize = 200;

fn envelope(tag: u64) -> Envelope {
    Envelope { kind: Kind::Eager, context: 5, tag, total: LEN as u64 }
}

/// Takes the next packet. Returns its sender, its tag and its length.
fn take(port: &mut TestPort<'_>) -> Option<(PeerId, u64, usize)> {
    let arrival = (0..5000).find_map(|_| match port.poll() {
        Polled::Packet(arrival) => Some(arrival),
        Polled::Idle => None,
        Polled::Fault(fault) => panic!("{fault}"),
    })?;
    assert!(port.read(&arrival, 0, &mut vec![0; arrival.len]));
    let taken = (arrival.peer, arrival.envelope.tag, arrival.len);
    port.release(arrival);
    Some(taken)
}

/// Returns the cells of rank 0.
fn pool(fabric: &Fabric) -> CellPool<'_, Vec<CellRecord>> {
    let layout = fabric.geometry.own();
    let payload = fabric.own(0).payload(layout.payload, 4 * 256);
    let headers = fabric.own(0).view(layout.headers, 4);
    CellPool::new(headers, payload, 256, vec![CellRecord::default(); 4]).unwrap()
}

/// Rank 0 sends the same cell to rank 1 in every packet, either announced, or published and queued. Rank 2 is
/// honest.
fn one_cell_for_all(publishes: fn(u64) -> bool) {
    let fabric = Fabric::new(tiny(3));
    let (mut one, mut two) = (fabric.port(1), fabric.port(2));
    let mut announcer = FastboxSender::new(fabric.fastbox(0, 1), fabric.ack(1, 0));
    let (entries, tail) = fabric.queue(1);
    let mut producer = Producer::new(CellQueue::new(entries, tail));
    let pool = pool(&fabric);
    // More than the slots of the return ring, and more laps than one byte can count.
    for turn in 1..1500 {
        if publishes(turn) {
            pool.publish(3, 1, turn, &envelope(turn));
            producer.push(3).unwrap();
        } else {
            assert_eq!(announcer.announce(turn, &envelope(turn), 3, None), Ok(true));
        }
        assert_eq!(take(&mut one), Some((0, turn, LEN)));
        assert!(send(&mut two, 1, turn, 100) && send(&mut one, 2, turn, 100));
        assert_eq!((take(&mut one), take(&mut two)), (Some((2, turn, 100)), Some((1, turn, 100))));
    }
    assert_eq!(take(&mut one), None);
    collected(&mut one);
    collected(&mut two);
    assert_eq!((one.free_cells(), two.free_cells()), (4, 4), "cells of the honest");
    assert!(!one.inbox_damaged());
}

#[test]
fn cell_that_is_announced_again_and_again_does_no_harm() {
    one_cell_for_all(|_| false);
}

#[test]
fn cell_that_is_announced_and_published_does_no_harm() {
    one_cell_for_all(|sequence| sequence % 2 == 0);
}

/// One packet by both paths at once is delivered once; its remaining copy is no packet.
#[test]
fn packet_that_is_announced_and_queued_is_delivered_once() {
    let fabric = Fabric::new(tiny(3));
    let (mut one, mut two) = (fabric.port(1), fabric.port(2));
    let mut announcer = FastboxSender::new(fabric.fastbox(0, 1), fabric.ack(1, 0));
    let (entries, tail) = fabric.queue(1);
    let mut producer = Producer::new(CellQueue::new(entries, tail));
    let pool = pool(&fabric);
    pool.publish(2, 1, 1, &envelope(1));
    producer.push(2).unwrap();
    assert_eq!(announcer.announce(1, &envelope(1), 2, None), Ok(true));
    assert!(send(&mut two, 1, 7, 100));
    let mut came = vec![take(&mut one).unwrap(), take(&mut one).unwrap()];
    came.sort_unstable();
    assert_eq!(came, [(0, 1, LEN), (2, 7, 100)]);
    // The copy of the other path is in the past: the queue's copy is skipped, the fastbox's is a fault of
    // rank 0.
    let fault = (0..5000).find_map(|_| match one.poll() {
        Polled::Fault(fault) => Some(fault.peer),
        Polled::Packet(arrival) => panic!("{arrival:?}"),
        Polled::Idle => None,
    });
    assert!(matches!(fault, None | Some(0)));
    one.close(0);
    assert!(send(&mut two, 1, 8, 100));
    assert_eq!(take(&mut one), Some((2, 8, 100)));
}

/// Packets are counted as sent through a cell for lack of fastbox space only if they were sent.
#[test]
fn packet_that_waits_for_a_cell_is_counted_once() {
    let fabric = Fabric::queueing(tiny(2));
    let (mut zero, mut one) = (fabric.port(0), fabric.port(1));
    while send(&mut zero, 1, 5, 8) {}
    for _ in 0..100 {
        assert!(!send(&mut zero, 1, 5, 8));
    }
    let traffic = zero.traffic(1);
    assert_eq!((traffic.sent, traffic.cells_sent.count, traffic.fastbox_full), (8, 4, 4));
    assert_eq!(traffic.cells_exhausted, 1);
    assert_eq!(take(&mut one), Some((0, 5, 8)));
}
