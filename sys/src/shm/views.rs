//! Typed views of mapped segments. All offsets come from our own geometry, none from shared memory.
//!
//! # Why the views may be `'static`
//! Their type is `'static` because a structure cannot borrow from its own field. This module alone ensures that
//! they do not outlive their memory: a view leaves this module only in one value with the mapping of its
//! segment, and the value cannot be taken apart outside of it.
//!
//! | value | views | mapping |
//! |---|---|---|
//! | [`Port`] | of our own segments, and of each peer that is or was linked | [`Mappings`], in the port's
//! [`Kernel`] |
//! | [`NewLink`] | of both sides' segments | the peer's [`Pair`], and ours |
//! | [`OwnSleep`] | the word by which peers wake us | our [`Pair`] |
//!
//! Methods of these values make all uses of a view. They borrow the value, so the mappings are alive. The order
//! in which fields are dropped does not matter: dropping a view has no effect, which an assertion below checks
//! at compile time. A peer's segment is unmapped early only by [`NewLink::open`], after the port has closed its
//! link with that peer.

use std::mem::needs_drop;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;

use nemesia_core::shared::assist::{self, AssistLine};
use nemesia_core::shared::fastbox::{FastboxReceiver, FastboxSender, FastboxSlot};
use nemesia_core::shared::layout::{Extent, Geometry, LayoutError, Line, SegmentHeader};
use nemesia_core::shared::pool::{
    CellHeader, CellPool, CellRecord, PeerPool, ReturnReceiver, ReturnSender, ReturnSlot,
};
use nemesia_core::shared::port::{Ends, Link, PortConfig, ShmPort};
use nemesia_core::shared::queue::{CellQueue, Consumer, Producer};
use nemesia_core::shared::sleep::SleepWord;
use nemesia_core::sync::{Payload, PayloadMut, Word64};

use super::links::Links;
use super::{Kernel, Pair, Port};
use crate::os::{Access, ProcessOrigin, Segment};

