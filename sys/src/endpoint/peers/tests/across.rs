//! Endpoints that share no memory call each other over TCP, as if they ran on two machines.

use std::io::ErrorKind;
use std::net::TcpStream;

use super::*;
use crate::config::NetChoice;
use crate::endpoint::Request;
use crate::shm::Calls;

/// Returns the settings of an endpoint on a machine of its own.
pub(super) fn config() -> Config {
    Config::default().local(false).net_address(Some("127.0.0.1"))
}

pub(super) fn lone() -> Endpoint {
    Endpoint::alone(&config()).unwrap()
}

#[test]
fn two_machines_connect_by_address_and_exchange_messages_of_all_sizes() {
    let mut one = lone();
    let address = *one.address().unwrap();
    let sizes = [0, 8, 300, 9_000, 70_000, 3 << 20];
    let content = |len: usize| (0..len).map(|at| (at * 7 + len) as u8).collect::<Vec<u8>>();
    let other = thread::spawn(move || {
        let mut two = lone();
        let peer = two.connect(&address).unwrap();
        let rank = two.rank_of(peer).unwrap();
        for len in sizes {
            two.send(rank, len as u64, &content(len)).unwrap();
            let mut buf = vec![0; len];
            let status = two.recv(Source::Rank(rank), Tag::Exactly(len as u64), &mut buf).unwrap();
            assert!(status.len == len && buf == content(len), "{len} bytes");
        }
        let text = two.explain().to_string();
        assert!(text.contains("rank 1 over tcp"), "{text}");
        two.close().unwrap();
    });
    for len in sizes {
        let mut buf = vec![0; len];
        let status = one.recv(Source::Any, Tag::Exactly(len as u64), &mut buf).unwrap();
        assert!(status.len == len && buf == content(len), "{len} bytes");
        one.send(status.rank, len as u64, &buf).unwrap();
    }
    other.join().unwrap();
    one.close().unwrap();
}

#[test]
fn calls_between_machines_that_cross_become_one_connection() {
    calls_cross(lone);
}

#[test]
fn a_peer_on_another_machine_that_disconnected_may_connect_again() {
    let mut one = lone();
    let address = *one.address().unwrap();
    let other = thread::spawn(move || {
        let mut two = lone();
        for round in 0..20 {
            let peer = two.connect(&address).unwrap();
            send(&mut two, peer, 1, round);
            let (rank, value) = receive(&mut two, 2);
            assert_eq!((rank, value), (two.rank_of(peer).unwrap(), round + 1));
            // The last message arrives, although the connection ends at once.
            send(&mut two, peer, 3, round + 2);
            two.disconnect(peer).unwrap();
            assert!(matches!(two.rank_of(peer), Err(Error::NoPeer(PeerError::Stale))));
        }
        two.close().unwrap();
    });
    for round in 0..20 {
        let (from, value) = receive(&mut one, 1);
        assert_eq!(value, round);
        one.send(from, 2, &(round + 1).to_le_bytes()).unwrap();
        assert_eq!(receive(&mut one, 3), (from, round + 2));
        let mut buf = [0; 8];
        let end = one.recv(Source::Rank(from), Tag::Any, &mut buf);
        assert!(
            matches!(end, Err(Error::PeerFailed { failure: Failure::Finished, .. })),
            "round {round}: {end:?}"
        );
    }
    other.join().unwrap();
    assert!(one.size() <= 5, "numbers are used again: {}", one.size());
    one.close().unwrap();
}

/// Waits until a call has failed. Returns the error, whose reason is among the warnings.
fn refused(caller: &mut Endpoint, address: &PeerAddress) -> String {
    let peer = caller.connect(address).unwrap();
    let end = caller.wait_connected(peer, LIMIT);
    let Err(Error::PeerFailed { failure: Failure::Unreachable, reason: Some(reason), rank }) = &end else {
        panic!("{end:?}");
    };
    let sent = caller.send(*rank, 1, b"late").unwrap_err().to_string();
    assert_eq!(sent, format!("rank {rank} cannot be connected with: {reason}"));
    assert!(caller.warnings().iter().any(|it| it.contains(&**reason)), "{:?}", caller.warnings());
    sent
}

