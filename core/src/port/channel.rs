//! The channel: a message port over a memory port, with which the engine runs over an RDMA fabric.
//!
//! Packets are *sends* into receives that the peer has posted before (the send/receive channel of paper 5,
//! section 4.1; the lower of the two layers of paper 2, section 2.3.2). The completion of a receive proves the arrival
//! of the whole packet on every fabric. Where the fabric promises order within a write, small packets of busy peers are
//! written into rings instead ([`FastPath`]; `channel/fast.rs`). A write does not notify its target: on iWARP its
//! completion does not prove its placement, and its bytes are placed in any order.
//!
//! | part | contents |
//! |---|---|
//! | [`posted`](crate::flow::posted) | credits: permission to send, updates, growth and shrinking of windows |
//! | [`order`](crate::order) | the reorder window for packets of several rails |
//! | [`wire::channel`](crate::wire::channel) | the packet format |
//! | `fast` | small packets without receives, where the fabric promises order |
//!
//! **Rails.** A peer has one to [`MOST_RAILS`] connections. A small packet takes the first rail that has a credit and
//! space in its queue: as a rule always the same one (paper 5, section 4.2). A large packet takes the next such rail,
//! in rotation. Packets with content are numbered over all rails. A packet that
//! arrives too early waits in its receive buffer, in a [`Window`](crate::order::ReorderWindow) that has a
//! place for every receive of the peer's rails. Updates have no number and never wait.
//!
//! **Completions.** A small packet that the port copies when it is posted has no buffer. Most such packets complete
//! only if they fail, because each completion costs the device and a later poll. The packet by which a process leaves
//! ([`Channel::send_close`]) always completes. It takes the rail of the small packets, so that its completion proves
//! that all of them have completed. The receive that a packet has used is posted again by the next poll, when an answer
//! has left; at once if the port reports its receives itself ([`MemoryPort::reports_receives`]).
//!
//! **Large messages** move by remote memory access: see `channel/access.rs`.
//!
//! **Memory.** All connections share one pool of buffers, for receives and sends. The caller lends and
//! registers its memory ([`Channel::lend`]): some at the start, and more whenever [`Channel::wants_memory`]
//! reports that a peer is receive-starved and the pool is empty. A failed registration costs only speed. Each
//! connection has [`OWN`] reserved buffers, so that it progresses whatever the others do.
//!
//! **Shares.** A busy peer cannot take the pool away from others: it grows only while it holds less than
//! remains for all others ([`flow::posted`](crate::flow::posted)). The initial buffers of connections that do
//! not exist yet are kept for them, up to half of all buffers. If the pool is empty and a peer is
//! receive-starved, or one more peer cannot connect, the channel recalls half of the buffers of another
//! connection: one that has received nothing since it was last checked, else one that is busy but has more
//! than twice as many. The buffers that a peer never gives up are at most its share.
//!
//! **Failure.** A lost connection, a failed work request, a packet without credit, an invalid header, or a
//! repeated number each fail their peer with a [`PortFault`], and no other peer. Packets that arrived whole
//! before a connection was lost are still delivered. All content of a packet is checked and copied before it
//! is used. Packets that arrive before a connection is ready are delivered when it is, and discarded if it
//! never is.
//!
//! **A lost rail** fails its peer even if other rails remain. Packets that arrived in order are delivered.
//! Packets that were sent and not known to have arrived are lost, and so are packets that arrived behind them
//! on other rails. To send them again over another rail, a sender would have to keep every packet until its
//! receiver acknowledges it: no fabric's completion proves arrival (on iWARP it only means that the memory
//! may be reused). Several rails increase speed, not reliability. To continue, the caller closes the peer and
//! connects anew, as with a restarted process.
//!
//! **Proof.** Both ends of a connection prove that they know the key of the job, which is never sent
//! ([`job_key`](crate::job_key)). The first request of a connection is always refused with a challenge; the channel
//! answers the challenge by a second request. Only then does this process reserve buffers, hold the request, or
//! compare the claimed rank with others. A stranger thus costs one refused request and no memory. The exchange fits
//! the private data of RDMA connections (56 bytes), so that it is the same on every fabric, and no queue pair is made
//! for a stranger.
//!
//! **Identity.** A process presents its rank and a *token*. The token is random and
//! is presented only to this peer, on each connection to it. All connections of a peer therefore belong to
//! one process. A further connection is accepted only beside the first one
//! ([`Refusal::NoFirst`](crate::wire::channel::ChannelRefusal::NoFirst)): a request that was on its way when this
//! process disconnected the peer is refused.
//! While one of them exists or is being made, a process with another token is refused
//! ([`Refusal::Claimed`](crate::wire::channel::ChannelRefusal::Claimed)), without effect on the process that
//! holds the rank. A process to which this one connects actively may not connect to it. Nothing is delivered
//! or granted before the other side has identified itself. If the caller knows the machine or process of a
//! peer, and the fabric reports origins, connections from elsewhere are refused
//! ([`Channel::prioritize_from`]). Two assumptions remain: only processes of the job know its key; and, among several
//! of them that may claim a free rank, the first one is accepted. If the rightful process comes second, it and this
//! process receive an error.
//!
//! **Restart.** After [`Channel::hold_requests`], a process that was started again is not accepted by itself: its
//! request is *held*, and nothing of it is delivered, until the caller accepts it ([`Channel::accept_caller`]) or
//! refuses it. A request is held only while there is no connection with the rank's former process. The request and
//! the acceptance say how often each side's rank was started before, and the acceptance carries one number of the
//! application. The connection of a held request shows the requester that this process lives.
//!
//! **The side that sends first.** If only the connecting side may start ([`Facts::active_speaks_first`]), it
//! sends an update as soon as it is connected (paper 3, section 3.1, uses a dummy message), and the other
//! side waits for the update.
//!
//! **Processes without a world.** After [`Channel::grow_with_peers`], peers have no ranks but numbers, which each
//! process chooses for itself, and they are added one by one ([`Channel::expect`]). The caller has met the peer
//! before ([`link`](crate::link)), and both have agreed upon numbers, tokens and a key ([`Acquaintance`]). A connection
//! is accepted only from the process that presents the token and proves the key. A hello carries the number by which
//! its *receiver* knows the sender, instead of a rank; all such processes have the same rank.
//!
//! The shared receive queue of a fabric is not used: its receives could not be granted to individual peers.
#![deny(unsafe_code)]

