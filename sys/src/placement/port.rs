//! The memory port over software placement.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

use nemesia_core::payload::LentMemory;
use nemesia_core::port::memory::{
    Address, Armed, Completion, CompletionSource, ConnectError, Connection, ConnectionState, Event, Facts,
    LostError, MemoryKey, MemoryPort, Offer, Origin, PortRegion, PostError, Private, ReceiveQueue,
    RegionAccess, RegisterError, RemoteRange, Slice, Work,
};
use nemesia_core::wire::placement::{Handshake, PlacementAnswer};

use super::handshake::{LingeringClose, UnauthenticatedConnection};
use super::link::{
    End, Freed, Local, MOST_INLINE, PendingReports, PlacementKind, PlacementLink, PostedReceives, Receive,
};
use super::regions::{MOST_PARTS, MOST_REGIONS, PlacementParts, PlacementRegions};
use super::{Stream as _, StreamTransport};
use crate::os;

/// The limits of a port. Memory is taken when it is needed, and bounded by these.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Connections.
    pub connections: u32,
    /// Regions, at most 65536.
    pub regions: u32,
    /// Work requests of a connection's send queue.
    pub send_depth: u32,
    /// Receives of a connection's own queue.
    pub receive_depth: u32,
    /// Receives of the shared queue. With one for each connection that uses it, no peer can keep another from
    /// sending.
    pub shared_receive_depth: u32,
    /// How long a peer may go on reading memory that is being deregistered. After that its connection ends.
    pub patience: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            connections: 1024,
            regions: 16384,
            send_depth: 64,
            receive_depth: 64,
            shared_receive_depth: 256,
            patience: Duration::from_secs(10),
        }
    }
}

impl Options {
    fn facts(&self, name: &'static str) -> Facts {
        Facts {
            name,
            ordered_placement: true,
            active_speaks_first: false,
            write_proves_placement: true,
            waits_for_receive: true,
            read_needs_remote_write: false,
            immediates: true,
            atomics: true,
            atomics_exclude_processor: true,
            inline_bytes: MOST_INLINE as u32,
            message_bytes: 1 << 30,
            transfer_bytes: 1 << 30,
            slices: MOST_PARTS as u32,
            read_slices: MOST_PARTS as u32,
            send_depth: self.send_depth.max(1),
            receive_depth: self.receive_depth.max(1),
            shared_receive_depth: self.shared_receive_depth,
            connections: self.connections.max(1),
            regions: self.regions.clamp(1, MOST_REGIONS),
        }
    }
}

/// A place for a connection.
#[derive(Debug)]
pub(super) struct ConnectionPlace<S> {
    generation: u32,
    pub(super) link: Option<Box<PlacementLink<S>>>,
}

/// A memory port by software placement over the streams of a transport.
#[derive(Debug)]
pub struct PlacementPort<T: StreamTransport> {
    facts: Facts,
    pub(super) transport: T,
    /// The token that a connecting peer must present: it is part of the address.
    pub(super) token: u64,
    pub(super) epoll: OwnedFd,
    pub(super) regions: PlacementRegions,
    pub(super) links: Vec<ConnectionPlace<T::Stream>>,
    pub(super) free: Vec<u32>,
    pub(super) shared: VecDeque<Receive>,
    shared_used: u32,
    /// The number of ready connections that use the shared queue.
    pub(super) sharers: u32,
    /// Receive-starved connections.
    pub(super) receive_starved: VecDeque<u32>,
    /// Connections to handle.
    pub(super) listed: VecDeque<u32>,
    pub(super) closing: Vec<u32>,
    patience: Duration,
    /// Connections with a deadline: to be made, or to give memory back.
    pub(super) timed: Vec<u32>,
    pub(super) unauthenticated: Vec<Option<UnauthenticatedConnection<T::Stream>>>,
    pub(super) lingering_closes: Vec<Option<LingeringClose<T::Stream>>>,
    pub(super) reports: PendingReports,
    pub(super) now: Duration,
}

impl<T: StreamTransport> PlacementPort<T> {
    pub(crate) fn new(transport: T, options: &Options) -> io::Result<Self> {
        // SAFETY: takes no memory.
        let epoll = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if epoll < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and has no other owner.
        let epoll = unsafe { OwnedFd::from_raw_fd(epoll) };
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
        let (add, listener) = (libc::EPOLL_CTL_ADD, transport.listener().as_raw_fd());
        // SAFETY: the event outlives the call.
        if unsafe { libc::epoll_ctl(epoll.as_raw_fd(), add, listener, &raw mut event) } < 0 {
            return Err(io::Error::last_os_error());
        }
        let token = os::random::<8>().map_err(io::Error::other)?;
        let facts = options.facts(T::NAME);
        Ok(Self {
            facts,
            transport,
            token: u64::from_le_bytes(token),
            epoll,
            regions: PlacementRegions::new(facts.regions),
            links: Vec::new(),
            free: Vec::new(),
            shared: VecDeque::with_capacity(facts.shared_receive_depth as usize),
            shared_used: 0,
            sharers: 0,
            receive_starved: VecDeque::new(),
            listed: VecDeque::new(),
            closing: Vec::new(),
            patience: options.patience,
            timed: Vec::new(),
            unauthenticated: Vec::new(),
            lingering_closes: Vec::new(),
            reports: PendingReports::default(),
            now: Duration::ZERO,
        })
    }

