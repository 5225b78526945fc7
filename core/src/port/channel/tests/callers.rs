//! Processes that were started again and wait to be accepted.

use core::time::Duration;
use std::vec::Vec;

use super::ChannelEvent;
use super::script::{TestChannel, agreements, ask, channel, enter, hello, packet, settle};
use crate::port::channel::{Introduction, JoinError};
use crate::port::memory::{ConnectError, Connection, Event, LostError, Origin, Private};
use crate::port::{PacketPort as _, Polled};
use crate::wire::channel::ChannelRefusal;
use crate::wire::hello::Hello;

/// Returns the hello of a restarted member, with a token of its own.
fn again(rank: u32, rail: u8, incarnation: u32) -> Hello {
    Hello { incarnation, token: 5000 + u64::from(incarnation), ..hello(rank, rail) }
}

fn calls(channel: &mut TestChannel, hello: &Hello) -> Connection {
    let connection = ask(channel, hello);
    assert_eq!(settle(channel), [ChannelEvent::Called { peer: hello.rank }]);
    connection
}

fn is_refused(channel: &mut TestChannel, hello: &Hello, refusal: ChannelRefusal) {
    ask(channel, hello);
    assert_eq!(settle(channel), [ChannelEvent::Refused { claimed: Some(hello.rank), refusal }]);
}

/// Returns a channel whose peer, rank 0, was connected and is gone.
fn bereft() -> TestChannel {
    let mut channel = channel(3, 2, 64);
    let first = enter(&mut channel, &hello(0, 0));
    channel.hold_requests();
    is_refused(&mut channel, &again(0, 0, 1), ChannelRefusal::Claimed);
    channel.port_mut().events.push_back(Event::Lost { connection: first, error: LostError::Closed });
    channel.port_mut().flush(first);
    settle(&mut channel);
    is_refused(&mut channel, &again(0, 0, 1), ChannelRefusal::Claimed);
    channel.close(0);
    assert_eq!(settle(&mut channel), [ChannelEvent::Closed { peer: 0, rail: 0 }]);
    channel
}

#[test]
fn a_restarted_process_waits_until_it_is_accepted_and_then_has_all_its_rails() {
    let mut channel = bereft();
    let said = channel.port().said.len();
    let connections = [0, 1].map(|rail| calls(&mut channel, &again(0, rail, 4)));
    assert_eq!((channel.caller(0), channel.caller(2)), (Some(4), None));
    assert_eq!((channel.port().said.len(), channel.report(0).rails), (said, 0), "nothing is answered");
    assert_eq!(channel.accept_caller(0, 99, Duration::ZERO), Ok(()));
    assert_eq!(channel.caller(0), None);
    for connection in connections {
        channel.port_mut().events.push_back(Event::Established { connection, private: Private::EMPTY });
    }
    assert_eq!(settle(&mut channel), [0, 1].map(|rail| ChannelEvent::Up { peer: 0, rail }));
    let said = channel.port().said.iter().map(agreements);
    assert_eq!(said.collect::<Vec<_>>(), [0, 99, 99]);
    assert_eq!(channel.introduction(0), Some(Introduction { incarnation: 4, agreements: 0 }));
    channel.port_mut().arrive(connections[0], &packet(0, 0, b"anew"));
    assert!(matches!(channel.poll(), Polled::Packet(arrival) if arrival.peer == 0));
}

#[test]
fn a_rail_that_is_late_belongs_to_the_process_that_was_accepted() {
    let mut channel = bereft();
    let connection = calls(&mut channel, &again(0, 0, 1));
    channel.accept_caller(0, 7, Duration::ZERO).unwrap();
    channel.port_mut().events.push_back(Event::Established { connection, private: Private::EMPTY });
    settle(&mut channel);
    is_refused(&mut channel, &again(0, 1, 2), ChannelRefusal::Claimed);
    enter(&mut channel, &again(0, 1, 1));
    assert_eq!(channel.report(0).ready, 2);
    let said = channel.port().said.iter().map(agreements);
    assert_eq!(said.collect::<Vec<_>>(), [0, 7, 7], "each acceptance has the number");
}

#[test]
fn only_restarted_processes_of_other_ranks_are_held() {
    let mut channel = bereft();
    is_refused(&mut channel, &hello(0, 0), ChannelRefusal::NotAMember);
    is_refused(&mut channel, &again(1, 0, 1), ChannelRefusal::NotAMember);
    is_refused(&mut channel, &again(3, 0, 1), ChannelRefusal::NotAMember);
    // Settings are compared before the proof.
    channel.port_mut().request(&again(0, 2, 1));
    let (claimed, refusal) = (Some(0), ChannelRefusal::Settings);
    assert_eq!(settle(&mut channel), [ChannelEvent::Refused { claimed, refusal }]);
    channel.prioritize_from(0, Some(Origin::Process(7)));
    is_refused(&mut channel, &again(0, 0, 1), ChannelRefusal::NotAMember);
    let unknown = JoinError::Unknown { peer: 0, rail: 0 };
    assert_eq!(channel.accept_caller(0, 0, Duration::ZERO), Err(unknown));
    assert_eq!(channel.buffers.pool().spare(), 64);
}

