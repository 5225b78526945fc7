//! Peers that violate the protocol: a plain port sends what no channel sends.

use nemesia_core::flow::posted::{FIRST, LEAST, Stamp};
use nemesia_core::job_key::{CallTerms, JobKey, KEY_BYTES};
use nemesia_core::port::PacketPieces;
use nemesia_core::port::channel::RendezvousChoice;
use nemesia_core::port::memory::{
    CompletionSource, ConnectError, Connection, Event, MemoryPort as _, Origin, Private, ReceiveQueue,
    RegionAccess, Work,
};
use nemesia_core::port::{PacketPort as _, Polled, PortFault};
use nemesia_core::wire::channel::{ChannelRefusal, Header, Numbered, PacketKind};
use nemesia_core::wire::hello::{Challenge, Hello, HelloContent, Proof};
use nemesia_core::wire::{Envelope, Kind};

use super::super::bench::{Bench, Memory};
use super::super::{Fabric, Verdict, ensure, equal};
use super::node::{KEY, PACKET_BYTES, WORLD};
use super::{Hall, text};

/// The bytes that the hostile port reserves for each message and for each receive.
const ROOM: u64 = 2048;

const HELLO: Hello = Hello {
    rank: 2,
    rail: 0,
    receives: LEAST as u16,
    packet_bytes: PACKET_BYTES,
    token: 9,
    incarnation: 0,
    content: HelloContent::Call,
};

fn header(sequence: u32, posted: u32) -> Vec<u8> {
    let packet = Some(Numbered { kind: PacketKind::Engine(Kind::Eager), context: 1, tag: 2, sequence });
    Header { packet, stamp: Stamp { posted, target: LEAST }, units: 0, waited: false, slots: 0 }
        .encode()
        .to_vec()
}

/// A name, the messages that the hostile port sends in order, and a predicate for the expected fault.
type Misdeed = (&'static str, Vec<Vec<u8>>, fn(&PortFault) -> bool);

fn misdeeds() -> Vec<Misdeed> {
    let good = header(FIRST, FIRST + LEAST);
    let is_header = |fault: &PortFault| matches!(fault, PortFault::Header);
    let is_sequence = |fault: &PortFault| matches!(fault, PortFault::Sequence { .. });
    let with = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[at] = byte;
        bytes
    };
    let update = Header {
        packet: None,
        stamp: Stamp { posted: FIRST + LEAST, target: LEAST },
        units: 0,
        waited: false,
        slots: 0,
    };
    let long = [good.clone(), vec![7; PACKET_BYTES as usize + 1]].concat();
    vec![
        ("too short", vec![vec![1; 31]], is_header),
        ("unknown kind", vec![with(0, 99)], is_header),
        ("reserved bits", vec![with(1, 2)], is_header),
        ("fewer receives than before", vec![header(FIRST, FIRST + LEAST - 1)], is_header),
        ("too many receives", vec![header(FIRST, FIRST.wrapping_add(1 << 16))], is_header),
        ("no receives to be kept", vec![with(4, 0)], is_header),
        ("an update with content", vec![[update.encode().to_vec(), vec![1]].concat()], is_header),
        ("twice", vec![good.clone(), good], is_sequence),
        ("beyond the window", vec![header(FIRST.wrapping_add(64), FIRST + LEAST)], is_sequence),
        // A fabric may detect it before the channel does.
        ("too long", vec![long], |fault| {
            matches!(fault, PortFault::Header | PortFault::Work(_) | PortFault::Lost(_))
        }),
    ]
}

/// Opens a plain connection to rank 0.
fn intrude<F: Fabric>(
    bench: &mut Bench<F>,
    hall: &mut Hall<F>,
    hello: &Private,
) -> Result<Connection, String> {
    let address = hall.node(0)?.channel.port().address().ok_or("no address")?;
    let mut offer = bench.offer(&[], false);
    offer.private = *hello;
    bench.port(0)?.connect(&address, &offer).map_err(text)
}

/// Returns the result of the connection; `Ok` when it is ready.
fn answer<F: Fabric>(
    bench: &mut Bench<F>,
    hall: &mut Hall<F>,
    active: Connection,
) -> Result<Result<(), (ConnectError, Private)>, String> {
    let mut found = None;
    bench.until("an answer", |bench| {
        hall.turn(bench);
        while let Some(event) = bench.nodes[0].events.pop() {
            match event {
                Event::Established { connection, .. } if connection == active => found = Some(Ok(())),
                Event::Failed { connection, error, private } if connection == active => {
                    found = Some(Err((error, private)));
                }
                _ => {}
            }
        }
        found.is_some()
    })?;
    found.ok_or_else(|| "no answer".into())
}

