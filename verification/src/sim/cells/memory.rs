//! The shared memory of a world, and a buffer of each side of a connection that is offered to the other side.

use nemesia_core::port::{AccessError, PeerId};
use nemesia_core::shared::assist::Pieces;
use nemesia_core::shared::port::{Host, PortConfig};
use nemesia_core::shared::sleep::{Sleep, SleepWord};
use nemesia_core::sync::{FenceMode, Word64};
use nemesia_core::wire::rendezvous::Descriptor;

use crate::rng::Rng;
use crate::segments::{SegmentPort, SegmentSizes, Segments};

/// The bytes of a buffer that is offered.
pub(super) const BUFFER: usize = 8;
/// The content of a buffer that is offered, and of one that its process uses for something else.
pub(super) const OFFERED: u64 = 1;
const REUSED: u64 = 2;

/// The system of a process. It has no sleepers to wake. It copies the buffers of other processes.
#[derive(Debug)]
pub(super) struct CellsHost<'a>(&'a CellsMemory);

impl Host for CellsHost<'_> {
    fn wake(&mut self, _: PeerId, _: &SleepWord, _: Sleep) {}

    fn pull(&mut self, _: PeerId, address: u64, to: &mut [u8]) -> Result<(), AccessError> {
        let buffer = self.0.buffers.as_flattened().get(address as usize - 1).ok_or(AccessError::Range)?;
        to.copy_from_slice(&buffer.load_relaxed().to_le_bytes());
        Ok(())
    }
}

/// The port that ships, over the memory of this process.
pub(super) type CellsPort<'a> = SegmentPort<'a, CellsHost<'a>>;

/// The memory of all processes and connections that a world will have.
#[derive(Debug)]
pub(crate) struct CellsMemory {
    pub(super) segments: Segments,
    /// Whether fastboxes announce cells.
    announce: bool,
    /// A buffer of each side of a connection that is offered to the other side. Its process writes it once the
    /// connection has ended.
    buffers: Vec<[Word64; 2]>,
}

impl CellsMemory {
    /// Returns memory for so many processes and connections.
    pub(crate) fn new(rng: &mut Rng, processes: usize, connections: usize) -> Self {
        let sizes = SegmentSizes {
            cells: rng.pick(&[2, 4, 8]),
            cell_bytes: 256,
            slots: rng.pick(&[4, 16]),
            numbers: rng.pick(&[1, 2, 3, 12]),
        };
        let segments = Segments::new(sizes, processes, connections);
        let buffers = std::iter::repeat_with(|| [OFFERED; 2].map(Word64::new)).take(connections).collect();
        Self { segments, announce: rng.one_in(2), buffers }
    }

    /// Returns the descriptor of the buffer of one side of a connection.
    pub(super) fn buffer(&self, connection: usize, side: usize) -> Descriptor {
        // 0 is no address.
        Descriptor::of_address((1 + 2 * connection + side) as u64)
    }

    /// Writes the buffer of a side that has ended its connection.
    pub(super) fn reuse(&self, connection: usize, side: usize) {
        self.buffers[connection][side].store_relaxed(REUSED);
    }

    /// Returns the port of a process that has no connection yet. `None` if the sizes do not suit each other.
    pub(super) fn port(&self, process: usize) -> Option<CellsPort<'_>> {
        let config = PortConfig {
            fastbox_limit: self.segments.sizes.small(),
            eager_bytes: 0,
            fences: FenceMode::Symmetric,
            announce: self.announce,
            pieces: Pieces::default(),
            stores: None,
            // What happens would depend on the time, and a seed would not repeat a run.
            clocked: false,
        };
        self.segments.port(process, config, CellsHost(self))
    }
}
