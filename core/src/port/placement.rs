//! Software placement: a memory port over byte streams, for machines without an RDMA device.
//!
//! The processor executes the specification of [`wire::placement`](crate::wire::placement). The target checks
//! key, access rights and bounds of every access, and has the stream copy directly from and to the lent memory.
//! Bulk data pass through no buffer of the placement.
//!
//! The streams come from a [`StreamTransport`]: sockets, pipes in shared memory, a simulation. Time and storage
//! come from the caller.
//!
//! Memory is bounded: a connection takes 16 KiB for each direction and its two queues, whatever the peer does. If it
//! reads ahead, it takes up to 64 KiB more after a message of that length.
//! A peer's bytes can end its own connection and nothing else.
//!
//! | module | what it holds |
//! |---|---|
//! | `options` | the limits of a port |
//! | `stream` | what is asked of the streams |
//! | `queue` | queues over lent storage |
//! | `buffers` | a connection's bytes to send, and to execute |
//! | `regions` | registered memory |
//! | `link` | a connection: its queues, and how it ends |
//! | `send` | outgoing bytes |
//! | `at_once` | messages that leave from where their bytes are |
//! | `arrive` | incoming bytes |
//! | `expected`, `ahead` | large messages are read to where they belong before their frame is known |
//! | `handshake` | streams without a connection: before the request, and after a refusal |
//! | `drive`, `reach` | polling: connections are made, make progress, and end; the streams of a port |
#![deny(unsafe_code)]

mod ahead;
mod arrive;
mod at_once;
mod buffers;
mod drive;
mod expected;
mod handshake;
mod link;
mod options;
mod queue;
mod reach;
mod regions;
mod send;
mod stream;

use core::borrow::{Borrow as _, BorrowMut};
use core::fmt;
use core::time::Duration;

pub use options::PlacementOptions;
pub use stream::{ByteStream, Interest, LISTENER, PullResult, StreamResult, StreamTransport};

use super::memory::{
    Address, Armed, Completion, CompletionSource, ConnectError, Connection, ConnectionState, Event, Facts,
    LostError, MemoryKey, MemoryPort, Offer, Origin, PortRegion, PostError, Private, ReceiveQueue,
    RegionAccess, RegisterError, RemoteRange, Slice, Work,
};
use crate::payload::{GatherList, LentMemory};
use crate::slab::NONE;
use crate::wire::placement::{Handshake, PlacementAnswer};
use handshake::{LingeringClose, UnauthenticatedConnection};
use link::{
    ConnectionPlace, Freed, LinkEnd, LinkQueue, MOST_INLINE, PendingReports, PlacementKind, PlacementLink,
    PlacementReceive, PlacementWork, WorkBytes,
};
use queue::{IndexQueue, LentQueue};
use regions::{MOST_PARTS, PlacementParts, PlacementRegions};

/// The bytes of each of a connection's two buffers, for outgoing and for incoming bytes; the latter may grow.
const STAGE_BYTES: usize = 16 << 10;
/// The most events that one connection can have at a time: requested, established or failed, and lost.
const EVENTS_EACH: usize = 3;
/// The polls after [`MemoryPort::arm`] that its caller may make before it sleeps.
const POLLS_BEFORE_SLEEP: u32 = 64;

/// The polls that look only at the connection that was readable last, for each poll that looks at all: a message of a
/// conversation then costs one system call less. Others wait for so many polls at most.
const LOOKS_AT_RECENT: u32 = 3;

/// The same while the looks at all find nothing but that connection. The simulation has few looks at all.
const LOOKS_WHEN_STEADY: u32 = if cfg!(nemesia_injected_fault) { 3 } else { 15 };

/// The most polls that look only at streams in memory, for each poll that asks the transport, and the time between two
/// polls that do.
const LOOKS_IN_MEMORY: u32 = 1023;
const ASK_EVERY: Duration = Duration::from_millis(1);

