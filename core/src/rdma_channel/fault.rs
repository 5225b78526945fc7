//! Injected faults of the pipe: errors of logic that it makes on request. The pipe's suite must find each.
//!
//! Compiled only with the private cfg `nemesia_injected_fault`; the shipped library contains none of this.
#![forbid(unsafe_code)]

use crate::sync::Word32;

/// An injected fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum PipeFault {
    /// All values of a pointer are written from one slot, so a late write publishes a newer value.
    OneSlot,
    /// The last receive of the peer is used without a report.
    ForgetReserve,
    /// The basic design publishes its head before the data are posted.
    HeadFirst,
    /// The staging buffer is reused as soon as the writes are posted.
    ReuseStaging,
    /// The receiver publishes its tail before it has copied.
    TailFirst,
    /// Only a put posts what waits for room in the queue.
    ForgetStaged,
    /// A write does not end at the end of the ring.
    IgnoreWrap,
    /// The receiver polls only the first flag of a chunk.
    OneFlag,
    /// The second flag is the same in each lap, whatever the memory holds.
    FixedFlag,
    /// The receiver polls flags although the port does not place in order.
    TrustFlags,
    /// The tail is never published explicitly.
    ForgetTail,
    /// A list that begins within a chunk is filled from the start of the chunk.
    ForgetOffset,
    /// A put counts its bytes before the exposed buffer is acknowledged.
    CountEarly,
    /// The receiver acknowledges an exposed buffer when its reads are posted.
    AckUnread,
    /// The bytes of a buffer that was read only in part are taken for the whole.
    SkipRest,
    /// A put uses an advertised buffer at whatever position of the stream.
    PushStale,
    /// A put counts bytes that it pushes when their writes are posted.
    CountPushed,
    /// A put announces bytes before all of their writes are posted.
    AnnounceUnpushed,
}

impl PipeFault {
    /// All faults.
    pub const ALL: [Self; 18] = [
        Self::OneSlot,
        Self::ForgetReserve,
        Self::HeadFirst,
        Self::ReuseStaging,
        Self::TailFirst,
        Self::ForgetStaged,
        Self::IgnoreWrap,
        Self::OneFlag,
        Self::FixedFlag,
        Self::TrustFlags,
        Self::ForgetTail,
        Self::ForgetOffset,
        Self::CountEarly,
        Self::AckUnread,
        Self::SkipRest,
        Self::PushStale,
        Self::CountPushed,
        Self::AnnounceUnpushed,
    ];
}

/// The active fault, plus one; 0 if there is none.
static ACTIVE: Word32 = Word32::new(0);

/// Activates this fault in this process, or none.
pub fn make(fault: Option<PipeFault>) {
    ACTIVE.store_relaxed(fault.map_or(0, |fault| fault as u32 + 1));
}

/// Returns whether this fault is active.
pub(super) fn injected(fault: PipeFault) -> bool {
    ACTIVE.load_relaxed() == fault as u32 + 1
}
