//! Two ranks on lent memory in one thread: the whole engine, and both paths of the shared-memory port.

use core::ptr::NonNull;

use nemesia_core::engine::rma::{Access, Addressing, CompleteAt, ExposedRegion, Reply, Target, WINDOW};
use nemesia_core::engine::{Engine, Lent, Peer, PeerSelection, Request, Storage, Tuning};
use nemesia_core::matching::{Pattern, Source};
use nemesia_core::payload::{Exposed, RecvBuf, SendBuf};
use nemesia_core::shared::assist::{self, AssistLine, Pieces};
use nemesia_core::shared::fastbox::{FastboxReceiver, FastboxSender, FastboxSlot};
use nemesia_core::shared::layout::Line;
use nemesia_core::shared::pool::{
    CellHeader, CellPool, CellRecord, PeerPool, ReturnReceiver, ReturnSender, ReturnSlot,
};
use nemesia_core::shared::port::{Ends, Host, Link, PortConfig, ShmPort};
use nemesia_core::shared::queue::{CellQueue, Consumer, Producer};
use nemesia_core::shared::sleep::{Sleep, SleepWord};
use nemesia_core::slab;
use nemesia_core::store::Unit;
use nemesia_core::shared::end_mark::EndMark;
use nemesia_core::sync::{FenceMode, PayloadMut, Word64};

const CELLS: usize = 4;
const CELL_BYTES: usize = 256;
/// Larger than any packet, so that it needs several.
const MESSAGE: usize = 3 * CELL_BYTES;

/// The memory of one rank, and its inbox.
struct Memory {
    ack: Line,
    assist: AssistLine,
    returns: [ReturnSlot; CELLS],
    fastbox: [FastboxSlot; 4],
    headers: [CellHeader; CELLS],
    entries: [Word64; 2 * CELLS],
    tail: Line,
    end_mark: Word64,
    sleep: SleepWord,
}

impl Memory {
    fn new() -> Self {
        Self {
            ack: Line::new(0),
            assist: AssistLine::empty(),
            returns: core::array::from_fn(|_| ReturnSlot::empty()),
            fastbox: core::array::from_fn(|_| FastboxSlot::empty()),
            headers: core::array::from_fn(|_| CellHeader::empty()),
            entries: core::array::from_fn(|_| Word64::new(0)),
            tail: Line::new(0),
            end_mark: Word64::new(0),
            sleep: SleepWord::awake(),
        }
    }

    fn queue(&self) -> CellQueue<'_> {
        CellQueue::new(&self.entries, &self.tail.word)
    }
}

struct Nobody;

impl Host for Nobody {
    fn wake(&mut self, _: u32, _: &SleepWord, _: Sleep) {}
}

struct Arrays;

impl Storage for Arrays {
    type Requests = [slab::Slot<Request>; 4];
    type Peers = [Peer; 2];
    type Units = [Unit; 16];
    type Stored = [u32; 4];
    type Buckets = [slab::List; 4];
    type Regions = [slab::Slot<ExposedRegion>; 1];
    type Replies = [slab::Slot<Reply>; 2 * WINDOW as usize];
    type Selections = [PeerSelection; 1];
    type Handlers = ();
    type Trace = ();
}

