//! Processes that prove that they know the key of the job, and others.

use core::time::Duration;
use std::vec::Vec;

use super::ChannelEvent;
use super::script::{
    KEY, TestChannel, accepted, ask, call, challenged, channel, enter, hello, request, settle,
    throw_challenge,
};
use crate::job_key::{JobKey, WINDOW};
use crate::port::PacketPort as _;
use crate::port::memory::{Address, ConnectError, Event, Private};
use crate::wire::channel::ChannelRefusal;
use crate::wire::hello::{Challenge, Hello, HelloContent, PROOF_BYTES, Proof};

/// Sends a request, and checks that it is refused and costs no buffer.
fn is_refused(channel: &mut TestChannel, hello: &Hello, refusal: ChannelRefusal) {
    let buffers = (channel.buffers(), channel.buffers.pool().spare(), channel.report(0));
    channel.port_mut().request(hello);
    assert_eq!(settle(channel), [ChannelEvent::Refused { claimed: Some(hello.rank), refusal }]);
    assert_eq!((channel.buffers(), channel.buffers.pool().spare(), channel.report(0)), buffers);
}

/// Sends a request, and checks that it is refused with another challenge.
fn is_challenged(channel: &mut TestChannel, hello: &Hello) {
    let connection = channel.port_mut().request(hello);
    assert_eq!(settle(channel), []);
    let (refused, private) = channel.port().refused.last().unwrap();
    assert!(*refused == connection && Challenge::decode(private).is_some(), "{private:?}");
}

#[test]
fn a_stranger_is_refused_and_takes_nothing_from_the_others() {
    let mut channel = channel(3, 1, 64);
    let stranger = JobKey::from_bytes([8; 32]);
    for _ in 0..3 {
        let challenge = challenged(&mut channel, &hello(0, 0));
        is_refused(&mut channel, &request(&hello(0, 0), challenge, stranger), ChannelRefusal::WrongKey);
        // The challenge is still that of the process that knows the key.
        channel.port_mut().request(&request(&hello(0, 0), challenge, KEY));
        assert_eq!(settle(&mut channel), []);
        let connection = channel.port().last();
        let (error, private) = (ConnectError::TimedOut, Private::EMPTY);
        channel.port_mut().events.push_back(Event::Failed { connection, error, private });
        settle(&mut channel);
    }
    enter(&mut channel, &hello(0, 0));
}

#[test]
fn a_recorded_request_is_not_accepted_again() {
    let mut channel = channel(3, 1, 64);
    let challenge = challenged(&mut channel, &hello(0, 0));
    let recorded = request(&hello(0, 0), challenge, KEY);
    channel.port_mut().request(&recorded);
    settle(&mut channel);
    assert_eq!(channel.report(0).rails, 1);
    is_challenged(&mut channel, &recorded);
    channel.close(0);
    settle(&mut channel);
    is_challenged(&mut channel, &recorded);
    assert_eq!(channel.report(0).rails, 0);
}

#[test]
fn a_request_proves_every_word_of_it() {
    let mut channel = channel(3, 2, 64);
    let challenge = challenged(&mut channel, &hello(0, 0));
    let good = request(&hello(0, 0), challenge, KEY);
    let others = [
        Hello { rank: 2, ..good },
        Hello { rail: 1, ..good },
        Hello { receives: good.receives + 1, ..good },
        Hello { token: good.token + 1, ..good },
        Hello { incarnation: 1, ..good },
    ];
    for other in others {
        is_refused(&mut channel, &other, ChannelRefusal::WrongKey);
    }
    let HelloContent::Request { number, nonce, proof } = good.content else { panic!("{good:?}") };
    let content = HelloContent::Request { number, nonce: nonce + 1, proof };
    is_refused(&mut channel, &Hello { content, ..good }, ChannelRefusal::WrongKey);
    let content = HelloContent::Request { number: number + 1, nonce, proof };
    is_challenged(&mut channel, &Hello { content, ..good });
    let content = HelloContent::Answer { agreements: nonce, proof };
    is_refused(&mut channel, &Hello { content, ..good }, ChannelRefusal::Protocol);
    channel.port_mut().request(&good);
    assert_eq!(settle(&mut channel), []);
    assert_eq!(channel.report(0).rails, 1);
}

#[test]
fn a_flood_of_calls_costs_no_memory_and_the_others_are_connected() {
    let mut channel = channel(3, 1, 64);
    let free = (channel.buffers(), channel.buffers.pool().spare());
    let waiting = challenged(&mut channel, &hello(2, 0));
    for _ in 1..WINDOW {
        let _ = challenged(&mut channel, &hello(0, 0));
    }
    assert_eq!((channel.buffers(), channel.buffers.pool().spare()), free);
    channel.port_mut().request(&request(&hello(2, 0), waiting, KEY));
    assert_eq!((settle(&mut channel), channel.report(2).rails), (Vec::new(), 1));
    // The challenge of a caller that comes too late is refused with another one, which it can answer.
    let late = challenged(&mut channel, &hello(0, 0));
    for _ in 0..WINDOW {
        let _ = challenged(&mut channel, &hello(0, 0));
    }
    is_challenged(&mut channel, &request(&hello(0, 0), late, KEY));
    enter(&mut channel, &hello(0, 0));
}

