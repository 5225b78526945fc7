//! The memory of a world in one process: each rank's two segments on the heap, seen as production sees mappings.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::boxed::Box;
use std::vec;
use std::vec::Vec;

use core::ptr::NonNull;

use super::Rng;
use crate::payload::{RecvBuf, SendBuf};
use crate::port::PeerId;
use crate::shared::fastbox::{Receiver, Sender, Slot};
use crate::shared::layout::{Extent, Geometry, HEADER_PAGE, Line};
use crate::shared::pool::{CellHeader, CellRecord, PeerPool, Pool, ReturnReceiver, ReturnSender, ReturnSlot};
use crate::shared::port::{Ends, Link, PortConfig, ShmPort, Waker};
use crate::shared::queue::{Consumer, Producer, Queue};
use crate::shared::sleep::SleepWord;
use crate::sync::{FenceMode, Payload, PayloadMut, Word64};

/// Types that consist of atomic words only, so that zeroed or scribbled memory is a valid value.
///
/// # Safety
/// Every bit pattern is valid, and every field may be written through a shared reference.
pub(crate) unsafe trait Shared {}
// SAFETY: made of `Word64` and `PayloadWord`.
unsafe impl Shared for Slot {}
// SAFETY: made of `Word64` and `PayloadWord`.
unsafe impl Shared for CellHeader {}
// SAFETY: a `Word32`.
unsafe impl Shared for ReturnSlot {}
// SAFETY: made of `Word64`.
unsafe impl Shared for Line {}
// SAFETY: made of `Word32`.
unsafe impl Shared for SleepWord {}
// SAFETY: an atomic.
unsafe impl Shared for Word64 {}
// SAFETY: made of `Word32` and `Word64`.
unsafe impl Shared for crate::shared::layout::SegmentHeader {}

/// Zeroed, page-aligned memory: what a mapping of anonymous memory is.
#[derive(Debug)]
pub(crate) struct Region {
    base: NonNull<u8>,
    layout: Layout,
}

impl Region {
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

    pub(crate) fn view<T: Shared>(&self, offset: usize, count: usize) -> &[T] {
        let base: NonNull<T> = self.extent().resolve(offset, count).unwrap();
        // SAFETY: `resolve` checked extent and alignment, `Shared` the type; the result borrows the region.
        unsafe { core::slice::from_raw_parts(base.as_ptr(), count) }
    }

    pub(crate) fn payload(&self, offset: usize, len: usize) -> PayloadMut<'_> {
        let base = self.extent().resolve(offset, len).unwrap();
        // SAFETY: in the region and writable; references to payload are only ever taken to scribble, as atomics,
        // from the one thread there is.
        unsafe { PayloadMut::from_raw(base, len) }
    }

    pub(crate) fn read_only(&self, offset: usize, len: usize) -> Payload<'_> {
        self.payload(offset, len).as_read()
    }

    /// Some word of the region, as whoever may write it sees it.
    pub(crate) fn word(&self, offset: usize) -> &Word64 {
        &self.view::<Word64>(offset & !7, 1)[0]
    }

    /// Changes one word in the range as an adversary would: wildly, or only a little.
    pub(crate) fn scribble(&self, rng: &mut Rng, from: usize, to: usize) {
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

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout; every view borrowed `self`.
        unsafe { dealloc(self.base.as_ptr(), self.layout) };
    }
}

/// Counts the wakes that the port asks for.
#[derive(Debug, Default)]
pub(crate) struct Bell {
    pub(crate) rung: Vec<PeerId>,
}

impl Waker for Bell {
    fn wake(&mut self, peer: PeerId, _: &SleepWord) {
        self.rung.push(peer);
    }
}

pub(crate) type TestPort<'a> = ShmPort<'a, Bell, Vec<Option<Link<'a>>>, Vec<CellRecord>>;

/// Both segments of every rank.
#[derive(Debug)]
pub(crate) struct Fabric {
    pub(crate) geometry: Geometry,
    own: Vec<Region>,
    inbox: Vec<Region>,
}