mod access;
mod arrive;
mod buffers;
mod call;
mod callers;
mod connect;
mod fast;
mod grow;
mod meet;
mod peer;
mod registered;
mod transmit;

use core::borrow::{Borrow as _, BorrowMut};
use core::time::Duration;

pub use access::{AccessSlot, RendezvousChoice};
pub use buffers::{BufferSlab, ChannelBuffer};
pub use call::Acquaintance;
pub use connect::{ChannelEvent, JoinError};
pub use fast::{FastPath, MOST_RINGS, OFFER_AFTER};
pub use peer::{ChannelPeer, Introduction, MOST_RAILS, Report};
pub use registered::{
    ExactRegistrations, RegisteredRange, Registrations, deregister_exactly, register_exactly,
};

use super::memory::{Completion, Facts, MemoryPort, Origin, PortRegion};
use super::{Arrival, PacketPieces, PacketPort, PeerFault, PeerId, Polled, PortFault, SharedCopy, ShortPath};
use crate::counters::TrafficCounters;
use crate::flow::posted::{LEAST, MOST};
use crate::job_key::{Challenges, JobKey, KEY_BYTES, Nonces};
use crate::payload::LentMemory;
use crate::wire::Envelope;
use crate::wire::channel::HEADER_BYTES;
use crate::wire::ring::{RingShape, TRAILER_BYTES};
use buffers::Buffers;

/// Reserved buffers of each connection: the fewest receives, and two send buffers.
pub const OWN: u32 = LEAST + SENDS;
/// Reserved send buffers of each connection.
const SENDS: u32 = 2;
/// Most completions that one poll processes.
const COMPLETIONS_A_POLL: usize = 64;
/// Most connections that are checked for unused buffers when a peer is receive-starved.
const LOOKS: usize = 16;
/// Longest packet, header included, that is sent inline. It is assembled on the stack.
const INLINE: usize = 256;

