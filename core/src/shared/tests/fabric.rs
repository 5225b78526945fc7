//! The shared memory of a world in one process: all segments on the heap, accessed like mappings.

mod memory;

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::cell::RefCell;
use std::rc::Rc;
use std::vec;
use std::vec::Vec;

use core::ptr::NonNull;

pub(crate) use memory::{FabricMemory, Reading, WakeLog};

use super::Rng;
use crate::payload::Exposed;
use crate::port::PeerId;
use crate::shared::assist::{self, AssistLine, Pieces};
use crate::shared::end_mark::EndMark;
use crate::shared::fastbox::{FastboxReceiver, FastboxSender, FastboxSlot};
use crate::shared::layout::{
    Extent, Geometry, HEADER_PAGE, Line, LinkLayout, OwnLayout, SegmentHeader, queue_of,
};
use crate::shared::pool::{
    CellHeader, CellPool, CellRecord, PeerPool, ReturnReceiver, ReturnSender, ReturnSlot,
};
use crate::shared::port::{Ends, Link, PortConfig, ShmPort, Stores};
use crate::shared::queue::{CellQueue, Consumer, Producer};
use crate::shared::sleep::SleepWord;
use crate::sync::{FenceMode, Payload, PayloadMut, Word64};

mod lender;

pub(crate) use lender::{Lender, Loan};

/// Types that consist only of atomic words, so that zeroed or corrupt memory is a valid value.
///
/// # Safety
/// Every bit pattern is valid, and every field may be written through a shared reference.
pub(crate) unsafe trait SharedType {}
// SAFETY: made of `Word64` and `PayloadWord`.
unsafe impl SharedType for FastboxSlot {}
// SAFETY: made of `Word64` and `PayloadWord`.
unsafe impl SharedType for CellHeader {}
// SAFETY: a `Word32`.
unsafe impl SharedType for ReturnSlot {}
// SAFETY: made of `Word64`.
unsafe impl SharedType for Line {}
// SAFETY: made of `Word64`.
unsafe impl SharedType for AssistLine {}
// SAFETY: made of `Word32`.
unsafe impl SharedType for SleepWord {}
// SAFETY: an atomic.
unsafe impl SharedType for Word64 {}
// SAFETY: made of `Word32` and `Word64`.
unsafe impl SharedType for SegmentHeader {}

/// Zeroed, page-aligned memory, like a mapping of anonymous memory.
#[derive(Debug)]
pub(crate) struct FabricRegion {
    base: NonNull<u8>,
    layout: Layout,
}

impl FabricRegion {
    pub(crate) fn new(bytes: usize) -> Self {
        let layout = Layout::from_size_align(bytes.next_multiple_of(HEADER_PAGE), HEADER_PAGE).unwrap();
        // SAFETY: the layout's size is not zero in any test.
        let base = unsafe { alloc_zeroed(layout) };
        Self { base: NonNull::new(base).unwrap_or_else(|| handle_alloc_error(layout)), layout }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.layout.size()
    }

    pub(crate) fn extent(&self) -> Extent {
        // SAFETY: the memory lives as long as `self`, and nothing in the tests outlives it.
        unsafe { Extent::new(self.base, self.bytes(), self.bytes()) }.unwrap()
    }

    pub(crate) fn view<T: SharedType>(&self, offset: usize, count: usize) -> &[T] {
        let base: NonNull<T> = self.extent().resolve(offset, count).unwrap();
        // SAFETY: `resolve` checked extent and alignment, `SharedType` the type; the result borrows the region.
        unsafe { core::slice::from_raw_parts(base.as_ptr(), count) }
    }

