//! A rank that knows the job's key, and writes bytes of its own choice into its connection over TCP. It loses its
//! connection; two other ranks exchange messages meanwhile.

use std::io::{ErrorKind, Write as _};
use std::net::{Shutdown, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use nemesia_core::port::memory::RemoteRange;
use nemesia_core::wire::placement::Frame;

use super::meeting::TestMeeting;
use crate::{Config, Endpoint, Error, Failure, NetChoice, Source, Tag};

const EVER: Duration = Duration::from_secs(60);
/// The bytes of the messages of the two honest ranks.
const LENS: [usize; 5] = [0, 8, 3000, 70_000, 700_000];
/// The rounds of the honest ranks while the other one attacks, and afterwards.
const ROUNDS: u64 = 8;
/// Connections that never say what they want.
const SILENT: usize = 80;

fn frame(frame: &Frame, payload: &[u8]) -> Vec<u8> {
    let (bytes, count) = frame.encode();
    [&bytes[..count], payload].concat()
}

/// Returns what a hostile rank writes, and whether it ends its stream then.
fn attacks() -> Vec<(&'static str, Vec<u8>, bool)> {
    let unknown = RemoteRange { address: 4096, key: 0x1234_5678_9abc };
    let send = |len| Frame::Send { len, immediate: None };
    let half = frame(&send(100), &[]);
    vec![
        ("noise", vec![0xff; 100], false),
        ("half a frame", half[..half.len() / 2].to_vec(), true),
        ("half a message", frame(&send(100), &[0; 50]), true),
        ("a message of 4 GiB", frame(&send(u32::MAX), &[]), false),
        ("a packet with a malformed header", frame(&send(60), &[0xee; 60]), false),
        (
            "a write with a key that it never got",
            frame(&Frame::Write { len: 8, to: unknown, immediate: None }, &[7; 8]),
            false,
        ),
        (
            "a read with a key that it never got",
            frame(&Frame::Read { len: 1 << 30, from: unknown }, &[]),
            false,
        ),
        ("an addition with a key that it never got", frame(&Frame::Add { at: unknown, add: 1 }, &[]), false),
        (
            "a report on operations that nobody has begun",
            frame(&Frame::Ack { executed: u64::MAX, room: u64::MAX }, &[]),
            false,
        ),
        (
            "the answer to a read that nobody has begun",
            frame(&Frame::ReadReply { len: 1 << 20 }, &[1; 64]),
            false,
        ),
        ("the end of reading what was never lent", frame(&Frame::Pulled { count: 1 << 40 }, &[]), false),
        ("a request for very many receives", frame(&Frame::Ask { wanted: u64::MAX }, &[]), false),
    ]
}

/// Exchanges messages of all sizes with a rank.
fn converse(endpoint: &mut Endpoint, other: usize, rounds: u64) {
    for round in 0..rounds {
        for len in LENS {
            let mine = vec![round as u8 ^ endpoint.rank() as u8; len];
            let mut got = vec![0xaa; len];
            if endpoint.rank() < other {
                endpoint.send(other, round, &mine).unwrap();
                endpoint.recv(Source::Rank(other), Tag::Exactly(round), &mut got).unwrap();
            } else {
                endpoint.recv(Source::Rank(other), Tag::Exactly(round), &mut got).unwrap();
                endpoint.send(other, round, &mine).unwrap();
            }
            assert!(got.iter().all(|byte| *byte == round as u8 ^ other as u8), "{len} bytes of {other}");
        }
    }
}

/// Waits until a rank has failed. Returns the failure, and the error in words.
fn failure(endpoint: &mut Endpoint, hostile: usize) -> (Failure, String) {
    match endpoint.recv(Source::Rank(hostile), Tag::Exactly(99), &mut []) {
        Err(error) => match error {
            Error::PeerFailed { rank, failure, .. } if rank == hostile => (failure, error.to_string()),
            other => panic!("{other} instead of the failure of rank {hostile}"),
        },
        Ok(message) => panic!("{message:?} instead of the failure of rank {hostile}"),
    }
}

fn attack(endpoint: &mut Endpoint, (bytes, ends): (&[u8], bool)) {
    let begun = Instant::now();
    let mut stream = endpoint.net().and_then(|net| net.duplicate(1)).unwrap();
    let victim = endpoint.address_of(endpoint.peer_of(1).unwrap()).unwrap();
    let victim = crate::shm::Calls::remote_of(victim).unwrap();
    let silent: Vec<_> = (0..SILENT).filter_map(|_| TcpStream::connect(victim).ok()).collect();
    for (number, mut stream) in silent.iter().enumerate() {
        // Some begin a handshake, and some something else.
        let _ = stream.write(&[number as u8; 20][..number % 20]);
    }
    let mut at = 0;
    while at < bytes.len() {
        match stream.write(&bytes[at..]) {
            Ok(count) => at += count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => drop(endpoint.progress()),
            Err(_) => break,
        }
        assert!(begun.elapsed() < EVER, "the victim takes nothing");
    }
    if ends {
        let _ = stream.shutdown(Shutdown::Write);
    }
    // The victim ends the connection.
    failure(endpoint, 1);
}

#[test]
fn a_rank_that_writes_raw_bytes_loses_its_connection_and_no_other_rank_loses_anything() {
    for (name, bytes, ends) in attacks() {
        let config = Config::default().local(false).net(NetChoice::Tcp).net_address(Some("127.0.0.1"));
        let (meeting, ready) = (TestMeeting::new(3), TestMeeting::new(3));
        thread::scope(|scope| {
            let open = |rank| {
                let exchange = meeting.exchange(rank);
                let config = &config;
                move || Endpoint::open_with(config, exchange).unwrap()
            };
            let opening = [open(0), open(1), open(2)];
            let [zero, one, two] = opening;
            let zero = scope.spawn(|| {
                let mut endpoint = zero();
                converse(&mut endpoint, 1, 1);
                converse(&mut endpoint, 2, 1);
                ready.wait();
                converse(&mut endpoint, 1, ROUNDS);
                converse(&mut endpoint, 1, 2);
                ready.wait();
            });
            let one = scope.spawn(|| {
                let mut endpoint = one();
                converse(&mut endpoint, 0, 1);
                converse(&mut endpoint, 2, 1);
                ready.wait();
                converse(&mut endpoint, 0, ROUNDS);
                let (failure, words) = failure(&mut endpoint, 2);
                let is_named = matches!(failure, Failure::Fault(_)) && words.contains("rank 2");
                assert!(is_named, "{name}: {words} ({failure:?})");
                converse(&mut endpoint, 0, 2);
                ready.wait();
            });
            let two = scope.spawn(|| {
                let mut endpoint = two();
                converse(&mut endpoint, 0, 1);
                converse(&mut endpoint, 1, 1);
                ready.wait();
                attack(&mut endpoint, (&bytes, ends));
                ready.wait();
            });
            for (rank, it) in [zero, one, two].into_iter().enumerate() {
                assert!(it.join().is_ok(), "{name}: rank {rank}");
            }
        });
    }
}
