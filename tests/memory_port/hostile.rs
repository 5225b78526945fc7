//! A hostile peer that sends arbitrary bytes fails its own connection, and reaches only memory whose key it was
//! given.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use nemesia_core::port::memory::{
    CompletionSource, Connection, ConnectionState, Event, MemoryKey, MemoryPort, Origin, Private,
    ReceiveQueue, RegionAccess, RemoteRange, Work,
};
use nemesia_core::wire::placement::{
    Frame, HANDSHAKE_BYTES, Handshake, MAGIC, MOST_ASKED, PlacementAnswer, Reason,
};
use nemesia_tests::content::Random;
use nemesia_tests::memory_port::Verdict;
use nemesia_tests::memory_port::bench::{Bench, Memory};
use nemesia_tests::{quick, seed};

use crate::tcp::Tcp;

/// A victim: an honest connection between nodes 0 and 1, and memory of node 1.
struct Scene {
    bench: Bench<Tcp>,
    honest: (Connection, Connection),
    /// Memory in which peers may do everything.
    open: Memory,
    /// Memory that peers may only read.
    readable: Memory,
    /// Memory whose key no peer was given.
    secret: Memory,
}

const BYTES: usize = 4096;

impl Scene {
    fn new() -> Result<Self, String> {
        let mut bench = Bench::new(Tcp::small());
        bench.open(2)?;
        let honest = bench.connect(0, 1)?;
        let readable = bench.memory(1, BYTES, RegionAccess { remote_read: true, ..RegionAccess::LOCAL })?;
        let (open, secret) = (bench.open_memory(1, BYTES)?, bench.open_memory(1, BYTES)?);
        readable.put(0, &[0x33; BYTES]);
        secret.put(0, &[0x44; BYTES]);
        Ok(Self { bench, honest, open, readable, secret })
    }

    fn address(&mut self) -> Result<(SocketAddr, u64), String> {
        let address = self.bench.port(1)?.address().ok_or("no address")?;
        let bytes = address.bytes();
        let port = u16::from_le_bytes([bytes[6], bytes[7]]);
        let token = bytes.last_chunk().map_or(0, |token| u64::from_le_bytes(*token));
        Ok((SocketAddr::from((Ipv4Addr::LOCALHOST, port)), token))
    }

    fn unauthenticated(&mut self) -> Result<(TcpStream, u64), String> {
        let (address, token) = self.address()?;
        let stream = TcpStream::connect(address).map_err(|error| error.to_string())?;
        stream.set_nonblocking(true).map_err(|error| error.to_string())?;
        Ok((stream, token))
    }

    /// Opens a raw connection that the victim takes for a peer.
    fn enemy(&mut self, shared: bool) -> Result<(TcpStream, Connection), String> {
        let (mut stream, token) = self.unauthenticated()?;
        let handshake =
            Handshake { answer: PlacementAnswer::Request, token, shared: false, private: Private::EMPTY };
        stream.write_all(&handshake.encode()).map_err(|error| error.to_string())?;
        let connection = self.bench.event(1, "request", |event| match event {
            Event::Requested { connection, .. } => Some(*connection),
            _ => None,
        })?;
        let offer = self.bench.offer(&[], shared);
        self.bench.port(1)?.accept(connection, &offer).map_err(|error| error.to_string())?;
        self.bench
            .event(1, "established", |event| matches!(event, Event::Established { .. }).then_some(()))?;
        let (mut answer, mut have) = ([0; HANDSHAKE_BYTES], 0);
        self.bench.until("an answer", |_| {
            have += stream.read(&mut answer[have..]).unwrap_or(0);
            have == HANDSHAKE_BYTES
        })?;
        Ok((stream, connection))
    }

