//! The memory port over an RDMA device: InfiniBand, `RoCE` or iWARP, connected by RDMA-CM.
//!
//! Each connection is a reliable queue pair; all of them complete in one queue. The number of a work request in the device
//! names its connection, the connection's generation and its place in a [`Ring`] ([`tag`]), so that a completion that comes
//! too late finds nothing. A connection that ends is destroyed at once: what the device has not reported by then never
//! completes there, and is reported as flushed here. That is the same on every device; some never report what was not signalled.

mod complete;
mod connect;
mod held;
mod link;
mod long;
mod open;
mod post;
mod regions;
mod ring;
mod tag;
mod watch;

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use nemesia_core::payload::Lent;
use nemesia_core::port::memory::{
    Access, Address, Armed, Completion, ConnectError, Connection, Event, Facts, Key, MemoryPort, Offer,
    Origin, PostError, Private, ReceiveQueue, Region, RegisterError, Remote, Slice, Source, State, Work,
};
use rdma_core_sys as raw;

use super::completion::CompletionQueue;
use super::device::Device;
use super::domain::Domain;
use super::pair::Depths;
use super::shared::SharedReceives;
use super::survey::{Choice, Wish};
use crate::cm::{Channel, Id, encode_address};
use held::Holding;
use link::Links;
use regions::Regions;
use ring::Slab;

/// What a port is opened with. Depths that the device does not have are lowered; [`MemoryPort::facts`] tells.
#[derive(Clone, Debug)]
pub struct PortOptions {
    /// Which device; any that can be used by default.
    pub wish: Wish,
    /// Connections at once.
    pub connections: u32,
    /// Work requests in a connection's send queue.
    pub send_depth: u32,
    /// Work requests in a connection's receive queue.
    pub receive_depth: u32,
    /// Work requests in the shared receive queue; 0 for none.
    pub shared_receive_depth: u32,
    /// Registered regions at once.
    pub regions: u32,
    /// Parts of a work request, at most 16.
    pub slices: u32,
    /// Bytes of an inline payload.
    pub inline_bytes: u32,
    /// Bytes of a work request; at most what the device has. It bounds messages; longer writes and reads become several.
    pub work_bytes: u32,
}

impl Default for PortOptions {
    fn default() -> Self {
        Self {
            wish: Wish::default(),
            connections: 128,
            send_depth: 64,
            receive_depth: 64,
            shared_receive_depth: 256,
            regions: 1024,
            slices: 8,
            inline_bytes: 512,
            work_bytes: u32::MAX,
        }
    }
}

/// A memory port over an RDMA device. After [`Event::PortFailed`] it is to be dropped: the kernel may wait for that before it lets the
/// device go.
pub struct VerbsPort {
    // In the order in which they are to be dropped: what uses others first.
    links: Links,
    /// Identifiers of connections that were closed, until the peer has confirmed that, or that time.
    leaving: Vec<(Id, Connection, Duration)>,
    listener: Option<Id>,
    channel: Arc<Channel>,
    shared: Option<Shared>,
    regions: Regions,
    queue: Arc<CompletionQueue>,
    domain: Arc<Domain>,
    device: Arc<Device>,
    epoll: OwnedFd,
    choice: Choice,
    facts: Facts,
    depths: Depths,
    local: SocketAddr,
    /// Reads that a queue pair serves at once, and has under way at once.
    reads: (u8, u8),
    /// Which connection a queue pair is of: a shared receive's completion tells only its number.
    by_pair: HashMap<u32, u32>,
    /// Completions that were taken and not asked for yet.
    pending: VecDeque<Completion>,
    events: VecDeque<Event>,
    /// What the port holds back in place of the device.
    holding: Holding,
    /// Connections of which something has completed that others may wait for.
    answered: Vec<u32>,
    /// Connections that a completion has shown to be broken.
    suspects: Vec<u32>,
    now: Duration,
    /// When a connection that is being made is late, at the earliest.
    alarm: Duration,
    /// Connections that were closed and not reported so yet.
    closing: u32,
    /// When kernel and device were asked last, and how often they were not asked since.
    heard: (Duration, u32),
    /// Since when the device's port is down, and the event's code.
    down: Option<(Duration, u32)>,
    failed: bool,
}

/// The shared receive queue with what is posted there.
struct Shared {
    queue: Arc<SharedReceives>,
    posted: Slab,
}

impl fmt::Debug for VerbsPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VerbsPort")
            .field("choice", &self.choice)
            .field("facts", &self.facts)
            .finish_non_exhaustive()
    }
}

