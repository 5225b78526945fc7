//! Peers that take nothing, and the cells that they leave for others.

use super::fabric::{Fabric, TestPort, WorldShape, tiny};
use super::port::{send, take};
use crate::port::PeerId;

/// Sends messages in cells to a peer until none is free for it. Returns their number.
fn fill(port: &mut TestPort<'_>, to: PeerId) -> u64 {
    (0..).find(|tag| !send(port, to, *tag, 100)).unwrap()
}

/// Exchanges messages in cells with a peer that takes them.
fn exchange(zero: &mut TestPort<'_>, (to, other): (PeerId, &mut TestPort<'_>)) {
    for tag in 0..20 {
        assert!(send(zero, to, tag, 100), "no cell is free for {to}");
        assert_eq!(take(other, 1), Some((0, tag)));
        assert_eq!(take(other, 1), None, "the cell is given back");
    }
}

#[test]
fn a_peer_that_takes_nothing_leaves_cells_for_peers_that_connect_later() {
    for (places, most) in [(2, 14), (3, 7)] {
        let fabric = Fabric::new(WorldShape { cells: 16, ..tiny(3) });
        let (mut zero, mut two) = (fabric.port_alone(0), fabric.port(2));
        zero.grow_links(|links| links.truncate(places));
        assert!(zero.open(1, fabric.link(0, 1)));
        assert_eq!(fill(&mut zero, 1), most, "of 16 cells");
        zero.grow_links(|links| links.resize_with(3, || None));
        assert!(zero.open(2, fabric.link(0, 2)));
        exchange(&mut zero, (2, &mut two));
    }
}

#[test]
fn many_peers_that_take_nothing_leave_a_cell_for_another_one() {
    const SILENT: u32 = 13;
    let fabric = Fabric::new(WorldShape { cells: 64, ..tiny(SILENT + 2) });
    let (mut zero, mut last) = (fabric.port_alone(0), fabric.port(SILENT + 1));
    for peer in 1..=SILENT {
        assert!(zero.open(peer, fabric.link(0, peer)));
        assert_ne!(fill(&mut zero, peer), 0, "no cell is free for {peer}");
    }
    assert!(zero.open(SILENT + 1, fabric.link(0, SILENT + 1)));
    assert_ne!(zero.free_cells(), 0);
    exchange(&mut zero, (SILENT + 1, &mut last));
}