    /// Checks that no other connection was harmed.
    fn check(&mut self) -> Verdict {
        let (a, b) = self.honest;
        self.bench.works((0, a), (1, b))?;
        let is = |memory: &Memory, byte| memory.get(0, BYTES).iter().all(|it| *it == byte);
        if !is(&self.readable, 0x33) || !is(&self.secret, 0x44) {
            return Err("memory without write access was written".into());
        }
        Ok(())
    }
}

/// Sends as many of the bytes as the victim accepts; the victim makes progress meanwhile.
fn say(scene: &mut Scene, stream: &mut TcpStream, bytes: &[u8]) {
    let (mut at, mut idle) = (0, 0);
    while at < bytes.len() && idle < 50 {
        match stream.write(&bytes[at..]) {
            Ok(count) => at += count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => idle += 1,
            Err(_) => return,
        }
        // The answers do not matter, but they must not fill the socket.
        let _ = stream.read(&mut [0; 4096]);
        scene.bench.turn();
    }
}

/// Returns a frame that could be valid, with keys that exist or nearly exist.
fn frame(random: &mut Random, keys: &[MemoryKey]) -> Vec<u8> {
    let key = random.pick(keys);
    let wild = [0, 1, 7, 8, 4095, 4096, 4097, u64::from(u32::MAX), u64::MAX, 1 << 32, 1 << 63];
    let mut number = || if random.below(3) == 0 { random.pick(&wild) } else { random.below(64) };
    let at = RemoteRange {
        address: key.address.wrapping_add(number().wrapping_mul(8)),
        key: key.key ^ (number() / 60),
    };
    let (len, value, other) = (number() as u32, number(), number());
    let immediate = (value % 2 == 0).then_some(len);
    let frame = match random.below(16) {
        0 | 1 => Frame::Write { len, to: at, immediate },
        2 => Frame::Read { len, from: at },
        3 => Frame::Send { len, immediate },
        4 => Frame::Add { at, add: value },
        5 => Frame::Swap { at, new: value, expected: other },
        6 => Frame::ReadReply { len },
        7 => Frame::ValueReply { old: value },
        8 => Frame::Ack { executed: value, room: other },
        // No process can read another's memory over TCP.
        10 => Frame::WriteFrom { len, to: at, immediate, source: value },
        11 => Frame::ReadFrom { len, source: value },
        12 => Frame::Pulled { count: value },
        13 => Frame::CanPull,
        9 => Frame::Refuse { operation: value, reason: Reason::Access },
        _ => Frame::Ask { wanted: value },
    };
    let (bytes, count) = frame.encode();
    let mut bytes = bytes[..count].to_vec();
    if matches!(frame, Frame::Write { .. } | Frame::Send { .. } | Frame::ReadReply { .. }) {
        // The payload, complete, too short or too long.
        bytes.resize(count + (len.min(5000) as usize).saturating_sub(random.below(3) as usize), 0xbb);
    }
    if random.below(4) == 0 {
        let at = random.below(bytes.len() as u64) as usize;
        bytes[at] ^= 1 << random.below(8);
    }
    bytes
}

