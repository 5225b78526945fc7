//! A scripted memory port, whose events the test determines, and a channel over it.

use std::collections::{HashMap, VecDeque};
use std::vec;
use std::vec::Vec;

use core::mem;
use core::time::Duration;

use super::kept::TestRegistrations;
use crate::flow::posted::{FIRST, LEAST, Stamp};
use crate::job_key::{CallTerms, JobKey};
use crate::payload::LentMemory;
use crate::port::channel::{
    AccessSlot, BufferSlab, Channel, ChannelBuffer, ChannelPeer, ChannelStorage, Config, FastPath, Parts,
    RendezvousChoice,
};
use crate::port::memory::{
    Address, Armed, Completion, CompletionSource, ConnectError, Connection, ConnectionState, Event, Facts,
    MemoryKey, MemoryPort, Offer, Origin, PortRegion, PostError, Private, ReceiveQueue, RegionAccess,
    RegisterError, RemoteRange, Slice, Work, WorkError, WorkOutcome,
};
use crate::port::{PacketPort as _, PeerId, Polled};
use crate::wire::Kind;
use crate::wire::channel::{HEADER_BYTES, Header, Numbered, PacketKind};
use crate::wire::hello::{Challenge, Hello, HelloContent, PROOF_BYTES, Proof};

/// The number of the world.
pub(super) const WORLD: u64 = 77;
/// The key of the job.
pub(super) const KEY: JobKey = JobKey::from_bytes([7; 32]);
/// The address that this process calls.
const ADDRESS: &[u8] = &[1];
/// Payload bytes of the largest packet, which is longer than a slot of a ring.
pub(super) const PACKET_BYTES: u32 = 1024;

const FACTS: Facts = Facts {
    name: "script",
    ordered_within_write: true,
    ordered_among_writes: true,
    active_speaks_first: false,
    write_proves_placement: true,
    waits_for_receive: true,
    read_needs_remote_write: false,
    registration_pins: false,
    immediates: false,
    atomics: false,
    atomics_exclude_processor: false,
    inline_bytes: 64,
    message_bytes: 1 << 20,
    transfer_bytes: 1 << 20,
    slices: 1,
    read_slices: 1,
    send_depth: 64,
    receive_depth: 64,
    shared_receive_depth: 0,
    connections: 64,
    regions: 4,
};

#[derive(Debug, Default)]
pub(super) struct Script {
    /// Posted receives, oldest first.
    pub(super) posted: HashMap<Connection, VecDeque<(u64, Slice)>>,
    /// Incomplete sends: number, and the bytes of inline sends.
    pub(super) sent: Vec<(Connection, u64, Vec<u8>)>,
    pub(super) done: VecDeque<Completion>,
    pub(super) events: VecDeque<Event>,
    pub(super) closed: Vec<Connection>,
    pub(super) refused: Vec<(Connection, Private)>,
    /// Private data of connections and acceptances.
    pub(super) said: Vec<Private>,
    /// Number of calls of `receive` that may still succeed.
    pub(super) receives_left: Option<usize>,
    pub(super) refuses_to_accept: bool,
    pub(super) refuses_to_connect: bool,
    /// Whether the ends of connections are not reported yet.
    pub(super) keeps_closed: bool,
    /// The origin of all connections.
    pub(super) origin: Option<Origin>,
    /// Writes: target, and the bytes of inline writes.
    pub(super) written: Vec<(RemoteRange, Vec<u8>)>,
    connections: u32,
    /// The memory of each region; the first is that of the buffers.
    pub(super) regions: Vec<Option<LentMemory>>,
}

impl Script {
    pub(super) fn connection(&mut self) -> Connection {
        self.connections += 1;
        Connection { index: self.connections, generation: 1 }
    }

    /// Simulates a connection request.
    pub(super) fn request(&mut self, hello: &Hello) -> Connection {
        let connection = self.connection();
        self.events.push_back(Event::Requested { connection, private: hello.encode() });
        connection
    }

    /// Returns the connection that was made last.
    pub(super) fn last(&self) -> Connection {
        Connection { index: self.connections, generation: 1 }
    }

    /// Simulates the arrival of a message in the oldest receive.
    pub(super) fn arrive(&mut self, connection: Connection, bytes: &[u8]) {
        let (id, into) = self.posted.get_mut(&connection).unwrap().pop_front().unwrap();
        assert!(self.regions[0].as_ref().unwrap().write(into.offset, bytes));
        let outcome = WorkOutcome::Received { len: bytes.len() as u32, immediate: None, written: false };
        self.done.push_back(Completion { id, connection, outcome });
    }