/// The token of the packet that was taken out of a ring.
const RING_PACKET: u32 = u32::MAX - 1;

/// Returns the bytes of a buffer for packets with this payload: whole cache lines.
pub const fn buffer_bytes(packet_bytes: u32) -> u64 {
    (packet_bytes as u64 + (HEADER_BYTES + TRAILER_BYTES) as u64).next_multiple_of(64)
}

/// The configuration of a channel. Both ends must agree on `world`, `key`, `packet_bytes` and `rails`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Rank of this process.
    pub rank: PeerId,
    /// Number of previous starts of the rank.
    pub incarnation: u64,
    /// Number of the world, which distinguishes it from others with the same key. It is not secret.
    pub world: u64,
    /// The key of the job. Processes that do not prove that they know it are refused. Where [`Acquaintance::key`]
    /// replaces it, nobody else knows it.
    pub key: JobKey,
    /// Random bytes that no other process knows, different for each channel: challenges and nonces are derived from
    /// them.
    pub seed: [u8; KEY_BYTES],
    /// Payload bytes of the largest packet, at least 256.
    pub packet_bytes: u32,
    /// Connections to each peer, 1 to [`MOST_RAILS`].
    pub rails: u32,
    /// Most receives of one connection, limited by the fabric and the windows.
    pub most_receives: u32,
    /// Longest time for a requested connection to become ready.
    pub patience: Duration,
    /// How large messages move.
    pub rendezvous: RendezvousChoice,
    /// The rings for small packets, if the fabric promises order within a write.
    pub fast: FastPath,
}

/// The reason why a channel could not be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// The fabric or the window has too few receives.
    #[error("a connection can have only {receives} receives, but needs {LEAST}")]
    Receives {
        /// Number of receives available.
        receives: u32,
    },
    /// The packets are too short, or too long for the fabric.
    #[error("packets of {bytes} bytes: they must have at least 256, and at most {most} on this fabric")]
    PacketBytes {
        /// The requested packet size in bytes.
        bytes: u32,
        /// The largest packet of the fabric.
        most: u32,
    },
    /// The rings of the fast path are too many, or have an impossible number of slots.
    #[error(
        "{rings} rings of {slots} slots: there can be {MOST_RINGS}, and the slots must be a power of two, 2 to 4096"
    )]
    Rings {
        /// The requested number of rings.
        rings: u32,
        /// The requested number of slots.
        slots: u32,
    },
    /// The number of rails is zero or too large.
    #[error("{rails} rails: the number must be 1 to {MOST_RAILS}")]
    Rails {
        /// The requested number of rails.
        rails: u32,
    },
}

/// The reason why lent memory is unusable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LendError {
    /// The memory is too small for one buffer.
    #[error("{len} bytes are too few for a buffer of {needed} bytes")]
    Short {
        /// Bytes lent.
        len: u64,
        /// Bytes of a buffer.
        needed: u64,
    },
    /// No slot is free for the memory, or no records are free for its buffers.
    #[error("all slots for memory, or all records of buffers, are in use")]
    Full,
}

/// The types of the storage that the caller lends to a channel.
pub trait ChannelStorage {
    /// One for each rank of the world; that of this process is unused.
    type Peers: BorrowMut<[ChannelPeer<Self::Window>]>;
    /// For each peer: places for packets that arrive too early. A power of two, at least [`LEAST`] for each
    /// rail.
    type Window: BorrowMut<[Option<u32>]>;
    /// One for each buffer.
    type Buffers: BorrowMut<[ChannelBuffer]>;
    /// One for each piece of memory that may be lent.
    type Slabs: BorrowMut<[Option<BufferSlab>]>;
    /// One for each access to a peer's memory that is under way, and for each exposed buffer. The channel extends the
    /// table when it needs more, up to 65536. If the table does not grow, messages are streamed.
    type Accesses: BorrowMut<[AccessSlot]> + Extend<AccessSlot>;
    /// The registrations of messages.
    type Registrations: Registrations;
}