#[test]
fn a_peer_that_sends_noise_fails_only_itself() -> Verdict {
    let seed = seed();
    let mut random = Random::new(seed);
    let mut scene = Scene::new()?;
    let rounds = if quick() { 60 } else { 400 };
    let mut ended = 0;
    for round in 0..rounds {
        let reported = |why: String| format!("seed {seed}, round {round}: {why}");
        let shared = round % 3 == 0;
        let (mut stream, connection) = scene.enemy(shared).map_err(reported)?;
        // The right place with a wrong key.
        let guess = MemoryKey { key: scene.secret.key.key ^ 1 << 20 << (round % 40), ..scene.secret.key };
        let keys = [scene.open.key, scene.readable.key, guess];
        // The victim has work under way, which the enemy may answer in any way.
        let (into, from) = ([scene.open.slice(0, 64)], scene.open.key.at(0));
        let port = scene.bench.port(1)?;
        let posted = [
            port.read(Work::new(connection, 1), &into, from),
            port.write(Work::new(connection, 2), CompletionSource::Gather(&into), from, None),
            port.send(Work::new(connection, 3), CompletionSource::Gather(&into), None),
        ];
        assert_eq!(posted, [Ok(()); 3]);
        let queue = if shared { ReceiveQueue::Shared } else { ReceiveQueue::Of(connection) };
        let room = port.receive(queue, 4, &into);
        assert!(shared || room.is_ok(), "{room:?}");
        let count = random.below(12) + 1;
        for _ in 0..count {
            let bytes = frame(&mut random, &keys);
            say(&mut scene, &mut stream, &bytes);
        }
        ended += usize::from(scene.bench.port(1)?.state(connection) == ConnectionState::Lost);
        drop(stream);
        scene.bench.port(1)?.close(connection);
        let closed = Event::Closed { connection };
        scene.bench.event(1, "closed", |event| (*event == closed).then_some(())).map_err(reported)?;
        let done = &mut scene.bench.nodes[1].done;
        let own = done.iter().filter(|it| it.connection == connection && it.id < 4).count();
        assert_eq!(own, 3, "seed {seed}, round {round}: each work request completes once");
        done.clear();
        scene.bench.nodes[1].events.clear();
        scene.check().map_err(reported)?;
    }
    assert!(ended * 2 > rounds as usize, "only {ended} of {rounds} were noticed");
    Ok(())
}

#[test]
fn noise_instead_of_a_handshake_is_not_accepted() -> Verdict {
    let mut random = Random::new(seed());
    let mut scene = Scene::new()?;
    for round in 0..150_u64 {
        let (mut stream, token) = scene.unauthenticated()?;
        let handshake =
            Handshake { answer: PlacementAnswer::Request, token, shared: false, private: Private::EMPTY };
        let mut bytes = handshake.encode();
        match round % 5 {
            0 => bytes.fill_with(|| random.next() as u8),
            1 => bytes[16] ^= 1,
            2 => bytes[24] = 1 + random.below(200) as u8,
            3 => bytes[40..].fill(7),
            // Half of the frame, and then nothing more.
            _ => {}
        }
        let count = if round % 5 == 4 { HANDSHAKE_BYTES / 2 } else { HANDSHAKE_BYTES };
        say(&mut scene, &mut stream, &bytes[..count]);
        if round % 5 != 4 {
            scene.bench.until("the end of the stream", |_| match stream.read(&mut [0; 256]) {
                Ok(0) => true,
                Err(error) => error.kind() != ErrorKind::WouldBlock,
                Ok(_) => false,
            })?;
        }
        let asked = scene.bench.nodes[1].events.iter().any(|it| matches!(it, Event::Requested { .. }));
        assert!(!asked, "round {round}");
    }
    scene.check()?;
    let (a, b) = scene.bench.connect(0, 1)?;
    scene.bench.works((0, a), (1, b))
}

#[test]
fn another_version_is_answered_with_ours() -> Verdict {
    let mut scene = Scene::new()?;
    let (mut stream, _) = scene.unauthenticated()?;
    let mut bytes = [0; HANDSHAKE_BYTES];
    bytes[..8].copy_from_slice(&MAGIC.to_le_bytes());
    bytes[8] = 99;
    say(&mut scene, &mut stream, &bytes);
    let mut answer = Vec::new();
    scene.bench.until("an answer", |_| {
        let mut part = [0; HANDSHAKE_BYTES];
        let count = stream.read(&mut part).unwrap_or(0);
        answer.extend_from_slice(&part[..count]);
        answer.len() >= HANDSHAKE_BYTES
    })?;
    let answer = answer.first_chunk().map(Handshake::decode);
    assert!(matches!(answer, Some(Ok(Handshake { answer: PlacementAnswer::Refuse, .. }))), "{answer:?}");
    Ok(())
}

