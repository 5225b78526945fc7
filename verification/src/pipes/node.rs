//! A process with pipes to others.

use std::cell::Cell;
use std::time::Duration;

use nemesia_core::payload::LentMemory;
use nemesia_core::port::memory::{
    Completion, Connection, Event, MemoryKey, MemoryPort, Offer, PortRegion, Private, RegionAccess, Slice,
};
use nemesia_core::rdma_channel::{BytePipe, PipeCard, PipeError, PipeHost, PipeMemory, PipeShape};

use super::memory::{BufferList, PipeBlock, lend};
use crate::rng::mix;

/// The time in which a connection must be ready.
const SOON: Duration = Duration::from_secs(30);

/// One end of a pipe, and what its process does with it.
#[derive(Debug)]
pub(super) struct PipeEnd {
    pub(super) pipe: BytePipe,
    /// The inbox for inspection, and its guard bytes.
    pub(super) inbox: PipeBlock,
    outbox: PipeBlock,
    pub(super) ready: bool,
    pub(super) putting: Option<BufferList>,
    pub(super) getting: Option<BufferList>,
    /// Bytes of lists that were begun, bytes that put has counted, and bytes that get has counted.
    pub(super) begun: u64,
    pub(super) put: u64,
    pub(super) got: u64,
    /// Why the pipe failed.
    pub(super) failed: Option<PipeError>,
}

impl PipeEnd {
    pub(super) fn is_guarded(&self) -> bool {
        let lists = [&self.putting, &self.getting];
        self.inbox.is_guarded()
            && self.outbox.is_guarded()
            && lists.into_iter().flatten().all(BufferList::is_guarded)
    }
}

/// The port, and the registrations for zero-copy.
#[derive(Debug)]
pub(super) struct NodeHost<P> {
    pub(super) port: P,
    pub(super) exposed: u64,
    pub(super) lent: u64,
    /// The time of the last reading of the clock. Each takes another time, so that every way is found fastest at times.
    pub(super) ticks: Cell<u64>,
}

impl<P: MemoryPort> PipeHost for NodeHost<P> {
    type Port = P;

    fn port(&mut self) -> &mut P {
        &mut self.port
    }

    fn expose(&mut self, address: u64, len: u64) -> Option<(PortRegion, MemoryKey)> {
        let access = RegionAccess { remote_read: true, ..RegionAccess::NONE };
        let region = self.port.register(lend(address, len), access).ok()?;
        self.exposed += 1;
        self.port.key(region).map(|key| (region, key))
    }

    fn lend(&mut self, address: u64, len: u32) -> Option<Slice> {
        let remote_write = self.port.facts().read_needs_remote_write;
        let access = RegionAccess { remote_write, ..RegionAccess::LOCAL };
        let region = self.port.register(lend(address, len.into()), access).ok()?;
        self.lent += 1;
        Some(Slice { region, offset: 0, len })
    }

    fn admit(&mut self, address: u64, len: u64) -> Option<(PortRegion, MemoryKey)> {
        let access = RegionAccess { remote_write: true, ..RegionAccess::LOCAL };
        let region = self.port.register(lend(address, len), access).ok()?;
        self.port.key(region).map(|key| (region, key))
    }

    fn source(&mut self, address: u64, len: u64) -> Option<(PortRegion, u64)> {
        let region = self.port.register(lend(address, len), RegionAccess::NONE).ok()?;
        Some((region, 0))
    }

    fn ticks(&self) -> Option<u64> {
        let now = self.ticks.get();
        self.ticks.set(now + 1 + mix(now) % 1000);
        Some(now)
    }

    fn release(&mut self, region: PortRegion) -> bool {
        self.port.deregister(region) != Err(nemesia_core::port::memory::RegisterError::Busy)
    }
}

/// A process.
#[derive(Debug)]
pub(super) struct PipeNode<P> {
    /// Dropped before the memory that is lent to it.
    pub(super) host: NodeHost<P>,
    /// The ends, each with the number of the other process.
    pub(super) ends: Vec<(usize, PipeEnd)>,
}

impl<P: MemoryPort> PipeNode<P> {
    pub(super) const fn new(port: P) -> Self {
        Self { host: NodeHost { port, exposed: 0, lent: 0, ticks: Cell::new(0) }, ends: Vec::new() }
    }