/// Calls rank 0, and returns the request with which a process answers the challenge that knows this key and believes
/// the address of rank 0 to be `callee`.
fn prove<F: Fabric>(
    bench: &mut Bench<F>,
    hall: &mut Hall<F>,
    hello: &Hello,
    (key, callee): (JobKey, &[u8]),
) -> Result<Hello, String> {
    let active = intrude(bench, hall, &hello.encode())?;
    let refusal = match answer(bench, hall, active)? {
        Ok(()) => return Err("a call was accepted without a proof".into()),
        Err((_, refusal)) => refusal,
    };
    bench.close(0, active)?;
    let challenge =
        Challenge::decode(&refusal).ok_or_else(|| format!("{refusal:?} instead of a challenge"))?;
    let (nonce, number) = (99, challenge.number);
    let content = |proof| HelloContent::Request { number, nonce, proof };
    let hello = Hello { content: content(Proof::default()), ..*hello };
    let caller = hello.common();
    let terms = CallTerms {
        world: WORLD,
        challenge,
        nonce,
        caller,
        caller_address: &[],
        callee: 0,
        callee_address: callee,
    };
    Ok(Hello { content: content(key.request_proof(&terms)), ..hello })
}

/// Calls rank 0 and answers its challenge.
fn prove_right<F: Fabric>(bench: &mut Bench<F>, hall: &mut Hall<F>, hello: &Hello) -> Result<Hello, String> {
    let address = hall.node(0)?.channel.port().address().ok_or("no address")?;
    prove(bench, hall, hello, (KEY, address.bytes()))
}

/// Requests a connection with rank 0, which must refuse it.
fn is_refused<F: Fabric>(
    bench: &mut Bench<F>,
    hall: &mut Hall<F>,
    request: &Private,
    refusal: ChannelRefusal,
) -> Verdict {
    let active = intrude(bench, hall, request)?;
    match answer(bench, hall, active)? {
        Ok(()) => return Err(format!("{refusal:?}: it was let in")),
        Err((_, said)) => equal("refused", ChannelRefusal::decode(&said), Some(refusal))?,
    }
    bench.close(0, active)
}

/// Sends a message from a separate place. It may fail; the send is not waited for, because its target must make
/// progress first.
fn post<F: Fabric>(
    bench: &mut Bench<F>,
    connection: Connection,
    memory: &Memory,
    (at, bytes): (u64, &[u8]),
) -> Verdict {
    let id = bench.next_id();
    memory.put(at, bytes);
    let part = [memory.slice(at, bytes.len() as u32)];
    bench.port(0)?.send(Work::new(connection, id), CompletionSource::Gather(&part), None).map_err(text)
}

/// Returns the fault that rank 0 reports.
fn fault<F: Fabric>(bench: &mut Bench<F>, hall: &mut Hall<F>) -> Result<PortFault, String> {
    let mut found = None;
    bench.until("a fault", |bench| {
        hall.turn(bench);
        if let Some(node) = &mut hall.nodes[0] {
            match node.channel.poll() {
                Polled::Packet(arrival) => node.channel.release(arrival),
                Polled::Fault(fault) => found = Some(fault),
                Polled::Idle => {}
            }
        }
        found.is_some()
    })?;
    let found = found.ok_or("no fault")?;
    equal("whose fault", found.peer, 2)?;
    Ok(found.fault)
}

/// Connects two channels with a place for a third, and makes a plain port that pretends to be the third.
fn scene<F: Fabric>(bench: &mut Bench<F>) -> Result<Option<(Hall<F>, Memory)>, String> {
    let Some(mut hall) = Hall::open(bench, (3, 1, RendezvousChoice::Auto))? else { return Ok(None) };
    hall.nodes.truncate(2);
    hall.connect(bench)?;
    bench.open(1)?;
    let memory = bench.memory(0, 24 * ROOM as usize, RegionAccess::LOCAL)?;
    Ok(Some((hall, memory)))
}

