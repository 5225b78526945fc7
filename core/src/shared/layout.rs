//! Segment headers, checked offsets, and the layouts of the segments.

use core::ptr::NonNull;

use static_assertions::{assert_eq_align, const_assert, const_assert_eq};

use super::assist::AssistLine;
use super::fastbox::FastboxSlot;
use super::pool::{CellHeader, ReturnSlot};
use super::sleep::SleepWord;
use crate::sync::{Edge, Word32, Word64};
use crate::wire::LAYOUT_VERSION;

/// Bytes of a cache line, the unit of transfer between cores.
pub const LINE: usize = 64;
/// Bytes of the header page that starts each segment.
pub const HEADER_PAGE: usize = 4096;
/// Bytes between the beginning of a page and that of each cell whose size is a multiple of pages. A long copy is much
/// slower where its destination begins up to 63 bytes behind its source within their pages. Memory of `malloc` and of
/// `mmap` begins 16 bytes or 0 behind the beginning of a page; so neither a copy into a cell nor one out of a cell has
/// such a distance.
pub const CELL_OFFSET: usize = 128;
/// First word of every segment: "NEMESIA1" in ASCII, little-endian.
pub const MAGIC: u64 = u64::from_le_bytes(*b"NEMESIA1");
/// Most peers with which a process shares memory. The destination field of a cell has 16 bits.
pub const MAX_PEERS: u32 = 4096;
/// The peers that the first receive queue of a process serves, by their numbers. Each further queue serves as many as
/// all queues before it.
const FIRST_QUEUE_PEERS: u32 = 8;
/// Most receive queues of a process.
pub const MAX_QUEUES: usize = (MAX_PEERS / FIRST_QUEUE_PEERS).ilog2() as usize + 1;

/// Returns the receive queue that serves the peer with this number. A process makes a queue with the first peer that
/// needs it, so the memory of its queues follows the number of its peers.
pub const fn queue_of(number: u32) -> usize {
    match (number / FIRST_QUEUE_PEERS).checked_ilog2() {
        None => 0,
        Some(doublings) => doublings as usize + 1,
    }
}

/// Returns the number of peers that a receive queue serves.
pub const fn queue_peers(queue: usize) -> u32 {
    FIRST_QUEUE_PEERS << queue.saturating_sub(1)
}

/// Words that one process writes, alone in their cache line, to avoid false sharing.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Line {
    /// A position.
    pub word: Word64,
    /// Units of credit, in the line of a fastbox position.
    pub credit: Word64,
    /// In the line of a fastbox position, with the address of a sender-assisted copy: the words of the
    /// [`MappableBytes`](crate::wire::mappable::MappableBytes) of the receive buffer.
    pub buffer: [Word64; 3],
    pad: [Word64; 3],
}

impl Line {
    /// Returns a line for a model or private memory.
    pub fn new(value: u64) -> Self {
        Self {
            word: Word64::new(value),
            credit: Word64::new(0),
            buffer: core::array::from_fn(|_| Word64::new(0)),
            pad: core::array::from_fn(|_| Word64::new(0)),
        }
    }
}

/// The purpose of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentKind {
    /// The cells of a process. Only the owner writes it.
    Own,
    /// A receive queue, and the sleep word. Every peer that the queue serves writes it.
    Inbox,
    /// The structures for one peer. Only the owner writes it.
    Link,
}

impl SegmentKind {
    const fn code(self) -> u32 {
        match self {
            SegmentKind::Own => 1,
            SegmentKind::Inbox => 2,
            SegmentKind::Link => 3,
        }
    }
}

/// The sizes that two processes must agree on before they share memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Cells in each process's pool: a power of two, 4 to 4096.
    pub cells: u32,
    /// Payload bytes of a cell: a multiple of 64, 256 to 16 MiB.
    pub cell_bytes: u32,
    /// Slots of 32 bytes in the fastbox of each ordered pair: a power of two, 4 to 4096.
    pub fastbox_slots: u32,
}