    fn memory(&mut self, len: u64, access: RegionAccess) -> Result<(PipeBlock, PipeMemory), String> {
        let block = PipeBlock::new(len as usize);
        let lent: LentMemory = block.lent();
        let region = self.host.port.register(lent, access).map_err(|error| error.to_string())?;
        let view = block.lent();
        Ok((block, PipeMemory { region, view }))
    }

    /// Makes one end. `meet` gets the private data with the card and returns the connection.
    fn open(
        &mut self,
        peer: usize,
        shape: PipeShape,
        connects: bool,
        meet: impl FnOnce(&mut P, Private) -> Result<Connection, String>,
        name: usize,
    ) -> Result<Connection, String> {
        let access = RegionAccess { remote_write: true, ..RegionAccess::LOCAL };
        let (inbox, of_inbox) = self.memory(shape.inbox_bytes(), access)?;
        let (outbox, of_outbox) = self.memory(shape.outbox_bytes(), RegionAccess::LOCAL)?;
        let key = self.host.port.key(of_inbox.region).ok_or("no key")?;
        let mut private = vec![name as u8];
        private.extend(PipeCard { shape, inbox: key }.to_bytes());
        let private = Private::new(&private).ok_or("the card is too long")?;
        let port = &mut self.host.port;
        let connection = meet(port, private)?;
        let pipe = BytePipe::new(port, (connection, connects), shape, of_inbox, of_outbox).map_err(text)?;
        let end = PipeEnd {
            pipe,
            inbox,
            outbox,
            ready: false,
            putting: None,
            getting: None,
            begun: 0,
            put: 0,
            got: 0,
            failed: None,
        };
        self.ends.push((peer, end));
        Ok(connection)
    }

    /// Connects to a process at this address.
    pub(super) fn connect(
        &mut self,
        (own, peer): (usize, usize),
        shape: PipeShape,
        to: &nemesia_core::port::memory::Address,
        now: Duration,
    ) -> Result<(), String> {
        let meet = |port: &mut P, private| {
            let offer = Offer { private, shared_receive: false, deadline: now + SOON };
            port.connect(to, &offer).map_err(text)
        };
        self.open(peer, shape, true, meet, own).map(|_| ())
    }

    fn accept(
        &mut self,
        own: usize,
        shape: PipeShape,
        (connection, theirs): (Connection, Private),
        now: Duration,
    ) -> Result<(), String> {
        let (&peer, card) = theirs.bytes().split_first().ok_or("no card")?;
        let mut answer = Private::EMPTY;
        let meet = |_: &mut P, private| {
            answer = private;
            Ok(connection)
        };
        self.open(peer.into(), shape, false, meet, own)?;
        let (_, end) = self.ends.last_mut().ok_or("no end")?;
        end.pipe.meet(card).map_err(text)?;
        let offer = Offer { private: answer, shared_receive: false, deadline: now + SOON };
        self.host.port.accept(connection, &offer).map_err(text)
    }

    /// Takes completions and an event. Returns whether there was any.
    pub(super) fn drive(
        &mut self,
        own: usize,
        shape: PipeShape,
        now: Duration,
        most: usize,
    ) -> Result<bool, String> {
        let mut room = [Completion::EMPTY; 4];
        let count = self.host.port.poll(&mut room[..most.clamp(1, 4)]);
        for done in room.iter().take(count) {
            let end = self.ends.iter_mut().find(|(_, end)| end.pipe.connection() == done.connection);
            if let Some((_, end)) = end {
                // Put and get report the error.
                let _ = end.pipe.on_completion(&mut self.host.port, done);
            }
        }
        let Some(event) = self.host.port.poll_event(now) else { return Ok(count > 0) };
        match event {
            Event::Requested { connection, private } => {
                self.accept(own, shape, (connection, private), now)?;
            }
            Event::Established { connection, private } => {
                if let Some(end) = self.end(connection) {
                    end.ready = true;
                    if let Some((_, card)) = private.bytes().split_first() {
                        end.pipe.meet(card).map_err(text)?;
                    }
                }
            }
            Event::Lost { connection, error } => {
                if let Some(end) = self.end(connection) {
                    end.pipe.on_lost(error);
                }
            }
            Event::Failed { error, .. } => return Err(format!("not connected: {error}")),
            Event::Closed { .. } | Event::PortFailed { .. } => {}
        }
        Ok(true)
    }

    fn end(&mut self, connection: Connection) -> Option<&mut PipeEnd> {
        self.ends.iter_mut().map(|(_, end)| end).find(|end| end.pipe.connection() == connection)
    }
}

pub(super) fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}
