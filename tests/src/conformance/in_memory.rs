//! Worlds in one process over the shared-memory port. What processes map are here boxes of one process, so
//! that one thread runs all ranks, and a seed repeats a run.

use std::ptr::NonNull;
use std::rc::Rc;

use nemesia_core::engine::Tuning;
use nemesia_core::payload::ReceiveList;
use nemesia_core::port::{AccessError, PeerId, RemoteRun};
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

use super::RunPlan;
use super::actor::Abilities;
use super::cases::{CaseFacts, script_of};
use super::engine::{EngineActor, Registry};
use super::world::play;
use crate::memory_port::Verdict;

/// The sizes of the shared structures, and which of them are used.
#[derive(Clone, Copy, Debug)]
pub struct MemoryShape {
    /// Cells of each rank, and their bytes.
    pub cells: usize,
    /// The payload bytes of a cell.
    pub cell_bytes: usize,
    /// The slots of a fastbox.
    pub slots: usize,
    /// Whether ranks copy from each other's memory.
    pub single_copy: bool,
    /// Whether fastboxes announce filled cells, instead of the receive queue.
    pub announce: bool,
}

/// What one rank writes for one peer.
#[derive(Debug)]
struct PairLines {
    ack: Line,
    assist: AssistLine,
    end_mark: Word64,
    returns: Vec<ReturnSlot>,
    fastbox: Vec<FastboxSlot>,
}

/// What one rank shares with all.
#[derive(Debug)]
struct RankMemory {
    pairs: Vec<PairLines>,
    headers: Vec<CellHeader>,
    entries: Vec<Word64>,
    tail: Line,
    sleep: SleepWord,
    /// The payload of the cells, used only through `base`.
    _payload: Box<[u64]>,
    base: NonNull<u8>,
}

/// The memory of a world.
#[derive(Debug)]
struct WorldMemory {
    shape: MemoryShape,
    ranks: Vec<RankMemory>,
}

fn several<T>(count: usize, make: impl FnMut() -> T) -> Vec<T> {
    std::iter::repeat_with(make).take(count).collect()
}

impl RankMemory {
    fn new(ranks: usize, shape: MemoryShape) -> Self {
        let MemoryShape { cells, cell_bytes, slots, .. } = shape;
        let pair = || PairLines {
            ack: Line::new(0),
            assist: AssistLine::empty(),
            end_mark: Word64::new(0),
            returns: several(cells, ReturnSlot::empty),
            fastbox: several(slots, FastboxSlot::empty),
        };
        let mut payload = vec![0_u64; cells * cell_bytes / 8].into_boxed_slice();
        let base = NonNull::from(&mut *payload).cast();
        Self {
            pairs: several(ranks, pair),
            headers: several(cells, CellHeader::empty),
            entries: several((ranks * cells).next_power_of_two(), || Word64::new(0)),
            tail: Line::new(0),
            sleep: SleepWord::awake(),
            _payload: payload,
            base,
        }
    }

    fn queue(&self) -> CellQueue<'_> {
        CellQueue::new(&self.entries, &self.tail.word)
    }

    fn payload(&self, shape: MemoryShape) -> PayloadMut<'_> {
        // SAFETY: allocated with this length, initialised, and used only through such views, in one thread.
        unsafe { PayloadMut::from_raw(self.base, shape.cells * shape.cell_bytes) }
    }
}

/// The kernel's part: one process reads the memory of another. Here both are this process, and the kernel
/// still checks every address. The memory of a dead rank is gone.
#[derive(Debug)]
pub struct OwnKernel {
    single_copy: bool,
    registry: Rc<Registry>,
}

fn vector(base: *mut u8, len: usize) -> libc::iovec {
    libc::iovec { iov_base: base.cast(), iov_len: len }
}

impl Host for OwnKernel {
    fn wake(&mut self, _: PeerId, _: &SleepWord, _: Sleep) {}

    fn can_pull(&self, _: PeerId) -> bool {
        self.single_copy
    }

    fn pull(&mut self, peer: PeerId, address: u64, to: &mut [u8]) -> Result<(), AccessError> {
        if self.registry.is_dead(peer as usize) {
            return Err(AccessError::Refused);
        }
        let (mine, theirs) = (vector(to.as_mut_ptr(), to.len()), vector(address as *mut u8, to.len()));
        // SAFETY: the kernel writes only to `to`, which is borrowed for the call, and checks the other address.
        let done =
            unsafe { libc::process_vm_readv(libc::getpid(), &raw const mine, 1, &raw const theirs, 1, 0) };
        if usize::try_from(done) == Ok(to.len()) { Ok(()) } else { Err(AccessError::Refused) }
    }