/// The lent storage itself.
#[derive(Debug)]
pub struct Parts<S: ChannelStorage> {
    /// See [`ChannelStorage::Peers`].
    pub peers: S::Peers,
    /// See [`ChannelStorage::Buffers`].
    pub buffers: S::Buffers,
    /// See [`ChannelStorage::Slabs`].
    pub slabs: S::Slabs,
    /// See [`ChannelStorage::Accesses`].
    pub accesses: S::Accesses,
    /// See [`ChannelStorage::Registrations`].
    pub registrations: S::Registrations,
}

/// The location of a received packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token(u32);

/// The message port over the memory port `M`.
#[derive(Debug)]
pub struct Channel<M: MemoryPort, S: ChannelStorage> {
    port: M,
    config: Config,
    /// Most receives of one connection.
    most: u32,
    peers: S::Peers,
    buffers: Buffers<S::Buffers, S::Slabs>,
    accesses: access::AccessTable<S::Accesses>,
    registrations: S::Registrations,
    /// The peers with packets to deliver, in rotation.
    ready: peer::ReadyPeers,
    rings: fast::Rings,
    /// The packet that was delivered and not yet released.
    out: Option<u32>,
    /// The packet that was released last, if the next poll posts its buffer again.
    released: Option<u32>,
    /// Peer and rail of the packet whose buffer was posted again last. If the engine sends an answer, it may replace
    /// the update.
    finished: Option<(PeerId, u32)>,
    /// Number of peers with an unreported fault.
    pending: u32,
    /// Number of connections in any state.
    connections: u32,
    /// The connection that is checked next when buffers are missing.
    cursor: usize,
    /// Whether a peer was receive-starved while no buffer was free.
    wants: bool,
    /// Whether requests wait for the caller.
    holds: bool,
    /// Whether only processes are connected that the caller has introduced ([`Channel::expect`]).
    grows: bool,
    /// The challenges that this process sends, and the nonces with which it answers those of others.
    challenges: Challenges,
    nonces: Nonces,
    /// A connection that is closed, which the next event reports.
    ended: Option<(PeerId, u32)>,
}

