//! Fences where the device's own can't be used.
//!
//! Soft `RoCE` keeps a fenced work request until no read or atomic operation of its queue is under way
//! (`rxe_wqe_is_fenced`, Linux 6.1). When a packet is lost it sends again from the oldest that was not acknowledged, and
//! reads behind that, or that one itself if it is a fenced read, still count as under way: it waits for itself, for ever.
//! So there the port keeps a fenced work request, and all behind it, until the reads before it were answered.

use std::collections::VecDeque;

use nemesia_core::port::memory::LostError;
use nemesia_core::sync::opaque;
use rdma_core_sys as raw;

use super::VerbsPort;
use super::link::Link;
use super::regions::Parts;
use crate::verbs::pair::QueuePair;

/// What the vendor of soft `RoCE` is called: `RXE_VENDOR_ID`.
const RXE: u32 = 0xff_ffff;

/// Whether a device's fences can't be used.
pub(super) fn fences_stall(vendor: u32) -> bool {
    vendor == RXE
}

/// A work request that waits. Its place in the ring is taken.
pub(super) struct Held {
    wr: raw::ibv_send_wr,
    parts: Parts,
    /// A copy of an inline payload.
    inline: Box<[u8]>,
    fence: bool,
    sequence: u32,
}

// SAFETY: the list of parts and the payload are its own; the request's pointers are set when it is posted.
unsafe impl Send for Held {}

impl Held {
    /// Keeps a work request.
    ///
    /// # Safety
    /// An inline payload can be read.
    pub(super) unsafe fn new(
        wr: raw::ibv_send_wr,
        list: &[raw::ibv_sge],
        fence: bool,
        sequence: u32,
    ) -> Self {
        let mut parts = Parts::NONE;
        // There are never more.
        for (part, to) in list.iter().zip(&mut parts.list) {
            *to = *part;
            parts.count += 1;
        }
        let mut inline = Box::default();
        if wr.send_flags & raw::IBV_SEND_INLINE != 0 {
            let part = parts.list[0];
            let from = std::ptr::with_exposed_provenance::<u8>(part.addr as usize);
            inline = vec![0; part.length as usize].into_boxed_slice();
            // SAFETY: the caller's promise; inline payloads have one part. Threads may use the bytes meanwhile, so there is no
            // reference to them.
            unsafe { opaque::copy(from, inline.as_mut_ptr(), inline.len()) };
        }
        Self { wr, parts, inline, fence, sequence }
    }

    /// Posts it, as [`QueuePair::post_send`] does.
    ///
    /// # Safety
    /// As there, for parts that are not inline.
    unsafe fn post(mut self, pair: &QueuePair) -> Result<(), i32> {
        if !self.inline.is_empty() {
            self.parts.list[0].addr = self.inline.as_ptr().expose_provenance() as u64;
        }
        self.wr.sg_list = self.parts.get().as_mut_ptr();
        // SAFETY: the list and an inline payload live to the end of the call; for the rest the caller's promise.
        unsafe { pair.post_send(&mut self.wr) }
    }
}

/// Posts those whose turn it is; the error number where the device takes one no more.
fn release(link: &mut Link) -> Result<(), i32> {
    while let Some(held) = link.held.front() {
        if held.fence && link.sends.awaits_answer_before(held.sequence) {
            break;
        }
        let (Some(held), Some(pair)) = (link.held.pop_front(), &link.pair) else { break };
        // SAFETY: the parts lie in memory that was promised until its regions are deregistered; a stale key the device refuses.
        unsafe { held.post(pair) }?;
    }
    Ok(())
}

/// Work requests of a connection that wait.
pub(super) type Waiting = VecDeque<Held>;

impl VerbsPort {
    /// Reads were answered: what has waited for them goes on.
    #[cold]
    pub(super) fn release_answered(&mut self) {
        for index in std::mem::take(&mut self.answered) {
            let Some((_, link)) = self.links.at(index) else { continue };
            if let Err(code) = release(link) {
                link.cause.get_or_insert(LostError::Unknown(code.unsigned_abs()));
                self.suspects.push(index);
            }
        }
    }
}
