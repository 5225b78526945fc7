//! An actor that owns an engine, over any port.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use nemesia_core::engine::active::{ActiveMessage, Handlers, NoMemory};
use nemesia_core::engine::rma::{Access, Addressing, RegionId, RemoteKey, Target};
use nemesia_core::engine::{
    CompletionError, Engine, Failure, RequestId, SendOptions, StartError, Status, Tuning,
};
use nemesia_core::matching::Pattern;
use nemesia_core::payload::{Exposed, RecvBuf, SendBuf};
use nemesia_core::port::{PeerId, Polled, Port};
use nemesia_verification::storage::EngineVectors;

use super::actor::{
    Abilities, Actor, ClaimId, Ended, ExposureId, ExposureKind, HANDLERS, HandledMessage, KeyBytes,
    OperationId, RemoteVerb, Trouble,
};
use super::buffer::Buffer;
use super::open::OpenOperations;
use crate::content::seed_of;
use crate::memory_port::Verdict;

/// The requests and the units of 64 bytes for unexpected messages that an engine is lent.
const REQUESTS: usize = 1024;
const UNITS: usize = 4096;
const BUCKETS: usize = 64;
const REGIONS: usize = 3;

/// The work that a port needs besides the engine's calls, and the memory that the port was lent.
pub trait PortDriver<P> {
    /// Does what is due. Returns the peers with which a connection was made.
    fn drive(&mut self, port: &mut P) -> Vec<PeerId>;

    /// Returns whether everything that was sent has left this process, which may then end.
    fn has_sent_all(&self, port: &P) -> bool {
        let _ = port;
        true
    }
}

impl<P> PortDriver<P> for () {
    fn drive(&mut self, _: &mut P) -> Vec<PeerId> {
        Vec::new()
    }
}

/// The end of a rank, as a launcher knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
enum RankEnd {
    Died,
    /// The rank has closed; the packets that it has sent to each rank.
    Finished(Vec<u64>),
}

/// What the launcher of a world in one process knows: which ranks have ended, and how.
#[derive(Debug)]
pub struct Registry {
    ends: RefCell<Vec<Option<RankEnd>>>,
    abilities: Abilities,
    /// Whether ranks learn of deaths here; otherwise their ports report them.
    reports_deaths: bool,
    /// Whether the other ranks are other processes, of which this one knows nothing.
    alone: bool,
    /// The ranks that are ready for the next process of a rank that died.
    readmitting: RefCell<Vec<bool>>,
    /// How often each rank was started again.
    incarnations: RefCell<Vec<u64>>,
}

impl Registry {
    /// Returns the registry of a world in which all ranks run.
    pub fn new(ranks: usize, abilities: Abilities, reports_deaths: bool) -> Rc<Self> {
        Rc::new(Self::with(ranks, abilities, reports_deaths, false))
    }

    /// Returns the registry of a process that is one rank of a world.
    pub fn alone(ranks: usize, abilities: Abilities) -> Rc<Self> {
        Rc::new(Self::with(ranks, abilities, false, true))
    }

    fn with(ranks: usize, abilities: Abilities, reports_deaths: bool, alone: bool) -> Self {
        Self {
            ends: RefCell::new(vec![None; ranks]),
            abilities,
            reports_deaths,
            alone,
            readmitting: RefCell::new(vec![false; ranks]),
            incarnations: RefCell::new(vec![0; ranks]),
        }
    }

    /// Returns whether a rank has died, and all others are ready for its next process.
    pub fn is_wanted(&self, rank: usize) -> bool {
        let readmitting = self.readmitting.borrow();
        let ready = |other: usize| other == rank || readmitting.get(other) == Some(&true);
        self.is_dead(rank) && (0..readmitting.len()).all(ready)
    }

    /// Starts a rank again.
    pub fn restart(&self, rank: usize) {
        self.ends.borrow_mut()[rank] = None;
        self.incarnations.borrow_mut()[rank] += 1;
        self.readmitting.borrow_mut().fill(false);
    }

    /// Returns whether a rank has died.
    pub fn is_dead(&self, rank: usize) -> bool {
        self.ends.borrow().get(rank) == Some(&Some(RankEnd::Died))
    }

    fn all_ended(&self) -> bool {
        self.ends.borrow().iter().all(Option::is_some)
    }

    fn end(&self, rank: u32, end: RankEnd) {
        self.ends.borrow_mut()[rank as usize] = Some(end);
    }
}

/// The handlers of an actor: they record what arrives.
#[derive(Debug, Default)]
pub struct HandlerLog {
    /// The memory for the message of each sender that is arriving.
    rooms: BTreeMap<u32, Vec<u8>>,
    handled: Vec<HandledMessage>,
}

