//! A bench that makes ports, connects them and drives them in turn.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::time::{Duration, Instant};

use nemesia_core::payload::LentMemory;
use nemesia_core::port::memory::{
    Completion, CompletionSource, Connection, Event, Facts, MemoryKey, MemoryPort, Offer, PortRegion,
    Private, ReceiveQueue, RegionAccess, RemoteRange, Slice, Work, WorkError, WorkOutcome,
};

use super::{Fabric, Verdict, ensure, equal};
use crate::content::Random;

/// The time after which a wait counts as a hang.
const PATIENCE: Duration = Duration::from_secs(60);
/// The time limit of connecting.
const SOON: Duration = Duration::from_secs(30);
/// The first request number that the bench itself uses.
const OWN: u64 = 1 << 60;

/// Memory that outlives the port to which it is lent.
#[derive(Debug)]
pub(crate) struct Block {
    base: *mut u8,
    layout: Layout,
}

impl Block {
    pub(crate) fn new(len: usize) -> Self {
        // Page-aligned, which suits the strictest fabric, and never empty.
        let layout = Layout::from_size_align(len.max(1), 4096).unwrap_or(Layout::new::<u64>());
        // SAFETY: the size is not 0.
        let base = unsafe { alloc_zeroed(layout) };
        if base.is_null() {
            handle_alloc_error(layout);
        }
        Self { base, layout }
    }

    /// Returns the memory twice: once to be registered, once to be inspected. The block is freed after the
    /// port to which it is lent; it is only copied to and from.
    pub(crate) fn lent(&self, len: usize) -> (LentMemory, LentMemory) {
        let len = len.min(self.layout.size());
        // SAFETY: allocated with that length, and zeroed. The doc comment has the rest.
        unsafe { (LentMemory::from_raw(self.base, len), LentMemory::from_raw(self.base, len)) }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: allocated so, and not freed before.
        unsafe { dealloc(self.base, self.layout) };
    }
}

/// A registered buffer.
#[derive(Debug)]
pub struct Memory {
    /// The region, for its own port.
    pub region: PortRegion,
    /// The key, for peers.
    pub key: MemoryKey,
    /// A view of the buffer for inspection.
    view: LentMemory,
}

impl Memory {
    /// Returns a part of the buffer.
    pub const fn slice(&self, offset: u64, len: u32) -> Slice {
        Slice { region: self.region, offset, len }
    }

    /// Returns the place of a byte, for peers.
    pub const fn at(&self, offset: u64) -> RemoteRange {
        self.key.at(offset)
    }

    /// Stores bytes.
    pub fn put(&self, at: u64, bytes: &[u8]) {
        // A check that stores outside its memory is itself wrong; it detects that when it reads the bytes back.
        let _ = self.view.write(at, bytes);
    }

    /// Returns the bytes at a position.
    pub fn get(&self, at: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        if self.view.read(at, &mut bytes) { bytes } else { Vec::new() }
    }

    /// Returns eight bytes as a number.
    pub fn word(&self, at: u64) -> u64 {
        self.get(at, 8).try_into().map_or(0, u64::from_ne_bytes)
    }
}

/// A port, its completions and events that no check has consumed, and its memory.
#[derive(Debug)]
pub struct Node<P> {
    /// The port; `None` once it was killed.
    pub port: Option<P>,
    /// Completions in the order polled.
    pub done: Vec<Completion>,
    /// Events in the order of arrival.
    pub events: Vec<Event>,
    /// Memory for the messages of the bench itself.
    small: Option<Memory>,
    /// Freed after the port, which is declared before.
    blocks: Vec<Block>,
}

/// The bench.
#[derive(Debug)]
pub struct Bench<F: Fabric> {
    /// The ports.
    pub nodes: Vec<Node<F::Port>>,
    /// The fabric that connects the ports.
    pub fabric: F,
    /// The time of the last turn.
    pub now: Duration,
    /// Random choices.
    pub random: Random,
    /// The only port that takes part in the turns, if not all do.
    pub only: Option<usize>,
    own: u64,
}