    pub(crate) fn payload(&self, offset: usize, len: usize) -> PayloadMut<'_> {
        let base = self.extent().resolve(offset, len).unwrap();
        // SAFETY: in the region and writable. Only the one thread takes references, as atomics, to corrupt it.
        unsafe { PayloadMut::from_raw(base, len) }
    }

    pub(crate) fn read_only(&self, offset: usize, len: usize) -> Payload<'_> {
        self.payload(offset, len).as_read()
    }

    /// Returns a word of the region for a process that may write it.
    pub(crate) fn word(&self, offset: usize) -> &Word64 {
        &self.view::<Word64>(offset & !7, 1)[0]
    }

    /// Returns the whole region, to be exposed to peers.
    pub(crate) fn exposed(&self) -> Exposed {
        // SAFETY: allocated, zeroed and writable. The user drops the engine first, and accesses the memory only by
        // `copy` and `fill`, between calls of the engine.
        unsafe { Exposed::from_raw(self.base.as_ptr(), self.bytes()) }
    }

    /// Returns a copy of the bytes.
    pub(crate) fn copy(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.bytes()];
        assert!(self.read_only(0, self.bytes()).read(0, &mut bytes));
        bytes
    }

    /// Writes bytes at the start of the region.
    pub(crate) fn fill(&self, bytes: &[u8]) {
        assert!(self.payload(0, bytes.len()).write(0, bytes));
    }

    /// Corrupts one word in the range: with a random value, or by a small change.
    pub(crate) fn corrupt(&self, rng: &mut Rng, from: usize, to: usize) {
        let word = self.word(from + rng.below(to - from));
        let now = word.load_relaxed();
        let other = self.word(from + rng.below(to - from)).load_relaxed();
        let value = match rng.below(10) {
            0 => rng.next(),
            1 => rng.next() >> 48,
            2 => 0,
            3 => u64::MAX,
            4 => now.wrapping_add(1),
            5 => now.wrapping_sub(1),
            6 => other,
            7 => now.wrapping_add(1 << 32),
            8 => now.wrapping_add(1 << 16),
            _ => now ^ 1 << rng.below(64),
        };
        word.store_relaxed(value);
    }
}

impl Drop for FabricRegion {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout; every view borrowed `self`.
        unsafe { dealloc(self.base.as_ptr(), self.layout) };
    }
}

pub(crate) type TestPort<'a> = ShmPort<'a, WakeLog, Vec<Option<Link<'a>>>, Vec<CellRecord>>;

/// The sizes of a world.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WorldShape {
    pub(crate) peers: u32,
    pub(crate) cells: u32,
    pub(crate) cell_bytes: u32,
    pub(crate) fastbox_slots: u32,
}

impl WorldShape {
    pub(crate) const fn geometry(self) -> Geometry {
        let Self { cells, cell_bytes, fastbox_slots, .. } = self;
        Geometry { cells, cell_bytes, fastbox_slots }
    }

    pub(crate) fn own(self) -> OwnLayout {
        self.geometry().own()
    }

    pub(crate) const fn link(self) -> LinkLayout {
        self.geometry().link()
    }
}

/// All segments of every rank. Each rank knows each other one by its rank.
#[derive(Debug)]
pub(crate) struct Fabric {
    pub(crate) geometry: WorldShape,
    own: Vec<FabricRegion>,
    /// By rank and queue.
    inboxes: Vec<Vec<FabricRegion>>,
    /// By owner and peer.
    links: Vec<Vec<FabricRegion>>,
    memory: Rc<RefCell<FabricMemory>>,
    /// Whether each port has a memory of its own, with a clock, so that ports may be in different threads.
    apart: bool,
    announce: bool,
    stores: Option<Stores>,
}

/// Returns the smallest valid sizes.
pub(crate) const fn tiny(peers: u32) -> WorldShape {
    WorldShape { peers, cells: 4, cell_bytes: 256, fastbox_slots: 4 }
}

