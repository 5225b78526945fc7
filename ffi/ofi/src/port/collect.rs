//! The completions of an endpoint, for the queues of libfabric.

use nemesia::internals::os::clock;
use nemesia::{Completion, CompletionKind, Error, Status};

use super::operations::{EndedMessage, Operation};
use super::{Around, DATA, Port, RECV, SEND};
use crate::bindings as fi;
use crate::entries::Entry;
use crate::failure::Failure;
use crate::object::Errno;

const READ: u64 = fi::FI_READ as u64;
const WRITE: u64 = fi::FI_WRITE as u64;

/// The completions that are taken at once.
pub(crate) const BATCH: usize = 16;
/// The reads in a row that may leave out progress while there is nothing where most messages arrive. MPIs read without
/// a pause, and a step of progress takes several times as long as a look there.
const LEFT_OUT: u32 = 7;
/// The ticks of the clock after a step within which reads may leave out the next one: a few microseconds. A program
/// that reads seldom makes a step in each read, and sees the first message of a peer at once.
const RECENT: u64 = 1 << 14;

/// The completions that were taken last.
pub(crate) type Batch = [Completion; BATCH];

/// The steps of progress that reads make, and those that they leave out.
#[derive(Debug, Default)]
pub(super) struct ReadSteps {
    /// The ticks of the last step.
    last: u64,
    /// The reads since then.
    left_out: u32,
}

impl ReadSteps {
    /// Returns whether a read at this time leaves out its step. The caller makes the step otherwise.
    #[inline]
    fn leaves_out(&mut self, now: u64) -> bool {
        if self.left_out < LEFT_OUT && now.wrapping_sub(self.last) < RECENT {
            self.left_out += 1;
            return true;
        }
        *self = Self { last: now, left_out: 0 };
        false
    }
}

impl Port {
    /// Makes progress, and takes completions into the queues that they belong to. `batch` is a place for them.
    #[inline]
    pub(crate) fn collect(&mut self, batch: &mut Batch, around: &mut Around<'_>) {
        if self.is_flooded(around.queues) {
            return;
        }
        // MPIs read until there is nothing, and only then look at what they have read. They may post receives for the
        // messages that follow.
        if std::mem::take(&mut self.has_taken) && self.endpoint.awaits_no_message() {
            return;
        }
        if !self.collect_next(around) && !self.leaves_out(around) {
            self.collect_all(batch, around);
        }
    }

    /// Makes a whole step of progress, and takes completions. A function of its own: most calls do not come here, and
    /// must not even clear the memory for what they could find.
    #[inline(never)]
    fn collect_all(&mut self, batch: &mut Batch, around: &mut Around<'_>) {
        let taken = self.endpoint.completions(batch);
        self.has_taken = taken > 0;
        for completion in batch.iter().take(taken) {
            self.report(completion, around);
        }
        self.attend_written(around);
        if self.kept.is_stalled() {
            self.attend_kept(around);
        }
    }

    /// Takes the completions of receives whose messages are the next packets: the critical path. Returns whether there
    /// was one.
    #[inline(never)]
    fn collect_next(&mut self, around: &mut Around<'_>) -> bool {
        for _ in 0..around.room() {
            let Some((number, status)) = self.endpoint.next_completion() else { break };
            self.has_taken = true;
            // Receives into one run have nothing that is rare.
            if let Some(ended) = self.operations.finish(number) {
                self.report_message(&ended, &status, around);
            } else if let Some(operation) = self.operations.remove(number) {
                self.report_message(&operation.ended(), &status, around);
            }
        }
        self.has_taken
    }

    /// Returns whether a read makes no progress, because that would most probably find nothing.
    #[inline]
    fn leaves_out(&mut self, around: &Around<'_>) -> bool {
        let is_read = around.reader.is_some() && around.room() > 0;
        is_read && self.endpoint.is_quiet() && self.steps.leaves_out(clock::ticks())
    }

