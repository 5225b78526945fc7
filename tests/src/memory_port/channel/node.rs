//! A channel and its memory.

use std::time::Duration;

use nemesia_core::job_key::{JobKey, KEY_BYTES};
use nemesia_core::port::PeerId;
use nemesia_core::port::channel::{
    Channel, ChannelBuffer, ChannelEvent, ChannelPeer, Config, ExactRegistrations, FastPath, LendError,
    OpenError, Parts, RendezvousChoice,
};
use nemesia_core::port::memory::{MemoryPort, RegionAccess};
use nemesia_verification::storage::ChannelVectors;

use super::super::bench::Block;
use crate::content::seed_of;

/// The payload of the largest packet, in bytes.
pub(crate) const PACKET_BYTES: u32 = 1024;
/// The identifier of the world.
pub(crate) const WORLD: u64 = 0x0123_4567_89ab_cdef;
/// The key of the job.
pub(crate) const KEY: JobKey = JobKey::from_bytes([0x6b; KEY_BYTES]);
/// The rings for small packets, on fabrics that promise the order. With few slots they wrap around and overflow.
const FAST: FastPath = FastPath { rings: 2, slots: 4 };
/// The buffers in each piece of memory.
const BUFFERS: usize = 48;

pub(crate) const fn config(rank: PeerId, rails: u32, rendezvous: RendezvousChoice) -> Config {
    Config {
        rank,
        incarnation: 0,
        world: WORLD,
        key: KEY,
        seed: [rank as u8; KEY_BYTES],
        packet_bytes: PACKET_BYTES,
        rails,
        most_receives: 16,
        patience: Duration::from_secs(30),
        rendezvous,
        fast: FAST,
    }
}

/// A channel, dropped before its memory.
#[derive(Debug)]
pub(crate) struct ChannelNode<M: MemoryPort> {
    pub(crate) channel: Channel<M, ChannelVectors>,
    pub(crate) blocks: Vec<Block>,
    pub(crate) events: Vec<ChannelEvent>,
}

impl<M: MemoryPort> ChannelNode<M> {
    pub(crate) fn new(port: M, config: Config, ranks: usize) -> Result<Self, OpenError> {
        let mut channel = Channel::new(port, config, parts(config.rank, ranks))?;
        let len = config.fast.bytes() as usize;
        let block = Block::new(len);
        // The memory suffices, and none was lent before.
        let _ = channel.lend_rings(block.lent(len).0);
        Ok(Self { channel, blocks: vec![block], events: Vec::new() })
    }

    /// Lends a piece of memory to the channel.
    pub(crate) fn lend(&mut self) -> Result<(), String> {
        self.blocks.push(lend(&mut self.channel)?);
        Ok(())
    }
}

fn parts(rank: PeerId, ranks: usize) -> Parts<ChannelVectors> {
    let token = |of: usize| seed_of(&[rank.into(), of as u64]);
    Parts {
        peers: (0..ranks).filter_map(|of| ChannelPeer::new(vec![None; 64], token(of))).collect(),
        buffers: vec![ChannelBuffer::default(); 4 * BUFFERS],
        slabs: std::iter::repeat_with(|| None).take(4).collect(),
        accesses: Vec::new(),
        registrations: ExactRegistrations::new(),
    }
}

/// Lends a piece of memory to a channel, which must be dropped before the memory.
pub(crate) fn lend<M: MemoryPort>(channel: &mut Channel<M, ChannelVectors>) -> Result<Block, String> {
    let len = BUFFERS * channel.buffer_bytes() as usize;
    let block = Block::new(len);
    let (lent, own) = block.lent(len);
    let region = channel.port_mut().register(lent, RegionAccess::LOCAL).map_err(|error| error.to_string())?;
    match channel.lend(region, own) {
        Ok(_) | Err(LendError::Full) => Ok(block),
        Err(error) => Err(error.to_string()),
    }
}