/// Lets an endpoint make progress while another thread works. Returns what that returns.
fn beside<T: Send + 'static>(endpoint: &mut Endpoint, work: impl FnOnce() -> T + Send + 'static) -> T {
    let other = thread::spawn(work);
    while !other.is_finished() {
        endpoint.progress();
        endpoint.attend_calls();
        endpoint.advance_net();
    }
    other.join().unwrap()
}

#[test]
fn another_key_other_packets_and_no_network_are_refused_with_the_remedy() {
    let mut one = lone();
    let address = *one.address().unwrap();
    let warnings = beside(&mut one, move || {
        let mut other = Endpoint::alone(&config().job_key([8; 32])).unwrap();
        refused(&mut other, &address)
    });
    assert!(warnings.contains("check NEMESIA_JOB_KEY_FILE in both processes"), "{warnings}");
    let warnings = beside(&mut one, move || {
        let mut other = Endpoint::alone(&config().net_packets(Some(512))).unwrap();
        refused(&mut other, &address)
    });
    assert!(warnings.contains("NEMESIA_NET_PACKET_BYTES"), "{warnings}");
    assert_eq!((one.size(), one.warnings().len()), (1, 0));
    for net in [NetChoice::Off, NetChoice::Verbs] {
        let mut apart = Endpoint::alone(&Config::default().local(false).net(net)).unwrap();
        assert_eq!(apart.warnings(), [""; 0]);
        for (error, lacks) in [
            (apart.connect(&address).unwrap_err(), "this endpoint reaches none: NEMESIA_NET is"),
            (one.connect(apart.address().unwrap()).unwrap_err(), "that endpoint takes no calls"),
        ] {
            let text = error.to_string();
            assert!(text.contains(lacks) && text.contains("auto or tcp"), "{text}");
            assert!(matches!(error, Error::Apart { .. }), "{error:?}");
        }
    }
}

#[test]
fn nobody_is_heard_before_the_address_is_asked_for_and_no_port_is_open_before_a_peer_is_there() {
    let mut one = lone();
    let place = one.with_peers(|peers, _| Ok(Calls::remote_of(peers.address()).unwrap())).unwrap();
    assert_eq!(TcpStream::connect(place).unwrap_err().kind(), ErrorKind::ConnectionRefused);
    let address = *one.address().unwrap();
    assert_eq!(Calls::remote_of(&address), Some(place));
    drop(TcpStream::connect(place).unwrap());
    assert!(one.net().is_none());
    let other = thread::spawn(move || {
        let mut two = lone();
        let peer = two.connect(&address).unwrap();
        send(&mut two, peer, 1, 5);
        two.close().unwrap();
    });
    assert_eq!(receive(&mut one, 1).1, 5);
    assert!(one.net().is_some());
    other.join().unwrap();
    // The size of packets stays as it was in the beginning.
    let small = Endpoint::alone(&config().net_packets(Some(512))).unwrap();
    assert!(small.net().is_some());
}

#[test]
fn limits_hold_for_calls_of_other_machines() {
    let mut one = Endpoint::alone(&config().connections(1)).unwrap();
    let address = *one.address().unwrap();
    let other = thread::spawn(move || {
        let (from, value) = receive(&mut one, 1);
        let warnings = beside(&mut one, move || refused(&mut lone(), &address));
        one.send(from, 2, &value.to_le_bytes()).unwrap();
        one.close().unwrap();
        warnings
    });
    let mut first = lone();
    let peer = first.connect(&address).unwrap();
    let rank = first.rank_of(peer).unwrap();
    first.send(rank, 1, &3_u64.to_le_bytes()).unwrap();
    assert_eq!(receive(&mut first, 2), (rank, 3));
    let warnings = other.join().unwrap();
    assert!(warnings.contains("no place for a further connection"), "{warnings}");
    let mut closed = Endpoint::alone(&config().strangers(false)).unwrap();
    let address = *closed.address().unwrap();
    let warnings = beside(&mut closed, move || refused(&mut lone(), &address));
    assert!(warnings.contains("admits no unknown peers"), "{warnings}");
}

