//! The connections of the hostile ranks, which are made and used without an endpoint.

use std::sync::mpsc::{Receiver, Sender, TryRecvError};
use std::time::{Duration, Instant};

use nemesia_core::flow::posted::FIRST;
use nemesia_core::job_key::{CallTerms, JobKey};
use nemesia_core::port::memory::{
    Address, CompletionSource, ConnectError, Connection, Event, MemoryPort as _, Private, ReceiveQueue,
    RegionAccess, RemoteRange, Work, WorkOutcome,
};
use nemesia_core::wire::Kind;
use nemesia_core::wire::channel::{ChannelRefusal, HEADER_BYTES, Header, Numbered, PacketKind, Stamp};
use nemesia_core::wire::hello::{Challenge, Hello, HelloContent, Proof};

use super::meeting::HonestMeeting;
use super::{HOSTILE, PACKET_BYTES, PATIENCE};
use crate::content::seed_of;
use crate::memory_port::bench::{Bench, Memory};
use crate::memory_port::{Fabric, Verdict, ensure};

/// The receives of each connection. None is posted again.
const RECEIVES: u32 = 16;
/// The bytes of a receive.
const RECEIVE_BYTES: u32 = PACKET_BYTES + HEADER_BYTES as u32;
/// The bytes from which the attackers send, and into which they read.
const SCRATCH_BYTES: usize = 1 << 16;
/// The number of the first receive.
const FIRST_RECEIVE: u64 = 1 << 50;

/// The channels between the attackers and rank 0.
#[derive(Debug)]
pub(super) struct Stages {
    pub(super) told: Receiver<u64>,
    pub(super) tells: Sender<()>,
}

/// A connection of a hostile rank.
#[derive(Debug)]
pub(super) struct RawConnection {
    connection: Connection,
    /// The memory of its receives, and the number of the first one.
    memory: Memory,
    first: u64,
    /// The packets that have arrived, and no attack has looked at.
    heard: Vec<(Header, Vec<u8>)>,
    /// Total receives and units that the peer has reported.
    posted: u32,
    units: u64,
    /// Total packets sent, and the number of the next one with content.
    sent: u32,
    next: u32,
}

/// A hostile rank, with its connection with rank 0.
pub(super) struct Attacker<'a, F: Fabric> {
    bench: &'a mut Bench<F>,
    stages: &'a Stages,
    line: RawConnection,
    scratch: &'a Memory,
    rank: usize,
    /// What rank 0 has said at first: the key of its region.
    pub(super) key: u64,
}

/// A connection that was not made.
#[derive(Clone, Copy, Debug)]
struct Refused {
    error: ConnectError,
    private: Private,
}

/// What all ranks of the world know.
struct JobFacts {
    number: u64,
    key: JobKey,
    addresses: [Address; HOSTILE],
}

/// Takes the places of so many hostile ranks. Returns their connections with rank 0.
pub(super) fn take_places<F: Fabric>(
    bench: &mut Bench<F>,
    meeting: &HonestMeeting,
    count: usize,
) -> Result<Vec<RawConnection>, String> {
    let facts = JobFacts::learn(meeting)?;
    let mut lines = Vec::new();
    for rank in HOSTILE..HOSTILE + count {
        for callee in 0..HOSTILE {
            lines.push(facts.join(bench, rank as u32, callee)?);
        }
    }
    Ok(lines.into_iter().step_by(HOSTILE).collect())
}

/// Returns the memory from which the attackers send, and into which they read.
pub(super) fn scratch<F: Fabric>(bench: &mut Bench<F>) -> Result<Memory, String> {
    bench.sink(0, SCRATCH_BYTES)
}

impl Stages {
    /// Returns what rank 0 has said, if it has said something or ended.
    pub(super) fn word(&self) -> Option<Result<u64, String>> {
        match self.told.try_recv() {
            Ok(word) => Some(Ok(word)),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => Some(Err("rank 0 has ended".to_owned())),
        }
    }
}

impl JobFacts {
    /// Learns the number of the world, the key of the job, and the addresses of ranks 0 and 1.
    fn learn(meeting: &HonestMeeting) -> Result<Self, String> {
        let card = |rank| meeting.card(rank).ok_or(format!("rank {rank} publishes no card"));
        let cards = [card(0)?, card(1)?];
        let [first, second] = [0, 1].map(|rank: usize| cards[rank].split('.').collect::<Vec<&str>>());
        // An address of a device if there is one, otherwise that of TCP.
        let address = |card: &[&str]| {
            let text = card.get(3..5)?.iter().find(|text| **text != "-")?;
            bytes_of(text).as_deref().and_then(Address::new)
        };
        let addresses = address(&first).zip(address(&second)).ok_or("no addresses on the cards")?;
        let key = first.get(2).and_then(|key| bytes_of(key)?.try_into().ok()).ok_or("no key on the card")?;
        let number = first.get(1).and_then(|world| u64::from_str_radix(world, 16).ok());
        let number = number.ok_or("no number on the card")?;
        Ok(Self { number, key: JobKey::from_bytes(key), addresses: [addresses.0, addresses.1] })
    }