impl<M: MemoryPort, S: ChannelStorage> Channel<M, S> {
    /// Returns a channel over a port that has no other connections.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn new(port: M, config: Config, parts: Parts<S>) -> Result<Self, OpenError> {
        let facts = port.facts();
        let Config { packet_bytes, rails, .. } = config;
        if !(1..=MOST_RAILS as u32).contains(&rails) {
            return Err(OpenError::Rails { rails });
        }
        let most = facts.message_bytes.saturating_sub(HEADER_BYTES as u32);
        if !(256..=most).contains(&packet_bytes) {
            return Err(OpenError::PacketBytes { bytes: packet_bytes, most });
        }
        let FastPath { rings, slots } = config.fast;
        let shape = RingShape::new(slots).filter(|_| rings <= MOST_RINGS);
        let shape = shape.ok_or(OpenError::Rings { rings, slots })?;
        let mut receives = config.most_receives.min(facts.receive_depth).min(MOST);
        for peer in parts.peers.borrow().iter() {
            receives = receives.min(config.fast.receives(peer.window_size(), rails));
        }
        if receives < LEAST {
            return Err(OpenError::Receives { receives });
        }
        let buffer_bytes = buffer_bytes(packet_bytes);
        Ok(Self {
            port,
            config,
            most: receives,
            peers: parts.peers,
            buffers: Buffers::new(parts.buffers, parts.slabs, buffer_bytes),
            accesses: access::AccessTable::new(parts.accesses),
            registrations: parts.registrations,
            ready: peer::ReadyPeers::new(),
            rings: fast::Rings::new(shape),
            out: None,
            released: None,
            finished: None,
            pending: 0,
            connections: 0,
            cursor: 0,
            wants: false,
            holds: false,
            grows: false,
            challenges: Challenges::new(config.seed),
            nonces: Nonces::new(config.seed),
            ended: None,
        })
    }

    /// Adds memory to the pool. `region` is registered at the port with the right `local_write`, and `memory`
    /// describes the same bytes. They stay registered until the channel is dropped. Returns the number of
    /// added buffers.
    ///
    /// # Errors
    /// See [`LendError`].
    pub fn lend(&mut self, region: PortRegion, memory: LentMemory) -> Result<u32, LendError> {
        self.wants = false;
        self.buffers.lend(region, memory)
    }

    /// Returns whether a peer was receive-starved while no buffer was free. The caller may then call
    /// [`Channel::lend`].
    pub const fn wants_memory(&self) -> bool {
        self.wants
    }

    /// Returns the bytes of a buffer. Lent memory is divided into buffers of this size.
    pub const fn buffer_bytes(&self) -> u64 {
        self.buffers.bytes()
    }

    /// Returns the number of buffers, and the number of free buffers.
    pub fn buffers(&self) -> (u32, u32) {
        (self.buffers.count(), self.buffers.pool().free())
    }

    /// Returns the memory port, to register memory, to arm the port and to sleep on it.
    pub const fn port_mut(&mut self) -> &mut M {
        &mut self.port
    }

    /// Returns the memory port.
    pub const fn port(&self) -> &M {
        &self.port
    }

    /// Ends the channel without notifying its peers, and returns the port with its connections and the lent
    /// memory.
    pub fn into_port(self) -> M {
        self.port
    }

    /// Restricts this peer to an origin from now on: connections from, or to, elsewhere are refused. `None`
    /// accepts any process that presents the peer's rank, as at the start. If the port reports no origins
    /// ([`MemoryPort::origin`]), every connection is refused.
    pub fn prioritize_from(&mut self, peer: PeerId, origin: Option<Origin>) {
        if let Some(it) = self.peer(peer) {
            it.origin = origin;
        }
    }

    /// Returns the state of the connections with a peer.
    pub fn report(&self, peer: PeerId) -> Report {
        self.peers.borrow().get(peer as usize).map_or_else(Report::default, ChannelPeer::report)
    }

    fn peer(&mut self, peer: PeerId) -> Option<&mut ChannelPeer<S::Window>> {
        self.peers.borrow_mut().get_mut(peer as usize)
    }

    fn facts(&self) -> &Facts {
        self.port.facts()
    }

    /// Records a fault of the peer, unless it has already failed.
    fn fail(&mut self, peer: PeerId, fault: PortFault) {
        let Some(it) = self.peers.borrow_mut().get_mut(peer as usize) else { return };
        if it.fail(fault) {
            self.pending += 1;
        }
    }

    /// Completes the last packet first: recycles its buffer and returns its credits.
    #[inline]
    fn settle_released(&mut self) {
        // A packet that was not released is one whose peer failed meanwhile, or that was not wanted.
        if let Some(buffer) = self.out.take().or_else(|| self.released.take()) {
            self.finished = self.finish_with(buffer);
        }
        if let Some((peer, rail)) = self.finished.take() {
            self.settle(peer, rail);
        }
    }

    /// Ends the use of a packet that was delivered. Returns its peer and rail.
    fn finish_with(&mut self, buffer: u32) -> Option<(PeerId, u32)> {
        if buffer == RING_PACKET { Some((self.rings.from, fast::SMALL_RAIL)) } else { self.recycle(buffer) }
    }

    /// Returns the next packet to deliver, of peer `only` or of any.
    fn next_ready(&mut self, only: Option<PeerId>) -> Option<Arrival<Token>> {
        let peers = self.peers.borrow_mut();
        let peer = match only {
            Some(peer) => peer,
            None => self.ready.first(peers)?,
        };
        let it = peers.get_mut(peer as usize)?;
        let buffer = self.buffers.pop(it.ready_mut())?;
        self.ready.served(peers, peer);
        let ChannelBuffer { envelope, len, .. } = self.buffers.get(buffer)?;
        let (envelope, len) = (*envelope, *len as usize);
        self.peer(peer)?.received += 1;
        self.out = Some(buffer);
        Some(Arrival { peer, envelope, len, token: Token(buffer) })
    }

    /// Returns an unreported fault of a peer that has no packet left to deliver.
    ///
    /// A peer may leave as soon as it has all bytes that this process writes. The completion of the write can be seen
    /// after the peer's last packet, because a fabric orders no completions of the two queues of a connection. So the
    /// end of a peer that leaves is reported when no access to its memory is under way.
    #[cold]
    fn next_fault(&mut self, only: Option<PeerId>) -> Option<PeerFault> {
        let mut reported = None;
        for (peer, it) in (0..).zip(self.peers.borrow_mut().iter_mut()) {
            if only.is_none_or(|only| only == peer)
                && !(it.has_left() && self.accesses.is_unsettled(peer))
                && let Some(fault) = it.tell()
            {
                reported = Some(PeerFault { peer, fault });
                break;
            }
        }
        self.pending -= u32::from(reported.is_some());
        reported
    }

    fn poll_for(&mut self, only: Option<PeerId>, completions: usize) -> Polled<Token> {
        self.settle_released();
        if self.rings.is_to_pause() {
            // Other peers, and the completions of this process's own work, wait for their turn.
            self.complete_next();
        }
        for _ in 0..completions {
            if let Some(arrival) = self.next_ready(only) {
                return Polled::Packet(arrival);
            }
            if let Some(arrival) = self.next_from_rings(only) {
                return Polled::Packet(arrival);
            }
            if self.pending > 0
                && let Some(fault) = self.next_fault(only)
            {
                return Polled::Fault(fault);
            }
            if !self.complete_next() {
                // The poll may have placed a packet in a ring.
                return self.next_from_rings(only).map_or(Polled::Idle, Polled::Packet);
            }
        }
        self.next_ready(only).map_or(Polled::Idle, Polled::Packet)
    }

    /// Processes the next completion. Returns `false` if there is none.
    fn complete_next(&mut self) -> bool {
        let mut completion = [Completion::EMPTY];
        if self.port.poll(&mut completion) == 0 {
            return false;
        }
        let [completion] = completion;
        self.complete(&completion);
        true
    }
}