/// The smallest geometry that is valid.
pub(crate) const fn tiny(peers: u32) -> Geometry {
    Geometry { peers, cells: 4, cell_bytes: 256, fastbox_slots: 4 }
}

impl Fabric {
    pub(crate) fn new(geometry: Geometry) -> Self {
        geometry.validate().unwrap();
        let regions = |bytes| (0..geometry.peers).map(|_| Region::new(bytes)).collect();
        Self { geometry, own: regions(geometry.own().total), inbox: regions(geometry.inbox().total) }
    }

    pub(crate) fn own(&self, rank: PeerId) -> &Region {
        &self.own[rank as usize]
    }

    pub(crate) fn inbox(&self, rank: PeerId) -> &Region {
        &self.inbox[rank as usize]
    }

    /// The receive queue's entries and its tail hint.
    pub(crate) fn queue(&self, rank: PeerId) -> (&[Word64], &Word64) {
        let (layout, region) = (self.geometry.inbox(), self.inbox(rank));
        let entries = region.view(layout.entries, self.geometry.queue_entries() as usize);
        (entries, &region.view::<Line>(layout.tail, 1)[0].word)
    }

    pub(crate) fn sleep(&self, rank: PeerId) -> &SleepWord {
        &self.inbox(rank).view::<SleepWord>(self.geometry.inbox().sleep, 1)[0]
    }

    /// The header of a cell, as words.
    pub(crate) fn cell_words(&self, rank: PeerId, cell: u32) -> &[Word64] {
        self.own(rank).view(self.geometry.own().headers + cell as usize * size_of::<CellHeader>(), 8)
    }

    /// A port with the fastbox limit that production would give it.
    pub(crate) fn port(&self, rank: PeerId) -> TestPort<'_> {
        let most = crate::shared::fastbox::max_payload(self.geometry.fastbox_slots as usize);
        self.port_with_limit(rank, most)
    }

    pub(crate) fn port_with_limit(&self, rank: PeerId, fastbox_limit: usize) -> TestPort<'_> {
        let (g, layout) = (self.geometry, self.geometry.own());
        let links = (0..g.peers).map(|peer| (peer != rank).then(|| Link::new(self.ends(rank, peer))));
        let payload = self.own(rank).payload(layout.payload, g.cells as usize * g.cell_bytes as usize);
        let records = vec![CellRecord::default(); g.cells as usize];
        let headers = self.own(rank).view(layout.headers, g.cells as usize);
        let pool = Pool::new(headers, payload, g.cell_bytes as usize, records).unwrap();
        let (entries, tail) = self.queue(rank);
        let config = PortConfig { rank, fastbox_limit, fences: FenceMode::Symmetric };
        let consumer = Consumer::new(Queue::new(entries, tail));
        ShmPort::new(config, links.collect(), pool, g.cells, consumer, Bell::default())
    }

    fn ends(&self, me: PeerId, peer: PeerId) -> Ends<'_> {
        let (g, layout) = (self.geometry, self.geometry.own());
        let (entries, tail) = self.queue(peer);
        let payload_bytes = g.cells as usize * g.cell_bytes as usize;
        let theirs = self.own(peer).view(layout.headers, g.cells as usize);
        let payload = self.own(peer).read_only(layout.payload, payload_bytes);
        Ends {
            outbound: Sender::new(self.fastbox(me, peer), self.ack(peer, me)),
            inbound: Receiver::new(self.fastbox(peer, me), self.ack(me, peer)),
            cells: PeerPool::new(theirs, payload, g.cell_bytes as usize),
            give_back: ReturnSender::new(self.returns(me, peer)),
            given_back: ReturnReceiver::new(self.returns(peer, me)),
            queue: Producer::new(Queue::new(entries, tail)),
            sleep: self.sleep(peer),
        }
    }

    /// The fastbox from `from` to `to`.
    pub(crate) fn fastbox(&self, from: PeerId, to: PeerId) -> &[Slot] {
        let at = self.geometry.own().fastboxes + to as usize * self.geometry.fastbox_bytes();
        self.own(from).view(at, self.geometry.fastbox_slots as usize)
    }

    /// How far `reader` has read the fastbox of `writer`.
    pub(crate) fn ack(&self, reader: PeerId, writer: PeerId) -> &Word64 {
        let at = self.geometry.own().acks + writer as usize * size_of::<Line>();
        &self.own(reader).view::<Line>(at, 1)[0].word
    }

    /// The cells of `owner` that `reader` gives back.
    pub(crate) fn returns(&self, reader: PeerId, owner: PeerId) -> &[ReturnSlot] {
        let at = self.geometry.own().returns + owner as usize * self.geometry.return_bytes();
        self.own(reader).view(at, self.geometry.cells as usize)
    }

    /// A rank scribbles over a word of its own segment.
    pub(crate) fn scribble_own(&self, rng: &mut Rng, by: PeerId) {
        let own = self.geometry.own();
        // The payload is many words and no structure: most scribbles go below it.
        let end = if rng.one_in(8) { own.total } else { own.payload };
        self.own(by).scribble(rng, HEADER_PAGE, end);
    }

    /// Anyone scribbles over a word of some inbox.
    pub(crate) fn scribble_inbox(&self, rng: &mut Rng) {
        let inbox = self.geometry.inbox();
        let victim = rng.below(self.geometry.peers as usize) as PeerId;
        let entries_end = inbox.entries + self.geometry.queue_entries() as usize * 8;
        match rng.below(4) {
            0 => self.inbox(victim).scribble(rng, inbox.tail, inbox.tail + 8),
            1 => self.inbox(victim).scribble(rng, inbox.sleep, inbox.sleep + 8),
            _ => self.inbox(victim).scribble(rng, inbox.entries, entries_end),
        }
    }
}

