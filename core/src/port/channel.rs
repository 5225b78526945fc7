//! A channel: a message port over a memory port, so that the engine runs over an RDMA fabric.
//!
//! Packets are *sends* into receives that the peer has posted before (the send/receive channel of paper 5, section 4.1; the
//! lower of the two layers of paper 2, section 2.3.2). Writes into a ring of the peer's would save it the receive, but a write
//! tells its target nothing: on iWARP its completion does not prove that it is placed, and its bytes are placed in any order. A
//! receive's completion proves the whole packet on every fabric.
//!
//! | part | what it does |
//! |---|---|
//! | [`posted`](crate::flow::posted) | credits: who may send, when updates are sent, how windows grow and shrink |
//! | [`order`](crate::order) | packets of several rails, put back in order |
//! | [`wire::channel`](crate::wire::channel) | the bytes |
//!
//! **Rails.** A peer has one to [`MOST_RAILS`] connections. A packet takes the next rail, in turn, that has a credit and room in
//! its queue. Packets with content are numbered over all rails; who comes too early waits in its receive buffer, in a
//! [`Window`](crate::order::Window) that has a place for every receive of the peer's rails. Updates have no number and never wait.
//!
//! **Memory.** All connections share one pool of buffers, for receives and sends alike. Its memory is lent and registered by the
//! caller ([`Channel::lend`]): some at the start, and more whenever [`Channel::wants_memory`] says that a peer runs dry and
//! the pool is empty; a registration that fails costs speed, and nothing else. Each connection has [`OWN`] buffers that
//! nobody else gets, so that it goes on whatever the others do.
//!
//! **Shares.** A busy peer can't take the pool away from others: it grows only while less is its own than is left to all others
//! ([`flow::posted`](crate::flow::posted)), and what connections begin with that do not exist yet is kept for them, up to
//! half of the buffers. When there is no more and a peer runs dry, or one more can't be let in, a connection on which nothing
//! has come since it was last looked at is asked to give up half of what it has; or else, though busy, one that has more than
//! twice as much. What a peer never gives up is at most its share.
//!
//! **Failure.** A lost connection, a failed work request, a packet for which there was no credit, a header that no honest peer
//! writes, a number that came twice: each ends its peer with a [`PortFault`], and no other. What had come whole before
//! a connection was lost is still handed on. Everything that comes with a packet is checked, and copied, before it is used.
//! What comes before a connection is ready is handed on when it is, and thrown away if it never is.
//!
//! **A rail that is lost** fails its peer, though others are left. What had come in order is handed on; what was sent and is not
//! known to have come is gone, and so is what came on other rails behind it. To send it again over another rail a sender
//! would have to keep every packet until its receiver says that it has come: no fabric's completion says so (on iWARP it
//! only means that the memory may be used again). Several rails are for speed, and not for safety: who wants to go on closes
//! the peer, and connects anew, as with one that was started again.
//!
//! **Who is who.** A process says its rank, the number of the world, and a *token*: random, and shown to this peer only, on
//! each connection to it. So all connections of a peer are those of one process: while one exists, or is being made, who shows
//! another token is refused ([`Refusal::Claimed`](crate::wire::channel::Refusal::Claimed)), and who has the place does not
//! notice. Nobody is let in whom we ask for connections ourselves. Nothing is handed on, nor promised, before the other side
//! has said who it is. Where the caller knows from which machine, or process, a peer comes, and the fabric tells, others are
//! refused ([`Channel::expect_from`]). What remains trusted: that the number of the world is known to members only; that an
//! address leads to the member that published it; and, of several members from which a place may be taken, the one that takes
//! it first while nobody has it. Who comes second, and has the right to the place, is told that it is taken, and so are we.
//!
//! **Who speaks first.** Where only the side that connected may ([`Facts::active_speaks_first`]), it sends an update as soon as
//! it is connected (paper 3, section 3.1, has a dummy message for that), and the other side waits for it.
//!
//! The shared receive queue of a fabric is not used: its receives could be promised to nobody, or to all.
#![cfg_attr(not(test), forbid(unsafe_code))]

mod arrive;
mod buffers;
mod connect;
mod peer;
mod transmit;

use core::borrow::{Borrow as _, BorrowMut};
use core::time::Duration;

