//! One suite for the pipes of [`nemesia_core::rdma_channel`], over any memory port.
//!
//! A world is a few processes with a pipe between every two. They put and get random lists: cut anywhere, of entries of
//! 0 bytes up to several rings, with a first address that changes between calls. Bytes that a put has counted are
//! overwritten at once. Every byte that a get counts is compared with the stream; guard bytes around all memory show
//! writes beside it. A process may be killed, and a process may write anything into the inbox of another: then only
//! their own pipes may fail.
//!
//! Everything is drawn from the seed. Over the simulated fabric the same seed gives the same history.
#![deny(unsafe_code)]

use std::time::{Duration, Instant};

use nemesia_core::port::memory::MemoryPort;
use nemesia_core::rdma_channel::{ChunkFill, Design, PipeArrival, PipeShape};

use crate::rdma::{Fabric, SimPort};
use crate::rng::{Rng, mix};

mod memory;
mod node;
mod world;

use world::PipeWorld;

/// Ports that can reach each other.
pub trait PipeFabric {
    /// The port.
    type Port: MemoryPort;

    /// Makes a port, as another process would have it.
    ///
    /// # Errors
    /// Why no port can be made.
    fn port(&mut self) -> Result<Self::Port, String>;

    /// Lets a little time pass. Returns the time.
    fn pass(&mut self) -> Duration;
}

impl PipeFabric for Fabric {
    type Port = SimPort;

    fn port(&mut self) -> Result<SimPort, String> {
        Ok(Self::port(self))
    }

    fn pass(&mut self) -> Duration {
        Self::pass(self)
    }
}

/// What disturbs a world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PipeTrouble {
    /// Nothing: all bytes must arrive.
    None,
    /// A process dies, at a random step or before [`PipeRun::calm`] steps have been taken.
    Death,
    /// A process writes random bytes and words into the inbox of another.
    Hostile,
}

/// A world to run.
#[derive(Clone, Copy, Debug)]
pub struct PipeRun {
    /// The design.
    pub design: Design,
    /// The seed of all choices.
    pub seed: u64,
    /// Random steps before the world comes to its end.
    pub steps: usize,
    /// Most processes. With 1 the world has one process without pipes, otherwise at least 2.
    pub processes: usize,
    /// What disturbs it.
    pub trouble: PipeTrouble,
    /// The step before which the trouble begins; drawn if absent.
    pub calm: Option<usize>,
    /// Turns in which a world must come to its end.
    pub most_turns: u64,
    /// Time in which it must come to its end where time is real; 0 in simulation. A world hangs beyond both limits.
    pub most_time: Duration,
}

/// What happened in worlds. A suite in which something never happens checks too little.
#[derive(Clone, Copy, Debug, Default)]
pub struct PipeTally {
    /// Bytes that were got and compared.
    pub bytes: u64,
    /// Puts that could do nothing, and puts that ended within the list.
    pub idle_puts: u64,
    /// Puts and gets that ended within their lists.
    pub cut: u64,
    /// Buffers that were exposed, and buffers into which a port read.
    pub exposed: u64,
    /// Buffers into which a port read.
    pub lent: u64,
    /// Runs that were written into advertised buffers.
    pub pushed: u64,
    /// Long runs that were copied through a ring.
    pub copied: u64,
    /// Advertised buffers that were withdrawn, because a put came first.
    pub withdrawn: u64,
    /// Pipes that failed because the peer violated the protocol.
    pub violated: u64,
    /// Pipes that failed because the connection ended.
    pub lost: u64,
    /// Worlds in which arrivals were polled.
    pub polled: u64,
    /// Worlds in which arrivals were announced.
    pub announced: u64,
}

impl PipeTally {
    /// Adds another tally.
    pub const fn add(&mut self, other: &Self) {
        self.bytes += other.bytes;
        self.idle_puts += other.idle_puts;
        self.cut += other.cut;
        self.exposed += other.exposed;
        self.lent += other.lent;
        self.pushed += other.pushed;
        self.copied += other.copied;
        self.withdrawn += other.withdrawn;
        self.violated += other.violated;
        self.lost += other.lost;
        self.polled += other.polled;
        self.announced += other.announced;
    }
}

/// Runs one world.
///
/// # Errors
/// The broken promise.
pub fn run<F: PipeFabric>(fabric: F, run: &PipeRun) -> Result<PipeTally, String> {
    let mut world = PipeWorld::new(fabric, run)?;
    let result = (0..run.steps).try_for_each(|_| world.step()).and_then(|()| world.finish());
    result.map_err(|what| format!("{what}; {:?}", world.shape))?;
    Ok(world.tally())
}

/// Draws a shape for a port: small rings, so that they wrap often.
fn draw(rng: &mut Rng, design: Design, facts: &nemesia_core::port::memory::Facts) -> PipeShape {
    let ring_bytes = 128 << rng.below(7);
    let chunk_bytes = ring_bytes.min(64 << rng.below(6)).min(ring_bytes / 2);
    let fill = rng.pick(&[ChunkFill::TwoFlags, ChunkFill::Bottom]);
    let mut shape = PipeShape::new(design, facts);
    if rng.one_in(3) {
        // A port may always be used as if it did not place in order.
        shape.arrival = PipeArrival::Announced;
    }
    PipeShape { fill, ring_bytes, chunk_bytes, zero_copy_from: rng.pick(&[1, 50, 400, 1500]), ..shape }
}

/// The bytes of a stream.
#[derive(Clone, Copy, Debug)]
struct Stream {
    seed: u64,
    /// If not 0: words are small numbers that grow by one in so many words, as numbers of chunks do.
    slow: u64,
}

impl Stream {
    fn byte(self, at: u64) -> u8 {
        let word = match self.slow {
            0 => mix(self.seed ^ mix(at / 8)),
            slow => at / 8 / slow,
        };
        word.to_le_bytes()[(at % 8) as usize]
    }

    fn bytes(self, at: u64, len: usize) -> Vec<u8> {
        (at..at + len as u64).map(|at| self.byte(at)).collect()
    }
}

/// A limit of turns, or of time where time is real.
#[derive(Debug)]
struct Patience {
    turns: u64,
    time: Duration,
    start: Instant,
}

impl Patience {
    fn new(run: &PipeRun) -> Self {
        Self { turns: run.most_turns, time: run.most_time, start: Instant::now() }
    }

    /// Counts a turn. Returns whether the limit is reached.
    fn is_over(&mut self) -> bool {
        self.turns = self.turns.saturating_sub(1);
        self.turns == 0 && self.start.elapsed() >= self.time
    }
}
