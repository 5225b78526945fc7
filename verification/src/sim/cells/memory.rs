//! The shared memory of a world: the segments of each process, and two link segments for each connection.

use std::ptr::NonNull;

use nemesia_core::port::{AccessError, PeerId};
use nemesia_core::shared::assist::{AssistLine, AssistReceiver, AssistSender, Pieces};
use nemesia_core::shared::end_mark::EndMark;
use nemesia_core::shared::fastbox::{FastboxReceiver, FastboxSender, FastboxSlot, max_payload};
use nemesia_core::shared::layout::Line;
use nemesia_core::shared::pool::{
    CellHeader, CellPool, CellRecord, PeerPool, ReturnReceiver, ReturnSender, ReturnSlot,
};
use nemesia_core::shared::port::{Ends, Host, Link, PortConfig, ShmPort};
use nemesia_core::shared::queue::{CellQueue, Consumer, Producer};
use nemesia_core::shared::sleep::{Sleep, SleepWord};
use nemesia_core::sync::{FenceMode, PayloadMut, Word64};
use nemesia_core::wire::rendezvous::Descriptor;

use crate::rng::Rng;

/// The sizes of the shared structures of a world.
#[derive(Clone, Copy, Debug)]
pub(super) struct CellSizes {
    /// Cells of each process, a power of two, and the payload bytes of each.
    pub(super) cells: usize,
    pub(super) cell_bytes: usize,
    /// The slots of a fastbox, a power of two.
    slots: usize,
    /// Numbers for the peers of each process.
    pub(super) numbers: usize,
    /// Whether fastboxes announce cells.
    announce: bool,
}

impl CellSizes {
    pub(super) fn new(rng: &mut Rng) -> Self {
        Self {
            cells: rng.pick(&[2, 4, 8]),
            cell_bytes: 256,
            slots: rng.pick(&[4, 16]),
            numbers: rng.pick(&[1, 2, 3, 12]),
            announce: rng.one_in(2),
        }
    }

    /// Returns the largest payload of a fastbox, in bytes.
    pub(super) fn small(&self) -> usize {
        max_payload(self.slots).min(self.cell_bytes / 2)
    }
}

/// What one process shares with all.
#[derive(Debug)]
struct OwnSegment {
    headers: Vec<CellHeader>,
    entries: Vec<Word64>,
    tail: Line,
    sleep: SleepWord,
    /// The payload of the cells, used only through `base`.
    _payload: Box<[u64]>,
    base: NonNull<u8>,
}

/// What one side of a connection writes.
#[derive(Debug)]
struct LinkSegment {
    line: Line,
    assist: AssistLine,
    end_mark: Word64,
    /// A buffer of the process that is offered to the other side. The process writes it once the connection has ended.
    buffer: Word64,
    returns: Vec<ReturnSlot>,
    fastbox: Vec<FastboxSlot>,
}

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
        let mut buffers = self.0.connections.iter().flatten();
        let side = buffers.nth(address as usize - 1).ok_or(AccessError::Range)?;
        to.copy_from_slice(&side.buffer.load_relaxed().to_le_bytes());
        Ok(())
    }
}

/// The port that ships, over the memory of this process.
pub(super) type CellsPort<'a> = ShmPort<'a, CellsHost<'a>, Vec<Option<Link<'a>>>, Vec<CellRecord>>;

/// The memory of all processes and connections that a world will have.
#[derive(Debug)]
pub(crate) struct CellsMemory {
    pub(super) sizes: CellSizes,
    processes: Vec<OwnSegment>,
    connections: Vec<[LinkSegment; 2]>,
}

fn several<T>(count: usize, make: impl FnMut() -> T) -> Vec<T> {
    std::iter::repeat_with(make).take(count).collect()
}

impl CellsMemory {
    /// Returns memory for so many processes and connections.
    pub(crate) fn new(rng: &mut Rng, processes: usize, connections: usize) -> Self {
        let sizes = CellSizes::new(rng);
        let CellSizes { cells, cell_bytes, slots, numbers, .. } = sizes;
        let process = || {
            let mut payload = vec![0_u64; cells * cell_bytes / 8].into_boxed_slice();
            let base = NonNull::from(&mut *payload).cast();
            OwnSegment {
                headers: several(cells, CellHeader::empty),
                entries: several((numbers * cells).next_power_of_two(), || Word64::new(0)),
                tail: Line::new(0),
                sleep: SleepWord::awake(),
                _payload: payload,
                base,
            }
        };
        let segment = || LinkSegment {
            line: Line::new(0),
            assist: AssistLine::empty(),
            end_mark: Word64::new(0),
            buffer: Word64::new(OFFERED),
            returns: several(cells, ReturnSlot::empty),
            fastbox: several(slots, FastboxSlot::empty),
        };
        let connection = || [segment(), segment()];
        Self { sizes, processes: several(processes, process), connections: several(connections, connection) }
    }

