//! Puts and gets by remote memory access: an engine that uses the region of another one over a channel, against plain
//! bytes.
//!
//! The first rank starts operations. The second one exposes a region, and now and then replaces it by another one while
//! operations are under way. Operations on the former region end, done or refused, and nothing touches its memory after
//! it was withdrawn. Neither rank ever fails.

use std::time::Duration;

use nemesia_core::engine::rma::{Access, Addressing, CompleteAt, RegionId, RemoteKey, Target};
use nemesia_core::engine::{CompletionError, Engine, RequestId, StartError, Tuning};
use nemesia_core::job_key::{JobKey, KEY_BYTES};
use nemesia_core::payload::{Exposed, RecvBuf, SendBuf};
use nemesia_core::port::channel::{Channel, Config, FastPath, RendezvousChoice};
use nemesia_core::port::memory::MemoryPort as _;
use nemesia_verification::rdma::{Conditions, Fabric, SimPort};
use nemesia_verification::storage::{ChannelVectors, EngineVectors};

use super::node::{Land, Node, PAGE};
use crate::rng::Rng;
use crate::tally::{Event, Tally};
use crate::trace::Trace;
use crate::violation::{Check, Violation, ensure};

/// The bytes of a region.
const REGION: usize = 4096;
/// The content of a region's memory after it was withdrawn.
const POISON: u8 = 0xd7;
/// Most operations under way.
const MOST_OPEN: usize = 12;
/// Turns in which everything under way must end.
const TURNS: usize = 20_000;

type DirectEngine = Engine<Channel<SimPort, ChannelVectors>, EngineVectors>;

/// What an operation must have done when it is complete.
#[derive(Debug)]
enum Expected {
    /// The bytes are in the region, from this place on, unless later puts have changed them.
    Put { delivered: bool, at: usize, bytes: Vec<u8> },
    /// The buffer has these bytes.
    Get(Vec<u8>),
    /// All earlier puts are in the region.
    Flush,
}

/// An operation under way.
#[derive(Debug)]
struct OpenDirect {
    id: RequestId,
    land: Land,
    /// The regions and the puts before it.
    regions: usize,
    puts: usize,
    expected: Expected,
}

/// The world.
#[derive(Debug)]
pub(crate) struct DirectWorld {
    rng: Rng,
    // Dropped before the memory.
    engines: [DirectEngine; 2],
    fabric: Fabric,
    _buffers: Vec<Land>,
    region: Option<RegionId>,
    /// The region that is being withdrawn.
    leaving: Option<RegionId>,
    key: Option<RemoteKey>,
    land: Land,
    withdrawn: Vec<Land>,
    model: Vec<u8>,
    /// The number of regions, and of puts, so far.
    regions: usize,
    puts: usize,
    open: Vec<OpenDirect>,
    now: Duration,
    tally: Tally,
    trace: Trace,
}

fn engine(rank: u32, port: SimPort, direct_bytes: u64) -> Result<(DirectEngine, Vec<Land>), Violation> {
    let config = Config {
        rank,
        incarnation: 0,
        world: 7,
        key: JobKey::from_bytes([1; KEY_BYTES]),
        seed: [rank as u8; KEY_BYTES],
        packet_bytes: 256,
        rails: 1,
        most_receives: 6,
        patience: Duration::from_secs(1),
        rendezvous: RendezvousChoice::Auto,
        fast: FastPath::OFF,
    };
    let failed = |error: String| Violation(format!("no engine: {error}"));
    let node = Node::new(port, config, [11, 12].into_iter(), 16);
    let mut node = node.map_err(|error| failed(error.to_string()))?;
    node.lend(64).map_err(failed)?;
    let (channel, memory) = node.into_parts();
    let lent = EngineVectors::lent(2, 64, 1024, 16, ());
    let tuning = Tuning { direct_bytes, pull_bytes: 700, ..Tuning::default() };
    let engine = Engine::new(rank, channel, tuning, lent).map_err(|error| failed(error.to_string()))?;
    Ok((engine, memory))
}

impl DirectWorld {
    /// Makes a world whose two ranks are being connected.
    pub(crate) fn new(mut rng: Rng, trace: Trace) -> Result<Self, Violation> {
        let mut conditions = rng.pick(&[Conditions::INFINIBAND, Conditions::IWARP]);
        conditions.delay = rng.pick(&[1, 2, 8]);
        let fabric = Fabric::new(rng.next(), conditions);
        let direct_bytes = rng.pick(&[1, 100, 400]);
        let (mut one, mut buffers) = engine(0, fabric.port(), direct_bytes)?;
        let (two, more) = engine(1, fabric.port(), direct_bytes)?;
        buffers.extend(more);
        let address = two.port().port().address().ok_or_else(|| Violation("no address".into()))?;
        let connected = one.port_mut().connect(1, 0, &address, Duration::MAX);
        connected.map_err(|error| Violation(format!("no connection: {error}")))?;
        let land = Land::new(REGION as u64);
        let mut world = Self {
            rng,
            engines: [one, two],
            fabric,
            _buffers: buffers,
            region: None,
            leaving: None,
            key: None,
            land,
            withdrawn: Vec::new(),
            model: vec![0; REGION],
            regions: 0,
            puts: 0,
            open: Vec::new(),
            now: Duration::ZERO,
            tally: Tally::default(),
            trace,
        };
        world.expose()?;
        Ok(world)
    }