#[test]
fn an_acceptance_without_the_right_proof_is_none() {
    let failed = |refusal| {
        let (peer, rail, error, refusal) = (0, 0, ConnectError::Protocol, Some(refusal));
        [ChannelEvent::Failed { peer, rail, error, refusal }, ChannelEvent::Closed { peer, rail }]
    };
    let mut channel = channel(3, 1, 64);
    let establish = |channel: &mut TestChannel, private| {
        let connection = channel.port().last();
        channel.port_mut().events.push_back(Event::Established { connection, private });
        settle(channel)
    };
    // Without a challenge.
    channel.connect(0, 0, &Address::new(&[1]).unwrap(), Duration::MAX).unwrap();
    let content = HelloContent::Answer { agreements: 0, proof: Proof([0; PROOF_BYTES]) };
    let unasked = Hello { content, ..hello(0, 0) }.encode();
    assert_eq!(establish(&mut channel, unasked), failed(ChannelRefusal::WrongKey));
    // The proof of the request, sent back.
    call(&mut channel, 0);
    let said = Hello::decode(channel.port().said.last().unwrap()).unwrap();
    let HelloContent::Request { proof, .. } = said.content else { panic!("{said:?}") };
    let content = HelloContent::Answer { agreements: 0, proof };
    let reflected = Hello { content, ..hello(0, 0) }.encode();
    assert_eq!(establish(&mut channel, reflected), failed(ChannelRefusal::WrongKey));
    // The whole request, sent back.
    call(&mut channel, 0);
    let reflected = *channel.port().said.last().unwrap();
    assert_eq!(establish(&mut channel, reflected), failed(ChannelRefusal::Protocol));
    // An acceptance of an earlier request to the same challenge.
    call(&mut channel, 0);
    let recorded = accepted(&channel, &hello(0, 0));
    assert_eq!(establish(&mut channel, recorded), [ChannelEvent::Up { peer: 0, rail: 0 }]);
    channel.close(0);
    settle(&mut channel);
    call(&mut channel, 0);
    assert_eq!(establish(&mut channel, recorded), failed(ChannelRefusal::WrongKey));
    // A part of it.
    call(&mut channel, 0);
    let whole = accepted(&channel, &hello(0, 0));
    let part = Private::new(&whole.bytes()[..whole.bytes().len() - 1]).unwrap();
    assert_eq!(establish(&mut channel, part), failed(ChannelRefusal::Protocol));
    assert_eq!(channel.buffers(), (64, 64));
}

#[test]
fn a_call_does_not_answer_challenges_for_ever() {
    let mut channel = channel(3, 1, 64);
    channel.connect(0, 0, &Address::new(&[1]).unwrap(), Duration::MAX).unwrap();
    let mut events = Vec::new();
    for requests in 1.. {
        throw_challenge(&mut channel);
        events.extend(settle(&mut channel));
        if !events.is_empty() {
            assert_eq!(channel.port().said.len(), requests);
            assert!((2..20).contains(&requests), "{requests} requests");
            break;
        }
    }
    let (peer, rail, error) = (0, 0, ConnectError::Refused);
    let failed = ChannelEvent::Failed { peer, rail, error, refusal: Some(ChannelRefusal::Unproven) };
    assert_eq!(events, [failed, ChannelEvent::Closed { peer, rail }]);
    assert_eq!((channel.buffers(), channel.buffers.pool().spare()), ((64, 64), 64));
}

#[test]
fn a_call_that_can_not_be_repeated_fails_and_is_closed() {
    let mut channel = channel(3, 1, 64);
    channel.connect(0, 0, &Address::new(&[1]).unwrap(), Duration::MAX).unwrap();
    channel.port_mut().refuses_to_connect = true;
    throw_challenge(&mut channel);
    let (peer, rail, error) = (0, 0, ConnectError::Full { limit: 1 });
    let failed = ChannelEvent::Failed { peer, rail, error, refusal: None };
    assert_eq!(settle(&mut channel), [failed, ChannelEvent::Closed { peer, rail }]);
    assert_eq!((channel.buffers(), channel.buffers.pool().spare()), ((64, 64), 64));
}

#[test]
fn a_peer_that_is_disconnected_is_not_called_again() {
    let mut channel = channel(3, 1, 64);
    channel.connect(0, 0, &Address::new(&[1]).unwrap(), Duration::MAX).unwrap();
    throw_challenge(&mut channel);
    // The challenge has arrived, and the connection is not closed completely.
    channel.port_mut().keeps_closed = true;
    assert_eq!(settle(&mut channel), []);
    channel.close(0);
    channel.port_mut().keeps_closed = false;
    assert_eq!(settle(&mut channel), [ChannelEvent::Closed { peer: 0, rail: 0 }]);
    assert_eq!(channel.port().said.len(), 1);
}

#[test]
fn rails_are_called_one_after_the_other_or_all_at_once() {
    let mut channel = channel(3, 2, 64);
    let address = Address::new(&[1]).unwrap();
    channel.connect(0, 0, &address, Duration::MAX).unwrap();
    throw_challenge(&mut channel);
    channel.port_mut().keeps_closed = true;
    assert_eq!(settle(&mut channel), []);
    // The challenge on the first rail is not answered yet.
    channel.connect(0, 1, &address, Duration::MAX).unwrap();
    channel.port_mut().keeps_closed = false;
    assert_eq!(settle(&mut channel), []);
    assert_eq!((channel.port().said.len(), channel.report(0).rails), (3, 2));
    let asked = ask(&mut channel, &hello(0, 0));
    assert_eq!(
        settle(&mut channel),
        [ChannelEvent::Refused { claimed: Some(0), refusal: ChannelRefusal::Exists }]
    );
    assert_eq!(channel.port().refused.last().map(|(connection, _)| *connection), Some(asked));
}

#[test]
fn the_key_is_in_no_private_data() {
    let mut channel = channel(3, 1, 64);
    enter(&mut channel, &hello(2, 0));
    call(&mut channel, 0);
    let port = channel.port();
    let said = port.said.iter().chain(port.refused.iter().map(|(_, private)| private));
    for private in said {
        let has_key = private.bytes().windows(4).any(|part| part == &KEY.bytes()[..4]);
        assert!(!has_key, "{private:?}");
    }
}