impl<F: Fabric> Bench<F> {
    /// Makes a bench without ports.
    pub fn new(fabric: F) -> Self {
        let random = Random::new(fabric.seed());
        Self { nodes: Vec::new(), fabric, now: Duration::ZERO, random, only: None, own: OWN }
    }

    /// Adds `count` ports.
    ///
    /// # Errors
    /// A port cannot be made.
    pub fn open(&mut self, count: usize) -> Verdict {
        for _ in 0..count {
            let port = Some(self.fabric.port()?);
            let (done, events, blocks) = (Vec::new(), Vec::new(), Vec::new());
            self.nodes.push(Node { port, done, events, small: None, blocks });
        }
        self.now = self.fabric.pass();
        Ok(())
    }

    /// Returns a living port.
    ///
    /// # Errors
    /// The port was killed.
    pub fn port(&mut self, node: usize) -> Result<&mut F::Port, String> {
        self.nodes[node].port.as_mut().ok_or_else(|| "the port was killed".into())
    }

    /// Returns the facts of the ports.
    ///
    /// # Errors
    /// The first port was killed.
    pub fn facts(&mut self) -> Result<Facts, String> {
        self.port(0).map(|port| *port.facts())
    }

    /// Returns the length of the longest message to try, in bytes.
    ///
    /// # Errors
    /// The first port was killed.
    pub fn most_bytes(&mut self) -> Result<u32, String> {
        Ok(self.facts()?.message_bytes.min(self.fabric.most_bytes()))
    }

    /// Returns the length of the longest write or read to try, in bytes.
    ///
    /// # Errors
    /// The first port was killed.
    pub fn most_transfer(&mut self) -> Result<u32, String> {
        Ok(self.facts()?.transfer_bytes.min(self.fabric.most_bytes()))
    }

    /// Registers new memory.
    ///
    /// # Errors
    /// The memory cannot be registered.
    pub fn memory(&mut self, node: usize, len: usize, access: RegionAccess) -> Result<Memory, String> {
        let block = Block::new(len);
        let (lent, view) = block.lent(len);
        self.nodes[node].blocks.push(block);
        let port = self.port(node)?;
        let region = port.register(lent, access).map_err(|error| format!("register {len} bytes: {error}"))?;
        let key = port.key(region);
        ensure(key.is_some() == access.is_remote(), || format!("{access:?} has the key {key:?}"))?;
        if let Some(key) = key {
            equal("bytes by the key", key.len, len as u64)?;
        }
        let nothing = MemoryKey { address: 0, len: 0, key: 0 };
        Ok(Memory { region, key: key.unwrap_or(nothing), view })
    }

    /// Registers memory with every access right.
    ///
    /// # Errors
    /// As [`Bench::memory`].
    pub fn open_memory(&mut self, node: usize, len: usize) -> Result<Memory, String> {
        let atomics = self.facts()?.atomics;
        self.memory(node, len, RegionAccess { remote_atomic: atomics, ..RegionAccess::ALL })
    }

    /// Registers memory that may be the destination of our own reads.
    ///
    /// # Errors
    /// As [`Bench::memory`].
    pub fn sink(&mut self, node: usize, len: usize) -> Result<Memory, String> {
        let remote_write = self.facts()?.read_needs_remote_write;
        self.memory(node, len, RegionAccess { remote_write, ..RegionAccess::LOCAL })
    }

    /// Lets time pass, and collects completions and events.
    pub fn turn(&mut self) {
        self.now = self.fabric.pass();
        let mut room = [Completion::EMPTY; 5];
        for (number, node) in self.nodes.iter_mut().enumerate() {
            let Some(port) = node.port.as_mut().filter(|_| self.only.is_none_or(|it| it == number)) else {
                continue;
            };
            let wanted = self.random.below(5) as usize + 1;
            let count = port.poll(&mut room[..wanted]).min(wanted);
            node.done.extend_from_slice(&room[..count]);
            node.events.extend(port.poll_event(self.now));
        }
    }