pub use buffers::{Buffer, Slab};
pub use connect::{ChannelEvent, JoinError};
pub use peer::{MOST_RAILS, Peer, Report};

use super::memory::{Completion, Facts, MemoryPort, Origin, Region};
use super::{Arrival, MessagePort, PeerFault, PeerId, Polled, PortFault};
use crate::counters::Traffic;
use crate::flow::posted::{LEAST, MOST};
use crate::payload::{BorrowedGather, Lent};
use crate::wire::Envelope;
use crate::wire::channel::HEADER_BYTES;
use buffers::Buffers;

/// Buffers of its own that each connection has: the fewest receives, and two to send from.
pub const OWN: u32 = LEAST + SENDS;
/// Buffers to send from that each connection has to itself.
const SENDS: u32 = 2;
/// Completions that one poll deals with, at most.
const COMPLETIONS_A_POLL: usize = 64;
/// Connections looked at for buffers that they do not use, at most, when a peer runs dry.
const LOOKS: usize = 16;
/// The longest packet, header included, that is sent inline: it is put together on the stack.
const INLINE: usize = 256;

/// What a channel is told at start. Both ends must agree on everything but the rank, `most_receives` and `patience`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Our rank.
    pub rank: PeerId,
    /// Which world we belong to: a number that only its members know. Others are refused.
    pub world: u64,
    /// Payload bytes of the largest packet: at least 256.
    pub packet_bytes: u32,
    /// Connections to each peer: 1 to [`MOST_RAILS`].
    pub rails: u32,
    /// Receives that one connection may have, at most; cut down to what the fabric and the windows have room for.
    pub most_receives: u32,
    /// How long a connection that was asked for may take to be ready.
    pub patience: Duration,
}

/// Why there can be no channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// The fabric, or the window, has too few receives.
    #[error("a connection has {receives} receives: {LEAST} are needed")]
    Receives {
        /// How many.
        receives: u32,
    },
    /// The packets are too short, or too long for the fabric.
    #[error("packets of {bytes} bytes: they must have at least 256, and at most {most} on this fabric")]
    PacketBytes {
        /// As asked for.
        bytes: u32,
        /// What the fabric can send.
        most: u32,
    },
    /// There are none, or too many rails.
    #[error("{rails} rails: there are 1 to {MOST_RAILS}")]
    Rails {
        /// As asked for.
        rails: u32,
    },
}

/// Memory that was lent can't be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LendError {
    /// No buffer fits into it.
    #[error("{len} bytes are too few for a buffer of {needed}")]
    Short {
        /// Bytes lent.
        len: u64,
        /// Bytes of a buffer.
        needed: u64,
    },
    /// There is no slot for it, or there are no records for its buffers.
    #[error("all places for memory, or all records of buffers, are in use")]
    Full,
}

/// Types of the storage that a channel is lent.
pub trait Storage {
    /// One for each rank of the world; our own is not used.
    type Peers: BorrowMut<[Peer<Self::Window>]>;
    /// For each peer: places for packets that came too early, a power of two; at least [`LEAST`] for each rail.
    type Window: BorrowMut<[Option<u32>]>;
    /// One for each buffer.
    type Buffers: BorrowMut<[Buffer]>;
    /// One for each piece of memory that may be lent.
    type Slabs: BorrowMut<[Option<Slab>]>;
}

/// The storage itself.
#[derive(Debug)]
pub struct Parts<S: Storage> {
    /// See [`Storage::Peers`].
    pub peers: S::Peers,
    /// See [`Storage::Buffers`].
    pub buffers: S::Buffers,
    /// See [`Storage::Slabs`].
    pub slabs: S::Slabs,
}

/// Where an arrived packet is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token(u32);

/// The message port over the memory port `M`.
#[derive(Debug)]
pub struct Channel<M: MemoryPort, S: Storage> {
    port: M,
    config: Config,
    /// Receives of one connection, at most.
    most: u32,
    peers: S::Peers,
    buffers: Buffers<S::Buffers, S::Slabs>,
    /// The peers that have packets to be handed on, in turn.
    ready: peer::Turns,
    /// The packet that is handed on, until it is released.
    out: Option<u32>,
    /// Whose packet was released last, and on which rail: an answer of the engine's may save the update.
    released: Option<(PeerId, u32)>,
    /// Peers with a fault that was not told.
    untold: u32,
    /// Connections that exist, in any state.
    connections: u32,
    /// Who is looked at next when buffers are missing.
    cursor: usize,
    /// A peer ran dry, and there was no buffer.
    wants: bool,
}