impl Fabric {
    pub(crate) fn new(geometry: WorldShape) -> Self {
        let sizes = geometry.geometry();
        sizes.validate().unwrap();
        let regions = |bytes| (0..geometry.peers).map(|_| FabricRegion::new(bytes)).collect();
        let own = regions(sizes.own().total);
        let links = (0..geometry.peers).map(|_| regions(sizes.link().total)).collect();
        let queues = queue_of(geometry.peers.saturating_sub(1)) + 1;
        let inbox = |_| (0..queues).map(|queue| FabricRegion::new(sizes.inbox(queue).total)).collect();
        let inboxes = (0..geometry.peers).map(inbox).collect();
        Self {
            geometry,
            own,
            inboxes,
            links,
            memory: Rc::new(RefCell::new(FabricMemory::new(None))),
            apart: false,
            announce: true,
            stores: None,
        }
    }

    /// Returns a fabric whose cells are announced through the receive queue.
    pub(crate) fn queueing(geometry: WorldShape) -> Self {
        Self { announce: false, ..Self::new(geometry) }
    }

    /// Returns a fabric whose ranks fill their cells by this copy policy.
    pub(crate) fn storing(geometry: WorldShape, stores: Option<Stores>) -> Self {
        Self { stores, ..Self::new(geometry) }
    }

    /// As [`Fabric::storing`], for ports in different threads.
    pub(crate) fn apart(geometry: WorldShape, stores: Option<Stores>) -> Self {
        Self { apart: true, ..Self::storing(geometry, stores) }
    }

    /// Returns a fabric whose ranks have this access to each other's memory.
    pub(crate) fn reading(geometry: WorldShape, reading: Reading, seed: u64) -> Self {
        let fabric = Self::new(geometry);
        fabric.with_memory(|memory| {
            memory.reading = reading;
            memory.rng = Rng::new(seed);
        });
        fabric
    }

    /// Calls `with` on the memory that ranks may read.
    pub(crate) fn with_memory<T>(&self, with: impl FnOnce(&mut FabricMemory) -> T) -> T {
        with(&mut self.memory.borrow_mut())
    }

    /// Returns the owner of the buffers of the ranks of this fabric.
    pub(crate) fn lender(&self) -> Lender {
        Lender {
            buffers: vec![],
            vacant: vec![],
            memory: Rc::clone(&self.memory),
            lists: vec![],
            random: 0,
            header: 0,
            equal: 0,
        }
    }

    pub(crate) fn own(&self, rank: PeerId) -> &FabricRegion {
        &self.own[rank as usize]
    }

    /// Returns the segment of the first receive queue.
    pub(crate) fn inbox(&self, rank: PeerId) -> &FabricRegion {
        &self.inboxes[rank as usize][0]
    }

    /// Returns the segment in which `owner` keeps its structures for `peer`.
    pub(crate) fn link_segment(&self, owner: PeerId, peer: PeerId) -> &FabricRegion {
        &self.links[owner as usize][peer as usize]
    }

    /// Returns the first receive queue's entries and its tail hint.
    pub(crate) fn queue(&self, rank: PeerId) -> (&[Word64], &Word64) {
        self.queue_at(rank, 0)
    }

    fn queue_at(&self, rank: PeerId, queue: usize) -> (&[Word64], &Word64) {
        let layout = self.geometry.geometry().inbox(queue);
        let region = &self.inboxes[rank as usize][queue];
        (region.view(layout.entries, layout.count), &region.view::<Line>(layout.tail, 1)[0].word)
    }

    pub(crate) fn sleep(&self, rank: PeerId) -> &SleepWord {
        &self.inbox(rank).view::<SleepWord>(self.geometry.geometry().inbox(0).sleep, 1)[0]
    }

    /// Returns the header of a cell, as words.
    pub(crate) fn cell_words(&self, rank: PeerId, cell: u32) -> &[Word64] {
        self.own(rank).view(self.geometry.own().headers + cell as usize * size_of::<CellHeader>(), 8)
    }

