//! One end of a simulated connection.

use std::collections::VecDeque;
use std::time::Duration;

use nemesia_core::port::memory::{
    Completion, Connection, Event, LostError, Outcome, Private, State, WorkError,
};

use super::operation::{Operation, Receive};

/// One end.
#[derive(Debug)]
pub(super) struct End {
    pub(super) node: usize,
    pub(super) connection: Connection,
    pub(super) state: State,
    /// Takes from the shared queue.
    pub(super) shared: bool,
    pub(super) deadline: Duration,
    /// What we said with the request or the answer.
    pub(super) private: Private,
    pub(super) operations: VecDeque<Operation>,
    /// Work requests of the send queue: posted, and those whose places are free again.
    pub(super) posted: u64,
    pub(super) freed: u64,
    pub(super) receives: VecDeque<Receive>,
    /// Places of the own receive queue in use.
    pub(super) receiving: u32,
    /// Completions of the send queue that were not polled, each with how many places it frees.
    pub(super) sent: VecDeque<(Completion, u64)>,
    /// Completions of receives that were not polled, each with whether it was the shared queue's.
    pub(super) arrived: VecDeque<(Completion, bool)>,
    /// Something has come from the peer.
    pub(super) heard: bool,
    pub(super) closing: bool,
    /// It ends soon: why, and what its oldest work request fails with.
    pub(super) doom: Option<(LostError, WorkError)>,
}

impl End {
    pub(super) fn new(node: usize, connection: Connection, state: State) -> Self {
        Self {
            node,
            connection,
            state,
            shared: false,
            deadline: Duration::MAX,
            private: Private::EMPTY,
            operations: VecDeque::new(),
            posted: 0,
            freed: 0,
            receives: VecDeque::new(),
            receiving: 0,
            sent: VecDeque::new(),
            arrived: VecDeque::new(),
            heard: false,
            closing: false,
            doom: None,
        }
    }

    /// A completion of the send queue.
    pub(super) fn tell(&mut self, id: u64, number: u64, outcome: Outcome) {
        let completion = Completion { id, connection: self.connection, outcome };
        self.sent.push_back((completion, number + 1));
    }

    /// A completion of a receive.
    pub(super) fn arrive(&mut self, id: u64, outcome: Outcome) {
        let completion = Completion { id, connection: self.connection, outcome };
        self.arrived.push_back((completion, self.shared));
    }

    /// Tells of what has completed, in order.
    pub(super) fn settle(&mut self, noisy: bool, is_complete: impl Fn(&Operation) -> bool) {
        let mut tell = Vec::new();
        for operation in self.operations.iter_mut().filter(|operation| !operation.told) {
            if !is_complete(operation) {
                break;
            }
            operation.told = true;
            if noisy || !operation.quiet {
                tell.push((operation.id, operation.number));
            }
        }
        tell.into_iter().for_each(|(id, number)| self.tell(id, number, Outcome::Done));
    }

    /// Ends the connection here: everything that was posted completes, the oldest with `error`.
    pub(super) fn flush(&mut self, error: WorkError) {
        let mut error = Some(error);
        for operation in std::mem::take(&mut self.operations) {
            if !operation.told {
                let why = error.take().unwrap_or(WorkError::Flushed);
                self.tell(operation.id, operation.number, Outcome::Failed(why));
            }
        }
        for receive in std::mem::take(&mut self.receives) {
            self.arrive(receive.id, Outcome::Failed(WorkError::Flushed));
        }
        self.state = State::Lost;
        self.doom = None;
    }

    /// Whether nothing more is heard of it once it is closed.
    pub(super) fn is_over(&self) -> bool {
        self.closing && self.state == State::Lost && self.sent.is_empty() && self.arrived.is_empty()
    }

    /// The event that tells of its end.
    pub(super) fn end(&self, error: LostError) -> Event {
        Event::Lost { connection: self.connection, error }
    }
}