impl Handlers for HandlerLog {
    fn room(&mut self, message: &ActiveMessage) -> Result<Option<&mut [u8]>, NoMemory> {
        if message.handler >= HANDLERS {
            return Ok(None);
        }
        let room = self.rooms.entry(message.from).or_default();
        room.resize(message.len, 0);
        Ok(Some(room))
    }

    fn run(&mut self, message: &ActiveMessage) {
        let ActiveMessage { from, handler, header_bytes, .. } = *message;
        let mut header = self.rooms.remove(&from).unwrap_or_default();
        let payload = header.split_off(header_bytes);
        self.handled.push(HandledMessage { from, handler, header, payload });
    }

    fn drop_parts(&mut self, from: u32) {
        self.rooms.remove(&from);
    }
}

/// A region and its memory.
#[derive(Debug)]
struct EngineExposure {
    id: RegionId,
    /// Only the engine uses the words, through the pointer that it was lent.
    _words: Vec<u64>,
}

/// An engine, and the buffers of its operations.
#[derive(Debug)]
pub struct EngineActor<P: Port, D> {
    /// Dropped first: it uses everything below.
    engine: Engine<P, EngineVectors<HandlerLog>>,
    driver: D,
    open: OpenOperations<RequestId>,
    claims: BTreeMap<u64, RequestId>,
    regions: Vec<EngineExposure>,
    registry: Rc<Registry>,
}

/// Ends this process as a crash does.
pub(super) fn kill_this_process() -> Verdict {
    // SAFETY: the call takes no pointers.
    let failed = unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    Err(format!("this process has survived: {failed}"))
}

/// Lets the other ranks act once.
#[derive(Debug, Default)]
struct Yield(bool);

impl Future for Yield {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        // The executor polls every rank again and again, so no rank has to be woken.
        if std::mem::replace(&mut self.0, true) { Poll::Ready(()) } else { Poll::Pending }
    }
}

fn start_trouble(error: &StartError) -> Trouble {
    match *error {
        StartError::PeerFailed { peer, failure } => Trouble::PeerFailed { peer, failure },
        StartError::Refused(refusal) => Trouble::Refused { refusal, count: 1 },
        other => Trouble::Other(other.to_string()),
    }
}

fn end_trouble(error: CompletionError) -> Trouble {
    match error {
        CompletionError::PeerFailed { peer, failure } => Trouble::PeerFailed { peer, failure },
        CompletionError::Truncated(it) => Trouble::Truncated { status: it.status, message: it.message },
        CompletionError::Cancelled => Trouble::Cancelled,
        CompletionError::Refused { refusal, count, .. } => Trouble::Refused { refusal, count },
        other @ CompletionError::Stale => Trouble::Other(other.to_string()),
    }
}

impl<P: Port, D: PortDriver<P>> EngineActor<P, D> {
    /// Starts an engine over a port.
    ///
    /// # Errors
    /// The engine refuses the storage.
    pub fn new(
        rank: u32,
        (port, driver): (P, D),
        tuning: Tuning,
        registry: &Rc<Registry>,
    ) -> Result<Self, String> {
        let ranks = registry.ends.borrow().len();
        let lent = EngineVectors::lent(ranks, REQUESTS, UNITS, BUCKETS, HandlerLog::default());
        let mut engine = Engine::new(rank, port, tuning, lent).map_err(|error| error.to_string())?;
        engine.grow_regions(REGIONS);
        Ok(Self {
            engine,
            driver,
            open: OpenOperations::new(),
            claims: BTreeMap::new(),
            regions: Vec::new(),
            registry: Rc::clone(registry),
        })
    }

    fn keep(
        &mut self,
        started: Result<RequestId, StartError>,
        buffers: Vec<Buffer>,
    ) -> Result<OperationId, Trouble> {
        Ok(self.open.keep(started.map_err(|error| start_trouble(&error))?, buffers))
    }

    /// Passes on what the launcher knows of other ranks.
    fn learn(&mut self) {
        let registry = Rc::clone(&self.registry);
        for (peer, end) in (0..).zip(&*registry.ends.borrow()) {
            let Some(end) = end.as_ref().filter(|_| peer != self.engine.rank()) else { continue };
            if self.engine.failure(peer).is_some() {
                continue;
            }
            match end {
                RankEnd::Died if !registry.reports_deaths => {}
                RankEnd::Died => {
                    self.engine.depart(peer, Failure::Died);
                    while !self.engine.drain(peer) {}
                    self.engine.fail(peer, Failure::Died);
                }
                RankEnd::Finished(sent) => {
                    self.engine.depart(peer, Failure::Finished);
                    self.engine.drain(peer);
                    let due = sent[self.engine.rank() as usize];
                    if self.engine.port().traffic(peer).received >= due {
                        self.engine.fail(peer, Failure::Finished);
                    }
                }
            }
        }
    }

