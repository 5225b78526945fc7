//! Shared memory within one process: the segments of several processes and of their connections, for the port that
//! ships (`core/src/shared/port.rs`). A segment is made when it is used for the first time.

use std::cell::OnceCell;
use std::ptr::NonNull;

use nemesia_core::shared::assist::{AssistLine, AssistReceiver, AssistSender};
use nemesia_core::shared::end_mark::EndMark;
use nemesia_core::shared::fastbox::{FastboxReceiver, FastboxSender, FastboxSlot, max_payload};
use nemesia_core::shared::layout::Line;
use nemesia_core::shared::pool::{
    CellHeader, CellPool, CellRecord, PeerPool, ReturnReceiver, ReturnSender, ReturnSlot,
};
use nemesia_core::shared::port::{Ends, Host, Link, PortConfig, ShmPort};
use nemesia_core::shared::queue::{CellQueue, Consumer, Producer};
use nemesia_core::shared::sleep::SleepWord;
use nemesia_core::sync::{PayloadMut, Word64};

/// One side of a connection: the connection, and 0 or 1.
pub(crate) type ConnectionSide = (usize, usize);

/// The port that ships, over the memory of this process.
pub(crate) type SegmentPort<'a, H> = ShmPort<'a, H, Vec<Option<Link<'a>>>, Vec<CellRecord>>;

/// The sizes of the shared structures of a world.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SegmentSizes {
    /// Cells of each process, a power of two, and the payload bytes of each.
    pub(crate) cells: usize,
    pub(crate) cell_bytes: usize,
    /// The slots of a fastbox, a power of two.
    pub(crate) slots: usize,
    /// Numbers for the peers of each process.
    pub(crate) numbers: usize,
}

impl SegmentSizes {
    /// Returns the largest payload of a fastbox, in bytes.
    pub(crate) fn small(&self) -> usize {
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
    returns: Vec<ReturnSlot>,
    fastbox: Vec<FastboxSlot>,
}

/// The memory of all processes and connections that a world will have.
#[derive(Debug)]
pub(crate) struct Segments {
    pub(crate) sizes: SegmentSizes,
    processes: Vec<OnceCell<OwnSegment>>,
    connections: Vec<OnceCell<[LinkSegment; 2]>>,
}

fn several<T>(count: usize, make: impl FnMut() -> T) -> Vec<T> {
    std::iter::repeat_with(make).take(count).collect()
}

impl Segments {
    /// Returns memory for so many processes and connections.
    pub(crate) fn new(sizes: SegmentSizes, processes: usize, connections: usize) -> Self {
        Self {
            sizes,
            processes: several(processes, OnceCell::new),
            connections: several(connections, OnceCell::new),
        }
    }

    pub(crate) const fn processes(&self) -> usize {
        self.processes.len()
    }

    pub(crate) const fn connections(&self) -> usize {
        self.connections.len()
    }

    fn process(&self, process: usize) -> &OwnSegment {
        let SegmentSizes { cells, cell_bytes, numbers, .. } = self.sizes;
        self.processes[process].get_or_init(|| {
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
        })
    }

    fn side(&self, (connection, side): ConnectionSide) -> &LinkSegment {
        let SegmentSizes { cells, slots, .. } = self.sizes;
        let segment = || LinkSegment {
            line: Line::new(0),
            assist: AssistLine::empty(),
            end_mark: Word64::new(0),
            returns: several(cells, ReturnSlot::empty),
            fastbox: several(slots, FastboxSlot::empty),
        };
        &self.connections[connection].get_or_init(|| [segment(), segment()])[side]
    }

    /// The words of models are no memory: the simulator is compiled with them, but does not run.
    #[cfg(nemesia_loom)]
    fn payload(&self, process: usize) -> PayloadMut<'_> {
        let _ = self.process(process).base;
        PayloadMut::from_cells(&[])
    }

    #[cfg(not(nemesia_loom))]
    fn payload(&self, process: usize) -> PayloadMut<'_> {
        let SegmentSizes { cells, cell_bytes, .. } = self.sizes;
        // SAFETY: allocated with this length, initialised, and used only through such views, in one thread.
        unsafe { PayloadMut::from_raw(self.process(process).base, cells * cell_bytes) }
    }

    fn queue(&self, process: usize) -> CellQueue<'_> {
        let OwnSegment { entries, tail, .. } = self.process(process);
        CellQueue::new(entries, &tail.word)
    }

    /// Returns the mark of one side of a connection.
    pub(crate) fn end_mark(&self, side: ConnectionSide) -> EndMark<'_> {
        EndMark::new(&self.side(side).end_mark)
    }

    /// Returns the link of one side of a connection with a process, which knows this one by `number`.
    pub(crate) fn link(&self, (connection, side): ConnectionSide, peer: usize, number: u32) -> Link<'_> {
        let (own, its) = (self.side((connection, side)), self.side((connection, 1 - side)));
        let OwnSegment { headers, sleep, .. } = self.process(peer);
        let payload = self.payload(peer).as_read();
        let its_mark = self.end_mark((connection, 1 - side));
        let ends = Ends {
            outbound: FastboxSender::new(&own.fastbox, &its.line.word),
            inbound: FastboxReceiver::new(&its.fastbox, &own.line.word),
            cells: PeerPool::new(headers, payload, self.sizes.cell_bytes, its_mark),
            end_mark: self.end_mark((connection, side)),
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
    pub(crate) fn port<H: Host>(
        &self,
        process: usize,
        config: PortConfig,
        host: H,
    ) -> Option<SegmentPort<'_, H>> {
        let SegmentSizes { cells, cell_bytes, numbers, .. } = self.sizes;
        let records = vec![CellRecord::default(); cells];
        let headers = &self.process(process).headers;
        let pool = CellPool::new(headers, self.payload(process), cell_bytes, records)?;
        let inbox = Consumer::new(self.queue(process));
        Some(ShmPort::new(config, several(numbers, || None), pool, cells as u32, inbox, host))
    }
}
