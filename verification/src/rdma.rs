//! A simulated RDMA fabric: a [`MemoryPort`](nemesia_core::port::memory::MemoryPort) whose every step is drawn
//! from a seed.
//!
//! All ports of a [`Fabric`] live in one thread. Time passes when [`Fabric::pass`] is called. Then
//! connections are made, parts of messages are placed and work requests complete, each at random, so that all
//! orders occur that the facts allow: parts out of order, reads after later writes, completions of one
//! connection long after another's.
#![deny(unsafe_code)]

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use nemesia_core::port::memory::Facts;

mod connection;
mod link;
mod memory;
mod operation;
mod port;
mod world;

pub use port::SimPort;
use world::World;

/// The properties of a fabric.
#[derive(Clone, Copy, Debug)]
pub struct Conditions {
    /// What the fabric can do, as its ports report it.
    pub facts: Facts,
    /// A possible step is taken once in so many attempts; 1 means no delay.
    pub delay: usize,
    /// One registration in so many fails; 0 means none.
    pub register_fails: usize,
    /// An injected fault, for tests of the tests.
    pub flaw: Option<Flaw>,
}

/// Mistakes that a memory port can make, and that tests must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// The port does not check a region's access rights.
    Rights,
    /// A refused operation is not executed, and is reported as done.
    Refusals,
    /// All regions have the same key.
    Keys,
    /// A message that is too long is truncated.
    Truncation,
    /// Later work requests do not wait for a write.
    Overtaking,
    /// A fence does not hold anything back.
    Fence,
    /// Completions of a queue come in any order.
    Order,
    /// A completion is lost now and then.
    Loss,
    /// A completion comes twice now and then.
    Twice,
    /// Work that was posted as quiet completes visibly.
    Noise,
    /// Receives do not complete when a connection ends.
    Receives,
    /// The end of a connection is not reported.
    Silence,
    /// If one connection of a port ends, all end.
    Neighbours,
    /// The port uses memory after it was deregistered.
    Deregistration,
    /// The queue takes one work request less than the facts say.
    Depth,
}

impl Flaw {
    /// All flaws.
    pub const ALL: [Self; 15] = [
        Self::Rights,
        Self::Refusals,
        Self::Keys,
        Self::Truncation,
        Self::Overtaking,
        Self::Fence,
        Self::Order,
        Self::Loss,
        Self::Twice,
        Self::Noise,
        Self::Receives,
        Self::Silence,
        Self::Neighbours,
        Self::Deregistration,
        Self::Depth,
    ];
}

impl Conditions {
    /// Reliable connections of InfiniBand.
    pub const INFINIBAND: Self = Self {
        facts: Facts {
            name: "simulated InfiniBand",
            ordered_within_write: true,
            ordered_among_writes: true,
            active_speaks_first: false,
            write_proves_placement: true,
            waits_for_receive: true,
            read_needs_remote_write: false,
            registration_pins: true,
            immediates: true,
            atomics: true,
            atomics_exclude_processor: true,
            inline_bytes: 128,
            message_bytes: 1 << 30,
            transfer_bytes: 1 << 30,
            slices: 16,
            read_slices: 16,
            send_depth: 32,
            receive_depth: 32,
            shared_receive_depth: 64,
            connections: 256,
            regions: 64,
        },
        delay: 2,
        register_fails: 0,
        flaw: None,
    };

    /// iWARP: placement in any order, early completions, and the connecting side speaks first.
    pub const IWARP: Self = Self {
        facts: Facts {
            name: "simulated iWARP",
            ordered_within_write: false,
            ordered_among_writes: false,
            active_speaks_first: true,
            write_proves_placement: false,
            waits_for_receive: false,
            read_needs_remote_write: true,
            immediates: false,
            atomics: false,
            atomics_exclude_processor: false,
            inline_bytes: 0,
            slices: 6,
            read_slices: 1,
            shared_receive_depth: 0,
            ..Self::INFINIBAND.facts
        },
        ..Self::INFINIBAND
    };

    /// As little of everything as a fabric may have.
    pub const MEAGRE: Self = Self {
        facts: Facts {
            name: "simulated and meagre",
            ordered_within_write: false,
            ordered_among_writes: false,
            message_bytes: 4096,
            transfer_bytes: 8192,
            slices: 1,
            read_slices: 1,
            inline_bytes: 1,
            send_depth: 2,
            receive_depth: 2,
            shared_receive_depth: 3,
            connections: 4,
            regions: 12,
            ..Self::INFINIBAND.facts
        },
        delay: 5,
        register_fails: 0,
        flaw: None,
    };
}

/// The fabric that connects the ports.
#[derive(Clone, Debug)]
pub struct Fabric(Rc<RefCell<World>>);

impl Fabric {
    /// Returns a fabric without ports. The same seed and the same calls give the same history.
    pub fn new(seed: u64, conditions: Conditions) -> Self {
        Self(Rc::new(RefCell::new(World::new(seed, conditions))))
    }

    /// Adds a port. Dropping the port is the death of its process.
    pub fn port(&self) -> SimPort {
        SimPort::new(Rc::clone(&self.0))
    }

    /// Returns whether a work request is under way or its completion was not taken.
    pub fn is_busy(&self) -> bool {
        self.0.borrow().links.iter().flat_map(|link| &link.ends).any(|end| !end.operations.is_empty())
    }

    /// Lets a little time pass. Returns the time.
    pub fn pass(&self) -> Duration {
        self.0.borrow_mut().pass()
    }
}