    /// Returns a port with the fastbox limit of production.
    pub(crate) fn port(&self, rank: PeerId) -> TestPort<'_> {
        let most = crate::shared::fastbox::max_payload(self.geometry.fastbox_slots as usize);
        self.port_with_limit(rank, most)
    }

    pub(crate) fn port_with_limit(&self, rank: PeerId, fastbox_limit: usize) -> TestPort<'_> {
        let link = |peer| (peer != rank).then(|| self.link(rank, peer));
        self.port_over(rank, fastbox_limit, (0..self.geometry.peers).map(link).collect())
    }

    /// Returns a port without connections.
    pub(crate) fn port_alone(&self, rank: PeerId) -> TestPort<'_> {
        let most = crate::shared::fastbox::max_payload(self.geometry.fastbox_slots as usize);
        self.port_over(rank, most, (0..self.geometry.peers).map(|_| None).collect())
    }

    /// Resets the segments of a rank to those of a new process. The rank's ports, and the links of others to it, no
    /// longer exist.
    pub(crate) fn wipe(&self, rank: PeerId) {
        let links = self.links.iter().map(|links| &links[rank as usize]).chain(&self.links[rank as usize]);
        for region in links.chain(&self.inboxes[rank as usize]).chain([self.own(rank)]) {
            (0..region.bytes()).step_by(8).for_each(|at| region.word(at).store_relaxed(0));
        }
    }

    fn port_over<'a>(
        &'a self,
        rank: PeerId,
        fastbox_limit: usize,
        links: Vec<Option<Link<'a>>>,
    ) -> TestPort<'a> {
        let (g, layout) = (self.geometry, self.geometry.own());
        let payload = self.own(rank).payload(layout.payload, g.cells as usize * g.cell_bytes as usize);
        let records = vec![CellRecord::default(); g.cells as usize];
        let headers = self.own(rank).view(layout.headers, g.cells as usize);
        let pool = CellPool::new(headers, payload, g.cell_bytes as usize, records).unwrap();
        let (entries, tail) = self.queue(rank);
        let announce = self.announce;
        // Each side has its own bounds.
        let pieces = Pieces::new(128 << rank, 512 << rank);
        let config = PortConfig {
            fastbox_limit,
            eager_bytes: if rank.is_multiple_of(2) { 0 } else { usize::MAX },
            fences: FenceMode::Symmetric,
            announce,
            pieces,
            stores: self.stores,
            clocked: true,
        };
        let consumer = Consumer::new(CellQueue::new(entries, tail));
        let memory = match self.apart {
            true => Rc::new(RefCell::new(FabricMemory::new(Some(1)))),
            false => Rc::clone(&self.memory),
        };
        let wakes = WakeLog { rung: vec![], memory, refused: vec![] };
        let mut port = ShmPort::new(config, links, pool, g.cells, consumer, wakes);
        for queue in 1..self.inboxes[rank as usize].len() {
            let (entries, tail) = self.queue_at(rank, queue);
            assert!(port.add_queue(Consumer::new(CellQueue::new(entries, tail))));
        }
        port
    }

    /// Returns a new link. Its segments must be new.
    pub(crate) fn link(&self, me: PeerId, peer: PeerId) -> Link<'_> {
        Link::new(me as u16, self.ends(me, peer))
    }

    pub(crate) fn ends(&self, me: PeerId, peer: PeerId) -> Ends<'_> {
        let (g, layout) = (self.geometry, self.geometry.own());
        let (entries, tail) = self.queue_at(peer, queue_of(me));
        let payload_bytes = g.cells as usize * g.cell_bytes as usize;
        let theirs = self.own(peer).view(layout.headers, g.cells as usize);
        let payload = self.own(peer).read_only(layout.payload, payload_bytes);
        Ends {
            outbound: FastboxSender::new(self.fastbox(me, peer), self.ack(peer, me)),
            inbound: FastboxReceiver::new(self.fastbox(peer, me), self.ack(me, peer)),
            cells: PeerPool::new(theirs, payload, g.cell_bytes as usize, self.end_mark(peer, me)),
            end_mark: self.end_mark(me, peer),
            give_back: ReturnSender::new(self.returns(me, peer)),
            given_back: ReturnReceiver::new(self.returns(peer, me)),
            queue: Producer::new(CellQueue::new(entries, tail)),
            sleep: self.sleep(peer),
            grant: self.line(me, peer),
            granted: self.line(peer, me),
            assist: assist::AssistReceiver::new(self.assist(me, peer), self.assist(peer, me)),
            assist_sender: assist::AssistSender::new(self.assist(me, peer), self.assist(peer, me)),
        }
    }

    /// Returns the words of the fastbox from `from` to `to`, four a slot.
    pub(crate) fn fastbox_words(&self, from: PeerId, to: PeerId) -> &[Word64] {
        let at = self.geometry.link().fastbox;
        self.link_segment(from, to).view(at, self.geometry.fastbox_slots as usize * 8)
    }

    /// Returns the fastbox from `from` to `to`.
    pub(crate) fn fastbox(&self, from: PeerId, to: PeerId) -> &[FastboxSlot] {
        let at = self.geometry.link().fastbox;
        self.link_segment(from, to).view(at, self.geometry.fastbox_slots as usize)
    }

    /// Returns the line that `reader` writes for `writer`: its position in the fastbox, and the credit.
    pub(crate) fn line(&self, reader: PeerId, writer: PeerId) -> &Line {
        &self.link_segment(reader, writer).view::<Line>(self.geometry.link().ack, 1)[0]
    }

    /// Returns the mark by which `owner` takes back the cells that `peer` holds.
    pub(crate) fn end_mark(&self, owner: PeerId, peer: PeerId) -> EndMark<'_> {
        EndMark::new(self.link_segment(owner, peer).view::<SegmentHeader>(0, 1)[0].end_mark())
    }

    /// Returns the share line of `rank` for `peer`.
    pub(crate) fn assist(&self, rank: PeerId, peer: PeerId) -> &AssistLine {
        &self.link_segment(rank, peer).view::<AssistLine>(self.geometry.link().assist_line, 1)[0]
    }

    /// Returns the position of `reader` in the fastbox of `writer`.
    pub(crate) fn ack(&self, reader: PeerId, writer: PeerId) -> &Word64 {
        &self.line(reader, writer).word
    }

    /// Returns the ring by which `reader` returns the cells of `owner`.
    pub(crate) fn returns(&self, reader: PeerId, owner: PeerId) -> &[ReturnSlot] {
        self.link_segment(reader, owner).view(self.geometry.link().returns, self.geometry.cells as usize)
    }

    /// Corrupts a word that a rank owns.
    pub(crate) fn corrupt_own(&self, rng: &mut Rng, by: PeerId) {
        let own = self.geometry.own();
        // The payload has many words and no structure, so most corruptions hit other parts.
        match rng.below(8) {
            0 => self.own(by).corrupt(rng, HEADER_PAGE, own.total),
            1 | 2 => self.own(by).corrupt(rng, HEADER_PAGE, own.payload),
            _ => {
                let (peer, link) = (rng.below(self.geometry.peers as usize) as PeerId, self.geometry.link());
                self.link_segment(by, peer).corrupt(rng, link.ack - 8, link.total);
            }
        }
    }

    /// Corrupts a word of some inbox.
    pub(crate) fn corrupt_inbox(&self, rng: &mut Rng) {
        let inbox = self.geometry.geometry().inbox(0);
        let victim = rng.below(self.geometry.peers as usize) as PeerId;
        match rng.below(4) {
            0 => self.inbox(victim).corrupt(rng, inbox.tail, inbox.tail + 8),
            1 => self.inbox(victim).corrupt(rng, inbox.sleep, inbox.sleep + 8),
            _ => self.inbox(victim).corrupt(rng, inbox.entries, inbox.entries + inbox.count * 8),
        }
    }
}
