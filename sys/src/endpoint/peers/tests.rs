mod across;
mod cells;
mod flood;
mod groups;
mod meeting;
mod parting;
mod worlds;

use std::thread;
use std::time::Duration;

use nemesia_core::peers::PeerError;

use super::*;
use crate::{Config, Source, Tag};

const LIMIT: Option<Duration> = Some(Duration::from_secs(60));

fn alone() -> Endpoint {
    Endpoint::alone(&Config::default()).unwrap()
}

/// Receives a message of 8 bytes with this tag from anyone.
fn receive(endpoint: &mut Endpoint, tag: u64) -> (usize, u64) {
    let mut buf = [0; 8];
    let status = endpoint.recv(Source::Any, Tag::Exactly(tag), &mut buf).unwrap();
    (status.rank, u64::from_le_bytes(buf))
}

#[test]
fn two_processes_connect_by_address_and_answer_each_other() {
    let mut one = alone();
    let address = *one.address().unwrap();
    let other = thread::spawn(move || {
        let mut two = alone();
        let peer = two.connect(&address).unwrap();
        assert_eq!(two.connect(&address).unwrap(), peer);
        assert_eq!((two.size(), two.stage_of(peer).unwrap()), (1, PeerStage::Apart));
        let rank = two.rank_of(peer).unwrap();
        assert_eq!(two.rank_of(peer).unwrap(), rank);
        two.send(rank, 1, &7_u64.to_le_bytes()).unwrap();
        assert_eq!(receive(&mut two, 2), (rank, 8));
        two.close().unwrap();
    });
    let (from, value) = receive(&mut one, 1);
    assert_eq!(value, 7);
    let peer = one.peer_of(from).unwrap();
    assert_eq!(one.rank_of(peer).unwrap(), from);
    one.send(from, 2, &8_u64.to_le_bytes()).unwrap();
    other.join().unwrap();
    one.close().unwrap();
}

#[test]
fn a_lone_endpoint_has_no_world() {
    let mut lone = alone();
    let own = *lone.address().unwrap();
    assert!(matches!(lone.connect(&own), Err(Error::NoPeer(PeerError::Itself))));
    let foreign = PeerAddress::from_bytes([1; 64]);
    let error = lone.connect(&foreign).unwrap_err();
    assert!(matches!(&error, Error::Address { problem } if problem.contains("version 1, ours 3")), "{error}");
    assert!(matches!(lone.barrier(), Err(Error::NoWorld)));
    assert!(matches!(lone.agree(1), Err(Error::NoWorld)));
    lone.send(0, 3, b"to itself").unwrap();
    let mut buf = [0; 9];
    assert_eq!(lone.recv(Source::Rank(0), Tag::Any, &mut buf).unwrap().len, 9);
    lone.close().unwrap();
}

/// Sends a number to a peer, and lets the endpoint make progress until it has left.
fn send(endpoint: &mut Endpoint, peer: PeerRef, tag: u64, value: u64) {
    let rank = endpoint.rank_of(peer).unwrap();
    endpoint.send(rank, tag, &value.to_le_bytes()).unwrap();
}

/// Two endpoints that are opened so call each other at the same time.
fn calls_cross(open: fn() -> Endpoint) {
    for _ in 0..20 {
        let mut one = open();
        let mine = *one.address().unwrap();
        let (sender, receiver) = std::sync::mpsc::channel();
        let (ready, go) = std::sync::mpsc::channel();
        let other = thread::spawn(move || {
            let mut two = open();
            sender.send(*two.address().unwrap()).unwrap();
            let peer = two.connect(&mine).unwrap();
            let rank = two.rank_of(peer).unwrap();
            ready.send(()).unwrap();
            two.send(rank, 1, &5_u64.to_le_bytes()).unwrap();
            assert_eq!(receive(&mut two, 1), (rank, 6));
            assert_eq!((two.size() - 1, two.peer_of(rank)), (rank, Some(peer)));
            two.close().unwrap();
        });
        let peer = one.connect(&receiver.recv().unwrap()).unwrap();
        let rank = one.rank_of(peer).unwrap();
        go.recv().unwrap();
        one.send(rank, 1, &6_u64.to_le_bytes()).unwrap();
        assert_eq!(receive(&mut one, 1), (rank, 5));
        other.join().unwrap();
        one.close().unwrap();
    }
}

#[test]
fn calls_that_cross_become_one_connection() {
    calls_cross(alone);
}