/// Connects the plain port with a correct handshake.
fn enter<F: Fabric>(bench: &mut Bench<F>, hall: &mut Hall<F>, memory: &Memory) -> Result<Connection, String> {
    let request = prove_right(bench, hall, &HELLO)?;
    let active = intrude(bench, hall, &request.encode())?;
    // It posts the receives that it has announced.
    for at in 1..=u64::from(LEAST) {
        let id = bench.next_id();
        let part = [memory.slice(at * ROOM, ROOM as u32)];
        bench.port(0)?.receive(ReceiveQueue::Of(active), id, &part).map_err(text)?;
    }
    answer(bench, hall, active)?.map_err(|(error, _)| format!("not connected: {error}"))?;
    Ok(active)
}

/// Disconnects both sides.
fn leave<F: Fabric>(bench: &mut Bench<F>, hall: &mut Hall<F>, active: Connection) -> Verdict {
    hall.node(0)?.channel.close(2);
    bench.port(0)?.close(active);
    bench.until("it is cleared away", |bench| {
        hall.turn(bench);
        bench.nodes[0].done.clear();
        hall.poll();
        hall.nodes[0].as_ref().is_some_and(|node| node.channel.report(2).rails == 0)
    })
}

/// Sends packets without credit: the other side has no credit left to return its reposted receives.
fn overdraw<F: Fabric>(bench: &mut Bench<F>, hall: &mut Hall<F>, memory: &Memory) -> Verdict {
    let active = enter(bench, hall, memory)?;
    let envelope = Envelope { kind: Kind::Eager, context: 0, tag: 0, total: 0 };
    for number in 0..16 {
        let bytes = header(FIRST.wrapping_add(number), FIRST + LEAST);
        post(bench, active, memory, ((4 + u64::from(number)) * ROOM, &bytes))?;
        let mut found = None;
        bench.until("a packet, or a fault", |bench| {
            hall.turn(bench);
            if let Some(node) = &mut hall.nodes[0] {
                match node.channel.poll() {
                    Polled::Packet(arrival) => {
                        node.channel.release(arrival);
                        found = Some(None);
                    }
                    Polled::Fault(fault) => found = Some(Some(fault.fault)),
                    Polled::Idle => {}
                }
            }
            found.is_some()
        })?;
        if let Some(fault) = found.flatten() {
            equal("fault", fault, PortFault::Overdrawn)?;
            ensure(number >= LEAST, || format!("packet {number} had a credit"))?;
            return leave(bench, hall, active);
        }
        // It sends as long as it has credit; the reserve goes to an update.
        while hall.node(0)?.channel.send(2, &envelope, PacketPieces::Whole(&[])).map_err(text)? {}
    }
    Err("sixteen packets for three receives".into())
}

pub(super) fn check<F: Fabric>(bench: &mut Bench<F>) -> Verdict {
    let Some((mut hall, memory)) = scene(bench)? else { return Ok(()) };
    for (what, messages, is_right) in misdeeds() {
        let active = enter(bench, &mut hall, &memory)?;
        for (at, bytes) in (1 + u64::from(LEAST)..).zip(&messages) {
            post(bench, active, &memory, (at * ROOM, bytes))?;
        }
        let found = fault(bench, &mut hall)?;
        ensure(is_right(&found), || format!("{what}: {found:?}"))?;
        leave(bench, &mut hall, active)?;
    }
    overdraw(bench, &mut hall, &memory)?;
    // The other connections are unharmed.
    hall.talk(bench, 30)?;
    hall.close(bench)
}

pub(super) fn unauthenticated<F: Fabric>(bench: &mut Bench<F>) -> Verdict {
    let Some((mut hall, _)) = scene(bench)? else { return Ok(()) };
    let private = |bytes: &[u8]| Private::new(bytes).unwrap_or(Private::EMPTY);
    let mut version = HELLO.encode().bytes().to_vec();
    version[0] = 77;
    for (hello, refusal) in [
        (private(b"who is there?"), ChannelRefusal::Protocol),
        (private(&version), ChannelRefusal::Version),
        (Hello { rail: 1, ..HELLO }.encode(), ChannelRefusal::Settings),
        (Hello { packet_bytes: 512, ..HELLO }.encode(), ChannelRefusal::Settings),
        (Hello { receives: 2, ..HELLO }.encode(), ChannelRefusal::Settings),
    ] {
        is_refused(bench, &mut hall, &hello, refusal)?;
    }
    for (rank, refusal) in
        [(0, ChannelRefusal::NotAMember), (3, ChannelRefusal::NotAMember), (1, ChannelRefusal::Claimed)]
    {
        let request = prove_right(bench, &mut hall, &Hello { rank, ..HELLO })?;
        is_refused(bench, &mut hall, &request.encode(), refusal)?;
    }
    hall.talk(bench, 10)?;
    hall.close(bench)
}

