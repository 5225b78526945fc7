//! A work queue (paper 2, section 1.3.1): descriptors that were posted, are in progress, or have ended.
//!
//! Descriptors are started in the order in which they were posted, and reported in that order, whatever the order in
//! which the transfers end.
#![forbid(unsafe_code)]

use core::borrow::BorrowMut;

use super::codes::{STATUS_DONE, STATUS_ERRORS, STATUS_FLUSHED, STATUS_TRANSPORT};
use super::descriptor::{ViaDescriptor, ViaSegment};
use super::fifo::Fifo;

/// What a started descriptor waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Awaited {
    /// The acknowledgement of the record with this number.
    Ack(u64),
    /// The answer to the read request with this number.
    Read(u32),
    /// The end of the transfer with this number, which the connection executes by itself.
    Transfer(u64),
}

/// The phase of a posted descriptor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WorkPhase {
    /// Not started.
    #[default]
    Posted,
    /// Started.
    Issued(Awaited),
    /// Ended; `status` and `length` are final.
    Ended,
}

/// A posted descriptor.
#[derive(Clone, Copy, Debug, Default)]
pub struct WorkEntry {
    /// The address of the descriptor, which the queue only keeps.
    pub cookie: u64,
    /// The handle of the memory of the descriptor.
    pub handle: u32,
    /// The local copy of the descriptor.
    pub descriptor: ViaDescriptor,
    /// Bytes of all local segments.
    pub total: u64,
    /// The phase.
    pub phase: WorkPhase,
    /// Once ended: status bits, with [`STATUS_DONE`].
    pub status: u32,
    /// Once ended: bytes moved.
    pub length: u32,
    /// Once ended: immediate data that arrived.
    pub arrived: Option<u32>,
    /// The number of segments that were posted before those of this descriptor.
    first_segment: u64,
}

impl WorkEntry {
    /// Returns whether the descriptor ended with an error.
    #[inline(always)]
    pub const fn has_failed(&self) -> bool {
        self.status & STATUS_ERRORS != 0
    }
}

/// A work queue over lent storage.
#[derive(Debug)]
pub struct WorkQueue<E: BorrowMut<[WorkEntry]>, S: BorrowMut<[ViaSegment]>> {
    entries: Fifo<WorkEntry, E>,
    segments: Fifo<ViaSegment, S>,
    /// The number of segments that were removed since the start.
    removed: u64,
    /// The number of entries that were reported as finished: those at the front.
    reported: usize,
    /// The number of entries that are not posted any more: those at the front.
    started: usize,
}

impl<E: BorrowMut<[WorkEntry]>, S: BorrowMut<[ViaSegment]>> WorkQueue<E, S> {
    /// Returns an empty queue.
    pub const fn new(entries: E, segments: S) -> Self {
        Self {
            entries: Fifo::new(entries),
            segments: Fifo::new(segments),
            removed: 0,
            reported: 0,
            started: 0,
        }
    }

    /// Returns the number of descriptors, finished ones included.
    #[inline(always)]
    pub const fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns whether there is no descriptor.
    #[inline(always)]
    pub const fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns whether there is storage for a descriptor with this number of segments.
    #[inline(always)]
    pub fn has_room(&self, segments: usize) -> bool {
        self.entries.len() < self.entries.capacity()
            && segments <= self.segments.capacity() - self.segments.len()
    }

    /// Returns the numbers of descriptors and of segments for which there is storage.
    pub fn capacity(&self) -> (usize, usize) {
        (self.entries.capacity(), self.segments.capacity())
    }

    /// Moves the queue to other storage. Returns whether it was large enough.
    pub fn replace(&mut self, entries: E, segments: S) -> bool {
        self.entries.replace(entries).is_ok() && self.segments.replace(segments).is_ok()
    }

    /// Appends a descriptor with its local segments. Returns whether there was storage for it.
    #[inline(always)]
    pub fn post(
        &mut self,
        cookie: u64,
        handle: u32,
        descriptor: ViaDescriptor,
        segments: impl Iterator<Item = ViaSegment>,
    ) -> bool {
        let count = usize::from(descriptor.segments);
        if !self.has_room(count) {
            return false;
        }
        let first_segment = self.removed + self.segments.len() as u64;
        let (mut total, mut pushed) = (0, 0);
        for segment in segments.take(count) {
            total += u64::from(segment.length);
            pushed += usize::from(self.segments.push(segment));
        }
        let descriptor = ViaDescriptor { segments: pushed as u16, ..descriptor };
        self.entries.push(WorkEntry {
            cookie,
            handle,
            descriptor,
            total,
            first_segment,
            ..WorkEntry::default()
        })
    }