    /// Lets one thing happen.
    pub(crate) fn step(&mut self) -> Check {
        match self.rng.below(12) {
            0..3 => self.start()?,
            3..6 => self.progress(0)?,
            6..9 => self.progress(1)?,
            9 if self.rng.one_in(40) => self.unexpose(),
            _ => {
                for _ in 0..self.rng.below(20) {
                    self.now = self.fabric.pass();
                }
            }
        }
        self.complete()
    }

    /// Ends what is under way, and checks the rest.
    pub(crate) fn finish(&mut self) -> Check {
        for _ in 0..TURNS {
            if self.open.is_empty() && self.leaving.is_none() && !self.engines[0].is_unflushed(1) {
                break;
            }
            if self.open.is_empty() {
                self.flush()?;
            }
            (0..2).try_for_each(|rank| self.progress(rank))?;
            self.now = self.fabric.pass();
            self.complete()?;
        }
        ensure!(self.open.is_empty(), "operations do not end: {:?}", self.open);
        ensure!(self.leaving.is_none(), "a region is not withdrawn");
        let direct = self.engines[0].counters().direct;
        (0..direct).for_each(|_| self.tally.count(Event::DirectAccess));
        for land in &self.withdrawn {
            let is_late = land.read(REGION).iter().any(|byte| *byte != POISON);
            ensure!(!is_late, "memory was written after it was withdrawn");
        }
        Ok(())
    }

    /// Returns the counts and the recorded events.
    pub(crate) fn result(&mut self) -> (Tally, Vec<String>) {
        (core::mem::take(&mut self.tally), self.trace.take())
    }

    fn note(&mut self, event: impl FnOnce() -> String) {
        self.trace.note(self.now.as_micros() as u64, event);
    }

    fn expose(&mut self) -> Check {
        self.regions += 1;
        self.model.fill(0);
        self.land = Land::new(REGION as u64);
        // SAFETY: the memory is freed after the engines, and only copied meanwhile.
        let memory = unsafe { Exposed::from_raw(self.land.base().as_ptr(), REGION) };
        let key = self.rng.next();
        let exposed = self.engines[1].expose(memory, Access::ReadWrite, key, Addressing::Offset);
        let id = exposed.map_err(|error| Violation(format!("not exposed: {error}")))?;
        self.region = Some(id);
        self.key = self.engines[1].remote_key(id).map(|key| RemoteKey { rank: 1, ..key });
        Ok(())
    }

    fn unexpose(&mut self) {
        if self.leaving.is_none()
            && let Some(id) = self.region.take()
        {
            self.note(|| "the region is unexposed".into());
            self.engines[1].unexpose(id);
            self.leaving = Some(id);
        }
    }

    fn progress(&mut self, rank: usize) -> Check {
        let (now, engine) = (self.now, &mut self.engines[rank]);
        while engine.port_mut().poll_event(now).is_some() {}
        let failed = engine.progress().failed;
        ensure!(
            failed.is_none(),
            "rank {rank} has lost its peer: {:?}",
            self.engines[rank].failure(1 - rank as u32)
        );
        if rank == 1
            && let Some(id) = self.leaving
            && self.engines[1].withdraw(id, false)
        {
            self.note(|| "the region is withdrawn".into());
            self.leaving = None;
            self.tally.count(Event::Withdrawn);
            self.land.write(&[POISON; REGION]);
            let next = Land::new(REGION as u64);
            self.withdrawn.push(core::mem::replace(&mut self.land, next));
            self.expose()?;
        }
        Ok(())
    }

    /// Starts an operation.
    fn start(&mut self) -> Check {
        if self.open.len() >= MOST_OPEN {
            return Ok(());
        }
        let len = self.rng.pick(&[1, 30, 99, 100, 256, 500, 1500, 3000]);
        let at = self.rng.below(REGION - len);
        match self.rng.below(4) {
            0 => self.get(at, len),
            1 => self.flush(),
            _ => self.put(at, len),
        }
    }

    /// Returns memory at a random place within its page.
    fn place(&mut self, len: usize) -> Land {
        Land::within_page(len as u64, self.rng.below(PAGE))
    }