    fn pull_runs(
        &mut self,
        peer: PeerId,
        from: impl Iterator<Item = RemoteRun>,
        to: &mut ReceiveList<'_>,
    ) -> Result<(), AccessError> {
        if self.registry.is_dead(peer as usize) {
            return Err(AccessError::Refused);
        }
        let theirs: Vec<_> = from.map(|run| vector(run.address as *mut u8, run.len as usize)).collect();
        let mine: Vec<_> = to.pieces().iter().map(|piece| vector(piece.base, piece.len)).collect();
        let counts = [mine.len(), theirs.len()].map(|count| count as libc::c_ulong);
        // SAFETY: the kernel writes only to the pieces of `to`, which allow it, and checks the other addresses.
        let done = unsafe {
            libc::process_vm_readv(libc::getpid(), mine.as_ptr(), counts[0], theirs.as_ptr(), counts[1], 0)
        };
        if usize::try_from(done) == Ok(to.len()) { Ok(()) } else { Err(AccessError::Refused) }
    }

    fn push(&mut self, peer: PeerId, address: u64, from: &[u8]) -> bool {
        if self.registry.is_dead(peer as usize) {
            return false;
        }
        let base = from.as_ptr().cast_mut();
        let (mine, theirs) = (vector(base, from.len()), vector(address as *mut u8, from.len()));
        // SAFETY: the kernel only reads `from`. The engine pushes only into the buffer of a receive that is under
        // way, to which no reference exists.
        let done =
            unsafe { libc::process_vm_writev(libc::getpid(), &raw const mine, 1, &raw const theirs, 1, 0) };
        usize::try_from(done) == Ok(from.len())
    }
}

/// The port of a rank.
type MemoryWorldPort<'a> = ShmPort<'a, OwnKernel, Vec<Option<Link<'a>>>, Vec<CellRecord>>;

/// An actor over shared memory.
type MemoryActor<'a> = EngineActor<MemoryWorldPort<'a>, ()>;

/// The abilities of these worlds.
pub const ABILITIES: Abilities = Abilities { deaths: true, endings: true, restarts: false };

impl WorldMemory {
    fn ends(&self, me: usize, peer: usize) -> Ends<'_> {
        let (own, theirs) = (&self.ranks[me].pairs[peer], &self.ranks[peer].pairs[me]);
        let RankMemory { headers, sleep, .. } = &self.ranks[peer];
        let payload = self.ranks[peer].payload(self.shape).as_read();
        Ends {
            outbound: FastboxSender::new(&own.fastbox, &theirs.ack.word),
            inbound: FastboxReceiver::new(&theirs.fastbox, &own.ack.word),
            cells: PeerPool::new(headers, payload, self.shape.cell_bytes, EndMark::new(&theirs.end_mark)),
            end_mark: EndMark::new(&own.end_mark),
            give_back: ReturnSender::new(&own.returns),
            given_back: ReturnReceiver::new(&theirs.returns),
            queue: Producer::new(self.ranks[peer].queue()),
            sleep,
            grant: &own.ack,
            granted: &theirs.ack,
            assist: AssistReceiver::new(&own.assist, &theirs.assist),
            assist_sender: AssistSender::new(&own.assist, &theirs.assist),
        }
    }

    fn port(&self, rank: usize, registry: &Rc<Registry>) -> Result<MemoryWorldPort<'_>, String> {
        let MemoryShape { cells, cell_bytes, slots, single_copy, announce } = self.shape;
        let link = |peer| (peer != rank).then(|| Link::new(rank as u16, self.ends(rank, peer)));
        let links = (0..self.ranks.len()).map(link).collect();
        let (own, records) = (&self.ranks[rank], vec![CellRecord::default(); cells]);
        let pool = CellPool::new(&own.headers, own.payload(self.shape), cell_bytes, records);
        let pool = pool.ok_or("the cells do not suit the payload")?;
        let config = PortConfig {
            fastbox_limit: max_payload(slots),
            eager_bytes: if rank.is_multiple_of(2) { 0 } else { usize::MAX },
            fences: FenceMode::Symmetric,
            announce,
            pieces: Pieces::new(4 << 10, 16 << 10),
            stores: None,
            // The protocol would depend on the time, and a seed would not repeat a run.
            clocked: false,
        };
        let kernel = OwnKernel { single_copy, registry: Rc::clone(registry) };
        Ok(ShmPort::new(config, links, pool, cells as u32, Consumer::new(own.queue()), kernel))
    }
}

/// Runs a case on a new world of `ranks` ranks.
///
/// # Errors
/// What the case has found.
pub fn in_memory(case: CaseFacts, plan: RunPlan, shape: MemoryShape, ranks: usize) -> Verdict {
    let memory = WorldMemory { shape, ranks: several(ranks, || RankMemory::new(ranks, shape)) };
    let registry = Registry::new(ranks, ABILITIES, true);
    let mut actors: Vec<MemoryActor<'_>> = Vec::new();
    for rank in 0..ranks {
        let port = memory.port(rank, &registry)?;
        actors.push(EngineActor::new(rank as u32, (port, ()), Tuning::default(), &registry)?);
    }
    play(&script_of(case.name)?, plan, actors, &registry, &mut ())
}