/// The looks at all that have found only one connection, after which that one is not watched any more: every poll
/// reads it, and a message then costs less on both sides. It is watched again before the caller sleeps, and as soon as
/// another one is readable. The simulation has few looks at all.
const STEADY_LOOKS: u32 = if cfg!(nemesia_injected_fault) { 2 } else { 16 };

/// The storage that the caller lends to a port.
pub trait PlacementStorage {
    /// A table of values, empty at first. The port extends it when it needs more places, up to the limits of
    /// [`PlacementOptions`]. If a table does not grow as requested, the port reports that it is full. Places are
    /// never removed; a connection's tables are dropped with it.
    type Table<V>: BorrowMut<[V]> + Extend<V> + Default;
}

type Lingering<T, P> = LingeringClose<<T as StreamTransport>::Stream, <P as PlacementStorage>::Table<u8>>;

/// A memory port by software placement over the streams of a transport.
pub struct PlacementPort<T: StreamTransport, P: PlacementStorage> {
    facts: Facts,
    transport: T,
    /// The token that a connecting peer must present: it is part of the address.
    token: u64,
    regions: PlacementRegions<P>,
    links: P::Table<ConnectionPlace<T::Stream, P>>,
    /// The first free place for a connection.
    free: u32,
    shared: LentQueue<PlacementReceive, P::Table<Option<PlacementReceive>>>,
    shared_used: u32,
    /// The number of ready connections that use the shared queue.
    sharers: u32,
    /// Receive-starved connections.
    receive_starved: IndexQueue,
    /// Connections to handle.
    listed: IndexQueue,
    closing: IndexQueue,
    patience: Duration,
    reads_ahead: bool,
    /// Connections with a deadline: to be made, or to give memory back.
    timed: IndexQueue,
    unauthenticated: P::Table<Option<UnauthenticatedConnection<T::Stream>>>,
    lingering_closes: P::Table<Option<Lingering<T, P>>>,
    reports: PendingReports<P>,
    /// The connection that was readable last, and the polls that have looked only there since all were looked at.
    recent: Option<u32>,
    looks: u32,
    /// The looks at all, one after another, that have found nothing but that connection; and whether it is not watched
    /// therefore.
    sightings: u32,
    is_unwatched: bool,
    /// The number of polls in which no report is held back, because the caller may be about to sleep.
    awake: u32,
    now: Duration,
    /// The time after which a poll asks the transport also if its streams lie in memory, and the polls for each that
    /// does: twice as many after each that found nothing.
    next_ask: Duration,
    ask_after: u32,
    /// The time of the next look for machines that do not answer.
    next_look: Duration,
}

impl<T: StreamTransport, P: PlacementStorage> fmt::Debug for PlacementPort<T, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PlacementPort").field("facts", &self.facts).finish_non_exhaustive()
    }
}

impl<T: StreamTransport, P: PlacementStorage> PlacementPort<T, P> {
    /// Returns a port without connections.
    ///
    /// # Errors
    /// The error number with which the transport's [`StreamTransport::random`] failed.
    pub fn new(mut transport: T, options: &PlacementOptions) -> Result<Self, i32> {
        let (token, facts) = (transport.random()?, options.facts(T::NAME));
        let queue = |number: LinkQueue| IndexQueue::new(number as usize);
        Ok(Self {
            facts,
            transport,
            token,
            regions: PlacementRegions::new(facts.regions),
            links: P::Table::default(),
            free: NONE,
            shared: LentQueue::new(),
            shared_used: 0,
            sharers: 0,
            receive_starved: queue(LinkQueue::Starved),
            listed: queue(LinkQueue::Listed),
            closing: queue(LinkQueue::Closing),
            patience: options.patience,
            reads_ahead: options.reads_ahead,
            timed: queue(LinkQueue::Timed),
            unauthenticated: P::Table::default(),
            lingering_closes: P::Table::default(),
            reports: PendingReports::new(),
            recent: None,
            looks: 0,
            sightings: 0,
            is_unwatched: false,
            awake: 0,
            now: Duration::ZERO,
            next_ask: Duration::ZERO,
            ask_after: 0,
            next_look: Duration::ZERO,
        })
    }