#[test]
fn a_peer_that_disconnected_may_connect_again_and_its_former_name_is_stale() {
    let mut one = alone();
    let address = *one.address().unwrap();
    let other = thread::spawn(move || {
        let mut two = alone();
        let mut former = None;
        for round in 0..50 {
            let peer = two.connect(&address).unwrap();
            assert_ne!(former, Some(peer));
            send(&mut two, peer, 1, round);
            let (rank, value) = receive(&mut two, 2);
            assert_eq!((rank, value), (two.rank_of(peer).unwrap(), round + 1));
            two.disconnect(peer).unwrap();
            assert!(matches!(two.rank_of(peer), Err(Error::NoPeer(PeerError::Stale))));
            assert!(matches!(two.disconnect(peer), Err(Error::NoPeer(PeerError::Stale))));
            former = Some(peer);
        }
        two.close().unwrap();
    });
    for round in 0..50 {
        let (from, value) = receive(&mut one, 1);
        assert_eq!(value, round);
        one.send(from, 2, &(round + 1).to_le_bytes()).unwrap();
    }
    other.join().unwrap();
    assert!(one.size() <= 4, "numbers are used again: {}", one.size());
    one.close().unwrap();
}

#[test]
fn a_peer_that_has_gone_is_reported_and_its_last_message_is_received() {
    let mut one = alone();
    let address = *one.address().unwrap();
    let other = thread::spawn(move || {
        let mut two = alone();
        let peer = two.connect(&address).unwrap();
        let own = *two.address().unwrap();
        send(&mut two, peer, 1, 9);
        two.close().unwrap();
        own
    });
    let (from, value) = receive(&mut one, 1);
    assert_eq!(value, 9);
    let gone = other.join().unwrap();
    let mut buf = [0; 8];
    let end = one.recv(Source::Rank(from), Tag::Any, &mut buf);
    assert!(
        matches!(end, Err(Error::PeerFailed { rank, failure: Failure::Finished, .. }) if rank == from),
        "{end:?}"
    );
    let peer = one.connect(&gone).unwrap();
    let error = one.wait_connected(peer, LIMIT).unwrap_err();
    assert!(matches!(error, Error::PeerFailed { failure: Failure::Died, .. }), "{error}");
    assert!(matches!(one.rank_of(peer), Err(Error::NoPeer(PeerError::Ended(PeerEnd::Lost)))));
    one.disconnect(peer).unwrap();
    one.close().unwrap();
}

#[test]
fn a_released_peer_has_no_number_although_a_message_of_it_is_kept() {
    let (mut one, mut two) = (alone(), alone());
    let peer = two.connect(one.address().unwrap()).unwrap();
    let rank = two.rank_of(peer).unwrap();
    let mut sent = false;
    let message = loop {
        sent = sent || two.inject(rank, 1, &[7; 8]).unwrap();
        two.progress();
        if let Some(message) = one.improbe(Source::Any, Tag::Exactly(1)).unwrap() {
            break message;
        }
    };
    let from = message.status().rank;
    let known = one.peer_of(from).unwrap();
    one.disconnect(known).unwrap();
    assert_eq!(one.peer_of(from), None, "{known:?} is stale");
    let mut buf = [0; 8];
    assert_eq!(one.mrecv(message, &mut buf).unwrap().len, 8);
    assert_eq!(buf, [7; 8]);
    one.close().unwrap();
    drop(two);
}

#[test]
fn a_peer_that_has_left_is_named_while_a_message_of_it_waits() {
    let (mut one, mut two) = (alone(), alone());
    let address = *two.address().unwrap();
    let peer = one.connect(&address).unwrap();
    let rank = one.rank_of(peer).unwrap();
    let back = two.connect(one.address().unwrap()).unwrap();
    let other = thread::spawn(move || {
        send(&mut two, back, 1, 5);
        send(&mut two, back, 2, 6);
        two.close().unwrap();
    });
    while one.stage_of(peer).unwrap() != PeerStage::Ended(PeerEnd::Left) {
        one.progress();
    }
    other.join().unwrap();
    for (tag, sent) in [(2, 6), (1, 5)] {
        assert_eq!(one.rank_of(peer).unwrap(), rank);
        let mut buf = [0; 8];
        one.recv(Source::Rank(rank), Tag::Exactly(tag), &mut buf).unwrap();
        assert_eq!(u64::from_le_bytes(buf), sent);
    }
    assert!(matches!(one.rank_of(peer), Err(Error::NoPeer(PeerError::Ended(PeerEnd::Left)))));
    one.close().unwrap();
}

