//! Pipes over one memory port.

use std::time::{Duration, Instant};

use nemesia_core::payload::{Gather, Scatter};
use nemesia_core::port::memory::{
    Address, Armed, Completion, ConnectError, Connection, Event, Facts, LostError, MemoryKey, MemoryPort,
    Offer, PortRegion, Private, RegionAccess,
};
use nemesia_core::rdma_channel::{
    BytePipe, Design, PastWrite, PipeCard, PipeError, PipeHost as _, PipeMemory, PipeShape,
};

use super::host::{ChannelHost, Registrations};
use super::memory::PipeStorage;
use crate::regcache::Counts;
use crate::verbs::VerbsPort;

/// The completions taken at once.
const COMPLETIONS: usize = 16;
/// The polls of the port between two looks at events, which need the time.
const EVENTS_EVERY: u32 = 64;
/// The puts that can do nothing between two polls of the port. The caller's gets poll it, too.
const PUTS_A_POLL: u32 = 64;

/// One end of a pipe.
#[derive(Debug)]
struct FabricEnd {
    rank: usize,
    pipe: BytePipe,
    ready: bool,
}

/// The pipes over one port.
#[derive(Debug)]
pub(super) struct ChannelFabric<P: MemoryPort> {
    /// Dropped before the memory that it is lent.
    host: ChannelHost<P>,
    ends: Vec<FabricEnd>,
    storage: Vec<PipeStorage>,
    begun: Instant,
    polls: u32,
    idle: u32,
    /// Gets since a poll found something.
    gets: usize,
}

/// What a process says of itself when it connects: its rank, and the token that the peer has published.
#[derive(Clone, Copy, Debug)]
pub(super) struct Introduction {
    pub(super) rank: usize,
    pub(super) token: u64,
}

const INTRODUCTION_BYTES: usize = 12;

impl Introduction {
    fn with(self, card: &[u8]) -> Option<Private> {
        let rank = u32::try_from(self.rank).ok()?.to_le_bytes();
        Private::new(&[rank.as_slice(), self.token.to_le_bytes().as_slice(), card].concat())
    }

    /// Splits what a peer has sent.
    fn of(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (first, card) = bytes.split_at_checked(INTRODUCTION_BYTES)?;
        let (rank, token) = first.split_at_checked(4)?;
        let rank = u32::from_le_bytes(rank.try_into().ok()?) as usize;
        Some((Self { rank, token: u64::from_le_bytes(token.try_into().ok()?) }, card))
    }
}

impl ChannelFabric<VerbsPort> {
    /// Returns a setting in which this process and the peer with this address differ, with the remedy, if that keeps
    /// them from connecting.
    pub(super) fn difference(&mut self, address: &Address) -> Option<String> {
        self.port().difference(address)
    }
}

impl<P: MemoryPort> ChannelFabric<P> {
    pub(super) fn new(port: P, registrations: Registrations) -> Self {
        Self {
            host: ChannelHost::new(port, registrations),
            ends: Vec::new(),
            storage: Vec::new(),
            begun: Instant::now(),
            polls: 0,
            idle: 0,
            gets: 0,
        }
    }

    pub(super) fn facts(&mut self) -> Facts {
        *self.host.port().facts()
    }

    fn port(&mut self) -> &mut P {
        self.host.port()
    }

    pub(super) fn address(&mut self) -> Option<Address> {
        self.port().address()
    }

    pub(super) const fn counts(&self) -> Counts {
        self.host.counts()
    }

    /// Allocates and registers the memory of a pipe.
    fn memory(&mut self, len: u64, access: RegionAccess) -> Result<PipeMemory, String> {
        let none =
            || format!("there is no memory for {len} bytes of a pipe: lower NEMESIA_CHANNEL_RING_BYTES");
        let storage = usize::try_from(len).ok().and_then(PipeStorage::new).ok_or_else(none)?;
        // SAFETY: the storage stays in `self.storage`, which is dropped after the port and the pipes.
        let [lent, view] = unsafe { storage.lent() };
        self.storage.push(storage);
        let region = self.port().register(lent, access).map_err(|error| {
            format!("{len} bytes of a pipe cannot be registered: {error}; lower NEMESIA_CHANNEL_RING_BYTES")
        })?;
        Ok(PipeMemory { region, view })
    }

