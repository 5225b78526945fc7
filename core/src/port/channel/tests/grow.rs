//! Peers that are added one by one.

use core::time::Duration;
use std::vec;

use super::ChannelEvent;
use super::script::{KEY, ask, channel, enter, hello, settle};
use crate::job_key::{JobKey, KEY_BYTES};
use crate::port::PacketPort as _;
use crate::port::channel::{Acquaintance, ChannelPeer, JoinError, OWN};
use crate::port::memory::{Address, ConnectError};
use crate::wire::channel::ChannelRefusal;
use crate::wire::hello::Hello;

#[test]
fn only_a_process_that_was_introduced_connects_and_only_as_itself() {
    let mut channel = channel(3, 1, 64);
    channel.grow_with_peers();
    let refused = |peer, refusal| [ChannelEvent::Refused { claimed: Some(peer), refusal }];
    // It knows the key, but it is not expected.
    ask(&mut channel, &hello(0, 0));
    assert_eq!(settle(&mut channel), refused(0, ChannelRefusal::NotAMember));
    let known = Acquaintance { token: 5, expected: hello(0, 0).token, number: 9, key: KEY };
    assert!(channel.expect(0, Some(known)));
    // Another one that is expected elsewhere.
    ask(&mut channel, &Hello { token: 1, ..hello(0, 0) });
    assert_eq!(settle(&mut channel), refused(0, ChannelRefusal::NotAMember));
    ask(&mut channel, &hello(2, 0));
    assert_eq!(settle(&mut channel), refused(2, ChannelRefusal::NotAMember));
    enter(&mut channel, &hello(0, 0));
    // The peer is told the number by which it knows this process, and the token for it.
    let said = Hello::decode(channel.port().said.last().unwrap()).unwrap();
    assert_eq!((said.rank, said.token), (9, 5));
    // Its number is taken until nothing of the connection is left.
    assert!(!channel.is_vacant(0) && !channel.expect(0, Some(known)));
    channel.close(0);
    settle(&mut channel);
    assert!(channel.is_vacant(0) && channel.expect(0, None));
    ask(&mut channel, &hello(0, 0));
    assert_eq!(settle(&mut channel), refused(0, ChannelRefusal::NotAMember));
}

#[test]
fn places_and_buffers_come_with_the_peers() {
    let mut channel = channel(1, 1, 64);
    channel.grow_with_peers();
    let known = Acquaintance { token: 5, expected: 6, number: 9, key: KEY };
    assert!(!channel.expect(1, Some(known)));
    for places in 1..4 {
        assert_eq!(channel.places(), places);
        channel.add_place(ChannelPeer::new(vec![None; 128], 0).unwrap());
    }
    assert!(channel.expect(3, Some(known)));
    channel.connect(3, 0, &Address::new(&[1]).unwrap(), Duration::MAX).unwrap();
    let said = Hello::decode(channel.port().said.last().unwrap()).unwrap();
    assert_eq!((said.rank, said.token, channel.report(3).rails), (9, 5, 1));
    channel.grow_buffers(10, 1);
    assert_eq!(channel.buffers().0, 64, "they have no memory yet");
}

#[test]
fn a_connection_that_both_ends_have_agreed_upon_is_ready_at_once_and_the_peer_may_add_others() {
    let mut channel = channel(3, 2, 64);
    channel.grow_with_peers();
    let known = Acquaintance { token: 5, expected: hello(0, 1).token, number: 9, key: KEY };
    assert!(channel.expect(0, Some(known)));
    let spare = channel.buffers().0;
    let failed = channel.adopt(0, (3, false), |_| Err(ConnectError::Address));
    assert_eq!((failed, channel.report(0).rails), (Err(JoinError::Connect(ConnectError::Address)), 0));
    assert_eq!((channel.buffers().0, channel.is_vacant(0)), (spare, true));
    assert_eq!(channel.adopt(0, (3, false), |port| Ok(port.connection())), Ok(()));
    let report = channel.report(0);
    assert_eq!((report.rails, report.ready, channel.has_requested(0)), (1, 1, false));
    assert_eq!(settle(&mut channel), []);
    assert_eq!(channel.adopt(0, (3, false), |port| Ok(port.connection())), Err(JoinError::Exists));
    // Another process does not add connections to it, and the peer does.
    ask(&mut channel, &Hello { token: 1, ..hello(0, 1) });
    assert_eq!(
        settle(&mut channel),
        [ChannelEvent::Refused { claimed: Some(0), refusal: ChannelRefusal::NotAMember }]
    );
    enter(&mut channel, &hello(0, 1));
    assert_eq!(channel.report(0).ready, 2);
}

#[test]
fn a_connection_is_not_adopted_without_buffers() {
    let mut channel = channel(3, 1, OWN as usize - 1);
    channel.grow_with_peers();
    assert!(channel.expect(0, Some(Acquaintance { token: 5, expected: 6, number: 9, key: KEY })));
    let adopted = channel.adopt(0, (3, true), |_| unreachable!("the port is not asked"));
    assert_eq!(adopted, Err(JoinError::Buffers { free: OWN - 1 }));
    assert!(channel.is_vacant(0) && channel.wants_memory());
}

#[test]
fn only_the_key_that_was_agreed_upon_with_a_peer_proves_its_further_connections() {
    let mut channel = channel(3, 2, 64);
    channel.grow_with_peers();
    let key = JobKey::from_bytes([9; KEY_BYTES]);
    assert!(channel.expect(0, Some(Acquaintance { token: 5, expected: hello(0, 0).token, number: 9, key })));
    // It knows the key of the channel, and the token.
    ask(&mut channel, &hello(0, 0));
    assert_eq!(
        settle(&mut channel),
        [ChannelEvent::Refused { claimed: Some(0), refusal: ChannelRefusal::WrongKey }]
    );
}