    fn region(&self, region: ExposureId) -> Result<RegionId, Trouble> {
        let found = self.regions.get(region.0).map(|region| region.id);
        found.ok_or_else(|| Trouble::Other("no such region".into()))
    }
}

impl<P: Port, D: PortDriver<P>> Actor for EngineActor<P, D> {
    fn rank(&self) -> u32 {
        self.engine.rank()
    }

    fn size(&self) -> u32 {
        self.engine.size()
    }

    fn abilities(&self) -> Abilities {
        self.registry.abilities
    }

    fn progress(&mut self) {
        for peer in self.driver.drive(self.engine.port_mut()) {
            // Before the first packet of the new process is polled.
            if !self.engine.reconnect(peer) {
                self.engine.connected(peer);
            }
        }
        self.engine.progress();
        self.regions.iter().for_each(|region| {
            self.engine.withdraw(region.id, false);
        });
        self.learn();
    }

    async fn turn(&mut self) {
        self.progress();
        Yield::default().await;
    }

    fn send_with(
        &mut self,
        to: u32,
        context: u16,
        tag: u64,
        message: Buffer,
        options: SendOptions,
    ) -> Result<OperationId, Trouble> {
        // SAFETY: `open` keeps the buffer until the request is complete, and is dropped after the engine.
        let buf = unsafe { message.outgoing() };
        let started = self.engine.isend_with(to, context, tag, buf, options);
        self.keep(started, vec![message])
    }

    fn receive(&mut self, pattern: Pattern, mut room: Buffer) -> Result<OperationId, Trouble> {
        // SAFETY: as in `send`.
        let mut buf = unsafe { room.incoming() };
        let started = self.engine.irecv(pattern, &mut buf);
        self.keep(started, vec![room])
    }

    fn test(&mut self, operation: OperationId) -> Option<(Ended, Buffer)> {
        let Some(id) = self.open.request(operation) else {
            return Some((Err(Trouble::Other("no such operation".into())), Buffer::default()));
        };
        let outcome = self.engine.test(id)?;
        Some((outcome.map_err(end_trouble), self.open.finish(operation)))
    }

    fn cancel(&mut self, operation: OperationId) -> bool {
        self.open.request(operation).is_some_and(|id| self.engine.cancel(id))
    }

    fn probe(&mut self, pattern: &Pattern) -> Option<Status> {
        self.engine.iprobe(pattern)
    }

    fn claim(&mut self, pattern: &Pattern) -> Result<Option<(ClaimId, Status)>, Trouble> {
        let claimed = self.engine.improbe(pattern).map_err(|error| start_trouble(&error))?;
        let Some((id, status)) = claimed else { return Ok(None) };
        let number = self.open.number();
        self.claims.insert(number, id);
        Ok(Some((ClaimId(number), status)))
    }

    fn receive_claimed(&mut self, claim: ClaimId, mut room: Buffer) -> Result<OperationId, Trouble> {
        let id = self.claims.remove(&claim.0).ok_or_else(|| Trouble::Other("no such claim".into()))?;
        // SAFETY: as in `send`.
        let mut buf = unsafe { room.incoming() };
        self.engine.imrecv(id, &mut buf).map_err(end_trouble)?;
        self.keep(Ok(id), vec![room])
    }

    fn expose(&mut self, len: usize, access: Access, kind: ExposureKind) -> Result<ExposureId, Trouble> {
        let mut words = vec![0_u64; len.div_ceil(8)];
        // SAFETY: the words are kept until the engine is gone, and only the engine uses them.
        let memory = unsafe { Exposed::from_raw(words.as_mut_ptr().cast(), len) };
        let random = seed_of(&[self.engine.rank().into(), self.open.last(), self.regions.len() as u64]);
        let (key, addressing) = match kind {
            ExposureKind::Chosen(key) => (key, Addressing::Offset),
            ExposureKind::ByAddress => (random, Addressing::Address),
            ExposureKind::Mapped | ExposureKind::Packets => (random, Addressing::Offset),
        };
        let id = self.engine.expose(memory, access, key, addressing);
        let id = id.map_err(|error| Trouble::Other(error.to_string()))?;
        self.regions.push(EngineExposure { id, _words: words });
        Ok(ExposureId(self.regions.len() - 1))
    }

    fn unexpose(&mut self, region: ExposureId) -> Result<(), Trouble> {
        let id = self.region(region)?;
        let done = self.engine.unexpose(id);
        done.then_some(()).ok_or_else(|| Trouble::Other("the region was unexposed before".into()))
    }

    fn key(&mut self, region: ExposureId) -> Result<KeyBytes, Trouble> {
        let id = self.region(region)?;
        let key = self.engine.remote_key(id).ok_or_else(|| Trouble::Other("no key".into()))?;
        Ok(key.to_bytes())
    }