    /// Takes turns until the condition holds.
    ///
    /// # Errors
    /// The condition never holds.
    pub fn until(&mut self, what: &str, mut so: impl FnMut(&mut Self) -> bool) -> Verdict {
        let (start, mut turns) = (Instant::now(), 0);
        while !so(self) {
            self.turn();
            turns += 1;
            let over = match self.fabric.most_turns() {
                Some(most) => turns > most,
                None => start.elapsed() > PATIENCE,
            };
            if over {
                return Err(format!("never: {what}"));
            }
        }
        Ok(())
    }

    /// Takes so many turns that everything possible has most likely happened.
    pub fn rest(&mut self) {
        (0..300).for_each(|_| self.turn());
    }

    /// Returns the next request number of the bench itself.
    pub fn next_id(&mut self) -> u64 {
        self.own += 1;
        self.own
    }

    /// Waits for the completion with this number.
    ///
    /// # Errors
    /// The completion never comes.
    pub fn completion(&mut self, node: usize, id: u64) -> Result<Completion, String> {
        let mut found = None;
        self.until(&format!("completion {id:#x} at {node}"), |bench| {
            let done = &mut bench.nodes[node].done;
            found = done.iter().position(|it| it.id == id).map(|at| done.remove(at));
            found.is_some()
        })?;
        found.ok_or_else(|| "no completion".into())
    }

    /// Checks that a work request of a send queue succeeds.
    ///
    /// # Errors
    /// The work request fails.
    pub fn succeeds(&mut self, node: usize, id: u64) -> Verdict {
        let outcome = self.completion(node, id)?.outcome;
        equal(&format!("work {id:#x} at {node}"), outcome, WorkOutcome::Done)
    }

    /// Waits for a message. Returns its bytes, its immediate, and whether it was a write.
    ///
    /// # Errors
    /// No message comes.
    pub fn received(&mut self, node: usize, id: u64) -> Result<(u32, Option<u32>, bool), String> {
        match self.completion(node, id)?.outcome {
            WorkOutcome::Received { len, immediate, written } => Ok((len, immediate, written)),
            other => Err(format!("receive {id:#x} at {node}: {other:?}")),
        }
    }

    /// Checks that a work request fails. Returns its error.
    ///
    /// # Errors
    /// The work request succeeds.
    pub fn fails(&mut self, node: usize, id: u64) -> Result<WorkError, String> {
        match self.completion(node, id)?.outcome {
            WorkOutcome::Failed(error) => Ok(error),
            other => Err(format!("work {id:#x} at {node} should fail: {other:?}")),
        }
    }

    /// Returns the first event that `pick` accepts.
    ///
    /// # Errors
    /// No such event comes.
    pub fn event<T>(
        &mut self,
        node: usize,
        what: &str,
        pick: impl Fn(&Event) -> Option<T>,
    ) -> Result<T, String> {
        let mut found = None;
        self.until(&format!("{what} at {node}"), |bench| {
            let events = &mut bench.nodes[node].events;
            let at = events.iter().position(|event| pick(event).is_some());
            found = at.and_then(|at| pick(&events.remove(at)));
            found.is_some()
        })?;
        found.ok_or_else(|| "no event".into())
    }

    /// Waits for the end of a connection.
    ///
    /// # Errors
    /// The connection does not end.
    pub fn lost(&mut self, node: usize, connection: Connection) -> Verdict {
        self.event(node, &format!("{connection:?} lost"), |event| {
            matches!(event, Event::Lost { connection: it, .. } if *it == connection).then_some(())
        })
    }

    /// Closes a connection, and waits for its last event.
    ///
    /// # Errors
    /// The event never comes.
    pub fn close(&mut self, node: usize, connection: Connection) -> Verdict {
        self.port(node)?.close(connection);
        self.event(node, &format!("{connection:?} closed"), |event| {
            (*event == Event::Closed { connection }).then_some(())
        })
    }

