//! Processes that claim the identity of another.

use std::vec::Vec;

use core::time::Duration;

use super::ChannelEvent;
use super::script::{TestChannel, accepted, ask, call, channel, enter, hello, packet, settle};
use crate::port::memory::{Address, ConnectError, Event, Origin, Private};
use crate::port::{PacketPort as _, Polled};
use crate::wire::channel::ChannelRefusal;
use crate::wire::hello::Hello;

/// Requests a connection and checks that it is refused.
fn is_refused(channel: &mut TestChannel, hello: &Hello, refusal: ChannelRefusal) {
    let connection = ask(channel, hello);
    let free = channel.buffers();
    let claimed = Some(hello.rank);
    assert_eq!(settle(channel), [ChannelEvent::Refused { claimed, refusal }]);
    assert_eq!(channel.port().refused.last(), Some(&(connection, refusal.encode())));
    assert_eq!(channel.buffers(), free);
}

/// Connects on this rail to rank 0; the process that accepts presents `hello`.
fn dial(channel: &mut TestChannel, rail: u32, hello: &Hello) -> Vec<ChannelEvent> {
    let connection = call(channel, rail);
    let private = accepted(channel, hello);
    channel.port_mut().events.push_back(Event::Established { connection, private });
    settle(channel)
}

#[test]
fn a_rank_that_is_connected_is_not_given_to_another_process() {
    let mut channel = channel(3, 3, 64);
    let mine = enter(&mut channel, &hello(0, 0));
    let impostor = |rail: u8| Hello { token: 666, ..hello(0, rail) };
    // An existing rail, and one that does not exist yet.
    is_refused(&mut channel, &impostor(0), ChannelRefusal::Claimed);
    is_refused(&mut channel, &impostor(1), ChannelRefusal::Claimed);
    is_refused(&mut channel, &hello(0, 0), ChannelRefusal::Exists);
    // The process that holds the rank is not affected, and may open more rails.
    enter(&mut channel, &hello(0, 2));
    channel.port_mut().arrive(mine, &packet(0, 0, b"mine"));
    let Polled::Packet(arrival) = channel.poll() else { panic!("no packet") };
    assert_eq!((arrival.peer, arrival.len), (0, 4));
    channel.release(arrival);
    is_refused(&mut channel, &impostor(1), ChannelRefusal::Claimed);
    assert_eq!(channel.report(0).ready, 2);
}

#[test]
fn a_rank_that_is_connecting_is_not_given_to_another_process() {
    let mut channel = channel(3, 2, 64);
    let first = ask(&mut channel, &hello(0, 0));
    settle(&mut channel);
    for rail in [0, 1] {
        is_refused(&mut channel, &Hello { token: 666, ..hello(0, rail) }, ChannelRefusal::Claimed);
    }
    channel.port_mut().events.push_back(Event::Established { connection: first, private: Private::EMPTY });
    assert_eq!(settle(&mut channel), [ChannelEvent::Up { peer: 0, rail: 0 }]);
}

#[test]
fn a_rank_whose_connection_failed_to_open_is_free_for_another_process() {
    let mut channel = channel(3, 1, 64);
    let connection = ask(&mut channel, &Hello { token: 666, ..hello(0, 0) });
    settle(&mut channel);
    let (error, private) = (ConnectError::TimedOut, Private::EMPTY);
    channel.port_mut().events.push_back(Event::Failed { connection, error, private });
    settle(&mut channel);
    enter(&mut channel, &hello(0, 0));
    // The rank of a disconnected process is free too; its next process has its own token.
    channel.close(0);
    settle(&mut channel);
    enter(&mut channel, &Hello { token: 3, ..hello(0, 0) });
    is_refused(&mut channel, &hello(0, 0), ChannelRefusal::Claimed);
}

