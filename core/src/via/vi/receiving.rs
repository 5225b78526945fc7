//! The receive queue: its oldest descriptors are mirrored at the other side, several at a time (paper 2, section
//! 1.4.3).
#![forbid(unsafe_code)]

use core::borrow::BorrowMut;

use super::{LendResult, MIRROR_BATCH, MIRROR_LATEST, MIRROR_SEGMENTS, Vi, ViaCarrier};
use crate::via::codes::{AsyncError, OPERATION_RECEIVE, STATUS_LENGTH, STATUS_PROTECTION, ViState};
use crate::via::descriptor::{MOST_SEGMENTS, SEGMENT_BYTES, ViaSegment};
use crate::via::record::{MIRROR_HEAD_BYTES, MirrorWriter, ViaRecord};
use crate::via::work_queue::WorkEntry;

/// Bytes of the list of a mirror record: a descriptor with the most segments fits.
const LIST_BYTES: usize = MIRROR_HEAD_BYTES + MOST_SEGMENTS * SEGMENT_BYTES;
/// Bytes of a list of 32 descriptors with one segment, and the segments of a single descriptor in it.
const SHORT_LIST_BYTES: usize = MIRROR_BATCH * (MIRROR_HEAD_BYTES + SEGMENT_BYTES);
const SHORT_SEGMENTS: usize = 32;

impl<E: BorrowMut<[WorkEntry]>, S: BorrowMut<[ViaSegment]>> Vi<E, S> {
    /// Returns whether receive descriptors must be mirrored now: the other side has few left, or the program has posted
    /// half a batch of them before it takes what has arrived, and may not poll in vain for some time.
    #[inline(always)]
    pub(super) fn must_mirror(&self) -> bool {
        let least = match self.mirrored {
            0..=MIRROR_LATEST => 1,
            left if left < MIRROR_BATCH / 2 => MIRROR_BATCH / 2,
            _ => return false,
        };
        self.unmirrored() >= least
    }

    /// Mirrors as many receive descriptors as the other side has room for.
    #[inline(never)]
    pub(super) fn mirror_all(&mut self, carrier: &mut impl ViaCarrier) {
        while self.state == ViState::Connected && self.mirror_batch(carrier) {}
    }

    /// Informs the other side, which waits for a receive descriptor, that there is none.
    #[inline(always)]
    pub(super) fn answer_starved(&mut self, carrier: &mut impl ViaCarrier) {
        if self.peer_starves && self.state == ViState::Connected {
            // Anything mirrored has already answered the other side.
            let is_empty = self.mirrored == 0;
            let empty = ViaRecord::Empty { mirrored: self.mirrored_total };
            self.peer_starves = is_empty && (self.unmirrored() > 0 || !carrier.push(&empty));
        }
    }

    /// Returns the number of open receive descriptors that the other side does not know.
    #[inline(always)]
    pub(super) fn unmirrored(&self) -> usize {
        self.receive.len().saturating_sub(self.receive.oldest_open() + self.mirrored)
    }

    /// Mirrors descriptors in one record. Returns whether a further attempt is of use.
    fn mirror_batch(&mut self, carrier: &mut impl ViaCarrier) -> bool {
        let first = self.receive.oldest_open() + self.mirrored;
        match self.receive.peek(first) {
            None => false,
            // Most descriptors have few segments: a small list costs less.
            Some(entry) if usize::from(entry.descriptor.segments) <= SHORT_SEGMENTS => {
                self.mirror_list(first, &mut [0; SHORT_LIST_BYTES], carrier)
            }
            Some(_) => self.mirror_list(first, &mut [0; LIST_BYTES], carrier),
        }
    }

    /// Mirrors descriptors from `first` on, as many as the list can hold.
    fn mirror_list(&mut self, first: usize, bytes: &mut [u8], carrier: &mut impl ViaCarrier) -> bool {
        let mut list = MirrorWriter::new(bytes);
        let (mut count, mut segments) = (0, 0);
        while self.mirrored + count < MIRROR_BATCH
            && let Some(entry) = self.receive.get(first + count)
        {
            let more = usize::from(entry.descriptor.segments);
            let is_alone = self.mirrored + count == 0;
            if !is_alone && self.mirrored_segments + segments + more > MIRROR_SEGMENTS {
                break;
            }
            match self.lend(&entry, carrier) {
                Ok(LendResult::Done) => {}
                Ok(_) => break,
                Err(_) if !is_alone => break,
                // The oldest open descriptor: nothing can arrive before it.
                Err(status) => return self.end_faulty(first, status, carrier),
            }
            if !list.push(entry.descriptor.segments, self.receive.segments(&entry)) {
                break;
            }
            (count, segments) = (count + 1, segments + more);
        }
        if count == 0 || !carrier.push(&list.record()) {
            return false;
        }
        self.mirrored += count;
        self.mirrored_segments += segments;
        self.mirrored_total += count as u64;
        true
    }

    /// Lends the memory of a descriptor.
    ///
    /// # Errors
    /// The error bits of a descriptor that is faulty.
    fn lend(&self, entry: &WorkEntry, carrier: &mut impl ViaCarrier) -> Result<LendResult, u32> {
        if entry.descriptor.fault != 0 {
            return Err(entry.descriptor.fault);
        }
        if entry.total > u64::from(u32::MAX) {
            return Err(STATUS_LENGTH);
        }
        for segment in self.receive.segments(entry).filter(|segment| segment.length > 0) {
            match carrier.lend(segment, self.attributes.ptag) {
                LendResult::Done => {}
                LendResult::Refused => return Err(STATUS_PROTECTION),
                LendResult::Later => return Ok(LendResult::Later),
            }
        }
        Ok(LendResult::Done)
    }

    /// Ends a receive descriptor that cannot be used; a reliable connection ends. Returns whether others follow.
    fn end_faulty(&mut self, position: usize, status: u32, carrier: &mut impl ViaCarrier) -> bool {
        self.receive.end(position, status | OPERATION_RECEIVE, 0, None);
        if self.attributes.reliability.is_reliable() {
            self.break_off(AsyncError::ConnectionLost, AsyncError::ConnectionLost, carrier);
            return false;
        }
        true
    }

    /// Sends the acknowledgements and the answers that are due.
    #[inline(always)]
    pub(super) fn pump_answers(&mut self, carrier: &mut impl ViaCarrier) {
        while let Some((number, is_permitted)) = self.answers.get(0)
            && carrier.push(&ViaRecord::ReadAnswer { number, is_permitted })
        {
            self.answers.skip(1);
        }
        if self.acks_due > self.acks_sent && carrier.push(&ViaRecord::Ack { count: self.acks_due }) {
            self.acks_sent = self.acks_due;
        }
    }
}
