//! Work requests that the port holds back, because the device would otherwise wait for ever.
//!
//! **Soft `RoCE`** delays a fenced work request until no read or atomic operation of its queue is in progress
//! (`rxe_wqe_is_fenced`, Linux 6.1). When a packet is lost, it sends again from the oldest request that was not
//! acknowledged. Reads behind that one still count as in progress, as does that request itself if it is a
//! fenced read. It then waits for itself, for ever.
//!
//! **Soft iWARP (siw)** stops its send queue at a fenced work request while an answer is missing, and at a read
//! that exceeds the limit of reads in progress (`siw_activate_tx_from_sq`, Linux 6.1). Its answers to the
//! peer's reads wait in the same queue behind that work request. If both ends are in this state, each answer
//! waits behind the other end's work request: a deadlock.
//!
//! Therefore the port holds a fenced work request, and all work requests behind it, until the reads before it
//! are answered. On siw it also holds a read until the device may have one more read in progress.

use std::collections::VecDeque;

use nemesia_core::sync::opaque;
use rdma_core_sys as raw;

use super::regions::VerbsParts;
use crate::verbs::pair::QueuePair;

/// The vendor of soft `RoCE`: `RXE_VENDOR_ID`.
const RXE: u32 = 0xff_ffff;

/// The vendor of soft iWARP: `SIW_VENDOR_ID`.
pub(super) const SIW: u32 = 0x62_6d74;

/// The kinds of work requests that the port holds back in place of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Holding {
    /// Fenced work requests: the device's fences cannot be used.
    pub(super) fences: bool,
    /// Reads that exceed the limit of reads in progress.
    pub(super) reads: bool,
    /// Long reads: one part is in progress at a time; see [`long`](super::long).
    pub(super) long_reads: bool,
}

impl Holding {
    /// Returns the kinds for a device of this vendor.
    pub(super) const fn of(vendor: u32) -> Self {
        Self { fences: matches!(vendor, RXE | SIW), reads: vendor == SIW, long_reads: vendor == RXE }
    }

    /// Returns the number of earlier requests that may still wait for an answer when the device gets this one.
    /// `under_way` is the connection's number of reads in progress. `None` if the port never holds the request.
    #[inline]
    pub(super) const fn most_unanswered(self, fence: bool, answered: bool, under_way: u8) -> Option<u32> {
        if fence && self.fences {
            Some(0)
        } else if answered && self.reads {
            Some((under_way as u32).saturating_sub(1))
        } else {
            None
        }
    }
}

/// A work request that waits. It occupies its place in the ring.
pub(super) struct HeldWork {
    wr: raw::ibv_send_wr,
    parts: VerbsParts,
    /// A copy of an inline payload.
    inline: Box<[u8]>,
    pub(super) most_unanswered: Option<u32>,
    pub(super) sequence: u32,
}

// SAFETY: the value owns the list of parts and the payload; the request's pointers are set when it is posted.
unsafe impl Send for HeldWork {}

impl HeldWork {
    /// Copies a work request, to be posted later.
    ///
    /// # Safety
    /// An inline payload can be read.
    pub(super) unsafe fn new(
        wr: raw::ibv_send_wr,
        list: &[raw::ibv_sge],
        most_unanswered: Option<u32>,
        sequence: u32,
    ) -> Self {
        let mut parts = VerbsParts::NONE;
        // The zip is exact: the list is never longer.
        for (part, to) in list.iter().zip(&mut parts.list) {
            *to = *part;
            parts.count += 1;
        }
        let mut inline = Box::default();
        if wr.send_flags & raw::IBV_SEND_INLINE != 0 {
            let part = parts.list[0];
            let from = std::ptr::with_exposed_provenance::<u8>(part.addr as usize);
            inline = vec![0; part.length as usize].into_boxed_slice();
            // SAFETY: the caller's promise; inline payloads have one part. Threads may use the bytes
            // concurrently, so no reference to them is made.
            unsafe { opaque::copy(from, inline.as_mut_ptr(), inline.len()) };
        }
        Self { wr, parts, inline, most_unanswered, sequence }
    }

    /// Posts the work request, as [`QueuePair::post_send`] does.
    ///
    /// # Safety
    /// Those of that function, for parts that are not inline.
    pub(super) unsafe fn post(mut self, pair: &QueuePair) -> Result<(), i32> {
        if !self.inline.is_empty() {
            self.parts.list[0].addr = self.inline.as_ptr().expose_provenance() as u64;
        }
        self.wr.sg_list = self.parts.get().as_mut_ptr();
        // SAFETY: the list and an inline payload live to the end of the call; for the rest the caller's promise.
        unsafe { pair.post_send(&mut self.wr) }
    }
}

/// The work requests of a connection that wait.
pub(super) type HeldQueue = VecDeque<HeldWork>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_soft_devices_have_their_requests_held() {
        let other = Holding::of(0x02c9);
        assert_eq!(other, Holding { fences: false, reads: false, long_reads: false });
        assert_eq!(other.most_unanswered(true, true, 16), None);
    }

    #[test]
    fn fences_wait_for_all_reads_and_reads_on_siw_for_those_above_the_limit() {
        for vendor in [RXE, SIW] {
            assert_eq!(Holding::of(vendor).most_unanswered(true, false, 16), Some(0));
            assert_eq!(Holding::of(vendor).most_unanswered(false, false, 16), None);
        }
        assert_eq!(Holding::of(SIW).most_unanswered(false, true, 16), Some(15));
        assert_eq!(Holding::of(SIW).most_unanswered(false, true, 0), Some(0));
        assert_eq!(Holding::of(RXE).most_unanswered(false, true, 16), None);
    }
}
