//! Typed views of mapped segments. All offsets come from our own geometry, none from shared memory.

use std::ptr::NonNull;
use std::sync::Arc;

use nemesia_core::shared::fastbox::{Receiver, Sender, Slot};
use nemesia_core::shared::layout::{Extent, Geometry, LayoutError, Line, SegmentHeader};
use nemesia_core::shared::pool::{
    CellHeader, CellRecord, PeerPool, Pool, ReturnReceiver, ReturnSender, ReturnSlot,
};
use nemesia_core::shared::port::{Ends, Link, PortConfig, ShmPort};
use nemesia_core::shared::queue::{Consumer, Producer, Queue};
use nemesia_core::shared::share::{self, ShareLine};
use nemesia_core::shared::sleep::SleepWord;
use nemesia_core::sync::{Payload, PayloadMut, Word64};

use super::connect::Peer;
use super::links::Links;
use super::{Kernel, Pair, Port};
use crate::os::{Origin, Segment};

fn extent(segment: &Segment, want: usize) -> Result<Extent, LayoutError> {
    // SAFETY: the segment is mapped readable until it is dropped. `super::Attached` keeps it until after the port,
    // the only holder of what is resolved here, or until the port's link with that peer is closed; during set-up the
    // segment outlives this function's caller.
    unsafe { Extent::new(segment.as_ptr(), segment.len(), want) }
}

/// `count` values at an offset. `T` is one of the core's types of shared words.
///
/// # Safety
/// `T` consists of atomic words only, so that any bytes are valid and other processes may write them; the segment
/// stays mapped while the view is used.
unsafe fn view<T>(extent: &Extent, offset: usize, count: usize) -> Result<&'static [T], LayoutError> {
    let base: NonNull<T> = extent.resolve(offset, count)?;
    // SAFETY: `resolve` checked extent and alignment; the caller vouches for type and lifetime.
    Ok(unsafe { std::slice::from_raw_parts(base.as_ptr(), count) })
}

/// The header of a segment.
pub(super) fn header(segment: &Segment) -> Result<&SegmentHeader, LayoutError> {
    let extent = extent(segment, size_of::<SegmentHeader>())?;
    // SAFETY: a header is atomic words; the result borrows the segment, so it is mapped.
    Ok(unsafe { &view::<SegmentHeader>(&extent, 0, 1)?[0] })
}

/// The parts of an inbox.
pub(super) struct Inbox {
    pub(super) queue: Queue<'static>,
    pub(super) sleep: &'static SleepWord,
}

pub(super) fn inbox(segment: &Segment, geometry: &Geometry) -> Result<Inbox, LayoutError> {
    let layout = geometry.inbox();
    let extent = extent(segment, layout.total)?;
    // SAFETY: all three are atomic words, and `super::Attached` keeps the mapping.
    unsafe {
        let tail = &view::<Line>(&extent, layout.tail, 1)?[0].word;
        let sleep = &view::<SleepWord>(&extent, layout.sleep, 1)?[0];
        let entries = view::<Word64>(&extent, layout.entries, geometry.queue_entries() as usize)?;
        Ok(Inbox { queue: Queue::new(entries, tail), sleep })
    }
}

/// The parts of an own segment that concern one peer, and the cells.
struct Own {
    acks: &'static [Line],
    share: &'static [ShareLine],
    returns: &'static [ReturnSlot],
    fastbox: &'static [Slot],
    headers: &'static [CellHeader],
    payload: NonNull<u8>,
    payload_bytes: usize,
}

/// What in `segment` is meant for `peer`.
fn own(segment: &Segment, geometry: &Geometry, peer: u32) -> Result<Own, LayoutError> {
    let layout = geometry.own();
    let extent = extent(segment, layout.total)?;
    let (peer, cells) = (peer as usize, geometry.cells as usize);
    let payload_bytes = cells * geometry.cell_bytes as usize;
    // SAFETY: all are atomic words, and `super::Attached` keeps the mapping.
    unsafe {
        Ok(Own {
            acks: view(&extent, layout.acks + peer * size_of::<Line>(), 1)?,
            share: view(&extent, layout.shares + peer * size_of::<ShareLine>(), 1)?,
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

/// Builds the port over our segments and those of the peers.
pub(super) fn port(
    config: PortConfig,
    geometry: &Geometry,
    ours: &Pair,
    peers: &[Option<Peer>],
    kernel: Kernel,
    origin: &Arc<Origin>,
) -> Result<Port, LayoutError> {
    let cell_bytes = geometry.cell_bytes as usize;
    let mut links = Vec::with_capacity(peers.len());
    for (rank, peer) in (0u32..).zip(peers) {
        let link =
            peer.as_ref().map(|peer| ends(config.rank, rank, geometry, ours, &peer.pair)).transpose()?;
        links.push(link.map(Link::new));
    }
    let mine = own(&ours.own, geometry, config.rank)?;
    // SAFETY: the range was resolved in our own segment, which is mapped writable and kept by `super::Attached`;
    // payload is only ever reached through these views.
    let payload = unsafe { PayloadMut::from_raw(mine.payload, mine.payload_bytes) };
    let records = vec![CellRecord::default(); geometry.cells as usize];
    let short = LayoutError::Extent { have: mine.payload_bytes as u64, want: mine.payload_bytes as u64 };
    let pool = Pool::new(mine.headers, payload, cell_bytes, records).ok_or(short)?;
    let consumer = Consumer::new(inbox(&ours.inbox, geometry)?.queue);
    let links = Links::new(links, Arc::clone(origin));
    Ok(ShmPort::new(config, links, pool, geometry.cells, consumer, kernel))
}

/// What connects us with a peer.
pub(super) fn ends(
    me: u32,
    peer: u32,
    geometry: &Geometry,
    ours: &Pair,
    theirs: &Pair,
) -> Result<Ends<'static>, LayoutError> {
    let mine = own(&ours.own, geometry, peer)?;
    let its = own(&theirs.own, geometry, me)?;
    let its_inbox = inbox(&theirs.inbox, geometry)?;
    // SAFETY: the range was resolved in the peer's segment, which is mapped and kept by `super::Attached`, or by
    // `super::door::Newcomer` and then with the others, until its link is closed; payload is only ever copied out of these
    // views.
    let payload = unsafe { Payload::from_raw(its.payload, its.payload_bytes) };
    Ok(Ends {
        outbound: Sender::new(mine.fastbox, &its.acks[0].word),
        inbound: Receiver::new(its.fastbox, &mine.acks[0].word),
        cells: PeerPool::new(its.headers, payload, geometry.cell_bytes as usize),
        give_back: ReturnSender::new(mine.returns),
        given_back: ReturnReceiver::new(its.returns),
        queue: Producer::new(its_inbox.queue),
        sleep: its_inbox.sleep,
        grant: &mine.acks[0].credit,
        granted: &its.acks[0].credit,
        share: share::Receiver::new(&mine.share[0], &its.share[0]),
        help: share::Helper::new(&mine.share[0], &its.share[0]),
    })
}
