//! A simulated connection and its two ends.

use std::collections::VecDeque;
use std::time::Duration;

use nemesia_core::port::memory::{
    Completion, Connection, ConnectionState, Event, LostError, Private, WorkError, WorkOutcome,
};

use super::operation::{Operation, Receive};

/// Both ends of a connection; first the end that asked for it.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) ends: [End; 2],
    /// Whether nothing moves any more.
    pub(super) broken: bool,
}

/// One end of a connection.
#[derive(Debug)]
pub(super) struct End {
    pub(super) node: usize,
    pub(super) connection: Connection,
    pub(super) state: ConnectionState,
    /// Whether it takes receives from the shared queue.
    pub(super) shared: bool,
    pub(super) deadline: Duration,
    /// The private data that this side sent with the request or the answer.
    pub(super) private: Private,
    pub(super) operations: VecDeque<Operation>,
    /// Work requests of the send queue: those posted, and those whose places are free again.
    pub(super) posted: u64,
    pub(super) freed: u64,
    pub(super) receives: VecDeque<Receive>,
    /// The number of used places in its own receive queue.
    pub(super) receiving: u32,
    /// Completions of the send queue that were not polled yet, each with the number of places that it frees.
    pub(super) sent: VecDeque<(Completion, u64)>,
    /// Completions of receives that were not polled yet, each with whether the shared queue supplied the
    /// receive.
    pub(super) arrived: VecDeque<(Completion, bool)>,
    /// Whether anything has arrived from the peer.
    pub(super) heard: bool,
    pub(super) closing: bool,
    /// Set if the connection ends soon: the reason, and the error of its oldest work request.
    pub(super) doom: Option<(LostError, WorkError)>,
}

impl End {
    pub(super) fn new(node: usize, connection: Connection, state: ConnectionState) -> Self {
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

    /// Adds a completion of the send queue.
    pub(super) fn report(&mut self, id: u64, number: u64, outcome: WorkOutcome) {
        let completion = Completion { id, connection: self.connection, outcome };
        self.sent.push_back((completion, number + 1));
    }

    /// Adds a completion of a receive.
    pub(super) fn arrive(&mut self, id: u64, outcome: WorkOutcome) {
        let completion = Completion { id, connection: self.connection, outcome };
        self.arrived.push_back((completion, self.shared));
    }

    /// Reports completed work requests, in order.
    pub(super) fn settle(&mut self, noisy: bool, is_complete: impl Fn(&Operation) -> bool) {
        let mut report = Vec::new();
        for operation in self.operations.iter_mut().filter(|operation| !operation.reported) {
            if !is_complete(operation) {
                break;
            }
            operation.reported = true;
            if noisy || !operation.quiet {
                report.push((operation.id, operation.number));
            }
        }
        report.into_iter().for_each(|(id, number)| self.report(id, number, WorkOutcome::Done));
    }

    /// Ends the connection at this side: every posted request completes, the oldest with `error`.
    pub(super) fn flush(&mut self, error: WorkError) {
        let mut error = Some(error);
        for operation in std::mem::take(&mut self.operations) {
            if !operation.reported {
                let why = error.take().unwrap_or(WorkError::Flushed);
                self.report(operation.id, operation.number, WorkOutcome::Failed(why));
            }
        }
        for receive in std::mem::take(&mut self.receives) {
            self.arrive(receive.id, WorkOutcome::Failed(WorkError::Flushed));
        }
        self.state = ConnectionState::Lost;
        self.doom = None;
    }

    /// Returns whether a closed connection has nothing left to report.
    pub(super) fn is_over(&self) -> bool {
        self.closing && self.state == ConnectionState::Lost && self.sent.is_empty() && self.arrived.is_empty()
    }

    /// Returns the event that reports the end of the connection.
    pub(super) fn end(&self, error: LostError) -> Event {
        Event::Lost { connection: self.connection, error }
    }
}
