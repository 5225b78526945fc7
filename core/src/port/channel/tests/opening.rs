//! Connections that are not made: every buffer is free afterwards, and other connections are not affected.

use std::vec;
use std::vec::Vec;

use core::time::Duration;

use super::script::{
    TestChannel, accepted, ask, call, channel, enter, hello, packet, settle, throw_challenge,
};
use super::{ChannelEvent, OWN};
use crate::flow::posted::LEAST;
use crate::port::memory::{Address, ConnectError, Connection, Event, LostError, Private};
use crate::port::{Arrival, PacketPort as _, Polled};

const BUFFERS: usize = 64;

/// Disconnects all peers, and checks that no buffer is missing or reserved.
fn is_whole(channel: &mut TestChannel, what: &str) {
    for peer in [0, 2] {
        channel.close(peer);
    }
    settle(channel);
    assert_eq!(channel.buffers(), (BUFFERS as u32, BUFFERS as u32), "{what}");
    // No buffer is reserved: as many connections fit as at the start.
    assert_eq!(channel.buffers.pool().spare(), BUFFERS as u32, "{what}");
}

fn next_packet(channel: &mut TestChannel) -> Arrival<super::super::Token> {
    match channel.poll() {
        Polled::Packet(arrival) => arrival,
        other => panic!("{other:?} instead of a packet"),
    }
}

#[test]
fn a_connection_whose_receives_are_not_all_posted_gives_them_back() {
    for posted in 0..LEAST as usize {
        let mut channel = channel(3, 2, BUFFERS);
        channel.port_mut().receives_left = Some(posted);
        let address = Address::new(&[1]).unwrap();
        channel.connect(0, 0, &address, Duration::MAX).unwrap();
        throw_challenge(&mut channel);
        let (peer, rail, error) = (0, 0, ConnectError::System(12));
        let failed = ChannelEvent::Failed { peer, rail, error, refusal: None };
        assert_eq!(settle(&mut channel), [failed, ChannelEvent::Closed { peer, rail }]);
        is_whole(&mut channel, "this process connects");

        ask(&mut channel, &hello(2, 0));
        assert_eq!(settle(&mut channel), [ChannelEvent::Closed { peer: 2, rail: 0 }]);
        is_whole(&mut channel, "the peer connects");
    }
}

#[test]
fn a_connection_that_can_not_be_accepted_gives_its_buffers_back() {
    let mut channel = channel(3, 1, BUFFERS);
    channel.port_mut().refuses_to_accept = true;
    ask(&mut channel, &hello(2, 0));
    assert_eq!(settle(&mut channel), [ChannelEvent::Closed { peer: 2, rail: 0 }]);
    is_whole(&mut channel, "not accepted");
}

/// Returns the events that end an opening.
fn failures(connection: Connection) -> Vec<(&'static str, Event)> {
    let refused = Event::Failed { connection, error: ConnectError::Refused, private: Private::EMPTY };
    let late = Event::Failed { connection, error: ConnectError::TimedOut, private: Private::EMPTY };
    let lost = Event::Lost { connection, error: LostError::Closed };
    // Another process than the expected one, and one that does not use the protocol.
    let other = Event::Established { connection, private: hello(2, 0).encode() };
    let nobody = Event::Established { connection, private: Private::EMPTY };
    vec![("refused", refused), ("late", late), ("lost", lost), ("another", other), ("nobody", nobody)]
}

#[test]
fn packets_on_a_connection_that_fails_to_open_are_discarded_and_its_buffers_are_free() {
    for at in 0..5 {
        for packets in 0..LEAST {
            let mut channel = channel(3, 2, BUFFERS);
            let connection = call(&mut channel, 0);
            // In order, except that the last packet is too early.
            for number in [1, 0, 2].into_iter().take(packets as usize) {
                channel.port_mut().arrive(connection, &packet(number, 0, b"too soon"));
            }
            let mut events = settle(&mut channel);
            let (what, event) = failures(connection).swap_remove(at);
            channel.port_mut().events.push_back(event);
            events.extend(settle(&mut channel));
            let up = ChannelEvent::Up { peer: 0, rail: 0 };
            assert!(!events.contains(&up), "{what}: {events:?}");
            is_whole(&mut channel, what);
            // The rank is free, and its new holder starts with the first number.
            let connection = enter(&mut channel, &hello(0, 0));
            channel.port_mut().arrive(connection, &packet(0, 0, b"in time"));
            let arrival = next_packet(&mut channel);
            assert_eq!(arrival.envelope.tag, 0);
            channel.release(arrival);
            is_whole(&mut channel, what);
        }
    }
}