#[test]
fn a_peer_that_has_called_can_be_disconnected_once() {
    let mut one = alone();
    let address = *one.address().unwrap();
    let other = thread::spawn(move || {
        let mut two = alone();
        let peer = two.connect(&address).unwrap();
        send(&mut two, peer, 1, 4);
        let rank = two.rank_of(peer).unwrap();
        let end = two.recv(Source::Rank(rank), Tag::Any, &mut [0; 8]);
        assert!(matches!(end, Err(Error::PeerFailed { failure: Failure::Finished, .. })), "{end:?}");
        two.close().unwrap();
    });
    let (from, _) = receive(&mut one, 1);
    let stranger = one.peer_of(from).unwrap();
    one.disconnect(stranger).unwrap();
    assert!(matches!(one.disconnect(stranger), Err(Error::NoPeer(PeerError::Stale))));
    other.join().unwrap();
    one.close().unwrap();
}

/// The process whose call counts has parked the other's call, and disconnects.
#[test]
fn a_process_that_disconnects_while_calls_cross_has_not_died() {
    let mut pair = [alone(), alone()];
    pair.sort_by_key(|it| std::cmp::Reverse(*it.address().unwrap()));
    let addresses = [0, 1].map(|at: usize| *pair[at].address().unwrap());
    let peers = [0, 1].map(|at: usize| pair[at].connect(&addresses[1 - at]).unwrap());
    let ranks = [0, 1].map(|at: usize| pair[at].rank_of(peers[at]).unwrap());
    // Both calls are sent, and the second process hears the one of the first.
    pair.iter_mut().for_each(|it| _ = it.attend_calls());
    pair[1].disconnect(peers[1]).unwrap();
    while pair[0].failure(ranks[0]).is_none() {
        pair[0].progress();
    }
    assert_eq!(pair[0].failure(ranks[0]), Some(Failure::Finished));
    // Both are alive, and can connect.
    let again = pair[0].connect(&addresses[1]).unwrap();
    let rank = pair[0].rank_of(again).unwrap();
    let (mut sent, mut buf) = (false, [0; 5]);
    while pair[1].iprobe(Source::Any, Tag::Exactly(1)).unwrap().is_none() {
        sent = sent || pair[0].inject(rank, 1, b"again").unwrap();
        pair.iter_mut().for_each(|it| _ = it.progress());
    }
    pair[1].recv(Source::Any, Tag::Exactly(1), &mut buf).unwrap();
    assert_eq!(&buf, b"again");
    pair.into_iter().for_each(|it| it.close().unwrap());
}

#[test]
fn the_number_of_a_sender_is_not_used_again_before_its_message_was_collected() {
    let (mut one, mut two, mut three) = (alone(), alone(), alone());
    let sender = *two.address().unwrap();
    let mut buf = [0; 8];
    // SAFETY: the buffer outlives the request, and no other code uses it meanwhile.
    let request = unsafe { one.irecv(Source::Any, Tag::Any, buf.as_mut_ptr(), 8).unwrap() };
    let [to_one, other_to_one] = [&mut two, &mut three].map(|it| it.connect(one.address().unwrap()).unwrap());
    let rank = two.rank_of(to_one).unwrap();
    while !two.inject(rank, 1, &[5; 8]).unwrap() {
        two.progress();
        one.progress();
    }
    two.close().unwrap();
    while one.failure(1).is_none() {
        one.progress();
    }
    // The next one connects while the message is there, but was not collected.
    three.rank_of(other_to_one).unwrap();
    while three.stage_of(other_to_one).unwrap() != PeerStage::Connected(0) {
        one.progress();
        three.progress();
    }
    let status = one.test(request).unwrap().unwrap();
    assert_eq!((status.rank, buf), (1, [5; 8]));
    let peer = one.peer_of(status.rank).unwrap();
    assert_eq!(one.address_of(peer).unwrap(), &sender);
    let next = one.peer_of(2).unwrap();
    assert_eq!(one.address_of(next).unwrap(), three.address().unwrap());
    one.close().unwrap();
    three.close().unwrap();
}