    fn put(&mut self, at: usize, len: usize) -> Check {
        let Some(key) = self.key else { return Ok(()) };
        if self.open.iter().any(|it| matches!(it.expected, Expected::Get(_)))
            && self.engines[0].fence(1).is_err()
        {
            return Ok(());
        }
        let bytes: Vec<u8> = (0..len).map(|_| self.rng.next() as u8).collect();
        let (land, delivered, notify) = (self.place(len), self.rng.one_in(4), self.rng.one_in(4));
        land.write(&bytes);
        // SAFETY: the memory is kept until the operation is complete, or the engine is gone.
        let buf = unsafe { SendBuf::from_raw(land.base().as_ptr(), len) };
        let complete = if delivered { CompleteAt::Target } else { CompleteAt::Origin };
        let target = Target { key: &key, offset: at as u64 };
        let started = self.engines[0].put(&target, buf, notify, complete);
        self.note(|| format!("put {len} bytes at {at}, delivered {delivered}, notify {notify}: {started:?}"));
        let id = match started {
            Ok(id) => id,
            Err(StartError::Requests { .. }) => return Ok(()),
            Err(error) => return Err(Violation(format!("a put: {error}"))),
        };
        self.model[at..at + len].copy_from_slice(&bytes);
        self.puts += 1;
        self.opened(id, land, Expected::Put { delivered, at, bytes });
        Ok(())
    }

    fn get(&mut self, at: usize, len: usize) -> Check {
        let Some(key) = self.key else { return Ok(()) };
        let land = self.place(len);
        // SAFETY: as in `put`.
        let mut buf = unsafe { RecvBuf::from_raw(land.base().as_ptr(), len) };
        let started = self.engines[0].get(&Target { key: &key, offset: at as u64 }, &mut buf);
        self.note(|| format!("get {len} bytes at {at}: {started:?}"));
        let id = match started {
            Ok(id) => id,
            Err(StartError::Requests { .. }) => return Ok(()),
            Err(error) => return Err(Violation(format!("a get: {error}"))),
        };
        let bytes = self.model[at..at + len].to_vec();
        self.opened(id, land, Expected::Get(bytes));
        Ok(())
    }

    fn flush(&mut self) -> Check {
        let started = self.engines[0].flush(1);
        self.note(|| format!("flush: {started:?}"));
        match started {
            Ok(id) => self.opened(id, Land::new(1), Expected::Flush),
            Err(StartError::Requests { .. }) => {}
            Err(error) => return Err(Violation(format!("a flush: {error}"))),
        }
        Ok(())
    }

    fn opened(&mut self, id: RequestId, land: Land, expected: Expected) {
        let (regions, puts) = (self.regions, self.puts);
        self.open.push(OpenDirect { id, land, regions, puts, expected });
    }

    /// Checks the operations that are complete.
    fn complete(&mut self) -> Check {
        for it in core::mem::take(&mut self.open) {
            let outcome = match it.id {
                RequestId::SENT => Ok(()),
                id => match self.engines[0].test(id) {
                    Some(outcome) => outcome.map(drop),
                    None => {
                        self.open.push(it);
                        continue;
                    }
                },
            };
            self.note(|| format!("{:?} is complete: {outcome:?}", it.id));
            // The former region's operations are done or refused.
            let is_present = it.regions == self.regions && self.leaving.is_none();
            match outcome {
                Ok(()) if is_present => self.check(&it)?,
                Err(CompletionError::Refused { .. })
                    if !is_present || matches!(it.expected, Expected::Flush) => {}
                Ok(()) => {}
                Err(error) => return Err(Violation(format!("an operation: {error}"))),
            }
        }
        Ok(())
    }

    fn check(&mut self, it: &OpenDirect) -> Check {
        // Later puts may have changed the bytes.
        let is_last = it.puts == self.puts;
        match &it.expected {
            Expected::Put { delivered: true, at, bytes } if is_last => {
                let is = &self.land.read(REGION)[*at..*at + bytes.len()];
                ensure!(is == bytes, "a put is delivered, and its bytes are not there");
                self.tally.count(Event::Delivered);
            }
            Expected::Put { .. } => self.tally.count(Event::Put),
            Expected::Get(bytes) => {
                let is = it.land.read(bytes.len());
                ensure!(is == *bytes, "a get of {} bytes has got wrong ones", bytes.len());
                self.tally.count(Event::Get);
            }
            Expected::Flush if is_last => {
                ensure!(
                    self.land.read(REGION) == self.model,
                    "puts are flushed, and the region has other bytes"
                );
                self.tally.count(Event::Flush);
            }
            Expected::Flush => {}
        }
        Ok(())
    }
}