/// Names a buffer of a [`Lender`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Loan(usize);

/// Keeps the buffers that engines use. Declare it before the engines, so that it is dropped after them.
#[derive(Debug, Default)]
pub(crate) struct Lender {
    buffers: Vec<Option<NonNull<[u8]>>>,
    vacant: Vec<usize>,
}

impl Lender {
    fn lend(&mut self, bytes: Vec<u8>) -> (Loan, NonNull<[u8]>) {
        let buffer = NonNull::from(Box::leak(bytes.into_boxed_slice()));
        let at = self.vacant.pop().unwrap_or(self.buffers.len());
        if at == self.buffers.len() {
            self.buffers.push(None);
        }
        self.buffers[at] = Some(buffer);
        (Loan(at), buffer)
    }

    pub(crate) fn send(&mut self, bytes: Vec<u8>) -> (Loan, SendBuf) {
        let len = bytes.len();
        let (loan, buffer) = self.lend(bytes);
        // SAFETY: the buffer is on the heap and unchanged until the loan ends.
        (loan, unsafe { SendBuf::from_raw(buffer.as_ptr().cast_const().cast(), len) })
    }

    /// `len` bytes of room, filled with 0xee.
    pub(crate) fn receive(&mut self, len: usize) -> (Loan, RecvBuf) {
        let (loan, buffer) = self.lend(vec![0xee; len]);
        // SAFETY: the buffer is on the heap, and nobody touches it until the loan ends.
        (loan, unsafe { RecvBuf::from_raw(buffer.as_ptr().cast(), len) })
    }

    /// Ends the loan: the request that used the buffer is complete.
    pub(crate) fn end(&mut self, loan: Loan) -> Vec<u8> {
        let buffer = self.buffers[loan.0].take().unwrap();
        self.vacant.push(loan.0);
        // SAFETY: leaked in `lend`, and the engine has forgotten it.
        unsafe { Box::from_raw(buffer.as_ptr()) }.into_vec()
    }
}

impl Drop for Lender {
    fn drop(&mut self) {
        for buffer in self.buffers.iter().flatten() {
            // SAFETY: leaked in `lend`; the engines are gone.
            drop(unsafe { Box::from_raw(buffer.as_ptr()) });
        }
    }
}