    /// Appends a descriptor that has already ended, and whose segments are not needed. Returns whether there was
    /// storage for it. All earlier descriptors are started.
    #[inline(always)]
    pub fn post_ended(&mut self, (cookie, handle): (u64, u32), status: u32, length: u32) -> bool {
        let first_segment = self.removed + self.segments.len() as u64;
        let (phase, status) = (WorkPhase::Ended, status | STATUS_DONE);
        let entry =
            WorkEntry { cookie, handle, phase, status, length, first_segment, ..WorkEntry::default() };
        let is_posted = self.entries.push(entry);
        self.started += usize::from(is_posted);
        is_posted
    }

    /// Returns the entry at a position, counted from the oldest.
    #[inline(always)]
    pub fn get(&self, position: usize) -> Option<WorkEntry> {
        self.entries.get(position)
    }

    /// Returns a reference to the entry at a position.
    #[inline(always)]
    pub fn peek(&self, position: usize) -> Option<&WorkEntry> {
        self.entries.peek(position)
    }

    /// Returns the local segments of an entry.
    #[inline(always)]
    pub fn segments(&self, entry: &WorkEntry) -> impl Iterator<Item = ViaSegment> + Clone + '_ {
        let first = (entry.first_segment - self.removed) as usize;
        (first..first + usize::from(entry.descriptor.segments)).filter_map(|at| self.segments.get(at))
    }

    /// Returns the position of the oldest entry that has not ended.
    #[inline(always)]
    pub fn oldest_open(&self) -> usize {
        let mut position = self.reported;
        while self.entries.peek(position).is_some_and(|entry| entry.phase == WorkPhase::Ended) {
            position += 1;
        }
        position
    }

    /// Returns the position of the oldest entry that is not started.
    #[inline(always)]
    pub fn next_posted(&self) -> Option<usize> {
        (self.started < self.entries.len()).then_some(self.started)
    }

    /// Marks the oldest posted entry as started.
    pub fn start(&mut self, awaited: Awaited) {
        if let Some(entry) = self.entries.get_mut(self.started) {
            entry.phase = WorkPhase::Issued(awaited);
            self.started += 1;
        }
    }

    /// Lets a started entry wait for something else.
    pub fn await_more(&mut self, position: usize, awaited: Awaited) {
        if let Some(entry) = self.entries.get_mut(position)
            && matches!(entry.phase, WorkPhase::Issued(_))
        {
            entry.phase = WorkPhase::Issued(awaited);
        }
    }

    /// Ends an entry.
    #[inline(always)]
    pub fn end(&mut self, position: usize, status: u32, length: u32, arrived: Option<u32>) {
        if let Some(entry) = self.entries.get_mut(position) {
            entry.phase = WorkPhase::Ended;
            (entry.status, entry.length, entry.arrived) = (status | STATUS_DONE, length, arrived);
            self.started = self.started.max(position + 1);
        }
    }

    /// Returns the positions of started entries, with what they wait for.
    pub fn issued(&self) -> impl Iterator<Item = (usize, Awaited)> + '_ {
        (self.reported..self.started).filter_map(|position| match self.entries.peek(position)?.phase {
            WorkPhase::Issued(awaited) => Some((position, awaited)),
            _ => None,
        })
    }

    /// Ends all entries that have not ended, as flushed; those in progress as lost if the connection `is_lost`.
    /// `operation` returns the operation bits of an entry.
    pub fn flush(&mut self, is_lost: bool, operation: impl Fn(&WorkEntry) -> u32) {
        for position in self.reported..self.entries.len() {
            let Some(entry) = self.entries.peek(position) else { break };
            let status = match entry.phase {
                WorkPhase::Ended => continue,
                WorkPhase::Issued(_) if is_lost => STATUS_TRANSPORT,
                _ => STATUS_FLUSHED,
            };
            let status = status | operation(entry);
            self.end(position, status, 0, None);
        }
    }

    /// Reports the next entry that has ended, in the order in which the entries were posted.
    #[inline(always)]
    pub fn report(&mut self) -> Option<WorkEntry> {
        let entry = self.entries.get(self.reported).filter(|entry| entry.phase == WorkPhase::Ended)?;
        self.reported += 1;
        Some(entry)
    }

    /// Returns whether the oldest entry was reported.
    #[inline(always)]
    pub const fn has_finished(&self) -> bool {
        self.reported > 0
    }

    /// Removes the oldest entry, if it was reported.
    #[inline(always)]
    pub fn take(&mut self) -> Option<WorkEntry> {
        if self.reported == 0 {
            return None;
        }
        let entry = self.entries.pop()?;
        self.reported -= 1;
        self.started -= 1;
        self.segments.skip(entry.descriptor.segments.into());
        self.removed += u64::from(entry.descriptor.segments);
        Some(entry)
    }
}