impl VerbsPort {
    /// The device and port in use, and the address that leads there.
    pub fn choice(&self) -> &Choice {
        &self.choice
    }

    /// The device.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }
}

impl MemoryPort for VerbsPort {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn register(&mut self, memory: Lent, access: Access) -> Result<Region, RegisterError> {
        if access.remote_atomic && !self.facts.atomics {
            return Err(if access.is_consistent() {
                RegisterError::Unsupported
            } else {
                RegisterError::Rights
            });
        }
        self.regions.register(&self.domain, memory, access)
    }

    fn deregister(&mut self, region: Region) -> Result<(), RegisterError> {
        // Where a write's completion proves nothing, its bytes may also be read later than one thinks.
        let lags = !self.facts.write_proves_placement;
        let mut oldest = None;
        if lags {
            self.links.each(|_, link| oldest = [oldest, link.sends.oldest()].into_iter().flatten().min());
        }
        self.regions.deregister(region, oldest)
    }

    fn key(&self, region: Region) -> Option<Key> {
        self.regions.key(region)
    }

    fn address(&self) -> Option<Address> {
        self.listener.as_ref().and_then(|_| encode_address(self.local))
    }

    fn connect(&mut self, to: &Address, offer: &Offer) -> Result<Connection, ConnectError> {
        self.begin_connect(to, offer)
    }

    fn accept(&mut self, connection: Connection, offer: &Offer) -> Result<(), ConnectError> {
        self.accept_request(connection, offer)
    }

    fn refuse(&mut self, connection: Connection, private: Private) -> Result<(), ConnectError> {
        self.refuse_request(connection, private)
    }

    fn close(&mut self, connection: Connection) {
        self.close_link(connection);
    }

    fn state(&self, connection: Connection) -> State {
        self.links.get(connection).map_or(State::Gone, |link| link.state())
    }

    fn origin(&self, connection: Connection) -> Option<Origin> {
        let address = self.links.get(connection)?.id.as_ref()?.peer_address()?;
        Some(Origin::Host(address.ip().to_canonical()))
    }

    fn write(
        &mut self,
        work: Work,
        from: Source<'_>,
        to: Remote,
        immediate: Option<u32>,
    ) -> Result<(), PostError> {
        let opcode =
            if immediate.is_some() { raw::IBV_WR_RDMA_WRITE_WITH_IMM } else { raw::IBV_WR_RDMA_WRITE };
        self.post_source(work, opcode, from, Some(to), immediate)
    }

    fn read(&mut self, work: Work, into: &[Slice], from: Remote) -> Result<(), PostError> {
        self.post_read(work, into, from)
    }

    fn send(&mut self, work: Work, from: Source<'_>, immediate: Option<u32>) -> Result<(), PostError> {
        let opcode = if immediate.is_some() { raw::IBV_WR_SEND_WITH_IMM } else { raw::IBV_WR_SEND };
        self.post_source(work, opcode, from, None, immediate)
    }

    fn fetch_add(&mut self, work: Work, into: Slice, at: Remote, add: u64) -> Result<(), PostError> {
        self.post_atomic(work, raw::IBV_WR_ATOMIC_FETCH_AND_ADD, into, at, (add, 0))
    }

    fn compare_swap(
        &mut self,
        work: Work,
        into: Slice,
        at: Remote,
        expected: u64,
        new: u64,
    ) -> Result<(), PostError> {
        self.post_atomic(work, raw::IBV_WR_ATOMIC_CMP_AND_SWP, into, at, (expected, new))
    }

    fn receive(&mut self, queue: ReceiveQueue, id: u64, into: &[Slice]) -> Result<(), PostError> {
        self.post_receive(queue, id, into)
    }

    fn poll(&mut self, into: &mut [Completion]) -> usize {
        self.poll_queue(into)
    }

    fn poll_event(&mut self, now: Duration) -> Option<Event> {
        self.next_event(now)
    }

    fn arm(&mut self) -> Armed {
        // Armed first: what completes from here on makes the descriptor readable.
        let armed = self.queue.arm().is_ok();
        if armed && self.pending.is_empty() && self.events.is_empty() { Armed::Sleep } else { Armed::Poll }
    }

    fn descriptor(&self) -> Option<i32> {
        Some(self.epoll.as_raw_fd())
    }
}

impl Drop for VerbsPort {
    fn drop(&mut self) {
        // Peers hear of it at once, and not when the kernel has cleared up after us.
        self.links.each(|_, link| link.hang_up());
    }
}
