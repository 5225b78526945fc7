//! Senders that wait for receives.

use std::vec::Vec;

use super::script::{channel, enter, hello, packet};
use crate::flow::posted::LEAST;
use crate::port::{PacketPieces, PacketPort as _, Polled};
use crate::wire::channel::Header;
use crate::wire::{Envelope, Kind};

const ENVELOPE: Envelope = Envelope { kind: Kind::Eager, context: 0, tag: 0, total: 4 };

#[test]
fn a_packet_that_had_to_wait_for_a_receive_says_so_and_the_next_one_does_not() {
    let mut channel = channel(2, 1, 64);
    let connection = enter(&mut channel, &hello(0, 0));
    while channel.send(0, &ENVELOPE, PacketPieces::Whole(b"full")).unwrap() {}
    channel.port_mut().arrive(connection, &packet(0, 3, b"room"));
    let Polled::Packet(arrival) = channel.poll() else { panic!("no packet") };
    channel.release(arrival);
    for _ in 0..2 {
        assert_eq!(channel.send(0, &ENVELOPE, PacketPieces::Whole(b"more")), Ok(true));
    }
    let headers =
        channel.port().sent.iter().map(|(_, _, bytes)| Header::decode(bytes.first_chunk().unwrap()));
    let packets = headers.filter_map(|header| header.filter(|header| header.packet.is_some()));
    let waited: Vec<bool> = packets.map(|header| header.waited).collect();
    assert_eq!(waited, [false, false, true, false]);
}

#[test]
fn a_connection_whose_sender_waits_grows_even_if_the_reports_are_on_their_way() {
    let mut channel = channel(2, 1, 64);
    let connection = enter(&mut channel, &hello(0, 0));
    for (number, receives) in [LEAST, 2 * LEAST, 4 * LEAST, 8 * LEAST].into_iter().enumerate() {
        assert_eq!(channel.report(0).receives, receives);
        let mut bytes = packet(number as u32, 0, b"late");
        bytes[1] |= 1;
        channel.port_mut().arrive(connection, &bytes);
        let Polled::Packet(arrival) = channel.poll() else { panic!("no packet") };
        channel.release(arrival);
    }
}
