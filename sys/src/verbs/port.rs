//! The memory port over an RDMA device: InfiniBand, `RoCE` or iWARP, connected by RDMA-CM or by datagrams ([`SetUp`]).
//!
//! Each connection is a reliable queue pair; all of them complete in one queue. The number of a work request in
//! the device names its connection, the connection's generation and its place in a [`Ring`] ([`tag`]). So a
//! late completion matches no request. A connection that ends is destroyed at once. Requests that the device
//! has not reported by then are reported here as flushed. This is the same on every device; some never report
//! unsignalled requests.

mod complete;
mod connect;
mod held;
mod idle;
mod join;
mod link;
mod long;
mod open;
mod post;
mod regions;
mod ring;
mod tag;
mod watch;

pub(crate) use open::DESCRIPTORS;

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use nemesia_core::payload::LentMemory;
use nemesia_core::port::memory::{
    Address, Armed, Completion, CompletionSource, ConnectError, Connection, ConnectionState, Event, Facts,
    MemoryKey, MemoryPort, Offer, Origin, PortRegion, PostError, Private, ReceiveQueue, RegionAccess,
    RegisterError, RemoteRange, Slice, Work,
};
use rdma_core_sys as raw;

use super::completion::CompletionQueue;
use super::device::Device;
use super::domain::Domain;
use super::pair::{Depths, PathAttributes};
use super::setup::{JoinAddress, SetUpChoice};
use super::shared::SharedReceives;
use super::survey::{DevicePreference, DeviceSelection};
use crate::cm::{Channel, CmAddress, Id, decode_address, encode_address};
use held::Holding;
use idle::Probing;
use join::Joins;
use link::VerbsLinks;
use regions::VerbsRegions;
use ring::Slab;
use watch::Queries;

/// The options of a port. Depths that the device does not have are lowered; [`MemoryPort::facts`] reports the
/// result.
#[derive(Clone, Debug)]
pub struct PortOptions {
    /// The preferred device; by default any usable one.
    pub preference: DevicePreference,
    /// How connections are set up. Both ends of a connection must agree.
    pub set_up: SetUpChoice,
    /// The number of connections at once.
    pub connections: u32,
    /// The work requests in a connection's send queue.
    pub send_depth: u32,
    /// The work requests in a connection's receive queue.
    pub receive_depth: u32,
    /// The work requests in the shared receive queue; 0 for none.
    pub shared_receive_depth: u32,
    /// The number of registered regions at once.
    pub regions: u32,
    /// The parts of a work request, at most 16.
    pub slices: u32,
    /// The bytes of an inline payload.
    pub inline_bytes: u32,
    /// The bytes of a work request, at most the device's limit. This bounds messages; longer writes and reads
    /// become several requests.
    pub work_bytes: u32,
    /// The caller asserts that the device places the bytes of each write, and the writes of a connection, in order,
    /// although the library does not promise it (the switch of paper 3, section 3.3). It must not be set for iWARP,
    /// whose order is undefined; there it is ignored.
    pub assert_order: bool,
    /// The most payload bytes of a packet on the wire: 256 to 4096, a power of two; another number is rounded down.
    /// `None`: as many as the path permits. Both ends of a connection must agree. iWARP has no such packets.
    pub path_mtu: Option<u32>,
    /// The traffic class of packets; `None`: that of the system. iWARP devices may ignore it.
    pub traffic_class: Option<u8>,
    /// The time within which a connection is lost whose peer confirms nothing, although something was sent to it. The
    /// device takes a part of it, at least a tenth, and never more than 30 s. Each half of this time, but at least each
    /// 15 s, the port sends a probe on each connection on which the device has nothing to report. iWARP devices have
    /// limits of their own, and no probes.
    pub silence: Duration,
}

impl Default for PortOptions {
    fn default() -> Self {
        Self {
            preference: DevicePreference::default(),
            set_up: SetUpChoice::Auto,
            connections: 128,
            send_depth: 64,
            receive_depth: 64,
            shared_receive_depth: 256,
            regions: 1024,
            slices: 8,
            inline_bytes: 512,
            work_bytes: u32::MAX,
            assert_order: false,
            path_mtu: None,
            traffic_class: None,
            silence: Duration::from_secs(10),
        }
    }
}

impl PortOptions {
    /// Returns the entries of the completion queue with these limits: all requests in progress must fit it.
    pub(crate) const fn completion_entries(&self) -> u32 {
        let Self { connections, send_depth, receive_depth, shared_receive_depth, .. } = *self;
        connections
            .saturating_mul(send_depth.saturating_add(receive_depth).saturating_add(PROBES))
            .saturating_add(shared_receive_depth)
    }
}

/// The probes that a connection may have under way, beside the requests of the caller.
const PROBES: u32 = 1;