    /// Writes an entry for a completion.
    fn report(&mut self, completion: &Completion, around: &mut Around<'_>) {
        let number = completion.context;
        if let (CompletionKind::Send | CompletionKind::Receive, Some(status)) =
            (completion.kind, completion.status())
        {
            if let Some(ended) = self.operations.finish(number) {
                return self.report_message(&ended, &status, around);
            }
            let Some(operation) = self.operations.remove(number) else { return };
            self.report_message(&operation.ended(), &status, around);
            return self.settle(&operation, None, around);
        }
        let result = &completion.result().map_err(|error| self.endpoint.with_reason(error));
        match completion.kind {
            CompletionKind::MultiReceive => {
                let Some(operation) = self.operations.get(number) else { return };
                let buffer = operation.buffer + completion.offset();
                let operation = Operation { buffer, ..operation.shallow() };
                self.report_end(&operation, result, around);
            }
            CompletionKind::MultiReceiveEnd => {
                let Some(mut operation) = self.operations.remove(number) else { return };
                operation.flags = fi::FI_MULTI_RECV.into();
                // The application may use the buffer again, whatever it wants to know.
                operation.is_wanted = true;
                self.report_released(&operation, result, around);
            }
            CompletionKind::Get | CompletionKind::Put | CompletionKind::Atomic => {
                self.report_part(number, result, around);
            }
            // The data of a write has left.
            CompletionKind::Active => {
                let error = self.failure_of(number, result, around);
                self.end_part(number, error, around);
            }
            _ => {
                let Some(operation) = self.operations.remove(number) else { return };
                self.report_end(&operation, result, around);
                self.settle(&operation, result.as_ref().err().map(Failure::of), around);
            }
        }
    }

    /// Reports the end of a one-sided operation, if this is its last part.
    fn report_part(&mut self, number: u64, result: &Result<Status, Error>, around: &mut Around<'_>) {
        let error = self.failure_of(number, result, around);
        let Some(operation) = self.operations.get(number) else { return };
        operation.parts -= 1;
        operation.error = operation.error.or(error);
        if operation.parts > 0 {
            return;
        }
        if operation.has_notice() && operation.error.is_none() {
            self.send_notice(number, around);
        } else {
            let error = operation.error;
            self.end_part(number, error, around);
        }
    }

    /// Reports the end of a one-sided operation.
    pub(super) fn end_part(&mut self, number: u64, error: Option<Failure>, around: &mut Around<'_>) {
        let Some(operation) = self.operations.remove(number) else { return };
        self.give_room_back(&operation);
        if !self.counters.is_empty() {
            self.count(operation.flags & (READ | WRITE), error.is_none());
        }
        if error.is_none() && !operation.is_wanted {
            return;
        }
        let error = error.map(|error| (error, 0));
        let (context, flags) = (operation.context, operation.flags);
        self.write(&Entry { context, flags, source: u64::MAX, error, ..Entry::default() }, true, around);
    }

    /// Reports the end of a message.
    fn report_end(&mut self, operation: &Operation, result: &Result<Status, Error>, around: &mut Around<'_>) {
        let error = match result {
            Ok(status) => return self.report_message(&operation.ended(), status, around),
            Err(error) => error,
        };
        if !self.counters.is_empty() {
            self.count(operation.flags & (SEND | RECV), false);
        }
        let mut entry = operation.entry();
        if let Error::Truncated(truncation) = error {
            let status = truncation.status;
            (entry.len, entry.tag) = (status.len, status.tag);
            let left = truncation.message.saturating_sub(status.len as u64);
            entry.error = Some((Errno::TRUNCATED.into(), left as usize));
            self.name_failure(operation.flags, error, around);
        } else {
            entry.error = Some((self.name_failure(operation.flags, error, around), 0));
        }
        self.write(&entry, operation.flags & SEND != 0, around);
    }

