//! A channel over one fabric, with the memory that it uses.

use std::time::Duration;

use nemesia_core::job_key::JobKey;
use nemesia_core::port::PeerId;
use nemesia_core::port::channel::{
    self, AccessSlot, BufferSlab, Channel, ChannelBuffer, ChannelEvent, ChannelPeer, Config, FastPath,
    LendError, OWN, Parts, RendezvousChoice,
};
use nemesia_core::port::memory::{Armed, MemoryPort, Origin, RegionAccess, RegisterError};

use super::memory::Block;
use super::registered::UserRegistrations;
use crate::os::random;
use crate::regcache::Telling;
use crate::tcp::TcpPort;
use crate::verbs::VerbsPort;

/// The number of buffers that are lent at once when a peer lacks some.
const BUFFERS_A_BLOCK: u32 = 64;
/// The most connection events that one call processes.
const EVENTS_A_TURN: usize = 64;

/// A memory port that an endpoint can use.
pub(super) trait Fabric: MemoryPort {
    /// Returns whether the port could lose something that was sent if it were dropped now; `None` if only the
    /// completions of the sends show that.
    fn has_unsent(&self) -> Option<bool>;

    /// Makes posted work leave this process now, as far as possible: the process may not call the port again soon.
    fn push_out(&mut self);
}

impl Fabric for TcpPort {
    fn has_unsent(&self) -> Option<bool> {
        Some(Self::has_unsent(self))
    }

    fn push_out(&mut self) {
        Self::push_out(self);
    }
}

impl Fabric for VerbsPort {
    fn has_unsent(&self) -> Option<bool> {
        None
    }

    fn push_out(&mut self) {
        // The device has the work already.
    }
}

#[derive(Debug)]
pub(super) struct ChannelHeap;

impl channel::ChannelStorage for ChannelHeap {
    type Peers = Vec<ChannelPeer<Vec<Option<u32>>>>;
    type Window = Vec<Option<u32>>;
    type Buffers = Vec<ChannelBuffer>;
    type Slabs = Vec<Option<BufferSlab>>;
    type Accesses = Vec<AccessSlot>;
    type Registrations = UserRegistrations;
}

/// Returns the most buffers for each connection: a connection has its reserved buffers even with fewer receives.
pub(super) const fn buffers_per_stream(receives: u32) -> u32 {
    let wanted = receives.saturating_add(2);
    if wanted > OWN { wanted } else { OWN }
}

/// The numbers of a channel's buffers, which all connections share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BufferCounts {
    /// Those that must be there.
    pub(super) first: u32,
    /// Those that the settings permit.
    pub(super) most: u32,
}

/// Returns the numbers of buffers for so many connections.
pub(super) const fn buffer_counts(connections: u32, receives: u32) -> BufferCounts {
    let first = connections.saturating_mul(OWN);
    BufferCounts { first, most: connections.saturating_mul(buffers_per_stream(receives)) }
}

/// Returns the places of a reorder window: for the packets in receives, and for those of a ring that are before them.
pub(super) const fn window((receives, streams): (u32, u32), fast: FastPath) -> usize {
    (receives * streams + fast.window_places()).next_power_of_two() as usize
}

/// Returns the bytes of the buffers that a channel needs at once for so many connections.
fn first_bytes(connections: u32, packet_bytes: u32) -> u64 {
    u64::from(buffer_counts(connections, 0).first) * channel::buffer_bytes(packet_bytes)
}

/// Tests whether a port can have the memory that a channel needs at once for so many connections. The error is one
/// line.
pub(super) fn try_memory(
    port: &mut impl MemoryPort,
    connections: u32,
    packet_bytes: u32,
) -> Result<(), String> {
    let len = first_bytes(connections.max(1), packet_bytes);
    let block = allocate(len)?;
    // SAFETY: the block is freed only when the port has deregistered it.
    let [lent, _] = unsafe { block.lent() };
    let region = port.register(lent, RegionAccess::LOCAL).map_err(|error| refused(len, error))?;
    port.deregister(region).map_err(|error| {
        // The port may still use the memory.
        std::mem::forget(block);
        refused(len, error)
    })
}

fn allocate(len: u64) -> Result<Block, String> {
    let block = usize::try_from(len).ok().and_then(Block::new);
    block.ok_or_else(|| format!("no memory for {len} bytes of packets"))
}

fn refused(len: u64, error: RegisterError) -> String {
    format!("registering {len} bytes: {error}")
}

/// The sizes of a channel.
#[derive(Clone, Copy, Debug)]
pub(super) struct ChannelSizes {
    pub(super) rank: PeerId,
    pub(super) incarnation: u64,
    pub(super) size: u32,
    /// The number of ranks with which it may be connected.
    pub(super) remote: u32,
    pub(super) packet_bytes: u32,
    pub(super) receives: u32,
    pub(super) world: u64,
    pub(super) key: JobKey,
    pub(super) patience: Duration,
    pub(super) rendezvous: RendezvousChoice,
    pub(super) fast: FastPath,
    /// The most connections with each peer.
    pub(super) streams: u32,
    pub(super) telling: Telling,
}

/// A channel, dropped before its memory.
#[derive(Debug)]
pub(super) struct FabricChannel<M: MemoryPort> {
    pub(super) channel: Channel<M, ChannelHeap>,
    blocks: Vec<Block>,
    /// The number of buffers that the settings permit.
    most: u32,
    /// The most receives of a connection.
    receives: u32,
    streams: u32,
    fast: FastPath,
    /// The connections of peers that were added, for which there are buffers ([`FabricChannel::pay`]).
    paid: u32,
}