#[test]
fn limits_refuse_by_name_and_a_place_that_is_left_serves_the_next() {
    let config = Config::default().connections(1);
    let mut one = Endpoint::alone(&config).unwrap();
    let (mut two, mut three) = (alone(), alone());
    let peers = [&two, &three].map(|it| *it.address().unwrap()).map(|it| one.connect(&it).unwrap());
    one.rank_of(peers[0]).unwrap();
    assert!(matches!(one.rank_of(peers[1]), Err(Error::NoPeer(PeerError::Connections { most: 1 }))));
    let called = three.connect(one.address().unwrap()).unwrap();
    let rank = three.rank_of(called).unwrap();
    while three.failure(rank).is_none() {
        one.progress();
        two.progress();
        three.progress();
    }
    assert_eq!(three.failure(rank), Some(Failure::Unreachable));
    assert!(three.warnings().iter().any(|it| it.contains("no place for a further connection")));
    one.disconnect(peers[0]).unwrap();
    assert_eq!(one.rank_of(peers[1]).unwrap(), 1);
    for it in [one, two, three] {
        it.close().unwrap();
    }
}

#[test]
fn a_process_that_admits_no_strangers_takes_calls_of_those_that_it_knows() {
    let mut one = Endpoint::alone(&Config::default().strangers(false)).unwrap();
    let (mut two, mut three) = (alone(), alone());
    one.connect(two.address().unwrap()).unwrap();
    let ranks = [&mut two, &mut three].map(|it| {
        let peer = it.connect(one.address().unwrap()).unwrap();
        it.rank_of(peer).unwrap()
    });
    while three.failure(ranks[1]).is_none() {
        [&mut one, &mut two, &mut three].into_iter().for_each(|it| _ = it.progress());
    }
    assert!(
        three.warnings().iter().any(|it| it.contains("admits no unknown peers")),
        "{:?}",
        three.warnings()
    );
    let known = thread::spawn(move || {
        two.send(ranks[0], 1, &1_u64.to_le_bytes()).unwrap();
        two.close().unwrap();
    });
    assert_eq!(receive(&mut one, 1).1, 1);
    known.join().unwrap();
    one.close().unwrap();
    three.close().unwrap();
}

#[test]
fn warnings_about_callers_are_limited() {
    let mut one = Endpoint::alone(&Config::default().strangers(false)).unwrap();
    let mut two = alone();
    for _ in 0..300 {
        let peer = two.connect(one.address().unwrap()).unwrap();
        let rank = two.rank_of(peer).unwrap();
        while two.failure(rank).is_none() {
            one.progress();
            two.progress();
        }
        two.disconnect(peer).unwrap();
    }
    assert!(!two.warnings().is_empty() && two.warnings().len() < 300 && one.warnings().len() < 300);
    one.close().unwrap();
    two.close().unwrap();
}

/// Lets an endpoint make progress until it has answered its first caller, which has not confirmed.
fn answer_first(endpoint: &mut Endpoint) -> PeerRef {
    while endpoint.peer_of(1).is_none() {
        endpoint.progress();
    }
    let caller = endpoint.peer_of(1).unwrap();
    assert_eq!(endpoint.stage_of(caller).unwrap(), PeerStage::Answering(0));
    caller
}

/// A caller that is stopped before it confirms loses its place only to another peer, and then calls once more.
#[test]
fn a_caller_that_was_stopped_before_it_confirmed_is_connected_when_it_goes_on() {
    for is_full in [false, true] {
        let mut one = Endpoint::alone(&Config::default().connections(1)).unwrap();
        let (mut two, mut three) = (alone(), alone());
        let called = two.connect(one.address().unwrap()).unwrap();
        let rank = two.rank_of(called).unwrap();
        // The second process is stopped from here on.
        let stopped = answer_first(&mut one);
        one.peers.as_mut().unwrap().calls_mut().unwrap().expire();
        if is_full {
            let other = three.connect(one.address().unwrap()).unwrap();
            three.rank_of(other).unwrap();
            while three.stage_of(other).unwrap() != PeerStage::Connected(0) {
                one.progress();
                three.progress();
            }
            assert!(one.stage_of(stopped).is_err(), "its place is another one's");
            three.disconnect(other).unwrap();
            while one.peer_of(1).is_some() {
                one.progress();
            }
        }
        while !two.inject(rank, 1, &[3; 8]).unwrap() {
            one.progress();
            two.progress();
        }
        let mut buf = [0; 8];
        assert_eq!(one.recv(Source::Any, Tag::Exactly(1), &mut buf).unwrap().rank, 1);
        assert_eq!((buf, two.failure(rank)), ([3; 8], None));
        [one, two, three].into_iter().for_each(|it| it.close().unwrap());
    }
}