    /// Connects a hostile rank with an honest one, as its endpoint would.
    fn join<F: Fabric>(
        &self,
        bench: &mut Bench<F>,
        rank: u32,
        callee: usize,
    ) -> Result<RawConnection, String> {
        let access = RegionAccess::LOCAL;
        let memory = bench.memory(0, (RECEIVES * RECEIVE_BYTES) as usize, access)?;
        let number = u64::from(rank) * HOSTILE as u64 + callee as u64;
        let first = FIRST_RECEIVE + number * u64::from(RECEIVES);
        let begun = Instant::now();
        loop {
            match self.try_to_join(bench, (rank, callee), (&memory, first))? {
                Ok(connection) => {
                    let (heard, posted) = (Vec::new(), FIRST);
                    let (units, sent, next) = (0, FIRST, FIRST);
                    let line = RawConnection { connection, memory, first, heard, posted, units, sent, next };
                    return line.begin(bench);
                }
                Err(refused) => ensure(refused.is_passing() && begun.elapsed() < PATIENCE, || {
                    format!("rank {callee} refuses rank {rank}: {refused:?}")
                })?,
            }
        }
    }

    /// Lets itself be challenged, and answers.
    fn try_to_join<F: Fabric>(
        &self,
        bench: &mut Bench<F>,
        (rank, callee): (u32, usize),
        receives: (&Memory, u64),
    ) -> Result<Result<Connection, Refused>, String> {
        let call = hello((rank, callee), HelloContent::Call);
        let refused = match self.request(bench, callee, &call, None)? {
            Ok(_) => return Err("a call was accepted".into()),
            Err(refused) => refused,
        };
        let Some(challenge) = Challenge::decode(&refused.private) else { return Ok(Err(refused)) };
        let request = self.answer((rank, callee), challenge);
        self.request(bench, callee, &request, Some(receives))
    }

    /// Returns the request that answers a challenge.
    fn answer(&self, (rank, callee): (u32, usize), challenge: Challenge) -> Hello {
        let (nonce, number) = (1, challenge.number);
        let content = |proof| HelloContent::Request { number, nonce, proof };
        let unproven = hello((rank, callee), content(Proof::default()));
        let terms = CallTerms {
            world: self.number,
            challenge,
            nonce,
            caller: unproven.common(),
            caller_address: &[],
            callee: callee as u32,
            callee_address: self.addresses[callee].bytes(),
        };
        Hello { content: content(self.key.request_proof(&terms)), ..unproven }
    }

    /// Requests a connection.
    fn request<F: Fabric>(
        &self,
        bench: &mut Bench<F>,
        callee: usize,
        hello: &Hello,
        receives: Option<(&Memory, u64)>,
    ) -> Result<Result<Connection, Refused>, String> {
        let offer = bench.offer(hello.encode().bytes(), false);
        let requested = bench.port(0)?.connect(&self.addresses[callee], &offer);
        let connection = requested.map_err(|error| format!("a request: {error}"))?;
        for slot in 0..RECEIVES {
            let Some((memory, first)) = receives else { break };
            let part = [memory.slice((slot * RECEIVE_BYTES).into(), RECEIVE_BYTES)];
            let (queue, id) = (ReceiveQueue::Of(connection), first + u64::from(slot));
            bench.port(0)?.receive(queue, id, &part).map_err(|error| format!("a receive: {error}"))?;
        }
        let failed = bench.event(0, "an answer", |event| match event {
            Event::Established { connection: it, .. } if *it == connection => Some(None),
            Event::Failed { connection: it, error, private } if *it == connection => {
                Some(Some(Refused { error: *error, private: *private }))
            }
            _ => None,
        })?;
        let Some(refused) = failed else { return Ok(Ok(connection)) };
        bench.close(0, connection)?;
        bench.nodes[0].done.retain(|done| done.connection != connection);
        Ok(Err(refused))
    }
}