#[test]
fn packets_before_the_connection_is_ready_are_delivered_when_it_is() {
    for active in [false, true] {
        let mut channel = channel(3, 1, BUFFERS);
        let (connection, private) = if active {
            let connection = call(&mut channel, 0);
            (connection, accepted(&channel, &hello(0, 0)))
        } else {
            (ask(&mut channel, &hello(0, 0)), Private::EMPTY)
        };
        settle(&mut channel);
        for number in [0, 1] {
            channel.port_mut().arrive(connection, &packet(number, 0, &[number as u8; 9]));
        }
        settle(&mut channel);
        channel.port_mut().events.push_back(Event::Established { connection, private });
        let up = ChannelEvent::Up { peer: 0, rail: 0 };
        assert_eq!(channel.poll_event(Duration::ZERO), Some(up));
        for number in [0_u8, 1] {
            let arrival = next_packet(&mut channel);
            let mut bytes = [0; 9];
            assert!(channel.read(&arrival, 0, &mut bytes));
            assert_eq!((arrival.envelope.tag, bytes), (number.into(), [number; 9]));
            channel.release(arrival);
        }
        is_whole(&mut channel, "it was ready");
    }
}

#[test]
fn a_packet_that_is_being_read_stays_when_another_connection_fails_to_open() {
    let mut channel = channel(3, 2, BUFFERS);
    let ready = enter(&mut channel, &hello(0, 0));
    let asked = ask(&mut channel, &hello(0, 1));
    settle(&mut channel);
    let (error, private) = (ConnectError::TimedOut, Private::EMPTY);
    channel.port_mut().events.push_back(Event::Failed { connection: asked, error, private });
    let failed = channel.poll_event(Duration::ZERO);
    assert!(matches!(failed, Some(ChannelEvent::Failed { peer: 0, rail: 1, .. })), "{failed:?}");
    // Flushed completions come first.
    channel.port_mut().arrive(ready, &packet(0, 0, b"the first"));
    let arrival = next_packet(&mut channel);
    let posted = channel.port().posted[&ready].len();
    assert_eq!(channel.poll_event(Duration::ZERO), Some(ChannelEvent::Closed { peer: 0, rail: 1 }));
    // The buffer was not posted again, so nothing is written there.
    assert_eq!(channel.port().posted[&ready].len(), posted);
    let mut bytes = [0; 9];
    assert!(channel.read(&arrival, 0, &mut bytes));
    assert_eq!(&bytes, b"the first");
    channel.release(arrival);
    settle(&mut channel);
    assert_eq!(channel.port().posted[&ready].len(), posted + 1);
    is_whole(&mut channel, "one of two");
}

#[test]
fn buffers_reserved_for_others_stay_when_a_connection_fails() {
    // Memory for two connections, and one more buffer.
    let all = 2 * OWN as usize + 1;
    let mut channel = channel(3, 1, all);
    enter(&mut channel, &hello(2, 0));
    for _ in 0..3 {
        let connection = call(&mut channel, 0);
        channel.port_mut().arrive(connection, &packet(0, 0, b"too soon"));
        settle(&mut channel);
        let (error, private) = (ConnectError::Refused, Private::EMPTY);
        channel.port_mut().events.push_back(Event::Failed { connection, error, private });
        settle(&mut channel);
        assert_eq!(channel.buffers.pool().spare(), OWN + 1);
        assert!(channel.buffers.pool().is_sound());
    }
}
