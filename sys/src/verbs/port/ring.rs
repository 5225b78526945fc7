//! Posted requests that have not completed.

use std::collections::VecDeque;

use nemesia_core::port::memory::{WorkError, WorkOutcome};

/// A work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PostedWork {
    /// The caller's number.
    pub(super) id: u64,
    /// Whether only its failure is reported.
    pub(super) quiet: bool,
    /// Whether the device reports it.
    pub(super) signalled: bool,
    /// Whether it is a read or an atomic operation, and so has an answer.
    pub(super) answered: bool,
    /// Whether the next request belongs to the same operation, which is reported when its last request
    /// completes in order, or when one fails.
    pub(super) more: bool,
    /// The position of its operation among all operations posted to send queues.
    pub(super) number: u64,
    /// Its outcome, if known.
    pub(super) outcome: Option<WorkOutcome>,
}

/// The work requests of one queue. They complete here in the order posted. Devices should do the same, but siw
/// reports a write that was posted after a read before that read.
#[derive(Debug, Default)]
pub(super) struct Ring {
    posted: VecDeque<PostedWork>,
    /// The sequence number of the oldest; it wraps.
    first: u32,
    /// Whether one has failed: none after it succeeds, whatever the device has reported of it before.
    failed: bool,
    /// Whether the oldest operation was reported as failed, and only its remaining requests are left.
    reported: bool,
}

impl Ring {
    /// Makes a ring for `depth` requests.
    pub(super) fn new(depth: u32) -> Self {
        Self { posted: VecDeque::with_capacity(depth as usize), first: 0, failed: false, reported: false }
    }

    pub(super) fn len(&self) -> usize {
        self.posted.len()
    }

    /// Returns the sequence number of the next request.
    pub(super) fn next(&self) -> u32 {
        self.first.wrapping_add(self.posted.len() as u32)
    }

    /// Returns whether more than `most` reads and atomic operations before this number have no answer yet.
    pub(super) fn awaits_more_answers_before(&self, sequence: u32, most: u32) -> bool {
        let before = sequence.wrapping_sub(self.first) as usize;
        let waits = |posted: &&PostedWork| posted.answered && posted.outcome.is_none();
        self.posted.iter().take(before).filter(waits).nth(most as usize).is_some()
    }

    /// Returns whether the device will report a request that is under way.
    pub(super) fn awaits_report(&self) -> bool {
        self.posted.iter().any(|posted| posted.signalled && posted.outcome.is_none())
    }

    pub(super) fn push(&mut self, posted: PostedWork) {
        self.posted.push_back(posted);
    }

    /// Returns the number of the oldest operation.
    pub(super) fn oldest(&self) -> Option<u64> {
        self.posted.front().map(|posted| posted.number)
    }

    /// Completes a request, and with it the earlier ones that the device does not report. Passes each operation
    /// that is then the oldest and complete to `each`, with its outcome. Returns `false` if the request is not
    /// here, or no longer.
    #[inline]
    pub(super) fn complete(
        &mut self,
        sequence: u32,
        outcome: WorkOutcome,
        mut each: impl FnMut(u64, WorkOutcome),
    ) -> bool {
        let at = sequence.wrapping_sub(self.first) as usize;
        let Some(found) = self.posted.get_mut(at).filter(|found| found.outcome.is_none()) else {
            return false;
        };
        found.outcome = Some(outcome);
        for before in self.posted.iter_mut().take(at).filter(|before| !before.signalled) {
            before.outcome.get_or_insert(WorkOutcome::Done);
        }
        while let Some(PostedWork { id, quiet, more, outcome: Some(outcome), .. }) =
            self.posted.front().copied()
        {
            self.posted.pop_front();
            self.first = self.first.wrapping_add(1);
            let is_failure = matches!(outcome, WorkOutcome::Failed(_));
            if self.reported {
                self.reported = more;
            } else if self.failed && !is_failure {
                self.reported = more;
                each(id, WorkOutcome::Failed(WorkError::Flushed));
            } else if is_failure || !(quiet || more) {
                self.reported = more;
                self.failed |= is_failure;
                each(id, outcome);
            }
        }
        true
    }

    /// Ends the ring: passes every remaining operation to `each` as flushed. The oldest has not completed, so
    /// none after it has either, whatever the device has reported. An operation's own error is passed on
    /// instead, because it is more specific.
    pub(super) fn flush(&mut self, mut each: impl FnMut(u64, WorkOutcome)) {
        self.first = self.next();
        let mut failed = None;
        for PostedWork { id, more, outcome, .. } in self.posted.drain(..) {
            failed = failed.or(outcome.filter(|outcome| matches!(outcome, WorkOutcome::Failed(_))));
            if more {
                continue;
            }
            let outcome = failed.take().unwrap_or(WorkOutcome::Failed(WorkError::Flushed));
            if !std::mem::take(&mut self.reported) {
                each(id, outcome);
            }
        }
    }
}