// See the module's documentation.
const _: () = assert!(!needs_drop::<Option<Link<'static>>>());
const _: () = assert!(!needs_drop::<Consumer<'static>>());
const _: () = assert!(!needs_drop::<CellPool<'static, [CellRecord; 1]>>());

/// The segments into which the views of a port point.
#[derive(Debug)]
pub(crate) struct Mappings {
    ours: Arc<Pair>,
    /// One element per rank: the segments of each peer that is or was linked.
    peers: Vec<Option<Pair>>,
}

impl Mappings {
    /// Keeps all segments from being unmapped when this value is dropped. In a forked child they are not
    /// mapped, and other memory may be at their addresses.
    pub(super) fn leave_to_parent(&mut self) {
        std::mem::forget(std::mem::take(&mut self.peers));
        std::mem::forget(Arc::clone(&self.ours));
    }

    /// Returns no mappings, for a kernel without a port.
    #[cfg(all(test, feature = "tracing"))]
    pub(super) fn of(ours: Arc<Pair>) -> Self {
        Self { ours, peers: Vec::new() }
    }
}

/// The word by which peers wake us.
#[derive(Clone, Debug)]
pub(crate) struct OwnSleep {
    word: &'static SleepWord,
    _ours: Arc<Pair>,
}

impl OwnSleep {
    pub(super) fn new(ours: &Arc<Pair>, geometry: &Geometry) -> Result<Self, LayoutError> {
        Ok(Self { word: inbox(&ours.inbox, geometry)?.sleep, _ours: Arc::clone(ours) })
    }
}

impl Deref for OwnSleep {
    type Target = SleepWord;

    /// The reference lives no longer than the borrow of this value, which keeps the word mapped.
    fn deref(&self) -> &SleepWord {
        self.word
    }
}

/// The parts of a new link, with a peer to which the port has none.
#[derive(Debug)]
pub(super) struct NewLink {
    ends: Ends<'static>,
    theirs: Pair,
    ours: Arc<Pair>,
}

impl NewLink {
    pub(super) fn new(
        (me, peer): (u32, u32),
        geometry: &Geometry,
        ours: &Arc<Pair>,
        theirs: Pair,
    ) -> Result<Self, LayoutError> {
        Ok(Self { ends: ends(me, peer, geometry, ours, &theirs)?, theirs, ours: Arc::clone(ours) })
    }

    /// Links the port with the peer, and unmaps the segments of its predecessor: the predecessor's link, the
    /// only holder of their views, is closed, because the port refuses otherwise. If the port refuses, or is
    /// not over the same segments of ours, nothing changes.
    pub(super) fn open(self, port: &mut Port, peer: u32) {
        let Self { ends, theirs, ours } = self;
        let mappings = &port.host_mut().mappings;
        if !Arc::ptr_eq(&mappings.ours, &ours) || mappings.peers.len() <= peer as usize {
            return;
        }
        if port.open(peer, ends) {
            port.host_mut().mappings.peers[peer as usize] = Some(theirs);
        }
    }
}

fn extent(segment: &Segment, want: usize) -> Result<Extent, LayoutError> {
    // SAFETY: the segment is mapped readable until it is dropped; the pointers resolved here are stored
    // together with it (see the module's documentation).
    unsafe { Extent::new(segment.as_ptr(), segment.len(), want) }
}

/// Returns `count` values at an offset. `T` is one of the core's types of shared words.
///
/// # Safety
/// `T` consists of atomic words only, so that any bytes are valid and other processes may write them; the segment
/// stays mapped while the view is used.
unsafe fn view<T>(extent: &Extent, offset: usize, count: usize) -> Result<&'static [T], LayoutError> {
    let base: NonNull<T> = extent.resolve(offset, count)?;
    // SAFETY: `resolve` checked extent and alignment; the caller vouches for type and lifetime.
    Ok(unsafe { std::slice::from_raw_parts(base.as_ptr(), count) })
}

/// Returns the header of a segment.
pub(super) fn header(segment: &Segment) -> Result<&SegmentHeader, LayoutError> {
    let extent = extent(segment, size_of::<SegmentHeader>())?;
    // SAFETY: a header is atomic words; the result borrows the segment, so it is mapped.
    Ok(unsafe { &view::<SegmentHeader>(&extent, 0, 1)?[0] })
}

/// The parts of an inbox.
struct Inbox {
    queue: CellQueue<'static>,
    sleep: &'static SleepWord,
}

fn inbox(segment: &Segment, geometry: &Geometry) -> Result<Inbox, LayoutError> {
    let layout = geometry.inbox();
    let extent = extent(segment, layout.total)?;
    // SAFETY: all three are atomic words; the callers keep them with the mapping.
    unsafe {
        let tail = &view::<Line>(&extent, layout.tail, 1)?[0].word;
        let sleep = &view::<SleepWord>(&extent, layout.sleep, 1)?[0];
        let entries = view::<Word64>(&extent, layout.entries, geometry.queue_entries() as usize)?;
        Ok(Inbox { queue: CellQueue::new(entries, tail), sleep })
    }
}

/// The cells of an own segment, and its parts that concern one peer.
struct Own {
    acks: &'static [Line],
    assist: &'static [AssistLine],
    returns: &'static [ReturnSlot],
    fastbox: &'static [FastboxSlot],
    headers: &'static [CellHeader],
    payload: NonNull<u8>,
    payload_bytes: usize,
}

/// Returns the parts of `segment` that concern `peer`.
fn own(segment: &Segment, geometry: &Geometry, peer: u32) -> Result<Own, LayoutError> {
    let layout = geometry.own();
    let extent = extent(segment, layout.total)?;
    let (peer, cells) = (peer as usize, geometry.cells as usize);
    let payload_bytes = cells * geometry.cell_bytes as usize;
    // SAFETY: all are atomic words; the callers keep them with the mapping.
    unsafe {
        Ok(Own {
            acks: view(&extent, layout.acks + peer * size_of::<Line>(), 1)?,
            assist: view(&extent, layout.assist_lines + peer * size_of::<AssistLine>(), 1)?,
            returns: view(&extent, layout.returns + peer * geometry.return_bytes(), cells)?,
            fastbox: view(
                &extent,
                layout.fastboxes + peer * geometry.fastbox_bytes(),
                geometry.fastbox_slots as usize,
            )?,
            headers: view(&extent, layout.headers, cells)?,
            payload: extent.resolve(layout.payload, payload_bytes)?,
            payload_bytes,
        })
    }
}

/// Prefaults the cells of a segment. Otherwise the first messages of each size would be slow, and the adaptive
/// selector, which tests a protocol with few messages, would find every stream slow.
fn prefault_cells(segment: &Segment, geometry: &Geometry, access: Access) {
    let layout = geometry.own();
    // The cells' payload is the last part.
    segment.prefault(layout.headers..layout.total, access);
}

/// Builds the port over our segments and those of the peers. `kernel` makes the value that keeps them mapped.
pub(super) fn port(
    config: PortConfig,
    geometry: &Geometry,
    ours: &Arc<Pair>,
    peers: Vec<Option<Pair>>,
    kernel: impl FnOnce(Mappings) -> Kernel,
    origin: &Arc<ProcessOrigin>,
) -> Result<Port, LayoutError> {
    let cell_bytes = geometry.cell_bytes as usize;
    let mut links = Vec::with_capacity(peers.len());
    for (rank, peer) in (0u32..).zip(&peers) {
        let link = peer.as_ref().map(|peer| ends(config.rank, rank, geometry, ours, peer)).transpose()?;
        links.push(link.map(Link::new));
    }
    let mine = own(&ours.own, geometry, config.rank)?;
    prefault_cells(&ours.own, geometry, Access::ReadWrite);
    // SAFETY: the range was resolved in our own segment, which is mapped writable and kept by the port's `Mappings`;
    // payload is only ever reached through these views.
    let payload = unsafe { PayloadMut::from_raw(mine.payload, mine.payload_bytes) };
    let records = vec![CellRecord::default(); geometry.cells as usize];
    let short = LayoutError::Extent { have: mine.payload_bytes as u64, want: mine.payload_bytes as u64 };
    let pool = CellPool::new(mine.headers, payload, cell_bytes, records).ok_or(short)?;
    let consumer = Consumer::new(inbox(&ours.inbox, geometry)?.queue);
    let kernel = kernel(Mappings { ours: Arc::clone(ours), peers });
    let links = Links::new(links, Arc::clone(origin));
    Ok(ShmPort::new(config, links, pool, geometry.cells, consumer, kernel))
}

/// Returns the parts that connect us with a peer.
fn ends(
    me: u32,
    peer: u32,
    geometry: &Geometry,
    ours: &Pair,
    theirs: &Pair,
) -> Result<Ends<'static>, LayoutError> {
    let mine = own(&ours.own, geometry, peer)?;
    let its = own(&theirs.own, geometry, me)?;
    let its_inbox = inbox(&theirs.inbox, geometry)?;
    prefault_cells(&theirs.own, geometry, Access::ReadOnly);
    // SAFETY: the range was resolved in the peer's segment, which is mapped, and kept with the views by both callers;
    // payload is only ever copied out of these views.
    let payload = unsafe { Payload::from_raw(its.payload, its.payload_bytes) };
    Ok(Ends {
        outbound: FastboxSender::new(mine.fastbox, &its.acks[0].word),
        inbound: FastboxReceiver::new(its.fastbox, &mine.acks[0].word),
        cells: PeerPool::new(its.headers, payload, geometry.cell_bytes as usize),
        give_back: ReturnSender::new(mine.returns),
        given_back: ReturnReceiver::new(its.returns),
        queue: Producer::new(its_inbox.queue),
        sleep: its_inbox.sleep,
        grant: &mine.acks[0],
        granted: &its.acks[0],
        assist: assist::AssistReceiver::new(&mine.assist[0], &its.assist[0]),
        assist_sender: assist::AssistSender::new(&mine.assist[0], &its.assist[0]),
    })
}
