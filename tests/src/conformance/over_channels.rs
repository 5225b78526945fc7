//! Worlds in one process whose engines use channels over a memory port: the simulated fabric, TCP, verbs.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use nemesia_core::engine::Tuning;
use nemesia_core::port::PeerId;
use nemesia_core::port::channel::{Channel, ChannelEvent, JoinError, RendezvousChoice};
use nemesia_core::port::memory::{Address, MemoryPort};
use nemesia_verification::storage::ChannelVectors;

use super::RunPlan;
use super::actor::Abilities;
use super::cases::{CaseFacts, script_of};
use super::engine::{EngineActor, PortDriver, Registry};
use super::world::{Stage, play};
use crate::memory_port::bench::{Bench, Block};
use crate::memory_port::channel::Hall;
use crate::memory_port::channel::node::{ChannelNode, config, lend};
use crate::memory_port::{Fabric, Verdict};

/// What a channel needs besides the engine's calls.
#[derive(Debug)]
pub struct ChannelDriver {
    now: Rc<Cell<Duration>>,
    /// Memory that the channel was lent; dropped after the channel.
    blocks: Vec<Block>,
    /// Where the lower ranks are, for a rank that was started again.
    places: Vec<Address>,
    /// The connections with each of these ranks. Each is requested when the one before is ready.
    rails: u32,
    /// The connections that are to be requested.
    due: Vec<(PeerId, u32)>,
}

/// The port of a rank.
type ChannelPort<M> = Channel<M, ChannelVectors>;

/// The shortest put or get that is done by remote memory access, in bytes.
const LEAST_DIRECT: u64 = 24;

/// The time within which a connection must be made.
const SOON: Duration = Duration::from_secs(30);

impl<M: MemoryPort> PortDriver<ChannelPort<M>> for ChannelDriver {
    fn drive(&mut self, channel: &mut ChannelPort<M>) -> Vec<PeerId> {
        let now = self.now.get();
        let mut connected = Vec::new();
        while let Some(event) = channel.poll_event(now) {
            match event {
                ChannelEvent::Up { peer, rail } => {
                    connected.push(peer);
                    if rail + 1 < self.rails {
                        self.due.push((peer, rail + 1));
                    }
                }
                // The other side has not noticed yet that the former process ended.
                ChannelEvent::Failed { peer, rail, .. } => {
                    if let Some(place) = self.places.get(peer as usize) {
                        // If it fails again, another event follows.
                        let _ = channel.connect(peer, rail, place, now + SOON);
                    }
                }
                ChannelEvent::Called { .. } | ChannelEvent::Refused { .. } | ChannelEvent::Closed { .. } => {}
            }
        }
        self.due.retain(|(peer, rail)| {
            let connect = |place| channel.connect(*peer, *rail, place, now + SOON);
            matches!(self.places.get(*peer as usize).map(connect), Some(Err(JoinError::Buffers { .. })))
        });
        if channel.wants_memory()
            && let Ok(block) = lend(channel)
        {
            self.blocks.push(block);
        }
        connected
    }
}

/// An actor over a channel.
pub type ChannelActor<M> = EngineActor<ChannelPort<M>, ChannelDriver>;

/// The abilities of these worlds.
pub const ABILITIES: Abilities = Abilities { deaths: true, endings: true, restarts: true };

/// The fabric of a world.
struct ChannelStage<F: Fabric> {
    bench: Bench<F>,
    now: Rc<Cell<Duration>>,
    registry: Rc<Registry>,
    places: Vec<Address>,
    rails: u32,
    rendezvous: RendezvousChoice,
}

impl<F: Fabric> ChannelStage<F> {
    fn actor(
        &self,
        rank: PeerId,
        node: ChannelNode<F::Port>,
        places: Vec<Address>,
    ) -> Result<ChannelActor<F::Port>, String> {
        let ChannelNode { channel, blocks, .. } = node;
        let driver =
            ChannelDriver { now: Rc::clone(&self.now), blocks, places, rails: self.rails, due: Vec::new() };
        // Where large messages travel in packets, so do one-sided operations; elsewhere the larger ones are direct.
        let direct_bytes = if self.rendezvous == RendezvousChoice::Stream { u64::MAX } else { LEAST_DIRECT };
        let tuning = Tuning { direct_bytes, ..Tuning::default() };
        EngineActor::new(rank, (channel, driver), tuning, &self.registry)
    }
}

impl<F: Fabric> Stage<ChannelActor<F::Port>> for ChannelStage<F> {
    fn pass(&mut self) {
        self.bench.turn();
        self.now.set(self.bench.now);
    }

    fn restart(&mut self, rank: usize) -> Result<ChannelActor<F::Port>, String> {
        let port = self.bench.fabric.port()?;
        let config = config(rank as PeerId, self.rails, self.rendezvous);
        let mut node =
            ChannelNode::new(port, config, self.places.len()).map_err(|error| error.to_string())?;
        node.lend()?;
        for (peer, place) in (0..).zip(&self.places[..rank]) {
            let deadline = self.bench.now + SOON;
            node.channel.connect(peer, 0, place, deadline).map_err(|error| error.to_string())?;
        }
        self.actor(rank as PeerId, node, self.places[..rank].to_vec())
    }
}

/// Runs a case on a new world over a new fabric. `rails` is the number of connections between two ranks.
///
/// # Errors
/// What the case has found.
pub fn over_channels<F: Fabric>(
    case: CaseFacts,
    plan: RunPlan,
    fabric: F,
    (ranks, rails, rendezvous): (usize, u32, RendezvousChoice),
) -> Verdict {
    let mut bench = Bench::new(fabric);
    let hall = Hall::open(&mut bench, (ranks, rails, rendezvous))?;
    let mut hall = hall.ok_or("the fabric has too few receives for a channel")?;
    hall.connect(&mut bench)?;
    let nodes: Vec<_> = hall.nodes.into_iter().flatten().collect();
    let places = nodes.iter().map(|node| node.channel.port().address().ok_or("no address"));
    let places = places.collect::<Result<Vec<Address>, _>>()?;
    let now = Rc::new(Cell::new(bench.now));
    let registry = Registry::new(ranks, ABILITIES, false);
    let mut stage = ChannelStage { bench, now, registry: Rc::clone(&registry), places, rails, rendezvous };
    let mut actors = Vec::new();
    for (rank, node) in (0..).zip(nodes) {
        actors.push(stage.actor(rank, node, Vec::new())?);
    }
    play(&script_of(case.name)?, plan, actors, &registry, &mut stage)
}