impl Refused {
    /// Returns whether a later request may succeed, as endpoints judge it.
    fn is_passing(&self) -> bool {
        use ChannelRefusal::{Buffers, Exists, Unproven};
        match ChannelRefusal::decode(&self.private) {
            Some(refusal) => matches!(refusal, Buffers | Exists | Unproven),
            None => matches!(self.error, ConnectError::Refused | ConnectError::Unreachable),
        }
    }
}

/// Returns what a hostile rank says about itself.
fn hello((rank, callee): (u32, usize), content: HelloContent) -> Hello {
    Hello {
        rank,
        rail: 0,
        receives: RECEIVES as u16,
        packet_bytes: PACKET_BYTES,
        token: seed_of(&[rank.into(), callee as u64]),
        incarnation: 0,
        content,
    }
}

/// Returns the bytes with these hexadecimal digits.
fn bytes_of(digits: &str) -> Option<Vec<u8>> {
    let byte = |at| digits.get(at..at + 2).and_then(|digits| u8::from_str_radix(digits, 16).ok());
    (0..digits.len()).step_by(2).map(byte).collect()
}

impl RawConnection {
    /// Sends the first packet, for which some fabrics wait.
    fn begin<F: Fabric>(mut self, bench: &mut Bench<F>) -> Result<Self, String> {
        let id = bench.next_id();
        let header = self.header(None).encode();
        let work = Work::new(self.connection, id);
        let sent = bench.port(0)?.send(work, CompletionSource::Inline(&header), None);
        sent.map_err(|error| format!("the first packet: {error}"))?;
        bench.succeeds(0, id)?;
        self.sent = self.sent.wrapping_add(1);
        Ok(self)
    }

    /// Returns a valid header.
    fn header(&self, packet: Option<Numbered>) -> Header {
        let stamp = Stamp { posted: FIRST.wrapping_add(RECEIVES), target: RECEIVES };
        Header { packet, stamp, units: 0, waited: false, slots: 0 }
    }

    /// Takes what has arrived.
    fn gather<F: Fabric>(&mut self, bench: &mut Bench<F>) {
        let Self { first, ref memory, .. } = *self;
        let mut arrived = Vec::new();
        bench.nodes[0].done.retain(|done| {
            let slot = done.id.wrapping_sub(first);
            let is_ours = slot < u64::from(RECEIVES);
            if is_ours && let WorkOutcome::Received { len, .. } = done.outcome {
                arrived.push(memory.get(slot * u64::from(RECEIVE_BYTES), len as usize));
            }
            !is_ours
        });
        for bytes in arrived {
            let Some((head, payload)) = bytes.split_first_chunk() else { continue };
            let Some(header) = Header::decode(head) else { continue };
            (self.posted, self.units) = (header.stamp.posted, self.units.max(header.units));
            self.heard.push((header, payload.to_vec()));
        }
    }
}

impl<'a, F: Fabric> Attacker<'a, F> {
    /// Waits until rank 0 has set its trap for this rank.
    pub(super) fn prepare_for(
        rank: usize,
        (bench, scratch): (&'a mut Bench<F>, &'a Memory),
        line: RawConnection,
        stages: &'a Stages,
    ) -> Result<Self, String> {
        let mut new = Self { bench, stages, line, scratch, rank, key: 0 };
        new.key = new.told()?;
        Ok(new)
    }

    pub(super) const fn rank(&self) -> usize {
        self.rank
    }

    /// Returns a valid header for the next packet, with this content.
    pub(super) fn header(&mut self, (kind, context, tag): (PacketKind, u16, u64)) -> Header {
        let sequence = self.line.next;
        self.line.next = sequence.wrapping_add(1);
        self.line.header(Some(Numbered { kind, context, tag, sequence }))
    }

    /// Returns a valid header without content.
    pub(super) fn update(&self) -> Header {
        self.line.header(None)
    }

    /// Sends a message of these bytes. Returns whether it has arrived.
    pub(super) fn send(&mut self, bytes: &[u8]) -> Result<bool, String> {
        self.send_with(bytes, None)
    }

    /// As [`Self::send`], with an immediate.
    pub(super) fn send_with(&mut self, bytes: &[u8], immediate: Option<u32>) -> Result<bool, String> {
        let (work, parts) = self.prepare(bytes);
        self.line.sent = self.line.sent.wrapping_add(1);
        let parts = if bytes.is_empty() { &[][..] } else { &parts[..] };
        let posted = self.bench.port(0)?.send(work, CompletionSource::Gather(parts), immediate);
        if posted.is_err() { Ok(false) } else { self.is_done(work.id) }
    }

    fn prepare(&mut self, bytes: &[u8]) -> (Work, [nemesia_core::port::memory::Slice; 1]) {
        self.scratch.put(0, bytes);
        let work = Work::new(self.line.connection, self.bench.next_id());
        (work, [self.scratch.slice(0, bytes.len() as u32)])
    }