    fn link(&self, connection: Connection) -> Option<&PlacementLink<T::Stream, P>> {
        let place = self.links.borrow().get(connection.index as usize)?;
        place.link.as_ref().filter(|_| place.generation == connection.generation)
    }

    fn link_mut(&mut self, connection: Connection) -> Option<&mut PlacementLink<T::Stream, P>> {
        let place = self.links.borrow_mut().get_mut(connection.index as usize)?;
        place.link.as_mut().filter(|_| place.generation == connection.generation)
    }

    fn new_link(&mut self, state: ConnectionState) -> Result<Connection, ConnectError> {
        let limit = self.facts.connections;
        let full = ConnectError::Full { limit };
        let have = self.links.borrow().len();
        if self.free == NONE && have < limit as usize {
            self.links.extend(core::iter::once(ConnectionPlace::new()));
            if self.links.borrow().len() > have {
                self.free = have as u32;
            }
        }
        // Grown now, so that nothing is missing when work completes.
        let (sends, receives) = (self.facts.send_depth, self.facts.receive_depth);
        let (count, shared) = (self.links.borrow().len(), self.facts.shared_receive_depth as usize);
        let completions = (sends + receives) as usize * count + shared;
        if !self.reports.reserve(completions, EVENTS_EACH * count) {
            return Err(full);
        }
        let index = self.free;
        let place = self.links.borrow_mut().get_mut(index as usize).ok_or(full)?;
        let connection = Connection { index, generation: place.generation.wrapping_add(1) };
        let mut link = PlacementLink::new(connection, state, (sends, receives)).ok_or(full)?;
        link.ahead.is_on = self.reads_ahead;
        place.link = Some(link);
        place.generation = connection.generation;
        self.free = place.next;
        Ok(connection)
    }

    /// Returns whether posted work has not left this process, or the peer's machine has not confirmed it. If this is
    /// false, the port can be dropped, and the peers still receive everything.
    pub fn has_unsent(&self) -> bool {
        self.links.borrow().iter().filter_map(|place| place.link.as_ref()).any(|link| {
            let is_ready = link.state == ConnectionState::Ready;
            let unsent = link.posted > link.sent
                || link.executed > link.executed_reported
                || !link.stage.rest().is_empty()
                || link.body.is_some();
            is_ready && (unsent || link.stream.as_ref().is_some_and(|stream| stream.unconfirmed() > 0))
        })
    }

    /// Returns the source of the streams.
    pub const fn transport(&self) -> &T {
        &self.transport
    }

    /// As [`PlacementPort::transport`], for modification.
    pub const fn transport_mut(&mut self) -> &mut T {
        &mut self.transport
    }

    /// Lets posted work leave this process, as far as possible, without looking for what has arrived.
    pub fn push_out(&mut self) {
        self.move_listed(false);
    }

    /// Frees a connection with nothing left to report.
    fn free_link(&mut self, at: u32) {
        if let Some(place) = self.links.borrow_mut().get_mut(at as usize) {
            place.link = None;
            place.next = self.free;
            self.free = at;
        }
    }

    fn check_offer(&self, offer: &Offer) -> Result<(), ConnectError> {
        let can = !offer.shared_receive || self.facts.shared_receive_depth > 0;
        can.then_some(()).ok_or(ConnectError::Unsupported)
    }