/// The reason why a geometry or a segment is unusable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// A size is out of its range.
    #[error("{field} is {value}, but must be {must}")]
    Geometry {
        /// Name of the size.
        field: &'static str,
        /// Its value.
        value: u64,
        /// The allowed range.
        must: &'static str,
    },
    /// The mapping is smaller than the layout needs, or misaligned.
    #[error("segment has {have} bytes, but the layout needs {want}")]
    Extent {
        /// Bytes mapped.
        have: u64,
        /// Bytes that the layout needs.
        want: u64,
    },
    /// A header field differs from the expected value.
    #[error("segment header: {field} is {found:#x}, but must be {expected:#x}")]
    Header {
        /// Name of the field.
        field: &'static str,
        /// The value that the peer wrote.
        found: u64,
        /// The expected value.
        expected: u64,
    },
    /// The peer uses another layout version.
    #[error(
        "the peer's shared-memory layout is version {found}, ours is {ours}: rebuild both with one nemesia"
    )]
    Version {
        /// The peer's layout version.
        found: u32,
        /// [`LAYOUT_VERSION`].
        ours: u32,
    },
    /// The peer has not completed its header.
    #[error("the peer has not completed its segment header")]
    NotReady,
}

impl Geometry {
    /// Checks every size.
    ///
    /// # Errors
    /// [`LayoutError::Geometry`] names the first size that is out of range.
    pub fn validate(&self) -> Result<(), LayoutError> {
        let checks = [
            ("cells", self.cells, power_between(self.cells, 4, 4096), "a power of two from 4 to 4096"),
            (
                "cell_bytes",
                self.cell_bytes,
                (256..=1 << 24).contains(&self.cell_bytes) && self.cell_bytes.is_multiple_of(64),
                "a multiple of 64 from 256 to 16777216",
            ),
            (
                "fastbox_slots",
                self.fastbox_slots,
                power_between(self.fastbox_slots, 4, 4096),
                "a power of two from 4 to 4096",
            ),
        ];
        for (field, value, good, must) in checks {
            if !good {
                return Err(LayoutError::Geometry { field, value: value.into(), must });
            }
        }
        Ok(())
    }

    /// Returns the number of entries of a receive queue that serves `peers` peers. The queue has an entry for each of
    /// their cells, so it cannot overflow.
    pub const fn queue_entries(&self, peers: u32) -> u32 {
        (peers * self.cells).next_power_of_two()
    }

    /// Returns the layout of an own segment.
    pub fn own(&self) -> OwnLayout {
        let headers_end = HEADER_PAGE + self.cells as usize * size_of::<CellHeader>();
        let payload = headers_end.next_multiple_of(HEADER_PAGE) + CELL_OFFSET;
        let total = payload + self.cells as usize * self.cell_bytes as usize;
        OwnLayout { headers: HEADER_PAGE, payload, total: total.next_multiple_of(HEADER_PAGE) }
    }

    /// Returns the layout of a link segment.
    pub const fn link(&self) -> LinkLayout {
        let ack = size_of::<SegmentHeader>();
        let assist_line = ack + size_of::<Line>();
        let returns = assist_line + size_of::<AssistLine>();
        let fastbox = returns + self.return_bytes();
        let total = (fastbox + self.fastbox_bytes()).next_multiple_of(HEADER_PAGE);
        LinkLayout { ack, assist_line, returns, fastbox, total }
    }

    /// Returns the layout of the inbox segment with this receive queue.
    pub fn inbox(&self, queue: usize) -> InboxLayout {
        let entries = size_of::<SegmentHeader>() + 2 * LINE;
        let count = self.queue_entries(queue_peers(queue)) as usize;
        InboxLayout {
            tail: size_of::<SegmentHeader>(),
            sleep: size_of::<SegmentHeader>() + LINE,
            entries,
            count,
            total: (entries + count * size_of::<Word64>()).next_multiple_of(HEADER_PAGE),
        }
    }

    /// Returns the bytes of one return ring, in whole lines.
    pub const fn return_bytes(&self) -> usize {
        (self.cells as usize * size_of::<ReturnSlot>()).next_multiple_of(LINE)
    }

    /// Returns the bytes of one fastbox.
    pub const fn fastbox_bytes(&self) -> usize {
        self.fastbox_slots as usize * size_of::<FastboxSlot>()
    }

    /// Returns the bytes of shared memory that each connected peer adds to a process: the link segment, and at most
    /// this many in a receive queue.
    pub const fn bytes_per_peer(&self) -> usize {
        self.link().total + 2 * self.cells as usize * size_of::<Word64>()
    }
}