    /// Simulates bytes that a peer writes.
    pub(super) fn place(&mut self, key: u64, at: u64, bytes: &[u8]) {
        assert!(self.regions[key as usize].as_ref().unwrap().write(at, bytes));
    }

    /// Fails all work requests of a connection.
    pub(super) fn flush(&mut self, connection: Connection) {
        let outcome = WorkOutcome::Failed(WorkError::Flushed);
        for (id, _) in self.posted.remove(&connection).unwrap_or_default() {
            self.done.push_back(Completion { id, connection, outcome });
        }
        for (_, id, _) in self.sent.extract_if(.., |(of, ..)| *of == connection) {
            self.done.push_back(Completion { id, connection, outcome });
        }
    }
}

// SAFETY: it uses no memory but by the descriptor that it was lent, when a test lets a message arrive; it keeps none
// after a drop, and no test takes memory back.
#[allow(unsafe_code, reason = "a port has obligations")]
unsafe impl MemoryPort for Script {
    fn facts(&self) -> &Facts {
        &FACTS
    }

    fn register(&mut self, memory: LentMemory, _: RegionAccess) -> Result<PortRegion, RegisterError> {
        self.regions.push(Some(memory));
        Ok(PortRegion { index: self.regions.len() as u32 - 1, generation: 1 })
    }

    fn deregister(&mut self, region: PortRegion) -> Result<(), RegisterError> {
        self.regions[region.index as usize] = None;
        Ok(())
    }

    fn key(&self, region: PortRegion) -> Option<MemoryKey> {
        let memory = self.regions[region.index as usize].as_ref()?;
        let (address, key) = (u64::from(region.index) << 32, region.index.into());
        Some(MemoryKey { address, len: memory.len() as u64, key })
    }

    fn address(&self) -> Option<Address> {
        None
    }

    fn connect(&mut self, _: &Address, offer: &Offer) -> Result<Connection, ConnectError> {
        self.said.push(offer.private);
        if self.refuses_to_connect { Err(ConnectError::Full { limit: 1 }) } else { Ok(self.connection()) }
    }

    fn accept(&mut self, _: Connection, offer: &Offer) -> Result<(), ConnectError> {
        self.said.push(offer.private);
        if self.refuses_to_accept { Err(ConnectError::State) } else { Ok(()) }
    }

    fn refuse(&mut self, connection: Connection, private: Private) -> Result<(), ConnectError> {
        self.refused.push((connection, private));
        Ok(())
    }

    fn close(&mut self, connection: Connection) {
        if !self.closed.contains(&connection) {
            self.closed.push(connection);
            self.flush(connection);
        }
    }

    fn state(&self, _: Connection) -> ConnectionState {
        ConnectionState::Ready
    }

    fn origin(&self, _: Connection) -> Option<Origin> {
        self.origin
    }

    fn write(
        &mut self,
        work: Work,
        from: CompletionSource<'_>,
        to: RemoteRange,
        _: Option<u32>,
    ) -> Result<(), PostError> {
        let bytes = if let CompletionSource::Inline(bytes) = from { bytes.to_vec() } else { Vec::new() };
        self.written.push((to, bytes));
        if !work.quiet {
            let Work { id, connection, .. } = work;
            self.done.push_back(Completion { id, connection, outcome: WorkOutcome::Done });
        }
        Ok(())
    }

    fn read(&mut self, _: Work, _: &[Slice], _: RemoteRange) -> Result<(), PostError> {
        Err(PostError::Unsupported)
    }

    fn send(&mut self, work: Work, from: CompletionSource<'_>, _: Option<u32>) -> Result<(), PostError> {
        let bytes = if let CompletionSource::Inline(bytes) = from { bytes.to_vec() } else { Vec::new() };
        self.sent.push((work.connection, work.id, bytes));
        Ok(())
    }

    fn fetch_add(&mut self, _: Work, _: Slice, _: RemoteRange, _: u64) -> Result<(), PostError> {
        Err(PostError::Unsupported)
    }

    fn compare_swap(&mut self, _: Work, _: Slice, _: RemoteRange, _: u64, _: u64) -> Result<(), PostError> {
        Err(PostError::Unsupported)
    }

