//! Packets to a peer with several connections.

use std::vec::Vec;

use super::script::{channel, enter, hello};
use crate::port::{PacketPieces, PacketPort as _};
use crate::wire::ring::SLOT_PAYLOAD;
use crate::wire::{Envelope, Kind};

const ENVELOPE: Envelope = Envelope { kind: Kind::Eager, context: 0, tag: 0, total: 4 };

#[test]
fn large_packets_take_the_connections_in_turn_and_small_ones_the_first() {
    for (len, expected) in [(SLOT_PAYLOAD + 1, [0, 1, 2, 0, 1, 2]), (SLOT_PAYLOAD, [0, 0, 1, 1, 2, 2])] {
        let mut channel = channel(2, 3, 64);
        let rails: Vec<_> = (0..3).map(|rail| enter(&mut channel, &hello(0, rail))).collect();
        let content = std::vec![5; len];
        let before = channel.port().sent.len();
        while channel.send(0, &ENVELOPE, PacketPieces::Whole(&content)).unwrap() {}
        let sent = channel.port().sent[before..].iter();
        let turns: Vec<_> = sent.map(|(to, ..)| rails.iter().position(|rail| rail == to).unwrap()).collect();
        // Each has three receives, of which one is for reports.
        assert_eq!(turns, expected, "{len} bytes");
    }
}