    /// Makes one end over a connection that `meet` begins, to which it passes the private data.
    fn open(
        &mut self,
        (rank, connects): (usize, bool),
        shape: PipeShape,
        own: Introduction,
        meet: impl FnOnce(&mut P, Private) -> Result<Connection, String>,
    ) -> Result<(), String> {
        let access = RegionAccess { remote_write: true, ..RegionAccess::LOCAL };
        let inbox = self.memory(shape.inbox_bytes(), access)?;
        let outbox = self.memory(shape.outbox_bytes(), RegionAccess::LOCAL)?;
        let port = self.port();
        let key = port.key(inbox.region).ok_or("the port gives no key")?;
        let card = PipeCard { shape, inbox: key }.to_bytes();
        let private = own.with(&card).ok_or("the card is too long")?;
        let connection = meet(port, private)?;
        let pipe = BytePipe::new(port, (connection, connects), shape, inbox, outbox)
            .map_err(|error| error.to_string())?;
        self.ends.push(FabricEnd { rank, pipe, ready: false });
        Ok(())
    }

    /// Requests a pipe to a rank.
    pub(super) fn connect(
        &mut self,
        rank: usize,
        shape: PipeShape,
        own: Introduction,
        to: &Address,
        limit: Duration,
    ) -> Result<(), String> {
        let deadline = self.begun.elapsed() + limit;
        self.open((rank, true), shape, own, |port, private| {
            let offer = Offer { private, shared_receive: false, deadline };
            port.connect(to, &offer).map_err(|error| error.to_string())
        })
    }

    /// Takes an event while pipes are being opened. `expects` returns the shape for a rank that may connect, and the
    /// own rank and token.
    pub(super) fn settle(
        &mut self,
        expects: &dyn Fn(usize) -> Option<PipeShape>,
        own: Introduction,
        limit: Duration,
    ) -> Result<(), (Option<usize>, String)> {
        // Not `poll`, which refuses all requests for connections.
        self.take_completions();
        let now = self.begun.elapsed();
        match self.port().poll_event(now) {
            Some(Event::Requested { connection, private }) => {
                self.requested(expects, own, (connection, private), now + limit)
            }
            Some(event) => self.on_event(event),
            None => Ok(()),
        }
    }

    fn requested(
        &mut self,
        expects: &dyn Fn(usize) -> Option<PipeShape>,
        own: Introduction,
        (connection, private): (Connection, Private),
        deadline: Duration,
    ) -> Result<(), (Option<usize>, String)> {
        let heard = Introduction::of(private.bytes()).filter(|(it, _)| it.token == own.token);
        let shape = heard.and_then(|(it, card)| Some((it.rank, card, expects(it.rank)?)));
        let shape = shape.filter(|(rank, ..)| self.ends.iter().all(|end| end.rank != *rank));
        let Some((rank, card, shape)) = shape else {
            // Not one of this world, or not one that connects: it must not disturb the others.
            let _ = self.port().refuse(connection, Private::EMPTY);
            return Ok(());
        };
        let mut answer = Private::EMPTY;
        self.open((rank, false), shape, own, |_, private| {
            answer = private;
            Ok(connection)
        })
        .map_err(|why| (Some(rank), why))?;
        if let Some(end) = self.ends.last_mut()
            && let Err(error) = end.pipe.meet(card)
        {
            let _ = self.port().refuse(connection, answer);
            return Err((Some(rank), error.to_string()));
        }
        let offer = Offer { private: answer, shared_receive: false, deadline };
        self.port().accept(connection, &offer).map_err(|error| (Some(rank), error.to_string()))
    }

    fn end(&mut self, connection: Connection) -> Option<&mut FabricEnd> {
        self.ends.iter_mut().find(|end| end.pipe.connection() == connection)
    }