    fn look(&mut self, region: ExposureId, at: usize, len: usize) -> Result<Vec<u8>, Trouble> {
        let id = self.region(region)?;
        let mut bytes = vec![0; len];
        let memory = self.engine.region_memory(id).filter(|memory| memory.read(at, &mut bytes));
        memory.map(|_| ()).ok_or_else(|| Trouble::Other(format!("no {len} bytes at {at}")))?;
        Ok(bytes)
    }

    fn notifications(&mut self, region: ExposureId) -> Result<u64, Trouble> {
        let id = self.region(region)?;
        self.engine.notifications(id).ok_or_else(|| Trouble::Other("the region is gone".into()))
    }

    fn remote(
        &mut self,
        key: &RemoteKey,
        offset: u64,
        verb: RemoteVerb,
        mut buffer: Buffer,
    ) -> Result<OperationId, Trouble> {
        let target = Target { key, offset: key.base.wrapping_add(offset) };
        let mut room =
            Buffer::room(if matches!(verb, RemoteVerb::FetchAccumulate(..)) { buffer.len() } else { 0 });
        // SAFETY: as in `send`. An operation uses one view of the buffer only.
        let (from, mut to, mut old): (SendBuf, RecvBuf, RecvBuf) =
            unsafe { (buffer.outgoing(), buffer.incoming(), room.incoming()) };
        let engine = &mut self.engine;
        let started = match verb {
            RemoteVerb::Put { notify, complete } => engine.put(&target, from, notify, complete),
            RemoteVerb::Get => engine.get(&target, &mut to),
            RemoteVerb::Accumulate(datatype, reduction, complete) => {
                engine.accumulate(&target, (datatype, reduction), from, complete)
            }
            RemoteVerb::Fetch(datatype, reduction, operand) => {
                engine.fetch(&target, datatype, reduction, operand, &mut to)
            }
            RemoteVerb::FetchAccumulate(datatype, reduction) => {
                let started = engine.fetch_accumulate(&target, datatype, reduction, from, &mut old);
                return self.keep(started, vec![buffer, room]);
            }
            RemoteVerb::CompareSwap(datatype, comparison, values) => {
                engine.compare_swap(&target, (datatype, comparison), values, &mut to)
            }
        };
        self.keep(started, vec![buffer])
    }

    fn flush(&mut self, rank: u32) -> Result<OperationId, Trouble> {
        let started = self.engine.flush(rank);
        self.keep(started, Vec::new())
    }

    fn fence(&mut self, rank: u32) -> Result<(), Trouble> {
        self.engine.fence(rank).map_err(|error| start_trouble(&error))
    }

    fn send_active(
        &mut self,
        to: u32,
        handler: u16,
        header: Buffer,
        payload: Buffer,
    ) -> Result<OperationId, Trouble> {
        // SAFETY: as in `send`.
        let (head, body) = unsafe { (header.outgoing(), payload.outgoing()) };
        let started = self.engine.send_active(to, handler, head, body);
        self.keep(started, vec![header, payload])
    }

    fn active_bytes(&self) -> usize {
        self.engine.active_bytes()
    }

    fn handled(&mut self) -> Vec<HandledMessage> {
        std::mem::take(&mut self.engine.handlers_mut().handled)
    }

    fn failure(&self, rank: u32) -> Option<Failure> {
        self.engine.failure(rank)
    }

    fn acknowledge(&mut self) {
        self.engine.acknowledge();
    }

    fn incarnation(&self) -> u64 {
        self.registry.incarnations.borrow().get(self.engine.rank() as usize).copied().unwrap_or_default()
    }

    fn readmit(&mut self, rank: u32) -> Result<bool, Trouble> {
        let me = self.engine.rank() as usize;
        let readmitted = self.engine.failure(rank).is_none();
        self.registry.readmitting.borrow_mut()[me] = !readmitted;
        Ok(readmitted)
    }

    async fn die(&mut self) -> Verdict {
        if self.registry.alone {
            return kill_this_process();
        }
        self.registry.end(self.engine.rank(), RankEnd::Died);
        // The executor drops this actor, and its port with it.
        std::future::pending().await
    }

    async fn close(mut self) -> Verdict {
        self.engine.settle_accounts();
        while self.engine.sends_pending() {
            self.turn().await;
        }
        let sent = (0..self.size()).map(|peer| self.engine.port().traffic(peer).sent).collect();
        self.registry.end(self.engine.rank(), RankEnd::Finished(sent));
        // Packets that were sent must still leave this process; what arrives is dropped, as a closed endpoint
        // does.
        let alone = self.registry.alone;
        while if alone { !self.driver.has_sent_all(self.engine.port()) } else { !self.registry.all_ended() } {
            let port = self.engine.port_mut();
            self.driver.drive(port);
            if let Polled::Packet(arrival) = port.poll() {
                port.release(arrival);
            }
            Yield::default().await;
        }
        Ok(())
    }
}