#[test]
fn a_stranger_that_is_stopped_does_not_keep_a_process_from_calling_others() {
    let mut one = Endpoint::alone(&Config::default().connections(1)).unwrap();
    let (mut two, three) = (alone(), alone());
    let called = two.connect(one.address().unwrap()).unwrap();
    two.rank_of(called).unwrap();
    while one.peer_of(1).is_none() {
        one.progress();
    }
    let wanted = one.connect(three.address().unwrap()).unwrap();
    assert!(matches!(one.rank_of(wanted), Err(Error::NoPeer(PeerError::Connections { most: 1 }))));
    one.peers.as_mut().unwrap().calls_mut().unwrap().expire();
    assert_eq!(one.rank_of(wanted).unwrap(), 1);
    drop([one, two, three]);
}

/// Connects two endpoints. Returns the number by which each knows the other.
fn connected(one: &mut Endpoint, two: &mut Endpoint) -> [usize; 2] {
    let peer = two.connect(one.address().unwrap()).unwrap();
    let rank = two.rank_of(peer).unwrap();
    while !two.inject(rank, 0, &[1; 8]).unwrap() {
        two.progress();
        one.progress();
    }
    let mut buf = [0; 8];
    [one.recv(Source::Any, Tag::Exactly(0), &mut buf).unwrap().rank, rank]
}

/// A sender that disconnects owns its buffer again, although it stays mapped in the receiver's process.
#[test]
fn a_mapped_buffer_of_a_sender_that_has_disconnected_gives_no_bytes() {
    let (one, mut two) = (alone(), alone());
    let mut sent = two.allocate_buffer(OFFERED).unwrap();
    disconnect_after_an_offer(one, two, &mut sent);
}

/// As above, of a buffer that the kernel reads.
#[test]
fn a_buffer_of_a_sender_that_has_disconnected_gives_no_bytes() {
    disconnect_after_an_offer(alone(), alone(), &mut vec![0; OFFERED]);
}

const OFFERED: usize = 1 << 20;

/// Sends a buffer, offers it again, disconnects, and writes it.
fn disconnect_after_an_offer(mut one: Endpoint, mut two: Endpoint, sent: &mut [u8]) {
    const LEN: usize = OFFERED;
    let [from, to] = connected(&mut one, &mut two);
    for round in 0..2 {
        sent.fill(round);
        let mut received = vec![9; LEN];
        // SAFETY: the buffers outlive the requests, and no other code uses them meanwhile.
        let (receive, send) = unsafe {
            let receive = one.irecv(Source::Rank(from), Tag::Exactly(1), received.as_mut_ptr(), LEN).unwrap();
            (receive, two.isend(to, 1, sent.as_ptr(), LEN).unwrap())
        };
        if round == 0 {
            // The first one maps the buffer, or finds the stamp.
            while one.test(receive).unwrap().is_none() {
                two.progress();
            }
            while two.test(send).unwrap().is_none() {
                two.progress();
            }
            assert!(received.iter().all(|byte| *byte == round));
            continue;
        }
        let peer = two.peer_of(to).unwrap();
        two.disconnect(peer).unwrap();
        assert!(matches!(two.test(send), Err(Error::PeerFailed { .. })));
        sent.fill(200);
        let end = loop {
            match one.test(receive) {
                Ok(None) => {}
                end => break end,
            }
        };
        let end = end.map(|status| (status, received[LEN / 2]));
        assert!(matches!(end, Err(Error::PeerFailed { failure: Failure::Finished, .. })), "{end:?}");
    }
    one.close().unwrap();
    two.close().unwrap();
}

/// The credit of a caller comes with the answer, so its first messages do not wait until the callee has processed the
/// confirmation. They are received in order, although they were sent before the callee had a link with the caller.
#[test]
fn a_caller_that_is_answered_sends_at_once() {
    let (mut one, mut two) = (alone(), alone());
    let peer = two.connect(one.address().unwrap()).unwrap();
    let rank = two.rank_of(peer).unwrap();
    let caller = answer_first(&mut one);
    two.wait_connected(peer, LIMIT).unwrap();
    let sizes = [8, 3000, 1, 2000, 700];
    for len in sizes {
        assert!(two.inject(rank, len as u64, &vec![len as u8; len]).unwrap(), "{len} bytes wait");
    }
    // The callee finds the entries in its queue before it has a link with the caller.
    one.engine.progress();
    assert_eq!(one.stage_of(caller).unwrap(), PeerStage::Answering(0));
    for len in sizes {
        let mut buf = [0; 3000];
        let status = one.recv(Source::Any, Tag::Any, &mut buf).unwrap();
        assert_eq!((status.rank, status.tag, status.len), (1, len as u64, len));
        assert!(buf[..len].iter().all(|byte| *byte == len as u8));
    }
    one.close().unwrap();
    two.close().unwrap();
}