    fn link(&self, connection: Connection) -> Option<&PlacementLink<T::Stream>> {
        let place = self.links.get(connection.index as usize)?;
        place.link.as_deref().filter(|_| place.generation == connection.generation)
    }

    pub(super) fn link_mut(&mut self, connection: Connection) -> Option<&mut PlacementLink<T::Stream>> {
        let place = self.links.get_mut(connection.index as usize)?;
        place.link.as_deref_mut().filter(|_| place.generation == connection.generation)
    }

    pub(super) fn new_link(&mut self, state: ConnectionState) -> Result<Connection, ConnectError> {
        let limit = self.facts.connections;
        let index = match self.free.pop() {
            Some(index) => index,
            None if (self.links.len() as u32) < limit => {
                self.links.push(ConnectionPlace { generation: 0, link: None });
                self.links.len() as u32 - 1
            }
            None => return Err(ConnectError::Full { limit }),
        };
        let depths = (self.facts.send_depth, self.facts.receive_depth);
        let place = &mut self.links[index as usize];
        place.generation = place.generation.wrapping_add(1);
        let connection = Connection { index, generation: place.generation };
        place.link = Some(Box::new(PlacementLink::new(connection, state, depths)));
        // Allocated now, so that nothing is allocated when work completes.
        let most =
            (depths.0 + depths.1) as usize * self.links.len() + self.facts.shared_receive_depth as usize;
        self.reports.done.reserve(most.saturating_sub(self.reports.done.len()));
        self.listed.reserve(self.links.len());
        self.receive_starved.reserve(self.links.len());
        Ok(connection)
    }

    fn check_offer(&self, offer: &Offer) -> Result<(), ConnectError> {
        let can = !offer.shared_receive || self.facts.shared_receive_depth > 0;
        can.then_some(()).ok_or(ConnectError::Unsupported)
    }

    /// Returns the bytes of a work request.
    #[inline]
    fn source(&self, from: CompletionSource<'_>) -> Result<(Local, u32), PostError> {
        match from {
            CompletionSource::Gather(parts) => {
                let len = self.check(parts, false)?;
                Ok((Local::Parts(PlacementParts::new(parts)), len))
            }
            CompletionSource::Inline(bytes) => {
                let mut copy = [0; MOST_INLINE];
                let to =
                    copy.get_mut(..bytes.len()).ok_or(PostError::Length { limit: MOST_INLINE as u32 })?;
                to.copy_from_slice(bytes);
                Ok((Local::Inline(copy), bytes.len() as u32))
            }
        }
    }

    fn check(&self, parts: &[Slice], to_write: bool) -> Result<u32, PostError> {
        self.regions.check(parts, (MOST_PARTS as u32, self.facts.message_bytes), to_write)
    }

    #[inline]
    fn post(&mut self, work: Work, kind: PlacementKind, (local, len): (Local, u32)) -> Result<(), PostError> {
        let link = self.link_mut(work.connection).ok_or(PostError::NotReady)?;
        if link.state != ConnectionState::Ready {
            return Err(PostError::NotReady);
        }
        if !link.has_place() {
            return Err(PostError::QueueFull);
        }
        let Work { id, quiet, fence, .. } = work;
        link.post(PostedReceives { id, quiet, fence, kind, local, len, answered: false, lent: false });
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
        self.post(work, kind, (Local::Parts(PlacementParts::new(&[into])), len))
    }
}

// SAFETY: memory is used only through `PlacementRegions`, which checks region, bounds and rights on each use and makes
// no reference, and by vectors of it that a `Stream` uses during one call, by its own promise. `deregister` is `Ok`
// when no peer can still pull from the region (`PlacementLink::has_lent`); then the descriptor is gone, as after a
// drop. Nothing runs in between calls.
unsafe impl<T: StreamTransport> MemoryPort for PlacementPort<T> {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn register(&mut self, memory: LentMemory, access: RegionAccess) -> Result<PortRegion, RegisterError> {
        self.regions.register(memory, access)
    }