    fn receive(&mut self, queue: ReceiveQueue, id: u64, into: &[Slice]) -> Result<(), PostError> {
        let ReceiveQueue::Of(connection) = queue else { return Err(PostError::Unsupported) };
        match &mut self.receives_left {
            Some(0) => return Err(PostError::System(12)),
            Some(left) => *left -= 1,
            None => {}
        }
        self.posted.entry(connection).or_default().push_back((id, into[0]));
        Ok(())
    }

    fn poll(&mut self, into: &mut [Completion]) -> usize {
        match (into.first_mut(), self.done.pop_front()) {
            (Some(to), Some(completion)) => {
                *to = completion;
                1
            }
            _ => 0,
        }
    }

    fn poll_event(&mut self, _: Duration) -> Option<Event> {
        if let Some(event) = self.events.pop_front() {
            return Some(event);
        }
        if self.keeps_closed {
            return None;
        }
        // The last event of a connection, after all its completions were polled.
        let polled = |connection: &Connection| self.done.iter().all(|it| it.connection != *connection);
        let at = self.closed.iter().position(polled)?;
        Some(Event::Closed { connection: self.closed.remove(at) })
    }

    fn arm(&mut self) -> Armed {
        Armed::Poll
    }

    fn descriptor(&self) -> Option<i32> {
        None
    }
}

#[derive(Debug)]
pub(super) struct ScriptStorage;

impl ChannelStorage for ScriptStorage {
    type Peers = Vec<ChannelPeer<Vec<Option<u32>>>>;
    type Window = Vec<Option<u32>>;
    type Buffers = Vec<ChannelBuffer>;
    type Slabs = Vec<Option<BufferSlab>>;
    type Accesses = Vec<AccessSlot>;
    type Registrations = TestRegistrations;
}

pub(super) type TestChannel = Channel<Script, ScriptStorage>;

/// Returns the channel of rank 1 of a world, with `buffers` buffers.
pub(super) fn channel(ranks: usize, rails: u32, buffers: usize) -> TestChannel {
    fast_channel(ranks, rails, buffers, FastPath::OFF)
}

/// As [`channel`], with rings.
pub(super) fn fast_channel(ranks: usize, rails: u32, buffers: usize, fast: FastPath) -> TestChannel {
    let config = Config {
        rank: 1,
        incarnation: 0,
        world: WORLD,
        key: KEY,
        seed: [3; 32],
        packet_bytes: PACKET_BYTES,
        rails,
        most_receives: 64,
        patience: Duration::from_secs(1),
        rendezvous: RendezvousChoice::Auto,
        fast,
    };
    let parts = Parts {
        peers: (0..ranks as u32)
            .filter_map(|of| ChannelPeer::new(vec![None; 128], u64::from(of) + 1000))
            .collect(),
        buffers: vec![ChannelBuffer::default(); buffers],
        slabs: vec![None],
        accesses: vec![],
        registrations: TestRegistrations::exact(),
    };
    let mut channel = TestChannel::new(Script::default(), config, parts).unwrap();
    let [memory, own] = LentMemory::leaked(buffers * channel.buffer_bytes() as usize);
    let region = channel.port_mut().register(memory, RegionAccess::LOCAL).unwrap();
    assert_eq!(channel.lend(region, own), Ok(buffers as u32));
    if fast.is_on() {
        let [rings, _] = LentMemory::leaked(fast.bytes() as usize);
        assert_eq!(channel.lend_rings(rings), Ok(fast.rings));
    }
    channel
}

/// Returns the hello of a member.
pub(super) fn hello(rank: PeerId, rail: u8) -> Hello {
    let token = u64::from(rank) + 2000;
    let (receives, packet_bytes, content) = (LEAST as u16, PACKET_BYTES, HelloContent::Call);
    Hello { rank, rail, receives, packet_bytes, token, incarnation: 0, content }
}

/// Returns the challenge with which the channel refuses this call.
pub(super) fn challenged(channel: &mut TestChannel, hello: &Hello) -> Challenge {
    // Only this event is processed now.
    let (events, closed) = (mem::take(&mut channel.port.events), mem::take(&mut channel.port.closed));
    channel.port.request(&Hello { content: HelloContent::Call, ..*hello });
    assert_eq!(channel.poll_event(Duration::ZERO), None);
    (channel.port.events, channel.port.closed) = (events, closed);
    let (_, refusal) = channel.port.refused.pop().unwrap();
    Challenge::decode(&refusal).unwrap_or_else(|| panic!("{refusal:?} instead of a challenge"))
}