impl<M: MemoryPort, S: ChannelStorage> PacketPort for Channel<M, S> {
    type Token = Token;

    fn packet_bytes(&self) -> usize {
        self.config.packet_bytes as usize
    }

    #[inline]
    fn send(
        &mut self,
        peer: PeerId,
        envelope: &Envelope,
        mut pieces: PacketPieces<'_>,
    ) -> Result<bool, PeerFault> {
        self.transmit(peer, envelope, &mut pieces)
    }

    #[inline]
    fn poll(&mut self) -> Polled<Token> {
        self.poll_for(None, COMPLETIONS_A_POLL)
    }

    fn poll_peer(&mut self, peer: PeerId) -> Polled<Token> {
        // Pending completions belong to buffers or inline sends, and no queue has more of either.
        let most = 4 * self.buffers.count() as usize + COMPLETIONS_A_POLL;
        self.poll_for(Some(peer), most)
    }

    fn read(&self, arrival: &Arrival<Token>, at: usize, to: &mut [u8]) -> bool {
        let inside = match arrival.token {
            Token(RING_PACKET) => self.rings.read(at, to),
            Token(buffer) => self.buffers.read(buffer, HEADER_BYTES + at, to),
        };
        debug_assert!(inside, "the packet's size was checked on arrival");
        inside
    }

    fn release(&mut self, arrival: Arrival<Token>) {
        let Token(buffer) = arrival.token;
        if self.out == Some(buffer) {
            self.out = None;
            if self.port.reports_receives() {
                self.finished = self.finish_with(buffer);
            } else {
                // An answer of the caller's is on its way before the next poll posts the buffer.
                self.released = Some(buffer);
            }
        }
    }

    fn grant(&mut self, peer: PeerId, units: u64) {
        if let Some(it) = self.peer(peer) {
            it.grant(units);
            self.settle_all(peer);
        }
    }

    fn granted(&self, peer: PeerId) -> u64 {
        self.peers.borrow().get(peer as usize).map_or(0, |peer| peer.granted)
    }

    fn traffic(&self, peer: PeerId) -> TrafficCounters {
        self.peers.borrow().get(peer as usize).map_or_else(TrafficCounters::default, ChannelPeer::traffic)
    }

    fn close(&mut self, peer: PeerId) {
        self.close_peer(peer);
    }
}

impl<M: MemoryPort, S: ChannelStorage> ShortPath for Channel<M, S> {}

impl<M: MemoryPort, S: ChannelStorage> SharedCopy for Channel<M, S> {}

#[cfg(test)]
mod tests;