/// A memory port over an RDMA device. After [`Event::PortFailed`] it must be dropped: the kernel may wait for
/// that before it releases the device.
pub struct VerbsPort {
    // In the order of dropping: users before the objects that they use.
    links: VerbsLinks,
    set_up: SetUp,
    shared: Option<SharedDevice>,
    regions: VerbsRegions,
    queue: Arc<CompletionQueue>,
    domain: Arc<Domain>,
    device: Arc<Device>,
    epoll: OwnedFd,
    selection: DeviceSelection,
    facts: Facts,
    depths: Depths,
    path: PathPreference,
    /// The reads that a queue pair serves at once, and has in progress at once.
    reads: (u8, u8),
    /// The connection of each queue pair: the completion of a shared receive names only the number of the queue
    /// pair.
    by_pair: HashMap<u32, u32>,
    /// Completions that were read from the queue and that the caller has not polled.
    pending: VecDeque<Completion>,
    events: VecDeque<Event>,
    /// The kinds of work requests that the port holds back in place of the device.
    holding: Holding,
    /// Connections with a completion for which held requests may wait.
    answered: Vec<u32>,
    /// Connections that a completion has shown to be broken.
    suspects: Vec<u32>,
    now: Duration,
    /// The earliest time at which a connection that is being made is late.
    alarm: Duration,
    /// The number of closed connections that are not reported as closed yet.
    closing: u32,
    /// The queries to kernel and device for events.
    queries: Queries,
    probing: Probing,
    /// The time since which the device's port has been down, and the event's code.
    down: Option<(Duration, u32)>,
    failed: bool,
}

/// How a port sets connections up.
enum SetUp {
    /// By RDMA-CM.
    Manager(Manager),
    /// By datagrams.
    Datagrams(Box<Joins>),
}

/// A port's part of the connection manager.
struct Manager {
    /// Identifiers of closed connections, kept until the peer has confirmed the end, or until that time.
    leaving: Vec<(Id, Connection, Duration)>,
    listener: Option<Id>,
    channel: Arc<Channel>,
    local: SocketAddr,
}

/// The preferences for the path of every connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PathPreference {
    /// The code of the largest path MTU; 0: none is preferred.
    mtu: u8,
    traffic_class: Option<u8>,
    /// The code of the time for which the device waits for an answer before it sends again: see [`ack_timeout`].
    ack_timeout: u8,
}

/// The shared receive queue with its posted receives.
struct SharedDevice {
    queue: Arc<SharedReceives>,
    posted: Slab,
}

impl fmt::Debug for VerbsPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VerbsPort")
            .field("choice", &self.selection)
            .field("facts", &self.facts)
            .finish_non_exhaustive()
    }
}

impl VerbsPort {
    /// Returns the device and port in use, and the address that leads there.
    pub fn selection(&self) -> &DeviceSelection {
        &self.selection
    }

    /// Returns whether datagrams set up its connections, and not RDMA-CM.
    pub fn is_joined(&self) -> bool {
        matches!(self.set_up, SetUp::Datagrams(_))
    }

    /// Returns the device.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Returns the entries of its completion queue, which all connections share. The device may have made more than
    /// were requested.
    pub fn completion_entries(&self) -> u32 {
        self.queue.entries()
    }

    /// Returns the attributes of the path of a connection; `None` if there is no such connection, if it is not up, or
    /// on iWARP, whose path is that of TCP.
    pub fn path(&self, connection: Connection) -> Option<PathAttributes> {
        self.links.get(connection)?.pair.as_ref()?.path()
    }

    /// Returns what differs between the settings of this port and those of the port with this address, if a connection
    /// cannot be made for that reason. One line, with the remedy.
    pub(crate) fn difference(&self, address: &Address) -> Option<String> {
        let bytes = |code: u8| if code == 0 { "auto".into() } else { (128_u32 << code).to_string() };
        let (manager, joined) = (decode_address(address), JoinAddress::decode(address));
        let theirs = match (&self.set_up, manager, joined) {
            (SetUp::Manager(manager), Some(theirs), _) => {
                if theirs.socket.is_ipv4() != manager.local.is_ipv4() {
                    let (ours, theirs) = (manager.local.ip(), theirs.socket.ip());
                    return Some(format!(
                        "its address is {theirs}, and that of this process {ours}: set NEMESIA_NET_FAMILY alike in all \
                         processes"
                    ));
                }
                theirs.path_mtu
            }
            (SetUp::Datagrams(_), _, Some(theirs)) => theirs.path_mtu,
            (SetUp::Manager(_), None, Some(_)) => return Some(other_set_up("datagrams", "RDMA-CM")),
            (SetUp::Datagrams(_), Some(_), None) => return Some(other_set_up("RDMA-CM", "datagrams")),
            _ => return Some("its address has another version: use one release in all processes".into()),
        };
        (theirs != self.path.mtu).then(|| {
            let (theirs, ours) = (bytes(theirs), bytes(self.path.mtu));
            format!(
                "its path MTU is {theirs}, and that of this process {ours}: set NEMESIA_NET_PATH_MTU alike in all \
                 processes"
            )
        })
    }
}