    /// Returns the bytes of a work request.
    #[inline]
    fn source(&self, from: CompletionSource<'_>) -> Result<(WorkBytes, u32), PostError> {
        match from {
            CompletionSource::Gather(parts) => {
                let len = self.check(parts, false)?;
                Ok((WorkBytes::Parts(PlacementParts::new(parts)), len))
            }
            CompletionSource::Inline(bytes) => {
                let mut copy = [0; MOST_INLINE];
                let to =
                    copy.get_mut(..bytes.len()).ok_or(PostError::Length { limit: MOST_INLINE as u32 })?;
                to.copy_from_slice(bytes);
                Ok((WorkBytes::Inline(copy), bytes.len() as u32))
            }
        }
    }

    fn check(&self, parts: &[Slice], to_write: bool) -> Result<u32, PostError> {
        self.regions.check(parts, (MOST_PARTS as u32, self.facts.message_bytes), to_write)
    }

    /// Returns a connection that can take another work request.
    #[inline]
    fn link_for_work(
        &mut self,
        connection: Connection,
    ) -> Result<&mut PlacementLink<T::Stream, P>, PostError> {
        let link = self.link_mut(connection).filter(|link| link.state == ConnectionState::Ready);
        let link = link.ok_or(PostError::NotReady)?;
        if link.has_place() { Ok(link) } else { Err(PostError::QueueFull) }
    }

    #[inline]
    fn post(
        &mut self,
        work: Work,
        kind: PlacementKind,
        (local, len): (WorkBytes, u32),
    ) -> Result<(), PostError> {
        let link = self.link_for_work(work.connection)?;
        let Work { id, quiet, fence, .. } = work;
        link.post(PlacementWork { id, quiet, fence, kind, local, len, answered: false, lent: false });
        self.list(work.connection.index);
        Ok(())
    }

    fn change(
        &mut self,
        work: Work,
        into: Slice,
        kind: PlacementKind,
        at: RemoteRange,
    ) -> Result<(), PostError> {
        if into.len != 8 || !at.address.is_multiple_of(8) {
            return Err(PostError::Alignment);
        }
        let len = self.check(&[into], true)?;
        self.post(work, kind, (WorkBytes::Parts(PlacementParts::new(&[into])), len))
    }
}

// SAFETY: memory is used only through `PlacementRegions`, which checks region, bounds and rights on each use and makes
// no reference, and by lists of it that a `ByteStream` uses during one call, by its own promise. `deregister` is `Ok`
// when no peer can still pull from the region (`PlacementLink::has_lent`); then the descriptor is gone, as after a
// drop. Nothing runs in between calls.
#[allow(unsafe_code, reason = "the trait has obligations; nothing unsafe is done here")]
unsafe impl<T: StreamTransport, P: PlacementStorage> MemoryPort for PlacementPort<T, P> {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn register(&mut self, memory: LentMemory, access: RegionAccess) -> Result<PortRegion, RegisterError> {
        let random = self.transport.random().map_err(RegisterError::System)?;
        self.regions.register(memory, access, random)
    }

    fn deregister(&mut self, region: PortRegion) -> Result<(), RegisterError> {
        if T::PULLS {
            self.regions.revoke(region)?;
            let until = self.now.saturating_add(self.patience);
            let mut busy = false;
            for at in 0..self.links.borrow().len() as u32 {
                let Some(link) = self.link_at(at).filter(|link| link.has_lent(region)) else { continue };
                busy = true;
                if link.demand(region, until) {
                    self.timed.push_back(self.links.borrow_mut(), at);
                }
            }
            if busy {
                return Err(RegisterError::Busy);
            }
        }
        // Nothing else is under way outside of calls.
        self.regions.deregister(region)
    }

    fn key(&self, region: PortRegion) -> Option<MemoryKey> {
        self.regions.key(region)
    }

    fn address(&self) -> Option<Address> {
        self.transport.address(self.token)
    }