/// Processes that do not know the key, or repeat or pass on what another process has proved.
pub(super) fn strangers<F: Fabric>(bench: &mut Bench<F>) -> Verdict {
    let Some((mut hall, memory)) = scene(bench)? else { return Ok(()) };
    let [zero, one] = [0, 1].map(|rank| hall.node(rank).map(|node| node.channel.port().address()));
    let (zero, one) = (zero?.ok_or("no address")?, one?.ok_or("no address")?);
    let wrong = JobKey::from_bytes([0x6c; KEY_BYTES]);
    // Without the key; and with the proof for another process, which a third one passes on.
    for known in [(wrong, zero.bytes()), (KEY, one.bytes()), (KEY, &[])] {
        let request = prove(bench, &mut hall, &HELLO, known)?;
        is_refused(bench, &mut hall, &request.encode(), ChannelRefusal::WrongKey)?;
    }
    // A proof that is cut off, or sent under another name.
    let request = prove_right(bench, &mut hall, &HELLO)?;
    let said = request.encode();
    // A fabric may append zeros to what is cut off, so what is missing is no zero.
    let last = said.bytes().iter().rposition(|byte| *byte != 0).unwrap_or_default();
    let cut = said.bytes().get(..last).and_then(Private::new).unwrap_or(Private::EMPTY);
    let active = intrude(bench, &mut hall, &cut)?;
    ensure(answer(bench, &mut hall, active)?.is_err(), || "a part of a proof was accepted".into())?;
    bench.close(0, active)?;
    is_refused(bench, &mut hall, &Hello { token: 10, ..request }.encode(), ChannelRefusal::WrongKey)?;
    // A recorded proof.
    let active = intrude(bench, &mut hall, &said)?;
    answer(bench, &mut hall, active)?.map_err(|(error, _)| format!("not connected: {error}"))?;
    is_refused(bench, &mut hall, &said, ChannelRefusal::Unproven)?;
    leave(bench, &mut hall, active)?;
    is_refused(bench, &mut hall, &said, ChannelRefusal::Unproven)?;
    // The rank is still free for the process that knows the key.
    let active = enter(bench, &mut hall, &memory)?;
    leave(bench, &mut hall, active)?;
    hall.talk(bench, 10)?;
    hall.close(bench)
}

/// If the fabric reports the origin of a request, a request from a wrong origin is refused.
pub(super) fn elsewhere<F: Fabric>(bench: &mut Bench<F>) -> Verdict {
    let Some((mut hall, memory)) = scene(bench)? else { return Ok(()) };
    let here = origin(bench, &mut hall)?;
    // An address for documentation (RFC 5737), and a process that cannot exist.
    for elsewhere in [Origin::Host([192, 0, 2, 1].into()), Origin::Process(u32::MAX)] {
        hall.node(0)?.channel.prioritize_from(2, Some(elsewhere));
        let request = prove_right(bench, &mut hall, &HELLO)?;
        is_refused(bench, &mut hall, &request.encode(), ChannelRefusal::NotAMember)?;
    }
    hall.node(0)?.channel.prioritize_from(2, here);
    let active = enter(bench, &mut hall, &memory)?;
    leave(bench, &mut hall, active)?;
    hall.talk(bench, 10)?;
    hall.close(bench)
}

/// Returns the origin of the plain port, as the fabric reports it to a peer.
fn origin<F: Fabric>(bench: &mut Bench<F>, hall: &mut Hall<F>) -> Result<Option<Origin>, String> {
    bench.open(1)?;
    let (active, passive) = bench.connect(0, 1)?;
    let (here, there) = (bench.port(1)?.origin(passive), bench.port(0)?.origin(active));
    if let Some(Origin::Process(pid)) = here {
        equal("process", pid, std::process::id())?;
    }
    ensure(here.is_some() == there.is_some(), || format!("{here:?}, but {there:?}"))?;
    hall.turn(bench);
    bench.close(0, active)?;
    bench.close(1, passive)?;
    Ok(here)
}