#[test]
fn a_later_process_takes_the_place_of_an_earlier_one_and_not_the_other_way_round() {
    let mut channel = bereft();
    let first = calls(&mut channel, &again(0, 0, 1));
    let same = calls(&mut channel, &again(0, 0, 1));
    let (exists, claimed) = (ChannelRefusal::Exists.encode(), ChannelRefusal::Claimed.encode());
    assert_eq!(channel.port().refused.last(), Some(&(first, exists)));
    let later = calls(&mut channel, &again(0, 0, 2));
    assert_eq!(channel.port().refused.last(), Some(&(same, claimed)));
    is_refused(&mut channel, &again(0, 0, 1), ChannelRefusal::Claimed);
    is_refused(&mut channel, &Hello { token: 1, ..again(0, 0, 2) }, ChannelRefusal::Claimed);
    assert_eq!(channel.caller(0), Some(2));
    channel.refuse_caller(0, ChannelRefusal::Finished);
    assert_eq!(channel.port().refused.last(), Some(&(later, ChannelRefusal::Finished.encode())));
    assert_eq!(channel.caller(0), None);
    calls(&mut channel, &again(0, 0, 1));
}

#[test]
fn a_caller_that_dies_is_forgotten() {
    let mut channel = bereft();
    let fails = |channel: &mut TestChannel, connection| {
        let (error, private) = (ConnectError::Unreachable, Private::EMPTY);
        channel.port_mut().events.push_back(Event::Failed { connection, error, private });
        assert_eq!(settle(channel), []);
    };
    let [first, second] = [0, 1].map(|rail| calls(&mut channel, &again(0, rail, 1)));
    fails(&mut channel, second);
    assert_eq!(channel.caller(0), Some(1));
    fails(&mut channel, first);
    assert_eq!(channel.caller(0), None);
    // It dies when it is accepted.
    calls(&mut channel, &again(0, 0, 1));
    channel.port_mut().refuses_to_accept = true;
    let error = JoinError::Connect(ConnectError::State);
    assert_eq!(channel.accept_caller(0, 0, Duration::ZERO), Err(error));
    assert_eq!(settle(&mut channel), [ChannelEvent::Closed { peer: 0, rail: 0 }]);
    assert_eq!((channel.caller(0), channel.buffers.pool().spare()), (None, 64));
}

#[test]
fn if_a_process_dies_when_it_is_accepted_all_its_requests_are_refused() {
    let mut channel = bereft();
    let [_, second] = [0, 1].map(|rail| calls(&mut channel, &again(0, rail, 1)));
    channel.port_mut().refuses_to_accept = true;
    let error = JoinError::Connect(ConnectError::State);
    assert_eq!(channel.accept_caller(0, 0, Duration::ZERO), Err(error));
    assert_eq!(channel.port().refused.last(), Some(&(second, ChannelRefusal::Buffers.encode())));
    assert_eq!(settle(&mut channel), [ChannelEvent::Closed { peer: 0, rail: 0 }]);
    assert_eq!((channel.caller(0), channel.buffers.pool().spare()), (None, 64));
}

#[test]
fn a_caller_waits_until_there_are_buffers_for_it() {
    let mut channel = channel(3, 1, 5);
    let held = enter(&mut channel, &hello(2, 0));
    channel.hold_requests();
    calls(&mut channel, &again(0, 0, 1));
    let full = JoinError::Buffers { free: 0 };
    assert_eq!(channel.accept_caller(0, 0, Duration::ZERO), Err(full));
    assert_eq!(channel.caller(0), Some(1));
    channel.port_mut().events.push_back(Event::Lost { connection: held, error: LostError::Closed });
    channel.port_mut().flush(held);
    settle(&mut channel);
    channel.close(2);
    settle(&mut channel);
    assert_eq!(channel.accept_caller(0, 0, Duration::ZERO), Ok(()));
}

#[test]
fn further_requests_of_a_caller_are_held_only_with_its_first_one() {
    let mut channel = bereft();
    is_refused(&mut channel, &again(0, 1, 4), ChannelRefusal::NoFirst);
    let first = calls(&mut channel, &again(0, 0, 4));
    let further = calls(&mut channel, &again(0, 1, 4));
    // A later process of the rank takes the former one's place, and not its connections.
    is_refused(&mut channel, &again(0, 1, 5), ChannelRefusal::NoFirst);
    assert_eq!(channel.caller(0), Some(4));
    // When the first request is gone, nothing is left to be accepted.
    let (error, private) = (ConnectError::Unreachable, Private::EMPTY);
    channel.port_mut().events.push_back(Event::Failed { connection: first, error, private });
    settle(&mut channel);
    assert_eq!(channel.caller(0), None);
    let refused = channel.port().refused.last().copied();
    assert_eq!(refused, Some((further, ChannelRefusal::NoFirst.encode())));
}