    pub(super) const fn processes(&self) -> usize {
        self.processes.len()
    }

    pub(super) const fn connections(&self) -> usize {
        self.connections.len()
    }

    /// The words of models are no memory: the simulator is compiled with them, but does not run.
    #[cfg(nemesia_loom)]
    fn payload(&self, process: usize) -> PayloadMut<'_> {
        let _ = self.processes[process].base;
        PayloadMut::from_cells(&[])
    }

    #[cfg(not(nemesia_loom))]
    fn payload(&self, process: usize) -> PayloadMut<'_> {
        let CellSizes { cells, cell_bytes, .. } = self.sizes;
        // SAFETY: allocated with this length, initialised, and used only through such views, in one thread.
        unsafe { PayloadMut::from_raw(self.processes[process].base, cells * cell_bytes) }
    }

    fn queue(&self, process: usize) -> CellQueue<'_> {
        let OwnSegment { entries, tail, .. } = &self.processes[process];
        CellQueue::new(entries, &tail.word)
    }

    /// Returns the mark of one side of a connection.
    pub(super) fn end_mark(&self, connection: usize, side: usize) -> EndMark<'_> {
        EndMark::new(&self.connections[connection][side].end_mark)
    }

    /// Returns the descriptor of the buffer of one side of a connection.
    pub(super) fn buffer(&self, connection: usize, side: usize) -> Descriptor {
        // 0 is no address.
        Descriptor::of_address((1 + 2 * connection + side) as u64)
    }

    /// Writes the buffer of a side that has ended its connection.
    pub(super) fn reuse(&self, connection: usize, side: usize) {
        self.connections[connection][side].buffer.store_relaxed(REUSED);
    }

    /// Returns the link of one side of a connection with a process, which knows this one by `number`.
    pub(super) fn link(&self, (connection, side): (usize, usize), peer: usize, number: u32) -> Link<'_> {
        let (own, its) = (&self.connections[connection][side], &self.connections[connection][1 - side]);
        let OwnSegment { headers, sleep, .. } = &self.processes[peer];
        let payload = self.payload(peer).as_read();
        let its_mark = self.end_mark(connection, 1 - side);
        let ends = Ends {
            outbound: FastboxSender::new(&own.fastbox, &its.line.word),
            inbound: FastboxReceiver::new(&its.fastbox, &own.line.word),
            cells: PeerPool::new(headers, payload, self.sizes.cell_bytes, its_mark),
            end_mark: self.end_mark(connection, side),
            give_back: ReturnSender::new(&own.returns),
            given_back: ReturnReceiver::new(&its.returns),
            queue: Producer::new(self.queue(peer)),
            sleep,
            grant: &own.line,
            granted: &its.line,
            assist: AssistReceiver::new(&own.assist, &its.assist),
            assist_sender: AssistSender::new(&own.assist, &its.assist),
        };
        Link::new(number as u16, ends)
    }

    /// Returns the port of a process that has no connection yet. `None` if the sizes do not suit each other.
    pub(super) fn port(&self, process: usize) -> Option<CellsPort<'_>> {
        let CellSizes { cells, cell_bytes, numbers, announce, .. } = self.sizes;
        let headers = &self.processes[process].headers;
        let records = vec![CellRecord::default(); cells];
        let pool = CellPool::new(headers, self.payload(process), cell_bytes, records)?;
        let config = PortConfig {
            fastbox_limit: self.sizes.small(),
            fences: FenceMode::Symmetric,
            announce,
            pieces: Pieces::default(),
            stores: None,
            // What happens would depend on the time, and a seed would not repeat a run.
            clocked: false,
        };
        let links = several(numbers, || None);
        let inbox = Consumer::new(self.queue(process));
        Some(ShmPort::new(config, links, pool, cells as u32, inbox, CellsHost(self)))
    }
}