impl<M: Fabric> FabricChannel<M> {
    /// Makes a channel with memory for its first connections. The error is one line.
    pub(super) fn new(port: M, sizes: &ChannelSizes) -> Result<Self, String> {
        let ChannelSizes { rank, incarnation, size, remote, packet_bytes, receives, streams, .. } = *sizes;
        let config = Config {
            rank,
            incarnation,
            world: sizes.world,
            key: sizes.key,
            seed: random().map_err(|error| error.to_string())?,
            packet_bytes,
            rails: streams,
            most_receives: receives,
            patience: sizes.patience,
            rendezvous: sizes.rendezvous,
            fast: sizes.fast,
        };
        let window = window((receives, streams), sizes.fast);
        let mut peers = Vec::with_capacity(size as usize);
        for _ in 0..size {
            let token = u64::from_le_bytes(random().map_err(|error| error.to_string())?);
            peers.extend(ChannelPeer::new(vec![None; window], token));
        }
        let connections = remote.saturating_mul(streams);
        let BufferCounts { first, most } = buffer_counts(connections, receives);
        let slabs = 1 + most.saturating_sub(first).div_ceil(BUFFERS_A_BLOCK) as usize;
        let parts = Parts {
            peers,
            buffers: vec![ChannelBuffer::default(); most as usize],
            slabs: std::iter::repeat_with(|| None).take(slabs).collect(),
            accesses: Vec::new(),
            registrations: UserRegistrations::new(&port, sizes.telling),
        };
        let channel = Channel::new(port, config, parts).map_err(|error| error.to_string())?;
        let (blocks, fast) = (Vec::new(), sizes.fast);
        let mut new = Self { channel, blocks, most, receives, streams, fast, paid: 0 };
        new.lend_rings()?;
        if first > 0 {
            new.lend(first)?;
        }
        Ok(new)
    }

    /// Lends memory for rings, if the fabric promises the order that they need.
    fn lend_rings(&mut self) -> Result<(), String> {
        let len = self.fast.bytes();
        if len == 0 || !self.channel.port().facts().ordered_within_write {
            return Ok(());
        }
        let block = allocate(len)?;
        // SAFETY: the block becomes a field of `self`, behind the channel, which is dropped first.
        let [lent, _] = unsafe { block.lent() };
        self.blocks.push(block);
        self.channel.lend_rings(lent).map(|_| ()).map_err(|error| error.to_string())
    }

    /// Lends memory for so many buffers.
    fn lend(&mut self, buffers: u32) -> Result<(), String> {
        let (has, _) = self.channel.buffers();
        let len = u64::from(buffers) * self.channel.buffer_bytes();
        let block = allocate(len)?;
        // SAFETY: the block becomes a field of `self`, behind the channel, which is dropped first.
        let [lent, own] = unsafe { block.lent() };
        let registered = self.channel.port_mut().register(lent, RegionAccess::LOCAL);
        let region = registered.map_err(|error| refused(len, error))?;
        let lent = self.channel.lend(region, own);
        self.blocks.push(block);
        match lent {
            Ok(_) => Ok(()),
            // All buffers that the settings permit are lent.
            Err(LendError::Full) if has > 0 => Ok(()),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Returns the bytes of buffers and rings.
    pub(super) fn bytes(&self) -> u64 {
        self.blocks.iter().map(|block| block.len() as u64).sum()
    }

    /// Makes place for the connections with so many peers that are added one by one. The memory stays when they end.
    pub(super) fn pay(&mut self, peers: u32) -> Result<(), String> {
        let (each, connections) = (buffers_per_stream(self.receives), peers * self.streams);
        while self.paid < connections {
            let slabs = 1 + (each - OWN).div_ceil(BUFFERS_A_BLOCK);
            if self.most < (self.paid + 1) * each {
                self.channel.grow_buffers(each as usize, slabs as usize);
                self.most += each;
            }
            self.lend(OWN)?;
            self.paid += 1;
        }
        Ok(())
    }

    /// Makes a place for the peer with this number.
    pub(super) fn make_place(&mut self, peer: PeerId) -> Result<(), String> {
        let window = window((self.receives, self.streams), self.fast);
        while self.channel.places() <= peer as usize {
            // The token is replaced when the peer is introduced.
            let new = ChannelPeer::new(vec![None; window], 0).ok_or("the window is no power of two")?;
            self.channel.add_place(new);
        }
        Ok(())
    }

    /// Refuses connections with this rank.
    pub(super) fn refuse(&mut self, peer: PeerId) {
        // No connection has this origin.
        self.channel.prioritize_from(peer, Some(Origin::Process(0)));
    }

    /// Makes progress on connections, and lends memory if a peer lacks buffers. `heed` gets each event.
    pub(super) fn advance(&mut self, now: Duration, mut heed: impl FnMut(ChannelEvent)) {
        for _ in 0..EVENTS_A_TURN {
            let Some(event) = self.channel.poll_event(now) else { break };
            heed(event);
        }
        let (has, _) = self.channel.buffers();
        if self.channel.wants_memory() && has < self.most {
            // Without this memory the peers are only slower.
            let _ = self.lend((self.most - has).min(BUFFERS_A_BLOCK));
        }
    }

    pub(super) fn arm(&mut self) -> bool {
        // A packet in a ring would not end the sleep of this process.
        self.channel.quiet_rings() && self.channel.port_mut().arm() == Armed::Sleep
    }

    pub(super) fn has_unsent(&self, peers: u32) -> bool {
        let unsent = self.channel.port().has_unsent();
        unsent.unwrap_or_else(|| (0..peers).any(|peer| self.channel.is_sending(peer)))
    }
}
