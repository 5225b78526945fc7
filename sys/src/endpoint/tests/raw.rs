//! A rank that knows the job's key, and writes bytes of its own choice into its connection over TCP. It loses its
//! connection; two other ranks exchange messages meanwhile.

use std::io::{ErrorKind, Write as _};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpStream};
use std::os::fd::{FromRawFd as _, RawFd};
use std::thread;
use std::time::{Duration, Instant};

use nemesia_core::port::memory::RemoteRange;
use nemesia_core::wire::placement::Frame;

use super::meeting::TestMeeting;
use crate::{Config, Endpoint, Error, Failure, NetChoice, Source, Tag};

/// The address of these ranks, which no other test of this process uses.
const HOST: Ipv4Addr = Ipv4Addr::new(127, 0, 77, 7);
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

/// Returns the sockets of these ranks at the ends that have requested the connections: each is a duplicate.
fn connected() -> Vec<(SocketAddr, TcpStream)> {
    let fds = std::fs::read_dir("/proc/self/fd").unwrap();
    let fds = fds.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let is_here = |address: &SocketAddr| address.ip() == IpAddr::V4(HOST);
    fds.filter_map(|fd: RawFd| {
        // SAFETY: takes no memory. Another thread may close the descriptor meanwhile: then this fails.
        let copy = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 0) };
        // SAFETY: the descriptor is new and has no other owner.
        let stream = (copy >= 0).then(|| unsafe { TcpStream::from_raw_fd(copy) })?;
        let peer = stream.peer_addr().ok().filter(is_here)?;
        (!is_here(&stream.local_addr().ok()?)).then_some((peer, stream))
    })
    .collect()
}

/// Returns the connection of rank 2 with rank 1: the higher rank requests, so two connections lead to rank 0, and one
/// to rank 1.
fn only_one_to_its_peer() -> Option<TcpStream> {
    let all = connected();
    let to = |peer| all.iter().filter(move |it| it.0 == peer).count();
    let at = all.iter().position(|(peer, _)| to(*peer) == 1).filter(|_| all.len() == 3)?;
    all.into_iter().nth(at).map(|(_, stream)| stream)
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
    let mut stream = loop {
        if let Some(stream) = only_one_to_its_peer() {
            break stream;
        }
        // The first requests were challenged, and their sockets may not be closed yet.
        assert!(begun.elapsed() < EVER, "not the three connections that were expected: {:?}", connected());
        endpoint.progress();
    };
    let victim = stream.peer_addr().unwrap();
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
        let config = Config::default().local(false).net(NetChoice::Tcp).net_address(Some("127.0.77.7"));
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
