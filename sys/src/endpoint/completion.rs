//! The completion queue: operations that carry a number of the caller's, and whose completions are taken many at
//! a time.
//!
//! The engine's room is [`completion`](nemesia_core::engine).
//!
//! | file | contents |
//! |---|---|
//! | `completion.rs` | the queue: taking completions, and waiting for them |
//! | `completion/start.rs` | the operations whose completions enter the queue |
//! | `completion/many.rs` | many requests without a queue: `test_some`, `wait_any`; waits until anything happens |

mod many;
mod start;
#[cfg(test)]
mod tests;

use std::time::Duration;

use nemesia_core::engine::{self, CompletionKind, MultiPlace, Outcome};

use super::wait::{Awaited, Wait};
use super::{Endpoint, Status, status};
use crate::error::Error;
pub use many::{EndedRequest, RequestPlace};
pub use start::{StartedOperation, WithCompletion};

/// One entry of the completion queue: an operation that is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The number that the caller has given the operation ([`Endpoint::with_completion`]).
    pub context: u64,
    /// The kind of the operation.
    pub kind: CompletionKind,
    /// The immediate data of a received message; `None` if it had none.
    pub immediate: Option<u64>,
    pub(in crate::endpoint) place: MultiPlace,
    /// The number of the endpoint's buffer that the completion is about; 0 if there is none.
    pub(in crate::endpoint) owned: u64,
    pub(in crate::endpoint) outcome: Outcome,
}

impl Completion {
    /// Returns the result of the operation.
    ///
    /// The status of a send names the receiver and the tag; that of a one-sided operation names the target, with tag 0.
    ///
    /// # Errors
    /// The error of the operation. [`Error::Truncated`] has the status of the part that was received and the length of
    /// the message.
    pub fn result(&self) -> Result<Status, Error> {
        self.outcome.map(status).map_err(Error::from)
    }

    /// Returns the status of an operation that succeeded; `None` if it failed. This is cheaper than
    /// [`Completion::result`].
    #[inline]
    pub fn status(&self) -> Option<Status> {
        self.outcome.ok().map(status)
    }

    /// Returns whether the operation succeeded. This is cheaper than [`Completion::result`] if it did not.
    pub const fn is_success(&self) -> bool {
        self.outcome.is_ok()
    }
}

impl Default for Completion {
    /// A place for a completion. Its result is [`Error::Stale`].
    fn default() -> Self {
        engine::OperationCompletion::default().into()
    }
}

impl From<engine::OperationCompletion> for Completion {
    #[inline]
    fn from(completion: engine::OperationCompletion) -> Self {
        let engine::OperationCompletion { context, kind, immediate, place, outcome } = completion;
        Self { context, kind, immediate, place, owned: 0, outcome }
    }
}

/// # The completion queue
///
/// An operation may carry a 64-bit number of the caller's, for instance the address of its own request. Such an
/// operation needs no test: its completion enters the endpoint's queue, and [`Endpoint::completions`] takes many
/// completions at a time, in the order in which they happened.
///
/// The queue takes no memory and cannot overflow: its entries are the slots of the requests themselves, which stay in
/// use until their completions are taken (NEMESIA_REQUESTS limits their number). An operation without a completion in
/// the queue pays nothing for it.
///
/// ```
/// # nemesia::testing::world(2, |mut endpoint| {
/// use nemesia::{Completion, CompletionKind, RecvOp, Source, Tag};
///
/// let peer = 1 - endpoint.rank();
/// let mut buf = [0; 8];
/// let (base, len) = (buf.as_mut_ptr(), buf.len());
/// // SAFETY: the buffer lives, unused, until its completion is taken.
/// unsafe {
///     let op = RecvOp::from_raw(Source::Rank(peer), Tag::Exactly(1), base, len);
///     endpoint.with_completion(42).irecv_op(op)?;
/// }
/// endpoint.send(peer, 1, b"nemesia!")?;
/// let mut completions = [Completion::default(); 16];
/// assert_eq!(endpoint.wait_completions(&mut completions, None)?, 1);
/// assert_eq!((completions[0].context, completions[0].kind), (42, CompletionKind::Receive));
/// assert_eq!(completions[0].result()?.len, 8);
/// assert_eq!(&buf, b"nemesia!");
/// # endpoint.barrier()?;
/// # endpoint.close()
/// # })?.into_iter().collect::<Result<(), nemesia::Error>>()?;
/// # Ok::<(), nemesia::Error>(())
/// ```
impl Endpoint {
    /// Takes completions out of the queue, the oldest first, into the first elements of `into`. Returns their number.
    ///
    /// If the queue is empty, the call makes progress as [`Endpoint::progress`] does, at most until there is a
    /// completion and no receive is posted. It never blocks. A buffer whose completion was taken belongs to its owner
    /// again.
    ///
    /// For an event loop, call [`Endpoint::arm`] when this returns 0: it does not arm while a completion is in the
    /// queue. In a forked child the result is 0.
    #[inline]
    pub fn completions(&mut self, into: &mut [Completion]) -> usize {
        if self.is_forked() {
            return 0;
        }
        let count = self.take_completions(into);
        if count > 0 {
            self.call_succeeded();
            // A caller that always finds completions makes progress now and then all the same.
            if self.is_progress_due() {
                self.advance();
            }
            return count;
        }
        let packets = self.advance_to_completions();
        let count = self.take_completions(into);
        if count > 0 {
            self.call_succeeded();
        } else {
            self.count_call(packets);
        }
        count
    }

    /// Takes the next completion if it is that of a posted receive, and the message of this receive is the next packet:
    /// the critical path. Returns the number of the receive and its status. `None` has no other meaning, not even that
    /// no completion is in the queue: [`Endpoint::completions`] takes it.
    #[inline]
    pub fn next_completion(&mut self) -> Option<(u64, Status)> {
        if self.is_forked() {
            return None;
        }
        let (context, done) = self.engine.complete_next()?;
        self.call_succeeded();
        // A caller that always finds completions makes progress now and then all the same.
        if self.is_progress_due() {
            self.advance();
        }
        Some((context, status(done)))
    }

    /// Returns whether [`Endpoint::completions`] would most probably find nothing: a caller that polls without a pause
    /// may leave out most of its calls then, but not all.
    #[inline]
    pub fn is_quiet(&mut self) -> bool {
        !self.is_forked() && self.engine.is_quiet()
    }

    /// Returns whether no receive is posted, so that a message that comes now is unexpected.
    #[inline]
    pub const fn awaits_no_message(&self) -> bool {
        self.engine.awaits_no_message()
    }

    /// Waits until a completion is in the queue, for at most `limit`, and takes completions as
    /// [`Endpoint::completions`] does. Returns 0 if the limit has passed, or `into` is empty. It spins, then sleeps.
    ///
    /// # Errors
    /// [`Error::Unexpected`] if none of the operations under way can complete before stored messages are received;
    /// [`Error::Forked`]. The operations stay as they are.
    pub fn wait_completions(
        &mut self,
        into: &mut [Completion],
        limit: Option<Duration>,
    ) -> Result<usize, Error> {
        self.check_origin()?;
        let count = self.completions(into);
        if count > 0 || into.is_empty() || limit == Some(Duration::ZERO) {
            return Ok(count);
        }
        let mut wait = Wait::new(limit);
        loop {
            let packets = self.engine.step().packets;
            let count = self.take_completions(into);
            if count > 0 {
                return Ok(count);
            }
            match self.pause(&mut wait, packets, Awaited::Completions) {
                Ok(()) => {}
                Err(Error::Timeout(_)) => return Ok(0),
                Err(error) => return Err(error),
            }
        }
    }
}
