//! Storage of engines and channels in vectors, for worlds that live in one process.
#![forbid(unsafe_code)]

use std::marker::PhantomData;

use nemesia_core::engine::active::Handlers;
use nemesia_core::engine::rma::{ExposedRegion, Reply, WINDOW};
use nemesia_core::engine::{self, Lent, Request};
use nemesia_core::port::channel::{self, AccessSlot, BufferSlab, ChannelBuffer, ExactRegistrations};
use nemesia_core::port::placement::PlacementStorage;
use nemesia_core::slab::{List, Slot};
use nemesia_core::store::{UNIT, Unit, UnitMemory};

/// The storage that an engine is lent; `H` handles its active messages.
#[derive(Debug)]
pub struct EngineVectors<H = ()>(PhantomData<H>);

impl<H: Handlers> engine::Storage for EngineVectors<H> {
    type Requests = Vec<Slot<Request>>;
    type Peers = Vec<engine::Peer>;
    type Units = SteppedUnits;
    type Stored = Vec<u32>;
    type Buckets = Vec<List>;
    type Regions = Vec<Slot<ExposedRegion>>;
    type Replies = Vec<Slot<Reply>>;
    type Selections = Vec<engine::PeerSelection>;
    type Handlers = H;
    type Trace = ();
}

impl<H: Handlers> EngineVectors<H> {
    /// Returns storage for a world of `ranks` ranks, each with one region: `requests` requests at first,
    /// `units` units of 64 bytes for unexpected messages, and `buckets` lists by hash.
    pub fn lent(ranks: usize, requests: usize, units: usize, buckets: usize, handlers: H) -> Lent<Self> {
        Lent {
            requests: several(requests),
            peers: several(ranks),
            units: SteppedUnits { units: vec![[0; UNIT]; units], committed: 0 },
            stored: several(buckets),
            posted: several(buckets),
            regions: several(1),
            replies: several((ranks - 1) * WINDOW as usize),
            selections: several(ranks.min(16)),
            handlers,
            trace: (),
        }
    }
}

/// Memory that commits no more units than it must. A unit that is not committed has no memory: credit for it would
/// overflow the store.
#[derive(Debug)]
pub struct SteppedUnits {
    units: Vec<Unit>,
    committed: u32,
}

impl UnitMemory for SteppedUnits {
    fn units(&self) -> &[Unit] {
        &self.units
    }

    fn units_mut(&mut self) -> &mut [Unit] {
        &mut self.units
    }

    fn commit(&mut self, units: u32) -> u32 {
        self.committed = self.committed.max(units);
        self.committed
    }
}

/// The storage that a channel is lent.
#[derive(Debug)]
pub struct ChannelVectors;

impl channel::ChannelStorage for ChannelVectors {
    type Peers = Vec<channel::ChannelPeer<Vec<Option<u32>>>>;
    type Window = Vec<Option<u32>>;
    type Buffers = Vec<ChannelBuffer>;
    type Slabs = Vec<Option<BufferSlab>>;
    type Accesses = Vec<AccessSlot>;
    type Registrations = ExactRegistrations;
}

/// The storage that a placement is lent.
#[derive(Debug)]
pub struct PlacementVectors;

impl PlacementStorage for PlacementVectors {
    type Table<V> = Vec<V>;
}

fn several<T: Default>(count: usize) -> Vec<T> {
    std::iter::repeat_with(T::default).take(count).collect()
}
