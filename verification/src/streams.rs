//! Simulated byte streams under the placement that ships ([`nemesia_core::port::placement`]): a memory port
//! whose every step is drawn from a seed.
//!
//! All ports of a [`StreamFabric`] live in one thread. Time passes when [`StreamFabric::pass`] is called. Then
//! connections are made and bytes arrive, each at random. A stream takes and returns any number of bytes, so
//! that frames and payloads are split at all places. If a process dies, a random part of the bytes that it sent
//! is lost.
#![deny(unsafe_code)]

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use nemesia_core::port::placement::{PlacementOptions, PlacementPort};

use crate::storage::PlacementVectors;

mod network;
mod stream;

use network::Network;
pub use stream::{SimStream, SimStreams};

/// A port over simulated streams.
pub type StreamPort = PlacementPort<SimStreams, PlacementVectors>;

/// The properties of the streams, and of the ports over them.
#[derive(Clone, Copy, Debug)]
pub struct StreamConditions {
    /// The limits of each port.
    pub options: PlacementOptions,
    /// A possible step is taken once in so many attempts; 1 means no delay.
    pub delay: usize,
    /// The most bytes that are under way in one direction of a stream.
    pub capacity: usize,
    /// The most bytes that one call transfers.
    pub most: usize,
    /// Whether a process can read the memory of others, as on one machine.
    pub pulls: bool,
}

impl StreamConditions {
    /// Wide streams.
    pub const WIDE: Self = Self {
        options: PlacementOptions {
            connections: 256,
            regions: 64,
            send_depth: 32,
            receive_depth: 32,
            shared_receive_depth: 64,
            patience: Duration::from_millis(1),
            reads_ahead: true,
        },
        delay: 2,
        capacity: 1 << 20,
        most: 1 << 20,
        pulls: false,
    };

    /// Streams that take a few bytes at a time, under ports with as little of everything as possible.
    pub const NARROW: Self = Self {
        options: PlacementOptions {
            connections: 4,
            regions: 12,
            send_depth: 2,
            receive_depth: 2,
            shared_receive_depth: 3,
            ..Self::WIDE.options
        },
        delay: 3,
        capacity: 200,
        most: 50,
        pulls: false,
    };

    /// Streams between processes that can read each other's memory.
    pub const PULLING: Self = Self { pulls: true, ..Self::WIDE };
}

/// The streams that connect the ports.
#[derive(Clone, Debug)]
pub struct StreamFabric(Rc<RefCell<Network>>);

impl StreamFabric {
    /// Returns a fabric without ports. The same seed and the same calls give the same history.
    pub fn new(seed: u64, conditions: StreamConditions) -> Self {
        Self(Rc::new(RefCell::new(Network::new(seed, conditions))))
    }

    /// Adds a port. Dropping the port is the death of its process.
    ///
    /// # Errors
    /// Never: the simulation has random numbers at all times.
    pub fn port(&self) -> Result<StreamPort, i32> {
        let options = self.0.borrow().conditions.options;
        PlacementPort::new(SimStreams::new(Rc::clone(&self.0)), &options)
    }

    /// Returns a source of streams without a port, for a peer that does not follow the protocol.
    pub fn source(&self) -> SimStreams {
        SimStreams::new(Rc::clone(&self.0))
    }

    /// Lets a little time pass. Returns the time.
    pub fn pass(&self) -> Duration {
        self.0.borrow_mut().pass()
    }
}