const fn power_between(value: u32, low: u32, high: u32) -> bool {
    value.is_power_of_two() && value >= low && value <= high
}

/// Offsets in an own segment, in bytes from its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnLayout {
    /// The headers of the cells.
    pub headers: usize,
    /// The payloads of the cells, [`CELL_OFFSET`] bytes behind the beginning of a page.
    pub payload: usize,
    /// Size of the whole segment, a multiple of 4096.
    pub total: usize,
}

/// Offsets in a link segment, in bytes from its start. The segment is made with the connection to its peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkLayout {
    /// A [`Line`]: the owner's read position in the peer's fastbox, and the credit that it grants.
    pub ack: usize,
    /// An [`AssistLine`]: sender-assisted copies of large messages.
    pub assist_line: usize,
    /// The return ring: the peer's cells that the owner has released.
    pub returns: usize,
    /// The fastbox from the owner to the peer.
    pub fastbox: usize,
    /// Size of the whole segment, a multiple of 4096.
    pub total: usize,
}

/// Offsets in an inbox segment, in bytes from its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InboxLayout {
    /// The line of the tail hint.
    pub tail: usize,
    /// The line of the sleep word. It is used in the segment of the first queue only.
    pub sleep: usize,
    /// The entries of the receive queue.
    pub entries: usize,
    /// The number of the entries.
    pub count: usize,
    /// Size of the whole segment, a multiple of 4096.
    pub total: usize,
}

/// The header of each segment. The owner writes every field once and then stores `ready` with release
/// ordering. Only `end_mark` changes afterwards.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct SegmentHeader {
    magic: Word64,
    total: Word64,
    version: Word32,
    kind: Word32,
    number: Word32,
    cells: Word32,
    cell_bytes: Word32,
    fastbox_slots: Word32,
    reserved_half: Word32,
    ready: Word32,
    epoch: Word64,
    /// In a link segment: see [`EndMark`](super::end_mark::EndMark).
    end_mark: Word64,
}

const_assert_eq!(size_of::<Line>(), LINE);
assert_eq_align!(Line, AssistLine, SegmentHeader, CellHeader, SleepWord);
const_assert!(size_of::<SegmentHeader>() <= HEADER_PAGE);

#[cfg(not(nemesia_loom))]
const _: () = {
    use memoffset::offset_of;
    assert!(size_of::<SegmentHeader>() == 64 && size_of::<SleepWord>() == LINE);
    assert!(offset_of!(SegmentHeader, magic) == 0 && offset_of!(SegmentHeader, total) == 8);
    assert!(offset_of!(SegmentHeader, version) == 16 && offset_of!(SegmentHeader, kind) == 20);
    assert!(offset_of!(SegmentHeader, number) == 24 && offset_of!(SegmentHeader, cells) == 28);
    assert!(offset_of!(SegmentHeader, cell_bytes) == 32 && offset_of!(SegmentHeader, fastbox_slots) == 36);
    assert!(offset_of!(SegmentHeader, ready) == 44);
    assert!(offset_of!(SegmentHeader, epoch) == 48 && offset_of!(SegmentHeader, end_mark) == 56);
    assert!(offset_of!(Line, word) == 0 && offset_of!(Line, credit) == 8 && offset_of!(Line, buffer) == 16);
    assert!(
        size_of::<AssistLine>() == LINE
            && 2 * size_of::<FastboxSlot>() == LINE
            && size_of::<CellHeader>() == LINE
    );
};

/// The identity of a segment, as recorded in its header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Own, inbox or link segment.
    pub kind: SegmentKind,
    /// The sizes.
    pub geometry: Geometry,
    /// Inbox: the number of the receive queue. Link: the number by which the owner knows the peer. Own: 0.
    pub number: u32,
    /// Random number of the owner. It is the same in all of its segments and in its handshake.
    pub epoch: u64,
}

impl SegmentHeader {
    /// Returns an empty header, for a model or private memory.
    pub fn empty() -> Self {
        let word = || Word64::new(0);
        let half = || Word32::new(0);
        Self {
            magic: word(),
            total: word(),
            version: half(),
            kind: half(),
            number: half(),
            cells: half(),
            cell_bytes: half(),
            fastbox_slots: half(),
            reserved_half: half(),
            ready: half(),
            epoch: word(),
            end_mark: word(),
        }
    }