impl<M: MemoryPort, S: Storage> Channel<M, S> {
    /// A channel over a port on which nobody else has connections.
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
        let mut receives = config.most_receives.min(facts.receive_depth).min(MOST);
        for peer in parts.peers.borrow().iter() {
            receives = receives.min(peer.window_size() as u32 / rails);
        }
        if receives < LEAST {
            return Err(OpenError::Receives { receives });
        }
        // Whole cache lines.
        let buffer_bytes = (u64::from(packet_bytes) + HEADER_BYTES as u64).next_multiple_of(64);
        Ok(Self {
            port,
            config,
            most: receives,
            peers: parts.peers,
            buffers: Buffers::new(parts.buffers, parts.slabs, buffer_bytes),
            ready: peer::Turns::new(),
            out: None,
            released: None,
            untold: 0,
            connections: 0,
            cursor: 0,
            wants: false,
        })
    }

    /// Adds memory to the pool: `region` is registered at the port, with the right `local_write`, and `memory` describes the same
    /// bytes. They stay registered until the channel is dropped. Returns how many buffers there are more.
    ///
    /// # Errors
    /// See [`LendError`].
    pub fn lend(&mut self, region: Region, memory: Lent) -> Result<u32, LendError> {
        self.wants = false;
        self.buffers.lend(region, memory)
    }

    /// Whether a peer ran dry, and there was no buffer for it: worth a call of [`Channel::lend`].
    pub const fn wants_memory(&self) -> bool {
        self.wants
    }

    /// Bytes of a buffer: what is lent holds so many times that.
    pub const fn buffer_bytes(&self) -> u64 {
        self.buffers.bytes()
    }

    /// Buffers in all, and those that nobody uses.
    pub fn buffers(&self) -> (u32, u32) {
        (self.buffers.count(), self.buffers.pool().free())
    }

    /// The memory port, to register memory, to arm it and to sleep on it.
    pub const fn port_mut(&mut self) -> &mut M {
        &mut self.port
    }

    /// The memory port.
    pub const fn port(&self) -> &M {
        &self.port
    }

    /// Ends the channel without a word to its peers, and hands back the port: with the connections, and the memory that was
    /// lent.
    pub fn into_port(self) -> M {
        self.port
    }

    /// From now on only who is there gets the place of this peer: whoever asks from elsewhere, or accepts elsewhere, is
    /// refused. `None`: anybody who says that it is this peer, as at the start. Where the port does not tell who is where
    /// ([`MemoryPort::origin`]), nobody is there.
    pub fn expect_from(&mut self, peer: PeerId, origin: Option<Origin>) {
        if let Some(it) = self.peer(peer) {
            it.origin = origin;
        }
    }

    /// How things stand with a peer.
    pub fn report(&self, peer: PeerId) -> Report {
        self.peers.borrow().get(peer as usize).map_or_else(Report::default, Peer::report)
    }

    fn peer(&mut self, peer: PeerId) -> Option<&mut Peer<S::Window>> {
        self.peers.borrow_mut().get_mut(peer as usize)
    }

    fn facts(&self) -> &Facts {
        self.port.facts()
    }

    /// The peer is to be reported as failed, unless it is already.
    fn fail(&mut self, peer: PeerId, fault: PortFault) {
        let Some(it) = self.peers.borrow_mut().get_mut(peer as usize) else { return };
        if it.fail(fault) {
            self.untold += 1;
        }
    }

    /// What has to be done before anything else: the last packet's buffer, and the credits that it brings.
    #[inline]
    fn settle_released(&mut self) {
        if let Some(buffer) = self.out.take() {
            // It was not released: its peer was failed meanwhile, or it was not wanted.
            self.released = self.recycle(buffer);
        }
        if let Some((peer, rail)) = self.released.take() {
            self.settle(peer, rail);
        }
    }

    /// The next packet to be handed on, of this peer or of any.
    fn next_ready(&mut self, only: Option<PeerId>) -> Option<Arrival<Token>> {
        let peers = self.peers.borrow_mut();
        let peer = match only {
            Some(peer) => peer,
            None => self.ready.first(peers)?,
        };
        let it = peers.get_mut(peer as usize)?;
        let buffer = self.buffers.pop(it.ready_mut())?;
        self.ready.served(peers, peer);
        let Buffer { envelope, len, .. } = self.buffers.get(buffer)?;
        let (envelope, len) = (*envelope, *len as usize);
        self.peer(peer)?.received += 1;
        self.out = Some(buffer);
        Some(Arrival { peer, envelope, len, token: Token(buffer) })
    }

    /// A fault that was not told, of a peer of which no packet is left to be handed on.
    #[cold]
    fn next_fault(&mut self, only: Option<PeerId>) -> Option<PeerFault> {
        let mut told = None;
        for (peer, it) in (0..).zip(self.peers.borrow_mut().iter_mut()) {
            if only.is_none_or(|only| only == peer)
                && let Some(fault) = it.tell()
            {
                told = Some(PeerFault { peer, fault });
                break;
            }
        }
        self.untold -= u32::from(told.is_some());
        told
    }

    fn poll_for(&mut self, only: Option<PeerId>, completions: usize) -> Polled<Token> {
        self.settle_released();
        for _ in 0..completions {
            if let Some(arrival) = self.next_ready(only) {
                return Polled::Packet(arrival);
            }
            if self.untold > 0
                && let Some(fault) = self.next_fault(only)
            {
                return Polled::Fault(fault);
            }
            let mut completion = [Completion::EMPTY];
            if self.port.poll(&mut completion) == 0 {
                return Polled::Idle;
            }
            let [completion] = completion;
            self.complete(&completion);
        }
        self.next_ready(only).map_or(Polled::Idle, Polled::Packet)
    }
}