/// The receives of the shared queue, which complete in any order.
#[derive(Debug)]
pub(super) struct Slab {
    places: Vec<Option<u64>>,
    free: Vec<u32>,
}

impl Slab {
    /// Makes a store with `places` places.
    pub(super) fn new(places: u32) -> Self {
        Self { places: vec![None; places as usize], free: (0..places).rev().collect() }
    }

    /// Puts a number into a place; `None` if no place is free.
    pub(super) fn put(&mut self, id: u64) -> Option<u32> {
        let place = self.free.pop()?;
        self.places[place as usize] = Some(id);
        Some(place)
    }

    /// Takes a number out; `None` if the place is empty.
    pub(super) fn take(&mut self, place: u32) -> Option<u64> {
        let id = self.places.get_mut(place as usize)?.take()?;
        self.free.push(place);
        Some(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAILED: WorkOutcome = WorkOutcome::Failed(WorkError::Refused);
    const FLUSHED: WorkOutcome = WorkOutcome::Failed(WorkError::Flushed);

    fn posted(id: u64, quiet: bool, signalled: bool) -> PostedWork {
        PostedWork { id, quiet, signalled, answered: false, more: false, number: id, outcome: None }
    }

    /// Returns the completions that the caller sees.
    fn completed(ring: &mut Ring, sequence: u32, outcome: WorkOutcome) -> Option<Vec<u64>> {
        let mut seen = Vec::new();
        ring.complete(sequence, outcome, |id, _| seen.push(id)).then_some(seen)
    }

    fn flushed(ring: &mut Ring) -> Vec<(u64, WorkOutcome)> {
        let mut seen = Vec::new();
        ring.flush(|id, outcome| seen.push((id, outcome)));
        seen
    }

    /// Adds an operation of `count` work requests.
    fn push_long(ring: &mut Ring, id: u64, quiet: bool, count: u32) {
        for at in 1..=count {
            ring.push(PostedWork { more: at < count, ..posted(id, quiet, at == count) });
        }
    }

    #[test]
    fn a_completion_frees_the_quiet_ones_before_it_and_is_reported_once() {
        let mut ring = Ring { first: u32::MAX - 1, ..Ring::default() };
        for id in 0..4 {
            ring.push(posted(id, id != 2, id == 2));
        }
        assert_eq!(ring.next(), 2);
        assert_eq!(completed(&mut ring, 0, WorkOutcome::Done), Some(vec![2]));
        assert_eq!(ring.len(), 1);
        for late in [u32::MAX - 1, u32::MAX, 0, 2, 77] {
            assert_eq!(completed(&mut ring, late, WorkOutcome::Done), None, "{late}");
        }
        assert_eq!(flushed(&mut ring), [(3, FLUSHED)]);
        assert_eq!(completed(&mut ring, 1, WorkOutcome::Done), None, "what was taken does not complete");
        assert_eq!(ring.next(), 2);
    }

    #[test]
    fn requests_reported_out_of_order_wait_for_earlier_ones() {
        let mut ring = Ring::new(8);
        for id in 0..5 {
            ring.push(posted(id, id == 3, true));
        }
        assert_eq!(completed(&mut ring, 2, WorkOutcome::Done), Some(vec![]));
        assert_eq!(completed(&mut ring, 2, WorkOutcome::Done), None, "twice");
        assert_eq!(completed(&mut ring, 0, WorkOutcome::Done), Some(vec![0]));
        assert_eq!(completed(&mut ring, 3, WorkOutcome::Done), Some(vec![]));
        assert_eq!(completed(&mut ring, 1, WorkOutcome::Done), Some(vec![1, 2]), "and not the quiet one");
        assert_eq!(completed(&mut ring, 4, WorkOutcome::Done), Some(vec![4]));
        assert_eq!(ring.len(), 0);
    }

    #[test]
    fn nothing_succeeds_after_a_failure() {
        let mut ring = Ring::new(8);
        for id in 0..3 {
            ring.push(posted(id, false, true));
        }
        assert_eq!(completed(&mut ring, 1, WorkOutcome::Done), Some(vec![]));
        let mut seen = Vec::new();
        ring.complete(0, FAILED, |id, outcome| seen.push((id, outcome)));
        ring.complete(2, FAILED, |id, outcome| seen.push((id, outcome)));
        assert_eq!(seen, [(0, FAILED), (1, WorkOutcome::Failed(WorkError::Flushed)), (2, FAILED)]);
    }

    #[test]
    fn a_long_operation_completes_once_when_all_of_it_has() {
        let mut ring = Ring::new(8);
        push_long(&mut ring, 7, false, 3);
        push_long(&mut ring, 8, true, 2);
        ring.push(posted(9, false, true));
        assert_eq!(completed(&mut ring, 0, WorkOutcome::Done), Some(vec![]), "a part of it");
        assert_eq!((completed(&mut ring, 2, WorkOutcome::Done), ring.len()), (Some(vec![7]), 3));
        // A quiet one is not reported, and its places are free.
        assert_eq!((completed(&mut ring, 4, WorkOutcome::Done), ring.len()), (Some(vec![]), 1));
        assert_eq!(completed(&mut ring, 5, WorkOutcome::Done), Some(vec![9]));
    }

    #[test]
    fn a_long_operation_fails_once_whichever_part_of_it_does() {
        for (quiet, failing) in [(false, 0), (false, 1), (false, 2), (true, 0), (true, 1), (true, 2)] {
            for reported in failing..5 {
                let mut ring = Ring::new(8);
                push_long(&mut ring, 7, quiet, 3);
                push_long(&mut ring, 8, quiet, 2);
                let mut seen = Vec::new();
                // The device reports these before it is destroyed.
                ring.complete(failing, FAILED, |id, outcome| seen.push((id, outcome)));
                for sequence in failing + 1..=reported {
                    ring.complete(sequence, FLUSHED, |id, outcome| seen.push((id, outcome)));
                }
                seen.extend(flushed(&mut ring));
                assert_eq!(seen, [(7, FAILED), (8, FLUSHED)], "{quiet} {failing} {reported}");
                assert_eq!((ring.len(), ring.reported), (0, false));
            }
        }
    }

    #[test]
    fn a_long_operation_that_is_cut_off_is_flushed_once_and_with_its_own_error() {
        let mut ring = Ring::new(8);
        push_long(&mut ring, 7, false, 3);
        push_long(&mut ring, 8, false, 2);
        completed(&mut ring, 0, WorkOutcome::Done);
        // Reported before its turn.
        assert_eq!(completed(&mut ring, 2, FAILED), Some(vec![7]), "what the device does not report is done");
        assert_eq!(flushed(&mut ring), [(8, FLUSHED)]);
        let mut ring = Ring::new(8);
        ring.push(posted(6, false, true));
        push_long(&mut ring, 7, false, 3);
        assert_eq!(completed(&mut ring, 2, FAILED), Some(vec![]));
        assert_eq!(flushed(&mut ring), [(6, FLUSHED), (7, FAILED)]);
    }

    #[test]
    fn no_long_operation_succeeds_after_a_failure() {
        let mut ring = Ring::new(8);
        ring.push(posted(6, false, true));
        for at in 0..3 {
            ring.push(PostedWork { more: at < 2, ..posted(7, false, true) });
        }
        for sequence in 1..4 {
            assert_eq!(completed(&mut ring, sequence, WorkOutcome::Done), Some(vec![]));
        }
        let mut seen = Vec::new();
        ring.complete(0, FAILED, |id, outcome| seen.push((id, outcome)));
        assert_eq!((seen, ring.len()), (vec![(6, FAILED), (7, FLUSHED)], 0));
    }

    #[test]
    fn a_quiet_one_that_fails_is_reported() {
        let mut ring = Ring::new(8);
        ring.push(posted(7, true, false));
        assert_eq!(ring.oldest(), Some(7));
        assert_eq!(completed(&mut ring, 0, FAILED), Some(vec![7]));
    }

    #[test]
    fn only_reads_before_a_number_are_waited_for() {
        let mut ring = Ring { first: u32::MAX, ..Ring::default() };
        for id in 0..3 {
            ring.push(PostedWork { answered: id == 1, ..posted(id, false, true) });
        }
        let awaits = |ring: &Ring, sequence| ring.awaits_more_answers_before(sequence, 0);
        assert!(!awaits(&ring, 0) && awaits(&ring, 1) && awaits(&ring, 2));
        // Reported out of order: the read has its answer, but the operation before it is not complete.
        assert_eq!(completed(&mut ring, 0, WorkOutcome::Done), Some(vec![]));
        assert!(!awaits(&ring, 2) && ring.len() == 3);
    }

    #[test]
    fn a_read_waits_only_for_the_reads_that_exceed_the_limit() {
        let mut ring = Ring { first: u32::MAX, ..Ring::default() };
        for id in 0..5 {
            ring.push(PostedWork { answered: id != 2, ..posted(id, false, true) });
        }
        let awaits = |ring: &Ring, sequence| ring.awaits_more_answers_before(sequence, 2);
        assert!(!awaits(&ring, 2) && awaits(&ring, 3) && awaits(&ring, 4));
        assert_eq!(completed(&mut ring, u32::MAX, WorkOutcome::Done), Some(vec![0]));
        assert!(!awaits(&ring, 3) && awaits(&ring, 4));
    }

    #[test]
    fn a_place_holds_one_number_at_a_time() {
        let mut slab = Slab::new(2);
        let (a, b) = (slab.put(7).unwrap(), slab.put(8).unwrap());
        assert_eq!(slab.put(9), None);
        assert_eq!((slab.take(b), slab.take(b), slab.take(99)), (Some(8), None, None));
        assert_eq!(slab.put(9), Some(b));
        assert_eq!((slab.take(a), slab.take(b)), (Some(7), Some(9)));
    }
}