#[test]
fn a_peer_that_this_process_connects_to_may_not_connect_to_it() {
    let mut channel = channel(3, 2, 64);
    channel.connect(0, 0, &Address::new(&[1]).unwrap(), Duration::MAX).unwrap();
    is_refused(&mut channel, &hello(0, 1), ChannelRefusal::Exists);
    is_refused(&mut channel, &hello(0, 0), ChannelRefusal::Exists);
}

#[test]
fn all_that_accept_are_one_process() {
    let mut channel = channel(3, 3, 64);
    assert_eq!(dial(&mut channel, 0, &hello(0, 0)), [ChannelEvent::Up { peer: 0, rail: 0 }]);
    let events = dial(&mut channel, 1, &Hello { token: 666, ..hello(0, 1) });
    let (error, refusal) = (ConnectError::Protocol, Some(ChannelRefusal::Claimed));
    let failed = ChannelEvent::Failed { peer: 0, rail: 1, error, refusal };
    assert_eq!(events, [failed, ChannelEvent::Closed { peer: 0, rail: 1 }]);
    assert_eq!(dial(&mut channel, 2, &hello(0, 2)), [ChannelEvent::Up { peer: 0, rail: 2 }]);
    assert_eq!(channel.report(0).ready, 2);
}

#[test]
fn each_peer_gets_its_own_token_and_the_same_on_each_connection() {
    let mut channel = channel(3, 2, 64);
    for (peer, rail) in [(0, 0), (0, 1), (2, 0), (2, 1)] {
        enter(&mut channel, &hello(peer, rail));
    }
    let said = channel.port().said.iter().map(|private| Hello::decode(private).unwrap().token);
    assert_eq!(said.collect::<Vec<_>>(), [1000, 1000, 1002, 1002]);
}

#[test]
fn a_process_from_another_origin_is_refused() {
    let mut channel = channel(3, 2, 64);
    channel.prioritize_from(0, Some(Origin::Process(7)));
    let host = Origin::Host([10, 0, 0, 7].into());
    for origin in [None, Some(Origin::Process(8)), Some(host)] {
        channel.port_mut().origin = origin;
        is_refused(&mut channel, &hello(0, 0), ChannelRefusal::NotAMember);
        let events = dial(&mut channel, 0, &hello(0, 0));
        let (error, refusal) = (ConnectError::Protocol, Some(ChannelRefusal::NotAMember));
        let failed = ChannelEvent::Failed { peer: 0, rail: 0, error, refusal };
        assert_eq!(events, [failed, ChannelEvent::Closed { peer: 0, rail: 0 }], "{origin:?}");
    }
    // The other ranks may connect from anywhere.
    enter(&mut channel, &hello(2, 0));
    channel.port_mut().origin = Some(Origin::Process(7));
    enter(&mut channel, &hello(0, 0));
    channel.prioritize_from(0, None);
    channel.port_mut().origin = None;
    enter(&mut channel, &hello(0, 1));
}

#[test]
fn a_further_connection_belongs_to_a_process_whose_first_one_is_there() {
    let mut channel = channel(3, 3, 64);
    is_refused(&mut channel, &hello(0, 1), ChannelRefusal::NoFirst);
    enter(&mut channel, &hello(0, 0));
    enter(&mut channel, &hello(0, 2));
    // A request is on its way while this process disconnects the peer.
    channel.close(0);
    settle(&mut channel);
    assert_eq!(channel.report(0).rails, 0);
    is_refused(&mut channel, &hello(0, 1), ChannelRefusal::NoFirst);
    // The next process of the rank has the rank, and its own further connections.
    let next = |rail: u8| Hello { token: 3, ..hello(0, rail) };
    is_refused(&mut channel, &next(2), ChannelRefusal::NoFirst);
    enter(&mut channel, &next(0));
    is_refused(&mut channel, &hello(0, 1), ChannelRefusal::Claimed);
    enter(&mut channel, &next(1));
    assert_eq!(channel.report(0).ready, 2);
}