/// Returns the request with which a process that knows this key answers a challenge of rank 1.
pub(super) fn request(hello: &Hello, challenge: Challenge, key: JobKey) -> Hello {
    request_to(1, hello, challenge, key)
}

/// As [`request`], to the process with this rank.
fn request_to(callee: PeerId, hello: &Hello, challenge: Challenge, key: JobKey) -> Hello {
    let (nonce, number) = (99, challenge.number);
    let content = |proof| HelloContent::Request { number, nonce, proof };
    let hello = Hello { content: content(Proof::default()), ..*hello };
    let terms = CallTerms {
        world: WORLD,
        challenge,
        nonce,
        caller: hello.common(),
        caller_address: &[],
        callee,
        callee_address: &[],
    };
    Hello { content: content(key.request_proof(&terms)), ..hello }
}

/// Simulates a process that calls, and answers the challenge.
pub(super) fn ask(channel: &mut TestChannel, hello: &Hello) -> Connection {
    let challenge = challenged(channel, hello);
    // No rank counts in a channel whose peers are added one by one.
    let callee = PeerId::from(!channel.grows);
    channel.port.request(&request_to(callee, hello, challenge, KEY))
}

/// Refuses the last request of the channel with a challenge.
pub(super) fn throw_challenge(channel: &mut TestChannel) {
    let connection = channel.port.last();
    let private = Challenge { number: 5, random: [6; PROOF_BYTES] }.encode();
    channel.port.events.push_back(Event::Failed { connection, error: ConnectError::Refused, private });
}

/// Connects on a rail to rank 0, and answers its challenge; the receives are posted.
pub(super) fn call(channel: &mut TestChannel, rail: u32) -> Connection {
    channel.connect(0, rail, &Address::new(ADDRESS).unwrap(), Duration::MAX).unwrap();
    let connection = channel.port.last();
    throw_challenge(channel);
    assert_eq!(settle(channel), []);
    assert_ne!(channel.port.last(), connection, "no second request");
    channel.port.last()
}

/// Returns the acceptance of the last request, by a process that says this about itself.
pub(super) fn accepted(channel: &TestChannel, hello: &Hello) -> Private {
    let said = Hello::decode(channel.port.said.last().unwrap()).unwrap();
    let HelloContent::Request { nonce, proof, .. } = said.content else { panic!("{said:?}") };
    let content = |proof| HelloContent::Answer { agreements: 0, proof };
    let hello = Hello { content: content(Proof::default()), ..*hello };
    let proof = KEY.answer_proof(&proof, nonce, &hello.answer_bytes(0));
    Hello { content: content(proof), ..hello }.encode()
}

/// Returns the number that an acceptance passes on.
pub(super) fn agreements(said: &Private) -> u64 {
    match Hello::decode(said).unwrap().content {
        HelloContent::Answer { agreements, .. } => agreements,
        other => panic!("{other:?} instead of an acceptance"),
    }
}

/// Returns a packet with content: packet `number` of its sender, which has posted `posted` additional
/// receives.
pub(super) fn packet(number: u32, posted: u32, payload: &[u8]) -> Vec<u8> {
    let sequence = FIRST.wrapping_add(number);
    let packet =
        Some(Numbered { kind: PacketKind::Engine(Kind::Eager), context: 0, tag: number.into(), sequence });
    let stamp = Stamp { posted: FIRST.wrapping_add(LEAST + posted), target: LEAST };
    let mut bytes = Header { packet, stamp, units: 0, waited: false, slots: 0 }.encode().to_vec();
    assert_eq!(bytes.len(), HEADER_BYTES);
    bytes.extend_from_slice(payload);
    bytes
}

/// Returns all events. A packet is an error.
pub(super) fn settle(channel: &mut TestChannel) -> Vec<super::ChannelEvent> {
    let mut events = Vec::new();
    for _ in 0..4 {
        while let Some(event) = channel.poll_event(Duration::ZERO) {
            events.push(event);
        }
        assert!(!matches!(channel.poll(), Polled::Packet(_)), "a packet was delivered");
    }
    events
}

/// Accepts a connection, which is then ready.
pub(super) fn enter(channel: &mut TestChannel, hello: &Hello) -> Connection {
    let connection = ask(channel, hello);
    channel.port_mut().events.push_back(Event::Established { connection, private: Private::EMPTY });
    let events = settle(channel);
    let up = super::ChannelEvent::Up { peer: hello.rank, rail: hello.rail.into() };
    assert_eq!(events, [up]);
    connection
}
