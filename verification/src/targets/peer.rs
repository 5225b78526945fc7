//! A peer that sends any bytes to a port with software placement.

use std::time::Duration;

use nemesia_core::payload::{GatherList, LentMemory, ScatterList};
use nemesia_core::port::memory::{
    Completion, CompletionSource, Connection, Event, MemoryKey, MemoryPort as _, Offer, PortRegion, Private,
    ReceiveQueue, RegionAccess, RemoteRange, Slice, Work, WorkOutcome,
};
use nemesia_core::port::placement::{ByteStream as _, StreamResult, StreamTransport as _};
use nemesia_core::wire::placement::{Frame, Handshake, PlacementAnswer, Reason};

use crate::streams::{SimStream, SimStreams, StreamConditions, StreamFabric, StreamPort};

/// The bytes of each piece of memory.
const BYTES: usize = 64;
/// The number of turns after which nothing is still expected.
const TURNS: usize = 2000;
/// The content of memory that no peer may reach.
const SECRET: u8 = 0x44;
const LATER: Duration = Duration::from_secs(3600);

/// Memory that outlives its port.
struct TargetMemory(*mut [u64]);

impl TargetMemory {
    fn new(content: u8) -> Self {
        Self(Box::into_raw(vec![u64::from_ne_bytes([content; 8]); BYTES / 8].into_boxed_slice()))
    }

    #[allow(unsafe_code, reason = "memory is lent")]
    fn lent(&self) -> LentMemory {
        // SAFETY: allocated with this length, and freed after the port; accessed only through such values.
        unsafe { LentMemory::from_raw(self.0.cast(), BYTES) }
    }

    fn holds_only(&self, content: u8) -> bool {
        let mut bytes = [0; BYTES];
        self.lent().read(0, &mut bytes) && bytes.iter().all(|byte| *byte == content)
    }
}

impl Drop for TargetMemory {
    #[allow(unsafe_code, reason = "memory is freed")]
    fn drop(&mut self) {
        // SAFETY: made from a box, and the ports to which it was lent are gone.
        drop(unsafe { Box::from_raw(self.0) });
    }
}

/// A port, an honest peer, and an enemy. The ports are dropped before the memory.
struct Battle {
    fabric: StreamFabric,
    victim: StreamPort,
    friend: StreamPort,
    enemy: SimStream,
    /// The connection of the enemy, as the victim sees it.
    hostile: Option<Connection>,
    honest: Connection,
    /// Memory that every peer may access; memory whose key no peer knows.
    open: (PortRegion, MemoryKey),
    source: PortRegion,
    now: Duration,
    done: Vec<Completion>,
    events: Vec<Event>,
    memory: [TargetMemory; 3],
}

/// Lets a peer send frames that these bytes describe, and bytes as they are. It may fail its own connection and
/// write memory that it may access, and nothing else.
///
/// # Errors
/// The broken promise.
pub fn placement_peer(input: &[u8]) -> Result<(), String> {
    let mut battle = Battle::new(input)?;
    let mut input = input.iter().copied();
    while let Some(step) = input.next() {
        let bytes = match step % 8 {
            0 => input.by_ref().take(usize::from(step / 8)).collect(),
            1 => {
                battle.turn();
                continue;
            }
            2 => {
                battle.post(step / 8);
                continue;
            }
            _ => frame(step, &mut input, battle.open.1),
        };
        battle.attack(&bytes);
    }
    battle.end()
}

/// Returns a frame, or a part of one, from the input.
fn frame(step: u8, input: &mut impl Iterator<Item = u8>, key: MemoryKey) -> Vec<u8> {
    let mut byte = || input.next().unwrap_or(0);
    // Small numbers, and numbers at the limits.
    let mut number = || match byte() {
        small @ 0..=200 => u64::from(small),
        201 => u64::MAX,
        202 => 1 << 32,
        203 => u64::from(u32::MAX),
        large => u64::MAX - u64::from(large),
    };
    let (len, a, b) = (number() as u32, number(), number());
    let at = RemoteRange { address: key.address.wrapping_add(a), key: key.key ^ u64::from(b == 7) };
    let immediate = (b % 3 == 1).then_some(a as u32);
    let frame = match step / 8 % 16 {
        0..=2 => Frame::Write { len, to: at, immediate },
        3 => Frame::Read { len, from: at },
        4 | 5 => Frame::Send { len, immediate },
        6 => Frame::Add { at, add: b },
        7 => Frame::Swap { at, new: a, expected: b },
        8 => Frame::ReadReply { len },
        9 => Frame::ValueReply { old: a },
        10 => Frame::Ack { executed: a, room: b },
        11 => Frame::Refuse { operation: a, reason: Reason::Access },
        12 => Frame::Ask { wanted: a },
        13 => Frame::WriteFrom { len, to: at, immediate, source: b },
        14 => Frame::ReadFrom { len, source: b },
        _ => Frame::Pulled { count: a },
    };
    let (bytes, count) = frame.encode();
    let mut bytes = bytes[..count].to_vec();
    // Some payload follows.
    bytes.resize(count + (len as usize).min(BYTES), 0x55);
    bytes
}