    /// Returns an offer that stays valid for a while.
    pub fn offer(&self, private: &[u8], shared_receive: bool) -> Offer {
        let private = Private::new(private).unwrap_or(Private::EMPTY);
        Offer { private, shared_receive, deadline: self.now + SOON }
    }

    /// Connects `a` to `b`. Both sides may send on the connection.
    ///
    /// # Errors
    /// The connection cannot be made.
    pub fn connect(&mut self, a: usize, b: usize) -> Result<(Connection, Connection), String> {
        self.connect_with(a, b, (false, false))
    }

    /// As [`Bench::connect`], optionally with shared receive queues.
    ///
    /// # Errors
    /// As [`Bench::connect`].
    pub fn connect_with(
        &mut self,
        a: usize,
        b: usize,
        (shared_a, shared_b): (bool, bool),
    ) -> Result<(Connection, Connection), String> {
        let address = self.port(b)?.address().ok_or("it has no address")?;
        let (ask, answer) = (self.offer(&[], shared_a), self.offer(&[], shared_b));
        let active = self.port(a)?.connect(&address, &ask).map_err(|error| error.to_string())?;
        let passive = self.event(b, "request", |event| match event {
            Event::Requested { connection, .. } => Some(*connection),
            _ => None,
        })?;
        let queue = if shared_b { ReceiveQueue::Shared } else { ReceiveQueue::Of(passive) };
        let id = self.post_small(b, queue)?;
        self.port(b)?.accept(passive, &answer).map_err(|error| error.to_string())?;
        for (node, connection) in [(a, active), (b, passive)] {
            self.event(node, &format!("{connection:?} established"), |event| {
                matches!(event, Event::Established { connection: it, .. } if *it == connection).then_some(())
            })?;
        }
        self.send_small(a, active)?;
        self.received(b, id)?;
        Ok((active, passive))
    }

    /// Posts a receive for a message of the bench itself. Returns its number.
    ///
    /// # Errors
    /// The receive cannot be posted.
    pub fn post_small(&mut self, node: usize, queue: ReceiveQueue) -> Result<u64, String> {
        if self.nodes[node].small.is_none() {
            self.nodes[node].small = Some(self.memory(node, 64, RegionAccess::LOCAL)?);
        }
        let id = self.next_id();
        let part: Vec<Slice> = self.nodes[node].small.iter().map(|it| it.slice(0, 8)).collect();
        self.port(node)?.receive(queue, id, &part).map_err(|error| format!("small receive: {error}"))?;
        Ok(id)
    }

    /// Sends eight bytes, and waits until they have left.
    ///
    /// # Errors
    /// The send fails.
    pub fn send_small(&mut self, node: usize, connection: Connection) -> Verdict {
        if self.nodes[node].small.is_none() {
            self.nodes[node].small = Some(self.memory(node, 64, RegionAccess::LOCAL)?);
        }
        let id = self.next_id();
        let part: Vec<Slice> = self.nodes[node].small.iter().map(|it| it.slice(8, 8)).collect();
        let posted = self.port(node)?.send(Work::new(connection, id), CompletionSource::Gather(&part), None);
        posted.map_err(|error| format!("small send: {error}"))?;
        self.succeeds(node, id)
    }

    /// Sends a message from `a` to `b`. Its arrival proves that all earlier writes are placed.
    ///
    /// # Errors
    /// The message does not arrive.
    pub fn flush(&mut self, (a, from): (usize, Connection), (b, to): (usize, Connection)) -> Verdict {
        let id = self.post_small(b, ReceiveQueue::Of(to))?;
        self.send_small(a, from)?;
        self.received(b, id).map(|_| ())
    }

    /// Checks that the connection still carries messages both ways.
    ///
    /// # Errors
    /// A message does not arrive.
    pub fn works(&mut self, a: (usize, Connection), b: (usize, Connection)) -> Verdict {
        self.flush(a, b)?;
        self.flush(b, a)
    }
}