#[cfg(test)]
mod tests {
    use std::vec;
    use std::vec::Vec;

    use super::*;

    type TestQueue = WorkQueue<Vec<WorkEntry>, Vec<ViaSegment>>;

    fn queue() -> TestQueue {
        WorkQueue::new(vec![WorkEntry::default(); 4], vec![ViaSegment::default(); 6])
    }

    fn post(queue: &mut TestQueue, cookie: u64, lengths: &[u32]) -> bool {
        let descriptor = ViaDescriptor { segments: lengths.len() as u16, ..Default::default() };
        let segments =
            lengths.iter().map(|length| ViaSegment { address: cookie, handle: 1, length: *length });
        queue.post(cookie, 1, descriptor, segments)
    }

    #[test]
    fn descriptors_are_reported_in_the_order_posted_whatever_ends_first() {
        let mut queue = queue();
        assert!(post(&mut queue, 1, &[4, 5]) && post(&mut queue, 2, &[6]));
        queue.start(Awaited::Read(7));
        assert_eq!(queue.issued().collect::<Vec<_>>(), [(0, Awaited::Read(7))]);
        queue.end(1, 0, 6, None);
        assert!(queue.report().is_none() && queue.take().is_none());
        queue.end(0, 0, 9, None);
        assert_eq!(
            queue.report().map(|entry| (entry.cookie, entry.total, entry.status)),
            Some((1, 9, STATUS_DONE))
        );
        assert_eq!(queue.take().map(|entry| entry.cookie), Some(1));
        assert!(queue.take().is_none(), "not reported");
        let second = queue.report().unwrap();
        assert_eq!(queue.segments(&second).map(|it| it.length).collect::<Vec<_>>(), [6]);
    }

    #[test]
    fn a_full_queue_refuses_and_larger_storage_accepts() {
        let mut queue = queue();
        assert!(
            post(&mut queue, 1, &[1; 4]) && !post(&mut queue, 2, &[1; 3]) && post(&mut queue, 2, &[1, 1])
        );
        assert!(post(&mut queue, 3, &[]) && post(&mut queue, 4, &[]) && !post(&mut queue, 5, &[]));
        assert!(queue.replace(vec![WorkEntry::default(); 8], vec![ViaSegment::default(); 16]));
        assert!(post(&mut queue, 5, &[2]));
        let last = queue.get(4).unwrap();
        assert_eq!(queue.segments(&last).map(|it| (it.address, it.length)).collect::<Vec<_>>(), [(5, 2)]);
    }

    #[test]
    fn a_flush_ends_what_has_not_ended_and_distinguishes_what_was_in_progress() {
        for (is_lost, status) in [(true, STATUS_TRANSPORT), (false, STATUS_FLUSHED)] {
            let mut queue = queue();
            for cookie in 0..3 {
                assert!(post(&mut queue, cookie, &[]));
            }
            queue.end(0, 0, 0, None);
            queue.start(Awaited::Ack(1));
            queue.flush(is_lost, |_| 0x10000);
            let all: Vec<u32> = core::iter::from_fn(|| queue.report()).map(|entry| entry.status).collect();
            assert_eq!(all, [1, status | 0x10001, STATUS_FLUSHED | 0x10001]);
        }
    }
}