type Rank<'a> = Engine<ShmPort<'a, Nobody, [Option<Link<'a>>; 2], [CellRecord; CELLS]>, Arrays>;

fn rank<'a>(me: u32, own: &'a Memory, peer: &'a Memory, cells: [PayloadMut<'a>; 2]) -> Option<Rank<'a>> {
    let [mine, theirs] = cells;
    let link = Link::new(
        me as u16,
        Ends {
            outbound: FastboxSender::new(&own.fastbox, &peer.ack.word),
            inbound: FastboxReceiver::new(&peer.fastbox, &own.ack.word),
            cells: PeerPool::new(&peer.headers, theirs.as_read(), CELL_BYTES, EndMark::new(&peer.end_mark)),
            end_mark: EndMark::new(&own.end_mark),
            give_back: ReturnSender::new(&own.returns),
            given_back: ReturnReceiver::new(&peer.returns),
            queue: Producer::new(peer.queue()),
            sleep: &peer.sleep,
            grant: &own.ack,
            granted: &peer.ack,
            assist: assist::AssistReceiver::new(&own.assist, &peer.assist),
            assist_sender: assist::AssistSender::new(&own.assist, &peer.assist),
        },
    );
    let links = if me == 0 { [None, Some(link)] } else { [Some(link), None] };
    let pool = CellPool::new(&own.headers, mine, CELL_BYTES, [CellRecord::default(); CELLS])?;
    let (fences, pieces) = (FenceMode::Symmetric, Pieces::default());
    let config = PortConfig {
        fastbox_limit: 8,
        eager_bytes: 0,
        fences,
        announce: true,
        pieces,
        stores: None,
        clocked: true,
    };
    let port = ShmPort::new(config, links, pool, CELLS as u32, Consumer::new(own.queue()), Nobody);
    let lent = Lent {
        requests: core::array::from_fn(|_| slab::Slot::default()),
        peers: core::array::from_fn(|_| Peer::default()),
        units: [[0; 64]; 16],
        stored: [0; 4],
        posted: [slab::List::new(); 4],
        regions: [slab::Slot::default()],
        replies: core::array::from_fn(|_| slab::Slot::default()),
        selections: [PeerSelection::default()],
        handlers: (),
        trace: (),
    };
    Engine::new(me, port, Tuning { eager_bytes: CELL_BYTES, ..Tuning::default() }, lent).ok()
}

/// Sends a small and a large message from rank 0 to rank 1; the large one's bytes come from `memory`. Returns
/// the sum of the received bytes.
///
/// # Safety
/// `memory` points to `length` bytes that nothing else uses until this function returns.
pub(crate) unsafe fn exchange(memory: NonNull<u8>, length: usize) -> Option<u64> {
    let pool = CELLS * CELL_BYTES;
    if length < 2 * pool + 2 * MESSAGE {
        return None;
    }
    // SAFETY: four disjoint parts of the range that the caller lends: two pools, and two buffers.
    let (zero, one, from, to) = unsafe {
        let part = |at| memory.add(at);
        let cells = |at| PayloadMut::from_raw(part(at), pool);
        (cells(0), cells(pool), part(2 * pool), part(2 * pool + MESSAGE))
    };
    let (memory_0, memory_1) = (Memory::new(), Memory::new());
    let mut sender = rank(0, &memory_0, &memory_1, [zero, one])?;
    let mut receiver = rank(1, &memory_1, &memory_0, [one, zero])?;
    let mut pattern = Pattern { source: Source::Any, context: 0, tag: 1, ignore: 0 };
    let mut small = [0; 8];
    // SAFETY: the buffers live, unused, until the engines are dropped at the end of this function.
    let (mut small_buf, mut large_buf, source) = unsafe {
        let small = RecvBuf::from_raw(small.as_mut_ptr(), small.len());
        (small, RecvBuf::from_raw(to.as_ptr(), MESSAGE), SendBuf::from_raw(from.as_ptr(), MESSAGE))
    };
    let first = receiver.irecv(pattern, &mut small_buf).ok()?;
    pattern.tag = 2;
    let second = receiver.irecv(pattern, &mut large_buf).ok()?;
    // SAFETY: the bytes outlive both operations.
    let large = sender.isend(1, 0, 2, unsafe { source.again() }).ok()?;
    if !sender.send_now(1, 0, 1, &7u64.to_le_bytes()) {
        return None;
    }
    for _ in 0..100 {
        sender.progress();
        receiver.progress();
    }
    let received = receiver.test(second)?.ok()?.len + receiver.test(first)?.ok()?.len;
    sender.test(large)?.ok()?;
    // SAFETY: as for the messages; the large message is complete, and its buffer is free.
    let memory = unsafe { Exposed::from_raw(to.as_ptr(), MESSAGE) };
    let region = receiver.expose(memory, Access::ReadWrite, 1, Addressing::Offset).ok()?;
    let key = receiver.remote_key(region)?;
    let target = Target { key: &key, offset: 0 };
    let put = sender.put(&target, source, true, CompleteAt::Target).ok()?;
    let flush = sender.flush(1).ok()?;
    for _ in 0..100 {
        sender.progress();
        receiver.progress();
    }
    sender.test(put)?.ok()?;
    sender.test(flush)?.ok()?;
    let notified = receiver.notifications(region)?;
    Some(notified + received as u64 + u64::from_le_bytes(small))
}