    fn is_done(&mut self, id: u64) -> Result<bool, String> {
        Ok(self.bench.completion(0, id)?.outcome == WorkOutcome::Done)
    }

    /// Sends a packet with this header, when the victim has a receive for it.
    pub(super) fn packet(&mut self, header: &Header, payload: &[u8]) -> Result<bool, String> {
        self.until("a credit", |it| (it.line.posted.wrapping_sub(it.line.sent) as i32 > 0).then_some(()))?;
        self.send(&[&header.encode(), payload].concat())
    }

    /// Sends a packet of the engine.
    pub(super) fn engine(
        &mut self,
        (kind, context, tag): (Kind, u16, u64),
        payload: &[u8],
    ) -> Result<bool, String> {
        let header = self.header((PacketKind::Engine(kind), context, tag));
        self.packet(&header, payload)
    }

    /// Makes the next packet have the number of the last one.
    pub(super) const fn repeat_number(&mut self) {
        self.line.next = self.line.next.wrapping_sub(1);
    }

    /// Waits until this rank may send messages that rank 0 has to store.
    pub(super) fn await_units(&mut self) -> Verdict {
        self.until("units of the store", |it| (it.line.units > 0).then_some(()))
    }

    /// Returns the first packet that `pick` accepts. Those before are dropped.
    pub(super) fn hear<T>(
        &mut self,
        what: &str,
        pick: impl Fn(&Header, &[u8]) -> Option<T>,
    ) -> Result<T, String> {
        self.until(what, |it| {
            let mut heard = it.line.heard.drain(..);
            heard.find_map(|(header, payload)| pick(&header, &payload))
        })
    }

    /// Returns the first packet of the engine of this kind that `pick` accepts.
    pub(super) fn hear_kind<T>(
        &mut self,
        wanted: Kind,
        pick: impl Fn(&Numbered, &[u8]) -> Option<T>,
    ) -> Result<T, String> {
        self.hear(wanted.name(), |header, payload| {
            let packet = header.packet.filter(|packet| packet.kind == PacketKind::Engine(wanted))?;
            pick(&packet, payload)
        })
    }

    /// Writes into memory of rank 0. Returns whether the work has succeeded, which proves nothing on some fabrics.
    pub(super) fn write(
        &mut self,
        bytes: &[u8],
        to: RemoteRange,
        immediate: Option<u32>,
    ) -> Result<bool, String> {
        let (work, parts) = self.prepare(bytes);
        let parts = if bytes.is_empty() { &[][..] } else { &parts[..] };
        let posted = self.bench.port(0)?.write(work, CompletionSource::Gather(parts), to, immediate);
        if posted.is_err() { Ok(false) } else { self.is_done(work.id) }
    }

    /// Reads memory of rank 0. `None` if that fails.
    pub(super) fn read(&mut self, len: usize, from: RemoteRange) -> Result<Option<Vec<u8>>, String> {
        let (work, parts) = self.prepare(&vec![0; len]);
        let posted = self.bench.port(0)?.read(work, &parts, from);
        let is_done = posted.is_ok() && self.is_done(work.id)?;
        Ok(is_done.then(|| self.scratch.get(0, len)))
    }

    /// Adds to memory of rank 0.
    pub(super) fn add(&mut self, at: RemoteRange) -> Result<bool, String> {
        let (work, [part]) = self.prepare(&[0; 8]);
        let posted = self.bench.port(0)?.fetch_add(work, part, at, 1);
        if posted.is_err() { Ok(false) } else { self.is_done(work.id) }
    }

    /// Lets rank 0 take its next step, and waits until it has.
    pub(super) fn step(&mut self) -> Verdict {
        self.stages.tells.send(()).map_err(|_| "rank 0 has ended".to_owned())?;
        self.told().map(drop)
    }

    /// Waits until rank 0 says something. It exchanges messages with rank 1 before.
    fn told(&mut self) -> Result<u64, String> {
        self.until("rank 0 says something", |it| it.stages.word())?
    }

    fn until<T>(&mut self, what: &str, mut pick: impl FnMut(&mut Self) -> Option<T>) -> Result<T, String> {
        let begun = Instant::now();
        loop {
            self.bench.turn();
            self.line.gather(self.bench);
            if let Some(found) = pick(self) {
                return Ok(found);
            }
            ensure(begun.elapsed() < PATIENCE, || format!("never: {what}"))?;
            std::thread::sleep(Duration::from_micros(100));
        }
    }
}