impl Battle {
    fn new(input: &[u8]) -> Result<Self, String> {
        let seed = input.iter().fold(7_u64, |seed, byte| seed.wrapping_mul(31).wrapping_add((*byte).into()));
        let fabric =
            StreamFabric::new(seed, StreamConditions { delay: 1, most: 100, ..StreamConditions::WIDE });
        let port = || fabric.port().map_err(|error| format!("no port: {error}"));
        let (mut victim, mut friend) = (port()?, port()?);
        let memory = [SECRET, 0, 0x33].map(TargetMemory::new);
        let text = |error: &dyn std::fmt::Display| error.to_string();
        victim.register(memory[0].lent(), RegionAccess::ALL).map_err(|error| text(&error))?;
        let open = victim.register(memory[1].lent(), RegionAccess::ALL).map_err(|error| text(&error))?;
        let source = friend.register(memory[2].lent(), RegionAccess::NONE).map_err(|error| text(&error))?;
        let key = victim.key(open).ok_or("no key")?;
        let address = victim.address().ok_or("no address")?;
        let honest = friend.connect(&address, &offer()).map_err(|error| text(&error))?;
        let (place, token) = SimStreams::parse(&address).ok_or("no place")?;
        let enemy = fabric.source().connect(place).map_err(|error| text(&error))?;
        let mut battle = Self {
            fabric: fabric.clone(),
            victim,
            friend,
            enemy,
            hostile: None,
            honest,
            open: (open, key),
            source,
            now: Duration::ZERO,
            done: Vec::new(),
            events: Vec::new(),
            memory,
        };
        let (answer, shared, private) = (PlacementAnswer::Request, false, Private::EMPTY);
        battle.meet(&Handshake { answer, token, shared, private }.encode())?;
        Ok(battle)
    }

    /// Connects the friend, and then the enemy.
    fn meet(&mut self, handshake: &[u8]) -> Result<(), String> {
        for is_friend in [true, false] {
            if !is_friend {
                self.attack(handshake);
            }
            let accepted = (0..TURNS).find_map(|_| {
                self.turn();
                let event = self.events.pop();
                if let Some(Event::Requested { connection, .. }) = event { Some(connection) } else { None }
            });
            let connection = accepted.ok_or("no request")?;
            self.victim.accept(connection, &offer()).map_err(|error| error.to_string())?;
            self.hostile = Some(connection);
        }
        (0..20).for_each(|_| self.turn());
        Ok(())
    }

    fn turn(&mut self) {
        self.now = self.fabric.pass();
        for port in [&mut self.victim, &mut self.friend] {
            let mut room = [Completion::EMPTY; 8];
            let count = port.poll(&mut room);
            self.done.extend(&room[..count]);
        }
        self.events.extend(self.victim.poll_event(self.now));
        while self.friend.poll_event(self.now).is_some() {}
        let mut answer = [0; 64];
        let mut list = ScatterList::new();
        list.push(&mut answer);
        let _ = self.enemy.read(&mut list);
    }

    fn attack(&mut self, mut bytes: &[u8]) {
        for _ in 0..TURNS {
            let mut list = GatherList::new();
            list.push(bytes);
            match self.enemy.write(&list) {
                StreamResult::Bytes(count) => bytes = &bytes[count..],
                StreamResult::Blocked => {}
                StreamResult::Ended | StreamResult::Failed(_) => return,
            }
            if bytes.is_empty() {
                return;
            }
            self.turn();
        }
    }

    /// Posts work of the victim's on the connection with the enemy.
    fn post(&mut self, step: u8) {
        let Some(connection) = self.hostile else { return };
        let (work, at) = (Work::new(connection, 1), self.open.1.at(0));
        let part = Slice { region: self.open.0, offset: 0, len: 8 };
        // The enemy may have ended its connection, or the queue may be full.
        let _ = match step % 4 {
            0 => self.victim.read(work, &[part], at),
            1 => self.victim.fetch_add(work, part, at, 1),
            2 => self.victim.send(work, CompletionSource::Gather(&[part]), None),
            _ => self.victim.receive(ReceiveQueue::Of(connection), 2, &[part]),
        };
    }

    /// Checks that nothing but the enemy's own connection and the open memory has changed.
    fn end(mut self) -> Result<(), String> {
        let ok = self.memory[0].holds_only(SECRET);
        if !ok {
            return Err("a peer has written memory whose key it was not told".into());
        }
        let part = [Slice { region: self.source, offset: 0, len: 8 }];
        let (work, to) = (Work::new(self.honest, 99), self.open.1.at(0));
        let from = CompletionSource::Gather(&part);
        self.friend.write(work, from, to, None).map_err(|error| format!("an honest peer: {error}"))?;
        for _ in 0..TURNS {
            self.turn();
            if let Some(done) = self.done.iter().find(|done| done.id == 99) {
                let is_done = done.outcome == WorkOutcome::Done;
                return if is_done { Ok(()) } else { Err(format!("an honest peer: {:?}", done.outcome)) };
            }
        }
        Err("an honest peer waits for ever".into())
    }
}

fn offer() -> Offer {
    Offer { private: Private::EMPTY, shared_receive: false, deadline: LATER }
}