impl<M: MemoryPort, S: Storage> MessagePort for Channel<M, S> {
    type Token = Token;

    fn packet_bytes(&self) -> usize {
        self.config.packet_bytes as usize
    }

    #[inline]
    fn send(&mut self, peer: PeerId, envelope: &Envelope, payload: &[u8]) -> Result<bool, PeerFault> {
        self.transmit(peer, envelope, payload.len(), |to| to.put(payload))
    }

    fn send_parts(
        &mut self,
        peer: PeerId,
        envelope: &Envelope,
        head: &[u8],
        body: &[u8],
    ) -> Result<bool, PeerFault> {
        self.transmit(peer, envelope, head.len() + body.len(), |to| {
            to.put(head);
            to.put(body);
        })
    }

    fn send_list(
        &mut self,
        peer: PeerId,
        envelope: &Envelope,
        from: &mut BorrowedGather<'_>,
        at: usize,
    ) -> Result<bool, PeerFault> {
        let len = envelope.total as usize;
        self.transmit(peer, envelope, len, |to| from.each(at, len, |_, run| to.put(run)))
    }

    #[inline]
    fn poll(&mut self) -> Polled<Token> {
        self.poll_for(None, COMPLETIONS_A_POLL)
    }

    fn poll_peer(&mut self, peer: PeerId) -> Polled<Token> {
        // Completions that wait are of buffers, or of inline sends, which no queue has more of.
        let most = 4 * self.buffers.count() as usize + COMPLETIONS_A_POLL;
        self.poll_for(Some(peer), most)
    }

    fn read(&self, arrival: &Arrival<Token>, at: usize, to: &mut [u8]) {
        let inside = self.buffers.read(arrival.token.0, HEADER_BYTES + at, to);
        debug_assert!(inside, "the packet's size was checked when it came");
    }

    fn release(&mut self, arrival: Arrival<Token>) {
        let Token(buffer) = arrival.token;
        if self.out == Some(buffer) {
            self.out = None;
            self.released = self.recycle(buffer);
        }
    }

    fn expect(&mut self, peer: PeerId) {
        // One completion queue has the packets of all.
        let _ = peer;
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

    fn traffic(&self, peer: PeerId) -> Traffic {
        self.peers.borrow().get(peer as usize).map_or_else(Traffic::default, Peer::traffic)
    }

    fn close(&mut self, peer: PeerId) {
        self.close_peer(peer);
    }
}

#[cfg(test)]
mod tests;