#[test]
fn a_peer_on_another_machine_that_is_gone_is_reported_after_its_last_message() {
    let mut one = lone();
    let address = *one.address().unwrap();
    let gone = thread::spawn(move || {
        let mut two = lone();
        let peer = two.connect(&address).unwrap();
        let own = *two.address().unwrap();
        send(&mut two, peer, 1, 9);
        two.close().unwrap();
        own
    });
    let (from, value) = receive(&mut one, 1);
    assert_eq!(value, 9);
    let gone = gone.join().unwrap();
    let mut buf = [0; 8];
    let end = one.recv(Source::Rank(from), Tag::Any, &mut buf);
    assert!(matches!(end, Err(Error::PeerFailed { failure: Failure::Finished, .. })), "{end:?}");
    // No process listens at its address any more.
    let peer = one.connect(&gone).unwrap();
    let end = one.wait_connected(peer, LIMIT);
    assert!(matches!(end, Err(Error::PeerFailed { failure: Failure::Unreachable, .. })), "{end:?}");
    // The caller cannot tell a dead process from a firewall that refuses the connection.
    let text = end.unwrap_err().to_string();
    assert!(text.contains("refuses the connection") && text.contains("NEMESIA_NET_ADDRESS"), "{text}");
    one.close().unwrap();
}

/// Regions of a peer on another machine: puts, gets and values of all lengths, in packets.
#[test]
fn memory_of_a_peer_on_another_machine_is_put_got_and_counted() {
    const LEN: usize = 100_000;
    let mut one = lone();
    let address = *one.address().unwrap();
    let other = thread::spawn(move || {
        let mut two = lone();
        let peer = two.connect(&address).unwrap();
        let rank = two.wait_connected(peer, LIMIT).unwrap();
        let mut key = [0; crate::KEY_BYTES];
        two.send(rank, 1, b"").unwrap();
        two.recv(Source::Rank(rank), Tag::Exactly(2), &mut key).unwrap();
        let key = crate::RemoteKey::from_bytes(rank, &key).unwrap();
        assert_eq!((key.rank(), key.len()), (rank, LEN as u64));
        for (at, len) in [(0, 8), (9, 1), (64, 5_000), (4, LEN - 4)] {
            let bytes: Vec<u8> = (0..len).map(|byte| (byte * 3 + len) as u8).collect();
            two.put(&key, at, &bytes).unwrap();
            two.flush(rank).unwrap();
            let mut back = vec![0; len];
            two.get(&key, at, &mut back).unwrap();
            assert!(back == bytes, "{len} bytes at {at}");
        }
        two.put(&key, 0, &5_u64.to_le_bytes()).unwrap();
        assert_eq!(two.fetch_add(&key, 0, 2_u64).unwrap(), 5);
        // Beyond the region nothing is done, and the error says so.
        assert!(matches!(
            two.put(&key, LEN as u64 - 1, &[1, 2]).and_then(|()| two.flush(rank)),
            Err(Error::Refused { .. })
        ));
        two.send(rank, 3, b"").unwrap();
        two.close().unwrap();
    });
    let from = one.recv(Source::Any, Tag::Exactly(1), &mut []).unwrap().rank;
    let region = one.allocate(LEN, crate::Access::ReadWrite).unwrap();
    let key = one.remote_key(region).unwrap();
    one.send(from, 2, &key.to_bytes()).unwrap();
    one.recv(Source::Rank(from), Tag::Exactly(3), &mut []).unwrap();
    let mut value = [0; 8];
    one.read_region(region, 0, &mut value).unwrap();
    assert_eq!(u64::from_le_bytes(value), 7);
    other.join().unwrap();
    one.close().unwrap();
}