    fn on_event(&mut self, event: Event) -> Result<(), (Option<usize>, String)> {
        match event {
            Event::Established { connection, private } => {
                let Some(end) = self.end(connection) else { return Ok(()) };
                end.ready = true;
                match Introduction::of(private.bytes()) {
                    Some((_, card)) => {
                        end.pipe.meet(card).map_err(|error| (Some(end.rank), error.to_string()))
                    }
                    None => Ok(()),
                }
            }
            Event::Failed { connection, error, private } => {
                let Some(end) = self.end(connection) else {
                    // A request that ended before it was answered.
                    self.port().close(connection);
                    return Ok(());
                };
                // A refusal has the card of the peer, unless it refuses the process: another shape is the likeliest
                // reason. RDMA-CM fills an empty answer with zeros, and no card begins with version 0.
                let shape = *end.pipe.shape();
                let differs = Introduction::of(private.bytes())
                    .filter(|(_, card)| card.first().is_some_and(|version| *version != 0))
                    .and_then(|(_, card)| PipeCard::check(card, &shape).err());
                let why = differs.map_or_else(|| error.to_string(), |differs| differs.to_string());
                let why = if error == ConnectError::Refused { why } else { format!("not connected: {why}") };
                end.pipe.on_lost(LostError::Closed);
                Err((Some(end.rank), why))
            }
            Event::Lost { connection, error } => {
                if let Some(end) = self.end(connection) {
                    end.pipe.on_lost(error);
                }
                Ok(())
            }
            Event::PortFailed { code } => {
                self.ends.iter_mut().for_each(|end| end.pipe.on_lost(LostError::Closed));
                Err((None, format!("the device has failed, with code {code}")))
            }
            Event::Requested { connection, .. } => {
                let _ = self.port().refuse(connection, Private::EMPTY);
                Ok(())
            }
            Event::Closed { .. } => Ok(()),
        }
    }

    /// Returns whether a rank can be reached.
    pub(super) fn is_ready(&self, rank: usize) -> bool {
        self.ends.iter().any(|end| end.rank == rank && end.ready)
    }

    /// Returns the place of a rank's pipe.
    pub(super) fn place(&self, rank: usize) -> Option<usize> {
        self.ends.iter().position(|end| end.rank == rank)
    }

    /// Polls the port after the start, and looks at its events now and then.
    fn poll(&mut self) {
        self.take_completions();
        self.polls = self.polls.wrapping_add(1);
        if self.polls.is_multiple_of(EVENTS_EVERY) {
            self.look();
        }
    }

    /// Polls the port.
    fn take_completions(&mut self) {
        let mut room = [Completion::EMPTY; COMPLETIONS];
        let count = self.port().poll(&mut room);
        for done in room.iter().take(count) {
            if let Some(at) = self.ends.iter().position(|end| end.pipe.connection() == done.connection) {
                let Self { host, ends, .. } = self;
                // Put and get report the error.
                let _ = ends[at].pipe.on_completion(host.port(), done);
            }
        }
    }

    /// Takes an event after the start.
    #[cold]
    fn look(&mut self) {
        let now = self.begun.elapsed();
        while let Some(event) = self.port().poll_event(now) {
            // The pipes report what has happened to them.
            let _ = self.on_event(event);
        }
        self.host.retry();
    }

    /// Puts into the pipe at a place. The buffers may be lent only if `may_lend` is set.
    pub(super) fn put(&mut self, at: usize, from: &mut Gather, may_lend: bool) -> Result<usize, PipeError> {
        self.host.may_lend = may_lend;
        let Self { host, ends, .. } = self;
        let Some(end) = ends.get_mut(at) else { return Ok(0) };
        let done = end.pipe.put(host, from)?;
        if done == 0 {
            self.idle += 1;
            if self.idle >= PUTS_A_POLL {
                self.idle = 0;
                self.poll();
            }
        }
        Ok(done)
    }

    /// Gets from the pipe at a place. The buffers may be lent only if `may_lend` is set.
    pub(super) fn get(&mut self, at: usize, into: &mut Scatter, may_lend: bool) -> Result<usize, PipeError> {
        self.host.may_lend = may_lend;
        let Self { host, ends, .. } = self;
        let Some(end) = ends.get_mut(at) else { return Ok(0) };
        let done = end.pipe.get(host, into)?;
        if done > 0 {
            return Ok(done);
        }
        // A caller that looks for any source calls this for each peer in turn: one poll is enough for all.
        self.gets += 1;
        if self.gets < self.ends.len() {
            return Ok(0);
        }
        self.gets = 0;
        self.poll();
        // A port in software may place bytes without a completion here.
        let Self { host, ends, .. } = self;
        ends.get_mut(at).map_or(Ok(0), |end| end.pipe.get(host, into))
    }

