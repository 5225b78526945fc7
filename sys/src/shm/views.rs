//! Typed views of mapped segments. All offsets come from our own geometry, none from shared memory.
//!
//! # Why the views may be `'static`
//! Their type is `'static` because a structure cannot borrow from its own field. This module alone ensures that they do
//! not outlive their memory: a view leaves this module only in one value with the mapping of its segment, and the value
//! cannot be taken apart outside of it.
//!
//! | value | views | mapping |
//! |---|---|---|
//! | [`Port`] | of our own segments, and of each peer that is or was linked | [`Mappings`], in the port's
//! [`Kernel`] |
//! | [`NewLink`] | of both sides' segments | its `Linked`, and our [`OwnSegments`] |
//! | [`OwnSleep`] | the word by which peers wake us | our [`OwnSegments`] |
//!
//! Methods of these values make all uses of a view. They borrow the value, so the mappings are alive. The order in
//! which fields are dropped does not matter: dropping a view has no effect, which an assertion below checks at compile
//! time. A peer's segment is unmapped early only by [`NewLink::open`] and [`unmap`], after the port has given up all of
//! its views: it has closed its link with that peer, and collects no cells of ours from it. The segments of this
//! process are unmapped with the last owner of its `OwnSegments`.

use std::mem::needs_drop;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;

use nemesia_core::shared::assist::{self, AssistLine};
use nemesia_core::shared::end_mark::EndMark;
use nemesia_core::shared::fastbox::{FastboxReceiver, FastboxSender, FastboxSlot};
use nemesia_core::shared::layout::{Geometry, LayoutError, Line, SegmentHeader, queue_of};
use nemesia_core::shared::pool::{
    CellHeader, CellPool, CellRecord, PeerPool, ReturnReceiver, ReturnSender, ReturnSlot,
};
use nemesia_core::shared::port::{Ends, Link, PortConfig, ShmPort};
use nemesia_core::shared::queue::{CellQueue, Consumer, Producer};
use nemesia_core::shared::sleep::SleepWord;
use nemesia_core::sync::{Payload, PayloadMut, Word64};

use super::extent::{extent, view};
use super::links::Links;
use super::segments::{OwnLink, OwnSegments, PeerSegments};
use super::{Kernel, Port};
use crate::error::Error;
use crate::os::{Access, ProcessOrigin, Segment};