    /// Fills the header, then publishes it.
    pub fn publish(&self, identity: &Identity, total: u64) {
        self.magic.store_relaxed(MAGIC);
        self.total.store_relaxed(total);
        self.version.store_relaxed(LAYOUT_VERSION);
        self.kind.store_relaxed(identity.kind.code());
        self.number.store_relaxed(identity.number);
        self.cells.store_relaxed(identity.geometry.cells);
        self.cell_bytes.store_relaxed(identity.geometry.cell_bytes);
        self.fastbox_slots.store_relaxed(identity.geometry.fastbox_slots);
        self.epoch.store_relaxed(identity.epoch);
        self.ready.store_release(1, Edge::SegmentReady);
    }

    /// Returns the word of the [`EndMark`](super::end_mark::EndMark) in a link segment.
    pub const fn end_mark(&self) -> &Word64 {
        &self.end_mark
    }

    /// Compares each field with the expected value. Each field is read once; nothing in the header is used
    /// afterwards.
    ///
    /// # Errors
    /// The first field that differs. The version is compared first, because it defines the other fields.
    pub fn check(&self, expected: &Identity, total: u64) -> Result<(), LayoutError> {
        if self.ready.load_acquire(Edge::SegmentReady) != 1 {
            return Err(LayoutError::NotReady);
        }
        let magic = self.magic.load_relaxed();
        if magic != MAGIC {
            return Err(LayoutError::Header { field: "magic", found: magic, expected: MAGIC });
        }
        let version = self.version.load_relaxed();
        if version != LAYOUT_VERSION {
            return Err(LayoutError::Version { found: version, ours: LAYOUT_VERSION });
        }
        let g = &expected.geometry;
        let fields = [
            ("total", self.total.load_relaxed(), total),
            ("kind", self.kind.load_relaxed().into(), expected.kind.code().into()),
            ("number", self.number.load_relaxed().into(), expected.number.into()),
            ("cells", self.cells.load_relaxed().into(), g.cells.into()),
            ("cell_bytes", self.cell_bytes.load_relaxed().into(), g.cell_bytes.into()),
            ("fastbox_slots", self.fastbox_slots.load_relaxed().into(), g.fastbox_slots.into()),
            ("epoch", self.epoch.load_relaxed(), expected.epoch),
        ];
        match fields.into_iter().find(|(_, found, want)| found != want) {
            Some((field, found, expected)) => Err(LayoutError::Header { field, found, expected }),
            None => Ok(()),
        }
    }
}

/// A mapped range. Only this type converts an offset to an address.
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    base: NonNull<u8>,
    len: usize,
}

impl Extent {
    /// Describes a mapping of `len` bytes at `base`.
    ///
    /// # Errors
    /// [`LayoutError::Extent`] if `base` is not page-aligned or `len` is less than `want` bytes.
    ///
    /// # Safety
    /// The range stays mapped readable for as long as any address resolved from it is used.
    pub unsafe fn new(base: NonNull<u8>, len: usize, want: usize) -> Result<Self, LayoutError> {
        if len < want || !(base.as_ptr() as usize).is_multiple_of(HEADER_PAGE) {
            return Err(LayoutError::Extent { have: len as u64, want: want as u64 });
        }
        Ok(Self { base, len })
    }

    /// Returns the address of `count` values of `T` at `offset` bytes, checked for overflow, alignment and
    /// extent.
    ///
    /// # Errors
    /// [`LayoutError::Extent`] if the values do not lie in the mapping or are not aligned.
    pub fn resolve<T>(&self, offset: usize, count: usize) -> Result<NonNull<T>, LayoutError> {
        let end = count.checked_mul(size_of::<T>()).and_then(|bytes| bytes.checked_add(offset));
        match end {
            Some(end) if end <= self.len && offset.is_multiple_of(align_of::<T>()) => {
                // SAFETY: `offset <= end <= len`, so the address is within or one past the mapping.
                Ok(unsafe { self.base.add(offset) }.cast())
            }
            _ => Err(LayoutError::Extent { have: self.len as u64, want: end.unwrap_or(usize::MAX) as u64 }),
        }
    }
}
