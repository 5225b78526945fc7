//! The fabrics of a world of channels: the model of RDMA devices, and the placement that ships.

use std::fmt::Debug;
use std::time::Duration;

use nemesia_core::port::memory::MemoryPort;
use nemesia_core::port::placement::PlacementOptions;
use nemesia_verification::rdma::{Conditions, Fabric, SimPort};
use nemesia_verification::streams::{StreamConditions, StreamFabric, StreamPort};

use crate::rng::Rng;

/// A fabric whose steps a seed determines.
pub(crate) trait ChannelFabric: Debug {
    /// The type of its ports.
    type Port: MemoryPort + Debug;

    /// Whether the ports are the placement that ships.
    const IS_PLACEMENT: bool;

    /// The sizes of packets.
    const PACKET_BYTES: [u32; 3];

    /// Draws a fabric.
    fn draw(rng: &mut Rng) -> Self;

    /// Adds a port.
    fn port(&self) -> Result<Self::Port, i32>;

    /// Lets a little time pass. Returns the time.
    fn pass(&self) -> Duration;
}

impl ChannelFabric for Fabric {
    type Port = SimPort;

    const IS_PLACEMENT: bool = false;

    const PACKET_BYTES: [u32; 3] = [256, 300, 1024];

    fn draw(rng: &mut Rng) -> Self {
        let seed = rng.next();
        let mut conditions = rng.pick(&[Conditions::INFINIBAND, Conditions::IWARP, Conditions::MEAGRE]);
        conditions.facts.receive_depth = conditions.facts.receive_depth.max(rng.pick(&[3, 4, 32]));
        // A fabric may order the bytes of a write, and not its writes.
        conditions.facts.ordered_among_writes &= rng.one_in(2);
        conditions.facts.connections = 256;
        conditions.facts.regions = 64;
        conditions.facts.inline_bytes = rng.pick(&[0, 31, 32, 128]);
        conditions.delay = 1 + rng.below(5);
        conditions.register_fails = rng.pick(&[0, 2, 3]);
        Self::new(seed, conditions)
    }

    fn port(&self) -> Result<SimPort, i32> {
        Ok(Self::port(self))
    }

    fn pass(&self) -> Duration {
        Self::pass(self)
    }
}

impl ChannelFabric for StreamFabric {
    type Port = StreamPort;

    const IS_PLACEMENT: bool = true;

    /// The largest is not copied, but sent and received in place.
    const PACKET_BYTES: [u32; 3] = [256, 1024, 9000];

    fn draw(rng: &mut Rng) -> Self {
        let seed = rng.next();
        let conditions = StreamConditions {
            options: PlacementOptions {
                send_depth: rng.pick(&[2, 5, 32]),
                receive_depth: rng.pick(&[3, 4, 32]),
                shared_receive_depth: rng.pick(&[0, 3]),
                ..StreamConditions::WIDE.options
            },
            delay: 1 + rng.below(3),
            capacity: rng.pick(&[1000, 20_000, 1 << 20]),
            most: rng.pick(&[400, 3000, 1 << 20]),
            pulls: rng.one_in(2),
        };
        Self::new(seed, conditions)
    }

    fn port(&self) -> Result<StreamPort, i32> {
        Self::port(self)
    }

    fn pass(&self) -> Duration {
        Self::pass(self)
    }
}