#[test]
fn silent_unauthenticated_connections_do_not_keep_others_out() -> Verdict {
    let mut scene = Scene::new()?;
    let mut silent = Vec::new();
    for _ in 0..100 {
        silent.push(scene.unauthenticated()?.0);
        scene.bench.turn();
    }
    scene.check()?;
    let (a, b) = scene.bench.connect(0, 1)?;
    scene.bench.works((0, a), (1, b))?;
    // The victim closes these connections when their time is over.
    let late = scene.bench.now + Duration::from_secs(6);
    scene.bench.fabric.skip_to(late);
    for stream in &mut silent {
        scene.bench.until("the end of a stream", |_| match stream.read(&mut [0]) {
            Ok(count) => count == 0,
            Err(error) => error.kind() != ErrorKind::WouldBlock,
        })?;
    }
    let (a, b) = scene.bench.connect(0, 1)?;
    scene.bench.works((0, a), (1, b))
}

/// As for a process that looks rarely: between two looks, more connections come than there are places.
#[test]
fn a_handshake_that_has_come_is_heard_before_others_take_its_place() -> Verdict {
    let mut scene = Scene::new()?;
    let (mut stream, token) = scene.unauthenticated()?;
    let mut others = Vec::new();
    // With the first one they have all places.
    for _ in 0..63 {
        scene.bench.turn();
        others.push(scene.unauthenticated()?.0);
    }
    scene.bench.turn();
    others.push(scene.unauthenticated()?.0);
    let handshake =
        Handshake { answer: PlacementAnswer::Request, token, shared: false, private: Private::EMPTY };
    stream.write_all(&handshake.encode()).map_err(|error| error.to_string())?;
    scene.bench.until("the request", |bench| {
        bench.nodes[1].events.iter().any(|it| matches!(it, Event::Requested { .. }))
    })?;
    drop(others);
    Ok(())
}

#[test]
fn peers_that_claim_shared_receives_and_never_use_them_block_no_sender() -> Verdict {
    const ENEMIES: usize = 3;
    let mut scene = Scene::new()?;
    let mut enemies = Vec::new();
    for _ in 0..ENEMIES {
        enemies.push(scene.enemy(true)?);
    }
    let (honest, _) = scene.bench.connect_with(0, 1, (false, true))?;
    // One receive for each.
    let mut posted = Vec::new();
    for _ in 0..=ENEMIES {
        posted.push(scene.bench.post_small(1, ReceiveQueue::Shared)?);
    }
    for (stream, _) in &mut enemies {
        let (ask, count) = Frame::Ask { wanted: MOST_ASKED }.encode();
        say(&mut scene, stream, &ask[..count]);
        // A message that begins and never ends.
        let (send, count) = Frame::Send { len: 8, immediate: None }.encode();
        say(&mut scene, stream, &send[..count]);
    }
    for _ in 0..20 {
        scene.bench.send_small(0, honest)?;
        let mut came = None;
        scene.bench.until("an honest message", |bench| {
            let done = &mut bench.nodes[1].done;
            came = done.iter().position(|it| posted.contains(&it.id)).map(|at| done.remove(at).id);
            came.is_some()
        })?;
        posted.retain(|id| Some(*id) != came);
        posted.push(scene.bench.post_small(1, ReceiveQueue::Shared)?);
    }
    for (_, connection) in &enemies {
        let state = scene.bench.port(1)?.state(*connection);
        assert_eq!(state, ConnectionState::Ready, "they have broken no rule");
    }
    scene.check()
}

#[test]
fn the_kernel_reports_the_origin_of_the_other_end() -> Verdict {
    let mut scene = Scene::new()?;
    let (_stream, enemy) = scene.enemy(false)?;
    let (a, b) = scene.honest;
    for (node, connection) in [(0, a), (1, b), (1, enemy)] {
        let here = Some(Origin::Host(Ipv4Addr::LOCALHOST.into()));
        assert_eq!(scene.bench.port(node)?.origin(connection), here);
    }
    Ok(())
}