    /// Reports the end of a message that succeeded: the critical path.
    #[inline(always)]
    fn report_message(&mut self, ended: &EndedMessage, status: &Status, around: &mut Around<'_>) {
        let EndedMessage { context, flags, is_wanted, buffer } = *ended;
        let is_send = flags & SEND != 0;
        if !self.counters.is_empty() {
            self.count(flags & (SEND | RECV), true);
        }
        if !is_wanted {
            return;
        }
        let mut entry = Entry { context, flags, buffer, source: u64::MAX, ..Entry::default() };
        if is_send {
            entry.len = status.len;
        } else {
            self.describe(&mut entry, status, around);
        }
        let bound = if is_send { self.send_queue } else { self.receive_queue };
        if let Some(bound) = bound {
            around.put(bound.queue, &entry);
        }
    }

    /// Reports that a buffer for many messages is free.
    fn report_released(
        &mut self,
        operation: &Operation,
        result: &Result<Status, Error>,
        around: &mut Around<'_>,
    ) {
        let failed = result.as_ref().err();
        let error = failed.map(|error| (self.name_failure(operation.flags, error, around), 0));
        let (context, flags) = (operation.context, operation.flags);
        self.write(&Entry { context, flags, source: u64::MAX, error, ..Entry::default() }, false, around);
    }

    /// Describes a message that was received.
    #[inline(always)]
    fn describe(&mut self, entry: &mut Entry, status: &Status, around: &mut Around<'_>) {
        (entry.len, entry.tag) = (status.len, status.tag);
        if let Some(data) = status.immediate {
            entry.data = data;
            entry.flags |= DATA;
        }
        entry.source = self.source_of(status.rank, around);
    }

    #[inline(never)]
    pub(super) fn write(&self, entry: &Entry, is_send: bool, around: &mut Around<'_>) {
        let bound = if is_send { self.send_queue } else { self.receive_queue };
        if let Some(bound) = bound {
            around.put(bound.queue, entry);
        }
    }

    /// Returns the address of a sender in the vector; FI_ADDR_NOTAVAIL if it is not there, or nobody asks for it.
    #[inline]
    pub(super) fn source_of(&mut self, rank: usize, around: &mut Around<'_>) -> u64 {
        if self.caps & fi::FI_SOURCE == 0 { u64::MAX } else { self.find_source(rank, around) }
    }

    #[inline(never)]
    pub(super) fn find_source(&mut self, rank: usize, around: &mut Around<'_>) -> u64 {
        let peer = self.endpoint.peer_of(rank);
        if let (Some(peer), Some(Some((known, number)))) = (peer, self.sources.get(rank))
            && peer == *known
        {
            return *number;
        }
        let Some(vector) = self.vector.and_then(|at| around.vectors.get(at)) else { return u64::MAX };
        let Some(peer) = peer else {
            return if rank == self.endpoint.rank() {
                vector.find(&self.own).unwrap_or(u64::MAX)
            } else {
                u64::MAX
            };
        };
        let found = self.endpoint.address_of(peer).ok().and_then(|address| vector.find(address));
        let Some(number) = found else { return u64::MAX };
        if rank >= self.sources.len() {
            self.sources.resize(rank + 1, None);
        }
        self.sources[rank] = Some((peer, number));
        number
    }
}

impl Operation {
    /// Returns the completion, as far as it is known before the end.
    #[inline]
    fn entry(&self) -> Entry {
        let Self { context, flags, buffer, .. } = *self;
        Entry { context, flags, buffer, source: u64::MAX, ..Entry::default() }
    }

    /// Returns what the completion of one message of many needs.
    fn shallow(&self) -> Self {
        let Self { context, flags, is_wanted, .. } = *self;
        Self { context, flags, is_wanted, ..Self::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::{LEFT_OUT, RECENT, ReadSteps};

    #[test]
    fn reads_in_rapid_succession_leave_out_most_steps() {
        let mut steps = ReadSteps::default();
        let made = (1..=160).filter(|at| !steps.leaves_out(RECENT + at)).count();
        assert_eq!(made, 160 / (LEFT_OUT as usize + 1));
    }

    #[test]
    fn seldom_read_makes_a_step_each_time() {
        let mut steps = ReadSteps::default();
        assert!((1..=100).all(|at| !steps.leaves_out(at * RECENT)));
    }
}