// See the module's documentation.
const _: () = assert!(!needs_drop::<Option<Link<'static>>>());
const _: () = assert!(!needs_drop::<Consumer<'static>>());
const _: () = assert!(!needs_drop::<CellPool<'static, [CellRecord; 1]>>());

/// The segments of one connection.
#[derive(Debug)]
struct Linked {
    ours: OwnLink,
    /// Kept for the views into them.
    _theirs: PeerSegments,
}

/// The segments into which the views of a port point.
#[derive(Debug)]
pub(crate) struct Mappings {
    ours: Arc<OwnSegments>,
    /// One element per number: the segments of each peer that is or was linked.
    links: Vec<Option<Linked>>,
    /// The receive queues that the port polls, one bit each.
    polled: u32,
}

impl Mappings {
    /// Keeps all segments from being unmapped when this value is dropped. In a forked child they are not mapped, and
    /// other memory may be at their addresses.
    pub(super) fn leave_to_parent(&mut self) {
        std::mem::forget(std::mem::take(&mut self.links));
        std::mem::forget(Arc::clone(&self.ours));
    }

    /// Makes places until there are `count`.
    pub(super) fn grow(&mut self, count: usize) {
        self.links.resize_with(count, || None);
    }

    /// Returns no mappings of peers, for a kernel without a port.
    #[cfg(all(test, feature = "tracing"))]
    pub(super) fn of(ours: Arc<OwnSegments>) -> Self {
        Self { ours, links: Vec::new(), polled: 1 }
    }
}

/// The word by which peers wake us.
#[derive(Clone, Debug)]
pub(crate) struct OwnSleep {
    word: &'static SleepWord,
    _ours: Arc<OwnSegments>,
}

impl OwnSleep {
    pub(super) fn new(ours: &Arc<OwnSegments>) -> Result<Self, Error> {
        Ok(Self { word: inbox(ours.inbox(0)?, &ours.sizes, 0)?.sleep, _ours: Arc::clone(ours) })
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
    link: Link<'static>,
    /// The receive queue of ours that serves the peer, and its number.
    queue: (usize, CellQueue<'static>),
    linked: Linked,
    ours: Arc<OwnSegments>,
}

impl NewLink {
    pub(super) fn new(ours: &Arc<OwnSegments>, own: OwnLink, theirs: PeerSegments) -> Result<Self, Error> {
        let queue = queue_of(own.number);
        let entries = inbox(ours.inbox(queue)?, &ours.sizes, queue)?.queue;
        let link = Link::new(theirs.number as u16, ends(ours, &own, &theirs)?);
        Ok(Self {
            link,
            queue: (queue, entries),
            linked: Linked { ours: own, _theirs: theirs },
            ours: Arc::clone(ours),
        })
    }

    /// As [`NewLink::own`].
    pub(super) const fn own_mut(&mut self) -> &mut OwnLink {
        &mut self.linked.ours
    }

    /// Returns the segment of this process for the peer.
    pub(super) const fn own(&self) -> &OwnLink {
        &self.linked.ours
    }

    /// Grants the peer credit, which it finds when it maps the segment.
    pub(super) fn grant(&self, units: u64) {
        self.link.grant(units);
    }

    /// Links the port with the peer, and unmaps the segments of its predecessor: the predecessor's link, the only
    /// holder of their views, is closed, because the port refuses otherwise. If the port refuses, or is not over the
    /// same segments of ours, nothing changes.
    pub(super) fn open(self, port: &mut Port) {
        let Self { link, queue: (queue, entries), linked, ours } = self;
        let number = linked.ours.number;
        let mappings = &mut port.host_mut().mappings;
        if !Arc::ptr_eq(&mappings.ours, &ours) || mappings.links.len() <= number as usize {
            return;
        }
        let is_new = mappings.polled & 1 << queue == 0;
        mappings.polled |= 1 << queue;
        if is_new {
            port.add_queue(Consumer::new(entries));
        }
        if port.open(number, link) {
            port.host_mut().mappings.links[number as usize] = Some(linked);
        }
    }
}

/// Unmaps the segments of a peer and ours for it, if the port has no views of them: the link with that peer is closed,
/// and has left it no cells.
pub(super) fn unmap(port: &mut Port, number: u32) {
    if !port.is_open(number)
        && let Some(linked) = port.host_mut().mappings.links.get_mut(number as usize)
    {
        *linked = None;
    }
}

/// The parts of an inbox.
struct Inbox {
    queue: CellQueue<'static>,
    sleep: &'static SleepWord,
}

fn inbox(segment: &Segment, geometry: &Geometry, queue: usize) -> Result<Inbox, LayoutError> {
    let layout = geometry.inbox(queue);
    let extent = extent(segment, layout.total)?;
    // SAFETY: all three are atomic words; the callers keep them with the mapping.
    unsafe {
        let tail = &view::<Line>(&extent, layout.tail, 1)?[0].word;
        let sleep = &view::<SleepWord>(&extent, layout.sleep, 1)?[0];
        let entries = view::<Word64>(&extent, layout.entries, layout.count)?;
        Ok(Inbox { queue: CellQueue::new(entries, tail), sleep })
    }
}

/// The cells of an own segment.
struct Cells {
    headers: &'static [CellHeader],
    payload: NonNull<u8>,
    bytes: usize,
}

/// Returns the cells of an own segment, and prefaults them. Otherwise the first messages of each size would be slow,
/// and the adaptive selector, which tests a protocol with few messages, would find every stream slow.
fn cells(segment: &Segment, geometry: &Geometry, access: Access) -> Result<Cells, LayoutError> {
    let layout = geometry.own();
    let extent = extent(segment, layout.total)?;
    let count = geometry.cells as usize;
    let bytes = count * geometry.cell_bytes as usize;
    segment.prefault(layout.headers..layout.total, access);
    // SAFETY: headers are atomic words; the callers keep them with the mapping.
    let headers = unsafe { view(&extent, layout.headers, count)? };
    Ok(Cells { headers, payload: extent.resolve(layout.payload, bytes)?, bytes })
}

/// The parts of a link segment.
struct LinkParts {
    ack: &'static Line,
    assist: &'static AssistLine,
    returns: &'static [ReturnSlot],
    fastbox: &'static [FastboxSlot],
    end_mark: EndMark<'static>,
}

fn link_parts(segment: &Segment, geometry: &Geometry) -> Result<LinkParts, LayoutError> {
    let layout = geometry.link();
    let extent = extent(segment, layout.total)?;
    // SAFETY: all are atomic words; the callers keep them with the mapping.
    unsafe {
        Ok(LinkParts {
            ack: &view(&extent, layout.ack, 1)?[0],
            assist: &view(&extent, layout.assist_line, 1)?[0],
            returns: view(&extent, layout.returns, geometry.cells as usize)?,
            fastbox: view(&extent, layout.fastbox, geometry.fastbox_slots as usize)?,
            end_mark: EndMark::new(view::<SegmentHeader>(&extent, 0, 1)?[0].end_mark()),
        })
    }
}

/// Builds a port without links over our segments. `kernel` makes the value that keeps them mapped. `origin` has the
/// number of links that there can be.
pub(super) fn port(
    config: PortConfig,
    ours: &Arc<OwnSegments>,
    kernel: impl FnOnce(Mappings) -> Kernel,
    origin: &Arc<ProcessOrigin>,
) -> Result<Port, Error> {
    let sizes = &ours.sizes;
    let mine = cells(&ours.own, sizes, Access::ReadWrite)?;
    // SAFETY: the range was resolved in our own segment, which is mapped writable and kept by the port's `Mappings`;
    // payload is only ever reached through these views.
    let payload = unsafe { PayloadMut::from_raw(mine.payload, mine.bytes) };
    let records = vec![CellRecord::default(); sizes.cells as usize];
    let short = LayoutError::Extent { have: mine.bytes as u64, want: mine.bytes as u64 };
    let pool = CellPool::new(mine.headers, payload, sizes.cell_bytes as usize, records).ok_or(short)?;
    let consumer = Consumer::new(inbox(ours.inbox(0)?, sizes, 0)?.queue);
    let links = Links::new(Arc::clone(origin));
    let mappings = (0..origin.number()).map(|_| None).collect();
    let kernel = kernel(Mappings { ours: Arc::clone(ours), links: mappings, polled: 1 });
    Ok(ShmPort::new(config, links, pool, sizes.cells, consumer, kernel))
}

/// Returns the parts that connect us with a peer.
fn ends(ours: &OwnSegments, link: &OwnLink, theirs: &PeerSegments) -> Result<Ends<'static>, LayoutError> {
    let sizes = &ours.sizes;
    let mine = link_parts(&link.segment, sizes)?;
    let its = link_parts(&theirs.link, sizes)?;
    let its_cells = cells(&theirs.own, sizes, Access::ReadOnly)?;
    let sleep = inbox(&theirs.first_inbox, sizes, 0)?.sleep;
    let serving = theirs.further_inbox.as_ref().unwrap_or(&theirs.first_inbox);
    let queue = inbox(serving, sizes, queue_of(theirs.number))?.queue;
    // SAFETY: the range was resolved in the peer's segment, which is mapped, and kept with the views by the caller;
    // payload is only ever copied out of these views.
    let payload = unsafe { Payload::from_raw(its_cells.payload, its_cells.bytes) };
    Ok(Ends {
        outbound: FastboxSender::new(mine.fastbox, &its.ack.word),
        inbound: FastboxReceiver::new(its.fastbox, &mine.ack.word),
        cells: PeerPool::new(its_cells.headers, payload, sizes.cell_bytes as usize, its.end_mark),
        end_mark: mine.end_mark,
        give_back: ReturnSender::new(mine.returns),
        given_back: ReturnReceiver::new(its.returns),
        queue: Producer::new(queue),
        sleep,
        grant: mine.ack,
        granted: its.ack,
        assist: assist::AssistReceiver::new(mine.assist, its.assist),
        assist_sender: assist::AssistSender::new(mine.assist, its.assist),
    })
}
