//! The completion queue, and buffers that receive one message after the other.

use nemesia_core::engine::{CompletionKind, MultiReceiveOptions, OperationCompletion, StartError, Status};

use super::{Outgoing, Pattern, RequestHandle, World, WorldPort};
use crate::tally::Event;
use crate::violation::{Violation, ensure};

impl<P: WorldPort> World<P> {
    /// Sends a message whose completion enters the queue.
    pub(crate) fn send_queued(
        &mut self,
        rank: u32,
        message: &Outgoing,
        context: u64,
    ) -> Result<RequestHandle, StartError> {
        self.engine(rank).check_slot()?;
        let started = self.send(rank, message)?;
        let done = Status { peer: message.to, tag: message.tag, len: message.len, immediate: None };
        self.engine(rank).collect(started.id, (context, CompletionKind::Send), done)?;
        Ok(started)
    }

    /// Posts a receive whose completion enters the queue.
    pub(crate) fn receive_queued(
        &mut self,
        rank: u32,
        pattern: Pattern,
        room: usize,
        context: u64,
    ) -> Result<RequestHandle, StartError> {
        self.engine(rank).check_slot()?;
        let started = self.receive(rank, pattern, room)?;
        let none = Status { peer: 0, tag: 0, len: 0, immediate: None };
        self.engine(rank).collect(started.id, (context, CompletionKind::Receive), none)?;
        Ok(started)
    }

    /// Posts a buffer that receives one message after the other.
    pub(crate) fn post_multi(
        &mut self,
        rank: u32,
        pattern: Pattern,
        len: usize,
        options: MultiReceiveOptions,
        context: u64,
    ) -> Result<RequestHandle, StartError> {
        let (loan, mut buf) = self.room_in(rank, len, &[]);
        let posted = self.engine(rank).post_multi(pattern, &mut buf, options, context);
        self.handle(rank, loan, posted)
    }

    /// Takes at most `most` completions. Every second rank takes those of receives whose messages are the next packets
    /// without the queue, as far as it can.
    pub(crate) fn take_completions(&mut self, rank: u32, most: usize) -> Vec<OperationCompletion> {
        if rank.is_multiple_of(2) {
            let taken: Vec<_> =
                std::iter::from_fn(|| self.engine(rank).complete_next()).take(most).map(of_receive).collect();
            self.fabric().tally.add_to(Event::CompletedNext, taken.len() as u64);
            if !taken.is_empty() {
                return taken;
            }
        }
        let mut taken = vec![OperationCompletion::default(); most];
        let count = self.engine(rank).take_completions(&mut taken);
        taken.truncate(count);
        taken
    }

    /// Returns whether a rank finds nothing to do. No completion may then wait.
    pub(crate) fn is_quiet(&mut self, rank: u32) -> Result<bool, Violation> {
        let engine = self.engine(rank);
        let is_quiet = engine.is_quiet();
        ensure!(
            !is_quiet || engine.take_completions(&mut [OperationCompletion::default()]) == 0,
            "rank {rank} is quiet, but a completion waits"
        );
        Ok(is_quiet)
    }

    /// Returns whether messages wait for slots to enter their buffers.
    pub(crate) fn is_starved(&mut self, rank: u32) -> bool {
        self.engine(rank).is_starved()
    }

    /// Lets messages that wait for slots enter their buffers, as far as there are slots.
    pub(crate) fn feed(&mut self, rank: u32) {
        self.engine(rank).feed();
    }
}

/// Returns the completion of a receive with this number.
fn of_receive((context, status): (u64, Status)) -> OperationCompletion {
    OperationCompletion {
        context,
        kind: CompletionKind::Receive,
        immediate: status.immediate,
        outcome: Ok(status),
        ..OperationCompletion::default()
    }
}