    fn deregister(&mut self, region: PortRegion) -> Result<(), RegisterError> {
        if T::PULLS {
            self.regions.revoke(region)?;
            let until = self.now.saturating_add(self.patience);
            let mut busy = false;
            for (at, place) in (0..).zip(&mut self.links) {
                let Some(link) = place.link.as_mut().filter(|link| link.has_lent(region)) else { continue };
                busy = true;
                if link.demand(region, until) {
                    self.timed.push(at);
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
        let mut bytes = self.transport.address();
        bytes.extend_from_slice(&self.token.to_le_bytes());
        Address::new(&bytes)
    }

    fn connect(&mut self, to: &Address, offer: &Offer) -> Result<Connection, ConnectError> {
        self.check_offer(offer)?;
        let (peer, token) = T::parse(to).ok_or(ConnectError::Address)?;
        let connection = self.new_link(ConnectionState::Connecting)?;
        let stream = match self.transport.connect(peer) {
            Ok(stream) => stream,
            Err(error) => {
                self.links[connection.index as usize].link = None;
                self.free.push(connection.index);
                return Err(error);
            }
        };
        self.watch_new(&stream, connection.index);
        if let Some(link) = self.link_mut(connection) {
            (link.stream, link.token) = (Some(stream), token);
            (link.shared, link.deadline, link.private) =
                (offer.shared_receive, offer.deadline, offer.private);
        }
        self.timed.push(connection.index);
        Ok(connection)
    }

    fn accept(&mut self, connection: Connection, offer: &Offer) -> Result<(), ConnectError> {
        self.check_offer(offer)?;
        let link = self.link_mut(connection).filter(|link| link.state == ConnectionState::Requested);
        let link = link.ok_or(ConnectError::State)?;
        let (answer, shared, private) = (PlacementAnswer::Accept, offer.shared_receive, offer.private);
        link.stage.extend_from_slice(&Handshake { answer, token: 0, shared, private }.encode());
        link.shared = shared;
        link.state = ConnectionState::Ready;
        self.sharers += u32::from(shared);
        self.reports.events.push_back(Event::Established { connection, private: Private::EMPTY });
        self.list(connection.index);
        Ok(())
    }

    fn refuse(&mut self, connection: Connection, private: Private) -> Result<(), ConnectError> {
        let link = self.link_mut(connection).filter(|link| link.state == ConnectionState::Requested);
        let link = link.ok_or(ConnectError::State)?;
        link.closing = true;
        let stream = link.stream.take();
        self.end(connection.index, End::new(LostError::Closed));
        self.links[connection.index as usize].link = None;
        self.free.push(connection.index);
        if let Some(stream) = stream {
            let answer = PlacementAnswer::Refuse;
            let refusal = Handshake { answer, token: 0, shared: false, private };
            UnauthenticatedConnection::new(stream, self.now).answer(&refusal);
        }
        Ok(())
    }

    fn close(&mut self, connection: Connection) {
        let Some(link) = self.link_mut(connection).filter(|link| !link.closing) else { return };
        link.closing = true;
        self.end(connection.index, End::new(LostError::Closed));
        self.closing.push(connection.index);
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
        self.post(work, PlacementKind::Read { from }, (Local::Parts(PlacementParts::new(into)), len))
    }

    fn send(
        &mut self,
        work: Work,
        from: CompletionSource<'_>,
        immediate: Option<u32>,
    ) -> Result<(), PostError> {
        let source = self.source(from)?;
        self.post(work, PlacementKind::Send { immediate }, source)
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
        let receive = Receive { id, parts: PlacementParts::new(into) };
        let ReceiveQueue::Of(connection) = queue else {
            match self.facts.shared_receive_depth {
                0 => return Err(PostError::Unsupported),
                depth if self.shared_used >= depth => return Err(PostError::QueueFull),
                _ => {}
            }
            self.shared_used += 1;
            self.shared.push_back(receive);
            self.refill_all();
            return Ok(());
        };
        let link = self.link_mut(connection).ok_or(PostError::NotReady)?;
        if link.shared || matches!(link.state, ConnectionState::Lost | ConnectionState::Gone) {
            return Err(PostError::NotReady);
        }
        if link.receiving >= link.receive_depth {
            return Err(PostError::QueueFull);
        }
        link.receiving += 1;
        link.granted += 1;
        link.receives.push_back(receive);
        self.list(connection.index);
        Ok(())
    }

    fn poll(&mut self, into: &mut [Completion]) -> usize {
        if self.reports.done.len() < into.len() || into.is_empty() {
            self.progress();
        }
        let mut count = 0;
        for to in into {
            let Some((completion, freed)) = self.reports.done.pop_front() else { break };
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
        if self.reports.events.is_empty() {
            self.progress();
        }
        let event = self.reports.events.pop_front();
        event.or_else(|| self.closed().map(|connection| Event::Closed { connection }))
    }

    fn arm(&mut self) -> Armed {
        let idle = self.reports.done.is_empty() && self.reports.events.is_empty() && self.listed.is_empty();
        if idle { Armed::Sleep } else { Armed::Poll }
    }

    fn descriptor(&self) -> Option<i32> {
        Some(self.epoll.as_raw_fd())
    }
}
