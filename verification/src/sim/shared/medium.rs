//! What the processes of a world over shared memory have in common.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use nemesia_core::shared::assist::Pieces;
use nemesia_core::shared::port::{Host, Link, PortConfig};
use nemesia_core::sync::FenceMode;

use crate::rng::{Rng, mix};
use crate::segments::{SegmentPort, SegmentSizes, Segments};
use crate::shape::Shape;

/// The processes of a world, those that have ended included.
const MOST_PROCESSES: usize = 40;

/// The segments of a world, and the settings of its ports.
#[derive(Debug)]
pub(crate) struct SharedMedium {
    segments: Segments,
    /// Whether fastboxes announce cells.
    announce: bool,
    is_clocked: bool,
    /// Once in how many times memory that is mapped cannot be copied; `None` if no memory is mapped.
    pub(super) mapping: Option<usize>,
    clock: Cell<u64>,
    names: RefCell<SharedNames>,
}

/// The segments that processes use.
#[derive(Debug, Default)]
struct SharedNames {
    /// The newest process of each rank.
    processes: BTreeMap<u32, usize>,
    started: usize,
    /// The newest connection of each pair of ranks, the lower rank first.
    connections: BTreeMap<[u32; 2], usize>,
    connected: usize,
}

impl SharedMedium {
    /// Returns memory for a world of this shape.
    pub(crate) fn new(rng: &mut Rng, shape: &Shape) -> Self {
        let ranks = shape.conditions.ranks as usize;
        let sizes = SegmentSizes {
            cells: shape.conditions.cells,
            cell_bytes: shape.conditions.packet_bytes,
            slots: rng.pick(&[4, 4, 16]),
            numbers: ranks,
        };
        let processes = MOST_PROCESSES.max(ranks);
        Self {
            // No two processes connect twice.
            segments: Segments::new(sizes, processes, processes * ranks),
            announce: !rng.one_in(4),
            is_clocked: rng.one_in(2),
            mapping: rng.pick(&[None, None, Some(2), Some(20), Some(usize::MAX)]),
            clock: Cell::new(0),
            names: RefCell::default(),
        }
    }

    /// Returns the time, which each call advances by some ticks.
    pub(super) fn ticks(&self) -> u64 {
        let now = self.clock.get();
        self.clock.set(now + mix(now) % 1000);
        self.clock.get()
    }

    pub(super) fn has_process(&self) -> bool {
        self.names.borrow().started < self.segments.processes()
    }

    /// Gives a rank a new process, which has no connection.
    pub(super) fn begin(&self, rank: u32) {
        let mut names = self.names.borrow_mut();
        let process = names.started;
        names.started += 1;
        names.processes.insert(rank, process);
        names.connections.retain(|pair, _| !pair.contains(&rank));
    }

    /// Returns the port of the newest process of a rank. `None` if there is no memory for it.
    pub(super) fn port<H: Host>(&self, rank: u32, host: H) -> Option<SegmentPort<'_, H>> {
        let process = *self.names.borrow().processes.get(&rank)?;
        if process >= self.segments.processes() {
            return None;
        }
        let config = PortConfig {
            fastbox_limit: self.segments.sizes.small(),
            // Each side has its own limit: none, or a cell.
            eager_bytes: if rank.is_multiple_of(2) { 0 } else { usize::MAX },
            fences: FenceMode::Symmetric,
            announce: self.announce,
            // Each side has its own bounds.
            pieces: Pieces::new(128 << (rank % 8), 512 << (rank % 8)),
            stores: None,
            clocked: self.is_clocked,
        };
        self.segments.port(process, config, host)
    }

    /// Makes a connection of the newest processes of two ranks.
    pub(super) fn connect(&self, one: u32, other: u32) {
        let mut names = self.names.borrow_mut();
        let connection = names.connected;
        names.connected += 1;
        names.connections.insert([one.min(other), one.max(other)], connection);
    }

    /// Returns the links of the connections of a rank's newest process.
    pub(super) fn links(&self, rank: u32) -> impl Iterator<Item = (u32, Link<'_>)> {
        let peers: Vec<u32> = self.names.borrow().processes.keys().copied().collect();
        peers.into_iter().filter_map(move |peer| Some((peer, self.link(rank, peer)?)))
    }

    /// Returns the link of a rank with a peer, over the newest connection of the two.
    pub(super) fn link(&self, rank: u32, peer: u32) -> Option<Link<'_>> {
        let names = self.names.borrow();
        let connection = *names.connections.get(&[rank.min(peer), rank.max(peer)])?;
        let process = *names.processes.get(&peer)?;
        (connection < self.segments.connections())
            .then(|| self.segments.link((connection, usize::from(rank > peer)), process, rank))
    }
}