#[test]
fn groups_of_two_machines_meet() {
    let mut one = lone();
    let address = *one.address().unwrap();
    let other = thread::spawn(move || {
        let mut two = lone();
        let own = two.group(&[*two.address().unwrap()]).unwrap();
        let met = two.meet(&own, Meeting::Call(address), 1, LIMIT).unwrap();
        assert_eq!(met.addresses(), &[address]);
        send(&mut two, met.peer(0).unwrap(), 4, 4);
        assert_eq!(receive(&mut two, 5).1, 5);
        two.close().unwrap();
    });
    let own = one.group(&[address]).unwrap();
    let met = one.meet(&own, Meeting::Accept, 1, LIMIT).unwrap();
    let (from, value) = receive(&mut one, 4);
    assert_eq!((one.peer_of(from), value), (met.peer(0), 4));
    one.send(from, 5, &5_u64.to_le_bytes()).unwrap();
    other.join().unwrap();
    one.close().unwrap();
}

#[test]
fn small_messages_that_are_started_one_after_another_leave_with_the_next_progress_in_order() {
    let mut one = lone();
    let address = *one.address().unwrap();
    let other = thread::spawn(move || {
        let mut two = lone();
        let peer = two.connect(&address).unwrap();
        let rank = two.rank_of(peer).unwrap();
        two.wait_connected(peer, LIMIT).unwrap();
        let values: Vec<[u8; 8]> = (0..200_u64).map(u64::to_le_bytes).collect();
        let start = |two: &mut Endpoint, value: &[u8; 8]| {
            // SAFETY: the values live until every request is complete.
            unsafe { two.isend(rank, 5, value.as_ptr(), value.len()) }.unwrap()
        };
        two.progress();
        let requests: Vec<Request> = values.iter().map(|value| start(&mut two, value)).collect();
        // Without credit even the first ones would wait.
        assert!(requests.iter().any(|request| !request.is_complete()), "the last ones wait for progress");
        for request in requests {
            two.wait(request).unwrap();
        }
        // A blocking send does not wait for others.
        two.send(rank, 5, &200_u64.to_le_bytes()).unwrap();
        assert_eq!(receive(&mut two, 6), (rank, 0));
        two.close().unwrap();
    });
    let values: Vec<(usize, u64)> = (0..=200).map(|_| receive(&mut one, 5)).collect();
    assert!(values.iter().map(|(_, value)| *value).eq(0..=200), "{values:?}");
    one.send(values[0].0, 6, &0_u64.to_le_bytes()).unwrap();
    other.join().unwrap();
    one.close().unwrap();
}

/// A firewall drops the connections of one process: the other one connects both.
#[test]
fn processes_connect_if_the_network_lets_only_one_of_them_connect() {
    for blocked in 0..2 {
        let mut both = [lone(), lone()];
        let addresses = [0, 1].map(|at| *both[at].address().unwrap());
        // Nothing answers at this address: its queue of connections is full.
        let full = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        // SAFETY: takes no memory.
        assert_eq!(unsafe { libc::listen(std::os::fd::AsRawFd::as_raw_fd(&full), 0) }, 0);
        let place = full.local_addr().unwrap();
        let _queue: Vec<_> = (0..4).map(|_| crate::tcp::begin(place).unwrap()).collect();
        let peers = [0, 1].map(|at| both[at].connect(&addresses[1 - at]).unwrap());
        let ranks = [0, 1].map(|at| both[at].rank_of(peers[at]).unwrap());
        both[blocked].peers.as_mut().unwrap().calls_mut().unwrap().redirect(place);
        let end = std::time::Instant::now() + Duration::from_secs(60);
        let is_connected = |it: &Endpoint, peer| matches!(it.stage_of(peer), Ok(PeerStage::Connected(_)));
        while !(0..2).all(|at| is_connected(&both[at], peers[at])) {
            both.iter_mut().for_each(|it| {
                it.progress();
                it.attend_calls();
                it.advance_net();
            });
            assert!(
                std::time::Instant::now() < end,
                "{:?}",
                both.each_ref().map(|it| it.warnings().to_vec())
            );
        }
        let [mut one, mut two] = both;
        let other = thread::spawn(move || {
            let mut buf = [0; 7];
            two.recv(Source::Rank(ranks[1]), Tag::Exactly(1), &mut buf).unwrap();
            assert_eq!(&buf, b"one way");
            two.close().unwrap();
        });
        one.send(ranks[0], 1, b"one way").unwrap();
        other.join().unwrap();
        one.close().unwrap();
    }
}