    /// Admits the peer at a place to a buffer of the caller's. Returns the region and the key; `None` if the buffer
    /// cannot be registered.
    pub(super) fn admit(&mut self, base: *mut u8, len: usize) -> Option<(PortRegion, MemoryKey)> {
        self.host.may_lend = true;
        self.host.admit(base.expose_provenance() as u64, len as u64)
    }

    /// Ends the use of a region by peers. Returns `false` if the caller must try again.
    pub(super) fn end_admission(&mut self, region: PortRegion) -> bool {
        let ended = self.host.release(region);
        if !ended {
            self.look();
        }
        ended
    }

    /// Writes a buffer of the caller's past the pipe at a place.
    pub(super) fn write_past(
        &mut self,
        at: usize,
        (base, len): (*const u8, usize),
        to: MemoryKey,
    ) -> Result<PastWrite, PipeError> {
        self.host.may_lend = true;
        let Self { host, ends, .. } = self;
        let Some(end) = ends.get_mut(at) else { return Ok(PastWrite::Refused) };
        let buffer = (base.expose_provenance() as u64, len as u64);
        let progress = end.pipe.write_past(host, buffer, to);
        if matches!(progress, Ok(PastWrite::Waiting | PastWrite::Posted)) {
            self.poll();
        }
        progress
    }

    /// Makes progress with what waits. Returns whether all bytes of all pipes have left, or their pipes have failed.
    pub(super) fn flush(&mut self) -> bool {
        self.push(BytePipe::is_sent)
    }

    /// Makes progress with what waits. Returns whether all bytes of all pipes leave without the progress of peers, or
    /// their pipes have failed.
    pub(super) fn push_out(&mut self) -> bool {
        let is_posted = self.push(BytePipe::is_posted);
        // What was posted now leaves.
        self.poll();
        is_posted
    }

    fn push(&mut self, is_done: impl Fn(&BytePipe) -> bool) -> bool {
        self.poll();
        let Self { host, ends, .. } = self;
        let mut all = true;
        for end in ends {
            let failed = end.pipe.push(host.port()).is_err() || end.pipe.failure().is_some();
            all &= failed || is_done(&end.pipe);
        }
        self.look();
        all
    }

    /// Makes progress with what waits.
    pub(super) fn progress(&mut self) {
        self.push(|_| true);
    }

    /// Returns whether a get from the pipe at a place has something to do or to report.
    pub(super) fn has_bytes(&mut self, at: usize) -> bool {
        self.ends.get_mut(at).is_some_and(|end| end.pipe.is_ready())
    }

    /// Prepares for a sleep until [`ChannelFabric::descriptor`] is readable. Returns whether this process may sleep.
    pub(super) fn arm(&mut self) -> bool {
        self.port().arm() == Armed::Sleep
    }

    /// Returns the descriptor of the port.
    pub(super) fn descriptor(&mut self) -> Option<i32> {
        self.port().descriptor()
    }

    /// Announces that this process puts and gets nothing more. Returns whether all announcements leave without the
    /// progress of peers.
    pub(super) fn finish(&mut self) -> bool {
        self.ends.iter_mut().for_each(|end| end.pipe.finish());
        self.push_out()
    }

    /// Closes all connections.
    pub(super) fn close(&mut self) {
        let connections: Vec<Connection> = self.ends.iter().map(|end| end.pipe.connection()).collect();
        for connection in connections {
            self.port().close(connection);
        }
        self.poll();
        self.look();
    }

    /// Explains the pipe at a place.
    pub(super) fn explain(&self, at: usize) -> String {
        let Some(FabricEnd { pipe, .. }) = self.ends.get(at) else { return String::new() };
        let PipeShape { design, ring_bytes, chunk_bytes, zero_copy_from, .. } = *pipe.shape();
        let (name, why) = (design.name(), pipe.explain());
        let mut text = format!("{name}, rings of {ring_bytes} bytes");
        if design != Design::Basic {
            text += &format!(", chunks of {chunk_bytes}");
        }
        if design.is_zero_copy() {
            let learned =
                if design == Design::Learned { ", unless that is learned to be faster" } else { "" };
            let how = self.host.explain();
            text +=
                &format!(", no copy from {zero_copy_from} bytes on{learned}; {how}; {}", pipe.run_counts());
        }
        format!("{text}; {why}")
    }
}