    fn connect(&mut self, to: &Address, offer: &Offer) -> Result<Connection, ConnectError> {
        self.check_offer(offer)?;
        let (peer, token) = T::parse(to).ok_or(ConnectError::Address)?;
        let connection = self.new_link(ConnectionState::Connecting)?;
        let stream = match self.transport.connect(peer) {
            Ok(stream) => stream,
            Err(error) => {
                self.free_link(connection.index);
                return Err(error);
            }
        };
        if let Some(link) = self.link_mut(connection) {
            (link.stream, link.token) = (Some(stream), token);
            (link.shared, link.deadline, link.private) =
                (offer.shared_receive, offer.deadline, offer.private);
        }
        self.watch(connection.index, Interest { new: true, writable: true });
        self.timed.push_back(self.links.borrow_mut(), connection.index);
        Ok(connection)
    }

    fn accept(&mut self, connection: Connection, offer: &Offer) -> Result<(), ConnectError> {
        self.check_offer(offer)?;
        let link = self.link_mut(connection).filter(|link| link.state == ConnectionState::Requested);
        let link = link.ok_or(ConnectError::State)?;
        let (answer, shared, private) = (PlacementAnswer::Accept, offer.shared_receive, offer.private);
        let said = link.stage.push(&Handshake { answer, token: 0, shared, private }.encode());
        debug_assert!(said, "the stage of a new connection is empty");
        link.shared = shared;
        drive::make_ready(link);
        self.sharers += u32::from(shared);
        self.reports.report(Event::Established { connection, private: Private::EMPTY });
        self.list(connection.index);
        Ok(())
    }

    fn refuse(&mut self, connection: Connection, private: Private) -> Result<(), ConnectError> {
        let link = self.link_mut(connection).filter(|link| link.state == ConnectionState::Requested);
        let link = link.ok_or(ConnectError::State)?;
        link.closing = true;
        let (stream, mut rest) = (link.stream.take(), core::mem::take(&mut link.stage));
        self.end(connection.index, LinkEnd::new(LostError::Closed));
        if let Some(link) = self.link_mut(connection) {
            (link.state, link.refused) = (ConnectionState::Gone, true);
            if link.unpolled == 0 {
                self.free_link(connection.index);
            } else {
                self.closing.push_back(self.links.borrow_mut(), connection.index);
            }
        }
        let answer = PlacementAnswer::Refuse;
        let said = rest.push(&Handshake { answer, token: 0, shared: false, private }.encode());
        if let Some(stream) = stream.filter(|_| said) {
            self.linger(stream, rest);
        }
        Ok(())
    }

    fn close(&mut self, connection: Connection) {
        if self.link(connection).is_none_or(|link| link.closing) {
            return;
        }
        self.report_now(connection.index);
        let Some(link) = self.link_mut(connection) else { return };
        link.closing = true;
        self.end(connection.index, LinkEnd::new(LostError::Closed));
        self.closing.push_back(self.links.borrow_mut(), connection.index);
    }

    fn state(&self, connection: Connection) -> ConnectionState {
        self.link(connection).map_or(ConnectionState::Gone, |link| link.state)
    }

    fn origin(&self, connection: Connection) -> Option<Origin> {
        self.link(connection)?.stream.as_ref()?.origin()
    }

    fn write(
        &mut self,
        work: Work,
        from: CompletionSource<'_>,
        to: RemoteRange,
        immediate: Option<u32>,
    ) -> Result<(), PostError> {
        let source = self.source(from)?;
        self.post(work, PlacementKind::Write { to, immediate }, source)
    }

    fn read(&mut self, work: Work, into: &[Slice], from: RemoteRange) -> Result<(), PostError> {
        let len = self.check(into, true)?;
        self.post(work, PlacementKind::Read { from }, (WorkBytes::Parts(PlacementParts::new(into)), len))
    }

    fn send(
        &mut self,
        work: Work,
        from: CompletionSource<'_>,
        immediate: Option<u32>,
    ) -> Result<(), PostError> {
        let (kind, (local, len)) = (PlacementKind::Send { immediate }, self.source(from)?);
        if let CompletionSource::Inline(bytes) = from {
            let mut list = GatherList::new();
            list.push(bytes);
            if self.try_at_once(work, kind, (local, len), &list)?.is_some() {
                return Ok(());
            }
        }
        self.post(work, kind, (local, len))
    }

