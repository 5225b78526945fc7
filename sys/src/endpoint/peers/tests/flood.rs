//! Floods of connections that are no calls, while a rightful peer calls.

use std::io::Write as _;
use std::net::TcpStream;
use std::time::Instant;

use super::across::lone;
use super::*;
use crate::shm::Calls;

/// The connections of a flood, more than an endpoint keeps. All stay open until the rightful peer has been served.
const CONNECTIONS: usize = 300;
/// The messages in each direction.
const ROUNDS: u64 = 50;

/// A rightful peer calls after a flood has begun, and exchanges messages. `flood` makes connection number `at` to the
/// endpoint with this address; `door` is 0 inside a machine, 1 between machines.
fn flooded<C: Send + 'static>(
    open: fn() -> Endpoint,
    door: usize,
    flood: impl Fn(&PeerAddress, usize) -> C + Send + 'static,
) {
    let mut one = open();
    let address = *one.address().unwrap();
    let (filled, begins) = std::sync::mpsc::channel();
    let (served, ends) = std::sync::mpsc::channel();
    let flooding = thread::spawn(move || {
        let held: Vec<_> = (0..CONNECTIONS).map(|at| flood(&address, at)).collect();
        filled.send(()).unwrap();
        ends.recv().unwrap();
        drop(held);
    });
    let rightful = thread::spawn(move || {
        let mut two = open();
        begins.recv().unwrap();
        let peer = two.connect(&address).unwrap();
        for round in 0..ROUNDS {
            send(&mut two, peer, 1, round);
            assert_eq!(receive(&mut two, 2).1, round + 1);
        }
        served.send(()).unwrap();
        two.close().unwrap();
    });
    let mut most_seen = 0;
    let mut round = 0;
    let begun = Instant::now();
    while round < ROUNDS {
        assert!(begun.elapsed() < LIMIT.unwrap(), "the rightful peer is kept out");
        one.progress();
        one.attend_calls();
        let (strangers, most) = one.with_peers(|peers, _| Ok(peers.calls().unwrap().callers())).unwrap();
        let strangers = strangers[door];
        assert!(most < CONNECTIONS, "it is no flood");
        assert!(strangers <= most, "{strangers} connections of strangers, of {most}");
        most_seen = most_seen.max(strangers);
        if one.iprobe(Source::Any, Tag::Exactly(1)).unwrap().is_some() {
            let (from, value) = receive(&mut one, 1);
            assert_eq!(value, round);
            round += 1;
            one.send(from, 2, &round.to_le_bytes()).unwrap();
        }
    }
    assert!(most_seen > 0, "the flood has not reached the endpoint");
    assert_eq!(one.size(), 2, "strangers have no numbers");
    rightful.join().unwrap();
    flooding.join().unwrap();
    one.close().unwrap();
}

#[test]
fn a_flood_of_half_open_calls_keeps_no_peer_of_the_machine_out() {
    let flood = |address: &PeerAddress, at: usize| {
        let connection = Calls::dial(address).unwrap();
        if at.is_multiple_of(20) {
            // It may have been given up before.
            let _ = connection.send(b"no call", &[], Instant::now());
        }
        connection
    };
    flooded(alone, 0, flood);
}

#[test]
fn a_flood_of_half_open_calls_keeps_no_peer_of_another_machine_out() {
    let flood = |address: &PeerAddress, at: usize| {
        let mut stream = TcpStream::connect(Calls::remote_of(address).unwrap()).unwrap();
        if at.is_multiple_of(20) {
            // It may have been given up before.
            let _ = stream.write_all(&[0x5a; 512]);
        }
        stream
    };
    flooded(lone, 1, flood);
}