fn other_set_up(theirs: &str, ours: &str) -> String {
    format!(
        "it sets connections up by {theirs}, and this process by {ours}: set NEMESIA_NET_SETUP alike in all processes"
    )
}

// SAFETY: the device uses memory only by regions registered with it, for which it checks bounds and rights in
// hardware, and by parts of work requests, which `VerbsRegions` checks before they are posted. `deregister` is
// `Ok` only when the device has deregistered, and no work request is in progress for which it could still read.
// A drop destroys the queue pairs, then deregisters: the fields' `Arc`s keep each part of the library until its
// users are gone. The processor only copies by descriptors.
unsafe impl MemoryPort for VerbsPort {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn register(&mut self, memory: LentMemory, access: RegionAccess) -> Result<PortRegion, RegisterError> {
        if access.remote_atomic && !self.facts.atomics {
            return Err(if access.fits(&memory) {
                RegisterError::Unsupported
            } else {
                RegisterError::Rights
            });
        }
        self.regions.register(&self.domain, memory, access)
    }

    fn deregister(&mut self, region: PortRegion) -> Result<(), RegisterError> {
        // If the completion of a write does not prove placement, its bytes may also be read later than
        // expected.
        let lags = !self.facts.write_proves_placement;
        let mut oldest = None;
        if lags {
            self.links.each(|_, link| oldest = [oldest, link.sends.oldest()].into_iter().flatten().min());
        }
        self.regions.deregister(region, oldest)
    }

    fn key(&self, region: PortRegion) -> Option<MemoryKey> {
        self.regions.key(region)
    }

    fn address(&self) -> Option<Address> {
        let path_mtu = self.path.mtu;
        match &self.set_up {
            SetUp::Manager(Manager { listener: Some(_), local, .. }) => {
                encode_address(CmAddress { socket: *local, path_mtu })
            }
            SetUp::Datagrams(joins) if !self.failed => JoinAddress { place: *joins.own(), path_mtu }.encode(),
            _ => None,
        }
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

    fn state(&self, connection: Connection) -> ConnectionState {
        self.links.get(connection).map_or(ConnectionState::Gone, |link| link.state())
    }

    fn origin(&self, connection: Connection) -> Option<Origin> {
        let address = self.links.get(connection)?.id.as_ref()?.peer_address()?;
        Some(Origin::Host(address.ip().to_canonical()))
    }

    fn write(
        &mut self,
        work: Work,
        from: CompletionSource<'_>,
        to: RemoteRange,
        immediate: Option<u32>,
    ) -> Result<(), PostError> {
        let opcode =
            if immediate.is_some() { raw::IBV_WR_RDMA_WRITE_WITH_IMM } else { raw::IBV_WR_RDMA_WRITE };
        self.post_source(work, opcode, from, Some(to), immediate)
    }

    fn read(&mut self, work: Work, into: &[Slice], from: RemoteRange) -> Result<(), PostError> {
        self.post_read(work, into, from)
    }

    fn send(
        &mut self,
        work: Work,
        from: CompletionSource<'_>,
        immediate: Option<u32>,
    ) -> Result<(), PostError> {
        let opcode = if immediate.is_some() { raw::IBV_WR_SEND_WITH_IMM } else { raw::IBV_WR_SEND };
        self.post_source(work, opcode, from, None, immediate)
    }

    fn fetch_add(&mut self, work: Work, into: Slice, at: RemoteRange, add: u64) -> Result<(), PostError> {
        self.post_atomic(work, raw::IBV_WR_ATOMIC_FETCH_AND_ADD, into, at, (add, 0))
    }

    fn compare_swap(
        &mut self,
        work: Work,
        into: Slice,
        at: RemoteRange,
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
        // Armed first: completions from here on make the descriptor readable.
        let armed = self.queue.arm().is_ok() && self.may_sleep();
        if armed && self.pending.is_empty() && self.events.is_empty() { Armed::Sleep } else { Armed::Poll }
    }

    fn descriptor(&self) -> Option<i32> {
        Some(self.epoll.as_raw_fd())
    }
}

impl Drop for VerbsPort {
    fn drop(&mut self) {
        // The peers learn of the end at once, and not only when the kernel has cleaned up.
        self.links.each(|_, link| link.disconnect());
        self.end_all();
    }
}