    fn reports_receives(&self) -> bool {
        true
    }

    fn sends_at_once(&self) -> bool {
        true
    }

    fn send_at_once(
        &mut self,
        work: Work,
        from: &GatherList<'_>,
        room: Slice,
    ) -> Result<Option<usize>, PostError> {
        self.post_at_once(work, from, room)
    }

    fn fetch_add(&mut self, work: Work, into: Slice, at: RemoteRange, add: u64) -> Result<(), PostError> {
        self.change(work, into, PlacementKind::Add { at, add }, at)
    }

    fn compare_swap(
        &mut self,
        work: Work,
        into: Slice,
        at: RemoteRange,
        expected: u64,
        new: u64,
    ) -> Result<(), PostError> {
        self.change(work, into, PlacementKind::Swap { at, expected, new }, at)
    }

    fn receive(&mut self, queue: ReceiveQueue, id: u64, into: &[Slice]) -> Result<(), PostError> {
        self.check(into, true)?;
        let receive = PlacementReceive { id, parts: PlacementParts::new(into) };
        let ReceiveQueue::Of(connection) = queue else {
            match self.facts.shared_receive_depth {
                0 => return Err(PostError::Unsupported),
                depth if self.shared_used >= depth => return Err(PostError::QueueFull),
                _ => {}
            }
            if !self.shared.reserve(self.facts.shared_receive_depth as usize) {
                return Err(PostError::QueueFull);
            }
            self.shared_used += 1;
            let _ = self.shared.push_back(receive);
            self.refill_all();
            return Ok(());
        };
        let link = self.link_mut(connection).ok_or(PostError::NotReady)?;
        if link.shared || matches!(link.state, ConnectionState::Lost | ConnectionState::Gone) {
            return Err(PostError::NotReady);
        }
        if link.receiving >= link.receive_depth || !link.receives.push_back(receive) {
            return Err(PostError::QueueFull);
        }
        link.receiving += 1;
        link.granted += 1;
        self.list(connection.index);
        Ok(())
    }

    fn poll(&mut self, into: &mut [Completion]) -> usize {
        if self.reports.completions() < into.len() || into.is_empty() {
            self.progress();
        }
        let mut count = 0;
        for to in into {
            let Some((completion, freed)) = self.reports.next_completion() else { break };
            if freed == Freed::Shared {
                self.shared_used -= 1;
            }
            if let Some(link) = self.link_mut(completion.connection) {
                link.unpolled -= 1;
                match freed {
                    Freed::Work(below) => link.freed = below,
                    Freed::Receive => link.receiving -= 1,
                    Freed::Shared => {}
                }
            }
            *to = completion;
            count += 1;
        }
        count
    }

    fn poll_event(&mut self, now: Duration) -> Option<Event> {
        self.watch_clock(now);
        if !self.reports.has_events() {
            self.progress();
        }
        let event = self.reports.next_event();
        event.or_else(|| self.closed().map(|connection| Event::Closed { connection }))
    }

    fn arm(&mut self) -> Armed {
        // The caller may poll once more before it sleeps. A report that is held back then would wait for the wake-up.
        self.awake = POLLS_BEFORE_SLEEP;
        // The next poll looks at all connections: it may be the only one.
        self.looks = LOOKS_WHEN_STEADY;
        self.watch_recent();
        let can_sleep = !T::Stream::IN_MEMORY || self.each_stream(ByteStream::prepare_sleep);
        let idle =
            self.reports.is_empty() && self.listed.is_empty() && self.descriptor().is_some() && can_sleep;
        if idle { Armed::Sleep } else { Armed::Poll }
    }

    fn descriptor(&self) -> Option<i32> {
        self.transport.descriptor()
    }
}
