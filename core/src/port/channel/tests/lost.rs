//! The loss of one of several connections to a peer.

use super::script::{ask, channel, enter, hello, packet, settle};
use super::{ChannelEvent, OWN};
use crate::port::PacketPieces;
use crate::port::memory::{Event, LostError};
use crate::port::{PacketPort as _, PeerFault, Polled, PortFault};
use crate::wire::{Envelope, Kind};

const ENVELOPE: Envelope = Envelope { kind: Kind::Eager, context: 0, tag: 0, total: 4 };

#[test]
fn a_lost_rail_fails_only_its_peer_and_after_the_packets_that_arrived_in_order() {
    let mut channel = channel(3, 2, 64);
    let [first, second] = [0, 1].map(|rail| enter(&mut channel, &hello(0, rail)));
    let other = enter(&mut channel, &hello(2, 0));
    // The second of three packets was in flight on the lost rail.
    channel.port_mut().arrive(first, &packet(0, 0, b"came"));
    channel.port_mut().arrive(second, &packet(2, 0, b"late"));
    channel.port_mut().events.push_back(Event::Lost { connection: first, error: LostError::Unreachable });
    channel.port_mut().flush(first);
    assert_eq!(channel.poll_event(core::time::Duration::ZERO), None);

    let Polled::Packet(arrival) = channel.poll() else { panic!("no packet") };
    assert_eq!((arrival.peer, arrival.envelope.tag), (0, 0));
    channel.release(arrival);
    let Polled::Fault(fault) = channel.poll() else { panic!("no fault") };
    assert_eq!(fault, PeerFault { peer: 0, fault: PortFault::Lost(LostError::Unreachable) });
    // The other rail carries no further packet, because gaps could not be recognised.
    let sent = channel.port().sent.len();
    assert_eq!(channel.send(0, &ENVELOPE, PacketPieces::Whole(b"more")), Ok(false));
    assert_eq!(channel.port().sent.len(), sent);
    assert!(matches!(channel.poll(), Polled::Idle));

    channel.close(0);
    let closed = |rail| ChannelEvent::Closed { peer: 0, rail };
    assert_eq!(settle(&mut channel), [closed(0), closed(1)]);
    assert_eq!(channel.buffers.pool().spare(), 64 - OWN);
    // Rank 2 is not affected, and rank 0 may reconnect, with numbers that start anew.
    channel.port_mut().arrive(other, &packet(0, 0, b"here"));
    let again = enter_again(&mut channel);
    channel.port_mut().arrive(again, &packet(0, 0, b"anew"));
    for peer in [2, 0] {
        let Polled::Packet(arrival) = channel.poll() else { panic!("no packet of {peer}") };
        assert_eq!((arrival.peer, arrival.envelope.tag), (peer, 0));
        channel.release(arrival);
    }
}

#[test]
fn the_reason_of_a_loss_is_reported_although_its_flush_is_seen_first() {
    let mut channel = channel(3, 1, 64);
    let connection = enter(&mut channel, &hello(0, 0));
    channel.port_mut().flush(connection);
    // The completions come first, and say nothing but that the connection has ended.
    for _ in 0..3 {
        assert!(matches!(channel.poll(), Polled::Idle));
    }
    channel.port_mut().events.push_back(Event::Lost { connection, error: LostError::Unreachable });
    assert_eq!(channel.poll_event(core::time::Duration::ZERO), None);
    let Polled::Fault(fault) = channel.poll() else { panic!("no fault") };
    assert_eq!(fault, PeerFault { peer: 0, fault: PortFault::Lost(LostError::Unreachable) });
    assert!(matches!(channel.poll(), Polled::Idle), "it is reported once");
}

/// Reconnects rank 0; packets of others stay in place.
fn enter_again(channel: &mut super::script::TestChannel) -> crate::port::memory::Connection {
    let connection = ask(channel, &hello(0, 0));
    let private = crate::port::memory::Private::EMPTY;
    channel.port_mut().events.push_back(Event::Established { connection, private });
    let up = ChannelEvent::Up { peer: 0, rail: 0 };
    assert_eq!(channel.poll_event(core::time::Duration::ZERO), Some(up));
    connection
}
