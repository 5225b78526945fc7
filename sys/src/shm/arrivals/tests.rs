//! Connections at start that send nothing, or send packets that delay the receiver.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};

use nemesia_core::shared::layout::Geometry;

use super::*;
use crate::os::closer::lingering;
use crate::os::testing;
use crate::os::wait_ready;

const RANKS: usize = 2;
const LIMIT: Duration = Duration::from_secs(60);

fn handshake() -> Vec<u8> {
    let geometry = Geometry { cells: 4, cell_bytes: 4096, fastbox_slots: 4 };
    let cpus = [1; 8];
    ShmHandshake {
        rank: 1,
        epoch: 7,
        size: 2,
        number: 0,
        geometry,
        expedited: true,
        cpus,
        stamp: 0,
        incarnation: 0,
        agreements: 0,
    }
    .encode()
}

fn call(name: &str) -> HandoffConnection {
    HandoffConnection::connect(name, Instant::now() + LIMIT).unwrap()
}

/// Accepts and reads until one handshake has arrived, which is rank 1's; returns the number of rounds.
fn hear(arrivals: &mut Arrivals, listener: &HandoffListener) -> usize {
    let deadline = Instant::now() + LIMIT;
    for round in 1.. {
        arrivals.accept(listener, |_| true);
        assert!(arrivals.silent.len() <= RANKS + SPARE);
        if let Some((_, handshake, _)) = arrivals.hear() {
            assert_eq!(handshake.rank, 1);
            return round;
        }
        assert!(Instant::now() < deadline, "it was never heard");
        arrivals.wait(listener, deadline);
    }
    0
}

#[test]
fn silent_connections_do_not_delay_the_one_that_speaks() {
    let listener = HandoffListener::bind().unwrap();
    let name = listener.name();
    let silent: Vec<_> = (0..SPARE / 2).map(|_| call(&name)).collect();
    let one = call(&name);
    one.send(&handshake(), &[], Instant::now()).unwrap();
    // The limit is reached without any passage of time.
    let mut arrivals = Arrivals::new(RANKS);
    arrivals.accept(&listener, |_| true);
    assert!(arrivals.hear().is_some());
    assert_eq!(arrivals.silent.len(), silent.len(), "they may still speak");
    silent.last().unwrap().send(&handshake(), &[], Instant::now()).unwrap();
    hear(&mut arrivals, &listener);
}

#[test]
fn hundreds_of_silent_connections_make_room_for_the_one_that_speaks() {
    let listener = HandoffListener::bind().unwrap();
    let name = listener.name();
    let silent: Vec<_> = (0..300).map(|_| call(&name)).collect();
    let one = call(&name);
    one.send(&handshake(), &[], Instant::now()).unwrap();
    hear(&mut Arrivals::new(RANKS), &listener);
    drop(silent);
}

#[test]
fn a_process_that_is_not_awaited_is_refused_before_it_is_heard() {
    let listener = HandoffListener::bind().unwrap();
    let foreign = call(&listener.name());
    let (_read, write) = io::pipe().unwrap();
    foreign.send(&handshake(), &[write.as_fd()], Instant::now()).unwrap();
    let mut arrivals = Arrivals::new(RANKS);
    arrivals.accept(&listener, |_| false);
    assert!(arrivals.hear().is_none() && arrivals.silent.is_empty());
    let mut words = [0; 256];
    let (len, _) = foreign.recv(&mut words, 0, Instant::now() + LIMIT).unwrap();
    assert!(String::from_utf8_lossy(&words[..len]).contains("this rank is not awaited here"));
    assert!(foreign.has_disconnected());
}

/// Their closes would block for minutes. The test covers descriptors that are received, those that are not, and
/// those of connections that are not accepted.
#[test]
fn descriptors_whose_close_blocks_do_not_delay_anything() {
    const SECONDS: i32 = 600;
    let began = Instant::now();
    let mut keep = Vec::new();
    let mut bad = || {
        let (bad, other) = lingering(SECONDS);
        keep.push(other);
        bad
    };
    let listener = HandoffListener::bind().unwrap();
    let hand_over = |bytes: &[u8], fds: &[BorrowedFd<'_>]| {
        let caller = call(&listener.name());
        caller.send(bytes, fds, Instant::now()).unwrap();
        caller
    };
    let (one, two, three, four) = (bad(), bad(), bad(), bad());
    let callers =
        [hand_over(b"garbage", &[one.as_fd()]), hand_over(&handshake(), &[two.as_fd(), two.as_fd()])];
    // After a valid packet.
    callers[1].send(b"more", &[three.as_fd()], Instant::now()).unwrap();
    drop((one, two, three));
    let mut arrivals = Arrivals::new(RANKS);
    hear(&mut arrivals, &listener);
    // This connection is not accepted.
    let last = hand_over(b"garbage", &[four.as_fd()]);
    drop(four);
    drop((arrivals, listener));
    assert!(wait_ready(last.as_fd(), libc::POLLIN, Instant::now() + LIMIT).unwrap(), "it was closed");
    assert!(began.elapsed() < Duration::from_secs(SECONDS as u64 / 4), "{:?}", began.elapsed());
}

#[test]
fn a_handshake_is_received_when_there_is_room_for_its_descriptors() {
    const NAME: &str =
        concat!(module_path!(), "::a_handshake_is_received_when_there_is_room_for_its_descriptors");
    if !testing::is_child() {
        return testing::run_again(NAME, || Ok(()));
    }
    let listener = HandoffListener::bind().unwrap();
    let one = call(&listener.name());
    one.send(&handshake(), &[listener.as_fd()], Instant::now()).unwrap();
    let mut arrivals = Arrivals::new(RANKS);
    arrivals.accept(&listener, |_| true);
    let taken = testing::take_descriptors();
    assert!(arrivals.hear().is_none());
    assert!(arrivals.problem().unwrap().is_shortage() && arrivals.silent.len() == 1);
    drop(taken);
    assert_eq!(hear(&mut arrivals, &listener), 1);
}
